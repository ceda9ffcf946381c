use serde::{Deserialize, Serialize};

use super::{Nothing, foreign_kind};

foreign_kind!(
    /// Cozystack's WorkerClass: how a managed worker boots and joins. Its spec is immutable.
    WorkerClass, "cozystack.io", "v1alpha1", "WorkerClass", "workerclasses", ClusterResourceScope, WorkerClassSpec, Nothing
);

/// A WorkerClass's spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerClassSpec {
    /// The bootstrap family, `talos` or `kairos`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<String>,
    /// A fixed worker image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<WorkerImage>,
}

/// A fixed worker image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerImage {
    /// The container disk, pinned by digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The Kubernetes release inside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// The CPU architecture, amd64 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
}
