use std::process::ExitCode;

/// How a command ended, as its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done; for questions: yes, good, free.
    Ok,
    /// 1: the answer is no: refused, in use, not Ready.
    No,
    /// 2: the answer is not known: the cluster or an upstream could not be asked.
    Unknown,
    /// 64: the command was not understood (`EX_USAGE` of sysexits.h).
    Usage,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Ok => 0,
            Exit::No => 1,
            Exit::Unknown => 2,
            Exit::Usage => 64,
        })
    }
}

/// Why a command could not give its answer.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    message: String,
    exit: Exit,
}

impl Failure {
    /// A failure for which the answer is not known.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit: Exit::Unknown }
    }

    /// A failure of whoever called.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), exit: Exit::Usage }
    }

    /// The exit code that goes with it.
    pub const fn exit(&self) -> Exit {
        self.exit
    }
}
