//! What is counted of each golden image and its targets.

use super::{Metrics, labels, register::Float, register::Registrar, series::PerImage};
use crate::rules::Reason;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Unit,
};
use std::time::Duration;

labels! {
    OfImage { image: String }
    OfReason { image: String, reason: &'static str }
    /// `storage_class` is empty for what concerns the image as a whole.
    OfTarget { image: String, storage_class: String }
    OfFailure { image: String, storage_class: String, reason: &'static str }
    OfCondition { image: String, storage_class: String, r#type: String, status: &'static str, reason: &'static str }
    OfSource { source: &'static str }
    OfClass { storage_class: String }
    OfProblem { reason: &'static str }
}

/// From a second to an hour: what fetching, checking, importing and cloning disks takes.
pub(super) fn long() -> Histogram {
    Histogram::new([1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0])
}

/// The families of images.
pub(super) struct Images {
    conditions: PerImage<OfCondition, Gauge>,
    progress: PerImage<OfTarget, Float>,
    started: PerImage<OfTarget, Float>,
    attempts: PerImage<OfTarget, Gauge>,
    failures: PerImage<OfReason, Counter>,
    last_failure: PerImage<OfFailure, Float>,
    fetched: PerImage<OfImage, Counter>,
    artifact: PerImage<OfImage, Gauge>,
    golden: PerImage<OfTarget, Gauge>,
    fetch_seconds: Family<OfSource, Histogram, fn() -> Histogram>,
    intake_seconds: Family<OfSource, Histogram, fn() -> Histogram>,
    import_seconds: Family<OfClass, Histogram, fn() -> Histogram>,
    list_problems: Family<OfProblem, Gauge>,
}

impl Images {
    pub fn new(to: &mut Registrar<'_>) -> Self {
        Self {
            conditions: PerImage::new(to.add(
                "condition",
                "1 for the present status and reason of each condition of an image (storage_class empty) and of its targets",
                Family::default(),
            )),
            progress: PerImage::new(to.add(
                "progress_ratio",
                "Progress of the present fetch (storage_class empty) or import, 0 to 1; absent while nothing runs",
                Family::default(),
            )),
            started: PerImage::new(to.add_in(
                Unit::Seconds,
                "started_timestamp",
                "When the present fetch (storage_class empty) or import began, in seconds since 1970; absent while nothing runs",
                Family::default(),
            )),
            attempts: PerImage::new(to.add(
                "attempts",
                "Attempts made at the present fetch (storage_class empty) or import",
                Family::default(),
            )),
            failures: PerImage::new(to.add("failures", "Failed attempts by reason", Family::default())),
            last_failure: PerImage::new(to.add_in(
                Unit::Seconds,
                "last_failure_timestamp",
                "When the present fetch (storage_class empty) or import last failed and why, in seconds since 1970; gone once it succeeds",
                Family::default(),
            )),
            fetched: PerImage::new(to.add_in(Unit::Bytes, "fetched", "Bytes downloaded from upstream", Family::default())),
            artifact: PerImage::new(to.add_in(Unit::Bytes, "artifact", "Size of an image's download", Family::default())),
            golden: PerImage::new(to.add_in(Unit::Bytes, "golden", "Size of a golden disk, by StorageClass", Family::default())),
            fetch_seconds: to.histograms("fetch_duration", "Time of a successful download, by kind of source", long),
            intake_seconds: to.histograms(
                "intake_duration",
                "Time from the begin of a fetch to the verified disk in the spool, by kind of source",
                long,
            ),
            import_seconds: to.histograms(
                "import_duration",
                "Time from the DataVolume of a golden to its end of import, by StorageClass",
                long,
            ),
            list_problems: to.add("list_problems", "Entries of the list that become no golden image, by reason", Family::default()),
        }
    }
}

impl Metrics {
    /// A condition as it now is; the same type's former status and reason go away. `storage_class` is `None` for the image's own.
    pub fn condition(&self, image: &str, storage_class: Option<&str>, r#type: &str, status: Status, reason: Reason) {
        let label = OfCondition {
            image: image.to_owned(),
            storage_class: storage_class.unwrap_or_default().to_owned(),
            r#type: r#type.to_owned(),
            status: status.as_str(),
            reason: reason.as_str(),
        };
        let conditions = &self.images.conditions;
        conditions.retain(image, |other| (&other.storage_class, &other.r#type) != (&label.storage_class, &label.r#type) || *other == label);
        conditions.get(image, label).set(1);
    }

    /// Takes away the conditions of an image that are none any more; `is` says which there are, by class and type.
    pub fn retain_conditions(&self, image: &str, is: impl Fn(Option<&str>, &str) -> bool) {
        self.images
            .conditions
            .retain(image, |label| is(Some(label.storage_class.as_str()).filter(|class| !class.is_empty()), &label.r#type));
    }

    /// Progress of a fetch (`storage_class` is `None`) or import, from 0 to 1.
    pub fn progress(&self, image: &str, storage_class: Option<&str>, ratio: f64) {
        self.images.progress.get(image, target(image, storage_class)).set(ratio.clamp(0.0, 1.0));
    }

    /// When a fetch (`storage_class` is `None`) or import that runs began, in seconds since 1970.
    pub fn started(&self, image: &str, storage_class: Option<&str>, at: f64) {
        self.images.started.get(image, target(image, storage_class)).set(at);
    }

    /// Forgets the progress of a fetch or import that has ended.
    pub fn forget_progress(&self, image: &str, storage_class: Option<&str>) {
        let gone = storage_class.unwrap_or_default();
        self.images.progress.retain(image, |label| label.storage_class != gone);
        self.images.started.retain(image, |label| label.storage_class != gone);
    }

    /// Attempts made so far at a fetch (`storage_class` is `None`) or import.
    pub fn attempts(&self, image: &str, storage_class: Option<&str>, attempts: u32) {
        self.images.attempts.get(image, target(image, storage_class)).set(i64::from(attempts));
    }

    /// A failed attempt.
    pub fn failed(&self, image: &str, reason: Reason) {
        self.images.failures.get(image, OfReason { image: image.to_owned(), reason: reason.as_str() }).inc();
    }

    /// The last failure of a fetch (`storage_class` is `None`) or import that has not succeeded since: why, and when in seconds
    /// since 1970. `None` takes it away.
    pub fn last_failure(&self, image: &str, storage_class: Option<&str>, failure: Option<(Reason, f64)>) {
        let storage_class = storage_class.unwrap_or_default();
        let reason = failure.map(|(reason, _)| reason.as_str());
        self.images.last_failure.retain(image, |label| label.storage_class != storage_class || Some(label.reason) == reason);
        if let (Some(reason), Some((_, at))) = (reason, failure) {
            let label = OfFailure { image: image.to_owned(), storage_class: storage_class.to_owned(), reason };
            self.images.last_failure.get(image, label).set(at);
        }
    }

    /// Bytes that came from upstream.
    pub fn fetched(&self, image: &str, bytes: u64) {
        self.images.fetched.get(image, OfImage { image: image.to_owned() }).inc_by(bytes);
    }

    /// The size of an image's download.
    pub fn artifact_size(&self, image: &str, bytes: u64) {
        self.images.artifact.get(image, OfImage { image: image.to_owned() }).set(whole(bytes));
    }

    /// The size of an image's download as it was last told, 0 where it was not.
    pub(super) fn artifact_bytes(&self, image: &str) -> u64 {
        u64::try_from(self.images.artifact.get(image, OfImage { image: image.to_owned() }).get()).unwrap_or(0)
    }

    /// The size of a golden disk.
    pub fn golden_size(&self, image: &str, storage_class: &str, bytes: u64) {
        self.images.golden.get(image, target(image, Some(storage_class))).set(whole(bytes));
    }

    /// A finished download; `source` is the kind of source (`talosFactory`, `containerDisk`, `http`).
    pub fn fetch_took(&self, source: &'static str, time: Duration) {
        self.images.fetch_seconds.get_or_create(&OfSource { source }).observe(time.as_secs_f64());
    }

    /// A finished intake.
    pub fn intake_took(&self, source: &'static str, time: Duration) {
        self.images.intake_seconds.get_or_create(&OfSource { source }).observe(time.as_secs_f64());
    }

    /// A finished import.
    pub fn import_took(&self, storage_class: &str, time: Duration) {
        self.images.import_seconds.get_or_create(&OfClass { storage_class: storage_class.to_owned() }).observe(time.as_secs_f64());
    }

    /// Begins the times of a StorageClass at zero, so that the first of anything is an increase.
    pub fn expect_class(&self, storage_class: &str) {
        drop(self.images.import_seconds.get_or_create(&OfClass { storage_class: storage_class.to_owned() }));
        self.expect_clones_in(storage_class);
    }

    /// The entries of the list that become nothing now, each by its reason.
    pub fn list_problems(&self, reasons: impl IntoIterator<Item = Reason>) {
        let mut counts = std::collections::BTreeMap::<&'static str, i64>::new();
        for reason in reasons {
            *counts.entry(reason.as_str()).or_default() += 1;
        }
        // Each is set in one step: a scrape in between must not see a trouble that lasts as gone.
        for reason in Reason::ALL.iter().map(|reason| reason.as_str()) {
            let of_it = OfProblem { reason };
            match counts.get(reason) {
                Some(count) => drop(self.images.list_problems.get_or_create(&of_it).set(*count)),
                None => drop(self.images.list_problems.remove(&of_it)),
            }
        }
    }

    /// Forgets everything about an image that is gone.
    pub fn forget_image(&self, image: &str) {
        let Images { conditions, progress, started, attempts, failures, last_failure, fetched, artifact, golden, .. } = &self.images;
        conditions.forget(image);
        progress.forget(image);
        started.forget(image);
        attempts.forget(image);
        failures.forget(image);
        last_failure.forget(image);
        fetched.forget(image);
        artifact.forget(image);
        golden.forget(image);
        self.forget_clones(image);
    }

    /// Forgets the targets of an image that are none any more; `is` says which there are. What concerns the whole image stays.
    pub fn retain_targets(&self, image: &str, is: impl Fn(&str) -> bool) {
        let keep = |class: &str| class.is_empty() || is(class);
        let Images { conditions, progress, started, attempts, last_failure, golden, .. } = &self.images;
        conditions.retain(image, |label| keep(&label.storage_class));
        progress.retain(image, |label| keep(&label.storage_class));
        started.retain(image, |label| keep(&label.storage_class));
        attempts.retain(image, |label| keep(&label.storage_class));
        last_failure.retain(image, |label| keep(&label.storage_class));
        golden.retain(image, |label| keep(&label.storage_class));
    }

    /// Every image that has a series.
    pub fn images(&self) -> std::collections::BTreeSet<String> {
        let mut images = self.images.conditions.images();
        images.extend(self.images.fetched.images());
        images.extend(self.clone_images());
        images
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

impl From<&str> for Status {
    fn from(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

fn target(image: &str, storage_class: Option<&str>) -> OfTarget {
    OfTarget { image: image.to_owned(), storage_class: storage_class.unwrap_or_default().to_owned() }
}

fn whole(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
