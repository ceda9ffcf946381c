//! Answers and ways that lead to no file: each ends with its reason, says what to do, and leaves nothing.

use std::time::Duration;

use golden_catalog::rules::Reason;
use rstest::rstest;

use crate::{
    support::{Bench, Disks, MIB, assert_is_the_disk, request, settings},
    upstream::{Answer, Authority, Names, Upstream},
};

/// What its `Retry-After` is read against: upstream's own clock.
const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

#[rstest]
#[case::bad_request(Answer::text(400, "unknown file extension"), Reason::InvalidSource, "unknown file extension", None)]
#[case::anonymous(Answer::text(401, "who are you?"), Reason::Unauthorized, "who are you?", None)]
#[case::enterprise(Answer::text(402, "enterprise only"), Reason::Forbidden, "enterprise only", None)]
#[case::forbidden(Answer::text(403, "not you"), Reason::Forbidden, "not you", None)]
#[case::later(Answer::text(429, "slow down").header("Retry-After", "90"), Reason::RateLimited, "in 90 s", Some(90))]
#[case::at(Answer::text(429, "").header("Date", DATE).header("Retry-After", "Sun, 06 Nov 1994 08:59:37 GMT"), Reason::RateLimited, "in 10 min", Some(600))]
#[case::some_day(Answer::text(429, ""), Reason::RateLimited, "without saying when", None)]
#[case::no_content(Answer::new(204, ""), Reason::NotFound, "write the address of the file itself", None)]
#[case::too_large(Answer::text(413, ""), Reason::Unavailable, "raise its limit", None)]
#[case::no_part(Answer::text(416, ""), Reason::Unavailable, "refuses a part", None)]
#[case::interim(Answer::raw("HTTP/1.1 102 Processing\r\n\r\n".repeat(5000)), Reason::Unavailable, "interim answers", None)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_no_file(#[case] answer: Answer, #[case] reason: Reason, #[case] says: &str, #[case] wait: Option<u64>) {
    let up = Upstream::start().await;
    up.on("/d", answer);
    let bench = Bench::new();
    let error = bench.run(&request(&up.url("/d"))).await.expect_err("no file");
    assert_eq!((error.reason(), error.retry_after()), (reason, wait.map(Duration::from_secs)), "{error}");
    assert!(error.to_string().contains(says), "{error}");
    bench.assert_empty().await;
}

/// A byte at a time is no progress, however long it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_drip_ends() {
    let up = Upstream::start().await;
    up.on("/d", Answer::file(Disks::qcow2_bytes()).drip(Duration::from_millis(20)));
    let mut impatient = settings();
    impatient.deadlines.idle = Duration::from_secs(1);
    let bench = Bench::with(1 << 30, impatient);
    let error = bench.run(&request(&up.url("/d"))).await.expect_err("drip");
    assert_eq!(error.reason(), Reason::Unavailable, "{error}");
    assert!(error.to_string().contains("too little for 1 s"), "{error}");
    bench.assert_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_in_the_middle_is_gone_on_from() {
    let up = Upstream::start().await;
    let file = Answer::file(Disks::qcow2_bytes());
    up.sequence("/d", [file.clone().reset(2 * MIB as usize), file]);
    let bench = Bench::new();
    let asked = request(&up.url("/d"));
    let error = bench.run(&asked).await.expect_err("reset");
    assert_eq!(error.reason(), Reason::Unavailable, "{error}");
    // A reset may take bytes with it that had arrived; what was written is gone on from.
    let kept = !bench.files().await.is_empty();
    let spooled = bench.run(&asked).await.expect("take in");
    assert_is_the_disk(bench.root.path(), &spooled);
    assert_eq!(up.settled("/d", 2).await[1].header("range").is_some(), kept);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_to_http_is_not_followed() {
    let authority = Authority::new();
    let (up, plain) = (Upstream::start_tls(&authority, &["127.0.0.1"]).await, Upstream::start().await);
    plain.on("/d", Answer::file(Disks::qcow2_bytes()));
    up.on("/d", Answer::redirect(302, &plain.url("/d")));
    let bench = Bench::new();
    let mut asked = request(&up.url("/d"));
    asked.ca_bundle = Some(authority.pem().into_bytes());
    let error = bench.run(&asked).await.expect_err("downgrade");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
    assert!(error.to_string().contains("from https to http is not followed; write an https address"), "{error}");
    assert_eq!(plain.connections(), 0);
    bench.assert_empty().await;
}

#[rstest]
#[case::loopback("127.0.0.1", "a loopback address")]
#[case::link_local("169.254.169.254", "a link-local address")]
#[case::unspecified("0.0.0.0", "the unspecified address")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_points_inward_is_not_connected_to(#[case] address: &str, #[case] class: &str) {
    let (up, names) = (Upstream::start().await, Names::start().await);
    up.on("/d", Answer::file(Disks::qcow2_bytes()));
    names.set("images.example", &[address]);
    let mut guarded = settings();
    (guarded.allow_loopback, guarded.resolver) = (false, Some(names.address));
    let bench = Bench::with(1 << 30, guarded);
    let error = bench.run(&request(&up.url_at("images.example", "/d"))).await.expect_err("inward");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
    assert!(error.to_string().contains(class) && error.to_string().contains("mend its DNS record"), "{error}");
    assert_eq!(up.connections(), 0);
    bench.assert_empty().await;
}

/// The name that a redirect leads to may be anybody's: here it is private to whoever asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_to_a_name_that_points_inward_is_not_followed() {
    let (up, inner, names) = (Upstream::start().await, Upstream::start().await, Names::start().await);
    names.set("cdn.example", &["127.0.0.1"]);
    inner.on("/d", Answer::file(Disks::qcow2_bytes()));
    up.on("/d", Answer::redirect(302, &inner.url_at("cdn.example", "/d")));
    let mut guarded = settings();
    guarded.resolver = Some(names.address);
    let bench = Bench::with(1 << 30, guarded);
    let error = bench.run(&request(&up.url("/d"))).await.expect_err("inward");
    assert_eq!((error.reason(), names.asked("cdn.example")), (Reason::EgressRefused, 1), "{error}");
    assert_eq!(inner.connections(), 0);
    bench.assert_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_nobody_vouches_for_ends_it_before_a_request() {
    let (authority, other) = (Authority::new(), Authority::new());
    let up = Upstream::start_tls(&authority, &["127.0.0.1"]).await;
    up.on("/d", Answer::file(Disks::qcow2_bytes()));
    let bench = Bench::new();
    let mut asked = request(&up.url("/d"));
    for bundle in [None, Some(other.pem().into_bytes())] {
        asked.ca_bundle = bundle;
        let error = bench.run(&asked).await.expect_err("not trusted");
        assert_eq!(error.reason(), Reason::TLSFailed, "{error}");
    }
    assert_eq!(up.total(), 0);
    bench.assert_empty().await;
    asked.ca_bundle = Some(authority.pem().into_bytes());
    bench.run(&asked).await.expect("trusted");
}
