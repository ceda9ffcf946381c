//! `--against-cluster`: the rules that need to see what is there already (R3, R4, R5). Reads, and writes nothing.

use std::collections::BTreeMap;

use kube::{Api, ResourceExt as _, api::ListParams};

use super::{
    input::Candidate,
    judge::{Problem, Report, Row, Verdict},
};
use crate::{
    api::GoldenImage,
    catalog::{entry_changes, owners},
    cli::Failure,
    foreign::{Claim, DataVolume},
    golden::{Foretold, foretell, observe, wanted},
    model::{Identity, Image, Sameness, SchematicId, Target},
    rules::{Reason, duplicate_message, frozen_message, taken_name_message},
};

/// What is there.
#[derive(Debug, Default)]
pub(super) struct Live {
    images: Vec<GoldenImage>,
    volumes: BTreeMap<String, DataVolume>,
    claims: BTreeMap<String, Claim>,
}

impl Live {
    /// Reads GoldenImages, and the DataVolumes and PVCs of the catalog namespace.
    ///
    /// # Errors
    /// When the cluster cannot be asked; a cluster without our kind or without CDI has none of it.
    pub async fn read(client: kube::Client, catalog: &str) -> Result<Self, Failure> {
        async fn all<K>(api: Api<K>, what: &str) -> Result<Vec<K>, Failure>
        where
            K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
        {
            match api.list(&ListParams::default()).await {
                Ok(list) => Ok(list.items),
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
                Err(error) => Err(Failure::new(format!("cannot list {what}: {}", crate::run::api_error(&error)))),
            }
        }
        let images = all(Api::all(client.clone()), "GoldenImages").await?;
        let volumes: Vec<DataVolume> = all(Api::namespaced(client.clone(), catalog), "DataVolumes").await?;
        let claims: Vec<Claim> = all(Api::namespaced(client, catalog), "PersistentVolumeClaims").await?;
        Ok(Self {
            images,
            volumes: volumes.into_iter().map(|volume| (volume.name_any(), volume)).collect(),
            claims: claims.into_iter().map(|claim| (claim.name_any(), claim)).collect(),
        })
    }
}

/// Adds to a report what the cluster says. `ids` are the schematics' IDs, one a candidate, as far as they are known.
pub(super) fn hold_against(report: &mut Report, candidates: &[Candidate], ids: &[Option<SchematicId>], live: &Live) {
    let owners = owners(&live.images);
    let mut goldens: BTreeMap<String, String> = BTreeMap::new();
    for object in &live.images {
        let status = object.status.as_ref();
        let made = status.map(|status| status.targets.as_slice()).unwrap_or_default().iter().filter_map(|target| target.golden.clone());
        goldens.extend(made.map(|golden| (golden, object.name_any())));
    }
    for ((row, candidate), id) in report.images.iter_mut().zip(candidates).zip(ids) {
        let Ok(image) = &candidate.image else { continue };
        let mut problems = Vec::new();
        let mut refuse = |reason: Reason, message: String| {
            problems.push(Problem { reason, field: None, line: candidate.line(), message, remedy: "" });
        };
        let own = live.images.iter().find(|object| object.name_any() == image.name.as_str());
        let ways = Sameness::of(image, id.as_ref());
        match (own, ways.iter().find_map(|same| Some((same, owners.get(same)?.name())))) {
            (Some(object), _) => {
                let changes = entry_changes(image, object);
                if !changes.is_empty() {
                    refuse(Reason::EntryEdited, frozen_message(&candidate.shown(), &changes));
                }
            }
            (None, Some((same, first))) if first != image.name.as_str() => {
                refuse(Reason::DuplicateIdentity, duplicate_message(&candidate.shown(), first, same));
            }
            (None, _) => {}
        }
        let status = own.and_then(|object| object.status.clone()).unwrap_or_default();
        for (at, (target, known)) in image.targets.iter().zip(status.goldens(Some(image), id.as_ref(), None)).enumerate() {
            let record = known.status.filter(|status| status.golden.is_some());
            let Some(golden) = known.name().map(str::to_owned) else { continue };
            // What is on record says which names are left for the others.
            if let Some(shown) = row.goldens.get_mut(at) {
                shown.name = Some(golden.clone());
            }
            if let Some(owner) = goldens.get(&golden).filter(|owner| *owner != image.name.as_str()) {
                refuse(Reason::NameConflict, taken_name_message(&golden, owner));
                continue;
            }
            // An import that was begun is told by the image's own status.
            let is_begun = record.is_some_and(|record| record.claim_uid.is_none() || record.started_time.is_some());
            if !is_begun {
                let recorded = record.and_then(|record| record.claim_uid.as_deref());
                stand(live, (image, id.as_ref()), target, &golden, recorded, row, &mut refuse);
            }
        }
        if !problems.is_empty() {
            row.problems.extend(problems);
            row.verdict = Verdict::Refused;
        }
    }
    report.sum_up();
}

