use super::super::{
    ArtifactError,
    bytes::{has, le32},
};

/// A master boot record with at least one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mbr {
    /// Where the last partition ends, in bytes.
    pub(super) end: u64,
    /// Whether it is the protective one of a GPT.
    pub(super) protective: bool,
}

impl Mbr {
    /// The partition type that covers a GPT disk for tools that know no GPT (UEFI specification 2.10, table 5.4).
    const GPT_PROTECTIVE: u8 = 0xee;

    /// The record in the first sector; `None` where there is none, or its table is no table (a boot sector of a file
    /// system ends with the same signature).
    pub(super) fn read(head: &[u8]) -> Option<Self> {
        if !has(head, 510, &[0x55, 0xaa]) {
            return None;
        }
        let mut found = Self { end: 0, protective: false };
        for entry in head.get(446..510)?.chunks_exact(16) {
            let (status, kind) = (entry[0], entry[4]);
            if status & 0x7f != 0 {
                return None;
            }
            if kind == 0 {
                continue;
            }
            let (start, sectors) = (u64::from(le32(entry, 8)), u64::from(le32(entry, 12)));
            if start == 0 || sectors == 0 {
                return None;
            }
            found.protective |= kind == Self::GPT_PROTECTIVE;
            found.end = found.end.max((start + sectors) * 512);
        }
        (found.end > 0).then_some(found)
    }

    /// What is wrong with a protective record that protects nothing.
    pub(super) fn without_gpt() -> ArtifactError {
        ArtifactError::corrupt("GPT header", 512, "there is none, although the protective MBR announces one")
    }
}
