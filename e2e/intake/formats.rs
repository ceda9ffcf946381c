//! Every form of one disk becomes the same disk.

use std::{collections::BTreeSet, fs};

use golden_catalog::{
    intake::{Progress, Stage},
    model::Digest,
    spool::Verified,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    support::{Bench, Disks, MIB, PATIENCE, assert_is_the_disk, identity, request},
    upstream::{Answer, Authority, Upstream, nginx::Nginx},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_qcow2_is_kept_as_it_came_and_downloaded_once() {
    // What it calls itself is not trusted.
    let nginx = Nginx::start(&Authority::new(), &["localhost"], "types { text/html qcow2; }");
    let bytes = Disks::qcow2_bytes();
    nginx.put("disk.qcow2", &bytes);
    let bench = Bench::new();
    let request = request(&format!("http://{}/disk.qcow2", nginx.http));
    let spooled = bench.run(&request).await.expect("take in");
    assert_is_the_disk(bench.root.path(), &spooled);
    let record = spooled.record.clone();
    assert_eq!(
        (record.artifact.digest, record.disk.digest, record.disk.length),
        (Digest::of(&bytes), Digest::of(&bytes), bytes.len() as u64)
    );
    assert_eq!((record.artifact.format.as_str(), record.verified), ("qcow2", Verified::Structure));
    assert_eq!(record.artifact.resolved_url, format!("http://{}/disk.qcow2", nginx.http));
    assert!(record.artifact.etag.is_some());
    // Again, in this process and the next.
    assert_eq!(bench.run(&request).await.expect("again").record, record);
    drop(spooled);
    let bench = bench.restart();
    assert_eq!(bench.run(&request).await.expect("again").record, record);
    assert_eq!(bench.files().await.len(), 2);
    let log = nginx.log("/disk.qcow2", 1);
    assert_eq!(log.iter().map(|line| line.sent).sum::<u64>(), bytes.len() as u64, "{log:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_and_packed_disks_become_one_disk() {
    let nginx = Nginx::start(&Authority::new(), &["localhost"], "");
    let bench = Bench::new();
    let forms = [
        ("raw", fs::read(&Disks::get().raw).expect("raw")),
        ("raw.xz", Disks::packed("xz", &["-1", "-c"])),
        ("raw.zst", Disks::packed("zstd", &["-q", "-c"])),
        ("raw.gz", Disks::packed("gzip", &["-c"])),
    ];
    let mut disks = BTreeSet::new();
    for (n, (format, bytes)) in (10..).zip(forms) {
        nginx.put(format, &bytes);
        let mut request = request(&format!("http://{}/{format}", nginx.http));
        request.identity = identity(n);
        request.digest = Some(Digest::of(&bytes));
        let spooled = bench.run(&request).await.unwrap_or_else(|e| panic!("{format}: {e}"));
        assert_is_the_disk(bench.root.path(), &spooled);
        assert_eq!((spooled.record.artifact.format.as_str(), spooled.record.artifact.digest), (format, Digest::of(&bytes)));
        assert_eq!(spooled.record.verified, Verified::Digest);
        // Runs of zeros take no room.
        assert!(spooled.record.disk.length < 8 * MIB, "{}", spooled.record.disk.length);
        disks.insert(spooled.record.disk.digest);
    }
    assert_eq!(disks.len(), 1, "the same disk from each form");
    // One disk, four records.
    assert_eq!((bench.intake.store.usage().disks, bench.files().await.len()), (1, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_only_grows_and_ends_at_a_hundred() {
    let up = Upstream::start().await;
    up.on("/disk.raw.gz", Answer::file(Disks::packed("gzip", &["-c"])));
    let bench = Bench::new();
    let (progress, mut seen) = watch::channel(Progress::default());
    let request = request(&up.url("/disk.raw.gz"));
    let intake = bench.intake.clone();
    let run = tokio::spawn(async move { intake.run(&request, &progress, &CancellationToken::new()).await });
    let mut last = 0;
    let watching = async {
        while seen.changed().await.is_ok() {
            if let Some(percent) = seen.borrow_and_update().percent() {
                assert!(percent >= last, "{percent} after {last}");
                last = percent;
            }
        }
    };
    tokio::time::timeout(PATIENCE, watching).await.expect("in time");
    run.await.expect("no panic").expect("take in");
    assert_eq!((last, seen.borrow().stage), (100, Stage::Done));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bandwidth_cap_lets_everything_through() {
    let up = Upstream::start().await;
    up.on("/d", Answer::file(Disks::qcow2_bytes()));
    let bench = Bench::new().limited(16 * MIB);
    assert_is_the_disk(bench.root.path(), &bench.run(&request(&up.url("/d"))).await.expect("take in"));
}
