//! One golden of an image: from its class to Ready, and what is wrong when it is not.

use super::{
    Action, ClaimView, ClassChoice, ClassFound, DataVolumeView, GoldenView, GrantView, Observed, ObservedTarget, adopt,
    decide::Draft,
    free,
    import::{failed_before, finished, running, spent_message},
    start::{name_for, start},
};
use crate::{
    api::{ConditionType, GoldenImageStatus, TargetStatus, find_condition, is_true},
    model::{Access, GoldenName, Image, Target},
    rules::{
        Reason,
        class::{other_provisioner, taken_class},
        modes::{Modes, profile_change},
        taken_name_message,
    },
};

/// How a target stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TargetState {
    /// Whether it can be cloned.
    pub ready: bool,
    /// Why not, or `Ready`.
    pub reason: Reason,
    /// What happened, without the remedy.
    pub message: String,
    /// Whether the reason is trouble rather than work under way.
    pub trouble: bool,
    /// Whether it will not come right without a change.
    pub terminal: bool,
    /// Whether the spool must have the disk for it to go on.
    pub needs_disk: bool,
    /// What a hoster should know besides.
    pub remarks: Vec<(ConditionType, Reason, String)>,
}

impl TargetState {
    pub fn working(reason: Reason, message: impl Into<String>) -> Self {
        Self { ready: false, reason, message: message.into(), trouble: false, terminal: false, needs_disk: false, remarks: Vec::new() }
    }

    pub fn trouble(reason: Reason, message: impl Into<String>) -> Self {
        Self { trouble: true, terminal: reason.is_terminal(), ..Self::working(reason, message) }
    }

    pub fn ready() -> Self {
        Self { ready: true, ..Self::working(Reason::Ready, "") }
    }

    pub fn with_disk(self) -> Self {
        Self { needs_disk: true, ..self }
    }
}

/// Moves every target on by one step.
pub(super) fn progress(draft: &mut Draft<'_>) -> Vec<TargetState> {
    let wanted: Vec<_> = draft.image.targets.iter().map(|target| target.requested_class().to_owned()).collect();
    // A target that left the spec before its golden was made leaves no trace; with a golden it stays on record.
    let mut before = std::mem::take(&mut draft.status.targets);
    let mut next: Vec<TargetStatus> = wanted
        .iter()
        .map(|class| match before.iter().position(|target| target.requested_class == *class) {
            // In the order that they had: a status that is not the same is written.
            Some(index) => before.remove(index),
            None => TargetStatus { requested_class: class.clone(), ..TargetStatus::default() },
        })
        .collect();
    before.retain(|target| target.golden.is_some());
    next.append(&mut before);
    draft.status.targets = next;

    let observed = draft.observed;
    let image = draft.image;
    let resolved: Vec<_> = observed
        .targets
        .iter()
        .map(|target| if let ClassChoice::Found(class) = &target.class { Some(class.name.as_str()) } else { None })
        .collect();
    let mut states = Vec::new();
    for (index, (target, view)) in image.targets.iter().zip(&observed.targets).enumerate() {
        let mut status = draft.status.targets[index].clone();
        // Of two targets of one class the one that has a golden keeps it, else the first; the other makes nothing. So does a golden whose
        // target was taken out.
        let twice = || {
            let is_made = |other: usize| draft.status.targets.get(other).is_some_and(|target| target.golden.is_some());
            taken_class(index, &resolved, is_made).map(|trouble| format!("{trouble}."))
        };
        let taken =
            status.golden.is_none().then(|| twice().or_else(|| still_there(&draft.status, wanted.len(), resolved[index]))).flatten();
        let state = match taken {
            Some(trouble) => TargetState::trouble(Reason::DuplicateClass, trouble),
            None => match seen_for(draft, view, &status) {
                Seen::ForIt => one(draft, target, view, &mut status),
                Seen::ForAnother => one(draft, target, &unseen(view), &mut status),
                Seen::TooEarly => TargetState::working(Reason::Resolving, "Its golden has its name now, and is looked at next."),
            },
        };
        if !state.trouble {
            // A failure stays on record while its retry runs, and goes when the golden is Ready.
            if state.ready {
                status.last_failure = None;
            }
        }
        draft.status.targets[index] = status;
        states.push(state);
    }
    states
}

