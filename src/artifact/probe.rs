use std::io::{self, ErrorKind, Read};

use super::{
    ArtifactError, Compression, Decoder, DiskFormat, Format, Limits, Watch,
    qcow2::Header,
    raw::{HEAD_LEN, Layout},
    sniff::{Magic, magic},
    zstd_frame::FrameHeader,
};
use crate::model::{DiskSize, in_bytes};

/// What the first bytes of a download say about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// What the file is.
    pub format: Format,
    /// How large the disk inside is by its own tables: exact for qcow2 and for a plain raw file of known length. For a
    /// packed raw disk it is what the partition table or file system says, which is short of the truth only where the
    /// disk was made larger afterwards; `None` where nothing says it (a packed disk with an MBR). [`super::ingest`]
    /// gives the true size.
    pub virtual_size: Option<DiskSize>,
}

/// Finds out from the start of a download what it is, without a Range request and without the rest.
///
/// It is fed bytes as they come, and answers as soon as it can: after 512 bytes for a qcow2, after the bytes that unpack
/// to 72 KiB for a packed disk (about a kilobyte for one made by Talos), after 72 KiB for a raw one. It never asks for
/// more than [`Self::MAX`].
#[derive(Debug)]
pub struct Prober {
    head: Vec<u8>,
    total: Option<u64>,
    limits: Limits,
    /// How many bytes must be there before the next attempt is worth its cost: it starts over.
    next: usize,
}

impl Prober {
    /// The most bytes that are looked at: 1 MiB.
    pub const MAX: usize = 1 << 20;
    /// How many bytes there are at each attempt, if they come in small pieces: one sector is enough for a qcow2, a few
    /// kilobytes of a packed disk usually unpack to all that is needed, and a raw disk must show its head.
    const STEPS: [usize; 6] = [512, 4 << 10, 16 << 10, HEAD_LEN, 256 << 10, Self::MAX];

    /// A prober of a file whose length upstream announced as `total` bytes, if it did. The announcement is believed for
    /// the size of a plain raw disk only, and the transfer proves it.
    pub fn new(total: Option<u64>, limits: &Limits) -> Self {
        Self { head: Vec::new(), total, limits: Limits { threads: 1, ..limits.clone() }, next: Self::STEPS[0] }
    }

    /// Looks at further bytes; `None` means that more are needed.
    ///
    /// # Errors
    /// `NotADiskImage`, `Unsupported`, `Corrupt`, `Truncated` or `TooLarge`, as soon as the bytes show it.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Probe>, ArtifactError> {
        let room = Self::MAX - self.head.len();
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let all = self.total.is_some_and(|total| total <= self.head.len() as u64);
        let full = self.head.len() == Self::MAX;
        if !all && !full && self.head.len() < self.next {
            return Ok(None);
        }
        self.next = Self::STEPS.into_iter().find(|step| *step > self.head.len()).unwrap_or(Self::MAX);
        self.attempt(all, full)
    }

    /// Decides with the bytes that came, which are all of the file.
    ///
    /// # Errors
    /// As [`Self::feed`], and `Truncated` where fewer bytes came than were announced.
    pub fn finish(&self) -> Result<Probe, ArtifactError> {
        let len = self.head.len() as u64;
        if let Some(total) = self.total.filter(|total| *total > len && len < Self::MAX as u64) {
            return Err(ArtifactError::truncated("download", len, format!("{} announced", in_bytes(total))));
        }
        let probe = self.attempt(true, true)?;
        probe.ok_or_else(|| ArtifactError::not_a_disk("its first bytes do not show what it is"))
    }

    /// One attempt. `all` says that the file ends here, `full` that no further bytes will be looked at.
    fn attempt(&self, all: bool, full: bool) -> Result<Option<Probe>, ArtifactError> {
        let probe = match magic(&self.head) {
            Magic::Unsupported(what) => return Err(ArtifactError::unsupported(what)),
            Magic::Qcow2 => self.qcow2(&self.head, all, None)?,
            Magic::Packed(compression) => self.packed(compression, all, full)?,
            Magic::None if all || full || self.head.len() >= HEAD_LEN => Some(self.raw()?),
            Magic::None => None,
        };
        match probe.and_then(|probe| probe.virtual_size) {
            Some(size) if size.bytes() > self.limits.max_virtual_size => {
                Err(ArtifactError::TooLarge { what: "the disk", limit: self.limits.max_virtual_size })
            }
            _ => Ok(probe),
        }
    }

    fn qcow2(&self, head: &[u8], all: bool, compression: Option<Compression>) -> Result<Option<Probe>, ArtifactError> {
        if head.len() < Header::LEN && !all {
            return Ok(None);
        }
        let header = Header::parse(&head[..head.len().min(Header::LEN)])?;
        Ok(Some(Probe { format: Format { disk: DiskFormat::Qcow2, compression }, virtual_size: Some(header.virtual_size) }))
    }

    fn raw(&self) -> Result<Probe, ArtifactError> {
        let layout = Layout::read(&self.head[..self.head.len().min(HEAD_LEN)])?;
        let len = match self.total {
            Some(total) => {
                layout.check_len(total)?;
                Some(total.next_multiple_of(512))
            }
            None => layout.len,
        };
        Ok(Probe { format: Format { disk: DiskFormat::Raw, compression: None }, virtual_size: len.and_then(DiskSize::from_bytes) })
    }

    fn packed(&self, compression: Compression, all: bool, full: bool) -> Result<Option<Probe>, ArtifactError> {
        let mut decoder = Decoder::new(Prefix { rest: &self.head, all }, Some(compression), &self.limits, Watch::idle())?;
        let mut head = vec![0; HEAD_LEN];
        let mut filled = 0;
        let mut ended = false;
        while filled < head.len() && !ended {
            match decoder.decode(&mut head[filled..]) {
                Ok(count) => {
                    filled += count;
                    ended = count == 0;
                }
                Err(error) if error.is_pause() => break,
                Err(error) => return Err(error),
            }
        }
        head.truncate(filled);
        if magic(&head) == Magic::Qcow2 {
            return self.qcow2(&head, ended || full, Some(compression));
        }
        if filled < HEAD_LEN && !ended && !full {
            return Ok(None);
        }
        let layout = Layout::read(&head)?;
        // A zstd frame may say how much it unpacks to. Others may follow it, so the disk has at least as much.
        let stated = if compression == Compression::Zstd { FrameHeader::parse(&self.head).and_then(|header| header.content) } else { None };
        let len = if ended {
            layout.check_len(filled as u64)?;
            Some((filled as u64).next_multiple_of(512))
        } else {
            let stated = stated.filter(|stated| FrameHeader::is_frame(&self.head) && *stated >= layout.at_least);
            layout.len.max(stated)
        };
        let virtual_size = len.and_then(DiskSize::from_bytes);
        Ok(Some(Probe { format: Format { disk: DiskFormat::Raw, compression: Some(compression) }, virtual_size }))
    }
}

/// The start of a file: where it ends, the reader pauses, unless the file ends there too.
pub(super) struct Prefix<'a> {
    pub(super) rest: &'a [u8],
    pub(super) all: bool,
}

impl Read for Prefix<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() && !self.all { Err(ErrorKind::WouldBlock.into()) } else { self.rest.read(out) }
    }
}

#[cfg(test)]
mod tests;
