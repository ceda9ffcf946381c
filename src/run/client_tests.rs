use super::*;
use crate::run::lease::Timing;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::Notify;

/// Answers every request like an API server that has one ConfigMap, and counts the writes that arrive whole.
#[derive(Default)]
struct Server {
    writes: AtomicUsize,
    /// Writes are answered only when told to; what it tells about is `begun`.
    held: bool,
    begun: Notify,
    go: Notify,
    cut: Notify,
}

impl Server {
    async fn start(self) -> (Arc<Self>, Config) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let server = Arc::new(self);
        let state = server.clone();
        let app = axum::Router::new().fallback(move |request: axum::extract::Request| answer(state.clone(), request));
        tokio::spawn(async move { axum::serve(listener, app).await });
        (server, Config::new(url))
    }

    fn writes(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }
}

/// Tells when the request it belongs to is given up.
struct Cut(Arc<Server>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.cut.notify_one();
    }
}

async fn answer(server: Arc<Server>, request: axum::extract::Request) -> axum::Json<serde_json::Value> {
    if request.method() != Method::GET && axum::body::to_bytes(request.into_body(), 1 << 20).await.is_ok() {
        server.writes.fetch_add(1, Ordering::SeqCst);
        if server.held {
            let _cut = Cut(server.clone());
            server.begun.notify_one();
            server.go.notified().await;
        }
    }
    axum::Json(serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}}))
}

fn object() -> ConfigMap {
    serde_json::from_value(serde_json::json!({"metadata": {"name": "c"}})).unwrap()
}

fn api(config: &Config, claim: &Claim) -> Api<ConfigMap> {
    Api::namespaced(writer(config, claim, READ_TIMEOUT).unwrap(), "n")
}

#[tokio::test]
async fn every_kind_of_write_is_refused_once_the_claim_is_over_and_reads_are_not() {
    use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
    let (server, config) = Server::default().start().await;
    let claim = Claim::unshared(Timing::default());
    let api = api(&config, &claim);
    api.create(&PostParams::default(), &object()).await.unwrap();
    assert_eq!(server.writes(), 1);

    claim.end();
    let merge = Patch::Merge(serde_json::json!({}));
    let refused = [
        api.create(&PostParams::default(), &object()).await.map(drop),
        api.replace("c", &PostParams::default(), &object()).await.map(drop),
        api.patch("c", &PatchParams::apply("t"), &Patch::Apply(object())).await.map(drop),
        api.patch("c", &PatchParams::default(), &merge).await.map(drop),
        api.patch_status("c", &PatchParams::default(), &merge).await.map(drop),
        api.delete("c", &DeleteParams::default()).await.map(drop),
        api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.map(drop),
    ];
    for outcome in refused {
        assert!(outcome.as_ref().is_err_and(is_lost), "{outcome:?}");
    }
    api.get("c").await.unwrap();
    assert_eq!(server.writes(), 1);
}

#[tokio::test]
async fn a_claim_that_ends_while_connecting_stops_the_request_at_the_wire() {
    let (server, config) = Server::default().start().await;
    let claim = Claim::unshared(Timing::default());
    claim.end();
    let http: legacy::Client<_, Guarded> = legacy::Client::builder(TokioExecutor::new()).build(config.rustls_https_connector().unwrap());
    let request = |claim| {
        let body = Guarded { body: Body::from(b"{}".to_vec()), claim };
        Request::post(config.cluster_url.clone()).body(body).unwrap()
    };
    let error = http.request(request(Some(claim))).await.unwrap_err();
    assert!(is_lost(&kube::Error::Service(error.into())));
    // The server is well and would have taken it.
    http.request(request(None)).await.unwrap();
    assert_eq!(server.writes(), 1);
}

#[tokio::test]
async fn an_outstanding_write_is_dropped_when_the_claim_ends() {
    let (server, config) = Server { held: true, ..Server::default() }.start().await;
    let claim = Claim::unshared(Timing::default());
    let api = api(&config, &claim);
    let write = tokio::spawn(async move { api.create(&PostParams::default(), &object()).await });
    server.begun.notified().await;
    claim.end();
    let outcome = write.await.unwrap();
    assert!(outcome.as_ref().is_err_and(is_lost), "{outcome:?}");
    server.cut.notified().await;
    claim.drained().await;
}

/// At the end of the process its loops are dropped, and with them those who wait for answers.
#[tokio::test]
async fn a_write_that_nobody_waits_for_any_more_keeps_the_lease_until_it_is_answered() {
    let (server, config) = Server { held: true, ..Server::default() }.start().await;
    let claim = Claim::unshared(Timing::default());
    let (first, second) = (api(&config, &claim), api(&config, &claim));
    let write = tokio::spawn(async move { first.create(&PostParams::default(), &object()).await });
    server.begun.notified().await;
    write.abort();
    assert!(write.await.unwrap_err().is_cancelled());
    claim.close();
    assert!(second.create(&PostParams::default(), &object()).await.as_ref().is_err_and(is_lost));
    let mut drained = Box::pin(claim.drained());
    assert!(futures::poll!(&mut drained).is_pending());
    server.go.notify_one();
    drained.await;
    assert_eq!(server.writes(), 1);
}

#[tokio::test]
async fn other_failures_are_not_taken_for_a_lost_claim() {
    let claim = Claim::unshared(Timing::default());
    // Nothing listens on port 1.
    let error = api(&Config::new("http://127.0.0.1:1".parse().unwrap()), &claim).get("c").await.unwrap_err();
    assert!(!is_lost(&error), "{error:?}");
}

#[tokio::test]
async fn a_body_that_stops_coming_ends_and_a_whole_one_is_left_alone() {
    use futures::StreamExt as _;
    use http_body_util::BodyExt as _;
    let first = futures::stream::iter([Ok::<_, std::io::Error>("first")]);
    let stops = axum::body::Body::from_stream(first.chain(futures::stream::pending()));
    let mut stops = Timed::new(stops, Duration::from_millis(50));
    assert_eq!(stops.frame().await.unwrap().unwrap().into_data().unwrap(), "first");
    let error = stops.frame().await.unwrap().unwrap_err();
    assert!(error.is::<BodyTimedOut>(), "{error}");
    let whole = Timed::new(axum::body::Body::from("whole"), READ_TIMEOUT).collect().await.unwrap();
    assert_eq!(whole.to_bytes(), "whole");
}

#[test]
fn how_long_a_body_may_take() {
    let seconds = |query| patience(query, READ_TIMEOUT).as_secs() - READ_TIMEOUT.as_secs();
    assert_eq!(seconds(""), 0);
    assert_eq!(seconds("&limit=500&timeoutSeconds=290"), 0);
    assert_eq!(seconds("&watch=true&timeoutSeconds=290&allowWatchBookmarks=true"), 290);
    assert_eq!(seconds("&watch=true"), u64::from(LONGEST_WATCH));
    assert_eq!(seconds("watch=true&timeoutSeconds=86400"), u64::from(LONGEST_WATCH));
}
