//! Indexes, manifests and configurations, read with suspicion: what they are is told by their content.

use oci_spec::image::{Arch, Descriptor, ImageIndex, ImageManifest, Os};
use serde_json::Value;

use super::{Layer, RegistryFault};
use crate::{
    model::{Architecture, Digest, VirtualMachineDefaults},
    source::answer::clean,
};

/// The most layers that are read; engines stop at 127.
const MOST_LAYERS: usize = 128;

/// What a registry calls a manifest.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time, and not for long")]
pub(super) enum Document {
    Index(ImageIndex),
    Manifest(ImageManifest),
}

impl Document {
    pub fn parse(bytes: &[u8]) -> Result<Self, RegistryFault> {
        let unreadable = |what: &str| RegistryFault::Unreadable { what: what.to_owned() };
        let value: Value = serde_json::from_slice(bytes).map_err(|_| unreadable("it is not JSON"))?;
        let (list, layers) = (value.get("manifests").is_some(), value.get("layers").is_some());
        if value.get("schemaVersion").and_then(Value::as_u64) == Some(1) || value.get("fsLayers").is_some() {
            return Err(unreadable("it is of Docker's schema 1, which no digest pins; push the image anew"));
        }
        match (list, layers) {
            // Read as one thing here and as another elsewhere (CVE-2021-41190).
            (true, true) => Err(unreadable("it has both `manifests` and `layers`")),
            (true, false) => serde_json::from_value(value).map(Self::Index).map_err(|_| unreadable("its `manifests` cannot be read")),
            (false, true) => {
                // The types of oci-spec insist on more than is needed here.
                if let Some(found) = value.get("artifactType").and_then(Value::as_str).filter(|kind| !kind.is_empty()) {
                    return Err(RegistryFault::Artifact { found: clean(found, &[]) });
                }
                serde_json::from_value(value).map(Self::Manifest).map_err(|_| unreadable("its `config` or `layers` cannot be read"))
            }
            (false, false) => match value.get("mediaType").and_then(Value::as_str) {
                Some(found) => Err(RegistryFault::Artifact { found: clean(found, &[]) }),
                None => Err(unreadable("it has neither `manifests` nor `layers`")),
            },
        }
    }
}

/// The digest of the index's image for `architecture`: the first one made for it, as container engines choose.
pub(super) fn choose(index: &ImageIndex, architecture: Architecture) -> Result<Digest, RegistryFault> {
    let (attestations, images): (Vec<_>, Vec<_>) = index.manifests().iter().partition(|entry| is_attestation(entry));
    if images.is_empty() {
        let count = attestations.len();
        return if count > 0 {
            Err(RegistryFault::OnlyAttestations { count })
        } else {
            Err(RegistryFault::WrongArchitecture { wanted: architecture, found: "an empty index".to_owned() })
        };
    }
    let fits = |entry: &&&Descriptor| {
        entry
            .platform()
            .as_ref()
            .is_some_and(|platform| is_for(platform.os(), platform.architecture(), platform.variant().as_deref(), architecture))
    };
    let chosen = images.iter().find(fits).or_else(|| match &images[..] {
        // Nothing says what it is for but its own configuration, which is looked at in any case.
        [only] if only.platform().is_none() => Some(only),
        _ => None,
    });
    match chosen {
        Some(entry) => digest(entry),
        None => {
            let found: Vec<_> = images.iter().take(12).map(|entry| platform(entry)).collect();
            Err(RegistryFault::WrongArchitecture { wanted: architecture, found: found.join(", ") })
        }
    }
}

/// What buildkit adds to an index beside the images: provenance and SBOMs.
fn is_attestation(entry: &Descriptor) -> bool {
    let marked = entry.annotations().as_ref().is_some_and(|all| all.contains_key("vnd.docker.reference.type"));
    let unknown = entry
        .platform()
        .as_ref()
        .is_some_and(|platform| *platform.architecture() == Arch::from("unknown") && *platform.os() == Os::from("unknown"));
    marked || unknown
}

