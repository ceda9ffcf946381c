//! From a list to Ready goldens: the main job, on a real API server with real bytes.

#[path = "cdi/mod.rs"]
mod cdi;
#[path = "harness/mod.rs"]
mod harness;
#[path = "stage/mod.rs"]
mod stage;
#[path = "upstream/mod.rs"]
mod upstream;

use golden_catalog::api::GoldenImage;
use harness::{Cluster, Needs};
use kube::{Api, ResourceExt as _, api::DynamicObject};
use serde_json::json;
use stage::{CATALOG, NAMESPACE, Options, Stage, images};

static CLUSTER: harness::Shared =
    harness::Shared::new(|| harness::Options::default().controller_manager().foreign_crds(harness::Flavor::chosen()));

/// One cluster, one stage at a time: the namespaces' names are fixed.
async fn cluster() -> Option<&'static Cluster> {
    CLUSTER.on(Needs::Scripted).await
}

const SCHEMATIC: &str = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";
const MIB: u64 = 1 << 20;

/// The first thing the project must do: a list with good and bad entries becomes Ready goldens and failures that say why.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_becomes_ready_goldens_and_told_failures() {
    let Some(cluster) = cluster().await else { return };
    let (nginx, _) = stage::upstream();
    let at = format!("http://{}", nginx.http);
    let dir = harness::scratch_dir_on_disk("images");
    let raw = images::raw_disk(dir.path(), "disk", 96 * MIB, 12, 7);
    let (qcow2, xz) = (images::qcow2(&raw), images::raw_xz(&raw));
    let talos = format!("image/{SCHEMATIC}/v1.13.6/openstack-amd64.raw.xz");
    nginx.put(&talos, &std::fs::read(&xz).expect("xz"));
    let bytes = std::fs::read(&qcow2).expect("qcow2");
    nginx.put("noble.qcow2", &bytes);
    nginx.put("cut.qcow2", &bytes[..bytes.len() - 3 * 1024 * 1024]);
    nginx.put("page.qcow2", b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please sign in</body></html>");

    let stage = Stage::set(cluster, Options {
        images: json!([
            { "schematicID": SCHEMATIC, "version": "v1.13.6", "factoryURL": at },
            { "name": "ubuntu-24.04", "url": format!("{at}/noble.qcow2"), "os": { "family": "ubuntu", "name": "Ubuntu", "version": "24.04" } },
            { "name": "cut", "url": format!("{at}/cut.qcow2") },
            { "name": "page", "url": format!("{at}/page.qcow2") },
            { "name": "missing", "url": format!("{at}/nowhere.qcow2") },
            { "name": "Bad Name", "url": "nonsense" },
        ]),
        ..Options::default()
    })
    .await;
    let daemon = stage.daemon("a");
    daemon.ready().await;

    let talos_image = "talos-v1.13.6-b5a1de36eb14";
    stage.until(talos_image, "Ready", "True").await;
    stage.until("ubuntu-24.04", "Ready", "True").await;
    let cut = stage.until("cut", "Stalled", "True").await;
    let (page, missing) = (stage.until_reason("page", "NotADiskImage").await, stage.until_reason("missing", "NotFound").await);

    // The bytes that a clone would get are the source's.
    let talos_golden = format!("talos-worker-{SCHEMATIC}-v1.13.6");
    for golden in [talos_golden.as_str(), "vm-default-images-ubuntu-24.04"] {
        images::same_content(&stage.disk(golden).await, "raw", &raw, "raw");
    }
    // Each artifact was sent once.
    for path in [format!("/{talos}"), "/noble.qcow2".to_owned()] {
        let sent: u64 = nginx.log(&path, 1).iter().filter(|line| line.method == "GET").map(|line| line.sent).sum();
        let size = std::fs::metadata(nginx.files().join(path.trim_start_matches('/'))).expect("file").len();
        assert_eq!(sent, size, "{path}");
    }
    // Failures say what to do, and nothing was made for them.
    assert!(matches!(cut.reason.as_str(), "Corrupt" | "NotADiskImage"), "{cut:?}");
    for image in [&page, &missing] {
        let ready = harness::condition(image, "Ready").expect("Ready");
        assert!(ready.message.len() > 20, "{ready:?}");
    }
    assert!(harness::condition(&page, "Ready").expect("Ready").message.contains("Point the entry at a qcow2 or raw disk image"));
    let volumes = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    let names: Vec<_> = volumes.list(&Default::default()).await.expect("list").items.iter().map(|volume| volume.name_any()).collect();
    assert_eq!(names.len(), 2, "{names:?}");

    golden_is_marked_and_closed(&stage, &talos_golden, talos_image).await;
    bad_entry_is_told(&stage).await;
    status_command_tells_the_same(&stage).await;
}

async fn golden_is_marked_and_closed(stage: &Stage<'_>, golden: &str, image: &str) {
    let cluster = stage.cluster;
    for kind in ["cdi.kubevirt.io/v1beta1/DataVolume", "v1/PersistentVolumeClaim"] {
        let (version, kind) = kind.rsplit_once('/').expect("kind");
        let api: Api<DynamicObject> = cluster.api(&cluster.admin(), version, kind, CATALOG).await;
        // Marks are written after the status.
        harness::until(api, golden, &format!("the {kind} is marked"), |object: &DynamicObject| {
            let label = |key: &str| object.labels().get(key).map(String::as_str);
            label("kubernetes-worker-image.cozystack.io/golden") == Some("true")
                && label("kubernetes-worker-image.cozystack.io/image") == Some(image)
                && object.annotations().contains_key("kubernetes-worker-image.cozystack.io/disk-digest")
        })
        .await;
    }
    // The token is gone with the import that needed it.
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(cluster.admin(), CATALOG);
    assert!(secrets.get_opt(golden).await.expect("asked").is_none());
    let status = stage.images().get(image).await.expect("image").status.expect("status");
    assert_eq!(status.targets[0].storage_class_name.as_deref(), Some("replicated"));
    assert!(status.targets[0].claim_uid.is_some());
    assert_eq!(status.artifact.expect("artifact").format, "raw.xz");
}

async fn bad_entry_is_told(stage: &Stage<'_>) {
    let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(stage.cluster.admin(), NAMESPACE);
    harness::eventually("an Event on the ConfigMap names the bad entry", async || {
        let events = events.list(&Default::default()).await.map_err(|error| error.to_string())?;
        let told = events.items.iter().find(|event| event.reason.as_deref() == Some("InvalidEntry")).ok_or("no such Event")?;
        let note = told.note.clone().unwrap_or_default();
        if note.contains("images[5] (Bad Name)") && note.contains("`url`") { Ok(()) } else { Err(note) }
    })
    .await;
}

async fn status_command_tells_the_same(stage: &Stage<'_>) {
    let output = harness::cli(Some(stage.cluster.admin_kubeconfig()), ["status"]).await;
    assert_eq!(output.code, Some(1), "some images are not Ready");
    let text = output.stdout;
    assert!(text.contains("NotADiskImage") && text.contains("ubuntu-24.04"), "{text}");
    let one: Vec<GoldenImage> = serde_json::from_str(
        &harness::cli(Some(stage.cluster.admin_kubeconfig()), ["status", "ubuntu-24.04", "--output", "json"]).await.ok(),
    )
    .expect("JSON");
    assert_eq!(one[0].name_any(), "ubuntu-24.04");
}
