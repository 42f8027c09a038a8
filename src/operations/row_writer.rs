//! The writer of the rows of operations.
//!
//! An awaited row is committed before its caller goes on. The store has one connection that writes, so the awaited rows
//! that come while a transaction runs share the next one: each waits for two commits at most, however many operations run.
//! Rows that nobody waits for are queued and written each 100 ms: those of requests through the API of accounts, and ends
//! that could not be written at once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::metrics::OperationMetrics;
use super::pending_rows::PendingRows;
use kubesvc_runtime::crash_points;
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_store::{MAX_OPERATIONS, OperationChange, OperationRecord, OperationStore, StoreError};

/// Time in which queued rows are gathered.
const GATHER: Duration = Duration::from_millis(100);
/// Delay after a failed write of queued rows.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time limit for the last rows when the replica stops.
const LAST_ROWS_TIMEOUT: Duration = Duration::from_secs(5);

/// What is recorded instead of a row that was left out: the operation that has the id, or the end that another gave it.
type Committed = Result<Option<OperationRecord>, StoreError>;

/// A row and its caller.
type AwaitedRow = (OperationChange, oneshot::Sender<Committed>);

/// The rows that are to be written, and their writer.
pub(super) struct RowWriter {
    store: Arc<dyn OperationStore>,
    awaited: mpsc::Sender<AwaitedRow>,
    receiver: tokio::sync::Mutex<mpsc::Receiver<AwaitedRow>>,
    queue: Mutex<PendingRows>,
    /// A row was queued.
    wake: Notify,
    /// A caller waits for the queued rows.
    hurry: Notify,
    /// Counts writes of queued rows that ended.
    written: watch::Sender<u64>,
    metrics: Arc<OperationMetrics>,
}

impl RowWriter {
    pub(super) fn new(store: Arc<dyn OperationStore>, metrics: Arc<OperationMetrics>) -> Self {
        let (awaited, receiver) = mpsc::channel(MAX_OPERATIONS);
        Self {
            store,
            awaited,
            receiver: tokio::sync::Mutex::new(receiver),
            queue: Mutex::default(),
            wake: Notify::new(),
            hurry: Notify::new(),
            written: watch::Sender::new(0),
            metrics,
        }
    }

    /// Commits a row, after the awaited ones that came before it. A row is committed even if its caller leaves.
    pub(super) async fn commit(&self, row: OperationChange) -> Committed {
        let (done, committed) = oneshot::channel();
        let stops = || StoreError::unavailable("this replica stops");
        self.awaited.send((row, done)).await.map_err(|_| stops())?;
        committed.await.unwrap_or_else(|_| Err(stops()))
    }

    /// Queues a row.
    pub(super) fn queue(&self, row: OperationChange) {
        let mut queue = self.queue.lock();
        if queue.add(row) {
            self.metrics.rows_dropped.inc();
        }
        self.show_queued(&queue);
        self.wake.notify_one();
    }

    /// Whether the end of an operation is to be written here.
    pub(super) fn is_unended(&self, id: &str) -> bool {
        self.queue.lock().is_unended(id)
    }

    /// Number of queued rows.
    pub(super) fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Waits until the rows that are queued now are written, within the time limit. Later rows are not waited for: under
    /// load there are always some.
    pub(super) async fn flush(&self, within: Duration) {
        let mut written = self.written.subscribe();
        let last = self.queue.lock().came();
        let flushed = async {
            while !self.queue.lock().is_written(last) {
                self.hurry.notify_one();
                if written.changed().await.is_err() {
                    return;
                }
            }
        };
        // Without the database, what is there is read.
        let _ = timeout(within, flushed).await;
    }

    /// Writes rows until `stop`, then the last ones; later awaited ones are refused.
    pub(super) async fn run(&self, stop: CancellationToken) {
        tokio::join!(self.write_awaited(&stop), self.write_queue(&stop));
    }

    async fn write_awaited(&self, stop: &CancellationToken) {
        let mut receiver = self.receiver.lock().await;
        loop {
            let mut awaited = Vec::new();
            let received = receiver.recv_many(&mut awaited, MAX_OPERATIONS);
            if stop.run_until_cancelled(received).await.is_none() {
                // What is there is received at once, then nothing.
                receiver.close();
                receiver.recv_many(&mut awaited, MAX_OPERATIONS).await;
            }
            if awaited.is_empty() {
                return;
            }
            let (rows, callers): (Vec<_>, Vec<_>) = awaited.into_iter().unzip();
            for (committed, caller) in self.write(&rows).await.into_iter().zip(callers) {
                // A caller may have left.
                let _ = caller.send(committed);
            }
        }
    }

    async fn write_queue(&self, stop: &CancellationToken) {
        while stop.run_until_cancelled(self.wake.notified()).await.is_some() {
            while self.len() > 0 {
                let gathering = timeout(GATHER, self.hurry.notified());
                if stop.run_until_cancelled(gathering).await.is_none() {
                    break;
                }
                if !self.write_oldest().await && stop.run_until_cancelled(sleep(RETRY_DELAY)).await.is_none()
                {
                    break;
                }
            }
        }
        let last = async { while self.len() > 0 && self.write_oldest().await {} };
        let _ = timeout(LAST_ROWS_TIMEOUT, last).await;
        let rows = self.len();
        if rows > 0 {
            warn!(rows, "rows of operations were not written before the replica stopped");
        }
    }