fn is_for(os: &Os, arch: &Arch, variant: Option<&str>, wanted: Architecture) -> bool {
    let variant = variant.filter(|variant| !variant.is_empty());
    let fits = match wanted {
        Architecture::Amd64 => *arch == Arch::Amd64 && matches!(variant, None | Some("v1")),
        Architecture::Arm64 => *arch == Arch::ARM64 && matches!(variant, None | Some("v8")),
    };
    fits && *os == Os::Linux
}

fn platform(entry: &Descriptor) -> String {
    let text = entry.platform().as_ref().map(|platform| {
        let variant = platform.variant().as_ref().map(|variant| format!("/{variant}")).unwrap_or_default();
        format!("{}/{}{variant}", platform.os(), platform.architecture())
    });
    text.map_or_else(|| "an image without a platform".to_owned(), |text| clean(&text, &[]))
}

/// A manifest's parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub config: Digest,
    pub layers: Vec<Layer>,
}

pub(super) fn parts(manifest: &ImageManifest) -> Result<Parts, RegistryFault> {
    const CONFIGS: [&str; 2] = ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
    const EMPTY: &str = "application/vnd.oci.empty.v1+json";
    let kind = manifest.config().media_type().to_string();
    if kind == EMPTY {
        return Err(RegistryFault::EmptyConfig { found: format!("it is of type {EMPTY:?}") });
    }
    if !CONFIGS.contains(&kind.as_str()) {
        return Err(RegistryFault::Artifact { found: clean(&kind, &[]) });
    }
    let descriptors = manifest.layers();
    if descriptors.is_empty() {
        return Err(RegistryFault::NoLayers);
    }
    if descriptors.len() > MOST_LAYERS {
        return Err(RegistryFault::TooManyLayers { count: descriptors.len(), limit: MOST_LAYERS });
    }
    let layer = |entry: &Descriptor| match entry.urls() {
        Some(urls) if !urls.is_empty() => Err(RegistryFault::ForeignLayer),
        _ => Ok(Layer { digest: digest(entry)?, size: entry.size() }),
    };
    Ok(Parts { config: digest(manifest.config())?, layers: descriptors.iter().map(layer).collect::<Result<_, _>>()? })
}

fn digest(entry: &Descriptor) -> Result<Digest, RegistryFault> {
    let text = entry.digest().to_string();
    text.parse().map_err(|_| RegistryFault::UnsupportedDigest { found: clean(&text, &[]) })
}

/// Checks what the image says it is made for, and gives what it says about virtual machines: environment variables, by
/// which `kubevirt/containerdisks` and CDI hand instance types on.
pub(super) fn config(bytes: &[u8], wanted: Architecture) -> Result<VirtualMachineDefaults, RegistryFault> {
    let empty = |found: &str| RegistryFault::EmptyConfig { found: found.to_owned() };
    let value: Value = serde_json::from_slice(bytes).map_err(|_| empty("it is not JSON"))?;
    let text = |key: &str| value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let Some(architecture) = text("architecture") else { return Err(empty("it names no architecture")) };
    let os = text("os").unwrap_or("linux");
    if (architecture, os) != (wanted.as_str(), "linux") {
        return Err(RegistryFault::WrongArchitecture { wanted, found: clean(&format!("{os}/{architecture}"), &[]) });
    }
    let environment = value.pointer("/config/Env").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let mut defaults = VirtualMachineDefaults::default();
    for (key, given) in environment.filter_map(|line| line.split_once('=')).filter(|(_, given)| is_name(given)) {
        match key {
            "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE" => defaults.instancetype = Some(given.to_owned()),
            "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE" => defaults.preference = Some(given.to_owned()),
            _ => {}
        }
    }
    Ok(defaults)
}

/// Whether a text can be the name of an instance type, and the value of a label.
fn is_name(text: &str) -> bool {
    let outer = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&text.len()) && text.starts_with(outer) && text.ends_with(outer) && text.chars().all(|c| outer(c) || "-.".contains(c))
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
