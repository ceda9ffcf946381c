//! Raw disks: partition tables, bare file systems, sector sizes.

use golden_catalog::{artifact::qcow2_upper_bound, rules::Reason};

use crate::lab::{Lab, MIB, scatter};

#[test]
fn a_gpt_disk_of_sgdisk() {
    let lab = Lab::new();
    let disk = lab.gpt("disk.raw", 600, 5);
    let taken = lab.good(&disk, "raw", &disk);
    assert_eq!(taken.probe.virtual_size, Some(taken.ingested.virtual_size));
    assert!(taken.probed <= 80 << 10, "{}", taken.probed);
    assert!(taken.ingested.disk_len <= qcow2_upper_bound(600 * MIB));
    // Zeros are left out: five pieces with data, and the tables.
    assert!(taken.ingested.disk_len < 8 * MIB, "{}", taken.ingested.disk_len);
}

#[test]
fn gpt_and_mbr_disks_of_sfdisk() {
    let lab = Lab::new();
    for label in ["gpt", "dos"] {
        let file = format!("{label}.raw");
        let disk = lab.sparse(&file, 64 * MIB);
        lab.sh(&format!("printf 'label: {label}\\nsize=20M\\nsize=40M\\n' | sfdisk -q {file}"));
        scatter(&disk, 22 * MIB, 2);
        let taken = lab.good(&disk, "raw", &disk);
        assert_eq!(taken.ingested.virtual_size.bytes(), 64 * MIB);
    }
}

#[test]
fn a_disk_of_large_sectors() {
    let lab = Lab::new();
    let disk = lab.sparse("4k.raw", 64 * MIB);
    lab.sh("PARTED_SECTOR_SIZE=4096 parted -s 4k.raw mklabel gpt mkpart disk 1MiB 60MiB 2>/dev/null");
    scatter(&disk, 22 * MIB, 2);
    let taken = lab.good(&disk, "raw", &disk);
    assert_eq!(taken.ingested.virtual_size.bytes(), 64 * MIB);
    lab.sh("xz -0 -T 0 -k 4k.raw");
    let packed = lab.good(&lab.path("4k.raw.xz"), "raw.xz", &disk);
    assert_eq!(packed.probe.virtual_size, Some(taken.ingested.virtual_size));
    lab.sh("head -c 66000000 4k.raw > cut.raw");
    let error = lab.take(&lab.path("cut.raw")).map(|taken| taken.ingested).expect_err("cut");
    assert_eq!(error.reason(), Reason::Corrupt, "{error}");
}

#[test]
fn a_disk_cut_by_any_length_is_corrupt() {
    let lab = Lab::new();
    let disk = lab.gpt("disk.raw", 64, 1);
    for keep in [64 * MIB - 1, 64 * MIB - 512, 63 * MIB, 40 * MIB, MIB, 17_408, 1024] {
        lab.sh(&format!("head -c {keep} {} > cut.raw", disk.display()));
        let error = lab.take(&lab.path("cut.raw")).map(|taken| taken.ingested).expect_err("cut");
        assert_eq!(error.reason(), Reason::Corrupt, "{keep}: {error}");
    }
    let disk = lab.sparse("mbr.raw", 64 * MIB);
    lab.sh("printf 'label: dos\\nsize=40M\\n' | sfdisk -q mbr.raw");
    lab.sh(&format!("head -c {} {} > cut.raw", 40 * MIB, disk.display()));
    let error = lab.take(&lab.path("cut.raw")).map(|taken| taken.ingested).expect_err("cut");
    assert_eq!(error.reason(), Reason::Corrupt, "{error}");
}

#[test]
fn bare_file_systems_and_what_cuts_them() {
    let lab = Lab::new();
    lab.sh("mkdir -p tree && head -c 3000000 /dev/urandom > tree/data && echo hello > tree/text");
    for (name, mib, make) in [
        ("ext4", 64, "mkfs.ext4 -q -F -d tree FILE"),
        ("ext2", 8, "mkfs.ext2 -q -F -b 1024 FILE"),
        ("xfs", 320, "mkfs.xfs -q -f FILE"),
        ("btrfs", 128, "mkfs.btrfs -q --rootdir tree FILE"),
        ("fat", 64, "mkfs.vfat FILE >/dev/null"),
        ("fat32", 300, "mkfs.vfat -F 32 FILE >/dev/null"),
        ("iso", 0, "genisoimage -quiet -R -o FILE tree"),
        ("hybrid", 0, "xorriso -report_about FAILURE -outdev FILE -map tree / -boot_image any partition_table=on -commit"),
        ("squashfs", 0, "mksquashfs tree FILE -quiet -no-progress >/dev/null"),
    ] {
        let file = format!("{name}.raw");
        let disk = lab.path(&file);
        if mib > 0 {
            lab.sparse(&file, mib * MIB);
        }
        lab.sh(&make.replace("FILE", &file));
        let taken = lab.good(&disk, "raw", &disk);
        let len = std::fs::metadata(&disk).expect("metadata").len();
        assert_eq!(taken.ingested.virtual_size.bytes(), len.next_multiple_of(512), "{name}");

        lab.sh(&format!("zstd -q -f {file}"));
        lab.good(&lab.path(&format!("{file}.zst")), "raw.zst", &disk);

        lab.sh(&format!("head -c {} {file} > cut.raw", len * 2 / 3));
        let error = lab.take(&lab.path("cut.raw")).map(|taken| taken.ingested).expect_err(name);
        assert_eq!(error.reason(), Reason::Corrupt, "{name}: {error}");
    }
}

#[test]
fn a_disk_that_is_no_whole_number_of_sectors_or_clusters() {
    let lab = Lab::new();
    let disk = lab.gpt("disk.raw", 64, 1);
    for more in [1, 511, 513, 70_000] {
        lab.sh(&format!("cp disk.raw odd.raw && head -c {more} /dev/urandom >> odd.raw"));
        let odd = lab.path("odd.raw");
        let taken = lab.good(&odd, "raw", &odd);
        assert_eq!(taken.ingested.virtual_size.bytes(), (64 * MIB + more).next_multiple_of(512));
        assert_eq!(taken.probe.virtual_size, Some(taken.ingested.virtual_size));
    }
    assert!(disk.exists());
}
