//! Doing what was decided, one action at a time, with the leader's client.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry},
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;

use super::memory::{GoldenMemory, Memory};
use crate::{
    api::{GoldenImage, GoldenImageStatus},
    foreign::{Claim, DataVolume},
    golden::{
        DataVolumeView, GrantView, ImportOrder,
        manifest::{self, managers},
    },
    model::{Digest, GoldenName, HttpUrl, Image},
    rules::marks,
    spool::{Grant, Registry},
};

/// What acting needs.
#[derive(Clone)]
pub struct Hands {
    /// A client that writes only while we lead.
    pub client: Client,
    /// The namespace of the goldens.
    pub catalog: String,
    /// The URL under which importers reach the spool.
    pub spool_url: HttpUrl,
    /// Who may pull what.
    pub registry: Registry,
    /// The CA bundle that importers are to trust, as it is now.
    pub ca_bundle: std::sync::Arc<dyn Fn() -> Option<String> + Send + Sync>,
}

/// An action that the API server refused or did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The API server.
    #[error("{what}: {}", crate::run::api_error(.error))]
    Api {
        /// What was tried.
        what: String,
        /// Its answer.
        error: Box<kube::Error>,
    },
    /// A manifest could not be made, which is a bug.
    #[error("cannot make the DataVolume: {0}")]
    Manifest(String),
    /// The step took too long.
    #[error("the API server did not answer within a minute")]
    Slow,
    /// The spool's certificate is not there yet.
    #[error("the spool's certificate is not issued yet")]
    NoCertificate,
}

impl ActError {
    /// Whether we no longer lead, which is no failure.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Api { error, .. } if crate::run::client::is_lost(error))
    }
}

fn failed(what: impl Into<String>) -> impl FnOnce(kube::Error) -> ActError {
    let what = what.into();
    move |error| ActError::Api { what, error: Box::new(error) }
}

impl Hands {
    fn grant(uid: &str, golden: &GoldenName, disk: Digest) -> Grant {
        Grant { uid: uid.to_owned(), golden: golden.clone(), disk }
    }

    /// Writes the status as a whole: fields that are not in it any more are gone. Gives the object as it is now.
    ///
    /// A field that somebody else wrote too (an edit by hand, an older version under another name) stays theirs when we drop
    /// it, and then the API server keeps it, or refuses the rest of its parent. So what they hold is taken over first.
    pub async fn write_status(&self, object: &GoldenImage, status: &GoldenImageStatus) -> Result<GoldenImage, ActError> {
        let first = self.apply_status(object, status).await;
        let in_the_way = match &first {
            Ok(written) => written.status.as_ref() != Some(status),
            Err(ActError::Api { error, .. }) => matches!(&**error, kube::Error::Api(answer) if answer.code == 422),
            Err(_) => false,
        };
        if !(in_the_way && self.take_status_over(object).await?) {
            return first;
        }
        tracing::info!(image = object.name_any(), "fields of the status were another manager's; taken over");
        self.apply_status(object, status).await
    }

    /// Makes every field of the status ours, as client-go's `csaupgrade` does. Gives whether another manager had some.
    async fn take_status_over(&self, object: &GoldenImage) -> Result<bool, ActError> {
        let api: Api<GoldenImage> = Api::all(self.client.clone());
        let live = api.get_metadata(&object.name_any()).await.map_err(failed("cannot read the status's managers"))?;
        if live.uid() != object.uid() {
            return Ok(false);
        }
        let Some(managers) = take_over(live.managed_fields(), managers::STATUS) else { return Ok(false) };
        let version = live.resource_version();
        let patch = json!({ "metadata": { "resourceVersion": version, "managedFields": managers } });
        let params = PatchParams { field_manager: Some(managers::STATUS.to_owned()), ..PatchParams::default() };
        // Not by the subresource: there the API server keeps the managers as they are.
        api.patch_metadata(&object.name_any(), &params, &Patch::Merge(&patch)).await.map_err(failed("cannot take the status over"))?;
        Ok(true)
    }

    async fn apply_status(&self, object: &GoldenImage, status: &GoldenImageStatus) -> Result<GoldenImage, ActError> {
        let name = object.name_any();
        // The UID: a status never lands on another object that took the name.
        let body = json!({
            "apiVersion": "cozystack.io/v1alpha1",
            "kind": "GoldenImage",
            "metadata": { "name": name, "uid": object.uid() },
            "status": status,
        });
        let api: Api<GoldenImage> = Api::all(self.client.clone());
        let params = PatchParams::apply(managers::STATUS).force();
        api.patch_status(&name, &params, &Patch::Apply(&body)).await.map_err(failed("cannot write the status"))
    }

