//! From a container image to the layer that holds its disk.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::{
    Attempt, Failure, IntakeError, blocking,
    fetch::{blame, blamed_on},
};
use crate::{
    artifact::{ArtifactError, LayerFormat, LayerProber, Limits, Prober, Watch, scan_layer},
    model::{Architecture, ContainerFacts, ContainerReference, Digest, DiskSize},
    source::{ContainerImage, Egress, Layer, OpenRequest, Opened, Registry},
};

/// Chunks that wait to be scanned.
const WAITING: usize = 32;

impl Attempt<'_> {
    /// Opens the layer with the disk; `before` is what a former attempt was about.
    pub(super) async fn open_container(
        &self,
        ask: &OpenRequest<'_>,
        reference: &ContainerReference,
        architecture: Architecture,
        before: Option<&ContainerFacts>,
    ) -> Result<(Opened, ContainerFacts), Failure> {
        let mut registry = self.intake.egress.registry(ask, reference, architecture);
        let image = registry.image().await?;
        let known = before.and_then(|before| image.layers.iter().find(|layer| layer.digest == before.layer));
        let layer = match known {
            Some(layer) => *layer,
            None => self.choose(&mut registry, &image).await?,
        };
        let opened = registry.open(&layer).await?;
        let facts = ContainerFacts { index: image.index, manifest: image.manifest, layer: layer.digest, defaults: image.defaults };
        Ok((opened, facts))
    }

    /// The layer to take the disk from: the only one, or where there are more the largest, once all others were read to
    /// their end and hold none. One of those that does is taken instead, once the largest is known to hold none.
    async fn choose(&self, registry: &mut Registry<'_>, image: &ContainerImage) -> Result<Layer, Failure> {
        let mut layers: Vec<Layer> = Vec::new();
        for layer in &image.layers {
            // An empty layer is often listed many times.
            if !layers.contains(layer) {
                layers.push(*layer);
            }
        }
        layers.sort_by_key(|layer| std::cmp::Reverse(layer.size));
        let Some((largest, others)) = layers.split_first() else { return Err(IntakeError::Cancelled.into()) };
        let mut holder: Option<Layer> = None;
        for layer in others {
            if self.holds_disk(registry, layer).await? {
                if let Some(first) = holder {
                    return Err(two(&first, layer).into());
                }
                holder = Some(*layer);
            }
        }
        match holder {
            None => Ok(*largest),
            Some(holder) if self.holds_disk(registry, largest).await? => Err(two(&holder, largest).into()),
            Some(holder) => Ok(holder),
        }
    }

    /// Reads a layer to its end, without keeping it.
    async fn holds_disk(&self, registry: &mut Registry<'_>, layer: &Layer) -> Result<bool, Failure> {
        let opened = registry.open(layer).await?;
        if self.demoted.contains(&opened.facts.from) {
            return Err(Failure::Again);
        }
        let mirror = opened.facts.is_mirror.then(|| opened.facts.from.clone());
        self.scan(opened, layer).await.map_err(|error| blamed_on(error, mirror))
    }

    async fn scan(&self, opened: Opened, layer: &Layer) -> Result<bool, IntakeError> {
        let Opened { facts, mut body, .. } = opened;
        let (to_scan, chunks) = mpsc::channel(WAITING);
        let limits = self.intake.limits.clone();
        let scan = blocking(move |stop| {
            let mut reader = Chunks { chunks, chunk: Bytes::new(), hasher: Sha256::new(), length: 0 };
            let found = scan_layer(&mut reader, &limits, Watch { progress: &|_| (), cancel: stop });
            // What is said about bytes that are not the layer's is worth nothing: the digest comes first.
            let _ = io::copy(&mut reader, &mut io::sink());
            (found, Digest::from_bytes(reader.hasher.finalize().into()), reader.length)
        });
        let feed = async {
            while let Some(chunk) = body.chunk().await? {
                self.intake.bandwidth.pay(chunk.len()).await;
                if to_scan.send(chunk).await.is_err() {
                    break;
                }
            }
            drop(to_scan);
            Ok::<_, IntakeError>(())
        };
        let (fed, scanned) = tokio::join!(feed, scan);
        fed?;
        let (found, digest, size) = scanned?;
        if digest != layer.digest {
            return Err(IntakeError::DigestMismatch { expected: layer.digest, found: digest, size, from: facts.resolved_url });
        }
        found.map_err(|error| blame(error, &facts.resolved_url))
    }
}

