//! The database: the fence's row, the rows of the scope, and its checkpoint. What becomes of a claim and of a scope is
//! decided by the store's own functions.

use std::collections::BTreeMap;

use kubesvc_core::CachingEpoch;
use kubesvc_store::{
    AccountBatch, BatchClaim, FenceCheck, Scope, ScopeChange, ScopeWriter, StoredProgress, StoredScope,
};

use super::cluster::{Cluster, NAMES};
use super::{Broken, Property, Rule, Rules};
use crate::hub::caching::transaction_batching::DeletedObject;

/// The fence's row, the rows of the scope, and its checkpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Database {
    pub(super) epoch: i64,
    pub(super) committed: i64,
    pub(super) rows: BTreeMap<String, u64>,
    scope: Option<Scope>,
    /// Version that each object's row has had last, gone ones too.
    versions: BTreeMap<String, u64>,
}

impl Database {
    /// Raises the fence for a process that was elected.
    pub(super) fn raise(&mut self) {
        self.epoch += 1;
        self.committed = 0;
    }

    /// Version up to which the scope is cached.
    pub(super) fn checkpoint(&self) -> Option<u64> {
        self.scope
            .as_ref()?
            .stored
            .resource_version
            .as_ref()
            .map(|version| version.parse().expect("a version"))
    }

    /// The fence's row, as it is read first for Resume.
    pub(super) fn progress(&self, epoch: CachingEpoch, left_out: Rules) -> StoredProgress {
        let stored = CachingEpoch(self.epoch);
        match stored.cmp(&epoch) {
            _ if left_out == Some(Rule::EpochIsChecked) => {}
            std::cmp::Ordering::Less => return StoredProgress::Lower(stored),
            std::cmp::Ordering::Greater => return StoredProgress::Higher(stored),
            std::cmp::Ordering::Equal => {}
        }
        StoredProgress::Stands { committed: self.committed, scopes: self.scopes() }
    }

    /// The checkpoints, as they are read for Resume.
    pub(super) fn scopes(&self) -> Vec<StoredScope> {
        self.scope.iter().map(|scope| scope.stored.clone()).collect()
    }

    fn check(&self, claim: &BatchClaim, left_out: Rules) -> FenceCheck {
        let epoch =
            if left_out == Some(Rule::EpochIsChecked) { claim.epoch } else { CachingEpoch(self.epoch) };
        let committed = if left_out == Some(Rule::PrevIsChecked) { claim.committed } else { self.committed };
        claim.check(Some((epoch, committed)))
    }

    /// One transaction.
    pub(super) fn commit(
        &mut self,
        batch: &AccountBatch,
        deleted: &[DeletedObject],
        left_out: Rules,
        cluster: &Cluster,
    ) -> Result<FenceCheck, Broken> {
        let check = self.check(&batch.claim, left_out);
        if check != FenceCheck::Passed {
            return Ok(check);
        }
        self.committed = batch.claim.last;
        // Without one transaction, this one ends before the rows are written.
        if left_out != Some(Rule::OneTransaction) {
            self.write_rows(batch, deleted)?;
        }
        for change in &batch.scopes {
            self.apply(change, &batch.claim, left_out);
        }
        self.check_checkpoint(cluster)?;
        if left_out == Some(Rule::OneTransaction) {
            self.write_rows(batch, deleted)?;
        }
        Ok(check)
    }

    fn apply(&mut self, change: &ScopeChange, claim: &BatchClaim, left_out: Rules) {
        let before = self.checkpoint();
        let writer = ScopeWriter { account_uid: &claim.uid, epoch: claim.epoch, now: 0 };
        self.scope = Scope::apply(self.scope.take(), change, writer);
        let is_start = matches!(change, ScopeChange::SyncStarted { .. });
        if let (true, Some(Rule::ListTakesTheCheckpoint), Some(scope), Some(before)) =
            (is_start, left_out, &mut self.scope, before)
        {
            scope.stored.resource_version = Some(before.to_string());
            scope.stored.state = kubesvc_store::ScopeState::Synced;
        }
    }

    fn write_rows(&mut self, batch: &AccountBatch, deleted: &[DeletedObject]) -> Result<(), Broken> {
        for row in &batch.upserts {
            let version = self.reach(&row.name, &row.resource_version)?;
            self.rows.insert(row.name.clone(), version);
        }
        for object in deleted {
            self.reach(&object.name, &object.resource_version)?;
            self.rows.remove(&object.name);
        }
        Ok(())
    }

    /// An object's row gets a version.
    fn reach(&mut self, name: &str, version: &str) -> Result<u64, Broken> {
        let version = version.parse().expect("a version");
        let before = self.versions.insert(name.to_owned(), version).unwrap_or_default();
        if version < before {
            let what = format!("{name} had version {before} and has {version}");
            return Err((Property::RowsNeverGoBack, what));
        }
        Ok(version)
    }

    fn check_checkpoint(&self, cluster: &Cluster) -> Result<(), Broken> {
        let Some(checkpoint) = self.checkpoint() else { return Ok(()) };
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
