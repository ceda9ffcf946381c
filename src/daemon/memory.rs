//! What a leader remembers of each image between reconciles: only what can be found again, or need not be.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::tried::Tried;
use crate::{
    api::GoldenImage,
    golden::{DataVolumeView, GrantView, SpooledView, UpstreamView},
    model::GoldenName,
    rules::Reason,
    spool::{Grant, Lease},
};

/// Memory by GoldenImage UID.
#[derive(Default, Clone)]
pub struct Memory {
    images: Arc<Mutex<HashMap<String, ImageMemory>>>,
}

/// What is remembered of one image.
#[derive(Default)]
pub struct ImageMemory {
    /// The object as the API server last answered our write: newer than the watch may be.
    written: Option<GoldenImage>,
    /// Failures in a row, for the backoff.
    pub failures: u32,
    /// Keeps the verified disk in the spool while goldens are to be made from it.
    pub disk: Option<Lease>,
    /// The disk that is kept so, as the spool last described it.
    pub spooled: Option<SpooledView>,
    /// Upstream's last answer about other bytes.
    pub upstream: Option<UpstreamView>,
    /// Why the API server, when last asked, did not take a write on the object itself.
    pub refused: Option<(Reason, String)>,
    /// When it was told that the spool's volume keeps it, and is told so again.
    spool_told: Tried,
    goldens: HashMap<GoldenName, GoldenMemory>,
}

/// What is remembered of one golden.
#[derive(Debug, Default)]
pub struct GoldenMemory {
    /// What the spool was told.
    pub grant: GrantView,
    /// The attempt, restart count and stretch without a move for which the header Secret was written.
    pub headers_written: Option<(i32, i64, u64)>,
    /// The header Secret's UID, while it stands.
    secret: Option<String>,
    /// Why the API server, when last asked, did not take an object of this golden.
    pub refused: Option<(Reason, String)>,
    /// Why the API server, when last asked, did not let the header Secret go.
    pub undeleted: Option<(Reason, String)>,
    /// A DataVolume we created that the watch may not show yet.
    created: Option<(Instant, DataVolumeView)>,
    /// The UID of a DataVolume we deleted that the watch may still show as well.
    deleted: Option<String>,
    /// How far its import has got.
    moved: Option<Moved>,
}

/// How far an import has got, by the clock that does not jump.
#[derive(Debug)]
struct Moved {
    /// The DataVolume's UID.
    volume: String,
    /// The most that it has reached, in percent.
    best: u8,
    /// When it did, or when this process first saw it.
    since: Instant,
    /// For how long it had stood still by then.
    before: Duration,
}

/// How often it is told that the spool's volume keeps an image. Seldom enough that its other Events are not too many beside it, and often
/// enough that there is one for as long as it lasts.
const TOLD_OF_SPOOL: Duration = Duration::from_secs(15 * 60);

/// How long the watch is given to show what was created. After that a missing DataVolume is missing.
const CATCH_UP: Duration = Duration::from_secs(30);

