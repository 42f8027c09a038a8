//! The hub's rows of a scope whose list begins, and their difference from the list.
//!
//! The basis is in memory only while a list runs. A row takes about 80 bytes: rows lie one after another in one buffer,
//! with uids and versions in binary form and namespaces by number, and are found by binary search.

use std::cmp::Ordering;

use indexmap::IndexSet;

use crate::scrub::ObjectIdentity;

/// A basis of more than 4 GiB, which 32-bit offsets cannot address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the rows of the scope take more than 4 GiB; watch fewer namespaces or kinds")]
pub struct BasisTooLarge;

/// Relation of an object to the basis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BasisMatch {
    /// The hub has the object in this version.
    Equal,
    /// The hub has another version of the object, or another object of its name.
    Changed,
    /// The hub does not have the object.
    New,
}

/// A row whose object is gone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BasisKey {
    /// Namespace; empty for a cluster-wide object.
    pub namespace: String,
    pub name: String,
    /// Uid; may be empty.
    pub uid: String,
    /// Version of the row.
    pub resource_version: String,
}

impl From<BasisKey> for ObjectIdentity {
    fn from(key: BasisKey) -> Self {
        let BasisKey { namespace, name, uid, resource_version } = key;
        Self { namespace, name, uid, resource_version }
    }
}

#[derive(Debug, Default, PartialEq)]
pub struct Basis {
    namespaces: IndexSet<String>,
    /// Namespace, name, uid and version of each row.
    pub(super) rows: Vec<u8>,
    /// Offset of each row; once sorted, in the order of namespace and name.
    pub(super) starts: Vec<u32>,
    /// One bit for each row: whether the list has its object.
    pub(super) seen: Vec<u64>,
    is_sorted: bool,
}

impl Basis {
    pub fn push(
        &mut self,
        namespace: &str,
        name: &str,
        uid: &str,
        version: &str,
    ) -> Result<(), BasisTooLarge> {
        let start = u32::try_from(self.rows.len()).map_err(|_| BasisTooLarge)?;
        let namespace = match self.namespaces.get_index_of(namespace) {
            Some(known) => known,
            None => self.namespaces.insert_full(namespace.to_owned()).0,
        };
        let namespace = u32::try_from(namespace).map_err(|_| BasisTooLarge)?;
        self.rows.extend_from_slice(&namespace.to_le_bytes());
        push_text(&mut self.rows, name);
        push_packed(&mut self.rows, uid);
        push_packed(&mut self.rows, version);
        self.starts.push(start);
        self.is_sorted = false;
        Ok(())
    }

    /// Compares an object of the list with its row, and marks the row as present.
    pub fn take(&mut self, object: &ObjectIdentity) -> BasisMatch {
        self.sort();
        let Some(namespace) = self.namespaces.get_index_of(object.namespace.as_str()) else {
            return BasisMatch::New;
        };
        let key = (u32::try_from(namespace).unwrap_or(u32::MAX), object.name.as_bytes());
        let Ok(index) = self.starts.binary_search_by(|start| Row::at(&self.rows, *start).key().cmp(&key))
        else {
            return BasisMatch::New;
        };
        self.seen[index / 64] |= 1 << (index % 64);
        let mut version = Vec::with_capacity(32);
        push_packed(&mut version, &object.uid);
        push_packed(&mut version, &object.resource_version);
        let is_known = !object.uid.is_empty() && !object.resource_version.is_empty();
        let row = Row::at(&self.rows, self.starts[index]);
        if is_known && row.rest.starts_with(&version) { BasisMatch::Equal } else { BasisMatch::Changed }
    }

    /// The rows whose objects the list does not have, in the order of namespace and name.
    pub fn leftover(mut self) -> Leftover {
        self.sort();
        let rows = (0..self.starts.len()).filter(|index| !self.is_seen(*index)).count();
        Leftover { basis: self, index: 0, rows }
    }

    /// Whether the list has the object of a row.
    fn is_seen(&self, index: usize) -> bool {
        self.seen[index / 64] >> (index % 64) & 1 == 1
    }

    fn row(&self, start: u32) -> BasisKey {
        let row = Row::at(&self.rows, start);
        let (uid, rest) = unpack(row.rest);
        let (resource_version, _) = unpack(rest);
        let namespace =
            usize::try_from(row.namespace).ok().and_then(|index| self.namespaces.get_index(index));
        let name = String::from_utf8_lossy(row.name).into_owned();
        BasisKey { namespace: namespace.cloned().unwrap_or_default(), name, uid, resource_version }
    }

