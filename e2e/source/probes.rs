//! Looking without downloading.

use golden_catalog::{
    rules::Reason,
    source::{Comparison, OpenRequest},
};
use rstest::rstest;

use crate::{
    egress, http, pattern, settings,
    upstream::{Answer, Gate, Upstream},
};

const MIB: usize = 1 << 20;

#[tokio::test]
async fn a_peek_asks_for_no_more_than_it_reads() {
    let up = Upstream::start().await;
    up.on("/a", Answer::file(pattern(3 * MIB)));
    let source = http(&up.url("/a"));
    let peeked = egress(settings()).peek(&OpenRequest::new(&source), MIB).await.expect("peek");
    assert_eq!((peeked.facts.length, peeked.is_whole), (Some(3 * MIB as u64), false));
    assert_eq!(peeked.head, pattern(3 * MIB)[..MIB]);
    let hits = up.settled("/a", 1).await;
    assert_eq!((hits.len(), hits[0].sent), (1, MIB as u64));
}

#[tokio::test]
async fn a_peek_needs_no_ranges() {
    let up = Upstream::start().await;
    up.on("/a", Answer::file(pattern(64 * MIB)).no_ranges());
    let source = http(&up.url("/a"));
    let peeked = egress(settings()).peek(&OpenRequest::new(&source), 100_000).await.expect("peek");
    assert_eq!((peeked.facts.length, peeked.is_whole), (Some(64 * MIB as u64), false));
    assert_eq!(peeked.head, pattern(64 * MIB)[..100_000]);
    // What is not read stays in buffers of the two kernels; the rest was never sent.
    assert!(up.settled("/a", 1).await[0].sent < 16 * MIB as u64);
}

#[rstest]
#[case(Answer::file(pattern(10)), pattern(10))]
#[case(Answer::file(pattern(10)).no_ranges(), pattern(10))]
#[case(Answer::file(pattern(10)).no_ranges().chunked(), pattern(10))]
#[case(Answer::file(""), Vec::new())]
#[case(Answer::file("").no_ranges(), Vec::new())]
#[tokio::test]
async fn a_short_file_is_seen_whole(#[case] answer: Answer, #[case] bytes: Vec<u8>) {
    let up = Upstream::start().await;
    up.on("/a", answer);
    let source = http(&up.url("/a"));
    let peeked = egress(settings()).peek(&OpenRequest::new(&source), MIB).await.expect("peek");
    assert_eq!((peeked.head.as_ref(), peeked.is_whole), (bytes.as_slice(), true));
}

#[rstest]
#[case(Answer::text(404, "no"), Reason::NotFound)]
#[case(Answer::file(pattern(10)).header("Content-Encoding", "gzip"), Reason::EgressRefused)]
#[case(Answer::file(pattern(10)).no_ranges().announce(100), Reason::Corrupt)]
#[tokio::test]
async fn a_peek_fails_as_an_opening_does(#[case] answer: Answer, #[case] reason: Reason) {
    let up = Upstream::start().await;
    up.on("/a", answer);
    let source = http(&up.url("/a"));
    assert_eq!(egress(settings()).peek(&OpenRequest::new(&source), MIB).await.expect_err("error").reason(), reason);
}

#[rstest]
#[case(Answer::file(pattern(5000)), &["HEAD"])]
#[case(Answer::file(pattern(5000)).head(403), &["HEAD", "GET"])]
#[case(Answer::file(pattern(5000)).head(405), &["HEAD", "GET"])]
#[case(Answer::file(pattern(5000)).head(501), &["HEAD", "GET"])]
#[case(Answer::file(pattern(5000)).head(405).no_ranges(), &["HEAD", "GET"])]
#[tokio::test]
async fn a_look_by_head_or_by_one_byte(#[case] answer: Answer, #[case] methods: &[&str]) {
    let up = Upstream::start().await;
    up.on("/a", answer);
    let source = http(&up.url("/a"));
    let facts = egress(settings()).look(&OpenRequest::new(&source)).await.expect("facts");
    assert_eq!((facts.length, facts.etag.as_deref()), (Some(5000), Some("\"v1\"")));
    let hits = up.settled("/a", methods.len()).await;
    assert_eq!(hits.iter().map(|hit| hit.method.as_str()).collect::<Vec<_>>(), methods);
}

#[tokio::test]
async fn a_look_sees_that_upstream_changed() {
    let up = Upstream::start().await;
    up.sequence("/a", [Answer::file("one"), Answer::file("one"), Answer::file("two").header("ETag", "\"v2\"")]);
    let source = http(&up.url("/a"));
    let egress = egress(settings());
    let recorded = egress.open(&OpenRequest::new(&source)).await.expect("opened").facts;
    for changed in [false, true] {
        let now = egress.look(&OpenRequest::new(&source)).await.expect("facts");
        let differs = matches!(now.compared_with(&recorded.recorded()), Comparison::Differs(_));
        assert_eq!(differs, changed);
    }
}

/// A factory builds before it answers HEAD: nothing comes for minutes, then the length.
#[tokio::test]
async fn a_look_waits_for_a_build() {
    let up = Upstream::start().await;
    let gate = Gate::default();
    up.on("/a", Answer::new(200, pattern(5000)).hold(&gate));
    let url = up.url("/a");
    let waiting = tokio::spawn(async move { egress(settings()).look(&OpenRequest::new(&http(&url))).await });
    while up.hits("/a").is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    gate.open();
    assert_eq!(waiting.await.expect("task").expect("facts").length, Some(5000));
}
