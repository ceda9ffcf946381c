//! The same vectors, asked of the daemon's rules: sizes, classes, and the words of each refusal that a chart and the daemon share.

use std::collections::BTreeMap;

use golden_catalog::{
    admission::{Found, ImageFacts, Images, source_facts},
    api::GoldenImage,
    foreign::Quantity,
    model::DiskSize,
    rules::{
        class::{ClassFacts, Classes, Shape, StatedClass, default_class},
        clone::{CloneRequest, PoolFacts, Profile, Situation, Source, SourceFacts, StatedSize, Subject, SubjectKind, Verdict, judge},
        freeze::{PoolClass, PoolDisk, PoolTemplate, frozen_class},
        marks,
        pool::Pool,
        size::{Overheads, Volume, VolumeMode, in_one_unit},
    },
    world::Sink as _,
};
use serde_json::{Value, json};

use crate::vectors::{Case, VECTORS, answers, filled, text};

const CATALOG: &str = "cozy-public";

/// The messages that the daemon has too; the others are about what only a chart resolves, or are told by the daemon as warnings.
const SHARED: [&str; 13] = [
    "noGolden",
    "goldenFailed",
    "goldenTerminating",
    "goldenRetiring",
    "goldenRetired",
    "noClass",
    "noClassYet",
    "classMismatch",
    "classMismatchAlone",
    "classMismatchOfMany",
    "noSize",
    "tooSmall",
    "tooLarge",
];

fn list<'a>(of: &'a Value, field: &str) -> &'a [Value] {
    of.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is(of: &Value, field: &str) -> bool {
    of.get(field).and_then(Value::as_bool).unwrap_or_default()
}

/// The vectors' timestamps differ in month at most, so their digits order them.
fn created(of: &Value) -> i64 {
    text(of, "created").unwrap_or_default().chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or_default()
}

fn class(of: &Value) -> (String, ClassFacts) {
    let name = text(of, "name").expect("a class has a name").to_owned();
    let facts = ClassFacts {
        name: name.clone(),
        allows_expansion: is(of, "expandable"),
        is_default: is(of, "default"),
        is_beta_default: is(of, "betaDefault"),
        is_virt_default: is(of, "virtDefault"),
        created: created(of),
        ..ClassFacts::default()
    };
    (name, facts)
}

fn frozen(disks: &[Value], template: Option<&Value>) -> Option<PoolClass> {
    let disk = |disk: &'static Value| PoolDisk {
        class: text(disk, "class").unwrap_or_default(),
        is_bound: is(disk, "bound"),
        created: created(disk),
        is_clone: text(disk, "golden").is_some(),
    };
    // The vectors live as long as the process.
    let disks: Vec<&'static Value> = disks.iter().map(|disk| &*Box::leak(Box::new(disk.clone()))).collect();
    let told = template.and_then(|template| text(template, "class").or_else(|| text(template, "recordedClass")));
    let template = template.map(|_| PoolTemplate { class: told, created: 0 });
    frozen_class(disks.into_iter().map(disk), template)
}

#[test]
fn sizes_in_one_unit() {
    for vector in &VECTORS.comparisons {
        let [disk, golden]: [DiskSize; 2] = [&vector.disk, &vector.golden].map(|size| size.parse().expect("size"));
        let [a, b] = vector.shown.clone();
        assert_eq!(in_one_unit(disk, golden), (a, b), "{vector:?}");
    }
}

#[test]
fn claims_on_a_file_system() {
    for vector in &VECTORS.claims {
        let overheads = Overheads::parse(Some(&vector.overhead), []);
        let volume = Volume::new("any", VolumeMode::Filesystem, &overheads, None);
        assert_eq!(volume.claim_for(vector.disk.parse().expect("size")).bytes().to_string(), vector.bytes, "{vector:?}");
    }
}

#[test]
fn default_classes() {
    for vector in &VECTORS.default_classes {
        let classes: Classes = vector.classes.iter().map(class).collect();
        let found = default_class(&classes, Shape::Storage).map(|class| class.name.as_str());
        assert_eq!(found.unwrap_or_default(), vector.class, "{vector:?}");
    }
}

