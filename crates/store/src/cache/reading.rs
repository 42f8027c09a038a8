//! What is read of the cached objects, and the port itself.

use async_trait::async_trait;

use super::scopes::{self, SCOPES};
use super::sweeping::{self, SweepEvents, SweepScope};
use super::{
    AccountBatch, BasisRow, BatchOutcome, CacheStore, EVENT_KIND, FenceHolder, KindCount, NamespaceCount,
    ObjectVersion, RemovedScope, StoredProgress, StoredScope, Swept, writing,
};
use crate::dialect::Dialect;
use crate::sql::columns::columns;
use crate::sql::pools::PoolUse;
use crate::sql::statement::Statement;
use crate::sql::{SqlSession, SqlStore};
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
        let select = select_basis(account, cached_kind, namespace, after, limit);
        self.read_on(PoolUse::ReadObjects, async |session| session.select(select).await).await
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
        Ok(self.select(select).await?.pop())
    }

    async fn count_objects(&self, account: &str) -> Result<Vec<KindCount>, StoreError> {
        let select = Statement::new(
            "SELECT kind, count(*) FROM kubesvc_cache WHERE account = ? GROUP BY kind ORDER BY kind",
        )
        .bind(account);
        self.select(select).await
    }

    async fn count_objects_by_namespace(&self, account: &str) -> Result<Vec<NamespaceCount>, StoreError> {
        let select = Statement::new(
            "SELECT kind, namespace, count(*) FROM kubesvc_cache WHERE account = ? GROUP BY kind, namespace \
             ORDER BY kind, namespace",
        )
        .bind(account);
        self.select(select).await
    }

    async fn fence_holder(&self, account_uid: &str) -> Result<Option<FenceHolder>, StoreError> {
        let select = Statement::new("SELECT epoch, agent_id FROM kubesvc_caching WHERE account_uid = ?")
            .bind(account_uid);
        let holder = self.select::<(CachingEpoch, Option<AgentId>)>(select).await?.pop();
        Ok(holder
            .map(|(epoch, agent_id)| FenceHolder { epoch, agent_id: agent_id.filter(|id| !id.is_empty()) }))
    }

    async fn removed_scopes(&self, limit: u32) -> Result<Vec<RemovedScope>, StoreError> {
        let select = Statement::new(&format!(
            "SELECT account, ns_group_kind FROM {} WHERE state = 'REMOVED' ORDER BY last_updated, id LIMIT ?",
            SCOPES.name
        ))
        .bind(i64::from(limit));
        let scope = |(account, key): (String, String)| Some(RemovedScope { account, key: key.parse().ok()? });
        Ok(self.select(select).await?.into_iter().filter_map(scope).collect())
    }

    async fn accounts_with_events(&self) -> Result<Vec<String>, StoreError> {
        let select = Statement::new(&format!(
            "SELECT DISTINCT account FROM {} WHERE kind = ? AND state <> 'REMOVED' ORDER BY account",
            SCOPES.name
        ))
        .bind(EVENT_KIND);
        self.select(select).await
    }

    async fn accounts_to_remove(&self, account_uids: &[String]) -> Result<Vec<String>, StoreError> {
        let select = Statement::new(&format!(
            "SELECT DISTINCT account_uid FROM {} scopes WHERE state <> 'REMOVED' AND NOT EXISTS (SELECT 1 FROM \
             kubesvc_caching fences WHERE fences.account_uid = scopes.account_uid AND fences.agent_id IS NOT NULL) AND \
             account_uid ",
            SCOPES.name
        ))
        .one_of(account_uids);
        self.select(select).await
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
    let Some(fence) = session.select::<(CachingEpoch, i64, String)>(select).await?.pop() else {
        return Ok(StoredProgress::Gone);
    };
    let (stored, committed, account) = fence;
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

columns! { BasisRow: id, namespace, name, uid, resource_version }
columns! { ObjectVersion: uid, resource_version, has_body, last_updated_ms }
columns! { KindCount: kind, objects }
columns! { NamespaceCount: kind, namespace, objects }
