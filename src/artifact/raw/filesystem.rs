//! Bare file systems, told by their superblocks.

use super::super::bytes::{be32, be64, has, le16, le32, le64};

/// A file system without a partition table around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileSystem {
    pub(super) name: &'static str,
    /// How long it says that it is, in bytes.
    pub(super) len: u64,
}

impl FileSystem {
    /// An iso9660 volume (ECMA-119 section 8.4): its primary volume descriptor is in block 16 of 2 KiB.
    pub(super) fn iso9660(head: &[u8]) -> Option<Self> {
        let descriptor = head.get(16 * 2048..17 * 2048)?;
        let block = u64::from(le16(descriptor, 128));
        let ok = has(descriptor, 0, b"\x01CD001\x01") && matches!(block, 512 | 1024 | 2048);
        ok.then(|| Self { name: "iso9660", len: u64::from(le32(descriptor, 80)) * block })
    }

    /// A file system whose boot sector ends like a master boot record: to be asked before that.
    pub(super) fn with_boot_sector(head: &[u8]) -> Option<Self> {
        if !has(head, 510, &[0x55, 0xaa]) {
            return None;
        }
        let sector = u64::from(le16(head, 11));
        let of = |name, sectors: u64, sector: u64| sectors.checked_mul(sector).map(|len| Self { name, len });
        if has(head, 3, b"EXFAT   ") {
            let shift = u32::from(*head.get(108)?);
            return (9..=12).contains(&shift).then(|| of("exfat", le64(head, 72), 1 << shift)).flatten();
        }
        if !matches!(sector, 512 | 1024 | 2048 | 4096) {
            return None;
        }
        if has(head, 3, b"NTFS    ") {
            return of("ntfs", le64(head, 40), sector);
        }
        let fat = has(head, 54, b"FAT12   ") || has(head, 54, b"FAT16   ") || has(head, 82, b"FAT32   ");
        let sectors = match le16(head, 19) {
            0 => u64::from(le32(head, 32)),
            small => u64::from(small),
        };
        if fat && head.get(13)?.is_power_of_two() { of("fat", sectors, sector) } else { None }
    }

    /// A file system without a boot sector of its own.
    pub(super) fn other(head: &[u8]) -> Option<Self> {
        Self::ext(head).or_else(|| Self::xfs(head)).or_else(|| Self::btrfs(head)).or_else(|| Self::squashfs(head))
    }

    /// ext2, ext3, ext4 (`fs/ext4/ext4.h`, `struct ext4_super_block` at byte 1024).
    fn ext(head: &[u8]) -> Option<Self> {
        let superblock = head.get(1024..2048)?;
        let log = le32(superblock, 24);
        if !has(superblock, 56, &[0x53, 0xef]) || log > 6 {
            return None;
        }
        let high = if le32(superblock, 96) & 0x80 != 0 { u64::from(le32(superblock, 0x150)) } else { 0 };
        let blocks = high << 32 | u64::from(le32(superblock, 4));
        blocks.checked_mul(1024 << log).map(|len| Self { name: "ext", len })
    }

    /// XFS (`fs/xfs/libxfs/xfs_format.h`, `struct xfs_dsb`).
    fn xfs(head: &[u8]) -> Option<Self> {
        let block = u64::from(be32(head, 4));
        if !has(head, 0, b"XFSB") || !(512..=65_536).contains(&block) || !block.is_power_of_two() {
            return None;
        }
        be64(head, 8).checked_mul(block).map(|len| Self { name: "xfs", len })
    }

    /// btrfs (`struct btrfs_super_block` at 64 KiB): of several devices this is only one, and no disk by itself.
    fn btrfs(head: &[u8]) -> Option<Self> {
        let superblock = head.get(65_536..65_536 + 4096)?;
        let single = has(superblock, 64, b"_BHRfS_M") && le64(superblock, 136) == 1;
        single.then(|| Self { name: "btrfs", len: le64(superblock, 112) })
    }

    /// squashfs 4 (`fs/squashfs/squashfs_fs.h`, `struct squashfs_super_block`).
    fn squashfs(head: &[u8]) -> Option<Self> {
        (has(head, 0, b"hsqs") && le16(head, 28) == 4).then(|| Self { name: "squashfs", len: le64(head, 40) })
    }
}
