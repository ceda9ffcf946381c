use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::{
    foreign::{KubevirtMachineTemplate, MachineDeployment, MachineSet, VirtualMachine},
    rules::pool::Pool,
};

const CATALOG: &str = "cozy-public";
const UID: &str = "0d2e6a1b-4c5f-4e1a-9b7c-00112233aabb";

/// An object of this namespace with extra metadata, spec and status.
fn object<K: DeserializeOwned>(namespace: &str, meta: Value, spec: Value, status: Value) -> K {
    let mut metadata = json!({"namespace": namespace, "name": "o", "uid": UID, "creationTimestamp": "2026-11-29T10:00:00Z"});
    metadata.as_object_mut().expect("object").extend(meta.as_object().expect("object").clone());
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).expect("an object")
}

/// `Claim g (by spec)`, one a line.
fn told(facts: Option<&Facts>) -> Vec<String> {
    let target = |target: &Target| match target {
        Target::Claim(name) => format!("Claim {name}"),
        Target::Snapshot(name) => format!("Snapshot {name}"),
        Target::CloneSource(name) => format!("CloneSource {name}"),
        Target::DataSource { namespace, name } => format!("DataSource {namespace}/{name}"),
        Target::Identity(identity) => format!("Identity {identity}"),
        Target::Template { namespace, name } => format!("Template {namespace}/{name}"),
        Target::Anything => "Anything".to_owned(),
    };
    facts.map(|facts| facts.references.iter().map(|r| format!("{} ({})", target(&r.target), r.evidence)).collect()).unwrap_or_default()
}

fn pvc(name: &str) -> Value {
    json!({"source": {"pvc": {"namespace": CATALOG, "name": name}}})
}

fn marked(golden: &str) -> Value {
    json!({"annotations": {marks::GOLDEN: golden}})
}

#[rstest]
#[case::clone("tenant-a", json!({}), pvc("g"), &["Claim g (by spec)"])]
#[case::snapshot("tenant-a", json!({}), json!({"source": {"snapshot": {"namespace": CATALOG, "name": "s"}}}), &["Snapshot s (by spec)"])]
#[case::pointer("tenant-a", json!({}), json!({"sourceRef": {"kind": "DataSource", "name": "d"}}), &["DataSource tenant-a/d (by DataSource)"])]
#[case::pointer_with_mark("tenant-a", marked("g"), json!({"sourceRef": {"kind": "DataSource", "name": "d"}}), &["DataSource tenant-a/d (by DataSource)", "Claim g (by mark)"])]
#[case::a_mark_adds_nothing_to_a_spec("tenant-a", marked("h"), pvc("g"), &["Claim g (by spec)"])]
#[case::external_population("tenant-a", json!({}), json!({"pvc": {"dataSourceRef": {"kind": "VolumeSnapshot", "apiGroup": "snapshot.storage.k8s.io", "namespace": CATALOG, "name": "s"}}}), &["Snapshot s (by spec)"])]
#[case::other_namespace("tenant-a", json!({}), json!({"source": {"pvc": {"namespace": "tenant-b", "name": "g"}}}), &[])]
#[case::import("tenant-a", json!({}), json!({"source": {"http": {"url": "https://example.org"}}}), &[])]
#[case::our_second_target(CATALOG, json!({}), json!({"source": {"pvc": {"name": "g"}}}), &["Claim g (by spec)"])]
#[case::unreadable("tenant-a", json!({}), json!({"source": {"pvc": {"namespace": CATALOG, "name": "g"}, "http": 1}}), &["Claim g (by its name in an unreadable spec)"])]
fn data_volumes(#[case] namespace: &str, #[case] meta: Value, #[case] spec: Value, #[case] expected: &[&str]) {
    let facts = object::<DataVolume>(namespace, meta, spec, json!({})).facts(CATALOG);
    assert_eq!(told(facts.as_ref()), expected);
    assert_eq!(facts.is_some(), !expected.is_empty(), "what names no golden is not kept");
}

