//! Clones, and what CDI makes of each.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

use crate::{
    cdi::{Behaviour, What, names, types::DataVolume},
    harness::{self, until_gone, until_listed},
    imports::consumer,
    room::{of, room},
    upstream::{Answer, DISK, UPSTREAM},
};

/// One row of the observed table.
struct Row {
    name: &'static str,
    change: fn(&mut Value),
    strategy: &'static str,
    fallback: Option<&'static str>,
}

const ROWS: [Row; 11] = [
    Row { name: "same", change: |_| {}, strategy: "csi-clone", fallback: None },
    Row { name: "larger", change: |dv| size(dv, "24Mi"), strategy: "csi-clone", fallback: None },
    Row {
        name: "no-size",
        change: |dv| drop(dv["spec"]["storage"].as_object_mut().unwrap().remove("resources")),
        strategy: "csi-clone",
        fallback: None,
    },
    Row { name: "other-class-same-driver", change: |dv| class(dv, "local"), strategy: "csi-clone", fallback: None },
    Row { name: "other-driver", change: |dv| class(dv, "other"), strategy: "copy", fallback: Some("Provisioners are incompatible") },
    Row {
        name: "filesystem",
        change: |dv| dv["spec"]["storage"]["volumeMode"] = json!("Filesystem"),
        strategy: "copy",
        fallback: Some("The volume modes of source and target are incompatible"),
    },
    Row {
        name: "larger-fixed",
        change: |dv| {
            class(dv, "fixed");
            size(dv, "24Mi");
        },
        strategy: "copy",
        fallback: Some("No volume expansion is possible"),
    },
    Row { name: "equal-fixed", change: |dv| class(dv, "fixed"), strategy: "csi-clone", fallback: None },
    Row {
        name: "by-pvc",
        change: |dv| {
            let mut pvc = dv["spec"]["storage"].take();
            pvc["storageClassName"] = json!("replicated");
            dv["spec"]["pvc"] = pvc;
            dv["spec"].as_object_mut().unwrap().remove("storage");
        },
        strategy: "csi-clone",
        fallback: None,
    },
    Row {
        name: "preset-copy",
        change: |dv| dv["metadata"]["annotations"][names::CLONE_TYPE] = json!("copy"),
        strategy: "copy",
        fallback: None,
    },
    Row {
        name: "no-populator",
        change: |dv| dv["metadata"]["annotations"][names::USE_POPULATOR] = json!("false"),
        strategy: "copy",
        fallback: Some("In tree storage class does not support snapshot/clone"),
    },
];

fn size(dv: &mut Value, size: &str) {
    dv["spec"]["storage"]["resources"]["requests"]["storage"] = json!(size);
}

fn class(dv: &mut Value, class: &str) {
    dv["spec"]["storage"]["storageClassName"] = json!(class);
}

/// The rows of what a clone becomes: strategy, silent fallback and its reason, and equal content in each.
#[tokio::test]
async fn clones_become_what_cdi_makes_of_them() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    for row in &ROWS {
        let mut dv = room.clone_of(row.name, "golden");
        (row.change)(&mut dv);
        room.apply(&dv).await;
    }
    for row in &ROWS {
        let status = room.until_succeeded(row.name).await;
        assert_eq!(status.progress, "100.0%", "{}", row.name);
        let claim = room.pvcs().get(row.name).await.unwrap();
        let annotation = |name: &str| claim.annotations().get(name).map(String::as_str);
        assert_eq!(annotation(names::CLONE_TYPE), Some(row.strategy), "{}", row.name);
        assert_eq!(annotation(names::CLONE_FALLBACK), row.fallback, "{}", row.name);
        assert!(room.has_disk(row.name).await, "{}", row.name);
        let dv = harness::until(room.dvs(), row.name, "told on the DataVolume", |dv: &DataVolume| {
            dv.annotations().contains_key(names::CLONE_TYPE)
        })
        .await;
        assert_eq!(dv.annotations()[names::CLONE_TYPE], row.strategy, "{}", row.name);
    }
    assert_eq!(room.disk("larger").await.len(), 24 << 20);
    assert!(room.events_about("other-driver").await.contains(&"IncompatibleProvisioners".to_owned()));
    assert!(room.events_about("larger-fixed").await.contains(&"NoVolumeExpansion".to_owned()));
    until_listed(room.pvcs(), "", "the temporary claims are gone", |claims| {
        !claims.iter().any(|claim| claim.name_any().starts_with("tmp-"))
    })
    .await;
}

