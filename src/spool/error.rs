use std::{io, path::PathBuf};

use crate::rules::Reason;

/// Why the spool could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The reservation does not fit, even with everything evicted that may be.
    #[error("the spool has no room: {} more are needed, {} can be had of {}", Mib(*needed), Mib(*available), Mib(*capacity))]
    Full {
        /// Bytes asked for in addition to what is reserved already.
        needed: u64,
        /// Bytes that are free or could be freed now.
        available: u64,
        /// The spool's capacity in bytes.
        capacity: u64,
    },
    /// What is taken in as it comes needs more than the whole spool has, whoever gives up room: it waits for nothing.
    #[error("it takes more than the whole spool of {}, or has no end; `spool.size` sets a larger one", Mib(*whole))]
    Outgrown {
        /// Bytes that the spool has in all.
        whole: u64,
    },
    /// The volume itself is full, whatever the capacity setting says.
    #[error("the spool's volume is full: cannot {action} {}", path.display())]
    VolumeFull {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
    },
    /// The volume fails: I/O error, read-only, permission.
    #[error("the spool cannot {action} {}: {source}", path.display())]
    Failed {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another file system, or none, is now mounted where the spool was.
    #[error("the spool's volume is no longer at {}; mount it again", path.display())]
    Vanished {
        /// The spool's directory.
        path: PathBuf,
    },
    /// A second process wants the same directory.
    #[error("the spool directory {} is in use by another process; give each its own", path.display())]
    InUse {
        /// The spool's directory.
        path: PathBuf,
    },
}

impl SpoolError {
    /// The reason a person is given (R9).
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Outgrown { .. } => Reason::TooLarge,
            Self::Full { .. } | Self::VolumeFull { .. } => Reason::SpoolFull,
            Self::Failed { .. } | Self::Vanished { .. } | Self::InUse { .. } => Reason::SpoolFailed,
        }
    }

    /// Classes what the kernel said while doing `action` to `path`.
    pub fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Self::VolumeFull { action, path },
            _ => Self::Failed { action, path, source },
        }
    }
}

/// Bytes for people: whole mebibytes, rounded up, so that a need is never shown smaller than it is.
struct Mib(u64);

impl std::fmt::Display for Mib {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} MiB", self.0.div_ceil(1 << 20))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::SpoolError;
    use crate::rules::Reason;

    #[test]
    fn a_full_volume_waits_and_a_broken_one_says_so() {
        let of = |errno| SpoolError::io("write", "/spool/x", io::Error::from_raw_os_error(errno)).reason();
        let (enospc, edquot, eio, erofs, estale) = (28, 122, 5, 30, 116);
        for errno in [enospc, edquot] {
            assert_eq!(of(errno), Reason::SpoolFull, "{errno}");
        }
        for errno in [eio, erofs, estale] {
            assert_eq!(of(errno), Reason::SpoolFailed, "{errno}");
        }
    }
}
