//! Room for the bytes of questions. What somebody announces takes none: bytes count as they come, and a question that is there waits for those
//! of its size only.

use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};

/// A question of more bytes is large: few are, and those that are must not hold up the others.
const LARGE: usize = 256 << 10;

/// Room for questions while they arrive.
struct Arriving {
    /// A permit for each byte.
    free: Semaphore,
    /// Whoever holds it needs no room: of those that have filled all of it with their beginnings, one at a time can end.
    beyond: Mutex<()>,
}

impl Arriving {
    fn new(bytes: usize) -> Self {
        Self { free: Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)), beyond: Mutex::new(()) }
    }

    /// Nothing yet, for one question.
    fn begin(&self) -> Begun<'_> {
        Begun { arriving: self, counted: None, beyond: None }
    }
}

/// Room for questions while they arrive, by what they announce: those that wait for the large ones' room hold up no others.
pub(super) struct Arrivals {
    small: Arriving,
    large: Arriving,
}

impl Arrivals {
    pub(super) fn new(bytes: usize) -> Self {
        Self { small: Arriving::new(bytes / 2), large: Arriving::new(bytes / 2) }
    }

    /// Nothing yet, for one question of so many bytes.
    pub(super) fn begin(&self, length: usize) -> Begun<'_> {
        if length > LARGE { self.large.begin() } else { self.small.begin() }
    }
}

/// The room of one question that arrives.
pub(super) struct Begun<'a> {
    arriving: &'a Arriving,
    counted: Option<SemaphorePermit<'a>>,
    beyond: Option<MutexGuard<'a, ()>>,
}

impl Begun<'_> {
    /// Waits for room for so many bytes more.
    pub(super) async fn grow(&mut self, bytes: usize) {
        if self.beyond.is_some() {
            return;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        tokio::select! {
            biased;
            // The semaphore is never closed.
            Ok(more) = self.arriving.free.acquire_many(bytes) => match &mut self.counted {
                Some(counted) => counted.merge(more),
                None => self.counted = Some(more),
            },
            beyond = self.arriving.beyond.lock() => self.beyond = Some(beyond),
        }
    }
}

/// Room for questions while they are judged. Large ones have one half, so that the others never wait for one.
pub(super) struct Room {
    small: Half,
    large: Half,
}

/// A permit for each [`Self::UNIT`].
struct Half {
    free: Semaphore,
    all: u32,
}

impl Half {
    const UNIT: usize = 1024;

    fn new(bytes: usize) -> Self {
        let all = u32::try_from(bytes / Self::UNIT).unwrap_or(u32::MAX).max(1);
        Self { free: Semaphore::new(all as usize), all }
    }
}

impl Room {
    pub(super) fn new(bytes: usize) -> Self {
        Self { small: Half::new(bytes / 2), large: Half::new(bytes / 2) }
    }

    /// Waits for room for a question of so many bytes; one that is larger than a half has it for itself.
    pub(super) async fn take(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let half = if bytes > LARGE { &self.large } else { &self.small };
        let units = u32::try_from(bytes.div_ceil(Half::UNIT)).unwrap_or(u32::MAX).clamp(1, half.all);
        // The semaphore is never closed.
        half.free.acquire_many(units).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn large_questions_leave_half_of_the_room_to_the_others() {
        let room = Room::new(4 << 20);
        let large = room.take(8 << 20).now_or_never().flatten();
        assert!(large.is_some(), "one larger than all of it has its half for itself");
        assert!(room.take(LARGE + 1).now_or_never().is_none());
        let small: Vec<_> = (0..8).map(|_| room.take(LARGE).now_or_never().flatten()).collect();
        assert!(small.iter().all(Option::is_some));
        assert!(room.take(1).now_or_never().is_none(), "the others have a bound too");
        drop(large);
        assert!(room.take(2 << 20).now_or_never().is_some());
        assert!(room.take(1).now_or_never().is_none());
        drop(small);
        assert!(room.take(0).now_or_never().is_some());
    }

    #[test]
    fn large_questions_that_arrive_hold_up_no_others() {
        let arrivals = Arrivals::new(4 << 20);
        let mut large: Vec<_> = (0..8).map(|_| arrivals.begin(LARGE + 1)).collect();
        let come = large.iter_mut().filter_map(|begun| begun.grow(1 << 20).now_or_never()).count();
        assert_eq!(come, 3, "two in their half, and one beyond");
        assert!(arrivals.begin(LARGE).grow(LARGE).now_or_never().is_some());
    }

    #[test]
    fn beginnings_that_fill_the_room_end_one_after_the_other() {
        let arriving = Arriving::new(100);
        let mut all: Vec<_> = (0..4).map(|_| arriving.begin()).collect();
        for begun in &mut all {
            assert!(begun.grow(25).now_or_never().is_some());
        }
        let mut others = all.split_off(1);
        assert!(all[0].grow(1_000_000).now_or_never().is_some(), "one goes beyond");
        assert!(all[0].grow(1).now_or_never().is_some());
        assert!(others[0].grow(1).now_or_never().is_none(), "and one only");
        drop(all);
        assert!(others[0].grow(25).now_or_never().is_some());
        assert!(others[1].grow(1).now_or_never().is_some());
        assert!(others[2].grow(1).now_or_never().is_none());
        drop(others);
        assert!(arriving.begin().grow(100).now_or_never().is_some(), "all of it is given back");
    }
}
