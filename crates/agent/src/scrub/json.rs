//! The outline of JSON at the level of bytes: where values, members and elements begin and end, by depth, strings and
//! escapes alone.
//!
//! It does not check what lies within a value, so it also finds the name of an object whose body is not JSON. Whether a
//! text is JSON is for `serde_json` to say (`object.rs`).

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr2};

/// Scans one value, whose bytes may arrive in several chunks.
#[derive(Debug, Default)]
pub(super) struct ValueScan {
    depth: usize,
    is_in_string: bool,
    /// The last byte seen was the backslash of an escape.
    is_escaped: bool,
    literal: usize,
    extent: Extent,
}

/// What a reader of a value must be able to bear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// Depth of the most deeply nested object or array; 0 for a scalar.
    pub(super) depth: usize,
    /// Length of the longest number, in bytes.
    pub(super) number: usize,
}

impl ValueScan {
    /// Goes on with the next bytes of the value, the first of which is not white space. Returns how many of them belong
    /// to the value, once it has ended. A scalar other than a string ends before the byte that delimits it.
    pub(super) fn scan(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        if self.is_escaped && !bytes.is_empty() {
            (at, self.is_escaped) = (1, false);
        }
        while at < bytes.len() {
            if self.is_in_string {
                at += memchr2(b'"', b'\\', &bytes[at..])? + 1;
                if bytes[at - 1] == b'\\' {
                    self.is_escaped = at == bytes.len();
                    at += 1;
                    continue;
                }
                self.is_in_string = false;
                if self.depth == 0 {
                    return Some(at);
                }
                continue;
            }
            match bytes[at] {
                b'"' => (self.is_in_string, self.literal) = (true, 0),
                b'{' | b'[' => self.open(),
                b'}' | b']' => {
                    if self.depth <= 1 {
                        // The end of the value, or of what it stands in.
                        return Some(at + std::mem::take(&mut self.depth));
                    }
                    (self.depth, self.literal) = (self.depth - 1, 0);
                }
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => {
                    if self.depth == 0 {
                        return Some(at);
                    }
                    self.literal = 0;
                }
                _ => {
                    self.literal += 1;
                    self.extent.number = self.extent.number.max(self.literal);
                }
            }
            at += 1;
        }
        None
    }

    fn open(&mut self) {
        self.depth += 1;
        self.literal = 0;
        self.extent.depth = self.extent.depth.max(self.depth);
    }

    /// The extent of what was scanned.
    pub(super) fn extent(&self) -> Extent {
        self.extent
    }
}

/// A member of an object, or an element of an array.
#[derive(Debug, PartialEq)]
pub(super) struct JsonEntry<'a> {
    /// The key, without escapes; empty for an element.
    pub(super) key: Cow<'a, str>,
    /// Where the member or element begins.
    pub(super) start: usize,
    /// Where its value lies.
    pub(super) value: Range<usize>,
    pub(super) extent: Extent,
}

/// The text has not the outline of an object or array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutlineError {
    /// Where it has not.
    pub(super) at: usize,
}

/// The members of an object or the elements of an array, in their order. Ends after the closing bracket, or with an
/// error.
#[derive(Debug)]
pub(super) struct Entries<'a> {
    bytes: &'a [u8],
    at: usize,
    closing: u8,
    is_first: bool,
    is_done: bool,
}

impl<'a> Entries<'a> {
    /// The members of the object that begins at `start`.
    pub(super) fn members(bytes: &'a [u8], start: usize) -> Self {
        Self::new(bytes, start, b'{', b'}')
    }

    /// The elements of the array that begins at `start`.
    pub(super) fn elements(bytes: &'a [u8], start: usize) -> Self {
        Self::new(bytes, start, b'[', b']')
    }

    fn new(bytes: &'a [u8], start: usize, opening: u8, closing: u8) -> Self {
        // Not what was expected: the first entry is the error.
        let closing = if bytes.get(start) == Some(&opening) { closing } else { 0 };
        Self { bytes, at: start + 1, closing, is_first: true, is_done: false }
    }

    fn peek(&mut self) -> Result<u8, OutlineError> {
        self.at += leading_space(self.bytes.get(self.at..).unwrap_or_default());
        self.bytes.get(self.at).copied().ok_or(OutlineError { at: self.at })
    }

    fn expect(&mut self, byte: u8) -> Result<(), OutlineError> {
        if self.peek()? != byte {
            return Err(OutlineError { at: self.at });
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self) -> Result<(Range<usize>, Extent), OutlineError> {
        self.peek()?;
        let (start, mut scan) = (self.at, ValueScan::default());
        let rest = self.bytes.get(start..).unwrap_or_default();
        let length = scan.scan(rest).filter(|length| *length > 0).ok_or(OutlineError { at: start })?;
        self.at = start + length;
        Ok((start..self.at, scan.extent()))
    }

    fn entry(&mut self) -> Result<Option<JsonEntry<'a>>, OutlineError> {
        if self.closing == 0 {
            return Err(OutlineError { at: self.at - 1 });
        }
        if self.peek()? == self.closing {
            return Ok(None);
        }
        if !self.is_first {
            self.expect(b',')?;
            self.peek()?;
        }
        self.is_first = false;
        let (start, mut key) = (self.at, Cow::Borrowed(""));
        if self.closing == b'}' {
            let (at, _) = self.value()?;
            key = text(self.bytes, &at).ok_or(OutlineError { at: start })?;
            self.expect(b':')?;
        }
        let (value, extent) = self.value()?;
        Ok(Some(JsonEntry { key, start, value, extent }))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<JsonEntry<'a>, OutlineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let entry = self.entry();
        self.is_done = !matches!(entry, Ok(Some(_)));
        entry.transpose()
    }
}

/// The text of a string, without escapes. `None` if the value is no string, or has no meaning as one: invalid UTF-8, or
/// half of a surrogate pair.
pub(super) fn text<'a>(bytes: &'a [u8], value: &Range<usize>) -> Option<Cow<'a, str>> {
    let quoted = bytes.get(value.clone())?;
    let inner = quoted.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice(quoted).ok().map(Cow::Owned)
}

/// The value as a whole number; `None` if it is none, or larger than 64 bits.
pub(super) fn number(bytes: &[u8], value: &Range<usize>) -> Option<u64> {
    std::str::from_utf8(bytes.get(value.clone())?).ok()?.parse().ok()
}

pub(super) fn is_null(bytes: &[u8], value: &Range<usize>) -> bool {
    bytes.get(value.clone()) == Some(b"null")
}

/// Number of bytes of white space at the beginning.
pub(super) fn leading_space(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| is_space(**byte)).count()
}

/// Whether the byte is white space of JSON.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}
