//! The fence around goldens that are to go, kept by the leader: what `fence::decide` says, done.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::controller::Shared;
use crate::{
    api::{DeletionPolicy, GoldenImage, TargetStatus},
    fence::{Needed, Observed, Step, Wish, decide},
    foreign::{Claim, DataVolume},
    golden::{manifest::managers, place},
    model::Identity,
    rules::{
        Reason,
        clone::{Known, Unknown},
        consumers::Consumers,
        fence::Fence,
        leaving::Place,
        marks,
    },
    run::{
        api_error,
        client::is_lost,
        events::{self, Severity},
    },
    world::{
        evidence::{is_guarded, texts},
        facts, fresh_ledger,
        ledger::{GoldenKey, Ledger, Storage},
    },
};

/// What changes within this time is looked at together.
const GATHER: Duration = Duration::from_millis(500);
/// How soon what could not be done, or not be asked, is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often the goldens that are to go are looked at when nothing is heard of them or their consumers.
const SLOWLY: Duration = Duration::from_secs(10);
/// How often all goldens are looked at when nothing is heard of any.
const IDLE: Duration = Duration::from_secs(60);

/// What this process remembers of goldens, by their claims' UIDs.
#[derive(Default)]
struct Memory {
    closed: HashMap<String, Instant>,
    asked: HashMap<String, Known<Consumers>>,
    told: BTreeSet<String>,
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
}

