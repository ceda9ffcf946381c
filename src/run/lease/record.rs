//! The decisions of leader election, without clock and without I/O: client-go's algorithm (`tools/leaderelection`).

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use std::time::{Duration, Instant};

/// How long a Lease holds and how often it is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

/// Times that cannot keep two processes from leading at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "leader election needs: lease duration (whole seconds, at most 60 s) > renew deadline > 1.2 × retry period > 0; \
     got {lease_duration:?}, {renew_deadline:?}, {retry_period:?}"
)]
pub struct TimingError {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

impl Default for Timing {
    /// 15 s, 10 s, 2 s, as in client-go and the components of Kubernetes.
    fn default() -> Self {
        Self { lease_duration: Duration::from_secs(15), renew_deadline: Duration::from_secs(10), retry_period: Duration::from_secs(2) }
    }
}

impl Timing {
    /// The longest another's Lease is waited for, whatever is written in it: a hand that types one zero too many must not
    /// leave the catalog without a leader for days.
    const LONGEST: Duration = Duration::from_secs(60);

    /// # Errors
    /// [`TimingError`] when the times contradict each other. The gap between deadline and duration is what a write that was
    /// sent at the last moment has to land in.
    pub fn new(lease_duration: Duration, renew_deadline: Duration, retry_period: Duration) -> Result<Self, TimingError> {
        let sane = lease_duration.subsec_nanos() == 0
            && lease_duration <= Self::LONGEST
            && lease_duration > renew_deadline
            && renew_deadline > retry_period.mul_f64(1.2)
            && !retry_period.is_zero();
        if sane {
            Ok(Self { lease_duration, renew_deadline, retry_period })
        } else {
            Err(TimingError { lease_duration, renew_deadline, retry_period })
        }
    }

    /// How long others wait after the last renewal they saw.
    pub fn lease_duration(self) -> Duration {
        self.lease_duration
    }

    /// How long after its last renewal the leader stops writing by itself.
    pub fn renew_deadline(self) -> Duration {
        self.renew_deadline
    }

    /// How often the leader renews and the others look.
    pub fn retry_period(self) -> Duration {
        self.retry_period
    }

    /// How long one request may take: half the deadline, so that one that hangs leaves time for another.
    pub fn request_timeout(self) -> Duration {
        self.renew_deadline / 2
    }
}

/// What was last read of the Lease, and since when it is unchanged by our own clock. Times written into the Lease are for
/// people: comparing them would need clocks that agree.
#[derive(Debug)]
struct Seen {
    spec: LeaseSpec,
    since: Instant,
}

/// One candidate's view of the Lease.
#[derive(Debug)]
pub(super) struct Candidate {
    identity: String,
    timing: Timing,
    seen: Option<Seen>,
}

/// What a candidate does next.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Make the Lease that does not exist.
    Create(Box<Lease>),
    /// Put our name into it, or renew it; carries the resourceVersion that was read.
    Replace(Box<Lease>),
    /// Another holds it; look again at this instant at the latest.
    Stand {
        /// Who holds it.
        holder: String,
        /// When it runs out unless it is renewed.
        until: Instant,
    },
}

impl Candidate {
    pub fn new(identity: String, timing: Timing) -> Self {
        Self { identity, timing, seen: None }
    }

    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Whether it ever read a Lease.
    pub fn has_seen_any(&self) -> bool {
        self.seen.is_some()
    }

    /// Notes what was read at `now`. Only a changed spec counts as a sign of life: labels may be edited by anyone.
    pub fn observe(&mut self, lease: &Lease, now: Instant) {
        let spec = lease.spec.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|seen| seen.spec != spec) {
            self.seen = Some(Seen { spec, since: now });
        }
    }

    /// Decides on what was read (`None`: there is no Lease). `leading` says whether a term of ours is under way.
    ///
    /// Must be called after [`Self::observe`] of the same Lease.
    pub fn step(&self, lease: Option<&Lease>, leading: bool, now: Instant, clock: Timestamp) -> Step {
        if let Some((holder, until)) = self.held_by_another()
            && now < until
        {
            // Also when the Lease itself is gone: deleting it does not stop the one who held it a moment ago.
            return Step::Stand { holder, until };
        }
        let lease = lease.cloned().unwrap_or_default();
        let exists = lease.metadata.resource_version.is_some();
        let lease = Box::new(self.claimed(lease, leading, clock));
        if exists { Step::Replace(lease) } else { Step::Create(lease) }
    }

    /// The Lease with our name in it. A new term gets the next transition number; a renewal keeps it.
    fn claimed(&self, mut lease: Lease, leading: bool, clock: Timestamp) -> Lease {
        // What was last seen counts where the Lease is gone, so that the number goes on growing.
        let last = self.seen.as_ref().and_then(|seen| seen.spec.lease_transitions);
        let spec = lease.spec.get_or_insert_default();
        let transitions = spec.lease_transitions.or(last).unwrap_or(0).max(0);
        if leading {
            spec.lease_transitions = Some(transitions);
        } else {
            spec.lease_transitions = Some(transitions.checked_add(1).unwrap_or(1));
            spec.acquire_time = Some(MicroTime(clock));
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = i32::try_from(self.timing.lease_duration.as_secs()).ok();
        spec.renew_time = Some(MicroTime(clock));
        if spec.acquire_time.is_none() {
            spec.acquire_time = Some(MicroTime(clock));
        }
        lease
    }

    /// The Lease given up: no holder, and over after the shortest time the API knows, as client-go releases it.
    pub fn released(mut lease: Lease, clock: Timestamp) -> Lease {
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(clock));
        lease
    }

    /// Another holder and when its Lease runs out.
    fn held_by_another(&self) -> Option<(String, Instant)> {
        let seen = self.seen.as_ref()?;
        let holder = seen.spec.holder_identity.as_ref().filter(|holder| !holder.is_empty() && **holder != self.identity)?;
        // The holder's own duration counts, so that releases with other settings can stand beside each other.
        let duration = seen.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
        let duration = duration.unwrap_or(self.timing.lease_duration).min(Timing::LONGEST);
        Some((holder.clone(), seen.since + duration))
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
