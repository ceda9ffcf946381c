//! Without a kube-controller-manager, and with settings that would disturb the tests of the shared cluster: default classes, proxies, other versions, lean mode.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use sha2::Digest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    cdi::{
        CONFIG_NAME, CdiStandIn, Controllers, Options, names,
        types::{CDIConfig, DataVolume, StorageProfile},
    },
    harness::{self, Cluster, Needs, until, until_gone},
    upstream::{Answer, DISK, HOST, UPSTREAM},
};

struct Alone {
    cluster: Cluster,
    cdi: CdiStandIn,
    /// Kept until the stand-in has stopped.
    _volumes: harness::ScratchDir,
}

async fn alone(change: impl FnOnce(&mut Options)) -> Option<Alone> {
    alone_on(cluster().await?, change).await
}

async fn cluster() -> Option<Cluster> {
    crate::CLUSTER.on(Needs::Scripted).await?;
    Some(Cluster::start(harness::Options::default().foreign_crds(harness::Flavor::chosen())).await)
}

async fn alone_on(cluster: Cluster, change: impl FnOnce(&mut Options)) -> Option<Alone> {
    let dir = harness::scratch_dir("cdi");
    let mut options = Options::new(dir.path()).dial(HOST, UPSTREAM.address);
    options.controllers = Controllers::StandIn;
    change(&mut options);
    let cdi = CdiStandIn::start(cluster.admin(), options).await;
    let ca = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "access" }, "data": { "ca.crt": UPSTREAM.ca } });
    cluster.apply_in("default", &ca.to_string()).await;
    Some(Alone { cluster, cdi, _volumes: dir })
}

impl Alone {
    fn dvs(&self) -> Api<DataVolume> {
        Api::namespaced(self.cluster.admin(), "default")
    }

    async fn class(&self, name: &str, annotations: Value) {
        let class = json!({ "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name, "annotations": annotations }, "provisioner": "one.csi.example" });
        self.cluster.apply(&class.to_string()).await;
    }

    async fn import(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let url = UPSTREAM.put(&format!("/alone-{}/{name}", harness::unique()), Answer::File(DISK.qcow2.clone()));
        let mut dv = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": name },
            "spec": { "source": { "http": { "url": url, "certConfigMap": "access" } }, "storage": { "resources": { "requests": { "storage": "16Mi" } } } },
        });
        change(&mut dv);
        self.cluster.apply_in("default", &dv.to_string()).await;
    }

    async fn until(&self, name: &str, what: &str, holds: impl FnMut(&DataVolume) -> bool) -> DataVolume {
        until(self.dvs(), name, what, holds).await
    }

    async fn until_succeeded(&self, name: &str) -> DataVolume {
        self.until(name, "Succeeded", |dv| dv.status.as_ref().is_some_and(|status| status.phase == "Succeeded") && bound(dv).0 == "True")
            .await
    }

    async fn class_of(&self, claim: &str) -> String {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.cluster.admin(), "default");
        claims.get(claim).await.unwrap().spec.unwrap().storage_class_name.unwrap()
    }
}

fn bound(dv: &DataVolume) -> (String, String) {
    harness::condition(dv, "Bound").map(|bound| (bound.status, bound.reason)).unwrap_or_default()
}

/// No default class: no phase, `ErrClaimNotValid`, starts by itself when one comes. Then CDI's order: virt default, newest default, beta annotation.
/// Without a controller manager the stand-in binds, and collects what a deleted DataVolume leaves.
#[tokio::test]
async fn default_classes_are_resolved_as_cdi_does() {
    let Some(alone) = alone(|_| {}).await else { return };
    alone.import("waiting", |_| {}).await;
    let dv = alone.until("waiting", "ErrClaimNotValid", |dv| bound(dv).1 == "ErrClaimNotValid").await;
    assert_eq!(dv.status.unwrap().phase, "");
    alone.class("plain", json!({})).await;
    alone.class("beta", json!({ names::BETA_DEFAULT_CLASS: "true" })).await;
    alone.until_succeeded("waiting").await;
    assert_eq!(alone.class_of("waiting").await, "beta");
    let profiles: Api<StorageProfile> = Api::all(alone.cluster.admin());
    let filled = |profile: &StorageProfile| profile.status.is_some();
    let profile = until(profiles.clone(), "plain", "filled", filled).await.status.unwrap();
    assert_eq!(profile.claim_property_sets.unwrap()[0].access_modes, ["ReadWriteMany"]);
    assert_eq!(profile.clone_strategy.as_deref(), Some("csi-clone"));

    alone.class("virt", json!({ names::DEFAULT_VIRT_CLASS: "true" })).await;
    until(profiles, "virt", "the class is known", filled).await;
    alone.import("virtual", |_| {}).await;
    alone.until_succeeded("virtual").await;
    assert_eq!(alone.class_of("virtual").await, "virt");
    alone.import("archive", |dv| dv["spec"]["contentType"] = json!("archive")).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(alone.cluster.admin(), "default");
    until(claims.clone(), "archive", "there", |_: &PersistentVolumeClaim| true).await;
    assert_eq!(alone.class_of("archive").await, "beta", "archives take the Kubernetes default");

    let volume = claims.get("virtual").await.unwrap().spec.unwrap().volume_name.unwrap();
    let file = alone.cdi.disk("default", "virtual").await.unwrap();
    assert_eq!(std::fs::read(&file).unwrap()[..DISK.raw.len()], DISK.raw);
    alone.dvs().delete("virtual", &DeleteParams::default()).await.unwrap();
    until_gone(claims, "virtual").await;
    until_gone(Api::<PersistentVolume>::all(alone.cluster.admin()), &volume).await;
    assert!(!file.exists());
}