/// Whether the spool's disk may go, as far as this golden is concerned: it is there, it is to go, or what keeps it from being made is no
/// matter of time. One that is lost needs the disk to be made anew, whatever is on record of it.
pub fn needs_no_disk(status: &TargetStatus) -> bool {
    let ready = find_condition(&status.conditions, ConditionType::Ready);
    ready.is_some_and(|ready| {
        let is_over = |reason: Reason| reason.is_terminal() || matches!(reason, Reason::Retiring | Reason::Retired);
        ready.status == "True" || ready.reason.parse().is_ok_and(is_over)
    })
}

/// For which golden a target was looked at.
enum Seen {
    /// The one that it has, or would have.
    ForIt,
    /// One that another target has by now, and no other name is known yet.
    ForAnother,
    /// Under another name than it has by now, which this decision itself brought about: the status is written, and that wakes the image.
    TooEarly,
}

/// Until a golden is on record every target is looked at under the name without a class; only one of them has it. What stands under
/// another name may be anybody's, and what was not looked at may be there.
fn seen_for(draft: &Draft<'_>, view: &ObservedTarget, status: &TargetStatus) -> Seen {
    if status.golden.is_some() {
        return Seen::ForIt;
    }
    let class = if let ClassChoice::Found(class) = &view.class { Some(&class.name) } else { None };
    let Some(Ok(name)) = name_for(draft, class) else { return Seen::ForIt };
    if draft.status.of_golden(name.as_str()).is_some() {
        return Seen::ForAnother;
    }
    match &view.name {
        Some(seen) if *seen != name => Seen::TooEarly,
        _ => Seen::ForIt,
    }
}

/// A target without what was seen of a golden that is not its own.
fn unseen(view: &ObservedTarget) -> ObservedTarget {
    ObservedTarget { name: None, taken_by: None, class: view.class.clone(), golden: GoldenView::default(), quotas: view.quotas.clone() }
}

/// The golden of a target that was taken out, where it is in this class; `wanted` is how many targets the spec has.
fn still_there(status: &GoldenImageStatus, wanted: usize, class: Option<&str>) -> Option<String> {
    let class = class?;
    let former = status.targets.iter().skip(wanted).find(|former| former.storage_class_name.as_deref() == Some(class))?;
    let named = match former.requested_class.as_str() {
        "" => "the cluster's default class",
        class => class,
    };
    let golden = former.golden.as_deref().unwrap_or_default();
    Some(format!("StorageClass {class} has the golden {golden} already, whose target (for {named}) was taken out: put that back instead."))
}

fn one(draft: &mut Draft<'_>, target: &Target, view: &ObservedTarget, status: &mut TargetStatus) -> TargetState {
    let recorded: Option<GoldenName> = status.golden.as_ref().and_then(|name| name.parse().ok());
    let mut state = match (&recorded, &status.claim_uid) {
        (Some(golden), Some(uid)) if status.started_time.is_none() => match made(draft, golden, uid.clone(), view, status) {
            Some(state) => state,
            None => make(draft, target, view, status, recorded.clone()),
        },
        _ => make(draft, target, view, status, recorded.clone()),
    };
    if let Some(spent) = spent(&state, status, draft.settings.import_attempts) {
        state = spent;
    }
    state.remarks = remarks(target, view, status, state.ready);
    state
}

/// R9: once the attempts are spent that stays told until one succeeds. A slow retry that runs is no recovery yet, nor is a DataVolume
/// that is on its way out.
fn spent(state: &TargetState, status: &TargetStatus, limit: i32) -> Option<TargetState> {
    let is_spent = status.last_failure.is_some() && (status.attempts > limit || status.attempts >= limit && status.started_time.is_none());
    // What the image itself waits for says more.
    let is_elsewhere = matches!(state.reason, Reason::Suspended | Reason::Fetching | Reason::Resolving);
    if !is_spent || state.ready || state.terminal || is_elsewhere {
        return None;
    }
    if state.trouble {
        return Some(TargetState { terminal: true, message: spent_message(&state.message, status.attempts), ..state.clone() });
    }
    let failed = failed_before(status, limit);
    let message = match state.message.as_str() {
        "" => failed.message,
        now => format!("{} Now: {}, {now}", failed.message, state.reason),
    };
    Some(TargetState { message, needs_disk: state.needs_disk, ..failed })
}

