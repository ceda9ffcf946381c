//! A whole catalog on one machine: a real API server, the chart installed by real helm, a real nginx as upstream, the
//! stand-in for CDI, and the real daemon as its own ServiceAccount with only the chart's rights.
//!
//! Take it in with `#[path = "stage/mod.rs"] mod stage;`, beside `harness`, `cdi` and `upstream`.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod images;

use std::{ops::Deref, path::PathBuf, time::Duration};

use golden_catalog::api::GoldenImage;
use kube::Api;
use serde_json::json;

use crate::{
    cdi::{self, CdiStandIn},
    harness::{self, Cluster, Daemon, Port, ScratchDir},
    upstream::{Authority, nginx::Nginx},
};

/// The namespace of the daemon.
pub const NAMESPACE: &str = "cozy-kubernetes-worker-image";
/// The namespace of the goldens.
pub const CATALOG: &str = "cozy-public";
/// The host under which the second daemon advertises its spool.
const SECOND_HOST: &str = "second-spool.test";
/// Two classes on one driver, the first the default.
pub const CLASSES: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: replicated
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
volumeBindingMode: Immediate
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: wffc}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
"#;

/// What is to be put on the stage.
pub struct Options {
    /// `images[]` of the chart's values, as JSON.
    pub images: serde_json::Value,
    /// Further settings of the daemon (the YAML file of `--config`).
    pub settings: serde_json::Value,
    /// Changes to the stand-in's options.
    pub cdi: fn(cdi::Options) -> cdi::Options,
    /// The classes there are.
    pub classes: &'static str,
}

impl Default for Options {
    fn default() -> Self {
        Self { images: json!([]), settings: json!({}), cdi: |options| options, classes: CLASSES }
    }
}

/// Everything but the daemon, which a test starts, stops and starts again.
pub struct Stage<'a> {
    house: House<'a>,
    pub cdi: CdiStandIn,
}

impl<'a> Deref for Stage<'a> {
    type Target = House<'a>;

    fn deref(&self) -> &House<'a> {
        &self.house
    }
}

impl<'a> Stage<'a> {
    /// Installs the chart on `cluster` and starts the stand-in.
    pub async fn set(cluster: &'a Cluster, options: Options) -> Self {
        House::set(cluster, options).await.with_cdi().await
    }

    /// The raw bytes of a golden's volume.
    pub async fn disk(&self, golden: &str) -> PathBuf {
        self.cdi.disk(CATALOG, golden).await.unwrap_or_else(|| panic!("no disk behind {golden}"))
    }
}

/// A stage without CDI.
pub struct House<'a> {
    pub cluster: &'a Cluster,
    pub dir: ScratchDir,
    pub spool: Port,
    second: Port,
    settings: serde_json::Value,
    kubeconfig: PathBuf,
    cdi: fn(cdi::Options) -> cdi::Options,
}

