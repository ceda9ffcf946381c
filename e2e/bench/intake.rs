//! A whole intake, from an upstream to a durable disk in the spool, beside what a person would run in a shell:
//! `curl URL | tee FILE | openssl dgst -sha256`, then `sync FILE`. And the memory it takes.
//!
//! The upstream is a local nginx; the artifact is a qcow2 of random data made by qemu-img, once of 100 MiB and once of 4 GiB
//! (`BENCH_GIB` sets the larger one). Both sides write to the same file system. The intake does more: it inspects the qcow2,
//! and writes a record. Each intake runs in a process of its own, so that its memory is its own. Rounds alternate, and the
//! median counts.

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
    intake::{Bandwidth, Intake, IntakeRequest, Progress},
    model::{Architecture, Source},
    source::{Egress, EgressSettings},
    spool::Store,
};
use tokio_util::sync::CancellationToken;
use upstream::{Authority, nginx::Nginx};

const ROUNDS: usize = 5;
const URL: &str = "BENCH_INTAKE_URL";
const DIRECTORY: &str = "BENCH_INTAKE_DIRECTORY";

fn main() {
    if let (Ok(url), Ok(directory)) = (std::env::var(URL), std::env::var(DIRECTORY)) {
        return child(&url, Path::new(&directory));
    }
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run by `cargo bench --bench intake`");
        return;
    }
    let gib: u64 = std::env::var("BENCH_GIB").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let nginx = Nginx::start(&Authority::new(), &["127.0.0.1"], "");
    let folder = tempfile::TempDir::new().expect("dir");
    for mib in [100, gib << 10] {
        disk(&nginx.files(), mib);
        let url = format!("http://{}/disk.qcow2", nginx.http);
        let (mut ours, mut theirs, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (took, most, digest) = intake(&url, &folder.path().join("spool"));
            ours.push(took);
            memory.push(most);
            let (took, expected) = peer(&url, &folder.path().join("peer"));
            theirs.push(took);
            assert_eq!(digest, expected, "both fetch the same bytes");
        }
        let (ours, theirs) = (Spread::of(&ours), Spread::of(&theirs));
        memory.sort_unstable();
        println!(
            "{mib} MiB to the durable spool: {ours}; curl | tee | openssl, then sync: {theirs}; ratio {:.2}; most memory {} MiB",
            theirs.median / ours.median,
            memory.last().copied().unwrap_or(0) >> 10
        );
    }
}

struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(times: &[Duration]) -> Self {
        let mut times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
        times.sort_by(f64::total_cmp);
        let at = |index: usize| times.get(index).copied().unwrap_or(f64::NAN);
        Self { least: at(0), median: at(times.len() / 2), most: at(times.len() - 1) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} s ({:.2} to {:.2})", self.median, self.least, self.most)
    }
}

/// A qcow2 with so much random data.
fn disk(files: &Path, mib: u64) {
    let (raw, qcow2) = (files.join("disk.raw"), files.join("disk.qcow2"));
    sh(&format!("head -c {mib}M /dev/urandom > {0} && sgdisk -n 1:2048:0 {0} > /dev/null", raw.display()));
    sh(&format!("qemu-img convert -f raw -O qcow2 {} {} && rm {0}", raw.display(), qcow2.display()));
    sh("sync");
}

fn sh(line: &str) {
    assert!(Command::new("bash").args(["-euo", "pipefail", "-c", line]).status().expect("bash").success(), "{line}");
}

/// Seconds, most memory in KiB, and the disk's digest.
fn intake(url: &str, spool: &Path) -> (Duration, u64, String) {
    let _ = std::fs::remove_dir_all(spool);
    let program = std::env::current_exe().expect("own path");
    let output = Command::new(program).env(URL, url).env(DIRECTORY, spool).output().expect("child");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut fields = text.split_whitespace();
    let mut next = || fields.next().expect("field");
    let took = Duration::from_nanos(next().parse().expect("nanoseconds"));
    (took, next().parse().expect("KiB"), next().to_owned())
}

fn child(url: &str, directory: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    let store = Store::open(directory, 64 << 30).expect("open");
    let egress = Egress::new(EgressSettings { allow_loopback: true, ..EgressSettings::default() }).expect("settings");
    let intake = Intake { egress, store, limits: Limits::default(), bandwidth: Bandwidth::UNLIMITED };
    let request = IntakeRequest {
        identity: "0".repeat(40).parse().expect("identity"),
        source: Source::Http { url: url.parse().expect("URL"), architecture: Architecture::Amd64 },
        schematic_id: None,
        credentials: Vec::new(),
        ca_bundle: None,
        digest: None,
        disk: None,
        fits: Arc::new(|_| Ok(())),
    };
    let (progress, _) = tokio::sync::watch::channel(Progress::default());
    let began = Instant::now();
    let spooled = runtime.block_on(intake.run(&request, &progress, &CancellationToken::new())).expect("take in");
    let took = began.elapsed();
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM").trim().trim_end_matches(" kB").to_owned();
    println!("{} {most} {}", took.as_nanos(), spooled.record.disk.digest.hex());
}

/// Seconds, and the digest by the peer.
fn peer(url: &str, file: &Path) -> (Duration, String) {
    let _ = std::fs::remove_file(file);
    let line = format!("curl -sSf --http1.1 {url} | tee {0} | openssl dgst -sha256 -r && sync {0}", file.display());
    let began = Instant::now();
    let output = Command::new("bash").args(["-euo", "pipefail", "-c", &line]).output().expect("bash");
    let took = began.elapsed();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (took, String::from_utf8_lossy(&output.stdout).split_whitespace().next().unwrap_or_default().to_owned())
}
