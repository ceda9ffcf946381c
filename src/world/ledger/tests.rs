use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::{
    foreign::{
        Claim, DataSource, DataVolume, KubevirtMachineTemplate, MachineDeployment, MachineSet, VirtualMachine, VolumeCloneSource,
        VolumeSnapshot, WorkerClass,
    },
    model::Identity,
    rules::{
        class::{ClassFacts, Classes},
        clone::{PoolFacts, Source},
        consumers::{ConsumerKind, Consumers, Evidence},
        freeze::{FrozenBy, PoolClass},
        marks,
        pool::Pool,
    },
};

pub(super) const CATALOG: &str = "cozy-public";
/// 2026-11-29T12:00:00Z, two hours after every object of [`object`] was created.
pub(super) const NOW: i64 = 1_795_953_600;

pub(super) fn synced() -> Ledger {
    let mut ledger = Ledger::new(CATALOG);
    for kind in Kind::ALL {
        ledger.begin(kind);
        ledger.commit(kind);
    }
    ledger
}

fn object<K: DeserializeOwned>(path: &str, meta: Value, spec: Value, status: Value) -> K {
    let (namespace, name) = path.split_once('/').expect("namespace/name");
    let mut metadata = json!({"namespace": namespace, "name": name, "creationTimestamp": "2026-11-29T10:00:00Z"});
    metadata.as_object_mut().expect("object").extend(meta.as_object().expect("object").clone());
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).expect("an object")
}

fn volume(path: &str, meta: Value, source: Value, phase: &str) -> DataVolume {
    object(path, meta, source, json!({"phase": phase}))
}

fn claim(path: &str, meta: Value, class: &str, phase: &str) -> Claim {
    object(path, meta, json!({"storageClassName": class}), json!({"phase": phase}))
}

fn from_golden(name: &str) -> Value {
    json!({"source": {"pvc": {"namespace": CATALOG, "name": name}}})
}

fn by_pointer(name: &str) -> Value {
    json!({"sourceRef": {"kind": "DataSource", "name": name}})
}

fn marked(golden: &str) -> Value {
    json!({"annotations": {marks::GOLDEN: golden}})
}

fn owned_by(vm: &str) -> Value {
    json!({"ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": vm, "uid": "u", "controller": true}]})
}

fn worker_labels() -> Value {
    json!({"cluster.x-k8s.io/deployment-name": "kubernetes-demo-md0"})
}

fn machine_spec(golden: &str) -> Value {
    json!({"dataVolumeTemplates": [{"metadata": {"name": "system"}, "spec": from_golden(golden)}], "template": {"metadata": {"labels": worker_labels()}}})
}

fn machine_template(path: &str, golden: &str, created: &str) -> KubevirtMachineTemplate {
    let mut spec = machine_spec(golden);
    spec["template"] = json!({});
    object(
        path,
        json!({"creationTimestamp": created}),
        json!({"template": {"spec": {"virtualMachineTemplate": {"spec": spec}}}}),
        json!({}),
    )
}

fn names_template(name: &str) -> Value {
    json!({"template": {"spec": {"infrastructureRef": {"kind": "KubevirtMachineTemplate", "name": name}}}})
}

pub(super) fn classes() -> Classes {
    let class = |name: &str, provisioner: &str| {
        (name.to_owned(), ClassFacts { name: name.into(), provisioner: provisioner.into(), ..ClassFacts::default() })
    };
    [class("zfs", "linstor.csi.linbit.com"), class("thin", "topolvm.io")].into()
}

/// `Kind namespace/name of pool (evidence): why it blocks or -`, in order.
fn told(ledger: &Ledger, golden: GoldenKey<'_>) -> Vec<String> {
    let (classes, independent) = (classes(), BTreeSet::new());
    let consumers = ledger.consumers(golden, Storage { classes: &classes, independent: &independent, now: NOW }).expect("known");
    lines(&consumers)
}

pub(super) fn lines(consumers: &Consumers) -> Vec<String> {
    let line = |c: &crate::rules::consumers::Consumer| {
        let why = c.blocks().map_or_else(|| "-".to_owned(), |why| format!("{why:?}"));
        format!("{} {}/{} of {} ({}): {why}", c.kind.as_str(), c.namespace, c.name, c.pool, c.evidence)
    };
    consumers.iter().map(line).collect()
}

fn of(ledger: &Ledger, golden: &str) -> Vec<String> {
    told(ledger, GoldenKey::named(golden))
}

#[test]
fn a_disk_is_one_consumer_until_its_last_object_goes() {
    let mut ledger = synced();
    ledger.observe(&volume("tenant-a/d", json!({}), from_golden("g"), "CSICloneInProgress"));
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by spec): CloneRunning"]);
    ledger.observe(&volume("tenant-a/d", json!({}), from_golden("g"), "Succeeded"));
    ledger.observe(&claim("tenant-a/d", marked("g"), "thin", "Bound"));
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by spec): -"]);
    assert_eq!(of(&ledger, "h"), Vec::<String>::new());
    // B29: deleted with --cascade=orphan, the claim alone still counts.
    ledger.delete(Kind::DataVolume, "tenant-a", "d");
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by mark): -"]);
    ledger.delete(Kind::Claim, "tenant-a", "d");
    assert!(of(&ledger, "g").is_empty() && ledger.is_empty());
    assert_eq!(ledger.names(), 0, "nothing outlives its objects");
}

#[test]
fn dependence_comes_from_the_claims_driver_or_class() {
    let mut ledger = synced();
    ledger.observe(&volume("tenant-a/d", json!({}), from_golden("g"), "Succeeded"));
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by spec): MayDepend"], "a claim that was not seen is not taken to be free");
    ledger.observe(&claim("tenant-a/d", marked("g"), "zfs", "Bound"));
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by spec): Depends"]);
    let driver = json!({"annotations": {marks::GOLDEN: "g", "volume.kubernetes.io/storage-provisioner": "topolvm.io"}});
    ledger.observe(&claim("tenant-a/d", driver.clone(), "gone", "Bound"));
    assert_eq!(
        of(&ledger, "g"),
        ["Disk tenant-a/d of unknown (by spec): MayDepend"],
        "the driver recorded on a claim is whatever was written there"
    );
    ledger.observe(&claim("tenant-a/d", driver.clone(), "thin", "Bound"));
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by spec): -"]);
    ledger.observe(&claim("tenant-a/d", driver, "zfs", "Bound"));
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by spec): MayDepend"], "a mark takes no consumer away");
}

