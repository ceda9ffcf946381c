//! What one target is to its siblings, and what its attempts leave behind, told as decisions.

use rstest::rstest;
use serde_json::json;

use super::{
    Action, ClaimView, ClassChoice, DataVolumeView, Decision, FetchView, GoldenView, ImportOrder, Observed, Reference, Settings, decide,
    needs_no_disk,
    tests::{claim, class, http, later, made, now, observed, ready, reason, run, spooled, stranger, volume},
};
use crate::{
    api::{ConditionType, LastFailure, TargetStatus, find_condition, is_true},
    golden::decide::whole_seconds,
    model::VolumeMode,
    rules::Reason,
};

fn order(decision: &Decision) -> Option<&ImportOrder> {
    decision.after.iter().find_map(|action| if let Action::CreateVolume(order) = action { Some(&**order) } else { None })
}

fn of_target(decision: &Decision, index: usize) -> &str {
    let target = decision.status.targets.get(index).expect("target");
    find_condition(&target.conditions, ConditionType::Ready).map_or("", |ready| ready.reason.as_str())
}

fn two(targets: serde_json::Value) -> Observed {
    observed(json!({ "source": { "http": { "url": "https://e.example/a.qcow2" } }, "storage": { "targets": targets } }))
}

/// An import that was begun.
fn begun() -> Observed {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed
}

#[test]
fn r9_spent_attempts_stay_told_and_the_slow_retry_is_slow() {
    let settings = Settings::default();
    let mut observed = begun();
    observed.status.targets[0].attempts = settings.import_attempts;
    observed.targets[0].golden.volume = Some(volume("ImportInProgress"));
    let at = |observed: &mut Observed, second: u64, volume: Option<DataVolumeView>| {
        observed.targets[0].golden.volume = volume;
        let decision = decide(observed, &settings, later(second));
        observed.status = decision.status.clone();
        decision
    };
    let is_stalled = |decision: &Decision| is_true(&decision.status.conditions, ConditionType::Stalled);
    let spent = at(&mut observed, 16 * 60, Some(volume("ImportInProgress")));
    assert!(is_stalled(&spent) && spent.after.iter().any(|action| matches!(action, Action::DeleteVolume { .. })));
    let going = at(&mut observed, 16 * 60 + 1, Some(DataVolumeView { terminating: true, ..volume("ImportInProgress") }));
    assert_eq!((is_stalled(&going), reason(&going).as_str()), (true, "ImportStalled"), "{going:?}");
    // Between the longest delay of ordinary attempts and the interval of slow ones nothing begins.
    for minute in [17, 27, 30] {
        let waiting = at(&mut observed, minute * 60, None);
        assert_eq!((order(&waiting), is_stalled(&waiting)), (None, true), "{minute}: {waiting:?}");
    }
    let healing = at(&mut observed, 31 * 60 + 1, None);
    assert_eq!((order(&healing).is_some(), is_stalled(&healing), healing.status.targets[0].attempts), (true, true, 6));
    let running = at(&mut observed, 31 * 60 + 10, Some(volume("ImportInProgress")));
    assert!(is_stalled(&running) && ready(&running).2.contains("Now: Importing, CDI: ImportInProgress."), "{running:?}");
    observed.targets[0].golden.claim = Some(claim());
    let done = at(&mut observed, 32 * 60, Some(volume("Succeeded")));
    assert_eq!((reason(&done).as_str(), is_stalled(&done)), ("Ready", false));
}

/// An attempt that runs with attempts left, and one that never failed, are not spent.
#[test]
fn the_last_attempt_is_not_spent_while_it_runs() {
    let mut observed = begun();
    let limit = Settings::default().import_attempts;
    let failed = LastFailure { reason: "ImportFailed".into(), message: "boom".into(), time: whole_seconds(now()) };
    observed.status.targets[0].attempts = limit;
    observed.status.targets[0].last_failure = Some(failed);
    observed.targets[0].golden.volume = Some(volume("ImportInProgress"));
    let running = run(&observed);
    assert_eq!((reason(&running).as_str(), is_true(&running.status.conditions, ConditionType::Stalled)), ("Importing", false));
}

