//! Writer shards. While one transaction commits, the next one is decoded. After an unknown outcome the same transaction
//! runs again: the fence tells what was written.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::account_receiver::AcceptedBatch;
use super::row_mapping::decode;
use super::transaction_batching::{
    AccountPart, LaneId, MAX_ROWS, PartReceipts, QueuedBatch, ShardQueue, TransactionDraft,
};
use super::{Caching, LaneOutcome, Mailbox, REQUEST_TIMEOUT, with_timeout};
use kubesvc_core::AgentId;
use kubesvc_runtime::crash_points;
use kubesvc_runtime::shutdown::spawn_named;
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_store::{AccountBatch, BatchOutcome, FenceCheck, RowLimit, StoreError};

/// Time limit for the running transaction at shutdown.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of refused rows per transaction that are logged by name.
const MAX_LOGGED_ROWS: usize = 5;
/// Number of consecutive failures after which the operator reports that the database is unavailable.
const FAILURES_UNTIL_KNOWN: u32 = 2;

/// The queue of one shard.
#[derive(Default)]
pub(super) struct Shard {
    queue: Mutex<ShardQueue<QueuedObjects>>,
    arrived: Notify,
    /// Reason for which the running transaction does not finish.
    problem: Mutex<Option<String>>,
}

/// A batch, with the receipt for its outcome.
pub(super) struct QueuedObjects {
    batch: AcceptedBatch,
    agent_id: AgentId,
    receipt: Receipt,
}

/// Recipient of a batch's outcome, and the inputs of its lag.
struct Receipt {
    mailbox: Arc<Mailbox>,
    arrived: Instant,
    /// For each event: milliseconds at the agent, and whether it was read from a list.
    held: Vec<(u32, bool)>,
}

impl Shard {
    pub(super) fn open_lane(&self, lane: LaneId) {
        self.queue.lock().open(lane);
    }

    pub(super) fn close_lane(&self, lane: LaneId) {
        self.queue.lock().close(lane);
    }

    /// Adds a batch, whose outcome goes to `mailbox`.
    pub(super) fn push(&self, batch: AcceptedBatch, agent_id: &AgentId, mailbox: &Arc<Mailbox>) {
        let held = batch.events.iter().map(|event| (event.event.held_ms, event.is_listed)).collect();
        let receipt = Receipt { mailbox: Arc::clone(mailbox), arrived: Instant::now(), held };
        let (lane, size) = (batch.lane, batch.size);
        let payload = QueuedObjects { batch, agent_id: agent_id.clone(), receipt };
        self.queue.lock().push(QueuedBatch { lane, size, payload });
        self.arrived.notify_one();
    }

    /// Reason for which objects cannot be written at present.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Takes the next batch if it fits.
    fn take(&self, draft: &TransactionDraft<Receipt>, limit: &RowLimit) -> Option<QueuedObjects> {
        let mut queue = self.queue.lock();
        let size = queue.next_size()?;
        if draft.has_room_for(size, limit) { Some(queue.take()?.payload) } else { None }
    }

    fn take_open(&self, draft: &mut TransactionDraft<Receipt>) -> Vec<AccountPart<Receipt>> {
        let queue = self.queue.lock();
        draft.take(|lane| queue.is_open(lane))
    }
}

/// Runs a shard until it is stopped.
pub(super) async fn run(caching: Arc<Caching>, shard: usize, stop: CancellationToken) {
    let queue = &caching.shards[shard];
    let (mut draft, mut limit) = (TransactionDraft::default(), RowLimit::at_most(MAX_ROWS));
    let mut running: Option<AbortOnDropHandle<RowLimit>> = None;
    while !stop.is_cancelled() {
        while let Some(batch) = queue.take(&draft, &limit) {
            draft.add(caching.decode(batch));
            // Lets other tasks of this thread run.
            tokio::task::yield_now().await;
        }
        if running.is_none() && !draft.is_empty() {
            let parts = queue.take_open(&mut draft);
            if !parts.is_empty() {
                let commit = Commit::new(&caching, shard, limit);
                running = Some(spawn_named("cache commit", commit.run(parts)));
            }
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = queue.arrived.notified() => {}
            committed = ended(&mut running) => {
                running = None;
                limit = committed;
            }
        }
    }
    if let Some(mut running) = running {
        // Agents send uncommitted batches again, wherever they connect.
        let _ = tokio::time::timeout(STOP_TIMEOUT, &mut running).await;
    }
}

