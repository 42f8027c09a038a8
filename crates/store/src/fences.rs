//! The fence of each account in `kubesvc_caching`: the process whose objects are accepted, and the last batch
//! written.
//!
//! A row is inserted together with its account's, under epoch 0, and deleted with it. The replica that has the
//! session of the elected agent *raises* the fence to the epoch of the election, never lower. Every transaction that
//! writes objects first *passes* the fence of each account: one conditional update that is fence check, record of
//! progress, and lock in one. Of two concurrent writers at most one passes, whatever they believe about the election.

use std::collections::HashMap;

use async_trait::async_trait;

use super::dialect::Dialect;
use super::sql::columns::{columns, table};
use super::sql::driver::Driver as _;
use super::sql::statement::Statement;
use super::sql::{RowOf, SqlSession, SqlStore, Transaction};
use super::{StoreError, column_limits, now};
use kubesvc_core::account_row::AccountRow;
use kubesvc_core::{AgentId, CachingEpoch, ReplicaId};

/// Maximum length of a stored replica id, in characters.
const MAX_REPLICA_CHARS: usize = 191;

/// A fence to raise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// uid of the account.
    pub uid: String,
    /// Epoch of caching, from 1.
    pub epoch: CachingEpoch,
    /// id of the agent whose objects are accepted; `None`: nobody's.
    pub agent_id: Option<AgentId>,
    /// The process of that agent.
    pub boot_id: Option<String>,
    /// The replica that has the agent's stream.
    pub replica_id: Option<ReplicaId>,
}

/// Result of raising a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaiseOutcome {
    /// The fence is at this epoch. If it was before, what was written under it still counts.
    Stands,
    /// The fence is at this higher epoch and was left there: another process was elected.
    Higher(CachingEpoch),
    /// There is no fence: the account's row does not exist yet, or no longer.
    Missing,
}

/// A fence as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFence {
    /// uid of the account.
    pub uid: String,
    /// Its epoch.
    pub epoch: CachingEpoch,
    /// The replica that raised it.
    pub replica_id: Option<ReplicaId>,
}

/// What a writer is about to write for one account: every batch after `committed` up to `last`, under an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchClaim {
    /// uid of the account.
    pub uid: String,
    /// The epoch that the agent was assigned.
    pub epoch: CachingEpoch,
    /// Number of the last batch known to be written; 0 if none.
    pub committed: i64,
    /// Number of the last batch in this transaction.
    pub last: i64,
}

/// Whether the transaction may write an account's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceCheck {
    /// It may; no other transaction can until this one ends.
    Passed,
    /// The batches were written before: the answer was lost.
    Done,
    /// The last batch written is this one: the agent continues after it.
    Rewind(i64),
    /// The fence is not raised yet, and is at this epoch: retry once it is raised.
    Lower(CachingEpoch),
    /// Another process was elected, under this epoch: stop.
    Higher(CachingEpoch),
    /// The account is gone, or another one has its name: stop.
    Gone,
}

impl BatchClaim {
    /// The verdict from the epoch and last batch of the row.
    pub fn check(&self, row: Option<(CachingEpoch, i64)>) -> FenceCheck {
        if row == Some((self.epoch, self.committed)) { FenceCheck::Passed } else { self.judge(row) }
    }

    /// The verdict for a claim that did not pass.
    fn judge(&self, row: Option<(CachingEpoch, i64)>) -> FenceCheck {
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
    /// The outcome for a fence that was not raised, from the row.
    fn judge(&self, row: Option<(CachingEpoch, i64)>) -> RaiseOutcome {
        match row {
            None => RaiseOutcome::Missing,
            Some((epoch, _)) if epoch > self.epoch => RaiseOutcome::Higher(epoch),
            Some(_) => RaiseOutcome::Stands,
        }
    }

    /// The replica id, truncated to [`MAX_REPLICA_CHARS`].
    fn replica(&self) -> Option<String> {
        self.replica_id.as_ref().map(|id| id.as_str().chars().take(MAX_REPLICA_CHARS).collect())
    }
}

/// Validates fences and sorts them into write order.
fn checked(fences: &[Fence]) -> Result<Vec<&Fence>, StoreError> {
    let mut sorted: Vec<_> = fences.iter().collect();
    sorted.sort_unstable_by(|one, other| one.uid.cmp(&other.uid));
    for fence in &sorted {
        let texts = [
            ("account_uid", Some(fence.uid.as_str()), 36),
            ("agent_id", fence.agent_id.as_ref().map(AgentId::as_str), 191),
            ("boot_id", fence.boot_id.as_deref(), 26),
            ("replica_id", fence.replica_id.as_ref().map(ReplicaId::as_str), usize::MAX),
        ];
        let unfit =
            |(column, text, most): (&str, Option<&str>, usize)| column_limits::unfit(column, text?, most);
        if let Some(why) = texts.into_iter().find_map(unfit) {
            return Err(StoreError::refused(format!("kubesvc_caching row {:?}", fence.uid), why));
        }
    }
    Ok(sorted)
}

/// Fence rows to delete and insert so that each account has one under its name.
#[derive(Debug, Default, PartialEq, Eq)]
struct FenceRowSync<'r> {
    /// uids of rows that have the name of another account, or an old name of their own.
    deletes: Vec<String>,
    /// uid and name of each row to insert.
    inserts: Vec<(&'r str, &'r str)>,
}

