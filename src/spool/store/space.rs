/// Something that could be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate<K> {
    pub(super) key: K,
    /// Bytes on the volume.
    pub(super) allocated: u64,
    /// Milliseconds since the epoch.
    pub(super) last_used: u64,
    /// Lower goes first: what is only half there before what is whole.
    pub(super) worth: u8,
}

/// What to evict so that at least `needed` bytes come free, least recently used first, or `None` where all of it together
/// would not do: then nothing is evicted, since it would be lost for nothing.
pub(super) fn victims<K: Copy>(mut candidates: Vec<Candidate<K>>, needed: u64) -> Option<Vec<K>> {
    candidates.sort_by_key(|candidate| (candidate.worth, candidate.last_used));
    let mut freed = 0_u64;
    let mut chosen = Vec::new();
    for candidate in candidates {
        if freed >= needed {
            break;
        }
        freed = freed.saturating_add(candidate.allocated);
        chosen.push(candidate.key);
    }
    (freed >= needed).then_some(chosen)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Candidate, victims};

    fn candidate((key, (allocated, last_used, worth)): (usize, (u64, u64, u8))) -> Candidate<usize> {
        Candidate { key, allocated, last_used, worth }
    }

    #[test]
    fn the_oldest_goes_first_and_halves_before_wholes() {
        let of = |all: &[(u64, u64, u8)]| all.iter().copied().enumerate().map(candidate).collect::<Vec<_>>();
        assert_eq!(victims(of(&[(5, 30, 1), (5, 10, 1), (5, 20, 1)]), 6), Some(vec![1, 2]));
        assert_eq!(victims(of(&[(5, 10, 1), (5, 90, 0)]), 5), Some(vec![1]));
        assert_eq!(victims(of(&[(5, 10, 1)]), 6), None);
        assert_eq!(victims(of(&[(5, 10, 1)]), 0), Some(vec![]));
    }

    proptest! {
        #[test]
        fn frees_enough_or_nothing_and_no_victim_could_be_spared(all in prop::collection::vec((0_u64..100, 0_u64..10, 0_u8..2), 0..12), needed in 0_u64..400) {
            let candidates: Vec<_> = all.iter().copied().enumerate().map(candidate).collect();
            let sum = |keys: &[usize]| keys.iter().map(|key| all[*key].0).sum::<u64>();
            match victims(candidates, needed) {
                Some(chosen) => {
                    prop_assert!(sum(&chosen) >= needed);
                    let without_last = chosen.split_last().map_or(&[][..], |(_, rest)| rest);
                    prop_assert!(chosen.is_empty() || sum(without_last) < needed);
                }
                None => prop_assert!(all.iter().map(|one| one.0).sum::<u64>() < needed),
            }
        }
    }
}