#[rstest]
#[case("Succeeded", None, true)]
#[case("Succeeded", Some("True"), true)]
#[case::claim_deleted("Succeeded", Some("False"), false)]
#[case("CSICloneInProgress", Some("False"), false)]
#[case("PendingPopulation", None, false)]
#[case("Failed", None, true)]
#[case("", None, false)]
fn when_a_clone_has_ended(#[case] phase: &str, #[case] bound: Option<&str>, #[case] ended: bool) {
    let conditions: Vec<Value> = bound.map(|status| json!({"type": "Bound", "status": status})).into_iter().collect();
    let volume: DataVolume = object("tenant-a", json!({}), pvc("g"), json!({"phase": phase, "conditions": conditions}));
    assert_eq!(volume.facts(CATALOG).expect("kept").progress.has_ended, ended);
}

/// What counts is that it is there; what fills a claim from outside does not look at it, and an unreadable spec may be of that kind.
#[test]
fn cdi_is_told_that_a_disk_is_there() {
    let outside = json!({"pvc": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "namespace": CATALOG, "name": "g"}}});
    let odd = json!({"source": {"pvc": {"namespace": CATALOG, "name": "g"}, "http": 1}});
    let pointer = json!({"sourceRef": {"kind": "DataSource", "name": "d"}});
    let done =
        json!({"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-29T10:05:00Z"}]});
    for (spec, expected) in [(pvc("g"), true), (pointer, true), (outside, false), (odd, false)] {
        for value in ["o", ""] {
            let meta = json!({"annotations": {marks::CDI_PREPOPULATED: value}});
            let facts = object::<DataVolume>("tenant-a", meta, spec.clone(), done.clone()).facts(CATALOG).expect("kept");
            assert_eq!((facts.progress.is_prepopulated, facts.progress.filled.is_none()), (expected, expected), "{spec}");
        }
        let plain = object::<DataVolume>("tenant-a", json!({}), spec.clone(), done.clone()).facts(CATALOG).expect("kept");
        assert!(!plain.progress.is_prepopulated && plain.progress.filled.is_some(), "{spec}");
    }
}

#[test]
fn metadata_is_kept() {
    let meta = json!({"deletionTimestamp": "2026-11-29T11:00:00Z", "annotations": {marks::GOLDEN: "g", marks::POOL: "odd", marks::CDI_CLONE_TYPE: "copy"}});
    let facts = object::<DataVolume>("tenant-a", meta, pvc("g"), json!({})).facts(CATALOG).expect("kept");
    assert_eq!(facts.uid, parse_uid(UID));
    assert_eq!((facts.created, facts.is_terminating, facts.progress.copied.is_some()), (1_795_946_400, true, true));
    assert_eq!((facts.golden_mark.as_deref(), facts.pool_mark.as_deref(), facts.pool), (Some("g"), Some("odd"), PoolClue::Nothing));
}

#[rstest]
#[case::worker_by_annotation(json!({"annotations": {marks::POOL: "tenant-a/KubernetesNodes/demo-md0"}}), Some(PoolClue::Here(Pool::new("tenant-a", Pool::WORKERS, "demo-md0"))))]
#[case::disk_of_a_vm(json!({"ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "u"}]}), Some(PoolClue::Machine("vm".into())))]
#[case::another_vm_kind(json!({"ownerReferences": [{"apiVersion": "example.org/v1", "kind": "VirtualMachine", "name": "vm", "uid": "u"}]}), None)]
#[case::vm_disk(json!({"labels": {"app.kubernetes.io/instance": "vm-disk-a"}}), None)]
#[case::anything(json!({}), None)]
fn an_import_is_kept_only_where_its_class_may_freeze_a_pool(#[case] meta: Value, #[case] expected: Option<PoolClue>) {
    let facts =
        object::<DataVolume>("tenant-a", meta, json!({"source": {"http": {"url": "https://example.org"}}}), json!({})).facts(CATALOG);
    assert_eq!(facts.map(|facts| facts.pool), expected);
}

