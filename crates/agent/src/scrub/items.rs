//! The items of a list response and the lines of a watch, cut out of its chunks as they arrive, so that one item is in memory
//! and not a page.

use hyper::body::Bytes;
use memchr::memchr;

use crate::scrub::json::{ValueScan, leading_space};
use crate::scrub::list_head::{ListError, ListHead, ListMember, ListPage};
use crate::scrub::{MAX_ITEM_BYTES, MAX_LINE_BYTES};

/// Where in a list the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Before the list.
    Start,
    /// After the opening brace.
    FirstKey,
    /// After a comma between members.
    Key,
    /// Within a key.
    InKey,
    Colon(ListMember),
    /// Before a value.
    Value(ListMember),
    InValue(ListMember),
    AfterValue,
    /// After the opening bracket of the items.
    FirstItem,
    /// After a comma between items.
    Item,
    InItem,
    AfterItem,
    /// After the list.
    End,
}

/// Cuts items out of the chunks of one page. In memory are at most one item, what the list says beside its items, and
/// the chunk that was pushed last.
///
/// The items stand before or after the metadata, or are `null`. What lies within an item is not checked: whoever reads
/// it does that. An item counts only once [`finish`](Self::finish) has returned the page.
#[derive(Debug)]
pub struct ItemSplitter {
    chunk: Bytes,
    /// Bytes of the response before the chunk's rest.
    offset: u64,
    position: Position,
    scan: ValueScan,
    item: Piece,
    head: ListHead,
    items: u64,
    failed: Option<ListError>,
}

impl Default for ItemSplitter {
    fn default() -> Self {
        Self::with_max(MAX_ITEM_BYTES)
    }
}

impl ItemSplitter {
    /// A splitter of items of at most `max` bytes.
    pub fn with_max(max: usize) -> Self {
        Self {
            chunk: Bytes::new(),
            offset: 0,
            position: Position::Start,
            scan: ValueScan::default(),
            item: Piece::new(max),
            head: ListHead::default(),
            items: 0,
            failed: None,
        }
    }

    /// Takes the next chunk. The items of the one before should have been read; otherwise its rest is copied.
    pub fn push(&mut self, chunk: Bytes) {
        append(&mut self.chunk, chunk);
    }

