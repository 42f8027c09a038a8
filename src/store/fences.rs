//! The fence of each account in `kubesvc_caching`: from which process of which agent its objects are taken, and how far
//! they are.
//!
//! A row is inserted with the account's, under epoch 0, and goes with it. Whoever has the session of the agent that was
//! elected *raises* the fence to the epoch of the election, never lower. Every transaction that writes objects of
//! accounts begins by *passing* the fence of each: one conditional update that is fence, record of what was written
//! before, and lock, all in one. Of two writers at most one passes, whatever either believes.

use std::collections::HashMap;

use super::StoreError;
use super::limits;
use crate::account::CachingEpoch;
use crate::account::row::AccountRow;

/// The longest id of a replica that is kept, in characters.
const MAX_REPLICA_CHARS: usize = 191;

/// A fence to be raised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// uid of the account.
    pub uid: String,
    /// The epoch of caching, from 1.
    pub epoch: CachingEpoch,
    /// Whose objects are taken; absent: nobody's.
    pub agent_id: Option<String>,
    /// Of which of its processes.
    pub boot_id: Option<String>,
    /// The replica that has its stream.
    pub replica_id: Option<String>,
}

/// What became of raising a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaiseOutcome {
    /// It stands at this epoch. Where it did before, what was written under it stands too.
    Stands,
    /// It stands higher, and was left there: somebody else was elected.
    Higher(CachingEpoch),
    /// There is none: the account's row is not there yet, or no longer.
    Missing,
}

/// A fence as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFence {
    /// uid of the account.
    pub uid: String,
    /// Its epoch.
    pub epoch: CachingEpoch,
    /// The replica that raised it.
    pub replica_id: Option<String>,
}

/// What a writer is about to write for one account: everything after `committed` up to `last`, under an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchClaim {
    /// uid of the account.
    pub uid: String,
    /// The epoch that its agent was told.
    pub epoch: CachingEpoch,
    /// The number of the last batch that is known to be written; 0: none.
    pub committed: i64,
    /// The number of the last batch of this transaction.
    pub last: i64,
}

/// Whether an account's objects may be written in the transaction that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceCheck {
    /// They may, and nobody else's until the transaction ends.
    Passed,
    /// They were written before: the answer was lost.
    Done,
    /// What was written ends here: the agent goes on from there.
    Rewind(i64),
    /// The fence is not raised yet, and stands here: try again once it is.
    Lower(CachingEpoch),
    /// Somebody else was elected, under this epoch: stop.
    Higher(CachingEpoch),
    /// The account is gone, or is another one under its name: stop.
    Gone,
}

impl BatchClaim {
    /// What follows from the row, as its epoch and the last batch written, where it did not let the claim pass.
    pub(super) fn judge(&self, row: Option<(CachingEpoch, i64)>) -> FenceCheck {
        match row {
            None => FenceCheck::Gone,
            Some((epoch, _)) if epoch > self.epoch => FenceCheck::Higher(epoch),
            Some((epoch, _)) if epoch < self.epoch => FenceCheck::Lower(epoch),
            Some((_, committed)) if committed >= self.last => FenceCheck::Done,
            Some((_, committed)) => FenceCheck::Rewind(committed),
        }
    }
}

impl Fence {
    /// What follows from the row where it was not raised.
    pub(super) fn judge(&self, row: Option<(CachingEpoch, i64)>) -> RaiseOutcome {
        match row {
            None => RaiseOutcome::Missing,
            Some((epoch, _)) if epoch > self.epoch => RaiseOutcome::Higher(epoch),
            Some(_) => RaiseOutcome::Stands,
        }
    }

    /// The replica, cut to what fits.
    pub(super) fn replica(&self) -> Option<String> {
        self.replica_id.as_ref().map(|id| id.chars().take(MAX_REPLICA_CHARS).collect())
    }
}

/// Checks fences before they are sent, and gives them in the order in which they are written.
pub(super) fn checked(fences: &[Fence]) -> Result<Vec<&Fence>, StoreError> {
    let mut sorted: Vec<_> = fences.iter().collect();
    sorted.sort_unstable_by(|one, other| one.uid.cmp(&other.uid));
    for fence in &sorted {
        let texts = [
            ("account_uid", Some(fence.uid.as_str()), 36),
            ("agent_id", fence.agent_id.as_deref(), 191),
            ("boot_id", fence.boot_id.as_deref(), 26),
            ("replica_id", fence.replica_id.as_deref(), usize::MAX),
        ];
        let unfit = |(column, text, most): (&str, Option<&str>, usize)| limits::unfit(column, text?, most);
        if let Some(why) = texts.into_iter().find_map(unfit) {
            return Err(StoreError::refused(format!("kubesvc_caching row {:?}", fence.uid), why));
        }
    }
    Ok(sorted)
}

/// The rows of fences that go and come so that each of these accounts has one under its name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FenceRowSync<'r> {
    /// uids of rows that have a name of another account, or another name of theirs.
    pub(super) deletes: Vec<String>,
    /// uid and name of each to be inserted.
    pub(super) inserts: Vec<(&'r str, &'r str)>,
}

