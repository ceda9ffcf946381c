use std::{
    fs::File,
    io::{self, IoSliceMut},
    ops::Range,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures::{Stream, stream};
use rustix::io::{ReadWriteFlags, preadv2};
use tokio::sync::OwnedSemaphorePermit;

use crate::spool::{Lease, registry::OpenRequest};

/// Bytes read at once. Large enough that reading costs little beside encryption, small enough that many slow clients do
/// not fill the memory.
const CHUNK: usize = 256 << 10;

/// Read buffers that wait to be used again: allocating and clearing one for each chunk costs as much as reading it.
#[derive(Clone, Default)]
pub(super) struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    /// How many are kept.
    const KEPT: usize = 32;

    fn take(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_else(|| vec![0; CHUNK])
    }

    fn give(&self, buffer: Vec<u8>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < Self::KEPT {
            kept.push(buffer);
        }
    }
}

/// The bytes of one chunk; the buffer goes back when the connection has written them.
struct Chunk {
    buffer: Vec<u8>,
    length: usize,
    home: Buffers,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.buffer));
    }
}

/// A response's body while it is being sent: it keeps the disk from eviction.
pub(super) struct Transfer {
    pub(super) lease: Lease,
    pub(super) range: Range<u64>,
    pub(super) is_whole: bool,
    pub(super) request: OpenRequest,
    pub(super) buffers: Buffers,
    pub(super) _permit: OwnedSemaphorePermit,
}

impl Transfer {
    /// The bytes, read as the connection takes them. An error cuts the connection, so that the client sees too few.
    pub(super) fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        stream::try_unfold(self, |mut transfer| async move {
            let Some(chunk) = transfer.next().await? else { return Ok(None) };
            let length = chunk.len() as u64;
            transfer.range.start += length;
            transfer.request.sent(length);
            if transfer.range.is_empty() && transfer.is_whole {
                transfer.request.sent_all();
            }
            Ok(Some((chunk, transfer)))
        })
    }

    async fn next(&self) -> io::Result<Option<Bytes>> {
        if self.range.is_empty() {
            return Ok(None);
        }
        let wanted = usize::try_from(self.range.end - self.range.start).unwrap_or(CHUNK).min(CHUNK);
        let offset = self.range.start;
        let mut buffer = self.buffers.take();
        let length = match cached(self.lease.file(), &mut buffer[..wanted], offset) {
            Some(length) => length,
            None => {
                let file = Arc::clone(self.lease.file());
                let read = move || file.read_at(&mut buffer[..wanted], offset).map(|length| (length, buffer));
                let (length, filled) = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
                buffer = filled;
                length
            }
        };
        if length == 0 {
            // Someone cut the file: an error, so that nobody takes the rest for a whole disk.
            tracing::error!(disk = %self.lease.digest(), "a disk of the spool ends before its length");
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(Bytes::from_owner(Chunk { buffer, length, home: self.buffers.clone() })))
    }
}

/// Reads what the page cache holds, without waiting for the volume (`preadv2(2)`, `RWF_NOWAIT`): most disks are sent soon
/// after they were written, and a thread for each chunk costs more than the copy. `None` where it would wait, or where the
/// file system has no such call.
fn cached(file: &File, buffer: &mut [u8], offset: u64) -> Option<usize> {
    preadv2(file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT).ok().filter(|length| *length > 0)
}
