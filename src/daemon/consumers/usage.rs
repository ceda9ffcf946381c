//! How many use each image: counted from the ledger when that changes, written to status by the controller, at most once an interval.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use tokio_util::sync::CancellationToken;

use super::{ConsumerSettings, ended, rest};
use crate::{
    api::GoldenImage,
    daemon::{controller::Shared, index::Index},
    foreign::Claim,
    golden::{Goldens, Standing, UsageView, goldens_of, observe},
    model::ClassName,
    rules::{class::Classes, clone::Known},
    world::{
        Cluster,
        ledger::{Counts, Storage},
    },
};

/// How long the ledger may be unknown before status says so; a relist takes less.
const PATIENCE: Duration = Duration::from_secs(300);
/// The share of one core that counting may take: a twentieth.
const REST: u32 = 20;

/// What the controller writes of each image.
pub struct Usage {
    settings: ConsumerSettings,
    published: Mutex<HashMap<String, Published>>,
    unknown: Mutex<Option<(Instant, String)>>,
}

/// What of the cluster says which goldens are an image's, and what their clones depend on: read once for all images.
pub struct Inventory {
    /// The StorageClasses.
    pub classes: Classes,
    default: Option<ClassName>,
    claims: Vec<Arc<Claim>>,
}

impl Inventory {
    /// As the watches have it now.
    pub fn of(cluster: &Cluster) -> Self {
        let classes = observe::classes(cluster);
        Self { default: observe::default_class(&classes), classes, claims: cluster.claims.all() }
    }

    /// What stands in the catalog.
    pub fn standing(&self, catalog: &str) -> Standing<'_> {
        Standing::of(self.claims.iter().map(|claim| &claim.metadata), catalog)
    }

    /// The goldens of an image, whoever else would make one of the name later.
    pub fn goldens(&self, image: &GoldenImage, standing: &Standing<'_>, index: &Index) -> Goldens {
        let name = image.name_any();
        goldens_of(image, standing, self.default.as_ref(), |golden| index.owner_before(&name, golden).is_some())
    }
}

struct Published {
    counts: Counts,
    at: Instant,
}

/// What is to be done about an image's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Status says them already.
    Nothing,
    /// They are to be counted again then: what comes meanwhile is one write.
    Later(Instant),
    /// They are to be written.
    Now,
}

/// At most one write an interval, and none without a change.
fn turn(published: Option<&Published>, counts: &Counts, interval: Duration, now: Instant) -> Turn {
    match published {
        Some(known) if known.counts == *counts => Turn::Nothing,
        Some(known) if now < known.at + interval => Turn::Later(known.at + interval),
        _ => Turn::Now,
    }
}

impl Usage {
    /// Nothing is counted yet.
    pub fn new(settings: ConsumerSettings) -> Self {
        Self { settings, published: Mutex::default(), unknown: Mutex::default() }
    }

    /// The settings.
    pub const fn settings(&self) -> &ConsumerSettings {
        &self.settings
    }

    /// What tells, now, which finished clones depend on their golden.
    pub fn storage<'a>(&'a self, classes: &'a Classes) -> Storage<'a> {
        Storage { classes, independent: &self.settings.independent_classes, now: Timestamp::now().as_second() }
    }

    fn published(&self) -> MutexGuard<'_, HashMap<String, Published>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was written in a former term: others have led since, and what they wrote is another thing.
    fn begin_term(&self) {
        self.published().clear();
    }

    /// What status is to say of an image. One that was never counted is counted now, so that its first status has its counts.
    pub fn view(&self, shared: &Shared, image: &GoldenImage) -> UsageView {
        if let Some(why) = self.long_unknown() {
            return UsageView::Unknown(why);
        }
        let uid = image.uid().unwrap_or_default();
        if let Some(known) = self.published().get(&uid) {
            return UsageView::Counted(known.counts.clone());
        }
        let inventory = Inventory::of(&shared.cluster);
        match self.count(shared, image, &inventory, &inventory.standing(&shared.catalog)) {
            Ok(counts) => {
                self.published().insert(uid, Published { counts: counts.clone(), at: Instant::now() });
                UsageView::Counted(counts)
            }
            Err(_) => UsageView::NotCounted,
        }
    }

    fn count(&self, shared: &Shared, image: &GoldenImage, inventory: &Inventory, standing: &Standing<'_>) -> Known<Counts> {
        let storage = self.storage(&inventory.classes);
        let goldens = inventory.goldens(image, standing, &shared.index);
        shared.consumers.read().consumers_of(goldens.keys(), storage).map(|consumers| Counts::of(&consumers))
    }

