//! From what a user wrote to values that cannot be wrong, with every field error at once.

use std::fmt;

use super::{
    GoldenImage, GoldenImageSpec,
    spec::{SourceSpec, VirtualMachineDefaultsSpec},
    yaml::{ONE_DOCUMENT, yaml_fault},
};
use crate::{
    model::{
        Access, Architecture, ClassName, ContainerReference, DiskSize, HttpUrl, Image, InvalidValue, KubernetesVersion, NamespaceSelector,
        OperatingSystemFacts, Platform, Schematic, SchematicId, SecretName, Source, TalosFactory, Target, Usage,
    },
    rules::{Reason, access, container},
};

/// One thing wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The field's path from the object's root, such as `spec.source.http.url`.
    pub field: String,
    /// What is wrong and what would be accepted.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.field, self.message)
    }
}

/// Everything that is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct FieldErrors(pub Vec<FieldError>);

impl FieldErrors {
    /// The reason for refusing the object: `UnpinnedReference` where that is all that is wrong (R2), else `InvalidEntry`.
    pub fn reason(&self) -> Reason {
        let unpinned = |error: &FieldError| error.field.ends_with("reference") && error.message.contains(ContainerReference::UNPINNED);
        if !self.0.is_empty() && self.0.iter().all(unpinned) { Reason::UnpinnedReference } else { Reason::InvalidEntry }
    }
}

/// Collects errors while parsing goes on, so that all are told at once.
#[derive(Debug, Default)]
pub(crate) struct Collector(Vec<FieldError>);

impl Collector {
    pub(crate) fn push(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), message: message.into() });
    }

    /// The parsed value, or an error on record and `None`.
    pub(crate) fn take<T>(&mut self, field: &str, result: Result<T, InvalidValue>) -> Option<T> {
        result.map_err(|error| self.push(field, error.to_string())).ok()
    }

    pub(crate) fn parse<T: std::str::FromStr<Err = InvalidValue>>(&mut self, field: &str, text: Option<&str>) -> Option<T> {
        self.take(field, text?.parse())
    }

    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, FieldErrors> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(FieldErrors(self.0)),
        }
    }
}

/// Parses a GoldenImage.
///
/// # Errors
/// Every field that does not have the accepted form. The CRD refuses the same, but an object may have been stored under an
/// older one.
pub fn parse_image(object: &GoldenImage) -> Result<Image, FieldErrors> {
    let mut errors = Collector::default();
    let name = errors.parse("metadata.name", Some(object.metadata.name.as_deref().unwrap_or_default()));
    let spec = &object.spec;
    let source = parse_source(&spec.source, &mut errors);
    let digest = errors.parse("spec.digest", spec.digest.as_deref());
    let targets = parse_targets(spec, &mut errors);
    super::limits::check(spec, &mut errors);
    let credentials: Option<SecretName> =
        errors.parse("spec.credentialsSecretRef.name", spec.credentials_secret_ref.as_ref().map(|reference| reference.name.as_str()));
    let access = parse_access(spec, &mut errors);
    let operating_system = operating_system(spec, source.as_ref(), &mut errors);
    if spec.source.container_disk.is_some() && spec.digest.is_some() {
        errors.push("spec.digest", "is not for container disks: their `reference` pins them (R2)");
    }
    let image = (|| {
        let source = source?;
        let worker = matches!(source, Source::TalosFactory(_)) || operating_system.family.as_deref() == Some(container::KAIROS);
        let mut usages = spec.usages.clone().unwrap_or_else(|| vec![if worker { Usage::Worker } else { Usage::VirtualMachine }]);
        usages.sort_unstable();
        usages.dedup();
        Some(Image {
            name: name?,
            source,
            digest,
            ca_bundle: spec
                .ca_bundle_ref
                .as_ref()
                .map(|reference| (reference.name.clone(), reference.key.clone().unwrap_or_else(|| "ca.crt".to_owned()))),
            credentials,
            description: spec.description.clone(),
            operating_system,
            usages,
            defaults: spec.defaults.as_ref().map(VirtualMachineDefaultsSpec::facts).unwrap_or_default(),
            targets,
            access: access?,
            suspend: spec.suspend.unwrap_or(false),
        })
    })();
    errors.finish(image)
}

