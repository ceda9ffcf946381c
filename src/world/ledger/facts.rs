use std::fmt;

use crate::rules::{consumers::Evidence, copied::CopyCause, pool::PoolClue};

/// The kinds that are watched for the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// CDI's DataVolumes.
    DataVolume,
    /// PersistentVolumeClaims.
    Claim,
    /// VolumeSnapshots.
    Snapshot,
    /// KubeVirt's VirtualMachines.
    VirtualMachine,
    /// KubevirtMachineTemplates.
    MachineTemplate,
    /// Cluster API's MachineDeployments.
    MachineDeployment,
    /// Cluster API's MachineSets.
    MachineSet,
    /// CDI's VolumeCloneSources.
    CloneSource,
    /// CDI's DataSources.
    DataSource,
    /// Cozystack's WorkerClasses.
    WorkerClass,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::DataVolume,
        Self::Claim,
        Self::Snapshot,
        Self::VirtualMachine,
        Self::MachineTemplate,
        Self::MachineDeployment,
        Self::MachineSet,
        Self::CloneSource,
        Self::DataSource,
        Self::WorkerClass,
    ];

    /// Kubernetes' name of the kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DataVolume => "DataVolume",
            Self::Claim => "PersistentVolumeClaim",
            Self::Snapshot => "VolumeSnapshot",
            Self::VirtualMachine => "VirtualMachine",
            Self::MachineTemplate => "KubevirtMachineTemplate",
            Self::MachineDeployment => "MachineDeployment",
            Self::MachineSet => "MachineSet",
            Self::CloneSource => "VolumeCloneSource",
            Self::DataSource => "DataSource",
            Self::WorkerClass => "WorkerClass",
        }
    }
}

impl Kind {
    /// What the kind's watch in all namespaces is called, beside the catalog namespace's own watches of two kinds.
    pub const fn everywhere(self) -> &'static str {
        match self {
            Self::DataVolume => "consumer DataVolume",
            Self::Claim => "consumer PersistentVolumeClaim",
            other => other.as_str(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an object refers to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A claim in the catalog namespace.
    Claim(String),
    /// A VolumeSnapshot in the catalog namespace.
    Snapshot(String),
    /// A VolumeCloneSource in the catalog namespace.
    CloneSource(String),
    /// A DataSource anywhere.
    DataSource {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// An image by its identity.
    Identity(String),
    /// A machine template, which a MachineDeployment or MachineSet holds.
    Template {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Nobody can say: it may be any golden or, of a MachineDeployment or MachineSet, any machine template.
    Anything,
}

/// One reference of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// To what.
    pub target: Target,
    /// What says so.
    pub evidence: Evidence,
}

/// How far a disk is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskProgress {
    /// Of a DataVolume: CDI is done with it.
    pub has_ended: bool,
    /// Of a DataVolume that CDI filled: when that ended, in seconds since 1970.
    pub filled: Option<i64>,
    /// Of a claim: it is bound.
    pub is_bound: bool,
    /// Of a claim: its volume is lost.
    pub is_lost: bool,
    /// Of a DataVolume: CDI waits for a pod or a person. Of a claim: no node is chosen for it, which is what it waits for where its class binds with its first consumer.
    pub waits: bool,
    /// Of a DataVolume: CDI is told that its disk is there, so it begins no clone for it, and its clone was not judged when it came so.
    pub is_prepopulated: bool,
    /// Why CDI copied the content over the network, where it did.
    pub copied: Option<CopyCause>,
}

/// What the ledger keeps of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its UID where it is a UUID, as Kubernetes' are.
    pub uid: Option<u128>,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// Whether it is being deleted.
    pub is_terminating: bool,
    /// What it refers to.
    pub references: Vec<Reference>,
    /// Where its pool is to be found.
    pub pool: PoolClue,
    /// How far it is, where it is a disk.
    pub progress: DiskProgress,
    /// Its mark with the golden's name.
    pub golden_mark: Option<String>,
    /// Its pool mark, as written.
    pub pool_mark: Option<String>,
    /// A claim's class; of a machine template the stated class of the disk, else the recorded one.
    pub class: Option<String>,
    /// Whether a machine template's class is neither stated nor recorded while its disk clones a golden (R15).
    pub lacks_class: bool,
    /// The driver that made a claim's volume.
    pub driver: Option<String>,
    /// Whether a claim's volume is a block device.
    pub is_block: bool,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            uid: None,
            created: 0,
            is_terminating: false,
            references: Vec::new(),
            pool: PoolClue::Nothing,
            progress: DiskProgress::default(),
            golden_mark: None,
            pool_mark: None,
            class: None,
            lacks_class: false,
            driver: None,
            is_block: false,
        }
    }
}

/// A UID as a number; `None` for a text that is no UUID.
pub fn parse_uid(uid: &str) -> Option<u128> {
    let is_uuid = uid.len() == 36 && uid.bytes().enumerate().all(|(i, c)| (c == b'-') == matches!(i, 8 | 13 | 18 | 23));
    let hex: String = uid.chars().filter(|c| *c != '-').collect();
    if is_uuid && hex.bytes().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()) {
        u128::from_str_radix(&hex, 16).ok()
    } else {
        None
    }
}

/// The UID with this number, as Kubernetes writes it.
pub fn format_uid(uid: u128) -> String {
    let hex = format!("{uid:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_read_back() {
        let uid = "0d2e6a1b-4c5f-4e1a-9b7c-00112233aabb";
        assert_eq!(parse_uid(uid).map(format_uid).as_deref(), Some(uid));
        for odd in [
            "",
            "uid-1",
            "0D2E6A1B-4C5F-4E1A-9B7C-00112233AABB",
            "0d2e6a1b4c5f4e1a9b7c00112233aabb",
            "0d2e6a1b-4c5f-4e1a-9b7c-00112233aabg",
        ] {
            assert_eq!(parse_uid(odd), None, "{odd}");
        }
    }

    #[test]
    fn kinds_are_numbered_in_order() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
        }
    }
}
