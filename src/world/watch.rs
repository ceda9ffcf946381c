//! One watch: list, watch, and again, with a backoff and an age of its own.
//!
//! kube's `watcher` hides bookmarks and reconnections, and with them the only proof that a quiet watch is alive. This loop
//! is client-go's reflector in small: what the API server says is handed to a [`Sink`], and every sign of life to a
//! [`Pulse`].

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use kube::{
    Api, Resource, ResourceExt as _,
    api::{ListParams, WatchParams},
    core::{DeserializeGuard, WatchEvent},
};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

/// How a watch behaves.
#[derive(Debug, Clone, Copy)]
pub struct WatchSettings {
    /// Objects a page of the list.
    pub page: u32,
    /// How long the API server keeps one watch open, in seconds: below the idle limit of common load balancers (240 s).
    pub timeout: u32,
    /// The shortest and longest delay after a failure.
    pub backoff: (Duration, Duration),
}

impl Default for WatchSettings {
    fn default() -> Self {
        Self { page: 500, timeout: 200, backoff: (Duration::from_millis(200), Duration::from_secs(30)) }
    }
}

/// Signs of life of one watch.
#[derive(Debug, Clone)]
pub struct Pulse(Arc<PulseInner>);

#[derive(Debug)]
struct PulseInner {
    kind: &'static str,
    born: Instant,
    last: AtomicU64,
    failures: AtomicU64,
    odd: AtomicU64,
}

impl Pulse {
    /// A pulse for a kind, alive as of now.
    pub fn new(kind: &'static str) -> Self {
        Self(Arc::new(PulseInner {
            kind,
            born: Instant::now(),
            last: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            odd: AtomicU64::new(0),
        }))
    }

    /// The kind watched.
    pub fn kind(&self) -> &'static str {
        self.0.kind
    }

    /// How long ago the API server last gave a sign: a list, an event, a bookmark, an orderly end of the watch.
    pub fn age(&self) -> Duration {
        self.0.born.elapsed().saturating_sub(Duration::from_millis(self.0.last.load(Ordering::Relaxed)))
    }

    /// How often the watch failed since the start.
    pub fn failures(&self) -> u64 {
        self.0.failures.load(Ordering::Relaxed)
    }

    /// How many objects could not be read since the start.
    pub fn odd(&self) -> u64 {
        self.0.odd.load(Ordering::Relaxed)
    }

    pub(super) fn beat(&self) {
        let now = u64::try_from(self.0.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last.fetch_max(now, Ordering::Relaxed);
    }
}

/// Where the objects of a watch go.
pub trait Sink<K>: Send {
    /// A list begins: what is not applied until [`Sink::synced`] is gone.
    fn begin(&mut self);
    /// The object is there, new or changed.
    fn apply(&mut self, object: K);
    /// The object is gone. Only its metadata can be relied on.
    fn delete(&mut self, namespace: Option<&str>, name: &str);
    /// An object is there that cannot be read.
    fn odd(&mut self, namespace: Option<&str>, name: &str, error: &str);
    /// The list is complete.
    fn synced(&mut self);
}

/// Lists and watches for ever. Drop the future to stop it.
pub async fn feed<K>(api: Api<DeserializeGuard<K>>, settings: WatchSettings, pulse: &Pulse, sink: &mut impl Sink<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut version: Option<String> = None;
    let mut failed: u32 = 0;
    loop {
        let began = Instant::now();
        let outcome = match version.take() {
            None => list(&api, settings, pulse, sink).await,
            Some(from) => watch(&api, settings, pulse, sink, from).await,
        };
        match outcome {
            Ok(next) => {
                pulse.beat();
                version = next;
                // An orderly end within a moment would spin otherwise.
                if began.elapsed() > Duration::from_secs(1) || version.is_some() && failed == 0 {
                    failed = 0;
                    tokio::task::yield_now().await;
                } else {
                    failed = failed.saturating_add(1);
                    sleep(delay(settings, failed, pulse.kind())).await;
                }
            }
            Err(Trouble { error, resume }) => {
                pulse.0.failures.fetch_add(1, Ordering::Relaxed);
                version = resume;
                failed = if began.elapsed() > settings.backoff.1 { 1 } else { failed.saturating_add(1) };
                let wait = delay(settings, failed, pulse.kind());
                tracing::warn!(kind = pulse.kind(), %error, retry_in = ?wait, "watch failed");
                sleep(wait).await;
            }
        }
    }
}

