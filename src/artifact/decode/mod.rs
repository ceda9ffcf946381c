//! Decoding to the stream's real end, with every integrity check that the stream carries.

mod gzip;
mod xz;
mod zstd;

use std::io::{self, Read};

use super::{ArtifactError, Compression, Limits, Watch, input::Input};

/// A reader of the bytes inside a compressed stream, or of plain bytes.
///
/// It reports the end of the stream only where the stream itself ends and its checks held; a stream that stops early is
/// an error, as are bytes after its end that are no further stream. It also is an [`io::Read`], so that a layer of a
/// container image can be decoded, its tar read, and the file inside decoded again; the inner decoder gets the outer
/// one's error back whole.
pub struct Decoder<'w, R> {
    input: Input<'w, R>,
    codec: Codec,
}

enum Codec {
    Plain,
    Xz(xz::Xz),
    Zstd(Box<zstd::Zstd>),
    Gzip(Box<gzip::Gzip>),
    /// An error was returned; what a codec would say after one means nothing.
    Failed,
}

impl<'w, R: Read> Decoder<'w, R> {
    /// A decoder of `inner`, which is read in pieces of 256 KiB and need not be buffered.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(inner: R, compression: Option<Compression>, limits: &Limits, watch: Watch<'w>) -> Result<Self, ArtifactError> {
        let codec = match compression {
            None => Codec::Plain,
            Some(Compression::Xz) => Codec::Xz(xz::Xz::new(limits)),
            Some(Compression::Zstd) => Codec::Zstd(Box::new(zstd::Zstd::new(limits)?)),
            Some(Compression::Gzip) => Codec::Gzip(Box::new(gzip::Gzip::new())),
        };
        Ok(Self { input: Input::new(inner, watch), codec })
    }

    /// Some decoded bytes; 0 only at the verified end of the stream (or for an empty `out`).
    ///
    /// # Errors
    /// `Corrupt` and `Truncated` with the offset in the compressed input, `Unsupported` for what needs more memory or
    /// options than allowed, `Io` where the input fails. After an error every further call fails.
    pub fn decode(&mut self, out: &mut [u8]) -> Result<usize, ArtifactError> {
        if out.is_empty() {
            return Ok(0);
        }
        let result = match &mut self.codec {
            Codec::Plain => self.input.read_plain(out),
            Codec::Xz(xz) => xz.decode(&mut self.input, out),
            Codec::Zstd(zstd) => zstd.decode(&mut self.input, out),
            Codec::Gzip(gzip) => gzip.decode(&mut self.input, out),
            Codec::Failed => Err(ArtifactError::corrupt("stream", self.input.offset(), "read on after an error")),
        };
        if result.is_err() {
            self.codec = Codec::Failed;
        }
        result
    }

    /// Decodes until `out` is full or the stream ends; returns how much is filled.
    ///
    /// # Errors
    /// As [`Self::decode`], and `Cancelled`.
    pub fn fill(&mut self, out: &mut [u8]) -> Result<usize, ArtifactError> {
        let mut filled = 0;
        while filled < out.len() {
            self.input.watch().check()?;
            match self.decode(&mut out[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    /// How many bytes of the compressed input have been used.
    pub fn consumed(&self) -> u64 {
        self.input.offset()
    }
}

impl<R: Read> Read for Decoder<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.decode(out).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests;
