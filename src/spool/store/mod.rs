//! The store of verified disks: a directory with a capacity, owned by one process.
//!
//! ```text
//! spool.lock               marks the directory; locked by its owner
//! partial/<identity>/      a download: `about.json` (validators), `data` (bytes so far)
//! work/<identity>.qcow2    the disk being decoded from it
//! disks/<sha256>.qcow2     verified disks, whole and durable
//! records/<identity>.json  which disk an artifact became, and what is known of it
//! ```
//!
//! Taking an artifact in goes through these steps. After a kill between any two of them, the next process finds the
//! artifact again at the step named, and fetches no byte that it has.
//!
//! | step | killed after it |
//! |---|---|
//! | 1. `about.json` written, synced, renamed; folders synced | an empty download: removed |
//! | 2. `data` grows; now and then synced, then `about.json` says how far | rehashed and gone on with, if upstream can |
//! | 3. `data` synced; `about.json` says it is complete, with its digest | rehashed, verified, decoded again; nothing fetched |
//! | 4. `work` file written by the decoder and synced | removed, as after 3 |
//! | 5. `disks` entry *linked* to `data` or to the `work` file; `disks` synced | a disk without record: removed; as after 3, because the link left `data` where it was |
//! | 6. record written, synced, renamed; `records` synced | found by its record: done |
//! | 7. `work` file and `partial` folder removed | done |
//!
//! A record is written only once its disk is durable, so a record never names a disk that is not whole. Eviction removes
//! the disk first: a record without its disk is removed at the next start, a disk without record cannot arise from it.

mod draft;
mod layout;
mod record;
mod space;
mod state;
mod sweep;
mod volume;

use std::{
    collections::HashMap,
    fs::{File, FileTimes},
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use tokio::sync::watch;

pub use self::{
    draft::{Before, DiskFile, Draft},
    record::{ArtifactFacts, DiskFacts, Record, Sidecar, Verified},
    state::Lease,
};
use self::{
    layout::Layout,
    state::{Evictable, State},
    volume::Volume,
};
use super::SpoolError;
use crate::model::{Digest, Identity};

/// The spool's store. Clones are the same store.
///
/// Methods that are not `async` may wait for the volume: call them from `spawn_blocking`.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    layout: Layout,
    capacity: u64,
    /// Taken before `state`, and held while files are linked, renamed or removed.
    volume: Mutex<Volume>,
    /// Held for look-ups only, never over a call that may wait for the volume.
    state: Mutex<State>,
    changes: watch::Sender<u64>,
}

/// An artifact that was taken in, and its disk, which stays for as long as the lease is kept.
#[derive(Debug)]
pub struct Spooled {
    /// What is known of it.
    pub record: Record,
    /// The disk.
    pub lease: Lease,
}

/// How full the spool is, in bytes on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The most that may be in use.
    pub capacity: u64,
    /// What lies there, and what is promised to artifacts being taken in.
    pub used: u64,
    /// The part of `used` that is only promised or in the making.
    pub reserved: u64,
    /// The part of `used` that cannot be evicted: disks with a lease, and what is reserved.
    pub held: u64,
    /// Artifacts being taken in.
    pub drafts: usize,
    /// Verified disks.
    pub disks: usize,
    /// Partial downloads that nobody is working on.
    pub partials: usize,
}

impl Store {
    /// Opens the spool in `directory` (made if it is missing), which may take `capacity` bytes of its volume, and removes
    /// what a former process left half-done.
    ///
    /// # Errors
    /// When another process has it, or the volume fails.
    pub fn open(directory: &Path, capacity: u64) -> Result<Self, SpoolError> {
        layout::make_folder(directory)?;
        let layout = Layout::new(directory);
        let volume = Volume::open(&layout, 0)?;
        let state = sweep::sweep(&layout, |_| false)?;
        let (changes, _) = watch::channel(0);
        Ok(Self(Arc::new(Inner { layout, capacity, volume: Mutex::new(volume), state: Mutex::new(state), changes })))
    }

    /// Changes whenever a disk has come or gone or an artifact is no longer being taken in; the number means nothing.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// What an artifact became, if its disk is here.
    ///
    /// # Errors
    /// When the volume fails.
    pub fn find(&self, identity: &Identity) -> Result<Option<Spooled>, SpoolError> {
        let Some(record) = self.0.state().records.get(identity).cloned() else { return Ok(None) };
        let lease = self.lease(&record.disk.digest)?;
        Ok(lease.map(|lease| Spooled { record, lease }))
    }

