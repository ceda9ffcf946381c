use super::super::{
    ArtifactError,
    bytes::{has, is_zero, le32, le64},
};

/// A GUID partition table header (UEFI specification 2.10, section 5.3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gpt {
    /// Bytes in a sector: 512 or 4096.
    pub(super) sector: u64,
    /// The sector that this header is in.
    my_lba: u64,
    /// The sector of the other header; for the primary one the last sector of the disk.
    pub(super) alternate_lba: u64,
    first_usable: u64,
    last_usable: u64,
    entries_lba: u64,
    entries: u32,
    entry_len: u32,
    entries_crc: u32,
    disk_guid: [u8; 16],
}

/// What errors call the headers and the partition entries.
const PRIMARY: &str = "GPT header";
const ALTERNATE: &str = "alternate GPT header";
const ENTRIES: &str = "GPT partition entries";

impl Gpt {
    const SIGNATURE: &'static [u8] = b"EFI PART";
    /// The most bytes of partition entries that are read: 8192 entries. Every known tool writes 16 KiB.
    const MAX_ENTRIES_LEN: u64 = 1 << 20;

    /// The primary header in the first bytes of a disk; `None` where there is none, with sectors of 512 or 4096 bytes.
    pub(super) fn primary(head: &[u8]) -> Option<Result<Self, ArtifactError>> {
        let sector = [512_u64, 4096].into_iter().find(|sector| has(head, *sector as usize, Self::SIGNATURE))?;
        let header = head.get(sector as usize..)?;
        Some(Self::parse(header, sector, 1, PRIMARY).and_then(Self::check_primary))
    }

    /// The length that the disk has by its table, in bytes.
    pub(super) fn disk_len(&self) -> u64 {
        // `check_primary` has seen that this does not overflow.
        (self.alternate_lba + 1) * self.sector
    }

    /// Where the primary partition entries lie, as offset and length in bytes.
    pub(super) fn entries_range(&self) -> (u64, u64) {
        (self.entries_lba * self.sector, self.entries_len())
    }

    /// Where the alternate header and its entries lie, as offset and length in bytes. The entries' place is only known
    /// from the alternate header, but must lie behind the last usable sector (section 5.3.1).
    pub(super) fn alternate_range(&self) -> (u64, u64) {
        let longest = (Self::MAX_ENTRIES_LEN + self.sector).div_ceil(self.sector);
        let start = (self.last_usable + 1).max(self.alternate_lba.saturating_sub(longest));
        (start * self.sector, (self.alternate_lba + 1 - start) * self.sector)
    }

    fn entries_len(&self) -> u64 {
        u64::from(self.entries) * u64::from(self.entry_len)
    }

    /// Reads the header of sector `lba` and checks its CRC and its own place.
    fn parse(header: &[u8], sector: u64, lba: u64, part: &'static str) -> Result<Self, ArtifactError> {
        let at = lba.saturating_mul(sector);
        let corrupt = |found: String| ArtifactError::corrupt(part, at, found);
        if !has(header, 0, Self::SIGNATURE) {
            return Err(corrupt("there is none".to_owned()));
        }
        let len = le32(header, 12);
        let checked = usize::try_from(len).ok().filter(|len| (92..=sector as usize).contains(len)).and_then(|len| header.get(..len));
        let Some(checked) = checked else {
            return Err(corrupt(format!("a header length of {len}")));
        };
        let mut crc = crc32fast::Hasher::new();
        crc.update(&checked[..16]);
        crc.update(&[0; 4]);
        crc.update(&checked[20..]);
        if crc.finalize() != le32(header, 16) {
            return Err(corrupt("its CRC does not match".to_owned()));
        }
        let mut disk_guid = [0; 16];
        disk_guid.copy_from_slice(&checked[56..72]);
        let gpt = Self {
            sector,
            my_lba: le64(header, 24),
            alternate_lba: le64(header, 32),
            first_usable: le64(header, 40),
            last_usable: le64(header, 48),
            entries_lba: le64(header, 72),
            entries: le32(header, 80),
            entry_len: le32(header, 84),
            entries_crc: le32(header, 88),
            disk_guid,
        };
        if gpt.my_lba != lba {
            return Err(corrupt(format!("it says that it is in sector {} and is in sector {lba}", gpt.my_lba)));
        }
        if gpt.entry_len < 128 || !gpt.entry_len.is_power_of_two() || gpt.entries == 0 || gpt.entries_len() > Self::MAX_ENTRIES_LEN {
            return Err(corrupt(format!("{} partition entries of {} bytes", gpt.entries, gpt.entry_len)));
        }
        Ok(gpt)
    }

