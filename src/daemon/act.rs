//! Doing what was decided, one action at a time, with the leader's client.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry},
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;

use super::memory::{GoldenMemory, Memory};
use crate::{
    api::{GoldenImage, GoldenImageStatus},
    foreign::{Claim, DataVolume},
    golden::{
        Action, DataVolumeView, GrantView, ImportOrder,
        manifest::{self, Owner, managers},
    },
    model::{Digest, GoldenName, HttpUrl, Image, redact},
    rules::{Answer, Reason, marks, refusal},
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
    pub ca_bundle: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// The bundle as this leader last wrote it, and when: one write for many imports.
    pub ca_written: Arc<Mutex<Option<(String, Instant)>>>,
}

/// For how long the CA counts as just written: importers that begin again together cost one write.
const CA_HOLDS: Duration = Duration::from_secs(3);

/// Whether the CA is to be written. Also for whoever tries again: a ConfigMap that somebody deleted or edited is a reason to.
fn is_ca_due(written: Option<&(String, Instant)>, bundle: &str, is_again: bool, now: Instant) -> bool {
    match written {
        Some((known, at)) if known == bundle => is_again && now.saturating_duration_since(*at) >= CA_HOLDS,
        _ => true,
    }
}

/// An action that the API server refused or did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The API server refused, failed or did not answer.
    #[error("{what}: {}", redact(&crate::run::api_error(.error)))]
    Api {
        /// The object or request.
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
    /// The spool's volume hangs.
    #[error("the spool's volume did not answer within seconds: check it, and what it is made of")]
    SpoolSlow,
    /// The spool's certificate is not there yet.
    #[error("the spool's certificate is not issued yet")]
    NoCertificate,
    /// An object of the name is someone else's, and is left alone.
    #[error("{0}")]
    Foreign(String),
}

impl ActError {
    /// Whether we no longer lead, which is no failure.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Api { error, .. } if crate::run::client::is_lost(error))
    }

    /// Whether what was to be written on is gone.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Api { error, .. } if matches!(&**error, kube::Error::Api(status) if status.code == 404))
    }

    /// The target's trouble, where somebody must do something about it (R10).
    pub fn refusal(&self) -> Option<(Reason, String)> {
        match self {
            Self::Api { what, error } => match &**error {
                kube::Error::Api(status) => refusal(what, Answer { code: status.code, reason: &status.reason, message: &status.message }),
                _ => None,
            },
            Self::Foreign(message) => Some((Reason::NameConflict, message.clone())),
            Self::Manifest(_) | Self::Slow | Self::SpoolSlow | Self::NoCertificate => None,
        }
    }
}

