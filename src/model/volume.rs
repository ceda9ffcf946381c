use std::fmt;

use serde::{Deserialize, Serialize};

use super::InvalidValue;

/// How a volume is presented to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum VolumeMode {
    /// A block device.
    Block,
    /// A file system with a disk file in it.
    Filesystem,
}

impl VolumeMode {
    /// Kubernetes' spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Block => "Block",
            Self::Filesystem => "Filesystem",
        }
    }

    /// The mode a text names; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Block, Self::Filesystem].into_iter().find(|mode| mode.as_str() == text)
    }
}

impl fmt::Display for VolumeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for VolumeMode {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        Self::parse(text).ok_or_else(|| InvalidValue::new("volume mode", text, "must be `Block` or `Filesystem`"))
    }
}
