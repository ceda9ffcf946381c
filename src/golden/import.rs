//! A golden that is being made, from the spool or as a copy of the image's golden in another class: its attempts and their end.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{
    Action, ClaimView, ClassChoice, DataVolumeView, FetchView, GrantView, HeldBack, ObservedTarget, adopt,
    decide::{Draft, after, whole_seconds},
    target::TargetState,
};
use crate::{
    api::{ConditionType, DiskStatus, LastFailure, TargetStatus, find_condition},
    model::{Digest, DiskSize, GoldenName},
    rules::{ImportFacts, Reason, import_trouble},
    run::backoff::Backoff,
};

/// The disk that the spool holds and the status has on record.
pub(super) fn spooled_disk(draft: &Draft<'_>) -> Option<(Digest, DiskSize)> {
    let spooled = draft.observed.spooled.as_ref()?;
    match draft.frozen_disk() {
        Some(frozen) if frozen != spooled.disk_digest => None,
        _ => Some((spooled.disk_digest, spooled.virtual_size)),
    }
}

/// Whether a DataVolume stands that is filled from another disk than this one. It may be finished by the time that its deletion arrives, and
/// its golden is of its own disk then.
pub(super) fn stands_for_another(draft: &Draft<'_>, disk: Digest) -> bool {
    let disk = disk.to_string();
    draft.observed.targets.iter().zip(&draft.status.targets).any(|(view, status)| {
        let is_of_another = |volume: &&DataVolumeView| {
            volume.ours && !volume.terminating && volume.copies.is_none() && volume.disk_digest.as_ref().is_some_and(|own| *own != disk)
        };
        view.golden.volume.as_ref().filter(is_of_another).is_some_and(|volume| !is_settled(draft, volume, view, status))
    })
}

/// Whether nothing comes of it any more that could freeze its disk: it is on record already, does not speak for its claim, or is told as not
/// what is wanted. Nobody deletes such a DataVolume, and nothing may wait for that.
fn is_settled(draft: &Draft<'_>, volume: &DataVolumeView, view: &ObservedTarget, status: &TargetStatus) -> bool {
    view.golden.claim.as_ref().filter(|claim| claim.bound && !claim.terminating).is_some_and(|claim| {
        status.claim_uid.as_ref() == Some(&claim.uid)
            || claim.is_taken_over()
            || !claim.heeds(volume)
            || claim.brought_back(volume).is_some()
            || volume.phase == "Succeeded" && unlike(draft, &status.requested_class, claim, view).is_some()
    })
}

pub(super) fn failed_before(status: &TargetStatus, limit: i32) -> TargetState {
    let (reason, message) = status.last_failure.as_ref().map_or((Reason::ImportFailed, String::new()), |failure| {
        (failure.reason.parse().unwrap_or(Reason::ImportFailed), failure.message.clone())
    });
    let mut state = TargetState::trouble(reason, message);
    if status.attempts >= limit {
        state.terminal = true;
        state.message = spent_message(&state.message, status.attempts);
    }
    state
}

/// What is told once the attempts are spent.
pub(super) fn spent_message(failure: &str, attempts: i32) -> String {
    format!("{} {attempts} attempts are spent. {}", failure.trim_end(), Reason::AttemptsSpent.remedy())
}

pub(super) fn serve(draft: &mut Draft<'_>, golden: &GoldenName, view: &ObservedTarget, disk: Digest, ready: bool) {
    if view.golden.grant != (GrantView::Serving { disk, ready }) {
        draft.after.push(Action::Serve { golden: golden.clone(), disk, ready });
    }
}

