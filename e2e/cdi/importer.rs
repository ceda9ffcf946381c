//! Stands in for the importer container: one attempt from HEAD to a disk, with CDI's termination messages.

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use http::Method;
use tokio::io::AsyncWriteExt;

use super::{
    Ctx,
    cache::Key,
    classes::{request, usable},
    http::{Connection, Seen},
    journal::What,
    script::Behaviour,
    storage::Volume,
};

/// CDI's `Scratch space required` end: exit code 0, and the pod is made again with scratch space.
pub(super) const SCRATCH_MESSAGE: &str = "scratch space required and none found";

/// How an attempt ended short of a disk.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Failure {
    ScratchRequired,
    /// Exit code 1 with this termination message; the kubelet restarts the container.
    Error(String),
    OomKilled,
    /// Exit code 0 and never again (v1.65, checksum).
    Fatal(String),
    /// The pod was deleted under it.
    Killed,
}

/// One attempt's work.
pub(super) struct Attempt<'a> {
    pub(super) ctx: &'a Ctx,
    /// The target claim, which scripts go by, and its UID.
    pub(super) key: &'a Key,
    pub(super) uid: &'a str,
    pub(super) url: &'a str,
    pub(super) checksum: Option<&'a str>,
    pub(super) connection: Connection,
    pub(super) volume: &'a Volume,
    /// What the target claim asks for.
    pub(super) requested: u64,
    pub(super) overhead: f64,
    pub(super) scratch: Option<PathBuf>,
    /// Told the fraction that is done.
    pub(super) progress: &'a (dyn Fn(f64) + Send + Sync),
}

fn io_error(what: &str, error: &std::io::Error) -> Failure {
    // Go's text for a full disk, which CDI's message table knows.
    Failure::Error(if error.kind() == std::io::ErrorKind::StorageFull {
        format!("{what}: no space left on device")
    } else {
        format!("{what}: {error}")
    })
}

