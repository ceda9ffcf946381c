//! What only real storage can show. Needs a cluster (`E2E_KUBECONFIG`) with CDI, and four StorageClasses named by variables:
//! `E2E_CLASS` and `E2E_CLASS_SAME_DRIVER` (two on one driver that clones), `E2E_CLASS_OTHER_DRIVER` (on another driver) and
//! `E2E_CLASS_NO_EXPANSION` (without `allowVolumeExpansion`); a small disk image that the cluster can reach at `E2E_IMAGE_URL`; and
//! in the cluster a running golden-catalog of this version.

use golden_catalog::api::GoldenImage;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{CLUSTER, harness, harness::Needs, stage::CATALOG};

/// What a variable names; else the test is skipped, and counted.
fn named(variable: &'static str) -> Option<String> {
    let name = std::env::var(variable).ok().filter(|name| !name.is_empty());
    if name.is_none() {
        harness::skip(&format!("needs the variable {variable}"));
    }
    name
}

async fn image(cluster: &harness::Cluster, url: &str, targets: Value) -> (Api<GoldenImage>, String) {
    let api: Api<GoldenImage> = Api::all(cluster.admin());
    let name = format!("e2e-{}", harness::unique());
    let object = json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name },
        // A query of its own: two runs are two images (R3).
        "spec": { "source": { "http": { "url": format!("{url}?{name}") } }, "storage": { "targets": targets } },
    });
    api.create(&PostParams::default(), &serde_json::from_value(object).expect("object")).await.expect("created");
    (api, name)
}

/// Deletes the image and its goldens, which outlive it.
async fn clean_up(cluster: &harness::Cluster, api: &Api<GoldenImage>, name: &str) {
    let targets = api.get(name).await.ok().and_then(|image| image.status).map(|status| status.targets).unwrap_or_default();
    api.delete(name, &DeleteParams::default()).await.expect("deleted");
    let volumes: Api<DynamicObject> = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    for golden in targets.into_iter().filter_map(|target| target.golden) {
        let _ = volumes.delete(&golden, &DeleteParams::default()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn real_storage_two_classes_of_one_driver_and_one_of_another() {
    let Some(cluster) = CLUSTER.on(Needs::RealStorage).await else { return };
    let Some(url) = named("E2E_IMAGE_URL") else { return };
    let (Some(one), Some(same), Some(other)) = (named("E2E_CLASS"), named("E2E_CLASS_SAME_DRIVER"), named("E2E_CLASS_OTHER_DRIVER")) else {
        return;
    };
    let targets = json!([{ "storageClassName": one }, { "storageClassName": same }, { "storageClassName": other }]);
    let (api, name) = image(cluster, &url, targets).await;
    harness::until_condition(api.clone(), &name, "Ready", "True").await;
    let status = api.get(&name).await.expect("image").status.expect("status");
    assert_eq!(status.targets.iter().filter(|target| target.claim_uid.is_some()).count(), 3);
    clean_up(cluster, &api, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_storage_a_later_target_on_another_driver() {
    let Some(cluster) = CLUSTER.on(Needs::RealStorage).await else { return };
    let Some(url) = named("E2E_IMAGE_URL") else { return };
    let (Some(one), Some(other)) = (named("E2E_CLASS"), named("E2E_CLASS_OTHER_DRIVER")) else { return };
    let (api, name) = image(cluster, &url, json!([{ "storageClassName": one }])).await;
    harness::until_condition(api.clone(), &name, "Ready", "True").await;
    let patch = json!({ "spec": { "storage": { "targets": [{ "storageClassName": one }, { "storageClassName": other }] } } });
    api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.expect("added");
    harness::until(api.clone(), &name, "both goldens are made", |image: &GoldenImage| {
        let made = image.status.iter().flat_map(|status| &status.targets).filter(|target| target.claim_uid.is_some()).count();
        made == 2
    })
    .await;
    clean_up(cluster, &api, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_storage_a_class_without_expansion_is_told() {
    let Some(cluster) = CLUSTER.on(Needs::RealStorage).await else { return };
    let (Some(url), Some(class)) = (named("E2E_IMAGE_URL"), named("E2E_CLASS_NO_EXPANSION")) else { return };
    let (api, name) = image(cluster, &url, json!([{ "storageClassName": class }])).await;
    let told = harness::until_condition(api.clone(), &name, "CloneLimited", "True").await;
    assert!(told.message.contains("allowVolumeExpansion"), "{}", told.message);
    clean_up(cluster, &api, &name).await;
}