    /// The disk with this digest, if it is here, kept for as long as the lease is.
    ///
    /// # Errors
    /// When the volume fails.
    pub fn lease(&self, digest: &Digest) -> Result<Option<Lease>, SpoolError> {
        let known = self.0.state().disks.get(digest).map(|disk| (disk.length, Arc::clone(&disk.hold)));
        let Some((length, hold)) = known else { return Ok(None) };
        let path = self.0.layout.disk(digest);
        match File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((found, file)) if found == length => {
                // So that the next process evicts in the same order. Not needed for anything else, so it may fail.
                let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
                Ok(Some(Lease::new(*digest, length, file, hold)))
            }
            Ok(_) => self.lost(digest),
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.lost(digest),
            Err(e) => Err(SpoolError::io("open", path, e)),
        }
    }

    /// A disk that is known is not there, or was cut: forgotten, so that it is fetched again, unless the volume is gone.
    fn lost(&self, digest: &Digest) -> Result<Option<Lease>, SpoolError> {
        let _volume = self.0.volume()?;
        let path = self.0.layout.disk(digest);
        // Asked again now that the volume is known to be there and nothing moves.
        let whole = layout::stat(&path)?.is_some_and(|file| self.0.state().disks.get(digest).is_some_and(|disk| disk.length == file.len()));
        if !whole {
            tracing::warn!(disk = %digest, "a disk of the spool was removed or cut by someone else; it is fetched again when it is needed");
            let records = self.0.state().forget_disk(digest);
            layout::remove(&path)?;
            for identity in records {
                layout::remove(&self.0.layout.record(&identity))?;
            }
            self.0.changed();
        }
        Ok(None)
    }

    /// How full the spool is.
    pub fn usage(&self) -> Usage {
        let state = self.0.state();
        let reserved = state.drafts.values().copied().fold(0, u64::saturating_add);
        Usage {
            capacity: self.0.capacity,
            used: state.used(),
            reserved,
            held: state.disks.values().filter(|disk| disk.is_leased()).map(|disk| disk.allocated).fold(reserved, u64::saturating_add),
            drafts: state.drafts.len(),
            disks: state.disks.len(),
            partials: state.leftovers.len(),
        }
    }
}

impl Inner {
    /// The volume, for as long as files are moved on it.
    ///
    /// Where another directory is at the path now, it is opened in the former one's place if it can only be meant so.
    fn volume(&self) -> Result<MutexGuard<'_, Volume>, SpoolError> {
        let mut volume = lock(&self.volume);
        if !volume.is_here() {
            if !volume.may_be_followed() {
                return Err(SpoolError::Vanished { path: self.layout.root().to_owned() });
            }
            tracing::warn!(spool = %self.layout.root().display(), "the spool's volume was replaced; what is on it now is read anew");
            let next = Volume::open(&self.layout, volume.generation().wrapping_add(1))?;
            let found = sweep::sweep(&self.layout, |_| false)?;
            let mut state = self.state();
            let drafts = std::mem::take(&mut state.drafts);
            *state = State { drafts, ..found };
            drop(state);
            *volume = next;
            self.changed();
        }
        Ok(volume)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Makes the reservation of `identity` at least `total` bytes, evicting what is needed for it.
    fn reserve(&self, identity: &Identity, total: u64) -> Result<(), SpoolError> {
        loop {
            let reserved = self.reserved(identity);
            let Some(needed) = total.checked_sub(reserved).filter(|needed| *needed > 0) else { return Ok(()) };
            let (free, mut state) = self.free()?;
            let Some(missing) = needed.checked_sub(free).filter(|missing| *missing > 0) else {
                state.drafts.insert(identity.clone(), total);
                return Ok(());
            };
            let evictable = state.evictable();
            let available = evictable.iter().map(|candidate| candidate.allocated).fold(free, u64::saturating_add);
            let Some(victims) = space::victims(evictable, missing) else {
                return Err(SpoolError::Full { needed, available, capacity: self.capacity });
            };
            // Looked at again after each eviction: what a file really gave back is for the volume to say.
            let Some(victim) = victims.first().copied() else { continue };
            let (disk, leftover) = match victim {
                Evictable::Disk(digest) => (Some(digest), None),
                Evictable::Leftover(identity) => (None, Some(identity.clone())),
            };
            drop(state);
            if let Some(digest) = disk {
                self.evict_disk(&digest)?;
            }
            if let Some(identity) = leftover {
                layout::remove_folder(&self.layout.partial(&identity))?;
                self.state().leftovers.remove(&identity);
            }
            self.changed();
        }
    }

