//! Processes that end with the test process, however that ends.
//!
//! Two means, neither of which needs the test process's help at its end:
//! - Each child asks the kernel for SIGKILL when its parent dies (`setpriv --pdeathsig`). The kernel means the *thread* that
//!   started it, and libtest ends a thread with each test, so one thread that never ends starts all children.
//! - A watchdog shell holds the other end of a pipe. When the pipe closes, it kills the process groups and removes the
//!   directories it was told of. That covers grandchildren, and directories, which nobody else would remove after `kill -9`.

use std::{
    fs::File,
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{LazyLock, Mutex, mpsc},
    thread,
};

const WATCHDOG: &str = include_str!("watchdog.sh");

type Job = (Command, mpsc::Sender<std::io::Result<Child>>);

static SPAWNER: LazyLock<mpsc::Sender<Job>> = LazyLock::new(|| {
    let (send, receive) = mpsc::channel::<Job>();
    thread::Builder::new()
        .name("spawner".into())
        .spawn(move || {
            for (mut command, reply) in receive {
                let _ = reply.send(command.spawn());
            }
        })
        .expect("start the thread that spawns processes");
    send
});

#[allow(clippy::zombie_processes, reason = "the watchdog outlives this process on purpose")]
static WATCHDOG_PIPE: LazyLock<Mutex<ChildStdin>> = LazyLock::new(|| {
    let mut shell = Command::new("sh")
        .args(["-c", WATCHDOG])
        .stdin(Stdio::piped())
        // Its output would keep a pipe such as `cargo test | tee` open after the tests.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("start the watchdog shell");
    Mutex::new(shell.stdin.take().expect("stdin is a pipe"))
});

fn tell_watchdog(line: &str) {
    let mut pipe = WATCHDOG_PIPE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    writeln!(pipe, "{line}").expect("the watchdog reads its pipe");
}

/// Has a directory removed when the test process ends. Its path must not contain white space.
pub fn remove_at_exit(dir: &Path) {
    tell_watchdog(&format!("dir {}", dir.display()));
}

/// Whether `setpriv` of util-linux is there; without it only the watchdog guards.
static HAS_SETPRIV: LazyLock<bool> = LazyLock::new(|| {
    Command::new("setpriv").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
});

/// A running process in a group of its own; killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts a command. Its output goes to the file `log`, its input is empty.
    pub fn spawn(name: &str, command: &Command, log: &Path) -> std::io::Result<Self> {
        let mut guarded = if *HAS_SETPRIV {
            let mut guarded = Command::new("setpriv");
            guarded.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program());
            guarded
        } else {
            Command::new(command.get_program())
        };
        guarded.args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => guarded.env(key, value),
                None => guarded.env_remove(key),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            guarded.current_dir(dir);
        }
        let out = File::options().create(true).append(true).open(log)?;
        guarded.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0);

        let (reply, answer) = mpsc::channel();
        SPAWNER.send((guarded, reply)).expect("the spawner thread never ends");
        let child = answer.recv().expect("the spawner thread answers")?;
        tell_watchdog(&format!("+ {}", child.id()));
        Ok(Self { name: name.to_owned(), child, log: log.to_owned(), ended: None })
    }

    /// The process ID, which is also the ID of its group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The file with its output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its exit status, when it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none()
            && let Some(status) = self.child.try_wait().expect("wait for a child")
        {
            self.note_end(status);
        }
        self.ended
    }

    fn note_end(&mut self, status: ExitStatus) {
        self.ended = Some(status);
        // The number may now be given to somebody else's process, unless another process of the group is left.
        kill_group("KILL", self.child.id());
        tell_watchdog(&format!("- {}", self.child.id()));
    }

    /// Sends a signal, by its name without `SIG`, to the process and what it started.
    pub fn signal(&mut self, name: &str) {
        if self.ended().is_none() {
            kill_group(name, self.id());
        }
        // Each thread stops when it next meets the kernel: until the last has, a request may still be answered.
        if name == "STOP" {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while !is_stopped(self.id()) && std::time::Instant::now() < deadline {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    /// Kills it (SIGKILL) and waits for its end.
    pub fn kill(&mut self) -> ExitStatus {
        if self.ended().is_none() {
            kill_group("KILL", self.id());
            let status = self.child.wait().expect("wait for a child");
            self.note_end(status);
        }
        self.ended.expect("it has ended")
    }

    /// Asks it to end: SIGTERM, to itself alone.
    pub fn request_end(&mut self) {
        if self.ended().is_none() {
            shell_kill(&format!("-s TERM {}", self.id()));
        }
    }

    /// The last lines of its output, for a failure message.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.log, lines)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last lines of a file, for a failure message; empty when it cannot be read.
pub fn tail(path: &Path, lines: usize) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn kill_group(signal: &str, group: u32) {
    shell_kill(&format!("-s {signal} -- -{group}"));
}

/// kill(2) by the shell's builtin: the only way without libc or `unsafe`. An error means that nobody is left to kill.
fn shell_kill(arguments: &str) {
    let _ = Command::new("sh").args(["-c", &format!("kill {arguments}")]).stderr(Stdio::null()).status();
}

/// Whether every thread of a process is stopped (state `T` in `/proc`, see proc(5)).
fn is_stopped(pid: u32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
    })
}
