//! The store killed at every call that changes its directory, and every such call failing, by `strace` from outside: there
//! is no hook in the code.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{fs::FileExt as _, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use golden_catalog::{
    model::Digest,
    spool::{DiskFile, SpoolError},
};
use tempfile::TempDir;

use crate::support::{MIB, content, files, identity, record, reopen, run, sidecar, skip, take_in};

/// Where the child works; it is told by its environment.
const DIRECTORY: &str = "SPOOL_TEST_DIRECTORY";
/// Whether the disk is decoded from the download (`1`) or is the download.
const DECODES: &str = "SPOOL_TEST_DECODES";
/// What the child exits with when the store told it of a failure.
const TOLD: i32 = 3;

/// The calls that change a directory or make a change durable, as glibc makes them.
const CALLS: [&str; 8] = ["mkdir", "fsync", "fdatasync", "ftruncate", "rename", "linkat", "unlink", "unlinkat"];

const LENGTH: u64 = MIB / 2;

fn download() -> Vec<u8> {
    content(1, LENGTH)
}

fn decoded() -> Vec<u8> {
    content(77, LENGTH)
}

/// What an intake does with the store, as far as it is not done. Says on the way what was fetched.
async fn work(root: &Path, decodes: bool, mut fetched: impl FnMut(&str)) -> Result<(), SpoolError> {
    // Room for this artifact only: an older disk is evicted.
    let store = reopen(root, 2 * LENGTH)?;
    if store.find(&identity(1))?.is_some() {
        return Ok(());
    }
    let draft = store.begin(&identity(1)).await?;
    let bytes = download();
    let (data, length) = match draft.before() {
        Some(before) => (draft.resume()?, usize::try_from(before.length).expect("fits")),
        None => {
            draft.reserve(2 * LENGTH)?;
            (draft.start(sidecar())?, 0)
        }
    };
    draft.reserve(2 * LENGTH)?;
    let mut kept = vec![0; length];
    data.read_exact_at(&mut kept, 0).map_err(|e| SpoolError::io("read", "data", e))?;
    assert!(bytes.starts_with(&kept), "other bytes than were written");
    let written = |e| SpoolError::io("write", "data", e);
    if length < bytes.len() {
        fetched(&format!("fetched from {length}"));
        let half = bytes.len() / 2;
        if length < half {
            data.write_all_at(&bytes[length..half], length as u64).map_err(written)?;
            draft.checkpoint(&data, half as u64)?;
        }
        let from = length.max(half);
        data.write_all_at(&bytes[from..], from as u64).map_err(written)?;
    }
    draft.complete(&data, LENGTH, Digest::of(&bytes))?;
    fetched("complete");
    if decodes {
        draft.output()?.write_all_at(&decoded(), 0).map_err(written)?;
        draft.commit(record(&bytes, &decoded()), DiskFile::Output)?;
    } else {
        draft.commit(record(&bytes, &bytes), DiskFile::Download)?;
    }
    Ok(())
}

/// The process that is killed. Started by the tests below only.
#[tokio::test]
#[ignore = "run by the other tests, in a process of its own"]
async fn child() {
    let Ok(root) = std::env::var(DIRECTORY) else { return };
    let said = Path::new(&root).with_extension("said");
    let fetched = |text: &str| {
        let mut all = fs::read_to_string(&said).unwrap_or_default();
        all.push_str(text);
        all.push('\n');
        fs::write(&said, all).expect("say");
    };
    if let Err(e) = work(Path::new(&root), std::env::var(DECODES).is_ok(), fetched).await {
        println!("{e}");
        std::process::exit(TOLD);
    }
}

enum Ended {
    Well,
    Killed,
    Told(String),
}

fn run_child(root: &Path, decodes: bool, inject: Option<&str>) -> Ended {
    run_child_at(root, decodes, inject, &[])
}