    /// The next item as JSON; `None` if more chunks are needed. An item that lies within one chunk shares its memory.
    ///
    /// # Errors
    ///
    /// A [`ListError`], and the same for every later call.
    pub fn next_item(&mut self) -> Result<Option<Bytes>, ListError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let item = self.advance();
        if let Err(error) = &item {
            self.chunk = Bytes::new();
            self.failed = Some(error.clone());
        }
        item
    }

    /// Bytes that are kept until more arrive.
    pub fn pending_bytes(&self) -> usize {
        self.item.len() + self.head.len()
    }

    /// Ends the response. All items must have been read.
    ///
    /// # Errors
    ///
    /// A [`ListError`] if it was no complete page; then nothing of it counts as one.
    pub fn finish(mut self) -> Result<ListPage, ListError> {
        while self.next_item()?.is_some() {}
        if self.position != Position::End {
            return Err(ListError::Truncated { items: self.items });
        }
        self.head.finish(self.items, self.offset)
    }

    fn advance(&mut self) -> Result<Option<Bytes>, ListError> {
        loop {
            match self.position {
                Position::InKey | Position::InValue(_) | Position::InItem => {}
                _ => drop(self.take(leading_space(&self.chunk))),
            }
            if self.chunk.is_empty() {
                return Ok(None);
            }
            match self.position {
                Position::InKey => self.key()?,
                Position::InValue(field) => self.value(field)?,
                Position::InItem => {
                    if let Some(item) = self.item()? {
                        return Ok(Some(item));
                    }
                }
                position => {
                    let (next, consumed) = self.next(position, self.chunk[0])?;
                    drop(self.take(consumed));
                    self.position = next;
                }
            }
        }
    }

    /// What follows a position at this byte, and how many bytes that consumes: none if the byte begins what follows.
    fn next(&mut self, position: Position, byte: u8) -> Result<(Position, usize), ListError> {
        let next = match (position, byte) {
            (Position::Start, b'{') => (Position::FirstKey, 1),
            (Position::FirstKey | Position::AfterValue, b'}') => (Position::End, 1),
            (Position::FirstKey | Position::Key, b'"') => (Position::InKey, 0),
            (Position::Colon(field), b':') => (Position::Value(field), 1),
            (Position::Value(ListMember::Items), b'[') => (Position::FirstItem, 1),
            // `null`, which is checked once it has ended.
            (Position::Value(ListMember::Items), b'n') => (Position::InValue(ListMember::Items), 0),
            (Position::Value(field), _)
                if field != ListMember::Items && !matches!(byte, b',' | b'}' | b']') =>
            {
                (Position::InValue(field), 0)
            }
            (Position::AfterValue, b',') => (Position::Key, 1),
            (Position::FirstItem | Position::AfterItem, b']') => (Position::AfterValue, 1),
            (Position::FirstItem | Position::Item, b'{') => (Position::InItem, 0),
            (Position::AfterItem, b',') => (Position::Item, 1),
            _ => return Err(self.unexpected(position)),
        };
        self.scan = ValueScan::default();
        Ok(next)
    }

    fn key(&mut self) -> Result<(), ListError> {
        let (part, is_end) = self.scanned();
        self.head.key_part(&part);
        if is_end {
            self.position = Position::Colon(self.head.end_key()?);
        }
        Ok(())
    }

    fn value(&mut self, field: ListMember) -> Result<(), ListError> {
        let (part, is_end) = self.scanned();
        match field {
            ListMember::Kept(_) => self.head.value_part(&part)?,
            ListMember::Items => self.head.key_part(&part),
            ListMember::Ignored => {}
        }
        if is_end {
            if field == ListMember::Items && !self.head.end_null() {
                return Err(self.unexpected(Position::Value(ListMember::Items)));
            }
            self.position = Position::AfterValue;
        }
        Ok(())
    }

    fn item(&mut self) -> Result<Option<Bytes>, ListError> {
        let (part, is_end) = self.scanned();
        let item =
            if is_end { self.item.complete(part).map(Some) } else { self.item.carry(&part).map(|()| None) };
        let item = item.map_err(|error| ListError::ItemTooLarge { max: error.max })?;
        if is_end {
            self.items += 1;
            self.position = Position::AfterItem;
        }
        Ok(item)
    }

    /// Takes what the chunk has of the value that is scanned, and whether that is its end.
    fn scanned(&mut self) -> (Bytes, bool) {
        let end = self.scan.scan(&self.chunk);
        (self.take(end.unwrap_or(self.chunk.len())), end.is_some())
    }

    fn take(&mut self, bytes: usize) -> Bytes {
        self.offset += bytes as u64;
        self.chunk.split_to(bytes)
    }

    fn unexpected(&self, position: Position) -> ListError {
        let expected = match position {
            Position::Start => "an object",
            Position::FirstKey | Position::Key | Position::InKey => "a key",
            Position::Colon(_) => "a colon",
            Position::Value(ListMember::Items) => "an array of items",
            Position::Value(_) | Position::InValue(_) => "a value",
            Position::AfterValue => "a comma or the end of the list",
            Position::FirstItem | Position::Item | Position::InItem => "an item that is an object",
            Position::AfterItem => "a comma or the end of the items",
            Position::End => "the end of the response",
        };
        ListError::Malformed { expected, at: self.offset }
    }
}

/// A piece is larger than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PieceTooLarge {
    /// Maximum size of a piece, in bytes.
    max: usize,
}

/// The part of a piece that arrived in former chunks. A piece that lies whole within one chunk is never copied.
#[derive(Debug)]
struct Piece {
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
fn append(rest: &mut Bytes, chunk: Bytes) {
    *rest = if rest.is_empty() { chunk } else { Bytes::from([&rest[..], &chunk[..]].concat()) };
}

/// A line of a watch is too long. What follows it cannot be read either: the watch must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of the watch is longer than {max} bytes; leave the kind out, or make its objects smaller")]
pub struct LineTooLong {
    /// Maximum length of a line, in bytes.
    pub max: usize,
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

    /// Bytes that are kept of a line whose end has not arrived. If the watch ends there, the line is no event: the watch is
    /// resumed before it.
    pub fn pending_bytes(&self) -> usize {
        self.line.len()
    }
}
