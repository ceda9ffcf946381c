//! The fence around goldens that are still being made (R23): a clone of one is admitted, and waits for it, so it goes as a finished one does,
//! though CDI may not even have made its claim.

use std::time::Duration;

use golden_catalog::{api::GoldenImage, rules::marks};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    cdi::Behaviour,
    fence::{Dice, RACE_WAIT, REQUEST_TIMEOUT},
    harness::{self, Cluster, TestNamespace, eventually, until, until_gone},
    objects::{Disk, Form, RIGHT, object},
    stage::{self, CATALOG, Launch, Options, Stage, images},
    stand::{create, is_admitted, stand},
};

/// What an import is made to stand still at: CDI may not make its claim, or nothing is transferred.
const NO_CLAIM: &str = "exceeded quota: small";

/// How long a golden is closed where something must be done to it meanwhile, on a machine that is busy.
const LONG_WAIT: &str = "20s";

/// An image whose import stands still.
struct Unfinished<'a> {
    stage: &'a Stage<'a>,
    tenant: &'a str,
    name: String,
    golden: &'static str,
}

impl<'a> Unfinished<'a> {
    fn of(stage: &'a Stage<'a>, tenant: &'a str, name: &str) -> Self {
        Self { stage, tenant, name: name.to_owned(), golden: format!("vm-default-images-{name}").leak() }
    }

    async fn volumes(&self) -> Api<DynamicObject> {
        self.stage.cluster.api(&self.stage.cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await
    }

    async fn claims(&self) -> Api<DynamicObject> {
        self.stage.cluster.api(&self.stage.cluster.admin(), "v1", "PersistentVolumeClaim", CATALOG).await
    }

    async fn machines(&self) -> Api<DynamicObject> {
        self.stage.cluster.api(&self.stage.cluster.admin(), "kubevirt.io/v1", "VirtualMachine", self.tenant).await
    }

    /// Waits until the import stands still.
    async fn begun(&self, has_claim: bool) {
        match has_claim {
            true => drop(until(self.claims().await, self.golden, "CDI has made its claim", |_: &DynamicObject| true).await),
            false => drop(
                until(self.volumes().await, self.golden, "CDI cannot make its claim", |volume: &DynamicObject| {
                    volume.data["status"]["conditions"].to_string().contains(NO_CLAIM)
                })
                .await,
            ),
        }
    }

    /// Whether a VM that clones it is admitted.
    async fn asked(&self) -> bool {
        let machine = object(Form::Machine, &format!("vm-{}", self.name), Disk { golden: self.golden, ..RIGHT });
        is_admitted(self.stage.cluster, self.tenant, &machine).await
    }

    /// Writes the image's spec.
    async fn write(&self, spec: serde_json::Value) {
        let (images, patch) = (self.stage.images(), Patch::Merge(json!({ "spec": spec })));
        harness::made(async || images.patch(&self.name, &PatchParams::default(), &patch).await).await.expect("a free field");
    }

    async fn retire(&self) {
        self.write(json!({ "retire": true })).await;
    }

    /// Who looks late finds it gone already.
    async fn until_closed(&self) {
        let volumes = self.volumes().await;
        eventually(&format!("{} is closed", self.name), || async {
            match volumes.get_opt(self.golden).await.map_err(|error| error.to_string())? {
                Some(volume) if !mark_of(&volume).starts_with("closed") => Err(format!("{:?}", volume.annotations())),
                _ => Ok(()),
            }
        })
        .await;
    }

    /// It stands, closed to new pools, and its image says who waits for it.
    async fn until_kept(&self) {
        until(self.volumes().await, self.golden, "it is kept for who waits for it", |volume: &DynamicObject| {
            assert!(volume.metadata.deletion_timestamp.is_none(), "{}: admitted, and deleted all the same", self.name);
            mark_of(volume).starts_with("since ")
        })
        .await;
        let pool = format!("{}/VirtualMachine/vm-{}", self.tenant, self.name);
        until(self.stage.images(), &self.name, "who waits is told", |image: &GoldenImage| {
            harness::condition(image, "Retiring").is_some_and(|told| told.message.contains(&pool))
        })
        .await;
    }

    /// Nothing is left of it.
    async fn until_retired(&self) {
        until_gone(self.volumes().await, self.golden).await;
        until_gone(self.claims().await, self.golden).await;
        self.stage.until_reason(&self.name, "Retired").await;
        let secrets = self.stage.cluster.api(&self.stage.cluster.admin(), "v1", "Secret", CATALOG).await;
        until_gone(secrets, self.golden).await;
    }

    async fn free(&self) {
        delete(&self.machines().await, &format!("vm-{}", self.name), "a consumer always goes").await;
    }
}

/// Deletes what is there.
async fn delete<K>(api: &Api<K>, name: &str, why: &str)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut asked = 0;
    let ask = async || {
        asked += 1;
        api.delete(name, &DeleteParams::default()).await
    };
    let deleted = harness::made(ask).await;
    match deleted {
        // What was answered too late may have been done all the same.
        Err(kube::Error::Api(status)) if status.code == 404 && asked > 1 => {}
        deleted => drop(deleted.expect(why)),
    }
}

