//! A folder in which images are made, and what is asked of them.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use golden_catalog::{
    artifact::{ArtifactError, DiskFormat, Format, Ingested, Limits, Probe, Prober, Watch, ingest, preview},
    rules::Reason,
};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

/// The forms in which GNU tar writes archives; the last four leave holes out, however the file system tells them.
pub const TAR_FORMS: [&str; 8] = [
    "--format=v7",
    "--format=ustar",
    "--format=gnu",
    "--format=posix",
    "--format=gnu --sparse --hole-detection=raw",
    "--format=posix --sparse --hole-detection=raw --sparse-version=0.0",
    "--format=posix --sparse --hole-detection=raw --sparse-version=0.1",
    "--format=posix --sparse --hole-detection=raw --sparse-version=1.0",
];

pub struct Lab {
    folder: TempDir,
}

/// What became of a file that was taken in.
pub struct Taken {
    pub probe: Probe,
    /// How many bytes the probe had read.
    pub probed: u64,
    pub ingested: Ingested,
    /// The qcow2 that would go into the spool.
    pub disk: PathBuf,
}

impl Lab {
    pub fn new() -> Self {
        Self { folder: TempDir::new().expect("temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a shell line in the folder; it must succeed. Gives its standard output.
    pub fn sh(&self, line: &str) -> String {
        let output = shell(line).current_dir(self.folder.path()).output().expect("sh");
        assert!(output.status.success(), "{line}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A file of `len` bytes, without any of them written.
    pub fn sparse(&self, name: &str, len: u64) -> PathBuf {
        let path = self.path(name);
        File::create(&path).and_then(|file| file.set_len(len)).expect("create");
        path
    }

    /// A raw disk of `mib` MiB with a GPT and one partition, with `data` MiB of data in the midst of zeros.
    pub fn gpt(&self, name: &str, mib: u64, data: u64) -> PathBuf {
        let path = self.sparse(name, mib * MIB);
        self.sh(&format!("sgdisk --clear --new 1:2048:0 --typecode 1:8300 {name} >/dev/null"));
        scatter(&path, mib * MIB / 3, data);
        path
    }

    /// The size of the disk in an image, by qemu-img.
    pub fn virtual_size(&self, path: &Path) -> u64 {
        let info = self.sh(&format!("qemu-img info --output json {}", path.display()));
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        info["virtual-size"].as_u64().expect("virtual size")
    }

    /// Probes and takes in a file as the intake does, and holds against it what a look at its first mebibyte says.
    pub fn take_with(&self, path: &Path, limits: &Limits) -> Result<Taken, ArtifactError> {
        let taken = Self::taken(path, limits);
        let len = fs::metadata(path).expect("metadata").len();
        let looked = preview(&head(path, 1 << 20), Some(len), len <= MIB, limits);
        match (&looked, &taken) {
            (Ok(seen), Ok(taken)) if seen.is_whole => {
                assert_eq!(seen.probe.and_then(|probe| probe.virtual_size), Some(taken.ingested.virtual_size));
            }
            // The first bytes of what is bad further on may be good.
            (Ok(seen), Err(error)) => assert!(!seen.is_whole || error.reason() == Reason::SpoolFull, "seen whole, but: {error}"),
            (Err(told), Err(error)) => assert_eq!(told.reason(), error.reason(), "{told} and {error}"),
            (Err(told), Ok(_)) => panic!("taken, but a look says: {told}"),
            (Ok(_), Ok(_)) => {}
        }
        taken
    }

    /// The probe sees at most the first mebibyte, in order.
    fn taken(path: &Path, limits: &Limits) -> Result<Taken, ArtifactError> {
        let mut file = File::open(path).expect("open");
        let len = file.metadata().expect("metadata").len();
        let mut prober = Prober::new(Some(len), limits);
        let mut piece = [0; 4096];
        let mut probed = 0;
        let probe = loop {
            let count = file.read(&mut piece).expect("read");
            if count == 0 {
                break prober.finish()?;
            }
            probed += count as u64;
            if let Some(probe) = prober.feed(&piece[..count])? {
                break probe;
            }
        };
        assert!(probed <= Prober::MAX as u64);
        let output = path.with_extension("spooled");
        let disk = File::options().read(true).write(true).create(true).truncate(true).open(&output).expect("create");
        let ingested = ingest(&file, None, probe.format, &disk, limits, Watch::idle())?;
        assert_eq!(ingested.disk_is_input, probe.format == Format { disk: DiskFormat::Qcow2, compression: None });
        let disk = if ingested.disk_is_input { path.to_owned() } else { output };
        assert_eq!(fs::metadata(&disk).expect("metadata").len(), ingested.disk_len);
        Ok(Taken { probe, probed, ingested, disk })
    }

    pub fn take(&self, path: &Path) -> Result<Taken, ArtifactError> {
        self.take_with(path, &Limits::default())
    }

    /// Takes in an image that must be a good one, whose disk is that of the raw file `source`; judged by qemu-img.
    pub fn good(&self, path: &Path, format: &str, source: &Path) -> Taken {
        let taken = self.take(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(taken.probe.format.to_string(), format);
        self.sh(&format!("qemu-img check -q -f qcow2 {}", taken.disk.display()));
        self.sh(&format!("qemu-img compare -q -f raw -F qcow2 {} {}", source.display(), taken.disk.display()));
        assert_eq!(taken.ingested.virtual_size.bytes(), self.virtual_size(&taken.disk));
        let sum = self.sh(&format!("sha256sum < {}", taken.disk.display()));
        assert_eq!(taken.ingested.disk_digest.hex(), sum.split(' ').next().unwrap_or_default());
        taken
    }
}

/// Writes `mib` MiB of bytes, half of them noise and half compressible, at `offset`, with gaps of zeros between them.
pub fn scatter(path: &Path, offset: u64, mib: u64) {
    let mut file = File::options().write(true).open(path).expect("open");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for index in 0..mib {
        let piece: Vec<u8> = (0..MIB / 8)
            .flat_map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if index % 2 == 0 { state.to_le_bytes() } else { (state & 0x0303_0303).to_le_bytes() }
            })
            .collect();
        file.seek(SeekFrom::Start(offset + index * (MIB + 300_000))).expect("seek");
        file.write_all(&piece).expect("write");
    }
}

fn shell(line: &str) -> Command {
    let mut command = Command::new("sh");
    // mkfs and sgdisk are in folders that only root has on its PATH.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    command.arg("-ec").arg(line).env("PATH", path).stdin(Stdio::null());
    command
}

/// The first `len` bytes of a file, fewer where it is shorter.
pub fn head(path: &Path, len: usize) -> Vec<u8> {
    let mut head = Vec::new();
    File::open(path).expect("open").take(len as u64).read_to_end(&mut head).expect("read");
    head
}
