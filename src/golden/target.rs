//! One golden of an image: from its class to Ready, and what is wrong when it is not.

use std::time::Duration;

use super::{
    Action, ClaimView, ClassChoice, ClassFound, DataVolumeView, GrantView, ImportOrder, ObservedTarget,
    decide::{Draft, after, whole_seconds},
};
use crate::{
    api::{DiskStatus, LastFailure, TargetStatus, VirtualMachineDefaultsSpec},
    model::{ClassName, Digest, DiskSize, GoldenName, Target},
    rules::{ImportFacts, Reason, class::duplicate_class, import_trouble, modes::choose_modes, taken_name_message},
    run::backoff::Backoff,
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
    pub remarks: Vec<(crate::api::ConditionType, Reason, String)>,
}

impl TargetState {
    fn working(reason: Reason, message: impl Into<String>) -> Self {
        Self { ready: false, reason, message: message.into(), trouble: false, terminal: false, needs_disk: false, remarks: Vec::new() }
    }

    fn trouble(reason: Reason, message: impl Into<String>) -> Self {
        Self { trouble: true, terminal: reason.is_terminal(), ..Self::working(reason, message) }
    }

    fn ready() -> Self {
        Self { ready: true, ..Self::working(Reason::Ready, "") }
    }

    fn with_disk(self) -> Self {
        Self { needs_disk: true, ..self }
    }
}

