//! Proxies: scripted ones for what they refuse, a real squid for what they do.

use golden_catalog::{
    rules::Reason,
    source::{EgressSettings, Fault},
};
use rstest::rstest;

use crate::{
    egress, fetch, open, pattern, settings,
    upstream::{Answer, Authority, ConnectProxy, Names, Upstream, squid::Squid},
};

/// Settings with `proxy` for both schemes.
fn through(proxy: &str) -> EgressSettings {
    let mut settings = settings();
    settings.proxy.http = Some(proxy.parse().expect(proxy));
    settings.proxy.https = Some(proxy.parse().expect(proxy));
    settings
}

/// The name is the proxy's to resolve: here it does not even exist in DNS.
#[tokio::test]
async fn https_goes_through_a_tunnel() {
    let authority = Authority::new();
    let up = Upstream::start_tls(&authority, &["up.test"]).await;
    let names = Names::start().await;
    up.on("/a", Answer::file(pattern(300_000)));
    let proxy = ConnectProxy::start(up.address).await;
    let mut settings = through(&format!("http://us%40er:pass@{}", proxy.address));
    settings.ca_bundle = Some(authority.pem());
    settings.resolver = Some(names.address);
    assert_eq!(fetch(&egress(settings), "https://up.test/a").await.expect("file"), pattern(300_000));
    let hits = proxy.hits();
    assert_eq!((hits.len(), hits[0].method.as_str(), hits[0].target.as_str()), (1, "CONNECT", "up.test:443"));
    assert_eq!(hits[0].header("proxy-authorization"), Some("Basic dXNAZXI6cGFzcw=="));
    assert_eq!(up.hits("/a")[0].header("proxy-authorization"), None, "not for the upstream");
    assert_eq!(names.asked("up.test"), 0);
}

/// To a forwarding proxy the request goes in absolute-form; the stand-in upstream plays the proxy here.
#[tokio::test]
async fn http_is_forwarded() {
    let proxy = Upstream::start().await;
    proxy.on("http://up.test:8080/a", Answer::file("forwarded"));
    let settings = through(&format!("http://user:pass@{}", proxy.address));
    assert_eq!(fetch(&egress(settings), "http://up.test:8080/a").await.expect("file"), b"forwarded");
    let hits = proxy.hits("http://up.test:8080/a");
    assert_eq!(hits[0].header("host"), Some("up.test:8080"));
    assert_eq!(hits[0].header("proxy-authorization"), Some("Basic dXNlcjpwYXNz"));
}

#[rstest]
#[case("HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\r\n", "407")]
#[case("HTTP/1.1 403 Forbidden\r\n\r\n", "403")]
#[case("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "503")]
#[case("SSH-2.0-OpenSSH\r\n\r\n", "HTTP")]
#[case("", "broke off")]
#[tokio::test]
async fn a_refused_tunnel_names_the_proxy(#[case] answer: &'static str, #[case] what: &str) {
    let proxy = ConnectProxy::refusing(answer).await;
    let settings = through(&format!("http://user:hunter2@{}", proxy.address));
    let error = open(&egress(settings), "https://up.test/a").await.expect_err("refused");
    assert!(matches!(error.fault(), Fault::Proxy { .. }), "{error}");
    assert_eq!(error.reason(), Reason::Unavailable);
    let text = format!("{error} {error:?}");
    assert!(text.contains(what) && text.contains(&proxy.address.to_string()) && !text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn a_proxy_that_is_not_there() {
    let address = crate::upstream::process::free_address();
    let error = open(&egress(through(&format!("http://{address}"))), "https://up.test/a").await.expect_err("nobody");
    assert!(matches!(error.fault(), Fault::Proxy { .. }), "{error}");
}

#[tokio::test]
async fn a_proxy_over_tls() {
    let authority = Authority::new();
    let proxy = Upstream::start_tls(&authority, &["127.0.0.1"]).await;
    proxy.on("http://up.test/a", Answer::file("forwarded"));
    let mut settings = through(&proxy.url(""));
    settings.ca_bundle = Some(authority.pem());
    assert_eq!(fetch(&egress(settings), "http://up.test/a").await.expect("file"), b"forwarded");
}

/// Through a proxy a literal address is still checked.
#[rstest]
#[case("http://169.254.169.254/latest/meta-data/")]
#[case("https://[fd00:ec2::254]/")]
#[case("http://0.0.0.0/")]
#[tokio::test]
async fn literal_addresses_are_checked_before_a_proxy_sees_them(#[case] url: &str) {
    let proxy = ConnectProxy::refusing("HTTP/1.1 200 OK\r\n\r\n").await;
    let error = open(&egress(through(&format!("http://{}", proxy.address))), url).await.expect_err("refused");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
    assert!(proxy.hits().is_empty());
}

#[rstest]
#[case("up.test", true)]
#[case(".test", true)]
#[case("*.test", true)]
#[case("127.0.0.0/8", false)]
#[case("up.test:1", false)]
#[case("other.test", false)]
#[tokio::test]
async fn what_goes_around_the_proxy(#[case] no_proxy: &str, #[case] direct: bool) {
    let (up, names) = (Upstream::start().await, Names::start().await);
    names.set("up.test", &["127.0.0.1"]);
    up.on("/a", Answer::file("direct"));
    let proxy = Upstream::start().await;
    proxy.on(&up.url_at("up.test", "/a"), Answer::file("proxied"));
    let mut settings = through(&proxy.url(""));
    settings.proxy.no_proxy = no_proxy.parse().expect(no_proxy);
    settings.resolver = Some(names.address);
    let got = fetch(&egress(settings), &up.url_at("up.test", "/a")).await.expect("file");
    assert_eq!(got, if direct { b"direct".to_vec() } else { b"proxied".to_vec() });
}

/// A real squid: plain HTTP forwarded, HTTPS tunnelled, to a name that only squid can resolve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_squid() {
    let Some(squid) = Squid::start(&[("up.test", "127.0.0.1")]) else {
        println!("skipped: squid is not installed");
        return;
    };
    let authority = Authority::new();
    let (plain, tls, names) = (Upstream::start().await, Upstream::start_tls(&authority, &["up.test"]).await, Names::start().await);
    plain.on("/a", Answer::file(pattern(300_000)));
    tls.on("/a", Answer::file(pattern(400_000)));
    let mut settings = through(&format!("http://{}", squid.address));
    settings.ca_bundle = Some(authority.pem());
    settings.resolver = Some(names.address);
    let egress = egress(settings);
    assert_eq!(fetch(&egress, &plain.url_at("up.test", "/a")).await.expect("forwarded"), pattern(300_000));
    assert_eq!(fetch(&egress, &tls.url_at("up.test", "/a")).await.expect("tunnelled"), pattern(400_000));
    assert!(plain.hits("/a")[0].header("via").is_some_and(|via| via.contains("squid")), "squid forwarded it");
    assert!(squid.log("CONNECT")[0].contains("up.test"), "squid made the tunnel");
    // A name that squid cannot resolve is squid's answer, and says so.
    let error = open(&egress, "https://missing.test/a").await.expect_err("missing");
    assert_eq!(error.reason(), Reason::Unavailable, "{error}");
    assert!(error.to_string().contains("proxy"), "{error}");
}
