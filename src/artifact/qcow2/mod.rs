//! The qcow2 format (`docs/interop/qcow2.rst` of QEMU): its header, the check of a whole file, and a writer.

mod compressed;
mod header;
mod inspect;
mod tables;
mod write;

pub(super) use header::Header;
pub(super) use inspect::inspect_qcow2_head;
pub use inspect::{Qcow2, inspect_qcow2};
pub(super) use write::Writer;
pub use write::{MAX_RAW_SIZE, qcow2_upper_bound};

#[cfg(test)]
pub(super) mod samples;
