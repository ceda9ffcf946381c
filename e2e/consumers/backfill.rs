//! Many disks that are older than the daemon (R25): each is written to once, one after the other at the pace that was set, and where one process stops the next goes on.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    CDI, GOLDEN, GOLDEN_MARK, POOL_MARK, TENANT, claim, disk, from_golden,
    harness::{self, Cluster, Daemon},
    stage::{CATALOG, House, NAMESPACE, Options},
};

/// Objects made at once.
const AT_ONCE: usize = 16;
/// Marks that are written before the first process is stopped.
const FIRST: usize = 3;
/// So slow that the first process cannot be through when it is stopped.
const SLOW: u32 = 2;

/// What a round makes and asks.
struct Round<'a> {
    house: &'a House<'a>,
    /// Disks; with a DataVolume each where nobody would make clones of them.
    disks: usize,
    has_volumes: bool,
    /// Marks a second that the second process may write.
    fast: u32,
}

impl Round<'_> {
    fn objects(&self) -> usize {
        self.disks * if self.has_volumes { 2 } else { 1 }
    }

    async fn api(&self, kind: &str) -> Api<DynamicObject> {
        let version = if kind == "DataVolume" { CDI } else { "v1" };
        self.house.cluster.api(&self.house.cluster.admin(), version, kind, TENANT).await
    }

    fn kinds(&self) -> &'static [&'static str] {
        if self.has_volumes { &["DataVolume", "PersistentVolumeClaim"] } else { &["PersistentVolumeClaim"] }
    }

    async fn make(&self) {
        for kind in self.kinds() {
            let api = self.api(kind).await;
            futures::stream::iter(0..self.disks)
                .for_each_concurrent(AT_ONCE, |number| {
                    let api = api.clone();
                    async move {
                        let object: DynamicObject = serde_json::from_value(object(kind, number)).expect("an object");
                        api.create(&PostParams::default(), &object).await.unwrap_or_else(|error| panic!("{kind} {number}: {error}"));
                    }
                })
                .await;
        }
    }

    /// How many objects carry both marks.
    async fn marked(&self) -> usize {
        let mut count = 0;
        for kind in self.kinds() {
            let listed = self.api(kind).await.list_metadata(&ListParams::default().labels("e2e=backfill")).await.expect("list");
            let is_marked = |marks: &BTreeMap<String, String>| {
                marks.get(GOLDEN_MARK).is_some_and(|golden| golden == GOLDEN) && marks.contains_key(POOL_MARK)
            };
            count += listed.items.iter().filter(|object| is_marked(object.annotations())).count();
        }
        count
    }

    /// Waits until so many are marked; as long as the pace needs, and the machine besides.
    async fn until_marked(&self, least: usize) {
        let deadline = Instant::now() + harness::PATIENCE + Duration::from_secs(self.objects() as u64 / 10);
        loop {
            let marked = self.marked().await;
            if marked >= least {
                return;
            }
            assert!(Instant::now() < deadline, "{marked} of {least} objects are marked");
            tokio::time::sleep(Duration::from_millis(if self.disks > 1000 { 1000 } else { 100 })).await;
        }
    }

    /// Nobody runs when it begins; gives the second process.
    async fn run(&self) -> Daemon {
        self.make().await;
        let audit = self.house.cluster.audit_mark().await;
        let first = self.house.daemon_with("a", &json!({ "backfillRate": SLOW }));
        self.until_marked(FIRST).await;
        self.house.kill(first).await;
        let before = self.marked().await;
        assert!(before < self.objects(), "all {before} were written to at once");
        let began = Instant::now();
        let second = self.house.daemon_with("a", &json!({ "backfillRate": self.fast }));
        second.ready().await;
        let ready = began.elapsed();
        self.until_marked(self.objects()).await;
        let took = (began.elapsed() - ready.min(began.elapsed())).as_secs_f64();

        // A write is in the log when it was answered, which is a moment after it can be seen.
        let writes = harness::eventually("each object is written to, by the audit log", async || {
            let mut writes: BTreeMap<(String, String), usize> = BTreeMap::new();
            for request in self.house.cluster.requests_since(audit).await {
                let is_disk = matches!(request.resource.as_str(), "datavolumes" | "persistentvolumeclaims") && request.namespace == TENANT;
                let is_mark = is_disk && request.is_write() && request.is_by(NAMESPACE, "golden-catalog-controller");
                if is_mark && request.name.starts_with("old-") && request.code < 300 {
                    *writes.entry((request.resource, request.name)).or_default() += 1;
                }
            }
            if writes.len() == self.objects() { Ok(writes) } else { Err(format!("{} of {}", writes.len(), self.objects())) }
        })
        .await;
        let all: usize = writes.values().sum();
        println!(
            "back-fill: {} disks, {} objects, {all} writes; {before} by a process that was killed, {} by the next in {took:.1} s after it was ready ({:.0} a second, {} allowed)",
            self.disks,
            self.objects(),
            all - before.min(all),
            (all - before.min(all)) as f64 / took.max(0.001),
            self.fast,
        );
        let twice: Vec<_> = writes.iter().filter(|(_, count)| **count != 1).collect();
        assert!(twice.is_empty(), "written to more than once: {twice:?}");
        second
    }
}

fn object(kind: &str, number: usize) -> Value {
    let name = format!("old-{number:05}");
    let mut object = match kind {
        "DataVolume" => disk(&name, from_golden(GOLDEN), json!({})),
        _ => claim(TENANT, &name, json!({}), json!({ "k8s.io/CloneRequest": format!("{CATALOG}/{GOLDEN}") })),
    };
    object["metadata"]["labels"] = json!({ "e2e": "backfill" });
    object
}

/// A sample for every run, on the stage as it stands.
pub async fn older_disks_are_marked_one_by_one(house: &House<'_>, daemon: Daemon) -> Daemon {
    house.kill(daemon).await;
    Round { house, disks: 60, has_volumes: false, fast: 200 }.run().await
}

/// `make soak`: ten thousand disks of two objects each. Nobody plays CDI, so the DataVolumes stay as they are.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a longer round: make soak"]
async fn ten_thousand_disks_are_marked_without_a_write_storm() {
    if std::env::var_os("E2E_KUBECONFIG").is_some_and(|value| !value.is_empty()) {
        harness::skip("needs a control plane of its own");
        return;
    }
    let cluster = Cluster::start(harness::Options::default().foreign_crds(harness::Flavor::Trimmed)).await;
    let house = House::set(&cluster, Options::default()).await;
    cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {TENANT}}}}}")).await;
    let disks = std::env::var("E2E_DISKS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000);
    drop(Round { house: &house, disks, has_volumes: true, fast: 200 }.run().await);
}
