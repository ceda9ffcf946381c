//! A stand-in for CDI v1.64.0, the storage below it and the pods it starts.
//!
//! It imitates CDI's import and clone controllers as they were seen to work (`e2e/cdi_standin.rs` has one test for each thing seen) and as its source says; it is not CDI. It needs
//! nodes, a container runtime and a CSI driver no more than an API server does: importer pods are plain objects whose status it writes, volumes are files
//! below [`Options::dir`], and the importer's work (TLS, headers, HEAD, GET closed early, HEAD, GET, `qemu-img`) is done in this process. What it plays:
//!
//! - CDI's webhooks (spec edits, sizes, sources, clone permission and token), CDIConfig and StorageProfiles;
//! - HTTP imports and blank disks, with prime and scratch claims, importer pods, conditions, progress, restarts;
//! - clones of claims, snapshots and DataSources, with CDI's strategies, silent fallbacks and refusals;
//! - a CSI driver with clones and snapshots, and the scheduler's choice of a node for WaitForFirstConsumer.
//!
//! Registry, S3, VDDK and upload sources are not played. Take it in with `#[path = "cdi/mod.rs"] mod cdi;`.

// Each test binary uses its part of the stand-in.
#![allow(dead_code, unused_imports)]

mod api;
mod cache;
mod chores;
mod classes;
mod clone;
mod config;
mod datavolume;
mod engine;
mod handle;
mod http;
mod import;
mod importer;
mod journal;
pub mod names;
mod options;
mod plan;
mod pods;
pub mod quantity;
mod queue;
mod run;
mod script;
mod snapshot;
mod status;
mod storage;
pub mod types;
mod validate;
mod webhook;

pub use cache::Key;
pub use config::CONFIG_NAME;
pub use handle::{CdiStandIn, Shared};
pub use journal::{Entry, What, Writes};
pub use options::{Controllers, Fidelity, Options};
pub use script::Behaviour;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

/// Everything the parts share.
struct Ctx {
    api: api::ApiServer,
    opts: Options,
    queue: queue::Queue,
    scripts: script::Scripts,
    journal: Arc<journal::Journal>,
    /// Claims being filled, by UID; they stay when done until the claim goes.
    runs: Mutex<HashMap<String, Arc<run::Run>>>,
    /// Chores under way by what and whose, each with the one to run after it.
    busy: Mutex<HashMap<String, Option<engine::Chore>>>,
    /// Where everything runs.
    runtime: tokio::runtime::Handle,
    /// Ends every task.
    stop: tokio_util::sync::CancellationToken,
}

impl Ctx {
    /// Runs a task until it is done or the stand-in stops.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> tokio::task::AbortHandle {
        let stop = self.stop.clone();
        let task = async move {
            // The end first: what was paused when it came is not done after all.
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = work => {}
            }
        };
        self.runtime.spawn(task).abort_handle()
    }
}
