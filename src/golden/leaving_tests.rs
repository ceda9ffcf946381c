//! Targets that are taken out of the spec, told as decisions (R23).

use serde_json::json;

use super::{
    Action, ClaimView, DataVolumeView, GoldenView, Leaving, Observed, ObservedTarget,
    tests::{claim, class, made, observed, ready, reason, run, spooled, volume},
};
use crate::{
    api::{ConditionType, TargetStatus, find_condition, is_true},
    rules::Reason,
};

const LOCAL: &str = "vm-default-images-a-local";

/// Ready in the default class; the target for `local` was taken out, and its golden is there.
fn leaving() -> Observed {
    let mut observed = made();
    observed.status.targets.push(TargetStatus {
        requested_class: "local".into(),
        storage_class_name: Some("local".into()),
        golden: Some(LOCAL.into()),
        claim_uid: Some("pvc-local".into()),
        attempts: 1,
        ..TargetStatus::default()
    });
    observed.leaving = vec![Leaving {
        requested_class: "local".into(),
        target: ObservedTarget {
            name: LOCAL.parse().ok(),
            taken_by: None,
            class: class("local"),
            golden: GoldenView {
                volume: Some(DataVolumeView { uid: "dv-local".into(), ..volume("Succeeded") }),
                claim: Some(ClaimView { uid: "pvc-local".into(), class: Some("local".into()), ..claim() }),
                ..GoldenView::default()
            },
            quotas: Vec::new(),
        },
        blockers: None,
    }];
    observed
}

fn record(decision: &super::Decision) -> Option<&TargetStatus> {
    decision.status.targets.iter().find(|target| target.requested_class == "local")
}

#[test]
fn r23_a_golden_that_leaves_is_told_with_who_needs_it_and_its_siblings_stay_ready() {
    let mut observed = leaving();
    observed.leaving[0].blockers = Some("tenant-a/VMDisk/db".into());
    let decision = run(&observed);
    assert_eq!((ready(&decision).0.as_str(), decision.after.len()), ("True", 0), "{decision:?}");
    let record = record(&decision).expect("on record").clone();
    for conditions in [&record.conditions, &decision.status.conditions] {
        let told = find_condition(conditions, ConditionType::Retiring).expect("told");
        assert!(told.message.contains(LOCAL) && told.message.contains("tenant-a/VMDisk/db"), "{}", told.message);
        // The image has another golden: nobody needs another image.
        assert!(told.message.contains("in another class") && !told.message.contains("another image"), "{}", told.message);
    }
    assert_eq!(find_condition(&record.conditions, ConditionType::Ready).map(|ready| ready.status.as_str()), Some("False"));
    assert!(decision.notes.iter().any(|note| note.reason == Reason::Retiring), "{:?}", decision.notes);
    assert!(decision.wake.is_some(), "looked at again");
    // Told once; the same seen again is no write.
    observed.status = decision.status.clone();
    let again = run(&observed);
    assert_eq!((again.status == decision.status, again.notes.len(), again.after.len()), (true, 0, 0), "{again:?}");
}

/// Two that leave: their records keep their order, so that what did not change is not written.
#[test]
fn r23_two_that_leave_are_told_in_one_text_and_nothing_is_written_twice() {
    let mut observed = leaving();
    let mut other = observed.leaving[0].clone();
    let mut record = observed.status.targets[1].clone();
    let name = "vm-default-images-a-other";
    other.requested_class = "other".into();
    (other.target.name, other.blockers) = (name.parse().ok(), Some("tenant-b/VMDisk/db".into()));
    other.target.golden.claim.as_mut().expect("claim").uid = "pvc-other".into();
    (record.requested_class, record.storage_class_name) = ("other".into(), Some("other".into()));
    (record.golden, record.claim_uid) = (Some(name.into()), Some("pvc-other".into()));
    observed.status.targets.push(record);
    observed.leaving.push(other);
    let first = run(&observed);
    let told = find_condition(&first.status.conditions, ConditionType::Retiring).expect("told");
    assert!(told.message.contains(LOCAL) && told.message.contains(name), "{}", told.message);
    assert_eq!(told.message.matches("`golden-catalog consumers` shows").count(), 1, "{}", told.message);
    for _ in 0..3 {
        observed.status = first.status.clone();
        assert_eq!(run(&observed).status, first.status);
    }
}

#[test]
fn r23_its_record_goes_with_it() {
    let mut observed = leaving();
    observed.status = run(&observed).status;
    observed.leaving[0].target.golden = GoldenView::default();
    let gone = run(&observed);
    assert_eq!((record(&gone), ready(&gone).0.as_str(), gone.after.len()), (None, "True", 0), "{gone:?}");
    assert!(!is_true(&gone.status.conditions, ConditionType::Retiring));
    assert!(gone.notes.iter().any(|note| note.reason == Reason::Retired && note.message.contains(LOCAL)), "{:?}", gone.notes);
}