/// Compares accounts with the rows (uid, name) that have one of their uids or names.
pub(super) fn keeping<'r>(rows: &[&'r AccountRow], held: Vec<(String, String)>) -> FenceRowSync<'r> {
    let mut missing: HashMap<&str, &str> =
        rows.iter().map(|row| (row.uid.as_str(), row.name.as_str())).collect();
    let mut deletes: Vec<_> = held
        .into_iter()
        .filter(|(uid, name)| missing.remove(uid.as_str()).is_none_or(|wanted| wanted != name))
        .collect();
    // One that goes is inserted again under its own name.
    let gone = |row: &&&'r AccountRow| deletes.iter().any(|(uid, _)| *uid == row.uid);
    missing.extend(rows.iter().filter(gone).map(|row| (row.uid.as_str(), row.name.as_str())));
    deletes.sort_unstable();
    deletes.dedup();
    let mut inserts: Vec<_> = missing.into_iter().collect();
    inserts.sort_unstable();
    FenceRowSync { deletes: deletes.into_iter().map(|(uid, _)| uid).collect(), inserts }
}

/// uids of accounts that have no fence under their name.
pub(super) const UNFENCED: &str = "SELECT a.uid FROM kubesvc_accounts a LEFT JOIN kubesvc_caching c \
     ON c.account_uid = a.uid AND c.account = a.name WHERE a.uid IS NOT NULL AND c.account_uid IS NULL";
/// uids of fences that have no account.
pub(super) const STRAY: &str = "SELECT c.account_uid FROM kubesvc_caching c LEFT JOIN kubesvc_accounts a \
     ON a.uid = c.account_uid WHERE a.uid IS NULL";
/// All fences that were ever raised.
pub(super) const STANDING: &str =
    "SELECT account_uid, epoch, replica_id FROM kubesvc_caching WHERE epoch > 0";

/// Makes `raise`, `pass` and what is read, for connections of one database. `$p…` are its spellings of parameters in the
/// order in which they stand, `$run` waits for a statement.
macro_rules! fences {
    ($connection:ty, $p1:literal $p2:literal $p3:literal $p4:literal $p5:literal $p6:literal $p7:literal $p8:literal, $run:path, $classify:path) => {
        async fn read(
            connection: &mut $connection,
            uid: &str,
        ) -> Result<Option<($crate::account::ids::CachingEpoch, i64)>, $crate::store::StoreError> {
            const READ: &str =
                concat!("SELECT epoch, committed_seq FROM kubesvc_caching WHERE account_uid = ", $p1);
            let row: Option<(i64, i64)> =
                $run(sqlx::query_as(READ).bind(uid).fetch_optional(connection), $classify).await?;
            Ok(row.map(|(epoch, committed)| ($crate::account::ids::CachingEpoch(epoch), committed)))
        }

        /// Raises fences, in their order; in a transaction of the caller's. One that stands at the epoch already is
        /// told where its stream ends now.
        pub(super) async fn raise(
            connection: &mut $connection,
            fences: &[&$crate::store::Fence],
            now: i64,
        ) -> Result<Vec<(String, $crate::store::RaiseOutcome)>, $crate::store::StoreError> {
            // From left to right, for a database that assigns so: the first one still sees the old epoch.
            const RAISE: &str = concat!(
                "UPDATE kubesvc_caching SET committed_seq = CASE WHEN epoch < ",
                $p1,
                " THEN 0 ELSE committed_seq END, epoch = ",
                $p2,
                ", agent_id = ",
                $p3,
                ", boot_id = ",
                $p4,
                ", replica_id = ",
                $p5,
                ", last_updated = ",
                $p6,
                " WHERE account_uid = ",
                $p7,
                " AND epoch <= ",
                $p8
            );
            let mut raised = Vec::with_capacity(fences.len());
            for fence in fences {
                let update = sqlx::query(RAISE)
                    .bind(fence.epoch.0)
                    .bind(fence.epoch.0)
                    .bind(fence.agent_id.as_deref())
                    .bind(fence.boot_id.as_deref())
                    .bind(fence.replica())
                    .bind(now)
                    .bind(fence.uid.as_str())
                    .bind(fence.epoch.0);
                let done = $run(update.execute(&mut *connection), $classify).await?;
                let outcome = match done.rows_affected() {
                    0 => fence.judge(read(&mut *connection, &fence.uid).await?),
                    _ => $crate::store::RaiseOutcome::Stands,
                };
                raised.push((fence.uid.clone(), outcome));
            }
            Ok(raised)
        }

        /// Passes the fences of these accounts; to be called first of all in the transaction that writes their objects,
        /// with each account once. What does not pass is to be left out of it.
        #[cfg_attr(not(test), expect(dead_code, reason = "whoever writes objects calls it; nobody does yet"))]
        pub(super) async fn pass(
            connection: &mut $connection,
            claims: &[$crate::store::BatchClaim],
            now: i64,
        ) -> Result<Vec<$crate::store::FenceCheck>, $crate::store::StoreError> {
            const PASS: &str = concat!(
                "UPDATE kubesvc_caching SET committed_seq = ",
                $p1,
                ", last_updated = ",
                $p2,
                " WHERE account_uid = ",
                $p3,
                " AND epoch = ",
                $p4,
                " AND committed_seq = ",
                $p5
            );
            let mut order: Vec<usize> = (0..claims.len()).collect();
            // On every transaction the same, so that two never wait for one another in a ring.
            order.sort_unstable_by(|one, other| claims[*one].uid.cmp(&claims[*other].uid));
            let mut verdicts = vec![$crate::store::FenceCheck::Gone; claims.len()];
            for at in order {
                let claim = &claims[at];
                let update = sqlx::query(PASS)
                    .bind(claim.last)
                    .bind(now)
                    .bind(claim.uid.as_str())
                    .bind(claim.epoch.0)
                    .bind(claim.committed);
                let done = $run(update.execute(&mut *connection), $classify).await?;
                verdicts[at] = match done.rows_affected() {
                    0 => claim.judge(read(&mut *connection, &claim.uid).await?),
                    _ => $crate::store::FenceCheck::Passed,
                };
            }
            Ok(verdicts)
        }

        /// All fences that were ever raised.
        pub(super) async fn standing(
            connection: &mut $connection,
        ) -> Result<Vec<$crate::store::StoredFence>, $crate::store::StoreError> {
            let query = sqlx::query_as($crate::store::fences::STANDING);
            let rows: Vec<(String, i64, Option<String>)> =
                $run(query.fetch_all(connection), $classify).await?;
            let standing = |(uid, epoch, replica_id)| $crate::store::StoredFence {
                uid,
                epoch: $crate::account::ids::CachingEpoch(epoch),
                replica_id,
            };
            Ok(rows.into_iter().map(standing).collect())
        }

        /// uids of accounts without a fence, and of fences without an account.
        pub(super) async fn amiss(
            connection: &mut $connection,
        ) -> Result<(Vec<String>, Vec<String>), $crate::store::StoreError> {
            // Somebody may have written a uid that is no text; such a row is told of elsewhere.
            let mut uids = [Vec::new(), Vec::new()];
            let selects = [$crate::store::fences::UNFENCED, $crate::store::fences::STRAY];
            for (select, uids) in selects.into_iter().zip(&mut uids) {
                let rows = $run(sqlx::query(select).fetch_all(&mut *connection), $classify).await?;
                uids.extend(rows.iter().filter_map(|row| sqlx::Row::try_get::<String, _>(row, 0).ok()));
            }
            let [unfenced, stray] = uids;
            Ok((unfenced, stray))
        }
    };
}
pub(super) use fences;

