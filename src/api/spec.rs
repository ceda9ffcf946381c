//! What a user writes. Strings stay strings here so that one odd stored object cannot stop a list from being read;
//! [`super::parse_image`] turns them into values that cannot be wrong.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema, ResourceExt as _};
use serde::{Deserialize, Serialize};

use super::status::GoldenImageStatus;
use crate::{
    model::{HttpUrl, Usage, VirtualMachineDefaults},
    rules::Precedence,
};

/// A disk image that the daemon fetches once, verifies, and imports into one golden volume per StorageClass.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[kube(
    group = "cozystack.io",
    version = "v1alpha1",
    kind = "GoldenImage",
    plural = "goldenimages",
    shortname = "gi",
    category = "cozystack",
    status = "GoldenImageStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "GoldenImage is a disk image that is fetched once, verified, and imported once per StorageClass into a golden volume. Worker and VM disks are then clones of that volume.",
    printcolumn(name = "OS", type_ = "string", json_path = ".status.operatingSystem.name"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.operatingSystem.version"),
    printcolumn(name = "Class", type_ = "string", json_path = ".status.targets[*].storageClassName"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.disk.virtualSize"),
    printcolumn(name = "Clones", type_ = "integer", json_path = ".status.consumers.clones"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name must be at most 63 characters, because it is also a label value"),
    validation = Rule::new(
        "!has(oldSelf.status) || !has(oldSelf.status.targets) || !oldSelf.status.targets.exists(t, has(t.golden)) || (!has(oldSelf.spec.storage) ? (!has(self.spec.storage) || !oldSelf.status.targets.exists(t, has(t.golden) && t.requestedClass == '') || self.spec.storage.targets.exists(n, (has(n.storageClassName) ? n.storageClassName : '') == '' && !has(n.size) && !has(n.volumeMode) && !has(n.accessModes)) || !oldSelf.status.targets.exists(t, (has(t.claimUID) || has(t.startedTime)) && t.requestedClass == '') && self.spec.storage.targets.exists(n, (has(n.storageClassName) ? n.storageClassName : '') == '')) : (!has(self.spec.storage) ? (oldSelf.spec.storage.targets.all(o, !oldSelf.status.targets.exists(t, has(t.golden) && t.requestedClass == (has(o.storageClassName) ? o.storageClassName : '')) || (has(o.storageClassName) ? o.storageClassName : '') == '' && (!has(o.size) && !has(o.volumeMode) && !has(o.accessModes) || !oldSelf.status.targets.exists(t, (has(t.claimUID) || has(t.startedTime)) && t.requestedClass == (has(o.storageClassName) ? o.storageClassName : '')))) || oldSelf.spec.storage.targets.exists(o, (has(o.storageClassName) ? o.storageClassName : '') == '' && (!has(o.size) && !has(o.volumeMode) && !has(o.accessModes) || !oldSelf.status.targets.exists(t, (has(t.claimUID) || has(t.startedTime)) && t.requestedClass == (has(o.storageClassName) ? o.storageClassName : ''))))) : (oldSelf.spec.storage.targets.all(o, !oldSelf.status.targets.exists(t, has(t.golden) && t.requestedClass == (has(o.storageClassName) ? o.storageClassName : '')) || self.spec.storage.targets.exists(n, (has(n.storageClassName) ? n.storageClassName : '') == (has(o.storageClassName) ? o.storageClassName : '') && has(n.size) == has(o.size) && (!has(o.size) || quantity(n.size).compareTo(quantity(o.size)) == 0) && has(n.volumeMode) == has(o.volumeMode) && (!has(o.volumeMode) || n.volumeMode == o.volumeMode) && has(n.accessModes) == has(o.accessModes) && (!has(o.accessModes) || n.accessModes == o.accessModes)) || !oldSelf.status.targets.exists(t, (has(t.claimUID) || has(t.startedTime)) && t.requestedClass == (has(o.storageClassName) ? o.storageClassName : '')) && self.spec.storage.targets.exists(n, (has(n.storageClassName) ? n.storageClassName : '') == (has(o.storageClassName) ? o.storageClassName : ''))) || self.spec.storage.targets.all(n, oldSelf.spec.storage.targets.exists(o, (has(o.storageClassName) ? o.storageClassName : '') == (has(n.storageClassName) ? n.storageClassName : '') && (has(n.size) == has(o.size) && (!has(o.size) || quantity(n.size).compareTo(quantity(o.size)) == 0) && has(n.volumeMode) == has(o.volumeMode) && (!has(o.volumeMode) || n.volumeMode == o.volumeMode) && has(n.accessModes) == has(o.accessModes) && (!has(o.accessModes) || n.accessModes == o.accessModes) || !oldSelf.status.targets.exists(t, (has(t.claimUID) || has(t.startedTime)) && t.requestedClass == (has(o.storageClassName) ? o.storageClassName : ''))))))))"
    )
    .message("spec.storage.targets: a target whose golden exists or is being made cannot be edited, or be taken out by an edit that adds another (R4): add a target for another class, or make a new image with a new name"),
    validation = Rule::new(
        "!has(oldSelf.status) || !has(oldSelf.status.targets) || (has(self.spec.storage) && has(oldSelf.spec.storage) && self.spec.storage.targets.size() == oldSelf.spec.storage.targets.size()) || oldSelf.status.targets.filter(t, has(t.golden) && !(has(self.spec.storage) ? self.spec.storage.targets.exists(n, (has(n.storageClassName) ? n.storageClassName : '') == t.requestedClass) : t.requestedClass == '')).size() <= 8"
    )
    .message("spec.storage.targets: eight goldens of targets that were taken out are still to go (R23): wait for one of them, or put its target back")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.digest) || (has(self.digest) && self.digest == oldSelf.digest)")
    .message("digest is immutable once set (R4): make a new image with a new name"))]