impl Memory {
    /// Works with the memory of one image.
    pub fn with<R>(&self, uid: &str, work: impl FnOnce(&mut ImageMemory) -> R) -> R {
        work(self.lock().entry(uid.to_owned()).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, ImageMemory>> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets an image.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// What the spool was told to let this image's importers pull.
    pub fn grants(&self, uid: &str) -> Vec<Grant> {
        let images = self.lock();
        let goldens = images.get(uid).map(|image| &image.goldens).into_iter().flatten();
        goldens
            .filter_map(|(golden, memory)| match memory.grant {
                GrantView::Serving { disk, .. } => Some(Grant { uid: uid.to_owned(), golden: golden.clone(), disk }),
                GrantView::None | GrantView::Refused => None,
            })
            .collect()
    }

    /// How many images failed at their last reconcile.
    pub fn in_backoff(&self) -> usize {
        self.lock().values().filter(|image| image.failures > 0).count()
    }
}

impl ImageMemory {
    /// The newer of what the watch shows and what our last write was answered with.
    ///
    /// Both are versions of one object from one API server, whose versions are numbers that grow (Kubernetes API concepts,
    /// "Resource versions"); one that is no number counts as old.
    pub fn newest(&mut self, shown: &GoldenImage) -> GoldenImage {
        let version = |object: &GoldenImage| object.resource_version().and_then(|version| version.parse::<u128>().ok());
        match &self.written {
            Some(written) if version(written) > version(shown) => written.clone(),
            _ => {
                self.written = None;
                shown.clone()
            }
        }
    }

    /// A step ended as it should.
    pub fn did_well(&mut self) {
        (self.failures, self.spool_told) = (0, Tried::default());
    }

    /// The spool's volume kept it from being looked at. Gives whether that is to be told now, whatever failed before.
    pub fn is_to_tell_of_spool(&mut self, now: Instant) -> bool {
        self.spool_told.comes_due(now, TOLD_OF_SPOOL)
    }

    /// Remembers what the API server answered to a write.
    pub fn wrote(&mut self, object: GoldenImage) {
        self.written = Some(object);
    }

    /// The memory of one golden.
    pub fn golden(&mut self, golden: &GoldenName) -> &mut GoldenMemory {
        self.goldens.entry(golden.clone()).or_default()
    }
}

impl GoldenMemory {
    /// Remembers that the header Secret with this UID was written for an attempt, restart count and stretch without a move.
    pub fn headers_written(&mut self, secret: String, mark: (i32, i64, u64)) {
        self.headers_written = Some(mark);
        self.secret = Some(secret).filter(|uid| !uid.is_empty());
    }

    /// The header Secret's UID, which is not remembered any more.
    pub fn take_secret(&mut self) -> Option<String> {
        self.secret.take()
    }

    /// Remembers a DataVolume that was just created.
    pub fn created(&mut self, volume: DataVolumeView) {
        self.deleted = None;
        self.created = Some((Instant::now(), volume));
    }

    /// Remembers that a DataVolume was just deleted.
    pub fn deleted(&mut self, uid: String) {
        self.created = None;
        self.deleted = Some(uid);
    }

    /// What there is, where our own last step is newer than the watch.
    pub fn overlay(&mut self, shown: Option<DataVolumeView>) -> Option<DataVolumeView> {
        match shown {
            Some(mut volume) => {
                if self.deleted.as_deref() == Some(volume.uid.as_str()) {
                    volume.terminating = true;
                }
                self.created = None;
                Some(volume)
            }
            None => {
                if let Some((at, volume)) = &self.created
                    && at.elapsed() < CATCH_UP
                {
                    return Some(volume.clone());
                }
                self.created = None;
                None
            }
        }
    }

    /// The spool itself has not got the disk that this import pulls: its time without a move begins when it has.
    pub fn waits_for_us(&mut self) {
        if let Some(moved) = &mut self.moved {
            (moved.since, moved.before) = (Instant::now(), Duration::ZERO);
        }
    }

    /// When the import of this DataVolume last got further than ever before. `stood` is for how long it had not, when it is seen
    /// for the first time.
    pub fn moved(&mut self, volume: &str, percent: u8, now: Timestamp, stood: Duration) -> Timestamp {
        let seen = match self.moved.take() {
            Some(seen) if seen.volume == volume && seen.best >= percent => seen,
            former => {
                let is_new = former.is_none_or(|former| former.volume != volume);
                let before = if is_new { stood } else { Duration::ZERO };
                Moved { volume: volume.to_owned(), best: percent, since: Instant::now(), before }
            }
        };
        let ago = k8s_openapi::jiff::SignedDuration::try_from(seen.since.elapsed().saturating_add(seen.before)).unwrap_or_default();
        self.moved = Some(seen);
        now.checked_sub(ago).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::{GoldenMemory, ImageMemory, Memory};
    use crate::{api::GoldenImage, golden::DataVolumeView};

    fn version(version: &str) -> GoldenImage {
        serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage",
            "metadata": { "name": "a", "resourceVersion": version }, "spec": { "source": {} },
        }))
        .expect("object")
    }