/// Compares accounts with `held`: uid and name of each row that has one of their uids or names.
fn keeping<'r>(rows: &[&'r AccountRow], held: Vec<(String, String)>) -> FenceRowSync<'r> {
    let mut missing: HashMap<&str, &str> =
        rows.iter().map(|row| (row.uid.as_str(), row.name.as_str())).collect();
    let mut deletes: Vec<_> = held
        .into_iter()
        .filter(|(uid, name)| missing.remove(uid.as_str()).is_none_or(|wanted| wanted != name))
        .collect();
    // A row deleted because of its name is inserted again under the right one.
    let gone = |row: &&&'r AccountRow| deletes.iter().any(|(uid, _)| *uid == row.uid);
    missing.extend(rows.iter().filter(gone).map(|row| (row.uid.as_str(), row.name.as_str())));
    deletes.sort_unstable();
    deletes.dedup();
    let mut inserts: Vec<_> = missing.into_iter().collect();
    inserts.sort_unstable();
    FenceRowSync { deletes: deletes.into_iter().map(|(uid, _)| uid).collect(), inserts }
}

table! {
    /// `kubesvc_caching`, with the columns of a fence that is inserted with its account.
    const FENCES = "kubesvc_caching", key &["account_uid"], ours None;
    fn values<'v>(uid: &'v str, account: &'v str) {
        account_uid: Varchar(36) = uid,
        account: Varchar(255) = account,
        epoch: Bigint = 0_i64,
    }
}

columns! { StoredFence: uid, epoch, replica_id }

/// uids of accounts without a fence under their name.
const UNFENCED: &str = "SELECT a.uid FROM kubesvc_accounts a LEFT JOIN kubesvc_caching c \
     ON c.account_uid = a.uid AND c.account = a.name WHERE a.uid IS NOT NULL AND c.account_uid IS NULL";
/// uids of fences without an account.
const STRAY: &str = "SELECT c.account_uid FROM kubesvc_caching c LEFT JOIN kubesvc_accounts a \
     ON a.uid = c.account_uid WHERE a.uid IS NULL";

/// The fences of accounts. Each method is one transaction.
#[async_trait]
pub trait FenceStore: Send + Sync {
    /// Raises the fences of accounts, all or none; each uid appears once. Returns the outcome of each.
    async fn raise_fences(&self, fences: &[Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError>;

    /// All fences that were ever raised.
    async fn fences(&self) -> Result<Vec<StoredFence>, StoreError>;
}

#[async_trait]
impl<D: Dialect> FenceStore for SqlStore<D> {
    async fn raise_fences(&self, fences: &[Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
        self.transact(&Raise(checked(fences)?)).await
    }

    async fn fences(&self) -> Result<Vec<StoredFence>, StoreError> {
        let select = "SELECT account_uid, epoch, replica_id FROM kubesvc_caching WHERE epoch > 0";
        self.select(Statement::new(select)).await
    }
}

/// The epoch of a fence and the last batch written.
async fn read<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    uid: &str,
) -> Result<Option<(CachingEpoch, i64)>, StoreError> {
    let select =
        Statement::new("SELECT epoch, committed_seq FROM kubesvc_caching WHERE account_uid = ?").bind(uid);
    Ok(session.select(select).await?.pop())
}

/// Raises fences in order. A fence already at its epoch keeps `committed_seq` and gets the new process and replica.
struct Raise<'f>(Vec<&'f Fence>);

impl<D: Dialect> Transaction<D> for Raise<'_> {
    type Answer = Vec<(String, RaiseOutcome)>;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<Self::Answer, StoreError> {
        let (mut raised, now) = (Vec::with_capacity(self.0.len()), now());
        for fence in &self.0 {
            // `committed_seq` comes first because MySQL assigns from left to right: it must still see the old epoch.
            let update = Statement::new(
                "UPDATE kubesvc_caching SET committed_seq = CASE WHEN epoch < ? THEN 0 ELSE committed_seq END, \
                 epoch = ?, agent_id = ?, boot_id = ?, replica_id = ?, last_updated = ? \
                 WHERE account_uid = ? AND epoch <= ?",
            )
            .bind(fence.epoch.0)
            .bind(fence.epoch.0)
            .bind(fence.agent_id.as_ref().map(AgentId::as_str))
            .bind(fence.boot_id.as_deref())
            .bind(fence.replica().as_deref())
            .bind(now)
            .bind(fence.uid.as_str())
            .bind(fence.epoch.0);
            let outcome = match session.execute(update).await? {
                0 => fence.judge(read(session, &fence.uid).await?),
                _ => RaiseOutcome::Stands,
            };
            raised.push((fence.uid.clone(), outcome));
        }
        Ok(raised)
    }
}

