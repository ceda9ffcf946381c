//! What is kept of a download that broke, and what becomes of it.

use std::time::Duration;

use golden_catalog::{
    intake::{Intake, IntakeError, IntakeRequest, Progress, Stage},
    model::Digest,
    rules::Reason,
    source::Egress,
};
use rstest::rstest;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    support::{Bench, Disks, MIB, PATIENCE, assert_is_the_disk, identity, request, run, settings, thinly_filled},
    upstream::{Answer, Upstream},
};

const HALF: usize = 2 << 20;

#[rstest]
#[case::same_process(false)]
#[case::next_process(true)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_that_broke_goes_on_where_it_can(#[case] restart: bool) {
    let up = Upstream::start().await;
    let file = Answer::file(Disks::qcow2_bytes());
    up.sequence("/d", [file.clone().cut(HALF), file]);
    let mut bench = Bench::new();
    let asked = request(&up.url("/d"));
    let error = bench.run(&asked).await.expect_err("cut");
    assert_eq!(error.reason(), Reason::Corrupt, "{error}");
    assert_eq!(bench.files().await.len(), 2, "about.json and data");
    if restart {
        bench = bench.restart();
    }
    let spooled = bench.run(&asked).await.expect("take in");
    assert_is_the_disk(bench.root.path(), &spooled);
    let hits = up.settled("/d", 2).await;
    assert_eq!(hits[1].header("range"), Some(&*format!("bytes={HALF}-")));
    assert_eq!(hits.iter().map(|hit| hit.sent).sum::<u64>(), Disks::qcow2_bytes().len() as u64, "no byte twice");
    assert_eq!(bench.files().await.len(), 2, "disk and record");
}

#[rstest]
#[case::no_ranges(Answer::file(Disks::qcow2_bytes()).no_ranges().header("Accept-Ranges", "none"))]
#[case::no_validator(Answer::file(Disks::qcow2_bytes()).without("ETag"))]
#[case::weak_validator(Answer::file(Disks::qcow2_bytes()).header("ETag", "W/\"v1\""))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_kept_where_upstream_cannot_go_on(#[case] file: Answer) {
    let up = Upstream::start().await;
    up.sequence("/d", [file.clone().cut(HALF), file]);
    let bench = Bench::new();
    let asked = request(&up.url("/d"));
    bench.run(&asked).await.expect_err("cut");
    bench.assert_empty().await;
    bench.run(&asked).await.expect("take in");
    assert_eq!(up.settled("/d", 2).await[1].header("range"), None);
}

#[rstest]
#[case::another_tag(Answer::file(Disks::qcow2_bytes()).header("ETag", "\"v2\""))]
#[case::ranges_ignored(Answer::file(Disks::qcow2_bytes()).no_ranges())]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_file_is_taken_from_its_start(#[case] second: Answer) {
    let up = Upstream::start().await;
    let mut other = Disks::qcow2_bytes();
    other[HALF - 1] ^= 0xff;
    up.sequence("/d", [Answer::file(other).cut(HALF), second]);
    let bench = Bench::new();
    let asked = request(&up.url("/d"));
    bench.run(&asked).await.expect_err("cut");
    let spooled = bench.run(&asked).await.expect("take in");
    assert_is_the_disk(bench.root.path(), &spooled);
}

/// A cache that has only a part of the file, under the whole file's length and tag.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rest_that_never_comes_is_not_waited_for_for_ever() {
    let up = Upstream::start().await;
    let file = Answer::file(Disks::qcow2_bytes());
    up.sequence("/d", [file.clone().cut(HALF), file.clone().cut(0), file]);
    let bench = Bench::new();
    let asked = request(&up.url("/d"));
    bench.run(&asked).await.expect_err("cut");
    bench.run(&asked).await.expect_err("cut again, with nothing new");
    bench.assert_empty().await;
    bench.run(&asked).await.expect("from the start");
}

