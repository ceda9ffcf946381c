//! What a request's `Range` and preconditions ask for (RFC 9110 sections 13 and 14), as a pure function.

use std::ops::Range;

use http::{HeaderMap, HeaderValue, Method, header};

/// What to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// 200, all of it.
    Whole,
    /// 206, these bytes.
    Bytes(Range<u64>),
    /// 416: the range begins past the end.
    Unsatisfiable,
    /// 304: the client has it.
    NotModified,
    /// 412: the client wants another disk than this one.
    PreconditionFailed,
}

/// Decides for a representation of `length` bytes with the strong `etag`. Order of evaluation: RFC 9110 section 13.2.2.
pub(super) fn wanted(method: &Method, headers: &HeaderMap, etag: &str, length: u64) -> Part {
    if headers.contains_key(header::IF_MATCH) && !any_tag(headers.get_all(header::IF_MATCH), |tag| tag == etag) {
        return Part::PreconditionFailed;
    }
    // Weak comparison: a proxy may have weakened our tag.
    if any_tag(headers.get_all(header::IF_NONE_MATCH), |tag| tag.strip_prefix("W/").unwrap_or(tag) == etag) {
        return Part::NotModified;
    }
    // Range is defined for GET only (section 14.2).
    let Some(range) = headers.get(header::RANGE).filter(|_| method == Method::GET) else { return Part::Whole };
    // A date never matches: no Last-Modified is sent.
    if headers.get(header::IF_RANGE).is_some_and(|tag| tag.as_bytes() != etag.as_bytes()) {
        return Part::Whole;
    }
    match range.to_str().ok().and_then(|text| single(text, length)) {
        None => Part::Whole,
        Some(range) if range.is_empty() => Part::Unsatisfiable,
        Some(range) => Part::Bytes(range),
    }
}

fn any_tag<'a>(values: impl IntoIterator<Item = &'a HeaderValue>, matches: impl Fn(&str) -> bool) -> bool {
    let mut tags = values.into_iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    tags.any(|tag| tag.trim() == "*" || matches(tag.trim()))
}

/// The one range in the header, empty if it cannot be satisfied; `None` where the header is to be ignored because it is
/// malformed, of another unit, or asks for several ranges.
fn single(text: &str, length: u64) -> Option<Range<u64>> {
    let (unit, spec) = text.split_once('=')?;
    let (first, last) = spec.trim().split_once('-')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    // A number too large for u64 is past any end.
    let number = |digits: &str| match digits {
        "" => None,
        _ if digits.bytes().all(|c| c.is_ascii_digit()) => Some(digits.parse().unwrap_or(u64::MAX)),
        _ => None,
    };
    match (first, last) {
        ("", last) => Some(length.saturating_sub(number(last)?)..length),
        (first, "") => Some(number(first)?.min(length)..length),
        (first, last) => {
            let (first, last): (u64, u64) = (number(first)?, number(last)?);
            (first <= last).then(|| first.min(length)..last.saturating_add(1).min(length))
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, Method};
    use proptest::prelude::*;
    use rstest::rstest;

    use super::{Part, wanted};

    const ETAG: &str = "\"sha256:00\"";

    fn of(method: Method, headers: &[(&str, &str)]) -> Part {
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (name.parse::<HeaderName>().expect("name"), value.parse().expect("value"))).collect();
        wanted(&method, &headers, ETAG, 100)
    }

    #[rstest]
    #[case("bytes=0-0", Part::Bytes(0..1))]
    #[case("bytes=0-99", Part::Bytes(0..100))]
    #[case("bytes=0-100", Part::Bytes(0..100))]
    #[case("Bytes = 10-19", Part::Bytes(10..20))]
    #[case("bytes=10-", Part::Bytes(10..100))]
    #[case("bytes=-10", Part::Bytes(90..100))]
    #[case("bytes=-1000", Part::Bytes(0..100))]
    #[case("bytes=99-", Part::Bytes(99..100))]
    #[case("bytes=0-99999999999999999999999", Part::Bytes(0..100))]
    #[case("bytes=100-", Part::Unsatisfiable)]
    #[case("bytes=100-200", Part::Unsatisfiable)]
    #[case("bytes=-0", Part::Unsatisfiable)]
    #[case("bytes=99999999999999999999999-", Part::Unsatisfiable)]
    #[case("bytes=20-10", Part::Whole)]
    #[case("bytes=0-1,5-6", Part::Whole)]
    #[case("bytes=-", Part::Whole)]
    #[case("bytes=a-b", Part::Whole)]
    #[case("bytes=+1-2", Part::Whole)]
    #[case("bytes", Part::Whole)]
    #[case("rows=0-1", Part::Whole)]
    fn reads_one_range(#[case] range: &str, #[case] part: Part) {
        assert_eq!(of(Method::GET, &[("range", range)]), part);
        assert_eq!(of(Method::HEAD, &[("range", range)]), Part::Whole);
    }

    #[rstest]
    #[case(&[("if-range", ETAG)], Part::Bytes(0..1))]
    #[case(&[("if-range", "W/\"sha256:00\"")], Part::Whole)]
    #[case(&[("if-range", "\"other\"")], Part::Whole)]
    #[case(&[("if-range", "Wed, 21 Oct 2015 07:28:00 GMT")], Part::Whole)]
    #[case(&[("if-match", ETAG)], Part::Bytes(0..1))]
    #[case(&[("if-match", "*")], Part::Bytes(0..1))]
    #[case(&[("if-match", "\"a\", \"sha256:00\"")], Part::Bytes(0..1))]
    #[case(&[("if-match", "\"other\"")], Part::PreconditionFailed)]
    #[case(&[("if-none-match", "\"a\", W/\"sha256:00\"")], Part::NotModified)]
    #[case(&[("if-none-match", "\"other\"")], Part::Bytes(0..1))]
    fn obeys_preconditions(#[case] headers: &[(&str, &str)], #[case] part: Part) {
        assert_eq!(of(Method::GET, &[headers, &[("range", "bytes=0-0")]].concat()), part);
    }

    proptest! {
        #[test]
        fn no_header_gives_bytes_that_are_not_there(text in "(bytes=)?[0-9,\\- a]{0,30}", length in 0_u64..200) {
            let headers = HeaderMap::from_iter([(http::header::RANGE, text.parse().expect("value"))]);
            if let Part::Bytes(range) = wanted(&Method::GET, &headers, ETAG, length) {
                prop_assert!(range.start < range.end && range.end <= length);
            }
        }
    }
}
