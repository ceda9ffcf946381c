//! Which goldens are to go, or have a fence around them, and what is wished of each (R23, R24).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, Resource, ResourceExt as _};

use super::marks::Refused;
use crate::{
    api::{GoldenImage, TargetStatus},
    daemon::controller::Shared,
    fence::Wish,
    foreign::{Claim, DataVolume},
    golden::{Owner, place},
    model::Identity,
    rules::{fence::Fence, leaving::Place, marks, whose::Whose},
    world::{
        Cluster, Parts,
        evidence::{is_guarded, texts},
        facts,
    },
};

/// A golden of which something is to be done: a claim, a DataVolume, or both. CDI makes the claim, and may not get to that for long.
pub(super) struct Candidate {
    pub name: String,
    pub claim: Option<Arc<Claim>>,
    pub volume: Option<Arc<DataVolume>>,
    pub image: Option<Arc<GoldenImage>>,
    pub wish: Wish,
    /// Whether it alone is to go, since its target was taken out: its image stays.
    pub is_leaving: bool,
    /// One of its own objects that is there and cannot be read: nothing is done about a golden of which not all is known.
    pub odd: Option<String>,
    catalog: String,
}

impl Candidate {
    /// What is waited for and tried is these very objects: with a claim that CDI has made meanwhile it is begun anew.
    pub fn key(&self) -> String {
        self.uids().collect::<Vec<_>>().join("/")
    }

    /// The UIDs of its objects.
    pub fn uids(&self) -> impl Iterator<Item = String> {
        let claim = self.claim.as_ref().and_then(|claim| claim.uid());
        claim.into_iter().chain(self.volume.as_ref().and_then(|volume| volume.uid()))
    }

    fn parts(&self) -> Parts<'_> {
        parts(self.claim.as_deref(), self.volume.as_deref(), &self.catalog)
    }

    pub fn identity(&self) -> Option<Identity> {
        // A worker class names the image, and the image has another golden; pools name the golden that they clone.
        if self.is_leaving {
            return None;
        }
        // Worker classes name it by what it was made from, whatever its image is by now.
        let marked = || label(self.parts(), marks::IDENTITY);
        let recorded = || self.image.as_ref()?.status.as_ref()?.identity.clone();
        marked().or_else(recorded)?.parse().ok()
    }

    /// Whether the last mark is on one of its objects: from there on there is no way back.
    pub fn is_retired(&self) -> bool {
        self.parts().fence() == Fence::Retired
    }

    pub fn is_terminating(&self) -> bool {
        self.parts().is_terminating()
    }

    pub fn claim_fence(&self) -> Option<Fence> {
        self.claim.as_ref().map(|claim| facts::fence(&claim.metadata))
    }

    pub fn volume_fence(&self) -> Option<Fence> {
        self.volume.as_ref().map(|volume| facts::fence(&volume.metadata))
    }

    /// What is told of it is told on the claim, or on the DataVolume where that has none.
    pub fn regarding(&self) -> ObjectReference {
        let volume = || self.volume.as_ref().map(|volume| volume.object_ref(&()));
        let regarding = self.claim.as_ref().map(|claim| claim.object_ref(&())).or_else(volume).unwrap_or_default();
        ObjectReference { resource_version: None, ..regarding }
    }
}

fn parts<'a>(claim: Option<&'a Claim>, volume: Option<&'a DataVolume>, catalog: &str) -> Parts<'a> {
    Parts::of(claim.map(|claim| &claim.metadata), volume.map(|volume| &volume.metadata), catalog)
}

/// What a golden says of itself.
fn label(parts: Parts<'_>, key: &str) -> Option<String> {
    parts.marked?.labels.as_ref()?.get(key).cloned()
}

