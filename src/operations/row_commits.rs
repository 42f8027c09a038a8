//! Commits the rows that somebody waits for. The store has one connection that writes, so the rows that come while a
//! transaction runs share the next one: a row waits for two commits at most, however many operations run.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use kubesvc_store::{
    MAX_OPERATIONS, OpenOperation, OperationChanges, OperationRecord, OperationStore, StoreError,
};

/// What is recorded instead of a row that was left out: the operation that has the id, or the end that somebody else gave it.
type Committed = Result<Option<OperationRecord>, StoreError>;

/// A row, and the one who waits for it.
#[derive(Debug)]
struct AwaitedRow {
    row: OperationRow,
    done: oneshot::Sender<Committed>,
}

/// A row of an operation.
#[derive(Debug)]
pub(super) enum OperationRow {
    /// The first one.
    Begun(Box<OpenOperation>),
    /// A later one.
    Open(Box<OpenOperation>),
    /// Its end.
    End(Box<OperationRecord>),
}

impl OperationRow {
    fn id(&self) -> &str {
        match self {
            Self::Begun(open) | Self::Open(open) => &open.record.operation_id,
            Self::End(record) => &record.operation_id,
        }
    }
}

/// The rows that somebody waits for, and their writer.
pub(super) struct RowCommits {
    store: Arc<dyn OperationStore>,
    sender: mpsc::Sender<AwaitedRow>,
    receiver: Mutex<mpsc::Receiver<AwaitedRow>>,
}

impl RowCommits {
    pub(super) fn new(store: Arc<dyn OperationStore>) -> Self {
        let (sender, receiver) = mpsc::channel(MAX_OPERATIONS);
        Self { store, sender, receiver: Mutex::new(receiver) }
    }

    /// Commits a row, after those of the operation that came before, also if they are not waited for any more.
    pub(super) async fn commit(&self, row: OperationRow) -> Committed {
        let (done, committed) = oneshot::channel();
        let stops = || StoreError::unavailable("this replica stops");
        self.sender.send(AwaitedRow { row, done }).await.map_err(|_| stops())?;
        committed.await.unwrap_or_else(|_| Err(stops()))
    }

    /// Commits rows until `stop`, then the last ones; later ones are refused.
    pub(super) async fn run(&self, stop: CancellationToken) {
        let mut receiver = self.receiver.lock().await;
        loop {
            let mut rows = Vec::new();
            let received = receiver.recv_many(&mut rows, MAX_OPERATIONS);
            if stop.run_until_cancelled(received).await.is_none() {
                // What is there is received at once, then nothing.
                receiver.close();
                receiver.recv_many(&mut rows, MAX_OPERATIONS).await;
            }
            if rows.is_empty() {
                return;
            }
            self.write(rows).await;
        }
    }

    /// Writes rows in one transaction; one by one if one of them is refused.
    async fn write(&self, rows: Vec<AwaitedRow>) {
        let written = self.store.write_operations(&changes(&rows)).await;
        if !matches!(written, Err(StoreError::Refused { .. })) {
            return answer(rows, &written);
        }
        for row in rows {
            let row = vec![row];
            let written = self.store.write_operations(&changes(&row)).await;
            answer(row, &written);
        }
    }
}

/// The rows of one transaction.
fn changes(rows: &[AwaitedRow]) -> OperationChanges {
    let mut changes = OperationChanges::default();
    for AwaitedRow { row, .. } in rows {
        match row {
            OperationRow::Begun(open) => changes.begun.push((**open).clone()),
            OperationRow::Open(open) => changes.open.push((**open).clone()),
            OperationRow::End(record) => changes.ends.push((**record).clone()),
        }
    }
    changes
}

/// Tells those who wait what became of their rows, in a transaction that left out those with these records.
fn answer(rows: Vec<AwaitedRow>, written: &Result<Vec<OperationRecord>, StoreError>) {
    for AwaitedRow { row, done } in rows {
        let instead = |left_out: &Vec<OperationRecord>| {
            left_out.iter().find(|record| record.operation_id == row.id()).cloned()
        };
        // The one who waited may have given up.
        let _ = done.send(written.as_ref().map(instead).map_err(Clone::clone));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use futures::future::join_all;

    use super::*;
    use crate::operations::records::open;
    use crate::operations::tests::fakes::{MemoryRows, received};

    fn begun(id: &str) -> OperationRow {
        OperationRow::Begun(Box::new(open(received(id, "Scale", "a", 0), 1, true)))
    }

    fn commits() -> (Arc<RowCommits>, Arc<MemoryRows>, CancellationToken) {
        let (rows, stop) = (Arc::<MemoryRows>::default(), CancellationToken::new());
        let commits = Arc::new(RowCommits::new(Arc::<MemoryRows>::clone(&rows)));
        let (running, until) = (Arc::clone(&commits), stop.clone());
        tokio::spawn(async move { running.run(until).await });
        (commits, rows, stop)
    }

    #[tokio::test(start_paused = true)]
    async fn rows_that_come_while_a_transaction_runs_share_the_next_one() {
        let (commits, rows, _stop) = commits();
        *rows.next_takes.lock() = Duration::from_secs(1);
        let ids = (0..100).map(|number| number.to_string());
        let first = commits.commit(begun("first"));
        let later = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            join_all(ids.map(|id| commits.commit(begun(&id)))).await
        };
        let (first, later) = tokio::join!(first, later);
        assert!(matches!(first, Ok(None)) && later.iter().all(|one| matches!(one, Ok(None))));
        assert_eq!((rows.writes.load(Ordering::Relaxed), rows.open.lock().len()), (2, 101));
    }

    #[tokio::test(start_paused = true)]
    async fn a_row_that_is_left_out_is_answered_with_what_is_recorded() {
        let (commits, _rows, _stop) = commits();
        let (one, other) = tokio::join!(commits.commit(begun("a")), commits.commit(begun("b")));
        assert!(matches!((one, other), (Ok(None), Ok(None))));
        let there = commits.commit(begun("a")).await.expect("the database is there");
        assert_eq!(there.expect("it is taken").operation_id, "a");
        let end = OperationRow::End(Box::new(received("a", "Scale", "a", 0)));
        assert_eq!(commits.commit(end).await.expect("the database is there"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_stops_commits_what_it_has_and_refuses_what_comes_later() {
        let (commits, rows, stop) = commits();
        *rows.next_takes.lock() = Duration::from_secs(1);
        let stopping = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            stop.cancel();
        };
        let second = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            commits.commit(begun("second")).await
        };
        let (first, second, ()) = tokio::join!(commits.commit(begun("first")), second, stopping);
        assert!(matches!((first, second), (Ok(None), Ok(None))));
        assert!(commits.commit(begun("late")).await.is_err());
        assert_eq!(rows.open.lock().len(), 2);
    }
}
