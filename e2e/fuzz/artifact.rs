//! Mutates disk images for a while and takes them in: `cargo run --example fuzz_artifact`.
//!
//! Seeds are made by the real tools (qemu-img, sgdisk, mkfs, xz, zstd, gzip). Each round changes a few places where tables
//! are likely to be, cuts, doubles or moves pieces, packs the result or not, and gives it to the prober and the intake.
//! It looks for panics, hangs, memory beyond the limits, verdicts that blame the volume, and taken disks that do not
//! inspect as whole. No coverage guides it: that needs a nightly compiler; the mutations know the formats instead.
//!
//! `SECONDS_EACH` (60) bounds it, `FUZZ_SEED` repeats a run; a finding is kept as a file whose path is printed.

// Shared with the tests, which use all of it.
#[allow(dead_code)]
#[path = "../formats/lab.rs"]
mod lab;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use golden_catalog::{
    artifact::{ArtifactError, Limits, Prober, Watch, ingest, ingest_stream, inspect_qcow2},
    rules::Reason,
};
use lab::{Lab, MIB};

/// No case may take longer, on however busy a machine.
const HANG: Duration = Duration::from_secs(120);
/// The most memory, in KiB: the limits below, the pieces under way, and what the seeds take.
const MEMORY: u64 = 512 << 10;

fn main() -> ExitCode {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("SECONDS_EACH").unwrap_or(60);
    let seed = number("FUZZ_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    println!("fuzzing artifact for {seconds} s with FUZZ_SEED={seed}");
    let lab = Lab::new();
    let seeds = seeds(&lab);
    let limits = Limits { max_virtual_size: 64 * MIB, reserved: 32 * MIB, xz_memory: 64 * MIB, zstd_window: 8 * MIB, threads: 2 };
    let case = lab.path("case");
    let began = Instant::now();
    watch_for_hangs(began);
    let mut random = Random(seed);
    let mut outcomes = BTreeMap::<String, u64>::new();
    while began.elapsed() < Duration::from_secs(seconds) {
        STARTED.store(began.elapsed().as_secs() + 1, Ordering::Relaxed);
        let (name, bytes) = &seeds[random.below(seeds.len())];
        let mutated = mutate(&mut random, bytes);
        let bytes = pack(&mut random, mutated);
        fs::write(&case, &bytes).expect("write");
        let step = 1 + random.below(70_000);
        match catch_unwind(AssertUnwindSafe(|| take(&lab, &bytes, step, &limits))) {
            Ok(Ok(outcome)) => *outcomes.entry(outcome).or_default() += 1,
            Ok(Err(finding)) => return report(&bytes, name, &finding),
            Err(_) => return report(&bytes, name, "a panic"),
        }
    }
    let cases: u64 = outcomes.values().sum();
    let peak = peak_memory();
    println!("{cases} cases, peak memory {} MiB", peak >> 10);
    for (outcome, count) in outcomes {
        println!("{count:>10}  {outcome}");
    }
    if peak > MEMORY {
        println!("more memory than {} MiB was used", MEMORY >> 10);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Takes one case in; an outcome, or what is wrong with it.
fn take(lab: &Lab, bytes: &[u8], step: usize, limits: &Limits) -> Result<String, String> {
    let mut prober = Prober::new(Some(bytes.len() as u64), limits);
    let mut probe = None;
    for piece in bytes.chunks(step) {
        match prober.feed(piece) {
            Ok(None) => (),
            Ok(Some(found)) => {
                probe = Some(found);
                break;
            }
            Err(error) => return verdict("probe", &error),
        }
    }
    let probe = match probe.map_or_else(|| prober.finish(), Ok) {
        Ok(probe) => probe,
        Err(error) => return verdict("probe", &error),
    };
    let open = |name: &str| File::options().read(true).write(true).create(true).truncate(true).open(lab.path(name)).expect("create");
    let input = File::open(lab.path("case")).expect("open");
    let output = open("output");
    let taken = match ingest(&input, None, probe.format, &output, limits, Watch::idle()) {
        Ok(taken) => taken,
        Err(error) => return verdict(&probe.format.to_string(), &error),
    };
    let disk = if taken.disk_is_input { &input } else { &output };
    let whole = inspect_qcow2(disk, limits, Watch::idle()).map_err(|error| format!("taken, but: {error}"))?;
    if whole.file_len != taken.disk_len || whole.virtual_size != taken.virtual_size {
        return Err(format!("{taken:?} is in truth {whole:?}"));
    }
    // The same bytes once more, read in other pieces by another number of threads.
    let again = open("again");
    let other = Limits { threads: 1, ..limits.clone() };
    let again =
        ingest_stream(Drip(bytes, step), probe.format, &again, &other, Watch::idle()).map_err(|error| format!("not again: {error}"))?;
    if again.disk_digest != taken.disk_digest {
        return Err("the same bytes gave another disk".to_owned());
    }
    Ok(format!("{}: taken", probe.format))
}

fn verdict(stage: &str, error: &ArtifactError) -> Result<String, String> {
    match error.reason() {
        Reason::SpoolFailed | Reason::Fetching => Err(format!("the volume is blamed: {error}")),
        reason => Ok(format!("{stage}: {reason}")),
    }
}

struct Drip<'a>(&'a [u8], usize);

impl std::io::Read for Drip<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = out.len().min(self.1);
        self.0.read(&mut out[..count])
    }
}

