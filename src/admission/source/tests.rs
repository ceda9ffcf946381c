//! What a verdict reads under a golden's name, and what it decides by that: the same for admission and `explain`.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    api::GoldenImage,
    model::DiskSize,
    rules::{
        class::{ClassFacts, Classes, Shape, StatedClass},
        clone::{CloneRequest, PoolFacts, Rule, Situation, StatedSize, Subject, SubjectKind, Verdict, judge},
        pool::Pool,
        size::{Overheads, VolumeMode},
    },
    world::Sink as _,
};

const CATALOG: &str = "cozy-public";
const GOLDEN: &str = "vm-default-images-win";
const LICENSED: &str = r#"{"matchLabels":{"licensed":"yes"}}"#;

/// The identity of the image at this address.
fn identity(url: &str) -> String {
    images(&[image("x", url, None, json!({}))]).store.get("", "x").and_then(|image| image.identity.clone()).expect("an identity")
}

fn image(name: &str, url: &str, access: Option<Value>, status: Value) -> Value {
    json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name, "creationTimestamp": "2026-11-29T10:00:00Z" },
        "spec": { "source": { "http": { "url": url } }, "access": access, "storage": { "targets": [{ "storageClassName": "replicated", "size": "1Gi" }] } },
        "status": status,
    })
}

fn images(all: &[Value]) -> Images {
    let images = Images::default();
    let mut sink = images.store.sink(|image: GoldenImage| Some(ImageFacts::of(&image)));
    sink.begin();
    for image in all {
        sink.apply(serde_json::from_value(image.clone()).expect("a GoldenImage"));
    }
    sink.synced();
    images
}

/// A golden's bound claim, with our mark and nothing else.
fn claim() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": GOLDEN, "namespace": CATALOG, "uid": "pvc", "labels": { marks::GOLDEN: "true" }, "annotations": {} },
        "spec": { "storageClassName": "replicated", "volumeMode": "Block", "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "1Gi" } } },
        "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } },
    })
}

fn with_volume(claim: &mut Value) -> DataVolume {
    claim["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": GOLDEN, "uid": "dv", "controller": true }]);
    let metadata = json!({ "name": GOLDEN, "namespace": CATALOG, "uid": "dv", "labels": claim["metadata"]["labels"], "annotations": claim["metadata"]["annotations"] });
    serde_json::from_value(json!({ "metadata": metadata, "spec": {}, "status": { "phase": "Succeeded" } })).expect("a DataVolume")
}

fn facts_of(claim: Value, volume: Option<DataVolume>, all: &[Value]) -> SourceFacts {
    let found = Found { claim: Some(serde_json::from_value(claim).expect("a claim")), volume, snapshot: None };
    source_facts(&Source::Claim(GOLDEN.to_owned()), &found, &images(all), CATALOG).expect("everything has been read")
}

/// The verdict on a tenant's new disk that is right in all but what the source says; its namespace has no labels.
fn verdict(source: SourceFacts) -> Verdict {
    let request = CloneRequest {
        subject: Subject { kind: SubjectKind::DataVolume, namespace: "tenant-a".to_owned(), name: "new".to_owned(), disk: None },
        source: Source::Claim(GOLDEN.to_owned()),
        through: None,
        shape: Shape::Storage,
        class: StatedClass::Named("replicated".to_owned()),
        size: StatedSize::Bytes("1Gi".parse::<DiskSize>().expect("a size")),
        volume_mode: Some(VolumeMode::Block),
        content_type: None,
        access_modes: Vec::new(),
        annotations: BTreeMap::new(),
        pool: Pool::new("tenant-a", Pool::VIRTUAL_MACHINE, "new"),
    };
    let class = ClassFacts { name: "replicated".to_owned(), allows_expansion: true, ..ClassFacts::default() };
    let (classes, profiles, labels) = (Classes::from([("replicated".to_owned(), class)]), BTreeMap::new(), BTreeMap::new());
    let situation = Situation {
        catalog_namespace: CATALOG,
        source: Ok(source),
        classes: Ok(&classes),
        profiles: Ok(&profiles),
        overheads: &Overheads::default(),
        pool: Ok(PoolFacts::default()),
        namespace_labels: Ok(&labels),
        node_local: &[],
    };
    judge(&request, &situation)
}

