//! Every version of every GoldenImage, as the API server showed them one after another: what a status said on its way.

use super::harness;
use futures::StreamExt as _;
use golden_catalog::api::GoldenImage;
use kube::{
    Api, Client,
    api::DynamicObject,
    core::{ApiResource, GroupVersionKind},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The versions by image, oldest first.
pub type Seen = BTreeMap<String, Vec<Value>>;

/// Records versions until it is dropped.
pub struct Versions {
    seen: Arc<Mutex<Seen>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Versions {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Versions {
    /// Records from now on.
    pub fn record(client: Client) -> Self {
        // Untyped, so that what the daemon's own types would drop is seen too.
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cozystack.io", "v1alpha1", "GoldenImage"));
        let api: Api<DynamicObject> = Api::all_with(client, &resource);
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let of_task = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
            while let Some(event) = events.next().await {
                let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event else { continue };
                let Some(name) = object.metadata.name.clone() else { continue };
                let value = serde_json::to_value(object).expect("JSON");
                let mut seen = of_task.lock().unwrap_or_else(PoisonError::into_inner);
                let versions = seen.entry(name).or_default();
                if versions.last().is_none_or(|last| version(last) != version(&value)) {
                    versions.push(value);
                }
            }
        });
        Self { seen, task }
    }

    /// Waits until the recorder has the newest version of an image, and gives all it has of it.
    pub async fn of(&self, api: &Api<GoldenImage>, image: &str) -> Vec<Value> {
        harness::eventually("every version is recorded", async || {
            let newest = api.get(image).await.map_err(|error| error.to_string())?.metadata.resource_version;
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let versions = seen.get(image).cloned().unwrap_or_default();
            match versions.last() {
                Some(last) if Some(version(last)) == newest => Ok(versions),
                last => Err(format!("{newest:?} of {:?}", last.map(version))),
            }
        })
        .await
    }
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// Holds for any image at any time, whatever happened: a version differs from the one before, times of conditions change only
/// when the condition does, and progress is told in steps of ten.
#[track_caller]
pub fn check(image: &str, versions: &[Value]) {
    for pair in versions.windows(2) {
        let [before, after] = pair else { unreachable!("windows of two") };
        let same = |key: &str| before[key] == after[key];
        let metadata = |object: &Value| {
            let mut metadata = object["metadata"].clone();
            for field in ["resourceVersion", "managedFields"] {
                metadata.as_object_mut().expect("an object").remove(field);
            }
            metadata
        };
        assert!(
            !(same("spec") && same("status") && metadata(before) == metadata(after)),
            "{image}: written although nothing changed: {after}"
        );
        for (was, is) in conditions(before).into_iter().flat_map(|(key, was)| Some((was, conditions(after).remove(&key)?))) {
            let flipped = was["status"] != is["status"];
            let moved = was["lastTransitionTime"] != is["lastTransitionTime"];
            assert!(flipped || !moved, "{image}: the time of a condition changed without a flip: {was} {is}");
        }
    }
    for version in versions {
        let mut percents = vec![&version["status"]["fetch"]["progressPercent"]];
        let targets = version["status"]["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        percents.extend(targets.iter().map(|target| &target["progressPercent"]));
        for percent in percents.into_iter().filter_map(Value::as_i64) {
            assert!(percent % 10 == 0 && (0..=100).contains(&percent), "{image}: progress of {percent} %");
        }
    }
}

/// The conditions of the image and of its targets by place and type.
fn conditions(object: &Value) -> BTreeMap<String, Value> {
    let list = |place: &str, value: &Value| {
        let conditions = value["conditions"].as_array().cloned().unwrap_or_default();
        let place = place.to_owned();
        conditions.into_iter().map(move |condition| (format!("{place}/{}", condition["type"]), condition)).collect::<Vec<_>>()
    };
    let status = &object["status"];
    let targets = status["targets"].as_array().cloned().unwrap_or_default();
    let of_targets = targets.iter().flat_map(|target| list(&target["requestedClass"].to_string(), target));
    list("", status).into_iter().chain(of_targets).collect()
}

/// The versions that differ in more than how far something is: percents, the texts that show them, and their times.
pub fn without_progress(versions: &[Value]) -> Vec<Value> {
    fn strip(value: &mut Value) {
        let is_progress = |key: &str| matches!(key, "progressPercent" | "progressTime" | "message" | "managedFields" | "resourceVersion");
        match value {
            Value::Object(fields) => {
                fields.retain(|key, _| !is_progress(key));
                fields.values_mut().for_each(strip);
            }
            Value::Array(values) => values.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut plain = versions.to_vec();
    plain.iter_mut().for_each(strip);
    plain.dedup();
    plain
}
