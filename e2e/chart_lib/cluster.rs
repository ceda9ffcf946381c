//! What the library asks a cluster for, on a real API server with real helm: install, upgrade, `--dry-run=server`, template.
//!
//! There is no storage behind the claims: a claim is Bound because the test says so, which is all that a render can see.

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    harness::{Cluster, Flavor, Needs, Options, Output, Shared},
    helm::chart,
};

static CLUSTER: Shared = Shared::new(|| Options::default().foreign_crds(Flavor::chosen()));

const RELEASE: &str = "kubernetes-nodes-alpha-md0";
const CLASSES: &str = "\
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: replicated}, provisioner: example.com/none, allowVolumeExpansion: true}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: local}, provisioner: example.com/none, allowVolumeExpansion: true}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: fixed}, provisioner: example.com/none}
---
{apiVersion: v1, kind: Namespace, metadata: {name: cozy-public}}
";

/// The one cluster of these tests, with the kinds and classes that every test here uses.
pub async fn cluster() -> Option<&'static Cluster> {
    static READY: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    let cluster = CLUSTER.on(Needs::Scripted).await?;
    READY
        .get_or_init(async || {
            for schema in ["machinehealthchecks.yaml", "packages.yaml"] {
                cluster.apply(&std::fs::read_to_string(chart("schemas").join(schema)).expect(schema)).await;
            }
            let admin = cluster.admin();
            for (version, kind) in [("cluster.x-k8s.io/v1beta1", "MachineHealthCheck"), ("cozystack.io/v1alpha1", "PackageSource")] {
                cluster.api(&admin, version, kind, "default").await;
            }
            cluster.install_product_crds().await;
            cluster.apply(CLASSES).await;
        })
        .await;
    Some(cluster)
}

async fn set_status(cluster: &Cluster, version: &str, kind: &str, namespace: &str, name: &str, status: Value) {
    let api = cluster.api(&cluster.admin(), version, kind, namespace).await;
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &patch).await.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
}

/// A DataVolume and its Bound claim, as a finished import or clone leaves them.
async fn volume(cluster: &Cluster, namespace: &str, name: &str, class: &str, size: &str, metadata: Value) {
    let mut named = metadata;
    named["name"] = json!(name);
    let resources = json!({"requests": {"storage": size}});
    let disk = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": named,
        "spec": {"source": {"http": {"url": "https://example.org/disk"}}, "storage": {"resources": resources, "storageClassName": class}},
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": named,
        "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Block", "resources": resources, "storageClassName": class},
    });
    cluster.apply_in(namespace, &disk.to_string()).await;
    cluster.apply_in(namespace, &claim.to_string()).await;
    set_status(cluster, "cdi.kubevirt.io/v1beta1", "DataVolume", namespace, name, json!({"phase": "Succeeded"})).await;
    let bound = json!({"phase": "Bound", "capacity": {"storage": size}});
    set_status(cluster, "v1", "PersistentVolumeClaim", namespace, name, bound).await;
}

/// `helm VERB` for the pool release, from a chart of this repository.
async fn pool(cluster: &Cluster, verb: &str, namespace: &str, chart_name: &str, arguments: &[&str]) -> Output {
    let chart = chart(chart_name);
    let fixed = [verb, RELEASE, chart.to_str().expect("UTF-8"), "--namespace", namespace, "--set", "cluster=alpha", "--set", "roles={md0}"];
    cluster.helm(fixed.iter().chain(arguments)).await
}

async fn get(cluster: &Cluster, version: &str, kind: &str, namespace: &str, name: &str) -> Option<DynamicObject> {
    cluster.api(&cluster.admin(), version, kind, namespace).await.get_opt(name).await.expect("ask the API server")
}

/// The machine template that the pool's MachineDeployment runs.
async fn template(cluster: &Cluster, namespace: &str) -> DynamicObject {
    let deployment =
        get(cluster, "cluster.x-k8s.io/v1beta1", "MachineDeployment", namespace, "kubernetes-alpha-md0").await.expect("a pool");
    let name = deployment.data["spec"]["template"]["spec"]["infrastructureRef"]["name"].as_str().expect("a reference").to_owned();
    get(cluster, "infrastructure.cluster.x-k8s.io/v1alpha1", "KubevirtMachineTemplate", namespace, &name).await.expect("a template")
}

fn disk(template: &DynamicObject) -> &Value {
    &template.data["spec"]["template"]["spec"]["virtualMachineTemplate"]["spec"]["dataVolumeTemplates"][0]
}

