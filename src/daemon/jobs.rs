//! Fetches under way, by GoldenImage UID. A job outlives the reconcile that began it; its end wakes the image.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;

use crate::{golden::FetchView, model::DiskSize, rules::Reason};

type Wake = Arc<dyn Fn(&str) + Send + Sync>;

/// The jobs of one term of leadership.
#[derive(Clone)]
pub struct Jobs {
    jobs: Arc<Mutex<HashMap<String, Job>>>,
    wake: Wake,
    stop: CancellationToken,
}

struct Job {
    cancel: CancellationToken,
    view: FetchView,
    /// The disk's size, as the beginning of the bytes told it last.
    size: Option<DiskSize>,
}

/// Tells how far a job is.
#[derive(Clone)]
pub struct Progress {
    jobs: Jobs,
    uid: String,
    name: String,
}

impl Progress {
    /// Percent of the work. The image is woken when a step of ten is passed.
    pub fn tell(&self, percent: u8) {
        let mut jobs = self.jobs.lock();
        let Some(Job { view: FetchView::Running { percent: known }, .. }) = jobs.get_mut(&self.uid) else { return };
        let step = known.is_none_or(|known| known / 10 < percent / 10);
        *known = Some(percent.min(100));
        drop(jobs);
        if step {
            (self.jobs.wake)(&self.name);
        }
    }
}

impl Progress {
    /// The size of the disk that is coming, as soon as it is known. The image is woken when it is news.
    pub fn tell_size(&self, size: DiskSize) {
        let mut jobs = self.jobs.lock();
        let Some(job) = jobs.get_mut(&self.uid) else { return };
        let is_news = job.size.replace(size) != Some(size);
        drop(jobs);
        if is_news {
            (self.jobs.wake)(&self.name);
        }
    }
}

