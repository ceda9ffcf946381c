//! R23 for one target: taken out of the spec, its golden goes when nothing needs it, and its siblings are left as they are.

use golden_catalog::{api::GoldenImage, rules::marks};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{
    harness::{self, Daemon},
    proxy::ApiProxy,
    scene::Scene,
    stage::Launch,
};

const FIRST: &str = "vm-default-images-leaves";
const LOCAL: &str = "vm-default-images-leaves-local";
const OTHER: &str = "vm-default-images-leaves-other";

fn ready(image: &GoldenImage) -> bool {
    harness::condition(image, "Ready").is_some_and(|ready| ready.status == "True")
}

fn retiring(image: &GoldenImage) -> String {
    harness::condition(image, "Retiring").map(|condition| condition.message).unwrap_or_default()
}

fn machine(golden: &str) -> DynamicObject {
    let storage = json!({ "storageClassName": "local", "resources": { "requests": { "storage": "1Gi" } } });
    let source = json!({ "pvc": { "namespace": "cozy-public", "name": golden } });
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "vm" },
        "spec": {
            "runStrategy": "Halted",
            "dataVolumeTemplates": [{ "metadata": { "name": "vm-disk" }, "spec": { "source": source, "storage": storage } }],
            "template": { "metadata": {}, "spec": { "domain": { "devices": {} }, "volumes": [{ "name": "disk", "dataVolume": { "name": "vm-disk" } }] } },
        },
    });
    serde_json::from_value(object).expect("a VirtualMachine")
}

