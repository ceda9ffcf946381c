//! Reading a tar without trusting it: headers, the PAX and GNU extensions that name and size an entry, and its data.
//!
//! It reads as Go's `archive/tar` does, since that is what container runtimes, KubeVirt and CDI read layers with: where
//! two readers disagree about where an entry ends, one of them can be shown a file that the other does not see. What a
//! layer of a container image does not hold (sparse files, archives over several volumes) is said, not guessed.

use std::io::Read;

use crate::artifact::ArtifactError;

/// Bytes of a block; headers are one, data is padded to whole ones.
pub(super) const BLOCK: usize = 512;

/// The most bytes of an extension header that are read, as in Go's reader.
const LONGEST_EXTENSION: u64 = 1 << 20;

/// The most entries of one archive: far beyond any operating system's files.
const MOST_ENTRIES: u64 = 4 << 20;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file with its bytes.
    File,
    /// A file whose holes are left out, in one of the GNU forms.
    Sparse,
    /// A folder.
    Folder,
    /// A second name of another entry.
    HardLink,
    /// A pointer to another path.
    SymbolicLink,
    /// A device, a pipe, or something newer than this reader.
    Other,
}

/// One entry's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The path as it stands in the archive.
    pub path: Vec<u8>,
    pub kind: Kind,
    /// Bytes of data that follow.
    pub size: u64,
}

/// An archive that is read from its start to its end, once.
pub(super) struct Tar<R> {
    inner: R,
    /// Where the next byte lies in the archive.
    offset: u64,
    /// Bytes of the present entry's data that have not been read, and the padding after them.
    data: u64,
    padding: u64,
    entries: u64,
    ended: bool,
}

impl<R: Read> Tar<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, offset: 0, data: 0, padding: 0, entries: 0, ended: false }
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
                flag => {
                    let path = records.path.take().or(long_path).unwrap_or_else(|| header.path());
                    let kind = kind(flag, &path, records.is_sparse);
                    let size = if header_only(flag) { 0 } else { records.size.unwrap_or(stated) };
                    if flag == b'S' {
                        self.skip_sparse_map(&block)?;
                    }
                    self.data = size;
                    self.padding = size.wrapping_neg() % BLOCK as u64;
                    return Ok(Some(Entry { path, kind, size }));
                }
            }
        }
    }

    /// Some of the present entry's data; 0 at its end.
    pub fn read_data(&mut self, out: &mut [u8]) -> Result<usize, ArtifactError> {
        let wanted = usize::try_from(self.data).unwrap_or(usize::MAX).min(out.len());
        if wanted == 0 {
            return Ok(0);
        }
        let count = read(&mut self.inner, &mut out[..wanted])?;
        if count == 0 {
            return Err(ArtifactError::truncated("tar entry", self.offset, format!("{} bytes of it are missing", self.data)));
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
        (self.data, self.padding) = (0, 0);
        let mut buffer = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(64 << 10)];
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            match read(&mut self.inner, &mut buffer[..wanted])? {
                0 => return Err(ArtifactError::truncated("tar entry", self.offset, format!("{left} bytes of it are missing"))),
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
                0 => return Err(ArtifactError::truncated("tar header", self.offset, format!("it has {filled} bytes instead of 512"))),
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
            filled += self.read_data(&mut data[filled..])?;
        }
        Ok(data)
    }

    /// GNU's old sparse form goes on with map blocks between header and data.
    fn skip_sparse_map(&mut self, header: &[u8; BLOCK]) -> Result<(), ArtifactError> {
        let mut more = header[482] != 0;
        while more {
            let Some(block) = self.whole_block()? else {
                return Err(ArtifactError::truncated("tar header", self.offset, "the map of a sparse file is missing"));
            };
            more = block[504] != 0;
        }
        Ok(())
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

/// The kind of an entry with this type flag.
fn kind(flag: u8, path: &[u8], is_sparse: bool) -> Kind {
    match flag {
        b'S' => Kind::Sparse,
        // The form before POSIX told a folder by its name's end.
        b'0' | 0 | b'7' if path.ends_with(b"/") => Kind::Folder,
        b'0' | 0 | b'7' if is_sparse => Kind::Sparse,
        b'0' | 0 | b'7' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::SymbolicLink,
        b'5' => Kind::Folder,
        _ => Kind::Other,
    }
}

/// Whether an entry of this type has no data, whatever its size says.
const fn header_only(flag: u8) -> bool {
    matches!(flag, b'1'..=b'6')
}

/// The records of a PAX header that matter here.
#[derive(Debug, Default, PartialEq, Eq)]
struct Records {
    path: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
}

impl Records {
    /// Reads `<length> <key>=<value>\n` until the end.
    fn parse(mut data: &[u8]) -> Option<Self> {
        let mut records = Self::default();
        while !data.is_empty() {
            let space = data.iter().position(|byte| *byte == b' ')?;
            let digits = std::str::from_utf8(&data[..space]).ok().filter(|text| text.bytes().all(|c| c.is_ascii_digit()))?;
            let length: usize = digits.parse().ok().filter(|length| *length > space + 1 && *length <= data.len())?;
            let record = data[space + 1..length].strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                // An empty value takes the record back, as in Go's reader.
                b"path" => records.path = (!value.is_empty()).then(|| value.to_vec()),
                b"size" if value.is_empty() => records.size = None,
                b"size" => {
                    let text = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|c| c.is_ascii_digit()))?;
                    records.size = Some(text.parse().ok().filter(|size| *size <= i64::MAX as u64)?);
                }
                key if key.starts_with(b"GNU.sparse.") => records.is_sparse = true,
                _ => {}
            }
            data = &data[length..];
        }
        // A path with a zero in it ends there for some readers and not for others.
        records.path.as_ref().is_none_or(|path| !path.contains(&0)).then_some(records)
    }
}

