use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A Kubernetes quantity of bytes as another project wrote it, read by value.
///
/// Other people's objects hold every spelling the API server accepts (`20Gi`, `1e9`, `1500m`, the bare number 5368709120), so this is wider than `model::DiskSize`, which is for values our own users write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quantity(String);

/// Suffixes as powers: of 1024, of 1000, and the small decimal ones (`apimachinery/pkg/api/resource/suffix.go`).
const SUFFIXES: [(&str, u128, u128); 16] = [
    ("", 1, 1),
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("P", 1_000_000_000_000_000, 1),
    ("E", 1_000_000_000_000_000_000, 1),
    ("m", 1, 1_000),
    ("u", 1, 1_000_000),
    ("n", 1, 1_000_000_000),
];

impl Quantity {
    /// The longest quantity that is read, in characters; a number that fits a quantity needs no more.
    const LONGEST: usize = 48;

    /// A quantity as written.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value in bytes, fractions rounded up as the API server rounds them; `None` where it is no quantity, negative, or more than 2^63 - 1.
    pub fn bytes(&self) -> Option<u64> {
        let text = self.0.trim();
        if text.len() > Self::LONGEST {
            return None;
        }
        let text = text.strip_prefix('+').unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let (times, over) = scale(suffix)?;
        let fraction = fraction.trim_end_matches('0');
        let ten = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
        let scaled = digits(whole)?.checked_mul(ten)?.checked_add(digits(fraction)?)?.checked_mul(times)?;
        let bytes = scaled.div_ceil(ten.checked_mul(over)?);
        u64::try_from(bytes).ok().filter(|bytes| i64::try_from(*bytes).is_ok())
    }
}

/// What a suffix or a decimal exponent multiplies and divides by.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    if let Some((_, times, over)) = SUFFIXES.iter().find(|(known, ..)| *known == suffix) {
        return Some((*times, *over));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let ten = 10_u128.checked_pow(exponent.unsigned_abs()).filter(|_| exponent.unsigned_abs() <= 30)?;
    Some(if exponent < 0 { (1, ten) } else { (ten, 1) })
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self(text)),
            Value::Number(number) => Ok(Self(number.to_string())),
            other => Err(serde::de::Error::custom(format_args!("a quantity is text or a number, not {other}"))),
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::Quantity;

    #[rstest]
    #[case("20Gi", Some(20 << 30))]
    #[case("6144Mi", Some(6 << 30))]
    #[case("6.0Gi", Some(6 << 30))]
    #[case("6442450944", Some(6 << 30))]
    #[case("6G", Some(6_000_000_000))]
    #[case("1e9", Some(1_000_000_000))]
    #[case("1E9", Some(1_000_000_000))]
    #[case("1E", Some(1_000_000_000_000_000_000))]
    #[case("12e-1", Some(2))]
    #[case("1500m", Some(2))]
    #[case("0.5", Some(1))]
    #[case(".5Ki", Some(512))]
    #[case("5.Ki", Some(5120))]
    #[case("+5", Some(5))]
    #[case("0", Some(0))]
    #[case("-1", None)]
    #[case("", None)]
    #[case(".", None)]
    #[case("Gi", None)]
    #[case("6GiB", None)]
    #[case("1e3Gi", None)]
    #[case("1e999999999", None)]
    #[case("8Ei", None)]
    #[case("99999999999999999999999999999999999999999999999999", None)]
    fn reads_by_value(#[case] text: &str, #[case] bytes: Option<u64>) {
        assert_eq!(Quantity::from(text).bytes(), bytes, "{text}");
    }

    #[test]
    fn a_bare_number_is_a_quantity() {
        let read: Quantity = serde_json::from_str("5368709120").expect("a number");
        assert_eq!(read.bytes(), Some(5 << 30));
        assert!(serde_json::from_str::<Quantity>("[]").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = Quantity::from(text.as_str()).bytes();
        }

        #[test]
        fn every_number_with_any_known_suffix_is_safe(number in "[0-9]{1,45}(\\.[0-9]{0,45})?", suffix in "(Ki|Ei|E|m|n|e[0-9]{1,4}|E-[0-9]{1,4})?") {
            let _ = Quantity::from(format!("{number}{suffix}").as_str()).bytes();
        }
    }
}
