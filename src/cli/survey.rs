//! Who needs a golden, asked of the cluster directly: the daemon's own watches and ledger, run until all is known.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use k8s_openapi::{api::storage::v1::StorageClass, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::{Api, Client, ResourceExt as _, api::ListParams};

use super::Failure;
use crate::{
    api::GoldenImage,
    daemon::{Index, cluster},
    foreign::{Claim, DataVolume},
    golden::{Goldens, Standing, goldens_of, observe},
    model::Identity,
    rules::{class::Classes, clone::Known, consumers::Consumers, marks},
    run::{api_error, client::reader},
    world::{
        ConsumerWatch, Phase, WatchSettings,
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
    let classes = classes(&client).await?;
    let subject = subject(&client, name, &arguments.catalog_namespace, &classes).await?;
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

/// What is marked as a golden in the catalog.
pub(super) async fn marked(client: &Client, catalog: &str) -> kube::Result<Vec<ObjectMeta>> {
    let claims: Api<Claim> = Api::namespaced(client.clone(), catalog);
    let marked = claims.list_metadata(&ListParams::default().labels(&marks::selector())).await?;
    Ok(marked.items.into_iter().map(|claim| claim.metadata).collect())
}

/// `None` for an object, or a whole kind, that is not there.
fn there<K>(what: &str, answer: Result<Option<K>, kube::Error>) -> Result<Option<K>, Failure> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => other.map_err(|error| Failure::new(format!("cannot read the {what}: {}", api_error(&error)))),
    }
}

/// A GoldenImage of the name, and a golden's DataVolume or PVC of the name. Where both are, both count: an answer that forgets one could say "free" of what is in use.
async fn subject(client: &Client, name: &str, catalog: &str, classes: &Classes) -> Result<Subject, Failure> {
    let images: Api<GoldenImage> = Api::all(client.clone());
    let claims: Api<Claim> = Api::namespaced(client.clone(), catalog);
    let volumes: Api<DataVolume> = Api::namespaced(client.clone(), catalog);
    let (image, claim, volume) = tokio::join!(images.get_opt(name), claims.get_opt(name), volumes.get_opt(name));
    let image = there("GoldenImage", image)?;
    let (claim, volume) = (there("PersistentVolumeClaim", claim)?, there("DataVolume", volume)?);
    let Goldens { names: mut goldens, identity } = match &image {
        Some(image) => {
            let standing = marked(client, catalog).await;
            let standing =
                standing.map_err(|error| Failure::new(format!("cannot list the goldens in {catalog}: {}", api_error(&error))))?;
            let all = images.list(&ListParams::default()).await;
            let all = all.map_err(|error| Failure::new(format!("cannot list GoldenImages: {}", api_error(&error))))?;
            let index = Index::default();
            all.items.iter().for_each(|image| index.update(&image.name_any(), Some(image)));
            let default = observe::default_class(classes);
            goldens_of(image, &Standing::of(&standing, catalog), default.as_ref(), |golden| index.owner_before(name, golden).is_some())
        }
        None => Goldens::default(),
    };
    let is_golden = claim.is_some() || volume.is_some();
    // A golden that is gone may still be named.
    if is_golden || image.is_none() {
        goldens.insert(name.to_owned());
    }
    let label = |labels: &std::collections::BTreeMap<String, String>| labels.get(marks::IDENTITY).cloned();
    let marked = claim.as_ref().and_then(|claim| label(claim.labels())).or_else(|| label(volume.as_ref()?.labels()));
    let identity = identity.or_else(|| marked?.parse().ok());
    let kind = if image.is_some() { "GoldenImage" } else { "golden" };
    Ok(Subject { kind, goldens: goldens.into_iter().collect(), identity, exists: image.is_some() || is_golden })
}
