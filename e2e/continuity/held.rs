//! Requests that are slow for ever: a write that is on its way when the leader is asked to end, and reads that the API server
//! never answers, or begins to answer and never ends.

use super::{
    harness::{Daemon, eventually, until, until_gone},
    proxy::ApiProxy,
    stage::{Launch, NAMESPACE},
    world::{World, golden},
};
use golden_catalog::api::GoldenImage;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::time::Duration;

/// The daemon's own grace (25 s), with room for a machine that is busy.
const GRACE: Duration = Duration::from_secs(60);

fn through(world: &World, proxy: &ApiProxy, settings: Value) -> Launch {
    let kubeconfig = Some(proxy.kubeconfig(&world.stage.kubeconfig));
    Launch { kubeconfig, settings, ..Launch::default() }
}

/// Waits until nothing of it is left but what gives the Lease up: its probes are answered until then.
async fn works_no_more(daemon: &Daemon) {
    eventually("its work has ended", async || match daemon.probe("livez").await {
        Ok(status) => Err(status.to_string()),
        Err(_) => Ok(()),
    })
    .await;
}

/// What an import of one image has cost: one DataVolume, whoever made it, and nothing deleted but the importer's Secret.
async fn made_once(world: &World, name: &str, mark: super::harness::Mark) {
    let writes = world.writes_since(mark).await;
    let of_volumes: Vec<_> = writes.iter().filter(|request| request.resource == "datavolumes" && request.verb == "create").collect();
    assert_eq!(of_volumes.len(), 1, "{name}: one DataVolume: {of_volumes:#?}");
    let deleted: Vec<_> = writes.iter().filter(|request| request.verb.starts_with("delete") && request.resource != "secrets").collect();
    assert!(deleted.is_empty(), "{name}: {deleted:#?}");
    assert_eq!(world.sent(name).0, world.size(name), "{name} was fetched once");
    let status = world.stage.images().get(name).await.expect("image").status.expect("status");
    assert_eq!(status.targets[0].attempts, 1, "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_asked_to_end_while_a_write_is_slow_leaves_nothing_half_done() {
    let Some(world) = World::enter("").await else { return };
    let proxy = ApiProxy::start(world.cluster.control_plane(), None).await;
    for (name, seed) in [("slow-write", 501), ("lost-write", 502)] {
        world.disk(name, seed);
    }

    // On one spool: what was fetched is not fetched again.
    // Slow: it arrives while the daemon ends, which keeps the Lease until then.
    let patient = json!({ "lease": { "duration": "30s", "renewDeadline": "20s", "retryPeriod": "500ms" } });
    let daemon = world.leader("writer", through(&world, &proxy, patient)).await;
    let mark = world.cluster.audit_mark().await;
    proxy.hold_writes(Some("/datavolumes"));
    world.image("slow-write", "replicated").await;
    proxy.holds_a_write().await;
    assert!(daemon.terminate(Duration::ZERO).await.is_none(), "a write of its own is on its way");
    works_no_more(&daemon).await;
    // Time in which a leader that does not wait would give the Lease up.
    tokio::time::sleep(Duration::from_millis(500)).await;
    proxy.hold_writes(None);
    let ended = daemon.wait(GRACE).await.expect("it ends when the write has arrived");
    assert!(ended.success(), "{ended:?}");
    assert_eq!(world.holder().await, "", "the Lease was given up");
    let requests = world.cluster.requests_since(mark).await;
    let at = |what: &str, verb: &str| requests.iter().rposition(|request| request.resource == what && request.verb == verb);
    let (made, given_up) = (at("datavolumes", "create"), at("leases", "update"));
    assert!(made.is_some() && made < given_up, "the DataVolume, and then the Lease: {made:?} {given_up:?}");

    // The next one goes on with what it finds, and ends while its own write will never arrive.
    let daemon = world.leader("writer", through(&world, &proxy, json!({}))).await;
    world.stage.until("slow-write", "Ready", "True").await;
    made_once(&world, "slow-write", mark).await;
    let mark = world.cluster.audit_mark().await;
    proxy.hold_writes(Some("/datavolumes"));
    world.image("lost-write", "replicated").await;
    proxy.holds_a_write().await;
    let ended = daemon.terminate(GRACE).await.expect("it does not wait for ever");
    assert!(ended.success(), "{ended:?}");

    // Whoever comes next waits until the Lease has run out, and does what was not done.
    let daemon = world.leader("writer", Launch::default()).await;
    world.stage.until("lost-write", "Ready", "True").await;
    made_once(&world, "lost-write", mark).await;
    world.kill(daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_hangs_for_ever_is_given_up_told_and_asked_again() {
    let Some(world) = World::enter("").await else { return };
    let proxy = ApiProxy::start(world.cluster.control_plane(), None).await;
    let settings =
        json!({ "apiPatience": "1s", "retireWait": "1s", "lease": { "duration": "15s", "renewDeadline": "10s", "retryPeriod": "500ms" } });
    let daemon = world.leader("hung-read", through(&world, &proxy, settings)).await;
    daemon.ready().await;

    // A Secret that is never answered, and then never ended: told as the last failure, and what hangs keeps no other image waiting.
    let secret = json!({ "metadata": { "name": "hung-read" }, "stringData": { "username": "somebody", "password": "hunter2" } });
    world.secrets(NAMESPACE).create(&PostParams::default(), &serde_json::from_value(secret).expect("a Secret")).await.expect("created");
    for (name, seed) in [("beside-hung-read", 503), ("after-hung-read", 504)] {
        world.disk(name, seed);
    }
    proxy.deafen(Some("/secrets/hung-read"));
    let image = json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "hung-read" },
        "spec": {
            "source": { "http": { "url": world.url("hung-read") } }, "storage": { "targets": [{ "storageClassName": "replicated" }] },
            "credentialsSecretRef": { "name": "hung-read" }, "access": { "policy": "AllTenants" },
        },
    });
    let image: GoldenImage = serde_json::from_value(image).expect("object");
    world.stage.images().create(&PostParams::default(), &image).await.expect("created");
    world.image("beside-hung-read", "replicated").await;
    let told = async |words: &'static str| {
        until(world.stage.images(), "hung-read", words, |image: &GoldenImage| {
            let failure = image.status.as_ref().and_then(|status| status.fetch.as_ref()?.last_failure.as_ref());
            failure.is_some_and(|failure| failure.message.contains(words))
        })
        .await
    };
    told("did not answer within 1s").await;
    proxy.mute(Some("/secrets/hung-read"));
    proxy.deafen(None);
    told("did not end its answer within 1s").await;
    world.stage.until("beside-hung-read", "Ready", "True").await;
    proxy.mute(None);
    // Read at last: it is for no upstream without TLS, as nginx is here.
    told("are not sent over plain http").await;
    world.image("after-hung-read", "replicated").await;
    world.stage.until("after-hung-read", "Ready", "True").await;

    // The same of the last look before a golden goes, on which a loop of its own waits.
    let volumes = world.volumes().await;
    for (name, path, said) in [
        ("beside-hung-read", "/goldenimages/beside-hung-read", "did not answer within 1s"),
        ("after-hung-read", "/goldenimages/after-hung-read", "did not end its answer within 1s"),
    ] {
        let before = daemon.log().len();
        match name {
            "beside-hung-read" => proxy.deafen(Some(path)),
            _ => proxy.mute(Some(path)),
        }
        let retire = Patch::Merge(json!({ "spec": { "retire": true } }));
        world.stage.images().patch(name, &PatchParams::default(), &retire).await.expect("a free field");
        eventually("it is told what hangs", async || {
            let log = daemon.log();
            let is_told = |line: &str| line.contains("a step of retiring failed") && line.contains(&golden(name)) && line.contains(said);
            if log[before..].lines().any(is_told) { Ok(()) } else { Err(log.lines().last().unwrap_or_default().to_owned()) }
        })
        .await;
        assert!(volumes.get_opt(&golden(name)).await.expect("asked").is_some(), "{name}: nothing goes before that is known");
        proxy.reset();
        until_gone(volumes.clone(), &golden(name)).await;
    }
    assert_eq!(daemon.probe("livez").await, Ok(200));
    assert!(daemon.ended().is_none(), "the same process all along");
    world.kill(daemon).await;
    for name in ["hung-read", "beside-hung-read", "after-hung-read"] {
        world.clear_away(name).await;
    }
}
