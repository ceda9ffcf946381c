//! What is known of a kind, how old that is, and why it is not known.

use super::Key;
use crate::run::metrics::WatchSample;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{Notify, watch};

/// How many objects that do not decode are remembered by name; all are counted.
const NAMED: usize = 100;

/// Where a watch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The first list is not complete yet.
    Syncing,
    /// Everything is known, and changes arrive.
    Synced,
    /// It was complete once and is being listed anew: what is known is there, what is not known may be.
    Relisting,
    /// The API server does not know the kind.
    NotInstalled,
    /// The API server knows the kind and does not let us read it.
    Refused,
}

/// Why nothing can be said about what is not there. Never to be read as "nothing is there".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// The kind.
    pub kind: &'static str,
    /// Where its watch stands.
    pub phase: Phase,
    /// The last error, where there is one.
    pub trouble: Option<String>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, phase, trouble } = self;
        match phase {
            Phase::Syncing => write!(f, "{kind} objects are not all read yet")?,
            Phase::Relisting => write!(f, "{kind} objects are being read anew")?,
            Phase::NotInstalled => write!(f, "the API server does not know {kind}")?,
            Phase::Refused => write!(f, "the daemon may not read {kind} objects; check its ClusterRole")?,
            Phase::Synced => write!(f, "the watch of {kind} objects is broken")?,
        }
        trouble.as_ref().map_or(Ok(()), |trouble| write!(f, ": {trouble}"))
    }
}

impl std::error::Error for Unknown {}

/// The state of one watch. Shared between the watch and everybody who asks.
#[derive(Debug)]
pub struct WatchState {
    kind: &'static str,
    definition: Option<&'static str>,
    limit: Duration,
    told: bool,
    inner: Mutex<Inner>,
    phase: watch::Sender<Phase>,
    anew: Notify,
}

#[derive(Debug)]
struct Inner {
    /// When the API server last sent something good: a page, the begin of a watch, an event, a bookmark.
    heard: Instant,
    /// The error since which nothing good came.
    trouble: Option<String>,
    /// Whether the API server gave no answer since, so that not even a former answer is known to hold.
    broken: bool,
    failures: u64,
    unreadable: BTreeMap<Key, String>,
    /// Those seen by the list under way; what it did not see again is gone.
    listed: BTreeMap<Key, String>,
    listing: bool,
    nameless: u64,
}

impl WatchState {
    /// The state of a watch that has not begun. `limit` is how long it may hear nothing from the API server.
    pub fn new(kind: &'static str, limit: Duration, now: Instant) -> Self {
        let inner = Inner {
            heard: now,
            trouble: None,
            broken: false,
            failures: 0,
            unreadable: BTreeMap::new(),
            listed: BTreeMap::new(),
            listing: false,
            nameless: 0,
        };
        Self {
            kind,
            definition: None,
            limit,
            told: true,
            inner: Mutex::new(inner),
            phase: watch::Sender::new(Phase::Syncing),
            anew: Notify::new(),
        }
    }

    /// Of a kind that need not be installed and may come and go while we run; `definition` is the name of its
    /// CustomResourceDefinition. Without it a kind that the API server does not know is an error.
    pub fn optional(mut self, definition: &'static str) -> Self {
        self.definition = Some(definition);
        self
    }

