//! The fence as it is written on a golden's claim and DataVolume, and the deletion behind it.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;

use super::candidates::Candidate;
use crate::{
    foreign::{Claim, DataVolume},
    golden::manifest::managers,
    rules::fence::Fence,
};

/// What the API server was asked for, and did not do.
#[derive(Debug)]
pub(super) struct Refused {
    /// The write.
    pub what: String,
    /// Its answer.
    pub error: kube::Error,
}

fn refused(what: &'static str, kind: &'static str, catalog: &str, name: &str) -> impl FnOnce(kube::Error) -> Refused {
    let what = format!("{what} {kind} {catalog}/{name}");
    move |error| Refused { what, error }
}

/// What the marks are called where they are refused.
const MARKS: &str = "the marks that retire a golden on";

/// Writes the fence on what there is, on the claim first. Gives whether it is written on all of it; where the claim is not the one that was
/// decided on, nothing is written on the DataVolume either.
pub(super) async fn mark(client: &Client, catalog: &str, candidate: &Candidate, fence: Fence) -> Result<bool, Refused> {
    let at = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    let annotations: serde_json::Map<String, serde_json::Value> =
        fence.annotations(at).into_iter().map(|(key, value)| (key.to_owned(), value.map_or(serde_json::Value::Null, Into::into))).collect();
    let name = &candidate.name;
    if let Some(claim) = &candidate.claim {
        let on_claim = mark_one::<Claim>(client, catalog, &claim.metadata, &annotations).await;
        if !on_claim.map_err(refused(MARKS, "PersistentVolumeClaim", catalog, name))? {
            return Ok(false);
        }
    }
    match &candidate.volume {
        Some(volume) => {
            let on_volume = mark_one::<DataVolume>(client, catalog, &volume.metadata, &annotations).await;
            on_volume.map_err(refused(MARKS, "DataVolume", catalog, name))
        }
        None => Ok(true),
    }
}

/// The UID: a fence never lands on another object that took the name. The version: it never lands on what is not as it was decided
/// on, a claim that the watch still shows closed and that is open already, say.
fn patch_of(object: &ObjectMeta, annotations: &serde_json::Map<String, serde_json::Value>) -> serde_json::Value {
    json!({ "metadata": { "uid": object.uid, "resourceVersion": object.resource_version, "annotations": annotations } })
}

async fn mark_one<K>(
    client: &Client,
    catalog: &str,
    object: &ObjectMeta,
    annotations: &serde_json::Map<String, serde_json::Value>,
) -> kube::Result<bool>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), catalog);
    let patch = patch_of(object, annotations);
    let params = PatchParams { field_manager: Some(managers::MARKS.to_owned()), ..PatchParams::default() };
    match api.patch(object.name.as_deref().unwrap_or_default(), &params, &Patch::Merge(&patch)).await {
        // Gone or changed meanwhile, or another one: the watch will tell.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        other => other.map(|_| true),
    }
}

/// Deletes the DataVolume by UID, which takes the claim along; a claim without one is deleted itself.
pub(super) async fn delete(client: &Client, catalog: &str, candidate: &Candidate) -> Result<(), Refused> {
    let by_uid = |uid: Option<String>| DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::background()
    };
    let name = &candidate.name;
    let (kind, outcome) = match (&candidate.volume, &candidate.claim) {
        (Some(volume), _) => {
            let api: Api<DataVolume> = Api::namespaced(client.clone(), catalog);
            ("DataVolume", api.delete(name, &by_uid(volume.uid())).await.map(drop))
        }
        (None, Some(claim)) => {
            let api: Api<Claim> = Api::namespaced(client.clone(), catalog);
            ("PersistentVolumeClaim", api.delete(name, &by_uid(claim.uid())).await.map(drop))
        }
        (None, None) => return Ok(()),
    };
    match outcome {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other.map_err(refused("the deletion of the retired", kind, catalog, name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r23_a_mark_lands_on_the_object_as_it_was_seen_and_on_no_other() {
        let object = ObjectMeta { uid: Some("uid".into()), resource_version: Some("7".into()), ..ObjectMeta::default() };
        let patch = patch_of(&object, &serde_json::Map::new());
        assert_eq!((&patch["metadata"]["uid"], &patch["metadata"]["resourceVersion"]), (&json!("uid"), &json!("7")));
    }
}
