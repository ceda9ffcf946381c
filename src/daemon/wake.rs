//! Who is woken by what: images by changes of what is watched, and by the spool.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use kube::ResourceExt as _;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{controller::Shared, index::Index, list};
use crate::{
    api::{ConditionType, GoldenImage, is_true},
    golden::Queue,
    rules::Reason,
    spool::{self, Registry, Store},
    world::{Changed, Cluster},
};

/// The watched world, whose changes are told to the images concerned, to the list, and to those who look at goldens.
pub(super) fn cluster(
    queue: &Arc<Queue<String>>,
    list_changed: &Arc<Notify>,
    goldens_changed: &watch::Sender<()>,
    index: &Arc<Index>,
) -> Cluster {
    let (queue, list_changed, index) = (Arc::clone(queue), Arc::clone(list_changed), Arc::clone(index));
    let goldens_changed = goldens_changed.clone();
    // The stores must know themselves to find the image of a golden: filled in once, right after they are made.
    let known: Arc<OnceLock<Cluster>> = Arc::default();
    let itself = Arc::clone(&known);
    let cluster = Cluster::new(move |changed| {
        let Some(cluster) = itself.get() else { return };
        match changed {
            Changed::Image(name) => {
                index.update(&name, cluster.images.get("", &name).as_deref());
                queue.add(name);
                list_changed.notify_one();
                goldens_changed.send_replace(());
            }
            Changed::Golden(golden) => {
                index.images_of(&golden).into_iter().for_each(|name| queue.add(name));
                goldens_changed.send_replace(());
            }
            Changed::Quota => waiting_for_quota(cluster).into_iter().for_each(|name| queue.add(name)),
            Changed::Storage => all_images(cluster).into_iter().for_each(|name| queue.add(name)),
            Changed::ConfigMap(name) => {
                if name == list::LIST.0 {
                    list_changed.notify_one();
                }
                all_images(cluster).into_iter().for_each(|name| queue.add(name));
            }
            Changed::Secret(name) => naming(cluster, &name).into_iter().for_each(|image| queue.add(image)),
        }
    });
    let _ = known.set(cluster.clone());
    cluster
}

/// The images that name this Secret.
fn naming(cluster: &Cluster, secret: &str) -> Vec<String> {
    let images = cluster.images.all();
    let names = |image: &&Arc<GoldenImage>| image.spec.credentials_secret_ref.as_ref().is_some_and(|named| named.name == secret);
    images.iter().filter(names).map(|image| image.name_any()).collect()
}

/// All of them: drift of the default class is told on Ready images too.
fn all_images(cluster: &Cluster) -> Vec<String> {
    cluster.images.all().iter().map(|image| image.name_any()).collect()
}

/// The images with a target that a ResourceQuota keeps waiting, those first that have failed least, then the oldest (R11). Its use changes
/// with every claim, so nobody else is woken.
pub(super) fn waiting_for_quota(cluster: &Cluster) -> Vec<String> {
    let waits = |image: &&Arc<GoldenImage>| {
        let targets = image.status.iter().flat_map(|status| &status.targets);
        targets.flat_map(|target| &target.conditions).any(|condition| condition.reason == Reason::QuotaExceeded.as_str())
    };
    let turn = |image: &Arc<GoldenImage>| {
        let targets = image.status.iter().flat_map(|status| &status.targets);
        (targets.map(|target| target.attempts).max(), image.creation_timestamp().map(|at| at.0))
    };
    let images = cluster.images.all();
    let mut waiting: Vec<_> = images.iter().filter(waits).map(|image| (turn(image), image.name_any())).collect();
    waiting.sort_unstable();
    waiting.into_iter().map(|(_, name)| name).collect()
}

/// Looks at images again when their importer was seen, or a disk came or went.
pub(super) async fn on_spool(registry: &Registry, store: &Store, shared: Arc<Shared>, stop: CancellationToken) {
    let (mut seen, mut disks) = (registry.changes(), store.changes());
    let wake = |concerned: &dyn Fn(&GoldenImage) -> bool, wait: Duration| {
        let at = tokio::time::Instant::now() + wait;
        shared.cluster.images.all().iter().filter(|image| concerned(image)).for_each(|image| shared.queue.add_at(image.name_any(), at));
    };
    loop {
        let change = tokio::select! {
            () = stop.cancelled() => return,
            change = seen.recv() => Some(change),
            changed = disks.changed() => { if changed.is_err() { return } None },
        };
        match change {
            Some(Ok(spool::Change::Request(grant))) => wake(&|image| image.uid().as_deref() == Some(grant.uid.as_str()), Duration::ZERO),
            // Whose importer it was, a handshake that failed does not say: it is the trouble of one that waits for its import.
            // A port scan or a broken client does this many times a second, which is one look all the same.
            Some(Ok(spool::Change::Handshake)) => wake(&is_importing, Duration::from_secs(1)),
            // A disk came or went, or more happened than could be followed: no news for a golden that is made.
            Some(Err(_)) | None => wake(&is_unfinished, Duration::ZERO),
        }
    }
}

