use serde::{Deserialize, Serialize};

use super::{
    Access, ClassName, Digest, DiskSize, GoldenName, Identity, ImageName, InvalidValue, KubernetesVersion, Naming, SchematicId, SecretName,
    Source, VolumeMode,
};

/// A golden image as it is wanted: the parsed form of a GoldenImage's spec.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// The object's name.
    pub name: ImageName,
    /// Where the bytes come from.
    pub source: Source,
    /// What the downloaded bytes must hash to, if it is known.
    pub digest: Option<Digest>,
    /// A ConfigMap in the daemon's namespace, and its key with certificates to trust.
    pub ca_bundle: Option<(String, String)>,
    /// The Secret in the daemon's namespace with what upstream is shown.
    pub credentials: Option<SecretName>,
    /// A line for people.
    pub description: Option<String>,
    /// The operating system's family, name and version, as given or as they follow from the source.
    pub operating_system: OperatingSystemFacts,
    /// Who may be offered the image, sorted.
    pub usages: Vec<Usage>,
    /// What virtual machines get whose users choose nothing, as given; a container disk may say more.
    pub defaults: VirtualMachineDefaults,
    /// One item per golden, at least one.
    pub targets: Vec<Target>,
    /// Who may clone the goldens.
    pub access: Access,
    /// Whether nothing new may be started.
    pub suspend: bool,
}

/// What is on the disk, with defaults applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperatingSystemFacts {
    /// The family in lowercase.
    pub family: Option<String>,
    /// The name for people.
    pub name: Option<String>,
    /// The version.
    pub version: Option<String>,
    /// The Kubernetes release inside a worker image.
    pub kubernetes_version: Option<KubernetesVersion>,
}

/// KubeVirt's instance type and preference for virtual machines whose users name none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VirtualMachineDefaults {
    /// A VirtualMachineClusterInstancetype.
    pub instancetype: Option<String>,
    /// A VirtualMachineClusterPreference.
    pub preference: Option<String>,
}

impl VirtualMachineDefaults {
    /// What stands here, and for the rest what `others` say.
    #[must_use]
    pub fn or(&self, others: &Self) -> Self {
        Self {
            instancetype: self.instancetype.clone().or_else(|| others.instancetype.clone()),
            preference: self.preference.clone().or_else(|| others.preference.clone()),
        }
    }

    /// Whether nothing is said.
    pub const fn is_empty(&self) -> bool {
        self.instancetype.is_none() && self.preference.is_none()
    }
}

/// One golden that is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Target {
    /// The StorageClass; `None` is the cluster's default.
    pub class: Option<ClassName>,
    /// The size; `None` follows from the image.
    pub size: Option<DiskSize>,
    /// The volume mode; `None` follows from the StorageProfile.
    pub volume_mode: Option<VolumeMode>,
    /// The access modes; empty follows from the StorageProfile.
    pub access_modes: Vec<String>,
}

impl Target {
    /// The class as the target names it, and as status keeps it (`requestedClass`): empty for the cluster's default.
    pub fn requested_class(&self) -> &str {
        self.class.as_ref().map_or("", ClassName::as_str)
    }
}

impl Image {
    /// What the golden's name depends on, once the schematic's ID is known.
    pub fn naming<'a>(&'a self, resolved: Option<&'a SchematicId>) -> Naming<'a> {
        Naming {
            source: &self.source,
            resolved,
            image: &self.name,
            for_virtual_machines: self.usages.contains(&Usage::VirtualMachine),
            is_kairos: self.operating_system.family.as_deref() == Some("kairos"),
        }
    }

    /// The image's identity; `None` while a schematic document has no ID.
    pub fn identity(&self, resolved: Option<&SchematicId>) -> Option<Identity> {
        Identity::of(&self.source, resolved)
    }

    /// The golden's name for the first target made, or with a class for a further one.
    pub fn golden_name(&self, resolved: Option<&SchematicId>, class: Option<&ClassName>) -> Option<Result<GoldenName, InvalidValue>> {
        GoldenName::derive(self.naming(resolved), class)
    }
}

/// Who may be offered an image.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Usage {
    /// Pools of Kubernetes workers.
    Worker,
    /// Virtual machines.
    VirtualMachine,
}

impl Usage {
    /// The spelling in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "Worker",
            Self::VirtualMachine => "VirtualMachine",
        }
    }
}
