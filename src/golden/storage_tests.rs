//! Several classes, sizes, quotas and remarks, told as decisions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::{
    Action, ClaimView, ClassChoice, DataVolumeView, GoldenView, GrantView, Settings, SpooledView, decide,
    tests::{claim, class, disk, http, later, made, observed, ready, reason, run, spooled, volume},
};
use crate::{
    api::{ConditionType, LastFailure, find_condition, is_true},
    catalog::Listing,
    model::VolumeMode,
    rules::{
        CdiCondition, Reason, Told,
        provenance::Consent,
        quota::{Begun, Held, Need, Quota},
    },
};

/// A Ready golden of 4097Mi in `replicated`, and a further target for `local`; the spool has let the artifact go.
fn with_a_further_target(spec: serde_json::Value) -> super::Observed {
    let first = made();
    let mut observed = observed(json!({
        "source": { "http": { "url": "https://e.example/a.qcow2" } }, "storage": { "targets": [{}, spec] },
    }));
    observed.status = first.status;
    observed.targets[0] = first.targets[0].clone();
    observed.targets[0].name = observed.status.targets[0].golden.as_ref().and_then(|name| name.parse().ok());
    let claim = observed.targets[0].golden.claim.as_mut().expect("claim");
    claim.request = "4097Mi".parse().ok();
    claim.volume_mode = Some("Block".into());
    observed.targets[1].class = class("local");
    observed.upstream = first.upstream;
    observed
}

fn order(decision: &super::Decision) -> Option<&super::ImportOrder> {
    decision.after.iter().find_map(|action| if let Action::CreateVolume(order) = action { Some(&**order) } else { None })
}

#[test]
fn a_later_target_comes_from_the_spool_while_it_has_the_disk() {
    let mut observed = with_a_further_target(json!({ "storageClassName": "local" }));
    observed.spooled = Some(spooled());
    let decision = run(&observed);
    let order = order(&decision).expect("order");
    assert_eq!((order.golden.as_str(), order.copies.as_ref(), order.disk), ("vm-default-images-a-local", None, disk()));
    assert!(decision.after.iter().any(|action| matches!(action, Action::WriteHeaders { .. })));
}

#[test]
fn a_later_target_is_copied_from_a_golden_when_the_spool_has_let_the_disk_go() {
    let mut observed = with_a_further_target(json!({ "storageClassName": "local" }));
    let decision = run(&observed);
    let order = order(&decision).expect("order").clone();
    assert_eq!(order.copies.as_ref().map(|name| name.as_str()), Some("vm-default-images-a"));
    assert_eq!((order.size.to_string().as_str(), order.disk), ("4097Mi", disk()));
    let other = decision.after.iter().filter(|action| !matches!(action, Action::CreateVolume(_) | Action::CheckUpstream)).count();
    assert_eq!(other, 0, "no fetch, no header, no path of the spool: {decision:?}");
    assert_eq!(reason(&decision), "Copying");
    assert!(is_true(&decision.status.conditions, ConditionType::Available));

    // Under way, and through.
    observed.status = decision.status;
    observed.targets[1].name = Some(order.golden.clone());
    let copying = |phase: &str| DataVolumeView { copies: Some("vm-default-images-a".into()), ..volume(phase) };
    observed.targets[1].golden.volume = Some(copying("CloneInProgress"));
    let under_way = run(&observed);
    assert_eq!((reason(&under_way).as_str(), under_way.after.len()), ("Copying", 0), "{under_way:?}");
    observed.targets[0].golden.in_use = Some("pod debug".into());
    assert_eq!(reason(&run(&observed)), "InUseByPod");
    observed.targets[0].golden.in_use = None;
    observed.targets[1].golden.volume = Some(copying("Succeeded"));
    observed.targets[1].golden.claim = Some(ClaimView { uid: "pvc-2".into(), class: Some("local".into()), ..claim() });
    let done = run(&observed);
    assert_eq!(reason(&done), "Ready");
    assert_eq!(done.before, [], "a copy had no header Secret");
    assert_eq!(done.status.targets[1].claim_uid.as_deref(), Some("pvc-2"));
}