#[test]
fn a_golden_that_is_made_anew_has_all_its_attempts() {
    let mut observed = made();
    observed.status.targets[0].attempts = Settings::default().import_attempts;
    observed.spooled = Some(spooled());
    observed.targets[0].golden = GoldenView::default();
    let again = run(&observed);
    assert_eq!((order(&again).is_some(), again.status.targets[0].attempts), (true, 1), "{again:?}");
}

#[test]
fn modes_of_an_attempt_that_made_nothing_bind_no_other() {
    let mut observed = begun();
    if let ClassChoice::Found(class) = &mut observed.targets[0].class {
        class.properties[0].volume_mode = Some(VolumeMode::Filesystem);
    }
    let mode = |observed: &Observed| order(&run(observed)).map(|order| order.volume_mode);
    assert_eq!(mode(&observed), Some(VolumeMode::Block), "cut off before its DataVolume was made, the same attempt goes on");
    observed.status.targets[0].started_time = None;
    assert_eq!(mode(&observed), Some(VolumeMode::Filesystem), "the profile was corrected");
}

/// R12: wherever it stands, the target that has no golden is the one too many.
#[test]
fn a_target_put_in_front_of_a_made_one_of_its_class_makes_nothing() {
    let first = made();
    let mut observed = two(json!([{}, { "storageClassName": "replicated" }]));
    observed.spooled = Some(spooled());
    observed.status = first.status;
    observed.status.targets[0].requested_class = "replicated".into();
    observed.targets[1] = first.targets[0].clone();
    let decision = run(&observed);
    assert_eq!((of_target(&decision, 0), of_target(&decision, 1)), ("DuplicateClass", "Ready"), "{decision:?}");
    assert_eq!(order(&decision), None);
}

/// R5: until a golden is on record both are looked at under the name without a class.
#[test]
fn a_former_catalogs_golden_is_taken_over_by_one_target() {
    let mut observed = two(json!([{ "storageClassName": "local" }, {}]));
    observed.spooled = Some(spooled());
    observed.targets[0].class = class("local");
    for target in &mut observed.targets {
        target.name = "vm-default-images-a".parse().ok();
        target.golden.volume = Some(DataVolumeView { ours: false, ..volume("Succeeded") });
        target.golden.claim = Some(ClaimView { ours: false, class: Some("local".into()), ..claim() });
        target.golden.stranger =
            Some(crate::rules::adopt::Stranger { class: Some("local".into()), ..stranger("https://e.example/a.qcow2") });
    }
    let taken = run(&observed);
    assert_eq!(taken.after.iter().filter(|action| matches!(action, Action::Adopt { .. })).count(), 1, "{taken:?}");
    assert_eq!((taken.status.targets[0].golden.as_deref(), taken.status.targets[1].golden.as_deref()), (Some("vm-default-images-a"), None));
    assert_eq!((of_target(&taken, 1), order(&taken)), ("Resolving", None), "looked at under its own name first");
    // Looked at again, it is an image's golden like any other.
    observed.status = taken.status;
    observed.targets[1].name = "vm-default-images-a-replicated".parse().ok();
    observed.targets[1].golden = GoldenView::default();
    assert_eq!(order(&run(&observed)).map(|order| order.golden.as_str()), Some("vm-default-images-a-replicated"));
}

/// Without a class of its own a target has only its sibling's name, and what stands there is its sibling's.
#[test]
fn a_target_whose_class_is_missing_takes_nothing_of_its_sibling() {
    let first = made();
    let mut observed = two(json!([{}, { "storageClassName": "lokal" }]));
    observed.status = first.status;
    observed.targets[0] = first.targets[0].clone();
    observed.targets[1].class = ClassChoice::Missing("lokal".parse().expect("class"));
    observed.targets[1].name = observed.status.targets[0].golden.as_ref().and_then(|name| name.parse().ok());
    observed.targets[1].golden.claim = Some(ClaimView { ours: false, ..claim() });
    observed.targets[1].golden.stranger = Some(stranger("https://e.example/a.qcow2"));
    let decision = run(&observed);
    assert_eq!((of_target(&decision, 0), of_target(&decision, 1)), ("Ready", "ClassNotFound"), "{decision:?}");
    assert!(decision.status.targets[1].golden.is_none());
}

