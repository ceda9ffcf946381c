//! What the intake's tests share.

pub use super::told::skip;

use std::{
    fs,
    num::NonZeroU64,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use golden_catalog::{
    artifact::Limits,
    intake::{Bandwidth, Intake, IntakeError, IntakeRequest, Progress},
    model::{Architecture, Digest, Identity, Source},
    source::{Egress, EgressSettings},
    spool::{SpoolError, Spooled, Store},
};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub const MIB: u64 = 1 << 20;

/// Longer than anything here takes on a busy machine: it bounds a hang, it measures nothing.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A disk in several forms, made once by real tools.
pub struct Disks {
    _folder: TempDir,
    pub raw: PathBuf,
    pub qcow2: PathBuf,
}

impl Disks {
    /// Bytes of the raw disk.
    pub const SIZE: u64 = 24 * MIB;

    pub fn get() -> &'static Self {
        static DISKS: OnceLock<Disks> = OnceLock::new();
        DISKS.get_or_init(|| {
            let folder = TempDir::new().expect("dir");
            let raw = folder.path().join("disk.raw");
            fs::File::create(&raw).and_then(|file| file.set_len(Self::SIZE)).expect("raw");
            must("sgdisk", &["-n", "1:2048:0", "-t", "1:8300", &text(&raw)]);
            // 3 MiB that do not compress, and 1 MiB that does, with zeros around them.
            let mut noise = 1_u64;
            let mut bytes: Vec<u8> = (0..3 * MIB)
                .map(|_| {
                    noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (noise >> 56) as u8
                })
                .collect();
            bytes.extend((0..MIB).map(|i| (i >> 12) as u8));
            let file = fs::File::options().write(true).open(&raw).expect("raw");
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 2 * MIB).expect("write");
            let qcow2 = folder.path().join("disk.qcow2");
            must("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &text(&raw), &text(&qcow2)]);
            Self { _folder: folder, raw, qcow2 }
        })
    }

    pub fn qcow2_bytes() -> Vec<u8> {
        fs::read(&Self::get().qcow2).expect("read")
    }

    /// The raw disk packed by a command that writes to its output.
    pub fn packed(program: &str, arguments: &[&str]) -> Vec<u8> {
        let output = Command::new(program).args(arguments).arg(&Self::get().raw).output().expect(program);
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }
}

/// A disk of 200 MiB, `data` MiB of which have a byte in every cluster, so that it packs to next to nothing.
pub fn thinly_filled(data: u64) -> Vec<u8> {
    let folder = TempDir::new().expect("dir");
    let raw = folder.path().join("thin.raw");
    let file = fs::File::create(&raw).expect("raw");
    file.set_len(200 * MIB).expect("length");
    must("sgdisk", &["-n", "1:2048:0", &text(&raw)]);
    for cluster in 0..data * 16 {
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", 2 * MIB + cluster * (64 << 10)).expect("write");
    }
    Command::new("zstd").args(["-q", "-c"]).arg(&raw).output().expect("zstd").stdout
}

pub fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Runs a command that must succeed.
pub fn must(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn settings() -> EgressSettings {
    let mut settings = EgressSettings { allow_loopback: true, ..EgressSettings::default() };
    settings.deadlines.connect = Duration::from_secs(60);
    settings.deadlines.first_byte = Duration::from_secs(60);
    settings.deadlines.idle = Duration::from_secs(60);
    settings
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

pub fn intake_into(store: Store, settings: EgressSettings) -> Intake {
    let egress = Egress::new(settings).expect("settings");
    Intake { egress, store, limits: Limits::default(), bandwidth: Bandwidth::UNLIMITED }
}

pub fn request(url: &str) -> IntakeRequest {
    IntakeRequest {
        identity: identity(1),
        source: Source::Http { url: url.parse().expect(url), architecture: Architecture::Amd64 },
        schematic_id: None,
        credentials: Vec::new(),
        ca_bundle: None,
        digest: None,
        disk: None,
        fits: Arc::new(|_| Ok(())),
    }
}

pub fn identity(n: u8) -> Identity {
    format!("{n:040x}").parse().expect("identity")
}

/// A spool of its own and an intake into it.
pub struct Bench {
    pub root: TempDir,
    pub intake: Intake,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(1 << 30, settings())
    }

    pub fn with(capacity: u64, settings: EgressSettings) -> Self {
        let root = TempDir::new().expect("dir");
        let intake = intake_into(Store::open(root.path(), capacity).expect("open"), settings);
        Self { root, intake }
    }

    pub fn limited(mut self, bytes_per_second: u64) -> Self {
        self.intake.bandwidth = Bandwidth::limited(NonZeroU64::new(bytes_per_second).expect("rate"));
        self
    }

    pub async fn run(&self, request: &IntakeRequest) -> Result<Spooled, IntakeError> {
        run(&self.intake, request).await
    }

    /// The next process with the same spool.
    pub fn restart(self) -> Self {
        let Self { root, intake } = self;
        let capacity = intake.store.usage().capacity;
        let settings = intake.egress.settings().clone();
        drop(intake);
        let intake = intake_into(reopen(root.path(), capacity).expect("open"), settings);
        Self { root, intake }
    }

    /// The spool's files once nothing is being taken in.
    pub async fn files(&self) -> Vec<String> {
        self.idle().await;
        let mut found = Vec::new();
        walk(self.root.path(), self.root.path(), &mut found);
        found.retain(|name| name != "spool.lock");
        found.sort();
        found
    }

    /// Waits until what runs on after a run has ended has ended too.
    pub async fn idle(&self) {
        let store = &self.intake.store;
        let mut changes = store.changes();
        let waiting = async {
            loop {
                changes.mark_unchanged();
                if store.usage().drafts == 0 {
                    return;
                }
                let _ = changes.changed().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("idle in time");
    }

    /// That the spool has nothing at all.
    pub async fn assert_empty(&self) {
        assert_eq!(self.files().await, [""; 0]);
        let usage = self.intake.store.usage();
        assert_eq!((usage.used, usage.reserved), (0, 0));
    }
}

pub async fn run(intake: &Intake, request: &IntakeRequest) -> Result<Spooled, IntakeError> {
    let (progress, _) = watch::channel(Progress::default());
    // Spawned, as the controller does it: the future must be one that can be.
    let (intake, request) = (intake.clone(), request.clone());
    let running = tokio::spawn(async move { intake.run(&request, &progress, &CancellationToken::new()).await });
    tokio::time::timeout(PATIENCE, running).await.expect("in time").expect("no panic")
}

fn walk(root: &Path, at: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(at).expect("list") {
        let path = entry.expect("entry").path();
        if path.is_dir() { walk(root, &path, found) } else { found.push(text(path.strip_prefix(root).expect("under"))) }
    }
}

/// The path of a disk in the spool.
pub fn disk_path(root: &Path, digest: &Digest) -> PathBuf {
    root.join(format!("disks/{}.qcow2", digest.hex()))
}

/// That a spooled disk is whole by qemu's own account and has the raw disk's bytes.
pub fn assert_is_the_disk(root: &Path, spooled: &Spooled) {
    let disk = text(&disk_path(root, &spooled.record.disk.digest));
    must("qemu-img", &["check", "-f", "qcow2", &disk]);
    must("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &disk, &text(&Disks::get().raw)]);
    assert_eq!(Digest::of(&fs::read(&disk).expect("read")), spooled.record.disk.digest);
    assert_eq!(spooled.record.disk.virtual_size, Disks::SIZE);
}
