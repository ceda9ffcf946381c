//! The daemon killed at each of its writes to the API server, and at each point where the spool makes something durable.
//! Started again on the same spool it must come to the same end, without a second DataVolume, without fetching again what it
//! had, and without deleting anything.

use super::{
    harness::{Mark, eventually, tell},
    proxy::{ApiProxy, Side},
    stage::{CATALOG, Launch, NAMESPACE},
    versions::{self, Versions},
    world::{Dice, World, golden, rounds},
};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path, time::Duration};

/// What all rounds have.
struct Rounds {
    world: World,
    proxy: ApiProxy,
    versions: Versions,
    entries: Vec<Value>,
    expected: Option<String>,
}

/// Where a round's daemon dies.
#[derive(Debug, Clone, Copy)]
enum At {
    /// Nowhere.
    Never,
    /// On one side of its n-th write.
    Write(usize, Side),
    /// On the way into its n-th system call that makes something durable or visible.
    Durable(usize),
}

impl Rounds {
    async fn begin(what: &str) -> Option<Self> {
        let world = World::enter("").await?;
        let proxy = ApiProxy::start(world.cluster.control_plane(), None).await;
        let versions = Versions::record(world.cluster.admin());
        // The list only grows: an entry that is dropped would have something to be written about.
        let entries = world.listed().await;
        let mut rounds = Self { world, proxy, versions, entries, expected: None };
        // What an untroubled round ends in is what every other must end in.
        let unkilled = format!("{what}-unkilled");
        let killed = rounds.round(&unkilled, At::Never).await;
        assert_eq!(killed, None, "nobody killed it");
        rounds.expected = Some(rounds.world.end_state(&unkilled).await.expect("an end"));
        Some(rounds)
    }

    /// One image from an entry in the list to Ready, by a daemon that starts with an empty spool and without its Secrets.
    /// Gives at which point it was killed; `None` when it came to its end first.
    async fn round(&mut self, name: &str, at: At) -> Option<usize> {
        let world = &self.world;
        let raw = world.disk(name, name.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte))));
        for secret in ["golden-catalog-spool-key", "golden-catalog-spool-tls"] {
            let _ = world.secrets(NAMESPACE).delete(secret, &DeleteParams::default()).await;
        }
        let _ = world.maps(CATALOG).delete("golden-catalog-spool-ca", &DeleteParams::default()).await;
        self.entries.push(json!({ "name": name, "url": world.url(name), "storageClass": "replicated" }));
        world.list(json!(self.entries)).await;
        let mark = world.cluster.audit_mark().await;
        self.proxy.reset();
        let kubeconfig = self.proxy.kubeconfig(&world.stage.kubeconfig);
        let mut launch = Launch { kubeconfig: Some(kubeconfig), ..Launch::default() };
        let calls = world.stage.dir.join(format!("calls-{name}"));
        match at {
            At::Write(n, side) => self.proxy.trap(n, side),
            At::Durable(_) => launch.under = Some(tracer(&calls)),
            At::Never => {}
        }
        let mut daemon = world.stage.launch(name, launch.clone());
        let ready = world.stage.until(name, "Ready", "True");
        let killed = async {
            match at {
                At::Never => std::future::pending().await,
                At::Write(n, _) => {
                    self.proxy.trapped().await;
                    n
                }
                At::Durable(n) => {
                    reached(&calls, n).await;
                    n
                }
            }
        };
        let killed = tokio::select! {
            n = killed => Some(n),
            _ = ready => None,
        };
        if killed.is_some() {
            daemon.kill();
            drop(daemon);
            // Of a traced one it was the tracer whose end was waited for.
            let lock = world.stage.spool_of(name).join("spool.lock");
            eventually("its spool is free", async || match std::fs::File::open(&lock) {
                Ok(lock) => lock.try_lock().map_err(|error| error.to_string()),
                Err(_) => Ok(()),
            })
            .await;
            self.proxy.reset();
            world.release_lease().await;
            let left = world.left(name, name);
            launch.under = None;
            daemon = world.stage.launch(name, launch);
            world.stage.until(name, "Ready", "True").await;
            let sent = world.sent(name).0;
            let size = world.size(name);
            if left.complete {
                assert_eq!((left.sent, sent), (size, size), "{name}: no byte of what the spool had was fetched again");
            }
            assert!(sent <= 2 * size, "{name}: {sent} bytes were fetched of {size}");
        }
        if let Some(expected) = &self.expected {
            world.ends_as(name, expected).await;
        }
        eventually("the spool is tidy", async || {
            let left = world.unfinished(name);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
        world.kill(daemon).await;
        world.same_content(name, &raw).await;
        versions::check(name, &self.versions.of(&world.stage.images(), name).await);
        self.audit(name, mark).await;
        killed
    }

    /// No second DataVolume, nothing deleted but the header Secret, nothing of another image touched.
    async fn audit(&self, name: &str, mark: Mark) {
        let writes = self.world.writes_since(mark).await;
        let golden = golden(name);
        let created = writes.iter().filter(|request| request.verb == "create" && request.resource == "datavolumes");
        assert_eq!(created.map(|request| request.code).collect::<Vec<_>>(), [201], "{name}: {writes:#?}");
        let deleted: Vec<_> = writes.iter().filter(|request| request.verb.starts_with("delete")).collect();
        assert!(deleted.iter().all(|request| request.resource == "secrets" && request.name == golden), "{name}: {deleted:#?}");
        let shared = ["golden-catalog-spool-key", "golden-catalog-spool-tls", "golden-catalog-spool-ca"];
        let strange: Vec<_> = writes
            .iter()
            .filter(|request| {
                let is_own = request.name == name || request.name == golden || shared.contains(&request.name.as_str());
                // A create names its object in the body only.
                !(is_own || request.verb == "create")
            })
            .collect();
        assert!(strange.is_empty(), "{name}: writes to others' objects: {strange:#?}");
    }
}