/// A failure, and the version to go on from if the list is still good.
struct Trouble {
    error: String,
    resume: Option<String>,
}

/// The whole list, page by page, into the sink; gives the version to watch from.
async fn list<K>(
    api: &Api<DeserializeGuard<K>>,
    settings: WatchSettings,
    pulse: &Pulse,
    sink: &mut impl Sink<K>,
) -> Result<Option<String>, Trouble>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let fail = |error: String| Trouble { error, resume: None };
    let mut token: Option<String> = None;
    sink.begin();
    loop {
        let mut params = ListParams::default().limit(settings.page);
        params.continue_token = token;
        let page = timeout(Duration::from_secs(60), api.list(&params))
            .await
            .map_err(|_| fail("the list took longer than 60 seconds".into()))?
            .map_err(|error| fail(super::kinds::api_error(&error)))?;
        pulse.beat();
        for object in page.items {
            hand_over(object, pulse, sink);
        }
        token = page.metadata.continue_.filter(|token| !token.is_empty());
        if token.is_none() {
            sink.synced();
            return Ok(page.metadata.resource_version.filter(|version| !version.is_empty()));
        }
    }
}

/// Watches until the API server ends it; gives the version to go on from, or `None` where a new list is needed.
async fn watch<K>(
    api: &Api<DeserializeGuard<K>>,
    settings: WatchSettings,
    pulse: &Pulse,
    sink: &mut impl Sink<K>,
    mut version: String,
) -> Result<Option<String>, Trouble>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let params = WatchParams { timeout: Some(settings.timeout), bookmarks: true, ..WatchParams::default() };
    let began = timeout(Duration::from_secs(30), api.watch(&params, &version)).await;
    let stream = match began {
        Err(_) => return Err(Trouble { error: "the watch was not answered within 30 seconds".into(), resume: Some(version) }),
        Ok(Err(kube::Error::Api(status))) if status.code == 410 => return Ok(None),
        Ok(Err(error)) => return Err(Trouble { error: super::kinds::api_error(&error), resume: Some(version) }),
        Ok(Ok(stream)) => stream,
    };
    pulse.beat();
    let mut stream = std::pin::pin!(stream);
    // A connection that was dropped without a word never ends by itself.
    let silence = Duration::from_secs(u64::from(settings.timeout) + 5);
    loop {
        let event = match timeout(silence, stream.next()).await {
            Err(_) => return Err(Trouble { error: "the connection went silent".into(), resume: Some(version) }),
            Ok(None) => return Ok(Some(version)),
            Ok(Some(Err(error))) => return Err(Trouble { error: super::kinds::api_error(&error), resume: Some(version) }),
            Ok(Some(Ok(event))) => event,
        };
        pulse.beat();
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                if let Some(next) = object.resource_version() {
                    version = next;
                }
                hand_over(object, pulse, sink);
            }
            WatchEvent::Deleted(object) => {
                if let Some(next) = object.resource_version() {
                    version = next;
                }
                sink.delete(object.namespace().as_deref(), &object.name_any());
            }
            WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
            WatchEvent::Error(status) if status.code == 410 => return Ok(None),
            WatchEvent::Error(status) => return Err(Trouble { error: status.message.clone(), resume: None }),
        }
    }
}

fn hand_over<K>(object: DeserializeGuard<K>, pulse: &Pulse, sink: &mut impl Sink<K>)
where
    K: Resource,
{
    match object.0 {
        Ok(object) => sink.apply(object),
        Err(invalid) => {
            pulse.0.odd.fetch_add(1, Ordering::Relaxed);
            let name = invalid.metadata.name.unwrap_or_default();
            tracing::warn!(
                kind = pulse.kind(),
                namespace = invalid.metadata.namespace,
                name,
                error = invalid.error,
                "object cannot be read"
            );
            sink.odd(invalid.metadata.namespace.as_deref(), &name, &invalid.error);
        }
    }
}

/// A growing delay with a share that differs between kinds, so that many watches do not come back as one.
fn delay(settings: WatchSettings, failed: u32, kind: &str) -> Duration {
    let (shortest, longest) = settings.backoff;
    let full = shortest.saturating_mul(2_u32.saturating_pow(failed.clamp(1, 16) - 1)).min(longest);
    let seed = crate::model::Digest::of(format!("{kind}/{failed}/{}", std::process::id()).as_bytes());
    full.mul_f64(0.5 + f64::from(seed.as_bytes()[0]) / 510.0)
}
