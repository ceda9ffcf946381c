//! R23, R24: an image whose goldens are to go. Nothing new begins, and the fence (`fence`) takes what there is, finished or not: somebody may ask for a clone of what is still being made in the very moment in which it is given up. When all are gone the image says `Retired`, or goes itself.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use super::{
    Action, Decision, FetchView, Observed, Wants,
    decide::{after, listing_condition, refused_condition, whole_seconds},
    summary::{notes, with_remedy},
    target::marks_of_all,
    usage,
};
use crate::{
    api::{ConditionSet, ConditionType, TargetStatus, find_condition},
    model::GoldenName,
    rules::Reason,
};

/// Why and how far an image's goldens are to go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retirement {
    /// They are: `spec.retire`, or the object is deleted with the policy `Delete`.
    pub is_wanted: bool,
    /// The object is being deleted.
    pub is_deleted: bool,
    /// `deletionPolicy: Delete`: the object waits for its goldens.
    pub waits_for_goldens: bool,
    /// Our finalizer is on the object.
    pub has_finalizer: bool,
    /// A golden is there still.
    pub is_left: bool,
    /// The annotation on the object that gets around who needs its goldens is there.
    pub is_forced: bool,
    /// Who needs them, in words; nobody, or why that is not known.
    pub blockers: Option<String>,
    /// What is being deleted already, and the pods that hold it, in words.
    pub going: Vec<String>,
    /// What the fence around a golden of the image could not do, or could not know, in words; also where none is to go any more.
    pub trouble: Option<String>,
}

/// How often the blockers in status are looked at again.
pub(super) const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(15);

/// What is to be done while goldens are to go; nothing where they are not.
pub(super) fn decide(observed: &Observed, now: Timestamp) -> Option<Decision> {
    let retirement = &observed.retirement;
    if !retirement.is_wanted {
        return None;
    }
    let mut status = observed.status.clone();
    status.observed_generation = observed.metadata.generation;
    let mut after_status = Vec::new();
    if matches!(observed.fetch, FetchView::Running { .. }) {
        after_status.push(Action::CancelFetch);
    }
    // What failed before is nobody's trouble any more, and nothing is tried again.
    status.fetch = None;
    for target in &mut status.targets {
        (target.last_failure, target.next_attempt_time) = (None, None);
    }
    let half_made: Vec<_> = observed.views().filter_map(|target| unfinished(observed, target)).collect();
    let mut before = Vec::new();
    if !retirement.is_left {
        // Before its record is gone, by which it would be found again.
        let may_have_headers = |target: &&TargetStatus| target.claim_uid.is_none() || target.started_time.is_some();
        let goldens = status.targets.iter().filter(may_have_headers).filter_map(|target| target.golden.as_ref()?.parse().ok());
        before.extend(goldens.map(|golden| Action::DeleteHeaders { golden }));
    }
    // The fence is around what has our mark: a golden that lost it would be waited for without end.
    if let Ok(image) = &observed.image {
        after_status.extend(marks_of_all(image, observed));
    }
    let mut set = ConditionSet::new(&observed.status.conditions, observed.metadata.generation, whole_seconds(now));
    for kind in [ConditionType::Accepted, ConditionType::Resolved, ConditionType::Verified] {
        let known = find_condition(&observed.status.conditions, kind);
        keep(&mut set, known.filter(|known| kind == ConditionType::Accepted || known.status != "False"), kind);
    }
    let message = match (&retirement.blockers, retirement.is_left) {
        (_, false) => {
            format!(
                "The goldens are gone. `golden-catalog retire {} --undo` has them made anew; where values or a hand say `retire: true`, take that out there first.",
                observed.metadata.name
            )
        }
        (None, true) if !retirement.going.is_empty() => format!("Being deleted: {}.", retirement.going.join("; ")),
        (None, true) => "Nothing is seen to need the goldens; they go when that is certain.".to_owned(),
        (Some(blockers), true) => {
            let waiting: Vec<_> = half_made.iter().map(|golden| golden.as_str()).collect();
            let unfinished = match waiting[..] {
                [] => String::new(),
                _ => format!(" Not made yet, and no longer seen to: {}; given up when nothing waits for it.", waiting.join(", ")),
            };
            format!("No new pools are let in. The goldens go by themselves when nothing needs them any more: {blockers}.{unfinished}")
        }
    };
    let reason = if retirement.is_left { Reason::Retiring } else { Reason::Retired };
    // Only where somebody must do something about it: who needs a golden is nobody's trouble.
    let trouble = retirement.trouble.as_ref().filter(|_| retirement.is_left);
    let (shown, message) = match trouble {
        Some(trouble) => (Reason::CannotRetire, format!("{} {message}", with_remedy(trouble, Reason::CannotRetire))),
        None => (reason, message),
    };
    set.set(ConditionType::Ready, Some(false), shown, message.clone());
    let was_available = find_condition(&observed.status.conditions, ConditionType::Available).is_some_and(|found| found.status == "True");
    set.set(ConditionType::Available, Some(was_available && retirement.is_left), reason, "");
    if retirement.is_left {
        set.set(ConditionType::Retiring, Some(true), reason, message);
    } else {
        // If they are wanted again they are made anew, under names of their own.
        status.targets = Vec::new();
    }
    if let Some((kind, reason, message)) = listing_condition(&observed.listing) {
        set.set(kind, Some(true), reason, message);
    }
    if let Some((kind, reason, message)) = refused_condition(observed) {
        set.set(kind, Some(true), reason, with_remedy(&message, reason));
    }
    usage::tell(&mut set, &mut status, &observed.status, &observed.usage, now);
    status.conditions = set.finish();
    Some(Decision {
        before,
        notes: notes(&observed.status, &status),
        status,
        after: after_status,
        wake: retirement.is_left.then(|| after(now, LOOK_AGAIN)),
        wants: Wants::default(),
    })
}