/// strace, which delays the daemon on its way into each call that syncs, renames or links, and writes down that it is there.
fn tracer(calls: &Path) -> (String, Vec<String>) {
    let set = "fsync,fdatasync,rename,renameat,renameat2,link,linkat";
    let arguments = [
        "-f",
        "--seccomp-bpf",
        "-qq",
        "--signal=none",
        "-o",
        &calls.display().to_string(),
        &format!("--trace={set}"),
        &format!("--inject={set}:delay_enter=150000"),
    ];
    ("strace".to_owned(), arguments.map(str::to_owned).to_vec())
}

/// Waits until the daemon is on its way into its n-th such call.
async fn reached(calls: &Path, n: usize) {
    while self::calls(calls) < n {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many such calls it has begun.
fn calls(file: &Path) -> usize {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // A call that another thread's line interrupts is told in two lines; the second says `resumed`.
    text.lines().filter(|line| !line.contains(" resumed>")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_and_after_writes_it_comes_to_the_same_end() {
    let Some(mut all) = Rounds::begin("drawn-write").await else { return };
    let of = all.proxy.counted();
    let mut dice = Dice::new("writes to be killed at");
    let count = rounds(2);
    let mut drawn = BTreeMap::new();
    for round in 0..count {
        let (n, side) = (1 + dice.roll(of), if round % 2 == 0 { Side::Before } else { Side::After });
        let killed = all.round(&format!("drawn-write-{round}"), At::Write(n, side)).await;
        drawn.insert(format!("{side:?} {n}"), killed.is_some());
    }
    tell(&format!("killed at {count} drawn of the {of} writes from a start to a golden, on one side each: {drawn:?}"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a longer round: make soak"]
async fn killed_before_and_after_every_write_it_comes_to_the_same_end() {
    let Some(mut all) = Rounds::begin("every-write").await else { return };
    let mut count = 0;
    for side in [Side::Before, Side::After] {
        for n in 1.. {
            let name = format!("every-write-{}-{n}", if side == Side::Before { "before" } else { "after" });
            if all.round(&name, At::Write(n, side)).await.is_none() {
                break;
            }
            count += 1;
        }
    }
    tell(&format!("killed before and after every write: {count} rounds"));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_where_the_spool_makes_things_durable_it_comes_to_the_same_end() {
    let Some(mut all) = Rounds::begin("drawn-sync").await else { return };
    let traced = "drawn-sync-all";
    assert_eq!(all.round(traced, At::Durable(usize::MAX)).await, None, "nobody killed it");
    let of = calls(&all.world.stage.dir.join(format!("calls-{traced}")));
    let mut dice = Dice::new("syncs and renames to be killed at");
    let count = rounds(2);
    let mut drawn = BTreeMap::new();
    for round in 0..count {
        let n = 1 + dice.roll(of);
        drawn.insert(n, all.round(&format!("drawn-sync-{round}"), At::Durable(n)).await.is_some());
    }
    tell(&format!("killed at {count} drawn of the {of} syncs, renames and links from a start to a golden: {drawn:?}"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a longer round: make soak"]
async fn killed_at_every_sync_and_rename_it_comes_to_the_same_end() {
    let Some(mut all) = Rounds::begin("every-sync").await else { return };
    let mut count = 0;
    while all.round(&format!("every-sync-{}", count + 1), At::Durable(count + 1)).await.is_some() {
        count += 1;
    }
    tell(&format!("killed at every sync, rename and link: {count} rounds"));
}
