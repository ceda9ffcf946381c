//! One image in every class that needs it: several targets, sizes, quotas, and trouble that is told and heals.
//!
//! PVs and PVCs are bound, garbage is collected and quotas are counted by a real kube-controller-manager; CDI is the stand-in,
//! scripted to what CDI v1.64 was seen to do. What needs real storage is in `storage/real.rs` and says what.

#[path = "cdi/mod.rs"]
mod cdi;
#[path = "storage/copies.rs"]
mod copies;
#[path = "harness/mod.rs"]
mod harness;
#[path = "storage/late.rs"]
mod late;
#[path = "storage/leaving.rs"]
mod leaving;
#[path = "storage/orders.rs"]
mod orders;
#[path = "storage/pacing.rs"]
mod pacing;
#[path = "continuity/proxy.rs"]
mod proxy;
#[path = "storage/real.rs"]
mod real;
#[path = "storage/refusals.rs"]
mod refusals;
#[path = "storage/scene.rs"]
mod scene;
#[path = "stage/mod.rs"]
mod stage;
#[path = "storage/targets.rs"]
mod targets;
#[path = "storage/trouble.rs"]
mod trouble;
#[path = "upstream/mod.rs"]
mod upstream;

use futures::FutureExt as _;
use harness::Needs;
use scene::Scene;

static CLUSTER: harness::Shared =
    harness::Shared::new(|| harness::Options::default().controller_manager().foreign_crds(harness::Flavor::Trimmed));

/// One story on one stage, because the namespaces' names are fixed; each chapter has images of its own.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_in_every_class() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let scene = Box::pin(Scene::set(cluster)).await;
    let daemon = scene.stage.daemon("a");
    daemon.ready().await;

    // Each on the heap: all of them in one future would be more than a test's stack.
    let mut story = Story::default();
    story.tell("one fetch serves several classes", Box::pin(targets::one_fetch_serves_several_classes(&scene))).await;
    story.tell("a target is added later", Box::pin(targets::a_target_is_added_later_and_none_is_exchanged(&scene))).await;
    story.tell("two targets of one class", Box::pin(targets::two_targets_of_one_class_are_one_golden(&scene))).await;
    story.tell("sizes and modes", Box::pin(targets::sizes_and_modes_are_settled_once(&scene))).await;
    story.tell("an undersized sibling", Box::pin(targets::a_target_that_cannot_hold_the_disk_is_told_before_the_transfer(&scene))).await;
    story.tell("selected namespaces", Box::pin(targets::a_golden_says_whom_it_is_for_before_that_is_enforced(&scene))).await;
    story.tell("a moved default", Box::pin(targets::a_moved_default_is_told_and_changes_nothing(&scene))).await;
    story.tell("a class of another driver", Box::pin(targets::a_class_of_another_driver_is_told_and_changes_nothing(&scene))).await;
    story.tell("a quota", Box::pin(refusals::a_quota_is_named_and_waited_for(&scene))).await;
    story.tell("a foreign Secret", Box::pin(refusals::a_foreign_secret_is_left_alone(&scene))).await;
    story.tell("a Secret that stays", Box::pin(refusals::a_secret_that_may_not_be_deleted_keeps_no_golden_waiting(&scene))).await;
    story.tell("a deleted image's unfinished import", Box::pin(refusals::a_deleted_images_unfinished_import_goes_with_it(&scene))).await;
    story.tell("every trouble", Box::pin(trouble::every_trouble_is_told_and_heals_by_itself(&scene))).await;
    story.tell("a proxy in the way", Box::pin(trouble::a_proxy_in_the_way_is_named(&scene))).await;
    story.tell("a pod that holds a golden", Box::pin(trouble::a_pod_that_holds_a_golden_is_named(&scene))).await;
    story.tell("a collected DataVolume", Box::pin(orders::a_collected_datavolume_is_no_loss(&scene))).await;
    story.tell("a lost claim", Box::pin(orders::a_lost_claim_is_told(&scene))).await;
    story.tell("a claim that nobody recorded", Box::pin(orders::a_claim_that_nobody_recorded_is_not_believed(&scene))).await;
    let daemon = Box::pin(refusals::a_policy_that_refuses_is_told_until_it_allows(&scene, daemon)).await;
    let daemon = Box::pin(trouble::attempts_are_kept_spent_and_begun_anew(&scene, daemon)).await;
    let daemon = Box::pin(leaving::a_target_that_is_taken_out_goes_when_nothing_needs_it(&scene, daemon)).await;
    let daemon = Box::pin(copies::a_late_target_is_copied_without_upstream(&scene, daemon)).await;
    let daemon = Box::pin(pacing::the_oldest_comes_first_and_a_stuck_one_starves_nobody(&scene, daemon)).await;
    let daemon = Box::pin(pacing::what_cannot_be_imported_for_now_keeps_no_turn(&scene, daemon)).await;
    // With a long deadline: what is held for the others to be told of it does not end meanwhile.
    story.tell("a shared quota", Box::pin(refusals::a_quota_with_room_for_one_import_is_shared_in_turn(&scene))).await;
    story.end();
    drop(daemon);
}

/// Chapters that need nothing of each other: one that fails does not keep the others from being told.
#[derive(Default)]
struct Story {
    failed: Vec<&'static str>,
}

impl Story {
    async fn tell(&mut self, what: &'static str, chapter: impl Future<Output = ()>) {
        let began = std::time::Instant::now();
        let outcome = std::panic::AssertUnwindSafe(chapter).catch_unwind().await;
        println!("{what}: {} in {:.1} s", if outcome.is_ok() { "told" } else { "FAILED" }, began.elapsed().as_secs_f64());
        if outcome.is_err() {
            self.failed.push(what);
        }
    }

    fn end(self) {
        assert!(self.failed.is_empty(), "chapters that failed: {:?}", self.failed);
    }
}
