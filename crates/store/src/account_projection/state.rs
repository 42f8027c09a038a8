//! What is known of the table, what waits to be written, and what is being written.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use indexmap::IndexMap;
use tokio::sync::oneshot;

use super::writing::{DesiredRow, Done, RowJob, WriteKind, WriteTask};
use crate::{ForeignRow, StoreError, StoredAccounts, column_limits};
use kubesvc_core::account_row::AccountRow;

/// The rows known to be in the table, the queued ones, and those being written. `known` changes only while
/// `Projection::table` is locked.
pub(super) struct ProjectionState {
    /// The rows of the table, by uid; `None` for a row that cannot be read.
    known: HashMap<String, Option<Arc<AccountRow>>>,
    /// The uid of each known name: a row that takes over a name replaces the other.
    names: HashMap<String, String>,
    /// The names of foreign rows.
    foreign: HashSet<String>,
    /// Queued jobs, at most one for each uid, in order of arrival.
    waiting: IndexMap<String, RowJob>,
    /// Rows being written, by uid.
    flying: HashMap<String, DesiredRow>,
    /// Rows refused since the last repair, by uid.
    refused: HashMap<String, Arc<AccountRow>>,
    deleted: DeletedUids,
    /// Rows of `kubesvc_caching` that no account has, by uid.
    strays: Vec<String>,
    /// The table must be read before anything is written.
    stale: bool,
    /// Whether objects are being compared with the table. A row queued meanwhile waits even if the table holds it: the
    /// comparison may be about to write the object's former row.
    pub(super) comparing: bool,
}

impl Default for ProjectionState {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            names: HashMap::new(),
            foreign: HashSet::new(),
            waiting: IndexMap::new(),
            flying: HashMap::new(),
            refused: HashMap::new(),
            deleted: DeletedUids::default(),
            strays: Vec::new(),
            stale: true,
            comparing: false,
        }
    }
}

impl ProjectionState {
    pub(super) fn has_row(&self, uid: &str) -> bool {
        self.known.contains_key(uid)
    }

    pub(super) fn foreign(&self) -> impl Iterator<Item = &String> {
        self.foreign.iter()
    }

    /// Whether a foreign row has this name.
    pub(super) fn is_foreign(&self, name: &str) -> bool {
        self.foreign.contains(name)
    }

