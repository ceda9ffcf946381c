use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use tempfile::TempDir;

use super::{ArtifactFacts, DiskFacts, DiskFile, Draft, Record, Sidecar, Spooled, Store, Verified};
use crate::{
    model::{Digest, Identity},
    rules::Reason,
    spool::SpoolError,
};

const MIB: u64 = 1 << 20;

fn identity(n: u8) -> Identity {
    format!("{n:040x}").parse().expect("identity")
}

fn sidecar(resumable: bool) -> Sidecar {
    Sidecar {
        resolved_url: "https://example.org/disk.qcow2".into(),
        etag: Some("\"a\"".into()),
        last_modified: None,
        total: None,
        resolved_time: Timestamp::UNIX_EPOCH,
        container: None,
        resume: resumable.then(|| serde_json::json!({"validator": "a"})),
        complete: None,
        durable: 0,
        boot: String::new(),
    }
}

fn record(artifact: &[u8], disk: &[u8]) -> Record {
    Record {
        artifact: ArtifactFacts {
            digest: Digest::of(artifact),
            size: artifact.len() as u64,
            format: "qcow2".into(),
            resolved_url: "https://example.org/disk.qcow2".into(),
            etag: None,
            resolved_time: Timestamp::UNIX_EPOCH,
            container: None,
        },
        disk: DiskFacts { digest: Digest::of(disk), length: disk.len() as u64, virtual_size: 1 << 30 },
        verified: Verified::Structure,
    }
}

/// A mebibyte that differs with `n` and has no holes.
fn content(n: u8) -> Vec<u8> {
    (0..MIB).map(|i| (i as u8).wrapping_mul(31).wrapping_add(n) | 1).collect()
}

async fn begin(store: &Store, n: u8) -> Draft {
    store.begin(&identity(n)).await.expect("begin")
}

/// Takes in an artifact that is a disk as it came.
async fn take_in(store: &Store, n: u8, content: &[u8]) -> Result<Spooled, SpoolError> {
    let draft = store.begin(&identity(n)).await?;
    draft.reserve(content.len() as u64)?;
    let mut data = draft.start(sidecar(true))?;
    data.write_all(content).expect("write");
    draft.complete(&data, content.len() as u64, Digest::of(content))?;
    draft.commit(record(content, content), DiskFile::Download)
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().expect("metadata").len()).expect("fits")];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

/// Every file under a directory but the lock, relative and sorted.
fn files(root: &Path) -> Vec<String> {
    fn walk(root: &Path, at: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(at).expect("list") {
            let path = entry.expect("entry").path();
            if path.is_dir() { walk(root, &path, found) } else { found.push(path.strip_prefix(root).expect("under").display().to_string()) }
        }
    }
    let mut found = Vec::new();
    walk(root, root, &mut found);
    found.retain(|name| name != "spool.lock");
    found.sort();
    found
}

/// A child that another test has just forked holds copies of all open files, a lock among them, until it runs its program.
fn open(root: &TempDir, mib: u64) -> Store {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        match Store::open(root.path(), mib * MIB) {
            Err(SpoolError::InUse { .. }) if std::time::Instant::now() < deadline => std::thread::yield_now(),
            opened => return opened.expect("open"),
        }
    }
}

#[tokio::test]
async fn what_was_taken_in_is_found_again_by_the_next_process() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 10);
    assert!(store.find(&identity(1)).expect("find").is_none());
    let spooled = take_in(&store, 1, &content(1)).await.expect("take in");
    assert_eq!(read(spooled.lease.file()), content(1));
    drop((spooled, store));
    let store = open(&root, 10);
    let found = store.find(&identity(1)).expect("find").expect("is there");
    assert_eq!((found.record, read(found.lease.file())), (record(&content(1), &content(1)), content(1)));
    let disk = Digest::of(&content(1)).hex();
    assert_eq!(files(root.path()), [format!("disks/{disk}.qcow2"), format!("records/{}.json", identity(1))]);
}

#[tokio::test]
async fn two_artifacts_of_one_content_share_the_disk_and_go_together() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 3);
    for n in [1, 2] {
        take_in(&store, n, &content(1)).await.expect("take in");
    }
    assert_eq!((store.usage().disks, store.usage().used, store.usage().reserved), (1, MIB, 0));
    for n in [3, 4] {
        // The order is kept in milliseconds.
        tokio::time::sleep(Duration::from_millis(3)).await;
        take_in(&store, n, &content(n)).await.expect("take in");
    }
    assert_eq!(store.usage().used, 3 * MIB);
    take_in(&store, 5, &content(5)).await.expect("take in, evicting the shared one");
    assert!(store.find(&identity(1)).expect("find").is_none() && store.find(&identity(2)).expect("find").is_none());
    assert_eq!(files(root.path()).len(), 6);
}

