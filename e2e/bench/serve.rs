//! What it costs to serve a disk over TLS: CPU seconds per GiB of the spool's server, beside nginx with one worker.
//!
//! Both serve the same file from the page cache over loopback, with a P-256 certificate each and the cipher the client
//! names: AES-128-GCM, which Go's client (CDI's importer) prefers on this kind of processor, and AES-256-GCM, which curl
//! does. The client is curl for both; only the server's own process is counted (`/proc/PID/stat`). Rounds alternate, and the
//! median counts. `BENCH_GIB` sets how much each round moves (default 4, as downloads of a file of 1 GiB).

#[path = "../upstream/mod.rs"]
mod upstream;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use golden_catalog::{
    model::Digest,
    spool::{
        ArtifactFacts, DiskFacts, DiskFile, Grant, Record, Registry, Sidecar, SpoolKey, Store, Verified,
        server::{Settings, serve},
    },
};
use k8s_openapi::jiff::Timestamp;
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio_util::sync::CancellationToken;
use upstream::{Authority, nginx::Nginx};

const ROUNDS: usize = 5;
const FILE: u64 = 1 << 30;
/// Tells the child process where its spool is.
const DIRECTORY: &str = "BENCH_SERVE_DIRECTORY";

fn main() {
    if let Ok(directory) = std::env::var(DIRECTORY) {
        return child(Path::new(&directory));
    }
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run by `cargo bench --bench serve`");
        return;
    }
    let gib: u64 = std::env::var("BENCH_GIB").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let authority = Authority::new();
    let nginx = Nginx::start(&authority, &["127.0.0.1"], "");
    let folder = tempfile::TempDir::new().expect("dir");
    let disk = nginx.files().join("disk.qcow2");
    fill(&disk, FILE);
    let pair = authority.issue(&["127.0.0.1"]);
    std::fs::write(folder.path().join("tls.crt"), pair.certificate).expect("write");
    std::fs::write(folder.path().join("tls.key"), pair.key).expect("write");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).expect("write");
    std::fs::hard_link(&disk, folder.path().join("disk"))
        .or_else(|_| std::fs::copy(&disk, folder.path().join("disk")).map(drop))
        .expect("disk");

    let mut ours = Ours::start(folder.path());
    let theirs = worker(nginx.pid());
    let url = format!("https://{}/disk.qcow2", nginx.https);
    for cipher in ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"] {
        for streams in [1, 4] {
            let (mut spool, mut peer) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                spool.push(cost(ours.child.id(), &ours.url, Some(&ours.header), &ca, cipher, gib, streams));
                peer.push(cost(theirs, &url, None, &ca, cipher, gib, streams));
            }
            let (spool, peer) = (Figures::of(spool), Figures::of(peer));
            println!(
                "{cipher}, {streams} at once: spool {spool} CPU s/GiB; nginx {peer} CPU s/GiB; ratio {:.2}",
                spool.median / peer.median
            );
        }
    }
    let _ = ours.child.kill();
    let _ = ours.child.wait();
}

struct Figures {
    least: f64,
    median: f64,
    most: f64,
}

impl Figures {
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
        Self { least: at(0), median: at(figures.len() / 2), most: at(figures.len() - 1) }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} ({:.3} to {:.3})", self.median, self.least, self.most)
    }
}

/// CPU seconds per GiB that a process spends while so much is downloaded from it.
fn cost(pid: u32, url: &str, header: Option<&str>, ca: &Path, cipher: &str, gib: u64, streams: u64) -> f64 {
    let before = cpu_seconds(pid);
    let downloads = (gib << 30).div_ceil(FILE).max(streams);
    let mut left = downloads;
    while left > 0 {
        let now = left.min(streams);
        left -= now;
        let running: Vec<Child> = (0..now)
            .map(|_| {
                let mut curl = Command::new("curl");
                curl.args(["-sSf", "--http1.1", "--tlsv1.3", "--tls13-ciphers", cipher, "-o", "/dev/null", "--cacert"]).arg(ca);
                if let Some(header) = header {
                    curl.args(["-H", header]);
                }
                curl.arg(url).spawn().expect("curl")
            })
            .collect();
        for mut curl in running {
            assert!(curl.wait().expect("curl").success(), "curl failed on {url}");
        }
    }
    (cpu_seconds(pid) - before) / (downloads * FILE) as f64 * (1_u64 << 30) as f64
}

