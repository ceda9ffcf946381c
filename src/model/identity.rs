use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Architecture, InvalidValue, SchematicId, Source, digest::hex, text_value};

/// What an image *is*, whatever its name: the first 40 hex characters of the sha256 of its identity line (docs/architecture.md, "Names").
///
/// Two entries of one identity are one image (R3). Sixty-three characters fit in a label, so an identity does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Identity(String);

impl Identity {
    /// The identity of `source`, or `None` where a schematic document has not been given its ID by the factory yet.
    pub fn of(source: &Source, resolved: Option<&SchematicId>) -> Option<Self> {
        Some(Self::of_line(&Self::line(source, resolved)?))
    }

    /// The identity of the container disk with this digest, which is how a `WorkerClass` finds its golden.
    pub fn of_container_disk(digest: &super::Digest, architecture: Architecture) -> Self {
        Self::of_line(&format!("containerDisk/{digest}/{architecture}"))
    }

    /// The line whose hash is the identity. `None` as in [`Identity::of`].
    pub fn line(source: &Source, resolved: Option<&SchematicId>) -> Option<String> {
        Some(match source {
            Source::TalosFactory(talos) => {
                let id = talos.schematic.id().or(resolved)?;
                let (version, platform, architecture) = (talos.version, &talos.platform, talos.architecture);
                let secure_boot = if talos.secure_boot { "/secureboot" } else { "" };
                format!("talosFactory/{id}/{version}/{platform}/{architecture}{secure_boot}")
            }
            Source::ContainerDisk { reference, architecture } => format!("containerDisk/{}/{architecture}", reference.digest()),
            Source::Http { url, architecture } => format!("http/{url}/{architecture}"),
        })
    }

    fn of_line(line: &str) -> Self {
        Self(hex(&Sha256::digest(line.as_bytes())[..20]))
    }

    /// The 40 hex characters.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first twelve characters, used where an entry has no name of its own.
    pub fn short(&self) -> &str {
        &self.0[..12]
    }
}
text_value!(Identity);

impl FromStr for Identity {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text.len() == 40 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidValue::new("image identity", text, "must be 40 lowercase hex characters"))
        }
    }
}

impl AsRef<str> for Identity {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::LowerHex for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Identity;
    use crate::model::{Architecture, Schematic, Source, TalosFactory};

    fn talos(id: &str, version: &str, platform: &str, architecture: Architecture, secure_boot: bool) -> Source {
        Source::TalosFactory(TalosFactory {
            schematic: Schematic::Id(id.parse().expect("id")),
            version: version.parse().expect("version"),
            platform: platform.parse().expect("platform"),
            architecture,
            secure_boot,
            factory_url: TalosFactory::default_factory(),
        })
    }

    const AGENT: &str = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";
    const VANILLA: &str = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba";

    /// The lines of docs/architecture.md, "Names".
    #[rstest]
    #[case(talos(AGENT, "v1.13.6", "openstack", Architecture::Amd64, false), "b5a1de36eb142062339331fa8ae78f6f44c83fad")]
    #[case(talos(VANILLA, "v1.11.1", "openstack", Architecture::Arm64, false), "60f78b83c53254a6474b96b7a65a7c2581707056")]
    #[case(talos(VANILLA, "v1.13.6", "metal", Architecture::Amd64, true), "8159c7499a67c440dc904d0c41bd44fdea07a6b5")]
    #[case(Source::ContainerDisk {
        reference: "quay.io/containerdisks/fedora@sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8".parse().expect("reference"),
        architecture: Architecture::Arm64,
    }, "2ae5d0d484384e8188b4fd6dbb1236c7ee65ca9a")]
    #[case(Source::Http {
        url: "https://cloud.debian.org/images/cloud/bookworm/20261101-2000/debian-12-generic-amd64-20261101-2000.qcow2".parse().expect("url"),
        architecture: Architecture::Amd64,
    }, "499a5402c853f95aac9037715e3230727dc03e9b")]
    fn matches_the_contract(#[case] source: Source, #[case] identity: &str) {
        assert_eq!(Identity::of(&source, None).expect("known").as_str(), identity);
    }

    #[test]
    fn a_document_has_the_identity_of_its_resolved_id() {
        let Source::TalosFactory(mut by_document) = talos(AGENT, "v1.13.6", "openstack", Architecture::Amd64, false) else {
            unreachable!()
        };
        by_document.schematic = Schematic::Document(serde_json::json!({"customization": {}}));
        let source = Source::TalosFactory(by_document);
        assert_eq!(Identity::of(&source, None), None);
        let id = AGENT.parse().expect("id");
        assert_eq!(Identity::of(&source, Some(&id)).expect("known").as_str(), "b5a1de36eb142062339331fa8ae78f6f44c83fad");
    }
}
