//! The right to write, as something that runs out by itself.

use super::Timing;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
use tokio::sync::watch;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// The right to write during one term of leadership, until it runs out.
///
/// A claim is checked at each write, not once per piece of work: the process may have been paused (SIGSTOP, a starved node, a
/// long page-in) in between, and another one leads by now. Its end is an [`Instant`], which on Linux is `CLOCK_MONOTONIC`: that
/// clock goes on while a process is stopped, so a process that wakes up too late refuses to write. It stands still while the
/// whole machine is suspended; what then protects is the API server, which answers the next write of the Lease with 409, and
/// the resourceVersion and UID in writes that must not be repeated.
///
/// Renewals extend the claims already handed out. Once over, a claim never becomes valid again: the same process leading once
/// more does so in a new term with a higher epoch, and plans made before are refused.
#[derive(Debug, Clone)]
pub struct Claim {
    term: Arc<Term>,
}

/// One uninterrupted stretch of leading.
#[derive(Debug)]
struct Term {
    epoch: u64,
    valid_until: watch::Sender<Instant>,
    ended: CancellationToken,
    /// No write is begun any more; those on their way may land.
    closed: AtomicBool,
    writes: TaskTracker,
}

/// The claim ran out or was taken; nothing may be written under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this process no longer leads (term {epoch}); the write was not sent, whoever leads now does it")]
pub struct Lost {
    /// The term that is over.
    pub epoch: u64,
}

/// A write on its way. While one exists the Lease is not given up early, so that a successor cannot start before it has landed.
#[derive(Debug)]
pub struct Write(#[expect(dead_code, reason = "held for its Drop")] TaskTrackerToken);

impl Claim {
    /// Starts a term. `valid_until` is reckoned from before the renewal was sent, since that is when the others' clocks start.
    pub(super) fn new(epoch: u64, valid_until: Instant) -> Self {
        let term = Term {
            epoch,
            valid_until: watch::Sender::new(valid_until),
            ended: CancellationToken::new(),
            closed: AtomicBool::new(false),
            writes: TaskTracker::new(),
        };
        Self { term: Arc::new(term) }
    }

    /// A claim that holds for `timing`'s deadline from now and is not backed by any Lease, for tests and one-shot commands.
    pub fn unshared(timing: Timing) -> Self {
        Self::new(0, Instant::now() + timing.renew_deadline())
    }

    /// The number of this term: higher for each later one.
    pub fn epoch(&self) -> u64 {
        self.term.epoch
    }

    /// When the claim runs out unless it is renewed.
    pub fn valid_until(&self) -> Instant {
        *self.term.valid_until.borrow()
    }

    /// Whether a write may be sent at this moment.
    ///
    /// # Errors
    /// [`Lost`] when the term is over, by time or because another process took the Lease.
    pub fn check(&self) -> Result<(), Lost> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), Lost> {
        if self.term.ended.is_cancelled() || now >= self.valid_until() { Err(Lost { epoch: self.term.epoch }) } else { Ok(()) }
    }

    /// Announces a write, which then counts as on its way until the returned value is dropped.
    ///
    /// # Errors
    /// [`Lost`] as for [`Self::check`].
    pub fn begin(&self) -> Result<Write, Lost> {
        // Counted first and checked second: checked first, the term could end in between and be given up around this write.
        let write = Write(self.term.writes.token());
        if self.term.closed.load(Ordering::SeqCst) {
            return Err(Lost { epoch: self.term.epoch });
        }
        self.check()?;
        Ok(write)
    }

    /// Completes when the claim is over; writers race their work against it.
    pub async fn lost(&self) {
        let mut until = self.term.valid_until.subscribe();
        loop {
            let end = *until.borrow_and_update();
            if self.check().is_err() {
                return;
            }
            tokio::select! {
                () = self.term.ended.cancelled() => return,
                () = tokio::time::sleep_until(end.into()) => {}
                // The sender lives in the term that this claim keeps alive, so the channel cannot be closed.
                _ = until.changed() => {}
            }
        }
    }

    /// Renews the claim, unless it is over: then it stays so and `false` is returned. An earlier end than the present one is
    /// ignored.
    pub(super) fn extend(&self, valid_until: Instant, now: Instant) -> bool {
        let mut holds = true;
        self.term.valid_until.send_if_modified(|until| {
            holds = now < *until && !self.term.ended.is_cancelled();
            let later = holds && valid_until > *until;
            if later {
                *until = valid_until;
            }
            later
        });
        holds
    }

    /// Ends the term at once.
    pub(in crate::run) fn end(&self) {
        self.term.ended.cancel();
    }

    /// Refuses every further write, while those on their way may still be answered until the claim runs out: cut off now, one might
    /// be carried out after a successor began.
    pub(in crate::run) fn close(&self) {
        self.term.closed.store(true, Ordering::SeqCst);
    }

    /// Completes when no write of this closed or ended term is on its way any more.
    pub(in crate::run) async fn drained(&self) {
        self.term.writes.close();
        self.term.writes.wait().await;
    }
}

