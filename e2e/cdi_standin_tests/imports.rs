//! Imports that work, and what they leave.

use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    cdi::{Behaviour, What, names},
    harness::{self, until_gone, until_listed},
    room::{of, room},
    upstream::{Answer, DISK, TOKEN, UPSTREAM},
};

/// "import from a TLS server with its own CA and a bearer token": Succeeded; HEAD, GET closed early, HEAD, GET; no Range; gzip offered; the token on each.
#[tokio::test]
async fn an_import_with_ca_and_token_is_seen_as_measured() {
    let Some(room) = room().await else { return };
    room.access().await;
    let path = format!("/{}/disk", room.ns());
    let url = UPSTREAM.put(&path, Answer::Protected(DISK.qcow2.clone()));
    room.apply(&room.import("golden", &url)).await;
    let status = room.until_succeeded("golden").await;
    assert_eq!(status.progress, "100.0%");
    assert_eq!(status.restart_count, 0);
    assert_eq!(of(&status, "Ready").0, "True");
    assert_eq!(of(&status, "Running").1, "Completed");

    assert_eq!(room.cdi.requests_of(room.ns(), "golden"), ["HEAD 200", "GET 200", "HEAD 200", "GET 200"]);
    for asked in UPSTREAM.asked(&path) {
        assert_eq!(asked.headers["authorization"], TOKEN);
        assert_eq!(asked.headers["accept-encoding"], "gzip");
        assert_eq!(asked.headers["host"], "spool.example.svc:8443");
        assert!(!asked.headers.contains_key("range"));
    }
    // The first pod ended for want of scratch space: normal, and no restart.
    let ends: Vec<_> = room.cdi.journal_of(room.ns(), "golden").into_iter().filter(|what| matches!(what, What::Ended { .. })).collect();
    assert_eq!(ends[0], What::Ended { code: 0, message: "scratch space required and none found".into() });
    assert_eq!(ends.len(), 2);

    let volume = room.volume_of("golden").await.spec.unwrap();
    assert_eq!(volume.storage_class_name.as_deref(), Some("replicated"));
    assert_eq!(volume.volume_mode.as_deref(), Some("Block"));
    assert_eq!(volume.capacity.unwrap()["storage"].0, "16777216");
    assert_eq!(volume.csi.unwrap().driver, "one.csi.example");
    assert_eq!(room.disk("golden").await.len(), 16 << 20);
    assert!(room.has_disk("golden").await);
}

/// Every form CDI decodes ends as the same raw disk.
#[tokio::test]
async fn every_form_of_a_disk_ends_raw() {
    let Some(room) = room().await else { return };
    room.access().await;
    for (name, bytes) in [("xz", &DISK.xz), ("gz", &DISK.gz), ("zst", &DISK.zst)] {
        let url = UPSTREAM.put(&format!("/{}/{name}", room.ns()), Answer::File(bytes.clone()));
        room.apply(&room.import(name, &url)).await;
    }
    let raw = UPSTREAM.put(&format!("/{}/raw", room.ns()), Answer::File(DISK.raw.clone().into()));
    let moved = UPSTREAM.put(&format!("/{}/moved", room.ns()), Answer::Redirect(raw));
    room.apply(&room.import("raw", &moved)).await;
    for name in ["xz", "gz", "zst", "raw"] {
        room.until_succeeded(name).await;
        assert!(room.has_disk(name).await, "{name}");
    }
}

/// "truncated qcow2 with a complete body; 100 kB of random bytes" and "an HTML page answered with 200": Succeeded, 100 %.
#[tokio::test]
async fn nonsense_is_imported_without_a_word() {
    let Some(room) = room().await else { return };
    room.access().await;
    let truncated = DISK.qcow2[..DISK.qcow2.len() / 2].to_vec();
    let random = DISK.raw[4096..4096 + 100_000].to_vec();
    for (name, answer) in [("truncated", Answer::File(truncated.into())), ("random", Answer::File(random.into())), ("html", Answer::Html)] {
        let url = UPSTREAM.put(&format!("/{}/{name}", room.ns()), answer);
        room.apply(&room.import(name, &url)).await;
    }
    for name in ["truncated", "random", "html"] {
        assert_eq!(room.until_succeeded(name).await.progress, "100.0%", "{name}");
    }
    assert!(!room.has_disk("truncated").await);
}

