//! Disks of stopped VMs wait for their first consumer for months: however many there are, they keep no stuck clone from being told.

use futures::StreamExt as _;
use kube::{
    ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{CDI, GOLDEN, Scene, TENANT, claim, disk, from_golden, harness, stage::CATALOG};

/// More than one round looks at.
const DISKS: usize = 205;
const AT_ONCE: usize = 16;

pub async fn disks_that_wait_hide_no_stuck_clone(scene: &Scene<'_>) {
    // So many claims need no volumes here: CDI stands still, and its word on each disk is written for it.
    scene.stage.cdi.pause();
    let volumes = scene.api(CDI, "DataVolume", TENANT).await;
    futures::stream::iter(0..DISKS)
        .for_each_concurrent(AT_ONCE, |number| {
            let volumes = volumes.clone();
            async move {
                let name = format!("stopped-{number:03}");
                let mut object = disk(&name, from_golden(GOLDEN), json!({ "e2e": "stopped" }));
                object["spec"]["storage"]["storageClassName"] = "wffc".into();
                let object: DynamicObject = serde_json::from_value(object).expect("an object");
                volumes.create(&PostParams::default(), &object).await.unwrap_or_else(|error| panic!("{name}: {error}"));
                let phase = if number % 2 == 0 { "PendingPopulation" } else { "WaitForFirstConsumer" };
                let status = Patch::Merge(json!({ "status": { "phase": phase } }));
                volumes.patch_status(&name, &PatchParams::default(), &status).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        })
        .await;
    // A claim that nobody made a DataVolume for waits for its pod alike.
    let mut alone = claim(TENANT, "waits-alone", json!({}), json!({ "k8s.io/CloneRequest": format!("{CATALOG}/{GOLDEN}") }));
    alone["spec"]["storageClassName"] = "wffc".into();
    scene.apply(alone).await;

    scene.apply(disk("newest-of-all", from_golden("another-ghost"), json!({}))).await;
    scene.event("newest-of-all", "CloneStuck", &["GoldenMissing"]).await;
    scene.was_never_stuck("waits-alone", "while it waits as it should").await;

    volumes.delete_collection(&DeleteParams::default(), &ListParams::default().labels("e2e=stopped")).await.expect("deleted");
    volumes.delete("newest-of-all", &DeleteParams::default()).await.expect("deleted");
    scene.api("v1", "PersistentVolumeClaim", TENANT).await.delete("waits-alone", &DeleteParams::default()).await.expect("deleted");
    harness::eventually("the stopped disks are gone", async || {
        let left = volumes.list_metadata(&ListParams::default().labels("e2e=stopped")).await.map_err(|error| error.to_string())?;
        left.items.first().map_or(Ok(()), |left| Err(left.name_any()))
    })
    .await;
    scene.stage.cdi.resume();
}

/// An image that is not imported yet has no golden on record: who clones what it will make waits, is told so, and counts as who needs it.
/// Once the image is suspended nobody works on it, and when it is to go nobody ever will: each is told.
pub async fn a_clone_waits_for_an_image_that_has_not_begun(scene: &Scene<'_>) {
    const IMAGE: &str = "later";
    const FURTHER: &str = "vm-default-images-later-wffc";
    let images = scene.stage.images();
    let later = json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": IMAGE },
        "spec": {
            "source": { "http": { "url": "http://upstream.invalid/later.qcow2" } },
            "storage": { "targets": [{ "storageClassName": "replicated" }, { "storageClassName": "wffc" }] },
        },
    });
    images.create(&PostParams::default(), &serde_json::from_value(later).expect("an image")).await.expect("created");
    scene.stage.until_reason(IMAGE, "Unavailable").await;
    scene.apply(disk("early", from_golden("vm-default-images-later"), json!({}))).await;
    let mut of_further = disk("early-too", from_golden(FURTHER), json!({}));
    of_further["spec"]["storage"]["storageClassName"] = "wffc".into();
    scene.apply(of_further).await;
    for (name, golden) in [("early", "vm-default-images-later"), ("early-too", FURTHER)] {
        scene.event(name, "WaitingForGolden", &[&format!("{golden} is not Ready yet (Unavailable)"), "goldenimage later"]).await;
    }
    // One that came after them is stuck by now.
    scene.apply(disk("after-it", from_golden("another-ghost"), json!({}))).await;
    scene.event("after-it", "CloneStuck", &["GoldenMissing"]).await;
    for name in ["early", "early-too"] {
        scene.was_never_stuck(name, "while its image is still to begin").await;
    }

    let told = scene.agreed_on(IMAGE).await;
    assert_eq!((&told["free"], told["goldens"].clone()), (&json!(false), json!(["vm-default-images-later", FURTHER])), "{told}");
    let lines = scene.lines(IMAGE).await;
    assert_eq!(lines, ["early", "early-too"].map(|name| format!("Disk {TENANT}/{name} of unknown (by spec): blocks")));
    assert_eq!(scene.status_of(IMAGE).await.clones, 2);
    assert_eq!(scene.cli(&["check-delete", IMAGE]).await.code, Some(1));

    let edit = async |spec: serde_json::Value| {
        images.patch(IMAGE, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await.expect("edited");
    };
    edit(json!({ "suspend": true })).await;
    let words = ["nobody works on it", "GoldenImage \"later\" is suspended", "`spec.suspend: false`"];
    scene.event("early", "WaitingForGolden", &words).await;
    scene.event("early", "CloneStuck", &["GoldenSuspended", "`spec.suspend: false`"]).await;
    let explained = scene.cli(&["explain", &format!("{TENANT}/datavolume/early")]).await;
    assert!(words.iter().all(|word| explained.stdout.contains(word)), "{explained:?}");
    edit(json!({ "retire": true })).await;
    scene.event("early", "CloneStuck", &["GoldenFailed"]).await;
    let volumes = scene.api(CDI, "DataVolume", TENANT).await;
    for name in ["early", "early-too", "after-it"] {
        volumes.delete(name, &DeleteParams::default()).await.expect("deleted");
    }
    images.delete(IMAGE, &DeleteParams::default()).await.expect("deleted");
}
