//! Marks on consumers' disks that are missing or wrong (R25), and the class of machine templates that state none (R15, `templates`), written at one steady pace.
//!
//! Nothing is kept: after a restart the walk over the ledger finds again what is left to do. What was just written is left alone until its watch event has come, and a disk whose marks somebody else keeps taking off, or whose patch CDI refuses, is tried more and more rarely.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::rest;
use crate::{
    daemon::controller::Shared,
    foreign::{Claim, DataVolume},
    golden::manifest::managers,
    rules::{Reason, marks, repair::Repair},
    run::{
        api_error,
        backoff::Backoff,
        client,
        events::{Note, Severity},
        metrics::MarkOutcome,
    },
    world::ledger::{Kind, MarkRepair, Walk},
};

/// Found in one look at the ledger.
const BATCH: usize = 100;
/// The least time between two walks.
const PAUSE: Duration = Duration::from_secs(2);
/// How long what was written is left alone; doubled each time the same is to be written again.
pub(super) const SETTLE: Duration = Duration::from_secs(10);
/// The longest a disk is left alone.
const LONGEST: Duration = Duration::from_secs(3600);

pub(super) type Key = (Kind, String, String);

/// What was tried on one object.
pub(super) struct Tried {
    pub(super) repair: Repair,
    pub(super) times: u32,
    pub(super) next: Instant,
}

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) client: Client,
    pub(super) pace: Interval,
    pub(super) tried: HashMap<Key, Tried>,
}

/// Writes until `stop`.
pub async fn run(shared: Arc<Shared>, client: Client, stop: CancellationToken) {
    let mut pace = tokio::time::interval(Duration::from_secs(1) / shared.usage.settings().marks_per_second.max(1));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changes = shared.consumers.changes();
    let mut writer = Writer { shared, client, pace, tried: HashMap::new() };
    loop {
        changes.mark_unchanged();
        tokio::select! { () = stop.cancelled() => return, () = writer.walk() => {} }
        let next = writer.tried.values().map(|tried| tried.next).min().unwrap_or_else(|| Instant::now() + LONGEST);
        if !rest(&stop, PAUSE).await {
            return;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            _ = changes.changed() => {}
            () = tokio::time::sleep_until(next.into()) => {}
        }
    }
}

impl Writer {
    /// One walk over all disks.
    async fn walk(&mut self) {
        let mut at = Some(Walk::default());
        let mut met: Vec<Key> = Vec::new();
        while let Some(walk) = at {
            let step = self.shared.consumers.read().mark_repairs(walk, BATCH);
            // Nothing is written from half of the truth; the next change of the ledger begins anew.
            let Ok((repairs, next)) = step else { return };
            for repair in repairs {
                met.push((repair.kind, repair.namespace.clone(), repair.name.clone()));
                if self.is_due(&repair) {
                    self.pace.tick().await;
                    self.write(repair).await;
                }
            }
            at = next;
            tokio::task::yield_now().await;
        }
        self.record_classes(&mut met).await;
        // A disk that is right is tried afresh the next time, unless it was put right only a moment ago.
        let now = Instant::now();
        let met: std::collections::HashSet<Key> = met.into_iter().collect();
        self.tried.retain(|key, tried| met.contains(key) || tried.next + LONGEST > now && tried.times > 1);
    }

    pub(super) fn is_due(&self, repair: &MarkRepair) -> bool {
        let key = (repair.kind, repair.namespace.clone(), repair.name.clone());
        self.tried.get(&key).is_none_or(|tried| tried.repair != repair.repair && tried.times < 3 || tried.next <= Instant::now())
    }

    async fn write(&mut self, repair: MarkRepair) {
        // Between the look and our turn the disk may have changed.
        let now = self.shared.consumers.read().mark_repair_of(repair.kind, &repair.namespace, &repair.name);
        let Ok(Some(repair)) = now else { return };
        let outcome = match repair.kind {
            Kind::DataVolume => self.patch::<DataVolume>(&repair).await,
            _ => self.patch::<Claim>(&repair).await,
        };
        let corrected = [&repair.repair.golden, &repair.repair.pool].into_iter().flatten().find_map(|fix| fix.instead_of.clone());
        let metrics = &self.shared.metrics;
        match outcome {
            Ok(()) if corrected.is_some() => metrics.marked(MarkOutcome::Corrected),
            Ok(()) => metrics.marked(MarkOutcome::Added),
            Err(error) if client::is_lost(&error) => return,
            // It is gone, or another took its name: the ledger will tell.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return,
            Err(error) => {
                metrics.marked(MarkOutcome::Failed);
                let (kind, namespace, name) = (repair.kind.as_str(), &repair.namespace, &repair.name);
                tracing::warn!(kind, namespace, name, error = api_error(&error), "a disk's marks cannot be written; tried again later");
                self.remember(repair, SETTLE * 3);
                return;
            }
        }
        if let Some(fix) = repair.repair.golden.as_ref().filter(|fix| fix.instead_of.is_some()) {
            self.tell(&repair, &fix.write, fix.instead_of.as_deref().unwrap_or_default());
        }
        self.remember(repair, SETTLE);
    }

    /// Leaves the disk alone for a while: longer each time.
    pub(super) fn remember(&mut self, repair: MarkRepair, wait: Duration) {
        let key = (repair.kind, repair.namespace, repair.name);
        let times = self.tried.get(&key).map_or(0, |tried| tried.times);
        let wait = Backoff::new(wait, LONGEST).grown(times + 1);
        self.tried.insert(key, Tried { repair: repair.repair, times: times + 1, next: Instant::now() + wait });
    }

    /// The marks in one patch of metadata. CDI asks again whether we may clone the golden, also when that is gone; the right to is in the chart.
    async fn patch<K>(&self, repair: &MarkRepair) -> Result<(), kube::Error>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let fixes = [(marks::GOLDEN, &repair.repair.golden), (marks::POOL, &repair.repair.pool)];
        let annotations: serde_json::Map<String, serde_json::Value> =
            fixes.into_iter().filter_map(|(key, fix)| Some((key.to_owned(), fix.as_ref()?.write.clone().into()))).collect();
        // The UID: never on a disk that took the name of another.
        let patch = json!({ "metadata": { "uid": repair.uid, "annotations": annotations } });
        let params = PatchParams { field_manager: Some(managers::MARKS.to_owned()), ..PatchParams::default() };
        let api: Api<K> = Api::namespaced(self.client.clone(), &repair.namespace);
        api.patch_metadata(&repair.name, &params, &Patch::Merge(&patch)).await.map(drop)
    }

    fn tell(&self, repair: &MarkRepair, right: &str, wrong: &str) {
        let api_version = if repair.kind == Kind::DataVolume { "cdi.kubevirt.io/v1beta1" } else { "v1" };
        let wrong: String = wrong.chars().take(300).collect();
        self.shared.recorder.tell(Note {
            regarding: ObjectReference {
                api_version: Some(api_version.to_owned()),
                kind: Some(repair.kind.as_str().to_owned()),
                namespace: Some(repair.namespace.clone()),
                name: Some(repair.name.clone()),
                uid: repair.uid.clone(),
                ..ObjectReference::default()
            },
            severity: Severity::Warning,
            reason: Reason::MarkCorrected.to_string(),
            action: "Mark",
            text: format!(
                "The annotation {} said {wrong:?}, but the disk is a clone of {right:?}: it was corrected. {}",
                marks::GOLDEN,
                Reason::MarkCorrected.remedy()
            ),
        });
    }
}
