//! A private control plane: etcd, kube-apiserver and, where asked for, kube-controller-manager, on loopback.

use super::{
    Flavor, Port, ScratchDir,
    pki::Pki,
    process::{Process, tail},
    scratch_dir,
    tools::tools,
    wait::PATIENCE,
};
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

/// The controllers of kube-controller-manager that mean something without nodes.
const CONTROLLERS: &str = "clusterrole-aggregation-controller,deployment-controller,disruption-controller,endpointslice-controller,garbage-collector-controller,namespace-controller,persistentvolume-binder-controller,persistentvolume-protection-controller,persistentvolumeclaim-protection-controller,replicaset-controller,resourcequota-controller,root-ca-certificate-publisher-controller,serviceaccount-controller,serviceaccount-token-controller";

/// The bearer token of the user `e2e-admin` in `system:masters`. It opens a server that lives on loopback for a test.
pub(super) const ADMIN_TOKEN: &str = "e2e-admin-token";
/// Who the tests themselves are, in the audit log.
pub const ADMIN_USER: &str = "e2e-admin";

/// Everything but the noise of health checks, once per request, when it is answered (watches: when they begin and end).
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    nonResourceURLs: ['/readyz*', '/livez*', '/healthz*']
  - level: Metadata
";

/// What a private control plane is made of. On a whole cluster (`E2E_KUBECONFIG`) none of it applies.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub(super) controller_manager: bool,
    pub(super) api_server_flags: Vec<String>,
    pub(super) foreign_crds: Option<Flavor>,
}

impl Options {
    /// With kube-controller-manager: garbage collection, namespace deletion, binding of volumes, quota, ReplicaSets.
    ///
    /// Without it nothing is collected and Pods need no ServiceAccount. The CRDs of [`Options::foreign_crds`] are installed
    /// before it starts, since it notices a kind that came later only after half a minute.
    pub fn controller_manager(mut self) -> Self {
        self.controller_manager = true;
        self
    }

    /// With one more flag for kube-apiserver, such as `--request-timeout=5s`. A later flag wins over the harness's own.
    pub fn api_server_flag(mut self, flag: &str) -> Self {
        self.api_server_flags.push(flag.to_owned());
        self
    }

    /// With the CRDs of CDI, KubeVirt, Cluster API and the snapshot API.
    pub fn foreign_crds(mut self, flavor: Flavor) -> Self {
        self.foreign_crds = Some(flavor);
        self
    }
}

/// The running processes. Stopped when dropped, and when the test process ends.
#[derive(Debug)]
pub struct ControlPlane {
    options: Options,
    // Before `dir`, so that nothing writes when it is removed.
    controller_manager: Mutex<Option<Process>>,
    api_server: Mutex<Option<Process>>,
    etcd: Mutex<Process>,
    api_port: Port,
    etcd_port: Port,
    _peer_port: Port,
    pki: Pki,
    dir: ScratchDir,
}

impl ControlPlane {
    /// Starts etcd and kube-apiserver and waits until it is ready.
    pub(super) async fn start(options: Options) -> Self {
        // A stranger may take a port between the check and the server's bind: then all begins anew on other ports.
        for _ in 0..5 {
            match Self::try_start(options.clone()).await {
                Ok(started) => return started,
                Err(Failed { log, port_taken: true }) => eprintln!("a port was taken by someone else, trying others:\n{log}"),
                Err(Failed { log, port_taken: false }) => panic!("the control plane did not start:\n{log}"),
            }
        }
        panic!("the control plane found no port of its own in five tries");
    }

