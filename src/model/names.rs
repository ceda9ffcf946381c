use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Architecture, InvalidValue, SchematicId, Source, text_value};

/// Whether `text` is a DNS-1123 subdomain of at most `longest` characters, the form of most Kubernetes object names.
fn is_object_name(text: &str, longest: usize) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    (1..=longest).contains(&text.len()) && text.split('.').all(label)
}

macro_rules! object_name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $longest:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The longest accepted name, in characters.
            pub const LONGEST: usize = $longest;

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        text_value!($name);

        impl FromStr for $name {
            type Err = InvalidValue;

            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                if is_object_name(text, $longest) {
                    return Ok(Self(text.to_owned()));
                }
                let accepted = format!(
                    "must be at most {} characters of lowercase letters, digits, `-` and `.`, beginning and ending with a letter or digit; it has {}",
                    $longest,
                    text.chars().count(),
                );
                Err(InvalidValue::new($what, text, accepted))
            }
        }
    };
}

object_name!(
    /// The name of a `GoldenImage`: at most 63 characters, because it is also a label value.
    ImageName, "image name", 63
);
object_name!(
    /// The name of a StorageClass.
    ClassName, "StorageClass name", 253
);
object_name!(
    /// The name of a golden: its DataVolume, its PVC and its header Secret.
    ///
    /// With a 64-character schematic ID such a name has 85 characters, so it can be an annotation, never a label value.
    GoldenName, "golden name", 253
);

object_name!(
    /// The name of a Secret in the daemon's namespace.
    SecretName, "Secret name", 253
);

/// What of an image its goldens' names depend on.
#[derive(Debug, Clone, Copy)]
pub struct Naming<'a> {
    /// Where the bytes come from.
    pub source: &'a Source,
    /// The ID a factory gave for a schematic document.
    pub resolved: Option<&'a SchematicId>,
    /// The GoldenImage's name.
    pub image: &'a ImageName,
    /// Whether VM users may choose the image; today's console lists exactly the prefix that such goldens get.
    pub for_virtual_machines: bool,
    /// Whether the operating system is Kairos.
    pub is_kairos: bool,
}

impl GoldenName {
    /// The name of an image's golden (docs/architecture.md, "Names"), or `None` while a schematic's ID is not known.
    ///
    /// The first target made gets the name without a class; `class` is given for each further one.
    ///
    /// # Errors
    /// When the name would be longer than an object name may be; the message says how long it would be.
    pub fn derive(naming: Naming<'_>, class: Option<&ClassName>) -> Option<Result<Self, InvalidValue>> {
        let mut name = match naming.source {
            Source::TalosFactory(talos) => {
                let mut name = format!("talos-worker-{}-{}", talos.schematic.id().or(naming.resolved)?, talos.version);
                let usual = talos.platform.as_str() == "openstack" && talos.architecture == Architecture::Amd64;
                if !usual || talos.secure_boot {
                    name = format!("{name}-{}-{}", talos.platform, talos.architecture);
                }
                if talos.secure_boot {
                    name.push_str("-secureboot");
                }
                name
            }
            _ if naming.for_virtual_machines => format!("vm-default-images-{}", naming.image),
            _ if naming.is_kairos => format!("kairos-worker-{}", naming.image),
            _ => format!("golden-{}", naming.image),
        };
        if let Some(class) = class {
            name = format!("{name}-{class}");
        }
        Some(name.parse())
    }
}

/// Whether `text` has 1 to 63 characters, with `inner` ones not at its ends.
pub fn is_label(text: &str, outer: impl Fn(char) -> bool, inner: &str) -> bool {
    (1..=63).contains(&text.chars().count())
        && text.starts_with(&outer)
        && text.ends_with(&outer)
        && text.chars().all(|c| outer(c) || inner.contains(c))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{ClassName, GoldenName, ImageName, Naming};
    use crate::model::{Architecture, Schematic, Source, TalosFactory};

    fn talos(platform: &str, architecture: Architecture, secure_boot: bool) -> Source {
        Source::TalosFactory(TalosFactory {
            schematic: Schematic::Id("ce4c".parse().expect("id")),
            version: "v1.13.6".parse().expect("version"),
            platform: platform.parse().expect("platform"),
            architecture,
            secure_boot,
            factory_url: TalosFactory::default_factory(),
        })
    }

    fn http() -> Source {
        Source::Http { url: "https://example.org/a.qcow2".parse().expect("url"), architecture: Architecture::Amd64 }
    }

    #[rstest]
    #[case(talos("openstack", Architecture::Amd64, false), false, false, None, "talos-worker-ce4c-v1.13.6")]
    #[case(talos("openstack", Architecture::Arm64, false), false, false, None, "talos-worker-ce4c-v1.13.6-openstack-arm64")]
    #[case(talos("metal", Architecture::Amd64, true), false, false, None, "talos-worker-ce4c-v1.13.6-metal-amd64-secureboot")]
    #[case(talos("openstack", Architecture::Amd64, true), false, false, None, "talos-worker-ce4c-v1.13.6-openstack-amd64-secureboot")]
    #[case(talos("openstack", Architecture::Amd64, false), true, false, Some("local"), "talos-worker-ce4c-v1.13.6-local")]
    #[case(http(), true, false, None, "vm-default-images-image-1.0")]
    #[case(http(), false, true, None, "kairos-worker-image-1.0")]
    #[case(http(), false, false, Some("replicated"), "golden-image-1.0-replicated")]
    fn names_by_the_contract(
        #[case] source: Source,
        #[case] vm: bool,
        #[case] kairos: bool,
        #[case] class: Option<&str>,
        #[case] name: &str,
    ) {
        let image: ImageName = "image-1.0".parse().expect("name");
        let class = class.map(|class| class.parse::<ClassName>().expect("class"));
        let naming = Naming { source: &source, resolved: None, image: &image, for_virtual_machines: vm, is_kairos: kairos };
        let derived = GoldenName::derive(naming, class.as_ref()).expect("known").expect("fits");
        assert_eq!(derived.as_str(), name);
    }

    #[rstest]
    #[case("a", true)]
    #[case("ubuntu-24.04", true)]
    #[case("talos-v1.13.6-b5a1de36eb14", true)]
    #[case("", false)]
    #[case("-a", false)]
    #[case("a-", false)]
    #[case("a..b", false)]
    #[case("a.", false)]
    #[case("A", false)]
    #[case("a_b", false)]
    #[case("a/b", false)]
    fn object_names(#[case] text: &str, #[case] good: bool) {
        assert_eq!(text.parse::<ImageName>().is_ok(), good, "{text}");
    }

    #[test]
    fn an_image_name_fits_a_label() {
        assert!("a".repeat(63).parse::<ImageName>().is_ok());
        let error = "a".repeat(64).parse::<ImageName>().expect_err("64");
        assert!(error.to_string().contains("it has 64"), "{error}");
    }
}
