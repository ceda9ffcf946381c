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
#[path = "rounds/mod.rs"]
mod rounds;

use std::{
    fs::{self, File},
    io::Write as _,
    process::ExitCode,
};

use golden_catalog::artifact::{Limits, Prober, Watch, ingest, ingest_stream, inspect_qcow2, preview};
use lab::{Lab, MIB};
use rounds::{Drip, Random, verdict};

fn main() -> ExitCode {
    rounds::run("artifact", seeds, spoil, take)
}

/// Spoils an image, and packs it or not.
fn spoil(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = rounds::mutate(random, bytes);
    if random.below(3) == 0 {
        reseal(&mut bytes);
    }
    pack(random, bytes)
}

/// Takes one case in, and holds a look at its first mebibyte against that; an outcome, or what is wrong with it.
fn take(lab: &Lab, bytes: &[u8], step: usize, limits: &Limits) -> Result<String, String> {
    let outcome = taken(lab, bytes, step, limits)?;
    let head = &bytes[..bytes.len().min(Prober::MAX)];
    match preview(head, Some(bytes.len() as u64), head.len() == bytes.len(), limits) {
        Err(error) if outcome.ends_with(": taken") => Err(format!("taken, but a look says {error}")),
        // The room that was reserved is nothing that a look knows of.
        Ok(seen) if seen.is_whole && ![": taken", ": SpoolFull"].iter().any(|end| outcome.ends_with(end)) => {
            Err(format!("seen whole, but {outcome}"))
        }
        _ => Ok(outcome),
    }
}

fn taken(lab: &Lab, bytes: &[u8], step: usize, limits: &Limits) -> Result<String, String> {
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
