//! Everything a decision is made from, as plain data.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::{
    api::{FieldErrors, GoldenImageStatus},
    catalog::Listing,
    model::{ClassName, ContainerFacts, Digest, DiskSize, GoldenName, Image},
    rules::{
        CdiCondition, ImporterFacts, Reason, Told,
        adopt::Stranger,
        marks::Marks,
        modes::ClaimProperties,
        provenance::{ClaimSays, Provenance, VolumeSays, provenance},
        quota::{Begun, Quota},
        size::Overheads,
    },
};

/// What bounds an image's life; the defaults are those of the chart's README.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How many fetches may fail before the image counts as terminally failed.
    pub fetch_attempts: i32,
    /// How long to wait before asking again for a file that is not there or not allowed.
    pub not_found_interval: Duration,
    /// How long one of those reasons may last before the image counts as terminally failed.
    pub patience: Duration,
    /// The shortest and longest delay between attempts.
    pub backoff: (Duration, Duration),
    /// How long to wait before trying again what cannot succeed without a change: the slow retry that heals it by itself.
    pub terminal_interval: Duration,
    /// How often an import is begun anew before the target counts as terminally failed.
    pub import_attempts: i32,
    /// How long an import may make no progress.
    pub import_deadline: Duration,
    /// How long an import may make no progress before what passes by itself in every import is told as trouble.
    pub import_quiet: Duration,
    /// How often upstream is asked whether it serves other bytes now (R6).
    pub upstream_check: Duration,
    /// R17: provisioners whose volumes live on one node.
    pub node_local_provisioners: Vec<String>,
    /// Whether clone admission holds clones to `access` (R18). Until it does, nothing is made for selected namespaces.
    pub access_is_enforced: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            fetch_attempts: 10,
            not_found_interval: Duration::from_secs(15 * 60),
            patience: Reason::PATIENCE,
            backoff: (Duration::from_secs(10), Duration::from_secs(600)),
            terminal_interval: Duration::from_secs(6 * 3600),
            import_attempts: 5,
            import_deadline: Duration::from_secs(15 * 60),
            import_quiet: Duration::from_secs(60),
            upstream_check: Duration::from_secs(24 * 3600),
            node_local_provisioners: crate::rules::capability::NODE_LOCAL_PROVISIONERS.map(str::to_owned).to_vec(),
            access_is_enforced: false,
        }
    }
}

/// One GoldenImage and all that its next step depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// The object's own data.
    pub metadata: Metadata,
    /// The parsed spec, or what is wrong with it.
    pub image: Result<Image, FieldErrors>,
    /// The status as last written.
    pub status: GoldenImageStatus,
    /// How the object stands to the list in values.
    pub listing: Listing,
    /// R3: an older image of the same identity.
    pub duplicate_of: Option<String>,
    /// The ConfigMap with the CA, if the spec names one.
    pub ca: Reference,
    /// The Secret with the credentials, if the spec names one.
    pub credentials: CredentialsView,
    /// Whether the cluster has CDI.
    pub cdi_installed: bool,
    /// The verified disk in the spool, if it holds this image's.
    pub spooled: Option<SpooledView>,
    /// What the fetch of this image is doing in this process.
    pub fetch: FetchView,
    /// The size of the disk that is being fetched, as this process saw it at the beginning of the bytes.
    pub coming_size: Option<DiskSize>,
    /// Why that fetch stands still, where the spool's volume does not answer.
    pub hung: Option<String>,
    /// Upstream's answer to the last check for other bytes, if this process has made one.
    pub upstream: Option<UpstreamView>,
    /// One item per target of the spec, in its order.
    pub targets: Vec<ObservedTarget>,
    /// The goldens on record that no target of the spec is for any more (R23).
    pub leaving: Vec<super::Leaving>,
    /// Who uses the image.
    pub usage: super::UsageView,
    /// What may be started now (R11).
    pub permits: Permits,
    /// The imports under way, of this image and of all others, where a quota of the catalog namespace bounds them (R10).
    pub begun: Vec<Begun>,
    /// Whether its goldens are to go (R23).
    pub retirement: super::Retirement,
    /// Why the API server, when last asked, did not take a write on the object itself (R10).
    pub refused: Option<(Reason, String)>,
}

/// The object's own data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The object's name.
    pub name: String,
    /// The object's UID.
    pub uid: String,
    /// The spec's generation.
    pub generation: Option<i64>,
    /// The value of the annotation that asks for a new start.
    pub retry: Option<String>,
}