#[x_kube(validation = Rule::new("has(oldSelf.usages) == has(self.usages) && (!has(oldSelf.usages) || oldSelf.usages == self.usages)")
    .message("usages is immutable, because the golden's name depends on it (R4): make a new image with a new name"))]
#[x_kube(validation = Rule::new("!has(self.credentialsSecretRef) || has(self.access)")
    .message("access must be given beside credentialsSecretRef: {policy: AllTenants}, or {policy: Selected, namespaceSelector: …} (R18)"))]
#[x_kube(validation = Rule::new("!has(self.source.containerDisk) || !has(self.digest)")
    .message("digest is not for container disks: their reference pins them (R2)"))]
#[x_kube(validation = Rule::new("!has(self.operatingSystem) || !has(self.operatingSystem.family) || self.operatingSystem.family != 'kairos' || has(self.source.containerDisk) == has(self.operatingSystem.kubernetesVersion)")
    .message("operatingSystem.kubernetesVersion and source.containerDisk come together or not at all for Kairos (R2)"))]
pub struct GoldenImageSpec {
    /// Where the disk image comes from. Exactly one member; immutable: a new version is a new GoldenImage.
    #[x_kube(validation = Rule::new("self == oldSelf").message("source is immutable (R4): make a new image with a new name"))]
    pub source: SourceSpec,

    /// The expected sha256 of the bytes as downloaded, as `sha256:<64 hex>`. Without it the structure of the image is checked and what was fetched is recorded. Immutable once set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^sha256:[0-9a-f]{64}$"))]
    pub digest: Option<String>,

    /// A Secret in the daemon's namespace with what upstream is shown: `kubernetes.io/dockerconfigjson`, `kubernetes.io/basic-auth`, or `Opaque` with a bearer token under `token`. It is read anew for each attempt and never leaves the daemon's namespace. Needs `access`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretReference>,

    /// A ConfigMap in the daemon's namespace whose key holds PEM certificates to trust for this image's upstream, besides the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<ConfigMapKeyReference>,

    /// A line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub description: Option<String>,

    /// What is on the disk. For Talos images it follows from the source when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_system: Option<OperatingSystem>,

    /// Who may be offered the image: `Worker` (Kubernetes worker pools), `VirtualMachine`. Default: `[Worker]` for Talos and Kairos, otherwise `[VirtualMachine]`. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub usages: Option<Vec<Usage>>,

    /// What virtual machines of this image get whose users choose nothing. A container disk may say it itself; what stands here counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults: Option<VirtualMachineDefaultsSpec>,

    /// Where the image is kept. Default: one golden in the cluster's default StorageClass, sized from the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageSpec>,

    /// Who may clone the goldens. Default: `AllTenants`; must be given where there are credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessSpec>,

    /// Set to true to start nothing new for this image. What is there stays, and stays clonable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,

    /// Set to true to be rid of the goldens: no new pools are let in, pools that use them go on, and they are deleted when nothing needs them any more. Nothing is made anew while it is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retire: Option<bool>,