/// A DataVolume that is there: being filled, or filled.
pub(super) fn running(
    draft: &mut Draft<'_>,
    golden: &GoldenName,
    volume: &DataVolumeView,
    claim: Option<&ClaimView>,
    view: &ObservedTarget,
    status: &mut TargetStatus,
) -> TargetState {
    if !volume.ours {
        // Under a DataVolume that came back without our mark, the claim may be the golden that a person wants.
        if let Some(state) = adopt::disbelieved(draft, golden, None, view, status) {
            return state;
        }
        let message =
            format!("A DataVolume {golden} ({}) exists in the catalog namespace and does not carry this image's mark.", volume.source);
        return TargetState::trouble(Reason::NameConflict, message);
    }
    if volume.terminating {
        return TargetState::working(Reason::GoldenTerminating, format!("Waiting for the former DataVolume {golden} to be gone."))
            .with_disk();
    }
    if let Some(state) = adopt::disbelieved(draft, golden, None, view, status) {
        return state;
    }
    let disk: Option<Digest> = volume.disk_digest.as_ref().and_then(|digest| digest.parse().ok());
    let succeeded_claim = claim.filter(|claim| volume.phase == "Succeeded" && claim.bound && !claim.terminating);
    if let Some(claim) = succeeded_claim {
        return finished(draft, golden, claim, view, status);
    }
    status.golden = Some(golden.to_string());
    if status.started_time.is_none()
        && let Some(at) = status.next_attempt_time.as_ref().map(|at| at.0)
    {
        // The attempt was given up and its DataVolume still stands: deleting it failed, or was cut off.
        draft.after.push(Action::DeleteVolume { golden: golden.clone(), uid: volume.uid.clone() });
        draft.wake_at(at.max(after(draft.now, std::time::Duration::from_secs(1))));
        return match view.golden.refused.clone() {
            Some((reason, message)) => TargetState::trouble(reason, message).with_disk(),
            None if status.last_failure.is_none() => {
                TargetState::working(Reason::GoldenTerminating, format!("Waiting for the former DataVolume {golden} to be gone."))
                    .with_disk()
            }
            None => failed_before(status, draft.settings.import_attempts).with_disk(),
        };
    }
    if status.started_time.is_none() {
        // The DataVolume is ours and unfinished, and the status that said so was lost or cleared by hand.
        status.started_time = Some(draft.now());
        status.progress_time = Some(draft.now());
        status.attempts = status.attempts.max(1);
    }
    draft.wants.imports += 1;
    draft.wants.running += 1;

    // The spool's disk differs from the one this DataVolume was made for: an unreproducible image was fetched again.
    if let (Some((spooled, _)), Some(disk), None) = (spooled_disk(draft), disk, &volume.copies)
        && spooled != disk
    {
        draft.after.push(Action::DeleteVolume { golden: golden.clone(), uid: volume.uid.clone() });
        return TargetState::working(
            Reason::Importing,
            "Upstream served another disk when it was asked again; the unfinished import is begun anew.",
        )
        .with_disk();
    }
    let is_copy = volume.copies.is_some();
    // Another key of the spool, or another object of the image's name, means another path: nobody answers at the former one,
    // and a DataVolume's source cannot be changed.
    if let (false, Some(asked), Some(served)) = (is_copy, &volume.path, &view.golden.path)
        && asked != served
    {
        draft.after.push(Action::DeleteVolume { golden: golden.clone(), uid: volume.uid.clone() });
        return TargetState::working(
            Reason::Importing,
            "The spool has another address for this golden now; the unfinished import is begun anew.",
        )
        .with_disk();
    }
    let with_disk = |state: TargetState| TargetState { needs_disk: !is_copy, ..state };
    if let Some(disk) = disk.filter(|_| !is_copy) {
        let ready = spooled_disk(draft).is_some_and(|(spooled, _)| spooled == disk);
        serve(draft, golden, view, disk, ready);
    }
    let step = volume.percent.map(|percent| i32::from(percent.min(100)) / 10 * 10);
    let further = step.filter(|step| status.progress_percent.unwrap_or(-1) < *step);
    if let Some(step) = further {
        status.progress_percent = Some(step);
        status.progress_time = Some(draft.now());
    }
    // What this process saw is counted by a clock that does not jump; what is on record is of another time, perhaps of a
    // clock that was ahead.
    let recorded = [&status.progress_time, &status.started_time].into_iter().flatten().map(|at| at.0).max();
    let moved = view.golden.moved.or(recorded).unwrap_or(draft.now).min(draft.now);
    let quiet = after(moved, draft.settings.import_quiet);
    if let Some(disk) = disk.filter(|_| !is_copy)
        && let Some(held_back) = cannot_come(draft, disk, volume, view)
    {
        if draft.now >= quiet {
            give_back(draft, golden, volume, status);
        } else {
            draft.wake_at(quiet);
        }
        return match held_back {
            HeldBack::Suspended => {
                TargetState::working(Reason::Suspended, "The image is suspended, and the spool has not got the disk that its import pulls.")
            }
            HeldBack::Missing(what) => {
                let message = format!("{what} does not exist, and the spool has not got the disk that the import pulls.");
                TargetState::trouble(Reason::ReferenceNotFound, message)
            }
        }
        .with_disk();
    }
    if let Some(disk) = disk.filter(|_| !is_copy) {
        // Written once for each importer; and while nothing moves now and then again, since whoever deleted the Secret or the
        // CA leaves a pod that cannot start, and Secrets of this namespace we may not read.
        let pause = (draft.settings.import_deadline / 5).max(std::time::Duration::from_secs(1));
        let still = draft.now.duration_since(moved).unsigned_abs().as_secs() / pause.as_secs().max(1);
        let mark = (status.attempts, volume.restarts, still);
        // A slow import is no reason: its importer has them.
        let is_at_work = view.golden.is_pulling
            && view.golden.headers_written.is_some_and(|(attempt, restarts, _)| (attempt, restarts) == (mark.0, mark.1));
        if view.golden.headers_written != Some(mark) && !is_at_work {
            draft.after.push(Action::WriteHeaders { golden: golden.clone(), disk, mark });
        }
        draft.wake_at(after(moved, pause.saturating_mul(u32::try_from(still + 1).unwrap_or(u32::MAX))));
    }
    let facts = ImportFacts {
        phase: &volume.phase,
        bound: &volume.bound,
        running: &volume.running,
        restarts: volume.restarts,
        importer: view.golden.importer,
        copies: volume.copies.as_deref(),
        scratch_class: match &view.class {
            ClassChoice::Found(class) => &class.scratch_class,
            ClassChoice::NoDefault | ClassChoice::Missing(_) => "?",
        },
        told: view.golden.told.as_ref(),
        is_quiet: draft.now >= quiet,
    };
    let known = if is_copy { source_in_use(draft, volume) } else { view.golden.trouble.clone() };
    let before = || if further.is_none() { told_before(status, volume, view) } else { None };
    let trouble = known.or_else(|| import_trouble(facts)).or_else(|| view.golden.refused.clone()).or_else(before);
    let patience = patience(draft.settings.import_deadline, draft.status.disk.as_ref(), volume, view.golden.is_downloaded);
    let deadline = after(moved, patience);
    if draft.now >= deadline || volume.phase == "Failed" {
        return with_disk(give_up(draft, golden, volume, patience.as_secs() / 60, trouble, status));
    }
    draft.wake_at(if draft.now < quiet { quiet.min(deadline) } else { deadline });
    if let Some((reason, message)) = trouble {
        return with_disk(TargetState::trouble(reason, message));
    }
    let percent = status.progress_percent.filter(|percent| *percent > 0).map(|percent| format!(" ({percent} %)")).unwrap_or_default();
    let phase = if volume.phase.is_empty() { "no phase yet" } else { &volume.phase };
    match &volume.copies {
        None => TargetState::working(Reason::Importing, format!("CDI: {phase}{percent}.")).with_disk(),
        Some(source) => TargetState::working(Reason::Copying, format!("CDI copies the golden {source}: {phase}{percent}.")),
    }
}

