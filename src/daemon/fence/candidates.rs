//! Which goldens are to go, or have a fence around them, and what is wished of each (R23, R24).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use kube::{Api, Client, Resource, ResourceExt as _};

use super::marks::Refused;
use crate::{
    api::{DeletionPolicy, GoldenImage, TargetStatus},
    daemon::controller::Shared,
    fence::Wish,
    foreign::{Claim, DataVolume},
    golden::place,
    model::Identity,
    rules::{fence::Fence, leaving::Place, marks},
    world::{
        Cluster,
        evidence::{is_guarded, texts},
        facts,
    },
};

/// A golden of which something is to be done.
pub(super) struct Candidate {
    pub claim: Arc<Claim>,
    pub volume: Option<Arc<DataVolume>>,
    pub image: Option<Arc<GoldenImage>>,
    pub wish: Wish,
    /// Whether it alone is to go, since its target was taken out: its image stays.
    pub is_leaving: bool,
    /// One of its own objects that is there and cannot be read: nothing is done about a golden of which not all is known.
    pub odd: Option<String>,
}

impl Candidate {
    pub fn name(&self) -> String {
        self.claim.name_any()
    }

    pub fn uid(&self) -> String {
        self.claim.uid().unwrap_or_default()
    }

    pub fn identity(&self) -> Option<Identity> {
        // A worker class names the image, and the image has another golden; pools name the golden that they clone.
        if self.is_leaving {
            return None;
        }
        let recorded = || self.image.as_ref()?.status.as_ref()?.identity.clone();
        // Without an image, or while its status has none, the golden's own mark: worker classes name it by that.
        let marked = || texts(self.claim.metadata.labels.as_ref()).get(marks::IDENTITY).cloned();
        recorded().or_else(marked)?.parse().ok()
    }

    /// Whether the last mark is on one of its objects: from there on there is no way back.
    pub fn is_retired(&self) -> bool {
        facts::fence(&self.claim) == Fence::Retired || self.volume_fence() == Some(Fence::Retired)
    }

    pub fn volume_fence(&self) -> Option<Fence> {
        self.volume.as_ref().map(|volume| Fence::of(&texts(volume.metadata.annotations.as_ref())))
    }
}

/// The goldens that are to go, or have a fence around them; `None` while not all is known.
pub(super) fn candidates(shared: &Shared) -> Option<Vec<Candidate>> {
    let (cluster, catalog) = (&shared.cluster, shared.catalog.as_str());
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
    let goldens = cluster.claims.all().into_iter().filter(|claim| is_guarded(&claim.metadata, catalog));
    let candidates = goldens.map(|claim| {
        let name = claim.name_any();
        let labels = texts(claim.metadata.labels.as_ref());
        let marked = labels.get(marks::IMAGE).map(String::as_str);
        // By record, else by the golden's mark: an image made again has none on record until it has adopted.
        let image = of_golden.get(name.as_str()).map(|image| Arc::clone(image)).or_else(|| cluster.images.get("", marked?));
        let volume = cluster.volumes.get(catalog, &name);
        let is_leaving = image.as_deref().is_some_and(|image| is_leaving(image, &name, |record| is_seen_to_stand(shared, record)));
        let of = image.as_ref().map(|image| image.name_any()).or_else(|| marked.map(str::to_owned));
        let odd = unreadable(cluster, catalog, &name, of.as_deref());
        Candidate { volume, wish: wish(&claim, image.as_deref(), is_leaving), is_leaving, image, odd, claim }
    });
    let is_open = |candidate: &Candidate| {
        facts::fence(&candidate.claim) == Fence::Open && candidate.volume_fence().is_none_or(|fence| fence == Fence::Open)
    };
    Some(candidates.filter(|candidate| candidate.wish != Wish::Keep || !is_open(candidate)).collect())
}

/// Whether the golden's own target was taken out, and another golden can stand in: `stands` is whether that one is there.
fn is_leaving(image: &GoldenImage, golden: &str, stands: impl Fn(&TargetStatus) -> bool) -> bool {
    !is_to_go(image) && place(image, golden, stands) == Place::Leaving
}

