//! The transaction that writes objects: fences, objects, their relations, deletions, scopes, in this order in every
//! transaction of every replica.

use std::time::Duration;

use super::objects::{self, Object};
use super::scopes::ScopeChanges;
use super::{AccountBatch, BatchOutcome, relations};
use crate::dialect::Dialect;
use crate::sql::pools::PoolUse;
use crate::sql::statement::OnRefusal;
use crate::sql::{SqlSession, SqlStore, Transaction};
use crate::{BatchClaim, FenceCheck, StoreError, fences, now};
use kubesvc_runtime::crash_points;

/// Writes the parts of several accounts in one transaction; see
/// [`CacheStore::write_objects`](super::CacheStore::write_objects).
///
/// The first attempt is made without savepoints. If the database refuses a row, the transaction runs again and finds
/// out which.
pub(super) async fn write_objects<D: Dialect>(
    store: &SqlStore<D>,
    batches: &[AccountBatch],
) -> Result<Vec<BatchOutcome>, StoreError> {
    if batches.is_empty() {
        return Ok(Vec::new());
    }
    let write = WriteBatches::new::<D>(batches);
    match store.transact_on(PoolUse::WriteObjects, &write).await {
        Err(StoreError::Refused { .. }) => {
            let write = WriteBatches { on_refusal: OnRefusal::LeaveOut, ..write };
            store.transact_on(PoolUse::WriteObjects, &write).await
        }
        other => other,
    }
}

/// A transaction, with all that does not depend on the fences worked out before it begins.
struct WriteBatches<'b> {
    batches: &'b [AccountBatch],
    claims: Vec<BatchClaim>,
    /// Sorted by id; of two with the same id the one that counts comes first.
    objects: Vec<Object<'b>>,
    /// Ids to delete, each with the index of its batch, sorted.
    deletes: Vec<(&'b str, usize)>,
    scopes: ScopeChanges<'b>,
    /// Of each batch, what fits no database.
    reports: Vec<Vec<String>>,
    on_refusal: OnRefusal,
}

impl<'b> WriteBatches<'b> {
    fn new<D: Dialect>(batches: &'b [AccountBatch]) -> Self {
        let mut write = Self {
            batches,
            claims: batches.iter().map(|batch| batch.claim.clone()).collect(),
            objects: Vec::with_capacity(batches.iter().map(|batch| batch.upserts.len()).sum()),
            deletes: Vec::with_capacity(batches.iter().map(|batch| batch.deletes.len()).sum()),
            scopes: ScopeChanges::default(),
            reports: vec![Vec::new(); batches.len()],
            on_refusal: OnRefusal::Fail,
        };
        for (at, (batch, reports)) in batches.iter().zip(&mut write.reports).enumerate() {
            write.objects.extend(objects::fitting::<D>((at, batch), reports));
            // What fits no database is not stored.
            let storable = |id: &&String| D::unfit_key(id).is_none() && !id.contains('\0');
            write.deletes.extend(batch.deletes.iter().filter(storable).map(|id| (id.as_str(), at)));
            write.scopes.add(at, batch, reports);
        }
        objects::sort(&mut write.objects);
        write.deletes.sort_unstable();
        write
    }
}

impl<D: Dialect> Transaction<D> for WriteBatches<'_> {
    type Answer = Vec<BatchOutcome>;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<Self::Answer, StoreError> {
        let checks = fences::pass(session, &self.claims).await?;
        let passed: Vec<bool> = checks.iter().map(|check| *check == FenceCheck::Passed).collect();
        let (mut reports, now) = (self.reports.clone(), now());
        let due = objects::passed(&self.objects, &passed);
        let written = objects::write(session, due, now, self.on_refusal, &mut reports).await?;
        relations::write(session, &written, now, self.on_refusal, &mut reports).await?;
        let mut counts = vec![0; self.batches.len()];
        written.iter().for_each(|object| counts[object.batch] += 1);
        let deletes: Vec<&str> =
            self.deletes.iter().filter(|(_, batch)| passed[*batch]).map(|(id, _)| *id).collect();
        objects::delete(session, &deletes).await?;
        self.scopes.write(session, self.batches, &passed, now, self.on_refusal, &mut reports).await?;
        crash_points::point("cache-commit:in");
        let outcome = |((check, refused), written)| match check {
            FenceCheck::Passed => BatchOutcome::Committed { written, refused },
            check => BatchOutcome::Stopped(check),
        };
        Ok(checks.into_iter().zip(reports).zip(counts).map(outcome).collect())
    }
}

/// Number of rows below which the limit is not lowered.
const MIN_ROWS: usize = 32;
/// Duration of a transaction above which the next one has half as many rows.
const MAX_DURATION: Duration = Duration::from_millis(250);
/// Duration of a full transaction below which the next one has twice as many rows.
const SHORT_DURATION: Duration = Duration::from_millis(100);

/// Maximum number of rows in the next transaction over cached objects, by the time that earlier ones took. Such a
/// transaction holds the fence of an account, for which an election waits, and on SQLite the only connection for writes,
/// for which the rows of accounts wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLimit {
    rows: usize,
    most: usize,
}

impl RowLimit {
    /// A limit that begins at `most` and never exceeds it.
    pub fn at_most(most: usize) -> Self {
        Self { rows: most, most }
    }

    /// The limit.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Records a transaction with this number of rows.
    pub fn record(&mut self, took: Duration, rows: usize) {
        if took > MAX_DURATION {
            self.halve();
        } else if took < SHORT_DURATION && rows * 2 > self.rows {
            self.rows = (self.rows * 2).min(self.most);
        }
    }

    /// Halves the limit, as after a transaction that did not end in time.
    pub fn halve(&mut self) {
        self.rows = (self.rows / 2).max(MIN_ROWS.min(self.most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_halves_after_slow_transactions_and_doubles_after_short_full_ones() {
        let mut limit = RowLimit::at_most(500);
        limit.record(MAX_DURATION, 500);
        assert_eq!(limit.rows(), 500, "that is its aim");
        for expected in [250, 125, 62, 32, 32] {
            limit.record(MAX_DURATION + Duration::from_millis(1), 1);
            assert_eq!(limit.rows(), expected);
        }
        limit.record(Duration::from_millis(1), 5);
        assert_eq!(limit.rows(), 32, "it was not full");
        for expected in [64, 128, 256, 500, 500] {
            limit.record(Duration::from_millis(1), limit.rows());
            assert_eq!(limit.rows(), expected);
        }
        limit.halve();
        assert_eq!(limit.rows(), 250);
    }
}