/// A connection that breaks before its first byte says nothing about the bytes that are there.
#[rstest]
#[case::reset(Answer::file(Disks::qcow2_bytes()).reset(0))]
#[case::stall(Answer::file(Disks::qcow2_bytes()).stall(0))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_outlives_a_rest_that_broke_at_once(#[case] second: Answer) {
    let up = Upstream::start().await;
    let file = Answer::file(Disks::qcow2_bytes());
    up.sequence("/d", [file.clone().cut(HALF), second, file]);
    let bench = Bench::new();
    let asked = request(&up.url("/d"));
    bench.run(&asked).await.expect_err("cut");
    let mut hasty = settings();
    hasty.deadlines.idle = Duration::from_millis(500);
    let hasty = Intake { egress: Egress::new(hasty).expect("settings"), ..bench.intake.clone() };
    run(&hasty, &asked).await.expect_err("broken at once");
    let spooled = bench.run(&asked).await.expect("take in");
    assert_is_the_disk(bench.root.path(), &spooled);
    assert_eq!(up.hits("/d")[2].header("range"), Some(&*format!("bytes={HALF}-")));
}

/// The complete download of a disk for which there was no room.
async fn without_room(bench: &Bench, asked: &IntakeRequest) {
    let elsewhere = bench.intake.store.begin(&identity(9)).await.expect("begin");
    elsewhere.reserve(30 * MIB).expect("reserve");
    let error = bench.run(asked).await.expect_err("no room for the disk");
    assert_eq!(error.reason(), Reason::SpoolFull, "{error}");
    drop(elsewhere);
    assert_eq!(bench.files().await.len(), 2, "about.json and data");
}

/// What is wanted now is asked of upstream, not of what it served before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_left_of_another_digest_are_not_upstreams_answer() {
    let up = Upstream::start().await;
    up.on("/d", Answer::file(thinly_filled(80)));
    let bench = Bench::with(100 * MIB, settings());
    let mut asked = request(&up.url("/d"));
    without_room(&bench, &asked).await;

    up.on("/d", Answer::file(Disks::qcow2_bytes()).header("ETag", "\"v2\""));
    asked.digest = Some(Digest::of(&Disks::qcow2_bytes()));
    let spooled = bench.run(&asked).await.expect("take in");
    assert_is_the_disk(bench.root.path(), &spooled);
    assert_eq!(up.total(), 2);
}

