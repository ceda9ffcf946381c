//! The watches, what each change wakes, and the workers.

use std::{
    fmt::Debug,
    pin::pin,
    sync::{Arc, PoisonError},
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, Resource, ResourceExt,
    runtime::watcher::{self, Event, watcher},
};
use serde::de::DeserializeOwned;

use super::{
    Ctx,
    cache::{Cache, Key},
    clone, config, datavolume, names, snapshot,
    types::{CDIConfig, DataSource, DataVolume, StorageProfile, VolumeSnapshot},
};

/// Workers that look at DataVolumes side by side (CDI has three a controller).
const WORKERS: usize = 6;

/// Work in the background.
pub(super) type Chore = Box<dyn FnOnce(Arc<Ctx>) -> BoxFuture<'static, Result<(), String>> + Send>;

/// Starts the watches and the workers.
pub(super) fn start(ctx: &Arc<Ctx>) {
    ctx.spawn(watch::<DataVolume>(ctx.clone(), |ctx| &ctx.api.caches.dvs));
    ctx.spawn(watch::<PersistentVolumeClaim>(ctx.clone(), |ctx| &ctx.api.caches.pvcs));
    ctx.spawn(watch::<PersistentVolume>(ctx.clone(), |ctx| &ctx.api.caches.pvs));
    ctx.spawn(watch::<Pod>(ctx.clone(), |ctx| &ctx.api.caches.pods));
    ctx.spawn(watch::<StorageClass>(ctx.clone(), |ctx| &ctx.api.caches.classes));
    ctx.spawn(watch::<StorageProfile>(ctx.clone(), |ctx| &ctx.api.caches.profiles));
    ctx.spawn(watch::<CDIConfig>(ctx.clone(), |ctx| &ctx.api.caches.configs));
    ctx.spawn(watch::<DataSource>(ctx.clone(), |ctx| &ctx.api.caches.data_sources));
    ctx.spawn(watch::<VolumeSnapshot>(ctx.clone(), |ctx| &ctx.api.caches.snapshots));
    for _ in 0..WORKERS {
        ctx.spawn(work(ctx.clone()));
    }
}

/// Waits until every watch has listed once (or its kind is known not to be served).
pub(super) async fn synced(ctx: &Ctx) {
    let caches = &ctx.api.caches;
    caches.dvs.until_synced().await;
    caches.pvcs.until_synced().await;
    caches.pvs.until_synced().await;
    caches.pods.until_synced().await;
    caches.classes.until_synced().await;
    caches.profiles.until_synced().await;
    caches.configs.until_synced().await;
    caches.data_sources.until_synced().await;
    caches.snapshots.until_synced().await;
}

/// What a change of one kind sets going.
trait Woken: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static {
    fn changed(self: &Arc<Self>, ctx: &Arc<Ctx>, gone: bool);
}

async fn watch<K: Woken>(ctx: Arc<Ctx>, cache: fn(&Ctx) -> &Cache<K>) {
    let mut stream = pin!(watcher(Api::<K>::all(ctx.api.client.clone()), watcher::Config::default()));
    let mut wait = Duration::from_millis(50);
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                wait = Duration::from_millis(50);
                match event {
                    Event::Init => cache(&ctx).begin_list(),
                    Event::InitApply(object) | Event::Apply(object) => cache(&ctx).put(object).changed(&ctx, false),
                    Event::Delete(object) => {
                        cache(&ctx).remove(&object);
                        Arc::new(object).changed(&ctx, true);
                    }
                    Event::InitDone => {
                        for object in cache(&ctx).end_list() {
                            object.changed(&ctx, true);
                        }
                    }
                }
            }
            Err(error) => {
                if let watcher::Error::InitialListFailed(kube::Error::Api(status)) = &error
                    && status.code == 404
                {
                    cache(&ctx).absent();
                }
                tracing::debug!(target: "cdi_stand_in", "watch of {}: {error}", K::kind(&()));
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(Duration::from_secs(1));
            }
        }
    }
}

async fn work(ctx: Arc<Ctx>) {
    synced(&ctx).await;
    loop {
        let key = ctx.queue.next().await;
        // Writes wait while paused, so the worker does too: nothing is decided on what may be old by then.
        let _ = ctx.api.paused.clone().wait_for(|paused| !paused).await;
        match datavolume::reconcile(&ctx, &key).await {
            Ok(None) => {}
            Ok(Some(wait)) => ctx.queue.add_after(key.clone(), wait),
            Err(error) => {
                ctx.journal.note(&key, format!("tried again: {error}"));
                ctx.queue.add_after(key.clone(), Duration::from_millis(200));
            }
        }
        ctx.queue.done(&key);
    }
}

impl Ctx {
    /// Runs a chore in the background. While one of the same name runs, the newest waits for it, and older ones are dropped.
    fn chore<F>(self: &Arc<Self>, name: String, key: Key, chore: impl FnOnce(Arc<Self>) -> F + Send + 'static)
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let chore: Chore = Box::new(|ctx| chore(ctx).boxed());
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(next) = busy.get_mut(&name) {
            *next = Some(chore);
            return;
        }
        busy.insert(name.clone(), None);
        drop(busy);
        let ctx = self.clone();
        self.spawn(async move {
            synced(&ctx).await;
            let mut now = Some(chore);
            while let Some(chore) = now.take() {
                if let Err(error) = chore(ctx.clone()).await {
                    ctx.journal.note(&key, format!("{name}: {error}"));
                }
                let mut busy = ctx.busy.lock().unwrap_or_else(PoisonError::into_inner);
                now = busy.get_mut(&name).and_then(Option::take);
                if now.is_none() {
                    busy.remove(&name);
                }
            }
        });
    }

