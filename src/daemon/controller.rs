//! The leader's loop: one image at a time per worker, observed, decided, acted upon.

mod apply;
mod observe;
mod secret;
mod turn;
mod work;

use apply::Before;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};

use futures::FutureExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    act::{ActError, Hands},
    consumers::Usage,
    index::Index,
    jobs::Jobs,
    memory::{ImageMemory, Memory},
};
use crate::{
    api::{GoldenImage, GoldenImageStatus},
    catalog::Listing,
    golden::{self, Pacer, Queue, Turn, decide},
    intake::Intake,
    model::{Digest, GoldenName},
    rules::Reason,
    run::{
        backoff::Backoff,
        events::Recorder,
        metrics::{Metrics, Outcome},
    },
    source::Egress,
    spool::{Grant, Registry, Store},
    world::{Cluster, ConsumerWatch},
};

/// The wait after a step that failed.
const STEP_FAILED: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// What every replica has, leading or not.
pub struct Shared {
    /// The settings of decisions.
    pub settings: golden::Settings,
    /// What the cluster looks like.
    pub cluster: Cluster,
    /// Who needs a golden.
    pub consumers: ConsumerWatch,
    /// How many use each image.
    pub usage: Arc<Usage>,
    /// The namespace of the daemon.
    pub namespace: String,
    /// The namespace of the goldens.
    pub catalog: String,
    /// The host under which importers reach the spool.
    pub spool_host: String,
    /// The spool.
    pub store: Store,
    /// The way out.
    pub egress: Egress,
    /// Takes artifacts in.
    pub intake: Intake,
    /// The images to look at.
    pub queue: Arc<Queue<String>>,
    /// Images by identity and golden.
    pub index: Arc<Index>,
    /// How images stand to the list in values, by name; `None` until it has been read.
    pub listings: RwLock<Option<BTreeMap<String, Listing>>>,
    /// Events.
    pub recorder: Recorder,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// At most so many fetches and imports at once.
    pub limits: (usize, usize),
    /// How long a golden is closed before it is retired (R23).
    pub retire_wait: Duration,
    /// What keeps goldens from being retired, as the fence met it.
    pub fence_troubles: super::fence::Troubles,
    /// Told when something of an image or a golden changed: by it those wait who look at goldens as a whole.
    pub goldens_changed: watch::Sender<()>,
    /// How many images are worked on at once.
    pub workers: usize,
}

/// One term of leadership.
pub struct Term {
    shared: Arc<Shared>,
    hands: Hands,
    registry: Registry,
    memory: Memory,
    jobs: Jobs,
    pacers: Mutex<Pacers>,
    reserved: Mutex<turn::Reserved>,
    names: Mutex<BTreeMap<String, String>>,
}

struct Pacers {
    fetch: Pacer,
    import: Pacer,
}

impl Term {
    /// A term; its jobs end with `stop`.
    pub fn new(shared: Arc<Shared>, hands: Hands, stop: CancellationToken) -> Arc<Self> {
        let queue = Arc::clone(&shared.queue);
        let jobs = Jobs::new(stop, move |name| queue.add(name.to_owned()));
        let (fetches, imports) = shared.limits;
        let pacers = Pacers { fetch: Pacer::new(fetches), import: Pacer::new(imports) };
        let registry = hands.registry.clone();
        Arc::new(Self {
            shared,
            hands,
            registry,
            memory: Memory::default(),
            jobs,
            pacers: Mutex::new(pacers),
            reserved: Mutex::default(),
            names: Mutex::default(),
        })
    }

