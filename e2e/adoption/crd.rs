//! The CRD's way from release to release.

use golden_catalog::api::{CRD_VERSION, GoldenImage, missing_fields};
use k8s_openapi::{
    api::coordination::v1::Lease,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    harness,
    scene::Scene,
    stage::{CATALOG, NAMESPACE},
};

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
        put(scene, older(file)).await;
        // Somebody else's, by any tool: not the release's to take away.
        let marks = json!({ "metadata": { "labels": { "team": "storage" }, "annotations": { "example.org/owner": shown } } });
        let theirs = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        api(scene).patch(NAME, &theirs, &Patch::Merge(&marks)).await.expect("marked");
        let missing = lacks(scene).await;
        println!("{shown}: {} fields are missing", missing.len());
        assert!(!missing.is_empty(), "{shown} is no older CRD");
        let object = suspended("stored");
        create(scene, "stored").await;
        if number == 0 {
            turned_off_it_is_told(scene, &missing).await;
        }

        // By default the leader brings it forward, and what was stored is there as it was.
        let daemon = scene.stage.daemon("on");
        daemon.ready().await;
        harness::eventually(&format!("{shown} is brought forward"), async || {
            let (version, lacks) = (version(scene).await, lacks(scene).await);
            let is_ours = version.as_deref() == Some(env!("CARGO_PKG_VERSION")) && lacks.is_empty();
            is_ours.then_some(()).ok_or_else(|| format!("{version:?} lacks {lacks:?}"))
        })
        .await;
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

/// The CRD in a file of `e2e/crds`.
fn older(file: &std::path::Path) -> CustomResourceDefinition {
    let was: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).expect("fixture")).expect("YAML");
    serde_json::from_value(was).expect("CRD")
}

/// Puts a CRD in the place of the one that is there, whoever writes on that meanwhile.
async fn put(scene: &Scene<'_>, body: CustomResourceDefinition) {
    harness::eventually("another CRD", async || {
        let live = api(scene).get(NAME).await.map_err(|error| error.to_string())?;
        let body = CustomResourceDefinition {
            metadata: ObjectMeta { resource_version: live.metadata.resource_version, ..body.metadata.clone() },
            ..body.clone()
        };
        api(scene).replace(NAME, &PostParams::default(), &body).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

/// An image about which nothing is done but that this is said.
fn suspended(name: &str) -> GoldenImage {
    serde_json::from_value(json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name },
        "spec": { "source": { "http": { "url": format!("https://e.example/{name}") } }, "suspend": true, "description": "stored before" },
    }))
    .expect("object")
}

/// Creates it; the API server refuses for a moment when the CRD has just changed.
async fn create(scene: &Scene<'_>, name: &str) {
    harness::eventually("the image is created", async || {
        match scene.stage.images().create(&PostParams::default(), &suspended(name)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => other.map(drop).map_err(|error| error.to_string()),
        }
    })
    .await;
}

/// When the Lease was renewed last.
async fn renewed(scene: &Scene<'_>) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(scene.stage.cluster.admin(), CATALOG);
    let lease = leases.get("golden-catalog").await.expect("Lease");
    lease.spec.and_then(|spec| spec.renew_time).map(|time| time.0.to_string())
}

