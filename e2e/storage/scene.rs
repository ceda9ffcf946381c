//! What every chapter uses.

use std::path::PathBuf;

use golden_catalog::api::{GoldenImage, TargetStatus};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    cdi,
    harness::{self, Cluster, Condition, Daemon, ScratchDir},
    stage::{self, CATALOG, Options, Stage, images},
    upstream::nginx::Nginx,
};

/// The annotation that starts over.
pub const RETRY: &str = "kubernetes-worker-image.cozystack.io/retry";

/// Two classes on one driver, one of them tied to nodes; one of Filesystem volumes; one on another driver, without expansion.
const CLASSES: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: replicated
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: linstor.csi.linbit.com
parameters: {linstor.csi.linbit.com/allowRemoteVolumeAccess: "false"}
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: files}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: other}
provisioner: other.example
"#;

/// Ends a daemon so that its Lease is free at once.
pub async fn end(daemon: Daemon) {
    daemon.terminate(harness::PATIENCE).await.expect("it ends when asked to");
}

/// Settings of a daemon that gives an import up soon, for chapters in which none may end well: `attempts` of them are made.
pub fn hurried(attempts: u32) -> Value {
    json!({ "importDeadline": "5s", "importAttempts": attempts })
}

/// The stage, an upstream, and disks.
pub struct Scene<'a> {
    pub stage: Stage<'a>,
    pub nginx: Nginx,
    dir: ScratchDir,
}

impl<'a> Scene<'a> {
    /// Sets it. What is told of an import is told soon; an attempt may take as long as a busy machine needs (see [`hurried`]).
    pub async fn set(cluster: &'a Cluster) -> Self {
        let (nginx, _) = stage::upstream();
        let options = Options {
            settings: json!({
                "maxConcurrentImports": 12, "importQuiet": "2s", "importDeadline": "2m", "importAttempts": 20, "retireWait": "2s",
            }),
            classes: CLASSES,
            cdi: |mut options: cdi::Options| {
                let files =
                    cdi::types::ClaimPropertySet { access_modes: vec!["ReadWriteOnce".into()], volume_mode: Some("Filesystem".into()) };
                options.profile_overrides.insert("files".into(), vec![files]);
                options
            },
            ..Options::default()
        };
        Self { stage: Stage::set(cluster, options).await, nginx, dir: harness::scratch_dir_on_disk("storage") }
    }

    /// Puts a qcow2 of its own content at `name` and gives the raw disk.
    pub fn disk(&self, name: &str, seed: u64) -> PathBuf {
        let raw = images::raw_disk(self.dir.path(), name, 48 << 20, 4, seed);
        self.nginx.put(name, &std::fs::read(images::qcow2(&raw)).expect("qcow2"));
        raw
    }

    /// Puts a qcow2 of a disk that is as large as this, and nearly empty, at `name`.
    pub fn large_disk(&self, name: &str, size: u64, seed: u64) {
        let raw = images::raw_disk(self.dir.path(), name, size, 1, seed);
        self.nginx.put(name, &std::fs::read(images::qcow2(&raw)).expect("qcow2"));
    }

    /// How often bytes of `name` were asked for.
    pub fn fetches(&self, name: &str) -> usize {
        self.nginx.log(&format!("/{name}"), 0).iter().filter(|line| line.method == "GET").count()
    }

    /// Makes an image of what lies at its name, with these targets.
    pub async fn image(&self, name: &str, targets: Value) {
        self.create(name, json!({ "targets": targets })).await.expect("created");
    }

    /// Makes an image with this `storage`, or none where it is null.
    pub async fn create(&self, name: &str, storage: Value) -> Result<GoldenImage, kube::Error> {
        let spec = json!({ "source": { "http": { "url": format!("http://{}/{name}", self.nginx.http) } }, "storage": storage });
        let object = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name }, "spec": spec });
        let object: GoldenImage = serde_json::from_value(object).expect("object");
        self.stage.images().create(&PostParams::default(), &object).await
    }

    /// Writes other targets into an image's spec.
    pub async fn retarget(&self, name: &str, targets: Value) -> Result<GoldenImage, kube::Error> {
        let patch = json!({ "spec": { "storage": { "targets": targets } } });
        self.stage.images().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await
    }

    /// Writes other targets, and waits until the daemon saw them: before that, the status speaks of the former ones.
    pub async fn retarget_and_see(&self, name: &str, targets: Value) {
        let generation = self.retarget(name, targets).await.expect("other targets").metadata.generation;
        harness::until(self.stage.images(), name, "the daemon saw the other targets", |image: &GoldenImage| {
            image.status.as_ref().is_some_and(|status| status.observed_generation >= generation)
        })
        .await;
    }

    /// The status of one target.
    pub async fn target(&self, name: &str, index: usize) -> TargetStatus {
        let image = self.stage.images().get(name).await.expect("image");
        image.status.expect("status").targets.get(index).cloned().expect("target")
    }

    /// A condition of one target.
    pub async fn target_condition(&self, name: &str, index: usize, kind: &str) -> Option<(String, String)> {
        let target = self.target(name, index).await;
        target.conditions.iter().find(|condition| condition.type_ == kind).map(|found| (found.status.clone(), found.reason.clone()))
    }

    /// The condition `Ready` of an image when it has this reason.
    pub async fn until_reason(&self, name: &str, reason: &str) -> Condition {
        let image = self.stage.until_reason(name, reason).await;
        harness::condition(&image, "Ready").expect("Ready")
    }

    /// Objects of the catalog namespace, with all rights.
    pub async fn catalog(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        self.stage.cluster.api(&self.stage.cluster.admin(), version, kind, CATALOG).await
    }

    pub async fn volumes(&self) -> Api<DynamicObject> {
        self.catalog("cdi.kubevirt.io/v1beta1", "DataVolume").await
    }

    pub async fn claims(&self) -> Api<DynamicObject> {
        self.catalog("v1", "PersistentVolumeClaim").await
    }

    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.stage.cluster.admin(), CATALOG)
    }

    pub async fn delete_image(&self, name: &str) {
        self.stage.images().delete(name, &DeleteParams::default()).await.expect("deleted");
        harness::until_gone(self.stage.images(), name).await;
    }

    pub async fn retry(&self, name: &str, value: &str) {
        let retry = json!({ "metadata": { "annotations": { RETRY: value } } });
        self.stage.images().patch(name, &PatchParams::default(), &Patch::Merge(&retry)).await.expect("annotated");
    }
}
