use std::io::Read;

use flate2::{Decompress, FlushDecompress, Status};

use super::{ArtifactError, Input};
use crate::artifact::bytes::le32;

/// What errors call the member.
const PART: &str = "gzip member";

/// gzip (RFC 1952): members one after the other, each with its CRC and length.
pub(super) struct Gzip {
    inflate: Decompress,
    crc: crc32fast::Hasher,
    /// Bytes unpacked from this member, modulo 2^32 as the trailer counts them.
    length: u32,
    in_member: bool,
    begun: bool,
}

/// Header flags.
const FHCRC: u8 = 1 << 1;
const FEXTRA: u8 = 1 << 2;
const FNAME: u8 = 1 << 3;
const FCOMMENT: u8 = 1 << 4;
const RESERVED: u8 = 0xe0;

impl Gzip {
    /// The longest name or comment that is read over.
    const MAX_TEXT: usize = 64 << 10;

    pub(super) fn new() -> Self {
        let inflate = Decompress::new(false);
        Self { inflate, crc: crc32fast::Hasher::new(), length: 0, in_member: false, begun: false }
    }

    pub(super) fn decode(&mut self, input: &mut Input<'_, impl Read>, out: &mut [u8]) -> Result<usize, ArtifactError> {
        loop {
            if !self.in_member && !self.start(input)? {
                return Ok(0);
            }
            let at = input.offset();
            let bytes = input.fill()?;
            let ended = bytes.is_empty();
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(bytes, out, FlushDecompress::None);
            // Both differences are bounded by the lengths of the slices given.
            let used = (self.inflate.total_in() - before_in) as usize;
            let written = (self.inflate.total_out() - before_out) as usize;
            input.consume(used);
            let status = status.map_err(|_| ArtifactError::corrupt(PART, at, "the data after this byte does not decode"))?;
            if let Some(written) = out.get(..written) {
                self.crc.update(written);
            }
            self.length = self.length.wrapping_add(written as u32);
            if status == Status::StreamEnd {
                self.finish(input)?;
            } else if used == 0 && written == 0 {
                return Err(if ended {
                    ArtifactError::truncated(PART, at, "the file ends inside a member")
                } else {
                    ArtifactError::corrupt(PART, at, "the decoder makes no progress")
                });
            }
            if written > 0 {
                return Ok(written);
            }
        }
    }

    /// Reads the next member's header; false at the end of the file.
    fn start(&mut self, input: &mut Input<'_, impl Read>) -> Result<bool, ArtifactError> {
        let at = input.offset();
        let bytes = input.ensure(10)?;
        if bytes.is_empty() && self.begun {
            return Ok(false);
        }
        if !bytes.starts_with(&[0x1f, 0x8b]) {
            let found = if self.begun { "bytes after the member that are no further member" } else { "no member header" };
            return Err(ArtifactError::corrupt(PART, at, found));
        }
        let Some(header) = bytes.first_chunk::<10>().copied() else {
            return Err(ended(at + bytes.len() as u64));
        };
        let [_, _, method, flags, ..] = header;
        if method != 8 || flags & RESERVED != 0 {
            return Err(ArtifactError::unsupported(format!("a gzip member with method {method} and flags {flags:#04x}")));
        }
        input.consume(10);
        let mut crc = crc32fast::Hasher::new();
        crc.update(&header);
        if flags & FEXTRA != 0 {
            let length = [byte(input, &mut crc)?, byte(input, &mut crc)?];
            for _ in 0..u16::from_le_bytes(length) {
                byte(input, &mut crc)?;
            }
        }
        for flag in [FNAME, FCOMMENT] {
            if flags & flag != 0 {
                let mut length = 0;
                while byte(input, &mut crc)? != 0 {
                    length += 1;
                    if length > Self::MAX_TEXT {
                        return Err(ArtifactError::corrupt(PART, at, "a name or comment without end"));
                    }
                }
            }
        }
        if flags & FHCRC != 0 {
            let computed = crc.clone().finalize() as u16;
            let stored = u16::from_le_bytes([byte(input, &mut crc)?, byte(input, &mut crc)?]);
            if stored != computed {
                return Err(ArtifactError::corrupt(PART, at, "the header's CRC does not match"));
            }
        }
        self.inflate.reset(false);
        self.crc = crc32fast::Hasher::new();
        self.length = 0;
        self.in_member = true;
        Ok(true)
    }

    /// Checks the member's trailer against what was unpacked.
    fn finish(&mut self, input: &mut Input<'_, impl Read>) -> Result<(), ArtifactError> {
        let at = input.offset();
        let trailer = input.ensure(8)?;
        if trailer.len() < 8 {
            return Err(ended(at + trailer.len() as u64));
        }
        let (crc, length) = (le32(trailer, 0), le32(trailer, 4));
        input.consume(8);
        if crc != self.crc.clone().finalize() {
            return Err(ArtifactError::corrupt(PART, at, "the CRC does not match"));
        }
        if length != self.length {
            let found = format!("the length is {} where the trailer says {length} (modulo 2^32)", self.length);
            return Err(ArtifactError::corrupt(PART, at + 4, found));
        }
        self.in_member = false;
        self.begun = true;
        Ok(())
    }
}

fn ended(at: u64) -> ArtifactError {
    ArtifactError::truncated(PART, at, "the file ends inside a member")
}

fn byte(input: &mut Input<'_, impl Read>, crc: &mut crc32fast::Hasher) -> Result<u8, ArtifactError> {
    let at = input.offset();
    let byte = input.byte()?.ok_or_else(|| ended(at))?;
    crc.update(&[byte]);
    Ok(byte)
}
