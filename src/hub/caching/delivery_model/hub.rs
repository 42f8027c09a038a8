//! A stream at a hub: the hub's own decisions, queue and transactions, without its tasks and I/O.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kubesvc_core::wire::common::Fence;
use kubesvc_core::wire::events::cache_down::Frame;
use kubesvc_core::wire::events::event::Operation;
use kubesvc_core::wire::events::revoked::Reason;
use kubesvc_core::wire::events::{Ack, cache_up};
use kubesvc_store::{BasisRow, FenceCheck, StoredProgress};
use prost::Message as _;

use super::cluster::Cluster;
use super::database::Database;
use super::{ACCOUNT, Broken, Property, Rule, Rules, UID};
use crate::hub::caching::account_receiver::{AcceptedBatch, AssignmentState, ReceiverEffect};
use crate::hub::caching::basis::BasisFrames;
use crate::hub::caching::row_mapping::{BodyFormat, decode};
use crate::hub::caching::stream_delivery::StreamDelivery;
use crate::hub::caching::transaction_batching::{LaneId, QueuedBatch, ShardQueue, TransactionDraft};
use crate::hub::tests::caching::fake_cache::PlainMapper;

/// A read for Resume, with the result of the first of its two statements.
#[derive(Clone, Debug)]
struct ProgressRead {
    lane: LaneId,
    added: Option<Vec<u32>>,
    first: Option<StoredProgress>,
}

/// A stream at a hub.
#[derive(Clone, Debug, Default)]
pub(super) struct HubStream {
    delivery: StreamDelivery,
    /// Accepted, uncommitted batches.
    queue: ShardQueue<AcceptedBatch>,
    reads: VecDeque<ProgressRead>,
    pub(super) down: VecDeque<Frame>,
    last_lane: LaneId,
}

impl HubStream {
    pub(super) fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Whether batches are queued for a transaction.
    pub(super) fn has_batches(&self) -> bool {
        self.queue.next_size().is_some()
    }

    /// Whether several batches are queued.
    pub(super) fn has_several_batches(&self) -> bool {
        let mut queue = self.queue.clone();
        queue.take().is_some() && queue.next_size().is_some()
    }

    pub(super) fn receive(
        &mut self,
        frame: cache_up::Frame,
        database: &Database,
        left_out: Rules,
    ) -> Result<(), Broken> {
        let effects = match frame {
            cache_up::Frame::Begin(begin) => {
                self.last_lane += 1;
                self.delivery.begin(begin, self.last_lane)
            }
            cache_up::Frame::Batch(batch) => {
                if left_out == Some(Rule::BasisFollowsTheCommit) {
                    let fence = batch.fence.clone().unwrap_or_default();
                    let starts = batch.sync_starts.iter().cloned();
                    let bases =
                        starts.map(|start| basis(fence.clone(), start.scope_id, start.sync_key, database));
                    self.down.extend(bases);
                }
                let bytes = u64::try_from(batch.encoded_len()).expect("it is small");
                self.delivery.batch(batch, bytes)
            }
            _ => return Ok(()),
        };
        let (_, effects) = effects.map_err(|error| (Property::NothingIsRefused, error.to_string()))?;
        self.apply(effects, database, left_out);
        // A hub's view of the election may be outdated: the fence decides.
        let assigned = self.delivery.check_assignments(|_, _| AssignmentState::Stands(ACCOUNT.into()));
        for (_, effects) in assigned {
            self.apply(effects, database, left_out);
        }
        Ok(())
    }

    fn apply(&mut self, effects: Vec<ReceiverEffect>, database: &Database, left_out: Rules) {
        for effect in effects {
            match effect {
                ReceiverEffect::Send(Frame::Ack(_)) if left_out == Some(Rule::AckAfterCommit) => {}
                ReceiverEffect::Send(frame) => self.down.push_back(frame),
                ReceiverEffect::ReadProgress { lane, added } => {
                    self.reads.push_back(ProgressRead { lane, added, first: None });
                }
                ReceiverEffect::OpenLane(lane) => self.queue.open(lane),
                ReceiverEffect::CloseLane(lane) => {
                    self.queue.close(lane);
                    self.reads.retain(|read| read.lane != lane);
                }
                ReceiverEffect::Queue(batch) => {
                    if left_out == Some(Rule::AckAfterCommit) {
                        let seq = u64::try_from(batch.seq).expect("it is positive");
                        let fence = self.delivery.on_lane(UID, batch.lane).map(|account| account.fence());
                        self.down.push_back(Frame::Ack(Ack { fence, seq }));
                    }
                    self.queue.push(QueuedBatch { lane: batch.lane, size: batch.size, payload: *batch });
                }
                ReceiverEffect::SendBasis { lane, scope, sync_key } => {
                    let Some(account) = self.delivery.on_lane(UID, lane) else { continue };
                    self.down.push_back(basis(account.fence(), scope.id, sync_key, database));
                }
                ReceiverEffect::Release(_)
                | ReceiverEffect::Report(_)
                | ReceiverEffect::NamespacesWritten
                | ReceiverEffect::CountRewind => {}
            }
        }
    }