/// `what` is the object or request, as a message names it.
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
        let live = api.get_metadata(&object.name_any()).await.map_err(failed("the managers of the status"))?;
        if live.uid() != object.uid() {
            return Ok(false);
        }
        let Some(managers) = take_over(live.managed_fields(), managers::STATUS) else { return Ok(false) };
        let version = live.resource_version();
        let patch = json!({ "metadata": { "resourceVersion": version, "managedFields": managers } });
        let params = PatchParams { field_manager: Some(managers::STATUS.to_owned()), ..PatchParams::default() };
        // Not by the subresource: there the API server keeps the managers as they are.
        api.patch_metadata(&object.name_any(), &params, &Patch::Merge(&patch)).await.map_err(failed("the managers of the status"))?;
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
        api.patch_status(&name, &params, &Patch::Apply(&body)).await.map_err(failed("the status"))
    }

    /// Puts our finalizer on the object, or takes it off; others' stay. Gives the object, or `None` where it is gone with that.
    pub async fn set_finalizer(&self, object: &GoldenImage, wanted: bool) -> Result<Option<GoldenImage>, ActError> {
        let mut finalizers: Vec<String> = object.finalizers().iter().filter(|known| *known != manifest::FINALIZER).cloned().collect();
        if wanted {
            finalizers.push(manifest::FINALIZER.to_owned());
        }
        // The resourceVersion: a list that somebody else changed meanwhile is looked at again.
        let patch = json!({ "metadata": { "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": finalizers } });
        let params = PatchParams { field_manager: Some(managers::GOLDEN.to_owned()), ..PatchParams::default() };
        let api: Api<GoldenImage> = Api::all(self.client.clone());
        match api.patch(&object.name_any(), &params, &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Ok(written) => {
                let is_gone = written.metadata.deletion_timestamp.is_some() && written.finalizers().is_empty();
                Ok((!is_gone).then_some(written))
            }
            Err(error) => Err(failed("the finalizer")(error)),
        }
    }

    /// Takes the annotation off the object that gets around who needs its goldens; one that is gone is as good.
    pub async fn disarm(&self, object: &GoldenImage) -> Result<(), ActError> {
        // The resourceVersion: what a person wrote meanwhile is about another retirement.
        let version = object.resource_version();
        let patch =
            json!({ "metadata": { "uid": object.uid(), "resourceVersion": version, "annotations": { marks::FORCE_RETIRE: null } } });
        let params = PatchParams { field_manager: Some(managers::GOLDEN.to_owned()), ..PatchParams::default() };
        let api: Api<GoldenImage> = Api::all(self.client.clone());
        match api.patch_metadata(&object.name_any(), &params, &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop).map_err(failed("the annotation force-retire")),
        }
    }

    /// Takes off a golden's claim what asked for it to go while no image had it, with the force that was meant for that.
    pub async fn forget_request(&self, golden: &GoldenName, claim_uid: &str) -> Result<(), ActError> {
        let annotations = json!({ marks::RETIRE_REQUESTED: null, marks::FORCE_RETIRE: null });
        let patch = json!({ "metadata": { "uid": claim_uid, "annotations": annotations } });
        let params = PatchParams { field_manager: Some(managers::MARKS.to_owned()), ..PatchParams::default() };
        let claims: Api<Claim> = Api::namespaced(self.client.clone(), &self.catalog);
        claims.patch(golden.as_str(), &params, &Patch::Merge(&patch)).await.map(drop).map_err(failed("the marks of the golden's PVC"))
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
        image: Owner<'_>,
        golden: &GoldenName,
        disk: Digest,
        mark: (i32, i64, u64),
    ) -> Result<(), ActError> {
        let bundle = (self.ca_bundle)().ok_or(ActError::NoCertificate)?;
        let address = self.registry.grant(&Self::grant(image.uid, golden, disk));
        let is_due = is_ca_due(self.ca_written().as_ref(), &bundle, mark > (1, 0, 0), Instant::now());
        if is_due {
            let params = PatchParams::apply(managers::GOLDEN).force();
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.catalog);
            let map = manifest::spool_ca(&self.catalog, &bundle);
            maps.patch(manifest::SPOOL_CA, &params, &Patch::Apply(&map))
                .await
                .map_err(failed(format!("the ConfigMap {}", manifest::SPOOL_CA)))?;
            *self.ca_written() = Some((bundle, Instant::now()));
        }
        let secret = self.write_secret(image, golden, &address.header_line()).await.inspect_err(|_| {
            // Perhaps the namespace is on its way out, and the ConfigMap with it.
            *self.ca_written() = None;
        })?;
        remember(memory, image.uid, golden, |golden| golden.headers_written(secret, mark));
        Ok(())
    }

    fn ca_written(&self) -> MutexGuard<'_, Option<(String, Instant)>> {
        self.ca_written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.catalog)
    }

    /// Creates the header Secret, or renews it if it is ours; gives its UID. A Secret of the name that is someone else's is
    /// not touched: the daemon may not read Secrets here, so the API server tests the mark as it patches.
    async fn write_secret(&self, image: Owner<'_>, golden: &GoldenName, header: &str) -> Result<String, ActError> {
        let unmade = |error: serde_json::Error| ActError::Manifest(error.to_string());
        let body = manifest::header_secret(image, golden, &self.catalog, header);
        let secret: Secret = serde_json::from_value(body).map_err(unmade)?;
        let params = PostParams { field_manager: Some(managers::GOLDEN.to_owned()), ..PostParams::default() };
        match self.secrets().create(&params, &secret).await {
            Ok(created) => return Ok(created.uid().unwrap_or_default()),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(failed(format!("the header Secret {golden}"))(error)),
        }
        let patch = manifest::renew_secret(image, header);
        match self.patch_secret(golden, patch).await? {
            Some(uid) => Ok(uid),
            None => Err(ActError::Foreign(format!(
                "A Secret {golden} exists in the catalog namespace that is not this image's, so the importer's token cannot be kept there."
            ))),
        }
    }

    /// Applies a JSON patch whose tests hold only for a Secret of ours; gives its UID, or `None` where they do not hold.
    async fn patch_secret(&self, golden: &GoldenName, patch: Vec<serde_json::Value>) -> Result<Option<String>, ActError> {
        let patch = serde_json::from_value(patch.into()).map_err(|error| ActError::Manifest(error.to_string()))?;
        let params = PatchParams { field_manager: Some(managers::GOLDEN.to_owned()), ..PatchParams::default() };
        match self.secrets().patch_metadata(golden.as_str(), &params, &Patch::Json::<()>(patch)).await {
            Ok(secret) => Ok(secret.uid()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 422) => Ok(None),
            Err(error) => Err(failed(format!("the header Secret {golden}"))(error)),
        }
    }

    /// Deletes the header Secret if it is ours; one that is gone is as good.
    pub async fn delete_headers(&self, memory: &Memory, image: Owner<'_>, golden: &GoldenName) -> Result<(), ActError> {
        let known = memory.with(image.uid, |image| image.golden(golden).take_secret());
        let uid = match known {
            Some(uid) => Some(uid),
            None => self.patch_secret(golden, manifest::is_our_secret(image.name)).await?,
        };
        let Some(uid) = uid else { return Ok(()) };
        let params = DeleteParams::default().preconditions(Preconditions { uid: Some(uid), resource_version: None });
        match self.secrets().delete(golden.as_str(), &params).await {
            // Gone, or another one has the name by now.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            other => other.map(drop).map_err(failed(format!("the deletion of the header Secret {golden}"))),
        }
    }

    /// Creates the DataVolume. One that is there already is left as it is: the next look tells whose it is.
    pub async fn create_volume(&self, memory: &Memory, uid: &str, image: &Image, order: &ImportOrder) -> Result<(), ActError> {
        let manifest = match &order.copies {
            Some(golden) => manifest::data_volume(image, order, &self.catalog, manifest::Origin::Golden(golden)),
            None => {
                let address = self.registry.grant(&Self::grant(uid, &order.golden, order.disk));
                let url = format!("{}{}", self.spool_url.to_string().trim_end_matches('/'), address.path());
                manifest::data_volume(image, order, &self.catalog, manifest::Origin::Spool(&url))
            }
        };
        // Strict: a field that this CDI does not know must not be dropped without a word: CDI v1.64 dropped `checksum` so.
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
                    copies: order.copies.as_ref().map(ToString::to_string),
                    disk_digest: Some(order.disk.to_string()),
                    ..DataVolumeView::default()
                };
                remember(memory, uid, &order.golden, |golden| golden.created(view));
                Ok(())
            }
            // Only this 409 says so: a quota that changed meanwhile is `Conflict`, and must be asked again.
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            Err(error) => Err(failed(format!("the DataVolume {}", order.golden))(error)),
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
            Err(error) => return Err(failed(format!("the deletion of the unfinished DataVolume {golden}"))(error)),
        }
        remember(memory, image_uid, golden, |golden| golden.deleted(uid.to_owned()));
        Ok(())
    }

    /// Writes our marks on a golden's DataVolume and PVC, and takes off what is `outdated`.
    pub async fn mark(
        &self,
        image: &Image,
        order: &ImportOrder,
        claim_uid: &str,
        volume_uid: Option<&str>,
        outdated: &BTreeSet<String>,
    ) -> Result<(), ActError> {
        let marks::Marks { labels, annotations } = manifest::marks_of(image, order);
        let (labels, annotations) = (json!(labels), json!(annotations));
        let params = PatchParams::apply(managers::MARKS).force();
        let name = order.golden.as_str();
        let merged = |uid: &str| {
            let (labels, annotations) = (without(labels.clone(), outdated), without(annotations.clone(), outdated));
            Patch::Merge(json!({ "metadata": { "uid": uid, "labels": labels, "annotations": annotations } }))
        };
        let merge = PatchParams { field_manager: Some(managers::MARKS.to_owned()), ..PatchParams::default() };
        let body = |api_version: &str, kind: &str, uid: Option<&str>| {
            json!({
                "apiVersion": api_version, "kind": kind,
                "metadata": { "name": name, "namespace": self.catalog, "uid": uid, "labels": labels, "annotations": annotations },
            })
        };
        let claims: Api<Claim> = Api::namespaced(self.client.clone(), &self.catalog);
        let claim = body("v1", "PersistentVolumeClaim", Some(claim_uid));
        claims.patch(name, &params, &Patch::Apply(&claim)).await.map_err(failed("the marks of the golden's PVC"))?;
        if !outdated.is_empty() {
            // CDI, which copied them from the DataVolume, owns them too: what we do not apply any more would stay.
            claims.patch(name, &merge, &merged(claim_uid)).await.map_err(failed("the marks of the golden's PVC"))?;
        }
        if let Some(uid) = volume_uid {
            let volumes: Api<DataVolume> = Api::namespaced(self.client.clone(), &self.catalog);
            // The UID: another DataVolume that took the name is not ours to mark.
            volumes.patch(name, &merge, &merged(uid)).await.map_err(failed("the marks of the golden's DataVolume"))?;
        }
        Ok(())
    }

    /// Writes marks on what is taken over: on its claim, and on its DataVolume where there is one; and takes off what is `outdated`. Nothing
    /// else of either is touched, and neither is another object that took the name. The claim says from then on by its own UID that it was: consent is
    /// used up, so that a backup of it consents to nothing.
    pub async fn write_marks(
        &self,
        golden: &GoldenName,
        marks: &marks::Marks,
        claim_uid: &str,
        volume_uid: Option<&str>,
        outdated: &BTreeSet<String>,
    ) -> Result<(), ActError> {
        let (claims, volumes): (Api<Claim>, Api<DataVolume>) =
            (Api::namespaced(self.client.clone(), &self.catalog), Api::namespaced(self.client.clone(), &self.catalog));
        let params = PatchParams { field_manager: Some(managers::MARKS.to_owned()), ..PatchParams::default() };
        let patch = |uid: &str, adopt: Option<&str>| {
            let (labels, mut annotations) = (without(json!(marks.labels), outdated), without(json!(marks.annotations), outdated));
            annotations[marks::ADOPT] = json!(adopt);
            Patch::Merge(json!({ "metadata": { "uid": uid, "labels": labels, "annotations": annotations } }))
        };
        // The DataVolume first: CDI copies its labels and annotations to the claim.
        if let Some(uid) = volume_uid {
            volumes.patch(golden.as_str(), &params, &patch(uid, None)).await.map_err(failed("the marks of the golden's DataVolume"))?;
        }
        claims
            .patch(golden.as_str(), &params, &patch(claim_uid, Some(claim_uid)))
            .await
            .map_err(failed("the marks of the golden's PVC"))?;
        Ok(())
    }
}

