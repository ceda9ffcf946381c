//! Imports that do not work, and how each looks. None of them is ever `Failed`.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ResourceQuota};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    cdi::{Behaviour, What, names, types::DataVolumeStatus},
    harness,
    room::{of, room},
    upstream::{Answer, DISK, UPSTREAM},
};

/// Restarted at least twice, and what the last end said.
fn restarting(status: &DataVolumeStatus) -> bool {
    status.restart_count >= 2 && of(status, "Running").1 == "Error"
}

/// "HTTP 403, 404, 500, DNS failure, refused, target too small": ImportInProgress for ever, restarts rising, reason in Running and in Bound's message.
#[tokio::test]
async fn upstream_trouble_never_fails() {
    let Some(room) = room().await else { return };
    room.access().await;
    let path = |name: &str| format!("/{}/{name}", room.ns());
    let small = DISK.raw.repeat(3);
    let cases = [
        ("forbidden", UPSTREAM.put(&path("forbidden"), Answer::Status(403)), "expected status code 200, got 403. Status: 403 Forbidden"),
        ("absent", UPSTREAM.put(&path("absent"), Answer::Status(404)), "expected status code 200, got 404. Status: 404 Not Found"),
        (
            "broken",
            UPSTREAM.put(&path("broken"), Answer::Status(500)),
            "expected status code 200, got 500. Status: 500 Internal Server Error",
        ),
        ("nowhere", "https://nowhere.invalid/disk".into(), "no such host"),
        ("refused", "http://127.0.0.1:1/disk".into(), "connection refused"),
        ("large", UPSTREAM.put(&path("large"), Answer::File(small.into())), "DataVolume too small to contain image"),
        ("cut", UPSTREAM.put(&path("cut"), Answer::Cut(DISK.qcow2.clone(), 100_000)), "unexpected EOF"),
        (
            "short",
            UPSTREAM.put(&path("short"), Answer::File(b"not found".to_vec().into())),
            "could not process image header: unexpected EOF",
        ),
    ];
    for (name, url, _) in &cases {
        room.apply(&room.import(name, url)).await;
    }
    for (name, _, message) in &cases {
        let status = room.until(name, "it restarts", restarting).await;
        assert_eq!(status.phase, "ImportInProgress", "{name}");
        let running = of(&status, "Running");
        assert_eq!(running.0, "False", "{name}");
        assert!(running.2.contains(message), "{name}: {}", running.2);
        let bound = of(&status, "Bound");
        assert_eq!((bound.0.as_str(), bound.1.as_str()), ("False", "Pending"), "{name}");
        assert!(bound.2.starts_with(&format!("target PVC {name} Pending and [prime-")) && bound.2.contains(message), "{name}: {}", bound.2);
        assert_eq!(of(&status, "Ready").0, "False", "{name}");
    }
    // The raw text about the size is in the claim's event only.
    assert!(room.events_about("large").await.contains(&"ErrImportFailed".to_owned()));
}

/// "bad registry tag": `ImagePullFailed`, for ever.
#[tokio::test]
async fn a_registry_source_never_gets_its_image() {
    let Some(room) = room().await else { return };
    let mut dv = room.import("golden", "");
    dv["spec"]["source"] = json!({ "registry": { "url": "docker://registry.example/disk:no-such-tag" } });
    room.apply(&dv).await;
    let status = room.until("golden", "ImagePullFailed", |status| of(status, "Running").1 == "ImagePullFailed").await;
    assert_eq!(status.phase, "ImportScheduled");
}

/// "404 heals by itself when the file appears"; "connection cut: retried from 0".
#[tokio::test]
async fn trouble_heals_by_itself() {
    let Some(room) = room().await else { return };
    room.access().await;
    for (name, answer) in [("absent", Answer::Status(404)), ("cut", Answer::Cut(DISK.qcow2.clone(), 100_000))] {
        let url = UPSTREAM.put(&format!("/{}/{name}", room.ns()), answer);
        room.apply(&room.import(name, &url)).await;
    }
    for name in ["absent", "cut"] {
        room.until(name, "it restarts", restarting).await;
        UPSTREAM.put(&format!("/{}/{name}", room.ns()), Answer::File(DISK.qcow2.clone()));
        let status = room.until_succeeded(name).await;
        assert!(status.restart_count >= 2, "restarts are kept");
        assert!(room.has_disk(name).await, "{name}");
        assert!(!UPSTREAM.asked(&format!("/{}/{name}", room.ns())).iter().any(|asked| asked.headers.contains_key("range")));
    }
}

