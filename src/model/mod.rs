//! Values that cannot be wrong.
//!
//! Everything that crosses into the catalog from outside (values, objects, answers of an upstream) is parsed into one of
//! these types once, at the edge. A function that takes a [`SchematicId`] need not check it again.

mod access;
mod architecture;
mod container;
mod digest;
mod identity;
mod image;
mod kubernetes;
mod names;
mod redact;
mod same;
mod shown;
mod size;
mod source;
mod talos;
mod volume;

pub use access::{Access, NamespaceSelector};
pub use architecture::Architecture;
pub use container::ContainerFacts;
pub use digest::Digest;
pub use identity::Identity;
pub use image::{Image, OperatingSystemFacts, Target, Usage, VirtualMachineDefaults};
pub use kubernetes::KubernetesVersion;
pub use names::{ClassName, GoldenName, ImageName, Naming, SecretName, is_label};
pub use redact::{DISK_PATH, redact};
pub use same::Sameness;
pub use shown::{public_address, public_url, public_words};
pub use size::{DiskSize, in_bytes};
pub use source::{ContainerReference, HttpUrl, Schematic, Source, TalosFactory};
pub use talos::{Platform, SchematicId, TalosVersion};
pub use volume::VolumeMode;

/// A value from outside that has not the accepted form.
///
/// The text names what was given and what would be accepted; whoever parses a field adds the field's path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a valid {what}: {accepted}")]
pub struct InvalidValue {
    /// What the value should have been, in words ("schematic ID").
    pub what: &'static str,
    /// What was given, cut to a length fit for a message.
    pub given: String,
    /// The accepted form, and where one can be named, the corrected value.
    pub accepted: String,
}

impl InvalidValue {
    /// The longest piece of a given value that a message repeats, in characters.
    const SHOWN: usize = 120;

    /// An error about `given`, which is shortened when it is very long, and shown without the secrets of an address that
    /// was written into the wrong field.
    pub fn new(what: &'static str, given: &str, accepted: impl Into<String>) -> Self {
        Self::shown(what, &public_words(given), accepted)
    }

    /// The same, where `given` holds nothing any more that must not be repeated.
    pub fn shown(what: &'static str, given: &str, accepted: impl Into<String>) -> Self {
        let given =
            if given.chars().count() > Self::SHOWN { given.chars().take(Self::SHOWN).chain(['…']).collect() } else { given.to_owned() };
        Self { what, given, accepted: accepted.into() }
    }
}

/// Gives a string newtype its common traits: `Display`, `FromStr`-based `TryFrom<String>`, and serde by its text.
macro_rules! text_value {
    ($name:ident) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::model::InvalidValue;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}
pub(crate) use text_value;
