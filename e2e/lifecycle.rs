//! An image's life when things go wrong: killed daemons, two daemons, missing storage, objects edited by hand.

#[path = "cdi/mod.rs"]
mod cdi;
#[path = "harness/mod.rs"]
mod harness;
#[path = "stage/mod.rs"]
mod stage;
#[path = "upstream/mod.rs"]
mod upstream;

use std::{path::PathBuf, time::Duration};

use golden_catalog::api::GoldenImage;
use harness::{Needs, ScratchDir};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use stage::{CATALOG, NAMESPACE, Options, Stage, images};
use upstream::{Answer, Gate, Upstream, nginx::Nginx};

static CLUSTER: harness::Shared =
    harness::Shared::new(|| harness::Options::default().controller_manager().foreign_crds(harness::Flavor::Trimmed));

const MIB: u64 = 1 << 20;

/// What every step of the story uses.
struct Scene<'a> {
    stage: Stage<'a>,
    nginx: Nginx,
    dir: ScratchDir,
}

impl Scene<'_> {
    /// Puts a qcow2 of its own content at `name` and gives the raw disk.
    fn disk(&self, name: &str, seed: u64) -> PathBuf {
        let raw = images::raw_disk(self.dir.path(), name, 48 * MIB, 6, seed);
        self.nginx.put(name, &std::fs::read(images::qcow2(&raw)).expect("qcow2"));
        raw
    }

    fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.nginx.http)
    }

    /// Bytes of `name` that nginx sent, beside the file's size.
    fn sent(&self, name: &str) -> (u64, u64) {
        let sent = self.nginx.log(&format!("/{name}"), 1).iter().filter(|line| line.method == "GET").map(|line| line.sent).sum();
        (sent, std::fs::metadata(self.nginx.files().join(name)).expect("file").len())
    }

    async fn create(&self, name: &str, spec: Value) {
        let object = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name }, "spec": spec });
        let object: GoldenImage = serde_json::from_value(object).expect("object");
        self.stage.images().create(&PostParams::default(), &object).await.expect("created");
    }

    async fn image(&self, name: &str, class: &str) {
        self.create(
            name,
            json!({ "source": { "http": { "url": self.url(name) } }, "storage": { "targets": [{ "storageClassName": class }] } }),
        )
        .await;
    }

    async fn volumes(&self) -> Api<DynamicObject> {
        self.stage.cluster.api(&self.stage.cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await
    }

    async fn claims(&self) -> Api<DynamicObject> {
        self.stage.cluster.api(&self.stage.cluster.admin(), "v1", "PersistentVolumeClaim", CATALOG).await
    }
}

/// One story on one stage, because the namespaces' names are fixed; each chapter has images of its own.
#[tokio::test(flavor = "multi_thread")]
async fn an_images_life() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let (nginx, _) = stage::upstream();
    let options = Options { settings: json!({ "upstreamCheck": "2s" }), classes: NO_DEFAULT, ..Options::default() };
    let began = cluster.audit_mark().await;
    let scene = Scene { stage: Stage::set(cluster, options).await, nginx, dir: harness::scratch_dir_on_disk("lifecycle") };
    let daemon = scene.stage.daemon("a");
    daemon.ready().await;

    r12_no_default_class_waits_and_a_late_binding_class_works(&scene).await;
    r3_the_later_of_two_images_is_refused(&scene).await;
    a_schematic_document_is_posted_once(&scene).await;
    terminal_failures_are_retried_when_asked(&scene).await;
    r6_other_bytes_upstream_are_told_and_change_nothing(&scene).await;
    hand_edits_are_told_or_healed(&scene).await;
    a_golden_outlives_its_image_and_is_taken_back(&scene).await;
    r4_what_may_change_at_any_time_is_written_on_the_golden(&scene).await;
    nothing_changes_nothing_is_written(&scene).await;
    let daemon = killed_it_goes_on_where_it_was(&scene, daemon).await;
    leads_one_and_hands_over(&scene, daemon).await;
    nothing_was_asked_without_the_right_to(&scene, began).await;
}

const NO_DEFAULT: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: replicated}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
volumeBindingMode: Immediate
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: wffc}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
"#;

