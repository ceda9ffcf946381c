//! The whole daemon with private upstreams: credentials from Secrets, their rotation, and no trace of them anywhere.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{ConfigMap, Secret},
        events::v1::Event,
    },
};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    harness::{self, Cluster, Needs},
    stage::{CATALOG, NAMESPACE, Options, Stage, images},
    support::Disk,
    upstream::{
        Answer, Authority, Upstream,
        layout::{Layout, digest, gzip, tar},
        nginx::Nginx,
        registry::{Guard, Registry, USER},
    },
};

static CLUSTER: harness::Shared =
    harness::Shared::new(|| harness::Options::default().controller_manager().foreign_crds(harness::Flavor::chosen()));

async fn cluster() -> Option<&'static Cluster> {
    CLUSTER.on(Needs::Scripted).await
}

const RIGHT: &str = "hunter2-correct-horse";
const WRONG: &str = "hunter2-and-three";
const BEARER: &str = "hunter2-token-of-the-factory";
const SIGNATURE: &str = "hunter2-51gnature";
const SCHEMATIC: &str = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";

async fn secret(cluster: &Cluster, name: &str, kind: &str, data: &[(&str, String)]) {
    let api: Api<Secret> = Api::namespaced(cluster.admin(), NAMESPACE);
    let data: BTreeMap<_, _> = data.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.clone().into_bytes()))).collect();
    let body = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "type": kind, "data": data });
    api.patch(name, &PatchParams::apply("hoster").force(), &Patch::Apply(&body)).await.expect("Secret");
}

