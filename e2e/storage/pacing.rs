//! R11: at most so many at once, oldest first, and one import that fails over and over never starves the rest.

use std::time::Duration;

use golden_catalog::api::GoldenImage;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{
    cdi::{Behaviour, What},
    harness::{self, Daemon},
    scene::Scene,
    stage::{CATALOG, NAMESPACE},
    upstream::Authority,
};

fn golden(name: &str) -> String {
    format!("vm-default-images-{name}")
}

/// Waits until an image has its disk and stands in the line of imports.
async fn in_line(scene: &Scene<'_>, name: &str) {
    harness::until(scene.stage.images(), name, "it waits for its turn to be imported", |image: &GoldenImage| {
        harness::condition(image, "Ready")
            .is_some_and(|ready| ready.reason == "Queued" && ready.message.contains("other goldens are being imported"))
    })
    .await;
}

/// The one slot is held by an import that stands still, then fails, and fails again: the others get it in the order of their age.
pub async fn the_oldest_comes_first_and_a_stuck_one_starves_nobody(scene: &Scene<'_>, daemon: Daemon) -> Daemon {
    daemon.terminate(harness::PATIENCE).await.expect("it ends when asked to");
    drop(daemon);
    let daemon = scene.stage.daemon_with("paced", &json!({ "maxConcurrentImports": 1, "importDeadline": "10m", "importAttempts": 9 }));
    daemon.ready().await;
    // By name they would come in the other order.
    let (stuck, rest) = ("paced-z", ["paced-c", "paced-b", "paced-a"]);
    scene.stage.cdi.script(&golden(stuck), Behaviour::StuckAt(30.0));
    scene.disk(stuck, 70);
    scene.image(stuck, json!([{}])).await;
    scene.stage.until_reason(stuck, "Importing").await;
    for (name, seed) in rest.iter().zip(71..) {
        scene.disk(name, seed);
        // Kubernetes tells ages in whole seconds.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        scene.image(name, json!([{}])).await;
    }
    for name in rest {
        in_line(scene, name).await;
        assert!(scene.volumes().await.get_opt(&golden(name)).await.expect("asked").is_none(), "one at a time");
    }
    // The first pod only looks at the header and goes; the second one transfers, and stays until it is killed.
    let is_got = |what: &&What| matches!(what, What::Request { method: "GET", status: 200, .. });
    let is_at_work = |did: &[What]| did.iter().filter(is_got).count() >= 2;
    scene.stage.cdi.until_journal(CATALOG, &golden(stuck), is_at_work).await;
    let before = scene.stage.cdi.journal().len();
    scene.stage.cdi.script(&golden(stuck), Behaviour::Fatal { message: "the disk is odd".into() });
    scene.stage.cdi.kill_importer(CATALOG, &golden(stuck)).await;
    for name in rest {
        scene.stage.until(name, "Ready", "True").await;
    }
    // It had its next turn behind those that had none before.
    harness::until(scene.stage.images(), stuck, "its second attempt has failed too", |image: &GoldenImage| {
        let target = image.status.as_ref().and_then(|status| status.targets.first().cloned()).unwrap_or_default();
        target.attempts >= 2 && target.started_time.is_none() && target.last_failure.is_some()
    })
    .await;
    let journal = scene.stage.cdi.journal();
    // The first importer of a claim.
    let begun = |name: &str| {
        let mut entries = journal.iter().enumerate().skip(before);
        let first = entries.find(|(_, entry)| entry.key.name == golden(name) && entry.what == What::Attempt(1));
        first.map(|(at, _)| at).unwrap_or_else(|| panic!("{name} was begun"))
    };
    let order: Vec<_> = rest.into_iter().chain([stuck]).map(begun).collect();
    assert!(order.is_sorted(), "{rest:?} and then {stuck} began at {order:?}");
    scene.stage.cdi.unscript(&golden(stuck));
    scene.retry(stuck, "1").await;
    scene.stage.until(stuck, "Ready", "True").await;
    daemon
}

/// Both slots are held by imports whose disk the spool loses. One image is suspended, of the other the ConfigMap with its CA is gone: each
/// says so and gives its turn back, and goes on alone when the cause goes.
pub async fn what_cannot_be_imported_for_now_keeps_no_turn(scene: &Scene<'_>, daemon: Daemon) -> Daemon {
    daemon.terminate(harness::PATIENCE).await.expect("it ends when asked to");
    drop(daemon);
    let paced = json!({ "maxConcurrentImports": 2, "importDeadline": "10m" });
    let daemon = scene.stage.daemon_with("held", &paced);
    daemon.ready().await;
    let maps: Api<ConfigMap> = Api::namespaced(scene.stage.cluster.admin(), NAMESPACE);
    let map = json!({ "metadata": { "name": "authority" }, "data": { "ca.crt": Authority::new().pem() } });
    let map: ConfigMap = serde_json::from_value(map).expect("ConfigMap");
    maps.create(&PostParams::default(), &map).await.expect("created");
    let (suspended, without) = ("held-suspended", "held-without");
    for (name, seed) in [(suspended, 80), (without, 81)] {
        scene.stage.cdi.script(&golden(name), Behaviour::StuckAt(30.0));
        scene.disk(name, seed);
    }
    scene.image(suspended, json!([{}])).await;
    let spec = json!({
        "source": { "http": { "url": format!("http://{}/{without}", scene.nginx.http) } },
        "caBundleRef": { "name": "authority", "key": "ca.crt" },
    });
    let object = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": without }, "spec": spec });
    let object: GoldenImage = serde_json::from_value(object).expect("object");
    scene.stage.images().create(&PostParams::default(), &object).await.expect("created");
    for name in [suspended, without] {
        scene.stage.until_reason(name, "Importing").await;
        harness::until(scene.volumes().await, &golden(name), "its import is begun", |_| true).await;
    }
    daemon.kill();
    drop(daemon);
    std::fs::remove_dir_all(scene.stage.spool_of("held")).expect("the spool's volume is lost");
    maps.delete("authority", &DeleteParams::default()).await.expect("deleted");
    let suspend = async |suspend: bool| {
        let patch = Patch::Merge(json!({ "spec": { "suspend": suspend } }));
        scene.stage.images().patch(suspended, &PatchParams::default(), &patch).await.expect("patched");
    };
    suspend(true).await;

    let daemon = scene.stage.daemon_with("held", &paced);
    daemon.ready().await;
    for (name, reason, word) in [(suspended, "Suspended", "spec.suspend: false"), (without, "ReferenceNotFound", "authority")] {
        let ready = scene.until_reason(name, reason).await;
        assert!(ready.message.contains(word), "{}", ready.message);
        harness::until_gone(scene.volumes().await, &golden(name)).await;
        scene.stage.cdi.unscript(&golden(name));
    }
    scene.disk("held-not", 82);
    scene.image("held-not", json!([{}])).await;
    scene.stage.until("held-not", "Ready", "True").await;
    suspend(false).await;
    maps.create(&PostParams::default(), &map).await.expect("created again");
    for name in [suspended, without] {
        scene.stage.until(name, "Ready", "True").await;
        let target = scene.target(name, 0).await;
        assert!(target.attempts == 1 && target.last_failure.is_none(), "no attempt failed: {target:?}");
    }
    daemon
}
