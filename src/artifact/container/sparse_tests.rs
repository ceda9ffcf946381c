use rstest::rstest;

use super::{Form, Map, Piece, Records, Step};
use crate::artifact::container::{
    header::Kind,
    samples::{header, pax, seal},
    tar::Tar,
};

fn map(pieces: &[(u64, u64)], size: u64, stored: u64) -> Option<Map> {
    Map::new(pieces.iter().map(|(offset, length)| Piece { offset: *offset, length: *length }).collect(), size, stored)
}

#[rstest]
#[case(&[], 0, 0, true)]
#[case(&[], 9, 0, true)]
#[case(&[(0, 2), (2, 3), (9, 0)], 9, 5, true)]
#[case::unsorted(&[(4, 2), (0, 2)], 9, 4, false)]
#[case::overlap(&[(0, 3), (2, 2)], 9, 5, false)]
#[case::past_the_end(&[(8, 2)], 9, 2, false)]
#[case::overflow(&[(u64::MAX, 2)], 9, 2, false)]
#[case::more_stored(&[(0, 2)], 9, 3, false)]
#[case::less_stored(&[(0, 2)], 9, 1, false)]
#[case::no_size(&[], u64::MAX, 0, false)]
fn maps_that_do_not_add_up_are_refused(#[case] pieces: &[(u64, u64)], #[case] size: u64, #[case] stored: u64, #[case] good: bool) {
    assert_eq!(map(pieces, size, stored).is_some(), good);
}

#[test]
fn holes_and_pieces_follow_each_other() {
    let mut map = map(&[(2, 3), (5, 0), (5, 1), (8, 1)], 10, 5).expect("map");
    let mut steps = Vec::new();
    loop {
        let step = map.step(2);
        steps.push(step);
        match step {
            Step::End => break,
            Step::Hole(count) | Step::Stored(count) => map.advance(count),
        }
    }
    use Step::{End, Hole, Stored};
    assert_eq!(steps, [Hole(2), Stored(2), Stored(1), Stored(1), Hole(2), Stored(1), Hole(1), End]);
}

#[rstest]
#[case(&[], Form::Plain)]
#[case(&[("major", "1"), ("minor", "0")], Form::InData)]
#[case(&[("major", "0"), ("minor", "1")], Form::InRecords)]
#[case(&[("map", "0,1")], Form::InRecords)]
#[case(&[("offset", "0"), ("numbytes", "1")], Form::InRecords)]
#[case(&[("major", "2"), ("minor", "0")], Form::Unknown)]
#[case(&[("major", "1")], Form::Unknown)]
#[case(&[("size", "5")], Form::Unknown)]
fn forms(#[case] records: &[(&str, &str)], #[case] expected: Form) {
    let mut taken = Records::default();
    for (key, value) in records {
        taken.take(key.as_bytes(), value.as_bytes()).expect("record");
    }
    assert_eq!(taken.form(), expected);
}

