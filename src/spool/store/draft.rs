use std::{
    fs::{self, File, OpenOptions},
    io,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    Record, Sidecar, Spooled, Store,
    layout::{self},
    lock, record,
    state::{Disk, Hold, Lease, Leftover, now},
    sweep,
    volume::Volume,
};
use crate::{
    model::{Digest, Identity},
    spool::SpoolError,
};

/// An artifact being taken in. There is one at a time for each identity, so an artifact is fetched once.
///
/// Dropped without [`Draft::commit`] or [`Draft::discard`], it keeps the bytes downloaded so far where the download can go
/// on from them, and leaves nothing otherwise. Its methods may wait for the volume.
pub struct Draft {
    store: Store,
    identity: Identity,
    generation: u64,
    before: Option<Before>,
    /// What `about.json` says.
    sidecar: Mutex<Option<Sidecar>>,
    discarded: AtomicBool,
}

/// A download that a former attempt left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Before {
    /// What is known about it.
    pub sidecar: Sidecar,
    /// Bytes that are there and can be gone on from, once they are hashed again.
    pub length: u64,
}

/// Which file becomes the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFile {
    /// The download itself.
    Download,
    /// The file given by [`Draft::output`].
    Output,
}

impl Store {
    /// Begins to take an artifact in, once nobody else is doing so.
    ///
    /// # Errors
    /// When the volume fails.
    pub async fn begin(&self, identity: &Identity) -> Result<Draft, SpoolError> {
        let mut changes = self.changes();
        loop {
            changes.mark_unchanged();
            let (store, wanted) = (self.clone(), identity.clone());
            match tokio::task::spawn_blocking(move || store.try_begin(&wanted)).await {
                Ok(Ok(Some(draft))) => return Ok(draft),
                Ok(Ok(None)) => {}
                Ok(Err(e)) => return Err(e),
                // Only when the runtime ends: whatever is answered, nobody hears it.
                Err(_) => return Err(SpoolError::io("begin in", self.0.layout.root(), io::ErrorKind::Interrupted.into())),
            }
            // The sender is in the store, which is here.
            let _ = changes.changed().await;
        }
    }

    fn try_begin(&self, identity: &Identity) -> Result<Option<Draft>, SpoolError> {
        let volume = self.0.volume()?;
        if self.0.state().drafts.contains_key(identity) {
            return Ok(None);
        }
        let layout = &self.0.layout;
        layout::remove(&layout.output(identity))?;
        let before = sweep::partial(layout, identity)?.map(|(sidecar, length)| Before { sidecar, length });
        // A complete download may have no bytes at all: an empty file is upstream's answer too, but not worth keeping.
        let before = before.filter(|before| before.length > 0 && before.sidecar.is_resumable());
        if before.is_none() {
            layout::remove_folder(&layout.partial(identity))?;
        }
        let lies_there = layout::allocated_at(&layout.data(identity));
        let mut state = self.0.state();
        state.leftovers.remove(identity);
        state.drafts.insert(identity.clone(), lies_there);
        drop(state);
        let sidecar = Mutex::new(before.as_ref().map(|before| before.sidecar.clone()));
        Ok(Some(Draft {
            store: self.clone(),
            identity: identity.clone(),
            generation: volume.generation(),
            before,
            sidecar,
            discarded: AtomicBool::new(false),
        }))
    }
}

impl Draft {
    /// The download that a former attempt left, if it can be gone on with.
    pub const fn before(&self) -> Option<&Before> {
        self.before.as_ref()
    }

    /// Makes sure of room for `total` bytes in all, download and disk together, before they are written. Evicts what is
    /// needed for it, least recently used first.
    ///
    /// # Errors
    /// [`SpoolError::Full`] when there is no room now; the caller waits. Nothing is evicted in vain.
    pub fn reserve(&self, total: u64) -> Result<(), SpoolError> {
        let _volume = self.volume()?;
        self.store.0.reserve(&self.identity, total)
    }

    /// As [`Self::reserve`], for what may do with less: `wanted` bytes, or as many of them as can be had where these are at least
    /// `least`. Gives what is reserved now.
    ///
    /// # Errors
    /// [`SpoolError::Full`] when there is no room for `least` now.
    pub fn reserve_some(&self, least: u64, wanted: u64) -> Result<u64, SpoolError> {
        let _volume = self.volume()?;
        self.store.0.reserve_some(&self.identity, least, wanted)
    }