impl Attempt<'_> {
    fn scripted(&self, wanted: &Behaviour) -> bool {
        self.ctx.scripts.find(self.key, |behaviour| (behaviour == wanted).then_some(())).is_some()
    }

    /// Runs until the disk is written, and yields its virtual size.
    pub(super) async fn run(mut self) -> Result<u64, Failure> {
        let crash = |behaviour: &Behaviour| if let Behaviour::CrashLoop { message } = behaviour { Some(message.clone()) } else { None };
        if let Some(message) = self.ctx.scripts.find(self.key, crash) {
            return Err(Failure::Error(message));
        }
        let fatal = |behaviour: &Behaviour| if let Behaviour::Fatal { message } = behaviour { Some(message.clone()) } else { None };
        if let Some(message) = self.ctx.scripts.find(self.key, fatal) {
            return Err(Failure::Fatal(message));
        }
        let error = |behaviour: &Behaviour| {
            if let Behaviour::Error { message, times } = behaviour { Some((*times, message.clone())) } else { None }
        };
        if let Some(message) = self.ctx.scripts.take(self.key, self.uid, error) {
            return Err(Failure::Error(message));
        }
        let oom = |behaviour: &Behaviour| if let Behaviour::OomKilled { times } = behaviour { Some((*times, ())) } else { None };
        if self.ctx.scripts.take(self.key, self.uid, oom).is_some() {
            return Err(Failure::OomKilled);
        }
        let mut changed = self.ctx.scripts.watch();
        while self.scripted(&Behaviour::NeverConnect) {
            // The sender outlives every attempt.
            let _ = changed.changed().await;
        }
        self.distort_connection();
        let response = self.connect().await?;
        if self.scratch.is_none() {
            self.peek(response).await?;
            return Err(Failure::ScratchRequired);
        }
        self.transfer(response).await
    }

    fn distort_connection(&mut self) {
        let host = url::Url::parse(self.url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
        if self.scripted(&Behaviour::WrongToken) {
            for header in &mut self.connection.headers {
                header.push_str("-wrong");
            }
        }
        if self.scripted(&Behaviour::BadCa) {
            self.connection.ca = None;
        }
        if self.scripted(&Behaviour::Refused) {
            // Port 1 of loopback: nobody listens there.
            self.connection.dial = [(host.clone(), ([127, 0, 0, 1], 1).into())].into();
        }
        if self.scripted(&Behaviour::NoSuchHost) {
            self.connection.dial.clear();
        }
    }

    fn log(&self, method: &'static str, seen: &mut Vec<Seen>) {
        for Seen { host, path, status } in seen.drain(..) {
            self.ctx.journal.push(self.key, What::Request { method, host, path, status });
        }
    }

    /// HEAD, whose failure is ignored, then GET, which must answer 200.
    async fn connect(&self) -> Result<reqwest::Response, Failure> {
        let refused = |text: String| Failure::Error(format!("Unable to connect to http data source: {text}"));
        if self.scripted(&Behaviour::NoSuchHost) {
            let host = url::Url::parse(self.url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
            return Err(refused(format!(
                "HTTP request errored: Get \"{}\": dial tcp: lookup {host} on 10.96.0.10:53: no such host",
                self.url
            )));
        }
        let mut seen = Vec::new();
        let head = self.connection.send(Method::HEAD, self.url, &mut seen).await;
        self.log("HEAD", &mut seen);
        drop(head);
        let response = self.connection.get(self.url, &mut seen).await;
        self.log("GET", &mut seen);
        response.map_err(refused)
    }

    /// The first pod reads the header to know the format, and closes.
    async fn peek(&self, mut response: reqwest::Response) -> Result<(), Failure> {
        let mut read = 0;
        while read < 512 {
            match self.chunk(&mut response).await? {
                Some(chunk) => read += chunk.len(),
                None => return Err(Failure::Error("Unable to process data: could not process image header: unexpected EOF".into())),
            }
        }
        Ok(())
    }

    async fn chunk(&self, response: &mut reqwest::Response) -> Result<Option<bytes::Bytes>, Failure> {
        let cut = |text: &str| Failure::Error(format!("Unable to transfer source data to scratch space: {text}"));
        match tokio::time::timeout(self.connection.patience, response.chunk()).await {
            // Ten minutes without progress end the attempt.
            Err(_) => Err(cut("context canceled")),
            Ok(Err(_)) => Err(cut("unexpected EOF")),
            Ok(Ok(chunk)) => Ok(chunk),
        }
    }

    async fn transfer(&self, mut response: reqwest::Response) -> Result<u64, Failure> {
        let scratch = self.scratch.clone().unwrap_or_default();
        let download = scratch.with_extension("download");
        let total = response.content_length();
        let encoded = response.headers().get(http::header::CONTENT_ENCODING).is_some_and(|value| value == "gzip");
        let write = |error: std::io::Error| io_error("Unable to transfer source data to scratch space", &error);
        let mut file = tokio::fs::File::create(&download).await.map_err(write)?;
        let mut done = 0u64;
        let mut pace = Pace::of(self, total);
        while let Some(chunk) = self.chunk(&mut response).await? {
            done += chunk.len() as u64;
            file.write_all(&chunk).await.map_err(write)?;
            let fraction = total.filter(|total| *total > 0).map_or(0.0, |total| done as f64 / total as f64);
            pace.reached(fraction, self).await?;
            self.fault_at(fraction).await?;
            (self.progress)(fraction);
        }
        pace.reached(1.0, self).await?;
        self.fault_at(1.0).await?;
        file.flush().await.map_err(write)?;
        drop(file);
        if let Some(checksum) = self.checksum {
            verify(&download, checksum)?;
        }
        let size = if self.ctx.opts.keep_disks { self.convert(&download, &scratch, encoded).await? } else { done };
        // What is left over is only disk space of a test.
        let _ = tokio::fs::remove_file(&download).await;
        let _ = tokio::fs::remove_file(&scratch).await;
        self.ctx.journal.push(self.key, What::Imported { downloaded: done, virtual_size: size });
        Ok(size)
    }

    /// Scripts that stop or kill a transfer on its way.
    async fn fault_at(&self, fraction: f64) -> Result<(), Failure> {
        let percent = fraction * 100.0;
        let kill =
            |behaviour: &Behaviour| if let Behaviour::PodKilledAt(at) = behaviour { (percent >= *at).then_some((1, ())) } else { None };
        if self.ctx.scripts.take(self.key, self.uid, kill).is_some() {
            return Err(Failure::Killed);
        }
        let stuck = |behaviour: &Behaviour| if let Behaviour::StuckAt(at) = behaviour { (percent >= *at).then_some(()) } else { None };
        let mut changed = self.ctx.scripts.watch();
        if self.ctx.scripts.find(self.key, stuck).is_none() {
            return Ok(());
        }
        (self.progress)(fraction);
        let freed = async {
            while self.ctx.scripts.find(self.key, stuck).is_some() {
                let _ = changed.changed().await;
            }
        };
        tokio::time::timeout(self.ctx.opts.stall_timeout, freed)
            .await
            .map_err(|_| Failure::Error("Unable to transfer source data to scratch space: context canceled".into()))
    }

    async fn convert(&self, download: &Path, scratch: &Path, encoded: bool) -> Result<u64, Failure> {
        let (from, to) = (download.to_owned(), scratch.to_owned());
        // The scratch claim is as large as the target.
        let limit = self.requested;
        tokio::task::spawn_blocking(move || unpack(&from, &to, encoded, limit))
            .await
            .map_err(|error| Failure::Error(error.to_string()))?
            .map_err(|error| io_error("Unable to transfer source data to scratch space", &error))?;
        let info = self.qemu_img(&["info", "--output=json"], &[scratch]).await?;
        let info: serde_json::Value = serde_json::from_slice(&info).map_err(|error| Failure::Error(format!("qemu-img info: {error}")))?;
        let format = info["format"].as_str().unwrap_or_default();
        if !["raw", "qcow2", "vmdk", "vdi", "vpc", "vhdx"].contains(&format) {
            return Err(Failure::Error(format!("Unable to process data: Invalid format {format} for image {}", scratch.display())));
        }
        if let Some(backing) = info["backing-filename"].as_str() {
            return Err(Failure::Error(format!("Unable to process data: Image is invalid because it has invalid backing file {backing}")));
        }
        let size = info["virtual-size"].as_u64().unwrap_or_default();
        let available = usable(if self.volume.block { self.volume.capacity } else { self.requested }, self.volume.block, self.overhead);
        if size > available {
            return Err(Failure::Error(format!(
                "Unable to process data: virtual image size {size} is larger than the reported available storage {available}. A larger PVC is required"
            )));
        }
        let raw = scratch.with_extension("raw");
        self.qemu_img(&["convert", "-O", "raw"], &[scratch, &raw]).await?;
        let length = if self.volume.block { self.volume.capacity } else { available };
        let place = async {
            tokio::fs::OpenOptions::new().write(true).open(&raw).await?.set_len(length).await?;
            tokio::fs::rename(&raw, &self.volume.path).await
        };
        place.await.map_err(|error| io_error("Unable to convert source data to target format", &error))?;
        Ok(size)
    }

    async fn qemu_img(&self, arguments: &[&str], files: &[&Path]) -> Result<Vec<u8>, Failure> {
        let output = tokio::process::Command::new(&self.ctx.opts.qemu_img).args(arguments).args(files).kill_on_drop(true).output().await;
        let output = output.map_err(|error| Failure::Error(format!("{}: {error}", self.ctx.opts.qemu_img.display())))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Failure::Error(format!(
            "Unable to convert source data to target format: could not stream/convert qcow2 image to raw: {stderr}"
        )))
    }
}

