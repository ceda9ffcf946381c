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

/// The images with a target that a ResourceQuota keeps waiting. Its use changes with every claim, so nobody else is woken.
fn waiting_for_quota(cluster: &Cluster) -> Vec<String> {
    let waits = |image: &&Arc<GoldenImage>| {
        let targets = image.status.iter().flat_map(|status| &status.targets);
        targets.flat_map(|target| &target.conditions).any(|condition| condition.reason == Reason::QuotaExceeded.as_str())
    };
    cluster.images.all().iter().filter(waits).map(|image| image.name_any()).collect()
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
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{is_importing, is_unfinished};

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
