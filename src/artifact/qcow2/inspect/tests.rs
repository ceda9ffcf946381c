use std::io::Write as _;

use flate2::{Compression, write::DeflateEncoder};
use proptest::prelude::*;
use rstest::rstest;

use super::{
    super::samples::{CLUSTER, COMPRESSED, COPIED, DATA, Image, L1, L2},
    Qcow2, inspect_qcow2,
};
use crate::{
    artifact::{ArtifactError, Limits, Watch},
    rules::Reason,
};

fn inspect(image: &Image) -> Result<Qcow2, ArtifactError> {
    inspect_qcow2(&image.file(), &Limits::default(), Watch::idle())
}

/// One edit of the sample: an offset, a width in bytes and a value.
type Edit = (usize, usize, u64);

fn edited(version: u32, edits: &[Edit]) -> Image {
    let mut image = Image::new(version);
    for (at, width, value) in edits {
        if *width == 4 {
            image.put32(*at, *value as u32)
        } else {
            image.put64(*at, *value)
        };
    }
    image
}

#[rstest]
#[case(2)]
#[case(3)]
fn the_sample_is_whole(#[case] version: u32) {
    let found = inspect(&Image::new(version)).expect("whole");
    assert_eq!(found.virtual_size.bytes(), 1 << 30);
    assert_eq!((found.file_len, found.mapped_clusters), (7 * CLUSTER as u64, 2));
}

#[rstest]
#[case::spare_l1_entries(&[(36, 4, 8)])]
#[case::zero_cluster(&[(L2, 8, 1)])]
#[case::zero_cluster_with_room(&[(L2, 8, DATA as u64 | COPIED | 1)])]
#[case::unmapped(&[(L2, 8, 0)])]
#[case::last_cluster_just_past_the_end(&[(L2, 8, (7 * CLUSTER as u64) | COPIED)])]
#[case::unknown_compatible_feature(&[(80, 8, 0xf0)])]
#[case::unknown_autoclear_feature(&[(88, 8, 0xf0)])]
#[case::header_of_104(&[(100, 4, 104)])]
#[case::extension_unknown(&[(112, 8, 0x1234_5678_0000_0003)])]
#[case::backing_format_without_backing_file(&[(112, 8, 0xe279_2aca_0000_0003)])]
#[case::refcounts_of_one_bit(&[(96, 4, 0)])]
fn what_the_format_allows_is_accepted(#[case] edits: &[Edit]) {
    inspect(&edited(3, edits)).expect("whole");
}

