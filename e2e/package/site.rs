//! A management cluster for the package: classes, the catalog's namespace, an upstream, and releases in namespaces of choice.

use std::collections::BTreeMap;

use golden_catalog::api::GoldenImage;
use kube::{Api, ResourceExt as _, api::DynamicObject};
use serde_json::{Value, json};

use crate::{
    cdi::{self, CdiStandIn},
    harness::{self, Cluster, Daemon, Flavor, Options, Output, Port, ScratchDir},
    stage::{self, CATALOG, CLASSES, images},
    upstream::nginx::Nginx,
};

/// A cluster that has never seen the catalog.
pub struct Site {
    pub cluster: Cluster,
    pub nginx: Nginx,
    /// CDI stops when this is dropped.
    _cdi: CdiStandIn,
    dir: ScratchDir,
    spool: Port,
}

impl Site {
    /// With the stand-in for CDI, whose importers find the spool of the daemon in each of these namespaces.
    ///
    /// On a control plane of its own, where nothing has installed our kind; `None`, told and counted, where there can be none.
    pub async fn alone(namespaces: &[&str]) -> Option<Self> {
        if std::env::var_os("E2E_KUBECONFIG").is_some_and(|value| !value.is_empty()) {
            harness::skip("needs a control plane that has never seen the catalog");
            return None;
        }
        let options = Options::default().controller_manager().foreign_crds(Flavor::chosen());
        let cluster = Cluster::start(options).await;
        let dir = harness::scratch_dir_on_disk("package");
        let spool = Port::reserve();
        cluster.apply(CLASSES).await;
        cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {CATALOG}}}}}")).await;
        let at: std::net::SocketAddr = format!("127.0.0.1:{}", spool.number()).parse().expect("address");
        let hosts = namespaces.iter().map(|namespace| format!("golden-catalog-spool.{namespace}.svc"));
        let cdi = hosts.fold(cdi::Options::new(dir.join("volumes")), |options, host| options.dial(host, at));
        let cdi = CdiStandIn::start_apart(cluster.admin_kubeconfig(), cdi).await;
        Some(Self { cluster, nginx: stage::upstream().0, _cdi: cdi, dir, spool })
    }

    /// Puts a disk image at upstream and gives its URL.
    pub fn upload(&self, name: &str, seed: u64) -> String {
        let raw = images::raw_disk(self.dir.path(), name, 32 << 20, 4, seed);
        self.nginx.put(&format!("{name}.qcow2"), &std::fs::read(images::qcow2(&raw)).expect("the image"));
        format!("http://{}/{name}.qcow2", self.nginx.http)
    }

    /// How often an image was fetched.
    pub fn fetches(&self, name: &str) -> usize {
        self.nginx.log(&format!("/{name}.qcow2"), 0).iter().filter(|line| line.method == "GET").count()
    }

    /// `helm VERB RELEASE CHART` with values, as a hoster runs it.
    pub async fn helm(&self, verb: &str, release: &str, namespace: &str, chart: &std::path::Path, values: &Value, more: &[&str]) -> Output {
        let file = self.dir.join(format!("values-{}.json", harness::unique()));
        std::fs::write(&file, values.to_string()).expect("write the values");
        let (chart, file) = (chart.to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
        let fixed = [verb, release, chart, "--namespace", namespace, "--values", file];
        self.cluster.helm(fixed.iter().chain(more)).await
    }

    /// `helm VERB` of the catalog's chart.
    pub async fn catalog(&self, verb: &str, release: &str, namespace: &str, list: Value, more: &[&str]) -> Output {
        self.helm(verb, release, namespace, &harness::chart::folder(), &json!({ "images": list }), more).await
    }

    /// The Pod of a release: the real daemon as the chart's ServiceAccount, ready.
    pub async fn daemon(&self, name: &str, namespace: &str) -> Daemon {
        let kubeconfig = self.cluster.kubeconfig_as_service_account(namespace, harness::chart::CONTROLLER).await;
        let (health, metrics) = (Port::reserve(), Port::reserve());
        let settings = self.dir.join(format!("{name}.yaml"));
        let lease = json!({ "duration": "15s", "renewDeadline": "10s", "retryPeriod": "500ms" });
        let text = json!({ "lease": lease, "backoffMin": "1s", "backoffMax": "5s", "notFoundInterval": "5s", "spoolSize": "5Gi" });
        std::fs::write(&settings, text.to_string()).expect("settings");
        let daemon = Daemon::builder(name)
            .args([
                "run".to_owned(),
                format!("--namespace={namespace}"),
                format!("--catalog-namespace={CATALOG}"),
                format!("--identity={name}"),
                format!("--spool-dir={}", self.dir.join(format!("spool-{name}")).display()),
                format!("--spool-listen={}", self.spool.address()),
                format!("--health-listen={}", health.address()),
                format!("--metrics-listen={}", metrics.address()),
                format!("--config={}", settings.display()),
                "--access-enforced".to_owned(),
                "--egress-allow-loopback".to_owned(),
                "--log-format=text".to_owned(),
                "--log=info,golden_catalog=debug".to_owned(),
            ])
            .kubeconfig(&kubeconfig)
            .health(health.address())
            .keeping([health, metrics])
            .start();
        daemon.ready().await;
        daemon
    }

    pub fn images(&self) -> Api<GoldenImage> {
        Api::all(self.cluster.admin())
    }

    /// Deletes an image that waits for its goldens.
    pub async fn delete_and_hang(&self, image: &str) {
        self.cluster.kubectl(["delete", "goldenimage", image, "--wait=false"]).await.ok();
        let hangs = self.images().get_opt(image).await.expect("asked").expect("its finalizer holds it");
        assert!(hangs.metadata.deletion_timestamp.is_some() && !hangs.finalizers().is_empty(), "{:?}", hangs.metadata);
    }

    pub async fn until_gone(&self, image: &str) {
        harness::eventually(&format!("{image} is gone"), async || match self.images().get_opt(image).await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }

    pub async fn until_ready(&self, image: &str) {
        harness::until_condition(self.images(), image, "Ready", "True").await;
    }

    /// What must outlive every release: GoldenImages, goldens and their claims, by kind and name, with their UIDs.
    pub async fn kept(&self) -> BTreeMap<String, String> {
        let admin = self.cluster.admin();
        let mut kept = BTreeMap::new();
        for (version, kind, namespace) in [
            ("cozystack.io/v1alpha1", "GoldenImage", ""),
            ("cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG),
            ("v1", "PersistentVolumeClaim", CATALOG),
        ] {
            let api: Api<DynamicObject> = self.cluster.api(&admin, version, kind, namespace).await;
            let list = api.list(&Default::default()).await.expect("list");
            // A scratch claim of an import that just ended may still be on its way out.
            let own =
                list.into_iter().filter(|object| !object.name_any().ends_with("-scratch") && !object.name_any().starts_with("prime-"));
            kept.extend(own.map(|object| (format!("{kind}/{}", object.name_any()), object.uid().expect("a UID"))));
        }
        kept
    }

    /// Every object of every kind that a list can have, as `kind namespace/name`, that `choose` chooses.
    pub async fn all_objects(&self, choose: impl Fn(&Value) -> bool) -> Vec<String> {
        let kinds = self.cluster.kubectl(["api-resources", "--verbs=list", "-o", "name"]).await.ok();
        let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events") && !kind.starts_with("componentstatuses")).collect();
        let text = self.cluster.kubectl(["get", &kinds.join(","), "--all-namespaces", "-o", "json", "--ignore-not-found"]).await.ok();
        let list: Value = serde_json::from_str(&text).expect("JSON");
        let items = list["items"].as_array().expect("items");
        assert!(items.len() > 20, "a cluster has more than {}", items.len());
        let shown = |item: &Value| {
            let text = |pointer: &str| item.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            format!("{} {}/{}", text("/kind"), text("/metadata/namespace"), text("/metadata/name"))
        };
        items.iter().filter(|item| choose(item)).map(shown).collect()
    }

    /// Waits until nothing is left of a release but what must be kept, and nothing hangs on its way out.
    pub async fn nothing_left_of(&self, release: &str) {
        harness::eventually("nothing is left of the release", async || {
            let of_release =
                |item: &Value| item.pointer("/metadata/labels/app.kubernetes.io~1instance").and_then(Value::as_str) == Some(release);
            let hangs = |item: &Value| item.pointer("/metadata/deletionTimestamp").is_some();
            let hook = |item: &Value| {
                item["kind"].as_str().is_some_and(|kind| kind.ends_with("WebhookConfiguration"))
                    && item.pointer("/metadata/name").and_then(Value::as_str).is_some_and(|name| name.contains("golden-catalog"))
            };
            let left = self.all_objects(|item| of_release(item) || hangs(item) || hook(item)).await;
            if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
        })
        .await;
    }
}
