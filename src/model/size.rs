use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::InvalidValue;

/// A size of a disk in whole bytes, above zero, read from and written as a Kubernetes quantity.
///
/// Two spellings of one number are equal: `6Gi` = `6144Mi`. See the Kubernetes quantity format
/// (`apimachinery/pkg/api/resource`); exponents and milli-units make no sense for a disk and are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DiskSize(u64);

/// Binary and decimal suffixes with their factors, largest last in each family.
const SUFFIXES: [(&str, u64); 13] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("", 1),
];

impl DiskSize {
    /// One mebibyte, the grain in which CDI and this daemon round volumes.
    pub const MIB: u64 = 1 << 20;

    /// A size of `bytes`; `None` for zero and for more than a quantity can hold (2^63 - 1).
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        if bytes == 0 || bytes > i64::MAX as u64 { None } else { Some(Self(bytes)) }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The smallest whole number of mebibytes that holds this size.
    #[must_use]
    pub const fn round_up_to_mib(self) -> Self {
        let rounded = self.0.div_ceil(Self::MIB).saturating_mul(Self::MIB);
        Self(if rounded > i64::MAX as u64 { i64::MAX as u64 } else { rounded })
    }
}

impl fmt::Display for DiskSize {
    /// The shortest exact binary form: `6Gi`, `4247Mi`, `196624`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (suffix, factor) = SUFFIXES[..6].iter().rev().find(|(_, factor)| self.0.is_multiple_of(*factor)).unwrap_or(&("", 1));
        write!(f, "{}{suffix}", self.0 / factor)
    }
}

impl FromStr for DiskSize {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let invalid = |why: &str| InvalidValue::new("disk size", text, why);
        const FORM: &str = "must be a whole number of bytes above zero, such as `6Gi`, `6144Mi` or `6442450944`";
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let factor = SUFFIXES.iter().find(|(known, _)| *known == suffix).map(|(_, factor)| *factor);
        let factor = factor.ok_or_else(|| invalid(FORM))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(invalid(FORM));
        }
        // The CRD's pattern takes neither, and an API server would refuse what was taken here.
        if whole.is_empty() || number.ends_with('.') {
            return Err(invalid("must have digits on both sides of its point, such as `0.5Gi`"));
        }
        let digits = |text: &str| if text.is_empty() { Ok(0) } else { text.parse::<u128>().map_err(|_| invalid(FORM)) };
        let fraction = fraction.trim_end_matches('0');
        if fraction.len() > 18 {
            return Err(invalid(FORM));
        }
        let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
        let too_large = || invalid("is more than a Kubernetes quantity can hold");
        let scaled = digits(whole)?
            .checked_mul(scale)
            .and_then(|n| n.checked_add(digits(fraction).ok()?))
            .and_then(|n| n.checked_mul(u128::from(factor)))
            .ok_or_else(too_large)?;
        if scaled % scale != 0 {
            return Err(invalid(FORM));
        }
        let bytes = u64::try_from(scaled / scale).map_err(|_| too_large())?;
        if bytes == 0 {
            return Err(invalid(FORM));
        }
        Self::from_bytes(bytes).ok_or_else(too_large)
    }
}

impl TryFrom<String> for DiskSize {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

impl From<DiskSize> for String {
    fn from(size: DiskSize) -> Self {
        size.to_string()
    }
}

/// A number of bytes as people write it: `1 byte`, `5 bytes`.
pub fn in_bytes(count: u64) -> String {
    if count == 1 { "1 byte".to_owned() } else { format!("{count} bytes") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::DiskSize;

    #[rstest]
    #[case("6Gi", 6 << 30, "6Gi")]
    #[case("6144Mi", 6 << 30, "6Gi")]
    #[case("6442450944", 6 << 30, "6Gi")]
    #[case("6.0Gi", 6 << 30, "6Gi")]
    #[case("1.5Gi", 3 << 29, "1536Mi")]
    #[case("6G", 6_000_000_000, "5859375Ki")]
    #[case("500M", 500_000_000, "488281250Ki")]
    #[case("1", 1, "1")]
    #[case("0.5Ki", 512, "512")]
    fn reads_quantities_by_value(#[case] text: &str, #[case] bytes: u64, #[case] shown: &str) {
        let size: DiskSize = text.parse().expect(text);
        assert_eq!(size.bytes(), bytes);
        // 500M is no whole number of KiB: the shown form is then the bytes themselves.
        if size.bytes().is_multiple_of(1024) {
            assert_eq!(size.to_string(), shown)
        } else {
            assert_eq!(size.to_string(), bytes.to_string())
        }
    }

    #[rstest]
    #[case("")]
    #[case("0")]
    #[case("0Gi")]
    #[case("-6Gi")]
    #[case("+6Gi")]
    #[case("1e3Gi")]
    #[case("1e3")]
    #[case("100m")]
    #[case("6gb")]
    #[case("6GiB")]
    #[case("6 Gi")]
    #[case("1.2.3Gi")]
    #[case(".")]
    #[case(".5Gi")]
    #[case("1.")]
    #[case("1.Gi")]
    #[case("0.1")]
    #[case("16Ei")]
    #[case("99999999999999999999999999999999999999999")]
    fn refuses_what_is_no_size(#[case] text: &str) {
        assert!(text.parse::<DiskSize>().is_err(), "{text}");
    }

    proptest! {
        #[test]
        fn every_size_reads_back(bytes in 1..=i64::MAX as u64) {
            let size = DiskSize::from_bytes(bytes).expect("in range");
            prop_assert_eq!(size.to_string().parse::<DiskSize>(), Ok(size));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<DiskSize>();
        }
    }
}