    fn pacers(&self) -> MutexGuard<'_, Pacers> {
        self.pacers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works until `stop`. Every image is looked at once first, so that the spool knows each golden before it calls any unknown.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let all: Vec<_> = self.shared.cluster.images.all().iter().map(|image| image.name_any()).collect();
        futures::future::join_all(all.into_iter().map(|name| {
            let this = Arc::clone(&self);
            async move {
                this.grant_recorded(&name);
                this.hold_begun(&name);
            }
        }))
        .await;
        self.registry.all_known();
        for image in self.shared.cluster.images.all() {
            self.shared.queue.add(image.name_any());
        }
        let workers = (0..self.shared.workers).map(|_| {
            let (this, stop) = (Arc::clone(&self), stop.clone());
            async move {
                loop {
                    let name = tokio::select! {
                        () = stop.cancelled() => return,
                        name = this.shared.queue.next() => name,
                    };
                    // Given back however this ends: dropped at the end of the term too.
                    let _done = GiveBack { queue: &this.shared.queue, name: &name };
                    // A reconcile that is cut off by the end of the term is as one that was killed: the next one goes on.
                    let work = std::panic::AssertUnwindSafe(this.reconcile(&name)).catch_unwind();
                    tokio::select! {
                        () = stop.cancelled() => {},
                        outcome = work => if outcome.is_err() {
                            tracing::error!(image = name, "a reconcile panicked; the image is tried again later");
                            this.shared.metrics.reconciled("golden", Outcome::Error, Duration::ZERO);
                            this.shared.queue.add_at(name.clone(), tokio::time::Instant::now() + Duration::from_secs(60));
                        },
                    }
                }
            }
        });
        futures::future::join_all(workers).await;
    }

    /// Tells the spool what the status says of an image's goldens, before any importer is turned away.
    fn grant_recorded(&self, name: &str) {
        let Some(object) = self.shared.cluster.images.get("", name) else { return };
        let (Some(uid), Some(status)) = (object.uid(), &object.status) else { return };
        let Some(disk) = status.disk.as_ref().and_then(|disk| disk.digest.parse::<Digest>().ok()) else { return };
        for target in &status.targets {
            let Some(golden) = target.golden.as_ref().and_then(|golden| golden.parse::<GoldenName>().ok()) else { continue };
            let grant = Grant { uid: uid.clone(), golden, disk };
            if target.is_made() {
                self.registry.retire(&grant);
            } else {
                self.registry.grant(&grant);
            }
        }
    }

    /// Holds the turns and the room of imports that the former term began, before any image asks for any: those of images that are looked
    /// at later count too.
    fn hold_begun(&self, name: &str) {
        let Some(object) = self.shared.cluster.images.get("", name) else { return };
        let (Some(uid), Some(status)) = (object.uid(), &object.status) else { return };
        let begun = || status.targets.iter().filter(|target| target.started_time.is_some());
        let count = begun().count();
        if count == 0 {
            return;
        }
        self.names.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), uid.clone());
        let failures = begun().map(|target| target.attempts).max().unwrap_or_default();
        let created = object.creation_timestamp().map_or_else(Timestamp::now, |at| at.0);
        self.keep_room(&uid, status);
        self.pacers().import.ask(&uid, Turn { failures, created }, count, count);
    }

    async fn reconcile(&self, name: &str) {
        let began = Instant::now();
        let Some(shown) = self.shared.cluster.images.get("", name) else { return self.forget(name) };
        let Some(uid) = shown.uid() else { return };
        let former = self.names.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), uid.clone());
        if let Some(former) = former.filter(|former| *former != uid) {
            self.forget_uid(&former);
        }
        let object = self.memory.with(&uid, |image| image.newest(&shown));
        let outcome = tokio::time::timeout(Duration::from_secs(60), self.step(&object, &uid)).await;
        let outcome = outcome.unwrap_or(Err(ActError::Slow));
        let took = began.elapsed();
        match outcome {
            Ok(changed) => {
                self.memory.with(&uid, ImageMemory::did_well);
                let outcome = if changed.is_some() { Outcome::Changed } else { Outcome::Unchanged };
                self.shared.metrics.reconciled("golden", outcome, took);
            }
            Err(error) if error.is_lost() => {}
            Err(error) => {
                let failures = self.memory.with(&uid, |image| {
                    image.failures = image.failures.saturating_add(1);
                    image.failures
                });
                let wait = STEP_FAILED.grown(failures);
                tracing::warn!(image = name, %error, retry_in = ?wait, "a step failed");
                if matches!(error, ActError::SpoolSlow) && self.memory.with(&uid, |image| image.is_to_tell_of_spool(began)) {
                    self.tell_of_spool(&object, &error);
                }
                self.shared.metrics.reconciled("golden", Outcome::Error, took);
                self.shared.queue.add_at(name.to_owned(), tokio::time::Instant::now() + wait);
            }
        }
        self.shared.metrics.queue_depth("golden", self.shared.queue.depth());
        let (fetch, import) = {
            let pacers = self.pacers();
            (pacers.fetch.queued(), pacers.import.queued())
        };
        self.shared.metrics.queue_depth("fetch", fetch);
        self.shared.metrics.queue_depth("import", import);
        self.shared.metrics.in_backoff("golden", self.memory.in_backoff());
    }

    fn forget(&self, name: &str) {
        let Some(uid) = self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(name) else { return };
        self.forget_uid(&uid);
        self.shared.metrics.forget_image(name);
        // Whoever was refused as a duplicate of it, or for a golden of its name, may go on.
        for image in self.shared.cluster.images.all() {
            let refused = image
                .status
                .as_ref()
                .and_then(|status| crate::api::find_condition(&status.conditions, crate::api::ConditionType::Accepted));
            if refused.is_some_and(|condition| {
                [Reason::DuplicateIdentity, Reason::NameConflict].iter().any(|reason| condition.reason == reason.as_str())
            }) {
                self.shared.queue.add(image.name_any());
            }
        }
        self.wake_waiting();
    }

    /// Forgets an object: its job ends, its turns are free, and its importers are turned away.
    fn forget_uid(&self, uid: &str) {
        self.jobs.forget(uid);
        for grant in self.memory.grants(uid) {
            self.registry.revoke(&grant);
        }
        self.memory.forget(uid);
        {
            let mut pacers = self.pacers();
            pacers.fetch.forget(uid);
            pacers.import.forget(uid);
        }
        self.give_room_back(uid);
    }

    /// Observe, decide, act. Gives whether anything was done.
    async fn step(&self, object: &GoldenImage, uid: &str) -> Result<Option<()>, ActError> {
        let now = Timestamp::now();
        let created = object.creation_timestamp().map_or(now, |at| at.0);
        let mut observed = self.observe(object, uid, now).await?;
        let mut decision = self.decide_in_turn(&mut observed, uid, created, now);
        self.wake_waiting();
        // What is refused here is told, kept in mind by the decision that is made again, and tried again; the rest goes on.
        let refused = match self.before(object, uid, &observed, &decision).await? {
            Before::Gone => return Ok(Some(())),
            Before::Done(refused) => refused,
        };
        if self.recall_refusals(uid, &mut observed) {
            decision = decide(&observed, &self.shared.settings, now);
        }
        let did = self.apply(object, uid, &observed, decision).await?;
        refused.map_or(Ok(did), Err)
    }

    /// Wakes those who may have a turn now.
    fn wake_waiting(&self) {
        let next: Vec<_> = {
            let pacers = self.pacers();
            pacers.fetch.next().into_iter().chain(pacers.import.next()).collect()
        };
        if next.is_empty() {
            return;
        }
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, uid) in names.iter() {
            if next.contains(uid) {
                self.shared.queue.add(name.clone());
            }
        }
    }
}

/// Gives a key back to the queue when it goes out of scope.
struct GiveBack<'a> {
    queue: &'a Queue<String>,
    name: &'a String,
}

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        self.queue.done(self.name);
    }
}

/// Whether CDI is at work on a target: it holds an import slot.
fn is_importing(target: &golden::ObservedTarget, status: &GoldenImageStatus) -> bool {
    let begun = |name: &GoldenName| status.of_golden(name.as_str()).is_some_and(|entry| entry.started_time.is_some());
    target.name.as_ref().is_some_and(begun)
        && target.golden.volume.as_ref().is_some_and(|volume| volume.ours && volume.phase != "Succeeded" && !volume.terminating)
}
