use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::InvalidValue;

/// The CPU architecture of a disk image, in Go's (and OCI's) spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// x86-64.
    #[default]
    Amd64,
    /// 64-bit Arm.
    Arm64,
}

impl Architecture {
    /// The spelling used by Talos Image Factory, OCI and Kubernetes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Architecture {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "amd64" => Ok(Self::Amd64),
            "arm64" => Ok(Self::Arm64),
            "x86_64" => Err(InvalidValue::new("architecture", text, "write `amd64`")),
            "aarch64" => Err(InvalidValue::new("architecture", text, "write `arm64`")),
            _ => Err(InvalidValue::new("architecture", text, "must be `amd64` or `arm64`")),
        }
    }
}
