//! The fence around goldens that are to go, kept by the leader: what `fence::decide` says, done.

mod candidates;
mod marks;
mod trouble;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use kube::{Client, ResourceExt as _};
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
        fresh_ledger,
        ledger::{GoldenKey, Ledger},
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
/// How many times as long as a look took nothing is looked at where goldens only wait for their consumers: counting those of a golden that
/// 100,000 disks need, at each change in a large cluster, would keep a core busy for as long as it is in use.
const REST: u32 = 20;
/// How often all goldens are looked at when nothing is heard of any.
const IDLE: Duration = Duration::from_secs(60);

/// What this process remembers of goldens, by their objects ([`Candidate::key`]).
#[derive(Default)]
struct Memory {
    closed: HashMap<String, Instant>,
    asked: HashMap<String, Known<Consumers>>,
    /// Which went, by the UIDs of their objects: a claim that CDI makes in the last moment is no other golden.
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
    fn before_mark(&mut self, key: &str, fence: Fence) {
        if !matches!(fence, Fence::Closed | Fence::Retired) {
            self.closed.remove(key);
            self.asked.remove(key);
        }
    }

    /// Forgets all goldens but these.
    fn keep(&mut self, present: &[Candidate]) {
        let keys: BTreeSet<String> = present.iter().map(Candidate::key).collect();
        let uids: BTreeSet<String> = present.iter().flat_map(Candidate::uids).collect();
        self.closed.retain(|key, _| keys.contains(key));
        self.asked.retain(|key, _| keys.contains(key));
        self.told.retain(|uid| uids.contains(uid));
        self.tried.retain(|key, _| keys.contains(key));
        self.wished.retain(|key, _| keys.contains(key));
    }

    /// Whether it is news that a golden of these objects goes.
    fn is_news(&mut self, uids: impl Iterator<Item = String>) -> bool {
        let uids: Vec<String> = uids.collect();
        let is_news = !uids.iter().any(|uid| self.told.contains(uid));
        self.told.extend(uids);
        is_news
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
        let began = Instant::now();
        let Ok(next) = round(&shared, &client, &mut memory).await else { return };
        let rest = if next.is_resting { (REST * began.elapsed()).min(SLOWLY) } else { Duration::ZERO };
        let is_heard = tokio::select! { () = stop.cancelled() => return, is_heard = hear(next, &mut goldens, &mut consumers) => is_heard };
        if is_heard {
            tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(GATHER.min(next.pause).max(rest)) => {} }
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
    /// Whether that is all there is to do.
    is_resting: bool,
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
        let is_resting = steps.iter().all(|step| *step == Step::Rest);
        Self { pause: steps.iter().map(pause).fold(slowest, Duration::min), is_waiting: !steps.is_empty(), is_resting }
    }
}

async fn round(shared: &Shared, client: &Client, memory: &mut Memory) -> kube::Result<Next> {
    // Nothing is known of a kind that was taken away and comes back, until it is read.
    let Some(seen) = candidates(shared) else { return Ok(Next { pause: AGAIN, is_waiting: false, is_resting: false }) };
    memory.keep(&seen);
    forget_troubles(shared, &seen.iter().map(|candidate| candidate.name.clone()).collect());
    let (mut steps, mut to_ask) = (Vec::new(), Vec::new());
    for candidate in &seen {
        // What another wish was refused says nothing of this one.
        if memory.wished.insert(candidate.key(), candidate.wish.clone()).is_some_and(|before| before != candidate.wish) {
            memory.tried.remove(&candidate.key());
        }
        match next(shared, candidate, memory) {
            // What the answer was for was refused the last time: not asked again before that is tried again.
            Step::Ask => match memory.tried.get(&candidate.key()).and_then(|tried| tried.left(Instant::now())) {
                Some(left) => steps.push(Step::Wait(left)),
                None => to_ask.push(candidate.key()),
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
                seen.iter().filter(|candidate| to_ask.contains(&candidate.key())).for_each(|candidate| say(shared, candidate, Some(&text)));
            }
            steps.push(Step::Wait(wait));
            return Ok(Next::after(&steps));
        }
    };
    memory.question = Tried::default();
    // The look takes its time in a large cluster. What was wished for, and what could stand in, is asked again after it: the
    // last mark has no way back. Only this loop writes the fence, so the wait that is over stays over.
    let Some(now) = candidates(shared) else { return Ok(Next { pause: AGAIN, is_waiting: true, is_resting: false }) };
    for candidate in now.iter().filter(|candidate| to_ask.contains(&candidate.key())) {
        memory.asked.insert(candidate.key(), needed(shared, &fresh, candidate));
        let step = next(shared, candidate, memory);
        memory.asked.remove(&candidate.key());
        steps.push(go(shared, client, candidate, step, memory).await?);
    }
    Ok(Next::after(&steps))
}