/// A header block.
struct Header<'a>(&'a [u8; BLOCK]);

impl Header<'_> {
    /// Whether the checksum is right, by either way of counting bytes.
    fn check(&self) -> Result<(), &'static str> {
        let stated = octal(&self.0[148..156]).ok_or("its checksum is no number")?;
        let byte = |(at, byte): (usize, &u8)| if (148..156).contains(&at) { b' ' } else { *byte };
        let unsigned: u64 = self.0.iter().enumerate().map(byte).map(u64::from).sum();
        let signed: i64 = self.0.iter().enumerate().map(byte).map(|byte| i64::from(byte as i8)).sum();
        if stated == unsigned || i64::try_from(stated) == Ok(signed) {
            Ok(())
        } else {
            Err("its checksum is wrong: this is no tar archive, or it is damaged")
        }
    }

    /// The size: octal, or binary where the first bit is set (GNU, for what octal cannot hold).
    fn size(&self) -> Option<u64> {
        let field = &self.0[124..136];
        if field[0] & 0x80 == 0 {
            return octal(field);
        }
        // A negative number is no size.
        if field[0] & 0x40 != 0 || field[..4].iter().enumerate().any(|(at, byte)| *byte != if at == 0 { 0x80 } else { 0 }) {
            return None;
        }
        field[4..].try_into().ok().map(u64::from_be_bytes).filter(|size| *size <= i64::MAX as u64)
    }

    /// The path by the fields of this header alone.
    fn path(&self) -> Vec<u8> {
        let name = until_zero(&self.0[..100]);
        // GNU's form uses the place of the prefix for other things.
        if &self.0[257..263] != b"ustar\0" {
            return name.to_vec();
        }
        let is_star = &self.0[508..512] == b"tar\0";
        let prefix = until_zero(&self.0[345..if is_star { 476 } else { 500 }]);
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }
}

/// An octal number between spaces and zeros; an empty field is 0, as in Go's reader.
fn octal(field: &[u8]) -> Option<u64> {
    let trimmed: &[u8] = {
        let start = field.iter().position(|byte| !matches!(byte, b' ' | 0)).unwrap_or(field.len());
        let end = field.iter().rposition(|byte| !matches!(byte, b' ' | 0)).map_or(start, |at| at + 1);
        &field[start..end]
    };
    trimmed.iter().try_fold(0_u64, |sum, byte| match byte {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

fn until_zero(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
#[path = "tar_tests.rs"]
mod tests;
