//! On real CDI with real storage (`E2E_KUBECONFIG`): what is admitted ends as a storage-level clone, and each refusal is a case that CDI would have copied over the network, left hanging or failed.
//!
//! The golden is a blank disk with our mark, in the cluster's default class; the class must be one that can clone. The verdict is `golden-catalog explain`'s, the outcome is CDI's.

use std::time::{Duration, Instant};

use golden_catalog::rules::marks;
use kube::{Api, api::DynamicObject};
use serde_json::{Value, json};

use crate::harness::{self, Cluster, Needs};

static CLUSTER: harness::Shared = harness::Shared::new(harness::Options::default);

/// How long CDI may take to show that a clone goes nowhere.
const HANGS: Duration = Duration::from_secs(60);

/// What CDI made of a DataVolume.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// Storage cloned it.
    Cloned,
    /// It was copied over the network.
    Copied,
    /// It did not end in time, with CDI's phase and words.
    Stuck(String),
}

struct Golden<'a> {
    cluster: &'a Cluster,
    catalog: String,
    class: String,
}

impl<'a> Golden<'a> {
    async fn make(cluster: &'a Cluster, catalog: &str) -> Self {
        let classes = cluster.kubectl(["get", "storageclasses", "-o", "json"]).await.ok();
        let classes: Value = serde_json::from_str(&classes).expect("JSON");
        let is_default = |class: &&Value| class["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true";
        let class = classes["items"].as_array().expect("classes").iter().find(is_default).expect("a default class")["metadata"]["name"]
            .as_str()
            .expect("text")
            .to_owned();
        let volume = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": { "name": "golden", "labels": { marks::GOLDEN: "true" }, "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "" } },
            "spec": { "source": { "blank": {} }, "storage": { "storageClassName": class, "volumeMode": "Block", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } } });
        cluster.apply_in(catalog, &volume.to_string()).await;
        let golden = Self { cluster, catalog: catalog.to_owned(), class };
        let volumes = golden.volumes(catalog).await;
        harness::until(volumes, "golden", "the golden is made", |volume: &DynamicObject| volume.data["status"]["phase"] == "Succeeded")
            .await;
        golden
    }

    async fn volumes(&self, namespace: &str) -> Api<DynamicObject> {
        self.cluster.api(&self.cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", namespace).await
    }

    fn disk(&self, name: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut disk = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": { "name": name, "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "" } },
            "spec": { "source": { "pvc": { "namespace": self.catalog, "name": "golden" } },
                "storage": { "storageClassName": self.class, "volumeMode": "Block", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } } });
        change(&mut disk);
        disk
    }

    /// Has CDI make it, and gives what `explain` says and what CDI did.
    async fn try_out(&self, namespace: &str, disk: &Value) -> (Option<i32>, String, Outcome) {
        self.cluster.apply_in(namespace, &disk.to_string()).await;
        let name = disk["metadata"]["name"].as_str().expect("a name");
        let (subject, catalog) = (format!("{namespace}/datavolume/{name}"), format!("--catalog-namespace={}", self.catalog));
        let told = harness::cli(Some(self.cluster.admin_kubeconfig()), ["explain", &subject, &catalog]).await;
        let volumes = self.volumes(namespace).await;
        let deadline = Instant::now() + HANGS;
        let outcome = loop {
            let volume = volumes.get(name).await.expect("the DataVolume");
            let copied = volume.metadata.annotations.as_ref().and_then(|all| all.get("cdi.kubevirt.io/cloneType").cloned());
            let phase = volume.data["status"]["phase"].as_str().unwrap_or_default().to_owned();
            match (phase.as_str(), copied.as_deref()) {
                ("Succeeded", Some("csi-clone")) => break Outcome::Cloned,
                (_, Some("copy")) | ("Succeeded", _) => break Outcome::Copied,
                _ if Instant::now() > deadline => break Outcome::Stuck(format!("{phase}: {}", volume.data["status"]["conditions"])),
                _ => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        };
        (told.code, told.stdout, outcome)
    }
}

#[tokio::test]
async fn what_is_admitted_is_cloned_by_storage() {
    let Some(cluster) = CLUSTER.on(Needs::RealStorage).await else { return };
    let (catalog, tenant) = (cluster.namespace("catalog").await, cluster.namespace("tenant").await);
    let golden = Golden::make(cluster, &catalog).await;
    for (name, change) in [
        ("same", (|_| {}) as fn(&mut Value)),
        ("larger", |disk| disk["spec"]["storage"]["resources"]["requests"]["storage"] = "2Gi".into()),
        ("default-class", |disk| drop(disk["spec"]["storage"].as_object_mut().expect("storage").remove("storageClassName"))),
        ("claim-shape", |disk| {
            let storage = disk["spec"].as_object_mut().expect("spec").remove("storage").expect("storage");
            disk["spec"]["pvc"] = storage;
        }),
    ] {
        let (code, told, outcome) = golden.try_out(&tenant, &golden.disk(name, change)).await;
        assert_eq!((code, &outcome), (Some(0), &Outcome::Cloned), "{name}: {told}");
    }
}

#[tokio::test]
async fn what_is_refused_would_have_been_copied_hung_or_failed() {
    let Some(cluster) = CLUSTER.on(Needs::RealStorage).await else { return };
    let (catalog, tenant) = (cluster.namespace("catalog").await, cluster.namespace("tenant").await);
    let golden = Golden::make(cluster, &catalog).await;
    for (name, rule, change) in [
        ("missing", "R13", (|disk| disk["spec"]["source"]["pvc"]["name"] = "no-such-golden".into()) as fn(&mut Value)),
        ("no-class", "R14", |disk| disk["spec"]["storage"]["storageClassName"] = "".into()),
        ("unknown-class", "R14", |disk| disk["spec"]["storage"]["storageClassName"] = "no-such-class".into()),
        ("smaller", "R16", |disk| disk["spec"]["storage"]["resources"]["requests"]["storage"] = "512Mi".into()),
        ("other-mode", "R16", |disk| disk["spec"]["storage"]["volumeMode"] = "Filesystem".into()),
        ("no-populator", "R16", |disk| disk["metadata"]["annotations"][marks::CDI_USE_POPULATOR] = "false".into()),
        ("copy", "R16", |disk| disk["metadata"]["annotations"][marks::CDI_CLONE_TYPE] = "copy".into()),
    ] {
        let (code, told, outcome) = golden.try_out(&tenant, &golden.disk(name, change)).await;
        assert_eq!(code, Some(1), "{name}: {told}");
        assert!(told.contains(rule), "{name}: {told}");
        assert_ne!(outcome, Outcome::Cloned, "{name} would have been a storage clone: the refusal is wrong");
    }
}
