//! What stands under the name that is cloned, from what was read of it: pure, so that admission and `explain` see the same.

use super::images::{ImageFacts, Images};
use crate::{
    foreign::{Claim, DataVolume, VolumeSnapshot},
    rules::{
        Reason,
        clone::{Access, GoldenFacts, Known, Progress, Source, SourceFacts, SourceVolume, Unknown},
        golden::{Vouched, golden_ready, is_temporary},
        marks,
    },
    world::{
        Parts,
        evidence::{object_marks, owning_volume},
        facts,
    },
};

/// What was read under a name.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The claim: the one cloned, or the one a cloned snapshot was taken of.
    pub claim: Option<Claim>,
    /// The DataVolume of the claim's name: as the API server has it, unless claim and watch say that it is finished.
    pub volume: Option<DataVolume>,
    /// The snapshot, where one is cloned.
    pub snapshot: Option<VolumeSnapshot>,
}

/// What a clone of `source` would be a clone of.
///
/// # Errors
/// While GoldenImages are not all known.
pub fn source_facts(source: &Source, found: &Found, images: &Images, catalog: &str) -> Known<SourceFacts> {
    if !images.store.is_known() {
        return Err(Unknown("GoldenImages have not been read yet".to_owned()));
    }
    if let (Source::Snapshot(_), Some(snapshot)) = (source, &found.snapshot) {
        let empty = Default::default();
        let (labels, annotations) =
            (snapshot.metadata.labels.as_ref().unwrap_or(&empty), snapshot.metadata.annotations.as_ref().unwrap_or(&empty));
        if is_temporary(object_marks(&snapshot.metadata, labels, annotations), catalog) {
            return Ok(SourceFacts::Temporary);
        }
    }
    let golden = match source {
        Source::Claim(name) => name.clone(),
        Source::Snapshot(_) => match &found.snapshot {
            // A snapshot that is not there, whatever its name: nobody makes snapshots of goldens for us.
            None => return Ok(SourceFacts::Missing),
            Some(snapshot) => {
                let of = snapshot.spec.read().and_then(|spec| spec.source.as_ref()?.persistent_volume_claim_name.clone());
                of.unwrap_or_default()
            }
        },
    };
    let (claim_meta, volume_meta) =
        (found.claim.as_ref().map(|claim| &claim.metadata), found.volume.as_ref().map(|volume| &volume.metadata));
    let parts = Parts::of(claim_meta, volume_meta, catalog);
    // A claim that nobody marked and that no golden takes along speaks for itself, whatever was made beside it.
    let standing = parts.marked.filter(|_| parts.claim.is_some()).or(claim_meta).or(volume_meta);
    let image = match standing {
        Some(meta) => images.of_found(&golden, meta),
        None => images.of_golden(&golden),
    };
    let Some(claim) = &found.claim else {
        return Ok(match image {
            Some(image) => SourceFacts::Golden(unmade(&golden, &image, parts, found)),
            None if found.snapshot.is_some() => unmarked(found),
            None => SourceFacts::Missing,
        });
    };
    let empty = Default::default();
    let (labels, annotations) = (claim.metadata.labels.as_ref().unwrap_or(&empty), claim.metadata.annotations.as_ref().unwrap_or(&empty));
    if is_temporary(object_marks(&claim.metadata, labels, annotations), catalog) {
        return Ok(SourceFacts::Temporary);
    }
    let recorded_uid = image.as_ref().and_then(|image| image.golden(&golden)?.claim_uid.as_deref());
    // What the fence is around is never a hand-made image, whether a DataVolume or a record knows it or not: who is let in is judged by the
    // same test as what is retired. One whose mark was taken off by hand is a golden still: its UID is on record. So is whatever else stands
    // under a golden's name: it is told as replaced.
    if parts.claim.is_none() && recorded_uid.is_none() {
        return Ok(unmarked(found));
    }
    Ok(SourceFacts::Golden(made(&golden, claim, image.as_deref(), parts, found)))
}

fn volume_of(found: &Found) -> SourceVolume {
    match (&found.snapshot, &found.claim) {
        (Some(snapshot), claim) => facts::snapshot_volume(snapshot, claim.as_ref()),
        (None, Some(claim)) => facts::source_volume(claim),
        (None, None) => SourceVolume::default(),
    }
}

/// A claim or snapshot that no image and no mark of ours speaks for.
fn unmarked(found: &Found) -> SourceFacts {
    let is_bound = found.claim.as_ref().is_some_and(|claim| facts::claim_seen(claim).phase == "Bound");
    let is_filled = found.volume.as_ref().is_none_or(|volume| facts::volume_seen(volume).phase == "Succeeded");
    SourceFacts::Unmarked { volume: volume_of(found), is_populated: found.snapshot.is_some() || (is_bound && is_filled) }
}