/// CDIConfig: overhead global and by class, minimum size of a profile, and an import proxy that importers go through unless `noProxy` has the host.
#[tokio::test]
async fn config_and_proxy_are_obeyed() {
    let Some(alone) = alone(|_| {}).await else { return };
    alone.class("plain", json!({})).await;
    alone.class("large", json!({})).await;
    let configs: Api<CDIConfig> = Api::all(alone.cluster.admin());
    let filled = |config: &CDIConfig| {
        config
            .status
            .as_ref()
            .is_some_and(|status| status.filesystem_overhead.as_ref().is_some_and(|overhead| overhead.storage_class.len() == 2))
    };
    let config = until(configs.clone(), CONFIG_NAME, "filled", filled).await;
    assert_eq!(config.status.unwrap().filesystem_overhead.unwrap().global.as_deref(), Some("0.06"));

    let proxy = Proxy::start(UPSTREAM.address).await;
    let spec = json!({ "spec": {
        "filesystemOverhead": { "global": "0.1", "storageClass": { "large": "0.5" } },
        "importProxy": { "HTTPSProxy": proxy.url, "noProxy": "other.example" },
    } });
    configs.patch(CONFIG_NAME, &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
    until(configs.clone(), CONFIG_NAME, "the proxy is in force", |config: &CDIConfig| {
        config.status.as_ref().is_some_and(|status| status.import_proxy.is_some())
    })
    .await;
    for (name, class, size) in [("ten", "plain", 18_454_938u64), ("fifty", "large", 25_165_824)] {
        alone
            .import(name, |dv| {
                dv["spec"]["storage"]["storageClassName"] = json!(class);
                dv["spec"]["storage"]["volumeMode"] = json!("Filesystem");
            })
            .await;
        alone.until_succeeded(name).await;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(alone.cluster.admin(), "default");
        let asked = claims.get(name).await.unwrap().spec.unwrap().resources.unwrap().requests.unwrap()["storage"].0.clone();
        assert_eq!(asked, size.to_string(), "{name}");
    }
    assert!(
        proxy.seen().iter().all(|line| line == "CONNECT spool.example.svc:8443 HTTP/1.1") && !proxy.seen().is_empty(),
        "{:?}",
        proxy.seen()
    );

    let seen = proxy.seen().len();
    let spec = json!({ "spec": { "importProxy": { "noProxy": ".svc" } } });
    configs.patch(CONFIG_NAME, &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
    let excluded = |config: &CDIConfig| {
        config.status.as_ref().and_then(|status| status.import_proxy.as_ref()).and_then(|proxy| proxy.no_proxy.as_deref()) == Some(".svc")
    };
    until(configs, CONFIG_NAME, "noProxy is in force", excluded).await;
    alone.import("direct", |dv| dv["spec"]["storage"]["storageClassName"] = json!("plain")).await;
    alone.until_succeeded("direct").await;
    assert_eq!(proxy.seen().len(), seen);

    let profiles: Api<StorageProfile> = Api::all(alone.cluster.admin());
    let minimum = json!({ "metadata": { "annotations": { names::MINIMUM_PVC_SIZE: "64Mi" } } });
    profiles.patch("plain", &PatchParams::default(), &Patch::Merge(minimum)).await.unwrap();
    let asked = harness::eventually("the minimum is known", async || {
        let name = format!("minimum-{}", harness::unique());
        alone.import(&name, |dv| dv["spec"]["storage"]["storageClassName"] = json!("plain")).await;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(alone.cluster.admin(), "default");
        let claim = until(claims, &name, "there", |_: &PersistentVolumeClaim| true).await;
        let asked = claim.spec.unwrap().resources.unwrap().requests.unwrap()["storage"].0.clone();
        if asked == "16Mi" { Err(asked) } else { Ok(asked) }
    })
    .await;
    assert_eq!(asked, (64 << 20).to_string());
}

/// CDI v1.65 knows `http.checksum`: a match imports, a mismatch is `Failed` for good.
#[tokio::test]
async fn a_newer_cdi_checks_sums() {
    let Some(cluster) = cluster().await else { return };
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.admin());
    for crd in ["datavolumes.cdi.kubevirt.io", "volumeimportsources.cdi.kubevirt.io"] {
        let at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/source/properties/http/properties/checksum";
        let patch: Patch<()> =
            Patch::Json(serde_json::from_value(json!([{ "op": "add", "path": at, "value": { "type": "string" } }])).unwrap());
        crds.patch(crd, &PatchParams::default(), &patch).await.unwrap();
    }
    // The API server takes a moment to serve the new schema, and keeps the old one on watches that run: the stand-in starts after.
    harness::eventually("the checksum is known", async || {
        let dv = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "probe" },
            "spec": { "source": { "http": { "url": "https://example.org", "checksum": "sha256:00" } }, "storage": { "resources": { "requests": { "storage": "16Mi" } } } },
        });
        let client = cluster.admin();
        cluster.try_apply(&client, "default", &dv.to_string()).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    let Some(alone) = alone_on(cluster, |_| {}).await else { return };
    alone.class("plain", json!({ names::DEFAULT_CLASS: "true" })).await;
    let sum: String = sha2::Sha256::digest(&**DISK.qcow2).iter().map(|byte| format!("{byte:02x}")).collect();
    alone.import("right", |dv| dv["spec"]["source"]["http"]["checksum"] = json!(format!("sha256:{sum}"))).await;
    alone.import("wrong", |dv| dv["spec"]["source"]["http"]["checksum"] = json!(format!("sha256:{}", "0".repeat(64)))).await;
    alone.until_succeeded("right").await;
    let dv = alone.until("wrong", "Failed", |dv| dv.status.as_ref().is_some_and(|status| status.phase == "Failed")).await;
    assert_eq!(harness::condition(&dv, "Running").unwrap().reason, "ChecksumError");
}