    pub(super) fn definition(&self) -> Option<&'static str> {
        self.definition
    }

    /// A state whose troubles are not logged.
    pub(super) fn quiet(mut self) -> Self {
        self.told = false;
        self
    }

    /// The kind.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Where the watch stands.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Has the watch list everything anew: what the API server sends of unchanged objects is another thing by now.
    pub fn list_anew(&self) {
        self.anew.notify_one();
    }

    /// Waits until that is asked for.
    pub(super) async fn asked_anew(&self) {
        self.anew.notified().await;
    }

    /// Follows where the watch stands.
    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Whether "not there" can be said of an object: everything is known and changes arrive. A kind that is optional and
    /// not installed is known to have no objects. Objects that do not decode are known to be there; see [`Self::unreadable_objects`].
    ///
    /// # Errors
    /// [`Unknown`], with the reason.
    pub fn known(&self) -> Result<(), Unknown> {
        let inner = self.lock();
        let phase = self.phase();
        let known = match phase {
            Phase::Synced => !inner.broken,
            Phase::NotInstalled => self.definition.is_some() && !inner.broken,
            Phase::Syncing | Phase::Relisting | Phase::Refused => false,
        };
        if known { Ok(()) } else { Err(Unknown { kind: self.kind, phase, trouble: inner.trouble.clone() }) }
    }

    /// The readiness of this watch: complete at least once, and not refused since.
    ///
    /// # Errors
    /// Why not.
    pub fn ready(&self) -> Result<(), String> {
        match self.phase() {
            Phase::Synced | Phase::Relisting => Ok(()),
            Phase::NotInstalled if self.definition.is_some() => Ok(()),
            _ => self.known().map_err(|unknown| unknown.to_string()),
        }
    }

    /// The liveness of this watch: the API server was heard within the limit. A kind that is not installed or refused is
    /// told in readiness and metrics; restarting the process would change nothing.
    ///
    /// # Errors
    /// How long ago it was heard, and the last error.
    pub fn live(&self, now: Instant) -> Result<(), String> {
        let Some(age) = self.age(now).filter(|age| *age > self.limit) else { return Ok(()) };
        let trouble = self.lock().trouble.clone().map(|trouble| format!(": {trouble}")).unwrap_or_default();
        Err(format!("no word from the API server about {} for {} s (limit {} s){trouble}", self.kind, age.as_secs(), self.limit.as_secs()))
    }

    /// Time since the API server last sent something good; `None` where there is nothing to be sent: the kind is not installed
    /// or may not be read.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        match self.phase() {
            Phase::NotInstalled | Phase::Refused => None,
            Phase::Syncing | Phase::Synced | Phase::Relisting => Some(now.saturating_duration_since(self.lock().heard)),
        }
    }

    /// The objects that exist and do not decode, with the error of each; the first hundred by name.
    pub fn unreadable_objects(&self) -> Vec<(Key, String)> {
        self.lock().unreadable.iter().map(|(key, error)| (key.clone(), error.clone())).collect()
    }

    /// The numbers for a scrape.
    pub fn sample(&self, now: Instant) -> WatchSample {
        let age = self.age(now);
        let synced = self.known().is_ok();
        let inner = self.lock();
        let unreadable = inner.unreadable.len() as u64 + inner.nameless;
        WatchSample { age, synced, unreadable, failures: inner.failures }
    }

    /// Something good arrived.
    pub(super) fn heard(&self) {
        let mut inner = self.lock();
        inner.heard = Instant::now();
        inner.broken = false;
        if inner.trouble.take().is_some() && self.told {
            tracing::info!(kind = self.kind, "the watch works again");
        }
    }

    /// A list begins.
    pub(super) fn begins(&self) {
        let mut inner = self.lock();
        inner.listing = true;
        inner.listed.clear();
        inner.nameless = 0;
        match self.phase() {
            Phase::Synced => self.set(Phase::Relisting),
            Phase::NotInstalled | Phase::Refused => self.set(Phase::Syncing),
            Phase::Syncing | Phase::Relisting => {}
        }
    }

    /// The list is complete.
    pub(super) fn complete(&self) {
        let mut inner = self.lock();
        inner.listing = false;
        inner.unreadable = std::mem::take(&mut inner.listed);
        self.set(Phase::Synced);
    }

    /// An object exists and does not decode.
    pub(super) fn unreadable(&self, key: Option<Key>, error: String) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let Some(key) = key else {
            inner.nameless += 1;
            tracing::warn!(kind = self.kind, error, "an object without a name cannot be decoded; all others are used");
            return;
        };
        if inner.unreadable.get(&key) != Some(&error) && self.told {
            tracing::warn!(kind = self.kind, object = %key, error, "an object cannot be decoded; all others are used");
        }
        let of = if inner.listing { &mut inner.listed } else { &mut inner.unreadable };
        if of.len() < NAMED || of.contains_key(&key) {
            of.insert(key, error);
        } else {
            inner.nameless += 1;
        }
    }

    /// An object decodes, or is gone.
    pub(super) fn readable(&self, key: &Key) {
        let mut inner = self.lock();
        if !inner.unreadable.is_empty() && !inner.listing {
            inner.unreadable.remove(key);
        }
    }

    /// Where the watch stood is forgotten by the API server, which is usual after a long break: all is listed anew.
    pub(super) fn gone(&self) {
        let mut inner = self.lock();
        inner.failures += 1;
        // From now on, not from the first page on: events were missed.
        if self.phase() == Phase::Synced {
            self.set(Phase::Relisting);
        }
        tracing::debug!(kind = self.kind, "the resourceVersion is too old; listing anew");
    }

    /// The watch broke.
    pub(super) fn failed(&self, text: String, phase: Option<Phase>) {
        let mut inner = self.lock();
        inner.failures += 1;
        let before = self.phase();
        let news = inner.trouble.as_ref() != Some(&text) && phase.is_none_or(|phase| phase != before || phase == Phase::Refused);
        if news && self.told {
            match phase {
                Some(Phase::NotInstalled) if self.definition.is_some() => {
                    tracing::info!(kind = self.kind, "not installed; it is used as soon as it is")
                }
                Some(Phase::NotInstalled) => tracing::warn!(kind = self.kind, error = text, "the API server does not know the kind"),
                Some(Phase::Refused) => tracing::warn!(kind = self.kind, error = text, "may not be read; check the daemon's ClusterRole"),
                _ => tracing::warn!(kind = self.kind, error = text, "the watch broke; it is begun again"),
            }
        }
        inner.trouble = Some(text);
        inner.broken = phase.is_none();
        if let Some(phase) = phase {
            // An answer all the same: once the kind can be read, its age does not begin with the time before.
            inner.heard = Instant::now();
            self.set(phase);
        }
    }

    fn set(&self, phase: Phase) {
        self.phase.send_if_modified(|current| std::mem::replace(current, phase) != phase);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
