//! One account on one Caching stream: decisions about Begin, Batch and End, and about the database's answers. Pure: the
//! results are [`ReceiverEffect`]s, which the stream executes.
//!
//! A batch is accepted only if it follows the last accepted one. Any other gets Rewind, and later ones are ignored
//! until the agent sends Begin again. A batch that breaks the protocol is an error, which closes the stream. Only
//! committed batches are acknowledged.

mod accepted_batch;
mod effects;
mod problems;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use kubesvc_core::CachingEpoch;
use kubesvc_core::wire::common::{Failure, Fence};
use kubesvc_core::wire::events::cache_down::Frame;
use kubesvc_core::wire::events::revoked::Reason;
use kubesvc_core::wire::events::{Ack, Batch, Begin, Resume, Revoked, Rewind};
use kubesvc_store::{FenceCheck, StoredProgress};

use super::batch_check;
use super::resume::{self, StoredScopes};
use super::scopes::{self, DeclaredScopes};
use super::transaction_batching::LaneId;

pub(crate) use accepted_batch::{AcceptedBatch, AcceptedEvent, AcceptedScopeChange};
pub(crate) use effects::{AssignmentState, DeliveryState, ReceiverEffect, ReceiverError};
use problems::{AccountProblems, report_of_unread};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiverPhase {
    /// Begin is not complete.
    Declaring,
    /// All scopes are declared; the fence is not raised yet.
    Waiting,
    /// The progress is being read.
    Resuming,
    /// Batches are accepted. Numbers of the last accepted and of the last committed batch.
    Flowing { received: i64, committed: i64 },
    /// The agent must send Begin again.
    Rewound,
    /// The agent sends nothing more.
    Ended { committed: i64 },
    /// No further batch is accepted.
    Revoked,
}

/// An uncommitted batch.
#[derive(Clone, Debug)]
struct Outstanding {
    seq: i64,
    bytes: u64,
    events: usize,
    added: Vec<u32>,
    sync_starts: Vec<(u32, String)>,
    synced: Vec<u32>,
    /// Whether the batch changes the account's Namespaces.
    has_namespaces: bool,
}

/// One account on one stream, under one epoch.
#[derive(Clone, Debug)]
pub(crate) struct AccountReceiver {
    uid: Arc<str>,
    epoch: CachingEpoch,
    account: Arc<str>,
    lane: LaneId,
    /// The agent's number of its delivery, repeated in answers.
    delivery: u64,
    phase: ReceiverPhase,
    scopes: DeclaredScopes,
    /// Keys of the running lists, by scope.
    listing: HashMap<u32, String>,
    /// Scopes without a checkpoint.
    unsynced: HashSet<u32>,
    outstanding: VecDeque<Outstanding>,
    /// Number of events in the outstanding batches.
    uncommitted_events: usize,
    problems: AccountProblems,
    /// Reason for which the agent did not reach the cluster, until the account's assignment is known or Begin arrives.
    unread: Option<Failure>,
}

impl AccountReceiver {
    pub(crate) fn new(uid: Arc<str>, epoch: CachingEpoch, lane: LaneId) -> Self {
        Self {
            account: Arc::from(""),
            uid,
            epoch,
            lane,
            delivery: 0,
            phase: ReceiverPhase::Declaring,
            scopes: DeclaredScopes::default(),
            listing: HashMap::new(),
            unsynced: HashSet::new(),
            outstanding: VecDeque::new(),
            uncommitted_events: 0,
            problems: AccountProblems::default(),
            unread: None,
        }
    }

    pub(crate) fn epoch(&self) -> CachingEpoch {
        self.epoch
    }

    pub(crate) fn lane(&self) -> LaneId {
        self.lane
    }

    /// Name of the account; empty before it is assigned.
    pub(crate) fn account(&self) -> &Arc<str> {
        &self.account
    }

    pub(crate) fn scope_count(&self) -> usize {
        self.scopes.len()
    }

    pub(crate) fn uncommitted_events(&self) -> usize {
        self.uncommitted_events
    }

    pub(crate) fn awaits_fence(&self) -> bool {
        self.phase == ReceiverPhase::Waiting || self.unread.is_some()
    }

