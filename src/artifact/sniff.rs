//! What the first bytes of a file are, told by magic numbers; names and content types are never asked.

use super::{
    Compression,
    bytes::{be32, has},
    zstd_frame::FrameHeader,
};

/// What stands at the start of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Magic {
    Qcow2,
    Packed(Compression),
    /// A form that is known and not taken: its name and what is known about it.
    Unsupported(&'static str),
    /// No magic number at the very start: a raw disk, or no disk at all.
    None,
}

/// Files that hold a disk, or pack one, in a way that is not taken: offset, magic, name.
const UNSUPPORTED: &[(usize, &[u8], &str)] = &[
    (0, b"KDMV", "a vmdk image"),
    (0, b"COWD", "a vmdk (ESXi sparse) image"),
    (0, b"# Disk DescriptorFile", "a vmdk descriptor that names other files"),
    (0, b"vhdxfile", "a vhdx image"),
    (0, b"conectix", "a vhd image"),
    (0x40, &[0x7f, 0x10, 0xda, 0xbe], "a vdi image"),
    (0, b"QED\0", "a qed image"),
    (0, b"WithoutFreeSpace", "a parallels image"),
    (0, b"WithouFreSpacExt", "a parallels image"),
    (0, b"LUKS\xba\xbe", "a LUKS-encrypted disk"),
    (257, b"ustar", "a tar archive (ova, raw.tar.gz)"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!\x1a\x07", "a rar archive"),
    (0, b"BZh", "a file packed with bzip2"),
    (0, &[0x04, 0x22, 0x4d, 0x18], "a file packed with lz4"),
    (0, &[0x89, b'L', b'Z', b'O', 0], "a file packed with lzop"),
    (0, &[0x5d, 0, 0, 0x80, 0], "a file packed with lzma (the form before xz)"),
    (0, &[0x5d, 0, 0, 0, 0x04], "a file packed with lzma (the form before xz)"),
    (0, b"LZIP", "a file packed with lzip"),
];

/// Looks at `head`, which should hold the first 512 bytes; fewer only where the file is shorter.
pub(super) fn magic(head: &[u8]) -> Magic {
    if has(head, 0, b"QFI\xfb") {
        // Version 1 is a format of its own, without most of the safeguards.
        return if head.len() >= 8 && be32(head, 4) == 1 { Magic::Unsupported("a qcow image of version 1") } else { Magic::Qcow2 };
    }
    if has(head, 0, &[0xfd, b'7', b'z', b'X', b'Z', 0]) {
        return Magic::Packed(Compression::Xz);
    }
    if FrameHeader::is_frame(head) || FrameHeader::is_skippable(head) {
        return Magic::Packed(Compression::Zstd);
    }
    if has(head, 0, &[0x1f, 0x8b]) {
        return Magic::Packed(Compression::Gzip);
    }
    let known = UNSUPPORTED.iter().find(|(at, magic, _)| has(head, *at, magic));
    known.map_or(Magic::None, |(_, _, name)| Magic::Unsupported(name))
}

/// What bytes that are no disk look like, for a person. Nothing of their text is repeated: it is the upstream's.
pub(super) fn looks_like(head: &[u8]) -> String {
    let head = head.get(..512).unwrap_or(head);
    if head.is_empty() {
        return "the file is empty".to_owned();
    }
    if super::bytes::is_zero(head) {
        return "it starts with zeros, and no partition table or file system is found".to_owned();
    }
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    // Bytes above 0x7f may be UTF-8; control characters other than white space are no text.
    if head.iter().any(|byte| *byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c) || *byte == 0x7f) {
        return "no disk format, partition table or file system is found in it".to_owned();
    }
    let text = head.trim_ascii_start();
    let lower = text.get(..text.len().min(64)).unwrap_or(text).to_ascii_lowercase();
    let html = lower.starts_with(b"<!doctype html") || lower.starts_with(b"<html") || lower.starts_with(b"<head");
    match text.first() {
        _ if html => "it is an HTML page",
        Some(b'<') => "it is an XML or HTML text",
        Some(b'{' | b'[') => "it is a JSON text",
        _ => "it is a text",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Magic, looks_like, magic};
    use crate::artifact::Compression;

    #[rstest]
    #[case(b"QFI\xfb\0\0\0\x03", Magic::Qcow2)]
    #[case(b"QFI\xfb\0\0\0\x01", Magic::Unsupported("a qcow image of version 1"))]
    #[case(&[0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00], Magic::Packed(Compression::Xz))]
    #[case(&[0x28, 0xb5, 0x2f, 0xfd], Magic::Packed(Compression::Zstd))]
    #[case(&[0x5e, 0x2a, 0x4d, 0x18], Magic::Packed(Compression::Zstd))]
    #[case(&[0x1f, 0x8b, 8], Magic::Packed(Compression::Gzip))]
    #[case(b"KDMV\x01", Magic::Unsupported("a vmdk image"))]
    #[case(b"vhdxfile", Magic::Unsupported("a vhdx image"))]
    #[case(b"conectix", Magic::Unsupported("a vhd image"))]
    #[case(b"# Disk DescriptorFile\nversion=1", Magic::Unsupported("a vmdk descriptor that names other files"))]
    #[case(b"PK\x03\x04", Magic::Unsupported("a zip archive"))]
    #[case(b"", Magic::None)]
    #[case(b"<html>", Magic::None)]
    fn tells_by_the_first_bytes(#[case] head: &[u8], #[case] expected: Magic) {
        assert_eq!(magic(head), expected);
    }

    #[test]
    fn tells_by_bytes_further_in() {
        let mut head = [0; 512];
        head[0x40..0x44].copy_from_slice(&[0x7f, 0x10, 0xda, 0xbe]);
        assert_eq!(magic(&head), Magic::Unsupported("a vdi image"));
        let mut head = [0; 512];
        head[257..262].copy_from_slice(b"ustar");
        assert!(matches!(magic(&head), Magic::Unsupported(_)));
    }

    #[rstest]
    #[case(b"", "empty")]
    #[case(&[0; 100], "zeros")]
    #[case(b"<!DOCTYPE html><title>secret</title>", "HTML page")]
    #[case(b"  \n<HTML>", "HTML page")]
    #[case(b"<?xml version=\"1.0\"?>", "XML")]
    #[case(b"{\"error\": \"no\"}", "JSON")]
    #[case(b"[1]", "JSON")]
    #[case(b"404 page not found\n", "a text")]
    #[case("Datei nicht gefunden: Fähre\n".as_bytes(), "a text")]
    #[case(&[1, 2, 3], "no disk format")]
    fn says_what_it_is_without_repeating_it(#[case] head: &[u8], #[case] expected: &str) {
        let text = looks_like(head);
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("secret"));
    }
}