#[rstest]
#[case::version_1(&[(4, 4, 1)], Reason::UnsupportedFormat, "version 1")]
#[case::version_4(&[(4, 4, 4)], Reason::UnsupportedFormat, "version 4")]
#[case::backing_file(&[(8, 8, 512), (16, 4, 9)], Reason::UnsupportedFormat, "backing file")]
#[case::backing_file_offset_only(&[(8, 8, 512)], Reason::UnsupportedFormat, "backing file")]
#[case::aes(&[(32, 4, 1)], Reason::UnsupportedFormat, "encrypted")]
#[case::luks(&[(32, 4, 2)], Reason::UnsupportedFormat, "encrypted")]
#[case::luks_extension(&[(112, 8, 0x0537_be77_0000_0010)], Reason::UnsupportedFormat, "encrypted")]
#[case::external_data(&[(72, 8, 4)], Reason::UnsupportedFormat, "external data file")]
#[case::external_data_extension(&[(112, 8, 0x4441_5441_0000_0008)], Reason::UnsupportedFormat, "external data file")]
#[case::raw_external_data(&[(88, 8, 2)], Reason::UnsupportedFormat, "external data file")]
#[case::unknown_feature(&[(72, 8, 1 << 5)], Reason::UnsupportedFormat, "0x20")]
#[case::unknown_feature_at_the_top(&[(72, 8, 1 << 63)], Reason::UnsupportedFormat, "unknown incompatible")]
#[case::corrupt_bit(&[(72, 8, 2)], Reason::Corrupt, "says itself")]
#[case::dirty_bit(&[(72, 8, 1)], Reason::Corrupt, "not closed")]
#[case::compression_unknown(&[(72, 8, 8), (104, 8, 2 << 56)], Reason::UnsupportedFormat, "compression type 2")]
#[case::compression_without_bit(&[(104, 8, 1 << 56)], Reason::Corrupt, "contradicts")]
#[case::compression_bit_without_type(&[(72, 8, 8)], Reason::Corrupt, "contradicts")]
#[case::compression_bit_with_short_header(&[(72, 8, 8), (100, 4, 104), (104, 8, 0)], Reason::Corrupt, "contradicts")]
#[case::tiny_clusters(&[(20, 4, 8)], Reason::Corrupt, "2^8")]
#[case::huge_clusters(&[(20, 4, 22)], Reason::Corrupt, "2^22")]
#[case::absurd_clusters(&[(20, 4, u32::MAX as u64)], Reason::Corrupt, "clusters")]
#[case::subclusters_in_tiny_clusters(&[(72, 8, 16), (20, 4, 13)], Reason::Corrupt, "2^13")]
#[case::no_disk(&[(24, 8, 0)], Reason::Corrupt, "0 bytes")]
#[case::negative_disk(&[(24, 8, u64::MAX)], Reason::Corrupt, "disk of")]
#[case::disk_longer_than_l1(&[(24, 8, (1 << 30) + 1)], Reason::Corrupt, "needs 3")]
#[case::disk_above_the_limit(&[(24, 8, (1 << 40) + 1), (36, 4, 4096)], Reason::TooLarge, "limit")]
#[case::no_l1(&[(40, 8, 0)], Reason::Corrupt, "aligned")]
#[case::l1_not_aligned(&[(40, 8, L1 as u64 + 8)], Reason::Corrupt, "aligned")]
#[case::l1_beyond_the_file(&[(40, 8, 7 * CLUSTER as u64)], Reason::Corrupt, "outside the file")]
#[case::l1_at_the_end_of_numbers(&[(40, 8, u64::MAX << 16)], Reason::Corrupt, "outside the file")]
#[case::l1_huge(&[(36, 4, u32::MAX as u64)], Reason::Corrupt, "L1 entries")]
#[case::l1_longer_than_the_file(&[(36, 4, 4 << 20)], Reason::Corrupt, "outside the file")]
#[case::l1_reserved_bits(&[(L1, 8, L2 as u64 | 1)], Reason::Corrupt, "L1 table")]
#[case::l1_flag_without_table(&[(L1, 8, COPIED)], Reason::Corrupt, "L1 table")]
#[case::l2_not_aligned(&[(L1, 8, (L2 as u64 + 512) | COPIED)], Reason::Corrupt, "L2 table")]
#[case::l2_beyond_the_file(&[(L1, 8, (7 * CLUSTER as u64) | COPIED)], Reason::Corrupt, "outside the file")]
#[case::l2_shared(&[(L1 + 8, 8, L2 as u64 | COPIED)], Reason::Corrupt, "share")]
#[case::spare_l2_beyond_the_file(&[(36, 4, 3), (L1 + 16, 8, 99 * CLUSTER as u64)], Reason::Corrupt, "outside the file")]
#[case::cluster_not_aligned(&[(L2, 8, (DATA as u64 + 512) | COPIED)], Reason::Corrupt, "aligned")]
#[case::cluster_beyond_the_file(&[(L2, 8, (8 * CLUSTER as u64) | COPIED)], Reason::Corrupt, "outside the file")]
#[case::cluster_on_the_header(&[(L2, 8, COPIED)], Reason::Corrupt, "header")]
#[case::cluster_reserved_bits(&[(L2, 8, DATA as u64 | 1 << 57)], Reason::Corrupt, "reserved")]
#[case::no_refcounts(&[(56, 4, 0)], Reason::Corrupt, "refcount table")]
#[case::refcount_table_huge(&[(56, 4, 1000)], Reason::Corrupt, "refcount table")]
#[case::refcount_table_beyond_the_file(&[(48, 8, 90 * CLUSTER as u64)], Reason::Corrupt, "outside the file")]
#[case::refcount_table_longer_than_the_file(&[(56, 4, 7)], Reason::Corrupt, "outside the file")]
#[case::refcount_block_beyond_the_file(&[(CLUSTER, 8, 7 * CLUSTER as u64)], Reason::Corrupt, "refcount block")]
#[case::refcount_block_not_aligned(&[(CLUSTER, 8, 513)], Reason::Corrupt, "refcount table")]
#[case::refcount_block_shared(&[(CLUSTER + 8, 8, 2 * CLUSTER as u64)], Reason::Corrupt, "share")]
#[case::refcount_order(&[(96, 4, 7)], Reason::Corrupt, "2^7 bits")]
#[case::header_short(&[(100, 4, 96)], Reason::Corrupt, "header of 96")]
#[case::header_odd(&[(100, 4, 109)], Reason::Corrupt, "header of 109")]
#[case::header_long(&[(100, 4, 1 << 20)], Reason::Corrupt, "header of")]
#[case::extension_too_long(&[(112, 8, 0x1234_5678_0001_0000)], Reason::Corrupt, "first cluster")]
#[case::extension_endless(&[(112, 8, 0x1234_5678_ffff_ffff)], Reason::Corrupt, "first cluster")]
#[case::bitmaps_beyond_the_file(&[(112, 8, 0x2385_2875_0000_0018), (120, 8, 1 << 32), (128, 8, 32), (136, 8, 70 * CLUSTER as u64)], Reason::Corrupt, "bitmap")]
#[case::snapshots_beyond_the_file(&[(60, 4, 1), (64, 8, 70 * CLUSTER as u64)], Reason::Corrupt, "snapshot")]
#[case::no_snapshots_at_an_odd_place(&[(64, 8, 8)], Reason::Corrupt, "snapshot table")]
#[case::snapshots_many(&[(60, 4, 65_537), (64, 8, DATA as u64)], Reason::Corrupt, "65537 snapshots")]
#[case::snapshots_of_noise(&[(60, 4, 3), (64, 8, DATA as u64)], Reason::Corrupt, "snapshot")]
fn what_is_wrong_is_named(#[case] edits: &[Edit], #[case] reason: Reason, #[case] word: &str) {
    let error = inspect(&edited(3, edits)).expect_err("wrong");
    assert_eq!(error.reason(), reason, "{error}");
    assert!(error.to_string().contains(word), "{error}");
}

