use proptest::prelude::*;
use rstest::rstest;

use super::{RawDisk, RawKind, RawVerifier};
use crate::{
    artifact::{
        ArtifactError,
        raw::samples::{gpt_disk, mbr_disk},
    },
    rules::Reason,
};

fn verify(disk: &[u8], step: usize) -> Result<RawDisk, ArtifactError> {
    let mut verifier = RawVerifier::new();
    for piece in disk.chunks(step) {
        verifier.update(piece)?;
    }
    verifier.finish()
}

/// Recomputes the CRC of the GPT header in sector `lba` after an edit.
fn reseal(disk: &mut [u8], lba: usize, sector: usize) {
    let header = &mut disk[lba * sector..lba * sector + 92];
    header[16..20].fill(0);
    let crc = crc32fast::hash(header);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
}

#[rstest]
fn a_gpt_disk_is_one_however_it_is_read(
    #[values(512, 4096)] sector: usize,
    #[values(64 << 10, 1 << 20, 5 << 20)] len: usize,
    #[values(511, 4096, 70_000, 1 << 20)] step: usize,
) {
    let disk = verify(&gpt_disk(len, sector), step).expect("a disk");
    assert_eq!(disk, RawDisk { kind: RawKind::Gpt { sector: sector as u64 }, len: len as u64 });
}

#[test]
fn a_disk_made_larger_is_still_one() {
    let mut disk = gpt_disk(1 << 20, 512);
    disk.resize(3 << 20, 0);
    assert_eq!(verify(&disk, 4096).expect("a disk").len, 3 << 20);
}

#[rstest]
fn a_gpt_disk_that_is_cut_is_truncated(#[values(512, 4096)] sector: usize, #[values(1, 512, 4096, 20_000, 900_000)] missing: usize) {
    let disk = gpt_disk(1 << 20, sector);
    let error = verify(&disk[..disk.len() - missing], 4096).expect_err("cut");
    assert!(matches!(error, ArtifactError::Truncated { .. }), "{error}");
    assert_eq!(error.reason(), Reason::Corrupt);
}

#[rstest]
#[case::primary_crc(512 + 56, "GPT header")]
#[case::primary_entries(1024 + 130, "GPT partition entries")]
#[case::alternate_crc((1 << 20) - 512 + 56, "alternate GPT header")]
#[case::alternate_signature((1 << 20) - 512, "alternate GPT header")]
#[case::alternate_entries((1 << 20) - 512 - 16_384 + 130, "alternate GPT partition entries")]
fn a_flipped_byte_in_a_table_is_named(#[case] at: usize, #[case] part: &str) {
    let mut disk = gpt_disk(1 << 20, 512);
    disk[at] ^= 0xff;
    let error = verify(&disk, 4096).expect_err("flipped");
    assert!(error.to_string().starts_with(&format!("damaged: {part} at byte")), "{error}");
}

#[rstest]
#[case::another_place(24, 2)]
#[case::alternate_beyond_all(32, u64::MAX)]
#[case::alternate_is_primary(32, 1)]
#[case::usable_reversed(40, 5000)]
#[case::entries_in_header(72, 1)]
#[case::entries_beyond_all(72, u64::MAX)]
#[case::no_entries(80, 128 << 32)]
#[case::many_entries(80, 128 << 32 | 0xffff_ffff)]
#[case::tiny_entries(80, 8 << 32 | 128)]
#[case::long_header(12, 4096)]
#[case::short_header(12, 12)]
fn a_header_with_a_good_crc_may_still_lie(#[case] field: usize, #[case] value: u64) {
    let mut disk = gpt_disk(1 << 20, 512);
    let width = if field == 12 { 4 } else { 8 };
    disk[512 + field..512 + field + width].copy_from_slice(&value.to_le_bytes()[..width]);
    reseal(&mut disk, 1, 512);
    let error = verify(&disk, 4096).expect_err("lie");
    assert_eq!(error.reason(), Reason::Corrupt, "{error}");
}

#[test]
fn a_protective_mbr_alone_is_no_disk() {
    let mut disk = gpt_disk(1 << 20, 512);
    disk[512..1024].fill(0);
    let error = verify(&disk, 4096).expect_err("no header");
    assert!(error.to_string().contains("protective MBR"), "{error}");
    assert_eq!(error.reason(), Reason::Corrupt);
}

#[test]
fn an_mbr_disk_holds_its_partitions() {
    let disk = verify(&mbr_disk(1 << 20, 1..2048), 4096).expect("a disk");
    assert_eq!(disk.kind, RawKind::Mbr);
    let error = verify(&mbr_disk(1 << 20, 1..2049), 4096).expect_err("cut");
    assert!(matches!(error, ArtifactError::Truncated { .. }), "{error}");
}