/// The rules a verdict says are broken; none where the clone is admitted.
fn broken(verdict: &Verdict) -> Vec<Rule> {
    match verdict {
        Verdict::Refuse(violations) => violations.iter().map(|violation| violation.rule).collect(),
        Verdict::Allow { .. } => Vec::new(),
        other => panic!("no verdict: {other:?}"),
    }
}

/// A golden that has no DataVolume any more and stands on nobody's record is fenced and kept like every other.
#[rstest]
#[case::open(&[], &[])]
#[case::retiring(&[(marks::RETIRING, "since 2026")], &[Rule::R23])]
#[case::closed(&[(marks::RETIRING, "closed since 2026")], &[Rule::R23])]
#[case::retired(&[(marks::RETIRING, "closed since 2026"), (marks::RETIRED, "2026")], &[Rule::R23])]
#[case::for_others(&[(marks::ACCESS, LICENSED)], &[Rule::R18])]
#[case::for_all(&[(marks::ACCESS, "AllTenants")], &[])]
#[case::for_others_and_closed(&[(marks::ACCESS, LICENSED), (marks::RETIRING, "closed since 2026")], &[Rule::R18, Rule::R23])]
fn r18_r23_a_golden_on_nobodys_record(
    #[case] annotations: &[(&str, &str)],
    #[case] expected: &[Rule],
    #[values(false, true)] has_volume: bool,
) {
    let mut claim = claim();
    claim["metadata"]["annotations"] = annotations.iter().copied().collect::<BTreeMap<_, _>>().into_iter().collect();
    let volume = has_volume.then(|| with_volume(&mut claim));
    let verdict = verdict(facts_of(claim, volume, &[]));
    assert_eq!(broken(&verdict), expected, "{verdict:?}");
    let Verdict::Allow { patch, warnings } = verdict else { return };
    assert_eq!(patch.annotations.get(marks::GOLDEN).map(String::as_str), Some(GOLDEN), "the disk leaves with its marks (R21)");
    assert!(matches!(&warnings[..], [one] if one.contains("is unmanaged: its GoldenImage is gone")), "{warnings:?}");
}

#[test]
fn r13_a_golden_that_goes_is_cloned_by_nobody() {
    let mut claim = claim();
    claim["metadata"]["deletionTimestamp"] = "2026-11-29T10:00:00Z".into();
    assert_eq!(broken(&verdict(facts_of(claim, None, &[]))), [Rule::R13]);
}

/// What carries no mark of ours is a hoster's own; what is on record is a golden whatever it carries.
#[test]
fn r13_a_hand_made_image_is_told_by_mark_and_record() {
    let mut plain = claim();
    plain["metadata"]["labels"] = json!({});
    plain["metadata"]["annotations"] = json!({ marks::RETIRING: "closed since 2026" });
    assert!(matches!(facts_of(plain.clone(), None, &[]), SourceFacts::Unmarked { .. }));
    let status = json!({ "targets": [{ "requestedClass": "replicated", "golden": GOLDEN, "claimUID": "pvc" }] });
    let recorded = image("win", "https://x.example/a.qcow2", None, status);
    assert_eq!(broken(&verdict(facts_of(plain, None, &[recorded]))), [Rule::R23]);
}