async fn r12_no_default_class_waits_and_a_late_binding_class_works(scene: &Scene<'_>) {
    scene.disk("default", 1);
    scene.create("default", json!({ "source": { "http": { "url": scene.url("default") } } })).await;
    scene.stage.until_reason("default", "NoDefaultClass").await;
    scene.disk("late", 2);
    scene.image("late", "wffc").await;
    scene.stage.until("late", "Ready", "True").await;
    let class = r#"{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: replicated, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}, provisioner: linstor.csi.linbit.com, allowVolumeExpansion: true}"#;
    scene.stage.cluster.apply(class).await;
    scene.stage.until("default", "Ready", "True").await;
    let image = scene.stage.images().get("default").await.expect("image");
    assert_eq!(image.status.expect("status").targets[0].storage_class_name.as_deref(), Some("replicated"));
}

async fn r3_the_later_of_two_images_is_refused(scene: &Scene<'_>) {
    scene.create("twin", json!({ "source": { "http": { "url": scene.url("default") } } })).await;
    let twin = scene.stage.until_reason("twin", "DuplicateIdentity").await;
    let ready = harness::condition(&twin, "Ready").expect("Ready");
    assert!(ready.message.contains("same image as default"), "{}", ready.message);
    scene.stage.images().delete("twin", &DeleteParams::default()).await.expect("deleted");
}

async fn a_schematic_document_is_posted_once(scene: &Scene<'_>) {
    const ID: &str = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba";
    let raw = images::raw_disk(scene.dir.path(), "factory", 48 * MIB, 4, 3);
    let xz = std::fs::read(images::raw_xz(&raw)).expect("xz");
    let factory = Upstream::start().await;
    factory.on("/schematics", Answer::new(201, format!("{{\"id\":\"{ID}\"}}")).header("Content-Type", "application/json"));
    factory.on(&format!("/image/{ID}/v1.13.6/openstack-amd64.raw.xz"), Answer::file(xz));
    let source = json!({ "talosFactory": { "schematic": "customization: {}\n", "version": "v1.13.6", "factoryURL": factory.url("") } });
    scene.create("document", json!({ "source": source, "storage": { "targets": [{ "storageClassName": "replicated" }] } })).await;
    scene.stage.until("document", "Ready", "True").await;
    let status = scene.stage.images().get("document").await.expect("image").status.expect("status");
    assert_eq!(
        (status.schematic_id.as_deref(), status.targets[0].golden.as_deref()),
        (Some(ID), Some(format!("talos-worker-{ID}-v1.13.6").as_str()))
    );
    assert_eq!(factory.hits("/schematics").iter().filter(|hit| hit.method == "POST").count(), 1);
    images::same_content(&scene.stage.disk(&format!("talos-worker-{ID}-v1.13.6")).await, "raw", &raw, "raw");

    // The same image under another name: its golden is known by its identity, and nothing is fetched.
    let fetched = || factory.hits(&format!("/image/{ID}/v1.13.6/openstack-amd64.raw.xz")).iter().filter(|hit| hit.method == "GET").count();
    let before = fetched();
    scene.stage.images().delete("document", &DeleteParams::default()).await.expect("deleted");
    harness::until_gone(scene.stage.images(), "document").await;
    let source = json!({ "talosFactory": { "schematicID": ID, "version": "v1.13.6", "factoryURL": factory.url("") } });
    scene.create("renamed", json!({ "source": source, "storage": { "targets": [{ "storageClassName": "replicated" }] } })).await;
    scene.stage.until("renamed", "Ready", "True").await;
    let renamed = scene.stage.images().get("renamed").await.expect("image").status.expect("status");
    assert_eq!((renamed.targets[0].claim_uid.as_ref(), renamed.targets[0].adopted), (status.targets[0].claim_uid.as_ref(), Some(true)));
    assert_eq!(fetched(), before, "it was fetched again");
}

