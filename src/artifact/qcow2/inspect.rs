use std::fs::File;

use super::{
    super::{
        ArtifactError, Limits, Watch,
        bytes::{be16, be32, be64},
    },
    compressed::Tail,
    header::Header,
    tables::Tables,
};
use crate::model::DiskSize;

/// A qcow2 file that is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qcow2 {
    /// The size of the disk inside.
    pub virtual_size: DiskSize,
    /// The file's length in bytes.
    pub file_len: u64,
    /// How many clusters of the disk are mapped to bytes of the file, compressed ones included.
    pub mapped_clusters: u64,
}

/// Offsets in L1, L2 and refcount table entries: bits 9 to 55.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// "The refcount is exactly one", in L1 and L2 entries.
const COPIED: u64 = 1 << 63;
/// The cluster is compressed, in L2 entries.
const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeros, in L2 entries of version 3 without subclusters.
const ZERO: u64 = 1;

/// Checks that a qcow2 file is whole: every table lies in the file, every mapped cluster ends at most one cluster past its
/// end, and no other file is needed. The data itself carries no checksum, so its bytes are not looked at, nor are
/// compressed clusters unpacked, except those at the end of the file, where only that tells whether it is cut.
///
/// The file is read with `pread`; its cursor stays. The cost is bounded by the file: L1 at most 32 MiB, each L2 table read
/// once. Reference counts are not compared with the mapping: reading an image does not use them.
///
/// # Errors
/// `Corrupt`, `Truncated`, `Unsupported` as the header says, `TooLarge` above `limits.max_virtual_size`, `Io`.
pub fn inspect_qcow2(file: &File, limits: &Limits, watch: Watch<'_>) -> Result<Qcow2, ArtifactError> {
    let (qcow2, unread) = inspect(Tables::new(file)?, limits, watch)?;
    match unread {
        None => Ok(qcow2),
        Some(pause) => Err(pause),
    }
}

/// As [`inspect_qcow2`], as far as `head`, the first bytes of a file of `len` bytes, goes: whether it held every table.
///
/// # Errors
/// As [`inspect_qcow2`], where the bytes that are there prove it: no others would make the file whole.
pub(in crate::artifact) fn inspect_qcow2_head(head: &[u8], len: u64, limits: &Limits) -> Result<bool, ArtifactError> {
    match inspect(Tables::of_head(head, len), limits, Watch::idle()) {
        Ok((_, unread)) => Ok(unread.is_none()),
        Err(error) if error.is_pause() => Ok(false),
        Err(error) => Err(error),
    }
}

/// One inspection; also gives why a part of it could not be done, where bytes are not at hand.
fn inspect(tables: Tables<'_>, limits: &Limits, watch: Watch<'_>) -> Result<(Qcow2, Option<ArtifactError>), ArtifactError> {
    let mut head = vec![0; Header::LEN.min(usize::try_from(tables.len).unwrap_or(usize::MAX))];
    tables.read(0, &mut head)?;
    let header = Header::parse(&head)?;
    if header.virtual_size.bytes() > limits.max_virtual_size {
        return Err(ArtifactError::TooLarge { what: "the disk", limit: limits.max_virtual_size });
    }
    let tables = tables.with_cluster(header.cluster());
    let mut inspection = Inspection { header: &header, tables: &tables, watch, tail: Tail::default(), mapped: 0, read: 0 };
    let mut unread = None;
    later(inspection.extensions(), &mut unread)?;
    let blocks = later(inspection.refcount_table(), &mut unread)?;
    later(inspection.snapshots(), &mut unread)?;
    let l2_tables = later(inspection.l1(&blocks), &mut unread)?;
    for offset in l2_tables {
        later(inspection.l2(offset), &mut unread)?;
    }
    later(inspection.tail.check(&tables, header.packing, header.cluster()), &mut unread)?;
    Ok((Qcow2 { virtual_size: header.virtual_size, file_len: tables.len, mapped_clusters: inspection.mapped }, unread))
}

/// Goes on without what could not be read yet, and remembers that.
fn later<T: Default>(step: Result<T, ArtifactError>, unread: &mut Option<ArtifactError>) -> Result<T, ArtifactError> {
    match step {
        Err(error) if error.is_pause() => {
            *unread = Some(error);
            Ok(T::default())
        }
        done => done,
    }
}

/// Sorts offsets and gives one that occurs twice.
fn shared(offsets: &mut [u64]) -> Option<u64> {
    offsets.sort_unstable();
    offsets.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

struct Inspection<'a> {
    header: &'a Header,
    tables: &'a Tables<'a>,
    watch: Watch<'a>,
    tail: Tail,
    mapped: u64,
    /// Bytes of tables read so far.
    read: u64,
}