#[test]
fn a_stated_size_below_the_other_golden_is_fetched_again() {
    let mut observed = with_a_further_target(json!({ "storageClassName": "local", "size": "4097Mi" }));
    observed.targets[0].golden.claim.as_mut().expect("claim").request = "8Gi".parse().ok();
    let decision = run(&observed);
    assert_eq!(order(&decision), None);
    assert!(decision.after.iter().any(|action| matches!(action, Action::Fetch { .. })), "{decision:?}");
    // Where no size is stated, the copy is as large as its source.
    let mut observed = with_a_further_target(json!({ "storageClassName": "local" }));
    observed.targets[0].golden.claim.as_mut().expect("claim").request = "8Gi".parse().ok();
    assert_eq!(order(&run(&observed)).map(|order| order.size.to_string()).as_deref(), Some("8Gi"));
    // And a size that cannot hold the disk is refused without asking anybody.
    let observed = with_a_further_target(json!({ "storageClassName": "local", "size": "1Gi" }));
    let decision = run(&observed);
    assert_eq!((reason(&decision).as_str(), order(&decision)), ("SizeTooSmall", None));
}

/// Known from the first bytes: the target that cannot hold the disk is told before the transfer, which goes on for its sibling.
#[test]
fn every_stated_size_is_held_against_the_disk_that_is_coming() {
    let spec = |size: &str| {
        json!({
            "source": { "http": { "url": "https://e.example/a.qcow2" } },
            "storage": { "targets": [{}, { "storageClassName": "local", "size": size }] },
        })
    };
    let begun = |size: &str| {
        let mut observed = observed(spec(size));
        observed.targets[1].class = class("local");
        observed.status = run(&observed).status;
        observed.fetch = super::FetchView::Running { percent: None };
        observed
    };
    let mut observed = begun("1Gi");
    assert_eq!(reason(&run(&observed)), "Fetching");
    observed.coming_size = Some(spooled().virtual_size);
    let told = run(&observed);
    assert_eq!(reason(&told), "SizeTooSmall");
    assert!(ready(&told).2.contains("needs 4097Mi"), "{told:?}");
    assert!(!told.after.contains(&Action::CancelFetch), "the sibling needs the disk: {told:?}");
    let sibling = find_condition(&told.status.targets[0].conditions, ConditionType::Ready).expect("Ready");
    assert_eq!(sibling.reason, "Fetching");
    // The attempt fails, and another begins: it stays told.
    observed.fetch = super::FetchView::Failed { reason: Reason::Unavailable, message: "cut off".into(), retry_after: None };
    assert_eq!(reason(&run(&observed)), "SizeTooSmall");
    // The sibling is made from the disk once it is there.
    observed.fetch = super::FetchView::Idle;
    observed.spooled = Some(spooled());
    let made = run(&observed);
    assert_eq!(order(&made).map(|order| order.class.as_str()), Some("replicated"));
    let refused = find_condition(&made.status.targets[1].conditions, ConditionType::Ready).expect("Ready");
    assert_eq!(refused.reason, "SizeTooSmall");
    // One that can hold it waits for it.
    let mut observed = begun("8Gi");
    observed.coming_size = Some(spooled().virtual_size);
    assert_eq!(reason(&run(&observed)), "Fetching");
}

#[test]
fn a_golden_that_is_going_or_was_replaced_is_no_source() {
    for spoil in [
        (|view: &mut GoldenView| view.claim.as_mut().expect("claim").terminating = true) as fn(&mut GoldenView),
        |view| view.claim.as_mut().expect("claim").uid = "other".into(),
        |view| view.claim.as_mut().expect("claim").lost = true,
        |view| view.claim = None,
        |view| view.volume = Some(volume("ImportInProgress")),
    ] {
        let mut observed = with_a_further_target(json!({ "storageClassName": "local" }));
        spoil(&mut observed.targets[0].golden);
        let decision = run(&observed);
        assert_eq!(order(&decision), None, "{decision:?}");
        assert!(decision.after.iter().any(|action| matches!(action, Action::Fetch { .. })), "{decision:?}");
    }
}

#[test]
fn a_quota_in_the_way_is_named_before_anything_is_begun() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    let hard = [("requests.storage".to_owned(), 10 << 30)];
    observed.targets[0].quotas = vec![Quota { name: "small".into(), hard: hard.into(), used: [].into() }];
    let decision = run(&observed);
    assert_eq!((reason(&decision).as_str(), decision.wants.imports), ("QuotaExceeded", 0), "it holds no turn");
    assert!(ready(&decision).2.contains("ResourceQuota small allows 10Gi of `requests.storage`"), "{decision:?}");
    assert_eq!((decision.status.targets[0].attempts, order(&decision)), (0, None));
    // What has begun is not stopped by its own use.
    observed.targets[0].quotas.clear();
    observed.status = run(&observed).status;
    observed.targets[0].quotas = vec![Quota { name: "small".into(), hard: [("pods".to_owned(), 0)].into(), used: [].into() }];
    assert!(order(&run(&observed)).is_some());
}