/// What a hoster should know besides: none of it stops anything.
fn remarks(target: &Target, view: &ObservedTarget, status: &TargetStatus, is_ready: bool) -> Vec<(ConditionType, Reason, String)> {
    let mut remarks = Vec::new();
    let mut remark = |kind, reason, message: String| {
        let mut letters = message.chars();
        let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
        remarks.push((kind, reason, format!("{first}{}.", letters.as_str())));
    };
    if let ClassChoice::Found(class) = &view.class {
        if let Some(drift) = class.drift.clone().filter(|_| status.golden.is_some()) {
            remark(ConditionType::DefaultClassDrift, Reason::DefaultClassDrift, drift);
        }
        // Known with the class, so that it is told before the first clone, and before the first byte.
        let limits: Vec<_> = made_elsewhere(class, view).filter(|_| is_ready).into_iter().chain(class.warnings.iter().cloned()).collect();
        if !limits.is_empty() {
            remark(ConditionType::CloneLimited, Reason::CannotCloneWell, limits.join(". "));
        }
        if let Some(difference) = made_otherwise(target, status).filter(|_| is_ready) {
            let told = format!("the golden in StorageClass {} {difference}: it stays as it was made", class.name);
            remark(ConditionType::EntryEdited, Reason::EntryEdited, told);
        }
        if let Some(change) = profile_changed(target, class, status).filter(|_| is_ready) {
            remark(ConditionType::ProfileChanged, Reason::ProfileChanged, change);
        }
    }
    if let ClassChoice::Missing(class) = &view.class
        && is_ready
    {
        let told = format!("StorageClass {class}, which the golden is in, does not exist any more: nothing can be cloned from it");
        remark(ConditionType::CloneLimited, Reason::CannotCloneWell, told);
        if target.class.is_none() {
            let drift =
                format!("the golden is in StorageClass {class}, which was the default when it was made and does not exist any more");
            remark(ConditionType::DefaultClassDrift, Reason::DefaultClassDrift, drift);
        }
    }
    // Until the golden is made this is what keeps it from being made, and stands in `Ready`.
    let refused = view.golden.undeleted.as_ref().or(view.golden.refused.as_ref());
    if let Some((reason, message)) = refused.filter(|_| is_ready) {
        remark(ConditionType::WriteRefused, *reason, message.trim_end_matches('.').to_owned());
    }
    // While it is being filled, CDI's own pods may hold it.
    if let Some(pods) = view.golden.in_use.clone().filter(|_| is_ready) {
        remark(ConditionType::InUseByPod, Reason::InUseByPod, pods);
    }
    remarks
}

/// What a target asks for that its golden was not made with. While the golden is there no target can be edited (R4), but one that was
/// taken out may be put back with other words.
fn made_otherwise(target: &Target, status: &TargetStatus) -> Option<String> {
    if status.adopted == Some(true) {
        return None;
    }
    let made: Option<crate::model::DiskSize> = status.size.as_ref().and_then(|size| size.parse().ok());
    let size = target.size.zip(made).filter(|(asked, made)| asked > made);
    let mode = target.volume_mode.map(|mode| mode.to_string()).zip(status.volume_mode.clone()).filter(|(asked, made)| asked != made);
    let size = size.map(|(asked, made)| format!("has {made}, and its target asks for {asked}"));
    size.or_else(|| mode.map(|(asked, made)| format!("has volumeMode {made}, and its target asks for {asked}")))
}

/// That the golden's class is another provisioner's by now.
fn made_elsewhere(class: &ClassFound, view: &ObservedTarget) -> Option<String> {
    let claim = view.golden.claim.as_ref().filter(|claim| claim.class.as_deref() == Some(class.name.as_str()))?;
    other_provisioner(class.name.as_str(), claim.provisioner.as_deref(), &class.provisioner)
}

fn profile_changed(target: &Target, class: &ClassFound, status: &TargetStatus) -> Option<String> {
    let frozen = Modes { volume_mode: status.volume_mode.as_ref()?.parse().ok()?, access_modes: status.access_modes.clone() };
    profile_change(class.name.as_str(), &frozen, target.volume_mode, &target.access_modes, &class.properties)
}

