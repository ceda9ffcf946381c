//! What a raw disk must look like.

mod filesystem;
mod gpt;
mod layout;
mod mbr;
mod verify;

pub use layout::RawKind;
pub(super) use layout::{HEAD_LEN, Layout};
pub use verify::{RawDisk, RawVerifier};

#[cfg(test)]
pub(super) mod samples;
