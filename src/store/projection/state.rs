//! What is known of the table, what waits to be written, and what is being written.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use indexmap::IndexMap;

use crate::account::row::AccountRow;
use crate::store::{ForeignRow, StoreError, limits};
use deleted_uids::DeletedUids;
use jobs::{Done, RowJob};

mod comparing;
mod deleted_uids;
mod jobs;

pub(super) use jobs::{DesiredRow, WriteKind, WriteTask};

/// See the module. The table is the writer's: `known` changes only while it is held.
pub(super) struct ProjectionState {
    /// What the table holds, by uid; nothing in it for a row that cannot be read.
    known: HashMap<String, Option<Arc<AccountRow>>>,
    /// The uid of each known name: a row that takes over a name replaces the other.
    names: HashMap<String, String>,
    /// The names of rows that are somebody else's.
    foreign: HashSet<String>,
    /// What waits, at most one job for each uid, in the order they came.
    waiting: IndexMap<String, RowJob>,
    /// What is being written.
    flying: HashMap<String, DesiredRow>,
    /// What was refused since the last repair.
    refused: HashMap<String, Arc<AccountRow>>,
    deleted: DeletedUids,
    /// Rows of `kubesvc_caching` that no account has, by uid.
    strays: Vec<String>,
    /// The table must be read before anything is written.
    stale: bool,
    /// Objects are being compared with the table. What is said of one meanwhile waits even if the table holds it: the
    /// comparison may be about to write the object as it was.
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

    /// The names of somebody else's rows.
    pub(super) fn foreign(&self) -> impl Iterator<Item = &String> {
        self.foreign.iter()
    }

    /// Whether somebody else's row has this name.
    pub(super) fn is_foreign(&self, name: &str) -> bool {
        self.foreign.contains(name)
    }

    /// These rows are somebody else's, and no others.
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

    /// What the table will hold once everything that is being written is.
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

    /// True if there is something to write.
    pub(super) fn say(&mut self, row: AccountRow) -> bool {
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
            return Err(limits::refused(row, DELETED));
        }
        Ok(())
    }

    pub(super) fn delete(&mut self, uid: &str, done: Done) {
        self.deleted.insert(uid);
        self.want_gone(uid, DELETED, done);
    }

    /// Deletes the row of an account that lives on: it may be inserted again.
    pub(super) fn release(&mut self, uid: &str, done: Done) {
        self.want_gone(uid, RELEASED, done);
    }

    /// Drops what waits for a uid, with this reason, and deletes its row.
    fn want_gone(&mut self, uid: &str, why: &'static str, done: Done) {
        self.refused.remove(uid);
        if let Some(row) = self.waiting.get(uid).and_then(|job| job.want.row()) {
            let answer = Err(limits::refused(row, why));
            if let Some(job) = self.waiting.shift_remove(uid) {
                job.answer(&answer);
            }
        }
        self.want(uid, DesiredRow::Gone, Some(done));
    }

    /// Takes up to `most` jobs to be written together, each name once. What the table holds already is done.
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
                DesiredRow::Gone if tasks.len() == most => {
                    self.waiting.insert(uid, job);
                    continue;
                }
                DesiredRow::Row(_) if self.known.contains_key(&uid) => WriteKind::Update,
                DesiredRow::Row(_) => WriteKind::Insert,
                DesiredRow::Adopt(_) => WriteKind::Adopt,
                DesiredRow::Gone => WriteKind::Delete,
            };
            self.flying.insert(uid.clone(), job.want.clone());
            tasks.push(WriteTask { uid, kind, job });
        }
        tasks
    }

    /// These are committed.
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

    /// These are refused; nobody tries them again before the next repair.
    pub(super) fn refuse(&mut self, tasks: Vec<WriteTask>, error: &StoreError) {
        for task in tasks {
            self.flying.remove(&task.uid);
            if let Some(row) = task.job.want.row() {
                self.refused.insert(task.uid, Arc::clone(row));
            }
            task.job.answer(&Err(error.clone()));
        }
    }

    /// These are not known to be written, and wait again, before what came since; a newer word wins.
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

    /// The database failed: nobody is kept waiting, and what is known of it counts no longer.
    pub(super) fn fail(&mut self, error: &StoreError) {
        self.stale = true;
        for job in self.waiting.values_mut() {
            for done in job.waiters.drain(..) {
                let _ = done.send(Err(error.clone()));
            }
        }
    }

    /// Nothing of what waits or is being written is to be written any more.
    pub(super) fn forget_waiting(&mut self, error: &StoreError) {
        self.flying.clear();
        for (_, job) in std::mem::take(&mut self.waiting) {
            job.answer(&Err(error.clone()));
        }
    }
}

const DELETED: &str = "the account is deleted";
const RELEASED: &str = "another account has the name";
