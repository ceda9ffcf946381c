use std::io::{ErrorKind, Read};

use super::{ArtifactError, Watch};

/// A buffered reader that knows where it is, so that errors can say it and progress can be told.
pub(super) struct Input<'w, R> {
    inner: R,
    watch: Watch<'w>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Where `start` lies in the input, in bytes.
    offset: u64,
}

impl<'w, R: Read> Input<'w, R> {
    /// Bytes asked for at a time: large enough that the calls cost nothing, small enough that progress is fine-grained.
    const CAPACITY: usize = 256 << 10;

    pub(super) fn new(inner: R, watch: Watch<'w>) -> Self {
        Self { inner, watch, buffer: vec![0; Self::CAPACITY], start: 0, end: 0, offset: 0 }
    }

    /// Where the next byte lies in the input.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn watch(&self) -> &Watch<'w> {
        &self.watch
    }

    /// What is buffered, after a read where that is nothing; empty only at the end of the input.
    pub(super) fn fill(&mut self) -> Result<&[u8], ArtifactError> {
        self.ensure(1)
    }

    /// At least `wanted` bytes (at most [`Self::CAPACITY`]), fewer only where the input ends.
    pub(super) fn ensure(&mut self, wanted: usize) -> Result<&[u8], ArtifactError> {
        let wanted = wanted.min(self.buffer.len());
        if self.end - self.start < wanted {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            while self.end < wanted && self.read_once()? > 0 {}
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Takes `count` of the buffered bytes.
    pub(super) fn consume(&mut self, count: usize) {
        let count = count.min(self.end - self.start);
        self.start += count;
        self.offset += count as u64;
    }

    /// The next byte, `None` at the end of the input.
    pub(super) fn byte(&mut self) -> Result<Option<u8>, ArtifactError> {
        let byte = self.fill()?.first().copied();
        self.consume(usize::from(byte.is_some()));
        Ok(byte)
    }

    /// Reads past the buffer straight into `out`, once what is buffered has been given out.
    pub(super) fn read_plain(&mut self, out: &mut [u8]) -> Result<usize, ArtifactError> {
        if self.start < self.end {
            let count = out.len().min(self.end - self.start);
            out[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
            self.consume(count);
            return Ok(count);
        }
        self.watch.check()?;
        let count = read(&mut self.inner, out)?;
        self.offset += count as u64;
        self.watch.read(self.offset);
        Ok(count)
    }

    fn read_once(&mut self) -> Result<usize, ArtifactError> {
        self.watch.check()?;
        let count = read(&mut self.inner, &mut self.buffer[self.end..])?;
        self.end += count;
        self.watch.read(self.offset + (self.end - self.start) as u64);
        Ok(count)
    }
}

fn read(inner: &mut impl Read, out: &mut [u8]) -> Result<usize, ArtifactError> {
    loop {
        match inner.read(out) {
            // A reader that claims more than it was asked for would otherwise index out of range.
            Ok(count) => return Ok(count.min(out.len())),
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) => return Err(ArtifactError::io("reading the download", error)),
        }
    }
}
