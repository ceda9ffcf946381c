//! The stand-in under an API server that goes away, a compacted history, pauses and its own restart. Each test has a control plane of its own.

use kube::{Api, api::PostParams};
use serde_json::json;

use crate::{
    cdi::{Behaviour, CdiStandIn, Options, types::DataVolume},
    harness::{self, Cluster, Needs, until},
    room::CLASSES,
    upstream::{Answer, DISK, HOST, UPSTREAM},
};

/// A control plane of the test's own, with a real controller manager.
async fn cluster() -> Option<Cluster> {
    crate::CLUSTER.on(Needs::Scripted).await?;
    let cluster = Cluster::start(harness::Options::default().foreign_crds(harness::Flavor::chosen()).controller_manager()).await;
    cluster.apply(CLASSES).await;
    Some(cluster)
}

async fn import(cluster: &Cluster, namespace: &str, name: &str) -> Api<DataVolume> {
    let ca = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "access" }, "data": { "ca.crt": UPSTREAM.ca } });
    cluster.apply_in(namespace, &ca.to_string()).await;
    let url = UPSTREAM.put(&format!("/{namespace}/{name}"), Answer::File(DISK.qcow2.clone()));
    let dv = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": name },
        "spec": {
            "source": { "http": { "url": url, "certConfigMap": "access" } },
            "storage": { "storageClassName": "replicated", "resources": { "requests": { "storage": "16Mi" } } },
        },
    });
    cluster.apply_in(namespace, &dv.to_string()).await;
    Api::namespaced(cluster.admin(), namespace)
}

fn succeeded(dv: &DataVolume) -> bool {
    let bound = |dv: &DataVolume| harness::condition(dv, "Bound").is_some_and(|bound| bound.status == "True");
    dv.status.as_ref().is_some_and(|status| status.phase == "Succeeded") && bound(dv)
}

fn half_way(dv: &DataVolume) -> bool {
    dv.status.as_ref().is_some_and(|status| status.progress.ends_with('%') && status.phase == "ImportInProgress")
}

/// The API server restarts in the middle of an import, with the history compacted: the import ends, once.
#[tokio::test]
async fn an_api_server_that_restarts_is_survived() {
    let Some(cluster) = cluster().await else { return };
    let dir = harness::scratch_dir("cdi");
    let cdi = CdiStandIn::start(cluster.admin(), Options::new(dir.path()).dial(HOST, UPSTREAM.address)).await;
    let namespace = cluster.namespace("cdi").await;
    cdi.script("golden", Behaviour::StuckAt(50.0));
    let dvs = import(&cluster, &namespace, "golden").await;
    until(dvs.clone(), "golden", "half way", half_way).await;
    cluster.control_plane().compact_etcd().await;
    cluster.control_plane().restart_api_server().await;
    cdi.unscript("golden");
    until(dvs, "golden", "Succeeded", succeeded).await;
    assert_eq!(cdi.requests_of(&namespace, "golden").len(), 4, "the importer did not notice");
    let late = import(&cluster, &namespace, "late").await;
    until(late, "late", "new work is seen", succeeded).await;
    let disk = std::fs::read(cdi.disk(&namespace, "golden").await.unwrap()).unwrap();
    assert_eq!(disk[..DISK.raw.len()], DISK.raw);
}

/// Paused, it writes nothing; a new stand-in takes over an import that an older one began, from zero.
#[tokio::test]
async fn pauses_and_successors() {
    let Some(cluster) = cluster().await else { return };
    let dir = harness::scratch_dir("cdi");
    let options = Options::new(dir.path()).dial(HOST, UPSTREAM.address);
    let first = CdiStandIn::start(cluster.admin(), options.clone()).await;
    let namespace = cluster.namespace("cdi").await;
    first.script("golden", Behaviour::StuckAt(50.0));
    let dvs = import(&cluster, &namespace, "golden").await;
    until(dvs.clone(), "golden", "half way", half_way).await;

    first.pause();
    let before = first.writes().total;
    first.unscript("golden");
    first.until_journal(&namespace, "golden", |did| did.iter().any(|what| matches!(what, crate::cdi::What::Imported { .. }))).await;
    assert!(!succeeded(&dvs.get("golden").await.unwrap()), "nothing is told while paused");
    assert_eq!(first.writes().total, before);
    first.stop().await;

    let second = CdiStandIn::start(cluster.admin(), options).await;
    until(dvs, "golden", "Succeeded by the second", succeeded).await;
    assert!(!second.requests_of(&namespace, "golden").is_empty(), "it imported anew");
    let disk = std::fs::read(second.disk(&namespace, "golden").await.unwrap()).unwrap();
    assert_eq!(disk[..DISK.raw.len()], DISK.raw);

    // While CDI's webhooks are away, no DataVolume can be written; all else can.
    second.serve_admission(false);
    let api: Api<DataVolume> = Api::namespaced(cluster.admin(), &namespace);
    let mut dv = api.get("golden").await.unwrap();
    dv.metadata = kube::api::ObjectMeta { name: Some("other".into()), ..Default::default() };
    let refusal = api.create(&PostParams::default(), &dv).await.unwrap_err().to_string();
    assert!(refusal.contains("datavolume-mutate.cdi.kubevirt.io"), "{refusal}");
    second.serve_admission(true);
    api.create(&PostParams::default(), &dv).await.unwrap();
}
