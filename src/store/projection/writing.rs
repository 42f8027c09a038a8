//! The task that writes.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Projection;
use super::state::{DesiredRow, WriteTask};
use crate::background_tasks::{Outcome, TaskRegistry, TaskSpec};
use crate::crash;
use crate::store::{Changes, StoreError};

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
    /// Writes what waits until `stop`, then what still waits, for at most five seconds. While the database cannot be
    /// used it tries for ever, from 100 ms up to 10 s apart. To be run once; afterwards nothing is written any more.
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
        tasks.drive(task, stop, |wakes| self.turn(wakes.is_empty())).await;
        while self.problem().is_none() && self.state.lock().has_waiting() && self.round(false).await.is_ok() {
        }
    }

    async fn turn(&self, ping: bool) -> Outcome {
        match self.round(ping).await {
            Ok(()) => {
                self.recover();
                if self.state.lock().has_waiting() {
                    self.changed();
                }
                Outcome::Done
            }
            Err(error) => {
                self.fail(&error);
                Outcome::failed(error.in_full())
            }
        }
    }

    /// Writes what waits, in one transaction if nothing in it is refused.
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
                    // Nobody hears of what was to be written: the leader's work is over.
                    drop((part, parts));
                    self.drop_waiting();
                    break;
                }
                Err(error @ StoreError::Refused { .. }) => {
                    tracing::warn!(error = error.in_full(), "a row is left as it is");
                    self.counters.refused.inc();
                    // Before anybody hears of it: they ask why.
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
        let mut changes = Changes { term: self.term_to_write()?, ..Changes::default() };
        let mut kinds = [false; 4];
        for task in part {
            kinds[task.kind as usize] = true;
            match &task.job.want {
                DesiredRow::Row(row) => changes.puts.push(Arc::clone(row)),
                DesiredRow::Adopt(row) => changes.adopts.push(Arc::clone(row)),
                DesiredRow::Gone => changes.deletes.push(task.uid.clone()),
            }
        }
        let pass = |points: [&'static str; 4]| {
            for (point, _) in points.into_iter().zip(kinds).filter(|(_, there)| *there) {
                crash::point(point);
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
