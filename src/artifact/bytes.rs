//! Numbers out of byte slices. A number that lies outside the slice reads as zero: callers check lengths first, and a
//! slip is then a wrong value that the next check refuses, not a panic on a hostile file.

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    at.checked_add(N).and_then(|end| bytes.get(at..end)).and_then(|slice| slice.try_into().ok()).unwrap_or([0; N])
}

pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

pub(super) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(super) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Whether `magic` stands at `at`.
pub(super) fn has(bytes: &[u8], at: usize, magic: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(magic))
}

/// Whether every byte is zero. Comparing with a block of zeros is `memcmp`, several times faster than a loop even in a
/// build without optimisation, and it stops at the first byte that is not.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    bytes.chunks(ZEROS.len()).all(|chunk| ZEROS.get(..chunk.len()).is_some_and(|zeros| zeros == chunk))
}
