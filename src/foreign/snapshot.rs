use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{Nothing, Quantity, foreign_kind};

foreign_kind!(
    /// A VolumeSnapshot of a claim in its namespace.
    VolumeSnapshot, "snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots", NamespaceResourceScope, VolumeSnapshotSpec, VolumeSnapshotStatus
);
foreign_kind!(
    /// The storage side of a VolumeSnapshot; cluster-scoped.
    VolumeSnapshotContent, "snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent", "volumesnapshotcontents", ClusterResourceScope, SnapshotContentSpec, Nothing
);

/// A class of VolumeSnapshots; cluster-scoped. Its driver stands beside the metadata, so that it is written out here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeSnapshotClass {
    /// The standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The CSI driver.
    #[serde(default)]
    pub driver: String,
}

impl kube::Resource for VolumeSnapshotClass {
    type DynamicType = ();
    type Scope = kube::core::ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeSnapshotClass".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "snapshot.storage.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumesnapshotclasses".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A VolumeSnapshot's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSpec {
    /// What it is taken of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SnapshotSource>,
}

/// What a snapshot is taken of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSource {
    /// A claim in the snapshot's namespace; absent for a snapshot imported from storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
}

/// A VolumeSnapshot's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    /// Its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,
    /// Whether a volume can be made from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// The smallest volume that can be made from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<Quantity>,
}

/// A VolumeSnapshotContent's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotContentSpec {
    /// The CSI driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The VolumeSnapshot it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_ref: Option<SnapshotReference>,
}

/// The VolumeSnapshot a content belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReference {
    /// Its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