/// The Secret with an image's credentials, without anything of what it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CredentialsView {
    /// Whether it is there.
    pub reference: Reference,
    /// Its version; another one may hold other credentials.
    pub version: Option<String>,
}

/// An object that the spec names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Reference {
    /// None is named.
    #[default]
    NotNamed,
    /// It is there.
    Found,
    /// It, or the key in it, is missing; the text names it.
    Missing(String),
}

/// R11: what may be started now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permits {
    /// A fetch slot is held for this image.
    pub fetch: bool,
    /// How many imports may begin beside those that run.
    pub imports: usize,
}

/// A verified disk in the spool.
#[derive(Debug, Clone, PartialEq)]
pub struct SpooledView {
    /// The sha256 of the bytes as downloaded.
    pub artifact_digest: Digest,
    /// How many bytes were downloaded.
    pub artifact_size: u64,
    /// The format that was found, such as `raw.xz`.
    pub format: String,
    /// The URL after redirects, without credentials and query.
    pub resolved_url: Option<String>,
    /// The ETag that came with the bytes.
    pub etag: Option<String>,
    /// When upstream answered.
    pub resolved_time: Option<Timestamp>,
    /// The sha256 of the qcow2 that importers are given.
    pub disk_digest: Digest,
    /// The size of the disk as a guest sees it.
    pub virtual_size: DiskSize,
    /// Whether the bytes matched a digest known beforehand.
    pub digest_matched: bool,
    /// For a disk out of a container image, which parts of it.
    pub container: Option<ContainerFacts>,
}

/// What a fetch is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum FetchView {
    /// Nothing, in this process.
    Idle,
    /// Under way.
    Running {
        /// Percent of the artifact, if its length is known.
        percent: Option<u8>,
    },
    /// The factory gave a schematic its ID.
    Schematic(crate::model::SchematicId),
    /// Ended without a disk.
    Failed {
        /// Why.
        reason: Reason,
        /// What happened, without the remedy.
        message: String,
        /// When upstream wants to be asked again.
        retry_after: Option<Duration>,
    },
}

/// Why a disk that the spool lacks is not fetched before something changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldBack {
    /// The image is suspended.
    Suspended,
    /// What the spec names for the fetch is missing; the text names it.
    Missing(String),
}

impl HeldBack {
    /// What keeps an image's disk from being fetched, if anything does.
    pub fn of(suspend: bool, ca: &Reference, credentials: &Reference) -> Option<Self> {
        let missing = [ca, credentials].into_iter().find_map(|named| match named {
            Reference::Missing(what) => Some(Self::Missing(what.clone())),
            Reference::NotNamed | Reference::Found => None,
        });
        if suspend { Some(Self::Suspended) } else { missing }
    }
}

impl Observed {
    /// Its goldens, and those whose target was taken out.
    pub fn views(&self) -> impl Iterator<Item = &ObservedTarget> {
        self.targets.iter().chain(self.leaving.iter().map(|leaving| &leaving.target))
    }
}

impl DataVolumeView {
    /// Whether its importer can get nothing because the spool has not got the disk, which is being fetched or waits for its turn to be.
    /// `comes_later` is whether it is not fetched before something changes, or before its time: an import that nothing comes for ends some time.
    pub fn waits_for_the_spool(&self, spooled: Option<&SpooledView>, fetch: &FetchView, comes_later: bool) -> bool {
        let wanted = self.disk_digest.as_ref().filter(|_| self.copies.is_none() && self.phase != "Succeeded");
        let has_it = spooled.map(|spooled| spooled.disk_digest.to_string());
        // Another disk in the spool is upstream's answer: only one that is being fetched now is waited for beside it.
        let may_come = matches!(fetch, FetchView::Running { .. }) || has_it.is_none() && !comes_later;
        wanted.is_some() && wanted != has_it.as_ref() && may_come && !matches!(fetch, FetchView::Failed { .. })
    }
}

/// What upstream says it serves now.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamView {
    /// When it was asked.
    pub checked: Timestamp,
    /// What differs from what was imported, in words.
    pub difference: Option<String>,
}

impl UpstreamView {
    /// Being asked `now`. Until upstream has answered, what was known before stands; and a process that has not asked yet knows what is
    /// on record.
    pub fn asked(before: Option<&Self>, recorded: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition], now: Timestamp) -> Self {
        let recorded = || {
            let known = crate::api::find_condition(recorded, crate::api::ConditionType::UpstreamChanged)?;
            Some(Reason::UpstreamChanged.without_remedy(&known.message).to_owned())
        };
        Self { checked: now, difference: before.map_or_else(recorded, |before| before.difference.clone()) }
    }
}

