//! `kubesvc_assignments`: the accounts that each agent of this replica holds, for readers of the tables. The rows
//! follow the sessions within about a second; all changes share a transaction. While the database is unavailable they
//! wait, at most one entry for each pair. With each change the database updates the number of agents that hold the
//! account, over all replicas; the checks of the rows compare these numbers too.

mod row_diff;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tracing::{info, warn};

use crate::hub::sessions::events::{SessionEvent, SessionSubscriber};
use crate::hub::sessions::ledger::HubUptime;
use crate::hub::table_writers::{RETRY_DELAYS, TableWriters, with_timeout};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::work_queue::WorkQueue;
use kubesvc_store::{AssignmentChanges, StoreError};
use row_diff::{AssignmentKey, HeldAs, HoldChange, RowDiff};

/// Interval between writes of changed rows.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of rows in one transaction.
const MAX_ROWS_PER_TRANSACTION: usize = 2048;
/// Maximum number of sessions and accounts handled in one flush.
const MAX_CHANGES_PER_FLUSH: usize = 1_000_000;
/// Time limit for the last flush when the hub stops.
const FINAL_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay of the first check after a start or a change.
const FIRST_CHECK_DELAY: Duration = Duration::from_secs(5);

/// Sessions and accounts whose rows may have to change.
#[derive(Default)]
pub(crate) struct DirtyAssignments(WorkQueue<(u64, String)>);

impl SessionSubscriber for DirtyAssignments {
    fn session_event(&self, serial: u64, event: SessionEvent<'_>) {
        match event {
            SessionEvent::Stood { accounts, .. } => {
                self.0.wake_all(accounts.iter().map(|uid| (serial, uid.clone())));
            }
            SessionEvent::Ended { accounts, .. } | SessionEvent::ReachableChanged(accounts) => {
                self.0.wake_all(accounts.iter().map(|uid| (serial, uid.clone())));
            }
            SessionEvent::AnswerChanged(uid) | SessionEvent::Released(uid) => {
                self.0.wake((serial, uid.to_owned()));
            }
            _ => {}
        }
    }

    fn account_changed(&self, uid: &str, serials: &[u64]) {
        self.0.wake_all(serials.iter().map(|serial| (*serial, uid.to_owned())));
    }
}

/// Starts the task that keeps the rows in step. When the hub stops, it removes the last rows after all sessions have
/// ended.
pub(crate) fn start(background: &BackgroundTasks, tables: &Arc<TableWriters>) {
    let [first, longest] = RETRY_DELAYS;
    let task =
        TaskSpec::new("assignments", "Writes into kubesvc_assignments what the agents of this replica hold");
    // Each request has a time limit.
    let task = task.every(FLUSH_INTERVAL).at_start().without_deadline().retry_delays(first, longest);
    let waiting = Arc::clone(&tables.wakes.assignments);
    let task = task.backlog(move || waiting.0.len()).logs_itself();
    let writer = Arc::new(Mutex::new(AssignmentWriter::new(Arc::clone(tables))));
    let last = Arc::clone(&writer);
    background.start_and_finish(task, move |_: Vec<()>| update(Arc::clone(&writer)), async move {
        last.lock().await.finish().await;
    });
}

async fn update(writer: Arc<Mutex<AssignmentWriter>>) -> AttemptOutcome {
    writer.lock().await.update().await
}

struct AssignmentWriter {
    tables: Arc<TableWriters>,
    diff: RowDiff,
    /// Whether the last flush failed.
    is_failing: bool,
    /// Schedule of the checks that read all rows.
    checks: CheckSchedule,
    /// Wakes when replicas come or go: the leader removes the rows of those it considers dead.
    replicas: watch::Receiver<u64>,
}

impl AssignmentWriter {
    fn new(tables: Arc<TableWriters>) -> Self {
        let checks = CheckSchedule::new(tables.context.settings.assignment_checks, tables.context.moment());
        let replicas = tables.context.replicas.changes();
        Self { tables, diff: RowDiff::default(), is_failing: false, checks, replicas }
    }

    async fn update(&mut self) -> AttemptOutcome {
        self.follow();
        let now = self.tables.context.moment();
        // The sender lives as long as the replicas.
        if self.replicas.has_changed().unwrap_or_default() {
            self.replicas.mark_unchanged();
            self.checks.hasten(now);
        }
        if self.checks.is_due(now) {
            self.diff.mark_stale();
        }
        match self.flush().await {
            Ok(()) => {
                if std::mem::take(&mut self.is_failing) {
                    info!("kubesvc_assignments is up to date again");
                    // Account rows may be inserted only now, with a count of zero agents.
                    self.checks.hasten(now);
                }
                AttemptOutcome::Done
            }
            Err(error) => {
                let error = error.in_full();
                if !std::mem::replace(&mut self.is_failing, true) {
                    warn!(
                        error,
                        "cannot update kubesvc_assignments; retrying until the database is available"
                    );
                }
                AttemptOutcome::failed(error)
            }
        }
    }

