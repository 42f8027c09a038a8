//! What is cached of an account, from SQL, so that any replica answers: for REST and the API of accounts.
//!
//! | module | owns |
//! |---|---|
//! | `query` | what is asked |
//! | `missing_object` | why an object is not cached; pure |
//! | `account_defaults` | the operator's settings for accounts that do not say themselves |

mod account_defaults;
mod missing_object;
mod query;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::connected_agents::ConnectedAgents;
use crate::peers::Peers;
use kubesvc_core::cache::kind_names::KindSelector;
use kubesvc_core::cache::rules::{AccountRules, OperatorRules};
use kubesvc_core::{AgentId, KubesvcAccount, KubesvcAccountStatus};
use kubesvc_store::{CacheStore, FenceHolder, ObjectVersion, ScopeState, StoreError, StoredScope};
use missing_object::{ChosenKind, MissingFacts, choose_kind, why_missing};

pub use account_defaults::{AccountDefaults, RuntimeSettings};
pub use missing_object::MissingReason;
pub use query::CacheQuery;

/// Maximum number of kinds that an error lists.
const MAX_KINDS_LISTED: usize = 10;

/// What is needed to show what is cached of accounts.
#[derive(Clone)]
pub struct AccountCaches {
    /// The cached objects.
    pub store: Arc<dyn CacheStore>,
    /// Agents connected to this replica.
    pub connected_agents: Arc<dyn ConnectedAgents>,
    /// The other replicas.
    pub peers: Arc<Peers>,
    /// Which kinds are cached.
    pub kinds: OperatorRules,
    /// What holds for accounts that do not say themselves.
    pub defaults: AccountDefaults,
}

