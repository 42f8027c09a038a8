//! Keeps the rows of `kubesvc_accounts` in step with the objects.
//!
//! Callers queue desired rows; one task writes. It takes the newest row of each queued account and commits them in one
//! transaction; rows queued meanwhile are the next transaction. A lone row is written at once, and under load many
//! share a commit, without a timer. The rows that the database is known to hold are kept in memory, so an unchanged row
//! costs nothing.
//!
//! While the database is unavailable, rows wait, at most one for each account. Once it is back, the table is read again
//! before they are written, because a commit whose answer was lost may have succeeded.
//!
//! With several replicas only the leader writes, under a [term](crate::Term) that it begins before its first row. A
//! former leader that resumes finds at its next transaction that a later term has begun: the transaction is refused,
//! and its leadership ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{oneshot, watch};

use super::{Store, StoreError};
use kubesvc_core::account_row::AccountRow;
use kubesvc_core::lifecycle::RowFact;
use kubesvc_runtime::work_queue::WorkQueue;
use state::ProjectionState;
use writer_role::WriterRole;
use writing::WriteKind;

mod state;
#[cfg(test)]
mod tests;
mod writer_role;
mod writing;

pub use writer_role::{Confirm, LeaderTerm};

/// The desired rows of `kubesvc_accounts`. [`Projection::run`] is the task that writes them.
pub struct Projection {
    store: Arc<dyn Store>,
    state: Mutex<ProjectionState>,
    role: Mutex<WriterRole>,
    /// Held while the table is read or written, so that the known rows are never older than the last read.
    table: tokio::sync::Mutex<()>,
    wake: Arc<WorkQueue<()>>,
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

    /// Reads the table. After an error its rows count as unknown, and [`Projection::run`] retries.
    pub async fn load(&self) -> Result<(), StoreError> {
        let _table = self.table.lock().await;
        self.read().await.inspect_err(|error| self.fail(error))?;
        self.recover();
        Ok(())
    }

    /// Reads the table and repairs rows that were edited, removed or added under a uid by hand. Foreign rows,
    /// which have no uid, stay. Refused rows are retried.
    ///
    /// `expected` is called while nothing is being written, and returns the rows of **all** objects at that time; rows
    /// queued after that call win. Requires that [`Projection::run`] is running.
    pub async fn repair(
        &self,
        expected: impl FnOnce() -> Vec<AccountRow> + Send,
    ) -> Result<Repair, StoreError> {
        let tasks = {
            let _table = self.table.lock().await;
            self.begin_leading().await.inspect_err(|error| self.fail(error))?;
            self.may_write()?;
            let _comparison = RunningComparison::begin(&self.state);
            let expected = expected();
            self.read().await.inspect_err(|error| self.fail(error))?;
            // Unlocked before the comparison ends.
            let mut state = self.state.lock();
            state.repair(expected)
        };
        self.changed();
        let mut repair = Repair::default();
        for (kind, wait) in tasks {
            match wait.await {
                Ok(Ok(())) => match kind {
                    WriteKind::Insert | WriteKind::Adopt => repair.inserted += 1,
                    WriteKind::Update => repair.updated += 1,
                    WriteKind::Delete => repair.deleted += 1,
                },
                Ok(Err(StoreError::Refused { .. })) => repair.refused += 1,
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(StoreError::unavailable("nothing writes any more")),
            }
        }
        Ok(repair)
    }

    /// Whether the account with this uid has a row, or a foreign row has its name, from memory. Unavailable until the
    /// table was read, and while the database is unavailable.
    ///
    /// A foreign row is known once the table was read or a row was refused; its removal, from the next repair on.
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

    /// The names of the known foreign rows; see [`Projection::fact`].
    pub fn foreign(&self) -> BTreeSet<String> {
        self.state.lock().foreign().cloned().collect()
    }

    /// Queues a row, and returns when it is committed. Concurrent callers share a commit.
    ///
    /// [`StoreError::Refused`]: it is not written, or the account is deleted. [`StoreError::Unavailable`] and
    /// [`StoreError::Unfit`]: whether it is written is unknown; it stays queued as after [`Projection::upsert`].
    pub async fn insert(&self, row: AccountRow) -> Result<(), StoreError> {
        self.may_write()?;
        let (done, wait) = oneshot::channel();
        self.state.lock().insert(row, done)?;
        self.written(wait).await
    }

    /// Like [`Projection::insert`], replacing a foreign row of that name; see
    /// [`AccountChanges::adopts`](crate::AccountChanges::adopts).
    pub async fn adopt(&self, row: AccountRow) -> Result<(), StoreError> {
        self.may_write()?;
        let (done, wait) = oneshot::channel();
        self.state.lock().adopt(row, done)?;
        self.written(wait).await
    }