    async fn try_start(options: Options) -> Result<Self, Failed> {
        let dir = scratch_dir("cluster");
        let pki = Pki::create(dir.path());
        std::fs::write(dir.join("tokens.csv"), format!("{ADMIN_TOKEN},{ADMIN_USER},{ADMIN_USER},\"system:masters\"\n"))
            .expect("write the token file");
        std::fs::write(dir.join("audit-policy.yaml"), AUDIT_POLICY).expect("write the audit policy");
        let (api_port, etcd_port, peer_port) = (Port::reserve(), Port::reserve(), Port::reserve());

        let (client, peer) = (format!("http://{}", etcd_port.address()), format!("http://{}", peer_port.address()));
        let mut etcd = Command::new(&tools().etcd);
        etcd.args(["--unsafe-no-fsync", "--name=e2e", "--log-level=warn"])
            .arg(format!("--data-dir={}", dir.join("etcd").display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=e2e={peer}"));
        let etcd = Process::spawn("etcd", &etcd, &dir.join("etcd.log")).expect("start etcd");

        let plane = Self {
            options,
            controller_manager: Mutex::new(None),
            api_server: Mutex::new(None),
            etcd: Mutex::new(etcd),
            api_port,
            etcd_port,
            _peer_port: peer_port,
            pki,
            dir,
        };
        plane.spawn_api_server();
        plane.api_server_ready().await.map_err(|reason| plane.failed(&reason))?;
        Ok(plane)
    }

    /// What the logs say about a failed start.
    fn failed(&self, reason: &str) -> Failed {
        let logs = ["etcd.log", "kube-apiserver.log"].map(|name| format!("--- {name}\n{}", tail(&self.dir.join(name), 20)));
        let log = format!("{reason}\n{}", logs.join("\n"));
        let port_taken = log.contains("address already in use");
        Failed { log, port_taken }
    }

    /// The address of the API server.
    pub fn url(&self) -> String {
        format!("https://{}", self.api_port.address())
    }

    /// The certificate authority of the API server, in PEM.
    pub fn ca_pem(&self) -> &str {
        &self.pki.ca_pem
    }

    /// The API server's own certificate and key, in PEM: for a proxy of ours that stands before it.
    pub fn server_identity(&self) -> (String, String) {
        let read = |path| std::fs::read_to_string(path).expect("a file of the control plane");
        (read(&self.pki.server_certificate), read(&self.pki.server_key))
    }

    /// The folder with the data and logs of the cluster.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// In the folder `E2E_AUDIT` where that is set: there it outlives the server, for whoever judges the whole suite.
    pub(super) fn audit_log(&self) -> PathBuf {
        match std::env::var_os("E2E_AUDIT").filter(|folder| !folder.is_empty()) {
            Some(folder) => Path::new(&folder).join(self.dir.path().file_name().unwrap_or_default()).with_extension("log"),
            None => self.dir.join("audit.log"),
        }
    }

    /// The IDs of the running processes.
    pub fn process_ids(&self) -> Vec<u32> {
        let others = [&self.api_server, &self.controller_manager].map(|process| lock(process).as_ref().map(Process::id));
        others.into_iter().flatten().chain([lock(&self.etcd).id()]).collect()
    }

    fn spawn_api_server(&self) {
        let mut command = Command::new(&tools().kube_apiserver);
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        command
            .arg(format!("--etcd-servers=http://{}", self.etcd_port.address()))
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--secure-port={}", self.api_port.number()))
            .arg(file("cert-dir", &self.dir.join("certificates")))
            .arg(file("tls-cert-file", &self.pki.server_certificate))
            .arg(file("tls-private-key-file", &self.pki.server_key))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(file("service-account-key-file", &self.pki.service_account_public_key))
            .arg(file("service-account-signing-key-file", &self.pki.service_account_key))
            .arg("--service-cluster-ip-range=10.0.0.0/16")
            .arg(file("token-auth-file", &self.dir.join("tokens.csv")))
            .arg("--authorization-mode=RBAC")
            .arg(file("audit-policy-file", &self.dir.join("audit-policy.yaml")))
            .arg(file("audit-log-path", &self.audit_log()))
            // Without it the log is rotated at 100 MB and marks in it would lose their place.
            .arg("--audit-log-maxsize=100000")
            .arg("--profiling=false");
        if !self.options.controller_manager {
            // It waits for the ServiceAccount `default`, which only the controller manager creates.
            command.arg("--disable-admission-plugins=ServiceAccount");
        }
        command.args(&self.options.api_server_flags);
        let process = Process::spawn("kube-apiserver", &command, &self.dir.join("kube-apiserver.log")).expect("start kube-apiserver");
        *lock(&self.api_server) = Some(process);
    }

    async fn api_server_ready(&self) -> Result<(), String> {
        let client = kube::Client::try_from(super::cluster::config(&self.url(), self.ca_pem(), ADMIN_TOKEN)).map_err(|e| e.to_string())?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = lock(&self.api_server).as_mut().and_then(Process::ended) {
                return Err(format!("kube-apiserver ended with {status}"));
            }
            if let Some(status) = lock(&self.etcd).ended() {
                return Err(format!("etcd ended with {status}"));
            }
            let request = http::Request::get("/readyz").body(Vec::new()).expect("a request for /readyz");
            let answer = client.request_text(request).await;
            match answer {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(format!("kube-apiserver is not ready after {PATIENCE:?}: {error}")),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Starts kube-controller-manager; it works as soon as its caches are full, which tests see by what it does.
    pub(super) fn start_controller_manager(&self, kubeconfig: &Path) {
        let mut command = Command::new(&tools().kube_controller_manager);
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg("--secure-port=0")
            .arg("--leader-elect=false")
            .arg(format!("--controllers={CONTROLLERS}"))
            .arg(format!("--root-ca-file={}", self.pki.ca.display()))
            .arg(format!("--service-account-private-key-file={}", self.pki.service_account_key.display()))
            // Its default of 20 requests a second would be the bottleneck of many tests.
            .args(["--kube-api-qps=500", "--kube-api-burst=1000"]);
        let log = self.dir.join("kube-controller-manager.log");
        *lock(&self.controller_manager) =
            Some(Process::spawn("kube-controller-manager", &command, &log).expect("start kube-controller-manager"));
    }

    /// Kills the API server (SIGKILL): every connection breaks, and new ones are refused.
    pub fn kill_api_server(&self) {
        lock(&self.api_server).take().expect("the API server runs").kill();
    }

    /// Starts the API server again, on the same port and data, and waits until it is ready.
    pub async fn start_api_server(&self) {
        assert!(lock(&self.api_server).is_none(), "the API server already runs");
        self.spawn_api_server();
        self.api_server_ready().await.unwrap_or_else(|reason| panic!("{reason}\n{}", tail(&self.dir.join("kube-apiserver.log"), 20)));
    }

    /// Kills the API server and starts it again.
    pub async fn restart_api_server(&self) {
        self.kill_api_server();
        self.start_api_server().await;
    }

    /// Stops the API server without ending it (SIGSTOP): connections stay open and nobody answers, until the value is dropped.
    pub fn pause_api_server(&self) -> Paused<'_> {
        lock(&self.api_server).as_mut().expect("the API server runs").signal("STOP");
        Paused(&self.api_server)
    }

    /// Stops the controller manager without ending it: nothing is collected or bound, until the value is dropped.
    pub fn pause_controller_manager(&self) -> Paused<'_> {
        lock(&self.controller_manager).as_mut().expect("the controller manager runs").signal("STOP");
        Paused(&self.controller_manager)
    }

    /// Compacts etcd to its newest revision, so that lists and watches at an older one end in `410 Gone`.
    ///
    /// The API server's watch cache may still answer for older revisions from memory; [`ControlPlane::restart_api_server`]
    /// afterwards, or the flag `--watch-cache=false`, takes that away.
    pub async fn compact_etcd(&self) {
        let revision = self.etcd_call("maintenance/status", serde_json::json!({})).await["header"]["revision"].clone();
        self.etcd_call("kv/compaction", serde_json::json!({ "revision": revision, "physical": true })).await;
    }

    /// One call of etcd's JSON gateway (`api/etcdserverpb/rpc.proto`).
    async fn etcd_call(&self, path: &str, body: serde_json::Value) -> serde_json::Value {
        let url = format!("http://{}/v3/{path}", self.etcd_port.address());
        let answer = reqwest::Client::new().post(&url).json(&body).send().await.expect("call etcd");
        let status = answer.status();
        let text = answer.text().await.expect("read etcd's answer");
        assert!(status.is_success(), "etcd {path}: {status}: {text}");
        serde_json::from_str(&text).expect("etcd answers in JSON")
    }
}

/// A paused process; goes on when this is dropped.
#[must_use = "the process goes on as soon as this is dropped"]
pub struct Paused<'a>(&'a Mutex<Option<Process>>);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        if let Some(process) = lock(self.0).as_mut() {
            process.signal("CONT");
        }
    }
}

struct Failed {
    log: String,
    port_taken: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
