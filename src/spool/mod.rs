//! The spool: the store of verified disks, and the TLS server that importers pull them from.

mod error;
mod keyring;
mod registry;
pub mod server;
mod store;

pub use error::SpoolError;
pub use keyring::{Address, SpoolKey, WrongKeyLength};
pub use registry::{Change, Facts, Grant, HandshakeFailure, Registry};
pub use store::{ArtifactFacts, Before, DiskFacts, DiskFile, Draft, Lease, Record, Sidecar, Spooled, Store, Usage, Verified};
