use crate::{
    model::{Architecture, Digest, in_bytes},
    rules::Reason,
};

/// What is wrong with what a registry served. Where a message repeats something of it, it is cut and without odd characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryFault {
    /// A document beyond the bound.
    #[error("the registry's document is larger than the {limit} bytes that one may have")]
    DocumentTooLarge {
        /// The bound.
        limit: usize,
    },
    /// A document that is not the pinned one.
    #[error("the registry served {} with the digest {found} instead of {expected}", in_bytes(*.size as u64))]
    Mismatch {
        /// The digest that was asked for.
        expected: Digest,
        /// The digest of what came.
        found: Digest,
        /// How many bytes came.
        size: usize,
    },
    /// Neither an index nor a manifest that is understood.
    #[error("the registry's document is neither an image index nor an image manifest: {what}")]
    Unreadable {
        /// What it is.
        what: String,
    },
    /// Something else than an image, kept in a registry.
    #[error("the reference is no container image but an artifact of type {found:?}")]
    Artifact {
        /// Its type.
        found: String,
    },
    /// An image without a configuration, so that nothing says what it is made for.
    #[error("the container image has an empty configuration: {found}")]
    EmptyConfig {
        /// What it has.
        found: String,
    },
    /// An index of signatures and provenance without an image.
    #[error("the index holds {count} attestations and no image")]
    OnlyAttestations {
        /// How many.
        count: usize,
    },
    /// Nothing for this architecture.
    #[error("there is no image for {wanted}: found {found}")]
    WrongArchitecture {
        /// What the entry states.
        wanted: Architecture,
        /// What there is.
        found: String,
    },
    /// No layers.
    #[error("the container image has no layers")]
    NoLayers,
    /// More layers than any image has.
    #[error("the container image has {count} layers; at most {limit} are read")]
    TooManyLayers {
        /// How many.
        count: usize,
        /// The bound.
        limit: usize,
    },
    /// A layer that is not in the registry.
    #[error(
        "a layer is not in the registry but at addresses of its own (`urls`): push the image with all its layers (`skopeo copy` from where they are)"
    )]
    ForeignLayer,
    /// A digest of another kind.
    #[error("the manifest names {found:?}, and only sha256 digests are read: push the image by a tool that writes those")]
    UnsupportedDigest {
        /// The digest.
        found: String,
    },
    /// A layer of another length than its manifest says.
    #[error("the registry announced {} for a layer that has {expected} by its manifest", in_bytes(*.announced))]
    WrongLength {
        /// By the manifest.
        expected: u64,
        /// By the answer.
        announced: u64,
    },
    /// The registry sends credentials where they are not sent.
    #[error("the registry's token service is {realm}: {why}")]
    Realm {
        /// The realm in its public form.
        realm: String,
        /// Why nothing is sent there.
        why: &'static str,
    },
    /// The token service answered, but not with a token.
    #[error("the registry's token service answered without a usable token")]
    NoToken,
}

impl RegistryFault {
    /// The reason that a condition carries.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::DocumentTooLarge { .. } => Reason::ManifestTooLarge,
            Self::Mismatch { .. } => Reason::DigestMismatch,
            // What is left to do about them is the same: to push the image anew.
            Self::Unreadable { .. } | Self::TooManyLayers { .. } | Self::ForeignLayer | Self::UnsupportedDigest { .. } => {
                Reason::InvalidManifest
            }
            Self::Artifact { .. } => Reason::NotAContainerImage,
            Self::EmptyConfig { .. } => Reason::EmptyImageConfig,
            Self::OnlyAttestations { .. } => Reason::OnlyAttestations,
            Self::WrongArchitecture { .. } => Reason::WrongArchitecture,
            Self::NoLayers => Reason::NoDiskFile,
            Self::WrongLength { .. } => Reason::Corrupt,
            Self::Realm { .. } => Reason::EgressRefused,
            Self::NoToken => Reason::Unavailable,
        }
    }

    /// Whether this is about the very bytes that were asked for, so that no other place can have better ones.
    pub(in crate::source) const fn is_about_the_image(&self) -> bool {
        !matches!(
            self,
            Self::DocumentTooLarge { .. } | Self::Mismatch { .. } | Self::WrongLength { .. } | Self::Realm { .. } | Self::NoToken
        )
    }
}
