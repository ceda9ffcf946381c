//! Who needs a golden, asked of the cluster directly: the daemon's own watches and ledger, run until all is known.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use k8s_openapi::{api::storage::v1::StorageClass, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::{Api, Client, ResourceExt as _, api::ListParams};

use super::Failure;
use crate::{
    admission::ImageFacts,
    api::GoldenImage,
    daemon::cluster,
    foreign::{Claim, DataVolume},
    golden::Owner,
    model::Identity,
    rules::{class::Classes, clone::Known, consumers::Consumers, marks, whose::Whose},
    run::{api_error, client::reader},
    world::{
        ConsumerWatch, Phase, WatchSettings,
        evidence::texts,
        facts::class_facts,
        ledger::{GoldenKey, Kind, Storage},
    },
};

/// How long a kind may fail before the answer is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Which cluster, and what the hoster knows of it.
#[derive(Debug, Clone, clap::Args)]
pub struct SurveyArguments {
    /// The namespace of the goldens.
    #[arg(long, default_value = "cozy-public")]
    catalog_namespace: String,
    /// A StorageClass whose finished clones do not depend on their golden, as in the daemon's setting `independentClasses`; may be repeated.
    #[arg(long = "independent-class", value_name = "CLASS")]
    independent: Vec<String>,
}

/// What the name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    /// `GoldenImage` or `golden`.
    pub kind: &'static str,
    /// The goldens.
    pub goldens: Vec<String>,
    /// The image's identity, by which worker classes name it.
    pub identity: Option<Identity>,
    /// Whether anything of the name exists.
    pub exists: bool,
}

/// Who needs it.
pub(super) struct Survey {
    pub subject: Subject,
    /// What was seen; complete only where `known` is good.
    pub seen: Consumers,
    /// Whether there can be no others.
    pub known: Known<()>,
}

/// Asks the cluster who needs what this name stands for.
pub(super) async fn survey(name: &str, arguments: &SurveyArguments) -> Result<Survey, Failure> {
    let config = cluster().await.map_err(Failure::new)?;
    let client = reader(&config).map_err(|error| Failure::new(api_error(&error)))?;
    let settings = WatchSettings::default();
    let watch = ConsumerWatch::new(&arguments.catalog_namespace, settings);
    let mut tasks = tokio::task::JoinSet::new();
    for feed in watch.watches(&client, settings) {
        tasks.spawn(feed.run);
    }
    let (subject, classes) = tokio::try_join!(subject(&client, name, &arguments.catalog_namespace), classes(&client))?;
    let known = until_known(&watch).await;
    let independent: BTreeSet<String> = arguments.independent.iter().cloned().collect();
    let storage = Storage { classes: &classes, independent: &independent, now: Timestamp::now().as_second() };
    let ledger = watch.read();
    let identity = GoldenKey { name: "", identity: subject.identity.as_ref() };
    let keys = subject.goldens.iter().map(|golden| GoldenKey::named(golden)).chain([identity]);
    let seen = Consumers::merge(keys.map(|key| ledger.consumers_seen(key, storage)));
    drop(ledger);
    Ok(Survey { subject, seen, known })
}

/// Waits until every kind is known, or one of them will not be.
async fn until_known(watch: &ConsumerWatch) -> Known<()> {
    let began = Instant::now();
    loop {
        let known = watch.known();
        let is_hopeless = Kind::ALL.iter().any(|kind| {
            let pulse = watch.pulse(*kind);
            let trouble = pulse.known().err().is_some_and(|unknown| unknown.trouble.is_some());
            pulse.phase() == Phase::Refused || trouble && began.elapsed() > PATIENCE
        });
        if known.is_ok() || is_hopeless {
            return known;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn classes(client: &Client) -> Result<Classes, Failure> {
    let api: Api<StorageClass> = Api::all(client.clone());
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items.iter().map(|class| (class.name_any(), class_facts(class))).collect()),
        Err(error) => Err(Failure::new(format!("cannot list StorageClasses: {}", api_error(&error)))),
    }
}

/// `None` for an object, or a whole kind, that is not there.
fn there<K>(what: &str, answer: Result<Option<K>, kube::Error>) -> Result<Option<K>, Failure> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => other.map_err(|error| Failure::new(format!("cannot read the {what}: {}", api_error(&error)))),
    }
}