fn parse_source(source: &SourceSpec, errors: &mut Collector) -> Option<Source> {
    let architecture = |field: &str, text: &Option<String>, errors: &mut Collector| match text {
        None => Some(Architecture::default()),
        Some(text) => errors.parse(field, Some(text)),
    };
    match (&source.talos_factory, &source.container_disk, &source.http) {
        (Some(talos), None, None) => {
            let at = |field: &str| format!("spec.source.talosFactory.{field}");
            let schematic = match (&talos.schematic_id, &talos.schematic) {
                (Some(id), None) => errors.parse::<SchematicId>(&at("schematicID"), Some(id)).map(Schematic::Id),
                (None, Some(document)) => schematic_document(&at("schematic"), document, errors),
                (id, document) => {
                    // What both are is told at once.
                    errors.parse::<SchematicId>(&at("schematicID"), id.as_deref());
                    document.as_ref().and_then(|document| schematic_document(&at("schematic"), document, errors));
                    errors.push(at("schematicID"), ONE_SCHEMATIC);
                    None
                }
            };
            let version = errors.parse(&at("version"), Some(&talos.version));
            let platform = match &talos.platform {
                None => Some(Platform::default()),
                Some(text) => errors.parse(&at("platform"), Some(text)),
            };
            let architecture = architecture(&at("architecture"), &talos.architecture, errors);
            let factory_url = match &talos.factory_url {
                None => Some(TalosFactory::default_factory()),
                Some(text) => errors.parse::<HttpUrl>(&at("factoryURL"), Some(text)),
            };
            Some(Source::TalosFactory(TalosFactory {
                schematic: schematic?,
                version: version?,
                platform: platform?,
                architecture: architecture?,
                secure_boot: talos.secure_boot.unwrap_or(false),
                factory_url: factory_url?,
            }))
        }
        (None, Some(disk), None) => {
            let reference = errors.parse("spec.source.containerDisk.reference", Some(&disk.reference));
            let architecture = architecture("spec.source.containerDisk.architecture", &disk.architecture, errors);
            Some(Source::ContainerDisk { reference: reference?, architecture: architecture? })
        }
        (None, None, Some(http)) => {
            let url = errors.parse("spec.source.http.url", Some(&http.url));
            let architecture = architecture("spec.source.http.architecture", &http.architecture, errors);
            Some(Source::Http { url: url?, architecture: architecture? })
        }
        _ => {
            errors.push("spec.source", "exactly one of `talosFactory`, `containerDisk` and `http` must be set");
            // What is wrong with each of several is told at once.
            let SourceSpec { talos_factory, container_disk, http } = source.clone();
            let only = [
                talos_factory.map(|talos| SourceSpec { talos_factory: Some(talos), ..SourceSpec::default() }),
                container_disk.map(|disk| SourceSpec { container_disk: Some(disk), ..SourceSpec::default() }),
                http.map(|http| SourceSpec { http: Some(http), ..SourceSpec::default() }),
            ];
            for source in only.into_iter().flatten() {
                parse_source(&source, errors);
            }
            None
        }
    }
}

/// The longest schematic document that is posted, in characters: far beyond any real one.
const LONGEST_SCHEMATIC: usize = 64 << 10;

