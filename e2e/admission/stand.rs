//! The stage of these tests: a cluster with the chart, goldens as CDI leaves them, and the admission role.

use golden_catalog::rules::marks;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams},
    client::Body,
};
use serde_json::{Value, json};

use crate::{
    harness::{self, Cluster, Daemon, Needs, Port, ScratchDir, until},
    proxy::ApiProxy,
};

/// The namespace of the daemon.
pub const NAMESPACE: &str = "cozy-kubernetes-worker-image";
/// The namespace of the goldens.
pub const CATALOG: &str = "cozy-public";
/// What the chart calls its webhook configurations.
pub const CONFIGURATIONS: &str = "golden-catalog-admission-cozy-kubernetes-worker-image";

/// Three classes, of which `replicated` is the default. `fixed` cannot grow volumes, and its clones stand alone by the hoster's word; `local`
/// is tied to nodes.
const CLASSES: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: replicated, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
parameters: {linstor.csi.linbit.com/allowRemoteVolumeAccess: "false"}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fixed}
provisioner: linstor.csi.linbit.com
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: pinned}
provisioner: one-node.example.org
allowVolumeExpansion: true
"#;

/// No controller manager: claims stay as bound as the tests say.
fn options() -> harness::Options {
    // With it a claim may name a source in another namespace, which is off by default.
    let gate = "--feature-gates=CrossNamespaceVolumeDataSource=true";
    harness::Options::default().foreign_crds(harness::Flavor::chosen()).api_server_flag(gate)
}

static CLUSTER: harness::Shared = harness::Shared::new(options);
static STAND: tokio::sync::OnceCell<Stand> = tokio::sync::OnceCell::const_new();

/// The one stand of this binary, or `None` where it cannot be.
pub async fn stand() -> Option<(&'static Cluster, &'static Stand)> {
    let cluster = CLUSTER.on(Needs::Scripted).await?;
    Some((cluster, STAND.get_or_init(|| Stand::build(cluster)).await))
}

/// A cluster of its own with a stand.
pub async fn own_cluster() -> Cluster {
    Cluster::start(options()).await
}

/// The same, where the API server lets no request take longer than these seconds.
pub async fn own_hurried_cluster(seconds: u8) -> Cluster {
    Cluster::start(options().api_server_flag(&format!("--request-timeout={seconds}s"))).await
}

/// The chart's webhooks and who answers them.
pub struct Stand {
    port: Port,
    dir: ScratchDir,
    daemon: std::sync::Mutex<Option<Daemon>>,
    health: std::sync::Mutex<Option<(Port, Port)>>,
    ports: std::sync::Mutex<Vec<Port>>,
}

