//! Files whose holes tar leaves out, in the four forms that Go's `archive/tar` reads and that GNU tar writes: the old one in
//! header blocks, 0.0 and 0.1 in PAX records, 1.0 in front of the data.

use std::collections::BTreeMap;

use super::tar::BLOCK;

/// The most numbers that a map in front of the data may state: what a mebibyte has room for.
pub(super) const MOST_NUMBERS: u64 = 1 << 19;

/// Bytes of a file that are stored; all others are zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub offset: u64,
    pub length: u64,
}

impl Piece {
    const fn end(self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// Where a file's stored bytes belong, and how far it has been read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Map {
    pieces: Vec<Piece>,
    next: usize,
    at: u64,
    size: u64,
}

/// What comes next of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// This many zeros.
    Hole(usize),
    /// This many stored bytes, or fewer.
    Stored(usize),
    End,
}

impl Map {
    /// A file of `size` bytes of which `stored` are in the archive, in these pieces; `None` where that does not add up.
    pub fn new(pieces: Vec<Piece>, size: u64, stored: u64) -> Option<Self> {
        let (mut end, mut sum) = (0, 0_u64);
        for piece in &pieces {
            if piece.offset < end || piece.offset.checked_add(piece.length)? > size {
                return None;
            }
            end = piece.end();
            sum += piece.length;
        }
        (sum == stored && size <= i64::MAX as u64).then_some(Self { pieces, next: 0, at: 0, size })
    }

    /// How large the file is.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// What comes next, at most `room` bytes of it.
    pub fn step(&mut self, room: usize) -> Step {
        while self.pieces.get(self.next).is_some_and(|piece| piece.end() <= self.at) {
            self.next += 1;
        }
        let (end, is_stored) = match self.pieces.get(self.next) {
            Some(piece) if piece.offset <= self.at => (piece.end(), true),
            Some(piece) => (piece.offset, false),
            None => (self.size, false),
        };
        let count = usize::try_from(end - self.at).unwrap_or(usize::MAX).min(room);
        match (count, is_stored) {
            (0, _) => Step::End,
            (count, true) => Step::Stored(count),
            (count, false) => Step::Hole(count),
        }
    }

    /// That many bytes were given out.
    pub fn advance(&mut self, count: usize) {
        self.at += count as u64;
    }
}

/// Pairs of an offset and a length.
pub(super) fn pieces(numbers: &[u64]) -> Vec<Piece> {
    numbers.chunks_exact(2).map(|pair| Piece { offset: pair[0], length: pair[1] }).collect()
}

/// A decimal number, as records and maps have them.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok().filter(|number| *number <= i64::MAX as u64)
}

/// Which form PAX records state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// None: the file is as it is stored.
    Plain,
    /// The map is in the records.
    InRecords,
    /// The map stands in front of the data.
    InData,
    /// One that Go's reader does not know and takes for a plain file, map and all.
    Unknown,
}

/// The records of a PAX header whose names begin with `GNU.sparse.`, which is left out here.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Records {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Form 0.0 repeats a record for each offset and each length.
    pairs: Vec<u64>,
}

impl Records {
    /// Takes a record; `None` where it stands in a wrong place or is no number.
    pub fn take(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match (key, self.pairs.len() % 2) {
            (b"offset", 0) | (b"numbytes", 1) => self.pairs.push(decimal(value)?),
            (b"offset" | b"numbytes", _) => return None,
            _ => drop(self.values.insert(key.to_vec(), value.to_vec())),
        }
        Some(())
    }

    fn value(&self, key: &[u8]) -> &[u8] {
        self.values.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// Which form they state.
    pub fn form(&self) -> Form {
        let has_map = !self.pairs.is_empty() || !self.value(b"map").is_empty();
        match (self.value(b"major"), self.value(b"minor")) {
            (b"0", b"0" | b"1") => Form::InRecords,
            (b"1", b"0") => Form::InData,
            (b"", b"") if has_map => Form::InRecords,
            (b"", b"") if self.values.is_empty() => Form::Plain,
            _ => Form::Unknown,
        }
    }

    /// The file's name, where they state one.
    pub fn name(&self) -> Option<Vec<u8>> {
        Some(self.value(b"name")).filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
    }

    /// The file's size with its holes, or what the header says; `None` where it is no number.
    pub fn size(&self, header: u64) -> Option<u64> {
        match [b"size".as_slice(), b"realsize"].map(|key| self.value(key)).into_iter().find(|text| !text.is_empty()) {
            Some(text) => decimal(text),
            None => Some(header),
        }
    }

    /// The map of [`Form::InRecords`]; `None` where it is none, or not as long as they say.
    pub fn map(&self) -> Option<Vec<Piece>> {
        let numbers = match (self.pairs.as_slice(), self.value(b"map")) {
            ([], b"") => Vec::new(),
            ([], text) => text.split(|byte| *byte == b',').map(decimal).collect::<Option<_>>()?,
            (pairs, _) => pairs.to_vec(),
        };
        (numbers.len() % 2 == 0 && decimal(self.value(b"numblocks")) == Some(numbers.len() as u64 / 2)).then(|| pieces(&numbers))
    }
}

/// The pieces that a block of the old form states: as many as `room` bytes from `at` on hold, up to the first empty one.
/// `None` where a number is none.
pub(super) fn old_pieces(block: &[u8; BLOCK], at: usize, room: usize, number: fn(&[u8]) -> Option<u64>) -> Option<Vec<Piece>> {
    let entries = block[at..at + room].chunks_exact(24).take_while(|entry| entry[0] != 0);
    entries.map(|entry| Some(Piece { offset: number(&entry[..12])?, length: number(&entry[12..])? })).collect()
}

#[cfg(test)]
#[path = "sparse_tests.rs"]
mod tests;
