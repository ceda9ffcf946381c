//! Packed disks: one disk, packed in every way that the tools know, is always the same qcow2.

use std::fs::{self, File};

use golden_catalog::{
    artifact::{LayerProber, Limits, Prober, Watch, ingest_layer},
    rules::Reason,
};

use crate::lab::{self, Lab, MIB, TAR_FORMS};

/// Packs `disk.raw` in every way; each line makes `packed`.
const GOOD: &[(&str, &str)] = &[
    ("raw.xz", "xz -0 -T 0 -c disk.raw > packed"),
    ("raw.xz", "xz -6 -T 1 -c disk.raw > packed"),
    ("raw.xz", "xz -1 --block-size=1MiB -c disk.raw > packed"),
    ("raw.xz", "xz -1 --block-list=1MiB,3MiB,0 -T 2 -c disk.raw > packed"),
    ("raw.xz", "xz -1 -C none -c disk.raw > packed"),
    ("raw.xz", "xz -1 -C crc32 -c disk.raw > packed"),
    ("raw.xz", "xz -1 -C sha256 -T 2 -c disk.raw > packed"),
    ("raw.xz", "xz -1 --x86 --lzma2=preset=1 -c disk.raw > packed"),
    ("raw.xz", "split -b 20M disk.raw part. && xz -1 part.* && cat part.*.xz > packed && rm part.*"),
    ("raw.xz", "xz -1 -c disk.raw > packed && head -c 4096 /dev/zero >> packed"),
    (
        "raw.xz",
        "split -b 40M disk.raw part. && xz -1 part.* && head -c 8 /dev/zero > zeros && cat part.aa.xz zeros part.ab.xz zeros > packed && rm part.*",
    ),
    ("raw.zst", "zstd -q -c disk.raw > packed"),
    ("raw.zst", "cat disk.raw | zstd -q -c > packed"),
    ("raw.zst", "zstd -q -T0 -18 -c disk.raw > packed"),
    ("raw.zst", "zstd -q -3 --long=27 -c disk.raw > packed"),
    ("raw.zst", "zstd -q --no-check -c disk.raw > packed"),
    ("raw.zst", "split -b 20M disk.raw part. && zstd -q --rm part.* && cat part.*.zst > packed && rm part.*"),
    (
        "raw.zst",
        "printf '\\122\\052\\115\\030\\004\\000\\000\\000skip' > packed && zstd -q -c disk.raw >> packed && printf '\\120\\052\\115\\030\\000\\000\\000\\000' >> packed",
    ),
    ("raw.gz", "gzip -c disk.raw > packed"),
    ("raw.gz", "gzip -1 -n -c < disk.raw > packed"),
    ("raw.gz", "split -b 20M disk.raw part. && gzip part.* && cat part.*.gz > packed && rm part.*"),
];

#[test]
fn one_disk_is_one_qcow2_however_it_is_packed() {
    let lab = Lab::new();
    let disk = lab.gpt("disk.raw", 70, 5);
    let plain = lab.good(&disk, "raw", &disk).ingested;
    for (format, line) in GOOD {
        lab.sh(line);
        let taken = lab.good(&lab.path("packed"), format, &disk);
        assert_eq!(taken.ingested, plain, "{line}");
        assert_eq!(taken.probe.virtual_size, Some(plain.virtual_size), "{line}");
        assert!(taken.probed <= 16 << 10, "{line}: {}", taken.probed);
    }
}

#[test]
fn a_packed_qcow2_is_unpacked() {
    let lab = Lab::new();
    let disk = lab.gpt("disk.raw", 70, 3);
    lab.sh("qemu-img convert -f raw -O qcow2 disk.raw disk.qcow2");
    for (format, line) in [("qcow2.xz", "xz -1 -c"), ("qcow2.zst", "zstd -q -c"), ("qcow2.gz", "gzip -c")] {
        lab.sh(&format!("{line} disk.qcow2 > packed"));
        let taken = lab.good(&lab.path("packed"), format, &disk);
        assert_eq!(taken.probe.virtual_size, Some(taken.ingested.virtual_size));
        lab.sh("cmp disk.qcow2 packed.spooled");
    }
}