impl Stand {
    /// Installs the chart, lets a leader fill in the webhooks, makes the goldens, and starts the admission role.
    pub async fn build(cluster: &Cluster) -> Self {
        let (port, dir) = (Port::reserve(), harness::scratch_dir("admission"));
        cluster.apply(CLASSES).await;
        cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {CATALOG}}}}}")).await;
        let values = dir.join("values.yaml");
        let url = format!("https://{}", port.address());
        let text = json!({ "admission": { "advertisedURL": url, "replicas": 0 }, "controller": { "replicas": 0 } });
        std::fs::write(&values, text.to_string()).expect("values");
        let chart = harness::chart::folder();
        let (chart, values) = (chart.display().to_string(), values.display().to_string());
        let install = ["install", "kubernetes-worker-image", &chart, "--namespace", NAMESPACE, "--create-namespace", "--values", &values];
        cluster.helm(install).await.ok();
        let stand = Self {
            port,
            dir,
            daemon: std::sync::Mutex::default(),
            health: std::sync::Mutex::default(),
            ports: std::sync::Mutex::default(),
        };
        stand.fill_in(cluster).await;
        profiles(cluster).await;
        goldens(cluster).await;
        stand.start(cluster).await;
        stand
    }

    /// Where the API server finds the webhook.
    pub fn address(&self) -> String {
        self.port.address()
    }

    /// A leader that retires goldens after `wait`.
    pub async fn leader(&self, cluster: &Cluster, name: &str, wait: &str) -> Daemon {
        self.leader_by(cluster, name, wait, None).await
    }

    /// The same, by way of a proxy in front of the API server.
    pub async fn leader_by(&self, cluster: &Cluster, name: &str, wait: &str, proxy: Option<&ApiProxy>) -> Daemon {
        let settings = self.dir.join("leader.yaml");
        // What a busy machine does not cost; whoever kills a leader gives its Lease up.
        let lease = json!({ "duration": "15s", "renewDeadline": "10s", "retryPeriod": "300ms" });
        std::fs::write(&settings, json!({ "retireWait": wait, "lease": lease }).to_string()).expect("settings");
        self.controller(cluster, name, &[format!("--config={}", settings.display())], proxy).await
    }

    async fn controller(&self, cluster: &Cluster, name: &str, more: &[String], proxy: Option<&ApiProxy>) -> Daemon {
        let kubeconfig = cluster.kubeconfig_as_service_account(NAMESPACE, harness::chart::CONTROLLER).await;
        let kubeconfig = proxy.map_or(kubeconfig.clone(), |proxy| proxy.kubeconfig(&kubeconfig));
        let (health, metrics, spool) = (Port::reserve(), Port::reserve(), Port::reserve());
        let daemon = Daemon::builder(name)
            .args([
                "run".to_owned(),
                format!("--identity={name}"),
                format!("--spool-dir={}", self.dir.join(format!("spool-{name}")).display()),
                "--spool-size=1Gi".to_owned(),
                format!("--spool-listen={}", spool.address()),
                "--webhook-host=127.0.0.1".to_owned(),
                "--access-enforced".to_owned(),
                format!("--health-listen={}", health.address()),
                format!("--metrics-listen={}", metrics.address()),
                "--log-format=text".to_owned(),
            ])
            .args(more)
            .kubeconfig(&kubeconfig)
            .start();
        self.ports.lock().expect("no panic under this lock").extend([health, metrics, spool]);
        daemon
    }

    /// The leader issues the certificate and fills in the webhook configurations; then it is not needed any more, and statuses are the tests' own.
    async fn fill_in(&self, cluster: &Cluster) {
        let leader = self.controller(cluster, "leader", &[], None).await;
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(cluster.admin());
        let filled = until(mutating, CONFIGURATIONS, "the CA is filled in", |found: &MutatingWebhookConfiguration| {
            found.webhooks.iter().flatten().all(|webhook| webhook.client_config.ca_bundle.is_some())
        })
        .await;
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(cluster.admin());
        until(validating, CONFIGURATIONS, "the CA is filled in", |found: &ValidatingWebhookConfiguration| {
            found.webhooks.iter().flatten().all(|webhook| webhook.client_config.ca_bundle.is_some())
        })
        .await;
        let owner = &filled.owner_references()[0];
        assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Namespace", NAMESPACE), "deleting the namespace takes the webhooks along");
        leader.terminate(harness::PATIENCE).await.expect("the leader ends");
    }

    /// Starts the admission role and waits until the API server asks it.
    pub async fn start(&self, cluster: &Cluster) {
        self.start_as(cluster, harness::chart::ADMISSION).await;
        harness::eventually("admission is ready", || async {
            match self.probe("readyz").await {
                Ok(200) => Ok(()),
                other => Err(format!("{other:?}\n{}", self.log())),
            }
        })
        .await;
        // The API server learns of webhooks by watch: told by a refusal that only they give.
        let probe = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "probe" },
            "spec": { "source": { "pvc": { "namespace": CATALOG, "name": "nothing-of-this-name" } }, "storage": {} } });
        harness::eventually("the API server asks the webhook", || async {
            match create(cluster, "default", &probe, true).await {
                Err(refused) if refused.message.contains("nothing-of-this-name") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Starts the admission role with the rights of this ServiceAccount.
    pub async fn start_as(&self, cluster: &Cluster, account: &str) {
        let kubeconfig = cluster.kubeconfig_as_service_account(NAMESPACE, account).await;
        let (health, metrics) = (Port::reserve(), Port::reserve());
        let settings = self.dir.join("admission.yaml");
        std::fs::write(
            &settings,
            json!({ "independentClasses": ["fixed"], "nodeLocalProvisioners": ["one-node.example.org"], "admissionLinger": "1ms" })
                .to_string(),
        )
        .expect("settings");
        let daemon = Daemon::builder("admission")
            .args([
                "run".to_owned(),
                "--role=admission".to_owned(),
                format!("--config={}", settings.display()),
                format!("--webhook-listen={}", self.port.address()),
                "--webhook-host=127.0.0.1".to_owned(),
                format!("--health-listen={}", health.address()),
                format!("--metrics-listen={}", metrics.address()),
                "--log-format=text".to_owned(),
            ])
            .kubeconfig(&kubeconfig)
            .health(health.address())
            .start();
        *self.daemon.lock().expect("no panic under this lock") = Some(daemon);
        *self.health.lock().expect("no panic under this lock") = Some((health, metrics));
    }

    /// The status that a path of its health server answers.
    pub async fn probe(&self, path: &str) -> Result<u16, String> {
        let address = self.health.lock().expect("no panic under this lock").as_ref().expect("it runs").0.address();
        let client = reqwest::Client::builder().no_proxy().build().map_err(|error| error.to_string())?;
        let answer = client.get(format!("http://{address}/{path}")).send().await.map_err(|error| error.to_string())?;
        Ok(answer.status().as_u16())
    }

    /// The metrics of the admission role, as they are served.
    pub async fn metrics(&self) -> String {
        let address = self.health.lock().expect("no panic under this lock").as_ref().expect("it runs").1.address();
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        client.get(format!("http://{address}/metrics")).send().await.expect("metrics").text().await.expect("metrics")
    }

    /// The most memory that the admission role has had so far, in MiB, from Linux.
    pub fn peak_memory(&self) -> u64 {
        let id = self.daemon.lock().expect("no panic under this lock").as_ref().expect("it runs").id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("a process");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("its peak");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") / 1024
    }

    fn log(&self) -> String {
        self.daemon.lock().expect("no panic under this lock").as_ref().map(Daemon::log).unwrap_or_default()
    }

    /// Ends the admission role.
    pub async fn stop(&self) {
        let daemon = self.daemon.lock().expect("no panic under this lock").take().expect("it runs");
        let ended = daemon.terminate(harness::PATIENCE).await.expect("it ends in time");
        assert!(ended.success(), "{ended}");
    }
}

/// What CDI would say of the classes.
async fn profiles(cluster: &Cluster) {
    for class in ["replicated", "local", "fixed"] {
        let profile =
            json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "StorageProfile", "metadata": { "name": class }, "spec": {} });
        cluster.apply(&profile.to_string()).await;
        let status = json!({ "claimPropertySets": [{ "accessModes": ["ReadWriteMany"], "volumeMode": "Block" }, { "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem" }] });
        set_status(cluster, "cdi.kubevirt.io/v1beta1", "StorageProfile", "", class, status).await;
    }
}

