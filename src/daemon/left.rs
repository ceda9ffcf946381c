//! Unfinished imports of images that are no more, or have no target for them, ended by the leader (R24): what `golden::unfinished_of` finds, done.

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

use super::{controller::Shared, tried::Tried};
use crate::{
    api::GoldenImage,
    foreign::DataVolume,
    golden::{Owner, observe, unfinished_of},
    rules::{Answer, Reason, refusal, whose::Whose},
    run::{
        api_error,
        backoff::Backoff,
        client::is_lost,
        events::{self, Severity},
    },
    world::ledger::GoldenKey,
};

/// How soon is looked again where something is not known, or was not as it seemed.
const AGAIN: Duration = Duration::from_secs(5);
/// What changes within this time is looked at together.
const GATHER: Duration = Duration::from_millis(500);
/// How often is looked when nothing is heard.
const IDLE: Duration = Duration::from_secs(60);
/// The wait between two attempts at one DataVolume.
const FAILED: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// What is remembered of a DataVolume that is to be ended, until the watch shows that it is gone.
#[derive(Debug, Default)]
struct Remembered {
    tried: Tried,
    told: Option<String>,
    is_ended: bool,
}

impl Remembered {
    /// It was ended. The watch shows that soon, and is not waited for by asking again and again. Gives whether that is news.
    fn ended(&mut self, now: Instant) -> bool {
        self.tried = Tried::default();
        self.tried.rest(now, AGAIN);
        !std::mem::replace(&mut self.is_ended, true)
    }
}

/// What is remembered, by UID.
type Memory = HashMap<String, Remembered>;

/// Forgets what is not left behind any more. Where that is not known, everything stays: how often something failed, and what was told.
fn forget(tried: &mut Memory, found: Option<&[(Arc<DataVolume>, String)]>) {
    let Some(found) = found else { return };
    tried.retain(|uid, _| found.iter().any(|(volume, _)| volume.uid().as_ref() == Some(uid)));
}

/// How long nothing is looked at if nothing is heard.
fn pause(tried: &Memory, is_known: bool, now: Instant) -> Duration {
    let due = tried.values().filter_map(|memory| memory.tried.due()).map(|next| next.saturating_duration_since(now)).min();
    match is_known {
        true => due.unwrap_or(IDLE),
        false => due.map_or(AGAIN, |due| due.max(AGAIN)),
    }
}

/// Ends what is left behind until `stop`.
pub(super) async fn keep(shared: Arc<Shared>, client: Client, stop: CancellationToken) {
    let mut tried = Memory::new();
    let mut changed = shared.goldens_changed.subscribe();
    loop {
        changed.mark_unchanged();
        let found = found(&shared);
        let is_known = found.is_some();
        forget(&mut tried, found.as_deref());
        for (volume, image) in found.into_iter().flatten() {
            let Some(uid) = volume.uid() else { continue };
            let memory = tried.entry(uid).or_default();
            if memory.tried.left(Instant::now()).is_some() {
                continue;
            }
            // Who was let in before its image went is told what it waits for; it goes when nobody does, or is finished when the image is back.
            if is_waited_for(&shared, &volume.name_any()) {
                memory.tried.rest(Instant::now(), AGAIN);
                continue;
            }
            match end(&client, &shared.catalog, &volume, &image).await {
                Ok(true) if !memory.ended(Instant::now()) => {}
                Ok(true) => {
                    let text = format!(
                        "The import into {} was ended: the GoldenImage {image} that it was made for {}, and nobody would finish it.",
                        volume.name_any(),
                        if shared.cluster.images.get("", &image).is_some() { "has no target for it" } else { "is gone" },
                    );
                    tell(&shared, &volume, Severity::Normal, Reason::ImageGone, text);
                }
                // The image is there after all, or the DataVolume is another one by now: the watches will tell.
                Ok(false) => memory.tried.rest(Instant::now(), AGAIN),
                Err(error) if is_lost(&error) => return,
                Err(error) => failed(&shared, &volume, &error, memory),
            }
        }
        let pause = pause(&tried, is_known, Instant::now());
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => continue,
            Ok(()) = changed.changed() => {}
        }
        tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(GATHER.min(pause)) => {} }
    }
}

/// What is left behind, each with the image it was made for; `None` where anything is not known.
fn found(shared: &Shared) -> Option<Vec<(Arc<DataVolume>, String)>> {
    let (cluster, catalog) = (&shared.cluster, &shared.catalog);
    if !cluster.is_known() {
        return None;
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
        let is_known = cluster.images.get("", &image).is_some_and(|image| sees_to(&image, &volume));
        (!is_known && cluster.images.odd("", &image).is_none()).then_some((volume, image))
    });
    Some(left.collect())
}

/// Whether anything waits for the golden, or may while not all is known.
fn is_waited_for(shared: &Shared, golden: &str) -> bool {
    let classes = observe::classes(&shared.cluster);
    let needed = shared.consumers.read().consumers(GoldenKey::named(golden), shared.usage.storage(&classes));
    needed.map_or(true, |consumers| consumers.blocking() > 0)
}