/// Moves every target on by one step.
pub(super) fn progress(draft: &mut Draft<'_>) -> Vec<TargetState> {
    let wanted: Vec<_> = draft.image.targets.iter().map(requested_class).collect();
    // A target that left the spec before its golden was made leaves no trace; with a golden it stays on record.
    let mut before = std::mem::take(&mut draft.status.targets);
    let mut next: Vec<TargetStatus> = wanted
        .iter()
        .map(|class| match before.iter().position(|target| target.requested_class == *class) {
            Some(index) => before.swap_remove(index),
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
        // The first of two targets of one class keeps it; the later one makes nothing.
        let twice = status.golden.is_none().then(|| duplicate_class(&resolved[..=index])).flatten();
        let state = match twice {
            Some(trouble) => TargetState::trouble(Reason::DuplicateClass, format!("{trouble}.")),
            None => one(draft, target, view, &mut status),
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

fn requested_class(target: &Target) -> String {
    target.class.as_ref().map(ToString::to_string).unwrap_or_default()
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
    if let ClassChoice::Found(ClassFound { moved_default: Some(today), .. }) = &view.class
        && let Some(class) = status.storage_class_name.as_ref().filter(|_| status.golden.is_some())
    {
        let message = format!("The cluster's default StorageClass is now {today}; this image was resolved to {class} and stays there.");
        state.remarks.push((crate::api::ConditionType::DefaultClassDrift, Reason::DefaultClassDrift, message));
    }
    if let Some(pod) = &view.golden.in_use_by {
        let message =
            format!("Pod {pod} uses the golden {} read-write: clones wait while it runs.", status.golden.as_deref().unwrap_or("?"));
        state.remarks.push((crate::api::ConditionType::InUseByPod, Reason::InUseByPod, message));
    }
    state
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
    if claim.uid != uid {
        let message = format!("The PVC {golden} has the UID {}, and the golden that was verified had {uid}.", claim.uid);
        return Some(TargetState::trouble(Reason::GoldenReplaced, message));
    }
    if claim.terminating || volume.as_ref().is_some_and(|volume| volume.terminating) {
        return Some(TargetState::trouble(Reason::GoldenTerminating, format!("The golden {golden} is being deleted.")));
    }
    if claim.lost || !claim.bound {
        return Some(TargetState::trouble(Reason::ClaimLost, format!("The PVC {golden} is not bound to its volume any more.")));
    }
    if let Some(volume) = volume.as_ref().filter(|volume| volume.phase != "Succeeded") {
        let message = format!("CDI says that the DataVolume {golden} is in phase {:?}, although it was imported.", volume.phase);
        return Some(TargetState::trouble(Reason::ImportFailed, message));
    }
    status.progress_percent = None;
    let disk = draft.status.disk.as_ref().and_then(|disk| disk.digest.parse().ok());
    if let Some(disk) = disk.filter(|_| view.golden.grant != GrantView::Refused) {
        draft.after.push(Action::Refuse { golden: golden.clone(), disk });
    }
    if !claim.ours || volume.as_ref().is_some_and(|volume| !volume.ours) {
        draft.after.push(Action::Mark { golden: golden.clone(), claim_uid: claim.uid.clone() });
    }
    Some(TargetState::ready())
}

/// A golden that is to be made, or is being made.
fn make(
    draft: &mut Draft<'_>,
    target: &Target,
    view: &ObservedTarget,
    status: &mut TargetStatus,
    recorded: Option<GoldenName>,
) -> TargetState {
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
    if let Some(first) = view.taken_by.as_ref().filter(|_| status.golden.is_none()) {
        return TargetState::trouble(Reason::NameConflict, taken_name_message(golden.as_str(), first));
    }
    match (&view.golden.volume, &view.golden.claim) {
        (Some(volume), claim) => running(draft, &golden, volume, claim.as_ref(), view, status),
        (None, Some(claim)) if claim.terminating => {
            TargetState::working(Reason::GoldenTerminating, format!("Waiting for the former PVC {golden} to be gone.")).with_disk()
        }
        (None, Some(claim)) if claim.ours && claim.garbage_collected && claim.bound => succeeded(draft, &golden, claim, status),
        (None, Some(claim)) if claim.ours => TargetState::working(
            Reason::GoldenTerminating,
            format!("Waiting for the former PVC {golden}, whose DataVolume is gone, to be collected."),
        )
        .with_disk(),
        (None, Some(_)) => TargetState::trouble(
            Reason::NameConflict,
            format!("A PVC {golden} exists in the catalog namespace that is not this image's golden."),
        ),
        (None, None) => start(draft, target, &golden, class, view, status),
    }
}

/// The golden's name: without class for the first target made, with its class for a further one.
fn name_for(draft: &Draft<'_>, class: Option<&ClassName>) -> Option<Result<GoldenName, String>> {
    let first = draft.status.targets.iter().all(|target| target.golden.is_none());
    let name = draft.image.golden_name(draft.schematic_id.as_ref(), class.filter(|_| !first))?;
    Some(name.map_err(|error| error.to_string()))
}

/// The disk that the spool holds and the status has on record.
fn spooled_disk(draft: &Draft<'_>) -> Option<(Digest, DiskSize)> {
    let spooled = draft.observed.spooled.as_ref()?;
    match draft.frozen_disk() {
        Some(frozen) if frozen != spooled.disk_digest => None,
        _ => Some((spooled.disk_digest, spooled.virtual_size)),
    }
}

fn start(
    draft: &mut Draft<'_>,
    target: &Target,
    golden: &GoldenName,
    class: Option<&ClassFound>,
    view: &ObservedTarget,
    status: &mut TargetStatus,
) -> TargetState {
    let Some(class) = class else { return TargetState::working(Reason::Resolving, "") };
    let Some((disk, virtual_size)) = spooled_disk(draft) else {
        return TargetState::working(Reason::Fetching, "Waiting for the verified disk.").with_disk();
    };
    let (Some(identity), false) = (draft.identity.clone(), draft.image.suspend) else {
        return TargetState::working(Reason::Suspended, "The image is suspended.");
    };
    let size = match golden_size(target.size, virtual_size, class.minimum) {
        Ok(size) => size,
        Err(message) => return TargetState::trouble(Reason::SizeTooSmall, message),
    };
    // Chosen once: an attempt after the first keeps what the first one recorded.
    let recorded_mode = status.volume_mode.as_ref().filter(|_| status.golden.is_some()).and_then(|mode| mode.parse().ok());
    let stated_mode = target.volume_mode.or(recorded_mode);
    let stated_access = if target.access_modes.is_empty() && recorded_mode.is_some() { &status.access_modes } else { &target.access_modes };
    let (volume_mode, access_modes) = match choose_modes(class.name.as_str(), stated_mode, stated_access, &class.properties) {
        Ok(modes) => (modes.volume_mode, modes.access_modes),
        Err(error) => return TargetState::trouble(Reason::ModesUnknown, error.to_string()),
    };
    let waiting_until = status.next_attempt_time.as_ref().map(|at| at.0).filter(|at| *at > draft.now);
    if let Some(at) = waiting_until {
        draft.wake_at(at);
        return failed_before(status, draft.settings.import_attempts).with_disk();
    }
    draft.wants.imports += 1;
    if draft.observed.permits.imports < draft.wants.imports {
        return TargetState::working(Reason::Queued, "Waiting for a turn: other images are being imported.").with_disk();
    }
    // Killed between this status and the DataVolume, the same attempt goes on.
    if status.started_time.is_none() {
        status.attempts = status.attempts.saturating_add(1);
        status.started_time = Some(draft.now());
        status.progress_time = Some(draft.now());
    }
    status.next_attempt_time = None;
    status.progress_percent = Some(0);
    status.golden = Some(golden.to_string());
    status.storage_class_name = Some(class.name.to_string());
    status.size = Some(size.to_string());
    status.volume_mode = Some(volume_mode.to_string());
    status.access_modes.clone_from(&access_modes);
    serve(draft, golden, view, disk, true);
    draft.after.push(Action::WriteHeaders { golden: golden.clone(), disk, mark: (status.attempts, 0) });
    draft.after.push(Action::CreateVolume(Box::new(ImportOrder {
        golden: golden.clone(),
        disk,
        class: class.name.clone(),
        size,
        volume_mode,
        access_modes,
        identity,
        schematic_id: draft.schematic_id.clone(),
        artifact: draft.observed.spooled.as_ref().map(|spooled| spooled.artifact_digest),
        defaults: draft.status.defaults.as_ref().map(VirtualMachineDefaultsSpec::facts).unwrap_or_default(),
    })));
    TargetState::working(Reason::Importing, "The import begins.").with_disk()
}

/// The size to ask of CDI: as given if the disk fits, else the disk's, a whole number of MiB and no less than the class makes.
///
/// CDI adds its file-system overhead itself (`storage` API), so that the size given is the size usable on both modes.
fn golden_size(given: Option<DiskSize>, virtual_size: DiskSize, minimum: Option<DiskSize>) -> Result<DiskSize, String> {
    let needed = virtual_size.round_up_to_mib();
    match given {
        Some(given) if given < virtual_size => {
            Err(format!("The disk has {virtual_size} and the target {given}: it needs at least {needed}."))
        }
        Some(given) => Ok(given),
        None => Ok(minimum.map_or(needed, |minimum| needed.max(minimum))),
    }
}

fn failed_before(status: &TargetStatus, limit: i32) -> TargetState {
    let (reason, message) = status.last_failure.as_ref().map_or((Reason::ImportFailed, String::new()), |failure| {
        (failure.reason.parse().unwrap_or(Reason::ImportFailed), failure.message.clone())
    });
    let mut state = TargetState::trouble(reason, message);
    state.terminal |= status.attempts >= limit;
    state
}

fn serve(draft: &mut Draft<'_>, golden: &GoldenName, view: &ObservedTarget, disk: Digest, ready: bool) {
    if view.golden.grant != (GrantView::Serving { disk, ready }) {
        draft.after.push(Action::Serve { golden: golden.clone(), disk, ready });
    }
}

fn running(
    draft: &mut Draft<'_>,
    golden: &GoldenName,
    volume: &DataVolumeView,
    claim: Option<&ClaimView>,
    view: &ObservedTarget,
    status: &mut TargetStatus,
) -> TargetState {
    if !volume.ours {
        let message =
            format!("A DataVolume {golden} ({}) exists in the catalog namespace and does not carry this image's mark.", volume.source);
        return TargetState::trouble(Reason::NameConflict, message);
    }
    if volume.terminating {
        return TargetState::working(Reason::GoldenTerminating, format!("Waiting for the former DataVolume {golden} to be gone."))
            .with_disk();
    }
    let disk: Option<Digest> = volume.disk_digest.as_ref().and_then(|digest| digest.parse().ok());
    let succeeded_claim = claim.filter(|claim| volume.phase == "Succeeded" && claim.bound && !claim.terminating);
    if let Some(claim) = succeeded_claim {
        return match unlike(draft, claim, view) {
            Some(difference) => TargetState::trouble(Reason::NameConflict, format!("The golden {golden} is there and {difference}.")),
            None => succeeded(draft, golden, claim, status),
        };
    }
    status.golden = Some(golden.to_string());
    if status.started_time.is_none() {
        // The DataVolume is ours and unfinished, and the status that said so was lost or cleared by hand.
        status.started_time = Some(draft.now());
        status.progress_time = Some(draft.now());
        status.attempts = status.attempts.max(1);
    }
    draft.wants.imports += 1;

    // The spool's disk differs from the one this DataVolume was made for: an unreproducible image was fetched again.
    if let (Some((spooled, _)), Some(disk)) = (spooled_disk(draft), disk)
        && spooled != disk
    {
        draft.after.push(Action::DeleteVolume { golden: golden.clone(), uid: volume.uid.clone() });
        return TargetState::working(
            Reason::Importing,
            "Upstream served another disk when it was asked again; the unfinished import is begun anew.",
        )
        .with_disk();
    }
    if let Some(disk) = disk {
        let ready = spooled_disk(draft).is_some_and(|(spooled, _)| spooled == disk);
        serve(draft, golden, view, disk, ready);
        let mark = (status.attempts, volume.restarts);
        if view.golden.headers_written != Some(mark) {
            draft.after.push(Action::WriteHeaders { golden: golden.clone(), disk, mark });
        }
    }
    let step = volume.percent.map(|percent| i32::from(percent.min(100)) / 10 * 10);
    if let Some(step) = step.filter(|step| status.progress_percent.unwrap_or(-1) < *step) {
        status.progress_percent = Some(step);
        status.progress_time = Some(draft.now());
    }
    let facts = ImportFacts {
        phase: &volume.phase,
        bound: &volume.bound,
        running: &volume.running,
        restarts: volume.restarts,
        importer: view.golden.importer,
    };
    let trouble = view.golden.trouble.clone().or_else(|| import_trouble(facts));
    let moved = [view.golden.moved, status.progress_time.as_ref().map(|at| at.0), status.started_time.as_ref().map(|at| at.0)]
        .into_iter()
        .flatten()
        .max()
        .unwrap_or(draft.now);
    let deadline = after(moved, draft.settings.import_deadline);
    if draft.now >= deadline || volume.phase == "Failed" {
        return give_up(draft, golden, volume, trouble, status);
    }
    draft.wake_at(deadline);
    match trouble {
        Some((reason, message)) => TargetState::trouble(reason, message).with_disk(),
        None => {
            let percent =
                status.progress_percent.filter(|percent| *percent > 0).map(|percent| format!(" ({percent} %)")).unwrap_or_default();
            let phase = if volume.phase.is_empty() { "no phase yet" } else { &volume.phase };
            TargetState::working(Reason::Importing, format!("CDI: {phase}{percent}.")).with_disk()
        }
    }
}

/// Ends an attempt that leads nowhere, so that its slot goes to the next image and a fresh one can be made.
fn give_up(
    draft: &mut Draft<'_>,
    golden: &GoldenName,
    volume: &DataVolumeView,
    trouble: Option<(Reason, String)>,
    status: &mut TargetStatus,
) -> TargetState {
    let minutes = draft.settings.import_deadline.as_secs() / 60;
    let (reason, message) = match trouble {
        Some((reason, message)) => (reason, message),
        None => (Reason::ImportStalled, format!("The import made no progress for {minutes} minutes (CDI: {}).", volume.phase)),
    };
    draft.after.push(Action::DeleteVolume { golden: golden.clone(), uid: volume.uid.clone() });
    let now = draft.now();
    let delay = backoff(draft, status.attempts);
    let next = after(draft.now, delay);
    status.last_failure = Some(LastFailure { reason: reason.to_string(), message, time: now });
    status.started_time = None;
    status.progress_percent = None;
    status.progress_time = None;
    status.next_attempt_time = Some(whole_seconds(next));
    draft.wake_at(next);
    failed_before(status, draft.settings.import_attempts).with_disk()
}

/// A growing delay that is the same for one image and attempt, and differs between images.
pub(super) fn backoff(draft: &Draft<'_>, attempts: i32) -> Duration {
    let (shortest, longest) = draft.settings.backoff;
    Backoff::new(shortest, longest).next(&draft.observed.metadata.uid, u32::try_from(attempts).unwrap_or(0), None)
}

/// What a golden that carries our mark has other than what is wanted: a re-created image may ask for another class or digest.
fn unlike(draft: &Draft<'_>, claim: &ClaimView, view: &ObservedTarget) -> Option<String> {
    if let (ClassChoice::Found(wanted), Some(class)) = (&view.class, &claim.class)
        && wanted.name.as_str() != class
    {
        return Some(format!("has the StorageClass {class}, not {}", wanted.name));
    }
    let wanted = draft.image.digest.map(|digest| digest.to_string())?;
    (claim.artifact_digest.as_ref() != Some(&wanted))
        .then(|| format!("was made from {}, not from {wanted}", claim.artifact_digest.as_deref().unwrap_or("an unknown download")))
}

/// The import is over: the claim's UID and what storage made of the order are put on record, once and for all.
fn succeeded(draft: &mut Draft<'_>, golden: &GoldenName, claim: &ClaimView, status: &mut TargetStatus) -> TargetState {
    draft.before.push(Action::DeleteHeaders { golden: golden.clone() });
    status.golden = Some(golden.to_string());
    status.claim_uid = Some(claim.uid.clone());
    if let Some(class) = &claim.class {
        status.storage_class_name = Some(class.clone());
    }
    if let Some(request) = claim.request {
        status.size = Some(request.to_string());
    }
    if let Some(mode) = &claim.volume_mode {
        status.volume_mode = Some(mode.clone());
    }
    if !claim.access_modes.is_empty() {
        status.access_modes.clone_from(&claim.access_modes);
    }
    // A status that was lost or cleared by hand: what the golden itself says of its disk is as good, and freezes it again.
    if draft.status.disk.is_none()
        && let (Some(digest), Some(size)) = (&claim.disk_digest, claim.request)
    {
        draft.status.disk = Some(DiskStatus { digest: digest.clone(), virtual_size: size.to_string() });
    }
    status.started_time = None;
    status.progress_time = None;
    status.progress_percent = None;
    status.next_attempt_time = None;
    if let Some(disk) = draft.status.disk.as_ref().and_then(|disk| disk.digest.parse().ok()) {
        draft.after.push(Action::Refuse { golden: golden.clone(), disk });
    }
    TargetState::ready()
}
