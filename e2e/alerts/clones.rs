//! Clones that go right and wrong, for what is counted and told of them.

use golden_catalog::rules::marks;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{Scene, cdi::Behaviour, harness, readable, stage::CATALOG};

const TENANT: &str = "tenant-a";
const CDI: &str = "cdi.kubevirt.io/v1beta1";
/// The golden of the good image, and of the one that is retired by force.
const GOLDEN: &str = "vm-default-images-good";
const FORCED: &str = "vm-default-images-forced";

async fn api(scene: &Scene<'_>, version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let cluster = scene.stage.cluster;
    cluster.api(&cluster.admin(), version, kind, namespace).await
}

fn spec(golden: &str, class: &str) -> Value {
    json!({
        "source": { "pvc": { "namespace": CATALOG, "name": golden } },
        "storage": { "storageClassName": class, "resources": { "requests": { "storage": "1Gi" } } },
    })
}

/// Asks for a disk that clones a golden.
async fn ask(scene: &Scene<'_>, name: &str, golden: &str, class: &str, dry_run: bool) -> Result<(), String> {
    let disk = json!({ "apiVersion": CDI, "kind": "DataVolume", "metadata": { "name": name }, "spec": spec(golden, class) });
    let disk: DynamicObject = serde_json::from_value(disk).expect("object");
    let volumes = api(scene, CDI, "DataVolume", TENANT).await;
    let params = PostParams { dry_run, ..PostParams::default() };
    harness::made(async || volumes.create(&params, &disk).await).await.map(drop).map_err(|error| error.to_string())
}

async fn clone(scene: &Scene<'_>, name: &str, golden: &str) {
    ask(scene, name, golden, "replicated", false).await.unwrap_or_else(|error| panic!("{name}: {error}"));
}

async fn until_done(scene: &Scene<'_>, name: &str) {
    let volumes = api(scene, CDI, "DataVolume", TENANT).await;
    harness::until(volumes, name, "the disk is there", |volume: &DynamicObject| volume.data["status"]["phase"] == "Succeeded").await;
}

/// Has CDI clone in a class in this way.
async fn strategy(scene: &Scene<'_>, strategy: &str) {
    let profiles = api(scene, CDI, "StorageProfile", "").await;
    let wanted = Patch::Merge(json!({ "spec": { "cloneStrategy": strategy } }));
    profiles.patch("replicated", &PatchParams::default(), &wanted).await.expect("a field of the profile");
    let what = format!("CDI clones by {strategy}");
    harness::until(profiles, "replicated", &what, |profile: &DynamicObject| profile.data["status"]["cloneStrategy"] == strategy).await;
}

async fn edit(scene: &Scene<'_>, image: &str, patch: Value) {
    scene.stage.images().patch(image, &PatchParams::default(), &Patch::Merge(&patch)).await.expect("edited");
}

/// One clone as it should be, one refused, one that is copied over the network, one that stands still, one that waits for its golden, and
/// an image that is to go and is needed.
pub async fn go_wrong(scene: &Scene<'_>) {
    let (cluster, prometheus) = (scene.stage.cluster, &scene.prometheus);
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": TENANT } }).to_string()).await;
    scene.disk("forced", 6);
    scene.image("forced", "replicated").await;
    let refused = harness::eventually("the API server asks the webhook", async || {
        match ask(scene, "probe", "nothing-of-this-name", "replicated", true).await {
            Err(refused) if refused.contains("nothing-of-this-name") => Ok(refused),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(refused.contains("(R13)"), "{refused}");
    let refused = ask(scene, "elsewhere", GOLDEN, "elsewhere", false).await.expect_err("another class");
    assert!(refused.contains("(R14)"), "{refused}");

    clone(scene, "right", GOLDEN).await;
    until_done(scene, "right").await;
    // A mark taken off by hand, which is put back.
    let bare = Patch::Merge(json!({ "metadata": { "annotations": { marks::GOLDEN: null } } }));
    api(scene, CDI, "DataVolume", TENANT).await.patch("right", &PatchParams::default(), &bare).await.expect("taken off");
    strategy(scene, "copy").await;
    clone(scene, "copied", GOLDEN).await;
    until_done(scene, "copied").await;
    strategy(scene, "csi-clone").await;
    clone(scene, "waits", "vm-default-images-slow").await;
    readable(&prometheus.until_fires("GoldenImageNetworkCopy", &[("image", "good"), ("cause", "Asked")]).await);
    scene.stage.cdi.script("tenant-a/still", Behaviour::StuckAt(0.0));
    clone(scene, "still", GOLDEN).await;

    scene.stage.until("forced", "Ready", "True").await;
    cluster
        .apply(
            &json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "namespace": TENANT, "name": "needs-it" },
                "spec": {
                    "runStrategy": "Halted",
                    "dataVolumeTemplates": [{ "metadata": { "name": "needs-it-system" }, "spec": spec(FORCED, "replicated") }],
                    "template": { "spec": { "domain": { "devices": {} } } },
                },
            })
            .to_string(),
        )
        .await;
    harness::eventually("the VM counts", async || {
        let found = prometheus.query("golden_image_blocking_consumers{image=\"forced\"} > 0").await?;
        if found.is_empty() { Err("not yet".to_owned()) } else { Ok(()) }
    })
    .await;
    edit(scene, "forced", json!({ "spec": { "retire": true } })).await;
    scene.stage.until("forced", "Retiring", "True").await;
    readable(&prometheus.until_fires("GoldenImageCloneStuck", &[("image", "good")]).await);
    is_counted(scene).await;
}

