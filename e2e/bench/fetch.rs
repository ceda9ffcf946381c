//! Hash while fetching: the egress client beside `curl | openssl dgst -sha256`, both from one local nginx.
//!
//! The peer is what a person would run in a shell. Each side fetches the same file of random bytes several times in turn,
//! the best run of each counts, and both must arrive at the same digest. `BENCH_MIB` sets the file's size (default 4096).

#[path = "../upstream/mod.rs"]
mod upstream;

use std::{
    io::Write as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use golden_catalog::{
    model::{Architecture, Digest, Source},
    source::{Egress, EgressSettings, OpenRequest},
};
use sha2::{Digest as _, Sha256};
use upstream::{Authority, nginx::Nginx};

const ROUNDS: usize = 3;

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run by `cargo bench --bench fetch`");
        return;
    }
    let mib: u64 = std::env::var("BENCH_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(4096);
    let authority = Authority::new();
    let nginx = Nginx::start(&authority, &["127.0.0.1"], "");
    fill(&nginx.files().join("disk.img"), mib << 20);
    std::fs::write(nginx.files().join("ca.pem"), authority.pem()).expect("authority");
    let settings = EgressSettings { allow_loopback: true, ca_bundle: Some(authority.pem()), ..EgressSettings::default() };
    let egress = Egress::new(settings).expect("settings");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    for url in [format!("http://{}/disk.img", nginx.http), format!("https://{}/disk.img", nginx.https)] {
        let source = Source::Http { url: url.parse().expect("URL"), architecture: Architecture::Amd64 };
        let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            let (digest, took) = timed(|| runtime.block_on(fetch(&egress, &source)));
            ours = ours.min(took);
            let (expected, took) = timed(|| peer(&url, &nginx.files().join("ca.pem")));
            theirs = theirs.min(took);
            assert_eq!(digest.hex(), expected, "both fetch the same bytes");
        }
        let rate = |took: Duration| mib as f64 / took.as_secs_f64();
        println!(
            "hash while fetching {mib} MiB over {}: {:.0} MiB/s; curl | openssl dgst -sha256: {:.0} MiB/s; ratio {:.2}",
            url.split(':').next().unwrap_or_default(),
            rate(ours),
            rate(theirs),
            theirs.as_secs_f64() / ours.as_secs_f64()
        );
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = work();
    (result, began.elapsed())
}

/// Fetches and hashes as the intake does: hashing on a thread of its own, a few chunks behind.
async fn fetch(egress: &Egress, source: &Source) -> Digest {
    let mut opened = egress.open(&OpenRequest::new(source)).await.expect("file");
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<bytes::Bytes>(16);
    let hasher = tokio::task::spawn_blocking(move || {
        let mut hash = Sha256::new();
        while let Some(chunk) = receiver.blocking_recv() {
            hash.update(&chunk);
        }
        Digest::from_bytes(hash.finalize().into())
    });
    while let Some(chunk) = opened.body.chunk().await.expect("chunk") {
        sender.send(chunk).await.expect("hasher");
    }
    drop(sender);
    hasher.await.expect("hasher")
}

/// The digest by the peer's pipeline.
fn peer(url: &str, authority: &std::path::Path) -> String {
    let mut curl =
        Command::new("curl").args(["-sSf", "--http1.1", "--cacert"]).arg(authority).arg(url).stdout(Stdio::piped()).spawn().expect("curl");
    let output =
        Command::new("openssl").args(["dgst", "-sha256", "-r"]).stdin(curl.stdout.take().expect("pipe")).output().expect("openssl");
    assert!(curl.wait().expect("curl").success(), "curl failed");
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().unwrap_or_default().to_owned()
}

/// A file that no compression or sparse handling shortens: one random MiB, each copy numbered.
fn fill(path: &std::path::Path, bytes: u64) {
    let mut block = vec![0_u8; 1 << 20];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in block.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("file"));
    for number in 0..bytes >> 20 {
        block[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&block).expect("file");
    }
    file.flush().expect("file");
}
