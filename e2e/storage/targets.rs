//! Classes, sizes and modes of an image's goldens.

use golden_catalog::api::GoldenImage;
use kube::{
    ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{
    harness,
    scene::Scene,
    stage::{CATALOG, images},
    upstream::{Answer, Gate, Upstream},
};

pub async fn one_fetch_serves_several_classes(scene: &Scene<'_>) {
    let raw = scene.disk("several", 1);
    scene.image("several", json!([{}, { "storageClassName": "other" }])).await;
    scene.stage.until("several", "Ready", "True").await;
    assert_eq!(scene.fetches("several"), 1);
    for (index, golden, class) in [(0, "vm-default-images-several", "replicated"), (1, "vm-default-images-several-other", "other")] {
        images::same_content(&scene.stage.disk(golden).await, "raw", &raw, "raw");
        let target = scene.target("several", index).await;
        assert_eq!((target.golden.as_deref(), target.storage_class_name.as_deref()), (Some(golden), Some(class)));
        assert!(target.claim_uid.is_some() && target.attempts == 1 && target.last_failure.is_none(), "{target:?}");
        assert_eq!(scene.target_condition("several", index, "Ready").await, Some(("True".into(), "Ready".into())));
        assert!(scene.secrets().get_opt(golden).await.expect("asked").is_none(), "the token is gone with the import");
    }
    // What a class cannot do stands on the golden, with the remedy, before anybody clones it.
    let image = scene.stage.images().get("several").await.expect("image");
    let told = harness::condition(&image, "CloneLimited").expect("told");
    assert!(told.message.contains("allowVolumeExpansion") && told.message.contains("other.example"), "{}", told.message);
    assert!(scene.target_condition("several", 0, "CloneLimited").await.is_none());
    assert!(scene.target_condition("several", 1, "CloneLimited").await.is_some());
}

pub async fn a_target_is_added_later_and_none_is_exchanged(scene: &Scene<'_>) {
    let raw = scene.disk("added", 2);
    scene.image("added", json!([{}])).await;
    scene.stage.until("added", "Ready", "True").await;
    scene.retarget_and_see("added", json!([{}, { "storageClassName": "local" }])).await;
    let claims = scene.claims().await;
    harness::until(claims, "vm-default-images-added-local", "the further golden's claim", |_| true).await;
    scene.stage.until("added", "Ready", "True").await;
    images::same_content(&scene.stage.disk("vm-default-images-added-local").await, "raw", &raw, "raw");
    assert_eq!(scene.fetches("added"), 1, "from the spool");
    let told = harness::condition(&scene.stage.images().get("added").await.expect("image"), "CloneLimited").expect("told");
    assert!(told.message.contains("tied to nodes"), "{}", told.message);

    // Taken out by an edit that adds another, its class would have changed.
    let exchanged = json!([{}, { "storageClassName": "files" }]);
    let refused = scene.retarget("added", exchanged).await.expect_err("a golden's target keeps its class");
    assert!(refused.to_string().contains("taken out by an edit that adds another (R4)"), "{refused}");
    let refused = scene.retarget("added", json!([{ "size": "1Gi" }, { "storageClassName": "local" }])).await.expect_err("frozen");
    assert!(refused.to_string().contains("(R4)"), "{refused}");

    // An image that names no target may be given a further one; the first is still the cluster's default, as it was.
    scene.disk("bare", 3);
    scene.create("bare", json!(null)).await.expect("created");
    scene.stage.until("bare", "Ready", "True").await;
    scene.retarget("bare", json!([{ "size": "1Gi" }])).await.expect_err("the default target was made with the image's own size");
    scene.retarget_and_see("bare", json!([{}, { "storageClassName": "local" }])).await;
}

pub async fn two_targets_of_one_class_are_one_golden(scene: &Scene<'_>) {
    scene.disk("twice", 4);
    scene.image("twice", json!([{}, { "storageClassName": "replicated" }])).await;
    scene.stage.until("twice", "Available", "True").await;
    assert_eq!(scene.target_condition("twice", 1, "Ready").await, Some(("False".into(), "DuplicateClass".into())));
    let image = scene.stage.images().get("twice").await.expect("image");
    assert_eq!(harness::condition(&image, "Ready").map(|ready| ready.reason).as_deref(), Some("DuplicateClass"));
    let volumes = scene.volumes().await.list(&Default::default()).await.expect("list");
    let made: Vec<_> = volumes.items.iter().map(|volume| volume.name_any()).filter(|name| name.contains("twice")).collect();
    assert_eq!(made, ["vm-default-images-twice"]);
}

pub async fn sizes_and_modes_are_settled_once(scene: &Scene<'_>) {
    // Quantities are numbers: what is none, or none above zero, is refused by the API server.
    scene.disk("sized", 5);
    for bad in ["-1Gi", "0", "0Gi", "1e3Gi", "much"] {
        scene.create("sized", json!({ "targets": [{ "size": bad }] })).await.expect_err(bad);
    }
    // A disk of 48 MiB: CDI adds the file system's share to its size, and what it asked storage for goes on record.
    scene.image("sized", json!([{ "storageClassName": "files" }, { "storageClassName": "other", "size": "64Mi" }])).await;
    scene.stage.until("sized", "Ready", "True").await;
    let (files, other) = (scene.target("sized", 0).await, scene.target("sized", 1).await);
    assert_eq!((files.volume_mode.as_deref(), files.access_modes), (Some("Filesystem"), vec!["ReadWriteOnce".to_owned()]));
    let bytes = |size: Option<String>| size.and_then(|size| size.parse::<golden_catalog::model::DiskSize>().ok()).expect("size").bytes();
    assert_eq!(bytes(files.size), ((48_u64 << 20) as f64 * 1.06).ceil() as u64);
    assert_eq!((bytes(other.size), other.volume_mode.as_deref()), (64 << 20, Some("Block")));

    // A size that cannot hold the disk is told with the one that does, and nothing is made.
    scene.disk("small", 6);
    scene.image("small", json!([{ "storageClassName": "files", "size": "40M" }])).await;
    let ready = scene.until_reason("small", "SizeTooSmall").await;
    assert!(ready.message.contains("48Mi") && ready.message.contains("38.14Mi"), "{}", ready.message);
    assert!(scene.volumes().await.get_opt("vm-default-images-small").await.expect("asked").is_none());
}

/// The second of two targets cannot hold the disk: told as soon as the first bytes are there, while the rest is held back; then the first
/// target's golden is made.
pub async fn a_target_that_cannot_hold_the_disk_is_told_before_the_transfer(scene: &Scene<'_>) {
    scene.disk("uneven", 7);
    let bytes = std::fs::read(scene.nginx.files().join("uneven")).expect("the file");
    let upstream = Upstream::start().await;
    let gate = Gate::default();
    upstream.on("/uneven", Answer::file(bytes.clone()).pause(bytes.len() / 2, &gate));
    let targets = json!([{}, { "storageClassName": "other", "size": "40M" }]);
    let spec = json!({ "source": { "http": { "url": upstream.url("/uneven") } }, "storage": { "targets": targets } });
    let object = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "uneven" }, "spec": spec });
    let object = serde_json::from_value(object).expect("object");
    scene.stage.images().create(&PostParams::default(), &object).await.expect("created");
    let told = harness::until(scene.stage.images(), "uneven", "the size is told", |image: &GoldenImage| {
        harness::condition(image, "Ready").is_some_and(|ready| ready.reason == "SizeTooSmall")
    })
    .await;
    let status = told.status.expect("status");
    assert!(status.disk.is_none() && status.targets[0].golden.is_none(), "the transfer is not over: {status:?}");
    let reason = |target: &golden_catalog::api::TargetStatus| {
        target.conditions.iter().find(|condition| condition.type_ == "Ready").map(|ready| ready.reason.clone())
    };
    assert_eq!(status.targets.iter().map(reason).collect::<Vec<_>>(), [Some("Fetching".into()), Some("SizeTooSmall".into())]);
    gate.open();
    scene.stage.until("uneven", "Available", "True").await;
    assert_eq!(scene.target_condition("uneven", 0, "Ready").await, Some(("True".into(), "Ready".into())));
    assert_eq!(scene.target_condition("uneven", 1, "Ready").await, Some(("False".into(), "SizeTooSmall".into())));
    assert!(scene.volumes().await.get_opt("vm-default-images-uneven-other").await.expect("asked").is_none());
    // The first kept its name and its disk, and the size may be corrected: that target was never made.
    scene.retarget_and_see("uneven", json!([{}, { "storageClassName": "other" }])).await;
    scene.stage.until("uneven", "Ready", "True").await;
}

