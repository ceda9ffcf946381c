//! From an upstream, or what a former attempt left, to every byte of the artifact in the draft.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::{Arc, atomic::Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{
    Attempt, Failure, IntakeError, Progress, Stage, blocking, check_fits,
    pipe::{LEAST_ROOM, Pipe, STEP, Start, least_beside},
};
use crate::{
    artifact::{ArtifactError, DiskFormat, Format, LayerFormat, LayerProber, Prober, output_upper_bound, qcow2_upper_bound},
    model::{ContainerFacts, Digest, DiskSize, HttpUrl, Source},
    source::{Facts, Fault, OpenRequest, Opened, Resume},
    spool::{ArtifactFacts, Sidecar, SpoolError},
};

/// Every byte of an artifact, in the draft, hashed, and the room that is reserved for the disk.
pub(super) struct Fetched {
    pub(super) file: Arc<File>,
    pub(super) artifact: ArtifactFacts,
    pub(super) shape: Shape,
    /// Bytes reserved beside the download.
    pub(super) room: u64,
}

/// The beginning of an artifact in the draft: what a former attempt left, or nothing.
struct Beginning {
    file: Arc<File>,
    length: u64,
    hasher: Sha256,
    looked: Looked,
    sidecar: Sidecar,
}

/// What an artifact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A disk, as it is or packed.
    File(Format),
    /// A layer of a container image; `None` where its beginning does not show the disk.
    Layer(Option<LayerFormat>),
}

/// What the first bytes tell.
#[derive(Debug, Clone, Copy)]
struct Seen {
    shape: Shape,
    virtual_size: Option<DiskSize>,
}

/// Looks at the first bytes.
enum AnyProber {
    File(Prober),
    Layer(LayerProber),
}

/// What is known of the format.
enum Looked {
    /// More bytes are needed.
    More(AnyProber),
    /// All that the bytes will tell.
    Done(Seen),
}

/// Bytes read at once when a download is hashed again.
const PIECE: usize = 1 << 20;

