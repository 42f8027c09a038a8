//! Assembly of batches into transactions: the queues of one writer shard, and the current transaction. Pure.
//!
//! An account belongs to one shard, so its batches are committed in order. A shard takes whole batches, one per account
//! in turn, until a transaction is full. Batches of one account are merged: of two changes of a row, the later one
//! wins. The maximum number of rows adapts to the duration of transactions.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use indexmap::IndexMap;

use kubesvc_core::{AgentId, CachingEpoch};
use kubesvc_store::{AccountBatch, BatchClaim, ObjectRow, RowLimit, ScopeChange};

/// Maximum number of rows in a transaction of several batches: two full ones, fewer if transactions are slow.
pub(crate) const MAX_ROWS: usize = 512;
/// Maximum size of the bodies in a transaction of several batches, in bytes.
const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;
/// Maximum number of accounts in a transaction.
const MAX_ACCOUNTS: usize = 64;

/// The batches of an account on one stream since its Begin. Unique in this process.
pub(crate) type LaneId = u64;

pub(crate) fn shard_of(uid: &str, shards: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    let shards = u64::try_from(shards.max(1)).unwrap_or(1);
    usize::try_from(hasher.finish() % shards).unwrap_or_default()
}

/// A batch that waits for its transaction.
#[derive(Clone, Debug)]
pub(crate) struct QueuedBatch<B> {
    pub(crate) lane: LaneId,
    pub(crate) size: BatchSize,
    pub(crate) payload: B,
}

/// Size of a batch, for the limits of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchSize {
    pub(crate) rows: usize,
    /// Uncompressed size of the bodies, in bytes.
    pub(crate) body_bytes: usize,
}

/// Queued batches of one shard. Bounded by the credit of the streams.
#[derive(Clone, Debug)]
pub(crate) struct ShardQueue<B> {
    open: HashSet<LaneId>,
    waiting: HashMap<LaneId, VecDeque<QueuedBatch<B>>>,
    /// Lanes with queued batches, in the order of their turns.
    turns: VecDeque<LaneId>,
}

impl<B> Default for ShardQueue<B> {
    fn default() -> Self {
        Self { open: HashSet::new(), waiting: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<B> ShardQueue<B> {
    pub(crate) fn open(&mut self, lane: LaneId) {
        self.open.insert(lane);
    }

    /// Closes a lane and drops its queued batches.
    pub(crate) fn close(&mut self, lane: LaneId) {
        self.open.remove(&lane);
        if self.waiting.remove(&lane).is_some() {
            self.turns.retain(|turn| *turn != lane);
        }
    }

    /// Whether batches of the lane may still be written.
    pub(crate) fn is_open(&self, lane: LaneId) -> bool {
        self.open.contains(&lane)
    }

    /// Adds a batch to its lane. A batch of a closed lane is dropped.
    pub(crate) fn push(&mut self, batch: QueuedBatch<B>) {
        if !self.is_open(batch.lane) {
            return;
        }
        let waiting = self.waiting.entry(batch.lane).or_default();
        if waiting.is_empty() {
            self.turns.push_back(batch.lane);
        }
        waiting.push_back(batch);
    }

    /// Size of the next batch.
    pub(crate) fn next_size(&self) -> Option<BatchSize> {
        self.waiting.get(self.turns.front()?)?.front().map(|batch| batch.size)
    }

    /// Takes the next batch; its lane goes to the end of the turns.
    pub(crate) fn take(&mut self) -> Option<QueuedBatch<B>> {
        let lane = self.turns.pop_front()?;
        let waiting = self.waiting.get_mut(&lane)?;
        let batch = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&lane);
        } else {
            self.turns.push_back(lane);
        }
        batch
    }
}

/// New content of a row; `None` for a deletion.
pub(crate) type RowChange = Option<ObjectRow>;

/// A batch with its rows, ready to be written.
#[derive(Debug)]
pub(crate) struct DecodedBatch<R> {
    pub(crate) lane: LaneId,
    pub(crate) uid: Arc<str>,
    pub(crate) epoch: CachingEpoch,
    pub(crate) account: Arc<str>,
    pub(crate) agent_id: AgentId,
    /// Number of the batch before it.
    pub(crate) prev: i64,
    pub(crate) seq: i64,
    pub(crate) size: BatchSize,
    /// Changes of rows by id, in order.
    pub(crate) changes: Vec<(String, RowChange)>,
    pub(crate) scopes: Vec<ScopeChange>,
    /// Receipt for the report of the commit.
    pub(crate) receipt: R,
}

/// One account's part of the current transaction.
#[derive(Debug)]
pub(crate) struct AccountPart<R> {
    pub(crate) lane: LaneId,
    pub(crate) uid: Arc<str>,
    epoch: CachingEpoch,
    account: Arc<str>,
    agent_id: AgentId,
    committed: i64,
    pub(crate) last: i64,
    changes: IndexMap<String, RowChange>,
    scopes: Vec<ScopeChange>,
    pub(crate) receipts: Vec<R>,
}

impl<R> AccountPart<R> {
    fn new(batch: DecodedBatch<R>) -> Self {
        Self {
            lane: batch.lane,
            uid: batch.uid,
            epoch: batch.epoch,
            account: batch.account,
            agent_id: batch.agent_id,
            committed: batch.prev,
            last: batch.seq,
            changes: batch.changes.into_iter().collect(),
            scopes: batch.scopes,
            receipts: vec![batch.receipt],
        }
    }