    /// Queues a row without waiting for its commit; the newest row of each account is written. Ignored if the database
    /// holds the same row, if it has refused the same row since the last repair, or if the account was deleted.
    pub fn upsert(&self, row: AccountRow) {
        if self.may_write().is_ok() && self.state.lock().set_row(row) {
            self.changed();
        }
    }

    /// Deletes all rows of an account, and returns when that is committed. Its cached objects are swept later, or stay
    /// for the next account of its name. A queued row of this uid is dropped, and later ones are ignored. After an
    /// error the deletion stays queued, like [`Projection::insert`].
    pub async fn delete(&self, uid: &str, keeps_objects: bool) -> Result<(), StoreError> {
        self.may_write()?;
        let (done, wait) = oneshot::channel();
        self.state.lock().delete(uid, keeps_objects, done);
        self.written(wait).await
    }

    /// Deletes the rows of an account that lost its name to another one but still exists: it may get a row again.
    /// Otherwise like [`Projection::delete`].
    pub async fn release(&self, uid: &str) -> Result<(), StoreError> {
        self.may_write()?;
        let (done, wait) = oneshot::channel();
        self.state.lock().release(uid, done);
        self.written(wait).await
    }

    /// Why the database is unavailable; `None` if it is available.
    pub fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// Follows [`Projection::problem`]: changes when the database fails and when it is back.
    pub fn watch(&self) -> watch::Receiver<Option<String>> {
        self.problem.subscribe()
    }

    /// Counts of what was written.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Puts the counters into a registry.
    pub fn register(&self, registry: &mut Registry) {
        let Counters { commits, rows, refused, pending, late } = &self.counters;
        registry.register("kubesvc_store_commits", "Transactions committed", commits.clone());
        registry.register("kubesvc_store_rows_written", "Account rows written or deleted", rows.clone());
        registry.register("kubesvc_store_rows_refused", "Account rows the database refused", refused.clone());
        registry.register(
            "kubesvc_store_late_writes",
            "Writes refused because another replica leads",
            late.clone(),
        );
        registry.register("kubesvc_store_pending", "Account rows that wait to be written", pending.clone());
    }

    pub(super) async fn read(&self) -> Result<(), StoreError> {
        let accounts = self.store.accounts().await?;
        for malformed in &accounts.malformed {
            tracing::warn!(%malformed, "a row was edited by hand; restoring it if an object has it");
        }
        let foreign = self.store.foreign().await?;
        let mut state = self.state.lock();
        state.loaded(accounts);
        state.saw_foreign(foreign);
        Ok(())
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

    /// Drops all queued rows, and fails their callers with [`StoreError::Deposed`].
    fn drop_waiting(&self) {
        self.state.lock().forget_waiting(&StoreError::Deposed);
    }

    /// Reports that the database is available. Called only after queued rows were written: a full disk can be read.
    fn recover(&self) {
        if self.problem.send_if_modified(|trouble| trouble.take().is_some()) {
            tracing::info!("the database is available");
        }
    }

    fn fail(&self, error: &StoreError) {
        let why = error.in_full();
        self.problem.send_if_modified(|trouble| {
            if trouble.as_ref() == Some(&why) {
                return false;
            }
            tracing::warn!(error = why, "the database is unavailable; rows wait to be written");
            *trouble = Some(why);
            true
        });
        self.state.lock().fail(error);
    }
}

/// A comparison of the objects with the table, which ends when this is dropped: also if the repair fails or is abandoned.
struct RunningComparison<'p>(&'p Mutex<ProjectionState>);

impl<'p> RunningComparison<'p> {
    fn begin(state: &'p Mutex<ProjectionState>) -> Self {
        state.lock().comparing = true;
        Self(state)
    }
}

impl Drop for RunningComparison<'_> {
    fn drop(&mut self) {
        self.0.lock().comparing = false;
    }
}

/// Counts of what was written, for `/metrics`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Transactions that were committed.
    pub commits: Counter,
    /// Rows that were inserted, updated or deleted.
    pub rows: Counter,
    /// Rows that the database refused.
    pub refused: Counter,
    /// Accounts whose row waits to be written.
    pub pending: Gauge,
    /// Writes that came too late: another replica leads by now.
    pub late: Counter,
}

/// Result of [`Projection::repair`], in numbers of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Rows that were missing.
    pub inserted: usize,
    /// Rows that differed.
    pub updated: usize,
    /// Rows of kubesvc without an object.
    pub deleted: usize,
    /// Rows among these that the database refuses; each is named in the log.
    pub refused: usize,
}

impl Repair {
    /// Whether the rows were as they should be.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
