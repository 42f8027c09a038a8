//! The body of an object as it is sent: spliced, hashed, and compressed if that makes it smaller.

use std::fmt;
use std::ops::Range;

use kubesvc_core::wire::MAX_MESSAGE_BYTES;
use kubesvc_core::wire::events::Blob;
use kubesvc_core::wire::events::blob::Encoding;
use sha2::{Digest as _, Sha256};
use zstd::bulk::Compressor;
use zstd::zstd_safe;

use crate::scrub::json::JsonEntry;
use crate::scrub::{MAX_BODY_BYTES, MIN_COMPRESSED_BYTES};

/// Level of compression: the fastest one that still halves most objects.
const COMPRESSION_LEVEL: i32 = 1;
/// Maximum memory that is kept from one body to the next, in bytes for each buffer.
const MAX_IDLE_BUFFER_BYTES: usize = 256 * 1024;

/// The compressor could not be created.
#[derive(Debug, thiserror::Error)]
#[error("the compressor of objects could not be created")]
pub struct CompressorError(#[source] std::io::Error);

/// What the hub takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// Whether bodies may be compressed with zstd.
    pub zstd: bool,
    /// Maximum size of an encoded event, in bytes.
    pub max_event_bytes: usize,
}

impl BodyLimits {
    /// The limits for messages of at most `max_message_bytes`, the lower limit of both sides: an event may have seven
    /// eighths of it, the rest is for the batch around it.
    pub fn for_messages(max_message_bytes: usize, zstd: bool) -> Self {
        let max = max_message_bytes.min(MAX_MESSAGE_BYTES);
        Self { zstd, max_event_bytes: max / 8 * 7 }
    }
}

/// Splices, hashes and compresses bodies. It has buffers of up to some 100 KiB: one for all objects that are encoded
/// one after another, not one for each scope.
pub struct BodyEncoder {
    limits: BodyLimits,
    compressor: Option<Compressor<'static>>,
    body: Vec<u8>,
    compressed: Vec<u8>,
}

impl fmt::Debug for BodyEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyEncoder").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl BodyEncoder {
    /// Creates an encoder for what the hub takes.
    pub fn new(limits: BodyLimits) -> Result<Self, CompressorError> {
        let compressor = limits.zstd.then(|| Compressor::new(COMPRESSION_LEVEL)).transpose();
        Ok(Self {
            limits,
            compressor: compressor.map_err(CompressorError)?,
            body: Vec::new(),
            compressed: Vec::new(),
        })
    }

    pub(super) fn max_event_bytes(&self) -> usize {
        self.limits.max_event_bytes
    }

    /// The body and its hash. `None` if it is larger than [`MAX_BODY_BYTES`], or than an event in any case.
    pub(super) fn encode(&mut self, bytes: &[u8], splice: &Splice) -> Option<(Blob, [u8; 32])> {
        let size = splice.size(bytes.len());
        if size > MAX_BODY_BYTES || (self.compressor.is_none() && size > self.limits.max_event_bytes) {
            return None;
        }
        self.body.reserve_exact(size);
        let hash = splice.assemble(bytes, &mut self.body);
        let size = u32::try_from(self.body.len()).ok()?;
        let blob = match self.compress() {
            Some(data) => Blob { encoding: Encoding::Zstd.into(), size, data },
            None => Blob { encoding: Encoding::Raw.into(), size, data: self.body.clone() },
        };
        for buffer in [&mut self.body, &mut self.compressed] {
            buffer.clear();
            buffer.shrink_to(MAX_IDLE_BUFFER_BYTES);
        }
        Some((blob, hash))
    }

    /// The body as one frame that says its size; `None` if it is better sent as it is.
    fn compress(&mut self) -> Option<Vec<u8>> {
        let compressor = self.compressor.as_mut().filter(|_| self.body.len() >= MIN_COMPRESSED_BYTES)?;
        self.compressed.reserve(zstd_safe::compress_bound(self.body.len()));
        // The only error is a buffer that is too small.
        compressor.compress_to_buffer(&self.body, &mut self.compressed).ok()?;
        (self.compressed.len() < self.body.len()).then(|| self.compressed.clone())
    }
}

/// What becomes of a range of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    Cut,
    /// It stays, but does not count for the hash.
    Unhashed,
}

/// Edits of the bytes of one object, in the order of their ranges, which do not overlap.
#[derive(Debug, Default)]
pub(super) struct Splice {
    edits: Vec<(Range<usize>, Edit)>,
    /// Bytes that are cut out.
    cut_bytes: usize,
    insertion: Option<(usize, String)>,
}

impl Splice {
    pub(super) fn cut(&mut self, range: Range<usize>) {
        self.cut_bytes += range.len();
        match self.edits.last_mut() {
            Some((last, Edit::Cut)) if last.end == range.start => last.end = range.end,
            _ => self.edits.push((range, Edit::Cut)),
        }
    }

    /// Leaves a range out of the hash.
    pub(super) fn unhashed(&mut self, range: Range<usize>) {
        self.edits.push((range, Edit::Unhashed));
    }

    /// Inserts a text before all edits.
    pub(super) fn insert(&mut self, at: usize, text: String) {
        self.insertion = Some((at, text));
    }

    /// Size of the result for `bytes` bytes.
    pub(super) fn size(&self, bytes: usize) -> usize {
        bytes - self.cut_bytes + self.insertion.as_ref().map_or(0, |(_, text)| text.len())
    }

    /// Appends the result to `out`. Returns its hash.
    pub(super) fn assemble(&self, bytes: &[u8], out: &mut Vec<u8>) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut keep = |part: &[u8], is_hashed: bool| {
            out.extend_from_slice(part);
            if is_hashed {
                hash.update(part);
            }
        };
        let mut at = 0;
        if let Some((position, text)) = &self.insertion {
            keep(&bytes[..*position], true);
            keep(text.as_bytes(), true);
            at = *position;
        }
        for (range, edit) in &self.edits {
            keep(&bytes[at..range.start], true);
            if *edit == Edit::Unhashed {
                keep(&bytes[range.clone()], false);
            }
            at = range.end;
        }
        keep(&bytes[at..], true);
        hash.finalize().into()
    }
}

/// The members of one object, or elements of one array, as it is decided in their order which are cut, so that the
/// commas between the rest stay right. What is cut within a kept member is cut after [`keep`](Self::keep) of it and
/// before the next call.
#[derive(Debug, Default)]
pub(super) struct MemberCuts {
    /// Members that stay.
    kept: usize,
    /// Cut members before the first one that stays.
    leading: Option<Range<usize>>,
    previous_end: usize,
}

impl MemberCuts {
    pub(super) fn keep(&mut self, entry: &JsonEntry<'_>, splice: &mut Splice) {
        if let Some(leading) = self.leading.take() {
            // With the comma after it.
            splice.cut(leading.start..entry.start);
        }
        self.kept += 1;
        self.previous_end = entry.value.end;
    }

    pub(super) fn cut(&mut self, entry: &JsonEntry<'_>, splice: &mut Splice) {
        if self.kept == 0 {
            let start = self.leading.as_ref().map_or(entry.start, |leading| leading.start);
            self.leading = Some(start..entry.value.end);
        } else {
            // With the comma before it.
            splice.cut(self.previous_end..entry.value.end);
            self.previous_end = entry.value.end;
        }
    }

    /// Ends the object. Returns how many members stay.
    pub(super) fn finish(self, splice: &mut Splice) -> usize {
        if let Some(leading) = self.leading {
            splice.cut(leading);
        }
        self.kept
    }
}