    /// Whether the agent sends nothing more and everything is committed.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.phase, ReceiverPhase::Ended { .. }) && self.outstanding.is_empty()
    }

    /// Whether nothing more is accepted. Batches that were sent before may still arrive.
    pub(crate) fn is_revoked(&self) -> bool {
        self.phase == ReceiverPhase::Revoked
    }

    /// State in metrics; `None` if the account is no longer streamed.
    pub(crate) fn state(&self) -> Option<DeliveryState> {
        match self.phase {
            ReceiverPhase::Flowing { .. } if self.unsynced.is_empty() => Some(DeliveryState::Synced),
            ReceiverPhase::Flowing { .. } => Some(DeliveryState::Listing),
            ReceiverPhase::Ended { .. } | ReceiverPhase::Revoked => None,
            ReceiverPhase::Declaring
            | ReceiverPhase::Waiting
            | ReceiverPhase::Resuming
            | ReceiverPhase::Rewound => Some(DeliveryState::Waiting),
        }
    }

    pub(crate) fn fence(&self) -> Fence {
        Fence { account_uid: self.uid.to_string(), caching_epoch: self.epoch.to_wire() }
    }

    /// Handles a frame of Begin. One after the last frame starts over, under `lane`.
    pub(crate) fn begin(&mut self, begin: Begin, lane: LaneId) -> Result<Vec<ReceiverEffect>, ReceiverError> {
        let mut effects = Vec::new();
        if self.phase != ReceiverPhase::Declaring {
            effects = self.abandon();
            *self = Self::new(Arc::clone(&self.uid), self.epoch, lane);
        }
        self.unread = None;
        self.delivery = begin.delivery;
        for declaration in begin.scopes {
            let declared = self.scopes.declare(declaration);
            declared.map_err(|why| ReceiverError::Scope { uid: Arc::clone(&self.uid), why })?;
        }
        if begin.last {
            self.phase = ReceiverPhase::Waiting;
        }
        Ok(effects)
    }

    /// Handles Unread: the agent has not reached the cluster. The last reason counts, and none after Begin, whose
    /// batches report more.
    pub(crate) fn unread(&mut self, failure: Failure) {
        if self.phase == ReceiverPhase::Declaring && self.scope_count() == 0 {
            self.unread = Some(failure);
        }
    }

    /// Handles the assignment of an account that waits for it.
    pub(crate) fn assigned(&mut self, assignment: AssignmentState) -> Vec<ReceiverEffect> {
        match assignment {
            _ if !self.awaits_fence() => Vec::new(),
            AssignmentState::Pending => Vec::new(),
            AssignmentState::Revoked(reason) => self.revoke(reason),
            AssignmentState::Stands(_) if let Some(failure) = self.unread.take() => {
                vec![ReceiverEffect::Report(report_of_unread(self.epoch, &failure))]
            }
            AssignmentState::Stands(account) => {
                self.account = account;
                self.phase = ReceiverPhase::Resuming;
                vec![ReceiverEffect::ReadProgress { lane: self.lane, added: None }]
            }
        }
    }

    /// Handles the stored progress for Begin or for added scopes. `superseded` is the reason if another process was
    /// elected.
    pub(crate) fn progress(
        &mut self,
        added: Option<&[u32]>,
        stored: &StoredProgress,
        now_ms: i64,
        superseded: Reason,
    ) -> Vec<ReceiverEffect> {
        match (added, self.phase, stored) {
            (None, ReceiverPhase::Resuming, StoredProgress::Stands { committed, scopes: stored }) => {
                self.problems = AccountProblems::stored(&self.uid, stored, &self.scopes);
                let mut effects =
                    self.resume(*committed, &StoredScopes::new(&self.uid.clone(), stored), now_ms);
                effects.extend(self.report());
                // Another replica may have written them.
                let has_namespaces = self.scopes.keys().into_iter().any(scopes::has_namespaces)
                    || stored.iter().any(|stored| scopes::has_namespaces(&stored.key));
                effects.extend(has_namespaces.then_some(ReceiverEffect::NamespacesWritten));
                effects
            }
            // The fence fell after it was raised; the replica that raises it will notice.
            (None, ReceiverPhase::Resuming, StoredProgress::Lower(_)) => {
                self.phase = ReceiverPhase::Waiting;
                Vec::new()
            }
            (None, ReceiverPhase::Resuming, StoredProgress::Higher(_)) => self.revoke(superseded),
            (None, ReceiverPhase::Resuming, StoredProgress::Gone) => self.revoke(Reason::AccountGone),
            (
                Some(added),
                ReceiverPhase::Flowing { committed, .. },
                StoredProgress::Stands { scopes, .. },
            ) => {
                let uid = Arc::clone(&self.uid);
                let stored = StoredScopes::new(&uid, scopes);
                self.answer(added, committed, &stored, Vec::new(), now_ms)
            }
            // The fence will refuse the next batch.
            _ => Vec::new(),
        }
    }

    fn resume(&mut self, committed: i64, stored: &StoredScopes<'_>, now_ms: i64) -> Vec<ReceiverEffect> {
        let declared = self.scopes.all();
        let ids: Vec<_> = declared.iter().map(|scope| scope.id).collect();
        let others = stored.others(&declared);
        self.phase = ReceiverPhase::Flowing { received: committed, committed };
        let mut effects = vec![ReceiverEffect::OpenLane(self.lane)];
        effects.extend(self.answer(&ids, committed, stored, others, now_ms));
        effects
    }

    fn answer(
        &mut self,
        ids: &[u32],
        committed: i64,
        stored: &StoredScopes<'_>,
        others: Vec<String>,
        now_ms: i64,
    ) -> Vec<ReceiverEffect> {
        let mut checkpoints = Vec::with_capacity(ids.len());
        // A scope that was removed since is not answered.
        for scope in ids.iter().filter_map(|id| self.scopes.get(*id).ok()) {
            let checkpoint = stored.checkpoint(scope, now_ms);
            if checkpoint.rv.is_empty() {
                self.unsynced.insert(scope.id);
            } else {
                self.unsynced.remove(&scope.id);
            }
            checkpoints.push(checkpoint);
        }
        let frames = resume::frames(&self.fence(), to_wire(committed), checkpoints, others);
        let numbered =
            |frame| ReceiverEffect::Send(Frame::Resume(Resume { delivery: self.delivery, ..frame }));
        frames.into_iter().map(numbered).collect()
    }

    /// Handles a batch of `bytes` bytes.
    pub(crate) fn batch(&mut self, batch: Batch, bytes: u64) -> Result<Vec<ReceiverEffect>, ReceiverError> {
        let (uid, seq) = (Arc::clone(&self.uid), batch.seq);
        let (received, committed) = match self.phase {
            ReceiverPhase::Flowing { received, committed } => (received, committed),
            // Sent before the agent received the answer.
            ReceiverPhase::Rewound | ReceiverPhase::Revoked | ReceiverPhase::Ended { .. } => {
                return Ok(vec![ReceiverEffect::Release(bytes)]);
            }
            ReceiverPhase::Declaring | ReceiverPhase::Waiting | ReceiverPhase::Resuming => {
                return Err(ReceiverError::NotResumed { uid, seq });
            }
        };
        let wire_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let size = batch_check::check(&batch, wire_bytes).map_err(|why| ReceiverError::Batch {
            uid: Arc::clone(&uid),
            seq,
            why,
        })?;
        if to_wire(received) != batch.prev {
            let mut effects = vec![ReceiverEffect::Release(bytes)];
            effects.extend(self.rewind(committed));
            return Ok(effects);
        }
        let accepted = self.accept(batch, size)?;
        let events = accepted.batch.events.len();
        self.uncommitted_events += events;
        self.outstanding.push_back(Outstanding {
            seq: accepted.batch.seq,
            bytes,
            events,
            added: accepted.added,
            sync_starts: accepted.sync_starts,
            synced: accepted.synced,
            has_namespaces: accepted.has_namespaces,
        });
        self.phase = ReceiverPhase::Flowing { received: accepted.batch.seq, committed };
        let mut effects = vec![ReceiverEffect::Queue(Box::new(accepted.batch))];
        if accepted.has_problems {
            effects.extend(self.report());
        }
        Ok(effects)
    }

    /// Handles a batch that exceeds the stream's limit of events: the agent sends Begin again, and the answer waits for
    /// the database.
    pub(crate) fn refuse_batch(&mut self, bytes: u64) -> Vec<ReceiverEffect> {
        let release = ReceiverEffect::Release(bytes);
        match self.phase {
            ReceiverPhase::Flowing { committed, .. } => {
                // No commit was lost, so this Rewind must not raise an alert.
                let rewind = self
                    .rewind(committed)
                    .into_iter()
                    .filter(|effect| *effect != ReceiverEffect::CountRewind);
                [release].into_iter().chain(rewind).collect()
            }
            _ => vec![release],
        }
    }

    /// Report of the account's omissions, as far as known.
    fn report(&self) -> Option<ReceiverEffect> {
        self.problems.report(self.epoch, &self.scopes).map(ReceiverEffect::Report)
    }

    /// Handles End: the agent sends nothing more.
    pub(crate) fn end(&mut self) -> Vec<ReceiverEffect> {
        self.unread = None;
        match self.phase {
            ReceiverPhase::Flowing { committed, .. } => self.phase = ReceiverPhase::Ended { committed },
            ReceiverPhase::Ended { .. } | ReceiverPhase::Revoked => {}
            ReceiverPhase::Declaring
            | ReceiverPhase::Waiting
            | ReceiverPhase::Resuming
            | ReceiverPhase::Rewound => {
                self.phase = ReceiverPhase::Ended { committed: 0 };
            }
        }
        if self.outstanding.is_empty() { vec![ReceiverEffect::CloseLane(self.lane)] } else { Vec::new() }
    }

    /// Handles the fence check of all batches up to `seq`. `superseded` is the reason if another process was elected.
    pub(crate) fn outcome(&mut self, seq: i64, check: FenceCheck, superseded: Reason) -> Vec<ReceiverEffect> {
        if !matches!(self.phase, ReceiverPhase::Flowing { .. } | ReceiverPhase::Ended { .. }) {
            return Vec::new();
        }
        match check {
            FenceCheck::Passed | FenceCheck::Done => self.committed(seq),
            FenceCheck::Rewind(committed) => self.rewind(committed),
            // The database lost the fence. It is raised again without a committed batch, and the answer to Begin waits
            // for that.
            FenceCheck::Lower(_) => self.rewind(0),
            FenceCheck::Higher(_) => self.revoke(superseded),
            FenceCheck::Gone => self.revoke(Reason::AccountGone),
        }
    }

    fn committed(&mut self, seq: i64) -> Vec<ReceiverEffect> {
        let ack = Ack { fence: Some(self.fence()), seq: to_wire(seq) };
        let mut effects = vec![ReceiverEffect::Send(Frame::Ack(ack))];
        let (mut bytes, mut added, mut has_namespaces) = (0, Vec::new(), false);
        while let Some(batch) = self.outstanding.pop_front_if(|batch| batch.seq <= seq) {
            bytes += batch.bytes;
            self.uncommitted_events -= batch.events;
            has_namespaces |= batch.has_namespaces;
            added.extend(batch.added);
            for (scope_id, sync_key) in batch.sync_starts {
                self.unsynced.insert(scope_id);
                // A later list of the scope has a basis of its own.
                let is_current = self.listing.get(&scope_id) == Some(&sync_key);
                if let Some(scope) = self.scopes.get(scope_id).ok().filter(|_| is_current) {
                    let scope = Arc::clone(scope);
                    effects.push(ReceiverEffect::SendBasis { lane: self.lane, scope, sync_key });
                }
            }
            for scope_id in &batch.synced {
                self.unsynced.remove(scope_id);
            }
        }
        effects.insert(1, ReceiverEffect::Release(bytes));
        effects.extend(has_namespaces.then_some(ReceiverEffect::NamespacesWritten));
        match &mut self.phase {
            ReceiverPhase::Flowing { committed, .. } => *committed = seq.max(*committed),
            ReceiverPhase::Ended { committed } => {
                *committed = seq.max(*committed);
                if self.outstanding.is_empty() {
                    effects.push(ReceiverEffect::CloseLane(self.lane));
                }
                return effects;
            }
            _ => {}
        }
        if !added.is_empty() {
            effects.push(ReceiverEffect::ReadProgress { lane: self.lane, added: Some(added) });
        }
        effects
    }

    fn rewind(&mut self, committed: i64) -> Vec<ReceiverEffect> {
        let mut effects = self.abandon();
        let ended = matches!(self.phase, ReceiverPhase::Ended { .. });
        effects.push(ReceiverEffect::CountRewind);
        if !ended {
            self.phase = ReceiverPhase::Rewound;
            let rewind = Rewind { fence: Some(self.fence()), committed_seq: to_wire(committed) };
            effects.push(ReceiverEffect::Send(Frame::Rewind(rewind)));
        }
        effects
    }

    /// Handles the end of the account's assignment: nothing more is accepted.
    pub(crate) fn revoke(&mut self, reason: Reason) -> Vec<ReceiverEffect> {
        let mut effects = self.abandon();
        self.phase = ReceiverPhase::Revoked;
        (self.scopes, self.listing, self.unsynced, self.unread) = Default::default();
        let revoked = Revoked { fence: Some(self.fence()), reason: reason.into() };
        effects.push(ReceiverEffect::Send(Frame::Revoked(revoked)));
        effects
    }

    /// Drops uncommitted batches; the agent sends them again.
    pub(crate) fn abandon(&mut self) -> Vec<ReceiverEffect> {
        let bytes = self.outstanding.drain(..).map(|batch| batch.bytes).sum();
        self.uncommitted_events = 0;
        let release = (bytes > 0).then_some(ReceiverEffect::Release(bytes));
        release.into_iter().chain([ReceiverEffect::CloseLane(self.lane)]).collect()
    }
}

fn to_wire(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