#[rstest]
#[case::no_partition(446 + 4, 0)]
#[case::odd_status(446, 0x42)]
#[case::no_signature(510, 0)]
fn a_boot_sector_without_sane_partitions_is_no_disk(#[case] at: usize, #[case] value: u8) {
    let mut disk = mbr_disk(1 << 20, 1..2048);
    disk[at] = value;
    assert_eq!(verify(&disk, 4096).expect_err("no disk").reason(), Reason::NotADiskImage);
}

/// Superblocks by hand; the real ones are in `e2e/formats.rs`.
#[rstest]
#[case("ext", 1024 + 56, &[0x53, 0xef], 1024 + 4, &1024_u32.to_le_bytes())]
#[case("iso9660", 32_768, b"\x01CD001\x01\0", 32_768 + 80, &512_u32.to_le_bytes())]
#[case("btrfs", 65_536 + 64, b"_BHRfS_M", 65_536 + 112, &(1_u64 << 20).to_le_bytes())]
#[case("xfs", 0, b"XFSB\0\0\x10\0", 8, &256_u64.to_be_bytes())]
#[case("squashfs", 0, b"hsqs", 40, &(1_u64 << 20).to_le_bytes())]
fn a_bare_file_system_is_a_disk_as_long_as_it_says(
    #[case] name: &'static str,
    #[case] at: usize,
    #[case] magic: &[u8],
    #[case] len_at: usize,
    #[case] len: &[u8],
) {
    let mut disk = vec![0; 1 << 20];
    disk[at..at + magic.len()].copy_from_slice(magic);
    disk[len_at..len_at + len.len()].copy_from_slice(len);
    match name {
        "iso9660" => disk[32_768 + 128..32_768 + 130].copy_from_slice(&2048_u16.to_le_bytes()),
        "btrfs" => disk[65_536 + 136] = 1,
        "squashfs" => disk[28] = 4,
        _ => (),
    }
    assert_eq!(verify(&disk, 8192).expect("a disk").kind, RawKind::FileSystem(name));
    let error = verify(&disk[..(1 << 20) - 1], 8192).expect_err("cut");
    assert!(matches!(error, ArtifactError::Truncated { .. }), "{error}");
}

#[rstest]
#[case(b"", "empty")]
#[case(b"<html><body>502 Bad Gateway</body></html>", "HTML")]
#[case(&[0; 511], "less than one sector")]
#[case(&[0; 100_000], "zeros")]
fn what_is_no_disk_is_said(#[case] bytes: &[u8], #[case] word: &str) {
    let error = verify(bytes, 100).expect_err("no disk");
    assert_eq!(error.reason(), Reason::NotADiskImage);
    assert!(error.to_string().contains(word), "{error}");
}

#[test]
fn text_and_noise_are_refused_after_their_first_bytes() {
    let noise: Vec<u8> = (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
    let text = b"404 page not found\n".repeat(10_000);
    for bytes in [noise, text] {
        let mut verifier = RawVerifier::new();
        let error = verifier.update(&bytes[..72 << 10]).expect_err("no disk");
        assert_eq!(error.reason(), Reason::NotADiskImage, "{error}");
    }
}

#[test]
fn a_fixed_vhd_is_known_by_its_footer() {
    let mut disk = gpt_disk(1 << 20, 512);
    disk.extend_from_slice(b"conectix");
    disk.resize((1 << 20) + 512, 0);
    for step in [1 << 21, 1000] {
        assert_eq!(verify(&disk, step).expect_err("vhd").reason(), Reason::UnsupportedFormat);
    }
}

#[test]
fn a_disk_in_another_form_inside_is_refused() {
    let mut disk = gpt_disk(1 << 20, 512);
    disk[..4].copy_from_slice(b"QFI\xfb");
    disk[7] = 3;
    assert_eq!(verify(&disk, 4096).expect_err("qcow2").reason(), Reason::Corrupt);
    disk[..4].copy_from_slice(b"KDMV");
    assert_eq!(verify(&disk, 4096).expect_err("vmdk").reason(), Reason::UnsupportedFormat);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn mutated_disks_never_panic(
        edits in proptest::collection::vec((prop_oneof![0..1200_usize, 1_030_000..1_048_576_usize, 32_768..34_000_usize], any::<u8>()), 0..6),
        cut in prop_oneof![Just(1_048_576_usize), 0..1_048_576_usize],
        reseal_it: bool,
        step in 1000..200_000_usize,
        sector in prop_oneof![Just(512_usize), Just(4096)],
    ) {
        let mut disk = gpt_disk(1 << 20, sector);
        for (at, value) in edits {
            disk[at] = value;
        }
        if reseal_it {
            reseal(&mut disk, 1, sector);
        }
        let whole = verify(&disk, 1 << 20).is_ok();
        let cut_is_ok = verify(&disk[..cut], step).is_ok();
        // A prefix is only a disk where the whole was one that ends there.
        prop_assert!(!cut_is_ok || cut == disk.len() || !whole);
    }
}
