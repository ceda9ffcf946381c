//! The life of an image, as one function.

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{HeldBack, Observed, Said, Settings, fetch, free, leaving, retire, summary, target};
use crate::{
    api::{GoldenImageStatus, OperatingSystemStatus},
    catalog::Listing,
    model::{ClassName, Digest, DiskSize, GoldenName, Identity, Image, SchematicId, VirtualMachineDefaults, VolumeMode},
    rules::{Reason, access, duplicate_message, quota::Begun},
};

/// What is to be done for one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Done before the status is written: what must not be forgotten once the status says it is over.
    pub before: Vec<Action>,
    /// The status to write, if it differs from the one observed.
    pub status: GoldenImageStatus,
    /// Done after the status is written: attempts and names are on record before anything is begun.
    pub after: Vec<Action>,
    /// What to tell as Events.
    pub notes: Vec<Note>,
    /// When to look again without being woken.
    pub wake: Option<Timestamp>,
    /// What this image waits a turn for (R11).
    pub wants: Wants,
}

/// R11: what an image would start if it had its turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wants {
    /// A fetch.
    pub fetch: bool,
    /// Failed attempts of that fetch.
    pub fetch_failures: i32,
    /// How many imports, counting those that run.
    pub imports: usize,
    /// How many of them run: those have their turns, whichever target comes first.
    pub running: usize,
    /// The most failed attempts among those imports.
    pub import_failures: i32,
}

impl Wants {
    /// How many imports wait for a turn.
    pub const fn waiting(self) -> usize {
        self.imports.saturating_sub(self.running)
    }
}

/// An Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Whether it is trouble.
    pub warning: bool,
    /// The reason.
    pub reason: Reason,
    /// What happened.
    pub message: String,
}

/// One thing to do. Each is idempotent: done twice it changes nothing more.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Ask the factory for the ID of the schematic document.
    ResolveSchematic,
    /// Fetch and verify the artifact into the spool.
    Fetch {
        /// The largest size that any target states: a disk that fits none is not fetched.
        largest_target: Option<DiskSize>,
    },
    /// Stop a fetch that nobody needs any more.
    CancelFetch,
    /// Let the importer of this golden pull this disk.
    Serve {
        /// The golden.
        golden: GoldenName,
        /// The disk; `None` while it is being fetched: requests are held.
        disk: Digest,
        /// Whether the spool has it.
        ready: bool,
    },
    /// Answer 410 to whoever asks for this golden's disk.
    Refuse {
        /// The golden.
        golden: GoldenName,
        /// The disk.
        disk: Digest,
    },
    /// Write the importer's header Secret and the CA's ConfigMap.
    WriteHeaders {
        /// The golden.
        golden: GoldenName,
        /// The disk.
        disk: Digest,
        /// The attempt and restart count it is written for.
        mark: (i32, i64, u64),
    },
    /// Delete the header Secret.
    DeleteHeaders {
        /// The golden.
        golden: GoldenName,
    },
    /// Create the DataVolume.
    CreateVolume(Box<ImportOrder>),
    /// Delete an unfinished DataVolume of ours.
    DeleteVolume {
        /// The golden.
        golden: GoldenName,
        /// The DataVolume's UID.
        uid: String,
    },
    /// Write our marks on a golden's DataVolume and PVC where they are missing, or say what the entry says no more.
    Mark {
        /// The golden.
        golden: GoldenName,
        /// The PVC's UID.
        claim_uid: String,
        /// The UID of the DataVolume that controls it, if there is one.
        volume_uid: Option<String>,
        /// What the entry may say otherwise at any time.
        said: Said,
    },
    /// Write our marks, and that Helm keeps it, on what is taken over as it is (R5).
    Adopt {
        /// The golden.
        golden: GoldenName,
        /// The PVC's UID.
        claim_uid: String,
        /// The DataVolume's UID, where there is one.
        volume_uid: Option<String>,
        /// What the entry may say otherwise at any time.
        said: Said,
    },
    /// Take off a golden's claim what asked for it to go while it had no image (R23).
    ForgetRequest {
        /// The golden.
        golden: GoldenName,
        /// The PVC's UID.
        claim_uid: String,
    },
    /// Ask upstream whether it serves other bytes now.
    CheckUpstream,
    /// Put our finalizer on the object, or take it off.
    Finalizer(bool),
    /// Take the annotation off the object that gets around who needs its goldens (R23).
    Disarm,
}

impl Action {
    /// The golden it is for, where one that fails must not keep other goldens waiting.
    pub fn golden(&self) -> Option<&GoldenName> {
        match self {
            Self::Serve { golden, .. }
            | Self::Refuse { golden, .. }
            | Self::WriteHeaders { golden, .. }
            | Self::DeleteHeaders { golden }
            | Self::DeleteVolume { golden, .. }
            | Self::Mark { golden, .. }
            | Self::ForgetRequest { golden, .. }
            | Self::Adopt { golden, .. } => Some(golden),
            Self::CreateVolume(order) => Some(&order.golden),
            Self::ResolveSchematic | Self::Fetch { .. } | Self::CancelFetch | Self::CheckUpstream | Self::Finalizer(_) | Self::Disarm => {
                None
            }
        }
    }
}

