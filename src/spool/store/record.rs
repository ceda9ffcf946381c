use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{ContainerFacts, Digest};

/// What is known for good about an artifact and the disk that was made of it. Durable, and written after the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The bytes as upstream served them.
    pub artifact: ArtifactFacts,
    /// The disk in the spool.
    pub disk: DiskFacts,
    /// How the artifact was verified.
    pub verified: Verified,
}

/// An artifact: bytes as upstream served them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactFacts {
    /// Of the bytes as downloaded.
    pub digest: Digest,
    /// Bytes downloaded.
    pub size: u64,
    /// The format found in the bytes, as status shows it (`qcow2`, `raw.xz`).
    pub format: String,
    /// Where the bytes came from in the end, without credentials and query content ([`crate::model::public_url`]).
    #[serde(rename = "resolvedURL")]
    pub resolved_url: String,
    /// The validator that upstream gave, as it was given.
    pub etag: Option<String>,
    /// When upstream answered.
    pub resolved_time: Timestamp,
    /// For a disk out of a container image, which parts of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerFacts>,
}

/// A disk in the spool: a qcow2 file named by its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskFacts {
    /// Of the qcow2 file.
    pub digest: Digest,
    /// Bytes of the qcow2 file.
    pub length: u64,
    /// Bytes that a guest sees.
    pub virtual_size: u64,
}

/// What the word "verified" rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verified {
    /// A digest was known, and the bytes have it; their structure is whole too.
    Digest,
    /// No digest was known; the structure is whole.
    Structure,
}

/// What lies beside a partial download, so that a later process can go on with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sidecar {
    /// Where the bytes come from, without credentials and query content.
    #[serde(rename = "resolvedURL")]
    pub resolved_url: String,
    /// Upstream's `ETag`, as it was given.
    pub etag: Option<String>,
    /// Upstream's `Last-Modified`, as it was given.
    pub last_modified: Option<String>,
    /// The length of the whole artifact, where upstream said it.
    pub total: Option<u64>,
    /// When upstream answered.
    pub resolved_time: Timestamp,
    /// For a layer of a container image, which it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerFacts>,
    /// What the source needs to go on where the bytes end; the spool does not look into it. `None` where it cannot: a
    /// download that is cut then starts over, so it is not kept.
    pub resume: Option<serde_json::Value>,
    /// The digest of the whole artifact, once every byte of it is here.
    pub complete: Option<Digest>,
    /// How many bytes are known to be on the volume, not only in the page cache.
    pub durable: u64,
    /// The boot in which the bytes past `durable` were written: they outlive the process, but not the machine.
    pub boot: String,
}

impl Sidecar {
    /// Whether the bytes are worth keeping when the download is cut: all are here, or the source can go on with them.
    pub const fn is_resumable(&self) -> bool {
        self.complete.is_some() || self.resume.is_some()
    }

    /// How many of `length` bytes in the file can be trusted, to be hashed and gone on from.
    pub(super) fn trusted(&self, length: u64, boot: &str) -> u64 {
        let trusted = if self.boot == boot && !boot.is_empty() { length } else { self.durable.min(length) };
        match (self.total, self.complete) {
            // More bytes than there can be, or fewer than there were: not what was written.
            (Some(total), _) if trusted > total => 0,
            (Some(total), Some(_)) if trusted < total => 0,
            _ => trusted,
        }
    }
}

/// The kernel's name for this boot (`random(4)`); empty where it cannot be read, and then nothing unsynced is trusted.
pub(super) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use rstest::rstest;

    use super::Sidecar;
    use crate::model::Digest;

    #[rstest]
    #[case::same_boot(100, "b1", Some(200), false, 100)]
    #[case::other_boot(100, "b2", Some(200), false, 10)]
    #[case::other_boot_and_cut(5, "b2", Some(200), false, 5)]
    #[case::unknown_boot(100, "", Some(200), false, 10)]
    #[case::unknown_total(100, "b1", None, false, 100)]
    #[case::too_long(100, "b1", Some(99), false, 0)]
    #[case::complete(100, "b1", Some(100), true, 100)]
    #[case::complete_but_cut(99, "b1", Some(100), true, 0)]
    #[case::complete_but_not_durable(100, "b2", Some(100), true, 0)]
    fn trusts_what_was_synced_or_written_in_this_boot(
        #[case] length: u64,
        #[case] boot: &str,
        #[case] total: Option<u64>,
        #[case] complete: bool,
        #[case] trusted: u64,
    ) {
        let sidecar = Sidecar {
            resolved_url: "https://example.org/x".into(),
            etag: None,
            last_modified: None,
            total,
            resolved_time: Timestamp::UNIX_EPOCH,
            container: None,
            resume: None,
            complete: complete.then(|| Digest::of(b"")),
            durable: 10,
            boot: "b1".into(),
        };
        assert_eq!(sidecar.trusted(length, boot), trusted);
    }
}