/// Put back from a backup without its DataVolume, while nothing is on record: it waits for a person's word, and its clones for that.
#[test]
fn r13_a_volume_that_was_not_taken_over_is_cloned_by_nobody() {
    let url = "https://x.example/a.qcow2";
    let told = |reason: &str| {
        json!({ "targets": [{ "requestedClass": "replicated" }],
        "conditions": [{ "type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": "2026-11-29T10:00:00Z" }] })
    };
    let mut claim = claim();
    claim["metadata"]["labels"][marks::IDENTITY] = identity(url).into();
    let of =
        |access: Option<Value>, reason: &str| broken(&verdict(facts_of(claim.clone(), None, &[image("win", url, access, told(reason))])));
    assert_eq!(of(None, "GoldenReplaced"), [Rule::R13]);
    assert_eq!(of(None, "Resolving"), [], "it has not been looked at");
    let few = json!({ "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } });
    assert_eq!(of(Some(few), "Resolving"), [Rule::R18]);
}

/// R18: a licensed golden outlives its image, and another image of its name says nothing about it.
#[rstest]
#[case::nobodys(&[], &[Rule::R18], None)]
#[case::of_the_same_name(&[("win", "https://x.example/other.qcow2", false, None)], &[Rule::R18], None)]
#[case::on_record_without_its_claim(&[("win", "https://x.example/other.qcow2", false, Some(json!({ "golden": GOLDEN })))], &[Rule::R18], None)]
#[case::its_own_made_again(&[("win", "https://x.example/a.qcow2", false, None)], &[], Some("win"))]
#[case::its_own_beside_an_older_one(&[("also", "https://x.example/other.qcow2", false, Some(json!({ "golden": GOLDEN }))), ("win", "https://x.example/a.qcow2", true, None)], &[Rule::R18], Some("win"))]
#[case::on_its_record(&[("win", "https://x.example/other.qcow2", false, Some(json!({ "golden": GOLDEN, "claimUID": "pvc" })))], &[], Some("win"))]
fn r18_who_decides_is_the_image_it_belongs_to(
    #[case] all: &[(&str, &str, bool, Option<Value>)],
    #[case] expected: &[Rule],
    #[case] belongs: Option<&str>,
    #[values(false, true)] has_volume: bool,
) {
    let mut claim = claim();
    claim["metadata"]["labels"][marks::IDENTITY] = identity("https://x.example/a.qcow2").into();
    claim["metadata"]["annotations"][marks::ACCESS] = LICENSED.into();
    let volume = has_volume.then(|| with_volume(&mut claim));
    let all: Vec<Value> = all
        .iter()
        .map(|(name, url, is_selected, target)| {
            let few = json!({ "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } });
            let mut target = target.clone().unwrap_or_else(|| json!({}));
            target["requestedClass"] = "replicated".into();
            image(name, url, is_selected.then_some(few), json!({ "targets": [target] }))
        })
        .collect();
    let source = facts_of(claim, volume, &all);
    assert!(matches!(&source, SourceFacts::Golden(golden) if golden.image.as_deref() == belongs), "{source:?}");
    let verdict = verdict(source);
    assert_eq!(broken(&verdict), expected, "{verdict:?}");
}

/// What does not say what it is goes by its name, and is never for more than it says itself.
#[rstest]
#[case::says_nothing(None, Some("win"))]
#[case::says_for_whom(Some(LICENSED), None)]
#[case::says_for_all(Some("AllTenants"), None)]
fn r18_a_golden_without_an_identity(#[case] access: Option<&str>, #[case] belongs: Option<&str>) {
    let mut claim = claim();
    if let Some(access) = access {
        claim["metadata"]["annotations"][marks::ACCESS] = access.into();
    }
    let volume = with_volume(&mut claim);
    let source = facts_of(claim, Some(volume), &[image("win", "https://x.example/a.qcow2", None, json!({}))]);
    assert!(matches!(&source, SourceFacts::Golden(golden) if golden.image.as_deref() == belongs), "{source:?}");
}

/// An import of another image that has no claim yet: nothing that the image of its name makes.
#[test]
fn r13_another_images_import_is_not_waited_for() {
    let url = "https://x.example/a.qcow2";
    let of = |identity: String| {
        let volume = json!({ "metadata": { "name": GOLDEN, "namespace": CATALOG, "labels": { marks::GOLDEN: "true", marks::IDENTITY: identity } }, "spec": {}, "status": { "phase": "Pending" } });
        let found = Found { volume: Some(serde_json::from_value(volume).expect("a DataVolume")), ..Found::default() };
        let all = images(&[image("win", url, None, json!({}))]);
        source_facts(&Source::Claim(GOLDEN.to_owned()), &found, &all, CATALOG).expect("everything has been read")
    };
    assert!(matches!(of(identity(url)), SourceFacts::Golden(_)));
    assert_eq!(of(identity("https://x.example/other.qcow2")), SourceFacts::Missing);
}

/// CDI has not made the claim yet: the fence is on the DataVolume, and one that is being deleted is cloned by nobody.
#[rstest]
#[case::open(json!({}), &[])]
#[case::retiring(json!({ "annotations": { marks::RETIRING: "since 2026" } }), &[Rule::R23])]
#[case::closed(json!({ "annotations": { marks::RETIRING: "closed since 2026" } }), &[Rule::R23])]
#[case::retired(json!({ "annotations": { marks::RETIRING: "closed since 2026", marks::RETIRED: "2026" } }), &[Rule::R23])]
#[case::going(json!({ "deletionTimestamp": "2026-11-29T10:00:00Z" }), &[Rule::R13])]
#[case::not_ours(json!({ "labels": {}, "annotations": { marks::RETIRING: "closed since 2026" } }), &[])]
fn r23_a_golden_without_a_claim_is_fenced_by_its_data_volume(#[case] change: Value, #[case] expected: &[Rule]) {
    let url = "https://x.example/a.qcow2";
    let mut metadata =
        json!({ "name": GOLDEN, "namespace": CATALOG, "uid": "dv", "labels": { marks::GOLDEN: "true", marks::IDENTITY: identity(url) } });
    metadata.as_object_mut().expect("a map").extend(change.as_object().expect("a map").clone());
    let volume = serde_json::from_value(json!({ "metadata": metadata, "spec": {}, "status": { "phase": "Pending" } }));
    let found = Found { volume: Some(volume.expect("a DataVolume")), ..Found::default() };
    let all = images(&[image("win", url, None, json!({}))]);
    let source = source_facts(&Source::Claim(GOLDEN.to_owned()), &found, &all, CATALOG).expect("everything has been read");
    let verdict = verdict(source);
    assert_eq!(broken(&verdict), expected, "{verdict:?}");
}

/// CDI made the claim from what it knew of the DataVolume before that was closed; or the claim lost its mark, and goes with the DataVolume.
#[rstest]
#[case::the_claim_came_open(&[], &[(marks::RETIRING, "closed since 2026")], true, true)]
#[case::both_open(&[], &[], true, false)]
#[case::half_opened(&[], &[(marks::RETIRING, "since 2026")], true, true)]
#[case::half_closed(&[(marks::RETIRING, "closed since 2026")], &[], true, true)]
#[case::without_its_mark(&[], &[(marks::RETIRING, "closed since 2026")], false, true)]
fn r23_of_claim_and_data_volume_the_stricter_counts(
    #[case] on_claim: &[(&str, &str)],
    #[case] on_volume: &[(&str, &str)],
    #[case] is_marked: bool,
    #[case] is_fenced: bool,
) {
    let map =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>();
    let mut claim = claim();
    claim["status"]["phase"] = "Pending".into();
    let mut volume = with_volume(&mut claim);
    volume.metadata.annotations = Some(map(on_volume));
    volume.status = serde_json::from_value(json!({ "phase": "ImportInProgress" })).expect("a status");
    claim["metadata"]["annotations"] = json!(map(on_claim));
    if !is_marked {
        claim["metadata"]["labels"] = json!({});
    }
    let verdict = verdict(facts_of(claim, Some(volume), &[]));
    assert_eq!(broken(&verdict).contains(&Rule::R23), is_fenced, "{verdict:?}");
    assert!(broken(&verdict).contains(&Rule::R13), "nobody finishes what no image makes: {verdict:?}");
}

/// Its DataVolume went, and Kubernetes has not collected it yet: nobody fills it any more. A bound one is a golden that stays.
#[rstest]
#[case::never_bound("Pending", &[Rule::R13])]
#[case::bound("Bound", &[])]
fn r13_a_claim_whose_data_volume_is_gone(#[case] phase: &str, #[case] expected: &[Rule]) {
    let mut claim = claim();
    let former = with_volume(&mut claim);
    claim["status"]["phase"] = phase.into();
    assert_eq!(broken(&verdict(facts_of(claim.clone(), None, &[]))), expected);
    // Made anew under its name: another one.
    let mut anew = former;
    anew.metadata.uid = Some("another".to_owned());
    assert_eq!(broken(&verdict(facts_of(claim, Some(anew), &[]))), expected);
}