    /// As [`Self::reserve_some`], for what shows only as it comes how much it needs.
    ///
    /// # Errors
    /// [`SpoolError::Outgrown`] when the whole spool has no room for `least`, else as [`Self::reserve_some`].
    pub fn grow(&self, least: u64, wanted: u64) -> Result<u64, SpoolError> {
        let _volume = self.volume()?;
        self.store.0.grow(&self.identity, least, wanted)
    }

    /// Begins the download from zero, whatever was there.
    ///
    /// # Errors
    /// When the volume fails.
    pub fn start(&self, sidecar: Sidecar) -> Result<File, SpoolError> {
        let _volume = self.volume()?;
        let layout = &self.store.0.layout;
        let folder = layout.partial(&self.identity);
        // All of the old goes first: new validators beside old bytes would make a lie of both.
        *lock(&self.sidecar) = None;
        self.discarded.store(false, Ordering::Relaxed);
        layout::remove_folder(&folder)?;
        layout::make_folder(&folder)?;
        layout::sync_folder(&layout.partials())?;
        self.write_sidecar(Sidecar { durable: 0, complete: None, boot: record::boot(), ..sidecar })?;
        let data = layout::create(&layout.data(&self.identity))?;
        layout::sync_folder(&folder)?;
        Ok(data)
    }

    /// Opens what [`Draft::before`] told of, cut to the bytes that can be trusted.
    ///
    /// # Errors
    /// When the volume fails, or there was nothing.
    pub fn resume(&self) -> Result<File, SpoolError> {
        let _volume = self.volume()?;
        let path = self.store.0.layout.data(&self.identity);
        let Some(before) = &self.before else { return Err(SpoolError::io("go on with", path, io::ErrorKind::NotFound.into())) };
        let data = OpenOptions::new().read(true).write(true).open(&path).map_err(|e| SpoolError::io("open", &path, e))?;
        data.set_len(before.length).map_err(|e| SpoolError::io("cut", &path, e))?;
        if before.sidecar.boot != record::boot() {
            self.write_sidecar(Sidecar { durable: before.length, boot: record::boot(), ..before.sidecar.clone() })?;
        }
        Ok(data)
    }

    /// Syncs `data` and notes that its first `length` bytes are on the volume.
    ///
    /// # Errors
    /// When the volume fails.
    pub fn checkpoint(&self, data: &File, length: u64) -> Result<(), SpoolError> {
        self.sync(data.sync_data())?;
        let _volume = self.volume()?;
        let sidecar = lock(&self.sidecar).clone();
        sidecar.map_or(Ok(()), |sidecar| self.write_sidecar(Sidecar { durable: length, ..sidecar }))
    }

    /// Notes that every byte is here: syncs `data` and writes down its length and digest.
    ///
    /// # Errors
    /// When the volume fails.
    pub fn complete(&self, data: &File, length: u64, digest: Digest) -> Result<(), SpoolError> {
        self.sync(data.sync_all())?;
        let _volume = self.volume()?;
        let sidecar = lock(&self.sidecar).clone();
        sidecar.map_or(Ok(()), |sidecar| {
            self.write_sidecar(Sidecar { durable: length, total: Some(length), complete: Some(digest), ..sidecar })
        })
    }

    /// An empty file for the disk to be decoded into, in place of one from a former attempt.
    ///
    /// # Errors
    /// When the volume fails.
    pub fn output(&self) -> Result<File, SpoolError> {
        let _volume = self.volume()?;
        layout::create(&self.store.0.layout.output(&self.identity))
    }

