//! What the first bytes of a file prove about it, for whoever looks and does not fetch.

use std::io::{self, ErrorKind, Read};

use super::{
    ArtifactError, Decoder, DiskFormat, Limits, MAX_RAW_SIZE, Probe, Prober, RawVerifier, Watch, probe::Prefix, qcow2::inspect_qcow2_head,
};
use crate::model::DiskSize;

/// What a look at the first bytes found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preview {
    /// What they say; `None` where there are too few to tell.
    pub probe: Option<Probe>,
    /// Whether the file was seen whole and is sound, so that whoever fetches the same bytes finds nothing new in them.
    pub is_whole: bool,
}

/// The most bytes that are unpacked for one look: about a second's work. A file that unpacks to more counts as not seen whole.
pub(super) const MOST_UNPACKED: u64 = 1 << 30;

/// The most bytes of an unpacked qcow2 that are held: its tables stand anywhere in it.
const MOST_HELD: usize = 16 << 20;

/// Bytes unpacked at a time.
const PIECE: usize = 256 << 10;

/// Looks at `head`, the first bytes of a file that has `total` of them, where that is known; `all` says that there are no more.
/// Everything that [`super::ingest`] would find wrong with these very bytes is found, by the same code; nothing is written.
///
/// # Errors
/// As [`Prober::feed`] and [`super::ingest`], where the bytes that are there prove it: no others after them would heal it.
pub fn preview(head: &[u8], total: Option<u64>, all: bool, limits: &Limits) -> Result<Preview, ArtifactError> {
    let limits = Limits { threads: 1, ..limits.clone() };
    preview_stream(Prefix { rest: head, all }, total, &limits)
}

/// As [`preview`], for a file inside another: `input` pauses ([`ErrorKind::WouldBlock`]) where no more of it is at hand.
pub(super) fn preview_stream(mut input: impl Read, total: Option<u64>, limits: &Limits) -> Result<Preview, ArtifactError> {
    let (head, ended) = beginning(&mut input)?;
    let mut prober = Prober::new(total.or(ended.then_some(head.len() as u64)), limits);
    let probe = match prober.feed(&head)? {
        Some(probe) => probe,
        None if ended => prober.finish()?,
        None => return Ok(Preview { probe: None, is_whole: false }),
    };
    let mut decoder = Decoder::new(head.as_slice().chain(input), probe.format.compression, limits, Watch::idle())?;
    match probe.format.disk {
        DiskFormat::Raw => raw(&mut decoder, probe, limits),
        DiskFormat::Qcow2 => {
            let (held, ended) = held(&mut decoder)?;
            let plain = probe.format.compression.is_none();
            let is_whole = match if ended { Some(held.len() as u64) } else { total.filter(|_| plain) } {
                Some(len) => inspect_qcow2_head(&held, len, limits)?,
                None => false,
            };
            Ok(Preview { probe: Some(probe), is_whole: is_whole && ended })
        }
    }
}

/// The first mebibyte, and whether the input ends with it.
fn beginning(input: &mut impl Read) -> Result<(Vec<u8>, bool), ArtifactError> {
    let mut head = vec![0; Prober::MAX];
    let mut filled = 0;
    let mut ended = false;
    while filled < head.len() && !ended {
        match input.read(&mut head[filled..]) {
            Ok(count) => {
                filled += count;
                ended = count == 0;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(ArtifactError::io("reading the download", error)),
        }
    }
    head.truncate(filled);
    Ok((head, ended))
}

/// Verifies a raw disk as far as it is there.
fn raw<R: Read>(decoder: &mut Decoder<'_, R>, probe: Probe, limits: &Limits) -> Result<Preview, ArtifactError> {
    let limit = limits.max_virtual_size.min(MAX_RAW_SIZE);
    let mut verifier = RawVerifier::new();
    let mut piece = vec![0; PIECE];
    let mut seen = 0_u64;
    while seen <= MOST_UNPACKED {
        match decoder.decode(&mut piece) {
            Ok(0) => {
                let virtual_size = DiskSize::from_bytes(verifier.finish()?.len.next_multiple_of(512)).or(probe.virtual_size);
                return Ok(Preview { probe: Some(Probe { virtual_size, ..probe }), is_whole: true });
            }
            Ok(count) => {
                seen += count as u64;
                if seen > limit {
                    return Err(ArtifactError::TooLarge { what: "what the file unpacks to", limit });
                }
                verifier.update(&piece[..count])?;
            }
            Err(error) if error.is_pause() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(Preview { probe: Some(probe), is_whole: false })
}

/// The first bytes of what a file unpacks to, and whether these are all.
fn held<R: Read>(decoder: &mut Decoder<'_, R>) -> Result<(Vec<u8>, bool), ArtifactError> {
    let mut held = Vec::new();
    let mut piece = vec![0; PIECE];
    while held.len() <= MOST_HELD {
        match decoder.decode(&mut piece) {
            Ok(0) => return Ok((held, true)),
            Ok(count) => held.extend_from_slice(&piece[..count]),
            Err(error) if error.is_pause() => break,
            Err(error) => return Err(error),
        }
    }
    Ok((held, false))
}

/// A reader that pauses once it has given out so much, and stays paused once it is.
pub(super) struct Most<R> {
    pub(super) inner: R,
    pub(super) left: u64,
}

impl<R: Read> Read for Most<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        match self.inner.read(out) {
            Ok(count) => {
                self.left = self.left.saturating_sub(count as u64);
                Ok(count)
            }
            Err(error) => {
                // A decoder that paused says nothing sensible afterwards.
                if error.kind() == ErrorKind::WouldBlock {
                    self.left = 0;
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
#[path = "preview_tests.rs"]
mod tests;
