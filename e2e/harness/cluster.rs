//! A cluster as tests see it: clients, identities, objects, command-line tools.

use super::{Needs, Options, ScratchDir, control_plane::ADMIN_TOKEN, control_plane::ControlPlane, scratch_dir, tools, unique};
use futures::FutureExt;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, ServiceAccount},
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::{
    ffi::OsStr,
    ops::Deref,
    panic::{AssertUnwindSafe, Location},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// The one cluster of a test binary, started by the first test that asks for it.
pub struct Shared {
    options: fn() -> Options,
    cluster: tokio::sync::OnceCell<Result<Cluster, ()>>,
}

impl Shared {
    /// A cluster with these options, not yet started.
    pub const fn new(options: fn() -> Options) -> Self {
        Self { options, cluster: tokio::sync::OnceCell::const_new() }
    }

    /// The cluster, or `None` when it is not of the kind this test needs; then the skip is printed and counted.
    #[track_caller]
    pub fn on(&self, needs: Needs) -> impl Future<Output = Option<&Cluster>> {
        let met = needs.met(whole_cluster().is_some(), Location::caller());
        async move {
            if !met {
                return None;
            }
            // A panic is kept, so that each further test fails at once instead of trying again.
            let start = AssertUnwindSafe(Cluster::start((self.options)())).catch_unwind();
            let cluster = self.cluster.get_or_init(|| async { start.await.map_err(drop) }).await;
            Some(cluster.as_ref().expect("the test cluster did not start; the first test that wanted it says why"))
        }
    }
}

/// The kubeconfig of the whole cluster to be used, when there is one.
fn whole_cluster() -> Option<PathBuf> {
    std::env::var_os("E2E_KUBECONFIG").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A cluster: a private control plane, or the whole one that `E2E_KUBECONFIG` names.
#[derive(Debug)]
pub struct Cluster {
    control_plane: Option<ControlPlane>,
    admin: Config,
    admin_kubeconfig: PathBuf,
    pub(super) kinds: super::apply::Kinds,
    dir: ScratchDir,
}

impl Cluster {
    /// Starts a private control plane with these options, or opens the whole cluster.
    ///
    /// For a test that needs a server of its own (other flags, or to kill it while others run); else see [`Shared`].
    pub async fn start(options: Options) -> Self {
        // Both of kube's and reqwest's TLS take the process's provider; a second call is harmless.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let dir = scratch_dir("e2e");
        if let Some(path) = whole_cluster() {
            let kubeconfig = Kubeconfig::read_from(&path).unwrap_or_else(|error| panic!("E2E_KUBECONFIG {}: {error}", path.display()));
            let mut admin = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("use E2E_KUBECONFIG");
            admin.default_retry = false;
            return Self { control_plane: None, admin, admin_kubeconfig: path, kinds: Default::default(), dir };
        }
        let plane = ControlPlane::start(options.clone()).await;
        let admin = config(&plane.url(), plane.ca_pem(), ADMIN_TOKEN);
        let admin_kubeconfig = dir.join("admin.kubeconfig");
        write_kubeconfig(&admin_kubeconfig, &admin, plane.ca_pem(), ADMIN_TOKEN);
        let cluster = Self { control_plane: Some(plane), admin, admin_kubeconfig, kinds: Default::default(), dir };
        if let Some(flavor) = options.foreign_crds {
            cluster.install_foreign_crds(flavor).await;
        }
        if options.controller_manager {
            cluster.control_plane().start_controller_manager(&cluster.admin_kubeconfig);
        }
        cluster
    }

    /// The private control plane. Only tests that need [`Needs::Scripted`] have one.
    pub fn control_plane(&self) -> &ControlPlane {
        self.control_plane.as_ref().expect("a test that uses the private control plane says Needs::Scripted")
    }

    /// Whether this is a whole cluster with real nodes and storage.
    pub fn is_whole(&self) -> bool {
        self.control_plane.is_none()
    }

    /// A client with all rights, for the test itself. The daemon never gets it.
    ///
    /// Made anew in each test, because a client lives in the async runtime that made it. It does not retry by itself, so that
    /// a test sees each answer.
    pub fn admin(&self) -> Client {
        Client::try_from(self.admin.clone()).expect("make a client")
    }

    pub(super) const fn admin_config(&self) -> &Config {
        &self.admin
    }

    /// The kubeconfig with all rights.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.admin_kubeconfig
    }

    /// A client that is a ServiceAccount, with no more rights than its roles give.
    pub async fn client_as_service_account(&self, namespace: &str, name: &str) -> Client {
        let token = self.token(namespace, name).await;
        Client::try_from(self.config_with_token(token)).expect("make a client")
    }

    /// A kubeconfig file of a ServiceAccount, as the daemon is given it; its token is good for a day.
    pub async fn kubeconfig_as_service_account(&self, namespace: &str, name: &str) -> PathBuf {
        let token = self.token(namespace, name).await;
        let path = self.dir.join(format!("{namespace}-{name}-{}.kubeconfig", unique()));
        let ca = match &self.control_plane {
            Some(plane) => plane.ca_pem().to_owned(),
            None => self.admin.root_cert.iter().flatten().map(|der| pem(der)).collect(),
        };
        write_kubeconfig(&path, &self.admin, &ca, &token);
        path
    }

    async fn token(&self, namespace: &str, name: &str) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin(), namespace);
        let spec = TokenRequestSpec { audiences: vec![], expiration_seconds: Some(24 * 60 * 60), ..Default::default() };
        let request = TokenRequest { spec, ..Default::default() };
        let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;
        let answer = answer.unwrap_or_else(|error| panic!("token of ServiceAccount {namespace}/{name}: {error}"));
        answer.status.expect("a TokenRequest answers with a token").token
    }

    fn config_with_token(&self, token: String) -> Config {
        let mut config = self.admin.clone();
        config.auth_info = kube::config::AuthInfo { token: Some(token.into()), ..Default::default() };
        config
    }

    /// A new namespace, named `PREFIX-` and eight hex digits. On a whole cluster it is deleted when the value is dropped.
    pub async fn namespace(&self, prefix: &str) -> TestNamespace {
        let name = format!("{prefix}-{}", unique());
        let object: Namespace = serde_json::from_value(serde_json::json!({ "metadata": { "name": &name } })).expect("a Namespace");
        Api::<Namespace>::all(self.admin()).create(&PostParams::default(), &object).await.expect("create a namespace");
        TestNamespace { name, clean_up: self.is_whole().then(|| self.admin_kubeconfig.clone()) }
    }

    /// Runs `kubectl` with all rights.
    pub async fn kubectl<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Output {
        let mut command = Command::new(tools::kubectl());
        // In the cluster's folder, so that a run leaves no discovery cache of a dead server in the user's home.
        command.env("KUBECACHEDIR", self.dir.join("kubectl")).args(arguments);
        command.env("KUBECONFIG", &self.admin_kubeconfig);
        run(command).await
    }

    /// Runs `helm` with all rights.
    pub async fn helm<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Output {
        let mut command = Command::new(tools::helm());
        for (variable, folder) in [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")] {
            command.env(variable, self.dir.join("helm").join(folder));
        }
        command.env("KUBECONFIG", &self.admin_kubeconfig).args(arguments);
        run(command).await
    }

    /// A folder for files of this run.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// Runs a program to its end, without input.
