//! Clones that do not move: looked at one by one once they are old enough, told once for each cause. Clones whose golden is still being made are told that they wait.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::{Api, Client, ResourceExt as _};
use tokio_util::sync::CancellationToken;

use super::{
    cloned::{GoldenSeen, golden_seen},
    rest,
};
use crate::{
    daemon::controller::Shared,
    foreign::{Condition, DataVolume, DataVolumeStatus},
    rules::{
        Reason,
        clone::suspended_message,
        pods::{PodFacts, holds_golden},
        stuck::{CdiWords, CloneFacts, GoldenState, Stuck, StuckCause, stuck},
    },
    run::events::{Note, Severity},
    world::ledger::RunningClone,
};

/// The most clones looked at in one round; each costs a read of the API server. Those that are left have their turn in the next one.
const MOST: usize = 200;
/// Reads a second.
const READS: u32 = 20;
/// The age at which a clone that waits for its golden is told so, in seconds: a golden that is nearly done needs no word.
const WAITS: i64 = 10;

/// What is remembered of a clone between two looks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// Phase and progress; while they change, the clone moves.
    shape: (String, String),
    /// Since when they are so, in seconds since 1970.
    since: i64,
    /// The cause that was told, and that still holds it as far as the last look showed.
    told: Option<StuckCause>,
    /// The round in which it was last looked at.
    round: u64,
}

/// A clone that waits for its golden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waits {
    /// Whether nobody works on that, because its image is suspended.
    is_suspended: bool,
    /// Since when it is so, in seconds since 1970, as far as was seen.
    since: i64,
}

/// What is remembered of all clones between two looks.
#[derive(Default)]
struct Memory {
    /// Since when this process looks, in seconds since 1970.
    began: i64,
    /// Counts the rounds.
    round: u64,
    seen: HashMap<String, Seen>,
    /// Those that were told that they wait for their golden.
    waiting: HashMap<String, Waits>,
    /// Those that wait for a pod or a person: they begin to move when that comes, however old they are by then.
    idle: HashSet<String>,
}

/// Looks until `stop`.
pub async fn run(shared: Arc<Shared>, client: Client, stop: CancellationToken) {
    let deadline = shared.usage.settings().stuck_clone;
    let pause = (deadline / 4).clamp(Duration::from_secs(1), Duration::from_secs(60));
    let mut memory = Memory { began: Timestamp::now().as_second(), ..Memory::default() };
    loop {
        let known = shared.consumers.read().running_clones(Timestamp::now().as_second() - seconds(deadline).min(WAITS));
        if let Ok(clones) = known {
            tokio::select! { () = stop.cancelled() => break, () = round(&shared, &client, clones, &mut memory) => {} }
        }
        if !rest(&stop, pause).await {
            break;
        }
    }
    shared.metrics.stuck_clones(&BTreeMap::new());
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX / 4)
}

fn key_of(clone: &RunningClone) -> String {
    clone.uid.clone().unwrap_or_else(|| format!("{}/{}", clone.namespace, clone.name))
}

/// Splits off the clones whose turn it is: never looked at before longest ago, and of those the oldest first. However many never move, none keeps another from its turn for ever.
fn in_turn(mut clones: Vec<RunningClone>, seen: &HashMap<String, Seen>, most: usize) -> (Vec<RunningClone>, Vec<RunningClone>) {
    clones.sort_by_cached_key(|clone| {
        let key = key_of(clone);
        (seen.get(&key).map_or(0, |seen| seen.round), clone.created, key)
    });
    let later = clones.split_off(most.min(clones.len()));
    (clones, later)
}

/// Whether a clone waits for a pod or a person, which is no trouble. A claim alone does where its class binds with its first consumer.
fn is_idle(shared: &Shared, clone: &RunningClone) -> bool {
    clone.waits && (clone.has_volume || binds_late(shared, clone) == Some(true))
}

/// Whether a clone's class binds with its first consumer; `None` where that is not known.
fn binds_late(shared: &Shared, clone: &RunningClone) -> Option<bool> {
    Some(shared.cluster.classes.get("", clone.class.as_deref()?)?.waits_for_consumer)
}

/// From when on a clone counts that was never looked at and shows no progress.
///
/// One that was seen to wait for its pod moves from now on. One that may have waited before this process looked counts from then on:
/// nothing on it says when its VM was started, and a disk of a VM that was stopped for a month is not stuck when the leader changes.
fn counted_from(created: i64, golden: i64, idle: Idle, began: i64, now: i64) -> i64 {
    match idle {
        Idle::Seen => now,
        Idle::Possible => created.max(golden).max(began),
        Idle::Never => created.max(golden),
    }
}