    fn sort(&mut self) {
        if self.is_sorted {
            return;
        }
        let Self { rows, starts, .. } = self;
        let order = |a: &u32, b: &u32| -> Ordering { Row::at(rows, *a).key().cmp(&Row::at(rows, *b).key()) };
        starts.sort_unstable_by(order);
        // Duplicate keys would be left over once.
        starts.dedup_by(|a, b| order(a, b) == Ordering::Equal);
        self.seen = vec![0; self.starts.len().div_ceil(64)];
        self.is_sorted = true;
    }
}

/// Rows whose objects are gone. They stay in the memory that the list has reserved for its basis: as texts, they would
/// take several times as much at once.
#[derive(Debug, PartialEq)]
pub struct Leftover {
    pub(super) basis: Basis,
    /// Index of the next row of the basis.
    index: usize,
    /// Number of remaining rows.
    rows: usize,
}

impl Iterator for Leftover {
    type Item = BasisKey;

    fn next(&mut self) -> Option<BasisKey> {
        while let Some(start) = self.basis.starts.get(self.index).copied() {
            let is_seen = self.basis.is_seen(self.index);
            self.index += 1;
            if !is_seen {
                self.rows -= 1;
                return Some(self.basis.row(start));
            }
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.rows, Some(self.rows))
    }
}

impl ExactSizeIterator for Leftover {}

struct Row<'a> {
    namespace: u32,
    name: &'a [u8],
    /// Uid and version, followed by the later rows.
    rest: &'a [u8],
}

impl<'a> Row<'a> {
    fn at(rows: &'a [u8], start: u32) -> Self {
        let row = usize::try_from(start).ok().and_then(|start| rows.get(start..)).unwrap_or_default();
        let (namespace, rest) = row.split_first_chunk().unwrap_or((&[0; 4], &[]));
        let (name, rest) = split_text(rest);
        Self { namespace: u32::from_le_bytes(*namespace), name, rest }
    }

    fn key(&self) -> (u32, &'a [u8]) {
        (self.namespace, self.name)
    }
}

/// Encodings of a uid or version.
const TEXT: u8 = 0;
const UUID: u8 = 1;
const NUMBER: u8 = 2;

fn push_text(out: &mut Vec<u8>, text: &str) {
    // No longer text occurs, since the columns are shorter. If one does, its object counts as changed and is sent.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..length.into()]);
}

fn split_text(row: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) = row.split_first_chunk().unwrap_or((&[0; 2], &[]));
    rest.split_at_checked(u16::from_le_bytes(*length).into()).unwrap_or((rest, &[]))
}

/// Stores a text in its shortest form. The form is unique, so equal bytes are equal texts.
fn push_packed(out: &mut Vec<u8>, text: &str) {
    if let Some(uuid) = uuid(text) {
        out.push(UUID);
        out.extend_from_slice(&uuid);
    } else if let Some(number) = number(text) {
        out.push(NUMBER);
        out.extend_from_slice(&number.to_le_bytes());
    } else {
        out.push(TEXT);
        push_text(out, text);
    }
}

fn unpack(row: &[u8]) -> (String, &[u8]) {
    match row.split_first() {
        Some((&UUID, rest)) => {
            let (uuid, rest) = rest.split_first_chunk().unwrap_or((&[0; 16], &[]));
            let digits = hex::encode(uuid);
            let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
            (parts.join("-"), rest)
        }
        Some((&NUMBER, rest)) => {
            let (number, rest) = rest.split_first_chunk().unwrap_or((&[0; 8], &[]));
            (u64::from_le_bytes(*number).to_string(), rest)
        }
        Some((_, rest)) => {
            let (text, rest) = split_text(rest);
            (String::from_utf8_lossy(text).into_owned(), rest)
        }
        None => (String::new(), &[]),
    }
}

/// Parses a UUID as Kubernetes writes it: lower case, with hyphens.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    let has_hyphens = bytes.len() == 36 && [8, 13, 18, 23].iter().all(|at| bytes[*at] == b'-');
    if !has_hyphens || bytes.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    let digits: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != b'-').collect();
    let mut uuid = [0; 16];
    hex::decode_to_slice(digits, &mut uuid).ok().map(|()| uuid)
}

/// Parses a whole number without leading zeros or sign.
fn number(text: &str) -> Option<u64> {
    let is_canonical = text == "0" || !text.starts_with(['0', '+']);
    is_canonical.then(|| text.parse().ok()).flatten()
}
