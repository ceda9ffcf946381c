//! What the API server does not take: told as the target's trouble, asked again, and begun by itself when it is allowed.

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use super::{
    cdi,
    harness::{self, Daemon},
    scene::{Scene, end, hurried},
    stage::CATALOG,
};

const POLICY: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-such-volume}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [cdi.kubevirt.io], apiVersions: [v1beta1], operations: [CREATE], resources: [datavolumes]}
  validations:
    - expression: "!object.metadata.name.contains('refused')"
      messageExpression: "'the storage team must be asked first about ' + object.spec.source.http.url"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-such-volume}
spec: {policyName: no-such-volume, validationActions: [Deny]}
"#;

pub async fn a_policy_that_refuses_is_told_until_it_allows(scene: &Scene<'_>, daemon: Daemon) -> Daemon {
    end(daemon).await;
    let daemon = scene.stage.daemon_with("a", &hurried(20));
    daemon.ready().await;
    scene.stage.cluster.apply(POLICY).await;
    // A policy is in force a moment after it is there.
    let volumes = scene.volumes().await;
    let probe: kube::api::DynamicObject = serde_json::from_value(json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "refused-probe", "namespace": CATALOG },
        "spec": { "source": { "http": { "url": "https://probe.example/" } }, "storage": { "resources": { "requests": { "storage": "1Gi" } } } },
    }))
    .expect("probe");
    harness::eventually("the policy is in force", async || {
        match volumes.create(&PostParams { dry_run: true, ..PostParams::default() }, &probe).await {
            Err(kube::Error::Api(status)) if status.message.contains("storage team") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    scene.disk("refused", 10);
    scene.image("refused", json!([{}, { "storageClassName": "local" }])).await;
    let ready = scene.until_reason("refused", "CreateRefused").await;
    assert!(ready.message.contains("the storage team must be asked first"), "{}", ready.message);
    assert!(ready.message.contains("/v1/disks/…") && !ready.message.contains("Bearer"), "the path is not shown: {}", ready.message);
    // It ends at its deadline, as an import does that CDI makes nothing of, and begins again.
    let failed = harness::until(scene.stage.images(), "refused", "an attempt has ended", |image: &golden_catalog::api::GoldenImage| {
        image.status.as_ref().is_some_and(|status| status.targets.iter().all(|target| target.last_failure.is_some()))
    })
    .await;
    let target = &failed.status.expect("status").targets[0];
    assert_eq!(target.last_failure.as_ref().map(|failure| failure.reason.as_str()), Some("CreateRefused"));
    // With time enough for what is allowed by now.
    end(daemon).await;
    let daemon = scene.stage.daemon("a");
    daemon.ready().await;
    for kind in ["ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"] {
        let api = scene.stage.cluster.api(&scene.stage.cluster.admin(), "admissionregistration.k8s.io/v1", kind, "").await;
        api.delete("no-such-volume", &DeleteParams::default()).await.expect("deleted");
    }
    scene.stage.until("refused", "Ready", "True").await;
    assert_eq!(scene.fetches("refused"), 1);
    daemon
}

pub async fn a_quota_is_named_and_waited_for(scene: &Scene<'_>) {
    let quota = format!(
        "{{apiVersion: v1, kind: ResourceQuota, metadata: {{name: tight, namespace: {CATALOG}}}, spec: {{hard: {{persistentvolumeclaims: \"1\"}}}}}}"
    );
    scene.stage.cluster.apply(&quota).await;
    let quotas = scene.catalog("v1", "ResourceQuota").await;
    harness::until(quotas.clone(), "tight", "its use is counted", |quota: &kube::api::DynamicObject| {
        quota.data.pointer("/status/used/persistentvolumeclaims").is_some()
    })
    .await;
    scene.disk("crowded", 11);
    scene.image("crowded", json!([{}])).await;
    let ready = scene.until_reason("crowded", "QuotaExceeded").await;
    assert!(ready.message.contains("ResourceQuota tight allows 1 of `persistentvolumeclaims`"), "{}", ready.message);
    assert_eq!(scene.target("crowded", 0).await.attempts, 0, "what is seen before costs no attempt");
    assert!(scene.volumes().await.get_opt("vm-default-images-crowded").await.expect("asked").is_none());
    quotas.delete("tight", &DeleteParams::default()).await.expect("deleted");
    scene.stage.until("crowded", "Ready", "True").await;
}

/// Room for one import at its height beside two finished goldens (golden, the claim that CDI fills, scratch space), and three images at
/// once: each takes its turn, the others are told what is kept for it, and the API server never has to refuse a claim.
pub async fn a_quota_with_room_for_one_import_is_shared_in_turn(scene: &Scene<'_>) {
    let (names, resource) = (["shared-a", "shared-b", "shared-c"], "narrow.storageclass.storage.k8s.io/persistentvolumeclaims");
    let objects = format!(
        "{{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {{name: narrow}}, provisioner: linstor.csi.linbit.com, allowVolumeExpansion: true}}\n---\n\
         {{apiVersion: v1, kind: ResourceQuota, metadata: {{name: shared, namespace: {CATALOG}}}, spec: {{hard: {{{resource}: \"5\"}}}}}}"
    );
    scene.stage.cluster.apply(&objects).await;
    let quotas = scene.catalog("v1", "ResourceQuota").await;
    harness::until(quotas.clone(), "shared", "its use is counted", |quota: &kube::api::DynamicObject| {
        quota.data["status"]["used"][resource] == "0"
    })
    .await;
    for (name, seed) in names.iter().zip(15..) {
        scene.disk(name, seed);
        scene.stage.cdi.script(&format!("vm-default-images-{name}"), cdi::Behaviour::StuckAt(30.0));
    }
    futures::future::join_all(names.iter().map(|name| scene.image(name, json!([{ "storageClassName": "narrow" }])))).await;
    let reason =
        |image: &golden_catalog::api::GoldenImage| harness::condition(image, "Ready").map(|ready| ready.reason).unwrap_or_default();
    let mut waiting = names.to_vec();
    while waiting.len() > 1 {
        // Whichever is first; that it stands still at 30 percent keeps the others waiting.
        let images = harness::until_listed(scene.stage.images(), "", "one is imported, the others wait for room", |images| {
            let of = |name: &&str| images.iter().find(|image| image.name_any() == **name).map(reason).unwrap_or_default();
            let count = |wanted: &str| waiting.iter().filter(|name| of(name) == wanted).count();
            count("Importing") == 1 && count("QuotaExceeded") == waiting.len() - 1
        })
        .await;
        for image in images.iter().filter(|image| waiting.contains(&image.name_any().as_str()) && reason(image) == "QuotaExceeded") {
            let told = harness::condition(image, "Ready").expect("Ready").message;
            assert!(told.contains(&format!("ResourceQuota shared allows 5 of `{resource}`")) && told.contains("takes 3"), "{told}");
        }
        let at_work = waiting.iter().position(|name| images.iter().any(|image| image.name_any() == **name && reason(image) == "Importing"));
        let name = waiting.remove(at_work.expect("one is at work"));
        scene.stage.cdi.unscript(&format!("vm-default-images-{name}"));
        scene.stage.until(name, "Ready", "True").await;
    }
    scene.stage.cdi.unscript(&format!("vm-default-images-{}", waiting[0]));
    for name in names {
        scene.stage.until(name, "Ready", "True").await;
        let target = scene.target(name, 0).await;
        assert!(target.attempts == 1 && target.last_failure.is_none(), "{name} was begun into room that it did not have: {target:?}");
    }
    let events: kube::Api<k8s_openapi::api::events::v1::Event> = kube::Api::namespaced(scene.stage.cluster.admin(), "default");
    let is_of_these = |event: &k8s_openapi::api::events::v1::Event| {
        event.regarding.as_ref().and_then(|about| about.name.as_deref()).is_some_and(|name| names.contains(&name))
    };
    for event in events.list(&Default::default()).await.expect("events").items.iter().filter(|event| is_of_these(event)) {
        assert!(!event.note.as_deref().unwrap_or_default().contains("CDI could not create"), "the quota was exceeded: {event:?}");
    }
    quotas.delete("shared", &DeleteParams::default()).await.expect("deleted");
}

pub async fn a_foreign_secret_is_left_alone(scene: &Scene<'_>) {
    let name = "vm-default-images-foreign";
    let theirs: Secret = serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": CATALOG, "labels": { "app.kubernetes.io/managed-by": "someone" } },
        "stringData": { "password": "theirs" },
    }))
    .expect("secret");
    let before = scene.secrets().create(&PostParams::default(), &theirs).await.expect("created");
    scene.disk("foreign", 12);
    scene.image("foreign", json!([{}])).await;
    let ready = scene.until_reason("foreign", "NameConflict").await;
    assert!(ready.message.contains("A Secret vm-default-images-foreign exists"), "{}", ready.message);
    let found = scene.secrets().get(name).await.expect("it is there");
    assert_eq!((found.resource_version(), found.data), (before.resource_version(), before.data));
    assert!(scene.volumes().await.get_opt(name).await.expect("asked").is_none(), "no importer would have its token");

    scene.secrets().delete(name, &DeleteParams::default()).await.expect("deleted");
    scene.stage.until("foreign", "Ready", "True").await;
    assert!(scene.secrets().get_opt(name).await.expect("asked").is_none(), "our own is gone with the import");
    // Made by somebody when the golden is there: none of our business, now or when the image goes.
    scene.secrets().create(&PostParams::default(), &theirs).await.expect("created");
    scene.delete_image("foreign").await;
    let data = scene.secrets().get(name).await.expect("it stays").data.expect("data");
    assert_eq!(data.get("password"), Some(&ByteString(b"theirs".to_vec())));
}