/// "`storageClassName: \"\"`": no phase, `ErrClaimNotValid`. "clone smaller than source": no phase, no claim, Bound and Ready `CloneValidationFailed`.
#[tokio::test]
async fn impossible_clones_are_accepted_and_go_nowhere() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    let mut empty = room.clone_of("empty", "golden");
    class(&mut empty, "");
    let mut smaller = room.clone_of("smaller", "golden");
    size(&mut smaller, "8Mi");
    room.apply(&empty).await;
    room.apply(&smaller).await;
    let status = room.until("empty", "ErrClaimNotValid", |status| of(status, "Bound").1 == "ErrClaimNotValid").await;
    assert_eq!(status.phase, "");
    let status = room.until("smaller", "CloneValidationFailed", |status| of(status, "Bound").1 == "CloneValidationFailed").await;
    assert_eq!(status.phase, "");
    assert_eq!(of(&status, "Ready").1, "CloneValidationFailed");
    assert!(
        of(&status, "Bound").2.contains("target resources requests storage size is smaller than the source"),
        "{:?}",
        of(&status, "Bound")
    );
    // The golden's own scratch claim goes in its own time.
    until_listed(room.pvcs(), "", "no claim but the golden's", |claims| claims.iter().all(|claim| claim.name_any() == "golden")).await;
}

/// "clone of a missing source": Pending, `CloneWithoutSource`; it goes on when the source comes. "clone of a golden still importing": CloneScheduled, then finishes.
#[tokio::test]
async fn clones_wait_for_their_source() {
    let Some(room) = room().await else { return };
    room.access().await;
    room.apply(&room.clone_of("early", "golden")).await;
    let status = room.until("early", "CloneWithoutSource", |status| of(status, "Bound").1 == "CloneWithoutSource").await;
    assert_eq!(status.phase, "Pending");
    let pattern = format!("{}/golden", room.ns());
    room.cdi.script(&pattern, Behaviour::StuckAt(50.0));
    let url = UPSTREAM.put(&format!("/{}/golden", room.ns()), Answer::File(DISK.qcow2.clone()));
    room.apply(&room.import("golden", &url)).await;
    room.until("golden", "stuck half way", |status| status.progress.ends_with('%')).await;
    room.apply(&room.clone_of("late", "golden")).await;
    for name in ["early", "late"] {
        room.until(name, "it waits", |status| status.phase == "CloneScheduled").await;
    }
    room.cdi.unscript(&pattern);
    for name in ["golden", "early", "late"] {
        room.until_succeeded(name).await;
        assert!(room.has_disk(name).await, "{name}");
    }
}

/// "clone into a WaitForFirstConsumer class": `PendingPopulation` until a pod uses it.
#[tokio::test]
async fn clones_wait_for_their_first_consumer() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    let mut dv = room.clone_of("disk", "golden");
    class(&mut dv, "wffc");
    room.apply(&dv).await;
    room.until("disk", "PendingPopulation", |status| status.phase == "PendingPopulation").await;
    room.apply(&consumer("disk")).await;
    room.until_succeeded("disk").await;
    assert!(room.has_disk("disk").await);
}

/// "clone by `sourceRef`", through one more DataSource too, and by `spec.pvc` (in the table above).
#[tokio::test]
async fn clones_follow_datasources() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    let source = |name: &str, source: Value| json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": { "name": name }, "spec": { "source": source } });
    room.apply(&source("direct", json!({ "pvc": { "namespace": room.ns(), "name": "golden" } }))).await;
    room.apply(&source("chained", json!({ "dataSource": { "namespace": room.ns(), "name": "direct" } }))).await;
    for name in ["direct", "chained"] {
        let mut dv = room.clone_of(name, "golden");
        dv["spec"].as_object_mut().unwrap().remove("source");
        dv["spec"]["sourceRef"] = json!({ "kind": "DataSource", "name": name });
        room.apply(&dv).await;
        room.until_succeeded(name).await;
        assert_eq!(room.pvcs().get(name).await.unwrap().annotations()[names::CLONE_TYPE], "csi-clone");
        assert!(room.has_disk(name).await, "{name}");
    }
}

