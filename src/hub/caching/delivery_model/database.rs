//! The database: the fence's row, the rows of the scope, and its checkpoint. The store's own functions decide on claims
//! and scopes.

use std::collections::BTreeMap;

use kubesvc_core::CachingEpoch;
use kubesvc_store::{
    AccountBatch, BatchClaim, FenceCheck, FencedScope, ScopeChange, ScopeState, ScopeWriter, StoredProgress,
    StoredScope,
};

use super::cluster::{Cluster, NAMES};
use super::settings::lets_through;
use super::{Broken, Property, Rule, Rules, hash};

/// Name of an object whose row is deleted, and the version of its deletion.
pub(super) type DeletedRow = (String, String);

/// A row: the version of its object, and a stand-in for its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) version: u64,
    hash: String,
}

impl Row {
    /// Row of an object that was read under a shape.
    pub(super) fn new(version: u64, shape: &str) -> Self {
        Self { version, hash: hex::encode(hash(shape)) }
    }
}

/// The fence's row, the rows of the scope, and its checkpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Database {
    pub(super) epoch: i64,
    pub(super) committed: i64,
    pub(super) rows: BTreeMap<String, Row>,
    scope: Option<FencedScope>,
    /// Last version of each object's row, deleted ones included.
    versions: BTreeMap<String, u64>,
}

impl Database {
    /// Raises the fence for an elected process.
    pub(super) fn raise(&mut self) {
        self.epoch += 1;
        self.committed = 0;
    }

    /// Stored state of the scope.
    pub(super) fn stored(&self) -> Option<&StoredScope> {
        self.scope.as_ref().map(|scope| &scope.stored)
    }

    /// Version up to which the scope is cached.
    pub(super) fn checkpoint(&self) -> Option<u64> {
        let stored = self.stored().filter(|stored| stored.state != ScopeState::Removed)?;
        stored.resource_version.as_ref().map(|version| version.parse().expect("a version"))
    }

    /// Whether the scope is removed but not swept yet.
    pub(super) fn is_removed(&self) -> bool {
        self.stored().is_some_and(|stored| stored.state == ScopeState::Removed)
    }

    /// Deletes a row of a removed scope, as the leader does. The scope goes with its last row.
    pub(super) fn sweep(&mut self) {
        if self.is_removed() {
            self.rows.pop_first();
            if self.rows.is_empty() {
                self.scope = None;
            }
        }
    }

    /// The fence's row as Resume reads it, before the checkpoints.
    pub(super) fn progress(&self, epoch: CachingEpoch, left_out: Rules) -> StoredProgress {
        let stored = CachingEpoch(self.epoch);
        match stored.cmp(&epoch) {
            _ if left_out == Some(Rule::EpochIsChecked) => {}
            std::cmp::Ordering::Less => return StoredProgress::Lower(stored),
            std::cmp::Ordering::Greater => return StoredProgress::Higher(stored),
            std::cmp::Ordering::Equal => {}
        }
        StoredProgress::Stands { committed: self.committed, scopes: self.scopes(left_out) }
    }

    /// The checkpoints as Resume reads them.
    pub(super) fn scopes(&self, left_out: Rules) -> Vec<StoredScope> {
        let mut scopes: Vec<_> = self.stored().cloned().into_iter().collect();
        if left_out == Some(Rule::ShapeCountsAfterACompleteList) {
            for scope in &mut scopes {
                scope.objects.get_or_insert(0);
            }
        }
        scopes
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
        deleted: &[DeletedRow],
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
        self.check_rows(cluster)?;
        if left_out == Some(Rule::OneTransaction) {
            self.write_rows(batch, deleted)?;
        }
        Ok(check)
    }

    fn apply(&mut self, change: &ScopeChange, claim: &BatchClaim, left_out: Rules) {
        let (checkpoint, was_removed) =
            (self.stored().and_then(|stored| stored.resource_version.clone()), self.is_removed());
        let writer = ScopeWriter { account_uid: &claim.uid, epoch: claim.epoch, now: 0 };
        self.scope = FencedScope::apply(self.scope.take(), change, writer);
        let keeps_checkpoint = match (left_out, change) {
            (Some(Rule::ListTakesTheCheckpoint), ScopeChange::SyncStarted { .. }) => true,
            (Some(Rule::RemovedScopesLoseTheirCheckpoint), ScopeChange::Removed(_)) => true,
            (Some(Rule::RemovedScopesLoseTheirCheckpoint), ScopeChange::Added(_)) => was_removed,
            (Some(Rule::AddedScopesAreCompared), ScopeChange::Added(_)) => !was_removed,
            _ => false,
        };
        if let (true, Some(scope), Some(checkpoint)) = (keeps_checkpoint, &mut self.scope, checkpoint) {
            scope.stored.resource_version = Some(checkpoint);
            if scope.stored.state != ScopeState::Removed {
                scope.stored.state = ScopeState::Synced;
            }
        }
    }

    fn write_rows(&mut self, batch: &AccountBatch, deleted: &[DeletedRow]) -> Result<(), Broken> {
        for row in &batch.upserts {
            let version = self.reach(&row.name, &row.resource_version)?;
            self.rows.insert(row.name.clone(), Row { version, hash: row.body_hash.clone() });
        }
        for (name, version) in deleted {
            self.reach(name, version)?;
            self.rows.remove(name);
        }
        Ok(())
    }

    /// Raises the version of an object's row.
    fn reach(&mut self, name: &str, version: &str) -> Result<u64, Broken> {
        let version = version.parse().expect("a version");
        let before = self.versions.insert(name.to_owned(), version).unwrap_or_default();
        if version < before {
            let what = format!("{name} had version {before} and has {version}");
            return Err((Property::RowsNeverGoBack, what));
        }
        Ok(version)
    }

    /// Compares the rows with the objects up to the checkpoint of the stored scope.
    fn check_rows(&self, cluster: &Cluster) -> Result<(), Broken> {
        let (Some(stored), Some(checkpoint)) = (self.stored(), self.checkpoint()) else { return Ok(()) };
        let filter = stored.filter.as_deref().unwrap_or_default();
        // A later change of an object is written once it is read.
        let is_before = |name: &str| cluster.newest(name).is_some_and(|newest| newest <= checkpoint);
        for name in NAMES {
            let is_read = lets_through(filter, name);
            let expected = cluster.objects.get(name).filter(|_| is_read);
            let version = self.rows.get(name).map(|row| &row.version);
            if (is_before(name) || !is_read) && version != expected {
                let what = format!("{name} is {version:?}, and the checkpoint {checkpoint}");
                return Err((Property::NoChangeIsBeforeTheCheckpoint, what));
            }
        }
        let shape = stored.shape.as_deref().unwrap_or_default();
        let mut rows = self.rows.iter().filter(|(name, _)| is_before(name));
        if let Some((name, _)) = rows.find(|(_, row)| **row != Row::new(row.version, shape)) {
            let what = format!("{name} is of another shape than {shape}, and the checkpoint {checkpoint}");
            return Err((Property::RowsHaveTheirShape, what));
        }
        Ok(())
    }
}
