//! Fetches under way, by GoldenImage UID, and questions to upstreams. A job outlives the reconcile that began it, and never the term; its
//! end wakes the image.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::FutureExt as _;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{golden::FetchView, model::DiskSize, rules::Reason};

type Wake = Arc<dyn Fn(&str) + Send + Sync>;

/// The jobs of one term of leadership.
#[derive(Clone)]
pub struct Jobs {
    jobs: Arc<Mutex<HashMap<String, Job>>>,
    wake: Wake,
    stop: CancellationToken,
    /// How many upstreams are asked for changes at once.
    questions: Arc<Semaphore>,
}

/// A new leader has not asked any upstream yet, and must not ask for all images at once.
const QUESTIONS: usize = 4;

struct Job {
    cancel: CancellationToken,
    view: FetchView,
    /// The disk's size, as the beginning of the bytes told it last.
    size: Option<DiskSize>,
    /// Why it stands still, where it is the spool's volume that keeps it.
    hung: Option<String>,
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

    /// Why the job stands still, or that it goes on. The image is woken when it is news.
    pub fn tell_hung(&self, why: Option<&str>) {
        let mut jobs = self.jobs.lock();
        let Some(job) = jobs.get_mut(&self.uid) else { return };
        if job.hung.as_deref() == why {
            return;
        }
        job.hung = why.map(str::to_owned);
        drop(jobs);
        (self.jobs.wake)(&self.name);
    }
}

impl Jobs {
    /// No jobs; `wake` is given the name of an image that should be looked at. Everything ends with `stop`.
    pub fn new(stop: CancellationToken, wake: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { jobs: Arc::default(), wake: Arc::new(wake), stop, questions: Arc::new(Semaphore::new(QUESTIONS)) }
    }

    /// Asks an upstream something in its turn. Whatever has not been answered when everything ends is dropped.
    pub fn ask<F>(&self, question: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, turns) = (self.stop.clone(), Arc::clone(&self.questions));
        let in_turn = async move {
            let _turn = turns.acquire().await;
            question.await;
        };
        tokio::spawn(async move {
            tokio::select! { biased; () = stop.cancelled() => {}, () = in_turn => {} }
        });
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

    /// Why the image's job stands still, where it is the spool's volume that keeps it.
    pub fn hung(&self, uid: &str) -> Option<String> {
        self.lock().get(uid)?.hung.clone()
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
        jobs.insert(uid.to_owned(), Job { cancel: cancel.clone(), view: FetchView::Running { percent: None }, size, hung: None });
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
                (job.view, job.hung) = (view, None);
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

    #[tokio::test]
    async fn what_keeps_a_job_is_told_while_it_does() {
        let woken = Arc::new(Notify::new());
        let wake = Arc::clone(&woken);
        let jobs = Jobs::new(CancellationToken::new(), move |_| wake.notify_one());
        let go = Arc::new(Notify::new());
        let again = Arc::clone(&go);
        jobs.start("uid", "a", |progress, _| async move {
            progress.tell_hung(Some("it hangs"));
            again.notified().await;
            progress.tell_hung(None);
            again.notified().await;
            progress.tell_hung(Some("it hangs once more"));
            FetchView::Idle
        });
        for hung in [Some("it hangs"), None, None] {
            woken.notified().await;
            assert_eq!(jobs.hung("uid").as_deref(), hung);
            go.notify_one();
        }
    }

    /// An upstream may take minutes to answer: what waits for it, or for its turn, does not outlive the term.
    #[tokio::test]
    async fn questions_are_asked_in_turns_and_end_with_the_term() {
        let stop = CancellationToken::new();
        let jobs = Jobs::new(stop.clone(), |_| {});
        let (asked, answered) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let alive = Arc::new(AtomicUsize::new(0));
        for _ in 0..super::QUESTIONS + 2 {
            let (asked, answered, alive) = (Arc::clone(&asked), Arc::clone(&answered), Arc::clone(&alive));
            let held = Arc::clone(&alive);
            jobs.ask(async move {
                let _held = held;
                alive.fetch_add(1, Ordering::SeqCst);
                asked.notify_one();
                answered.notified().await;
            });
        }
        while alive.load(Ordering::SeqCst) < super::QUESTIONS {
            asked.notified().await;
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(alive.load(Ordering::SeqCst), super::QUESTIONS, "the others wait for their turn");
        answered.notify_one();
        while alive.load(Ordering::SeqCst) < super::QUESTIONS + 1 {
            asked.notified().await;
        }
        stop.cancel();
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(alive.load(Ordering::SeqCst), super::QUESTIONS + 1, "the last one was never asked");
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