/// Keeps the fence until `stop`: woken by what is watched, and by the end of a wait.
pub(super) async fn keep(shared: Arc<Shared>, client: Client, stop: CancellationToken) {
    let mut memory = Memory::default();
    let (mut consumers, mut goldens) = (shared.consumers.changes(), shared.goldens_changed.subscribe());
    loop {
        consumers.mark_unchanged();
        goldens.mark_unchanged();
        let next = match round(&shared, &client, &mut memory).await {
            Ok(next) => next,
            Err(error) if is_lost(&error) => return,
            Err(error) => {
                tracing::warn!(error = api_error(&error), "a step of retiring failed; tried again");
                Next { pause: AGAIN, is_waiting: true }
            }
        };
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

/// A golden of which something is to be done.
struct Candidate {
    claim: Arc<Claim>,
    volume: Option<Arc<DataVolume>>,
    image: Option<Arc<GoldenImage>>,
    wish: Wish,
    /// Whether it alone is to go, since its target was taken out: its image stays.
    is_leaving: bool,
}

impl Candidate {
    fn name(&self) -> String {
        self.claim.name_any()
    }

    fn uid(&self) -> String {
        self.claim.uid().unwrap_or_default()
    }

    fn identity(&self) -> Option<Identity> {
        // A worker class names the image, and the image has another golden; pools name the golden that they clone.
        if self.is_leaving {
            return None;
        }
        let recorded = || self.image.as_ref()?.status.as_ref()?.identity.clone();
        // Without an image, or while its status has none, the golden's own mark: worker classes name it by that.
        let marked = || texts(self.claim.metadata.labels.as_ref()).get(marks::IDENTITY).cloned();
        recorded().or_else(marked)?.parse().ok()
    }

    fn volume_fence(&self) -> Option<Fence> {
        self.volume.as_ref().map(|volume| Fence::of(&texts(volume.metadata.annotations.as_ref())))
    }
}

async fn round(shared: &Shared, client: &Client, memory: &mut Memory) -> kube::Result<Next> {
    // Nothing is known of a kind that was taken away and comes back, until it is read.
    let Some(seen) = candidates(shared) else { return Ok(Next { pause: AGAIN, is_waiting: false }) };
    let present: BTreeSet<String> = seen.iter().map(Candidate::uid).collect();
    memory.closed.retain(|uid, _| present.contains(uid));
    memory.asked.retain(|uid, _| present.contains(uid));
    memory.told.retain(|uid| present.contains(uid));
    let (mut steps, mut to_ask) = (Vec::new(), Vec::new());
    // What is refused for one golden keeps no other waiting.
    let mut failed = Ok(());
    for candidate in &seen {
        match next(shared, candidate, memory) {
            Step::Ask => to_ask.push(candidate.uid()),
            step => {
                let is_done = go_on(act(shared, client, candidate, &step, memory).await, &mut failed)?;
                steps.push(if is_done { step } else { Step::Wait(AGAIN) });
            }
        }
    }
    if !to_ask.is_empty() {
        // One look at the API server serves every golden whose wait is over by now.
        let fresh = fresh_ledger(client, &shared.catalog).await;
        if let Err(unknown) = &fresh {
            tracing::warn!(%unknown, "who needs a golden cannot be asked; tried again");
        }
        // The look takes its time in a large cluster. What was wished for, and what could stand in, is asked again after it: the
        // last mark has no way back. Only this loop writes the fence, so the wait that is over stays over.
        let Some(now) = candidates(shared) else { return Ok(Next { pause: AGAIN, is_waiting: true }) };
        for candidate in now.iter().filter(|candidate| to_ask.contains(&candidate.uid())) {
            let answer = fresh.as_ref().map_err(Clone::clone).and_then(|ledger| needed(shared, ledger, candidate));
            memory.asked.insert(candidate.uid(), answer);
            let step = next(shared, candidate, memory);
            memory.asked.remove(&candidate.uid());
            let is_done = go_on(act(shared, client, candidate, &step, memory).await, &mut failed)?;
            steps.push(if is_done { step } else { Step::Wait(AGAIN) });
        }
    }
    failed.map(|()| Next::after(&steps))
}

/// Keeps the first failure for the end of the round; a lost Lease ends it at once. Gives whether the step was done.
fn go_on(outcome: kube::Result<bool>, failed: &mut kube::Result<()>) -> kube::Result<bool> {
    match outcome {
        Ok(is_done) => return Ok(is_done),
        Err(error) if is_lost(&error) => return Err(error),
        Err(error) if failed.is_ok() => *failed = Err(error),
        Err(_) => {}
    }
    Ok(false)
}

/// The goldens that are to go, or have a fence around them; `None` while not all is known.
fn candidates(shared: &Shared) -> Option<Vec<Candidate>> {
    let cluster = &shared.cluster;
    if !cluster.is_known() {
        return None;
    }
    let images = cluster.images.all();
    let of_golden: HashMap<&str, &Arc<GoldenImage>> = images
        .iter()
        .flat_map(|image| {
            image.status.iter().flat_map(|status| &status.targets).filter_map(move |target| Some((target.golden.as_deref()?, image)))
        })
        .collect();
    let goldens = cluster.claims.all().into_iter().filter(|claim| is_guarded(&claim.metadata, &shared.catalog));
    let candidates = goldens.map(|claim| {
        let name = claim.name_any();
        // By record, else by the golden's mark: an image made again has none on record until it has adopted.
        let marked = || cluster.images.get("", texts(claim.metadata.labels.as_ref()).get(marks::IMAGE)?);
        let image = of_golden.get(name.as_str()).map(|image| Arc::clone(image)).or_else(marked);
        let volume = cluster.volumes.get(&shared.catalog, &name);
        let stands = |record: &TargetStatus| {
            let golden = record.golden.as_deref().unwrap_or_default();
            let (claim, volume) = (cluster.claims.get(&shared.catalog, golden), cluster.volumes.get(&shared.catalog, golden));
            can_stand_in(record, claim.as_deref(), volume.as_deref())
        };
        let is_leaving = image.as_deref().is_some_and(|image| !is_to_go(image) && place(image, &name, stands) == Place::Leaving);
        Candidate { volume, wish: wish(&claim, image.as_deref(), is_leaving), is_leaving, image, claim }
    });
    let is_open = |candidate: &Candidate| {
        facts::fence(&candidate.claim) == Fence::Open && candidate.volume_fence().is_none_or(|fence| fence == Fence::Open)
    };
    Some(candidates.filter(|candidate| candidate.wish != Wish::Keep || !is_open(candidate)).collect())
}

/// Whether a golden that the status says is Ready can take the place of one that goes: it stands now, and is not to go itself. A status
/// may be old; what is taken away on its word does not come back.
fn can_stand_in(record: &TargetStatus, claim: Option<&Claim>, volume: Option<&DataVolume>) -> bool {
    let stands = claim.is_some_and(|claim| {
        let seen = facts::claim_seen(claim);
        record.claim_uid.as_deref() == Some(seen.uid) && seen.phase == "Bound" && !seen.terminating && facts::fence(claim) == Fence::Open
    });
    let is_let_be = |volume: &DataVolume| {
        volume.metadata.deletion_timestamp.is_none() && Fence::of(&texts(volume.metadata.annotations.as_ref())) == Fence::Open
    };
    stands && volume.is_none_or(is_let_be)
}

/// What is asked for (R23, R24). `is_leaving`: the golden's own target was taken out, and another golden can stand in.
fn wish(claim: &Claim, image: Option<&GoldenImage>, is_leaving: bool) -> Wish {
    let on_claim = texts(claim.metadata.annotations.as_ref());
    // A target that is taken out has its own golden go, and no other one.
    let asked = match image {
        Some(image) => is_to_go(image) || is_leaving,
        None => on_claim.contains_key(marks::RETIRE_REQUESTED),
    };
    // Force gets around what needs a golden that is to go. Alone it asks for nothing: left behind, it would take away each
    // golden that is made anew. On an image it is about all its goldens, and not about one whose target is taken out.
    let of_image = image.filter(|image| is_to_go(image)).and_then(|image| image.annotations().get(marks::FORCE_RETIRE));
    let forced = of_image.or_else(|| on_claim.get(marks::FORCE_RETIRE));
    match (asked, forced) {
        (false, _) => Wish::Keep,
        (true, Some(reason)) => Wish::Force(reason.clone()),
        (true, None) => Wish::Retire,
    }
}

/// Whether an image's goldens are to go: retired, or deleted with the policy that takes them along.
pub(super) fn is_to_go(image: &GoldenImage) -> bool {
    let deleted = image.metadata.deletion_timestamp.is_some() && image.spec.deletion_policy == Some(DeletionPolicy::Delete);
    image.spec.retire == Some(true) || deleted
}

fn needed(shared: &Shared, ledger: &Ledger, candidate: &Candidate) -> Known<Consumers> {
    let classes = crate::golden::observe::classes(&shared.cluster);
    let independent = &shared.usage.settings().independent_classes;
    let storage = Storage { classes: &classes, independent, now: Timestamp::now().as_second() };
    let (name, identity) = (candidate.name(), candidate.identity());
    ledger.consumers(GoldenKey { name: &name, identity: identity.as_ref() }, storage)
}

fn next(shared: &Shared, candidate: &Candidate, memory: &mut Memory) -> Step {
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

/// Does a step. Gives whether it was done: not where the golden changed meanwhile, which is to be looked at again.
async fn act(shared: &Shared, client: &Client, candidate: &Candidate, step: &Step, memory: &mut Memory) -> kube::Result<bool> {
    match step {
        Step::Rest | Step::Ask | Step::Wait(_) => {}
        Step::Mark(fence) => {
            memory.before_mark(&candidate.uid(), *fence);
            if !mark(client, &shared.catalog, candidate, *fence).await? {
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
            delete(client, &shared.catalog, candidate).await?;
            tracing::info!(golden = candidate.name(), "the retired golden is deleted");
        }
    }
    Ok(true)
}

/// Writes the fence, on the claim first: that is what admission reads. Gives whether it is written on both; where the claim is not the
/// one that was decided on, nothing is written on the DataVolume either.
async fn mark(client: &Client, catalog: &str, candidate: &Candidate, fence: Fence) -> kube::Result<bool> {
    let at = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    let annotations: serde_json::Map<String, serde_json::Value> =
        fence.annotations(at).into_iter().map(|(key, value)| (key.to_owned(), value.map_or(serde_json::Value::Null, Into::into))).collect();
    if !mark_one::<Claim>(client, catalog, &candidate.claim.metadata, &annotations).await? {
        return Ok(false);
    }
    match &candidate.volume {
        Some(volume) => mark_one::<DataVolume>(client, catalog, &volume.metadata, &annotations).await,
        None => Ok(true),
    }
}

/// The UID: a fence never lands on another object that took the name. The version: it never lands on what is not as it was decided
/// on, a claim that the watch still shows closed and that is open already, say.
fn patch_of(object: &ObjectMeta, annotations: &serde_json::Map<String, serde_json::Value>) -> serde_json::Value {
    json!({ "metadata": { "uid": object.uid, "resourceVersion": object.resource_version, "annotations": annotations } })
}

async fn mark_one<K>(
    client: &Client,
    catalog: &str,
    object: &ObjectMeta,
    annotations: &serde_json::Map<String, serde_json::Value>,
) -> kube::Result<bool>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), catalog);
    let patch = patch_of(object, annotations);
    let params = PatchParams { field_manager: Some(managers::MARKS.to_owned()), ..PatchParams::default() };
    match api.patch(object.name.as_deref().unwrap_or_default(), &params, &Patch::Merge(&patch)).await {
        // Gone or changed meanwhile, or another one: the watch will tell.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        other => other.map(|_| true),
    }
}

/// Deletes the DataVolume by UID, which takes the claim along; a claim without one is deleted itself.
async fn delete(client: &Client, catalog: &str, candidate: &Candidate) -> kube::Result<()> {
    let by_uid = |uid: Option<String>| DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::background()
    };
    let name = candidate.name();
    let outcome = match &candidate.volume {
        Some(volume) => Api::<DataVolume>::namespaced(client.clone(), catalog).delete(&name, &by_uid(volume.uid())).await.map(drop),
        None => Api::<Claim>::namespaced(client.clone(), catalog).delete(&name, &by_uid(candidate.claim.uid())).await.map(drop),
    };
    match outcome {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other,
    }
}

