//! The CRD's way from release to release.

use golden_catalog::api::{CRD_VERSION, GoldenImage, missing_fields};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{harness, scene::Scene};

const NAME: &str = "goldenimages.cozystack.io";

fn api(scene: &Scene<'_>) -> Api<CustomResourceDefinition> {
    Api::all(scene.stage.cluster.admin())
}

async fn version(scene: &Scene<'_>) -> Option<String> {
    api(scene).get(NAME).await.expect("CRD").annotations().get(CRD_VERSION).cloned()
}

/// Whether the CRD in the cluster knows a field, by a JSON pointer below the schema's properties.
async fn knows(scene: &Scene<'_>, pointer: &str) -> bool {
    let crd = serde_json::to_value(api(scene).get(NAME).await.expect("CRD")).expect("JSON");
    crd.pointer(&format!("/spec/versions/0/schema/openAPIV3Schema/properties{pointer}")).is_some()
}

/// What the CRD in the cluster lacks of this release's own.
async fn lacks(scene: &Scene<'_>) -> Vec<String> {
    let live = serde_json::to_value(api(scene).get(NAME).await.expect("CRD")).expect("JSON");
    missing_fields(&live, &golden_catalog::api::crd())
}

/// Each release's CRD is kept in `e2e/crds`: the upgrade is tested from each.
pub async fn an_older_crd_is_reported_and_brought_forward(scene: &Scene<'_>) {
    let fixtures = harness::repository().join("e2e/crds");
    let mut files: Vec<_> = std::fs::read_dir(&fixtures).expect("e2e/crds").map(|file| file.expect("file").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(files.len() > 3, "{files:?}");
    for (number, file) in files.iter().enumerate() {
        let shown = file.display().to_string();
        let was: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).expect("fixture")).expect("YAML");
        let live = api(scene).get(NAME).await.expect("CRD");
        let mut body: CustomResourceDefinition = serde_json::from_value(was).expect("CRD");
        body.metadata.resource_version = live.metadata.resource_version;
        api(scene).replace(NAME, &PostParams::default(), &body).await.expect("the older CRD");
        // Somebody else's, by any tool: not the release's to take away.
        let marks = json!({ "metadata": { "labels": { "team": "storage" }, "annotations": { "example.org/owner": shown } } });
        let theirs = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        api(scene).patch(NAME, &theirs, &Patch::Merge(&marks)).await.expect("marked");
        let missing = lacks(scene).await;
        println!("{shown}: {} fields are missing", missing.len());
        assert!(!missing.is_empty(), "{shown} is no older CRD");
        let object: GoldenImage = serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "stored" },
            "spec": { "source": { "http": { "url": "https://e.example/a" } }, "suspend": true, "description": "stored before" },
        }))
        .expect("object");
        scene.stage.images().create(&PostParams::default(), &object).await.expect("stored");
        if number == 0 {
            turned_off_it_is_told(scene, &missing).await;
        }

        // By default the leader brings it forward, and what was stored is there as it was.
        let daemon = scene.stage.daemon("on");
        daemon.ready().await;
        assert_eq!(version(scene).await.as_deref(), Some(env!("CARGO_PKG_VERSION")), "{shown}");
        assert_eq!(lacks(scene).await, Vec::<String>::new(), "{shown}");
        let now = api(scene).get(NAME).await.expect("CRD");
        let left = (now.labels().get("team").map(String::as_str), now.annotations().get("example.org/owner").map(String::as_str));
        assert_eq!(left, (Some("storage"), Some(shown.as_str())), "the upgrade took away what is not its own");
        scene.stage.until_reason("stored", "Suspended").await;
        let stored = scene.stage.images().get("stored").await.expect("stored");
        assert_eq!(stored.spec, object.spec, "{shown}");
        end(daemon).await;
        scene.stage.images().delete("stored", &DeleteParams::default()).await.expect("deleted");
        harness::until_gone(scene.stage.images(), "stored").await;
    }
}

/// Turned off: every missing field is told by name, the daemon is not ready, and the CRD stays as it is.
async fn turned_off_it_is_told(scene: &Scene<'_>, missing: &[String]) {
    let daemon = scene.stage.daemon_with("off", &json!({ "crdUpgrade": false }));
    harness::eventually("the missing fields are told", async || {
        let log = daemon.log();
        let told = log.lines().find(|line| line.contains("lacks") && missing.iter().all(|field| line.contains(field)));
        told.map(drop).ok_or_else(|| log.lines().last().unwrap_or_default().to_owned())
    })
    .await;
    assert_ne!(daemon.probe("readyz").await.expect("answered"), 200);
    assert_eq!(lacks(scene).await, missing, "it was turned off");
    end(daemon).await;
}

/// Ends a daemon so that its Lease is free at once.
async fn end(daemon: harness::Daemon) {
    daemon.terminate(std::time::Duration::from_secs(60)).await.expect("it ends when asked to");
}

pub async fn a_newer_crd_is_never_taken_back(scene: &Scene<'_>) {
    let patch = json!([
        { "op": "add", "path": format!("/metadata/annotations/{}", CRD_VERSION.replace('/', "~1")), "value": "99.0.0" },
        { "op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/later", "value": { "type": "string" } },
    ]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).expect("patch"));
    api(scene).patch(NAME, &PatchParams::default(), &patch).await.expect("a newer CRD");
    let daemon = scene.stage.daemon("older");
    daemon.ready().await;
    harness::eventually("it says that the CRD stays", async || {
        let log = daemon.log();
        if log.contains("newer than this release") { Ok(()) } else { Err(log.lines().last().unwrap_or_default().to_owned()) }
    })
    .await;
    assert!(knows(scene, "/spec/properties/later").await);
    assert_eq!(version(scene).await.as_deref(), Some("99.0.0"));
    end(daemon).await;
    // The next chapters have the release's own again.
    reinstall(scene).await;
}

/// Puts the release's own CRD in place of whatever is there.
pub async fn reinstall(scene: &Scene<'_>) {
    let mut body: CustomResourceDefinition = serde_json::from_value(golden_catalog::api::crd()).expect("CRD");
    match api(scene).get_opt(NAME).await.expect("asked") {
        Some(live) => {
            body.metadata.resource_version = live.metadata.resource_version;
            api(scene).replace(NAME, &PostParams::default(), &body).await.expect("replaced");
        }
        None => {
            api(scene).create(&PostParams::default(), &body).await.expect("created");
        }
    }
    harness::until_condition(api(scene), NAME, "Established", "True").await;
}

/// Deletes the CRD, and every GoldenImage with it.
pub async fn delete(scene: &Scene<'_>) {
    api(scene).delete(NAME, &DeleteParams::default()).await.expect("deleted");
    harness::until_gone(api(scene), NAME).await;
}
