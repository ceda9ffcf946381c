//! What is counted of clones, of those who need goldens, and of deletions.

use super::{Metrics, images::OfClass, images::OfImage, images::long, labels, register::Registrar, series::PerImage};
use crate::rules::{clone::Rule, consumers::ConsumerKind};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Unit,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

labels! {
    OfConsumer { image: String, kind: &'static str }
    OfCause { image: String, cause: &'static str }
    OfMark { outcome: &'static str }
    OfVerdict { webhook: &'static str, verdict: &'static str }
    OfRule { rule: &'static str }
    OfWebhook { webhook: &'static str }
}

/// From half a millisecond to five seconds, where the API server has given up: what a verdict takes.
fn quick() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0])
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
    const ALL: [Self; 3] = [Self::Added, Self::Corrected, Self::Failed];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Corrected => "corrected",
            Self::Failed => "failed",
        }
    }
}

/// The families of clones.
pub(super) struct Clones {
    reviews: Family<OfVerdict, Counter>,
    review_seconds: Family<OfWebhook, Histogram, fn() -> Histogram>,
    ready: Gauge,
    webhooks_missing: Gauge,
    rules: Family<OfRule, Counter>,
    clone_seconds: Family<OfClass, Histogram, fn() -> Histogram>,
    imports_avoided: PerImage<OfImage, Counter>,
    bytes_avoided: PerImage<OfImage, Counter>,
    network_copies: PerImage<OfCause, Gauge>,
    forced: PerImage<OfImage, Counter>,
    stuck: PerImage<OfCause, Gauge>,
    consumers: PerImage<OfConsumer, Gauge>,
    blockers: PerImage<OfImage, Gauge>,
    marks: Family<OfMark, Counter>,
    /// Disks that were cloned in storage, by image, when they were last counted.
    cloned: Mutex<HashMap<String, usize>>,
}

impl Clones {
    pub fn new(to: &mut Registrar<'_>) -> Self {
        let clones = Self {
            reviews: to.add(
                "admission_reviews",
                "Questions of the API server, by webhook and verdict; dry runs count too",
                Family::default(),
            ),
            review_seconds: to.histograms(
                "admission_review_duration",
                "Time from the question's first byte to the answer, by webhook",
                quick,
            ),
            ready: to.add(
                "admission_ready",
                "1 while this process can judge clones: it has its certificate, and knows all that verdicts depend on",
                Gauge::default(),
            ),
            webhooks_missing: to.add(
                "webhooks_missing",
                "Webhooks that admission answers and the API server is not told of, as the leader sees it: it asks nobody, and nothing is guarded",
                Gauge::default(),
            ),
            rules: to.add(
                "clone_rules_broken",
                "Refused clones by the rule that was broken; one clone may break several",
                Family::default(),
            ),
            clone_seconds: to.histograms(
                "clone_duration",
                "Time of a clone made by storage, from the creation of the disk, or from when its golden could be cloned, to its end; by StorageClass",
                long,
            ),
            imports_avoided: PerImage::new(to.add(
                "imports_avoided",
                "Disks that were cloned from a golden while this process led, and would have been imported one by one",
                Family::default(),
            )),
            bytes_avoided: PerImage::new(to.add_in(
                Unit::Bytes,
                "avoided",
                "Bytes that were not downloaded because a disk was cloned: the size of the image's download for each clone",
                Family::default(),
            )),
            network_copies: PerImage::new(to.add(
                "network_copies",
                "Disks that were copied over the network instead of being cloned in storage, by cause",
                Family::default(),
            )),
            forced: PerImage::new(to.add(
                "forced_retires",
                "Times a golden was retired in spite of what needs it (force-retire)",
                Family::default(),
            )),
            stuck: PerImage::new(to.add(
                "stuck_clones",
                "Clones that have not moved for longer than their deadline, by cause; image is empty for a golden without one",
                Family::default(),
            )),
            consumers: PerImage::new(to.add(
                "consumers",
                "Objects that clone an image's goldens or are set to, by kind",
                Family::default(),
            )),
            blockers: PerImage::new(to.add(
                "blocking_consumers",
                "Consumers that keep an image's goldens from being deleted",
                Family::default(),
            )),
            marks: to.add("consumer_marks", "Marks written on consumers' disks, by outcome", Family::default()),
            cloned: Mutex::default(),
        };
        // From zero, so that the first one is an increase.
        for rule in Rule::ALL {
            drop(clones.rules.get_or_create(&OfRule { rule: rule.as_str() }));
        }
        for outcome in MarkOutcome::ALL {
            drop(clones.marks.get_or_create(&OfMark { outcome: outcome.as_str() }));
        }
        clones
    }
}

impl Metrics {
    /// A question of the API server and its answer.
    pub fn judged(&self, webhook: &'static str, verdict: &'static str, time: Duration) {
        self.clones.reviews.get_or_create(&OfVerdict { webhook, verdict }).inc();
        self.clones.review_seconds.get_or_create(&OfWebhook { webhook }).observe(time.as_secs_f64());
    }

    /// Whether this process can judge clones; call it from [`Self::on_scrape`].
    pub fn admission_ready(&self, is_ready: bool) {
        self.clones.ready.set(i64::from(is_ready));
    }

