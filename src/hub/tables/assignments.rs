//! `kubesvc_assignments`: the accounts that each agent of this replica holds, for readers of the tables. The rows
//! follow the sessions within about a second; all changes share a transaction. While the database is unavailable they
//! wait, at most one entry for each pair. With each change the database updates the number of agents that hold the
//! account, over all replicas; the checks of the rows compare these numbers too.

mod checks;
mod row_diff;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::crash;
use crate::hub::sessions::events::{SessionEvent, SessionSubscriber};
use crate::hub::tables::Tables;
use crate::store::{Assignment, AssignmentChanges, Store, StoreError};
use crate::wake_set::WakeSet;
pub use checks::AssignmentChecks;
use checks::CheckSchedule;
use row_diff::{AssignmentKey, HoldChange, RowDiff};

/// Interval between writes of changed rows.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum delay after a failure of the database.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Maximum number of rows in one transaction.
const MAX_ROWS_PER_TRANSACTION: usize = 2048;
/// Maximum number of sessions and accounts handled in one flush.
const MAX_CHANGES_PER_FLUSH: usize = 1_000_000;
/// Time limit for one request to the database.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the last flush when the hub stops.
const FINAL_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The rows of this replica.
#[async_trait]
pub trait AssignmentRows: Send + Sync {
    /// Returns all of them.
    ///
    /// # Errors
    /// The database is unavailable.
    async fn read(&self) -> Result<Vec<Assignment>, StoreError>;

    /// Returns the accounts of any replica whose row has another number of agents than there are assignments.
    ///
    /// # Errors
    /// The database is unavailable.
    async fn miscounted(&self) -> Result<Vec<String>, StoreError>;

    /// Writes all of these changes or none.
    ///
    /// # Errors
    /// The database is unavailable or refuses them.
    async fn write(&self, changes: &AssignmentChanges) -> Result<(), StoreError>;
}

/// The rows of one replica in the database.
pub struct StoredAssignments {
    store: Arc<dyn Store>,
    replica_id: String,
}

impl StoredAssignments {
    /// Creates the rows of this replica.
    pub fn new(store: Arc<dyn Store>, replica_id: &str) -> Self {
        Self { store, replica_id: replica_id.to_owned() }
    }
}

#[async_trait]
impl AssignmentRows for StoredAssignments {
    async fn read(&self) -> Result<Vec<Assignment>, StoreError> {
        self.store.assignments(&self.replica_id).await
    }

    async fn miscounted(&self) -> Result<Vec<String>, StoreError> {
        self.store.miscounted().await
    }

    async fn write(&self, changes: &AssignmentChanges) -> Result<(), StoreError> {
        crash::point("assignments:before");
        let written = self.store.write_assignments(&self.replica_id, changes).await;
        crash::point("assignments:after");
        written
    }
}

/// Sessions and accounts whose rows may have to change.
#[derive(Default)]
pub(in crate::hub) struct DirtyAssignments(WakeSet<(u64, String)>);

impl SessionSubscriber for DirtyAssignments {
    fn session_event(&self, serial: u64, event: SessionEvent<'_>) {
        match event {
            SessionEvent::Stood { accounts, .. } => {
                self.0.wake_all(accounts.iter().map(|uid| (serial, uid.clone())));
            }
            SessionEvent::Ended { accounts, .. } => {
                self.0.wake_all(accounts.iter().map(|uid| (serial, uid.clone())));
            }
            SessionEvent::AnswerChanged(uid) | SessionEvent::Released(uid) => {
                self.0.wake((serial, uid.to_owned()));
            }
            SessionEvent::Listed(_) | SessionEvent::ProblemsChanged | SessionEvent::OfferChanged(..) => {}
        }
    }

    fn account_changed(&self, uid: &str, serials: &[u64]) {
        self.0.wake_all(serials.iter().map(|serial| (*serial, uid.to_owned())));
    }
}

/// Keeps the rows in step until the hub stops, and removes the last ones after all sessions have ended.
pub(in crate::hub) async fn run(tables: Arc<Tables>, stop: CancellationToken) {
    let mut writer = AssignmentWriter::new(tables);
    let mut flush = tokio::time::interval(FLUSH_INTERVAL);
    flush.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = flush.tick() => {}
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = writer.turn() => {}
        }
    }
    let emptied = writer.tables.sessions.emptied();
    if tokio::time::timeout(crate::hub::STOP_TIMEOUT, emptied).await.is_err() {
        return;
    }
    writer.follow();
    // Two rounds: a row first says that its agent is unreachable, and is then removed.
    let last = async {
        writer.flush().await?;
        writer.flush().await
    };
    match tokio::time::timeout(FINAL_FLUSH_TIMEOUT, last).await {
        Ok(Ok(())) => {}
        Ok(Err(problem)) => {
            warn!(error = problem.in_full(), "the last rows of kubesvc_assignments were not written");
        }
        Err(_) => warn!("the last rows of kubesvc_assignments were not written in time"),
    }
}

