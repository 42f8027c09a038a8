//! An accepted batch with its scopes, and the changes of scopes in their order of storage.

use std::collections::HashSet;
use std::sync::Arc;

use kubesvc_core::CachingEpoch;
use kubesvc_core::cache::left_out_objects;
use kubesvc_core::wire::events::{Batch, Event, ScopeProblem, SyncStart, Synced};
use kubesvc_store::{ScopeChange, ScopeKey};

use super::{AccountReceiver, ReceiverError};
use crate::hub::caching::scopes::{self, DeclaredScope, ScopeError};
use crate::hub::caching::transaction_batching::{BatchSize, LaneId};

/// Maximum length of a list's key, in bytes: a ULID.
const MAX_SYNC_KEY_BYTES: usize = 26;
/// Maximum length of a problem's text, in characters.
const MAX_PROBLEM_CHARS: usize = 1024;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AcceptedBatch {
    pub(crate) lane: LaneId,
    pub(crate) uid: Arc<str>,
    pub(crate) epoch: CachingEpoch,
    pub(crate) account: Arc<str>,
    /// Number of the batch before it.
    pub(crate) prev: i64,
    pub(crate) seq: i64,
    pub(crate) size: BatchSize,
    pub(crate) events: Vec<AcceptedEvent>,
    pub(crate) scopes: Vec<AcceptedScopeChange>,
}

/// An event with its scope.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AcceptedEvent {
    pub(crate) scope: Arc<DeclaredScope>,
    pub(crate) event: Event,
    /// Whether the event was read during a list of its scope.
    pub(crate) is_listed: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AcceptedScopeChange {
    /// The scope is watched from now on.
    Added(Arc<DeclaredScope>),
    Other(ScopeChange),
}

/// An accepted batch, and the consequences of its commit.
pub(super) struct Accepted {
    pub(super) batch: AcceptedBatch,
    pub(super) added: Vec<u32>,
    pub(super) sync_starts: Vec<(u32, String)>,
    pub(super) synced: Vec<u32>,
    /// Whether the batch changes the account's Namespaces.
    pub(super) has_namespaces: bool,
    /// Whether the batch may change what is left out.
    pub(super) has_problems: bool,
}

impl AccountReceiver {
    /// Accepts a batch that follows the last one. Changes of scopes are stored in this order: removed, added, started
    /// lists, complete lists, checkpoints, problems.
    pub(super) fn accept(&mut self, batch: Batch, size: BatchSize) -> Result<Accepted, ReceiverError> {
        let uid = Arc::clone(&self.uid);
        let of_scope = |why| ReceiverError::Scope { uid: Arc::clone(&uid), why };
        let removed: Vec<_> =
            batch.removed.iter().map(|text| text.parse().map_err(ScopeError::NoScope)).collect();
        let removed = removed.into_iter().collect::<Result<Vec<ScopeKey>, _>>().map_err(of_scope)?;
        let mut changes: Vec<_> = removed
            .iter()
            .cloned()
            .map(|key| AcceptedScopeChange::Other(ScopeChange::Removed(key)))
            .collect();
        let mut added = Vec::with_capacity(batch.added.len());
        for declaration in batch.added {
            let scope = self.scopes.declare(declaration).map_err(of_scope)?;
            self.listing.remove(&scope.id);
            added.push(scope.id);
            changes.push(AcceptedScopeChange::Added(scope));
        }
        let mut sync_starts = Vec::with_capacity(batch.sync_starts.len());
        for start in batch.sync_starts {
            sync_starts.push(self.sync_starts(start, &mut changes)?);
        }
        let events = batch.events.into_iter().map(|event| self.event(event));
        let events = events.collect::<Result<Vec<_>, _>>().map_err(of_scope)?;
        let mut has_namespaces = events.iter().any(|event| scopes::has_namespaces(&event.scope.key));
        let mut has_problems = !removed.is_empty() || !batch.problems.is_empty();
        let mut synced = Vec::with_capacity(batch.synced.len());
        for complete in batch.synced {
            synced.extend(self.synced(complete, &mut changes).map_err(of_scope)?);
        }
        for checkpoint in batch.checkpoints {
            let scope = self.scopes.get(checkpoint.scope_id).map_err(of_scope)?;
            // A scope has no checkpoint during a list.
            if !self.listing.contains_key(&scope.id) {
                let key = scope.key.clone();
                if self.problems.was_read(&key) {
                    has_problems = true;
                    let change = ScopeChange::Problem { scope: key.clone(), problem: None };
                    changes.push(AcceptedScopeChange::Other(change));
                }
                let change = ScopeChange::Checkpoint { scope: key, resource_version: checkpoint.rv };
                changes.push(AcceptedScopeChange::Other(change));
            }
        }
        for id in &synced {
            // The end of a list deletes the stored problem, and the agent reports only changes.
            let Ok(scope) = self.scopes.get(*id) else { continue };
            if let Some(left_out) = self.problems.left_out_of(&scope.key) {
                let (scope, problem) = (scope.key.clone(), Some(left_out.clone()));
                changes.push(AcceptedScopeChange::Other(ScopeChange::Problem { scope, problem }));
            }
        }
        self.take_problems(batch.problems, &mut changes).map_err(of_scope)?;
        for id in &synced {
            if let Ok(scope) = self.scopes.get(*id) {
                has_namespaces |= scopes::has_namespaces(&scope.key);
                has_problems |= self.problems.was_read(&scope.key);
            }
        }
        has_namespaces |= removed.iter().any(scopes::has_namespaces);
        removed.iter().for_each(|key| self.problems.removed(key));
        self.remove_scopes(&removed, &added);
        let seq = i64::try_from(batch.seq).expect("the numbers were checked");
        let prev = i64::try_from(batch.prev).expect("the numbers were checked");
        let (lane, epoch, account) = (self.lane, self.epoch, Arc::clone(&self.account));
        let batch = AcceptedBatch { lane, uid, epoch, account, prev, seq, size, events, scopes: changes };
        Ok(Accepted { batch, added, sync_starts, synced, has_namespaces, has_problems })
    }

