//! What metrics show of the daemon's work: statuses as they are written, and what is reckoned at each scrape.

use std::sync::{Arc, Mutex, PoisonError, atomic::Ordering};

use k8s_openapi::jiff::Timestamp;

use crate::{
    api::{GoldenImageStatus, LastFailure},
    model::DiskSize,
    run::{
        certs::Resolver,
        metrics::{Metrics, SpoolSample},
    },
    spool::{Registry, Store},
    world::Cluster,
};

/// Takes over what a status says.
pub(super) fn record(metrics: &Metrics, name: &str, old: &GoldenImageStatus, new: &GoldenImageStatus) {
    metrics.expect_image(name);
    metrics.retain_targets(name, |class| new.targets.iter().any(|target| target.storage_class_name.as_deref() == Some(class)));
    for condition in &new.conditions {
        if let Ok(reason) = condition.reason.parse() {
            metrics.condition(name, None, &condition.type_, condition.status.as_str().into(), reason);
        }
    }
    metrics.retain_conditions(name, |class, kind| {
        let conditions = match class {
            None => Some(&new.conditions),
            Some(class) => {
                new.targets.iter().find(|target| target.storage_class_name.as_deref() == Some(class)).map(|target| &target.conditions)
            }
        };
        conditions.is_some_and(|conditions| conditions.iter().any(|condition| condition.type_ == kind))
    });
    let failure = new.fetch.as_ref().and_then(|fetch| fetch.last_failure.as_ref());
    metrics.last_failure(name, None, failure.and_then(read_failure));
    metrics.attempts(name, None, new.fetch.as_ref().map_or(0, |fetch| u32::try_from(fetch.attempts).unwrap_or(0)));
    if let Some(artifact) = &new.artifact {
        metrics.artifact_size(name, u64::try_from(artifact.size_bytes).unwrap_or(0));
    }
    for target in &new.targets {
        let Some(class) = target.storage_class_name.as_deref() else { continue };
        metrics.expect_class(class);
        metrics.attempts(name, Some(class), u32::try_from(target.attempts).unwrap_or(0));
        metrics.last_failure(name, Some(class), target.last_failure.as_ref().and_then(read_failure));
        match &target.started_time {
            Some(began) => {
                metrics.progress(name, Some(class), f64::from(target.progress_percent.unwrap_or(0)) / 100.0);
                metrics.started(name, Some(class), seconds(began.0));
            }
            None => metrics.forget_progress(name, Some(class)),
        }
        if let Some(size) = target.size.as_ref().and_then(|size| size.parse::<DiskSize>().ok()) {
            metrics.golden_size(name, class, size.bytes());
        }
        let before = old.targets.iter().find(|other| other.requested_class == target.requested_class);
        if let Some(began) = before
            .filter(|before| target.claim_uid.is_some() && before.claim_uid != target.claim_uid)
            .and_then(|before| before.started_time.as_ref())
        {
            metrics.import_took(class, Timestamp::now().duration_since(began.0).unsigned_abs());
        }
        if let Some(failure) = &target.last_failure
            && before.is_none_or(|before| before.last_failure.as_ref().map(|failure| &failure.time) != Some(&failure.time))
            && let Ok(reason) = failure.reason.parse()
        {
            metrics.failed(name, reason);
        }
        for condition in &target.conditions {
            if let Ok(reason) = condition.reason.parse() {
                metrics.condition(name, Some(class), &condition.type_, condition.status.as_str().into(), reason);
            }
        }
    }
}

fn read_failure(failure: &LastFailure) -> Option<(crate::rules::Reason, f64)> {
    Some((failure.reason.parse().ok()?, seconds(failure.time.0)))
}

fn seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}

/// A fetch that runs, as metrics show it: gone with the fetch, however that ends.
pub(super) struct Running<'a> {
    metrics: &'a Metrics,
    image: &'a str,
}

impl<'a> Running<'a> {
    /// Shows a fetch that begins now.
    pub(super) fn begin(metrics: &'a Metrics, image: &'a str) -> Self {
        metrics.started(image, None, seconds(Timestamp::now()));
        Self { metrics, image }
    }

    /// Shows how far it is.
    pub(super) fn at(&self, percent: u8) {
        self.metrics.progress(self.image, None, f64::from(percent) / 100.0);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.metrics.forget_progress(self.image, None);
    }
}

/// The bytes that spool servers sent, over all terms of leadership.
#[derive(Default)]
pub(super) struct Served(Mutex<Option<(Registry, u64)>>);

impl Served {
    /// Counts for this registry from now on.
    pub(super) fn count(&self, registry: Registry) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((registry, 0));
    }

    /// The bytes sent since the last call.
    fn more(&self) -> u64 {
        let mut served = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((registry, before)) = served.as_mut() else { return 0 };
        let sent = registry.traffic().bytes_sent.load(Ordering::Relaxed);
        sent.saturating_sub(std::mem::replace(before, sent))
    }
}

/// What is reckoned rather than counted, whenever somebody scrapes.
pub(super) fn reckon_at_scrapes(metrics: &Metrics, cluster: &Cluster, store: &Store, resolver: &Arc<Resolver>, served: &Arc<Served>) {
    let (cluster, store, resolver, served) = (cluster.clone(), store.clone(), Arc::clone(resolver), Arc::clone(served));
    metrics.on_scrape(move |metrics| {
        let usage = store.usage();
        metrics.spool(SpoolSample { capacity: usage.capacity, used: usage.used, held: usage.held, disks: usage.disks });
        metrics.spool_served(served.more());
        metrics.certificate("spool", resolver.seconds_left(Timestamp::now()));
        // Work that was under way when its image was deleted, or the term ended, may have counted a last step.
        for image in metrics.images() {
            if !metrics.is_leading() || cluster.images.get("", &image).is_none() {
                metrics.forget_image(&image);
            }
        }
    });
}