/// An Event and a metric for a golden that goes; in spite of what needs it, a warning that says so.
fn tell(shared: &Shared, candidate: &Candidate, memory: &mut Memory) {
    if !memory.told.insert(candidate.uid()) {
        return;
    }
    let mut regarding: ObjectReference = candidate.claim.object_ref(&());
    regarding.resource_version = None;
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
    shared.recorder.tell(events::Note { regarding, severity, reason: Reason::Retired.to_string(), action: "Retire", text });
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use serde_json::json;

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

    #[test]
    fn force_gets_around_what_needs_a_golden_and_asks_for_nothing_by_itself() {
        let image = |retire: bool, force: bool| -> GoldenImage {
            let annotations = if force { json!({ marks::FORCE_RETIRE: "poisoned" }) } else { json!({}) };
            serde_json::from_value(json!({
                "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a", "annotations": annotations },
                "spec": { "source": { "http": { "url": "https://e.example/a" } }, "retire": retire },
            }))
            .expect("an image")
        };
        let claim = |annotations: serde_json::Value| -> Claim {
            serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "g", "annotations": annotations }, "spec": {},
            }))
            .expect("a claim")
        };
        let bare = claim(json!({}));
        let wish = |claim: &Claim, image: Option<&GoldenImage>| wish(claim, image, false);
        assert_eq!(wish(&bare, Some(&image(false, true))), Wish::Keep);
        assert_eq!(wish(&bare, Some(&image(true, false))), Wish::Retire);
        assert_eq!(wish(&bare, Some(&image(true, true))), Wish::Force("poisoned".into()));
        assert_eq!(wish(&claim(json!({ marks::FORCE_RETIRE: "poisoned" })), None), Wish::Keep);
        let asked = claim(json!({ marks::FORCE_RETIRE: "poisoned", marks::RETIRE_REQUESTED: "now" }));
        assert_eq!(wish(&asked, None), Wish::Force("poisoned".into()));
        // The wish of an image counts, whatever is left on its golden.
        assert_eq!(wish(&asked, Some(&image(false, false))), Wish::Keep);
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
        let object = ObjectMeta { uid: Some("uid".into()), resource_version: Some("7".into()), ..ObjectMeta::default() };
        let patch = patch_of(&object, &serde_json::Map::new());
        assert_eq!((&patch["metadata"]["uid"], &patch["metadata"]["resourceVersion"]), (&json!("uid"), &json!("7")));
    }

    #[test]
    fn r23_a_golden_stands_in_only_where_it_stands_and_is_not_to_go() {
        let object = |kind: &str, more: serde_json::Value| {
            let mut object = json!({ "kind": kind, "metadata": { "name": "g", "uid": "1" }, "spec": {}, "status": { "phase": "Bound" } });
            object["apiVersion"] = if kind == "DataVolume" { "cdi.kubevirt.io/v1beta1".into() } else { "v1".into() };
            for (key, value) in more.as_object().expect("map") {
                match value.is_object() && key == "metadata" {
                    true => object["metadata"].as_object_mut().expect("map").extend(value.as_object().expect("map").clone()),
                    false => object[key] = value.clone(),
                }
            }
            object
        };
        let claim = |more| serde_json::from_value::<Claim>(object("PersistentVolumeClaim", more)).expect("a claim");
        let volume = |more| serde_json::from_value::<DataVolume>(object("DataVolume", more)).expect("a volume");
        let record = TargetStatus { golden: Some("g".into()), claim_uid: Some("1".into()), ..TargetStatus::default() };
        let marked = |fence: Fence| {
            let annotations: HashMap<_, _> =
                fence.annotations(Timestamp::UNIX_EPOCH).into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
            json!({ "metadata": { "annotations": annotations } })
        };
        let deleted = || json!({ "metadata": { "deletionTimestamp": "2026-11-29T10:00:00Z" } });
        let stands = |claim: &Claim| can_stand_in(&record, Some(claim), None);
        assert!(stands(&claim(json!({}))));
        assert!(!can_stand_in(&record, None, None));
        assert!(!stands(&claim(json!({ "metadata": { "uid": "2" } }))));
        assert!(!stands(&claim(json!({ "status": { "phase": "Lost" } }))));
        assert!(!stands(&claim(deleted())));
        for fence in [Fence::Retiring, Fence::Closed, Fence::Retired] {
            assert!(!stands(&claim(marked(fence))), "{fence:?}");
        }
        let beside = |volume: &DataVolume| can_stand_in(&record, Some(&claim(json!({}))), Some(volume));
        assert!(beside(&volume(json!({}))) && !beside(&volume(deleted())) && !beside(&volume(marked(Fence::Retired))));
    }

    #[test]
    fn a_target_that_is_taken_out_has_its_own_golden_go() {
        let image = |targets: serde_json::Value, first: &str| -> GoldenImage {
            let ready = |status: &str| json!([{ "type": "Ready", "status": status, "reason": "Ready", "message": "", "lastTransitionTime": "2026-11-29T10:00:00Z" }]);
            serde_json::from_value(json!({
                "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage",
                "metadata": { "name": "a", "annotations": { marks::FORCE_RETIRE: "left behind" } },
                "spec": { "source": { "http": { "url": "https://e.example/a" } }, "storage": { "targets": targets } },
                "status": { "targets": [
                    { "requestedClass": "", "golden": "g", "claimUID": "1", "conditions": ready(first) },
                    { "requestedClass": "local", "golden": "g-local", "claimUID": "2", "conditions": ready("True") },
                ] },
            }))
            .expect("an image")
        };
        let claim = |name: &str, annotations: serde_json::Value| -> Claim {
            let metadata = json!({ "name": name, "annotations": annotations });
            serde_json::from_value(json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {} }))
                .expect("a claim")
        };
        let (first, local) = (claim("g", json!({})), claim("g-local", json!({})));
        let wish = |claim: &Claim, image: Option<&GoldenImage>| {
            let is_leaving = image.is_some_and(|image| place(image, &claim.name_any(), |_| true) == Place::Leaving);
            wish(claim, image, is_leaving)
        };
        let both = image(json!([{}, { "storageClassName": "local" }]), "True");
        assert_eq!((wish(&first, Some(&both)), wish(&local, Some(&both))), (Wish::Keep, Wish::Keep));
        let one = image(json!([{}]), "True");
        assert_eq!((wish(&first, Some(&one)), wish(&local, Some(&one))), (Wish::Keep, Wish::Retire));
        // The other cannot be cloned just now: this one may be the last.
        assert_eq!(wish(&local, Some(&image(json!([{}]), "False"))), Wish::Keep);
        // Nor may what the status says be believed of one that does not stand, or of an image that is not worked on.
        assert_eq!(place(&one, "g-local", |record| record.golden.as_deref() != Some("g")), Place::Last);
        for (reason, expected) in
            [("DuplicateIdentity", Place::Wanted), ("AccessNotEnforced", Place::Wanted), ("DuplicateClass", Place::Leaving)]
        {
            let mut held = one.clone();
            held.status.as_mut().expect("status").conditions = vec![
                serde_json::from_value(json!({ "type": "Accepted", "status": "False", "reason": reason, "message": "", "lastTransitionTime": "2026-11-29T10:00:00Z" }))
                    .expect("a condition"),
            ];
            assert_eq!(place(&held, "g-local", |_| true), expected, "{reason}");
        }
        let forced = claim("g-local", json!({ marks::FORCE_RETIRE: "poisoned" }));
        assert_eq!((wish(&forced, Some(&one)), wish(&forced, Some(&both))), (Wish::Force("poisoned".into()), Wish::Keep));
    }
}
