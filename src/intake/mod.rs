//! One pass from an opened source to a verified disk in the spool.
//!
//! Bytes are hashed and written while they come, and nothing waits for anything it does not need: the first bytes already
//! tell the format and, mostly, the size of the disk, so that a wrong file, a target that is too small and a spool without
//! room end the intake before anything is stored. What is kept after a failure is a download that can go on, never a disk.

mod bandwidth;
mod container;
mod error;
mod fetch;
mod peek;
mod pipe;
mod progress;
mod verify;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
};
use tokio_util::sync::CancellationToken;

pub use self::{
    bandwidth::Bandwidth,
    error::IntakeError,
    peek::{Extent, PassedOver, Peek, Seen, Served, peek},
    progress::{Progress, Stage},
};
use crate::{
    artifact::Limits,
    model::{Digest, DiskSize, HttpUrl, Identity, SchematicId, Source},
    source::{Credentials, Egress},
    spool::{Draft, SpoolError, Spooled, Store},
};

/// Takes artifacts in. Clones share everything.
#[derive(Clone)]
pub struct Intake {
    /// The way out.
    pub egress: Egress,
    /// Where disks go.
    pub store: Store,
    /// What one disk may cost; `reserved` is set for each.
    pub limits: Limits,
    /// What all fetches together may take of the network.
    pub bandwidth: Bandwidth,
}

/// Which artifact to take in.
#[derive(Clone)]
pub struct IntakeRequest {
    /// Its identity: at one time it is fetched once, whoever asks.
    pub identity: Identity,
    /// Where it comes from.
    pub source: Source,
    /// The ID that a factory gave for the source's schematic document.
    pub schematic_id: Option<SchematicId>,
    /// Shown to the source's own server only.
    pub credentials: Vec<Credentials>,
    /// PEM certificates trusted besides the common ones.
    pub ca_bundle: Option<Vec<u8>>,
    /// The digest that the bytes must have, where one is known.
    pub digest: Option<Digest>,
    /// The digest of the disk that goldens were made from, where there are any: another one in the spool is no answer, as upstream may
    /// have the right bytes by now.
    pub disk: Option<Digest>,
    /// Whether the targets are large enough.
    pub fits: Fits,
}

/// Says of a disk's size in bytes whether every target can hold it, or which one cannot and what it needs. It is asked as
/// soon as the size is known.
pub type Fits = Arc<dyn Fn(DiskSize) -> Result<(), String> + Send + Sync>;

impl fmt::Debug for IntakeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntakeRequest").field("identity", &self.identity).field("digest", &self.digest).finish_non_exhaustive()
    }
}

