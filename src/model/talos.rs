use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{InvalidValue, text_value};

/// The ID of a Talos Image Factory schematic (R1): 1 to 64 lowercase letters and digits.
///
/// A real ID is 64 hex characters; the wider pattern is the platform's, so that both sides build the same names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SchematicId(String);

impl SchematicId {
    /// R1's pattern, the same in the CRD and the chart's templates.
    pub const PATTERN: &str = "^[a-z0-9]{1,64}$";

    /// The ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
text_value!(SchematicId);

impl FromStr for SchematicId {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let fits = (1..=64).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidValue::new("schematic ID", text, "must be 1 to 64 lowercase letters and digits (R1)"))
        }
    }
}

/// A Talos release (R1): `vMAJOR.MINOR.PATCH` without leading zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TalosVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

impl TalosVersion {
    /// R1's pattern, the same in the CRD and the chart's templates.
    pub const PATTERN: &str = r"^v(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})$";

    /// The version as (major, minor, patch).
    pub const fn parts(self) -> (u32, u32, u32) {
        (self.major, self.minor, self.patch)
    }
}

impl std::fmt::Display for TalosVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for TalosVersion {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let number = |part: &str| {
            let plain = (1..=9).contains(&part.len()) && part.bytes().all(|c| c.is_ascii_digit());
            (plain && (part == "0" || !part.starts_with('0'))).then(|| part.parse().ok()).flatten()
        };
        let parse = |rest: &str| {
            let mut parts = rest.split('.');
            let version = Self { major: number(parts.next()?)?, minor: number(parts.next()?)?, patch: number(parts.next()?)? };
            parts.next().is_none().then_some(version)
        };
        if let Some(version) = text.strip_prefix('v').and_then(parse) {
            return Ok(version);
        }
        let accepted = match parse(text) {
            Some(version) => format!("the leading `v` is missing: write `{version}` (R1)"),
            None => "must be `vMAJOR.MINOR.PATCH` without leading zeros, such as `v1.13.6` (R1)".to_owned(),
        };
        Err(InvalidValue::new("Talos version", text, accepted))
    }
}

impl TryFrom<String> for TalosVersion {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

impl From<TalosVersion> for String {
    fn from(version: TalosVersion) -> Self {
        version.to_string()
    }
}

/// The platform of a Talos disk image, such as `openstack`, `nocloud` or `metal`.
///
/// Cozystack's workers boot `openstack` disks because Cluster API Provider KubeVirt injects a config drive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Platform(String);

impl Platform {
    /// The accepted form, the same in the CRD and the values schema.
    pub const PATTERN: &str = "^[a-z0-9]{1,32}$";

    /// The platform as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
text_value!(Platform);

impl Default for Platform {
    fn default() -> Self {
        Self("openstack".to_owned())
    }
}

impl FromStr for Platform {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let fits = (1..=32).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidValue::new("Talos platform", text, "must be 1 to 32 lowercase letters and digits, such as `openstack`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{SchematicId, TalosVersion};

    #[test]
    fn r1_schematic_ids() {
        let longest = "a".repeat(64);
        for good in ["a", "0", "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515", &longest] {
            assert!(good.parse::<SchematicId>().is_ok(), "{good}");
        }
        let long = "a".repeat(65);
        for bad in ["", "A", "a-b", "a b", "a/../b", "é", "a\n", &long] {
            assert!(bad.parse::<SchematicId>().is_err(), "{bad}");
        }
    }

    #[rstest]
    #[case("v1.13.6")]
    #[case("v0.0.0")]
    #[case("v10.200.3000")]
    fn r1_versions(#[case] text: &str) {
        assert_eq!(text.parse::<TalosVersion>().expect(text).to_string(), text);
    }

    #[rstest]
    #[case("")]
    #[case("v1.13")]
    #[case("v1.13.06")]
    #[case("v01.13.6")]
    #[case("v1.13.6-beta.0")]
    #[case("v1.13.6.7")]
    #[case("v1.13.6 ")]
    #[case("v1..6")]
    #[case("v1.13.+6")]
    #[case("V1.13.6")]
    #[case("v1.13.9999999999")]
    fn r1_refuses(#[case] text: &str) {
        assert!(text.parse::<TalosVersion>().is_err(), "{text}");
    }

    #[test]
    fn r1_names_the_corrected_form() {
        let error = "1.13.6".parse::<TalosVersion>().expect_err("no v");
        assert!(error.to_string().contains("write `v1.13.6`"), "{error}");
    }

    #[test]
    fn versions_order_as_numbers_do() {
        let [a, b]: [TalosVersion; 2] = ["v1.0.9", "v1.0.12"].map(|v| v.parse().expect(v));
        assert!(a < b);
    }
}
