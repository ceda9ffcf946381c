//! Watches on a real API server: broken connections, compaction, kinds that come and go, rights that come late, objects that do
//! not decode.

use super::{
    CLUSTER,
    harness::{self, Cluster, Needs, Options, PATIENCE},
    proxy::{Mode, Proxy},
};
use golden_catalog::{
    run::client::reader,
    world::{Phase, Pulse, Selection, Store, WatchSettings, WatchState, feed},
};
use k8s_openapi::{api::core::v1::ConfigMap, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition};
use kube::{
    Api, Client, Config, CustomResource, CustomResourceExt, Resource,
    api::{DeleteParams, DynamicObject, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// A kind that need not be installed.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "e2e.test", version = "v1", kind = "Widget", namespaced)]
struct WidgetSpec {
    size: i64,
}

const DEFINITION: &str = "widgets.e2e.test";

/// A watch and what it knows.
struct Running {
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

/// Starts a watch; the store holds `name=value` of each object.
fn start<K>(client: Client, selection: Selection, settings: WatchSettings, state: WatchState, value: fn(&K) -> String) -> Running
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    let tell = watch::Sender::new(());
    let changed = tell.subscribe();
    let store = Store::new(move |_| tell.send_replace(()));
    let mut sink = store.sink(move |object: K| {
        let name = object.meta().name.clone()?;
        // Every namespace has this one.
        (name != "kube-root-ca.crt").then(|| format!("{name}={}", value(&object)))
    });
    let state = Arc::new(state);
    let of_task = state.clone();
    let task = tokio::spawn(async move { feed(client, selection, settings, &of_task, &mut sink).await });
    Running { store, changed, state, task }
}

fn config_maps(client: Client, namespace: &str, settings: WatchSettings) -> Running {
    let state = WatchState::new("ConfigMap", settings.limit, Instant::now());
    start(client, Selection::in_namespace(namespace), settings, state, |map: &ConfigMap| {
        map.data.as_ref().and_then(|data| data.get("v").cloned()).unwrap_or_default()
    })
}

fn widgets(client: Client, namespace: &str) -> Running {
    let settings = WatchSettings::default();
    let state = WatchState::new("Widget", settings.limit, Instant::now()).optional(DEFINITION);
    start(client, Selection::in_namespace(namespace), settings, state, |widget: &Widget| widget.spec.size.to_string())
}

impl Running {
    fn all(&self) -> Vec<String> {
        let mut all: Vec<String> = self.store.all().iter().map(|value| value.to_string()).collect();
        all.sort();
        all
    }

    async fn phase(&self, phase: Phase) {
        let mut phases = self.state.phases();
        let arrived = tokio::time::timeout(PATIENCE, phases.wait_for(|now| *now == phase)).await.map(drop);
        assert!(arrived.is_ok(), "wanted {phase:?}, is {:?}: {:?}", self.state.phase(), self.state.known());
    }

    async fn holds(&mut self, expected: &[&str]) {
        while self.all() != expected {
            let news = tokio::time::timeout(PATIENCE, self.changed.changed()).await;
            assert!(news.is_ok(), "wanted {expected:?}, has {:?}: {:?}", self.all(), self.state.known());
        }
    }
}

/// A client as the daemon has it, to the API server or to what stands before it.
async fn client(cluster: &Cluster, url: &str) -> Client {
    let kubeconfig = Kubeconfig::read_from(cluster.admin_kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.cluster_url = url.parse().unwrap();
    reader(&config).unwrap()
}

async fn put(api: &Api<ConfigMap>, name: &str, value: &str) {
    let map = serde_json::json!({"metadata": {"name": name}, "data": {"v": value}});
    api.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
}

async fn delete(api: &Api<ConfigMap>, name: &str) {
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn what_happened_while_the_connection_was_broken_is_known_soon_after() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    for cut in [Mode::Refuse, Mode::Hole] {
        let namespace = cluster.namespace("watch").await;
        let api: Api<ConfigMap> = Api::namespaced(cluster.admin(), &namespace);
        let proxy = Proxy::start(cluster.control_plane().url()).await;
        put(&api, "a", "1").await;
        put(&api, "b", "1").await;
        // A hole is noticed by its silence.
        let settings = WatchSettings {
            answer: Duration::from_secs(5),
            silence: Duration::from_secs(5),
            limit: Duration::ZERO,
            ..WatchSettings::default()
        };
        let mut running = config_maps(client(cluster, &proxy.url()).await, &namespace, settings);
        running.phase(Phase::Synced).await;
        running.holds(&["a=1", "b=1"]).await;

        proxy.set(cut);
        delete(&api, "a").await;
        put(&api, "c", "1").await;
        harness::eventually("it knows that it does not know", || async {
            running.state.known().is_err().then_some(()).ok_or_else(|| "it still claims to know".to_owned())
        })
        .await;
        assert_eq!(running.all(), ["a=1", "b=1"], "{cut:?}: nothing is guessed");
        assert_eq!(running.state.phase(), Phase::Synced);
        let silence = running.state.live(Instant::now()).unwrap_err();
        assert!(silence.contains("no word from the API server about ConfigMap"), "{silence}");

        proxy.set(Mode::Pass);
        let healed = Instant::now();
        running.holds(&["b=1", "c=1"]).await;
        eprintln!("{cut:?}: caught up {:.1} s after the connection was back", healed.elapsed().as_secs_f64());
        put(&api, "d", "1").await;
        running.holds(&["b=1", "c=1", "d=1"]).await;
        // It doubts that again whenever nothing was heard for as long as is set here, until the watch is begun anew.
        harness::eventually("it knows again", || async { running.state.known().map_err(|unknown| unknown.to_string()) }).await;
    }
}

#[tokio::test]
async fn after_a_compaction_all_is_listed_anew_and_the_deleted_vanish() {
    let Some(_) = CLUSTER.on(Needs::Scripted).await else { return };
    // Its own, since it is restarted.
    let cluster = Cluster::start(Options::default()).await;
    let namespace = cluster.namespace("watch").await;
    let api: Api<ConfigMap> = Api::namespaced(cluster.admin(), &namespace);
    let proxy = Proxy::start(cluster.control_plane().url()).await;
    put(&api, "a", "1").await;
    put(&api, "b", "1").await;
    let mut running = config_maps(client(&cluster, &proxy.url()).await, &namespace, WatchSettings::default());
    running.holds(&["a=1", "b=1"]).await;
    proxy.set(Mode::Refuse);
    delete(&api, "a").await;
    put(&api, "c", "1").await;
    cluster.control_plane().compact_etcd().await;
    // The API server's cache would still answer for the time before.
    cluster.control_plane().restart_api_server().await;
    let mut phases = running.state.phases();
    phases.borrow_and_update();
    proxy.set(Mode::Pass);
    running.holds(&["b=1", "c=1"]).await;
    running.phase(Phase::Synced).await;
    assert!(phases.has_changed().unwrap(), "it was listed anew");
    assert_eq!(running.state.known(), Ok(()));
}

#[tokio::test]
async fn lists_come_in_pages_or_as_a_stream() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let namespace = cluster.namespace("watch").await;
    let api: Api<ConfigMap> = Api::namespaced(cluster.admin(), &namespace);
    let names: Vec<String> = (10..35).map(|n| format!("m{n}=1")).collect();
    for name in &names {
        put(&api, name.strip_suffix("=1").unwrap(), "1").await;
    }
    let expected: Vec<&str> = names.iter().map(String::as_str).collect();
    let mark = cluster.audit_mark().await;
    for settings in [WatchSettings { page: 10, ..WatchSettings::default() }, WatchSettings { streaming: true, ..WatchSettings::default() }]
    {
        let mut running = config_maps(client(cluster, &cluster.control_plane().url()).await, &namespace, settings);
        running.holds(&expected).await;
        running.phase(Phase::Synced).await;
        put(&api, "z", "1").await;
        let more: Vec<&str> = expected.iter().copied().chain(["z=1"]).collect();
        running.holds(&more).await;
        delete(&api, "z").await;
        running.holds(&expected).await;
        drop(running);
    }
    let requests = cluster.requests_since(mark).await;
    let ours = requests.iter().filter(|request| request.namespace == *namespace && request.resource == "configmaps");
    let asked: Vec<&str> = ours.map(|request| request.uri.as_str()).collect();
    assert_eq!(asked.iter().filter(|uri| uri.contains("limit=10")).count(), 3, "{asked:#?}");
    assert!(asked.iter().any(|uri| uri.contains("sendInitialEvents=true")), "{asked:#?}");
}

#[tokio::test]
async fn a_kind_comes_with_odd_objects_goes_and_comes_again() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let namespace = cluster.namespace("watch").await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.admin());
    let mut running = widgets(client(cluster, &cluster.control_plane().url()).await, &namespace);
    running.phase(Phase::NotInstalled).await;
    assert_eq!(running.state.known(), Ok(()), "not installed means none, for sure");

    for round in 1..=2 {
        definitions.create(&PostParams::default(), &definition()).await.unwrap();
        let installed = Instant::now();
        running.phase(Phase::Synced).await;
        eprintln!("round {round}: synced {:.1} s after the kind was installed", installed.elapsed().as_secs_f64());
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.admin(), &namespace, &Widget::api_resource());
        let create = async |name: &str, size: serde_json::Value| {
            let widget =
                serde_json::json!({"apiVersion": "e2e.test/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}});
            harness::eventually("the kind is served", || async {
                let widget = serde_json::from_value(widget.clone()).unwrap();
                api.create(&PostParams::default(), &widget).await.map_err(|error| error.to_string())
            })
            .await;
        };
        create("odd", "much too big".into()).await;
        create("good", 5.into()).await;
        running.holds(&["good=5"]).await;
        let odd = running.state.unreadable_objects();
        assert_eq!((odd.len(), odd[0].0.to_string()), (1, format!("{}/odd", &*namespace)));

        definitions.delete(DEFINITION, &DeleteParams::default()).await.unwrap();
        running.holds(&[]).await;
        running.phase(Phase::NotInstalled).await;
        assert_eq!(running.state.known(), Ok(()));
        harness::until_gone(definitions.clone(), DEFINITION).await;
    }
}

/// A definition that lets any widget be stored.
fn definition() -> CustomResourceDefinition {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": DEFINITION},
        "spec": {
            "group": "e2e.test",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    }))
    .unwrap()
}

#[tokio::test]
async fn rights_that_come_late_are_used_without_a_restart() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let namespace = cluster.namespace("watch").await;
    cluster.kubectl(["create", "serviceaccount", "reader", "-n", &namespace]).await.ok();
    let path = cluster.kubeconfig_as_service_account(&namespace, "reader").await;
    let config = Config::from_custom_kubeconfig(Kubeconfig::read_from(path).unwrap(), &KubeConfigOptions::default()).await.unwrap();
    put(&Api::namespaced(cluster.admin(), &namespace), "a", "1").await;
    let mut running = config_maps(reader(&config).unwrap(), &namespace, WatchSettings::default());
    running.phase(Phase::Refused).await;
    let unknown = running.state.known().unwrap_err().to_string();
    assert!(unknown.contains("ClusterRole") && unknown.contains("forbidden"), "{unknown}");
    cluster.kubectl(["create", "role", "read", "--verb=list,watch", "--resource=configmaps", "-n", &namespace]).await.ok();
    let account = format!("--serviceaccount={}:reader", &*namespace);
    cluster.kubectl(["create", "rolebinding", "read", "--role=read", &account, "-n", &namespace]).await.ok();
    running.phase(Phase::Synced).await;
    running.holds(&["a=1"]).await;
}