/// Nobody knows any more that a mirror served them, so they end nothing for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_bytes_left_of_a_mirror_send_to_the_source() {
    let (mirror, origin) = (Upstream::start().await, Upstream::start().await);
    let mut damaged = thinly_filled(80);
    *damaged.last_mut().expect("checksum") ^= 0xff;
    mirror.on("/d", Answer::file(damaged));
    origin.on("/d", Answer::file(Disks::qcow2_bytes()));
    let mut mirrored = settings();
    mirrored.mirrors = serde_json::from_value(serde_json::json!({ origin.address.to_string(): [mirror.url("")] })).expect("mirrors");
    let bench = Bench::with(100 * MIB, mirrored);
    let asked = request(&origin.url("/d"));
    without_room(&bench, &asked).await;
    let spooled = bench.run(&asked).await.expect("take in");
    assert_eq!((spooled.record.artifact.resolved_url, mirror.total(), origin.total()), (origin.url("/d"), 2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_who_ask_at_once_get_one_download() {
    let up = Upstream::start().await;
    let gate = crate::upstream::Gate::default();
    up.on("/d", Answer::file(Disks::qcow2_bytes()).hold(&gate));
    let bench = Bench::new();
    let asked = request(&up.url("/d"));
    let (progress, mut seen) = watch::channel(Progress::default());
    let start = |progress: watch::Sender<Progress>| {
        let (intake, asked) = (bench.intake.clone(), asked.clone());
        tokio::spawn(async move { intake.run(&asked, &progress, &CancellationToken::new()).await })
    };
    let first = start(progress);
    let asked = async {
        while up.hits("/d").is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("in time");
    assert_eq!(seen.borrow_and_update().stage, Stage::Opening);
    let (progress, seen) = watch::channel(Progress::default());
    let second = start(progress);
    // A third artifact is not held up by it; when it is there, the second one has had its chance to ask too.
    up.on("/other", Answer::file(Disks::qcow2_bytes()));
    let mut other = request(&up.url("/other"));
    other.identity = identity(2);
    bench.run(&other).await.expect("take in");
    assert_eq!((seen.borrow().stage, up.hits("/d").len()), (Stage::Waiting, 1));
    gate.open();
    let spooled = [first.await, second.await].map(|run| run.expect("no panic").expect("take in").record);
    assert_eq!(spooled[0], spooled[1]);
    assert_eq!(up.hits("/d").len(), 1);
}

/// Whether by its token or by being dropped, it ends soon and keeps what can be gone on from.
#[rstest]
#[case::token(true)]
#[case::dropped(false)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_stopped_keeps_what_came(#[case] token: bool) {
    let up = Upstream::start().await;
    let file = Answer::file(Disks::qcow2_bytes());
    up.sequence("/d", [file.clone().stall(HALF), file]);
    let bench = Bench::new();
    let asked = request(&up.url("/d"));
    let (progress, _seen) = watch::channel(Progress::default());
    let cancel = CancellationToken::new();
    let run = {
        let (intake, asked, cancel) = (bench.intake.clone(), asked.clone(), cancel.clone());
        tokio::spawn(async move { intake.run(&asked, &progress, &cancel).await })
    };
    // Until it is written: progress tells of what came, which may still be on its way to the file.
    let data = bench.root.path().join(format!("partial/{}/data", identity(1)));
    let written = async {
        while std::fs::metadata(&data).map_or(0, |data| data.len()) < HALF as u64 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, written).await.expect("in time");
    if token {
        cancel.cancel();
        assert!(matches!(run.await.expect("no panic"), Err(IntakeError::Cancelled)));
    } else {
        run.abort();
        assert!(run.await.expect_err("aborted").is_cancelled());
    }
    assert_eq!(bench.files().await.len(), 2, "about.json and data");
    bench.run(&asked).await.expect("take in");
    assert_eq!(up.hits("/d")[1].header("range"), Some(&*format!("bytes={HALF}-")));
}

/// Decoding is stopped too, and the download it was decoding stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_stopped_while_decoding_fetches_nothing_again() {
    // A machine that is busy may have decoded it all before it is stopped: then a larger one is taken.
    for gib in [1, 4, 16] {
        if is_stopped_while_decoding(gib << 30).await {
            return;
        }
    }
    panic!("it was never stopped but had always ended");
}

/// Whether it was stopped before the end of a disk of this size.
async fn is_stopped_while_decoding(size: u64) -> bool {
    let up = Upstream::start().await;
    let folder = tempfile::TempDir::new().expect("dir");
    let raw = folder.path().join("large.raw");
    std::fs::File::create(&raw).and_then(|file| file.set_len(size)).expect("raw");
    crate::support::must("sgdisk", &["-n", "1:2048:0", &crate::support::text(&raw)]);
    let packed = std::process::Command::new("gzip").args(["-1", "-c"]).arg(&raw).output().expect("gzip").stdout;
    up.on("/d", Answer::file(packed));
    let bench = Bench::with(64 << 30, crate::support::settings());
    let asked = request(&up.url("/d"));
    let (progress, mut seen) = watch::channel(Progress::default());
    let run = {
        let (intake, asked) = (bench.intake.clone(), asked.clone());
        tokio::spawn(async move { intake.run(&asked, &progress, &CancellationToken::new()).await })
    };
    let decoding = seen.wait_for(|progress| progress.stage == Stage::Verifying && progress.done > 0);
    // Also over when the run has ended before anybody looked.
    let _ = tokio::time::timeout(PATIENCE, decoding).await.expect("in time");
    run.abort();
    match run.await {
        Err(stopped) => assert!(stopped.is_cancelled(), "{stopped}"),
        Ok(ended) => {
            ended.expect("take in");
            return false;
        }
    }
    assert_eq!(bench.files().await.len(), 2, "about.json and data");
    let bench = bench.restart();
    let spooled = bench.run(&asked).await.expect("take in");
    assert_eq!((spooled.record.disk.virtual_size, up.total()), (size, 1));
    assert!(spooled.record.disk.length < MIB * 64);
    true
}