/// What the DataVolume is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportOrder {
    /// Its name.
    pub golden: GoldenName,
    /// The disk.
    pub disk: Digest,
    /// The golden that it is copied from; else it is imported from the spool.
    pub copies: Option<GoldenName>,
    /// The StorageClass.
    pub class: ClassName,
    /// The size asked of CDI, which adds its overhead on file systems.
    pub size: DiskSize,
    /// The volume mode.
    pub volume_mode: VolumeMode,
    /// The access modes.
    pub access_modes: Vec<String>,
    /// The image's identity.
    pub identity: Identity,
    /// The schematic's ID.
    pub schematic_id: Option<SchematicId>,
    /// The artifact's digest.
    pub artifact: Option<Digest>,
    /// What virtual machines get.
    pub defaults: VirtualMachineDefaults,
}

/// A decision in the making: the next status, the actions, and the earliest wake-up.
pub(super) struct Draft<'a> {
    pub observed: &'a Observed,
    pub settings: &'a Settings,
    pub image: &'a Image,
    pub now: Timestamp,
    pub status: GoldenImageStatus,
    pub schematic_id: Option<SchematicId>,
    pub identity: Option<Identity>,
    pub before: Vec<Action>,
    pub after: Vec<Action>,
    pub wake: Option<Timestamp>,
    pub wants: Wants,
    /// The imports under way, with those that this decision begins.
    pub begun: Vec<Begun>,
}

impl Draft<'_> {
    pub(super) fn now(&self) -> Time {
        whole_seconds(self.now)
    }

    pub(super) fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |earlier| earlier.min(at)));
    }

    /// The time on record before which nothing may be tried, where that is to come. One that lies further ahead than the
    /// longest wait that is ever written was written by a clock that was ahead, and is over.
    pub(super) fn not_before(&self, at: &Time, longest: Duration) -> Option<Timestamp> {
        (at.0 > self.now && at.0 <= after(self.now, longest + Duration::from_secs(1))).then_some(at.0)
    }

    /// What keeps the disk from being fetched, if anything does.
    pub(super) fn held_back(&self) -> Option<HeldBack> {
        HeldBack::of(self.image.suspend, &self.observed.ca, &self.observed.credentials.reference)
    }

    /// Whether the disk's digest may never change again: a golden was made from it.
    pub(super) fn frozen_disk(&self) -> Option<Digest> {
        self.status.frozen_disk()
    }
}

/// A time as the API keeps it; a fraction would make an equal status look different.
pub(super) fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// `at` plus `delay`, without overflow.
pub(super) fn after(at: Timestamp, delay: Duration) -> Timestamp {
    let seconds = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX / 4);
    Timestamp::from_second(at.as_second().saturating_add(seconds.saturating_add(i64::from(delay.subsec_nanos() > 0))))
        .unwrap_or(Timestamp::MAX)
}

/// Decides what is to be done for one image.
pub fn decide(observed: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    let mut decision = retire::decide(observed, now).unwrap_or_else(|| decide_unbounded(observed, settings, now));
    // On record before anything is made; and off, with which the object may be gone, when nothing is left to be done for it.
    decision.before.extend(retire::finalizer(&observed.retirement).into_iter().chain(retire::disarm(&observed.retirement)));
    bound(&mut decision.status);
    decision
}

/// The longest failure message in status, in characters; what others say (an upstream, CDI) may be of any length.
const LONGEST_MESSAGE: usize = 1024;

/// Cuts texts that come from outside to what the CRD takes: a status that the API server refuses would never be written.
fn bound(status: &mut GoldenImageStatus) {
    let cut = |text: &mut String| {
        if let Some((at, _)) = text.char_indices().nth(LONGEST_MESSAGE) {
            text.truncate(at);
            text.push('…');
        }
    };
    let failures = status.targets.iter_mut().filter_map(|target| target.last_failure.as_mut());
    failures.chain(status.fetch.iter_mut().filter_map(|fetch| fetch.last_failure.as_mut())).for_each(|failure| cut(&mut failure.message));
    let conditions = status.targets.iter_mut().flat_map(|target| &mut target.conditions).chain(&mut status.conditions);
    conditions.for_each(|condition| cut(&mut condition.message));
    if let Some(artifact) = &mut status.artifact {
        artifact.etag = artifact.etag.take().filter(|etag| etag.chars().count() <= 256);
    }
}

/// A retry annotation as it is put on record: any value may be set, so a long one is kept by its hash.
fn retry_mark(value: Option<&String>) -> Option<String> {
    value.map(|value| if value.len() <= 64 { value.clone() } else { Digest::of(value.as_bytes()).to_string() })
}