/// R22: that a clone was copied over the network is an annotation, which a tenant may write on a finished clone at any time.
#[test]
fn a_copy_is_believed_where_storage_could_not_have_cloned() {
    let golden = |class: &str, mode: &str| {
        let spec = json!({"storageClassName": class, "volumeMode": mode});
        object::<Claim>("cozy-public/g", json!({"labels": {marks::GOLDEN: "true"}}), spec, json!({"phase": "Bound"}))
    };
    let copied = json!({"annotations": {marks::GOLDEN: "g", marks::CDI_CLONE_TYPE: "copy"}});
    let told = |told: &str| format!("Disk tenant-a/d of unknown (by spec): {told}");
    let mut ledger = synced();
    for (on_volume, on_claim) in [(json!({}), copied.clone()), (copied.clone(), marked("g")), (copied.clone(), copied)] {
        ledger.delete(Kind::Claim, CATALOG, "g");
        ledger.observe(&volume("tenant-a/d", on_volume, from_golden("g"), "Succeeded"));
        ledger.observe(&claim("tenant-a/d", on_claim, "zfs", "Bound"));
        assert_eq!(of(&ledger, "g"), [told("-")], "nothing of the golden is left to be lost");
        ledger.observe(&golden("zfs", "Filesystem"));
        assert_eq!(of(&ledger, "g"), [told("MayBeNoCopy")]);
        ledger.observe(&golden("gone", "Filesystem"));
        assert_eq!(of(&ledger, "g"), [told("MayBeNoCopy")]);
        ledger.observe(&golden("thin", "Filesystem"));
        assert_eq!(of(&ledger, "g"), [told("-")], "another driver");
        ledger.observe(&golden("zfs", "Block"));
        assert_eq!(of(&ledger, "g"), [told("-")], "another volume mode");
    }
}

/// R22: nor does an owner that a tenant writes on it.
#[test]
fn an_orphaned_disk_counts_whoever_is_said_to_own_it() {
    let mut ledger = synced();
    let owner = json!([{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "d", "uid": "u", "controller": true}]);
    let meta = json!({"annotations": {marks::GOLDEN: "g"}, "ownerReferences": owner});
    ledger.observe(&claim("tenant-a/orphan", meta, "zfs", "Bound"));
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/orphan of unknown (by mark): Depends"]);
}

/// B24, kubernetes#80475: delete and create under one name arrive as one update.
#[test]
fn b24_made_anew_from_another_golden() {
    let mut ledger = synced();
    ledger.observe(&volume("tenant-a/d", json!({}), from_golden("g"), ""));
    ledger.observe(&volume("tenant-a/d", json!({}), from_golden("h"), ""));
    assert!(of(&ledger, "g").is_empty());
    assert_eq!(of(&ledger, "h").len(), 1);
    ledger.observe(&volume("tenant-a/d", json!({}), json!({"source": {"blank": {}}}), ""));
    assert!(of(&ledger, "h").is_empty() && ledger.is_empty(), "what names no golden any more is not kept");
}

#[test]
fn a_mark_adds_a_consumer_but_never_against_a_spec() {
    let mut ledger = synced();
    ledger.observe(&volume("tenant-a/d", marked("g"), from_golden("h"), "Succeeded"));
    ledger.observe(&claim("tenant-a/d", marked("g"), "thin", "Bound"));
    assert!(of(&ledger, "g").is_empty(), "the spec says otherwise");
    assert_eq!(of(&ledger, "h"), ["Disk tenant-a/d of unknown (by spec): -"]);
    ledger.delete(Kind::DataVolume, "tenant-a", "d");
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by mark): -"]);
}

#[test]
fn chains_snapshots_and_records_lead_to_the_golden_in_any_order() {
    let mut ledger = synced();
    ledger.observe(&volume("tenant-a/by-pointer", json!({}), by_pointer("p"), ""));
    ledger.observe(&volume("tenant-a/by-snapshot", json!({}), json!({"source": {"snapshot": {"namespace": CATALOG, "name": "s"}}}), ""));
    ledger.observe(&claim("tenant-a/by-record", json!({"annotations": {marks::CDI_SOURCE_NAMESPACE: CATALOG}}), "thin", "Pending"));
    assert!(of(&ledger, "g").is_empty());
    ledger.observe(&object::<DataSource>(
        "tenant-a/p",
        json!({}),
        json!({"source": {"dataSource": {"namespace": "tenant-b", "name": "q"}}}),
        json!({}),
    ));
    ledger.observe(&object::<DataSource>(
        "tenant-b/q",
        json!({}),
        json!({"source": {"snapshot": {"namespace": CATALOG, "name": "s"}}}),
        json!({}),
    ));
    ledger.observe(&object::<VolumeSnapshot>("cozy-public/s", json!({}), json!({"source": {"persistentVolumeClaimName": "g"}}), json!({})));
    assert_eq!(
        of(&ledger, "g"),
        [
            "Disk tenant-a/by-pointer of unknown (by DataSource): CloneRunning",
            "Disk tenant-a/by-snapshot of unknown (by spec): CloneRunning",
            "VolumeSnapshot cozy-public/s of unknown (by spec): MayDepend",
            "DataSource tenant-a/p of unknown (by DataSource): -",
            "DataSource tenant-b/q of unknown (by spec): -",
        ]
    );
    assert_eq!(ledger.data_source("tenant-a", "p"), Ok(Chain::Catalog(Source::Snapshot("s".into()))));
    assert_eq!(ledger.snapshot_source("s"), Ok(Some("g".to_owned())));
    ledger.delete(Kind::Snapshot, CATALOG, "s");
    assert!(of(&ledger, "g").is_empty());
    assert_eq!(ledger.snapshot_source("s"), Ok(None));
}

#[test]
fn a_circle_of_data_sources_ends() {
    let mut ledger = synced();
    let points = |path: &str, namespace: &str, name: &str| {
        object::<DataSource>(path, json!({}), json!({"source": {"dataSource": {"namespace": namespace, "name": name}}}), json!({}))
    };
    ledger.observe(&points("tenant-a/p", "tenant-b", "q"));
    ledger.observe(&points("tenant-b/q", "tenant-a", "p"));
    ledger.observe(&points("tenant-c/self", "tenant-c", "self"));
    ledger.observe(&volume("tenant-a/d", json!({}), by_pointer("p"), ""));
    assert_eq!(ledger.data_source("tenant-a", "p"), Ok(Chain::Elsewhere));
    assert_eq!(ledger.data_source("tenant-c", "self"), Ok(Chain::Elsewhere));
    assert!(of(&ledger, "g").is_empty() && of(&ledger, "p").is_empty());
    assert_eq!(ledger.mark_repairs(Walk::default(), 10).expect("known").0, []);
}

