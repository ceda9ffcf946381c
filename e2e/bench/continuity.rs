//! A list of many entries from nothing to Ready goldens, at rest, and over a change of the leader: the daemon's writes beside
//! those of the stand-in for CDI, seconds, and memory. A real API server, a real nginx, the real daemon with the chart's rights.
//!
//! Run with `cargo bench --bench continuity`; `ENTRIES` (1000) says how many images. Each import reports twenty steps of
//! progress. Prints a table; asserts nothing, because a shared machine's clock proves nothing.

#[path = "../cdi/mod.rs"]
mod cdi;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../stage/mod.rs"]
mod stage;
#[path = "../upstream/mod.rs"]
mod upstream;
#[path = "../continuity/versions.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod versions;

use golden_catalog::api::GoldenImage;
use harness::{Cluster, Daemon, Request};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use stage::{CATALOG, Launch, NAMESPACE, Options, Stage, images};
use std::time::{Duration, Instant};
use versions::Versions;

/// How long nothing happens, to see what is written then.
const REST: Duration = Duration::from_secs(60);

fn main() {
    let entries = std::env::var("ENTRIES").ok().and_then(|count| count.parse().ok()).unwrap_or(1000);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run(entries));
}

async fn run(entries: usize) {
    let cluster = Cluster::start(harness::Options::default().controller_manager().foreign_crds(harness::Flavor::Trimmed)).await;
    let authority = upstream::Authority::new();
    // Every entry has a URL of its own, and all of them lead to one file.
    let nginx = upstream::nginx::Nginx::start(&authority, &["localhost"], "location /images/ { try_files /disk.qcow2 =404; }");
    let dir = harness::scratch_dir_on_disk("bench");
    let raw = images::raw_disk(dir.path(), "disk", 16 << 20, 1, 7);
    nginx.put("disk.qcow2", &std::fs::read(images::qcow2(&raw)).expect("qcow2"));
    let stage = Stage::set(&cluster, Options { cdi: cdi::Options::lean, ..Options::default() }).await;
    stage.cdi.script("*", cdi::Behaviour::Ticks { count: 20, every: Duration::from_millis(250) });
    // The times of the Lease that a hoster has.
    let lease = json!({ "duration": "15s", "renewDeadline": "10s", "retryPeriod": "2s" });
    let launch = Launch { settings: json!({ "lease": lease, "maxConcurrentImports": 50, "maxConcurrentFetches": 8 }), ..Launch::default() };
    let first = stage.launch("first", launch.clone());
    leads(&cluster, "first").await;
    first.ready().await;
    let idle = memory(&first);

    let recorder = Versions::record(cluster.admin());
    let mark = cluster.audit_mark().await;
    let cdi_before = stage.cdi.writes();
    let list: Vec<_> = (0..entries)
        .map(|n| json!({ "name": format!("image-{n:04}"), "url": format!("http://{}/images/{n:04}", nginx.http), "storageClass": "replicated" }))
        .collect();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin(), NAMESPACE);
    let patch = json!({ "data": { "images.yaml": json!({ "images": list }).to_string() } });
    let began = Instant::now();
    maps.patch("golden-catalog-images", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("the list is set");
    let api: Api<GoldenImage> = stage.images();
    loop {
        let all = api.list(&ListParams::default()).await.expect("a list").items;
        let ready = all.iter().filter(|image| harness::condition(*image, "Ready").is_some_and(|ready| ready.status == "True")).count();
        if ready == entries {
            break;
        }
        eprintln!("{ready} of {entries} Ready after {:.0} s", began.elapsed().as_secs_f64());
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let took = began.elapsed();
    let busy = memory(&first);
    let cdi_after = stage.cdi.writes();
    let writes = ours(&cluster.requests_since(mark).await);
    let mut progress = 0;
    for n in 0..entries {
        let seen = recorder.of(&api, &format!("image-{n:04}")).await;
        progress += seen.len() - versions::without_progress(&seen).len();
    }

    let mark = cluster.audit_mark().await;
    tokio::time::sleep(REST).await;
    let all = cluster.requests_since(mark).await;
    let at_rest = ours(&all);
    let renewals = all.iter().filter(|request| request.is_write() && request.resource == "leases").count();

    let port = harness::Port::reserve();
    let second = stage.launch("second", Launch { listen: Some(port.address()), ..launch });
    second.ready().await;
    let killed = Instant::now();
    first.kill();
    leads(&cluster, "second").await;
    let failover = killed.elapsed();

    let each = |number: usize| number as f64 / entries as f64;
    let cdi_writes = usize::try_from(cdi_after.total - cdi_before.total).unwrap_or(0);
    println!("\n| {entries} entries, 20 progress reports each | |");
    println!("|---|---|");
    println!("| seconds from the list to Ready | {:.1} |", took.as_secs_f64());
    println!("| writes a golden, without Lease, Events and progress | {:.1} |", each(writes.saturating_sub(progress)));
    println!("| writes of progress a golden | {:.1} |", each(progress));
    println!("| writes a golden of the stand-in for CDI (lean; real CDI: about 115) | {:.1} |", each(cdi_writes));
    println!("| writes in {} s at rest, Lease aside | {at_rest} |", REST.as_secs());
    println!("| renewals of the Lease in that time | {renewals} |");
    println!("| seconds from a SIGKILL to the next leader (Lease of 15 s) | {:.1} |", failover.as_secs_f64());
    println!("| memory of the leader before, after (RSS) and at most, MiB | {} / {} / {} |", idle.0, busy.0, busy.1);
    drop(second);
}

/// The daemons' writes that were carried out, but those of the Lease and of Events.
fn ours(requests: &[Request]) -> usize {
    let is_ours = |request: &&Request| {
        request.is_write()
            && request.is_by(NAMESPACE, "golden-catalog-controller")
            && request.code < 300
            && !matches!(request.resource.as_str(), "leases" | "events")
    };
    requests.iter().filter(is_ours).count()
}

async fn leads(cluster: &Cluster, name: &str) {
    let leases: Api<Lease> = Api::namespaced(cluster.admin(), CATALOG);
    harness::eventually(&format!("{name} leads"), async || {
        let lease = leases.get_opt("golden-catalog").await.ok().flatten();
        let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
        if holder.starts_with(&format!("{name}_")) { Ok(()) } else { Err(holder) }
    })
    .await;
}

/// Resident memory of a process now and at most so far, in MiB.
fn memory(daemon: &Daemon) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0) / 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}
