use serde::{Deserialize, Serialize};

use super::{Digest, VirtualMachineDefaults};

/// Which parts of a container image a disk came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerFacts {
    /// The index that the image was chosen from, where the reference's digest is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<Digest>,
    /// The manifest for the architecture.
    pub manifest: Digest,
    /// The layer with the disk.
    pub layer: Digest,
    /// What the image says that virtual machines get.
    #[serde(default)]
    pub defaults: VirtualMachineDefaults,
}