/// "golden mounted by a pod": clones wait in CSICloneInProgress, the event is on the target claim; a read-only volume does not hold them.
#[tokio::test]
async fn a_mounted_golden_stalls_its_clones() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    let mut reader = consumer("golden");
    reader["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = json!(true);
    room.apply(&reader).await;
    room.apply(&room.clone_of("first", "golden")).await;
    room.until_succeeded("first").await;
    let mut writer = consumer("golden");
    writer["metadata"]["name"] = json!("writer");
    room.apply(&writer).await;
    room.cdi.until_pod(room.ns(), "writer").await;
    room.apply(&room.clone_of("second", "golden")).await;
    harness::eventually("the event is on the target", async || {
        let events = room.events_about("second").await;
        if events.contains(&"CloneSourceInUse".to_owned()) { Ok(()) } else { Err(format!("{events:?}")) }
    })
    .await;
    room.until("second", "the phase says only that", |status| status.phase == "CSICloneInProgress").await;
    room.pods().delete("writer", &DeleteParams::default()).await.unwrap();
    room.until_succeeded("second").await;
}

/// "golden deleted during a clone": finished clones survive, a host-assisted one hangs, one re-created under the name is silently used instead.
#[tokio::test]
async fn a_golden_deleted_under_its_clones() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    room.apply(&room.clone_of("finished", "golden")).await;
    room.until_succeeded("finished").await;
    let hanging = format!("{}/hanging", room.ns());
    room.cdi.script(&hanging, Behaviour::StuckAt(10.0));
    let mut dv = room.clone_of("hanging", "golden");
    class(&mut dv, "other");
    room.apply(&dv).await;
    room.until("hanging", "it copies", |status| status.phase == "CloneInProgress").await;
    until_listed(room.pods(), "", "its two pods", |pods| pods.len() == 2).await;
    let mut claim = harness::History::of(room.pvcs(), "golden").await;
    room.dvs().delete("golden", &DeleteParams::default()).await.unwrap();
    // For a moment only: a pod without a node holds no claim.
    claim.once("Terminating", |pvc: &PersistentVolumeClaim| pvc.metadata.deletion_timestamp.is_some()).await;
    room.cdi.unscript(&hanging);
    room.cdi
        .until_journal(room.ns(), "hanging", |did| did.contains(&What::Note("the source was deleted during the copy: it hangs".into())))
        .await;
    assert_eq!(room.dvs().get("hanging").await.unwrap().status.unwrap().phase, "CloneInProgress");
    assert!(room.has_disk("finished").await);

    room.dvs().delete("hanging", &DeleteParams::default()).await.unwrap();
    for pod in room.pods().list(&ListParams::default()).await.unwrap() {
        match room.pods().delete(&pod.name_any(), &DeleteParams::default()).await {
            // It went with its DataVolume meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => drop(other.unwrap()),
        }
    }
    until_gone(room.pvcs(), "golden").await;
    room.cdi.until_no_claim(room.ns(), "golden").await;
    room.apply(&room.clone_of("waiting", "golden")).await;
    room.until("waiting", "CloneWithoutSource", |status| of(status, "Bound").1 == "CloneWithoutSource").await;
    let other = DISK.raw.iter().map(|byte| byte ^ 0xff).collect::<Vec<_>>();
    let url = UPSTREAM.put(&format!("/{}/other", room.ns()), Answer::File(other.clone().into()));
    room.apply(&room.import("golden", &url)).await;
    room.until_succeeded("waiting").await;
    assert_eq!(room.disk("waiting").await[..other.len()], other);
}

