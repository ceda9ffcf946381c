//! The loop of a fuzz target: draws a seed, spoils it, gives it to what is tried, for `SECONDS_EACH` seconds.

// Each target uses its part.
#![allow(dead_code)]

use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use golden_catalog::{
    artifact::{ArtifactError, Limits},
    rules::Reason,
};

use crate::lab::{Lab, MIB};

/// No case may take longer, on however busy a machine.
const HANG: Duration = Duration::from_secs(120);
/// The most memory, in KiB: the limits below, the pieces under way, and what the seeds take.
const MEMORY: u64 = 512 << 10;

/// Where a seed comes from, and its bytes.
type Seed = (String, Vec<u8>);

/// What a case may take.
fn limits() -> Limits {
    Limits { max_virtual_size: 64 * MIB, reserved: 32 * MIB, xz_memory: 64 * MIB, zstd_window: 8 * MIB, threads: 2 }
}

/// Runs a target: `spoil` makes a case of a seed, `take` gives its outcome, or what is wrong with that. It finds the case in the
/// lab's file `case` too, and how many bytes it is to read at once.
pub fn run(
    name: &str,
    seeds: fn(&Lab) -> Vec<Seed>,
    spoil: fn(&mut Random, &[u8]) -> Vec<u8>,
    take: fn(&Lab, &[u8], usize, &Limits) -> Result<String, String>,
) -> ExitCode {
    let lab = Lab::new();
    let (seeds, limits, file) = (seeds(&lab), limits(), lab.path("case"));
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("SECONDS_EACH").unwrap_or(60);
    let seed = number("FUZZ_SEED").unwrap_or_else(|| (u64::from(std::process::id()) << 20) | 1);
    println!("fuzzing {name} for {seconds} s with FUZZ_SEED={seed}");
    let began = Instant::now();
    watch_for_hangs(began);
    let mut random = Random(seed);
    let mut outcomes = BTreeMap::<String, u64>::new();
    while began.elapsed() < Duration::from_secs(seconds) {
        STARTED.store(began.elapsed().as_secs() + 1, Ordering::Relaxed);
        let (from, bytes) = &seeds[random.below(seeds.len())];
        let case = spoil(&mut random, bytes);
        fs::write(&file, &case).expect("write");
        let step = 1 + random.below(70_000);
        match catch_unwind(AssertUnwindSafe(|| take(&lab, &case, step, &limits))) {
            Ok(Ok(outcome)) => *outcomes.entry(outcome).or_default() += 1,
            Ok(Err(finding)) => return report(name, &case, from, &finding),
            Err(_) => return report(name, &case, from, "a panic"),
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

/// A refusal as an outcome; one that blames the volume is a finding.
pub fn verdict(stage: &str, error: &ArtifactError) -> Result<String, String> {
    match error.reason() {
        Reason::SpoolFailed | Reason::Fetching => Err(format!("the volume is blamed: {error}")),
        reason => Ok(format!("{stage}: {reason}")),
    }
}

/// Gives its bytes out in small pieces.
pub struct Drip<'a>(pub &'a [u8], pub usize);

impl std::io::Read for Drip<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = out.len().min(self.1);
        self.0.read(&mut out[..count])
    }
}

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// A place in a file of `len` bytes: near its start or end, at the start of a cluster or sector, or anywhere.
    pub fn place(&mut self, len: usize) -> usize {
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

/// Changes a few places where tables are likely to be, cuts, doubles or moves pieces.
pub fn mutate(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
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
    bytes
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

fn report(name: &str, bytes: &[u8], seed: &str, finding: &str) -> ExitCode {
    let path = std::env::temp_dir().join(format!("fuzz-{name}-{}", std::process::id()));
    let kept = fs::write(&path, bytes).map_or_else(|error| error.to_string(), |()| path.display().to_string());
    println!("found: {finding}\nmade from {seed}, kept as {kept}");
    ExitCode::FAILURE
}
