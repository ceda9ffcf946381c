//! The consumer ledger against a real API server: disks (two objects each) and golden images, beside a plain paged list of the same objects, the command line's answer beside `kubectl get dv,pvc -A -o json | jq`, and its memory.
//!
//! Run with `cargo bench --bench ledger_cluster`; `LEDGER_DISKS` (default 100000) and `LEDGER_IMAGES` (default 1000) set the size. Prints times and bytes; asserts counts, never times, because a shared machine's clock proves nothing.

#[path = "../harness/mod.rs"]
mod harness;

use std::{
    collections::BTreeSet,
    hint::black_box,
    process::Stdio,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use golden_catalog::{
    rules::{class::Classes, marks, pool::Pool},
    run::client::reader,
    world::{
        ConsumerWatch, WatchSettings,
        ledger::{GoldenKey, Storage},
    },
};
use kube::{
    Client, Config,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

const NAMESPACES: usize = 200;
/// Objects made at once.
const AT_ONCE: usize = 64;

fn size(variable: &str, full: usize) -> usize {
    let asked = std::env::var(variable).ok().and_then(|text| text.parse().ok());
    // `cargo test --benches` runs this with a small size so that it cannot rot.
    asked.unwrap_or(if std::env::args().any(|argument| argument == "--bench") { full } else { full / 1000 })
}

fn golden(number: usize) -> String {
    format!("talos-worker-ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515-v1.{}.{}", number / 100, number % 100)
}

fn namespace(disk: usize) -> String {
    format!("tenant-{:03}", disk % NAMESPACES)
}

fn name(disk: usize) -> String {
    format!("disk-system-kubernetes-demo-md{}-{disk:06}", disk % 7)
}

/// A disk as CDI leaves it: the clone token and its other annotations are most of its bytes.
fn annotations(disk: usize, golden: &str) -> Value {
    json!({
        marks::GOLDEN: golden, marks::POOL: format!("{}/{}/demo-md{}", namespace(disk), Pool::WORKERS, disk % 7),
        "cdi.kubevirt.io/cloneType": "csi-clone", "cdi.kubevirt.io/dataSourceNamespace": "cozy-public",
        "cdi.kubevirt.io/storage.extended.clone.token": "x".repeat(700),
        "volume.kubernetes.io/storage-provisioner": "linstor.csi.linbit.com",
    })
}

fn volume(disk: usize, golden: &str) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "namespace": namespace(disk), "name": name(disk), "annotations": annotations(disk, golden) },
        "spec": {
            "source": { "pvc": { "namespace": "cozy-public", "name": golden } },
            "storage": { "storageClassName": "replicated", "resources": { "requests": { "storage": "20Gi" } } },
        },
    })
}

fn claim(disk: usize, golden: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "namespace": namespace(disk), "name": name(disk), "annotations": annotations(disk, golden) },
        "spec": {
            "accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": "replicated",
            "resources": { "requests": { "storage": "20Gi" } },
        },
    })
}

/// Creates an object with as little work for this side as can be.
async fn create(client: &Client, path: &str, object: Value) {
    let request =
        http::Request::post(path).header("content-type", "application/json").body(object.to_string().into_bytes()).expect("a request");
    let answer = client.request_text(request).await;
    // A name that is there is from the same run.
    assert!(
        answer.is_ok() || answer.as_ref().is_err_and(|error| matches!(error, kube::Error::Api(status) if status.code == 409)),
        "{answer:?}"
    );
}

async fn make(client: &Client, objects: impl Iterator<Item = (String, Value)>) {
    futures::stream::iter(objects).for_each_concurrent(AT_ONCE, |(path, object)| async move { create(client, &path, object).await }).await;
}

/// Resident memory in KiB, from Linux.
fn resident() -> u64 {
    memory("self", "VmRSS:")
}