/// Why the disk that an import pulls will not come before something changes: the spool lacks it, and fetching it is held back. An importer
/// that has it all needs nothing more.
fn cannot_come(draft: &Draft<'_>, disk: Digest, volume: &DataVolumeView, view: &ObservedTarget) -> Option<HeldBack> {
    let is_there = spooled_disk(draft).is_some_and(|(spooled, _)| spooled == disk);
    let is_coming = matches!(draft.observed.fetch, FetchView::Running { .. });
    draft
        .held_back()
        .filter(|_| !is_there && !is_coming && !view.golden.is_downloaded && volume.percent.is_none_or(|percent| percent < 100))
}

/// Ends an attempt that nothing can come of for now, which is no failure of it: its turn and its room go to others (R11), and it begins anew
/// when the disk is there again.
fn give_back(draft: &mut Draft<'_>, golden: &GoldenName, volume: &DataVolumeView, status: &mut TargetStatus) {
    draft.after.push(Action::DeleteVolume { golden: golden.clone(), uid: volume.uid.clone() });
    status.attempts = (status.attempts - 1).max(0);
    status.started_time = None;
    status.progress_percent = None;
    status.progress_time = None;
    // By this it is known that the DataVolume is to go, should its deletion be cut off.
    status.next_attempt_time = Some(draft.now());
}

/// What storage is given credit for at the least, in bytes a second, once the whole disk is with the importer.
const SLOWEST_STORAGE: u64 = 8 << 20;

/// For how long an import may make no progress. CDI says nothing of how far it is while it converts the disk that it has pulled, and
/// the larger that is the longer it takes.
///
/// `is_downloaded` is what this process's spool saw. What an earlier process served is known by CDI's own progress, which is of the
/// download: it is at its end while the disk is converted, and falls when an importer begins again.
pub fn patience(deadline: Duration, disk: Option<&DiskStatus>, volume: &DataVolumeView, is_downloaded: bool) -> Duration {
    patience_for(deadline, disk.and_then(|disk| disk.virtual_size.parse().ok()), volume, is_downloaded)
}

