//! From every byte of the artifact to a verified disk in the spool.

use std::sync::Arc;

use super::{
    Attempt, Failure, IntakeError, Progress, Stage, blocking, check_fits,
    fetch::{Fetched, Shape, blame, blamed_on},
};
use crate::{
    artifact::{ArtifactError, Ingested, LayerFormat, Limits, Watch, ingest, ingest_layer},
    spool::{DiskFacts, DiskFile, Record, SpoolError, Spooled, Verified},
};

impl Attempt<'_> {
    /// The whole attempt.
    pub(super) async fn run(&mut self) -> Result<Spooled, Failure> {
        let (fetched, came) = self.fetch().await?;
        self.verify(fetched).await.map_err(|error| blamed_on(error, came))
    }

    async fn verify(&self, fetched: Fetched) -> Result<Spooled, IntakeError> {
        let Fetched { file, mut artifact, shape, room } = fetched;
        let size = artifact.size;
        self.progress.send_modify(|progress| *progress = Progress { stage: Stage::Verifying, done: 0, total: Some(size), ..*progress });

        // The download becomes durable while it is being decoded: both only read it.
        let syncing = {
            let (draft, file, digest) = (self.draft.share(), Arc::clone(&file), artifact.digest);
            blocking(move |_| draft.complete(&file, size, digest))
        };
        let decoding = {
            let (draft, limits, progress, digest) =
                (self.draft.share(), self.intake.limits.clone(), self.progress.clone(), artifact.digest);
            blocking(move |stop| -> Result<Result<(Ingested, Option<LayerFormat>), ArtifactError>, SpoolError> {
                let output = draft.output()?;
                let mut room = room;
                let read = |bytes| progress.send_modify(|progress| progress.done = bytes);
                loop {
                    let limits = Limits { reserved: room, ..limits.clone() };
                    let watch = Watch { progress: &read, cancel: stop };
                    let done = match shape {
                        Shape::File(format) => ingest(&file, Some(digest), format, &output, &limits, watch).map(|disk| (disk, None)),
                        Shape::Layer(_) => ingest_layer(&file, &output, &limits, watch).map(|layer| (layer.disk, Some(layer.format))),
                    };
                    match done {
                        Err(ArtifactError::OverReservation { .. }) => {
                            // Twice as much, so that it is seldom begun anew, though one byte more is all that is known to be needed.
                            let wanted = size.saturating_add(room.saturating_mul(2));
                            room = draft.grow(size.saturating_add(room).saturating_add(1), wanted)?.saturating_sub(size);
                        }
                        done => return Ok(done),
                    }
                }
            })
        };
        let (synced, decoded) = tokio::join!(syncing, decoding);
        let (disk, layer) = match decoded?? {
            Ok(disk) => disk,
            Err(error) => return Err(blame(error, &artifact.resolved_url)),
        };
        synced??;
        if let Some(format) = layer {
            artifact.format = format.to_string();
        }
        let virtual_size = disk.virtual_size.bytes();
        check_fits(self.request, virtual_size)?;
        let disk_facts = DiskFacts { digest: disk.disk_digest, length: disk.disk_len, virtual_size };
        // A layer has the digest that its manifest names, and that one the digest of the reference.
        let verified = if self.request.digest.is_some() || artifact.container.is_some() { Verified::Digest } else { Verified::Structure };
        let record = Record { artifact, disk: disk_facts, verified };
        let from = if disk.disk_is_input { DiskFile::Download } else { DiskFile::Output };
        let draft = self.draft.share();
        let spooled = blocking(move |_| draft.commit(record, from)).await??;
        self.progress.send_modify(|progress| progress.stage = Stage::Done);
        Ok(spooled)
    }
}
