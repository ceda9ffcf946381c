//! Ways beside the usual ones: a status that carries metadata, an apply that makes what goes away, CDI's former request for a clone, and
//! objects that begin with marks of the fence.

use golden_catalog::rules::marks;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    harness::{self, Cluster},
    objects::{Disk, Form, RIGHT, object},
    stand::{CATALOG, create, golden, replace, stand},
};

const WRONG: Disk = Disk { class: Some("local"), ..RIGHT };

async fn claims(cluster: &Cluster, namespace: &str) -> kube::Api<DynamicObject> {
    cluster.api(&cluster.admin(), "v1", "PersistentVolumeClaim", namespace).await
}

async fn patch_status(cluster: &Cluster, namespace: &str, name: &str, metadata: Value) -> Result<(), String> {
    let claims = claims(cluster, namespace).await;
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let ask = async || claims.patch_status(name, &PatchParams::default(), &patch).await;
    harness::made(ask).await.map(drop).map_err(|error| error.to_string())
}

/// Kubernetes lets a write to a claim's status change its metadata.
#[tokio::test]
async fn a_goldens_status_is_no_way_around_its_guard() {
    let Some((cluster, _)) = stand().await else { return };
    golden(cluster, "by-status", "replicated", "6Gi", "Block").await;
    for (metadata, part) in [
        (json!({ "labels": { marks::GOLDEN: null } }), "must keep its mark"),
        (json!({ "annotations": { marks::RETIRED: "now" } }), "golden-catalog alone"),
        (json!({ "annotations": { marks::RETIRING: "closed since now" } }), "golden-catalog alone"),
        (json!({ "labels": { "cdi.kubevirt.io/OwnedByUID": "x" } }), "must keep its mark"),
        (
            json!({ "ownerReferences": [{ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "x", "uid": "x", "controller": true }] }),
            "must keep its mark",
        ),
    ] {
        let refused = patch_status(cluster, CATALOG, "by-status", metadata.clone()).await.expect_err("nobody's to write");
        assert!(refused.contains(part) && refused.contains("R23"), "{metadata}: {refused}");
    }
    patch_status(cluster, CATALOG, "by-status", json!({ "annotations": { "x": "1" } })).await.expect("what is no mark of ours");
    let refused = claims(cluster, CATALOG).await.delete("by-status", &DeleteParams::default()).await.expect_err("a golden still");
    assert!(refused.to_string().contains("R23"), "{refused}");
}

/// The leader would believe the mark that lets a golden go, and take what stands under the name.
#[tokio::test]
async fn nothing_begins_as_a_retired_golden() {
    let Some((cluster, _)) = stand().await else { return };
    let marked = |mut object: Value, retired: bool| {
        object["metadata"]["labels"] = json!({ marks::GOLDEN: marks::GOLDEN_VALUE });
        object["metadata"]["annotations"] = if retired { json!({ marks::RETIRED: "now" }) } else { json!({}) };
        object
    };
    for form in [Form::Volume, Form::Claim] {
        let name = format!("born-{}", format!("{form:?}").to_lowercase());
        let bare = object(form, &name, RIGHT);
        let refused = create(cluster, CATALOG, &marked(bare.clone(), true), true).await.expect_err("it would go at once");
        assert!(refused.message.contains("golden-catalog alone") && refused.message.contains("R23"), "{}", refused.message);
        create(cluster, CATALOG, &marked(bare.clone(), false), true).await.unwrap_or_else(|refused| panic!("{}", refused.message));
        let made = create(cluster, CATALOG, &bare, false).await.unwrap_or_else(|refused| panic!("{}", refused.message)).object;
        let refused = replace(cluster, CATALOG, &marked(made.clone(), true)).await.expect_err("both at once");
        assert!(refused.message.contains("golden-catalog alone"), "{}", refused.message);
        let kind = (made["apiVersion"].as_str().expect("text"), made["kind"].as_str().expect("text"));
        let api = cluster.api(&cluster.admin(), kind.0, kind.1, CATALOG).await;
        api.delete(&name, &DeleteParams::default()).await.expect("no golden");
    }
}

/// The API server takes `deletionTimestamp` off what is posted, and not off what an apply makes.
#[tokio::test]
async fn what_is_made_going_away_is_judged() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    for form in [Form::Volume, Form::Claim, Form::Machine, Form::Template] {
        let mut asked = object(form, "going", WRONG);
        asked["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z".into();
        asked["metadata"]["finalizers"] = json!(["example.org/x"]);
        let (api_version, kind) = (asked["apiVersion"].as_str().expect("text"), asked["kind"].as_str().expect("text"));
        let api = cluster.api(&cluster.admin(), api_version, kind, &tenant).await;
        let apply = async || api.patch("going", &PatchParams::apply("tenant"), &Patch::Apply(&asked)).await;
        let refused = harness::made(apply).await.expect_err("another class than the golden's").to_string();
        assert!(refused.contains("R14"), "{form:?}: {refused}");
    }
}