/// Why it is not shown what is cached.
#[derive(Debug, thiserror::Error)]
pub enum CacheViewError {
    /// The question is malformed, or several kinds have the name (400).
    #[error("{0}")]
    Query(String),
    /// The account has no such kind (404).
    #[error("{0}")]
    NoKind(String),
    /// The tables cannot be read (503).
    #[error("the database cannot be used now; try again")]
    Database(#[source] StoreError),
}

impl CacheViewError {
    /// Status that the caller is given.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Query(_) => StatusCode::BAD_REQUEST,
            Self::NoKind(_) => StatusCode::NOT_FOUND,
            Self::Database(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn database(error: StoreError) -> Self {
        tracing::warn!(error = error.in_full(), "cannot read what is cached of an account");
        Self::Database(error)
    }
}

/// What is cached of an account.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccountCache {
    /// Name of the account in Spinnaker.
    account: String,
    /// The agent that may write the account's objects; left out if none was elected.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<String>,
    /// Number of the agent's election; 0 if there was none.
    epoch: i64,
    /// Whether all kinds were listed whole, are watched since, and can be read now by a connected agent.
    synced: bool,
    /// Number of objects in the table, of the kinds below.
    objects: i64,
    /// Kinds that are watched, each in a namespace or in all, by kind and namespace.
    kinds: Vec<CachedKind>,
    /// The object that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<CachedObject>,
}

/// A kind that is watched.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CachedKind {
    /// The kind, as `kubesvc_cache.kind` has it.
    kind: String,
    /// The namespace; empty for all, and for objects without one.
    namespace: String,
    /// How far it is.
    state: ScopeState,
    /// Number of objects in the table.
    objects: i64,
    /// Version up to which it is cached; left out while it is listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    /// Time since that version was stored, in milliseconds. A quiet kind moves on about once a minute.
    age_ms: i64,
    /// Why it cannot be read now.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// An object that was asked for: its row, or why there is none.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CachedObject {
    /// The kind, as `kubesvc_cache.kind` has it.
    kind: String,
    /// Namespace; empty if it has none.
    namespace: String,
    /// Name.
    name: String,
    /// Whether it has a row.
    cached: bool,
    /// Version of the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    /// uid of the object in its cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    /// Time since the row was written, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ms: Option<i64>,
    /// Whether the row has a body; one that is too large is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    has_body: Option<bool>,
    /// Why it has no row.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<MissingReason>,
    /// The setting that leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    setting: Option<&'static str>,
    /// Why it has no row, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Returns the ids of the agents that hold each of these accounts, sorted. Agents whose replica does not answer are included if
/// the account's status names them.
pub async fn holders(
    connected_agents: &dyn ConnectedAgents,
    peers: &Peers,
    accounts: &[&KubesvcAccount],
) -> Vec<Vec<AgentId>> {
    let uids: Vec<_> = accounts.iter().map(|account| account.uid().to_owned()).collect();
    let mut remote = peers.holders(&uids).await;
    let each = accounts.iter().zip(&uids).map(|(account, uid)| {
        let own = connected_agents.holders(uid).into_iter().map(|agent| agent.agent_id);
        let recorded = account.status.iter().flat_map(KubesvcAccountStatus::agent_keys);
        let recorded = recorded.filter(|agent| remote.unknown.contains(agent)).map(|agent| agent.id);
        let answered = remote.agents.remove(uid).unwrap_or_default();
        let all: BTreeSet<_> = own.chain(recorded).chain(answered).collect();
        all.into_iter().collect()
    });
    each.collect()
}

/// `kubesvc_cache.kind` of the kind that is asked for.
fn one_kind(
    account: &KubesvcAccount,
    kind: &KindSelector,
    query: &CacheQuery,
    stored: &StoredCache,
) -> Result<String, CacheViewError> {
    let account = account.account_name();
    match choose_kind(kind, &stored.scopes) {
        ChosenKind::Known(kind) => Ok(kind),
        // With its group, a kind can exist and be left out.
        ChosenKind::Unknown if query.name.is_some() && kind.group().is_some() => Ok(kind.text()),
        ChosenKind::Unknown => {
            let text = kind.text();
            Err(CacheViewError::NoKind(format!(
                "account {account:?} caches no kind {text:?}: its cluster does not serve it, or a setting leaves it \
                 out; without `kind` this call lists what is cached, and kubesvc.cache.cacheKinds chooses it"
            )))
        }
        ChosenKind::Ambiguous(kinds) => {
            let kinds: Vec<_> = kinds.into_iter().take(MAX_KINDS_LISTED).collect();
            Err(CacheViewError::Query(format!(
                "kind {:?} is ambiguous: name one of {}",
                kind.text(),
                kinds.join(", ")
            )))
        }
    }
}

/// What the tables have of an account.
struct StoredCache {
    holder: Option<FenceHolder>,
    /// Those that count, without removed ones.
    scopes: Vec<StoredScope>,
    removed: Vec<StoredScope>,
    /// By kind and namespace; with an empty namespace, of all namespaces.
    counts: HashMap<(String, String), i64>,
}

impl AccountCaches {
    /// What is cached of an account, and of one object if the question names it.
    ///
    /// # Errors
    /// A [`CacheViewError`].
    pub async fn view(
        &self,
        account: &KubesvcAccount,
        query: &CacheQuery,
    ) -> Result<AccountCache, CacheViewError> {
        let name = account.account_name();
        let stored = self.stored_cache(account).await.map_err(CacheViewError::database)?;
        let now_ms = Timestamp::now().as_millisecond();
        let kind = query.kind.as_ref().map(|kind| one_kind(account, kind, query, &stored)).transpose()?;
        let object = match (&query.kind, &kind, &query.name) {
            (Some(given), Some(kind), Some(object)) => {
                let row = self.row(name, &stored, kind, &query.namespace, object).await;
                let row = row.map_err(CacheViewError::database)?;
                Some(self.object(account, &stored, (given, kind), (&query.namespace, object), row, now_ms))
            }
            _ => None,
        };
        let mut shown = stored.shown(name.to_owned(), kind.as_deref(), object, now_ms);
        // The tables do not say so of an agent that is gone.
        shown.synced = shown.synced && self.has_streaming_agent(account, &stored).await;
        Ok(shown)
    }

    async fn stored_cache(&self, account: &KubesvcAccount) -> Result<StoredCache, StoreError> {
        let (name, uid) = (account.account_name(), account.uid());
        let holder = self.store.fence_holder(uid).await?;
        let mut scopes = self.store.scopes(name).await?;
        scopes.sort_by(|a, b| (&a.cached_kind, &a.key.namespace).cmp(&(&b.cached_kind, &b.key.namespace)));
        // What is left of an account that had the name before counts for nothing.
        scopes.retain(|scope| scope.account_uid == uid);
        // Rows have the account's name alone: those that no scope of this account covers are another's.
        let of = |kind: &str, namespace: &str| covers(&scopes, kind, namespace);
        let mut counts = HashMap::new();
        for count in self.store.count_objects(name).await? {
            if of(&count.kind, "") {
                counts.insert((count.kind, String::new()), count.objects);
            }
        }
        if scopes.iter().any(|scope| !scope.key.namespace.is_empty()) {
            for count in self.store.count_objects_by_namespace(name).await? {
                if count.namespace.is_empty() || !of(&count.kind, &count.namespace) {
                    continue;
                }
                if !of(&count.kind, "") {
                    *counts.entry((count.kind.clone(), String::new())).or_default() += count.objects;
                }
                counts.insert((count.kind, count.namespace), count.objects);
            }
        }
        let (removed, scopes) = scopes.into_iter().partition(|scope| scope.state == ScopeState::Removed);
        Ok(StoredCache { holder, scopes, removed, counts })
    }