/// Edited to `Selected` while clone admission is off: told, and written on what is there, so that it counts from admission's first
/// moment even if the GoldenImage is gone by then.
pub async fn a_golden_says_whom_it_is_for_before_that_is_enforced(scene: &Scene<'_>) {
    let golden = "vm-default-images-sized";
    let set = async |access: serde_json::Value| {
        let patch = Patch::Merge(json!({ "spec": { "access": access } }));
        scene.stage.images().patch("sized", &PatchParams::default(), &patch).await.expect("a free field");
    };
    let says = |word: &'static str| {
        move |object: &DynamicObject| {
            let access = object.annotations().get("kubernetes-worker-image.cozystack.io/access");
            access.is_some_and(|access| access.contains(word))
        }
    };
    set(json!({ "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } })).await;
    scene.stage.until_reason("sized", "AccessNotEnforced").await;
    harness::until(scene.claims().await, golden, "its claim says so", says("licensed")).await;
    harness::until(scene.volumes().await, golden, "and its DataVolume", says("licensed")).await;
    set(json!({ "policy": "AllTenants", "namespaceSelector": null })).await;
    scene.stage.until("sized", "Ready", "True").await;
    harness::until(scene.claims().await, golden, "it is for all again", says("AllTenants")).await;
}

/// A StorageClass is deleted and made anew for another driver: told on the golden in it, which stays; and over when it is as it was.
pub async fn a_class_of_another_driver_is_told_and_changes_nothing(scene: &Scene<'_>) {
    let class = |provisioner: &str| {
        format!(
            "{{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {{name: swapped}}, provisioner: {provisioner}, allowVolumeExpansion: true}}"
        )
    };
    let (first, second) = (class("linstor.csi.linbit.com"), class("other.example"));
    scene.stage.cluster.apply(&first).await;
    scene.disk("swapped", 24);
    scene.image("swapped", json!([{ "storageClassName": "swapped" }])).await;
    scene.stage.until("swapped", "Ready", "True").await;
    let before = scene.target("swapped", 0).await;
    // What Kubernetes writes when it asks for a volume. Its controller may see this new class only when the import is over already, and then
    // has nothing left to ask for.
    let asked = json!({ "metadata": { "annotations": { "volume.kubernetes.io/storage-provisioner": "linstor.csi.linbit.com" } } });
    scene.claims().await.patch("vm-default-images-swapped", &PatchParams::default(), &Patch::Merge(&asked)).await.expect("annotated");
    let classes = scene.stage.cluster.api(&scene.stage.cluster.admin(), "storage.k8s.io/v1", "StorageClass", "").await;
    let swap = async |class: &str| {
        classes.delete("swapped", &kube::api::DeleteParams::default()).await.expect("deleted");
        harness::until_gone(classes.clone(), "swapped").await;
        scene.stage.cluster.apply(class).await;
    };
    let is_told = |image: &golden_catalog::api::GoldenImage| {
        let limited = harness::condition(image, "CloneLimited");
        limited.is_some_and(|limited| limited.message.contains("made anew for the provisioner other.example"))
    };
    swap(&second).await;
    let image = harness::until(scene.stage.images(), "swapped", "another driver is told", is_told).await;
    let ready = harness::condition(&image, "Ready").expect("Ready");
    assert_eq!((ready.status.as_str(), &scene.target("swapped", 0).await.claim_uid), ("True", &before.claim_uid));
    swap(&first).await;
    harness::until(scene.stage.images(), "swapped", "it is as it was", |image| !is_told(image)).await;
    scene.delete_image("swapped").await;
}

pub async fn a_moved_default_is_told_and_changes_nothing(scene: &Scene<'_>) {
    let before = scene.claims().await.get("vm-default-images-several").await.expect("claim").uid();
    let classes = scene.stage.cluster.api(&scene.stage.cluster.admin(), "storage.k8s.io/v1", "StorageClass", "").await;
    let mark =
        |value: serde_json::Value| json!({ "metadata": { "annotations": { "storageclass.kubevirt.io/is-default-virt-class": value } } });
    classes.patch("local", &PatchParams::default(), &Patch::Merge(&mark(json!("true")))).await.expect("marked");
    let told = scene.stage.until("several", "DefaultClassDrift", "True").await;
    assert!(told.message.contains("StorageClass replicated") && told.message.contains("now local"), "{}", told.message);
    scene.stage.until("several", "Ready", "True").await;
    assert_eq!(scene.target("several", 0).await.storage_class_name.as_deref(), Some("replicated"));
    assert_eq!(scene.claims().await.get("vm-default-images-several").await.expect("claim").uid(), before);
    classes.patch("local", &PatchParams::default(), &Patch::Merge(&mark(json!(null)))).await.expect("unmarked");
    harness::until(scene.stage.images(), "several", "the drift is over", |image: &golden_catalog::api::GoldenImage| {
        harness::condition(image, "DefaultClassDrift").is_none()
    })
    .await;
    let volumes = scene.stage.cluster.api(&scene.stage.cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    assert!(volumes.get_opt("vm-default-images-several-local").await.expect("asked").is_none());
}
