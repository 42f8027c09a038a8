//! The cache tables in memory, with their fences.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::hub::{CachePorts, CachingRuleSource, CachingSettings, RowMapper};
use kubesvc_core::cache::classes::KindClasses;
use kubesvc_core::cache::object_row::{RowError, RowNaming};
use kubesvc_core::wire::common::Scope;
use kubesvc_core::wire::ops::CachingRules;
use kubesvc_core::{CachingEpoch, KubesvcAccount};
use kubesvc_store::{
    AccountBatch, BasisRow, BatchOutcome, CacheStore, FenceCheck, FenceHolder, KindCount, NamespaceCount,
    ObjectRow, ObjectVersion, RemovedScope, ScopeChange, ScopeKey, ScopeState, StoreError, StoredProgress,
    StoredScope, Swept, Term,
};

/// Tables in memory.
pub(super) struct FakeCache {
    /// Epoch and last batch, by uid.
    pub(super) fences: Mutex<HashMap<String, (i64, i64)>>,
    pub(super) rows: Mutex<BTreeMap<String, ObjectRow>>,
    scopes: Mutex<BTreeMap<(String, ScopeKey), StoredScope>>,
    /// Ids of rows that the database refuses.
    pub(super) refused: Mutex<Vec<String>>,
    /// Number of writes that fail.
    pub(super) failing: Mutex<usize>,
    /// Number of writes whose answer is lost.
    pub(super) lost: Mutex<usize>,
    /// Whether writes are answered.
    pub(super) answers: watch::Sender<bool>,
    /// Number of writes that were begun.
    pub(super) begun: Mutex<usize>,
}

impl FakeCache {
    /// Tables in which the fences of these accounts stand at epoch 3.
    pub(super) fn new(uids: &[&str]) -> Arc<Self> {
        Arc::new(Self {
            fences: Mutex::new(uids.iter().map(|uid| ((*uid).to_owned(), (3, 0))).collect()),
            rows: Mutex::default(),
            scopes: Mutex::default(),
            refused: Mutex::default(),
            failing: Mutex::default(),
            lost: Mutex::default(),
            answers: watch::Sender::new(true),
            begun: Mutex::default(),
        })
    }

    pub(super) fn ports(self: &Arc<Self>, pending_bytes: u64) -> CachePorts {
        let settings = CachingSettings { pending_bytes, ..CachingSettings::default() };
        CachePorts {
            store: Arc::clone(self) as Arc<dyn CacheStore>,
            mapper: Arc::new(PlainMapper),
            rules: Arc::new(FakeRules),
            settings,
        }
    }

    pub(super) fn committed(&self, uid: &str) -> i64 {
        self.fences.lock()[uid].1
    }

    /// Why a kind of an account is not read, as stored.
    pub(super) fn problem(&self, account: &str, kind: &str) -> Option<String> {
        let scopes = self.scopes.lock();
        let mut of_kind = scopes.iter().filter(|((of, key), _)| of == account && key.kind == kind);
        of_kind.find_map(|(_, scope)| scope.problem.clone())
    }

    fn write(&self, batch: &AccountBatch) -> BatchOutcome {
        let claim = &batch.claim;
        let mut fences = self.fences.lock();
        let check = match fences.get_mut(&claim.uid) {
            None => FenceCheck::Gone,
            Some((epoch, _)) if *epoch > claim.epoch.0 => FenceCheck::Higher(CachingEpoch(*epoch)),
            Some((epoch, _)) if *epoch < claim.epoch.0 => FenceCheck::Lower(CachingEpoch(*epoch)),
            Some((_, committed)) if *committed == claim.committed => {
                *committed = claim.last;
                FenceCheck::Passed
            }
            Some((_, committed)) if *committed >= claim.last => FenceCheck::Done,
            Some((_, committed)) => FenceCheck::Rewind(*committed),
        };
        if check != FenceCheck::Passed {
            return BatchOutcome::Stopped(check);
        }
        let mut rows = self.rows.lock();
        let (refused, written): (Vec<_>, Vec<_>) = {
            let ids = self.refused.lock();
            batch.upserts.iter().partition(|row| ids.contains(&row.id))
        };
        rows.extend(written.iter().map(|row| (row.id.clone(), (*row).clone())));
        batch.deletes.iter().for_each(|id| drop(rows.remove(id)));
        let mut scopes = self.scopes.lock();
        for change in &batch.scopes {
            apply(&mut scopes, batch, change);
        }
        BatchOutcome::Committed {
            written: written.len(),
            refused: refused.iter().map(|row| format!("row {:?} left out", row.id)).collect(),
        }
    }
}