/// A golden that was Ready once (R7, R8). `None` where it is gone altogether and is to be made anew from the same disk.
fn made(draft: &mut Draft<'_>, golden: &GoldenName, uid: String, view: &ObservedTarget, status: &mut TargetStatus) -> Option<TargetState> {
    let (volume, claim) = (&view.golden.volume, &view.golden.claim);
    let Some(claim) = claim else {
        return match volume {
            None => None,
            Some(volume) if volume.terminating => {
                Some(TargetState::trouble(Reason::GoldenTerminating, format!("DataVolume {golden} is being deleted.")))
            }
            Some(_) => {
                Some(TargetState::trouble(Reason::GoldenMissing, format!("The PVC {golden} is gone although its DataVolume is there.")))
            }
        };
    };
    // Whatever its phase: CDI says `Succeeded` of it for some seconds yet.
    let refills = |volume: &DataVolumeView| volume.ours && claim.controller.as_ref() == Some(&volume.uid);
    if claim.uid != uid && !claim.bound && !claim.terminating && volume.as_ref().is_some_and(refills) {
        let message = format!("The PVC {golden} is gone although its DataVolume is there, for which CDI has made an empty one.");
        return Some(TargetState::trouble(Reason::GoldenMissing, message));
    }
    if let Some(state) = adopt::disbelieved(draft, golden, Some(&uid), view, status) {
        return Some(state);
    }
    if claim.terminating || volume.as_ref().is_some_and(|volume| volume.terminating) {
        let stays = volume.as_ref().is_some_and(|volume| claim.heeds(volume) && !volume.terminating);
        let message = match stays {
            true => format!("The PVC {golden} is being deleted, and its DataVolume is not: delete that as well once the PVC is gone."),
            false => format!("The golden {golden} is being deleted."),
        };
        return Some(TargetState::trouble(Reason::GoldenTerminating, message));
    }
    if claim.lost || !claim.bound {
        return Some(TargetState::trouble(Reason::ClaimLost, format!("The PVC {golden} is not bound to its volume any more.")));
    }
    if let Some(volume) = controlling(view, claim).filter(|volume| volume.phase != "Succeeded") {
        let message = format!("CDI says that the DataVolume {golden} is in phase {:?}, although it was imported.", volume.phase);
        return Some(TargetState::trouble(Reason::ImportFailed, message));
    }
    status.progress_percent = None;
    // Perhaps refused when the import was over: then the header Secret is there still, and only this condition says so.
    if is_true(&status.conditions, ConditionType::WriteRefused) {
        draft.before.push(Action::DeleteHeaders { golden: golden.clone() });
    }
    let disk = draft.status.disk.as_ref().and_then(|disk| disk.digest.parse().ok());
    if let Some(disk) = disk.filter(|_| view.golden.grant != GrantView::Refused) {
        draft.after.push(Action::Refuse { golden: golden.clone(), disk });
    }
    draft.after.extend(missing_marks(draft.image, draft.observed, golden, view, status));
    draft.after.extend(forget_request(golden, view, status));
    Some(TargetState::ready())
}

/// The DataVolume that speaks for a golden's claim.
pub(super) fn controlling<'a>(view: &'a ObservedTarget, claim: &ClaimView) -> Option<&'a DataVolumeView> {
    view.golden.volume.as_ref().filter(|volume| claim.heeds(volume))
}

/// The claim on record of a golden that is made, where it is not on its way out.
fn recorded_claim<'a>(view: &'a ObservedTarget, status: &TargetStatus) -> Option<&'a ClaimView> {
    let is_recorded = |claim: &&ClaimView| status.claim_uid.as_ref() == Some(&claim.uid) && status.is_made();
    view.golden.claim.as_ref().filter(is_recorded).filter(|claim| !claim.terminating)
}

/// Our marks on a golden on record, where it lacks any. Who may clone it is among them, because its image may go before it does (R18, R24), and
/// what else the entry may say otherwise at any time. What is as it is to be is not written again, whatever release wrote it.
pub(super) fn missing_marks(
    image: &Image,
    observed: &Observed,
    golden: &GoldenName,
    view: &ObservedTarget,
    status: &TargetStatus,
) -> Option<Action> {
    let claim = recorded_claim(view, status)?;
    let volume = controlling(view, claim);
    let says_who = |found: &Option<String>| Access::read(found.as_deref()).as_ref() == Some(&image.access);
    // What was taken over by a former release does not say yet that this very claim was: a copy of it would be believed.
    let is_meant = status.adopted != Some(true) || claim.is_taken_over();
    let (said, is_said) = free::said(image, observed, view, claim, status);
    let is_marked = claim.ours && is_meant && is_said && says_who(&claim.access);
    if is_marked && volume.is_none_or(|volume| volume.ours && says_who(&volume.access)) {
        return None;
    }
    let (golden, claim_uid, volume_uid) = (golden.clone(), claim.uid.clone(), volume.map(|volume| volume.uid.clone()));
    Some(match status.adopted {
        Some(true) => Action::Adopt { golden, claim_uid, volume_uid, said },
        _ => Action::Mark { golden, claim_uid, volume_uid, said },
    })
}

