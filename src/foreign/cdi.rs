use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Condition, NamespacedName, Nothing, TypedReference, core::ClaimSpec, foreign_kind};

foreign_kind!(
    /// CDI's DataVolume: a claim and how it is filled. Its spec is immutable; its status has a subresource.
    DataVolume, "cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes", NamespaceResourceScope, DataVolumeSpec, DataVolumeStatus
);
foreign_kind!(
    /// CDI's DataSource: a movable pointer to a claim, a snapshot or another DataSource. No status subresource.
    DataSource, "cdi.kubevirt.io", "v1beta1", "DataSource", "datasources", NamespaceResourceScope, DataSourceSpec, Nothing
);
foreign_kind!(
    /// CDI's record of a clone in flight, in the *source's* namespace, named `volume-clone-source-<DataVolume UID>`.
    VolumeCloneSource, "cdi.kubevirt.io", "v1beta1", "VolumeCloneSource", "volumeclonesources", NamespaceResourceScope, VolumeCloneSourceSpec, Nothing
);
foreign_kind!(
    /// CDI's view of one StorageClass; cluster-scoped, named as the class.
    StorageProfile, "cdi.kubevirt.io", "v1beta1", "StorageProfile", "storageprofiles", ClusterResourceScope, StorageProfileSpec, StorageProfileStatus
);
foreign_kind!(
    /// CDI's effective configuration; one object, `config`.
    CdiConfig, "cdi.kubevirt.io", "v1beta1", "CDIConfig", "cdiconfigs", ClusterResourceScope, Nothing, CdiConfigStatus
);
foreign_kind!(
    /// CDI's installation, read for its cluster-wide clone strategy, which `CDIConfig` does not show.
    Cdi, "cdi.kubevirt.io", "v1beta1", "CDI", "cdis", ClusterResourceScope, CdiSpec, Nothing
);

/// A DataVolume's spec. Checkpoints are left out: only warm migrations have them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSpec {
    /// Where the content comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<DataVolumeSource>,
    /// A DataSource to take the content from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ref: Option<DataSourceReference>,
    /// The claim, spelled out: CDI adds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<ClaimSpec>,
    /// The claim, completed by CDI from the StorageProfile; a file system's overhead is added to its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<ClaimSpec>,
    /// `kubevirt` (the default) or `archive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}

/// The members of `spec.source` that are read; `Some` on any other is not needed to know that it is no clone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataVolumeSource {
    /// An import from a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
    /// A clone of a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<NamespacedName>,
    /// A clone of a VolumeSnapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<NamespacedName>,
}

/// An import from a URL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpSource {
    /// The URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A ConfigMap with the server's CA, in the DataVolume's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_config_map: Option<String>,
    /// Secrets whose every value is sent as a header line, in the DataVolume's namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_extra_headers: Vec<String>,
}

/// A DataVolume's `sourceRef`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSourceReference {
    /// Always `DataSource`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The DataVolume's namespace where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The DataSource's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A DataVolume's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeStatus {
    /// `Succeeded`, `ImportInProgress`, … ; `Failed` is all but unreachable on CDI v1.64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// `N/A`, `45.34%`, `100.0%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Restarts of the importer; only ever grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<i64>,
    /// The claim's name, always the DataVolume's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// `Ready`, `Bound`, `Running`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl DataVolumeStatus {
    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

/// A DataSource's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSourceSpec {
    /// What it points to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<DataSourceSource>,
}

/// What a DataSource points to: one member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataSourceSource {
    /// A claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<NamespacedName>,
    /// A VolumeSnapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<NamespacedName>,
    /// Another DataSource (CDI v1.63 and later follow one, in the same namespace).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_source: Option<NamespacedName>,
}

/// A VolumeCloneSource's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeCloneSourceSpec {
    /// The claim or snapshot being cloned, in the object's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<TypedReference>,
}

/// What an administrator set on a StorageProfile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageProfileSpec {
    /// `copy`, `snapshot` or `csi-clone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_strategy: Option<String>,
}

/// What CDI knows about the class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageProfileStatus {
    /// Access and volume modes, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claim_property_sets: Vec<ClaimPropertySet>,
    /// `copy`, `snapshot` or `csi-clone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_strategy: Option<String>,
    /// The class's provisioner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<String>,
    /// The VolumeSnapshotClass used for snapshot clones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_class: Option<String>,
}

/// One way a class can be claimed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimPropertySet {
    /// Access modes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// `Block` or `Filesystem`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
}

/// CDI's effective configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiConfigStatus {
    /// How much of a Filesystem volume the file system takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem_overhead: Option<FilesystemOverhead>,
    /// The proxy importer pods use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import_proxy: Option<ImportProxy>,
    /// The class of scratch volumes; the default class where it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch_space_storage_class: Option<String>,
}

/// File system overhead as decimal fractions (`"0.06"`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemOverhead {
    /// For every class without an entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global: Option<String>,
    /// By StorageClass.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub storage_class: BTreeMap<String, String>,
}

/// The proxy importer pods use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportProxy {
    /// For `http`.
    #[serde(default, rename = "HTTPProxy", skip_serializing_if = "Option::is_none")]
    pub http_proxy: Option<String>,
    /// For `https`.
    #[serde(default, rename = "HTTPSProxy", skip_serializing_if = "Option::is_none")]
    pub https_proxy: Option<String>,
    /// Hosts reached without it, separated by commas.
    #[serde(default, rename = "noProxy", skip_serializing_if = "Option::is_none")]
    pub no_proxy: Option<String>,
}

/// CDI's installation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiSpec {
    /// `copy`, `snapshot` or `csi-clone` for every class, over their StorageProfiles (Cozystack sets `csi-clone`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_strategy_override: Option<String>,
}
