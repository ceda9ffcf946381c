//! Killed at every call that makes something durable, and on a volume that fills up.

use std::{collections::BTreeMap, num::NonZeroU64, os::unix::process::ExitStatusExt as _, path::Path, process::Command};

use golden_catalog::{
    intake::{Bandwidth, Progress},
    rules::Reason,
    spool::Store,
};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    support::{Bench, Disks, MIB, PATIENCE, assert_is_the_disk, intake_into, request, run, settings, skip, text},
    upstream::{Answer, Upstream},
};

const DIRECTORY: &str = "INTAKE_TEST_DIRECTORY";
const URL: &str = "INTAKE_TEST_URL";

/// The process that is killed. Started by the test below only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by another test, in a process of its own"]
async fn child() {
    let (Ok(root), Ok(url)) = (std::env::var(DIRECTORY), std::env::var(URL)) else { return };
    let intake = intake_into(Store::open(Path::new(&root), 1 << 30).expect("open"), settings());
    if let Err(error) = run(&intake, &request(&url)).await {
        println!("told: {} {error}", error.reason());
        std::process::exit(TOLD);
    }
}

/// What the child exits with when the intake failed.
const TOLD: i32 = 3;

/// Runs the child, to be killed at the `n`th `call`; whether it was.
fn is_killed(root: &Path, url: &str, call: &str, n: usize) -> bool {
    let output = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &format!("inject={call}:signal=SIGKILL:when={n}")])
        .arg(std::env::current_exe().expect("own path"))
        .args(["--exact", "faults::child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, root)
        .env(URL, url)
        .output()
        .expect("strace");
    match (output.status.code(), output.status.signal()) {
        (Some(0), _) => false,
        (Some(137), _) | (_, Some(9)) => true,
        other => panic!("{call} {n}: {other:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn can_trace() -> bool {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1", "true"]);
    let can = command.status().is_ok_and(|status| status.success());
    if !can {
        skip("processes may not be traced here");
    }
    can
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_anywhere_it_ends_with_the_same_disk_and_no_verified_byte_fetched_twice() {
    if !can_trace() {
        return;
    }
    let mut kills = BTreeMap::new();
    for (form, bytes) in [("qcow2", Disks::qcow2_bytes()), ("zst", Disks::packed("zstd", &["-q", "-c"]))] {
        for call in ["fsync", "rename", "linkat", "unlink"] {
            for n in 1.. {
                let up = Upstream::start().await;
                up.on("/d", Answer::file(bytes.clone()));
                let root = TempDir::new().expect("dir");
                let (at, url) = (root.path().to_owned(), up.url("/d"));
                let killed = tokio::task::spawn_blocking(move || is_killed(&at, &url, call, n)).await.expect("child");
                let what = format!("{form}, killed: {killed}, at {call} {n}");
                // The link, and what comes after it, means that every byte was there and verified.
                let before = up.total();
                let was_verified =
                    call == "linkat" || Path::new(&root.path().join("disks")).read_dir().is_ok_and(|mut disks| disks.next().is_some());
                let intake = intake_into(crate::support::reopen(root.path(), 1 << 30).expect("open"), settings());
                let spooled = run(&intake, &request(&up.url("/d"))).await.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_is_the_disk(root.path(), &spooled);
                if was_verified {
                    assert_eq!(up.total(), before, "{what}: asked again for what was verified");
                }
                let sent: u64 = up.settled("/d", 1).await.iter().map(|hit| hit.sent).sum();
                // What the killed process had not written yet comes again: at most what waited for the writer, and sockets.
                assert!(sent >= bytes.len() as u64, "{what}: {sent}");
                let bench = Bench { root, intake };
                assert_eq!(bench.files().await.len(), 2, "{what}");
                if !killed {
                    break;
                }
                *kills.entry(call).or_insert(0) += 1;
            }
        }
    }
    println!("killed at: {kills:?}");
    // How many there are depends on how the threads share the calls, since each thread is counted by itself.
    for call in ["fsync", "rename", "linkat"] {
        assert!(kills.contains_key(call), "{call} was never reached: {kills:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_fills_up_in_the_middle_waits_and_goes_on() {
    let folder = TempDir::new().expect("dir");
    let at = text(folder.path());
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m", "golden-catalog-test", &at]).status();
    if !mounted.is_ok_and(|status| status.success()) {
        skip("nothing may be mounted here");
        return;
    }
    struct Unmount(String);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = Command::new("umount").args(["-l", &self.0]).status();
        }
    }
    let _unmount = Unmount(at);
    let up = Upstream::start().await;
    let bytes = Disks::qcow2_bytes();
    up.on("/d", Answer::file(bytes.clone()));
    let mut intake = intake_into(Store::open(folder.path(), 1 << 30).expect("open"), settings());
    // Slow enough that others can fill the volume meanwhile.
    let fast = std::mem::replace(&mut intake.bandwidth, Bandwidth::limited(NonZeroU64::new(MIB / 4).expect("rate")));
    let asked = request(&up.url("/d"));
    let (progress, mut seen) = watch::channel(Progress::default());
    let running = {
        let (intake, asked) = (intake.clone(), asked.clone());
        tokio::spawn(async move { intake.run(&asked, &progress, &CancellationToken::new()).await })
    };
    let came = seen.wait_for(|progress| progress.done >= MIB);
    tokio::time::timeout(PATIENCE, came).await.expect("in time").expect("progress");
    let filler = folder.path().join("filler");
    std::fs::write(&filler, vec![1; 16 * MIB as usize]).expect_err("the volume is full");
    let error = running.await.expect("no panic").expect_err("no room");
    assert_eq!(error.reason(), Reason::SpoolFull, "{error}");
    intake.bandwidth = fast;
    // Still no room: refused before a byte is asked of upstream's body.
    assert_eq!(run(&intake, &asked).await.expect_err("no room").reason(), Reason::SpoolFull);
    let free = || rustix::fs::statvfs(folder.path()).expect("volume").f_bavail;
    let full = free();
    std::fs::remove_file(&filler).expect("remove");
    // A child that another test has just forked holds the filler open for a moment.
    let freed = async {
        while free() == full {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.expect("the room comes back");
    let spooled = run(&intake, &asked).await.expect("take in");
    assert_is_the_disk(folder.path(), &spooled);
    assert!(up.settled("/d", 3).await[2].header("range").is_some(), "what came was kept");
}

/// The real decoder on a volume that fails under it: never called the image's fault, and what was fetched stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_fails_under_the_decoder_is_no_damage_of_the_image() {
    if !can_trace() {
        return;
    }
    let bytes = Disks::packed("zstd", &["-q", "-c"]);
    let mut told = BTreeMap::new();
    for (call, error, file, reason) in [
        // The download is read by the decoder, the disk is written, and read once more for its digest.
        ("pread64", "EIO", "partial/{}/data", Reason::SpoolFailed),
        ("pread64", "EIO", "work/{}.qcow2", Reason::SpoolFailed),
        ("pwrite64", "EIO", "work/{}.qcow2", Reason::SpoolFailed),
        ("pwrite64", "ENOSPC", "work/{}.qcow2", Reason::SpoolFull),
    ] {
        for n in [1, 4] {
            let up = Upstream::start().await;
            up.on("/d", Answer::file(bytes.clone()));
            let root = TempDir::new().expect("dir");
            let path = root.path().join(file.replace("{}", crate::support::identity(1).as_str()));
            let inject = format!("{call}:error={error}:when={n}");
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &format!("inject={inject}"), "-P"]);
            command.arg(&path).arg(std::env::current_exe().expect("own path"));
            command.args(["--exact", "faults::child", "--ignored", "--nocapture", "--test-threads=1"]);
            command.env(DIRECTORY, root.path()).env(URL, up.url("/d"));
            let output = tokio::task::spawn_blocking(move || command.output()).await.expect("child").expect("strace");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let what = format!("{inject} on {file}: {:?} {text}", output.status);
            match output.status.code() {
                Some(TOLD) => {
                    assert!(text.contains(&format!("told: {reason} ")), "{what}");
                    *told.entry((call, error, file)).or_insert(0) += 1;
                }
                Some(0) => {}
                _ => panic!("{what} {}", String::from_utf8_lossy(&output.stderr)),
            }
            let intake = intake_into(crate::support::reopen(root.path(), 1 << 30).expect("open"), settings());
            let spooled = run(&intake, &request(&up.url("/d"))).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_is_the_disk(root.path(), &spooled);
            assert_eq!(up.total(), 1, "{what}: fetched again");
            let bench = Bench { root, intake };
            assert_eq!(bench.files().await.len(), 2, "{what}");
        }
    }
    println!("told of: {told:?}");
    assert_eq!(told.len(), 4, "{told:?}");
}
