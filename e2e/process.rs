//! What makes the daemon a well-behaved process, on a real API server: watches, certificates, events.

#[path = "process/certs.rs"]
mod certs;
#[path = "process/events.rs"]
mod events;
#[path = "harness/mod.rs"]
mod harness;
#[path = "process/plugin.rs"]
mod plugin;
#[path = "process/proxy.rs"]
mod proxy;
#[path = "process/watch.rs"]
mod watch;

/// The cluster of these tests.
static CLUSTER: harness::Shared = harness::Shared::new(harness::Options::default);
