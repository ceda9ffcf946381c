//! An API server that refuses, denies, cuts and hangs at random, is away for a while, starts anew, or has forgotten the past:
//! the daemon recovers by itself, and does not storm.

use super::{
    harness::{eventually, tell, until_gone},
    proxy::{ApiProxy, Faults, Mode},
    stage::Launch,
    versions::{self, Versions},
    world::{Dice, World, golden, rounds},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, api::DeleteParams};
use serde_json::json;
use std::time::Duration;

/// The daemon by way of a proxy, with a Lease that a slow moment does not cost.
fn through(world: &World, proxy: &ApiProxy) -> Launch {
    let kubeconfig = Some(proxy.kubeconfig(&world.stage.kubeconfig));
    let lease = json!({ "lease": { "duration": "15s", "renewDeadline": "10s", "retryPeriod": "500ms" } });
    Launch { kubeconfig, settings: lease, ..Launch::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_fail_at_random_change_nothing_about_the_end() {
    hurt("hurt", rounds(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a longer round: make soak"]
async fn requests_that_fail_at_random_again_and_again_change_nothing_about_the_end() {
    hurt("much-hurt", rounds(25)).await;
}

async fn hurt(what: &str, count: usize) {
    let Some(world) = World::enter("").await else { return };
    let proxy = ApiProxy::start(world.cluster.control_plane(), None).await;
    let recorder = Versions::record(world.cluster.admin());
    let mut dice = Dice::new("requests that fail at random");
    for round in 0..count {
        let names: Vec<_> = (0..4).map(|n| format!("{what}-{round}-{n}")).collect();
        let raws: Vec<_> = names.iter().zip(900 + 10 * round as u64..).map(|(name, seed)| world.disk(name, seed)).collect();
        let mark = world.cluster.audit_mark().await;
        proxy.reset();
        proxy.faults(Faults { refused: 80, denied: 40, cut: 30, hung: 3 }, dice.roll(usize::MAX) as u64);
        let daemon = world.stage.launch(what, through(&world, &proxy));
        // Two by the list, two by hand.
        let entries: Vec<_> =
            names[..2].iter().map(|name| json!({ "name": name, "url": world.url(name), "storageClass": "replicated" })).collect();
        world.list(json!(entries)).await;
        for name in &names[2..] {
            world.image(name, "replicated").await;
        }
        for name in &names {
            world.stage.until(name, "Ready", "True").await;
        }
        let hurt = proxy.hurt();
        proxy.reset();
        assert!(hurt > 0, "something failed");
        tell(&format!("round {round}: {hurt} requests failed on the way to {} goldens", names.len()));
        let writes = world.writes_since(mark).await;
        for (name, raw) in names.iter().zip(&raws) {
            world.same_content(name, raw).await;
            let status = world.stage.images().get(name).await.expect("image").status.expect("status");
            assert_eq!(status.targets[0].attempts, 1, "{name}: the first import went through");
            assert_eq!(world.sent(name).0, world.size(name), "{name} was fetched once");
            versions::check(name, &recorder.of(&world.stage.images(), name).await);
        }
        let created = writes.iter().filter(|request| request.verb == "create" && request.resource == "datavolumes" && request.code == 201);
        assert_eq!(created.count(), names.len(), "a DataVolume for each, and no second one");
        let deleted: Vec<_> = writes.iter().filter(|request| request.verb.starts_with("delete")).collect();
        assert!(deleted.iter().all(|request| request.resource == "secrets"), "{deleted:#?}");
        world.kill(daemon).await;
    }
}

/// How many requests of its own accord a daemon may send in a second of an outage: some thirty watches and lists that back off,
/// the Lease twice a second, and images whose step failed. A storm would be hundreds.
const CALM: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_borne_calmly_and_ends_by_itself() {
    let Some(world) = World::enter("").await else { return };
    let proxy = ApiProxy::start(world.cluster.control_plane(), None).await;
    let names: Vec<_> = (0..3).map(|n| format!("outage-{n}")).collect();
    for (name, seed) in names.iter().zip(700..) {
        world.disk(name, seed);
    }
    let daemon = world.leader("outage", through(&world, &proxy)).await;
    for (name, mode) in names.iter().zip([Mode::Answer(500), Mode::Answer(429), Mode::Cut]) {
        // Work to do, so that there is something to be impatient about.
        world.image(name, "replicated").await;
        let before = proxy.seen().len();
        proxy.set(mode);
        proxy.cut();
        // An outage is a stretch of time; what is asserted is the number of requests in it.
        let outage = Duration::from_secs(6);
        tokio::time::sleep(outage).await;
        let asked = proxy.seen().len() - before;
        let writes = proxy.seen()[before..].iter().filter(|seen| !matches!(seen.method.as_str(), "GET" | "CONNECT")).count();
        eprintln!("{mode:?}: {asked} requests in {outage:?}, {writes} of them writes");
        assert!(asked < CALM * outage.as_secs() as usize, "{mode:?}: {asked} requests in {outage:?}");
        proxy.set(Mode::Pass);
        world.stage.until(name, "Ready", "True").await;
    }
    assert!(daemon.ended().is_none(), "it lived through all of them");
    world.kill(daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_starts_anew_and_forgot_the_past_costs_nothing() {
    let Some(world) = World::enter("").await else { return };
    let proxy = ApiProxy::start(world.cluster.control_plane(), None).await;
    for (name, seed) in [("before-restart", 801), ("over-restart", 802), ("after-restart", 803)] {
        world.disk(name, seed);
    }
    let daemon = world.leader("restart", through(&world, &proxy)).await;
    world.image("before-restart", "replicated").await;
    world.stage.until("before-restart", "Ready", "True").await;
    let claim = world.claims().await.get(&golden("before-restart")).await.expect("claim").metadata.uid;
    // One import is under way while the API server is gone.
    world.stage.cdi.script(&golden("over-restart"), super::cdi::Behaviour::StuckAt(50.0));
    world.image("over-restart", "replicated").await;
    world.until_begun("over-restart").await;
    let plane = world.cluster.control_plane();
    let before = proxy.seen();
    // Versions that the watches know are compacted away, and the API server's own memory of them with its restart: 410.
    plane.compact_etcd().await;
    plane.restart_api_server().await;
    world.stage.cdi.unscript(&golden("over-restart"));
    world.stage.until("over-restart", "Ready", "True").await;
    world.image("after-restart", "replicated").await;
    world.stage.until("after-restart", "Ready", "True").await;
    let lists = |seen: &[super::proxy::Seen]| seen.iter().filter(|seen| seen.path.contains("limit=")).count();
    let (seen, kinds) = (proxy.seen(), lists(&before));
    let again = lists(&seen) - kinds;
    eprintln!("{kinds} lists at the start, {again} after the restart");
    assert!(again <= 4 * kinds, "each kind is listed anew, not again and again: {again}");
    let status = world.stage.images().get("over-restart").await.expect("image").status.expect("status");
    assert_eq!(status.targets[0].attempts, 1);
    assert_eq!(world.claims().await.get(&golden("before-restart")).await.expect("claim").metadata.uid, claim);
    for name in ["before-restart", "over-restart", "after-restart"] {
        assert_eq!(world.sent(name).0, world.size(name), "{name} was fetched once");
    }
    assert!(daemon.ended().is_none(), "it lived through it");
    world.kill(daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_hears_nothing_fails_liveness_names_its_watches_and_heals() {
    let Some(world) = World::enter("").await else { return };
    let proxy = ApiProxy::start(world.cluster.control_plane(), None).await;
    // A watch of a kind that nothing happens to hears a word a minute: here it hears its end each second, and begins anew.
    proxy.short_watches(1);
    let mut launch = through(&world, &proxy);
    launch.settings["watchLimit"] = "10s".into();
    let daemon = world.leader("deaf", launch).await;
    daemon.ready().await;
    let is_well = async || {
        eventually("it is well", async || match daemon.probe_text("livez").await? {
            (200, _) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    };
    is_well().await;

    // One deaf watch is enough, and is named alone.
    proxy.deafen(Some("/storageprofiles"));
    eventually("liveness fails for one watch", async || match daemon.probe_text("livez").await? {
        (503, text) if text.lines().count() == 1 && text.starts_with("watch StorageProfile: ") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    // Its request is never answered; the others are begun anew with it.
    proxy.deafen(None);
    proxy.cut();
    is_well().await;

    proxy.set(Mode::Hang);
    proxy.cut();
    // Our own definition is watched as all else is.
    let watched = ["GoldenImage", "DataVolume", "CustomResourceDefinition"];
    eventually("liveness fails and says what is stuck", async || match daemon.probe_text("livez").await? {
        (503, text) if watched.iter().all(|kind| text.contains(&format!("watch {kind}: "))) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let metrics = world.stage.metrics().await;
    for kind in watched {
        assert!(metrics.contains(&format!("golden_image_watch_age_seconds{{kind=\"{kind}\"}}")), "the age of {kind}");
    }
    // What did not restart it in time finds it well again.
    proxy.set(Mode::Pass);
    proxy.cut();
    is_well().await;
    world.kill(daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_of_others_that_go_and_come_back_stop_nothing() {
    let Some(world) = World::enter("").await else { return };
    let proxy = ApiProxy::start(world.cluster.control_plane(), None).await;
    let daemon = world.leader("kinds", through(&world, &proxy)).await;
    daemon.ready().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(world.cluster.admin());
    let kinds = ["virtualmachines.kubevirt.io", "kubevirtmachinetemplates.infrastructure.cluster.x-k8s.io"];
    let mut removed = Vec::new();
    for name in kinds {
        removed.push(definitions.get(name).await.expect("the kind is there"));
        definitions.delete(name, &DeleteParams::default()).await.expect("deleted");
        until_gone(definitions.clone(), name).await;
    }
    // Work goes on, and the process stays ready: not installed means that there are none, for sure.
    world.disk("without-kinds", 851);
    world.image("without-kinds", "replicated").await;
    world.stage.until("without-kinds", "Ready", "True").await;
    eventually("it is ready without them", async || match daemon.probe_text("readyz").await? {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert_eq!(daemon.probe("livez").await, Ok(200));
    let before = proxy.seen().len();
    for mut definition in removed {
        definition.metadata.resource_version = None;
        definition.metadata.uid = None;
        definition.status = None;
        definitions.create(&Default::default(), &definition).await.expect("back");
    }
    for name in kinds {
        let plural = name.split('.').next().unwrap_or_default();
        eventually(&format!("{plural} are watched again"), async || {
            let seen = proxy.seen();
            let again = seen[before..].iter().any(|seen| seen.path.contains(&format!("/{plural}?")) && seen.path.contains("watch=true"));
            if again { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
    }
    assert!(daemon.ended().is_none(), "the same process all along");
    world.kill(daemon).await;
}