impl Jobs {
    /// No jobs; `wake` is given the name of an image that should be looked at. Everything ends with `stop`.
    pub fn new(stop: CancellationToken, wake: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { jobs: Arc::default(), wake: Arc::new(wake), stop }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the image's job is doing, or how it ended.
    pub fn view(&self, uid: &str) -> FetchView {
        self.lock().get(uid).map_or(FetchView::Idle, |job| job.view.clone())
    }

    /// The size of the image's disk, as this process last saw it while it was fetched.
    pub fn size(&self, uid: &str) -> Option<DiskSize> {
        self.lock().get(uid)?.size
    }

    /// Starts a job, unless one is running for this image. `work` ends with what is to be seen of it afterwards.
    pub fn start<W, F>(&self, uid: &str, name: &str, work: W)
    where
        W: FnOnce(Progress, CancellationToken) -> F,
        F: Future<Output = FetchView> + Send + 'static,
    {
        let mut jobs = self.lock();
        if matches!(jobs.get(uid), Some(Job { view: FetchView::Running { .. }, .. })) {
            return;
        }
        let cancel = self.stop.child_token();
        let size = jobs.get(uid).and_then(|former| former.size);
        jobs.insert(uid.to_owned(), Job { cancel: cancel.clone(), view: FetchView::Running { percent: None }, size });
        drop(jobs);
        let progress = Progress { jobs: self.clone(), uid: uid.to_owned(), name: name.to_owned() };
        let (this, uid, name) = (self.clone(), uid.to_owned(), name.to_owned());
        let work = std::panic::AssertUnwindSafe(work(progress, cancel.clone())).catch_unwind();
        tokio::spawn(async move {
            let view = tokio::select! {
                biased;
                view = work => view.unwrap_or_else(|_| {
                    tracing::error!(image = name, "a fetch panicked; it is tried again later");
                    panicked()
                }),
                () = cancel.cancelled() => FetchView::Idle,
            };
            if let Some(job) = this.lock().get_mut(&uid) {
                job.view = view;
            }
            (this.wake)(&name);
        });
    }

    /// Stops the image's job, if one runs. What it leaves is what its work leaves when it is dropped.
    pub fn cancel(&self, uid: &str) {
        if let Some(job) = self.lock().get(uid) {
            job.cancel.cancel();
        }
    }

    /// Stops and forgets the image's job.
    pub fn forget(&self, uid: &str) {
        if let Some(job) = self.lock().remove(uid) {
            job.cancel.cancel();
        }
    }
}

/// How a job ended that has a fault of ours in it: as a failed attempt, since what is left at "running" would never be begun again.
fn panicked() -> FetchView {
    let message = "The fetch ended in a fault of golden-catalog itself (its log says where).".to_owned();
    FetchView::Failed { reason: Reason::Unavailable, message, retry_after: None }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::sync::Notify;
    use tokio_util::sync::CancellationToken;

    use super::Jobs;
    use crate::golden::FetchView;

    #[tokio::test]
    async fn one_job_an_image_and_its_end_wakes() {
        let woken = Arc::new(Notify::new());
        let wake = Arc::clone(&woken);
        let jobs = Jobs::new(CancellationToken::new(), move |_| wake.notify_one());
        let begun = Arc::new(AtomicUsize::new(0));
        let go = Arc::new(Notify::new());
        for _ in 0..2 {
            let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
            jobs.start("uid", "a", |progress, _| async move {
                begun.fetch_add(1, Ordering::SeqCst);
                progress.tell(42);
                go.notified().await;
                FetchView::Idle
            });
        }
        woken.notified().await;
        assert_eq!(jobs.view("uid"), FetchView::Running { percent: Some(42) });
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        go.notify_one();
        woken.notified().await;
        assert_eq!(jobs.view("uid"), FetchView::Idle);
    }

    /// Known from the first bytes on, and kept over attempts: what it makes impossible is not told again and again.
    #[tokio::test]
    async fn the_size_of_what_is_coming_is_told_at_once_and_kept() {
        let woken = Arc::new(Notify::new());
        let wake = Arc::clone(&woken);
        let jobs = Jobs::new(CancellationToken::new(), move |_| wake.notify_one());
        let size = crate::model::DiskSize::from_bytes(48 << 20).expect("size");
        jobs.start("uid", "a", |progress, _| async move {
            progress.tell_size(size);
            std::future::pending().await
        });
        woken.notified().await;
        assert_eq!((jobs.size("uid"), jobs.view("uid")), (Some(size), FetchView::Running { percent: None }));
        jobs.cancel("uid");
        woken.notified().await;
        assert_eq!((jobs.size("uid"), jobs.view("uid")), (Some(size), FetchView::Idle));
        jobs.start("uid", "a", |_, _| std::future::ready(FetchView::Idle));
        woken.notified().await;
        assert_eq!(jobs.size("uid"), Some(size));
        jobs.forget("uid");
        assert_eq!(jobs.size("uid"), None);
    }

    /// What stayed at "running" would never be begun again.
    #[tokio::test]
    async fn a_job_that_panics_has_failed_and_may_be_begun_again() {
        let woken = Arc::new(Notify::new());
        let wake = Arc::clone(&woken);
        let jobs = Jobs::new(CancellationToken::new(), move |_| wake.notify_one());
        jobs.start("uid", "a", |_, _| async { panic!("a fault of ours") });
        woken.notified().await;
        assert!(matches!(jobs.view("uid"), FetchView::Failed { .. }), "{:?}", jobs.view("uid"));
        jobs.start("uid", "a", |_, _| std::future::ready(FetchView::Idle));
        woken.notified().await;
        assert_eq!(jobs.view("uid"), FetchView::Idle);
    }

    #[tokio::test]
    async fn a_stopped_job_is_dropped() {
        let woken = Arc::new(Notify::new());
        let wake = Arc::clone(&woken);
        let stop = CancellationToken::new();
        let jobs = Jobs::new(stop.clone(), move |_| wake.notify_one());
        jobs.start("uid", "a", |_, _| std::future::pending());
        stop.cancel();
        woken.notified().await;
        assert_eq!(jobs.view("uid"), FetchView::Idle);
    }
}
