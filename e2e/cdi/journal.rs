//! What the stand-in did, for tests and for the demo's log.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use tokio::sync::watch;

use super::cache::Key;

/// One thing the stand-in did for one object.
#[derive(Clone, Debug)]
pub struct Entry {
    /// When, from the stand-in's start.
    pub at: std::time::Duration,
    /// The DataVolume (or claim) it was done for.
    pub key: Key,
    pub what: What,
}

/// Kinds of things done. Requests carry no header value.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The DataVolume's phase became this.
    Phase(String),
    /// An importer sent this request and got this status (0: none).
    Request { method: &'static str, host: String, path: String, status: u16 },
    /// An importer began an attempt: its number since the claim was made.
    Attempt(u32),
    /// An importer ended: its exit code and termination message.
    Ended { code: i32, message: String },
    /// An importer wrote a disk: bytes as downloaded, and the disk's virtual size.
    Imported { downloaded: u64, virtual_size: u64 },
    /// A clone was made by this strategy (`csi-clone`, `snapshot`, `copy`).
    Cloned { strategy: String, source: Key },
    /// Anything else worth reading.
    Note(String),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8.3}s {} ", self.at.as_secs_f64(), self.key)?;
        match &self.what {
            What::Phase(phase) => write!(f, "phase {phase:?}"),
            What::Request { method, host, path, status } => write!(f, "{method} {host}{path} -> {status}"),
            What::Attempt(number) => write!(f, "importer attempt {number}"),
            What::Ended { code, message } => write!(f, "importer ended with {code}: {message}"),
            What::Imported { downloaded, virtual_size } => write!(f, "imported {downloaded} bytes, disk of {virtual_size}"),
            What::Cloned { strategy, source } => write!(f, "cloned by {strategy} from {source}"),
            What::Note(text) => f.write_str(text),
        }
    }
}

/// Writes to the API server by kind, Events apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    pub total: u64,
    pub events: u64,
    /// By `verb Kind`, e.g. `create PersistentVolumeClaim`, `patch DataVolume/status`.
    pub by_kind: BTreeMap<String, u64>,
}

pub(super) struct Journal {
    start: Instant,
    entries: Mutex<Vec<Entry>>,
    writes: Mutex<Writes>,
    changed: watch::Sender<usize>,
}

impl Journal {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), entries: Mutex::default(), writes: Mutex::default(), changed: watch::Sender::new(0) }
    }

    pub(super) fn push(&self, key: &Key, what: What) {
        let entry = Entry { at: self.start.elapsed(), key: key.clone(), what };
        tracing::debug!(target: "cdi_stand_in", "{entry}");
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(entry);
        self.changed.send_replace(entries.len());
    }

    pub(super) fn note(&self, key: &Key, text: impl Into<String>) {
        self.push(key, What::Note(text.into()));
    }

    pub(super) fn count(&self, verb: &str, kind: &str) {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        if kind == "Event" {
            writes.events += 1;
        } else {
            writes.total += 1;
            *writes.by_kind.entry(format!("{verb} {kind}")).or_default() += 1;
        }
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn writes(&self) -> Writes {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<usize> {
        self.changed.subscribe()
    }
}
