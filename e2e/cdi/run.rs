//! A claim that is being filled: what is known of it before it is written, and the task that does it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::ResourceExt;
use serde_json::{Map, Value, json};
use tokio::task::AbortHandle;

use super::{Ctx, api::code, cache::Key};

/// Annotations to set (`Some`) or take away (`None`).
pub(super) type Changes<'a> = &'a [(&'a str, Option<&'a str>)];

pub(super) struct Run {
    /// The target claim.
    pub(super) key: Key,
    pub(super) uid: String,
    /// Annotations of the claim as the run wants them.
    overlay: Mutex<BTreeMap<String, Option<String>>>,
    task: Mutex<Option<AbortHandle>>,
    told: Mutex<String>,
}

impl Run {
    pub(super) fn new(key: Key, uid: String) -> Self {
        Self { key, uid, overlay: Mutex::default(), task: Mutex::default(), told: Mutex::default() }
    }

    fn overlay(&self) -> MutexGuard<'_, BTreeMap<String, Option<String>>> {
        self.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_task(&self, handle: AbortHandle) {
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
    }

    pub(super) fn abort(&self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }

    /// The claim's annotations with the run's own on top.
    pub(super) fn over(&self, annotations: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut all = annotations.clone();
        for (name, value) in self.overlay().iter() {
            match value {
                Some(value) => all.insert(name.clone(), value.clone()),
                None => all.remove(name),
            };
        }
        all
    }

    /// Whether `message` is another than the last one told: what is tried again is told once.
    pub(super) fn news(&self, message: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let news = *told != message;
        message.clone_into(&mut told);
        news
    }

    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.overlay().get(name).cloned().flatten()
    }
}

impl Ctx {
    /// Changes what is known of a claim, writes it to the claim's annotations (not in lean mode), and has the DataVolume looked at.
    pub(super) async fn set(&self, run: &Run, changes: Changes<'_>) {
        let changed = {
            let mut overlay = run.overlay();
            let mut changed = false;
            for (name, value) in changes {
                let value = value.map(str::to_owned);
                changed |= overlay.insert((*name).to_owned(), value.clone()) != Some(value);
            }
            changed
        };
        if changed && self.opts.full() {
            self.flush(run).await;
        }
        self.queue.add(run.key.clone());
    }

    /// Writes the run's annotations to the claim where they differ.
    pub(super) async fn flush(&self, run: &Run) {
        let Some(claim) = self.claim(&run.key, &run.uid) else { return };
        let annotations: Map<String, Value> = {
            let overlay = run.overlay();
            let differs = overlay.iter().filter(|(name, value)| claim.annotations().get(*name) != value.as_ref());
            differs.map(|(name, value)| (name.clone(), json!(value))).collect()
        };
        if annotations.is_empty() {
            return;
        }
        // A claim that went away takes its run with it; anything else was tried again until it held.
        if let Err(error) = self.api.patch(&*claim, json!({ "metadata": { "annotations": annotations } })).await
            && !matches!(code(&error), Some(404 | 409))
        {
            self.journal.note(&run.key, format!("annotations not written: {error}"));
        }
    }

    /// The run for the claim of this UID.
    pub(super) fn run_of(&self, uid: &str) -> Option<Arc<Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned()
    }

    /// Ends the run of a claim that is gone.
    pub(super) fn end_run(&self, uid: &str) {
        if let Some(run) = self.runs.lock().unwrap_or_else(PoisonError::into_inner).remove(uid) {
            run.abort();
        }
    }

    /// Starts a run for a claim unless it has one.
    pub(super) fn start_run<F>(self: &Arc<Self>, key: &Key, uid: &str, work: impl FnOnce(Arc<Self>, Arc<Run>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.contains_key(uid) {
            return;
        }
        let run = Arc::new(Run::new(key.clone(), uid.to_owned()));
        runs.insert(uid.to_owned(), run.clone());
        run.set_task(self.spawn(work(self.clone(), run.clone())));
    }
}
