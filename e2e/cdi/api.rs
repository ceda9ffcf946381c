//! Writes and reads of the API server: counted, strict about unknown fields, patient with a server that is away, silent while paused.

use std::{fmt::Debug, sync::Arc, time::Duration};

use http::{Method, Request};
use k8s_openapi::{
    api::{
        core::v1::{Event, EventSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::{Client, Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    cache::{Cache, Key},
    journal::Journal,
    types::{CDIConfig, DataSource, DataVolume, StorageProfile, VolumeCloneSource, VolumeImportSource, VolumeSnapshot},
};

/// What the watches know.
#[derive(Default)]
pub(super) struct Caches {
    pub(super) dvs: Cache<DataVolume>,
    pub(super) pvcs: Cache<PersistentVolumeClaim>,
    pub(super) pvs: Cache<PersistentVolume>,
    pub(super) pods: Cache<Pod>,
    pub(super) classes: Cache<StorageClass>,
    pub(super) profiles: Cache<StorageProfile>,
    pub(super) configs: Cache<CDIConfig>,
    pub(super) data_sources: Cache<DataSource>,
    pub(super) snapshots: Cache<VolumeSnapshot>,
}

/// A kind the stand-in writes; answers to writes go to its cache, where it has one.
pub(super) trait Written: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static {
    fn cache(_: &Caches) -> Option<&Cache<Self>> {
        None
    }
}

macro_rules! cached {
    ($($kind:ty => $field:ident),*) => {$(
        impl Written for $kind {
            fn cache(caches: &Caches) -> Option<&Cache<Self>> {
                Some(&caches.$field)
            }
        }
    )*};
}
cached!(DataVolume => dvs, PersistentVolumeClaim => pvcs, PersistentVolume => pvs, Pod => pods, StorageClass => classes,
    StorageProfile => profiles, CDIConfig => configs, DataSource => data_sources, VolumeSnapshot => snapshots);
impl Written for VolumeImportSource {}
impl Written for VolumeCloneSource {}
impl Written for Event {}
impl Written for k8s_openapi::api::core::v1::Secret {}
impl Written for k8s_openapi::api::core::v1::ConfigMap {}
impl Written for k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration {}
impl Written for k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration {}

/// The API server as the stand-in uses it.
#[derive(Clone)]
pub(super) struct ApiServer {
    pub(super) client: Client,
    pub(super) caches: Arc<Caches>,
    pub(super) journal: Arc<Journal>,
    pub(super) paused: watch::Receiver<bool>,
    pub(super) events: bool,
}

/// The HTTP status of an API error, if it is one.
pub(super) fn code(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}

/// The API server's own words, without the client's wrapping.
pub(super) fn text(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error { status.message.clone() } else { error.to_string() }
}

/// Whether trying again may help without anything else changing.
fn transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
        kube::Error::SerdeError(_) => false,
        _ => true,
    }
}

impl ApiServer {
    fn url<K: Written>(namespace: &str, name: Option<&str>, sub: &str) -> String {
        let base = K::url_path(&(), (!namespace.is_empty()).then_some(namespace));
        match name {
            Some(name) => format!("{base}/{name}{sub}"),
            None => base,
        }
    }

    /// Sends one write until the server answers something final.
    async fn write<K: DeserializeOwned>(&self, verb: &str, kind: &str, method: Method, url: &str, body: Vec<u8>) -> Result<K, kube::Error> {
        let media = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let strict = if method == Method::DELETE { "" } else { "?fieldValidation=Strict&fieldManager=cdi-stand-in" };
        let mut wait = Duration::from_millis(50);
        loop {
            let mut paused = self.paused.clone();
            // The sender lives as long as the stand-in; its end ends this task too.
            let _ = paused.wait_for(|paused| !paused).await;
            let request = Request::builder()
                .method(method.clone())
                .uri(format!("{url}{strict}"))
                .header("content-type", media)
                .body(body.clone())
                .map_err(kube::Error::HttpError)?;
            self.journal.count(verb, kind);
            match self.client.request::<K>(request).await {
                Err(error) if transient(&error) => {
                    tracing::debug!(target: "cdi_stand_in", "{verb} {url}: {error}; trying again");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(1));
                }
                answer => return answer,
            }
        }
    }

    fn keep<K: Written>(&self, object: K) -> Arc<K> {
        match K::cache(&self.caches) {
            Some(cache) => cache.put(object),
            None => Arc::new(object),
        }
    }

    pub(super) async fn create<K: Written>(&self, object: &K) -> Result<Arc<K>, kube::Error> {
        let url = Self::url::<K>(&object.namespace().unwrap_or_default(), None, "");
        let mut body = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
        body["apiVersion"] = K::api_version(&()).into();
        body["kind"] = K::kind(&()).into();
        let created: K = self.write("create", &K::kind(&()), Method::POST, &url, body.to_string().into_bytes()).await?;
        Ok(self.keep(created))
    }

    /// Creates `object`, or gives the one of that name that is already there.
    pub(super) async fn ensure<K: Written>(&self, object: &K) -> Result<Arc<K>, kube::Error> {
        match self.create(object).await {
            Err(error) if code(&error) == Some(409) => match self.get(&Key::of(object)).await? {
                Some(found) => Ok(found),
                None => Err(error),
            },
            answer => answer,
        }
    }

    async fn patch_at<K: Written>(&self, key: &Key, sub: &str, patch: &Value) -> Result<Arc<K>, kube::Error> {
        let url = Self::url::<K>(&key.namespace, Some(&key.name), sub);
        let kind = format!("{}{sub}", K::kind(&()));
        let patched: K = self.write("patch", &kind, Method::PATCH, &url, patch.to_string().into_bytes()).await?;
        Ok(self.keep(patched))
    }

    /// Merges `patch` into the object of this UID; another object of the name answers 409.
    pub(super) async fn patch<K: Written>(&self, object: &K, patch: Value) -> Result<Arc<K>, kube::Error> {
        self.patch_at(&Key::of(object), "", &with_uid(object, patch)).await
    }

    pub(super) async fn patch_status<K: Written>(&self, object: &K, status: Value) -> Result<Arc<K>, kube::Error> {
        self.patch_at(&Key::of(object), "/status", &with_uid(object, json!({ "status": status }))).await
    }

    /// Deletes exactly this object; one that is gone, or another of the name, is fine.
    pub(super) async fn delete<K: Written>(&self, object: &K) -> Result<(), kube::Error> {
        let key = Key::of(object);
        let url = Self::url::<K>(&key.namespace, Some(&key.name), "");
        let body = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": { "uid": object.uid() }, "propagationPolicy": "Background" });
        match self.write::<Value>("delete", &K::kind(&()), Method::DELETE, &url, body.to_string().into_bytes()).await {
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }

    pub(super) async fn get<K: Written>(&self, key: &Key) -> Result<Option<Arc<K>>, kube::Error> {
        let url = Self::url::<K>(&key.namespace, Some(&key.name), "");
        let mut wait = Duration::from_millis(50);
        loop {
            let request = Request::get(url.as_str()).body(Vec::new()).map_err(kube::Error::HttpError)?;
            match self.client.request::<K>(request).await {
                Err(error) if code(&error) == Some(404) => return Ok(None),
                Err(error) if transient(&error) => {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(1));
                }
                Err(error) => return Err(error),
                Ok(object) => return Ok(Some(self.keep(object))),
            }
        }
    }

    /// Writes an Event about `object`, as CDI's recorder does. Trouble with it is only logged.
    pub(super) async fn event<K: Resource<DynamicType = ()>>(&self, object: &K, type_: &str, reason: &str, message: &str) {
        if !self.events || reason.is_empty() {
            return;
        }
        let now = Timestamp::now();
        let namespace = object.namespace().unwrap_or_else(|| "default".into());
        let event = Event {
            metadata: ObjectMeta {
                namespace: Some(namespace),
                generate_name: Some(format!("{}.", object.name_any())),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some(K::api_version(&()).into()),
                kind: Some(K::kind(&()).into()),
                namespace: object.namespace(),
                name: Some(object.name_any()),
                uid: object.uid(),
                ..ObjectReference::default()
            },
            type_: Some(type_.into()),
            reason: Some(reason.into()),
            // The recorder cuts at 1024 bytes.
            message: Some(message.chars().take(1000).collect()),
            source: Some(EventSource { component: Some("cdi-stand-in".into()), host: None }),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            event_time: None::<MicroTime>,
            count: Some(1),
            ..Event::default()
        };
        if let Err(error) = self.create(&event).await {
            tracing::debug!(target: "cdi_stand_in", "event {reason} about {}: {error}", object.name_any());
        }
    }
}

/// Names the object by UID in a merge patch, so that a namesake is not touched.
fn with_uid<K: Resource>(object: &K, mut patch: Value) -> Value {
    patch["metadata"]["uid"] = json!(object.uid());
    patch
}

/// A controller owner reference to `owner`, as CDI sets it.
pub(super) fn owner_reference<K: Resource<DynamicType = ()>>(owner: &K) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
        api_version: K::api_version(&()).into(),
        kind: K::kind(&()).into(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