#[test]
fn a_version_2_header_has_no_features() {
    // Bytes 72 on are extensions there: an "external data" bit of version 3 is none, an extension is one.
    inspect(&edited(2, &[(72, 8, 0xe279_2aca_0000_0008), (80, 8, 4)])).expect("whole");
    let error = inspect(&edited(2, &[(72, 8, 0x4441_5441_0000_0008)])).expect_err("external data");
    assert_eq!(error.reason(), Reason::UnsupportedFormat);
    // And no zero clusters.
    assert_eq!(inspect(&edited(2, &[(L2, 8, 1)])).expect_err("zero flag").reason(), Reason::Corrupt);
}

#[test]
fn a_file_cut_anywhere_before_its_last_cluster_is_truncated() {
    let image = Image::new(3);
    for cut in (0..6 * CLUSTER).step_by(4093).chain([0, 1, 71, 72, 103, 104, 112, L1, L1 + 4, L1 + 8, L1 + 15, L2, L2 + 1, 6 * CLUSTER - 1])
    {
        let error = inspect(&Image(image.0[..cut].to_vec())).expect_err("cut");
        assert_eq!(error.reason(), Reason::Corrupt, "{cut}: {error}");
    }
    // The last cluster may be short: QEMU writes only what was written.
    inspect(&Image(image.0[..6 * CLUSTER + 1].to_vec())).expect("whole");
}

#[test]
fn an_empty_image_may_end_inside_its_l1_table() {
    // 20 GiB: 40 L1 entries, of which the file of 196,624 bytes holds two; its counts know four clusters.
    let mut image = Image::new(3);
    image.0.truncate(196_624);
    image.put64(24, 20 << 30).put32(36, 40).put64(L1, 0);
    image.0[2 * CLUSTER + 8..3 * CLUSTER].fill(0);
    assert_eq!(inspect(&image).expect("whole").virtual_size.bytes(), 20 << 30);
    // The same bytes out of an image that once was longer.
    image.0[2 * CLUSTER + 9] = 1;
    let error = inspect(&image).expect_err("cut");
    assert!(matches!(error, ArtifactError::Truncated { .. }), "{error}");
    // Counts of one bit: clusters 0 to 3, then also cluster 4.
    image.put32(96, 0);
    image.0[2 * CLUSTER..3 * CLUSTER].fill(0);
    image.0[2 * CLUSTER] = 0x0f;
    inspect(&image).expect("whole");
    image.0[2 * CLUSTER] = 0x1f;
    inspect(&image).expect_err("cut");
}

#[test]
fn snapshots_are_read_over() {
    let mut image = Image::new(3);
    image.0.resize(9 * CLUSTER, 0);
    let table = 7 * CLUSTER;
    image.put32(60, 2).put64(64, table as u64);
    let mut at = table;
    for (id, extra) in [(b"1", 16_usize), (b"2", 24)] {
        image.put64(at, 8 * CLUSTER as u64).put32(at + 8, 2).put32(at + 12, 1 << 16 | 3).put32(at + 36, extra as u32);
        image.0[at + 40 + extra..at + 41 + extra].copy_from_slice(id);
        at += (40 + extra + 4_usize).next_multiple_of(8);
    }
    inspect(&image).expect("whole");
    for (edit, word) in [((table, 90 * CLUSTER as u64), "outside"), ((table, 12), "aligned")] {
        let error = inspect(&Image(image.clone().put64(edit.0, edit.1).0.clone())).expect_err("wrong");
        assert!(error.to_string().contains("snapshot") && error.to_string().contains(word), "{error}");
    }
    inspect(&Image(image.clone().put32(table + 36, 1025).0.clone())).expect_err("extra data");
    inspect(&Image(image.clone().put32(table + 8, u32::MAX).0.clone())).expect_err("L1 of the snapshot");
}

