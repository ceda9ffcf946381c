//! Kubernetes Events (`events.k8s.io/v1`): what `kubectl describe` tells of an object.
//!
//! Our own recorder, because kube's keeps the first text of a series whatever is said later, answers 404 for six minutes once
//! somebody deleted the Event, and makes names that collide when two publish at once (kube-rs/kube#2122). Telling never waits
//! and never fails: the queue is bounded, what does not fit or is refused is counted and logged, and no reconcile depends on it.

mod series;

use super::{api_error, metrics::Metrics};
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use series::{Key, Next, Series};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The longest note the API takes, in bytes (`core/validation`).
const NOTE_LIMIT: usize = 1024;
/// The longest reason, action and reporting instance it takes.
const WORD_LIMIT: usize = 128;
/// How many Events wait at most.
const QUEUE: usize = 256;
/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long what still waits is published for after the end was asked for.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Whether an Event calls for attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// All is well.
    Normal,
    /// Somebody should look.
    Warning,
}

impl Severity {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Something to be told about an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The object.
    pub regarding: ObjectReference,
    /// Whether it calls for attention.
    pub severity: Severity,
    /// Why, in CamelCase: a [`crate::rules::Reason`].
    pub reason: String,
    /// What was done or tried, in CamelCase.
    pub action: &'static str,
    /// What happened and what to do; cut to 1024 bytes. No secrets and no URL with a query.
    pub text: String,
}

/// Takes Events to be published. Cheap to clone; one for the whole process.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Note>,
    metrics: Arc<Metrics>,
}

impl Recorder {
    /// Tells. When the queue is full the note is dropped and counted: what is in conditions and logs does not depend on it.
    pub fn tell(&self, note: Note) {
        if let Err(error) = self.queue.try_send(note) {
            let (cause, note) = match error {
                mpsc::error::TrySendError::Full(note) => ("queue_full", note),
                mpsc::error::TrySendError::Closed(note) => ("shutting_down", note),
            };
            self.metrics.event_lost(cause);
            tracing::debug!(cause, reason = note.reason, object = note.regarding.name, "an Event is not published");
        }
    }
}

/// Publishes what a [`Recorder`] takes.
pub struct Publisher {
    queue: mpsc::Receiver<Note>,
    client: Client,
    controller: String,
    instance: String,
    series: Series,
    metrics: Arc<Metrics>,
    trouble: Option<String>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("controller", &self.controller).finish_non_exhaustive()
    }
}

/// A recorder and its publisher. `controller` is a domain-prefixed name of the program, `instance` the pod.
pub fn recorder(client: Client, controller: &str, instance: &str, metrics: Arc<Metrics>) -> (Recorder, Publisher) {
    let (sender, queue) = mpsc::channel(QUEUE);
    let recorder = Recorder { queue: sender, metrics: metrics.clone() };
    let (controller, instance) = (controller.to_owned(), cut(instance, WORD_LIMIT));
    (recorder, Publisher { queue, client, controller, instance, series: Series::default(), metrics, trouble: None })
}

impl Publisher {
    /// Publishes until `stop`, and then for a moment what still waits.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                note = self.queue.recv() => match note {
                    Some(note) => self.publish(note).await,
                    // Nobody is left to tell anything; the task must still live until it is told to end.
                    None => break stop.cancelled().await,
                },
            }
        }
        self.queue.close();
        let rest = tokio::time::timeout(LAST_WORDS, async {
            while let Some(note) = self.queue.recv().await {
                self.publish(note).await;
            }
        });
        if rest.await.is_err() {
            tracing::debug!("some Events were not published before the end");
        }
    }

    async fn publish(&mut self, note: Note) {
        let key = Key::of(&note);
        let outcome = match self.series.next(key.clone(), Instant::now()) {
            Next::Refused => {
                self.metrics.event_lost("rate_limited");
                tracing::debug!(reason = note.reason, object = note.regarding.name, "too many Events about one object");
                return;
            }
            Next::First => self.create(&note).await,
            Next::Again { name, count } => match self.count(&note, &name, count).await {
                // Deleted meanwhile, by hand or by its time to live.
                Err(kube::Error::Api(status)) if status.code == 404 => self.create(&note).await,
                Err(error) => Err(error),
                Ok(()) => Ok(name),
            },
        };
        match outcome {
            Ok(name) => {
                self.series.published(key, name);
                self.trouble = None;
            }
            Err(error) => {
                let text = api_error(&error);
                self.metrics.event_lost("refused");
                if self.trouble.as_ref() != Some(&text) {
                    tracing::warn!(object = note.regarding.name, reason = note.reason, error = text, "an Event could not be published");
                }
                self.trouble = Some(text);
            }
        }
    }

    /// Makes a new Event and gives its name.
    async fn create(&self, note: &Note) -> kube::Result<String> {
        let mut event = self.event(note);
        let api = self.api(note);
        for _ in 0..3 {
            event.metadata.name = Some(name(&note.regarding)?);
            match limited(api.create(&PostParams::default(), &event)).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                outcome => return outcome.map(|_| event.metadata.name.unwrap_or_default()),
            }
        }
        Err(kube::Error::Service("every name for the Event was taken".into()))
    }

    /// Counts one more of a series. The API server lets nothing but the series change.
    async fn count(&self, note: &Note, name: &str, count: i32) -> kube::Result<()> {
        let series = EventSeries { count, last_observed_time: MicroTime(Timestamp::now()) };
        let patch = Patch::Merge(serde_json::json!({ "series": series }));
        let api = self.api(note);
        limited(api.patch(name, &PatchParams::default(), &patch)).await.map(drop)
    }

    fn api(&self, note: &Note) -> Api<Event> {
        Api::namespaced(self.client.clone(), namespace(&note.regarding))
    }

    fn event(&self, note: &Note) -> Event {
        Event {
            metadata: ObjectMeta { namespace: Some(namespace(&note.regarding).to_owned()), ..ObjectMeta::default() },
            event_time: Some(MicroTime(Timestamp::now())),
            regarding: Some(note.regarding.clone()),
            type_: Some(note.severity.as_str().to_owned()),
            reason: Some(cut(&note.reason, WORD_LIMIT)),
            action: Some(cut(note.action, WORD_LIMIT)),
            note: Some(cut(&note.text, NOTE_LIMIT)),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }
}

/// Events about objects without a namespace live in `default`, where `kubectl describe` looks for them.
fn namespace(regarding: &ObjectReference) -> &str {
    regarding.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or("default")
}

/// A name nobody else has: the object's, and chance.
fn name(regarding: &ObjectReference) -> kube::Result<String> {
    let random = super::random::<8>().map_err(|error| kube::Error::Service(error.into()))?;
    let object: String = regarding.name.as_deref().unwrap_or("object").chars().take(253 - 17).collect();
    Ok(format!("{}.{}", object.trim_end_matches(['.', '-']), super::hex(&random)))
}

async fn limited<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let timed_out = |_| kube::Error::Service(format!("no answer within {REQUEST_TIMEOUT:?}").into());
    tokio::time::timeout(REQUEST_TIMEOUT, request).await.map_err(timed_out)?
}

/// The text, at most `limit` bytes of it, whole characters only; an ellipsis shows that something is missing.
fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    const MORE: &str = "…";
    let mut end = limit - MORE.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MORE}", &text[..end])
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
