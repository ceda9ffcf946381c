//! A cluster to which CDI comes after the catalog.

use golden_catalog::api::GoldenImage;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::{
    harness::{self, Flavor, Needs, crds::read_folder},
    stage::{self, CATALOG, House, Options, images},
};

/// A cluster of its own, without the kinds of other projects.
static BARE: harness::Shared = harness::Shared::new(|| harness::Options::default().controller_manager());

/// No CDI at all, then one that is too old to take what an import needs and has no StorageProfiles, then a current one: told at each step,
/// and begun without a hand.
#[tokio::test(flavor = "multi_thread")]
async fn without_cdi_or_with_an_old_one_images_wait_and_begin_by_themselves_when_it_comes() {
    let Some(cluster) = BARE.on(Needs::Scripted).await else { return };
    let (nginx, _) = stage::upstream();
    let house = House::set(cluster, Options::default()).await;
    let daemon = house.daemon("a");
    daemon.ready().await;
    let raw = images::raw_disk(house.dir.path(), "early", 48 << 20, 4, 1);
    nginx.put("early", &std::fs::read(images::qcow2(&raw)).expect("qcow2"));
    nginx.put("stated", &std::fs::read(images::qcow2(&images::raw_disk(house.dir.path(), "stated", 48 << 20, 4, 2))).expect("qcow2"));
    for (name, target) in [("early", json!({})), ("stated", json!({ "volumeMode": "Block", "accessModes": ["ReadWriteMany"] }))] {
        let object = json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name },
            "spec": { "source": { "http": { "url": format!("http://{}/{name}", nginx.http) } }, "storage": { "targets": [target] } },
        });
        let object: GoldenImage = serde_json::from_value(object).expect("object");
        house.images().create(&PostParams::default(), &object).await.expect("created");
    }
    let told = async |name: &str, reason: &str, words: &str| {
        let told = house.until_reason(name, reason).await;
        let ready = harness::condition(&told, "Ready").expect("Ready");
        assert!(ready.message.contains(words), "{name}: {}", ready.message);
    };
    for name in ["early", "stated"] {
        told(name, "CDINotFound", "Install CDI").await;
    }

    // An old CDI: no importer would get its token, and nothing says how a class can be claimed.
    let mut old = read_folder(&harness::repository().join("e2e/schemas"));
    old.remove("storageprofiles.cdi.kubevirt.io").expect("it is there");
    let volumes = old.get_mut("datavolumes.cdi.kubevirt.io").expect("it is there");
    let mut definition: Value = serde_json::from_str(volumes).expect("JSON");
    let http = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/source/properties/http/properties";
    let fields = definition.pointer_mut(http).and_then(Value::as_object_mut).expect("the fields of an import");
    fields.remove("secretExtraHeaders").expect("it is there");
    *volumes = definition.to_string();
    cluster.install_crds(old.values()).await;
    told("stated", "CDIUnsupported", "secretExtraHeaders").await;
    told("stated", "CDIUnsupported", "Upgrade CDI to v1.50").await;
    told("early", "ModesUnknown", "State `volumeMode` and `accessModes`").await;
    let volumes = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    assert!(volumes.list(&Default::default()).await.expect("asked").items.is_empty(), "nothing half-made");

    // It is upgraded.
    cluster.install_foreign_crds(Flavor::Trimmed).await;
    let stage = house.with_cdi().await;
    for name in ["early", "stated"] {
        stage.until(name, "Ready", "True").await;
    }
    let target = stage.images().get("stated").await.expect("image").status.expect("status").targets.remove(0);
    assert!(target.attempts == 1 && target.last_failure.is_none(), "{target:?}");
    images::same_content(&stage.disk("vm-default-images-early").await, "raw", &raw, "raw");
}