    /// Removes the last rows once all sessions have ended.
    async fn finish(&mut self) {
        let emptied = self.tables.sessions.emptied();
        if tokio::time::timeout(crate::hub::STOP_TIMEOUT, emptied).await.is_err() {
            return;
        }
        self.follow();
        // Two rounds: a row first says that its agent is unreachable, and is then removed.
        let last = async {
            self.flush().await?;
            self.flush().await
        };
        match tokio::time::timeout(FINAL_FLUSH_TIMEOUT, last).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(error = error.in_full(), "the last rows of kubesvc_assignments were not removed");
            }
            Err(_) => warn!("the last rows of kubesvc_assignments were not removed in time"),
        }
    }

    /// Collects what the sessions hold since the last flush.
    fn follow(&mut self) {
        for (serial, uid) in self.tables.wakes.assignments.0.try_take(MAX_CHANGES_PER_FLUSH) {
            let Some(session) = self.tables.sessions.registry.by_serial(serial) else {
                self.diff.record(serial, uid, HoldChange::Ended);
                continue;
            };
            let held = session.held_name(&uid).map(|account| {
                let caching = self.tables.context.accounts.by_uid(&uid).is_some_and(|account| {
                    let status = account.status_or_default();
                    let process = status.caching.as_ref().and_then(|caching| caching.boot_id.as_ref());
                    status.caching_agent() == Some(&session.agent.id)
                        && process == Some(&session.agent.boot_id)
                });
                let held = HeldAs { caching, reachable: session.is_reachable() };
                HoldChange::As(AssignmentKey { account, agent: session.agent.id.clone() }, held)
            });
            self.diff.record(serial, uid, held.unwrap_or(HoldChange::Nothing));
        }
    }

    async fn flush(&mut self) -> Result<(), StoreError> {
        self.diff.begin_round();
        let is_check = !self.diff.is_read();
        if is_check {
            let TableWriters { rows, context, .. } = &*self.tables;
            let read = with_timeout(rows.assignments.assignments(context.replicas.id())).await?;
            self.diff.read(read.into_iter());
        }
        while let Some(changes) = self.diff.changes(MAX_ROWS_PER_TRANSACTION) {
            self.write(&changes).await?;
            self.diff.written(&changes);
        }
        if is_check {
            let miscounted = with_timeout(self.tables.rows.assignments.miscounted()).await?;
            for names in miscounted.chunks(MAX_ROWS_PER_TRANSACTION) {
                let changes = AssignmentChanges { recounts: names.to_vec(), ..AssignmentChanges::default() };
                self.write(&changes).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, changes: &AssignmentChanges) -> Result<(), StoreError> {
        let TableWriters { rows, context, .. } = &*self.tables;
        let write = rows.assignments.write_assignments(context.replicas.id(), changes);
        with_timeout(crash_points::around(Some("assignments"), write)).await
    }
}

/// Periods of the regular checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignmentChecks {
    /// Delay of the first check.
    pub initial_delay: Duration,
    /// Maximum interval between two checks.
    pub period: Duration,
}

/// The next checks: five seconds after a start or a change, then ten, and so on up to the period. The leader may have
/// considered this replica, or the process that had its id before, dead; it then removes the rows within some
/// seconds.
#[derive(Debug)]
struct CheckSchedule {
    period: Duration,
    pace: Duration,
    next: HubUptime,
}

impl CheckSchedule {
    fn new(checks: AssignmentChecks, now: HubUptime) -> Self {
        let period = checks.period.max(Duration::from_secs(1));
        Self { period, pace: FIRST_CHECK_DELAY, next: now + checks.initial_delay }
    }

    /// Restarts the schedule: rows may have been lost.
    fn hasten(&mut self, now: HubUptime) {
        self.pace = FIRST_CHECK_DELAY;
        self.next = self.next.min(now + self.pace.min(self.period));
    }

    fn is_due(&mut self, now: HubUptime) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.pace.min(self.period);
            self.pace = (self.pace * 2).min(self.period.max(FIRST_CHECK_DELAY));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds in which rows are compared.
    fn seconds(schedule: &mut CheckSchedule, seconds: std::ops::Range<u64>) -> Vec<u64> {
        seconds.filter(|second| schedule.is_due(Duration::from_secs(*second))).collect()
    }

    #[test]
    fn after_the_start_rows_are_compared_soon_and_then_with_the_period() {
        let mut schedule = CheckSchedule::new(AssignmentChecks::default(), Duration::ZERO);
        assert_eq!(seconds(&mut schedule, 0..200), [0, 5, 15, 35, 75, 135, 195]);
    }

    #[test]
    fn after_a_change_they_are_compared_soon_again() {
        let mut schedule = CheckSchedule::new(AssignmentChecks::default(), Duration::ZERO);
        seconds(&mut schedule, 0..140);
        schedule.hasten(Duration::from_secs(140));
        assert_eq!(seconds(&mut schedule, 140..300), [145, 150, 160, 180, 220, 280]);
    }

    #[test]
    fn changes_in_a_row_put_nothing_off() {
        let mut schedule = CheckSchedule::new(AssignmentChecks::default(), Duration::ZERO);
        seconds(&mut schedule, 0..100);
        let compared: Vec<_> = (100..120)
            .filter(|second| {
                schedule.hasten(Duration::from_secs(*second));
                schedule.is_due(Duration::from_secs(*second))
            })
            .collect();
        assert_eq!(compared, [105, 110, 115]);
    }

    #[test]
    fn a_period_and_a_delay_that_are_set_hold() {
        let checks =
            AssignmentChecks { initial_delay: Duration::from_secs(3), period: Duration::from_secs(2) };
        let mut schedule = CheckSchedule::new(checks, Duration::ZERO);
        assert_eq!(seconds(&mut schedule, 0..9), [3, 5, 7]);
    }
}