/// A golden that an image has again is not asked to go any more: what asked for that would count when the image is deleted, and was to
/// leave its goldens.
fn forget_request(golden: &GoldenName, view: &ObservedTarget, status: &TargetStatus) -> Option<Action> {
    let claim = recorded_claim(view, status).filter(|claim| claim.is_asked_to_go)?;
    Some(Action::ForgetRequest { golden: golden.clone(), claim_uid: claim.uid.clone() })
}

/// The marks that goldens on record lack, for an image that is not worked on: a golden that is there says whom it is for, whatever
/// keeps others from being made.
pub(super) fn marks_of_all(image: &Image, observed: &Observed) -> Vec<Action> {
    let record = |name: &GoldenName| observed.status.of_golden(name.as_str());
    observed.views().filter_map(|view| missing_marks(image, observed, view.name.as_ref()?, view, record(view.name.as_ref()?)?)).collect()
}

/// A golden that is to be made, or is being made.
fn make(
    draft: &mut Draft<'_>,
    target: &Target,
    view: &ObservedTarget,
    status: &mut TargetStatus,
    recorded: Option<GoldenName>,
) -> TargetState {
    if let Some(golden) = view.name.clone() {
        if let Some(first) = view.taken_by.as_ref().filter(|_| status.golden.is_none()) {
            return TargetState::trouble(Reason::NameConflict, taken_name_message(golden.as_str(), first));
        }
        // What is there already needs no class, and nothing is begun.
        if let Some(state) = adopt::progress(draft, target, &golden, view, status) {
            return state;
        }
    }
    if draft.image.suspend && view.golden.volume.is_none() {
        return TargetState::working(Reason::Suspended, "The image is suspended.");
    }
    if !draft.observed.cdi_installed {
        return TargetState::trouble(Reason::CDINotFound, "The cluster has no DataVolume API.");
    }
    let class = match &view.class {
        ClassChoice::Found(class) => Some(class),
        _ if view.golden.volume.is_some() && recorded.is_some() => None,
        ClassChoice::NoDefault => {
            return TargetState::trouble(Reason::NoDefaultClass, "No StorageClass is named and the cluster has no default one.");
        }
        ClassChoice::Missing(name) => {
            return TargetState::trouble(Reason::ClassNotFound, format!("The StorageClass {name} does not exist."));
        }
    };
    let golden = match recorded.map(Ok).or_else(|| name_for(draft, class.map(|class| &class.name))) {
        Some(Ok(golden)) => golden,
        Some(Err(error)) => return TargetState::trouble(Reason::InvalidEntry, error),
        None => return TargetState::working(Reason::Resolving, "The factory is asked for the schematic's ID.").with_disk(),
    };
    match (&view.golden.volume, &view.golden.claim) {
        (Some(volume), claim) => running(draft, &golden, volume, claim.as_ref(), view, status),
        (None, Some(claim)) if claim.terminating => {
            TargetState::working(Reason::GoldenTerminating, format!("Waiting for the former PVC {golden} to be gone.")).with_disk()
        }
        (None, Some(claim)) if claim.ours && adopt::is_being_collected(claim) => TargetState::working(
            Reason::GoldenTerminating,
            format!("Waiting for the former PVC {golden}, whose DataVolume is gone, to be collected."),
        )
        .with_disk(),
        // Nobody will collect it: restored from a backup, left behind by `--cascade=orphan` or by CDI's former garbage collection.
        (None, Some(claim)) if claim.ours => {
            adopt::disbelieved(draft, &golden, None, view, status).unwrap_or_else(|| finished(draft, &golden, claim, view, status))
        }
        (None, Some(_)) => TargetState::trouble(
            Reason::NameConflict,
            format!("A PVC {golden} exists in the catalog namespace that is not this image's golden."),
        ),
        (None, None) => start(draft, target, &golden, class, view, status),
    }
}
