//! `/healthz`, `/readyz` and `/metrics`: whether the process should be restarted, whether it should get requests, and its numbers.
//!
//! Ready means that caches are complete, not that this process leads: followers answer admission too. Live means that each watch
//! heard from the API server within its limit and that no task of the process is gone; a daemon that is stuck looks healthy to
//! everything else (stackabletech/trino-operator#936).

use super::metrics::{Format, Metrics};
use axum::{
    Router,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The port of `/healthz` and `/readyz`.
pub const HEALTH_PORT: u16 = 8081;
/// The port of `/metrics`.
pub const METRICS_PORT: u16 = 8080;

type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// A failure means: restart me.
    Live,
    /// A failure means: send me nothing yet.
    Ready,
}

/// The checks behind the probes.
#[derive(Default)]
pub struct Health {
    checks: RwLock<Vec<(Probe, String, Check)>>,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").finish_non_exhaustive()
    }
}

impl Health {
    /// No checks: live and ready.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds a check. It must be quick and must not block; its error is shown to whoever asks, so it holds no secret.
    pub fn add(&self, probe: Probe, name: &str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.checks.write().unwrap_or_else(PoisonError::into_inner).push((probe, name.to_owned(), Box::new(check)));
    }

    /// What fails now, a line each.
    pub fn failures(&self, probe: Probe) -> Vec<String> {
        let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
        let of_probe = checks.iter().filter(|(of, ..)| *of == probe);
        of_probe.filter_map(|(_, name, check)| check().err().map(|why| format!("{name}: {why}"))).collect()
    }

    /// The probes: `/healthz` (also `/livez`) and `/readyz`.
    pub fn router(self: Arc<Self>) -> Router {
        let live = |State(health): State<Arc<Self>>| async move { answer(health.failures(Probe::Live)) };
        let ready = |State(health): State<Arc<Self>>| async move { answer(health.failures(Probe::Ready)) };
        Router::new().route("/healthz", get(live)).route("/livez", get(live)).route("/readyz", get(ready)).with_state(self)
    }
}

fn answer(failures: Vec<String>) -> (StatusCode, String) {
    match failures.is_empty() {
        true => (StatusCode::OK, "ok\n".to_owned()),
        false => (StatusCode::SERVICE_UNAVAILABLE, failures.join("\n") + "\n"),
    }
}

/// `/metrics`, in the format that is asked for.
pub fn metrics_router(metrics: Arc<Metrics>) -> Router {
    Router::new().route("/metrics", get(scrape)).with_state(metrics)
}

async fn scrape(State(metrics): State<Arc<Metrics>>, headers: HeaderMap) -> Response {
    let accept: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::accepted(&accept.join(","));
    match metrics.scrape(format) {
        Ok(text) => ([(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()))], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Serves plain HTTP until `stop`. Probes and scrapes are short, so those under way are answered.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) -> std::io::Result<()> {
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    };

    async fn start(router: Router) -> (String, CancellationToken, tokio::task::JoinHandle<std::io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        (url, stop.clone(), tokio::spawn(serve(listener, router, stop)))
    }

    async fn ask(url: String, accept: Option<&str>) -> (u16, String, String) {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut request = client.get(url);
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        let answer = request.send().await.unwrap();
        let media = answer.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned());
        (answer.status().as_u16(), media.unwrap_or_default(), answer.text().await.unwrap())
    }

    #[tokio::test]
    async fn probes_follow_their_checks_and_say_what_fails() {
        let health = Health::new();
        let (synced, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(OnceLock::<String>::new()));
        let (of_synced, of_failed) = (synced.clone(), failed.clone());
        health.add(Probe::Ready, "watch DataVolume", move || {
            of_synced.load(Ordering::SeqCst).then_some(()).ok_or("not synced yet".to_owned())
        });
        health.add(Probe::Live, "process", move || of_failed.get().map_or(Ok(()), |why| Err(why.clone())));
        let (url, stop, server) = start(health.router()).await;

        assert_eq!(
            ask(format!("{url}/readyz"), None).await,
            (503, "text/plain; charset=utf-8".into(), "watch DataVolume: not synced yet\n".into())
        );
        assert_eq!(ask(format!("{url}/healthz"), None).await.0, 200, "not being ready is no reason to be restarted");
        synced.store(true, Ordering::SeqCst);
        assert_eq!(ask(format!("{url}/readyz"), None).await.2, "ok\n");
        failed.set("task watch ended: it returned".into()).unwrap();
        for path in ["healthz", "livez"] {
            assert_eq!(ask(format!("{url}/{path}"), None).await.0, 503);
        }
        assert_eq!(ask(format!("{url}/readyz"), None).await.0, 200);
        assert_eq!(ask(format!("{url}/metrics"), None).await.0, 404);
        stop.cancel();
        server.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn metrics_come_in_the_format_asked_for() {
        let metrics = Arc::new(Metrics::new());
        metrics.leads(true);
        let (url, _stop, _server) = start(metrics_router(metrics)).await;
        let (code, media, text) = ask(format!("{url}/metrics"), None).await;
        assert_eq!((code, media.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
        assert!(text.contains("golden_image_leader 1\n") && !text.contains("# EOF"), "{text}");
        let (_, media, text) = ask(format!("{url}/metrics"), Some("application/openmetrics-text;version=1.0.0")).await;
        assert_eq!(media, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