/// One target of the spec, with what the cluster says about it.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedTarget {
    /// The golden's name, recorded or as it will be; `None` while it is not known.
    pub name: Option<GoldenName>,
    /// Another image that has a golden of this name, or was there before and wants it.
    pub taken_by: Option<String>,
    /// The StorageClass it would have or has.
    pub class: ClassChoice,
    /// Its golden.
    pub golden: GoldenView,
    /// ResourceQuotas that making it would count against.
    pub quotas: Vec<Quota>,
}

/// The StorageClass of a target.
#[derive(Debug, Clone, PartialEq)]
pub enum ClassChoice {
    /// It is there.
    Found(ClassFound),
    /// R12: none is named and the cluster has no default.
    NoDefault,
    /// The named class does not exist.
    Missing(ClassName),
}

/// A StorageClass with what follows for a golden in it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassFound {
    /// Its name.
    pub name: ClassName,
    /// Its provisioner.
    pub provisioner: String,
    /// How volumes of the class can be claimed, best first, from its StorageProfile.
    pub properties: Vec<ClaimProperties>,
    /// The smallest volume that it makes.
    pub minimum: Option<DiskSize>,
    /// How much of a volume a file system takes.
    pub overheads: Overheads,
    /// The class of CDI's scratch space for a golden in it.
    pub scratch_class: String,
    /// What a hoster should know of this class before the first clone.
    pub warnings: Vec<String>,
    /// Another default class than the one this target was resolved to, in words.
    pub drift: Option<String>,
}

/// A golden's objects.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GoldenView {
    /// The DataVolume of the golden's name.
    pub volume: Option<DataVolumeView>,
    /// The PVC of the golden's name.
    pub claim: Option<ClaimView>,
    /// What is to be read of it where it may be taken over (R5).
    pub stranger: Option<Stranger>,
    /// Pods that use the PVC read-write, in words (R26).
    pub in_use: Option<String>,
    /// The newest Warning about what CDI made to fill it.
    pub told: Option<Told>,
    /// What the spool saw of the importer.
    pub importer: ImporterFacts,
    /// Whether an importer is being given the disk, or asked for it lately: it has all that it needs for that.
    pub is_pulling: bool,
    /// Whether the importer of this attempt has the whole disk: what is left is CDI's to convert and write.
    pub is_downloaded: bool,
    /// What the spool answers to whoever asks for this golden.
    pub grant: GrantView,
    /// The path at which the spool serves the disk that the DataVolume was made for.
    pub path: Option<String>,
    /// When the import last moved, by this process's clock; time that passed before it is in it as far as that is on record.
    pub moved: Option<Timestamp>,
    /// The attempt, restart count and stretch without a move for which the header Secret was last written by this process.
    pub headers_written: Option<(i32, i64, u64)>,
    /// Trouble that pods, quota or CDI's settings explain better than the DataVolume does.
    pub trouble: Option<(Reason, String)>,
    /// Why the API server, when last asked, did not take an object that this golden needs (R10).
    pub refused: Option<(Reason, String)>,
    /// Why the API server, when last asked, did not let the header Secret go.
    pub undeleted: Option<(Reason, String)>,
}

/// A DataVolume.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DataVolumeView {
    /// Its UID.
    pub uid: String,
    /// Whether it carries our mark for this image.
    pub ours: bool,
    /// What it clones or imports, in words, for a conflict's message.
    pub source: String,
    /// The golden of the catalog namespace that it copies.
    pub copies: Option<String>,
    /// The digest of the disk it was made for.
    pub disk_digest: Option<String>,
    /// The path it pulls from, where that is one of a spool.
    pub path: Option<String>,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// When it was created; `None` where only our own write says that it is there.
    pub created: Option<Timestamp>,
    /// CDI's phase.
    pub phase: String,
    /// Percent.
    pub percent: Option<u8>,
    /// How often the importer was restarted.
    pub restarts: i64,
    /// The condition `Bound`.
    pub bound: CdiCondition,
    /// The condition `Running`.
    pub running: CdiCondition,
    /// Who may clone it, as it says.
    pub access: Option<String>,
    /// What else it says that its entry may say otherwise at any time (`rules::marks::free`).
    pub free: Marks,
    /// The restore that brought it back, where the tool says so.
    pub restored_by: Option<String>,
    /// Whether it is to take a PersistentVolume that was there before.
    pub takes_what_is_there: bool,
}