impl Inspection<'_> {
    fn tick(&mut self, bytes: u64) -> Result<(), ArtifactError> {
        self.read += bytes;
        self.watch.read(self.read);
        self.watch.check()
    }

    /// The header extensions, which fill the rest of the first cluster.
    fn extensions(&mut self) -> Result<(), ArtifactError> {
        const PART: &str = "qcow2 header extension";
        let mut area = vec![0; self.header.cluster().min(self.tables.len) as usize];
        self.tables.read(0, &mut area)?;
        self.tick(area.len() as u64)?;
        let mut at = self.header.header_len as usize;
        while at + 8 <= area.len() {
            let (kind, len) = (be32(&area, at), be32(&area, at + 4) as usize);
            let corrupt = |found: String| ArtifactError::corrupt(PART, at as u64, found);
            let Some(data) = area.get(at + 8..).and_then(|rest| rest.get(..len)) else {
                return Err(corrupt(format!("{len} bytes do not fit into the first cluster")));
            };
            match kind {
                0 => return Ok(()),
                0x4441_5441 => return Err(ArtifactError::unsupported("a qcow2 image that names an external data file")),
                0x0537_be77 => return Err(ArtifactError::unsupported("an encrypted qcow2 image")),
                0x2385_2875 => {
                    let (count, directory_len, directory) = (be32(data, 0), be64(data, 8), be64(data, 16));
                    if len < 24 || count > 65_535 || directory_len > 1 << 26 {
                        return Err(corrupt(format!("{count} bitmaps with a directory of {directory_len} bytes")));
                    }
                    if count > 0 {
                        self.tables.check("qcow2 bitmap directory", directory, directory_len, self.tables.rounded_len())?;
                    }
                }
                // The backing file's format, feature names, and what is not known: by the format's rule to be ignored.
                _ => (),
            }
            at += 8 + len.next_multiple_of(8);
        }
        Ok(())
    }

    /// The refcount table; gives the refcount blocks as index in the table and offset.
    fn refcount_table(&mut self) -> Result<Vec<(u64, u64)>, ArtifactError> {
        const PART: &str = "qcow2 refcount table";
        let cluster = self.header.cluster();
        let len = self.header.refcount_clusters * cluster;
        self.tables.check(PART, self.header.refcount_offset, len, self.tables.rounded_len())?;
        let mut blocks = Vec::new();
        let mut index = 0;
        self.tables.entries(self.header.refcount_offset, len / 8, |at, entry| {
            if entry & 0x1ff != 0 {
                return Err(ArtifactError::corrupt(PART, at, "reserved bits are set"));
            }
            if entry != 0 {
                self.tables.check("qcow2 refcount block", entry, cluster, self.tables.rounded_len())?;
                blocks.push((index, entry));
            }
            index += 1;
            Ok(())
        })?;
        self.tick(len)?;
        // Read once each, if at all: the cost is then bounded by the file, not by the table.
        let mut offsets: Vec<u64> = blocks.iter().map(|(_, offset)| *offset).collect();
        match shared(&mut offsets) {
            Some(offset) => Err(ArtifactError::corrupt(PART, offset, "two of its entries share the refcount block at this byte")),
            None => Ok(blocks),
        }
    }

    /// The snapshot table, with the place of each snapshot's own L1 table.
    fn snapshots(&mut self) -> Result<(), ArtifactError> {
        const PART: &str = "qcow2 snapshot table";
        if self.header.snapshots == 0 {
            return Ok(());
        }
        let mut at = self.header.snapshots_offset;
        self.tables.check(PART, at, 0, self.tables.len)?;
        for _ in 0..self.header.snapshots {
            let mut entry = [0; 40];
            if at + 40 > self.tables.len {
                return Err(ArtifactError::truncated(PART, self.tables.len, "the file ends inside it"));
            }
            self.tables.read(at, &mut entry)?;
            let extra = u64::from(be32(&entry, 36));
            // QEMU's own bound (`QCOW_MAX_SNAPSHOT_EXTRA_DATA`).
            if extra > 1024 {
                return Err(ArtifactError::corrupt(PART, at, format!("{extra} bytes of extra data")));
            }
            let l1_len = u64::from(be32(&entry, 8)) * 8;
            if l1_len > 32 << 20 {
                return Err(ArtifactError::corrupt(PART, at, format!("an L1 table of {l1_len} bytes")));
            }
            self.tables.check("qcow2 snapshot L1 table", be64(&entry, 0), l1_len, self.tables.rounded_len())?;
            let texts = u64::from(be16(&entry, 12)) + u64::from(be16(&entry, 14));
            at += (40 + extra + texts).next_multiple_of(8);
            if at > self.tables.len.next_multiple_of(8) {
                return Err(ArtifactError::truncated(PART, self.tables.len, "the file ends inside it"));
            }
        }
        self.tick(at - self.header.snapshots_offset)
    }

    /// The active L1 table; gives the offsets of the L2 tables, sorted, so that they are read in the file's order.
    fn l1(&mut self, refcount_blocks: &[(u64, u64)]) -> Result<Vec<u64>, ArtifactError> {
        const PART: &str = "qcow2 L1 table";
        let header = self.header;
        let (offset, len) = (header.l1_offset, header.l1_entries * 8);
        self.tables.check(PART, offset, len, self.tables.rounded_len())?;
        if offset + len > self.tables.len {
            // An empty image may end inside its L1 table, the rest of which reads as zeros. An image cut there looks the
            // same, except that its reference counts know of clusters that are not there any more.
            self.nothing_counted_after_the_end(refcount_blocks)?;
        }
        let mut tables = Vec::new();
        self.tables.entries(offset, header.l1_entries, |at, entry| {
            if entry == 0 {
                return Ok(());
            }
            let table = entry & OFFSET;
            if entry & !(OFFSET | COPIED) != 0 || table == 0 {
                return Err(ArtifactError::corrupt(PART, at, "reserved bits are set"));
            }
            self.tables.check("qcow2 L2 table", table, header.cluster(), self.tables.len)?;
            // Spare entries map what lies behind the end of the disk: nobody reads there.
            if (at - offset) / 8 < header.l1_needed {
                tables.push(table);
            }
            Ok(())
        })?;
        self.tick(len)?;
        match shared(&mut tables) {
            Some(offset) => Err(ArtifactError::corrupt(PART, offset, "two of its entries share the L2 table at this byte")),
            None => Ok(tables),
        }
    }

    /// Refuses a file whose reference counts name a cluster that begins after its end.
    fn nothing_counted_after_the_end(&mut self, blocks: &[(u64, u64)]) -> Result<(), ArtifactError> {
        let cluster = self.header.cluster();
        let bits = 1_u64 << self.header.refcount_order;
        let per_block = cluster * 8 / bits;
        let mut block = vec![0; cluster as usize];
        for (index, offset) in blocks {
            self.tables.read(*offset, &mut block)?;
            self.tick(cluster)?;
            let Some(last) = block.iter().rposition(|byte| *byte != 0) else { continue };
            // Counts smaller than a byte start at its least significant bit.
            let within = if bits < 8 { u64::from(block[last].ilog2()) / bits } else { 0 };
            let counted = (index * per_block).saturating_add(last as u64 * 8 / bits + within);
            if counted.saturating_mul(cluster) >= self.tables.len {
                let found = format!("cluster {counted} is counted as used and lies outside the file");
                return Err(ArtifactError::truncated("qcow2 L1 table", self.tables.len, found));
            }
        }
        Ok(())
    }

    /// One L2 table: where each of its clusters lies.
    fn l2(&mut self, offset: u64) -> Result<(), ArtifactError> {
        let mut table = vec![0; self.header.cluster() as usize];
        self.tables.read(offset, &mut table)?;
        self.tick(table.len() as u64)?;
        for (index, entry) in table.chunks_exact(self.header.l2_entry()).enumerate() {
            let at = offset + (index * self.header.l2_entry()) as u64;
            let subclusters = if self.header.extended_l2 { be64(entry, 8) } else { 0 };
            let entry = be64(entry, 0);
            if entry | subclusters != 0 {
                self.l2_entry(at, entry, subclusters)?;
            }
        }
        Ok(())
    }

    fn l2_entry(&mut self, at: u64, entry: u64, subclusters: u64) -> Result<(), ArtifactError> {
        const PART: &str = "qcow2 L2 table";
        let header = self.header;
        let corrupt = |found: &str| ArtifactError::corrupt(PART, at, found);
        let outside = |len: u64, cluster: u64| {
            let found = format!("its {len} bytes at byte {cluster} lie outside the file");
            ArtifactError::truncated("qcow2 cluster", self.tables.len, found)
        };
        if entry & COMPRESSED != 0 {
            if subclusters != 0 || entry & COPIED != 0 {
                return Err(corrupt("a compressed cluster with subclusters or a reference flag"));
            }
            let offset_bits = 62 - (header.cluster_bits - 8);
            let offset = entry & ((1 << offset_bits) - 1);
            let sectors = (entry & (COMPRESSED - 1)) >> offset_bits;
            let len = (sectors + 1) * 512 - offset % 512;
            if offset < 512 {
                return Err(corrupt("a compressed cluster in the header"));
            }
            let end = offset.checked_add(len).filter(|end| offset < self.tables.len && *end <= self.tables.len.next_multiple_of(512));
            let end = end.ok_or_else(|| outside(len, offset))?;
            if end > self.tables.len {
                self.tail.add(offset, len)?;
            }
            self.mapped += 1;
            return Ok(());
        }
        let cluster = entry & OFFSET;
        let zero = if header.version >= 3 && !header.extended_l2 { ZERO } else { 0 };
        if entry & !(OFFSET | COPIED | zero) != 0 {
            return Err(corrupt("reserved bits are set"));
        }
        // Subclusters: the low half says which are allocated, the high half which read as zeros.
        let (allocated, zeros) = (subclusters & 0xffff_ffff, subclusters >> 32);
        if allocated & zeros != 0 {
            return Err(corrupt("a subcluster that is both allocated and zero"));
        }
        if cluster == 0 {
            return if entry & COPIED != 0 || allocated != 0 { Err(corrupt("a cluster that is mapped to the header")) } else { Ok(()) };
        }
        if !cluster.is_multiple_of(header.cluster()) {
            return Err(corrupt("a cluster that is not aligned"));
        }
        if cluster > self.tables.len {
            return Err(outside(header.cluster(), cluster));
        }
        self.mapped += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
