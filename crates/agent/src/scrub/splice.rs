//! What is cut out of the bytes of an object and what is put in, so that the rest stays as the server wrote it.

use std::ops::Range;

use sha2::{Digest as _, Sha256};

use crate::scrub::json::JsonEntry;

/// What becomes of a range of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    /// It is cut out.
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
    /// Cuts a range out.
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
    /// Keeps a member.
    pub(super) fn keep(&mut self, entry: &JsonEntry<'_>, splice: &mut Splice) {
        if let Some(leading) = self.leading.take() {
            // With the comma after it.
            splice.cut(leading.start..entry.start);
        }
        self.kept += 1;
        self.previous_end = entry.value.end;
    }

    /// Cuts a member out.
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
