//! Objects to look at, each by one worker at a time, now or after a wait.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use super::cache::Key;

#[derive(Default)]
struct State {
    ready: VecDeque<Key>,
    queued: HashSet<Key>,
    running: HashSet<Key>,
}

#[derive(Clone, Default)]
pub(super) struct Queue(Arc<(Mutex<State>, Notify)>);

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at `key` soon. A key added while a worker has it is looked at again afterwards.
    pub(super) fn add(&self, key: Key) {
        let mut state = self.state();
        if state.queued.insert(key.clone()) && !state.running.contains(&key) {
            state.ready.push_back(key);
            self.0.1.notify_one();
        }
    }

    pub(super) fn add_after(&self, key: Key, wait: Duration) {
        let queue = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            queue.add(key);
        });
    }

    /// The next key; [`Queue::done`] must follow.
    pub(super) async fn next(&self) -> Key {
        loop {
            let notified = self.0.1.notified();
            {
                let mut state = self.state();
                if let Some(key) = state.ready.pop_front() {
                    state.queued.remove(&key);
                    state.running.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.0.1.notify_one();
                    }
                    return key;
                }
            }
            notified.await;
        }
    }

    pub(super) fn done(&self, key: &Key) {
        let mut state = self.state();
        state.running.remove(key);
        if state.queued.contains(key) {
            state.ready.push_back(key.clone());
            self.0.1.notify_one();
        }
    }
}
