//! Beginning one golden: what it is made from, of which size and in which modes, and what still stands in the way.

use super::{
    Action, ClaimView, ClassFound, ImportOrder, ObservedTarget,
    decide::{Draft, after},
    free,
    import::{fail, failed_before, serve, spooled_disk, stands_for_another},
    leaving::last,
    target::TargetState,
};
use crate::{
    api::TargetStatus,
    model::{ClassName, Digest, DiskSize, GoldenName, Target, VolumeMode},
    rules::{
        Reason,
        class::Shape,
        modes::{Modes, choose_modes},
        quota::{Begun, Held, Need, shortage},
        size::{SizeTooSmall, Volume, copy_size, golden_size},
    },
};

/// The golden's name: without class for the first target made, with its class for a further one.
pub(super) fn name_for(draft: &Draft<'_>, class: Option<&ClassName>) -> Option<Result<GoldenName, String>> {
    let name = draft.status.next_name(draft.image, draft.schematic_id.as_ref(), class)?;
    Some(name.map_err(|error| error.to_string()))
}

/// A golden of this image that can be copied: recorded, verified, standing. One whose target was taken out, and that stays because no
/// other can be cloned, is there for this.
fn sibling<'a>(draft: &Draft<'a>, golden: &GoldenName) -> Option<(GoldenName, &'a ClaimView)> {
    draft.observed.targets.iter().zip(&draft.status.targets).chain(last(draft)).find_map(|(view, status)| {
        let (uid, claim) = (status.claim_uid.as_ref()?, view.golden.claim.as_ref()?);
        let name: GoldenName = status.golden.as_ref()?.parse().ok()?;
        let stands = claim.uid == *uid && claim.bound && !claim.terminating && !claim.lost && status.started_time.is_none();
        let volume = view.golden.volume.as_ref();
        let is_whole = volume.is_none_or(|volume| volume.phase == "Succeeded" && !volume.terminating);
        // What an adopted golden holds was never verified: no digest may vouch for a copy of it.
        (stands && is_whole && name != *golden && status.adopted != Some(true)).then_some((name, claim))
    })
}