/// [`patience`] by the size of the disk.
pub(super) fn patience_for(deadline: Duration, size: Option<DiskSize>, volume: &DataVolumeView, is_downloaded: bool) -> Duration {
    let is_whole = is_downloaded || volume.copies.is_none() && volume.percent.is_some_and(|percent| percent >= 100);
    size.filter(|_| is_whole).map_or(deadline, |size| deadline.max(Duration::from_secs(size.bytes() / SLOWEST_STORAGE)))
}

/// For how long a running import had made no progress already when this process first saw it, by what is on record: a daemon that
/// is started again and again must not keep a stuck import alive.
///
/// At most half the deadline: while nobody served the disk the import could not move, and an importer that crashed meanwhile may
/// be started again only minutes later. A record of the future is of a clock that was ahead.
pub fn stood_still(status: &TargetStatus, volume: &DataVolumeView, deadline: Duration, now: Timestamp) -> Duration {
    let recorded = [&status.progress_time, &status.started_time].into_iter().flatten().map(|at| at.0).chain(volume.created).max();
    match (volume.created, recorded) {
        (Some(_), Some(since)) if since <= now => now.duration_since(since).unsigned_abs().min(deadline / 2),
        _ => Duration::ZERO,
    }
}

/// A crash-looping importer says why it failed only until its next start: what was told stays until
/// the import gets further.
fn told_before(status: &TargetStatus, volume: &DataVolumeView, view: &ObservedTarget) -> Option<(Reason, String)> {
    let ready = find_condition(&status.conditions, ConditionType::Ready).filter(|_| volume.restarts > 0)?;
    let reason: Reason = ready.reason.parse().ok()?;
    let never_came = matches!(reason, Reason::ImporterNotConnected | Reason::ImporterTLSFailed) && !view.golden.importer.connected;
    let stays = never_came || reason == Reason::ImportFailed;
    // What is said of spent attempts is added to the failure anew each time (`spent`).
    let told = reason.without_remedy(&ready.message);
    let failure = match told.split_once(" attempts are spent.") {
        Some((before, _)) => before.rsplit_once(' ').map_or("", |(failure, _)| failure),
        None => told,
    };
    stays.then(|| (reason, failure.to_owned()))
}

/// R26 for our own copy: CDI waits, and says nothing on the DataVolume, while a pod can write to the source.
fn source_in_use(draft: &Draft<'_>, volume: &DataVolumeView) -> Option<(Reason, String)> {
    let source = volume.copies.as_deref()?;
    let view = draft.observed.views().find(|view| view.name.as_ref().is_some_and(|name| name.as_str() == source))?;
    let pods = view.golden.in_use.as_ref()?;
    Some((Reason::InUseByPod, format!("The copy from the golden {source} waits: {pods}.")))
}

/// Ends an attempt that leads nowhere, so that its slot goes to the next image and a fresh one can be made.
fn give_up(
    draft: &mut Draft<'_>,
    golden: &GoldenName,
    volume: &DataVolumeView,
    minutes: u64,
    trouble: Option<(Reason, String)>,
    status: &mut TargetStatus,
) -> TargetState {
    let (reason, message) = match trouble {
        Some((reason, message)) => (reason, message),
        None => (Reason::ImportStalled, format!("The import made no progress for {minutes} minutes (CDI: {}).", volume.phase)),
    };
    draft.after.push(Action::DeleteVolume { golden: golden.clone(), uid: volume.uid.clone() });
    fail(draft, status, reason, message)
}

/// Puts a failed attempt on record, and when the next one may begin.
pub(super) fn fail(draft: &mut Draft<'_>, status: &mut TargetStatus, reason: Reason, message: String) -> TargetState {
    let now = draft.now();
    let spent = status.attempts >= draft.settings.import_attempts;
    let delay = if spent { draft.settings.not_found_interval } else { backoff(draft, status.attempts) };
    let next = after(draft.now, delay);
    status.last_failure = Some(LastFailure { reason: reason.to_string(), message, time: now });
    status.started_time = None;
    status.progress_percent = None;
    status.progress_time = None;
    status.next_attempt_time = Some(whole_seconds(next));
    draft.wake_at(next);
    failed_before(status, draft.settings.import_attempts)
}

/// A growing delay that is the same for one image and attempt, and differs between images.
pub(super) fn backoff(draft: &Draft<'_>, attempts: i32) -> Duration {
    let (shortest, longest) = draft.settings.backoff;
    Backoff::new(shortest, longest).next(&draft.observed.metadata.uid, u32::try_from(attempts).unwrap_or(0), None)
}

