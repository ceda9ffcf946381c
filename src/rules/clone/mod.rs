//! The verdict on one clone of a golden (R13–R18, R21, R23): what is asked, what is known, what is decided.
//!
//! Whoever asks (admission, `explain`, the leader) gathers the facts; nothing here looks anything up. A fact that cannot be had is [`Unknown`] and never reads as "none": it makes no verdict rather than a wrong one.

mod judge;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{
    Reason,
    class::{Classes, Shape, StatedClass},
    freeze::PoolClass,
    modes::ClaimProperties,
    pool::Pool,
    size::{Overheads, VolumeMode},
};
use crate::model::DiskSize;

pub use super::fence::Fence;
pub use judge::{asks_of_pool, judge, suspended_message};

/// A fact that cannot be had now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unknown(pub String);

/// A fact, or why it cannot be had.
pub type Known<T> = Result<T, Unknown>;

/// The kind of object that asks for a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectKind {
    /// A DataVolume: a disk, completed at admission.
    DataVolume,
    /// A claim: a disk, completed at admission.
    Claim,
    /// A disk of a VirtualMachine's templates; stays as written.
    VirtualMachine,
    /// A disk of a KubevirtMachineTemplate; stays as written.
    MachineTemplate,
    /// A DataSource outside the catalog that points into it; clones nothing by itself.
    DataSource,
}

impl SubjectKind {
    /// Kubernetes' name of the kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DataVolume => "DataVolume",
            Self::Claim => "PersistentVolumeClaim",
            Self::VirtualMachine => "VirtualMachine",
            Self::MachineTemplate => "KubevirtMachineTemplate",
            Self::DataSource => "DataSource",
        }
    }

    /// Whether the object is a disk, which leaves admission with class and marks (R21).
    pub const fn is_disk(self) -> bool {
        matches!(self, Self::DataVolume | Self::Claim)
    }
}

/// The object that asks for a clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Its kind.
    pub kind: SubjectKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name, or its `generateName` with a `*`.
    pub name: String,
    /// Which of its disks, where it has several.
    pub disk: Option<String>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(disk) = &self.disk {
            write!(f, "disk {disk:?} of ")?;
        }
        write!(f, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

/// What is cloned, in the catalog namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A claim.
    Claim(String),
    /// A VolumeSnapshot.
    Snapshot(String),
}

impl Source {
    /// The name of the claim or snapshot.
    pub fn name(&self) -> &str {
        let (Self::Claim(name) | Self::Snapshot(name)) = self;
        name
    }
}

/// A size as an object states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatedSize {
    /// None: CDI takes the golden's.
    Absent,
    /// This many bytes.
    Bytes(DiskSize),
    /// Zero, negative, or no quantity at all; as written.
    Unreadable(String),
}

/// One clone that is asked for. Two requests are equal if nothing relevant differs, so an UPDATE is judged by those that its old object did not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneRequest {
    /// Who asks.
    pub subject: Subject,
    /// What is cloned; a chain of DataSources is followed before.
    pub source: Source,
    /// The DataSource through which it is named, as `namespace/name`.
    pub through: Option<String>,
    /// Who completes the claim.
    pub shape: Shape,
    /// The class it states.
    pub class: StatedClass,
    /// The size it states.
    pub size: StatedSize,
    /// The volume mode it states.
    pub volume_mode: Option<VolumeMode>,
    /// The content it states (`spec.contentType`), where that is no disk.
    pub content_type: Option<String>,
    /// The access modes it states.
    pub access_modes: Vec<String>,
    /// The annotations on the disk that CDI or this catalog reads.
    pub annotations: BTreeMap<String, String>,
    /// Who it belongs to.
    pub pool: Pool,
}

/// The volume that is cloned, frozen in its target or read from its claim; `None` where it is not known yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceVolume {
    /// Its class.
    pub class: Option<String>,
    /// The size its claim asks for; of a snapshot its restore size.
    pub request: Option<DiskSize>,
    /// What it really holds.
    pub capacity: Option<DiskSize>,
    /// Its mode.
    pub volume_mode: Option<VolumeMode>,
}

/// What stands under the name that is cloned.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceFacts {
    /// A golden, made or still to be made.
    Golden(GoldenFacts),
    /// A claim or snapshot without our mark: a hoster's hand-made image.
    Unmarked {
        /// Its volume.
        volume: SourceVolume,
        /// Whether it has been filled.
        is_populated: bool,
    },
    /// Something CDI made for another object.
    Temporary,
    /// Nothing, and no GoldenImage makes it.
    Missing,
}

/// How far a golden is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// It can be cloned.
    Ready,
    /// It will be: CDI waits with the clone.
    Pending(String),
    /// It will be, and nobody works on it before its GoldenImage is suspended no more.
    Suspended,
    /// It will not be without somebody's doing.
    Failed {
        /// The reason shown on it.
        reason: Reason,
        /// What happened.
        message: String,
    },
    /// It is being deleted.
    Terminating,
}

/// Who may clone a golden (R18).
#[derive(Debug, Clone, PartialEq)]
pub enum Access {
    /// Every tenant.
    AllTenants,
    /// Namespaces whose labels match. An absent selector matches none.
    Selected(Option<LabelSelector>),
}

