use crate::rules::Reason;

/// Why a container image is no container disk. Names of files are shown escaped and cut.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContainerFault {
    /// Nothing under `disk/`.
    #[error("the container image holds no file under `disk/`: {found}")]
    None {
        /// What was found in its place.
        found: String,
    },
    /// More than one file under `disk/`.
    #[error("the container image holds more than one file under `disk/`: {first} and {second}")]
    Several {
        /// The first.
        first: String,
        /// The next.
        second: String,
    },
    /// A link in the disk's place.
    #[error("the container image holds the {kind} {name} in the disk's place: the file itself must lie under `disk/`")]
    Linked {
        /// Its path.
        name: String,
        /// Which kind of link.
        kind: &'static str,
    },
    /// The disk's holes are left out by tar, in a form that KubeVirt and CDI would not fill in.
    #[error(
        "the disk {name} is stored as a sparse file of tar in an unknown form: build the image with the whole file, a qcow2, or GNU tar's form 1.0"
    )]
    Sparse {
        /// Its path.
        name: String,
    },
    /// KubeVirt and CDI would take different files.
    #[error("the container image's disk is not the same for everyone: {what}")]
    Ambiguous {
        /// What was found.
        what: String,
    },
}

impl ContainerFault {
    /// The reason that a condition carries.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::None { .. } => Reason::NoDiskFile,
            Self::Several { .. } => Reason::SeveralDiskFiles,
            Self::Linked { .. } => Reason::LinkedDiskFile,
            Self::Sparse { .. } => Reason::UnsupportedFormat,
            Self::Ambiguous { .. } => Reason::AmbiguousDiskFile,
        }
    }
}