/// "namespace clutter": prime and scratch claims and the importer pod during an import, gone after; labels and annotations copied once.
#[tokio::test]
async fn clutter_comes_and_goes_and_marks_are_copied_once() {
    let Some(room) = room().await else { return };
    room.access().await;
    room.cdi.script(&format!("{}/golden", room.ns()), Behaviour::StuckAt(50.0));
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    let mut dv = room.import("golden", &url);
    dv["metadata"]["labels"]["example.org/mark"] = json!("one");
    dv["metadata"]["annotations"]["example.org/note"] = json!("one");
    room.apply(&dv).await;
    let status = room.until("golden", "stuck half way", |status| status.progress.ends_with('%')).await;
    assert_eq!(status.phase, "ImportInProgress");
    assert_eq!(of(&status, "Bound").0, "False");
    assert_eq!(of(&status, "Running"), ("True".into(), "Pod is running".into(), String::new()));
    assert_eq!(of(&status, "Ready").1, "TransferRunning");

    let target = room.pvcs().get("golden").await.unwrap();
    let uid = target.uid().unwrap();
    let mut claims = room.claim_names().await;
    claims.sort();
    assert_eq!(claims, ["golden".to_owned(), format!("prime-{uid}"), format!("prime-{uid}-scratch")]);
    let pods: Vec<_> = room.pods().list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    assert_eq!(pods, [format!("importer-prime-{uid}")]);
    assert_eq!(target.labels()["example.org/mark"], "one");
    assert_eq!(target.annotations()["example.org/note"], "one");
    assert_eq!(target.labels()["app"], "containerized-data-importer");
    let source = target.spec.unwrap().data_source_ref.unwrap();
    assert_eq!((source.kind.as_str(), source.api_group.as_deref()), ("VolumeImportSource", Some("cdi.kubevirt.io")));
    // The URL is on the prime claim only.
    assert!(!target.metadata.annotations.unwrap().contains_key(names::ENDPOINT));
    let prime = room.pvcs().get(&format!("prime-{uid}")).await.unwrap();
    assert_eq!(prime.annotations()[names::ENDPOINT], url);

    let later = json!({ "metadata": { "labels": { "example.org/mark": "two" }, "annotations": { "example.org/note": "two" } } });
    room.dvs().patch("golden", &PatchParams::default(), &Patch::Merge(later)).await.unwrap();
    room.cdi.unscript(&format!("{}/golden", room.ns()));
    room.until_succeeded("golden").await;
    until_listed(room.pvcs(), "", "only the golden is left", |claims| claims.len() == 1).await;
    until_listed(room.pods(), "", "no pod is left", <[_]>::is_empty).await;
    let target = room.pvcs().get("golden").await.unwrap();
    assert_eq!(target.uid().unwrap(), uid);
    assert_eq!(target.labels()["example.org/mark"], "one");
    assert_eq!(target.annotations()["example.org/note"], "one");
    assert!(room.has_disk("golden").await);
}

/// "raw … progress": reported in steps, `NN.NN%`, never 100 before the end.
#[tokio::test]
async fn progress_is_reported_in_steps() {
    let Some(room) = room().await else { return };
    room.access().await;
    room.cdi.script(&format!("{}/golden", room.ns()), Behaviour::Ticks { count: 4, every: std::time::Duration::ZERO });
    // Held at each step until it was seen: a watch of a busy API server may see no state that only lasts a while.
    let hold = format!("{}/*", room.ns());
    room.cdi.script(&hold, Behaviour::StuckAt(25.0));
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    room.apply(&room.import("golden", &url)).await;
    for (percent, next) in [("25.00%", 50.0), ("50.00%", 75.0), ("75.00%", 100.0)] {
        let status = room.until("golden", percent, |status| status.progress == percent).await;
        assert_eq!(status.phase, "ImportInProgress");
        room.cdi.rescript(&hold, Behaviour::StuckAt(next));
    }
    room.cdi.unscript(&hold);
    assert_eq!(room.until_succeeded("golden").await.progress, "100.0%");
}