/// A PVC.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimView {
    /// Its UID.
    pub uid: String,
    /// Whether it carries our mark for this image.
    pub ours: bool,
    /// The UID of the object that controls it, for a golden its DataVolume.
    pub controller: Option<String>,
    /// The UID of the DataVolume that CDI made it for, as CDI wrote it then: a claim that a restore brought back still names the former one.
    pub made_for: Option<String>,
    /// The UID of the claim that CDI's populators filled, as they wrote it then.
    pub filled_as: Option<String>,
    /// Whether somebody told CDI that it is filled already, as backup tools do.
    pub said_filled: bool,
    /// The restore that brought it back, where the tool says so.
    pub restored_by: Option<String>,
    /// Whether its volume was made from a snapshot.
    pub from_snapshot: bool,
    /// The annotation by which it is, or was, taken over as it is.
    pub adopt: Option<String>,
    /// Whether it says that it is to go, as is asked of a golden that no image has, or that it goes by force when it goes.
    pub is_asked_to_go: bool,
    /// Whether it is Bound.
    pub bound: bool,
    /// Whether it is Lost.
    pub lost: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Its StorageClass.
    pub class: Option<String>,
    /// Who was asked for its volume, where Kubernetes wrote that.
    pub provisioner: Option<String>,
    /// Its volume mode.
    pub volume_mode: Option<String>,
    /// Its access modes.
    pub access_modes: Vec<String>,
    /// The digest of the download that it says it was made from.
    pub artifact_digest: Option<String>,
    /// The digest of the disk that it says it holds.
    pub disk_digest: Option<String>,
    /// Its request.
    pub request: Option<DiskSize>,
    /// Whether CDI's former garbage collection took its DataVolume away.
    pub garbage_collected: bool,
    /// Who may clone it, as it says.
    pub access: Option<String>,
    /// What else it says that its entry may say otherwise at any time (`rules::marks::free`).
    pub free: Marks,
}

impl ClaimView {
    /// Whether it was filled here (R7), as it and the DataVolume of its name say.
    pub fn provenance(&self, volume: Option<&DataVolumeView>) -> Provenance {
        let claim = ClaimSays {
            uid: &self.uid,
            made_for: self.made_for.as_deref(),
            filled_as: self.filled_as.as_deref(),
            said_filled: self.said_filled,
            restored_by: self.restored_by.as_deref(),
            from_snapshot: self.from_snapshot,
            adopt: self.adopt.as_deref(),
            controller: self.controller.as_deref(),
        };
        let volume = volume.map(|volume| VolumeSays {
            uid: &volume.uid,
            restored_by: volume.restored_by.as_deref(),
            takes_what_is_there: volume.takes_what_is_there,
            is_copy: volume.copies.is_some(),
        });
        provenance(claim, volume)
    }

    /// How it is seen that a restore brought it back, beside this DataVolume. One that yet another DataVolume controls is about to be collected.
    pub fn brought_back(&self, volume: &DataVolumeView) -> Option<String> {
        match self.provenance(Some(volume)) {
            Provenance::BroughtBack(why) if self.controller.as_ref().is_none_or(|uid| *uid == volume.uid) => Some(why),
            _ => None,
        }
    }

    /// Whether the DataVolume of its name speaks for it. One that somebody made anew beside it does not control it: CDI does not ask that, and nor do we.
    pub fn heeds(&self, volume: &DataVolumeView) -> bool {
        let is_of_another = || matches!(self.provenance(Some(volume)), Provenance::BroughtBack(_));
        self.controller.as_ref().map_or_else(|| !is_of_another(), |uid| *uid == volume.uid)
    }

    /// Whether it can be cloned, as it and the DataVolume of its name say, where that speaks for it.
    pub fn is_whole(&self, volume: Option<&DataVolumeView>) -> bool {
        let volume = volume.filter(|volume| self.heeds(volume));
        let is_done = volume.is_none_or(|volume| volume.phase == "Succeeded" && !volume.terminating);
        self.bound && !self.lost && !self.terminating && is_done
    }

    /// Whether the leader, or a person, wrote on it that this very claim is taken over as it is.
    pub fn is_taken_over(&self) -> bool {
        self.adopt.as_ref() == Some(&self.uid)
    }
}

/// What the spool answers to whoever asks for a golden.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum GrantView {
    /// 404.
    #[default]
    None,
    /// The disk, or, while it is being fetched, nothing yet.
    Serving {
        /// The disk.
        disk: Digest,
        /// Whether the spool has it.
        ready: bool,
    },
    /// 410.
    Refused,
}