#[test]
fn a_clone_in_flight_counts_once() {
    let mut ledger = synced();
    let uid = "0d2e6a1b-4c5f-4e1a-9b7c-00112233aabb";
    let record = object::<VolumeCloneSource>(
        &format!("cozy-public/volume-clone-source-{uid}"),
        json!({}),
        json!({"source": {"kind": "PersistentVolumeClaim", "name": "g"}}),
        json!({}),
    );
    ledger.observe(&record);
    assert_eq!(
        of(&ledger, "g"),
        [format!("VolumeCloneSource cozy-public/volume-clone-source-{uid} of unknown (by CDI's record): CloneRunning")]
    );
    ledger.observe(&volume("tenant-a/d", json!({"uid": uid}), from_golden("g"), "CSICloneInProgress"));
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by spec): CloneRunning"]);
}

/// B28.
#[test]
fn b28_terminating_consumers() {
    let mut ledger = synced();
    let going = json!({"deletionTimestamp": "2026-11-29T11:00:00Z"});
    ledger.observe(&volume("tenant-a/d", going.clone(), from_golden("g"), "CSICloneInProgress"));
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by spec): OnlyWaiting"]);
    ledger.observe(&volume("tenant-a/d", going.clone(), from_golden("g"), "Succeeded"));
    assert!(of(&ledger, "g").is_empty());
    let mut going_claim = marked("g");
    ledger.observe(&claim("tenant-a/d", going_claim.clone(), "zfs", "Bound"));
    assert_eq!(of(&ledger, "g").len(), 1, "its claim may be orphaned");
    going_claim["deletionTimestamp"] = going["deletionTimestamp"].clone();
    ledger.observe(&claim("tenant-a/d", going_claim, "zfs", "Bound"));
    assert!(of(&ledger, "g").is_empty());
}

#[test]
fn stopped_vms_templates_and_classes_block() {
    let mut ledger = synced();
    let mut spec = machine_spec("g");
    spec["runStrategy"] = json!("Halted");
    spec["template"] = json!({});
    ledger.observe(&object::<VirtualMachine>("tenant-a/vm", json!({}), spec, json!({})));
    let digest = "sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";
    let class = json!({"bootstrap": "kairos", "image": {"reference": format!("r.example/w@{digest}"), "architecture": "arm64"}});
    ledger.observe(&object::<WorkerClass>("/kairos-r1", json!({"namespace": null}), class, json!({})));
    let identity: Identity = "2ae5d0d484384e8188b4fd6dbb1236c7ee65ca9a".parse().expect("identity");
    let key = GoldenKey { name: "g", identity: Some(&identity) };
    assert_eq!(
        told(&ledger, key),
        [
            "VirtualMachine tenant-a/vm of tenant-a/VirtualMachine/vm (by spec): MakesDisks",
            "WorkerClass /kairos-r1 of unknown (by identity): IsChosen",
        ]
    );
    assert_eq!(told(&ledger, GoldenKey { name: "other", identity: Some(&identity) }).len(), 1);
    ledger.delete(Kind::WorkerClass, "", "kairos-r1");
    assert_eq!(told(&ledger, key).len(), 1);
}

/// A pool scaled to zero has no disk at all: its template is all there is, and old templates live on in MachineSets.
#[test]
fn templates_live_through_their_holders() {
    let mut ledger = synced();
    ledger.observe(&machine_template("tenant-a/t1", "g", "2026-11-29T10:00:00Z"));
    assert_eq!(of(&ledger, "g"), ["KubevirtMachineTemplate tenant-a/t1 of unknown (by spec): -"], "held by nothing and two hours old");
    ledger.observe(&machine_template("tenant-a/t1", "g", "2026-11-29T11:30:00Z"));
    assert_eq!(
        of(&ledger, "g"),
        ["KubevirtMachineTemplate tenant-a/t1 of unknown (by spec): MakesMachines"],
        "new: its MachineDeployment may be on the way"
    );
    ledger.observe(&machine_template("tenant-a/t1", "g", "2026-11-29T10:00:00Z"));
    ledger.observe(&object::<MachineDeployment>("tenant-a/kubernetes-demo-md0", json!({}), names_template("t2"), json!({})));
    let set = json!({"labels": worker_labels()});
    ledger.observe(&object::<MachineSet>("tenant-a/kubernetes-demo-md0-old", set, names_template("t1"), json!({})));
    assert_eq!(of(&ledger, "g"), ["KubevirtMachineTemplate tenant-a/t1 of tenant-a/KubernetesNodes/demo-md0 (by spec): MakesMachines"]);
    ledger.delete(Kind::MachineSet, "tenant-a", "kubernetes-demo-md0-old");
    assert_eq!(of(&ledger, "g"), ["KubevirtMachineTemplate tenant-a/t1 of unknown (by spec): -"]);
}

#[test]
fn a_pool_is_found_through_vm_and_claim() {
    let mut ledger = synced();
    ledger.observe(&claim("tenant-a/d", marked("g"), "thin", "Bound"));
    ledger.observe(&volume("tenant-a/d", owned_by("vm"), from_golden("g"), "Succeeded"));
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by spec): -"], "the VM is not known yet");
    let clue = PoolClue::Machine("vm".into());
    assert_eq!(ledger.pool("tenant-a", &clue), Ok(Pool::Unknown));
    ledger.observe(&object::<VirtualMachine>("tenant-a/vm", json!({}), machine_spec("g"), json!({})));
    let pool = Pool::new("tenant-a", Pool::WORKERS, "demo-md0");
    assert_eq!(ledger.pool("tenant-a", &clue), Ok(pool.clone()));
    let all = of(&ledger, "g");
    assert!(all.len() == 2 && all.iter().all(|line| line.contains("of tenant-a/KubernetesNodes/demo-md0")), "{all:?}");
    assert_eq!(ledger.pool("tenant-b", &clue), Ok(Pool::Unknown), "another namespace's VM");
    let facts = ledger.pool_facts(&pool, "g").expect("known");
    assert_eq!(facts, PoolFacts { class: Some(PoolClass { class: "thin".into(), by: FrozenBy::Disks }), uses_golden: true });
    assert!(!ledger.pool_facts(&pool, "h").expect("known").uses_golden);
}

