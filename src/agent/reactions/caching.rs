//! Which accounts this agent is to stream the objects of, and under which epoch.

use super::AccountTable;
use crate::wire::common::Fence;

/// What became of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssignmentOutcome {
    /// It is as it was told.
    Taken,
    /// It is older than what is known, or was told before.
    Late,
    /// The account is not held.
    Unknown,
}

impl AccountTable {
    /// Takes an assignment: `on` begins, or goes on under a greater epoch; else what was begun under this epoch or an
    /// older one ends. It goes with the account.
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

    /// How many accounts this agent streams the objects of.
    pub fn cached_count(&self) -> usize {
        self.by_uid.values().filter(|known| known.cached.is_some()).count()
    }
}
