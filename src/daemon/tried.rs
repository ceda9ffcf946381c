//! What is remembered of a step that the API server did not let be done: how often it failed, and when it is tried again; and when it is
//! told what is waited for.

use std::time::{Duration, Instant};

use crate::run::backoff::Backoff;

/// One step that failed, or is about to be tried for the first time.
#[derive(Debug, Default)]
pub(super) struct Tried {
    failures: u32,
    next: Option<Instant>,
}

impl Tried {
    /// How long it is left alone yet; `None` where it may be tried.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.next.map(|next| next.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// When it may be tried again; nothing where it never was to wait.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.next
    }

    /// It failed once more. Gives the wait until it is tried again.
    pub(super) fn failed(&mut self, now: Instant, pauses: Backoff) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let wait = pauses.grown(self.failures);
        self.rest(now, wait);
        wait
    }

    /// It is left alone for so long, which is no failure.
    pub(super) fn rest(&mut self, now: Instant, wait: Duration) {
        self.next = Some(now + wait);
    }

    /// Whether it may be tried; where it may, it is left alone for so long from `now` on.
    pub(super) fn comes_due(&mut self, now: Instant, wait: Duration) -> bool {
        let is_due = self.left(now).is_none();
        if is_due {
            self.rest(now, wait);
        }
        is_due
    }

    /// How often it failed in a row.
    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }
}

/// Tells what a new term waits for where that takes long: while it lasts nothing is done for any image.
#[derive(Debug)]
pub(super) struct Waiting(Tried);

impl Waiting {
    /// How long nothing is told.
    const FIRST: Duration = Duration::from_secs(5);
    /// How often it is told then.
    const AGAIN: Duration = Duration::from_secs(30);

    /// It begins `now`.
    pub(super) fn begin(now: Instant) -> Self {
        let mut tried = Tried::default();
        tried.rest(now, Self::FIRST);
        Self(tried)
    }

    /// `why` it has not ended yet, for the log.
    pub(super) fn tell(&mut self, why: &str) {
        match self.is_due(Instant::now()) {
            true => tracing::warn!(why, "nothing is done for any image before everything is known; looked at again"),
            false => tracing::trace!(why, "not everything is known yet; looked at again"),
        }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        self.0.comes_due(now, Self::AGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

    #[test]
    fn what_fails_is_left_alone_for_longer_each_time_and_never_for_good() {
        let mut now = Instant::now();
        let mut tried = Tried::default();
        assert_eq!((tried.left(now), tried.failures()), (None, 0));
        let mut waits = Vec::new();
        for _ in 0..8 {
            let wait = tried.failed(now, PAUSES);
            assert_eq!(tried.left(now), Some(wait));
            now += wait;
            assert_eq!(tried.left(now), None);
            waits.push(wait.as_secs());
        }
        assert_eq!((waits, tried.failures()), (vec![1, 2, 4, 8, 16, 32, 60, 60], 8));
    }

    #[test]
    fn what_a_term_waits_for_is_told_after_a_while_and_now_and_then() {
        let begun = Instant::now();
        let mut waiting = Waiting::begin(begun);
        let told: Vec<u64> = (0..=70).filter(|second| waiting.is_due(begun + Duration::from_secs(*second))).collect();
        assert_eq!(told, [5, 35, 65]);
    }
}
