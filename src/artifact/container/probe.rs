//! The size of the disk inside a layer, from the layer's first bytes.

use super::{
    LayerFormat,
    find::{Finder, advance},
    tar::Tar,
};
use crate::{
    artifact::{ArtifactError, Compression, Decoder, Limits, Probe, Prober, Watch, probe::Prefix, sniff},
    model::DiskSize,
};

/// What the first bytes of a layer say about the disk in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerProbe {
    /// How the disk is packed, where it begins within the bytes that were looked at.
    pub format: Option<LayerFormat>,
    /// How large it is, where its own tables say so.
    pub virtual_size: Option<DiskSize>,
}

/// As [`Prober`], for a layer of a container image: fed with the layer's bytes as they come, at most 1 MiB of them.
#[derive(Debug)]
pub struct LayerProber {
    head: Vec<u8>,
    total: u64,
    limits: Limits,
    next: usize,
}

impl LayerProber {
    /// How many bytes there are at each attempt: it starts over. A disk that stands first in a gzip layer shows after a few
    /// hundred bytes; zstd gives nothing out before a whole block is in.
    const STEPS: [usize; 4] = [4 << 10, 96 << 10, 256 << 10, Prober::MAX];

    /// A prober of a layer that has `total` bytes by its manifest.
    pub fn new(total: u64, limits: &Limits) -> Self {
        Self { head: Vec::new(), total, limits: Limits { threads: 1, ..limits.clone() }, next: Self::STEPS[0] }
    }

    /// Looks at further bytes; `None` means that more are needed.
    ///
    /// # Errors
    /// As [`Prober::feed`], and what is wrong with the archive, as soon as the bytes show it.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<LayerProbe>, ArtifactError> {
        let room = Prober::MAX - self.head.len();
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let all = self.total <= self.head.len() as u64;
        let full = self.head.len() == Prober::MAX;
        if !all && !full && self.head.len() < self.next {
            return Ok(None);
        }
        self.next = Self::STEPS.into_iter().find(|step| *step > self.head.len()).unwrap_or(Prober::MAX);
        match self.look(all)? {
            None if all || full => Ok(Some(LayerProbe { format: None, virtual_size: None })),
            probe => Ok(probe),
        }
    }

    /// What can be said where no more bytes come.
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub fn finish(self) -> Result<LayerProbe, ArtifactError> {
        Ok(self.look(false)?.unwrap_or(LayerProbe { format: None, virtual_size: None }))
    }

    /// `None` where the bytes end before the disk's head does.
    fn look(&self, all: bool) -> Result<Option<LayerProbe>, ArtifactError> {
        match self.read(all) {
            Err(error) if error.is_pause() => Ok(None),
            // A layer that is not all there ends in the middle of something.
            Err(ArtifactError::Truncated { .. }) if !all => Ok(None),
            done => done,
        }
    }

    fn read(&self, all: bool) -> Result<Option<LayerProbe>, ArtifactError> {
        let layer = packing(&self.head)?;
        let mut tar = Tar::new(Decoder::new(Prefix { rest: &self.head, all }, layer, &self.limits, Watch::idle())?);
        let mut finder = Finder::default();
        // The whole layer's verdict is `ingest_layer`'s: another layer may hold the disk.
        let Some(entry) = advance(&mut tar, &mut finder)? else { return Ok(None) };
        let mut prober = Prober::new(Some(entry.size), &self.limits);
        let mut piece = vec![0; 16 << 10];
        loop {
            let probe = match tar.read_data(&mut piece)? {
                0 => Some(prober.finish()?),
                count => prober.feed(&piece[..count])?,
            };
            if let Some(Probe { format, virtual_size }) = probe {
                return Ok(Some(LayerProbe { format: Some(LayerFormat { layer, disk: format }), virtual_size }));
            }
        }
    }
}

/// How a layer is packed, by its first bytes; its media type is not asked.
///
/// # Errors
/// It is packed in a way that is not taken.
pub(super) fn packing(head: &[u8]) -> Result<Option<Compression>, ArtifactError> {
    match sniff::magic(head) {
        sniff::Magic::Packed(compression) => Ok(Some(compression)),
        // A tar is what is expected, and told by its own header.
        sniff::Magic::Unsupported(name) if !name.starts_with("a tar") => {
            Err(ArtifactError::unsupported(format!("the layer is {name}; build the image with gzip, zstd or uncompressed layers")))
        }
        _ => Ok(None),
    }
}
