//! A candidate for leadership in a process of its own: this test binary, started anew with one "test" that is the program.

use super::{
    harness::{ScratchDir, eventually, process::Process, scratch_dir},
    writes::OBJECT,
};
use golden_catalog::run::{
    client::{READ_TIMEOUT, is_lost, writer},
    lease::{Elector, LEASE_NAME, Timing},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Config,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio_util::sync::CancellationToken;

const VARIABLE: &str = "E2E_CANDIDATE";

/// The times of the Lease, in milliseconds: duration, deadline, retry.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Times(u64, u64, u64);

impl Times {
    /// As the daemon runs.
    pub const DEFAULT: Self = Self(15_000, 10_000, 2_000);
    /// For tests that wait for the end of a Lease. Long enough for a busy machine.
    pub const SHORT: Self = Self(6_000, 4_000, 500);
    /// For tests that hold the end of a term against the begin of the next by the clock: so far apart that a process which does not
    /// run for some seconds between them changes nothing.
    pub const APART: Self = Self(12_000, 4_000, 500);
    /// For tests in which a Lease must not end by itself.
    pub const LONG: Self = Self(60_000, 50_000, 500);
}

#[derive(Serialize, Deserialize)]
struct Program {
    name: String,
    times: Times,
    kubeconfig: PathBuf,
    url: String,
    namespace: String,
}

/// A running candidate. Killed when dropped.
pub struct Candidate {
    name: String,
    process: Mutex<Process>,
    dir: ScratchDir,
}

impl Candidate {
    /// Starts one.
    pub fn start(name: &str, times: Times, kubeconfig: &Path, url: &str, namespace: &str) -> Self {
        let (name, url, namespace) = (name.to_owned(), url.to_owned(), namespace.to_owned());
        let program = Program { name: name.clone(), times, kubeconfig: kubeconfig.to_owned(), url, namespace };
        let mut command = std::process::Command::new(std::env::current_exe().expect("the path of this binary"));
        command.args(["candidate::program", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(VARIABLE, serde_json::to_string(&program).expect("JSON"));
        let dir = scratch_dir("candidate");
        let process = Process::spawn(&name, &command, &dir.join("log")).expect("start a candidate");
        Self { name, process: Mutex::new(process), dir }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until it has said this (`waits`, `leads`, `lost`).
    pub async fn says(&self, word: &str) {
        eventually(&format!("{} says {word}", self.name), || async {
            let log = self.log();
            if words(&log).any(|(_, said)| said == word) { Ok(()) } else { Err(log) }
        })
        .await;
    }

    /// Whether its first loss came before the other's first lead, by the machine's one clock.
    pub fn lost_before_other_led(&self, other: &Self) -> bool {
        let first = |log: &str, word: &str| words(log).find(|(_, said)| *said == word).map(|(at, _)| at);
        let (lost, led) = (first(&self.log(), "lost"), first(&other.log(), "leads"));
        lost.zip(led).is_some_and(|(lost, led)| lost < led)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.lock().kill();
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.lock().signal("STOP");
    }

    /// SIGCONT. What it said so far is forgotten, so that [`Self::says`] means what it says from now on.
    pub fn go_on(&self) {
        std::fs::File::options().write(true).truncate(true).open(self.dir.join("log")).expect("empty the log");
        self.lock().signal("CONT");
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.lock().request_end();
    }

    /// Waits for its end and gives its exit code.
    pub async fn end(&self) -> Option<i32> {
        let ended = || async { self.lock().ended().ok_or_else(|| "it runs".to_owned()) };
        eventually(&format!("{} ends", self.name), ended).await.code()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the end of the log of {}\n{}", self.name, self.lock().log_tail(60));
        }
    }
}

/// What a candidate said and when, in microseconds since the epoch. libtest writes before the first line without ending its own.
fn words(log: &str) -> impl Iterator<Item = (u128, &str)> {
    log.lines().filter_map(|line| {
        let (_, said) = line.split_once("candidate-at ")?;
        let (at, word) = said.split_once(' ')?;
        Some((at.parse().ok()?, word))
    })
}

fn say(word: &str) {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_micros();
    println!("candidate-at {at} {word}");
}

/// The program of a candidate; as a test of its own it does nothing.
#[test]
fn program() {
    let Ok(program) = std::env::var(VARIABLE) else { return };
    let program: Program = serde_json::from_str(&program).expect("the program");
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime").block_on(run(program));
}

async fn run(program: Program) {
    tracing_subscriber::fmt().with_ansi(false).with_env_filter("golden_catalog=debug").init();
    let kubeconfig = Kubeconfig::read_from(&program.kubeconfig).expect("read the kubeconfig");
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("use the kubeconfig");
    config.cluster_url = program.url.parse().expect("a URL");
    config.headers.push((http::header::USER_AGENT, program.name.parse().expect("a header value")));
    let Times(duration, deadline, retry) = program.times;
    let [duration, deadline, retry] = [duration, deadline, retry].map(Duration::from_millis);
    let timing = Timing::new(duration, deadline, retry).expect("times");
    let (elector, mut leadership) =
        Elector::new(&config, &program.namespace, LEASE_NAME, program.name.clone(), timing).expect("make an elector");

    let stop = CancellationToken::new();
    let elected = tokio::spawn(elector.run(stop.clone()));
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).expect("handle SIGTERM");
    say("waits");
    let work = async {
        while let Some(claim) = leadership.acquired().await {
            say("leads");
            let api: Api<ConfigMap> = Api::namespaced(writer(&config, &claim, READ_TIMEOUT).expect("make a writer"), &program.namespace);
            for n in 0_u64.. {
                let data = serde_json::json!({"data": {"by": program.name, "epoch": claim.epoch().to_string(), "n": n.to_string()}});
                match api.patch(OBJECT, &PatchParams::default(), &Patch::Merge(data)).await {
                    Err(error) if is_lost(&error) => break,
                    // The API server's trouble is not the end of the term.
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    Ok(_) => {}
                }
            }
            say("lost");
        }
    };
    tokio::select! {
        () = work => {}
        _ = terminate.recv() => {}
    }
    stop.cancel();
    elected.await.expect("the elector ends in order");
}