impl Intake {
    /// Takes an artifact in, or finds that it is in the spool already. One call is one attempt: the caller waits and tries
    /// again, and the download then goes on where it broke off, if upstream can.
    ///
    /// When the future is dropped or `cancel` fires, threads at work end within about a mebibyte and then clean up.
    ///
    /// # Errors
    /// See [`IntakeError`].
    pub async fn run(
        &self,
        request: &IntakeRequest,
        progress: &watch::Sender<Progress>,
        cancel: &CancellationToken,
    ) -> Result<Spooled, IntakeError> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(IntakeError::Cancelled),
            done = self.take_in(request, progress) => done,
        }
    }

    async fn take_in(&self, request: &IntakeRequest, progress: &watch::Sender<Progress>) -> Result<Spooled, IntakeError> {
        progress.send_replace(Progress::default());
        if let Some(found) = self.find(request).await? {
            progress.send_modify(|progress| progress.stage = Stage::Done);
            return Ok(found);
        }
        let draft = Held::new(self.store.begin(&request.identity).await?);
        // Whoever was waited for may have taken it in.
        if let Some(found) = self.find(request).await? {
            progress.send_modify(|progress| progress.stage = Stage::Done);
            return Ok(found);
        }
        let mut attempt = Attempt { intake: self, request, progress, draft, before: true, demoted: Vec::new() };
        let mut last = None;
        loop {
            let failure = match attempt.run().await {
                Ok(spooled) => return Ok(spooled),
                Err(failure) => failure,
            };
            match failure {
                Failure::Final(error) => {
                    // Bytes that can never become a disk are not kept to go on from.
                    if error.reason().is_terminal() || error.blames_the_bytes() {
                        attempt.draft.0.discard();
                    }
                    return Err(error);
                }
                // Once at most, since nothing is left after it.
                Failure::Anew(error) => {
                    tracing::warn!(image = %request.identity, error = %error, "what was left of a download is not what is wanted: starting over");
                    attempt.draft.0.discard();
                }
                // Every other place failed, and this one has been tried.
                Failure::Again => return Err(IntakeError::MirrorsOnly { last: Box::new(last.unwrap_or(IntakeError::Cancelled)) }),
                Failure::Elsewhere(error, mirror) => {
                    tracing::warn!(image = %request.identity, error = %error, "a mirror served bad bytes: asking the others");
                    attempt.draft.0.discard();
                    attempt.demoted.push(mirror);
                    last = Some(error);
                }
            }
        }
    }

    /// The artifact, if it is in the spool and is the one that is asked for.
    async fn find(&self, request: &IntakeRequest) -> Result<Option<Spooled>, IntakeError> {
        let (store, identity) = (self.store.clone(), request.identity.clone());
        let found = pipe::joined(spawn_blocking(move || store.find(&identity)).await)??;
        // Taken in without a digest, and now one is known that it has not: upstream may have the right bytes by now.
        let Some(found) = found.filter(|found| request.digest.is_none_or(|digest| digest == found.record.artifact.digest)) else {
            return Ok(None);
        };
        if request.disk.is_some_and(|disk| disk != found.record.disk.digest) {
            return Ok(None);
        }
        check_fits(request, found.record.disk.virtual_size)?;
        Ok(Some(found))
    }
}

/// One intake under way.
struct Attempt<'a> {
    intake: &'a Intake,
    request: &'a IntakeRequest,
    progress: &'a watch::Sender<Progress>,
    draft: Held,
    /// Whether what a former attempt left is still to be gone on from.
    before: bool,
    /// Mirrors that served bad bytes.
    demoted: Vec<HttpUrl>,
}

/// Why an attempt ended.
enum Failure {
    /// For good.
    Final(IntakeError),
    /// By the fault of a mirror: others may do better.
    Elsewhere(IntakeError, HttpUrl),
    /// By bytes that a former attempt left: upstream is to be asked for its own.
    Anew(IntakeError),
    /// Only a mirror that served bad bytes before would serve.
    Again,
}

impl<E: Into<IntakeError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Final(error.into())
    }
}

/// A draft that is let go on a thread that may wait for the volume.
struct Held(Arc<Draft>);

impl Held {
    fn new(draft: Draft) -> Self {
        Self(Arc::new(draft))
    }

    fn share(&self) -> Arc<Draft> {
        Arc::clone(&self.0)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let draft = self.share();
            // This copy goes at once; the one that the thread has is, but for a race that harms nothing, the last.
            drop(runtime.spawn_blocking(move || drop(draft)));
        }
    }
}

/// Work on a blocking thread that is told to stop when nobody waits for it any more.
async fn blocking<T: Send + 'static>(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Result<T, SpoolError> {
    struct Stop(Arc<AtomicBool>);
    impl Drop for Stop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = Stop(Arc::new(AtomicBool::new(false)));
    let seen = Arc::clone(&stop.0);
    let task: JoinHandle<T> = spawn_blocking(move || work(&seen));
    pipe::joined(task.await)
}

fn check_fits(request: &IntakeRequest, bytes: u64) -> Result<(), IntakeError> {
    let Some(virtual_size) = DiskSize::from_bytes(bytes) else { return Ok(()) };
    (request.fits)(virtual_size).map_err(|message| IntakeError::SizeTooSmall { virtual_size, message })
}
