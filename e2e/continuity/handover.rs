//! Two daemons: whatever happens to the one that leads, its successor goes on with what it finds, the two never write at once,
//! and importers reach whoever leads.

use super::{
    cdi::Behaviour,
    harness::{Daemon, Mark, Port, Request, eventually},
    proxy::{ApiProxy, Mode},
    service::Service,
    stage::{CATALOG, Launch, NAMESPACE},
    world::{World, golden, rounds},
};
use golden_catalog::api::GoldenImage;
use k8s_openapi::api::{core::v1::Secret, discovery::v1::EndpointSlice};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Two daemons behind one Service, each with its own name in the audit log.
struct Pair {
    names: [String; 2],
    proxies: [ApiProxy; 2],
    ports: [Port; 2],
    _service: Service,
}

impl Pair {
    async fn set(world: &World, what: &str) -> Self {
        let names = ["a", "b"].map(|letter| format!("{what}-{letter}"));
        let plane = world.cluster.control_plane();
        let proxies = [ApiProxy::start(plane, Some(&names[0])).await, ApiProxy::start(plane, Some(&names[1])).await];
        let ports = [Port::reserve(), Port::reserve()];
        let addresses: BTreeMap<_, _> = (0..2).map(|side| (address(side), ports[side].address())).collect();
        let service = Service::start(world.cluster.admin(), NAMESPACE, &world.stage.spool.address(), addresses).await;
        Self { names, proxies, ports, _service: service }
    }

    /// Starts one of the two.
    fn start(&self, world: &World, side: usize) -> Daemon {
        world.stage.launch(
            &self.names[side],
            Launch {
                kubeconfig: Some(self.proxies[side].kubeconfig(&world.stage.kubeconfig)),
                listen: Some(self.ports[side].address()),
                arguments: vec![format!("--pod-ip={}", address(side))],
                // Its end is waited for here.
                settings: json!({ "lease": { "duration": "8s", "renewDeadline": "6s", "retryPeriod": "500ms" } }),
                ..Launch::default()
            },
        )
    }

    /// Starts both; the first leads.
    async fn both(&self, world: &World) -> [Daemon; 2] {
        let first = self.start(world, 0);
        world.leads(&self.names[0]).await;
        let second = self.start(world, 1);
        second.ready().await;
        [first, second]
    }

    /// Who wrote since the mark, in the API server's order, one after another.
    async fn writers(&self, world: &World, mark: Mark) -> Vec<String> {
        let writes: Vec<Request> = world.writes_since(mark).await;
        let mut writers: Vec<_> = writes.into_iter().map(|request| request.user_agent).collect();
        writers.dedup();
        writers
    }
}

