//! Bytes of one piece of a response, a line or an item, that may arrive in several chunks.

use hyper::body::Bytes;

/// A piece is larger than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceTooLarge {
    /// Maximum size of a piece, in bytes.
    pub(super) max: usize,
}

/// The part of a piece that arrived in former chunks. A piece that lies whole within one chunk is never copied.
#[derive(Debug)]
pub(super) struct Piece {
    carried: Vec<u8>,
    max: usize,
}

impl Piece {
    /// A piece of at most `max` bytes, of which nothing has arrived yet.
    pub(super) fn new(max: usize) -> Self {
        Self { carried: Vec::new(), max }
    }

    /// Bytes in memory.
    pub(super) fn len(&self) -> usize {
        self.carried.len()
    }

    /// Keeps a part until the rest arrives. Memory grows with what arrived, at most to twice that, and never above the
    /// maximum.
    pub(super) fn carry(&mut self, part: &[u8]) -> Result<(), PieceTooLarge> {
        let needed = self.carried.len().saturating_add(part.len());
        if needed > self.max {
            self.carried = Vec::new();
            return Err(PieceTooLarge { max: self.max });
        }
        if needed > self.carried.capacity() {
            let capacity = needed.max(self.carried.capacity() * 2).min(self.max);
            self.carried.reserve_exact(capacity - self.carried.len());
        }
        self.carried.extend_from_slice(part);
        Ok(())
    }

    /// Ends the piece with its last part, and begins the next one.
    pub(super) fn complete(&mut self, last: Bytes) -> Result<Bytes, PieceTooLarge> {
        if self.carried.is_empty() && last.len() <= self.max {
            return Ok(last);
        }
        self.carry(&last)?;
        Ok(Bytes::from(std::mem::take(&mut self.carried)))
    }
}

/// Appends a chunk to what is left of the one before.
pub(super) fn append(rest: &mut Bytes, chunk: Bytes) {
    *rest = if rest.is_empty() { chunk } else { Bytes::from([&rest[..], &chunk[..]].concat()) };
}