#[test]
fn the_disk_in_a_layer_is_the_same_in_every_form_of_tar() {
    let lab = Lab::new();
    let disk = lab.gpt("disk.raw", 24, 5);
    let plain = lab.good(&disk, "raw", &disk).ingested;
    lab.sh("mkdir disk && mv disk.raw disk/disk.img");
    for (index, form) in TAR_FORMS.iter().enumerate() {
        lab.sh(&format!("tar {form} -cf layer.tar disk"));
        let layer = lab.path("layer.tar");
        let len = fs::metadata(&layer).expect("metadata").len();
        assert_eq!(len < 12 * MIB, index >= 4, "{form}: {len}");
        let output = File::options().read(true).write(true).create(true).truncate(true).open(lab.path("output")).expect("create");
        let taken = ingest_layer(&File::open(&layer).expect("open"), &output, &Limits::default(), Watch::idle());
        let taken = taken.unwrap_or_else(|error| panic!("{form}: {error}"));
        assert_eq!(taken.disk, plain, "{form}");
        let mut prober = LayerProber::new(len, &Limits::default());
        let probe = prober.feed(&lab::head(&layer, 1 << 20)).expect(form).expect(form);
        assert_eq!(probe.virtual_size, Some(plain.virtual_size), "{form}");
    }
}

/// Spoils `disk.xz`, `disk.zst` or `disk.gz`; each line makes `packed`.
const BAD: &[(&str, Reason, &str)] = &[
    ("head -c -1 disk.xz > packed", Reason::Corrupt, "xz stream"),
    ("head -c -100000 disk.xz > packed", Reason::Corrupt, "xz stream"),
    ("cp disk.xz packed && echo garbage >> packed", Reason::Corrupt, "no further stream"),
    ("cp disk.xz packed && head -c 6 /dev/zero >> packed", Reason::Corrupt, "padding"),
    ("head -c -1 disk.zst > packed", Reason::Corrupt, "zstd frame"),
    ("head -c -100000 disk.zst > packed", Reason::Corrupt, "zstd frame"),
    ("cp disk.zst packed && echo garbage >> packed", Reason::Corrupt, "no further frame"),
    ("head -c -1 disk.gz > packed", Reason::Corrupt, "gzip member"),
    ("head -c -100000 disk.gz > packed", Reason::Corrupt, "gzip member"),
    ("cp disk.gz packed && echo garbage >> packed", Reason::Corrupt, "no further member"),
    // The last four bytes are the length, the four before them the CRC, of the data or of the stream's footer.
    ("head -c -4 disk.gz > packed && printf '\\1\\2\\3\\4' >> packed", Reason::Corrupt, "length"),
    ("head -c -8 disk.gz > packed && printf '\\1\\2\\3\\4' >> packed && tail -c 4 disk.gz >> packed", Reason::Corrupt, "CRC"),
    ("head -c -4 disk.zst > packed && printf '\\1\\2\\3\\4' >> packed", Reason::Corrupt, "checksum"),
    ("head -c -12 disk.xz > packed && printf '\\1\\2\\3\\4' >> packed && tail -c 8 disk.xz >> packed", Reason::Corrupt, "xz stream"),
    ("cat disk.raw | zstd -q --long=28 -c > packed", Reason::UnsupportedFormat, "--long"),
    ("xz -1 -c disk.raw | gzip -c > packed", Reason::UnsupportedFormat, "packed twice"),
    ("tar -cf - disk.raw | gzip -c > packed", Reason::UnsupportedFormat, "tar"),
    ("head -c 30000000 disk.raw | xz -1 -c > packed", Reason::Corrupt, "GPT"),
    ("head -c 30000000 disk.raw | zstd -q -c > packed", Reason::Corrupt, "GPT"),
    ("head -c 100000 /dev/urandom | zstd -q -c > packed", Reason::NotADiskImage, "no disk format"),
    ("printf '<html><body>moved</body></html>' | gzip -c > packed", Reason::NotADiskImage, "HTML"),
    ("printf '' | xz -c > packed", Reason::NotADiskImage, "empty"),
];