    /// Makes the reservation of `identity` `wanted` bytes, or as much of that as can be had, and at least `least`. Gives what it is then. Where
    /// `wanted` is not to be had, what others left is thrown away for `least` only.
    fn reserve_some(&self, identity: &Identity, least: u64, wanted: u64) -> Result<u64, SpoolError> {
        match self.reserve(identity, wanted) {
            Err(SpoolError::Full { .. }) => self.reserve(identity, least)?,
            done => return done.map(|()| self.reserved(identity)),
        }
        let (free, mut state) = self.free()?;
        let reserved = state.drafts.get(identity).copied().unwrap_or(0);
        let total = reserved.max(wanted.min(reserved.saturating_add(free)));
        state.drafts.insert(identity.clone(), total);
        Ok(total)
    }

    /// As [`Self::reserve_some`]; what needs more than the whole spool is told so, since nobody can make room for it.
    fn grow(&self, identity: &Identity, least: u64, wanted: u64) -> Result<u64, SpoolError> {
        if least > self.capacity {
            return Err(SpoolError::Outgrown { whole: self.capacity });
        }
        let grown = self.reserve_some(identity, least, wanted);
        if let Err(SpoolError::Full { .. }) = grown {
            // A volume no larger than the capacity: its file system's own needs are a part of it that nobody gives up.
            let volume = self.on_volume()?;
            let whole = volume.f_blocks.saturating_sub(volume.f_bfree.saturating_sub(volume.f_bavail)).saturating_mul(volume.f_frsize);
            if least > whole - whole / 16 {
                return Err(SpoolError::Outgrown { whole });
            }
        }
        grown
    }

    /// The bytes that nobody has, of the capacity and on the volume, and the state as it was counted. The volume is asked unlocked.
    fn free(&self) -> Result<(u64, MutexGuard<'_, State>), SpoolError> {
        let drafts = self.state().drafts.clone();
        let on_volume = self.free_on_volume()?.saturating_sub(self.promised(&drafts));
        let state = self.state();
        Ok((self.capacity.saturating_sub(state.used()).min(on_volume), state))
    }

    fn reserved(&self, identity: &Identity) -> u64 {
        self.state().drafts.get(identity).copied().unwrap_or(0)
    }

    fn evict_disk(&self, digest: &Digest) -> Result<(), SpoolError> {
        let mut state = self.state();
        // A lease may have been taken since the choice was made.
        let Some(disk) = state.disks.get(digest).filter(|disk| !disk.is_leased()) else { return Ok(()) };
        let allocated = disk.allocated;
        let kept = state.disks.remove(digest);
        drop(state);
        if let Err(e) = layout::remove(&self.layout.disk(digest)) {
            if let Some(disk) = kept {
                self.state().disks.insert(*digest, disk);
            }
            return Err(e);
        }
        tracing::info!(disk = %digest, bytes = allocated, "evicted from the spool");
        let records = self.state().forget_disk(digest);
        for identity in records {
            layout::remove(&self.layout.record(&identity))?;
        }
        Ok(())
    }

    /// Bytes promised to artifacts being taken in that do not lie on the volume yet.
    fn promised(&self, drafts: &HashMap<Identity, u64>) -> u64 {
        let missing = drafts.iter().map(|(identity, reserved)| {
            let written =
                layout::allocated_at(&self.layout.data(identity)).saturating_add(layout::allocated_at(&self.layout.output(identity)));
            reserved.saturating_sub(written)
        });
        missing.fold(0, u64::saturating_add)
    }

    fn free_on_volume(&self) -> Result<u64, SpoolError> {
        self.on_volume().map(|volume| volume.f_bavail.saturating_mul(volume.f_frsize))
    }

    fn on_volume(&self) -> Result<rustix::fs::StatVfs, SpoolError> {
        let root = self.layout.root();
        rustix::fs::statvfs(root).map_err(|e| SpoolError::io("ask for the free space of", root, e.into()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves no half-made change behind: each is one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
