//! What a test needs, and the count of those that cannot run.

use std::{fs::File, io::Write, panic::Location};

/// What kind of cluster a test can run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Any cluster: the private control plane with the stand-in, or a whole one. The test asks for nothing but the API.
    Any,
    /// The private control plane: the stand-in for CDI that can be scripted to fail, the audit log, an API server to kill.
    Scripted,
    /// Real CDI on real storage; only with `E2E_KUBECONFIG`.
    RealStorage,
}

impl Needs {
    /// Why a test with this need cannot run here, when it cannot.
    fn missing(self, whole_cluster: bool) -> Option<&'static str> {
        match (self, whole_cluster) {
            (Self::Any, _) | (Self::Scripted, false) | (Self::RealStorage, true) => None,
            (Self::Scripted, true) => Some("needs the scripted stand-in, and E2E_KUBECONFIG names a whole cluster"),
            (Self::RealStorage, false) => Some("needs real storage: set E2E_KUBECONFIG"),
        }
    }

    /// Whether the test can run; if not, that is printed and counted.
    pub(super) fn met(self, whole_cluster: bool, at: &Location<'_>) -> bool {
        let Some(reason) = self.missing(whole_cluster) else { return true };
        record_skip(reason, at);
        false
    }
}

/// Says that a test is skipped, past libtest's capture, and adds it to the file that `make test` counts.
fn record_skip(reason: &str, at: &Location<'_>) {
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").map_or_else(|| at.to_string(), str::to_owned);
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
    if let Some(path) = std::env::var_os("E2E_SKIPS") {
        let mut file = File::options().create(true).append(true).open(path).expect("open the file E2E_SKIPS names");
        // One write: other test binaries may add to the file at the same time.
        file.write_all(format!("{test}: {reason}\n").as_bytes()).expect("write to the file E2E_SKIPS names");
    }
}

/// Skips a test that cannot run for another reason than its cluster (a program that is not installed, for example).
#[track_caller]
pub fn skip(reason: &str) {
    record_skip(reason, Location::caller());
}
