//! The loop that keeps the Lease: reads, decides, writes, and ends the term in time when it cannot.

use super::{
    Claim, Leadership, Timing,
    record::{Candidate, Step},
};
use crate::run::{api_error, backoff::fraction, client};
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Client, api::PostParams};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The Lease's name, one for all releases in a cluster.
pub const LEASE_NAME: &str = "golden-catalog";

/// Keeps trying to hold the Lease until told to stop.
#[derive(Debug)]
pub struct Elector {
    api: Api<Lease>,
    name: String,
    namespace: String,
    timing: Timing,
    candidate: Candidate,
    /// What the API server last said the Lease is; `None` when it was never read or is gone.
    lease: Option<Lease>,
    claims: watch::Sender<Option<Claim>>,
    /// The number of the last term, which a new one must exceed.
    epoch: u64,
    /// Until when a Lease we made where we had never seen one does not start a term.
    settling: Option<Instant>,
    /// Conflicts in a row.
    conflicts: u32,
    trouble: Option<String>,
}

/// How one attempt to hold the Lease ended.
#[derive(Debug)]
enum Attempt {
    /// It is ours, as of when the attempt began.
    Held,
    /// It is another's, at least until this instant.
    Another { holder: String, until: Instant },
    /// Somebody wrote it in between: read it again at once.
    Conflict,
    /// The API server did not answer or refused; what it holds is unknown.
    Failed(String),
}

