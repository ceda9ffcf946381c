//! The leader's loop: one image at a time per worker, observed, decided, acted upon.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};

use futures::FutureExt as _;
use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::{Resource as _, ResourceExt as _};
use tokio_util::sync::CancellationToken;

use super::{
    act::{ActError, Hands},
    jobs::Jobs,
    memory::Memory,
};
use crate::{
    api::{GoldenImage, GoldenImageStatus, parse_image},
    catalog::Listing,
    golden::{
        self, Action, Decision, FetchView, ImportOrder, Metadata, Note, Observed, Pacer, Permits, Queue, Reference, SpooledView,
        UpstreamView, decide, observe,
    },
    intake::{self, Intake, IntakeRequest},
    model::{Digest, DiskSize, GoldenName, Identity, Image, Schematic, Source},
    rules::{ImporterFacts, Reason, marks},
    run::{
        events::{self, Recorder, Severity},
        metrics::{Metrics, Outcome},
    },
    source::{Egress, OpenRequest, SchematicRequest},
    spool::{Grant, Record, Registry, Store, Verified},
    world::Cluster,
};

/// What every replica has, leading or not.
pub struct Shared {
    /// The settings of decisions.
    pub settings: golden::Settings,
    /// What the cluster looks like.
    pub cluster: Cluster,
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
    /// How images stand to the list in values, by name.
    pub listings: RwLock<BTreeMap<String, Listing>>,
    /// Events.
    pub recorder: Recorder,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// At most so many fetches and imports at once.
    pub limits: (usize, usize),
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
        Arc::new(Self { shared, hands, registry, memory: Memory::default(), jobs, pacers: Mutex::new(pacers), names: Mutex::default() })
    }

    fn pacers(&self) -> MutexGuard<'_, Pacers> {
        self.pacers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works until `stop`. Every image is looked at once first, so that the spool knows each golden before it calls any unknown.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let all: Vec<_> = self.shared.cluster.images.all().iter().map(|image| image.name_any()).collect();
        futures::future::join_all(all.into_iter().map(|name| {
            let this = Arc::clone(&self);
            async move { this.grant_recorded(&name) }
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
            if target.claim_uid.is_some() && target.started_time.is_none() {
                self.registry.retire(&grant);
            } else {
                self.registry.grant(&grant);
            }
        }
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
                self.memory.with(&uid, |image| image.failures = 0);
                let outcome = if changed.is_some() { Outcome::Changed } else { Outcome::Unchanged };
                self.shared.metrics.reconciled("golden", outcome, took);
            }
            Err(error) if error.is_lost() => {}
            Err(error) => {
                let failures = self.memory.with(&uid, |image| {
                    image.failures = image.failures.saturating_add(1);
                    image.failures
                });
                let wait = Duration::from_millis(500).saturating_mul(2_u32.saturating_pow(failures.min(8))).min(Duration::from_secs(60));
                tracing::warn!(image = name, %error, retry_in = ?wait, "a step failed");
                self.shared.metrics.reconciled("golden", Outcome::Error, took);
                self.shared.queue.add_at(name.to_owned(), tokio::time::Instant::now() + wait);
            }
        }
        self.shared.metrics.queue_depth("golden", self.shared.queue.depth());
        self.shared.metrics.in_backoff("golden", self.memory.in_backoff());
    }

    fn forget(&self, name: &str) {
        let Some(uid) = self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(name) else { return };
        self.forget_uid(&uid);
        self.shared.metrics.forget_image(name);
        // Whoever was refused as a duplicate of it may go on.
        for image in self.shared.cluster.images.all() {
            let refused = image
                .status
                .as_ref()
                .and_then(|status| crate::api::find_condition(&status.conditions, crate::api::ConditionType::Accepted));
            if refused.is_some_and(|condition| condition.reason == Reason::DuplicateIdentity.as_str()) {
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
        let mut pacers = self.pacers();
        pacers.fetch.forget(uid);
        pacers.import.forget(uid);
    }

    /// Observe, decide, act. Gives whether anything was done.
    async fn step(&self, object: &GoldenImage, uid: &str) -> Result<Option<()>, ActError> {
        let now = Timestamp::now();
        let created = object.creation_timestamp().map_or(now, |at| at.0);
        let mut observed = self.observe(object, uid, now).await;
        let running = observed.targets.iter().filter(|target| is_importing(target, &observed.status)).count();
        let fetching = matches!(observed.fetch, FetchView::Running { .. });
        let mut decision = decide(&observed, &self.shared.settings, now);
        // Turns are asked for with what was wanted without one; with the turn the decision is made again.
        for _ in 0..2 {
            let permits = {
                let mut pacers = self.pacers();
                Permits {
                    fetch: pacers.fetch.ask(uid, created, usize::from(decision.wants.fetch), usize::from(fetching)) > 0,
                    imports: pacers.import.ask(uid, created, decision.wants.imports, running),
                }
            };
            if permits == observed.permits {
                break;
            }
            observed.permits = permits;
            decision = decide(&observed, &self.shared.settings, now);
        }
        self.wake_waiting();
        self.apply(object, uid, &observed, decision).await
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

    async fn observe(&self, object: &GoldenImage, uid: &str, now: Timestamp) -> Observed {
        let cluster = &self.shared.cluster;
        let status = object.status.clone().unwrap_or_default();
        let name = object.name_any();
        let parsed = parse_image(object);
        let resolved = status.schematic_id.as_ref().and_then(|id| id.parse().ok());
        let identity = parsed.as_ref().ok().and_then(|image| image.identity(resolved.as_ref()));
        let mut targets = Vec::new();
        if let Ok(image) = &parsed {
            let classes = observe::classes(cluster);
            for spec in &image.targets {
                let mut target = observe::target(cluster, &self.shared.catalog, image, spec, &status, &classes);
                self.observe_importer(&mut target, uid, &status, now);
                targets.push(target);
            }
        }
        // A digest given later, or by a re-created image, is held against what the spool has (R9).
        let digest = parsed.as_ref().ok().and_then(|image| image.digest);
        let spooled = match &identity {
            Some(identity) => {
                self.spooled(identity, uid).await.filter(|spooled| digest.is_none_or(|digest| digest == spooled.artifact_digest))
            }
            None => None,
        };
        Observed {
            metadata: Metadata {
                name: name.clone(),
                uid: uid.to_owned(),
                generation: object.metadata.generation,
                retry: object.annotations().get(marks::RETRY).cloned(),
            },
            duplicate_of: identity.as_ref().and_then(|identity| observe::older_twin(cluster, object, identity.as_str())),
            ca: self.ca_reference(parsed.as_ref().ok()),
            cdi_installed: cluster.volumes.state() != crate::world::StoreState::NotInstalled,
            spooled,
            fetch: self.jobs.view(uid),
            upstream: self.memory.with(uid, |image| image.upstream.clone()),
            listing: self.shared.listings.read().unwrap_or_else(PoisonError::into_inner).get(&name).cloned().unwrap_or_default(),
            permits: Permits::default(),
            image: parsed,
            status,
            targets,
        }
    }

    /// Adds what the spool and our own memory know of a golden.
    fn observe_importer(&self, target: &mut golden::ObservedTarget, uid: &str, status: &GoldenImageStatus, now: Timestamp) {
        let shown = target.golden.volume.take();
        let disk =
            shown.as_ref().and_then(|volume| volume.disk_digest.clone()).or_else(|| status.disk.as_ref().map(|disk| disk.digest.clone()));
        let Some(golden) = target.name.clone() else {
            target.golden.volume = shown;
            return;
        };
        let facts = disk
            .and_then(|disk| disk.parse::<Digest>().ok())
            .and_then(|disk| self.registry.facts(&Grant { uid: uid.to_owned(), golden: golden.clone(), disk }));
        if let Some(facts) = facts {
            let began = status
                .targets
                .iter()
                .find(|entry| entry.golden.as_deref() == Some(golden.as_str()))
                .and_then(|entry| entry.started_time.clone());
            let since = |at: std::time::SystemTime| {
                let seconds = at.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
                began.as_ref().is_some_and(|began| i64::try_from(seconds).unwrap_or(0) >= began.0.as_second())
            };
            let refused = self.registry.handshake_failures().iter().any(|failure| failure.certificate_refused && since(failure.time));
            target.golden.importer = ImporterFacts {
                connected: facts.requests > 0,
                wrong_token: facts.last_wrong_token.is_some_and(|(at, _)| facts.last_request.is_none_or(|last| last < at)),
                tls_failed: refused && facts.requests == 0,
            };
        }
        self.memory.with(uid, |image| {
            let memory = image.golden(&golden);
            target.golden.grant = memory.grant.clone();
            target.golden.headers_written = memory.headers_written;
            target.golden.volume = memory.overlay(shown);
            if let Some(volume) = target.golden.volume.as_ref().filter(|volume| volume.phase != "Succeeded") {
                // A crash-looping importer that downloads the disk again and again does not move.
                let percent = volume.percent.unwrap_or(0);
                target.golden.moved = Some(memory.moved(&volume.uid, percent, now));
            }
        });
        let waiting = target.golden.volume.as_ref().is_some_and(|volume| volume.phase != "Succeeded") && !target.golden.importer.connected;
        if waiting && let Some(config) = self.shared.cluster.cdi_config.get("", "config") {
            target.golden.trouble = observe::proxy_in_the_way(Some(&config), &self.shared.spool_host).map(|host| {
                let message = format!(
                    "CDI's importers use a proxy (CDIConfig `importProxy`), and the spool's host is not in its `noProxy`: add `{host}`."
                );
                (Reason::ImportProxyInTheWay, message)
            });
        }
    }

    fn ca_reference(&self, image: Option<&Image>) -> Reference {
        let Some((map, key)) = image.and_then(|image| image.ca_bundle.as_ref()) else { return Reference::NotNamed };
        match self.shared.cluster.config_maps.get(&self.shared.namespace, map) {
            Some(facts) if facts.data.contains_key(key) => Reference::Found,
            Some(_) => Reference::Missing(format!("The key {key} of ConfigMap {}/{map} (`caBundleRef`)", self.shared.namespace)),
            None => Reference::Missing(format!("The ConfigMap {}/{map} (`caBundleRef`)", self.shared.namespace)),
        }
    }

    /// What the spool has of an image. The disk is kept from eviction for as long as this image is remembered to need it.
    async fn spooled(&self, identity: &Identity, uid: &str) -> Option<SpooledView> {
        let (store, wanted) = (self.shared.store.clone(), identity.clone());
        let found = tokio::task::spawn_blocking(move || store.find(&wanted)).await.ok()?;
        match found {
            Ok(Some(spooled)) => {
                let view = spooled_view(&spooled.record);
                self.memory.with(uid, |image| image.disk = Some(spooled.lease));
                view
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(%identity, %error, "the spool cannot be asked");
                None
            }
        }
    }

    async fn apply(&self, object: &GoldenImage, uid: &str, observed: &Observed, decision: Decision) -> Result<Option<()>, ActError> {
        let name = &observed.metadata.name;
        let mut did = None;
        for action in &decision.before {
            self.act(object, uid, observed, &decision.status, action).await?;
            did = Some(());
        }
        if decision.status.targets.iter().all(|target| target.claim_uid.is_some() && target.started_time.is_none()) {
            // Every golden is made: the disk may be evicted when room is needed.
            self.memory.with(uid, |image| image.disk = None);
        }
        if decision.status != observed.status {
            let written = self.hands.write_status(object, &decision.status).await?;
            self.memory.with(uid, |image| image.wrote(written));
            did = Some(());
        }
        for action in &decision.after {
            self.act(object, uid, observed, &decision.status, action).await?;
            did = Some(());
        }
        for note in &decision.notes {
            self.tell(object, note);
        }
        super::main::record_metrics(&self.shared.metrics, name, &observed.status, &decision.status);
        if let Some(wake) = decision.wake {
            let wait = wake.duration_since(Timestamp::now()).unsigned_abs();
            let wait = if wake <= Timestamp::now() { Duration::from_secs(1) } else { wait };
            self.shared.queue.add_at(name.clone(), tokio::time::Instant::now() + wait);
        }
        Ok(did)
    }

    async fn act(
        &self,
        object: &GoldenImage,
        uid: &str,
        observed: &Observed,
        status: &GoldenImageStatus,
        action: &Action,
    ) -> Result<(), ActError> {
        let Ok(image) = &observed.image else { return Ok(()) };
        let (hands, memory) = (&self.hands, &self.memory);
        tracing::debug!(image = %image.name, ?action, "acting");
        match action {
            Action::ResolveSchematic => self.resolve_schematic(uid, image),
            Action::Fetch { largest_target, frozen_disk: _ } => self.fetch(uid, image, status, *largest_target),
            Action::CancelFetch => self.jobs.cancel(uid),
            Action::Serve { golden, disk, ready } => hands.serve(memory, uid, golden, *disk, *ready),
            Action::Refuse { golden, disk } => hands.refuse(memory, uid, golden, *disk),
            Action::WriteHeaders { golden, disk, mark } => hands.write_headers(memory, uid, golden, *disk, *mark).await?,
            Action::DeleteHeaders { golden } => hands.delete_headers(golden).await?,
            Action::CreateVolume(order) => {
                hands.create_volume(memory, uid, image, order).await?;
                tracing::info!(image = %image.name, golden = %order.golden, class = %order.class, size = %order.size, "import begun");
            }
            Action::DeleteVolume { golden, uid: volume } => {
                hands.delete_volume(memory, uid, golden, volume).await?;
                tracing::info!(image = %image.name, %golden, "unfinished import given up");
            }
            Action::Mark { golden, claim_uid } => {
                if let Some(order) = order_of(image, status, golden) {
                    let has_volume = observed.targets.iter().any(|target| target.golden.volume.is_some());
                    hands.mark(image, &order, claim_uid, has_volume).await?;
                }
            }
            Action::CheckUpstream => self.check_upstream(object, uid, image, status),
        }
        Ok(())
    }

    fn ca_bundle(&self, image: &Image) -> Option<Vec<u8>> {
        let (map, key) = image.ca_bundle.as_ref()?;
        let facts = self.shared.cluster.config_maps.get(&self.shared.namespace, map)?;
        facts.data.get(key).map(|pem| pem.clone().into_bytes())
    }

    fn resolve_schematic(&self, uid: &str, image: &Image) {
        let Source::TalosFactory(talos) = image.source.clone() else { return };
        let (egress, ca) = (self.shared.egress.clone(), self.ca_bundle(image));
        self.jobs.start(uid, image.name.as_str(), |_, _| async move {
            let Schematic::Document(document) = &talos.schematic else { return FetchView::Idle };
            let request = SchematicRequest { factory_url: &talos.factory_url, document, ca_bundle: ca.as_deref(), credentials: None };
            match egress.resolve_schematic(&request).await {
                Ok(id) => FetchView::Schematic(id),
                Err(error) => FetchView::Failed { reason: error.reason(), message: error.to_string(), retry_after: error.retry_after() },
            }
        });
    }

    fn fetch(&self, uid: &str, image: &Image, status: &GoldenImageStatus, largest_target: Option<DiskSize>) {
        let schematic_id = status.schematic_id.as_ref().and_then(|id| id.parse().ok());
        let Some(identity) = image.identity(schematic_id.as_ref()) else { return };
        let (intake, metrics) = (self.shared.intake.clone(), Arc::clone(&self.shared.metrics));
        let fits: crate::intake::Fits = Arc::new(move |disk| match largest_target {
            Some(largest) if largest < disk => {
                Err(format!("The disk has {disk} and the largest target {largest}: it needs at least {}.", disk.round_up_to_mib()))
            }
            _ => Ok(()),
        });
        let request = IntakeRequest {
            identity,
            source: image.source.clone(),
            schematic_id,
            digest: image.digest,
            ca_bundle: self.ca_bundle(image),
            credentials: None,
            fits,
        };
        let name = image.name.to_string();
        self.jobs.start(uid, image.name.as_str(), |told, cancel| async move {
            let began = Instant::now();
            let kind = source_kind(&request.source);
            let (progress, mut steps) = tokio::sync::watch::channel(intake::Progress::default());
            let work = intake.run(&request, &progress, &cancel);
            let telling = async {
                let (mut received, mut fetched) = (0, None);
                while steps.changed().await.is_ok() {
                    let step = *steps.borrow_and_update();
                    if let Some(percent) = step.percent() {
                        told.tell(percent);
                    }
                    metrics.fetched(&name, step.received.saturating_sub(received));
                    received = step.received.max(received);
                    if step.stage == intake::Stage::Verifying && fetched.is_none() {
                        fetched = Some(began.elapsed());
                        metrics.fetch_took(kind, began.elapsed());
                    }
                }
                std::future::pending::<()>().await;
            };
            let outcome = tokio::select! {
                outcome = work => outcome,
                () = telling => unreachable!("it never ends"),
            };
            match outcome {
                Ok(spooled) => {
                    metrics.intake_took(kind, began.elapsed());
                    let artifact = &spooled.record.artifact;
                    tracing::info!(image = name, bytes = artifact.size, format = artifact.format, took = ?began.elapsed(), "fetched and verified");
                    FetchView::Idle
                }
                Err(intake::IntakeError::Cancelled) => FetchView::Idle,
                Err(error) => {
                    let reason = error.reason();
                    metrics.failed(&name, reason);
                    tracing::warn!(image = name, %reason, %error, "fetch failed");
                    FetchView::Failed { reason, message: error.to_string(), retry_after: error.retry_after() }
                }
            }
        });
    }

    /// R6: a HEAD, at most one at a time per image; its answer wakes the image.
    fn check_upstream(&self, object: &GoldenImage, uid: &str, image: &Image, status: &GoldenImageStatus) {
        let asked = UpstreamView { checked: Timestamp::now(), difference: None };
        let before = self.memory.with(uid, |memory| memory.upstream.replace(asked.clone()));
        let Some(artifact) = status.artifact.clone() else { return };
        let (egress, source, ca, queue) =
            (self.shared.egress.clone(), image.source.clone(), self.ca_bundle(image), Arc::clone(&self.shared.queue));
        let (name, uid) = (object.name_any(), uid.to_owned());
        let this = self.memory.clone();
        tokio::spawn(async move {
            let request = OpenRequest { ca_bundle: ca.as_deref(), ..OpenRequest::new(&source) };
            let difference = match egress.look(&request).await {
                Ok(facts) => difference(&artifact, &facts),
                Err(error) => {
                    tracing::debug!(image = name, %error, "upstream could not be asked for changes");
                    before.and_then(|before| before.difference)
                }
            };
            if difference.is_some() {
                tracing::info!(image = name, difference, "upstream serves other bytes now");
            }
            this.with(&uid, |memory| memory.upstream = Some(UpstreamView { difference, ..asked }));
            queue.add(name);
        });
    }

    fn tell(&self, object: &GoldenImage, note: &Note) {
        let mut regarding: ObjectReference = object.object_ref(&());
        regarding.resource_version = None;
        self.shared.recorder.tell(events::Note {
            regarding,
            severity: if note.warning { Severity::Warning } else { Severity::Normal },
            reason: note.reason.to_string(),
            action: "Reconcile",
            text: note.message.clone(),
        });
        tracing::info!(image = object.name_any(), reason = %note.reason, message = note.message, "state changed");
    }
}

/// The kind of a source, as a metric's label.
const fn source_kind(source: &Source) -> &'static str {
    match source {
        Source::TalosFactory(_) => "talosFactory",
        Source::ContainerDisk { .. } => "containerDisk",
        Source::Http { .. } => "http",
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
    let begun = |name: &GoldenName| {
        status.targets.iter().any(|entry| entry.golden.as_deref() == Some(name.as_str()) && entry.started_time.is_some())
    };
    target.name.as_ref().is_some_and(begun)
        && target.golden.volume.as_ref().is_some_and(|volume| volume.ours && volume.phase != "Succeeded" && !volume.terminating)
}

fn spooled_view(record: &Record) -> Option<SpooledView> {
    Some(SpooledView {
        artifact_digest: record.artifact.digest,
        artifact_size: record.artifact.size,
        format: record.artifact.format.clone(),
        resolved_url: Some(record.artifact.resolved_url.clone()),
        etag: record.artifact.etag.clone(),
        resolved_time: Some(record.artifact.resolved_time),
        disk_digest: record.disk.digest,
        virtual_size: DiskSize::from_bytes(record.disk.virtual_size)?,
        digest_matched: record.verified == Verified::Digest,
    })
}

/// What a golden was ordered with, from what is on record.
fn order_of(image: &Image, status: &GoldenImageStatus, golden: &GoldenName) -> Option<ImportOrder> {
    let target = status.targets.iter().find(|target| target.golden.as_deref() == Some(golden.as_str()))?;
    let schematic_id = status.schematic_id.as_ref().and_then(|id| id.parse().ok());
    Some(ImportOrder {
        golden: golden.clone(),
        disk: status.disk.as_ref()?.digest.parse().ok()?,
        class: target.storage_class_name.as_ref()?.parse().ok()?,
        size: target.size.as_ref()?.parse().ok()?,
        volume_mode: target.volume_mode.as_ref()?.parse().ok()?,
        access_modes: target.access_modes.clone(),
        identity: image.identity(schematic_id.as_ref())?,
        schematic_id,
        artifact: status.artifact.as_ref().and_then(|artifact| artifact.digest.parse().ok()),
    })
}

/// R6: what differs between what was fetched and what upstream says now, in words.
fn difference(artifact: &crate::api::ArtifactStatus, facts: &crate::source::Facts) -> Option<String> {
    let same_place = artifact.resolved_url.as_deref() == Some(facts.resolved_url.as_str());
    if let (true, Some(was), Some(now)) = (same_place, &artifact.etag, &facts.etag)
        && was != now
    {
        return Some(format!("Upstream's ETag was {was} when the image was fetched and is {now} now."));
    }
    let was = u64::try_from(artifact.size_bytes).ok()?;
    let now = facts.length?;
    (was != now).then(|| format!("Upstream's file had {was} bytes when the image was fetched and has {now} now."))
}
