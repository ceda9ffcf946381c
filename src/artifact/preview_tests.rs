use std::io::Write as _;

use proptest::prelude::*;
use rstest::rstest;

use super::{Preview, preview};
use crate::{
    artifact::{
        ArtifactError, Limits, Prober, Watch, ingest,
        qcow2::samples::{CLUSTER, Image},
        raw::samples::{gpt_disk, mbr_disk},
    },
    rules::Reason,
};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("write");
    encoder.finish().expect("finish")
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
    encoder.write_all(bytes).expect("write");
    encoder.finish().expect("finish")
}

/// With a checksum, as the command line writes it.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("encoder");
    encoder.include_checksum(true).expect("checksum");
    encoder.write_all(bytes).expect("write");
    encoder.finish().expect("finish")
}

fn plain(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

type Pack = fn(&[u8]) -> Vec<u8>;

const PACKS: [Pack; 4] = [plain, xz, zstd, gzip];

fn whole(bytes: &[u8]) -> Result<Preview, ArtifactError> {
    preview(bytes, Some(bytes.len() as u64), true, &Limits::default())
}

fn size(preview: &Preview) -> Option<u64> {
    preview.probe.and_then(|probe| probe.virtual_size).map(|size| size.bytes())
}

#[rstest]
fn a_small_file_is_seen_whole(#[values(0, 1, 2, 3)] packing: usize) {
    for (disk, expected) in [(gpt_disk(512 << 10, 512), 512 << 10), (mbr_disk(256 << 10, 1..512), 256 << 10), (Image::new(3).0, 1 << 30)] {
        let seen = whole(&PACKS[packing](&disk)).expect("a disk");
        // An MBR does not tell the size; the end of the disk does.
        assert_eq!((seen.is_whole, size(&seen)), (true, Some(expected)));
    }
}

#[rstest]
#[case::xz({ let mut bytes = xz(&gpt_disk(512 << 10, 512)); bytes.truncate(bytes.len() - 1); bytes }, "xz stream")]
#[case::zstd({ let mut bytes = zstd(&gpt_disk(512 << 10, 512)); bytes.truncate(bytes.len() - 1); bytes }, "zstd frame")]
#[case::gzip({ let mut bytes = gzip(&gpt_disk(512 << 10, 512)); bytes.truncate(bytes.len() - 1); bytes }, "gzip member")]
#[case::gzip_crc({ let mut bytes = gzip(&gpt_disk(512 << 10, 512)); let at = bytes.len() - 8; bytes[at] ^= 1; bytes }, "CRC")]
#[case::gzip_garbage([gzip(&gpt_disk(512 << 10, 512)), b"garbage".to_vec()].concat(), "no further member")]
#[case::xz_garbage([xz(&gpt_disk(512 << 10, 512)), b"garbage!".to_vec()].concat(), "no further stream")]
#[case::gpt_cut_inside(gzip(&gpt_disk(512 << 10, 512)[..400 << 10]), "GPT disk")]
#[case::alternate({ let mut disk = gpt_disk(512 << 10, 512); let at = (512 << 10) - 512 + 20; disk[at] ^= 1; disk }, "GPT")]
#[case::qcow2({ let mut bytes = Image::new(3).0; bytes.truncate(4 * CLUSTER); bytes }, "L2 table")]
#[case::packed_qcow2({ let mut bytes = Image::new(3).0; bytes.truncate(4 * CLUSTER); gzip(&bytes) }, "L2 table")]
fn damage_in_a_file_that_was_seen_whole_is_told(#[case] bytes: Vec<u8>, #[case] expected: &str) {
    let error = whole(&bytes).expect_err(expected);
    assert_eq!(error.reason(), Reason::Corrupt, "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}

/// The same beginning says nothing against a file that goes on.
#[rstest]
fn a_beginning_is_no_damage(#[values(0, 1, 2, 3)] packing: usize) {
    // Noise in the second half, so that no packing makes it short.
    let mut disk = gpt_disk(1 << 20, 512);
    let half = disk.len() / 2;
    for (index, byte) in disk[half..half + (256 << 10)].iter_mut().enumerate() {
        *byte = ((index as u32).wrapping_mul(2_654_435_761) >> 13) as u8;
    }
    let bytes = PACKS[packing](&disk);
    let seen = preview(&bytes[..bytes.len() - 100], Some(bytes.len() as u64), false, &Limits::default()).expect("a disk");
    assert_eq!((seen.is_whole, size(&seen)), (false, Some(1 << 20)));
}

#[rstest]
#[case::refcount_table(1, "qcow2 refcount table")]
#[case::refcount_block(2, "qcow2 refcount block")]
#[case::l1(3, "qcow2 L1 table")]
#[case::l2(4, "qcow2 L2 table")]
#[case::cluster(5, "qcow2 cluster")]
fn tables_beyond_the_announced_length_are_told_from_the_first_bytes(#[case] clusters: usize, #[case] part: &str) {
    let image = Image::new(3).0;
    let head = &image[..clusters * CLUSTER];
    let look = |total: usize| preview(head, Some(total as u64), false, &Limits::default());
    let error = look(clusters * CLUSTER).expect_err(part);
    assert!(error.reason() == Reason::Corrupt && error.to_string().contains(part), "{error}");
    // Announced as it is, nothing is wrong, and not all of it was seen.
    assert!(!look(image.len()).expect("a disk").is_whole);
}

#[test]
fn too_few_bytes_are_no_verdict_and_too_many_end() {
    let seen = preview(&[0xfd, b'7', b'z', b'X', b'Z', 0], Some(1 << 20), false, &Limits::default()).expect("no verdict");
    assert_eq!(seen, Preview { probe: None, is_whole: false });
    let limits = Limits { max_virtual_size: 1 << 20, ..Limits::default() };
    let bomb = gzip(&mbr_disk(8 << 20, 1..100));
    assert_eq!(preview(&bomb, Some(bomb.len() as u64), true, &limits).expect_err("bomb").reason(), Reason::TooLarge);
}

/// What the daemon says of the same bytes.
fn taken_in(bytes: &[u8]) -> Result<u64, ArtifactError> {
    let mut prober = Prober::new(Some(bytes.len() as u64), &Limits::default());
    let probe = match prober.feed(bytes)? {
        Some(probe) => probe,
        None => prober.finish()?,
    };
    let mut input = tempfile::tempfile().expect("file");
    input.write_all(bytes).expect("write");
    let output = tempfile::tempfile().expect("file");
    let limits = Limits { threads: 1, ..Limits::default() };
    ingest(&input, None, probe.format, &output, &limits, Watch::idle()).map(|disk| disk.virtual_size.bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    /// A file that was read whole has one verdict, whoever gives it.
    #[test]
    fn the_verdict_on_a_whole_file_is_the_daemons(
        packing in 0..4_usize,
        disk in 0..3_usize,
        cut in proptest::option::of(0.0..1.0_f64),
        flips in proptest::collection::vec((0.0..1.0_f64, any::<u8>()), 0..4),
    ) {
        let disk = match disk {
            0 => gpt_disk(128 << 10, 512),
            1 => mbr_disk(96 << 10, 1..192),
            _ => Image::new(3).0,
        };
        let mut bytes = PACKS[packing](&disk);
        let place = |share: f64, len: usize| ((len as f64 * share) as usize).min(len.saturating_sub(1));
        for (share, mask) in flips {
            let at = place(share, bytes.len());
            bytes[at] ^= mask;
        }
        if let Some(share) = cut {
            bytes.truncate(place(share, bytes.len()));
        }
        match (whole(&bytes), taken_in(&bytes)) {
            (Ok(seen), Ok(expected)) => prop_assert_eq!((seen.is_whole, size(&seen)), (true, Some(expected))),
            (Err(told), Err(expected)) => prop_assert_eq!(told.reason(), expected.reason(), "{} and {}", told, expected),
            (told, expected) => prop_assert!(false, "{told:?} and {expected:?}"),
        }
    }
}
