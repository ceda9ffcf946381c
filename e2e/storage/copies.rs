//! A target that is added when nobody has the artifact any more.

use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::json;

use super::{
    cdi::What,
    harness::{self, Daemon},
    scene::Scene,
    stage::{CATALOG, images},
};

/// The spool is empty (a new daemon on a new volume) and upstream has lost the file: CDI copies a golden of the image.
pub async fn a_late_target_is_copied_without_upstream(scene: &Scene<'_>, daemon: Daemon) -> Daemon {
    let raw = scene.disk("late", 40);
    scene.image("late", json!([{}])).await;
    scene.stage.until("late", "Ready", "True").await;
    let digest = scene.stage.images().get("late").await.expect("image").status.expect("status").disk.expect("disk").digest;
    daemon.terminate(harness::PATIENCE).await.expect("it ends when asked to");
    drop(daemon);
    std::fs::remove_file(scene.nginx.files().join("late")).expect("upstream loses it");
    let daemon = scene.stage.daemon("empty");
    daemon.ready().await;

    scene.retarget_and_see("late", json!([{}, { "storageClassName": "other" }, { "storageClassName": "files" }])).await;
    for (golden, index) in [("vm-default-images-late-other", 1), ("vm-default-images-late-files", 2)] {
        harness::until(scene.claims().await, golden, "the copy's claim", |_| true).await;
        scene.stage.until("late", "Ready", "True").await;
        // The stand-in notes it when it has let go of the claim, which may be after the golden is Ready.
        scene.stage.cdi.until_journal(CATALOG, golden, |did| did.iter().any(|what| matches!(what, What::Cloned { .. }))).await;
        let strategies: Vec<_> = scene
            .stage
            .cdi
            .journal_of(CATALOG, golden)
            .into_iter()
            .filter_map(|what| if let What::Cloned { strategy, source } = what { Some((strategy, source.name)) } else { None })
            .collect();
        assert_eq!(strategies, [("copy".to_owned(), "vm-default-images-late".to_owned())]);
        assert!(scene.stage.cdi.requests_of(CATALOG, golden).is_empty(), "nothing came from the spool");
        let target = scene.target("late", index).await;
        assert!(target.claim_uid.is_some() && target.attempts == 1, "{target:?}");
        // Marks are written after the status.
        harness::until(scene.claims().await, golden, "it says which disk it holds", |claim: &DynamicObject| {
            claim.annotations().get("kubernetes-worker-image.cozystack.io/disk-digest") == Some(&digest)
        })
        .await;
    }
    images::same_content(&scene.stage.disk("vm-default-images-late-other").await, "raw", &raw, "raw");
    assert_eq!(scene.fetches("late"), 1, "upstream was not asked again");
    daemon
}