/// An image that is deleted (policy Retain) in the middle of its import: nothing of that import is left, and a finished golden of
/// another deleted image stays.
pub async fn a_deleted_images_unfinished_import_goes_with_it(scene: &Scene<'_>) {
    scene.disk("stays", 14);
    scene.image("stays", json!([{}])).await;
    scene.stage.until("stays", "Ready", "True").await;
    scene.delete_image("stays").await;
    let golden = "vm-default-images-left";
    scene.stage.cdi.script(golden, cdi::Behaviour::NeverConnect);
    scene.disk("left", 13);
    scene.image("left", json!([{}])).await;
    harness::until(scene.secrets(), golden, "the importer's Secret", |_| true).await;
    harness::until(scene.volumes().await, golden, "the DataVolume", |_| true).await;
    let left = scene.volumes().await.get(golden).await.expect("it is there").metadata.uid;
    scene.delete_image("left").await;
    harness::until_gone(scene.secrets(), golden).await;
    harness::until_gone(scene.volumes().await, golden).await;
    harness::until_gone(scene.claims().await, golden).await;
    let events = scene.catalog("events.k8s.io/v1", "Event").await;
    harness::until_listed(events, "", "an Event on the DataVolume says why it went", |events: &[kube::api::DynamicObject]| {
        events.iter().any(|event| event.data["reason"] == "ImageGone" && event.data["regarding"]["uid"].as_str() == left.as_deref())
    })
    .await;
    assert!(scene.volumes().await.get_opt("vm-default-images-stays").await.expect("asked").is_some(), "a golden outlives its image");
    // Made again it is imported anew.
    scene.stage.cdi.unscript(golden);
    scene.image("left", json!([{}])).await;
    scene.stage.until("left", "Ready", "True").await;
}

