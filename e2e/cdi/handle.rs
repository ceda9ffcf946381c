//! What a test holds of a running stand-in.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::Ordering},
};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;

use super::{
    Ctx, Entry, What, Writes,
    api::{ApiServer, Caches},
    cache::Key,
    engine,
    journal::Journal,
    options::{Controllers, Options},
    queue::Queue,
    script::{Behaviour, Scripts},
    storage::disk_of,
    webhook::Webhook,
};

/// A running stand-in for CDI. One a cluster; it stops when dropped.
pub struct CdiStandIn {
    ctx: Arc<Ctx>,
    paused: watch::Sender<bool>,
    webhook: Option<Webhook>,
    /// Its own, where it was not started on the caller's.
    runtime: Option<tokio::runtime::Runtime>,
}

/// The one stand-in of a test binary, started by the first test that asks for it. It outlives that test: it runs on threads of its own.
pub struct Shared(tokio::sync::OnceCell<CdiStandIn>);

impl Shared {
    /// Not yet started.
    pub const fn new() -> Self {
        Self(tokio::sync::OnceCell::const_new())
    }

    /// The stand-in, started with these options if none was.
    pub async fn on(&self, kubeconfig: &Path, options: impl FnOnce() -> Options) -> &CdiStandIn {
        self.0.get_or_init(|| CdiStandIn::start_apart(kubeconfig, options())).await
    }
}