/// Passes the fences of these accounts; each account appears once. Must be called first in the transaction that
/// writes their objects. Objects of accounts that do not pass must be left out of the transaction.
pub(super) async fn pass<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    claims: &[BatchClaim],
) -> Result<Vec<FenceCheck>, StoreError> {
    let (mut order, now): (Vec<usize>, _) = ((0..claims.len()).collect(), now());
    // The same order in every transaction, so that two never deadlock.
    order.sort_unstable_by(|one, other| claims[*one].uid.cmp(&claims[*other].uid));
    let mut verdicts = vec![FenceCheck::Gone; claims.len()];
    for at in order {
        let claim = &claims[at];
        let update = Statement::new(
            "UPDATE kubesvc_caching SET committed_seq = ?, last_updated = ? \
             WHERE account_uid = ? AND epoch = ? AND committed_seq = ?",
        )
        .bind(claim.last)
        .bind(now)
        .bind(claim.uid.as_str())
        .bind(claim.epoch.0)
        .bind(claim.committed);
        verdicts[at] = match session.execute(update).await? {
            0 => claim.judge(read(session, &claim.uid).await?),
            _ => FenceCheck::Passed,
        };
    }
    Ok(verdicts)
}

/// uids of accounts without a fence, and of fences without an account.
pub(super) async fn amiss<D: Dialect>(
    session: &mut SqlSession<'_, D>,
) -> Result<(Vec<String>, Vec<String>), StoreError> {
    // A uid edited by hand may be no text; such a row is reported elsewhere.
    let mut uids = [Vec::new(), Vec::new()];
    for (select, uids) in [UNFENCED, STRAY].into_iter().zip(&mut uids) {
        let read = |row: &RowOf<D>| Ok(D::Database::text(row, 0).ok().flatten());
        uids.extend(session.all(Statement::new(select), read).await?.into_iter().flatten());
    }
    let [unfenced, stray] = uids;
    Ok((unfenced, stray))
}

/// Ensures that each of these accounts has a fence under its name.
pub(super) async fn keep<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    rows: &[&AccountRow],
    now: i64,
) -> Result<(), StoreError> {
    let uids: Vec<_> = rows.iter().map(|row| row.uid.as_str()).collect();
    let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
    let select = Statement::new("SELECT account_uid, account FROM kubesvc_caching WHERE account_uid ")
        .one_of(&uids)
        .text(" UNION SELECT account_uid, account FROM kubesvc_caching WHERE account ")
        .one_of(&names);
    let keeping = keeping(rows, session.select(select).await?);
    for piece in session.dialect.pieces(&keeping.deletes, |_| 0) {
        let delete = Statement::new("DELETE FROM kubesvc_caching WHERE account_uid ").one_of(piece);
        session.execute(delete).await?;
    }
    for piece in session.dialect.pieces(&keeping.inserts, |_| 0) {
        let rows: Vec<_> = piece.iter().map(|(uid, name)| values(uid, name)).collect();
        session.execute(FENCES.insert(&rows, now)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::contract::row;

    fn claim(committed: i64, last: i64) -> BatchClaim {
        BatchClaim { uid: "u".into(), epoch: CachingEpoch(5), committed, last }
    }

    #[test]
    fn refused_claim_names_the_reason() {
        assert_eq!(claim(3, 5).check(Some((CachingEpoch(5), 3))), FenceCheck::Passed);
        assert_eq!(claim(3, 5).check(Some((CachingEpoch(5), 4))), FenceCheck::Rewind(4));
        assert_eq!(claim(3, 5).judge(None), FenceCheck::Gone);
        assert_eq!(claim(3, 5).judge(Some((CachingEpoch(6), 0))), FenceCheck::Higher(CachingEpoch(6)));
        assert_eq!(claim(3, 5).judge(Some((CachingEpoch(4), 3))), FenceCheck::Lower(CachingEpoch(4)));
        assert_eq!(claim(3, 5).judge(Some((CachingEpoch(5), 5))), FenceCheck::Done);
        assert_eq!(claim(3, 5).judge(Some((CachingEpoch(5), 9))), FenceCheck::Done);
        assert_eq!(claim(3, 5).judge(Some((CachingEpoch(5), 4))), FenceCheck::Rewind(4));
        assert_eq!(claim(3, 5).judge(Some((CachingEpoch(5), 2))), FenceCheck::Rewind(2));
    }

    #[test]
    fn a_fence_comes_where_there_is_none_and_leaves_a_name_to_its_account() {
        let (one, two) = (row("one", "uid-1"), row("two", "uid-2"));
        let held = |rows: &[(&str, &str)]| {
            rows.iter().map(|(uid, name)| ((*uid).to_owned(), (*name).to_owned())).collect::<Vec<_>>()
        };
        let keeping = |held| keeping(&[&one, &two], held);
        assert_eq!(keeping(held(&[("uid-1", "one"), ("uid-2", "two")])), FenceRowSync::default());
        assert_eq!(keeping(held(&[("uid-1", "one")])).inserts, [("uid-2", "two")]);
        let renamed = keeping(held(&[("uid-1", "one"), ("old", "two"), ("uid-2", "before")]));
        assert_eq!(
            (renamed.deletes.join(" "), renamed.inserts),
            ("old uid-2".to_owned(), vec![("uid-2", "two")])
        );
    }
}
