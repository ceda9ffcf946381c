//! One test's corner of the shared cluster: a namespace, the shared stand-in, and words for DataVolumes.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::{
    CLUSTER,
    cdi::{
        self, CdiStandIn, Options,
        types::{DataVolume, DataVolumeStatus},
    },
    harness::{self, Cluster, Needs, TestNamespace},
    upstream::{Answer, DISK, HOST, TOKEN, UPSTREAM},
};

static CDI: cdi::Shared = cdi::Shared::new();
static VOLUMES: LazyLock<harness::ScratchDir> = LazyLock::new(|| harness::scratch_dir("cdi"));

/// Classes of the shared cluster: two drivers, as in the measured one.
pub const CLASSES: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: replicated, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}
provisioner: one.csi.example
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: one.csi.example
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fixed}
provisioner: one.csi.example
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: wffc}
provisioner: one.csi.example
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: other}
provisioner: two.csi.example
allowVolumeExpansion: true
";

/// A test's corner.
pub struct Room {
    pub cluster: &'static Cluster,
    pub namespace: TestNamespace,
    pub client: Client,
    pub cdi: &'static CdiStandIn,
}

/// A corner of the shared cluster, or `None` where the stand-in cannot be used.
pub async fn room() -> Option<Room> {
    let cluster = CLUSTER.on(Needs::Scripted).await?;
    let cdi = CDI.on(cluster.admin_kubeconfig(), || Options::new(VOLUMES.path()).dial(HOST, UPSTREAM.address)).await;
    cluster.apply(CLASSES).await;
    let namespace = cluster.namespace("cdi").await;
    Some(Room { client: cluster.admin(), cluster, namespace, cdi })
}

impl Room {
    pub fn ns(&self) -> &str {
        &self.namespace
    }

    pub fn dvs(&self) -> Api<DataVolume> {
        Api::namespaced(self.client.clone(), self.ns())
    }

    pub fn pvcs(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), self.ns())
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.ns())
    }

    pub async fn volume_of(&self, claim: &str) -> PersistentVolume {
        let claim = self.pvcs().get(claim).await.unwrap();
        let name = claim.spec.unwrap().volume_name.expect("the claim is bound");
        Api::all(self.client.clone()).get(&name).await.unwrap()
    }

    /// Reasons of the events about an object of this name.
    pub async fn events_about(&self, name: &str) -> Vec<String> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), self.ns());
        let list = api.list(&ListParams::default().fields(&format!("involvedObject.name={name}"))).await.unwrap();
        list.items.into_iter().filter_map(|event| event.reason).collect()
    }

    /// Applies objects in the test's namespace, with strict field validation.
    pub async fn apply(&self, object: &Value) {
        self.cluster.apply_in(self.ns(), &object.to_string()).await;
    }

    /// The CA and the header Secret of the upstream, under `access`.
    pub async fn access(&self) {
        self.apply(
            &json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "access" }, "data": { "ca.crt": UPSTREAM.ca } }),
        )
        .await;
        let header = format!("Authorization: {TOKEN}");
        self.apply(&json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "access" }, "stringData": { "header": header } }))
            .await;
    }

    /// A DataVolume that imports `url` into 16 MiB of Block on `replicated`.
    pub fn import(&self, name: &str, url: &str) -> Value {
        json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": name, "annotations": {}, "labels": {} },
            "spec": {
                "source": { "http": { "url": url, "certConfigMap": "access", "secretExtraHeaders": ["access"] } },
                "storage": {
                    "storageClassName": "replicated", "accessModes": ["ReadWriteMany"], "volumeMode": "Block",
                    "resources": { "requests": { "storage": "16Mi" } },
                },
            },
        })
    }

    /// A DataVolume that clones a claim of this namespace into 16 MiB of Block on `replicated`.
    pub fn clone_of(&self, name: &str, source: &str) -> Value {
        let mut dv = self.import(name, "");
        dv["spec"]["source"] = json!({ "pvc": { "namespace": self.ns(), "name": source } });
        dv
    }

    /// Imports the usual disk as `name` and waits until it is there.
    pub async fn golden(&self, name: &str) {
        self.golden_with(name, |_| {}).await;
    }

    /// Like [`Room::golden`], with changes to the DataVolume.
    pub async fn golden_with(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.access().await;
        let url = UPSTREAM.put(&format!("/{}/{name}", self.ns()), Answer::File(DISK.qcow2.clone()));
        let mut dv = self.import(name, &url);
        change(&mut dv);
        self.apply(&dv).await;
        self.until_succeeded(name).await;
    }

    /// Waits until a DataVolume's status holds.
    pub async fn until(&self, name: &str, what: &str, mut holds: impl FnMut(&DataVolumeStatus) -> bool) -> DataVolumeStatus {
        let dv = harness::until(self.dvs(), name, what, |dv: &DataVolume| dv.status.as_ref().is_some_and(&mut holds)).await;
        dv.status.unwrap()
    }

    /// Waits until a DataVolume is Succeeded and its claim bound.
    pub async fn until_succeeded(&self, name: &str) -> DataVolumeStatus {
        self.until(name, "Succeeded and Bound", |status| status.phase == "Succeeded" && of(status, "Bound").0 == "True").await
    }

    /// The bytes of a bound claim's disk.
    pub async fn disk(&self, claim: &str) -> Vec<u8> {
        self.disk_in(self.ns(), claim).await
    }

    pub async fn disk_in(&self, namespace: &str, claim: &str) -> Vec<u8> {
        let path = self.cdi.disk(namespace, claim).await.expect("the claim is bound");
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Whether a claim's disk starts with the usual disk and is zero from there.
    pub async fn has_disk(&self, claim: &str) -> bool {
        let bytes = self.disk(claim).await;
        bytes.len() >= DISK.raw.len() && bytes[..DISK.raw.len()] == DISK.raw && bytes[DISK.raw.len()..].iter().all(|byte| *byte == 0)
    }

    /// Names of the claims in the namespace.
    pub async fn claim_names(&self) -> Vec<String> {
        self.pvcs().list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect()
    }
}

/// Status, reason and message of a condition; empty where it is not there.
pub fn of(status: &DataVolumeStatus, type_: &str) -> (String, String, String) {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_);
    found.map(|found| (found.status.clone(), found.reason.clone(), found.message.clone())).unwrap_or_default()
}
