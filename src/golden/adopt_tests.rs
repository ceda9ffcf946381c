//! R5 and R7 on the objects themselves: what is read of a claim and its DataVolume, and what follows for who asks beforehand.

use serde_json::{Value, json};

use super::{
    Foretold, GoldenView, adopted_marks, foretell,
    observe::golden_view,
    tests::{http, observed},
    wanted,
};
use crate::{
    api::{GoldenImageStatus, TargetStatus},
    foreign::{Claim, DataVolume},
    model::VirtualMachineDefaults,
    rules::{
        Reason,
        adopt::Origin,
        marks,
        provenance::{Consent, Provenance},
    },
};

const NAME: &str = "vm-default-images-a";
const OWN: &str = "0a000000-0000-4000-8000-000000000001";
const FORMER: &str = "0a000000-0000-4000-8000-000000000002";

/// A former golden as CDI made it, by its populators.
fn volume() -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "name": NAME, "namespace": "cozy-public", "uid": "dv", "labels": {}, "annotations": {} },
        "spec": { "source": { "http": { "url": "https://e.example/a.qcow2" } }, "storage": {} },
        "status": { "phase": "Succeeded" },
    })
}

fn claim() -> Value {
    let owner = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": NAME, "uid": "dv", "controller": true });
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": NAME, "namespace": "cozy-public", "uid": OWN, "labels": {}, "ownerReferences": [owner],
            "annotations": { marks::CDI_CREATED_FOR: "dv" },
        },
        "spec": { "storageClassName": "replicated", "volumeMode": "Block", "accessModes": ["ReadWriteMany"] },
        "status": { "phase": "Bound" },
    })
}

fn view(change: impl FnOnce(&mut Value, &mut Value)) -> GoldenView {
    let (mut volume, mut claim) = (volume(), claim());
    change(&mut volume, &mut claim);
    let volume: Option<DataVolume> = serde_json::from_value(volume).expect("a DataVolume");
    let claim: Claim = serde_json::from_value(claim).expect("a claim");
    let image = http().image.expect("image");
    let identity = image.identity(None).map(|identity| identity.to_string());
    golden_view(volume.as_ref(), Some(&claim), &image.name, identity.as_deref())
}

fn annotate(object: &mut Value, key: &str, value: &str) {
    object["metadata"]["annotations"][key] = value.into();
}

fn label(object: &mut Value, key: &str, value: &str) {
    object["metadata"]["labels"][key] = value.into();
}

fn forget_for_whom(claim: &mut Value) {
    claim["metadata"]["annotations"] = json!({});
}

type Change = fn(&mut Value, &mut Value);

/// What `foretell` says: nothing, taken over, or refused with this reason.
type Foretelling = Option<Result<(), Reason>>;

#[test]
fn r7_what_is_read_of_a_former_golden() {
    let cases: [(&str, Change, Option<&str>); 11] = [
        ("as made", |_, _| {}, None),
        ("populated", |_, claim| annotate(claim, marks::CDI_PRIME, &format!("prime-{OWN}")), None),
        ("populated as another", |_, claim| annotate(claim, marks::CDI_PRIME, &format!("prime-{FORMER}")), Some(FORMER)),
        ("velero under a living volume", |_, claim| label(claim, marks::VELERO_RESTORE, "r"), Some("velero.io/restore-name: r")),
        (
            "velero and imported anew",
            |volume, claim| [volume, claim].into_iter().for_each(|object| label(object, marks::VELERO_RESTORE, "r")),
            None,
        ),
        ("another volume", |_, claim| annotate(claim, marks::CDI_CREATED_FOR, "former"), Some("another DataVolume")),
        ("cdi was told of what it made", |_, claim| annotate(claim, marks::CDI_POPULATED_FOR, NAME), None),
        (
            "cdi was told",
            |_, claim| {
                forget_for_whom(claim);
                annotate(claim, marks::CDI_POPULATED_FOR, NAME)
            },
            Some("populatedFor"),
        ),
        (
            "snapshot",
            |_, claim| {
                forget_for_whom(claim);
                claim["spec"]["dataSource"] = json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s" });
            },
            Some("VolumeSnapshot"),
        ),
        ("static volume", |volume, _| annotate(volume, marks::CDI_STATIC_VOLUME, ""), Some("checkStaticVolume")),
        ("taken over as another", |_, claim| annotate(claim, marks::ADOPT, FORMER), Some(FORMER)),
    ];
    for (case, change, back) in cases {
        let found = view(change).stranger.expect("something stands there");
        match (found.provenance, back) {
            (Provenance::FilledHere, None) => {}
            (Provenance::BroughtBack(why), Some(part)) => assert!(why.contains(part), "{case}: {why}"),
            (found, _) => panic!("{case}: {found:?}"),
        }
    }
}