/// B04: what another import that has begun is still to take is no room for this one, nor is what a target takes room for the next.
#[test]
fn the_room_of_an_import_under_way_is_no_room_for_another() {
    let quota = |claims| Quota { name: "small".into(), hard: [("persistentvolumeclaims".to_owned(), claims)].into(), used: [].into() };
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.targets[0].quotas = vec![quota(5)];
    let need = Need { class: "replicated".into(), scratch_class: Some("replicated".into()), claim: "4Gi".parse().expect("size") };
    observed.begun = vec![Begun { need, held: Held::default() }];
    let decision = run(&observed);
    assert_eq!((reason(&decision).as_str(), decision.wants.imports, order(&decision)), ("QuotaExceeded", 0, None));
    assert!(ready(&decision).2.contains("3 is used or kept for other imports under way"), "{decision:?}");
    observed.begun.clear();
    assert!(order(&run(&observed)).is_some());

    let mut observed = super::tests::observed(json!({
        "source": { "http": { "url": "https://e.example/a.qcow2" } }, "storage": { "targets": [{}, { "storageClassName": "local" }] },
    }));
    observed.spooled = Some(spooled());
    observed.targets[1].class = class("local");
    for (claims, begun) in [(5, 1), (6, 2)] {
        observed.targets.iter_mut().for_each(|target| target.quotas = vec![quota(claims)]);
        let orders = run(&observed).after.iter().filter(|action| matches!(action, Action::CreateVolume(_))).count();
        assert_eq!(orders, begun, "{claims}");
    }
}

#[test]
fn what_a_class_cannot_do_is_told_before_the_first_byte() {
    let mut observed = http();
    if let ClassChoice::Found(class) = &mut observed.targets[0].class {
        class.warnings = vec!["class c is slow".into(), "class c is tied".into()];
    }
    let decision = run(&observed);
    let told = find_condition(&decision.status.conditions, ConditionType::CloneLimited).expect("told");
    assert!(told.message.starts_with("Class c is slow. class c is tied. "), "{}", told.message);
    assert!(find_condition(&decision.status.targets[0].conditions, ConditionType::CloneLimited).is_some());
    assert!(decision.notes.iter().any(|note| note.warning && note.reason == Reason::CannotCloneWell));
    observed.status = decision.status;
    assert!(run(&observed).notes.iter().all(|note| note.reason != Reason::CannotCloneWell), "told once");
}

#[test]
fn a_changed_profile_is_told_and_not_followed() {
    let mut observed = made();
    observed.status.targets[0].access_modes = vec!["ReadWriteMany".into()];
    observed.status.targets[0].volume_mode = Some("Block".into());
    assert!(find_condition(&run(&observed).status.conditions, ConditionType::ProfileChanged).is_none());
    if let ClassChoice::Found(class) = &mut observed.targets[0].class {
        class.properties[0].volume_mode = Some(VolumeMode::Filesystem);
    }
    let decision = run(&observed);
    assert!(is_true(&decision.status.conditions, ConditionType::ProfileChanged));
    assert_eq!(ready(&decision).0, "True");
    // A golden that must be made anew is made as it was.
    observed.spooled = Some(spooled());
    observed.targets[0].golden = GoldenView::default();
    assert_eq!(order(&run(&observed)).map(|order| order.volume_mode), Some(VolumeMode::Block));
}

#[test]
fn remarks_of_several_targets_stand_in_one_text() {
    let mut observed = with_a_further_target(json!({ "storageClassName": "local" }));
    for (index, target) in observed.targets.iter_mut().enumerate() {
        if let ClassChoice::Found(class) = &mut target.class {
            class.warnings = vec![format!("class {index} is slow")];
        }
    }
    let decision = run(&observed);
    let told = find_condition(&decision.status.conditions, ConditionType::CloneLimited).expect("told");
    assert!(told.message.starts_with("Class 0 is slow. Class 1 is slow. "), "{}", told.message);
}