    /// Replaces the known foreign rows.
    pub(super) fn saw_foreign(&mut self, rows: Vec<ForeignRow>) {
        self.foreign = rows.into_iter().map(|row| row.name).collect();
    }

    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len() + self.flying.len()
    }

    /// Whether the table holds this row, or will once the current transaction is committed.
    fn is_coming(&self, row: &AccountRow) -> bool {
        match self.flying.get(&row.uid) {
            Some(want) => want.is(row),
            None => self.is_known(row),
        }
    }

    fn is_known(&self, row: &AccountRow) -> bool {
        matches!(self.known.get(&row.uid), Some(Some(known)) if **known == *row)
    }

    fn want(&mut self, uid: &str, want: DesiredRow, done: Option<Done>) {
        match self.waiting.get_mut(uid) {
            Some(job) => {
                job.want.replace(want);
                job.waiters.extend(done);
            }
            None => {
                self.waiting.insert(uid.to_owned(), RowJob { want, waiters: done.into_iter().collect() });
            }
        }
    }

    fn want_row(&mut self, row: AccountRow, done: Option<Done>) {
        let row = Arc::new(row);
        self.want(&row.uid, DesiredRow::Row(Arc::clone(&row)), done);
    }

    fn want_adopted(&mut self, row: AccountRow, done: Done) {
        let row = Arc::new(row);
        self.want(&row.uid, DesiredRow::Adopt(Arc::clone(&row)), Some(done));
    }

    /// Queues a row. Returns whether there is something to write.
    pub(super) fn set_row(&mut self, row: AccountRow) -> bool {
        if self.deleted.contains(&row.uid) {
            return false;
        }
        match self.waiting.get(&row.uid) {
            Some(job) if job.want.is(&row) => return false,
            Some(_) => {}
            None if !self.comparing && self.is_coming(&row) => return false,
            None if self.refused.get(&row.uid).is_some_and(|refused| **refused == row) => return false,
            None => {}
        }
        self.want_row(row, None);
        true
    }

    pub(super) fn insert(&mut self, row: AccountRow, done: Done) -> Result<(), StoreError> {
        self.check_alive(&row)?;
        self.want_row(row, Some(done));
        Ok(())
    }

    pub(super) fn adopt(&mut self, row: AccountRow, done: Done) -> Result<(), StoreError> {
        self.check_alive(&row)?;
        self.want_adopted(row, done);
        Ok(())
    }

    fn check_alive(&self, row: &AccountRow) -> Result<(), StoreError> {
        if self.deleted.contains(&row.uid) {
            return Err(column_limits::refused(row, DELETED));
        }
        Ok(())
    }

    pub(super) fn delete(&mut self, uid: &str, keeps_objects: bool, done: Done) {
        self.deleted.insert(uid);
        self.want_deleted(uid, DesiredRow::Gone { keeps_objects }, DELETED, done);
    }

    /// Deletes the row of an account that lives on: it may be inserted again.
    pub(super) fn release(&mut self, uid: &str, done: Done) {
        self.want_deleted(uid, DesiredRow::Gone { keeps_objects: false }, RELEASED, done);
    }

    /// Drops a queued row of a uid with this reason, and queues the deletion of its row.
    fn want_deleted(&mut self, uid: &str, want: DesiredRow, why: &'static str, done: Done) {
        self.refused.remove(uid);
        if let Some(row) = self.waiting.get(uid).and_then(|job| job.want.row()) {
            let answer = Err(column_limits::refused(row, why));
            if let Some(job) = self.waiting.shift_remove(uid) {
                job.answer(&answer);
            }
        }
        self.want(uid, want, Some(done));
    }

    /// Takes up to `most` jobs to be written together, each name once. Rows that the table already holds are done.
    pub(super) fn take(&mut self, most: usize) -> Vec<WriteTask> {
        let mut names = HashSet::new();
        let mut tasks = Vec::new();
        for (uid, job) in std::mem::take(&mut self.waiting) {
            let kind = match &job.want {
                DesiredRow::Row(row) if self.is_known(row) => {
                    job.answer(&Ok(()));
                    continue;
                }
                DesiredRow::Row(row) | DesiredRow::Adopt(row)
                    if tasks.len() == most || !names.insert(row.name.clone()) =>
                {
                    self.waiting.insert(uid, job);
                    continue;
                }
                DesiredRow::Gone { .. } if tasks.len() == most => {
                    self.waiting.insert(uid, job);
                    continue;
                }
                DesiredRow::Row(_) if self.known.contains_key(&uid) => WriteKind::Update,
                DesiredRow::Row(_) => WriteKind::Insert,
                DesiredRow::Adopt(_) => WriteKind::Adopt,
                DesiredRow::Gone { .. } => WriteKind::Delete,
            };
            self.flying.insert(uid.clone(), job.want.clone());
            tasks.push(WriteTask { uid, kind, job });
        }
        tasks
    }

    /// Records that these tasks are committed.
    pub(super) fn landed(&mut self, tasks: Vec<WriteTask>) {
        // The deletions went first.
        let (deletes, puts): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|task| task.kind == WriteKind::Delete);
        for task in deletes.into_iter().chain(puts) {
            self.flying.remove(&task.uid);
            self.forget(&task.uid);
            if let Some(row) = task.job.want.row() {
                self.refused.remove(&task.uid);
                if task.kind == WriteKind::Adopt {
                    self.foreign.remove(&row.name);
                }
                self.learn(Arc::clone(row));
            }
            task.job.answer(&Ok(()));
        }
    }

    fn forget(&mut self, uid: &str) {
        if let Some(Some(row)) = self.known.remove(uid)
            && self.names.get(&row.name).is_some_and(|holder| holder == uid)
        {
            self.names.remove(&row.name);
        }
    }

    fn learn(&mut self, row: Arc<AccountRow>) {
        if let Some(other) = self.names.insert(row.name.clone(), row.uid.clone())
            && other != row.uid
        {
            self.known.remove(&other);
        }
        self.known.insert(row.uid.clone(), Some(row));
    }

    /// Records that these tasks are refused. They are not retried before the next repair.
    pub(super) fn refuse(&mut self, tasks: Vec<WriteTask>, error: &StoreError) {
        for task in tasks {
            self.flying.remove(&task.uid);
            if let Some(row) = task.job.want.row() {
                self.refused.insert(task.uid, Arc::clone(row));
            }
            task.job.answer(&Err(error.clone()));
        }
    }

    /// Queues tasks whose outcome is unknown again, before the jobs that arrived since; a newer row wins.
    pub(super) fn give_back(&mut self, tasks: Vec<WriteTask>) {
        self.flying.clear();
        let newer = std::mem::take(&mut self.waiting);
        for WriteTask { uid, job, .. } in tasks {
            self.waiting.insert(uid, job);
        }
        for (uid, job) in newer {
            match self.waiting.get_mut(&uid) {
                Some(older) => {
                    older.want.replace(job.want);
                    older.waiters.extend(job.waiters);
                }
                None => {
                    self.waiting.insert(uid, job);
                }
            }
        }
    }

    /// Records that the database failed: fails all waiting callers, and marks the known rows as stale.
    pub(super) fn fail(&mut self, error: &StoreError) {
        self.stale = true;
        for job in self.waiting.values_mut() {
            for done in job.waiters.drain(..) {
                let _ = done.send(Err(error.clone()));
            }
        }
    }

    /// Drops all queued and current jobs with this error.
    pub(super) fn forget_waiting(&mut self, error: &StoreError) {
        self.flying.clear();
        for (_, job) in std::mem::take(&mut self.waiting) {
            job.answer(&Err(error.clone()));
        }
    }

    /// Records the rows that were read from the table.
    pub(super) fn loaded(&mut self, accounts: StoredAccounts) {
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

    /// Compares the table, which was just read, with the rows of all objects, and queues the differences.
    pub(super) fn repair(
        &mut self,
        expected: Vec<AccountRow>,
    ) -> Vec<(WriteKind, oneshot::Receiver<Result<(), StoreError>>)> {
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
            // Not remembered as deleted: if the list was incomplete, the next upsert restores it.
            let (done, wait) = oneshot::channel();
            self.want(&uid, DesiredRow::Gone { keeps_objects: false }, Some(done));
            tasks.push((WriteKind::Delete, wait));
        }
        tasks
    }
}

const DELETED: &str = "the account is deleted";
const RELEASED: &str = "another account has the name";

/// How many deleted uids are remembered. A row that comes back after that is removed by the next repair.
const MAX_DELETED_UIDS: usize = 16_384;

/// The uids that were deleted last.
#[derive(Default)]
struct DeletedUids {
    uids: HashSet<String>,
    order: VecDeque<String>,
}

impl DeletedUids {
    fn contains(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    fn insert(&mut self, uid: &str) {
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