fn apply(scopes: &mut BTreeMap<(String, ScopeKey), StoredScope>, batch: &AccountBatch, change: &ScopeChange) {
    let of = |key: &ScopeKey| (batch.account.clone(), key.clone());
    match change {
        ScopeChange::Added(row) => {
            let stored = StoredScope {
                key: row.key.clone(),
                cached_kind: row.cached_kind.clone(),
                account_uid: batch.claim.uid.clone(),
                resource_version: None,
                state: ScopeState::Listing,
                shape: Some(row.shape.clone()),
                filter: Some(row.filter.clone()),
                objects: None,
                problem: None,
                last_updated_ms: 0,
            };
            scopes.entry(of(&row.key)).or_insert(stored);
        }
        ScopeChange::SyncStarted { scope, .. } => {
            let stored = scopes.get_mut(&of(scope)).expect("it was added");
            (stored.state, stored.resource_version) = (ScopeState::Listing, None);
        }
        ScopeChange::Synced { scope, resource_version, objects, .. } => {
            let stored = scopes.get_mut(&of(scope)).expect("it was added");
            stored.resource_version = Some(resource_version.clone());
            (stored.state, stored.objects) = (ScopeState::Synced, Some(*objects));
        }
        ScopeChange::Checkpoint { scope, resource_version } => {
            if let Some(stored) = scopes.get_mut(&of(scope)) {
                stored.resource_version = Some(resource_version.clone());
            }
        }
        ScopeChange::Removed(scope) => drop(scopes.remove(&of(scope))),
        ScopeChange::Problem { scope, problem } => {
            if let Some(stored) = scopes.get_mut(&of(scope)) {
                stored.problem.clone_from(problem);
            }
        }
    }
}

#[async_trait]
impl CacheStore for FakeCache {
    async fn write_objects(&self, batches: &[AccountBatch]) -> Result<Vec<BatchOutcome>, StoreError> {
        *self.begun.lock() += 1;
        let _ = self.answers.subscribe().wait_for(|answers| *answers).await;
        let take = |left: &Mutex<usize>| {
            let mut left = left.lock();
            *left = left.saturating_sub(1);
        };
        if *self.failing.lock() > 0 {
            take(&self.failing);
            return Err(StoreError::unavailable("down"));
        }
        let outcomes = batches.iter().map(|batch| self.write(batch)).collect();
        if *self.lost.lock() > 0 {
            take(&self.lost);
            return Err(StoreError::unavailable("the connection broke"));
        }
        Ok(outcomes)
    }

    async fn resume(&self, account_uid: &str, epoch: CachingEpoch) -> Result<StoredProgress, StoreError> {
        let fence = self.fences.lock().get(account_uid).copied();
        let scopes =
            self.scopes.lock().values().filter(|scope| scope.account_uid == account_uid).cloned().collect();
        Ok(match fence {
            None => StoredProgress::Gone,
            Some((stands, _)) if stands > epoch.0 => StoredProgress::Higher(CachingEpoch(stands)),
            Some((stands, _)) if stands < epoch.0 => StoredProgress::Lower(CachingEpoch(stands)),
            Some((_, committed)) => StoredProgress::Stands { committed, scopes },
        })
    }

    async fn scopes(&self, account: &str) -> Result<Vec<StoredScope>, StoreError> {
        let scopes = self.scopes.lock();
        Ok(scopes.iter().filter(|((of, _), _)| of == account).map(|(_, scope)| scope.clone()).collect())
    }

    async fn basis(
        &self,
        _: &str,
        cached_kind: &str,
        namespace: &str,
        after: Option<&BasisRow>,
        limit: u32,
    ) -> Result<Vec<BasisRow>, StoreError> {
        let rows = self.rows.lock();
        let covered = rows.values().filter(|row| {
            row.kind == cached_kind
                && (namespace.is_empty() || row.namespace == namespace)
                && after.is_none_or(|after| row.id > after.id)
        });
        let rows = covered.map(|row| BasisRow {
            id: row.id.clone(),
            namespace: row.namespace.clone(),
            name: row.name.clone(),
            uid: row.uid.clone(),
            resource_version: row.resource_version.clone(),
        });
        Ok(rows.take(usize::try_from(limit).expect("small")).collect())
    }

    async fn object_version(
        &self,
        _: &str,
        _: &str,
        _: &str,
        _: &str,
    ) -> Result<Option<ObjectVersion>, StoreError> {
        Ok(None)
    }

    async fn count_objects(&self, _: &str) -> Result<Vec<KindCount>, StoreError> {
        Ok(Vec::new())
    }

    async fn count_objects_by_namespace(&self, _: &str) -> Result<Vec<NamespaceCount>, StoreError> {
        Ok(Vec::new())
    }

    async fn fence_holder(&self, _: &str) -> Result<Option<FenceHolder>, StoreError> {
        Ok(None)
    }

    async fn removed_scopes(&self, _: u32) -> Result<Vec<RemovedScope>, StoreError> {
        Ok(Vec::new())
    }

    async fn accounts_with_events(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn accounts_to_remove(&self, _: &[String]) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn remove_scopes(&self, _: Option<Term>, _: &str) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn sweep_scope(&self, _: Option<Term>, _: &RemovedScope, _: u32) -> Result<Swept, StoreError> {
        Ok(Swept { rows: 0, finished: true })
    }

    async fn sweep_events(&self, _: Option<Term>, _: &str, _: i64, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }
}

/// Rules that are the kinds of an account's spec.
struct FakeRules;

impl CachingRuleSource for FakeRules {
    fn rules(&self, account: &KubesvcAccount) -> CachingRules {
        CachingRules { kinds: account.spec.kinds.clone(), ..CachingRules::default() }
    }
}

/// Rows without custom resources.
pub(in crate::hub) struct PlainMapper;

impl RowMapper for PlainMapper {
    fn naming(&self, account: &str, scope: &Scope) -> Result<RowNaming, RowError> {
        RowNaming::new(account, scope, &KindClasses::default())
    }
}
