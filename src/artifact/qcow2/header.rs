use super::super::{
    ArtifactError,
    bytes::{be32, be64, has},
};
use crate::model::DiskSize;

/// How compressed clusters are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    /// A bare deflate stream.
    Zlib,
    /// A zstd frame.
    Zstd,
}

/// A header that has been checked for everything that can be told without the rest of the file.
#[derive(Debug, Clone)]
pub(in crate::artifact) struct Header {
    pub(super) version: u32,
    pub(super) cluster_bits: u32,
    pub(in crate::artifact) virtual_size: DiskSize,
    pub(super) l1_offset: u64,
    pub(super) l1_entries: u64,
    /// How many of the L1 entries the disk needs; the others are spare.
    pub(super) l1_needed: u64,
    pub(super) refcount_offset: u64,
    pub(super) refcount_clusters: u64,
    pub(super) refcount_order: u32,
    pub(super) snapshots: u32,
    pub(super) snapshots_offset: u64,
    /// Where the header extensions start.
    pub(super) header_len: u64,
    pub(super) packing: Packing,
    /// Subclusters: L2 entries of 16 bytes.
    pub(super) extended_l2: bool,
}

const PART: &str = "qcow2 header";

/// Incompatible features (bits of the field at byte 72).
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// An autoclear feature (bits of the field at byte 88).
const RAW_EXTERNAL_DATA: u64 = 1 << 1;

/// QEMU's own bounds (`block/qcow2.h`); beyond them it does not open an image either.
const MAX_L1_LEN: u64 = 32 << 20;
const MAX_REFCOUNT_TABLE_LEN: u64 = 8 << 20;
const MAX_SNAPSHOTS: u32 = 65_536;

impl Header {
    /// How many bytes of the file [`Self::parse`] looks at.
    pub(in crate::artifact) const LEN: usize = 112;

    /// Reads the header in `head`, the first [`Self::LEN`] bytes of the file, fewer only where the file is shorter.
    ///
    /// A backing or external data file would let an image name any file of the host that reads it (the class of
    /// CVE-2024-4467), so both are refused, as is encryption, whose key nobody has. Two decisions:
    ///
    /// - *dirty* (bit 0) is refused: whoever wrote the image did not close it, so its last writes may be missing. QEMU
    ///   would repair the reference counts, and nobody the data.
    /// - *snapshots* are accepted: they are further L1 tables beside the active one, and importers read only that.
    pub(in crate::artifact) fn parse(head: &[u8]) -> Result<Self, ArtifactError> {
        if !has(head, 0, b"QFI\xfb") {
            return Err(corrupt(0, "there is none"));
        }
        let (version, v2_len, v3_len) = (be32(head, 4), 72, 104);
        match version {
            2 if head.len() < v2_len => return Err(ended(head)),
            3 if head.len() < v3_len => return Err(ended(head)),
            2 | 3 => (),
            _ if head.len() < 8 => return Err(ended(head)),
            _ => return Err(ArtifactError::unsupported(format!("a qcow2 image of version {version}"))),
        }
        if be64(head, 8) != 0 || be32(head, 16) != 0 {
            let what = "a qcow2 image with a backing file; flatten it with `qemu-img convert`";
            return Err(ArtifactError::unsupported(what));
        }
        if be32(head, 32) != 0 {
            return Err(ArtifactError::unsupported("an encrypted qcow2 image"));
        }
        let features = Features::read(head, version)?;
        let cluster_bits = be32(head, 20);
        let smallest = if features.extended_l2 { 14 } else { 9 };
        if !(smallest..=21).contains(&cluster_bits) {
            return Err(corrupt(20, format!("clusters of 2^{cluster_bits} bytes")));
        }
        let virtual_size =
            DiskSize::from_bytes(be64(head, 24)).ok_or_else(|| corrupt(24, format!("a disk of {} bytes", be64(head, 24))))?;
        let header = Self {
            version,
            cluster_bits,
            virtual_size,
            l1_offset: be64(head, 40),
            l1_entries: u64::from(be32(head, 36)),
            l1_needed: virtual_size.bytes().div_ceil(l2_reach(cluster_bits, features.extended_l2)),
            refcount_offset: be64(head, 48),
            refcount_clusters: u64::from(be32(head, 56)),
            refcount_order: features.refcount_order,
            snapshots: be32(head, 60),
            snapshots_offset: be64(head, 64),
            header_len: features.header_len,
            packing: features.packing,
            extended_l2: features.extended_l2,
        };
        header.check_tables()?;
        Ok(header)
    }

    /// Bytes in a cluster: 512 to 2 MiB.
    pub(super) fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes in an L2 entry.
    pub(super) fn l2_entry(&self) -> usize {
        if self.extended_l2 { 16 } else { 8 }
    }