fn decide_unbounded(observed: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    let image = match &observed.image {
        Ok(image) => image,
        Err(errors) => return summary::not_accepted(observed, now, errors.reason(), &errors.to_string()),
    };
    let mut draft = begin(observed, settings, image, now);

    if let Some(first) = &observed.duplicate_of {
        let identity = draft.identity.as_ref().map_or("unknown", |identity| identity.as_str());
        return summary::not_accepted(
            observed,
            now,
            Reason::DuplicateIdentity,
            &duplicate_message(&observed.metadata.name, first, format_args!("identity {identity}")),
        );
    }

    if let Some(message) = access::held_back(image, settings.access_is_enforced) {
        // What is there already says at once whom it is for: its image may be gone before admission is there to hold clones to it.
        let mut held = summary::not_accepted(observed, now, Reason::AccessNotEnforced, &message);
        held.after.extend(target::marks_of_all(image, observed));
        return held;
    }

    let states = target::progress(&mut draft);
    let leaving = leaving::progress(&mut draft, &states);
    let fetch = fetch::progress(&mut draft, &states);
    summary::finish(draft, &states, &fetch, leaving)
}

fn begin<'a>(observed: &'a Observed, settings: &'a Settings, image: &'a Image, now: Timestamp) -> Draft<'a> {
    let mut status = observed.status.clone();
    let changed = status.observed_generation != observed.metadata.generation;
    status.observed_generation = observed.metadata.generation;

    // A changed spec, or the retry annotation with a new value, starts the counting over.
    if changed || status.observed_retry != retry_mark(observed.metadata.retry.as_ref()) {
        if let Some(fetch) = &mut status.fetch {
            fetch.attempts = 0;
            fetch.next_attempt_time = None;
            fetch.failing_since = None;
        }
        for target in &mut status.targets {
            target.attempts = 0;
            target.next_attempt_time = None;
        }
    }
    status.observed_retry = retry_mark(observed.metadata.retry.as_ref());

    if let super::FetchView::Schematic(id) = &observed.fetch {
        status.schematic_id = Some(id.to_string());
    }
    let given = match &image.source {
        crate::model::Source::TalosFactory(talos) => talos.schematic.id().cloned(),
        _ => None,
    };
    let schematic_id = given.or_else(|| status.resolved_schematic());
    status.schematic_id = schematic_id.as_ref().map(ToString::to_string);
    let identity = image.identity(schematic_id.as_ref());
    status.identity = identity.as_ref().map(ToString::to_string);
    let os = &image.operating_system;
    status.operating_system = (*os != crate::model::OperatingSystemFacts::default()).then(|| OperatingSystemStatus {
        family: os.family.clone(),
        name: os.name.clone(),
        version: os.version.clone(),
        kubernetes_version: os.kubernetes_version.as_ref().map(ToString::to_string),
    });
    let defaults = free::defaults_to_record(image, observed);
    status.defaults = (!defaults.is_empty()).then(|| defaults.into());
    Draft {
        observed,
        settings,
        image,
        now,
        status,
        schematic_id,
        identity,
        before: Vec::new(),
        after: Vec::new(),
        wake: None,
        wants: Wants::default(),
        begun: observed.begun.clone(),
    }
}

/// What the API server refuses to have written on the object itself, and nothing waits for (R10), and what it refuses the fence (R23).
pub(super) fn refused_condition(observed: &Observed) -> Option<(crate::api::ConditionType, Reason, String)> {
    // Of the object itself only the finalizer is written besides the status.
    let finalizer = observed.refused.as_ref().filter(|_| retire::finalizer(&observed.retirement).is_some()).map(|(reason, message)| {
        let meaning = match observed.retirement.is_deleted {
            true => "The object stays until then.",
            false => "If the object is deleted before, its goldens stay.",
        };
        (*reason, format!("{message} {meaning}"))
    });
    let fence = observed.retirement.trouble.clone().map(|trouble| (Reason::CannotRetire, trouble));
    let (reason, message) = match (finalizer, fence) {
        (Some((reason, finalizer)), Some((_, fence))) => (reason, format!("{finalizer} {fence}")),
        (one, other) => one.or(other)?,
    };
    Some((crate::api::ConditionType::WriteRefused, reason, message))
}

/// The conditions that follow from the list in values (R4, R24).
pub(super) fn listing_condition(listing: &Listing) -> Option<(crate::api::ConditionType, Reason, String)> {
    match listing {
        Listing::Edited(message) => Some((crate::api::ConditionType::EntryEdited, Reason::EntryEdited, message.clone())),
        Listing::Unlisted => Some((
            crate::api::ConditionType::Unlisted,
            Reason::Unlisted,
            "The entry is no longer in values. The image and its goldens stay as they are; delete this object when nothing needs them."
                .to_owned(),
        )),
        Listing::ByHand | Listing::Listed => None,
    }
}