/// Back in the spec, what is left of leaving is gone, and the golden is the one that it was.
#[test]
fn r23_a_target_that_is_put_back_has_its_golden_again() {
    let mut observed = leaving();
    observed.status = run(&observed).status;
    let left = observed.leaving.remove(0).target;
    let mut back = self::observed(json!({
        "source": { "http": { "url": "https://e.example/a.qcow2" } }, "storage": { "targets": [{}, { "storageClassName": "local" }] },
    }));
    back.status = observed.status;
    back.upstream = observed.upstream;
    back.targets = vec![observed.targets[0].clone(), left.clone()];
    let decision = run(&back);
    assert_eq!(ready(&decision).0, "True", "{decision:?}");
    let record = record(&decision).expect("on record");
    assert_eq!((record.claim_uid.as_deref(), record.attempts), (Some("pvc-local"), 1));
    assert!(
        find_condition(&record.conditions, ConditionType::Retiring).is_none()
            && !is_true(&decision.status.conditions, ConditionType::Retiring)
    );
    // Put back with other words it stays as it was made, and that is told.
    let mut larger = self::observed(json!({
        "source": { "http": { "url": "https://e.example/a.qcow2" } },
        "storage": { "targets": [{}, { "storageClassName": "local", "size": "9Gi" }] },
    }));
    larger.status = back.status;
    larger.status.targets[1].size = Some("4097Mi".into());
    (larger.upstream, larger.targets) = (back.upstream, back.targets);
    let decision = run(&larger);
    let told = find_condition(&decision.status.conditions, ConditionType::EntryEdited).expect("told");
    assert!(told.message.contains("4097Mi") && told.message.contains("9Gi") && ready(&decision).0 == "True", "{}", told.message);
}

/// Nothing else has the disk for sure: it stays open to all.
#[test]
fn r23_the_last_golden_that_can_be_cloned_stays_until_another_one_can() {
    let mut observed = leaving();
    observed.targets[0].golden = GoldenView::default();
    observed.spooled = Some(spooled());
    let decision = run(&observed);
    assert_eq!(reason(&decision), "Importing");
    assert!(is_true(&decision.status.conditions, ConditionType::Available), "{decision:?}");
    let record = record(&decision).expect("on record");
    assert!(is_true(&record.conditions, ConditionType::Ready));
    let told = find_condition(&decision.status.conditions, ConditionType::Retiring).expect("told");
    assert!(told.message.contains("until another golden of the image is Ready"), "{}", told.message);
    assert!(told.message.contains("can be cloned, until") && !told.message.contains("Move what needs it"), "{}", told.message);
    // It cannot be cloned either, and nothing else is said of it.
    for spoil in [
        |target: &mut ObservedTarget| target.golden.claim.as_mut().expect("claim").bound = false,
        |target: &mut ObservedTarget| target.golden.claim.as_mut().expect("claim").uid = "another".into(),
        |target: &mut ObservedTarget| target.golden.volume.as_mut().expect("volume").phase = "Failed".into(),
    ] {
        let mut spoiled = observed.clone();
        spoil(&mut spoiled.leaving[0].target);
        let decision = run(&spoiled);
        let told = find_condition(&decision.status.conditions, ConditionType::Retiring).expect("told");
        assert!(told.message.contains("cannot be cloned now"), "{}", told.message);
        assert!(!is_true(&self::record(&decision).expect("on record").conditions, ConditionType::Ready));
        assert!(!is_true(&decision.status.conditions, ConditionType::Available));
    }
}

/// Upstream may have lost the disk, and the spool has let it go: the golden that stays for this has it.
#[test]
fn r23_the_last_golden_is_what_the_next_one_is_copied_from() {
    let mut observed = leaving();
    observed.targets[0].golden = GoldenView::default();
    observed.spooled = None;
    let claim = observed.leaving[0].target.golden.claim.as_mut().expect("claim");
    (claim.request, claim.volume_mode) = (crate::model::DiskSize::from_bytes(5 << 30), Some("Block".into()));
    observed.status = run(&observed).status;
    let decision = run(&observed);
    let copies = decision.after.iter().find_map(|action| match action {
        Action::CreateVolume(order) => Some(order.copies.as_ref().map(|name| name.as_str())),
        _ => None,
    });
    assert_eq!(copies, Some(Some(LOCAL)), "{decision:?}");
    // What keeps that copy waiting is told.
    observed.status = decision.status;
    observed.targets[0].name = "vm-default-images-a".parse().ok();
    observed.targets[0].golden.volume = Some(DataVolumeView { copies: Some(LOCAL.into()), ..volume("CloneScheduled") });
    observed.leaving[0].target.golden.in_use = Some("the pod x uses it".into());
    assert_eq!(reason(&run(&observed)), "InUseByPod");
}