/// Whether a golden on record is seen to be there, so that another may go.
fn is_seen_to_stand(shared: &Shared, record: &TargetStatus) -> bool {
    let (cluster, catalog) = (&shared.cluster, shared.catalog.as_str());
    let golden = record.golden.as_deref().unwrap_or_default();
    let (claim, volume) = (cluster.claims.get(catalog, golden), cluster.volumes.get(catalog, golden));
    unreadable(cluster, catalog, golden, None).is_none() && can_stand_in(record, claim.as_deref(), volume.as_deref())
}

/// Whether a golden is to go by the API server's own word, which is asked right before the mark that has no way back: a watch that hears
/// nothing is believed for minutes. By the image's UID: one that was made again under the name wished for nothing. Where another golden is
/// to stand in, that one is asked for too. What the claim itself wishes needs no look, because the mark lands only on the version that was
/// decided on.
///
/// # Errors
/// Where the API server does not say.
pub(super) async fn is_wished_still(shared: &Shared, client: &Client, candidate: &Candidate) -> Result<bool, Refused> {
    let marked = || texts(candidate.claim.metadata.labels.as_ref()).get(marks::IMAGE).cloned();
    let Some(name) = candidate.image.as_ref().map(|image| image.name_any()).or_else(marked) else { return Ok(true) };
    let live = look(Api::<GoldenImage>::all(client.clone()), "", &name).await?;
    if live.as_ref().and_then(|image| image.uid()) != candidate.image.as_ref().and_then(|image| image.uid()) {
        return Ok(false);
    }
    if candidate.is_leaving {
        let Some(image) = &live else { return Ok(false) };
        let standing = standing(client, &shared.catalog, image, &candidate.name()).await?;
        if !is_leaving(image, &candidate.name(), |record| record.golden.as_ref().is_some_and(|golden| standing.contains(golden))) {
            return Ok(false);
        }
    }
    Ok(wish(&candidate.claim, live.as_ref(), candidate.is_leaving) == candidate.wish)
}

/// The other goldens on an image's record that are there by the API server's own word.
async fn standing(client: &Client, catalog: &str, image: &GoldenImage, golden: &str) -> Result<BTreeSet<String>, Refused> {
    let mut standing = BTreeSet::new();
    for record in image.status.iter().flat_map(|status| &status.targets) {
        let Some(other) = record.golden.as_deref().filter(|other| *other != golden) else { continue };
        let claim = look(Api::<Claim>::namespaced(client.clone(), catalog), catalog, other).await?;
        let volume = look(Api::<DataVolume>::namespaced(client.clone(), catalog), catalog, other).await?;
        if can_stand_in(record, claim.as_ref(), volume.as_ref()) {
            standing.insert(other.to_owned());
        }
    }
    Ok(standing)
}

/// Reads one object at the API server.
async fn look<K>(api: Api<K>, namespace: &str, name: &str) -> Result<Option<K>, Refused>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let place = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    let what = || format!("a look at {} {place}{name}", K::kind(&()));
    api.get_opt(name).await.map_err(|error| Refused { what: what(), error })
}

/// Which object of a golden is there and cannot be read, if one is: claim, DataVolume, or the GoldenImage of this name. What was read of
/// it before may not be so any more, and what was never read is not absent.
pub(in crate::daemon) fn unreadable(cluster: &Cluster, catalog: &str, golden: &str, image: Option<&str>) -> Option<String> {
    let of_golden = |kind: &str, why: Option<String>| Some(format!("{kind} {catalog}/{golden} cannot be read: {}", why?));
    of_golden("PersistentVolumeClaim", cluster.claims.odd(catalog, golden))
        .or_else(|| of_golden("DataVolume", cluster.volumes.odd(catalog, golden)))
        .or_else(|| Some(format!("GoldenImage {} cannot be read: {}", image?, cluster.images.odd("", image?)?)))
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
pub(in crate::daemon) fn is_to_go(image: &GoldenImage) -> bool {
    let deleted = image.metadata.deletion_timestamp.is_some() && image.spec.deletion_policy == Some(DeletionPolicy::Delete);
    image.spec.retire == Some(true) || deleted
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;

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