/// As [`run_child`], but only calls on these files are counted and fail: others of the same name are the test runner's own.
fn run_child_at(root: &Path, decodes: bool, inject: Option<&str>, files: &[PathBuf]) -> Ended {
    let program = std::env::current_exe().expect("own path");
    let mut command = match inject {
        Some(inject) => {
            let call = inject.split_once(':').expect("call").0;
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &format!("inject={inject}")]);
            for file in files {
                command.arg("-P").arg(file);
            }
            command.arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(["--exact", "faults::child", "--ignored", "--nocapture", "--test-threads=1"]).env(DIRECTORY, root).env_remove(DECODES);
    if decodes {
        command.env(DECODES, "1");
    }
    let output = command.output().expect("run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match (output.status.code(), output.status.signal()) {
        (Some(0), _) => Ended::Well,
        (Some(TOLD), _) => Ended::Told(text),
        // strace ends by the signal that ended what it traced.
        (Some(137), _) | (_, Some(9)) => Ended::Killed,
        other => panic!("{inject:?}: {other:?}: {text}{}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn can_trace() -> bool {
    let can = run("strace", &["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1", "true"]).0;
    if !can {
        skip("processes may not be traced here");
    }
    can
}

/// A spool with an older disk in it, to be evicted.
async fn with_older_disk() -> TempDir {
    let parent = TempDir::new().expect("dir");
    let store = reopen(&parent.path().join("spool"), 2 * LENGTH).expect("open");
    take_in(&store, 9, &content(9, LENGTH)).await.expect("take in");
    parent
}

/// Whatever happened, the next process ends where an undisturbed one does, and fetches nothing that is there.
async fn recovers(parent: &TempDir, decodes: bool, what: &str) {
    let root = parent.path().join("spool");
    let said = fs::read_to_string(root.with_extension("said")).unwrap_or_default();
    let was_complete = said.contains("complete");
    let mut fetched = Vec::new();
    work(&root, decodes, |text| fetched.push(text.to_owned())).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(!(was_complete && fetched.iter().any(|text| text.starts_with("fetched"))), "{what}: fetched again: {said:?}, then {fetched:?}");
    let disk = if decodes { decoded() } else { download() };
    let store = reopen(&root, 2 * LENGTH).expect("open");
    let found = store.find(&identity(1)).expect("find").unwrap_or_else(|| panic!("{what}: not there"));
    let mut bytes = vec![0; disk.len()];
    found.lease.file().read_exact_at(&mut bytes, 0).expect("read");
    assert!(bytes == disk, "{what}: other bytes");
    assert_eq!(found.record, record(&download(), &disk), "{what}");
    let mut expected = vec![format!("disks/{}.qcow2", Digest::of(&disk).hex()), format!("records/{}.json", identity(1))];
    let mut there = files(&root);
    // An older disk stays where nothing had to be evicted.
    let older = [format!("disks/{}.qcow2", Digest::of(&content(9, LENGTH)).hex()), format!("records/{}.json", identity(9))];
    if there.len() == 4 {
        expected.extend(older);
    }
    expected.sort();
    there.sort();
    assert_eq!(there, expected, "{what}");
}

#[tokio::test]
async fn killed_at_any_call_it_is_found_again_and_nothing_is_fetched_twice() {
    if !can_trace() {
        return;
    }
    let mut kills = BTreeMap::new();
    for decodes in [false, true] {
        for call in CALLS {
            for n in 1.. {
                let parent = with_older_disk().await;
                let inject = format!("{call}:signal=SIGKILL:when={n}");
                let ended = run_child(&parent.path().join("spool"), decodes, Some(&inject));
                recovers(&parent, decodes, &format!("{inject}, decodes: {decodes}")).await;
                match ended {
                    Ended::Killed => *kills.entry(call).or_insert(0) += 1,
                    Ended::Well => break,
                    Ended::Told(text) => panic!("{inject}: {text}"),
                }
            }
        }
    }
    println!("killed at: {kills:?}");
    for call in ["fsync", "rename", "linkat", "unlink"] {
        assert!(kills.get(call).is_some_and(|count| *count > 1), "{call} was never reached: {kills:?}");
    }
}

#[tokio::test]
async fn a_call_that_fails_is_told_of_and_harms_nothing() {
    if !can_trace() {
        return;
    }
    let mut told = BTreeMap::new();
    for decodes in [false, true] {
        for (call, error) in [
            ("fsync", "EIO"),
            ("fdatasync", "EIO"),
            ("rename", "EIO"),
            ("rename", "ENOSPC"),
            ("linkat", "ENOSPC"),
            ("linkat", "EIO"),
            ("unlink", "EIO"),
            ("mkdir", "ENOSPC"),
            ("pwrite64", "ENOSPC"),
            ("pwrite64", "EIO"),
        ] {
            let mut well = 0;
            for n in 1.. {
                let parent = with_older_disk().await;
                let inject = format!("{call}:error={error}:when={n}");
                let ended = run_child(&parent.path().join("spool"), decodes, Some(&inject));
                recovers(&parent, decodes, &format!("{inject}, decodes: {decodes}")).await;
                match ended {
                    Ended::Told(text) => {
                        let full = text.contains("is full");
                        assert_eq!(full, error == "ENOSPC", "{inject}: {text}");
                        *told.entry(call).or_insert(0) += 1;
                    }
                    // A failure that needs no telling, since only something left over was not removed; or the end.
                    Ended::Well if well == 3 => break,
                    Ended::Well => well += 1,
                    Ended::Killed => panic!("{inject}: killed"),
                }
            }
        }
    }
    println!("told of: {told:?}");
    for call in ["fsync", "rename", "linkat", "pwrite64"] {
        assert!(told.contains_key(call), "{call} was never reached: {told:?}");
    }
}

/// The files of the artifact under work, and those of the older one, as far as a call may meet them.
fn spool_files(root: &Path) -> Vec<PathBuf> {
    let (one, older) = (identity(1), identity(9));
    let mut names = ["", "disks", "records", "partial", "work"].map(str::to_owned).to_vec();
    names.extend(["", "/data", "/about.json", "/about.json.tmp"].map(|name| format!("partial/{one}{name}")));
    names.extend([format!("work/{one}.qcow2"), format!("records/{one}.json"), format!("records/{one}.json.tmp")]);
    names.push(format!("records/{older}.json"));
    names.extend([download(), decoded(), content(9, LENGTH)].map(|disk| format!("disks/{}.qcow2", Digest::of(&disk).hex())));
    // Not with a slash at its end: that is another text to a tracer.
    names.iter().map(|name| if name.is_empty() { root.to_owned() } else { root.join(name) }).collect()
}

/// As [`with_older_disk`], and half of the download is there.
async fn with_half_a_download() -> TempDir {
    let parent = with_older_disk().await;
    let store = reopen(&parent.path().join("spool"), 2 * LENGTH).expect("open");
    let draft = store.begin(&identity(1)).await.expect("begin");
    draft.reserve(LENGTH).expect("room");
    let data = draft.start(sidecar()).expect("start");
    data.write_all_at(&download()[..download().len() / 2], 0).expect("write");
    draft.checkpoint(&data, LENGTH / 2).expect("checkpoint");
    parent
}

/// Files that do not open, cannot be read, cut or written: told of as what it is, nothing lost, nothing fetched twice.
#[tokio::test]
async fn a_file_that_cannot_be_opened_read_cut_or_written_is_told_of_and_harms_nothing() {
    if !can_trace() {
        return;
    }
    let mut told = BTreeMap::new();
    for (call, error) in [
        ("openat", "EIO"),
        ("openat", "ENOSPC"),
        ("read", "EIO"),
        ("pread64", "EIO"),
        ("ftruncate", "EIO"),
        ("ftruncate", "ENOSPC"),
        ("write", "EIO"),
        ("write", "ENOSPC"),
    ] {
        let mut well = 0;
        for n in 1.. {
            let parent = with_half_a_download().await;
            let root = parent.path().join("spool");
            let inject = format!("{call}:error={error}:when={n}");
            let ended = run_child_at(&root, true, Some(&inject), &spool_files(&root));
            recovers(&parent, true, &inject).await;
            match ended {
                Ended::Told(text) => {
                    assert_eq!(text.contains("is full"), error == "ENOSPC", "{inject}: {text}");
                    *told.entry((call, error)).or_insert(0) += 1;
                }
                Ended::Well if well == 2 => break,
                Ended::Well => well += 1,
                Ended::Killed => panic!("{inject}: killed"),
            }
        }
    }
    println!("told of: {told:?}");
    for call in ["openat", "read", "pread64", "ftruncate", "write"] {
        assert!(told.contains_key(&(call, "EIO")), "{call} was never reached: {told:?}");
    }
    assert!(told.contains_key(&("openat", "ENOSPC")), "a full volume never met an open: {told:?}");
}
