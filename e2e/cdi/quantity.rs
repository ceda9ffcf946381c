//! Kubernetes quantities as whole bytes, read by code of our own so that a fault in the product's parser cannot hide here.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// One mebibyte, the grain to which CDI rounds.
pub const MIB: u64 = 1 << 20;

/// The number of bytes of `quantity` rounded up, or `None` where it is no quantity or below zero.
pub fn bytes(quantity: &str) -> Option<u64> {
    let text = quantity.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '+' || c == '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let factor: f64 = match suffix {
        "" => 1.0,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024f64,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        exponent if exponent.starts_with(['e', 'E']) => 10f64.powi(exponent[1..].parse().ok()?),
        _ => return None,
    };
    // Whole numbers are multiplied as integers: a float loses bytes above 2^53.
    if let (Ok(whole), true) = (number.parse::<u64>(), factor >= 1.0) {
        return whole.checked_mul(factor as u64);
    }
    let value = number.parse::<f64>().ok()? * factor;
    (value >= 0.0).then(|| value.ceil() as u64)
}

/// `bytes` as the plain number that CDI itself writes for computed sizes.
pub fn quantity(bytes: u64) -> Quantity {
    Quantity(bytes.to_string())
}

/// `bytes` rounded up to a whole mebibyte.
pub fn round_up(bytes: u64) -> u64 {
    bytes.div_ceil(MIB) * MIB
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("6Gi", Some(6 << 30)),
            ("6144Mi", Some(6 << 30)),
            ("6G", Some(6_000_000_000)),
            ("1.5Gi", Some(3 << 29)),
            ("1e3", Some(1000)),
            ("100m", Some(1)),
            ("9007199254740993", Some(9_007_199_254_740_993)),
            ("-1", None),
            ("big", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
