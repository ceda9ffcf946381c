//! Leader election by Lease: one process writes, fetches and serves; all others watch and wait.
//!
//! The algorithm is client-go's (`tools/leaderelection`), on the Lease `golden-catalog` in the catalog namespace, so that two
//! releases of the chart can never lead at once. What it gives writers is a [`Claim`] that runs out by itself;
//! [`crate::run::client::writer`] checks it at the last moment before a request goes out. Between the end of a claim (10 s
//! after the last renewal was begun) and the first moment another may take the Lease (15 s after it saw that renewal) lie 5 s
//! in which a request already sent can land. A request that is held up on the network for longer than that is beyond any client's
//! reach; therefore writes that must not happen twice also carry the UID or resourceVersion of what they were decided on.

mod claim;
mod elector;
mod record;

pub use claim::{Claim, Leadership, Lost, Write};
pub use elector::{Elector, LEASE_NAME};
pub use record::{Timing, TimingError};

/// The name of this process in the Lease: the pod's, and a random suffix, because a restarted container keeps its pod's name
/// but must not take its predecessor's term for its own.
///
/// # Errors
/// [`super::NoRandomness`].
pub fn identity(pod: &str) -> Result<String, super::NoRandomness> {
    Ok(format!("{pod}_{}", super::hex(&super::random::<4>()?)))
}