/// R4: the entry was edited, and the golden is not as its target asks: both are told in one text, of which the list's part is known again.
#[test]
fn r4_what_the_list_and_a_target_say_stands_in_one_text() {
    let of_list = "images[0] (a) was edited in fields that are frozen once its golden exists: `url`: x → y. Nothing was changed.";
    let told = |decision: &super::Decision| {
        find_condition(&decision.status.conditions, ConditionType::EntryEdited)
            .map(|condition| condition.message.clone())
            .unwrap_or_default()
    };
    for (listing, size, expected) in [
        (Listing::Edited(of_list.into()), "8Gi", [true, true]),
        (Listing::Edited(of_list.into()), "1Gi", [true, false]),
        (Listing::Listed, "8Gi", [false, true]),
    ] {
        let mut observed = made();
        observed.image.as_mut().expect("image").targets[0].size = size.parse().ok();
        observed.listing = listing.clone();
        let decision = run(&observed);
        let parts = |text: &str| [text.contains(of_list), text.contains("its target asks for 8Gi: it stays as it was made")];
        assert_eq!(parts(&told(&decision)), expected, "{listing:?}: {}", told(&decision));
        // Until the list is read again, by this process or the next, what it said is known and nothing is written.
        observed.status = decision.status.clone();
        observed.listing = Listing::on_record(&observed.status);
        assert_eq!(observed.listing, if expected[0] { listing } else { Listing::ByHand });
        assert!(run(&observed).status == decision.status, "{}", told(&run(&observed)));
        // Not accepted meanwhile: both still.
        observed.duplicate_of = Some("first".into());
        assert_eq!(parts(&told(&run(&observed))), expected);
    }
}

/// Upstream served another disk and the spool has it: nothing is asked again, until a person wants it to be.
#[test]
fn r9_a_retry_asks_upstream_again_although_the_spool_has_another_disk() {
    let mut observed = made();
    observed.targets[0].golden = GoldenView::default();
    observed.spooled = Some(SpooledView { disk_digest: crate::model::Digest::of(b"other"), ..spooled() });
    let fetches = |decision: &super::Decision| decision.after.iter().filter(|action| matches!(action, Action::Fetch { .. })).count();
    let settled = run(&observed);
    assert_eq!((reason(&settled).as_str(), fetches(&settled)), ("UpstreamChanged", 0));
    assert!(is_true(&settled.status.conditions, ConditionType::Stalled) && ready(&settled).2.contains("/retry`"), "{settled:?}");
    observed.status = settled.status.clone();
    let again = run(&observed);
    assert!(fetches(&again) == 0 && again.status == settled.status, "{again:?}");
    // Asked: not forgotten while it waits for its turn.
    observed.metadata.retry = Some("once more".into());
    observed.permits = super::Permits::default();
    let queued = run(&observed);
    assert!(fetches(&queued) == 0 && queued.wants.fetch, "{queued:?}");
    observed.status = queued.status;
    observed.permits = super::Permits { fetch: true, imports: 8 };
    let begun = run(&observed);
    assert_eq!(fetches(&begun), 1, "{begun:?}");
    observed.status = begun.status;
    observed.fetch = super::FetchView::Running { percent: Some(20) };
    assert_eq!((reason(&run(&observed)).as_str(), fetches(&run(&observed))), ("Fetching", 0));
    // The process ended with it: begun again. What upstream said before is no answer.
    observed.fetch = super::FetchView::Idle;
    observed.spooled.as_mut().expect("spooled").resolved_time =
        k8s_openapi::jiff::Timestamp::from_second(super::tests::now().as_second() - 60).ok();
    assert_eq!(fetches(&run(&observed)), 1);
    // It failed otherwise: tried again like every fetch.
    observed.fetch = super::FetchView::Failed { reason: Reason::Unavailable, message: "gone".into(), retry_after: None };
    let failed = run(&observed);
    assert_eq!((reason(&failed).as_str(), failed.wake.is_some()), ("Unavailable", true), "{failed:?}");
    let mut later_on = observed.clone();
    later_on.status = failed.status;
    assert_eq!(fetches(&decide(&later_on, &Settings::default(), later(3600))), 1);
    // The same answer as before is an answer.
    observed.fetch = super::FetchView::Idle;
    observed.spooled.as_mut().expect("spooled").resolved_time = Some(later(1));
    let answered = run(&observed);
    assert_eq!((reason(&answered).as_str(), fetches(&answered)), ("UpstreamChanged", 0), "{answered:?}");
    assert!(answered.status.fetch.as_ref().is_some_and(|fetch| fetch.started_time.is_none()), "{answered:?}");
    // The former disk is: made anew from it.
    observed.spooled = Some(spooled());
    assert!(order(&run(&observed)).is_some());
}

