//! Bodies: whole, empty, cut, too long, endless, slow, broken, encoded.

use std::time::Duration;

use golden_catalog::{rules::Reason, source::Fault};
use rstest::rstest;

use crate::{
    drain, egress, fetch, open, pattern, settings,
    upstream::{Answer, Upstream},
};

#[tokio::test]
async fn a_whole_file_with_what_is_known_about_it() {
    let up = Upstream::start().await;
    let bytes = pattern(300_000);
    up.on(
        "/a.img",
        Answer::file(bytes.clone()).header("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT").header("Content-Type", "text/html"),
    );
    let opened = open(&egress(settings()), &up.url("/a.img?token=hunter2")).await.expect("file");
    assert_eq!(opened.facts.length, Some(300_000));
    assert_eq!(opened.facts.etag.as_deref(), Some("\"v1\""));
    assert_eq!(opened.facts.last_modified.as_deref(), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
    assert_eq!(opened.facts.accepts_ranges, Some(true));
    assert_eq!(opened.facts.resolved_url, up.url("/a.img?…"), "the query's content is not shown");
    assert!(!opened.facts.is_mirror);
    assert_eq!(opened.offset, 0);
    let request_id = opened.facts.request_id.clone();
    assert_eq!(drain(opened).await.expect("whole"), bytes);
    let hits = up.settled("/a.img", 1).await;
    assert_eq!(hits.len(), 1, "one artifact, one request");
    assert_eq!(hits[0].sent, 300_000);
    assert_eq!(hits[0].target, "/a.img?token=hunter2");
    assert_eq!(hits[0].header("accept-encoding"), Some("identity"));
    assert_eq!(hits[0].header("user-agent"), Some(golden_catalog::source::USER_AGENT));
    assert_eq!(hits[0].header("x-request-id"), Some(request_id.as_str()));
    assert_eq!(hits[0].header("authorization"), None);
    assert_eq!(hits[0].header("range"), None);
}

#[rstest]
#[case(Answer::file(pattern(100_000)).chunked())]
#[case(Answer::file(pattern(100_000)).no_length())]
#[case(Answer::new(203, pattern(100_000)))]
#[case(Answer::file(pattern(100_000)).header("Content-Encoding", "identity"))]
#[tokio::test]
async fn other_honest_ways_to_send_a_file(#[case] answer: Answer) {
    let up = Upstream::start().await;
    up.on("/a", answer);
    assert_eq!(fetch(&egress(settings()), &up.url("/a")).await.expect("whole"), pattern(100_000));
}

/// What is in an empty file or a page is for the intake to judge; the stream only has to be true.
#[rstest]
#[case(Answer::file(""), b"")]
#[case(Answer::new(200, "<!DOCTYPE html><html>").header("Content-Type", "text/html"), b"<!DOCTYPE html><html>")]
#[tokio::test]
async fn an_empty_file_and_a_page_come_as_they_are(#[case] answer: Answer, #[case] expected: &[u8]) {
    let up = Upstream::start().await;
    up.on("/a", answer);
    assert_eq!(fetch(&egress(settings()), &up.url("/a")).await.expect("whole"), expected);
}

#[rstest]
#[case::cut(Answer::file(pattern(50_000)).cut(20_000), Reason::Corrupt, true)]
#[case::cut_at_once(Answer::file(pattern(50_000)).cut(0), Reason::Corrupt, true)]
#[case::cut_chunked(Answer::file(pattern(200_000)).chunked().cut(150_000), Reason::Corrupt, true)]
#[case::shorter_than_announced(Answer::file(pattern(1000)).announce(2000), Reason::Corrupt, true)]
#[case::longer_than_announced(Answer::file(pattern(2000)).announce(1000), Reason::Corrupt, false)]
#[case::reset(Answer::file(pattern(50_000)).reset(20_000), Reason::Unavailable, true)]
#[case::garbage_chunks(Answer::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\nhello"), Reason::Unavailable, true)]
#[tokio::test]
async fn bodies_that_are_not_what_was_announced(#[case] answer: Answer, #[case] reason: Reason, #[case] keeps: bool) {
    let up = Upstream::start().await;
    up.on("/a", answer);
    let error = fetch(&egress(settings()), &up.url("/a")).await.expect_err("a lie");
    assert_eq!(error.reason(), reason, "{error}");
    assert_eq!(error.keeps_received(), keeps, "{error}");
    assert!(error.to_string().contains(&up.url("/a")), "{error}");
}

/// A length and chunks that contradict each other.
#[rstest]
#[case("5", Reason::Corrupt)]
#[case("2", Reason::Corrupt)]
#[case("3", Reason::Resolved)]
#[tokio::test]
async fn chunks_are_held_to_an_announced_length(#[case] length: &str, #[case] reason: Reason) {
    let up = Upstream::start().await;
    up.on(
        "/a",
        Answer::raw(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")),
    );
    let got = fetch(&egress(settings()), &up.url("/a")).await.map_or_else(|error| error.reason(), |_| Reason::Resolved);
    assert_eq!(got, reason);
}

#[tokio::test]
async fn an_error_stays_an_error() {
    let up = Upstream::start().await;
    up.on("/a", Answer::file(pattern(50_000)).cut(20_000));
    let mut opened = open(&egress(settings()), &up.url("/a")).await.expect("opened");
    let first = loop {
        match opened.body.chunk().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a cut file ended well"),
            Err(error) => break error,
        }
    };
    assert_eq!(opened.body.chunk().await.expect_err("still"), first);
    assert_eq!(opened.body.received(), 20_000);
}

#[tokio::test]
async fn an_endless_body_ends_at_the_limit() {
    let up = Upstream::start().await;
    up.on("/a", Answer::new(200, pattern(64 << 10)).no_length().endless());
    let mut settings = settings();
    settings.caps.artifact_bytes = 1 << 20;
    let error = fetch(&egress(settings), &up.url("/a")).await.expect_err("endless");
    assert_eq!(error.reason(), Reason::TooLarge, "{error}");
    assert!(error.to_string().contains("1048576"), "{error}");
}

#[tokio::test]
async fn a_file_announced_larger_than_the_limit_is_not_begun() {
    let up = Upstream::start().await;
    up.on("/a", Answer::file(pattern(2000)).announce(1 << 40));
    let error = open(&egress(settings()), &up.url("/a")).await.expect_err("huge");
    assert_eq!(error.reason(), Reason::TooLarge, "{error}");
}

#[rstest]
#[case::stalls(Answer::file(pattern(100_000)).stall(10_000))]
#[case::drips(Answer::file(pattern(100_000)).drip(Duration::from_millis(20)))]
#[case::drips_chunked(Answer::file(pattern(100_000)).chunked().drip(Duration::from_millis(20)))]
#[tokio::test]
async fn a_body_that_makes_no_progress_ends_at_the_idle_deadline(#[case] answer: Answer) {
    let up = Upstream::start().await;
    up.on("/a", answer);
    let mut settings = settings();
    settings.deadlines.idle = Duration::from_millis(700);
    let error = fetch(&egress(settings), &up.url("/a")).await.expect_err("too slow");
    assert!(matches!(error.fault(), Fault::Stalled { .. }), "{error}");
    assert_eq!(error.reason(), Reason::Unavailable);
    assert!(error.keeps_received());
}

/// Each byte of it is progress enough, and all of them together are not.
#[tokio::test]
async fn a_body_that_is_never_idle_and_always_slow_ends_too() {
    let up = Upstream::start().await;
    up.on("/a", Answer::file(pattern(100_000)).drip(Duration::from_millis(20)));
    let mut settings = settings();
    settings.caps.idle_progress = 1;
    settings.deadlines.slow = Duration::from_secs(1);
    let error = fetch(&egress(settings), &up.url("/a")).await.expect_err("too slow");
    assert!(matches!(error.fault(), Fault::TooSlow { .. }), "{error}");
    assert_eq!((error.reason(), error.keeps_received()), (Reason::Unavailable, true));
}

/// The idle deadline is about upstream: a reader that pauses longer than it loses nothing.
#[tokio::test]
async fn a_slow_reader_is_not_a_slow_upstream() {
    let up = Upstream::start().await;
    up.on("/a", Answer::file(pattern(1_000_000)));
    let mut settings = settings();
    settings.deadlines.idle = Duration::from_secs(4);
    let mut opened = open(&egress(settings), &up.url("/a")).await.expect("file");
    let mut bytes = opened.body.chunk().await.expect("chunk").expect("first").to_vec();
    tokio::time::sleep(Duration::from_secs(5)).await;
    while let Some(chunk) = opened.body.chunk().await.expect("chunk") {
        bytes.extend_from_slice(&chunk);
    }
    assert_eq!(bytes, pattern(1_000_000));
}

#[tokio::test]
async fn a_dropped_stream_ends_the_connection() {
    let up = Upstream::start().await;
    up.on("/a", Answer::new(200, pattern(64 << 10)).no_length().endless());
    let mut opened = open(&egress(settings()), &up.url("/a")).await.expect("file");
    opened.body.chunk().await.expect("chunk");
    drop(opened);
    // The server notices that nobody reads any more.
    up.settled("/a", 1).await;
}

#[rstest]
#[case("gzip")]
#[case("br")]
#[case("GZIP, identity")]
#[tokio::test]
async fn a_forced_encoding_is_refused_by_its_name(#[case] coding: &str) {
    let up = Upstream::start().await;
    up.on("/a.img", Answer::file("\x1f\u{8b}").header("Content-Encoding", coding));
    let error = open(&egress(settings()), &up.url("/a.img")).await.expect_err("encoded");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
    assert!(error.to_string().contains("Content-Encoding"), "{error}");
}

#[tokio::test]
async fn a_compressed_file_may_be_labelled_with_its_own_coding() {
    let up = Upstream::start().await;
    up.on("/a.raw.gz", Answer::file(pattern(100)).header("Content-Encoding", "x-gzip"));
    assert_eq!(fetch(&egress(settings()), &up.url("/a.raw.gz")).await.expect("file"), pattern(100));
}

#[tokio::test]
async fn the_stream_form_yields_the_same_and_ends_after_an_error() {
    use futures::StreamExt as _;
    let up = Upstream::start().await;
    up.on("/a", Answer::file(pattern(50_000)).cut(20_000));
    let opened = open(&egress(settings()), &up.url("/a")).await.expect("file");
    let items: Vec<_> = opened.body.into_stream().collect().await;
    let (last, before) = items.split_last().expect("items");
    assert_eq!(last.as_ref().expect_err("cut").reason(), Reason::Corrupt);
    let bytes: Vec<u8> = before.iter().flat_map(|item| item.as_ref().expect("chunk").to_vec()).collect();
    assert_eq!(bytes, pattern(50_000)[..20_000]);
}
