//! Progress of a list: the next page, and the items that count.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

use kubesvc_core::wire::events::Synced;

use crate::scrub::{ListPage, ObjectIdentity};
use crate::watch::MAX_PAGES;
use crate::watch::basis::{Basis, BasisMatch, Leftover};

/// Effect of the end of a page.
#[derive(Debug, PartialEq)]
pub enum PageStep {
    /// No page was awaited.
    Ignored,
    /// The next page follows.
    More,
    /// The list is aborted, and another sync begins.
    Restart,
    Complete(Box<SyncEnd>),
}

/// Reason for a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListReason {
    /// The scope has no fresh checkpoint, or the hub requests a list.
    Start,
    /// The version of the watch has expired.
    Expired,
    /// The watch was silent for too long.
    Silent,
    /// Audit for events that a watch may have lost.
    Audit,
    /// The former list or watch broke or was unreadable.
    Retry,
    /// The former list was aborted because the queue was full.
    Paused,
    /// The cluster is older than what was read before.
    WentBack,
}

impl ListReason {
    /// Value of the metric's label.
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
    /// Message to the hub; the driver sets its `scope_id`.
    pub synced: Synced,
}

/// Objects sent by deletes-only lists, by a hash of uid and version. A list that replaces an aborted one need not send
/// them again if the hub has them; otherwise a large list over a slow link would never complete. Objects sent after
/// memory ran out are sent again.
#[derive(Debug, Default)]
pub(super) struct SentObjects {
    queued: HashSet<u64>,
    /// The last object, which the queue may not have accepted.
    last: Option<u64>,
    /// Whether memory for further objects is exhausted.
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

    pub(super) fn len(&self) -> usize {
        self.queued.len()
    }

    /// Takes the objects that are known to be queued, for the next list.
    pub(super) fn take(&mut self) -> Self {
        self.last = None;
        self.is_full = false;
        std::mem::take(self)
    }
}

/// Items of a page, or of the complete pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ItemCounts {
    listed: u64,
    kept: u64,
    sent: u64,
}

/// A running list.
#[derive(Debug)]
pub(super) struct List {
    pub(super) sync_key: String,
    /// The basis serves for deletes alone: each object is sent.
    pub(super) deletes_only: bool,
    /// Objects sent by this list and by those that it replaces. Used only for deletes-only lists.
    pub(super) sent: SentObjects,
    pub(super) basis: Basis,
    /// Continue token of the next page; `None` for the first one.
    pub(super) continue_token: Option<String>,
    complete: ItemCounts,
    /// The page that arrives. Its items count once it is complete.
    page: ItemCounts,
    pages: u32,
    /// Time since which every request for the next page has failed.
    pub(super) failing_since: Option<Instant>,
    /// Version of the first page, at which the watch begins.
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

    /// Counts an item. Returns whether to send it.
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

    /// Counts an item that is left out. Its row, if any, is left over.
    pub(super) fn left_out(&mut self) {
        self.page.listed += 1;
    }

    /// Whether the failed page can be requested again. A later page comes from the same snapshot. The first one does
    /// not: an object of the failed page that was sent and then deleted would be in neither basis nor list.
    pub(super) fn can_repeat_page(&self) -> bool {
        self.continue_token.is_some() || self.page == ItemCounts::default()
    }

    /// Discards the failed page.
    pub(super) fn page_failed(&mut self) {
        self.page = ItemCounts::default();
    }

    /// Ends a page. Returns whether it is the last one.
    ///
    /// # Errors
    ///
    /// If the list exceeds [`MAX_PAGES`].
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