/// A GoldenImage of the name, and a golden's DataVolume or PVC of the name. Where both are, both count: an answer that forgets one could say "free" of what is in use.
async fn subject(client: &Client, name: &str, catalog: &str) -> Result<Subject, Failure> {
    let images: Api<GoldenImage> = Api::all(client.clone());
    let claims: Api<Claim> = Api::namespaced(client.clone(), catalog);
    let volumes: Api<DataVolume> = Api::namespaced(client.clone(), catalog);
    let (image, claim, volume) = tokio::join!(images.get_opt(name), claims.get_opt(name), volumes.get_opt(name));
    let image = there("GoldenImage", image)?;
    let (claim, volume) = (there("PersistentVolumeClaim", claim)?, there("DataVolume", volume)?);
    let (mut goldens, identity) = match &image {
        Some(image) => {
            let marked = ListParams::default().labels(&marks::selector());
            let standing = claims.list_metadata(&marked).await;
            let standing =
                standing.map_err(|error| Failure::new(format!("cannot list the goldens in {catalog}: {}", api_error(&error))))?;
            let standing: Vec<ObjectMeta> = standing.items.into_iter().map(|claim| claim.metadata).collect();
            goldens_of(image, &standing)
        }
        None => (BTreeSet::new(), None),
    };
    let is_golden = claim.is_some() || volume.is_some();
    // A golden that is gone may still be named.
    if is_golden || image.is_none() {
        goldens.insert(name.to_owned());
    }
    let label = |labels: &std::collections::BTreeMap<String, String>| labels.get(marks::IDENTITY).cloned();
    let marked = claim.as_ref().and_then(|claim| label(claim.labels())).or_else(|| label(volume.as_ref()?.labels()));
    let identity = identity.or(marked).and_then(|identity| identity.parse().ok());
    let kind = if image.is_some() { "GoldenImage" } else { "golden" };
    Ok(Subject { kind, goldens: goldens.into_iter().collect(), identity, exists: image.is_some() || is_golden })
}

/// The goldens of an image, and its identity. `standing`: all that is marked as a golden in the catalog.
///
/// Its record alone is not enough: it is lost where the object was restored or made again, and not written yet where nobody accepted the
/// image. What it would make is asked for by name, and what stands there marked for it is its golden all the same.
fn goldens_of(image: &GoldenImage, standing: &[ObjectMeta]) -> (BTreeSet<String>, Option<String>) {
    let (facts, owner, name) = (ImageFacts::of(image), Owner::of(image), image.name_any());
    let identity = |claim: &ObjectMeta| texts(claim.labels.as_ref()).get(marks::IDENTITY).cloned();
    // Another image has it: who clones that one says nothing of this image.
    let is_of_another = |golden: &str| {
        let mut found = standing.iter().filter(|claim| claim.name.as_deref() == Some(golden));
        found.any(|claim| texts(claim.labels.as_ref()).get(marks::IMAGE).is_some_and(|image| *image != name))
    };
    let known = facts.goldens.iter().filter(|record| record.is_recorded || !is_of_another(&record.golden));
    let its: Vec<&ObjectMeta> = standing.iter().filter(|claim| owner.claim(claim) != Whose::Another).collect();
    let goldens = known.map(|record| record.golden.clone()).chain(its.iter().filter_map(|claim| claim.name.clone())).collect();
    let recorded = image.status.as_ref().and_then(|status| status.identity.clone());
    (goldens, recorded.or(facts.identity).or_else(|| its.into_iter().find_map(identity)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn image(status: &Value) -> GoldenImage {
        serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a", "uid": "a" },
            "spec": {
                "source": { "http": { "url": "https://e.example/a" } },
                "storage": { "targets": [{ "storageClassName": "replicated" }, { "storageClassName": "local" }] },
            },
            "status": status,
        }))
        .expect("an image")
    }

    /// What stands in the catalog under this name, marked for this image with its identity or another one.
    fn golden(name: &str, of: &str, identity: &str) -> ObjectMeta {
        serde_json::from_value(json!({
            "name": name, "uid": name, "labels": { marks::GOLDEN: marks::GOLDEN_VALUE, marks::IMAGE: of, marks::IDENTITY: identity },
        }))
        .expect("metadata")
    }

    #[test]
    fn r24_the_goldens_of_an_image_are_known_without_its_record() {
        const FIRST: &str = "vm-default-images-a";
        let own = ImageFacts::of(&image(&json!({}))).identity.expect("an HTTP image knows what it is");
        let recorded = json!({ "targets": [{ "requestedClass": "replicated", "golden": FIRST, "claimUID": FIRST }] });
        let its = |name: &str| golden(name, "a", &own);
        for (case, status, standing, expected) in [
            ("nothing is made", json!({}), vec![], vec![FIRST]),
            ("the record is lost", json!({}), vec![its(FIRST), its("vm-default-images-a-local")], vec![FIRST, "vm-default-images-a-local"]),
            ("lost, and its name was another", json!({}), vec![its("ubuntu")], vec!["ubuntu", FIRST]),
            ("on record, and one more", recorded.clone(), vec![its("ubuntu")], vec!["ubuntu", FIRST, "vm-default-images-a-local"]),
            ("its name is another's golden", json!({}), vec![golden(FIRST, "b", &own)], vec![]),
            ("another's that has it on record", recorded, vec![golden(FIRST, "b", &own)], vec![FIRST, "vm-default-images-a-local"]),
            ("of the same name and another source", json!({}), vec![golden("ubuntu", "a", "other")], vec![FIRST]),
        ] {
            let (goldens, identity) = goldens_of(&image(&status), &standing);
            assert_eq!(goldens.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{case}");
            assert_eq!(identity.as_ref(), Some(&own), "{case}");
        }
    }
}