/// The goldens there are.
async fn goldens(cluster: &Cluster) {
    golden(cluster, "golden", "replicated", "6Gi", "Block").await;
    golden(cluster, "golden-local", "local", "6Gi", "Block").await;
    golden(cluster, "golden-fixed", "fixed", "6Gi", "Block").await;
    // A hand-made image, which nobody manages.
    claim(cluster, "hand-made", "replicated", "6Gi", "Block", json!({}), json!({}), Value::Null).await;
    // What CDI leaves behind while it clones, with a tenant's labels on it.
    let copied = json!({ marks::GOLDEN: "true", "cdi.kubevirt.io/OwnedByUID": "x" });
    claim(cluster, "tmp-pvc-1", "replicated", "6Gi", "Block", copied, json!({}), Value::Null).await;
}

/// A golden as CDI leaves it: a Succeeded DataVolume and its bound claim, with our marks.
pub async fn golden(cluster: &Cluster, name: &str, class: &str, size: &str, mode: &str) {
    let owner = golden_volume(cluster, name, class, size, "Succeeded").await;
    claim(cluster, name, class, size, mode, json!({ marks::GOLDEN: "true" }), json!({}), owner).await;
}

/// A golden that CDI is making: its claim is there, and not bound yet.
pub async fn unfinished_golden(cluster: &Cluster, name: &str, class: &str, size: &str) {
    let owner = golden_volume(cluster, name, class, size, "ImportInProgress").await;
    let mut object = bound_claim(name, class, size, json!({ marks::GOLDEN: "true" }), json!({}));
    object["metadata"]["ownerReferences"] = owner;
    cluster.apply_in(CATALOG, &object.to_string()).await;
}