pub(super) async fn run(command: Command) -> Output {
    let mut command = tokio::process::Command::from(command);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.expect("run a command-line tool");
    Output {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// What a command-line tool said.
#[derive(Debug)]
pub struct Output {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its error output.
    pub stderr: String,
}

impl Output {
    /// Its standard output, when it succeeded; else the test fails with what it said.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}\n{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Its error output, when it failed; else the test fails.
    #[track_caller]
    pub fn err(self) -> String {
        assert!(self.code.is_some_and(|code| code != 0), "it should have failed: {}", self.stdout);
        self.stderr
    }
}

/// A namespace of one test.
#[derive(Debug)]
pub struct TestNamespace {
    name: String,
    clean_up: Option<PathBuf>,
}

impl Deref for TestNamespace {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        if let Some(kubeconfig) = &self.clean_up {
            let arguments = ["delete", "namespace", &self.name, "--wait=false", "--ignore-not-found"];
            let _ = Command::new(tools::kubectl()).env("KUBECONFIG", kubeconfig).args(arguments).output();
        }
    }
}

/// The client configuration for a server with its own authority and a bearer token.
pub(super) fn config(url: &str, ca_pem: &str, token: &str) -> Config {
    let mut config = Config::new(url.parse().expect("the URL of an API server"));
    config.root_cert = Some(vec![der(ca_pem)]);
    config.auth_info.token = Some(token.to_owned().into());
    config.connect_timeout = Some(Duration::from_secs(60));
    config.default_retry = false;
    config
}

fn der(pem: &str) -> Vec<u8> {
    let base64: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    base64::Engine::decode(&base64::engine::general_purpose::STANDARD, base64).expect("a PEM certificate")
}

fn pem(der: &[u8]) -> String {
    let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
    let lines: Vec<&str> = base64.as_bytes().chunks(64).map(|chunk| std::str::from_utf8(chunk).expect("base64 is ASCII")).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

fn write_kubeconfig(path: &Path, config: &Config, ca_pem: &str, token: &str) {
    let ca = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, ca_pem);
    let kubeconfig = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "e2e",
        "contexts": [{ "name": "e2e", "context": { "cluster": "e2e", "user": "e2e" } }],
        "clusters": [{ "name": "e2e", "cluster": { "server": config.cluster_url.to_string(), "certificate-authority-data": ca } }],
        "users": [{ "name": "e2e", "user": { "token": token } }],
    });
    std::fs::write(path, kubeconfig.to_string()).expect("write a kubeconfig");
}
