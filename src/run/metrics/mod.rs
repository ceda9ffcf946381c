//! What the daemon counts. The names, their labels and their help texts are all here; the rooms call typed methods.
//!
//! Cardinality is bounded by the catalog: labels are names of golden images and of StorageClasses they have targets for, and
//! words from closed lists. No URL, digest, tenant or free text is ever a label. Series of a deleted image, of a removed target and
//! of a former reason go away.

mod format;
mod process;
mod series;

pub use format::{Format, OPENMETRICS, TEXT};

use crate::rules::Reason;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use series::PerImage;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

/// The prefix of every metric but the process's own.
pub const PREFIX: &str = "golden_image";

type Float = Gauge<f64, AtomicU64>;
type Hook = Box<dyn Fn(&Metrics) + Send + Sync>;

macro_rules! labels {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* })*) => {
        $($(#[$doc])* #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)] struct $name { $($field: $type),* })*
    };
}

labels! {
    OfImage { image: String }
    OfReason { image: String, reason: &'static str }
    /// `storage_class` is empty for what concerns the image as a whole.
    OfTarget { image: String, storage_class: String }
    OfCondition { image: String, storage_class: String, r#type: String, status: &'static str, reason: &'static str }
    OfSource { source: &'static str }
    OfClass { storage_class: String }
    OfKind { kind: &'static str }
    OfOutcome { controller: &'static str, outcome: &'static str }
    OfController { controller: &'static str }
    OfQueue { queue: &'static str }
    OfCertificate { certificate: String }
    OfCause { cause: &'static str }
    OfImageKind { image: String, kind: &'static str }
    OfImageCause { image: String, cause: &'static str }
    OfMark { outcome: &'static str }
    OfVersion { version: &'static str }
    OfVerdict { webhook: &'static str, verdict: &'static str }
    OfWebhook { webhook: &'static str }
}

/// How one reconcile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Something was written.
    Changed,
    /// There was nothing to do.
    Unchanged,
    /// It failed and is tried again.
    Error,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Error => "error",
        }
    }
}

/// How writing marks on a disk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkOutcome {
    /// They were missing.
    Added,
    /// One contradicted the spec, or said less than is known.
    Corrected,
    /// They were refused.
    Failed,
}

impl MarkOutcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Corrected => "corrected",
            Self::Failed => "failed",
        }
    }
}

/// What a watch is like at the moment of a scrape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WatchSample {
    /// Time since it last heard from the API server; `None` where the kind is not installed.
    pub age: Option<Duration>,
    /// Whether what it knows is complete.
    pub synced: bool,
    /// Objects that cannot be decoded.
    pub unreadable: u64,
    /// Times it broke and was begun again, since the start.
    pub failures: u64,
}

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    hooks: Mutex<Vec<Hook>>,

    conditions: PerImage<OfCondition, Gauge>,
    progress: PerImage<OfTarget, Float>,
    attempts: PerImage<OfTarget, Gauge>,
    failures: PerImage<OfReason, Counter>,
    fetched: PerImage<OfImage, Counter>,
    fetch_seconds: Family<OfSource, Histogram>,
    intake_seconds: Family<OfSource, Histogram>,
    import_seconds: Family<OfClass, Histogram>,

    reconciles: Family<OfOutcome, Counter>,
    reconcile_seconds: Family<OfController, Histogram>,
    queue_depth: Family<OfQueue, Gauge>,
    in_backoff: Family<OfController, Gauge>,

    leader: Gauge,
    leader_terms: Counter,
    watch_age: Family<OfKind, Float>,
    watch_synced: Family<OfKind, Gauge>,
    watch_unreadable: Family<OfKind, Gauge>,
    watch_failures: Family<OfKind, Counter>,
    certificate_seconds: Family<OfCertificate, Float>,
    events_lost: Family<OfCause, Counter>,
    consumers: PerImage<OfImageKind, Gauge>,
    blockers: PerImage<OfImage, Gauge>,
    copied: PerImage<OfImageCause, Gauge>,
    stuck: Family<OfImageCause, Gauge>,
    marks: Family<OfMark, Counter>,
    ledger_rows: Gauge,
    ledger_size: Gauge,
    ledger_known: Gauge,
    forced_retirements: Counter,
    reviews: Family<OfVerdict, Counter>,
    review_seconds: Family<OfWebhook, Histogram>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// From a second to an hour: what fetching, checking and importing disks takes.
fn long() -> Histogram {
    Histogram::new([1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0])
}

/// From a millisecond to half a minute: what a reconcile takes.
fn short() -> Histogram {
    Histogram::new([0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0])
}

/// From half a millisecond to five seconds, where the API server has given up: what a verdict takes.
fn quick() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0])
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics at zero. `version` of the build is told as `golden_image_build_info`.
    pub fn new() -> Self {
        let mut root = Registry::default();
        root.register_collector(Box::new(process::Process::new()));
        let registry = root.sub_registry_with_prefix(PREFIX);
        macro_rules! register {
            ($name:literal, $help:literal, $family:expr) => {{
                let family = $family;
                registry.register($name, $help, family.clone());
                family
            }};
            ($name:literal, $unit:ident, $help:literal, $family:expr) => {{
                let family = $family;
                registry.register_with_unit($name, $help, Unit::$unit, family.clone());
                family
            }};
        }
        macro_rules! per_image {
            ($($argument:tt)*) => { PerImage::new(register!($($argument)*, Family::default())) };
        }
        let build = register!("build_info", "The version that runs", Family::<OfVersion, Gauge>::default());
        build.get_or_create(&OfVersion { version: env!("CARGO_PKG_VERSION") }).set(1);
        Self {
            conditions: per_image!(
                "condition",
                "1 for the present status and reason of each condition of an image (storage_class empty) and of its targets"
            ),
            progress: per_image!("progress_ratio", "Progress of the present fetch (storage_class empty) or import, 0 to 1"),
            attempts: per_image!("attempts", "Attempts made at the present fetch (storage_class empty) or import"),
            failures: per_image!("failures", "Failed attempts by reason"),
            fetched: per_image!("fetched", Bytes, "Bytes downloaded from upstream"),
            fetch_seconds: register!(
                "fetch_duration",
                Seconds,
                "Time of a successful download, by kind of source",
                Family::new_with_constructor(long as fn() -> Histogram)
            ),
            intake_seconds: register!(
                "intake_duration",
                Seconds,
                "Time from the first byte of an artifact to its verified disk in the spool, by kind of source",
                Family::new_with_constructor(long as fn() -> Histogram)
            ),
            import_seconds: register!(
                "import_duration",
                Seconds,
                "Time from the DataVolume of a golden to its end of import, by StorageClass",
                Family::new_with_constructor(long as fn() -> Histogram)
            ),
            reconciles: register!("reconciles", "Reconciles by how they ended", Family::default()),
            reconcile_seconds: register!(
                "reconcile_duration",
                Seconds,
                "Time of a reconcile",
                Family::new_with_constructor(short as fn() -> Histogram)
            ),
            queue_depth: register!("queue_depth", "What waits for its turn, by queue", Family::default()),
            in_backoff: register!("objects_in_backoff", "Objects that failed and wait for their next attempt", Family::default()),
            leader: register!("leader", "1 while this process leads", Gauge::default()),
            leader_terms: register!("leader_terms", "Times this process began to lead", Counter::default()),
            watch_age: register!(
                "watch_age",
                Seconds,
                "Time since a watch last heard from the API server; the liveness probe fails above its limit",
                Family::default()
            ),
            watch_synced: register!("watch_synced", "1 while what a watch knows is complete", Family::default()),
            watch_unreadable: register!("watch_unreadable_objects", "Objects of a kind that cannot be decoded", Family::default()),
            watch_failures: register!("watch_failures", "Times a watch broke and was begun again", Family::default()),
            certificate_seconds: register!(
                "certificate_remaining",
                Seconds,
                "Time until a certificate of the daemon ends",
                Family::default()
            ),
            events_lost: register!("events_lost", "Events that could not be published", Family::default()),
            consumers: per_image!("consumers", "Consumers of the image's goldens by kind; told by the leader"),
            blockers: per_image!("blocking_consumers", "Consumers that keep the image's goldens from being deleted"),
            copied: per_image!("network_copies", "Disks that were copied over the network instead of being cloned in storage, by cause"),
            stuck: register!("stuck_clones", "Clones that have not moved for longer than their deadline, by cause", Family::default()),
            marks: register!("consumer_marks", "Marks written on consumers' disks, by outcome", Family::default()),
            ledger_rows: register!(
                "ledger_rows",
                "References to goldens, and members of worker pools, in the consumer ledger",
                Gauge::default()
            ),
            ledger_size: register!("ledger_size", Bytes, "Memory of the consumer ledger", Gauge::default()),
            ledger_known: register!(
                "ledger_known",
                "1 while every kind of consumer is known, so that a golden without consumers may be called free",
                Gauge::default()
            ),
            forced_retirements: register!(
                "forced_retirements",
                "Goldens retired by the annotation force-retire in spite of what needs them",
                Counter::default()
            ),
            reviews: register!("admission_reviews", "Questions of the API server, by webhook and verdict", Family::default()),
            review_seconds: register!(
                "admission_review_duration",
                Seconds,
                "Time from the question's first byte to the answer, by webhook",
                Family::new_with_constructor(quick as fn() -> Histogram)
            ),
            registry: root,
            hooks: Mutex::default(),
        }
    }

    /// Called before each scrape, to set gauges that are reckoned rather than counted (ages, depths, remaining times).
    pub fn on_scrape(&self, hook: impl Fn(&Self) + Send + Sync + 'static) {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(hook));
    }

    /// The text of a scrape.
    ///
    /// # Errors
    /// When formatting fails, which writing to a string does not.
    pub fn scrape(&self, format: Format) -> Result<String, fmt::Error> {
        for hook in self.hooks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            hook(self);
        }
        format.encode(&self.registry)
    }

    /// A condition as it now is; the same type's former status and reason go away. `storage_class` is `None` for the image's own.
    pub fn condition(&self, image: &str, storage_class: Option<&str>, r#type: &str, status: Status, reason: Reason) {
        let label = OfCondition {
            image: image.to_owned(),
            storage_class: storage_class.unwrap_or_default().to_owned(),
            r#type: r#type.to_owned(),
            status: status.as_str(),
            reason: reason.as_str(),
        };
        self.conditions
            .retain(image, |other| (&other.storage_class, &other.r#type) != (&label.storage_class, &label.r#type) || *other == label);
        self.conditions.get(image, label).set(1);
    }

    /// Takes away the conditions of an image that are none any more; `is` says which there are, by class and type.
    pub fn retain_conditions(&self, image: &str, is: impl Fn(Option<&str>, &str) -> bool) {
        self.conditions.retain(image, |label| is(Some(label.storage_class.as_str()).filter(|class| !class.is_empty()), &label.r#type));
    }

    /// Progress of a fetch (`storage_class` is `None`) or import, from 0 to 1.
    pub fn progress(&self, image: &str, storage_class: Option<&str>, ratio: f64) {
        self.progress.get(image, target(image, storage_class)).set(ratio.clamp(0.0, 1.0));
    }

    /// Attempts made so far at a fetch (`storage_class` is `None`) or import.
    pub fn attempts(&self, image: &str, storage_class: Option<&str>, attempts: u32) {
        self.attempts.get(image, target(image, storage_class)).set(i64::from(attempts));
    }

    /// A failed attempt.
    pub fn failed(&self, image: &str, reason: Reason) {
        self.failures.get(image, OfReason { image: image.to_owned(), reason: reason.as_str() }).inc();
    }

    /// Bytes that came from upstream.
    pub fn fetched(&self, image: &str, bytes: u64) {
        self.fetched.get(image, OfImage { image: image.to_owned() }).inc_by(bytes);
    }

    /// A finished download; `source` is the kind of source (`talosFactory`, `containerDisk`, `http`).
    pub fn fetch_took(&self, source: &'static str, time: Duration) {
        self.fetch_seconds.get_or_create(&OfSource { source }).observe(time.as_secs_f64());
    }

    /// A finished intake.
    pub fn intake_took(&self, source: &'static str, time: Duration) {
        self.intake_seconds.get_or_create(&OfSource { source }).observe(time.as_secs_f64());
    }

    /// A finished import.
    pub fn import_took(&self, storage_class: &str, time: Duration) {
        self.import_seconds.get_or_create(&OfClass { storage_class: storage_class.to_owned() }).observe(time.as_secs_f64());
    }

    /// A finished reconcile.
    pub fn reconciled(&self, controller: &'static str, outcome: Outcome, time: Duration) {
        self.reconciles.get_or_create(&OfOutcome { controller, outcome: outcome.as_str() }).inc();
        self.reconcile_seconds.get_or_create(&OfController { controller }).observe(time.as_secs_f64());
    }

    /// How much waits in a queue.
    pub fn queue_depth(&self, queue: &'static str, depth: usize) {
        self.queue_depth.get_or_create(&OfQueue { queue }).set(whole(depth));
    }

    /// How many objects wait for their next attempt.
    pub fn in_backoff(&self, controller: &'static str, objects: usize) {
        self.in_backoff.get_or_create(&OfController { controller }).set(whole(objects));
    }

    /// Whether this process leads.
    pub fn leads(&self, leads: bool) {
        if self.leader.set(i64::from(leads)) == 0 && leads {
            self.leader_terms.inc();
        }
    }

    /// What a watch is like; call it from [`Self::on_scrape`].
    pub fn watch(&self, kind: &'static str, sample: WatchSample) {
        let label = OfKind { kind };
        match sample.age {
            Some(age) => drop(self.watch_age.get_or_create(&label).set(age.as_secs_f64())),
            None => drop(self.watch_age.remove(&label)),
        }
        self.watch_synced.get_or_create(&label).set(i64::from(sample.synced));
        self.watch_unreadable.get_or_create(&label).set(whole(sample.unreadable as usize));
        let counter = self.watch_failures.get_or_create_owned(&label);
        counter.inc_by(sample.failures.saturating_sub(counter.get()));
    }

    /// An image's consumers by kind, how many of them block, and its network copies by cause.
    pub fn consumers(&self, image: &str, kinds: &[(&'static str, usize)], blocking: usize, copied: &[(&'static str, usize)]) {
        self.consumers.retain(image, |label| kinds.iter().any(|(kind, _)| *kind == label.kind));
        self.copied.retain(image, |label| copied.iter().any(|(cause, _)| *cause == label.cause));
        for (kind, count) in kinds {
            self.consumers.get(image, OfImageKind { image: image.to_owned(), kind }).set(whole(*count));
        }
        for (cause, count) in copied {
            self.copied.get(image, OfImageCause { image: image.to_owned(), cause }).set(whole(*count));
        }
        self.blockers.get(image, OfImage { image: image.to_owned() }).set(whole(blocking));
    }

    /// Forgets an image's consumers: somebody else counts them now.
    pub fn forget_consumers(&self, image: &str) {
        self.consumers.forget(image);
        self.blockers.forget(image);
        self.copied.forget(image);
    }

    /// All stuck clones by image and cause; `image` is empty for a golden without one.
    pub fn stuck_clones(&self, clones: &BTreeMap<(&str, &'static str), usize>) {
        self.stuck.clear();
        for ((image, cause), count) in clones {
            self.stuck.get_or_create(&OfImageCause { image: (*image).to_owned(), cause }).set(whole(*count));
        }
    }

    /// A disk whose marks were written, or could not be.
    pub fn marked(&self, outcome: MarkOutcome) {
        self.marks.get_or_create(&OfMark { outcome: outcome.as_str() }).inc();
    }

    /// What the consumer ledger holds: rows, bytes, and whether all is known; call it from [`Self::on_scrape`].
    pub fn ledger(&self, rows: usize, bytes: usize, is_known: bool) {
        self.ledger_rows.set(whole(rows));
        self.ledger_size.set(whole(bytes));
        self.ledger_known.set(i64::from(is_known));
    }

    /// The time a certificate is still good for, in seconds; call it from [`Self::on_scrape`].
    pub fn certificate(&self, name: &str, seconds: Option<f64>) {
        let label = OfCertificate { certificate: name.to_owned() };
        match seconds {
            Some(seconds) => drop(self.certificate_seconds.get_or_create(&label).set(seconds)),
            None => drop(self.certificate_seconds.remove(&label)),
        }
    }

    /// An event that was not published, and why.
    pub fn event_lost(&self, cause: &'static str) {
        self.events_lost.get_or_create(&OfCause { cause }).inc();
    }

    /// A golden was retired in spite of what needs it.
    pub fn forced(&self) {
        self.forced_retirements.inc();
    }

    /// A question of the API server and its answer.
    pub fn judged(&self, webhook: &'static str, verdict: &'static str, time: Duration) {
        self.reviews.get_or_create(&OfVerdict { webhook, verdict }).inc();
        self.review_seconds.get_or_create(&OfWebhook { webhook }).observe(time.as_secs_f64());
    }

    /// Forgets everything about an image that is gone.
    pub fn forget_image(&self, image: &str) {
        self.conditions.forget(image);
        self.progress.forget(image);
        self.attempts.forget(image);
        self.failures.forget(image);
        self.fetched.forget(image);
        self.forget_consumers(image);
    }

    /// Forgets a target that is gone, or what it was once tried for: progress and attempts too.
    pub fn forget_target(&self, image: &str, storage_class: &str) {
        self.conditions.retain(image, |label| label.storage_class != storage_class);
        self.progress.retain(image, |label| label.storage_class != storage_class);
        self.attempts.retain(image, |label| label.storage_class != storage_class);
    }

    /// Forgets the progress of a fetch or import that has ended.
    pub fn forget_progress(&self, image: &str, storage_class: Option<&str>) {
        self.progress.retain(image, |label| label.storage_class != storage_class.unwrap_or_default());
    }
}

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`
    Unknown,
}

impl Status {
    const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

fn target(image: &str, storage_class: Option<&str>) -> OfTarget {
    OfTarget { image: image.to_owned(), storage_class: storage_class.unwrap_or_default().to_owned() }
}

fn whole(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
