use std::fmt;

use super::{Digest, Identity, Image, Schematic, SchematicId, Source};

/// By what one image is known to be another (R3).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sameness {
    /// They have one identity.
    Identity(Identity),
    /// They give one factory one schematic document for one disk: whatever ID it gets, it gets it twice.
    Document(String),
}

impl Sameness {
    /// All by which `image` can be known, whose schematic document has got the ID `resolved`, if it has: an image whose factory
    /// was not asked yet has no identity.
    pub fn of(image: &Image, resolved: Option<&SchematicId>) -> Vec<Self> {
        let document = match &image.source {
            Source::TalosFactory(talos) => match &talos.schematic {
                Schematic::Document(document) => {
                    let digest = Digest::of(document.to_string().as_bytes());
                    let (version, platform, architecture, factory) =
                        (talos.version, &talos.platform, talos.architecture, &talos.factory_url);
                    Some(format!("{digest}/{version}/{platform}/{architecture}/{}/{factory}", talos.secure_boot))
                }
                Schematic::Id(_) => None,
            },
            Source::ContainerDisk { .. } | Source::Http { .. } => None,
        };
        image.identity(resolved).map(Self::Identity).into_iter().chain(document.map(Self::Document)).collect()
    }
}

impl fmt::Display for Sameness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Identity(identity) => write!(f, "identity {identity}"),
            Self::Document(_) => f.write_str("their `schematic` is one document"),
        }
    }
}
