//! What an upstream says in words: statuses that are not the file, their text, and `Retry-After`.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode, header};
use zeroize::Zeroizing;

use super::{
    Response,
    error::{Fault, SourceError},
};
use crate::model::public_words;

/// The longest text of an upstream that a message repeats, in characters.
const LONGEST: usize = 300;

/// `text` fit for a message: one line without control or direction characters, without `secrets`, cut to a bound. An HTML
/// page says nothing and becomes empty.
pub(super) fn clean(text: &str, secrets: &[Zeroizing<String>]) -> String {
    let mut text = text.to_owned();
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        text = text.replace(secret.as_str(), "…");
    }
    let text: String = text.chars().map(|c| if is_unfit(c) { ' ' } else { c }).collect();
    let mut line = public_words(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    if line.starts_with('<') {
        return String::new();
    }
    if line.chars().count() > LONGEST {
        line = line.chars().take(LONGEST).chain(['…']).collect();
    }
    line
}

/// Characters that change how a line is shown: controls, zero-width ones, and those that turn the direction of writing.
fn is_unfit(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fffd}')
}

/// The delay that `Retry-After` asks for (RFC 9110 §10.2.3), at most `cap`. A date is read against upstream's own clock where
/// it tells it (`Date`), since that is the clock it was written by.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime, cap: Duration) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()) {
        return Some(text.parse().map_or(cap, Duration::from_secs).min(cap));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    let now = headers.get(header::DATE).and_then(http_date).unwrap_or(now);
    Some(at.duration_since(now).unwrap_or_default().min(cap))
}

/// The time in a header, in any of the three forms of RFC 9110 §5.6.7.
pub(super) fn http_date(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?.trim()).ok()
}

/// What an odd status means where nothing better is known about the upstream, and what to do about it.
const fn meaning(status: StatusCode) -> Option<&'static str> {
    match status.as_u16() {
        204 | 205 => Some("it has no content under this address: write the address of the file itself"),
        407 => Some("a proxy on the way wants credentials: write them into `egress.proxy`"),
        413 => Some("it, or a proxy before it, does not pass a file of this size: raise its limit, or go another way by a mirror"),
        416 => Some("it refuses a part, though the whole file was asked for: mend the server, or the cache before it"),
        _ => None,
    }
}

impl Response {
    /// This answer as an error, with as much of its text as is fit to be repeated. `hint` sees status and text.
    pub(super) async fn refusal(mut self, hint: impl FnOnce(StatusCode, &str) -> Option<&'static str>) -> SourceError {
        let status = self.status;
        let retry_after = retry_after(&self.headers, SystemTime::now(), self.egress.inner.settings.deadlines.retry_after);
        let text =
            if self.encoding().is_none() { self.body.text(self.egress.inner.settings.caps.error_bytes).await } else { String::new() };
        let text = clean(&text, &self.secrets);
        let hint = hint(status, &text).or(meaning(status));
        SourceError::new(Fault::Status { status, text, retry_after, hint }, self.at())
    }

    /// The coding of the body where it is not the identity, with the header that names it.
    pub(super) fn encoding(&self) -> Option<(&'static str, String)> {
        let listed = |name: &str| -> Vec<String> {
            let values = self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
            values.flat_map(|value| value.split(',')).map(|item| item.trim().to_ascii_lowercase()).filter(|item| !item.is_empty()).collect()
        };
        let codings: Vec<_> = listed("content-encoding").into_iter().filter(|coding| coding != "identity").collect();
        if !codings.is_empty() {
            return Some(("Content-Encoding", codings.join(", ")));
        }
        let codings: Vec<_> =
            listed("transfer-encoding").into_iter().filter(|coding| !matches!(coding.as_str(), "identity" | "chunked")).collect();
        (!codings.is_empty()).then(|| ("Transfer-Encoding", codings.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use http::HeaderMap;
    use rstest::rstest;
    use zeroize::Zeroizing;

    use super::{clean, retry_after};

    const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    fn headers(items: &[(&'static str, &str)]) -> HeaderMap {
        items.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().expect("value"))).collect()
    }

    #[rstest]
    #[case("120", Some(120))]
    #[case(" 120 ", Some(120))]
    #[case("0", Some(0))]
    #[case("99999", Some(3600))]
    #[case("99999999999999999999999", Some(3600))]
    #[case("Sun, 06 Nov 1994 08:51:37 GMT", Some(120))]
    #[case("Sunday, 06-Nov-94 08:51:37 GMT", Some(120))]
    #[case("Sun Nov  6 08:51:37 1994", Some(120))]
    #[case("Sun, 06 Nov 1994 08:00:00 GMT", Some(0))]
    #[case("Sat, 06 Nov 2094 08:00:00 GMT", Some(3600))]
    #[case("soon", None)]
    #[case("-5", None)]
    #[case("1.5", None)]
    #[case("", None)]
    fn both_forms_of_retry_after(#[case] value: &str, #[case] seconds: Option<u64>) {
        let now = httpdate::parse_http_date(NOW).expect("date");
        let cap = Duration::from_secs(3600);
        assert_eq!(retry_after(&headers(&[("retry-after", value)]), now, cap), seconds.map(Duration::from_secs));
        // Upstream's clock is not ours: its own date is what counts.
        let skewed = headers(&[("retry-after", value), ("date", NOW)]);
        assert_eq!(retry_after(&skewed, SystemTime::UNIX_EPOCH, cap), seconds.map(Duration::from_secs));
    }

    #[test]
    fn texts_are_one_bounded_line_without_secrets() {
        let secrets = [Zeroizing::new("hunter2".to_owned()), Zeroizing::new(String::new())];
        assert_eq!(clean("bad\r\n\x1b[31m token hunter2!\u{202e}\n", &secrets), "bad [31m token …!");
        assert_eq!(clean("  <!DOCTYPE html><html>", &[]), "");
        assert_eq!(clean(&"a".repeat(1000), &[]).chars().count(), 301);
    }
}
