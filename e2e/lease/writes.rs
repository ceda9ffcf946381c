//! Who wrote the ConfigMap, in the order the API server took it.

use super::harness::{PATIENCE, eventually};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::watch;

/// The object that whoever leads writes.
pub const OBJECT: &str = "writes";

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Its resourceVersion.
    version: u64,
    /// Which candidate.
    by: String,
    /// In which term.
    epoch: u64,
}

/// All writes seen so far.
pub struct Writes {
    api: Api<ConfigMap>,
    seen: watch::Receiver<Vec<Write>>,
}

impl Writes {
    /// Follows the writes in a namespace from now on.
    pub async fn follow(client: Client, namespace: &str) -> Self {
        let api: Api<ConfigMap> = Api::namespaced(client, namespace);
        let empty = Patch::Apply(serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": OBJECT}}));
        api.patch(OBJECT, &PatchParams::apply("e2e"), &empty).await.expect("make the ConfigMap");
        let (sender, seen) = watch::channel(Vec::new());
        let own = api.clone();
        tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
            while let Some(event) = events.next().await {
                if let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event
                    && let Some(write) = read(&object)
                {
                    sender.send_modify(|writes: &mut Vec<Write>| {
                        // A list after a break may show the last one again.
                        if writes.last() != Some(&write) {
                            writes.push(write);
                        }
                    });
                }
            }
        });
        Self { api: own, seen }
    }

    /// Waits for `more` writes by a candidate from now on.
    pub async fn more_by(&mut self, name: &str, more: usize) {
        self.wait(|write| write.by == name, more, &format!("{more} more writes by {name}")).await;
    }

    /// Waits for `more` writes by anyone from now on.
    pub async fn more_by_any(&mut self, more: usize) {
        self.wait(|_| true, more, &format!("{more} more writes")).await;
    }

    async fn wait(&mut self, counts: impl Fn(&Write) -> bool, more: usize, what: &str) {
        // The watch may be behind: what it still has to tell was written before now.
        let before = eventually("the last write", async || {
            let object = self.api.get(OBJECT).await.map_err(|error| error.to_string())?;
            object.metadata.resource_version.and_then(|version| version.parse::<u64>().ok()).ok_or_else(|| "no version".to_owned())
        })
        .await;
        let made = |writes: &Vec<Write>| writes.iter().filter(|write| write.version > before && counts(write)).count();
        let waiting = tokio::time::timeout(PATIENCE, self.seen.wait_for(|writes| made(writes) >= more)).await.map(drop);
        assert!(waiting.is_ok(), "not in {PATIENCE:?}: {what}; terms so far: {:?}", self.terms());
    }

    /// Fails if a write of an earlier term came after one of a later term, or two wrote in one term.
    #[track_caller]
    pub fn check(&self) {
        let writes = self.seen.borrow();
        for pair in writes.windows(2) {
            assert!(pair[0].version < pair[1].version, "{pair:?}");
        }
        let (mut newest, mut late): (Option<&Write>, Vec<u64>) = (None, Vec::new());
        for write in writes.iter() {
            match newest {
                // One that was stopped behind its last look at the claim, on the way to the kernel: nobody can call it back.
                Some(now) if write.epoch < now.epoch => {
                    assert!(!late.contains(&write.epoch), "a former leader goes on writing after its successor: {write:?} {now:?}");
                    late.push(write.epoch);
                }
                Some(now) => {
                    assert!(now.epoch != write.epoch || now.by == write.by, "two wrote in one term: {now:?} {write:?}");
                    newest = Some(write);
                }
                None => newest = Some(write),
            }
        }
    }

    /// Who led, term by term.
    pub fn terms(&self) -> Vec<String> {
        let writes = self.seen.borrow();
        let mut newest = 0;
        let led = writes.iter().filter(|write| {
            newest = newest.max(write.epoch);
            write.epoch == newest
        });
        let mut terms: Vec<(u64, String)> = led.map(|write| (write.epoch, write.by.clone())).collect();
        terms.dedup();
        terms.into_iter().map(|(_, by)| by).collect()
    }
}

fn read(object: &ConfigMap) -> Option<Write> {
    let data = object.data.as_ref()?;
    let version = object.metadata.resource_version.as_ref()?.parse().ok()?;
    Some(Write { version, by: data.get("by")?.clone(), epoch: data.get("epoch")?.parse().ok()? })
}