/// Waits for the end of the running transaction; forever if there is none.
async fn ended(running: &mut Option<AbortOnDropHandle<RowLimit>>) -> RowLimit {
    let Some(running) = running else { return std::future::pending().await };
    match running.await {
        Ok(limit) => limit,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime shuts down.
            Err(_) => std::future::pending().await,
        },
    }
}

impl Caching {
    fn decode(&self, queued: QueuedObjects) -> super::transaction_batching::DecodedBatch<Receipt> {
        let QueuedObjects { batch, agent_id, receipt } = queued;
        let (uid, format) = (Arc::clone(&batch.uid), self.ports.settings.body_format);
        let (decoded, left_out) = decode(batch, agent_id, &*self.ports.mapper, format, receipt);
        if !left_out.is_empty() {
            self.metrics.refused_rows.inc_by(u64::try_from(left_out.len()).unwrap_or(u64::MAX));
            let rows: Vec<_> = left_out.iter().take(MAX_LOGGED_ROWS).map(|why| chain(why)).collect();
            self.log_refused(&uid, &rows, left_out.len());
        }
        decoded
    }

    /// Logs rows that cannot be stored, by their keys only.
    fn log_refused(&self, uid: &str, rows: &[String], count: usize) {
        if self.context.may_log("refused_rows", None) {
            warn!(uid, count, ?rows, "objects cannot be stored as they are");
        }
    }
}

/// A transaction, until all its batches are settled.
struct Commit {
    caching: Arc<Caching>,
    shard: usize,
    limit: RowLimit,
}

type Part = (AccountBatch, PartReceipts<Receipt>);

impl Commit {
    fn new(caching: &Arc<Caching>, shard: usize, limit: RowLimit) -> Self {
        Self { caching: Arc::clone(caching), shard, limit }
    }

    /// Commits the parts, and reports each. A transaction that the database refuses or does not finish in time is
    /// split, down to one account. Returns the limit for the next one.
    async fn run(mut self, parts: Vec<AccountPart<Receipt>>) -> RowLimit {
        let parts: Vec<Part> = parts.into_iter().map(AccountPart::into_batch).collect();
        let mut waiting = vec![parts];
        let mut failures = 0;
        while let Some(parts) = waiting.pop() {
            let (batches, receipts): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            let begun = Instant::now();
            let written = self.write(&batches).await;
            let took = begun.elapsed();
            self.caching.metrics.transaction_seconds.observe(took.as_secs_f64());
            match written {
                Ok(outcomes) => {
                    self.caching.retries.succeeded_after(std::mem::take(&mut failures));
                    *self.caching.shards[self.shard].problem.lock() = None;
                    let rows = batches.iter().map(|batch| batch.upserts.len() + batch.deletes.len()).sum();
                    self.limit.record(took, rows);
                    self.caching.metrics.transactions.inc();
                    let parts = batches.iter().zip(receipts).zip(outcomes);
                    parts.for_each(|((batch, receipts), outcome)| self.report(batch, receipts, outcome));
                }
                Err(error) => {
                    failures += 1;
                    let is_late = took >= REQUEST_TIMEOUT;
                    if is_late {
                        self.limit.halve();
                    }
                    self.log(&error);
                    if failures >= FAILURES_UNTIL_KNOWN {
                        *self.caching.shards[self.shard].problem.lock() = Some(error.in_full());
                    }
                    let mut parts: Vec<_> = batches.into_iter().zip(receipts).collect();
                    let is_refused = matches!(error, StoreError::Refused { .. });
                    if (is_refused || is_late) && parts.len() > 1 {
                        let second = parts.split_off(parts.len() / 2);
                        waiting.extend([second, parts]);
                    } else {
                        waiting.push(parts);
                    }
                    self.caching.retries.wait(failures).await;
                }
            }
        }
        self.limit
    }

