use std::{
    cell::Cell,
    fs::File,
    io::{self, Read, Write as _},
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, Ordering},
};

use rstest::rstest;

use super::{Ingested, ingest, ingest_stream, output_upper_bound};
use crate::{
    artifact::{
        ArtifactError, Compression, DiskFormat, Format, Limits, Watch, inspect_qcow2,
        qcow2::samples::Image,
        raw::samples::{gpt_disk, mbr_disk},
    },
    model::{Digest, DiskSize},
    rules::Reason,
};

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(bytes).expect("write");
    file
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("metadata").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

fn pack(compression: Option<Compression>, bytes: &[u8]) -> Vec<u8> {
    match compression {
        None => bytes.to_vec(),
        Some(Compression::Xz) => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
            encoder.write_all(bytes).expect("write");
            encoder.finish().expect("finish")
        }
        Some(Compression::Zstd) => zstd::encode_all(bytes, 1).expect("encode"),
        Some(Compression::Gzip) => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).expect("write");
            encoder.finish().expect("finish")
        }
    }
}

fn raw(compression: Option<Compression>) -> Format {
    Format { disk: DiskFormat::Raw, compression }
}

fn qcow2(compression: Option<Compression>) -> Format {
    Format { disk: DiskFormat::Qcow2, compression }
}

fn take(bytes: &[u8], format: Format, limits: &Limits) -> Result<(Ingested, File), ArtifactError> {
    let output = tempfile::tempfile().expect("temporary file");
    ingest(&file_of(bytes), None, format, &output, limits, Watch::idle()).map(|taken| (taken, output))
}

const PACKINGS: [Option<Compression>; 4] = [None, Some(Compression::Xz), Some(Compression::Zstd), Some(Compression::Gzip)];

#[test]
fn one_disk_is_one_qcow2_however_it_is_packed() {
    let disk = gpt_disk(5 << 20, 512);
    let mut seen = Vec::new();
    for packing in PACKINGS {
        let (taken, output) = take(&pack(packing, &disk), raw(packing), &Limits::default()).expect("a disk");
        assert_eq!(taken.virtual_size.bytes(), 5 << 20);
        assert!(!taken.disk_is_input);
        let bytes = content(&output);
        assert_eq!(taken.disk_len, bytes.len() as u64);
        assert_eq!(taken.disk_digest, Digest::of(&bytes));
        assert!(taken.disk_len <= output_upper_bound(raw(packing), taken.virtual_size));
        assert_eq!(inspect_qcow2(&output, &Limits::default(), Watch::idle()).expect("whole").virtual_size, taken.virtual_size);
        seen.push(bytes);
    }
    assert!(seen.iter().all(|bytes| *bytes == seen[0]));
}

#[test]
fn a_plain_qcow2_stays_where_it_is() {
    let image = Image::new(3);
    let output = file_of(b"untouched");
    let taken = ingest(&image.file(), None, qcow2(None), &output, &Limits::default(), Watch::idle()).expect("a disk");
    let expected = Ingested {
        virtual_size: DiskSize::from_bytes(1 << 30).expect("size"),
        disk_digest: Digest::of(&image.0),
        disk_len: image.0.len() as u64,
        disk_is_input: true,
    };
    assert_eq!(taken, expected);
    assert_eq!(content(&output), b"untouched");
    assert_eq!(output_upper_bound(qcow2(None), taken.virtual_size), 0);
    // A digest that is known already is taken over.
    let known = Digest::of(b"as downloaded");
    let taken = ingest(&image.file(), Some(known), qcow2(None), &output, &Limits::default(), Watch::idle()).expect("a disk");
    assert_eq!(taken.disk_digest, known);
}

#[rstest]
fn a_packed_or_streamed_qcow2_is_copied(#[values(0, 1, 2, 3)] packing: usize) {
    let image = Image::new(3);
    let packed = pack(PACKINGS[packing], &image.0);
    let output = file_of(&[1; 100]);
    let taken = ingest_stream(packed.as_slice(), qcow2(PACKINGS[packing]), &output, &Limits::default(), Watch::idle()).expect("a disk");
    assert_eq!(taken.disk_digest, Digest::of(&image.0));
    assert!(!taken.disk_is_input);
    assert!(content(&output) == image.0);
}

#[rstest]
fn what_is_cut_is_corrupt(#[values(0, 1, 2, 3)] packing: usize, #[values(false, true)] is_qcow2: bool) {
    let packing = PACKINGS[packing];
    let (disk, format) = if is_qcow2 { (Image::new(3).0, qcow2(packing)) } else { (gpt_disk(5 << 20, 512), raw(packing)) };
    let packed = pack(packing, &disk);
    // Of a plain qcow2 the last cluster may be short.
    let missing = if packing.is_none() { 70_000 } else { 5 };
    let error = take(&packed[..packed.len() - missing], format, &Limits::default()).expect_err("cut");
    assert!(matches!(error, ArtifactError::Truncated { .. }), "{error}");
    // And cut before it was packed.
    let packed = pack(packing, &disk[..disk.len() - 70_000]);
    let error = take(&packed, format, &Limits::default()).expect_err("cut");
    assert!(matches!(error, ArtifactError::Truncated { .. }), "{error}");
}