/// Refused by a policy: what is left of it is told, tried again, and not forgotten.
#[test]
fn r10_a_golden_that_leaves_says_what_is_refused_about_it() {
    let refused = || Some((Reason::CreateRefused, "The API server refuses the deletion: no.".to_owned()));
    let told = |decision: &super::Decision| {
        let all = [&decision.status.conditions, &record(decision).expect("on record").conditions];
        all.map(|conditions| {
            find_condition(conditions, ConditionType::WriteRefused).is_some_and(|told| told.message.contains("deletion: no."))
        })
    };
    let mut gone = leaving();
    gone.leaving[0].target.golden = GoldenView { undeleted: refused(), ..GoldenView::default() };
    let decision = run(&gone);
    assert_eq!(told(&decision), [true, true], "{decision:?}");
    assert!(matches!(decision.before[..], [Action::DeleteHeaders { .. }]) && decision.wake.is_some(), "{decision:?}");
    // Another process, which knows only the record, tries once more; done, the record goes.
    gone.status = decision.status;
    gone.leaving[0].target.golden.undeleted = None;
    let mended = run(&gone);
    assert!(record(&mended).is_none() && matches!(mended.before[..], [Action::DeleteHeaders { .. }]), "{mended:?}");
    assert!(!is_true(&mended.status.conditions, ConditionType::WriteRefused));

    let mut stays = leaving();
    stays.leaving[0].target.golden.refused = refused();
    assert_eq!(told(&run(&stays)), [true, true]);
}

#[test]
fn r23_what_was_never_finished_is_told_and_left_to_the_fence() {
    let mut observed = leaving();
    let record = observed.status.targets.last_mut().expect("record");
    (record.claim_uid, record.started_time) = (None, Some(super::decide::whole_seconds(super::tests::now())));
    observed.leaving[0].target.golden.volume = Some(DataVolumeView { uid: "dv-local".into(), ..volume("ImportInProgress") });
    observed.leaving[0].target.golden.claim = None;
    let deletes = |decision: &super::Decision| decision.after.iter().any(|action| matches!(action, Action::DeleteVolume { .. }));
    observed.leaving[0].blockers = Some("tenant-a/VMDisk/db".into());
    let waits = run(&observed);
    assert!(!deletes(&waits) && ready(&waits).0 == "True", "{waits:?}");
    let told = find_condition(&waits.status.conditions, ConditionType::Retiring).expect("told");
    assert!(told.message.contains("was not made yet") && told.message.contains("tenant-a/VMDisk/db"), "{}", told.message);
    observed.leaving[0].blockers = None;
    let free = run(&observed);
    assert!(!deletes(&free) && free.wake.is_some(), "nobody knows who asks for a clone of it now: {free:?}");
    let told = find_condition(&free.status.conditions, ConditionType::Retiring).expect("told");
    assert!(told.message.contains("was not made yet, and goes when it is certain"), "{}", told.message);
    // Gone: nothing of it is left when its record is.
    let mut gone = observed.clone();
    gone.leaving[0].target.golden = GoldenView::default();
    let gone = run(&gone);
    assert!(self::record(&gone).is_none() && matches!(gone.before[..], [Action::DeleteHeaders { .. }]), "{gone:?}");
    // It ends at that very moment: on record like any other, and left to the fence.
    observed.leaving[0].target.golden.volume = Some(DataVolumeView { uid: "dv-local".into(), ..volume("Succeeded") });
    observed.leaving[0].target.golden.claim = Some(ClaimView { uid: "pvc-local".into(), class: Some("local".into()), ..claim() });
    let done = run(&observed);
    assert!(!deletes(&done), "{done:?}");
    assert_eq!(self::record(&done).and_then(|record| record.claim_uid.as_deref()), Some("pvc-local"));
    assert!(done.before.iter().any(|action| matches!(action, Action::DeleteHeaders { .. })), "{done:?}");
    // What a restore brought back, another DataVolume made, or another download filled is not what was imported.
    type Spoil = fn(&mut Observed);
    let spoils: [(Spoil, &str); 4] = [
        (
            |observed| observed.leaving[0].target.golden.claim.as_mut().expect("claim").made_for = Some("another".into()),
            "CDI made it for another DataVolume",
        ),
        (
            |observed| observed.leaving[0].target.golden.claim.as_mut().expect("claim").controller = Some("another".into()),
            "another DataVolume controls it",
        ),
        (
            |observed| observed.image.as_mut().expect("image").digest = Some(crate::model::Digest::of(b"another")),
            "it was made from an unknown download",
        ),
        (|observed| observed.leaving[0].target.golden.volume = None, "it has no DataVolume"),
    ];
    for (spoil, why) in spoils {
        let mut spoiled = observed.clone();
        spoil(&mut spoiled);
        let decision = run(&spoiled);
        assert_eq!(self::record(&decision).and_then(|record| record.claim_uid.clone()), None, "{decision:?}");
        // Finished, and not believed: told so, with what becomes of it and what to do.
        for conditions in [&decision.status.conditions, &self::record(&decision).expect("record").conditions] {
            let told = &find_condition(conditions, ConditionType::Retiring).expect("told").message;
            assert!(told.contains(why) && told.contains("put the target back") && !told.contains("was not made yet"), "{told}");
        }
        spoiled.status = decision.status.clone();
        assert!(run(&spoiled).status == decision.status, "told once");
    }
}

