use std::{fs::File, os::unix::fs::FileExt};

use proptest::prelude::*;

use super::{CLUSTER, L2_REACH, MAX_RAW_SIZE, Writer, Written, qcow2_upper_bound};
use crate::{
    artifact::{ArtifactError, Limits, Watch, inspect_qcow2},
    rules::Reason,
};

fn write(disk: &[u8], steps: &[usize]) -> (File, Written) {
    let file = tempfile::tempfile().expect("temporary file");
    let mut writer = Writer::new(&file, u64::MAX).expect("writer");
    let mut rest = disk;
    for step in steps.iter().cycle() {
        let (piece, after) = rest.split_at((*step).clamp(1, rest.len().max(1)).min(rest.len()));
        writer.write(piece).expect("write");
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    let written = writer.finish().expect("finish");
    (file, written)
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("metadata").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

/// Reads the disk back through the tables, by the letter of the format.
fn read_back(qcow2: &[u8]) -> Vec<u8> {
    let be64 = |at: usize| u64::from_be_bytes(qcow2[at..at + 8].try_into().expect("eight"));
    let offset = |entry: u64| (entry & 0x00ff_ffff_ffff_fe00) as usize;
    let size = be64(24) as usize;
    let mut disk = vec![0; size.next_multiple_of(CLUSTER as usize)];
    for (index, cluster) in disk.chunks_mut(CLUSTER as usize).enumerate() {
        let l2 = offset(be64(be64(40) as usize + index / 8192 * 8));
        if l2 != 0 {
            let data = offset(be64(l2 + index % 8192 * 8));
            if data != 0 {
                cluster.copy_from_slice(&qcow2[data..data + CLUSTER as usize]);
            }
        }
    }
    disk.truncate(size);
    disk
}

#[test]
fn one_pattern_across_two_l2_tables() {
    // 513 MiB, with data around the border between the two tables and in a short last cluster.
    let mut disk = vec![0; (L2_REACH + (1 << 20) + 5000) as usize];
    let border = L2_REACH as usize;
    disk[0] = 1;
    disk[border - 70_000..border + 70_000].fill(7);
    let last = disk.len() - 1;
    disk[last] = 9;
    let (file, written) = write(&disk, &[1 << 20]);
    let found = inspect_qcow2(&file, &Limits::default(), Watch::idle()).expect("whole");
    assert_eq!(found.file_len, written.file_len);
    assert_eq!(found.mapped_clusters, 1 + 4 + 1);
    // Header, two tables, six clusters, two L2 tables, one refcount block.
    assert_eq!(written.file_len, (3 + 6 + 2 + 1) * CLUSTER);
    assert_eq!(written.virtual_size.bytes(), (disk.len() as u64).next_multiple_of(512));
    disk.resize(disk.len().next_multiple_of(512), 0);
    assert!(read_back(&content(&file)) == disk);
}

#[test]
fn an_empty_region_has_no_l2_table() {
    let (file, written) = write(&vec![0; (2 * L2_REACH) as usize], &[1 << 20]);
    assert_eq!(written.file_len, 4 * CLUSTER);
    assert_eq!(inspect_qcow2(&file, &Limits::default(), Watch::idle()).expect("whole").mapped_clusters, 0);
}

#[test]
fn the_upper_bound_is_one() {
    for len in [1, 512, CLUSTER, 10 * CLUSTER + 1, 600 * CLUSTER] {
        let (_, written) = write(&vec![1; len as usize], &[1 << 20]);
        assert!(written.file_len <= qcow2_upper_bound(len), "{len}");
        assert!(qcow2_upper_bound(len) - written.file_len <= CLUSTER, "{len}");
    }
    // What a full disk of 4.15 GiB takes on top: nine L2 tables, the first three clusters and three refcount blocks.
    assert_eq!(qcow2_upper_bound(4_453_302_272) - 4_453_302_272, 15 * CLUSTER);
    assert!(qcow2_upper_bound(MAX_RAW_SIZE) < MAX_RAW_SIZE + (MAX_RAW_SIZE >> 11));
    assert_eq!(qcow2_upper_bound(u64::MAX), u64::MAX);
}

#[test]
fn it_never_outgrows_its_reservation() {
    let disk = vec![1; 10 * CLUSTER as usize];
    let (_, written) = write(&disk, &[1 << 20]);
    for reserved in 0..written.file_len / CLUSTER {
        let file = tempfile::tempfile().expect("temporary file");
        let mut writer = Writer::new(&file, reserved * CLUSTER).expect("writer");
        let result = writer.write(&disk).and_then(|()| writer.finish().map(|_| ()));
        let error = result.expect_err("too little room");
        assert!(matches!(error, ArtifactError::OverReservation { .. }) && error.reason() == Reason::SpoolFull, "{error}");
        assert!(file.metadata().expect("metadata").len() <= reserved * CLUSTER);
    }
}

#[test]
fn what_the_file_held_before_is_gone() {
    let (file, _) = write(&vec![1; 20 * CLUSTER as usize], &[1 << 20]);
    let mut writer = Writer::new(&file, u64::MAX).expect("writer");
    writer.write(&[2; 512]).expect("write");
    let written = writer.finish().expect("finish");
    assert_eq!(content(&file), content(&write(&[2; 512], &[512]).0));
    assert_eq!(file.metadata().expect("metadata").len(), written.file_len);
}

#[test]
fn an_empty_disk_is_none() {
    let file = tempfile::tempfile().expect("temporary file");
    let error = Writer::new(&file, u64::MAX).expect("writer").finish().expect_err("empty");
    assert_eq!(error.reason(), Reason::NotADiskImage);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_bytes_do_not_depend_on_how_they_come(
        runs in proptest::collection::vec((0..4_u8, 1..300_000_usize), 1..12),
        steps in proptest::collection::vec(1..400_000_usize, 1..5),
    ) {
        let mut disk = Vec::new();
        for (value, len) in runs {
            disk.resize(disk.len() + len, value / 2 * value);
        }
        let (file, written) = write(&disk, &steps);
        let bytes = content(&file);
        prop_assert_eq!(bytes.len() as u64, written.file_len);
        prop_assert!(bytes == content(&write(&disk, &[1 << 20]).0));
        disk.resize(disk.len().next_multiple_of(512), 0);
        prop_assert!(read_back(&bytes) == disk);
        inspect_qcow2(&file, &Limits::default(), Watch::idle()).expect("whole");
    }
}
