use super::bytes::{has, le16, le32, le64};

/// What the header of a Zstandard frame says (RFC 8878, section 3.1.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// The memory that decoding takes, in bytes.
    pub(super) window: u64,
    /// The frame's unpacked length in bytes, where the header states it.
    pub(super) content: Option<u64>,
    /// Whether a dictionary is needed.
    pub(super) dictionary: bool,
}

impl FrameHeader {
    /// The longest header.
    pub(super) const MAX_LEN: usize = 18;
    const MAGIC: &'static [u8] = &[0x28, 0xb5, 0x2f, 0xfd];

    /// Whether a frame with data starts here.
    pub(super) fn is_frame(bytes: &[u8]) -> bool {
        bytes.starts_with(Self::MAGIC)
    }

    /// Whether a skippable frame starts here: 0x184D2A50 to 0x184D2A5F.
    pub(super) fn is_skippable(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|first| first >> 4 == 5) && has(bytes, 1, &[0x2a, 0x4d, 0x18])
    }

    /// The header that `bytes` starts with; `None` where they are too few.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let descriptor = *bytes.get(4)?;
        let single = descriptor & 0x20 != 0;
        let dictionary_len = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let content_len = match descriptor >> 6 {
            0 => usize::from(single),
            1 => 2,
            2 => 4,
            _ => 8,
        };
        let dictionary_at = 5 + usize::from(!single);
        let content_at = dictionary_at + dictionary_len;
        let field = bytes.get(content_at..content_at + content_len)?;
        let content = match content_len {
            0 => None,
            1 => field.first().map(|byte| u64::from(*byte)),
            2 => Some(u64::from(le16(field, 0)) + 256),
            4 => Some(u64::from(le32(field, 0))),
            _ => Some(le64(field, 0)),
        };
        let window = match content {
            Some(content) if single => content,
            _ => {
                let byte = *bytes.get(5)?;
                let base = 1_u64 << (10 + (byte >> 3));
                base + base / 8 * u64::from(byte & 7)
            }
        };
        let dictionary = bytes[dictionary_at..content_at].iter().any(|byte| *byte != 0);
        Some(Self { window, content, dictionary })
    }
}

#[cfg(test)]
mod tests {
    use super::FrameHeader;

    #[test]
    fn reads_headers_as_the_reference_decoder_does() {
        // What `zstd` writes for a 300 MiB file.
        let header = FrameHeader::parse(&[0x28, 0xb5, 0x2f, 0xfd, 0x84, 0x68, 0, 0, 0xc0, 0x12]).expect("whole");
        assert_eq!(header, FrameHeader { window: 8 << 20, content: Some(0x12c0_0000), dictionary: false });
        // Too short by one byte.
        assert_eq!(FrameHeader::parse(&[0x28, 0xb5, 0x2f, 0xfd, 0x84, 0x68, 0, 0, 0xc0]), None);
        // A single segment of 2 GiB is a window of 2 GiB.
        let header = FrameHeader::parse(&[0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x80]).expect("whole");
        assert_eq!((header.window, header.content), (2 << 30, Some(2 << 30)));
    }

    #[test]
    fn agrees_with_the_library_on_what_it_writes() {
        for len in [0_usize, 1, 255, 256, 65_791, 65_792, 1 << 20] {
            let packed = zstd::bulk::compress(&vec![7; len], 3).expect("compress");
            let header = FrameHeader::parse(&packed).expect("whole");
            assert_eq!(header.content, Some(len as u64), "{len}");
            assert!(!header.dictionary);
        }
    }
}