#[tokio::test]
async fn the_least_recently_used_goes_first_and_a_leased_one_never() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 3);
    for n in [1, 2, 3] {
        take_in(&store, n, &content(n)).await.expect("take in");
        // The order is kept in milliseconds.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let first = store.find(&identity(1)).expect("find").expect("is there");
    drop(store.find(&identity(2)).expect("find").expect("is there"));
    take_in(&store, 4, &content(4)).await.expect("take in");
    let there = |n| store.find(&identity(n)).expect("find").is_some();
    assert_eq!([1, 2, 3, 4].map(there), [true, true, false, true]);

    let all = [2, 4].map(|n| store.find(&identity(n)).expect("find").expect("is there"));
    let before = files(root.path());
    let refused = take_in(&store, 5, &content(5)).await.expect_err("everything is leased");
    assert!(matches!(refused, SpoolError::Full { needed: MIB, available: 0, capacity } if capacity == 3 * MIB), "{refused}");
    assert_eq!(files(root.path()), before);
    drop((first, all));
    take_in(&store, 5, &content(5)).await.expect("take in");
}

#[tokio::test]
async fn nothing_is_evicted_in_vain() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 3);
    take_in(&store, 1, &content(1)).await.expect("take in");
    let draft = begin(&store, 2).await;
    assert!(matches!(draft.reserve(4 * MIB), Err(SpoolError::Full { available, .. }) if available == 3 * MIB));
    assert!(store.find(&identity(1)).expect("find").is_some());
}

#[tokio::test]
async fn a_disk_whose_record_could_not_be_written_does_not_stay() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 3);
    // A folder where the record belongs: not even root renames a file over it.
    let record_path = root.path().join(format!("records/{}.json", identity(1)));
    fs::create_dir(&record_path).expect("folder");
    let (download, disk) = (content(1), content(2));
    let draft = begin(&store, 1).await;
    draft.reserve(2 * MIB).expect("reserve");
    let mut data = draft.start(sidecar(true)).expect("start");
    data.write_all(&download).expect("write");
    draft.complete(&data, MIB, Digest::of(&download)).expect("complete");
    draft.output().expect("output").write_all(&disk).expect("write");
    draft.commit(record(&download, &disk), DiskFile::Output).expect_err("no record");
    drop(draft);
    let partial = |name: &str| format!("partial/{}/{name}", identity(1));
    let left = || files(root.path()).into_iter().filter(|name| !name.ends_with(".tmp")).collect::<Vec<_>>();
    assert_eq!((left(), store.usage().used), (vec![partial("about.json"), partial("data")], MIB));

    fs::remove_dir(&record_path).expect("remove");
    let draft = begin(&store, 1).await;
    draft.reserve(3 * MIB).expect("all of it is there to be had");
    draft.resume().expect("resume");
    draft.output().expect("output").write_all(&disk).expect("write");
    let spooled = draft.commit(record(&download, &disk), DiskFile::Output).expect("commit");
    assert_eq!(read(spooled.lease.file()), disk);
}

/// What shows its need only as it comes is given what there is, and waits only for what can come free.
#[tokio::test]
async fn what_grows_takes_what_can_be_had_up_to_the_whole_spool() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 10);
    let draft = begin(&store, 1).await;
    for (least, wanted, grown) in [(4, 8, 8), (9, 12, 10), (2, 3, 10), (10, 20, 10)] {
        assert_eq!(draft.grow(least * MIB, wanted * MIB).expect("grow"), grown * MIB, "{least}, {wanted}");
    }
    let outgrown = draft.grow(11 * MIB, 12 * MIB).expect_err("more than there is");
    assert!(matches!(outgrown, SpoolError::Outgrown { whole } if whole == 10 * MIB) && outgrown.reason().is_terminal(), "{outgrown}");
    drop(draft);

    // What others hold may come free, so it is waited for; what they do not is taken.
    let kept = take_in(&store, 2, &content(2)).await.expect("take in");
    take_in(&store, 3, &content(3)).await.expect("take in");
    let draft = begin(&store, 1).await;
    for (least, wanted, grown) in [(1, 8, 8), (9, 12, 9)] {
        assert_eq!(draft.grow(least * MIB, wanted * MIB).expect("grow"), grown * MIB, "{least}, {wanted}");
    }
    let full = draft.grow(10 * MIB, 12 * MIB).expect_err("one is leased");
    assert!(matches!(full, SpoolError::Full { needed: MIB, available: 0, .. }) && full.reason() == Reason::SpoolFull, "{full}");
    assert!(store.find(&identity(2)).expect("find").is_some() && store.find(&identity(3)).expect("find").is_none());
    drop(kept);
    assert_eq!(draft.grow(10 * MIB, 12 * MIB).expect("grow"), 10 * MIB);
    drop(draft);

    // A wish that cannot be had throws nothing away.
    let leased = take_in(&store, 4, &content(4)).await.expect("take in");
    take_in(&store, 5, &content(5)).await.expect("take in");
    let draft = begin(&store, 1).await;
    assert_eq!(draft.grow(3 * MIB, 12 * MIB).expect("grow"), 8 * MIB);
    assert!(store.find(&identity(5)).expect("find").is_some());
    drop(leased);
}

