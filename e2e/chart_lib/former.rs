//! The facts about Helm that the order in `docs/migration.md` rests on, on a real API server: what an upgrade deletes, what an
//! uninstall deletes, and that the old release takes a golden up again.
//!
//! The daemon's part (it adopts, and its fence refuses) is tested with the daemon.

use std::collections::BTreeMap;

use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    cluster::cluster,
    harness::{Cluster, Output},
    helm::chart,
};

/// The goldens that are there, by name, with their UIDs.
async fn goldens(cluster: &Cluster, prefix: &str) -> BTreeMap<String, String> {
    let api = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", "cozy-public").await;
    let list = api.list(&Default::default()).await.expect("list the goldens");
    let named = list.into_iter().filter(|golden| golden.name_any().starts_with(prefix) && golden.metadata.deletion_timestamp.is_none());
    named.map(|golden| (golden.name_any(), golden.uid().expect("a UID"))).collect()
}

async fn helm(cluster: &Cluster, verb: &str, release: &str, chart_name: &str, namespace: &str, images: &str) -> Output {
    let chart = chart(chart_name);
    let images = format!("images={images}");
    cluster.helm([verb, release, chart.to_str().expect("UTF-8"), "--namespace", namespace, "--set-json", &images]).await
}

/// What the daemon writes on a golden that it adopts, as far as Helm is concerned.
async fn adopt(cluster: &Cluster, names: impl Iterator<Item = &String>) {
    let api = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", "cozy-public").await;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}}));
    for name in names {
        api.patch(name, &PatchParams::default(), &patch).await.expect("mark a golden");
    }
}

#[tokio::test]
async fn vm_images_outlive_their_chart_if_the_list_is_emptied_first() {
    let Some(cluster) = cluster().await else { return };
    let system = cluster.namespace("system").await;
    let release = "vm-default-images";
    let list =
        r#"[{"name":"kept-a","url":"https://example.org/a.img","storage":"20Gi"},{"name":"kept-b","url":"https://example.org/b.img"}]"#;
    helm(cluster, "install", release, "vm-default-images", &system, list).await.ok();
    let before = goldens(cluster, "vm-default-images-kept-").await;
    assert_eq!(before.len(), 2);
    adopt(cluster, before.keys()).await;

    helm(cluster, "upgrade", release, "vm-default-images", &system, "[]").await.ok();
    assert_eq!(goldens(cluster, "vm-default-images-kept-").await, before, "an upgrade reads `keep` from the live object");
    let manifest = cluster.helm(["get", "manifest", release, "--namespace", &system]).await.ok();
    assert!(!manifest.contains("DataVolume"), "{manifest}");

    // Back: the same release takes its goldens up again as they are.
    helm(cluster, "upgrade", release, "vm-default-images", &system, list).await.ok();
    assert_eq!(goldens(cluster, "vm-default-images-kept-").await, before);
    helm(cluster, "upgrade", release, "vm-default-images", &system, "[]").await.ok();

    cluster.helm(["uninstall", release, "--namespace", &system]).await.ok();
    assert_eq!(goldens(cluster, "vm-default-images-kept-").await, before);
    // And a release that was uninstalled in between, under its old name and namespace.
    helm(cluster, "install", release, "vm-default-images", &system, list).await.ok();
    assert_eq!(goldens(cluster, "vm-default-images-kept-").await, before);
}

/// Why the order matters: this is what the fence stands against.
#[tokio::test]
async fn an_uninstall_does_not_see_the_mark_on_the_live_object() {
    let Some(cluster) = cluster().await else { return };
    let system = cluster.namespace("system").await;
    let list = r#"[{"name":"lost","url":"https://example.org/lost.img"}]"#;
    helm(cluster, "install", "vm-default-images", "vm-default-images", &system, list).await.ok();
    let before = goldens(cluster, "vm-default-images-lost").await;
    assert_eq!(before.len(), 1);
    adopt(cluster, before.keys()).await;
    cluster.helm(["uninstall", "vm-default-images", "--namespace", &system]).await.ok();
    assert_eq!(goldens(cluster, "vm-default-images-lost").await, BTreeMap::new());
}

#[tokio::test]
async fn worker_images_outlive_their_chart_in_any_order() {
    let Some(cluster) = cluster().await else { return };
    let system = cluster.namespace("system").await;
    let release = "kubernetes-worker-image";
    let list = r#"[{"schematicID":"former","version":"v1.13.6"}]"#;
    helm(cluster, "install", release, "worker-images", &system, list).await.ok();
    let before = goldens(cluster, "talos-worker-former-").await;
    assert_eq!(before.len(), 1);
    cluster.helm(["uninstall", release, "--namespace", &system]).await.ok();
    assert_eq!(goldens(cluster, "talos-worker-former-").await, before, "its manifest says keep");
    helm(cluster, "install", release, "worker-images", &system, list).await.ok();
    assert_eq!(goldens(cluster, "talos-worker-former-").await, before, "back to the old chart");
}
