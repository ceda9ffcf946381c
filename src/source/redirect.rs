//! Where a redirect may lead.

use http::{HeaderValue, StatusCode};
use url::Url;

use super::{
    address::Trust,
    error::{RedirectRefusal, shown},
};

/// The longest accepted `Location`, in bytes: presigned URLs with session tokens are about 2 KiB.
const LONGEST: usize = 8 << 10;

/// The next request of a chain.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hop {
    pub url: Url,
    /// Whether the guard treats the host as one that the hoster wrote.
    pub trust: Trust,
    /// Whether credentials go along: only to the very origin they were given for.
    pub keeps_credentials: bool,
}

/// Whether `status` sends the client elsewhere (RFC 9110 §15.4; 300, 304, 305 and 306 do not).
pub(super) fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Where `location`, the answer of `from`, leads in a chain that began at `written`.
///
/// # Errors
/// The target in its public form and why it is not followed.
pub(super) fn next_hop(
    written: &Url,
    from: &Url,
    status: StatusCode,
    location: Option<&HeaderValue>,
    has_body: bool,
) -> Result<Hop, (String, RedirectRefusal)> {
    let text = location.and_then(|value| value.to_str().ok()).filter(|text| !text.trim().is_empty() && text.len() <= LONGEST);
    let Some(mut url) = text.and_then(|text| from.join(text.trim()).ok()) else {
        return Err(("a `Location` that is missing or malformed".to_owned(), RedirectRefusal::Unusable));
    };
    url.set_fragment(None);
    let refuse = |why| Err((shown(&url), why));
    if !matches!(url.scheme(), "http" | "https") {
        return refuse(RedirectRefusal::Scheme);
    }
    if url.host_str().is_none_or(str::is_empty) {
        return refuse(RedirectRefusal::Unusable);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refuse(RedirectRefusal::Credentials);
    }
    if from.scheme() == "https" && url.scheme() == "http" {
        return refuse(RedirectRefusal::Downgrade);
    }
    if has_body && !(matches!(status.as_u16(), 307 | 308) && is_same_place(from, &url)) {
        return refuse(RedirectRefusal::Body);
    }
    let trust = if is_same_place(written, &url) { Trust::Written } else { Trust::Led };
    let keeps_credentials = written.origin() == url.origin();
    Ok(Hop { url, trust, keeps_credentials })
}

/// Whether `to` is the server that `from` names: same host and port, or its default `https` in place of its default `http`.
pub(super) fn is_same_place(from: &Url, to: &Url) -> bool {
    let (was, is) = (from.port_or_known_default(), to.port_or_known_default());
    from.host() == to.host() && (was == is || (was, is) == (Some(80), Some(443)))
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, StatusCode};
    use rstest::rstest;
    use url::Url;

    use super::{Hop, next_hop};
    use crate::source::{address::Trust, error::RedirectRefusal};

    fn hop(written: &str, from: &str, status: u16, location: &str, body: bool) -> Result<Hop, (String, RedirectRefusal)> {
        let url = |text: &str| Url::parse(text).expect(text);
        let location = HeaderValue::from_str(location).ok();
        next_hop(&url(written), &url(from), StatusCode::from_u16(status).expect("status"), location.as_ref(), body)
    }

    #[rstest]
    #[case("https://a.example/x", "/y", "https://a.example/y", Trust::Written, true)]
    #[case("https://a.example/x", "y?q=1#f", "https://a.example/y?q=1", Trust::Written, true)]
    #[case("https://a.example/x", "https://a.example:443/y", "https://a.example/y", Trust::Written, true)]
    #[case("https://a.example/x", "https://a.example:8443/y", "https://a.example:8443/y", Trust::Led, false)]
    #[case("https://a.example/x", "https://b.example/y", "https://b.example/y", Trust::Led, false)]
    #[case("https://a.example/x", "//b.example/y", "https://b.example/y", Trust::Led, false)]
    #[case("http://a.example/x", "https://a.example/x", "https://a.example/x", Trust::Written, false)]
    #[case("http://a.example:80/x", "http://A.example/y", "http://a.example/y", Trust::Written, true)]
    #[case("http://a.example:8080/x", "https://a.example/x", "https://a.example/x", Trust::Led, false)]
    fn followed(#[case] from: &str, #[case] location: &str, #[case] to: &str, #[case] trust: Trust, #[case] keeps_credentials: bool) {
        let expected = Hop { url: Url::parse(to).expect(to), trust, keeps_credentials };
        assert_eq!(hop(from, from, 302, location, false), Ok(expected));
    }

    #[rstest]
    #[case("http://a.example/y", RedirectRefusal::Downgrade)]
    #[case("ftp://a.example/y", RedirectRefusal::Scheme)]
    #[case("file:///etc/passwd", RedirectRefusal::Scheme)]
    #[case("https://u:hunter2@a.example/y", RedirectRefusal::Credentials)]
    #[case("https://", RedirectRefusal::Unusable)]
    #[case("", RedirectRefusal::Unusable)]
    fn refused(#[case] location: &str, #[case] why: RedirectRefusal) {
        let (shown, got) = hop("https://a.example/x", "https://a.example/x", 302, location, false).expect_err(location);
        assert_eq!(got, why);
        assert!(!shown.contains("hunter2"));
    }

    #[test]
    fn a_signature_is_not_shown_and_a_long_location_not_used() {
        let (shown, _) = hop("https://a.example/", "https://a.example/", 302, "http://s3.example/k?X-Amz-Signature=hunter2", false)
            .expect_err("downgrade");
        assert_eq!(shown, "http://s3.example/k?…");
        let long = format!("https://a.example/{}", "a".repeat(9000));
        assert_eq!(hop("https://a.example/", "https://a.example/", 302, &long, false).expect_err("long").1, RedirectRefusal::Unusable);
    }

    #[test]
    fn trust_is_judged_against_what_was_written_and_the_way_back_is_free() {
        let back = hop("https://a.example/x", "https://cdn.example/y", 302, "https://a.example/z", false).expect("hop");
        assert_eq!((back.trust, back.keeps_credentials), (Trust::Written, true));
    }

    #[rstest]
    #[case(307, "https://a.example/y", true)]
    #[case(308, "https://a.example/y", true)]
    #[case(302, "https://a.example/y", false)]
    #[case(301, "https://a.example/y", false)]
    #[case(307, "https://b.example/y", false)]
    fn bodies_stay(#[case] status: u16, #[case] location: &str, #[case] followed: bool) {
        assert_eq!(hop("https://a.example/x", "https://a.example/x", status, location, true).is_ok(), followed);
    }
}
