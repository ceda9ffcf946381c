//! Resuming a download: validators that prove it is still the same file, and the part that came back (RFC 9110 §8.8, §14).

use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize};

use super::answer::http_date;
use crate::model::Digest;

/// A strong validator of a file's bytes, as sent in `If-Range`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Validator {
    /// A strong `ETag`, quotes included.
    Etag(String),
    /// A `Last-Modified` old enough to be strong.
    LastModified(String),
    /// The digest that a blob of a registry is named by: whatever is served under the name is the same, or is refused in
    /// the end.
    Digest(Digest),
}

impl Validator {
    /// The longest `ETag` that is remembered, in bytes.
    const LONGEST: usize = 256;

    /// How much older than the answer a `Last-Modified` must be to stand for the bytes: a file that changes twice within its
    /// clock's grain keeps its date (RFC 9110 §8.8.2.2 asks for a second, RFC 7232 for a minute).
    const SETTLED: Duration = Duration::from_secs(60);

    /// The strong validator in an answer's headers, if there is one.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        if let Some(etag) = etag(headers) {
            // A weak ETag speaks of meaning, not of bytes; the date beside it says no more.
            return is_strong(&etag).then_some(Self::Etag(etag));
        }
        let modified = headers.get(header::LAST_MODIFIED)?;
        let age = headers.get(header::DATE).and_then(http_date)?.duration_since(http_date(modified)?).ok()?;
        (age >= Self::SETTLED).then(|| modified.to_str().ok().map(|text| Self::LastModified(text.trim().to_owned()))).flatten()
    }

    /// The value of `If-Range`.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        match self {
            Self::Etag(text) | Self::LastModified(text) => HeaderValue::from_str(text).ok(),
            Self::Digest(_) => None,
        }
    }

    /// Whether an answer's headers contradict this validator. A part need not repeat it.
    fn contradicts(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Etag(known) => etag(headers).is_some_and(|now| now != *known),
            Self::LastModified(known) => last_modified(headers).is_some_and(|now| now != *known),
            Self::Digest(_) => false,
        }
    }
}

/// The `ETag`, strong or weak, where it has the form of one and a length fit to be kept.
pub(super) fn etag(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(header::ETAG)?.to_str().ok()?.trim();
    let opaque = text.strip_prefix("W/").unwrap_or(text);
    let formed = opaque.len() >= 2 && opaque.starts_with('"') && opaque.ends_with('"');
    (formed && text.len() <= Validator::LONGEST).then(|| text.to_owned())
}

/// Whether an `ETag` stands for the very bytes.
fn is_strong(etag: &str) -> bool {
    !etag.starts_with("W/")
}

/// The `Last-Modified`, where it is a date.
pub(super) fn last_modified(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::LAST_MODIFIED)?;
    http_date(value)?;
    value.to_str().ok().map(|text| text.trim().to_owned())
}

/// A `Content-Range` of a part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContentRange {
    pub first: u64,
    pub last: u64,
    /// The whole file's length, where it is said.
    pub total: Option<u64>,
}

/// Reads `bytes 0-1/2` or `bytes 0-1/*` (RFC 9110 §14.4).
pub(super) fn content_range(headers: &HeaderMap) -> Option<ContentRange> {
    let text = headers.get(header::CONTENT_RANGE)?.to_str().ok()?.trim();
    let (range, total) = text.strip_prefix("bytes ")?.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let total = match total {
        "*" => None,
        total => Some(number(total)?),
    };
    let range = ContentRange { first: number(first)?, last: number(last)?, total };
    (range.first <= range.last && range.total.is_none_or(|total| range.last < total)).then_some(range)
}

/// The total in `bytes */2`, the form that goes with status 416.
pub(super) fn unsatisfied_total(headers: &HeaderMap) -> Option<u64> {
    number(headers.get(header::CONTENT_RANGE)?.to_str().ok()?.trim().strip_prefix("bytes */")?)
}