#[test]
fn spent_attempts_stall_and_a_slow_retry_heals() {
    let settings = Settings::default();
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.status.targets[0].attempts = settings.import_attempts;
    observed.targets[0].golden.volume = Some(volume("ImportInProgress"));
    let spent = decide(&observed, &settings, later(16 * 60));
    assert!(is_true(&spent.status.conditions, ConditionType::Stalled));
    assert!(ready(&spent).2.contains("5 attempts are spent"), "{spent:?}");
    assert_eq!(spent.status.targets[0].next_attempt_time.as_ref().map(|at| at.0), Some(later(31 * 60)));
    // The annotation starts over at once.
    observed.status = spent.status;
    observed.targets[0].golden.volume = None;
    observed.metadata.retry = Some("1".into());
    let retried = decide(&observed, &settings, later(17 * 60));
    assert!(order(&retried).is_some());
    assert_eq!(retried.status.targets[0].attempts, 1);
    // Without it, its time comes.
    observed.metadata.retry = None;
    let healing = decide(&observed, &settings, later(32 * 60));
    assert!(order(&healing).is_some());
}

#[test]
fn r10_silence_is_told_with_the_last_warning() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    let pending = CdiCondition { status: Some(false), reason: "Pending".into(), message: "PVC a Pending".into() };
    observed.targets[0].golden.volume = Some(DataVolumeView { bound: pending, ..volume("ImportScheduled") });
    observed.targets[0].golden.told =
        Some(Told { about: "Pod importer-prime-u".into(), reason: "FailedMount".into(), message: "timed out".into() });
    let first = run(&observed);
    assert_eq!(reason(&first), "Importing");
    assert_eq!(first.wake, Some(later(60)), "looked at again when it is quiet for too long");
    let quiet = decide(&observed, &Settings::default(), later(60));
    assert_eq!(reason(&quiet), "VolumeNotMade");
    assert!(ready(&quiet).2.contains("Pod importer-prime-u (FailedMount): timed out"), "{quiet:?}");
}

#[test]
fn a_crash_loop_is_one_trouble_and_not_two_states_that_alternate() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.targets[0].golden.importer.connected = true;
    let failing = CdiCondition { status: Some(false), reason: "Error".into(), message: "boom".into() };
    observed.targets[0].golden.volume = Some(DataVolumeView { restarts: 1, running: failing, ..volume("ImportInProgress") });
    let told = run(&observed);
    assert_eq!(reason(&told), "ImportFailed");
    observed.status = told.status;
    let running = CdiCondition { status: Some(true), reason: "Pod is running".into(), message: String::new() };
    let again = DataVolumeView { restarts: 1, running, percent: Some(4), ..volume("ImportInProgress") };
    observed.targets[0].golden.volume = Some(again.clone());
    let still = run(&observed);
    assert_eq!((ready(&still), still.notes.len()), (ready(&run(&observed)), 0), "{still:?}");
    assert!(ready(&still).2.contains("boom"));
    // Further than ever: it goes its way.
    observed.targets[0].golden.volume = Some(DataVolumeView { percent: Some(30), ..again });
    assert_eq!(reason(&run(&observed)), "Importing");
}

/// What is said of spent attempts is no part of what failed: a crash-looping slow retry does not add it again each time.
#[test]
fn r9_a_crash_loop_after_spent_attempts_says_so_once() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.status.targets[0].attempts = Settings::default().import_attempts + 1;
    observed.status.targets[0].last_failure =
        Some(LastFailure { reason: "ImportFailed".into(), message: "The import failed before.".into(), time: Time(later(0)) });
    observed.targets[0].golden.importer.connected = true;
    let failing = CdiCondition { status: Some(false), reason: "Error".into(), message: "boom".into() };
    observed.targets[0].golden.volume = Some(DataVolumeView { restarts: 1, running: failing, ..volume("ImportInProgress") });
    observed.status = run(&observed).status;
    let running = CdiCondition { status: Some(true), reason: "Pod is running".into(), message: String::new() };
    observed.targets[0].golden.volume = Some(DataVolumeView { restarts: 1, running, percent: Some(4), ..volume("ImportInProgress") });
    let first = run(&observed);
    observed.status = first.status.clone();
    let again = run(&observed);
    assert_eq!(again.status.targets, first.status.targets);
    assert_eq!(ready(&again).2.matches("attempts are spent").count(), 1, "{again:?}");
}

