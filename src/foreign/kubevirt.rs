use serde::{Deserialize, Serialize};

use super::{DataVolumeSpec, Lenient, Nothing, TemplateMeta, foreign_kind};

foreign_kind!(
    /// KubeVirt's VirtualMachine, as far as it names disks.
    VirtualMachine, "kubevirt.io", "v1", "VirtualMachine", "virtualmachines", NamespaceResourceScope, VirtualMachineSpec, Nothing
);

/// A VM's spec.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSpec {
    /// DataVolumes that KubeVirt makes for the VM, and makes again when they go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_volume_templates: Vec<Lenient<DataVolumeTemplate>>,
    /// `Always`, `Halted`, … ; a halted VM needs its golden as much as a running one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<String>,
    /// What the instance looks like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Lenient<InstanceTemplate>>,
}

/// A DataVolume to be made for a VM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataVolumeTemplate {
    /// Its name and marks.
    #[serde(default)]
    pub metadata: TemplateMeta,
    /// What is made.
    #[serde(default)]
    pub spec: DataVolumeSpec,
}

/// The instance a VM runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InstanceTemplate {
    /// Labels of the instance and its pod; Cozystack's worker pools are told by one of them.
    #[serde(default)]
    pub metadata: TemplateMeta,
    /// The instance.
    #[serde(default)]
    pub spec: InstanceSpec,
}

/// The instance, as far as it names volumes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InstanceSpec {
    /// What disks are backed by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Lenient<Volume>>,
}

/// What a disk is backed by.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// A DataVolume in the VM's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_volume: Option<VolumeDataVolumeReference>,
    /// A claim in the VM's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<VolumeClaimReference>,
}

/// A DataVolume by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeDataVolumeReference {
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A claim by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaimReference {
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
}
