//! Clones that do not move: looked at one by one once they are old enough, told once for each cause. Clones whose golden is still being made are told that they wait.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::{Api, Client, ResourceExt as _};
use tokio_util::sync::CancellationToken;

use super::rest;
use crate::{
    api::{ConditionType, find_condition, is_true},
    daemon::controller::Shared,
    foreign::{Condition, DataVolume, DataVolumeStatus},
    rules::{
        Reason,
        pods::{PodFacts, holds_golden},
        stuck::{CdiWords, CloneFacts, GoldenState, Stuck, StuckCause, stuck},
    },
    run::events::{Note, Severity},
    world::ledger::RunningClone,
};

/// The most clones looked at in one round; each costs a read of the API server.
const MOST: usize = 200;
/// Reads a second.
const READS: u32 = 20;
/// The age at which a clone that waits for its golden is told so, in seconds: a golden that is nearly done needs no word.
const WAITS: i64 = 10;

/// What is remembered of a clone between two looks.
struct Seen {
    /// Phase and progress; while they change, the clone moves.
    shape: (String, String),
    /// Since when they are so, in seconds since 1970.
    since: i64,
    /// The cause that was told.
    told: Option<StuckCause>,
}

/// What is remembered of all clones between two looks.
#[derive(Default)]
struct Memory {
    seen: HashMap<String, Seen>,
    /// Those that were told that they wait for their golden.
    waiting: HashSet<String>,
}

/// What is known of a golden, for its clones.
struct GoldenSeen {
    image: String,
    /// The reason why it is not Ready, where an image says one.
    reason: String,
    state: GoldenState,
    /// Since when it can be cloned, in seconds since 1970.
    since: i64,
    class: Option<String>,
}

/// Looks until `stop`.
pub async fn run(shared: Arc<Shared>, client: Client, stop: CancellationToken) {
    let deadline = shared.usage.settings().stuck_clone;
    let pause = (deadline / 4).clamp(Duration::from_secs(1), Duration::from_secs(60));
    let mut memory = Memory::default();
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

async fn round(shared: &Shared, client: &Client, mut clones: Vec<RunningClone>, memory: &mut Memory) {
    // The oldest first: where there are too many, the newest have to wait.
    clones.sort_by_key(|clone| clone.created);
    clones.truncate(MOST);
    let mut pace = tokio::time::interval(Duration::from_secs(1) / READS);
    let mut counts: BTreeMap<(String, StuckCause), usize> = BTreeMap::new();
    let Memory { seen: mut former, waiting: were_waiting } = std::mem::take(memory);
    let oldest = Timestamp::now().as_second() - seconds(shared.usage.settings().stuck_clone);
    for clone in clones {
        let golden = golden_seen(shared, &clone.golden);
        let key = clone.uid.clone().unwrap_or_else(|| format!("{}/{}", clone.namespace, clone.name));
        // Waiting for its golden is what it should do; nothing is asked about it.
        if golden.state == GoldenState::Coming {
            if !were_waiting.contains(&key) {
                tell_waiting(shared, &clone, &golden);
            }
            memory.waiting.insert(key);
            continue;
        }
        if clone.created > oldest {
            continue;
        }
        let status = if clone.has_volume {
            pace.tick().await;
            let api: Api<DataVolume> = Api::namespaced(client.clone(), &clone.namespace);
            match api.get_opt(&clone.name).await {
                Ok(Some(volume)) if volume.uid() == clone.uid => volume.status.read().cloned().unwrap_or_default(),
                // It is gone, or cannot be asked for now: the next round tells.
                _ => continue,
            }
        } else {
            DataVolumeStatus::default()
        };
        let entry = look(former.remove(&key), &clone, &status, golden.since);
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

/// What to remember of a clone after this look.
fn look(former: Option<Seen>, clone: &RunningClone, status: &DataVolumeStatus, ready: i64) -> Seen {
    let progress = status.progress.clone().filter(|progress| progress != "N/A").unwrap_or_default();
    let shape = (status.phase.clone().unwrap_or_default(), progress);
    match former {
        Some(former) if former.shape == shape => former,
        // A clone in storage shows no progress: one that is as old as this has stood still all the time. A copy may have moved a moment ago.
        None if shape.1.is_empty() => Seen { shape, since: clone.created.max(ready), told: None },
        other => Seen { shape, since: Timestamp::now().as_second(), told: other.and_then(|seen| seen.told) },
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

/// What is known of a golden: by its image, else by its claim alone.
fn golden_seen(shared: &Shared, golden: &str) -> GoldenSeen {
    let claim = shared.cluster.claims.get(&shared.catalog, golden);
    let class = claim.as_ref().and_then(|claim| claim.spec.read()?.storage_class_name.clone());
    let images = shared.cluster.images.all();
    let found = images.iter().find_map(|image| {
        let status = image.status.as_ref()?;
        Some((image, status, status.targets.iter().find(|target| target.golden.as_deref() == Some(golden))?))
    });
    match found {
        Some((image, status, target)) => {
            let ready = find_condition(&target.conditions, ConditionType::Ready).filter(|ready| ready.status == "True");
            let has_failed = is_true(&status.conditions, ConditionType::Stalled) || is_true(&target.conditions, ConditionType::Stalled);
            let state = match (ready.is_some(), has_failed) {
                (true, _) => GoldenState::Ready,
                (false, true) => GoldenState::Failed,
                (false, false) => GoldenState::Coming,
            };
            let since = ready.map_or(0, |ready| ready.last_transition_time.0.as_second());
            let reason = find_condition(&target.conditions, ConditionType::Ready).map(|ready| ready.reason.clone()).unwrap_or_default();
            GoldenSeen { image: image.name_any(), reason, state, since, class }
        }
        None => {
            let bound = claim.as_ref().is_some_and(|claim| {
                claim.metadata.deletion_timestamp.is_none()
                    && claim.status.read().and_then(|status| status.phase.as_deref()) == Some("Bound")
            });
            let state = match (&claim, bound) {
                (_, true) => GoldenState::Ready,
                (Some(claim), false) if claim.metadata.deletion_timestamp.is_none() => GoldenState::Coming,
                _ => GoldenState::Gone,
            };
            GoldenSeen { image: String::new(), reason: String::new(), state, since: 0, class }
        }
    }
}

fn tell(shared: &Shared, clone: &RunningClone, stuck: &Stuck) {
    tracing::warn!(namespace = clone.namespace, name = clone.name, cause = %stuck.cause, message = stuck.message, "a clone is stuck");
    note(shared, clone, Severity::Warning, Reason::CloneStuck, format!("{}: {}", stuck.cause, stuck.message));
}

/// CDI's own words on a clone that waits look like a failure, so a person is told that it is none.
fn tell_waiting(shared: &Shared, clone: &RunningClone, golden: &GoldenSeen) {
    let reason = if golden.reason.is_empty() { String::new() } else { format!(" ({})", golden.reason) };
    let look = if golden.image.is_empty() {
        String::new()
    } else {
        format!("; `kubectl describe goldenimage {}` tells how far it is", golden.image)
    };
    let text = format!("Golden {} is not Ready yet{reason}: the clone waits and goes on by itself{look}.", clone.golden);
    tracing::info!(namespace = clone.namespace, name = clone.name, golden = clone.golden, "a clone waits for its golden");
    note(shared, clone, Severity::Normal, Reason::WaitingForGolden, text);
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