/// Whether this process leads, as every part of it sees it.
#[derive(Debug, Clone)]
pub struct Leadership {
    claims: watch::Receiver<Option<Claim>>,
}

impl Leadership {
    pub(super) fn new(claims: watch::Receiver<Option<Claim>>) -> Self {
        Self { claims }
    }

    /// The claim of the present term, if this process leads right now.
    pub fn claim(&self) -> Option<Claim> {
        self.claims.borrow().clone().filter(|claim| claim.check().is_ok())
    }

    /// Waits until this process leads.
    ///
    /// `None` once the elector is gone, which means that the process is ending.
    pub async fn acquired(&mut self) -> Option<Claim> {
        loop {
            if let Some(claim) = self.claims.borrow_and_update().clone().filter(|claim| claim.check().is_ok()) {
                return Some(claim);
            }
            self.claims.changed().await.ok()?;
        }
    }

    /// The channel itself: `None` while another process leads, a claim while this one does.
    pub fn watch(&self) -> watch::Receiver<Option<Claim>> {
        self.claims.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_claim_runs_out_and_stays_out() {
        let now = Instant::now();
        let claim = Claim::new(7, now + SECOND);
        assert_eq!(claim.check_at(now), Ok(()));
        assert_eq!(claim.check_at(now + SECOND), Err(Lost { epoch: 7 }));
        assert!(!claim.extend(now + 9 * SECOND, now + SECOND), "too late to renew");
        assert!(claim.extend(now + 3 * SECOND, now));
        assert!(claim.extend(now + 2 * SECOND, now));
        assert_eq!(claim.check_at(now + 2 * SECOND), Ok(()));
        claim.end();
        assert!(!claim.extend(now + 10 * SECOND, now));
        assert_eq!(claim.check_at(now), Err(Lost { epoch: 7 }));
    }

    #[tokio::test]
    async fn those_who_wait_for_the_end_are_told_of_renewals_and_of_the_end() {
        let claim = Claim::new(1, Instant::now() + 60 * SECOND);
        let mut waiting = Box::pin(claim.lost());
        assert!(futures::poll!(&mut waiting).is_pending());
        assert!(claim.extend(Instant::now() + 120 * SECOND, Instant::now()));
        assert!(futures::poll!(&mut waiting).is_pending());
        claim.end();
        waiting.await;
        // A claim that ran out by time alone is over too.
        Claim::new(2, Instant::now()).lost().await;
    }

    #[tokio::test]
    async fn a_write_on_its_way_holds_the_lease_and_a_late_one_is_refused() {
        let claim = Claim::new(1, Instant::now() + 60 * SECOND);
        let write = claim.begin().unwrap();
        claim.close();
        assert_eq!(claim.begin().unwrap_err(), Lost { epoch: 1 });
        assert_eq!(claim.check(), Ok(()), "what is on its way may land");
        claim.end();
        assert_eq!(claim.begin().unwrap_err(), Lost { epoch: 1 });
        let mut drained = Box::pin(claim.drained());
        assert!(futures::poll!(&mut drained).is_pending());
        drop(write);
        drained.await;
    }

    #[tokio::test]
    async fn leadership_shows_only_claims_that_hold() {
        let (sender, receiver) = watch::channel(None);
        let mut leadership = Leadership::new(receiver);
        assert!(leadership.claim().is_none());
        sender.send_replace(Some(Claim::new(1, Instant::now())));
        assert!(leadership.claim().is_none(), "already over");
        sender.send_replace(Some(Claim::new(2, Instant::now() + 60 * SECOND)));
        assert_eq!(leadership.claim().unwrap().epoch(), 2);
        assert_eq!(leadership.acquired().await.unwrap().epoch(), 2);
        sender.send_replace(None);
        drop(sender);
        assert!(leadership.acquired().await.is_none());
    }
}
