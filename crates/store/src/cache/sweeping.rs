//! The transactions that delete what no account needs any more: objects of removed scopes, and old Kubernetes events.
//! The leader runs them.
//!
//! Each locks the term, then the fence that has the account's name. No account of that name is inserted while the term
//! is locked, and no batch of it is written while its fence is, so what is watched cannot change until the end.

use super::scopes::{self, SCOPES};
use super::{EVENT_KIND, RemovedScope, Swept};
use crate::dialect::Dialect;
use crate::sql::statement::Statement;
use crate::sql::{SqlSession, Transaction};
use crate::{StoreError, Term, leader_terms, now};

/// Marks the scopes of an account as removed.
pub(super) struct RemoveScopes<'s> {
    pub(super) term: Option<Term>,
    pub(super) account_uid: &'s str,
}

impl<D: Dialect> Transaction<D> for RemoveScopes<'_> {
    type Answer = u64;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<u64, StoreError> {
        leader_terms::hold(session, self.term).await?;
        let fence = Statement::new("SELECT agent_id FROM kubesvc_caching WHERE account_uid = ? ")
            .bind(self.account_uid);
        let agents = session.select::<Option<String>>(locked(fence)).await?;
        if agents.iter().any(Option::is_some) {
            return Ok(0);
        }
        scopes::mark_removed(session, &[self.account_uid], now()).await
    }
}

/// Deletes objects of a removed scope.
pub(super) struct SweepScope<'s> {
    pub(super) term: Option<Term>,
    pub(super) scope: &'s RemovedScope,
    pub(super) limit: u32,
}

impl<D: Dialect> Transaction<D> for SweepScope<'_> {
    type Answer = Swept;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<Swept, StoreError> {
        leader_terms::hold(session, self.term).await?;
        let RemovedScope { account, key } = self.scope;
        let uid = lock_fence(session, account).await?;
        let id = key.row_id(account);
        let removed =
            Statement::new(&format!("SELECT kind FROM {} WHERE id = ? AND state = 'REMOVED'", SCOPES.name))
                .bind(id.as_str());
        let kinds = session.select::<String>(removed).await?;
        let Some(cached_kind) = kinds.first() else { return Ok(Swept { rows: 0, finished: true }) };
        let watched = watched_namespaces(session, account, uid.as_deref(), cached_kind).await?;
        let covered = |namespace: &str| watched.iter().any(|one| one == namespace);
        let rows = if covered("") || (!key.namespace.is_empty() && covered(&key.namespace)) {
            0
        } else {
            let condition = |delete: Statement<D>| {
                let delete = delete.text("account = ? AND kind = ?");
                let delete = delete.bind(account.as_str()).bind(cached_kind.as_str());
                if !key.namespace.is_empty() {
                    delete.text(" AND namespace = ?").bind(key.namespace.as_str())
                } else if !watched.is_empty() {
                    delete.text(" AND NOT (namespace ").one_of(&watched).text(")")
                } else {
                    delete
                }
            };
            delete_some(session, condition, self.limit).await?
        };
        let finished = rows < u64::from(self.limit);
        if finished {
            let delete =
                Statement::new(&format!("DELETE FROM {} WHERE id = ?", SCOPES.name)).bind(id.as_str());
            session.execute(delete).await?;
        }
        Ok(Swept { rows, finished })
    }
}

/// Deletes old Kubernetes events of an account.
pub(super) struct SweepEvents<'s> {
    pub(super) term: Option<Term>,
    pub(super) account: &'s str,
    pub(super) older_than_ms: i64,
    pub(super) limit: u32,
}

impl<D: Dialect> Transaction<D> for SweepEvents<'_> {
    type Answer = u64;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<u64, StoreError> {
        leader_terms::hold(session, self.term).await?;
        lock_fence(session, self.account).await?;
        let condition = |delete: Statement<D>| {
            let delete = delete.text("account = ? AND kind = ? AND last_updated < ?");
            delete.bind(self.account).bind(EVENT_KIND).bind(self.older_than_ms)
        };
        delete_some(session, condition, self.limit).await
    }
}

/// Deletes at most `limit` of the objects that a condition selects, with their relations. Returns how many.
async fn delete_some<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    condition: impl Fn(Statement<D>) -> Statement<D>,
    limit: u32,
) -> Result<u64, StoreError> {
    let statement =
        |(begin, end): (&str, &str)| condition(Statement::new(begin)).text(end).bind(i64::from(limit));
    if let Some(relations) = D::DELETE_THEIR_RELATIONS {
        session.execute(statement(relations)).await?;
    }
    session.execute(statement(D::DELETE_SOME_OBJECTS)).await
}

/// Adds the clause that locks the selected rows.
fn locked<D: Dialect>(select: Statement<D>) -> Statement<D> {
    select.text(D::ROW_LOCK.unwrap_or_default())
}

/// Locks the fence under the name of an account until the transaction ends. Returns the uid; `None` without a fence.
async fn lock_fence<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    account: &str,
) -> Result<Option<String>, StoreError> {
    let fence = Statement::new("SELECT account_uid FROM kubesvc_caching WHERE account = ? ").bind(account);
    Ok(session.select(locked(fence)).await?.into_iter().next())
}

/// The namespaces in which an account watches a kind; one that is empty means all. Without a fence there is no account,
/// and scopes that wait for the next one of its name count.
async fn watched_namespaces<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    account: &str,
    uid: Option<&str>,
    cached_kind: &str,
) -> Result<Vec<String>, StoreError> {
    let mut select = Statement::new(&format!(
        "SELECT DISTINCT namespace FROM {} WHERE account = ? AND kind = ? AND state <> 'REMOVED'",
        SCOPES.name
    ))
    .bind(account)
    .bind(cached_kind);
    if let Some(uid) = uid {
        select = select.text(" AND account_uid = ?").bind(uid);
    }
    session.select(select).await
}
