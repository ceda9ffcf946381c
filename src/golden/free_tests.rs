//! What an entry may say otherwise at any time, and its goldens after it: written once, taken off again, and nobody else's touched.

use rstest::rstest;
use serde_json::{Value, json};

use super::{
    Action, DataVolumeView, Decision, GoldenView, Observed, Said, adopted_marks,
    tests::{claim, disk, http, made, observed, ready, run, stranger, volume},
};
use crate::{
    api::GoldenImageStatus,
    model::VirtualMachineDefaults,
    rules::marks::{self, DEFAULT_INSTANCETYPE, DEFAULT_PREFERENCE, Marks},
};

const DESCRIPTION: &str = "vm-default-images.cozystack.io/description";

/// The entry, edited in what is free.
fn edit(observed: &mut Observed, free: Value) {
    let mut spec = json!({ "source": { "http": { "url": "https://e.example/a.qcow2" } } });
    spec.as_object_mut().expect("object").extend(free.as_object().expect("object").clone());
    observed.image = super::tests::observed(spec).image;
}

/// An image whose golden is Ready, under its name, its DataVolume there and in control.
fn standing() -> Observed {
    let mut observed = made();
    let target = &mut observed.targets[0];
    target.name = "vm-default-images-a".parse().ok();
    target.golden.claim.as_mut().expect("claim").controller = Some("dv".into());
    observed
}

/// Another one, that was taken over as it is.
fn adopted() -> Observed {
    let mut observed = http();
    let target = &mut observed.targets[0];
    target.name = "vm-default-images-a".parse().ok();
    target.golden = GoldenView {
        volume: Some(DataVolumeView { disk_digest: None, ..volume("Succeeded") }),
        claim: Some(super::ClaimView { adopt: Some("pvc".into()), controller: Some("dv".into()), ..claim() }),
        stranger: Some(stranger("https://e.example/a.qcow2")),
        ..GoldenView::default()
    };
    observed.status = run(&observed).status;
    observed.status = run(&observed).status;
    assert_eq!(observed.status.targets[0].adopted, Some(true));
    observed
}

/// What the decision writes on the golden.
fn written(decision: &Decision) -> Vec<&Said> {
    let said = |action| match action {
        &Action::Mark { ref said, .. } | &Action::Adopt { ref said, .. } => Some(said),
        _ => None,
    };
    decision.after.iter().filter_map(said).collect()
}

/// Puts on both objects what is written, as the API server would.
fn apply(observed: &mut Observed, decision: &Decision) {
    observed.status = decision.status.clone();
    let target = &observed.status.targets[0];
    for said in written(decision) {
        // The free ones among them are the same on a golden that was made.
        let Marks { labels, annotations } =
            adopted_marks(observed.image.as_ref().expect("image"), &observed.status, target, &said.defaults);
        let golden = &mut observed.targets[0].golden;
        let (volume, claim) = (golden.volume.as_mut().expect("volume"), golden.claim.as_mut().expect("claim"));
        for free in [&mut volume.free, &mut claim.free] {
            free.labels.retain(|key, _| !said.outdated.contains(key));
            free.labels.extend(labels.clone());
            free.annotations.extend(annotations.clone());
            *free = marks::free(&free.labels, &free.annotations);
        }
    }
}

fn on_claim(observed: &Observed, key: &str) -> Option<String> {
    let free = &observed.targets[0].golden.claim.as_ref().expect("claim").free;
    free.labels.get(key).or_else(|| free.annotations.get(key)).cloned()
}

