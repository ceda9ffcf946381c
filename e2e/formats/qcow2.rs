//! qcow2 images of every kind that qemu-img makes, and what spoils them.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use golden_catalog::{
    artifact::{Limits, Watch, inspect_qcow2},
    rules::Reason,
};

use crate::lab::{Lab, MIB};

/// Options of `qemu-img convert` that make an image which must be taken.
const KINDS: &[&str] = &[
    "-o compat=0.10",
    "-o compat=1.1",
    "-o cluster_size=512",
    "-o cluster_size=8k",
    "-o cluster_size=2M",
    "-o refcount_bits=1",
    "-o refcount_bits=64",
    "-o lazy_refcounts=on",
    "-o preallocation=metadata",
    "-o extended_l2=on",
    "-o extended_l2=on,cluster_size=128k -c",
    "-c",
    "-c -o compat=0.10",
    "-c -o compression_type=zstd",
    "-c -o compression_type=zstd,cluster_size=2M",
    "-c -o cluster_size=512",
];

#[test]
fn every_kind_is_taken_as_it_is() {
    let lab = Lab::new();
    let disk = lab.gpt("disk.raw", 70, 4);
    for options in KINDS {
        lab.sh(&format!("qemu-img convert -f raw -O qcow2 {options} disk.raw disk.qcow2"));
        let taken = lab.good(&lab.path("disk.qcow2"), "qcow2", &disk);
        assert_eq!(taken.probe.virtual_size, Some(taken.ingested.virtual_size), "{options}");
        assert_eq!(taken.probed, 4096, "{options}");
    }
}

#[test]
fn internal_snapshots_bitmaps_and_resized_tables_are_taken() {
    let lab = Lab::new();
    let disk = lab.gpt("disk.raw", 70, 2);
    lab.sh("qemu-img convert -f raw -O qcow2 disk.raw disk.qcow2");
    lab.sh("qemu-img snapshot -c first disk.qcow2 && qemu-io -f qcow2 -c 'write -P 7 40M 3M' disk.qcow2 >/dev/null");
    lab.sh("qemu-img snapshot -c second disk.qcow2 && qemu-img bitmap --add disk.qcow2 dirty");
    lab.sh("qemu-io -f qcow2 -c 'discard 41M 1M' -c 'write -z 50M 1M' disk.qcow2 >/dev/null");
    lab.sh("qemu-img convert -f qcow2 -O raw disk.qcow2 expected.raw");
    lab.good(&lab.path("disk.qcow2"), "qcow2", &lab.path("expected.raw"));
    assert!(disk.exists());
    // The L1 table moves when the disk outgrows it.
    lab.sh("qemu-img convert -f raw -O qcow2 -o cluster_size=4k disk.raw grown.qcow2 && qemu-img resize -q -f qcow2 grown.qcow2 20G");
    lab.sh("qemu-img convert -f qcow2 -O raw grown.qcow2 expected.raw");
    lab.good(&lab.path("grown.qcow2"), "qcow2", &lab.path("expected.raw"));
    lab.sh("qemu-img resize -q -f qcow2 --shrink grown.qcow2 80M && truncate -s 80M expected.raw");
    lab.good(&lab.path("grown.qcow2"), "qcow2", &lab.path("expected.raw"));
}

#[test]
fn an_empty_one_of_20_gib_is_a_few_kilobytes() {
    let lab = Lab::new();
    lab.sparse("empty.raw", 20 << 30);
    for options in ["", "-o compat=0.10", "-o cluster_size=4k", "-o cluster_size=2M", "-o extended_l2=on"] {
        lab.sh(&format!("qemu-img create -q -f qcow2 {options} empty.qcow2 20G"));
        let taken = lab.good(&lab.path("empty.qcow2"), "qcow2", &lab.path("empty.raw"));
        assert_eq!(taken.ingested.virtual_size.bytes(), 20 << 30);
    }
    // One that ends inside its L1 table, of which it holds two entries of forty.
    lab.sh("qemu-img create -q -f qcow2 empty.qcow2 20G && truncate -s 196624 empty.qcow2");
    lab.good(&lab.path("empty.qcow2"), "qcow2", &lab.path("empty.raw"));
}

#[test]
fn what_needs_another_file_or_a_key_is_refused() {
    let lab = Lab::new();
    lab.gpt("disk.raw", 70, 1);
    lab.sh("qemu-img convert -f raw -O qcow2 disk.raw base.qcow2");
    for (line, word) in [
        ("qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 packed", "backing file"),
        ("qemu-img create -q -f qcow2 -b disk.raw -F raw packed 100M", "backing file"),
        ("qemu-img create -q -f qcow2 -o data_file=outside.raw packed 100M", "external data file"),
        ("qemu-img create -q -f qcow2 -o data_file=outside.raw,data_file_raw=on packed 100M", "external data file"),
        (
            "qemu-img create -q -f qcow2 --object secret,id=key,data=abc -o encrypt.format=luks,encrypt.key-secret=key,encrypt.iter-time=10 packed 100M",
            "encrypted",
        ),
    ] {
        lab.sh(&format!("rm -f packed && {line}"));
        let error = lab.take(&lab.path("packed")).map(|taken| taken.ingested).expect_err(line);
        assert_eq!(error.reason(), Reason::UnsupportedFormat, "{line}: {error}");
        assert!(error.to_string().contains(word), "{line}: {error}");
        // Also when it is packed.
        lab.sh("zstd -q -f packed -o packed.zst");
        let error = lab.take(&lab.path("packed.zst")).map(|taken| taken.ingested).expect_err(line);
        assert!(error.to_string().contains(word), "{line}: {error}");
    }
}