impl Attempt<'_> {
    /// Fetches what is not there yet; also gives where it came from.
    pub(super) async fn fetch(&mut self) -> Result<(Fetched, Came), Failure> {
        let beginning = if std::mem::take(&mut self.before) { self.look_again().await? } else { None };
        let beginning = match beginning {
            Some(whole) if whole.sidecar.total == Some(whole.length) => {
                tracing::debug!(image = %self.request.identity, bytes = whole.length, "every byte is here already");
                return match self.finish_whole(whole).await {
                    Ok(fetched) => Ok((fetched, Came::Left)),
                    Err(error) => Err(blamed_on(error, Came::Left)),
                };
            }
            beginning => beginning,
        };
        let resume = beginning.as_ref().and_then(|beginning| {
            let resume = serde_json::from_value::<Resume>(beginning.sidecar.resume.clone()?).ok()?;
            Some(Resume { offset: beginning.length, total: beginning.sidecar.total, ..resume })
        });
        self.progress.send_replace(Progress { stage: Stage::Opening, ..Progress::default() });
        let request = self.request;
        let ask = OpenRequest {
            source: &request.source,
            schematic_id: request.schematic_id.as_ref(),
            ca_bundle: request.ca_bundle.as_deref(),
            credentials: &request.credentials,
            resume: resume.as_ref(),
            demoted: &self.demoted,
        };
        let (opened, container) = match &request.source {
            Source::ContainerDisk { reference, architecture } => {
                let before = beginning.as_ref().and_then(|beginning| beginning.sidecar.container.as_ref());
                let (opened, facts) = self.open_container(&ask, reference, *architecture, before).await?;
                (opened, Some(facts))
            }
            Source::TalosFactory(_) | Source::Http { .. } => (self.intake.egress.open(&ask).await?, None),
        };
        if self.demoted.contains(&opened.facts.from) {
            return Err(Failure::Again);
        }
        // From zero, whatever was there: upstream has other bytes now, or cannot go on.
        let beginning = beginning.filter(|_| opened.offset > 0);
        let came = if beginning.is_some() { Came::Left } else { Came::of(&opened.facts) };
        match self.receive(opened, container, beginning).await {
            Ok(fetched) => Ok((fetched, came)),
            Err(error) => Err(blamed_on(error, came)),
        }
    }

    /// Hashes what a former attempt left, and looks at it as if it came from upstream now.
    async fn look_again(&self) -> Result<Option<Beginning>, Failure> {
        let draft = self.draft.share();
        let Some(before) = draft.before().cloned() else { return Ok(None) };
        self.progress.send_replace(Progress { stage: Stage::Rehashing, total: before.sidecar.total, ..Progress::default() });
        let prober = self.prober(before.sidecar.total);
        let progress = self.progress.clone();
        let read = blocking(move |stop| -> Result<Result<Beginning, ArtifactError>, SpoolError> {
            let file = Arc::new(draft.resume()?);
            let (mut hasher, mut looked) = (Sha256::new(), Looked::More(prober));
            let mut piece = vec![0; PIECE];
            let mut at = 0;
            while at < before.length && !stop.load(Ordering::Relaxed) {
                let wanted = usize::try_from(before.length - at).unwrap_or(PIECE).min(PIECE);
                file.read_exact_at(&mut piece[..wanted], at).map_err(|e| draft.failed("read", e))?;
                hasher.update(&piece[..wanted]);
                looked = match looked.feed(&piece[..wanted]) {
                    Ok(looked) => looked,
                    Err(error) => return Ok(Err(error)),
                };
                at += wanted as u64;
                progress.send_modify(|progress| progress.done = at);
            }
            Ok(Ok(Beginning { file, length: at, hasher, looked, sidecar: before.sidecar }))
        });
        match read.await?? {
            Ok(beginning) => Ok(Some(beginning)),
            // It was judged before it was stored, so it is the volume that changed it; upstream is asked anew.
            Err(error) => {
                tracing::warn!(image = %self.request.identity, error = %error, "what was left of a download is damaged: starting over");
                Ok(None)
            }
        }
    }

    /// What a former attempt left is all of it.
    async fn finish_whole(&self, beginning: Beginning) -> Result<Fetched, IntakeError> {
        let Beginning { file, length, hasher, looked, sidecar } = beginning;
        let digest = Digest::from_bytes(hasher.finalize().into());
        if sidecar.complete.is_some_and(|noted| noted != digest) {
            let draft = self.draft.share();
            draft.discard();
            return Err(draft.failed("trust", io::ErrorKind::InvalidData.into()).into());
        }
        let probe = looked.finish().map_err(|error| blame(error, &sidecar.resolved_url))?;
        self.check(&probe)?;
        let room = self.reserve(length, &probe).await?;
        self.judge(file, length, digest, probe.shape, room, sidecar)
    }

    /// Takes the rest of the artifact, or all of it, from upstream.
    async fn receive(
        &self,
        opened: Opened,
        container: Option<ContainerFacts>,
        beginning: Option<Beginning>,
    ) -> Result<Fetched, IntakeError> {
        let Opened { facts, mut body, .. } = opened;
        let is_new = beginning.is_none();
        let (kept, offset, hasher, mut looked, mut sidecar) = match beginning {
            Some(Beginning { file, length, hasher, looked, sidecar }) => (Some(file), length, hasher, looked, sidecar),
            None => (None, 0, Sha256::new(), Looked::More(self.prober(facts.length)), sidecar(&facts, container)),
        };
        let total = facts.length.or(sidecar.total);
        self.progress.send_replace(Progress { stage: Stage::Fetching, done: offset, total, received: 0 });

        // The first bytes wait in memory, at most 1 MiB and a chunk, until they have told what they are.
        let mut first: Vec<Bytes> = Vec::new();
        let probe = loop {
            looked = match looked {
                Looked::Done(probe) => break probe,
                more @ Looked::More(_) => match body.chunk().await? {
                    Some(chunk) => {
                        self.received(chunk.len()).await;
                        first.push(chunk.clone());
                        // Unpacking the first kilobytes takes milliseconds: too long for a thread that serves others.
                        blocking(move |_| more.feed(&chunk)).await?.map_err(|error| blame(error, &sidecar.resolved_url))?
                    }
                    None => break more.finish().map_err(|error| blame(error, &sidecar.resolved_url))?,
                },
            };
        };
        self.check(&probe)?;
        let download = total.unwrap_or_else(|| offset.saturating_add(STEP));
        let beside = self.reserve(download, &probe).await?;

        let draft = self.draft.share();
        let file = match kept {
            Some(file) => file,
            None => {
                let (draft, sidecar) = (Arc::clone(&draft), sidecar.clone());
                Arc::new(blocking(move |_| draft.start(sidecar)).await??)
            }
        };
        let pipe = Pipe::open(Start { draft: Arc::clone(&draft), file: Arc::clone(&file), at: offset, hasher, room: download, beside });
        let mut length = offset;
        let mut first = first.into_iter();
        let ended = loop {
            let chunk = match first.next() {
                Some(chunk) => chunk,
                None => match body.chunk().await {
                    Ok(Some(chunk)) => {
                        self.received(chunk.len()).await;
                        chunk
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                },
            };
            length = length.saturating_add(chunk.len() as u64);
            if !pipe.give(chunk).await {
                // A thread has ended, and `finish` says why.
                break Ok(());
            }
        };
        // What came before an error is written too, for the next attempt to go on from.
        let (digest, beside) = pipe.finish().await?;
        if let Err(error) = ended {
            // A rest that ends with nothing, though the length says that there is one: the bytes before it help no further. A
            // connection that breaks or stalls says nothing about them.
            if !is_new && length == offset && matches!(error.fault(), Fault::Truncated { .. }) {
                draft.discard();
            }
            return Err(error.into());
        }
        sidecar.total = Some(length);
        self.judge(file, length, digest, probe.shape, beside, sidecar)
    }

    /// Every byte is here: judges it by the digest that is asked for.
    fn judge(
        &self,
        file: Arc<File>,
        length: u64,
        digest: Digest,
        shape: Shape,
        room: u64,
        sidecar: Sidecar,
    ) -> Result<Fetched, IntakeError> {
        let Sidecar { resolved_url, etag, resolved_time, container, .. } = sidecar;
        let known = self.request.digest.or_else(|| container.as_ref().map(|container| container.layer));
        if let Some(expected) = known.filter(|expected| *expected != digest) {
            return Err(IntakeError::DigestMismatch { expected, found: digest, size: length, from: resolved_url });
        }
        let format = match shape {
            Shape::File(format) => format.to_string(),
            // What a layer holds is certain once it is unpacked.
            Shape::Layer(_) => String::new(),
        };
        let artifact = ArtifactFacts { digest, size: length, format, resolved_url, etag, resolved_time, container };
        Ok(Fetched { file, artifact, shape, room })
    }

    /// A prober for what the source serves.
    fn prober(&self, total: Option<u64>) -> AnyProber {
        let limits = &self.intake.limits;
        match &self.request.source {
            Source::ContainerDisk { .. } => AnyProber::Layer(LayerProber::new(total.unwrap_or(u64::MAX), limits)),
            Source::TalosFactory(_) | Source::Http { .. } => AnyProber::File(Prober::new(total, limits)),
        }
    }

    /// Notes and pays for bytes that came.
    async fn received(&self, bytes: usize) {
        self.progress.send_modify(|progress| {
            progress.done += bytes as u64;
            progress.received += bytes as u64;
        });
        self.intake.bandwidth.pay(bytes).await;
    }

    /// Whether the targets can hold what the first bytes tell of.
    fn check(&self, probe: &Seen) -> Result<(), IntakeError> {
        probe.virtual_size.map_or(Ok(()), |size| check_fits(self.request, size.bytes()))
    }

    /// Reserves room for a download of `length` bytes and for its disk; gives the disk's.
    async fn reserve(&self, length: u64, probe: &Seen) -> Result<u64, SpoolError> {
        // A packed disk whose size shows only when it is unpacked begins with less and asks for more as it goes; so does one
        // that would not fit if every cluster of it held data, since most of them never do, and with what can be had.
        let guess = length.saturating_mul(8).max(LEAST_ROOM);
        let plain_qcow2 = Shape::File(Format { disk: DiskFormat::Qcow2, compression: None });
        let most = match (probe.shape, probe.virtual_size) {
            (shape, _) if shape == plain_qcow2 => 0,
            (Shape::File(format), Some(size)) => output_upper_bound(format, size),
            (Shape::Layer(_), Some(size)) => qcow2_upper_bound(size.bytes()),
            (_, None) => guess,
        };
        let least = match probe.shape {
            // Not packed, it may be of holes for the most part.
            Shape::File(Format { compression: None, .. }) => LEAST_ROOM.min(most),
            _ => least_beside(length, most),
        };
        let draft = self.draft.share();
        blocking(move |_| match draft.reserve(length.saturating_add(most)) {
            Err(SpoolError::Full { .. }) => {
                let total = draft.reserve_some(length.saturating_add(least), length.saturating_add(guess.min(most)))?;
                Ok(total.saturating_sub(length).min(most))
            }
            done => done.map(|()| most),
        })
        .await?
    }
}

