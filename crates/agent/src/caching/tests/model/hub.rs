//! The database, and a hub that is as simple as the rules allow.

use std::collections::{BTreeMap, VecDeque};

use super::super::*;
use super::cluster::{Cluster, NAMES};
use super::{Property, Rule};
use kubesvc_core::wire::events::{Ack, CacheDown, Credit, Revoked, Rewind, cache_down};

/// The rules that hold: all, but perhaps one.
pub(super) type Rules = Option<Rule>;

/// A violated property, and how.
pub(super) type Broken = (Property, String);

/// The fence's row, the rows of the scope, and its checkpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Database {
    pub(super) epoch: u64,
    pub(super) committed: u64,
    pub(super) rows: BTreeMap<String, u64>,
    pub(super) checkpoint: Option<u64>,
    list: Option<String>,
    /// Version that each object's row has had last, gone ones too.
    versions: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Committed,
    Done,
    Rewind(u64),
    Higher,
}

impl Database {
    fn judge(&self, batch: &Batch, left_out: Rules) -> Outcome {
        let epoch = batch.fence.as_ref().map_or(0, |fence| fence.caching_epoch);
        if epoch != self.epoch && left_out != Some(Rule::EpochIsChecked) {
            return Outcome::Higher;
        }
        if self.committed == batch.prev || left_out == Some(Rule::PrevIsChecked) {
            return Outcome::Committed;
        }
        if self.committed >= batch.seq { Outcome::Done } else { Outcome::Rewind(self.committed) }
    }

    /// One transaction.
    pub(super) fn commit(
        &mut self,
        batch: &Batch,
        left_out: Rules,
        cluster: &Cluster,
    ) -> Result<Outcome, Broken> {
        let outcome = self.judge(batch, left_out);
        if outcome != Outcome::Committed {
            return Ok(outcome);
        }
        self.committed = batch.seq;
        for start in &batch.sync_starts {
            self.list = Some(start.sync_key.clone());
            if left_out != Some(Rule::ListTakesTheCheckpoint) {
                self.checkpoint = None;
            }
        }
        // Without one transaction, this one ends before the rows are written.
        if left_out != Some(Rule::OneTransaction) {
            self.write_rows(batch)?;
        }
        for synced in &batch.synced {
            if self.list.as_ref() == Some(&synced.sync_key) {
                self.list = None;
                self.checkpoint = synced.rv.parse().ok();
            }
        }
        for checkpoint in &batch.checkpoints {
            if self.list.is_none() || left_out == Some(Rule::ListTakesTheCheckpoint) {
                self.checkpoint = checkpoint.rv.parse().ok();
            }
        }
        self.check_checkpoint(cluster)?;
        if left_out == Some(Rule::OneTransaction) {
            self.write_rows(batch)?;
        }
        Ok(Outcome::Committed)
    }

    fn write_rows(&mut self, batch: &Batch) -> Result<(), Broken> {
        for event in &batch.events {
            let version: u64 = event.rv.parse().expect("a version");
            let before = self.versions.insert(event.name.clone(), version).unwrap_or_default();
            if version < before {
                let what = format!("{} had version {before} and has {version}", event.name);
                return Err((Property::RowsNeverGoBack, what));
            }
            if event.op == i32::from(Operation::Upsert) {
                self.rows.insert(event.name.clone(), version);
            } else {
                self.rows.remove(&event.name);
            }
        }
        Ok(())
    }

