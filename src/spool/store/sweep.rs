//! What a process finds in the spool's directory, and what of it is kept.
//!
//! Kept are: a record whose disk is there with its length; a disk that a record names; a partial download that can go on.
//! Removed are: everything in `work` (a disk that was being decoded; its download is still there), temporary files,
//! records without their disk, disks without a record (the download they came from outlives them, see the order of a
//! commit), partial downloads that cannot go on, are older than [`STALE`], or whose artifact has a record. Files with
//! names the daemon would not give are left alone.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{
    Record, Sidecar,
    layout::{self, Layout},
    record,
    state::{Disk, Hold, Leftover, State, millis},
};
use crate::{
    model::{Digest, Identity},
    spool::SpoolError,
};

/// How old a partial download may be. Upstream's file has probably changed by then, and nobody asked for it since.
const STALE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The most bytes of a record or sidecar that are read; they are written with far fewer.
const LONGEST_JSON: u64 = 64 << 10;

/// Reads the directory, removes what is not to be kept, and gives the rest. Partial downloads and outputs of artifacts
/// that `busy` names are left alone: they are being worked on.
///
/// # Errors
/// When the volume fails. A file that cannot be read for that reason is never taken for one that is damaged.
pub(super) fn sweep(layout: &Layout, busy: impl Fn(&Identity) -> bool) -> Result<State, SpoolError> {
    let mut state = State::default();
    for (name, path) in entries(&layout.work())? {
        let owner = name.split_once('.').and_then(|(stem, _)| stem.parse().ok());
        if !owner.is_some_and(|owner| busy(&owner)) {
            layout::remove(&path)?;
        }
    }
    for (name, path) in entries(&layout.records())? {
        if name.ends_with(layout::TEMPORARY_SUFFIX) {
            layout::remove(&path)?;
        } else if let Some(identity) = Layout::identity_of_record(&name) {
            match record(layout, &path)? {
                Some(record) => drop(state.records.insert(identity, record)),
                None => layout::remove(&path)?,
            }
        }
    }
    let named: HashSet<Digest> = state.records.values().map(|record| record.disk.digest).collect();
    for (name, path) in entries(&layout.disks())? {
        let Some(digest) = Layout::digest_of(&name) else { continue };
        match layout::stat(&path)? {
            Some(file) if named.contains(&digest) => {
                let last_used = millis(file.modified().unwrap_or(SystemTime::UNIX_EPOCH));
                let disk = Disk { length: file.len(), allocated: layout::allocated(&file), hold: Hold::new(last_used) };
                state.disks.insert(digest, disk);
            }
            _ => layout::remove(&path)?,
        }
    }
    for (name, path) in entries(&layout.partials())? {
        let Ok(identity) = name.parse::<Identity>() else { continue };
        if busy(&identity) {
            continue;
        }
        match leftover(layout, &identity)?.filter(|_| !state.records.contains_key(&identity)) {
            Some(leftover) => drop(state.leftovers.insert(identity, leftover)),
            None => layout::remove_folder(&path)?,
        }
    }
    Ok(state)
}

/// A record that can be read and whose disk is there with its length.
fn record(layout: &Layout, path: &Path) -> Result<Option<Record>, SpoolError> {
    let Some(record) = read_json::<Record>(path)? else { return Ok(None) };
    let disk = layout::stat(&layout.disk(&record.disk.digest))?;
    Ok(disk.is_some_and(|disk| disk.is_file() && disk.len() == record.disk.length).then_some(record))
}

/// A partial download that is worth keeping.
fn leftover(layout: &Layout, identity: &Identity) -> Result<Option<Leftover>, SpoolError> {
    let (Some((sidecar, length)), Some(data)) = (partial(layout, identity)?, layout::stat(&layout.data(identity))?) else {
        return Ok(None);
    };
    let modified = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    // A time in the future is a clock that jumped, not an old file.
    let fresh = modified.elapsed().map_or(true, |age| age < STALE);
    let worth_it = sidecar.is_resumable() && length > 0 && fresh;
    Ok(worth_it.then(|| Leftover { allocated: layout::allocated(&data), last_used: millis(modified) }))
}

/// A partial download as it lies there: what is known of it, and how many of its bytes can be trusted.
pub(super) fn partial(layout: &Layout, identity: &Identity) -> Result<Option<(Sidecar, u64)>, SpoolError> {
    let (Some(sidecar), Some(data)) = (read_json::<Sidecar>(&layout.sidecar(identity))?, layout::stat(&layout.data(identity))?) else {
        return Ok(None);
    };
    let trusted = sidecar.trusted(data.len(), &record::boot());
    Ok(Some((sidecar, trusted)))
}

/// The value in a file, or `None` where it is missing, too long or not readable as such.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, SpoolError> {
    if layout::stat(path)?.is_none_or(|file| file.len() > LONGEST_JSON) {
        return Ok(None);
    }
    let text = fs::read(path).map_err(|e| SpoolError::io("read", path, e))?;
    Ok(serde_json::from_slice(&text).ok())
}

fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, SpoolError> {
    let failed = |e| SpoolError::io("list", folder, e);
    fs::read_dir(folder)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).map_err(failed))
        .collect()
}
