//! The API itself: what the CRD accepts and refuses, on create and on update, on a real API server with the daemon down.

#[path = "harness/mod.rs"]
mod harness;

use golden_catalog::api::GoldenImage;
use harness::{Cluster, Needs};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Mutex;

static CLUSTER: harness::Shared = harness::Shared::new(harness::Options::default);

async fn cluster() -> Option<Scope> {
    let cluster = CLUSTER.on(Needs::Any).await?;
    cluster.install_product_crds().await;
    Some(Scope { cluster, made: Mutex::default() })
}

/// The cluster and what a test made there. A whole cluster keeps none of it.
struct Scope {
    cluster: &'static Cluster,
    made: Mutex<Vec<String>>,
}

impl std::ops::Deref for Scope {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let made = self.made.lock().expect("names");
        if self.is_whole() && !made.is_empty() {
            let delete = std::process::Command::new(harness::kubectl())
                .args(["delete", "goldenimages", "--ignore-not-found", "--wait=false"])
                .args(&*made)
                .env("KUBECONFIG", self.admin_kubeconfig())
                .output();
            assert!(delete.is_ok_and(|output| output.status.success()) || std::thread::panicking(), "GoldenImages left behind: {made:?}");
        }
    }
}

const ID: &str = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";

fn talos(more: Value) -> Value {
    let mut source = json!({ "schematicID": ID, "version": "v1.13.6" });
    source.as_object_mut().expect("map").extend(more.as_object().expect("map").clone());
    json!({ "source": { "talosFactory": source } })
}

fn document(schematic: &str) -> Value {
    json!({ "source": { "talosFactory": { "schematic": schematic, "version": "v1.13.6" } } })
}

fn http(more: Value) -> Value {
    let mut spec = json!({ "source": { "http": { "url": "https://images.example.org/a.qcow2" } } });
    spec.as_object_mut().expect("map").extend(more.as_object().expect("map").clone());
    spec
}

const DIGEST: &str = "sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";

fn disk(reference: &str, more: Value) -> Value {
    let mut spec = json!({ "source": { "containerDisk": { "reference": reference } } });
    spec.as_object_mut().expect("map").extend(more.as_object().expect("map").clone());
    spec
}

fn pinned(more: Value) -> Value {
    disk(&format!("registry.example.com:5000/workers/kairos:v1@{DIGEST}"), more)
}

fn object(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name }, "spec": spec })
}

/// Creates an object with strict field validation and gives the server's refusal.
async fn create(cluster: &Scope, name: &str, spec: &Value) -> Result<(), String> {
    cluster.made.lock().expect("names").push(name.to_owned());
    let yaml = object(name, spec).to_string();
    cluster.try_apply(&cluster.admin(), "", &yaml).await.map(drop).map_err(|error| match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    })
}

fn name() -> String {
    format!("t-{}", harness::unique())
}