fn number(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|c| c.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Checks that a 206 is the rest of the same file from `offset` on; the whole file's length where it is said.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn check_rest(headers: &HeaderMap, offset: u64, total: Option<u64>, validator: &Validator) -> Result<Option<u64>, String> {
    let part = content_range(headers).ok_or_else(|| "a part without a readable `Content-Range`".to_owned())?;
    if part.first != offset {
        return Err(format!("bytes from {} on instead of from {offset} on", part.first));
    }
    if let (Some(was), Some(now)) = (total, part.total)
        && was != now
    {
        return Err(format!("a part of a file of {now} bytes instead of {was}"));
    }
    if validator.contradicts(headers) {
        return Err("a part of another version of the file".to_owned());
    }
    Ok(part.total.or(total))
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use rstest::rstest;

    use super::{ContentRange, Validator, check_rest, content_range, unsatisfied_total};

    fn headers(items: &[(&'static str, &str)]) -> HeaderMap {
        items.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().expect("value"))).collect()
    }

    const DATE: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:50:37 GMT");

    #[rstest]
    #[case(&[("etag", "\"a\"")], Some(Validator::Etag("\"a\"".into())))]
    #[case(&[("etag", "W/\"a\"")], None)]
    #[case(&[("etag", "a")], None)]
    #[case(&[("etag", "\"")], None)]
    #[case(&[], None)]
    #[case(&[("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"), DATE], Some(Validator::LastModified("Sun, 06 Nov 1994 08:49:37 GMT".into())))]
    #[case(&[("last-modified", "Sun, 06 Nov 1994 08:49:38 GMT"), DATE], None)]
    #[case(&[("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")], None)]
    #[case(&[("last-modified", "yesterday"), DATE], None)]
    #[case(&[("etag", "W/\"a\""), ("last-modified", "Sun, 06 Nov 1994 08:00:00 GMT"), DATE], None)]
    fn strong_validators(#[case] items: &[(&'static str, &str)], #[case] expected: Option<Validator>) {
        assert_eq!(Validator::of(&headers(items)), expected);
    }

    #[test]
    fn a_huge_etag_is_none() {
        let huge = format!("\"{}\"", "a".repeat(300));
        assert_eq!(Validator::of(&headers(&[("etag", &huge)])), None);
    }

    #[rstest]
    #[case("bytes 5-9/10", Some((5, 9, Some(10))))]
    #[case("bytes 5-9/*", Some((5, 9, None)))]
    #[case("bytes 5-10/10", None)]
    #[case("bytes 9-5/10", None)]
    #[case("bytes */10", None)]
    #[case("bytes -5/10", None)]
    #[case("bytes 5-/10", None)]
    #[case("bytes +5-9/10", None)]
    #[case("items 5-9/10", None)]
    #[case("bytes 5-9", None)]
    #[case("bytes 5-99999999999999999999/*", None)]
    fn content_ranges(#[case] text: &str, #[case] expected: Option<(u64, u64, Option<u64>)>) {
        let expected = expected.map(|(first, last, total)| ContentRange { first, last, total });
        assert_eq!(content_range(&headers(&[("content-range", text)])), expected);
    }

    #[test]
    fn totals_of_416() {
        assert_eq!(unsatisfied_total(&headers(&[("content-range", "bytes */10")])), Some(10));
        assert_eq!(unsatisfied_total(&headers(&[("content-range", "bytes */*")])), None);
    }

    #[rstest]
    #[case(&[("content-range", "bytes 5-9/10")], Some(10), Ok(Some(10)))]
    #[case(&[("content-range", "bytes 5-9/*")], Some(10), Ok(Some(10)))]
    #[case(&[("content-range", "bytes 5-7/10"), ("etag", "\"a\"")], None, Ok(Some(10)))]
    #[case(&[("content-range", "bytes 5-9/*")], None, Ok(None))]
    #[case(&[("content-range", "bytes 0-9/10")], Some(10), Err("bytes from 0 on instead of from 5 on"))]
    #[case(&[("content-range", "bytes 5-10/11")], Some(10), Err("a part of a file of 11 bytes instead of 10"))]
    #[case(&[("content-range", "bytes 5-9/10"), ("etag", "\"b\"")], Some(10), Err("a part of another version of the file"))]
    #[case(&[("content-range", "bytes 5-9/10"), ("etag", "W/\"a\"")], Some(10), Err("a part of another version of the file"))]
    #[case(&[("content-type", "multipart/byteranges")], Some(10), Err("a part without a readable `Content-Range`"))]
    fn rests(#[case] items: &[(&'static str, &str)], #[case] total: Option<u64>, #[case] expected: Result<Option<u64>, &str>) {
        let validator = Validator::Etag("\"a\"".to_owned());
        assert_eq!(check_rest(&headers(items), 5, total, &validator), expected.map_err(str::to_owned));
    }
}
