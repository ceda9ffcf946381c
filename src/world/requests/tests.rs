use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::world::ledger::Kind;

/// A ledger that knows a DataSource `tenant-a/ubuntu` into the catalog, one that leads nowhere, and the worker VM `kubernetes-demo-md0-x`.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new("cozy-public");
    for kind in Kind::ALL {
        ledger.begin(kind);
        ledger.commit(kind);
    }
    ledger.observe(&object::<DataSource>("tenant-a", "ubuntu", json!({"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}})));
    ledger.observe(&object::<DataSource>("tenant-a", "own", json!({"source": {"pvc": {"namespace": "tenant-a", "name": "g"}}})));
    let vm = json!({"template": {"metadata": {"labels": {"cluster.x-k8s.io/deployment-name": "kubernetes-demo-md0"}}}});
    ledger.observe(&object::<VirtualMachine>("tenant-a", "kubernetes-demo-md0-x", vm));
    ledger
}

fn object<K: DeserializeOwned>(namespace: &str, name: &str, spec: Value) -> K {
    serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec})).expect("an object")
}

fn one(requests: Known<Vec<CloneRequest>>) -> Option<CloneRequest> {
    let mut requests = requests.expect("known");
    assert!(requests.len() < 2, "{requests:?}");
    requests.pop()
}

#[rstest]
#[case::pvc(json!({"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}}), Some((Source::Claim("g".into()), None)))]
#[case::snapshot(json!({"source": {"snapshot": {"namespace": "cozy-public", "name": "s"}}}), Some((Source::Snapshot("s".into()), None)))]
#[case::source_ref(json!({"sourceRef": {"kind": "DataSource", "name": "ubuntu"}}), Some((Source::Claim("g".into()), Some("tenant-a/ubuntu"))))]
#[case::source_ref_elsewhere(json!({"sourceRef": {"kind": "DataSource", "namespace": "tenant-a", "name": "own"}}), None)]
#[case::source_ref_missing(json!({"sourceRef": {"kind": "DataSource", "name": "nothing"}}), None)]
#[case::external(json!({"storage": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "namespace": "cozy-public", "name": "g"}}}), Some((Source::Claim("g".into()), None)))]
#[case::own_namespace(json!({"source": {"pvc": {"name": "g"}}}), None)]
#[case::http(json!({"source": {"http": {"url": "https://example.org"}}}), None)]
fn every_form_of_a_data_volume(#[case] spec: Value, #[case] expected: Option<(Source, Option<&str>)>) {
    let request = one(object::<DataVolume>("tenant-a", "d", spec.clone()).clone_requests(&ledger()));
    assert_eq!(request.map(|r| (r.source, r.through)), expected.map(|(source, through)| (source, through.map(str::to_owned))));
    assert_eq!(one(object::<DataVolume>("cozy-public", "d", spec).clone_requests(&ledger())), None, "never judged inside the catalog");
}

#[test]
fn a_disk_is_read_whole() {
    let volume: DataVolume = serde_json::from_value(json!({
        "metadata": {"namespace": "tenant-a", "generateName": "disk-", "annotations": {marks::CDI_CLONE_TYPE: "copy", "other": "x"},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "kubernetes-demo-md0-x", "uid": "u", "controller": true}]},
        "spec": {"source": {"pvc": {"namespace": "cozy-public", "name": "g"}},
            "pvc": {"storageClassName": "", "volumeMode": "Block", "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "-5"}}}}
    }))
    .expect("a DataVolume");
    let request = one(volume.clone_requests(&ledger())).expect("a clone");
    assert_eq!(request.subject.to_string(), "DataVolume tenant-a/disk-*");
    assert_eq!((request.shape, request.class), (Shape::Claim, StatedClass::Empty));
    assert_eq!((request.size, request.volume_mode), (StatedSize::Unreadable("-5".into()), Some(VolumeMode::Block)));
    assert_eq!(request.annotations, [(marks::CDI_CLONE_TYPE.to_owned(), "copy".to_owned())].into());
    assert_eq!(request.pool.to_string(), "tenant-a/KubernetesNodes/demo-md0");
}

