//! Other places that serve the same files.
//!
//! The mirrors of a host are asked in the order in which they are listed, the host itself last: a mirror is there to spare
//! the origin, and in an air gap the origin only costs a timeout. A mirror's base URL may be the origin's own; the origin is
//! then asked in that place. A place that served bad bytes during this fetch is asked after all others, and a download that
//! is resumed goes back to the place it came from first. Credentials belong to the origin and are not shown to a mirror.

use std::collections::BTreeMap;

use serde::Deserialize;
use url::Position;

use crate::model::{HttpUrl, InvalidValue};

/// For each host (`host` or `host:port`), the base URLs that stand in its place, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "BTreeMap<String, Vec<HttpUrl>>")]
pub struct Mirrors(BTreeMap<String, Vec<HttpUrl>>);

/// One place to ask for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub url: HttpUrl,
    pub is_origin: bool,
}

impl TryFrom<BTreeMap<String, Vec<HttpUrl>>> for Mirrors {
    type Error = InvalidValue;

    fn try_from(map: BTreeMap<String, Vec<HttpUrl>>) -> Result<Self, InvalidValue> {
        map.into_iter()
            .map(|(host, bases)| {
                let parsed: Option<HttpUrl> = format!("https://{host}").parse().ok();
                let plain =
                    parsed.is_some_and(|url| url.url()[Position::AfterPort..].trim_start_matches('/').is_empty()) && !host.ends_with('/');
                if !plain {
                    return Err(InvalidValue::new("host of a mirror list", &host, "must be `host` or `host:port`"));
                }
                if bases.iter().any(|base| base.url().query().is_some()) {
                    return Err(InvalidValue::new("mirror", &host, "its base URLs must not have a query"));
                }
                Ok((host.to_ascii_lowercase(), bases))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl Mirrors {
    /// The places to ask for `origin`, in order: `first` before the others, `demoted` after them.
    pub(super) fn places(&self, origin: &HttpUrl, first: Option<&HttpUrl>, demoted: &[HttpUrl]) -> Vec<Place> {
        let mut places: Vec<Place> = self.bases(origin).iter().map(|base| rebased(origin, base)).collect();
        if !places.iter().any(|place| place.is_origin) {
            places.push(Place { url: origin.clone(), is_origin: true });
        }
        // Stable: what is equal keeps the listed order.
        places.sort_by_key(|place| if first == Some(&place.url) { 0 } else { 1 + u8::from(demoted.contains(&place.url)) });
        places
    }

    fn bases(&self, origin: &HttpUrl) -> &[HttpUrl] {
        let url = origin.url();
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        self.0
            .get(&format!("{host}:{port}"))
            .or_else(|| self.0.get(&url[Position::BeforeHost..Position::AfterPort]))
            .map_or(&[], Vec::as_slice)
    }
}

/// The file of `origin` below a mirror's base.
fn rebased(origin: &HttpUrl, base: &HttpUrl) -> Place {
    let mut url = base.url().clone();
    let path = format!("{}{}", base.url().path().trim_end_matches('/'), origin.url().path());
    url.set_path(&path);
    url.set_query(origin.url().query());
    if url == *origin.url() {
        return Place { url: origin.clone(), is_origin: true };
    }
    // A base and a path that together exceed a URL's bounds are no place to ask; the origin then is.
    match url.as_str().parse() {
        Ok(url) => Place { url, is_origin: false },
        Err(_) => Place { url: origin.clone(), is_origin: true },
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Mirrors;
    use crate::model::HttpUrl;

    fn url(text: &str) -> HttpUrl {
        text.parse().expect(text)
    }

    fn places(json: &str, origin: &str, first: Option<&str>, demoted: &[&str]) -> Vec<String> {
        let mirrors: Mirrors = serde_json::from_str(json).expect(json);
        let demoted: Vec<_> = demoted.iter().map(|text| url(text)).collect();
        mirrors
            .places(&url(origin), first.map(url).as_ref(), &demoted)
            .iter()
            .map(|place| format!("{}{}", place.url, if place.is_origin { " origin" } else { "" }))
            .collect()
    }

    const TWO: &str = r#"{"up.example": ["https://a.example/up/", "https://b.example"]}"#;

    #[test]
    fn mirrors_in_order_and_the_origin_last() {
        assert_eq!(
            places(TWO, "https://up.example/x/y.img?v=1", None, &[]),
            ["https://a.example/up/x/y.img?v=1", "https://b.example/x/y.img?v=1", "https://up.example/x/y.img?v=1 origin"]
        );
        assert_eq!(places(TWO, "https://other.example/x", None, &[]), ["https://other.example/x origin"]);
    }

    #[test]
    fn a_bad_place_is_asked_last_and_a_resumed_one_first() {
        let origin = "https://up.example/x";
        assert_eq!(
            places(TWO, origin, None, &["https://a.example/up/x"]),
            ["https://b.example/x", "https://up.example/x origin", "https://a.example/up/x"]
        );
        assert_eq!(
            places(TWO, origin, Some(origin), &[]),
            ["https://up.example/x origin", "https://a.example/up/x", "https://b.example/x"]
        );
    }

    #[test]
    fn the_origin_may_be_listed() {
        let listed = r#"{"up.example": ["https://up.example", "https://b.example"]}"#;
        assert_eq!(places(listed, "https://up.example/x", None, &[]), ["https://up.example/x origin", "https://b.example/x"]);
    }

    #[rstest]
    #[case(r#"{"up.example:8443": ["https://a.example"]}"#, "https://up.example:8443/x", 2)]
    #[case(r#"{"up.example:8443": ["https://a.example"]}"#, "https://up.example/x", 1)]
    #[case(r#"{"up.example:443": ["https://a.example"]}"#, "https://up.example/x", 2)]
    #[case(r#"{"UP.example": ["https://a.example"]}"#, "https://Up.Example/x", 2)]
    #[case(r#"{"up.example": []}"#, "https://up.example/x", 1)]
    fn hosts_and_ports(#[case] json: &str, #[case] origin: &str, #[case] count: usize) {
        assert_eq!(places(json, origin, None, &[]).len(), count);
    }

    #[rstest]
    #[case(r#"{"https://up.example": ["https://a.example"]}"#)]
    #[case(r#"{"up.example/": ["https://a.example"]}"#)]
    #[case(r#"{"": ["https://a.example"]}"#)]
    #[case(r#"{"u:p@up.example": ["https://a.example"]}"#)]
    #[case(r#"{"up.example": ["https://a.example?x=y"]}"#)]
    fn refuses_other_lists(#[case] json: &str) {
        assert!(serde_json::from_str::<Mirrors>(json).is_err(), "{json}");
    }
}
