//! The control plane: real, observable, and mortal.

use crate::{
    CLUSTER,
    harness::{Cluster, Needs, Options, condition, eventually, until, until_gone, until_listed},
};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, PostParams, WatchParams},
};
use serde_json::json;
use std::time::Duration;

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name, "labels": { "test": name } } })).unwrap()
}

#[tokio::test]
async fn objects_are_applied_and_waited_for() {
    let Some(cluster) = CLUSTER.on(Needs::Any).await else { return };
    let namespace = cluster.namespace("apply").await;
    let two = "
apiVersion: v1
kind: ConfigMap
metadata: {name: one}
data: {key: value}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: two}
";
    let applied = cluster.apply_in(&namespace, two).await;
    assert_eq!(applied.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["one", "two"]);

    let api: Api<ConfigMap> = Api::namespaced(cluster.admin(), &namespace);
    let one = until(api.clone(), "one", "it has the key", |object: &ConfigMap| object.data.is_some()).await;
    assert_eq!(one.data.unwrap()["key"], "value");
    let ours = |objects: &[ConfigMap]| objects.iter().filter(|o| ["one", "two"].contains(&&*o.name_any())).count() == 2;
    until_listed(api.clone(), "", "both are there", ours).await;
    api.delete("one", &DeleteParams::default()).await.unwrap();
    until_gone(api, "one").await;

    let refused = cluster.try_apply(&cluster.admin(), &namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, bogus: 1}").await;
    assert!(refused.unwrap_err().to_string().contains("bogus"), "field validation is strict");
}

#[tokio::test]
async fn kubectl_and_helm_reach_the_cluster() {
    let Some(cluster) = CLUSTER.on(Needs::Any).await else { return };
    assert!(cluster.kubectl(["get", "namespaces", "-o", "name"]).await.ok().contains("namespace/default"));
    assert!(cluster.kubectl(["get", "no-such-kind"]).await.err().contains("no-such-kind"));
    cluster.helm(["list", "-A"]).await.ok();
}

#[tokio::test]
async fn the_controller_manager_binds_volumes_and_collects_garbage() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let namespace = cluster.namespace("garbage").await;
    let volume = format!("volume-{}", crate::harness::unique());
    cluster
        .apply_in(
            &namespace,
            &format!(
                "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {volume}}}
spec: {{capacity: {{storage: 1Gi}}, accessModes: [ReadWriteOnce], storageClassName: manual, hostPath: {{path: /nowhere}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: claim}}
spec: {{resources: {{requests: {{storage: 1Gi}}}}, accessModes: [ReadWriteOnce], storageClassName: manual, volumeName: {volume}}}
"
            ),
        )
        .await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.admin(), &namespace);
    let bound = |claim: &PersistentVolumeClaim| claim.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Bound"));
    until(claims.clone(), "claim", "it is bound", bound).await;

    // As CDI makes them: a claim owned by its DataVolume, of a kind from a CRD.
    let disk = "{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: disk}, spec: {source: {blank: {}}}}";
    let disk = cluster.apply_in(&namespace, disk).await.remove(0);
    let owner = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk", "uid": disk.uid().unwrap(), "controller": true });
    let owned = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "disk", "ownerReferences": [owner] },
        "spec": { "resources": { "requests": { "storage": "1Gi" } }, "accessModes": ["ReadWriteOnce"], "storageClassName": "none" },
    });
    cluster.apply_in(&namespace, &owned.to_string()).await;
    let client = cluster.admin();
    let disks = cluster.api(&client, "cdi.kubevirt.io/v1beta1", "DataVolume", &namespace).await;
    disks.delete("disk", &DeleteParams::default()).await.unwrap();
    until_gone(claims, "disk").await;
}

#[tokio::test]
async fn the_audit_log_tells_who_did_what() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let namespace = cluster.namespace("audit").await;
    let accounts = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader}}";
    cluster.apply_in(&namespace, accounts).await;
    let reader = cluster.client_as_service_account(&namespace, "reader").await;
    let mark = cluster.audit_mark().await;
    let quiet = cluster.requests_since(mark).await;
    assert!(!quiet.iter().any(|request| request.is_by(&namespace, "reader")), "nothing asked, nothing logged: {quiet:?}");

    let api: Api<ConfigMap> = Api::namespaced(reader, &namespace);
    let error = api.create(&PostParams::default(), &config_map("x")).await.unwrap_err();
    assert!(error.to_string().contains("forbidden"), "{error}");
    api.list(&ListParams::default()).await.unwrap_err();
    let theirs: Vec<_> = cluster.requests_since(mark).await.into_iter().filter(|r| r.is_by(&namespace, "reader")).collect();
    let summary: Vec<_> = theirs.iter().map(|r| (&*r.verb, &*r.resource, r.code, r.is_write())).collect();
    assert_eq!(summary, [("create", "configmaps", 403, true), ("list", "configmaps", 403, false)]);
}

#[tokio::test]
async fn the_api_server_can_be_killed_paused_and_compacted() {
    // Not the shared one: others would notice.
    let Some(_) = CLUSTER.on(Needs::Scripted).await else { return };
    let cluster = Cluster::start(Options::default().api_server_flag("--watch-cache=false")).await;
    let api: Api<ConfigMap> = Api::default_namespaced(cluster.admin());
    let before = api.create(&PostParams::default(), &config_map("before")).await.unwrap();

    cluster.control_plane().kill_api_server();
    api.get("before").await.unwrap_err();
    cluster.control_plane().start_api_server().await;
    assert_eq!(api.get("before").await.unwrap().uid(), before.uid(), "the same data behind the same address");

    let paused = cluster.control_plane().pause_api_server();
    let waited = tokio::time::timeout(Duration::from_secs(1), api.get("before")).await;
    assert!(waited.is_err(), "a paused server neither answers nor refuses: {waited:?}");
    drop(paused);
    api.get("before").await.unwrap();

    api.create(&PostParams::default(), &config_map("after")).await.unwrap();
    cluster.control_plane().compact_etcd().await;
    let old = before.resource_version().unwrap();
    let dynamic: Api<DynamicObject> = cluster.api(&cluster.admin(), "v1", "ConfigMap", "default").await;
    let gone = eventually("a watch from before the compaction ends in 410", || async {
        use futures::TryStreamExt;
        let stream = dynamic.watch(&WatchParams::default().timeout(5), &old).await;
        let event = match stream {
            Ok(stream) => std::pin::pin!(stream).try_next().await,
            Err(error) => Err(error),
        };
        match event {
            Err(kube::Error::Api(status)) if status.code == 410 => Ok(()),
            Ok(Some(kube::api::WatchEvent::Error(status))) if status.code == 410 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    gone.await;
}

#[tokio::test]
async fn conditions_are_read_from_any_object() {
    let object = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False", "reason": "Waiting", "message": "for you" }] } });
    let ready = condition(&object, "Ready").unwrap();
    assert_eq!((&*ready.status, &*ready.reason, &*ready.message), ("False", "Waiting", "for you"));
    assert_eq!(condition(&object, "Other"), None);
    assert_eq!(condition(&json!({}), "Ready"), None);
}