/// What R10 must tell apart, by script: each cause shows as CDI shows it, and goes away with the cause.
#[tokio::test]
async fn each_cause_shows_as_cdi_shows_it_and_goes_with_the_cause() {
    let Some(room) = room().await else { return };
    room.access().await;
    let text = |text: &str| text.to_owned();
    // Name, what happens, phase, Running's reason, part of Running's or Bound's message.
    let cases = [
        ("unschedulable", Behaviour::Unschedulable, "ImportScheduled", "Unschedulable", "Importer pod cannot be scheduled"),
        (
            "pull",
            Behaviour::ImagePull { message: text("rpc error: no such image") },
            "ImportScheduled",
            "ImagePullFailed",
            "failed to pull image: rpc error",
        ),
        (
            "pod-quota",
            Behaviour::PodQuota { message: text("exceeded quota: pods") },
            "ImportScheduled",
            "ErrExceededQuota",
            "exceeded quota: pods",
        ),
        (
            "starting",
            Behaviour::ErrStartingPod { message: text("violates PodSecurity") },
            "ImportScheduled",
            "ErrStartingPod",
            "violates PodSecurity",
        ),
        (
            "crash",
            Behaviour::CrashLoop { message: text("writeMatch: distance out of range") },
            "ImportInProgress",
            "Error",
            "distance out of range",
        ),
        ("bad-ca", Behaviour::BadCa, "ImportInProgress", "Error", "certificate signed by unknown authority"),
        ("refused", Behaviour::Refused, "ImportInProgress", "Error", "connection refused"),
        ("dns", Behaviour::NoSuchHost, "ImportInProgress", "Error", "no such host"),
        ("token", Behaviour::WrongToken, "ImportInProgress", "Error", "got 403"),
        ("claim-quota", Behaviour::ClaimQuota { message: text("exceeded quota: storage") }, "Pending", "", "exceeded quota: storage"),
        ("volume", Behaviour::NoVolume { message: text("not enough free storage") }, "ImportScheduled", "", "not enough free storage"),
        (
            "scratch",
            Behaviour::NoScratch { message: text("no class for scratch") },
            "ImportInProgress",
            "Scratch space required",
            "no class for scratch",
        ),
        ("idle", Behaviour::NeverConnect, "ImportInProgress", "Pod is running", ""),
    ];
    for (name, behaviour, ..) in &cases {
        room.cdi.script(&format!("{}/{name}", room.ns()), behaviour.clone());
        let url = UPSTREAM.put(&format!("/{}/{name}", room.ns()), Answer::Protected(DISK.qcow2.clone()));
        room.apply(&room.import(name, &url)).await;
    }
    for (name, _, phase, reason, message) in &cases {
        let shows = |status: &DataVolumeStatus| {
            let (running, bound) = (of(status, "Running"), of(status, "Bound"));
            status.phase == *phase && running.1 == *reason && (running.2.contains(message) || bound.2.contains(message))
        };
        room.until(name, &format!("{phase}, {reason}, {message}"), shows).await;
    }
    assert_eq!(of(&room.dvs().get("claim-quota").await.unwrap().status.unwrap(), "Bound").1, "ErrExceededQuota");
    assert_eq!(of(&room.dvs().get("scratch").await.unwrap().status.unwrap(), "Bound").1, "CreatingScratchSpace");
    assert!(UPSTREAM.asked(&format!("/{}/idle", room.ns())).is_empty());
    for (name, ..) in &cases {
        room.cdi.unscript(&format!("{}/{name}", room.ns()));
        room.until_succeeded(name).await;
        assert!(room.has_disk(name).await, "{name}");
    }
}

/// An importer killed for memory gets a new pod with direct I/O; counted errors end by themselves; a fatal end is `Failed` for good.
#[tokio::test]
async fn counted_ends_and_fatal_ones() {
    let Some(room) = room().await else { return };
    room.access().await;
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    let scripts = [
        ("oom", Behaviour::OomKilled { times: 1 }),
        ("errors", Behaviour::Error { message: "weather".into(), times: 3 }),
        ("killed", Behaviour::PodKilledAt(50.0)),
        ("fatal", Behaviour::Fatal { message: "checksum mismatch".into() }),
    ];
    for (name, behaviour) in scripts {
        room.cdi.script(&format!("{}/{name}", room.ns()), behaviour);
        room.apply(&room.import(name, &url)).await;
    }
    assert_eq!(room.until_succeeded("oom").await.restart_count, 0);
    assert!(room.cdi.journal_of(room.ns(), "oom").contains(&What::Ended { code: 137, message: String::new() }));
    assert_eq!(room.until_succeeded("errors").await.restart_count, 3);
    assert_eq!(room.until_succeeded("killed").await.restart_count, 0);
    let status = room.until("fatal", "Failed", |status| status.phase == "Failed").await;
    assert_eq!(of(&status, "Running").1, "ChecksumError");
}

