use std::{
    collections::HashMap,
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use super::{Record, space::Candidate};
use crate::model::{Digest, Identity};

/// What the spool holds, as this process knows it. The files are the truth; a file found missing is dropped from here.
#[derive(Default)]
pub(super) struct State {
    pub(super) disks: HashMap<Digest, Disk>,
    pub(super) records: HashMap<Identity, Record>,
    /// Partial downloads that nobody is working on.
    pub(super) leftovers: HashMap<Identity, Leftover>,
    /// Artifacts being taken in, with the bytes reserved for each: download and disk together.
    pub(super) drafts: HashMap<Identity, u64>,
}

pub(super) struct Disk {
    pub(super) length: u64,
    pub(super) allocated: u64,
    pub(super) hold: Arc<Hold>,
}

#[derive(Clone, Copy)]
pub(super) struct Leftover {
    pub(super) allocated: u64,
    pub(super) last_used: u64,
}

/// Shared by a disk and its leases: while a lease has a copy, the disk is not evicted.
pub(super) struct Hold {
    last_used: AtomicU64,
}

impl Hold {
    pub(super) fn new(last_used: u64) -> Arc<Self> {
        Arc::new(Self { last_used: AtomicU64::new(last_used) })
    }

    pub(super) fn touch(&self) {
        self.last_used.store(now(), Ordering::Relaxed);
    }
}

impl Disk {
    pub(super) fn is_leased(&self) -> bool {
        Arc::strong_count(&self.hold) > 1
    }
}

/// What can be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evictable<'a> {
    Leftover(&'a Identity),
    Disk(Digest),
}

impl State {
    /// Bytes in use: what lies there, and what is promised.
    pub(super) fn used(&self) -> u64 {
        let disks = self.disks.values().map(|disk| disk.allocated);
        let leftovers = self.leftovers.values().map(|leftover| leftover.allocated);
        disks.chain(leftovers).chain(self.drafts.values().copied()).fold(0, u64::saturating_add)
    }

    pub(super) fn evictable(&self) -> Vec<Candidate<Evictable<'_>>> {
        let leftovers = self.leftovers.iter().map(|(identity, leftover)| Candidate {
            key: Evictable::Leftover(identity),
            allocated: leftover.allocated,
            last_used: leftover.last_used,
            worth: 0,
        });
        let disks = self.disks.iter().filter(|(_, disk)| !disk.is_leased()).map(|(digest, disk)| Candidate {
            key: Evictable::Disk(*digest),
            allocated: disk.allocated,
            last_used: disk.hold.last_used.load(Ordering::Relaxed),
            worth: 1,
        });
        leftovers.chain(disks).collect()
    }

    /// The artifacts whose disk is `digest`: several, where their content is the same.
    pub(super) fn owners(&self, digest: &Digest) -> Vec<Identity> {
        self.records.iter().filter(|(_, record)| record.disk.digest == *digest).map(|(identity, _)| identity.clone()).collect()
    }

    /// Forgets a disk and every record of it; gives the identities whose records are to be removed.
    pub(super) fn forget_disk(&mut self, digest: &Digest) -> Vec<Identity> {
        self.disks.remove(digest);
        let owners = self.owners(digest);
        for identity in &owners {
            self.records.remove(identity);
        }
        owners
    }
}

/// A disk that will not be evicted while this lives, open for reading.
///
/// Leases are in memory only: after a restart whoever needs a disk takes a new one.
pub struct Lease {
    digest: Digest,
    length: u64,
    file: Arc<File>,
    hold: Arc<Hold>,
}

impl Lease {
    pub(super) fn new(digest: Digest, length: u64, file: File, hold: Arc<Hold>) -> Self {
        hold.touch();
        Self { digest, length, file: Arc::new(file), hold }
    }

    /// The digest of the qcow2 file.
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// Bytes of the qcow2 file.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// The file, to be read by position.
    pub const fn file(&self) -> &Arc<File> {
        &self.file
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.hold.touch();
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("digest", &self.digest).field("length", &self.length).finish_non_exhaustive()
    }
}

/// Milliseconds since the epoch, for the order of eviction only: a clock that jumps costs a download, never data.
pub(super) fn now() -> u64 {
    millis(SystemTime::now())
}

pub(super) fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
