//! From a layer to the verified disk inside it, and from other layers to the certainty that they hold none.

use std::{
    cell::Cell,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};

use super::{
    LayerFormat,
    fault::ContainerFault,
    find::{Finder, advance},
    probe::packing,
    tar::Tar,
};
use crate::artifact::{ArtifactError, Decoder, Format, Ingested, Limits, Prober, Watch, ingest::FileReader, ingest_stream};

/// Bytes read at a time.
const PIECE: usize = 256 << 10;

/// A verified disk out of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngestedLayer {
    /// The disk.
    pub disk: Ingested,
    /// How it was packed.
    pub format: LayerFormat,
}

/// Turns a downloaded layer into the verified qcow2 of the one disk file in it. The layer is read to its end, with the
/// checks of whatever packs it, so that a second disk file anywhere in it is found.
///
/// Blocking, as [`crate::artifact::ingest`]; the layer's digest is the caller's to check before.
///
/// # Errors
/// As [`ingest_stream`], what is wrong with the archive, and [`ContainerFault`].
pub fn ingest_layer(input: &File, output: &File, limits: &Limits, watch: Watch<'_>) -> Result<IngestedLayer, ArtifactError> {
    let mut head = [0; 512];
    let count = input.read_at(&mut head, 0).map_err(|error| ArtifactError::io("reading the layer", error))?;
    let layer = packing(&head[..count])?;
    let last = Cell::new(0);
    let told = |bytes| {
        last.set(bytes);
        watch.read(bytes);
    };
    let decoder = Decoder::new(FileReader::new(input), layer, limits, Watch { progress: &told, ..watch })?;
    let mut tar = Tar::new(Bounded::new(decoder, limits));
    let mut finder = Finder::default();
    if advance(&mut tar, &mut finder)?.is_none() {
        tar.drain()?;
        return Err(finished(finder));
    }
    // How far it is, the layer's own reader tells; that the work goes on is told of the disk too.
    let again = |_| watch.read(last.get());
    let inner = Watch { progress: &again, ..watch };
    let (head, format) = head_of(&mut tar, limits)?;
    let disk = ingest_stream(Joined { head: &head, tar: &mut tar }, format, output, limits, inner)?;
    if advance(&mut tar, &mut finder)?.is_some() {
        return Err(finished(finder));
    }
    tar.drain()?;
    Ok(IngestedLayer { disk, format: LayerFormat { layer, disk: format } })
}

/// Whether a layer that is read once, from its start to its end, holds a disk file.
///
/// # Errors
/// As [`ingest_layer`], where the layer holds something that stands in a disk's way.
pub fn scan_layer(mut input: impl Read, limits: &Limits, watch: Watch<'_>) -> Result<bool, ArtifactError> {
    let mut head = vec![0; 512];
    let mut filled = 0;
    while filled < head.len() {
        match input.read(&mut head[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(ArtifactError::io("reading the layer", error)),
        }
    }
    head.truncate(filled);
    let layer = packing(&head)?;
    let decoder = Decoder::new(io::Cursor::new(head).chain(input), layer, limits, watch)?;
    let mut tar = Tar::new(Bounded::new(decoder, limits));
    let mut finder = Finder::default();
    while advance(&mut tar, &mut finder)?.is_some() {}
    tar.drain()?;
    Ok(finder.has_found())
}

/// What a finder that found nothing, or a second file, says.
fn finished(finder: Finder) -> ArtifactError {
    match finder.finish() {
        Err(fault) => fault.into(),
        Ok(name) => ContainerFault::Several { first: name.clone(), second: name }.into(),
    }
}

/// The disk file's first bytes, and what they say it is.
fn head_of<R: Read>(tar: &mut Tar<R>, limits: &Limits) -> Result<(Vec<u8>, Format), ArtifactError> {
    let mut prober = Prober::new(None, limits);
    let mut head = Vec::new();
    let mut piece = vec![0; PIECE];
    loop {
        let count = tar.read_data(&mut piece)?;
        head.extend_from_slice(&piece[..count]);
        if count == 0 {
            return Ok((head, prober.finish()?.format));
        }
        if let Some(probe) = prober.feed(&piece[..count])? {
            return Ok((head, probe.format));
        }
    }
}

/// The head that was looked at, and the rest of the disk file after it.
struct Joined<'a, R> {
    head: &'a [u8],
    tar: &'a mut Tar<R>,
}

impl<R: Read> Read for Joined<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.head.read(out)? {
            0 => self.tar.read_data(out).map_err(io::Error::from),
            count => Ok(count),
        }
    }
}

/// A reader that fails once it has given out too much.
struct Bounded<R> {
    inner: R,
    limit: u64,
    given: u64,
}

impl<R: Read> Bounded<R> {
    /// The most bytes that a layer may unpack to: the disk as qcow2 may be a little larger than what it holds, and an
    /// operating system may lie beside it.
    fn new(inner: R, limits: &Limits) -> Self {
        Self { inner, limit: limits.max_virtual_size.saturating_mul(2).saturating_add(64 << 30), given: 0 }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(out)?;
        self.given = self.given.saturating_add(count as u64);
        if self.given > self.limit {
            return Err(ArtifactError::TooLarge { what: "what the layer unpacks to", limit: self.limit }.into());
        }
        Ok(count)
    }
}