/// Whether an import of this image is under way.
fn is_importing(image: &GoldenImage) -> bool {
    image.status.as_ref().is_some_and(|status| status.targets.iter().any(|target| target.started_time.is_some()))
}

/// Whether something of this image is still to be made.
fn is_unfinished(image: &GoldenImage) -> bool {
    image.status.as_ref().is_none_or(|status| !is_true(&status.conditions, ConditionType::Ready))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use futures::FutureExt as _;
    use k8s_openapi::api::{
        core::v1::{ConfigMap, Pod, ResourceQuota, Secret},
        storage::v1::StorageClass,
    };
    use rstest::rstest;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};
    use tokio::sync::{Notify, watch};

    use super::{is_importing, is_unfinished};
    use crate::{
        daemon::list,
        foreign::{Claim, DataVolume, StorageProfile},
        golden::Queue,
        rules::marks,
        world::{Cluster, Sink, facts},
    };

    fn object<K: DeserializeOwned>(name: &str, more: Value) -> K {
        let mut object = json!({ "metadata": { "name": name, "namespace": "cozy-public" } });
        for (key, value) in more.as_object().expect("a map") {
            match key.as_str() {
                "labels" | "annotations" => object["metadata"][key] = value.clone(),
                _ => object[key] = value.clone(),
            }
        }
        serde_json::from_value(object).expect("an object")
    }

    /// An image whose golden `g-NAME` is made, or not for this reason.
    fn image(name: &str, reason: &str) -> crate::api::GoldenImage {
        let status = if reason == "Ready" { "True" } else { "False" };
        let ready =
            json!([{ "type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
        let target = json!({ "requestedClass": "", "attempts": 1, "golden": format!("g-{name}"), "conditions": ready });
        serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name },
            "spec": { "source": { "http": { "url": format!("https://e.example/{name}") } }, "credentialsSecretRef": { "name": format!("of-{name}") } },
            "status": { "conditions": ready, "targets": [target] },
        }))
        .expect("an image")
    }

    fn put_image(cluster: &Cluster, image: crate::api::GoldenImage) {
        cluster.images.sink(Some).apply(image);
    }

    fn put_claim(cluster: &Cluster, name: &str, more: Value) {
        cluster.claims.sink(Some).apply(object::<Claim>(name, more));
    }

    fn put_volume(cluster: &Cluster, name: &str, more: Value) {
        cluster.volumes.sink(Some).apply(object::<DataVolume>(name, more));
    }

    /// A pod with this claim.
    fn put_pod(cluster: &Cluster, claim: &str) {
        let volumes = json!({ "containers": [], "volumes": [{ "name": "disk", "persistentVolumeClaim": { "claimName": claim } }] });
        cluster.pods.sink(|pod: Pod| Some(facts::pod_facts(&pod))).apply(object("pod", json!({ "spec": volumes })));
    }

    const NOBODY: &[&str] = &[];
    const ALL: &[&str] = &["a", "b"];

    /// Which event wakes whom: the images by name, the list, and those who look at goldens as a whole (the fence around what is to go,
    /// and what ends imports that were left behind).
    #[rstest]
    #[case::an_image_is_made(|cluster: &Cluster| put_image(cluster, image("c", "Fetching")), &["c"], true, true)]
    #[case::an_image_is_to_go(|cluster: &Cluster| {
        let mut image = image("a", "Ready");
        image.spec.retire = Some(true);
        put_image(cluster, image);
    }, &["a"], true, true)]
    #[case::an_image_is_deleted(|cluster: &Cluster| Sink::<crate::api::GoldenImage>::delete(&mut cluster.images.sink(Some), None, "a"), &["a"], true, true)]
    #[case::an_image_is_as_before(|cluster: &Cluster| put_image(cluster, image("a", "Ready")), NOBODY, false, false)]
    #[case::an_import_gets_further(|cluster: &Cluster| put_volume(cluster, "g-b", json!({ "status": { "phase": "ImportInProgress" } })), &["b"], false, true)]
    #[case::a_volume_is_gone(|cluster: &Cluster| Sink::<DataVolume>::delete(&mut cluster.volumes.sink(Some), Some("cozy-public"), "g-a"), &["a"], false, true)]
    #[case::our_mark_is_taken_off(|cluster: &Cluster| put_claim(cluster, "g-a", json!({ "labels": {} })), &["a"], false, true)]
    #[case::a_fence_is_taken_off(|cluster: &Cluster| put_claim(cluster, "g-a", json!({ "labels": { marks::GOLDEN: "true" }, "annotations": {} })), &["a"], false, true)]
    #[case::a_golden_is_asked_to_go(|cluster: &Cluster| put_claim(cluster, "g-nobodys", json!({ "annotations": { marks::RETIRE_REQUESTED: "now" } })), NOBODY, false, true)]
    #[case::a_claim_is_gone(|cluster: &Cluster| Sink::<Claim>::delete(&mut cluster.claims.sink(Some), Some("cozy-public"), "g-a"), &["a"], false, true)]
    #[case::cdi_works(|cluster: &Cluster| put_claim(cluster, "prime-1", json!({})), NOBODY, false, false)]
    #[case::a_pod_holds_a_golden(|cluster: &Cluster| put_pod(cluster, "g-a"), &["a"], false, true)]
    #[case::a_pod_of_cdi(|cluster: &Cluster| put_pod(cluster, "prime-1"), NOBODY, false, false)]
    #[case::a_class_changes(|cluster: &Cluster| {
        let class = json!({ "provisioner": "other.example" });
        cluster.classes.sink(|class: StorageClass| Some(facts::class_facts(&class))).apply(object("replicated", class));
    }, ALL, false, false)]
    #[case::cdi_is_taken_away(|cluster: &Cluster| Sink::<StorageProfile>::not_installed(&mut cluster.profiles.sink(Some)), ALL, false, false)]
    #[case::room_in_a_quota(|cluster: &Cluster| {
        let quota = json!({ "spec": { "hard": { "persistentvolumeclaims": "5" } }, "status": { "hard": { "persistentvolumeclaims": "5" }, "used": { "persistentvolumeclaims": "1" } } });
        cluster.quotas.sink(|quota: ResourceQuota| facts::quota(&quota)).apply(object("quota", quota));
    }, &["b"], false, false)]
    #[case::the_list(|cluster: &Cluster| cluster.config_maps.sink(|_: ConfigMap| Some(Default::default())).apply(object(list::LIST.0, json!({}))), ALL, true, false)]
    #[case::an_upstreams_ca(|cluster: &Cluster| cluster.config_maps.sink(|_: ConfigMap| Some(Default::default())).apply(object("ca", json!({}))), ALL, false, false)]
    #[case::credentials(|cluster: &Cluster| cluster.secrets.sink(|_: Secret| Some(Default::default())).apply(object("of-a", json!({}))), &["a"], false, false)]
    #[case::another_secret(|cluster: &Cluster| cluster.secrets.sink(|_: Secret| Some(Default::default())).apply(object("spool-tls", json!({}))), NOBODY, false, false)]
    fn which_event_wakes_whom(#[case] event: fn(&Cluster), #[case] images: &[&str], #[case] list: bool, #[case] goldens: bool) {
        let (queue, list_changed, goldens_changed) = (Arc::<Queue<String>>::default(), Arc::new(Notify::new()), watch::Sender::new(()));
        let cluster = super::cluster(&queue, &list_changed, &goldens_changed, &Arc::default());
        let mut heard = goldens_changed.subscribe();
        let woken = || {
            let mut woken = BTreeSet::new();
            while let Some(name) = queue.next().now_or_never() {
                queue.done(&name);
                woken.insert(name);
            }
            woken
        };
        put_image(&cluster, image("a", "Ready"));
        put_image(&cluster, image("b", "QuotaExceeded"));
        put_claim(&cluster, "g-a", json!({ "labels": { marks::GOLDEN: "true" }, "annotations": { marks::RETIRING: "since then" } }));
        put_volume(&cluster, "g-a", json!({ "status": { "phase": "Succeeded" } }));
        // What was told so far is no matter.
        woken();
        let _ = list_changed.notified().now_or_never();
        heard.mark_unchanged();

        event(&cluster);
        assert_eq!(woken(), images.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(list_changed.notified().now_or_never().is_some(), list, "the list");
        assert_eq!(heard.has_changed().expect("open"), goldens, "those who look at goldens");
    }

    /// What wakes whom: a port scan of the spool is nothing to a golden that is Ready.
    #[rstest]
    #[case::new(Value::Null, false, true)]
    #[case::importing(json!({ "targets": [{ "requestedClass": "", "attempts": 1, "startedTime": "2026-01-01T00:00:00Z" }] }), true, true)]
    #[case::ready(json!({ "targets": [{ "requestedClass": "", "attempts": 1, "claimUID": "u" }], "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }), false, false)]
    fn who_is_woken(#[case] status: Value, #[case] by_handshake: bool, #[case] by_disk: bool) {
        let image = serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a" },
            "spec": { "source": {} }, "status": status,
        }))
        .expect("object");
        assert_eq!((is_importing(&image), is_unfinished(&image)), (by_handshake, by_disk));
    }
}
