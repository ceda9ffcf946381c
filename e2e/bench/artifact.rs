//! From a downloaded raw.xz to a verified qcow2, beside what a person would run in a shell: `xz -dc` to a sparse file, then
//! `qemu-img convert`. And the bytes that it takes to know a disk's size.
//!
//! One disk of 4.15 GiB (Talos for amd64) with about 300 MiB of data, packed by `xz -0` as the factory does, once in blocks
//! of a mebibyte (`-T0`) and once in one block (`-T1`, as older factories and other publishers do), and by zstd and gzip.
//! Both sides read a file that is in memory, in turn; the best of three runs of each counts; both must give one content.

// Shared with the tests, which use all of it.
#[allow(dead_code)]
#[path = "../formats/lab.rs"]
mod lab;

use std::{
    fs::File,
    path::Path,
    time::{Duration, Instant},
};

use golden_catalog::artifact::{Limits, Prober, Watch, ingest};
use lab::{Lab, scatter};

const ROUNDS: usize = 3;
const DISK: u64 = 4_453_302_272;

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run by `cargo bench --bench artifact`");
        return;
    }
    let lab = Lab::new();
    lab.sparse("disk.raw", DISK);
    lab.sh("sgdisk --clear --new 1:2048:0 disk.raw >/dev/null");
    scatter(&lab.path("disk.raw"), 100 << 20, 300);
    for (name, pack, unpack) in [
        ("blocks.raw.xz", "xz -0 -T 2 -c", "xz -dc"),
        ("one-block.raw.xz", "xz -0 -T 1 -c", "xz -dc"),
        ("disk.raw.zst", "zstd -q -T2 -3 -c", "zstd -q -dc"),
        ("disk.raw.gz", "gzip -1 -c", "gzip -dc"),
    ] {
        lab.sh(&format!("{pack} disk.raw > {name}"));
        let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            theirs = theirs.min(peer(&lab, name, unpack));
            ours = ours.min(intake(&lab, name));
        }
        lab.sh("qemu-img compare -q -f qcow2 -F qcow2 peer.qcow2 ours.qcow2");
        println!(
            "{name} to verified qcow2: {:.2} s; {unpack} to a sparse file, qemu-img convert: {:.2} s; ratio {:.2}",
            ours.as_secs_f64(),
            theirs.as_secs_f64(),
            theirs.as_secs_f64() / ours.as_secs_f64()
        );
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("most memory used: {}", status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("unknown").trim());

    lab.sh("qemu-img create -q -f qcow2 cloud.qcow2 20G");
    for name in ["blocks.raw.xz", "one-block.raw.xz", "disk.raw.zst", "disk.raw.gz", "disk.raw", "cloud.qcow2"] {
        let (size, read) = probe(&lab.path(name));
        println!("virtual size of {name}: {size} bytes, known after {read} bytes");
    }
}

/// What a person would do, without any check of the disk.
fn peer(lab: &Lab, name: &str, unpack: &str) -> Duration {
    lab.sh("rm -f sparse.raw peer.qcow2");
    let began = Instant::now();
    // xz writes holes by itself; zstd and gzip need help for the same.
    let sparse =
        if unpack.starts_with("xz") { "> sparse.raw" } else { "| dd of=sparse.raw bs=64k iflag=fullblock conv=sparse status=none" };
    lab.sh(&format!("{unpack} {name} {sparse} && qemu-img convert -f raw -O qcow2 sparse.raw peer.qcow2"));
    began.elapsed()
}

fn intake(lab: &Lab, name: &str) -> Duration {
    let output = lab.path("ours.qcow2");
    let _ = std::fs::remove_file(&output);
    let began = Instant::now();
    let input = File::open(lab.path(name)).expect("open");
    let output = File::options().read(true).write(true).create(true).truncate(true).open(output).expect("create");
    let bytes = lab::head(&lab.path(name), Prober::MAX);
    let mut prober = Prober::new(None, &Limits::default());
    let probe = prober.feed(&bytes).expect("a disk").expect("enough");
    let taken = ingest(&input, None, probe.format, &output, &Limits::default(), Watch::idle()).expect("a disk");
    let took = began.elapsed();
    assert_eq!(taken.virtual_size.bytes(), DISK);
    took
}

/// The size of the disk, and how many bytes were read until it was known.
fn probe(path: &Path) -> (u64, usize) {
    let len = std::fs::metadata(path).expect("metadata").len();
    let mut prober = Prober::new(Some(len), &Limits::default());
    let bytes = lab::head(path, Prober::MAX);
    for (index, piece) in bytes.chunks(512).enumerate() {
        if let Some(probe) = prober.feed(piece).expect("a disk") {
            return (probe.virtual_size.map_or(0, |size| size.bytes()), index * 512 + piece.len());
        }
    }
    panic!("{} is not known from its first mebibyte", path.display())
}