#[test]
fn content_is_told_where_it_is_no_disk() {
    for (stated, expected) in [(Value::Null, None), (json!(""), None), (json!("kubevirt"), None), (json!("archive"), Some("archive"))] {
        let spec = json!({"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}, "storage": {}, "contentType": stated});
        let volume = one(object::<DataVolume>("tenant-a", "d", spec.clone()).clone_requests(&ledger())).expect("a clone");
        assert_eq!(volume.content_type.as_deref(), expected);
        let machine = json!({"dataVolumeTemplates": [{"metadata": {"name": "d"}, "spec": spec}]});
        let disk = one(object::<VirtualMachine>("tenant-a", "vm", machine).clone_requests(&ledger())).expect("a clone");
        assert_eq!(disk.content_type.as_deref(), expected);
    }
}

#[test]
fn a_class_is_read_as_kubernetes_reads_it() {
    for (annotations, field, expected) in [
        (json!({}), json!("a"), StatedClass::Named("a".into())),
        (json!({ marks::FORMER_CLASS: "b" }), json!("a"), StatedClass::Named("b".into())),
        (json!({ marks::FORMER_CLASS: "b" }), Value::Null, StatedClass::Named("b".into())),
        (json!({ marks::FORMER_CLASS: "" }), json!("a"), StatedClass::Empty),
    ] {
        let claim = json!({"storageClassName": field});
        let mut claimed = claim.clone();
        claimed["dataSourceRef"] = json!({"kind": "PersistentVolumeClaim", "name": "g", "namespace": "cozy-public"});
        let metadata = json!({"namespace": "tenant-a", "name": "d", "annotations": annotations});
        let bare: Claim = serde_json::from_value(json!({"metadata": metadata, "spec": claimed})).expect("a claim");
        let volume =
            json!({"metadata": metadata, "spec": {"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}, "storage": claim}});
        let volume: DataVolume = serde_json::from_value(volume).expect("a DataVolume");
        for requests in [bare.clone_requests(&ledger()), volume.clone_requests(&ledger())] {
            assert_eq!(one(requests).map(|request| request.class), Some(expected.clone()), "{metadata}");
        }
    }
}

#[test]
fn claims_across_namespaces() {
    let spec = |field: &str, extra: Value| {
        let mut source = json!({"kind": "PersistentVolumeClaim", "name": "g"});
        source.as_object_mut().expect("object").extend(extra.as_object().expect("object").clone());
        json!({field: source, "resources": {"requests": {"storage": "6Gi"}}})
    };
    let ask = |spec| one(object::<Claim>("tenant-a", "d", spec).clone_requests(&ledger()));
    let request = ask(spec("dataSourceRef", json!({"namespace": "cozy-public"}))).expect("a clone");
    assert_eq!((request.source, request.shape, request.pool), (Source::Claim("g".into()), Shape::Claim, Pool::Unknown));
    assert_eq!(ask(spec("dataSourceRef", json!({}))), None);
    assert_eq!(ask(spec("dataSource", json!({}))), None);
}

/// CDI's former way: an annotation that it heeds whoever wrote it, and that it writes itself for a DataVolume.
#[rstest]
#[case::bare(json!({}), json!([]), true)]
#[case::done(json!({ marks::CDI_CLONE_OF: "true" }), json!([]), false)]
#[case::of_its_volume(json!({}), json!([{"name": "d", "uid": "00000000-0000-0000-0000-00000000000d"}]), false)]
#[case::of_anothers_uid(json!({}), json!([{"name": "d", "uid": "00000000-0000-0000-0000-00000000000e"}]), true)]
#[case::of_another_name(json!({}), json!([{"name": "other", "uid": "00000000-0000-0000-0000-00000000000d"}]), true)]
fn a_claim_that_asks_by_annotation(#[case] more: Value, #[case] owners: Value, #[case] is_judged: bool) {
    let mut ledger = ledger();
    ledger.observe(
        &serde_json::from_value::<DataVolume>(json!({
            "metadata": {"namespace": "tenant-a", "name": "d", "uid": "00000000-0000-0000-0000-00000000000d"},
            "spec": {"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}, "storage": {}},
        }))
        .expect("a DataVolume"),
    );
    for (golden, expected) in [("cozy-public/g", is_judged), ("tenant-a/g", false)] {
        let mut annotations = more.clone();
        annotations[marks::CDI_CLONE_REQUEST] = golden.into();
        let mut owners = owners.clone();
        for owner in owners.as_array_mut().expect("owners") {
            owner["apiVersion"] = "cdi.kubevirt.io/v1beta1".into();
            owner["kind"] = "DataVolume".into();
            owner["controller"] = true.into();
        }
        let claim: Claim = serde_json::from_value(json!({
            "metadata": {"namespace": "tenant-a", "name": "d", "annotations": annotations, "ownerReferences": owners},
            "spec": {"storageClassName": "a"},
        }))
        .expect("a claim");
        let asked = one(claim.clone_requests(&ledger)).map(|request| request.source);
        assert_eq!(asked, expected.then(|| Source::Claim("g".into())), "{golden}");
    }
}

/// CDI is told that the disk is there: it clones nothing, whatever the annotation's value. What it does not look at it for is asked for still.
#[test]
fn a_disk_that_is_there_asks_for_no_clone_of_its_source() {
    let sources = [
        (json!({"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}}), false),
        (json!({"source": {"snapshot": {"namespace": "cozy-public", "name": "s"}}}), false),
        (json!({"sourceRef": {"kind": "DataSource", "name": "ubuntu"}}), false),
        (json!({"storage": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "namespace": "cozy-public", "name": "g"}}}), true),
        (
            json!({"source": {"pvc": {"namespace": "cozy-public", "name": "h"}}, "pvc": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "namespace": "cozy-public", "name": "g"}}}),
            true,
        ),
    ];
    for (spec, asks) in sources {
        let volume = |annotations: Value| -> DataVolume {
            let metadata = json!({"namespace": "tenant-a", "name": "d", "annotations": annotations});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a DataVolume")
        };
        let plain = volume(json!({}));
        assert!(one(plain.clone_requests(&ledger())).is_some() && plain.unneeded_token().is_none(), "{spec}");
        for value in ["d", "", "another"] {
            let there = volume(json!({marks::CDI_PREPOPULATED: value}));
            let asked = there.clone_requests(&ledger()).expect("known");
            assert_eq!(asked.first().map(|request| request.source.name()), asks.then_some("g"), "{spec}");
            // Taking it off asks for the clone anew, and putting it on asks for nothing.
            let before = there.requests_without_token(&ledger()).expect("known");
            let new = new_requests(&before, plain.clone_requests(&ledger()).expect("known"));
            assert_eq!(new.len(), usize::from(before != plain.clone_requests(&ledger()).expect("known")), "{spec}");
            assert!(!new.is_empty() || asks, "{spec}");
            assert!(there.unneeded_token().is_none());
        }
        // Whoever holds CDI's token clones by other ways too.
        let held = volume(json!({marks::CDI_PREPOPULATED: "d", marks::CDI_CLONE_TOKEN: "t"}));
        assert!(one(held.clone_requests(&ledger())).is_some(), "{spec}");
        assert_eq!(one(held.requests_without_token(&ledger())).is_some(), asks, "{spec}");
        assert_eq!(held.unneeded_token(), Some(marks::CDI_CLONE_TOKEN));
    }
    // KubeVirt copies a template's annotations onto the disk it makes; the VM is judged all the same.
    let disks = json!([{"metadata": {"name": "system", "annotations": {marks::CDI_PREPOPULATED: "x"}}, "spec": {"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}}}]);
    assert!(one(object::<VirtualMachine>("tenant-a", "vm", machine(disks)).clone_requests(&ledger())).is_some());
}

fn machine(disks: Value) -> Value {
    json!({"dataVolumeTemplates": disks, "template": {"metadata": {"labels": {"cluster.x-k8s.io/deployment-name": "kubernetes-demo-md0"}}}})
}

#[test]
fn machines_ask_for_each_of_their_disks() {
    let disks = json!([
        {"metadata": {"name": "system"}, "spec": {"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}, "storage": {"storageClassName": "r"}}},
        {"metadata": {"name": "data"}, "spec": {"source": {"blank": {}}}},
        {"metadata": {"name": "more"}, "spec": {"sourceRef": {"kind": "DataSource", "name": "ubuntu"}}},
        {"spec": "odd, but names nothing"},
    ]);
    let template: KubevirtMachineTemplate = object(
        "tenant-a",
        "t",
        json!({"template": {"spec": {"virtualMachineTemplate": {"metadata": {"namespace": "tenant-a"}, "spec": machine(disks.clone())}}}}),
    );
    let vm: VirtualMachine = object("tenant-a", "vm", machine(disks));
    for (requests, kind) in [
        (template.clone_requests(&ledger()), "KubevirtMachineTemplate tenant-a/t"),
        (vm.clone_requests(&ledger()), "VirtualMachine tenant-a/vm"),
    ] {
        let requests = requests.expect("known");
        let told: Vec<(String, String)> = requests.iter().map(|r| (r.subject.to_string(), r.pool.to_string())).collect();
        assert_eq!(
            told,
            [
                (format!("disk \"system\" of {kind}"), "tenant-a/KubernetesNodes/demo-md0".to_owned()),
                (format!("disk \"more\" of {kind}"), "tenant-a/KubernetesNodes/demo-md0".to_owned()),
            ]
        );
        assert_eq!(requests[0].class, StatedClass::Named("r".into()));
    }
    let marked = json!([{"metadata": {"annotations": {marks::POOL: "tenant-a/VMDisk/x"}}, "spec": {"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}}}]);
    let marked: VirtualMachine = object("tenant-a", "vm", machine(marked));
    assert_eq!(one(marked.clone_requests(&ledger())).expect("a clone").pool.to_string(), "tenant-a/VMDisk/x");
    let alone: VirtualMachine = object(
        "tenant-a",
        "vm",
        json!({"dataVolumeTemplates": [{"spec": {"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}}}]}),
    );
    assert_eq!(one(alone.clone_requests(&ledger())).expect("a clone").pool.to_string(), "tenant-a/VirtualMachine/vm");
}

#[test]
fn data_sources_outside_the_catalog() {
    let pointer: DataSource = object("tenant-a", "p", json!({"source": {"dataSource": {"namespace": "tenant-a", "name": "ubuntu"}}}));
    assert_eq!(one(pointer.clone_requests(&ledger())).expect("leads into the catalog").through.as_deref(), Some("tenant-a/ubuntu"));
    let own: DataSource = object("cozy-public", "p", json!({"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}}));
    assert_eq!(one(own.clone_requests(&ledger())), None);
}

#[test]
fn what_cannot_be_read_but_names_the_catalog_is_unknown() {
    let odd = object::<DataVolume>("tenant-a", "d", json!({"source": {"pvc": {"namespace": "cozy-public", "name": "g"}, "http": 5}}));
    assert!(odd.clone_requests(&ledger()).expect_err("odd").0.contains("DataVolume tenant-a/d cannot be read"));
    assert_eq!(one(object::<DataVolume>("tenant-a", "d", json!({"source": 5})).clone_requests(&ledger())), None);
    let vm = object::<VirtualMachine>(
        "tenant-a",
        "v",
        json!({"dataVolumeTemplates": [{"spec": {"source": {"pvc": {"namespace": "cozy-public", "name": "g"}, "http": 5}}}]}),
    );
    assert!(vm.clone_requests(&ledger()).is_err());
}

#[test]
fn nothing_is_guessed_while_kinds_are_unread() {
    let unread = Ledger::new("cozy-public");
    let by_pointer = object::<DataVolume>("tenant-a", "d", json!({"sourceRef": {"kind": "DataSource", "name": "ubuntu"}}));
    assert!(by_pointer.clone_requests(&unread).expect_err("unread").0.contains("DataSources have not been read yet"));
    let plain = object::<DataVolume>("tenant-a", "d", json!({"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}}));
    assert!(one(plain.clone_requests(&unread)).is_some(), "a clone that hangs on nothing needs no kind");
}

#[test]
fn an_update_is_judged_by_what_is_new() {
    let volume = |size: &str| {
        object::<DataVolume>(
            "tenant-a",
            "d",
            json!({"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}, "storage": {"resources": {"requests": {"storage": size}}}}),
        )
    };
    let ask = |size| volume(size).clone_requests(&ledger()).expect("known");
    assert_eq!(new_requests(&ask("6Gi"), ask("6144Mi")), [], "equal by value");
    assert_eq!(new_requests(&ask("6Gi"), ask("7Gi")).len(), 1);
}
