//! What is no disk image, or one in a form that is not taken.

use golden_catalog::rules::Reason;

use crate::lab::{Lab, MIB};

#[test]
fn other_disk_formats_are_named() {
    let lab = Lab::new();
    lab.gpt("disk.raw", 70, 1);
    for (format, options, word) in [
        ("vmdk", "", "vmdk"),
        ("vmdk", "-o subformat=streamOptimized", "vmdk"),
        ("vmdk", "-o subformat=monolithicFlat", "vmdk"),
        ("vpc", "", "vhd"),
        ("vpc", "-o subformat=fixed,force_size=on", "vhd"),
        ("vhdx", "", "vhdx"),
        ("vdi", "", "vdi"),
        ("vdi", "-o static=on", "vdi"),
        ("qcow", "", "qcow image of version 1"),
        ("qed", "", "qed"),
        ("parallels", "", "parallels"),
    ] {
        lab.sh(&format!("qemu-img convert -f raw -O {format} {options} disk.raw other"));
        let error = lab.take(&lab.path("other")).map(|taken| taken.ingested).expect_err(format);
        assert_eq!(error.reason(), Reason::UnsupportedFormat, "{format} {options}: {error}");
        assert!(error.to_string().contains(word), "{format} {options}: {error}");
        lab.sh("zstd -q -f other");
        let error = lab.take(&lab.path("other.zst")).map(|taken| taken.ingested).expect_err(format);
        assert_eq!(error.reason(), Reason::UnsupportedFormat, "{format} {options}, packed: {error}");
    }
    lab.sh("tar -cf other disk.raw");
    assert_eq!(lab.take(&lab.path("other")).map(|taken| taken.ingested).expect_err("tar").reason(), Reason::UnsupportedFormat);
}

#[test]
fn what_is_no_disk_is_told_by_what_it_is() {
    let lab = Lab::new();
    for (line, word) in [
        (": > file", "empty"),
        ("printf '<!DOCTYPE html>\\n<html><head><title>Sign in</title></head></html>\\n' > file", "HTML page"),
        ("printf '{\"errors\":[{\"code\":\"UNAUTHORIZED\"}]}' > file", "JSON"),
        ("printf 'version 9.9.9 is not available\\n' > file", "text"),
        ("seq 100000 > file", "text"),
        ("head -c 100000 /dev/urandom > file", "no disk format"),
        ("head -c 511 /dev/zero > file", "511 bytes"),
        ("head -c 10000000 /dev/zero > file", "zeros"),
        ("cp /bin/ls file", "no disk format"),
    ] {
        lab.sh(line);
        let error = lab.take(&lab.path("file")).map(|taken| taken.ingested).expect_err(line);
        assert_eq!(error.reason(), Reason::NotADiskImage, "{line}: {error}");
        assert!(error.to_string().contains(word), "{line}: {error}");
        assert!(!error.to_string().contains("Sign in"));
    }
}

#[test]
fn the_name_says_nothing() {
    let lab = Lab::new();
    let disk = lab.gpt("disk.raw", 70, 1);
    lab.sh("xz -1 -c disk.raw > disk.qcow2 && qemu-img convert -f raw -O qcow2 disk.raw page.html");
    lab.good(&lab.path("disk.qcow2"), "raw.xz", &disk);
    lab.good(&lab.path("page.html"), "qcow2", &disk);
    assert_eq!(lab.take(&disk).expect("a disk").ingested.virtual_size.bytes(), 70 * MIB);
}
