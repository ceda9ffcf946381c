//! The fence around goldens that are to go, kept by the leader: what `fence::decide` says, done.

mod candidates;
mod marks;
mod trouble;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::{Client, Resource as _, ResourceExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{
    candidates::{Candidate, candidates, is_wished_still},
    marks::Refused,
};
use super::{controller::Shared, tried::Tried};
use crate::{
    fence::{Needed, Observed, Step, Wish, decide},
    rules::{
        Reason,
        clone::{Known, Unknown},
        consumers::Consumers,
        fence::Fence,
    },
    run::{
        api_error,
        backoff::Backoff,
        client::is_lost,
        events::{self, Severity},
    },
    world::{
        facts, fresh_ledger,
        ledger::{GoldenKey, Ledger, Storage},
    },
};

pub(super) use self::{
    candidates::{is_to_go, unreadable},
    trouble::Troubles,
};

/// What changes within this time is looked at together.
const GATHER: Duration = Duration::from_millis(500);
/// How soon what could not be done, because something changed meanwhile, is looked at again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often the goldens that are to go are looked at when nothing is heard of them or their consumers.
const SLOWLY: Duration = Duration::from_secs(10);
/// The wait between two attempts at what the API server does not let be done.
const FAILED: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// How often all goldens are looked at when nothing is heard of any.
const IDLE: Duration = Duration::from_secs(60);

/// What this process remembers of goldens, by their claims' UIDs.
#[derive(Default)]
struct Memory {
    closed: HashMap<String, Instant>,
    asked: HashMap<String, Known<Consumers>>,
    told: BTreeSet<String>,
    /// Writes that failed.
    tried: HashMap<String, Tried>,
    /// What was wished of each in the last round.
    wished: HashMap<String, Wish>,
    /// The question to the API server who needs goldens, which is asked once for all.
    question: Tried,
}

impl Memory {
    /// A fence that is opened, be it in part, lets somebody in: nothing that was waited for or asked before counts for it afterwards,
    /// though the watch may show it closed for a while yet.
    fn before_mark(&mut self, uid: &str, fence: Fence) {
        if !matches!(fence, Fence::Closed | Fence::Retired) {
            self.closed.remove(uid);
            self.asked.remove(uid);
        }
    }

    /// Forgets all goldens but these.
    fn keep(&mut self, present: &BTreeSet<String>) {
        self.closed.retain(|uid, _| present.contains(uid));
        self.asked.retain(|uid, _| present.contains(uid));
        self.told.retain(|uid| present.contains(uid));
        self.tried.retain(|uid, _| present.contains(uid));
        self.wished.retain(|uid, _| present.contains(uid));
    }
}

/// Keeps the fence until `stop`: woken by what is watched, and by the end of a wait.
pub(super) async fn keep(shared: Arc<Shared>, client: Client, stop: CancellationToken) {
    let mut memory = Memory::default();
    // What a former term was refused may be allowed by now.
    forget_troubles(&shared, &BTreeSet::new());
    let (mut consumers, mut goldens) = (shared.consumers.changes(), shared.goldens_changed.subscribe());
    loop {
        consumers.mark_unchanged();
        goldens.mark_unchanged();
        // The only failure that ends a round is that another leads.
        let Ok(next) = round(&shared, &client, &mut memory).await else { return };
        let is_heard = tokio::select! { () = stop.cancelled() => return, is_heard = hear(next, &mut goldens, &mut consumers) => is_heard };
        if is_heard {
            tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(GATHER.min(next.pause)) => {} }
        }
    }
}

/// Waits until the next look is due. Gives whether that is because something was heard.
async fn hear<C>(next: Next, goldens: &mut watch::Receiver<()>, consumers: &mut watch::Receiver<C>) -> bool {
    tokio::select! {
        () = tokio::time::sleep(next.pause) => false,
        Ok(()) = goldens.changed() => true,
        // In a large cluster consumers change all the time, which is nothing to goldens that stay.
        Ok(()) = consumers.changed(), if next.is_waiting => true,
    }
}

/// When the next look is due, if nothing is heard before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Next {
    /// After this time.
    pause: Duration,
    /// Whether a golden waits for its consumers.
    is_waiting: bool,
}

