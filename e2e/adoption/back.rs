//! The way back (docs/migration.md): the former charts installed again over adopted goldens while the guard stands, and after it is gone. Nothing of ours is in Helm's way.

use kube::{
    ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    former::{self, SYSTEM},
    harness::{self, Daemon},
    pool::Pool,
    scene::{Goldens, Scene},
    stage::NAMESPACE,
};

const VMS: &str = "vm-default-images";
const WORKERS: &str = "worker-images";
const NOBLE: &str = "vm-default-images-noble";
const FRESH: &str = "vm-default-images-fresh";

/// The goldens that must be the same all along.
fn adopted(all: &Goldens) -> Goldens {
    let is_one = |name: &str| name.ends_with(NOBLE) || name.contains("talos-worker-");
    all.iter().filter(|(name, _)| is_one(name)).map(|(name, uid)| (name.clone(), uid.clone())).collect()
}

async fn helm(scene: &Scene<'_>, arguments: &[&str]) -> harness::Output {
    scene.stage.cluster.helm(arguments.iter().chain(&["--namespace", SYSTEM])).await
}

/// `helm VERB` of a former chart under its former name.
async fn chart(scene: &Scene<'_>, verb: &str, name: &str, list: &Value) {
    let path = harness::repository().join("e2e/charts").join(name);
    let (path, images, factory) =
        (path.display().to_string(), format!("images={list}"), format!("imageFactoryURL={}", scene.url("").trim_end_matches('/')));
    helm(scene, &[verb, name, &path, "--set-json", &images, "--set", &factory]).await.ok();
}

async fn imported(scene: &Scene<'_>, name: &str) {
    harness::until(scene.volumes().await, name, "CDI imports it as ever", |volume: &DynamicObject| {
        volume.data["status"]["phase"] == "Succeeded"
    })
    .await;
}

/// Starts the daemon with the guard on, and waits until that is asked.
pub async fn guarded(scene: &Scene<'_>) -> (Daemon, Daemon) {
    scene.stage.judge(former::entries(scene)).await;
    let daemon = scene.stage.daemon("a");
    let admission = scene.stage.admission("admission").await;
    daemon.ready().await;
    admission.ready().await;
    let (volumes, dry) = (scene.volumes().await, DeleteParams { dry_run: true, ..DeleteParams::default() });
    harness::eventually("a golden is guarded", async || match volumes.delete(NOBLE, &dry).await {
        Err(kube::Error::Api(refused)) if refused.message.contains("is a golden image") => Ok(()),
        other => Err(format!("{:?}", other.map(drop))),
    })
    .await;
    (daemon, admission)
}

pub async fn the_old_charts_come_back_and_nothing_stands_in_their_way(
    scene: &Scene<'_>,
    (daemon, admission): (Daemon, Daemon),
    pool: &Pool,
) {
    let before = adopted(&scene.goldens().await);
    assert_eq!(before.len(), 4, "{before:?}");
    let image = |name: &str, file: &str| json!({ "name": name, "url": scene.url(file), "storage": "1Gi" });
    let (noble, fresh) = (image("noble", "noble.img"), image("fresh", "hand.img"));

    // The release whose list was emptied is gone altogether, and comes back with its list and one image more.
    chart(scene, "upgrade", VMS, &json!([])).await;
    helm(scene, &["uninstall", VMS]).await.ok();
    chart(scene, "install", VMS, &json!([noble, fresh])).await;
    imported(scene, FRESH).await;
    // Upgraded, rolled back, upgraded: what is not ours comes and goes, what is ours stays.
    chart(scene, "upgrade", VMS, &json!([noble])).await;
    harness::until_gone(scene.volumes().await, FRESH).await;
    harness::until_gone(scene.claims().await, FRESH).await;
    helm(scene, &["rollback", VMS]).await.ok();
    imported(scene, FRESH).await;
    assert_eq!(adopted(&scene.goldens().await), before);
    // Pools by the old pool chart: the one that is there, and a new one, whose machine template is judged.
    pool.is_upgraded(scene, "pool-today", &["--set", "maxReplicas=5"]).await;
    drop(Pool::install(scene).await);

    // While nobody answers for the guard, Helm has its way with the old charts all the same.
    admission.terminate(harness::PATIENCE).await.expect("it ends when asked to");
    let workers = json!([{ "schematicID": former::SCHEMATIC, "version": "v1.13.6", "storage": "1Gi" }]);
    helm(scene, &["uninstall", WORKERS]).await.ok();
    chart(scene, "install", WORKERS, &workers).await;
    chart(scene, "upgrade", VMS, &json!([noble])).await;
    harness::until_gone(scene.volumes().await, FRESH).await;
    assert_eq!(adopted(&scene.goldens().await), before, "the old charts take their goldens up as they are");
    for image in former::ADOPTED {
        scene.stage.until(image, "Ready", "True").await;
    }

    // The catalog goes, and the goldens are the old chart's alone: it may even delete one, as it always could.
    daemon.terminate(harness::PATIENCE).await.expect("it ends when asked to");
    scene.stage.cluster.helm(["uninstall", "kubernetes-worker-image", "--namespace", NAMESPACE]).await.ok();
    assert_eq!(adopted(&scene.goldens().await), before);
    let volumes = scene.volumes().await;
    let owner = volumes.get(NOBLE).await.expect("it is there");
    assert_eq!(owner.annotations().get("meta.helm.sh/release-name").map(String::as_str), Some(VMS));
    let undo = Patch::Merge(json!({ "metadata": { "annotations": { "helm.sh/resource-policy": null } } }));
    volumes.patch(NOBLE, &PatchParams::default(), &undo).await.expect("the mark is off");
    chart(scene, "upgrade", VMS, &json!([])).await;
    harness::until_gone(volumes, NOBLE).await;
    harness::until_gone(scene.claims().await, NOBLE).await;
}