/// R15 for pools of every age.
#[test]
fn r15_a_pools_class() {
    let pool = Pool::new("tenant-a", Pool::WORKERS, "demo-md0");
    let class = |ledger: &Ledger| ledger.pool_facts(&pool, "g").expect("known").class.map(|class| (class.class, class.by));
    let mut ledger = synced();
    assert_eq!(class(&ledger), None);
    let template = |class: Value, created: &str| {
        let mut spec = machine_spec("g");
        spec["dataVolumeTemplates"][0]["spec"]["storage"] = json!({"storageClassName": class});
        object::<KubevirtMachineTemplate>(
            "tenant-a/t",
            json!({"creationTimestamp": created}),
            json!({"template": {"spec": {"virtualMachineTemplate": {"spec": spec}}}}),
            json!({}),
        )
    };
    ledger.observe(&template(json!("zfs"), "2026-11-29T10:00:00Z"));
    assert_eq!(class(&ledger), Some(("zfs".into(), FrozenBy::Template)), "scaled to zero");
    let disk = |name: &str, class: &str, created: &str| {
        let meta =
            json!({"creationTimestamp": created, "annotations": {marks::GOLDEN: "g", marks::POOL: "tenant-a/KubernetesNodes/demo-md0"}});
        claim(&format!("tenant-a/{name}"), meta, class, "Bound")
    };
    ledger.observe(&disk("d1", "thin", "2026-11-29T10:00:00Z"));
    assert_eq!(class(&ledger), Some(("thin".into(), FrozenBy::Disks)), "its disks go before its template");
    ledger.observe(&disk("d2", "zfs", "2026-11-29T10:00:01Z"));
    assert_eq!(class(&ledger), Some(("zfs".into(), FrozenBy::NewestDisk)));
    // A worker pool that imported so far: disks without golden, found through their VM.
    let mut ledger = synced();
    ledger.observe(&object::<VirtualMachine>("tenant-a/vm", json!({}), machine_spec("g"), json!({})));
    ledger.observe(&volume("tenant-a/d", owned_by("vm"), json!({"source": {"http": {"url": "https://example.org"}}}), "Succeeded"));
    ledger.observe(&claim("tenant-a/d", json!({"labels": {marks::KUBEVIRT_CREATED_BY: "u"}}), "thin", "Bound"));
    assert_eq!(class(&ledger), Some(("thin".into(), FrozenBy::Disks)));
    assert_eq!(of(&ledger, "g").len(), 1, "an import is no consumer: {:?}", of(&ledger, "g"));
    ledger.observe(&object::<MachineDeployment>("tenant-a/kubernetes-demo-md0", json!({}), names_template("t"), json!({})));
    assert_eq!(ledger.pool_facts(&Pool::Unknown, "g"), Ok(PoolFacts::default()));
}

#[test]
fn a_vm_that_is_its_own_pool_uses_its_golden() {
    let mut ledger = synced();
    let mut spec = machine_spec("g");
    spec["template"] = json!({});
    ledger.observe(&object::<VirtualMachine>("tenant-a/vm", json!({}), spec, json!({})));
    let pool = Pool::new("tenant-a", Pool::VIRTUAL_MACHINE, "vm");
    assert!(ledger.pool_facts(&pool, "g").expect("known").uses_golden);
    assert!(!ledger.pool_facts(&Pool::new("tenant-a", Pool::VIRTUAL_MACHINE, "other"), "g").expect("known").uses_golden);
}

/// R23: what opens a retiring golden to a pool is what was judged when it was asked for; marks and records are whatever a tenant writes.
#[test]
fn r23_what_proves_that_a_pool_uses_a_golden() {
    let pool = Pool::new("tenant-a", Pool::WORKERS, "x");
    let noted = |key: &str, value: &str| json!({"annotations": {marks::POOL: pool.to_string(), key: value}});
    let pointer = |path: &str, spec: Value| object::<DataSource>(path, json!({}), json!({"source": spec}), json!({}));
    let to = |golden: &str| json!({"pvc": {"namespace": CATALOG, "name": golden}});
    let by_another = || {
        let mut ledger = synced();
        ledger.observe(&pointer("tenant-a/ds", to("g")));
        ledger.observe(&pointer("tenant-a/ds2", json!({"dataSource": {"namespace": "tenant-a", "name": "ds"}})));
        ledger.observe(&object::<VolumeCloneSource>(
            &format!("{CATALOG}/in-flight"),
            json!({}),
            json!({"source": {"kind": "PersistentVolumeClaim", "name": "g"}}),
            json!({}),
        ));
        ledger
    };
    let uses = |ledger: &Ledger, pool: &Pool| ledger.pool_facts(pool, "g").expect("known").uses_golden;
    let with = |observe: &dyn Fn(&mut Ledger)| {
        let mut ledger = by_another();
        assert!(!uses(&ledger, &pool));
        observe(&mut ledger);
        uses(&ledger, &pool)
    };
    let blank = json!({"source": {"blank": {}}});
    let recorded = || {
        let meta = noted(marks::CDI_SOURCE_NAMESPACE, CATALOG);
        let spec = json!({"storageClassName": "thin", "dataSourceRef": {"kind": "VolumeCloneSource", "name": "in-flight"}});
        object::<Claim>("tenant-a/d", meta, spec, json!({"phase": "Bound"}))
    };
    // By a spec, straight or by pointers, and where the mark agrees.
    assert!(with(&|ledger| ledger.observe(&volume("tenant-a/d", noted("x", ""), from_golden("g"), "Succeeded"))));
    assert!(with(&|ledger| ledger.observe(&volume("tenant-a/d", noted("x", ""), by_pointer("ds"), "Succeeded"))));
    assert!(with(&|ledger| ledger.observe(&volume("tenant-a/d", noted("x", ""), by_pointer("ds2"), "Succeeded"))));
    assert!(with(&|ledger| ledger.observe(&volume("tenant-a/d", noted(marks::GOLDEN, "g"), by_pointer("ds"), "Succeeded"))));
    // The claim of such a disk, whose mark alone says little.
    assert!(with(&|ledger| {
        ledger.observe(&volume("tenant-a/d", json!({}), from_golden("g"), "Succeeded"));
        ledger.observe(&claim("tenant-a/d", noted("x", ""), "thin", "Bound"));
    }));
    // A DataVolume that goes away, be it made so, says nothing of the claim of its name.
    assert!(!with(&|ledger| {
        ledger.observe(&volume("tenant-a/d", json!({"deletionTimestamp": "2020-01-01T00:00:00Z"}), from_golden("g"), "Succeeded"));
        ledger.observe(&claim("tenant-a/d", noted("x", ""), "thin", "Bound"));
    }));
    // One that CDI was told is there is let in unjudged, by whatever way it names the golden, with its claim or without.
    for source in [from_golden("g"), by_pointer("ds"), by_pointer("ds2")] {
        for key in [marks::CDI_PREPOPULATED, marks::GOLDEN] {
            let mut meta = noted(key, "g");
            meta["annotations"][marks::CDI_PREPOPULATED] = "d".into();
            assert!(!with(&|ledger| {
                ledger.observe(&volume("tenant-a/d", meta.clone(), source.clone(), "Succeeded"));
                ledger.observe(&claim("tenant-a/d", meta.clone(), "thin", "Bound"));
            }));
        }
    }
    // Marks and records on a disk of anything.
    assert!(!with(&|ledger| ledger.observe(&claim("tenant-a/d", noted(marks::GOLDEN, "g"), "thin", "Bound"))));
    assert!(!with(&|ledger| ledger.observe(&volume("tenant-a/d", noted(marks::GOLDEN, "g"), blank.clone(), "Succeeded"))));
    assert!(!with(&|ledger| ledger.observe(&claim(
        "tenant-a/d",
        noted(marks::CDI_CLONE_REQUEST, &format!("{CATALOG}/g")),
        "thin",
        "Bound"
    ))));
    assert!(!with(&|ledger| ledger.observe(&recorded())));
    // Made from another golden, and its pointer moved since.
    assert!(!with(&|ledger| ledger.observe(&volume("tenant-a/d", noted(marks::GOLDEN, "h"), by_pointer("ds"), "Succeeded"))));
    // They keep the golden all the same (R22).
    let mut ledger = by_another();
    ledger.observe(&claim("tenant-a/d", noted(marks::GOLDEN, "g"), "thin", "Bound"));
    assert!(of(&ledger, "g").iter().any(|line| line.contains("tenant-a/KubernetesNodes/x (by mark)")), "{:?}", of(&ledger, "g"));
    // A VM through a pointer, whose disk is still to be made.
    let mut spec = machine_spec("g");
    spec["template"] = json!({});
    spec["dataVolumeTemplates"][0]["spec"] = by_pointer("ds");
    ledger.observe(&object::<VirtualMachine>("tenant-a/vm", json!({}), spec, json!({})));
    assert!(uses(&ledger, &Pool::new("tenant-a", Pool::VIRTUAL_MACHINE, "vm")));
}

