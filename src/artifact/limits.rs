use std::{
    num::NonZero,
    sync::atomic::{AtomicBool, Ordering},
};

use super::ArtifactError;

/// What one intake may use. Everything a hostile file could ask for is bounded by one of these.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The largest virtual disk, in bytes; also the most that is ever unpacked. Above it: `TooLarge`.
    pub max_virtual_size: u64,
    /// The most bytes that the output file may get, as reserved in the spool. Above it: `OverReservation`.
    pub reserved: u64,
    /// The most memory that the xz decoder may take, in bytes. `xz -9` needs 65 MiB to decode; a file that needs more is
    /// refused, and blocks too large to be decoded side by side within it are decoded one after the other.
    pub xz_memory: u64,
    /// The largest zstd window, in bytes. `zstd -19` needs 8 MiB, `--ultra -22` 128 MiB; `--long=31` would need 2 GiB.
    pub zstd_window: u64,
    /// The most threads that decode xz blocks side by side.
    pub threads: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_virtual_size: 1 << 40,
            reserved: u64::MAX,
            xz_memory: 256 << 20,
            zstd_window: 128 << 20,
            threads: std::thread::available_parallelism().map_or(1, NonZero::get).min(4) as u32,
        }
    }
}

/// The two strings between an intake and whoever started it: how far it is, and whether it should stop.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Called with the bytes of the input that have been read so far, at least once a mebibyte; for a plain qcow2 with
    /// the bytes of its tables. While the disk that was written is read back, with the same number once more for each
    /// mebibyte. Called on the thread that called in.
    pub progress: &'a dyn Fn(u64),
    /// Once true, the work ends with [`ArtifactError::Cancelled`] within about a mebibyte.
    pub cancel: &'a AtomicBool,
}

impl Watch<'static> {
    /// A watch that nobody looks at and that never stops.
    pub fn idle() -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Self { progress: &|_| (), cancel: &NEVER }
    }
}

impl Watch<'_> {
    /// Says how far the work is.
    pub(super) fn read(&self, bytes: u64) {
        (self.progress)(bytes);
    }

    /// Fails once the caller wants to stop.
    pub(super) fn check(&self) -> Result<(), ArtifactError> {
        if self.cancel.load(Ordering::Relaxed) { Err(ArtifactError::Cancelled) } else { Ok(()) }
    }
}
