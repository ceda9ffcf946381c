use rstest::rstest;

use super::{Kind, Records, Tar};
use crate::artifact::container::{
    header::octal,
    samples::{self, TarSample},
};

/// Path, kind and data of every entry, or the error.
fn read(bytes: &[u8]) -> Result<Vec<(String, Kind, Vec<u8>)>, String> {
    let mut tar = Tar::new(bytes);
    let mut entries = Vec::new();
    while let Some(entry) = tar.next().map_err(|error| error.to_string())? {
        let mut data = vec![0; usize::try_from(entry.size).expect("small").min(1 << 20)];
        let mut filled = 0;
        while filled < data.len() {
            filled += match tar.read_data(&mut data[filled..]).map_err(|error| error.to_string())? {
                0 => break,
                count => count,
            };
        }
        data.truncate(filled);
        entries.push((String::from_utf8_lossy(&entry.path).into_owned(), entry.kind, data));
    }
    Ok(entries)
}

#[test]
fn reads_what_the_tar_crate_writes() {
    let long = format!("disk/{}", "n".repeat(180));
    let bytes = TarSample::new().folder("disk/").file(&long, b"data").file("disk/b", &[7; 1000]).finish();
    let entries = read(&bytes).expect("tar");
    assert_eq!(entries.len(), 3);
    assert_eq!(entries[0].1, Kind::Folder);
    assert_eq!((entries[1].0.as_str(), entries[1].2.as_slice()), (long.as_str(), &b"data"[..]));
    assert_eq!(entries[2].2, vec![7; 1000]);
}

#[test]
fn pax_names_and_sizes_count_before_the_header_s() {
    let name = format!("disk/{}", "x".repeat(300));
    // As Go's writer has it for a large file: the size in the header is 0.
    let mut bytes = samples::pax(&[("path", &name), ("size", "5")]);
    bytes.extend(samples::header("short", 0, b'0'));
    bytes.extend(b"hello");
    bytes.resize(bytes.len().next_multiple_of(512) + 1024, 0);
    assert_eq!(read(&bytes), Ok(vec![(name, Kind::File, b"hello".to_vec())]));
}

#[test]
fn gnu_s_long_name_comes_after_a_pax_name() {
    let mut bytes = samples::header("././@LongLink", 9, b'L').to_vec();
    bytes.extend(b"gnu/name\0");
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes.extend(samples::pax(&[("path", "pax/name")]));
    bytes.extend(samples::header("short", 0, b'0'));
    assert_eq!(read(&bytes).expect("tar")[0].0, "gnu/name");
}

#[test]
fn only_the_oldest_form_tells_a_folder_by_its_name() {
    let kind_of = |flag| read(&samples::header("disk/", 0, flag)).expect("tar")[0].1;
    assert_eq!((kind_of(0), kind_of(b'0')), (Kind::Folder, Kind::File));
}

#[test]
fn a_prefix_belongs_to_ustar_only() {
    let mut header = samples::header("name", 0, b'0');
    header[345..349].copy_from_slice(b"disk");
    samples::seal(&mut header);
    assert_eq!(read(&header).expect("ustar")[0].0, "disk/name");
    header[257..265].copy_from_slice(b"ustar  \0");
    samples::seal(&mut header);
    assert_eq!(read(&header).expect("gnu")[0].0, "name");
}

#[test]
fn sizes_beyond_octal_are_binary() {
    let mut header = samples::header("a", 0, b'0');
    header[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0]);
    samples::seal(&mut header);
    let entry = Tar::new(&header[..]).next().expect("header").expect("entry");
    assert_eq!(entry.size, 1 << 33);
    header[124] = 0xff;
    samples::seal(&mut header);
    assert!(Tar::new(&header[..]).next().is_err());
}

#[test]
fn a_link_has_no_data_whatever_its_size_says() {
    let mut bytes = samples::header("disk/link", 1024, b'2').to_vec();
    bytes.extend(samples::header("after", 0, b'0'));
    let entries = read(&bytes).expect("tar");
    assert_eq!(entries.iter().map(|entry| entry.1).collect::<Vec<_>>(), [Kind::SymbolicLink, Kind::File]);
}

#[rstest]
#[case::cut_header(&samples::header("a", 0, b'0')[..100], "truncated")]
#[case::no_tar(&[b'x'; 512], "checksum")]
#[case::lone_zeros(&{ let mut bytes = vec![0; 512]; bytes.extend(samples::header("a", 0, b'0')); bytes }, "one block of zeros")]
#[case::cut_data(&samples::header("a", 10, b'0'), "truncated")]
#[case::huge_pax(&samples::header("a", 2 << 20, b'x'), "an extension of")]
#[case::bad_pax(&{ let mut bytes = samples::header("a", 5, b'x').to_vec(); bytes.extend(b"99 a="); bytes.resize(1024, 0); bytes }, "PAX")]
#[case::volumes(&samples::header("a", 0, b'M'), "several volumes")]
fn what_is_wrong_is_told(#[case] bytes: &[u8], #[case] expected: &str) {
    let error = read(bytes).expect_err(expected);
    assert!(error.contains(expected), "{error}");
}

#[test]
fn ends_are_taken_as_go_takes_them() {
    assert_eq!(read(&[]), Ok(vec![]));
    assert_eq!(read(&[0; 512]), Ok(vec![]));
    let mut bytes = vec![0; 1024];
    bytes.extend(samples::header("after the end", 0, b'0'));
    assert_eq!(read(&bytes), Ok(vec![]));
}

#[rstest]
#[case(b"0000644\0", Some(0o644))]
#[case(b"   644 \0", Some(0o644))]
#[case(b"\0\0\0\0", Some(0))]
#[case(b"0000648\0", None)]
#[case(b"-0001", None)]
fn octal_numbers(#[case] field: &[u8], #[case] expected: Option<u64>) {
    assert_eq!(octal(field), expected);
}

#[rstest]
#[case(b"", true)]
#[case(b"12 path=abc\n", true)]
#[case(b"11 path=abc\n", false)]
#[case(b"12 path=abc ", false)]
#[case(b"6 =ab\n", false)]
#[case(b"x path=abc\n", false)]
#[case(b"12 size=12a\n", false)]
#[case(b"11 path=a\0\n", false)]
fn records(#[case] data: &[u8], #[case] good: bool) {
    assert_eq!(Records::parse(data).is_some(), good);
}

proptest::proptest! {
    /// Whatever the bytes, reading ends, and without a panic.
    #[test]
    fn any_bytes_end(bytes: Vec<u8>, at in 0..512_usize, value: u8) {
        let _ = read(&bytes);
        let mut good = TarSample::new().file("disk/a", b"data").finish();
        good[at] = value;
        let _ = read(&good);
    }
}
