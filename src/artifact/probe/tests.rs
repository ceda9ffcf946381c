use std::io::Write as _;

use proptest::prelude::*;
use rstest::rstest;

use super::{Probe, Prober};
use crate::{
    artifact::{
        ArtifactError, Compression, Limits,
        qcow2::samples::Image,
        raw::samples::{gpt_disk, mbr_disk},
    },
    rules::Reason,
};

/// Feeds `bytes` in pieces of `step`; gives the answer and how many bytes it took.
fn probe(bytes: &[u8], total: Option<u64>, step: usize) -> Result<(Probe, usize), ArtifactError> {
    let mut prober = Prober::new(total, &Limits::default());
    for (index, piece) in bytes.chunks(step).enumerate() {
        if let Some(probe) = prober.feed(piece)? {
            return Ok((probe, index * step + piece.len()));
        }
    }
    prober.finish().map(|probe| (probe, bytes.len()))
}

fn pack(compression: Option<Compression>, bytes: &[u8]) -> Vec<u8> {
    match compression {
        None => bytes.to_vec(),
        Some(Compression::Xz) => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
            encoder.write_all(bytes).expect("write");
            encoder.finish().expect("finish")
        }
        // As a pipe would: the length is not stated.
        Some(Compression::Zstd) => zstd::encode_all(bytes, 1).expect("encode"),
        Some(Compression::Gzip) => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).expect("write");
            encoder.finish().expect("finish")
        }
    }
}

const ALL: [Option<Compression>; 4] = [None, Some(Compression::Xz), Some(Compression::Zstd), Some(Compression::Gzip)];

#[rstest]
fn a_gpt_disk_is_told_from_its_first_bytes(
    #[values(0, 1, 2, 3)] packing: usize,
    #[values(512, 4096)] sector: usize,
    #[values(1, 1000, 1 << 20)] step: usize,
    #[values(false, true)] announced: bool,
) {
    let bytes = pack(ALL[packing], &gpt_disk(3 << 20, sector));
    let (probe, read) = probe(&bytes, announced.then_some(bytes.len() as u64), step).expect("a disk");
    assert_eq!(probe.format.compression, ALL[packing]);
    assert_eq!(probe.format.disk, super::DiskFormat::Raw);
    assert_eq!(probe.virtual_size.map(|size| size.bytes()), Some(3 << 20));
    assert!(read <= (80 << 10).max(step), "{read}");
}

#[rstest]
fn a_qcow2_is_told_from_its_header(#[values(0, 1, 2, 3)] packing: usize, #[values(2, 3)] version: u32, #[values(1, 4096)] step: usize) {
    let bytes = pack(ALL[packing], &Image::new(version).0);
    let (probe, read) = probe(&bytes, None, step).expect("a disk");
    assert_eq!((probe.format.disk, probe.format.compression), (super::DiskFormat::Qcow2, ALL[packing]));
    assert_eq!(probe.virtual_size.map(|size| size.bytes()), Some(1 << 30));
    assert!(read <= 8192, "{read}");
}

#[test]
fn a_plain_raw_disk_is_as_long_as_its_file() {
    let disk = gpt_disk(3 << 20, 512);
    let size = |total| probe(&disk, total, 4096).map(|(probe, _)| probe.virtual_size.map(|size| size.bytes()));
    assert_eq!(size(Some(3 << 20)).expect("a disk"), Some(3 << 20));
    // Grown after it was partitioned, and not in whole sectors.
    assert_eq!(size(Some((4 << 20) + 1)).expect("a disk"), Some((4 << 20) + 512));
    // Not announced: what the table says.
    assert_eq!(size(None).expect("a disk"), Some(3 << 20));
    // Announced shorter than the table says: cut, before the transfer.
    assert_eq!(size(Some((3 << 20) - 1)).expect_err("cut").reason(), Reason::Corrupt);
}

#[test]
fn an_mbr_does_not_tell_the_size() {
    let disk = mbr_disk(3 << 20, 1..2048);
    let size = |bytes: &[u8]| probe(bytes, None, 4096).expect("a disk").0.virtual_size.map(|size| size.bytes());
    assert_eq!(size(&pack(Some(Compression::Xz), &disk)), None);
    assert_eq!(size(&pack(Some(Compression::Zstd), &disk)), None);
    // A frame that states its length does.
    assert_eq!(size(&zstd::bulk::compress(&disk, 1).expect("compress")), Some(3 << 20));
    assert_eq!(probe(&disk, Some(3 << 20), 4096).expect("a disk").0.virtual_size.map(|size| size.bytes()), Some(3 << 20));
}

#[test]
fn a_tiny_packed_disk_is_seen_whole() {
    let disk = mbr_disk(4096, 1..8);
    let bytes = pack(Some(Compression::Gzip), &disk);
    let (probe, _) = probe(&bytes, Some(bytes.len() as u64), 4096).expect("a disk");
    assert_eq!(probe.virtual_size.map(|size| size.bytes()), Some(4096));
}