/// Makes `keep` for a database that spells all parameters as question marks.
macro_rules! keep {
    ($connection:ty, $run:path, $classify:path) => {
        static LOOK: std::sync::LazyLock<$crate::store::batches::Statements> = std::sync::LazyLock::new(|| {
            $crate::store::batches::Statements::new(|size| {
                let marks = $crate::store::statements::marks(size);
                format!(
                    "SELECT account_uid, account FROM kubesvc_caching WHERE account_uid IN ({marks}) UNION \
                     SELECT account_uid, account FROM kubesvc_caching WHERE account IN ({marks})"
                )
            })
        });

        static INSERT: std::sync::LazyLock<$crate::store::batches::Statements> = std::sync::LazyLock::new(|| {
            $crate::store::batches::Statements::new(|size| {
                format!(
                    "INSERT INTO kubesvc_caching (account_uid, account, epoch, last_updated) VALUES {}",
                    $crate::store::statements::tuples(size, 4)
                )
            })
        });

        /// Sees that each of these accounts has a fence under its name.
        pub(super) async fn keep(
            connection: &mut $connection,
            rows: &[&$crate::account::row::AccountRow],
            now: i64,
        ) -> Result<(), $crate::store::StoreError> {
            let mut look = sqlx::query_as(LOOK.of(rows.len()));
            for row in rows {
                look = look.bind(row.uid.as_str());
            }
            for row in rows {
                look = look.bind(row.name.as_str());
            }
            let held = $run(look.fetch_all(&mut *connection), $classify).await?;
            let keeping = $crate::store::fences::keeping(rows, held);
            for uid in &keeping.deletes {
                let delete = sqlx::query("DELETE FROM kubesvc_caching WHERE account_uid = ?").bind(uid.as_str());
                $run(delete.execute(&mut *connection), $classify).await?;
            }
            for piece in $crate::store::batches::pieces(&keeping.inserts, |_| 0, 0) {
                let mut insert = sqlx::query(INSERT.of(piece.len()));
                for (uid, name) in piece {
                    insert = insert.bind(*uid).bind(*name).bind(0_i64).bind(now);
                }
                $run(insert.execute(&mut *connection), $classify).await?;
            }
            Ok(())
        }
    };
}
pub(super) use keep;

#[cfg(test)]
pub(super) mod contract_tests;
#[cfg(test)]
mod tests;
