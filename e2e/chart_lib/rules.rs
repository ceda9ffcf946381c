//! The same vectors, asked of the daemon's rules: sizes, classes, and the words of each refusal that a chart and the daemon share.

use std::collections::BTreeMap;

use golden_catalog::{
    model::DiskSize,
    rules::{
        Reason,
        class::{ClassFacts, Classes, Shape, StatedClass, default_class},
        clone::{
            Access, CloneRequest, Fence, GoldenFacts, PoolFacts, Profile, Progress, Situation, Source, SourceFacts, SourceVolume,
            StatedSize, Subject, SubjectKind, Target, Verdict, judge,
        },
        freeze::{PoolClass, PoolDisk, PoolTemplate, frozen_class},
        pool::Pool,
        size::{Overheads, Volume, VolumeMode, in_one_unit},
    },
};
use serde_json::Value;

use crate::vectors::{Case, VECTORS, filled, text};

/// The messages that the daemon has too; the others are about what only a chart resolves, or are told by the daemon as warnings.
const SHARED: [&str; 9] = [
    "noGolden",
    "goldenFailed",
    "goldenTerminating",
    "goldenRetiring",
    "goldenRetired",
    "noClass",
    "classMismatch",
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

/// What stands under the golden's name, as the daemon would have read it.
fn source(case: &Case, observed: &Value, golden: &str) -> SourceFacts {
    let size = |of: Option<&Value>, field| of.and_then(|of| text(of, field)).map(|size| size.parse().expect("size"));
    let named = |field: &str, key: &str| list(observed, field).iter().find(|item| text(item, key) == Some(golden));
    let claim = named("claims", "name");
    let image = list(observed, "images").first();
    let target = image.and_then(|image| list(image, "targets").iter().find(|target| text(target, "golden") == Some(golden)));
    let volume = named("volumes", "name");
    let Some(stands) = claim.or(target).or(volume) else { return SourceFacts::Missing };
    let failed = match (image.and_then(|image| image.get("failed")), volume.and_then(|volume| text(volume, "phase"))) {
        (Some(failed), _) => Some((text(failed, "reason").expect("reason"), text(failed, "message").expect("message"))),
        (None, Some("Failed")) => Some(("ImportFailed", "its DataVolume is in phase Failed")),
        _ => None,
    };
    let terminating = claim.is_some_and(|claim| is(claim, "terminating"));
    let progress = match failed {
        _ if terminating => Progress::Terminating,
        Some((reason, message)) => Progress::Failed { reason: reason.parse::<Reason>().expect("a reason"), message: message.to_owned() },
        None => Progress::Ready,
    };
    let fence = match claim {
        Some(claim) if is(claim, "retired") => Fence::Retired,
        Some(claim) if is(claim, "retiring") => Fence::Retiring,
        _ => Fence::Open,
    };
    let all = list(observed, "claims").iter().map(|claim| (text(claim, "name"), text(claim, "class")));
    SourceFacts::Golden(GoldenFacts {
        name: golden.to_owned(),
        image: Some(case.name.clone()),
        access: Access::AllTenants,
        progress,
        volume: SourceVolume {
            class: text(stands, "class").map(str::to_owned),
            request: size(claim, "request").or_else(|| size(target, "size")),
            capacity: size(claim, "capacity"),
            volume_mode: claim.and_then(|claim| text(claim, "mode")).and_then(VolumeMode::parse),
        },
        fence,
        targets: all.map(|(name, class)| Target { golden: name.expect("a name").to_owned(), class: class.map(str::to_owned) }).collect(),
    })
}

/// The daemon refuses what the chart refuses, and after the name of the object with the same words.
#[test]
fn refusals_have_the_same_words() {
    let mut judged = BTreeMap::<&str, usize>::new();
    for case in &VECTORS.decisions {
        let Some(message) = case.error.as_deref().filter(|message| SHARED.contains(message)) else { continue };
        let (Some(observed), golden) = (&case.observed, &case.with["golden"]) else { continue };
        let nothing_under_the_name = |field: &str| !list(observed, field).iter().any(|item| text(item, "name") == Some(golden));
        if message == "noGolden" && !(nothing_under_the_name("claims") && nothing_under_the_name("volumes")) {
            continue;
        }
        let mut classes: Classes = list(observed, "classes").iter().map(class).collect();
        for name in list(observed, "claims").iter().filter_map(|claim| text(claim, "class")).chain(case.storage_class.as_deref()) {
            // A class that the vector does not describe exists, and grows volumes.
            let plain = || ClassFacts { name: name.to_owned(), allows_expansion: true, ..ClassFacts::default() };
            classes.entry(name.to_owned()).or_insert_with(plain);
        }
        let overhead = observed.get("overhead").cloned().unwrap_or_default();
        let by_class = overhead.get("classes").and_then(Value::as_object).cloned().unwrap_or_default();
        let overheads = Overheads::parse(
            text(&overhead, "global"),
            by_class.iter().filter_map(|(class, share)| Some((class.as_str(), share.as_str()?))),
        );
        let template = observed.get("template");
        let pool = if case.image.contains_key("disk") {
            Pool::new("tenant-a", Pool::VM_DISK, "web")
        } else {
            Pool::workers("tenant-a", "kubernetes-alpha-gpu")
        };
        let request = CloneRequest {
            subject: Subject { kind: SubjectKind::DataVolume, namespace: "tenant-a".into(), name: "disk".into(), disk: None },
            source: Source::Claim(golden.clone()),
            through: None,
            shape: Shape::Storage,
            class: StatedClass::of(case.storage_class.as_deref()),
            size: case.disk_size.as_ref().map_or(StatedSize::Absent, |size| StatedSize::Bytes(size.parse().expect("size"))),
            volume_mode: None,
            access_modes: vec![],
            annotations: BTreeMap::new(),
            pool,
        };
        let profiles: BTreeMap<String, Profile> = BTreeMap::new();
        let labels = BTreeMap::new();
        let uses_golden = template.and_then(|template| text(template, "golden")) == Some(golden);
        let situation = Situation {
            catalog_namespace: "cozy-public",
            source: Ok(source(case, observed, golden)),
            classes: Ok(&classes),
            profiles: Ok(&profiles),
            overheads: &overheads,
            pool: Ok(PoolFacts { class: frozen(list(observed, "disks"), template), uses_golden }),
            namespace_labels: Ok(&labels),
            node_local: &[],
        };
        let Verdict::Refuse(violations) = judge(&request, &situation) else { panic!("{:?} is not refused", case.name) };
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
