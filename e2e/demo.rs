//! `make demo`: the catalog's main job, shown to a person. Ends by itself and cleans up.
//!
//! Real: etcd, kube-apiserver, kube-controller-manager, helm, nginx, docker-registry, skopeo, qemu-img, xz, the daemon with
//! the chart's rights. Stand-ins: CDI, which needs nodes (`e2e/cdi`), and the registry's token service.

#[path = "cdi/mod.rs"]
mod cdi;
#[path = "demo/clones.rs"]
mod clones;
#[path = "harness/mod.rs"]
mod harness;
#[path = "stage/mod.rs"]
mod stage;
#[path = "upstream/mod.rs"]
mod upstream;

use std::{
    collections::BTreeMap,
    process::ExitCode,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use golden_catalog::api::{ConditionType, GoldenImage, find_condition};
use kube::{ResourceExt as _, runtime::watcher};
use serde_json::json;
use stage::{Options, Stage, images};
use upstream::{
    layout::{Layout, gzip, tar},
    registry::{Guard, Registry, USER},
};

const SCHEMATIC: &str = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";
/// The size of a Talos 1.13 disk, in bytes.
const TALOS: u64 = 4_453_302_272;
const GOOD: [&str; 3] = ["talos-v1.13.6-b5a1de36eb14", "ubuntu-24.04", "kairos-v1.35"];
/// A tag as Kairos names its images: the Kubernetes in it is held against the entry's.
const KAIROS_TAG: &str = "v0.4.0-standard-amd64-generic-v4.1.2-k3s-v1.35.6-k3s1";
const PASSWORD: &str = "hunter2-correct-horse";
const BAD: [&str; 3] = ["truncated", "html-page", "not-there"];

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let outcome = runtime.block_on(async {
        match tokio::time::timeout(Duration::from_secs(900), demo()).await {
            Ok(done) => done,
            Err(_) => Err("the demo did not end within 15 minutes".to_owned()),
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nthe demo failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(began: Instant, text: impl AsRef<str>) {
    println!("{:>6.1} s  {}", began.elapsed().as_secs_f64(), text.as_ref());
}

async fn demo() -> Result<(), String> {
    let began = Instant::now();
    println!(
        "golden-catalog: from a list of images to golden disks, on a real Kubernetes API server.\nReal: etcd, kube-apiserver, helm, nginx, docker-registry, the daemon. A stand-in: CDI, which needs nodes (e2e/cdi).\n"
    );
    say(
        began,
        "making disk images: a Talos-sized disk (4.15 GiB, GPT, 48 MiB of data) as raw.xz, and a 2 GiB disk as qcow2 (a minute or more)",
    );
    let dir = harness::scratch_dir_on_disk("demo");
    let talos = images::raw_disk(dir.path(), "talos", TALOS, 48, 11);
    let ubuntu = images::raw_disk(dir.path(), "ubuntu", 2 << 30, 32, 23);
    let (xz, qcow2) = (images::raw_xz(&talos), images::qcow2(&ubuntu));

    say(began, "starting a real nginx as the upstream");
    let (nginx, _) = stage::upstream();
    let at = format!("http://{}", nginx.http);
    let factory_path = format!("image/{SCHEMATIC}/v1.13.6/openstack-amd64.raw.xz");
    std::fs::create_dir_all(nginx.files().join(&factory_path).parent().ok_or("path")?).map_err(|error| error.to_string())?;
    std::fs::copy(&xz, nginx.files().join(&factory_path)).map_err(|error| error.to_string())?;
    let whole = std::fs::read(&qcow2).map_err(|error| error.to_string())?;
    nginx.put("noble.qcow2", &whole);
    nginx.put("truncated.qcow2", &whole[..whole.len() / 2]);
    nginx.put("page.qcow2", b"<!DOCTYPE html><html><body>Please sign in to continue</body></html>");

    say(began, "starting a real docker-registry with TLS and a token service, and pushing a Kairos container disk to it with skopeo");
    let authority = upstream::Authority::new();
    let registry = Registry::start(&authority, Guard::Token, PASSWORD).await;
    let mut layout = Layout::default();
    let kairos_image = layout.image("amd64", &[gzip(&tar(&[("disk/kairos.qcow2", &whole)]))], &[]);
    let layout = layout.write(&dir.path().join("layout"), &[(KAIROS_TAG, &kairos_image)]);
    let kairos = registry.push(&layout, KAIROS_TAG, "workers/kairos", &[]);

    say(began, "starting etcd, kube-apiserver and kube-controller-manager; installing the chart with helm");
    let cluster = harness::Cluster::start(harness::Options::default().controller_manager().foreign_crds(harness::Flavor::chosen())).await;
    let list = json!([
        { "schematicID": SCHEMATIC, "version": "v1.13.6", "factoryURL": at },
        { "name": "ubuntu-24.04", "url": format!("{at}/noble.qcow2"), "os": { "family": "ubuntu", "name": "Ubuntu", "version": "24.04" } },
        { "name": "kairos-v1.35", "reference": kairos, "kubernetesVersion": "v1.35.6+k3s1",
          "credentialsSecretRef": { "name": "workers-registry" }, "access": { "policy": "AllTenants" } },
        { "name": "truncated", "url": format!("{at}/truncated.qcow2") },
        { "name": "html-page", "url": format!("{at}/page.qcow2") },
        { "name": "not-there", "url": format!("{at}/nowhere.qcow2") },
    ]);
    let options = Options {
        images: list,
        settings: json!({
            // A hoster's defaults are longer; nobody wants to watch those.
            "egress": { "caBundle": authority.pem(), "allowPrivateRedirects": true },
            "fetchAttempts": 2, "backoffMin": "3s", "backoffMax": "30s", "patience": "5s", "notFoundInterval": "10m", "retireWait": "5s",
        }),
        admission: true,
        ..Options::default()
    };
    let stage = Stage::set(&cluster, options).await;
    say(began, "putting the registry's password into a Secret of the daemon's namespace, as `kubectl create secret docker-registry` does");
    let auths = json!({ "auths": { registry.address.to_string(): { "username": USER, "password": PASSWORD } } }).to_string();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "workers-registry", "namespace": stage::NAMESPACE },
        "type": "kubernetes.io/dockerconfigjson", "stringData": { ".dockerconfigjson": auths },
    });
    cluster.apply(&secret.to_string()).await;
    say(began, "starting golden-catalog as its own ServiceAccount, with only the chart's rights\n");
    let daemon = stage.daemon("demo");
    daemon.ready().await;
    let seen = watch_states(began, &stage).await?;

    println!("\n$ golden-catalog status");
    print!("{}", harness::cli(Some(cluster.admin_kubeconfig()), ["status"]).await.stdout);
    check_bytes(
        began,
        &stage,
        &[
            (format!("talos-worker-{SCHEMATIC}-v1.13.6"), &talos),
            ("vm-default-images-ubuntu-24.04".to_owned(), &ubuntu),
            ("kairos-worker-kairos-v1.35".to_owned(), &ubuntu),
        ],
    )
    .await;
    check_traffic(began, &nginx, &[format!("/{factory_path}"), "/noble.qcow2".to_owned()])?;
    if let Some(name) = BAD.iter().find(|name| !seen.contains_key(**name)) {
        return Err(format!("{name} never said why it failed"));
    }
    clones::show(began, &stage).await?;
    drop((daemon, stage));
    drop((cluster, nginx, registry));
    println!();
    say(began, "done; everything started here is stopped and removed");
    Ok(())
}

/// Prints each state as it changes, until three are Ready and three have failed for good.
async fn watch_states(began: Instant, stage: &Stage<'_>) -> Result<BTreeMap<String, String>, String> {
    let mut states: BTreeMap<String, String> = BTreeMap::new();
    let mut settled: BTreeMap<String, bool> = BTreeMap::new();
    let stream = watcher(stage.images(), watcher::Config::default());
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        let Ok(watcher::Event::Apply(image) | watcher::Event::InitApply(image)) = event else { continue };
        let (name, state) = (image.name_any(), state_of(&image));
        if !state.is_empty() && states.get(&name) != Some(&state) {
            say(began, format!("{name:<28} {state}"));
            states.insert(name.clone(), state);
        }
        let conditions = image.status.map(|status| status.conditions).unwrap_or_default();
        let holds = |kind| find_condition(&conditions, kind).is_some_and(|condition| condition.status == "True");
        settled.insert(name, holds(ConditionType::Ready) || holds(ConditionType::Stalled));
        let done = |names: &[&str]| names.iter().all(|name| settled.get(*name) == Some(&true));
        if done(&GOOD) && done(&BAD) {
            return Ok(states);
        }
    }
    Err("the watch on GoldenImages ended".to_owned())
}

