//! Waiting for what a test expects, with a deadline and a failure message that shows what was there instead.

use futures::StreamExt;
use kube::{
    Api, Resource,
    runtime::{WatchStreamExt, watcher},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    fmt::Debug,
    pin::pin,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// How long a test waits for what must come. Long, because the machine may be busy; a passing test waits no longer than it must.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// An object a test can wait for.
pub trait Object: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + 'static {}
impl<K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + 'static> Object for K {}

/// Waits, by watch, until the object of this name meets the condition, and gives it.
pub async fn until<K: Object>(api: Api<K>, name: &str, what: &str, mut holds: impl FnMut(&K) -> bool) -> K {
    let mut last = None;
    let mut trouble = None;
    let search = async {
        let mut stream = pin!(watcher::watch_object(api, name).default_backoff());
        while let Some(event) = stream.next().await {
            match event {
                Ok(Some(object)) if holds(&object) => return object,
                Ok(object) => last = object,
                Err(error) => trouble = Some(error.to_string()),
            }
        }
        unreachable!("a watch of kube's watcher never ends")
    };
    match tokio::time::timeout(PATIENCE, search).await {
        Ok(object) => object,
        Err(_) => {
            let seen = last.map_or_else(|| "it does not exist".to_owned(), |object| dump(&object));
            panic!("{name}: not in {PATIENCE:?}: {what}\n{seen}{}", trouble_line(trouble.as_deref()))
        }
    }
}

/// Waits, by watch, until a condition of the object has a status (`True`, `False`, `Unknown`), and gives the condition.
pub async fn until_condition<K: Object>(api: Api<K>, name: &str, kind: &str, status: &str) -> Condition {
    let object =
        until(api, name, &format!("condition {kind}={status}"), |object| condition(object, kind).is_some_and(|c| c.status == status)).await;
    condition(&object, kind).expect("it was just there")
}

/// Waits, by watch, until no object of this name is there.
pub async fn until_gone<K: Object>(api: Api<K>, name: &str) {
    let mut last = None;
    let search = async {
        let mut stream = pin!(watcher::watch_object(api, name).default_backoff());
        while let Some(event) = stream.next().await {
            match event {
                Ok(None) => return,
                Ok(Some(object)) => last = Some(object),
                Err(_) => {}
            }
        }
    };
    if tokio::time::timeout(PATIENCE, search).await.is_err() {
        panic!("{name}: still there after {PATIENCE:?}\n{}", last.as_ref().map(dump).unwrap_or_default());
    }
}

/// Waits, by watch, until the objects that a label selector chooses (empty: all) meet the condition together, and gives them
/// in the order of namespace and name.
pub async fn until_listed<K: Object>(api: Api<K>, labels: &str, what: &str, mut holds: impl FnMut(&[K]) -> bool) -> Vec<K> {
    let mut last = vec![];
    let search = async {
        let mut stream = pin!(watcher::watcher(api, watcher::Config::default().labels(labels)).default_backoff());
        let mut objects = BTreeMap::new();
        let mut complete = false;
        let key = |object: &K| (object.meta().namespace.clone(), object.meta().name.clone());
        while let Some(event) = stream.next().await {
            match event {
                Ok(watcher::Event::Init) => {
                    objects.clear();
                    complete = false;
                }
                Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object)) => drop(objects.insert(key(&object), object)),
                Ok(watcher::Event::Delete(object)) => drop(objects.remove(&key(&object))),
                Ok(watcher::Event::InitDone) => complete = true,
                Err(_) => continue,
            }
            if complete {
                last = objects.values().cloned().collect::<Vec<_>>();
                if holds(&last) {
                    return;
                }
            }
        }
    };
    if tokio::time::timeout(PATIENCE, search).await.is_err() {
        panic!("not in {PATIENCE:?}: {what}\n{}", last.iter().map(dump).collect::<Vec<_>>().join("---\n"));
    }
    last
}

/// What an object goes through from the moment at which this begins: states that pass by themselves are in it too, which a watch that
/// begins later would miss.
pub struct History<K> {
    seen: watch::Receiver<Vec<K>>,
    task: tokio::task::JoinHandle<()>,
}