/// User and system time of a process with all its threads, in seconds (`proc(5)`, fields 14 and 15; 100 ticks a second).
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("name").1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("ticks")).sum();
    ticks as f64 / 100.0
}

/// nginx's one worker, which does all the work.
fn worker(master: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).expect("children");
    children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("a worker")
}

/// The spool's server in a process of its own.
struct Ours {
    child: Child,
    url: String,
    header: String,
}

impl Ours {
    fn start(directory: &Path) -> Self {
        let program = std::env::current_exe().expect("own path");
        let mut child = Command::new(program).env(DIRECTORY, directory).stdout(Stdio::piped()).spawn().expect("child");
        let mut lines = BufReader::new(child.stdout.take().expect("pipe")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        let (url, header) = (line(), line());
        Self { child, url, header }
    }
}

/// Takes the disk in, serves it, and says where, until killed.
fn child(directory: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let store = Store::open(&directory.join("spool"), 4 * FILE).expect("open");
        let bytes = std::fs::read(directory.join("disk")).expect("read");
        let disk = take_in(&store, &bytes).await;
        drop(bytes);
        let registry = Registry::new(SpoolKey::generate().expect("random"));
        let address = registry.grant(&Grant { uid: "bench".into(), golden: "golden-bench".parse().expect("name"), disk });
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let at = listener.local_addr().expect("address");
        println!("https://{at}{}\n{}", address.path(), *address.header_line());
        std::io::stdout().flush().expect("flush");
        let config = config(directory);
        serve(listener, config, registry, store, Settings::default(), CancellationToken::new()).await.expect("serve");
    });
}

/// What `run::certs::server_config` sets, with a certificate from files.
fn config(directory: &Path) -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(directory.join("tls.crt")).expect("pem").collect::<Result<Vec<_>, _>>().expect("pem");
    let key = PrivateKeyDer::from_pem_file(directory.join("tls.key")).expect("pem");
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
    let mut config = builder.with_single_cert(chain, key).expect("pair");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

async fn take_in(store: &Store, bytes: &[u8]) -> Digest {
    let digest = Digest::of(bytes);
    let draft = store.begin(&"0".repeat(40).parse().expect("identity")).await.expect("begin");
    draft.reserve(bytes.len() as u64).expect("room");
    let sidecar = Sidecar {
        resolved_url: String::new(),
        etag: None,
        last_modified: None,
        total: None,
        resolved_time: Timestamp::UNIX_EPOCH,
        container: None,
        resume: None,
        complete: None,
        durable: 0,
        boot: String::new(),
    };
    let mut data = draft.start(sidecar).expect("start");
    data.write_all(bytes).expect("write");
    draft.complete(&data, bytes.len() as u64, digest).expect("complete");
    let record = Record {
        artifact: ArtifactFacts {
            digest,
            size: bytes.len() as u64,
            format: "qcow2".into(),
            resolved_url: String::new(),
            etag: None,
            resolved_time: Timestamp::UNIX_EPOCH,
            container: None,
        },
        disk: DiskFacts { digest, length: bytes.len() as u64, virtual_size: bytes.len() as u64 },
        verified: Verified::Structure,
    };
    draft.commit(record, DiskFile::Download).expect("commit");
    digest
}

/// A file of random bytes.
fn fill(path: &Path, bytes: u64) {
    let mut random = std::fs::File::open("/dev/urandom").map(|file| std::io::Read::take(file, bytes)).expect("random");
    let mut file = std::fs::File::create(path).expect("file");
    std::io::copy(&mut random, &mut file).expect("fill");
}