impl CdiStandIn {
    /// Like [`CdiStandIn::start`], on threads of its own, so that it lives on when the caller's runtime (a `#[tokio::test]`) ends.
    ///
    /// # Panics
    /// As [`CdiStandIn::start`], or when the kubeconfig cannot be used.
    pub async fn start_apart(kubeconfig: &Path, options: Options) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads for the stand-in for CDI");
        let kubeconfig = kubeconfig.to_owned();
        let started = runtime.spawn(async move {
            let kubeconfig = kube::config::Kubeconfig::read_from(&kubeconfig).expect("the kubeconfig for the stand-in for CDI");
            let config = kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
                .await
                .expect("a usable kubeconfig");
            Self::start(Client::try_from(config).expect("a client"), options).await
        });
        let mut stand_in = started.await.expect("the stand-in for CDI starts");
        stand_in.runtime = Some(runtime);
        stand_in
    }

    /// Starts the stand-in on a cluster that has CDI's CRDs, and waits until it watches and its webhooks are registered.
    ///
    /// `client` must be allowed everything: CDI is.
    ///
    /// # Panics
    /// When volumes cannot be kept in `options.dir`, or webhooks cannot be served or registered.
    pub async fn start(client: Client, options: Options) -> Self {
        // reqwest takes the process's provider; another installation of it is harmless.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        std::fs::create_dir_all(&options.dir)
            .unwrap_or_else(|error| panic!("volumes of the stand-in for CDI in {}: {error}", options.dir.display()));
        let (paused, receiver) = watch::channel(false);
        let journal = Arc::new(Journal::new());
        let ctx = Arc::new(Ctx {
            api: ApiServer {
                client,
                caches: Arc::new(Caches::default()),
                journal: journal.clone(),
                paused: receiver,
                events: options.events,
            },
            opts: options,
            queue: Queue::default(),
            scripts: Scripts::new(),
            journal,
            runs: Mutex::default(),
            busy: Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
            stop: tokio_util::sync::CancellationToken::new(),
        });
        engine::start(&ctx);
        engine::synced(&ctx).await;
        let webhook = if ctx.opts.admission { Some(Webhook::start(ctx.clone()).await) } else { None };
        Self { ctx, paused, webhook, runtime: None }
    }

    /// Has `behaviour` happen to every DataVolume that `pattern` names (a name or `namespace/name`, `*` for anything), now and later.
    pub fn script(&self, pattern: &str, behaviour: Behaviour) {
        self.ctx.scripts.add(pattern, behaviour);
        self.wake();
    }

    /// A script in the place of every other with exactly this pattern: what one held is held by the next, with nothing between.
    pub fn rescript(&self, pattern: &str, behaviour: Behaviour) {
        self.ctx.scripts.replace(pattern, behaviour);
        self.wake();
    }

    /// Takes back every script with exactly this pattern: the cause is gone, and what waited goes on.
    pub fn unscript(&self, pattern: &str) {
        self.ctx.scripts.remove(pattern);
        self.wake();
    }

    fn wake(&self) {
        for dv in self.ctx.api.caches.dvs.all(|_| true) {
            self.ctx.queue.add(Key::of(&*dv));
        }
    }

    /// Stops all writes, as when CDI's controller is away. Importers that run go on without telling.
    pub fn pause(&self) {
        self.paused.send_replace(true);
    }

    /// Ends [`CdiStandIn::pause`].
    pub fn resume(&self) {
        self.paused.send_replace(false);
    }

    /// Whether CDI's webhooks answer. While they do not, every create and update of a DataVolume fails.
    pub fn serve_admission(&self, up: bool) {
        if let Some(webhook) = &self.webhook {
            webhook.up.store(up, Ordering::SeqCst);
        }
    }

    /// Everything done so far, oldest first.
    pub fn journal(&self) -> Vec<Entry> {
        self.ctx.journal.entries()
    }

    /// What was done for one DataVolume.
    pub fn journal_of(&self, namespace: &str, name: &str) -> Vec<What> {
        let key = Key::new(namespace, name);
        self.journal().into_iter().filter(|entry| entry.key == key).map(|entry| entry.what).collect()
    }

    /// The requests an import sent, as `HEAD 200`.
    pub fn requests_of(&self, namespace: &str, name: &str) -> Vec<String> {
        let request = |what| if let What::Request { method, status, .. } = what { Some(format!("{method} {status}")) } else { None };
        self.journal_of(namespace, name).into_iter().filter_map(request).collect()
    }

    /// Waits until a pod is known: what is asked after that is judged with it.
    pub async fn until_pod(&self, namespace: &str, name: &str) {
        let key = Key::new(namespace, name);
        let known = self.ctx.api.caches.pods.wait(&key, |pod| pod.map(|_| ()));
        tokio::time::timeout(std::time::Duration::from_secs(90), known).await.expect("the stand-in for CDI sees the pod");
    }

    /// Waits until a claim is known to be gone.
    pub async fn until_no_claim(&self, namespace: &str, name: &str) {
        let key = Key::new(namespace, name);
        let known = self.ctx.api.caches.pvcs.wait(&key, |claim| claim.is_none().then_some(()));
        tokio::time::timeout(std::time::Duration::from_secs(90), known).await.expect("the stand-in for CDI sees the claim go");
    }

    /// Waits until the journal of one DataVolume meets a condition.
    ///
    /// # Panics
    /// When it has not after a minute and a half, with the journal.
    pub async fn until_journal(&self, namespace: &str, name: &str, mut holds: impl FnMut(&[What]) -> bool) {
        let mut changed = self.ctx.journal.watch();
        let waits = async {
            while !holds(&self.journal_of(namespace, name)) {
                // The sender lives as long as `self`.
                let _ = changed.changed().await;
            }
        };
        if tokio::time::timeout(std::time::Duration::from_secs(90), waits).await.is_err() {
            let key = Key::new(namespace, name);
            let did: Vec<_> = self.journal().iter().filter(|entry| entry.key == key).map(ToString::to_string).collect();
            panic!("the stand-in for CDI did not do it for {key}; it did:\n{}", did.join("\n"));
        }
    }

    /// Writes to the API server so far.
    pub fn writes(&self) -> Writes {
        self.ctx.journal.writes()
    }

    /// The file with the disk of a bound claim: the whole device for Block, `disk.img` for Filesystem.
    pub async fn disk(&self, namespace: &str, claim: &str) -> Option<PathBuf> {
        let claim = self.claim(namespace, claim).await?;
        disk_of(&self.ctx.opts.dir, &claim)
    }

    /// Runs work on the stand-in's own runtime: the client's connections live there.
    async fn apart<F>(&self, work: impl FnOnce(Arc<Ctx>) -> F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.ctx.runtime.spawn(work(self.ctx.clone())).await.expect("the stand-in for CDI runs")
    }

    async fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        let key = Key::new(namespace, name);
        self.apart(|ctx| async move { ctx.api.get(&key).await }).await.expect("the API server answers")
    }

    /// Deletes a claim under its DataVolume, as a person would.
    pub async fn delete_claim(&self, namespace: &str, name: &str) {
        let claim = self.claim(namespace, name).await.expect("the claim is there");
        self.apart(|ctx| async move { ctx.api.delete(&*claim).await }).await.expect("the claim is deleted");
    }

    /// Loses a bound claim: its volume goes away.
    pub async fn lose_claim(&self, namespace: &str, name: &str) {
        let claim = self.claim(namespace, name).await.expect("the claim is there");
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).expect("the claim is bound");
        self.apart(|ctx| async move {
            let volume: Option<Arc<PersistentVolume>> = ctx.api.get(&Key::new("", volume)).await?;
            if let Some(volume) = volume {
                ctx.api.delete(&*volume).await?;
                ctx.release_finalizer(&*volume, "kubernetes.io/pv-protection").await?;
            }
            if ctx.opts.controllers == Controllers::StandIn {
                ctx.api.patch_status(&*claim, json!({ "phase": "Lost" })).await?;
            }
            Ok::<_, kube::Error>(())
        })
        .await
        .expect("the claim loses its volume");
    }

    /// Kills the importer pod of an import that runs, as an eviction would.
    pub async fn kill_importer(&self, namespace: &str, name: &str) {
        let claim = self.claim(namespace, name).await.expect("the claim is there");
        let key = Key::new(namespace, format!("importer-prime-{}", claim.uid().unwrap_or_default()));
        let killed = self.apart(|ctx| async move {
            let pod: Option<Arc<Pod>> = ctx.api.get(&key).await?;
            match pod {
                Some(pod) => ctx.api.delete(&*pod).await.map(|()| true),
                None => Ok(false),
            }
        });
        assert!(killed.await.expect("the importer pod is deleted"), "no importer pod of {namespace}/{name}");
    }

    /// CDI's former garbage collection for one DataVolume that is Succeeded, or will be.
    pub fn garbage_collect(&self, namespace: &str, name: &str) {
        self.script(&format!("{namespace}/{name}"), Behaviour::GarbageCollect);
    }

    /// Stops and takes the webhooks away, so that the API server does not wait for them.
    pub async fn stop(mut self) {
        // First, so that what was paused is not done after all.
        self.ctx.stop.cancel();
        if let Some(webhook) = self.webhook.take() {
            self.resume();
            self.apart(|ctx| async move { webhook.unregister(&ctx).await }).await;
        }
    }
}

impl Drop for CdiStandIn {
    fn drop(&mut self) {
        self.ctx.stop.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