    async fn write(&self, batches: &[AccountBatch]) -> Result<Vec<BatchOutcome>, StoreError> {
        crash_points::point("cache-commit:before");
        let outcomes = with_timeout(self.caching.ports.store.write_objects(batches)).await?;
        crash_points::point("cache-commit:after");
        Ok(outcomes)
    }

    fn report(&self, batch: &AccountBatch, receipts: PartReceipts<Receipt>, outcome: BatchOutcome) {
        let PartReceipts { uid, lane, last, receipts } = receipts;
        let check = match outcome {
            BatchOutcome::Committed { written, refused } => {
                self.count(batch, &receipts, (written, &refused));
                FenceCheck::Passed
            }
            BatchOutcome::Stopped(check) => check,
        };
        if !matches!(check, FenceCheck::Passed | FenceCheck::Done) {
            // Later batches of this lane do not pass the fence either.
            self.caching.shards[self.shard].close_lane(lane);
        }
        // All batches of a lane belong to one stream.
        if let Some(receipt) = receipts.first() {
            receipt.mailbox.post(LaneOutcome { uid, lane, seq: last, check });
        }
    }

    fn count(&self, batch: &AccountBatch, receipts: &[Receipt], (written, refused): (usize, &[String])) {
        let metrics = &self.caching.metrics;
        let count = |rows: usize| u64::try_from(rows).unwrap_or(u64::MAX);
        metrics.rows_written.inc_by(count(written));
        metrics.rows_deleted.inc_by(count(batch.deletes.len()));
        if !refused.is_empty() {
            metrics.refused_rows.inc_by(count(refused.len()));
            let named = &refused[..refused.len().min(MAX_LOGGED_ROWS)];
            self.caching.log_refused(&batch.claim.uid, named, refused.len());
        }
        for receipt in receipts {
            let here = receipt.arrived.elapsed();
            for (held_ms, is_listed) in &receipt.held {
                let lag = here + Duration::from_millis(u64::from(*held_ms));
                metrics.observe_lag(*is_listed, lag.as_secs_f64());
            }
        }
    }

    fn log(&self, error: &StoreError) {
        if self.caching.context.may_log("cache", None) {
            warn!(error = error.in_full(), "cannot write objects; retrying");
        }
    }
}

/// First and maximum delay after a database failure, before jitter of up to half as much again.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Failed database requests of a replica that wait for a retry.
#[derive(Debug, Default)]
pub(super) struct DatabaseRetries {
    /// Notified when a request succeeds after one that failed.
    recovered: Notify,
}

impl DatabaseRetries {
    /// Waits before the retry of a request after this many consecutive failures.
    pub(super) async fn wait(&self, failures: u32) {
        tokio::select! {
            () = self.recovered.notified() => {}
            () = tokio::time::sleep(delay(failures)) => {}
        }
    }

    /// Records a success after this many consecutive failures.
    pub(super) fn succeeded_after(&self, failures: u32) {
        if failures > 0 {
            self.recovered.notify_waiters();
        }
    }
}

fn delay(failures: u32) -> Duration {
    let [first, longest] = RETRY_DELAYS;
    let delay = first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1).min(10))).min(longest);
    delay.mul_f64(1.0 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_grow_to_a_few_seconds() {
        let retries = DatabaseRetries::default();
        for (failures, seconds) in [(1, 1), (2, 2), (3, 4), (4, 5), (100, 5)] {
            let begun = Instant::now();
            retries.wait(failures).await;
            let (took, least) = (begun.elapsed(), Duration::from_secs(seconds));
            assert!(took >= least && took <= least.mul_f64(1.51), "{failures}: {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_go_on_when_one_finds_the_database_back_and_not_when_one_never_lost_it() {
        let retries = DatabaseRetries::default();
        let begun = Instant::now();
        let mut waiting = Box::pin(futures::future::join(retries.wait(100), retries.wait(100)));
        assert!((&mut waiting).now_or_never().is_none());
        retries.succeeded_after(0);
        assert!((&mut waiting).now_or_never().is_none());
        retries.succeeded_after(1);
        waiting.await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
