//! The accounts whose objects this agent streams, and the epoch of each.

use super::AccountTable;
use crate::wire::common::Fence;

/// Result of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssignmentOutcome {
    /// The assignment was applied.
    Taken,
    /// The assignment is older than the current one, or a repetition.
    Late,
    /// The account is not held.
    Unknown,
}

impl AccountTable {
    /// Processes an assignment. `on` starts streaming, or continues it under a greater epoch. Otherwise,
    /// streaming under this epoch or an older one stops. An assignment ends when its account is dropped.
    pub fn cache(&mut self, fence: &Fence, on: bool) -> AssignmentOutcome {
        let Some(known) = self.by_uid.get_mut(&fence.account_uid).filter(|known| known.held.is_some()) else {
            return AssignmentOutcome::Unknown;
        };
        let epoch = fence.caching_epoch;
        match (known.cached, on) {
            (Some(since), true) if since >= epoch => AssignmentOutcome::Late,
            (Some(since), false) if since > epoch => AssignmentOutcome::Late,
            (None, false) => AssignmentOutcome::Late,
            (_, on) => {
                known.cached = on.then_some(epoch);
                AssignmentOutcome::Taken
            }
        }
    }

    /// Number of accounts whose objects this agent streams.
    pub fn cached_count(&self) -> usize {
        self.by_uid.values().filter(|known| known.cached.is_some()).count()
    }
}
