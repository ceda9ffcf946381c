//! A work queue by key: a key that is being worked on is not given out twice, and one added meanwhile comes again after.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::Notify, time::Instant};

/// Keys waiting to be worked on, at once or later.
#[derive(Debug)]
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<K> {
    ready: VecDeque<K>,
    queued: HashSet<K>,
    running: HashSet<K>,
    again: HashSet<K>,
    later: BTreeMap<(Instant, u64), K>,
    due: HashMap<K, (Instant, u64)>,
    counter: u64,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                queued: HashSet::new(),
                running: HashSet::new(),
                again: HashSet::new(),
                later: BTreeMap::new(),
                due: HashMap::new(),
                counter: 0,
            }),
            changed: Notify::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    fn state(&self) -> MutexGuard<'_, State<K>> {
        // The state is whole between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a key to be worked on as soon as possible.
    pub fn add(&self, key: K) {
        self.state().push(key);
        self.changed.notify_one();
    }

    /// Adds a key to be worked on at `at`. The earliest of several times for one key counts.
    pub fn add_at(&self, key: K, at: Instant) {
        let mut state = self.state();
        if let Some((known, _)) = state.due.get(&key).copied()
            && known <= at
        {
            return;
        }
        state.forget_later(&key);
        state.counter += 1;
        let place = (at, state.counter);
        state.later.insert(place, key.clone());
        state.due.insert(key, place);
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for a key. The caller says [`Queue::done`] when it is through with it.
    pub async fn next(&self) -> K {
        loop {
            let wait = {
                let mut state = self.state();
                state.promote(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.queued.remove(&key);
                    state.running.insert(key.clone());
                    // Another worker may be asleep while more is ready.
                    if !state.ready.is_empty() {
                        self.changed.notify_one();
                    }
                    return key;
                }
                state.later.first_key_value().map(|((at, _), _)| *at)
            };
            match wait {
                Some(at) => tokio::select! { () = self.changed.notified() => {}, () = tokio::time::sleep_until(at) => {} },
                None => self.changed.notified().await,
            }
        }
    }

    /// Gives a key back. If it was added meanwhile, it comes again.
    pub fn done(&self, key: &K) {
        let mut state = self.state();
        state.running.remove(key);
        if state.again.remove(key) {
            state.push(key.clone());
            drop(state);
            self.changed.notify_one();
        }
    }

    /// How many keys wait to be worked on now.
    pub fn depth(&self) -> usize {
        self.state().ready.len()
    }

    /// How many keys wait for their time.
    pub fn delayed(&self) -> usize {
        self.state().later.len()
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn push(&mut self, key: K) {
        self.forget_later(&key);
        if self.running.contains(&key) {
            self.again.insert(key);
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn forget_later(&mut self, key: &K) {
        if let Some(place) = self.due.remove(key) {
            self.later.remove(&place);
        }
    }

    fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.later.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::Queue;

    #[tokio::test]
    async fn a_key_in_work_is_not_given_out_twice_and_comes_again() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.next().await, "b");
        assert!(tokio::time::timeout(Duration::from_millis(50), queue.next()).await.is_err());
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test]
    async fn the_earliest_time_counts_and_adding_now_forgets_it() {
        let queue = Queue::default();
        let now = Instant::now();
        let hour = Duration::from_secs(3600);
        queue.add_at("a", now + hour);
        queue.add_at("a", now + Duration::from_millis(5));
        queue.add_at("a", now + 2 * hour);
        assert_eq!(queue.next().await, "a");
        queue.done(&"a");
        queue.add_at("a", Instant::now() + hour);
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.done(&"a");
        assert_eq!((queue.depth(), queue.delayed()), (0, 0));
    }
}
