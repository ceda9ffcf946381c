//! What makes a set of functions one well-behaved process: who leads, what it may write, its certificates, its health, its
//! metrics, its events and its end. Nothing here knows what a golden image is.

pub mod backoff;
pub mod certs;
pub mod client;
pub mod events;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod shutdown;

/// Fills a buffer from the operating system's random source.
///
/// # Errors
/// When the system has no randomness to give, which a process must not go on without.
pub fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    rustls::crypto::aws_lc_rs::default_provider().secure_random.fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// The system's random source failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system's random source failed; no key or identity can be made")]
pub struct NoRandomness;

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        for digit in [byte >> 4, byte & 0xf] {
            text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
        text
    })
}

/// The part of an API error a person needs, without request ids, times or the whole Status (kube prints all of it, and texts
/// that change on every attempt would be written into status again and again).
pub fn api_error(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => format!("{} ({})", status.message, status.code),
        kube::Error::Api(status) => format!("HTTP {} {}", status.code, status.reason).trim_end().to_owned(),
        other => innermost(other),
    }
}

/// The text of the last error in a chain: the outer ones only say which layer passed it on.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn randomness_differs_and_hex_reads_back() {
        let (one, two) = (random::<16>().unwrap(), random::<16>().unwrap());
        assert_ne!(one, two);
        assert_eq!(hex(&[0, 0x0f, 0xa0, 0xff]), "000fa0ff");
        assert_eq!(hex(&one).len(), 32);
    }

    #[test]
    fn api_errors_read_as_one_sentence() {
        let status = kube::core::Status::failure("leases is forbidden", "Forbidden").with_code(403);
        assert_eq!(api_error(&kube::Error::Api(status.boxed())), "leases is forbidden (403)");
        let nested = kube::Error::Service(Box::new(std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused")));
        assert_eq!(api_error(&nested), "connection refused");
    }
}
