//! Real disk images, made on the spot by the tools a hoster would use.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{
    io::{Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

/// Runs a program to its end.
///
/// # Panics
/// When it fails, with what it said.
pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A raw disk of `size` bytes with a GPT, one partition and `data` MiB of content that does not compress, the same for the same `seed`.
pub fn raw_disk(dir: &Path, name: &str, size: u64, data: u64, seed: u64) -> PathBuf {
    let path = dir.join(format!("{name}.raw"));
    let mut file = std::fs::File::create(&path).expect("disk");
    file.set_len(size).expect("size");
    let mut state = seed | 1;
    for mib in 0..data {
        // Spread over the disk, with zeros between, as a file system would.
        let at = (2 + mib * (size / (1 << 20)).saturating_sub(4) / data.max(1)) << 20;
        let mut block = vec![0_u8; 1 << 20];
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.seek(SeekFrom::Start(at)).expect("seek");
        file.write_all(&block).expect("data");
    }
    drop(file);
    run("sgdisk", &["--clear", "--new=1:2048:0", "--disk-guid=00000000-0000-4000-8000-000000000001", &path.display().to_string()]);
    path
}

/// The disk as qcow2.
pub fn qcow2(raw: &Path) -> PathBuf {
    let path = raw.with_extension("qcow2");
    run("qemu-img", &["convert", "-O", "qcow2", &raw.display().to_string(), &path.display().to_string()]);
    path
}

/// The disk as raw.xz, the way a Talos Image Factory packs it.
pub fn raw_xz(raw: &Path) -> PathBuf {
    run("xz", &["-0", "-T2", "--keep", "--force", &raw.display().to_string()]);
    PathBuf::from(format!("{}.xz", raw.display()))
}

/// Whether two disks hold the same bytes, whatever their form.
pub fn same_content(a: &Path, a_format: &str, b: &Path, b_format: &str) {
    run("qemu-img", &["compare", "-f", a_format, "-F", b_format, &a.display().to_string(), &b.display().to_string()]);
}
