//! R23 for one golden of an image: its target was taken out of the spec. The fence (`fence`) closes around it and takes it; here it is
//! told with who needs it, and its record goes with it. Its siblings are left as they are.

use k8s_openapi::jiff::Timestamp;

use super::{
    Action, ClaimView, GoldenView, Note, Observed, ObservedTarget,
    decide::{Draft, after, whole_seconds},
    import::{succeeded, unlike},
    retire::LOOK_AGAIN,
    summary::with_text,
    target::{TargetState, missing_marks},
};
use crate::{
    api::{ConditionSet, ConditionType, GoldenImage, GoldenImageStatus, TargetStatus, find_condition, is_true, parse_image},
    model::{GoldenName, Image, Target},
    rules::{
        Reason,
        leaving::{Place, Recorded, disbelieved_message, held_message, leaving_message, leaving_remedy},
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

/// How a golden stands to the targets of the image that has it on record: in its place where that is not known. `stands` is whether
/// another golden on record is there now, as the status has it.
pub fn place(image: &GoldenImage, golden: &str, stands: impl Fn(&TargetStatus) -> bool) -> Place {
    let Some(status) = &image.status else { return Place::Wanted };
    // An image that is not worked on keeps what it has, and the status of its goldens stays what it was.
    let held_back = |reason: Reason| matches!(reason, Reason::AccessNotEnforced | Reason::DuplicateIdentity);
    let accepted = find_condition(&status.conditions, ConditionType::Accepted).filter(|accepted| accepted.status == "False");
    if accepted.and_then(|accepted| accepted.reason.parse().ok()).is_some_and(held_back) {
        return Place::Wanted;
    }
    let Some(record) = status.of_golden(golden) else { return Place::Wanted };
    // Asked for each golden at each change in the cluster: parsed only where something is to come of it.
    let named = |class: &str| match &image.spec.storage {
        Some(storage) => storage.targets.iter().any(|target| target.storage_class_name.as_deref().unwrap_or_default() == class),
        None => class.is_empty(),
    };
    if named(&record.requested_class) {
        return Place::Wanted;
    }
    parse_image(image).map_or(Place::Wanted, |image| place_of(&record.requested_class, &status.targets, &wanted(&image), stands))
}

fn wanted(image: &Image) -> Vec<&str> {
    image.targets.iter().map(Target::requested_class).collect()
}

fn place_of(class: &str, targets: &[TargetStatus], wanted: &[&str], stands: impl Fn(&TargetStatus) -> bool) -> Place {
    let recorded = targets.iter().filter(|target| target.golden.is_some());
    let recorded: Vec<_> = recorded
        .map(|target| Recorded {
            requested_class: &target.requested_class,
            is_ready: target.claim_uid.is_some() && is_true(&target.conditions, ConditionType::Ready) && stands(target),
        })
        .collect();
    Place::of(class, &recorded, wanted)
}

/// The goldens that no target is for, and that stay open because no other can be cloned, as the last status has it.
pub(super) fn last<'d, 'a>(draft: &'d Draft<'a>) -> impl Iterator<Item = (&'a ObservedTarget, &'d TargetStatus)> + use<'d, 'a> {
    let (wanted, status) = (wanted(draft.image), &draft.status);
    draft.observed.leaving.iter().filter_map(move |leaving| {
        let golden = leaving.target.name.as_ref()?;
        let record = status.of_golden(golden.as_str())?;
        (place_of(&leaving.requested_class, &status.targets, &wanted, |_| true) == Place::Last).then_some((&leaving.target, record))
    })
}

/// What there is to tell of the goldens that leave, on the image itself.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// One for each.
    pub remarks: Vec<(ConditionType, Reason, String)>,
    /// What to do about `Retiring`: once for all of them, and nothing where there is nothing to do.
    pub remedy: &'static str,
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

/// One golden that leaves, as it is seen.
struct Parting<'a> {
    leaving: &'a Leaving,
    golden: &'a GoldenName,
    class: String,
    place: Place,
    /// Its claim, where that is its own.
    claim: Option<&'a ClaimView>,
    /// Whether its header Secret may be there still: another process may have been refused its deletion, which only this condition says then.
    is_left_over: bool,
}

/// One golden; gives whether it is still there.
fn one(draft: &mut Draft<'_>, leaving: &Leaving, place: Place, status: &mut TargetStatus, told: &mut Told) -> bool {
    let view = &leaving.target.golden;
    let Some(golden) = &leaving.target.name else { return false };
    let parting = Parting {
        leaving,
        golden,
        class: status.storage_class_name.clone().unwrap_or_else(|| leaving.requested_class.clone()),
        place,
        claim: view.claim.as_ref().filter(|claim| claim.ours || is_recorded(status, claim)),
        is_left_over: view.undeleted.is_some() || is_true(&status.conditions, ConditionType::WriteRefused),
    };
    if parting.claim.is_none() && !view.volume.as_ref().is_some_and(|volume| volume.ours) {
        return gone(draft, &parting, status, told);
    }
    let is_made = finished(draft, &parting, status);
    (status.last_failure, status.next_attempt_time) = (None, None);
    // The fence keeps to our mark, and admission to whom the image is for.
    draft.after.extend(missing_marks(draft.image, draft.observed, golden, &leaving.target, status));
    tell(draft, &parting, is_made, status, told);
    true
}

/// Nothing is there any more but, perhaps, its header Secret; gives whether its record must stay for that.
fn gone(draft: &mut Draft<'_>, parting: &Parting<'_>, status: &mut TargetStatus, told: &mut Told) -> bool {
    let Parting { leaving, golden, class, .. } = parting;
    if status.claim_uid.is_none() || status.started_time.is_some() || parting.is_left_over {
        // Before its record is gone, by which it would be found again.
        draft.before.push(Action::DeleteHeaders { golden: (*golden).clone() });
    }
    let message = format!("The golden {golden} in StorageClass {class} is gone, as its target is.");
    let Some(refused) = leaving.target.golden.undeleted.clone() else {
        told.notes.push(Note { warning: false, reason: Reason::Retired, message });
        return false;
    };
    // The record is all that leads to what is left of it.
    let old = std::mem::take(&mut status.conditions);
    let mut set = ConditionSet::new(&old, draft.observed.metadata.generation, draft.now());
    set.set(ConditionType::Ready, Some(false), Reason::Retired, message);
    tell_refused(&mut set, told, refused);
    status.conditions = set.finish();
    true
}

/// Gives whether it is a finished golden on record, which it becomes here where its import had ended when its target was taken out.
fn finished(draft: &mut Draft<'_>, parting: &Parting<'_>, status: &mut TargetStatus) -> bool {
    let Parting { leaving, golden, claim, .. } = parting;
    let volume = leaving.target.golden.volume.as_ref();
    if status.is_made() {
        if parting.is_left_over {
            draft.before.push(Action::DeleteHeaders { golden: (*golden).clone() });
        }
        return true;
    }
    let is_done = volume.is_some_and(|volume| volume.ours && volume.phase == "Succeeded" && !volume.terminating);
    // Of the same bytes as one that is wanted: what a restore brought back is not what was imported.
    let is_filled = |claim: &&ClaimView| {
        volume.is_some_and(|volume| claim.heeds(volume) && claim.brought_back(volume).is_none())
            && unlike(draft, &leaving.requested_class, claim, &leaving.target).is_none()
    };
    let Some(claim) = claim.filter(|claim| is_done && claim.bound && !claim.terminating).filter(is_filled) else { return false };
    // On record, so that it goes as every finished golden does.
    succeeded(draft, golden, claim, &leaving.target, status);
    true
}

/// Tells how it stands, on its record and for its image.
fn tell(draft: &Draft<'_>, parting: &Parting<'_>, is_made: bool, status: &mut TargetStatus, told: &mut Told) {
    let Parting { leaving, golden, class, place, claim, .. } = parting;
    let view = &leaving.target.golden;
    let is_open = *place == Place::Last && is_made && claim.is_some_and(|claim| is_whole(status, claim, view));
    let disbelieved = claim.filter(|_| !is_made).and_then(|claim| disbelieved(draft, leaving, claim));
    let message = match disbelieved {
        Some(why) => disbelieved_message(golden.as_str(), class, *place, &why, leaving.blockers.as_deref()),
        None => leaving_message(golden.as_str(), class, *place, is_made, is_open, leaving.blockers.as_deref()),
    };
    let remedy = leaving_remedy(*place, leaving.blockers.is_some());
    if told.remedy.is_empty() {
        told.remedy = remedy;
    }
    let text = with_text(&message, remedy);
    let old = std::mem::take(&mut status.conditions);
    let mut set = ConditionSet::new(&old, draft.observed.metadata.generation, draft.now());
    match is_open {
        true => set.set(ConditionType::Ready, Some(true), Reason::Ready, ""),
        false => set.set(ConditionType::Ready, Some(false), Reason::Retiring, text.clone()),
    }
    set.set(ConditionType::Retiring, Some(true), Reason::Retiring, text);
    if let Some(refused) = view.undeleted.clone().or_else(|| view.refused.clone()) {
        tell_refused(&mut set, told, refused);
    }
    status.conditions = set.finish();
    told.is_one_open |= is_open;
    told.remarks.push((ConditionType::Retiring, Reason::Retiring, message));
}

/// Whether a golden on record can be cloned.
fn is_whole(status: &TargetStatus, claim: &ClaimView, view: &GoldenView) -> bool {
    is_recorded(status, claim) && claim.is_whole(view.volume.as_ref())
}

/// Why a volume that is finished is not put on record as the golden that it stands for.
fn disbelieved(draft: &Draft<'_>, leaving: &Leaving, claim: &ClaimView) -> Option<String> {
    if !claim.bound || claim.terminating {
        return None;
    }
    let Some(volume) = &leaving.target.golden.volume else {
        return claim.controller.is_none().then(|| "it has no DataVolume, and was never recorded".to_owned());
    };
    let is_over = volume.phase == "Succeeded" && !volume.terminating;
    let other = || match (claim.heeds(volume), volume.ours) {
        (false, _) => Some("another DataVolume controls it".to_owned()),
        (true, false) => Some("its DataVolume does not carry this image's mark".to_owned()),
        (true, true) => unlike(draft, &leaving.requested_class, claim, &leaving.target).map(|difference| format!("it {difference}")),
    };
    claim.brought_back(volume).or_else(|| other().filter(|_| is_over))
}

/// What there is to tell of goldens whose target was taken out of an image that is not accepted: they stay as they are. Their own
/// conditions are brought up to date. Where the spec cannot be read, it is what was known to leave before.
pub(super) fn held(observed: &Observed, status: &mut GoldenImageStatus, now: Timestamp) -> Vec<(ConditionType, Reason, String)> {
    let mut told = Vec::new();
    for record in &mut status.targets {
        let Some(golden) = record.golden.clone() else { continue };
        let leaving = observed.leaving.iter().find(|leaving| leaving.requested_class == record.requested_class);
        let is_known = leaving.is_some() || observed.image.is_err() && is_true(&record.conditions, ConditionType::Retiring);
        if !is_known {
            continue;
        }
        let class = record.storage_class_name.clone().unwrap_or_else(|| record.requested_class.clone());
        let message = held_message(&golden, &class, record.is_made());
        let view = leaving.map(|leaving| &leaving.target.golden);
        let is_open = match view.and_then(|view| Some((view, view.claim.as_ref()?))) {
            Some((view, claim)) => is_whole(record, claim, view) && record.started_time.is_none(),
            // Not looked at: as it was.
            None => view.is_none() && is_true(&record.conditions, ConditionType::Ready),
        };
        let old = std::mem::take(&mut record.conditions);
        let mut set = ConditionSet::new(&old, observed.metadata.generation, whole_seconds(now));
        match is_open {
            true => set.set(ConditionType::Ready, Some(true), Reason::Ready, ""),
            false => set.set(ConditionType::Ready, Some(false), Reason::Retiring, message.clone()),
        }
        set.set(ConditionType::Retiring, Some(true), Reason::Retiring, message.clone());
        record.conditions = set.finish();
        told.push((ConditionType::Retiring, Reason::Retiring, message));
    }
    told
}

/// What the API server refuses to have done about it (R10).
fn tell_refused(set: &mut ConditionSet<'_>, told: &mut Told, (reason, message): (Reason, String)) {
    let message = format!("{}.", message.trim_end_matches('.'));
    set.set(ConditionType::WriteRefused, Some(true), reason, with_text(&message, reason.remedy()));
    told.remarks.push((ConditionType::WriteRefused, reason, message));
}

fn is_recorded(status: &TargetStatus, claim: &ClaimView) -> bool {
    status.claim_uid.as_ref() == Some(&claim.uid)
}
