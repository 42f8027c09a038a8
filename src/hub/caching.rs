//! Streams of cached objects: agents send the changes of their accounts' clusters, and the hub writes them.
//!
//! | module | owns |
//! |---|---|
//! | [`opening`] | the first frame, and the session that it names |
//! | [`stream`] | the loop of one stream: frames, answers, credit |
//! | [`progress_reads`] | database reads of a stream: progress of accounts, rows of a scope |
//! | [`stream_delivery`], [`account_receiver`] | decisions about Begin, Batch and End; pure |
//! | [`scopes`], [`batch_check`], [`resume`], [`basis`] | declared scopes, bounds of a batch, answers; pure |
//! | [`credit_pool`] | uncommitted bytes of each stream, and loans; pure |
//! | [`outbox`] | frames that wait to be sent; pure |
//! | [`transaction_batching`] | queues of a writer shard, and its transactions; pure |
//! | [`row_mapping`] | the port that names rows, and the decoding of bodies; no I/O |
//! | [`writer`] | the writer shards: decode, commit, retry; the retry times of database requests |
//! | [`metrics`] | `kubesvc_cache_*` |
//!
//! A stream is bound to the session that its first frame names, and ends with it. Its loop always reads: credit bounds
//! its input. Batches go to the shard of their account, outcomes come back through the stream's [`Mailbox`]. The fence
//! in the database decides whether a batch is written; nothing here decides which agent may write.

mod account_receiver;
mod basis;
mod batch_check;
mod credit_pool;
#[cfg(test)]
mod delivery_model;
mod metrics;
mod opening;
mod outbox;
mod progress_reads;
mod resume;
mod row_mapping;
mod scopes;
mod stream;
mod stream_delivery;
mod transaction_batching;
mod writer;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::hub::agent_admission::draining::Draining;
use crate::hub::context::HubContext;
use crate::hub::sessions::Sessions;
use crate::hub::sessions::session::identified::Identified;
use credit_pool::{CreditPool, StreamId};
use kubesvc_core::wire::events::{CacheDown, CacheUp};
use kubesvc_core::wire::ops::CachingRules;
use kubesvc_core::{KubesvcAccount, SessionId};
use kubesvc_runtime::background_tasks::BackgroundTasks;
use kubesvc_store::{CacheStore, FenceCheck, StoreError};
use metrics::CacheMetrics;
use transaction_batching::{LaneId, shard_of};
use writer::{DatabaseRetries, Shard};

#[cfg(test)]
pub(crate) use row_mapping::object_row;
pub use row_mapping::{BodyFormat, RowMapper};

/// Time limit for one request to the database.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of concurrent reads of accounts' progress.
const MAX_PROGRESS_READS: usize = 4;

/// Sender into an agent's stream.
type CacheDownSender = mpsc::Sender<Result<CacheDown, Status>>;

/// Settings of the streams of cached objects.
#[derive(Clone, Debug)]
pub struct CachingSettings {
    /// Maximum number of bytes lent to all streams together: `kubesvc.cache.pendingBytes`.
    pub pending_bytes: u64,
    /// Number of writer shards: `kubesvc.cache.writers`.
    pub writers: usize,
    /// Storage format of bodies: `kubesvc.cache.bodyFormat`.
    pub body_format: BodyFormat,
}

/// Source of the rules by which an agent chooses the objects of an account.
pub trait CachingRuleSource: Send + Sync {
    /// Returns the rules from the operator's settings and this spec.
    fn rules(&self, account: &KubesvcAccount) -> CachingRules;
}

/// Ports of the streams of cached objects, besides the rest of the hub.
pub struct CachePorts {
    pub store: Arc<dyn CacheStore>,
    /// Names the rows.
    pub mapper: Arc<dyn RowMapper>,
    /// Rules for the agents' choice of objects.
    pub rules: Arc<dyn CachingRuleSource>,
    pub settings: CachingSettings,
}

/// The streams of cached objects of this replica, and their writers.
pub(crate) struct Caching {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    draining: Arc<Draining>,
    ports: CachePorts,
    metrics: CacheMetrics,
    credit: Mutex<CreditPool>,
    streams: Mutex<OpenStreams>,
    shards: Vec<Shard>,
    next_stream: AtomicU64,
    next_lane: AtomicU64,
    progress_reads: Semaphore,
    /// One permit: bases are read one at a time, over a shared connection.
    basis_reads: Semaphore,
    retries: DatabaseRetries,
}

