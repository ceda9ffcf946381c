//! A real nginx: ranges, validators, TLS with a private authority.

use golden_catalog::source::{Comparison, EgressSettings, OpenRequest};

use crate::{
    drain, egress, fetch, http, open, pattern, settings,
    upstream::{Authority, nginx::Nginx},
};

struct Real {
    nginx: Nginx,
    settings: EgressSettings,
}

fn start(directives: &str) -> Real {
    let authority = Authority::new();
    let nginx = Nginx::start(&authority, &["127.0.0.1"], directives);
    Real { nginx, settings: EgressSettings { ca_bundle: Some(authority.pem()), ..settings() } }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_over_http_and_https_is_sent_once() {
    let real = start("");
    let bytes = pattern(5 << 20);
    real.nginx.put("a.img", &bytes);
    let egress = egress(real.settings);
    for url in [format!("http://{}/a.img", real.nginx.http), format!("https://{}/a.img", real.nginx.https)] {
        let opened = open(&egress, &url).await.expect("file");
        assert_eq!(opened.facts.length, Some(5 << 20));
        assert_eq!(opened.facts.accepts_ranges, Some(true));
        assert!(opened.facts.validator.is_some(), "nginx's ETag is strong");
        assert_eq!(drain(opened).await.expect("whole"), bytes);
    }
    let log = real.nginx.log("/a.img", 2);
    assert_eq!(log.iter().map(|line| (line.status, line.sent)).collect::<Vec<_>>(), [(200, 5 << 20), (200, 5 << 20)]);
    assert!(log.iter().all(|line| line.user_agent == golden_catalog::source::USER_AGENT), "{log:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rest_and_a_file_that_changed_meanwhile() {
    let real = start("");
    let bytes = pattern(1 << 20);
    real.nginx.put("a.img", &bytes);
    let egress = egress(real.settings);
    let source = http(&format!("http://{}/a.img", real.nginx.http));
    let mut first = egress.open(&OpenRequest::new(&source)).await.expect("file");
    let mut got = first.body.chunk().await.expect("chunk").expect("bytes").to_vec();
    let resume = first.facts.resume_at(got.len() as u64).expect("resume");
    drop(first);
    let rest = egress.open(&OpenRequest { resume: Some(&resume), ..OpenRequest::new(&source) }).await.expect("rest");
    assert_eq!(rest.offset, got.len() as u64);
    got.extend(drain(rest).await.expect("rest"));
    assert_eq!(got, bytes);

    let mut changed = bytes;
    changed.push(1);
    real.nginx.put("a.img", &changed);
    let whole = egress.open(&OpenRequest { resume: Some(&resume), ..OpenRequest::new(&source) }).await.expect("whole");
    assert_eq!(whole.offset, 0);
    assert_eq!(drain(whole).await.expect("whole"), changed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peek_at_a_large_file_moves_one_mebibyte() {
    let real = start("location /plain/ { max_ranges 0; alias /dev/null; }");
    std::fs::File::create(real.nginx.files().join("big.img")).and_then(|file| file.set_len(4 << 30)).expect("sparse file");
    let egress = egress(real.settings);
    let source = http(&format!("https://{}/big.img", real.nginx.https));
    let peeked = egress.peek(&OpenRequest::new(&source), 1 << 20).await.expect("peek");
    assert_eq!((peeked.head.len(), peeked.facts.length), (1 << 20, Some(4 << 30)));
    let log = real.nginx.log("/big.img", 1);
    assert_eq!((log.len(), log[0].status, log[0].sent), (1, 206, 1 << 20));
    let facts = egress.look(&OpenRequest::new(&source)).await.expect("facts");
    assert_eq!(facts.compared_with(&peeked.facts.recorded()), Comparison::Same);
}

/// gzip on the fly: nginx does not do it for `identity`, and a server that is forced to is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identity_is_asked_for_and_honoured() {
    let real =
        start("gzip on; gzip_types *; gzip_min_length 1; gzip_http_version 1.0; location /forced/ { add_header Content-Encoding gzip; }");
    let bytes = vec![0; 100_000];
    real.nginx.put("zeros.img", &bytes);
    real.nginx.put("forced/zeros.img", &bytes);
    let egress = egress(real.settings);
    assert_eq!(fetch(&egress, &format!("http://{}/zeros.img", real.nginx.http)).await.expect("file"), bytes);
    let error = open(&egress, &format!("http://{}/forced/zeros.img", real.nginx.http)).await.expect_err("encoded");
    assert_eq!(error.reason(), golden_catalog::rules::Reason::EgressRefused, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nginx_says_of_missing_and_forbidden_files() {
    let real = start("location /no/ { deny all; } location /busy/ { return 503; }");
    let egress = egress(real.settings);
    use golden_catalog::rules::Reason;
    for (path, reason) in [("/missing", Reason::NotFound), ("/no/x", Reason::Forbidden), ("/busy/x", Reason::Unavailable)] {
        let error = open(&egress, &format!("http://{}{path}", real.nginx.http)).await.expect_err(path);
        assert_eq!(error.reason(), reason, "{error}");
    }
}