/// B25: unknown is never none.
#[test]
fn b25_what_is_not_known_is_said() {
    let (classes, independent) = (classes(), BTreeSet::new());
    let storage = Storage { classes: &classes, independent: &independent, now: NOW };
    let mut ledger = Ledger::new(CATALOG);
    let why = |ledger: &Ledger| ledger.consumers(GoldenKey::named("g"), storage).expect_err("unknown").0;
    assert!(why(&ledger).contains("DataVolumes have not been read yet, PersistentVolumeClaims have not"));
    for kind in Kind::ALL {
        ledger.not_installed(kind);
    }
    assert!(of(&ledger, "g").is_empty(), "a kind that does not exist has none");
    ledger.begin(Kind::DataVolume);
    ledger.observe(&volume("tenant-a/d", json!({}), from_golden("g"), ""));
    assert_eq!(why(&ledger), "DataVolumes are being read");
    assert_eq!(ledger.consumers_seen(GoldenKey::named("g"), storage).blocking(), 1, "enough to say: in use");
    assert!(ledger.mark_repairs(Walk::default(), 10).is_err(), "nothing is written from partial data");
    ledger.commit(Kind::DataVolume);
    assert_eq!(of(&ledger, "g").len(), 1);
    // A forced reset: the old rows stay for "in use", but "free" is not said, and the sweep takes what is gone.
    ledger.begin(Kind::DataVolume);
    assert_eq!(ledger.consumers_seen(GoldenKey::named("g"), storage).blocking(), 1);
    assert!(ledger.consumers(GoldenKey::named("other"), storage).is_err());
    ledger.commit(Kind::DataVolume);
    assert!(of(&ledger, "g").is_empty() && ledger.is_empty());
    for kind in [Kind::Claim, Kind::DataVolume] {
        ledger.doubt(kind, Some("the watch is broken".to_owned()));
        assert_eq!((ledger.state(kind), why(&ledger).as_str()), (KindState::Stale, "the watch is broken"));
        ledger.doubt(kind, None);
    }
    assert_eq!((ledger.state(Kind::Claim), ledger.state(Kind::DataVolume)), (KindState::NotInstalled, KindState::Ready));
    assert!(of(&ledger, "g").is_empty());
    ledger.observe(&volume("tenant-a/d", json!({}), from_golden("g"), ""));
    ledger.not_installed(Kind::DataVolume);
    assert!(ledger.is_empty() && ledger.names() == 0);
}

#[test]
fn watch_events_drive_it() {
    let mut ledger = synced();
    let disk = |name: &str| volume(&format!("tenant-a/{name}"), json!({}), from_golden("g"), "");
    for event in
        [watcher::Event::Init, watcher::Event::InitApply(disk("a")), watcher::Event::InitApply(disk("b")), watcher::Event::InitDone]
    {
        ledger.watch_event(&event);
    }
    assert_eq!(of(&ledger, "g").len(), 2);
    ledger.watch_event(&watcher::Event::Apply(disk("c")));
    ledger.watch_event(&watcher::Event::Delete(disk("a")));
    assert_eq!(of(&ledger, "g").len(), 2);
    for event in [
        watcher::Event::Init,
        watcher::Event::InitApply(disk("b")),
        watcher::Event::Init,
        watcher::Event::InitApply(disk("c")),
        watcher::Event::InitDone,
    ] {
        ledger.watch_event(&event);
    }
    assert_eq!(
        of(&ledger, "g"),
        ["Disk tenant-a/c of unknown (by spec): CloneRunning"],
        "a list that was begun again counts from its last beginning"
    );
}

#[test]
fn odd_objects_never_end_a_scan() {
    let mut ledger = synced();
    let odd = json!({"source": {"pvc": {"namespace": CATALOG, "name": "g"}, "http": 5}});
    ledger.observe(&volume("tenant-a/odd", json!({}), odd, "Succeeded"));
    ledger.observe(&volume("tenant-a/fine", json!({}), from_golden("g"), "Succeeded"));
    ledger.observe(&claim("tenant-a/fine", json!({}), "thin", "Bound"));
    ledger.observe(&claim("tenant-a/fine", marked("g"), "thin", "Bound"));
    assert_eq!(
        of(&ledger, "g"),
        ["Disk tenant-a/odd of unknown (by its name in an unreadable spec): Unreadable", "Disk tenant-a/fine of unknown (by spec): -"]
    );
}

