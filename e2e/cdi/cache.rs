//! Objects as the watches told, newest version first seen wins, and who waits for which.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::{Resource, ResourceExt};
use tokio::sync::Notify;

/// Namespace (empty for cluster-scoped objects) and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub(super) fn of<K: Resource>(object: &K) -> Self {
        Self::new(object.namespace().unwrap_or_default(), object.name_any())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

struct Inner<K> {
    items: HashMap<Key, Arc<K>>,
    /// UIDs seen deleted: a slow answer to an earlier write must not bring them back.
    dead: HashSet<String>,
    /// Keys seen in the running list; `None` outside of one.
    listing: Option<HashSet<Key>>,
    synced: bool,
    waiters: HashMap<Key, Arc<Notify>>,
}

/// One kind's objects.
pub(super) struct Cache<K> {
    inner: Mutex<Inner<K>>,
    synced: Notify,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        let inner = Inner { items: HashMap::new(), dead: HashSet::new(), listing: None, synced: false, waiters: HashMap::new() };
        Self { inner: Mutex::new(inner), synced: Notify::new() }
    }
}

fn version<K: Resource>(object: &K) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl<K: Resource> Cache<K> {
    fn inner(&self) -> MutexGuard<'_, Inner<K>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.inner().items.get(key).cloned()
    }

    /// Every object that `wanted` wants.
    pub(super) fn all(&self, wanted: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.inner().items.values().filter(|object| wanted(object)).cloned().collect()
    }

    /// Takes in an object from a watch, or the answer to a write. Older versions and the dead are dropped.
    pub(super) fn put(&self, object: K) -> Arc<K> {
        let key = Key::of(&object);
        let mut inner = self.inner();
        if let Some(listing) = &mut inner.listing {
            listing.insert(key.clone());
        }
        if object.uid().is_some_and(|uid| inner.dead.contains(&uid)) {
            return Arc::new(object);
        }
        if let Some(known) = inner.items.get(&key)
            && version(known.as_ref()) > version(&object)
        {
            return known.clone();
        }
        let object = Arc::new(object);
        inner.items.insert(key.clone(), object.clone());
        Self::wake(&mut inner, &key);
        object
    }

    pub(super) fn remove(&self, object: &K) {
        let key = Key::of(object);
        let mut inner = self.inner();
        if let Some(uid) = object.uid() {
            inner.dead.insert(uid);
        }
        if inner.items.get(&key).is_some_and(|known| known.uid() == object.uid()) {
            inner.items.remove(&key);
        }
        Self::wake(&mut inner, &key);
    }

    pub(super) fn begin_list(&self) {
        self.inner().listing = Some(HashSet::new());
    }

    /// Ends a list: what it did not have is gone. Returns what was dropped.
    pub(super) fn end_list(&self) -> Vec<Arc<K>> {
        let mut inner = self.inner();
        let seen = inner.listing.take().unwrap_or_default();
        let gone: Vec<Key> = inner.items.keys().filter(|key| !seen.contains(key)).cloned().collect();
        let mut dropped = Vec::new();
        for key in gone {
            if let Some(object) = inner.items.remove(&key) {
                if let Some(uid) = object.uid() {
                    inner.dead.insert(uid);
                }
                dropped.push(object);
            }
            Self::wake(&mut inner, &key);
        }
        inner.synced = true;
        self.synced.notify_waiters();
        dropped
    }

    /// Marks a kind that the API server does not serve as known to be empty.
    pub(super) fn absent(&self) {
        self.inner().synced = true;
        self.synced.notify_waiters();
    }

    pub(super) async fn until_synced(&self) {
        loop {
            let notified = self.synced.notified();
            if self.inner().synced {
                return;
            }
            notified.await;
        }
    }

    fn wake(inner: &mut Inner<K>, key: &Key) {
        if let Some(waiter) = inner.waiters.remove(key) {
            waiter.notify_waiters();
        }
    }

    /// Waits until `accept` yields something of what is known under `key`.
    pub(super) async fn wait<T>(&self, key: &Key, accept: impl Fn(Option<&Arc<K>>) -> Option<T>) -> T {
        loop {
            // Made under the lock: a wake-up between here and the await is kept.
            let notified = {
                let mut inner = self.inner();
                if let Some(value) = accept(inner.items.get(key)) {
                    return value;
                }
                inner.waiters.entry(key.clone()).or_default().clone().notified_owned()
            };
            notified.await;
        }
    }
}