    /// What becomes of the goldens when this object is deleted. `Retain` (the default): they stay, protected and clonable. `Delete`: the object stays until nothing needs them, and they are deleted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "deletion_policy_schema")]
    pub deletion_policy: Option<DeletionPolicy>,
}

impl GoldenImage {
    /// Whether it is being deleted with the policy that takes its goldens along (R24).
    pub fn is_deleted_with_goldens(&self) -> bool {
        self.metadata.deletion_timestamp.is_some() && self.spec.deletion_policy == Some(DeletionPolicy::Delete)
    }

    /// Its place among those that are the same image (R3).
    pub fn precedence(&self) -> Precedence {
        let has_golden = self.status.as_ref().is_some_and(GoldenImageStatus::has_any_golden);
        Precedence::new(self.name_any(), self.creation_timestamp().map(|at| at.0.as_second()), has_golden)
    }
}

/// What becomes of goldens when their GoldenImage is deleted.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeletionPolicy {
    /// They stay, protected and clonable.
    #[default]
    Retain,
    /// They are deleted when nothing needs them, and the object waits for that.
    Delete,
}

/// Where a disk image comes from: exactly one member.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.talosFactory) ? 1 : 0) + (has(self.containerDisk) ? 1 : 0) + (has(self.http) ? 1 : 0) == 1")
    .message("exactly one of talosFactory, containerDisk and http must be set"))]
pub struct SourceSpec {
    /// A disk image built by a Talos Image Factory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub talos_factory: Option<TalosFactorySource>,

    /// A KubeVirt container disk in an OCI registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_disk: Option<ContainerDiskSource>,

    /// A disk image behind a URL: qcow2, or raw; either may be compressed with xz, zstd or gzip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
}

/// A disk image built by a Talos Image Factory.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.schematicID) != has(self.schematic)")
    .message("exactly one of schematicID and schematic must be set"))]
pub struct TalosFactorySource {
    /// The ID of a schematic that the factory knows.
    #[serde(default, rename = "schematicID", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]{1,64}$"))]
    pub schematic_id: Option<String>,

    /// The schematic document itself, as YAML text. The daemon posts it to the factory and records the ID it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "document_schema")]
    pub schematic: Option<serde_json::Value>,

    /// The Talos release, `vMAJOR.MINOR.PATCH`.
    #[schemars(regex(pattern = r"^v(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})$"), length(max = 32))]
    pub version: String,

    /// The platform the image is made for. Default: `openstack`, which is what Cozystack's workers boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]{1,32}$"))]
    pub platform: Option<String>,

    /// The CPU architecture. Default: `amd64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "architecture_schema")]
    pub architecture: Option<String>,

    /// Whether the SecureBoot flavour is asked for. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,

    /// The factory. Default: `https://factory.talos.dev`.
    #[serde(default, rename = "factoryURL", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = HttpUrl::PATTERN), length(max = 2048))]
    pub factory_url: Option<String>,
}

/// A KubeVirt container disk: a container image with one disk file under `disk/`.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ContainerDiskSource {
    /// The image, pinned: `registry/repository[:tag]@sha256:<64 hex>`. The digest may be an index's or a manifest's; the tag is for people.
    #[schemars(regex(pattern = r"^[^@\s]+@sha256:[0-9a-f]{64}$"), length(max = 512))]
    pub reference: String,

    /// The CPU architecture. Default: `amd64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "architecture_schema")]
    pub architecture: Option<String>,
}

/// A disk image behind a URL.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HttpSource {
    /// An absolute `https://` or `http://` URL without credentials. Prefer one that names a dated build: a rolling URL is accepted with a warning.
    #[schemars(regex(pattern = HttpUrl::PATTERN), length(max = 2048))]
    pub url: String,

    /// The CPU architecture. Default: `amd64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "architecture_schema")]
    pub architecture: Option<String>,
}

/// A Secret in the daemon's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

/// Who may clone an image's goldens (R18).
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(self.policy == 'Selected') == has(self.namespaceSelector)")
    .message("namespaceSelector goes with policy Selected, and only with it"))]
pub struct AccessSpec {
    /// `AllTenants`, or `Selected` for namespaces that `namespaceSelector` matches.
    #[schemars(schema_with = "policy_schema")]
    pub policy: String,
    /// The namespaces, by their labels. Must select something less than all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_schema")]
    #[x_kube(validation = Rule::new("(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)")
        .message("it selects every namespace: write policy AllTenants if that is meant"))]
    pub namespace_selector: Option<LabelSelector>,
}