async fn terminal_failures_are_retried_when_asked(scene: &Scene<'_>) {
    scene.nginx.put("healed", b"<html><body>maintenance</body></html>");
    scene.image("healed", "replicated").await;
    scene.stage.until("healed", "Stalled", "True").await;
    scene.disk("healed", 4);
    let retry = json!({ "metadata": { "annotations": { "kubernetes-worker-image.cozystack.io/retry": "1" } } });
    scene.stage.images().patch("healed", &PatchParams::default(), &Patch::Merge(&retry)).await.expect("annotated");
    scene.stage.until("healed", "Ready", "True").await;
    let image = scene.stage.images().get("healed").await.expect("image");
    assert!(harness::condition(&image, "Stalled").is_none(), "a cleared condition is really cleared");
}

async fn r6_other_bytes_upstream_are_told_and_change_nothing(scene: &Scene<'_>) {
    let before = scene.claims().await.get("vm-default-images-healed").await.expect("claim").uid();
    let mut bytes = std::fs::read(scene.nginx.files().join("healed")).expect("file");
    bytes.extend([0; 65536]);
    scene.nginx.put("healed", &bytes);
    scene.stage.until("healed", "UpstreamChanged", "True").await;
    scene.stage.until("healed", "Ready", "True").await;
    assert_eq!(scene.claims().await.get("vm-default-images-healed").await.expect("claim").uid(), before);
}

async fn hand_edits_are_told_or_healed(scene: &Scene<'_>) {
    // The status is cleared: written again from what is there, nothing is fetched or imported.
    let before = scene.sent("default");
    let api = scene.stage.images();
    let cleared = json!({ "status": null });
    api.patch_status("default", &PatchParams::default(), &Patch::Merge(&cleared)).await.expect("cleared");
    scene.stage.until("default", "Ready", "True").await;
    assert_eq!(scene.sent("default"), before);

    // Our labels are taken off the claim: they come back.
    let claims = scene.claims().await;
    let off = json!({ "metadata": { "labels": { "kubernetes-worker-image.cozystack.io/golden": null } } });
    claims.patch("vm-default-images-default", &PatchParams::default(), &Patch::Merge(&off)).await.expect("label removed");
    harness::until(claims.clone(), "vm-default-images-default", "the mark is back", |claim: &DynamicObject| {
        claim.labels().contains_key("kubernetes-worker-image.cozystack.io/golden")
    })
    .await;

    // The DataVolume is deleted and its claim with it: made anew from the spool, without upstream.
    let volumes = scene.volumes().await;
    let old = volumes.get("vm-default-images-late").await.expect("volume").uid();
    let former = claims.get("vm-default-images-late").await.expect("claim").uid();
    let before = scene.sent("late");
    volumes.delete("vm-default-images-late", &DeleteParams::default()).await.expect("deleted");
    harness::until(volumes.clone(), "vm-default-images-late", "a new DataVolume", |volume: &DynamicObject| volume.uid() != old).await;
    harness::until(api.clone(), "late", "Ready with another claim on record", |image: &GoldenImage| {
        let claim = image.status.as_ref().and_then(|status| status.targets.first()?.claim_uid.clone());
        claim.is_some() && claim != former && harness::condition(image, "Ready").is_some_and(|ready| ready.status == "True")
    })
    .await;
    assert_eq!(scene.sent("late"), before);

    // The claim alone is deleted: CDI would import again, and gets 410 for an answer.
    scene.disk("lost", 5);
    scene.image("lost", "replicated").await;
    scene.stage.until("lost", "Ready", "True").await;
    scene.stage.cdi.delete_claim(CATALOG, "vm-default-images-lost").await;
    let told = harness::until(api.clone(), "lost", "the loss is told", |image: &GoldenImage| {
        harness::condition(image, "Ready").is_some_and(|ready| matches!(ready.reason.as_str(), "GoldenMissing" | "GoldenReplaced"))
    })
    .await;
    assert!(told.status.expect("status").targets[0].claim_uid.is_some(), "the recorded UID stays on record");
    // Deleting the DataVolume too is a person's clear wish: made anew.
    volumes.delete("vm-default-images-lost", &DeleteParams::default()).await.expect("deleted");
    scene.stage.until("lost", "Ready", "True").await;
}

