//! CDI's and the snapshot API's types, as far as the stand-in reads or writes them. Fields it does not know are ignored on reading and never written.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaimSpec, TypedLocalObjectReference},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// `DataVolume.spec`. `storage` has the fields of a PVC's spec too, all optional.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(group = "cdi.kubevirt.io", version = "v1beta1", kind = "DataVolume", namespaced, status = "DataVolumeStatus", schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_ref: Option<SourceRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PersistentVolumeClaimSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<PersistentVolumeClaimSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<bool>,
}

/// `DataVolume.spec.source`: the members the stand-in plays; of the others only the presence matters.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Source {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc: Option<ObjectRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<ObjectRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blank: Option<Empty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistrySource>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Empty {}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HttpSource {
    pub url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_config_map: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_headers: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_extra_headers: Vec<String>,
    /// Exists from CDI v1.65; an older CRD drops it before the stand-in can see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RegistrySource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    pub namespace: String,
    pub name: String,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SourceRef {
    pub kind: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct DataVolumeStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub progress: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub restart_count: i32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

fn is_zero(count: &i32) -> bool {
    *count == 0
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
}

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(group = "cdi.kubevirt.io", version = "v1beta1", kind = "DataSource", namespaced, schema = "disabled")]
pub struct DataSourceSpec {
    #[serde(default)]
    pub source: DataSourceSource,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DataSourceSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc: Option<ObjectRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<ObjectRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source: Option<ObjectRef>,
}

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(group = "cdi.kubevirt.io", version = "v1beta1", kind = "StorageProfile", status = "StorageProfileStatus", schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub struct StorageProfileSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_property_sets: Option<Vec<ClaimPropertySet>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clone_strategy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_class: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StorageProfileStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_property_sets: Option<Vec<ClaimPropertySet>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clone_strategy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClaimPropertySet {
    #[serde(default)]
    pub access_modes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
}

/// CDIConfig has no status subresource.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(group = "cdi.kubevirt.io", version = "v1beta1", kind = "CDIConfig", status = "CdiConfigStatus", schema = "disabled")]
#[serde(rename_all = "camelCase", default)]
pub struct CdiConfigSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem_overhead: Option<FilesystemOverhead>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import_proxy: Option<ImportProxy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scratch_space_storage_class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feature_gates: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct CdiConfigStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem_overhead: Option<FilesystemOverhead>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import_proxy: Option<ImportProxy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scratch_space_storage_class: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct FilesystemOverhead {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub storage_class: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct ImportProxy {
    #[serde(rename = "HTTPProxy", skip_serializing_if = "Option::is_none")]
    pub http_proxy: Option<String>,
    #[serde(rename = "HTTPSProxy", skip_serializing_if = "Option::is_none")]
    pub https_proxy: Option<String>,
    #[serde(rename = "noProxy", skip_serializing_if = "Option::is_none")]
    pub no_proxy: Option<String>,
    #[serde(rename = "trustedCAProxy", skip_serializing_if = "Option::is_none")]
    pub trusted_ca_proxy: Option<String>,
}

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(group = "cdi.kubevirt.io", version = "v1beta1", kind = "VolumeImportSource", namespaced, schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub struct VolumeImportSourceSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<bool>,
}

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(group = "cdi.kubevirt.io", version = "v1beta1", kind = "VolumeCloneSource", namespaced, schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub struct VolumeCloneSourceSpec {
    pub source: TypedLocalObjectReference,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preallocation: Option<bool>,
}

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshot",
    namespaced,
    status = "VolumeSnapshotStatus",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSpec {
    #[serde(default)]
    pub source: VolumeSnapshotSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_content_name: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<String>,
}
