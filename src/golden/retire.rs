//! R23, R24: an image whose goldens are to go. Nothing new begins, what is unfinished is given up, and the fence (`fence`) takes the rest; when all are gone the image says `Retired`, or goes itself.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use super::{
    Action, Decision, FetchView, Observed, Wants,
    decide::{after, listing_condition, whole_seconds},
    summary::notes,
    usage,
};
use crate::{
    api::{ConditionSet, ConditionType, find_condition},
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
    /// Who needs them, in words; nobody, or why that is not known.
    pub blockers: Option<String>,
}

/// How often the blockers in status are looked at again.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(15);

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
    if retirement.blockers.is_none() {
        after_status.extend(observed.targets.iter().flat_map(|target| give_up(observed, target)));
    }
    let mut set = ConditionSet::new(&observed.status.conditions, observed.metadata.generation, whole_seconds(now));
    for kind in [ConditionType::Accepted, ConditionType::Resolved, ConditionType::Verified] {
        keep(&mut set, find_condition(&observed.status.conditions, kind), kind);
    }
    let message = match (&retirement.blockers, retirement.is_left) {
        (_, false) => "The goldens are gone. Set `spec.retire: false` to have them made anew.".to_owned(),
        (None, true) => "Nothing is seen to need the goldens; they go when that is certain.".to_owned(),
        (Some(blockers), true) => {
            format!("No new pools are let in. The goldens go by themselves when nothing needs them any more: {blockers}.")
        }
    };
    let reason = if retirement.is_left { Reason::Retiring } else { Reason::Retired };
    set.set(ConditionType::Ready, Some(false), reason, message.clone());
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
    usage::tell(&mut set, &mut status, &observed.status, &observed.usage, now);
    status.conditions = set.finish();
    Some(Decision {
        before: Vec::new(),
        notes: notes(&observed.status, &status),
        status,
        after: after_status,
        wake: retirement.is_left.then(|| after(now, LOOK_AGAIN)),
        wants: Wants::default(),
    })
}

/// An import that has not ended holds nothing that anybody could lose.
fn give_up(observed: &Observed, target: &super::ObservedTarget) -> Vec<Action> {
    let Some(golden) = &target.name else { return Vec::new() };
    let is_recorded =
        observed.status.targets.iter().any(|known| known.golden.as_deref() == Some(golden.as_str()) && known.claim_uid.is_some());
    match &target.golden.volume {
        Some(volume) if volume.ours && !volume.terminating && volume.phase != "Succeeded" && !is_recorded => {
            vec![Action::DeleteVolume { golden: golden.clone(), uid: volume.uid.clone() }, Action::DeleteHeaders { golden: golden.clone() }]
        }
        _ => Vec::new(),
    }
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

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
}
