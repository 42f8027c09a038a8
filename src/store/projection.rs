//! Keeps the rows of `kubesvc_accounts` in step with the objects.
//!
//! Callers say what a row shall be; one task writes. It takes everything that waits, the newest row of each account,
//! and commits it in one transaction; what comes meanwhile is the next transaction. So a lone row is written at once,
//! and under load many share a commit, without a timer. In memory it keeps what the database is known to hold, so a
//! row that is the same costs nothing.
//!
//! While the database cannot be used everything waits, at most one row for each account, and is written when it is
//! back; before that the table is read again, for a commit whose answer was lost may be in it or not.
//!
//! With several replicas only the leader writes, under a [term](crate::store::Term) that it begins before its first
//! row. A replica that led, slept and goes on finds at its next transaction that a later term has begun: nothing of it
//! is written, and its lead is over.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::{Store, StoreError};
use crate::account::lifecycle::RowFact;
use crate::account::row::AccountRow;
use crate::wake_set::WakeSet;
use state::ProjectionState;
use writer_role::WriterRole;

mod counters;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod writer_role;
mod writing;

pub use counters::Counters;
pub use table::Repair;
pub use writer_role::{Confirm, LeaderTerm};

/// The rows of `kubesvc_accounts`, as the objects call for them. [`Projection::run`] is the task that writes.
pub struct Projection {
    store: Arc<dyn Store>,
    state: Mutex<ProjectionState>,
    role: Mutex<WriterRole>,
    /// Held while the table is read or written, so that what is known of it is never older than what was read.
    table: tokio::sync::Mutex<()>,
    wake: Arc<WakeSet<()>>,
    problem: watch::Sender<Option<String>>,
    counters: Counters,
}

impl Projection {
    /// A projection into this database. It knows nothing until [`Projection::load`] or [`Projection::run`] has read
    /// the table.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let (trouble, _) = watch::channel(Some("the database has not been read yet".to_owned()));
        Arc::new(Self {
            store,
            state: Mutex::new(ProjectionState::default()),
            role: Mutex::default(),
            table: tokio::sync::Mutex::new(()),
            wake: Arc::default(),
            problem: trouble,
            counters: Counters::default(),
        })
    }

    /// Whether the account with this uid has a row, or somebody else's row has its name, from memory. Unavailable until
    /// the table was read, and while the database cannot be used.
    ///
    /// Somebody else's row is known once the table was read or a row was refused; that it is gone, with the next repair.
    pub fn fact(&self, uid: &str, account_name: &str) -> RowFact {
        if self.problem.borrow().is_some() || !self.role.lock().writes() {
            return RowFact::Unavailable;
        }
        let state = self.state.lock();
        if state.is_stale() {
            RowFact::Unavailable
        } else if state.has_row(uid) {
            RowFact::Present
        } else if state.is_foreign(account_name) {
            RowFact::Foreign
        } else {
            RowFact::Absent
        }
    }

    /// The names of somebody else's rows, as known now; see [`Projection::fact`].
    pub fn foreign(&self) -> BTreeSet<String> {
        self.state.lock().foreign().cloned().collect()
    }

    /// Writes a row, and returns when it is committed; callers at the same time share a commit.
    ///
    /// [`StoreError::Refused`]: it is not written, or the account is deleted. [`StoreError::Unavailable`] and
    /// [`StoreError::Unfit`]: it is not known to be written; it waits as after [`Projection::upsert`].
    pub async fn insert(&self, row: AccountRow) -> Result<(), StoreError> {
        self.may_write()?;
        let (done, wait) = oneshot::channel();
        self.state.lock().insert(row, done)?;
        self.written(wait).await
    }

    /// As [`Projection::insert`], in place of a row of that name that is not ours, wherever it stands; see
    /// [`Changes::adopts`].
    pub async fn adopt(&self, row: AccountRow) -> Result<(), StoreError> {
        self.may_write()?;
        let (done, wait) = oneshot::channel();
        self.state.lock().adopt(row, done)?;
        self.written(wait).await
    }

    /// Says what a row shall be, and goes on: the newest word of each account is written. Nothing happens if the
    /// database holds just that, if it has refused just that since the last repair, or if the account was deleted.
    pub fn upsert(&self, row: AccountRow) {
        if self.may_write().is_ok() && self.state.lock().say(row) {
            self.changed();
        }
    }

    /// Deletes all rows of an account, and returns when that is committed. What waits for this uid is dropped, and
    /// what is said of it later is ignored. On an error the deletion waits, as [`Projection::insert`] does.
    pub async fn delete(&self, uid: &str) -> Result<(), StoreError> {
        self.may_write()?;
        let (done, wait) = oneshot::channel();
        self.state.lock().delete(uid, done);
        self.written(wait).await
    }

    /// Deletes the rows of an account that has lost its name to another one and lives on: it may get a row again.
    /// Otherwise as [`Projection::delete`].
    pub async fn release(&self, uid: &str) -> Result<(), StoreError> {
        self.may_write()?;
        let (done, wait) = oneshot::channel();
        self.state.lock().release(uid, done);
        self.written(wait).await
    }

    /// Why the database cannot be used now; absent if it can.
    pub fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// Follows [`Projection::problem`]: changes when the database fails and when it is back.
    pub fn watch(&self) -> watch::Receiver<Option<String>> {
        self.problem.subscribe()
    }

    /// What was written so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    async fn written(&self, wait: oneshot::Receiver<Result<(), StoreError>>) -> Result<(), StoreError> {
        self.changed();
        if let Some(why) = self.problem() {
            return Err(StoreError::unavailable(why));
        }
        wait.await.unwrap_or_else(|_| Err(StoreError::unavailable("nothing writes any more")))
    }

    fn changed(&self) {
        self.count_pending();
        self.wake.wake(());
    }

    fn count_pending(&self) {
        let waiting = self.state.lock().waiting();
        self.counters.pending.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// What waits is not written any more; whoever waits for it hears so.
    fn drop_waiting(&self) {
        self.state.lock().forget_waiting(&StoreError::Deposed);
    }

    /// Only after what waited is written: a full disk can be read.
    fn recover(&self) {
        if self.problem.send_if_modified(|trouble| trouble.take().is_some()) {
            tracing::info!("the database can be used");
        }
    }

    fn fail(&self, error: &StoreError) {
        let why = error.in_full();
        self.problem.send_if_modified(|trouble| {
            if trouble.as_ref() == Some(&why) {
                return false;
            }
            tracing::warn!(error = why, "the database cannot be used; what is to be written waits");
            *trouble = Some(why);
            true
        });
        self.state.lock().fail(error);
    }
}