    /// Writes the oldest queued rows, and drops those that the database refuses. Returns false if it cannot be used now.
    async fn write_oldest(&self) -> bool {
        let rows = self.queue.lock().oldest(MAX_OPERATIONS);
        let writing = async {
            let results = self.write(&rows).await;
            if results.iter().all(Result::is_err) { Err(results) } else { Ok(results) }
        };
        let written = crash_points::around(Some("operation-rows"), writing).await;
        let results = written.unwrap_or_else(|results| results);
        let mut is_up = true;
        let mut done = Vec::with_capacity(rows.len());
        for (row, result) in rows.iter().zip(results) {
            match result {
                Ok(_) => done.push(row),
                Err(error @ StoreError::Refused { .. }) => {
                    let error = error.in_full();
                    warn!(error, "the database refuses the row of an operation, which is dropped");
                    self.metrics.rows_dropped.inc();
                    done.push(row);
                }
                Err(error) if is_up => {
                    warn_unless_away!(error = error.in_full(), "cannot write operations; retrying");
                    is_up = false;
                }
                Err(_) => {}
            }
        }
        let mut queue = self.queue.lock();
        queue.remove(done);
        self.show_queued(&queue);
        drop(queue);
        self.written.send_modify(|count| *count += 1);
        is_up
    }

    /// Writes rows in one transaction; one by one if one of them is refused. Returns what became of each.
    async fn write(&self, rows: &[OperationChange]) -> Vec<Committed> {
        let written = self.store.write_operations(rows).await;
        if rows.len() > 1 && matches!(written, Err(StoreError::Refused { .. })) {
            let mut each = Vec::with_capacity(rows.len());
            for row in rows {
                each.push(of_row(row, &self.store.write_operations(std::slice::from_ref(row)).await));
            }
            return each;
        }
        rows.iter().map(|row| of_row(row, &written)).collect()
    }

    fn show_queued(&self, queue: &PendingRows) {
        self.metrics.rows_waiting.set(i64::try_from(queue.len()).unwrap_or(i64::MAX));
    }
}

/// What became of a row in a transaction that left out those with these records.
fn of_row(row: &OperationChange, written: &Result<Vec<OperationRecord>, StoreError>) -> Committed {
    let left_out = written.as_ref().map_err(Clone::clone)?;
    Ok(left_out.iter().find(|record| record.operation_id == row.id()).cloned())
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::Ordering;
    use std::thread;

    use futures::future::join_all;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use crate::operations::records::open;
    use crate::operations::tests::fakes::{MemoryRows, received};

    const QUEUES: usize = 64;
    const ROUNDS: usize = 8;

    fn metrics() -> Arc<OperationMetrics> {
        Arc::new(OperationMetrics::new(Gauge::default(), 100))
    }

    fn begun(id: &str) -> OperationChange {
        OperationChange::Begun(Box::new(open(received(id, "Scale", "a", 0), 1, true)))
    }

    fn commits() -> (Arc<RowWriter>, Arc<MemoryRows>, CancellationToken) {
        let (rows, stop) = (Arc::<MemoryRows>::default(), CancellationToken::new());
        let commits = Arc::new(RowWriter::new(Arc::<MemoryRows>::clone(&rows), metrics()));
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
            sleep(Duration::from_millis(500)).await;
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
        let end = OperationChange::End(Box::new(received("a", "Scale", "a", 0)));
        assert_eq!(commits.commit(end).await.expect("the database is there"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_stops_commits_what_it_has_and_refuses_what_comes_later() {
        let (commits, rows, stop) = commits();
        *rows.next_takes.lock() = Duration::from_secs(1);
        let stopping = async {
            sleep(Duration::from_millis(500)).await;
            stop.cancel();
        };
        let second = async {
            sleep(Duration::from_millis(100)).await;
            commits.commit(begun("second")).await
        };
        let (first, second, ()) = tokio::join!(commits.commit(begun("first")), second, stopping);
        assert!(matches!((first, second), (Ok(None), Ok(None))));
        assert!(commits.commit(begun("late")).await.is_err());
        assert_eq!(rows.open.lock().len(), 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn rows_that_two_add_at_once_to_an_empty_queue_are_written() {
        let queue = || Arc::new(RowWriter::new(Arc::<MemoryRows>::default(), metrics()));
        let (queues, stop) = (Vec::from_iter((0..QUEUES).map(|_| queue())), CancellationToken::new());
        for queue in &queues {
            let (queue, stop) = (Arc::clone(queue), stop.clone());
            tokio::spawn(async move { queue.run(stop).await });
        }
        for round in 0..ROUNDS {
            let (both, queues) = (Barrier::new(2), &queues);
            let adding = |who: &'static str| {
                let both = &both;
                move || {
                    for queue in queues {
                        let row = open(received(&format!("{who}-{round}"), "Scale", "a", 0), 1, true);
                        both.wait();
                        queue.queue(OperationChange::Open(Box::new(row)));
                    }
                }
            };
            tokio::task::block_in_place(|| {
                thread::scope(|scope| ["one", "other"].map(|who| scope.spawn(adding(who))).map(|_| ()));
            });
            let written = async {
                while queues.iter().any(|queue| queue.len() > 0) {
                    sleep(GATHER).await;
                }
            };
            let waiting = || queues.iter().filter(|queue| queue.len() > 0).count();
            assert!(timeout(50 * GATHER, written).await.is_ok(), "{} queues sleep with rows", waiting());
        }
        stop.cancel();
    }
}