/// Reads a document from its YAML text; an entry of values may give it as a map too.
fn schematic_document(field: &str, given: &serde_json::Value, errors: &mut Collector) -> Option<Schematic> {
    let length = given.as_str().map_or_else(|| given.to_string().len(), |text| text.chars().count());
    if length > LONGEST_SCHEMATIC {
        errors.push(field, "must be at most 64 KiB");
        return None;
    }
    let document = match given {
        serde_json::Value::String(text) => match serde_saphyr::from_str::<serde_json::Value>(text) {
            Ok(document) => document,
            Err(error) => {
                errors.push(
                    field,
                    match yaml_fault(&error) {
                        fault if fault.ends_with(ONE_DOCUMENT) => format!("must be one YAML document: {ONE_DOCUMENT}"),
                        fault => format!("must be a schematic document in YAML: {fault}"),
                    },
                );
                return None;
            }
        },
        other => other.clone(),
    };
    if !document.is_object() {
        errors.push(field, "must be a schematic document, such as `customization: {}`");
        return None;
    }
    Some(Schematic::Document(document))
}

/// A Talos image of which not one thing says what is built into it.
pub const ONE_SCHEMATIC: &str = "exactly one of `schematicID` and `schematic` must be set";

/// Two targets of one class.
pub(super) const NAMED_TWICE: &str = "each StorageClass may be named once";

/// CDI makes no volume of less than a mebibyte either. A number alone counts bytes, and mostly lacks its unit.
fn too_small(size: DiskSize) -> String {
    let what = if size.to_string().ends_with('i') { format!("{size} is") } else { format!("{size} bytes are") };
    format!("{what} less than any disk has: write the unit too, such as `20Gi`")
}

fn parse_targets(spec: &GoldenImageSpec, errors: &mut Collector) -> Vec<Target> {
    let Some(storage) = &spec.storage else { return vec![Target::default()] };
    if storage.targets.is_empty() || storage.targets.len() > 8 {
        errors.push("spec.storage.targets", "must have 1 to 8 items");
    }
    let mut targets: Vec<Target> = Vec::new();
    for (index, target) in storage.targets.iter().take(8).enumerate() {
        let at = |field: &str| format!("spec.storage.targets[{index}].{field}");
        let class = target.storage_class_name.as_deref().filter(|name| !name.is_empty());
        let is_named = class.is_some();
        let class: Option<ClassName> = errors.parse(&at("storageClassName"), class);
        // What is no class's name was told already, and is not the default class.
        if class.is_some() == is_named && targets.iter().any(|other| other.class == class) {
            errors.push(at("storageClassName"), NAMED_TWICE);
        }
        let size: Option<DiskSize> = errors.parse(&at("size"), target.size.as_deref());
        if let Some(size) = size.filter(|size| size.bytes() < DiskSize::MIB) {
            errors.push(at("size"), too_small(size));
        }
        targets.push(Target {
            class,
            size,
            volume_mode: errors.parse(&at("volumeMode"), target.volume_mode.as_deref()),
            access_modes: target.access_modes.clone().unwrap_or_default(),
        });
    }
    targets
}

/// R18: who may clone. Without a word every tenant, unless there are credentials.
fn parse_access(spec: &GoldenImageSpec, errors: &mut Collector) -> Option<Access> {
    let Some(access) = &spec.access else {
        if spec.credentials_secret_ref.is_some() {
            errors.push("spec.access", access::MUST_STATE_ACCESS);
            return None;
        }
        return Some(Access::AllTenants);
    };
    match (access.policy.as_str(), &access.namespace_selector) {
        ("AllTenants", None) => Some(Access::AllTenants),
        ("Selected", Some(selector)) => {
            errors.take("spec.access.namespaceSelector", NamespaceSelector::try_from(selector.clone())).map(Access::Selected)
        }
        ("AllTenants", Some(_)) | ("Selected", None) => {
            errors.push("spec.access.namespaceSelector", "goes with `policy: Selected`, and only with it");
            None
        }
        (_, selector) => {
            errors.push("spec.access.policy", "must be `AllTenants` or `Selected`");
            if let Some(selector) = selector {
                errors.take("spec.access.namespaceSelector", NamespaceSelector::try_from(selector.clone()));
            }
            None
        }
    }
}

