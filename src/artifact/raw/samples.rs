//! Small disks for tests, made by the letter of the specifications and not by the code under test.

use std::ops::Range;

/// A disk of `len` bytes with a GPT of `sector`-byte sectors, 128 entries and one partition, and some data in it.
pub(in crate::artifact) fn gpt_disk(len: usize, sector: usize) -> Vec<u8> {
    let mut disk = vec![0; len];
    let last = (len / sector - 1) as u64;
    let entries_sectors = (128 * 128_usize).div_ceil(sector) as u64;
    let (first_usable, last_usable) = (2 + entries_sectors, last - entries_sectors - 1);

    disk[446 + 4] = 0xee;
    disk[446 + 8..446 + 12].copy_from_slice(&1_u32.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&(last as u32).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);

    let mut entries = vec![0; 128 * 128];
    entries[..16].fill(0x11);
    entries[16..32].fill(0x22);
    entries[32..40].copy_from_slice(&first_usable.to_le_bytes());
    entries[40..48].copy_from_slice(&last_usable.to_le_bytes());

    let mut put = |lba: u64, other: u64, entries_lba: u64| {
        let mut header = [0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        header[8..12].copy_from_slice(&0x0001_0000_u32.to_le_bytes());
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        header[24..32].copy_from_slice(&lba.to_le_bytes());
        header[32..40].copy_from_slice(&other.to_le_bytes());
        header[40..48].copy_from_slice(&first_usable.to_le_bytes());
        header[48..56].copy_from_slice(&last_usable.to_le_bytes());
        header[56..72].fill(0x33);
        header[72..80].copy_from_slice(&entries_lba.to_le_bytes());
        header[80..84].copy_from_slice(&128_u32.to_le_bytes());
        header[84..88].copy_from_slice(&128_u32.to_le_bytes());
        header[88..92].copy_from_slice(&crc32fast::hash(&entries).to_le_bytes());
        let crc = crc32fast::hash(&header);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        let at = |lba: u64| lba as usize * sector;
        disk[at(lba)..at(lba) + 92].copy_from_slice(&header);
        disk[at(entries_lba)..at(entries_lba) + entries.len()].copy_from_slice(&entries);
    };
    put(1, last, 2);
    put(last, 1, last - entries_sectors);

    let data = len / 2..len / 2 + 5000;
    for (index, byte) in disk[data].iter_mut().enumerate() {
        *byte = index as u8;
    }
    disk
}

/// A disk of `len` bytes with an MBR and one partition over `sectors`.
pub(in crate::artifact) fn mbr_disk(len: usize, sectors: Range<u32>) -> Vec<u8> {
    let mut disk = vec![0; len];
    disk[..3].copy_from_slice(&[0xfa, 0x31, 0xc0]);
    disk[446] = 0x80;
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&sectors.start.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&(sectors.end - sectors.start).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}
