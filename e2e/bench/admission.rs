//! What a verdict costs over TLS, the live read included, and what admission costs those who have nothing to do with it.
//!
//! `cargo bench --bench admission` makes 100 images with a golden each and 2,000 disks; `BENCH_FULL=1` makes 1,000 and 100,000 (100,000 DataVolumes and claims on a real API server take a quarter of an hour). `BENCH_RATE` is questions a second (500). Prints p50, p99 and memory; asserts nothing, because a shared machine's clock proves nothing.

#[path = "../harness/mod.rs"]
mod harness;

use std::{
    collections::hash_map::Entry,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use golden_catalog::rules::marks;
use harness::{Cluster, Daemon, Port};
use kube::api::Patch;
use serde_json::{Value, json};

const NAMESPACE: &str = "cozy-kubernetes-worker-image";
const CATALOG: &str = "cozy-public";
const CLASS_NAME: &str = "replicated";
const CLASS: &str = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: replicated, annotations: {storageclass.kubernetes.io/is-default-class: \"true\"}}\nprovisioner: linstor.csi.linbit.com\nallowVolumeExpansion: true\n";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(bench());
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn bench() {
    let full = std::env::var_os("BENCH_FULL").is_some();
    let (goldens, disks) = if full { (1_000, 100_000) } else { (setting("BENCH_GOLDENS", 100), setting("BENCH_DISKS", 2_000)) };
    let cluster = Cluster::start(harness::Options::default().foreign_crds(harness::Flavor::chosen())).await;
    cluster.apply(CLASS).await;
    for namespace in [CATALOG, "tenant"] {
        cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}")).await;
    }
    let port = Port::reserve();
    let url = format!("https://{}", port.address());
    let unrelated = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "generateName": "unrelated-" },
        "spec": { "source": { "http": { "url": "https://x.example/a" } }, "storage": { "resources": { "requests": { "storage": "1Gi" } } } } });
    install(&cluster, &url).await;
    let certificate = certificate(&cluster).await;
    let began = Instant::now();
    fill(&cluster, goldens, disks).await;
    images(&cluster, goldens).await;
    println!("{goldens} images with a golden each and {disks} disks ({} objects) made in {:.0?}", 3 * goldens + 2 * disks, began.elapsed());
    let daemon = start(&cluster, &port).await;
    let began = Instant::now();
    daemon.ready().await;
    println!("ready, all watches synced, after {:.1?}; {} MiB resident", began.elapsed(), resident(daemon.id()));

    let rate = setting("BENCH_RATE", 500);
    let seconds = setting("BENCH_SECONDS", 10);
    // Connections are made and caches warm before anything is measured.
    drop(verdicts(&url, &certificate, goldens, rate, 1).await);
    // The same at lower rates and what the daemon itself computes: they tell its own cost from waiting for a core.
    for rate in [rate / 5, rate / 2, rate] {
        let before = computed(daemon.id());
        let took = verdicts(&url, &certificate, goldens, rate, seconds).await;
        let each = (computed(daemon.id()) - before) / u32::try_from(took.len().max(1)).unwrap_or(u32::MAX);
        tell(&format!("verdicts over TLS at {rate}/s for {seconds} s, {each:.2?} of the daemon's CPU each"), took);
    }
    tell("the live read alone, at the same rate", reads(&cluster, goldens, rate, seconds).await);
    println!("{} MiB resident", resident(daemon.id()));
    let with = creates(&cluster, &unrelated, 300).await;
    for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        cluster.kubectl(["delete", kind, "--all"]).await.ok();
    }
    // The API server looks at its configurations within a second or two.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let without = creates(&cluster, &unrelated, 300).await;
    tell("unrelated DataVolume, with our webhooks", with);
    tell("unrelated DataVolume, without any", without);
}

/// A certificate as cert-manager would provide it.
async fn certificate(cluster: &Cluster) -> String {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": "golden-catalog-webhook-tls", "namespace": NAMESPACE },
        "stringData": { "tls.crt": certificate, "tls.key": key, "ca.crt": certificate } });
    cluster.apply(&secret.to_string()).await;
    certificate
}

