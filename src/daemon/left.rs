//! Unfinished imports of images that are no more, ended by the leader (R24): what `golden::unfinished_of` finds, done.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, Preconditions},
};
use tokio_util::sync::CancellationToken;

use super::controller::Shared;
use crate::{
    api::GoldenImage,
    foreign::DataVolume,
    golden::unfinished_of,
    rules::{Answer, Reason, refusal},
    run::{
        api_error,
        backoff::Backoff,
        client::is_lost,
        events::{self, Severity},
    },
};

/// How soon is looked again where something is not known, or was not as it seemed.
const AGAIN: Duration = Duration::from_secs(5);
/// What changes within this time is looked at together.
const GATHER: Duration = Duration::from_millis(500);
/// How often is looked when nothing is heard.
const IDLE: Duration = Duration::from_secs(60);
/// The wait between two attempts at one DataVolume.
const FAILED: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// What is remembered of a DataVolume that could not be ended yet.
#[derive(Default)]
struct Tried {
    failures: u32,
    next: Option<Instant>,
    told: Option<String>,
}

/// Ends what is left behind until `stop`.
pub(super) async fn keep(shared: Arc<Shared>, client: Client, stop: CancellationToken) {
    let mut tried: HashMap<String, Tried> = HashMap::new();
    let mut changed = shared.goldens_changed.subscribe();
    loop {
        changed.mark_unchanged();
        let is_known = shared.cluster.is_known();
        let found = found(&shared);
        tried.retain(|uid, _| found.iter().any(|(volume, _)| volume.uid().as_ref() == Some(uid)));
        for (volume, image) in found {
            let Some(uid) = volume.uid() else { continue };
            let memory = tried.entry(uid).or_default();
            if memory.next.is_some_and(|next| Instant::now() < next) {
                continue;
            }
            match end(&client, &shared.catalog, &volume, &image).await {
                Ok(true) => {
                    let text = format!(
                        "The import into {} was ended: its GoldenImage {image} is gone, and nobody would finish it.",
                        volume.name_any()
                    );
                    tell(&shared, &volume, Severity::Normal, Reason::ImageGone, text);
                }
                // The image is there after all, or the DataVolume is another one by now: the watches will tell.
                Ok(false) => memory.next = Some(Instant::now() + AGAIN),
                Err(error) if is_lost(&error) => return,
                Err(error) => failed(&shared, &volume, &error, memory),
            }
        }
        let now = Instant::now();
        let due = tried.values().filter_map(|memory| memory.next).map(|next| next.saturating_duration_since(now)).min();
        let pause = due.unwrap_or(if is_known { IDLE } else { AGAIN });
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => continue,
            Ok(()) = changed.changed() => {}
        }
        tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(GATHER.min(pause)) => {} }
    }
}

/// What is left behind, each with the image it was made for. Nothing where anything is not known.
fn found(shared: &Shared) -> Vec<(Arc<DataVolume>, String)> {
    let (cluster, catalog) = (&shared.cluster, &shared.catalog);
    if !cluster.is_known() {
        return Vec::new();
    }
    let volumes = cluster.volumes.all().into_iter();
    let left = volumes.filter_map(|volume| {
        let name = volume.name_any();
        // An object that is there and cannot be read is not known, and not gone.
        let claim = cluster.claims.get(catalog, &name);
        if cluster.claims.odd(catalog, &name).is_some() {
            return None;
        }
        let image = unfinished_of(&volume, claim.as_deref(), catalog)?.to_owned();
        let is_known = cluster.images.get("", &image).is_some() || cluster.images.odd("", &image).is_some();
        (!is_known).then_some((volume, image))
    });
    left.collect()
}

/// Ends one import, unless its image is there: a cache may be behind, so the API server itself is asked. Gives whether it was.
///
/// The resourceVersion besides the UID: an import that finishes in this moment is a golden, and is not deleted.
async fn end(client: &Client, catalog: &str, volume: &DataVolume, image: &str) -> kube::Result<bool> {
    let images: Api<GoldenImage> = Api::all(client.clone());
    if images.get_metadata_opt(image).await?.is_some() {
        return Ok(false);
    }
    let preconditions = Preconditions { uid: volume.uid(), resource_version: volume.resource_version() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    match Api::<DataVolume>::namespaced(client.clone(), catalog).delete(&volume.name_any(), &params).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        Err(error) => Err(error),
    }
}

fn failed(shared: &Shared, volume: &DataVolume, error: &kube::Error, memory: &mut Tried) {
    memory.failures = memory.failures.saturating_add(1);
    let wait = FAILED.grown(memory.failures);
    memory.next = Some(Instant::now() + wait);
    let name = volume.name_any();
    tracing::warn!(golden = name, error = api_error(error), retry_in = ?wait, "an import that was left behind could not be ended");
    let kube::Error::Api(status) = error else { return };
    let answer = Answer { code: status.code, reason: &status.reason, message: &status.message };
    let what = format!("the deletion of the unfinished DataVolume {name}, whose GoldenImage is gone");
    if let Some((reason, text)) = refusal(&what, answer).filter(|(_, text)| memory.told.as_ref() != Some(text)) {
        tell(shared, volume, Severity::Warning, reason, format!("{text} {}", reason.remedy()));
        memory.told = Some(text);
    }
}

fn tell(shared: &Shared, volume: &DataVolume, severity: Severity, reason: Reason, text: String) {
    let mut regarding: ObjectReference = volume.object_ref(&());
    regarding.resource_version = None;
    tracing::info!(golden = volume.name_any(), %reason, text, "left behind");
    shared.recorder.tell(events::Note { regarding, severity, reason: reason.to_string(), action: "End", text });
}