/// KubeVirt's instance type and preference for virtual machines whose users name none.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineDefaultsSpec {
    /// A VirtualMachineClusterInstancetype, such as `u1.medium`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub instancetype: Option<String>,
    /// A VirtualMachineClusterPreference, such as `ubuntu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub preference: Option<String>,
}

impl VirtualMachineDefaultsSpec {
    /// The same as the model has it.
    pub fn facts(&self) -> VirtualMachineDefaults {
        VirtualMachineDefaults { instancetype: self.instancetype.clone(), preference: self.preference.clone() }
    }
}

impl From<VirtualMachineDefaults> for VirtualMachineDefaultsSpec {
    fn from(defaults: VirtualMachineDefaults) -> Self {
        Self { instancetype: defaults.instancetype, preference: defaults.preference }
    }
}

/// A key of a ConfigMap in the daemon's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKeyReference {
    /// The ConfigMap's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key. Default: `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub key: Option<String>,
}

/// What is on the disk.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OperatingSystem {
    /// The family in lowercase: `talos`, `kairos`, `ubuntu`, `debian`, `windows`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"))]
    pub family: Option<String>,
    /// The name for people, such as `Ubuntu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
    /// The version, such as `24.04`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.+]{0,61}[A-Za-z0-9])?$"))]
    pub version: Option<String>,
    /// The Kubernetes release inside a worker image, with its distribution: `v1.35.6+k3s1`. For Kairos it must be given; `+` and `-` are one thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 63),
        regex(
            pattern = r"^v(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})([-+][0-9A-Za-z]([-+.0-9A-Za-z]*[0-9A-Za-z])?)?$"
        )
    )]
    pub kubernetes_version: Option<String>,
}

/// Where an image is kept.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// One golden per StorageClass. A clone needs a golden in its own class. A target may be added at any time; one that is taken out has its golden go when nothing needs it any more.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(validation = Rule::new("self.all(a, self.filter(b, (has(a.storageClassName) ? a.storageClassName : '') == (has(b.storageClassName) ? b.storageClassName : '')).size() == 1)")
        .message("each StorageClass may be named once"))]
    pub targets: Vec<TargetSpec>,
}

/// One golden of an image.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TargetSpec {
    /// The StorageClass. Empty or absent: the cluster's default, resolved once and recorded in status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,

    /// The size of the golden disk, such as `6Gi`. Absent: the image's virtual size, rounded up to a MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero, such as 6Gi"))]
    pub size: Option<String>,

    /// `Block` or `Filesystem`. Absent: the first choice of the class's StorageProfile, recorded in status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "volume_mode_schema")]
    pub volume_mode: Option<String>,

    /// Access modes. Absent: the first choice of the class's StorageProfile, recorded in status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "access_modes_schema")]
    pub access_modes: Option<Vec<String>>,
}

/// Text, and no object: of objects with fields unknown to the schema, CEL's `==` sees only the fields that both have, so that
/// a key could be added to an immutable document.
fn document_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "minLength": 1, "maxLength": 65536 })
}

fn deletion_policy_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["Retain", "Delete"] })
}

fn architecture_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["amd64", "arm64"] })
}

fn policy_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["AllTenants", "Selected"] })
}

fn selector_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object", "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "type": "object", "maxProperties": 16, "description": "Labels; a namespace must have all of them.",
                "additionalProperties": { "type": "string", "maxLength": 63 },
            },
            "matchExpressions": {
                "type": "array", "maxItems": 16, "description": "Conditions on labels; all of them must hold.",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object", "required": ["key", "operator"],
                    "properties": {
                        "key": { "type": "string", "minLength": 1, "maxLength": 317, "description": "The label." },
                        "operator": {
                            "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                            "description": "How the label is compared.",
                        },
                        "values": {
                            "type": "array", "maxItems": 64, "description": "The values, for In and NotIn.",
                            "x-kubernetes-list-type": "atomic", "items": { "type": "string", "maxLength": 63 },
                        },
                    },
                },
            },
        },
    })
}

fn volume_mode_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["Block", "Filesystem"] })
}

fn access_modes_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array", "minItems": 1, "maxItems": 4, "x-kubernetes-list-type": "set",
        "items": { "type": "string", "enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"] },
    })
}