impl Next {
    /// After these steps.
    fn after(steps: &[Step]) -> Self {
        let pause = |step: &Step| match step {
            Step::Wait(left) => *left,
            Step::Ask => AGAIN,
            Step::Rest | Step::Mark(_) | Step::Delete => SLOWLY,
        };
        let slowest = if steps.is_empty() { IDLE } else { SLOWLY };
        Self { pause: steps.iter().map(pause).fold(slowest, Duration::min), is_waiting: !steps.is_empty() }
    }
}

async fn round(shared: &Shared, client: &Client, memory: &mut Memory) -> kube::Result<Next> {
    // Nothing is known of a kind that was taken away and comes back, until it is read.
    let Some(seen) = candidates(shared) else { return Ok(Next { pause: AGAIN, is_waiting: false }) };
    memory.keep(&seen.iter().map(Candidate::uid).collect());
    forget_troubles(shared, &seen.iter().map(Candidate::name).collect());
    let (mut steps, mut to_ask) = (Vec::new(), Vec::new());
    for candidate in &seen {
        // What another wish was refused says nothing of this one.
        if memory.wished.insert(candidate.uid(), candidate.wish.clone()).is_some_and(|before| before != candidate.wish) {
            memory.tried.remove(&candidate.uid());
        }
        match next(shared, candidate, memory) {
            // What the answer was for was refused the last time: not asked again before that is tried again.
            Step::Ask => match memory.tried.get(&candidate.uid()).and_then(|tried| tried.left(Instant::now())) {
                Some(left) => steps.push(Step::Wait(left)),
                None => to_ask.push(candidate.uid()),
            },
            step => steps.push(go(shared, client, candidate, step, memory).await?),
        }
    }
    if to_ask.is_empty() {
        // Asked for nobody any more: the next question is a new one.
        memory.question = Tried::default();
        return Ok(Next::after(&steps));
    }
    if let Some(left) = memory.question.left(Instant::now()) {
        steps.push(Step::Wait(left));
        return Ok(Next::after(&steps));
    }
    // One look at the API server serves every golden whose wait is over by now.
    let fresh = match fresh_ledger(client, &shared.catalog).await {
        Ok(fresh) => fresh,
        Err(unknown) => {
            let wait = memory.question.failed(Instant::now(), FAILED);
            tracing::warn!(%unknown, retry_in = ?wait, "who needs a golden cannot be asked");
            if let Some(text) = trouble::of_question(&unknown.to_string(), memory.question.failures()) {
                seen.iter().filter(|candidate| to_ask.contains(&candidate.uid())).for_each(|candidate| say(shared, candidate, Some(&text)));
            }
            steps.push(Step::Wait(wait));
            return Ok(Next::after(&steps));
        }
    };
    memory.question = Tried::default();
    // The look takes its time in a large cluster. What was wished for, and what could stand in, is asked again after it: the
    // last mark has no way back. Only this loop writes the fence, so the wait that is over stays over.
    let Some(now) = candidates(shared) else { return Ok(Next { pause: AGAIN, is_waiting: true }) };
    for candidate in now.iter().filter(|candidate| to_ask.contains(&candidate.uid())) {
        memory.asked.insert(candidate.uid(), needed(shared, &fresh, candidate));
        let step = next(shared, candidate, memory);
        memory.asked.remove(&candidate.uid());
        steps.push(go(shared, client, candidate, step, memory).await?);
    }
    Ok(Next::after(&steps))
}

fn needed(shared: &Shared, ledger: &Ledger, candidate: &Candidate) -> Known<Consumers> {
    let classes = crate::golden::observe::classes(&shared.cluster);
    let independent = &shared.usage.settings().independent_classes;
    let storage = Storage { classes: &classes, independent, now: Timestamp::now().as_second() };
    let (name, identity) = (candidate.name(), candidate.identity());
    ledger.consumers(GoldenKey { name: &name, identity: identity.as_ref() }, storage)
}

