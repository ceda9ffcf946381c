use std::io::{self, Read, Write as _};

use flate2::{Compression as Level, GzBuilder, write::GzEncoder};
use liblzma::stream::{Check, MtStreamBuilder, Stream};
use proptest::prelude::*;
use rstest::rstest;

use super::Decoder;
use crate::{
    artifact::{ArtifactError, Compression, Limits, Watch},
    rules::Reason,
};

/// A reader that gives at most `step` bytes a call.
struct Drip<'a>(&'a [u8], usize);

impl Read for Drip<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = out.len().min(self.1);
        self.0.read(&mut out[..count])
    }
}

fn limits(threads: u32) -> Limits {
    Limits { threads, xz_memory: 64 << 20, zstd_window: 8 << 20, ..Limits::default() }
}

/// Decodes all of `packed`, stopping after 64 MiB.
fn unpack(compression: Compression, packed: &[u8], threads: u32) -> Result<Vec<u8>, ArtifactError> {
    let mut decoder = Decoder::new(packed, Some(compression), &limits(threads), Watch::idle())?;
    let mut out = vec![0; 64 << 20];
    let count = decoder.fill(&mut out)?;
    out.truncate(count);
    Ok(out)
}

/// Something that compresses neither to nothing nor badly.
fn sample(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| if n % 1000 < 500 { 0 } else { (n.wrapping_mul(2_654_435_761) >> 24) as u8 & 0x1f }).collect()
}

fn xz(bytes: &[u8], check: Check) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), Stream::new_easy_encoder(1, check).expect("encoder"));
    encoder.write_all(bytes).expect("write");
    encoder.finish().expect("finish")
}

fn xz_blocks(bytes: &[u8], block: u64) -> Vec<u8> {
    let stream = MtStreamBuilder::new().preset(1).check(Check::Crc64).block_size(block).threads(2).encoder().expect("encoder");
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(bytes).expect("write");
    encoder.finish().expect("finish")
}

fn zst(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).expect("encoder");
    encoder.include_checksum(true).expect("checksum");
    encoder.write_all(bytes).expect("write");
    encoder.finish().expect("finish")
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::new(6));
    encoder.write_all(bytes).expect("write");
    encoder.finish().expect("finish")
}

fn pack(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    match compression {
        Compression::Xz => xz(bytes, Check::Crc64),
        Compression::Zstd => zst(bytes),
        Compression::Gzip => gz(bytes),
    }
}

#[rstest]
fn gives_back_what_was_packed(
    #[values(Compression::Xz, Compression::Zstd, Compression::Gzip)] compression: Compression,
    #[values(0, 1, 100_000, 700_000)] len: usize,
    #[values(1, 7, 4096, usize::MAX)] step: usize,
    #[values(1, 3)] threads: u32,
) {
    let bytes = sample(len);
    let packed = pack(compression, &bytes);
    let mut decoder = Decoder::new(Drip(&packed, step), Some(compression), &limits(threads), Watch::idle()).expect("decoder");
    let mut out = Vec::new();
    decoder.read_to_end(&mut out).expect("decodes");
    assert!(out == bytes);
    assert_eq!(decoder.consumed(), packed.len() as u64);
    // The end stays the end.
    assert_eq!(decoder.decode(&mut [0; 8]).expect("end"), 0);
}

#[rstest]
fn a_stream_cut_anywhere_is_truncated(
    #[values(Compression::Xz, Compression::Zstd, Compression::Gzip)] compression: Compression,
    #[values(1, 2)] threads: u32,
) {
    let packed = pack(compression, &sample(2000));
    for cut in 0..packed.len() {
        let error = unpack(compression, &packed[..cut], threads).expect_err("cut");
        assert_eq!(error.reason(), Reason::Corrupt, "{cut}: {error}");
        if cut >= 12 {
            assert!(matches!(error, ArtifactError::Truncated { .. }), "{cut}: {error}");
        }
    }
}

#[rstest]
fn a_changed_bit_is_found(
    #[values(Compression::Xz, Compression::Zstd, Compression::Gzip)] compression: Compression,
    #[values(1, 2)] threads: u32,
) {
    let bytes = sample(2000);
    let packed = pack(compression, &bytes);
    for bit in 0..packed.len() * 8 {
        let mut packed = packed.clone();
        packed[bit / 8] ^= 1 << (bit % 8);
        if let Ok(out) = unpack(compression, &packed, threads) {
            // gzip's time and system, zstd's unused header bit: they say nothing about the data.
            assert!(out == bytes, "bit {bit}");
        }
    }
}