async fn a_golden_outlives_its_image_and_is_taken_back(scene: &Scene<'_>) {
    let claims = scene.claims().await;
    let before = (claims.get("vm-default-images-late").await.expect("claim").uid(), scene.sent("late"));
    scene.stage.images().delete("late", &DeleteParams::default()).await.expect("deleted");
    harness::until_gone(scene.stage.images(), "late").await;
    scene.image("late", "wffc").await;
    scene.stage.until("late", "Ready", "True").await;
    assert_eq!((claims.get("vm-default-images-late").await.expect("claim").uid(), scene.sent("late")), before);
}

/// What virtual machines get, and texts: on DataVolume and PVC, taken off again (CDI copied the labels, and owns them too), and what a person
/// set left alone.
async fn r4_what_may_change_at_any_time_is_written_on_the_golden(scene: &Scene<'_>) {
    const TYPE: &str = "instancetype.kubevirt.io/default-instancetype";
    const PREFERENCE: &str = "instancetype.kubevirt.io/default-preference";
    let edit = async |spec: Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        scene.stage.images().patch("default", &PatchParams::default(), &patch).await.expect("edited");
    };
    let shows = async |labels: [Option<&str>; 2], text: &str| {
        for api in [scene.volumes().await, scene.claims().await] {
            harness::until(api, "vm-default-images-default", "it says what the image says", |object: &DynamicObject| {
                [TYPE, PREFERENCE].map(|key| object.labels().get(key).map(String::as_str)) == labels
                    && object.annotations().get("vm-default-images.cozystack.io/description").is_some_and(|said| said == text)
            })
            .await;
        }
    };
    edit(json!({ "defaults": { "instancetype": "u1.medium", "preference": "ubuntu" }, "description": "Text" })).await;
    shows([Some("u1.medium"), Some("ubuntu")], "Text").await;
    edit(json!({ "defaults": { "instancetype": null, "preference": "fedora" }, "description": null })).await;
    shows([None, Some("fedora")], "").await;
    let by_hand = Patch::Merge(json!({ "metadata": { "labels": { TYPE: "theirs" } } }));
    for api in [scene.volumes().await, scene.claims().await] {
        api.patch("vm-default-images-default", &PatchParams::default(), &by_hand).await.expect("labelled");
    }
    edit(json!({ "defaults": null })).await;
    shows([Some("theirs"), None], "").await;
    harness::until(scene.stage.images(), "default", "nothing is on record of it", |image: &GoldenImage| {
        image.status.as_ref().is_some_and(|status| status.defaults.is_none())
    })
    .await;
    scene.stage.until("default", "Ready", "True").await;
}

