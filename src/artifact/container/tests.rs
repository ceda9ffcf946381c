use std::{
    fs::File,
    io::{Read as _, Write as _},
};

use rstest::rstest;

use super::{LayerProber, ingest_layer, preview_layer, samples::TarSample, scan_layer};
use crate::{
    artifact::{Limits, Watch},
    model::Digest,
};

/// A raw disk with an MBR and a little in it.
fn raw() -> Vec<u8> {
    let mut disk = vec![0; 4 << 20];
    disk[446..462].copy_from_slice(&[0, 0, 2, 0, 0x83, 0, 0, 0, 8, 0, 0, 0, 0xf8, 0x1f, 0, 0]);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[1 << 20..(1 << 20) + 5].copy_from_slice(b"hello");
    disk
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("gzip");
    encoder.finish().expect("gzip")
}

/// As eStargz has it: a member for every piece, and an empty one at the end.
fn members(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(300_000).map(gzip).chain([gzip(b"")]).flatten().collect()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).expect("zstd")
}

/// As zstd:chunked has it: frames with a skippable one between them.
fn frames(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in bytes.chunks(300_000) {
        out.extend(zstd(piece));
        out.extend([0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
    }
    out
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(bytes).expect("xz");
    encoder.finish().expect("xz")
}

fn plain(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("file");
    file.write_all(bytes).expect("written");
    file
}

fn disk_of(layer: &[u8]) -> Result<(u64, Digest, String), String> {
    let output = tempfile::tempfile().expect("file");
    let done = ingest_layer(&file(layer), &output, &Limits::default(), Watch::idle());
    let done = done.map_err(|error| format!("{} {error}", error.reason()))?;
    let mut written = Vec::new();
    let mut reader = std::io::BufReader::new(output);
    std::io::Seek::rewind(&mut reader).expect("rewind");
    reader.read_to_end(&mut written).expect("read");
    assert_eq!(Digest::of(&written[..]), done.disk.disk_digest);
    Ok((done.disk.virtual_size.bytes(), done.disk.disk_digest, done.format.to_string()))
}

type Pack = fn(&[u8]) -> Vec<u8>;

#[rstest]
#[case::plain(plain, "raw in tar")]
#[case::gzip(gzip, "raw in tar.gz")]
#[case::estargz(members, "raw in tar.gz")]
#[case::zstd(zstd, "raw in tar.zst")]
#[case::zstd_chunked(frames, "raw in tar.zst")]
#[case::xz(xz, "raw in tar.xz")]
fn r2_layers_are_read_by_content(#[case] pack: Pack, #[case] format: &str) {
    let tar = TarSample::new().folder("disk/").file("disk/disk.img", &raw()).file("etc/after", b"more").finish();
    let layer = pack(&tar);
    let (size, digest, found) = disk_of(&layer).expect("disk");
    assert_eq!((size, found.as_str()), (4 << 20, format));
    // However the layer is packed, the disk is the same.
    assert_eq!(digest, disk_of(&tar).expect("plain").1);
    assert!(scan_layer(&layer[..], &Limits::default(), Watch::idle()).expect("scanned"));
}

#[test]
fn a_disk_that_is_packed_itself_is_unpacked() {
    let tar = TarSample::new().file("disk/disk.img.zst", &zstd(&raw())).finish();
    assert_eq!(disk_of(&gzip(&tar)).expect("disk").2, "raw.zst in tar.gz");
}

#[rstest]
#[case::second_file_after_the_disk(TarSample::new().file("disk/a", &raw()).file("etc/a", b"").file("disk/b", b"x").finish(), "SeveralDiskFiles")]
#[case::none(TarSample::new().file("etc/a", b"x").finish(), "NoDiskFile")]
#[case::no_disk_image(TarSample::new().file("disk/a", b"<html>").finish(), "NotADiskImage")]
#[case::empty_file(TarSample::new().file("disk/a", b"").finish(), "NotADiskImage")]
#[case::no_tar(b"just a text".to_vec(), "Corrupt")]
#[case::nothing(Vec::new(), "NoDiskFile")]
fn what_is_no_container_disk_is_refused(#[case] tar: Vec<u8>, #[case] reason: &str) {
    for pack in [plain as Pack, gzip, zstd] {
        let told = disk_of(&pack(&tar)).expect_err(reason);
        assert!(told.starts_with(reason), "{told}");
    }
}

#[test]
fn a_layer_that_ends_early_or_lies_about_itself_is_refused() {
    let tar = TarSample::new().file("disk/a", &raw()).file("etc/b", &[1; 5000]).finish();
    let layer = gzip(&tar);
    assert!(disk_of(&layer[..layer.len() - 4]).expect_err("cut").starts_with("Corrupt"));
    let mut flipped = layer.clone();
    let at = flipped.len() - 6;
    flipped[at] ^= 1;
    assert!(disk_of(&flipped).expect_err("flipped").starts_with("Corrupt"));
    assert!(disk_of(&tar[..tar.len() - 4096]).expect_err("cut").starts_with("Corrupt"));
}

#[rstest]
#[case::plain(plain, 300 << 10)]
#[case::gzip(gzip, 8 << 10)]
#[case::zstd(zstd, 300 << 10)]
fn the_size_shows_in_the_first_bytes(#[case] pack: Pack, #[case] most: usize) {
    let layer = pack(&TarSample::new().folder("disk/").file("disk/disk.img", &raw()).finish());
    let mut prober = LayerProber::new(layer.len() as u64, &Limits::default());
    let mut fed = 0;
    let probe = loop {
        let piece = &layer[fed..(fed + 1000).min(layer.len())];
        fed += piece.len();
        if let Some(probe) = prober.feed(piece).expect("good") {
            break probe;
        }
    };
    assert!(fed <= most + 1000, "{fed}");
    assert_eq!(probe.virtual_size.map(|size| size.bytes()), Some(4 << 20));
    assert!(probe.format.is_some());
}

#[test]
fn a_disk_behind_a_mebibyte_has_no_size_yet_and_a_wrong_one_is_told_at_once() {
    let noise: Vec<u8> = (0..2_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let layer = TarSample::new().file("bin/noise", &noise).file("disk/disk.img", &raw()).finish();
    let probe =
        LayerProber::new(layer.len() as u64, &Limits::default()).feed(&layer[..1 << 20]).expect("good").expect("all that is looked at");
    assert_eq!((probe.format, probe.virtual_size), (None, None));

    let layer = gzip(&TarSample::new().link("disk/a", "/etc/passwd", false).finish());
    let error = LayerProber::new(layer.len() as u64, &Limits::default()).feed(&layer).expect_err("link");
    assert_eq!(error.reason().as_str(), "LinkedDiskFile");
}

#[test]
fn other_layers_hold_no_disk() {
    let scan = |tar: Vec<u8>| scan_layer(&gzip(&tar)[..], &Limits::default(), Watch::idle()).map_err(|error| error.reason().to_string());
    assert_eq!(scan(TarSample::new().file("etc/a", b"x").finish()), Ok(false));
    assert_eq!(scan(TarSample::new().finish()), Ok(false));
    assert_eq!(scan(TarSample::new().file("disk/a", b"x").finish()), Ok(true));
    assert_eq!(scan(TarSample::new().file("disk/.wh.a", b"").finish()), Err("AmbiguousDiskFile".to_owned()));
}

/// A look at the first bytes of a layer: whether there is a disk, and whether all was seen; or the reason.
fn seen(bytes: &[u8], total: usize) -> Result<(bool, bool), String> {
    let seen = preview_layer(bytes, total as u64, &Limits::default()).map_err(|error| error.reason().to_string())?;
    assert!(seen.missing.is_none() || seen.is_read && seen.disk.is_none(), "{seen:?}");
    let disk = seen.disk.transpose().map_err(|error| error.reason().to_string())?;
    assert_eq!(seen.missing.is_some(), seen.is_read && disk.is_none());
    Ok((disk.is_some(), seen.is_whole))
}

/// A look says what the bytes prove, and no more.
#[rstest]
#[case::good(TarSample::new().file("disk/a", &raw()).finish(), Ok((true, true)))]
#[case::none(TarSample::new().file("etc/a", b"x").finish(), Ok((false, true)))]
#[case::two(TarSample::new().file("disk/a", &raw()).file("disk/b", b"x").finish(), Err("SeveralDiskFiles"))]
#[case::html(TarSample::new().file("disk/a", b"<html>").finish(), Err("NotADiskImage"))]
#[case::cut_disk(TarSample::new().file("disk/a", &raw()[..2 << 20]).finish(), Err("Corrupt"))]
fn a_small_layer_is_looked_at_whole(#[case] tar: Vec<u8>, #[case] expected: Result<(bool, bool), &str>) {
    for pack in [gzip as Pack, members, zstd, frames] {
        let layer = pack(&tar);
        assert_eq!(seen(&layer, layer.len()), expected.map_err(str::to_owned));
        // What is not there yet says nothing: it may be the rest, or a second disk.
        if let (Ok(_), Ok((_, is_whole))) = (expected, seen(&layer[..layer.len() - 3], layer.len())) {
            assert!(!is_whole);
        }
    }
}

#[test]
fn a_disk_behind_the_first_bytes_is_not_seen() {
    let noise: Vec<u8> = (0..2_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let layer = TarSample::new().file("bin/noise", &noise).file("disk/disk.img", &raw()).finish();
    assert_eq!(seen(&layer[..1 << 20], layer.len()), Ok((false, false)));
}

#[test]
fn a_layers_own_damage_is_told_where_it_was_read() {
    let layer = gzip(&TarSample::new().file("disk/a", &raw()).finish());
    let reason = |bytes: &[u8]| seen(bytes, bytes.len());
    assert_eq!(reason(&layer[..layer.len() - 4]), Err("Corrupt".to_owned()));
    assert_eq!(reason(&[&layer[..], b"garbage"].concat()), Err("Corrupt".to_owned()));
    let mut flipped = layer;
    let at = flipped.len() - 6;
    flipped[at] ^= 1;
    assert_eq!(reason(&flipped), Err("Corrupt".to_owned()));
}