/// The golden, where its import has not ended and was never finished before.
fn unfinished<'a>(observed: &Observed, target: &'a super::ObservedTarget) -> Option<&'a GoldenName> {
    let (golden, volume) = (target.name.as_ref()?, target.golden.volume.as_ref()?);
    let is_made = observed.status.of_golden(golden.as_str()).is_some_and(TargetStatus::is_made);
    let is_held = volume.phase == "Succeeded" || is_made;
    (volume.ours && !volume.terminating && !is_held).then_some(golden)
}

fn keep(set: &mut ConditionSet<'_>, condition: Option<&Condition>, kind: ConditionType) {
    let Some((condition, reason)) = condition.and_then(|condition| Some((condition, condition.reason.parse().ok()?))) else { return };
    let status = match condition.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    };
    set.set(kind, status, reason, condition.message.clone());
}

/// Our finalizer: on the object only while it must wait for its goldens (R23).
pub(super) fn finalizer(retirement: &Retirement) -> Option<Action> {
    let Retirement { is_deleted, waits_for_goldens, has_finalizer, is_left, .. } = *retirement;
    let wanted = waits_for_goldens && (!is_deleted || is_left);
    // None can be put onto what is being deleted.
    (wanted != has_finalizer && (has_finalizer || !is_deleted)).then_some(Action::Finalizer(wanted))
}