/// One that nobody needs goes; one that a VM needs waits for it, by name; put back it is what it was; and a leader that is killed between
/// the marks is taken over from.
pub async fn a_target_that_is_taken_out_goes_when_nothing_needs_it(scene: &Scene<'_>, daemon: Daemon) -> Daemon {
    let both = json!([{}, { "storageClassName": "local" }]);
    let (volumes, claims, images) = (scene.volumes().await, scene.claims().await, scene.stage.images());
    scene.disk("leaves", 60);
    scene.image("leaves", json!([{}, { "storageClassName": "local" }, { "storageClassName": "other" }])).await;
    scene.stage.until("leaves", "Ready", "True").await;
    let uid = async |golden: &str| claims.get(golden).await.expect("claim").uid();
    let (first, local) = (uid(FIRST).await, uid(LOCAL).await);

    // Nobody needs it.
    scene.retarget("leaves", both.clone()).await.expect("a target may be taken out");
    harness::until_gone(volumes.clone(), OTHER).await;
    harness::until_gone(claims.clone(), OTHER).await;
    harness::until(images.clone(), "leaves", "its record goes with it", |image: &GoldenImage| {
        image.status.as_ref().is_some_and(|status| status.targets.len() == 2) && retiring(image).is_empty() && ready(image)
    })
    .await;

    // A stopped VM needs it: told by name, closed to new pools, and there.
    let tenant = scene.stage.cluster.namespace("tenant").await;
    let machines = scene.stage.cluster.api(&scene.stage.cluster.admin(), "kubevirt.io/v1", "VirtualMachine", &tenant).await;
    machines.create(&PostParams::default(), &machine(LOCAL)).await.expect("created");
    scene.retarget("leaves", json!([{}])).await.expect("taken out");
    let pool = format!("{}/VirtualMachine/vm", &*tenant);
    let blocked = harness::until(images.clone(), "leaves", "who needs it is told, and the rest is Ready", |image: &GoldenImage| {
        retiring(image).contains(LOCAL) && retiring(image).contains(&pool) && ready(image)
    })
    .await;
    let record = blocked.status.expect("status").targets.into_iter().find(|target| target.golden.as_deref() == Some(LOCAL));
    let record = record.expect("on record while it is there");
    let told = record.conditions.iter().find(|condition| condition.type_ == "Ready").expect("Ready");
    assert!(told.status == "False" && told.reason == "Retiring" && told.message.contains(&pool), "{told:?}");
    let shown = harness::cli(Some(scene.stage.cluster.admin_kubeconfig()), ["status", "leaves"]).await.ok();
    assert!(shown.contains(&pool), "the image is Ready, and what it waits for is shown: {shown}");
    harness::until(claims.clone(), LOCAL, "no new pools", |claim: &DynamicObject| {
        claim.annotations().get(marks::RETIRING).is_some_and(|mark| mark.starts_with("since "))
    })
    .await;
    assert!(!claims.get(FIRST).await.expect("claim").annotations().contains_key(marks::RETIRING), "its sibling is left alone");

    // Not accepted meanwhile: it stays as it is, open again, and that is told.
    let access = async |access: Value| {
        let patch = Patch::Merge(json!({ "spec": { "access": access } }));
        images.patch("leaves", &PatchParams::default(), &patch).await.expect("a free field");
    };
    access(json!({ "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } })).await;
    harness::until(images.clone(), "leaves", "what leaves is told", |image: &GoldenImage| {
        retiring(image).contains(LOCAL) && retiring(image).contains("stays as it is while the image is not accepted")
    })
    .await;
    harness::until(claims.clone(), LOCAL, "it is open again", |claim: &DynamicObject| !claim.annotations().contains_key(marks::RETIRING))
        .await;
    access(json!({ "policy": "AllTenants", "namespaceSelector": null })).await;
    harness::until(images.clone(), "leaves", "it is to go again", |image: &GoldenImage| retiring(image).contains(&pool) && ready(image))
        .await;
    harness::until(claims.clone(), LOCAL, "no new pools", |claim: &DynamicObject| claim.annotations().contains_key(marks::RETIRING)).await;

    // Put back while it is there still.
    scene.retarget("leaves", both.clone()).await.expect("put back");
    for api in [&claims, &volumes] {
        harness::until(api.clone(), LOCAL, "new pools are let in again", |object: &DynamicObject| {
            assert!(object.metadata.deletion_timestamp.is_none());
            !object.annotations().contains_key(marks::RETIRING)
        })
        .await;
    }
    harness::until(images.clone(), "leaves", "both are Ready", |image: &GoldenImage| retiring(image).is_empty() && ready(image)).await;
    assert_eq!(uid(LOCAL).await, local, "the same golden");
    assert_eq!(scene.target("leaves", 1).await.claim_uid, local);

    // Killed between two marks, as far as can be told from outside: the claim's was written, the DataVolume's was not.
    scene.retarget("leaves", json!([{}])).await.expect("taken out");
    harness::until(volumes.clone(), LOCAL, "the fence is there", |volume: &DynamicObject| {
        volume.annotations().contains_key(marks::RETIRING)
    })
    .await;
    scene.stage.kill(daemon).await;
    let half = |mark: Value| Patch::Merge(json!({ "metadata": { "annotations": { marks::RETIRING: mark } } }));
    let params = PatchParams::default();
    claims.patch(LOCAL, &params, &half(json!("closed since 2026-11-29T10:00:00Z"))).await.expect("marked");
    volumes.patch(LOCAL, &params, &half(Value::Null)).await.expect("not marked");
    machines.delete("vm", &DeleteParams::default()).await.expect("a consumer always goes");
    harness::until_gone(machines, "vm").await;
    // What its watches are told can be held back from here on.
    let proxy = ApiProxy::start(scene.stage.cluster.control_plane(), None).await;
    let kubeconfig = Some(proxy.kubeconfig(&scene.stage.kubeconfig));
    let daemon = scene.stage.launch("a", Launch { kubeconfig, ..Launch::default() });
    daemon.ready().await;
    harness::until_gone(volumes, LOCAL).await;
    harness::until_gone(claims.clone(), LOCAL).await;
    harness::until(images.clone(), "leaves", "one is left", |image: &GoldenImage| {
        image.status.as_ref().is_some_and(|status| status.targets.len() == 1) && retiring(image).is_empty() && ready(image)
    })
    .await;
    assert_eq!((uid(FIRST).await, scene.fetches("leaves")), (first.clone(), 1));

    a_golden_that_stands_in_only_by_the_watch_is_not_believed(scene, &proxy).await;

    // The last one that can be cloned stays until another can: nothing else has the disk for sure.
    scene.retarget("leaves", json!([{}, { "storageClassName": "nowhere" }])).await.expect("added");
    scene.retarget("leaves", json!([{ "storageClassName": "nowhere" }])).await.expect("taken out");
    let kept = harness::until(images.clone(), "leaves", "it is kept", |image: &GoldenImage| {
        retiring(image).contains("until another golden of the image is Ready")
    })
    .await;
    assert_eq!(harness::condition(&kept, "Available").map(|available| available.status).as_deref(), Some("True"));
    scene.retarget("leaves", json!([{}])).await.expect("put back");
    harness::until(images, "leaves", "as it was", |image: &GoldenImage| retiring(image).is_empty() && ready(image)).await;
    let claim = claims.get(FIRST).await.expect("claim");
    assert_eq!((claim.uid(), claim.annotations().get(marks::RETIRING)), (first, None));
    daemon
}

/// A golden's sibling is to stand in, and is to go itself by now, which the leader's watch does not tell: it asks the API server before the
/// mark that has no way back.
async fn a_golden_that_stands_in_only_by_the_watch_is_not_believed(scene: &Scene<'_>, proxy: &ApiProxy) {
    let (claims, images, params) = (scene.claims().await, scene.stage.images(), PatchParams::default());
    let both = json!([{}, { "storageClassName": "local" }]);
    scene.retarget("leaves", both).await.expect("put back");
    harness::until(images.clone(), "leaves", "both are there", |image: &GoldenImage| {
        image.status.as_ref().is_some_and(|status| status.targets.len() == 2) && ready(image)
    })
    .await;
    let local = claims.get(LOCAL).await.expect("claim").uid();

    // Everything is done but the last look, which is refused.
    const SIBLING: &str = "/persistentvolumeclaims/vm-default-images-leaves";
    proxy.forbid(Some(SIBLING));
    scene.retarget("leaves", json!([{}])).await.expect("taken out");
    harness::until(claims.clone(), LOCAL, "it is closed", |claim: &DynamicObject| {
        claim.annotations().get(marks::RETIRING).is_some_and(|mark| mark.starts_with("closed since "))
    })
    .await;
    harness::until(images.clone(), "leaves", "the last look is refused", |image: &GoldenImage| {
        harness::condition(image, "WriteRefused").is_some_and(|refused| refused.reason == "CannotRetire")
    })
    .await;

    proxy.hold_watches(Some("/persistentvolumeclaims?"));
    let closed = json!({ "metadata": { "annotations": { marks::RETIRING: "closed since 2026-11-29T10:00:00Z" } } });
    claims.patch(FIRST, &params, &Patch::Merge(closed)).await.expect("marked");
    proxy.forbid(None);
    let asked = || proxy.seen().iter().filter(|seen| seen.method == http::Method::GET && seen.path.ends_with(SIBLING)).count();
    let before = asked();
    // Asked a second time, it has done what it does after the first.
    harness::eventually("the leader asks for the golden that is to stand in, twice", async || match asked() - before {
        0 | 1 => Err("not yet".to_owned()),
        _ => Ok(()),
    })
    .await;
    let claim = claims.get(LOCAL).await.expect("it is there");
    assert_eq!((claim.uid(), &claim.metadata.deletion_timestamp, claim.annotations().get(marks::RETIRED)), (local, &None, None));

    // Told of all that, it opens the sibling again, and then the golden can go.
    proxy.hold_watches(None);
    harness::until(claims.clone(), FIRST, "its sibling is open", |claim: &DynamicObject| {
        !claim.annotations().contains_key(marks::RETIRING)
    })
    .await;
    harness::until_gone(claims, LOCAL).await;
    harness::until(images, "leaves", "one is left", |image: &GoldenImage| {
        image.status.as_ref().is_some_and(|status| status.targets.len() == 1) && retiring(image).is_empty() && ready(image)
    })
    .await;
}
