//! What is counted of the process: its work, its spool, its watches, and whether it leads.

use super::{Metrics, labels, register::Float, register::Registrar};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Unit,
};
use std::time::Duration;

labels! {
    OfKind { kind: &'static str }
    OfOutcome { controller: &'static str, outcome: &'static str }
    OfController { controller: &'static str }
    OfQueue { queue: &'static str }
    OfCertificate { certificate: &'static str }
    OfCause { cause: &'static str }
    OfVersion { version: &'static str }
}

/// From a millisecond to half a minute: what a reconcile takes.
fn short() -> Histogram {
    Histogram::new([0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0])
}

/// Why an Event may not be published.
const EVENT_LOSSES: [&str; 4] = ["queue_full", "shutting_down", "rate_limited", "refused"];

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

/// How full the spool is, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpoolSample {
    /// The most that may be in use.
    pub capacity: u64,
    /// What lies there, and what is promised.
    pub used: u64,
    /// The part of `used` that cannot be evicted: disks in use, and what is being taken in.
    pub held: u64,
    /// Verified disks.
    pub disks: usize,
}

/// The families of the process.
pub(super) struct Process {
    reconciles: Family<OfOutcome, Counter>,
    reconcile_seconds: Family<OfController, Histogram, fn() -> Histogram>,
    queue_depth: Family<OfQueue, Gauge>,
    in_backoff: Family<OfController, Gauge>,
    spool_capacity: Gauge,
    spool_used: Gauge,
    spool_held: Gauge,
    spool_disks: Gauge,
    spool_served: Counter,
    leader: Gauge,
    leader_terms: Counter,
    watch_age: Family<OfKind, Float>,
    watch_synced: Family<OfKind, Gauge>,
    watch_unreadable: Family<OfKind, Gauge>,
    watch_failures: Family<OfKind, Counter>,
    certificate_seconds: Family<OfCertificate, Float>,
    events_lost: Family<OfCause, Counter>,
    ledger_rows: Gauge,
    ledger_size: Gauge,
    ledger_known: Gauge,
}

impl Process {
    pub fn new(to: &mut Registrar<'_>) -> Self {
        let build = to.add("build_info", "The version that runs", Family::<OfVersion, Gauge>::default());
        build.get_or_create(&OfVersion { version: env!("CARGO_PKG_VERSION") }).set(1);
        let process = Self {
            reconciles: to.add("reconciles", "Reconciles by how they ended", Family::default()),
            reconcile_seconds: to.histograms("reconcile_duration", "Time of a reconcile", short),
            queue_depth: to.add(
                "queue_depth",
                "What waits for its turn, by queue: golden (images to look at), fetch, import",
                Family::default(),
            ),
            in_backoff: to.add("objects_in_backoff", "Objects that failed and wait for their next attempt", Family::default()),
            spool_capacity: to.add_in(Unit::Bytes, "spool_capacity", "The most that the spool may hold", Gauge::default()),
            spool_used: to.add_in(Unit::Bytes, "spool_used", "What lies in the spool, and what is promised to downloads", Gauge::default()),
            spool_held: to.add_in(
                Unit::Bytes,
                "spool_held",
                "The part of the spool that cannot be evicted: disks in use, and downloads under way",
                Gauge::default(),
            ),
            spool_disks: to.add("spool_disks", "Verified disks in the spool", Gauge::default()),
            spool_served: to.add_in(Unit::Bytes, "spool_served", "Bytes of disks served to importers", Counter::default()),
            leader: to.add("leader", "1 while this process leads", Gauge::default()),
            leader_terms: to.add("leader_terms", "Times this process began to lead", Counter::default()),
            watch_age: to.add_in(
                Unit::Seconds,
                "watch_age",
                "Time since a watch last heard from the API server; the liveness probe fails above its limit",
                Family::default(),
            ),
            watch_synced: to.add("watch_synced", "1 while what a watch knows is complete", Family::default()),
            watch_unreadable: to.add("watch_unreadable_objects", "Objects of a kind that cannot be decoded", Family::default()),
            watch_failures: to.add("watch_failures", "Times a watch broke and was begun again", Family::default()),
            certificate_seconds: to.add_in(
                Unit::Seconds,
                "certificate_remaining",
                "Time until a certificate of the daemon ends; negative once it has",
                Family::default(),
            ),
            events_lost: to.add("events_lost", "Events that could not be published, by cause", Family::default()),
            ledger_rows: to.add(
                "ledger_rows",
                "References to goldens, and members of worker pools, in the consumer ledger",
                Gauge::default(),
            ),
            ledger_size: to.add_in(Unit::Bytes, "ledger_size", "Memory of the consumer ledger", Gauge::default()),
            ledger_known: to.add(
                "ledger_known",
                "1 while every kind of consumer is known, so that a golden without consumers may be called free",
                Gauge::default(),
            ),
        };
        // From zero, so that the first one is an increase.
        for cause in EVENT_LOSSES {
            drop(process.events_lost.get_or_create(&OfCause { cause }));
        }
        process
    }
}

impl Metrics {
    /// A finished reconcile.
    pub fn reconciled(&self, controller: &'static str, outcome: Outcome, time: Duration) {
        self.process.reconciles.get_or_create(&OfOutcome { controller, outcome: outcome.as_str() }).inc();
        self.process.reconcile_seconds.get_or_create(&OfController { controller }).observe(time.as_secs_f64());
    }

    /// How much waits in a queue.
    pub fn queue_depth(&self, queue: &'static str, depth: usize) {
        self.process.queue_depth.get_or_create(&OfQueue { queue }).set(count(depth));
    }

    /// How many objects wait for their next attempt.
    pub fn in_backoff(&self, controller: &'static str, objects: usize) {
        self.process.in_backoff.get_or_create(&OfController { controller }).set(count(objects));
    }

    /// How full the spool is; call it from [`Self::on_scrape`].
    pub fn spool(&self, sample: SpoolSample) {
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.process.spool_capacity.set(bytes(sample.capacity));
        self.process.spool_used.set(bytes(sample.used));
        self.process.spool_held.set(bytes(sample.held));
        self.process.spool_disks.set(count(sample.disks));
    }

    /// More bytes went to importers.
    pub fn spool_served(&self, bytes: u64) {
        self.process.spool_served.inc_by(bytes);
    }

    /// Whether this process leads. Who no longer does knows nothing of images: their series go away.
    pub fn leads(&self, leads: bool) {
        if self.process.leader.set(i64::from(leads)) == 0 && leads {
            self.process.leader_terms.inc();
        }
        if !leads {
            for image in self.images() {
                self.forget_image(&image);
            }
            self.list_problems([]);
            self.stuck_clones(&std::collections::BTreeMap::new());
            self.process.queue_depth.clear();
            self.process.in_backoff.clear();
        }
    }

    /// Whether this process leads.
    pub fn is_leading(&self) -> bool {
        self.process.leader.get() == 1
    }

    /// What a watch is like; call it from [`Self::on_scrape`].
    pub fn watch(&self, kind: &'static str, sample: WatchSample) {
        let (process, label) = (&self.process, OfKind { kind });
        match sample.age {
            Some(age) => drop(process.watch_age.get_or_create(&label).set(age.as_secs_f64())),
            None => drop(process.watch_age.remove(&label)),
        }
        process.watch_synced.get_or_create(&label).set(i64::from(sample.synced));
        process.watch_unreadable.get_or_create(&label).set(count(usize::try_from(sample.unreadable).unwrap_or(usize::MAX)));
        let counter = process.watch_failures.get_or_create_owned(&label);
        counter.inc_by(sample.failures.saturating_sub(counter.get()));
    }

    /// What the consumer ledger holds: rows, bytes, and whether all is known; call it from [`Self::on_scrape`].
    pub fn ledger(&self, rows: usize, bytes: usize, is_known: bool) {
        self.process.ledger_rows.set(count(rows));
        self.process.ledger_size.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.process.ledger_known.set(i64::from(is_known));
    }

    /// The time a certificate is still good for, in seconds; call it from [`Self::on_scrape`].
    pub fn certificate(&self, certificate: &'static str, seconds: Option<f64>) {
        let label = OfCertificate { certificate };
        match seconds {
            Some(seconds) => drop(self.process.certificate_seconds.get_or_create(&label).set(seconds)),
            None => drop(self.process.certificate_seconds.remove(&label)),
        }
    }

    /// An event that was not published, and why.
    pub fn event_lost(&self, cause: &'static str) {
        self.process.events_lost.get_or_create(&OfCause { cause }).inc();
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