    /// Lets a golden's importer pull a disk.
    pub fn serve(&self, memory: &Memory, uid: &str, golden: &GoldenName, disk: Digest, ready: bool) {
        self.registry.grant(&Self::grant(uid, golden, disk));
        remember(memory, uid, golden, |golden| golden.grant = GrantView::Serving { disk, ready });
    }

    /// Answers 410 from now on.
    pub fn refuse(&self, memory: &Memory, uid: &str, golden: &GoldenName, disk: Digest) {
        self.registry.retire(&Self::grant(uid, golden, disk));
        remember(memory, uid, golden, |golden| golden.grant = GrantView::Refused);
    }

    /// Writes the header Secret and the CA, so that an importer finds them as they must be.
    pub async fn write_headers(
        &self,
        memory: &Memory,
        uid: &str,
        golden: &GoldenName,
        disk: Digest,
        mark: (i32, i64, u64),
    ) -> Result<(), ActError> {
        let bundle = (self.ca_bundle)().ok_or(ActError::NoCertificate)?;
        let address = self.registry.grant(&Self::grant(uid, golden, disk));
        let params = PatchParams::apply(managers::GOLDEN).force();
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.catalog);
        let map = manifest::spool_ca(&self.catalog, &bundle);
        maps.patch(manifest::SPOOL_CA, &params, &Patch::Apply(&map)).await.map_err(failed("cannot write the spool's CA"))?;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.catalog);
        let secret = manifest::header_secret(golden, &self.catalog, &address.header_line());
        secrets
            .patch(golden.as_str(), &params, &Patch::Apply(&secret))
            .await
            .map_err(failed("cannot write the importer's header Secret"))?;
        remember(memory, uid, golden, |golden| golden.headers_written = Some(mark));
        Ok(())
    }

    /// Deletes the header Secret; one that is gone is as good.
    pub async fn delete_headers(&self, golden: &GoldenName) -> Result<(), ActError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.catalog);
        match secrets.delete(golden.as_str(), &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop).map_err(failed("cannot delete the importer's header Secret")),
        }
    }

    /// Creates the DataVolume. One that is there already is left as it is: the next look tells whose it is.
    pub async fn create_volume(&self, memory: &Memory, uid: &str, image: &Image, order: &ImportOrder) -> Result<(), ActError> {
        let address = self.registry.grant(&Self::grant(uid, &order.golden, order.disk));
        let manifest = manifest::data_volume(image, order, &self.catalog, &self.spool_url.to_string(), address.path());
        // Strict: a field that this CDI does not know must not be dropped without a word (cdi.md, trap 5).
        let uri = format!(
            "{}?fieldManager={}&fieldValidation=Strict",
            DataVolume::url_path(&(), Some(&self.catalog)),
            url::form_urlencoded::byte_serialize(managers::GOLDEN.as_bytes()).collect::<String>(),
        );
        let unmade = |error: String| ActError::Manifest(error);
        let body = serde_json::to_vec(&manifest).map_err(|error| unmade(error.to_string()))?;
        let request = http::Request::post(uri)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| unmade(error.to_string()))?;
        match self.client.request::<DataVolume>(request).await {
            Ok(created) => {
                let view = DataVolumeView {
                    uid: created.uid().unwrap_or_default(),
                    ours: true,
                    disk_digest: Some(order.disk.to_string()),
                    ..DataVolumeView::default()
                };
                remember(memory, uid, &order.golden, |golden| golden.created(view));
                Ok(())
            }
            // Only this 409 says so: a quota that changed meanwhile is `Conflict`, and must be asked again.
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            Err(error) => Err(failed(format!("cannot create the DataVolume {}", order.golden))(error)),
        }
    }

    /// Deletes a DataVolume of ours, and no other that took its name.
    pub async fn delete_volume(&self, memory: &Memory, image_uid: &str, golden: &GoldenName, uid: &str) -> Result<(), ActError> {
        let api: Api<DataVolume> = Api::namespaced(self.client.clone(), &self.catalog);
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::default()
        };
        match api.delete(golden.as_str(), &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            // 409: another one has the name by now, or the object changed under the delete. Either way nothing is known to be
            // deleted, and the next look tells.
            Err(error) => return Err(failed(format!("cannot delete the unfinished DataVolume {golden}"))(error)),
        }
        remember(memory, image_uid, golden, |golden| golden.deleted(uid.to_owned()));
        Ok(())
    }

    /// Writes our marks on a golden's DataVolume and PVC.
    pub async fn mark(&self, image: &Image, order: &ImportOrder, claim_uid: &str, has_volume: bool) -> Result<(), ActError> {
        let marks::Marks { labels, annotations } = manifest::marks_of(image, order);
        let params = PatchParams::apply(managers::MARKS).force();
        let name = order.golden.as_str();
        let body = |api_version: &str, kind: &str, uid: Option<&str>| {
            json!({
                "apiVersion": api_version, "kind": kind,
                "metadata": { "name": name, "namespace": self.catalog, "uid": uid, "labels": labels, "annotations": annotations },
            })
        };
        let claims: Api<Claim> = Api::namespaced(self.client.clone(), &self.catalog);
        let claim = body("v1", "PersistentVolumeClaim", Some(claim_uid));
        claims.patch(name, &params, &Patch::Apply(&claim)).await.map_err(failed("cannot mark the golden's PVC"))?;
        if has_volume {
            let volumes: Api<DataVolume> = Api::namespaced(self.client.clone(), &self.catalog);
            let patch = json!({ "metadata": { "labels": labels, "annotations": annotations } });
            let params = PatchParams { field_manager: Some(managers::MARKS.to_owned()), ..PatchParams::default() };
            volumes.patch(name, &params, &Patch::Merge(&patch)).await.map_err(failed("cannot mark the golden's DataVolume"))?;
        }
        Ok(())
    }
}

