//! The class of pools that state none (R15): frozen by what they have, whatever today's default is.

use golden_catalog::rules::marks;
use serde_json::json;

use crate::{
    harness::{self, Cluster},
    objects::{Disk, Form, RIGHT, object},
    stand::{bound_claim, create, set_status, stand},
};

/// A bound disk of a pool, as it lies in the tenant's namespace.
async fn disk(cluster: &Cluster, namespace: &str, name: &str, class: &str, annotations: serde_json::Value) {
    cluster.apply_in(namespace, &bound_claim(name, class, "6Gi", json!({}), annotations).to_string()).await;
    let status = json!({ "phase": "Bound", "capacity": { "storage": "6Gi" }, "accessModes": ["ReadWriteMany"] });
    set_status(cluster, "v1", "PersistentVolumeClaim", namespace, name, status).await;
}

/// What a new disk of the pool would get; the reason where it would get none.
async fn class_of(cluster: &Cluster, namespace: &str, pool: &str, golden: &'static str) -> Result<String, String> {
    let mut asked = object(Form::Volume, "new-disk", Disk { golden, class: None, ..RIGHT });
    asked["metadata"]["annotations"] = json!({ marks::POOL: format!("{namespace}/KubernetesNodes/{pool}") });
    match create(cluster, namespace, &asked, true).await {
        Ok(made) => {
            Ok(made.object.pointer("/spec/storage/storageClassName").and_then(|class| class.as_str()).unwrap_or_default().to_owned())
        }
        Err(refused) => Err(refused.message),
    }
}

async fn until_class(cluster: &Cluster, namespace: &str, pool: &str, golden: &'static str, expected: &str) {
    harness::eventually(&format!("pool {pool} gets {expected}"), || async {
        let got = class_of(cluster, namespace, pool, golden).await;
        if got.as_deref() == Ok(expected) { Ok(()) } else { Err(format!("{got:?}")) }
    })
    .await;
}

#[tokio::test]
async fn pools_of_every_age_keep_their_class() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    let of = |pool: &str| json!({ marks::POOL: format!("{}/KubernetesNodes/{pool}", &*tenant) });

    // New: today's default, so a golden elsewhere is refused with both classes.
    until_class(cluster, &tenant, "demo-new", "golden", "replicated").await;
    let refused = class_of(cluster, &tenant, "demo-new", "golden-local").await.expect_err("the default is another class");
    assert!(refused.contains("is the default") && refused.contains("R14"), "{refused}");

    // With disks of its own, which stand in another class than the default.
    disk(cluster, &tenant, "own-1", "local", of("demo-own")).await;
    until_class(cluster, &tenant, "demo-own", "golden-local", "local").await;
    let refused = class_of(cluster, &tenant, "demo-own", "golden").await.expect_err("the golden is in the default class");
    assert!(refused.contains("its own disks") && refused.contains("\"local\""), "{refused}");

    // Older than the daemon, without a mark on any disk: the VM that a disk belongs to tells the pool.
    let mut machine = object(Form::Machine, "older", Disk { golden: "golden-local", class: Some("local"), ..RIGHT });
    machine["spec"]["template"]["metadata"]["labels"] = json!({ "cluster.x-k8s.io/deployment-name": "kubernetes-demo-older" });
    let machine = create(cluster, &tenant, &machine, false).await.unwrap_or_else(|refused| panic!("{}", refused.message)).object;
    // KubeVirt's label is on the DataVolume, and CDI copies it to the claim.
    let created_by = json!({ "kubevirt.io/created-by": machine["metadata"]["uid"] });
    let volume = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "older-disk", "labels": created_by,
        "ownerReferences": [{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "older", "uid": machine["metadata"]["uid"], "controller": true }] },
        "spec": { "source": { "blank": {} }, "storage": { "storageClassName": "local", "resources": { "requests": { "storage": "6Gi" } } } } });
    let volume = create(cluster, &tenant, &volume, false).await.unwrap_or_else(|refused| panic!("{}", refused.message)).object;
    let mut claim = bound_claim("older-disk", "local", "6Gi", created_by, json!({}));
    claim["metadata"]["ownerReferences"] = json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "older-disk", "uid": volume["metadata"]["uid"], "controller": true }]);
    cluster.apply_in(&tenant, &claim.to_string()).await;
    let bound = json!({ "phase": "Bound", "capacity": { "storage": "6Gi" }, "accessModes": ["ReadWriteMany"] });
    set_status(cluster, "v1", "PersistentVolumeClaim", &tenant, "older-disk", bound).await;
    until_class(cluster, &tenant, "demo-older", "golden-local", "local").await;

    // Mixed: the newest counts. Kubernetes stamps whole seconds, so the two must not be made within one.
    disk(cluster, &tenant, "mixed-1", "local", of("demo-mixed")).await;
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    disk(cluster, &tenant, "mixed-2", "replicated", of("demo-mixed")).await;
    until_class(cluster, &tenant, "demo-mixed", "golden", "replicated").await;

    // Scaled to zero: the newest template says it.
    let template = |pool: &str, class: Option<&'static str>, golden: &'static str| {
        let mut template = object(Form::Template, &format!("{pool}-t"), Disk { class, golden, ..RIGHT });
        let labels = &mut template["spec"]["template"]["spec"]["virtualMachineTemplate"]["spec"]["template"]["metadata"]["labels"];
        labels["cluster.x-k8s.io/deployment-name"] = format!("kubernetes-{pool}").into();
        template
    };
    create(cluster, &tenant, &template("demo-zero", Some("local"), "golden-local"), false)
        .await
        .unwrap_or_else(|refused| panic!("{}", refused.message));
    until_class(cluster, &tenant, "demo-zero", "golden-local", "local").await;

    // A template that stated none, with the class the leader recorded on it when it was admitted.
    let mut recorded = template("demo-recorded", Some("local"), "golden-local");
    let storage = &mut recorded["spec"]["template"]["spec"]["virtualMachineTemplate"]["spec"]["dataVolumeTemplates"][0]["spec"]["storage"];
    storage.as_object_mut().expect("storage").remove("storageClassName");
    recorded["metadata"]["annotations"] = json!({ marks::STORAGE_CLASS: "local" });
    // Written while the default was `local`; now it is another, and the pool is fine.
    let made = create(cluster, &tenant, &recorded, false).await;
    assert!(made.is_err_and(|refused| refused.message.contains("R14")), "a new template without a class gets today's default");
}

/// The default moves: healthy pools never notice, new ones get the new default.
#[tokio::test]
async fn moving_the_default_fails_no_pool() {
    // A cluster of its own: the default class is everybody's.
    if stand().await.is_none() {
        return;
    }
    let cluster = crate::stand::own_cluster().await;
    let _stand = crate::stand::Stand::build(&cluster).await;
    let tenant = cluster.namespace("tenant").await;
    let of = |pool: &str| json!({ marks::POOL: format!("{}/KubernetesNodes/{pool}", &*tenant) });
    disk(&cluster, &tenant, "old-1", "replicated", of("demo-old")).await;
    until_class(&cluster, &tenant, "demo-old", "golden", "replicated").await;
    for (class, value) in [("replicated", "false"), ("local", "true")] {
        let patch = json!({ "metadata": { "annotations": { "storageclass.kubernetes.io/is-default-class": value } } }).to_string();
        cluster.kubectl(["patch", "storageclass", class, "--type=merge", "-p", &patch]).await.ok();
    }
    until_class(&cluster, &tenant, "demo-fresh", "golden-local", "local").await;
    until_class(&cluster, &tenant, "demo-old", "golden", "replicated").await;
}