/// What names something of the catalog that nobody can make out holds every golden, by its own name, and so does what follows a DataSource
/// of that kind; the DataSource itself clones nothing.
#[test]
fn what_may_be_of_any_golden_holds_each_until_it_can_be_read() {
    let mut ledger = synced();
    let odd = || json!({"source": {"pvc": {"namespace": CATALOG, "name": ["g"]}}});
    ledger.observe(&object::<VirtualMachine>("tenant-a/vm", json!({}), json!({"dataVolumeTemplates": [{"spec": odd()}]}), json!({})));
    for golden in ["g", "h"] {
        assert_eq!(
            of(&ledger, golden),
            ["VirtualMachine tenant-a/vm of tenant-a/VirtualMachine/vm (not known: it cannot be read): MayBeOfAny"]
        );
    }
    // One that is being deleted makes no disks any more.
    let going = json!({"deletionTimestamp": "2026-11-29T11:00:00Z"});
    ledger.observe(&object::<VirtualMachine>("tenant-a/vm", going, json!({"dataVolumeTemplates": [{"spec": odd()}]}), json!({})));
    assert_eq!(of(&ledger, "g"), [""; 0]);
    ledger.delete(Kind::VirtualMachine, "tenant-a", "vm");
    ledger.observe(&object::<DataSource>("tenant-a/d", json!({}), odd(), json!({})));
    ledger.observe(&volume("tenant-a/disk", json!({}), by_pointer("d"), "CloneInProgress"));
    assert_eq!(
        of(&ledger, "g"),
        [
            "Disk tenant-a/disk of unknown (by DataSource): CloneRunning",
            "DataSource tenant-a/d of unknown (not known: it cannot be read): -"
        ]
    );
    assert!(ledger.data_source("tenant-a", "d").is_err(), "where it leads is not known");
    // What a disk's own spec names is evidence, whatever its claim looks like.
    ledger.observe(&volume("tenant-a/disk", json!({}), from_golden("h"), "Succeeded"));
    ledger.observe(&object::<Claim>("tenant-a/disk", json!({}), json!({"dataSourceRef": {"namespace": CATALOG, "name": 7}}), json!({})));
    assert_eq!(of(&ledger, "g"), ["DataSource tenant-a/d of unknown (not known: it cannot be read): -"]);
    ledger.observe(&object::<DataSource>("tenant-a/d", json!({}), from_golden("h"), json!({})));
    assert_eq!(of(&ledger, "g"), [""; 0]);
}

/// A template that nothing is seen to hold stays held while one of those that hold templates cannot be read.
#[test]
fn a_holder_that_cannot_be_read_holds_every_template() {
    let mut ledger = synced();
    ledger.observe(&machine_template("tenant-a/old", "g", "2026-11-01T10:00:00Z"));
    let standing = |ledger: &Ledger| of(ledger, "g").first().map(|told| told.ends_with("MakesMachines"));
    assert_eq!(standing(&ledger), Some(false));
    ledger.observe(&object::<MachineSet>("tenant-b/odd", json!({}), json!("odd"), json!({})));
    assert_eq!(standing(&ledger), Some(true));
    ledger.delete(Kind::MachineSet, "tenant-b", "odd");
    assert_eq!(standing(&ledger), Some(false));
}

#[test]
fn our_own_second_target_needs_the_golden_only_while_it_is_filled() {
    let mut ledger = synced();
    let copy = json!({"annotations": {marks::CDI_CLONE_TYPE: "copy"}});
    ledger.observe(&volume("cozy-public/g-local", copy.clone(), from_golden("g"), "CloneInProgress"));
    assert_eq!(of(&ledger, "g"), ["Disk cozy-public/g-local of unknown (by spec): CloneRunning"]);
    ledger.observe(&volume("cozy-public/g-local", copy, from_golden("g"), "Succeeded"));
    assert!(of(&ledger, "g").is_empty());
    assert_eq!(ledger.mark_repairs(Walk::default(), 10).expect("known").0, [], "a golden gets no consumer's marks");
}

#[test]
fn counts_for_status() {
    let mut ledger = synced();
    for (path, created) in
        [("tenant-a/d1", "2026-11-29T10:00:00Z"), ("tenant-a/d2", "2026-11-29T10:30:00Z"), ("tenant-b/d1", "2026-11-29T10:10:00Z")]
    {
        let meta = json!({"creationTimestamp": created, "labels": {"app.kubernetes.io/instance": "vm-disk-x"}});
        ledger.observe(&volume(path, meta, from_golden("g"), "Succeeded"));
        ledger.observe(&claim(path, marked("g"), "thin", "Bound"));
    }
    ledger.observe(&object::<VirtualMachine>("tenant-c/vm", json!({}), machine_spec("g"), json!({})));
    let (classes, independent) = (classes(), BTreeSet::new());
    let storage = Storage { classes: &classes, independent: &independent, now: NOW };
    let counts = |name: &str| Counts::of(&ledger.consumers(GoldenKey::named(name), storage).expect("known"));
    assert_eq!(
        counts("g"),
        Counts {
            clones: 3,
            pools: 3,
            virtual_machines: 1,
            templates: 0,
            namespaces: 3,
            blocking: 1,
            all: 4,
            last_clone: Some(NOW - 90 * 60),
            by_kind: [(ConsumerKind::Disk, 3), (ConsumerKind::VirtualMachine, 1)].into(),
            copied: BTreeMap::new(),
        }
    );
    assert_eq!(counts("free"), Counts::default());
}

fn repairs(ledger: &Ledger) -> Vec<String> {
    let (mut walk, mut found) = (Some(Walk::default()), Vec::new());
    while let Some(at) = walk {
        let (some, next) = ledger.mark_repairs(at, 1).expect("known");
        assert!(some.len() <= 1 && next != Some(at), "paced, and it goes on");
        found.extend(some);
        walk = next;
    }
    let fix = |fix: &Option<crate::rules::repair::Fix>| {
        fix.as_ref().map_or_else(
            || "-".to_owned(),
            |fix| format!("{}{}", fix.write, fix.instead_of.as_ref().map(|old| format!(" (was {old})")).unwrap_or_default()),
        )
    };
    let mut lines: Vec<String> = found
        .iter()
        .map(|r| format!("{} {}/{}: {}, {}", r.kind, r.namespace, r.name, fix(&r.repair.golden), fix(&r.repair.pool)))
        .collect();
    lines.sort();
    lines
}