#[rstest]
#[case::marked(marked("g"), json!({}), Some(vec!["Claim g (by mark)"]))]
#[case::former_clone(json!({"annotations": {marks::CDI_CLONE_REQUEST: "cozy-public/g"}}), json!({}), Some(vec!["Claim g (by CDI's record)"]))]
#[case::former_clone_of_a_tenants(json!({"annotations": {marks::CDI_CLONE_REQUEST: "tenant-a/g"}}), json!({}), None)]
#[case::populated(json!({"annotations": {marks::CDI_SOURCE_NAMESPACE: CATALOG}}), json!({"dataSourceRef": {"apiGroup": "cdi.kubevirt.io", "kind": "VolumeCloneSource", "name": "volume-clone-source-1"}}), Some(vec!["CloneSource volume-clone-source-1 (by spec)"]))]
#[case::populated_from_elsewhere(json!({"annotations": {marks::CDI_SOURCE_NAMESPACE: "tenant-b"}}), json!({"dataSourceRef": {"kind": "VolumeCloneSource", "name": "v"}}), None)]
#[case::cross_namespace(json!({}), json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "namespace": CATALOG, "name": "g"}}), Some(vec!["Claim g (by spec)"]))]
#[case::own_source(json!({}), json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "g"}}), None)]
#[case::of_a_vm(json!({"labels": {marks::KUBEVIRT_CREATED_BY: "u"}}), json!({}), Some(vec![]))]
#[case::any_other(json!({}), json!({"storageClassName": "replicated"}), None)]
#[case::owned_by_another(json!({"ownerReferences": [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "d", "uid": "u", "controller": true}], "annotations": {marks::GOLDEN: "g"}}), json!({}), Some(vec!["Claim g (by mark)"]))]
fn claims(#[case] meta: Value, #[case] spec: Value, #[case] expected: Option<Vec<&str>>) {
    let facts = object::<Claim>("tenant-a", meta, spec, json!({})).facts(CATALOG);
    assert_eq!(facts.is_some(), expected.is_some());
    assert_eq!(told(facts.as_ref()), expected.unwrap_or_default());
}

/// CDI's temporaries in the catalog namespace carry the tenant's labels and annotations.
#[rstest]
#[case(json!({"name": "tmp-pvc-1", "annotations": {marks::GOLDEN: "g"}}))]
#[case(json!({"name": "prime-1", "annotations": {marks::GOLDEN: "g"}}))]
#[case(json!({"labels": {marks::CDI_OWNED_BY: "u"}, "annotations": {marks::GOLDEN: "g"}}))]
#[case(json!({"ownerReferences": [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "d", "uid": "u", "controller": true}], "annotations": {marks::GOLDEN: "g"}}))]
fn temporaries_never_count(#[case] meta: Value) {
    assert_eq!(object::<Claim>(CATALOG, meta.clone(), json!({}), json!({})).facts(CATALOG), None);
    let snapshot = object::<VolumeSnapshot>(CATALOG, meta.clone(), json!({"source": {"persistentVolumeClaimName": "g"}}), json!({}));
    assert_eq!(snapshot.facts(CATALOG), None);
    assert!(object::<Claim>("tenant-a", meta, json!({}), json!({})).facts(CATALOG).is_some(), "a tenant cannot hide a disk");
}

#[test]
fn a_claims_volume() {
    let meta = json!({"annotations": {marks::GOLDEN: "g", "volume.kubernetes.io/storage-provisioner": "linstor.csi.linbit.com"}});
    let claim = |class: Value, phase: &str| {
        object::<Claim>("tenant-a", meta.clone(), json!({"storageClassName": class}), json!({"phase": phase})).facts(CATALOG).expect("kept")
    };
    let bound = claim(json!("replicated"), "Bound");
    assert_eq!((bound.class.as_deref(), bound.driver.as_deref()), (Some("replicated"), Some("linstor.csi.linbit.com")));
    assert!(bound.progress.is_bound && !bound.progress.is_lost && !bound.progress.has_ended);
    let lost = claim(json!(""), "Lost");
    assert!(lost.progress.is_lost && !lost.progress.is_bound && lost.class.is_none());
}