impl<K: Object + Sync> History<K> {
    /// Follows an object that is there; from when this returns nothing is missed.
    pub async fn of(api: Api<K>, name: &str) -> Self {
        let (sender, mut seen) = watch::channel(Vec::new());
        let name = name.to_owned();
        let task = tokio::spawn(async move {
            let mut stream = pin!(watcher::watch_object(api, &name).default_backoff());
            while let Some(event) = stream.next().await {
                if let Ok(Some(object)) = event {
                    sender.send_modify(|seen| seen.push(object));
                }
            }
        });
        let first = tokio::time::timeout(PATIENCE, seen.wait_for(|seen| !seen.is_empty())).await.map(drop);
        assert!(first.is_ok(), "nothing to follow in {PATIENCE:?}");
        Self { seen, task }
    }

    /// Waits until it was so at some time, and gives it as it was then.
    pub async fn once(&mut self, what: &str, holds: impl Fn(&K) -> bool) -> K {
        let arrived = tokio::time::timeout(PATIENCE, self.seen.wait_for(|seen| seen.iter().any(&holds))).await.map(drop);
        let seen = self.seen.borrow();
        match seen.iter().find(|object| holds(object)) {
            Some(object) => object.clone(),
            None => panic!("never in {PATIENCE:?} ({arrived:?}): {what}\n{}", seen.iter().map(dump).collect::<Vec<_>>().join("---\n")),
        }
    }
}

impl<K> Drop for History<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether an answer says only that the machine is busy: a verdict or a write was not there in time. To ask again is another question.
pub fn is_busy(code: u16, message: &str) -> bool {
    let late = [
        "deadline exceeded",
        "Client.Timeout",
        "took too long",
        "time allotted",
        "allotted timeout",
        "in time",
        "currently unable to handle",
        "too much is asked at once",
    ];
    let etcd = ["etcdserver: request timed out", "etcdserver: leader changed"];
    code >= 500 && late.iter().chain(&etcd).any(|words| message.contains(words))
}

/// An answer that is no success, by its HTTP status and words; `None` where nobody answered.
pub trait Refusal {
    fn answer(&self) -> Option<(u16, &str)>;
}

impl Refusal for kube::Error {
    fn answer(&self) -> Option<(u16, &str)> {
        if let Self::Api(status) = self { Some((status.code, &status.message)) } else { None }
    }
}

/// Has something made, and asks again where there was no verdict, on a machine that is too busy for one. `None` is what was answered too
/// late and may have been made all the same.
pub async fn made<T, E: Refusal>(mut ask: impl AsyncFnMut() -> Result<T, E>) -> Result<Option<T>, E> {
    let (deadline, mut was_late) = (Instant::now() + PATIENCE, false);
    loop {
        let refused = match ask().await {
            Ok(made) => return Ok(Some(made)),
            Err(refused) => refused,
        };
        match refused.answer() {
            Some((code, message)) if is_busy(code, message) && Instant::now() < deadline => was_late = true,
            Some((409, _)) if was_late => return Ok(None),
            _ => return Err(refused),
        }
    }
}

/// Tries again and again until it succeeds; for what cannot be watched (HTTP, files, processes).
pub async fn eventually<T, F: Future<Output = Result<T, String>>>(what: &str, mut attempt: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(last) if Instant::now() > deadline => panic!("not in {PATIENCE:?}: {what}: {last}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A condition in an object's status.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
    pub observed_generation: Option<i64>,
    pub last_transition_time: Option<String>,
}

/// The condition of this type in the status of any object, when it has one.
pub fn condition(object: &impl Serialize, kind: &str) -> Option<Condition> {
    let object = serde_json::to_value(object).expect("an object is JSON");
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    serde_json::from_value(found.clone()).ok()
}

fn trouble_line(trouble: Option<&str>) -> String {
    trouble.map(|text| format!("the last error of the watch: {text}\n")).unwrap_or_default()
}

/// The object as YAML, without what only machines read.
fn dump<K: Serialize>(object: &K) -> String {
    let mut object = serde_json::to_value(object).expect("an object is JSON");
    if let Some(metadata) = object.get_mut("metadata").and_then(|m| m.as_object_mut()) {
        metadata.remove("managedFields");
    }
    serde_saphyr::to_string(&object).unwrap_or_else(|_| object.to_string())
}
