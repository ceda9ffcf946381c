//! What the cluster looks like: watches with their ages, and small stores of the facts that decisions need.

mod cluster;
mod consumers;
pub mod evidence;
pub mod facts;
mod fresh;
pub mod ledger;
mod ledger_sink;
mod parts;
pub mod requests;
mod store;
mod watch;

pub use cluster::{Changed, Cluster, ConfigMapFacts, WarningFacts, Watch};
pub use consumers::ConsumerWatch;
pub use fresh::{each_listed, fresh_ledger};
pub use ledger_sink::LedgerSink;
pub use parts::Parts;
pub use store::{Change, Store, StoreState};
pub use watch::{Key, Phase, Pulse, Selection, Sink, Unknown, WatchSettings, WatchState, feed};
