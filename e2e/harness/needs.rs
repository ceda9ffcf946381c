//! What a test needs, and the count of those that cannot run.

use std::panic::Location;

use super::told::record_skip;

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
