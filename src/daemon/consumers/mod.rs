//! The leader's work for consumers: counts in status, marks on disks (R25), clones that are stuck and clones that have ended.

mod cloned;
mod ended;
mod marks;
mod stuck;
mod templates;
mod usage;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kube::Client;
use tokio_util::sync::CancellationToken;

use super::controller::Shared;

pub use usage::{Inventory, Usage};

/// What bounds the work for consumers; the defaults are those of the chart's README.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerSettings {
    /// The least time between two writes of one image's counts.
    pub interval: Duration,
    /// Marks written a second.
    pub marks_per_second: u32,
    /// How long a clone may stand still.
    pub stuck_clone: Duration,
    /// Classes whose clones stand alone, by the hoster's word.
    pub independent_classes: BTreeSet<String>,
}

impl Default for ConsumerSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(60),
            marks_per_second: 20,
            stuck_clone: Duration::from_secs(30 * 60),
            independent_classes: BTreeSet::new(),
        }
    }
}

/// Works until `stop`.
pub async fn run(shared: Arc<Shared>, client: Client, stop: CancellationToken) {
    tokio::join!(
        usage::run(Arc::clone(&shared), stop.clone()),
        marks::run(Arc::clone(&shared), client.clone(), stop.clone()),
        stuck::run(shared, client, stop),
    );
}

/// Sleeps, unless the end comes first. Gives whether to go on.
async fn rest(stop: &CancellationToken, time: Duration) -> bool {
    tokio::select! { () = stop.cancelled() => false, () = tokio::time::sleep(time) => true }
}
