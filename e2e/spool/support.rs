//! What the spool's tests share.

pub use super::told::skip;

use std::{
    io::Write as _,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use golden_catalog::{
    model::{Digest, Identity},
    spool::{
        ArtifactFacts, DiskFacts, DiskFile, Facts, Grant, Record, Registry, Sidecar, SpoolError, SpoolKey, Spooled, Store, Verified,
        server::{Settings, serve},
    },
};
use k8s_openapi::jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use reqwest::header::AUTHORIZATION;
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::PrivatePkcs8KeyDer,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const MIB: u64 = 1 << 20;

/// Longer than anything here takes on a busy machine: it bounds a hang, it measures nothing.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn identity(n: u8) -> Identity {
    format!("{n:040x}").parse().expect("identity")
}

/// Bytes that differ with `n` and place, and leave no holes.
pub fn content(n: u8, length: u64) -> Vec<u8> {
    (0..length).map(|i| ((i ^ (i >> 8) ^ (i >> 16)) as u8).wrapping_mul(31).wrapping_add(n) | 1).collect()
}

pub fn sidecar() -> Sidecar {
    Sidecar {
        resolved_url: "https://example.org/disk.qcow2".into(),
        etag: Some("\"a\"".into()),
        last_modified: None,
        total: None,
        resolved_time: Timestamp::UNIX_EPOCH,
        container: None,
        resume: Some(serde_json::json!({})),
        complete: None,
        durable: 0,
        boot: String::new(),
    }
}

pub fn record(artifact: &[u8], disk: &[u8]) -> Record {
    Record {
        artifact: ArtifactFacts {
            digest: Digest::of(artifact),
            size: artifact.len() as u64,
            format: "qcow2".into(),
            resolved_url: "https://example.org/disk.qcow2".into(),
            etag: None,
            resolved_time: Timestamp::UNIX_EPOCH,
            container: None,
        },
        disk: DiskFacts { digest: Digest::of(disk), length: disk.len() as u64, virtual_size: 1 << 30 },
        verified: Verified::Structure,
    }
}

/// Opens a spool that this process had open a moment ago. A child that another test has just forked holds copies of all
/// open files, the lock among them, until it runs its program.
pub fn reopen(root: &Path, capacity: u64) -> Result<Store, SpoolError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Store::open(root, capacity) {
            Err(SpoolError::InUse { .. }) if Instant::now() < deadline => std::thread::yield_now(),
            opened => return opened,
        }
    }
}

/// Takes in an artifact that is a disk as it came.
pub async fn take_in(store: &Store, n: u8, content: &[u8]) -> Result<Spooled, SpoolError> {
    let draft = store.begin(&identity(n)).await?;
    draft.reserve(content.len() as u64)?;
    let mut data = draft.start(sidecar())?;
    data.write_all(content).map_err(|e| SpoolError::io("write", "data", e))?;
    draft.complete(&data, content.len() as u64, Digest::of(content))?;
    draft.commit(record(content, content), DiskFile::Download)
}

/// An authority, and certificates of it.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("key");
        let pem = params.self_signed(&key).expect("certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate and key for `localhost`.
    fn certified(&self) -> CertifiedKey {
        let params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
        let key = KeyPair::generate().expect("key");
        let chain = vec![params.signed_by(&key, &self.issuer).expect("certificate").into()];
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).expect("pair")
    }

    pub fn client(&self) -> reqwest::Client {
        let certificate = reqwest::Certificate::from_pem(self.pem.as_bytes()).expect("certificate");
        // Its own time limit bounds a hang. Nothing is decoded, as in CDI's importer.
        reqwest::Client::builder().tls_certs_only([certificate]).timeout(PATIENCE).build().expect("client")
    }
}

/// The server's certificate, which a test may replace.
#[derive(Debug, Clone)]
pub struct Certificate(Arc<ArcSwap<CertifiedKey>>);

impl Certificate {
    fn new(authority: &Authority) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(authority.certified())))
    }

    pub fn replace(&self, authority: &Authority) {
        self.0.store(Arc::new(authority.certified()));
    }

    /// What the daemon sets for the spool: TLS 1.2 and 1.3, HTTP/1.1.
    pub fn config(&self) -> Arc<ServerConfig> {
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
        let mut config = builder.with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// A spool and its server.
pub struct Running {
    pub root: TempDir,
    pub store: Store,
    pub registry: Registry,
    pub authority: Authority,
    pub certificate: Certificate,
    pub address: SocketAddr,
    pub stop: CancellationToken,
    pub serving: JoinHandle<std::io::Result<()>>,
}

impl Running {
    pub fn start(settings: Settings) -> Self {
        Self::with_capacity(settings, 1 << 30)
    }

    pub fn with_capacity(settings: Settings, capacity: u64) -> Self {
        let root = TempDir::new().expect("dir");
        let store = Store::open(root.path(), capacity).expect("open");
        let registry = Registry::new(SpoolKey::generate().expect("random"));
        registry.all_known();
        let authority = Authority::new("spool test");
        let certificate = Certificate::new(&authority);
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let stop = CancellationToken::new();
        let serving = { tokio::spawn(serve(listener, certificate.config(), registry.clone(), store.clone(), settings, stop.clone())) };
        Self { root, store, registry, authority, certificate, address, stop, serving }
    }

    /// Grants the disk with this content, whether it is there or not.
    pub fn grant(&self, content: &[u8]) -> Granted {
        let grant = Grant { uid: "7c5f".into(), golden: "golden-a".parse().expect("name"), disk: Digest::of(content) };
        let address = self.registry.grant(&grant);
        Granted {
            grant,
            url: format!("https://localhost:{}{}", self.address.port(), address.path()),
            token: address.authorization().to_string(),
        }
    }

    /// Takes a disk in and grants it.
    pub async fn disk(&self, content: &[u8]) -> Granted {
        take_in(&self.store, 1, content).await.expect("take in");
        self.grant(content)
    }

    pub fn get(&self, granted: &Granted) -> reqwest::RequestBuilder {
        self.authority.client().get(&granted.url).header(AUTHORIZATION, &granted.token)
    }

    /// Waits until what is known of the grant's requests is as `wanted`.
    pub async fn facts(&self, granted: &Granted, wanted: impl Fn(&Facts) -> bool) -> Facts {
        let mut changes = self.registry.changes();
        tokio::time::timeout(PATIENCE, async {
            loop {
                let facts = self.registry.facts(&granted.grant).expect("granted");
                if wanted(&facts) {
                    return facts;
                }
                let _ = changes.recv().await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("still {:?}", self.registry.facts(&granted.grant)))
    }
}

/// A granted disk.
pub struct Granted {
    pub grant: Grant,
    pub url: String,
    pub token: String,
}

/// Runs a command; what it printed, and whether it succeeded.
pub fn run(program: &str, arguments: &[&str]) -> (bool, Vec<u8>) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), text)
}

/// Every file under a spool's directory but the lock, relative and sorted.
pub fn files(root: &Path) -> Vec<String> {
    fn walk(root: &Path, at: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(at).expect("list") {
            let path = entry.expect("entry").path();
            if path.is_dir() { walk(root, &path, found) } else { found.push(path.strip_prefix(root).expect("under").display().to_string()) }
        }
    }
    let mut found = Vec::new();
    walk(root, root, &mut found);
    found.retain(|name| name != "spool.lock");
    found.sort();
    found
}
