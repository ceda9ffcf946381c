//! Our chart, installed by the real helm, and the identities it makes.

use super::{Cluster, TestNamespace, cluster::Output, repository};
use kube::Client;
use std::path::PathBuf;

/// An installed `helm/kubernetes-worker-image` in namespaces of its own.
#[derive(Debug)]
pub struct Release<'a> {
    cluster: &'a Cluster,
    /// The release's name.
    pub name: String,
    /// The daemon's namespace.
    pub namespace: TestNamespace,
    /// The namespace of the goldens.
    pub catalog: TestNamespace,
}

/// The ServiceAccount of the role `controller`.
pub const CONTROLLER: &str = "golden-catalog-controller";
/// The ServiceAccount of the role `admission`.
pub const ADMISSION: &str = "golden-catalog-admission";

/// The folder of the chart.
pub fn folder() -> PathBuf {
    repository().join("helm/kubernetes-worker-image")
}

impl Cluster {
    /// Installs our kinds and the chart, with no Pod (no nodes run them here): the test starts the daemon itself, with the
    /// chart's identity and rights. `values` are YAML, on top of the defaults.
    pub async fn install_chart(&self, values: &str) -> Release<'_> {
        self.install_product_crds().await;
        let (namespace, catalog) = (self.namespace("daemon").await, self.namespace("catalog").await);
        let release = Release { cluster: self, name: "golden-catalog".to_owned(), namespace, catalog };
        release.helm("install", values).await.ok();
        release
    }
}

/// On a whole cluster the release goes before its namespaces do: its webhooks would refuse them their end.
impl Drop for Release<'_> {
    fn drop(&mut self) {
        if self.cluster.is_whole() {
            let arguments = ["uninstall", &self.name, "--namespace", &self.namespace, "--ignore-not-found", "--kubeconfig"];
            let mut helm = std::process::Command::new(super::helm());
            helm.args(arguments).arg(self.cluster.admin_kubeconfig());
            if !helm.output().is_ok_and(|output| output.status.success()) {
                eprintln!("the release {}/{} is left behind", &*self.namespace, self.name);
            }
        }
    }
}

impl Release<'_> {
    /// Installs or upgrades to other values.
    pub async fn upgrade(&self, values: &str) -> Output {
        self.helm("upgrade", values).await
    }

    /// Removes the release.
    pub async fn uninstall(&self) -> Output {
        self.cluster.helm(["uninstall", &self.name, "--namespace", &self.namespace]).await
    }

    async fn helm(&self, verb: &str, values: &str) -> Output {
        let file = self.cluster.dir().join(format!("values-{}.yaml", super::unique()));
        std::fs::write(&file, values).expect("write a values file");
        let catalog = format!("catalogNamespace={}", &*self.catalog);
        let file = file.to_str().expect("a path in UTF-8");
        let chart = folder();
        let chart = chart.to_str().expect("a path in UTF-8");
        let arguments = [verb, &self.name, chart, "--namespace", &self.namespace, "--skip-crds", "--values", file];
        self.cluster.helm(arguments.into_iter().chain(["--set", &catalog, "--set", "controller.replicas=0,admission.replicas=0"])).await
    }

    /// A client with the rights of one of the chart's ServiceAccounts.
    pub async fn client(&self, service_account: &str) -> Client {
        self.cluster.client_as_service_account(&self.namespace, service_account).await
    }

    /// A kubeconfig with the rights of one of the chart's ServiceAccounts, for a daemon.
    pub async fn kubeconfig(&self, service_account: &str) -> PathBuf {
        self.cluster.kubeconfig_as_service_account(&self.namespace, service_account).await
    }
}