/// A claim without DataVolume that has what CDI's former garbage collection left, and the marks of the former worker catalog.
#[test]
fn r7_a_claim_alone_says_by_its_uid_or_not_at_all() {
    let cases: [(&str, Change, Provenance); 2] = [
        ("filled here", |_, claim| annotate(claim, marks::CDI_PRIME, &format!("prime-{OWN}")), Provenance::FilledHere),
        ("nothing says", |_, _| {}, Provenance::Unsaid),
    ];
    for (case, change, expected) in cases {
        let found = view(|volume, claim| {
            change(volume, claim);
            annotate(claim, marks::CDI_GARBAGE_COLLECTED, "true");
            claim["metadata"]["ownerReferences"] = json!([]);
            *volume = Value::Null;
        });
        assert_eq!(found.stranger.map(|found| found.provenance), Some(expected), "{case}");
    }
}

#[test]
fn r7_what_is_read_as_consent() {
    let cases: [(&str, Change, Consent); 5] = [
        ("none", |_, _| {}, Consent::No),
        ("word on the volume", |volume, _| annotate(volume, marks::ADOPT, "true"), Consent::OfTheName),
        ("own", |_, claim| annotate(claim, marks::ADOPT, OWN), Consent::OfThisClaim),
        ("own on the volume", |volume, _| annotate(volume, marks::ADOPT, OWN), Consent::OfThisClaim),
        ("copied", |_, claim| annotate(claim, marks::ADOPT, FORMER), Consent::No),
    ];
    for (case, change, expected) in cases {
        assert_eq!(view(change).stranger.map(|found| found.consent), Some(expected), "{case}");
    }
}

/// Marks as the golden of this image carries them.
fn mark(volume: &mut Value, claim: &mut Value) {
    let identity = http().image.expect("image").identity(None).expect("known").to_string();
    for object in [volume, claim] {
        for (key, value) in [(marks::GOLDEN, marks::GOLDEN_VALUE), (marks::IMAGE, "a"), (marks::IDENTITY, &identity)] {
            label(object, key, value);
        }
    }
}

/// Our own golden under another name of the image: known by the identity on its marks, unless an object beside it lacks them.
#[test]
fn r5_what_is_this_image_under_another_name() {
    let renamed = |volume: &mut Value, claim: &mut Value| {
        mark(volume, claim);
        for object in [volume, claim] {
            label(object, marks::IMAGE, "b");
        }
    };
    // `None`: what it is is read from elsewhere.
    let cases: [(&str, Change, Option<bool>); 6] = [
        ("both say so", |_, _| {}, Some(true)),
        ("its DataVolume is gone", |volume, _| *volume = Value::Null, Some(true)),
        ("another identity", |_, claim| label(claim, marks::IDENTITY, "other"), Some(false)),
        ("a DataVolume of another identity", |volume, _| label(volume, marks::IDENTITY, "other"), Some(false)),
        (
            "another that was taken over as it is",
            |volume, claim| {
                label(claim, marks::IDENTITY, "other");
                annotate(claim, marks::ADOPT, OWN);
                *volume = Value::Null;
            },
            Some(false),
        ),
        ("a DataVolume without the mark", |volume, _| volume["metadata"]["labels"] = json!({}), None),
    ];
    for (case, change, expected) in cases {
        let found = view(|volume, claim| {
            renamed(volume, claim);
            change(volume, claim);
        });
        let said = match found.stranger.map(|found| found.origin) {
            Some(Origin::ThisImage) => Some(true),
            Some(Origin::Other(why)) if why.contains("the mark of b (identity") => Some(false),
            _ => None,
        };
        assert_eq!(said, expected, "{case}");
    }
}