    /// Why the ledger has not been known for long.
    fn long_unknown(&self) -> Option<String> {
        let unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        unknown.as_ref().filter(|(since, _)| since.elapsed() > PATIENCE).map(|(_, why)| why.clone())
    }

    /// Remembers whether the ledger is known; gives whether what status says of that changes.
    fn note(&self, known: Known<()>) -> bool {
        let before = self.long_unknown().is_some();
        {
            let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
            match (known, &mut *unknown) {
                (Ok(()), known) => *known = None,
                (Err(why), Some((_, text))) => *text = why.to_string(),
                (Err(why), none) => *none = Some((Instant::now(), why.to_string())),
            }
        }
        before != self.long_unknown().is_some()
    }

    /// Counts one image; publishes what changed where the last writing is long enough ago. Gives when to count again.
    fn recount(&self, shared: &Shared, image: &GoldenImage, inventory: &Inventory, standing: &Standing<'_>) -> Option<Instant> {
        let (uid, name) = (image.uid()?, image.name_any());
        let counts = self.count(shared, image, inventory, standing).ok()?;
        let by_kind: Vec<(&'static str, usize)> = counts.by_kind.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        let copied: Vec<(&'static str, usize)> = counts.copied.iter().map(|(cause, count)| (cause.as_str(), *count)).collect();
        shared.metrics.consumers(&name, &by_kind, counts.blocking, &copied);
        let mut published = self.published();
        let now = Instant::now();
        match turn(published.get(&uid), &counts, self.settings.interval, now) {
            Turn::Nothing => None,
            Turn::Later(at) => Some(at),
            Turn::Now => {
                published.insert(uid, Published { counts, at: now });
                drop(published);
                shared.queue.add(name);
                None
            }
        }
    }
}

/// Counts whenever the ledger changes, and once an interval, because goldens get their names meanwhile.
pub async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let usage = Arc::clone(&shared.usage);
    usage.begin_term();
    let mut changes = shared.consumers.changes();
    shared.consumers.follow_ends(true);
    loop {
        changes.mark_unchanged();
        ended::tell(&shared);
        let began = Instant::now();
        let known = shared.consumers.known();
        let is_known = known.is_ok();
        let tell_all = usage.note(known);
        let images = shared.cluster.images.all();
        let inventory = Inventory::of(&shared.cluster);
        let standing = inventory.standing(&shared.catalog);
        let mut next = Instant::now() + usage.settings.interval;
        for image in images.iter().filter(|_| is_known) {
            next = usage.recount(&shared, image, &inventory, &standing).map_or(next, |due| next.min(due));
            // Watches and reconciles go on in between.
            tokio::task::yield_now().await;
        }
        if tell_all {
            images.iter().for_each(|image| shared.queue.add(image.name_any()));
        }
        let there: std::collections::HashSet<String> = images.iter().filter_map(|image| image.uid()).collect();
        usage.published().retain(|uid, _| there.contains(uid));
        if !rest(&stop, (began.elapsed() * REST).max(Duration::from_millis(500))).await {
            break;
        }
        tokio::select! {
            () = stop.cancelled() => break,
            _ = changes.changed() => {}
            () = tokio::time::sleep_until(next.into()) => {}
        }
    }
    shared.consumers.follow_ends(false);
    // Whoever leads now tells them.
    shared.cluster.images.all().iter().for_each(|image| shared.metrics.forget_consumers(&image.name_any()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thousand disks in a minute are two writes: the first, and what they came to.
    #[test]
    fn counts_are_written_at_most_once_an_interval() {
        let (interval, began) = (Duration::from_secs(60), Instant::now());
        let counts = |clones| Counts { clones, ..Counts::default() };
        let mut published: Option<Published> = None;
        let mut writes = Vec::new();
        for second in 0..180_u32 {
            let (now, clones) = (began + Duration::from_secs(second.into()), usize::try_from(second.min(59)).expect("small") * 17);
            match turn(published.as_ref(), &counts(clones), interval, now) {
                Turn::Now => {
                    published = Some(Published { counts: counts(clones), at: now });
                    writes.push((second, clones));
                }
                Turn::Later(at) => assert_eq!(at, began + interval, "asked again when the interval is over, not before"),
                Turn::Nothing => {}
            }
        }
        assert_eq!(writes, [(0, 0), (60, 59 * 17)]);
    }
}