/// Whose a disk is, the daemon tells by its VM and not by names, so the vectors about names are the chart's alone.
#[test]
fn frozen_classes() {
    let mut judged = 0;
    for vector in VECTORS.frozen_classes.iter().filter(|vector| vector.stated.is_none() && vector.siblings.is_empty()) {
        let foreign =
            |disk: &Value| text(disk, "pool").is_some_and(|pool| pool.contains('/') && pool != "tenant-a/KubernetesNodes/alpha-gpu");
        let own: Vec<Value> = vector.disks.iter().filter(|disk| !foreign(disk)).cloned().collect();
        let classes: Classes = vector.classes.iter().map(class).collect();
        let (name, from) = match frozen(&own, vector.template.as_ref()) {
            Some(found) => (found.class, format!("pool tenant-a/KubernetesNodes/alpha-gpu has by {}", found.by)),
            None => {
                (default_class(&classes, Shape::Storage).map(|class| class.name.clone()).unwrap_or_default(), "is the default".to_owned())
            }
        };
        assert_eq!((Some(name.as_str()), Some(from.as_str())), (Some(vector.class.as_str()), vector.from.as_deref()), "{vector:?}");
        judged += 1;
    }
    assert!(judged > 10, "{judged}");
}

/// What the daemon reads under the golden's name, from the objects that the vector says are there. Every claim carries our mark: of one
/// without it the daemon only warns.
fn source(observed: &Value, golden: &str) -> SourceFacts {
    let named = |field: &str| list(observed, field).iter().find(|item| text(item, "name") == Some(golden));
    let uid = format!("uid-{golden}");
    let claim = named("claims").map(|claim| {
        let mut labels = BTreeMap::from([(marks::GOLDEN, "true")]);
        if is(claim, "temporary") {
            labels.insert(marks::CDI_OWNED_BY, "someone");
        }
        let fence = [("retiring", marks::RETIRING), ("retired", marks::RETIRED)];
        let notes: BTreeMap<_, _> = fence.into_iter().filter(|(field, _)| is(claim, field)).map(|(_, mark)| (mark, "now")).collect();
        json!({
            "metadata": {
                "name": golden, "namespace": CATALOG, "uid": uid, "labels": labels, "annotations": notes,
                "deletionTimestamp": is(claim, "terminating").then_some("2026-01-01T00:00:00Z"),
                "ownerReferences": [{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": golden, "uid": "dv", "controller": true}],
            },
            "spec": {"storageClassName": claim["class"], "volumeMode": claim["mode"], "resources": {"requests": {"storage": claim["request"]}}},
            "status": {"phase": if is(claim, "pending") { "Pending" } else { "Bound" }, "capacity": {"storage": claim["capacity"]}},
        })
    });
    let volume = named("volumes").or(named("claims")).map(|volume| {
        let phase = text(volume, "phase").unwrap_or("Succeeded");
        json!({"metadata": {"name": golden, "namespace": CATALOG, "uid": "dv"}, "spec": {}, "status": {"phase": phase}})
    });
    let found = Found {
        claim: claim.map(|claim| serde_json::from_value(without_nulls(claim)).expect("a claim")),
        volume: volume.map(|volume| serde_json::from_value(volume).expect("a DataVolume")),
        snapshot: None,
    };
    let images = Images::default();
    let mut sink = images.store.sink(|image: GoldenImage| Some(ImageFacts::of(&image)));
    sink.begin();
    for image in list(observed, "images") {
        let mut image = image.clone();
        image["apiVersion"] = "cozystack.io/v1alpha1".into();
        image["kind"] = "GoldenImage".into();
        sink.apply(serde_json::from_value(image).expect("a GoldenImage"));
    }
    sink.synced();
    source_facts(&Source::Claim(golden.to_owned()), &found, &images, CATALOG).expect("everything has been read")
}

/// An absent field instead of a null.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            map.into_iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key, without_nulls(value))).collect()
        }
        other => other,
    }
}

