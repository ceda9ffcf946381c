//! A whole catalog on one machine: a real API server, the chart installed by real helm, a real nginx as upstream, the
//! stand-in for CDI, and the real daemon as its own ServiceAccount with only the chart's rights.
//!
//! Take it in with `#[path = "stage/mod.rs"] mod stage;`, beside `harness`, `cdi` and `upstream`.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod images;

use std::{
    ops::Deref,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use golden_catalog::api::GoldenImage;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
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
    /// Whether clones are judged: the chart's webhooks are there, and [`Stage::admission`] answers them.
    pub admission: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { images: json!([]), settings: json!({}), cdi: |options| options, classes: CLASSES, admission: false }
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
    webhook: Port,
    admission: AtomicBool,
    settings: serde_json::Value,
    /// The daemon's identity, with the chart's rights and no more.
    pub kubeconfig: PathBuf,
    /// Where the daemon that was started last serves its metrics.
    metrics: Mutex<String>,
    /// The namespaces of the releases, whose Secrets and lists are for their daemons.
    namespaces: Mutex<Vec<String>>,
    cdi: fn(cdi::Options) -> cdi::Options,
}

/// How one daemon is started where it matters; what is left out is as in [`Stage::daemon`].
#[derive(Debug, Clone, Default)]
pub struct Launch {
    /// How it reaches the API server.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of its release, where that is another one.
    pub namespace: Option<String>,
    /// Where its spool listens.
    pub listen: Option<String>,
    /// Where it serves its metrics.
    pub scraped: Option<String>,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// Further environment variables.
    pub environment: Vec<(String, String)>,
    /// A program that runs it, with its arguments.
    pub under: Option<(String, Vec<String>)>,
    /// Settings over the stage's.
    pub settings: serde_json::Value,
}