/// R5 and R7 for one golden: what stands under its name, and whether it would be taken over or believed.
fn stand(
    live: &Live,
    (image, id): (&Image, Option<&SchematicId>),
    target: &Target,
    golden: &str,
    recorded: Option<&str>,
    row: &mut Row,
    refuse: &mut impl FnMut(Reason, String),
) {
    let identity = image.identity(id);
    let identity = identity.as_ref().map(Identity::as_str);
    let view = observe::golden_view(live.volumes.get(golden), live.claims.get(golden), &image.name, identity);
    match foretell(&wanted(image, id, target, golden), recorded, &view) {
        None => {}
        Some(Foretold::TakenOver) => {
            row.warnings.push(format!("The golden {golden} exists and is taken over as it is: nothing is downloaded."));
        }
        Some(Foretold::Refused(reason, message)) => refuse(reason, message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::input, *};
    use crate::{
        cli::plan::judge::{Peek, judge},
        rules::marks,
    };

    /// A class that is put first later is no reason to hold the golden of the other class against it.
    #[test]
    fn a_class_put_before_one_on_record_has_a_name_of_its_own() {
        let list =
            "images:\n- {name: a, url: 'https://e.example/a', storage: {targets: [{storageClassName: new}, {storageClassName: x}]}}\n";
        let candidates = input::read("values.yaml", list).expect("readable").candidates;
        let image = candidates[0].image.as_ref().expect("good");
        let golden = "vm-default-images-a";
        let object: GoldenImage = serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a", "uid": "a" },
            "spec": { "source": { "http": { "url": "https://e.example/a" } }, "storage": { "targets": [{ "storageClassName": "x" }] } },
            "status": { "targets": [{ "requestedClass": "x", "storageClassName": "x", "golden": golden, "claimUID": "c" }] },
        }))
        .expect("an image");
        let labels = json!({ marks::GOLDEN: marks::GOLDEN_VALUE, marks::IMAGE: "a", marks::IDENTITY: image.identity(None).expect("known").as_str() });
        let claim: Claim = serde_json::from_value(json!({
            "metadata": { "name": golden, "namespace": "cozy-public", "uid": "c", "labels": labels },
            "spec": { "storageClassName": "x" }, "status": { "phase": "Bound" },
        }))
        .expect("a claim");
        let live = Live { images: vec![object], volumes: BTreeMap::new(), claims: BTreeMap::from([(golden.to_owned(), claim)]) };
        let mut report = judge(&candidates, &[Peek::NotAsked]);
        hold_against(&mut report, &candidates, &[None], &live);
        let row = &report.images[0];
        let named: Vec<_> = row.goldens.iter().filter_map(|golden| golden.name.as_deref()).collect();
        assert_eq!(named, ["vm-default-images-a-new", golden]);
        assert!(row.problems.is_empty() && row.warnings.iter().all(|warning| !warning.contains("taken over")), "{row:?}");
    }
}