#[tokio::test]
async fn good_objects_are_accepted() {
    let Some(cluster) = &cluster().await else { return };
    for spec in [
        talos(json!({})),
        talos(
            json!({ "platform": "nocloud", "architecture": "arm64", "secureBoot": true, "factoryURL": "https://factory.example.org/sub" }),
        ),
        json!({ "source": { "talosFactory": { "schematic": "customization:\n  systemExtensions:\n    officialExtensions: [siderolabs/gvisor]\n", "version": "v1.13.6" } } }),
        http(json!({})),
        http(
            json!({ "digest": format!("sha256:{}", "0a".repeat(32)), "description": "A line.", "usages": ["VirtualMachine", "Worker"], "suspend": true }),
        ),
        http(json!({ "operatingSystem": { "family": "ubuntu", "name": "Ubuntu", "version": "24.04" }, "caBundleRef": { "name": "ca" } })),
        http(
            json!({ "storage": { "targets": [{}, { "storageClassName": "local", "size": "6442450944", "volumeMode": "Block", "accessModes": ["ReadWriteOnce"] }] } }),
        ),
        http(json!({ "storage": { "targets": [{ "size": "1.5Gi" }] } })),
        pinned(json!({})),
        pinned(json!({ "operatingSystem": { "family": "kairos", "kubernetesVersion": "v1.35.6+k3s1" } })),
        pinned(json!({ "credentialsSecretRef": { "name": "reg" }, "access": { "policy": "AllTenants" } })),
        pinned(json!({ "access": { "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } } })),
        pinned(
            json!({ "access": { "policy": "Selected", "namespaceSelector": { "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["a"] }] } } }),
        ),
        pinned(json!({ "defaults": { "instancetype": "u1.medium", "preference": "fedora" } })),
    ] {
        assert_eq!(create(cluster, &name(), &spec).await, Ok(()), "{spec}");
    }
}

#[tokio::test]
async fn bad_objects_are_refused_and_the_message_names_the_field() {
    let Some(cluster) = &cluster().await else { return };
    let nine: Vec<_> = (0..9).map(|n| json!({ "storageClassName": format!("c{n}") })).collect();
    for (spec, expected) in [
        (json!({}), "spec.source"),
        (json!({ "source": {} }), "exactly one of talosFactory"),
        (
            json!({ "source": { "http": { "url": "https://e.example/" }, "talosFactory": { "schematicID": "a", "version": "v1.0.0" } } }),
            "exactly one of talosFactory",
        ),
        (json!({ "source": { "talosFactory": { "version": "v1.0.0" } } }), "exactly one of schematicID"),
        (talos(json!({ "schematic": "customization: {}" })), "exactly one of schematicID"),
        (json!({ "source": { "talosFactory": { "version": "v1.0.0", "schematic": { "customization": {} } } } }), "schematic"),
        (talos(json!({ "schematicID": "A" })), "schematicID"),
        (talos(json!({ "schematicID": "a".repeat(65) })), "schematicID"),
        (talos(json!({ "schematicID": "" })), "schematicID"),
        (talos(json!({ "version": "1.13.6" })), "version"),
        (talos(json!({ "version": "v1.13" })), "version"),
        (talos(json!({ "version": "v1.013.6" })), "version"),
        (talos(json!({ "architecture": "x86_64" })), "architecture"),
        (talos(json!({ "platform": "Open-Stack" })), "platform"),
        (talos(json!({ "factoryURL": "https://user:pass@factory.example.org" })), "factoryURL"),
        (talos(json!({ "factoryURL": "ftp://factory.example.org" })), "factoryURL"),
        (json!({ "source": { "http": { "url": "images.example.org/a" } } }), "url"),
        (json!({ "source": { "http": { "url": "https://user:pass@images.example.org/a" } } }), "url"),
        (json!({ "source": { "http": { "url": format!("https://e.example/{}", "a".repeat(2048)) } } }), "url"),
        (http(json!({ "digest": "sha256:00" })), "digest"),
        (http(json!({ "digest": format!("sha512:{}", "0".repeat(64)) })), "digest"),
        (http(json!({ "description": "a".repeat(1025) })), "description"),
        (http(json!({ "usages": [] })), "usages"),
        (http(json!({ "usages": ["Both"] })), "usages"),
        (http(json!({ "operatingSystem": { "family": "Ubuntu" } })), "family"),
        (http(json!({ "storage": { "targets": [] } })), "targets"),
        (http(json!({ "storage": { "targets": nine } })), "targets"),
        (http(json!({ "storage": { "targets": [{}, { "storageClassName": "" }] } })), "each StorageClass may be named once"),
        (http(json!({ "storage": { "targets": [{ "size": "0" }] } })), "above zero"),
        (http(json!({ "storage": { "targets": [{ "size": "-1Gi" }] } })), "size"),
        (http(json!({ "storage": { "targets": [{ "size": "1e3Gi" }] } })), "size"),
        (http(json!({ "storage": { "targets": [{ "volumeMode": "block" }] } })), "volumeMode"),
        (http(json!({ "storage": { "targets": [{ "accessModes": ["RWX"] }] } })), "accessModes"),
        (http(json!({ "colour": "red" })), "colour"),
        (disk("registry.example.com/kairos:v1", json!({})), "reference"),
        (disk(&format!("docker://registry.example.com/kairos@{DIGEST}00"), json!({})), "reference"),
        (pinned(json!({ "digest": DIGEST })), "their reference pins them"),
        (pinned(json!({ "operatingSystem": { "family": "kairos" } })), "come together or not at all"),
        (http(json!({ "operatingSystem": { "family": "kairos", "kubernetesVersion": "v1.35.6" } })), "come together or not at all"),
        (pinned(json!({ "operatingSystem": { "kubernetesVersion": "1.35.6" } })), "kubernetesVersion"),
        (pinned(json!({ "credentialsSecretRef": { "name": "reg" } })), "access must be given"),
        (pinned(json!({ "credentialsSecretRef": { "name": "" }, "access": { "policy": "AllTenants" } })), "credentialsSecretRef"),
        (pinned(json!({ "access": { "policy": "Everyone" } })), "policy"),
        (pinned(json!({ "access": { "policy": "Selected" } })), "goes with policy Selected"),
        (pinned(json!({ "access": { "policy": "AllTenants", "namespaceSelector": { "matchLabels": { "a": "b" } } } })), "goes with policy"),
        (pinned(json!({ "access": { "policy": "Selected", "namespaceSelector": {} } })), "selects every namespace"),
        (
            pinned(
                json!({ "access": { "policy": "Selected", "namespaceSelector": { "matchExpressions": [{ "key": "a", "operator": "Gt" }] } } }),
            ),
            "operator",
        ),
        (pinned(json!({ "defaults": { "preference": "Fedora" } })), "preference"),
    ] {
        let refused = create(cluster, &name(), &spec).await.expect_err(&spec.to_string());
        assert!(refused.contains(expected), "{spec}\n{refused}");
    }
    let long = create(cluster, &"a".repeat(64), &http(json!({}))).await.expect_err("64 characters");
    assert!(long.contains("at most 63 characters"), "{long}");
}

/// The parser and the API server take the same URLs: an entry is told by whoever reads it first, in the same words.
#[tokio::test]
async fn parser_and_api_server_take_the_same_urls() {
    let Some(cluster) = &cluster().await else { return };
    let long = |more: usize| format!("https://e.example/{}", "a".repeat(2048 - "https://e.example/".len() + more));
    for url in [
        "https://e.example",
        "https://e.example/a?b=c@d",
        "https://e.example?b=c",
        "http://10.0.0.1:8080/a@b",
        "https://[2001:db8::1]/a",
        "https://E.example/%41",
        &long(0),
        &long(1),
        "HTTPS://e.example/a",
        "Http://e.example/a",
        "https:e.example/a",
        "https:///e.example/a",
        "https:\\\\e.example\\a",
        "https://e.example\\a",
        "https://u@e.example/a",
        "https://@e.example/a",
        "https://e.example/a#b",
        "https://e.example/a b",
        "https://e.example/a\tb",
        " https://e.example/a",
        "ftp://e.example/a",
        "https://",
        "",
    ] {
        for source in
            [json!({ "http": { "url": url } }), json!({ "talosFactory": { "schematicID": ID, "version": "v1.13.6", "factoryURL": url } })]
        {
            let spec = json!({ "source": source });
            let parsed = golden_catalog::api::parse_image(&serde_json::from_value(object("a", &spec)).expect("readable"));
            let created = create(cluster, &name(), &spec).await;
            assert_eq!(parsed.is_ok(), created.is_ok(), "{url:?}: {parsed:?}\n{created:?}");
        }
    }
}

#[tokio::test]
async fn what_is_frozen_cannot_be_edited_and_the_rest_can() {
    let Some(cluster) = &cluster().await else { return };
    let digest = format!("sha256:{}", "0a".repeat(32));
    for (before, after, expected) in [
        (talos(json!({})), talos(json!({ "version": "v1.13.7" })), Some("source is immutable")),
        (talos(json!({})), talos(json!({ "architecture": "arm64" })), Some("source is immutable")),
        (talos(json!({})), http(json!({})), Some("source is immutable")),
        (document("customization: {a: 1}\n"), document("customization: {a: 2}\n"), Some("source is immutable")),
        (document("customization: {a: 1}\n"), document("customization: {a: 1}\noverlay: {image: x}\n"), Some("source is immutable")),
        (pinned(json!({})), disk(&format!("registry.example.com/other@{DIGEST}"), json!({})), Some("source is immutable")),
        (pinned(json!({})), pinned(json!({ "access": { "policy": "AllTenants" }, "credentialsSecretRef": { "name": "reg" } })), None),
        (http(json!({ "digest": digest })), http(json!({})), Some("digest is immutable")),
        (http(json!({ "digest": digest })), http(json!({ "digest": format!("sha256:{}", "0b".repeat(32)) })), Some("digest is immutable")),
        (http(json!({})), http(json!({ "usages": ["Worker"] })), Some("usages is immutable")),
        (http(json!({})), http(json!({ "digest": digest })), None),
        (http(json!({})), http(json!({ "description": "new", "suspend": true, "caBundleRef": { "name": "ca" } })), None),
        (http(json!({})), http(json!({ "storage": { "targets": [{ "size": "6Gi" }] } })), None),
    ] {
        let name = name();
        create(cluster, &name, &before).await.expect("created");
        let outcome = replace(cluster, &name, &after).await;
        match expected {
            None => assert_eq!(outcome, Ok(()), "{before} → {after}"),
            Some(expected) => {
                let refused = outcome.expect_err(&format!("{before} → {after}"));
                assert!(refused.contains(expected), "{before} → {after}\n{refused}");
            }
        }
    }
}

#[tokio::test]
async fn targets_are_frozen_once_a_golden_is_on_record() {
    let Some(cluster) = &cluster().await else { return };
    let name = name();
    let with = |targets: Value| http(json!({ "storage": { "targets": targets } }));
    create(cluster, &name, &with(json!([{ "size": "6Gi" }]))).await.expect("created");
    let api: Api<GoldenImage> = Api::all(cluster.admin());
    // An attempt that made nothing binds nobody: modes and size may be corrected, and the class is another target's.
    let begun = json!({ "status": { "targets": [{ "requestedClass": "", "attempts": 1, "golden": "vm-default-images-a" }] } });
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&begun)).await.expect("status");
    for (spec, accepted) in [
        (with(json!([{ "size": "7Gi", "volumeMode": "Block", "accessModes": ["ReadWriteMany"] }])), true),
        (http(json!({})), true),
        (with(json!([{ "size": "7Gi" }, { "storageClassName": "local" }])), true),
        (with(json!([{ "storageClassName": "other" }])), false),
        (with(json!([{ "size": "6Gi" }])), true),
    ] {
        let outcome = replace(cluster, &name, &spec).await;
        assert_eq!(outcome.is_ok(), accepted, "{spec}: {outcome:?}");
    }
    // Under way, and made.
    let under_way = json!({ "requestedClass": "", "attempts": 1, "golden": "vm-default-images-a", "startedTime": "2026-11-29T10:00:00Z" });
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&json!({ "status": { "targets": [under_way] } })))
        .await
        .expect("status");
    replace(cluster, &name, &with(json!([{ "size": "7Gi" }]))).await.expect_err("not while it is being made");
    let made = json!({ "requestedClass": "", "attempts": 1, "golden": "vm-default-images-a", "claimUID": "u" });
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&json!({ "status": { "targets": [made] } }))).await.expect("status");
    for (targets, accepted) in [
        (json!([{ "size": "6144Mi" }]), true),
        (json!([{ "size": "6Gi" }, { "storageClassName": "local" }]), true),
        (json!([{ "size": "7Gi" }, { "storageClassName": "local" }]), false),
        (json!([{ "storageClassName": "other" }]), false),
        (json!([{ "size": "6Gi", "volumeMode": "Block" }]), false),
    ] {
        let outcome = replace(cluster, &name, &with(targets.clone())).await;
        assert_eq!(outcome.is_ok(), accepted, "{targets}: {outcome:?}");
        if let Err(refused) = outcome {
            assert!(refused.contains("(R4)"), "{refused}");
        }
    }
    // A further target without a golden may still be corrected or taken away.
    let further = with(json!([{ "size": "6Gi" }, { "storageClassName": "lokal" }]));
    replace(cluster, &name, &further).await.expect("added");
    replace(cluster, &name, &with(json!([{ "size": "6Gi" }]))).await.expect("taken away");
    let dropped = replace(cluster, &name, &http(json!({}))).await.expect_err("storage dropped");
    assert!(dropped.contains("(R4)"), "{dropped}");
}

/// A target that is made may be taken out, which has its golden go through the fence; exchanged for another it may not be.
#[tokio::test]
async fn a_made_target_may_be_taken_out_and_not_exchanged() {
    let Some(cluster) = &cluster().await else { return };
    let name = name();
    let class = |class: &str| json!({ "storageClassName": class });
    let with = |targets: Value| http(json!({ "storage": { "targets": targets } }));
    create(cluster, &name, &with(json!([{}, class("a"), class("b")]))).await.expect("created");
    let api: Api<GoldenImage> = Api::all(cluster.admin());
    let made = |classes: &[&str]| {
        let targets: Vec<_> = classes
            .iter()
            .map(|class| json!({ "requestedClass": class, "attempts": 1, "golden": format!("g-{class}"), "claimUID": "u" }))
            .collect();
        Patch::Merge(json!({ "status": { "targets": targets } }))
    };
    api.patch_status(&name, &PatchParams::default(), &made(&["", "a", "b"])).await.expect("status");
    for (targets, accepted) in [
        (json!([{}, class("a"), class("c")]), false),
        (json!([class("a"), class("b"), { "storageClassName": "c" }]), false),
        (json!([{}, { "storageClassName": "a", "size": "6Gi" }]), false),
        (json!([{}, class("a")]), true),
        // Not made, or not in the spec before: it is added, and nothing else is taken out.
        (json!([{}, class("a"), class("b")]), true),
        (json!([class("b")]), true),
        (json!([{}]), false),
        (json!([{}, class("b")]), true),
    ] {
        let outcome = replace(cluster, &name, &with(targets.clone())).await;
        assert_eq!(outcome.is_ok(), accepted, "{targets}: {outcome:?}");
        assert!(outcome.err().is_none_or(|refused| refused.contains("(R4)")), "{targets}");
    }
    // What is left is the default alone, as if no target were named.
    replace(cluster, &name, &http(json!({}))).await.expect("the default target as it was");
    // What is on record is of another class: the default one is not made, and may be corrected.
    api.patch_status(&name, &PatchParams::default(), &made(&["a"])).await.expect("status");
    replace(cluster, &name, &with(json!([{ "size": "6Gi" }]))).await.expect("the default target corrected");
    replace(cluster, &name, &http(json!({}))).await.expect("and not named again");
    replace(cluster, &name, &with(json!([class("b")]))).await.expect("and exchanged");

    // Eight that are still to go are enough.
    let eight: Vec<_> = (0..8).map(|n| format!("old-{n}")).collect();
    let gone: Vec<&str> = eight.iter().map(String::as_str).chain(["", "a"]).collect();
    replace(cluster, &name, &with(json!([{}, class("a")]))).await.expect("added");
    api.patch_status(&name, &PatchParams::default(), &made(&gone)).await.expect("status");
    let refused = replace(cluster, &name, &with(json!([{}]))).await.expect_err("a ninth");
    assert!(refused.contains("still to go (R23)"), "{refused}");
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    api.patch(&name, &PatchParams::default(), &Patch::Merge(&label)).await.expect("metadata passes");
}

async fn replace(cluster: &Cluster, name: &str, spec: &Value) -> Result<(), String> {
    let api: Api<GoldenImage> = Api::all(cluster.admin());
    let mut live = api.get(name).await.expect("object");
    live.spec = serde_json::from_value(spec.clone()).expect("spec");
    match api.replace(name, &PostParams::default(), &live).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.message.clone()),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test]
async fn a_stored_object_can_always_be_cleaned_up() {
    let Some(cluster) = &cluster().await else { return };
    let name = name();
    create(cluster, &name, &http(json!({}))).await.expect("created");
    let api: Api<GoldenImage> = Api::all(cluster.admin());
    let finalizer = json!({ "metadata": { "finalizers": ["example.org/mine"], "labels": { "a": "b" } } });
    api.patch(&name, &PatchParams::default(), &Patch::Merge(&finalizer)).await.expect("metadata passes");
    api.delete(&name, &DeleteParams::default()).await.expect("deleted");
    api.patch(&name, &PatchParams::default(), &Patch::Merge(&json!({ "metadata": { "finalizers": null } })))
        .await
        .expect("finalizer removed");
    harness::until_gone(api, &name).await;
}

#[tokio::test]
async fn kubectl_explains_and_shows_it_well() {
    let Some(cluster) = &cluster().await else { return };
    // The API server takes a new kind into its OpenAPI documents once a second.
    let spec = harness::eventually("the kind is explained", async || {
        let told = cluster.kubectl(["explain", "goldenimages.spec"]).await;
        if told.code == Some(0) { Ok(told.stdout) } else { Err(told.stderr) }
    })
    .await;
    for words in ["source", "caBundleRef", "Exactly one member; immutable", "storage", "suspend"] {
        assert!(spec.contains(words), "{words}\n{spec}");
    }
    let url = cluster.kubectl(["explain", "goldenimages.spec.source.http.url"]).await.ok();
    assert!(url.contains("without credentials"), "{url}");
    let http_source = cluster.kubectl(["explain", "goldenimages.spec.source.http"]).await.ok();
    assert!(http_source.contains("-required-"), "{http_source}");
    let status = cluster.kubectl(["explain", "goldenimages.status.targets"]).await.ok();
    assert!(status.contains("claimUID"), "{status}");
    let name = name();
    create(cluster, &name, &http(json!({}))).await.expect("created");
    let table = cluster.kubectl(["get", "gi", &name]).await.ok();
    let header = table.lines().next().unwrap_or_default();
    for column in ["NAME", "OS", "VERSION", "CLASS", "SIZE", "READY", "REASON", "AGE"] {
        assert!(header.contains(column), "{table}");
    }
}

#[tokio::test]
async fn the_command_line_prints_what_the_cluster_takes() {
    let Some(cluster) = &cluster().await else { return };
    let crds = harness::cli(None, ["crds"]).await.ok();
    cluster.apply(&crds).await;
    let dir = harness::scratch_dir("schematic");
    let file = dir.join("schematic.yaml");
    std::fs::write(
        &file,
        "customization:\n    systemExtensions:\n        officialExtensions:\n            - siderolabs/qemu-guest-agent\n",
    )
    .expect("file");
    let id = harness::cli(None, ["schematic-id", "--file", &file.display().to_string()]).await.ok();
    assert_eq!(id.trim(), ID);
    let missing = harness::cli(None, ["schematic-id", "--file", "/nowhere"]).await;
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("/nowhere"), "{}", missing.stderr);
    let unknown = harness::cli(None, ["no-such-command"]).await;
    assert_eq!(unknown.code, Some(64), "{}", unknown.stderr);
}