struct AssignmentWriter {
    tables: Arc<Tables>,
    diff: RowDiff,
    /// Earliest time of the next flush, after a failure of the database.
    not_before: Duration,
    wait: Duration,
    /// Schedule of the checks that read all rows.
    checks: CheckSchedule,
    /// Wakes when replicas come or go: the leader removes the rows of those it considers dead.
    replicas: watch::Receiver<u64>,
}

impl AssignmentWriter {
    fn new(tables: Arc<Tables>) -> Self {
        let checks = CheckSchedule::new(tables.context.settings.assignment_checks, tables.context.moment());
        let replicas = tables.context.replicas.changes();
        Self {
            tables,
            diff: RowDiff::default(),
            not_before: Duration::ZERO,
            wait: FLUSH_INTERVAL,
            checks,
            replicas,
        }
    }

    async fn turn(&mut self) {
        self.follow();
        let now = self.tables.context.moment();
        // The sender lives as long as the replicas.
        if self.replicas.has_changed().unwrap_or_default() {
            self.replicas.mark_unchanged();
            self.checks.hasten(now);
        }
        if now < self.not_before {
            return;
        }
        if self.checks.is_due(now) {
            self.diff.mark_stale();
        }
        match self.flush().await {
            Ok(()) if self.not_before > Duration::ZERO => {
                info!("kubesvc_assignments is in step again");
                // Account rows may be inserted only now, with a count of zero agents.
                self.checks.hasten(now);
                (self.not_before, self.wait) = (Duration::ZERO, FLUSH_INTERVAL);
            }
            Ok(()) => {}
            Err(problem) => {
                if self.not_before == Duration::ZERO {
                    warn!(error = problem.in_full(), "kubesvc_assignments cannot be written; its rows wait");
                }
                self.wait = (self.wait * 2).min(MAX_RETRY_DELAY);
                self.not_before = self.tables.context.moment() + self.wait;
            }
        }
    }

    /// Collects what the sessions hold since the last flush.
    fn follow(&mut self) {
        for (serial, uid) in self.tables.wakes.assignments.0.try_take(MAX_CHANGES_PER_FLUSH) {
            let Some(session) = self.tables.sessions.registry.by_serial(serial) else {
                self.diff.look(serial, uid, HoldChange::Ended);
                continue;
            };
            let held = session.held_name(&uid).map(|account| {
                let caching = self.tables.context.accounts.by_uid(&uid).is_some_and(|account| {
                    let status = account.status_or_default();
                    let process = status.caching.as_ref().and_then(|caching| caching.boot_id.as_ref());
                    status.caching_agent() == Some(&session.agent.id)
                        && process == Some(&session.agent.boot_id)
                });
                HoldChange::As(AssignmentKey { account, agent: session.agent.id.clone() }, caching)
            });
            self.diff.look(serial, uid, held.unwrap_or(HoldChange::Nothing));
        }
    }

    async fn flush(&mut self) -> Result<(), StoreError> {
        let rows = &self.tables.rows.assignments;
        self.diff.begin_round();
        let is_check = !self.diff.is_read();
        if is_check {
            let read = with_timeout(rows.read()).await?;
            self.diff.read(read.into_iter());
        }
        while let Some(changes) = self.diff.changes(MAX_ROWS_PER_TRANSACTION) {
            with_timeout(rows.write(&changes)).await?;
            self.diff.written(&changes);
        }
        if is_check {
            for names in with_timeout(rows.miscounted()).await?.chunks(MAX_ROWS_PER_TRANSACTION) {
                let changes = AssignmentChanges { recounts: names.to_vec(), ..AssignmentChanges::default() };
                with_timeout(rows.write(&changes)).await?;
            }
        }
        Ok(())
    }
}

async fn with_timeout<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = |_| Err(StoreError::unavailable("it does not answer"));
    tokio::time::timeout(WRITE_TIMEOUT, answer).await.unwrap_or_else(late)
}