/// What the page of metrics says of all that.
async fn is_counted(scene: &Scene<'_>) {
    for (what, expression) in [
        ("the clone's time", "golden_image_clone_duration_seconds_count{storage_class=\"replicated\"} >= 1"),
        ("a copy is no clone in storage", "golden_image_clone_duration_seconds_count{storage_class=\"replicated\"} < 2"),
        (
            "the broken rules",
            "golden_image_clone_rules_broken_total{rule=\"R13\"} >= 1 and on () golden_image_clone_rules_broken_total{rule=\"R14\"} >= 1",
        ),
        ("the verdicts", "golden_image_admission_reviews_total{webhook=\"disks\",verdict=\"refused\"} >= 2"),
        ("the mark put back", "golden_image_consumer_marks_total{outcome=\"added\"} >= 1"),
        ("the import avoided", "golden_image_imports_avoided_total{image=\"good\"} >= 1"),
    ] {
        harness::eventually(&format!("{what} is counted"), async || {
            let found = scene.prometheus.query(expression).await?;
            if found.is_empty() { Err(expression.to_owned()) } else { Ok(()) }
        })
        .await;
    }
    let tenants = scene.prometheus.query("{__name__=~\"golden_image_.+\",namespace=~\".+\"}").await.expect("query");
    assert!(tenants.is_empty(), "{tenants:?}");
}

/// `kubectl describe` tells a tenant what happens to his disk.
pub async fn described(scene: &Scene<'_>) {
    for (name, told) in [
        ("copied", vec!["Warning", "NetworkCopy", "over the network", "cloneStrategy"]),
        ("still", vec!["Warning", "CloneStuck", "has not moved"]),
        ("waits", vec!["Normal", "WaitingForGolden", "vm-default-images-slow is not Ready yet", "goes on by itself"]),
    ] {
        harness::eventually(&format!("kubectl describe dv {name} tells the story"), async || {
            let text = scene.stage.cluster.kubectl(["describe", "datavolume", name, "-n", TENANT]).await.stdout;
            let (_, events) = text.split_once("\nEvents:").ok_or("no Events")?;
            let ours: Vec<&str> = events.lines().filter(|line| line.contains("golden-catalog")).collect();
            match told.iter().find(|part| !ours.iter().any(|line| line.contains(**part))) {
                None => Ok(()),
                Some(part) => Err(format!("{part} is not in {events}")),
            }
        })
        .await;
    }
}

/// Each as its runbook says; the image goes in spite of the VM that needs it.
pub async fn are_healed(scene: &Scene<'_>) {
    let prometheus = &scene.prometheus;
    edit(scene, "forced", json!({ "metadata": { "annotations": { "kubernetes-worker-image.cozystack.io/force-retire": "poisoned" } } }))
        .await;
    readable(&prometheus.until_fires("GoldenImageForcedRetire", &[("image", "forced")]).await);
    scene.stage.until_reason("forced", "Retired").await;
    api(scene, CDI, "DataVolume", TENANT).await.delete("copied", &DeleteParams::default()).await.expect("a disk may always go");
    scene.stage.cdi.unscript("tenant-a/still");
    until_done(scene, "still").await;
    prometheus.until_ends("GoldenImageNetworkCopy", &[("image", "good")]).await;
    prometheus.until_ends("GoldenImageCloneStuck", &[("image", "good")]).await;
}

/// What waited goes on by itself, and a forced retirement is told for a while only.
pub async fn go_on(scene: &Scene<'_>) {
    until_done(scene, "waits").await;
    scene.prometheus.until_ends("GoldenImageForcedRetire", &[("image", "forced")]).await;
}

/// Asks for clones while nobody can be asked, until that is told.
pub async fn until_nobody_can_be_asked(scene: &Scene<'_>) -> Value {
    harness::eventually("GoldenImageAdmissionUnreachable fires", async || {
        let refused = ask(scene, "meanwhile", GOLDEN, "replicated", false).await.expect_err("it fails closed");
        assert!(refused.contains("failed calling webhook"), "{refused}");
        let firing = scene.prometheus.firing().await?;
        let found = firing.iter().find(|alert| alert["labels"]["alertname"] == "GoldenImageAdmissionUnreachable").cloned();
        found.ok_or(refused)
    })
    .await
}