#[test]
fn r23_what_says_that_a_golden_is_to_go() {
    for (key, expected) in [(marks::RETIRE_REQUESTED, true), (marks::FORCE_RETIRE, true), (marks::ACCESS, false)] {
        let found = view(|_, claim| annotate(claim, key, "now"));
        assert_eq!(found.claim.map(|claim| claim.is_asked_to_go), Some(expected), "{key}");
    }
}

#[test]
fn r7_what_plan_foretells() {
    let cases: [(&str, Option<&str>, Change, Foretelling); 11] = [
        ("former", None, |_, _| {}, Some(Ok(()))),
        (
            "former of another source",
            None,
            |volume, _| volume["spec"]["source"]["http"]["url"] = "https://e.example/b".into(),
            Some(Err(Reason::NameConflict)),
        ),
        ("former restored", None, |_, claim| annotate(claim, marks::CDI_CREATED_FOR, "former"), Some(Err(Reason::GoldenReplaced))),
        (
            "former restored and meant",
            None,
            |_, claim| {
                annotate(claim, marks::CDI_CREATED_FOR, "former");
                annotate(claim, marks::ADOPT, OWN)
            },
            Some(Ok(())),
        ),
        ("on record", Some(OWN), mark, None),
        ("recorded otherwise", Some(FORMER), mark, Some(Err(Reason::GoldenReplaced))),
        (
            "recorded otherwise and meant",
            Some(FORMER),
            |volume, claim| {
                mark(volume, claim);
                annotate(claim, marks::ADOPT, OWN)
            },
            Some(Ok(())),
        ),
        ("recorded otherwise without mark", Some(FORMER), |_, _| {}, Some(Err(Reason::GoldenReplaced))),
        ("marked and made here", None, mark, None),
        (
            "marked and restored",
            None,
            |volume, claim| {
                mark(volume, claim);
                annotate(claim, marks::CDI_CREATED_FOR, "former");
                annotate(claim, marks::ADOPT, "true")
            },
            Some(Err(Reason::GoldenReplaced)),
        ),
        (
            "marked and alone",
            None,
            |volume, claim| {
                mark(volume, claim);
                claim["metadata"]["ownerReferences"] = json!([]);
                *volume = Value::Null
            },
            Some(Err(Reason::GoldenReplaced)),
        ),
    ];
    for (case, recorded, change, expected) in cases {
        let image = http().image.expect("image");
        let found = foretell(&wanted(&image, None, &image.targets[0], NAME), recorded, &view(change));
        let found = found.map(|found| match found {
            Foretold::TakenOver => Ok(()),
            Foretold::Refused(reason, _) => Err(reason),
        });
        assert_eq!(found, expected, "{case}");
    }
}

/// What the entry says of the image stands on what is taken over as on what is made; nothing that only an import knows.
#[test]
fn r5_what_is_taken_over_says_what_the_entry_says() {
    let reference = format!("quay.io/kairos/ubuntu@sha256:{}", "a".repeat(64));
    let image = observed(json!({
        "source": { "containerDisk": { "reference": reference } },
        "operatingSystem": { "family": "kairos", "kubernetesVersion": "v1.35.6+k3s1" },
    }))
    .image
    .expect("image");
    let told =
        adopted_marks(&image, &GoldenImageStatus::default(), &TargetStatus::default(), &VirtualMachineDefaults::default()).annotations;
    assert_eq!(told.get(marks::KUBERNETES_VERSION).map(String::as_str), Some("v1.35.6+k3s1"), "{told:?}");
    assert!(!told.contains_key(marks::DISK_DIGEST) && !told.contains_key(marks::ARTIFACT_DIGEST), "{told:?}");
}