#[test]
fn snapshots_and_records_count_in_the_catalog_only() {
    let snapshot = |namespace| {
        object::<VolumeSnapshot>(namespace, json!({}), json!({"source": {"persistentVolumeClaimName": "g"}}), json!({})).facts(CATALOG)
    };
    assert_eq!(told(snapshot(CATALOG).as_ref()), ["Claim g (by spec)"]);
    assert_eq!(snapshot("tenant-a"), None);
    let record = |namespace, kind: &str| {
        object::<VolumeCloneSource>(namespace, json!({}), json!({"source": {"kind": kind, "name": "g"}}), json!({})).facts(CATALOG)
    };
    assert_eq!(told(record(CATALOG, "PersistentVolumeClaim").as_ref()), ["Claim g (by CDI's record)"]);
    assert_eq!(told(record(CATALOG, "VolumeSnapshot").as_ref()), ["Snapshot g (by CDI's record)"]);
    assert_eq!(record("tenant-a", "PersistentVolumeClaim"), None);
}

#[rstest]
#[case("tenant-a", json!({"pvc": {"namespace": CATALOG, "name": "g"}}), &["Claim g (by spec)"])]
#[case(CATALOG, json!({"pvc": {"name": "g"}}), &["Claim g (by spec)"])]
#[case("tenant-a", json!({"dataSource": {"namespace": CATALOG, "name": "d"}}), &["DataSource cozy-public/d (by DataSource)"])]
#[case("tenant-a", json!({"pvc": {"namespace": "tenant-a", "name": "g"}}), &[])]
#[case("tenant-a", json!({}), &[])]
fn data_sources(#[case] namespace: &str, #[case] source: Value, #[case] expected: &[&str]) {
    let facts = object::<DataSource>(namespace, json!({}), json!({"source": source}), json!({})).facts(CATALOG);
    assert_eq!(told(facts.as_ref()), expected);
}

const DIGEST: &str = "sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";

#[rstest]
#[case::arm(json!({"reference": format!("r.example/w@{DIGEST}"), "architecture": "arm64"}), Some("2ae5d0d484384e8188b4fd6dbb1236c7ee65ca9a"))]
#[case::amd_by_default(json!({"reference": format!("another.example:5000/x:1.0@{DIGEST}")}), Some("any"))]
#[case::unpinned(json!({"reference": "r.example/w:1.0"}), None)]
#[case::odd_architecture(json!({"reference": format!("r.example/w@{DIGEST}"), "architecture": "riscv64"}), None)]
#[case::none(json!({"kubernetesVersion": "v1.35.6"}), None)]
fn worker_classes_by_identity(#[case] image: Value, #[case] expected: Option<&str>) {
    let class = object::<WorkerClass>("", json!({}), json!({"bootstrap": "kairos", "image": image}), json!({}));
    let identity = class_identity(&class);
    assert_eq!(identity.is_some(), expected.is_some());
    if let (Some(identity), Some(full)) = (&identity, expected.filter(|text| text.len() == 40)) {
        assert_eq!(identity.as_str(), full);
    }
    assert_eq!(told(class.facts(CATALOG).as_ref()).len(), usize::from(expected.is_some()));
}

fn machine(labels: Value, disks: Value) -> Value {
    json!({"dataVolumeTemplates": disks, "runStrategy": "Halted", "template": {"metadata": {"labels": labels}}})
}

fn worker_labels() -> Value {
    json!({"cluster.x-k8s.io/deployment-name": "kubernetes-demo-md0", "apps.cozystack.io/application.kind": "Kubernetes", "apps.cozystack.io/application.name": "demo"})
}

