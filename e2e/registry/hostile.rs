//! Registries and token services that lead astray: where passwords and tokens go, and where nobody goes.

use std::time::Duration;

use golden_catalog::{rules::Reason, source::Credentials};
use rstest::rstest;

use crate::{
    support::{Bench, REPOSITORY, layer, pair, reference, registry},
    upstream::{
        Answer, Authority, Hit, Upstream,
        layout::{Layout, digest},
    },
};

/// An image that a scripted registry serves openly until the test bends it.
struct Image {
    layout: Layout,
    digest: String,
}

impl Image {
    fn served_by(upstream: &Upstream) -> Self {
        let mut layout = Layout::default();
        let digest = layout.image("amd64", &[layer()], &[]);
        layout.serve(upstream, REPOSITORY);
        Self { layout, digest }
    }

    /// The path of its manifest, its configuration or its layer.
    fn path(&self, part: &str) -> String {
        match part {
            "manifest" => format!("/v2/{REPOSITORY}/manifests/{}", self.digest),
            "configuration" => format!("/v2/{REPOSITORY}/blobs/{}", self.layout.config_of(&self.digest)),
            "layer" => format!("/v2/{REPOSITORY}/blobs/{}", digest(&layer())),
            other => other.to_owned(),
        }
    }
}

fn unauthorized(challenge: &str) -> Answer {
    Answer::text(401, r#"{"errors":[{"code":"UNAUTHORIZED"}]}"#).header("WWW-Authenticate", challenge)
}

/// What a token was asked for, by the query's keys.
fn asked(hit: &Hit, key: &str) -> Vec<String> {
    let query = hit.target.split_once('?').map(|(_, query)| query).unwrap_or_default();
    url::form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == key).map(|(_, value)| value.into_owned()).collect()
}

