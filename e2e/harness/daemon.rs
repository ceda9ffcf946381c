//! The real binary as a child process.

use super::{Output, Port, ScratchDir, assert_no_leak, eventually, leaks, process::Process, scratch_dir};
use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

/// The longest an answer of its health server may take: it bounds a hang, it measures nothing.
const PROBE: Duration = Duration::from_secs(60);

/// How a `golden-catalog` process is to be started; its flags are the test's own.
#[derive(Debug)]
pub struct DaemonBuilder {
    command: Command,
    name: String,
    health: Option<String>,
    ports: Vec<Port>,
}

impl DaemonBuilder {
    /// With arguments, such as `["run", "--role", "controller"]`.
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.command.args(arguments);
        self
    }

    /// With an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Run by another program, such as a tracer: `strace -f …`. Signals then go to both.
    pub fn under(mut self, program: &str, arguments: &[String]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).arg(self.command.get_program()).args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        self.command = command;
        self
    }

    /// With an identity: a file of [`super::Cluster::kubeconfig_as_service_account`].
    pub fn kubeconfig(self, path: &Path) -> Self {
        self.env("KUBECONFIG", path)
    }

    /// Where its health server listens (`127.0.0.1:PORT`), so that [`Daemon::ready`] can ask. The flag itself is for
    /// [`DaemonBuilder::args`].
    pub fn health(mut self, address: impl Into<String>) -> Self {
        self.health = Some(address.into());
        self
    }

    /// Keeps these ports away from others as long as it lives: also while it does not listen on them yet.
    pub fn keeping(mut self, ports: impl IntoIterator<Item = Port>) -> Self {
        self.ports.extend(ports);
        self
    }

    /// Starts it.
    pub fn start(self) -> Daemon {
        let dir = scratch_dir("daemon");
        let log = dir.join("log");
        let process = Process::spawn(&self.name, &self.command, &log).expect("start golden-catalog");
        let metrics = self.command.get_args().find_map(|argument| Some(argument.to_str()?.strip_prefix("--metrics-listen=")?.to_owned()));
        Daemon { process: Mutex::new(process), name: self.name, health: self.health, metrics, log, _ports: self.ports, _dir: dir }
    }
}

/// A running `golden-catalog`. Killed when dropped; if the test is failing then, the end of its log is printed, else its log and
/// metrics are looked through for secrets.
#[derive(Debug)]
pub struct Daemon {
    process: Mutex<Process>,
    name: String,
    health: Option<String>,
    metrics: Option<String>,
    log: PathBuf,
    _ports: Vec<Port>,
    _dir: ScratchDir,
}

impl Daemon {
    /// A daemon yet to be started; `name` is for messages. It inherits the test's environment less the test's own rights.
    pub fn builder(name: &str) -> DaemonBuilder {
        let mut command = Command::new(binary());
        for variable in ["KUBECONFIG", "E2E_KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
            command.env_remove(variable);
        }
        DaemonBuilder { command, name: name.to_owned(), health: None, ports: Vec::new() }
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until `/readyz` answers 200. Fails at once when the process ends instead.
    pub async fn ready(&self) {
        eventually(&format!("{} is ready", self.name), || async {
            if let Some(status) = self.process().ended() {
                panic!("{} ended with {status} before it was ready", self.name);
            }
            match self.probe("readyz").await {
                Ok(200) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// The status that a path of its health server (`readyz`, `livez`) answers.
    pub async fn probe(&self, path: &str) -> Result<u16, String> {
        self.probe_text(path).await.map(|(status, _)| status)
    }

    /// The status and text that a path of its health server answers.
    pub async fn probe_text(&self, path: &str) -> Result<(u16, String), String> {
        let address = self.health.as_ref().expect("the builder was told where the health server listens");
        let client = reqwest::Client::builder().timeout(PROBE).no_proxy().build().map_err(|error| error.to_string())?;
        let answer = client.get(format!("http://{address}/{path}")).send().await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        Ok((status, answer.text().await.map_err(|error| error.to_string())?))
    }

    /// Its exit status, when it has ended.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.process().ended()
    }

    /// Waits for its end by itself; `None` when it did not end in time.
    pub async fn wait(&self, patience: Duration) -> Option<ExitStatus> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if tokio::time::Instant::now() > deadline {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// SIGTERM: asks it to end.
    pub fn ask_to_end(&self) {
        self.process().request_end();
    }

    /// SIGTERM: asks it to end, and waits; `None` when it did not end in time.
    pub async fn terminate(&self, patience: Duration) -> Option<ExitStatus> {
        self.process().request_end();
        self.wait(patience).await
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.process().kill();
    }

    /// SIGSTOP: it stands still with all connections open.
    pub fn pause(&self) {
        self.process().signal("STOP");
    }

    /// SIGCONT: it goes on.
    pub fn go_on(&self) {
        self.process().signal("CONT");
    }

    /// The process ID.
    pub fn id(&self) -> u32 {
        self.process().id()
    }

    /// All it has written so far, to either output.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the end of the log of {}\n{}", self.name, self.process().log_tail(60));
            return;
        }
        let metrics = self.metrics.as_ref().filter(|_| self.ended().is_none()).map(|address| leaks::metrics(address));
        assert_no_leak(&format!("the log of {}", self.name), &self.log());
        assert_no_leak(&format!("the metrics of {}", self.name), &metrics.unwrap_or_default());
    }
}

/// Runs `golden-catalog` to its end, as a person would: with a kubeconfig or without one.
pub async fn cli<A: AsRef<OsStr>>(kubeconfig: Option<&Path>, arguments: impl IntoIterator<Item = A>) -> Output {
    let mut command = Daemon::builder("golden-catalog").args(arguments).command;
    if let Some(path) = kubeconfig {
        command.env("KUBECONFIG", path);
    }
    let output = super::cluster::run(command).await;
    assert_no_leak("the command line", &format!("{}{}", output.stdout, output.stderr));
    output
}

/// The binary that cargo built beside this test, example or benchmark.
fn binary() -> OsString {
    if let Some(path) = option_env!("CARGO_BIN_EXE_golden-catalog") {
        return path.into();
    }
    // An example lies in target/PROFILE/examples; cargo names the binary to tests only.
    let own = std::env::current_exe().expect("the path of this program");
    let found = own.ancestors().skip(1).map(|dir| dir.join("golden-catalog")).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("golden-catalog is not built: run `cargo build` first")).into()
}