/// Force is for one retirement: what is left of it afterwards would take the goldens that are made anew, in use, at the next.
pub(super) fn disarm(retirement: &Retirement) -> Option<Action> {
    let is_under_way = retirement.is_wanted && retirement.is_left;
    (retirement.is_forced && !is_under_way).then_some(Action::Disarm)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::golden::{
        ClaimView,
        tests::{claim, http, made, ready, reason, run, spooled, volume},
    };

    fn retired(mut observed: Observed) -> Observed {
        let is_left = observed.targets.iter().any(|target| target.golden.volume.is_some() || target.golden.claim.is_some());
        observed.retirement = Retirement { is_wanted: true, is_left, ..Retirement::default() };
        observed
    }

    /// An import under way.
    fn importing() -> Observed {
        let mut observed = http();
        observed.spooled = Some(spooled());
        observed.status = run(&observed).status;
        observed.targets[0].name = Some("vm-default-images-a".parse().expect("name"));
        observed.targets[0].golden.volume = Some(volume("ImportInProgress"));
        observed
    }

    fn deletes(decision: &Decision) -> bool {
        decision.after.iter().any(|action| matches!(action, Action::DeleteVolume { .. }))
    }

    /// What failed before is nobody's trouble any more: metrics and alerts follow the status.
    #[test]
    fn r23_a_retired_image_tells_of_no_failure() {
        let mut failing = http();
        failing.status = run(&failing).status;
        failing.fetch = FetchView::Failed { reason: Reason::NotFound, message: "404".into(), retry_after: None };
        failing.status = run(&failing).status;
        assert!(failing.status.fetch.as_ref().is_some_and(|fetch| fetch.last_failure.is_some()));
        let decision = run(&retired(failing));
        assert_eq!((reason(&decision).as_str(), &decision.status.fetch), ("Retired", &None));

        let mut refused = http();
        refused.status = run(&refused).status;
        refused.fetch = FetchView::Failed { reason: Reason::Corrupt, message: "cut off".into(), retry_after: None };
        refused.status = run(&refused).status;
        let verified = |status: &crate::api::GoldenImageStatus| {
            find_condition(&status.conditions, ConditionType::Verified).is_some_and(|verified| verified.status == "False")
        };
        assert!(verified(&refused.status) && !verified(&run(&retired(refused.clone())).status));

        let mut stuck = importing();
        let late = crate::golden::decide(&stuck, &crate::golden::Settings::default(), crate::golden::tests::later(16 * 60));
        stuck.status = late.status;
        assert!(stuck.status.targets[0].last_failure.is_some());
        let decision = run(&retired(stuck));
        let target = &decision.status.targets[0];
        assert_eq!((&target.last_failure, &target.next_attempt_time), (&None, &None));
    }

    #[test]
    fn r23_an_unfinished_import_is_told_with_who_waits_for_it_and_left_to_the_fence() {
        let mut observed = retired(importing());
        observed.retirement.blockers = Some("tenant-a/KubernetesNodes/demo-md0".into());
        let waiting = run(&observed);
        let (_, reason, message) = ready(&waiting);
        assert_eq!(reason, "Retiring");
        for text in ["tenant-a/KubernetesNodes/demo-md0", "Not made yet, and no longer seen to: vm-default-images-a"] {
            assert!(message.contains(text), "{message}");
        }
        assert!(!deletes(&waiting) && waiting.wake.is_some(), "looked at again: {waiting:?}");
        observed.status = waiting.status;
        observed.retirement.blockers = None;
        let free = run(&observed);
        assert!(!deletes(&free) && ready(&free).2.contains("go when that is certain"), "nobody knows who asks for a clone now: {free:?}");
        // Gone: its header Secret goes before its record does.
        observed.targets[0].golden = crate::golden::GoldenView::default();
        let gone = run(&retired(observed));
        assert!(matches!(&gone.before[..], [Action::DeleteHeaders { .. }]) && gone.status.targets.is_empty(), "{gone:?}");
    }

    /// One that was Ready once, and one that is made anew after it was lost: the former one's UID is on record still.
    #[test]
    fn r23_only_what_was_never_finished_is_told_as_not_made() {
        let is_told = |observed: Observed| {
            let mut observed = retired(observed);
            observed.retirement.blockers = Some("x".into());
            ready(&run(&observed)).2.contains("Not made yet")
        };
        let mut finished = importing();
        finished.targets[0].golden.volume = Some(volume("Succeeded"));
        finished.targets[0].golden.claim = Some(claim());
        assert!(!is_told(finished), "not even recorded yet");
        let mut strange = made();
        strange.targets[0].name = Some("vm-default-images-a".parse().expect("name"));
        strange.targets[0].golden.volume = Some(volume("ImportInProgress"));
        assert!(!is_told(strange), "CDI says so of a golden that was Ready");
        let mut anew = made();
        anew.targets[0].golden = crate::golden::GoldenView::default();
        anew.status = run(&anew).status;
        assert!(anew.status.targets[0].claim_uid.is_some() && anew.status.targets[0].started_time.is_some());
        anew.targets[0].name = Some("vm-default-images-a".parse().expect("name"));
        anew.targets[0].golden.volume = Some(volume("ImportInProgress"));
        anew.targets[0].golden.claim = Some(ClaimView { uid: "new".into(), bound: false, ..claim() });
        assert!(is_told(anew));
    }

    /// What the API server refuses is on the object, before who needs it, and gone with its cause.
    #[test]
    fn r23_what_keeps_the_fence_from_being_kept_is_told_first_and_only_while_it_lasts() {
        let mut observed = retired(made());
        observed.retirement.blockers = Some("tenant-a/KubernetesNodes/demo-md0".into());
        let quiet = run(&observed);
        assert_eq!(ready(&quiet).1, "Retiring");
        observed.status = quiet.status.clone();
        let refusal = "The API server refuses the marks that retire a golden on DataVolume c/g: policy p says no.";
        observed.retirement.trouble = Some(refusal.into());
        let told = run(&observed);
        let (_, reason, message) = ready(&told);
        assert_eq!(reason, "CannotRetire");
        assert!(message.starts_with(refusal) && message.contains("Allow or correct") && message.contains("demo-md0"), "{message}");
        let refused = find_condition(&told.status.conditions, ConditionType::WriteRefused).expect("told");
        assert_eq!((refused.status.as_str(), refused.reason.as_str()), ("True", "CannotRetire"));
        assert!(told.notes.iter().any(|note| note.warning && note.message.contains("policy p says no")), "{:?}", told.notes);
        observed.status = told.status;
        observed.retirement.trouble = None;
        let mended = run(&observed);
        assert_eq!(mended.status.conditions, quiet.status.conditions);

        // Taken back, and the marks may not be taken off: the golden stays closed to new pools, which is told on an image that is Ready.
        let mut kept = made();
        kept.retirement.trouble = Some(refusal.into());
        let decision = run(&kept);
        assert_eq!(ready(&decision).0, "True");
        let refused = find_condition(&decision.status.conditions, ConditionType::WriteRefused).expect("told");
        assert!(refused.reason == "CannotRetire" && refused.message.contains("policy p says no"), "{refused:?}");
    }

    #[rstest]
    #[case::retain(false, false, false, true, None)]
    #[case::delete(false, true, false, true, Some(Action::Finalizer(true)))]
    #[case::delete_again(false, true, true, true, None)]
    #[case::changed_to_retain(false, false, true, true, Some(Action::Finalizer(false)))]
    #[case::waits(true, true, true, true, None)]
    #[case::goldens_gone(true, true, true, false, Some(Action::Finalizer(false)))]
    #[case::deleted_with_retain(true, false, true, true, Some(Action::Finalizer(false)))]
    #[case::too_late_to_wait(true, true, false, true, None)]
    fn r23_the_finalizer(
        #[case] is_deleted: bool,
        #[case] waits_for_goldens: bool,
        #[case] has_finalizer: bool,
        #[case] is_left: bool,
        #[case] expected: Option<Action>,
    ) {
        let retirement = Retirement { is_deleted, waits_for_goldens, has_finalizer, is_left, ..Retirement::default() };
        assert_eq!(finalizer(&retirement), expected);
    }

    /// A pod that mounts a golden keeps its PVC there after everything else has been done.
    #[test]
    fn r23_what_is_being_deleted_is_told_with_who_holds_it() {
        let mut observed = retired(importing());
        observed.retirement.going = vec!["vm-default-images-a, which stays as long as a pod uses its PVC: cozy-public/debug".into()];
        let decision = run(&observed);
        let told = find_condition(&decision.status.conditions, ConditionType::Retiring).expect("told").message.clone();
        assert!(
            told.starts_with("Being deleted: vm-default-images-a, which stays as long as a pod uses its PVC: cozy-public/debug."),
            "{told}"
        );
    }

    /// The fence is around what has our mark, and would wait for one that lost it without end.
    #[test]
    fn r23_a_golden_that_lost_its_mark_gets_it_again_to_go() {
        let is_marked = |observed: Observed| {
            let marks = |action: &Action| matches!(action, Action::Mark { claim_uid, .. } if claim_uid == "pvc");
            run(&retired(observed)).after.iter().any(marks)
        };
        let mut lost = made();
        lost.targets[0].name = Some("vm-default-images-a".parse().expect("name"));
        assert!(!is_marked(lost.clone()));
        lost.targets[0].golden.claim = Some(ClaimView { ours: false, ..claim() });
        assert!(is_marked(lost.clone()));
        lost.targets[0].golden.claim = Some(ClaimView { ours: false, uid: "another".into(), ..claim() });
        assert!(!is_marked(lost), "not the one on record");
    }

    #[rstest]
    #[case::under_way(true, true, true, None)]
    #[case::gone(true, true, false, Some(Action::Disarm))]
    #[case::taken_back(true, false, true, Some(Action::Disarm))]
    #[case::asks_for_nothing(true, false, false, Some(Action::Disarm))]
    #[case::not_forced(false, true, false, None)]
    fn r23_force_ends_with_its_retirement(
        #[case] is_forced: bool,
        #[case] is_wanted: bool,
        #[case] is_left: bool,
        #[case] expected: Option<Action>,
    ) {
        let mut observed = retired(importing());
        observed.retirement = Retirement { is_forced, is_wanted, is_left, ..Retirement::default() };
        assert_eq!(disarm(&observed.retirement), expected);
        assert_eq!(run(&observed).before.contains(&Action::Disarm), expected.is_some());
    }
}
