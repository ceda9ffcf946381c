//! Goldens that go, and goldens that are taken over, while the daemon is killed at each of its writes or its requests fail at
//! random: the same end, no second DataVolume, nothing deleted that is needed, and no byte from upstream.
//!
//! None of this touches the spool, so there is no sync or rename to be killed at (`kill.rs` has those).

use super::{
    harness::{self, Daemon, Mark, condition, eventually, tell, until, until_gone},
    proxy::{ApiProxy, Faults, Side},
    stage::{CATALOG, Launch},
    world::{Dice, World, comparable, difference, golden, rounds},
};
use golden_catalog::{api::GoldenImage, rules::marks};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Mutex, time::Duration};

/// What becomes of an image or of a golden.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Story {
    /// The whole image is retired while a VM needs it, which goes later.
    Retired,
    /// The image is deleted with the policy `Delete`.
    Deleted,
    /// One of two targets is taken out.
    TakenOut,
    /// The golden of an image that is gone is retired by its own name.
    Named,
    /// A former catalog's DataVolume and claim are taken over.
    Adopted,
}

const ALL: [Story; 5] = [Story::Retired, Story::Deleted, Story::TakenOut, Story::Named, Story::Adopted];

/// Where tenants' machines are.
const TENANT: &str = "tenant-of-stories";

impl Story {
    /// Its image in a round.
    fn image(self, round: &str) -> String {
        format!("{round}-{}", format!("{self:?}").to_lowercase())
    }

    /// The golden that goes in it.
    fn goes(self, image: &str) -> Option<String> {
        match self {
            Self::Retired | Self::Deleted | Self::Named => Some(golden(image)),
            Self::TakenOut => Some(format!("{}-wffc", golden(image))),
            Self::Adopted => None,
        }
    }
}

/// What goes wrong in a round.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// The daemon is killed on one side of its n-th write.
    Kill(usize, Side),
    /// Requests fail at random.
    Faults(u64),
}

/// A golden's UIDs, and what upstream sent of its artifact.
type Before = ([Option<String>; 2], (u64, usize));

/// What all rounds have.
struct Stories {
    world: World,
    proxy: ApiProxy,
    daemon: Mutex<Option<Daemon>>,
    ends: BTreeMap<Story, String>,
    /// UIDs of an image's golden that nothing is done to.
    neighbour: [Option<String>; 2],
}

fn merge(patch: Value) -> Patch<Value> {
    Patch::Merge(patch)
}

const NEIGHBOUR: &str = "stories-neighbour";

