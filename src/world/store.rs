//! The facts of one kind, by namespace and name, trimmed to what decisions read.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use kube::ResourceExt as _;

use super::Sink;

/// Whether a store can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreState {
    /// The cluster has no such kind: nothing of it exists.
    NotInstalled,
    /// Not yet complete: what is missing is unknown, not absent.
    Syncing,
    /// Complete once; a relist does not make it unknown again, because what was known stays until the sweep.
    Synced,
}

/// What changed for one object.
#[derive(Debug)]
pub struct Change<'a, T> {
    /// Its namespace, empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What was known.
    pub old: Option<&'a T>,
    /// What is known now; `None` when it is gone.
    pub new: Option<&'a T>,
}

type Key = (String, String);
type Listener<T> = Box<dyn Fn(&Change<'_, T>) + Send + Sync>;

/// A shared, read-mostly map of facts.
pub struct Store<T> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    objects: RwLock<Objects<T>>,
    listener: Listener<T>,
    installed: Box<dyn Fn() + Send + Sync>,
}

struct Objects<T> {
    map: HashMap<Key, Arc<T>>,
    odd: HashMap<Key, String>,
    state: StoreState,
}

impl<T> Clone for Store<T> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<T: PartialEq> Store<T> {
    /// An empty store; `listener` is told of each change, while no lock is held.
    pub fn new(listener: impl Fn(&Change<'_, T>) + Send + Sync + 'static) -> Self {
        Self::optional(listener, || {})
    }

    /// An empty store of a kind that need not be installed; `installed` is told when that changes, after the objects that went
    /// along.
    pub fn optional(listener: impl Fn(&Change<'_, T>) + Send + Sync + 'static, installed: impl Fn() + Send + Sync + 'static) -> Self {
        let objects = Objects { map: HashMap::new(), odd: HashMap::new(), state: StoreState::Syncing };
        Self { inner: Arc::new(Inner { objects: RwLock::new(objects), listener: Box::new(listener), installed: Box::new(installed) }) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Objects<T>> {
        self.inner.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Objects<T>> {
        self.inner.objects.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The facts of one object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        self.read().map.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Why one object that exists could not be read.
    pub fn odd(&self, namespace: &str, name: &str) -> Option<String> {
        self.read().odd.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// The facts of all objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.read().map.values().cloned().collect()
    }

    /// Whether the store can be believed.
    pub fn state(&self) -> StoreState {
        self.read().state
    }

    /// Whether a decision may be made from it: complete, or known to be empty.
    pub fn is_known(&self) -> bool {
        self.state() != StoreState::Syncing
    }

    /// The cluster has no such kind.
    fn not_installed(&self) {
        let (gone, news) = {
            let mut objects = self.write();
            objects.odd.clear();
            let news = std::mem::replace(&mut objects.state, StoreState::NotInstalled) != StoreState::NotInstalled;
            (objects.map.drain().collect::<Vec<_>>(), news)
        };
        for ((namespace, name), old) in gone {
            (self.inner.listener)(&Change { namespace: &namespace, name: &name, old: Some(&old), new: None });
        }
        if news {
            (self.inner.installed)();
        }
    }

    /// The cluster has such a kind; what was not complete before is not yet.
    fn is_installed(&self) {
        let news = {
            let mut objects = self.write();
            let news = objects.state == StoreState::NotInstalled;
            if news {
                objects.state = StoreState::Syncing;
            }
            news
        };
        if news {
            (self.inner.installed)();
        }
    }

    fn put(&self, namespace: String, name: String, facts: Option<T>) {
        let key = (namespace, name);
        let (old, new) = {
            let mut objects = self.write();
            objects.odd.remove(&key);
            match facts {
                Some(facts) => {
                    if objects.map.get(&key).is_some_and(|old| **old == facts) {
                        return;
                    }
                    let new = Arc::new(facts);
                    (objects.map.insert(key.clone(), Arc::clone(&new)), Some(new))
                }
                None => (objects.map.remove(&key), None),
            }
        };
        if old.is_some() || new.is_some() {
            (self.inner.listener)(&Change { namespace: &key.0, name: &key.1, old: old.as_deref(), new: new.as_deref() });
        }
    }

    /// A sink that fills this store. `trim` keeps what is read of an object, or nothing.
    pub fn sink<K, F>(&self, trim: F) -> StoreSink<T, F>
    where
        K: kube::Resource,
        F: FnMut(K) -> Option<T> + Send,
    {
        StoreSink { store: self.clone(), trim, seen: HashSet::new() }
    }
}

/// Fills a [`Store`] from a watch.
pub struct StoreSink<T, F> {
    store: Store<T>,
    trim: F,
    seen: HashSet<Key>,
}

impl<K, T, F> Sink<K> for StoreSink<T, F>
where
    K: kube::Resource,
    T: PartialEq + Send + Sync,
    F: FnMut(K) -> Option<T> + Send,
{
    fn begin(&mut self) {
        self.seen.clear();
        self.store.is_installed();
    }

    fn apply(&mut self, object: K) {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        self.seen.insert((namespace.clone(), name.clone()));
        let facts = (self.trim)(object);
        self.store.put(namespace, name, facts);
    }

    fn delete(&mut self, namespace: Option<&str>, name: &str) {
        self.store.put(namespace.unwrap_or_default().to_owned(), name.to_owned(), None);
    }

    fn odd(&mut self, namespace: Option<&str>, name: &str, error: &str) {
        let key = (namespace.unwrap_or_default().to_owned(), name.to_owned());
        self.seen.insert(key.clone());
        // What was known of it stays: an object that cannot be read any more is not gone.
        self.store.write().odd.insert(key, error.to_owned());
    }

    fn synced(&mut self) {
        let gone: Vec<Key> = self.store.read().map.keys().filter(|key| !self.seen.contains(*key)).cloned().collect();
        for (namespace, name) in gone {
            self.store.put(namespace, name, None);
        }
        let mut objects = self.store.write();
        objects.odd.retain(|key, _| self.seen.contains(key));
        objects.state = StoreState::Synced;
        drop(objects);
        // Kept only between a list's begin and its end.
        self.seen = HashSet::new();
    }

    fn not_installed(&mut self) {
        self.store.not_installed();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt as _;

    use super::{Sink, Store, StoreState};

    fn object(name: &str, value: &str) -> ConfigMap {
        serde_json::from_value(serde_json::json!({ "metadata": { "namespace": "n", "name": name }, "data": { "value": value } }))
            .expect("object")
    }

    type Seen = Arc<Mutex<Vec<(String, Option<String>)>>>;

    fn store() -> (Store<String>, Seen) {
        let seen: Seen = Arc::default();
        let listener = Arc::clone(&seen);
        (Store::new(move |change| listener.lock().expect("lock").push((change.name.to_owned(), change.new.cloned()))), seen)
    }

    fn trim(object: ConfigMap) -> Option<String> {
        object.data.and_then(|mut data| data.remove("value"))
    }

    #[test]
    fn unknown_is_not_none_and_a_relist_sweeps_only_at_its_end() {
        let (store, seen) = store();
        let mut sink = store.sink(trim);
        assert!(!store.is_known());
        sink.begin();
        sink.apply(object("a", "1"));
        sink.apply(object("b", "1"));
        assert!(!store.is_known());
        sink.synced();
        assert_eq!(store.state(), StoreState::Synced);

        sink.begin();
        sink.apply(object("b", "1"));
        assert!(store.get("n", "a").is_some(), "half a list says nothing about the rest");
        assert!(store.is_known());
        Sink::<ConfigMap>::synced(&mut sink);
        assert!(store.get("n", "a").is_none());
        // An unchanged object is no change.
        let seen: Vec<_> = seen.lock().expect("lock").clone();
        assert_eq!(seen, [("a".into(), Some("1".into())), ("b".into(), Some("1".into())), ("a".into(), None)]);
        let _ = object("a", "1").name_any();
    }

    #[test]
    fn an_object_that_cannot_be_read_stops_nothing_and_is_not_gone() {
        let (store, _) = store();
        let mut sink = store.sink(trim);
        sink.apply(object("a", "1"));
        Sink::<ConfigMap>::odd(&mut sink, Some("n"), "a", "no such field");
        assert_eq!(
            (store.get("n", "a").as_deref().map(String::as_str), store.odd("n", "a").as_deref()),
            (Some("1"), Some("no such field"))
        );
        Sink::<ConfigMap>::synced(&mut sink);
        assert!(store.get("n", "a").is_some());
        sink.apply(object("a", "2"));
        assert_eq!(store.odd("n", "a"), None);
    }

    #[test]
    fn a_kind_that_goes_takes_its_objects_along() {
        let (store, seen) = store();
        let mut sink = store.sink(trim);
        sink.apply(object("a", "1"));
        Sink::<ConfigMap>::synced(&mut sink);
        Sink::<ConfigMap>::not_installed(&mut sink);
        assert!(store.is_known() && store.all().is_empty());
        assert_eq!(seen.lock().expect("lock").last(), Some(&("a".into(), None)));
        Sink::<ConfigMap>::begin(&mut sink);
        assert!(!store.is_known());
    }
}