/// A registry could otherwise have a token made for somebody else's repository with the hoster's password. `ghcr.io` names a
/// repository that is none when it is asked `/v2/`.
#[rstest]
#[case::placeholder("repository:user/image:pull")]
#[case::somebody_else_s("repository:victim/secret:pull")]
#[case::one_more("repository:team/disk:pull repository:victim/secret:pull")]
#[case::more_rights("repository:team/disk:pull,push,delete")]
#[case::the_registry_s("registry:catalog:*")]
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_asked_for_to_pull_this_repository_whatever_the_registry_says(#[case] scope: &str) {
    let (authority, upstream, bench) = registry().await;
    let image = Image::served_by(&upstream);
    let realm = upstream.url("/token?account=a&scope=repository:victim/secret:pull");
    let wanted = || unauthorized(&format!("Bearer realm=\"{realm}\",service=\"s\",scope=\"{scope}\""));
    upstream.on("/v2/", wanted());
    upstream.on("/token", Answer::text(200, r#"{"token":"given"}"#));
    bench.take(&reference(&upstream, &image.digest), vec![pair("hunter2")]).await.expect("with credentials");
    upstream.sequence(&image.path("manifest"), [wanted(), image.layout.served(&image.digest)]);
    Bench::new(&authority).take(&reference(&upstream, &image.digest), Vec::new()).await.expect("without");
    let hits = upstream.hits("/token");
    assert_eq!(hits.iter().map(|hit| hit.header("authorization").is_some()).collect::<Vec<_>>(), [true, false]);
    for hit in &hits {
        assert_eq!(asked(hit, "scope"), [format!("repository:{REPOSITORY}:pull")], "{}", hit.target);
        assert_eq!((asked(hit, "service"), asked(hit, "account")), (vec!["s".to_owned()], vec!["a".to_owned()]));
    }
}

#[rstest]
#[case::with_credentials(vec![pair("hunter2")])]
#[case::without(Vec::new())]
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_insists_on_another_repository_is_refused_in_so_many_words(#[case] credentials: Vec<Credentials>) {
    let (_authority, upstream, bench) = registry().await;
    let image = Image::served_by(&upstream);
    let wanted = unauthorized(&format!("Bearer realm=\"{}\",scope=\"repository:victim/secret:pull\"", upstream.url("/token")));
    upstream.on("/v2/", wanted.clone());
    upstream.on("/token", Answer::text(200, r#"{"token":"given"}"#));
    upstream.on(&image.path("manifest"), wanted);
    let error = bench.take(&reference(&upstream, &image.digest), credentials).await.expect_err("insists");
    assert_eq!(error.reason(), Reason::Unauthorized, "{error}");
    assert!(error.to_string().contains("a token for another repository"), "{error}");
    assert_eq!(upstream.hits("/token").len(), 1);
}

/// Whoever asks without credentials would be served: a wrong password never becomes that.
#[rstest]
#[case::password(Some("Basic realm=\"r\""), "manifest", Reason::Unauthorized)]
#[case::no_word_of_it(None, "manifest", Reason::Unauthorized)]
#[case::token(Some("Bearer realm=\"{token}\""), "/token", Reason::Unauthorized)]
#[case::token_forbidden(Some("Bearer realm=\"{token}\""), "/token", Reason::Forbidden)]
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_never_followed_by_a_request_without_one(
    #[case] challenge: Option<&str>,
    #[case] refuses: &str,
    #[case] reason: Reason,
) {
    let (_authority, upstream, bench) = registry().await;
    let image = Image::served_by(&upstream);
    let refused = if reason == Reason::Forbidden { 403 } else { 401 };
    if let Some(challenge) = challenge {
        upstream.on("/v2/", unauthorized(&challenge.replace("{token}", &upstream.url("/token"))));
    }
    let then = if refuses == "manifest" { image.layout.served(&image.digest) } else { Answer::text(200, r#"{"token":"for anyone"}"#) };
    upstream.sequence(&image.path(refuses), [Answer::text(refused, "no"), then]);
    let error = bench.take(&reference(&upstream, &image.digest), vec![pair("hunter2-wrong")]).await.expect_err("wrong");
    assert_eq!(error.reason(), reason, "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    let hits = upstream.hits(&image.path(refuses));
    assert!(hits.len() == 1 && hits[0].header("authorization").is_some(), "{hits:?}");
    assert_eq!(upstream.hits(&image.path("manifest")).len(), usize::from(refuses == "manifest"));
}

#[rstest]
#[case::no_challenge(None)]
#[case::password(Some("Basic realm=\"r\""))]
#[case::token_for_nobody(Some("Bearer realm=\"{token}\""))]
#[case::no_realm(Some("Bearer service=\"s\""))]
#[tokio::test(flavor = "multi_thread")]
async fn without_credentials_a_private_image_is_not_found_or_not_for_everyone(#[case] challenge: Option<&str>) {
    let (_authority, upstream, bench) = registry().await;
    let image = Image::served_by(&upstream);
    let wanted = challenge.map_or_else(|| Answer::text(401, ""), |text| unauthorized(&text.replace("{token}", &upstream.url("/token"))));
    upstream.on(&image.path("manifest"), wanted);
    upstream.on("/token", Answer::text(401, "who are you"));
    let error = bench.take(&reference(&upstream, &image.digest), Vec::new()).await.expect_err("private");
    assert_eq!(error.reason(), Reason::Unauthorized, "{error}");
    assert!(error.to_string().contains("not found or no access"), "{error}");
}

/// The registry, which the hoster wrote, may be on loopback here; what it leads to may not.
#[rstest]
#[case::to_itself("{self}", true, "too many redirects")]
#[case::to_loopback("https://127.0.0.1:{port}/blob", false, "loopback")]
#[case::to_this_link("https://169.254.169.254/latest/meta-data/", true, "link-local")]
#[case::to_metadata("https://[fd00:ec2::254]/latest/meta-data/", true, "metadata")]
#[case::without_tls("http://127.0.0.1:{port}/blob", true, "https to http")]
#[case::with_a_password("https://u:hunter2@127.0.0.1:{port}/blob", true, "credentials")]
#[tokio::test(flavor = "multi_thread")]
async fn no_redirect_leads_where_an_upstream_may_not_lead(#[case] location: &str, #[case] private: bool, #[case] why: &str) {
    let authority = Authority::new();
    let (upstream, elsewhere) =
        (Upstream::start_tls(&authority, &["127.0.0.1"]).await, Upstream::start_tls(&authority, &["127.0.0.1"]).await);
    for part in ["manifest", "configuration", "layer", "/token"] {
        let image = Image::served_by(&upstream);
        let path = image.path(part);
        if part == "/token" {
            upstream.on("/v2/", unauthorized(&format!("Bearer realm=\"{}\"", upstream.url("/token"))));
        }
        let location = location.replace("{self}", &upstream.url(&path)).replace("{port}", &elsewhere.address.port().to_string());
        upstream.on(&path, Answer::redirect(307, &location));
        let bench = Bench::with(&authority, |settings| settings.allow_private_redirects = private);
        let error = bench.take(&reference(&upstream, &image.digest), vec![pair("hunter2")]).await.expect_err(part);
        assert_eq!(error.reason(), Reason::EgressRefused, "{part}: {error}");
        assert!(error.to_string().contains(why) && !error.to_string().contains("hunter2"), "{part}: {error}");
        upstream.on(&path, Answer::text(404, ""));
    }
    assert_eq!(elsewhere.connections(), 0, "not even a connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_end_is_cut_off() {
    let (authority, upstream, _) = registry().await;
    let huge = || Answer::raw(format!("HTTP/1.1 200 OK\r\nX-Fill: {}\r\nContent-Length: 2\r\n\r\n{{}}", "a".repeat(100_000)));
    let endless = || Answer::new(200, vec![b' '; 64 << 10]).no_length().endless();
    for (part, answer, reason) in [
        ("/v2/", huge(), Reason::EgressRefused),
        ("/token", huge(), Reason::EgressRefused),
        ("manifest", huge(), Reason::EgressRefused),
        ("layer", huge(), Reason::EgressRefused),
        ("/token", endless(), Reason::Unavailable),
        ("manifest", endless(), Reason::ManifestTooLarge),
        ("configuration", endless(), Reason::ManifestTooLarge),
    ] {
        let image = Image::served_by(&upstream);
        upstream.on("/v2/", unauthorized(&format!("Bearer realm=\"{}\"", upstream.url("/token"))));
        upstream.on("/token", Answer::text(200, r#"{"token":"given"}"#));
        upstream.on(&image.path(part), answer);
        let error = Bench::new(&authority).take(&reference(&upstream, &image.digest), vec![pair("hunter2")]).await.expect_err(part);
        assert_eq!(error.reason(), reason, "{part}: {error}");
    }
}

#[rstest]
#[case(429, Reason::RateLimited)]
#[case(503, Reason::Unavailable)]
#[tokio::test(flavor = "multi_thread")]
async fn a_token_service_is_asked_again_when_it_said(#[case] status: u16, #[case] reason: Reason) {
    let (_authority, upstream, bench) = registry().await;
    let image = Image::served_by(&upstream);
    upstream.on("/v2/", unauthorized(&format!("Bearer realm=\"{}\"", upstream.url("/token"))));
    upstream.on("/token", Answer::text(status, "later").header("Retry-After", "7"));
    // Another password would help as little: the service has not even looked.
    let both = vec![pair("hunter2"), pair("hunter2-next")];
    let error = bench.take(&reference(&upstream, &image.digest), both).await.expect_err("later");
    assert_eq!((error.reason(), error.retry_after()), (reason, Some(Duration::from_secs(7))), "{error}");
    assert_eq!(upstream.hits("/token").len(), 1);
}
