use super::*;
use crate::world::Store;
use axum::{
    body::Body,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
};
use tokio::sync::{mpsc, watch};

/// One scripted answer.
enum Answer {
    Json(u16, Value),
    /// A watch whose lines the test sends when it likes.
    Stream(mpsc::UnboundedReceiver<Result<String, std::io::Error>>),
    /// Never answered.
    Hang,
}

/// An API server that answers requests for each plural by a script, and hangs when that is over.
#[derive(Default)]
struct Script {
    answers: Mutex<BTreeMap<String, VecDeque<Answer>>>,
    asked: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
}

impl Script {
    fn then(&self, plural: &str, answer: Answer) {
        self.answers.lock().unwrap().entry(plural.to_owned()).or_default().push_back(answer);
    }

    /// Adds a watch and gives the end to send its lines into.
    fn stream(&self, plural: &str) -> Lines {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.then(plural, Answer::Stream(receiver));
        Lines(sender)
    }

    async fn answer(self: Arc<Self>, request: Request) -> Response {
        let plural = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let answer = self.answers.lock().unwrap().get_mut(&plural).and_then(VecDeque::pop_front).unwrap_or(Answer::Hang);
        self.asked.lock().unwrap().push(request.uri().to_string());
        self.count.send_modify(|count| *count += 1);
        match answer {
            Answer::Json(code, value) => (StatusCode::from_u16(code).unwrap(), axum::Json(value)).into_response(),
            Answer::Stream(lines) => Body::from_stream(tokio_stream::wrappers::UnboundedReceiverStream::new(lines)).into_response(),
            Answer::Hang => std::future::pending().await,
        }
    }

    /// The queries asked so far, once there are so many.
    async fn asked(&self, count: usize) -> Vec<String> {
        patiently(self.count.subscribe().wait_for(|now| *now >= count)).await.unwrap();
        self.asked.lock().unwrap().clone()
    }
}

struct Lines(mpsc::UnboundedSender<Result<String, std::io::Error>>);

impl Lines {
    fn send(&self, kind: &str, object: Value) {
        self.0.send(Ok(json!({"type": kind, "object": object}).to_string() + "\n")).unwrap();
    }

    fn bookmark(&self, version: &str, annotations: Value) {
        self.send(
            "BOOKMARK",
            json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": version, "annotations": annotations}}),
        );
    }
}

async fn patiently<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it did not happen within a minute")
}

fn object(name: &str, version: &str, value: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": version}, "data": {"v": format!("{name}={value}")}})
}

fn bad(name: &str, version: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": version}, "data": 5})
}

fn list(version: &str, next: &str, items: Vec<Value>) -> Answer {
    Answer::Json(
        200,
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": version, "continue": next}, "items": items}),
    )
}

fn status(code: u16, message: &str) -> Answer {
    Answer::Json(code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}))
}

/// A running watch of ConfigMaps, trimmed to the value of `v`.
struct Running {
    script: Arc<Script>,
    store: Store<String>,
    changed: watch::Receiver<()>,
    state: Pulse,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn state(settings: WatchSettings) -> WatchState {
    WatchState::new("ConfigMap", settings.limit, Instant::now())
}

async fn start(script: Arc<Script>, selection: Selection, settings: WatchSettings, state: WatchState) -> Running {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let server = script.clone();
    let app = axum::Router::new().fallback(move |request: Request| server.clone().answer(request));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client = crate::run::client::reader(&kube::Config::new(url)).unwrap();

    let tell = watch::Sender::new(());
    let changed = tell.subscribe();
    let store = Store::new(move |_| tell.send_replace(()));
    let mut sink = store.sink(|object: ConfigMap| object.data.and_then(|mut data| data.remove("v")));
    let state = Arc::new(state);
    let of_task = state.clone();
    let task = tokio::spawn(async move { feed(client, selection, settings, &of_task, &mut sink).await });
    Running { script, changed, store, state, task }
}

async fn simple(script: Arc<Script>) -> Running {
    start(script, Selection::default(), WatchSettings::default(), state(WatchSettings::default())).await
}

impl Running {
    async fn phase(&self, phase: Phase) {
        let mut phases = self.state.phases();
        patiently(phases.wait_for(|now| *now == phase)).await.unwrap();
    }

