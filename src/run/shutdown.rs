//! Tasks that belong to the process, and its end: nobody dies unseen, everybody is told, and nobody is waited for without end.

use std::{
    fmt::Display,
    future::Future,
    process::ExitCode,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::{Id, JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

/// When a task is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// First: what reconciles, fetches and writes.
    Work,
    /// Once all work has ended: the Lease (given up only then), health, metrics, events.
    Base,
}

/// How the process came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Asked to, and everybody ended in time.
    Clean,
    /// A task ended that should have gone on.
    TaskEnded {
        /// The task.
        task: String,
        /// Its error or panic, or that it just returned.
        why: String,
    },
    /// Asked to, but these tasks did not end in time.
    DeadlinePassed {
        /// The tasks.
        tasks: Vec<String>,
    },
    /// Asked to while tasks were still ending, a second time: by a person who does not want to wait.
    Impatient,
}

impl Ending {
    /// 0 when all went well, else 1, so that the container is restarted and seen to be.
    pub fn exit_code(&self) -> ExitCode {
        if *self == Self::Clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// The tasks of the process. One that ends unasked ends the process: linkerd2#15506 shows the other way, a pod that stays
/// Ready while the task that did its work is gone.
#[derive(Debug, Default)]
pub struct Supervisor {
    asked: CancellationToken,
    linger: Duration,
    work: CancellationToken,
    base: CancellationToken,
    tasks: JoinSet<Result<(), String>>,
    names: std::collections::HashMap<Id, (String, Stage)>,
    failed: Arc<OnceLock<String>>,
}

impl Supervisor {
    /// No tasks yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when tasks of this stage are to end. Children of it serve for parts of a task.
    pub fn token(&self, stage: Stage) -> CancellationToken {
        match stage {
            Stage::Work => self.work.clone(),
            Stage::Base => self.base.clone(),
        }
    }

    /// Cancelled as soon as the process is to end, before any task is told.
    pub fn ending(&self) -> CancellationToken {
        self.asked.clone()
    }

    /// Lets all tasks go on for this long after the process was asked to end: for those who were told to send it requests and do not know yet.
    pub fn linger(&mut self, linger: Duration) {
        self.linger = linger;
    }

    /// Starts a task, which is given the token that tells it to end. It must go on until then.
    pub fn spawn<F, E>(&mut self, name: &str, stage: Stage, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        let task = task(self.token(stage));
        let handle = self.tasks.spawn(async move { task.await.map_err(|error| error.to_string()) });
        self.names.insert(handle.id(), (name.to_owned(), stage));
    }

    /// What the liveness probe asks: set as soon as a task ended unasked. The process ends then, but while it waits for the
    /// others it must not look well.
    pub fn failed(&self) -> Arc<OnceLock<String>> {
        self.failed.clone()
    }

    /// Waits for SIGTERM, SIGINT or the unasked end of a task, then ends all tasks within `grace`, of which [`Self::linger`] is a part.
    ///
    /// # Errors
    /// When the process may not handle signals.
    pub async fn run(self, grace: Duration) -> std::io::Result<Ending> {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let asked = async move || {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            tracing::info!(signal = name, "asked to end");
        };
        Ok(self.run_until(asked, grace).await)
    }

    /// As [`Self::run`], with another way to be asked.
    async fn run_until(mut self, mut asked: impl AsyncFnMut(), grace: Duration) -> Ending {
        let mut ending = Ending::Clean;
        tokio::select! {
            () = asked() => {}
            Some((task, _, why)) = self.next_end() => {
                tracing::error!(task, why, "a task ended that must go on; the process ends");
                // Only the first is told.
                let _ = self.failed.set(format!("task {task} ended: {why}"));
                ending = Ending::TaskEnded { task, why };
            }
        }
        self.asked.cancel();
        let deadline = tokio::time::sleep(grace);
        tokio::pin!(deadline);
        let linger = self.linger;
        if ending == Ending::Clean && !linger.is_zero() {
            tokio::select! {
                biased;
                () = asked() => {
                    tracing::warn!(tasks = ?self.left(), "asked again; not waiting for what is left");
                    return Ending::Impatient;
                }
                Some((task, _, why)) = self.next_end() => {
                    tracing::error!(task, why, "a task ended that must go on");
                    let _ = self.failed.set(format!("task {task} ended: {why}"));
                    ending = Ending::TaskEnded { task, why };
                }
                () = tokio::time::sleep(linger) => {}
            }
        }
        for stage in [Stage::Work, Stage::Base] {
            self.token(stage).cancel();
            while self.names.values().any(|(_, of)| *of == stage) {
                tokio::select! {
                    biased;
                    () = asked() => {
                        tracing::warn!(tasks = ?self.left(), "asked again; not waiting for what is left");
                        return if ending == Ending::Clean { Ending::Impatient } else { ending };
                    }
                    () = &mut deadline => {
                        let tasks = self.left();
                        tracing::error!(?tasks, ?grace, "these tasks did not end in time");
                        return if ending == Ending::Clean { Ending::DeadlinePassed { tasks } } else { ending };
                    }
                    Some((task, of, why)) = self.next_end() => {
                        // Its stage not being told yet, it went by itself.
                        if of != stage && stage == Stage::Work {
                            tracing::error!(task, why, "a task ended that must go on");
                            if ending == Ending::Clean {
                                ending = Ending::TaskEnded { task, why };
                            }
                        }
                    }
                }
            }
        }
        ending
    }

    /// The next task that ends, its stage, and why.
    async fn next_end(&mut self) -> Option<(String, Stage, String)> {
        let (id, why) = match self.tasks.join_next_with_id().await? {
            Ok((id, Ok(()))) => (id, "it returned".to_owned()),
            Ok((id, Err(error))) => (id, error),
            Err(error) => (error.id(), panic_text(error)),
        };
        let (task, stage) = self.names.remove(&id).unwrap_or_else(|| ("unknown".to_owned(), Stage::Work));
        Some((task, stage, why))
    }

    fn left(&self) -> Vec<String> {
        let mut names: Vec<_> = self.names.values().map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }
}

fn panic_text(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(payload) => {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| payload.downcast_ref::<String>().cloned());
            format!("it panicked: {}", text.unwrap_or_else(|| "without a message".to_owned()))
        }
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    const LONG: Duration = Duration::from_secs(600);
    type Log = Arc<Mutex<Vec<&'static str>>>;

    fn obedient(supervisor: &mut Supervisor, log: &Log, name: &'static str, stage: Stage) {
        let log = log.clone();
        supervisor.spawn(name, stage, |stop| async move {
            stop.cancelled().await;
            log.lock().unwrap().push(name);
            Ok::<_, String>(())
        });
    }

    /// Asked once, then never again.
    fn once() -> impl AsyncFnMut() {
        let mut asked = false;
        async move || {
            if std::mem::replace(&mut asked, true) {
                std::future::pending().await
            }
        }
    }

    #[tokio::test]
    async fn work_ends_before_the_base_is_told() {
        let (mut supervisor, log) = (Supervisor::new(), Log::default());
        obedient(&mut supervisor, &log, "lease", Stage::Base);
        obedient(&mut supervisor, &log, "reconcile", Stage::Work);
        obedient(&mut supervisor, &log, "fetch", Stage::Work);
        let ending = supervisor.run_until(once(), LONG).await;
        assert_eq!(ending, Ending::Clean);
        assert_eq!(log.lock().unwrap().last(), Some(&"lease"));
        assert_eq!(log.lock().unwrap().len(), 3);
        assert_eq!(ending.exit_code(), ExitCode::SUCCESS);
    }

    #[tokio::test]
    async fn a_task_that_returns_fails_or_panics_unasked_ends_the_process_and_the_others_orderly() {
        for (stage, outcome, says) in [
            (Stage::Work, Some(Ok(())), "it returned"),
            (Stage::Base, Some(Err("the door fell off")), "the door fell off"),
            (Stage::Work, None, "it panicked: oh dear"),
        ] {
            let (mut supervisor, log) = (Supervisor::new(), Log::default());
            obedient(&mut supervisor, &log, "other", Stage::Work);
            supervisor.spawn("odd", stage, |_| async move { outcome.unwrap_or_else(|| panic!("oh dear")) });
            let failed = supervisor.failed();
            let ending = supervisor.run_until(async || std::future::pending().await, LONG).await;
            assert_eq!(failed.get(), Some(&format!("task odd ended: {says}")));
            assert_eq!(ending, Ending::TaskEnded { task: "odd".to_owned(), why: says.to_owned() });
            assert_eq!(ending.exit_code(), ExitCode::FAILURE);
            assert_eq!(*log.lock().unwrap(), ["other"]);
        }
    }

    #[tokio::test]
    async fn who_lingers_goes_on_after_it_was_asked_to_end() {
        let lingering = |linger: Duration| {
            let (mut supervisor, log) = (Supervisor::new(), Log::default());
            supervisor.linger(linger);
            obedient(&mut supervisor, &log, "webhook", Stage::Work);
            (supervisor, log)
        };
        let (supervisor, log) = lingering(Duration::from_millis(1));
        assert_eq!(supervisor.run_until(once(), LONG).await, Ending::Clean);
        assert_eq!(*log.lock().unwrap(), ["webhook"]);
        // Whoever asks twice does not wait.
        let (supervisor, log) = lingering(LONG);
        assert_eq!(supervisor.run_until(async || {}, LONG * 2).await, Ending::Impatient);
        assert!(log.lock().unwrap().is_empty());
        // It is known at once that the process ends; a task that dies meanwhile ends it.
        let (mut supervisor, log) = lingering(LONG);
        let (asked, work, seen) = (supervisor.ending(), supervisor.token(Stage::Work), log.clone());
        supervisor.spawn("watch", Stage::Work, |_| async move {
            asked.cancelled().await;
            seen.lock().unwrap().push(if work.is_cancelled() { "told" } else { "at work" });
            Err("gone")
        });
        let ending = supervisor.run_until(once(), LONG * 2).await;
        assert_eq!(ending, Ending::TaskEnded { task: "watch".to_owned(), why: "gone".to_owned() });
        assert_eq!(*log.lock().unwrap(), ["at work", "webhook"]);
    }

    #[tokio::test]
    async fn a_task_that_will_not_end_is_not_waited_for() {
        let mut supervisor = Supervisor::new();
        supervisor.spawn("stubborn", Stage::Work, |_| std::future::pending::<Result<(), String>>());
        let ending = supervisor.run_until(once(), Duration::from_millis(1)).await;
        assert_eq!(ending, Ending::DeadlinePassed { tasks: vec!["stubborn".to_owned()] });
        let mut supervisor = Supervisor::new();
        supervisor.spawn("stubborn", Stage::Work, |_| std::future::pending::<Result<(), String>>());
        assert_eq!(supervisor.run_until(async || {}, LONG).await, Ending::Impatient);
    }

    #[tokio::test]
    async fn a_base_task_that_dies_while_work_ends_is_told() {
        let (mut supervisor, log) = (Supervisor::new(), Log::default());
        let token = supervisor.token(Stage::Work);
        supervisor.spawn("health", Stage::Base, |_| async move {
            token.cancelled().await;
            Err("gone")
        });
        let dead = Arc::new(tokio::sync::Notify::new());
        let waits = dead.clone();
        supervisor.spawn("work", Stage::Work, |stop| async move {
            stop.cancelled().await;
            // Ends after the other, as a long write does.
            waits.notified().await;
            Ok::<_, String>(())
        });
        obedient(&mut supervisor, &log, "more", Stage::Work);
        let token = supervisor.token(Stage::Work);
        tokio::spawn(async move {
            token.cancelled().await;
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            dead.notify_one();
        });
        let ending = supervisor.run_until(once(), LONG).await;
        assert_eq!(ending, Ending::TaskEnded { task: "health".to_owned(), why: "gone".to_owned() });
    }
}
