//! R7 and R8: what can happen to a golden's objects behind the catalog's back.

use golden_catalog::api::GoldenImage;
use kube::api::{DeleteParams, DynamicObject, PropagationPolicy};
use serde_json::json;

use super::{harness, scene::Scene, stage::CATALOG};

/// CDI before v1.62 deleted a finished DataVolume: its claim is the golden.
pub async fn a_collected_datavolume_is_no_loss(scene: &Scene<'_>) {
    let golden = "vm-default-images-collected";
    scene.disk("collected", 50);
    scene.image("collected", json!([{}])).await;
    scene.stage.until("collected", "Ready", "True").await;
    // Our own DataVolumes forbid it (`storage.deleteAfterCompletion`), so by hand: the DataVolume goes and its claim stays.
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    scene.volumes().await.delete(golden, &orphan).await.expect("deleted");
    harness::until_gone(scene.volumes().await, golden).await;
    let claim = scene.claims().await.get(golden).await.expect("the claim stays");
    // A look that comes after it is gone says the same.
    scene.retarget("collected", json!([{}, { "storageClassName": "local" }])).await.expect("added");
    harness::until(scene.stage.images(), "collected", "both goldens are made", |image: &GoldenImage| {
        let status = image.status.clone().unwrap_or_default();
        status.targets.len() == 2 && status.targets.iter().all(|target| target.claim_uid.is_some() && target.started_time.is_none())
    })
    .await;
    scene.stage.until("collected", "Ready", "True").await;
    assert_eq!(scene.target("collected", 0).await.claim_uid, claim.metadata.uid);
}

/// The volume behind the claim is gone: told, and nothing is imported in its place.
pub async fn a_lost_claim_is_told(scene: &Scene<'_>) {
    scene.disk("lost", 51);
    scene.image("lost", json!([{}])).await;
    scene.stage.until("lost", "Ready", "True").await;
    let before = scene.target("lost", 0).await.claim_uid;
    scene.stage.cdi.lose_claim(CATALOG, "vm-default-images-lost").await;
    let ready = scene.until_reason("lost", "ClaimLost").await;
    assert!(ready.message.contains("delete the DataVolume to import anew"), "{}", ready.message);
    assert_eq!(scene.target("lost", 0).await.claim_uid, before);
    // As the remedy says.
    scene.volumes().await.delete("vm-default-images-lost", &DeleteParams::default()).await.expect("deleted");
    harness::until(scene.stage.images(), "lost", "another claim is on record", |image: &GoldenImage| {
        let target = image.status.as_ref().and_then(|status| status.targets.first().cloned()).unwrap_or_default();
        target.claim_uid.is_some() && target.claim_uid != before
    })
    .await;
    scene.stage.until("lost", "Ready", "True").await;
    assert_eq!(scene.fetches("lost"), 1, "made anew from the spool");
}

/// A claim with our marks, without its DataVolume and on nobody's record (a restore from a backup): what is in it is not known.
pub async fn a_claim_that_nobody_recorded_is_not_believed(scene: &Scene<'_>) {
    let golden = "vm-default-images-restored";
    scene.disk("restored", 52);
    scene.image("restored", json!([{}])).await;
    scene.stage.until("restored", "Ready", "True").await;
    scene.delete_image("restored").await;
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    scene.volumes().await.delete(golden, &orphan).await.expect("deleted");
    harness::until_gone(scene.volumes().await, golden).await;
    harness::until(scene.claims().await, golden, "nobody owns it", |claim: &DynamicObject| {
        claim.metadata.owner_references.as_ref().is_none_or(Vec::is_empty)
    })
    .await;
    scene.image("restored", json!([{}])).await;
    let ready = scene.until_reason("restored", "GoldenReplaced").await;
    assert!(ready.message.contains("was never recorded"), "{}", ready.message);
    scene.claims().await.delete(golden, &DeleteParams::default()).await.expect("deleted");
    scene.stage.until("restored", "Ready", "True").await;
}