#[test]
fn a_bomb_ends_at_the_limit() {
    // 200 MiB of disk in a few kilobytes, and a limit of 100.
    let disk = mbr_disk(200 << 20, 1..2048);
    let limits = Limits { max_virtual_size: 100 << 20, ..Limits::default() };
    for packing in &PACKINGS[1..] {
        let packed = pack(*packing, &disk);
        let error = take(&packed, raw(*packing), &limits).expect_err("bomb");
        assert_eq!(error.reason(), Reason::TooLarge, "{error}");
    }
    let mut image = Image::new(3);
    image.0.resize(300 << 20, 0);
    let error = take(&pack(Some(Compression::Zstd), &image.0), qcow2(Some(Compression::Zstd)), &limits).expect_err("bomb");
    assert_eq!(error.reason(), Reason::TooLarge, "{error}");
}

#[rstest]
fn the_reservation_is_kept(#[values(false, true)] is_qcow2: bool) {
    let packing = Some(Compression::Zstd);
    let mut disk = gpt_disk(5 << 20, 512);
    disk[1 << 20..4 << 20].fill(3);
    let (disk, format) = if is_qcow2 { (Image::new(3).0, qcow2(packing)) } else { (disk, raw(packing)) };
    let limits = Limits { reserved: 300_000, ..Limits::default() };
    let error = take(&pack(packing, &disk), format, &limits).expect_err("too little room");
    assert!(matches!(error, ArtifactError::OverReservation { reserved: 300_000 }), "{error}");
}

#[rstest]
fn text_is_no_disk_whatever_it_is_called(#[values(0, 1, 2, 3)] packing: usize) {
    let packed = pack(PACKINGS[packing], b"<html><body>Sign in</body></html>");
    assert_eq!(take(&packed, raw(PACKINGS[packing]), &Limits::default()).expect_err("text").reason(), Reason::NotADiskImage);
    let packed = pack(PACKINGS[packing], b"");
    assert_eq!(take(&packed, raw(PACKINGS[packing]), &Limits::default()).expect_err("empty").reason(), Reason::NotADiskImage);
}

/// An endless run of zeros behind the start of a disk.
struct Endless(Vec<u8>, usize);

impl Read for Endless {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let rest = self.0.get(self.1..).unwrap_or_default();
        let count = out.len().min(rest.len());
        out[..count].copy_from_slice(&rest[..count]);
        self.1 += count;
        if count == 0 {
            out.fill(0);
            return Ok(out.len());
        }
        Ok(count)
    }
}

#[test]
fn it_stops_when_told_to_and_says_how_far_it_is() {
    let cancel = AtomicBool::new(false);
    let last = Cell::new(0);
    let progress = |bytes: u64| {
        assert!(bytes >= last.get());
        last.set(bytes);
        if bytes > 20 << 20 {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let watch = Watch { progress: &progress, cancel: &cancel };
    let output = tempfile::tempfile().expect("temporary file");
    let error = ingest_stream(Endless(mbr_disk(1 << 20, 1..2048), 0), raw(None), &output, &Limits::default(), watch).expect_err("stop");
    assert!(matches!(error, ArtifactError::Cancelled), "{error}");
    assert!((20 << 20..30 << 20).contains(&last.get()), "{}", last.get());
}

/// Reading back what was written takes as long as the disk is large, and is not to be taken for a volume that hangs.
#[test]
fn the_disk_that_is_read_back_is_told_too() {
    let mut disk = gpt_disk(9 << 20, 512);
    disk[1 << 20..8 << 20].fill(3);
    for packing in PACKINGS {
        let packed = pack(packing, &disk);
        let told = Cell::new((0, 0));
        let progress = |bytes: u64| {
            let (last, times) = told.get();
            assert!(bytes >= last);
            told.set((bytes, if bytes > last { 1 } else { times + 1 }));
        };
        let (output, cancel) = (tempfile::tempfile().expect("temporary file"), AtomicBool::new(false));
        let watch = Watch { progress: &progress, cancel: &cancel };
        ingest(&file_of(&packed), None, raw(packing), &output, &Limits::default(), watch).expect("a disk");
        let (last, times) = told.get();
        assert!(last == packed.len() as u64 && times > 7, "{packing:?}: {times} times at {last}");
    }
}

#[test]
fn a_failing_reader_is_not_the_images_fault() {
    struct Failing(usize);
    impl Read for Failing {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            if self.0 > 3 { Err(io::Error::from_raw_os_error(5)) } else { Endless(mbr_disk(1 << 20, 1..2048), 0).read(out) }
        }
    }
    let output = tempfile::tempfile().expect("temporary file");
    let error = ingest_stream(Failing(0), raw(None), &output, &Limits::default(), Watch::idle()).expect_err("EIO");
    assert_eq!(error.reason(), Reason::SpoolFailed, "{error}");
}

#[test]
fn an_output_that_cannot_be_written_is_not_the_images_fault() {
    let output = File::open("/dev/null").expect("open for reading");
    let packed = pack(Some(Compression::Xz), &gpt_disk(5 << 20, 512));
    for format in [raw(Some(Compression::Xz)), qcow2(Some(Compression::Xz))] {
        let error = ingest_stream(packed.as_slice(), format, &output, &Limits::default(), Watch::idle()).expect_err("read-only");
        assert_eq!(error.reason(), Reason::SpoolFailed, "{error}");
    }
}
