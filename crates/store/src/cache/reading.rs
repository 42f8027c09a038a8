//! What is read of the cached objects, and the port itself.

use async_trait::async_trait;

use super::scopes::{self, SCOPES};
use super::sweeping::{self, SweepEvents, SweepScope};
use super::{
    AccountBatch, BasisRow, BatchOutcome, CacheStore, EVENT_KIND, FenceHolder, KindCount, NamespaceCount,
    ObjectVersion, RemovedScope, ScopeKey, StoredProgress, StoredScope, Swept, writing,
};
use crate::dialect::Dialect;
use crate::sql::driver::{ColumnValue as _, Driver as _};
use crate::sql::pools::PoolUse;
use crate::sql::statement::Statement;
use crate::sql::{RowOf, SqlSession, SqlStore};
use crate::{StoreError, Term};
use kubesvc_core::{AgentId, CachingEpoch};

#[async_trait]
impl<D: Dialect> CacheStore for SqlStore<D> {
    async fn write_objects(&self, batches: &[AccountBatch]) -> Result<Vec<BatchOutcome>, StoreError> {
        writing::write_objects(self, batches).await
    }

    async fn resume(&self, account_uid: &str, epoch: CachingEpoch) -> Result<StoredProgress, StoreError> {
        self.read_on(PoolUse::ReadObjects, async |session| progress(session, account_uid, epoch).await).await
    }

    async fn scopes(&self, account: &str) -> Result<Vec<StoredScope>, StoreError> {
        self.read(async |session| scopes::read_of_account(session, account).await).await
    }

    async fn basis(
        &self,
        account: &str,
        cached_kind: &str,
        namespace: &str,
        after: Option<&BasisRow>,
        limit: u32,
    ) -> Result<Vec<BasisRow>, StoreError> {
        self.read_on(PoolUse::ReadObjects, async |session| {
            let select = select_basis(account, cached_kind, namespace, after, limit);
            rows(session, select, basis_row::<D>).await
        })
        .await
    }

