use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::layout::{self, Layout};
use crate::spool::SpoolError;

/// The file that marks a directory as a spool and that the owning process holds locked.
const LOCK_FILE: &str = "spool.lock";
/// What it says. Another content is another layout, made by another version: the spool is a cache, so it is emptied.
const LAYOUT_VERSION: &[u8] = b"golden-catalog spool, layout 1\n";

/// The directory that this process owns, on the file system where it was opened.
///
/// A volume can vanish under a running process and leave the empty folder it was mounted on. Writing there would fill
/// another file system, so each use first asks whether the lock file at the path is still the one that is held.
pub(super) struct Volume {
    root: PathBuf,
    /// Held open for the `flock(2)` on it, which ends with the process.
    lock: File,
    /// The device and inode of the lock file.
    id: (u64, u64),
    place: Place,
    /// Which volume of this process's life it is, so that files of one are never taken for files of the next.
    generation: u64,
}

/// What is at a path: the directory itself, and whether a file system is mounted on it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    device: u64,
    inode: u64,
    mounted: bool,
}

impl Volume {
    /// Takes possession of a directory and lays it out.
    pub(super) fn open(layout: &Layout, generation: u64) -> Result<Self, SpoolError> {
        let root = layout.root();
        let path = root.join(LOCK_FILE);
        let failed = |e| SpoolError::io("lock", &path, e);
        let mut lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(SpoolError::InUse { path: root.to_owned() }),
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
        let metadata = lock.metadata().map_err(failed)?;
        let place = Place::of(root).map_err(failed)?;
        let mut version = Vec::new();
        lock.read_to_end(&mut version).map_err(failed)?;
        if version != LAYOUT_VERSION {
            // An empty file is new, or was made anew after someone removed it: what lies there is judged by the sweep.
            if !version.is_empty() {
                for folder in layout.folders() {
                    layout::remove_folder(&folder)?;
                }
            }
            lock.rewind().and_then(|()| lock.set_len(0)).and_then(|()| lock.write_all(LAYOUT_VERSION)).map_err(failed)?;
            lock.sync_all().map_err(failed)?;
        }
        for folder in layout.folders() {
            layout::make_folder(&folder)?;
        }
        layout::sync_folder(root)?;
        Ok(Self { root: root.to_owned(), lock, id: (metadata.dev(), metadata.ino()), place, generation })
    }

    /// Whether the directory is still this one.
    pub(super) fn is_here(&self) -> bool {
        // The held file tells of a device that is gone although its path still answers from a cache.
        self.lock.metadata().is_ok()
            && fs::metadata(self.root.join(LOCK_FILE)).is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.id)
    }

    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether what is at the path now may be opened in this volume's place: a spool, the same directory with its lock
    /// file removed, or an empty directory of the same kind (a mount where there was a mount, else the same file system).
    pub(super) fn may_be_followed(&self) -> bool {
        let Ok(now) = Place::of(&self.root) else { return false };
        if now == self.place || self.root.join(LOCK_FILE).is_file() {
            return true;
        }
        let same_kind = if self.place.mounted { now.mounted } else { now.device == self.place.device };
        let is_empty = |mut entries: fs::ReadDir| entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == "lost+found"));
        same_kind && fs::read_dir(&self.root).is_ok_and(is_empty)
    }
}

impl Place {
    fn of(root: &Path) -> io::Result<Self> {
        let here = fs::metadata(root)?;
        let parent = fs::metadata(root.join(".."))?;
        Ok(Self { device: here.dev(), inode: here.ino(), mounted: here.dev() != parent.dev() })
    }
}
