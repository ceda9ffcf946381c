//! Mirrors: in order, the origin last, and never with its credentials.

use golden_catalog::{
    rules::Reason,
    source::{Credentials, EgressSettings, OpenRequest},
};

use crate::{
    drain, egress, http, settings,
    upstream::{Answer, Upstream},
};

/// Settings in which `mirrors` stand in for `origin`.
fn mirrored(origin: &Upstream, mirrors: &[&Upstream]) -> EgressSettings {
    let bases: Vec<_> = mirrors.iter().map(|mirror| mirror.url("/base/")).collect();
    let lists = serde_json::json!({ origin.address.to_string(): bases });
    EgressSettings { mirrors: serde_json::from_value(lists).expect("mirrors"), ..settings() }
}

#[tokio::test]
async fn the_first_mirror_that_serves_is_used() {
    let (origin, one, two) = (Upstream::start().await, Upstream::start().await, Upstream::start().await);
    one.on("/base/x/a", Answer::text(500, "down"));
    two.on("/base/x/a", Answer::file("two"));
    origin.on("/x/a", Answer::file("origin"));
    let source = http(&origin.url("/x/a?v=1"));
    let credentials = Credentials::Bearer("tok3n".to_owned().into());
    let request = OpenRequest { credentials: std::slice::from_ref(&credentials), ..OpenRequest::new(&source) };
    let opened = egress(mirrored(&origin, &[&one, &two])).open(&request).await.expect("two");
    assert!(opened.facts.is_mirror);
    assert_eq!(opened.facts.from.to_string(), two.url("/base/x/a?v=1"));
    assert_eq!(drain(opened).await.expect("whole"), b"two");
    assert_eq!((one.total(), two.total(), origin.total()), (1, 1, 0));
    for hit in one.hits("/base/x/a").iter().chain(&two.hits("/base/x/a")) {
        assert_eq!(hit.header("authorization"), None, "credentials are the origin's");
    }
}

#[tokio::test]
async fn the_origin_comes_last_with_its_credentials() {
    let (origin, one) = (Upstream::start().await, Upstream::start().await);
    origin.on("/a", Answer::file("origin"));
    let source = http(&origin.url("/a"));
    let credentials = Credentials::Bearer("tok3n".to_owned().into());
    let request = OpenRequest { credentials: std::slice::from_ref(&credentials), ..OpenRequest::new(&source) };
    let opened = egress(mirrored(&origin, &[&one])).open(&request).await.expect("origin");
    assert!(!opened.facts.is_mirror);
    assert_eq!(origin.hits("/a")[0].header("authorization"), Some("Bearer tok3n"));
}

/// A mirror that served bad bytes must not be asked first for ever.
#[tokio::test]
async fn a_demoted_mirror_comes_after_the_origin() {
    let (origin, one) = (Upstream::start().await, Upstream::start().await);
    one.on("/base/a", Answer::file("bad"));
    origin.on("/a", Answer::file("good"));
    let source = http(&origin.url("/a"));
    let egress = egress(mirrored(&origin, &[&one]));
    let bad = egress.open(&OpenRequest::new(&source)).await.expect("mirror").facts.from;
    let request = OpenRequest { demoted: &[bad], ..OpenRequest::new(&source) };
    assert_eq!(drain(egress.open(&request).await.expect("origin")).await.expect("whole"), b"good");
}

#[tokio::test]
async fn when_all_fail_the_origin_gives_the_reason_and_all_are_named() {
    let (origin, one) = (Upstream::start().await, Upstream::start().await);
    one.on("/base/a", Answer::text(400, "mirror says no"));
    origin.on("/a", Answer::text(404, "origin has none"));
    let source = http(&origin.url("/a"));
    let error = egress(mirrored(&origin, &[&one])).open(&OpenRequest::new(&source)).await.expect_err("all");
    assert_eq!(error.reason(), Reason::NotFound);
    let text = error.to_string();
    assert!(text.contains("mirror says no") && text.contains("origin has none"), "{text}");
}

/// In an air gap the origin is not there; what the mirror said is what helps, but a mirror's word is never final.
#[tokio::test]
async fn in_an_air_gap_the_mirrors_word_counts() {
    let one = Upstream::start().await;
    let address = crate::upstream::process::free_address();
    let url = format!("http://{address}/a");
    let lists = serde_json::json!({ address.to_string(): [one.url("/base")] });
    let settings = EgressSettings { mirrors: serde_json::from_value(lists).expect("mirrors"), ..settings() };
    let egress = egress(settings);
    let source = http(&url);
    one.on("/base/a", Answer::text(404, "not mirrored"));
    assert_eq!(egress.open(&OpenRequest::new(&source)).await.expect_err("404").reason(), Reason::NotFound);
    one.on("/base/a", Answer::text(400, "odd"));
    assert_eq!(egress.open(&OpenRequest::new(&source)).await.expect_err("400").reason(), Reason::Unavailable);
}

#[tokio::test]
async fn a_download_goes_on_where_it_began() {
    let (origin, one) = (Upstream::start().await, Upstream::start().await);
    one.sequence("/base/a", [Answer::text(503, "down"), Answer::file("0123456789")]);
    origin.sequence("/a", [Answer::file("0123456789").cut(4), Answer::file("0123456789")]);
    let source = http(&origin.url("/a"));
    let egress = egress(mirrored(&origin, &[&one]));
    let mut first = egress.open(&OpenRequest::new(&source)).await.expect("origin");
    let mut got = first.body.chunk().await.expect("chunk").expect("bytes").to_vec();
    assert_eq!(got, b"0123");
    first.body.chunk().await.expect_err("cut");
    let resume = first.facts.resume_at(4).expect("resume");
    let request = OpenRequest { resume: Some(&resume), ..OpenRequest::new(&source) };
    let second = egress.open(&request).await.expect("rest");
    assert_eq!(second.offset, 4);
    got.extend(drain(second).await.expect("rest"));
    assert_eq!(got, b"0123456789");
    assert_eq!(one.total(), 1, "the mirror that is back is not asked for the whole file");
}