/// CDI copies a golden onto any claim that asks by its former annotation, whoever wrote it; its own, written for a DataVolume, was judged
/// with that.
#[tokio::test]
async fn the_former_request_for_a_clone_is_judged_too() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    let request = format!("{CATALOG}/golden");
    let plain = |name: &str, disk: Disk| {
        let mut claim = object(Form::Claim, name, disk);
        claim["spec"].as_object_mut().expect("a spec").remove("dataSourceRef");
        claim
    };
    let asking = |name: &str, disk: Disk| {
        let mut claim = plain(name, disk);
        claim["metadata"]["annotations"][marks::CDI_CLONE_REQUEST] = request.clone().into();
        claim
    };
    let refused = create(cluster, &tenant, &asking("wrong", WRONG), true).await.expect_err("another class").message;
    assert!(refused.contains("R14"), "{refused}");
    let made = create(cluster, &tenant, &asking("right", RIGHT), true).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    assert_eq!(made.object["metadata"]["annotations"][marks::GOLDEN], "golden", "it gets its marks");

    // On a claim that is there, by any write.
    let claim = create(cluster, &tenant, &plain("plain", WRONG), false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    let mut asked = claim.object.clone();
    asked["metadata"]["annotations"] = json!({ marks::CDI_CLONE_REQUEST: request });
    let refused = replace(cluster, &tenant, &asked).await.expect_err("another class").message;
    assert!(refused.contains("R14"), "{refused}");
    let refused = patch_status(cluster, &tenant, "plain", json!({ "annotations": { marks::CDI_CLONE_REQUEST: request } })).await;
    assert!(refused.as_ref().is_err_and(|refused| refused.contains("R14")), "{refused:?}");
    // What CDI has filled is heeded no more: a backup brings such claims back.
    asked["metadata"]["annotations"][marks::CDI_CLONE_OF] = "true".into();
    replace(cluster, &tenant, &asked).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    let refused = patch_status(cluster, &tenant, "plain", json!({ "annotations": { marks::CDI_CLONE_OF: null } })).await;
    assert!(refused.as_ref().is_err_and(|refused| refused.contains("R14")), "heeded again: {refused:?}");

    // CDI's own, for a DataVolume that asks for the same: as it makes it. Another owner's UID says nothing.
    let volume = create(cluster, &tenant, &object(Form::Volume, "of-cdi", RIGHT), false).await;
    let volume = volume.unwrap_or_else(|refused| panic!("{}", refused.message)).object;
    let owned = |uid: &Value, disk: Disk| {
        let mut claim = asking("of-cdi", disk);
        claim["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "of-cdi", "uid": uid, "controller": true }]);
        claim
    };
    let small = Disk { size: "1Gi", ..RIGHT };
    let refused = create(cluster, &tenant, &owned(&"11111111-2222-3333-4444-555555555555".into(), small), true).await;
    let refused = refused.expect_err("not its").message;
    assert!(refused.contains("R16"), "{refused}");
    let refused = create(cluster, &tenant, &owned(&volume["metadata"]["uid"], WRONG), true).await.expect_err("not as CDI makes it").message;
    assert!(refused.contains("R14"), "{refused}");
    let asked = owned(&volume["metadata"]["uid"], small);
    create(cluster, &tenant, &asked, true).await.unwrap_or_else(|refused| panic!("{}", refused.message));

    // One that was let in unjudged excuses nothing, whatever token is written on it.
    let mut there = object(Form::Volume, "there", WRONG);
    there["metadata"]["annotations"] = json!({ marks::CDI_PREPOPULATED: "there" });
    let mut there = create(cluster, &tenant, &there, false).await.unwrap_or_else(|refused| panic!("{}", refused.message)).object;
    there["metadata"]["annotations"][marks::CDI_CLONE_TOKEN] = "t".into();
    let there = replace(cluster, &tenant, &there).await.unwrap_or_else(|refused| panic!("{}", refused.message)).object;
    let mut claim = asking("there", WRONG);
    claim["metadata"]["ownerReferences"] = json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "there", "uid": there["metadata"]["uid"], "controller": true }]);
    let refused = create(cluster, &tenant, &claim, true).await.expect_err("nobody judged it").message;
    assert!(refused.contains("R14"), "{refused}");
}

/// The API server says what is wrong with the form of an object; before that nobody can say more.
#[tokio::test]
async fn what_no_schema_allows_is_told_by_the_api_server() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    let mut odd = object(Form::Volume, "odd", RIGHT);
    odd["spec"]["storage"]["storageClassName"] = 5.into();
    let refused = create(cluster, &tenant, &odd, true).await.expect_err("no string");
    assert!(refused.code == 422 && refused.message.contains("spec.storage.storageClassName"), "{}: {}", refused.code, refused.message);
}
