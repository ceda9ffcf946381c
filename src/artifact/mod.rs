//! What bytes are: tells disk images by their content, decodes, verifies and inspects them, and writes deterministic qcow2.
//!
//! All of it blocks: callers run it in `spawn_blocking` or on a thread of its own. It knows no network and no spool, only
//! readers and files. Everything is hostile until verified: time, memory and output are bounded by [`Limits`].
//!
//! - [`Prober`] says from the first bytes of a download what it is and how large the disk inside is.
//! - [`ingest`] turns a downloaded file into a verified qcow2, or says why it is none.
//! - [`LayerProber`] and [`ingest_layer`] do the same for the disk inside a layer of a container image.
//! - [`preview`] and [`preview_layer`] say what the first bytes prove, for whoever looks and does not fetch.
//! - [`Decoder`], [`RawVerifier`] and [`inspect_qcow2`] are its parts, for files inside other files.

mod bytes;
mod container;
mod decode;
mod error;
mod format;
mod ingest;
mod input;
mod limits;
mod preview;
mod probe;
mod qcow2;
mod raw;
mod sniff;
mod zstd_frame;

pub use container::{
    ContainerFault, IngestedLayer, LayerFormat, LayerPreview, LayerProbe, LayerProber, ingest_layer, preview_layer, scan_layer,
};
pub use decode::Decoder;
pub use error::ArtifactError;
pub use format::{Compression, DiskFormat, Format};
pub use ingest::{Ingested, ingest, ingest_stream, output_upper_bound};
pub use limits::{Limits, Watch};
pub use preview::{Preview, preview};
pub use probe::{Probe, Prober};
pub use qcow2::{MAX_RAW_SIZE, Qcow2, inspect_qcow2, qcow2_upper_bound};
pub use raw::{RawDisk, RawKind, RawVerifier};