/// Begins the golden, as far as class, bytes, size, modes, quota, time and turn allow.
pub(super) fn start(
    draft: &mut Draft<'_>,
    target: &Target,
    golden: &GoldenName,
    class: Option<&ClassFound>,
    view: &ObservedTarget,
    status: &mut TargetStatus,
) -> TargetState {
    let Some(class) = class else { return TargetState::working(Reason::Resolving, "") };
    // Chosen once for a golden that was made, and for the attempt under way; what led to no golden binds no further attempt.
    let is_chosen = status.claim_uid.is_some() || status.started_time.is_some();
    let recorded_mode = status.volume_mode.as_ref().filter(|_| is_chosen).and_then(|mode| mode.parse().ok());
    let stated_mode = target.volume_mode.or(recorded_mode);
    let stated_access = if target.access_modes.is_empty() && recorded_mode.is_some() { &status.access_modes } else { &target.access_modes };
    let modes = choose_modes(class.name.as_str(), stated_mode, stated_access, &class.properties);
    let mode = modes.as_ref().map_or(VolumeMode::Block, |modes| modes.volume_mode);
    let volume = Volume::new(class.name.as_str(), mode, &class.overheads, class.minimum);
    let Some(Bytes { disk, artifact, size, copies }) = bytes(draft, target, golden, volume) else {
        // What is coming cannot be held: told before the transfer, which goes on for the others.
        let too_small = draft.observed.coming_size.and_then(|coming| golden_size(coming, target.size, volume.least()).err());
        return match too_small {
            Some(error) => TargetState::trouble(Reason::SizeTooSmall, format!("The {error}.")).with_disk(),
            None => TargetState::working(Reason::Fetching, "Waiting for the verified disk.").with_disk(),
        };
    };
    let needs_disk = copies.is_none();
    let with_disk = |state: TargetState| TargetState { needs_disk, ..state };
    let (Some(identity), false) = (draft.identity.clone(), draft.image.suspend) else {
        return TargetState::working(Reason::Suspended, "The image is suspended.");
    };
    let size = match size {
        Ok(size) => size,
        Err(error) => return TargetState::trouble(Reason::SizeTooSmall, format!("The {error}.")),
    };
    let Modes { volume_mode, access_modes } = match modes {
        Ok(modes) => modes,
        Err(error) => return TargetState::trouble(Reason::ModesUnknown, error.to_string()),
    };
    let waiting_until = status
        .next_attempt_time
        .as_ref()
        .and_then(|at| draft.not_before(at, draft.settings.backoff.1.max(draft.settings.not_found_interval)));
    if let Some(at) = waiting_until {
        draft.wake_at(at);
        return with_disk(failed_before(status, draft.settings.import_attempts));
    }
    // Seen before it is begun, it costs no attempt and no turn; CDI would end in the same quota half-way.
    let scratch_class = copies.is_none().then(|| class.scratch_class.clone());
    let need = Need { class: class.name.to_string(), scratch_class, claim: volume.requested(size, Shape::Storage) };
    if status.started_time.is_none()
        && let Some(shortage) = shortage(&need, &view.quotas, &draft.begun)
    {
        return with_disk(TargetState::trouble(Reason::QuotaExceeded, shortage));
    }
    draft.wants.imports += 1;
    draft.wants.import_failures = draft.wants.import_failures.max(status.attempts);
    if draft.observed.permits.imports < draft.wants.waiting() {
        return with_disk(TargetState::working(Reason::Queued, "Waiting for a turn: other goldens are being imported."));
    }
    // Killed between this status and the DataVolume, the same attempt goes on.
    if status.started_time.is_none() {
        // What was counted before a success is no failure of this volume.
        let counted = if status.last_failure.is_some() { status.attempts } else { 0 };
        status.attempts = counted.saturating_add(1);
        status.started_time = Some(draft.now());
        status.progress_time = Some(draft.now());
        // The image's further targets find that much less.
        draft.begun.push(Begun { need, held: Held::default() });
    }
    status.next_attempt_time = None;
    status.progress_percent = Some(0);
    status.golden = Some(golden.to_string());
    status.storage_class_name = Some(class.name.to_string());
    status.size = Some(size.to_string());
    status.volume_mode = Some(volume_mode.to_string());
    status.access_modes.clone_from(&access_modes);
    let state = match &copies {
        None => {
            serve(draft, golden, view, disk, true);
            draft.after.push(Action::WriteHeaders { golden: golden.clone(), disk, mark: (status.attempts, 0, 0) });
            TargetState::working(Reason::Importing, "The import begins.")
        }
        Some(source) => TargetState::working(Reason::Copying, format!("The copy from the golden {source} begins.")),
    };
    draft.after.push(Action::CreateVolume(Box::new(ImportOrder {
        golden: golden.clone(),
        disk,
        copies,
        class: class.name.clone(),
        size,
        volume_mode,
        access_modes,
        identity,
        schematic_id: draft.schematic_id.clone(),
        artifact,
        defaults: free::defaults(draft.image, draft.observed),
    })));
    let Some((reason, message)) = view.golden.refused.clone() else { return with_disk(state) };
    // Asked again until the deadline, which ends the attempt as it ends one that CDI makes nothing of.
    let deadline = after(status.started_time.as_ref().map_or(draft.now, |at| at.0), draft.settings.import_deadline);
    if draft.now >= deadline {
        draft.after.retain(|action| action.golden() != Some(golden));
        return with_disk(fail(draft, status, reason, message));
    }
    draft.wake_at(deadline);
    with_disk(TargetState::trouble(reason, message))
}

/// What a golden is made from.
struct Bytes {
    disk: Digest,
    artifact: Option<Digest>,
    /// The size to ask for.
    size: Result<DiskSize, SizeTooSmall>,
    /// The golden to copy; else the spool has the disk.
    copies: Option<GoldenName>,
}

/// What the golden is made from; `None` where the disk must be fetched.
///
/// A target added after the artifact has left the spool is copied from a golden of the same image in another class: the same
/// bytes, without upstream, which may not even serve them any more. Where a stated size is too small for such a copy (the
/// other golden may be larger than the disk), the disk is fetched again.
fn bytes(draft: &Draft<'_>, target: &Target, golden: &GoldenName, volume: Volume) -> Option<Bytes> {
    if let Some((disk, virtual_size)) = spooled_disk(draft).filter(|(disk, _)| !stands_for_another(draft, *disk)) {
        let artifact = draft.observed.spooled.as_ref().map(|spooled| spooled.artifact_digest);
        return Some(Bytes { disk, artifact, size: golden_size(virtual_size, target.size, volume.least()), copies: None });
    }
    let known = draft.status.disk.as_ref()?;
    let (disk, virtual_size) = (known.digest.parse().ok()?, known.virtual_size.parse().ok()?);
    let (name, claim) = sibling(draft, golden)?;
    let source = (claim.volume_mode.as_deref().and_then(VolumeMode::parse).unwrap_or(VolumeMode::Filesystem), claim.request?);
    let size = match golden_size(virtual_size, target.size, volume.least()) {
        Ok(wanted) => Ok(copy_size(wanted, target.size.is_some(), volume, source)?),
        Err(error) => Err(error),
    };
    let artifact = draft.status.artifact.as_ref().and_then(|artifact| artifact.digest.parse().ok());
    Some(Bytes { disk, artifact, size, copies: Some(name) })
}