    fn check_checkpoint(&self, cluster: &Cluster) -> Result<(), Broken> {
        let Some(checkpoint) = self.checkpoint else { return Ok(()) };
        for name in NAMES {
            let newest = cluster.newest(name).filter(|newest| *newest <= checkpoint);
            if newest.is_some() && self.rows.get(name) != cluster.objects.get(name) {
                let what = format!("{name} is {:?}, and the checkpoint {checkpoint}", self.rows.get(name));
                return Err((Property::NoChangeIsBeforeTheCheckpoint, what));
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Declaring,
    /// What was read first of what Resume says.
    Resuming(Option<(u64, Option<u64>)>),
    Flowing {
        received: u64,
    },
    Rewound,
    Revoked,
}

/// A stream at a hub.
#[derive(Clone, Debug)]
pub(super) struct HubStream {
    phase: Phase,
    epoch: u64,
    scopes: Vec<u32>,
    /// Batches that were taken and are not committed.
    pub(super) queue: VecDeque<Batch>,
    pub(super) down: VecDeque<CacheDown>,
}

impl HubStream {
    pub(super) fn new() -> Self {
        let mut stream = Self {
            phase: Phase::Declaring,
            epoch: 0,
            scopes: Vec::new(),
            queue: VecDeque::new(),
            down: VecDeque::new(),
        };
        stream.send(cache_down::Frame::Credit(Credit { bytes: 65_536 }));
        stream
    }

    fn send(&mut self, frame: cache_down::Frame) {
        self.down.push_back(CacheDown { frame: Some(frame) });
    }

    fn fence(&self) -> Fence {
        fence("u", self.epoch)
    }

    pub(super) fn receive(&mut self, frame: cache_up::Frame, left_out: Rules) {
        match frame {
            cache_up::Frame::Begin(begin) => {
                let epoch = begin.fence.as_ref().map_or(0, |fence| fence.caching_epoch);
                if self.phase != Phase::Declaring || self.epoch != epoch {
                    self.queue.clear();
                    self.scopes.clear();
                }
                self.phase = Phase::Declaring;
                self.epoch = epoch;
                self.scopes.extend(begin.scopes.iter().map(|scope| scope.scope_id));
                if begin.last {
                    self.phase = Phase::Resuming(None);
                }
            }
            cache_up::Frame::Batch(batch) => {
                let received = match self.phase {
                    Phase::Flowing { received } => received,
                    Phase::Rewound | Phase::Revoked => return,
                    Phase::Declaring | Phase::Resuming(_) => {
                        unreachable!("a batch comes after the answer to Begin")
                    }
                };
                for event in &batch.events {
                    assert!(self.scopes.contains(&event.scope_id), "an event names a scope that is declared");
                }
                if received != batch.prev {
                    self.rewind();
                    return;
                }
                self.phase = Phase::Flowing { received: batch.seq };
                if left_out == Some(Rule::AckAfterCommit) {
                    self.ack(batch.seq);
                }
                self.queue.push_back(batch);
            }
            _ => {}
        }
    }

    fn ack(&mut self, seq: u64) {
        let fence = Some(self.fence());
        self.send(cache_down::Frame::Ack(Ack { fence, seq }));
    }

    fn rewind(&mut self) {
        self.phase = Phase::Rewound;
        self.queue.clear();
        let fence = Some(self.fence());
        self.send(cache_down::Frame::Rewind(Rewind { fence, committed_seq: 0 }));
    }

    fn revoke(&mut self) {
        self.phase = Phase::Revoked;
        self.queue.clear();
        let fence = Some(self.fence());
        self.send(cache_down::Frame::Revoked(Revoked { fence, reason: 1 }));
    }

    pub(super) fn is_resuming(&self) -> bool {
        matches!(self.phase, Phase::Resuming(_))
    }

    /// One of the two reads for Resume.
    pub(super) fn read_progress(&mut self, database: &Database, left_out: Rules) {
        let Phase::Resuming(first) = self.phase else { return };
        if database.epoch != self.epoch && left_out != Some(Rule::EpochIsChecked) {
            self.revoke();
            return;
        }
        let now = (database.committed, database.checkpoint);
        let Some(before) = first else {
            self.phase = Phase::Resuming(Some(now));
            return;
        };
        let (committed, version) =
            if left_out == Some(Rule::FenceIsReadFirst) { (now.0, before.1) } else { (before.0, now.1) };
        self.phase = Phase::Flowing { received: committed };
        let rv = version.map(|version| version.to_string()).unwrap_or_default();
        let scopes = self.scopes.iter().map(|id| checkpoint(*id, &rv)).collect();
        let resume = resume(&self.fence(), committed, scopes);
        self.send(cache_down::Frame::Resume(resume));
    }

    /// Commits the first batch that waits.
    pub(super) fn commit(
        &mut self,
        database: &mut Database,
        left_out: Rules,
        cluster: &Cluster,
    ) -> Result<(), Broken> {
        let Some(batch) = self.queue.pop_front() else { return Ok(()) };
        match database.commit(&batch, left_out, cluster)? {
            Outcome::Committed | Outcome::Done => {
                if left_out != Some(Rule::AckAfterCommit) {
                    self.ack(batch.seq);
                }
                for start in &batch.sync_starts {
                    let rows: Vec<_> = database.rows.iter().map(|(name, rv)| (name.as_str(), *rv)).collect();
                    let frame = basis_frame(&self.fence(), &start.sync_key, &rows, true);
                    let scope_id = start.scope_id;
                    self.send(cache_down::Frame::SyncBasis(SyncBasis { scope_id, ..frame }));
                }
            }
            Outcome::Rewind(_) => self.rewind(),
            Outcome::Higher => self.revoke(),
        }
        Ok(())
    }
}