fn state_of(image: &GoldenImage) -> String {
    let status = image.status.clone().unwrap_or_default();
    let Some(ready) = find_condition(&status.conditions, ConditionType::Ready) else { return String::new() };
    if ready.status == "True" {
        let target = &status.targets[0];
        return format!(
            "Ready: golden {} in class {}",
            target.golden.as_deref().unwrap_or("?"),
            target.storage_class_name.as_deref().unwrap_or("?")
        );
    }
    format!("{}: {}", ready.reason, ready.message)
}

async fn check_bytes(began: Instant, stage: &Stage<'_>, goldens: &[(String, &std::path::PathBuf)]) {
    println!();
    for (golden, source) in goldens {
        images::same_content(&stage.disk(golden).await, "raw", source, "raw");
        say(began, format!("{golden}: the golden's bytes equal the source disk's (qemu-img compare)"));
    }
}

fn check_traffic(began: Instant, nginx: &upstream::nginx::Nginx, paths: &[String]) -> Result<(), String> {
    for path in paths {
        let sent: u64 = nginx.log(path, 1).iter().filter(|line| line.method == "GET").map(|line| line.sent).sum();
        let size = std::fs::metadata(nginx.files().join(path.trim_start_matches('/'))).map_err(|error| error.to_string())?.len();
        say(began, format!("nginx sent {sent} bytes of {path}, a file of {size}"));
        if sent != size {
            return Err(format!("{path} was not sent exactly once"));
        }
    }
    Ok(())
}
