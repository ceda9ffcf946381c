//! Who may begin now: fetches and imports in their turn (R11), and no import into room that another one needs (R10).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{MutexGuard, PoisonError},
};

use k8s_openapi::jiff::Timestamp;

use super::{Term, is_importing};
use crate::{
    api::GoldenImageStatus,
    daemon::wake,
    golden::{Action, Decision, FetchView, Observed, Permits, Turn, begun, decide},
    model::GoldenName,
    rules::quota::Need,
};

/// What the imports take that have begun, by the image's UID and the golden: those on record, and those that were decided upon and whose
/// status is on its way.
pub(super) type Reserved = BTreeMap<String, BTreeMap<GoldenName, Need>>;

impl Term {
    fn reserved(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides, with the turns that the image gets. One image at a time from what is kept for others to what is kept for this one: two that
    /// see the same room would both take it.
    pub(super) fn decide_in_turn(&self, observed: &mut Observed, uid: &str, created: Timestamp, now: Timestamp) -> Decision {
        let (cluster, catalog) = (&self.shared.cluster, &self.shared.catalog);
        // Our own last write may be newer than the store.
        let standing: BTreeSet<GoldenName> =
            observed.views().filter(|view| view.golden.volume.is_some()).filter_map(|view| view.name.clone()).collect();
        let stands = |golden: &GoldenName| standing.contains(golden) || cluster.volumes.get(catalog, golden.as_str()).is_some();
        let mut reserved = self.reserved();
        let former = reserved.get(uid).cloned().unwrap_or_default();
        let mut known = begun::needs(cluster, catalog, &observed.status, &former, |_| false);
        known.retain(|golden, _| former.contains_key(golden) || stands(golden));
        if observed.targets.iter().any(|target| !target.quotas.is_empty()) {
            let others = reserved.iter().filter(|(other, _)| other.as_str() != uid).flat_map(|(_, needs)| needs);
            observed.begun = begun::seen(cluster, catalog, others.chain(&known));
        }
        let decision = self.with_turns(observed, uid, created, now);
        // Whether it is to be made now, and as a copy.
        let ordered = |golden: &GoldenName| {
            decision.after.iter().find_map(|action| match action {
                Action::CreateVolume(order) if order.golden == *golden => Some(order.copies.is_some()),
                _ => None,
            })
        };
        let mut kept = begun::needs(cluster, catalog, &decision.status, &known, |golden| ordered(golden) == Some(true));
        // One that was begun and stands still before anything is there, as while its image is suspended, keeps no room from others.
        kept.retain(|golden, _| stands(golden) || ordered(golden).is_some());
        let has_ended = former.keys().any(|golden| !kept.contains_key(golden));
        match kept.is_empty() {
            true => reserved.remove(uid),
            false => reserved.insert(uid.to_owned(), kept),
        };
        drop(reserved);
        if has_ended {
            self.wake_for_room();
        }
        decision
    }

    /// Turns are asked for with what was wanted without one; with the turn the decision is made again.
    fn with_turns(&self, observed: &mut Observed, uid: &str, created: Timestamp, now: Timestamp) -> Decision {
        let running = observed.targets.iter().filter(|target| is_importing(target, &observed.status)).count();
        // Of a target that was taken out nothing begins any more; what runs is in storage's way all the same.
        let of_leaving = observed.leaving.iter().filter(|leaving| is_importing(&leaving.target, &observed.status)).count();
        let fetching = matches!(observed.fetch, FetchView::Running { .. });
        let mut decision = decide(observed, &self.shared.settings, now);
        for _ in 0..2 {
            let permits = {
                let mut pacers = self.pacers();
                let wants = decision.wants;
                let turn = |failures| Turn { failures, created };
                Permits {
                    fetch: pacers.fetch.ask(uid, turn(wants.fetch_failures), usize::from(wants.fetch), usize::from(fetching)) > 0,
                    imports: pacers
                        .import
                        .ask(uid, turn(wants.import_failures), wants.imports + of_leaving, running + of_leaving)
                        .saturating_sub(of_leaving),
                }
            };
            if permits == observed.permits {
                break;
            }
            observed.permits = permits;
            decision = decide(observed, &self.shared.settings, now);
        }
        decision
    }

    /// Keeps the room of the imports that a former term began.
    pub(super) fn keep_room(&self, uid: &str, status: &GoldenImageStatus) {
        let needs = begun::needs(&self.shared.cluster, &self.shared.catalog, status, &BTreeMap::new(), |_| false);
        if !needs.is_empty() {
            self.reserved().insert(uid.to_owned(), needs);
        }
    }

    /// Nothing of this image is begun any more.
    pub(super) fn give_room_back(&self, uid: &str) {
        let former = self.reserved().remove(uid);
        if former.is_some() {
            self.wake_for_room();
        }
    }

    /// Wakes those who wait for room in a quota: what was kept and never taken changes no quota.
    fn wake_for_room(&self) {
        wake::waiting_for_quota(&self.shared.cluster).into_iter().for_each(|name| self.shared.queue.add(name));
    }
}
