//! Every form of one disk becomes the same disk.

use std::{collections::BTreeSet, fs};

use golden_catalog::{
    intake::{IntakeRequest, Progress, Stage},
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

/// R11: two fetches together never have more than the cap has let through by then, and all of it comes. Bytes are counted; how
/// long it takes is left open, and a slow machine only has fewer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bandwidth_cap_holds_over_all_fetches_and_lets_everything_through() {
    const RATE: u64 = 4 * MIB;
    // What may be caught up with, and one piece of each fetch, which is counted before it is paid for.
    const AHEAD: u64 = RATE / 10 + 2 * (MIB / 2);
    let up = Upstream::start().await;
    for path in ["/one", "/two"] {
        up.on(path, Answer::file(Disks::qcow2_bytes()));
    }
    let bench = Bench::new().limited(RATE);
    let began = std::time::Instant::now();
    let mut fetches: Vec<_> = ["/one", "/two"]
        .into_iter()
        .zip(1..)
        .map(|(path, number)| {
            let (progress, seen) = watch::channel(Progress::default());
            let (intake, request) = (bench.intake.clone(), IntakeRequest { identity: identity(number), ..request(&up.url(path)) });
            (tokio::spawn(async move { intake.run(&request, &progress, &CancellationToken::new()).await }), seen)
        })
        .collect();
    let [(_, one), (_, two)] = &mut fetches[..] else { panic!("two") };
    let (mut most, mut open) = (0, [true, true]);
    let counting = async {
        while open != [false, false] {
            tokio::select! {
                more = one.changed(), if open[0] => open[0] = more.is_ok(),
                more = two.changed(), if open[1] => open[1] = more.is_ok(),
            }
            let received = one.borrow().received + two.borrow().received;
            let let_through = u64::try_from(u128::from(RATE) * began.elapsed().as_micros() / 1_000_000).expect("a few MiB");
            assert!(received <= let_through + AHEAD, "{received} bytes when {let_through} were let through");
            most = most.max(received);
        }
    };
    tokio::time::timeout(PATIENCE, counting).await.expect("in time");
    assert!(most > 2 * AHEAD, "{most} bytes are too few to show anything");
    for (run, _) in fetches {
        assert_is_the_disk(bench.root.path(), &run.await.expect("no panic").expect("take in"));
    }
}