const NO_DELETION: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-such-deletion}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], operations: [DELETE], resources: [secrets]}
  validations:
    - expression: "!oldObject.metadata.name.contains('littered')"
      message: secrets are kept for the audit
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-such-deletion}
spec: {policyName: no-such-deletion, validationActions: [Deny]}
"#;

/// A finished golden is Ready although its header Secret may not be deleted: that is told, and done as soon as it is allowed.
pub async fn a_secret_that_may_not_be_deleted_keeps_no_golden_waiting(scene: &Scene<'_>) {
    let golden = "vm-default-images-littered";
    scene.stage.cluster.apply(NO_DELETION).await;
    let probe: Secret = serde_json::from_value(json!({ "metadata": { "name": "littered-probe", "namespace": CATALOG } })).expect("secret");
    scene.secrets().create(&PostParams::default(), &probe).await.expect("created");
    harness::eventually("the policy is in force", async || {
        match scene.secrets().delete("littered-probe", &DeleteParams { dry_run: true, ..DeleteParams::default() }).await {
            Err(kube::Error::Api(status)) if status.message.contains("kept for the audit") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    scene.disk("littered", 15);
    scene.image("littered", json!([{}])).await;
    let told = scene.stage.until("littered", "WriteRefused", "True").await;
    assert!(
        told.message.contains("the header Secret vm-default-images-littered") && told.message.contains("kept for the audit"),
        "{told:?}"
    );
    scene.stage.until("littered", "Ready", "True").await;
    assert!(scene.target("littered", 0).await.claim_uid.is_some());
    for kind in ["ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"] {
        let api = scene.stage.cluster.api(&scene.stage.cluster.admin(), "admissionregistration.k8s.io/v1", kind, "").await;
        api.delete("no-such-deletion", &DeleteParams::default()).await.expect("deleted");
    }
    harness::eventually("the probe may go", async || match scene.secrets().delete("littered-probe", &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    harness::until_gone(scene.secrets(), golden).await;
    harness::until(scene.stage.images(), "littered", "nothing is refused any more", |image: &golden_catalog::api::GoldenImage| {
        harness::condition(image, "WriteRefused").is_none()
            && harness::condition(image, "Ready").is_some_and(|ready| ready.status == "True")
    })
    .await;
}