    /// How many of our webhooks are in no configuration; zero in a process that does not lead.
    pub fn webhooks_missing(&self, number: usize) {
        self.clones.webhooks_missing.set(count(number));
    }

    /// Begins to count questions at zero, so that the first of any is an increase.
    pub fn expect_reviews(&self, webhooks: impl IntoIterator<Item = &'static str>, verdicts: [&'static str; 3]) {
        for webhook in webhooks {
            drop(self.clones.review_seconds.get_or_create(&OfWebhook { webhook }));
            for verdict in verdicts {
                drop(self.clones.reviews.get_or_create(&OfVerdict { webhook, verdict }));
            }
        }
    }

    /// The rules that a refused clone broke, each counted once.
    pub fn rules_broken(&self, rules: impl IntoIterator<Item = Rule>) {
        for rule in rules.into_iter().collect::<BTreeSet<_>>() {
            self.clones.rules.get_or_create(&OfRule { rule: rule.as_str() }).inc();
        }
    }

    /// A clone in this class has ended well.
    pub fn clone_took(&self, storage_class: &str, time: Duration) {
        self.clones.clone_seconds.get_or_create(&OfClass { storage_class: storage_class.to_owned() }).observe(time.as_secs_f64());
    }

    /// A golden was retired in spite of its blockers.
    pub fn forced_retire(&self, image: &str) {
        self.clones.forced.get(image, of(image)).inc();
    }

    /// All stuck clones by image and cause; `image` is empty for a golden without one.
    pub fn stuck_clones(&self, clones: &BTreeMap<(&str, &'static str), usize>) {
        let stuck = &self.clones.stuck;
        for image in stuck.images() {
            stuck.retain(&image, |label| clones.contains_key(&(label.image.as_str(), label.cause)));
        }
        for ((image, cause), number) in clones {
            stuck.get(image, OfCause { image: (*image).to_owned(), cause }).set(count(*number));
        }
    }

    /// An image's consumers by kind, how many of them block, and its network copies by cause: what there is now.
    ///
    /// A disk more than at the last call, less those that were copied, is an import avoided.
    pub fn consumers(&self, image: &str, kinds: &[(&'static str, usize)], blocking: usize, copied: &[(&'static str, usize)]) {
        let Clones { consumers, network_copies, blockers, .. } = &self.clones;
        consumers.retain(image, |label| kinds.iter().any(|(kind, _)| *kind == label.kind));
        network_copies.retain(image, |label| copied.iter().any(|(cause, _)| *cause == label.cause));
        for (kind, number) in kinds {
            consumers.get(image, OfConsumer { image: image.to_owned(), kind }).set(count(*number));
        }
        for (cause, number) in copied {
            network_copies.get(image, OfCause { image: image.to_owned(), cause }).set(count(*number));
        }
        blockers.get(image, of(image)).set(count(blocking));
        let disks: usize = kinds.iter().filter(|(kind, _)| *kind == ConsumerKind::Disk.as_str()).map(|(_, number)| number).sum();
        self.avoided(image, disks.saturating_sub(copied.iter().map(|(_, number)| number).sum()));
    }

    /// Counts what is more than last time. The first count says what there was before this process led.
    fn avoided(&self, image: &str, cloned: usize) {
        let before = self.clones.cloned.lock().unwrap_or_else(PoisonError::into_inner).insert(image.to_owned(), cloned);
        let more = u64::try_from(before.map_or(0, |before| cloned.saturating_sub(before))).unwrap_or(0);
        self.clones.imports_avoided.get(image, of(image)).inc_by(more);
        self.clones.bytes_avoided.get(image, of(image)).inc_by(more.saturating_mul(self.artifact_bytes(image)));
    }

    /// Forgets an image's consumers: somebody else counts them now.
    pub fn forget_consumers(&self, image: &str) {
        let Clones { consumers, network_copies, blockers, cloned, .. } = &self.clones;
        consumers.forget(image);
        network_copies.forget(image);
        blockers.forget(image);
        cloned.lock().unwrap_or_else(PoisonError::into_inner).remove(image);
    }

    /// A disk whose marks were written, or could not be.
    pub fn marked(&self, outcome: MarkOutcome) {
        self.clones.marks.get_or_create(&OfMark { outcome: outcome.as_str() }).inc();
    }

    /// Begins the image's counters at zero, so that the first of anything is an increase.
    pub fn expect_image(&self, image: &str) {
        for counter in [&self.clones.imports_avoided, &self.clones.bytes_avoided, &self.clones.forced] {
            counter.get(image, of(image));
        }
    }

    pub(super) fn expect_clones_in(&self, storage_class: &str) {
        drop(self.clones.clone_seconds.get_or_create(&OfClass { storage_class: storage_class.to_owned() }));
    }

    pub(super) fn forget_clones(&self, image: &str) {
        let Clones { imports_avoided, bytes_avoided, forced, stuck, .. } = &self.clones;
        imports_avoided.forget(image);
        bytes_avoided.forget(image);
        forced.forget(image);
        stuck.forget(image);
        self.forget_consumers(image);
    }

    pub(super) fn clone_images(&self) -> BTreeSet<String> {
        let mut images = self.clones.imports_avoided.images();
        images.extend(self.clones.blockers.images());
        images
    }
}

fn of(image: &str) -> OfImage {
    OfImage { image: image.to_owned() }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