/// The goldens that are to go, or have a fence around them; `None` while not all is known.
pub(super) fn candidates(shared: &Shared) -> Option<Vec<Candidate>> {
    let (cluster, catalog) = (&shared.cluster, shared.catalog.as_str());
    if !cluster.is_known() {
        return None;
    }
    let images = cluster.images.all();
    let of_golden = on_record(&images);
    let (claims, volumes) = (cluster.claims.all(), cluster.volumes.all());
    let marked = |meta: &ObjectMeta| is_guarded(meta, catalog).then(|| meta.name.clone()).flatten();
    let names: BTreeSet<String> = claims
        .iter()
        .filter_map(|claim| marked(&claim.metadata))
        .chain(volumes.iter().filter_map(|volume| marked(&volume.metadata)))
        .collect();
    let candidates = names.into_iter().map(|name| {
        let (claim, volume) = (cluster.claims.get(catalog, &name), cluster.volumes.get(catalog, &name));
        let parts = parts(claim.as_deref(), volume.as_deref(), catalog);
        let (has_claim, has_volume) = (parts.claim.is_some(), parts.volume.is_some());
        let image = image_of(&name, parts, &of_golden, |name| cluster.images.get("", name));
        let of_it = (claim.as_deref().filter(|_| has_claim), volume.as_deref().filter(|_| has_volume));
        let is_leaving = image.as_deref().is_some_and(|image| is_leaving(image, &name, of_it, |record| is_seen_to_stand(shared, record)));
        let of = image.as_ref().map(|image| image.name_any()).or_else(|| label(parts, marks::IMAGE));
        let odd = unreadable(cluster, catalog, &name, of.as_deref());
        let wish = wish(&name, parts, image.as_deref(), is_leaving);
        Candidate {
            claim: claim.filter(|_| has_claim),
            volume: volume.filter(|_| has_volume),
            name,
            image,
            wish,
            is_leaving,
            odd,
            catalog: catalog.to_owned(),
        }
    });
    Some(candidates.filter(|candidate| candidate.wish != Wish::Keep || candidate.parts().fence() != Fence::Open).collect())
}

/// Images by the name and UID of each golden that they have on record.
type OnRecord = HashMap<(String, String), Arc<GoldenImage>>;

fn on_record(images: &[Arc<GoldenImage>]) -> OnRecord {
    let of_image = |image: &Arc<GoldenImage>| {
        let targets = image.status.iter().flat_map(|status| &status.targets);
        let goldens = targets.filter_map(|target| Some((target.golden.clone()?, target.claim_uid.clone()?)));
        goldens.map(|golden| (golden, Arc::clone(image))).collect::<Vec<_>>()
    };
    images.iter().flat_map(of_image).collect()
}

/// The image whose golden it is: by record, else by the golden's mark, because an image made again has none on record until it has adopted.
/// One of the name alone may be of another source, and its word says nothing of this golden.
fn image_of(
    golden: &str,
    parts: Parts<'_>,
    of_golden: &OnRecord,
    named: impl FnOnce(&str) -> Option<Arc<GoldenImage>>,
) -> Option<Arc<GoldenImage>> {
    let uid = parts.claim.and_then(|claim| claim.uid.clone());
    let recorded = uid.and_then(|uid| of_golden.get(&(golden.to_owned(), uid)));
    recorded.map(Arc::clone).or_else(|| named(&label(parts, marks::IMAGE)?).filter(|image| is_its(image, parts)))
}

/// Whether it is a golden of the image, or one that nobody may do anything about until the image knows what it is.
fn is_its(image: &GoldenImage, parts: Parts<'_>) -> bool {
    whose(&Owner::of(image), parts) != Whose::Another
}

/// Whose golden it is: by the claim's UID on record, else by the one of its objects that carries our mark.
fn whose(owner: &Owner<'_>, parts: Parts<'_>) -> Whose {
    match parts.claim.map(|claim| owner.claim(claim)) {
        Some(Whose::Another) | None => parts.marked.map_or(Whose::Another, |marked| owner.volume(marked)),
        Some(whose) => whose,
    }
}