    async fn object_version(
        &self,
        account: &str,
        cached_kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ObjectVersion>, StoreError> {
        let select = Statement::new(
            "SELECT uid, resource_version, body IS NOT NULL OR body_z IS NOT NULL, last_updated FROM kubesvc_cache \
             WHERE account = ? AND kind = ? AND namespace = ? AND name = ?",
        )
        .bind(account)
        .bind(cached_kind)
        .bind(namespace)
        .bind(name);
        self.read(async |session| session.all(select, object_version::<D>).await)
            .await
            .map(|mut all| all.pop())
    }

    async fn count_objects(&self, account: &str) -> Result<Vec<KindCount>, StoreError> {
        let select = Statement::new(
            "SELECT kind, count(*) FROM kubesvc_cache WHERE account = ? GROUP BY kind ORDER BY kind",
        )
        .bind(account);
        self.read(async |session| rows(session, select, kind_count::<D>).await).await
    }

    async fn count_objects_by_namespace(&self, account: &str) -> Result<Vec<NamespaceCount>, StoreError> {
        let select = Statement::new(
            "SELECT kind, namespace, count(*) FROM kubesvc_cache WHERE account = ? GROUP BY kind, namespace \
             ORDER BY kind, namespace",
        )
        .bind(account);
        self.read(async |session| rows(session, select, namespace_count::<D>).await).await
    }

    async fn fence_holder(&self, account_uid: &str) -> Result<Option<FenceHolder>, StoreError> {
        let select = Statement::new("SELECT epoch, agent_id FROM kubesvc_caching WHERE account_uid = ?")
            .bind(account_uid);
        self.read(async |session| session.all(select, fence_holder::<D>).await).await.map(|mut all| all.pop())
    }

    async fn removed_scopes(&self, limit: u32) -> Result<Vec<RemovedScope>, StoreError> {
        let select = Statement::new(&format!(
            "SELECT account, ns_group_kind FROM {} WHERE state = 'REMOVED' ORDER BY last_updated, id LIMIT ?",
            SCOPES.name
        ))
        .bind(i64::from(limit));
        let found = self.read(async |session| rows(session, select, removed_scope::<D>).await).await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn accounts_with_events(&self) -> Result<Vec<String>, StoreError> {
        let select = Statement::new(&format!(
            "SELECT DISTINCT account FROM {} WHERE kind = ? AND state <> 'REMOVED' ORDER BY account",
            SCOPES.name
        ))
        .bind(EVENT_KIND);
        self.read(async |session| rows(session, select, |row| String::required::<D::Database>(row, 0)).await)
            .await
    }

    async fn accounts_to_remove(&self, account_uids: &[String]) -> Result<Vec<String>, StoreError> {
        let select = Statement::new(&format!(
            "SELECT DISTINCT account_uid FROM {} scopes WHERE state <> 'REMOVED' AND NOT EXISTS (SELECT 1 FROM \
             kubesvc_caching fences WHERE fences.account_uid = scopes.account_uid AND fences.agent_id IS NOT NULL) AND \
             account_uid ",
            SCOPES.name
        ))
        .one_of(account_uids);
        self.read(async |session| rows(session, select, |row| String::required::<D::Database>(row, 0)).await)
            .await
    }

    async fn remove_scopes(&self, term: Option<Term>, account_uid: &str) -> Result<u64, StoreError> {
        self.transact_on(PoolUse::Sweep, &sweeping::RemoveScopes { term, account_uid }).await
    }

    async fn sweep_scope(
        &self,
        term: Option<Term>,
        scope: &RemovedScope,
        limit: u32,
    ) -> Result<Swept, StoreError> {
        self.transact_on(PoolUse::Sweep, &SweepScope { term, scope, limit }).await
    }

    async fn sweep_events(
        &self,
        term: Option<Term>,
        account: &str,
        older_than_ms: i64,
        limit: u32,
    ) -> Result<u64, StoreError> {
        self.transact_on(PoolUse::Sweep, &SweepEvents { term, account, older_than_ms, limit }).await
    }
}

/// Reads a result that may be long.
async fn rows<D: Dialect, T: Send>(
    session: &mut SqlSession<'_, D>,
    select: Statement<D>,
    read: impl Fn(&RowOf<D>) -> Result<T, sqlx::Error> + Send + Sync,
) -> Result<Vec<T>, StoreError> {
    let mut found = Vec::new();
    session.each(select, |row| found.push(read(row))).await?;
    found.into_iter().collect::<Result<_, _>>().map_err(D::classify)
}

/// The fence is read first. Read after the scopes, it could count batches whose checkpoints were not seen; read before
/// them, it at worst makes the agent send again what is committed.
async fn progress<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    account_uid: &str,
    epoch: CachingEpoch,
) -> Result<StoredProgress, StoreError> {
    let select =
        Statement::new("SELECT epoch, committed_seq, account FROM kubesvc_caching WHERE account_uid = ?")
            .bind(account_uid);
    let fence = session.all(select, |row| {
        Ok((
            CachingEpoch(i64::required::<D::Database>(row, 0)?),
            i64::required::<D::Database>(row, 1)?,
            String::required::<D::Database>(row, 2)?,
        ))
    });
    let Some((stored, committed, account)) = fence.await?.pop() else { return Ok(StoredProgress::Gone) };
    Ok(match stored.cmp(&epoch) {
        std::cmp::Ordering::Less => StoredProgress::Lower(stored),
        std::cmp::Ordering::Greater => StoredProgress::Higher(stored),
        std::cmp::Ordering::Equal => {
            let scopes = scopes::read_of_account(session, &account).await?;
            StoredProgress::Stands { committed, scopes }
        }
    })
}

/// Selects one page of a basis. The order is that of the index (account, kind, namespace), so that a page reads no
/// more rows than it returns, but for those of one namespace.
fn select_basis<D: Dialect>(
    account: &str,
    cached_kind: &str,
    namespace: &str,
    after: Option<&BasisRow>,
    limit: u32,
) -> Statement<D> {
    let mut select = Statement::new(
        "SELECT id, namespace, name, uid, resource_version FROM kubesvc_cache WHERE account = ? AND kind = ?",
    )
    .bind(account)
    .bind(cached_kind);
    if !namespace.is_empty() {
        select = select.text(" AND namespace = ?").bind(namespace);
    }
    if let Some(BasisRow { namespace, id, .. }) = after {
        select = select
            .text(" AND namespace >= ? AND (namespace > ? OR id > ?)")
            .bind(namespace.as_str())
            .bind(namespace.as_str())
            .bind(id.as_str());
    }
    select.text(" ORDER BY namespace, id LIMIT ?").bind(i64::from(limit))
}

fn basis_row<D: Dialect>(row: &RowOf<D>) -> Result<BasisRow, sqlx::Error> {
    Ok(BasisRow {
        id: String::required::<D::Database>(row, 0)?,
        namespace: String::required::<D::Database>(row, 1)?,
        name: String::required::<D::Database>(row, 2)?,
        uid: D::Database::text(row, 3)?,
        resource_version: String::required::<D::Database>(row, 4)?,
    })
}

fn object_version<D: Dialect>(row: &RowOf<D>) -> Result<ObjectVersion, sqlx::Error> {
    Ok(ObjectVersion {
        uid: D::Database::text(row, 0)?,
        resource_version: String::required::<D::Database>(row, 1)?,
        has_body: bool::required::<D::Database>(row, 2)?,
        last_updated_ms: i64::required::<D::Database>(row, 3)?,
    })
}

fn kind_count<D: Dialect>(row: &RowOf<D>) -> Result<KindCount, sqlx::Error> {
    Ok(KindCount {
        kind: String::required::<D::Database>(row, 0)?,
        objects: i64::required::<D::Database>(row, 1)?,
    })
}

fn namespace_count<D: Dialect>(row: &RowOf<D>) -> Result<NamespaceCount, sqlx::Error> {
    Ok(NamespaceCount {
        kind: String::required::<D::Database>(row, 0)?,
        namespace: String::required::<D::Database>(row, 1)?,
        objects: i64::required::<D::Database>(row, 2)?,
    })
}

fn fence_holder<D: Dialect>(row: &RowOf<D>) -> Result<FenceHolder, sqlx::Error> {
    Ok(FenceHolder {
        epoch: CachingEpoch(i64::required::<D::Database>(row, 0)?),
        agent_id: D::Database::text(row, 1)?.filter(|id| !id.is_empty()).map(AgentId::from),
    })
}

fn removed_scope<D: Dialect>(row: &RowOf<D>) -> Result<Option<RemovedScope>, sqlx::Error> {
    let account = String::required::<D::Database>(row, 0)?;
    let key = String::required::<D::Database>(row, 1)?.parse::<ScopeKey>();
    Ok(key.ok().map(|key| RemovedScope { account, key }))
}