    /// Records unread scopes, left-out objects, and unwatched kinds. The table has no row for the latter.
    fn take_problems(
        &mut self,
        told: Vec<ScopeProblem>,
        changes: &mut Vec<AcceptedScopeChange>,
    ) -> Result<(), ScopeError> {
        if told.is_empty() {
            return Ok(());
        }
        let watched: HashSet<_> = self.scopes.keys().into_iter().cloned().collect();
        for problem in told {
            let scope = problem.scope.filter(|scope| !scope.kind.is_empty());
            let scope = scope.ok_or(ScopeError::NoProblemKind)?;
            let (key, failure) =
                (ScopeKey::from(&scope), problem.failure.filter(|one| !one.message.is_empty()));
            if !watched.contains(&key) {
                self.problems.unwatched_kind(&key, failure.as_ref());
                continue;
            }
            let left_out = problem.left_out.as_ref().and_then(left_out_objects::text);
            let problem = match left_out {
                Some(left_out) => {
                    self.problems.objects(&key, left_out.clone());
                    Some(left_out)
                }
                None => {
                    self.problems.scope(&key, failure.as_ref());
                    failure.map(|failure| failure.message.chars().take(MAX_PROBLEM_CHARS).collect())
                }
            };
            changes.push(AcceptedScopeChange::Other(ScopeChange::Problem { scope: key, problem }));
        }
        Ok(())
    }

    fn event(&self, event: Event) -> Result<AcceptedEvent, ScopeError> {
        let scope = Arc::clone(self.scopes.get(event.scope_id)?);
        let is_listed = self.listing.contains_key(&scope.id) || self.unsynced.contains(&scope.id);
        Ok(AcceptedEvent { scope, event, is_listed })
    }

    fn sync_starts(
        &mut self,
        start: SyncStart,
        changes: &mut Vec<AcceptedScopeChange>,
    ) -> Result<(u32, String), ReceiverError> {
        let SyncStart { scope_id, sync_key } = start;
        let uid = || Arc::clone(&self.uid);
        let scope = self.scopes.get(scope_id).map_err(|why| ReceiverError::Scope { uid: uid(), why })?;
        let bytes = sync_key.len();
        if sync_key.is_empty() || bytes > MAX_SYNC_KEY_BYTES {
            return Err(ReceiverError::SyncKey { uid: uid(), scope_id, bytes });
        }
        self.listing.insert(scope_id, sync_key.clone());
        // The row may be missing, or belong to another account, filter or shape. Otherwise this changes nothing.
        changes.push(AcceptedScopeChange::Added(Arc::clone(scope)));
        let started = ScopeChange::SyncStarted { scope: scope.key.clone(), sync_key: sync_key.clone() };
        changes.push(AcceptedScopeChange::Other(started));
        Ok((scope_id, sync_key))
    }

    /// Handles a complete list. Returns its scope, unless another list of the scope began since. The list may have
    /// begun on a former stream, unknown to this hub: the store has its key.
    fn synced(
        &mut self,
        complete: Synced,
        changes: &mut Vec<AcceptedScopeChange>,
    ) -> Result<Option<u32>, ScopeError> {
        let scope = self.scopes.get(complete.scope_id)?;
        if self.listing.get(&scope.id).is_some_and(|key| *key != complete.sync_key) {
            return Ok(None);
        }
        self.listing.remove(&scope.id);
        changes.push(AcceptedScopeChange::Other(ScopeChange::Synced {
            scope: scope.key.clone(),
            sync_key: complete.sync_key,
            resource_version: complete.rv,
            objects: i64::try_from(complete.kept.saturating_add(complete.sent)).unwrap_or(i64::MAX),
        }));
        Ok(Some(scope.id))
    }

    /// Forgets removed scopes, except for those that the same batch added.
    fn remove_scopes(&mut self, removed: &[ScopeKey], added: &[u32]) {
        let added: HashSet<_> = added.iter().copied().collect();
        for key in removed {
            for scope in self.scopes.remove(key, &added) {
                self.listing.remove(&scope);
                self.unsynced.remove(&scope);
            }
        }
    }
}