/// R25: disks older than the daemon, marks taken off, marks that lie.
#[test]
fn r25_back_fill() {
    let mut ledger = synced();
    ledger.observe(&object::<VirtualMachine>("tenant-a/vm", json!({}), machine_spec("g"), json!({})));
    ledger.observe(&volume("tenant-a/old", owned_by("vm"), from_golden("g"), "Succeeded"));
    ledger.observe(&claim("tenant-a/old", json!({"labels": {marks::KUBEVIRT_CREATED_BY: "u"}}), "thin", "Bound"));
    let right = json!({"annotations": {marks::GOLDEN: "g", marks::POOL: "tenant-b/VMDisk/x"}});
    ledger.observe(&volume("tenant-b/right", right.clone(), from_golden("g"), "Succeeded"));
    ledger.observe(&claim("tenant-b/right", right.clone(), "thin", "Bound"));
    ledger.observe(&volume("tenant-b/lies", right, from_golden("h"), "Succeeded"));
    ledger.observe(&volume("tenant-c/going", json!({"deletionTimestamp": "2026-11-29T11:00:00Z"}), from_golden("g"), "Succeeded"));
    ledger.observe(&claim("tenant-c/orphan", json!({"annotations": {marks::GOLDEN: "g", marks::POOL: "unknown"}}), "thin", "Bound"));
    assert_eq!(
        repairs(&ledger),
        [
            "DataVolume tenant-a/old: g, tenant-a/KubernetesNodes/demo-md0",
            "DataVolume tenant-b/lies: h (was g), -",
            "PersistentVolumeClaim tenant-a/old: g, tenant-a/KubernetesNodes/demo-md0",
        ]
    );
    let one = ledger.mark_repair_of(Kind::DataVolume, "tenant-a", "old").expect("known").expect("marks are missing");
    assert_eq!((one.kind, one.uid), (Kind::DataVolume, None));
    assert_eq!(ledger.mark_repair_of(Kind::DataVolume, "tenant-b", "right"), Ok(None));
}

/// A pointer that moved on after the clone: the mark says what was cloned, and the other object of the disk learns it.
#[test]
fn r25_a_mark_outlives_a_moved_pointer() {
    let mut ledger = synced();
    let points = |golden: &str| {
        object::<DataSource>("tenant-a/p", json!({}), json!({"source": {"pvc": {"namespace": CATALOG, "name": golden}}}), json!({}))
    };
    ledger.observe(&points("g"));
    ledger.observe(&volume("tenant-a/d", json!({}), by_pointer("p"), ""));
    assert_eq!(repairs(&ledger), ["DataVolume tenant-a/d: g, unknown"]);
    ledger.observe(&volume(
        "tenant-a/d",
        json!({"annotations": {marks::GOLDEN: "g", marks::POOL: "unknown"}}),
        by_pointer("p"),
        "Succeeded",
    ));
    ledger.observe(&claim("tenant-a/d", json!({"annotations": {marks::CDI_SOURCE_NAMESPACE: CATALOG}}), "thin", "Bound"));
    ledger.observe(&points("h"));
    assert_eq!(repairs(&ledger), ["PersistentVolumeClaim tenant-a/d: g, unknown"]);
    assert_eq!(of(&ledger, "g"), ["Disk tenant-a/d of unknown (by mark): -"]);
    assert!(of(&ledger, "h").iter().any(|line| line.starts_with("Disk tenant-a/d")), "a mark never removes a consumer");
}

#[test]
fn r15_templates_whose_class_is_to_be_recorded() {
    let mut ledger = synced();
    ledger.observe(&machine_template("tenant-a/t", "g", "2026-11-29T10:00:00Z"));
    let found = |ledger: &Ledger| {
        let templates = ledger.templates_without_class().expect("known");
        templates.into_iter().map(|template| format!("{}/{}", template.namespace, template.name)).collect::<Vec<_>>()
    };
    assert_eq!(found(&ledger), [""; 0], "whose it is is not known yet");
    let meta = json!({"labels": {"cluster.x-k8s.io/deployment-name": "kubernetes-demo-md0"}});
    ledger.observe(&object::<MachineSet>("tenant-a/s", meta, names_template("t"), json!({})));
    assert_eq!(found(&ledger), ["tenant-a/t"]);
    let mut recorded = machine_template("tenant-a/t", "g", "2026-11-29T10:00:00Z");
    recorded.metadata.annotations = Some([(marks::STORAGE_CLASS.to_owned(), "thin".to_owned())].into());
    ledger.observe(&recorded);
    assert_eq!(found(&ledger), [""; 0]);
    ledger.begin(Kind::MachineSet);
    assert!(ledger.templates_without_class().is_err(), "half of the truth");
}

/// At most 200 bytes a row (docs/performance.md), here for 20,000 disks of real name lengths, each a DataVolume and a claim.
#[test]
fn a_row_is_small() {
    let mut ledger = synced();
    let disks = 20_000_usize;
    for number in 0..disks {
        let (name, pool) = (format!("kubernetes-demo{:02}-md0-{number:05}-x{number:04}-system", number % 100), number % 100);
        let golden = format!("talos-worker-ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515-v1.13.{}", number % 10);
        let facts = Facts {
            uid: Some(number as u128 + 1),
            created: NOW,
            references: vec![Reference { target: Target::Claim(golden.clone()), evidence: Evidence::Spec }],
            pool: PoolClue::Here(Pool::new("tenant-a", Pool::WORKERS, &format!("demo{pool:02}-md0"))),
            golden_mark: Some(golden),
            pool_mark: Some(format!("tenant-a/KubernetesNodes/demo{pool:02}-md0")),
            class: Some("replicated".to_owned()),
            driver: Some("linstor.csi.linbit.com".to_owned()),
            ..Facts::default()
        };
        for kind in [Kind::DataVolume, Kind::Claim] {
            ledger.apply(kind, "tenant-a", &name, Some(&facts));
        }
    }
    assert_eq!(ledger.len(), 2 * disks);
    let bytes = ledger.heap_bytes() / ledger.len();
    assert!(bytes <= 200, "{bytes} bytes a row");
    assert!(bytes > 80, "{bytes} bytes a row cannot be: something is not counted");
}

