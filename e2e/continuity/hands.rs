//! What people do to objects while an import runs, and clocks that jump: the right state, with the right reason.

use super::{
    cdi::Behaviour,
    harness::{self, condition, eventually, until},
    stage::{CATALOG, Launch, NAMESPACE},
    world::{World, golden},
};
use golden_catalog::api::GoldenImage;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::time::Duration;

/// An image whose import stands at half, until it is let go on.
async fn half_way(world: &World, name: &str, seed: u64) {
    begun(world, name, seed).await;
    until_half_way(world, name).await;
}

/// The same, before it has come that far.
async fn begun(world: &World, name: &str, seed: u64) {
    world.disk(name, seed);
    world.stage.cdi.script(&golden(name), Behaviour::StuckAt(50.0));
    world.image(name, "replicated").await;
}

async fn until_half_way(world: &World, name: &str) {
    world.until_begun(name).await;
    world.stage.cdi.until_journal(CATALOG, &golden(name), |did| did.iter().any(|what| format!("{what:?}").contains("GET"))).await;
}

/// Lets it go on, and waits for the golden.
async fn go_on(world: &World, name: &str) {
    world.stage.cdi.unscript(&golden(name));
    world.stage.until(name, "Ready", "True").await;
}

/// Waits for another DataVolume of a golden's name.
async fn until_another(world: &World, name: &str, before: Option<&str>) {
    let volumes = world.volumes().await;
    harness::eventually("another DataVolume", || async {
        let uid = volumes.get(&golden(name)).await.map_err(|error| error.to_string())?.metadata.uid;
        if uid.as_deref() == before { Err(format!("{name}: still {before:?}")) } else { Ok(()) }
    })
    .await;
}

