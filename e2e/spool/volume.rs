//! The volume full, read-only, gone and back. Needs root, to mount file systems of a limited size.

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::Instant,
};

use golden_catalog::{
    model::Digest,
    rules::Reason,
    spool::{DiskFile, SpoolError, Store},
};
use tempfile::TempDir;

use crate::support::{MIB, PATIENCE, content, files, identity, record, reopen, run, sidecar, skip, take_in};

/// A folder with a small file system on it.
struct Mounted {
    path: PathBuf,
    _parent: TempDir,
}

impl Mounted {
    /// `None`, and said so, where nothing may be mounted.
    fn new(mib: u64) -> Option<Self> {
        let parent = TempDir::new().expect("dir");
        let path = parent.path().join("spool");
        std::fs::create_dir(&path).expect("folder");
        let (done, said) =
            run("mount", &["-t", "tmpfs", "-o", &format!("size={mib}m"), "golden-catalog-test", &path.display().to_string()]);
        if !done {
            skip(&format!("nothing may be mounted here: {}", String::from_utf8_lossy(&said).trim()));
            return None;
        }
        Some(Self { path, _parent: parent })
    }

    fn text(&self) -> String {
        self.path.display().to_string()
    }

    fn store(&self, capacity: u64) -> Store {
        reopen(&self.path, capacity).expect("open")
    }