/// `abc` at 2 and `d` at 7 of ten bytes, in every form; the stored bytes follow.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let ustar = |size| header("GNUSparseFile.0/a", size, b'0');
    let records = |map: &[(&str, &str)]| {
        let mut all = vec![("GNU.sparse.name", "disk/a")];
        all.extend(map);
        [pax(&all), ustar(4).to_vec(), b"abcd".to_vec()].concat()
    };
    let mut old = header("disk/a", 4, b'S');
    old[257..265].copy_from_slice(b"ustar  \0");
    old[386..398].copy_from_slice(b"00000000002\0");
    old[398..410].copy_from_slice(b"00000000003\0");
    old[482] = 1;
    old[483..495].copy_from_slice(b"00000000012\0");
    seal(&mut old);
    let mut more = [0; 512];
    more[..12].copy_from_slice(b"00000000007\0");
    more[12..24].copy_from_slice(b"00000000001\0");
    let mut front = b"2\n2\n3\n7\n1\n".to_vec();
    front.resize(512, 0);
    vec![
        ("old", [old.to_vec(), more.to_vec(), b"abcd".to_vec()].concat()),
        (
            "0.0",
            records(&[
                ("GNU.sparse.size", "10"),
                ("GNU.sparse.numblocks", "2"),
                ("GNU.sparse.offset", "2"),
                ("GNU.sparse.numbytes", "3"),
                ("GNU.sparse.offset", "7"),
                ("GNU.sparse.numbytes", "1"),
            ]),
        ),
        ("0.1", records(&[("GNU.sparse.size", "10"), ("GNU.sparse.numblocks", "2"), ("GNU.sparse.map", "2,3,7,1")])),
        (
            "1.0",
            [
                pax(&[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.name", "disk/a"), ("GNU.sparse.realsize", "10")]),
                ustar(516).to_vec(),
                front,
                b"abcd".to_vec(),
            ]
            .concat(),
        ),
    ]
}

#[test]
fn every_form_gives_the_file_with_its_holes() {
    for (form, mut bytes) in samples() {
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes.extend(header("after", 0, b'0'));
        let mut tar = Tar::new(&bytes[..]);
        let entry = tar.next().unwrap_or_else(|error| panic!("{form}: {error}")).expect("entry");
        assert_eq!((entry.path.as_slice(), entry.kind, entry.size), (&b"disk/a"[..], Kind::File, 10), "{form}");
        let mut data = Vec::<u8>::new();
        let mut piece = [9; 2];
        loop {
            match tar.read_data(&mut piece).expect(form) {
                0 => break,
                count => data.extend(&piece[..count]),
            }
        }
        assert_eq!(data, b"\0\0abc\0\0d\0\0", "{form}");
        assert_eq!(tar.next().expect(form).expect("entry").path, b"after", "{form}");
        // Skipped, all of it is passed over too.
        let mut tar = Tar::new(&bytes[..]);
        tar.next().expect(form);
        assert_eq!(tar.next().expect(form).expect("entry").path, b"after", "{form}");
    }
}

#[rstest]
#[case::not_gnu(header("disk/a", 0, b'S').to_vec(), "not GNU's")]
#[case::no_count([pax(&[("GNU.sparse.map", "0,4")]), header("a", 4, b'0').to_vec()].concat(), "does not fit")]
#[case::wrong_count([pax(&[("GNU.sparse.map", "0,4"), ("GNU.sparse.numblocks", "2")]), header("a", 4, b'0').to_vec()].concat(), "does not fit")]
#[case::order([pax(&[("GNU.sparse.numbytes", "4")]), header("a", 4, b'0').to_vec()].concat(), "PAX")]
#[case::no_file([pax(&[("GNU.sparse.map", "0,4"), ("GNU.sparse.numblocks", "1")]), header("a", 4, b'2').to_vec()].concat(), "no file")]
#[case::no_map([pax(&[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")]), header("a", 0, b'0').to_vec()].concat(), "no list")]
#[case::huge_map([pax(&[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")]), header("a", 512, b'0').to_vec(), {
    let mut block = b"99999999999\n".to_vec();
    block.resize(512, 0);
    block
}].concat(), "no list")]
fn what_is_wrong_is_told(#[case] bytes: Vec<u8>, #[case] expected: &str) {
    let error = Tar::new(&bytes[..]).next().expect_err(expected).to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_form_that_go_reads_as_plain_bytes_is_no_disk() {
    let bytes = [pax(&[("GNU.sparse.major", "3"), ("GNU.sparse.minor", "0")]), header("disk/a", 0, b'0').to_vec()].concat();
    assert_eq!(Tar::new(&bytes[..]).next().expect("tar").expect("entry").kind, Kind::Sparse);
}

proptest::proptest! {
    /// Whatever a form says, reading ends, and gives what it said.
    #[test]
    fn any_bytes_end(which in 0..4_usize, at in 0..1536_usize, value: u8, sealed: bool) {
        let (_, mut bytes) = samples().swap_remove(which);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        let at = at % bytes.len();
        bytes[at] = value;
        if sealed {
            for block in bytes.as_chunks_mut::<512>().0 {
                seal(block);
            }
        }
        let mut tar = Tar::new(&bytes[..]);
        while let Ok(Some(entry)) = tar.next() {
            let (mut piece, mut sum) = ([0; 4096], 0);
            // Holes have no bounds of their own.
            while sum < 1 << 20 {
                match tar.read_data(&mut piece) {
                    Ok(0) => {
                        assert_eq!(sum, entry.size);
                        break;
                    }
                    Ok(count) => sum += count as u64,
                    Err(_) => break,
                }
            }
        }
    }
}
