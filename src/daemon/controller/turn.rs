//! Who may begin now: fetches and imports in their turn (R11), and no import into room that another one needs (R10).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{Term, is_importing};
use crate::{
    api::{DiskStatus, GoldenImageStatus},
    daemon::wake,
    golden::{Action, Decision, FetchView, Observed, ObservedTarget, Pacer, Permits, Turn, Wants, begun, decide, patience},
    model::GoldenName,
    rules::quota::Need,
};

/// What the imports take that have begun, by the image's UID and the golden: those on record, and those that were decided upon and whose
/// status is on its way.
pub(super) type Reserved = BTreeMap<String, BTreeMap<GoldenName, Need>>;

/// Until when an import that runs and that nobody works on, because its image is not accepted any more or its target was taken out, is in
/// the way of others if it moves no more: for as long as one that is worked on would be given to move. `None` where it has not been seen
/// yet: it is in their way until then.
fn keeps_its_turn_until(target: &ObservedTarget, disk: Option<&DiskStatus>, deadline: Duration) -> Option<Timestamp> {
    let (golden, moved) = (&target.golden, target.golden.moved?);
    let patience = golden.volume.as_ref().map_or(deadline, |volume| patience(deadline, disk, volume, golden.is_downloaded));
    Some(moved.checked_add(SignedDuration::try_from(patience).unwrap_or(SignedDuration::MAX)).unwrap_or(Timestamp::MAX))
}

/// How many imports of an image may begin. `running` is how many CDI is at work on for its targets, those among them that this decision does
/// not work on too; `of_leaving` is how many for targets that were taken out. What runs has its turn already, and gives it to none that waits.
fn may_begin(pacer: &mut Pacer, uid: &str, turn: Turn, wants: Wants, running: usize, of_leaving: usize) -> usize {
    let under_way = wants.running.max(running) + of_leaving;
    pacer.ask(uid, turn, under_way + wants.waiting(), running + of_leaving).saturating_sub(under_way)
}

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
        let deadline = self.shared.settings.import_deadline;
        let until = |target: &ObservedTarget| keeps_its_turn_until(target, observed.status.disk.as_ref(), deadline);
        let keeps = |target: &&ObservedTarget| is_importing(target, &observed.status) && until(target).is_none_or(|until| now < until);
        let running = observed.targets.iter().filter(keeps).count();
        let ends = observed.targets.iter().filter(keeps).filter_map(until).min();
        // Of a target that was taken out nothing begins any more; what runs is in storage's way all the same.
        let of_leaving = observed.leaving.iter().map(|leaving| &leaving.target).filter(keeps).count();
        let fetching = matches!(observed.fetch, FetchView::Running { .. });
        let mut decision = decide(observed, &self.shared.settings, now);
        for _ in 0..2 {
            let permits = {
                let mut pacers = self.pacers();
                let wants = decision.wants;
                let turn = |failures| Turn { failures, created };
                Permits {
                    fetch: pacers.fetch.ask(uid, turn(wants.fetch_failures), usize::from(wants.fetch), usize::from(fetching)) > 0,
                    imports: may_begin(&mut pacers.import, uid, turn(wants.import_failures), wants, running, of_leaving),
                }
            };
            if permits == observed.permits {
                break;
            }
            observed.permits = permits;
            decision = decide(observed, &self.shared.settings, now);
        }
        // Those that are worked on say themselves when they are looked at next.
        if let Some(ends) = ends.filter(|_| decision.wants.running < running) {
            decision.wake = Some(decision.wake.map_or(ends, |earlier| earlier.min(ends)));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;

    use super::{keeps_its_turn_until, may_begin};
    use crate::{
        api::DiskStatus,
        golden::{ClassChoice, DataVolumeView, GoldenView, ObservedTarget, Pacer, Turn, Wants},
    };

    /// At most so many, what the decision wants, how many run, how many of these for targets that were taken out, and how many may begin.
    #[rstest]
    #[case::the_first(1, (1, 0), 0, 0, 1)]
    #[case::beside_one_that_runs(1, (2, 1), 1, 0, 0)]
    #[case::beside_one_with_room(2, (2, 1), 1, 0, 1)]
    #[case::four_wait_behind_four(3, (8, 4), 4, 0, 0)]
    #[case::beside_one_that_nobody_works_on(1, (1, 0), 1, 0, 0)]
    #[case::beside_one_that_nobody_works_on_with_room(2, (1, 0), 1, 0, 1)]
    #[case::beside_one_that_is_filled_and_not_bound(1, (2, 1), 0, 0, 0)]
    #[case::beside_one_that_leaves(1, (1, 0), 0, 1, 0)]
    #[case::beside_one_of_each(3, (2, 1), 1, 1, 1)]
    #[case::nothing_waits(3, (1, 1), 1, 0, 0)]
    fn r11_what_runs_gives_its_turn_to_none_that_waits(
        #[case] most: usize,
        #[case] (imports, running_wanted): (usize, usize),
        #[case] running: usize,
        #[case] of_leaving: usize,
        #[case] expected: usize,
    ) {
        let turn = Turn { failures: 0, created: Timestamp::UNIX_EPOCH };
        let wants = Wants { imports, running: running_wanted, ..Wants::default() };
        assert_eq!(may_begin(&mut Pacer::new(most), "a", turn, wants, running, of_leaving), expected);
    }

    /// The minutes since it moved, whether it has the whole disk, and how many minutes of its turn are left then.
    #[rstest]
    #[case::moves(Some(14), false, Some(1))]
    #[case::stands_still(Some(15), false, Some(0))]
    #[case::of_a_clock_that_was_ahead(Some(-90), false, Some(105))]
    #[case::is_converted_which_takes_storage_long(Some(15), true, Some(113))]
    #[case::not_seen_yet(None, false, None)]
    fn r11_an_import_that_nobody_works_on_keeps_its_turn_while_it_moves(
        #[case] minutes: Option<i64>,
        #[case] is_downloaded: bool,
        #[case] left: Option<i64>,
    ) {
        let at = |minute: i64| Timestamp::from_second(1_796_000_000 + 60 * minute).expect("time");
        let golden = GoldenView {
            volume: Some(DataVolumeView { ours: true, ..DataVolumeView::default() }),
            moved: minutes.map(|minutes| at(-minutes)),
            is_downloaded,
            ..GoldenView::default()
        };
        let target = ObservedTarget { name: None, taken_by: None, class: ClassChoice::NoDefault, golden, quotas: Vec::new() };
        // 60 GiB at 8 MiB a second are 128 minutes.
        let disk = DiskStatus { digest: String::new(), virtual_size: "60Gi".into() };
        let until = keeps_its_turn_until(&target, Some(&disk), Duration::from_secs(15 * 60));
        assert_eq!(until, left.map(at));
    }
}
