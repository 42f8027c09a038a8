//! What one source contains.

use std::fmt;
use std::sync::Arc;

use crate::registration::Mark;
use kubesvc_core::spinnaker::is_account_name;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// Maximum number of characters of a name in a message.
const MAX_SHOWN: usize = 80;

/// An account of a source.
#[derive(Clone, PartialEq)]
pub struct SourceEntry {
    /// Name of the account.
    pub name: String,
    /// Its fields, as the source has them. They may contain credentials.
    pub definition: Map<String, Value>,
    /// Name of the source.
    pub source: Arc<str>,
    /// Changes when the entry changes.
    pub version: String,
}

/// Without the definition, which may contain credentials.
impl fmt::Debug for SourceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, source, version, .. } = self;
        write!(f, "{name:?} of {source} at {version}")
    }
}

/// A part of a source that is not usable as an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadEntry {
    /// Name of the account; empty if it has none; `None` if it is unknown: then it may be any account.
    pub name: Option<String>,
    /// Where it is, as in `kubernetes.accounts[3]`.
    pub place: String,
    /// What is wrong, without a value.
    pub reason: String,
}

impl fmt::Display for BadEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_deref() {
            Some(name) if !name.is_empty() => {
                write!(f, "account {:?} ({}): {}", shown(name), self.place, self.reason)
            }
            _ => write!(f, "{}: {}", self.place, self.reason),
        }
    }
}

/// Whether a snapshot has every account of its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// It does: an account that is not in it is not in the source.
    Complete,
    /// It may lack accounts, for this reason.
    Partial(String),
    /// The source could not be read, for this reason. Its accounts are those of the last good read.
    Unread(String),
}

/// What a row or a list element is.
#[derive(Clone, Debug)]
pub enum SourceItem {
    /// An account.
    Entry(Arc<SourceEntry>),
    /// Not usable as an account.
    Bad(Arc<BadEntry>),
    /// An account that kubesvc itself registered in Clouddriver; see [`Mark`](crate::registration::Mark).
    Registered,
}

/// The accounts of one source at one time.
#[derive(Clone, Debug)]
pub struct SourceSnapshot {
    /// Name of the source.
    pub source: Arc<str>,
    /// Its accounts, in the order of the source.
    pub entries: Vec<Arc<SourceEntry>>,
    /// What is not usable as an account.
    pub bad: Vec<Arc<BadEntry>>,
    /// Number of accounts that kubesvc itself registered in Clouddriver. They are in no other field.
    pub registered: usize,
    /// Whether it has every account of the source.
    pub completeness: Completeness,
}

impl SourceSnapshot {
    /// A snapshot of these items.
    pub fn of(
        source: &Arc<str>,
        items: impl IntoIterator<Item = SourceItem>,
        completeness: Completeness,
    ) -> Self {
        let mut snapshot = Self { completeness, ..Self::unread(source, String::new()) };
        for item in items {
            match item {
                SourceItem::Entry(entry) => snapshot.entries.push(entry),
                SourceItem::Bad(bad) => snapshot.bad.push(bad),
                SourceItem::Registered => snapshot.registered += 1,
            }
        }
        snapshot
    }

    /// The snapshot of a source of which nothing is known, for this reason.
    pub fn unread(source: &Arc<str>, why: String) -> Self {
        Self {
            source: Arc::clone(source),
            entries: Vec::new(),
            bad: Vec::new(),
            registered: 0,
            completeness: Completeness::Unread(why),
        }
    }

    /// The same accounts, of which others may be missing by now, for this reason.
    #[must_use]
    pub fn outdated(&self, why: String) -> Self {
        Self { completeness: Completeness::Unread(why), ..self.clone() }
    }

    /// Whether another snapshot of the source says the same.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        let same = |one: &[Arc<SourceEntry>], other: &[Arc<SourceEntry>]| {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| Arc::ptr_eq(one, other) || one == other)
        };
        self.completeness == other.completeness
            && self.bad == other.bad
            && same(&self.entries, &other.entries)
    }

    /// Whether an account of this name is in it, usable or not.
    pub fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.name == name)
            || self.bad.iter().any(|bad| bad.name.as_deref() == Some(name))
    }

    /// Why accounts may be missing from this snapshot; `None` if none is.
    pub fn gap(&self) -> Option<String> {
        match (&self.completeness, self.bad.iter().find(|bad| bad.name.is_none())) {
            (Completeness::Partial(why) | Completeness::Unread(why), _) => Some(why.clone()),
            (Completeness::Complete, Some(bad)) => Some(bad.to_string()),
            (Completeness::Complete, None) => None,
        }
    }
}

/// Why a source cannot be read as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceFault {
    /// A file is not what Spring reads.
    #[error("{file}{}: {why}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
    File {
        /// Name of the file.
        file: String,
        /// The line, from 1.
        line: Option<usize>,
        /// What is wrong and what to do, without a value.
        why: String,
    },
    /// An answer has another shape.
    #[error("the answer is not {0}")]
    Answer(&'static str),
}

/// Why a name cannot be an account's; `None` if it can.
pub(super) fn unfit_name(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("it has no name"),
        name if is_account_name(name) => None,
        _ => Some("its name has more than 255 characters or a control character"),
    }
}

/// A name or a key in a message: at most 80 characters, without control characters.
pub(super) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_SHOWN).filter(|c| !c.is_control()).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Builds the item of a definition whose name and shape were checked.
pub(super) fn item(
    source: &Arc<str>,
    name: String,
    definition: Map<String, Value>,
    version: Option<String>,
) -> SourceItem {
    if Mark::of(&definition).is_some() {
        return SourceItem::Registered;
    }
    let version = version.unwrap_or_else(|| {
        let text = serde_json::to_vec(&definition).unwrap_or_default();
        hex::encode(Sha256::digest(text))
    });
    SourceItem::Entry(Arc::new(SourceEntry { name, definition, source: Arc::clone(source), version }))
}

/// The item of an account that is not usable.
pub(super) fn bad(name: Option<String>, place: &str, reason: impl Into<String>) -> SourceItem {
    SourceItem::Bad(Arc::new(BadEntry { name, place: place.to_owned(), reason: reason.into() }))
}