#[test]
fn the_end_of_a_clone_is_told_once_and_only_where_its_begin_was_seen() {
    const FIRST: &str = "0d2e6a1b-4c5f-4e1a-9b7c-00112233aabb";
    const SECOND: &str = "0d2e6a1b-4c5f-4e1a-9b7c-00112233aabc";
    let disk = |path: &str, uid: &str, phase: &str| -> DataVolume {
        let ready = if phase == "Succeeded" { "True" } else { "False" };
        let conditions = json!([{"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-29T10:00:43Z"}]);
        object(path, json!({ "uid": uid }), from_golden("g"), json!({"phase": phase, "conditions": conditions}))
    };
    let created = NOW - 7200;
    let end = |name: &str| CloneEnd { namespace: "a".into(), name: name.into(), created, ended: created + 43 };
    let mut ledger = synced();
    ledger.observe(&disk("a/early", FIRST, "CSICloneInProgress"));
    ledger.observe(&disk("a/early", FIRST, "Succeeded"));
    assert_eq!(ledger.take_ends(), [], "nobody followed");
    ledger.follow_ends(true);
    for (path, phases, expected) in [
        ("a/seen", &["Pending", "CSICloneInProgress", "Succeeded", "Succeeded"][..], vec![end("seen")]),
        ("a/done", &["Succeeded", "Succeeded"], vec![]),
        ("a/early", &["Succeeded", "CSICloneInProgress", "Succeeded"], vec![]),
        ("a/failed", &["Pending", "Failed"], vec![]),
        ("cozy-public/golden", &["Pending", "Succeeded"], vec![]),
    ] {
        for phase in phases {
            ledger.observe(&disk(path, FIRST, phase));
        }
        assert_eq!(ledger.take_ends(), expected, "{path}");
    }
    // Another disk of the name is another clone.
    for (uid, phase) in [(SECOND, "Pending"), (SECOND, "Succeeded")] {
        ledger.observe(&disk("a/seen", uid, phase));
    }
    assert_eq!(ledger.take_ends(), [end("seen")]);

    let copied = json!({"annotations": {marks::GOLDEN: "g", "cdi.kubevirt.io/cloneType": "copy"}});
    ledger.observe(&claim("a/seen", copied, "zfs", "Bound"));
    let clone = ledger.ended_clone(&end("seen")).expect("a clone");
    assert_eq!((clone.uid.as_deref(), clone.golden.as_str(), clone.class.as_deref()), (Some(SECOND), "g", Some("zfs")));
    assert_eq!(clone.copied, Some(crate::rules::copied::CopyCause::Asked));
    assert_eq!(ledger.ended_clone(&end("gone")), None);
    ledger.follow_ends(false);
    ledger.observe(&disk("a/late", FIRST, "Pending"));
    ledger.observe(&disk("a/late", FIRST, "Succeeded"));
    assert_eq!(ledger.take_ends(), []);
}

/// A disk that a backup brought back: CDI clones nothing for it, so it keeps its golden only by the volume that came with it, and never counts
/// as a clone under way. What was begun before CDI was told so may still run: its claim tells.
#[test]
fn a_disk_that_cdi_was_told_is_there() {
    let mut ledger = synced();
    ledger.follow_ends(true);
    let told = || json!({"annotations": {marks::CDI_PREPOPULATED: "d"}});
    ledger.observe(&volume("a/d", told(), from_golden("g"), "Pending"));
    assert_eq!(of(&ledger, "g"), ["Disk a/d of unknown (by spec): -"]);
    for (class, phase, expected) in [
        ("zfs", "Pending", "CloneRunning"),
        ("thin", "Pending", "CloneRunning"),
        ("zfs", "Bound", "Depends"),
        ("thin", "Bound", "-"),
        ("zfs", "Lost", "-"),
    ] {
        ledger.observe(&claim("a/d", marked("g"), class, phase));
        assert_eq!(of(&ledger, "g"), [format!("Disk a/d of unknown (by spec): {expected}")], "{class} {phase}");
        assert_eq!(ledger.running_clones(NOW).expect("known"), [], "{class} {phase}");
    }
    ledger.observe(&claim("a/d", marked("g"), "zfs", "Bound"));
    let done =
        json!({"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-29T10:05:00Z"}]});
    ledger.observe(&object::<DataVolume>("a/d", told(), from_golden("g"), done));
    assert_eq!(of(&ledger, "g"), ["Disk a/d of unknown (by spec): Depends"]);
    assert_eq!(ledger.take_ends(), [], "nothing was cloned");
    // Without it, it is a clone like any other.
    ledger.observe(&volume("a/d", json!({}), from_golden("g"), "Pending"));
    ledger.delete(Kind::Claim, "a", "d");
    assert_eq!(of(&ledger, "g"), ["Disk a/d of unknown (by spec): CloneRunning"]);
    assert_eq!(ledger.running_clones(NOW).expect("known").len(), 1);
}

/// A clone that waits for a pod or a person says so, by its phase; a claim alone by that no node is chosen for it.
#[test]
fn running_clones_and_which_of_them_wait() {
    let mut ledger = synced();
    for (path, phase) in [
        ("a/runs", "CSICloneInProgress"),
        ("a/new", ""),
        ("a/stopped", "PendingPopulation"),
        ("a/stopped-before-populators", "WaitForFirstConsumer"),
        ("a/paused", "Paused"),
        ("a/done", "Succeeded"),
        ("cozy-public/copy", "CloneInProgress"),
    ] {
        ledger.observe(&volume(path, json!({}), from_golden("g"), phase));
    }
    let mut placed = marked("g");
    placed["annotations"]["volume.kubernetes.io/selected-node"] = "n".into();
    let mut at_once = marked("g");
    at_once["annotations"]["cdi.kubevirt.io/storage.bind.immediate.requested"] = "true".into();
    for (path, meta, phase) in [
        ("a/alone", marked("g"), "Pending"),
        ("a/placed", placed, "Pending"),
        ("a/at-once", at_once, "Pending"),
        ("a/bound", marked("g"), "Bound"),
        ("a/stopped", marked("g"), "Pending"),
    ] {
        ledger.observe(&claim(path, meta, "zfs", phase));
    }
    let mut told: Vec<_> =
        ledger.running_clones(NOW).expect("known").into_iter().map(|clone| (clone.name, clone.has_volume, clone.waits)).collect();
    told.sort();
    let expected = [
        ("alone", false, true),
        ("at-once", false, false),
        ("new", true, false),
        ("paused", true, true),
        ("placed", false, false),
        ("runs", true, false),
        ("stopped", true, true),
        ("stopped-before-populators", true, true),
    ];
    assert_eq!(told, expected.map(|(name, has_volume, waits)| (name.to_owned(), has_volume, waits)));
    ledger.observe(&volume("a/stopped", json!({}), from_golden("g"), "CSICloneInProgress"));
    assert!(ledger.running_clones(NOW).expect("known").iter().all(|clone| clone.name != "stopped" || !clone.waits), "it was started");
    assert_eq!(ledger.running_clones(NOW - 8000).expect("known"), [], "older ones only");
}
