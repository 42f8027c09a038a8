//! Reports of a list: basis, items, ends of pages.

use std::time::Instant;

use crate::scrub::{Exclusion, ListPage, ObjectIdentity};
use crate::watch::basis::BasisTooLarge;
use crate::watch::failure::RequestFailure;
use crate::watch::list::{List, ListReason, PageStep};
use crate::watch::machine::{ScopePhase, ScopeWatch, has_gone_back};

/// Effect of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemStep {
    /// Queue as an upsert. The version of an item is no checkpoint; that of the complete list is.
    Upsert,
    /// Do not queue: the hub has the object, or it is left out.
    Skip,
}

impl ScopeWatch {
    /// Begins a list. The driver queues the start of the sync under this key, then reports the rows that the hub
    /// answers with. Returns whether a list was to begin.
    pub fn begin_sync(&mut self, sync_key: String, now: Instant) -> bool {
        let ScopePhase::NeedsList { deletes_only, sent, asks_first: false, .. } = &mut self.phase else {
            return false;
        };
        self.phase = ScopePhase::AwaitsBasis(List::new(sync_key, *deletes_only, sent.take()));
        self.begin_attempt(now);
        true
    }

    /// Takes a row of the hub. Late rows of another sync are ignored.
    pub fn basis_row(
        &mut self,
        sync_key: &str,
        namespace: &str,
        name: &str,
        uid: &str,
        version: &str,
    ) -> Result<(), BasisTooLarge> {
        match &mut self.phase {
            ScopePhase::AwaitsBasis(list) if list.sync_key == sync_key => {
                list.basis.push(namespace, name, uid, version)
            }
            _ => Ok(()),
        }
    }

    /// Ends the hub's rows; the first page can be requested.
    pub fn basis_end(&mut self, sync_key: &str, now: Instant) {
        if let Some(list) = self.awaits_basis(sync_key).then(|| self.take_list()).flatten() {
            self.phase = ScopePhase::Listing(list);
            self.begin_attempt(now);
        }
    }

    /// Number of objects that deletes-only lists remember to have sent; `None` if none are to be remembered. The driver
    /// takes memory for each further one before its [`item`](Self::item).
    pub fn sent_objects(&self) -> Option<usize> {
        match &self.phase {
            ScopePhase::NeedsList { deletes_only: true, sent, .. } => Some(sent.len()),
            ScopePhase::AwaitsBasis(list) | ScopePhase::Listing(list) if list.deletes_only => {
                Some(list.sent.len())
            }
            ScopePhase::NeedsList { .. }
            | ScopePhase::AwaitsBasis(_)
            | ScopePhase::Listing(_)
            | ScopePhase::Watching(_) => None,
        }
    }

    /// Stops remembering sent objects in the running list: their memory is exhausted.
    pub fn remember_no_more(&mut self) {
        if let ScopePhase::Listing(list) = &mut self.phase {
            list.sent.is_full = true;
        }
    }

    /// Whether the list waits for its basis under this key.
    pub fn awaits_basis(&self, sync_key: &str) -> bool {
        matches!(&self.phase, ScopePhase::AwaitsBasis(list) if list.sync_key == sync_key)
    }

    /// Takes an item of the page, with the reason if it is left out.
    pub fn item(&mut self, object: &ObjectIdentity, excluded: Option<Exclusion>, now: Instant) -> ItemStep {
        self.progress(now);
        let ScopePhase::Listing(list) = &mut self.phase else { return ItemStep::Skip };
        if excluded.is_some() {
            list.left_out();
            return ItemStep::Skip;
        }
        if list.item(object) { ItemStep::Upsert } else { ItemStep::Skip }
    }

    /// Takes an item without an identity. Its row, if any, is deleted because it cannot be kept up to date.
    pub fn unidentified_item(&mut self, now: Instant) {
        self.progress(now);
        if let ScopePhase::Listing(list) = &mut self.phase {
            list.left_out();
        }
    }

    pub fn page_end(&mut self, page: ListPage, now: Instant) -> PageStep {
        let ScopePhase::Listing(list) = &mut self.phase else { return PageStep::Ignored };
        let is_last = match list.page_end(page) {
            Ok(is_last) => is_last,
            Err(why) => {
                self.failed(&RequestFailure::Unreadable(why.to_owned()), now);
                return PageStep::Restart;
            }
        };
        if !list.deletes_only && has_gone_back(self.position.version.as_deref(), list.version()) {
            // A restored etcd reuses versions, so an equal version does not mean an equal object.
            self.start_list(true, ListReason::WentBack);
            return PageStep::Restart;
        }
        self.succeeded();
        if !is_last {
            self.begin_attempt(now);
            return PageStep::More;
        }
        let Some(list) = self.take_list() else { return PageStep::Ignored };
        self.position.version = list.version().map(str::to_owned);
        self.queued(now);
        self.failures.page_limit = 0;
        self.failures.unreadable_after = None;
        self.schedule_audit(now);
        self.start_watch(now);
        PageStep::Complete(Box::new(list.finish()))
    }
}
