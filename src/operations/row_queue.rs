//! Writes the rows that nobody waits for, in batches each 100 ms: those of requests through the API of accounts, ends of
//! operations that only read, and ends that could not be written at once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::metrics::OperationMetrics;
use super::pending_rows::{PendingRow, PendingRows, changes};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_store::{MAX_OPERATIONS, OpenOperation, OperationRecord, OperationStore, StoreError};

/// Time in which rows are gathered.
const GATHER: Duration = Duration::from_millis(100);
/// Delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time limit for the last rows when the replica stops.
const LAST_ROWS_TIMEOUT: Duration = Duration::from_secs(5);

/// The rows that wait, and their writer.
pub(super) struct RowQueue {
    store: Arc<dyn OperationStore>,
    pending: Mutex<PendingRows>,
    wake: Notify,
    /// Counts writes that ended.
    written: watch::Sender<u64>,
    metrics: Arc<OperationMetrics>,
}

impl RowQueue {
    pub(super) fn new(store: Arc<dyn OperationStore>, metrics: Arc<OperationMetrics>) -> Self {
        Self {
            store,
            pending: Mutex::default(),
            wake: Notify::new(),
            written: watch::Sender::new(0),
            metrics,
        }
    }

    /// Queues the row of an open operation.
    pub(super) fn put(&self, open: OpenOperation) {
        self.add(PendingRow::Open(Box::new(open)));
    }

    /// Queues the end of an operation.
    pub(super) fn end(&self, record: OperationRecord) {
        self.add(PendingRow::End(Box::new(record)));
    }

    /// Whether the end of an operation is to be written here.
    pub(super) fn is_unended(&self, id: &str) -> bool {
        self.pending.lock().is_unended(id)
    }

    /// Writes the rows that wait now, within the time limit. Rows that come later are not waited for: under load there are
    /// always some.
    pub(super) async fn flush(&self, within: Duration) {
        let mut written = self.written.subscribe();
        let last = self.pending.lock().came();
        let flushed = async {
            while !self.pending.lock().is_written(last) {
                self.wake.notify_one();
                if written.changed().await.is_err() {
                    return;
                }
            }
        };
        // Without the database, what is there is read.
        let _ = timeout(within, flushed).await;
    }

    /// Number of rows that wait.
    pub(super) fn len(&self) -> usize {
        self.pending.lock().len()
    }

    /// Adds a row, and wakes the writer for the first one. Which one is the first is decided while the rows are locked: of
    /// two that are added at once, each would take the other for it.
    fn add(&self, row: PendingRow) {
        let mut pending = self.pending.lock();
        let is_first = pending.len() == 0;
        if pending.add(row) {
            self.metrics.rows_dropped.inc();
        }
        self.show_waiting(&pending);
        if is_first {
            self.wake.notify_one();
        }
    }

    fn show_waiting(&self, pending: &PendingRows) {
        self.metrics.rows_waiting.set(i64::try_from(pending.len()).unwrap_or(i64::MAX));
    }

    /// Writes rows until `stop`, then the last ones.
    pub(super) async fn run(&self, stop: CancellationToken) {
        while stop.run_until_cancelled(self.wake.notified()).await.is_some() {
            while self.len() > 0 {
                let gathering = timeout(GATHER, self.wake.notified());
                if stop.run_until_cancelled(gathering).await.is_none() {
                    break;
                }
                if !self.write_some().await && stop.run_until_cancelled(sleep(RETRY_DELAY)).await.is_none() {
                    break;
                }
            }
        }
        let last = async { while self.len() > 0 && self.write_some().await {} };
        let _ = timeout(LAST_ROWS_TIMEOUT, last).await;
        let rows = self.len();
        if rows > 0 {
            warn!(rows, "rows of operations were not written before the replica stopped");
        }
    }

    /// Writes the oldest rows. Returns false if the database cannot be used now.
    async fn write_some(&self) -> bool {
        let oldest = self.pending.lock().oldest(MAX_OPERATIONS);
        let is_up = match self.write(&oldest).await {
            // One of them is refused, which the others do not wait for.
            Err(StoreError::Refused { .. }) => self.write_each(&oldest).await,
            Err(error) => {
                warn_unless_away!(error = error.in_full(), "cannot write operations; retrying");
                false
            }
            Ok(()) => true,
        };
        self.written.send_modify(|count| *count += 1);
        is_up
    }

    /// Writes rows one by one, and drops those that the database refuses.
    async fn write_each(&self, rows: &[PendingRow]) -> bool {
        for row in rows {
            let row = std::slice::from_ref(row);
            match self.write(row).await {
                Ok(()) => {}
                Err(error @ StoreError::Refused { .. }) => {
                    warn!(
                        error = error.in_full(),
                        "the database refuses the row of an operation, which is dropped"
                    );
                    self.metrics.rows_dropped.inc();
                    self.remove(row);
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// Writes rows. One of an open operation that somebody has settled is left out.
    async fn write(&self, rows: &[PendingRow]) -> Result<(), StoreError> {
        let changes = changes(rows);
        crash_points::around(Some("operation-rows"), self.store.write_operations(&changes)).await?;
        self.remove(rows);
        Ok(())
    }

    fn remove(&self, rows: &[PendingRow]) {
        let mut pending = self.pending.lock();
        pending.remove(rows);
        self.show_waiting(&pending);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use crate::operations::records::open;
    use crate::operations::tests::fakes::{MemoryRows, received};

    const QUEUES: usize = 64;
    const ROUNDS: usize = 8;

    #[tokio::test(flavor = "multi_thread")]
    async fn rows_that_two_add_at_once_to_an_empty_queue_are_written() {
        let queue = || {
            let metrics = Arc::new(OperationMetrics::new(Gauge::default(), 100));
            Arc::new(RowQueue::new(Arc::<MemoryRows>::default(), metrics))
        };
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
                        queue.put(row);
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