fn next(shared: &Shared, candidate: &Candidate, memory: &mut Memory) -> Step {
    if candidate.odd.is_some() {
        memory.closed.remove(&candidate.uid());
        return Step::Rest;
    }
    let (claim, volume) = (facts::fence(&candidate.claim), candidate.volume_fence());
    let is_closed = claim == Fence::Closed && volume.is_none_or(|volume| volume == Fence::Closed);
    let closed_for = if is_closed {
        memory.closed.entry(candidate.uid()).or_insert_with(Instant::now).elapsed()
    } else {
        memory.closed.remove(&candidate.uid());
        Duration::ZERO
    };
    let observed = Observed {
        wish: candidate.wish.clone(),
        claim,
        volume,
        is_terminating: candidate.claim.metadata.deletion_timestamp.is_some()
            || candidate.volume.as_ref().is_some_and(|volume| volume.metadata.deletion_timestamp.is_some()),
        needed: Needed { seen: needed(shared, &shared.consumers.read(), candidate), asked: memory.asked.get(&candidate.uid()).cloned() },
        closed_for,
    };
    decide(&observed, shared.retire_wait)
}

/// Takes a step where it is due, and keeps in mind how it went: what is refused for one golden keeps no other waiting. Gives what there is
/// to be waited for.
///
/// # Errors
/// Only where another leads by now.
async fn go(shared: &Shared, client: &Client, candidate: &Candidate, step: Step, memory: &mut Memory) -> kube::Result<Step> {
    let uid = candidate.uid();
    if let Some(odd) = &candidate.odd {
        say(shared, candidate, Some(&trouble::of_odd(odd)));
        return Ok(Step::Rest);
    }
    if !matches!(step, Step::Mark(_) | Step::Delete) {
        // Nothing is wanted of the API server that it could refuse.
        memory.tried.remove(&uid);
        say(shared, candidate, None);
        return Ok(step);
    }
    if let Some(left) = memory.tried.get(&uid).and_then(|tried| tried.left(Instant::now())) {
        return Ok(Step::Wait(left));
    }
    match act(shared, client, candidate, &step, memory).await {
        Ok(true) => {
            memory.tried.remove(&uid);
            say(shared, candidate, None);
            Ok(step)
        }
        // It is not as it was decided on: the watch is behind, for minutes at worst. Not everything is asked again each second meanwhile.
        Ok(false) => Ok(Step::Wait(memory.tried.entry(uid).or_default().failed(Instant::now(), FAILED))),
        Err(Refused { error, .. }) if is_lost(&error) => Err(error),
        Err(Refused { what, error }) => {
            let tried = memory.tried.entry(uid).or_default();
            let wait = tried.failed(Instant::now(), FAILED);
            let text = trouble::of_write(&what, &error, tried.failures());
            tracing::warn!(golden = candidate.name(), what, error = api_error(&error), retry_in = ?wait, "a step of retiring failed");
            if let Some(text) = text {
                say(shared, candidate, Some(&text));
            }
            Ok(Step::Wait(wait))
        }
    }
}

/// Does a step. Gives whether it was done: not where the golden, or what is wished of it, changed meanwhile, which is to be looked at again.
async fn act(shared: &Shared, client: &Client, candidate: &Candidate, step: &Step, memory: &mut Memory) -> Result<bool, Refused> {
    match step {
        Step::Rest | Step::Ask | Step::Wait(_) => {}
        Step::Mark(fence) => {
            let is_last = *fence == Fence::Retired && !candidate.is_retired();
            if is_last && !is_wished_still(shared, client, candidate).await? {
                return Ok(false);
            }
            memory.before_mark(&candidate.uid(), *fence);
            if !marks::mark(client, &shared.catalog, candidate, *fence).await? {
                return Ok(false);
            }
            tracing::info!(golden = candidate.name(), ?fence, "the fence around the golden is written");
            if *fence == Fence::Retired {
                tell(shared, candidate, memory);
            }
        }
        Step::Delete => {
            // Where the last mark was not written by this process, or only in part, it is told now.
            tell(shared, candidate, memory);
            marks::delete(client, &shared.catalog, candidate).await?;
            tracing::info!(golden = candidate.name(), "the retired golden is deleted");
        }
    }
    Ok(true)
}

/// What the trouble was with goldens that are gone, or that nothing is wanted of any more.
fn forget_troubles(shared: &Shared, present: &BTreeSet<String>) {
    shared.fence_troubles.keep(present).into_iter().for_each(|image| shared.queue.add(image));
}

