//! Nothing outlives a test.

use crate::{
    CLUSTER,
    harness::{Cluster, Needs, Options, Port, eventually, process::Process, repository, scratch_dir},
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// Whether the process runs; one that has ended and waits for its parent does not.
fn runs(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X')))
}

fn state(id: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[tokio::test]
async fn a_dropped_cluster_leaves_no_process_and_no_file() {
    let Some(_) = CLUSTER.on(Needs::Scripted).await else { return };
    let cluster = Cluster::start(Options::default().controller_manager()).await;
    let processes = cluster.control_plane().process_ids();
    assert_eq!(processes.len(), 3);
    assert!(processes.iter().all(|id| runs(*id)));
    let folders = [cluster.dir().to_owned(), cluster.control_plane().dir().to_owned()];
    drop(cluster);
    assert!(!processes.iter().any(|id| runs(*id)));
    assert!(!folders.iter().any(|folder| folder.exists()));
}

const HOLD: &str = "E2E_HARNESS_HOLD";

/// What [`killing_the_test_process_leaves_nothing`] kills: starts a cluster and a process with a child, says so in a file, and waits.
async fn hold(report: &Path) {
    let cluster = Cluster::start(Options::default().controller_manager()).await;
    let dir = scratch_dir("held");
    let mut command = Command::new("sh");
    // The grandchild leaves its parent's side as a server's worker would.
    command.args(["-c", "sleep 1000 & echo $!; wait"]);
    let log = dir.join("log");
    let parent = Process::spawn("sh", &command, &log).unwrap();
    let grandchild = eventually("the grandchild runs", || async {
        std::fs::read_to_string(&log).unwrap_or_default().trim().parse::<u32>().map_err(|error| error.to_string())
    });
    let mut processes = cluster.control_plane().process_ids();
    processes.extend([parent.id(), grandchild.await]);
    let folders = [dir.path(), cluster.dir(), cluster.control_plane().dir()];
    let held = serde_json::json!({ "processes": processes, "folders": folders });
    std::fs::write(report.with_extension("tmp"), held.to_string()).unwrap();
    std::fs::rename(report.with_extension("tmp"), report).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn killing_the_test_process_leaves_nothing() {
    if let Some(report) = std::env::var_os(HOLD) {
        hold(Path::new(&report)).await;
    }
    let Some(_) = CLUSTER.on(Needs::Scripted).await else { return };
    let dir = scratch_dir("killed");
    let report = dir.join("report");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "leftovers::killing_the_test_process_leaves_nothing", "--nocapture"])
        .env(HOLD, &report)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let held: serde_json::Value = eventually("the child holds a cluster", || async {
        let text = std::fs::read_to_string(&report).map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    })
    .await;
    let processes: Vec<u32> = serde_json::from_value(held["processes"].clone()).unwrap();
    let folders: Vec<PathBuf> = serde_json::from_value(held["folders"].clone()).unwrap();
    assert_eq!((processes.len(), folders.len()), (5, 3));
    assert!(processes.iter().all(|id| runs(*id)) && folders.iter().all(|folder| folder.exists()));

    // SIGKILL: nothing of the child's own runs any more.
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("nothing of the child is left", || async {
        let left: Vec<_> = processes.iter().filter(|id| runs(**id)).collect();
        let there: Vec<_> = folders.iter().filter(|folder| folder.exists()).collect();
        if left.is_empty() && there.is_empty() { Ok(()) } else { Err(format!("{left:?} {there:?}")) }
    })
    .await;
}

#[test]
fn a_process_is_paused_continued_and_killed_with_what_it_started() {
    let dir = scratch_dir("process");
    let log = dir.join("log");
    let mut command = Command::new("sh");
    command.args(["-c", "trap 'echo asked; exit 7' TERM; sleep 1000 & echo $!; while :; do wait; done"]);
    let mut process = Process::spawn("sh", &command, &log).unwrap();
    let read = |lines: usize| {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let text = std::fs::read_to_string(&log).unwrap();
            if text.lines().count() >= lines {
                return text;
            }
            assert!(std::time::Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let grandchild: u32 = read(1).trim().parse().unwrap();
    let wait_for = |expected: &[char]| {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !state(grandchild).is_some_and(|state| expected.contains(&state)) {
            assert!(std::time::Instant::now() < deadline, "{:?}", state(grandchild));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    process.signal("STOP");
    wait_for(&['T']);
    process.signal("CONT");
    wait_for(&['S', 'R']);
    process.request_end();
    assert!(read(2).contains("asked"), "SIGTERM is for the process itself, so that it can end in its own way");
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while process.ended().is_none() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(process.ended().and_then(|status| status.code()), Some(7));
    while runs(grandchild) {
        assert!(std::time::Instant::now() < deadline, "what it started goes with it");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_reserved_port_is_given_to_nobody_else() {
    let ports: Vec<Port> = (0..50).map(|_| Port::reserve()).collect();
    let numbers: BTreeSet<u16> = ports.iter().map(Port::number).collect();
    assert_eq!(numbers.len(), ports.len());
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let lowest: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
    assert!(numbers.iter().all(|number| *number < lowest), "the kernel gives none of them to an outgoing connection");
}

/// With `E2E_KUBECONFIG`, the cluster is used as it is: tests of `Any` run, those that need the stand-in are skipped and counted.
#[tokio::test]
async fn a_whole_cluster_is_used_as_it_is() {
    let Some(_) = CLUSTER.on(Needs::Scripted).await else { return };
    let whole = Cluster::start(Options::default()).await;
    let dir = scratch_dir("whole");
    let skips = dir.join("skips");
    let output = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cluster::objects_are_applied_and_waited_for", "cluster::the_audit_log_tells_who_did_what"])
        .env("E2E_KUBECONFIG", whole.admin_kubeconfig())
        .env("E2E_SKIPS", &skips)
        .current_dir(repository())
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("2 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let skipped = std::fs::read_to_string(&skips).unwrap();
    assert_eq!(skipped.lines().count(), 1, "{skipped}");
    assert!(skipped.starts_with("cluster::the_audit_log_tells_who_did_what: "), "{skipped}");
}
