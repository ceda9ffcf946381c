use std::io;

use super::ContainerFault;
use crate::rules::Reason;

/// Why bytes are not taken in as a disk. The text says what was looked at, where, and what was found there.
///
/// No variant repeats more than a few characters of what upstream sent, and none of them text.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The bytes are something, but no disk.
    #[error("not a disk image: {found}")]
    NotADiskImage {
        /// What the bytes look like ("an HTML page", "empty").
        found: String,
    },
    /// A disk, or a way to pack one, that is known and not taken.
    #[error("not supported: {what}")]
    Unsupported {
        /// The form, and what to do instead where that is not plain.
        what: String,
    },
    /// The bytes contradict themselves.
    #[error("damaged: {part} at byte {at}: {found}")]
    Corrupt {
        /// Which structure ("qcow2 L2 table", "gzip member").
        part: &'static str,
        /// Where, in bytes of the layer that `part` lives in: of the file as downloaded for a compressed stream, of the
        /// disk for a partition table, of the qcow2 file for its tables.
        at: u64,
        /// What is wrong there.
        found: String,
    },
    /// The bytes stop before their own tables say that they end.
    #[error("truncated: {part} at byte {at}: {found}")]
    Truncated {
        /// Which structure is cut.
        part: &'static str,
        /// Where the bytes end, counted as in [`Self::Corrupt`].
        at: u64,
        /// What is missing.
        found: String,
    },
    /// More than the daemon is willing to unpack.
    #[error("{what} is larger than the limit of {limit} bytes")]
    TooLarge {
        /// What is too large ("the disk").
        what: &'static str,
        /// The limit in bytes.
        limit: u64,
    },
    /// The disk outgrew the room that the caller set aside for it, which says nothing about the disk.
    #[error("the disk needs more room than the {reserved} bytes reserved for it")]
    OverReservation {
        /// The bytes that were reserved.
        reserved: u64,
    },
    /// Reading the input or writing the output failed: the volume's trouble, not the image's.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done ("reading the download").
        doing: &'static str,
        /// What the operating system answered.
        source: io::Error,
    },
    /// The container image has no disk that everyone would take.
    #[error(transparent)]
    Container(#[from] ContainerFault),
    /// The caller asked to stop.
    #[error("stopped on request")]
    Cancelled,
}

impl ArtifactError {
    /// The reason that a condition carries. A full volume is `SpoolFull` and a failing one `SpoolFailed`, never `Corrupt`.
    ///
    /// [`Self::Cancelled`] maps to the neutral `Fetching`: whoever cancelled does not report it.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotADiskImage { .. } => Reason::NotADiskImage,
            Self::Unsupported { .. } => Reason::UnsupportedFormat,
            Self::Corrupt { .. } | Self::Truncated { .. } => Reason::Corrupt,
            Self::TooLarge { .. } => Reason::TooLarge,
            Self::OverReservation { .. } => Reason::SpoolFull,
            Self::Io { source, .. } if is_full(source) => Reason::SpoolFull,
            Self::Io { .. } => Reason::SpoolFailed,
            Self::Container(fault) => fault.reason(),
            Self::Cancelled => Reason::Fetching,
        }
    }

    pub(super) fn not_a_disk(found: impl Into<String>) -> Self {
        Self::NotADiskImage { found: found.into() }
    }

    pub(super) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into() }
    }

    pub(super) fn corrupt(part: &'static str, at: u64, found: impl Into<String>) -> Self {
        Self::Corrupt { part, at, found: found.into() }
    }

    pub(super) fn truncated(part: &'static str, at: u64, found: impl Into<String>) -> Self {
        Self::Truncated { part, at, found: found.into() }
    }

    /// An I/O error, or the `ArtifactError` that a [`super::Decoder`] below this one wrapped into it.
    pub(super) fn io(doing: &'static str, source: io::Error) -> Self {
        match source.downcast::<Self>() {
            Ok(inner) => inner,
            Err(source) => Self::Io { doing, source },
        }
    }

    /// Whether the input only paused, which the prober's prefix does at its end.
    pub(super) fn is_pause(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::WouldBlock)
    }
}

impl From<ArtifactError> for io::Error {
    /// Carries the error through an interface that knows only `io::Error`, such as a tar reader between two decoders.
    fn from(error: ArtifactError) -> Self {
        match error {
            ArtifactError::Io { source, .. } => source,
            other => Self::other(other),
        }
    }
}

/// Whether the volume, or the quota on it, has no room.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::ArtifactError;
    use crate::rules::Reason;

    #[test]
    fn a_full_volume_is_never_called_corrupt() {
        for (errno, reason) in [(28, Reason::SpoolFull), (122, Reason::SpoolFull), (5, Reason::SpoolFailed), (30, Reason::SpoolFailed)] {
            let error = ArtifactError::io("writing the disk", io::Error::from_raw_os_error(errno));
            assert_eq!(error.reason(), reason, "{error}");
            // Also after a trip through a reader in between.
            let error = ArtifactError::io("reading", io::Error::from(error));
            assert_eq!(error.reason(), reason, "{error}");
        }
    }

    #[test]
    fn an_error_survives_the_trip_through_io() {
        let error = io::Error::from(ArtifactError::truncated("gzip member", 7, "no trailer"));
        let error = ArtifactError::io("reading", error);
        assert_eq!(error.to_string(), "truncated: gzip member at byte 7: no trailer");
        assert_eq!(error.reason(), Reason::Corrupt);
    }
}
