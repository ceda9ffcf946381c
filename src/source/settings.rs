//! What a hoster may set about egress: plain data, parsed once at start.

use std::{net::SocketAddr, time::Duration};

use serde::Deserialize;

use super::{mirror::Mirrors, proxy::ProxySettings};

/// How the daemon reaches upstreams.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressSettings {
    /// Treats loopback addresses like private ones (`--egress-allow-loopback`): a host that the hoster wrote may be there.
    /// For tests only; said in the log.
    pub allow_loopback: bool,
    /// Lets redirects and token realms lead to private addresses.
    pub allow_private_redirects: bool,
    /// Asks this DNS server over UDP instead of the system's resolver (`--resolver ADDR`). For tests only; said in the log.
    pub resolver: Option<SocketAddr>,
    /// HTTP(S) proxies and what goes around them.
    pub proxy: ProxySettings,
    /// PEM certificates trusted besides the system's, for every upstream.
    pub ca_bundle: Option<String>,
    /// For each host, the places that serve the same files.
    pub mirrors: Mirrors,
    /// How long each step may take.
    pub deadlines: Deadlines,
    /// How much of each thing is accepted.
    pub caps: Caps,
}

/// How long each step of a download may take. In text: `25m`, `60s`, `1500ms`, `1h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Deadlines {
    /// Name resolution, TCP, proxy tunnel and TLS handshake of one connection, together. 30 s.
    #[serde(deserialize_with = "duration")]
    pub connect: Duration,
    /// From the first connection to the headers of the final answer, redirects included. 25 min: a factory builds an image
    /// in up to 20 min (`build` timeout of siderolabs/image-factory) and answers nothing meanwhile.
    #[serde(deserialize_with = "duration")]
    pub first_byte: Duration,
    /// The longest wait for [`Caps::idle_progress`] bytes of a body; time during which nobody reads does not count. 60 s.
    #[serde(deserialize_with = "duration")]
    pub idle: Duration,
    /// How long a body may come slower than [`Caps::least_rate`] on average; counted as for `idle`. 10 min: long enough for a link or a
    /// mirror that is slow for a while.
    #[serde(deserialize_with = "duration")]
    pub slow: Duration,
    /// The longest `Retry-After` that is honoured; a longer one is cut to this. 1 h.
    #[serde(deserialize_with = "duration")]
    pub retry_after: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            first_byte: Duration::from_secs(25 * 60),
            idle: Duration::from_secs(60),
            slow: Duration::from_secs(10 * 60),
            retry_after: Duration::from_secs(60 * 60),
        }
    }
}

/// How much of each thing an upstream may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Caps {
    /// Redirects followed for one request. 5.
    pub redirects: usize,
    /// Bytes of a response head. 64 KiB; at least 8 KiB.
    pub header_bytes: usize,
    /// Bytes read of an error's body, for its text. 8 KiB.
    pub error_bytes: usize,
    /// Bytes that must arrive within [`Deadlines::idle`], so that a drip of single bytes does not count as progress. 64 KiB.
    pub idle_progress: u64,
    /// Bytes a second that must come of a body on average over each [`Deadlines::slow`], so that a download ends in a time that its size
    /// bounds and nobody keeps a turn to fetch by a drip that `idle_progress` lets pass; 0 asks for none. 32 KiB: both turns at once
    /// on a line of a megabit still bring twice that, and 4 GiB take at most a day and a half.
    pub least_rate: u64,
    /// Bytes of one artifact as downloaded. 256 GiB.
    pub artifact_bytes: u64,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            redirects: 5,
            header_bytes: 64 << 10,
            error_bytes: 8 << 10,
            idle_progress: 64 << 10,
            least_rate: 32 << 10,
            artifact_bytes: 256 << 30,
        }
    }
}

/// Reads `90s`, `25m`, `1h` or `1500ms`.
fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text)
        .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a duration: write a whole number and `ms`, `s`, `m` or `h`")))
}

/// A whole number with one unit, at most a week: a deadline beyond that is a slip of the pen.
fn parse_duration(text: &str) -> Option<Duration> {
    let (number, millis) = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)]
        .into_iter()
        .find_map(|(unit, millis)| text.strip_suffix(unit).map(|number| (number, millis)))?;
    let number: u64 = if number.bytes().all(|c| c.is_ascii_digit()) { number.parse().ok()? } else { return None };
    let duration = Duration::from_millis(number.checked_mul(millis)?);
    (!duration.is_zero() && duration <= Duration::from_secs(7 * 24 * 3600)).then_some(duration)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::{EgressSettings, parse_duration};

    #[rstest]
    #[case("60s", 60_000)]
    #[case("25m", 1_500_000)]
    #[case("1h", 3_600_000)]
    #[case("1500ms", 1_500)]
    fn reads_durations(#[case] text: &str, #[case] millis: u64) {
        assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)));
    }

    #[rstest]
    #[case("")]
    #[case("60")]
    #[case("s")]
    #[case("0s")]
    #[case("-1s")]
    #[case("+1s")]
    #[case("1.5h")]
    #[case("1d")]
    #[case("99999999999999999999h")]
    #[case("8760h")]
    fn refuses_other_durations(#[case] text: &str) {
        assert_eq!(parse_duration(text), None);
    }

    #[test]
    fn settings_read_from_json_and_have_defaults() {
        let empty: EgressSettings = serde_json::from_str("{}").expect("empty");
        assert_eq!(empty, EgressSettings::default());
        assert_eq!(empty.deadlines.first_byte, Duration::from_secs(1500));
        assert_eq!(empty.deadlines.idle, Duration::from_secs(60));
        let set: EgressSettings = serde_json::from_str(
            r#"{"deadlines":{"idle":"5s"},"mirrors":{"Cloud.Example":["https://m.example/a"]},"proxy":{"https":"http://u:p@proxy:3128","noProxy":".svc,10.0.0.0/8"}}"#,
        )
        .expect("settings");
        assert_eq!(set.deadlines.idle, Duration::from_secs(5));
        assert_eq!(set.deadlines.connect, Duration::from_secs(30));
        let shown = format!("{set:?}");
        assert!(!shown.contains("u:p") && !shown.contains("\"p\""), "{shown}");
    }

    #[rstest]
    #[case(r#"{"alowLoopback":true}"#)]
    #[case(r#"{"deadlines":{"idle":5}}"#)]
    #[case(r#"{"proxy":{"https":"socks5://proxy"}}"#)]
    #[case(r#"{"mirrors":{"a/b":["https://m.example"]}}"#)]
    #[case(r#"{"mirrors":{"a":["ftp://m.example"]}}"#)]
    fn refuses_other_settings(#[case] text: &str) {
        assert!(serde_json::from_str::<EgressSettings>(text).is_err(), "{text}");
    }
}