    /// Waits until the store holds these values, in order.
    async fn holds(&mut self, expected: &[&str]) {
        let look = || {
            let mut all: Vec<String> = self.store.all().iter().map(|value| value.to_string()).collect();
            all.sort();
            all
        };
        while look() != expected {
            let in_time = tokio::time::timeout(Duration::from_secs(60), self.changed.changed()).await;
            assert!(in_time.is_ok(), "wanted {expected:?}, has {:?}", look());
        }
    }
}

#[tokio::test]
async fn pages_events_and_bookmarks_are_followed_and_one_bad_object_costs_no_other() {
    let script = Arc::<Script>::default();
    script.then("configmaps", list("", "next", vec![object("a", "1", "1"), bad("b", "2")]));
    script.then("configmaps", list("10", "", vec![object("c", "3", "3")]));
    let lines = script.stream("configmaps");
    let second = script.stream("configmaps");
    let selection = Selection { labels: Some("x=y".into()), ..Selection::default() };
    let mut running = start(script, selection, WatchSettings::default(), state(WatchSettings::default())).await;
    running.phase(Phase::Synced).await;
    running.holds(&["a=1", "c=3"]).await;
    assert_eq!(running.state.known(), Ok(()));
    let unreadable = running.state.unreadable_objects();
    assert_eq!(unreadable[0].0, Key::namespaced("n", "b"));

    lines.send("MODIFIED", object("a", "11", "one"));
    lines.send("DELETED", object("c", "12", "3"));
    lines.send("ADDED", object("b", "13", "mended"));
    running.holds(&["a=one", "b=mended"]).await;
    assert_eq!(running.state.unreadable_objects(), []);
    // It breaks again: what was known of it stays, and it is named.
    lines.send("MODIFIED", bad("b", "14"));
    lines.send("MODIFIED", object("a", "15", "two"));
    running.holds(&["a=two", "b=mended"]).await;
    assert_eq!(running.state.sample(Instant::now()).unreadable, 1);
    // What does not matter is not kept.
    lines.send("MODIFIED", json!({"metadata": {"name": "a", "namespace": "n", "resourceVersion": "16"}}));
    running.holds(&["b=mended"]).await;

    // A watch that ends is taken up where it stood, which a bookmark had moved.
    lines.bookmark("20", json!({}));
    drop(lines);
    second.send("ADDED", object("d", "21", "4"));
    running.holds(&["b=mended", "d=4"]).await;
    let asked = running.script.asked(4).await;
    assert!(asked[0].contains("limit=500") && asked[0].contains("labelSelector=x%3Dy"), "{asked:?}");
    assert!(asked[1].contains("continue=next"), "{asked:?}");
    assert!(
        asked[2].contains("watch=true") && asked[2].contains("resourceVersion=10") && asked[2].contains("timeoutSeconds=200"),
        "{asked:?}"
    );
    assert!(asked[3].contains("resourceVersion=20") && asked[3].contains("allowWatchBookmarks=true"), "{asked:?}");
}

#[tokio::test]
async fn after_410_all_is_listed_anew_and_meanwhile_nothing_is_said_about_what_is_not_there() {
    for in_stream in [true, false] {
        let script = Arc::<Script>::default();
        script.then("configmaps", list("10", "", vec![object("a", "1", "1"), object("b", "2", "2"), bad("c", "3")]));
        let lines = script.stream("configmaps");
        if in_stream {
            lines.send("ERROR", json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}));
        } else {
            drop(lines);
            script.then("configmaps", status(410, "too old"));
        }
        // The second list comes in two pages, the later of which is delayed.
        script.then("configmaps", list("", "next", vec![object("b", "2", "2")]));
        let mut running = simple(script).await;
        running.phase(Phase::Relisting).await;
        let asked = if in_stream { 4 } else { 5 };
        assert!(running.script.asked(asked).await.last().unwrap().contains("continue=next"));
        running.holds(&["a=1", "b=2"]).await;
        let unknown = running.state.known().unwrap_err();
        assert_eq!(unknown.phase, Phase::Relisting);
        assert_eq!(running.state.ready(), Ok(()), "it was complete once");
    }
}