#[test]
fn virtual_machines() {
    let disk = |name: &str| json!({"metadata": {"name": "disk"}, "spec": pvc(name)});
    let ask = |namespace, spec| object::<VirtualMachine>(namespace, json!({}), spec, json!({})).facts(CATALOG);
    let stopped = ask("tenant-a", machine(json!({}), json!([disk("g"), disk("h"), {"spec": {"source": {"blank": {}}}}])))
        .expect("stopped ones count");
    assert_eq!(
        (told(Some(&stopped)), stopped.pool),
        (vec!["Claim g (by spec)".to_owned(), "Claim h (by spec)".to_owned()], PoolClue::Nothing)
    );
    let worker = ask("tenant-a", machine(worker_labels(), json!([{"spec": {"source": {"http": {"url": "https://example.org"}}}}])))
        .expect("belongs to a pool");
    assert_eq!((told(Some(&worker)).len(), worker.pool), (0, PoolClue::Here(Pool::new("tenant-a", Pool::WORKERS, "demo-md0"))));
    assert_eq!(ask("tenant-a", machine(json!({}), json!([]))), None);
    let odd = ask(
        "tenant-a",
        machine(json!({}), json!([disk("g"), {"spec": {"source": {"pvc": {"namespace": CATALOG, "name": "h"}, "http": 1}}}])),
    )
    .expect("kept");
    assert_eq!(told(Some(&odd)), ["Claim g (by spec)", "Claim h (by its name in an unreadable spec)"]);
    let volumes = json!({"template": {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "g"}}, {"dataVolume": {"name": "h"}}, {"containerDisk": {}}]}}});
    assert_eq!(
        told(ask(CATALOG, volumes.clone()).as_ref()),
        ["Claim g (by spec)", "Claim h (by spec)"],
        "a VM that boots the golden itself"
    );
    assert_eq!(ask("tenant-a", volumes), None);
}

#[rstest]
#[case::stated(json!({"storageClassName": "replicated"}), None, Some("replicated"), false)]
#[case::recorded(json!({}), Some("local"), Some("local"), false)]
#[case::stated_wins(json!({"storageClassName": "replicated"}), Some("local"), Some("replicated"), false)]
#[case::neither(json!({"storageClassName": ""}), None, None, true)]
fn machine_templates(#[case] storage: Value, #[case] recorded: Option<&str>, #[case] class: Option<&str>, #[case] lacks: bool) {
    let mut spec = pvc("g");
    spec["storage"] = storage;
    let disks = json!([{"metadata": {"name": "data"}, "spec": {"source": {"blank": {}}, "storage": {"storageClassName": "other"}}}, {"metadata": {"name": "system"}, "spec": spec}]);
    let template = json!({"template": {"spec": {"virtualMachineTemplate": {"metadata": {"namespace": "tenant-a"}, "spec": machine(worker_labels(), disks)}}}});
    let meta = recorded.map_or(json!({}), |class| json!({"annotations": {marks::STORAGE_CLASS: class}}));
    let facts = object::<KubevirtMachineTemplate>("tenant-a", meta, template, json!({})).facts(CATALOG).expect("kept");
    assert_eq!(
        (told(Some(&facts)), &facts.pool),
        (vec!["Claim g (by spec)".to_owned()], &PoolClue::Here(Pool::new("tenant-a", Pool::WORKERS, "demo-md0")))
    );
    assert_eq!((facts.class.as_deref(), facts.lacks_class), (class, lacks));
}

