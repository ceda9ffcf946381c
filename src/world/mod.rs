//! What the cluster looks like: watches with their ages, and small stores of the facts that decisions need.

mod cluster;
mod kinds;
mod store;
mod watch;

pub use cluster::{Changed, ClassFacts, Cluster, ConfigMapFacts, PodFacts, Watch};
pub use kinds::{CrdFacts, InstalledKinds, run_while_installed};
pub use store::{Change, Store, StoreState};
pub use watch::{Pulse, Sink, WatchSettings, feed};