#[tokio::test]
async fn promises_made_at_once_never_exceed_the_capacity() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 10);
    let mut drafts = Vec::new();
    for n in 0..20 {
        drafts.push(begin(&store, n).await);
    }
    let granted: usize = std::thread::scope(|scope| {
        let reserving: Vec<_> = drafts.iter().map(|draft| scope.spawn(|| draft.reserve(MIB).is_ok())).collect();
        reserving.into_iter().map(|thread| usize::from(thread.join().expect("no panic"))).sum()
    });
    assert_eq!((granted, store.usage().used, store.usage().reserved), (10, 10 * MIB, 10 * MIB));
    drop(drafts);
    assert_eq!(store.usage().used, 0);
}

#[tokio::test]
async fn a_download_that_was_cut_is_kept_where_it_can_go_on_and_only_there() {
    let root = TempDir::new().expect("dir");
    for (n, resumable) in [(1, true), (2, false)] {
        let store = open(&root, 10);
        let draft = begin(&store, n).await;
        draft.reserve(MIB).expect("reserve");
        draft.start(sidecar(resumable)).expect("start").write_all(b"half").expect("write");
        drop(draft.output().expect("output"));
        drop(draft);
        assert_eq!(store.usage().partials, usize::from(resumable));
        drop(store);
        let store = open(&root, 10);
        let draft = begin(&store, n).await;
        assert_eq!(draft.before().map(|before| before.length), resumable.then_some(4));
        if resumable {
            let data = draft.resume().expect("resume");
            assert_eq!(read(&data), b"half");
        }
        draft.discard();
        drop(draft);
        assert_eq!(files(root.path()), [""; 0]);
    }
}

#[tokio::test]
async fn bytes_of_another_boot_are_trusted_as_far_as_they_were_synced() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 10);
    let draft = begin(&store, 1).await;
    let mut data = draft.start(sidecar(true)).expect("start");
    data.write_all(b"0123456789").expect("write");
    draft.checkpoint(&data, 6).expect("checkpoint");
    drop((draft, store));
    let path = root.path().join(format!("partial/{}/about.json", identity(1)));
    let mut about: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("json");
    assert_eq!(about["durable"], 6);
    about["boot"] = "before the power went".into();
    fs::write(&path, about.to_string()).expect("write");
    let store = open(&root, 10);
    let draft = begin(&store, 1).await;
    assert_eq!(read(&draft.resume().expect("resume")), b"012345");
}

#[tokio::test]
async fn one_artifact_is_taken_in_by_one_at_a_time() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 10);
    let first = begin(&store, 1).await;
    let second = {
        let store = store.clone();
        tokio::spawn(async move { begin(&store, 1).await })
    };
    // Another artifact need not wait, and the second one is known to wait once this has gone through after it.
    drop(begin(&store, 2).await);
    assert!(!second.is_finished());
    drop(first);
    tokio::time::timeout(Duration::from_secs(60), second).await.expect("in time").expect("no panic");
}

#[tokio::test]
async fn a_disk_that_someone_removed_or_cut_is_forgotten() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 10);
    let path = |n| root.path().join(format!("disks/{}.qcow2", Digest::of(&content(n)).hex()));
    for n in [1, 2] {
        take_in(&store, n, &content(n)).await.expect("take in");
    }
    fs::remove_file(path(1)).expect("remove");
    File::options().write(true).open(path(2)).and_then(|file| file.set_len(5)).expect("cut");
    for n in [1, 2] {
        assert!(store.find(&identity(n)).expect("find").is_none());
        assert!(store.lease(&Digest::of(&content(n))).expect("lease").is_none());
    }
    assert_eq!((store.usage().used, files(root.path()).len()), (0, 0));
    take_in(&store, 1, &content(1)).await.expect("take in again");
}

#[test]
fn a_directory_has_one_owner() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 1);
    let refused = Store::open(root.path(), MIB).err().expect("refused");
    assert!(matches!(refused, SpoolError::InUse { .. }) && refused.to_string().contains(&root.path().display().to_string()), "{refused}");
    drop(store);
    open(&root, 1);
}