/// What is on the disk. Without a source, which was told, no rule that joins the two is asked.
fn operating_system(spec: &GoldenImageSpec, source: Option<&Source>, errors: &mut Collector) -> OperatingSystemFacts {
    const VERSION: &str = "spec.operatingSystem.kubernetesVersion";
    let given = spec.operating_system.clone().unwrap_or_default();
    let kubernetes_version: Option<KubernetesVersion> = errors.parse(VERSION, given.kubernetes_version.as_deref());
    let Some(source) = source else { return OperatingSystemFacts::default() };
    let from_source = match source {
        Source::TalosFactory(talos) => OperatingSystemFacts {
            family: Some("talos".to_owned()),
            name: Some("Talos".to_owned()),
            version: Some(talos.version.to_string()),
            kubernetes_version: None,
        },
        // A container disk with a Kubernetes in it is a Kairos image, unless it says what else it is.
        Source::ContainerDisk { .. } if given.kubernetes_version.is_some() => OperatingSystemFacts {
            family: Some(container::KAIROS.to_owned()),
            name: given.family.is_none().then(|| "Kairos".to_owned()),
            ..OperatingSystemFacts::default()
        },
        Source::ContainerDisk { .. } | Source::Http { .. } => OperatingSystemFacts::default(),
    };
    let facts = OperatingSystemFacts {
        family: given.family.or(from_source.family),
        name: given.name.or(from_source.name),
        version: given.version.or(from_source.version),
        kubernetes_version,
    };
    // A version that could not be read was told already.
    if facts.kubernetes_version.is_some() == given.kubernetes_version.is_some()
        && let Err(message) = container::kairos_pair(facts.family.as_deref(), source, facts.kubernetes_version.as_ref())
    {
        errors.push(VERSION, message);
    }
    if let (Source::ContainerDisk { reference, .. }, Some(version)) = (source, &facts.kubernetes_version)
        && let Err(message) = container::tag_agrees(reference, version)
    {
        errors.push(VERSION, message);
    }
    facts
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::parse_image;
    use crate::{
        api::GoldenImage,
        model::{Access, Usage},
        rules::Reason,
    };

    fn object(spec: Value) -> GoldenImage {
        serde_json::from_value(
            json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a" }, "spec": spec }),
        )
        .expect("readable")
    }

    #[test]
    fn defaults_follow_the_source() {
        let talos =
            parse_image(&object(json!({ "source": { "talosFactory": { "schematicID": "ce4c", "version": "v1.13.6" } } }))).expect("good");
        assert_eq!(talos.usages, [Usage::Worker]);
        assert_eq!(talos.operating_system.family.as_deref(), Some("talos"));
        assert_eq!(talos.targets.len(), 1);
        let http = parse_image(&object(json!({ "source": { "http": { "url": "https://example.org/a" } } }))).expect("good");
        assert_eq!(http.usages, [Usage::VirtualMachine]);
    }

    const DIGEST: &str = "sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";

    fn disk(tag: &str, more: Value) -> Value {
        let mut spec = json!({ "source": { "containerDisk": { "reference": format!("r.example/k{tag}@{DIGEST}") } } });
        spec.as_object_mut().expect("map").extend(more.as_object().expect("map").clone());
        spec
    }

    #[test]
    fn a_container_disk_with_a_kubernetes_version_is_kairos() {
        let kairos = parse_image(&object(disk("", json!({ "operatingSystem": { "kubernetesVersion": "v1.35.6+k3s1" } })))).expect("good");
        assert_eq!((kairos.operating_system.family.as_deref(), kairos.operating_system.name.as_deref()), (Some("kairos"), Some("Kairos")));
        assert_eq!(kairos.usages, [Usage::Worker]);
        assert_eq!(kairos.golden_name(None, None).expect("known").expect("fits").as_str(), "kairos-worker-a");
        let fedora = parse_image(&object(disk(":41", json!({ "defaults": { "preference": "fedora" } })))).expect("good");
        assert_eq!(fedora.usages, [Usage::VirtualMachine]);
        assert_eq!(fedora.defaults.preference.as_deref(), Some("fedora"));
        assert_eq!(fedora.access, Access::AllTenants);
    }

    #[rstest]
    #[case(json!({ "operatingSystem": { "family": "kairos" } }), "", "spec.operatingSystem.kubernetesVersion")]
    #[case(json!({ "operatingSystem": { "kubernetesVersion": "1.35.6" } }), "", "spec.operatingSystem.kubernetesVersion")]
    #[case(json!({ "operatingSystem": { "kubernetesVersion": "v1.35.6" } }), ":x-k3s-v1.36.1-k3s1", "spec.operatingSystem.kubernetesVersion")]
    #[case(json!({ "digest": DIGEST }), "", "spec.digest")]
    #[case(json!({ "credentialsSecretRef": { "name": "reg" } }), "", "spec.access")]
    #[case(json!({ "credentialsSecretRef": { "name": "Reg" }, "access": { "policy": "AllTenants" } }), "", "spec.credentialsSecretRef.name")]
    #[case(json!({ "access": { "policy": "Nobody" } }), "", "spec.access.policy")]
    #[case(json!({ "access": { "policy": "Selected" } }), "", "spec.access.namespaceSelector")]
    #[case(json!({ "access": { "policy": "Selected", "namespaceSelector": {} } }), "", "spec.access.namespaceSelector")]
    #[case(json!({ "access": { "policy": "AllTenants", "namespaceSelector": { "matchLabels": { "a": "b" } } } }), "", "spec.access.namespaceSelector")]
    #[case(json!({ "defaults": { "instancetype": "U1" } }), "", "spec.defaults.instancetype")]
    #[case(json!({}), ":5000x@y", "spec.source.containerDisk.reference")]
    fn r2_r18_errors_have_their_field(#[case] more: Value, #[case] tag: &str, #[case] field: &str) {
        let errors = parse_image(&object(disk(tag, more))).expect_err(field);
        assert_eq!(errors.0.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), [field], "{errors}");
    }

    #[test]
    fn r2_a_reference_that_is_not_pinned_has_a_reason_of_its_own() {
        let spec = json!({ "source": { "containerDisk": { "reference": "r.example/k:v1.35.6" } } });
        assert_eq!(parse_image(&object(spec)).expect_err("unpinned").reason(), Reason::UnpinnedReference);
        assert_eq!(parse_image(&object(json!({ "source": {} }))).expect_err("empty").reason(), Reason::InvalidEntry);
    }

    #[test]
    fn every_error_is_told_at_once_with_its_field() {
        let errors = parse_image(&object(json!({
            "source": { "talosFactory": { "schematicID": "A", "version": "1.13.6", "architecture": "x86_64" } },
            "digest": "sha256:00",
            "storage": { "targets": [{ "size": "-1" }, { "storageClassName": "a", "volumeMode": "block" }] },
        })))
        .expect_err("bad");
        let fields: Vec<_> = errors.0.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.source.talosFactory.schematicID",
                "spec.source.talosFactory.version",
                "spec.source.talosFactory.architecture",
                "spec.digest",
                "spec.storage.targets[0].size",
                "spec.storage.targets[1].volumeMode",
            ]
        );
        assert!(errors.to_string().contains("write `v1.13.6`"), "{errors}");
    }

    #[test]
    fn a_source_has_exactly_one_member() {
        for source in
            [json!({}), json!({ "http": { "url": "https://a.example/" }, "talosFactory": { "schematicID": "a", "version": "v1.0.0" } })]
        {
            assert!(parse_image(&object(json!({ "source": source }))).is_err());
        }
    }
}