/// Across namespaces: the temporary claim lies in the golden's namespace with every label and annotation of the tenant's, owned by UID; finalizer and source object go after.
#[tokio::test]
async fn temporaries_carry_the_tenants_marks_into_the_goldens_namespace() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    let tenant = room.cluster.namespace("tenant").await;
    let pattern = format!("{}/disk", &*tenant);
    room.cdi.script(&pattern, Behaviour::StuckAt(0.0));
    let mut dv = room.clone_of("disk", "golden");
    class(&mut dv, "other");
    dv["metadata"]["labels"]["example.org/golden"] = json!("true");
    dv["metadata"]["annotations"]["example.org/pool"] = json!("mine");
    room.cluster.apply_in(&tenant, &dv.to_string()).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(room.client.clone(), &tenant);
    let target = harness::until(claims.clone(), "disk", "there", |_: &PersistentVolumeClaim| true).await;
    let uid = target.uid().unwrap();
    let name = format!("tmp-pvc-{uid}");
    let temporary = harness::until(room.pvcs(), &name, "there", |_: &PersistentVolumeClaim| true).await;
    assert_eq!(temporary.labels()["example.org/golden"], "true");
    assert_eq!(temporary.annotations()["example.org/pool"], "mine");
    assert_eq!(temporary.labels()[names::OWNED_BY_UID], uid);
    let dvs: Api<DataVolume> = Api::namespaced(room.client.clone(), &tenant);
    harness::until(dvs.clone(), "disk", "held", |dv: &DataVolume| dv.finalizers().contains(&names::DV_FINALIZER.to_owned())).await;
    assert_eq!(target.annotations()[names::DATA_SOURCE_NAMESPACE], room.ns());
    room.cdi.unscript(&pattern);
    harness::until(dvs, "disk", "done and let go", |dv: &DataVolume| {
        dv.status.as_ref().is_some_and(|status| status.phase == "Succeeded") && dv.finalizers().is_empty()
    })
    .await;
    until_gone(room.pvcs(), &name).await;
    until_listed(room.pods(), "", "its pods are gone", <[_]>::is_empty).await;
    assert_eq!(room.disk_in(&tenant, "disk").await, room.disk("golden").await);
}

/// A clone that cannot start tells why in `cloneError` and Running, keeps its phase, and goes on when the cause goes. A lost clone is Failed.
#[tokio::test]
async fn an_error_keeps_the_phase() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    room.cdi.script(&format!("{}/disk", room.ns()), Behaviour::Error { message: "rpc error: storage is away".into(), times: u32::MAX });
    room.apply(&room.clone_of("disk", "golden")).await;
    let status = room.until("disk", "Error", |status| of(status, "Running").1 == "Error").await;
    assert_eq!(status.phase, "CloneScheduled");
    assert_eq!(of(&status, "Running").2, "rpc error: storage is away");
    // The stand-in writes it to the claim while it tells the DataVolume.
    harness::until(room.pvcs(), "disk", "told on the claim", |pvc: &PersistentVolumeClaim| {
        pvc.annotations().get(names::CLONE_PHASE).is_some_and(|phase| phase == "Error")
    })
    .await;
    room.cdi.unscript(&format!("{}/disk", room.ns()));
    room.until_succeeded("disk").await;
    room.cdi.lose_claim(room.ns(), "disk").await;
    room.until("disk", "Failed", |status| status.phase == "Failed" && of(status, "Bound").1 == "ClaimLost").await;
}

/// A clone of a VolumeSnapshot, and the snapshotter that takes it.
#[tokio::test]
async fn snapshots_are_taken_and_cloned() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    room.apply(&json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": { "name": "golden" },
        "spec": { "source": { "persistentVolumeClaimName": "golden" } },
    }))
    .await;
    for (name, target, strategy) in [("same", "replicated", "snapshot"), ("other", "other", "copy")] {
        let mut dv = room.clone_of(name, "golden");
        dv["spec"]["source"] = json!({ "snapshot": { "namespace": room.ns(), "name": "golden" } });
        class(&mut dv, target);
        room.apply(&dv).await;
        room.until_succeeded(name).await;
        assert_eq!(room.pvcs().get(name).await.unwrap().annotations()[names::CLONE_TYPE], strategy, "{name}");
        assert!(room.has_disk(name).await, "{name}");
    }
}

/// A claim with a core data source is the CSI driver's own business: cloned without CDI.
#[tokio::test]
async fn plain_claims_are_cloned_by_the_driver() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    room.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "plain" },
        "spec": {
            "storageClassName": "replicated", "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
            "dataSource": { "kind": "PersistentVolumeClaim", "name": "golden" }, "resources": { "requests": { "storage": "16Mi" } },
        },
    }))
    .await;
    let bound = |pvc: &PersistentVolumeClaim| pvc.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    harness::until(room.pvcs(), "plain", "Bound", bound).await;
    assert!(room.has_disk("plain").await);
}