#[rstest]
#[case::empty(b"", Reason::NotADiskImage, "empty")]
#[case::html(b"<!doctype html><html><body>Sign in</body></html>", Reason::NotADiskImage, "HTML")]
#[case::json(b"{\"message\":\"not found\"}", Reason::NotADiskImage, "JSON")]
#[case::text(b"version 9.9.9 is not available\n", Reason::NotADiskImage, "text")]
#[case::short(&[0; 100], Reason::NotADiskImage, "100 bytes")]
#[case::noise(&[7; 100_000], Reason::NotADiskImage, "no disk format")]
#[case::zeros(&[0; 100_000], Reason::NotADiskImage, "zeros")]
#[case::vmdk(b"KDMV\x01\0\0\0", Reason::UnsupportedFormat, "vmdk")]
#[case::vhd(b"conectix", Reason::UnsupportedFormat, "vhd")]
#[case::vhdx(b"vhdxfile", Reason::UnsupportedFormat, "vhdx")]
#[case::zip(b"PK\x03\x04", Reason::UnsupportedFormat, "zip")]
#[case::short_qcow2(b"QFI\xfb\0\0\0\x03", Reason::Corrupt, "qcow2 header")]
#[case::short_xz(&[0xfd, b'7', b'z', b'X', b'Z', 0, 0], Reason::Corrupt, "xz")]
#[case::short_gzip(&[0x1f, 0x8b, 8], Reason::Corrupt, "gzip")]
#[case::short_zstd(&[0x28, 0xb5, 0x2f, 0xfd], Reason::Corrupt, "zstd")]
fn what_is_no_disk_is_told_too(
    #[case] bytes: &[u8],
    #[case] reason: Reason,
    #[case] word: &str,
    #[values(false, true)] announced: bool,
    #[values(1, 1000)] step: usize,
) {
    let error = probe(bytes, announced.then_some(bytes.len() as u64), step).expect_err("no disk");
    assert_eq!(error.reason(), reason, "{error}");
    assert!(error.to_string().contains(word), "{error}");
}

#[rstest]
#[case(b"<html>".repeat(1000))]
#[case(vec![])]
#[case(b"KDMV".repeat(500))]
fn what_is_packed_is_judged_by_its_content(#[case] inside: Vec<u8>) {
    for compression in [Compression::Xz, Compression::Zstd, Compression::Gzip] {
        let bytes = pack(Some(compression), &inside);
        let error = probe(&bytes, None, 100).expect_err("no disk");
        assert!(matches!(error.reason(), Reason::NotADiskImage | Reason::UnsupportedFormat), "{error}");
        let twice = pack(Some(Compression::Gzip), &pack(Some(compression), &gpt_disk(1 << 20, 512)));
        assert_eq!(probe(&twice, None, 100).expect_err("packed twice").reason(), Reason::UnsupportedFormat);
    }
}

#[test]
fn a_file_that_hides_behind_padding_is_given_up() {
    // Skippable frames fill the first mebibyte.
    let bytes =
        [[0x50, 0x2a, 0x4d, 0x18, 0, 0, 0x20, 0].as_slice(), &vec![0; 2 << 20], &pack(Some(Compression::Zstd), &gpt_disk(1 << 20, 512))]
            .concat();
    assert_eq!(probe(&bytes, None, 4096).expect_err("hidden").reason(), Reason::NotADiskImage);
}

#[test]
fn a_disk_above_the_limit_is_refused_before_it_is_fetched() {
    let limits = Limits { max_virtual_size: (3 << 20) - 1, ..Limits::default() };
    let mut prober = Prober::new(None, &limits);
    let error = prober.feed(&pack(Some(Compression::Xz), &gpt_disk(3 << 20, 512))).expect_err("too large");
    assert_eq!(error.reason(), Reason::TooLarge);
}

#[test]
fn fewer_bytes_than_announced_are_no_verdict_on_the_image() {
    let mut prober = Prober::new(Some(1 << 20), &Limits::default());
    assert_eq!(prober.feed(b"<html>").expect("more needed"), None);
    assert!(matches!(prober.finish(), Err(ArtifactError::Truncated { part: "download", .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_starts_never_panic(
        start in prop_oneof![
            Just(b"QFI\xfb\0\0\0\x03".to_vec()), Just(vec![0xfd, b'7', b'z', b'X', b'Z', 0, 0, 4]), Just(vec![0x28, 0xb5, 0x2f, 0xfd]),
            Just(vec![0x1f, 0x8b, 8, 0]), Just(vec![])
        ],
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        step in 1..900_usize,
        total in proptest::option::of(0..3000_u64),
    ) {
        let _ = probe(&[start, bytes].concat(), total, step);
    }

    #[test]
    fn the_answer_does_not_depend_on_the_steps(packing in 0..4_usize, first in 1..5000_usize, second in 1..5000_usize) {
        let bytes = pack(ALL[packing], &gpt_disk(1 << 20, 512));
        let answers = [first, second].map(|step| probe(&bytes, None, step).expect("a disk").0);
        prop_assert_eq!(answers[0], answers[1]);
    }
}
