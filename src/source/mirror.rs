//! Other places that serve the same files.
//!
//! The mirrors of a host are asked in the order in which they are listed, the host itself last: a mirror is there to spare
//! the origin, and in an air gap the origin only costs a timeout. A mirror's base URL may be the origin's own; the origin is
//! then asked in that place. A place that served bad bytes during this fetch is asked after all others, and a download that
//! is resumed goes back to the place it came from first. Credentials belong to the origin and are not shown to a mirror.
//!
//! A mirror of a registry has its API at `/v2/`, and what its base URL's path says is what repositories are below there: that
//! is where Harbor, Artifactory, Nexus, GitLab and the clouds' pull-through caches keep what they mirror. A base path with a
//! part `v2` says itself where the API is.

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
                // Docker Hub's API is at another host than its images are named after.
                let host = host.to_ascii_lowercase();
                let host = if matches!(host.as_str(), "docker.io" | "index.docker.io") { "registry-1.docker.io".to_owned() } else { host };
                Ok((host, bases))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl Mirrors {
    /// The places to ask for `origin`, in order: `first` before the others, `demoted` after them.
    pub(super) fn places(&self, origin: &HttpUrl, first: Option<&HttpUrl>, demoted: &[HttpUrl]) -> Vec<Place> {
        self.placed(origin, first, demoted, |base, path| format!("{}{path}", base.trim_end_matches('/')))
    }

    /// The same for what a registry has.
    pub(super) fn registry_places(&self, origin: &HttpUrl, first: Option<&HttpUrl>, demoted: &[HttpUrl]) -> Vec<Place> {
        self.placed(origin, first, demoted, in_registry)
    }

    fn placed(&self, origin: &HttpUrl, first: Option<&HttpUrl>, demoted: &[HttpUrl], join: impl Fn(&str, &str) -> String) -> Vec<Place> {
        let rebased = |base| rebased(origin, base, join(base.url().path(), origin.url().path()));
        let mut places: Vec<Place> = self.bases(origin).iter().map(rebased).collect();
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

/// What every registry's API begins with (OCI distribution specification).
const API: &str = "/v2";

/// The path of a registry's document or layer at a mirror.
fn in_registry(base: &str, path: &str) -> String {
    let base = base.trim_end_matches('/');
    let is_part = |at: &usize| matches!(base.as_bytes().get(at + API.len()), None | Some(b'/'));
    let (root, prefix) = match base.match_indices(API).map(|(at, _)| at).find(is_part) {
        Some(at) => (&base[..at], &base[at + API.len()..]),
        None => ("", base),
    };
    format!("{root}{API}{prefix}{}", path.strip_prefix(API).unwrap_or(path))
}

impl Place {
    /// Where the API of the registry is that has this document or layer.
    pub(super) fn api_path(&self) -> String {
        let path = self.url.url().path();
        let root = path.find("/v2/").map_or("", |at| &path[..at]);
        format!("{root}{API}/")
    }

    /// The repository of this document or layer, by the name that this place has for it.
    pub(super) fn repository(&self) -> &str {
        let path = self.url.url().path();
        let path = path.split_once("/v2/").map_or(path, |(_, path)| path);
        // `…/manifests/<digest>` or `…/blobs/<digest>`.
        path.rsplitn(3, '/').nth(2).unwrap_or_default()
    }
}

/// The file of `origin` at this path of a mirror.
fn rebased(origin: &HttpUrl, base: &HttpUrl, path: String) -> Place {
    let mut url = base.url().clone();
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
    #[case(r#"{"docker.io": ["https://a.example"]}"#, "https://registry-1.docker.io/v2/x", 2)]
    fn hosts_and_ports(#[case] json: &str, #[case] origin: &str, #[case] count: usize) {
        assert_eq!(places(json, origin, None, &[]).len(), count);
    }

    /// Base URL of a mirror, what it is asked for, and by which name of the repository.
    #[rstest]
    #[case("https://m.example", "https://m.example/v2/a/b", "/v2/", "a/b")]
    #[case("https://m.example/", "https://m.example/v2/a/b", "/v2/", "a/b")]
    #[case("https://m.example/proxy-ghcr", "https://m.example/v2/proxy-ghcr/a/b", "/v2/", "proxy-ghcr/a/b")]
    #[case("https://m.example/team/proxy/", "https://m.example/v2/team/proxy/a/b", "/v2/", "team/proxy/a/b")]
    #[case("https://m.example/v2", "https://m.example/v2/a/b", "/v2/", "a/b")]
    #[case("https://m.example/v2/proxy", "https://m.example/v2/proxy/a/b", "/v2/", "proxy/a/b")]
    #[case("https://m.example/quay/v2/", "https://m.example/quay/v2/a/b", "/quay/v2/", "a/b")]
    #[case("https://m.example/quay/v2/proxy/v2", "https://m.example/quay/v2/proxy/v2/a/b", "/quay/v2/", "proxy/v2/a/b")]
    #[case("https://m.example/v2x/my-v2", "https://m.example/v2/v2x/my-v2/a/b", "/v2/", "v2x/my-v2/a/b")]
    #[case("https://r.example", "https://r.example/v2/a/b", "/v2/", "a/b")]
    fn a_registrys_mirror_may_keep_it_under_a_prefix(#[case] base: &str, #[case] asked: &str, #[case] api: &str, #[case] name: &str) {
        let mirrors: Mirrors = serde_json::from_value(serde_json::json!({ "r.example": [base] })).expect(base);
        for end in ["/manifests/sha256:0a", "/blobs/sha256:0b"] {
            let places = mirrors.registry_places(&url(&format!("https://r.example/v2/a/b{end}")), None, &[]);
            let place = &places[0];
            assert_eq!((place.url.to_string(), place.is_origin), (format!("{asked}{end}"), base == "https://r.example"));
            assert_eq!((place.api_path().as_str(), place.repository()), (api, name), "{base}");
        }
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