/// A real ResourceQuota: phase Pending, Bound=False `ErrExceededQuota`; goes on when there is room.
#[tokio::test]
async fn a_real_quota_is_named_and_waited_for() {
    let Some(room) = room().await else { return };
    room.access().await;
    let quotas: Api<ResourceQuota> = Api::namespaced(room.client.clone(), room.ns());
    room.apply(&json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "none" }, "spec": { "hard": { "persistentvolumeclaims": "0" } } })).await;
    harness::until(quotas.clone(), "none", "counted", |quota: &ResourceQuota| {
        quota.status.as_ref().is_some_and(|status| status.hard.is_some())
    })
    .await;
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    room.apply(&room.import("golden", &url)).await;
    let status = room.until("golden", "ErrExceededQuota", |status| of(status, "Bound").1 == "ErrExceededQuota").await;
    assert_eq!(status.phase, "Pending");
    assert!(of(&status, "Bound").2.contains("exceeded quota: none"), "{:?}", of(&status, "Bound"));

    // Room for the target only: the prime claim is refused, with an event on the target.
    quotas
        .patch("none", &PatchParams::default(), &Patch::Merge(json!({ "spec": { "hard": { "persistentvolumeclaims": "1" } } })))
        .await
        .unwrap();
    harness::until(room.pvcs(), "golden", "there", |_: &PersistentVolumeClaim| true).await;
    harness::eventually("the prime claim is refused", async || {
        let events = room.events_about("golden").await;
        if events.contains(&"ErrCreatingPVCPrime".to_owned()) { Ok(()) } else { Err(format!("{events:?}")) }
    })
    .await;
    quotas.delete("none", &DeleteParams::default()).await.unwrap();
    room.until_succeeded("golden").await;
}

/// A missing CA or header Secret keeps the pod in ContainerCreating; it starts by itself when they come.
#[tokio::test]
async fn missing_mounts_are_waited_for() {
    let Some(room) = room().await else { return };
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::Protected(DISK.qcow2.clone()));
    room.apply(&room.import("golden", &url)).await;
    let status = room.until("golden", "ContainerCreating", |status| of(status, "Running").1 == "ContainerCreating").await;
    assert_eq!(status.phase, "ImportScheduled");
    room.access().await;
    room.until_succeeded("golden").await;
}

/// A header that changes in its Secret reaches the next attempt.
#[tokio::test]
async fn a_rotated_header_reaches_the_next_attempt() {
    let Some(room) = room().await else { return };
    room.access().await;
    let stale = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "access" }, "stringData": { "header": "Authorization: Bearer stale" } });
    room.apply(&stale).await;
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::Protected(DISK.qcow2.clone()));
    room.apply(&room.import("golden", &url)).await;
    room.until("golden", "it restarts", restarting).await;
    room.access().await;
    room.until_succeeded("golden").await;
}

/// CDI's former garbage collection: the DataVolume goes, the claim stays without owner and marked; `deleteAfterCompletion: "false"` keeps it.
#[tokio::test]
async fn former_garbage_collection_leaves_the_claim() {
    let Some(room) = room().await else { return };
    room.access().await;
    room.cdi.script(&format!("{}/*", room.ns()), Behaviour::GarbageCollect);
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    let mut kept = room.import("kept", &url);
    kept["metadata"]["annotations"][names::DELETE_AFTER_COMPLETION] = json!("false");
    room.apply(&kept).await;
    room.apply(&room.import("golden", &url)).await;
    harness::until(room.pvcs(), "golden", "marked", |pvc: &PersistentVolumeClaim| {
        pvc.annotations().get(names::GARBAGE_COLLECTED).is_some_and(|value| value == "true")
    })
    .await;
    harness::until_gone(room.dvs(), "golden").await;
    let claim = room.pvcs().get("golden").await.unwrap();
    assert!(claim.owner_references().is_empty());
    assert_eq!(claim.status.unwrap().phase.as_deref(), Some("Bound"));
    assert!(room.has_disk("golden").await);
    room.until_succeeded("kept").await;
    assert!(room.dvs().get("kept").await.is_ok());
}