async fn install(cluster: &Cluster, url: &str) {
    let values = cluster.dir().join("values.yaml");
    let text = json!({ "admission": { "advertisedURL": url, "replicas": 0 }, "controller": { "replicas": 0 } });
    std::fs::write(&values, text.to_string()).expect("values");
    let (chart, values) = (harness::chart::folder().display().to_string(), values.display().to_string());
    let install = ["install", "kubernetes-worker-image", &chart, "--namespace", NAMESPACE, "--create-namespace", "--values", &values];
    cluster.helm(install).await.ok();
}

async fn start(cluster: &Cluster, port: &Port) -> Daemon {
    let kubeconfig = cluster.kubeconfig_as_service_account(NAMESPACE, harness::chart::ADMISSION).await;
    let (health, metrics) = (Port::reserve(), Port::reserve());
    let arguments = [
        "run".to_owned(),
        "--role=admission".to_owned(),
        format!("--webhook-listen={}", port.address()),
        "--webhook-host=127.0.0.1".to_owned(),
        format!("--health-listen={}", health.address()),
        format!("--metrics-listen={}", metrics.address()),
        "--log=warn".to_owned(),
    ];
    Daemon::builder("admission").args(arguments).kubeconfig(&kubeconfig).health(health.address()).start()
}

/// A GoldenImage for each golden, with that on record.
async fn images(cluster: &Cluster, goldens: usize) {
    let client = cluster.admin();
    let claims = cluster.api(&client, "v1", "PersistentVolumeClaim", CATALOG).await;
    let images = &cluster.api(&client, "cozystack.io/v1alpha1", "GoldenImage", "").await;
    let made = claims.list(&Default::default()).await.expect("the claims");
    let uids: std::collections::HashMap<_, _> =
        made.into_iter().filter_map(|claim| Some((claim.metadata.name?, claim.metadata.uid?))).collect();
    futures::stream::iter(0..goldens)
        .for_each_concurrent(16, |number| {
            let (name, golden) = (format!("image-{number}"), golden(number));
            let object = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name },
                "spec": { "source": { "http": { "url": format!("https://x.example/{number}.qcow2") } } } });
            let record = json!({ "requestedClass": "", "attempts": 1, "golden": golden, "claimUID": uids[&golden], "storageClassName": CLASS_NAME, "size": "6Gi" });
            let status = Patch::Merge(json!({ "status": { "targets": [record] } }));
            async move {
                images.create(&Default::default(), &serde_json::from_value(object).expect("an object")).await.expect("made");
                images.patch_status(&name, &Default::default(), &status).await.expect("on record");
            }
        })
        .await;
}

/// Goldens and disks, sixteen requests at once.
async fn fill(cluster: &Cluster, goldens: usize, disks: usize) {
    let volumes = ("cdi.kubevirt.io/v1beta1", "DataVolume");
    let claims = ("v1", "PersistentVolumeClaim");
    let size = json!({ "requests": { "storage": "6Gi" } });
    let mut jobs: Vec<(&str, &str, &str, Value)> = Vec::new();
    for number in 0..goldens {
        let meta = json!({ "name": golden(number), "labels": { marks::GOLDEN: "true" } });
        jobs.push((volumes.0, volumes.1, CATALOG, json!({ "metadata": meta, "spec": { "source": { "http": { "url": "https://spool.test/x" } }, "storage": { "storageClassName": "replicated", "resources": size } } })));
        jobs.push((claims.0, claims.1, CATALOG, json!({ "metadata": meta, "spec": { "accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": "replicated", "resources": size } })));
    }
    for number in 0..disks {
        let annotations =
            json!({ marks::GOLDEN: golden(number % goldens), marks::POOL: format!("tenant/KubernetesNodes/pool-{}", number % 500) });

        jobs.push((claims.0, claims.1, "tenant", json!({ "metadata": { "name": format!("disk-{number}"), "annotations": annotations }, "spec": { "accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": "replicated", "resources": size } })));
        jobs.push((volumes.0, volumes.1, "tenant", json!({ "metadata": { "name": format!("disk-{number}"), "annotations": annotations }, "spec": { "source": { "blank": {} }, "storage": { "storageClassName": "replicated", "resources": size } } })));
    }
    let client = cluster.admin();
    let mut apis = std::collections::HashMap::new();
    for (api_version, kind, namespace, _) in &jobs {
        if let Entry::Vacant(place) = apis.entry((*kind, *namespace)) {
            place.insert(cluster.api(&client, api_version, kind, namespace).await);
        }
    }
    let apis = &apis;
    futures::stream::iter(jobs)
        .for_each_concurrent(16, |(api_version, kind, namespace, mut object)| async move {
            object["apiVersion"] = api_version.into();
            object["kind"] = kind.into();
            let object = serde_json::from_value(object).expect("an object");
            apis[&(kind, namespace)].create(&Default::default(), &object).await.expect("made");
        })
        .await;
}

