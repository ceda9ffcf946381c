//! R23 for one golden of an image: its target was taken out of the spec. The fence (`fence`) closes around it and takes it; here it is
//! told with who needs it, what was never finished is given up, and its record goes with it. Its siblings are left as they are.

use super::{
    Action, ClaimView, Note, ObservedTarget,
    decide::{Draft, after},
    import::succeeded,
    retire::{LOOK_AGAIN, unfinished},
    summary::with_remedy,
    target::{TargetState, missing_marks},
};
use crate::{
    api::{ConditionSet, ConditionType, GoldenImage, TargetStatus, is_true, parse_image},
    model::Image,
    rules::{
        Reason,
        leaving::{Place, Recorded, leaving_message},
    },
};

/// A golden on record whose target the spec has no more.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaving {
    /// Its class as the target named it.
    pub requested_class: String,
    /// What the cluster says of it.
    pub target: ObservedTarget,
    /// Who needs it, in words; nobody, or why that is not known.
    pub blockers: Option<String>,
}

/// How a golden stands to the targets of the image that has it on record: in its place where that is not known.
pub fn place(image: &GoldenImage, golden: &str) -> Place {
    let Some(status) = &image.status else { return Place::Wanted };
    let Some(record) = status.targets.iter().find(|record| record.golden.as_deref() == Some(golden)) else { return Place::Wanted };
    // Asked for each golden at each change in the cluster: parsed only where something is to come of it.
    let named = |class: &str| match &image.spec.storage {
        Some(storage) => storage.targets.iter().any(|target| target.storage_class_name.as_deref().unwrap_or_default() == class),
        None => class.is_empty(),
    };
    if named(&record.requested_class) {
        return Place::Wanted;
    }
    parse_image(image).map_or(Place::Wanted, |image| place_of(&record.requested_class, &status.targets, &wanted(&image)))
}

fn wanted(image: &Image) -> Vec<&str> {
    image.targets.iter().map(|target| target.class.as_ref().map_or("", |class| class.as_str())).collect()
}

fn place_of(class: &str, targets: &[TargetStatus], wanted: &[&str]) -> Place {
    let recorded = targets.iter().filter(|target| target.golden.is_some());
    let recorded: Vec<_> = recorded
        .map(|target| Recorded {
            requested_class: &target.requested_class,
            is_ready: target.claim_uid.is_some() && is_true(&target.conditions, ConditionType::Ready),
        })
        .collect();
    Place::of(class, &recorded, wanted)
}

/// What there is to tell of the goldens that leave, on the image itself.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// One for each.
    pub remarks: Vec<(ConditionType, Reason, String)>,
    /// Whether one of them stays open to all, because no other can be cloned.
    pub is_one_open: bool,
    /// What is gone.
    pub notes: Vec<Note>,
}

/// Moves every golden that leaves on by one step. `states` are those of the targets that the spec has.
pub(super) fn progress(draft: &mut Draft<'_>, states: &[TargetState]) -> Told {
    let mut told = Told::default();
    let observed = draft.observed;
    // What is decided now counts, not what the last status said.
    let recorded: Vec<_> = (draft.status.targets.iter().zip(states))
        .map(|(target, state)| (target.requested_class.clone(), state.ready && target.golden.is_some()))
        .collect();
    let recorded: Vec<_> = recorded.iter().map(|(requested_class, is_ready)| Recorded { requested_class, is_ready: *is_ready }).collect();
    let wanted = wanted(draft.image);
    for leaving in &observed.leaving {
        let at = |target: &TargetStatus| target.golden.is_some() && target.requested_class == leaving.requested_class;
        let Some(index) = draft.status.targets.iter().position(at) else { continue };
        let mut status = draft.status.targets[index].clone();
        let place = Place::of(&leaving.requested_class, &recorded, &wanted);
        if !one(draft, leaving, place, &mut status, &mut told) {
            draft.status.targets.remove(index);
            continue;
        }
        draft.status.targets[index] = status;
        draft.wake_at(after(draft.now, LOOK_AGAIN));
    }
    told
}

/// One golden; gives whether it is still there.
fn one(draft: &mut Draft<'_>, leaving: &Leaving, place: Place, status: &mut TargetStatus, told: &mut Told) -> bool {
    let view = &leaving.target.golden;
    let Some(golden) = leaving.target.name.clone() else { return false };
    let class = status.storage_class_name.clone().unwrap_or_else(|| leaving.requested_class.clone());
    let claim = view.claim.as_ref().filter(|claim| claim.ours || is_recorded(status, claim));
    if claim.is_none() && !view.volume.as_ref().is_some_and(|volume| volume.ours) {
        if status.claim_uid.is_none() || status.started_time.is_some() {
            // Before its record is gone, by which it would be found again.
            draft.before.push(Action::DeleteHeaders { golden: golden.clone() });
        }
        let message = format!("The golden {golden} in StorageClass {class} is gone, as its target is.");
        told.notes.push(Note { warning: false, reason: Reason::Retired, message });
        return false;
    }
    let mut is_made = status.claim_uid.is_some() && status.started_time.is_none();
    let is_done = view.volume.as_ref().is_some_and(|volume| volume.ours && volume.phase == "Succeeded" && !volume.terminating);
    if let Some(claim) = claim.filter(|claim| !is_made && is_done && claim.bound && !claim.terminating) {
        // Finished when its target was taken out already: on record, so that it goes as every finished golden does.
        succeeded(draft, &golden, claim, &leaving.target, status);
        is_made = true;
    }
    (status.last_failure, status.next_attempt_time) = (None, None);
    if leaving.blockers.is_none()
        && let Some((golden, volume)) = unfinished(draft.observed, &leaving.target)
    {
        // An import that has not ended holds nothing that anybody could lose.
        draft.after.push(Action::DeleteVolume { golden: golden.clone(), uid: volume.uid.clone() });
        draft.after.push(Action::DeleteHeaders { golden: golden.clone() });
    }
    // The fence keeps to our mark, and admission to whom the image is for.
    draft.after.extend(missing_marks(draft.image, &golden, &leaving.target, status));
    let is_open =
        place == Place::Last && is_made && claim.is_some_and(|claim| is_recorded(status, claim) && claim.bound && !claim.terminating);
    let message = leaving_message(golden.as_str(), &class, place, is_made, leaving.blockers.as_deref());
    let text = with_remedy(&message, Reason::Retiring);
    let old = std::mem::take(&mut status.conditions);
    let mut set = ConditionSet::new(&old, draft.observed.metadata.generation, draft.now());
    match is_open {
        true => set.set(ConditionType::Ready, Some(true), Reason::Ready, ""),
        false => set.set(ConditionType::Ready, Some(false), Reason::Retiring, text.clone()),
    }
    set.set(ConditionType::Retiring, Some(true), Reason::Retiring, text);
    status.conditions = set.finish();
    told.is_one_open |= is_open;
    told.remarks.push((ConditionType::Retiring, Reason::Retiring, message));
    true
}

fn is_recorded(status: &TargetStatus, claim: &ClaimView) -> bool {
    status.claim_uid.as_ref() == Some(&claim.uid)
}
