//! A small qcow2 for tests, made by the letter of `docs/interop/qcow2.rst` and not by the code under test.

use std::{fs::File, io::Write as _};

/// Bytes in a cluster of the sample.
pub(in crate::artifact) const CLUSTER: usize = 64 << 10;
/// Where its tables and its two data clusters lie.
pub(in crate::artifact) const L1: usize = 3 * CLUSTER;
pub(in crate::artifact) const L2: usize = 4 * CLUSTER;
pub(in crate::artifact) const DATA: usize = 5 * CLUSTER;
pub(in crate::artifact) const COPIED: u64 = 1 << 63;
pub(in crate::artifact) const COMPRESSED: u64 = 1 << 62;

/// A file that is edited as bytes.
#[derive(Clone)]
pub(in crate::artifact) struct Image(pub(in crate::artifact) Vec<u8>);

impl Image {
    /// A disk of 1 GiB (two L1 entries) whose first two clusters hold data: header, refcount table, refcount block, L1,
    /// L2, data, data.
    pub(in crate::artifact) fn new(version: u32) -> Self {
        let mut image = Self(vec![0; 7 * CLUSTER]);
        image.0[..4].copy_from_slice(b"QFI\xfb");
        image.put32(4, version).put32(20, 16).put64(24, 1 << 30).put32(36, 2).put64(40, L1 as u64);
        image.put64(48, CLUSTER as u64).put32(56, 1);
        if version >= 3 {
            image.put32(96, 4).put32(100, 112);
        }
        image.put64(CLUSTER, 2 * CLUSTER as u64);
        for cluster in 0..7 {
            image.0[2 * CLUSTER + 2 * cluster + 1] = 1;
        }
        image.put64(L1, L2 as u64 | COPIED);
        image.put64(L2, DATA as u64 | COPIED).put64(L2 + 8, (DATA + CLUSTER) as u64 | COPIED);
        image.0[DATA..].fill(0xab);
        image
    }

    pub(in crate::artifact) fn put32(&mut self, at: usize, value: u32) -> &mut Self {
        self.0[at..at + 4].copy_from_slice(&value.to_be_bytes());
        self
    }

    pub(in crate::artifact) fn put64(&mut self, at: usize, value: u64) -> &mut Self {
        self.0[at..at + 8].copy_from_slice(&value.to_be_bytes());
        self
    }

    /// The image as a file without a name.
    pub(in crate::artifact) fn file(&self) -> File {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(&self.0).expect("write");
        file
    }
}
