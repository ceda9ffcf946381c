use std::{fs::File, os::unix::fs::FileExt};

use super::super::{ArtifactError, bytes::is_zero};
use crate::model::DiskSize;

/// Bytes in a cluster: QEMU's default.
const CLUSTER: u64 = 64 << 10;
/// Bytes of the disk that one L2 table maps: 512 MiB.
const L2_REACH: u64 = CLUSTER * (CLUSTER / 8);
/// Header, refcount table and L1 table, a cluster each.
const FIRST_FREE: u64 = 3;
/// Clusters counted by one refcount block, with counts of 16 bits.
const PER_REFCOUNT_BLOCK: u64 = CLUSTER / 2;
/// The reference count is exactly one.
const COPIED: u64 = 1 << 63;

/// The largest raw disk that is written as qcow2, in bytes: what an L1 table of one cluster maps, 4 TiB.
pub const MAX_RAW_SIZE: u64 = L2_REACH * (CLUSTER / 8);

/// The most bytes that the qcow2 of a raw disk of `virtual_size` bytes can have: all of its clusters and their tables.
pub fn qcow2_upper_bound(virtual_size: u64) -> u64 {
    let used = FIRST_FREE + virtual_size.div_ceil(CLUSTER) + virtual_size.div_ceil(L2_REACH);
    (used + refcount_blocks(used)).saturating_mul(CLUSTER)
}

/// How many refcount blocks count `used` clusters and themselves.
fn refcount_blocks(used: u64) -> u64 {
    used.div_ceil(PER_REFCOUNT_BLOCK - 1)
}

/// Writes a raw disk as qcow2 version 3, front to back, leaving out the clusters that are all zeros.
///
/// The file is a function of the disk's bytes alone: header, refcount table and L1 table, then in the disk's order its
/// clusters with each L2 table after the 512 MiB that it maps, then the refcount blocks. No time, no name, no feature
/// table. Only the first three clusters are written at the end, so the file is not to be read before [`Self::finish`].
pub(in crate::artifact) struct Writer<'a> {
    file: &'a File,
    /// The most bytes that the file may get.
    reserved: u64,
    /// The next free cluster of the file.
    next: u64,
    /// Bytes of the disk seen, in whole clusters.
    position: u64,
    /// The start of the next cluster.
    pending: Vec<u8>,
    l1: Vec<u64>,
    l2: Vec<u8>,
    l2_used: bool,
}

/// What [`Writer::finish`] has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::artifact) struct Written {
    pub(in crate::artifact) virtual_size: DiskSize,
    pub(in crate::artifact) file_len: u64,
}

impl<'a> Writer<'a> {
    /// A writer into `file`, whose former content is dropped.
    pub(in crate::artifact) fn new(file: &'a File, reserved: u64) -> Result<Self, ArtifactError> {
        file.set_len(0).map_err(|error| ArtifactError::io("emptying the disk file", error))?;
        Ok(Self {
            file,
            reserved,
            next: FIRST_FREE,
            position: 0,
            pending: Vec::new(),
            l1: Vec::new(),
            l2: vec![0; CLUSTER as usize],
            l2_used: false,
        })
    }

    /// Writes the next bytes of the disk, in pieces of any length; whole clusters are written without being copied.
    pub(in crate::artifact) fn write(&mut self, mut bytes: &[u8]) -> Result<(), ArtifactError> {
        if !self.pending.is_empty() {
            let (missing, rest) = bytes.split_at(bytes.len().min(CLUSTER as usize - self.pending.len()));
            self.pending.extend_from_slice(missing);
            bytes = rest;
            if self.pending.len() < CLUSTER as usize {
                return Ok(());
            }
            let cluster = std::mem::take(&mut self.pending);
            self.write_clusters(&cluster)?;
        }
        let (clusters, rest) = bytes.split_at(bytes.len() - bytes.len() % CLUSTER as usize);
        self.pending.extend_from_slice(rest);
        self.write_clusters(clusters)
    }

    fn write_clusters(&mut self, bytes: &[u8]) -> Result<(), ArtifactError> {
        if self.position + bytes.len() as u64 > MAX_RAW_SIZE {
            return Err(ArtifactError::TooLarge { what: "the disk", limit: MAX_RAW_SIZE });
        }
        // Neighbouring clusters with data are neighbours in the file too, and written at once.
        let mut run = 0..0;
        for (index, cluster) in bytes.chunks_exact(CLUSTER as usize).enumerate() {
            let (at, end) = (index * cluster.len(), (index + 1) * cluster.len());
            if is_zero(cluster) {
                self.flush(&bytes[run])?;
                run = end..end;
            } else {
                run = if run.is_empty() { at..end } else { run.start..end };
                self.map(self.next + run.len() as u64 / CLUSTER - 1);
            }
            self.position += CLUSTER;
            if self.position.is_multiple_of(L2_REACH) {
                self.flush(&bytes[run])?;
                run = end..end;
                self.finish_l2()?;
            }
        }
        self.flush(&bytes[run])
    }

