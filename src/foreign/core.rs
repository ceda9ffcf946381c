use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Quantity, foreign_kind};

foreign_kind!(
    /// A PersistentVolumeClaim (core `v1`), as far as a rule reads it: a full one costs several times the memory while a list is decoded.
    Claim, "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", NamespaceResourceScope, ClaimSpec, ClaimStatus
);

/// A claim's spec; also the shape of a DataVolume's `spec.pvc` and `spec.storage`, whose fields are all optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSpec {
    /// Access modes such as `ReadWriteMany`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_modes: Option<Vec<String>>,
    /// An object in the same namespace to fill the volume from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_source: Option<TypedReference>,
    /// The newer form of [`Self::data_source`], which may name a namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_source_ref: Option<TypedReference>,
    /// The size asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequests>,
    /// The StorageClass; the empty text means "none", an absent field the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// `Block` or `Filesystem`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
    /// The PersistentVolume it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
}

impl ClaimSpec {
    /// The size asked for, as written.
    pub fn storage_request(&self) -> Option<&Quantity> {
        self.resources.as_ref()?.requests.as_ref()?.get("storage")
    }
}

/// A claim's status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimStatus {
    /// `Pending`, `Bound` or `Lost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// What the volume really holds; `storage` is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<BTreeMap<String, Quantity>>,
}

/// What a claim asks for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ResourceRequests {
    /// By resource name; `storage` is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, Quantity>>,
}

/// A reference by group, kind and name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TypedReference {
    /// The API group; absent for core kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// The kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The namespace where it is another one (Kubernetes' gate `CrossNamespaceVolumeDataSource`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A reference by namespace and name; an absent namespace is the referring object's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespacedName {
    /// The namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A condition as CDI writes it (its older shape: no `observedGeneration`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `Ready`, `Bound` or `Running`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: String,
    /// A word for the cause; some of CDI's contain spaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The cause in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Since when it has this status, as RFC 3339; text, so that an odd one makes no status unreadable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
}
