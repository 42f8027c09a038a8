//! Frames of a basis: the rows of a scope, with which an agent compares a list. Pure.

use prost::Message as _;

use kubesvc_core::wire::common::Fence;
use kubesvc_core::wire::events::blob::Encoding;
use kubesvc_core::wire::events::{BasisRow, BasisRows, Blob, SyncBasis};

use super::resume::MAX_FRAME_BYTES;

/// Size from which rows are compressed, in bytes.
const MIN_COMPRESSED_BYTES: usize = 1024;
/// Level of compression.
const ZSTD_LEVEL: i32 = 1;
/// Bytes of a row's tag and length.
const ROW_HEAD_BYTES: usize = 4;

/// Collects rows into frames of at most 256 KiB. The last frame is known only at the end.
#[derive(Debug)]
pub(crate) struct BasisFrames {
    fence: Fence,
    scope_id: u32,
    sync_key: String,
    takes_zstd: bool,
    rows: BasisRows,
    bytes: usize,
}

impl BasisFrames {
    pub(crate) fn new(fence: Fence, scope_id: u32, sync_key: String, takes_zstd: bool) -> Self {
        Self { fence, scope_id, sync_key, takes_zstd, rows: BasisRows::default(), bytes: 0 }
    }

    /// Adds a row. Returns a frame once it is full.
    pub(crate) fn push(&mut self, row: &kubesvc_store::BasisRow) -> Option<SyncBasis> {
        let row = BasisRow {
            namespace: row.namespace.clone(),
            name: row.name.clone(),
            uid: row.uid.clone().unwrap_or_default(),
            rv: row.resource_version.clone(),
        };
        let bytes = row.encoded_len() + ROW_HEAD_BYTES;
        let full = (self.bytes + bytes > MAX_FRAME_BYTES).then(|| self.frame(false));
        self.bytes += bytes;
        self.rows.rows.push(row);
        full
    }

    /// Returns the last frame.
    pub(crate) fn finish(mut self) -> SyncBasis {
        self.frame(true)
    }

    fn frame(&mut self, last: bool) -> SyncBasis {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows).encode_to_vec();
        SyncBasis {
            fence: Some(self.fence.clone()),
            scope_id: self.scope_id,
            sync_key: self.sync_key.clone(),
            last,
            rows: Some(blob(rows, self.takes_zstd)),
        }
    }
}

fn blob(data: Vec<u8>, takes_zstd: bool) -> Blob {
    let size = u32::try_from(data.len()).expect("a frame is at most 256 KiB");
    if takes_zstd && data.len() >= MIN_COMPRESSED_BYTES {
        // Compression fails only without memory; then the rows are sent uncompressed.
        let compressed = zstd::bulk::compress(&data, ZSTD_LEVEL);
        if let Some(data) = compressed.ok().filter(|compressed| compressed.len() < data.len()) {
            return Blob { encoding: Encoding::Zstd.into(), size, data };
        }
    }
    Blob { encoding: Encoding::Raw.into(), size, data }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: usize) -> kubesvc_store::BasisRow {
        kubesvc_store::BasisRow {
            id: format!("id-{number}"),
            namespace: "ns".into(),
            name: format!("pod-{number}"),
            uid: (!number.is_multiple_of(7)).then(|| format!("uid-{number}")),
            resource_version: number.to_string(),
        }
    }

    fn frames_of(rows: usize, takes_zstd: bool) -> Vec<SyncBasis> {
        let mut frames = BasisFrames::new(Fence::default(), 4, "key".into(), takes_zstd);
        let mut all: Vec<_> = (0..rows).filter_map(|number| frames.push(&row(number))).collect();
        all.push(frames.finish());
        all
    }

    fn rows_in(frames: &[SyncBasis]) -> Vec<BasisRow> {
        let mut rows = Vec::new();
        for frame in frames {
            let blob = frame.rows.clone().expect("a frame has rows");
            let size = usize::try_from(blob.size).expect("small");
            let data = match blob.encoding() {
                Encoding::Zstd => zstd::bulk::decompress(&blob.data, size).expect("it is whole"),
                _ => blob.data,
            };
            assert_eq!(data.len(), size);
            rows.extend(BasisRows::decode(&*data).expect("rows").rows);
        }
        rows
    }

    #[test]
    fn a_basis_is_split_into_frames_of_at_most_256_kib_with_or_without_zstd() {
        for takes_zstd in [false, true] {
            let frames = frames_of(20_000, takes_zstd);
            assert!(frames.len() > 2);
            for (at, frame) in frames.iter().enumerate() {
                assert!(frame.encoded_len() <= 256 * 1024);
                assert_eq!((frame.scope_id, &*frame.sync_key), (4, "key"));
                assert_eq!(frame.last, at + 1 == frames.len());
                let encoding = frame.rows.as_ref().expect("it has rows").encoding();
                assert_eq!(encoding == Encoding::Zstd, takes_zstd);
            }
            let rows = rows_in(&frames);
            assert_eq!(rows.len(), 20_000);
            assert_eq!((&*rows[7].uid, &*rows[8].uid, &*rows[8].rv), ("", "uid-8", "8"));
        }
    }

    #[test]
    fn an_empty_basis_is_one_frame() {
        let frames = frames_of(0, true);
        assert_eq!((frames.len(), frames[0].last, rows_in(&frames).len()), (1, true, 0));
    }
}
