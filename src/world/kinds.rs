//! Kinds of other projects, which may appear and disappear while we run.

use std::{collections::BTreeSet, future::Future};

use kube::core::ClusterResourceScope;
use serde::Deserialize;
use tokio::sync::watch;

use super::Store;

/// A CustomResourceDefinition, as far as it says whether its kind is served.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct CrdFacts {
    /// Standard metadata.
    #[serde(default)]
    pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    #[serde(default)]
    status: CrdStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct CrdStatus {
    #[serde(default)]
    conditions: Vec<CrdCondition>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct CrdCondition {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    status: String,
}

impl CrdFacts {
    /// Whether the API server serves the kind.
    pub fn is_established(&self) -> bool {
        self.metadata.deletion_timestamp.is_none()
            && self.status.conditions.iter().any(|condition| condition.kind == "Established" && condition.status == "True")
    }
}

impl kube::Resource for CrdFacts {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        "CustomResourceDefinition".into()
    }

    fn group((): &()) -> std::borrow::Cow<'_, str> {
        "apiextensions.k8s.io".into()
    }

    fn version((): &()) -> std::borrow::Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        "customresourcedefinitions".into()
    }

    fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        &mut self.metadata
    }
}

/// The names of the CRDs that are served now (`datavolumes.cdi.kubevirt.io`); `None` until they are known.
#[derive(Debug, Clone)]
pub struct InstalledKinds(watch::Sender<Option<BTreeSet<String>>>);

impl Default for InstalledKinds {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl InstalledKinds {
    /// Takes over what a store of CRD names holds, once it is complete.
    pub fn update(&self, store: &Store<String>) {
        if store.is_known() {
            let names: BTreeSet<_> = store.all().iter().map(|name| name.to_string()).collect();
            self.0.send_if_modified(|known| {
                let changed = known.as_ref() != Some(&names);
                *known = Some(names);
                changed
            });
        }
    }

    /// A receiver of the names.
    pub fn subscribe(&self) -> watch::Receiver<Option<BTreeSet<String>>> {
        self.0.subscribe()
    }
}

/// Runs a watch while its CRD is there, for ever. A kind that goes takes its objects along; one that comes is listed anew.
pub async fn run_while_installed<T, Fut>(
    mut kinds: watch::Receiver<Option<BTreeSet<String>>>,
    crd: &str,
    store: &Store<T>,
    mut run: impl FnMut() -> Fut,
) where
    T: PartialEq,
    Fut: Future<Output = ()>,
{
    let has = |kinds: &Option<BTreeSet<String>>| kinds.as_ref().is_some_and(|kinds| kinds.contains(crd));
    loop {
        if kinds.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let there = has(&kinds.borrow_and_update());
        store.set_installed(there);
        let waiting = kinds.wait_for(|kinds| has(kinds) != there);
        if there {
            tokio::select! { _ = waiting => {}, () = run() => {} }
        } else if waiting.await.is_err() {
            return;
        }
    }
}

/// An API error in words that do not change from one time to the next: the server's message, without the whole Status.
pub(super) fn api_error(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        other => other.to_string(),
    }
}
