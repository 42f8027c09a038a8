//! How far a list has come: which page is next, and what of it counts.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

use kubesvc_core::wire::events::Synced;

use crate::scrub::{ListPage, ObjectIdentity};
use crate::watch::MAX_PAGES;
use crate::watch::basis::{Basis, BasisMatch, Leftover};

/// What a page was.
#[derive(Debug, PartialEq)]
pub enum PageStep {
    /// No page was awaited.
    Ignored,
    /// The next page follows.
    More,
    /// The list is given up, and another sync begins.
    Restart,
    Complete(Box<SyncEnd>),
}

/// Why a scope is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListReason {
    /// It begins without a checkpoint that is fresh, or the hub asks for it.
    Start,
    /// The version of its watch is no longer kept.
    Expired,
    /// The watch was silent for too long.
    Silent,
    /// For what a watch may have lost.
    Audit,
    /// The former list, or watch, broke or could not be read.
    Retry,
    /// The former list was given up for want of room in the queue.
    Paused,
    /// The cluster is older than what was read before.
    WentBack,
}

impl ListReason {
    /// The reason in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Expired => "expired",
            Self::Silent => "silent",
            Self::Audit => "audit",
            Self::Retry => "retry",
            Self::Paused => "paused",
            Self::WentBack => "went_back",
        }
    }
}

/// The end of a sync. The deletes are queued before `synced`.
#[derive(Debug, PartialEq)]
pub struct SyncEnd {
    /// Rows whose objects are gone. Until they are queued, they take the memory that the list has reserved.
    pub leftover: Leftover,
    /// What is told to the hub; `scope_id` is the driver's to set.
    pub synced: Synced,
}

/// What lists for deletes alone have sent, by a hash of uid and version. A list that takes the place of one that was given
/// up need not send it again, where the hub has it: else a large list over a slow link would never come to its end. What
/// was sent once there was no memory for more is sent again.
#[derive(Debug, Default)]
pub(super) struct SentObjects {
    queued: HashSet<u64>,
    /// The last one, of which it is not known yet whether the queue took it.
    last: Option<u64>,
    /// Whether there is no memory for more.
    pub(super) is_full: bool,
}

impl SentObjects {
    fn hash(object: &ObjectIdentity) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&object.uid, &object.resource_version).hash(&mut hasher);
        hasher.finish()
    }

    fn contains(&self, object: &ObjectIdentity) -> bool {
        self.queued.contains(&Self::hash(object))
    }

    fn add(&mut self, object: &ObjectIdentity) {
        let before = self.last.replace(Self::hash(object));
        if !self.is_full {
            self.queued.extend(before);
        }
    }

    /// Number of objects that are remembered.
    pub(super) fn len(&self) -> usize {
        self.queued.len()
    }

    /// What is known to be queued, for the next list.
    pub(super) fn take(&mut self) -> Self {
        self.last = None;
        self.is_full = false;
        std::mem::take(self)
    }
}

/// Items of a page, or of the pages that are complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ItemCounts {
    listed: u64,
    kept: u64,
    sent: u64,
}

/// A list that runs.
#[derive(Debug)]
pub(super) struct List {
    pub(super) sync_key: String,
    /// The basis says only what is gone: each object is sent.
    pub(super) deletes_only: bool,
    /// What it has sent, and those whose place it takes. Only where the basis says what is gone.
    pub(super) sent: SentObjects,
    pub(super) basis: Basis,
    /// Where the next page begins; `None` for the first one.
    pub(super) continue_token: Option<String>,
    complete: ItemCounts,
    /// The page that arrives. It counts once it is complete.
    page: ItemCounts,
    pages: u32,
    /// Since when each request for the next page has failed.
    pub(super) failing_since: Option<Instant>,
    /// Version of the first page: the watch begins there.
    version: Option<String>,
}

impl List {
    /// A list under this key, after others have sent these objects.
    pub(super) fn new(sync_key: String, deletes_only: bool, sent: SentObjects) -> Self {
        Self {
            sync_key,
            deletes_only,
            sent,
            basis: Basis::default(),
            continue_token: None,
            complete: ItemCounts::default(),
            page: ItemCounts::default(),
            pages: 0,
            failing_since: None,
            version: None,
        }
    }

    /// Counts an item. Returns whether it is sent.
    pub(super) fn item(&mut self, object: &ObjectIdentity) -> bool {
        self.page.listed += 1;
        let is_equal = self.basis.take(object) == BasisMatch::Equal;
        let is_kept = is_equal && (!self.deletes_only || self.sent.contains(object));
        if is_kept {
            self.page.kept += 1;
        } else {
            self.page.sent += 1;
            if self.deletes_only {
                self.sent.add(object);
            }
        }
        !is_kept
    }

    /// Counts an item that is left out. A row that it may have is left over.
    pub(super) fn left_out(&mut self) {
        self.page.listed += 1;
    }

    /// Whether the page that failed can be asked for again. A later page comes from the same snapshot. The first one
    /// does not: an object of the failed page that was sent and then deleted would be in neither basis nor list.
    pub(super) fn can_repeat_page(&self) -> bool {
        self.continue_token.is_some() || self.page == ItemCounts::default()
    }

    /// Forgets the page that failed.
    pub(super) fn page_failed(&mut self) {
        self.page = ItemCounts::default();
    }

    /// Ends a page. Returns whether it is the last one.
    ///
    /// # Errors
    ///
    /// If the list does not come to an end.
    pub(super) fn page_end(&mut self, page: ListPage) -> Result<bool, &'static str> {
        let ItemCounts { listed, kept, sent } = std::mem::take(&mut self.page);
        self.complete.listed += listed;
        self.complete.kept += kept;
        self.complete.sent += sent;
        self.pages += 1;
        self.failing_since = None;
        self.version.get_or_insert(page.resource_version);
        if page.continue_token.is_some() && page.continue_token == self.continue_token {
            return Err("the list does not go on: two pages have the same continue token");
        }
        if page.continue_token.is_some() && self.pages >= MAX_PAGES {
            return Err("the list has too many pages");
        }
        self.continue_token = page.continue_token;
        Ok(self.continue_token.is_none())
    }

    /// Version at which the watch begins, once a page is complete.
    pub(super) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    pub(super) fn finish(self) -> SyncEnd {
        let leftover = self.basis.leftover();
        let ItemCounts { listed, kept, sent } = self.complete;
        let synced = Synced {
            scope_id: 0,
            sync_key: self.sync_key,
            rv: self.version.unwrap_or_default(),
            listed,
            kept,
            sent,
            deleted: leftover.len() as u64,
        };
        SyncEnd { leftover, synced }
    }
}