/// Small images of every kind. Of packed ones the packing itself is mutated; plain ones are packed after the mutation.
fn seeds(lab: &Lab) -> Vec<(String, Vec<u8>)> {
    // Small, for many cases a second.
    lab.gpt("gpt.raw", 2, 0);
    lab.sh("head -c 70000 /dev/urandom | dd of=gpt.raw bs=1000 seek=1200 conv=notrunc status=none");
    lab.sparse("4k.raw", 2 * MIB);
    lab.sh("PARTED_SECTOR_SIZE=4096 parted -s 4k.raw mklabel gpt mkpart disk 512KiB 1MiB 2>/dev/null");
    lab.sparse("mbr.raw", 2 * MIB);
    lab.sh("printf 'label: dos\\nsize=512K\\n' | sfdisk -q mbr.raw");
    lab.sparse("ext.raw", MIB);
    lab.sh("mkfs.ext4 -q -F -O ^has_journal ext.raw");
    for (index, options) in
        ["", "-o compat=0.10", "-c", "-c -o compression_type=zstd", "-o extended_l2=on", "-o cluster_size=512", "-o cluster_size=4k -c"]
            .into_iter()
            .enumerate()
    {
        lab.sh(&format!("qemu-img convert -f raw -O qcow2 {options} gpt.raw {index}.qcow2"));
    }
    lab.sh("cp 0.qcow2 snapshots.qcow2 && qemu-img snapshot -c one snapshots.qcow2 && qemu-img bitmap --add snapshots.qcow2 dirty");
    lab.sh("xz -0 -k --block-size=512KiB gpt.raw && xz -6 -k 0.qcow2 && zstd -q gpt.raw && zstd -q 0.qcow2 && gzip -k gpt.raw && gzip -k 0.qcow2");
    let mut seeds: Vec<_> = fs::read_dir(lab.path(""))
        .expect("folder")
        .map(|entry| entry.expect("entry").path())
        .map(|path| (path.display().to_string(), fs::read(&path).expect("read")))
        .collect();
    seeds.sort();
    seeds
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// A place in a file of `len` bytes: near its start or end, at the start of a cluster or sector, or anywhere.
    fn place(&mut self, len: usize) -> usize {
        let place = match self.below(6) {
            0 => self.below(128),
            1 => self.below(4096),
            2 => self.below(len.div_ceil(65_536)) * 65_536 + self.below(64),
            3 => self.below(len.div_ceil(512)) * 512 + self.below(64),
            4 => len.saturating_sub(1 + self.below(600)),
            _ => self.below(len),
        };
        place.min(len.saturating_sub(1))
    }
}

const VALUES: [u64; 16] = [0, 1, 2, 7, 8, 511, 512, 513, 65_535, 65_536, 1 << 20, 1 << 31, u32::MAX as u64, 1 << 62, 1 << 63, u64::MAX];

fn mutate(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.place(bytes.len());
        let room = bytes.len() - at;
        match random.below(8) {
            0 | 1 if room > 0 => bytes[at] ^= 1 << random.below(8),
            2 if room > 0 => bytes[at] = random.next() as u8,
            3 | 4 => {
                let at = at & !3;
                let width = [4, 8][random.below(2)].min(bytes.len() - at);
                let value = VALUES[random.below(VALUES.len())];
                let big = value.to_be_bytes();
                let value = if random.below(2) == 0 { &big[8 - width..] } else { &value.to_le_bytes()[..width] };
                bytes[at..at + width].copy_from_slice(value);
            }
            5 if random.below(4) == 0 => bytes.truncate(at),
            6 => {
                // A table entry, or a sector, over another.
                let (from, len) = (random.place(bytes.len()), [8, 16, 512][random.below(3)]);
                let len = len.min(room).min(bytes.len() - from);
                bytes.copy_within(from..from + len, at);
            }
            7 if random.below(4) == 0 => {
                let more = bytes[..bytes.len().min(1 + random.below(5000))].to_vec();
                bytes.extend_from_slice(&more);
            }
            _ => (),
        }
    }
    if random.below(3) == 0 {
        reseal(&mut bytes);
    }
    bytes
}

/// Makes the CRC of a primary GPT header good again, so that what it says is looked at.
fn reseal(bytes: &mut [u8]) {
    for at in [512, 4096] {
        if let Some(header) = bytes.get_mut(at..at + 92).filter(|header| header.starts_with(b"EFI PART")) {
            header[16..20].fill(0);
            let crc = crc32fast::hash(header);
            header[16..20].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

fn pack(random: &mut Random, bytes: Vec<u8>) -> Vec<u8> {
    match random.below(8) {
        0 => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
            encoder.write_all(&bytes).and_then(|()| encoder.finish()).expect("xz")
        }
        1 => zstd::encode_all(bytes.as_slice(), 1).expect("zstd"),
        2 => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&bytes).and_then(|()| encoder.finish()).expect("gzip")
        }
        _ => bytes,
    }
}

/// When the current case began, in seconds since the start, plus one.
static STARTED: AtomicU64 = AtomicU64::new(1);

fn watch_for_hangs(began: Instant) {
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_secs(1));
            if began.elapsed().as_secs() > STARTED.load(Ordering::Relaxed) + HANG.as_secs() {
                println!("a case takes longer than {HANG:?}; run again with the same FUZZ_SEED to find it");
                std::process::exit(1);
            }
        }
    });
}

/// The most memory that this process has used, in KiB.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}

fn report(bytes: &[u8], seed: &str, finding: &str) -> ExitCode {
    let path = std::env::temp_dir().join(format!("fuzz-artifact-{}", std::process::id()));
    let kept = fs::write(&path, bytes).map_or_else(|error| error.to_string(), |()| path.display().to_string());
    println!("found: {finding}\nmade from {seed}, kept as {kept}");
    ExitCode::FAILURE
}