fn golden(number: usize) -> String {
    format!("talos-worker-ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515-v1.{}.{}", number / 100, number % 100)
}

/// Questions at a steady rate, as the API server asks them.
async fn verdicts(url: &str, certificate: &str, goldens: usize, rate: usize, seconds: usize) -> Vec<Duration> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let trusted = reqwest::Certificate::from_pem(certificate.as_bytes()).expect("a certificate");
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([trusted]).build().expect("a client");
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / rate as f64));
    let mut asked = Vec::new();
    for number in 0..rate * seconds {
        ticks.tick().await;
        let (client, url) = (client.clone(), format!("{url}/disks"));
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": number.to_string(), "kind": { "group": "cdi.kubevirt.io", "version": "v1beta1", "kind": "DataVolume" }, "operation": "CREATE", "namespace": "tenant", "userInfo": { "username": "bench" },
            "object": { "metadata": { "namespace": "tenant", "name": "asked", "annotations": { marks::POOL: format!("tenant/KubernetesNodes/pool-{}", number % 500) } },
                "spec": { "source": { "pvc": { "namespace": CATALOG, "name": golden(number % goldens) } }, "storage": { "resources": { "requests": { "storage": "20Gi" } } } } } } });
        asked.push(tokio::spawn(async move {
            let began = Instant::now();
            let answer: Value = client.post(url).json(&review).send().await.expect("an answer").json().await.expect("JSON");
            let took = began.elapsed();
            assert_eq!(answer["response"]["allowed"], true, "{answer}");
            took
        }));
    }
    let mut took = Vec::with_capacity(asked.len());
    for one in asked {
        took.push(one.await.expect("asked"));
    }
    took
}

/// What a verdict reads live, read at a steady rate by itself: the API server's part of a verdict.
async fn reads(cluster: &Cluster, goldens: usize, rate: usize, seconds: usize) -> Vec<Duration> {
    let client = cluster.admin();
    let api = cluster.api(&client, "v1", "PersistentVolumeClaim", CATALOG).await;
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / rate as f64));
    let mut asked = Vec::new();
    for number in 0..rate * seconds {
        ticks.tick().await;
        let api = api.clone();
        asked.push(tokio::spawn(async move {
            let began = Instant::now();
            api.get(&golden(number % goldens)).await.expect("a claim");
            began.elapsed()
        }));
    }
    let mut took = Vec::with_capacity(asked.len());
    for one in asked {
        took.push(one.await.expect("asked"));
    }
    took
}

/// One after the other, as a person or a controller would.
async fn creates(cluster: &Cluster, object: &Value, count: usize) -> Vec<Duration> {
    let client = cluster.admin();
    let api = cluster.api(&client, "cdi.kubevirt.io/v1beta1", "DataVolume", "default").await;
    let object = serde_json::from_value(object.clone()).expect("an object");
    let mut took = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        api.create(&Default::default(), &object).await.expect("made");
        took.push(began.elapsed());
    }
    took
}

fn tell(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!("{what}: p50 {:.2?}, p99 {:.2?}, most {:.2?} ({} of them)", at(0.5), at(0.99), at(1.0), took.len());
}

/// CPU time of a process so far, from Linux (proc_pid_stat(5): fields 14 and 15, in hundredths of a second).
fn computed(id: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// Resident memory in MiB, from Linux.
fn resident(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or_default() / 1024
}