/// The daemon's verdict on the disk that a chart renders for a vector: a clone of `golden` in `stated`.
fn verdict(case: &Case, observed: &Value, golden: &str, stated: Option<&str>) -> Verdict {
    let mut classes: Classes = list(observed, "classes").iter().map(class).collect();
    for name in list(observed, "claims").iter().filter_map(|claim| text(claim, "class")).chain(stated) {
        // A class that the vector does not describe exists, and grows volumes.
        let plain = || ClassFacts { name: name.to_owned(), allows_expansion: true, ..ClassFacts::default() };
        classes.entry(name.to_owned()).or_insert_with(plain);
    }
    let overhead = observed.get("overhead").cloned().unwrap_or_default();
    let by_class = overhead.get("classes").and_then(Value::as_object).cloned().unwrap_or_default();
    let overheads =
        Overheads::parse(text(&overhead, "global"), by_class.iter().filter_map(|(class, share)| Some((class.as_str(), share.as_str()?))));
    let minimums = observed.get("minimums").and_then(Value::as_object).cloned().unwrap_or_default();
    let profiles: BTreeMap<String, Profile> = minimums
        .iter()
        .map(|(class, minimum)| {
            (class.clone(), Profile { minimum: minimum.as_str().and_then(|size| size.parse().ok()), ..Profile::default() })
        })
        .collect();
    let template = observed.get("template");
    let pool = if case.image.contains_key("disk") {
        Pool::new("tenant-a", Pool::VM_DISK, "web")
    } else {
        Pool::workers("tenant-a", "kubernetes-alpha-gpu")
    };
    let size = case.disk_size.as_ref().map(|size| size.as_str().map_or_else(|| size.to_string(), str::to_owned));
    let request = CloneRequest {
        subject: Subject { kind: SubjectKind::DataVolume, namespace: "tenant-a".into(), name: "disk".into(), disk: None },
        source: Source::Claim(golden.to_owned()),
        through: None,
        shape: Shape::Storage,
        class: StatedClass::of(stated),
        size: size.filter(|size| !size.is_empty()).map_or(StatedSize::Absent, |size| {
            let quantity: Quantity = serde_json::from_value(json!(size)).expect("a quantity");
            quantity.bytes().and_then(DiskSize::from_bytes).map_or(StatedSize::Unreadable(size), StatedSize::Bytes)
        }),
        volume_mode: None,
        content_type: None,
        access_modes: vec![],
        annotations: BTreeMap::new(),
        pool,
    };
    let labels = BTreeMap::new();
    let uses_golden = template.and_then(|template| text(template, "golden")) == Some(golden);
    let situation = Situation {
        catalog_namespace: CATALOG,
        source: Ok(source(observed, golden)),
        classes: Ok(&classes),
        profiles: Ok(&profiles),
        overheads: &overheads,
        pool: Ok(PoolFacts { class: frozen(list(observed, "disks"), template), uses_golden }),
        namespace_labels: Ok(&labels),
        node_local: &[],
    };
    judge(&request, &situation)
}

/// The daemon refuses what the chart refuses, and after the name of the object with the same words.
#[test]
fn refusals_have_the_same_words() {
    let mut judged = BTreeMap::<&str, usize>::new();
    for case in &VECTORS.decisions {
        let Some(message) = case.error.as_deref().filter(|message| SHARED.contains(message)) else { continue };
        let (Some(observed), golden) = (&case.observed, &case.with["golden"]) else { continue };
        let Verdict::Refuse(violations) = verdict(case, observed, golden, case.storage_class.as_deref()) else {
            panic!("{:?} is not refused", case.name)
        };
        let said: Vec<&str> =
            violations.iter().filter_map(|violation| violation.message.split_once(": ")).map(|(_, words)| words).collect();
        let expected = filled(message, case);
        let (_, expected) = expected.split_once(": ").expect("a subject");
        // The daemon ends a failure with its remedy, which a chart does not know.
        let same = |words: &&str| if message == "goldenFailed" { words.starts_with(expected) } else { *words == expected };
        assert!(said.iter().any(same), "{}\n  chart  {expected}\n  daemon {said:#?}", case.name);
        *judged.entry(message).or_default() += 1;
    }
    let unmet: Vec<_> = SHARED.iter().filter(|message| !judged.contains_key(*message)).collect();
    assert!(unmet.is_empty(), "no vector reached the daemon for {unmet:?}");
}

/// The daemon admits every clone that the chart renders: under the name the chart gives it, in the class it writes.
#[test]
fn what_a_chart_renders_is_admitted() {
    let mut judged = 0;
    for (case, answer) in VECTORS.decisions.iter().zip(answers("decisions", VECTORS.decisions.len())) {
        let (None, Some(observed), true) = (&case.error, &case.observed, is(answer, "clone")) else { continue };
        let golden = text(answer, "golden").expect("a clone has a golden");
        // A pool that has its clones goes on as it was, and no new disk is asked for; the daemon would refuse one.
        let waived = |disk: &Value| is(disk, "finished") && text(disk, "golden") == Some(golden);
        if list(observed, "disks").iter().any(waived) {
            continue;
        }
        let verdict = verdict(case, observed, golden, text(answer, "storageClass").filter(|class| !class.is_empty()));
        assert!(matches!(verdict, Verdict::Allow { .. }), "{}: {golden}\n{verdict:#?}", case.name);
        judged += 1;
    }
    assert!(judged > 30, "{judged}");
}
