//! Growing delays between attempts, the same for the same object and attempt.
//!
//! kube keeps one flat delay for all objects (kube-rs/kube#1916), so each object counts its own attempts here. Jitter comes from
//! the object's UID and the attempt, not from a random source: a restarted daemon computes the same wake-up, and a thousand
//! objects that failed together still come back spread out.

use std::time::Duration;

/// An exponential schedule: the first delay, doubled at each attempt up to a ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    ceiling: Duration,
}

impl Backoff {
    /// The schedule for an object that failed: 10 s to 10 min.
    pub const OBJECT: Self = Self::new(Duration::from_secs(10), Duration::from_secs(600));
    /// The schedule for a broken watch: 0.8 s to 30 s, as client-go's reflector has it.
    pub const WATCH: Self = Self::new(Duration::from_millis(800), Duration::from_secs(30));

    /// A schedule from `first` to `ceiling`; a ceiling below the first delay counts as equal to it.
    pub const fn new(first: Duration, ceiling: Duration) -> Self {
        let ceiling = if ceiling.as_nanos() < first.as_nanos() { first } else { ceiling };
        Self { first, ceiling }
    }

    /// The delay after failed attempt number `attempt` (the first is 1; 0 counts as 1) of the object `uid`.
    ///
    /// Never below what upstream asked for in `retry_after`, which is believed up to [`Self::LONGEST_RETRY_AFTER`] only: a
    /// hostile server must not be able to park an image for good.
    pub fn next(self, uid: &str, attempt: u32, retry_after: Option<Duration>) -> Duration {
        // Between 75 % and 100 % of the delay, so that the ceiling stays one.
        let jittered = self.grown(attempt).mul_f64(0.75 + 0.25 * fraction(uid, attempt));
        jittered.max(retry_after.unwrap_or_default().min(Self::LONGEST_RETRY_AFTER))
    }

    /// The same without jitter, for what one task of the leader does: nobody else comes back at that moment.
    pub fn grown(self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.ceiling)
    }

    /// The longest `Retry-After` that is obeyed.
    pub const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);
}

/// A number in `[0, 1)` that depends on nothing but the arguments: FNV-1a, then the finalizer of SplitMix64 to spread it.
pub(super) fn fraction(uid: &str, attempt: u32) -> f64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in uid.bytes().chain(attempt.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    // 53 bits are what an f64 holds exactly.
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn doubles_up_to_the_ceiling() {
        let schedule = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));
        let waits = [0, 1, 2, 5, 6, u32::MAX].map(|attempt| schedule.grown(attempt).as_secs());
        assert_eq!(waits, [2, 2, 4, 32, 60, 60]);
    }

    #[test]
    fn doubles_from_ten_seconds_to_ten_minutes() {
        for (attempt, whole) in [(0, 10), (1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (8, 600), (u32::MAX, 600)] {
            let delay = Backoff::OBJECT.next("uid", attempt, None);
            let whole = Duration::from_secs(whole);
            assert!(delay <= whole && delay >= whole.mul_f64(0.75), "attempt {attempt}: {delay:?}");
        }
    }

    #[test]
    fn the_same_object_and_attempt_wait_the_same_time_and_others_do_not() {
        let delays: Vec<_> = (0..1000).map(|n| Backoff::OBJECT.next(&format!("uid-{n}"), 1, None)).collect();
        let again: Vec<_> = (0..1000).map(|n| Backoff::OBJECT.next(&format!("uid-{n}"), 1, None)).collect();
        assert_eq!(delays, again);
        // Spread over the whole window: no tenth of it is empty or holds more than twice its share.
        let mut tenths = [0; 10];
        for delay in &delays {
            tenths[((delay.as_secs_f64() / 10.0 - 0.75) * 40.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (50..=200).contains(count)), "{tenths:?}");
    }

    #[test]
    fn upstreams_wish_is_a_floor_but_not_a_prison() {
        let wish = |secs| Backoff::OBJECT.next("uid", 1, Some(Duration::from_secs(secs)));
        assert_eq!(wish(120), Duration::from_secs(120));
        assert!(wish(1) < Duration::from_secs(11));
        assert_eq!(wish(u64::MAX), Backoff::LONGEST_RETRY_AFTER);
    }

    proptest! {
        #[test]
        fn stays_within_its_bounds(uid in ".*", attempt: u32, first in 1u64..10_000, ceiling in 1u64..10_000_000) {
            let (first, ceiling) = (Duration::from_millis(first), Duration::from_millis(ceiling));
            let delay = Backoff::new(first, ceiling).next(&uid, attempt, None);
            prop_assert!(delay >= first.mul_f64(0.74) && delay <= ceiling.max(first));
        }
    }
}
