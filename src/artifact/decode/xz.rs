use std::io::Read;

use liblzma::stream::{Action, Error, MtStreamBuilder, Status, Stream};

use super::{ArtifactError, Input, Limits};

/// What errors call the stream.
const PART: &str = "xz stream";

/// The .xz file format, version 1.2.1 (tukaani.org): streams one after the other, with zero padding in fours after each.
///
/// liblzma's threaded decoder takes one stream at a time and says nothing about check types it does not know, so the
/// header of each stream is read here first.
pub(super) struct Xz {
    memory: u64,
    threads: u32,
    stream: Option<Stream>,
    /// Whether a whole stream has been decoded.
    begun: bool,
}

impl Xz {
    const MAGIC: &'static [u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
    const HEADER: usize = 12;

    pub(super) fn new(limits: &Limits) -> Self {
        Self { memory: limits.xz_memory, threads: limits.threads.max(1), stream: None, begun: false }
    }

    pub(super) fn decode(&mut self, input: &mut Input<'_, impl Read>, out: &mut [u8]) -> Result<usize, ArtifactError> {
        // liblzma answers the first call that makes no progress with "ok" and only the second with "buffer error".
        let mut idle = 0;
        loop {
            let Some(stream) = &mut self.stream else {
                if !self.start(input)? {
                    return Ok(0);
                }
                continue;
            };
            let at = input.offset();
            let bytes = input.fill()?;
            let ended = bytes.is_empty();
            let (before_in, before_out) = (stream.total_in(), stream.total_out());
            let status = stream.process(bytes, out, if ended { Action::Finish } else { Action::Run });
            // Both differences are bounded by the lengths of the slices given.
            let used = (stream.total_in() - before_in) as usize;
            let written = (stream.total_out() - before_out) as usize;
            input.consume(used);
            let status = status.map_err(|error| self.error(error, at))?;
            if status == Status::StreamEnd {
                self.stream = None;
                self.begun = true;
            }
            if written > 0 {
                return Ok(written);
            }
            idle = if used > 0 || status == Status::StreamEnd { 0 } else { idle + 1 };
            if idle > 2 {
                let at = input.offset();
                return Err(if ended {
                    ArtifactError::truncated(PART, at, "the file ends inside a stream")
                } else {
                    ArtifactError::corrupt(PART, at, "the decoder makes no progress")
                });
            }
        }
    }

    /// Begins the next stream; false at the end of the file.
    fn start(&mut self, input: &mut Input<'_, impl Read>) -> Result<bool, ArtifactError> {
        if self.begun {
            let padding = skip_zeros(input)?;
            if padding % 4 != 0 {
                return Err(ArtifactError::corrupt(PART, input.offset(), format!("{padding} bytes of padding, which come in fours")));
            }
        }
        let at = input.offset();
        let header = input.ensure(Self::HEADER)?;
        if header.is_empty() && self.begun {
            return Ok(false);
        }
        if header.iter().zip(Self::MAGIC).any(|(byte, magic)| byte != magic) {
            let found = if self.begun { "bytes after the stream that are no further stream" } else { "no stream header" };
            return Err(ArtifactError::corrupt(PART, at, found));
        }
        if header.len() < Self::HEADER {
            return Err(ArtifactError::truncated(PART, at + header.len() as u64, "the file ends inside a stream header"));
        }
        // Stream flags: a zero byte and the check type (section 2.1.1.2). Reserved types would be decoded unchecked.
        if !matches!(header[7], 0x00 | 0x01 | 0x04 | 0x0a) && header[6] == 0 && header[7] < 0x10 {
            return Err(ArtifactError::unsupported(format!("an xz stream with check type {}", header[7])));
        }
        let stream = if self.threads > 1 {
            let mut builder = MtStreamBuilder::new();
            builder.threads(self.threads).memlimit_threading(self.memory).memlimit_stop(self.memory).decoder()
        } else {
            Stream::new_stream_decoder(self.memory, 0)
        };
        self.stream = Some(stream.map_err(|error| self.error(error, at))?);
        Ok(true)
    }

    fn error(&self, error: Error, at: u64) -> ArtifactError {
        match error {
            Error::MemLimit => ArtifactError::unsupported(format!(
                "an xz stream that needs more than {} MiB of memory to decode; compress it with `xz -9` or less",
                self.memory >> 20
            )),
            Error::Options => ArtifactError::unsupported("an xz stream with options that are not known"),
            Error::UnsupportedCheck => ArtifactError::unsupported("an xz stream with a check type that is not known"),
            Error::Mem => ArtifactError::Io { doing: "decoding xz", source: std::io::ErrorKind::OutOfMemory.into() },
            Error::Format => ArtifactError::corrupt(PART, at, "no stream header"),
            Error::Data | Error::Program | Error::NoCheck => {
                ArtifactError::corrupt(PART, at, "the data after this byte does not decode, or a check failed")
            }
        }
    }
}

/// Skips zero bytes; returns how many.
fn skip_zeros(input: &mut Input<'_, impl Read>) -> Result<u64, ArtifactError> {
    let start = input.offset();
    loop {
        let bytes = input.fill()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let all = zeros == bytes.len();
        let ended = bytes.is_empty();
        input.consume(zeros);
        if ended || !all {
            return Ok(input.offset() - start);
        }
    }
}