/// A re-created image whose goldens are all there: none is in another's way.
#[test]
fn goldens_of_a_re_created_image_are_believed_one_after_the_other() {
    let mut observed = two(json!([{}, { "storageClassName": "local" }]));
    observed.targets[1].class = class("local");
    for target in &mut observed.targets {
        target.name = "vm-default-images-a".parse().ok();
        target.golden.volume = Some(volume("Succeeded"));
        target.golden.claim = Some(ClaimView { made_for: Some("dv".into()), controller: Some("dv".into()), ..claim() });
    }
    let decision = run(&observed);
    assert_eq!((of_target(&decision, 0), of_target(&decision, 1)), ("Ready", "Resolving"), "{decision:?}");
    assert!(is_true(&decision.status.conditions, ConditionType::Accepted));
}

#[test]
fn r7_a_claim_deleted_under_its_volume_is_told_with_what_helps() {
    let mut observed = made();
    let golden = &mut observed.targets[0].golden;
    golden.volume = Some(volume("Succeeded"));
    golden.claim = Some(ClaimView { controller: Some("dv".into()), made_for: Some("dv".into()), terminating: true, ..claim() });
    let going = run(&observed);
    assert_eq!(reason(&going), "GoldenTerminating");
    assert!(ready(&going).2.contains("its DataVolume is not: delete that as well"), "{going:?}");
    // CDI makes another claim for the DataVolume that is still there, and the spool serves it nothing.
    let golden = &mut observed.targets[0].golden;
    golden.volume = Some(volume("ImportInProgress"));
    let anew = ClaimView { uid: "anew".into(), controller: Some("dv".into()), made_for: Some("dv".into()), bound: false, ..claim() };
    golden.claim = Some(anew.clone());
    let missing = run(&observed);
    assert_eq!(reason(&missing), "GoldenMissing");
    assert!(ready(&missing).2.contains("delete the DataVolume to have it made anew"), "{missing:?}");
    // What somebody put there is another matter.
    observed.targets[0].golden.claim = Some(ClaimView { controller: None, bound: true, ..anew });
    assert_eq!(reason(&run(&observed)), "GoldenReplaced");
}

/// Told on the golden that was made before, beside what else its class cannot do; and nothing changes.
#[test]
fn a_class_made_anew_for_another_provisioner_is_told_on_the_golden_in_it() {
    let told = |observed: &Observed| find_condition(&run(observed).status.conditions, ConditionType::CloneLimited).cloned();
    let mut observed = made();
    observed.targets[0].golden.claim.as_mut().expect("claim").provisioner = Some("linstor.csi.linbit.com".into());
    assert_eq!(told(&observed), None);
    let ClassChoice::Found(class) = &mut observed.targets[0].class else { panic!("a class") };
    (class.provisioner, class.warnings) = ("other.example".into(), vec!["it is slow".into()]);
    let limited = told(&observed).expect("told");
    assert!(limited.message.starts_with("StorageClass replicated was made anew for the provisioner other.example"), "{limited:?}");
    assert!(limited.message.contains(". it is slow."), "what was known before stays: {limited:?}");
    let decision = run(&observed);
    assert!(ready(&decision).0 == "True" && decision.after.is_empty() && decision.before.is_empty(), "{decision:?}");
}

#[test]
fn a_class_that_is_gone_is_told_on_the_golden_in_it() {
    let mut observed = made();
    observed.targets[0].class = ClassChoice::Missing("replicated".parse().expect("class"));
    let decision = run(&observed);
    assert_eq!(ready(&decision).0, "True");
    for kind in [ConditionType::CloneLimited, ConditionType::DefaultClassDrift] {
        let told = find_condition(&decision.status.conditions, kind).expect("told");
        assert!(told.message.contains("replicated") && told.message.contains("does not exist any more"), "{}", told.message);
    }
}