/// Where bytes came from.
pub(super) enum Came {
    /// From the source itself, now.
    Source,
    /// From a mirror, now.
    Mirror(HttpUrl),
    /// Some or all of them in a former attempt: from whom is not certain, nor what the volume made of them.
    Left,
}

impl Came {
    pub(super) fn of(facts: &Facts) -> Self {
        if facts.is_mirror { Self::Mirror(facts.from.clone()) } else { Self::Source }
    }
}

/// What an error means by where the bytes came from that it is about: only what the source itself serves now is its answer.
pub(super) fn blamed_on(error: IntakeError, came: Came) -> Failure {
    match came {
        Came::Mirror(mirror) if error.blames_the_bytes() => Failure::Elsewhere(error, mirror),
        // What outgrew the spool would do so again.
        Came::Left if error.blames_the_bytes() && !matches!(error, IntakeError::Spool(_)) => Failure::Anew(error),
        _ => Failure::Final(error),
    }
}

pub(super) fn blame(error: ArtifactError, from: &str) -> IntakeError {
    IntakeError::Artifact { error, from: from.to_owned() }
}

/// What is to be known of a download, should it be cut.
fn sidecar(facts: &Facts, container: Option<ContainerFacts>) -> Sidecar {
    Sidecar {
        resolved_url: facts.resolved_url.clone(),
        etag: facts.etag.clone(),
        last_modified: facts.last_modified.clone(),
        total: facts.length,
        resolved_time: now(),
        container,
        resume: facts.resume_at(1).and_then(|resume| serde_json::to_value(resume).ok()),
        complete: None,
        durable: 0,
        boot: String::new(),
    }
}

