//! The guard around goldens (R23): their deletion, their mark, the marks of their fence, and the namespace they are in.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use serde::Deserialize;

use super::{
    Answer, ImageFacts, Live, Scene,
    review::{self, Object, Request, Verb},
};
use crate::{
    foreign::{Claim, DataVolume},
    model::Identity,
    rules::{
        clone::Known,
        consumers::Consumers,
        fence::{ClaimHolds, Controller, Fence, GoldenWrite, Holds, Retires, Touch, holds as holds_of, may_delete_catalog, may_touch},
        marks,
    },
    world::{
        evidence::{goes_with, is_guarded, owning_volume, texts},
        facts,
        ledger::{GoldenKey, Storage},
    },
};

/// Who may write the marks of the fence: the ServiceAccount of the role `controller`.
pub fn daemon_user(namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:golden-catalog-controller")
}

/// An object's metadata.
#[derive(Deserialize)]
struct Meta {
    metadata: ObjectMeta,
}

/// Decides on a write to a DataVolume or claim of the catalog namespace.
pub async fn judge_golden(request: &Request, scene: &Scene, live: &Live, daemon: &str) -> Answer {
    decide(request, scene, live, daemon).await.unwrap_or_else(Answer::from)
}

async fn decide(request: &Request, scene: &Scene, live: &Live, daemon: &str) -> Known<Answer> {
    let is_a_golden = |meta: &Meta| is_guarded(&meta.metadata, &scene.catalog);
    let was: Option<Meta> = request.old_object.as_ref().map(|old| review::read(old)).transpose()?;
    let Some((old, was)) = request.old_object.as_ref().zip(was).filter(|(_, was)| is_a_golden(was)) else {
        return begins(request, scene, daemon);
    };
    let touches = touches(request, &was, &scene.catalog)?;
    if touches.is_empty() {
        return Ok(Answer::allow());
    }
    let name = was.metadata.name.clone().unwrap_or_default();
    let kind = request.kind.kind.as_str();
    let image = scene.images.of_found(&name, &was.metadata);
    let holds = match touches.contains(&Touch::Delete) {
        true => holds(request, old, &name, scene, live).await?,
        false => Holds::Disk,
    };
    // What it says itself before what its image says, as the fence takes it: a golden outlives its image, and WorkerClasses name it by this.
    let said: Option<Identity> = was.metadata.labels.as_ref().and_then(|labels| labels.get(marks::IDENTITY)?.parse().ok());
    let identity = said.or_else(|| image.as_ref()?.identity.as_ref()?.parse().ok());
    // Whom to retire: an image that only is of the same source has no word over it, and to retire that would take nothing.
    let is_its = |image: &&ImageFacts| {
        let recorded = image.golden(&name).and_then(|golden| golden.claim_uid.as_ref());
        was.metadata.labels.as_ref().and_then(|labels| labels.get(marks::IMAGE)) == Some(&image.name)
            || recorded.is_some() && recorded == was.metadata.uid.as_ref()
    };
    let its = image.as_deref().filter(is_its).and_then(|image| retires(image, &name));
    let mut refusals = Vec::new();
    for touch in touches {
        let write = GoldenWrite {
            kind,
            namespace: &scene.catalog,
            name: &name,
            touch,
            fence: facts::fence(&was.metadata),
            is_terminating: was.metadata.deletion_timestamp.is_some(),
            holds,
            by_daemon: request.user_info.username == daemon,
            image: its,
            consumers: consumers(scene, &name, identity.as_ref()),
        };
        if let Err(refusal) = may_touch(&write) {
            refusals.push(refusal);
        }
    }
    Ok(if refusals.is_empty() { Answer::allow() } else { Answer::Refuse(refusals.join("; ")) })
}

/// What becomes a golden with this write does not begin as one that may go: the leader would believe it.
fn begins(request: &Request, scene: &Scene, daemon: &str) -> Known<Answer> {
    let Some(new) = &request.object else { return Ok(Answer::allow()) };
    let new: Meta = review::read(new)?;
    if !is_guarded(&new.metadata, &scene.catalog) || facts::fence(&new.metadata) != Fence::Retired {
        return Ok(Answer::allow());
    }
    let name = new.metadata.name.clone().unwrap_or_default();
    let write = GoldenWrite {
        kind: request.kind.kind.as_str(),
        namespace: &scene.catalog,
        name: &name,
        touch: Touch::MarkFence,
        fence: Fence::Open,
        is_terminating: false,
        holds: Holds::Disk,
        by_daemon: request.user_info.username == daemon,
        image: None,
        consumers: Ok(Consumers::default()),
    };
    Ok(may_touch(&write).map_or_else(Answer::Refuse, |()| Answer::allow()))
}

/// What retiring a golden's image takes; `None` where the golden stands for no target of the image, so that it is retired by its own name.
fn retires<'a>(image: &'a ImageFacts, golden: &str) -> Option<Retires<'a>> {
    let record = image.golden(golden);
    // A target that has no golden yet may be about to take this one; of an image that cannot be read nobody knows the targets.
    let has_place = record.is_some() || image.goldens.is_empty() || image.goldens.iter().any(|record| !record.is_recorded);
    has_place.then(|| Retires {
        image: &image.name,
        others: image.goldens.iter().filter(|record| record.golden != golden).count(),
        is_leaving: record.is_some_and(|record| record.is_leaving),
    })
}

