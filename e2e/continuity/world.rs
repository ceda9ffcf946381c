//! What every test of this binary uses: the one stage, an upstream, images, and what is to be seen of them in the end.

use super::{
    cdi, harness,
    harness::{Cluster, Daemon, Mark, Needs, Request, ScratchDir, condition, until},
    stage::{CATALOG, Launch, NAMESPACE, Options, Stage, images},
    upstream::nginx::Nginx,
};
use golden_catalog::api::GoldenImage;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

static CLUSTER: harness::Shared =
    harness::Shared::new(|| harness::Options::default().controller_manager().foreign_crds(harness::Flavor::Trimmed));
static STAGE: OnceCell<Stage<'static>> = OnceCell::const_new();
static TURN: Mutex<()> = Mutex::const_new(());

const MIB: u64 = 1 << 20;
/// An importer that hears nothing gives an attempt up after this long, here.
pub const STALL: Duration = Duration::from_secs(2);

/// One test's view of the stage.
pub struct World {
    pub stage: &'static Stage<'static>,
    pub cluster: &'static Cluster,
    pub nginx: Nginx,
    dir: ScratchDir,
    _turn: MutexGuard<'static, ()>,
}

/// The daemon's parts that a killed process leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Whether every byte of the artifact had arrived and was on disk, with its length and digest written down.
    pub complete: bool,
    /// Bytes that upstream had sent.
    pub sent: u64,
}

impl World {
    /// Waits for the turn; `None` where the stand-in cannot be used.
    #[track_caller]
    pub fn enter(directives: &'static str) -> impl Future<Output = Option<Self>> {
        let cluster = CLUSTER.on(Needs::Scripted);
        async move {
            let cluster = cluster.await?;
            let turn = TURN.lock().await;
            let cdi = |options: cdi::Options| cdi::Options { stall_timeout: STALL, ..options };
            let stage = STAGE.get_or_init(|| Stage::set(cluster, Options { cdi, ..Options::default() })).await;
            let authority = super::upstream::Authority::new();
            let nginx = Nginx::start(&authority, &["localhost", "127.0.0.1"], directives);
            let world = Self { stage, cluster, nginx, dir: harness::scratch_dir_on_disk("continuity"), _turn: turn };
            world.release_lease().await;
            world.clear_unfinished().await;
            Some(world)
        }
    }