/// The open streams, and the current one of each session.
#[derive(Default)]
struct OpenStreams {
    mailboxes: HashMap<StreamId, Arc<Mailbox>>,
    by_session: HashMap<SessionId, (StreamId, CancellationToken)>,
}

/// Input of a stream from other tasks; its loop empties it.
#[derive(Default)]
pub(super) struct Mailbox {
    mail: Mutex<Mail>,
    arrived: Notify,
}

#[derive(Default)]
struct Mail {
    /// Bounded by the batches that the stream has queued.
    outcomes: Vec<LaneOutcome>,
    /// Bytes lent to the stream.
    credit: u64,
}

/// Result of the fence check for the batches of a lane up to a number.
struct LaneOutcome {
    uid: Arc<str>,
    lane: LaneId,
    seq: i64,
    check: FenceCheck,
}

impl Mailbox {
    fn post(&self, outcome: LaneOutcome) {
        self.mail.lock().outcomes.push(outcome);
        self.arrived.notify_one();
    }

    fn lend(&self, bytes: u64) {
        self.mail.lock().credit += bytes;
        self.arrived.notify_one();
    }

    fn take(&self) -> Mail {
        std::mem::take(&mut *self.mail.lock())
    }
}

impl Caching {
    pub(super) fn new(
        context: Arc<HubContext>,
        sessions: Arc<Sessions>,
        draining: Arc<Draining>,
        ports: CachePorts,
    ) -> Self {
        let CachingSettings { pending_bytes, writers, .. } = ports.settings;
        Self {
            context,
            sessions,
            draining,
            ports,
            metrics: CacheMetrics::default(),
            credit: Mutex::new(CreditPool::new(pending_bytes)),
            streams: Mutex::default(),
            shards: (0..writers.max(1)).map(|_| Shard::default()).collect(),
            next_stream: AtomicU64::new(1),
            next_lane: AtomicU64::new(1),
            progress_reads: Semaphore::new(MAX_PROGRESS_READS),
            basis_reads: Semaphore::new(1),
            retries: DatabaseRetries::default(),
        }
    }

    /// Runs the stream of an agent until it ends.
    pub(super) async fn run(
        self: Arc<Self>,
        inbound: Streaming<CacheUp>,
        sink: CacheDownSender,
        identity: Option<Identified>,
    ) {
        stream::run(self, inbound, sink, identity).await;
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let pool = self.ports.settings.pending_bytes;
        self.metrics.pool_bytes.set(i64::try_from(pool).unwrap_or(i64::MAX));
        self.metrics.register(registry);
    }

    /// Returns the counter of rows that the leader swept.
    pub(super) fn swept_rows(&self) -> Counter {
        self.metrics.swept_rows.clone()
    }

    /// Reason for which objects cannot be written at present, if any.
    pub(super) fn problem(&self) -> Option<String> {
        self.shards.iter().find_map(Shard::problem)
    }

    fn shard(&self, uid: &str) -> &Shard {
        &self.shards[shard_of(uid, self.shards.len())]
    }

    fn next_lane(&self) -> LaneId {
        self.next_lane.fetch_add(1, Ordering::Relaxed)
    }

    /// Lends free bytes to the streams that wait for a loan.
    fn lend(&self) {
        let loans = {
            let mut credit = self.credit.lock();
            let loans = credit.lend(self.context.moment());
            // Set under the lock, or an older number could overwrite a newer one.
            self.metrics.lent_bytes.set(i64::try_from(credit.lent()).unwrap_or(i64::MAX));
            self.metrics.streams_waiting.set(i64::try_from(credit.waiting()).unwrap_or(i64::MAX));
            loans
        };
        if loans.is_empty() {
            return;
        }
        let streams = self.streams.lock();
        for (stream, bytes) in loans {
            // The loan of an ended stream is returned at its end.
            if let Some(mailbox) = streams.mailboxes.get(&stream) {
                mailbox.lend(bytes);
            }
        }
    }
}

async fn with_timeout<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = |_| Err(StoreError::unavailable("it does not answer"));
    tokio::time::timeout(REQUEST_TIMEOUT, request).await.unwrap_or_else(late)
}

/// Starts the writer shards.
pub(super) fn start(background: &BackgroundTasks, caching: &Arc<Caching>) {
    for shard in 0..caching.shards.len() {
        let (caching, stop) = (Arc::clone(caching), caching.context.stopping.clone());
        let description = "Writes the changes of objects that agents stream";
        background.spawn("cache writer", description, writer::run(caching, shard, stop));
    }
}