#[rstest]
fn several_streams_are_one(
    #[values(Compression::Xz, Compression::Zstd, Compression::Gzip)] compression: Compression,
    #[values(1, 2)] threads: u32,
) {
    let (first, second) = (sample(70_000), sample(12_345));
    let packed = [pack(compression, &first), pack(compression, b""), pack(compression, &second)].concat();
    assert!(unpack(compression, &packed, threads).expect("decodes") == [first, second].concat());
}

#[rstest]
fn bytes_after_the_end_are_refused(
    #[values(Compression::Xz, Compression::Zstd, Compression::Gzip)] compression: Compression,
    #[values(b"x".as_slice(), b"garbage after the stream", &[0; 5], &[0, 0, 0, 0, 1])] garbage: &[u8],
) {
    let packed = [pack(compression, &sample(3000)), garbage.to_vec()].concat();
    let error = unpack(compression, &packed, 2).expect_err("garbage");
    assert_eq!(error.reason(), Reason::Corrupt, "{error}");
}

#[rstest]
#[case(Check::None)]
#[case(Check::Crc32)]
#[case(Check::Crc64)]
#[case(Check::Sha256)]
fn every_xz_check_is_known_and_checked(#[case] check: Check, #[values(1, 2)] threads: u32) {
    let bytes = sample(5000);
    let packed = xz(&bytes, check);
    assert!(unpack(Compression::Xz, &packed, threads).expect("decodes") == bytes);
    if !matches!(check, Check::None) {
        // The check is the last field of the block, before the index: its first byte is a zero, found from the footer.
        let footer = packed.len() - 12;
        let index = (u32::from_le_bytes(packed[footer + 4..footer + 8].try_into().expect("four")) as usize + 1) * 4;
        let mut packed = packed;
        packed[footer - index - 1] ^= 1;
        let error = unpack(Compression::Xz, &packed, threads).expect_err("check");
        assert!(matches!(error, ArtifactError::Corrupt { .. }), "{error}");
    }
}

#[test]
fn an_xz_check_of_the_future_is_not_skipped() {
    let mut packed = xz(b"hello", Check::Crc64);
    // Check type 5 is reserved, 8 bytes long like CRC64. The flags' CRC follows them, in header and footer.
    packed[7] = 5;
    let crc = crc32fast::hash(&packed[6..8]).to_le_bytes();
    packed[8..12].copy_from_slice(&crc);
    let footer = packed.len() - 12;
    packed[footer + 9] = 5;
    let crc = crc32fast::hash(&packed[footer + 4..footer + 10]).to_le_bytes();
    packed[footer..footer + 4].copy_from_slice(&crc);
    for threads in [1, 2] {
        let error = unpack(Compression::Xz, &packed, threads).expect_err("check type");
        assert_eq!(error.reason(), Reason::UnsupportedFormat, "{error}");
    }
}

#[rstest]
fn xz_blocks_are_decoded_side_by_side(#[values(1, 2, 4)] threads: u32) {
    let bytes = sample(5_000_000);
    let packed = xz_blocks(&bytes, 1 << 20);
    assert!(unpack(Compression::Xz, &packed, threads).expect("decodes") == bytes);
    let error = unpack(Compression::Xz, &packed[..packed.len() / 2], threads).expect_err("cut");
    assert!(matches!(error, ArtifactError::Truncated { .. }), "{error}");
}

#[test]
fn xz_padding_comes_in_fours() {
    let (first, second) = (xz(b"one ", Check::Crc32), xz(b"two", Check::Sha256));
    for (padding, fine) in [(4, true), (8, true), (400_000, true), (1, false), (3, false), (6, false)] {
        let between = [first.clone(), vec![0; padding], second.clone()].concat();
        let after = [first.clone(), second.clone(), vec![0; padding]].concat();
        for packed in [between, after] {
            match unpack(Compression::Xz, &packed, 2) {
                Ok(out) => assert!(fine && out == b"one two", "{padding}"),
                Err(error) => assert!(!fine && error.reason() == Reason::Corrupt, "{padding}: {error}"),
            }
        }
    }
}

#[rstest]
fn an_xz_stream_that_needs_much_memory_is_refused(#[values(1, 2)] threads: u32) {
    // `xz -9` asks for 65 MiB, one more than allowed here.
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 9);
    encoder.write_all(b"small").expect("write");
    let packed = encoder.finish().expect("finish");
    let error = unpack(Compression::Xz, &packed, threads).expect_err("memory");
    assert_eq!(error.reason(), Reason::UnsupportedFormat);
    assert!(error.to_string().contains("64 MiB"), "{error}");
}