/// Whether the golden's own target was taken out, and another golden can stand in: `stands` is whether that one is there. One that was never
/// finished is nothing that another would have to stand in for.
fn is_leaving(
    image: &GoldenImage,
    golden: &str,
    (claim, volume): (Option<&Claim>, Option<&DataVolume>),
    stands: impl Fn(&TargetStatus) -> bool,
) -> bool {
    let is_unfinished = || {
        let is_made = image.status.as_ref().and_then(|status| status.of_golden(golden)).is_some_and(TargetStatus::is_made);
        // CDI binds the claim of what it has filled a moment before it says so.
        let is_bound = claim.is_some_and(|claim| facts::claim_seen(claim).phase == "Bound");
        !is_made && !is_bound && volume.is_some_and(|volume| facts::volume_seen(volume).phase != "Succeeded")
    };
    !is_to_go(image)
        && match place(image, golden, stands) {
            Place::Leaving => true,
            Place::Last => is_unfinished(),
            Place::Wanted => false,
        }
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
    let parts = candidate.parts();
    // A claim that the watch does not show yet is no part of what was waited for.
    if candidate.claim.is_none() {
        let claim = look(Api::<Claim>::namespaced(client.clone(), &shared.catalog), &shared.catalog, &candidate.name).await?;
        if self::parts(claim.as_ref(), candidate.volume.as_deref(), &shared.catalog).claim.is_some() {
            return Ok(false);
        }
    }
    let named = candidate.image.as_ref().map(|image| image.name_any()).or_else(|| label(parts, marks::IMAGE));
    let Some(name) = named else { return Ok(true) };
    let live = look(Api::<GoldenImage>::all(client.clone()), "", &name).await?;
    let live = live.filter(|image| is_its(image, parts));
    if live.as_ref().and_then(|image| image.uid()) != candidate.image.as_ref().and_then(|image| image.uid()) {
        return Ok(false);
    }
    if candidate.is_leaving {
        let Some(image) = &live else { return Ok(false) };
        let standing = standing(client, &shared.catalog, image, &candidate.name).await?;
        let stands = |record: &TargetStatus| record.golden.as_ref().is_some_and(|golden| standing.contains(golden));
        let volume = look(Api::<DataVolume>::namespaced(client.clone(), &shared.catalog), &shared.catalog, &candidate.name).await?;
        if !is_leaving(image, &candidate.name, (candidate.claim.as_deref(), volume.as_ref()), stands) {
            return Ok(false);
        }
    }
    Ok(wish(&candidate.name, parts, live.as_ref(), candidate.is_leaving) == candidate.wish)
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
        record.claim_uid.as_deref() == Some(seen.uid)
            && seen.phase == "Bound"
            && !seen.terminating
            && facts::fence(&claim.metadata) == Fence::Open
    });
    let is_let_be = |volume: &DataVolume| volume.metadata.deletion_timestamp.is_none() && facts::fence(&volume.metadata) == Fence::Open;
    stands && volume.is_none_or(is_let_be)
}