#[test]
fn what_is_spoilt_is_told_by_its_reason() {
    let lab = Lab::new();
    lab.gpt("disk.raw", 70, 3);
    lab.sh("xz -1 -c disk.raw > disk.xz && zstd -q -c disk.raw > disk.zst && gzip -1 -c disk.raw > disk.gz");
    for (line, reason, word) in BAD {
        lab.sh(line);
        let error = lab.take(&lab.path("packed")).map(|taken| taken.ingested).expect_err(line);
        assert_eq!(error.reason(), *reason, "{line}: {error}");
        assert!(error.to_string().contains(word), "{line}: {error}");
    }
}

#[test]
fn a_flipped_bit_in_the_data_is_found() {
    let lab = Lab::new();
    lab.gpt("disk.raw", 70, 3);
    lab.sh("xz -1 -T 2 -c disk.raw > disk.xz && zstd -q -c disk.raw > disk.zst && gzip -1 -c disk.raw > disk.gz");
    for name in ["disk.xz", "disk.zst", "disk.gz"] {
        let bytes = std::fs::read(lab.path(name)).expect("read");
        for part in 1..12 {
            let mut bytes = bytes.clone();
            let at = bytes.len() * part / 12;
            bytes[at] ^= 1 << (part % 8);
            std::fs::write(lab.path("packed"), bytes).expect("write");
            let error = lab.take(&lab.path("packed")).map(|taken| taken.ingested).expect_err(name);
            assert_eq!(error.reason(), Reason::Corrupt, "{name} at {at}: {error}");
        }
    }
}

#[test]
fn what_needs_much_memory_is_refused() {
    let lab = Lab::new();
    let disk = lab.gpt("disk.raw", 70, 1);
    lab.sh("xz -9 -c disk.raw > packed");
    let limits = Limits { xz_memory: 64 * MIB, ..Limits::default() };
    let error = lab.take_with(&lab.path("packed"), &limits).map(|taken| taken.ingested).expect_err("memory");
    assert_eq!(error.reason(), Reason::UnsupportedFormat, "{error}");
    // Within the default it is fine.
    lab.good(&lab.path("packed"), "raw.xz", &disk);
}

#[test]
fn bombs_end_at_the_limit() {
    let lab = Lab::new();
    // A disk that says it has 70 MiB, and then goes on.
    lab.gpt("disk.raw", 70, 1);
    lab.sh("cp disk.raw bomb.raw && truncate -s 300M bomb.raw");
    let limits = Limits { max_virtual_size: 100 * MIB, ..Limits::default() };
    for line in [
        "zstd -q -c bomb.raw > packed",
        "cat bomb.raw | zstd -q -c > packed",
        "gzip -1 -c bomb.raw > packed",
        "xz -0 -T 0 -c bomb.raw > packed",
    ] {
        lab.sh(line);
        assert!(std::fs::metadata(lab.path("packed")).expect("metadata").len() < 12 * MIB, "{line}");
        let error = lab.take_with(&lab.path("packed"), &limits).map(|taken| taken.ingested).expect_err(line);
        assert_eq!(error.reason(), Reason::TooLarge, "{line}: {error}");
        let written = std::fs::metadata(lab.path("packed.spooled")).map_or(0, |metadata| metadata.len());
        assert!(written < 4 * MIB, "{line}: {written}");
    }
}

#[test]
fn the_size_of_a_large_disk_is_known_from_a_few_kilobytes() {
    let lab = Lab::new();
    // As large as Talos for amd64: 4.15 GiB, almost all of it zeros here.
    lab.sparse("talos.raw", 4_453_302_272);
    // Packed as the factory does, but only its start: packing is slow, and the rest is never looked at.
    lab.sh("sgdisk --clear --new 1:2048:0 talos.raw >/dev/null && head -c 64M talos.raw | xz -0 -T 0 -c > packed");
    lab.sh("qemu-img create -q -f qcow2 cloud.qcow2 20G");
    for (name, size) in [("packed", 4_453_302_272), ("cloud.qcow2", 20 << 30)] {
        let bytes = std::fs::read(lab.path(name)).expect("read");
        let mut prober = Prober::new(None, &Limits::default());
        let step = bytes.chunks(1024).position(|piece| match prober.feed(piece).expect("a disk") {
            Some(probe) => {
                assert_eq!(probe.virtual_size.map(|size| size.bytes()), Some(size));
                true
            }
            None => false,
        });
        let step = step.expect("known before the end");
        assert!(step < 16, "{name}: {step} KiB");
    }
}