/// How a clone waits for its golden now, that was created then: since this look, where it was seen to wait in the other way before.
fn waits(known: Option<Waits>, is_suspended: bool, created: i64, now: i64) -> Waits {
    match known {
        Some(known) if known.is_suspended == is_suspended => known,
        Some(_) => Waits { is_suspended, since: now },
        None => Waits { is_suspended, since: created },
    }
}

/// Whether a clone waited for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idle {
    /// At the last look.
    Seen,
    /// Perhaps, before the first look.
    Possible,
    /// Its class binds at once.
    Never,
}

async fn round(shared: &Shared, client: &Client, clones: Vec<RunningClone>, memory: &mut Memory) {
    let mut goldens: HashMap<String, GoldenSeen> = HashMap::new();
    let mut counts: BTreeMap<(String, StuckCause), usize> = BTreeMap::new();
    let Memory { began, round, seen: mut former, waiting: were_waiting, idle: were_idle } = std::mem::take(memory);
    (memory.began, memory.round) = (began, round + 1);
    let oldest = Timestamp::now().as_second() - seconds(shared.usage.settings().stuck_clone);
    let mut due = Vec::new();
    for clone in clones {
        let golden = goldens.entry(clone.golden.clone()).or_insert_with(|| golden_seen(shared, &clone.golden));
        let key = key_of(&clone);
        let is_suspended = golden.state == GoldenState::Suspended;
        if is_suspended || golden.state == GoldenState::Coming {
            let known = were_waiting.get(&key).copied();
            let waits = waits(known, is_suspended, clone.created, Timestamp::now().as_second());
            if known != Some(waits) {
                tell_waiting(shared, &clone, golden);
            }
            memory.waiting.insert(key.clone(), waits);
        }
        // These do what they should; nothing is asked about them, and they take nobody's turn. On a suspended image nobody works: who waits
        // for that is stuck in the end.
        if golden.state == GoldenState::Coming {
            continue;
        }
        if is_idle(shared, &clone) {
            memory.idle.insert(key);
        } else if clone.created <= oldest {
            due.push(clone);
        } else if were_idle.contains(&key) {
            memory.idle.insert(key);
        }
    }
    let (now, later) = in_turn(due, &former, MOST);
    if !later.is_empty() {
        tracing::debug!(now = now.len(), later = later.len(), "the other clones have their turn in the next round");
    }
    let mut pace = tokio::time::interval(Duration::from_secs(1) / READS);
    for (clone, is_now) in now.into_iter().map(|clone| (clone, true)).chain(later.into_iter().map(|clone| (clone, false))) {
        let mut golden = goldens.entry(clone.golden.clone()).or_insert_with(|| golden_seen(shared, &clone.golden)).clone();
        let key = key_of(&clone);
        // Before its image was suspended it waited as it should.
        golden.since = memory.waiting.get(&key).map_or(golden.since, |waits| golden.since.max(waits.since));
        let known = former.remove(&key);
        let status = if !is_now {
            None
        } else if clone.has_volume {
            pace.tick().await;
            read(client, &clone).await
        } else {
            Some(DataVolumeStatus::default())
        };
        // Not looked at, or it could not be asked for now: what is known of it stays, and so does what of it counts.
        let Some(status) = status else {
            if let Some(seen) = known {
                if let Some(cause) = seen.told {
                    *counts.entry((golden.image.clone(), cause)).or_default() += 1;
                }
                memory.seen.insert(key, Seen { round: if is_now { memory.round } else { seen.round }, ..seen });
            } else if were_idle.contains(&key) {
                memory.idle.insert(key);
            }
            continue;
        };
        let idle = match binds_late(shared, &clone) {
            _ if were_idle.contains(&key) => Idle::Seen,
            Some(false) => Idle::Never,
            Some(true) | None => Idle::Possible,
        };
        let since = counted_from(clone.created, golden.since, idle, began, Timestamp::now().as_second());
        let entry = look(known, &status, since, memory.round);
        let still = Timestamp::now().as_second() - entry.since.max(golden.since);
        let found = judge(shared, &clone, &status, &golden, Duration::from_secs(u64::try_from(still).unwrap_or(0)));
        let told = found.as_ref().map(|stuck| stuck.cause);
        if let Some(stuck) = found {
            *counts.entry((golden.image.clone(), stuck.cause)).or_default() += 1;
            if entry.told != told {
                tell(shared, &clone, &stuck);
            }
        }
        memory.seen.insert(key, Seen { told, ..entry });
    }
    shared.metrics.stuck_clones(&counts.iter().map(|((image, cause), count)| ((image.as_str(), cause.as_str()), *count)).collect());
}

