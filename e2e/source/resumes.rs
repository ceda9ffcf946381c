//! Going on with a download: only where it is certainly the same file, else from the start.

use golden_catalog::{
    rules::Reason,
    source::{Egress, OpenRequest, Opened, Resume, SourceError, Validator},
};
use rstest::rstest;

use crate::{
    drain, egress, http, open, pattern, settings,
    upstream::{Answer, Upstream},
};

const LENGTH: usize = 200_000;

/// Reads until the stream breaks; the bytes, how to go on, and the error.
async fn broken(mut opened: Opened) -> (Vec<u8>, Option<Resume>, SourceError) {
    let mut bytes = Vec::new();
    loop {
        match opened.body.chunk().await {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
            Ok(None) => panic!("the stream ended well"),
            Err(error) => return (bytes.clone(), opened.facts.resume_at(bytes.len() as u64), error),
        }
    }
}

async fn go_on(egress: &Egress, url: &str, resume: &Resume) -> Result<Opened, SourceError> {
    let source = http(url);
    egress.open(&OpenRequest { resume: Some(resume), ..OpenRequest::new(&source) }).await
}

#[rstest]
#[case(Answer::file(pattern(LENGTH)))]
#[case(Answer::file(pattern(LENGTH)).without("ETag").header("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT").header("Date", "Sun, 06 Nov 1994 09:49:37 GMT"))]
#[case(Answer::file(pattern(LENGTH)).without("Accept-Ranges"))]
#[tokio::test]
async fn from_where_it_broke(#[case] file: Answer) {
    let up = Upstream::start().await;
    up.sequence("/a", [file.clone().cut(70_000), file]);
    let egress = egress(settings());
    let (mut bytes, resume, error) = broken(open(&egress, &up.url("/a")).await.expect("first")).await;
    assert!(error.keeps_received(), "{error}");
    assert_eq!(bytes.len(), 70_000);
    let resume = resume.expect("a strong validator");
    // It survives a restart beside the partial file.
    let resume: Resume = serde_json::from_str(&serde_json::to_string(&resume).expect("json")).expect("json");
    let opened = go_on(&egress, &up.url("/a"), &resume).await.expect("rest");
    assert_eq!((opened.offset, opened.facts.length), (70_000, Some(LENGTH as u64)));
    // And it may break again.
    assert!(opened.facts.resume_at(80_000).is_some());
    bytes.extend(drain(opened).await.expect("rest"));
    assert_eq!(bytes, pattern(LENGTH));
    let hits = up.settled("/a", 2).await;
    assert_eq!(hits[1].header("range"), Some("bytes=70000-"));
    assert_eq!(hits[0].sent + hits[1].sent, LENGTH as u64, "no byte twice");
}

/// Whatever the second answer is, the client never joins two files: it starts over or says what is wrong.
#[rstest]
#[case::ranges_ignored(Answer::file(pattern(LENGTH)).no_ranges())]
#[case::changed(Answer::file(pattern(LENGTH)).header("ETag", "\"v2\""))]
#[case::changed_to_shorter(Answer::file(pattern(50_000)).header("ETag", "\"v2\""))]
#[case::shorter_under_the_same_tag(Answer::file(pattern(50_000)))]
#[case::longer_under_the_same_tag(Answer::file(pattern(300_000)))]
#[tokio::test]
async fn from_the_start_where_it_may_be_another_file(#[case] second: Answer) {
    let up = Upstream::start().await;
    up.sequence("/a", [Answer::file(pattern(LENGTH)).cut(70_000), second]);
    let egress = egress(settings());
    let (_, resume, _) = broken(open(&egress, &up.url("/a")).await.expect("first")).await;
    let opened = go_on(&egress, &up.url("/a"), &resume.expect("resume")).await.expect("second");
    assert_eq!(opened.offset, 0);
    let length = opened.facts.length.expect("length");
    assert_eq!(drain(opened).await.expect("whole"), pattern(usize::try_from(length).expect("length")));
}

/// A 206 that lies is not trusted: the file is asked for anew.
#[rstest]
#[case::another_part("Content-Range: bytes 0-9/200000\r\n")]
#[case::another_total("Content-Range: bytes 70000-199998/199999\r\n")]
#[case::another_version("Content-Range: bytes 70000-199999/200000\r\nETag: \"v2\"\r\n")]
#[case::no_range("")]
#[tokio::test]
async fn a_wrong_part_is_not_taken(#[case] headers: &str) {
    let up = Upstream::start().await;
    let lie = Answer::raw(format!("HTTP/1.1 206 Partial Content\r\n{headers}Content-Length: 10\r\n\r\n0123456789"));
    up.sequence("/a", [lie, Answer::file(pattern(LENGTH))]);
    let resume = Resume {
        offset: 70_000,
        total: Some(LENGTH as u64),
        validator: Validator::Etag("\"v1\"".to_owned()),
        from: up.url("/a").parse().expect("URL"),
    };
    let opened = go_on(&egress(settings()), &up.url("/a"), &resume).await.expect("anew");
    assert_eq!(opened.offset, 0);
    assert_eq!(drain(opened).await.expect("whole"), pattern(LENGTH));
    assert_eq!(up.hits("/a")[1].header("range"), None);
}

/// A rest that ends before the file does.
#[tokio::test]
async fn a_short_rest_is_truncated() {
    let up = Upstream::start().await;
    up.on(
        "/a",
        Answer::raw("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 70000-70009/200000\r\nContent-Length: 10\r\n\r\n0123456789"),
    );
    let resume =
        Resume { offset: 70_000, total: None, validator: Validator::Etag("\"v1\"".to_owned()), from: up.url("/a").parse().expect("URL") };
    let opened = go_on(&egress(settings()), &up.url("/a"), &resume).await.expect("part");
    assert_eq!((opened.offset, opened.facts.length), (70_000, Some(200_000)));
    let error = drain(opened).await.expect_err("short");
    assert_eq!(error.reason(), Reason::Corrupt, "{error}");
    assert!(error.keeps_received());
}

#[tokio::test]
async fn a_weak_tag_is_no_ground_to_go_on() {
    let up = Upstream::start().await;
    up.on("/a", Answer::file(pattern(LENGTH)).header("ETag", "W/\"v1\"").cut(70_000));
    let (_, resume, _) = broken(open(&egress(settings()), &up.url("/a")).await.expect("first")).await;
    assert_eq!(resume, None);
}

#[tokio::test]
async fn an_error_while_resuming_is_told_and_nothing_is_asked_twice() {
    let up = Upstream::start().await;
    up.on("/a", Answer::text(503, "down").header("Retry-After", "9"));
    let resume =
        Resume { offset: 70_000, total: None, validator: Validator::Etag("\"v1\"".to_owned()), from: up.url("/a").parse().expect("URL") };
    let error = go_on(&egress(settings()), &up.url("/a"), &resume).await.expect_err("down");
    assert_eq!((error.reason(), error.retry_after().map(|delay| delay.as_secs())), (Reason::Unavailable, Some(9)));
    assert_eq!(up.hits("/a").len(), 1);
}
