//! R11: at most so many at once, oldest first, and who fails behind who has not.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::jiff::Timestamp;

/// Who comes first: whoever has failed less often, then whoever is older. An import that is stuck gets its turns, and never
/// before those who have had none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// Failed attempts.
    pub failures: i32,
    /// When the image was created.
    pub created: Timestamp,
}

/// Hands out turns. A holder keeps its turns until it wants fewer.
#[derive(Debug)]
pub struct Pacer {
    most: usize,
    held: BTreeMap<String, usize>,
    waiting: BTreeMap<(Turn, String), usize>,
    places: HashMap<String, Turn>,
}

impl Pacer {
    /// At most `most` turns at once.
    pub fn new(most: usize) -> Self {
        Self { most, held: BTreeMap::new(), waiting: BTreeMap::new(), places: HashMap::new() }
    }

    /// States how many turns `uid` wants in all, and says how many it holds.
    ///
    /// What is under way already (`running`) counts as held even beyond the limit: it cannot be taken back, and after a
    /// restart it is how the running ones are known.
    pub fn ask(&mut self, uid: &str, turn: Turn, wants: usize, running: usize) -> usize {
        self.leave(uid);
        let key = (turn, uid.to_owned());
        let mut holds = self.held.remove(uid).unwrap_or(0).min(wants).max(running);
        let taken: usize = self.held.values().sum();
        // Whoever waits before it comes first: its claim is kept free.
        let before: usize = self.waiting.range(..&key).map(|(_, missing)| missing).sum();
        let free = self.most.saturating_sub(taken + before);
        holds = holds.max(wants.min(free));
        if holds > 0 {
            self.held.insert(uid.to_owned(), holds);
        }
        if wants > holds {
            self.places.insert(uid.to_owned(), turn);
            self.waiting.insert(key, wants - holds);
        }
        holds
    }

    fn leave(&mut self, uid: &str) {
        if let Some(turn) = self.places.remove(uid) {
            self.waiting.remove(&(turn, uid.to_owned()));
        }
    }

    /// Forgets an image.
    pub fn forget(&mut self, uid: &str) {
        self.held.remove(uid);
        self.leave(uid);
    }

    /// The UIDs that may get a turn now.
    pub fn next(&self) -> BTreeSet<String> {
        let free = self.most.saturating_sub(self.held.values().sum());
        let mut left = free;
        let mut next = BTreeSet::new();
        for ((_, uid), missing) in &self.waiting {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(*missing);
            next.insert(uid.clone());
        }
        next
    }

    /// How many turns are held.
    pub fn busy(&self) -> usize {
        self.held.values().sum()
    }

    /// How many turns are waited for.
    pub fn queued(&self) -> usize {
        self.waiting.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use proptest::prelude::*;

    use super::{Pacer, Turn};

    fn at(second: i64) -> Turn {
        Turn { failures: 0, created: Timestamp::from_second(second).expect("time") }
    }

    #[test]
    fn oldest_first_and_never_more() {
        let mut pacer = Pacer::new(2);
        assert_eq!(pacer.ask("c", at(3), 1, 0), 1);
        assert_eq!(pacer.ask("d", at(4), 1, 0), 1);
        assert_eq!(pacer.ask("b", at(2), 1, 0), 0);
        assert_eq!(pacer.ask("a", at(1), 1, 0), 0);
        assert!(pacer.next().is_empty());
        // One is through: the oldest waiting gets the turn, whoever asks first.
        assert_eq!(pacer.ask("c", at(3), 0, 0), 0);
        assert_eq!(pacer.ask("b", at(2), 1, 0), 0);
        assert_eq!(pacer.next().into_iter().collect::<Vec<_>>(), ["a"]);
        assert_eq!(pacer.ask("a", at(1), 1, 0), 1);
        pacer.forget("d");
        assert_eq!(pacer.ask("b", at(2), 1, 0), 1);
        assert_eq!((pacer.busy(), pacer.queued()), (2, 0));
    }

    #[test]
    fn what_runs_after_a_restart_counts() {
        let mut pacer = Pacer::new(1);
        assert_eq!(pacer.ask("a", at(1), 2, 2), 2);
        assert_eq!(pacer.ask("b", at(0), 1, 0), 0);
    }

    /// A new term holds the turns of what the former one began before anybody asks.
    #[test]
    fn what_the_former_term_began_keeps_its_turn_until_it_is_through() {
        let mut pacer = Pacer::new(1);
        assert_eq!(pacer.ask("begun", at(9), 1, 1), 1);
        assert_eq!(pacer.ask("older", at(1), 1, 0), 0);
        assert_eq!(pacer.ask("begun", at(9), 1, 0), 1, "cut off before its DataVolume was made");
        assert_eq!(pacer.ask("begun", at(9), 0, 0), 0);
        assert_eq!(pacer.ask("older", at(1), 1, 0), 1);
    }

    #[test]
    fn who_fails_again_and_again_starves_nobody() {
        let mut pacer = Pacer::new(1);
        let failed = |failures| Turn { failures, ..at(1) };
        assert_eq!(pacer.ask("stuck", failed(0), 1, 0), 1);
        assert_eq!(pacer.ask("young", at(9), 1, 0), 0);
        // Given up: the slot is free while it waits, and when it comes back it is behind.
        assert_eq!(pacer.ask("stuck", failed(1), 0, 0), 0);
        assert_eq!(pacer.ask("stuck", failed(1), 1, 0), 0);
        assert_eq!(pacer.next().into_iter().collect::<Vec<_>>(), ["young"]);
        assert_eq!(pacer.ask("young", at(9), 1, 0), 1);
        assert_eq!(pacer.ask("young", at(9), 0, 0), 0);
        assert_eq!(pacer.ask("stuck", failed(1), 1, 0), 1);
        assert_eq!(pacer.queued(), 0);
    }

    proptest! {
        #[test]
        fn never_more_than_the_limit_and_nobody_starves(asks in proptest::collection::vec((0_i64..6, 0_usize..3), 1..60)) {
            let mut pacer = Pacer::new(3);
            for (who, wants) in asks {
                pacer.ask(&format!("u{who}"), at(who), wants, 0);
                prop_assert!(pacer.busy() <= 3);
                if pacer.busy() < 3 && pacer.queued() > 0 {
                    prop_assert!(!pacer.next().is_empty());
                }
            }
        }
    }
}
