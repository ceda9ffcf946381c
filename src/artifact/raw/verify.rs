use super::{super::ArtifactError, HEAD_LEN, Layout, RawKind};
use crate::artifact::bytes::has;

/// A raw disk that has been seen whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawDisk {
    /// How it is told to be a disk.
    pub kind: RawKind,
    /// Its length in bytes, as given.
    pub len: u64,
}

/// Watches the bytes of a raw disk stream by and tells whether they are one, keeping about a mebibyte of them.
///
/// What cannot be a disk is refused after its first 72 KiB; what is cut, at the end.
#[derive(Debug, Default)]
pub struct RawVerifier {
    head: Vec<u8>,
    layout: Option<Layout>,
    entries: Window,
    alternate: Window,
    /// The last bytes seen, where a fixed vhd has its footer.
    tail: Vec<u8>,
    len: u64,
}

/// A range of the disk that is kept.
#[derive(Debug, Default)]
struct Window {
    start: u64,
    len: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn new((start, len): (u64, u64)) -> Self {
        Self { start, len, bytes: Vec::new() }
    }

    /// Keeps what of `bytes`, which lie at `at`, belongs to the window. Calls come in order and without gaps.
    fn see(&mut self, at: u64, bytes: &[u8]) {
        let wanted = self.start + self.bytes.len() as u64;
        let missing = self.len - self.bytes.len() as u64;
        let skip = wanted.saturating_sub(at).min(bytes.len() as u64);
        // Both are bounded by the length of the slice.
        let rest = &bytes[skip as usize..];
        self.bytes.extend_from_slice(&rest[..missing.min(rest.len() as u64) as usize]);
    }
}

impl RawVerifier {
    const TAIL: usize = 512;

    /// A verifier that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sees the next bytes of the disk.
    ///
    /// # Errors
    /// `NotADiskImage`, `Unsupported` or `Corrupt` as soon as the start of the disk shows it.
    pub fn update(&mut self, bytes: &[u8]) -> Result<(), ArtifactError> {
        if self.layout.is_none() {
            let wanted = (HEAD_LEN - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..wanted]);
            if self.head.len() == HEAD_LEN {
                self.read_head()?;
            }
        }
        self.entries.see(self.len, bytes);
        self.alternate.see(self.len, bytes);
        let last = &bytes[bytes.len().saturating_sub(Self::TAIL)..];
        let surplus = (self.tail.len() + last.len()).saturating_sub(Self::TAIL).min(self.tail.len());
        self.tail.drain(..surplus);
        self.tail.extend_from_slice(last);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Says what the disk is, now that all of it has been seen.
    ///
    /// # Errors
    /// As [`Self::update`], and `Truncated` where the disk is shorter than its own tables say.
    pub fn finish(mut self) -> Result<RawDisk, ArtifactError> {
        let layout = match self.layout.take() {
            Some(layout) => layout,
            None => self.read_head()?,
        };
        // A fixed vhd is a raw disk and a footer of 512 bytes ("Virtual Hard Disk Image Format Specification").
        if has(&self.tail, 0, b"conectix") {
            return Err(ArtifactError::unsupported("a vhd image (fixed)"));
        }
        layout.check_len(self.len)?;
        if let Some(gpt) = &layout.gpt {
            gpt.check_entries(&self.entries.bytes)?;
            gpt.check_alternate(&self.alternate.bytes)?;
        }
        Ok(RawDisk { kind: layout.kind, len: self.len })
    }

    /// Reads the layout out of the head, and sees the parts of the windows that lie in it.
    fn read_head(&mut self) -> Result<Layout, ArtifactError> {
        let layout = Layout::read(&self.head)?;
        if let Some(gpt) = &layout.gpt {
            self.entries = Window::new(gpt.entries_range());
            self.alternate = Window::new(gpt.alternate_range());
            // The bytes of the current call lie in the head in part; the head is seen up to where that call began.
            let seen = &self.head[..(self.len as usize).min(self.head.len())];
            self.entries.see(0, seen);
            self.alternate.see(0, seen);
        }
        self.layout = Some(layout.clone());
        Ok(layout)
    }
}

#[cfg(test)]
mod tests;