/// A golden whose claim is not there.
fn unmade(golden: &str, image: &ImageFacts, parts: Parts<'_>, found: &Found) -> GoldenFacts {
    let record = image.golden(golden);
    let progress = match record {
        _ if parts.is_terminating() => Progress::Terminating,
        Some(record) if record.claim_uid.is_some() => {
            Progress::Failed { reason: Reason::GoldenMissing, message: "the golden's claim is gone".to_owned() }
        }
        Some(record) => match &record.failed {
            Some((reason, message)) => Progress::Failed { reason: *reason, message: message.clone() },
            None if record.is_suspended => Progress::Suspended,
            None => Progress::Pending(record.waits_for.clone()),
        },
        None => Progress::Pending("it has just been made".to_owned()),
    };
    GoldenFacts {
        name: golden.to_owned(),
        image: Some(image.name.clone()),
        access: image.access.clone(),
        progress,
        volume: if found.snapshot.is_some() { volume_of(found) } else { record.map(|record| record.volume.clone()).unwrap_or_default() },
        fence: parts.fence(),
        targets: image.targets(),
    }
}

fn claim_annotation<'a>(claim: &'a Claim, key: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether a claim goes with a DataVolume that is gone: nothing fills it any more. One that is bound is a golden that stays.
fn is_left(claim: &Claim, volume: Option<&DataVolume>) -> bool {
    let is_gone = |uid: &str| volume.is_none_or(|volume| volume.metadata.uid.as_deref() != Some(uid));
    owning_volume(&claim.metadata).is_some_and(|owner| is_gone(&owner.uid)) && facts::claim_seen(claim).phase != "Bound"
}

fn made(golden: &str, claim: &Claim, image: Option<&ImageFacts>, parts: Parts<'_>, found: &Found) -> GoldenFacts {
    let record = image.and_then(|image| image.golden(golden));
    // Without an image nobody has another volume on record, and the mark says that this one was a golden.
    let recorded_uid = match image {
        Some(_) => record.and_then(|record| record.claim_uid.as_deref()),
        None => claim.metadata.uid.as_deref(),
    };
    let vouched = if image.is_some() { Vouched::Verified } else { Vouched::Adopted };
    let ready = golden_ready(found.volume.as_ref().map(facts::volume_seen), Some(facts::claim_seen(claim)), recorded_uid, vouched);
    let failed = || record.and_then(|record| record.failed.clone());
    let progress = match ready {
        _ if is_left(claim, found.volume.as_ref()) => Progress::Terminating,
        Ok(_) => Progress::Ready,
        Err(not_ready) => match (not_ready.reason, failed()) {
            (Reason::GoldenTerminating, _) => Progress::Terminating,
            (_, Some((reason, message))) => Progress::Failed { reason, message },
            (Reason::Importing | Reason::Queued, None) if record.is_some_and(|record| record.is_suspended) => Progress::Suspended,
            // Nobody finishes it.
            (Reason::Importing | Reason::Queued, None) if image.is_none() => {
                let message = "it is not finished, and no GoldenImage makes it".to_owned();
                Progress::Failed { reason: Reason::ImageGone, message }
            }
            (Reason::Importing | Reason::Queued, None) => Progress::Pending(not_ready.message),
            // Without a DataVolume and not on record: somebody put it there, and it waits for a person's word; or it has not been looked at.
            (Reason::NameConflict, None) if record.is_some_and(|record| record.waits_for == Reason::GoldenReplaced.as_str()) => {
                let message = "a volume stands under the golden's name that the catalog has not taken over".to_owned();
                Progress::Failed { reason: Reason::GoldenReplaced, message }
            }
            (Reason::NameConflict, None) => Progress::Pending("it is being looked at".to_owned()),
            (reason, None) => Progress::Failed { reason, message: not_ready.message },
        },
    };
    let seen = volume_of(found);
    let frozen = record.map(|record| record.volume.clone()).unwrap_or_default();
    GoldenFacts {
        name: golden.to_owned(),
        image: image.map(|image| image.name.clone()),
        // A golden outlives its image and stays clonable (R24), but by nobody who could not clone it before.
        access: image.map_or_else(|| Access::of_mark(claim_annotation(claim, marks::ACCESS)), |image| image.access.clone()),
        progress,
        volume: SourceVolume {
            class: seen.class.or(frozen.class),
            request: seen.request.or(frozen.request),
            capacity: seen.capacity,
            volume_mode: seen.volume_mode.or(frozen.volume_mode),
        },
        // One on record whose mark was taken off by hand is fenced all the same.
        fence: parts.fence().max(facts::fence(&claim.metadata)),
        targets: image.map(ImageFacts::targets).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