/// What is asked for (R23, R24). `is_leaving`: the golden's own target was taken out, and another golden can stand in.
fn wish(golden: &str, parts: Parts<'_>, image: Option<&GoldenImage>, is_leaving: bool) -> Wish {
    let on_claim = texts(parts.claim.and_then(|claim| claim.annotations.as_ref()));
    let whose = |owner: &Owner<'_>| whose(owner, parts);
    let is_requested = on_claim.contains_key(marks::RETIRE_REQUESTED);
    let asked = match image {
        // A target that is taken out has its own golden go, and no other one.
        Some(image) if is_to_go(image) || is_leaving => whose(&Owner::of(image)) != Whose::Unknown,
        // What stands for no target of its image goes by its own name, as what has no image does.
        Some(image) if is_requested => {
            let owner = Owner::of(image);
            whose(&owner) == Whose::Its && owner.has_no_place_for(golden)
        }
        Some(_) => false,
        None => is_requested,
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
    image.spec.retire == Some(true) || image.is_deleted_with_goldens()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;

    const CATALOG: &str = "cozy-public";

    fn alone(claim: &Claim) -> Parts<'_> {
        parts(Some(claim), None, CATALOG)
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
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {},
                "metadata": { "name": "g", "annotations": annotations, "labels": { marks::GOLDEN: "true" } },
            }))
            .expect("a claim")
        };
        let bare = claim(json!({}));
        let wish = |claim: &Claim, image: Option<&GoldenImage>| wish("g", alone(claim), image, false);
        assert_eq!(wish(&bare, Some(&image(false, true))), Wish::Keep);
        assert_eq!(wish(&bare, Some(&image(true, false))), Wish::Retire);
        assert_eq!(wish(&bare, Some(&image(true, true))), Wish::Force("poisoned".into()));
        assert_eq!(wish(&claim(json!({ marks::FORCE_RETIRE: "poisoned" })), None), Wish::Keep);
        let asked = claim(json!({ marks::FORCE_RETIRE: "poisoned", marks::RETIRE_REQUESTED: "now" }));
        assert_eq!(wish(&asked, None), Wish::Force("poisoned".into()));
        // The wish of an image counts, whatever is left on its golden.
        assert_eq!(wish(&asked, Some(&image(false, false))), Wish::Keep);
    }

    fn made_from(name: &str, url: &str, change: serde_json::Value) -> Arc<GoldenImage> {
        let mut image = json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name, "uid": format!("{name}-{url}") },
            "spec": { "source": { "http": { "url": format!("https://e.example/{url}") } }, "retire": false },
        });
        for (key, value) in change.as_object().expect("a map") {
            match key.as_str() {
                "spec" => image["spec"].as_object_mut().expect("a map").extend(value.as_object().expect("a map").clone()),
                _ => image[key] = value.clone(),
            }
        }
        Arc::new(serde_json::from_value(image).expect("an image"))
    }

    /// A golden that was made for an image of this name and source.
    fn golden_of(name: &str, url: &str, annotations: serde_json::Value) -> Claim {
        let image = made_from(name, url, json!({}));
        let identity = crate::api::parse_image(&image).expect("good").identity(None).expect("known").to_string();
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {},
            "metadata": {
                "name": "g", "uid": "1", "annotations": annotations,
                "labels": { marks::GOLDEN: "true", marks::IMAGE: name, marks::IDENTITY: identity },
            },
        }))
        .expect("a claim")
    }

    fn recorded(golden: &str, uid: &str) -> serde_json::Value {
        json!({ "targets": [{ "requestedClass": "", "golden": golden, "claimUID": uid }] })
    }

    /// A GoldenImage was deleted, its golden stayed, and another image was made under the name: whatever is wished of that one says nothing
    /// of the golden, which somebody uses.
    #[test]
    fn r24_an_image_has_no_word_over_a_golden_of_another_source() {
        let to_go = json!({ "spec": { "retire": true }, "metadata": { "name": "a", "annotations": { marks::FORCE_RETIRE: "poisoned" } } });
        let force = Wish::Force("poisoned".into());
        let (kept, asked) = (json!({}), json!({ marks::RETIRE_REQUESTED: "now" }));
        let with_status = |mut image: serde_json::Value, status: serde_json::Value| {
            image["status"] = status;
            image
        };
        for (case, url, image, on_claim, has_image, expected) in [
            ("made again, the same", "u", to_go.clone(), &kept, true, force.clone()),
            ("made again of another source", "v", to_go.clone(), &kept, false, Wish::Keep),
            ("the same, and asked for by its name", "v", to_go.clone(), &asked, false, Wish::Retire),
            ("on record under its UID", "v", with_status(to_go.clone(), recorded("g", "1")), &kept, true, force.clone()),
            ("another volume of the name on record", "v", with_status(to_go.clone(), recorded("g", "2")), &kept, false, Wish::Keep),
            ("not to go, no golden yet", "u", json!({}), &asked, true, Wish::Keep),
            ("not to go, it has the golden", "u", json!({ "status": recorded("g", "1") }), &asked, true, Wish::Keep),
            ("made again with fewer targets", "u", json!({ "status": recorded("other", "2") }), &asked, true, Wish::Retire),
            ("the same, and nobody asked", "u", json!({ "status": recorded("other", "2") }), &kept, true, Wish::Keep),
        ] {
            let (image, claim) = (made_from("a", url, image), golden_of("a", "u", on_claim.clone()));
            let parts = alone(&claim);
            let found = image_of("g", parts, &on_record(&[Arc::clone(&image)]), |name| (name == "a").then(|| Arc::clone(&image)));
            assert_eq!((found.is_some(), wish("g", parts, found.as_deref(), false)), (has_image, expected), "{case}");
        }
        // While the image does not know what it is, nothing is done on its word, nor as if the golden were nobody's.
        let schematic =
            json!({ "retire": true, "source": { "talosFactory": { "version": "v1.13.6", "schematic": { "customization": {} } } } });
        let unknown = made_from("a", "u", json!({ "spec": schematic }));
        let mut spec = serde_json::to_value(&*unknown).expect("JSON");
        spec["spec"]["source"].as_object_mut().expect("a map").remove("http");
        let unknown: Arc<GoldenImage> = Arc::new(serde_json::from_value(spec).expect("an image"));
        assert_eq!(Owner::of(&unknown).claim(&golden_of("a", "u", kept.clone()).metadata), Whose::Unknown);
        for annotations in [kept, asked] {
            assert_eq!(wish("g", alone(&golden_of("a", "u", annotations)), Some(&unknown), false), Wish::Keep);
        }
    }

    fn volume_of(claim: &Claim, phase: &str) -> DataVolume {
        let metadata = json!({ "name": "g", "uid": "dv", "labels": claim.metadata.labels });
        let status = json!({ "phase": phase });
        let volume =
            json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": metadata, "spec": {}, "status": status });
        serde_json::from_value(volume).expect("a volume")
    }

    /// CDI has not made its claim yet, or cannot: its DataVolume says whose it is, and what its image wishes is about it too.
    #[test]
    fn r23_a_golden_without_a_claim_goes_on_the_word_of_its_image() {
        let force = Wish::Force("poisoned".into());
        let forced = json!({ "spec": { "retire": true }, "metadata": { "name": "a", "annotations": { marks::FORCE_RETIRE: "poisoned" } } });
        let asked = golden_of("a", "u", json!({ marks::RETIRE_REQUESTED: "now" }));
        let volume = volume_of(&asked, "ImportScheduled");
        for (case, url, change, has_image, expected) in [
            ("retired", "u", json!({ "spec": { "retire": true } }), true, Wish::Retire),
            ("by force", "u", forced, true, force),
            ("wanted", "u", json!({}), true, Wish::Keep),
            ("of another source", "v", json!({ "spec": { "retire": true } }), false, Wish::Keep),
        ] {
            let image = made_from("a", url, change);
            let parts = parts(None, Some(&volume), CATALOG);
            let found = image_of("g", parts, &OnRecord::new(), |name| (name == "a").then(|| Arc::clone(&image)));
            assert_eq!((found.is_some(), wish("g", parts, found.as_deref(), false)), (has_image, expected), "{case}");
        }
        // Another volume of the name, which somebody filled by hand, is no part of it, and its wish none of its.
        let mut theirs = asked;
        theirs.metadata.labels = None;
        assert_eq!(wish("g", parts(Some(&theirs), Some(&volume), CATALOG), None, false), Wish::Keep);
    }

    #[test]
    fn r23_what_is_waited_for_is_these_very_objects() {
        let (claim, image) = (golden_of("a", "u", json!({})), None::<Arc<GoldenImage>>);
        let volume = volume_of(&claim, "ImportInProgress");
        let candidate = |claim: Option<&Claim>, volume: Option<&DataVolume>| Candidate {
            name: "g".into(),
            claim: claim.cloned().map(Arc::new),
            volume: volume.cloned().map(Arc::new),
            image: image.clone(),
            wish: Wish::Retire,
            is_leaving: false,
            odd: None,
            catalog: CATALOG.into(),
        };
        let (alone, both) = (candidate(None, Some(&volume)), candidate(Some(&claim), Some(&volume)));
        assert_eq!([alone.key(), both.key()], ["dv", "1/dv"]);
        let kinds = [alone.regarding(), both.regarding()].map(|regarding| (regarding.kind.unwrap_or_default(), regarding.resource_version));
        assert_eq!(kinds, [("DataVolume".to_owned(), None), ("PersistentVolumeClaim".to_owned(), None)]);
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
            let metadata = json!({ "name": name, "annotations": annotations, "labels": { marks::GOLDEN: "true" } });
            serde_json::from_value(json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {} }))
                .expect("a claim")
        };
        let (first, local) = (claim("g", json!({})), claim("g-local", json!({})));
        let wish = |claim: &Claim, image: Option<&GoldenImage>| {
            let is_leaving = image.is_some_and(|image| is_leaving(image, &claim.name_any(), (None, None), |_| true));
            wish(&claim.name_any(), alone(claim), image, is_leaving)
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
        // One that was never finished is nothing that another would have to stand in for, and is the last of nothing.
        for (phase, claim, has_record, expected) in [
            ("ImportInProgress", "Pending", false, true),
            ("Succeeded", "Bound", false, false),
            ("ImportInProgress", "Bound", false, false),
            ("ImportInProgress", "Pending", true, false),
        ] {
            let mut last = image(json!([{}]), "False");
            if !has_record {
                last.status.as_mut().expect("status").targets[1].claim_uid = None;
            }
            let volume = volume_of(&local, phase);
            let mut of_it = local.clone();
            of_it.status = serde_json::from_value(json!({ "phase": claim })).expect("a status");
            let of_it = (Some(&of_it), Some(&volume));
            assert_eq!(is_leaving(&last, "g-local", of_it, |_| true), expected, "{phase}, {claim}, recorded: {has_record}");
        }
        let forced = claim("g-local", json!({ marks::FORCE_RETIRE: "poisoned" }));
        assert_eq!((wish(&forced, Some(&one)), wish(&forced, Some(&both))), (Wish::Force("poisoned".into()), Wish::Keep));
    }
}