    /// Puts a qcow2 of its own content at `name` and gives the raw disk.
    pub fn disk(&self, name: &str, seed: u64) -> PathBuf {
        let raw = images::raw_disk(self.dir.path(), name, 24 * MIB, 3, seed);
        self.nginx.put(name, &std::fs::read(images::qcow2(&raw)).expect("qcow2"));
        raw
    }

    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.nginx.http)
    }

    /// Bytes of `name` that upstream sent so far, and how many GETs that were.
    pub fn sent(&self, name: &str) -> (u64, usize) {
        let lines = self.nginx.log(&format!("/{name}"), 0);
        let gets: Vec<_> = lines.iter().filter(|line| line.method == "GET").collect();
        (gets.iter().map(|line| line.sent).sum(), gets.len())
    }

    /// The size of the file at `name`.
    pub fn size(&self, name: &str) -> u64 {
        std::fs::metadata(self.nginx.files().join(name)).expect("file").len()
    }

    /// Waits until an import has begun. One that stands still is given up by the stand-in every [`STALL`], and that is told until it
    /// gets further: whoever looks late sees no `Importing`.
    pub async fn until_begun(&self, name: &str) {
        until(self.stage.images(), name, "its import has begun", |image: &GoldenImage| {
            condition(image, "Ready").is_some_and(|ready| ["Importing", "ImportFailed"].contains(&ready.reason.as_str()))
        })
        .await;
    }

    /// Makes a GoldenImage of the file at its name.
    pub async fn image(&self, name: &str, class: &str) {
        self.create(name, json!([{ "storageClassName": class }])).await;
    }

    /// Makes a GoldenImage of the file at its name, with these targets.
    pub async fn create(&self, name: &str, targets: Value) {
        let spec = json!({ "source": { "http": { "url": self.url(name) } }, "storage": { "targets": targets } });
        let object = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name }, "spec": spec });
        let object: GoldenImage = serde_json::from_value(object).expect("object");
        self.stage.images().create(&PostParams::default(), &object).await.expect("created");
    }

    /// Sets the list in values as the chart would render it.
    pub async fn list(&self, images: Value) {
        let text = json!({ "images": images }).to_string();
        let maps: Api<ConfigMap> = Api::namespaced(self.cluster.admin(), NAMESPACE);
        let patch = json!({ "data": { "images.yaml": text } });
        maps.patch("golden-catalog-images", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("the list is set");
    }

    /// The list in values as it is.
    pub async fn listed(&self) -> Vec<Value> {
        let map = self.maps(NAMESPACE).get("golden-catalog-images").await.expect("the list");
        let text = map.data.unwrap_or_default().remove("images.yaml").unwrap_or_default();
        let list: Value = serde_saphyr::from_str(&text).expect("YAML");
        list["images"].as_array().cloned().unwrap_or_default()
    }

    /// Gives the Lease up for a daemon that was killed, so that a round need not wait until it has run out.
    pub async fn release_lease(&self) {
        self.stage.release_lease().await;
    }

    /// Who leads, by the Lease.
    pub async fn holder(&self) -> String {
        let leases: Api<Lease> = Api::namespaced(self.cluster.admin(), CATALOG);
        leases.get_opt("golden-catalog").await.ok().flatten().and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
    }

    /// Waits until the daemon of this name leads.
    pub async fn leads(&self, name: &str) {
        harness::eventually(&format!("{name} leads"), async || {
            let holder = self.holder().await;
            if holder.starts_with(&format!("{name}_")) { Ok(()) } else { Err(format!("the Lease is held by {holder:?}")) }
        })
        .await;
    }

    /// Starts a daemon of this name and waits until it leads.
    pub async fn leader(&self, name: &str, launch: Launch) -> Daemon {
        let daemon = self.stage.launch(name, launch);
        self.leads(name).await;
        daemon
    }

    /// Kills it, and gives its Lease up.
    pub async fn kill(&self, daemon: Daemon) {
        self.stage.kill(daemon).await;
    }

    /// What a killed daemon left of the artifact at `name`.
    pub fn left(&self, daemon: &str, name: &str) -> Left {
        let spool = self.stage.spool_of(daemon);
        let files = |folder: &str| {
            let entries = std::fs::read_dir(spool.join(folder)).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let recorded = files("records").iter().any(|path| path.extension().is_some_and(|end| end == "json") && names(path, name));
        let downloaded = files("partial").iter().any(|path| {
            let about = std::fs::read_to_string(path.join("about.json")).unwrap_or_default();
            about.contains(&format!("/{name}\"")) && serde_json::from_str::<Value>(&about).is_ok_and(|about| about["complete"].is_string())
        });
        Left { complete: recorded || downloaded, sent: self.sent(name).0 }
    }

    /// What lies in the spool of this daemon beside disks and records: after work is done, nothing may.
    pub fn unfinished(&self, daemon: &str) -> Vec<PathBuf> {
        let spool = self.stage.spool_of(daemon);
        let folders = ["partial", "work"].map(|folder| std::fs::read_dir(spool.join(folder)).into_iter().flatten().flatten());
        let mut left: Vec<_> = folders.into_iter().flatten().map(|entry| entry.path()).collect();
        let records = std::fs::read_dir(spool.join("records")).into_iter().flatten().flatten().map(|entry| entry.path());
        left.extend(records.filter(|path| path.extension().is_none_or(|end| end != "json")));
        left
    }

    pub async fn volumes(&self) -> Api<DynamicObject> {
        self.cluster.api(&self.cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await
    }

    pub async fn claims(&self) -> Api<DynamicObject> {
        self.cluster.api(&self.cluster.admin(), "v1", "PersistentVolumeClaim", CATALOG).await
    }

    pub fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.cluster.admin(), namespace)
    }

    pub fn maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.cluster.admin(), namespace)
    }

    /// The daemons' requests for a change since the mark that were carried out, but those of Leases and Events.
    pub async fn writes_since(&self, mark: Mark) -> Vec<Request> {
        let mut requests = self.cluster.requests_since(mark).await;
        requests.retain(|request| {
            request.is_write()
                && request.is_by(NAMESPACE, "golden-catalog-controller")
                && request.code < 300
                && !matches!(request.resource.as_str(), "leases" | "events")
        });
        requests
    }

    /// The bytes a clone of the golden would get are the source's.
    pub async fn same_content(&self, image: &str, raw: &Path) {
        images::same_content(&self.stage.disk(&golden(image)).await, "raw", raw, "raw");
    }

    /// Deletes what a test that failed left unfinished, so that no other fails for it.
    async fn clear_unfinished(&self) {
        // A kind that was just installed is answered with 429 for a moment.
        let list = async || self.stage.images().list(&Default::default()).await.map_err(|error| error.to_string());
        let all = harness::eventually("the images are listed", list).await.items;
        for image in all.iter().filter(|image| harness::condition(*image, "Ready").is_none_or(|ready| ready.status != "True")) {
            self.clear_away(&image.name_any()).await;
        }
    }

    /// Deletes an image and its golden, whatever their state: for what must not stay behind.
    pub async fn clear_away(&self, image: &str) {
        let _ = self.stage.images().delete(image, &DeleteParams::default()).await;
        let _ = self.volumes().await.delete(&golden(image), &DeleteParams::default()).await;
    }

    /// Everything about an image and its golden that may not depend on what happened on the way, as text.
    pub async fn end_state(&self, image: &str) -> Result<String, String> {
        let golden = golden(image);
        let object = self.stage.images().get(image).await.map_err(|error| error.to_string())?;
        let volume = self.volumes().await.get(&golden).await.map_err(|error| error.to_string())?;
        let claim = self.claims().await.get(&golden).await.map_err(|error| error.to_string())?;
        let ours = |object: &DynamicObject| {
            let is_ours = |key: &str| key.contains("cozystack.io/");
            let labels: Vec<_> = object.labels().iter().filter(|(key, _)| is_ours(key)).collect();
            let annotations: Vec<_> = object.annotations().iter().filter(|(key, _)| is_ours(key)).collect();
            json!({ "labels": labels, "annotations": annotations })
        };
        let secret = self.secrets(CATALOG).get_opt(&golden).await.map_err(|error| error.to_string())?;
        let authority = self.maps(CATALOG).get_opt("golden-catalog-spool-ca").await.map_err(|error| error.to_string())?;
        let mut spec = volume.data["spec"].clone();
        // Its path is a function of the image's UID.
        let url = spec["source"]["http"]["url"].as_str().unwrap_or_default().to_owned();
        spec["source"]["http"]["url"] = url.rsplit_once('/').map(|(host, _)| host.to_owned()).unwrap_or_default().into();
        // A digest of the entry, and so of its name.
        let annotations: Vec<_> = object.annotations().iter().filter(|(key, _)| !key.ends_with("/listed-as")).collect();
        let state = json!({
            "metadata": { "annotations": annotations, "labels": object.labels(), "finalizers": object.finalizers() },
            "spec": object.spec, "status": object.status, "volume": ours(&volume), "claim": ours(&claim), "volumeSpec": spec,
            "headers": secret.is_some(), "authority": authority.is_some(),
        });
        let status = serde_json::to_value(&object.status).expect("JSON");
        Ok(comparable(image, &status, state))
    }

    /// Waits until an image has come to this end state.
    pub async fn ends_as(&self, image: &str, expected: &str) {
        harness::eventually(&format!("{image} ends as any other"), async || {
            let state = self.end_state(image).await?;
            if state == expected { Ok(()) } else { Err(difference(expected, &state)) }
        })
        .await;
    }
}