/// What CDI says of a clone now; `None` where it is gone, or cannot be asked for.
async fn read(client: &Client, clone: &RunningClone) -> Option<DataVolumeStatus> {
    let api: Api<DataVolume> = Api::namespaced(client.clone(), &clone.namespace);
    let volume = api.get_opt(&clone.name).await.ok().flatten()?;
    (volume.uid() == clone.uid).then(|| volume.status.read().cloned().unwrap_or_default())
}

/// What to remember of a clone after this look. `since` is from when on one without progress has stood still that was never looked at.
fn look(former: Option<Seen>, status: &DataVolumeStatus, since: i64, round: u64) -> Seen {
    let progress = status.progress.clone().filter(|progress| progress != "N/A").unwrap_or_default();
    let shape = (status.phase.clone().unwrap_or_default(), progress);
    match former {
        Some(former) if former.shape == shape => Seen { round, ..former },
        // A clone in storage shows no progress: one that is as old as this has stood still all the time. A copy may have moved a moment ago.
        None if shape.1.is_empty() => Seen { shape, since, told: None, round },
        other => Seen { shape, since: Timestamp::now().as_second(), told: other.and_then(|seen| seen.told), round },
    }
}

fn judge(shared: &Shared, clone: &RunningClone, status: &DataVolumeStatus, golden: &GoldenSeen, still: Duration) -> Option<Stuck> {
    let words = |kind: &str| {
        let said = status.condition(kind).filter(|condition| condition.status != "True");
        let text = |part: fn(&Condition) -> Option<&String>| said.and_then(part).map(String::as_str).unwrap_or_default();
        CdiWords { reason: text(|said| said.reason.as_ref()), message: text(|said| said.message.as_ref()) }
    };
    let pods = shared.cluster.pods.all();
    let holds = |pod: &&Arc<PodFacts>| holds_golden(pod, &shared.catalog, &clone.golden);
    let held_by = pods.iter().find(holds).map(|pod| format!("{}/{}", shared.catalog, pod.name));
    let facts = CloneFacts {
        phase: status.phase.as_deref().unwrap_or_default(),
        bound: words("Bound"),
        running: words("Running"),
        still,
        deadline: shared.usage.settings().stuck_clone,
        golden: golden.state,
        held_by: held_by.as_deref(),
        classes: (clone.class.as_deref(), golden.class.as_deref()),
    };
    stuck(&clone.golden, &facts)
}

fn tell(shared: &Shared, clone: &RunningClone, stuck: &Stuck) {
    tracing::warn!(namespace = clone.namespace, name = clone.name, cause = %stuck.cause, message = stuck.message, "a clone is stuck");
    note(shared, clone, Severity::Warning, Reason::CloneStuck, format!("{}: {}", stuck.cause, stuck.message));
}

/// CDI's own words on a clone that waits look like a failure, so a person is told that it is none.
fn tell_waiting(shared: &Shared, clone: &RunningClone, golden: &GoldenSeen) {
    let text = waiting_text(&clone.golden, golden);
    tracing::info!(namespace = clone.namespace, name = clone.name, golden = clone.golden, "a clone waits for its golden");
    note(shared, clone, Severity::Normal, Reason::WaitingForGolden, text);
}

fn waiting_text(name: &str, golden: &GoldenSeen) -> String {
    if golden.state == GoldenState::Suspended {
        return format!("Golden {name} {}.", suspended_message(&golden.image));
    }
    let reason = if golden.reason.is_empty() { String::new() } else { format!(" ({})", golden.reason) };
    let look = if golden.image.is_empty() {
        String::new()
    } else {
        format!("; `kubectl describe goldenimage {}` tells how far it is", golden.image)
    };
    format!("Golden {name} is not Ready yet{reason}: the clone waits and goes on by itself{look}.")
}