#[tokio::test]
async fn when_asked_to_it_lists_everything_anew_though_nothing_changed() {
    let script = Arc::<Script>::default();
    script.then("configmaps", list("10", "", vec![object("a", "1", "short")]));
    let _open = script.stream("configmaps");
    // The same version with other content: the API server left something out before.
    script.then("configmaps", list("10", "", vec![object("a", "1", "whole")]));
    let _open_again = script.stream("configmaps");
    let mut running = simple(script).await;
    running.holds(&["a=short"]).await;
    running.script.asked(2).await;
    running.state.list_anew();
    running.holds(&["a=whole"]).await;
    running.phase(Phase::Synced).await;
    assert!(running.script.asked(4).await[3].contains("watch=true"));
}

#[tokio::test]
async fn a_list_that_fails_half_way_makes_nothing_vanish_and_the_next_one_does() {
    let script = Arc::<Script>::default();
    script.then("configmaps", list("10", "", vec![object("a", "1", "1"), object("b", "2", "2"), bad("c", "3")]));
    let lines = script.stream("configmaps");
    lines.send("ERROR", json!({"kind": "Status", "code": 410, "message": "too old"}));
    script.then("configmaps", list("", "next", vec![object("b", "2", "two")]));
    script.then("configmaps", status(500, "etcd is away"));
    script.then("configmaps", list("30", "", vec![object("d", "4", "4")]));
    let _open = script.stream("configmaps");
    let mut running = simple(script).await;
    running.holds(&["a=1", "b=two"]).await;
    running.holds(&["d=4"]).await;
    running.phase(Phase::Synced).await;
    assert_eq!(running.state.unreadable_objects(), [], "what was unreadable and is gone is forgotten");
    assert_eq!(running.state.sample(Instant::now()).failures, 2);
}

#[tokio::test]
async fn a_list_as_a_stream_is_complete_at_its_mark_only() {
    let script = Arc::<Script>::default();
    let lines = script.stream("configmaps");
    let settings = WatchSettings { streaming: true, ..WatchSettings::default() };
    let mut running = start(script, Selection::default(), settings, state(settings)).await;
    lines.send("ADDED", object("a", "50", "1"));
    lines.send("ADDED", object("b", "2", "2"));
    lines.bookmark("40", json!({}));
    running.holds(&["a=1", "b=2"]).await;
    assert_eq!(running.state.phase(), Phase::Syncing);
    lines.bookmark("60", json!({"k8s.io/initial-events-end": "true"}));
    running.phase(Phase::Synced).await;
    lines.send("DELETED", object("a", "61", "1"));
    running.holds(&["b=2"]).await;
    drop(lines);
    let asked = running.script.asked(2).await;
    assert!(asked[0].contains("sendInitialEvents=true") && asked[0].contains("resourceVersionMatch=NotOlderThan"), "{asked:?}");
    assert!(asked[1].contains("resourceVersion=61") && !asked[1].contains("sendInitialEvents"), "{asked:?}");
}

#[tokio::test]
async fn a_server_without_streaming_lists_is_asked_for_pages() {
    let script = Arc::<Script>::default();
    script.then("configmaps", status(422, "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"));
    script.then("configmaps", list("10", "", vec![object("a", "1", "1")]));
    let settings = WatchSettings { streaming: true, ..WatchSettings::default() };
    let mut running = start(script, Selection::default(), settings, state(settings)).await;
    running.phase(Phase::Synced).await;
    running.holds(&["a=1"]).await;
}