#[test]
fn r7_r8_a_claim_without_its_volume() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    let orphan = |controller: Option<&str>| ClaimView { controller: controller.map(str::to_owned), ..claim() };
    // Never recorded, and nobody will collect it: restored, or orphaned.
    observed.targets[0].golden.claim = Some(orphan(None));
    let decision = run(&observed);
    assert_eq!((reason(&decision).as_str(), decision.after.len()), ("GoldenReplaced", 0));
    // Owned by a DataVolume that is gone: the collector is under way, and may not take what is bound.
    for (bound, expected) in [(false, "GoldenTerminating"), (true, "GoldenReplaced")] {
        observed.targets[0].golden.claim = Some(ClaimView { bound, ..orphan(Some("dv")) });
        assert_eq!(reason(&run(&observed)), expected);
    }
    // CDI's former garbage collection, if this is the claim that CDI filled, and not a copy of it.
    let collected =
        |filled_as: Option<&str>| ClaimView { garbage_collected: true, filled_as: filled_as.map(str::to_owned), ..orphan(None) };
    for (filled_as, expected) in [(Some("pvc"), "Ready"), (Some("former"), "GoldenReplaced"), (None, "GoldenReplaced")] {
        observed.targets[0].golden.claim = Some(collected(filled_as));
        assert_eq!(reason(&run(&observed)), expected, "{filled_as:?}");
    }
    observed.targets[0].golden.claim = Some(ClaimView { restored_by: Some("r".into()), ..collected(None) });
    assert!(ready(&run(&observed)).2.contains("velero.io/restore-name: r"));
    // Recorded: the claim is what counts.
    let mut observed = made();
    observed.targets[0].golden.volume = None;
    observed.targets[0].golden.claim = Some(orphan(None));
    assert_eq!(reason(&run(&observed)), "Ready");
}

