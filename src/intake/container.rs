//! From a container image to the layer that holds its disk.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::{
    Attempt, Failure, IntakeError, blocking,
    fetch::{Came, blame, blamed_on},
};
use crate::{
    artifact::{ArtifactError, Watch, scan_layer},
    model::{Architecture, ContainerFacts, ContainerReference, Digest},
    source::{ContainerImage, Layer, OpenRequest, Opened, Registry},
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
        let layers = largest_first(image);
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
        let came = Came::of(&opened.facts);
        self.scan(opened, layer).await.map_err(|error| blamed_on(error, came))
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

/// The layers, each once: an empty one is often listed many times.
pub(super) fn largest_first(image: &ContainerImage) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    for layer in &image.layers {
        if !layers.contains(layer) {
            layers.push(*layer);
        }
    }
    layers.sort_by_key(|layer| std::cmp::Reverse(layer.size));
    layers
}

pub(super) fn two(first: &Layer, second: &Layer) -> IntakeError {
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