/// "importer pod killed": the import restarts from zero in a new pod, `restartCount` 0.
#[tokio::test]
async fn a_killed_importer_starts_from_zero() {
    let Some(room) = room().await else { return };
    room.access().await;
    let pattern = format!("{}/golden", room.ns());
    room.cdi.script(&pattern, Behaviour::StuckAt(50.0));
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    room.apply(&room.import("golden", &url)).await;
    room.until("golden", "stuck half way", |status| status.progress.ends_with('%')).await;
    let requests = room.cdi.requests_of(room.ns(), "golden").len();
    room.cdi.kill_importer(room.ns(), "golden").await;
    room.cdi.until_journal(room.ns(), "golden", |_| room.cdi.requests_of(room.ns(), "golden").len() >= requests + 2).await;
    room.cdi.unscript(&pattern);
    assert_eq!(room.until_succeeded("golden").await.restart_count, 0);
    assert!(room.has_disk("golden").await);
}

/// "PVC of a Succeeded DV deleted": Succeeded and Ready with Bound=False for a while, then imported again under the same DataVolume.
/// "… and the source no longer served": back to ImportInProgress with restarts.
#[tokio::test]
async fn a_claim_deleted_after_success_is_imported_again() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    let before = room.dvs().get("golden").await.unwrap();
    let first = room.pvcs().get("golden").await.unwrap().uid();
    // Each state is held until it was seen.
    let pattern = format!("{}/golden", room.ns());
    room.cdi.script(&pattern, Behaviour::NotAgain);
    room.cdi.delete_claim(room.ns(), "golden").await;
    let between = room.until("golden", "Succeeded but not Bound", |status| of(status, "Bound").0 == "False").await;
    assert_eq!(between.phase, "Succeeded");
    assert_eq!(of(&between, "Ready").0, "True");
    room.cdi.rescript(&pattern, Behaviour::StuckAt(50.0));
    room.until("golden", "imported anew", |status| status.phase.starts_with("Import")).await;
    room.cdi.unscript(&pattern);
    room.until_succeeded("golden").await;
    assert_eq!(room.dvs().get("golden").await.unwrap().uid(), before.uid());
    assert_ne!(room.pvcs().get("golden").await.unwrap().uid(), first);
    assert!(room.has_disk("golden").await);

    UPSTREAM.put(&format!("/{}/golden", room.ns()), Answer::Status(410));
    room.cdi.delete_claim(room.ns(), "golden").await;
    let status = room.until("golden", "it restarts", |status| status.restart_count >= 2).await;
    assert_eq!(status.phase, "ImportInProgress");
}

/// "our own finalizer on a golden's PVC, then DELETE": Terminating with its data, DV stays Succeeded, a clone of it sits in CSICloneInProgress.
#[tokio::test]
async fn a_claim_held_by_a_finalizer_keeps_its_data() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    let hold = json!({ "metadata": { "finalizers": ["example.org/hold"] } });
    room.pvcs().patch("golden", &PatchParams::default(), &Patch::Merge(hold)).await.unwrap();
    room.pvcs().delete("golden", &DeleteParams::default()).await.unwrap();
    harness::until(room.pvcs(), "golden", "Terminating", |pvc: &k8s_openapi::api::core::v1::PersistentVolumeClaim| {
        pvc.metadata.deletion_timestamp.is_some()
    })
    .await;
    room.apply(&room.clone_of("disk", "golden")).await;
    room.until("disk", "it waits", |status| status.phase == "CSICloneInProgress").await;
    assert_eq!(room.dvs().get("golden").await.unwrap().status.unwrap().phase, "Succeeded");
    assert!(room.has_disk("golden").await);
    let release = json!({ "metadata": { "finalizers": null } });
    room.pvcs().patch("golden", &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
}