    /// An Event an hour old is gone, and one a minute would leave no room for others about the image.
    #[test]
    fn a_volume_that_hangs_is_told_whatever_failed_before_and_now_and_then() {
        let now = Instant::now();
        let mut memory = ImageMemory { failures: 3, ..ImageMemory::default() };
        let told = |memory: &mut ImageMemory, minutes: std::ops::Range<u64>| -> Vec<u64> {
            minutes.filter(|minute| memory.is_to_tell_of_spool(now + Duration::from_secs(60 * minute))).collect()
        };
        assert_eq!(told(&mut memory, 0..40), [0, 15, 30]);
        memory.did_well();
        assert_eq!((told(&mut memory, 40..41), memory.failures), (vec![40], 0), "it is news again");
    }

    #[test]
    fn the_newer_of_watch_and_write_counts() {
        let mut memory = ImageMemory::default();
        assert_eq!(memory.newest(&version("9")), version("9"));
        memory.wrote(version("10"));
        assert_eq!(memory.newest(&version("9")), version("10"));
        assert_eq!(memory.newest(&version("10")), version("10"));
        assert_eq!(memory.newest(&version("9")), version("9"), "what caught up once is not remembered for ever");
    }

    /// Where we have to fetch the disk again ourselves, the importer is not blamed for standing still.
    #[test]
    fn an_import_that_waits_for_us_does_not_stand_still() {
        let mut memory = GoldenMemory::default();
        let now = Timestamp::from_second(1_796_000_000).expect("time");
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let still = |moved: Timestamp| now.duration_since(moved).as_mins();
        memory.waits_for_us();
        assert_eq!(still(memory.moved("dv", 30, now, minutes(7))), 7);
        memory.waits_for_us();
        assert_eq!(still(memory.moved("dv", 30, now, minutes(7))), 0);
    }

    /// A restart does not begin the no-progress clock anew; an import that gets further, or another one, does.
    #[test]
    fn an_import_that_stood_still_before_we_came_stands_still_since_then() {
        let mut memory = GoldenMemory::default();
        let now = Timestamp::from_second(1_796_000_000).expect("time");
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let still = |moved: Timestamp| now.duration_since(moved).as_mins();
        assert_eq!(still(memory.moved("dv", 30, now, minutes(7))), 7);
        assert_eq!(still(memory.moved("dv", 30, now, minutes(9))), 7, "counted once, when it is first seen");
        assert_eq!(still(memory.moved("dv", 20, now, minutes(9))), 7, "a crash loop that begins at zero again does not move");
        assert_eq!(still(memory.moved("dv", 31, now, minutes(9))), 0);
        assert_eq!(still(memory.moved("dv", 31, now, minutes(9))), 0);
        assert_eq!(still(memory.moved("another", 0, now, Duration::ZERO)), 0);
    }

    #[test]
    fn our_own_last_step_is_seen_before_the_watch_shows_it() {
        let memory = Memory::default();
        let golden = "g".parse().expect("name");
        let volume = DataVolumeView { uid: "1".into(), ..DataVolumeView::default() };
        memory.with("uid", |image| {
            let golden = image.golden(&golden);
            assert_eq!(golden.overlay(None), None);
            golden.created(volume.clone());
            assert_eq!(golden.overlay(None), Some(volume.clone()));
            assert!(!golden.overlay(Some(volume.clone())).expect("volume").terminating);
            golden.deleted("1".into());
            assert!(golden.overlay(Some(volume.clone())).expect("volume").terminating);
            assert_eq!(golden.overlay(None), None);
        });
    }
}