/// Lean mode makes no temporaries and writes a tenth; without StorageProfiles (an older CDI) modes must be stated.
#[tokio::test]
async fn lean_mode_and_a_cdi_without_profiles() {
    let Some(full) = alone(|options| options.padding_writes = 50).await else { return };
    full.class("plain", json!({ names::DEFAULT_CLASS: "true" })).await;
    full.import("golden", |_| {}).await;
    full.until_succeeded("golden").await;
    // Its temporaries go after that.
    harness::eventually("padded to CDI's own number", async || {
        let many = full.cdi.writes();
        if many.total >= 90 { Ok(()) } else { Err(format!("{many:?}")) }
    })
    .await;

    let lean = alone(|options| {
        *options = options.clone().lean();
        options.keep_disks = true;
        options.storage_profiles = false;
        // What a slow transfer tells on its way are writes too.
        options.progress_interval = std::time::Duration::from_secs(3600);
    });
    let Some(lean) = lean.await else { return };
    lean.class("plain", json!({ names::DEFAULT_CLASS: "true" })).await;
    lean.import("vague", |_| {}).await;
    lean.until("vague", "ErrClaimNotValid, by the class that is there", |dv| {
        let told = harness::condition(dv, "Bound");
        told.is_some_and(|told| told.reason == "ErrClaimNotValid" && told.message.contains("from StorageProfile plain"))
    })
    .await;
    // The last that is written without an import.
    until(Api::<CDIConfig>::all(lean.cluster.admin()), CONFIG_NAME, "filled", |config: &CDIConfig| {
        let overhead = config.status.as_ref().and_then(|status| status.filesystem_overhead.as_ref());
        overhead.is_some_and(|overhead| overhead.storage_class.contains_key("plain"))
    })
    .await;
    let before = lean.cdi.writes().total;
    lean.import("golden", |dv| {
        dv["spec"]["storage"]["accessModes"] = json!(["ReadWriteOnce"]);
        dv["spec"]["storage"]["volumeMode"] = json!("Block");
    })
    .await;
    lean.until_succeeded("golden").await;
    let few = lean.cdi.writes();
    assert!(few.total - before <= 15, "{few:?}");
    assert_eq!(few.events, 0);
    assert_eq!(lean.cdi.requests_of("default", "golden"), ["HEAD 200", "GET 200", "HEAD 200", "GET 200"]);
    assert_eq!(std::fs::read(lean.cdi.disk("default", "golden").await.unwrap()).unwrap()[..DISK.raw.len()], DISK.raw);
}

/// A CONNECT proxy that knows one destination.
struct Proxy {
    url: String,
    lines: Arc<std::sync::Mutex<Vec<String>>>,
}

impl Proxy {
    async fn start(to: std::net::SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let lines = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = lines.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let seen = seen.clone();
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let mut byte = [0];
                        if client.read(&mut byte).await.unwrap_or(0) == 0 {
                            return;
                        }
                        head.push(byte[0]);
                    }
                    seen.lock().unwrap().push(String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned());
                    let mut upstream = tokio::net::TcpStream::connect(to).await.unwrap();
                    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
                });
            }
        });
        Self { url, lines }
    }

    fn seen(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}
