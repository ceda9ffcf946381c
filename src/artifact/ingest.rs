use std::{
    cell::Cell,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    sync::mpsc::sync_channel,
    thread,
};

use sha2::{Digest as _, Sha256};

use super::{
    ArtifactError, Decoder, DiskFormat, Format, Limits, MAX_RAW_SIZE, RawVerifier, Watch, inspect_qcow2,
    qcow2::{Writer, qcow2_upper_bound},
};
use crate::model::{Digest, DiskSize};

/// A verified disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ingested {
    /// The size of the disk, in bytes.
    pub virtual_size: DiskSize,
    /// The sha256 of the qcow2 file.
    pub disk_digest: Digest,
    /// The length of the qcow2 file, in bytes.
    pub disk_len: u64,
    /// Whether the input itself is that file; the output was then not touched.
    pub disk_is_input: bool,
}

/// Bytes decoded at a time, and how many such pieces are under way between the decoder and the writer.
const PIECE: usize = 1 << 20;
const PIECES: usize = 4;

/// The bytes to reserve for the output of [`ingest`]: nothing for a plain qcow2, which is kept as it is, else what a disk
/// of `virtual_size` takes when every cluster of it holds data.
pub fn output_upper_bound(format: Format, virtual_size: DiskSize) -> u64 {
    match (format.disk, format.compression) {
        (DiskFormat::Qcow2, None) => 0,
        _ => qcow2_upper_bound(virtual_size.bytes()),
    }
}

/// Turns a downloaded file into a verified qcow2.
///
/// A raw disk is decoded, verified and written to `output`; a packed qcow2 is decoded to `output` and inspected; a plain
/// qcow2 is only inspected. `known` is the digest of the input where whoever downloaded it has computed it, so that a
/// plain qcow2 is not read a second time for that. Both files are used by position: their cursors stay where they are.
/// `output` is emptied first and is not synced: the caller syncs it before it makes it visible, and drops it on an error.
///
/// Blocking and CPU-bound; uses up to `limits.threads` threads and one more. About 8 MiB of memory, and what the codec
/// takes within its limits.
///
/// # Errors
/// See [`ArtifactError`]; nothing but a whole, verified disk is ever answered with `Ok`.
pub fn ingest(
    input: &File,
    known: Option<Digest>,
    format: Format,
    output: &File,
    limits: &Limits,
    watch: Watch<'_>,
) -> Result<Ingested, ArtifactError> {
    if format != (Format { disk: DiskFormat::Qcow2, compression: None }) {
        return ingest_stream(FileReader::new(input), format, output, limits, watch);
    }
    let qcow2 = inspect_qcow2(input, limits, watch)?;
    let disk_digest = match known {
        Some(known) => known,
        None => digest(input, qcow2.file_len, Watch { progress: &|_| (), ..watch })?,
    };
    Ok(Ingested { virtual_size: qcow2.virtual_size, disk_digest, disk_len: qcow2.file_len, disk_is_input: true })
}