#[rstest]
#[case::made(standing())]
#[case::taken_over(adopted())]
fn r4_what_the_entry_may_change_reaches_its_golden_once(#[case] mut observed: Observed) {
    assert_eq!(written(&run(&observed)), Vec::<&Said>::new(), "made by a release that wrote nothing of it, and nothing of it is said");
    let decide = |observed: &mut Observed, writes: usize, case: &str| {
        let decision = run(observed);
        assert_eq!((ready(&decision).0.as_str(), written(&decision).len()), ("True", writes), "{case}: {decision:?}");
        apply(observed, &decision);
        let again = run(observed);
        assert_eq!((written(&again).len(), again.status == observed.status || writes > 0), (0, true), "{case}: {again:?}");
        observed.status = again.status;
        let third = run(observed);
        assert_eq!((third.status == observed.status, third.after.len()), (true, 0), "{case}: {third:?}");
    };
    let defaults = |observed: &Observed| observed.status.defaults.as_ref().map(|all| all.facts());
    edit(&mut observed, json!({ "defaults": { "instancetype": "u1.medium", "preference": "ubuntu" }, "description": "old" }));
    decide(&mut observed, 1, "given");
    let on = |key, observed: &Observed| on_claim(observed, key);
    assert_eq!(on(DEFAULT_INSTANCETYPE, &observed).as_deref(), Some("u1.medium"));
    assert_eq!(on(DESCRIPTION, &observed).as_deref(), Some("old"));
    decide(&mut observed, 0, "as it is");
    edit(&mut observed, json!({ "defaults": { "preference": "fedora" }, "description": "new" }));
    decide(&mut observed, 1, "one changed, one taken out");
    assert_eq!((on(DEFAULT_INSTANCETYPE, &observed), on(DEFAULT_PREFERENCE, &observed).as_deref()), (None, Some("fedora")));
    assert_eq!(on(DESCRIPTION, &observed).as_deref(), Some("new"));
    let left = VirtualMachineDefaults { instancetype: None, preference: Some("fedora".into()) };
    assert_eq!(defaults(&observed), Some(left));
    // Somebody's own label, of a kind that the entry says nothing of, is theirs.
    let golden = &mut observed.targets[0].golden;
    golden.claim.as_mut().expect("claim").free.labels.insert(DEFAULT_INSTANCETYPE.into(), "theirs".into());
    decide(&mut observed, 0, "set by another");
    edit(&mut observed, json!({ "description": "new" }));
    decide(&mut observed, 1, "the last one taken out");
    assert_eq!((on(DEFAULT_INSTANCETYPE, &observed).as_deref(), on(DEFAULT_PREFERENCE, &observed)), (Some("theirs"), None));
    assert_eq!(defaults(&observed), None);
}

/// Killed after the status and before the golden is written, it is still known what is to go.
#[test]
fn what_was_taken_out_is_on_record_until_no_golden_carries_it() {
    let mut observed = standing();
    edit(&mut observed, json!({ "defaults": { "preference": "ubuntu" } }));
    let given = run(&observed);
    apply(&mut observed, &given);
    edit(&mut observed, json!({}));
    let cut_off = run(&observed);
    assert_eq!(cut_off.status.defaults, observed.status.defaults, "still carried");
    observed.status = cut_off.status;
    let again = run(&observed);
    assert_eq!(written(&again).iter().map(|said| said.outdated.contains(DEFAULT_PREFERENCE)).collect::<Vec<_>>(), [true], "{again:?}");
    // One of the two was written.
    observed.targets[0].golden.claim.as_mut().expect("claim").free = Marks::default();
    let half = run(&observed);
    assert_eq!((written(&half).len(), &half.status.defaults), (1, &observed.status.defaults), "{half:?}");
    observed.targets[0].golden.volume.as_mut().expect("volume").free = Marks::default();
    let over = run(&observed);
    assert_eq!((written(&over).len(), over.status.defaults), (0, None));
    // What is being made carries it too, until it is made.
    let mut observed = http();
    edit(&mut observed, json!({ "defaults": { "preference": "ubuntu" } }));
    observed.spooled = Some(super::tests::spooled());
    observed.status = run(&observed).status;
    let labels = [(DEFAULT_PREFERENCE.to_owned(), "ubuntu".to_owned())];
    let free = Marks { labels: labels.into(), ..Marks::default() };
    observed.targets[0].golden.volume = Some(DataVolumeView { free, ..volume("ImportInProgress") });
    edit(&mut observed, json!({}));
    assert!(run(&observed).status.defaults.is_some());
}

/// What a container disk says of itself is not known any more when the spool has let it go: the record keeps it, and what the entry says goes
/// before it.
#[test]
fn what_a_container_disk_says_stays_on_record() {
    let reference = format!("r.example/f@{}", disk());
    let container = |free: Value| {
        let mut spec = json!({ "source": { "containerDisk": { "reference": reference } } });
        spec.as_object_mut().expect("object").extend(free.as_object().expect("object").clone());
        let record = VirtualMachineDefaults { instancetype: Some("u1.small".into()), preference: Some("fedora".into()) };
        let status = GoldenImageStatus { defaults: Some(record.into()), ..GoldenImageStatus::default() };
        let decision = run(&Observed { status, ..observed(spec) });
        let all = decision.status.defaults.map(|all| all.facts()).unwrap_or_default();
        [all.instancetype, all.preference].map(Option::unwrap_or_default)
    };
    assert_eq!(container(json!({})), ["u1.small", "fedora"]);
    assert_eq!(container(json!({ "defaults": { "preference": "ubuntu" } })), ["u1.small", "ubuntu"]);
}
