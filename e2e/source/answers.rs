//! Answers that are not the file: each with its reason (R9), its text cleaned, its `Retry-After` kept.

use std::time::{Duration, SystemTime};

use golden_catalog::{
    rules::Reason,
    source::{Credentials, Fault, OpenRequest},
};
use rstest::rstest;

use crate::{
    egress, http, open, settings,
    upstream::{Answer, Gate, Upstream},
};

#[rstest]
#[case(Answer::text(400, "no\n"), Reason::InvalidSource)]
#[case(Answer::text(401, ""), Reason::Unauthorized)]
#[case(Answer::text(402, ""), Reason::Forbidden)]
#[case(Answer::text(403, ""), Reason::Forbidden)]
#[case(Answer::text(404, ""), Reason::NotFound)]
#[case(Answer::text(410, ""), Reason::NotFound)]
#[case(Answer::text(429, ""), Reason::RateLimited)]
#[case(Answer::text(500, ""), Reason::Unavailable)]
#[case(Answer::text(502, ""), Reason::Unavailable)]
#[case(Answer::text(503, ""), Reason::Unavailable)]
#[case(Answer::new(204, ""), Reason::NotFound)]
#[case(Answer::new(206, "abc").header("Content-Range", "bytes 0-2/9"), Reason::Corrupt)]
#[case(Answer::raw(""), Reason::Unavailable)]
#[case(Answer::raw("SSH-2.0-OpenSSH_9.2p1\r\n"), Reason::Unavailable)]
#[case(Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na"), Reason::Unavailable)]
#[case(Answer::raw("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\na"), Reason::Unavailable)]
#[case(Answer::raw("HTTP/1.1 200 OK\r\nContent-Le"), Reason::Unavailable)]
#[tokio::test]
async fn each_answer_has_its_reason(#[case] answer: Answer, #[case] reason: Reason) {
    let up = Upstream::start().await;
    up.on("/a", answer);
    let error = open(&egress(settings()), &up.url("/a")).await.expect_err("no file");
    assert_eq!(error.reason(), reason, "{error}");
    assert_eq!(up.hits("/a").len(), 1, "nothing is asked twice");
    let text = error.to_string();
    assert!(text.contains(&up.url("/a")), "{text}");
    // For the log; a text that differs with each attempt would be written into status again and again.
    assert!(!error.request_id().is_empty() && !text.contains(error.request_id()), "{text}");
}

#[rstest]
#[case(429, "7", 7..=7)]
#[case(503, "7", 7..=7)]
#[case(429, "99999999", 3600..=3600)]
#[tokio::test]
async fn retry_after_in_seconds(#[case] status: u16, #[case] value: &str, #[case] seconds: std::ops::RangeInclusive<u64>) {
    let up = Upstream::start().await;
    up.on("/a", Answer::text(status, "later").header("Retry-After", value));
    let error = open(&egress(settings()), &up.url("/a")).await.expect_err("later");
    assert!(seconds.contains(&error.retry_after().expect("delay").as_secs()), "{:?}", error.retry_after());
}

#[tokio::test]
async fn retry_after_as_a_date() {
    let up = Upstream::start().await;
    let at = SystemTime::now() + Duration::from_secs(1000);
    up.on("/a", Answer::text(429, "later").header("Retry-After", &httpdate::fmt_http_date(at)));
    let error = open(&egress(settings()), &up.url("/a")).await.expect_err("later");
    assert!((900..=1000).contains(&error.retry_after().expect("delay").as_secs()), "{:?}", error.retry_after());
}

#[rstest]
#[case::many_bytes(format!("X-Fill: {}\r\n", "a".repeat(100_000)))]
#[case::many_lines("X-Fill: a\r\n".repeat(2000))]
#[tokio::test]
async fn huge_headers_are_refused(#[case] fill: String) {
    let up = Upstream::start().await;
    up.on("/a", Answer::raw(format!("HTTP/1.1 200 OK\r\n{fill}Content-Length: 1\r\n\r\na")));
    let error = open(&egress(settings()), &up.url("/a")).await.expect_err("too much");
    assert!(matches!(error.fault(), Fault::HeadersTooLarge { .. }), "{error}");
    assert_eq!(error.reason(), Reason::EgressRefused);
}

#[tokio::test]
async fn an_endless_head_is_refused() {
    let up = Upstream::start().await;
    up.on("/a", Answer::raw(format!("HTTP/1.1 200 OK\r\nX-Fill: {}", "a".repeat(8 << 20))));
    let error = open(&egress(settings()), &up.url("/a")).await.expect_err("too much");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
}

#[tokio::test]
async fn words_of_an_upstream_are_bounded_cleaned_and_without_secrets() {
    let up = Upstream::start().await;
    let long = "x".repeat(100_000);
    up.on("/a", Answer::text(400, &format!("bad\r\n\x1b[2Jquery sig=hunter2 and token tok3n\n{long}")));
    let credentials = Credentials::Bearer("tok3n".to_owned().into());
    let source = http(&up.url("/a?sig=hunter2"));
    let request = OpenRequest { credentials: std::slice::from_ref(&credentials), ..OpenRequest::new(&source) };
    let error = egress(settings()).open(&request).await.expect_err("refused");
    let text = format!("{error} {error:?}");
    assert!(!text.contains("hunter2") && !text.contains("tok3n") && !text.contains('\x1b'), "{text}");
    assert!(error.to_string().contains("bad [2Jquery … and token …"), "{error}");
    assert!(error.to_string().len() < 1000, "{error}");
}

#[tokio::test]
async fn a_page_of_an_error_is_not_repeated() {
    let up = Upstream::start().await;
    up.on("/a", Answer::text(404, "<html><body>nginx</body></html>"));
    let error = open(&egress(settings()), &up.url("/a")).await.expect_err("missing");
    assert!(!error.to_string().contains("html"), "{error}");
}

#[tokio::test]
async fn an_error_whose_text_never_comes_is_told_without_it() {
    let up = Upstream::start().await;
    up.on("/a", Answer::text(404, "never").announce(100).stall(0));
    let mut settings = settings();
    settings.deadlines.idle = Duration::from_millis(300);
    let error = open(&egress(settings), &up.url("/a")).await.expect_err("missing");
    assert_eq!(error.reason(), Reason::NotFound, "{error}");
}

/// A factory that builds: nothing for a long while, then the answer.
#[tokio::test]
async fn a_late_first_byte_is_waited_for_up_to_its_deadline() {
    let up = Upstream::start().await;
    let gate = Gate::default();
    up.on("/slow", Answer::file("built").hold(&gate));
    up.on("/never", Answer::file("built").hold(&Gate::default()));
    let patient = egress(settings());
    let url = up.url("/slow");
    let waiting = tokio::spawn(async move { crate::fetch(&patient, &url).await });
    while up.hits("/slow").is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    gate.open();
    assert_eq!(waiting.await.expect("task").expect("file"), b"built");

    let mut settings = settings();
    settings.deadlines.first_byte = Duration::from_millis(300);
    let error = open(&egress(settings), &up.url("/never")).await.expect_err("never");
    assert!(matches!(error.fault(), Fault::NoAnswer { .. }), "{error}");
    assert_eq!(error.reason(), Reason::Unavailable);
    assert!(error.to_string().contains("300 ms"), "{error}");
}

#[tokio::test]
async fn nobody_there() {
    let address = crate::upstream::process::free_address();
    let error = open(&egress(settings()), &format!("http://{address}/a")).await.expect_err("nobody");
    assert!(matches!(error.fault(), Fault::Unreachable { .. }), "{error}");
    assert_eq!(error.reason(), Reason::Unavailable);
}