/// Tells the trouble with a golden where it is news, on its claim and by the status of its image.
fn say(shared: &Shared, candidate: &Candidate, trouble: Option<&str>) {
    let image = candidate.image.as_ref().map(|image| image.name_any());
    if !shared.fence_troubles.set(&candidate.name(), image.as_deref(), trouble) {
        return;
    }
    image.into_iter().for_each(|image| shared.queue.add(image));
    if let Some(text) = trouble {
        let reason = Reason::CannotRetire;
        event(shared, candidate, Severity::Warning, reason, format!("{text} {}", reason.remedy()));
    }
}

fn event(shared: &Shared, candidate: &Candidate, severity: Severity, reason: Reason, text: String) {
    let mut regarding: ObjectReference = candidate.claim.object_ref(&());
    regarding.resource_version = None;
    shared.recorder.tell(events::Note { regarding, severity, reason: reason.to_string(), action: "Retire", text });
}

/// An Event and a metric for a golden that goes; in spite of what needs it, a warning that says so.
fn tell(shared: &Shared, candidate: &Candidate, memory: &mut Memory) {
    if !memory.told.insert(candidate.uid()) {
        return;
    }
    let name = candidate.name();
    let (severity, text) = match &candidate.wish {
        Wish::Force(reason) => {
            shared.metrics.forced_retire(&candidate.image.as_ref().map(|image| image.name_any()).unwrap_or_default());
            let needed = needed(shared, &shared.consumers.read(), candidate);
            let blockers = needed
                .map(|consumers| consumers.blockers(10))
                .unwrap_or_else(|Unknown(why)| Some(why))
                .unwrap_or_else(|| "nothing".to_owned());
            let reason: String = reason.chars().take(200).collect();
            (Severity::Warning, format!("Golden {name} is retired by force ({reason}), though it is needed by: {blockers}."))
        }
        Wish::Keep | Wish::Retire => (Severity::Normal, format!("Golden {name} is retired: nothing needs it.")),
    };
    tracing::info!(golden = name, text, "retired");
    event(shared, candidate, severity, Reason::Retired, text);
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn the_next_look_is_due_when_the_first_golden_can_go_on() {
        let wait = |seconds| Step::Wait(Duration::from_secs(seconds));
        for (steps, pause, is_waiting) in [
            (vec![], IDLE, false),
            (vec![Step::Rest], SLOWLY, true),
            (vec![wait(3), Step::Rest, wait(2)], Duration::from_secs(2), true),
            (vec![wait(75)], SLOWLY, true),
            (vec![wait(75), Step::Ask], AGAIN, true),
            (vec![Step::Mark(Fence::Retired), Step::Delete], SLOWLY, true),
        ] {
            assert_eq!(Next::after(&steps), Next { pause, is_waiting }, "{steps:?}");
        }
    }

    /// A golden that changes, a mark taken off by hand say, is looked at in any case; a consumer that goes wakes only who waits for it.
    #[test]
    fn who_waits_is_woken_by_a_consumer_that_goes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let _entered = runtime.enter();
        for (is_waiting, golden, consumer, expected) in [
            (true, false, false, None),
            (true, false, true, Some(true)),
            (false, false, true, None),
            (false, true, false, Some(true)),
            (true, true, true, Some(true)),
        ] {
            let (goldens, consumers) = (watch::Sender::new(()), watch::Sender::new(()));
            let (mut heard_goldens, mut heard_consumers) = (goldens.subscribe(), consumers.subscribe());
            if golden {
                goldens.send_replace(());
            }
            if consumer {
                consumers.send_replace(());
            }
            let next = Next { pause: IDLE, is_waiting };
            let heard = hear(next, &mut heard_goldens, &mut heard_consumers).now_or_never();
            assert_eq!(heard, expected, "waiting: {is_waiting}, golden: {golden}, consumer: {consumer}");
        }
    }

    /// Nearly the whole wait had run when the golden was opened again; it is closed once more, and the watch is behind.
    #[test]
    fn r23_a_wait_counts_for_no_fence_that_was_opened_since() {
        for (fence, is_kept) in [(Fence::Open, false), (Fence::Retiring, false), (Fence::Closed, true), (Fence::Retired, true)] {
            let mut memory = Memory::default();
            memory.closed.insert("uid".into(), Instant::now());
            memory.asked.insert("uid".into(), Ok(Consumers::default()));
            memory.before_mark("uid", fence);
            let kept = (memory.closed.contains_key("uid"), memory.asked.contains_key("uid"));
            assert_eq!(kept, (is_kept, is_kept), "{fence:?}");
        }
    }
}