/// The golden of an image made by [`World::image`].
pub fn golden(image: &str) -> String {
    format!("vm-default-images-{image}")
}

fn names(record: &Path, name: &str) -> bool {
    std::fs::read_to_string(record).unwrap_or_default().contains(&format!("/{name}\""))
}

fn no_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if key.ends_with("Time") || matches!(key.as_str(), "time" | "unusedSince") {
                    *value = "TIME".into();
                } else {
                    no_times(value);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(no_times),
        _ => {}
    }
}

/// A state as text, in which what belongs to one image alone has the same words for all.
pub fn comparable(image: &str, status: &Value, mut state: Value) -> String {
    no_times(&mut state);
    let mut text = serde_json::to_string_pretty(&state).expect("JSON");
    let own = ["/identity", "/artifact/digest", "/disk/digest", "/artifact/etag", "/targets/0/claimUID"];
    for (pointer, word) in own.iter().zip(["IDENTITY", "ARTIFACT", "DISK", "ETAG", "CLAIM"]) {
        if let Some(value) = status.pointer(pointer).and_then(Value::as_str) {
            text = text.replace(&serde_json::to_string(value).expect("JSON"), &format!("\"{word}\"")).replace(value, word);
        }
    }
    text.replace(image, "NAME")
}

/// The lines that only one of two texts has.
pub fn difference(expected: &str, actual: &str) -> String {
    let (expected, actual): (Vec<_>, Vec<_>) = (expected.lines().collect(), actual.lines().collect());
    let missing = expected.iter().filter(|line| !actual.contains(line)).map(|line| format!("- {line}"));
    let extra = actual.iter().filter(|line| !expected.contains(line)).map(|line| format!("+ {line}"));
    let lines: Vec<_> = missing.chain(extra).collect();
    format!("\n{}", lines.join("\n"))
}

/// Chance that can be had again.
pub struct Dice(u64);

impl Dice {
    /// From `E2E_SEED`, or new; printed for what it is used.
    pub fn new(what: &str) -> Self {
        let given = std::env::var("E2E_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from_str_radix(&harness::unique(), 16).expect("hex"));
        harness::tell(&format!("{what}: E2E_SEED={seed}"));
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub fn roll(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// How many rounds of a repeated test: `E2E_ROUNDS`, else a sample.
pub fn rounds(sample: usize) -> usize {
    std::env::var("E2E_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(sample)
}
