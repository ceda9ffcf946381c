//! The consumer ledger at full size: 100,000 consumer disks (200,000 objects) of 1,000 goldens, fed as watch events from decoded JSON, beside a map of the same objects' metadata as a cache would keep it.
//!
//! Run with `cargo bench --bench ledger`. Prints times and bytes; asserts nothing, because a shared machine's clock proves nothing.

use std::{
    collections::{BTreeSet, HashMap},
    hint::black_box,
    time::{Duration, Instant},
};

use golden_catalog::{
    foreign::{Claim, DataVolume},
    rules::{class::Classes, marks, pool::Pool},
    world::ledger::{GoldenKey, Kind, Ledger, Storage, Walk},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;

const GOLDENS: usize = 1_000;
const DISKS: usize = 100_000;
const POOLS: usize = 2_000;

fn golden(number: usize) -> String {
    format!("talos-worker-ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515-v1.{}.{}", number / 100, number % 100)
}

fn pool(disk: usize) -> (String, String) {
    let pool = disk % POOLS;
    (format!("tenant-{:03}", pool % 200), format!("cluster{:02}-md{}", pool / 200, pool % 3))
}

/// A disk's DataVolume and claim as the API server sends them, annotations of CDI and managed fields included.
fn objects(disk: usize) -> (String, String) {
    let ((namespace, pool), golden) = (pool(disk), golden(disk * 7 % GOLDENS));
    let name = format!("kubernetes-{pool}-{:05x}-{:05x}-system", disk * 31 % 0xfffff, disk);
    let annotations = format!(
        r#""{}":"{golden}","{}":"{namespace}/{}/{pool}","cdi.kubevirt.io/cloneType":"csi-clone","cdi.kubevirt.io/dataSourceNamespace":"cozy-public","cdi.kubevirt.io/storage.extended.clone.token":"{}""#,
        marks::GOLDEN,
        marks::POOL,
        Pool::WORKERS,
        "x".repeat(700),
    );
    let meta = |kind: u32, extra: &str| {
        format!(
            r#""metadata":{{"namespace":"{namespace}","name":"{name}","uid":"{kind:08x}-0000-4000-8000-{disk:012x}","resourceVersion":"{disk}","creationTimestamp":"2026-11-29T10:00:00Z","labels":{{"kubevirt.io/created-by":"0d2e6a1b-4c5f-4e1a-9b7c-00112233aabb"}},"annotations":{{{annotations}{extra}}},"managedFields":[{{"manager":"m","operation":"Update","apiVersion":"v1","fieldsV1":{{"f:metadata":{{"f:annotations":{{"{}":{{}}}}}}}}}}]}}"#,
            "f:x".repeat(300),
        )
    };
    let volume = format!(
        r#"{{{},"spec":{{"source":{{"pvc":{{"namespace":"cozy-public","name":"{golden}"}}}},"storage":{{"resources":{{"requests":{{"storage":"20Gi"}}}},"storageClassName":"replicated"}}}},"status":{{"phase":"Succeeded","progress":"100.0%","claimName":"{name}","conditions":[{{"type":"Bound","status":"True"}},{{"type":"Ready","status":"True"}}]}}}}"#,
        meta(1, ""),
    );
    let claim = format!(
        r#"{{{},"spec":{{"accessModes":["ReadWriteMany"],"dataSourceRef":{{"apiGroup":"cdi.kubevirt.io","kind":"VolumeCloneSource","name":"volume-clone-source-{disk}"}},"resources":{{"requests":{{"storage":"20Gi"}}}},"storageClassName":"replicated","volumeMode":"Block","volumeName":"pvc-{disk}"}},"status":{{"phase":"Bound","capacity":{{"storage":"20Gi"}}}}}}"#,
        meta(2, r#","volume.kubernetes.io/storage-provisioner":"linstor.csi.linbit.com""#),
    );
    (volume, claim)
}

/// Resident memory in KiB, from Linux.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Runs `work` for each input and tells median and worst time.
fn latency<T>(what: &str, inputs: impl Iterator<Item = T>, mut work: impl FnMut(T)) {
    let mut times: Vec<Duration> = inputs
        .map(|input| {
            let start = Instant::now();
            work(input);
            start.elapsed()
        })
        .collect();
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 1000];
    println!("{what}: n={} p50 {:?}, p99 {:?}, p99.9 {:?}, worst {:?}", times.len(), at(500), at(990), at(999), at(1000));
}

fn main() {
    // `cargo bench` passes `--bench`; `cargo test --benches` runs this with a small size so that it cannot rot.
    let disks = if std::env::args().any(|argument| argument == "--bench") { DISKS } else { DISKS / 1_000 };
    let before = resident();
    let mut ledger = Ledger::new("cozy-public");
    for kind in Kind::ALL {
        ledger.not_installed(kind);
    }
    let (mut decode, mut apply) = (Duration::ZERO, Duration::ZERO);
    ledger.watch_event(&Event::<DataVolume>::Init);
    ledger.watch_event(&Event::<Claim>::Init);
    for disk in 0..disks {
        let (volume, claim) = objects(disk);
        let start = Instant::now();
        let volume: DataVolume = serde_json::from_str(&volume).expect("a DataVolume");
        let claim: Claim = serde_json::from_str(&claim).expect("a claim");
        decode += start.elapsed();
        let start = Instant::now();
        ledger.watch_event(&Event::InitApply(volume));
        ledger.watch_event(&Event::InitApply(claim));
        apply += start.elapsed();
    }
    ledger.watch_event(&Event::<DataVolume>::InitDone);
    ledger.watch_event(&Event::<Claim>::InitDone);
    let rows = ledger.len();
    println!("{} objects, {rows} rows, {} texts", 2 * disks, ledger.names());
    println!("decoding {decode:?}, filling the ledger {apply:?}");
    println!(
        "{} bytes a row counted; resident memory grew by {} KiB, {} bytes an object",
        ledger.heap_bytes() / rows,
        resident() - before,
        (resident() - before) * 1024 / (2 * disks as u64)
    );

    let (classes, independent) = (Classes::new(), BTreeSet::new());
    let storage = Storage { classes: &classes, independent: &independent, now: 1_795_953_600 };
    let names: Vec<String> = (0..GOLDENS).map(golden).collect();
    latency("consumers of a golden", names.iter(), |name| {
        black_box(ledger.consumers(GoldenKey::named(name), storage).expect("known").blocking());
    });
    latency("a pool's class and use", 0..POOLS, |number| {
        let (namespace, name) = pool(number);
        black_box(ledger.pool_facts(&Pool::new(&namespace, Pool::WORKERS, &name), &names[number % GOLDENS]).expect("known"));
    });
    latency("the walk for missing marks, all rows", 0..3, |_| {
        let mut walk = Some(Walk::default());
        while let Some(at) = walk {
            walk = black_box(ledger.mark_repairs(at, usize::MAX).expect("known")).1;
        }
    });
    latency("one update of a disk", (0..disks).step_by(10.max(disks / 10_000)), |disk| {
        let volume: DataVolume = serde_json::from_str(&objects(disk).0).expect("a DataVolume");
        ledger.watch_event(&Event::Apply(volume));
    });
    latency("a whole list again, without decoding", 0..1, |_| {
        ledger.begin(Kind::DataVolume);
        ledger.commit(Kind::DataVolume);
    });

    // The peer: what a reflector of metadata keeps of the same objects.
    let before = resident();
    let mut cache: HashMap<(String, String, u8), ObjectMeta> = HashMap::new();
    for disk in 0..disks {
        let (volume, claim) = objects(disk);
        let volume: DataVolume = serde_json::from_str(&volume).expect("a DataVolume");
        let claim: Claim = serde_json::from_str(&claim).expect("a claim");
        for (kind, meta) in [(0, volume.metadata), (1, claim.metadata)] {
            cache.insert((meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default(), kind), meta);
        }
    }
    println!(
        "a metadata cache of the same objects, managed fields already left out: {} bytes an object",
        (resident() - before) * 1024 / cache.len() as u64
    );
}
