//! The test harness: a real Kubernetes control plane on loopback, and what tests do with it.
//!
//! A test binary takes it in with `#[path = "harness/mod.rs"] mod harness;` and names its cluster once:
//!
//! ```ignore
//! static CLUSTER: harness::Shared = harness::Shared::new(|| harness::Options::default().controller_manager());
//!
//! #[tokio::test]
//! async fn something_holds() {
//!     let Some(cluster) = CLUSTER.on(harness::Needs::Any).await else { return };
//!     …
//! }
//! ```
//!
//! Which control plane is used, in this order:
//! 1. `E2E_KUBECONFIG`: a whole cluster of yours. Nothing is started; tests that need the stand-in are skipped and counted.
//! 2. `KUBEBUILDER_ASSETS`: a folder with `etcd`, `kube-apiserver` and `kubectl` (the variable of controller-runtime's envtest).
//! 3. The cache that `make tools` (`e2e/tools/build.sh`) fills; `K8S` chooses the version.
//!
//! What is not in that folder (`kube-controller-manager`, `helm`) is looked up in the cache and then on `PATH`.
//!
//! Everything started here ends with the test process, however that ends: see [`process`]. `E2E_KEEP=1` keeps the data
//! directories and their logs.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part of the harness")]

mod apply;
mod audit;
pub mod chart;
mod cluster;
mod control_plane;
pub mod crds;
mod daemon;
mod leaks;
mod needs;
mod pki;
mod ports;
pub mod process;
mod told;
mod tools;
mod wait;

pub use audit::{Mark, Request};
pub use chart::Release;
pub use cluster::{Cluster, Output, Shared, TestNamespace};
pub use control_plane::{ControlPlane, Options};
pub use crds::Flavor;
pub use daemon::{Daemon, DaemonBuilder, cli};
pub use leaks::{MARK, assert_no_leak, leak};
pub use needs::Needs;
pub use ports::Port;
pub use told::{skip, tell};
pub use tools::{helm, kubectl};
pub use wait::{
    Condition, History, PATIENCE, Refusal, condition, eventually, is_busy, made, until, until_condition, until_gone, until_listed,
};

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    path::{Path, PathBuf},
};

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Eight random hex digits, for names that must not meet those of another run.
pub fn unique() -> String {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    format!("{:08x}", hasher.finish() as u32)
}

/// A directory for data of a run: in memory where that is possible, removed with the test process even when that is killed.
pub fn scratch_dir(what: &str) -> ScratchDir {
    let memory = Path::new("/dev/shm");
    // Containers often get 64 MiB of it, and several test binaries run at once.
    let has_room = rustix::fs::statvfs(memory).is_ok_and(|found| found.f_bavail * found.f_frsize > 1 << 30);
    let parent = if has_room { memory.to_owned() } else { std::env::temp_dir() };
    scratch_dir_in(&parent, what)
}

/// Like [`scratch_dir`], on disk: for data too large for memory.
pub fn scratch_dir_on_disk(what: &str) -> ScratchDir {
    scratch_dir_in(&std::env::temp_dir(), what)
}

fn scratch_dir_in(parent: &Path, what: &str) -> ScratchDir {
    let dir = tempfile::Builder::new().prefix(&format!("golden-catalog-{what}-")).tempdir_in(parent).expect("create a scratch directory");
    let mut dir = ScratchDir(dir);
    if std::env::var_os("E2E_KEEP").is_some() {
        dir.0.disable_cleanup(true);
        eprintln!("kept by E2E_KEEP: {}", dir.path().display());
    } else {
        process::remove_at_exit(dir.path());
    }
    dir
}

/// A directory that goes away when dropped and when the test process ends.
#[derive(Debug)]
pub struct ScratchDir(tempfile::TempDir);

impl ScratchDir {
    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}