/// Slow transfers: `Ticks` holds the connection between equal steps.
struct Pace {
    count: u32,
    every: Duration,
    at: u32,
}

impl Pace {
    fn of(attempt: &Attempt, total: Option<u64>) -> Self {
        let ticks = |behaviour: &Behaviour| if let Behaviour::Ticks { count, every } = behaviour { Some((*count, *every)) } else { None };
        let (count, every) = attempt.ctx.scripts.find(attempt.key, ticks).filter(|_| total.is_some()).unwrap_or_default();
        Self { count, every, at: 0 }
    }

    /// A script that stops or kills a transfer is heard at each step, also where the whole disk came in one piece.
    async fn reached(&mut self, fraction: f64, attempt: &Attempt<'_>) -> Result<(), Failure> {
        while self.at < self.count && fraction >= f64::from(self.at + 1) / f64::from(self.count) {
            self.at += 1;
            let step = f64::from(self.at) / f64::from(self.count);
            (attempt.progress)(step);
            attempt.fault_at(step).await?;
            tokio::time::sleep(self.every).await;
        }
        Ok(())
    }
}

/// Undoes content encoding and one layer of compression into `to`, at most `limit` bytes.
fn unpack(from: &Path, to: &Path, encoded: bool, limit: u64) -> std::io::Result<()> {
    let file = std::fs::File::open(from)?;
    let mut input: Box<dyn Read> = Box::new(file);
    if encoded {
        input = Box::new(flate2::read::MultiGzDecoder::new(input));
    }
    let mut head = Vec::new();
    input.by_ref().take(512).read_to_end(&mut head)?;
    let compressed = std::io::Cursor::new(head.clone()).chain(input);
    let input: Box<dyn Read> = if head.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::read::MultiGzDecoder::new(compressed))
    } else if head.starts_with(b"\xfd7zXZ\0") {
        Box::new(liblzma::read::XzDecoder::new_multi_decoder(compressed))
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(zstd::stream::read::Decoder::new(compressed)?)
    } else {
        Box::new(compressed)
    };
    let mut output = std::fs::File::create(to)?;
    let mut input = input.take(limit + 1);
    let (mut buffer, mut written) = (vec![0u8; 1 << 20], 0u64);
    loop {
        let read = input.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        written += read as u64;
        if written > limit {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        // Runs of zeros become holes, or a 4 GiB disk of a test costs 4 GiB.
        if buffer[..read].iter().all(|byte| *byte == 0) {
            std::io::Seek::seek(&mut output, std::io::SeekFrom::Current(read as i64))?;
        } else {
            output.write_all(&buffer[..read])?;
        }
    }
    output.set_len(written)
}

