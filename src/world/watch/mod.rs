//! Watches of Kubernetes kinds: what is known of each, since when, and why not where it is not.
//!
//! The protocol is that of kube's `watcher` (list in pages or as a stream, then watch, resume from the last resourceVersion, list
//! again after 410 Gone), written anew for four things it cannot do. It hides bookmarks, which on a quiet kind are the only proof
//! that the connection lives. Its list requests wait without end on an API server that accepts and never answers. A start of the
//! watch that answers 410 is tried again with the same version for ever. And to survive one object that does not decode, every
//! object would go through a buffer twice ([`kube::core::DeserializeGuard`]); here a page is decoded strictly, and only a page that fails is
//! taken apart.
//!
//! Each watch has a backoff of its own: with one for all, a kind that fails keeps the others from coming back
//! (stackabletech/trino-operator#936).

mod decode;
mod read;
mod served;
mod state;

pub use decode::Key;
pub use state::{Phase, Unknown, WatchState};

pub(super) use decode::{Item, page};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Client, Resource, core::PartialObjectMeta};
use read::{Query, Step};
use serde::de::DeserializeOwned;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// How a watch behaves.
#[derive(Debug, Clone, Copy)]
pub struct WatchSettings {
    /// Objects in a page of the list.
    pub page: u32,
    /// Take the list as a stream of watch events (Kubernetes 1.32 on; a server that cannot is asked for pages).
    pub streaming: bool,
    /// How long a watch may be without a word from the API server before the process counts as stuck.
    pub limit: Duration,
    /// How long the API server may take to begin a watch or to send a page (it gives up after 60 s itself).
    pub answer: Duration,
    /// How long a watch may be silent before its connection counts as dead.
    pub silence: Duration,
}

impl Default for WatchSettings {
    /// Pages of 500, a limit of 8 minutes: two rounds of a watch, and a list in between.
    fn default() -> Self {
        Self { page: 500, streaming: false, limit: Duration::from_secs(480), answer: Duration::from_secs(65), silence: read::SILENCE }
    }
}

/// Which objects of a kind to watch.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// One namespace, or all.
    pub namespace: Option<String>,
    /// A label selector.
    pub labels: Option<String>,
    /// A field selector.
    pub fields: Option<String>,
    /// Further versions of the kind that decode in the same way, for servers that no longer serve the reader's own.
    pub versions: &'static [&'static str],
    /// Ask for metadata only; the kind is then a [`PartialObjectMeta`].
    pub metadata_only: bool,
}

impl Selection {
    /// All objects of one namespace.
    pub fn in_namespace(namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..Self::default() }
    }
}

/// Where the objects of a watch go. A list that is begun may be begun again before it is complete; only its completion says
/// that objects are gone which it did not contain.
pub trait Sink<K>: Send {
    /// A list begins: what is not applied until [`Sink::synced`] is gone.
    fn begin(&mut self);
    /// The object is there, new or changed or as before.
    fn apply(&mut self, object: K);
    /// The object is gone.
    fn delete(&mut self, namespace: Option<&str>, name: &str);
    /// An object is there that cannot be read.
    fn odd(&mut self, namespace: Option<&str>, name: &str, error: &str);
    /// The list is complete.
    fn synced(&mut self);
    /// The API server does not know the kind, so there are no objects of it.
    fn not_installed(&mut self);
}

/// Lists and watches for ever. Drop the future to stop it.
///
/// `client` must not retry by itself ([`crate::run::client::reader`]): its delays would hide from `state` that nothing arrives.
pub async fn feed<K>(client: Client, selection: Selection, settings: WatchSettings, state: &WatchState, sink: &mut impl Sink<K>)
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let query = Query::new::<K>(selection, settings);
    let installed = Notify::new();
    let mut hand_over = |step: Step<K>| hand_over(step, sink, state);
    tokio::select! {
        () = read::run(&client, &query, &mut hand_over, state, &installed) => {}
        () = until_installed(&client, settings, state.definition(), &installed) => {}
    }
}

/// Hands one step of the protocol on.
fn hand_over<K: Resource>(step: Step<K>, sink: &mut impl Sink<K>, state: &WatchState) {
    match step {
        Step::Begin => {
            state.begins();
            sink.begin();
        }
        Step::Put(Item::Object(object)) => {
            if let Some(key) = Key::of(object.meta()) {
                state.readable(&key);
                sink.apply(object);
            }
        }
        Step::Put(Item::Unreadable { key, error, .. }) => {
            if let Some(key) = &key {
                sink.odd(key.namespace.as_deref(), &key.name, &error);
            }
            state.unreadable(key, error);
        }
        Step::Delete(item) => {
            if let Some(key) = item.key() {
                state.readable(&key);
                sink.delete(key.namespace.as_deref(), &key.name);
            }
        }
        Step::Complete => {
            sink.synced();
            state.complete();
        }
        Step::NotInstalled => sink.not_installed(),
    }
}

/// Watches for the CustomResourceDefinition and wakes the watch of its kind when it comes or changes. Only a hint that saves
/// waiting: whether the kind is there, its own watch finds out. By name and metadata only, so that the right to read this one
/// definition is enough.
async fn until_installed(client: &Client, settings: WatchSettings, definition: Option<&str>, installed: &Notify) {
    let Some(definition) = definition else { return std::future::pending().await };
    type Definition = PartialObjectMeta<CustomResourceDefinition>;
    let fields = Some(format!("metadata.name={definition}"));
    let query = Query::new::<Definition>(Selection { fields, metadata_only: true, ..Selection::default() }, settings);
    // Its troubles are not told: without it the kind is looked for from time to time.
    let state = WatchState::new("CustomResourceDefinition", settings.limit, Instant::now()).quiet();
    let mut wake = |step: Step<Definition>| match step {
        Step::Put(Item::Object(_)) => installed.notify_one(),
        Step::Complete => state.complete(),
        _ => {}
    };
    read::run(client, &query, &mut wake, &state, &Notify::new()).await;
}

/// The signs of life and the knowledge of one watch.
pub type Pulse = Arc<WatchState>;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