/// What is there under a name.
async fn found(api: &Api<DynamicObject>, name: &str) -> DynamicObject {
    harness::made(async || api.get(name).await).await.expect("it is there").expect("nothing conflicts with a look")
}

fn mark_of(object: &DynamicObject) -> &str {
    object.annotations().get(marks::RETIRING).map_or("", String::as_str)
}

/// A cluster whose API server lets no request take long, with a garbage collector.
async fn hurried_cluster() -> Cluster {
    let options = harness::Options::default().controller_manager().foreign_crds(harness::Flavor::chosen());
    Cluster::start(options.api_server_flag(&format!("--request-timeout={REQUEST_TIMEOUT}s"))).await
}

/// Images of these names, each of an address of its own; CDI makes the claims of those that begin with `claim`, and no more. A golden is
/// closed for `wait` before it goes.
async fn set<'a>(cluster: &'a Cluster, upstream: &crate::upstream::nginx::Nginx, names: &[String], wait: &str) -> Stage<'a> {
    let dir = harness::scratch_dir_on_disk("images");
    let bytes = std::fs::read(images::qcow2(&images::raw_disk(dir.path(), "disk", 16 << 20, 1, 3))).expect("qcow2");
    names.iter().for_each(|name| upstream.put(&format!("{name}.qcow2"), &bytes));
    let settings = json!({ "retireWait": wait, "maxConcurrentImports": names.len(), "maxConcurrentFetches": 4 });
    let stage = Stage::set(cluster, Options { settings, admission: true, ..Options::default() }).await;
    for name in names {
        let behaviour = match name.starts_with("claim") {
            true => Behaviour::StuckAt(50.0),
            false => Behaviour::ClaimQuota { message: NO_CLAIM.to_owned() },
        };
        stage.cdi.script(&format!("vm-default-images-{name}"), behaviour);
    }
    stage.list(list(upstream, names)).await;
    stage
}

fn list(upstream: &crate::upstream::nginx::Nginx, names: &[String]) -> serde_json::Value {
    names.iter().map(|name| json!({ "name": name, "url": format!("http://{}/{name}.qcow2", upstream.http) })).collect()
}

