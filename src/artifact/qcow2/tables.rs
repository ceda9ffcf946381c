use std::{fs::File, io, os::unix::fs::FileExt};

use super::super::ArtifactError;

/// A file that tables are read out of.
pub(super) struct Tables<'a> {
    bytes: Bytes<'a>,
    /// The file's length in bytes when it was opened.
    pub(super) len: u64,
    cluster: u64,
}

/// Where the file's bytes are.
enum Bytes<'a> {
    File(&'a File),
    /// The first bytes of a file, more of which is not at hand.
    Head(&'a [u8]),
}

impl<'a> Tables<'a> {
    /// Bytes read at a time from a table that is looked at entry by entry.
    const PIECE: u64 = 64 << 10;

    pub(super) fn new(file: &'a File) -> Result<Self, ArtifactError> {
        let len = file.metadata().map_err(|error| ArtifactError::io("reading the image", error))?.len();
        Ok(Self { bytes: Bytes::File(file), len, cluster: 512 })
    }

    /// The tables of a file of `len` bytes of which `head` are the first. What lies behind them cannot be read yet
    /// ([`ArtifactError::is_pause`]).
    pub(super) fn of_head(head: &'a [u8], len: u64) -> Self {
        Self { bytes: Bytes::Head(head), len, cluster: 512 }
    }

    pub(super) fn with_cluster(self, cluster: u64) -> Self {
        Self { cluster, ..self }
    }

    /// The file's length, rounded up to whole clusters.
    pub(super) fn rounded_len(&self) -> u64 {
        self.len.next_multiple_of(self.cluster)
    }

    /// Refuses a table that is not aligned to a cluster, lies on the header or ends after `end`.
    pub(super) fn check(&self, part: &'static str, offset: u64, len: u64, end: u64) -> Result<(), ArtifactError> {
        if offset == 0 || !offset.is_multiple_of(self.cluster) {
            return Err(ArtifactError::corrupt(part, offset, "it is not aligned to a cluster"));
        }
        match offset.checked_add(len) {
            Some(table_end) if table_end <= end && offset < self.len => Ok(()),
            _ => Err(ArtifactError::truncated(part, self.len, format!("its {len} bytes at byte {offset} lie outside the file"))),
        }
    }

    /// Reads into `buffer`; what lies past the end of the file reads as zeros, as it does in QEMU.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ArtifactError> {
        let file = match self.bytes {
            Bytes::File(file) => file,
            Bytes::Head(head) => return self.read_head(head, offset, buffer),
        };
        let mut done = 0;
        while done < buffer.len() {
            match file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count.min(buffer.len() - done),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(ArtifactError::io("reading the image", error)),
            }
        }
        buffer[done..].fill(0);
        Ok(())
    }

    fn read_head(&self, head: &[u8], offset: u64, buffer: &mut [u8]) -> Result<(), ArtifactError> {
        if offset.saturating_add(buffer.len() as u64).min(self.len) > head.len() as u64 {
            return Err(ArtifactError::io("reading the image", io::ErrorKind::WouldBlock.into()));
        }
        let known = usize::try_from(offset).ok().and_then(|offset| head.get(offset..)).unwrap_or_default();
        let count = known.len().min(buffer.len());
        buffer[..count].copy_from_slice(&known[..count]);
        buffer[count..].fill(0);
        Ok(())
    }

    /// Gives each big-endian 64-bit entry of a table with its offset to `see`, holding 64 KiB of it at a time.
    pub(super) fn entries(
        &self,
        offset: u64,
        count: u64,
        mut see: impl FnMut(u64, u64) -> Result<(), ArtifactError>,
    ) -> Result<(), ArtifactError> {
        let end = offset + count * 8;
        let mut at = offset;
        let mut piece = vec![0; Self::PIECE.min(count * 8) as usize];
        while at < end {
            let piece = &mut piece[..Self::PIECE.min(end - at) as usize];
            self.read(at, piece)?;
            let (entries, _) = piece.as_chunks::<8>();
            for entry in entries {
                see(at, u64::from_be_bytes(*entry))?;
                at += 8;
            }
        }
        Ok(())
    }
}