    /// Whether the agent that may write the account's objects holds it, connected to any replica. One that is connected
    /// here is found without asking the others.
    async fn has_streaming_agent(&self, account: &KubesvcAccount, stored: &StoredCache) -> bool {
        let Some(agent_id) = stored.holder.as_ref().and_then(|holder| holder.agent_id.as_ref()) else {
            return false;
        };
        let here = self.connected_agents.holders(account.uid());
        if here.iter().any(|agent| agent.agent_id == *agent_id) {
            return true;
        }
        holders(&*self.connected_agents, &self.peers, &[account])
            .await
            .into_iter()
            .flatten()
            .any(|holder| holder == *agent_id)
    }

    /// The row of an object. A namespace that is given for an object without one is not used.
    async fn row(
        &self,
        account: &str,
        stored: &StoredCache,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<(String, ObjectVersion)>, StoreError> {
        let mut namespaces = vec![namespace, ""];
        namespaces.dedup();
        for namespace in namespaces.into_iter().filter(|one| stored.covers(kind, one)) {
            if let Some(row) = self.store.object_version(account, kind, namespace, name).await? {
                return Ok(Some((namespace.to_owned(), row)));
            }
        }
        Ok(None)
    }

    fn object(
        &self,
        account: &KubesvcAccount,
        stored: &StoredCache,
        (given, kind): (&KindSelector, &str),
        (namespace, name): (&str, &str),
        row: Option<(String, ObjectVersion)>,
        now_ms: i64,
    ) -> CachedObject {
        let mut object = CachedObject {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            cached: row.is_some(),
            resource_version: None,
            uid: None,
            age_ms: None,
            has_body: None,
            reason: None,
            setting: None,
            message: None,
        };
        if let Some((namespace, row)) = row {
            object.namespace = namespace;
            object.resource_version = Some(row.resource_version);
            object.uid = row.uid;
            object.age_ms = Some(now_ms.saturating_sub(row.last_updated_ms).max(0));
            object.has_body = Some(row.has_body);
            return object;
        }
        let only_managed = self.defaults.only_spinnaker_managed(account.account_name());
        let (rules, _) = AccountRules::from_spec(&account.spec, only_managed);
        let missing = why_missing(&MissingFacts {
            operator: &self.kinds,
            account: &rules,
            scopes: &stored.scopes,
            kind: given,
            namespace,
            name,
            has_agent: stored.holder.as_ref().is_some_and(|holder| holder.agent_id.is_some()),
            now_ms,
        });
        object.reason = Some(missing.reason);
        object.setting = missing.setting;
        object.message = Some(missing.message);
        object
    }
}

/// Whether one of these scopes has the objects of a kind in a namespace.
fn covers(scopes: &[StoredScope], kind: &str, namespace: &str) -> bool {
    let is_in = |scope: &StoredScope| scope.key.namespace.is_empty() || scope.key.namespace == namespace;
    scopes.iter().any(|scope| scope.cached_kind == kind && is_in(scope))
}

impl StoredCache {
    fn covers(&self, kind: &str, namespace: &str) -> bool {
        covers(&self.scopes, kind, namespace) || covers(&self.removed, kind, namespace)
    }

    fn count(&self, scope: &StoredScope) -> i64 {
        let of = (scope.cached_kind.clone(), scope.key.namespace.clone());
        self.counts.get(&of).copied().unwrap_or_default()
    }

    fn shown(
        &self,
        account: String,
        kind: Option<&str>,
        object: Option<CachedObject>,
        now_ms: i64,
    ) -> AccountCache {
        let is_asked = |one: &str| kind.is_none_or(|kind| kind == one);
        let all = self.counts.iter().filter(|((_, namespace), _)| namespace.is_empty());
        let objects = all.filter(|((kind, _), _)| is_asked(kind)).map(|(_, count)| count).sum();
        let shown = self.scopes.iter().chain(&self.removed).filter(|scope| is_asked(&scope.cached_kind));
        let kinds: Vec<_> = shown
            .map(|scope| CachedKind {
                kind: scope.cached_kind.clone(),
                namespace: scope.key.namespace.clone(),
                state: scope.state,
                objects: self.count(scope),
                resource_version: scope.resource_version.clone(),
                age_ms: now_ms.saturating_sub(scope.last_updated_ms).max(0),
                problem: scope.problem.clone(),
            })
            .collect();
        let is_synced = |scope: &StoredScope| scope.state == ScopeState::Synced && scope.problem.is_none();
        let agent_id = self.holder.as_ref().and_then(|holder| holder.agent_id.clone());
        AccountCache {
            account,
            epoch: self.holder.as_ref().map_or(0, |holder| holder.epoch.0),
            synced: agent_id.is_some() && !self.scopes.is_empty() && self.scopes.iter().all(is_synced),
            agent_id: agent_id.map(Into::into),
            objects,
            kinds,
            object,
        }
    }
}
