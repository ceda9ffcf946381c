use std::io::Read;

use ::zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, get_error_name};

use super::{ArtifactError, Input, Limits};
use crate::artifact::{bytes::le32, zstd_frame::FrameHeader};

/// What errors call the frame.
const PART: &str = "zstd frame";

/// Zstandard (RFC 8878): frames one after the other, skippable ones among them.
pub(super) struct Zstd {
    context: DCtx<'static>,
    window: u64,
    /// Bytes of a skippable frame still to be skipped.
    skip: u64,
    in_frame: bool,
    /// Whether a whole frame has been read.
    begun: bool,
}

impl Zstd {
    pub(super) fn new(limits: &Limits) -> Result<Self, ArtifactError> {
        let no_memory = || ArtifactError::Io { doing: "decoding zstd", source: std::io::ErrorKind::OutOfMemory.into() };
        let mut context = DCtx::try_create().ok_or_else(no_memory)?;
        // The frame header is read here, so this is the second fence. zstd itself takes 10 to 31.
        let log = limits.zstd_window.max(1).ilog2().clamp(10, 31);
        context.set_parameter(DParameter::WindowLogMax(log)).map_err(|_| no_memory())?;
        Ok(Self { context, window: limits.zstd_window, skip: 0, in_frame: false, begun: false })
    }

    pub(super) fn decode(&mut self, input: &mut Input<'_, impl Read>, out: &mut [u8]) -> Result<usize, ArtifactError> {
        loop {
            if !self.in_frame && !self.start(input)? {
                return Ok(0);
            }
            let at = input.offset();
            let bytes = input.fill()?;
            let ended = bytes.is_empty();
            if self.skip > 0 {
                if ended {
                    return Err(ArtifactError::truncated(PART, at, format!("{} bytes of a skippable frame are missing", self.skip)));
                }
                let count = self.skip.min(bytes.len() as u64);
                self.skip -= count;
                // Bounded by the buffer's length.
                input.consume(count as usize);
                self.in_frame = self.skip > 0;
                continue;
            }
            let mut source = InBuffer::around(bytes);
            let mut target = OutBuffer::around(&mut *out);
            let hint = self.context.decompress_stream(&mut target, &mut source).map_err(|code| error(code, at))?;
            let (used, written) = (source.pos(), target.pos());
            input.consume(used);
            if hint == 0 {
                self.in_frame = false;
                self.begun = true;
            }
            if written > 0 {
                return Ok(written);
            }
            if used == 0 && self.in_frame {
                return Err(if ended {
                    ArtifactError::truncated(PART, at, "the file ends inside a frame")
                } else {
                    ArtifactError::corrupt(PART, at, "the decoder makes no progress")
                });
            }
        }
    }

    /// Looks at the next frame's header; false at the end of the file.
    fn start(&mut self, input: &mut Input<'_, impl Read>) -> Result<bool, ArtifactError> {
        loop {
            let at = input.offset();
            let bytes = input.ensure(FrameHeader::MAX_LEN)?;
            if bytes.is_empty() && self.begun {
                return Ok(false);
            }
            let truncated = |len: usize| ArtifactError::truncated(PART, at + len as u64, "the file ends inside a frame header");
            if FrameHeader::is_skippable(bytes) {
                if bytes.len() < 8 {
                    return Err(truncated(bytes.len()));
                }
                self.skip = u64::from(le32(bytes, 4));
                input.consume(8);
                self.begun = true;
                if self.skip == 0 {
                    continue;
                }
            } else if FrameHeader::is_frame(bytes) {
                let header = FrameHeader::parse(bytes).ok_or_else(|| truncated(bytes.len()))?;
                if header.dictionary {
                    return Err(ArtifactError::unsupported("a zstd frame that needs a dictionary"));
                }
                if header.window > self.window {
                    return Err(ArtifactError::unsupported(format!(
                        "a zstd frame with a window of {} bytes, more than the {} that are decoded; compress it without `--long`",
                        header.window, self.window
                    )));
                }
            } else if bytes.len() < 4 {
                return Err(truncated(bytes.len()));
            } else {
                let found = if self.begun { "bytes after the frame that are no further frame" } else { "no frame header" };
                return Err(ArtifactError::corrupt(PART, at, found));
            }
            self.in_frame = true;
            return Ok(true);
        }
    }
}

/// Error codes of `zstd_errors.h`, which are stable.
fn error(code: usize, at: u64) -> ArtifactError {
    match 0_usize.wrapping_sub(code) {
        14 => ArtifactError::unsupported("a zstd frame with a parameter that is not known"),
        16 => ArtifactError::unsupported("a zstd frame with a window larger than is decoded; compress it without `--long`"),
        32 => ArtifactError::unsupported("a zstd frame that needs a dictionary"),
        64 => ArtifactError::Io { doing: "decoding zstd", source: std::io::ErrorKind::OutOfMemory.into() },
        _ => ArtifactError::corrupt(PART, at, format!("{} in the data after this byte", get_error_name(code))),
    }
}