impl Looked {
    fn feed(self, bytes: &[u8]) -> Result<Self, ArtifactError> {
        match self {
            Self::More(AnyProber::File(mut prober)) => Ok(match prober.feed(bytes)? {
                Some(probe) => Self::Done(Seen { shape: Shape::File(probe.format), virtual_size: probe.virtual_size }),
                None => Self::More(AnyProber::File(prober)),
            }),
            Self::More(AnyProber::Layer(mut prober)) => Ok(match prober.feed(bytes)? {
                Some(probe) => Self::Done(Seen { shape: Shape::Layer(probe.format), virtual_size: probe.virtual_size }),
                None => Self::More(AnyProber::Layer(prober)),
            }),
            done @ Self::Done(_) => Ok(done),
        }
    }

    fn finish(self) -> Result<Seen, ArtifactError> {
        match self {
            Self::More(AnyProber::File(prober)) => {
                prober.finish().map(|probe| Seen { shape: Shape::File(probe.format), virtual_size: probe.virtual_size })
            }
            Self::More(AnyProber::Layer(prober)) => {
                prober.finish().map(|probe| Seen { shape: Shape::Layer(probe.format), virtual_size: probe.virtual_size })
            }
            Self::Done(probe) => Ok(probe),
        }
    }
}

/// The time, to the second, as Kubernetes writes it.
fn now() -> Timestamp {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}