#[test]
fn the_disk_is_kept_for_whoever_may_need_it() {
    let status = |decision: Decision| decision.status.targets[0].clone();
    let mut observed = made();
    assert!(needs_no_disk(&status(run(&observed))));
    // Lost, and waiting for its next attempt: on record it is made still.
    observed.targets[0].golden = GoldenView::default();
    observed.spooled = Some(spooled());
    observed.status.targets[0].next_attempt_time = Some(whole_seconds(later(60)));
    observed.status.targets[0].attempts = 1;
    let lost = status(run(&observed));
    assert!(lost.claim_uid.is_some() && lost.started_time.is_none() && !needs_no_disk(&lost), "{lost:?}");
    assert!(!needs_no_disk(&TargetStatus::default()));
    // A second target of one class never needs it.
    let mut observed = two(json!([{}, { "storageClassName": "replicated" }]));
    observed.fetch = FetchView::Running { percent: None };
    let decision = run(&observed);
    assert!(needs_no_disk(&decision.status.targets[1]) && !needs_no_disk(&decision.status.targets[0]), "{decision:?}");
}

/// R11: an import whose disk the spool lost, and is not fetched before something changes, gives its turn back without having failed.
#[rstest]
#[case::suspended(true, Reference::Found, Reason::Suspended, "Set `spec.suspend: false`")]
#[case::without_its_secret(false, Reference::Missing("The Secret ns/s".into()), Reason::ReferenceNotFound, "The Secret ns/s does not exist")]
fn r11_what_cannot_be_imported_for_now_gives_its_turn_back(
    #[case] suspend: bool,
    #[case] credentials: Reference,
    #[case] told: Reason,
    #[case] words: &str,
) {
    let settings = Settings::default();
    let mut observed = begun();
    observed.targets[0].golden.volume = Some(volume("ImportInProgress"));
    observed.spooled = None;
    observed.image.as_mut().expect("image").suspend = suspend;
    observed.credentials.reference = credentials;
    let at = |observed: &Observed, seconds: u64| decide(observed, &settings, later(seconds));
    let is_told = |decision: &Decision| {
        let (_, reason, message) = ready(decision);
        assert!(reason == told.as_str() && message.contains(words), "{reason}: {message}");
    };
    let first = at(&observed, 1);
    is_told(&first);
    assert!(first.after.iter().all(|action| !matches!(action, Action::DeleteVolume { .. })), "perhaps only for a moment: {first:?}");
    let ended = at(&observed, 61);
    is_told(&ended);
    assert!(ended.after.iter().any(|action| matches!(action, Action::DeleteVolume { .. })), "{ended:?}");
    let target = &ended.status.targets[0];
    assert_eq!((target.attempts, &target.started_time, &target.last_failure), (0, &None, &None), "no failure of its own");
    // The deletion was cut off: asked for again, and nothing is begun.
    observed.status = ended.status.clone();
    let again = at(&observed, 62);
    assert!(again.after.iter().any(|action| matches!(action, Action::DeleteVolume { .. })), "{again:?}");
    assert_eq!(again.status.targets[0].started_time, None);
    // Gone, it waits without a turn, and goes on alone when the cause goes.
    observed.targets[0].golden = GoldenView::default();
    let waiting = at(&observed, 63);
    assert_eq!(waiting.wants.imports, 0, "{waiting:?}");
    is_told(&waiting);
    observed.image.as_mut().expect("image").suspend = false;
    observed.credentials.reference = Reference::Found;
    observed.permits.fetch = true;
    let fetched = at(&observed, 64);
    assert!(fetched.after.iter().any(|action| matches!(action, Action::Fetch { .. })), "{fetched:?}");
    observed.spooled = Some(spooled());
    observed.permits.imports = 1;
    let begun_anew = at(&observed, 65);
    assert!(order(&begun_anew).is_some() && begun_anew.status.targets[0].attempts == 1, "{begun_anew:?}");
}

