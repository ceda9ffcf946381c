//! Many images in two classes: seconds until all are Ready, API writes per golden beside the stand-in's own, and memory.
//!
//! `cargo bench --bench storage`, with `IMAGES=50` for fewer than 1,000. The goal is at most 8 writes per golden, without Lease,
//! Events and progress (docs/performance.md). CDI is the stand-in without pods and bytes, so that its work hides less of the daemon's; its
//! own writes are a lower bound of CDI's, which costs about 115 an import.

#[path = "../cdi/mod.rs"]
mod cdi;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../stage/mod.rs"]
mod stage;
#[path = "../upstream/mod.rs"]
mod upstream;

use std::time::{Duration, Instant};

use golden_catalog::api::GoldenImage;
use kube::api::{ListParams, PostParams};
use serde_json::json;
use stage::{NAMESPACE, Options, Stage, images};

const CLASSES: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: one, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: two}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
"#;

fn main() {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime").block_on(measure());
}

async fn measure() {
    // `cargo test --benches` only wants to know that it builds.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let count: usize = std::env::var("IMAGES").ok().and_then(|text| text.parse().ok()).unwrap_or(1000);
    let cluster = harness::Cluster::start(harness::Options::default().foreign_crds(harness::Flavor::Trimmed)).await;
    let (nginx, _) = stage::upstream();
    let dir = harness::scratch_dir_on_disk("bench-storage");
    let disk = std::fs::read(images::qcow2(&images::raw_disk(dir.path(), "disk", 16 << 20, 1, 1))).expect("disk");
    for at in 0..count {
        nginx.put(&format!("{at}.qcow2"), &disk);
    }
    let options = Options {
        settings: json!({ "maxConcurrentImports": 16, "maxConcurrentFetches": 4 }),
        classes: CLASSES,
        cdi: |options| cdi::Options { controllers: cdi::Controllers::StandIn, ..options.lean() },
        ..Options::default()
    };
    let stage = Stage::set(&cluster, options).await;
    let daemon = stage.daemon("a");
    daemon.ready().await;
    let mark = cluster.audit_mark().await;
    let before = stage.cdi.writes();
    let began = Instant::now();
    let api = stage.images();
    for at in 0..count {
        let object = json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": format!("image-{at}") },
            "spec": {
                "source": { "http": { "url": format!("http://{}/{at}.qcow2", nginx.http) } },
                "storage": { "targets": [{ "storageClassName": "one" }, { "storageClassName": "two" }] },
            },
        });
        let object: GoldenImage = serde_json::from_value(object).expect("object");
        api.create(&PostParams::default(), &object).await.expect("created");
    }
    let created = began.elapsed();
    let is_ready = |image: &GoldenImage| harness::condition(image, "Ready").is_some_and(|ready| ready.status == "True");
    loop {
        let ready = api.list(&ListParams::default()).await.expect("list").items.iter().filter(|image| is_ready(image)).count();
        eprintln!("{:6.0} s: {ready} of {count} Ready", began.elapsed().as_secs_f64());
        if ready == count {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(3600), "not Ready in an hour");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let took = began.elapsed();
    let requests = cluster.requests_since(mark).await;
    let ours: Vec<_> =
        requests.iter().filter(|request| request.is_write() && request.is_by(NAMESPACE, "golden-catalog-controller")).collect();
    let of = |resource: &str| ours.iter().filter(|request| request.resource == resource).count();
    let (leases, events) = (of("leases"), of("events"));
    let goldens = 2 * count;
    let after = stage.cdi.writes();
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap_or_default();
    let memory =
        |field: &str| status.lines().find(|line| line.starts_with(field)).map_or("?", |line| line[field.len()..].trim()).to_owned();
    println!("images {count}, goldens {goldens}");
    println!(
        "created in {:.1} s, all Ready after {:.1} s ({:.1} goldens a second)",
        created.as_secs_f64(),
        took.as_secs_f64(),
        goldens as f64 / took.as_secs_f64()
    );
    println!(
        "our writes per golden {:.2} (without {leases} of the Lease and {events} Events)",
        (ours.len() - leases - events) as f64 / goldens as f64
    );
    for what in ["goldenimages", "datavolumes", "secrets", "configmaps", "persistentvolumeclaims"] {
        println!("  {what:24} {:.2}", of(what) as f64 / goldens as f64);
    }
    println!("the stand-in's writes per golden {:.2}", (after.total - before.total) as f64 / goldens as f64);
    println!("memory: now {}, at most {}", memory("VmRSS:"), memory("VmHWM:"));
}
