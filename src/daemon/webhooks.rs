//! What the leader fills into the webhook configurations that the chart renders: whom to trust, and who takes them along when it goes. That
//! they are there at all is looked at too: without them nobody is asked, nothing fails, and nothing is guarded.

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
    admission::server,
    golden::manifest::managers,
    run::{
        api_error,
        certs::{Overlap, Resolver},
        client::is_lost,
        metrics::Metrics,
    },
};

/// The configurations' name, of both kinds.
pub fn name(namespace: &str) -> String {
    format!("golden-catalog-admission-{namespace}")
}

/// How often the configurations are looked at: a hand, or another version of the chart, may have changed them.
const INTERVAL: Duration = Duration::from_secs(30);

/// The same while some are missing: made again, they refuse everything until they are filled in.
const INTERVAL_MISSING: Duration = Duration::from_secs(3);

/// Keeps both configurations filled until `stop`; what is right already is not written. Run only where admission is on: then the chart renders
/// both, so that one that is not there was taken away, which is told.
pub(super) async fn keep(client: Client, namespace: &str, resolver: Arc<Resolver>, metrics: &Metrics, stop: CancellationToken) {
    let (mut failed, mut unguarded) = (None, None);
    let mut overlaps = <(Overlap, Overlap)>::default();
    loop {
        let bundle = resolver.bundle();
        let outcome = match &bundle {
            Some(bundle) => fill(&client, namespace, bundle, &mut overlaps).await.map(Some),
            None => Ok(None),
        };
        match outcome {
            Err(error) if is_lost(&error) => return,
            Err(error) => {
                let text = api_error(&error);
                if failed.as_ref() != Some(&text) {
                    tracing::warn!(error = text, "the webhook configurations cannot be filled in; tried again");
                }
                failed = Some(text);
            }
            Ok(None) => failed = None,
            Ok(Some(found)) => {
                failed = None;
                let missing = missing(&found);
                metrics.webhooks_missing(missing.len());
                let text = told(&missing, &name(namespace));
                match (&text, &unguarded) {
                    (Some(now), before) if before.as_ref() != Some(now) => tracing::error!("{now}"),
                    (None, Some(_)) => tracing::info!("the webhooks are all there again"),
                    _ => {}
                }
                unguarded = text;
            }
        }
        // While the certificate is not there yet, or something failed, soon again.
        let pause = match (&bundle, &failed, &unguarded) {
            (None, _, _) | (_, Some(_), _) => Duration::from_secs(1),
            (_, _, Some(_)) => INTERVAL_MISSING,
            _ => INTERVAL,
        };
        tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(pause) => {}, () = resolver.changed() => {} }
    }
}

/// Fills in both, and gives the names of the webhooks that they hold.
async fn fill(client: &Client, namespace: &str, bundle: &str, overlaps: &mut (Overlap, Overlap)) -> Result<Vec<String>, kube::Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let uid = namespaces.get(namespace).await?.metadata.uid;
    let owner = json!({ "apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": uid });
    let mut found = fill_one::<MutatingWebhookConfiguration>(client, namespace, bundle, &owner, &mut overlaps.0).await?;
    found.extend(fill_one::<ValidatingWebhookConfiguration>(client, namespace, bundle, &owner, &mut overlaps.1).await?);
    Ok(found)
}

async fn fill_one<K>(
    client: &Client,
    namespace: &str,
    bundle: &str,
    owner: &Value,
    overlap: &mut Overlap,
) -> Result<Vec<String>, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
    K: Resource<Scope = kube::core::ClusterResourceScope>,
{
    let (api, name) = (Api::<K>::all(client.clone()), name(namespace));
    let Some(found) = api.get_opt(&name).await? else { return Ok(Vec::new()) };
    let found = serde_json::to_value(&found).map_err(kube::Error::SerdeError)?;
    // Replicas may serve by the former CA a while longer.
    let bundle = overlap.bundle(bundle, &bundles(&found), Instant::now(), Timestamp::now());
    let Some(patch) = wanted(&found, &bundle, owner) else { return Ok(names(&found)) };
    let params = PatchParams::apply(managers::WEBHOOKS).force();
    api.patch(&name, &params, &Patch::Apply(&patch)).await?;
    tracing::info!(name, kind = %K::kind(&()), "filled in the webhooks' CA and owner");
    Ok(names(&found))
}

/// The webhooks that a configuration holds.
fn names(found: &Value) -> Vec<String> {
    let webhooks = found.get("webhooks").and_then(Value::as_array).into_iter().flatten();
    webhooks.filter_map(|webhook| webhook.get("name").and_then(Value::as_str).map(str::to_owned)).collect()
}

/// Our webhooks, by their short names, of which no configuration tells the API server.
fn missing(found: &[String]) -> Vec<&'static str> {
    let is_there = |short: &str| found.iter().any(|name| name.strip_suffix(".golden-catalog.cozystack.io") == Some(short));
    server::names().into_iter().filter(|short| !is_there(short)).collect()
}

/// What a person is told of webhooks that are missing.
fn told(missing: &[&str], name: &str) -> Option<String> {
    (!missing.is_empty()).then(|| {
        format!(
            "the catalog stands unguarded: the API server is not told of the webhooks {}, and refuses nothing that they would; `helm upgrade` \
             with the same values makes the configurations {name} again",
            missing.join(", ")
        )
    })
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

    #[test]
    fn what_the_api_server_is_not_told_of_is_told() {
        let of = |shorts: &[&str]| -> Vec<String> { shorts.iter().map(|short| format!("{short}.golden-catalog.cozystack.io")).collect() };
        let all = ["disks", "clones", "goldens", "namespaces", "images", "credentials"];
        let others = vec!["clones.example.org".to_owned(), "clones".to_owned()];
        for (found, expected) in [
            (of(&all), vec![]),
            (of(&all[1..]), vec!["disks"]),
            (of(&all[..1]), all[1..].to_vec()),
            ([of(&["disks", "goldens", "namespaces", "images", "credentials"]), others].concat(), vec!["clones"]),
            (Vec::new(), all.to_vec()),
        ] {
            let missing = missing(&found);
            assert_eq!(missing, expected, "{found:?}");
            let told = told(&missing, "CONFIGURATIONS");
            assert_eq!(told.is_some(), !expected.is_empty(), "{found:?}");
            let told = told.unwrap_or_default();
            assert!(expected.is_empty() || told.contains(&expected.join(", ")) && told.contains("configurations CONFIGURATIONS"), "{told}");
        }
        let configuration = json!({ "webhooks": [{ "name": "a" }, {}, { "name": "b" }] });
        assert_eq!(names(&configuration), ["a", "b"]);
        assert_eq!(names(&json!({})), Vec::<String>::new());
    }
}