/// A claim lost after its import: by CDI's code the phase follows the importer's end, so it stays Succeeded (and Ready) with Bound=False `ClaimLost`.
#[tokio::test]
async fn a_claim_lost_after_its_import_shows_in_bound_only() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    room.cdi.lose_claim(room.ns(), "golden").await;
    let status = room.until("golden", "ClaimLost", |status| of(status, "Bound").1 == "ClaimLost").await;
    assert_eq!(of(&status, "Bound"), ("False".into(), "ClaimLost".into(), "Claim Lost".into()));
    assert_eq!((status.phase.as_str(), of(&status, "Ready").0.as_str()), ("Succeeded", "True"));
}

/// A claim lost during its import (legacy path, where the target itself is written to) is one of the two ways to `Failed`.
#[tokio::test]
async fn a_claim_lost_during_its_import_fails() {
    let Some(room) = room().await else { return };
    room.access().await;
    room.cdi.script(&format!("{}/golden", room.ns()), Behaviour::StuckAt(50.0));
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    let mut dv = room.import("golden", &url);
    dv["metadata"]["annotations"][names::USE_POPULATOR] = json!("false");
    room.apply(&dv).await;
    room.until("golden", "stuck half way", |status| status.progress.ends_with('%')).await;
    room.cdi.lose_claim(room.ns(), "golden").await;
    let status = room.until("golden", "Failed", |status| status.phase == "Failed").await;
    assert_eq!(of(&status, "Bound"), ("False".into(), "ClaimLost".into(), "Claim Lost".into()));
    assert_eq!(of(&status, "Ready").0, "False");
}

/// The legacy path: the target is bound first and filled in place.
#[tokio::test]
async fn the_legacy_path_fills_the_target_in_place() {
    let Some(room) = room().await else { return };
    room.access().await;
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    let mut dv = room.import("golden", &url);
    dv["metadata"]["annotations"][names::USE_POPULATOR] = json!("false");
    room.apply(&dv).await;
    room.until_succeeded("golden").await;
    assert!(room.has_disk("golden").await);
    let claim = room.pvcs().get("golden").await.unwrap();
    assert_eq!(claim.annotations()[names::ENDPOINT], url);
    assert!(claim.spec.unwrap().data_source_ref.is_none());
}

/// WaitForFirstConsumer: `PendingPopulation` until a pod uses it; with the immediate-bind annotation (whatever its value) at once.
#[tokio::test]
async fn first_consumers_are_waited_for() {
    let Some(room) = room().await else { return };
    room.access().await;
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    let mut waiting = room.import("waiting", &url);
    waiting["spec"]["storage"]["storageClassName"] = json!("wffc");
    let mut at_once = room.import("at-once", &url);
    at_once["spec"]["storage"]["storageClassName"] = json!("wffc");
    at_once["metadata"]["annotations"][names::IMMEDIATE_BIND] = json!("false");
    room.apply(&waiting).await;
    room.apply(&at_once).await;
    room.until_succeeded("at-once").await;
    room.until("waiting", "PendingPopulation", |status| status.phase == "PendingPopulation").await;
    assert_eq!(room.cdi.requests_of(room.ns(), "waiting").len(), 0);
    room.apply(&consumer("waiting")).await;
    room.until_succeeded("waiting").await;
    assert!(room.has_disk("waiting").await);
}

/// A pod that uses a Block claim.
pub fn consumer(claim: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("uses-{claim}") },
        "spec": {
            "containers": [{ "name": "vm", "image": "example/vm", "volumeDevices": [{ "name": "disk", "devicePath": "/dev/disk" }] }],
            "volumes": [{ "name": "disk", "persistentVolumeClaim": { "claimName": claim } }],
        },
    })
}