fn note(shared: &Shared, clone: &RunningClone, severity: Severity, reason: Reason, text: String) {
    let (api_version, kind) = if clone.has_volume { ("cdi.kubevirt.io/v1beta1", "DataVolume") } else { ("v1", "PersistentVolumeClaim") };
    shared.recorder.tell(Note {
        regarding: ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(clone.namespace.clone()),
            name: Some(clone.name.clone()),
            uid: clone.uid.clone(),
            ..ObjectReference::default()
        },
        severity,
        reason: reason.to_string(),
        action: "Clone",
        text,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clone(name: &str, created: i64) -> RunningClone {
        RunningClone {
            namespace: "a".into(),
            name: name.into(),
            uid: None,
            has_volume: true,
            golden: "g".into(),
            created,
            class: None,
            waits: false,
        }
    }

    /// However many clones never move, each has its turn, the newest too; and none twice before all have had theirs.
    #[test]
    fn no_clone_starves_another() {
        let clones: Vec<_> = (0..23).map(|number| clone(&format!("c{number:02}"), i64::from(number))).collect();
        let mut seen: HashMap<String, Seen> = HashMap::new();
        let mut turns: Vec<Vec<String>> = Vec::new();
        for round in 1..=6 {
            let (now, later) = in_turn(clones.clone(), &seen, 10);
            assert_eq!(now.len() + later.len(), clones.len());
            for clone in &now {
                let entry = look(seen.remove(&key_of(clone)), &DataVolumeStatus::default(), clone.created, round);
                seen.insert(key_of(clone), entry);
            }
            turns.push(now.into_iter().map(|clone| clone.name).collect());
        }
        assert_eq!(turns[0], (0..10).map(|number| format!("c{number:02}")).collect::<Vec<_>>(), "the oldest first");
        for window in turns.windows(3) {
            let looked: HashSet<&String> = window.iter().flatten().collect();
            assert_eq!(looked.len(), clones.len(), "all in three rounds, whenever they begin: {window:?}");
        }
        // One that came a moment ago is never kept waiting by those that were looked at before.
        let mut with_new = clones;
        with_new.push(clone("new", 1_000));
        assert!(in_turn(with_new, &seen, 10).0.iter().any(|clone| clone.name == "new"));
    }

    /// The disk of a VM that was stopped for long, whose VM starts around a change of the leader, is given its time.
    #[test]
    fn a_new_leader_gives_a_clone_that_may_have_waited_its_time() {
        let (created, golden, began, now) = (1_000, 400, 9_000, 9_030);
        for (idle, golden, expected) in [
            (Idle::Seen, golden, now),
            (Idle::Possible, golden, began),
            (Idle::Never, golden, created),
            (Idle::Possible, 9_010, 9_010),
            (Idle::Never, 9_010, 9_010),
        ] {
            assert_eq!(counted_from(created, golden, idle, began, now), expected, "{idle:?}");
        }
        assert_eq!(counted_from(9_020, golden, Idle::Possible, began, now), 9_020, "it came after us");
    }

    /// A clone of a suspended image is told so, again when that changes, and is stuck only a while after nobody works on its golden any more.
    #[test]
    fn since_when_nobody_works_on_what_a_clone_waits_for() {
        let (created, now) = (1_000, 9_000);
        let first = waits(None, true, created, now);
        assert_eq!(first, Waits { is_suspended: true, since: created }, "a new leader does not know better");
        assert_eq!(waits(Some(first), true, created, now), first);
        let coming = waits(None, false, created, now);
        assert_eq!(waits(Some(coming), true, created, now), Waits { is_suspended: true, since: now }, "suspended meanwhile");
        let seen = |state| GoldenSeen { image: "a".into(), reason: "Fetching".into(), state, since: 0, class: None };
        let told = waiting_text("g", &seen(GoldenState::Coming));
        assert!(told.contains("goes on by itself") && told.contains("(Fetching)"), "{told}");
        let told = waiting_text("g", &seen(GoldenState::Suspended));
        assert!(!told.contains("by itself") && told.contains("sets `spec.suspend: false`"), "{told}");
    }

    #[test]
    fn since_when_a_clone_stands_still() {
        let status = |phase: &str, progress: &str| DataVolumeStatus {
            phase: Some(phase.into()),
            progress: Some(progress.into()),
            ..DataVolumeStatus::default()
        };
        let first = look(None, &status("CSICloneInProgress", "N/A"), 100, 1);
        assert_eq!((first.since, first.round), (100, 1), "in storage: since it was made");
        let told = Seen { told: Some(StuckCause::Unexplained), ..first };
        let again = look(Some(told.clone()), &status("CSICloneInProgress", "N/A"), 100, 2);
        assert_eq!(again, Seen { round: 2, ..told.clone() }, "nothing moved");
        let moved = look(Some(told), &status("CloneInProgress", "10%"), 100, 3);
        assert!(moved.since > 1_000_000 && moved.told == Some(StuckCause::Unexplained), "it moved now: {moved:?}");
        assert!(look(None, &status("CloneInProgress", "10%"), 100, 1).since > 1_000_000, "a copy may have moved a moment ago");
    }
}
