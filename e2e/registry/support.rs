//! A spool, an intake into it, and a disk.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use golden_catalog::{
    artifact::Limits,
    intake::{Bandwidth, Intake, IntakeError, IntakeRequest, Progress},
    model::{Architecture, Source},
    source::{Credentials, Egress, EgressSettings},
    spool::{Spooled, Store},
};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    stage::images,
    upstream::{
        Authority, Upstream,
        layout::{gzip, tar},
        registry::USER,
    },
};

/// A disk of 24 MiB, raw and as qcow2, made once.
pub struct Disk {
    pub raw: PathBuf,
    pub qcow2: Vec<u8>,
    _dir: TempDir,
}

impl Disk {
    pub fn get() -> &'static Self {
        static DISK: OnceLock<Disk> = OnceLock::new();
        DISK.get_or_init(|| {
            let dir = TempDir::new().expect("dir");
            let raw = images::raw_disk(dir.path(), "disk", 24 << 20, 6, 41);
            let qcow2 = std::fs::read(images::qcow2(&raw)).expect("qcow2");
            Self { raw, qcow2, _dir: dir }
        })
    }
}

pub struct Bench {
    pub root: TempDir,
    pub intake: Intake,
    ca: Vec<u8>,
}

impl Bench {
    pub fn new(authority: &Authority) -> Self {
        Self::with(authority, |settings| settings.allow_private_redirects = true)
    }

    pub fn with(authority: &Authority, change: impl FnOnce(&mut EgressSettings)) -> Self {
        let root = TempDir::new().expect("dir");
        let mut settings = EgressSettings { allow_loopback: true, ..EgressSettings::default() };
        settings.deadlines.connect = Duration::from_secs(60);
        settings.deadlines.first_byte = Duration::from_secs(60);
        change(&mut settings);
        let store = Store::open(root.path(), 2 << 30).expect("spool");
        let egress = Egress::new(settings).expect("settings");
        let intake = Intake { egress, store, limits: Limits::default(), bandwidth: Bandwidth::UNLIMITED };
        Self { root, intake, ca: authority.pem().into_bytes() }
    }

    pub fn request(&self, reference: &str, architecture: Architecture, credentials: Vec<Credentials>) -> IntakeRequest {
        let source = Source::ContainerDisk { reference: reference.parse().expect(reference), architecture };
        let identity = golden_catalog::model::Identity::of(&source, None).expect("identity");
        let fits = Arc::new(|_| Ok(()));
        IntakeRequest {
            identity,
            source,
            schematic_id: None,
            credentials,
            ca_bundle: Some(self.ca.clone()),
            digest: None,
            disk: None,
            fits,
        }
    }

    pub async fn take(&self, reference: &str, credentials: Vec<Credentials>) -> Result<Spooled, IntakeError> {
        self.run(self.request(reference, Architecture::Amd64, credentials)).await
    }

    pub async fn run(&self, request: IntakeRequest) -> Result<Spooled, IntakeError> {
        let (progress, _) = watch::channel(Progress::default());
        let intake = self.intake.clone();
        // Spawned, as the daemon does it.
        let running = tokio::spawn(async move { intake.run(&request, &progress, &CancellationToken::new()).await });
        tokio::time::timeout(Duration::from_secs(120), running).await.expect("in time").expect("no panic")
    }

    pub fn disk(&self, spooled: &Spooled) -> PathBuf {
        self.root.path().join(format!("disks/{}.qcow2", spooled.record.disk.digest.hex()))
    }

    /// That the spool holds the test's disk.
    pub fn assert_disk(&self, spooled: &Spooled, raw: &Path) {
        images::same_content(&self.disk(spooled), "qcow2", raw, "raw");
    }
}

pub fn pair(password: &str) -> Credentials {
    Credentials::Basic { username: USER.to_owned(), password: password.to_owned().into() }
}

/// Where the scripted registries have their images.
pub const REPOSITORY: &str = "team/disk";

/// A scripted registry, and an intake that trusts it.
pub async fn registry() -> (Authority, Upstream, Bench) {
    let authority = Authority::new();
    let upstream = Upstream::start_tls(&authority, &["127.0.0.1"]).await;
    let bench = Bench::new(&authority);
    (authority, upstream, bench)
}

pub fn reference(upstream: &Upstream, digest: &str) -> String {
    format!("{}/{REPOSITORY}@{digest}", upstream.address)
}

/// A layer with the disk.
pub fn layer() -> Vec<u8> {
    gzip(&tar(&[("disk/", b""), ("disk/disk.qcow2", &Disk::get().qcow2)]))
}