/// Somebody puts an older CRD in the place of ours while a leader is at work. Turned off: it says which fields are missing, is not
/// ready, and writes nothing until they are there again. By default it brings the CRD forward once more.
pub async fn a_crd_that_loses_fields_during_a_term_stops_the_leader(scene: &Scene<'_>) {
    let was = older(&harness::repository().join("e2e/crds/0.1.0-alpha.1.yaml"));
    let daemon = scene.stage.daemon_with("loses", &json!({ "crdUpgrade": false }));
    daemon.ready().await;
    create(scene, "before-loss").await;
    scene.stage.until_reason("before-loss", "Suspended").await;
    put(scene, was.clone()).await;
    let missing = lacks(scene).await;
    harness::eventually("it is not ready, and names what is missing", async || match daemon.probe_text("readyz").await? {
        (503, text) if text.contains("CRD: ") && missing.iter().all(|field| text.contains(field)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    harness::eventually("it has stopped", async || {
        let log = daemon.log();
        if log.contains("nothing is written until it has them") { Ok(()) } else { Err(log.lines().last().unwrap_or_default().to_owned()) }
    })
    .await;
    let mark = scene.stage.cluster.audit_mark().await;
    create(scene, "during-loss").await;
    // It lives, and had its chance to write: it renews the Lease twice.
    for _ in 0..2 {
        let before = renewed(scene).await;
        harness::eventually(
            "the Lease is renewed",
            async || {
                if renewed(scene).await == before { Err(format!("{before:?}")) } else { Ok(()) }
            },
        )
        .await;
    }
    let mut writes = scene.stage.cluster.requests_since(mark).await;
    writes.retain(|request| {
        request.is_write()
            && request.is_by(NAMESPACE, "golden-catalog-controller")
            && !matches!(request.resource.as_str(), "leases" | "events")
    });
    assert!(writes.is_empty(), "written with a CRD that lacks fields: {writes:#?}");
    assert_eq!(lacks(scene).await, missing, "it was turned off");

    reinstall(scene).await;
    scene.stage.until_reason("during-loss", "Suspended").await;
    daemon.ready().await;
    assert!(daemon.ended().is_none(), "the same process all along");
    end(daemon).await;

    let daemon = scene.stage.daemon("regains");
    daemon.ready().await;
    put(scene, was).await;
    harness::eventually("the CRD is brought forward again", async || match lacks(scene).await {
        missing if missing.is_empty() => Ok(()),
        missing => Err(format!("{missing:?}")),
    })
    .await;
    assert_eq!(version(scene).await.as_deref(), Some(env!("CARGO_PKG_VERSION")));
    create(scene, "after-loss").await;
    scene.stage.until_reason("after-loss", "Suspended").await;
    assert!(daemon.ended().is_none(), "the same process all along");
    end(daemon).await;
    for name in ["before-loss", "during-loss", "after-loss"] {
        scene.stage.images().delete(name, &DeleteParams::default()).await.expect("deleted");
        harness::until_gone(scene.stage.images(), name).await;
    }
}

/// A follower reads an image while the CRD lacks a field that it has, and leads when somebody else has put the field back: what it read
/// is no image to act on, and nothing that happens would send it again.
pub async fn a_follower_reads_anew_what_it_read_under_an_older_crd(scene: &Scene<'_>) {
    let leases: Api<Lease> = Api::namespaced(scene.stage.cluster.admin(), CATALOG);
    let hold = |holder: &str, seconds: u32| {
        let now = MicroTime(k8s_openapi::jiff::Timestamp::now());
        let spec = json!({ "holderIdentity": holder, "leaseDurationSeconds": seconds, "acquireTime": now, "renewTime": now });
        Patch::Merge(json!({ "metadata": { "name": "golden-catalog" }, "spec": spec }))
    };
    // Somebody else leads, by a Lease that is there since the chapters before.
    leases.patch("golden-catalog", &PatchParams::default(), &hold("somebody-else_1", 3600)).await.expect("held");
    create(scene, "followed").await;
    let mut without = golden_catalog::api::crd();
    let fields = without.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties").expect("fields");
    fields.as_object_mut().expect("a map").remove("suspend").expect("a field");
    put(scene, serde_json::from_value(without).expect("CRD")).await;
    harness::eventually("the API server leaves the field out", async || {
        let shown = scene.stage.images().get("followed").await.map_err(|error| error.to_string())?;
        if shown.spec.suspend.is_none() { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    let daemon = scene.stage.daemon_with("follows", &json!({ "crdUpgrade": false }));
    harness::eventually("it has read the images, and the CRD", async || match daemon.probe_text("readyz").await? {
        (503, text) if text.contains("CRD: ") && !text.contains("caches") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    reinstall(scene).await;
    daemon.ready().await;
    leases.patch("golden-catalog", &PatchParams::default(), &hold("", 1)).await.expect("given up");
    let image = scene.stage.until_reason("followed", "Suspended").await;
    assert!(image.status.is_some_and(|status| status.fetch.is_none()), "it was fetched, though it says that it is not to be");
    end(daemon).await;
    scene.stage.images().delete("followed", &DeleteParams::default()).await.expect("deleted");
    harness::until_gone(scene.stage.images(), "followed").await;
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
    let ready = harness::eventually("its health is told", async || daemon.probe("readyz").await).await;
    assert_ne!(ready, 200);
    assert_eq!(lacks(scene).await, missing, "it was turned off");
    end(daemon).await;
}

/// Ends a daemon so that its Lease is free at once.
async fn end(daemon: harness::Daemon) {
    daemon.terminate(harness::PATIENCE).await.expect("it ends when asked to");
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
    let body: CustomResourceDefinition = serde_json::from_value(golden_catalog::api::crd()).expect("CRD");
    match api(scene).get_opt(NAME).await.expect("asked") {
        Some(_) => put(scene, body).await,
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
