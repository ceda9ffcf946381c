use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::{
    model::{Digest, Identity},
    spool::SpoolError,
};

/// Where each kind of file lies under the spool's directory.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    root: PathBuf,
}

/// What a disk's file name ends with.
const DISK_SUFFIX: &str = ".qcow2";
/// What a record's file name ends with.
const RECORD_SUFFIX: &str = ".json";

impl Layout {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn disks(&self) -> PathBuf {
        self.root.join("disks")
    }

    pub(super) fn records(&self) -> PathBuf {
        self.root.join("records")
    }

    pub(super) fn partials(&self) -> PathBuf {
        self.root.join("partial")
    }

    pub(super) fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    pub(super) fn folders(&self) -> [PathBuf; 4] {
        [self.disks(), self.records(), self.partials(), self.work()]
    }

    pub(super) fn disk(&self, digest: &Digest) -> PathBuf {
        self.disks().join(format!("{}{DISK_SUFFIX}", digest.hex()))
    }

    pub(super) fn record(&self, identity: &Identity) -> PathBuf {
        self.records().join(format!("{identity}{RECORD_SUFFIX}"))
    }

    /// The folder of one artifact's download.
    pub(super) fn partial(&self, identity: &Identity) -> PathBuf {
        self.partials().join(identity.as_str())
    }

    /// The bytes downloaded so far.
    pub(super) fn data(&self, identity: &Identity) -> PathBuf {
        self.partial(identity).join("data")
    }

    /// What is known about the bytes downloaded so far.
    pub(super) fn sidecar(&self, identity: &Identity) -> PathBuf {
        self.partial(identity).join("about.json")
    }

    /// The disk being decoded.
    pub(super) fn output(&self, identity: &Identity) -> PathBuf {
        self.work().join(format!("{identity}{DISK_SUFFIX}"))
    }

    /// The digest that a file in `disks` is named by.
    pub(super) fn digest_of(name: &str) -> Option<Digest> {
        format!("sha256:{}", name.strip_suffix(DISK_SUFFIX)?).parse().ok()
    }

    /// The identity that a file in `records` is named by.
    pub(super) fn identity_of_record(name: &str) -> Option<Identity> {
        name.strip_suffix(RECORD_SUFFIX)?.parse().ok()
    }
}

/// Makes a folder that only the daemon may enter, and its parents.
pub(super) fn make_folder(path: &Path) -> Result<(), SpoolError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| SpoolError::io("create the folder", path, e))
}

/// Makes a folder's entries durable: a rename or link is on disk only once its folder is.
pub(super) fn sync_folder(path: &Path) -> Result<(), SpoolError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|e| SpoolError::io("sync the folder", path, e))
}

/// Creates an empty file for reading and writing, in place of one that is there.
pub(super) fn create(path: &Path) -> Result<File, SpoolError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    options.open(path).map_err(|e| SpoolError::io("create", path, e))
}

/// Writes a small file so that after a kill at any moment the old content or the new one is there, whole.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<(), SpoolError> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(SpoolError::io("write", path, io::ErrorKind::InvalidInput.into()));
    };
    let temporary = folder.join(format!("{}{TEMPORARY_SUFFIX}", name.to_string_lossy()));
    let written = create(&temporary).and_then(|mut file| {
        file.write_all(content).and_then(|()| file.sync_all()).map_err(|e| SpoolError::io("write", &temporary, e))?;
        fs::rename(&temporary, path).map_err(|e| SpoolError::io("rename", &temporary, e))?;
        sync_folder(folder)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// What a small file's name ends with while it is being written.
pub(super) const TEMPORARY_SUFFIX: &str = ".tmp";

/// Removes a file; that it is not there is as good.
pub(super) fn remove(path: &Path) -> Result<(), SpoolError> {
    absent_is_fine(fs::remove_file(path)).map_err(|e| SpoolError::io("remove", path, e))
}

/// Removes a folder of files; that it is not there is as good.
pub(super) fn remove_folder(path: &Path) -> Result<(), SpoolError> {
    absent_is_fine(fs::remove_dir_all(path)).map_err(|e| SpoolError::io("remove", path, e))
}

fn absent_is_fine(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

/// A file's metadata, or `None` where there is no such file.
pub(super) fn stat(path: &Path) -> Result<Option<fs::Metadata>, SpoolError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(SpoolError::io("look at", path, e)),
    }
}

/// Bytes that a file takes on its volume, holes left out (`stat(2)`: `st_blocks` counts units of 512 bytes).
pub(super) fn allocated(metadata: &fs::Metadata) -> u64 {
    metadata.blocks().saturating_mul(512)
}

/// The bytes a file takes now, or none where it is not there.
pub(super) fn allocated_at(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| allocated(&metadata))
}