fn merge(patch: Value) -> Patch<Value> {
    Patch::Merge(patch)
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_by_hand_while_an_import_runs_are_healed_or_told() {
    let Some(world) = World::enter("").await else { return };
    // What stands still is given up at that deadline, and its Secret and CA are written anew at each fifth of it.
    let settings = json!({ "maxConcurrentImports": 20, "importDeadline": "120s" });
    let daemon = world.leader("hands", Launch { settings, ..Launch::default() }).await;
    let volumes = world.volumes().await;
    let (images, hand) = (world.stage.images(), PatchParams::default());
    let names = ["h-status", "h-volume", "h-final", "h-headers", "h-header-edit", "h-ca", "h-ca-edit", "h-label", "h-claim"];
    for (name, seed) in names.iter().zip(1100..) {
        begun(&world, name, seed).await;
    }
    for name in names {
        until_half_way(&world, name).await;
    }
    let uid = async |name: &str| volumes.get(&golden(name)).await.expect("volume").metadata.uid;
    let mut before = std::collections::BTreeMap::new();
    for name in names {
        before.insert(name, uid(name).await);
    }

    // The status is cleared: the same import goes on, in the same attempt.
    images.patch_status("h-status", &hand, &merge(json!({ "status": null }))).await.expect("cleared");
    // The DataVolume is deleted: made anew.
    volumes.delete(&golden("h-volume"), &DeleteParams::default()).await.expect("deleted");
    // Somebody's finalizer holds a deleted one: told, and made anew when it is gone.
    let finalizer = |list: Value| merge(json!({ "metadata": { "finalizers": list } }));
    volumes.patch(&golden("h-final"), &hand, &finalizer(json!(["e2e.test/held"]))).await.expect("held");
    volumes.delete(&golden("h-final"), &DeleteParams::default()).await.expect("deleted");
    world.stage.until_reason("h-final", "GoldenTerminating").await;
    volumes.patch(&golden("h-final"), &hand, &finalizer(json!([]))).await.expect("let go");
    // The importer's Secret is deleted, or holds something else.
    world.secrets(CATALOG).delete(&golden("h-headers"), &DeleteParams::default()).await.expect("deleted");
    let other = merge(json!({ "data": null, "stringData": { "secretHeader": "Authorization: Bearer nothing" } }));
    world.secrets(CATALOG).patch(&golden("h-header-edit"), &hand, &other).await.expect("edited");
    // Our mark is taken off: nothing that is not marked is touched, and it is told.
    let mark = |value: Value| merge(json!({ "metadata": { "labels": { "kubernetes-worker-image.cozystack.io/golden": value } } }));
    volumes.patch(&golden("h-label"), &hand, &mark(Value::Null)).await.expect("unmarked");
    world.stage.until_reason("h-label", "NameConflict").await;
    volumes.patch(&golden("h-label"), &hand, &mark("true".into())).await.expect("marked");
    // The claim is deleted under CDI: it begins again by itself.
    world.stage.cdi.delete_claim(CATALOG, &golden("h-claim")).await;

    for name in ["h-status", "h-headers", "h-label", "h-volume", "h-final", "h-header-edit", "h-claim"] {
        go_on(&world, name).await;
        let status = images.get(name).await.expect("image").status.expect("status");
        assert!(status.targets[0].claim_uid.is_some() && status.targets[0].last_failure.is_none(), "{name}: {status:?}");
        assert_eq!(world.sent(name).0, world.size(name), "{name} was not fetched again");
    }
    for name in ["h-status", "h-headers", "h-label"] {
        assert_eq!(uid(name).await, before[name], "{name}: the same import went on");
    }
    // The importers' CA is edited, then deleted.
    let other = merge(json!({ "data": { "ca.crt": "nothing" } }));
    world.maps(CATALOG).patch("golden-catalog-spool-ca", &hand, &other).await.expect("edited");
    go_on(&world, "h-ca-edit").await;
    world.maps(CATALOG).delete("golden-catalog-spool-ca", &DeleteParams::default()).await.expect("deleted");
    until(world.maps(CATALOG), "golden-catalog-spool-ca", "the CA is back", |_| true).await;
    go_on(&world, "h-ca").await;

    world.kill(daemon).await;
}

/// What makes an address impossible that an unfinished DataVolume pulls from: it is begun anew, in the same attempt, from the
/// disk that the spool has.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_whose_address_is_gone_is_begun_anew() {
    let Some(world) = World::enter("").await else { return };
    let daemon = world.leader("address", Launch::default()).await;
    half_way(&world, "a-recreated", 1201).await;
    half_way(&world, "a-key", 1202).await;
    let uid = async |name: &str| world.volumes().await.get(&golden(name)).await.expect("volume").metadata.uid;
    let before = [uid("a-recreated").await, uid("a-key").await];
    // The entry is taken out and put back: another object of the same name.
    world.stage.images().delete("a-recreated", &DeleteParams::default()).await.expect("deleted");
    world.image("a-recreated", "replicated").await;
    // First, since an importer that has all bytes already needs no address any more.
    until_another(&world, "a-recreated", before[0].as_deref()).await;
    go_on(&world, "a-recreated").await;
    // The spool's key and certificate are deleted, and the next leader makes others.
    world.kill(daemon).await;
    for secret in ["golden-catalog-spool-key", "golden-catalog-spool-tls"] {
        world.secrets(NAMESPACE).delete(secret, &DeleteParams::default()).await.expect("deleted");
    }
    let daemon = world.leader("address", Launch::default()).await;
    until_another(&world, "a-key", before[1].as_deref()).await;
    go_on(&world, "a-key").await;
    for (name, before) in ["a-recreated", "a-key"].into_iter().zip(before) {
        assert_ne!(uid(name).await, before, "{name}: a DataVolume's source cannot be changed");
        assert_eq!(world.sent(name).0, world.size(name), "{name} was fetched once");
        let status = world.stage.images().get(name).await.expect("image").status.expect("status");
        assert_eq!(status.targets[0].attempts, 1, "{name}");
    }
    world.kill(daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_slice_comes_back_when_a_hand_takes_it_away() {
    let Some(world) = World::enter("").await else { return };
    let slices: Api<EndpointSlice> = Api::namespaced(world.cluster.admin(), NAMESPACE);
    let daemon = world.leader("slice", Launch { arguments: vec!["--pod-ip=192.0.2.9".into()], ..Launch::default() }).await;
    let names_us = async || {
        eventually("the slice names the leader", async || {
            let slice = slices.get("golden-catalog-spool").await.map_err(|error| error.to_string())?;
            let text = serde_json::to_string(&slice.endpoints).expect("JSON");
            if text.contains("192.0.2.9") { Ok(()) } else { Err(text) }
        })
        .await;
    };
    names_us().await;
    slices.delete("golden-catalog-spool", &DeleteParams::default()).await.expect("deleted");
    names_us().await;
    let elsewhere = merge(json!({ "endpoints": [{ "addresses": ["192.0.2.66"] }] }));
    slices.patch("golden-catalog-spool", &PatchParams::default(), &elsewhere).await.expect("edited");
    names_us().await;
    world.kill(daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_deleted_takes_no_image_with_it() {
    let Some(world) = World::enter("").await else { return };
    world.disk("listed", 1301);
    world.list(json!([{ "name": "listed", "url": world.url("listed"), "storageClass": "replicated" }])).await;
    let daemon = world.leader("list", Launch::default()).await;
    world.stage.until("listed", "Ready", "True").await;
    let maps = world.maps(NAMESPACE);
    let mut map = maps.get("golden-catalog-images").await.expect("the list");
    maps.delete("golden-catalog-images", &DeleteParams::default()).await.expect("deleted");
    // Something else must happen after it, so that the daemon has seen both.
    world.disk("after-list", 1302);
    world.image("after-list", "replicated").await;
    world.stage.until("after-list", "Ready", "True").await;
    let image = world.stage.images().get("listed").await.expect("image");
    assert_eq!(condition(&image, "Ready").map(|ready| ready.status), Some("True".to_owned()));
    assert!(condition(&image, "Unlisted").is_none(), "an unknown list drops nothing");
    map.metadata.resource_version = None;
    map.metadata.uid = None;
    maps.create(&Default::default(), &map).await.expect("back");
    world.list(json!([])).await;
    world.stage.until("listed", "Unlisted", "True").await;
    world.stage.until("listed", "Ready", "True").await;
    world.kill(daemon).await;
}

/// Debian's libfaketime, told by a file how far the daemon's clock is off; its monotonic clock stays, as on a real machine.
fn clock(world: &World) -> (Vec<(String, String)>, std::path::PathBuf) {
    let library = format!("/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", std::env::consts::ARCH);
    assert!(std::path::Path::new(&library).exists(), "{library}: run `make setup`");
    let file = world.stage.dir.join("clock");
    std::fs::write(&file, "+0").expect("the clock");
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let environment = vec![
        set("LD_PRELOAD", &library),
        set("FAKETIME_TIMESTAMP_FILE", &file.display().to_string()),
        set("FAKETIME_NO_CACHE", "1"),
        set("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        set("DONT_FAKE_MONOTONIC", "1"),
    ];
    (environment, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_ends_no_import_no_lease_and_no_wait() {
    let Some(world) = World::enter("").await else { return };
    let (environment, file) = clock(&world);
    let lease = json!({ "lease": { "duration": "15s", "renewDeadline": "10s", "retryPeriod": "500ms" } });
    let daemon = world.leader("clock", Launch { environment, settings: lease, ..Launch::default() }).await;
    let holder = world.holder().await;
    world.disk("clock-import", 1401);
    // Long enough for all three jumps on a busy machine. One that stood still would be given up by the stand-in (`STALL`).
    world.stage.cdi.script(&golden("clock-import"), Behaviour::Ticks { count: 150, every: Duration::from_millis(400) });
    world.image("clock-import", "replicated").await;
    world.stage.until_reason("clock-import", "Importing").await;
    world.image("clock-missing", "replicated").await;
    world.stage.until_reason("clock-missing", "NotFound").await;
    let uid = world.volumes().await.get(&golden("clock-import")).await.expect("volume").metadata.uid;
    for (jump, wake) in [("+2h", "1"), ("-26h", "2"), ("+0", "3")] {
        std::fs::write(&file, jump).expect("the clock");
        // Woken, so that it looks at the time: whatever it would conclude, it concludes now.
        for name in ["clock-import", "clock-missing"] {
            let touch = json!({ "metadata": { "labels": { "e2e": wake } } });
            world.stage.images().patch(name, &PatchParams::default(), &merge(touch)).await.expect("touched");
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let image = world.stage.images().get("clock-import").await.expect("image");
        assert_eq!(condition(&image, "Ready").map(|ready| ready.reason), Some("Importing".to_owned()), "{jump}");
    }
    std::fs::write(&file, "-26h").expect("the clock");
    world.disk("clock-missing", 1402);
    world.stage.until("clock-missing", "Ready", "True").await;
    go_on(&world, "clock-import").await;
    assert_eq!(world.volumes().await.get(&golden("clock-import")).await.expect("volume").metadata.uid, uid, "the same import");
    let status = world.stage.images().get("clock-import").await.expect("image").status.expect("status");
    assert_eq!(status.targets[0].attempts, 1);
    assert_eq!(world.holder().await, holder, "the Lease does not go by the wall clock");
    world.kill(daemon).await;
}

/// Objects as earlier versions left them, from files: `e2e/continuity/older/`.
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_an_older_version_are_taken_over_as_they_are() {
    let Some(world) = World::enter("").await else { return };
    for (name, seed) in [("old-ready", 1501), ("old-begun", 1502), ("old-failed", 1503)] {
        world.disk(name, seed);
    }
    // A golden as it is today, from which the status of the older version is then put on record.
    let daemon = world.leader("older", Launch::default()).await;
    world.image("old-ready", "replicated").await;
    world.stage.until("old-ready", "Ready", "True").await;
    world.kill(daemon).await;
    let today = world.stage.images().get("old-ready").await.expect("image").status.expect("status");
    for name in ["old-begun", "old-failed"] {
        world.image(name, "replicated").await;
    }
    for name in ["old-ready", "old-begun", "old-failed"] {
        let file = harness::repository().join(format!("e2e/continuity/older/{name}.json"));
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let claim = today.targets[0].claim_uid.clone().unwrap_or_default();
        let (artifact, disk) = (today.artifact.as_ref().expect("artifact"), today.disk.as_ref().expect("disk"));
        let text = text.replace("CLAIM-UID", &claim).replace("ARTIFACT", &artifact.digest).replace("DISK", &disk.digest);
        let status: Value = serde_json::from_str(&text).expect("JSON");
        let api: Api<DynamicObject> = world.cluster.api(&world.cluster.admin(), "cozystack.io/v1alpha1", "GoldenImage", "").await;
        let mut object = api.get(name).await.expect("image");
        object.data["status"] = status;
        api.replace_status(name, &Default::default(), &object).await.expect("the older status");
    }
    let before = world.sent("old-ready");
    let mark = world.cluster.audit_mark().await;
    let daemon = world.leader("older", Launch::default()).await;
    for name in ["old-ready", "old-begun", "old-failed"] {
        until(world.stage.images(), name, "Ready by the new version", |image: &GoldenImage| {
            condition(image, "Ready").is_some_and(|ready| ready.status == "True" && ready.reason == "Ready")
        })
        .await;
    }
    assert_eq!(world.sent("old-ready"), before, "what is Ready is neither fetched nor imported again");
    let writes = world.writes_since(mark).await;
    let created = writes.iter().filter(|request| request.verb == "create" && request.resource == "datavolumes").count();
    assert_eq!(created, 2, "{writes:#?}");
    let deleted: Vec<_> = writes.iter().filter(|request| request.verb.starts_with("delete") && request.resource != "secrets").collect();
    assert!(deleted.is_empty(), "{deleted:#?}");
    world.kill(daemon).await;
}
