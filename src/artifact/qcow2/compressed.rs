use std::collections::BTreeSet;

use flate2::{Decompress, FlushDecompress, Status};
use zstd::zstd_safe::{DCtx, InBuffer, OutBuffer};

use super::{super::ArtifactError, header::Packing, tables::Tables};

/// What errors call it.
const PART: &str = "qcow2 compressed cluster";

/// Compressed clusters whose last sector the file does not hold in full.
///
/// Their length is written in whole sectors, so the last ones of a sound file may seem to end up to 511 bytes after it.
/// Whether the file is cut there is only told by unpacking them; there are few.
#[derive(Default)]
pub(super) struct Tail(BTreeSet<(u64, u64)>);

impl Tail {
    /// The most clusters that are unpacked: one a byte of the last sector.
    const MAX: usize = 512;

    /// Remembers the cluster of `len` bytes at `offset`.
    pub(super) fn add(&mut self, offset: u64, len: u64) -> Result<(), ArtifactError> {
        self.0.insert((offset, len));
        if self.0.len() > Self::MAX {
            Err(ArtifactError::corrupt(PART, offset, "too many clusters share the end of the file"))
        } else {
            Ok(())
        }
    }

    /// Unpacks them all: each must give one whole cluster.
    pub(super) fn check(&self, tables: &Tables<'_>, packing: Packing, cluster: u64) -> Result<(), ArtifactError> {
        // One byte more, so that a stream that is too long does not seem to fit.
        let mut out = vec![0; cluster as usize + 1];
        for (offset, len) in &self.0 {
            // At most 4 MiB: the length field counts sectors up to twice the cluster size.
            let mut packed = vec![0; (*len).min(tables.len.saturating_sub(*offset)) as usize];
            tables.read(*offset, &mut packed)?;
            let whole = match packing {
                Packing::Zlib => inflate(&packed, &mut out, cluster),
                Packing::Zstd => unzstd(&packed, &mut out, cluster),
            };
            if !whole {
                return Err(ArtifactError::truncated(PART, tables.len, format!("the one at byte {offset} does not unpack to a cluster")));
            }
        }
        Ok(())
    }
}

fn inflate(packed: &[u8], out: &mut [u8], cluster: u64) -> bool {
    let mut decoder = Decompress::new(false);
    let status = decoder.decompress(packed, out, FlushDecompress::Finish);
    matches!(status, Ok(Status::StreamEnd)) && decoder.total_out() == cluster
}

fn unzstd(packed: &[u8], out: &mut [u8], cluster: u64) -> bool {
    let Some(mut context) = DCtx::try_create() else { return false };
    let mut source = InBuffer::around(packed);
    let mut target = OutBuffer::around(&mut *out);
    // The frame is followed by the rest of its last sector, so it is read as a stream.
    loop {
        let before = (source.pos(), target.pos());
        match context.decompress_stream(&mut target, &mut source) {
            Ok(0) => return target.pos() as u64 == cluster,
            Ok(_) if (source.pos(), target.pos()) != before => (),
            Ok(_) | Err(_) => return false,
        }
    }
}