#[tokio::test]
async fn a_kind_that_is_not_installed_is_known_to_have_no_objects_and_is_found_when_it_comes() {
    let script = Arc::<Script>::default();
    script.then("configmaps", status(404, "the server could not find the requested resource"));
    let definitions = Answer::Json(200, json!({"metadata": {"resourceVersion": "5"}, "items": []}));
    script.then("customresourcedefinitions", definitions);
    let definition = script.stream("customresourcedefinitions");
    let settings = WatchSettings::default();
    let optional = state(settings).optional("configmaps.test");
    let mut running = start(script.clone(), Selection::default(), settings, optional).await;
    running.phase(Phase::NotInstalled).await;
    assert_eq!((running.state.known(), running.state.ready()), (Ok(()), Ok(())));
    assert_eq!(running.state.age(Instant::now()), None);
    let asked = running.script.asked(3).await;
    assert!(asked.iter().any(|uri| uri.contains("fieldSelector=metadata.name%3Dconfigmaps.test")), "{asked:?}");

    // Half a minute would pass until it is looked for again; the definition's coming is a reason to look now.
    script.then("configmaps", list("10", "", vec![object("a", "1", "1")]));
    let lines = script.stream("configmaps");
    definition.send("ADDED", json!({"metadata": {"name": "configmaps.test", "resourceVersion": "6"}}));
    running.phase(Phase::Synced).await;
    running.holds(&["a=1"]).await;

    // And it goes again, with its objects.
    script.then("configmaps", status(404, "the server could not find the requested resource"));
    drop(lines);
    running.phase(Phase::NotInstalled).await;
    running.holds(&[]).await;
    assert_eq!(running.state.known(), Ok(()));
}

#[tokio::test]
async fn a_kind_we_need_and_do_not_find_or_may_not_read_is_unknown_and_not_a_reason_to_restart() {
    for (code, phase, says) in [(404, Phase::NotInstalled, "does not know ConfigMap"), (403, Phase::Refused, "ClusterRole")] {
        let script = Arc::<Script>::default();
        script.then("configmaps", status(code, "no way"));
        let settings = WatchSettings { limit: Duration::ZERO, ..WatchSettings::default() };
        let running = start(script, Selection::default(), settings, state(settings)).await;
        running.phase(phase).await;
        let unknown = running.state.known().unwrap_err().to_string();
        assert!(unknown.contains(says) && unknown.contains("no way"), "{unknown}");
        assert!(running.state.ready().is_err());
        assert_eq!(running.state.live(Instant::now() + Duration::from_secs(3600)), Ok(()));
    }
}

#[tokio::test]
async fn an_api_server_that_never_answers_or_falls_silent_is_left_and_asked_anew() {
    let script = Arc::<Script>::default();
    script.then("configmaps", Answer::Hang);
    script.then("configmaps", list("10", "", vec![object("a", "1", "1")]));
    script.then("configmaps", Answer::Hang);
    let silent = script.stream("configmaps");
    let next = script.stream("configmaps");
    let settings = WatchSettings { answer: Duration::from_secs(2), silence: Duration::from_secs(2), ..WatchSettings::default() };
    let mut running = start(script, Selection::default(), settings, state(settings)).await;
    next.send("ADDED", object("b", "11", "2"));
    running.holds(&["a=1", "b=2"]).await;
    let asked = running.script.asked(5).await;
    assert!(asked[2..5].iter().all(|uri| uri.contains("watch=true&") && uri.contains("resourceVersion=10")), "{asked:?}");
    drop(silent);
}

#[test]
fn age_grows_without_a_word_and_liveness_follows_it() {
    let start = Instant::now();
    let state = WatchState::new("PersistentVolumeClaim", Duration::from_secs(600), start);
    assert_eq!(state.live(start + Duration::from_secs(600)), Ok(()));
    state.failed("connection refused".into(), None);
    let error = state.live(start + Duration::from_secs(700)).unwrap_err();
    assert!(error.contains("PersistentVolumeClaim") && error.contains("700 s") && error.contains("connection refused"), "{error}");
    state.complete();
    assert!(state.known().is_err(), "complete, but the connection is gone");
    state.heard();
    assert_eq!(state.known(), Ok(()));
    assert!(state.age(Instant::now() + Duration::from_secs(5)).unwrap() >= Duration::from_secs(5));
}

#[test]
fn unreadable_objects_are_counted_without_end_and_named_within_bounds() {
    let state = WatchState::new("ConfigMap", Duration::from_secs(600), Instant::now());
    state.begins();
    for n in 0..500 {
        state.unreadable(Some(Key::namespaced("n", &n.to_string())), "no".into());
    }
    state.unreadable(None, "not even a name".into());
    state.complete();
    assert_eq!(state.unreadable_objects().len(), 100);
    assert_eq!(state.sample(Instant::now()).unreadable, 501);
    state.begins();
    state.complete();
    assert_eq!(state.sample(Instant::now()).unreadable, 0);
}