/// What of a golden the request touches.
fn touches(request: &Request, was: &Meta, catalog: &str) -> Known<Vec<Touch>> {
    if request.operation == Verb::Delete {
        return Ok(vec![Touch::Delete]);
    }
    let Some(new) = &request.object else { return Ok(Vec::new()) };
    let now: Meta = review::read(new)?;
    let fence = |meta: &Meta| {
        let annotations = texts(meta.metadata.annotations.as_ref());
        [marks::RETIRING, marks::RETIRED].map(|key| annotations.get(key).cloned())
    };
    let mut touches = Vec::new();
    // Without our mark, or with one of CDI's own beside it, nothing would guard it any more.
    if !is_guarded(&now.metadata, catalog) {
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
async fn holds(request: &Request, old: &Object, name: &str, scene: &Scene, live: &Live) -> Known<Holds> {
    let recorded = scene.images.of_golden(name).and_then(|image| image.golden(name)?.claim_uid.clone());
    let is_recorded = |claim: &Claim| recorded.is_some() && claim.metadata.uid == recorded;
    let (claim, volume) = if request.kind.kind == "DataVolume" {
        let volume: DataVolume = review::read(old)?;
        // A PVC of the name that is neither a golden, nor on record, nor goes with the DataVolume is nothing of its.
        let is_its = |claim: &Claim| {
            let meta = &claim.metadata;
            is_guarded(meta, &scene.catalog) || is_recorded(claim) || goes_with(meta, volume.metadata.uid.as_deref())
        };
        let Some(claim) = live.claim(name).await?.filter(is_its) else { return Ok(Holds::Nothing) };
        (claim, Standing::There(Box::new(volume)))
    } else {
        let claim: Claim = review::read(old)?;
        let standing = match owning_volume(&claim.metadata).cloned() {
            None => Standing::None,
            Some(owner) => {
                let volume = live.volume(&owner.name).await?.filter(|volume| volume.metadata.uid.as_deref() == Some(&owner.uid));
                volume.map_or(Standing::Gone, |volume| Standing::There(Box::new(volume)))
            }
        };
        (claim, standing)
    };
    let seen = ClaimHolds { is_recorded: is_recorded(&claim), ..facts::claim_holds(&claim) };
    Ok(holds_of(seen, volume.seen()))
}

/// The DataVolume that controls a claim.
enum Standing {
    /// None does: what CDI left of a finished import.
    None,
    /// This one.
    There(Box<DataVolume>),
    /// One that is not there any more, or never was.
    Gone,
}

impl Standing {
    fn seen(&self) -> Controller<'_> {
        match self {
            Self::None => Controller::None,
            Self::There(volume) => Controller::There(facts::volume_seen(volume).phase),
            Self::Gone => Controller::Gone,
        }
    }
}

/// Decides whether the catalog namespace may be deleted.
pub async fn judge_namespace(request: &Request, scene: &Scene, live: &Live) -> Answer {
    if request.operation != Verb::Delete || request.name != scene.catalog {
        return Answer::allow();
    }
    let goldens = live.goldens().await.map(|claims| {
        // CDI's temporaries carry our mark too; they go by themselves, and nothing could retire them.
        let keeps = |claim: &Claim| {
            is_guarded(&claim.metadata, &scene.catalog)
                && facts::fence(&claim.metadata) != Fence::Retired
                && claim.metadata.deletion_timestamp.is_none()
        };
        claims.iter().filter(|claim| keeps(claim)).filter_map(|claim| claim.metadata.name.clone()).collect()
    });
    match may_delete_catalog(&scene.catalog, &goldens) {
        Ok(()) => Answer::allow(),
        Err(refusal) => Answer::Refuse(refusal),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    /// An image of these classes, whose goldens are on record by class.
    fn image(classes: &[&str], recorded: &[(&str, &str)]) -> ImageFacts {
        let target = |class: &&str| if class.is_empty() { json!({}) } else { json!({ "storageClassName": class }) };
        let targets: Vec<Value> = classes.iter().map(target).collect();
        let on_record = |(class, golden): &(&str, &str)| json!({ "requestedClass": class, "golden": golden, "claimUID": "u" });
        let on_record: Vec<Value> = recorded.iter().map(on_record).collect();
        let image = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "ubuntu" },
            "spec": { "source": { "http": { "url": "https://x.example/ubuntu.qcow2" } }, "storage": { "targets": targets } },
            "status": { "targets": on_record } });
        ImageFacts::of(&serde_json::from_value(image).expect("a GoldenImage"))
    }

    /// How many others go with it, and whether it goes anyway; `None` where it is retired by its own name.
    #[rstest]
    #[case::its_only_one(&[""], &[("", "g")], Some((0, false)))]
    #[case::one_of_two(&["", "local"], &[("", "g"), ("local", "g-local")], Some((1, false)))]
    #[case::its_target_was_taken_out(&["local"], &[("", "g"), ("local", "g-local")], Some((1, true)))]
    #[case::for_no_target(&["", "local"], &[("", "other"), ("local", "other-local")], None)]
    #[case::a_target_may_take_it(&["", "local"], &[("", "other")], Some((2, false)))]
    fn whom_retiring_takes(#[case] classes: &[&str], #[case] recorded: &[(&str, &str)], #[case] expected: Option<(usize, bool)>) {
        let image = image(classes, recorded);
        let found = retires(&image, "g").map(|retires| (retires.others, retires.is_leaving));
        assert_eq!(found, expected, "{:?}", image.goldens);
    }
}
