//! Container disks: the one disk file in a layer of a container image, told by content and never by media type.

mod fault;
mod find;
mod header;
mod ingest;
mod preview;
mod probe;
#[cfg(test)]
pub(crate) mod samples;
mod sparse;
mod tar;

use std::fmt;

pub use fault::ContainerFault;
pub use ingest::{IngestedLayer, ingest_layer, scan_layer};
pub use preview::{LayerPreview, preview_layer};
pub use probe::{LayerProbe, LayerProber};

use super::{Compression, Format};

/// How a disk is packed in a container image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerFormat {
    /// How its layer is packed.
    pub layer: Option<Compression>,
    /// What the file in it is.
    pub disk: Format,
}

impl fmt::Display for LayerFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = match self.layer {
            None => "tar",
            Some(Compression::Gzip) => "tar.gz",
            Some(Compression::Zstd) => "tar.zst",
            Some(Compression::Xz) => "tar.xz",
        };
        write!(f, "{} in {layer}", self.disk)
    }
}

#[cfg(test)]
mod tests;
