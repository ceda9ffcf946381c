//! What the leader fills into the webhook configurations that the chart renders: whom to trust, and who takes them along when it goes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::Namespace,
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    golden::manifest::managers,
    run::{
        api_error,
        certs::{Overlap, Resolver},
        client::is_lost,
    },
};

/// The configurations' name, of both kinds.
pub fn name(namespace: &str) -> String {
    format!("golden-catalog-admission-{namespace}")
}

/// How often the configurations are looked at: a hand, or another version of the chart, may have changed them.
const INTERVAL: Duration = Duration::from_secs(30);

/// Keeps both configurations filled until `stop`; what is right already is not written.
pub(super) async fn keep(client: Client, namespace: &str, resolver: Arc<Resolver>, stop: CancellationToken) {
    let mut told = None;
    let mut overlaps = <(Overlap, Overlap)>::default();
    loop {
        let bundle = resolver.bundle();
        let outcome = match &bundle {
            Some(bundle) => fill(&client, namespace, bundle, &mut overlaps).await,
            None => Ok(()),
        };
        match outcome {
            Err(error) if is_lost(&error) => return,
            Err(error) => {
                let text = api_error(&error);
                if told.as_ref() != Some(&text) {
                    tracing::warn!(error = text, "the webhook configurations cannot be filled in; tried again");
                }
                told = Some(text);
            }
            Ok(()) => told = None,
        }
        // While the certificate is not there yet, or something failed, soon again.
        let pause = if bundle.is_none() || told.is_some() { Duration::from_secs(1) } else { INTERVAL };
        tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(pause) => {}, () = resolver.changed() => {} }
    }
}

async fn fill(client: &Client, namespace: &str, bundle: &str, overlaps: &mut (Overlap, Overlap)) -> Result<(), kube::Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let Some(uid) = namespaces.get(namespace).await?.metadata.uid else { return Ok(()) };
    let owner = json!({ "apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": uid });
    fill_one::<MutatingWebhookConfiguration>(client, namespace, bundle, &owner, &mut overlaps.0).await?;
    fill_one::<ValidatingWebhookConfiguration>(client, namespace, bundle, &owner, &mut overlaps.1).await
}

async fn fill_one<K>(client: &Client, namespace: &str, bundle: &str, owner: &Value, overlap: &mut Overlap) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
    K: Resource<Scope = kube::core::ClusterResourceScope>,
{
    let (api, name) = (Api::<K>::all(client.clone()), name(namespace));
    // Not rendered: the hoster has turned admission off.
    let Some(found) = api.get_opt(&name).await? else { return Ok(()) };
    let found = serde_json::to_value(&found).map_err(kube::Error::SerdeError)?;
    // Replicas may serve by the former CA a while longer.
    let bundle = overlap.bundle(bundle, &bundles(&found), Instant::now(), Timestamp::now());
    let Some(patch) = wanted(&found, &bundle, owner) else { return Ok(()) };
    let params = PatchParams::apply(managers::WEBHOOKS).force();
    api.patch(&name, &params, &Patch::Apply(&patch)).await?;
    tracing::info!(name, kind = %K::kind(&()), "filled in the webhooks' CA and owner");
    Ok(())
}

/// What the API server is told to trust at present.
fn bundles(found: &Value) -> Vec<String> {
    use base64::Engine as _;
    let webhooks = found.get("webhooks").and_then(Value::as_array).into_iter().flatten();
    let texts = webhooks.filter_map(|webhook| webhook.pointer("/clientConfig/caBundle")?.as_str());
    let decoded = texts.filter_map(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
    decoded.filter_map(|bytes| String::from_utf8(bytes).ok()).collect()
}

/// What is to be applied to a configuration, or nothing where it is as it must be. Only what is ours: everything else stays the chart's.
fn wanted(found: &Value, bundle: &str, owner: &Value) -> Option<Value> {
    use base64::Engine as _;
    let bundle = base64::engine::general_purpose::STANDARD.encode(bundle);
    let webhooks = found.get("webhooks").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_filled = |webhook: &Value| webhook.pointer("/clientConfig/caBundle").and_then(Value::as_str) == Some(bundle.as_str());
    let owners = found.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let is_owned = owners.is_some_and(|owners| owners.iter().any(|known| known["uid"] == owner["uid"]));
    if is_owned && webhooks.iter().all(is_filled) {
        return None;
    }
    let filled: Vec<Value> =
        webhooks.iter().map(|webhook| json!({ "name": webhook["name"], "clientConfig": { "caBundle": bundle } })).collect();
    Some(json!({
        "apiVersion": found["apiVersion"], "kind": found["kind"],
        "metadata": { "name": found["metadata"]["name"], "uid": found["metadata"]["uid"], "ownerReferences": [owner] },
        "webhooks": filled,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_written() {
        let owner = json!({ "apiVersion": "v1", "kind": "Namespace", "name": "n", "uid": "u" });
        let found = json!({ "apiVersion": "a", "kind": "K", "metadata": { "name": "x", "uid": "o" },
            "webhooks": [{ "name": "w", "clientConfig": { "service": { "name": "s" } }, "rules": [] }] });
        let patch = wanted(&found, "PEM", &owner).expect("something to do");
        assert_eq!(patch["webhooks"], json!([{ "name": "w", "clientConfig": { "caBundle": "UEVN" } }]));
        let mut filled = found;
        filled["webhooks"][0]["clientConfig"]["caBundle"] = "UEVN".into();
        assert!(wanted(&filled, "PEM", &owner).is_some(), "its owner is missing");
        filled["metadata"]["ownerReferences"] = json!([owner]);
        assert_eq!(wanted(&filled, "PEM", &owner), None);
        assert!(wanted(&filled, "other", &owner).is_some());
        assert_eq!(bundles(&filled), ["PEM"]);
        assert_eq!(bundles(&json!({})), Vec::<String>::new());
    }
}