impl Stories {
    async fn begin() -> Option<Self> {
        let world = World::enter("").await?;
        let proxy = ApiProxy::start(world.cluster.control_plane(), None).await;
        world.cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {TENANT}}}}}")).await;
        let mut stories = Self { world, proxy, daemon: Mutex::default(), ends: BTreeMap::new(), neighbour: [None, None] };
        stories.launch();
        let world = &stories.world;
        if world.stage.images().get_opt(NEIGHBOUR).await.expect("asked").is_none() {
            world.disk(NEIGHBOUR, 3001);
            world.image(NEIGHBOUR, "replicated").await;
        }
        world.stage.until(NEIGHBOUR, "Ready", "True").await;
        stories.neighbour = stories.uids(&golden(NEIGHBOUR)).await;
        Some(stories)
    }

    fn launch(&self) {
        let lease = json!({ "duration": "15s", "renewDeadline": "10s", "retryPeriod": "500ms" });
        let settings = json!({ "lease": lease, "retireWait": "1s", "consumersInterval": "1s", "maxConcurrentImports": 10 });
        let kubeconfig = Some(self.proxy.kubeconfig(&self.world.stage.kubeconfig));
        let daemon = self.world.stage.launch("stories", Launch { kubeconfig, settings, ..Launch::default() });
        *self.daemon.lock().expect("no panic under this lock") = Some(daemon);
    }

    /// Kills the daemon, and gives its Lease up.
    async fn kill(&self) {
        let daemon = self.daemon.lock().expect("no panic under this lock").take();
        self.world.kill(daemon.expect("a daemon")).await;
    }

    /// The UIDs of a golden's DataVolume and claim.
    async fn uids(&self, golden: &str) -> [Option<String>; 2] {
        let uid = async |api: Api<DynamicObject>| api.get_opt(golden).await.expect("asked").and_then(|object| object.uid());
        [uid(self.world.volumes().await).await, uid(self.world.claims().await).await]
    }

    async fn machines(&self) -> Api<DynamicObject> {
        self.world.cluster.api(&self.world.cluster.admin(), "kubevirt.io/v1", "VirtualMachine", TENANT).await
    }

    /// Makes what a story begins with.
    async fn set(&self, story: Story, image: &str) {
        let world = &self.world;
        world.disk(image, image.bytes().fold(11_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte))));
        match story {
            Story::Retired | Story::Deleted | Story::Named => world.image(image, "replicated").await,
            Story::TakenOut => world.create(image, json!([{ "storageClassName": "replicated" }, { "storageClassName": "wffc" }])).await,
            Story::Adopted => {
                let former = json!({
                    "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
                    "metadata": {
                        "name": golden(image), "namespace": CATALOG,
                        "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "true" },
                    },
                    "spec": {
                        "source": { "http": { "url": world.url(image) } },
                        "storage": { "resources": { "requests": { "storage": "1Gi" } }, "storageClassName": "replicated" },
                    },
                });
                world.cluster.apply(&former.to_string()).await;
            }
        }
    }

    /// Waits until a story can begin.
    async fn settle(&self, story: Story, image: &str) {
        let world = &self.world;
        if story == Story::Adopted {
            until(world.volumes().await, &golden(image), "CDI has imported it", |volume: &DynamicObject| {
                volume.data["status"]["phase"] == "Succeeded"
            })
            .await;
            return;
        }
        world.stage.until(image, "Ready", "True").await;
        let images = world.stage.images();
        match story {
            Story::Retired => {
                let machine = machine(image);
                self.machines().await.create(&PostParams::default(), &machine).await.expect("a VM");
            }
            Story::Deleted => {
                let policy = merge(json!({ "spec": { "deletionPolicy": "Delete" } }));
                images.patch(image, &PatchParams::default(), &policy).await.expect("a free field");
                until(images, image, "our finalizer is on it", |image: &GoldenImage| !image.finalizers().is_empty()).await;
            }
            Story::Named => {
                images.delete(image, &DeleteParams::default()).await.expect("deleted");
                until_gone(images, image).await;
            }
            Story::TakenOut | Story::Adopted => {}
        }
    }

    /// What a person does in a story, and what is to be seen of it, whatever happens to the daemon meanwhile.
    async fn play(&self, story: Story, image: &str) {
        let (world, hand) = (&self.world, PatchParams::default());
        let images = world.stage.images();
        match story {
            Story::Retired => {
                images.patch(image, &hand, &merge(json!({ "spec": { "retire": true } }))).await.expect("a free field");
                let claims = world.claims().await;
                let is_closed = |claim: &DynamicObject| claim.annotations().contains_key(marks::RETIRING);
                let claim = until(claims.clone(), &golden(image), "no new pools", is_closed).await;
                assert!(claim.metadata.deletion_timestamp.is_none(), "{image}: a VM needs it");
                // The mark is taken off by hand, and put on again.
                let off = merge(json!({ "metadata": { "annotations": { marks::RETIRING: null } } }));
                claims.patch(&golden(image), &hand, &off).await.expect("taken off");
                until(claims.clone(), &golden(image), "the mark is back", is_closed).await;
                until(images, image, "who needs it is told", |image: &GoldenImage| {
                    condition(image, "Retiring").is_some_and(|told| told.message.contains(&format!("{TENANT}/VirtualMachine/")))
                })
                .await;
                let claim = claims.get(&golden(image)).await.expect("a VM needs it");
                assert!(claim.metadata.deletion_timestamp.is_none(), "{image}: a VM needs it");
                self.machines().await.delete(image, &DeleteParams::default()).await.expect("a consumer always goes");
            }
            Story::Deleted => drop(images.delete(image, &DeleteParams::default()).await.expect("deletion is asked for")),
            Story::TakenOut => {
                let patch = merge(json!({ "spec": { "storage": { "targets": [{ "storageClassName": "replicated" }] } } }));
                images.patch(image, &hand, &patch).await.expect("a target may be taken out");
            }
            Story::Named => {
                let name = golden(image);
                harness::cli(Some(world.cluster.admin_kubeconfig()), ["retire", &name]).await.ok();
            }
            Story::Adopted => world.image(image, "replicated").await,
        }
        if let Some(golden) = story.goes(image) {
            until_gone(world.volumes().await, &golden).await;
            until_gone(world.claims().await, &golden).await;
        }
        match story {
            Story::Retired => {
                until(world.stage.images(), image, "retired, and nobody uses it", |image: &GoldenImage| {
                    condition(image, "Ready").is_some_and(|ready| ready.reason == "Retired")
                        && condition(image, "InUse").is_some_and(|used| used.status == "False")
                })
                .await;
            }
            Story::Deleted => until_gone(world.stage.images(), image).await,
            Story::TakenOut => {
                until(world.stage.images(), image, "one target is left, and Ready", |image: &GoldenImage| {
                    image.status.as_ref().is_some_and(|status| status.targets.len() == 1)
                        && condition(image, "Ready").is_some_and(|ready| ready.status == "True")
                        && condition(image, "Retiring").is_none()
                })
                .await;
            }
            Story::Named => {}
            Story::Adopted => {
                world.stage.until(image, "Ready", "True").await;
                for api in [world.volumes().await, world.claims().await] {
                    until(api, &golden(image), "it is marked", |object: &DynamicObject| {
                        object.labels().get(marks::GOLDEN).is_some_and(|value| value == marks::GOLDEN_VALUE)
                    })
                    .await;
                }
            }
        }
    }

    /// Everything about a story's image and goldens that may not depend on what happened on the way.
    async fn end_state(&self, image: &str) -> Result<String, String> {
        let world = &self.world;
        let object = world.stage.images().get_opt(image).await.map_err(|error| error.to_string())?;
        let mut there = BTreeMap::new();
        for (kind, api) in [("volumes", world.volumes().await), ("claims", world.claims().await)] {
            let all = api.list(&Default::default()).await.map_err(|error| error.to_string())?.items;
            let own = all.into_iter().filter(|object| object.name_any().starts_with(&golden(image)));
            let ours = |key: &str| key.contains("cozystack.io/") || key.starts_with("helm.sh/");
            let marks = own.map(|object| {
                let labels: Vec<_> = object.labels().iter().filter(|(key, _)| ours(key)).collect();
                let annotations: Vec<_> = object.annotations().iter().filter(|(key, _)| ours(key)).collect();
                json!({ "name": object.name_any(), "labels": labels, "annotations": annotations })
            });
            there.insert(kind, marks.collect::<Vec<_>>());
        }
        let secret = world.secrets(CATALOG).get_opt(&golden(image)).await.map_err(|error| error.to_string())?;
        let status = serde_json::to_value(object.as_ref().and_then(|object| object.status.as_ref())).expect("JSON");
        let state = json!({
            "finalizers": object.as_ref().map(|object| object.finalizers().to_vec()), "spec": object.as_ref().map(|object| &object.spec),
            "status": status, "there": there, "headers": secret.is_some(),
        });
        Ok(comparable(image, &status, state))
    }

    /// Stories side by side, each with an image of its own. Gives whether the trouble came before all were over, and how many writes
    /// there were.
    async fn round(&mut self, round: &str, stories: &[Story], trouble: Trouble) -> (bool, usize) {
        let images: Vec<_> = stories.iter().map(|story| (*story, story.image(round))).collect();
        for (story, image) in &images {
            self.set(*story, image).await;
        }
        for (story, image) in &images {
            self.settle(*story, image).await;
        }
        let mut before = BTreeMap::new();
        for (_, image) in &images {
            before.insert(image.clone(), (self.uids(&golden(image)).await, self.world.sent(image)));
        }
        let mark = self.world.cluster.audit_mark().await;
        self.proxy.reset();
        match trouble {
            Trouble::Kill(n, side) => self.proxy.trap(n, side),
            Trouble::Faults(seed) => self.proxy.faults(Faults { refused: 80, denied: 40, cut: 30, hung: 0 }, seed),
        }
        let is_hit = {
            let play = futures::future::join_all(images.iter().map(|(story, image)| self.play(*story, image)));
            let mut play = std::pin::pin!(play);
            let is_hit = tokio::select! {
                _ = &mut play => false,
                () = self.proxy.trapped() => true,
            };
            if is_hit {
                self.kill().await;
                self.proxy.reset();
                self.launch();
                play.await;
            }
            is_hit
        };
        for (story, image) in &images {
            self.ends_as_ever(*story, image).await;
        }
        let (counted, hurt) = (self.proxy.counted(), self.proxy.hurt());
        self.proxy.reset();
        if let Trouble::Faults(_) = trouble {
            tell(&format!("{round}: {hurt} requests failed on the way"));
        }
        self.audit(&images, &before, mark).await;
        for (_, image) in &images {
            self.world.clear_away(image).await;
        }
        (is_hit, counted)
    }

    /// Waits until it is as at the end of any other round.
    async fn ends_as_ever(&mut self, story: Story, image: &str) {
        if let Some(expected) = self.ends.get(&story) {
            eventually(&format!("{image} ends as any other"), async || {
                let state = self.end_state(image).await?;
                if state == *expected { Ok(()) } else { Err(difference(expected, &state)) }
            })
            .await;
        } else {
            let end = eventually("an end that stays", async || {
                let end = self.end_state(image).await?;
                tokio::time::sleep(Duration::from_secs(2)).await;
                let later = self.end_state(image).await?;
                if end == later { Ok(end) } else { Err(difference(&end, &later)) }
            })
            .await;
            self.ends.insert(story, end);
        }
    }

    /// Nothing was made, nothing was deleted that did not have to go, and nothing was asked of upstream.
    async fn audit(&self, images: &[(Story, String)], before: &BTreeMap<String, Before>, mark: Mark) {
        let writes = self.world.writes_since(mark).await;
        let goes: Vec<_> = images.iter().filter_map(|(story, image)| story.goes(image)).collect();
        let made: Vec<_> = writes.iter().filter(|request| request.verb == "create" && request.resource == "datavolumes").collect();
        assert!(made.is_empty(), "nothing is imported: {made:#?}");
        let deleted = writes.iter().filter(|request| request.verb.starts_with("delete") && request.resource != "secrets");
        let needed: Vec<_> = deleted.filter(|request| request.resource != "datavolumes" || !goes.contains(&request.name)).collect();
        assert!(needed.is_empty(), "deleted although it is needed: {needed:#?}");
        let strange: Vec<_> = writes.iter().filter(|request| request.name == NEIGHBOUR || request.name == golden(NEIGHBOUR)).collect();
        assert!(strange.is_empty(), "nobody asked anything of it: {strange:#?}");
        assert_eq!(self.uids(&golden(NEIGHBOUR)).await, self.neighbour);
        for (story, image) in images {
            let (uids, sent) = &before[image];
            assert_eq!(self.world.sent(image), *sent, "{image}: a byte from upstream");
            if matches!(story, Story::TakenOut | Story::Adopted) {
                assert_eq!(self.uids(&golden(image)).await, *uids, "{image}: another golden");
            }
        }
    }
}