fn docker_config(host: &str, password: &str) -> [(&'static str, String); 1] {
    let auth = STANDARD.encode(format!("{USER}:{password}"));
    [(".dockerconfigjson", json!({ "auths": { host: { "auth": auth } } }).to_string())]
}

#[tokio::test(flavor = "multi_thread")]
async fn private_images_become_goldens_and_no_secret_leaves_the_daemons_namespace() {
    let Some(cluster) = cluster().await else { return };
    let authority = Authority::new();
    let registry = Registry::start(&authority, Guard::Token, RIGHT).await;
    let dir = TempDir::new().expect("dir");
    let disk = Disk::get();
    let mut layout = Layout::default();
    let kairos = layout.image("amd64", &[gzip(&tar(&[("disk/kairos.qcow2", &disk.qcow2)]))], &[]);
    let environment = ["INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.medium", "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE=fedora"];
    let fedora = layout.image("amd64", &[gzip(&tar(&[("disk/fedora.qcow2", &disk.qcow2)]))], &environment);
    let from = layout.write(dir.path(), &[("v1-k3s-v1.35.6-k3s1", &kairos), ("41", &fedora)]);
    let kairos = registry.push(&from, "v1-k3s-v1.35.6-k3s1", "workers/kairos", &[]);
    let fedora = registry.push(&from, "41", "vms/fedora", &[]);

    // A password for a file, a token for a factory, and a registry whose blobs lie behind a signed address that fails once.
    let users = dir.path().join("users");
    images::run("htpasswd", &["-bcm", &users.display().to_string(), USER, RIGHT]);
    let guarded = format!("location /private/ {{ auth_basic e2e; auth_basic_user_file {}; }}", users.display());
    let nginx = Nginx::start(&authority, &["localhost", "127.0.0.1"], &guarded);
    nginx.put("private/disk.qcow2", &disk.qcow2);
    let factory = Upstream::start_tls(&authority, &["127.0.0.1"]).await;
    let disk_path = format!("/image/{SCHEMATIC}/v1.13.6/openstack-amd64.raw.xz");
    let packed = std::fs::read(images::raw_xz(&disk.raw)).expect("xz");
    factory.on(&disk_path, Answer::new(200, packed));
    let (hub, store) = (Upstream::start_tls(&authority, &["127.0.0.1"]).await, Upstream::start_tls(&authority, &["127.0.0.1"]).await);
    let mut other = Layout::default();
    let layer = gzip(&tar(&[("disk/disk.qcow2", &disk.qcow2)]));
    let signed = other.image("amd64", std::slice::from_ref(&layer), &["SIGNED=yes"]);
    other.serve(&hub, "a/b");
    hub.on(&format!("/v2/a/b/blobs/{}", digest(&layer)), Answer::redirect(302, &store.url(&format!("/blob?X-Amz-Signature={SIGNATURE}"))));
    store.sequence("/blob", [Answer::text(403, &format!("no: {SIGNATURE}")), Answer::file(layer)]);

    let named = |name: &str| json!({ "name": name });
    let all = json!({ "policy": "AllTenants" });
    let list = json!([
        { "name": "kairos-v1.35", "reference": kairos, "kubernetesVersion": "v1.35.6+k3s1", "credentialsSecretRef": named("reg"), "access": all },
        { "name": "fedora", "reference": fedora, "credentialsSecretRef": named("later"), "access": all },
        { "name": "file", "url": format!("https://{}/private/disk.qcow2", nginx.https), "credentialsSecretRef": named("pair"), "access": all },
        { "schematicID": SCHEMATIC, "version": "v1.13.6", "factoryURL": factory.url(""), "credentialsSecretRef": named("bearer"), "access": all },
        { "name": "signed", "reference": format!("{}/a/b@{signed}", hub.address) },
        { "name": "few", "url": format!("https://{}/private/disk.qcow2?few", nginx.https), "credentialsSecretRef": named("pair"),
          "access": { "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } } },
        { "name": "signed-file", "url": factory.url(&format!("/file.qcow2?X-Amz-Signature={SIGNATURE}")) },
    ]);
    // What no chart lets through: a list that was edited by hand, with secrets where none may stand.
    let host = factory.address;
    let by_hand = json!([
        { "name": "password-in-url", "url": format!("https://{USER}:{RIGHT}@{host}/file.qcow2") },
        { "name": "password-in-reference", "reference": format!("{USER}:{RIGHT}@{host}/a/b@{signed}") },
        { "name": "password-without-a-scheme", "url": format!("{USER}:{RIGHT}@{host}/file.qcow2") },
        { "name": "signed-without-a-scheme", "url": format!("{host}/file.qcow2?X-Amz-Signature={SIGNATURE}") },
        { "name": "password-in-factory", "schematicID": SCHEMATIC, "version": "v1.13.7", "factoryURL": format!("https://{USER}:{RIGHT}@{host}") },
    ]);
    factory.sequence(
        "/file.qcow2",
        [Answer::text(403, &format!("no: https://{USER}:{RIGHT}@{host}/?{SIGNATURE}")), Answer::file(disk.qcow2.clone())],
    );
    let settings = json!({ "egress": { "caBundle": authority.pem(), "allowPrivateRedirects": true }, "notFoundInterval": "1h", "patience": "1h", "backoffMin": "1s" });
    let stage = Stage::set(cluster, Options { images: list.clone(), settings, ..Options::default() }).await;
    add_by_hand(cluster, &list, &by_hand).await;
    secret(cluster, "reg", "kubernetes.io/dockerconfigjson", &docker_config(&registry.address.to_string(), WRONG)).await;
    secret(cluster, "pair", "kubernetes.io/basic-auth", &[("username", USER.to_owned()), ("password", RIGHT.to_owned())]).await;
    secret(cluster, "bearer", "Opaque", &[("token", format!("{BEARER}\n"))]).await;
    let daemon = stage.daemon("a");
    daemon.ready().await;

    // What is missing is named, and what is wrong is never tried without it.
    let missing = stage.until_reason("fedora", "ReferenceNotFound").await;
    let told = harness::condition(&missing, "Ready").expect("Ready").message;
    assert!(told.contains(&format!("{NAMESPACE}/later")), "{told}");
    stage.until_reason("kairos-v1.35", "Unauthorized").await;
    let held = stage.until_reason("few", "AccessNotEnforced").await;
    assert!(harness::condition(&held, "Ready").expect("Ready").message.contains("AllTenants"), "{held:?}");
    stage.until("file", "Ready", "True").await;
    stage.until("talos-v1.13.6-b5a1de36eb14", "Ready", "True").await;
    stage.until("signed", "Ready", "True").await;
    stage.until("signed-file", "Ready", "True").await;
    told_of(cluster, &by_hand).await;

    // A Secret that does not hold the host, then the right one, and a rotated one: each is used without a restart.
    secret(cluster, "later", "kubernetes.io/dockerconfigjson", &docker_config("elsewhere.example", RIGHT)).await;
    harness::until(stage.images(), "fedora", "the missing host is named", |image: &golden_catalog::api::GoldenImage| {
        harness::condition(image, "Ready")
            .is_some_and(|ready| ready.message.contains(&format!("has no entry for {}/vms/fedora", registry.address)))
    })
    .await;
    secret(cluster, "later", "kubernetes.io/dockerconfigjson", &docker_config(&registry.address.to_string(), RIGHT)).await;
    secret(cluster, "reg", "kubernetes.io/dockerconfigjson", &docker_config(&registry.address.to_string(), RIGHT)).await;
    for name in ["fedora", "kairos-v1.35"] {
        stage.until(name, "Ready", "True").await;
    }

    images::same_content(&stage.disk("kairos-worker-kairos-v1.35").await, "raw", &disk.raw, "raw");
    let image = stage.images().get("kairos-v1.35").await.expect("image").status.expect("status");
    assert_eq!(image.operating_system.and_then(|os| os.kubernetes_version).as_deref(), Some("v1.35.6+k3s1"));
    let artifact = image.artifact.expect("artifact");
    assert!(kairos.ends_with(artifact.manifest_digest.as_deref().expect("manifest")), "{artifact:?}");
    // Defaults come from the container disk, and reach the volume that KubeVirt reads them from.
    let image = stage.images().get("fedora").await.expect("image").status.expect("status");
    assert_eq!(image.defaults.and_then(|defaults| defaults.preference).as_deref(), Some("fedora"));
    let claims: Api<DynamicObject> = cluster.api(&cluster.admin(), "v1", "PersistentVolumeClaim", CATALOG).await;
    let claim = claims.get("vm-default-images-fedora").await.expect("claim");
    assert_eq!(claim.labels().get("instancetype.kubevirt.io/default-instancetype").map(String::as_str), Some("u1.medium"));
    let shown: Vec<_> = factory.hits(&disk_path).iter().filter_map(|hit| hit.header("authorization").map(str::to_owned)).collect();
    assert_eq!(shown.first().map(String::as_str), Some(format!("Bearer {BEARER}").as_str()));
    let asked = registry.tokens.as_ref().expect("tokens").asked();
    assert_eq!(asked.anonymous, 0, "a wrong password never becomes an anonymous request");
    assert!(asked.refused > 0 && !asked.given.is_empty());

    // The mark of the tests' secrets is looked for by the harness, too, in every stage.
    let mut places = stage.shown().await;
    places.extend([("the log".to_owned(), daemon.log()), ("the metrics".to_owned(), stage.metrics().await)]);
    assert!(places.iter().filter(|(place, _)| place.starts_with("events")).count() > 5, "the Events are among them");
    assert!(places.iter().any(|(_, text)| text.contains("golden_image_")), "the metrics are among them");
    for (place, text) in &places {
        harness::assert_no_leak(place, text);
        assert!(!text.contains(&format!("{USER}:")), "{place} holds `user:pass@`");
        for token in &asked.given {
            assert!(!text.contains(token.as_str()), "{place} holds a token");
        }
    }
}

/// Sets the list that the daemon reads, past the chart.
async fn add_by_hand(cluster: &Cluster, list: &serde_json::Value, more: &serde_json::Value) {
    let images: Vec<_> = list.as_array().into_iter().chain(more.as_array()).flatten().collect();
    let patch = json!({ "data": { "images.yaml": json!({ "images": images }).to_string() } });
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin(), NAMESPACE);
    maps.patch("golden-catalog-images", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("the list is set");
}

/// Waits for an Event about each of these entries: they are refused, by name and without what they held.
async fn told_of(cluster: &Cluster, entries: &serde_json::Value) {
    let events: Api<Event> = Api::namespaced(cluster.admin(), NAMESPACE);
    harness::eventually("each bad entry is told", async || {
        let notes: Vec<_> = events
            .list(&Default::default())
            .await
            .map_err(|error| error.to_string())?
            .items
            .into_iter()
            .filter_map(|event| event.note)
            .collect();
        let names = entries.as_array().into_iter().flatten().filter_map(|entry| entry["name"].as_str());
        match names.into_iter().find(|name| !notes.iter().any(|note| note.contains(&format!("({name})")))) {
            None => Ok(()),
            Some(name) => Err(format!("nothing of {name}: {notes:?}")),
        }
    })
    .await;
}
