//! Reading a tar without trusting it: headers, the PAX and GNU extensions that name and size an entry, and its data.
//!
//! It reads as Go's `archive/tar` does, since that is what container runtimes, KubeVirt and CDI read layers with: where
//! two readers disagree about where an entry ends, one of them can be shown a file that the other does not see. What a
//! layer of a container image does not hold (archives over several volumes) is said, not guessed.

use std::io::Read;

use super::{
    header::{Header, Kind, Records, header_only, kind, number, until_zero},
    sparse::{self, Form, Map, Step},
};
use crate::{artifact::ArtifactError, model::in_bytes};

/// Bytes of a block; headers are one, data is padded to whole ones.
pub(super) const BLOCK: usize = 512;

/// The most bytes of an extension header that are read, as in Go's reader.
const LONGEST_EXTENSION: u64 = 1 << 20;

/// The most entries of one archive: far beyond any operating system's files.
const MOST_ENTRIES: u64 = 4 << 20;

/// One entry's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The path as it stands in the archive.
    pub path: Vec<u8>,
    pub kind: Kind,
    /// Bytes of data, holes among them.
    pub size: u64,
}

/// An archive that is read from its start to its end, once.
pub(super) struct Tar<R> {
    inner: R,
    /// Where the next byte lies in the archive.
    offset: u64,
    /// Stored bytes of the present entry's data that have not been read, and the padding after them.
    data: u64,
    padding: u64,
    /// Where they belong, when there are holes between them.
    map: Option<Map>,
    entries: u64,
    ended: bool,
}