/// A namespace from which clones are judged by now.
async fn judged<'a>(stage: &Stage<'a>) -> TestNamespace {
    let tenant = stage.cluster.namespace("tenant").await;
    let probe = object(Form::Machine, "probe", Disk { golden: "nothing-of-this-name", ..RIGHT });
    eventually("the API server asks the webhook", || async {
        match create(stage.cluster, &tenant, &probe, true).await {
            Err(refused) if refused.message.contains("nothing-of-this-name") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    tenant
}

/// Goldens that are still being made are retired while pools ask for clones of them: each round ends with a consumer that was admitted and a
/// golden that stands, or with a consumer that was refused and a golden that is gone.
async fn races(rounds: usize, seed: u64) {
    if stand().await.is_none() {
        return;
    }
    harness::tell(&format!("{rounds} races around goldens that are still being made, seed {seed}"));
    let cluster = hurried_cluster().await;
    let (nginx, _) = stage::upstream();
    let names: Vec<String> = (0..rounds).map(|n| format!("{}-{n}", if n % 2 == 0 { "alone" } else { "claim" })).collect();
    let stage = set(&cluster, &nginx, &names, RACE_WAIT).await;
    let arguments = vec!["--access-enforced".to_owned()];
    let leader = stage.launch("leader", Launch { arguments, ..Launch::default() });
    let admission = stage.admission("admission").await;
    admission.ready().await;
    leader.ready().await;
    let tenant = judged(&stage).await;
    let all: Vec<Unfinished<'_>> = names.iter().map(|name| Unfinished::of(&stage, &tenant, name)).collect();
    for one in &all {
        one.begun(one.name.starts_with("claim")).await;
    }
    let mut dice = Dice(seed);
    // Of each kind one consumer comes first, and one when the golden is closed; the others at about the moment of the wish.
    let moments: Vec<(u64, u64)> = all.iter().map(|_| (dice.roll(60), dice.roll(60))).collect();
    let racing = all.iter().zip(&moments).enumerate().map(async |(round, (one, (wish, ask)))| match round {
        0 | 1 => {
            let is_admitted = one.asked().await;
            one.retire().await;
            assert!(is_admitted, "{}: nobody wished it to go yet", one.name);
            is_admitted
        }
        2 | 3 => {
            one.retire().await;
            one.until_closed().await;
            let is_admitted = one.asked().await;
            assert!(!is_admitted, "{}: it was closed", one.name);
            is_admitted
        }
        _ => {
            let wish = async {
                tokio::time::sleep(Duration::from_millis(*wish)).await;
                one.retire().await;
            };
            let ask = async {
                tokio::time::sleep(Duration::from_millis(*ask)).await;
                one.asked().await
            };
            tokio::join!(wish, ask).1
        }
    });
    let won = futures::future::join_all(racing).await;
    for (one, is_admitted) in all.iter().zip(&won) {
        match is_admitted {
            true => one.until_kept().await,
            false => one.until_retired().await,
        }
    }
    let admitted = won.iter().filter(|is_admitted| **is_admitted).count();
    println!("{admitted} consumers were admitted and their goldens stayed; {} were refused and their goldens went", rounds - admitted);
    // Who waited goes, and so does what it waited for.
    for (one, _) in all.iter().zip(&won).filter(|(_, is_admitted)| **is_admitted) {
        one.free().await;
    }
    for (one, _) in all.iter().zip(&won).filter(|(_, is_admitted)| **is_admitted) {
        one.until_retired().await;
    }
}

/// A sample for every run.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_and_the_retirement_of_an_unfinished_golden_never_both_win() {
    races(12, 0x5eed).await;
}

/// `make soak`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "100 rounds take minutes"]
async fn a_hundred_races_around_unfinished_goldens() {
    races(100, 0x5eed_0100).await;
}

/// Whatever becomes of an import while it is closed, the retirement ends by itself, or is taken back.
#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_golden_goes_whatever_becomes_of_its_import() {
    if stand().await.is_none() {
        return;
    }
    let cluster = hurried_cluster().await;
    let (nginx, _) = stage::upstream();
    let names = ["claim-ends", "claim-fails", "claim-forced", "claim-anew", "alone-comes", "alone-undone", "alone-deleted", "alone-object"];
    let names = names.map(str::to_owned);
    let stage = set(&cluster, &nginx, &names, LONG_WAIT).await;
    let leader = stage.launch("leader", Launch { arguments: vec!["--access-enforced".to_owned()], ..Launch::default() });
    let admission = stage.admission("admission").await;
    admission.ready().await;
    leader.ready().await;
    let tenant = judged(&stage).await;
    let [ends, fails, forced, anew, comes, undone, deleted, owned] = names.clone().map(|name| Unfinished::of(&stage, &tenant, &name));
    for one in [&ends, &fails, &forced, &anew] {
        one.begun(true).await;
    }
    for one in [&comes, &undone, &deleted, &owned] {
        one.begun(false).await;
    }
    // Off the list, so that it does not come back when it is deleted.
    stage.list(list(&nginx, &names[..names.len() - 1])).await;
    stage.until(&owned.name, "Unlisted", "True").await;
    let closed = async |one: &Unfinished<'_>| {
        one.retire().await;
        one.until_closed().await;
    };
    tokio::join!(
        async {
            closed(&ends).await;
            stage.cdi.unscript(ends.golden);
            ends.until_retired().await;
        },
        async {
            closed(&fails).await;
            stage.cdi.rescript(fails.golden, Behaviour::Fatal { message: "it is broken".to_owned() });
            fails.until_retired().await;
        },
        async {
            assert!(forced.asked().await, "nobody wishes it to go yet");
            forced.retire().await;
            forced.until_kept().await;
            harness::cli(Some(cluster.admin_kubeconfig()), ["retire", &forced.name, "--force", "it is poisoned"]).await.ok();
            forced.until_retired().await;
        },
        async {
            // Not retired: an attempt that is given up has its claim collected, with nobody in the way.
            let former = found(&anew.claims().await, anew.golden).await.uid();
            delete(&anew.volumes().await, anew.golden, "it holds nothing").await;
            until(anew.claims().await, anew.golden, "it is begun anew", |claim: &DynamicObject| claim.uid() != former).await;
        },
        async {
            closed(&deleted).await;
            delete(&deleted.volumes().await, deleted.golden, "it holds nothing").await;
            deleted.until_retired().await;
        },
        async {
            owned.write(json!({ "deletionPolicy": "Delete" })).await;
            until(stage.images(), &owned.name, "our finalizer is on it", |image: &GoldenImage| !image.finalizers().is_empty()).await;
            assert!(owned.asked().await, "nobody wishes it to go yet");
            delete(&stage.images(), &owned.name, "deletion is asked for").await;
            owned.until_kept().await;
            owned.free().await;
            until_gone(stage.images(), &owned.name).await;
            until_gone(owned.volumes().await, owned.golden).await;
        },
    );
    // CDI may make claims again: one that comes while its golden is closed is closed too, and another's golden is made in the end.
    closed(&comes).await;
    let former = found(&undone.volumes().await, undone.golden).await.uid();
    closed(&undone).await;
    undone.write(json!({ "retire": false })).await;
    let open = until(undone.volumes().await, undone.golden, "it is open again", |volume: &DynamicObject| mark_of(volume).is_empty()).await;
    assert_eq!(open.uid(), former, "it stayed");
    stage.cdi.unscript(comes.golden);
    stage.cdi.unscript(undone.golden);
    comes.until_retired().await;
    stage.until(&undone.name, "Ready", "True").await;
    assert!(mark_of(&found(&undone.claims().await, undone.golden).await).is_empty());
    // An API server that does not answer in time is tried again.
    let log = leader.log();
    let failed: Vec<_> = log.lines().filter(|line| line.contains("a step of retiring failed") && !harness::is_busy(500, line)).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}
