//! Redirects: followed by hand, a few, to where they may lead, without what must not go along.

use golden_catalog::{
    rules::Reason,
    source::{Credentials, Fault, OpenRequest, RedirectRefusal},
};
use rstest::rstest;

use crate::{
    drain, egress, fetch, http, open, pattern, settings,
    upstream::{Answer, Authority, Names, Upstream},
};

#[rstest]
#[case(301)]
#[case(302)]
#[case(303)]
#[case(307)]
#[case(308)]
#[tokio::test]
async fn on_the_same_server(#[case] status: u16) {
    let up = Upstream::start().await;
    up.on("/a", Answer::redirect(status, "b?sig=hunter2"));
    up.on("/b", Answer::file(pattern(10)));
    let opened = open(&egress(settings()), &up.url("/a")).await.expect("file");
    assert_eq!(opened.facts.resolved_url, up.url("/b?…"));
    assert_eq!(opened.facts.from.to_string(), up.url("/a"));
    assert_eq!(drain(opened).await.expect("whole"), pattern(10));
}

#[tokio::test]
async fn to_another_host_credentials_do_not_go_along() {
    let (up, other) = (Upstream::start().await, Upstream::start().await);
    up.on("/a", Answer::redirect(302, "/b"));
    up.on("/b", Answer::redirect(302, &other.url("/c")));
    other.on("/c", Answer::file(pattern(10)));
    let mut settings = settings();
    settings.allow_private_redirects = true;
    let credentials = Credentials::Basic { username: "user".to_owned(), password: "pass".to_owned().into() };
    let source = http(&up.url("/a"));
    let request = OpenRequest { credentials: std::slice::from_ref(&credentials), ..OpenRequest::new(&source) };
    let opened = egress(settings).open(&request).await.expect("file");
    assert_eq!(drain(opened).await.expect("whole"), pattern(10));
    assert_eq!(up.hits("/a")[0].header("authorization"), Some("Basic dXNlcjpwYXNz"));
    assert_eq!(up.hits("/b")[0].header("authorization"), Some("Basic dXNlcjpwYXNz"));
    assert_eq!(other.hits("/c")[0].header("authorization"), None);
}

#[tokio::test]
async fn loops_and_long_chains_end() {
    let up = Upstream::start().await;
    up.on("/loop", Answer::redirect(302, "/loop"));
    for step in 0..7 {
        up.on(&format!("/chain{step}"), Answer::redirect(302, &format!("/chain{}", step + 1)));
    }
    up.on("/chain7", Answer::file("end"));
    for (path, requests) in [("/loop", 6), ("/chain0", 6)] {
        let before = up.total();
        let error = open(&egress(settings()), &up.url(path)).await.expect_err(path);
        assert!(matches!(error.fault(), Fault::RedirectRefused { why: RedirectRefusal::TooMany, .. }), "{error}");
        assert_eq!(error.reason(), Reason::EgressRefused);
        assert_eq!(up.total() - before, requests, "the first request and five redirects");
    }
    assert_eq!(fetch(&egress(settings()), &up.url("/chain2")).await.expect("five"), b"end");
}

#[rstest]
#[case("ftp://other.test/x", RedirectRefusal::Scheme)]
#[case("file:///etc/passwd", RedirectRefusal::Scheme)]
#[case("http://user:hunter2@other.test/", RedirectRefusal::Credentials)]
#[case("http://", RedirectRefusal::Unusable)]
#[tokio::test]
async fn to_what_is_no_place(#[case] location: &str, #[case] why: RedirectRefusal) {
    let up = Upstream::start().await;
    up.on("/a", Answer::redirect(302, location));
    let error = open(&egress(settings()), &up.url("/a")).await.expect_err("refused");
    assert!(matches!(error.fault(), Fault::RedirectRefused { why: got, .. } if *got == why), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test]
async fn without_a_location() {
    let up = Upstream::start().await;
    up.on("/a", Answer::new(302, ""));
    let error = open(&egress(settings()), &up.url("/a")).await.expect_err("refused");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
}

#[tokio::test]
async fn from_https_to_http_is_refused() {
    let authority = Authority::new();
    let (up, plain) = (Upstream::start_tls(&authority, &["127.0.0.1"]).await, Upstream::start().await);
    up.on("/a", Answer::redirect(302, &plain.url("/a?sig=hunter2")));
    plain.on("/a", Answer::file("plain"));
    let mut settings = settings();
    settings.allow_private_redirects = true;
    settings.ca_bundle = Some(authority.pem());
    let error = open(&egress(settings), &up.url("/a")).await.expect_err("downgrade");
    assert!(matches!(error.fault(), Fault::RedirectRefused { why: RedirectRefusal::Downgrade, .. }), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    assert_eq!(plain.connections(), 0);
}

/// The first host was written by the hoster and may be on loopback here; what it leads to may not.
#[rstest]
#[case("http://127.0.0.1:{port}/b")]
#[case("http://[::ffff:127.0.0.1]:{port}/b")]
#[case("http://2130706433:{port}/b")]
#[case("http://loop.test:{port}/b")]
#[case("http://private.test/b")]
#[case("http://10.0.0.1/b")]
#[case("http://[fd12::1]/b")]
#[case("http://linklocal.test/b")]
#[case("http://169.254.169.254/latest/meta-data/")]
#[case("http://0xa9fea9fe/latest/meta-data/")]
#[case("http://[fd00:ec2::254]/latest/meta-data/")]
#[case("http://[::ffff:169.254.169.254]/")]
#[case("http://[64:ff9b::a9fe:a9fe]/")]
#[case("http://metadata6.test/")]
#[case("http://0.0.0.0:{port}/b")]
#[tokio::test]
async fn to_addresses_that_are_not_for_upstreams_to_name(#[case] location: &str) {
    let (up, other, names) = (Upstream::start().await, Upstream::start().await, Names::start().await);
    names.set("loop.test", &["127.0.0.1"]);
    names.set("private.test", &["10.0.0.1", "192.168.1.1", "fd12::1"]);
    names.set("linklocal.test", &["169.254.169.254"]);
    names.set("metadata6.test", &["fd00:ec2::254"]);
    up.on("/a", Answer::redirect(302, &location.replace("{port}", &other.address.port().to_string())));
    other.on("/b", Answer::file("secret"));
    let mut settings = settings();
    settings.resolver = Some(names.address);
    let error = open(&egress(settings), &up.url("/a")).await.expect_err("refused");
    assert!(matches!(error.fault(), Fault::AddressRefused { led: true, .. }), "{error}");
    assert_eq!(error.reason(), Reason::EgressRefused);
    assert_eq!(other.connections(), 0, "not even a connection");
}

/// The setting opens private targets (loopback counts as one in tests), never the rest.
#[tokio::test]
async fn private_targets_by_setting() {
    let (up, other, names) = (Upstream::start().await, Upstream::start().await, Names::start().await);
    names.set("linklocal.test", &["169.254.169.254"]);
    up.on("/a", Answer::redirect(302, &other.url("/b")));
    up.on("/m", Answer::redirect(302, "http://linklocal.test/"));
    other.on("/b", Answer::file("private"));
    let mut settings = settings();
    settings.resolver = Some(names.address);
    settings.allow_private_redirects = true;
    let egress = egress(settings);
    assert_eq!(fetch(&egress, &up.url("/a")).await.expect("allowed"), b"private");
    let error = open(&egress, &up.url("/m")).await.expect_err("never");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
}
