//! Objects from YAML, by server-side apply with strict field validation.

use super::{Cluster, PATIENCE};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::{self, Scope},
};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

/// The field manager of the tests.
const MANAGER: &str = "e2e";

/// The kinds already asked for, since discovery is one request each.
#[derive(Debug, Default)]
pub(super) struct Kinds(Mutex<HashMap<GroupVersionKind, (ApiResource, Scope)>>);

impl Cluster {
    /// Applies all objects of a YAML text with all rights; one without a namespace goes to `default`.
    pub async fn apply(&self, yaml: &str) -> Vec<DynamicObject> {
        self.apply_in("default", yaml).await
    }

    /// Like [`Cluster::apply`]; an object without a namespace goes to `namespace`.
    pub async fn apply_in(&self, namespace: &str, yaml: &str) -> Vec<DynamicObject> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.try_apply(&self.admin(), namespace, yaml).await {
                Err(kube::Error::Api(status)) if super::is_busy(status.code, &status.message) && Instant::now() < deadline => {}
                outcome => return outcome.unwrap_or_else(|error| panic!("apply: {error}\n{yaml}")),
            }
        }
    }

    /// Applies objects as whoever `client` is, and gives the server's refusal as it is.
    pub async fn try_apply(&self, client: &Client, namespace: &str, yaml: &str) -> kube::Result<Vec<DynamicObject>> {
        let mut applied = vec![];
        for object in parse(yaml) {
            applied.push(self.apply_object(client, namespace, &object).await?);
        }
        Ok(applied)
    }

    async fn apply_object(&self, client: &Client, namespace: &str, object: &Value) -> kube::Result<DynamicObject> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let named = |field: &str| panic!("an object without {field}: {object}");
        let api_version = text("/apiVersion").unwrap_or_else(|| named("apiVersion"));
        let kind = text("/kind").unwrap_or_else(|| named("kind"));
        let name = text("/metadata/name").unwrap_or_else(|| named("metadata.name"));
        let api = self.api(client, api_version, kind, text("/metadata/namespace").unwrap_or(namespace)).await;
        let parameters = PatchParams::apply(MANAGER).force().validation_strict();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match api.patch(name, &parameters, &Patch::Apply(object)).await {
                // The server's way to say that it is still filling its cache of a new kind.
                Err(kube::Error::Api(status)) if status.code == 429 && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(100)).await
                }
                answer => return answer,
            }
        }
    }

    /// The API for any kind, such as `("cdi.kubevirt.io/v1beta1", "DataVolume")`; `namespace` matters only where the kind has one.
    ///
    /// Waits for a kind that is not served yet, because its CRD has just been made.
    pub async fn api(&self, client: &Client, api_version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let (resource, scope) = self.kind(api_version, kind).await;
        match scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
        }
    }

    /// The objects of a kind in all namespaces.
    pub async fn api_everywhere(&self, client: &Client, api_version: &str, kind: &str) -> Api<DynamicObject> {
        Api::all_with(client.clone(), &self.kind(api_version, kind).await.0)
    }

    async fn kind(&self, api_version: &str, kind: &str) -> (ApiResource, Scope) {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let known = self.kinds.0.lock().expect("no panic under this lock").get(&gvk).cloned();
        match known {
            Some(known) => known,
            None => {
                let found = self.discover(&gvk).await;
                self.kinds.0.lock().expect("no panic under this lock").insert(gvk, found.clone());
                found
            }
        }
    }

    async fn discover(&self, gvk: &GroupVersionKind) -> (ApiResource, Scope) {
        let client = self.admin();
        super::eventually(&format!("{}/{} {} is served", gvk.group, gvk.version, gvk.kind), || async {
            let (resource, capabilities) = discovery::pinned_kind(&client, gvk).await.map_err(|error| error.to_string())?;
            Ok((resource, capabilities.scope))
        })
        .await
    }
}

/// The documents of a YAML (or JSON) text, without empty ones.
pub(super) fn parse(text: &str) -> Vec<Value> {
    if let Ok(object) = serde_json::from_str(text) {
        return vec![object];
    }
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    documents.into_iter().filter(|document| !document.is_null()).collect()
}
