//! TLS: whom the daemon trusts, and what a failed handshake says.

use std::time::Duration;

use golden_catalog::{
    rules::Reason,
    source::{Egress, OpenRequest},
};

use crate::{
    drain, egress, fetch, http, open, pattern, settings,
    upstream::{Answer, Authority, Upstream},
};

#[tokio::test]
async fn an_authority_of_the_entry_or_of_all() {
    let authority = Authority::new();
    let up = Upstream::start_tls(&authority, &["127.0.0.1"]).await;
    up.on("/a", Answer::file(pattern(200_000)));
    let error = open(&egress(settings()), &up.url("/a")).await.expect_err("unknown authority");
    assert_eq!(error.reason(), Reason::TLSFailed, "{error}");
    assert!(error.to_string().contains("not trusted"), "{error}");

    let mut global = settings();
    global.ca_bundle = Some(authority.pem());
    assert_eq!(fetch(&egress(global), &up.url("/a")).await.expect("global"), pattern(200_000));

    let source = http(&up.url("/a"));
    let pem = authority.pem();
    let request = OpenRequest { ca_bundle: Some(pem.as_bytes()), ..OpenRequest::new(&source) };
    let opened = egress(settings()).open(&request).await.expect("entry's own");
    assert_eq!(drain(opened).await.expect("whole"), pattern(200_000));
}

#[tokio::test]
async fn an_authority_of_one_entry_is_no_other_entrys() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let up = Upstream::start_tls(&ours, &["127.0.0.1"]).await;
    let source = http(&up.url("/a"));
    let egress = egress(settings());
    let pem = theirs.pem();
    let request = OpenRequest { ca_bundle: Some(pem.as_bytes()), ..OpenRequest::new(&source) };
    assert_eq!(egress.open(&request).await.expect_err("other authority").reason(), Reason::TLSFailed);
    let pem = ours.pem();
    let request = OpenRequest { ca_bundle: Some(pem.as_bytes()), ..OpenRequest::new(&source) };
    assert_eq!(egress.open(&request).await.expect_err("no such path").reason(), Reason::NotFound);
    assert_eq!(egress.open(&OpenRequest::new(&source)).await.expect_err("none").reason(), Reason::TLSFailed);
}

#[tokio::test]
async fn another_name() {
    let authority = Authority::new();
    let up = Upstream::start_tls(&authority, &["other.test"]).await;
    let mut settings = settings();
    settings.ca_bundle = Some(authority.pem());
    let error = open(&egress(settings), &up.url("/a")).await.expect_err("other name");
    assert_eq!(error.reason(), Reason::TLSFailed, "{error}");
    assert!(error.to_string().contains("for another name"), "{error}");
}

#[tokio::test]
async fn a_server_without_tls() {
    let up = Upstream::start().await;
    up.on("/a", Answer::raw("HTTP/1.1 400 Bad Request\r\n\r\n"));
    // It waits for the end of a line, and this for its hello.
    let mut settings = settings();
    settings.deadlines.connect = Duration::from_secs(2);
    let error = open(&egress(settings), &up.url("/a").replace("http://", "https://")).await.expect_err("plain");
    assert!(matches!(error.reason(), Reason::TLSFailed | Reason::Unavailable), "{error}");
}

#[tokio::test]
async fn a_bundle_that_is_none() {
    let up = Upstream::start().await;
    let source = http(&up.url("/a"));
    let request = OpenRequest { ca_bundle: Some(b"not PEM"), ..OpenRequest::new(&source) };
    let error = egress(settings()).open(&request).await.expect_err("no bundle");
    assert_eq!(error.reason(), Reason::TLSFailed, "{error}");
    assert!(error.to_string().contains("CA bundle"), "{error}");
    assert_eq!(up.connections(), 0);
    let mut global = settings();
    global.ca_bundle = Some("not PEM".to_owned());
    assert!(Egress::new(global).is_err());
}
