use std::{fmt, str::FromStr};

use crate::model::InvalidValue;

/// The form of the disk itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiskFormat {
    /// QEMU's copy-on-write format, version 2 or 3.
    Qcow2,
    /// The bytes of the disk, sector by sector.
    Raw,
}

/// How the file that holds the disk is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// The .xz container (not the older .lzma).
    Xz,
    /// Zstandard, RFC 8878.
    Zstd,
    /// gzip, RFC 1952.
    Gzip,
}

/// What a file is, decided by its content alone. Shown as `qcow2`, `raw`, `raw.xz`, `qcow2.gz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Format {
    /// The form of the disk inside.
    pub disk: DiskFormat,
    /// The packing around it.
    pub compression: Option<Compression>,
}

impl Format {
    /// Every combination.
    pub const ALL: [Self; 8] = {
        const fn of(disk: DiskFormat, compression: Option<Compression>) -> Format {
            Format { disk, compression }
        }
        use Compression::{Gzip, Xz, Zstd};
        use DiskFormat::{Qcow2, Raw};
        [
            of(Qcow2, None),
            of(Qcow2, Some(Xz)),
            of(Qcow2, Some(Zstd)),
            of(Qcow2, Some(Gzip)),
            of(Raw, None),
            of(Raw, Some(Xz)),
            of(Raw, Some(Zstd)),
            of(Raw, Some(Gzip)),
        ]
    };
}

impl fmt::Display for Compression {
    /// The usual file name suffix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Xz => "xz",
            Self::Zstd => "zst",
            Self::Gzip => "gz",
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.disk {
            DiskFormat::Qcow2 => "qcow2",
            DiskFormat::Raw => "raw",
        })?;
        match self.compression {
            Some(compression) => write!(f, ".{compression}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Format {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let known = Self::ALL.into_iter().find(|format| format.to_string() == text);
        known.ok_or_else(|| {
            InvalidValue::new("disk format", text, "must be `qcow2` or `raw`, with `.xz`, `.zst`, `.gz` or nothing after it")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Format;

    #[test]
    fn reads_back_what_it_shows() {
        for format in Format::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        for bad in ["", "raw.", "raw.bz2", "vmdk", "raw.xz.xz", "RAW"] {
            assert!(bad.parse::<Format>().is_err(), "{bad}");
        }
    }
}