/// R7: a pair that a restore brought back, with nothing on record. CDI calls it Succeeded without having looked at it.
#[test]
fn r7_a_restored_pair_is_not_believed_before_a_person_says_so() {
    let restored = |phase: &str, controller: Option<&str>, bound: bool| {
        let mut observed = http();
        let golden = &mut observed.targets[0].golden;
        golden.volume = Some(volume(phase));
        let controller = controller.map(str::to_owned);
        golden.claim = Some(ClaimView { controller, made_for: Some("former".into()), bound, ..claim() });
        golden.stranger = Some(super::tests::stranger("https://spool.example/former"));
        observed
    };
    for (phase, controller, bound) in [
        ("Succeeded", Some("dv"), true),
        ("Succeeded", None, true),
        // Beside a claim that CDI did not take over, and beside one that is still being filled by the backup tool.
        ("Pending", None, true),
        ("", None, true),
        ("Pending", None, false),
    ] {
        let mut observed = restored(phase, controller, bound);
        let decision = run(&observed);
        assert_eq!(reason(&decision), "GoldenReplaced", "{phase} {controller:?}");
        assert!(decision.before.is_empty() && decision.after.is_empty(), "{phase} {controller:?}: {decision:?}");
        assert_eq!(decision.status.targets[0].started_time, None, "no import begins");
        observed.targets[0].golden.stranger.as_mut().expect("stranger").consent = Consent::OfThisClaim;
        let taken = run(&observed);
        if !bound {
            assert_eq!((reason(&taken).as_str(), taken.after.len()), ("GoldenReplaced", 0), "there is nothing to take over yet");
            continue;
        }
        let verified = find_condition(&taken.status.conditions, ConditionType::Verified).expect("Verified");
        assert_eq!((ready(&taken).0.as_str(), verified.reason.as_str()), ("True", "Adopted"), "{phase} {controller:?}");
        assert!(matches!(&taken.after[..], [Action::Adopt { .. }]), "{taken:?}");
        // Applied, nothing is left to do: a DataVolume that does not speak for the claim is not asked.
        observed.status = taken.status.clone();
        observed.targets[0].golden.claim.as_mut().expect("claim").adopt = Some("pvc".into());
        let again = run(&observed);
        assert_eq!((again.status == taken.status, again.after.len()), (true, 0), "{phase} {controller:?}: {again:?}");
    }
    // The pair that CDI made is believed by its marks, also where CDI was told besides that it is filled; not where nothing else says so.
    let mut observed = restored("Succeeded", Some("dv"), true);
    let claim = observed.targets[0].golden.claim.as_mut().expect("claim");
    claim.made_for = Some("dv".into());
    assert_eq!(reason(&run(&observed)), "Ready");
    observed.targets[0].golden.claim.as_mut().expect("claim").said_filled = true;
    assert_eq!(reason(&run(&observed)), "Ready");
    observed.targets[0].golden.claim.as_mut().expect("claim").made_for = None;
    assert_eq!(reason(&run(&observed)), "GoldenReplaced");
    // Nor where the DataVolume came back without our marks; what is said then helps.
    let mut observed = restored("Succeeded", Some("dv"), true);
    observed.targets[0].golden.volume.as_mut().expect("volume").ours = false;
    let decision = run(&observed);
    assert_eq!((reason(&decision).as_str(), decision.after.len()), ("GoldenReplaced", 0), "{decision:?}");
    observed.targets[0].golden.stranger.as_mut().expect("stranger").consent = Consent::OfThisClaim;
    let taken = run(&observed);
    assert!(ready(&taken).0 == "True" && matches!(&taken.after[..], [Action::Adopt { volume_uid: Some(_), .. }]), "{taken:?}");
    // Nor is a claim that came back without our marks, beside a DataVolume that has them.
    let mut observed = restored("Succeeded", Some("dv"), true);
    observed.targets[0].golden.claim.as_mut().expect("claim").ours = false;
    let decision = run(&observed);
    assert_eq!((reason(&decision).as_str(), decision.after.len()), ("GoldenReplaced", 0), "{decision:?}");
    assert!(ready(&decision).2.contains("label it `kubernetes-worker-image.cozystack.io/golden: true`"), "{decision:?}");
}

#[test]
fn r7_a_volume_made_by_hand_beside_the_goldens_claim_is_nobodys() {
    let mut observed = made();
    observed.targets[0].golden.claim = Some(ClaimView { controller: Some("dv".into()), ..claim() });
    observed.targets[0].golden.volume = Some(DataVolumeView { uid: "by-hand".into(), ours: false, ..volume("Pending") });
    let decision = run(&observed);
    assert_eq!((reason(&decision).as_str(), decision.after.len()), ("Ready", 0), "neither believed nor marked: {decision:?}");
    // The one that controls the claim is marked again when its marks were taken off.
    observed.targets[0].golden.volume = Some(DataVolumeView { ours: false, ..volume("Succeeded") });
    let decision = run(&observed);
    assert!(matches!(&decision.after[..], [Action::Mark { volume_uid: Some(uid), .. }] if uid == "dv"), "{decision:?}");
}

#[test]
fn r26_only_a_made_golden_is_in_use() {
    let mut observed = made();
    observed.targets[0].golden.in_use = Some("clones wait while a pod can write to the golden: cozy-public/debug".into());
    let decision = run(&observed);
    assert!(is_true(&decision.status.conditions, ConditionType::InUseByPod) && ready(&decision).0 == "True");
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.targets[0].golden = GoldenView {
        volume: Some(volume("ImportInProgress")),
        grant: GrantView::Serving { disk: disk(), ready: true },
        in_use: Some("the importer".into()),
        ..GoldenView::default()
    };
    assert!(!is_true(&run(&observed).status.conditions, ConditionType::InUseByPod));
}

#[test]
fn another_disk_in_the_spool_does_not_end_a_copy() {
    let mut observed = with_a_further_target(json!({ "storageClassName": "local" }));
    observed.status = run(&observed).status;
    observed.targets[1].name = "vm-default-images-a-local".parse().ok();
    observed.targets[1].golden.volume = Some(DataVolumeView { copies: Some("vm-default-images-a".into()), ..volume("CloneInProgress") });
    observed.spooled = Some(SpooledView { disk_digest: crate::model::Digest::of(b"other"), ..spooled() });
    assert!(run(&observed).after.iter().all(|action| !matches!(action, Action::DeleteVolume { .. })));
}
