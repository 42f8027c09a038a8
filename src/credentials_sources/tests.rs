//! Sources on disk and over HTTP, and what is kept of sources that fail. Databases and API servers: `tests/it`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::files::{FileSource, TextReader};
use super::*;
use kubesvc_clouddriver::sources::{Completeness, NameLookup, SourceItem, read_row};

mod files;
mod http;
mod kept;

fn names(snapshot: &SourceSnapshot) -> Vec<&str> {
    snapshot.entries.iter().map(|entry| entry.name.as_str()).collect()
}