impl<'a> House<'a> {
    /// Installs the chart on `cluster`.
    pub async fn set(cluster: &'a Cluster, options: Options) -> Self {
        let dir = harness::scratch_dir_on_disk("stage");
        let (spool, second) = (Port::reserve(), Port::reserve());
        cluster.apply(options.classes).await;
        cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {CATALOG}}}}}")).await;
        let values = dir.join("values.yaml");
        std::fs::write(&values, values_of(&options.images)).expect("values");
        install(cluster, &values).await;
        let kubeconfig = cluster.kubeconfig_as_service_account(NAMESPACE, "golden-catalog-controller").await;
        Self { cluster, dir, spool, second, settings: options.settings, kubeconfig, cdi: options.cdi }
    }

    /// Starts the stand-in for CDI, whose kinds the cluster must have by now.
    pub async fn with_cdi(self) -> Stage<'a> {
        let host = format!("golden-catalog-spool.{NAMESPACE}.svc");
        let at = format!("127.0.0.1:{}", self.spool.number()).parse().expect("address");
        let beside = format!("127.0.0.1:{}", self.second.number()).parse().expect("address");
        let options = (self.cdi)(cdi::Options::new(self.dir.join("volumes")).dial(host, at).dial(SECOND_HOST, beside));
        let cdi = CdiStandIn::start_apart(self.cluster.admin_kubeconfig(), options).await;
        Stage { house: self, cdi }
    }

    /// Starts a daemon with a spool of its own name below the stage's directory, where importers find it.
    pub fn daemon(&self, name: &str) -> Daemon {
        self.start(name, &self.spool.address(), &[])
    }

    /// Starts a second daemon beside a running one. Both cannot listen on one port of loopback, so this one advertises an
    /// address of its own; in a cluster the Service would lead to whichever leads.
    pub fn follower(&self, name: &str) -> Daemon {
        self.start(name, &self.second.address(), &[format!("--spool-url=https://{SECOND_HOST}:8443")])
    }

    fn start(&self, name: &str, spool: &str, more: &[String]) -> Daemon {
        let (health, metrics) = (Port::reserve(), Port::reserve());
        let mut settings = json!({
            "lease": { "duration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms" },
            "backoffMin": "1s", "backoffMax": "5s", "notFoundInterval": "5s",
            "spoolSize": "20Gi",
        });
        merge(&mut settings, &self.settings);
        let file = self.dir.join(format!("{name}.yaml"));
        std::fs::write(&file, settings.to_string()).expect("settings");
        let arguments = [
            "run".to_owned(),
            format!("--namespace={NAMESPACE}"),
            format!("--catalog-namespace={CATALOG}"),
            format!("--identity={name}"),
            format!("--spool-dir={}", self.dir.join(format!("spool-{name}")).display()),
            format!("--spool-listen={spool}"),
            format!("--health-listen={}", health.address()),
            format!("--metrics-listen={}", metrics.address()),
            format!("--config={}", file.display()),
            "--egress-allow-loopback".to_owned(),
            "--log-format=text".to_owned(),
            "--log=info,golden_catalog=debug".to_owned(),
        ];
        Daemon::builder(name).args(arguments).args(more).kubeconfig(&self.kubeconfig).health(health.address()).start()
    }

    /// Sets the list as a hoster does: by an upgrade of the release.
    pub async fn list(&self, images: serde_json::Value) {
        let values = self.dir.join("values.yaml");
        std::fs::write(&values, values_of(&images)).expect("values");
        install(self.cluster, &values).await;
    }

    /// The GoldenImages, with all rights.
    pub fn images(&self) -> Api<GoldenImage> {
        Api::all(self.cluster.admin())
    }

    /// Waits for an image to be in a state.
    pub async fn until(&self, name: &str, kind: &str, status: &str) -> harness::Condition {
        harness::until_condition(self.images(), name, kind, status).await
    }

    /// Waits until `Ready` has this reason.
    pub async fn until_reason(&self, name: &str, reason: &str) -> GoldenImage {
        harness::until(self.images(), name, &format!("Ready has the reason {reason}"), |image: &GoldenImage| {
            harness::condition(image, "Ready").is_some_and(|condition| condition.reason == reason)
        })
        .await
    }
}

/// The values of a list. The daemon is what is tested here, so the chart lets it judge the entries.
fn values_of(images: &serde_json::Value) -> String {
    json!({ "images": images, "strictEntries": false }).to_string()
}

async fn install(cluster: &Cluster, values: &std::path::Path) {
    let chart = harness::repository().join("helm/kubernetes-worker-image");
    let (chart, values) = (chart.display().to_string(), values.display().to_string());
    let arguments =
        ["upgrade", "--install", "kubernetes-worker-image", &chart, "--namespace", NAMESPACE, "--create-namespace", "--values", &values];
    cluster.helm(arguments).await.ok();
}

fn merge(into: &mut serde_json::Value, from: &serde_json::Value) {
    match (into, from) {
        (serde_json::Value::Object(into), serde_json::Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(serde_json::Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// A real nginx that serves plain HTTP and, with its own CA, HTTPS.
pub fn upstream() -> (Nginx, Authority) {
    let authority = Authority::new();
    let nginx = Nginx::start(&authority, &["localhost", "127.0.0.1"], "");
    (nginx, authority)
}

/// How long a test may wait for what takes a real import.
pub const PATIENCE: Duration = Duration::from_secs(120);
