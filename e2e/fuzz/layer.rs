//! Mutates layers of container images for a while and takes the disk out of them: `cargo run --example fuzz_layer`.
//!
//! Seeds are archives by GNU tar in each of its formats, sparse ones too, of a folder `disk/` with one small image. Each round
//! changes some bytes, makes the checksums of headers right again or not, packs the result or not, and gives it to the prober,
//! to the intake and to the scan of other layers. It looks for what `artifact.rs` looks for.

// Shared with the tests, which use all of it.
#[allow(dead_code)]
#[path = "../formats/lab.rs"]
mod lab;
#[path = "rounds/mod.rs"]
mod rounds;

use std::{
    fs::{self, File},
    io::Write as _,
    process::ExitCode,
};

use golden_catalog::artifact::{LayerProber, Limits, Watch, ingest_layer, inspect_qcow2, preview_layer, scan_layer};
use lab::{Lab, MIB};
use rounds::{Drip, Random, verdict};

fn main() -> ExitCode {
    rounds::run("layer", seeds, spoil, take)
}

/// Takes one case in, and holds a look at its first mebibyte against that; an outcome, or what is wrong with it.
fn take(lab: &Lab, bytes: &[u8], step: usize, limits: &Limits) -> Result<String, String> {
    let outcome = taken(lab, bytes, step, limits)?;
    let is_taken = outcome.ends_with(": taken");
    match preview_layer(&bytes[..bytes.len().min(1 << 20)], bytes.len() as u64, limits) {
        Err(error) if is_taken => Err(format!("taken, but a look says {error}")),
        Ok(seen) if is_taken && (seen.missing.is_some() || matches!(seen.disk, Some(Err(_)))) => {
            Err(format!("taken, but a look says {seen:?}"))
        }
        // The room that was reserved is nothing that a look knows of.
        Ok(seen) if seen.is_whole && seen.disk.is_some() && !is_taken && !outcome.ends_with(": SpoolFull") => {
            Err(format!("seen whole, but {outcome}"))
        }
        _ => Ok(outcome),
    }
}

fn taken(lab: &Lab, bytes: &[u8], step: usize, limits: &Limits) -> Result<String, String> {
    let mut prober = LayerProber::new(bytes.len() as u64, limits);
    let mut probe = Ok(None);
    for piece in bytes.chunks(step) {
        probe = prober.feed(piece);
        if !matches!(probe, Ok(None)) {
            break;
        }
    }
    let open = |name: &str| File::options().read(true).write(true).create(true).truncate(true).open(lab.path(name)).expect("create");
    let (input, output) = (File::open(lab.path("case")).expect("open"), open("output"));
    let scanned = scan_layer(Drip(bytes, step), limits, Watch::idle());
    let taken = match ingest_layer(&input, &output, limits, Watch::idle()) {
        Ok(taken) => taken,
        Err(error) => return verdict("layer", &error),
    };
    // Who takes the disk has seen all of the layer: the others must not say otherwise of the same bytes.
    if !matches!(scanned, Ok(true)) {
        return Err(format!("taken, but the scan says {scanned:?}"));
    }
    match probe {
        Err(error) => return Err(format!("taken, but the probe says {error}")),
        Ok(Some(probe)) if probe.virtual_size.is_some_and(|size| size != taken.disk.virtual_size) => {
            return Err(format!("taken as {taken:?}, but the probe says {probe:?}"));
        }
        Ok(_) => {}
    }
    let whole = inspect_qcow2(&output, limits, Watch::idle()).map_err(|error| format!("taken, but: {error}"))?;
    if whole.file_len != taken.disk.disk_len || whole.virtual_size != taken.disk.virtual_size {
        return Err(format!("{taken:?} is in truth {whole:?}"));
    }
    Ok(format!("{}: taken", taken.format))
}

/// Small layers of every form.
fn seeds(lab: &Lab) -> Vec<(String, Vec<u8>)> {
    lab.gpt("gpt.raw", 2, 0);
    lab.sh("head -c 70000 /dev/urandom | dd of=gpt.raw bs=1000 seek=1200 conv=notrunc status=none");
    lab.sh("mkdir -p raw/disk qcow2/disk raw/etc && mv gpt.raw raw/disk/disk.img && echo more > raw/etc/more");
    lab.sh("qemu-img convert -f raw -O qcow2 raw/disk/disk.img qcow2/disk/disk.qcow2");
    for folder in ["raw", "qcow2"] {
        for (index, options) in lab::TAR_FORMS.iter().enumerate() {
            lab.sh(&format!("tar {options} -C {folder} -cf {folder}-{index}.tar ."));
            lab.sh(&format!("tar {options} -C {folder} -cf {folder}-bare-{index}.tar disk"));
        }
    }
    lab.sh("mkdir -p long/disk && cp qcow2/disk/disk.qcow2 long/disk/$(printf 'n%.0s' $(seq 180)) && tar --format=gnu -C long -cf long.tar disk");
    let paths = fs::read_dir(lab.path("")).expect("folder").map(|entry| entry.expect("entry").path());
    let mut seeds: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "tar"))
        .map(|path| (path.display().to_string(), fs::read(&path).expect("read")))
        .collect();
    assert!(seeds.iter().all(|(_, bytes)| (bytes.len() as u64) < 4 * MIB), "small, for many cases a second");
    seeds.sort();
    seeds
}

fn spoil(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = rounds::mutate(random, bytes);
    // Else few cases get past the checksum.
    if random.below(4) != 0 {
        reseal(&mut bytes);
    }
    pack(random, bytes)
}

/// Makes the checksum of every block right that had one, or that looks like a header.
fn reseal(bytes: &mut [u8]) {
    for block in bytes.as_chunks_mut::<512>().0 {
        if block[257..262] == *b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

fn pack(random: &mut Random, bytes: Vec<u8>) -> Vec<u8> {
    match random.below(6) {
        0 => zstd::encode_all(bytes.as_slice(), 1).expect("zstd"),
        1 => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&bytes).and_then(|()| encoder.finish()).expect("gzip")
        }
        _ => bytes,
    }
}
