//! A container disk from a registry to a durable disk in the spool, beside what a person would run in a shell:
//! `skopeo copy` into a folder, `tar` of its layer, `qemu-img check`, then `sync`. And the bytes read to know its size.
//!
//! The registry is a local docker-registry with TLS and passwords; the image is a qcow2 of random data in one gzip layer
//! (`BENCH_MIB`, 1024 by default). The intake does more: it looks for a second disk, inspects every table, and writes a
//! record. Rounds alternate, and the median counts.

#[path = "../upstream/mod.rs"]
mod upstream;

use std::{
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use golden_catalog::{
    artifact::Limits,
    intake::{Bandwidth, Intake, IntakeRequest, Progress, peek},
    model::{Architecture, Identity, Source},
    source::{Credentials, Egress, EgressSettings, OpenRequest},
    spool::Store,
};
use tokio_util::sync::CancellationToken;
use upstream::{
    Authority,
    layout::{Layout, gzip, tar},
    registry::{Guard, Registry, USER},
};

const ROUNDS: usize = 5;
const PASSWORD: &str = "bench";

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run by `cargo bench --bench registry`");
        return;
    }
    let mib: u64 = std::env::var("BENCH_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(1024);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    let folder = tempfile::TempDir::new().expect("dir");
    let authority = Authority::new();
    let registry = runtime.block_on(Registry::start(&authority, Guard::Password, PASSWORD));
    let at = folder.path();
    sh(&format!(
        "cd {}; head -c {mib}M /dev/urandom > d.raw; sgdisk -n 1:2048:0 d.raw > /dev/null; qemu-img convert -f raw -O qcow2 d.raw d.qcow2; rm d.raw",
        at.display()
    ));
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[gzip(&tar(&[("disk/d.qcow2", &std::fs::read(at.join("d.qcow2")).expect("disk"))]))], &[]);
    let reference = registry.push(&layout.write(&at.join("layout"), &[("v1", &image)]), "v1", "bench/disk", &[]);
    drop(layout);
    let source = Source::ContainerDisk { reference: reference.parse().expect("reference"), architecture: Architecture::Amd64 };
    let ca = authority.pem().into_bytes();
    let credentials = vec![Credentials::Basic { username: USER.to_owned(), password: PASSWORD.to_owned().into() }];
    let egress = Egress::new(EgressSettings { allow_loopback: true, ..EgressSettings::default() }).expect("settings");

    let ask = OpenRequest { ca_bundle: Some(&ca), credentials: &credentials, ..OpenRequest::new(&source) };
    let served = runtime.block_on(peek(&egress, &Limits::default(), &ask, None)).answer.expect("served");
    println!(
        "virtual size {:?} known after {} bytes of layers of {}",
        served.judged.expect("a disk").virtual_size.map(|size| size.bytes()),
        served.read,
        served.download.unwrap_or_default()
    );

    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let spool = at.join("spool");
        let _ = std::fs::remove_dir_all(&spool);
        let store = Store::open(&spool, 64 << 30).expect("open");
        let intake = Intake { egress: egress.clone(), store, limits: Limits::default(), bandwidth: Bandwidth::UNLIMITED };
        let request = IntakeRequest {
            identity: Identity::of(&source, None).expect("identity"),
            source: source.clone(),
            schematic_id: None,
            credentials: credentials.clone(),
            ca_bundle: Some(ca.clone()),
            digest: None,
            disk: None,
            fits: Arc::new(|_| Ok(())),
        };
        let (progress, _) = tokio::sync::watch::channel(Progress::default());
        let began = Instant::now();
        runtime.block_on(intake.run(&request, &progress, &CancellationToken::new())).expect("take in");
        ours.push(began.elapsed());
        theirs.push(peer(&registry, &reference, &at.join("peer")));
    }
    println!(
        "{mib} MiB container disk to a durable disk: {:.2} s; skopeo copy, tar, qemu-img check, sync: {:.2} s; ratio {:.2}",
        median(&mut ours),
        median(&mut theirs),
        median(&mut theirs) / median(&mut ours)
    );
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

fn sh(line: &str) {
    assert!(Command::new("bash").args(["-euo", "pipefail", "-c", line]).status().expect("bash").success(), "{line}");
}

/// The same by other people's tools.
fn peer(registry: &Registry, reference: &str, dir: &Path) -> Duration {
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir).expect("folder");
    let (name, digest) = reference.split_once('@').expect("pinned");
    let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
    let line = format!(
        "cd {}; skopeo copy --quiet --insecure-policy --src-cert-dir {} --src-creds {USER}:{PASSWORD} docker://{name}@{digest} dir:image; \
         tar -xzf image/$(jq -r '.layers[0].digest' image/manifest.json | cut -d: -f2); qemu-img check -q disk/d.qcow2; sync disk/d.qcow2",
        dir.display(),
        registry.certificates().display()
    );
    let began = Instant::now();
    sh(&line);
    began.elapsed()
}
