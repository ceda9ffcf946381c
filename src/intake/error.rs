use std::time::Duration;

use crate::{
    artifact::ArtifactError,
    model::{Digest, DiskSize, in_bytes},
    rules::Reason,
    source::SourceError,
    spool::SpoolError,
};

/// Why an artifact was not taken in. Nothing of it is visible then; what is kept to go on from is not a disk yet.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// Upstream, or the way to it.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// What the bytes are.
    #[error("{error} (from {from})")]
    Artifact {
        /// What is wrong with them.
        error: ArtifactError,
        /// Where they came from, in its public form.
        from: String,
    },
    /// The spool.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The bytes are not the ones that were asked for. They were discarded.
    #[error("{from} served {} with the digest {found} instead of {expected}", in_bytes(*.size))]
    DigestMismatch {
        /// What was asked for.
        expected: Digest,
        /// What came.
        found: Digest,
        /// How many bytes came.
        size: u64,
        /// Where they came from, in its public form.
        from: String,
    },
    /// A target is smaller than the disk.
    #[error("{message}")]
    SizeTooSmall {
        /// Bytes that the disk has.
        virtual_size: DiskSize,
        /// Which target, and what it needs.
        message: String,
    },
    /// Mirrors served bad bytes, and the source itself did not answer: their word alone ends nothing for good.
    #[error("the mirrors served nothing usable, and the source itself did not answer: {last}")]
    MirrorsOnly {
        /// What the last mirror served.
        last: Box<Self>,
    },
    /// The caller asked to stop.
    #[error("stopped on request")]
    Cancelled,
}

impl IntakeError {
    /// The reason a person is given (R9). For [`Self::Cancelled`] the neutral `Fetching`: whoever cancelled reports nothing.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Source(error) => error.reason(),
            Self::Artifact { error, .. } => error.reason(),
            Self::Spool(error) => error.reason(),
            Self::DigestMismatch { .. } => Reason::DigestMismatch,
            Self::SizeTooSmall { .. } => Reason::SizeTooSmall,
            Self::MirrorsOnly { .. } => Reason::Unavailable,
            Self::Cancelled => Reason::Fetching,
        }
    }

    /// How long to wait at least before the next attempt, where upstream said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Source(error) => error.retry_after(),
            _ => None,
        }
    }

    /// Whether this says something about the bytes of the place they came from, so that another place may have better ones.
    pub(super) fn blames_the_bytes(&self) -> bool {
        match self {
            Self::Artifact { error, .. } => {
                let is_container = matches!(error, ArtifactError::Container(_));
                is_container
                    || matches!(error.reason(), Reason::NotADiskImage | Reason::UnsupportedFormat | Reason::Corrupt | Reason::TooLarge)
            }
            Self::DigestMismatch { .. } | Self::Spool(SpoolError::Outgrown { .. }) => true,
            Self::Source(error) => matches!(error.reason(), Reason::Corrupt | Reason::TooLarge) && !error.keeps_received(),
            _ => false,
        }
    }
}