impl<'a> House<'a> {
    /// Installs the chart on `cluster`.
    pub async fn set(cluster: &'a Cluster, options: Options) -> Self {
        let dir = harness::scratch_dir_on_disk("stage");
        let (spool, second, webhook) = (Port::reserve(), Port::reserve(), Port::reserve());
        cluster.apply(options.classes).await;
        cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {CATALOG}}}}}")).await;
        let values = dir.join("values.yaml");
        std::fs::write(&values, self::values(options.images, options.admission, &webhook).to_string()).expect("values");
        install(cluster, &values).await;
        let kubeconfig = cluster.kubeconfig_as_service_account(NAMESPACE, "golden-catalog-controller").await;
        let (admission, settings, cdi) = (AtomicBool::new(options.admission), options.settings, options.cdi);
        let namespaces = Mutex::new(vec![NAMESPACE.to_owned()]);
        Self { cluster, dir, spool, second, webhook, admission, settings, kubeconfig, metrics: Mutex::default(), namespaces, cdi }
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
        self.launch(name, Launch::default())
    }

    /// Starts the admission role, as its own ServiceAccount, where the API server's webhooks find it.
    pub async fn admission(&self, name: &str) -> Daemon {
        let metrics = Port::reserve();
        let (scraped, ports) = (metrics.address(), vec![metrics]);
        self.admission_with(name, &scraped, ports).await
    }

    /// Like [`Stage::admission`], with metrics at an address of the test's.
    pub async fn admission_scraped(&self, name: &str, scraped: &str) -> Daemon {
        self.admission_with(name, scraped, Vec::new()).await
    }

    async fn admission_with(&self, name: &str, scraped: &str, ports: Vec<Port>) -> Daemon {
        let kubeconfig = self.cluster.kubeconfig_as_service_account(NAMESPACE, "golden-catalog-admission").await;
        let health = Port::reserve();
        let arguments = [
            "run".to_owned(),
            "--role=admission".to_owned(),
            format!("--namespace={NAMESPACE}"),
            format!("--catalog-namespace={CATALOG}"),
            format!("--webhook-listen={}", self.webhook.address()),
            "--webhook-host=127.0.0.1".to_owned(),
            format!("--health-listen={}", health.address()),
            format!("--metrics-listen={scraped}"),
            "--log-format=text".to_owned(),
        ];
        Daemon::builder(name).args(arguments).kubeconfig(&kubeconfig).health(health.address()).keeping([health]).keeping(ports).start()
    }

    /// Starts a second daemon beside a running one. Both cannot listen on one port of loopback, so this one advertises an
    /// address of its own; in a cluster the Service would lead to whichever leads.
    pub fn follower(&self, name: &str) -> Daemon {
        let arguments = vec![format!("--spool-url=https://{SECOND_HOST}:8443")];
        self.launch(name, Launch { listen: Some(self.second.address()), arguments, ..Launch::default() })
    }

    /// Like [`Stage::daemon`], with further settings for this one.
    pub fn daemon_with(&self, name: &str, settings: &serde_json::Value) -> Daemon {
        self.launch(name, Launch { settings: settings.clone(), ..Launch::default() })
    }

    /// Where the daemon of this name keeps its disks.
    pub fn spool_of(&self, name: &str) -> PathBuf {
        self.dir.join(format!("spool-{name}"))
    }

    /// How a daemon of another release is started beside the stage's: as that release's ServiceAccount, in its namespace.
    pub async fn of_release(&self, namespace: &str) -> Launch {
        let kubeconfig = self.cluster.kubeconfig_as_service_account(namespace, "golden-catalog-controller").await;
        let arguments = vec![format!("--spool-url=https://{SECOND_HOST}:8443")];
        Launch {
            kubeconfig: Some(kubeconfig),
            namespace: Some(namespace.to_owned()),
            listen: Some(self.second.address()),
            arguments,
            ..Launch::default()
        }
    }

    /// Starts a daemon in its own way.
    pub fn launch(&self, name: &str, launch: Launch) -> Daemon {
        let spool = launch.listen.unwrap_or_else(|| self.spool.address());
        let (health, metrics) = (Port::reserve(), Port::reserve());
        let scraped = launch.scraped.unwrap_or_else(|| metrics.address());
        let mut settings = json!({
            // What a busy machine does not cost; whoever kills a daemon gives its Lease up ([`House::kill`]).
            "lease": { "duration": "15s", "renewDeadline": "10s", "retryPeriod": "500ms" },
            "backoffMin": "1s", "backoffMax": "5s", "notFoundInterval": "5s",
            "spoolSize": "20Gi",
        });
        merge(&mut settings, &self.settings);
        if !launch.settings.is_null() {
            merge(&mut settings, &launch.settings);
        }
        let file = self.dir.join(format!("{name}.yaml"));
        std::fs::write(&file, settings.to_string()).expect("settings");
        let arguments = [
            "run".to_owned(),
            format!("--namespace={}", launch.namespace.as_deref().unwrap_or(NAMESPACE)),
            format!("--catalog-namespace={CATALOG}"),
            format!("--identity={name}"),
            format!("--spool-dir={}", self.spool_of(name).display()),
            format!("--spool-listen={spool}"),
            format!("--health-listen={}", health.address()),
            format!("--metrics-listen={scraped}"),
            format!("--config={}", file.display()),
            "--webhook-host=127.0.0.1".to_owned(),
            "--egress-allow-loopback".to_owned(),
            "--log=info,golden_catalog=debug".to_owned(),
        ];
        // For people who read a failed test; one that reads lines itself asks for JSON.
        let text = (!launch.arguments.iter().any(|argument| argument.starts_with("--log-format="))).then_some("--log-format=text");
        // As the chart tells it.
        let enforced = "--access-enforced".to_owned();
        let enforced = (self.admission.load(Ordering::Relaxed) && !launch.arguments.contains(&enforced)).then_some(enforced);
        *self.metrics.lock().expect("no panic under this lock") = scraped;
        let kubeconfig = launch.kubeconfig.as_ref().unwrap_or(&self.kubeconfig);
        let mut builder = Daemon::builder(name)
            .args(arguments)
            .args(text)
            .args(enforced)
            .args(launch.arguments)
            .kubeconfig(kubeconfig)
            .health(health.address())
            .keeping([health, metrics]);
        for (variable, value) in launch.environment {
            builder = builder.env(&variable, value);
        }
        if let Some((program, arguments)) = launch.under {
            builder = builder.under(&program, &arguments);
        }
        builder.start()
    }

    /// Kills a daemon (SIGKILL), and gives its Lease up for it, so that nobody need wait until that has run out.
    pub async fn kill(&self, daemon: Daemon) {
        daemon.kill();
        drop(daemon);
        self.release_lease().await;
    }

    /// Gives up the Lease of a daemon that was killed.
    pub async fn release_lease(&self) {
        let leases: Api<Lease> = Api::namespaced(self.cluster.admin(), CATALOG);
        if leases.get_opt("golden-catalog").await.expect("asked").is_some() {
            let free = json!({ "spec": { "holderIdentity": "", "leaseDurationSeconds": 1 } });
            leases.patch("golden-catalog", &PatchParams::default(), &Patch::Merge(&free)).await.expect("released");
        }
    }

    /// Sets the list as a hoster does: by an upgrade of the release.
    pub async fn list(&self, images: serde_json::Value) {
        let values = self.dir.join("values.yaml");
        std::fs::write(&values, self::values(images, self.admission.load(Ordering::Relaxed), &self.webhook).to_string()).expect("values");
        install(self.cluster, &values).await;
    }

    /// Turns the chart's webhooks on; [`Stage::admission`] answers them, and daemons started from now on are told.
    pub async fn judge(&self, images: serde_json::Value) {
        self.admission.store(true, Ordering::Relaxed);
        self.list(images).await;
    }

    /// Installs a release of its own name in a namespace of its own, over the same goldens, or sets its list.
    pub async fn second_release(&self, namespace: &str, images: serde_json::Value) {
        let values = self.dir.join(format!("values-{namespace}.yaml"));
        std::fs::write(&values, self::values(images, false, &self.webhook).to_string()).expect("values");
        self.namespaces.lock().expect("no panic under this lock").push(namespace.to_owned());
        install_as(self.cluster, namespace, namespace, &values).await;
    }

    /// Everything in the cluster that could show a secret of a daemon's; see [`Cluster::shown`].
    pub async fn shown(&self) -> Vec<(String, String)> {
        let own = self.namespaces.lock().expect("no panic under this lock").clone();
        self.cluster.shown(&own).await
    }

    /// The metrics of the daemon that was started last, as they are served.
    pub async fn metrics(&self) -> String {
        let url = format!("http://{}/metrics", self.metrics.lock().expect("no panic under this lock"));
        let client = reqwest::Client::builder().no_proxy().build().expect("client");
        client.get(url).send().await.expect("metrics").text().await.expect("metrics")
    }

    /// How often the daemon that was started last has looked at a GoldenImage, by its metrics; 0 while they are not served.
    pub async fn looks(&self) -> u64 {
        let url = format!("http://{}/metrics", self.metrics.lock().expect("no panic under this lock"));
        let client = reqwest::Client::builder().no_proxy().build().expect("client");
        let Ok(answer) = client.get(url).send().await else { return 0 };
        let text = answer.text().await.unwrap_or_default();
        let counts =
            text.lines().filter(|line| line.starts_with("golden_image_reconciles_total{") && line.contains("controller=\"golden\""));
        counts.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }

    /// Waits until it has looked so many times more than `before`.
    pub async fn until_looked(&self, before: u64, more: u64) {
        harness::eventually(&format!("the daemon looks at images {more} times more"), async || {
            let looks = self.looks().await;
            if looks >= before + more { Ok(()) } else { Err(format!("{looks} looks, {before} before")) }
        })
        .await;
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

impl Drop for House<'_> {
    /// Whatever the test was about: no secret of an upstream is left where others than the daemon can read it. A whole cluster
    /// holds other people's objects, and is not looked through.
    fn drop(&mut self) {
        if !std::thread::panicking() && !self.cluster.is_whole() {
            self.cluster.assert_no_leak(self.namespaces.get_mut().expect("no panic under this lock"));
        }
    }
}

/// The daemon is what is tested here, so the chart lets it judge the entries. Services do not route on a loopback control plane, so the API server is given an address.
fn values(images: serde_json::Value, admission: bool, webhook: &Port) -> serde_json::Value {
    let url = format!("https://{}", webhook.address());
    json!({ "images": images, "strictEntries": false, "admission": { "enabled": admission, "advertisedURL": url, "replicas": 0 } })
}

async fn install(cluster: &Cluster, values: &std::path::Path) {
    install_as(cluster, "kubernetes-worker-image", NAMESPACE, values).await;
}

async fn install_as(cluster: &Cluster, release: &str, namespace: &str, values: &std::path::Path) {
    let chart = harness::repository().join("helm/kubernetes-worker-image");
    let (chart, values) = (chart.display().to_string(), values.display().to_string());
    let arguments = ["upgrade", "--install", release, &chart, "--namespace", namespace, "--create-namespace", "--values", &values];
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