    /// Makes the disk visible, durably; what else the draft has goes when it is dropped. The module's page has the order
    /// of the steps.
    ///
    /// # Errors
    /// When the volume fails; nothing is visible then, and a complete download is kept.
    pub fn commit(&self, record: Record, from: DiskFile) -> Result<Spooled, SpoolError> {
        let inner = &self.store.0;
        let layout = &inner.layout;
        let source = match from {
            DiskFile::Download => layout.data(&self.identity),
            DiskFile::Output => layout.output(&self.identity),
        };
        // Synced without holding the volume, since that may take long; that it is still there is asked before, for a fit
        // answer, and after.
        drop(self.volume()?);
        let is_durable = from == DiskFile::Download && lock(&self.sidecar).as_ref().is_some_and(|sidecar| sidecar.complete.is_some());
        if !is_durable {
            let synced = File::open(&source).and_then(|file| file.sync_all());
            synced.map_err(|e| SpoolError::io("sync", &source, e))?;
        }

        let volume = self.volume()?;
        let digest = record.disk.digest;
        let target = layout.disk(&digest);
        let is_known = inner.state().disks.get(&digest).is_some_and(|disk| disk.length == record.disk.length);
        let is_there = layout::stat(&target)?.is_some_and(|file| file.is_file() && file.len() == record.disk.length);
        let is_new = !(is_known && is_there);
        if is_new {
            // Nobody vouches for a file that no record names.
            layout::remove(&target)?;
            fs::hard_link(&source, &target).map_err(|e| SpoolError::io("link", &target, e))?;
        }
        let recorded = (|| {
            if is_new {
                layout::sync_folder(&layout.disks())?;
            }
            let text = serde_json::to_vec(&record).map_err(|e| SpoolError::io("write", layout.record(&self.identity), e.into()))?;
            layout::replace(&layout.record(&self.identity), &text)?;
            let failed = |e| SpoolError::io("open", &target, e);
            let file = File::open(&target).map_err(failed)?;
            let allocated = layout::allocated(&file.metadata().map_err(failed)?);
            Ok((file, allocated))
        })();
        // A disk that no record names would take room that nobody knows of and nobody gives back. Should the record be there after
        // all, it names a disk that is not, and the next start removes it.
        let (file, allocated) = recorded.inspect_err(|_| {
            if is_new && let Err(error) = layout::remove(&target) {
                tracing::warn!(disk = %digest, error = %error, "a disk without a record stays until the next start");
            }
        })?;
        let mut state = inner.state();
        let length = record.disk.length;
        let disk = state.disks.entry(digest).or_insert_with(|| Disk { length, allocated, hold: Hold::new(now()) });
        let lease = Lease::new(digest, length, file, disk.hold.clone());
        state.records.insert(self.identity.clone(), record.clone());
        drop(state);
        drop(volume);
        self.discard();
        Ok(Spooled { record, lease })
    }

    /// The error for a failed read or write of the download's file.
    pub fn failed(&self, action: &'static str, error: io::Error) -> SpoolError {
        SpoolError::io(action, self.store.0.layout.data(&self.identity), error)
    }

    /// Has all that was downloaded so far removed when the draft is dropped; what a new [`Draft::start`] brings is not.
    pub fn discard(&self) {
        self.discarded.store(true, Ordering::Relaxed);
    }

    /// The volume on which this draft's files are.
    fn volume(&self) -> Result<MutexGuard<'_, Volume>, SpoolError> {
        let volume = self.store.0.volume()?;
        if volume.generation() != self.generation {
            return Err(SpoolError::Vanished { path: self.store.0.layout.root().to_owned() });
        }
        Ok(volume)
    }

    /// What came of syncing `data`. After a failure nobody knows which bytes the kernel dropped, and a second sync would
    /// say that all is well (`fsync(2)`, notes), so the download is not kept.
    fn sync(&self, done: io::Result<()>) -> Result<(), SpoolError> {
        done.map_err(|e| {
            self.discard();
            self.failed("sync", e)
        })
    }

    fn write_sidecar(&self, sidecar: Sidecar) -> Result<(), SpoolError> {
        let path = self.store.0.layout.sidecar(&self.identity);
        let text = serde_json::to_vec(&sidecar).map_err(|e| SpoolError::io("write", &path, e.into()))?;
        layout::replace(&path, &text)?;
        *lock(&self.sidecar) = Some(sidecar);
        Ok(())
    }

    /// Removes what is not to stay, and says what does.
    fn clean_up(&self) -> Result<Option<Leftover>, SpoolError> {
        let _volume = self.volume()?;
        let layout = &self.store.0.layout;
        layout::remove(&layout.output(&self.identity))?;
        let resumable = lock(&self.sidecar).as_ref().is_some_and(Sidecar::is_resumable);
        let data = layout::stat(&layout.data(&self.identity))?.filter(|data| data.len() > 0);
        if let (Some(data), true, false) = (data, resumable, self.discarded.load(Ordering::Relaxed)) {
            return Ok(Some(Leftover { allocated: layout::allocated(&data), last_used: now() }));
        }
        layout::remove_folder(&layout.partial(&self.identity))?;
        Ok(None)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let layout = &self.store.0.layout;
        let leftover = self.clean_up().unwrap_or_else(|e| {
            tracing::warn!(error = %e, "could not clean up after a download; the next start does");
            let allocated =
                layout::allocated_at(&layout.data(&self.identity)).saturating_add(layout::allocated_at(&layout.output(&self.identity)));
            (allocated > 0).then(|| Leftover { allocated, last_used: now() })
        });
        let mut state = self.store.0.state();
        state.drafts.remove(&self.identity);
        if let Some(leftover) = leftover {
            state.leftovers.insert(self.identity.clone(), leftover);
        }
        drop(state);
        self.store.0.changed();
    }
}

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft").field("identity", &self.identity).finish_non_exhaustive()
    }
}
