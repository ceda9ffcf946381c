//! Names and addresses: what may be connected to, and that the checked address is the one connected to.

use golden_catalog::{rules::Reason, source::Fault};
use rstest::rstest;

use crate::{
    egress, fetch, open, settings,
    upstream::{Answer, Names, Upstream},
};

#[tokio::test]
async fn loopback_only_by_setting() {
    let (up, names) = (Upstream::start().await, Names::start().await);
    names.set("up.test", &["127.0.0.1"]);
    up.on("/a", Answer::file("a"));
    let mut settings = settings();
    settings.resolver = Some(names.address);
    assert_eq!(fetch(&egress(settings.clone()), &up.url_at("up.test", "/a")).await.expect("allowed"), b"a");
    settings.allow_loopback = false;
    settings.allow_private_redirects = true;
    let strict = egress(settings);
    let connections = up.connections();
    for url in [up.url("/a"), up.url_at("up.test", "/a"), up.url_at("localhost", "/a"), up.url_at("[::1]", "/a"), up.url_at("127.1", "/a")]
    {
        let error = open(&strict, &url).await.expect_err("loopback");
        assert!(matches!(error.reason(), Reason::EgressRefused | Reason::Unavailable), "{error}");
        assert!(matches!(error.fault(), Fault::AddressRefused { .. } | Fault::Unresolved { .. }), "{error}");
    }
    assert_eq!(up.connections(), connections);
}

/// Hosts that the hoster wrote: never these, whatever the settings.
#[rstest]
#[case("http://169.254.169.254/")]
#[case("http://linklocal.test/")]
#[case("http://metadata.test/")]
#[case("http://[fd00:ec2::254]/")]
#[case("http://[fe80::1]/")]
#[case("http://0.0.0.0/")]
#[case("http://[::]/")]
#[case("http://224.0.0.1/")]
#[case("http://255.255.255.255/")]
#[case("http://[2002:7f00:1::]/")]
#[case("http://[::127.0.0.1]/")]
#[tokio::test]
async fn never(#[case] url: &str) {
    let names = Names::start().await;
    names.set("linklocal.test", &["169.254.10.10", "fe80::1"]);
    names.set("metadata.test", &["100.100.100.200"]);
    let mut settings = settings();
    settings.resolver = Some(names.address);
    settings.allow_private_redirects = true;
    let error = open(&egress(settings), url).await.expect_err("never");
    assert!(matches!(error.fault(), Fault::AddressRefused { led: false, .. }), "{error}");
    assert_eq!(error.reason(), Reason::EgressRefused);
}

/// An answer with a good and a bad address: the good one is used.
#[tokio::test]
async fn bad_addresses_among_good_ones_are_passed_over() {
    let (up, names) = (Upstream::start().await, Names::start().await);
    names.set("mixed.test", &["169.254.169.254", "127.0.0.1", "::"]);
    up.on("/a", Answer::file("a"));
    let mut settings = settings();
    settings.resolver = Some(names.address);
    assert_eq!(fetch(&egress(settings), &up.url_at("mixed.test", "/a")).await.expect("good one"), b"a");
}

/// DNS rebinding: the second answer points to metadata, but nobody asks for it, since the checked address is used.
#[tokio::test]
async fn a_name_is_resolved_once() {
    let (up, names) = (Upstream::start().await, Names::start().await);
    names.sequence("rebind.test", &[&["127.0.0.1"], &["169.254.169.254"]]);
    up.on("/a", Answer::file("a"));
    let mut settings = settings();
    settings.resolver = Some(names.address);
    let egress = egress(settings);
    assert_eq!(fetch(&egress, &up.url_at("rebind.test", "/a")).await.expect("first"), b"a");
    assert_eq!(names.asked("rebind.test"), 1);
    let error = open(&egress, &up.url_at("rebind.test", "/a")).await.expect_err("second");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
}

/// Each hop is checked: the same name may lead elsewhere the next time.
#[tokio::test]
async fn each_hop_is_resolved_and_checked() {
    let (up, names) = (Upstream::start().await, Names::start().await);
    names.sequence("rebind.test", &[&["127.0.0.1"], &["169.254.169.254"]]);
    up.on("/a", Answer::redirect(302, "/b"));
    up.on("/b", Answer::file("b"));
    let mut settings = settings();
    settings.resolver = Some(names.address);
    let error = open(&egress(settings), &up.url_at("rebind.test", "/a")).await.expect_err("second hop");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
    assert!(up.hits("/b").is_empty());
}

#[tokio::test]
async fn names_that_do_not_resolve() {
    let names = Names::start().await;
    names.set("empty.test", &[]);
    let mut settings = settings();
    settings.resolver = Some(names.address);
    let egress = egress(settings);
    for (url, what) in [("http://missing.test/a", "no such name"), ("http://empty.test/a", "no address")] {
        let error = open(&egress, url).await.expect_err(url);
        assert!(matches!(error.fault(), Fault::Unresolved { .. }), "{error}");
        assert_eq!(error.reason(), Reason::Unavailable);
        assert!(error.to_string().contains(what), "{error}");
    }
}
