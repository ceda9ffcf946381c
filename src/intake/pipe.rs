use std::{fs::File, os::unix::fs::FileExt, sync::Arc};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    task::{JoinHandle, spawn_blocking},
};

use crate::{
    model::Digest,
    spool::{Draft, SpoolError},
};

/// Bytes on their way from the network into a file and through the hash, each on a thread of its own, so that neither
/// holds up the other or the network.
///
/// Dropped early, what was given to it is still written, and the draft is let go after that.
pub(super) struct Pipe {
    to_writer: mpsc::Sender<Bytes>,
    to_hasher: mpsc::Sender<Bytes>,
    writer: JoinHandle<Result<u64, SpoolError>>,
    hasher: JoinHandle<Sha256>,
}

/// Where a [`Pipe`] begins, and what it may use.
pub(super) struct Start {
    pub(super) draft: Arc<Draft>,
    pub(super) file: Arc<File>,
    /// Bytes that the file has already.
    pub(super) at: u64,
    /// The hash of these bytes.
    pub(super) hasher: Sha256,
    /// Room that is reserved for the download, in bytes.
    pub(super) room: u64,
    /// Room that is reserved beside it, for the disk.
    pub(super) beside: u64,
}

/// Chunks that may wait for each thread. With chunks of at most 256 KiB, this is what keeps an intake's memory flat.
const WAITING: usize = 32;

/// Bytes after which the file is synced in the background: a kill of the machine loses no more than two spans of this,
/// and the sync at the end finds little to do.
const CHECKPOINT: u64 = 128 << 20;

/// Room that is reserved in one step where upstream told no length.
pub(super) const STEP: u64 = 64 << 20;

/// The least room that is reserved for a disk whose size is not known before it is decoded.
pub(super) const LEAST_ROOM: u64 = 64 << 20;

impl Pipe {
    pub(super) fn open(start: Start) -> Self {
        let (to_writer, for_writer) = mpsc::channel(WAITING);
        let (to_hasher, mut for_hasher) = mpsc::channel::<Bytes>(WAITING);
        let mut hash = start.hasher.clone();
        let hasher = spawn_blocking(move || {
            while let Some(chunk) = for_hasher.blocking_recv() {
                hash.update(&chunk);
            }
            hash
        });
        let writer = spawn_blocking(move || write(start, for_writer));
        Self { to_writer, to_hasher, writer, hasher }
    }

    /// Gives a chunk to both threads. `false` when one of them has ended: [`Pipe::finish`] says why.
    pub(super) async fn give(&self, chunk: Bytes) -> bool {
        self.to_writer.send(chunk.clone()).await.is_ok() && self.to_hasher.send(chunk).await.is_ok()
    }

    /// Waits until all is written and hashed; also gives the room that is reserved for the disk now.
    ///
    /// # Errors
    /// When the volume fails or is full.
    pub(super) async fn finish(self) -> Result<(Digest, u64), SpoolError> {
        let Self { to_writer, to_hasher, writer, hasher } = self;
        drop((to_writer, to_hasher));
        let (written, hash) = tokio::join!(writer, hasher);
        let beside = joined(written)??;
        Ok((Digest::from_bytes(joined(hash)?.finalize().into()), beside))
    }
}

/// The writing thread's work; gives the room beside the download at its end. The syncing thread has an error to tell only once, so it is
/// asked for it at the end.
fn write(start: Start, mut chunks: mpsc::Receiver<Bytes>) -> Result<u64, SpoolError> {
    let Start { draft, file, mut at, mut room, mut beside, .. } = start;
    let (to_syncer, mut for_syncer) = mpsc::channel::<u64>(1);
    let syncer = {
        let (draft, file) = (Arc::clone(&draft), Arc::clone(&file));
        std::thread::spawn(move || {
            while let Some(length) = for_syncer.blocking_recv() {
                draft.checkpoint(&file, length)?;
            }
            Ok(())
        })
    };
    let mut synced = at;
    let mut written = Ok(());
    while let Some(chunk) = chunks.blocking_recv() {
        let next = at.saturating_add(chunk.len() as u64);
        written = (|| {
            if next > room {
                let least = least_beside(next, beside);
                let total = draft.grow(next.saturating_add(least), next.saturating_add(STEP).saturating_add(beside))?;
                // Where not all of it fits, the disk's room gives way: it is a bound that most disks stay far below.
                beside = beside.min(total.saturating_sub(next).saturating_sub(STEP).max(least));
                room = total.saturating_sub(beside);
            }
            file.write_all_at(&chunk, at).map_err(|e| draft.failed("write", e))
        })();
        if written.is_err() {
            break;
        }
        at = next;
        if at - synced >= CHECKPOINT {
            match to_syncer.try_send(at) {
                Ok(()) => synced = at,
                // The volume is slower than the network: the checkpoint under way will do for now.
                Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Closed(_)) => break,
            }
        }
    }
    drop(to_syncer);
    let checkpointed = syncer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    written.and(checkpointed).map(|()| beside)
}

/// The least room to begin decoding with, for a download of `length` bytes whose disk takes at most `most`: packed, it is hardly
/// larger than its disk.
pub(super) fn least_beside(length: u64, most: u64) -> u64 {
    length.max(LEAST_ROOM).min(most)
}

/// What a blocking task gave. It is cancelled only when the runtime ends, and then nobody hears the answer.
pub(super) fn joined<T>(task: Result<T, tokio::task::JoinError>) -> Result<T, SpoolError> {
    task.map_err(|e| match e.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => SpoolError::io("go on with", "a download", std::io::ErrorKind::Interrupted.into()),
    })
}