fn needed(shared: &Shared, ledger: &Ledger, candidate: &Candidate) -> Known<Consumers> {
    let classes = crate::golden::observe::classes(&shared.cluster);
    let identity = candidate.identity();
    ledger.consumers(GoldenKey { name: &candidate.name, identity: identity.as_ref() }, shared.usage.storage(&classes))
}

fn next(shared: &Shared, candidate: &Candidate, memory: &mut Memory) -> Step {
    if candidate.odd.is_some() {
        memory.closed.remove(&candidate.key());
        return Step::Rest;
    }
    let seen = needed(shared, &shared.consumers.read(), candidate);
    let mut observed = Observed {
        wish: candidate.wish.clone(),
        claim: candidate.claim_fence(),
        volume: candidate.volume_fence(),
        is_terminating: candidate.is_terminating(),
        needed: Needed { seen, asked: memory.asked.get(&candidate.key()).cloned() },
        closed_for: Duration::ZERO,
    };
    if observed.is_all(Fence::Closed) {
        observed.closed_for = memory.closed.entry(candidate.key()).or_insert_with(Instant::now).elapsed();
    } else {
        memory.closed.remove(&candidate.key());
    }
    decide(&observed, shared.retire_wait)
}

/// Takes a step where it is due, and keeps in mind how it went: what is refused for one golden keeps no other waiting. Gives what there is
/// to be waited for.
///
/// # Errors
/// Only where another leads by now.
async fn go(shared: &Shared, client: &Client, candidate: &Candidate, step: Step, memory: &mut Memory) -> kube::Result<Step> {
    let key = candidate.key();
    if let Some(odd) = &candidate.odd {
        say(shared, candidate, Some(&trouble::of_odd(odd)));
        return Ok(Step::Rest);
    }
    if !matches!(step, Step::Mark(_) | Step::Delete) {
        // Nothing is wanted of the API server that it could refuse.
        memory.tried.remove(&key);
        say(shared, candidate, None);
        return Ok(step);
    }
    if let Some(left) = memory.tried.get(&key).and_then(|tried| tried.left(Instant::now())) {
        return Ok(Step::Wait(left));
    }
    match act(shared, client, candidate, &step, memory).await {
        Ok(true) => {
            memory.tried.remove(&key);
            say(shared, candidate, None);
            Ok(step)
        }
        // It is not as it was decided on: the watch is behind, for minutes at worst. Not everything is asked again each second meanwhile.
        Ok(false) => Ok(Step::Wait(memory.tried.entry(key).or_default().failed(Instant::now(), FAILED))),
        Err(Refused { error, .. }) if is_lost(&error) => Err(error),
        Err(Refused { what, error }) => {
            let tried = memory.tried.entry(key).or_default();
            let wait = tried.failed(Instant::now(), FAILED);
            let text = trouble::of_write(&what, &error, tried.failures());
            tracing::warn!(golden = candidate.name, what, error = api_error(&error), retry_in = ?wait, "a step of retiring failed");
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
            memory.before_mark(&candidate.key(), *fence);
            if !marks::mark(client, &shared.catalog, candidate, *fence).await? {
                return Ok(false);
            }
            tracing::info!(golden = candidate.name, ?fence, "the fence around the golden is written");
            if *fence == Fence::Retired {
                tell(shared, candidate, memory);
            }
        }
        Step::Delete => {
            // Where the last mark was not written by this process, or only in part, it is told now.
            tell(shared, candidate, memory);
            marks::delete(client, &shared.catalog, candidate).await?;
            tracing::info!(golden = candidate.name, "the retired golden is deleted");
        }
    }
    Ok(true)
}