fn builtin(schematic: &str) -> String {
    format!(r#"osImage={{"builtin":{{"schematicID":"{schematic}"}}}}"#)
}

#[tokio::test]
async fn a_pool_without_its_golden_is_refused_before_anything_is_made() {
    let Some(cluster) = cluster().await else { return };
    let namespace = cluster.namespace("tenant").await;
    let image = builtin("absent");
    let expected = format!(
        "KubernetesNodes {}/alpha-md0: golden cozy-public/talos-worker-absent-v1.13.6 does not exist and no GoldenImage makes it: create the image, or correct the name",
        &*namespace
    );
    for (verb, more) in [("install", None), ("install", Some("--dry-run=server")), ("template", Some("--dry-run=server"))] {
        let arguments: Vec<&str> = ["--set-json", &image].into_iter().chain(more).collect();
        let error = pool(cluster, verb, &namespace, "pool", &arguments).await.err();
        assert!(error.contains(&expected), "{verb} {more:?}: {error}");
    }
    assert!(get(cluster, "cluster.x-k8s.io/v1beta1", "MachineDeployment", &namespace, "kubernetes-alpha-md0").await.is_none());
}

#[tokio::test]
async fn a_pool_clones_in_its_class_and_within_its_size() {
    let Some(cluster) = cluster().await else { return };
    let namespace = cluster.namespace("tenant").await;
    let image = builtin("sizes");
    volume(cluster, "cozy-public", "talos-worker-sizes-v1.13.6", "replicated", "6Gi", json!({})).await;

    pool(cluster, "install", &namespace, "pool", &["--set-json", &image]).await.ok();
    let made = template(cluster, &namespace).await;
    let reference = format!("{}/KubernetesNodes/alpha-md0", &*namespace);
    let made = disk(&made);
    assert_eq!(made["spec"]["source"], json!({"pvc": {"namespace": "cozy-public", "name": "talos-worker-sizes-v1.13.6"}}));
    assert_eq!(made["spec"]["storage"]["storageClassName"], "replicated");
    assert_eq!(
        made["metadata"]["annotations"],
        json!({
            "kubernetes-worker-image.cozystack.io/golden": "talos-worker-sizes-v1.13.6",
            "kubernetes-worker-image.cozystack.io/pool": reference,
        })
    );

    let upgrade =
        async |arguments: &[&str]| pool(cluster, "upgrade", &namespace, "pool", &[&["--set-json", &image], arguments].concat()).await;
    let error = upgrade(&["--set", "storageClass=local"]).await.err();
    let expected = "golden cozy-public/talos-worker-sizes-v1.13.6 is in StorageClass \"replicated\", the disk in \"local\" (it states): storage cannot clone across classes; write `storageClassName: replicated`, or create the GoldenImage with a target for \"local\"";
    assert!(error.contains(expected), "{error}");
    let error = upgrade(&["--set", "diskSize=6G"]).await.err();
    assert!(
        error.contains("asks storage for 6144Mi, the disk for 5722.04Mi: a clone cannot be smaller; write a size of 6Gi or more"),
        "{error}"
    );
    // That class cannot grow a clone.
    volume(cluster, "cozy-public", "talos-worker-sizes-v1.13.6-fixed", "fixed", "6Gi", json!({})).await;
    let error = upgrade(&["--set", "storageClass=fixed"]).await.err();
    assert!(error.contains("golden cozy-public/talos-worker-sizes-v1.13.6-fixed holds 6Gi, the disk wants 20Gi, and class \"fixed\" cannot grow volumes: write a size of 6Gi"), "{error}");
    upgrade(&["--set", "storageClass=fixed", "--set", "diskSize=6144Mi"]).await.ok();
    assert_eq!(disk(&template(cluster, &namespace).await)["spec"]["source"]["pvc"]["name"], "talos-worker-sizes-v1.13.6-fixed");
}

/// R15, seen by a pool that never states a class: the only test here that sets the cluster's default.
#[tokio::test]
async fn moving_the_default_class_neither_fails_nor_rolls_a_pool() {
    let Some(cluster) = cluster().await else { return };
    let namespace = cluster.namespace("tenant").await;
    let image = builtin("frozen");
    volume(cluster, "cozy-public", "talos-worker-frozen-v1.13.6", "replicated", "6Gi", json!({})).await;
    let arguments = ["--set-json", image.as_str(), "--set", "storageClass="];
    let error = pool(cluster, "install", &namespace, "pool", &arguments).await.err();
    assert!(
        error.contains("the disk states no StorageClass and the cluster has no default one: write `storageClassName: replicated`"),
        "{error}"
    );

    let class = async |name: &str, default: bool| {
        let api = cluster.api(&cluster.admin(), "storage.k8s.io/v1", "StorageClass", "default").await;
        let patch = json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": default.to_string()}}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("mark the class");
    };
    class("replicated", true).await;
    pool(cluster, "install", &namespace, "pool", &arguments).await.ok();
    let before = template(cluster, &namespace).await;
    assert_eq!(disk(&before)["spec"]["storage"]["storageClassName"], "replicated", "the resolved class is written down");

    class("replicated", false).await;
    class("local", true).await;
    // Scaled to zero, the template alone remembers.
    pool(cluster, "upgrade", &namespace, "pool", &[&arguments[..], &["--set", "maxReplicas=5"]].concat()).await.ok();
    assert_eq!(template(cluster, &namespace).await.metadata.name, before.metadata.name);
    // With disks, their claims do; a sibling's disk in another class does not count, though its name begins like ours.
    volume(cluster, &namespace, "disk-system-kubernetes-alpha-md0-x1-y1", "replicated", "20Gi", json!({})).await;
    let sibling =
        json!({"annotations": {"kubernetes-worker-image.cozystack.io/pool": format!("{}/KubernetesNodes/alpha-md0-gpu", &*namespace)}});
    volume(cluster, &namespace, "disk-system-kubernetes-alpha-md0-gpu-x1-y1", "local", "20Gi", sibling).await;
    pool(cluster, "upgrade", &namespace, "pool", &arguments).await.ok();
    assert_eq!(template(cluster, &namespace).await.metadata.name, before.metadata.name);
    // A new pool gets today's default, which the golden is not in.
    let other = cluster.namespace("tenant").await;
    let error = pool(cluster, "install", &other, "pool", &arguments).await.err();
    assert!(error.contains("the disk in \"local\" (is the default)"), "{error}");
    class("local", false).await;
}

#[tokio::test]
async fn a_pool_that_has_its_clone_outlives_its_golden() {
    let Some(cluster) = cluster().await else { return };
    let namespace = cluster.namespace("tenant").await;
    let image = builtin("gone");
    volume(cluster, "cozy-public", "talos-worker-gone-v1.13.6", "replicated", "6Gi", json!({})).await;
    pool(cluster, "install", &namespace, "pool", &["--set-json", &image]).await.ok();
    let before = template(cluster, &namespace).await;

    for (version, kind) in [("cdi.kubevirt.io/v1beta1", "DataVolume"), ("v1", "PersistentVolumeClaim")] {
        let api = cluster.api(&cluster.admin(), version, kind, "cozy-public").await;
        api.delete("talos-worker-gone-v1.13.6", &DeleteParams::default()).await.expect("delete the golden");
    }
    let arguments = ["--set-json", image.as_str(), "--set", "maxReplicas=5"];
    let error = pool(cluster, "upgrade", &namespace, "pool", &arguments).await.err();
    assert!(error.contains("golden cozy-public/talos-worker-gone-v1.13.6 is being deleted: a clone of it would hang"), "{error}");
    // No controller is here that would lift the claim's protection.
    let claims = cluster.api(&cluster.admin(), "v1", "PersistentVolumeClaim", "cozy-public").await;
    let unprotected = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    claims.patch("talos-worker-gone-v1.13.6", &PatchParams::default(), &unprotected).await.expect("lift the protection");
    let error = pool(cluster, "upgrade", &namespace, "pool", &arguments).await.err();
    assert!(error.contains("golden cozy-public/talos-worker-gone-v1.13.6 does not exist"), "{error}");

    let marks = json!({"annotations": {"kubernetes-worker-image.cozystack.io/golden": "talos-worker-gone-v1.13.6"}});
    volume(cluster, &namespace, "disk-system-kubernetes-alpha-md0-x1-y1", "replicated", "20Gi", marks).await;
    pool(cluster, "upgrade", &namespace, "pool", &arguments).await.ok();
    assert_eq!(template(cluster, &namespace).await.metadata.name, before.metadata.name);
}

#[tokio::test]
async fn moving_the_pool_chart_to_the_library_rolls_nothing() {
    let Some(cluster) = cluster().await else { return };
    volume(cluster, "cozy-public", "talos-worker-moved-v1.13.6", "replicated", "6Gi", json!({})).await;
    let image = builtin("moved");
    for arguments in [&["--set", "roles={ingress-nginx}"][..], &["--set", "storageClass="], &["--set-json", &image]] {
        let namespace = cluster.namespace("tenant").await;
        pool(cluster, "install", &namespace, "pool-today", arguments).await.ok();
        let before = template(cluster, &namespace).await;
        pool(cluster, "upgrade", &namespace, "pool", arguments).await.ok();
        let after = template(cluster, &namespace).await;
        assert_eq!((&after.metadata.name, &after.metadata.uid), (&before.metadata.name, &before.metadata.uid), "{arguments:?}");
        // And back.
        pool(cluster, "upgrade", &namespace, "pool-today", arguments).await.ok();
        assert_eq!(template(cluster, &namespace).await.metadata.uid, before.metadata.uid, "{arguments:?}");
    }
}

#[tokio::test]
async fn classes_are_read_from_the_cluster() {
    let Some(cluster) = cluster().await else { return };
    let namespace = cluster.namespace("tenant").await;
    let error = pool(cluster, "install", &namespace, "pool", &["--set", "workerClassName=nobody"]).await.err();
    assert!(error.contains(&format!("KubernetesNodes {}/alpha-md0: there is no WorkerClass nobody", &*namespace)), "{error}");

    let digest = "sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";
    cluster
        .apply(&format!(
            "{{apiVersion: cozystack.io/v1alpha1, kind: WorkerClass, metadata: {{name: talos-r1}}, spec: {{bootstrap: talos, talos: {{version: v1.13.8}}}}}}
---
{{apiVersion: cozystack.io/v1alpha1, kind: WorkerClass, metadata: {{name: kairos-r1}}, spec: {{bootstrap: kairos, image: {{kubernetesVersion: v1.35.2, reference: \"registry.example.com/k@{digest}\"}}}}}}"
        ))
        .await;
    pool(cluster, "install", &namespace, "pool", &["--set", "workerClassName=talos-r1"]).await.ok();
    let url = disk(&template(cluster, &namespace).await)["spec"]["source"]["http"]["url"].clone();
    assert!(url.as_str().is_some_and(|url| url.contains("/v1.13.8/")), "{url}");

    let other = cluster.namespace("tenant").await;
    let kairos = ["--set", "workerClassName=kairos-r1"];
    let error = pool(cluster, "install", &other, "pool", &kairos).await.err();
    assert!(
        error
            .contains("no golden in cozy-public has the identity e449297b1a4df41248857fc84e978c658a845809 of the image of class kairos-r1"),
        "{error}"
    );
    let labels = json!({"labels": {
        "kubernetes-worker-image.cozystack.io/golden": "true",
        "kubernetes-worker-image.cozystack.io/identity": "e449297b1a4df41248857fc84e978c658a845809",
    }});
    volume(cluster, "cozy-public", "kairos-worker-mine", "replicated", "6Gi", labels).await;
    pool(cluster, "install", &other, "pool", &kairos).await.ok();
    assert_eq!(disk(&template(cluster, &other).await)["spec"]["source"]["pvc"]["name"], "kairos-worker-mine");
    let deployment = get(cluster, "cluster.x-k8s.io/v1beta1", "MachineDeployment", &other, "kubernetes-alpha-md0").await.expect("a pool");
    assert_eq!(deployment.data["spec"]["template"]["spec"]["version"], "v1.35.2", "the image's patch, not the platform's");
}

/// R13 as a render sees it: what the catalog says of a golden that has no claim yet.
#[tokio::test]
async fn an_image_speaks_for_a_golden_that_is_not_there_yet() {
    let Some(cluster) = cluster().await else { return };
    let namespace = cluster.namespace("tenant").await;
    let arguments = |image: &str| ["--set-json".to_owned(), builtin(image), "--dry-run=server".to_owned()];
    let render = async |image: &str| {
        let arguments = arguments(image);
        pool(cluster, "template", &namespace, "pool", &arguments.each_ref().map(String::as_str)).await
    };
    for name in ["importing", "stalled"] {
        let image = json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": {"name": name},
            "spec": {"source": {"talosFactory": {"schematicID": name, "version": "v1.13.6"}}, "storage": {"targets": [{"storageClassName": "replicated"}]}},
        });
        cluster.apply(&image.to_string()).await;
        // Just listed, without a status: its identity follows from its source.
        let rendered = render(name).await.ok();
        assert!(rendered.contains(&format!("name: \"talos-worker-{name}-v1.13.6\"")), "{rendered}");
    }
    let api = cluster.api(&cluster.admin(), "cozystack.io/v1alpha1", "GoldenImage", "default").await;
    let condition = json!({"type": "Stalled", "status": "True", "reason": "NotADiskImage", "message": "an HTML page", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    api.patch_status("stalled", &PatchParams::default(), &status).await.expect("write a status");
    let error = render("stalled").await.err();
    assert!(error.contains("golden cozy-public/talos-worker-stalled-v1.13.6 cannot be made (NotADiskImage): an HTML page"), "{error}");
    // Judged by its frozen target before a byte has been imported.
    let image = arguments("importing");
    let mut wrong: Vec<&str> = image.iter().map(String::as_str).collect();
    wrong.extend(["--set", "storageClass=local"]);
    let error = pool(cluster, "template", &namespace, "pool", &wrong).await.err();
    assert!(
        error.contains(
            "golden cozy-public/talos-worker-importing-v1.13.6 is in StorageClass \"replicated\", the disk in \"local\" (it states)"
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_vm_disk_is_guarded_when_it_is_new_and_left_alone_afterwards() {
    let Some(cluster) = cluster().await else { return };
    let namespace = cluster.namespace("tenant").await;
    volume(cluster, "cozy-public", "vm-default-images-debian-12", "replicated", "20Gi", json!({})).await;
    let chart = chart("vm-disk");
    let helm = async |verb: &str, arguments: &[&str]| {
        let fixed =
            [verb, "vm-disk-web", chart.to_str().expect("UTF-8"), "--namespace", &namespace, "--set", "source.image.name=debian-12"];
        cluster.helm(fixed.iter().chain(arguments)).await
    };
    let error = helm("install", &[]).await.err();
    assert!(
        error.contains(&format!(
            "VMDisk {}/web: golden cozy-public/vm-default-images-debian-12 asks storage for 20Gi, the disk for 5Gi",
            &*namespace
        )),
        "{error}"
    );
    let error = helm("install", &["--set", "storage=20Gi", "--set", "storageClass=local"]).await.err();
    assert!(error.contains("is in StorageClass \"replicated\", the disk in \"local\" (it states)"), "{error}");
    helm("install", &["--set", "storage=20Gi"]).await.ok();
    let read = async || get(cluster, "cdi.kubevirt.io/v1beta1", "DataVolume", &namespace, "vm-disk-web").await.expect("a disk");
    let made = read().await;
    let annotations = made.metadata.annotations.clone().expect("annotations");
    assert_eq!(annotations["kubernetes-worker-image.cozystack.io/pool"], format!("{}/VMDisk/web", &*namespace));

    // Another image name has no effect on a disk that exists, as today, so it is not guarded either.
    helm("upgrade", &["--set", "storage=1Gi", "--set", "source.image.name=nobody", "--set", "optical=true"]).await.ok();
    let after = read().await;
    assert_eq!(after.data["spec"], made.data["spec"]);
    let after = after.metadata.annotations.expect("annotations");
    assert_eq!(after["vm-disk.cozystack.io/optical"], "true");
    for mark in ["golden", "pool"] {
        let mark = format!("kubernetes-worker-image.cozystack.io/{mark}");
        assert_eq!(after[&mark], annotations[&mark]);
    }
}

/// A chart may be rendered where CDI, Cluster API and the catalog are not installed: a look-up of such a kind would fail it.
#[tokio::test]
async fn kinds_that_are_not_served_are_no_error() {
    if CLUSTER.on(Needs::Scripted).await.is_none() {
        return;
    }
    let bare = Cluster::start(Options::default()).await;
    let error = pool(&bare, "template", "tenant-a", "pool", &["--set-json", &builtin("abc"), "--dry-run=server"]).await.err();
    assert!(error.contains("KubernetesNodes tenant-a/alpha-md0: golden cozy-public/talos-worker-abc-v1.13.6 does not exist"), "{error}");
    let error = pool(&bare, "template", "tenant-a", "pool", &["--set", "workerClassName=nobody", "--dry-run=server"]).await.err();
    assert!(error.contains("KubernetesNodes tenant-a/alpha-md0: there is no WorkerClass nobody"), "{error}");
}

#[tokio::test]
async fn the_platform_accepts_what_it_is_given() {
    let Some(cluster) = cluster().await else { return };
    let on = [
        "--set",
        "bundles.enabledPackages={cozystack.kubernetes-worker-image}",
        "--set-json",
        r#"kubernetesWorkerImage={"images":[{"version":"v1.13.6"}]}"#,
    ];
    let rendered = crate::helm::template("cozystack", "cozy-system", &chart("platform"), &on).expect("render");
    // Applied with strict field validation: a field that the kind does not have is an error.
    let kinds: Vec<_> = cluster.apply(&rendered).await.iter().map(|object| object.types.as_ref().expect("a kind").kind.clone()).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "Package").count(), 1);
    assert_eq!(kinds.iter().filter(|kind| *kind == "PackageSource").count(), 1);
}