/// A stopped VM of an image's name that clones its golden when it starts.
fn machine(image: &str) -> DynamicObject {
    let storage = json!({ "storageClassName": "replicated", "resources": { "requests": { "storage": "1Gi" } } });
    let source = json!({ "pvc": { "namespace": CATALOG, "name": golden(image) } });
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": image },
        "spec": {
            "runStrategy": "Halted",
            "dataVolumeTemplates": [{ "metadata": { "name": "disk" }, "spec": { "source": source, "storage": storage } }],
            "template": { "metadata": {}, "spec": { "domain": { "devices": {} }, "volumes": [{ "name": "disk", "dataVolume": { "name": "disk" } }] } },
        },
    });
    serde_json::from_value(object).expect("a VirtualMachine")
}

#[tokio::test(flavor = "multi_thread")]
async fn goldens_go_and_are_taken_over_whatever_happens_to_the_daemon() {
    let Some(mut all) = Stories::begin().await else { return };
    let mut dice = Dice::new("writes of retirements and adoptions to be killed at, and requests of theirs that fail");
    let (_, of) = all.round("hurt-ends", &ALL, Trouble::Faults(dice.roll(usize::MAX) as u64)).await;
    let count = rounds(1);
    let mut drawn = BTreeMap::new();
    for round in 0..count {
        // Some of those writes were tried again; without trouble they are fewer.
        let (n, side) = (1 + dice.roll(of * 2 / 3), if dice.roll(2) == 0 { Side::Before } else { Side::After });
        let (is_hit, _) = all.round(&format!("drawn-ends-{round}"), &ALL, Trouble::Kill(n, side)).await;
        drawn.insert(format!("{side:?} {n}"), is_hit);
    }
    all.kill().await;
    tell(&format!("killed at {count} drawn of the {of} writes of four retirements and an adoption: {drawn:?}"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a longer round: make soak"]
async fn killed_before_and_after_every_write_of_a_retirement_or_an_adoption_it_comes_to_the_same_end() {
    let Some(mut all) = Stories::begin().await else { return };
    for story in ALL {
        let mut count = 0;
        for side in [Side::Before, Side::After] {
            for n in 1.. {
                let round = format!("every-{}-{n}", if side == Side::Before { "before" } else { "after" });
                if !all.round(&round, &[story], Trouble::Kill(n, side)).await.0 {
                    break;
                }
                count += 1;
            }
        }
        tell(&format!("{story:?}: killed before and after every write: {count} rounds"));
    }
    let mut dice = Dice::new("requests of retirements and adoptions that fail");
    for round in 0..rounds(5) {
        all.round(&format!("every-hurt-{round}"), &ALL, Trouble::Faults(dice.roll(usize::MAX) as u64)).await;
    }
    all.kill().await;
}
