//! What was read of the table, and what differs from it.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::ProjectionState;
use super::jobs::{DesiredRow, Wait, WriteKind};
use crate::account::row::AccountRow;
use crate::store::StoredAccounts;

impl ProjectionState {
    /// The table was read.
    pub(in crate::store::projection) fn loaded(&mut self, accounts: StoredAccounts) {
        self.known.clear();
        self.names.clear();
        for malformed in accounts.malformed {
            if let Some(uid) = malformed.uid {
                self.known.insert(uid, None);
            }
        }
        for row in accounts.rows {
            self.learn(Arc::new(row));
        }
        // Written anew, it has its fence.
        self.known.extend(accounts.unfenced.into_iter().map(|uid| (uid, None)));
        self.strays = accounts.stray_fences;
        self.stale = false;
    }

    /// Compares the table, which was just read, with what all objects call for.
    pub(in crate::store::projection) fn repair(
        &mut self,
        expected: Vec<AccountRow>,
    ) -> Vec<(WriteKind, Wait)> {
        self.refused.clear();
        let mut tasks = Vec::new();
        let mut uids = HashSet::with_capacity(expected.len());
        for row in expected {
            uids.insert(row.uid.clone());
            if self.deleted.contains(&row.uid) || self.waiting.contains_key(&row.uid) || self.is_known(&row) {
                continue;
            }
            let kind = if self.has_row(&row.uid) { WriteKind::Update } else { WriteKind::Insert };
            let (done, wait) = oneshot::channel();
            self.want_row(row, Some(done));
            tasks.push((kind, wait));
        }
        let strays: Vec<String> = self
            .known
            .keys()
            .filter(|uid| !uids.contains(*uid) && !self.waiting.contains_key(*uid))
            .chain(self.strays.iter().filter(|uid| {
                !self.known.contains_key(*uid) && !uids.contains(*uid) && !self.waiting.contains_key(*uid)
            }))
            .cloned()
            .collect();
        for uid in strays {
            // Not remembered as deleted: should the list have been short of it, the next word brings it back.
            let (done, wait) = oneshot::channel();
            self.want(&uid, DesiredRow::Gone, Some(done));
            tasks.push((WriteKind::Delete, wait));
        }
        tasks
    }
}