    fn check_primary(self) -> Result<Self, ArtifactError> {
        let entries_end = self.entries_lba.checked_add(self.entries_len().div_ceil(self.sector));
        let fits = self.entries_lba >= 2
            && entries_end.is_some_and(|end| end <= self.first_usable)
            && self.first_usable <= self.last_usable
            && self.last_usable < self.alternate_lba
            && self
                .alternate_lba
                .checked_add(1)
                .and_then(|sectors| sectors.checked_mul(self.sector))
                .is_some_and(|len| len <= i64::MAX as u64);
        if fits { Ok(self) } else { Err(ArtifactError::corrupt(PRIMARY, self.sector, "its sector numbers contradict each other")) }
    }

    /// Checks the primary partition entries, which `entries` holds.
    pub(super) fn check_entries(&self, entries: &[u8]) -> Result<(), ArtifactError> {
        let at = self.entries_lba * self.sector;
        if crc32fast::hash(entries) != self.entries_crc {
            return Err(ArtifactError::corrupt(ENTRIES, at, "their CRC does not match"));
        }
        for (index, entry) in entries.chunks_exact(self.entry_len as usize).enumerate() {
            let (first, last) = (le64(entry, 32), le64(entry, 40));
            if !is_zero(&entry[..16]) && (first > last || first < self.first_usable || last > self.last_usable) {
                let found = format!("partition {} from sector {first} to {last} lies outside the usable sectors", index + 1);
                return Err(ArtifactError::corrupt(ENTRIES, at + index as u64 * u64::from(self.entry_len), found));
            }
        }
        Ok(())
    }

    /// Checks the alternate header and its entries, where `bytes` is what [`Self::alternate_range`] asked for.
    pub(super) fn check_alternate(&self, bytes: &[u8]) -> Result<(), ArtifactError> {
        let (start, len) = self.alternate_range();
        let at = self.alternate_lba * self.sector;
        let header = bytes.get((len - self.sector) as usize..).unwrap_or_default();
        let other = Self::parse(header, self.sector, self.alternate_lba, ALTERNATE)?;
        let same = other.alternate_lba == self.my_lba
            && (other.first_usable, other.last_usable) == (self.first_usable, self.last_usable)
            && (other.entries, other.entry_len, other.entries_crc) == (self.entries, self.entry_len, self.entries_crc)
            && other.disk_guid == self.disk_guid;
        if !same {
            return Err(ArtifactError::corrupt(ALTERNATE, at, "it differs from the primary header"));
        }
        let entries_at = other.entries_lba.checked_mul(self.sector);
        let offset = entries_at.and_then(|at| at.checked_sub(start)).and_then(|offset| usize::try_from(offset).ok());
        let entries = offset.and_then(|offset| bytes.get(offset..(len - self.sector) as usize)?.get(..self.entries_len() as usize));
        match entries {
            None => Err(ArtifactError::corrupt(ALTERNATE, at, "its partition entries lie outside the end of the disk")),
            Some(entries) if crc32fast::hash(entries) != self.entries_crc => {
                Err(ArtifactError::corrupt("alternate GPT partition entries", entries_at.unwrap_or(at), "their CRC does not match"))
            }
            Some(_) => Ok(()),
        }
    }
}