/// Importers reach whoever leads, and whoever does not refuses them at once: kept waiting they would miss the one that does.
async fn only_the_leader_listens(pair: &Pair, leader: usize) {
    eventually("the leader listens, and nobody else", async || {
        let mut found = Vec::new();
        for port in &pair.ports {
            found.push(tokio::net::TcpStream::connect(port.address()).await.map(drop).map_err(|error| error.kind()));
        }
        let refused = Err(std::io::ErrorKind::ConnectionRefused);
        let expected = if leader == 0 { [Ok(()), refused] } else { [refused, Ok(())] };
        if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

fn address(side: usize) -> String {
    format!("192.0.2.{}", side + 1)
}

async fn slice_names(world: &World, side: usize) {
    let slices: Api<EndpointSlice> = Api::namespaced(world.cluster.admin(), NAMESPACE);
    eventually("the EndpointSlice names whoever leads", async || {
        let slice = slices.get("golden-catalog-spool").await.map_err(|error| error.to_string())?;
        let text = serde_json::to_string(&slice.endpoints).expect("JSON");
        if text.contains(&address(side)) { Ok(()) } else { Err(text) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_paused_cut_off_or_slowed_down_never_writes_beside_its_successor() {
    never_two_writers("two", rounds(TROUBLES.len())).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a longer round: make soak"]
async fn a_leader_that_is_paused_cut_off_or_slowed_down_again_and_again_never_writes_beside_its_successor() {
    never_two_writers("two-long", rounds(10 * TROUBLES.len())).await;
}

const TROUBLES: [&str; 3] = ["paused", "cut", "slow"];

async fn never_two_writers(what: &str, count: usize) {
    let Some(world) = World::enter("").await else { return };
    let pair = Pair::set(&world, what).await;
    let daemons = pair.both(&world).await;
    only_the_leader_listens(&pair, 0).await;
    let (mut leader, mut next) = (0, 0);
    // Long enough that the trouble comes while imports run.
    world.stage.cdi.script(&golden(&format!("{what}-*")), Behaviour::Ticks { count: 8, every: Duration::from_millis(300) });
    for round in 0..count {
        let trouble = TROUBLES[round % TROUBLES.len()];
        let follower = 1 - leader;
        let mark = world.cluster.audit_mark().await;
        // Work in every stage, so that the trouble meets writes. One import stands still until the trouble is over: else all may be
        // done before it comes.
        let names: Vec<_> = (0..3).map(|n| format!("{what}-{}", next + n)).collect();
        next += names.len();
        for (n, name) in names.iter().enumerate() {
            world.disk(name, 3000 + (next + n) as u64);
        }
        world.stage.cdi.script(&golden(&names[0]), Behaviour::StuckAt(50.0));
        for name in &names {
            world.image(name, "replicated").await;
        }
        world.until_begun(&names[0]).await;
        let began = Instant::now();
        match trouble {
            "paused" => daemons[leader].pause(),
            "cut" => pair.proxies[leader].set(Mode::Cut),
            _ => pair.proxies[leader].set(Mode::Slow(Duration::from_secs(20))),
        }
        world.leads(&pair.names[follower]).await;
        eprintln!("{trouble}: another leads after {:.1} s (Lease of 8 s here)", began.elapsed().as_secs_f64());
        // Back while the other is at work.
        match trouble {
            "paused" => daemons[leader].go_on(),
            _ => pair.proxies[leader].set(Mode::Pass),
        }
        world.stage.cdi.unscript(&golden(&names[0]));
        for name in &names {
            world.stage.until(name, "Ready", "True").await;
        }
        slice_names(&world, follower).await;
        only_the_leader_listens(&pair, follower).await;
        let writers = pair.writers(&world, mark).await;
        assert_eq!(writers, [pair.names[leader].as_str(), pair.names[follower].as_str()], "{trouble}: one after the other");
        let writes = world.writes_since(mark).await;
        let created = writes.iter().filter(|request| request.resource == "datavolumes" && request.verb == "create" && request.code == 201);
        assert_eq!(created.count(), names.len(), "{trouble}: one DataVolume each");
        leader = follower;
    }
    for daemon in daemons {
        assert!(daemon.ended().is_none(), "both live");
        world.kill(daemon).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_with_an_empty_spool_fetches_what_is_unfinished_and_keeps_importers_waiting_meanwhile() {
    // Slow enough that importers come while a disk is being fetched again.
    let Some(world) = World::enter("limit_rate 1m;").await else { return };
    let pair = Pair::set(&world, "spool").await;
    let [first, second] = pair.both(&world).await;
    for (name, seed) in [("kept", 41), ("handed", 42), ("changed", 43)] {
        world.disk(name, seed);
    }
    world.image("kept", "replicated").await;
    world.stage.until("kept", "Ready", "True").await;
    for name in ["handed", "changed"] {
        world.stage.cdi.script(&golden(name), Behaviour::StuckAt(50.0));
        world.image(name, "replicated").await;
    }
    for name in ["handed", "changed"] {
        world.until_begun(name).await;
        world.stage.cdi.until_journal(CATALOG, &golden(name), |did| did.iter().any(|what| format!("{what:?}").contains("GET"))).await;
    }
    let volumes = world.volumes().await;
    let uid = async |name: &str| volumes.get(&golden(name)).await.expect("volume").metadata.uid;
    let (handed, changed) = (uid("handed").await, uid("changed").await);
    let secret = world.secrets(CATALOG).get(&golden("handed")).await.expect("the importer's Secret");
    let kept = world.claims().await.get(&golden("kept")).await.expect("claim").metadata.uid;

    // Upstream serves another disk under one URL by now.
    let raw = world.disk("changed", 44);
    let before = world.sent("kept");
    first.kill();
    let killed = Instant::now();
    world.leads(&pair.names[1]).await;
    eprintln!("failover after a kill: {:.1} s (Lease of 8 s here)", killed.elapsed().as_secs_f64());
    let led = world.stage.cdi.journal().len();
    slice_names(&world, 1).await;
    for name in ["handed", "changed"] {
        world.stage.cdi.unscript(&golden(name));
        world.stage.until(name, "Ready", "True").await;
    }
    world.same_content("changed", &raw).await;
    assert_eq!(world.sent("kept"), before, "what is Ready is not fetched again");
    assert_eq!(uid("handed").await, handed, "the same import went on");
    assert_ne!(uid("changed").await, changed, "the import of other bytes was begun anew");
    let status = world.stage.images().get("handed").await.expect("image").status.expect("status");
    assert_eq!(status.targets[0].attempts, 1);
    assert_eq!(world.claims().await.get(&golden("kept")).await.expect("claim").metadata.uid, kept);
    // From the moment the Service led to the new leader, no importer of an unfinished golden was turned away.
    let asked: Vec<_> = world.stage.cdi.journal()[led..]
        .iter()
        .filter(|entry| entry.key.name == golden("handed"))
        .filter_map(|entry| {
            if let super::cdi::What::Request { method, status, .. } = &entry.what { Some(format!("{method} {status}")) } else { None }
        })
        .collect();
    assert!(asked.iter().any(|request| request == "GET 200"), "{asked:?}");
    assert!(asked.iter().all(|request| !request.contains(" 4") && !request.contains(" 5")), "{asked:?}");

    a_golden_is_never_made_from_other_bytes(&world).await;
    a_claim_that_was_deleted_meets_410(&world, secret).await;
    world.kill(second).await;
}

/// A frozen digest: another target of a finished image, on a spool that has not got the disk, and other bytes upstream. It is
/// copied from the golden that is there, and upstream is not asked.
async fn a_golden_is_never_made_from_other_bytes(world: &World) {
    let former = std::fs::read(world.nginx.files().join("kept")).expect("the file");
    world.disk("kept", 45);
    let sent = world.sent("kept");
    let before = world.claims().await.get(&golden("kept")).await.expect("claim").metadata.uid;
    let targets = json!({ "spec": { "storage": { "targets": [{ "storageClassName": "replicated" }, { "storageClassName": "wffc" }] } } });
    world.stage.images().patch("kept", &PatchParams::default(), &Patch::Merge(&targets)).await.expect("patched");
    super::harness::until(world.stage.images(), "kept", "both goldens are made", |image: &GoldenImage| {
        let targets = image.status.as_ref().map(|status| status.targets.clone()).unwrap_or_default();
        targets.len() == 2 && targets.iter().all(|target| target.claim_uid.is_some() && target.started_time.is_none())
    })
    .await;
    let status = world.stage.images().get("kept").await.expect("image").status.expect("status");
    assert_eq!(status.targets[0].claim_uid, before, "the first golden stays what it was");
    assert_eq!(world.sent("kept"), sent, "upstream is not asked for what a golden holds");
    let disks = [golden("kept"), format!("{}-wffc", golden("kept"))];
    let [first, further] = [world.stage.disk(&disks[0]).await, world.stage.disk(&disks[1]).await];
    super::stage::images::same_content(&further, "raw", &first, "raw");

    // Both goldens are lost (suspended meanwhile, so that neither is copied from the other), and the spool has never had the disk: it is
    // fetched again, and what upstream serves by now is refused.
    let suspend = async |suspend: bool| {
        let patch = Patch::Merge(json!({ "spec": { "suspend": suspend } }));
        world.stage.images().patch("kept", &PatchParams::default(), &patch).await.expect("patched").metadata.generation
    };
    let (volumes, claims) = (world.volumes().await, world.claims().await);
    let suspended = suspend(true).await;
    super::harness::until(world.stage.images(), "kept", "it is seen that it is suspended", |image: &GoldenImage| {
        image.status.as_ref().is_some_and(|status| status.observed_generation == suspended)
    })
    .await;
    for disk in &disks {
        volumes.delete(disk, &DeleteParams::default()).await.expect("deleted");
        super::harness::until_gone(volumes.clone(), disk).await;
        super::harness::until_gone(claims.clone(), disk).await;
    }
    world.stage.until_reason("kept", "Suspended").await;
    suspend(false).await;
    let told = super::harness::until(world.stage.images(), "kept", "other bytes are refused", |image: &GoldenImage| {
        super::harness::condition(image, "Stalled").is_some_and(|stalled| stalled.reason == "UpstreamChanged")
    })
    .await;
    // nginx writes a request down when it has ended.
    eventually("upstream was asked", async || if world.sent("kept").1 > sent.1 { Ok(()) } else { Err(format!("{sent:?}")) }).await;
    let frozen = status.disk.expect("a disk on record").digest;
    assert_eq!(told.status.expect("status").disk.map(|disk| disk.digest), Some(frozen.clone()), "what is on record stays");
    for disk in &disks {
        assert!(volumes.get_opt(disk).await.expect("asked").is_none(), "nothing is made from other bytes");
    }
    // Upstream has the former bytes again, and a person has it asked: the spool's other disk is no answer.
    world.nginx.put("kept", &former);
    let retry = json!({ "metadata": { "annotations": { "kubernetes-worker-image.cozystack.io/retry": "once more" } } });
    world.stage.images().patch("kept", &PatchParams::default(), &Patch::Merge(&retry)).await.expect("patched");
    world.stage.until("kept", "Ready", "True").await;
    let status = world.stage.images().get("kept").await.expect("image").status.expect("status");
    assert_eq!(status.disk.map(|disk| disk.digest), Some(frozen), "the same disk as ever");
    world.stage.images().delete("kept", &DeleteParams::default()).await.expect("deleted");
}

/// CDI's "PVC deleted" row: it makes the claim anew and imports again by itself, which must fail rather than succeed silently.
/// Its pod wants a Secret that is deleted by then; even with one that a backup brought back, the path answers 410.
async fn a_claim_that_was_deleted_meets_410(world: &World, mut secret: Secret) {
    let golden = golden("handed");
    let before = world.stage.cdi.journal().len();
    secret.metadata.resource_version = None;
    secret.metadata.uid = None;
    secret.metadata.managed_fields = None;
    world.secrets(CATALOG).create(&Default::default(), &secret).await.expect("brought back");
    world.stage.cdi.delete_claim(CATALOG, &golden).await;
    world.stage.cdi.until_journal(CATALOG, &golden, |did| did.iter().any(|what| format!("{what:?}").contains("status: 410"))).await;
    let answers: Vec<_> = world.stage.cdi.journal()[before..]
        .iter()
        .filter(|entry| entry.key.name == golden)
        .filter_map(|entry| if let super::cdi::What::Request { status, .. } = entry.what { Some(status) } else { None })
        .collect();
    assert!(!answers.is_empty() && answers.iter().all(|status| *status == 410), "{answers:?}");
    super::harness::until(world.stage.images(), "handed", "the loss is told", |image: &GoldenImage| {
        super::harness::condition(image, "Ready").is_some_and(|ready| matches!(ready.reason.as_str(), "GoldenMissing" | "GoldenReplaced"))
    })
    .await;
    world.clear_away("handed").await;
}
