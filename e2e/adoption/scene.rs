//! The stage of this binary, and what its chapters ask of it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures::TryStreamExt as _;
use golden_catalog::api::GoldenImage;
use kube::{
    Api, ResourceExt as _,
    api::DynamicObject,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};

use crate::{
    harness::{self, ScratchDir},
    stage::{CATALOG, Stage},
    upstream::nginx::Nginx,
};

pub struct Scene<'a> {
    pub stage: Stage<'a>,
    pub nginx: Nginx,
    pub dir: ScratchDir,
}

/// The goldens' objects, `kind/name` to UID.
pub type Goldens = BTreeMap<String, String>;

impl<'a> Scene<'a> {
    pub fn new(stage: Stage<'a>, nginx: Nginx) -> Self {
        Self { stage, nginx, dir: harness::scratch_dir_on_disk("adoption") }
    }

    /// What `plan --against-cluster` reports of a list that it refuses in part.
    pub async fn planned(&self, file: &str, images: &Value) -> Value {
        let file = self.dir.join(format!("{file}.yaml"));
        std::fs::write(&file, json!({ "images": images }).to_string()).expect("values");
        let file = file.display().to_string();
        let arguments = ["plan", "--file", &file, "--offline", "--against-cluster", "--output", "json"];
        let output = harness::cli(Some(self.stage.cluster.admin_kubeconfig()), arguments).await;
        assert_eq!(output.code, Some(1), "{}", output.stderr);
        serde_json::from_str(&output.stdout).expect("JSON")
    }

    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.nginx.http)
    }

    pub async fn volumes(&self) -> Api<DynamicObject> {
        self.stage.cluster.api(&self.stage.cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await
    }

    pub async fn claims(&self) -> Api<DynamicObject> {
        self.stage.cluster.api(&self.stage.cluster.admin(), "v1", "PersistentVolumeClaim", CATALOG).await
    }

    /// The goldens' DataVolumes and PVCs that are not going.
    pub async fn goldens(&self) -> Goldens {
        let mut all = Goldens::new();
        for (kind, api) in [("dv", self.volumes().await), ("pvc", self.claims().await)] {
            for object in api.list(&Default::default()).await.expect("list").items {
                let is_golden = ["talos-worker-", "vm-default-images-"].iter().any(|prefix| object.name_any().starts_with(prefix));
                if is_golden && object.metadata.deletion_timestamp.is_none() {
                    all.insert(format!("{kind}/{}", object.name_any()), object.uid().expect("UID"));
                }
            }
        }
        all
    }

    /// Sets the list as a hoster does.
    pub async fn list(&self, images: Value) {
        self.stage.list(images).await;
    }

    /// How often upstream was asked for any of these.
    pub fn upstream_requests(&self, targets: &[&str]) -> usize {
        targets.iter().map(|target| self.nginx.log(target, 0).len()).sum()
    }

    /// Follows what `Ready` says from now on.
    pub fn watch_ready(&self) -> Seen {
        let seen = Seen(Arc::default());
        let told = Arc::clone(&seen.0);
        let api: Api<GoldenImage> = self.stage.images();
        tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff().applied_objects());
            loop {
                let image = match events.try_next().await {
                    Ok(Some(image)) => image,
                    Ok(None) => return,
                    // The kind is gone for a while; the watcher begins anew.
                    Err(_) => continue,
                };
                let ready = harness::condition(&image, "Ready");
                if let Some(ready) = ready.filter(|ready| ready.status == "False") {
                    told.lock().expect("lock").push((image.name_any(), format!("{}: {}", ready.reason, ready.message)));
                }
            }
        });
        seen
    }
}

/// What `Ready=False` was seen, of which image.
pub struct Seen(Arc<Mutex<Vec<(String, String)>>>);

impl Seen {
    pub fn not_ready(&self, names: &[&str]) -> Vec<String> {
        let seen = self.0.lock().expect("lock");
        seen.iter().filter(|(name, _)| names.contains(&name.as_str())).map(|(name, why)| format!("{name}: {why}")).collect()
    }
}