/// As [`ingest`], for a disk that comes out of another reader, such as a file inside a container image's layer. A plain
/// qcow2 is then copied to `output`. The reader is called on this thread and need not be `Send`.
///
/// # Errors
/// As [`ingest`]. An `ArtifactError` that the reader wrapped into its `io::Error` comes out as it was.
pub fn ingest_stream(
    input: impl Read,
    format: Format,
    output: &File,
    limits: &Limits,
    watch: Watch<'_>,
) -> Result<Ingested, ArtifactError> {
    // Reading back what was written is told as the same number again: the input is all read, and the work still goes on.
    let last = Cell::new(0);
    let first_time = |bytes| {
        last.set(bytes);
        watch.read(bytes);
    };
    let again = |_| watch.read(last.get());
    let (reading, reading_back) = (Watch { progress: &first_time, ..watch }, Watch { progress: &again, ..watch });
    let mut decoder = Decoder::new(input, format.compression, limits, reading)?;
    match format.disk {
        DiskFormat::Raw => {
            let mut verifier = RawVerifier::new();
            let mut writer = Writer::new(output, limits.reserved)?;
            pump(&mut decoder, limits.max_virtual_size.min(MAX_RAW_SIZE), |piece| {
                verifier.update(piece)?;
                writer.write(piece)
            })?;
            verifier.finish()?;
            let written = writer.finish()?;
            let disk_digest = digest(output, written.file_len, reading_back)?;
            Ok(Ingested { virtual_size: written.virtual_size, disk_digest, disk_len: written.file_len, disk_is_input: false })
        }
        DiskFormat::Qcow2 => {
            output.set_len(0).map_err(|error| ArtifactError::io("emptying the disk file", error))?;
            let mut hasher = Sha256::new();
            let mut len = 0;
            // Snapshots may make a qcow2 larger than its disk, though not without bound.
            let most = qcow2_upper_bound(limits.max_virtual_size).saturating_mul(2);
            pump(&mut decoder, most, |piece| {
                if len + piece.len() as u64 > limits.reserved {
                    return Err(ArtifactError::OverReservation { reserved: limits.reserved });
                }
                hasher.update(piece);
                output.write_all_at(piece, len).map_err(|error| ArtifactError::io("writing the disk", error))?;
                len += piece.len() as u64;
                Ok(())
            })?;
            let qcow2 = inspect_qcow2(output, limits, reading_back)?;
            let disk_digest = Digest::from_bytes(hasher.finalize().into());
            Ok(Ingested { virtual_size: qcow2.virtual_size, disk_digest, disk_len: qcow2.file_len, disk_is_input: false })
        }
    }
}

/// Decodes on this thread and gives the bytes to `sink` on another, in pieces that are all [`PIECE`] long but the last.
fn pump<R: Read>(
    decoder: &mut Decoder<'_, R>,
    limit: u64,
    mut sink: impl FnMut(&[u8]) -> Result<(), ArtifactError> + Send,
) -> Result<(), ArtifactError> {
    thread::scope(|scope| {
        let (full, to_sink) = sync_channel::<Vec<u8>>(PIECES);
        let (empty, to_fill) = sync_channel(PIECES);
        for _ in 0..PIECES {
            // The channel holds them all, and its other end is here.
            let _ = empty.send(Vec::new());
        }
        let worker = scope.spawn(move || {
            for piece in to_sink {
                sink(&piece)?;
                // Nobody waits for it any more once the stream has ended.
                let _ = empty.send(piece);
            }
            Ok(())
        });
        let decoded = (|| {
            let mut total = 0;
            // An error here means that the sink has failed, and says why.
            while let Ok(mut piece) = to_fill.recv() {
                piece.resize(PIECE, 0);
                let count = decoder.fill(&mut piece)?;
                total += count as u64;
                if total > limit {
                    return Err(ArtifactError::TooLarge { what: "what the file unpacks to", limit });
                }
                piece.truncate(count);
                if count > 0 && full.send(piece).is_err() || count < PIECE {
                    break;
                }
            }
            Ok(())
        })();
        drop(full);
        match worker.join() {
            Ok(sunk) => sunk.and(decoded),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The sha256 of the first `len` bytes of a file, which must have them. Each piece is told.
fn digest(file: &File, len: u64, watch: Watch<'_>) -> Result<Digest, ArtifactError> {
    let mut reader = FileReader::new(file);
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; PIECE];
    while reader.at < len {
        watch.check()?;
        let wanted = (len - reader.at).min(PIECE as u64) as usize;
        match reader.read(&mut buffer[..wanted]) {
            Ok(0) => return Err(ArtifactError::io("reading the disk", io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                watch.read(reader.at);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(ArtifactError::io("reading the disk", error)),
        }
    }
    Ok(Digest::from_bytes(hasher.finalize().into()))
}

/// Reads a file from its start without its cursor.
pub(super) struct FileReader<'a> {
    file: &'a File,
    at: u64,
}

impl<'a> FileReader<'a> {
    pub fn new(file: &'a File) -> Self {
        Self { file, at: 0 }
    }
}

impl Read for FileReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(out, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