#[tokio::test]
async fn the_sweep_keeps_what_is_whole_and_leaves_strangers_alone() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 10);
    for n in [1, 2, 3] {
        take_in(&store, n, &content(n)).await.expect("take in");
    }
    drop(store);
    let at = |path: String| root.path().join(path);
    let disk = |n| at(format!("disks/{}.qcow2", Digest::of(&content(n)).hex()));
    let write = |path: &str, text: &str| {
        let path = at(path.to_owned());
        fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        fs::write(path, text).expect("write");
    };
    // Disk 2 is gone, record 3 is no record, so disk 3 has none.
    fs::remove_file(disk(2)).expect("remove");
    write(&format!("records/{}.json", identity(3)), "{");
    write(&format!("records/{}.json.tmp", identity(1)), "{}");
    write(&format!("work/{}.qcow2", identity(9)), "half a disk");
    write(&format!("partial/{}/data", identity(4)), "no sidecar");
    write(&format!("partial/{}/about.json", identity(5)), &serde_json::to_string(&sidecar(true)).expect("json"));
    // Left after a commit: the artifact has a record.
    write(&format!("partial/{}/about.json", identity(1)), &serde_json::to_string(&sidecar(true)).expect("json"));
    write(&format!("partial/{}/data", identity(1)), "left");
    // A week old.
    write(&format!("partial/{}/about.json", identity(6)), &serde_json::to_string(&Sidecar { durable: 4, ..sidecar(true) }).expect("json"));
    write(&format!("partial/{}/data", identity(6)), "oldy");
    let old = std::time::SystemTime::now() - Duration::from_secs(8 * 24 * 3600);
    File::options().write(true).open(at(format!("partial/{}/data", identity(6)))).and_then(|file| file.set_modified(old)).expect("age");
    write(&format!("partial/{}/about.json", identity(7)), &serde_json::to_string(&Sidecar { durable: 4, ..sidecar(true) }).expect("json"));
    write(&format!("partial/{}/data", identity(7)), "good");
    write("disks/README", "a stranger");
    write("lost+found/x", "a stranger");

    let store = open(&root, 10);
    let mut expected = vec![
        "disks/README".to_owned(),
        format!("disks/{}.qcow2", Digest::of(&content(1)).hex()),
        "lost+found/x".to_owned(),
        format!("partial/{}/about.json", identity(7)),
        format!("partial/{}/data", identity(7)),
        format!("records/{}.json", identity(1)),
    ];
    expected.sort();
    assert_eq!(files(root.path()), expected);
    assert_eq!((store.usage().disks, store.usage().partials), (1, 1));
}

#[tokio::test]
async fn a_spool_of_another_layout_is_emptied() {
    let root = TempDir::new().expect("dir");
    drop(take_in(&open(&root, 10), 1, &content(1)).await.expect("take in"));
    fs::write(root.path().join("spool.lock"), "golden-catalog spool, layout 999\n").expect("write");
    let store = open(&root, 10);
    assert_eq!((store.usage().disks, files(root.path()).len()), (0, 0));
    drop(store);
    drop(take_in(&open(&root, 10), 1, &content(1)).await.expect("take in"));
    assert!(open(&root, 10).find(&identity(1)).expect("find").is_some());
}

#[tokio::test]
async fn a_lock_file_removed_by_hand_is_made_anew_and_nothing_is_lost() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 10);
    take_in(&store, 1, &content(1)).await.expect("take in");
    let draft = Arc::new(begin(&store, 2).await);
    fs::remove_file(root.path().join("spool.lock")).expect("remove");
    take_in(&store, 3, &content(3)).await.expect("take in");
    assert!(store.find(&identity(1)).expect("find").is_some());
    assert!(matches!(Store::open(root.path(), MIB).err(), Some(SpoolError::InUse { .. })));
    // What was begun before cannot be known to lie there.
    assert!(matches!(draft.reserve(1), Err(SpoolError::Vanished { .. })));
}

#[tokio::test]
async fn a_refetch_that_differs_replaces_the_record_and_keeps_the_old_disk_for_its_readers() {
    let root = TempDir::new().expect("dir");
    let store = open(&root, 10);
    let old = take_in(&store, 1, &content(1)).await.expect("take in");
    let new = take_in(&store, 1, &content(2)).await.expect("take in");
    assert_ne!(old.lease.digest(), new.lease.digest());
    assert_eq!(store.find(&identity(1)).expect("find").expect("is there").record, new.record);
    assert_eq!(read(old.lease.file()), content(1));
    drop((old, new, store));
    assert_eq!(open(&root, 10).usage().disks, 1);
}
