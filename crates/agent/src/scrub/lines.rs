//! The lines of a watch response, cut out of its chunks as they arrive.

use hyper::body::Bytes;
use memchr::memchr;

use crate::scrub::MAX_LINE_BYTES;
use crate::scrub::piece::{Piece, append};

/// A line of a watch is too long. What follows it cannot be read either: the watch must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of the watch is longer than {max} bytes; leave the kind out, or make its objects smaller")]
pub struct LineTooLong {
    /// Maximum length of a line, in bytes.
    pub max: usize,
}

/// The last line of a watch that ended without a newline. It is not an event: the watch is resumed before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncompleteLine {
    /// Bytes of it that arrived.
    pub bytes: usize,
}

/// Cuts lines out of chunks. In memory is at most one line beside the chunk that was pushed last.
#[derive(Debug)]
pub struct LineSplitter {
    chunk: Bytes,
    line: Piece,
    failed: Option<LineTooLong>,
}

impl Default for LineSplitter {
    fn default() -> Self {
        Self::with_max(MAX_LINE_BYTES)
    }
}

impl LineSplitter {
    /// A splitter of lines of at most `max` bytes.
    pub fn with_max(max: usize) -> Self {
        Self { chunk: Bytes::new(), line: Piece::new(max), failed: None }
    }

    /// Takes the next chunk. The lines of the one before should have been read; otherwise its rest is copied.
    pub fn push(&mut self, chunk: Bytes) {
        append(&mut self.chunk, chunk);
    }

    /// The next complete line, without its newline; `None` if more chunks are needed. Blank lines are skipped. A line
    /// that lies within one chunk shares its memory.
    ///
    /// # Errors
    ///
    /// [`LineTooLong`], and the same for every later call.
    pub fn next_line(&mut self) -> Result<Option<Bytes>, LineTooLong> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        while !self.chunk.is_empty() {
            let line = match memchr(b'\n', &self.chunk) {
                Some(end) => {
                    let last = self.chunk.split_to(end);
                    let _newline = self.chunk.split_to(1);
                    self.line.complete(last).map(Some)
                }
                None => self.line.carry(&std::mem::take(&mut self.chunk)).map(|()| None),
            };
            match line {
                Ok(Some(line)) if !line.trim_ascii().is_empty() => return Ok(Some(line)),
                Ok(_) => {}
                Err(error) => {
                    self.chunk = Bytes::new();
                    let failed = LineTooLong { max: error.max };
                    self.failed = Some(failed);
                    return Err(failed);
                }
            }
        }
        Ok(None)
    }

    /// Bytes that are kept of a line whose end has not arrived.
    pub fn pending_bytes(&self) -> usize {
        self.line.len()
    }

    /// Ends the response. Returns what is left of it, if the last line has no newline.
    pub fn finish(self) -> Option<IncompleteLine> {
        let bytes = self.line.len() + self.chunk.len();
        (bytes > 0).then_some(IncompleteLine { bytes })
    }
}
