use super::{
    super::{
        ArtifactError,
        sniff::{Magic, looks_like, magic},
    },
    filesystem::FileSystem,
    gpt::Gpt,
    mbr::Mbr,
};
use crate::model::in_bytes;

/// How a raw disk is told to be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawKind {
    /// A GUID partition table.
    Gpt {
        /// Bytes in a sector: 512 or 4096.
        sector: u64,
    },
    /// A master boot record with partitions.
    Mbr,
    /// A bare file system, or an ISO image.
    FileSystem(&'static str),
}

/// How many bytes of a disk must be seen to tell what it is: the btrfs superblock at 64 KiB is the furthest.
pub(crate) const HEAD_LEN: usize = 72 << 10;

/// What the start of a raw disk says about all of it.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) kind: RawKind,
    /// The disk cannot be shorter than this, in bytes.
    pub(crate) at_least: u64,
    /// How long the disk is by its own tables, in bytes. An MBR does not say.
    pub(crate) len: Option<u64>,
    pub(super) gpt: Option<Gpt>,
}

impl Layout {
    /// Reads `head`, the first [`HEAD_LEN`] bytes of the disk, fewer only where the disk is shorter.
    ///
    /// An ISO image comes first: hybrid ones carry partition tables for firmware that boots them from a stick, whose ends
    /// do not always match the file. A boot sector of a file system comes before the MBR that it looks like.
    pub(crate) fn read(head: &[u8]) -> Result<Self, ArtifactError> {
        match magic(head) {
            Magic::None => (),
            Magic::Unsupported(what) => return Err(ArtifactError::unsupported(what)),
            Magic::Packed(compression) => {
                return Err(ArtifactError::unsupported(format!("a file packed twice (with {compression} inside)")));
            }
            Magic::Qcow2 => return Err(ArtifactError::corrupt("raw disk", 0, "it starts like a qcow2 image")),
        }
        if head.len() < 512 {
            let found = if head.is_empty() { String::new() } else { format!(" ({}, less than one sector)", in_bytes(head.len() as u64)) };
            return Err(ArtifactError::not_a_disk(looks_like(head) + &found));
        }
        let file_system = |found: FileSystem| Self {
            kind: RawKind::FileSystem(found.name),
            at_least: found.len,
            len: (found.len > 0).then_some(found.len),
            gpt: None,
        };
        if let Some(found) = FileSystem::iso9660(head) {
            return Ok(file_system(found));
        }
        if let Some(gpt) = Gpt::primary(head) {
            let gpt = gpt?;
            let len = gpt.disk_len();
            return Ok(Self { kind: RawKind::Gpt { sector: gpt.sector }, at_least: len, len: Some(len), gpt: Some(gpt) });
        }
        if let Some(found) = FileSystem::with_boot_sector(head) {
            return Ok(file_system(found));
        }
        match Mbr::read(head) {
            Some(mbr) if mbr.protective => return Err(Mbr::without_gpt()),
            Some(mbr) => return Ok(Self { kind: RawKind::Mbr, at_least: mbr.end, len: None, gpt: None }),
            None => (),
        }
        FileSystem::other(head).map(file_system).ok_or_else(|| ArtifactError::not_a_disk(looks_like(head)))
    }

    /// What is cut off of a disk of `len` bytes, if anything.
    pub(crate) fn check_len(&self, len: u64) -> Result<(), ArtifactError> {
        if self.at_least <= len {
            return Ok(());
        }
        let part = match self.kind {
            RawKind::Gpt { .. } => "GPT disk",
            RawKind::Mbr => "MBR disk",
            RawKind::FileSystem(_) => "file system",
        };
        Err(ArtifactError::truncated(part, len, format!("by its own table it has at least {} bytes", self.at_least)))
    }
}