    /// Whether a batch is the next one of this part.
    fn is_continued_by(&self, batch: &DecodedBatch<R>) -> bool {
        (self.lane, self.last, self.epoch) == (batch.lane, batch.prev, batch.epoch)
    }

    fn add(&mut self, batch: DecodedBatch<R>) {
        self.last = batch.seq;
        self.changes.extend(batch.changes);
        self.scopes.extend(batch.scopes);
        self.receipts.push(batch.receipt);
    }

    /// Returns the store's input, and the receipts of the batches.
    pub(crate) fn into_batch(self) -> (AccountBatch, PartReceipts<R>) {
        let (mut upserts, mut deletes) = (Vec::new(), Vec::new());
        for (id, change) in self.changes {
            match change {
                Some(row) => upserts.push(row),
                None => deletes.push(id),
            }
        }
        let claim = BatchClaim {
            uid: self.uid.to_string(),
            epoch: self.epoch,
            committed: self.committed,
            last: self.last,
        };
        let account = self.account.to_string();
        let agent_id = self.agent_id;
        let receipts =
            PartReceipts { lane: self.lane, uid: self.uid, last: self.last, receipts: self.receipts };
        (AccountBatch { claim, account, agent_id, upserts, deletes, scopes: self.scopes }, receipts)
    }
}

/// Receipts of one account's part, for the report of its outcome.
#[derive(Debug)]
pub(crate) struct PartReceipts<R> {
    pub(crate) lane: LaneId,
    pub(crate) uid: Arc<str>,
    pub(crate) last: i64,
    pub(crate) receipts: Vec<R>,
}

/// A transaction in assembly, while the one before it commits.
#[derive(Debug)]
pub(crate) struct TransactionDraft<R> {
    parts: IndexMap<Arc<str>, AccountPart<R>>,
    size: BatchSize,
}

impl<R> Default for TransactionDraft<R> {
    fn default() -> Self {
        Self { parts: IndexMap::new(), size: BatchSize::default() }
    }
}

impl<R> TransactionDraft<R> {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether a batch of this size fits. The first one always does.
    pub(crate) fn has_room_for(&self, size: BatchSize, limit: &RowLimit) -> bool {
        self.is_empty()
            || (self.size.rows + size.rows <= limit.rows()
                && self.size.body_bytes + size.body_bytes <= MAX_BODY_BYTES
                && self.parts.len() < MAX_ACCOUNTS)
    }

    /// Adds a batch. A part that it does not continue belongs to a lane that was closed since, and is dropped.
    pub(crate) fn add(&mut self, batch: DecodedBatch<R>) {
        self.size.rows += batch.size.rows;
        self.size.body_bytes += batch.size.body_bytes;
        match self.parts.get_mut(&batch.uid) {
            Some(part) if part.is_continued_by(&batch) => part.add(batch),
            _ => drop(self.parts.insert(Arc::clone(&batch.uid), AccountPart::new(batch))),
        }
    }

    /// Takes the parts whose lane is open.
    pub(crate) fn take(&mut self, is_open: impl Fn(LaneId) -> bool) -> Vec<AccountPart<R>> {
        let Self { parts, .. } = std::mem::take(self);
        parts.into_values().filter(|part| is_open(part.lane)).collect()
    }
}

#[cfg(test)]
mod tests;