fn two(first: &Layer, second: &Layer) -> IntakeError {
    let fault = crate::artifact::ContainerFault::Several {
        first: format!("one in the layer {}", first.digest),
        second: format!("one in the layer {}", second.digest),
    };
    IntakeError::Artifact { error: ArtifactError::Container(fault), from: "the image's layers".to_owned() }
}

/// Chunks as a reader, hashed on their way.
struct Chunks {
    chunks: mpsc::Receiver<Bytes>,
    chunk: Bytes,
    hasher: Sha256,
    length: u64,
}

impl Read for Chunks {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.chunks.blocking_recv() {
                Some(chunk) => {
                    self.hasher.update(&chunk);
                    self.length += chunk.len() as u64;
                    self.chunk = chunk;
                }
                None => return Ok(0),
            }
        }
        let count = self.chunk.len().min(out.len());
        self.chunk.copy_to_slice(&mut out[..count]);
        Ok(count)
    }
}

/// What the first bytes of a container disk tell.
#[derive(Debug, Clone)]
pub struct ContainerPeek {
    /// The image.
    pub image: ContainerImage,
    /// Where the layer comes from, in its public form.
    pub resolved_url: String,
    /// How many bytes a fetch transfers: every layer once, though only one is kept.
    pub download: u64,
    /// How many bytes of a layer were read for this.
    pub read: u64,
    /// How the disk is packed, where it begins early enough in its layer.
    pub format: Option<LayerFormat>,
    /// How large it is, where its own tables say so.
    pub virtual_size: Option<DiskSize>,
}

/// Looks at a container disk: its documents, and at most the first mebibyte of the layer that most likely holds the disk.
/// No more is read than is needed.
///
/// # Errors
/// As [`super::Intake::run`], without the spool's.
pub async fn peek_container(
    egress: &Egress,
    limits: &Limits,
    ask: &OpenRequest<'_>,
    reference: &ContainerReference,
    architecture: Architecture,
) -> Result<ContainerPeek, IntakeError> {
    let mut registry = egress.registry(ask, reference, architecture);
    let image = registry.image().await?;
    let Some(layer) = image.layers.iter().max_by_key(|layer| layer.size).copied() else { return Err(IntakeError::Cancelled) };
    let Opened { facts, mut body, .. } = registry.begin(&layer, Prober::MAX).await?;
    let mut prober = LayerProber::new(layer.size, limits);
    let mut read = 0;
    let probe = loop {
        let most = Prober::MAX as u64 - read;
        let chunk = if most == 0 { None } else { body.chunk().await? };
        let Some(mut chunk) = chunk else { break prober.finish().map_err(|error| blame(error, &facts.resolved_url))? };
        chunk.truncate(usize::try_from(most).unwrap_or(usize::MAX).min(chunk.len()));
        read += chunk.len() as u64;
        let (fed, probe) = blocking(move |_| {
            let probe = prober.feed(&chunk);
            (prober, probe)
        })
        .await?;
        prober = fed;
        if let Some(probe) = probe.map_err(|error| blame(error, &facts.resolved_url))? {
            break probe;
        }
    };
    let download = image.layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.size));
    let resolved_url = facts.resolved_url;
    Ok(ContainerPeek { image, resolved_url, download, read, format: probe.format, virtual_size: probe.virtual_size })
}