/// Labels or annotations for a merge patch that also takes these keys off, as far as it does not write them.
fn without(mut wanted: serde_json::Value, outdated: &BTreeSet<String>) -> serde_json::Value {
    if let Some(wanted) = wanted.as_object_mut() {
        for key in outdated {
            wanted.entry(key.as_str()).or_insert(serde_json::Value::Null);
        }
    }
    wanted
}

/// Keeps what the API server said to an action for the next decision; success clears it.
pub fn note_outcome(memory: &Memory, uid: &str, action: &Action, outcome: &Result<(), ActError>) {
    let refused = outcome.as_ref().err().and_then(ActError::refusal);
    match action.golden() {
        // A Secret that is left over keeps the golden from nothing.
        Some(golden) if matches!(action, Action::DeleteHeaders { .. }) => {
            remember(memory, uid, golden, |golden| golden.undeleted = refused)
        }
        Some(golden) => remember(memory, uid, golden, |golden| golden.refused = refused),
        None if matches!(action, Action::Finalizer(_)) => memory.with(uid, |image| image.refused = refused),
        None => {}
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

    use std::time::{Duration, Instant};

    use super::{CA_HOLDS, is_ca_due, take_over};

    fn entry(manager: &str, operation: &str, subresource: Option<&str>, fields: Value) -> Value {
        let mut entry =
            json!({ "manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields });
        if let Some(subresource) = subresource {
            entry["subresource"] = subresource.into();
        }
        entry
    }

    #[test]
    fn the_ca_is_written_once_for_importers_that_begin_again_together() {
        let now = Instant::now();
        let written = ("ca".to_owned(), now);
        let soon = now + Duration::from_millis(500);
        for (written, bundle, is_again, at, expected) in [
            (None, "ca", false, now, true),
            (Some(&written), "ca", false, now + CA_HOLDS, false),
            (Some(&written), "ca", true, soon, false),
            (Some(&written), "ca", true, now + CA_HOLDS, true),
            (Some(&written), "another", false, soon, true),
            (Some(&written), "another", true, soon, true),
        ] {
            assert_eq!(is_ca_due(written, bundle, is_again, at), expected, "{bundle} {is_again}");
        }
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