/// Two goldens of one class would be one too many: the one that is there is named.
#[test]
fn r23_a_target_for_the_class_of_one_that_leaves_makes_nothing() {
    let mut observed = self::observed(json!({
        "source": { "http": { "url": "https://e.example/a.qcow2" } },
        "storage": { "targets": [{ "storageClassName": "replicated" }] },
    }));
    let former = made();
    observed.status = former.status.clone();
    observed.spooled = Some(spooled());
    observed.upstream = former.upstream.clone();
    let mut target = former.targets[0].clone();
    target.name = "vm-default-images-a".parse().ok();
    observed.leaving = vec![Leaving { requested_class: String::new(), target, blockers: None }];
    let decision = run(&observed);
    assert_eq!(reason(&decision), "DuplicateClass");
    assert!(ready(&decision).2.contains("put that back instead"), "{decision:?}");
    assert!(!decision.after.iter().any(|action| matches!(action, Action::CreateVolume(_))), "{decision:?}");
    assert!(is_true(&decision.status.conditions, ConditionType::Available), "the former one can be cloned still");
}

/// Our mark was taken off by hand: the fence keeps to it, so it is put back.
#[test]
fn r23_a_golden_that_leaves_keeps_its_mark() {
    let mut observed = leaving();
    observed.leaving[0].target.golden.claim.as_mut().expect("claim").ours = false;
    let decision = run(&observed);
    assert!(matches!(&decision.after[..], [Action::Mark { claim_uid, .. }] if claim_uid == "pvc-local"), "{decision:?}");
}

/// Not accepted, an image keeps what it has; that a target was taken out is told all the same, and what was told before is set right.
#[test]
fn r23_what_leaves_an_image_that_is_not_accepted_is_told() {
    let mut observed = leaving();
    observed.leaving[0].blockers = Some("tenant-a/VMDisk/db".into());
    observed.status = run(&observed).status;
    observed.duplicate_of = Some("first".into());
    let told = |observed: &Observed| {
        let decision = run(observed);
        let record = record(&decision).expect("record");
        assert_eq!(reason(&decision), reason(&run(observed)));
        assert!(decision.after.is_empty(), "{decision:?}");
        let told = |conditions: &[_]| find_condition(conditions, ConditionType::Retiring).map(|told| told.message.clone());
        assert_eq!(told(&record.conditions), told(&decision.status.conditions));
        let is_open = is_true(&record.conditions, ConditionType::Ready);
        let text = told(&record.conditions);
        (text.unwrap_or_default(), is_open, decision)
    };
    let (text, is_open, decision) = told(&observed);
    assert!(text.contains(LOCAL) && text.contains("stays as it is while the image is not accepted"), "{text}");
    assert!(is_open, "the fence lets pools in again");
    assert_eq!(reason(&decision), "DuplicateIdentity");
    observed.status = decision.status.clone();
    assert!(told(&observed).2.status == decision.status, "told once");
    // It was never made.
    let mut unmade = observed.clone();
    unmade.status.targets[1].claim_uid = None;
    let (text, is_open, _) = told(&unmade);
    assert!(text.contains("was not made yet") && !is_open, "{text}");
    // Accepted again: as ever.
    observed.duplicate_of = None;
    let decision = run(&observed);
    let told = find_condition(&decision.status.conditions, ConditionType::Retiring).expect("told");
    assert!(told.message.contains("tenant-a/VMDisk/db") && !told.message.contains("not accepted"), "{}", told.message);
    // A spec that cannot be read says nothing of targets: what was known to leave is told.
    observed.status = decision.status;
    observed.image = self::observed(json!({ "source": {} })).image;
    observed.leaving = Vec::new();
    let unread = run(&observed);
    let told = find_condition(&unread.status.conditions, ConditionType::Retiring).expect("told");
    assert!(told.message.contains(LOCAL) && told.message.contains("while the image is not accepted"), "{}", told.message);
}
