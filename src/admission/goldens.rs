//! The guard around goldens (R23): their deletion, their mark, the marks of their fence, and the namespace they are in.

use k8s_openapi::jiff::Timestamp;
use kube::{Resource, core::PartialObjectMeta};
use serde_json::Value;

use super::{
    Answer, Live, Scene,
    review::{Request, Verb},
};
use crate::{
    foreign::{Claim, DataVolume},
    model::Identity,
    rules::{
        clone::{Known, Unknown},
        consumers::Consumers,
        fence::{Fence, GoldenWrite, Holds, Touch, may_delete_catalog, may_touch},
        marks,
    },
    world::{
        evidence::{is_guarded, texts},
        facts,
        ledger::{GoldenKey, Storage},
    },
};

/// Who may write the marks of the fence: the ServiceAccount of the role `controller`.
pub fn daemon_user(namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:golden-catalog-controller")
}

type Meta = PartialObjectMeta<Claim>;

/// Decides on a write to a DataVolume or claim of the catalog namespace.
pub async fn judge_golden(request: &Request, scene: &Scene, live: &Live, daemon: &str) -> Answer {
    decide(request, scene, live, daemon).await.unwrap_or_else(Answer::from)
}

async fn decide(request: &Request, scene: &Scene, live: &Live, daemon: &str) -> Known<Answer> {
    let Some(old) = &request.old_object else { return Ok(Answer::allow()) };
    let was = meta_of(old)?;
    let touches = touches(request, &was)?;
    if touches.is_empty() || !is_guarded(&was.metadata, &scene.catalog) {
        return Ok(Answer::allow());
    }
    let name = was.metadata.name.clone().unwrap_or_default();
    let kind = request.kind.kind.as_str();
    let image = scene.images.of_golden(&name);
    let holds = match touches.contains(&Touch::Delete) {
        true => holds(request, old, &name, scene, live).await?,
        false => Holds::Disk,
    };
    let identity: Option<Identity> = image.as_ref().and_then(|image| image.identity.as_ref()?.parse().ok());
    let mut refusals = Vec::new();
    for touch in touches {
        let write = GoldenWrite {
            kind,
            namespace: &scene.catalog,
            name: &name,
            touch,
            fence: Fence::of(&texts(was.metadata.annotations.as_ref())),
            is_terminating: was.metadata.deletion_timestamp.is_some(),
            holds,
            by_daemon: request.user_info.username == daemon,
            image: image.as_ref().map(|image| image.name.as_str()),
            consumers: consumers(scene, &name, identity.as_ref()),
        };
        if let Err(refusal) = may_touch(&write) {
            refusals.push(refusal);
        }
    }
    Ok(if refusals.is_empty() { Answer::allow() } else { Answer::Refuse(refusals.join("; ")) })
}

fn meta_of(object: &Value) -> Known<Meta> {
    serde_json::from_value(serde_json::json!({ "metadata": object["metadata"] }))
        .map_err(|error| Unknown(format!("the object's metadata cannot be read: {error}")))
}

/// What of a golden the request touches.
fn touches(request: &Request, was: &Meta) -> Known<Vec<Touch>> {
    if request.operation == Verb::Delete {
        return Ok(vec![Touch::Delete]);
    }
    let Some(new) = &request.object else { return Ok(Vec::new()) };
    let now = meta_of(new)?;
    let mark = |meta: &Meta| meta.metadata.labels.as_ref().and_then(|labels| labels.get(marks::GOLDEN).cloned());
    let fence = |meta: &Meta| {
        let annotations = texts(meta.metadata.annotations.as_ref());
        [marks::RETIRING, marks::RETIRED].map(|key| annotations.get(key).cloned())
    };
    let mut touches = Vec::new();
    if mark(&now) != mark(was) {
        touches.push(Touch::Unmark);
    }
    if fence(&now) != fence(was) {
        touches.push(Touch::MarkFence);
    }
    Ok(touches)
}

/// Who needs the golden, as far as the ledger knows.
fn consumers(scene: &Scene, golden: &str, identity: Option<&Identity>) -> Known<Consumers> {
    let classes = scene.classes()?;
    let storage = Storage { classes: &classes, independent: &scene.independent, now: Timestamp::now().as_second() };
    scene.ledger.read().consumers(GoldenKey { name: golden, identity }, storage)
}

/// What would be lost.
async fn holds(request: &Request, old: &Value, name: &str, scene: &Scene, live: &Live) -> Known<Holds> {
    let (claim, volume) = if request.kind.kind == "DataVolume" {
        let volume: DataVolume =
            serde_json::from_value(old.clone()).map_err(|error| Unknown(format!("the DataVolume cannot be read: {error}")))?;
        // A PVC of the name that is neither a golden nor goes with the DataVolume is nothing of its.
        let goes_with =
            |claim: &Claim| claim.metadata.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == volume.metadata.uid.as_ref());
        let held = live.claim(name).await?.filter(|claim| is_guarded(&claim.metadata, &scene.catalog) || goes_with(claim));
        let Some(claim) = held else { return Ok(Holds::Nothing) };
        (claim, Some(volume))
    } else {
        let claim: Claim = serde_json::from_value(old.clone()).map_err(|error| Unknown(format!("the claim cannot be read: {error}")))?;
        let owners = claim.metadata.owner_references.iter().flatten();
        let owner = owners.into_iter().find(|owner| owner.controller == Some(true) && owner.kind == "DataVolume").cloned();
        let volume = match owner {
            None => None,
            // The DataVolume's own deletion was asked for here, and allowed.
            Some(owner) => match live.volume(&owner.name).await?.filter(|volume| volume.metadata.uid.as_deref() == Some(&owner.uid)) {
                Some(volume) if volume.meta().deletion_timestamp.is_none() => Some(volume),
                _ => return Ok(Holds::GoesWithItsVolume),
            },
        };
        (claim, volume)
    };
    // Its volume is gone, and the disk with it: deleting what is left is how it is made anew.
    if claim.status.read().and_then(|status| status.phase.as_deref()) == Some("Lost") {
        return Ok(Holds::Nothing);
    }
    let recorded = scene.images.of_golden(name).and_then(|image| image.golden(name)?.claim_uid.clone());
    let is_recorded = recorded.is_some() && claim.metadata.uid == recorded;
    // A claim on its own is what CDI left of a finished import.
    let is_done = volume.is_none_or(|volume| facts::volume_seen(&volume).phase == "Succeeded");
    Ok(if is_done || is_recorded { Holds::Disk } else { Holds::Nothing })
}

/// Decides whether the catalog namespace may be deleted.
pub async fn judge_namespace(request: &Request, scene: &Scene, live: &Live) -> Answer {
    if request.operation != Verb::Delete || request.name != scene.catalog {
        return Answer::allow();
    }
    let goldens = live.goldens().await.map(|claims| {
        let keeps = |claim: &Claim| facts::fence(claim) != Fence::Retired && claim.metadata.deletion_timestamp.is_none();
        claims.iter().filter(|claim| keeps(claim)).filter_map(|claim| claim.metadata.name.clone()).collect()
    });
    match may_delete_catalog(&scene.catalog, &goldens) {
        Ok(()) => Answer::allow(),
        Err(refusal) => Answer::Refuse(refusal),
    }
}
