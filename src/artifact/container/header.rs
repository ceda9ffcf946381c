//! What the header of an entry says, and the PAX records before it.

use super::{sparse, tar::BLOCK};

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file with its bytes.
    File,
    /// A file whose holes are left out, in a form that no reader fills in.
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

/// The kind of an entry with this type flag.
pub(super) fn kind(flag: u8, path: &[u8], is_unknown: bool) -> Kind {
    match flag {
        // The form before POSIX told a folder by its name's end.
        0 if path.ends_with(b"/") => Kind::Folder,
        b'0' | 0 | b'7' if is_unknown => Kind::Sparse,
        b'0' | 0 | b'7' | b'S' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::SymbolicLink,
        b'5' => Kind::Folder,
        _ => Kind::Other,
    }
}

/// Whether an entry of this type has no data, whatever its size says.
pub(super) const fn header_only(flag: u8) -> bool {
    matches!(flag, b'1'..=b'6')
}

/// The records of a PAX header that matter here.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Records {
    pub path: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub sparse: sparse::Records,
}

impl Records {
    /// Reads `<length> <key>=<value>\n` until the end.
    pub fn parse(mut data: &[u8]) -> Option<Self> {
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
                b"size" => records.size = Some(sparse::decimal(value)?),
                _ => {
                    if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                        records.sparse.take(key, value)?;
                    }
                }
            }
            data = &data[length..];
        }
        // A path with a zero in it ends there for some readers and not for others.
        records.path.as_ref().is_none_or(|path| !path.contains(&0)).then_some(records)
    }
}

/// A header block.
pub(super) struct Header<'a>(pub &'a [u8; BLOCK]);

impl Header<'_> {
    /// Whether the checksum is right, by either way of counting bytes.
    pub fn check(&self) -> Result<(), &'static str> {
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

    /// The bytes that are stored.
    pub fn size(&self) -> Option<u64> {
        number(&self.0[124..136])
    }

    /// The size that a file of GNU's old sparse form has with its holes.
    pub fn real_size(&self) -> Option<u64> {
        number(&self.0[483..495])
    }

    pub fn is_gnu(&self) -> bool {
        &self.0[257..265] == b"ustar  \0"
    }

    /// The path by the fields of this header alone.
    pub fn path(&self) -> Vec<u8> {
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

/// A number of a header: octal, or binary where the first bit is set (GNU, for what octal cannot hold).
pub(super) fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 == 0 {
        return octal(field);
    }
    let (high, low) = field.split_at(field.len().checked_sub(8)?);
    // A negative number is no size.
    if field[0] & 0x40 != 0 || high.iter().enumerate().any(|(at, byte)| *byte != if at == 0 { 0x80 } else { 0 }) {
        return None;
    }
    low.try_into().ok().map(u64::from_be_bytes).filter(|number| *number <= i64::MAX as u64)
}

/// An octal number between spaces and zeros; an empty field is 0, as in Go's reader.
pub(super) fn octal(field: &[u8]) -> Option<u64> {
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

pub(super) fn until_zero(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}