/// The managers of an object, with all that any of them holds of its status given to `ours`; `None` where no other holds any.
fn take_over(managers: &[ManagedFieldsEntry], ours: &str) -> Option<Vec<ManagedFieldsEntry>> {
    let is_status = |entry: &ManagedFieldsEntry| entry.subresource.as_deref() == Some("status");
    let is_ours = |entry: &ManagedFieldsEntry| {
        is_status(entry) && entry.manager.as_deref() == Some(ours) && entry.operation.as_deref() == Some("Apply")
    };
    let mut fields = json!({});
    let mut other = None;
    for entry in managers.iter().filter(|entry| is_status(entry)) {
        merge(&mut fields, entry.fields_v1.as_ref().map_or(&json!({}), |fields| &fields.0));
        if !is_ours(entry) {
            other = Some(entry);
        }
    }
    let like = managers.iter().find(|entry| is_ours(entry)).or(other)?;
    other?;
    let own = ManagedFieldsEntry {
        manager: Some(ours.to_owned()),
        operation: Some("Apply".to_owned()),
        fields_v1: Some(FieldsV1(fields)),
        ..like.clone()
    };
    Some(managers.iter().filter(|entry| !is_status(entry)).cloned().chain([own]).collect())
}

/// Adds the members of one set of fields (nested objects, FieldsV1) to another.
fn merge(into: &mut serde_json::Value, from: &serde_json::Value) {
    if let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) {
        for (key, value) in from {
            merge(into.entry(key.clone()).or_insert_with(|| json!({})), value);
        }
    }
}

fn remember(memory: &Memory, uid: &str, golden: &GoldenName, work: impl FnOnce(&mut GoldenMemory)) {
    memory.with(uid, |image| work(image.golden(golden)));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::take_over;

    fn entry(manager: &str, operation: &str, subresource: Option<&str>, fields: Value) -> Value {
        let mut entry =
            json!({ "manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields });
        if let Some(subresource) = subresource {
            entry["subresource"] = subresource.into();
        }
        entry
    }

    #[test]
    fn what_others_hold_of_the_status_becomes_ours_and_the_rest_stays_theirs() {
        let ours = |fields| entry("us", "Apply", Some("status"), fields);
        let theirs = |operation, fields| entry("kubectl-edit", operation, Some("status"), fields);
        let spec = entry("helm", "Apply", None, json!({ "f:spec": { "f:source": {} } }));
        for (managers, expected) in [
            (vec![], None),
            (vec![spec.clone(), ours(json!({ "f:status": { "f:a": {} } }))], None),
            (
                vec![
                    spec.clone(),
                    ours(json!({ "f:status": { "f:a": {} } })),
                    theirs("Update", json!({ "f:status": { "f:a": { "f:b": {} } } })),
                ],
                Some(vec![spec.clone(), ours(json!({ "f:status": { "f:a": { "f:b": {} } } }))]),
            ),
            (vec![theirs("Apply", json!({ "f:status": { "f:c": {} } }))], Some(vec![ours(json!({ "f:status": { "f:c": {} } }))])),
            (vec![entry("us", "Update", Some("status"), json!({ "f:status": {} }))], Some(vec![ours(json!({ "f:status": {} }))])),
        ] {
            let managers: Vec<_> = managers.into_iter().map(|entry| serde_json::from_value(entry).expect("entry")).collect();
            assert_eq!(take_over(&managers, "us").map(|entries| json!(entries)), expected.map(|entries| json!(entries)));
        }
    }
}