/// Whether an image of the name that the import was made for sees to it: one of another source never looks at it, unless it has not
/// learnt yet what it is, and neither does one that has another golden for each of its targets.
fn sees_to(image: &GoldenImage, volume: &DataVolume) -> bool {
    let owner = Owner::of(image);
    owner.volume(&volume.metadata) != Whose::Another && !owner.has_no_place_for(&volume.name_any())
}

/// Ends one import, unless its image is there: a cache may be behind, so the API server itself is asked. Gives whether it was.
///
/// The resourceVersion besides the UID: an import that finishes in this moment is a golden, and is not deleted.
async fn end(client: &Client, catalog: &str, volume: &DataVolume, image: &str) -> kube::Result<bool> {
    let images: Api<GoldenImage> = Api::all(client.clone());
    if images.get_opt(image).await?.is_some_and(|image| sees_to(&image, volume)) {
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

fn failed(shared: &Shared, volume: &DataVolume, error: &kube::Error, memory: &mut Remembered) {
    let wait = memory.tried.failed(Instant::now(), FAILED);
    let name = volume.name_any();
    tracing::warn!(golden = name, error = api_error(error), retry_in = ?wait, "an import that was left behind could not be ended");
    let kube::Error::Api(status) = error else { return };
    let answer = Answer { code: status.code, reason: &status.reason, message: &status.message };
    let what = format!("the deletion of the unfinished DataVolume {name}, which no GoldenImage sees to");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::marks;

    fn volume(uid: &str) -> (Arc<DataVolume>, String) {
        let volume = serde_json::json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "g", "uid": uid }, "spec": {},
        });
        (Arc::new(serde_json::from_value(volume).expect("a DataVolume")), "a".to_owned())
    }

    /// An image made again under the name, of another source, has another golden name perhaps, and never looks at the former one's import.
    #[test]
    fn r24_an_import_of_another_source_is_seen_to_by_nobody() {
        let image = |url: &str| -> GoldenImage {
            let source = serde_json::json!({ "http": { "url": format!("https://e.example/{url}") } });
            serde_json::from_value(serde_json::json!({
                "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a" }, "spec": { "source": source },
            }))
            .expect("an image")
        };
        let identity = crate::api::parse_image(&image("u")).expect("good").identity(None).expect("known").to_string();
        let (volume, _) = volume("dv");
        let mut volume = (*volume).clone();
        let labels = [(marks::GOLDEN, "true"), (marks::IMAGE, "a"), (marks::IDENTITY, &identity)];
        volume.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        assert!(sees_to(&image("u"), &volume) && !sees_to(&image("v"), &volume));
        // With this golden on record, without any yet, and with another one for its only target.
        for (golden, expected) in [(Some("g"), true), (None, true), (Some("other"), false)] {
            let mut image = image("u");
            let target = serde_json::json!({ "requestedClass": "", "attempts": 1, "golden": golden });
            image.status = Some(serde_json::from_value(serde_json::json!({ "targets": [target] })).expect("a status"));
            assert_eq!(sees_to(&image, &volume), expected, "{golden:?}");
        }
    }

    /// What is ended after it failed is not asked about without end until the watch shows it gone, and told once.
    #[test]
    fn what_is_ended_is_waited_for() {
        let now = Instant::now();
        let mut tried = Memory::from([("dv".to_owned(), Remembered::default())]);
        let memory = tried.get_mut("dv").expect("there");
        let is_due = |memory: &Remembered, now| memory.tried.left(now).is_none();
        assert!(is_due(memory, now));
        assert_eq!([memory.tried.failed(now, FAILED), memory.tried.failed(now, FAILED)].map(|wait| wait.as_secs()), [2, 4]);
        assert!(!is_due(memory, now) && is_due(memory, now + Duration::from_secs(4)));
        let later = now + Duration::from_secs(10);
        assert!(memory.ended(later), "news");
        assert!(!is_due(memory, later) && !memory.ended(later), "told once");
        assert_eq!(pause(&tried, true, later), AGAIN);
    }

    #[test]
    fn what_is_not_known_makes_nothing_forgotten() {
        let mut tried: Memory = ["here", "gone"].map(|uid| (uid.to_owned(), Remembered::default())).into();
        forget(&mut tried, None);
        assert_eq!(tried.len(), 2);
        forget(&mut tried, Some(&[volume("here")]));
        assert_eq!(tried.keys().collect::<Vec<_>>(), ["here"]);
        forget(&mut tried, Some(&[]));
        assert!(tried.is_empty());
    }

    #[test]
    fn when_is_looked_again() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let at = |wait: u64| {
            let mut memory = Remembered::default();
            memory.tried.rest(now, seconds(wait));
            memory
        };
        let of = |all: Vec<Remembered>| all.into_iter().enumerate().map(|(number, tried)| (number.to_string(), tried)).collect::<Memory>();
        assert_eq!(pause(&of(vec![]), true, now), IDLE);
        assert_eq!(pause(&of(vec![]), false, now), AGAIN);
        assert_eq!(pause(&of(vec![at(30), at(3), Remembered::default()]), true, now), seconds(3));
        assert_eq!(pause(&of(vec![at(0)]), false, now + seconds(1)), AGAIN, "nothing can be done before it is known");
    }
}