/// CDI v1.65's check of `algorithm:hex` over the bytes as downloaded; the stand-in knows sha256.
fn verify(file: &Path, checksum: &str) -> Result<(), Failure> {
    use sha2::Digest;
    let Some(wanted) = checksum.strip_prefix("sha256:") else {
        return Err(Failure::Error(format!("Invalid checksum format: the stand-in checks sha256 only, got {checksum}")));
    };
    let mut hash = sha2::Sha256::new();
    let read = std::fs::read(file).map_err(|error| io_error("checksum", &error))?;
    hash.update(&read);
    let got: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if got == wanted { Ok(()) } else { Err(Failure::Fatal(format!("checksum mismatch: expected {wanted}, got {got}"))) }
}

/// CDI's `simplifyKnownMessage` (`pkg/controller/util.go`).
pub(super) fn simplified(message: &str) -> String {
    let known = [
        "is larger than the reported available",
        "no space left on device",
        "file largest block is bigger than maxblock",
        "disk quota exceeded",
    ];
    if known.iter().any(|part| message.contains(part)) { "DataVolume too small to contain image".into() } else { message.to_owned() }
}

/// What a claim asks for.
pub(super) fn requested(pvc: &k8s_openapi::api::core::v1::PersistentVolumeClaim) -> u64 {
    pvc.spec.as_ref().and_then(request).unwrap_or_default()
}
