//! Writes the rows of operations off the critical path: in batches each 100 ms, or at once if somebody waits for one.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::metrics::OperationMetrics;
use super::pending_rows::{OperationRowChange, PendingRow, PendingRows, changes};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_store::{
    MAX_OPERATIONS, OpenOperation, OperationChanges, OperationRecord, OperationStore, StoreError,
};

/// Time in which rows are gathered that nobody waits for.
const GATHER: Duration = Duration::from_millis(100);
/// Delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time limit for the last rows when the replica stops.
const LAST_ROWS_TIMEOUT: Duration = Duration::from_secs(5);

type Waiter = oneshot::Sender<Result<Committed, StoreError>>;

/// What became of the row of an open operation.
#[derive(Clone, Debug)]
pub(super) enum Committed {
    /// It is committed.
    Open,
    /// It was left out: somebody has settled the operation, which has this end.
    Ended(Box<OperationRecord>),
}

/// The rows that wait, and their writer.
pub(super) struct RowQueue {
    store: Arc<dyn OperationStore>,
    pending: Mutex<PendingRows<Waiter>>,
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
        self.add(OperationRowChange::Open(Box::new(open)), None);
    }

    /// Queues the end of an operation.
    pub(super) fn end(&self, record: OperationRecord) {
        self.add(OperationRowChange::End(Box::new(record)), None);
    }

    /// Writes the row of an open operation and waits for its commit. If that fails, or the operation has ended, no row is
    /// left to be written.
    pub(super) async fn commit(&self, open: OpenOperation) -> Result<Committed, StoreError> {
        let id = open.record.operation_id.clone();
        let committed = self.commit_change(&id, || OperationRowChange::Open(Box::new(open))).await;
        if committed.is_err() {
            let mut pending = self.pending.lock();
            pending.remove_open(&id);
            self.show_waiting(&pending);
        }
        committed
    }

    /// Writes a row of an operation and waits for its commit. If that fails, the row waits on. It is made while the rows
    /// are locked, so that it replaces none that says more.
    pub(super) async fn commit_change(
        &self,
        id: &str,
        change: impl FnOnce() -> OperationRowChange,
    ) -> Result<Committed, StoreError> {
        let (waiter, committed) = oneshot::channel();
        {
            let mut pending = self.pending.lock();
            self.add_to(&mut pending, change(), Some(waiter));
        }
        let dropped = || StoreError::unavailable("its row had no room among those that wait");
        let committed = committed.await.unwrap_or_else(|_| Err(dropped()));
        if let Ok(Committed::Ended(_)) = &committed {
            let mut pending = self.pending.lock();
            pending.forget(id);
            self.show_waiting(&pending);
        }
        committed
    }

    /// Notes that an operation has a row among the open ones that was not written here.
    pub(super) fn note_stored(&self, id: &str) {
        self.pending.lock().note_stored(id);
    }

    /// Whether an operation has a row among the open ones that is to be ended here.
    pub(super) fn is_stored(&self, id: &str) -> bool {
        self.pending.lock().is_stored(id)
    }

    /// Queues the row of an open operation, unless it has one among the open ones: then returns it, since what the
    /// operation does next must be committed before.
    pub(super) fn put_unless_stored(&self, open: OpenOperation) -> Option<OpenOperation> {
        let mut pending = self.pending.lock();
        if pending.is_stored(&open.record.operation_id) {
            return Some(open);
        }
        self.add_to(&mut pending, OperationRowChange::Open(Box::new(open)), None);
        None
    }

    /// Waits until the rows that wait now, and those that are being written, are committed, or until the time limit. Rows
    /// that come later are not waited for: under load there are always some.
    pub(super) async fn flush(&self, within: Duration) {
        let mut written = self.written.subscribe();
        let last = self.pending.lock().last_batch(MAX_OPERATIONS);
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

    fn add(&self, change: OperationRowChange, waiter: Option<Waiter>) {
        self.add_to(&mut self.pending.lock(), change, waiter);
    }

    /// Wakes the writer for a row that somebody waits for, and for the first one. Which one is the first is decided while
    /// the rows are locked: of two that are added at once, each would take the other for it.
    fn add_to(&self, pending: &mut PendingRows<Waiter>, change: OperationRowChange, waiter: Option<Waiter>) {
        let wakes = waiter.is_some() || pending.len() == 0;
        if pending.add(change, waiter).is_some() {
            self.metrics.rows_dropped.inc();
        }
        self.show_waiting(pending);
        if wakes {
            self.wake.notify_one();
        }
    }

    /// Shows how many rows wait, with those that are being written.
    fn show_waiting(&self, pending: &PendingRows<Waiter>) {
        self.metrics.rows_waiting.set(i64::try_from(pending.unwritten()).unwrap_or(i64::MAX));
    }

    /// Writes rows until `stop`, then the last ones.
    pub(super) async fn run(&self, stop: CancellationToken) {
        while stop.run_until_cancelled(self.wake.notified()).await.is_some() {
            while self.len() > 0 {
                if !self.pending.lock().is_awaited() {
                    let gathering = async {
                        tokio::select! {
                            () = sleep(GATHER) => {}
                            () = self.wake.notified() => {}
                        }
                    };
                    if stop.run_until_cancelled(gathering).await.is_none() {
                        break;
                    }
                }
                if !self.write_some().await && stop.run_until_cancelled(sleep(RETRY_DELAY)).await.is_none() {
                    break;
                }
            }
        }
        let last = async { while self.len() > 0 && self.write_some().await {} };
        let _ = timeout(LAST_ROWS_TIMEOUT, last).await;
        let rows = self.pending.lock().unwritten();
        if rows > 0 {
            warn!(rows, "rows of operations were not written before the replica stopped");
        }
    }

    /// Writes the oldest rows. Returns false if the database cannot be used now.
    async fn write_some(&self) -> bool {
        let taken = self.pending.lock().take(MAX_OPERATIONS);
        let written = self.write(&changes(&taken)).await;
        let is_up = match written {
            Ok(left_out) => {
                self.settled(taken, &Ok(left_out));
                true
            }
            Err(StoreError::Refused { .. }) if taken.len() > 1 => self.write_each(taken).await,
            Err(error @ StoreError::Refused { .. }) => {
                warn!(
                    error = error.in_full(),
                    "the database refuses the row of an operation, which is dropped"
                );
                self.metrics.rows_dropped.inc();
                self.settled(taken, &Err(error));
                true
            }
            Err(error) => {
                warn_unless_away!(error = error.in_full(), "cannot write operations; retrying");
                self.put_back(taken, &error);
                false
            }
        };
        self.written.send_modify(|count| *count += 1);
        self.show_waiting(&self.pending.lock());
        is_up
    }

    /// Writes rows one by one, because one of them is refused.
    async fn write_each(&self, rows: Vec<PendingRow<Waiter>>) -> bool {
        let mut rows = rows.into_iter();
        while let Some(row) = rows.next() {
            let row = vec![row];
            match self.write(&changes(&row)).await {
                Ok(left_out) => self.settled(row, &Ok(left_out)),
                Err(error @ StoreError::Refused { .. }) => {
                    warn!(
                        error = error.in_full(),
                        "the database refuses the row of an operation, which is dropped"
                    );
                    self.metrics.rows_dropped.inc();
                    self.settled(row, &Err(error));
                }
                Err(error) => {
                    self.put_back(row.into_iter().chain(rows).collect(), &error);
                    return false;
                }
            }
        }
        true
    }

    async fn write(&self, changes: &OperationChanges) -> Result<Vec<OperationRecord>, StoreError> {
        crash_points::around(Some("operation-rows"), self.store.write_operations(changes)).await
    }

    /// Tells those who wait what became of rows: written, but for the open ones with these ends, or never to be.
    fn settled(&self, rows: Vec<PendingRow<Waiter>>, result: &Result<Vec<OperationRecord>, StoreError>) {
        let written: Vec<_> = rows.iter().map(|row| &row.change).collect();
        self.pending.lock().written(&written);
        for PendingRow { change, waiters, .. } in rows {
            for waiter in waiters {
                let committed = match result {
                    Ok(left_out) => Ok(committed(&change, left_out)),
                    Err(error) => Err(error.clone()),
                };
                // The one who waited may have given up.
                let _ = waiter.send(committed);
            }
        }
    }

    /// Keeps rows for later, and tells those who wait that they were not written.
    fn put_back(&self, mut rows: Vec<PendingRow<Waiter>>, error: &StoreError) {
        let waiters: Vec<_> = rows.iter_mut().flat_map(|row| std::mem::take(&mut row.waiters)).collect();
        self.pending.lock().put_back(rows);
        for waiter in waiters {
            let _ = waiter.send(Err(error.clone()));
        }
    }
}

/// What became of a row in a transaction that left out the open rows with these ends.
fn committed(change: &OperationRowChange, left_out: &[OperationRecord]) -> Committed {
    let end = match change {
        OperationRowChange::Open(open) => {
            left_out.iter().find(|end| end.operation_id == open.record.operation_id)
        }
        // A person has ended it since its row was queued.
        OperationRowChange::End(end) => Some(&**end),
    };
    end.map_or(Committed::Open, |end| Committed::Ended(Box::new(end.clone())))
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