impl Elector {
    /// An elector for the Lease `name` in `namespace` that goes by `identity` (see [`super::identity`]).
    ///
    /// It makes its own client: without retries, whose delays would eat the deadline unseen, and with a timeout below it.
    ///
    /// # Errors
    /// When the client's configuration cannot be used (a CA or key that does not parse).
    pub fn new(config: &kube::Config, namespace: &str, name: &str, identity: String, timing: Timing) -> kube::Result<(Self, Leadership)> {
        let mut config = config.clone();
        config.connect_timeout = Some(timing.request_timeout());
        let client: Client = client::reader(&config)?;
        let (claims, receiver) = watch::channel(None);
        let elector = Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            timing,
            candidate: Candidate::new(identity, timing),
            lease: None,
            claims,
            epoch: 0,
            settling: None,
            conflicts: 0,
            trouble: None,
        };
        Ok((elector, Leadership::new(receiver)))
    }

    /// Runs until `stop`, then gives the Lease up so that another takes over at once. Stop the writers first: as long as one
    /// of their requests is on its way the Lease is kept.
    pub async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let begun = Instant::now();
            let attempt = tokio::select! {
                () = stop.cancelled() => break,
                attempt = self.attempt_within_term() => attempt,
            };
            let pause = self.settle(attempt, begun);
            let claim = self.claims.borrow().clone();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
                () = lost(claim) => end_term(&self.claims, "it could not be renewed in time"),
            }
        }
        self.release().await;
    }

    /// One attempt under a timeout. Whoever waits for the term's end hears of it also while a request hangs.
    async fn attempt_within_term(&mut self) -> Attempt {
        let claim = self.claims.borrow().clone();
        let timeout = self.timing.request_timeout();
        let claims = self.claims.clone();
        let attempt = tokio::time::timeout(timeout, self.attempt());
        tokio::pin!(attempt);
        let outcome = tokio::select! {
            biased;
            () = lost(claim) => {
                end_term(&claims, "it could not be renewed in time");
                attempt.await
            }
            outcome = &mut attempt => outcome,
        };
        outcome.unwrap_or_else(|_| Attempt::Failed(format!("no answer within {timeout:?}")))
    }

    /// Reads the Lease (unless we lead and know it), decides and writes.
    async fn attempt(&mut self) -> Attempt {
        let leading = self.claims.borrow().is_some();
        if !leading || self.lease.is_none() {
            match self.api.get_opt(&self.name).await {
                Ok(lease) => self.lease = lease,
                Err(error) => return Attempt::Failed(api_error(&error)),
            }
            if let Some(lease) = &self.lease {
                self.candidate.observe(lease, Instant::now());
            }
        }
        let first_sight = !leading && !self.candidate.has_seen_any();
        // A Lease that is settling is renewed until its term starts, under the number it was made with.
        let keeps_number = leading || self.settling.is_some();
        let (written, new) = match self.candidate.step(self.lease.as_ref(), keeps_number, Instant::now(), Timestamp::now()) {
            Step::Stand { holder, until } => return Attempt::Another { holder, until },
            Step::Create(mut lease) => {
                lease.metadata.name = Some(self.name.clone());
                // A Lease that was deleted must not come back with its old identity.
                lease.metadata.resource_version = None;
                lease.metadata.uid = None;
                (self.api.create(&PostParams::default(), &lease).await, true)
            }
            Step::Replace(lease) => (self.api.replace(&self.name, &PostParams::default(), &lease).await, false),
        };
        match written {
            Ok(lease) => {
                if new && first_sight {
                    // Most likely this is the first start ever. But the Lease may have been deleted by hand a moment ago, and
                    // its holder finds out at its next renewal only: it is given two of them.
                    self.settling = Some(Instant::now() + self.timing.retry_period() * 2);
                }
                self.candidate.observe(&lease, Instant::now());
                self.lease = Some(lease);
                Attempt::Held
            }
            Err(error) => {
                // Whatever went wrong, what we know of the Lease may be out of date.
                self.lease = None;
                match &error {
                    kube::Error::Api(status) if status.code == 409 => Attempt::Conflict,
                    // Deleted since it was read. When it was to be made, it is the namespace that is missing.
                    kube::Error::Api(status) if status.code == 404 && !new => Attempt::Conflict,
                    other => Attempt::Failed(api_error(other)),
                }
            }
        }
    }

    /// Draws the conclusions of an attempt begun at `begun` and says how long to wait before the next.
    fn settle(&mut self, attempt: Attempt, begun: Instant) -> Duration {
        let retry = self.timing.retry_period();
        if !matches!(attempt, Attempt::Failed(_)) && self.trouble.take().is_some() {
            tracing::info!(lease = self.name, namespace = self.namespace, "the Lease can be read and written again");
        }
        self.conflicts = if matches!(attempt, Attempt::Conflict) { self.conflicts + 1 } else { 0 };
        match attempt {
            Attempt::Held => {
                self.held_since(begun);
                retry.saturating_sub(begun.elapsed())
            }
            Attempt::Another { holder, until } => {
                self.settling = None;
                end_term(&self.claims, &format!("{holder} holds it"));
                tracing::debug!(lease = self.name, holder, "another process leads");
                // Not later than when it can be taken, so that a dead leader costs its Lease and no more.
                jittered(retry, self.candidate.identity())
                    .min(until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)))
            }
            // Read again at once, but do not race anyone for it in a hot loop.
            Attempt::Conflict if self.conflicts == 1 => Duration::from_millis(20),
            Attempt::Conflict => jittered(retry, self.candidate.identity()),
            Attempt::Failed(text) => {
                if self.trouble.as_ref() != Some(&text) {
                    tracing::warn!(
                        lease = self.name,
                        namespace = self.namespace,
                        error = text,
                        "the Lease cannot be read or written; no process can lead until it can (needs get, create and update on leases there, which the \
                         release's Role in that namespace gives: where the namespace was made again, `helm upgrade` makes the Role again)"
                    );
                }
                self.trouble = Some(text);
                jittered(retry, self.candidate.identity()).saturating_sub(begun.elapsed()).max(Duration::from_millis(50))
            }
        }
    }

    /// Starts a term, or extends the one under way. `begun` is from before the request was sent, since the API server may have
    /// written the Lease, and another process read it, right then.
    fn held_since(&mut self, begun: Instant) {
        let valid_until = begun + self.timing.renew_deadline();
        let current = self.claims.borrow().clone();
        match current {
            Some(claim) if claim.extend(valid_until, Instant::now()) => {}
            Some(_) => end_term(&self.claims, "it was renewed too late"),
            // The answer came too late to be of use, or belongs to a term that ended meanwhile; the next attempt is near.
            None if Instant::now() >= valid_until => {}
            None if self.settling.is_some_and(|until| Instant::now() < until) => {}
            None => {
                let transitions = self.lease.as_ref().and_then(|lease| lease.spec.as_ref()?.lease_transitions).unwrap_or(0);
                self.settling = None;
                self.epoch = u64::from(transitions.max(0).unsigned_abs()).max(self.epoch + 1);
                tracing::info!(lease = self.name, identity = self.candidate.identity(), epoch = self.epoch, "this process leads now");
                self.claims.send_replace(Some(Claim::new(self.epoch, valid_until)));
            }
        }
    }

    /// Ends the term and, once no write is on its way, gives the Lease up.
    async fn release(self) {
        let Some(claim) = self.claims.send_replace(None) else { return };
        let left = claim.valid_until().saturating_duration_since(Instant::now());
        claim.close();
        let given_up = tokio::time::timeout(left, async {
            claim.drained().await;
            claim.end();
            loop {
                // Read first: the stop may have cut off a renewal of which it is unknown whether it was written.
                let lease = self.api.get(&self.name).await?;
                if lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()) != Some(self.candidate.identity()) {
                    return Ok(());
                }
                let lease = Candidate::released(lease, Timestamp::now());
                match self.api.replace(&self.name, &PostParams::default(), &lease).await {
                    Ok(_) => return Ok(()),
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    Err(error) => return Err(error),
                }
            }
        });
        match given_up.await {
            Ok(Ok(())) => tracing::info!(lease = self.name, epoch = claim.epoch(), "gave up the Lease"),
            Ok(Err(error)) => {
                tracing::warn!(lease = self.name, error = api_error(&error), "the Lease could not be given up; it runs out by itself")
            }
            Err(_) => tracing::warn!(lease = self.name, "a write was still on its way; the Lease runs out by itself"),
        }
    }
}

/// Ends the term, if there is one.
fn end_term(claims: &watch::Sender<Option<Claim>>, why: &str) {
    if let Some(claim) = claims.send_replace(None) {
        claim.end();
        tracing::warn!(epoch = claim.epoch(), why, "this process no longer leads");
    }
}

/// Completes when the claim is over; never without a claim.
async fn lost(claim: Option<Claim>) {
    match claim {
        Some(claim) => claim.lost().await,
        None => std::future::pending().await,
    }
}

/// client-go's jitter factor of 1.2. It is the same each time for one identity: it only has to keep two candidates apart.
fn jittered(period: Duration, identity: &str) -> Duration {
    period.mul_f64(1.0 + 0.2 * fraction(identity, 0))
}