    /// DataVolumes that wait for something in the cluster to change.
    fn wake_waiting(&self) {
        let waits = |dv: &DataVolume| dv.status.as_ref().is_none_or(|status| !matches!(status.phase.as_str(), "Succeeded" | "Failed"));
        for dv in self.api.caches.dvs.all(waits) {
            self.queue.add(Key::of(&*dv));
        }
    }

    fn wake_config(self: &Arc<Self>) {
        self.chore("config".into(), Key::new("", config::CONFIG_NAME), |ctx| async move {
            config::reconcile(&ctx).await.map_err(|error| error.to_string())
        });
    }
}

fn text(done: Result<(), kube::Error>) -> Result<(), String> {
    done.map_err(|error| error.to_string())
}

impl Woken for DataVolume {
    fn changed(self: &Arc<Self>, ctx: &Arc<Ctx>, gone: bool) {
        let key = Key::of(&**self);
        ctx.queue.add(key.clone());
        if gone && let Some(pvc) = ctx.api.caches.pvcs.get(&key) {
            ctx.chore(format!("claim {}", pvc.uid().unwrap_or_default()), key, |ctx| async move { text(ctx.tend_claim(&pvc).await) });
        }
    }
}

impl Woken for PersistentVolumeClaim {
    fn changed(self: &Arc<Self>, ctx: &Arc<Ctx>, gone: bool) {
        let key = Key::of(&**self);
        let uid = self.uid().unwrap_or_default();
        ctx.queue.add(key.clone());
        // Clones wait for their source.
        ctx.wake_clones_of(&key);
        if gone {
            ctx.end_run(&uid);
            ctx.chore(format!("volumes of {uid}"), key.clone(), {
                let uid = uid.clone();
                |ctx| async move { text(ctx.tend_volumes_of(&uid).await) }
            });
            // What it owned: prime and scratch claims, importer pods.
            for owned in ctx.api.caches.pvcs.all(|pvc| pvc.owner_references().iter().any(|owner| owner.uid == uid)) {
                owned.changed(ctx, false);
            }
            for owned in ctx.api.caches.pods.all(|pod| pod.owner_references().iter().any(|owner| owner.uid == uid)) {
                owned.changed(ctx, false);
            }
            return;
        }
        let claim = self.clone();
        ctx.chore(format!("claim {uid}"), key, |ctx| async move { text(ctx.tend_claim(&claim).await) });
    }
}

impl Ctx {
    fn wake_clones_of(&self, source: &Key) {
        let waits = |dv: &DataVolume| {
            let status = dv.status.as_ref();
            let names = dv
                .spec
                .source
                .as_ref()
                .is_some_and(|of| of.pvc.as_ref().is_some_and(|pvc| pvc.name == source.name && pvc.namespace == source.namespace));
            (names || dv.spec.source_ref.is_some()) && status.is_none_or(|status| status.phase != "Succeeded")
        };
        for dv in self.api.caches.dvs.all(waits) {
            self.queue.add(Key::of(&*dv));
        }
    }
}

impl Woken for Pod {
    fn changed(self: &Arc<Self>, ctx: &Arc<Ctx>, gone: bool) {
        if gone {
            // A claim it held may be let go now.
            for pvc in ctx.api.caches.pvcs.all(|pvc| pvc.metadata.deletion_timestamp.is_some() && pvc.namespace() == self.namespace()) {
                pvc.changed(ctx, false);
            }
            return;
        }
        let pod = self.clone();
        ctx.chore(format!("pod {}", self.uid().unwrap_or_default()), Key::of(&**self), |ctx| async move { text(ctx.tend_pod(&pod).await) });
    }
}

impl Woken for PersistentVolume {
    fn changed(self: &Arc<Self>, ctx: &Arc<Ctx>, gone: bool) {
        if gone {
            return;
        }
        let pv = self.clone();
        ctx.chore(format!("volume {}", self.name_any()), Key::of(&**self), |ctx| async move { text(ctx.tend_volume(&pv).await) });
    }
}

impl Woken for StorageClass {
    fn changed(self: &Arc<Self>, ctx: &Arc<Ctx>, _gone: bool) {
        ctx.wake_config();
        ctx.wake_waiting();
        for pvc in ctx.api.caches.pvcs.all(|pvc| super::status::claim_phase(pvc) == "Pending") {
            pvc.changed(ctx, false);
        }
    }
}

impl Woken for StorageProfile {
    fn changed(self: &Arc<Self>, ctx: &Arc<Ctx>, _gone: bool) {
        ctx.wake_config();
        ctx.wake_waiting();
    }
}

impl Woken for CDIConfig {
    fn changed(self: &Arc<Self>, ctx: &Arc<Ctx>, _gone: bool) {
        ctx.wake_config();
        ctx.wake_waiting();
    }
}

impl Woken for DataSource {
    fn changed(self: &Arc<Self>, ctx: &Arc<Ctx>, _gone: bool) {
        for dv in ctx.api.caches.dvs.all(|dv| dv.spec.source_ref.is_some()) {
            ctx.queue.add(Key::of(&*dv));
        }
    }
}

impl Woken for VolumeSnapshot {
    fn changed(self: &Arc<Self>, ctx: &Arc<Ctx>, gone: bool) {
        ctx.wake_waiting();
        if gone {
            // Only disk space of a test.
            let _ = std::fs::remove_file(snapshot::file(&ctx.opts.dir, self));
            return;
        }
        let taken = self.clone();
        ctx.chore(format!("snapshot {}", self.uid().unwrap_or_default()), Key::of(&**self), |ctx| async move {
            snapshot::take(&ctx, &taken).await.map_err(|error| error.to_string())
        });
    }
}