/// The sample with its first cluster compressed, cut where the packed bytes end.
fn compressed(zstd: bool) -> (Image, usize) {
    let cluster: Vec<u8> = (0..CLUSTER).map(|n| (n / 7) as u8).collect();
    let packed = if zstd {
        zstd::bulk::compress(&cluster, 3).expect("compress")
    } else {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(6));
        encoder.write_all(&cluster).expect("write");
        encoder.finish().expect("finish")
    };
    let mut image = Image::new(3);
    // Not at a sector's start, as QEMU packs them.
    let offset = DATA + 300;
    let end = offset + packed.len();
    let sectors = (end - 1) / 512 - offset / 512;
    image.put64(L2, COMPRESSED | (sectors as u64) << 54 | offset as u64).put64(L2 + 8, 0);
    if zstd {
        image.put64(72, 8).0[104] = 1;
    }
    image.0[offset..end].copy_from_slice(&packed);
    image.0.truncate(end);
    (image, end)
}

#[rstest]
fn a_compressed_cluster_ends_in_the_file(#[values(false, true)] zstd: bool) {
    let (image, end) = compressed(zstd);
    assert_eq!(inspect(&image).expect("whole").mapped_clusters, 1);
    for missing in [1, 2, 100, 511, 512, 513] {
        let error = inspect(&Image(image.0[..end - missing].to_vec())).expect_err("cut");
        assert!(matches!(error, ArtifactError::Truncated { .. }), "{missing}: {error}");
    }
}

#[rstest]
#[case::in_the_header(COMPRESSED | 100, "header")]
#[case::beyond_the_file(COMPRESSED | (70 * CLUSTER as u64), "outside")]
#[case::too_long(COMPRESSED | 0xff << 54 | DATA as u64 | 1, "outside")]
#[case::counted_as_one(COPIED | COMPRESSED | DATA as u64, "flag")]
fn a_compressed_cluster_may_be_wrong(#[case] entry: u64, #[case] word: &str) {
    let (mut image, _) = compressed(false);
    let error = inspect(image.put64(L2, entry)).expect_err("wrong");
    assert!(error.to_string().contains(word), "{error}");
}

#[rstest]
#[case::all_allocated(DATA as u64 | COPIED, 0xffff_ffff, true)]
#[case::some_zero(DATA as u64 | COPIED, 0xffff_0000_0000_ffff, true)]
#[case::zero_without_cluster(0, 0xffff_ffff_0000_0000, true)]
#[case::both_at_once(DATA as u64 | COPIED, 0x1_0000_0001, false)]
#[case::allocated_without_cluster(0, 1, false)]
#[case::zero_flag_of_the_plain_form(DATA as u64 | COPIED | 1, 0, false)]
#[case::compressed_with_subclusters(COMPRESSED | DATA as u64, 1, false)]
fn subclusters_have_their_own_rules(#[case] entry: u64, #[case] bitmap: u64, #[case] fine: bool) {
    let mut image = Image::new(3);
    // Half as many entries fit into an L2 table: four L1 entries for 1 GiB.
    image.put64(72, 16).put32(36, 4).put64(L2, entry).put64(L2 + 8, bitmap);
    assert_eq!(inspect(&image).is_ok(), fine);
}

#[test]
fn it_stops_when_told_to() {
    let cancel = std::sync::atomic::AtomicBool::new(true);
    let watch = Watch { progress: &|_| (), cancel: &cancel };
    let error = inspect_qcow2(&Image::new(3).file(), &Limits::default(), watch).expect_err("stop");
    assert!(matches!(error, ArtifactError::Cancelled));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn mutated_images_never_panic(
        edits in proptest::collection::vec((prop_oneof![0..160_usize, L1..L1 + 32, L2..L2 + 32, CLUSTER..CLUSTER + 32], any::<u8>()), 1..6),
        cut in prop_oneof![3 => Just(7 * CLUSTER), 1 => 0..7 * CLUSTER],
    ) {
        let mut image = Image::new(3);
        for (at, value) in edits {
            image.0[at] = value;
        }
        image.0.truncate(cut);
        if let Err(error) = inspect(&image) {
            prop_assert!(!matches!(error.reason(), Reason::SpoolFailed | Reason::SpoolFull), "{}", error);
        }
    }
}
