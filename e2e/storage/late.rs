//! A cluster to which CDI comes after the catalog.

use golden_catalog::api::GoldenImage;
use kube::api::PostParams;
use serde_json::json;

use super::{
    harness::{self, Flavor, Needs},
    stage::{self, House, Options, images},
};

/// A cluster of its own, without the kinds of other projects.
static BARE: harness::Shared = harness::Shared::new(|| harness::Options::default().controller_manager());

#[tokio::test(flavor = "multi_thread")]
async fn without_cdi_images_wait_and_begin_by_themselves_when_it_comes() {
    let Some(cluster) = BARE.on(Needs::Scripted).await else { return };
    let (nginx, _) = stage::upstream();
    let house = House::set(cluster, Options::default()).await;
    let daemon = house.daemon("a");
    daemon.ready().await;
    let raw = images::raw_disk(house.dir.path(), "early", 48 << 20, 4, 1);
    nginx.put("early", &std::fs::read(images::qcow2(&raw)).expect("qcow2"));
    let object = json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "early" },
        "spec": { "source": { "http": { "url": format!("http://{}/early", nginx.http) } } },
    });
    let object: GoldenImage = serde_json::from_value(object).expect("object");
    house.images().create(&PostParams::default(), &object).await.expect("created");
    let told = house.until_reason("early", "CDINotFound").await;
    let ready = harness::condition(&told, "Ready").expect("Ready");
    assert!(ready.message.contains("Install CDI"), "{}", ready.message);

    // The kinds alone: no StorageProfile says how the class can be claimed yet.
    cluster.install_foreign_crds(Flavor::Trimmed).await;
    let told = house.until_reason("early", "ModesUnknown").await;
    let ready = harness::condition(&told, "Ready").expect("Ready");
    assert!(ready.message.contains("State `volumeMode` and `accessModes`"), "{}", ready.message);
    let stage = house.with_cdi().await;
    stage.until("early", "Ready", "True").await;
    images::same_content(&stage.disk("vm-default-images-early").await, "raw", &raw, "raw");
}