/// What the trouble was with goldens that are gone, or that nothing is wanted of any more.
fn forget_troubles(shared: &Shared, present: &BTreeSet<String>) {
    shared.fence_troubles.keep(present).into_iter().for_each(|image| shared.queue.add(image));
}

/// Tells the trouble with a golden where it is news, on its claim or DataVolume and by the status of its image.
fn say(shared: &Shared, candidate: &Candidate, trouble: Option<&str>) {
    let image = candidate.image.as_ref().map(|image| image.name_any());
    if !shared.fence_troubles.set(&candidate.name, image.as_deref(), trouble) {
        return;
    }
    image.into_iter().for_each(|image| shared.queue.add(image));
    if let Some(text) = trouble {
        let reason = Reason::CannotRetire;
        event(shared, candidate, Severity::Warning, reason, format!("{text} {}", reason.remedy()));
    }
}

fn event(shared: &Shared, candidate: &Candidate, severity: Severity, reason: Reason, text: String) {
    shared.recorder.tell(events::Note { regarding: candidate.regarding(), severity, reason: reason.to_string(), action: "Retire", text });
}

/// An Event and a metric for a golden that goes; in spite of what needs it, a warning that says so.
fn tell(shared: &Shared, candidate: &Candidate, memory: &mut Memory) {
    if !memory.is_news(candidate.uids()) {
        return;
    }
    let name = &candidate.name;
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
        for (steps, pause, is_waiting, is_resting) in [
            (vec![], IDLE, false, true),
            (vec![Step::Rest], SLOWLY, true, true),
            (vec![wait(3), Step::Rest, wait(2)], Duration::from_secs(2), true, false),
            (vec![wait(75)], SLOWLY, true, false),
            (vec![wait(75), Step::Ask], AGAIN, true, false),
            (vec![Step::Mark(Fence::Retired), Step::Delete], SLOWLY, true, false),
        ] {
            assert_eq!(Next::after(&steps), Next { pause, is_waiting, is_resting }, "{steps:?}");
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
            let next = Next { pause: IDLE, is_waiting, is_resting: false };
            let heard = hear(next, &mut heard_goldens, &mut heard_consumers).now_or_never();
            assert_eq!(heard, expected, "waiting: {is_waiting}, golden: {golden}, consumer: {consumer}");
        }
    }

    /// Nearly the whole wait had run when the golden was opened again; it is closed once more, and the watch is behind.
    #[test]
    fn r23_a_wait_counts_for_no_fence_that_was_opened_since() {
        for (fence, is_kept) in [(Fence::Open, false), (Fence::Retiring, false), (Fence::Closed, true), (Fence::Retired, true)] {
            let mut memory = Memory::default();
            memory.closed.insert("key".into(), Instant::now());
            memory.asked.insert("key".into(), Ok(Consumers::default()));
            memory.before_mark("key", fence);
            let kept = (memory.closed.contains_key("key"), memory.asked.contains_key("key"));
            assert_eq!(kept, (is_kept, is_kept), "{fence:?}");
        }
    }

    /// Retired while it was a DataVolume alone; CDI makes its claim in the last moment.
    #[test]
    fn r23_a_golden_that_goes_is_told_once() {
        let mut memory = Memory::default();
        let mut is_news = |uids: &[&str]| memory.is_news(uids.iter().map(|uid| (*uid).to_owned()));
        assert_eq!([is_news(&["dv"]), is_news(&["pvc", "dv"]), is_news(&["pvc"]), is_news(&["other"])], [true, false, false, true]);
    }
}