impl From<&crate::model::Access> for Access {
    fn from(access: &crate::model::Access) -> Self {
        match access {
            crate::model::Access::AllTenants => Self::AllTenants,
            crate::model::Access::Selected(selector) => Self::Selected(Some(selector.written().clone())),
        }
    }
}

impl Access {
    /// Who may clone a golden whose GoldenImage is gone: whom it was for last, by its annotation `access`.
    pub fn of_mark(written: Option<&str>) -> Self {
        crate::model::Access::read(written).map_or(Self::Selected(None), |access| Self::from(&access))
    }
}

/// A golden of one class of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The golden's name.
    pub golden: String,
    /// Its class, where it is known.
    pub class: Option<String>,
}

/// A golden, as far as a verdict reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct GoldenFacts {
    /// Its name: the claim's, also where a snapshot of it is cloned.
    pub name: String,
    /// The GoldenImage, or `None` where there is none any more (R24).
    pub image: Option<String>,
    /// Who may clone it.
    pub access: Access,
    /// How far it is.
    pub progress: Progress,
    /// Its volume.
    pub volume: SourceVolume,
    /// Its fence.
    pub fence: Fence,
    /// All goldens of the image.
    pub targets: Vec<Target>,
}

/// What CDI knows about a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Ways to claim it, best first.
    pub properties: Vec<ClaimProperties>,
    /// No claim of it is smaller.
    pub minimum: Option<DiskSize>,
}

/// What is known of the pool that asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolFacts {
    /// Its frozen class (R15).
    pub class: Option<PoolClass>,
    /// Whether it already uses this golden, so that a fence lets it go on (R23).
    pub uses_golden: bool,
}

/// Everything a verdict depends on.
#[derive(Debug, Clone)]
pub struct Situation<'a> {
    /// The catalog namespace, for messages.
    pub catalog_namespace: &'a str,
    /// What stands under the cloned name.
    pub source: Known<SourceFacts>,
    /// The cluster's StorageClasses.
    pub classes: Known<&'a Classes>,
    /// StorageProfiles by class; empty where CDI has none.
    pub profiles: Known<&'a BTreeMap<String, Profile>>,
    /// File system overheads.
    pub overheads: &'a Overheads,
    /// What is known of the pool.
    pub pool: Known<PoolFacts>,
    /// The labels of the namespace that asks.
    pub namespace_labels: Known<&'a BTreeMap<String, String>>,
    /// Provisioners whose volumes live on one node.
    pub node_local: &'a [String],
}

/// A rule that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The golden is missing, failed or going.
    R13,
    /// Another class.
    R14,
    /// Size, modes, forced copies.
    R16,
    /// Not for this namespace.
    R18,
    /// The golden is to go.
    R23,
}

impl Rule {
    /// Every rule that a clone can break.
    pub const ALL: [Self; 5] = [Self::R13, Self::R14, Self::R16, Self::R18, Self::R23];

    /// Its number.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::R13 => "R13",
            Self::R14 => "R14",
            Self::R16 => "R16",
            Self::R18 => "R18",
            Self::R23 => "R23",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Disk, golden, both values and what to do.
    pub message: String,
}

/// What is written onto an admitted disk (R21); the source never is, because CDI's clone token names it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Patch {
    /// The class, where it is settled.
    pub class: Option<String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// What is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It names nothing in the catalog.
    NotOurs,
    /// It may be.
    Allow {
        /// To be written onto the disk; empty for templates, whose `class` is what the leader records (R15).
        patch: Patch,
        /// Told to whoever asks.
        warnings: Vec<String>,
    },
    /// It may not be.
    Refuse(Vec<Violation>),
    /// It cannot be said now; never an answer to a user's "may I".
    Unknown(Vec<Unknown>),
}

impl Verdict {
    /// The verdict on an object with several disks: one refusal refuses all, with every violation; else one unknown makes all unknown.
    pub fn all(verdicts: impl IntoIterator<Item = Self>) -> Self {
        let mut result = Self::NotOurs;
        for verdict in verdicts {
            result = match (result, verdict) {
                (Self::NotOurs, other) | (other, Self::NotOurs) => other,
                (Self::Refuse(mut violations), Self::Refuse(more)) => {
                    violations.extend(more);
                    Self::Refuse(violations)
                }
                (refusal @ Self::Refuse(_), _) | (_, refusal @ Self::Refuse(_)) => refusal,
                (Self::Unknown(mut facts), Self::Unknown(more)) => {
                    facts.extend(more);
                    Self::Unknown(facts)
                }
                (unknown @ Self::Unknown(_), _) | (_, unknown @ Self::Unknown(_)) => unknown,
                (Self::Allow { patch, mut warnings }, Self::Allow { warnings: more, .. }) => {
                    warnings.extend(more);
                    Self::Allow { patch, warnings }
                }
            };
        }
        result
    }

    /// The text of a refusal or of an unknown; `None` for the others.
    pub fn message(&self) -> Option<String> {
        let join = |parts: Vec<String>| parts.join("; ");
        match self {
            Self::NotOurs | Self::Allow { .. } => None,
            Self::Refuse(violations) => Some(join(violations.iter().map(|v| format!("{} ({})", v.message, v.rule)).collect())),
            Self::Unknown(facts) => Some(format!("no verdict yet, try again: {}", join(facts.iter().map(ToString::to_string).collect()))),
        }
    }
}