#[test]
fn an_image_left_open_or_known_to_be_damaged_is_corrupt() {
    let lab = Lab::new();
    // A writer that is killed leaves an image with lazy reference counts dirty.
    lab.sh("qemu-img create -q -f qcow2 -o lazy_refcounts=on open.qcow2 100M");
    lab.sh("qemu-io -f qcow2 -c 'write 0 1M' -c 'flush' -c 'abort' open.qcow2 >/dev/null 2>&1 || true");
    let error = lab.take(&lab.path("open.qcow2")).map(|taken| taken.ingested).expect_err("dirty");
    assert!(error.reason() == Reason::Corrupt && error.to_string().contains("not closed"), "{error}");
    // The repair that the message names is one.
    lab.sh("qemu-img check -q -r all open.qcow2");
    lab.take(&lab.path("open.qcow2")).map(|taken| taken.ingested).expect("repaired");
}

/// The images of all kinds, in a lab.
fn images(lab: &Lab) -> Vec<PathBuf> {
    lab.gpt("disk.raw", 70, 2);
    KINDS
        .iter()
        .enumerate()
        .map(|(index, options)| {
            lab.sh(&format!("qemu-img convert -f raw -O qcow2 {options} disk.raw {index}.qcow2"));
            lab.path(&format!("{index}.qcow2"))
        })
        .collect()
}

/// Whether qemu-img reads an image to its end, and every byte of it as in `disk.raw`.
fn reads_as_the_disk(lab: &Lab, image: &Path) -> bool {
    let compare = ["compare", "-q", "-f", "raw", "-F", "qcow2"];
    Command::new("qemu-img").args(compare).arg(lab.path("disk.raw")).arg(image).output().expect("qemu-img").status.success()
}

#[test]
fn no_cut_image_is_taken_unless_it_still_is_the_disk() {
    let lab = Lab::new();
    for image in images(&lab) {
        let len = std::fs::metadata(&image).expect("metadata").len();
        let cut = lab.path("cut.qcow2");
        std::fs::copy(&image, &cut).expect("copy");
        let file = File::options().read(true).write(true).open(&cut).expect("open");
        // From the end to the front: what is gone stays gone. The last cluster, 2 MiB at most, may be short by design.
        let cluster = 1 << u32::from(std::fs::read(&image).expect("read")[23]);
        for part in (0..40).rev() {
            file.set_len((len - cluster) * part / 40).expect("cut");
            match inspect_qcow2(&file, &Limits::default(), Watch::idle()) {
                Ok(_) => assert!(reads_as_the_disk(&lab, &cut), "{}: {part} of 40", image.display()),
                Err(error) => assert_eq!(error.reason(), Reason::Corrupt, "{}: {error}", image.display()),
            }
        }
    }
}

#[test]
fn no_spoilt_image_is_taken_that_qemu_refuses() {
    let lab = Lab::new();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let rounds = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let (mut taken, mut refused) = (0, 0);
    for (image, options) in images(&lab).iter().zip(KINDS) {
        let bytes = std::fs::read(image).expect("read");
        let be64 = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let (l1, refcounts) = (be64(40), be64(48));
        let l2 = be64(l1 as usize) & 0x00ff_ffff_ffff_fe00;
        for _ in 0..rounds {
            let mut bytes = bytes.clone();
            for _ in 0..=random(2) {
                // What a compressed cluster's bytes unpack to is not looked at, so its place is left alone.
                let l2 = if options.contains("-c") { 0 } else { l2 };
                let places = [random(120), l1 + random(64), l2 + random(112), refcounts + random(16)];
                let at = places[random(4) as usize] as usize;
                bytes[at] ^= 1 << random(8);
            }
            let spoilt = lab.path("spoilt.qcow2");
            std::fs::write(&spoilt, &bytes).expect("write");
            let file = File::open(&spoilt).expect("open");
            // A limit near the disk's size, or the conversion below would write for long.
            let limits = Limits { max_virtual_size: 128 * MIB, ..Limits::default() };
            match inspect_qcow2(&file, &limits, Watch::idle()) {
                Err(_) => refused += 1,
                Ok(_) => {
                    taken += 1;
                    lab.sh("qemu-img convert -f qcow2 -O raw spoilt.qcow2 spoilt.raw");
                }
            }
        }
    }
    assert!(taken > 10 && refused > 50, "taken {taken}, refused {refused}");
}