/// Filesystem claims grow by the overhead of the storage API and not by that of the pvc API; modes come from the StorageProfile; its minimum holds.
#[tokio::test]
async fn claims_are_rendered_from_profile_and_overhead() {
    let Some(room) = room().await else { return };
    room.access().await;
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    let profiled = |name: &str| {
        let mut dv = room.import(name, &url);
        dv["spec"]["storage"] = json!({ "resources": { "requests": { "storage": "16Mi" } } });
        dv
    };
    let mut filesystem = profiled("filesystem");
    filesystem["spec"]["storage"]["volumeMode"] = json!("Filesystem");
    let mut plain = profiled("plain");
    plain["spec"]["pvc"] = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "16Mi" } } });
    plain["spec"].as_object_mut().unwrap().remove("storage");
    for dv in [&profiled("profiled"), &filesystem, &plain] {
        room.apply(dv).await;
    }
    for (name, mode, access, size) in [
        ("profiled", "Block", "ReadWriteMany", 16u64 << 20),
        ("filesystem", "Filesystem", "ReadWriteOnce", 17_783_849),
        ("plain", "Filesystem", "ReadWriteOnce", 16 << 20),
    ] {
        room.until_succeeded(name).await;
        let spec = room.pvcs().get(name).await.unwrap().spec.unwrap();
        assert_eq!(spec.volume_mode.as_deref(), Some(mode), "{name}");
        assert_eq!(spec.access_modes.unwrap(), [access], "{name}");
        assert_eq!(spec.storage_class_name.as_deref(), Some("replicated"), "{name}");
        let asked = spec.resources.unwrap().requests.unwrap()["storage"].0.clone();
        assert_eq!(crate::cdi::quantity::bytes(&asked), Some(size), "{name}");
        assert!(room.has_disk(name).await, "{name}");
    }
    // disk.img fills the usable part of the file system.
    assert_eq!(room.disk("filesystem").await.len(), 16 << 20);
}

/// Unknown class, and `""`: no phase at all, Bound=False `ErrClaimNotValid`. An unknown class that comes starts by itself.
#[tokio::test]
async fn an_unknown_class_leaves_no_phase() {
    let Some(room) = room().await else { return };
    room.access().await;
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    let late = format!("late-{}", room.ns());
    for (name, class) in [("unknown", late.as_str()), ("empty", "")] {
        let mut dv = room.import(name, &url);
        dv["spec"]["storage"]["storageClassName"] = json!(class);
        room.apply(&dv).await;
        let status = room.until(name, "ErrClaimNotValid", |status| of(status, "Bound").1 == "ErrClaimNotValid").await;
        assert_eq!(status.phase, "", "{name}");
        assert_eq!(of(&status, "Ready").0, "False", "{name}");
    }
    assert_eq!(room.claim_names().await, [""; 0]);
    let class = json!({ "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": late }, "provisioner": "one.csi.example" });
    room.cluster.apply(&class.to_string()).await;
    room.until_succeeded("unknown").await;
    let classes: Api<k8s_openapi::api::storage::v1::StorageClass> = Api::all(room.client.clone());
    classes.delete(&late, &DeleteParams::default()).await.unwrap();
}

/// A deleted DataVolume takes its claim and volume along; orphaned, the claim stays.
#[tokio::test]
async fn a_deleted_datavolume_takes_its_claim() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    room.golden("kept").await;
    let volume = room.volume_of("golden").await.name_any();
    let file = room.cdi.disk(room.ns(), "golden").await.unwrap();
    assert!(file.exists());
    room.dvs().delete("golden", &DeleteParams::default()).await.unwrap();
    room.dvs().delete("kept", &DeleteParams::orphan()).await.unwrap();
    until_gone(room.pvcs(), "golden").await;
    until_gone(Api::<k8s_openapi::api::core::v1::PersistentVolume>::all(room.client.clone()), &volume).await;
    assert!(!file.exists());
    until_gone(room.dvs(), "kept").await;
    assert!(room.has_disk("kept").await);
}