    /// Writes the tables; the file is whole afterwards, though not synced.
    pub(in crate::artifact) fn finish(mut self) -> Result<Written, ArtifactError> {
        let len = self.position + self.pending.len() as u64;
        if !self.pending.is_empty() {
            let mut cluster = std::mem::take(&mut self.pending);
            cluster.resize(CLUSTER as usize, 0);
            self.write_clusters(&cluster)?;
        }
        if !self.position.is_multiple_of(L2_REACH) {
            self.finish_l2()?;
        }
        // A disk is whole sectors; QEMU rounds a raw file up in the same way.
        let virtual_size = DiskSize::from_bytes(len.next_multiple_of(512));
        let virtual_size = virtual_size.ok_or_else(|| ArtifactError::not_a_disk("the file is empty"))?;
        let first_block = self.next;
        let blocks = refcount_blocks(self.next);
        let clusters = self.next + blocks;
        for block in 0..blocks {
            let counted = (clusters - block * PER_REFCOUNT_BLOCK).min(PER_REFCOUNT_BLOCK) as usize;
            let mut counts = [0, 1].repeat(counted);
            counts.resize(CLUSTER as usize, 0);
            self.flush(&counts)?;
        }
        let mut front = vec![0; (FIRST_FREE * CLUSTER) as usize];
        header(&mut front, virtual_size, self.l1.len() as u32);
        let (refcount_table, l1) = front[CLUSTER as usize..].split_at_mut(CLUSTER as usize);
        let offsets = (first_block..first_block + blocks).map(|block| block * CLUSTER);
        put_all(refcount_table, offsets);
        put_all(l1, self.l1.iter().copied());
        self.file.write_all_at(&front, 0).map_err(|error| ArtifactError::io("writing the disk", error))?;
        Ok(Written { virtual_size, file_len: clusters * CLUSTER })
    }

    /// Notes that the disk's current cluster is in the file's cluster `host`.
    fn map(&mut self, host: u64) {
        let index = (self.position % L2_REACH / CLUSTER * 8) as usize;
        put_all(&mut self.l2[index..index + 8], [(host * CLUSTER) | COPIED].into_iter());
        self.l2_used = true;
    }

    /// Writes the L2 table of the region that ends here, if anything is mapped in it.
    fn finish_l2(&mut self) -> Result<(), ArtifactError> {
        if !self.l2_used {
            self.l1.push(0);
            return Ok(());
        }
        self.l1.push((self.next * CLUSTER) | COPIED);
        let mut l2 = std::mem::take(&mut self.l2);
        self.flush(&l2)?;
        l2.fill(0);
        self.l2 = l2;
        self.l2_used = false;
        Ok(())
    }

    /// Appends whole clusters to the file.
    fn flush(&mut self, clusters: &[u8]) -> Result<(), ArtifactError> {
        if clusters.is_empty() {
            return Ok(());
        }
        let offset = self.next * CLUSTER;
        let end = offset + clusters.len() as u64;
        if end > self.reserved {
            return Err(ArtifactError::OverReservation { reserved: self.reserved });
        }
        self.file.write_all_at(clusters, offset).map_err(|error| ArtifactError::io("writing the disk", error))?;
        self.next = end / CLUSTER;
        Ok(())
    }
}

/// Writes big-endian numbers one after the other.
fn put_all(target: &mut [u8], numbers: impl Iterator<Item = u64>) {
    for (place, number) in target.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_be_bytes());
    }
}

/// The header: version 3, 16-bit reference counts, 112 bytes as QEMU writes it; the zeros after it end the extensions.
fn header(front: &mut [u8], virtual_size: DiskSize, l1_entries: u32) {
    let mut put = |at: usize, bytes: &[u8]| front[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"QFI\xfb");
    put(4, &3_u32.to_be_bytes());
    put(20, &CLUSTER.ilog2().to_be_bytes());
    put(24, &virtual_size.bytes().to_be_bytes());
    put(36, &l1_entries.to_be_bytes());
    put(40, &(2 * CLUSTER).to_be_bytes());
    put(48, &CLUSTER.to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(96, &4_u32.to_be_bytes());
    put(100, &112_u32.to_be_bytes());
}

#[cfg(test)]
mod tests;