/// A line of a process's memory in KiB: what is resident, or the most that ever was (`VmHWM:`).
fn memory(process: &str, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The whole daemon in a process of its own, as leader: what a memory limit must hold. It is measured once it has read everything and written the status of every image.
async fn whole_daemon(cluster: &harness::Cluster, images: usize) {
    let (health, metrics, spool) = (harness::Port::reserve(), harness::Port::reserve(), harness::Port::reserve());
    let dir = harness::scratch_dir("ledger-daemon");
    let daemon = harness::Daemon::builder("whole")
        .args([
            "run".to_owned(),
            "--identity=whole".to_owned(),
            "--namespace=default".to_owned(),
            "--catalog-namespace=cozy-public".to_owned(),
            format!("--spool-dir={}", dir.join("spool").display()),
            "--spool-size=1Gi".to_owned(),
            format!("--spool-listen={}", spool.address()),
            format!("--health-listen={}", health.address()),
            format!("--metrics-listen={}", metrics.address()),
            "--webhook-host=127.0.0.1".to_owned(),
        ])
        .kubeconfig(cluster.admin_kubeconfig())
        .health(health.address())
        .start();
    let began = Instant::now();
    while daemon.probe("readyz").await != Ok(200) {
        assert!(daemon.ended().is_none(), "{}", daemon.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ready = began.elapsed();
    let api: kube::Api<golden_catalog::api::GoldenImage> = kube::Api::all(cluster.admin());
    loop {
        let listed = api.list(&ListParams::default()).await.expect("list").items;
        let done = listed.iter().filter(|image| image.status.as_ref().is_some_and(|status| !status.conditions.is_empty())).count();
        if done >= images {
            break;
        }
        assert!(daemon.ended().is_none(), "{}", daemon.log());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let process = daemon.id().to_string();
    println!(
        "the whole daemon: ready after {ready:.2?}, every image's status after {:.1?}; resident {} MiB, at most {} MiB",
        began.elapsed(),
        memory(&process, "VmRSS:") / 1024,
        memory(&process, "VmHWM:") / 1024
    );
}

/// One command in a process of its own: its exit code, how long it took, and the most memory it held, in KiB.
async fn command(cluster: &harness::Cluster, arguments: &[&str]) -> (Option<i32>, Duration, u64) {
    let began = Instant::now();
    let process = harness::Daemon::builder("golden-catalog").args(arguments).kubeconfig(cluster.admin_kubeconfig()).start();
    let (id, mut peak) = (process.id().to_string(), 0);
    loop {
        peak = memory(&id, "VmHWM:").max(peak);
        if let Some(status) = process.ended() {
            return (status.code(), began.elapsed(), peak);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The peer: every page of both kinds, as text, decoded no further than where the next page is.
async fn plain_list(client: &Client) -> (usize, usize) {
    let (mut bytes, mut pages) = (0, 0);
    for path in ["/apis/cdi.kubevirt.io/v1beta1/datavolumes", "/api/v1/persistentvolumeclaims"] {
        let mut token = None;
        loop {
            let params = ListParams { limit: Some(500), continue_token: token, ..ListParams::default() };
            let request = kube::core::Request::new(path).list(&params).expect("a request");
            let text = client.request_text(request).await.expect("a page");
            (bytes, pages) = (bytes + text.len(), pages + 1);
            #[derive(serde::Deserialize)]
            struct Page {
                metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta,
            }
            let page: Page = serde_json::from_str(&text).expect("a list");
            token = page.metadata.continue_.filter(|token| !token.is_empty());
            if token.is_none() {
                break;
            }
        }
    }
    (bytes, pages)
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run());
}

async fn run() {
    let (disks, images) = (size("LEDGER_DISKS", 100_000), size("LEDGER_IMAGES", 1_000));
    let cluster = harness::Cluster::start(harness::Options::default().foreign_crds(harness::Flavor::Trimmed)).await;
    cluster.install_product_crds().await;
    let kubeconfig = Kubeconfig::read_from(cluster.admin_kubeconfig()).expect("kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("configuration");
    let client = reader(&config).expect("a client");
    let began = Instant::now();
    let namespaces = (0..NAMESPACES).map(namespace).chain(["cozy-public".to_owned()]);
    make(
        &client,
        namespaces.map(|name| {
            ("/api/v1/namespaces".to_owned(), json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }))
        }),
    )
    .await;
    let image = |number: usize| {
        let source = json!({ "http": { "url": format!("https://images.example/{number}.qcow2") } });
        let object = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": format!("image-{number:04}") }, "spec": { "source": source, "suspend": true } });
        ("/apis/cozystack.io/v1alpha1/goldenimages".to_owned(), object)
    };
    make(&client, (0..images).map(image)).await;
    let objects = |disk: usize| {
        let golden = golden(disk * 7 % images.max(1));
        [
            (format!("/apis/cdi.kubevirt.io/v1beta1/namespaces/{}/datavolumes", namespace(disk)), volume(disk, &golden)),
            (format!("/api/v1/namespaces/{}/persistentvolumeclaims", namespace(disk)), claim(disk, &golden)),
        ]
    };
    make(&client, (0..disks).flat_map(objects)).await;
    println!("{images} images and {disks} disks ({} objects) made in {:.1?}", 2 * disks, began.elapsed());

    // Once unmeasured, so that neither pays for cold caches of the API server.
    plain_list(&client).await;
    let began = Instant::now();
    let (bytes, pages) = plain_list(&client).await;
    let plain = began.elapsed();
    println!("plain paged list: {plain:.2?}, {pages} pages, {:.1} MiB", bytes as f64 / f64::from(1 << 20));

    let before = resident();
    let settings = WatchSettings::default();
    let watch = ConsumerWatch::new("cozy-public", settings);
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for feed in watch.watches(&client, settings) {
        tasks.spawn(feed.run);
    }
    while watch.known().is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let synced = began.elapsed();
    let (rows, heap) = {
        let ledger = watch.read();
        (ledger.len(), ledger.heap_bytes())
    };
    assert!(rows >= 2 * disks, "{rows} rows for {disks} disks");
    println!("ledger synced: {synced:.2?}, {:.2} of the plain list", synced.as_secs_f64() / plain.as_secs_f64());
    println!(
        "{rows} rows, {} bytes a row counted; resident memory {} MiB, grew by {} MiB",
        heap / rows.max(1),
        resident() / 1024,
        resident().saturating_sub(before) / 1024
    );

    let (classes, independent) = (Classes::new(), BTreeSet::new());
    let storage = Storage { classes: &classes, independent: &independent, now: 1_795_953_600 };
    let mut times: Vec<Duration> = (0..images)
        .map(|number| {
            let name = golden(number);
            let began = Instant::now();
            black_box(watch.read().consumers(GoldenKey::named(&name), storage).expect("known").blocking());
            began.elapsed()
        })
        .collect();
    times.sort();
    println!(
        "consumers of a golden, states of all watches looked at: p50 {:?}, p99 {:?}, worst {:?}",
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        times[times.len() - 1]
    );
    drop(tasks);
    whole_daemon(&cluster, images).await;

    // The command line in a process of its own, beside what a hoster would type today.
    let asked = golden(0);
    let began = Instant::now();
    let answer = harness::cli(Some(cluster.admin_kubeconfig()), ["consumers", &asked, "--output=json"]).await.ok();
    let own = began.elapsed();
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    println!("golden-catalog consumers: {own:.2?}, {} clones", answer["counts"]["clones"]);
    // What explains one disk, or the disks of a pool, reads the same objects and keeps no more of them.
    let pool = format!("{}/{}/demo-md0", namespace(0), Pool::WORKERS);
    for subject in [format!("{}/datavolume/{}", namespace(0), name(0)), pool] {
        let (code, took, peak) = command(&cluster, &["explain", &subject]).await;
        assert_eq!(code, Some(1), "their goldens are not there");
        println!("golden-catalog explain {subject}: {took:.2?}, at most {} MiB", peak / 1024);
    }
    let filter = format!(
        "[.items[] | select(.spec.source.pvc.name == \"{asked}\" or .metadata.annotations[\"{}\"] == \"{asked}\") | .metadata.name] | unique | length",
        marks::GOLDEN
    );
    let script = r#""$0" get datavolumes.cdi.kubevirt.io,persistentvolumeclaims -A -o json | jq "$1""#;
    let began = Instant::now();
    let peer = std::process::Command::new("sh")
        .arg("-c")
        .arg(script)
        .arg(harness::kubectl())
        .arg(&filter)
        .env("KUBECONFIG", cluster.admin_kubeconfig())
        .stdin(Stdio::null())
        .output();
    match peer {
        Ok(output) if output.status.success() => {
            let count: usize = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
            println!("kubectl get dv,pvc -A -o json | jq: {:.2?}, {count} clones", began.elapsed());
            assert_eq!(answer["counts"]["clones"].as_u64(), Some(count as u64), "both find the same disks");
        }
        other => println!("kubectl and jq could not be run: {other:?}"),
    }
}