    /// Executes one of the two statements that read for Resume: the fence's row, then the checkpoints.
    pub(super) fn read_progress(&mut self, database: &Database, left_out: Rules) {
        let Some(read) = self.reads.front_mut() else { return };
        let epoch = self.delivery.on_lane(UID, read.lane).map(|account| account.epoch());
        let Some(now) = epoch.map(|epoch| database.progress(epoch, left_out)) else {
            self.reads.pop_front();
            return;
        };
        let Some(first) = read.first.take() else {
            if matches!(now, StoredProgress::Stands { .. }) {
                read.first = Some(now);
                return;
            }
            return self.progress_is_read(&now, database, left_out);
        };
        let read = match (first, now) {
            (StoredProgress::Stands { scopes, .. }, StoredProgress::Stands { committed, .. })
                if left_out == Some(Rule::FenceIsReadFirst) =>
            {
                StoredProgress::Stands { committed, scopes }
            }
            (StoredProgress::Stands { committed, .. }, _) => {
                StoredProgress::Stands { committed, scopes: database.scopes(left_out) }
            }
            (_, now) => now,
        };
        self.progress_is_read(&read, database, left_out);
    }

    fn progress_is_read(&mut self, stored: &StoredProgress, database: &Database, left_out: Rules) {
        let Some(ProgressRead { lane, added, .. }) = self.reads.pop_front() else { return };
        let of = (UID, lane);
        let effects = self.delivery.progress(of, added.as_deref(), stored, 0, Reason::Superseded);
        self.apply(effects, database, left_out);
    }

    /// Commits the queued batches, or only the first one.
    pub(super) fn commit(
        &mut self,
        is_first_alone: bool,
        database: &mut Database,
        left_out: Rules,
        cluster: &Cluster,
    ) -> Result<(), Broken> {
        let (mut draft, mut versions) = (TransactionDraft::default(), BTreeMap::new());
        while let Some(queued) = self.queue.take() {
            // A transaction names the rows that it deletes, not the versions of the deletions.
            for event in queued.payload.events.iter().map(|accepted| &accepted.event) {
                if event.op() == Operation::Delete {
                    versions.insert((queued.lane, event.name.clone()), event.rv.clone());
                }
            }
            let (decoded, refused) =
                decode(queued.payload, "agent-1".into(), &PlainMapper, BodyFormat::Text, ());
            assert!(refused.is_empty(), "{refused:?}");
            draft.add(decoded);
            if is_first_alone {
                break;
            }
        }
        for part in draft.take(|lane| self.queue.is_open(lane)) {
            let (batch, receipts) = part.into_batch();
            let deleted = |id: &String| {
                let name = id.rsplit(':').next().unwrap_or_default().to_owned();
                let version = versions[&(receipts.lane, name.clone())].clone();
                (name, version)
            };
            let deleted: Vec<_> = batch.deletes.iter().map(deleted).collect();
            let check = database.commit(&batch, &deleted, left_out, cluster)?;
            let reason = match check {
                FenceCheck::Gone => Reason::AccountGone,
                _ => Reason::Superseded,
            };
            let uid = Arc::clone(&receipts.uid);
            let effects = self.delivery.outcome(&uid, receipts.lane, receipts.last, check, reason);
            self.apply(effects, database, left_out);
        }
        Ok(())
    }
}

/// Rows of a scope whose list begins.
fn basis(fence: Fence, scope_id: u32, sync_key: String, database: &Database) -> Frame {
    let mut frames = BasisFrames::new(fence, scope_id, sync_key, false);
    for (name, row) in &database.rows {
        let row = BasisRow {
            id: name.clone(),
            namespace: String::new(),
            name: name.clone(),
            uid: None,
            resource_version: row.version.to_string(),
        };
        let none_is_full = frames.push(&row).is_none();
        assert!(none_is_full, "two rows fit");
    }
    Frame::SyncBasis(frames.finish())
}