    /// A child that another test has just forked holds every file open for a moment, and what is in use cannot be unmounted.
    fn must(&self, program: &str, arguments: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (done, said) = run(program, arguments);
            let said = String::from_utf8_lossy(&said);
            if done {
                return;
            }
            assert!(program == "umount" && said.contains("busy") && Instant::now() < deadline, "{program}: {said}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // One mount may lie on another.
        while run("umount", &["-l", &self.text()]).0 {}
    }
}

fn fill(path: &Path) {
    let mut filler = File::create(path).expect("create");
    let chunk = vec![1; 64 << 10];
    while filler.write(&chunk).is_ok_and(|written| written > 0) {}
}

/// Removes what [`fill`] made, and waits until its room is free: a child that another test has just forked holds it open for a moment.
fn unfill(path: &Path) {
    let free = || rustix::fs::statvfs(path.parent().expect("a folder")).expect("volume").f_bavail;
    let full = free();
    std::fs::remove_file(path).expect("remove");
    let deadline = Instant::now() + PATIENCE;
    while free() == full {
        assert!(Instant::now() < deadline, "the room of a removed file does not come back");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_volume_smaller_than_the_capacity_refuses_before_it_is_full() {
    let Some(volume) = Mounted::new(8) else { return };
    let store = volume.store(1 << 40);
    take_in(&store, 1, &content(1, 3 * MIB)).await.expect("take in");
    let one = store.begin(&identity(2)).await.expect("begin");
    one.reserve(3 * MIB).expect("fits");
    let two = store.begin(&identity(3)).await.expect("begin");
    // What is promised but not written yet counts: 8 MiB less 3 that lie there and 3 that are promised, disk 1 evicted.
    // A child that another test has just forked may hold the evicted disk open for a moment, as it holds every file.
    let deadline = Instant::now() + PATIENCE;
    while two.reserve(4 * MIB).is_err() {
        assert!(Instant::now() < deadline, "does not fit although disk 1 can go");
        std::thread::yield_now();
    }
    assert!(store.find(&identity(1)).expect("find").is_none());
    let refused = two.reserve(6 * MIB).expect_err("too much");
    assert_eq!(refused.reason(), Reason::SpoolFull);
    assert!(matches!(refused, SpoolError::Full { .. }), "{refused}");
}

#[tokio::test]
async fn a_volume_that_others_fill_stops_a_download_which_goes_on_once_there_is_room() {
    let Some(volume) = Mounted::new(8) else { return };
    let store = volume.store(1 << 30);
    take_in(&store, 9, &content(9, MIB)).await.expect("take in");
    let disk = content(1, 4 * MIB);
    {
        let draft = store.begin(&identity(1)).await.expect("begin");
        draft.reserve(4 * MIB).expect("reserve");
        let data = draft.start(sidecar()).expect("start");
        data.write_all_at(&disk[..MIB as usize], 0).expect("write");
        fill(&volume.path.join("filler"));
        let full = data.write_all_at(&disk[MIB as usize..], MIB).expect_err("the volume is full");
        assert_eq!(SpoolError::io("write", "data", full).reason(), Reason::SpoolFull);
        let full = draft.checkpoint(&data, MIB).expect_err("the volume is full");
        assert_eq!(full.reason(), Reason::SpoolFull, "{full}");
    }
    // What is there can still be read, and opened by the next process.
    assert_eq!(store.find(&identity(9)).expect("find").expect("is there").lease.length(), MIB);
    drop(store);
    let store = volume.store(1 << 30);
    unfill(&volume.path.join("filler"));
    let draft = store.begin(&identity(1)).await.expect("begin");
    let length = draft.before().expect("kept").length;
    assert!(length >= MIB, "{length}");
    let data = draft.resume().expect("resume");
    data.write_all_at(&disk[usize::try_from(length).expect("fits")..], length).expect("write");
    draft.complete(&data, 4 * MIB, Digest::of(&disk)).expect("complete");
    draft.commit(record(&disk, &disk), DiskFile::Download).expect("commit");
}

#[tokio::test]
async fn a_full_volume_at_commit_shows_nothing_and_loses_nothing() {
    let Some(volume) = Mounted::new(8) else { return };
    let store = volume.store(1 << 30);
    let disk = content(1, MIB);
    {
        let draft = store.begin(&identity(1)).await.expect("begin");
        let data = draft.start(sidecar()).expect("start");
        data.write_all_at(&disk, 0).expect("write");
        draft.complete(&data, MIB, Digest::of(&disk)).expect("complete");
        fill(&volume.path.join("filler"));
        let full = draft.commit(record(&disk, &disk), DiskFile::Download).expect_err("the record does not fit");
        assert_eq!(full.reason(), Reason::SpoolFull, "{full}");
    }
    assert!(store.find(&identity(1)).expect("find").is_none());
    unfill(&volume.path.join("filler"));
    let draft = store.begin(&identity(1)).await.expect("begin");
    assert_eq!(draft.before().and_then(|before| before.sidecar.complete), Some(Digest::of(&disk)));
    draft.commit(record(&disk, &disk), DiskFile::Download).expect("commit");
}

#[tokio::test]
async fn a_read_only_volume_serves_what_it_has_and_works_again_afterwards() {
    let Some(volume) = Mounted::new(8) else { return };
    let store = volume.store(4 * MIB);
    take_in(&store, 1, &content(1, 2 * MIB)).await.expect("take in");
    // A read-only view of the same file system, laid over the writable one.
    volume.must("mount", &["--bind", &volume.text(), &volume.text()]);
    volume.must("mount", &["-o", "remount,bind,ro", &volume.text()]);
    let found = store.find(&identity(1)).expect("find").expect("is there");
    assert_eq!(found.lease.length(), 2 * MIB);
    drop(found);
    let refused = take_in(&store, 2, &content(2, MIB)).await.expect_err("read-only");
    assert_eq!(refused.reason(), Reason::SpoolFailed, "{refused}");
    // Eviction fails too, and what could not be removed is still known.
    let refused = take_in(&store, 3, &content(3, 3 * MIB)).await.expect_err("read-only");
    assert_eq!(refused.reason(), Reason::SpoolFailed, "{refused}");
    assert!(store.find(&identity(1)).expect("find").is_some());
    volume.must("umount", &[&volume.text()]);
    take_in(&store, 3, &content(3, 3 * MIB)).await.expect("writable again, evicting");
    assert_eq!((store.usage().used, files(&volume.path).len()), (3 * MIB, 2));
}

#[tokio::test]
async fn a_vanished_volume_is_never_written_beside_and_is_found_again() {
    let Some(volume) = Mounted::new(16) else { return };
    let store = volume.store(10 * MIB);
    let (one, two) = (content(1, MIB), content(2, MIB));
    take_in(&store, 1, &one).await.expect("take in");
    let draft = store.begin(&identity(2)).await.expect("begin");
    let data = draft.start(sidecar()).expect("start");
    data.write_all_at(&two, 0).expect("write");

    let aside = TempDir::new().expect("dir");
    let kept = aside.path().display().to_string();
    volume.must("mount", &["--bind", &volume.text(), &kept]);
    volume.must("umount", &["-l", &volume.text()]);
    for refused in [
        store.find(&identity(1)).map(|_| ()),
        draft.reserve(2 * MIB),
        draft.complete(&data, MIB, Digest::of(&two)),
        draft.commit(record(&two, &two), DiskFile::Download).map(|_| ()),
        take_in(&store, 3, &content(3, MIB)).await.map(|_| ()),
    ] {
        let refused = refused.expect_err("gone");
        assert!(matches!(refused, SpoolError::Vanished { .. }) && refused.reason() == Reason::SpoolFailed, "{refused}");
    }
    assert!(files(&volume.path).is_empty(), "nothing may be written to the folder below the mount");

    volume.must("mount", &["--bind", &kept, &volume.text()]);
    volume.must("umount", &["-l", &kept]);
    assert!(store.find(&identity(1)).expect("find").is_some());
    draft.complete(&data, MIB, Digest::of(&two)).expect("complete");
    draft.commit(record(&two, &two), DiskFile::Download).expect("commit");
    assert!(store.find(&identity(2)).expect("find").is_some());
}

#[tokio::test]
async fn an_empty_volume_in_the_place_of_a_lost_one_is_taken_into_use() {
    let Some(volume) = Mounted::new(16) else { return };
    let store = volume.store(10 * MIB);
    take_in(&store, 1, &content(1, MIB)).await.expect("take in");
    let draft = store.begin(&identity(2)).await.expect("begin");
    let data = draft.start(sidecar()).expect("start");
    data.write_all_at(&content(2, MIB), 0).expect("write");
    volume.must("umount", &["-l", &volume.text()]);
    volume.must("mount", &["-t", "tmpfs", "-o", "size=8m", "golden-catalog-test", &volume.text()]);
    assert!(store.find(&identity(1)).expect("find").is_none());
    // Bytes of the lost volume are not taken for bytes of this one.
    assert!(draft.commit(record(&content(2, MIB), &content(2, MIB)), DiskFile::Download).is_err());
    drop(draft);
    take_in(&store, 1, &content(1, MIB)).await.expect("take in");
    assert_eq!((store.usage().used, store.usage().reserved), (MIB, 0));
}
