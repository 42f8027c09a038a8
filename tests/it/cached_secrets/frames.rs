//! What passed between agent and hub, as plain text: HTTP/2 data by stream, and each zstd body in it.

use std::collections::BTreeMap;
use std::io::Read as _;

use memchr::memmem;

/// What an HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const PADDED: u8 = 0x8;
/// Beginning of a zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Maximum size of a body, uncompressed.
const MAX_BODY_BYTES: u64 = 8 * 1024 * 1024;

/// One direction of a connection.
#[derive(Default)]
pub(super) struct Passed {
    /// The bytes as they passed, and the data of each stream without the heads of frames.
    pub(super) raw: Vec<Vec<u8>>,
    /// Bodies that were compressed.
    pub(super) decompressed: Vec<Vec<u8>>,
}

impl Passed {
    /// Reads what a proxy recorded.
    pub(super) fn read(recorded: Vec<Vec<u8>>) -> Self {
        let mut passed = Self::default();
        for bytes in recorded {
            for data in data_by_stream(&bytes).into_values() {
                passed.decompressed.extend(decompressed(&data));
                passed.raw.push(data);
            }
            passed.raw.push(bytes);
        }
        passed
    }

    /// Everything in which a secret may be.
    pub(super) fn all(&self) -> impl Iterator<Item = &[u8]> {
        self.raw.iter().chain(&self.decompressed).map(Vec::as_slice)
    }
}

/// Whether a text is in one of these.
pub(super) fn is_in<'b>(text: &str, mut all: impl Iterator<Item = &'b [u8]>) -> bool {
    all.any(|bytes| memmem::find(bytes, text.as_bytes()).is_some())
}

/// The data of each stream of a connection, up to the last whole frame.
fn data_by_stream(bytes: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let mut streams = BTreeMap::<u32, Vec<u8>>::new();
    let mut rest = bytes.strip_prefix(PREFACE).unwrap_or(bytes);
    while let Some((head, after)) = rest.split_at_checked(FRAME_HEAD_BYTES) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let Some((payload, next)) = after.split_at_checked(length) else { break };
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        if head[3] == DATA {
            assert_eq!(head[4] & PADDED, 0, "no frame is padded");
            streams.entry(stream).or_default().extend_from_slice(payload);
        }
        rest = next;
    }
    streams
}

/// What each zstd frame holds, as far as it can be read.
fn decompressed(data: &[u8]) -> Vec<Vec<u8>> {
    let frames = memmem::find_iter(data, &ZSTD_MAGIC).filter_map(|at| {
        let decoder = zstd::stream::read::Decoder::new(&data[at..]).ok()?.single_frame();
        let mut body = Vec::new();
        // What was read before an error counts: the frame may not have passed whole.
        let _ = decoder.take(MAX_BODY_BYTES).read_to_end(&mut body);
        Some(body)
    });
    frames.filter(|body| !body.is_empty()).collect()
}

#[test]
fn a_compressed_text_is_found_where_frames_cut_it() {
    let text = "a body that is compressed ".repeat(100);
    let body = zstd::bulk::compress(text.as_bytes(), 1).expect("it compresses");
    let (first, second) = body.split_at(body.len() / 2);
    let mut bytes = PREFACE.to_vec();
    for (stream, payload) in [(1, first), (3, b"plain".as_slice()), (1, second)] {
        let length = u8::try_from(payload.len()).expect("it is short");
        bytes.extend([0, 0, length, DATA, 0, 0, 0, 0, stream]);
        bytes.extend(payload);
    }
    bytes.extend([0, 0, 9, DATA, 0]);
    let passed = Passed::read(vec![bytes]);
    assert_eq!(passed.decompressed, [text.as_bytes()]);
    assert!(is_in("plain", passed.all()) && is_in(&text, passed.all()));
    assert!(!is_in(&text, passed.raw.iter().map(Vec::as_slice)) && !is_in("absent", passed.all()));
}