/// What a golden that carries our mark has other than what is wanted by the target that asks for this class (empty: the default one): a
/// re-created image may ask for another class or digest.
pub(super) fn unlike(draft: &Draft<'_>, requested_class: &str, claim: &ClaimView, view: &ObservedTarget) -> Option<String> {
    // What a target leaves open its golden decides: the default class may have moved since, which is told as drift.
    let is_open = |class: &str| requested_class.is_empty() && draft.image.targets.iter().all(|other| other.requested_class() != class);
    if let (ClassChoice::Found(wanted), Some(class)) = (&view.class, &claim.class)
        && wanted.name.as_str() != class
        && !is_open(class)
    {
        return Some(format!("has the StorageClass {class}, not {}", wanted.name));
    }
    // What was taken over as it was, was taken over whatever it holds.
    if claim.is_taken_over() {
        return None;
    }
    if let (Some(frozen), Some(own)) = (draft.frozen_disk(), &claim.disk_digest)
        && *own != frozen.to_string()
    {
        return Some(format!("holds the disk {own}, and the image's other goldens {frozen}"));
    }
    let wanted = draft.image.digest.map(|digest| digest.to_string())?;
    (claim.artifact_digest.as_ref() != Some(&wanted))
        .then(|| format!("was made from {}, not from {wanted}", claim.artifact_digest.as_deref().unwrap_or("an unknown download")))
}

/// What is told of a golden that is there and is not what is wanted.
pub(super) fn conflict(
    draft: &Draft<'_>,
    requested_class: &str,
    golden: &GoldenName,
    claim: &ClaimView,
    view: &ObservedTarget,
) -> Option<TargetState> {
    let difference = unlike(draft, requested_class, claim, view)?;
    Some(TargetState::trouble(Reason::NameConflict, format!("The golden {golden} is there and {difference}.")))
}

/// A golden that is finished: on record as such, where it is what this image would have made.
pub(super) fn finished(
    draft: &mut Draft<'_>,
    golden: &GoldenName,
    claim: &ClaimView,
    view: &ObservedTarget,
    status: &mut TargetStatus,
) -> TargetState {
    conflict(draft, &status.requested_class, golden, claim, view).unwrap_or_else(|| succeeded(draft, golden, claim, view, status))
}

/// The import is over: the claim's UID and what storage made of the order are put on record, once and for all.
pub(super) fn succeeded(
    draft: &mut Draft<'_>,
    golden: &GoldenName,
    claim: &ClaimView,
    view: &ObservedTarget,
    status: &mut TargetStatus,
) -> TargetState {
    let volume = view.golden.volume.as_ref();
    if volume.is_none_or(|volume| volume.copies.is_none()) {
        draft.before.push(Action::DeleteHeaders { golden: golden.clone() });
    }
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
    // Ours by its marks, which say nothing of its bytes: it was adopted before.
    status.adopted = (claim.is_taken_over() || draft.status.disk.is_none() && claim.disk_digest.is_none()).then_some(true);
    // What the golden itself says of its disk counts and is frozen with it: the status may have been lost, or cleared by hand, or be of a disk
    // that was fetched while this import ended.
    if status.adopted.is_none()
        && let (Some(digest), Some(size)) = (&claim.disk_digest, claim.request)
        && draft.status.disk.as_ref().is_none_or(|disk| disk.digest != *digest)
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::golden::tests::now;

    /// Minutes ago; a negative number lies ahead.
    #[rstest]
    #[case::stuck_since_long(Some(60), Some(60), Some(60), 7)]
    #[case::moved_lately(Some(3), Some(60), Some(60), 3)]
    #[case::begun_lately(None, Some(2), Some(2), 2)]
    #[case::another_volume_for_the_same_attempt(Some(60), Some(60), Some(1), 1)]
    #[case::not_seen_yet(Some(60), Some(60), None, 0)]
    #[case::a_clock_that_was_ahead(Some(-120), Some(60), Some(60), 0)]
    #[case::a_lost_status(None, None, Some(4), 4)]
    fn r10_a_restart_begins_no_clock_anew(
        #[case] progress: Option<i64>,
        #[case] started: Option<i64>,
        #[case] created: Option<i64>,
        #[case] minutes: u64,
    ) {
        let ago = |minutes: Option<i64>| minutes.map(|minutes| Timestamp::from_second(now().as_second() - 60 * minutes).expect("time"));
        let status = TargetStatus {
            progress_time: ago(progress).map(whole_seconds),
            started_time: ago(started).map(whole_seconds),
            ..TargetStatus::default()
        };
        let volume = DataVolumeView { created: ago(created), ..DataVolumeView::default() };
        let stood = stood_still(&status, &volume, Duration::from_secs(14 * 60), now());
        assert_eq!(stood, Duration::from_secs(60 * minutes));
    }
}
