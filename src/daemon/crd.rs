//! Our own CRD in the cluster: watched by every replica, brought forward by the leader.

use std::time::Duration;

use futures::StreamExt as _;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    runtime::watcher::{self, Event, watcher},
};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::{Upgrade, crd, missing_fields, upgrade};

/// The CRD's name.
pub const NAME: &str = "goldenimages.cozystack.io";

/// Who owns what we write of it, in server-side apply.
const MANAGER: &str = "golden-catalog/crd";

/// What the watch shows of the CRD: `None` before it has shown anything.
pub type Seen = watch::Receiver<Option<Live>>;

/// The CRD in the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Live {
    /// Fields of ours that it has not; a missing CRD has none of them.
    pub missing: Vec<String>,
    /// What is to be done about it; `None` where there is no CRD.
    pub upgrade: Option<Upgrade>,
}

impl Live {
    fn of(live: Option<&Value>) -> Self {
        match live {
            None => Self { missing: Vec::new(), upgrade: None },
            Some(live) => Self { missing: missing_fields(live, &crd()), upgrade: Some(upgrade(live, &crd())) },
        }
    }

    /// Whether this release can work with it.
    ///
    /// # Errors
    /// What is missing, by name, for the readiness probe and the log.
    pub fn usable(&self) -> Result<(), String> {
        match &self.upgrade {
            None => Err(format!("the CRD {NAME} is not installed")),
            Some(_) if self.missing.is_empty() => Ok(()),
            Some(_) => Err(format!("the CRD {NAME} lacks {}", self.missing.join(", "))),
        }
    }
}

fn api(client: Client) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "apiextensions.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiextensions.k8s.io/v1".to_owned(),
        kind: "CustomResourceDefinition".to_owned(),
        plural: "customresourcedefinitions".to_owned(),
    };
    Api::all_with(client, &resource)
}

/// Watches the CRD until `stop`, and tells what it is like.
pub async fn follow(client: Client, seen: watch::Sender<Option<Live>>, stop: CancellationToken) {
    let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let mut events = std::pin::pin!(watcher(api(client), config));
    let mut listed = None;
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        let live = match event {
            None => return,
            Some(Ok(Event::Init)) => {
                listed = None;
                continue;
            }
            Some(Ok(Event::InitApply(object))) => {
                listed = Some(object);
                continue;
            }
            Some(Ok(Event::InitDone)) => listed.take(),
            Some(Ok(Event::Apply(object))) => Some(object),
            Some(Ok(Event::Delete(_))) => None,
            Some(Err(error)) => {
                tracing::debug!(%error, "the watch of our CRD broke off");
                // The watcher begins anew when it is asked again.
                tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(Duration::from_secs(2)) => {} }
                continue;
            }
        };
        let live = Live::of(live.and_then(|object| serde_json::to_value(object).ok()).as_ref());
        seen.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&live);
            *known = Some(live);
            changed
        });
    }
}

/// Waits until this release can work with the CRD.
pub async fn usable(seen: &mut Seen) {
    loop {
        if seen.borrow_and_update().as_ref().is_some_and(|live| live.usable().is_ok()) {
            return;
        }
        if seen.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Brings the CRD forward while we lead, for as long as `stop` is not cancelled. `writer` refuses when the Lease has run out.
pub async fn keep(writer: Client, mut seen: Seen, stop: CancellationToken) {
    loop {
        let live = seen.borrow_and_update().clone();
        let again = match live.and_then(|live| live.upgrade) {
            Some(Upgrade::Forward) => match apply(&writer).await {
                Ok(()) => {
                    tracing::info!(version = env!("CARGO_PKG_VERSION"), "the CRD was brought forward");
                    false
                }
                Err(error) => {
                    tracing::warn!(error = crate::run::api_error(&error), "the CRD cannot be brought forward; tried again");
                    true
                }
            },
            Some(Upgrade::Newer(why)) => {
                tracing::info!(why, "the CRD is newer than this release, and stays");
                false
            }
            Some(Upgrade::Same) | None => false,
        };
        tokio::select! {
            () = stop.cancelled() => return,
            changed = seen.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(Duration::from_secs(30)), if again => {},
        }
    }
}

/// Forced, because Helm, which installed it, owns the same fields. What others added stays: only what is ours is written.
async fn apply(writer: &Client) -> Result<(), kube::Error> {
    let params = PatchParams::apply(MANAGER).force();
    api(writer.clone()).patch(NAME, &params, &Patch::Apply(&crd())).await.map(drop)
}