/// Three forced re-evaluations, and no write but the Lease's.
async fn nothing_changes_nothing_is_written(scene: &Scene<'_>) {
    let cluster = scene.stage.cluster;
    // Events are published behind the status that they tell of; what was told last is out before the quiet is looked at.
    settled(scene).await;
    // The check for other bytes upstream runs every two seconds here; it writes nothing either.
    let mark = cluster.audit_mark().await;
    for round in 0..3 {
        let looks = scene.stage.looks().await;
        let touch = json!({ "metadata": { "labels": { "e2e": format!("{round}") } } });
        scene.stage.images().patch("default", &PatchParams::default(), &Patch::Merge(&touch)).await.expect("touched");
        scene.claims().await.patch("vm-default-images-default", &PatchParams::default(), &Patch::Merge(&touch)).await.expect("touched");
        scene.stage.until_looked(looks, 1).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let writes = writes_since(scene, mark).await;
    assert!(writes.is_empty(), "{writes:#?}");
}

/// What the daemon wrote, but for the Lease.
async fn writes_since(scene: &Scene<'_>, mark: harness::Mark) -> Vec<String> {
    let requests = scene.stage.cluster.requests_since(mark).await;
    let own = requests.iter().filter(|request| request.is_write() && request.is_by(NAMESPACE, "golden-catalog-controller"));
    own.map(|request| format!("{request:?}")).filter(|request| !request.contains("leases")).collect()
}

/// Waits until the daemon has written nothing for two seconds.
async fn settled(scene: &Scene<'_>) {
    let deadline = tokio::time::Instant::now() + harness::PATIENCE;
    loop {
        let mark = scene.stage.cluster.audit_mark().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let writes = writes_since(scene, mark).await;
        if writes.is_empty() {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "the daemon does not come to rest: {writes:#?}");
    }
}

/// The chart gives every right that the daemon asks by, also where admission is off and there are fewer of them.
async fn nothing_was_asked_without_the_right_to(scene: &Scene<'_>, began: harness::Mark) {
    let requests = scene.stage.cluster.requests_since(began).await;
    let own = |request: &&harness::Request| request.is_by(NAMESPACE, "golden-catalog-controller");
    assert!(requests.iter().filter(own).count() > 100, "the daemon's requests are in the log");
    let forbidden: Vec<_> = requests.iter().filter(own).filter(|request| request.is_forbidden()).collect();
    assert!(forbidden.is_empty(), "{forbidden:#?}");
}

async fn killed_it_goes_on_where_it_was(scene: &Scene<'_>, daemon: harness::Daemon) -> harness::Daemon {
    let mut daemon = daemon;
    for (round, moment) in ["Fetching", "Importing"].into_iter().enumerate() {
        let (name, golden) = (format!("killed-{round}"), format!("vm-default-images-killed-{round}"));
        let raw = scene.disk(&name, 10 + round as u64);
        // Held in that moment until it was seen and the daemon is dead.
        let gate = Gate::default();
        let slow = Upstream::start().await;
        if moment == "Importing" {
            scene.stage.cdi.script(&golden, cdi::Behaviour::StuckAt(50.0));
            scene.image(&name, "replicated").await;
        } else {
            let bytes = std::fs::read(scene.nginx.files().join(&name)).expect("file");
            let half = bytes.len() / 2;
            slow.sequence("/file", [Answer::file(bytes.clone()).pause(half, &gate), Answer::file(bytes)]);
            let source = json!({ "source": { "http": { "url": slow.url("/file") } }, "storage": { "targets": [{ "storageClassName": "replicated" }] } });
            scene.create(&name, source).await;
        }
        scene.stage.until_reason(&name, moment).await;
        scene.stage.kill(daemon).await;
        gate.open();
        scene.stage.cdi.unscript(&golden);
        daemon = scene.stage.daemon("a");
        daemon.ready().await;
        scene.stage.until(&name, "Ready", "True").await;
        images::same_content(&scene.stage.disk(&format!("vm-default-images-{name}")).await, "raw", &raw, "raw");
        if moment == "Importing" {
            let (sent, size) = scene.sent(&name);
            assert_eq!(sent, size, "a verified artifact is not fetched twice");
            let status = scene.stage.images().get(&name).await.expect("image").status.expect("status");
            assert_eq!(status.targets[0].attempts, 1, "the same attempt went on");
        }
    }
    daemon
}

async fn leads_one_and_hands_over(scene: &Scene<'_>, first: harness::Daemon) {
    let leases: Api<Lease> = Api::namespaced(scene.stage.cluster.admin(), CATALOG);
    let holder = async || leases.get("golden-catalog").await.ok().and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
    assert!(holder().await.starts_with("a_"), "{}", holder().await);
    let second = scene.stage.follower("b");
    second.ready().await;
    let ended = first.terminate(harness::PATIENCE).await.expect("it ends when asked to");
    assert!(ended.success(), "{ended:?}\n{}", first.log());
    harness::eventually("the second leads", async || {
        let holder = holder().await;
        if holder.starts_with("b_") { Ok(()) } else { Err(holder) }
    })
    .await;
    scene.disk("after", 20);
    scene.image("after", "replicated").await;
    scene.stage.until("after", "Ready", "True").await;
    let all = scene.volumes().await.list(&ListParams::default()).await.expect("list");
    let names: std::collections::BTreeSet<_> = all.items.iter().map(|volume| volume.name_any()).collect();
    assert_eq!(names.len(), all.items.len());
    let maps: Api<ConfigMap> = Api::namespaced(scene.stage.cluster.admin(), CATALOG);
    assert!(maps.get_opt("golden-catalog-spool-ca").await.expect("asked").is_some());
}