#[test]
fn zstd_skips_what_is_to_be_skipped() {
    let skippable = |magic: u8, len: u32| [&[magic, 0x2a, 0x4d, 0x18], len.to_le_bytes().as_slice(), &vec![9; len as usize]].concat();
    let packed = [skippable(0x50, 0), zst(b"one "), skippable(0x5f, 300_000), zst(b"two"), skippable(0x53, 4)].concat();
    assert_eq!(unpack(Compression::Zstd, &packed, 1).expect("decodes"), b"one two");
    let error = unpack(Compression::Zstd, &packed[..packed.len() - 1], 1).expect_err("cut");
    assert!(matches!(error, ArtifactError::Truncated { .. }), "{error}");
    assert_eq!(unpack(Compression::Zstd, &skippable(0x50, 3), 1).expect("decodes"), b"");
}

#[test]
fn a_long_zstd_window_is_refused_by_its_size() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("encoder");
    encoder.window_log(24).expect("window");
    encoder.write_all(&sample(100_000)).expect("write");
    let packed = encoder.finish().expect("finish");
    let error = unpack(Compression::Zstd, &packed, 1).expect_err("window");
    assert_eq!(error.reason(), Reason::UnsupportedFormat);
    assert!(error.to_string().contains("16777216 bytes"), "{error}");
}

#[test]
fn zstd_with_a_dictionary_is_refused() {
    // A frame header with dictionary ID 7.
    let packed = [0x28, 0xb5, 0x2f, 0xfd, 0x01, 0x50, 0x07, 0x01, 0x00, 0x00];
    let error = unpack(Compression::Zstd, &packed, 1).expect_err("dictionary");
    assert_eq!(error.reason(), Reason::UnsupportedFormat, "{error}");
}

#[test]
fn gzip_headers_are_read_over() {
    let builder = GzBuilder::new().filename("disk.raw").comment("a comment").extra(vec![0; 500]).mtime(7);
    let mut encoder = builder.write(Vec::new(), Level::fast());
    encoder.write_all(b"hello").expect("write");
    let packed = encoder.finish().expect("finish");
    assert_eq!(unpack(Compression::Gzip, &packed, 1).expect("decodes"), b"hello");

    // With the header's own CRC.
    let mut header = vec![0x1f, 0x8b, 8, 2, 0, 0, 0, 0, 0, 3];
    let crc = crc32fast::hash(&header) as u16;
    let body = gz(b"hello").split_off(10);
    header.extend_from_slice(&crc.to_le_bytes());
    assert_eq!(unpack(Compression::Gzip, &[header.clone(), body.clone()].concat(), 1).expect("decodes"), b"hello");
    header[11] ^= 1;
    assert_eq!(unpack(Compression::Gzip, &[header, body].concat(), 1).expect_err("crc").reason(), Reason::Corrupt);
}

#[rstest]
#[case(4, "length")]
#[case(8, "CRC")]
fn a_wrong_gzip_trailer_is_named(#[case] from_end: usize, #[case] word: &str) {
    let mut packed = gz(&sample(100_000));
    let at = packed.len() - from_end;
    packed[at] ^= 0x10;
    let error = unpack(Compression::Gzip, &packed, 1).expect_err("trailer");
    assert!(matches!(error, ArtifactError::Corrupt { .. }) && error.to_string().contains(word), "{error}");
}

#[test]
fn an_error_comes_through_a_decoder_in_a_decoder() {
    let inner = xz(&sample(10_000), Check::Crc64);
    let outer = gz(&inner[..inner.len() - 20]);
    let layer = Decoder::new(outer.as_slice(), Some(Compression::Gzip), &limits(1), Watch::idle()).expect("decoder");
    let mut decoder = Decoder::new(layer, Some(Compression::Xz), &limits(1), Watch::idle()).expect("decoder");
    let error = decoder.read_to_end(&mut Vec::new()).expect_err("cut");
    assert!(error.to_string().contains("xz"), "{error}");

    let layer = Decoder::new(&outer[..50], Some(Compression::Gzip), &limits(1), Watch::idle()).expect("decoder");
    let mut decoder = Decoder::new(layer, Some(Compression::Xz), &limits(1), Watch::idle()).expect("decoder");
    let error = ArtifactError::io("reading", decoder.read_to_end(&mut Vec::new()).expect_err("cut"));
    assert!(matches!(error, ArtifactError::Truncated { part: "gzip member", .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), which in 0..3_usize, threads in 1..3_u32) {
        let compression = [Compression::Xz, Compression::Zstd, Compression::Gzip][which];
        let mut packed = pack(compression, &sample(300));
        let keep = packed.len().min(bytes.first().copied().unwrap_or(0) as usize);
        packed.truncate(keep);
        packed.extend_from_slice(&bytes);
        let _ = unpack(compression, &packed, threads);
    }
}