/// A golden's DataVolume in this phase. Gives what its claim says of its owner.
async fn golden_volume(cluster: &Cluster, name: &str, class: &str, size: &str, phase: &str) -> Value {
    let labels = json!({ marks::GOLDEN: "true" });
    let volume = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": name, "labels": labels },
        "spec": { "source": { "http": { "url": "https://spool.test/x" } }, "storage": { "storageClassName": class, "resources": { "requests": { "storage": size } } } } });
    let made = cluster.apply_in(CATALOG, &volume.to_string()).await;
    set_status(cluster, "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG, name, json!({ "phase": phase })).await;
    json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": name, "uid": made[0].uid(), "controller": true, "blockOwnerDeletion": true }])
}

/// A bound claim of the catalog.
#[allow(clippy::too_many_arguments, reason = "each is one part of a claim")]
pub async fn claim(cluster: &Cluster, name: &str, class: &str, size: &str, mode: &str, labels: Value, annotations: Value, owner: Value) {
    let mut object = bound_claim(name, class, size, labels, annotations);
    object["spec"]["volumeMode"] = mode.into();
    if !owner.is_null() {
        object["metadata"]["ownerReferences"] = owner;
    }
    cluster.apply_in(CATALOG, &object.to_string()).await;
    let status = json!({ "phase": "Bound", "capacity": { "storage": size }, "accessModes": ["ReadWriteMany"] });
    set_status(cluster, "v1", "PersistentVolumeClaim", CATALOG, name, status).await;
}

/// A claim's manifest.
pub fn bound_claim(name: &str, class: &str, size: &str, labels: Value, annotations: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "labels": labels, "annotations": annotations },
        "spec": { "accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": class, "resources": { "requests": { "storage": size } } } })
}

/// Writes a status as its controller would.
pub async fn set_status(cluster: &Cluster, api_version: &str, kind: &str, namespace: &str, name: &str, status: Value) {
    let api = cluster.api(&cluster.admin(), api_version, kind, namespace).await;
    let patch = Patch::Merge(json!({ "status": status }));
    let written = harness::made(async || api.patch_status(name, &PatchParams::default(), &patch).await).await;
    if matches!(&written, Err(kube::Error::Api(status)) if status.code == 404) {
        // No status subresource: the status is written with the rest.
        api.patch(name, &PatchParams::default(), &patch).await.expect("write a status");
        return;
    }
    written.expect("write a status");
}

/// A refusal.
#[derive(Debug)]
pub struct Refused {
    /// The HTTP status.
    pub code: u16,
    /// What the user is told.
    pub message: String,
}

impl harness::Refusal for Refused {
    fn answer(&self) -> Option<(u16, &str)> {
        Some((self.code, &self.message))
    }
}

