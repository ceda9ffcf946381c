use std::{
    num::NonZeroU64,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

/// A cap on the bytes that all fetches together take in a second. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Bandwidth(Option<Arc<Bucket>>);

#[derive(Debug)]
struct Bucket {
    bytes_per_second: NonZeroU64,
    /// When the bytes taken so far are paid for.
    paid: Mutex<Instant>,
}

impl Bandwidth {
    /// No cap.
    pub const UNLIMITED: Self = Self(None);

    /// At most so many bytes a second, on average over more than [`Self::BURST`].
    pub fn limited(bytes_per_second: NonZeroU64) -> Self {
        Self(Some(Arc::new(Bucket { bytes_per_second, paid: Mutex::new(Instant::now()) })))
    }

    /// How much unused time may be caught up with: enough to even out the scheduler, too little to flood a link.
    const BURST: Duration = Duration::from_millis(100);

    /// Waits until `bytes` that were received are paid for. While one fetch waits its upstream is slowed down by TCP.
    pub(super) async fn pay(&self, bytes: usize) {
        let Some(bucket) = &self.0 else { return };
        let now = Instant::now();
        let paid = {
            let mut paid = bucket.paid.lock().unwrap_or_else(PoisonError::into_inner);
            *paid = next(*paid, now, bytes, bucket.bytes_per_second);
            *paid
        };
        if paid > now {
            sleep_until(paid).await;
        }
    }
}

/// When `bytes` more will be paid for, if what came before is so at `paid`.
fn next(paid: Instant, now: Instant, bytes: usize, bytes_per_second: NonZeroU64) -> Instant {
    let earliest = now.checked_sub(Bandwidth::BURST).unwrap_or(now);
    let cost = Duration::from_nanos(u64::try_from(bytes as u128 * 1_000_000_000 / u128::from(bytes_per_second.get())).unwrap_or(u64::MAX));
    paid.max(earliest) + cost
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU64, time::Duration};

    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::{Bandwidth, next};

    #[test]
    fn a_second_holds_a_seconds_bytes_and_idle_time_is_not_saved_up() {
        let rate = NonZeroU64::new(1 << 20).expect("rate");
        let start = Instant::now() + Duration::from_secs(10);
        let mut paid = start;
        for _ in 0..16 {
            paid = next(paid, start, 64 << 10, rate);
        }
        assert_eq!(paid, start + Duration::from_secs(1));
        let later = start + Duration::from_secs(3600);
        assert_eq!(next(paid, later, 1 << 20, rate), later - Bandwidth::BURST + Duration::from_secs(1));
    }

    proptest! {
        /// R11: however many fetches take turns, in whatever pieces and with whatever pauses, by no time was more let through than
        /// the cap allows by then.
        #[test]
        fn r11_all_fetches_together_stay_below_the_cap(pieces in proptest::collection::vec((0_usize..4, 1_usize..400_000, 0_u64..300), 1..80)) {
            let rate = NonZeroU64::new(1_000_000).expect("rate");
            let start = Instant::now() + Duration::from_secs(10);
            // When each fetch may go on.
            let mut free = [start; 4];
            let (mut paid, mut let_through) = (start, 0_u64);
            for (fetch, bytes, pause) in pieces {
                let now = free[fetch] + Duration::from_millis(pause);
                paid = next(paid, now, bytes, rate);
                free[fetch] = paid.max(now);
                let_through += bytes as u64;
                let allowed = (free[fetch] - start + Bandwidth::BURST).as_micros();
                // A microsecond a byte; the cost of a piece is rounded down to a nanosecond.
                prop_assert!(u128::from(let_through) <= allowed + 1, "{let_through} bytes after {allowed} µs");
            }
        }
    }
}