    /// Bounds the tables by what the header says of the disk, so that none of them costs more than the disk justifies.
    fn check_tables(&self) -> Result<(), ArtifactError> {
        if self.l1_entries < self.l1_needed {
            let found = format!("{} L1 entries, where the disk needs {}", self.l1_entries, self.l1_needed);
            return Err(corrupt(36, found));
        }
        if self.l1_entries * 8 > MAX_L1_LEN {
            return Err(corrupt(36, format!("{} L1 entries", self.l1_entries)));
        }
        if self.refcount_clusters == 0 || self.refcount_clusters * self.cluster() > MAX_REFCOUNT_TABLE_LEN {
            return Err(corrupt(56, format!("a refcount table of {} clusters", self.refcount_clusters)));
        }
        if self.snapshots > MAX_SNAPSHOTS {
            return Err(corrupt(60, format!("{} snapshots", self.snapshots)));
        }
        // QEMU insists on a sane place even where there are no snapshots.
        if !self.snapshots_offset.is_multiple_of(self.cluster()) || self.snapshots_offset > i64::MAX as u64 {
            return Err(corrupt(64, format!("a snapshot table at byte {}", self.snapshots_offset)));
        }
        if self.header_len > self.cluster() {
            return Err(corrupt(100, format!("a header of {} bytes", self.header_len)));
        }
        Ok(())
    }
}

/// What version 3 added to the header; version 2 has fixed values for it, and its bytes from 72 on mean something else.
struct Features {
    extended_l2: bool,
    packing: Packing,
    refcount_order: u32,
    header_len: u64,
}

impl Features {
    fn read(head: &[u8], version: u32) -> Result<Self, ArtifactError> {
        if version == 2 {
            return Ok(Self { extended_l2: false, packing: Packing::Zlib, refcount_order: 4, header_len: 72 });
        }
        let incompatible = be64(head, 72);
        // "Raw external data" among the features that may be cleared: without such a file, QEMU does not open the image.
        if be64(head, 88) & RAW_EXTERNAL_DATA != 0 {
            return Err(ArtifactError::unsupported("a qcow2 image that speaks of an external data file"));
        }
        let unknown = incompatible & !(DIRTY | CORRUPT | EXTERNAL_DATA | COMPRESSION_TYPE | EXTENDED_L2);
        if unknown != 0 {
            return Err(ArtifactError::unsupported(format!("a qcow2 image with unknown incompatible features ({unknown:#x})")));
        }
        if incompatible & EXTERNAL_DATA != 0 {
            let what = "a qcow2 image with an external data file; flatten it with `qemu-img convert`";
            return Err(ArtifactError::unsupported(what));
        }
        if incompatible & CORRUPT != 0 {
            return Err(corrupt(72, "the image says itself that it is damaged; repair it with `qemu-img check -r all`"));
        }
        if incompatible & DIRTY != 0 {
            return Err(corrupt(72, "the image was not closed after its last use; close it or repair it with `qemu-img check -r all`"));
        }
        let header_len = u64::from(be32(head, 100));
        if header_len < 104 || header_len % 8 != 0 {
            return Err(corrupt(100, format!("a header of {header_len} bytes")));
        }
        let kind = if header_len > 104 { head.get(104).copied() } else { Some(0) };
        let packing = match (kind, incompatible & COMPRESSION_TYPE != 0) {
            (None, _) => return Err(ended(head)),
            (Some(0), false) => Packing::Zlib,
            (Some(1), true) => Packing::Zstd,
            (Some(0 | 1), _) => return Err(corrupt(104, "the compression type contradicts the feature bits")),
            (Some(kind), _) => return Err(ArtifactError::unsupported(format!("a qcow2 image with compression type {kind}"))),
        };
        let refcount_order = be32(head, 96);
        if refcount_order > 6 {
            return Err(corrupt(96, format!("reference counts of 2^{refcount_order} bits")));
        }
        Ok(Self { extended_l2: incompatible & EXTENDED_L2 != 0, packing, refcount_order, header_len })
    }
}

/// How many bytes of the disk one L2 table maps.
fn l2_reach(cluster_bits: u32, extended: bool) -> u64 {
    // At most 2^21 bytes times 2^18 entries.
    (1 << cluster_bits) * ((1 << cluster_bits) / if extended { 16 } else { 8 })
}

fn corrupt(at: u64, found: impl Into<String>) -> ArtifactError {
    ArtifactError::corrupt(PART, at, found)
}

fn ended(head: &[u8]) -> ArtifactError {
    ArtifactError::truncated(PART, head.len() as u64, "the file ends inside it")
}
