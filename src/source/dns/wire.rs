//! The few parts of a DNS message (RFC 1035) that a stub resolver needs, read from an untrusted datagram.

use std::net::IpAddr;

/// The type of record asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordType {
    /// An IPv4 address.
    A = 1,
    /// An IPv6 address (RFC 3596).
    Aaaa = 28,
}

const CNAME: u16 = 5;
const INTERNET: u16 = 1;

/// What a DNS server said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The addresses of the name, or of the name it is an alias of; none where there is no such record.
    Addresses(Vec<IpAddr>),
    /// The name does not exist.
    NoSuchName,
    /// The server cannot or will not say: an error code of RFC 1035 §4.1.1, or 0 for a truncated or malformed answer.
    Failed(u8),
}

/// A question about `host`, recursion desired; `None` where it is no DNS name.
pub(super) fn question(id: u16, host: &str, record: RecordType) -> Option<Vec<u8>> {
    let mut message = Vec::with_capacity(host.len() + 18);
    message.extend(id.to_be_bytes());
    message.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0]);
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.len() > 253 {
        return None;
    }
    for label in name.split('.') {
        let length = u8::try_from(label.len()).ok().filter(|n| (1..=63).contains(n))?;
        message.push(length);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend((record as u16).to_be_bytes());
    message.extend(INTERNET.to_be_bytes());
    Some(message)
}

/// Reads `message` as the answer to the question; `None` where it does not belong to it.
pub(super) fn read(message: &[u8], id: u16, host: &str, record: RecordType) -> Option<Answer> {
    let mut reader = Reader { message, at: 0 };
    let (got, flags) = (reader.u16()?, reader.u16()?);
    let (questions, answers) = (reader.u16()?, reader.u16()?);
    reader.skip(4)?;
    let asked = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    // Response bit set, one question, the one that was asked.
    let ours = got == id && flags & 0x8000 != 0 && questions == 1 && reader.name()? == asked && reader.u16()? == record as u16;
    if !ours {
        return None;
    }
    reader.skip(2)?;
    match u8::try_from(flags & 0x000f).unwrap_or_default() {
        0 if flags & 0x0200 == 0 => Some(reader.addresses(answers, asked, record).map_or(Answer::Failed(0), Answer::Addresses)),
        0 => Some(Answer::Failed(0)),
        3 => Some(Answer::NoSuchName),
        code => Some(Answer::Failed(code)),
    }
}

struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn bytes(&mut self, count: usize) -> Option<&[u8]> {
        let bytes = self.message.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(bytes)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.bytes(count).map(drop)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes(1)?.first().copied()
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.bytes(2)?.try_into().ok()?))
    }

    /// A name in lower case, compressed or not. Each pointer must lead further back than the one before, so loops end.
    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        let mut reader = Reader { message: self.message, at: self.at };
        let mut resume = None;
        let mut earliest = self.at;
        loop {
            match reader.u8()? {
                0 => break,
                length @ 1..=63 => {
                    if !name.is_empty() {
                        name.push('.');
                    }
                    let label = reader.bytes(length.into())?;
                    name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
                    if name.len() > 512 {
                        return None;
                    }
                }
                high @ 0xc0.. => {
                    let target = usize::from(u16::from_be_bytes([high & 0x3f, reader.u8()?]));
                    resume.get_or_insert(reader.at);
                    if target >= earliest {
                        return None;
                    }
                    earliest = target;
                    reader.at = target;
                }
                _ => return None,
            }
        }
        self.at = resume.unwrap_or(reader.at);
        Some(name)
    }

    /// The addresses among `count` records that belong to `name` or to what it is an alias of.
    fn addresses(&mut self, count: u16, mut name: String, record: RecordType) -> Option<Vec<IpAddr>> {
        let mut addresses = Vec::new();
        for _ in 0..count {
            let owner = self.name()?;
            let (kind, class) = (self.u16()?, self.u16()?);
            self.skip(4)?;
            let length = usize::from(self.u16()?);
            let end = self.at.checked_add(length)?;
            if class == INTERNET && owner == name {
                // A resolver lists aliases before what they lead to.
                if kind == CNAME {
                    name = self.name()?;
                } else if kind == record as u16 {
                    let data = self.message.get(self.at..end)?;
                    addresses.push(match record {
                        RecordType::A => <[u8; 4]>::try_from(data).ok()?.into(),
                        RecordType::Aaaa => <[u8; 16]>::try_from(data).ok()?.into(),
                    });
                }
            }
            self.at = end;
        }
        Some(addresses)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Answer, RecordType, question, read};

    /// An answer with `records` after the question about `up.test`.
    fn answer(flags: u16, records: &[Vec<u8>]) -> Vec<u8> {
        let mut message = question(7, "up.test", RecordType::A).expect("question");
        message[2..4].copy_from_slice(&flags.to_be_bytes());
        message[6..8].copy_from_slice(&u16::try_from(records.len()).expect("few").to_be_bytes());
        message.extend(records.concat());
        message
    }

    /// A record whose owner is `name` in wire form.
    fn record(name: &[u8], kind: u16, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(data.len()).expect("short").to_be_bytes();
        [name, &kind.to_be_bytes(), &[0, 1, 0, 0, 0, 60], &length, data].concat()
    }

    fn read_a(message: &[u8]) -> Option<Answer> {
        read(message, 7, "Up.test", RecordType::A)
    }

    /// A pointer to the question's name.
    const ASKED: &[u8] = &[0xc0, 12];
    const OTHER: &[u8] = b"\x05other\x04test\0";

    #[test]
    fn addresses_of_the_name_and_of_its_alias() {
        let direct = answer(0x8180, &[record(ASKED, 1, &[10, 0, 0, 1]), record(ASKED, 1, &[10, 0, 0, 2])]);
        assert_eq!(read_a(&direct), Some(Answer::Addresses(vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()])));
        let alias = answer(0x8180, &[record(ASKED, 5, OTHER), record(OTHER, 1, &[10, 0, 0, 3])]);
        assert_eq!(read_a(&alias), Some(Answer::Addresses(vec![[10, 0, 0, 3].into()])));
        let stray = answer(0x8180, &[record(OTHER, 1, &[10, 0, 0, 4])]);
        assert_eq!(read_a(&stray), Some(Answer::Addresses(vec![])));
    }

    #[test]
    fn errors_and_strangers() {
        assert_eq!(read_a(&answer(0x8183, &[])), Some(Answer::NoSuchName));
        assert_eq!(read_a(&answer(0x8182, &[])), Some(Answer::Failed(2)));
        assert_eq!(read_a(&answer(0x8380, &[])), Some(Answer::Failed(0)));
        assert_eq!(read_a(&answer(0x0180, &[])), None, "a question is no answer");
        assert_eq!(read(&answer(0x8180, &[]), 8, "up.test", RecordType::A), None, "another ID");
        assert_eq!(read(&answer(0x8180, &[]), 7, "down.test", RecordType::A), None, "another name");
        assert_eq!(read(&answer(0x8180, &[]), 7, "up.test", RecordType::Aaaa), None, "another type");
    }

    #[test]
    fn pointer_loops_and_short_messages_end() {
        let at = u8::try_from(answer(0x8180, &[]).len()).expect("short");
        for name in [&[0xc0, at][..], &[0xc0, at + 2], &[0xff, 0xff], &[0x40, 0]] {
            assert_eq!(read_a(&answer(0x8180, &[record(name, 1, &[10, 0, 0, 1])])), Some(Answer::Failed(0)), "{name:?}");
        }
        let whole = answer(0x8180, &[record(ASKED, 1, &[10, 0, 0, 1])]);
        for length in 0..whole.len() {
            assert!(!matches!(read_a(&whole[..length]), Some(Answer::Addresses(_))), "{length}");
        }
    }

    #[test]
    fn refuses_names_that_are_none() {
        let long = "a".repeat(64);
        for bad in ["", ".", "a..b", &long] {
            assert_eq!(question(1, bad, RecordType::A), None, "{bad}");
        }
        assert!(question(1, "a.b.", RecordType::A).is_some());
    }

    proptest! {
        #[test]
        fn no_datagram_panics(tail in proptest::collection::vec(any::<u8>(), 0..200), flip in 0usize..200, to: u8) {
            let mut message = answer(0x8180, &[tail]);
            let at = flip % message.len();
            message[at] = to;
            let _ = read_a(&message);
        }
    }
}
