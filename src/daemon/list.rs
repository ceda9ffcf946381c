//! The leader's second loop: the list in values becomes GoldenImages.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::controller::Shared;
use crate::{
    api::GoldenImage,
    catalog::{self, LISTED_AS, LISTED_IN, List, Step},
    golden::manifest::managers,
    rules::Reason,
    run::{
        backoff::Backoff,
        events::{self, Severity},
    },
    world::ConfigMapFacts,
};

/// The wait after a list that could not be turned into GoldenImages.
const FAILED: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(64));

/// The ConfigMap that the chart renders the list into, and its key.
pub const LIST: (&str, &str) = ("golden-catalog-images", "images.yaml");

/// Follows the list until `stop`. `changed` is notified when the list or a GoldenImage may have changed.
pub async fn run(shared: Arc<Shared>, client: Client, changed: Arc<Notify>, stop: CancellationToken) {
    let mut told = BTreeSet::new();
    let mut refused = Refused::default();
    let mut failures: u32 = 0;
    loop {
        let pause = match step(&shared, &client, &mut told, &mut refused).await {
            Ok(()) => {
                failures = 0;
                // What refuses (a policy, a kind that is being deleted) may change without a word to us.
                (!refused.is_empty()).then_some(ASK_AGAIN)
            }
            Err(error) if crate::run::client::is_lost(&error) => return,
            Err(error) => {
                failures = failures.saturating_add(1);
                let wait = FAILED.grown(failures);
                tracing::warn!(error = crate::run::api_error(&error), retry_in = ?wait, "the list could not be turned into GoldenImages");
                Some(wait)
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed.notified() => {},
            () = async { match pause { Some(wait) => tokio::time::sleep(wait).await, None => std::future::pending().await } } => {},
        }
    }
}

/// Entries that the API server refuses, as they were offered, with when and in which words.
type Refused = BTreeMap<String, (Instant, String)>;

/// How long a refused entry is let be before it is offered again, unchanged.
const ASK_AGAIN: Duration = Duration::from_secs(15);

async fn step(shared: &Shared, client: &Client, told: &mut BTreeSet<String>, refused: &mut Refused) -> Result<(), kube::Error> {
    let list_id = format!("{}/{}", shared.namespace, LIST.0);
    let facts = shared.cluster.config_maps.get(&shared.namespace, LIST.0);
    // Without a ConfigMap nothing is known of a list: images made from one stay as they are, and are not "dropped from it".
    let Some(facts) = facts else { return Ok(()) };
    let text = facts.data.get(LIST.1).map(String::as_str).unwrap_or_default();
    let list = match catalog::read_list(text) {
        Ok(list) => list,
        Err(error) => {
            let mut current = BTreeSet::new();
            tell(shared, &facts, told, &mut current, Reason::InvalidEntry, &error.to_string());
            *told = current;
            shared.metrics.list_problems([Reason::InvalidEntry]);
            return Ok(());
        }
    };
    let existing: Vec<_> = shared.cluster.images.all().iter().map(|image| (**image).clone()).collect();
    let plan = catalog::plan(&list, &existing, &list_id);
    let mut current = BTreeSet::new();
    let mut problems: Vec<_> = plan.problems.iter().map(|problem| problem.reason).collect();
    for problem in &plan.problems {
        tell(shared, &facts, told, &mut current, problem.reason, &problem.message);
    }
    follow(shared, &plan.listings);
    let api: Api<GoldenImage> = Api::all(client.clone());
    let mut failed = None;
    let before = std::mem::take(refused);
    for Step::Apply { name, spec, digest } in &plan.steps {
        // An entry that was refused is refused again: nothing is asked for a while, unless the entry or the object changes.
        let live = existing.iter().find(|image| image.name_any() == *name);
        let live = live.map(|image| (image.uid(), image.metadata.generation, image.annotations().get(LISTED_AS)));
        let key = format!("{name}/{live:?}/{}", crate::model::Digest::of(&serde_json::to_vec(spec).unwrap_or_default()));
        if let Some((at, message)) = before.get(&key).filter(|(at, _)| at.elapsed() < ASK_AGAIN) {
            problems.push(Reason::InvalidEntry);
            current.insert(message.clone());
            refused.insert(key, (*at, message.clone()));
            continue;
        }
        match apply(&api, name, spec, *digest, &list_id, &list).await {
            Ok(None) => {}
            Ok(Some(message)) => {
                tell(shared, &facts, told, &mut current, Reason::InvalidEntry, &message);
                problems.push(Reason::InvalidEntry);
                refused.insert(key, (Instant::now(), message));
            }
            Err(error) if crate::run::client::is_lost(&error) => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    shared.metrics.list_problems(problems);
    *told = current;
    failed.map_or(Ok(()), Err)
}

/// Records how images stand to the list, and wakes those for which that changed.
fn follow(shared: &Shared, listings: &BTreeMap<String, catalog::Listing>) {
    let before = shared.listings.write().unwrap_or_else(PoisonError::into_inner).replace(listings.clone()).unwrap_or_default();
    for name in before.keys().chain(listings.keys()).collect::<BTreeSet<_>>() {
        if before.get(name) != listings.get(name) {
            shared.queue.add(name.clone());
        }
    }
}

/// Applies one entry; gives why the API server refuses it, if it does for good.
async fn apply(
    api: &Api<GoldenImage>,
    name: &str,
    spec: &crate::api::GoldenImageSpec,
    digest: crate::model::Digest,
    list_id: &str,
    list: &List,
) -> Result<Option<String>, kube::Error> {
    let body = json!({
        "apiVersion": "cozystack.io/v1alpha1",
        "kind": "GoldenImage",
        "metadata": { "name": name, "annotations": { LISTED_IN: list_id, LISTED_AS: digest } },
        "spec": spec,
    });
    // Not forced: a field that a person set by hand is not taken away without a word.
    match api.patch(name, &PatchParams::apply(managers::ENTRIES), &Patch::Apply(&body)).await {
        Ok(object) => {
            tracing::info!(image = object.name_any(), "entry of the list applied");
            Ok(None)
        }
        // The API server's schema and CEL hold what the parser holds; a policy may refuse too; a field manager's conflict
        // names the field. Fields and values are told in our own words: the message quotes values as they are, and a URL's query
        // may be a secret. What may pass by itself (an API server in trouble or short of rights, a write that met another) is
        // tried again.
        Err(kube::Error::Api(status)) if is_final(&status) => {
            let index =
                list.entries.iter().flatten().find(|entry| entry.name.as_str() == name).map(|entry| entry.index).unwrap_or_default();
            let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
            let fields: BTreeSet<_> = causes.iter().map(|cause| cause.field.as_str()).filter(|field| !field.is_empty()).collect();
            let shown = |field: &&str| match catalog::quote(&body, field) {
                Some(value) => format!("`{field}` ({value})"),
                None => format!("`{field}`"),
            };
            let fields: Vec<_> = fields.iter().map(shown).collect();
            let about = if fields.is_empty() { status.reason.to_string() } else { fields.join(", ") };
            Ok(Some(format!("images[{index}] ({name}): refused by the API server ({}): {about}", status.code)))
        }
        Err(error) => Err(error),
    }
}

/// Whether the API server would refuse the same entry again: its schema, CEL or a policy does, or a person holds a field (that
/// conflict names the field; one of two writes that met names none). A right that is missing may be there soon: RBAC's own
/// objects come late when a release is installed, and after a restart of the API server.
fn is_final(status: &kube::core::Status) -> bool {
    match status.code {
        400 | 422 => true,
        403 => !status.message.contains(" cannot patch resource "),
        409 => status.details.as_ref().is_some_and(|details| !details.causes.is_empty()),
        _ => false,
    }
}

/// Tells of an entry that becomes nothing: an Event on the ConfigMap and a log line, once for each text.
fn tell(shared: &Shared, facts: &ConfigMapFacts, told: &BTreeSet<String>, current: &mut BTreeSet<String>, reason: Reason, message: &str) {
    current.insert(message.to_owned());
    if told.contains(message) {
        return;
    }
    tracing::warn!(%reason, message, "an entry of the list becomes no golden image");
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("ConfigMap".to_owned()),
        name: Some(LIST.0.to_owned()),
        namespace: Some(shared.namespace.clone()),
        uid: Some(facts.uid.clone()),
        ..ObjectReference::default()
    };
    shared.recorder.tell(events::Note {
        regarding,
        severity: Severity::Warning,
        reason: reason.to_string(),
        action: "ReadList",
        text: message.to_owned(),
    });
}