#[test]
fn what_holds_machine_templates() {
    let spec = |kind: &str| json!({"template": {"spec": {"infrastructureRef": {"kind": kind, "name": "t"}}}});
    let deployment =
        object::<MachineDeployment>("tenant-a", json!({"name": "kubernetes-demo-md0"}), spec("KubevirtMachineTemplate"), json!({}))
            .facts(CATALOG)
            .expect("kept");
    assert_eq!(
        (told(Some(&deployment)), deployment.pool),
        (vec!["Template tenant-a/t (by spec)".to_owned()], PoolClue::Here(Pool::new("tenant-a", Pool::WORKERS, "demo-md0")))
    );
    let other = object::<MachineDeployment>("tenant-a", json!({}), spec("ProxmoxMachineTemplate"), json!({})).facts(CATALOG).expect("kept");
    assert!(other.references.is_empty());
    for meta in [
        json!({"labels": {"cluster.x-k8s.io/deployment-name": "kubernetes-demo-md0"}}),
        json!({"ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "MachineDeployment", "name": "kubernetes-demo-md0", "uid": "u", "controller": true}]}),
    ] {
        let set = object::<MachineSet>("tenant-a", meta, spec("KubevirtMachineTemplate"), json!({})).facts(CATALOG).expect("kept");
        assert_eq!(set.pool, PoolClue::Here(Pool::new("tenant-a", Pool::WORKERS, "demo-md0")));
    }
}

/// As another version of a CRD may have stored them: what says the catalog and not what of it counts for every golden; what does not say it
/// counts for none.
#[test]
fn what_cannot_be_read_is_never_taken_for_none() {
    let odd = json!({"source": {"pvc": {"namespace": CATALOG, "name": ["g"]}}});
    let unknown = "Anything (not known: it cannot be read)";
    let volume = object::<DataVolume>("tenant-a", json!({}), odd.clone(), json!({})).facts(CATALOG);
    assert_eq!(told(volume.as_ref()), [unknown]);
    let machine_of = |disks: Value| object::<VirtualMachine>("tenant-a", json!({}), machine(json!({}), disks), json!({})).facts(CATALOG);
    assert_eq!(told(machine_of(json!([{"spec": odd}, {"spec": pvc("h")}])).as_ref()), [unknown, "Claim h (by spec)"]);
    assert_eq!(machine_of(json!("none")), None, "names nothing of the catalog");
    let template = json!({"template": {"spec": {"virtualMachineTemplate": {"spec": machine(json!({}), json!([{"spec": odd}]))}}}});
    let template = object::<KubevirtMachineTemplate>("tenant-a", json!({}), template, json!({})).facts(CATALOG);
    assert_eq!(told(template.as_ref()), [unknown]);
    let booted = json!({"template": {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": ["g"]}}]}}});
    assert_eq!(told(object::<VirtualMachine>(CATALOG, json!({}), booted, json!({})).facts(CATALOG).as_ref()), [unknown]);
    let deployment = json!({"template": {"spec": {"infrastructureRef": {"kind": "KubevirtMachineTemplate", "name": 7}}}});
    let deployment = object::<MachineDeployment>("tenant-a", json!({"name": "kubernetes-demo-md0"}), deployment, json!({})).facts(CATALOG);
    assert_eq!(told(deployment.as_ref()), [unknown]);
    let snapshot = json!({"source": {"persistentVolumeClaimName": ["g"]}});
    assert_eq!(told(object::<VolumeSnapshot>(CATALOG, json!({}), snapshot.clone(), json!({})).facts(CATALOG).as_ref()), [unknown]);
    assert_eq!(object::<VolumeSnapshot>("tenant-a", json!({}), snapshot, json!({})).facts(CATALOG), None);
    let record = json!({"source": {"kind": "PersistentVolumeClaim", "name": 7}});
    assert_eq!(told(object::<VolumeCloneSource>(CATALOG, json!({}), record, json!({})).facts(CATALOG).as_ref()), [unknown]);
    let class = object::<WorkerClass>("", json!({}), json!({"image": {"reference": 7}}), json!({}));
    assert_eq!(told(class.facts(CATALOG).as_ref()), [unknown]);
    let populated = json!({"annotations": {marks::CDI_SOURCE_NAMESPACE: CATALOG}});
    let populated = object::<Claim>("tenant-a", populated, json!({"dataSourceRef": {"name": 7}}), json!({})).facts(CATALOG);
    assert_eq!(told(populated.as_ref()), [unknown]);
}
