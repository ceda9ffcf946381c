//! What the first bytes of a layer prove about the disk in it.

use std::io::{self, Read};

use super::{
    LayerFormat, LayerProbe,
    fault::ContainerFault,
    find::{Finder, advance},
    probe::packing,
    tar::Tar,
};
use crate::artifact::{
    ArtifactError, Decoder, Limits, Watch,
    preview::{MOST_UNPACKED, Most, preview_stream},
    probe::Prefix,
};

/// What a look at the first bytes of a layer found.
#[derive(Debug)]
pub struct LayerPreview {
    /// The disk, where it begins within these bytes, or what is wrong with it. Its format is known only where enough of it is
    /// there.
    pub disk: Option<Result<LayerProbe, ArtifactError>>,
    /// What the layer has instead, where all of it was read and there is no disk.
    pub missing: Option<ContainerFault>,
    /// Whether the layer was read to its end, with every check that it carries: it holds no other disk.
    pub is_read: bool,
    /// Whether its disk was seen whole as well, and is sound.
    pub is_whole: bool,
}

/// Looks at `head`, the first bytes of a layer that has `total` of them by its manifest. What [`super::ingest_layer`] would find
/// wrong with these very bytes is found, by the same code; nothing is written.
///
/// # Errors
/// As [`super::ingest_layer`], where the bytes that are there prove it, but for the disk's own: another layer may hold one too, and
/// that comes first. That a layer has no disk is no error either: another may have it.
pub fn preview_layer(head: &[u8], total: u64, limits: &Limits) -> Result<LayerPreview, ArtifactError> {
    let limits = Limits { threads: 1, ..limits.clone() };
    let all = total <= head.len() as u64;
    let layer = packing(head)?;
    let decoder = Decoder::new(Prefix { rest: head, all }, layer, &limits, Watch::idle())?;
    let mut tar = Tar::new(Most { inner: decoder, left: MOST_UNPACKED });
    let mut finder = Finder::default();
    let (mut disk, mut disk_is_whole) = (None, true);
    let mut walk = || {
        while let Some(entry) = advance(&mut tar, &mut finder)? {
            let seen = preview_stream(Data(&mut tar), Some(entry.size), &limits);
            let is_bad = seen.is_err();
            disk_is_whole = seen.as_ref().is_ok_and(|seen| seen.is_whole);
            disk = Some(seen.map(|seen| LayerProbe {
                format: seen.probe.map(|probe| LayerFormat { layer, disk: probe.format }),
                virtual_size: seen.probe.and_then(|probe| probe.virtual_size),
            }));
            if is_bad {
                // An intake stops here.
                return Ok(false);
            }
        }
        tar.drain().map(|()| true)
    };
    let is_read = match walk() {
        Err(error) if error.is_pause() => false,
        done => done?,
    };
    let missing = if is_read { finder.finish().err() } else { None };
    Ok(LayerPreview { disk, missing, is_read, is_whole: is_read && disk_is_whole })
}

/// The data of a tar's present entry.
struct Data<'a, R>(&'a mut Tar<R>);

impl<R: Read> Read for Data<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read_data(out).map_err(io::Error::from)
    }
}
