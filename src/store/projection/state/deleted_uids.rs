//! The uids that were deleted last.

use std::collections::{HashSet, VecDeque};

/// How many deleted uids are remembered. A row that comes back after that is removed by the next repair.
const MAX_DELETED_UIDS: usize = 16_384;

/// The uids that were deleted last.
#[derive(Default)]
pub(super) struct DeletedUids {
    uids: HashSet<String>,
    order: VecDeque<String>,
}

impl DeletedUids {
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    pub(super) fn insert(&mut self, uid: &str) {
        if !self.uids.insert(uid.to_owned()) {
            return;
        }
        self.order.push_back(uid.to_owned());
        if self.order.len() > MAX_DELETED_UIDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
}
