//! What exists is taken over without a byte, what was decided stays decided: goldens of the former catalogs, edits of
//! entries, the CRD's way from release to release, and back again.

#[path = "cdi/mod.rs"]
mod cdi;
#[path = "harness/mod.rs"]
mod harness;
#[path = "stage/mod.rs"]
mod stage;
#[path = "upstream/mod.rs"]
mod upstream;

#[path = "adoption/back.rs"]
mod back;
#[path = "adoption/crd.rs"]
mod crd;
#[path = "adoption/former.rs"]
mod former;
#[path = "adoption/pool.rs"]
mod pool;
#[path = "adoption/restore.rs"]
mod restore;
#[path = "adoption/scene.rs"]
mod scene;
#[path = "adoption/twins.rs"]
mod twins;

use harness::Needs;
use serde_json::json;
use stage::{Options, Stage};

static CLUSTER: harness::Shared =
    harness::Shared::new(|| harness::Options::default().controller_manager().foreign_crds(harness::Flavor::Trimmed));

/// One story on one stage, because the namespaces' names are fixed.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_moves_to_the_catalog_and_back() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let (nginx, _) = stage::upstream();
    let stage = Stage::set(cluster, Options { settings: json!({ "upstreamCheck": "1h" }), ..Options::default() }).await;
    let scene = scene::Scene::new(stage, nginx);

    crd::an_older_crd_is_reported_and_brought_forward(&scene).await;
    crd::a_crd_that_loses_fields_during_a_term_stops_the_leader(&scene).await;
    crd::a_follower_reads_anew_what_it_read_under_an_older_crd(&scene).await;
    crd::a_newer_crd_is_never_taken_back(&scene).await;

    former::install(&scene).await;
    let pool = pool::Pool::install(&scene).await;
    let before = scene.goldens().await;
    former::plan_tells_it_beforehand(&scene).await;
    let worked = former::work(&scene);
    let seen = scene.watch_ready();
    let daemon = scene.stage.daemon("a");
    daemon.ready().await;
    scene.list(former::entries(&scene)).await;
    former::goldens_are_taken_over(&scene, &before, worked).await;
    pool.is_not_replaced(&scene, "pool").await;
    former::what_differs_is_left_alone_and_told(&scene, &before).await;
    former::what_cannot_be_told_is_taken_over_when_asked(&scene, &before).await;
    former::the_old_list_can_be_emptied_and_filled_again(&scene, &before).await;
    pool.is_not_replaced(&scene, "pool-today").await;
    former::an_entry_leaves_and_comes_back(&scene, &before).await;
    former::edits_are_told_and_fields_that_leave_are_taken_off(&scene).await;
    former::plan_tells_edits(&scene).await;
    twins::whoever_is_first_stays_first(&scene).await;
    let daemon = twins::two_releases_share_one_catalog(&scene, daemon, &before).await;
    former::a_deleted_image_and_a_deleted_crd_take_nothing_with_them(&scene, &before).await;
    let guarded = restore::restored_goldens_are_reported_and_taken_over_when_asked(&scene, daemon).await;
    back::the_old_charts_come_back_and_nothing_stands_in_their_way(&scene, guarded, &pool).await;
    assert_eq!(seen.not_ready(&former::ADOPTED), Vec::<String>::new(), "Ready was False in between");
}
