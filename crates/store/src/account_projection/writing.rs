//! The task that writes queued rows, and its jobs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::Projection;
use crate::{AccountChanges, StoreError};
use kubesvc_core::account_row::AccountRow;
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskRegistry, TaskSpec};
use kubesvc_runtime::crash_points;

/// Maximum number of rows in one transaction; further ones are the next one.
const MAX_ROWS_PER_TRANSACTION: usize = 2_048;
/// Interval between checks of an idle database.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// Time limit for the last rows when the program ends.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// First delay after an attempt that failed.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum delay between two attempts, before the jitter that at most doubles it.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

impl Projection {
    /// Writes queued rows until `stop`, then the remaining ones for at most [`FINAL_WRITE_TIMEOUT`]. Retries an
    /// unavailable database forever, 100 ms to 10 s apart. Run it once; afterwards nothing is written any more.
    pub async fn run(&self, tasks: &TaskRegistry, stop: CancellationToken) {
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(FINAL_WRITE_TIMEOUT).await;
        };
        tokio::select! {
            () = self.write(tasks, &stop) => {}
            () = overdue => {}
        }
        // This is no news, so nothing is logged.
        let stopping = StoreError::unavailable("kubesvc is stopping");
        self.problem.send_replace(Some(stopping.in_full()));
        self.state.lock().fail(&stopping);
    }

    async fn write(&self, tasks: &TaskRegistry, stop: &CancellationToken) {
        let pending = self.counters.pending.clone();
        let task = TaskSpec::new("row writes", "Writes what accounts are to be in kubesvc_accounts");
        let task =
            task.woken_by(&self.wake).every(PING_INTERVAL).retry_delays(FIRST_RETRY_DELAY, MAX_RETRY_DELAY);
        // A round that is cancelled would lose rows.
        let task = task.without_deadline().finishes().logs_itself();
        let task = task.backlog(move || usize::try_from(pending.get()).unwrap_or_default());
        self.changed();
        tasks.drive(task, stop, |wakes| self.pass(wakes.is_empty())).await;
        while self.problem().is_none() && self.state.lock().has_waiting() && self.round(false).await.is_ok() {
        }
    }

    async fn pass(&self, ping: bool) -> AttemptOutcome {
        match self.round(ping).await {
            Ok(()) => {
                self.recover();
                if self.state.lock().has_waiting() {
                    self.changed();
                }
                AttemptOutcome::Done
            }
            Err(error) => {
                self.fail(&error);
                AttemptOutcome::failed(error.in_full())
            }
        }
    }

    /// Writes queued rows, in one transaction if none of them is refused.
    async fn round(&self, ping: bool) -> Result<(), StoreError> {
        let _table = self.table.lock().await;
        self.begin_leading().await?;
        if !self.role.lock().writes() {
            self.drop_waiting();
            return self.store.ping().await;
        }
        if self.state.lock().is_stale() {
            self.read().await?;
        } else if ping {
            self.store.ping().await?;
        }
        // A refused part is halved until the row at fault stands alone. The earlier half is on top.
        let mut parts = vec![self.state.lock().take(MAX_ROWS_PER_TRANSACTION)];
        while let Some(mut part) = parts.pop() {
            match self.commit(&part).await {
                Ok(()) => self.state.lock().landed(part),
                Err(StoreError::Refused { .. }) if part.len() > 1 => {
                    let later = part.split_off(part.len() / 2);
                    parts.extend([later, part]);
                }
                Err(StoreError::Deposed) => {
                    // Callers of these tasks get no answer: the leadership has ended.
                    drop((part, parts));
                    self.drop_waiting();
                    break;
                }
                Err(error @ StoreError::Refused { .. }) => {
                    tracing::warn!(error = error.in_full(), "a row is left as it is");
                    self.counters.refused.inc();
                    // Before callers get the refusal, because they look up its cause.
                    if let Ok(foreign) = self.store.foreign().await {
                        self.state.lock().saw_foreign(foreign);
                    }
                    self.state.lock().refuse(part, &error);
                }
                Err(error) => {
                    parts.push(part);
                    self.state.lock().give_back(parts.into_iter().rev().flatten().collect());
                    return Err(error);
                }
            }
        }
        self.count_pending();
        Ok(())
    }

    async fn commit(&self, part: &[WriteTask]) -> Result<(), StoreError> {
        if part.is_empty() {
            return Ok(());
        }
        let mut changes = AccountChanges { term: self.term_to_write()?, ..AccountChanges::default() };
        let mut kinds = [false; 4];
        for task in part {
            kinds[task.kind as usize] = true;
            match &task.job.want {
                DesiredRow::Row(row) => changes.puts.push(Arc::clone(row)),
                DesiredRow::Adopt(row) => changes.adopts.push(Arc::clone(row)),
                DesiredRow::Gone { keeps_objects } => {
                    changes.deletes.push(task.uid.clone());
                    changes.kept_objects.extend(keeps_objects.then(|| task.uid.clone()));
                }
            }
        }
        let pass = |points: [&'static str; 4]| {
            for (point, _) in points.into_iter().zip(kinds).filter(|(_, there)| *there) {
                crash_points::point(point);
            }
        };
        pass(["row-insert:before", "row-update:before", "row-delete:before", "row-adopt:before"]);
        self.judged(self.store.write(&changes).await)?;
        pass(["row-insert:after", "row-update:after", "row-delete:after", "row-adopt:after"]);
        self.counters.commits.inc();
        self.counters.rows.inc_by(part.len() as u64);
        Ok(())
    }
}

pub(super) type Done = oneshot::Sender<Result<(), StoreError>>;

/// The desired row of an account.
#[derive(Clone, Debug)]
pub(super) enum DesiredRow {
    Row(Arc<AccountRow>),
    /// Like `Row`, replacing a foreign row of that name.
    Adopt(Arc<AccountRow>),
    /// No row; the cached objects may stay for the next account of the name.
    Gone {
        keeps_objects: bool,
    },
}

impl DesiredRow {
    pub(super) fn row(&self) -> Option<&Arc<AccountRow>> {
        match self {
            Self::Row(row) | Self::Adopt(row) => Some(row),
            Self::Gone { .. } => None,
        }
    }

    pub(super) fn is(&self, row: &AccountRow) -> bool {
        self.row().is_some_and(|held| **held == *row)
    }

    /// Applies a newer desired row. A foreign row to replace is still replaced.
    pub(super) fn replace(&mut self, newer: Self) {
        *self = match (&self, newer) {
            (Self::Adopt(_), Self::Row(row)) => Self::Adopt(row),
            (_, newer) => newer,
        };
    }
}

/// What a write does to the table, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteKind {
    Insert = 0,
    Update = 1,
    Delete = 2,
    Adopt = 3,
}

/// A desired row, and the callers that wait for its commit.
#[derive(Debug)]
pub(super) struct RowJob {
    pub(super) want: DesiredRow,
    pub(super) waiters: Vec<Done>,
}

impl RowJob {
    pub(super) fn answer(self, answer: &Result<(), StoreError>) {
        for done in self.waiters {
            let _ = done.send(answer.clone());
        }
    }
}

/// A job that was taken to be written.
#[derive(Debug)]
pub(super) struct WriteTask {
    pub(super) uid: String,
    pub(super) kind: WriteKind,
    pub(super) job: RowJob,
}
