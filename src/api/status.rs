//! What the daemon writes. Absent means not known yet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{
    conditions::{ConditionType, find_condition},
    spec::VirtualMachineDefaultsSpec,
};
use crate::{
    model::{Image, SchematicId},
    rules::{Freeze, Reason},
};

/// What the daemon knows of an image.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GoldenImageStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The value of the annotation `kubernetes-worker-image.cozystack.io/retry` that was acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub observed_retry: Option<String>,

    /// What the image is whatever its name: 40 hex characters. Two images of one identity are one image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub identity: Option<String>,

    /// The schematic's ID, as given or as the factory answered.
    #[serde(default, rename = "schematicID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub schematic_id: Option<String>,

    /// What is on the disk, as given or as it follows from the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_system: Option<OperatingSystemStatus>,

    /// The bytes that upstream served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactStatus>,

    /// What virtual machines of this image get whose users choose nothing: as the spec says, and for the rest as the container disk does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults: Option<VirtualMachineDefaultsSpec>,

    /// The disk that importers are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskStatus>,

    /// How fetching goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<FetchStatus>,

    /// One item per golden: those of the spec's targets in their order, then those whose target was taken out, until they are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub targets: Vec<TargetStatus>,

    /// Who uses the image, in numbers; `golden-catalog consumers NAME` tells who. Written at most once a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumers: Option<ConsumersStatus>,

    /// The state of the image. `Ready` is True when every target can be cloned, `Available` when one can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_string()]))]
    pub conditions: Vec<Condition>,
}

impl GoldenImageStatus {
    /// The ID that a factory gave for the image's schematic document, or that is given, where it is on record.
    pub fn resolved_schematic(&self) -> Option<SchematicId> {
        self.schematic_id.as_ref()?.parse().ok()
    }

    /// Whether any golden is on record: the next one made has its class in its name.
    pub fn has_any_golden(&self) -> bool {
        self.targets.iter().any(|target| target.golden.is_some())
    }

    /// The target whose golden has this name.
    pub fn of_golden(&self, golden: &str) -> Option<&TargetStatus> {
        self.targets.iter().find(|target| target.golden.as_deref() == Some(golden))
    }

    /// Whether the golden of this class, as a target of the spec names it, is on record.
    pub fn has_golden(&self, requested_class: &str) -> bool {
        self.targets.iter().any(|target| target.requested_class == requested_class && target.golden.is_some())
    }

    /// How far the golden of this class, as a target of the spec names it, binds that target (R4).
    pub fn freeze(&self, requested_class: &str) -> Freeze {
        match self.targets.iter().find(|target| target.requested_class == requested_class && target.golden.is_some()) {
            None => Freeze::Free,
            Some(target) if target.claim_uid.is_none() && target.started_time.is_none() => Freeze::Begun,
            Some(_) => Freeze::Made,
        }
    }

    /// What goldens have other than their targets ask for, in words, as the targets' own conditions say.
    pub fn edited_targets(&self) -> impl Iterator<Item = &str> {
        let told = self.targets.iter().filter_map(|target| find_condition(&target.conditions, ConditionType::EntryEdited));
        told.map(|condition| Reason::EntryEdited.without_remedy(&condition.message))
    }

    /// The digest of the disk that may never change again, since a golden was made from it. What was taken over as it is was not.
    pub fn frozen_disk(&self) -> Option<crate::model::Digest> {
        let is_made = self.targets.iter().any(|target| target.claim_uid.is_some() && target.adopted != Some(true));
        self.disk.as_ref().filter(|_| is_made).and_then(|disk| disk.digest.parse().ok())
    }

    /// The goldens on record that no target of the spec is for any more (R23).
    pub fn without_target(&self, image: &Image) -> Vec<&TargetStatus> {
        let named = |class: &str| image.targets.iter().any(|target| target.requested_class() == class);
        self.targets.iter().filter(|target| target.golden.is_some() && !named(&target.requested_class)).collect()
    }
}

