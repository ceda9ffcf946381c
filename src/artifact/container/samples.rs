//! Archives for tests.

/// An archive in the making, with headers as the `tar` crate writes them.
pub(crate) struct TarSample(tar::Builder<Vec<u8>>);

impl TarSample {
    pub fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    fn add(mut self, path: &str, data: &[u8], kind: tar::EntryType, link: &str) -> Self {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        if link.is_empty() {
            self.0.append_data(&mut header, path, data).expect("entry");
        } else {
            self.0.append_link(&mut header, path, link).expect("link");
        }
        self
    }

    pub fn folder(self, path: &str) -> Self {
        self.add(path, b"", tar::EntryType::Directory, "")
    }

    pub fn file(self, path: &str, data: &[u8]) -> Self {
        self.add(path, data, tar::EntryType::Regular, "")
    }

    pub fn link(self, path: &str, to: &str, hard: bool) -> Self {
        self.add(path, b"", if hard { tar::EntryType::Link } else { tar::EntryType::Symlink }, to)
    }

    /// An entry with this very path, which may be one that the crate would not write.
    pub fn raw(mut self, path: &str, data: &[u8]) -> Self {
        let mut block = header(path, data.len() as u64, b'0');
        seal(&mut block);
        let out = self.0.get_mut();
        out.extend(block);
        out.extend(data);
        out.resize(out.len().next_multiple_of(512), 0);
        self
    }

    pub fn finish(self) -> Vec<u8> {
        self.0.into_inner().expect("archive")
    }
}

/// A ustar header.
pub(crate) fn header(path: &str, size: u64, flag: u8) -> [u8; 512] {
    let mut block = [0; 512];
    block[..path.len()].copy_from_slice(path.as_bytes());
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[156] = flag;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

/// Makes the checksum right.
pub(crate) fn seal(block: &mut [u8; 512]) {
    block[148..156].copy_from_slice(b"        ");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

/// A PAX header with these records.
pub(crate) fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut data = Vec::new();
    for (key, value) in records {
        let rest = format!(" {key}={value}\n");
        let mut length = rest.len() + 1;
        while length != rest.len() + length.to_string().len() {
            length = rest.len() + length.to_string().len();
        }
        data.extend(format!("{length}{rest}").bytes());
    }
    let mut bytes = header("PaxHeaders.0/a", data.len() as u64, b'x').to_vec();
    bytes.extend(&data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}