/// R11: a target that comes first in the spec and waits does not begin on the turn of a sibling that runs.
#[test]
fn r11_a_turn_of_a_sibling_that_runs_is_not_taken() {
    let mut observed = two(json!([{}, { "storageClassName": "local" }]));
    let waits = |imports: usize, observed: &mut Observed| {
        observed.permits.imports = imports;
        run(observed)
    };
    observed.targets[1].class = class("local");
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.targets[1].golden.volume = Some(volume("ImportInProgress"));
    // The first one's attempt has failed, and its wait is over.
    let first = &mut observed.status.targets[0];
    (first.started_time, first.next_attempt_time) = (None, Some(whole_seconds(later(0))));
    let queued = waits(0, &mut observed);
    assert_eq!((queued.wants.imports, queued.wants.running), (2, 1), "{queued:?}");
    assert!(order(&queued).is_none() && queued.status.targets[0].started_time.is_none(), "{queued:?}");
    assert!(order(&waits(1, &mut observed)).is_some());
}

/// CDI shows nothing while it converts: with the whole disk there, a large one has longer than the deadline.
#[test]
fn a_large_disk_has_time_to_be_converted() {
    let settings = Settings::default();
    let mut observed = begun();
    observed.targets[0].golden.volume = Some(volume("ImportInProgress"));
    observed.status.disk.as_mut().expect("disk").virtual_size = "64Gi".into();
    let gives_up = |observed: &Observed, minutes: u64| {
        let decision = decide(observed, &settings, later(minutes * 60));
        decision.after.iter().any(|action| matches!(action, Action::DeleteVolume { .. }))
    };
    assert!(gives_up(&observed, 16));
    observed.targets[0].golden.is_downloaded = true;
    assert!(!gives_up(&observed, 16) && !gives_up(&observed, 130) && gives_up(&observed, 137));
    // A process that has just been started saw nobody download: CDI says that it is done.
    let converts = |percent: Option<u8>, copies: Option<&str>| {
        let mut observed = observed.clone();
        let golden = &mut observed.targets[0].golden;
        let volume = golden.volume.as_mut().expect("volume");
        (volume.percent, volume.copies, golden.is_downloaded) = (percent, copies.map(str::to_owned), false);
        observed.status.targets[0].progress_percent = percent.map(|percent| i32::from(percent) / 10 * 10);
        observed
    };
    assert!(!gives_up(&converts(Some(100), None), 130) && gives_up(&converts(Some(100), None), 137));
    for other in [converts(Some(99), None), converts(None, None), converts(Some(100), Some("another"))] {
        assert!(gives_up(&other, 16), "{other:?}");
    }
    observed.status.disk.as_mut().expect("disk").virtual_size = "1Gi".into();
    assert!(!gives_up(&observed, 14) && gives_up(&observed, 16), "never shorter than the deadline");
}

/// R16: on a file system CDI holds the class's minimum against the claim with the file system's share in it.
#[test]
fn a_minimum_is_not_inflated() {
    let asked = |mode: VolumeMode| {
        let mut observed = http();
        observed.spooled = Some(spooled());
        if let ClassChoice::Found(class) = &mut observed.targets[0].class {
            class.properties[0].volume_mode = Some(mode);
            class.minimum = "8Gi".parse().ok();
        }
        order(&run(&observed)).map(|order| order.size.to_string())
    };
    assert_eq!(asked(VolumeMode::Block).as_deref(), Some("8Gi"));
    assert_eq!(asked(VolumeMode::Filesystem).as_deref(), Some("4097Mi"));
}

/// What asked for a golden to go while no image had it would count again when the image is deleted, and was to leave its goldens.
#[test]
fn r24_a_golden_that_an_image_has_is_not_asked_to_go_any_more() {
    let forgets = |is_asked_to_go: bool, uid: &str| {
        let mut observed = made();
        observed.targets[0].name = Some("vm-default-images-a".parse().expect("name"));
        let found = observed.targets[0].golden.claim.as_mut().expect("claim");
        (found.is_asked_to_go, found.uid) = (is_asked_to_go, uid.into());
        run(&observed).after.iter().any(|action| matches!(action, Action::ForgetRequest { claim_uid, .. } if claim_uid == "pvc"))
    };
    assert!(forgets(true, "pvc") && !forgets(false, "pvc"));
    assert!(!forgets(true, "other"), "not on record");
}