/// Who uses an image, in numbers.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ConsumersStatus {
    /// Disks that were cloned from its goldens, or are being cloned.
    #[serde(default)]
    pub clones: i32,
    /// Worker pools, VM disks and VMs they belong to.
    #[serde(default)]
    pub pools: i32,
    /// VirtualMachines whose disks are made from it, running or stopped.
    #[serde(default)]
    pub virtual_machines: i32,
    /// Machine templates that name it, those of pools scaled to zero too.
    #[serde(default)]
    pub templates: i32,
    /// Namespaces with consumers.
    #[serde(default)]
    pub namespaces: i32,
    /// Since when nothing uses it; absent while something does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused_since: Option<Time>,
    /// When the newest clone that was seen was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_clone_time: Option<Time>,
}

/// What is on the disk.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OperatingSystemStatus {
    /// The family in lowercase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub family: Option<String>,
    /// The name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub name: Option<String>,
    /// The version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub version: Option<String>,
    /// The Kubernetes release inside a worker image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub kubernetes_version: Option<String>,
}

/// The bytes that upstream served.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactStatus {
    /// The sha256 of the bytes as downloaded.
    #[schemars(length(max = 71))]
    pub digest: String,
    /// How many bytes were downloaded.
    pub size_bytes: i64,
    /// The format found in the bytes, such as `raw.xz`.
    #[schemars(length(max = 32))]
    pub format: String,
    /// The URL after redirects, without credentials and query.
    #[serde(default, rename = "resolvedURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2200))]
    pub resolved_url: Option<String>,
    /// The ETag that came with the bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub etag: Option<String>,
    /// When upstream answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_time: Option<Time>,
    /// The digest of the container image's index, where the reference names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 71))]
    pub index_digest: Option<String>,
    /// The digest of the container image's manifest for the architecture. `digest` is that of its layer with the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 71))]
    pub manifest_digest: Option<String>,
}

/// The verified disk that importers are given, always as qcow2.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DiskStatus {
    /// The sha256 of the qcow2 file. Frozen when the first import has succeeded.
    #[schemars(length(max = 71))]
    pub digest: String,
    /// The size of the disk as a guest sees it.
    #[schemars(length(max = 32))]
    pub virtual_size: String,
}

/// How fetching goes.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FetchStatus {
    /// How often fetching was begun for this generation.
    #[serde(default)]
    pub attempts: i32,
    /// When the running attempt began; absent when none runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_time: Option<Time>,
    /// Not before this time will the next attempt begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// How much of the artifact is there, in steps of ten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub progress_percent: Option<i32>,
    /// The version of the Secret with the credentials that the last attempt used: another one is tried at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub credentials_version: Option<String>,
    /// When the present run of failures began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Time>,
    /// The last failure, kept until a fetch succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
}

/// A failure.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastFailure {
    /// The reason, one of the documented list.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// What happened, and what to do.
    #[schemars(length(max = 2048))]
    pub message: String,
    /// When.
    pub time: Time,
}

/// One golden.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// The StorageClass, as resolved and frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
    /// The StorageClass as the spec names it: empty for the cluster's default.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub requested_class: String,
    /// The size of the golden disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub size: Option<String>,
    /// The volume mode, chosen once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub volume_mode: Option<String>,
    /// The access modes, chosen once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 32)))]
    pub access_modes: Vec<String>,
    /// The golden's name: its DataVolume and its PVC in the catalog namespace. Recorded before it is made, never reassigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub golden: Option<String>,
    /// The UID of the golden's PVC when it became Ready. Another volume under the name is not this golden.
    #[serde(default, rename = "claimUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub claim_uid: Option<String>,
    /// Whether the golden was there before and was taken over as it is: what is in it was never verified by the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<bool>,
    /// How often an import was begun.
    #[serde(default)]
    pub attempts: i32,
    /// When the running import began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_time: Option<Time>,
    /// When the running import last made progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_time: Option<Time>,
    /// Not before this time will the next import begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// How far the import is, in steps of ten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub progress_percent: Option<i32>,
    /// The last failure, kept until the golden is Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
    /// The state of this golden.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_string()]))]
    pub conditions: Vec<Condition>,
}

impl TargetStatus {
    /// Whether its golden is made. One that is being made anew has the UID of the former one on record still.
    pub fn is_made(&self) -> bool {
        self.claim_uid.is_some() && self.started_time.is_none()
    }
}