impl<R: Read> Tar<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, offset: 0, data: 0, padding: 0, map: None, entries: 0, ended: false }
    }

    /// The next entry; `None` at the end of the archive. What is left of the entry before is skipped.
    pub fn next(&mut self) -> Result<Option<Entry>, ArtifactError> {
        if self.ended {
            return Ok(None);
        }
        let (mut long_path, mut records) = (None::<Vec<u8>>, Records::default());
        loop {
            self.skip()?;
            self.entries += 1;
            if self.entries > MOST_ENTRIES {
                return Err(ArtifactError::TooLarge { what: "the number of files in the layer", limit: MOST_ENTRIES });
            }
            let at = self.offset;
            let Some(block) = self.block()? else {
                self.ended = true;
                return Ok(None);
            };
            let header = Header(&block);
            header.check().map_err(|found| ArtifactError::corrupt("tar header", at, found))?;
            let corrupt = |found: &str| ArtifactError::corrupt("tar header", at, found);
            let stated = header.size().ok_or_else(|| corrupt("its size is no number"))?;
            match block[156] {
                b'x' => records = Records::parse(&self.extension(stated, at)?).ok_or_else(|| corrupt("its PAX records cannot be read"))?,
                // Go's reader gives it out as an entry of its own and applies none of it.
                b'g' => drop(self.extension(stated, at)?),
                b'L' => long_path = Some(until_zero(&self.extension(stated, at)?).to_vec()),
                b'K' => drop(self.extension(stated, at)?),
                b'M' => return Err(ArtifactError::unsupported("a tar archive over several volumes; build the image anew")),
                flag => return self.entry(&header, flag, stated, long_path, records, at).map(Some),
            }
        }
    }

    /// The entry that a header begins, with the extensions that stood before it.
    fn entry(
        &mut self,
        header: &Header<'_>,
        flag: u8,
        stated: u64,
        long_path: Option<Vec<u8>>,
        records: Records,
        at: u64,
    ) -> Result<Entry, ArtifactError> {
        let corrupt = |found: &str| ArtifactError::corrupt("tar header", at, found);
        let stored = if header_only(flag) { 0 } else { records.size.unwrap_or(stated) };
        let form = records.sparse.form();
        // The older extension comes last, as in Go's reader.
        let mut path = long_path.filter(|path| !path.is_empty()).or(records.path).unwrap_or_else(|| header.path());
        let misfit = || corrupt("the map of a sparse file does not fit the file");
        self.data = stored;
        self.padding = stored.wrapping_neg() % BLOCK as u64;
        let map = match form {
            _ if flag == b'S' => {
                let pieces = self.old_map(header)?;
                let size = header.real_size().ok_or_else(|| corrupt("the size of a sparse file is no number"))?;
                Some(Map::new(pieces, size, stored).ok_or_else(misfit)?)
            }
            Form::Plain | Form::Unknown => None,
            _ if header_only(flag) => return Err(corrupt("a sparse file that is no file")),
            Form::InRecords | Form::InData => {
                path = records.sparse.name().unwrap_or(path);
                let size = records.sparse.size(stored).ok_or_else(|| corrupt("the size of a sparse file is no number"))?;
                let map = match form {
                    Form::InRecords => records.sparse.map().and_then(|pieces| Map::new(pieces, size, stored)),
                    _ => {
                        let pieces = self.map_in_data(at)?;
                        Map::new(pieces, size, self.data)
                    }
                };
                Some(map.ok_or_else(misfit)?)
            }
        };
        let kind = kind(flag, &path, form == Form::Unknown);
        let size = map.as_ref().map_or(stored, Map::size);
        self.map = map;
        Ok(Entry { path, kind, size })
    }

    /// Some of the present entry's data; 0 at its end. Holes are zeros.
    pub fn read_data(&mut self, out: &mut [u8]) -> Result<usize, ArtifactError> {
        let count = match self.map.as_mut().map(|map| map.step(out.len())) {
            None => return self.read_stored(out),
            Some(Step::End) => return Ok(0),
            Some(Step::Hole(count)) => {
                out[..count].fill(0);
                count
            }
            Some(Step::Stored(count)) => self.read_stored(&mut out[..count])?,
        };
        if let Some(map) = &mut self.map {
            map.advance(count);
        }
        Ok(count)
    }

    fn read_stored(&mut self, out: &mut [u8]) -> Result<usize, ArtifactError> {
        let wanted = usize::try_from(self.data).unwrap_or(usize::MAX).min(out.len());
        if wanted == 0 {
            return Ok(0);
        }
        let count = read(&mut self.inner, &mut out[..wanted])?;
        if count == 0 {
            return Err(ArtifactError::truncated("tar entry", self.offset, format!("{} of it missing", in_bytes(self.data))));
        }
        self.data -= count as u64;
        self.offset += count as u64;
        Ok(count)
    }

    /// Reads to the end of what the archive is read from, so that whoever decodes it has checked all of it. What follows the
    /// end of the archive is nobody's: no reader looks at it.
    pub fn drain(&mut self) -> Result<(), ArtifactError> {
        let mut buffer = vec![0; 64 << 10];
        while read(&mut self.inner, &mut buffer)? > 0 {}
        Ok(())
    }

    /// Skips to the next header.
    fn skip(&mut self) -> Result<(), ArtifactError> {
        let mut left = self.data.saturating_add(self.padding);
        (self.data, self.padding, self.map) = (0, 0, None);
        let mut buffer = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(64 << 10)];
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            match read(&mut self.inner, &mut buffer[..wanted])? {
                0 => return Err(ArtifactError::truncated("tar entry", self.offset, format!("{} of it missing", in_bytes(left)))),
                count => {
                    left -= count as u64;
                    self.offset += count as u64;
                }
            }
        }
        Ok(())
    }

    /// The next header block; `None` at the end: two blocks of zeros, or nothing more, which Go's reader takes too.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, ArtifactError> {
        let at = self.offset;
        let Some(block) = self.whole_block()? else { return Ok(None) };
        if block.iter().any(|byte| *byte != 0) {
            return Ok(Some(block));
        }
        match self.whole_block()? {
            Some(second) if second.iter().any(|byte| *byte != 0) => {
                Err(ArtifactError::corrupt("tar header", at, "one block of zeros where two end an archive"))
            }
            _ => Ok(None),
        }
    }

    fn whole_block(&mut self) -> Result<Option<[u8; BLOCK]>, ArtifactError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match read(&mut self.inner, &mut block[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => {
                    return Err(ArtifactError::truncated(
                        "tar header",
                        self.offset,
                        format!("it has {} instead of 512", in_bytes(filled as u64)),
                    ));
                }
                count => filled += count,
            }
        }
        self.offset += BLOCK as u64;
        Ok(Some(block))
    }

    /// The data of an extension header, which is kept in memory.
    fn extension(&mut self, size: u64, at: u64) -> Result<Vec<u8>, ArtifactError> {
        if size > LONGEST_EXTENSION {
            return Err(ArtifactError::corrupt("tar header", at, format!("an extension of {size} bytes; {LONGEST_EXTENSION} are allowed")));
        }
        let mut data = vec![0; usize::try_from(size).unwrap_or_default()];
        (self.data, self.padding) = (size, size.wrapping_neg() % BLOCK as u64);
        let mut filled = 0;
        while filled < data.len() {
            filled += self.read_stored(&mut data[filled..])?;
        }
        Ok(data)
    }

    /// The map of GNU's old sparse form, which goes on in further blocks between header and data.
    fn old_map(&mut self, header: &Header<'_>) -> Result<Vec<sparse::Piece>, ArtifactError> {
        let at = self.offset;
        let corrupt = |found: &str| ArtifactError::corrupt("tar header", at, found);
        if !header.is_gnu() {
            return Err(corrupt("a sparse file in a form that is not GNU's"));
        }
        let no_number = || corrupt("the map of a sparse file is no list of numbers");
        let mut pieces = sparse::old_pieces(header.0, 386, 96, number).ok_or_else(no_number)?;
        let (mut more, mut blocks) = (header.0[482] != 0, 0);
        while more {
            blocks += 1;
            if blocks * BLOCK as u64 > LONGEST_EXTENSION {
                return Err(corrupt("the map of a sparse file is too long"));
            }
            let Some(block) = self.whole_block()? else {
                return Err(ArtifactError::truncated("tar header", self.offset, "the map of a sparse file is missing"));
            };
            pieces.extend(sparse::old_pieces(&block, 0, 504, number).ok_or_else(no_number)?);
            more = block[504] != 0;
        }
        Ok(pieces)
    }

    /// The map that stands in front of a sparse file's data: how many pieces, then the offset and length of each, a line a
    /// number, to the end of a block.
    fn map_in_data(&mut self, at: u64) -> Result<Vec<sparse::Piece>, ArtifactError> {
        let corrupt = || ArtifactError::corrupt("tar entry", at, "the map of a sparse file is no list of numbers");
        let (mut numbers, mut line, mut wanted) = (Vec::new(), Vec::new(), None);
        for _ in 0..LONGEST_EXTENSION / BLOCK as u64 {
            let mut block = [0; BLOCK];
            let mut filled = 0;
            while filled < BLOCK {
                match self.read_stored(&mut block[filled..])? {
                    0 => return Err(corrupt()),
                    count => filled += count,
                }
            }
            for byte in block {
                if wanted == Some(numbers.len() as u64) {
                    break;
                }
                if byte != b'\n' {
                    line.push(byte);
                    continue;
                }
                let number = sparse::decimal(&line).ok_or_else(corrupt)?;
                line.clear();
                match wanted {
                    None => wanted = Some(number.checked_mul(2).filter(|count| *count <= sparse::MOST_NUMBERS).ok_or_else(corrupt)?),
                    Some(_) => numbers.push(number),
                }
            }
            if wanted == Some(numbers.len() as u64) {
                return Ok(sparse::pieces(&numbers));
            }
        }
        Err(corrupt())
    }
}

/// Reads, or says what the decoder below said.
fn read(inner: &mut impl Read, out: &mut [u8]) -> Result<usize, ArtifactError> {
    loop {
        match inner.read(out) {
            Ok(count) => return Ok(count.min(out.len())),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => (),
            Err(error) => return Err(ArtifactError::io("reading the layer", error)),
        }
    }
}

#[cfg(test)]
#[path = "tar_tests.rs"]
mod tests;