/// What was made, and what was told beside it.
#[derive(Debug)]
pub struct Made {
    /// The object.
    pub object: Value,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Creates an object as a person with all rights.
pub async fn create(cluster: &Cluster, namespace: &str, object: &Value, dry_run: bool) -> Result<Made, Refused> {
    create_as(cluster, &cluster.admin(), namespace, object, dry_run).await
}

/// Creates an object as whoever `client` is.
pub async fn create_as(cluster: &Cluster, client: &Client, namespace: &str, object: &Value, dry_run: bool) -> Result<Made, Refused> {
    let api = api_of(cluster, client, namespace, object).await;
    let query = if dry_run { "?dryRun=All" } else { "" };
    let ask = async || send(client, http::Request::post(format!("{}{query}", api.resource_url())), object).await;
    if let Some(made) = harness::made(ask).await? {
        return Ok(made);
    }
    let made = api.get(object["metadata"]["name"].as_str().unwrap_or_default()).await;
    let made = made.map_err(|error| Refused { code: 409, message: format!("it was made, and is gone: {error}") })?;
    Ok(Made { object: serde_json::to_value(made).expect("JSON"), warnings: Vec::new() })
}

/// Whether a clone is admitted that races with a retirement. Refused is what breaks the rules of goldens that go or are gone, and nothing
/// else.
pub async fn is_admitted(cluster: &Cluster, namespace: &str, object: &Value) -> bool {
    let api = api_of(cluster, &cluster.admin(), namespace, object).await;
    let name = object["metadata"]["name"].as_str().expect("a name");
    harness::eventually(&format!("{name} is admitted or refused"), || async {
        let refused = match create(cluster, namespace, object, false).await {
            Ok(_) => return Ok(true),
            Err(refused) => refused,
        };
        let says = |text: &str| refused.message.contains(text);
        match refused.code {
            // An attempt that was answered too late may have been admitted all the same.
            409 if says("already exists") => Ok(true),
            403 if says("R13") || says("R23") => api.get_opt(name).await.map(|found| found.is_some()).map_err(|error| error.to_string()),
            500.. if says("try again") => Err(refused.message.clone()),
            code => panic!("{name}: {code} {}", refused.message),
        }
    })
    .await
}

/// Puts an object in the place of what is there.
pub async fn replace(cluster: &Cluster, namespace: &str, object: &Value) -> Result<Made, Refused> {
    let client = cluster.admin();
    let api = api_of(cluster, &client, namespace, object).await;
    let name = object["metadata"]["name"].as_str().expect("a name");
    let ask = async || send(&client, http::Request::put(format!("{}/{name}", api.resource_url())), object).await;
    if let Some(made) = harness::made(ask).await? {
        return Ok(made);
    }
    let made = api.get(name).await.map_err(|error| Refused { code: 409, message: format!("it was replaced, and is gone: {error}") })?;
    Ok(Made { object: serde_json::to_value(made).expect("JSON"), warnings: Vec::new() })
}

async fn api_of(cluster: &Cluster, client: &Client, namespace: &str, object: &Value) -> Api<DynamicObject> {
    let text = |field: &str| object[field].as_str().unwrap_or_else(|| panic!("an object without {field}: {object}"));
    cluster.api(client, text("apiVersion"), text("kind"), namespace).await
}

async fn send(client: &Client, request: http::request::Builder, object: &Value) -> Result<Made, Refused> {
    let body = Body::from(object.to_string().into_bytes());
    let request = request.header("content-type", "application/json").body(body).expect("a request");
    let answer = client.send(request).await.expect("the API server answers");
    let code = answer.status().as_u16();
    let warnings = answer.headers().get_all("warning").iter().filter_map(|value| Some(value.to_str().ok()?.to_owned())).collect();
    let bytes = answer.into_body().collect_bytes().await.expect("the API server's answer");
    let value: Value = serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&bytes)));
    if code < 300 {
        return Ok(Made { object: value, warnings });
    }
    Err(Refused { code, message: value["message"].as_str().unwrap_or_default().to_owned() })
}
