//! The router with an unreachable API server: all requests that are refused before the API server is called.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{HeaderMap, Request, Response, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::access::audit::AuditLog;
use crate::account_caches::AccountDefaults;
use crate::connected_agents::AgentView;
use crate::credentials_sources::CredentialsSources;
use crate::leases::Replicas;
use crate::operations::OperationPorts;
use crate::operations::tests::fakes::{self, AuditLines, ScriptedAccess, ScriptedCluster};
use crate::peers::PeerIdentity;
use crate::source_accounts::DeclinedAccounts;
use kubesvc_core::CachingEpoch;
use kubesvc_core::cache::native::kind_name;
use kubesvc_core::cache::rules::OperatorRules;
use kubesvc_core::lifecycle::SessionFact;
use kubesvc_core::source_rules::SourceRules;
use kubesvc_core::{AgentId, ReplicaId, ZoneId};
use kubesvc_store::{
    AccountBatch, AccountChanges, Assignment, AssignmentChanges, BasisRow, BatchOutcome, CacheStore,
    FenceHolder, ForeignRow, KindCount, NamespaceCount, NamespaceList, ObjectVersion, RemovedScope, ScopeKey,
    ScopeState, StoreError, StoredProgress, StoredScope, Swept, Term,
};

mod bounds;
mod cache;
mod callers;
mod credentials;
mod fake_api;
mod malformed;
mod operations;
mod passed_on;
mod routes;
mod serving;
mod source_accounts;

/// A valid kubeconfig, identified by its token.
fn kubeconfig(token: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://k.example:6443"}}],
        "users": [{"name": "u", "user": {"token": token}}]
    })
    .to_string()
}

struct NoAgents;

#[async_trait::async_trait]
impl ConnectedAgents for NoAgents {
    fn namespaces(&self, _: &str) -> Option<Vec<String>> {
        None
    }

    fn is_all_here(&self) -> bool {
        true
    }

    async fn read(&self, _: &ZoneId) -> Result<(), crate::connected_agents::ConnectedAgentsError> {
        Ok(())
    }

    fn sessions(&self, _: &str) -> Vec<SessionFact> {
        Vec::new()
    }

    fn agents(&self) -> Vec<AgentView> {
        vec![agent("b"), agent("a/1")]
    }

    fn holders(&self, _: &str) -> Vec<AgentView> {
        Vec::new()
    }

    fn disconnect(&self, agent_id: &AgentId, zone: Option<&ZoneId>) -> bool {
        agent_id == "a/1" && zone.is_none_or(|zone| zone == "z")
    }
}

fn agent(id: &str) -> AgentView {
    let time = "2022-02-23T22:18:54.7251Z".parse().expect("a time");
    AgentView {
        agent_id: id.into(),
        zone_id: "z".into(),
        version: "1".to_owned(),
        replica_id: "replica".into(),
        connected_since: time,
        last_seen: time,
        approved: true,
        accounts: vec!["z".to_owned(), "a".to_owned()],
    }
}

/// A database with nothing in it but what Clouddriver's account management has there.
#[derive(Default)]
struct NoStore {
    pushed: parking_lot::Mutex<Vec<kubesvc_store::PushedRow>>,
    intents: parking_lot::Mutex<Vec<kubesvc_store::IntentRow>>,
}

#[async_trait]
impl kubesvc_store::AccountStore for NoStore {
    async fn write(&self, _: &AccountChanges) -> Result<(), StoreError> {
        Ok(())
    }

    async fn accounts(&self) -> Result<kubesvc_store::StoredAccounts, StoreError> {
        Ok(kubesvc_store::StoredAccounts::default())
    }

    async fn foreign(&self) -> Result<Vec<ForeignRow>, StoreError> {
        Ok(Vec::new())
    }

    async fn vendor(&self) -> Result<Vec<ForeignRow>, StoreError> {
        Err(StoreError::unavailable("no database"))
    }
}

#[async_trait]
impl kubesvc_store::NamespaceStore for NoStore {
    async fn put_namespace_lists(&self, _: &[NamespaceList]) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn namespaces(&self, _: &str) -> Result<Option<Vec<String>>, StoreError> {
        Ok(None)
    }
}

#[async_trait]
impl kubesvc_store::AssignmentStore for NoStore {
    async fn write_assignments(&self, _: &ReplicaId, _: &AssignmentChanges) -> Result<(), StoreError> {
        Ok(())
    }

    async fn assignments(&self, _: &ReplicaId) -> Result<Vec<Assignment>, StoreError> {
        Ok(Vec::new())
    }

    async fn miscounted(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn assigned_replicas(&self) -> Result<Vec<ReplicaId>, StoreError> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl kubesvc_store::FenceStore for NoStore {
    async fn raise_fences(
        &self,
        _: &[kubesvc_store::Fence],
    ) -> Result<Vec<(String, kubesvc_store::RaiseOutcome)>, StoreError> {
        Ok(Vec::new())
    }

    async fn fences(&self) -> Result<Vec<kubesvc_store::StoredFence>, StoreError> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl kubesvc_store::PushedStore for NoStore {
    async fn pushed(&self) -> Result<Vec<kubesvc_store::PushedRow>, StoreError> {
        Ok(self.pushed.lock().clone())
    }

    async fn put_pushed(&self, _: Option<Term>, _: &[kubesvc_store::PushedRow]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn delete_pushed(&self, _: Option<Term>, _: &str, _: &str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[async_trait]
impl kubesvc_store::IntentStore for NoStore {
    async fn intents(&self) -> Result<Vec<kubesvc_store::IntentRow>, StoreError> {
        Ok(self.intents.lock().clone())
    }

    async fn begin_intents(&self, rows: &[kubesvc_store::IntentRow]) -> Result<Option<String>, StoreError> {
        let mut intents = self.intents.lock();
        let taken = rows.iter().find(|row| intents.iter().any(|other| other.name == row.name));
        if taken.is_none() {
            intents.extend_from_slice(rows);
        }
        Ok(taken.map(|row| row.name.clone()))
    }

    async fn mark_found(&self, rows: &[kubesvc_store::IntentRow]) -> Result<(), StoreError> {
        let mut intents = self.intents.lock();
        let found = intents.iter_mut().filter(|one| rows.iter().any(|row| row.name == one.name));
        found.for_each(|row| row.body_hash = Some("found".to_owned()));
        Ok(())
    }

    async fn count_intent_tries(&self, rows: &[kubesvc_store::IntentRow]) -> Result<(), StoreError> {
        let mut intents = self.intents.lock();
        let counted = intents.iter_mut().filter(|one| rows.iter().any(|row| row.name == one.name));
        counted.for_each(|row| row.tries += 1);
        Ok(())
    }

    async fn end_intents(&self, rows: &[kubesvc_store::IntentRow]) -> Result<(), StoreError> {
        self.intents.lock().retain(|one| rows.iter().all(|row| row.name != one.name));
        Ok(())
    }
}

#[async_trait]
impl kubesvc_store::TermStore for NoStore {
    async fn begin_term(&self, _: &ReplicaId) -> Result<Term, StoreError> {
        Err(StoreError::unavailable("nobody leads here"))
    }
}

#[async_trait]
impl kubesvc_store::OperationStore for NoStore {
    async fn write_operations(
        &self,
        _: &[kubesvc_store::OperationChange],
    ) -> Result<Vec<kubesvc_store::OperationRecord>, StoreError> {
        Ok(Vec::new())
    }

    async fn operation(&self, _: &str) -> Result<Option<kubesvc_store::OperationRecord>, StoreError> {
        Ok(None)
    }

    async fn operations(
        &self,
        _: Option<&str>,
        _: u64,
        _: u32,
    ) -> Result<Vec<kubesvc_store::OperationRecord>, StoreError> {
        Ok(Vec::new())
    }

    async fn overdue_operations(
        &self,
        _: &kubesvc_store::Overdue,
        _: u32,
    ) -> Result<Vec<kubesvc_store::OpenOperation>, StoreError> {
        Ok(Vec::new())
    }

    async fn end_open_operations(
        &self,
        _: Option<Term>,
        _: &[kubesvc_store::OperationRecord],
    ) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn settle_operation(
        &self,
        _: &kubesvc_store::OperationRecord,
    ) -> Result<kubesvc_store::HandSettlement, StoreError> {
        Ok(kubesvc_store::HandSettlement::NotFound)
    }

    async fn purge_operations(&self, _: Option<Term>, _: i64, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn trim_operations(&self, _: Option<Term>, _: u64, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }
}

#[async_trait]
impl Store for NoStore {
    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// What is cached of an account in tests.
#[async_trait]
impl CacheStore for NoStore {
    async fn write_objects(&self, _: &[AccountBatch]) -> Result<Vec<BatchOutcome>, StoreError> {
        Ok(Vec::new())
    }

    async fn resume(&self, _: &str, _: CachingEpoch) -> Result<StoredProgress, StoreError> {
        Ok(StoredProgress::Gone)
    }

    async fn scopes(&self, account: &str) -> Result<Vec<StoredScope>, StoreError> {
        if account == "database-is-away" {
            return Err(StoreError::unavailable("no database"));
        }
        let scope = |kind: &str, namespace: &str, state| StoredScope {
            key: ScopeKey { namespace: namespace.into(), group: "apps".into(), kind: kind.into() },
            cached_kind: kind_name("apps", kind),
            account_uid: "u".into(),
            resource_version: (state == ScopeState::Synced).then(|| "70".to_owned()),
            state,
            shape: None,
            filter: None,
            objects: Some(1),
            problem: None,
            last_updated_ms: 0,
        };
        let another =
            StoredScope { account_uid: "former".into(), ..scope("ReplicaSet", "", ScopeState::Synced) };
        if account == "listed" {
            return Ok(vec![scope("Deployment", "", ScopeState::Synced)]);
        }
        Ok(vec![
            scope("StatefulSet", "shop", ScopeState::Listing),
            scope("Deployment", "", ScopeState::Synced),
            scope("DaemonSet", "", ScopeState::Removed),
            another,
        ])
    }

    async fn basis(
        &self,
        _: &str,
        _: &str,
        _: &str,
        _: Option<&BasisRow>,
        _: u32,
    ) -> Result<Vec<BasisRow>, StoreError> {
        Ok(Vec::new())
    }

    async fn object_version(
        &self,
        _: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ObjectVersion>, StoreError> {
        let row = ObjectVersion {
            uid: Some("o".to_owned()),
            resource_version: "7".to_owned(),
            has_body: true,
            last_updated_ms: 0,
        };
        Ok(((kind, namespace, name) == ("deployment", "shop", "web")).then_some(row))
    }

    async fn count_objects(&self, _: &str) -> Result<Vec<KindCount>, StoreError> {
        let count = |kind: &str, objects| KindCount { kind: kind.to_owned(), objects };
        Ok(vec![count("deployment", 3), count("statefulSet", 5)])
    }

    async fn count_objects_by_namespace(&self, _: &str) -> Result<Vec<NamespaceCount>, StoreError> {
        let count = |kind: &str, namespace: &str, objects| NamespaceCount {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            objects,
        };
        Ok(vec![count("statefulSet", "shop", 4), count("statefulSet", "left", 1)])
    }

    async fn fence_holder(&self, _: &str) -> Result<Option<FenceHolder>, StoreError> {
        Ok(Some(FenceHolder { epoch: CachingEpoch(3), agent_id: Some("agent-1".into()) }))
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

struct MissingParts(Vec<(String, String)>);

impl Readiness for MissingParts {
    fn leader(&self) -> Option<ReplicaId> {
        Some("replica".into())
    }

    fn missing(&self) -> Vec<(String, String)> {
        self.0.clone()
    }
}

fn settings() -> RestSettings {
    RestSettings {
        max_body_bytes: 64 * 1024,
        dynamic_accounts_enabled: true,
        accounts_namespace: "ns".to_owned(),
        accounts_watched: true,
        replica_id: "replica".into(),
        source_rules: SourceRules::default(),
        browsers: BrowserRules::default(),
        auth_mode: RestAuthMode::Off,
        operator_namespace: "operator".to_owned(),
    }
}

fn identity() -> PeerIdentity {
    PeerIdentity {
        replica_id: "replica".into(),
        address: "10.0.0.1:7002".parse().expect("an address"),
        host: "host".to_owned(),
    }
}

fn router_with(settings: RestSettings, missing: &[(&str, &str)]) -> Router {
    router(state_of(settings, missing, unreachable_api()))
}

fn state_of(settings: RestSettings, missing: &[(&str, &str)], client: kube::Client) -> RestState {
    let missing = missing.iter().map(|(what, why)| ((*what).to_owned(), (*why).to_owned())).collect();
    let accounts = Arc::new(AccountIndex::default());
    let operations = scripted_operations(&accounts, AuditLog::to(io::sink()));
    let kube = KubeAccess::new(client, "test");
    let source_accounts = SourceAccounts {
        sources: Arc::new(CredentialsSources::of(Vec::new())),
        accounts: Arc::clone(&accounts),
        declined: DeclinedAccounts::new(&kube, "operator"),
        namespace: settings.accounts_namespace.clone(),
        is_watched: settings.accounts_watched,
        rules: settings.source_rules.clone(),
        file_roots: Arc::new([]),
        hash_key: Arc::new(|| b"installation".to_vec()),
        planning: Arc::new(tokio::sync::Semaphore::new(1)),
    };
    RestState::new(
        settings,
        RestPorts {
            kube,
            accounts,
            connected_agents: Arc::new(NoAgents),
            operations,
            source_accounts: Arc::new(source_accounts),
            credentials: None,
            look_at_accounts: Arc::new(|| {}),
            peers: Arc::new(Peers::alone(identity())),
            store: Arc::new(NoStore::default()),
            caches: Arc::new(no_caches()),
            readiness: Arc::new(MissingParts(missing)),
            tasks: TaskRegistry::default(),
            metrics: Arc::new(|| "up 1\n# EOF\n".to_owned()),
            access: Arc::new(ScriptedAccess::default()),
            audit: AuditLog::to(io::sink()),
            access_metrics: RestAccessMetrics::default(),
            caller_counts: Arc::default(),
        },
    )
}

/// Accounts of which the store has some rows.
pub(crate) fn no_caches() -> AccountCaches {
    AccountCaches {
        store: Arc::new(NoStore::default()),
        connected_agents: Arc::new(NoAgents),
        peers: Arc::new(Peers::alone(identity())),
        kinds: OperatorRules::default(),
        defaults: AccountDefaults::default(),
    }
}

fn scripted_operations(accounts: &Arc<AccountIndex>, audit: AuditLog) -> Arc<Operations> {
    Operations::new(
        fakes::settings(),
        OperationPorts {
            accounts: Arc::clone(accounts),
            requests: ScriptedCluster::new(|_, _| Ok((200, json!({})))),
            access: Arc::new(ScriptedAccess::default()),
            store: Arc::new(NoStore::default()),
            replicas: Replicas::alone(&"replica".into()),
            audit,
            callers: Arc::default(),
        },
    )
}

fn unreachable_api() -> kube::Client {
    let unreachable = tower::service_fn(|_: Request<kube::client::Body>| async {
        Err::<Response<Body>, _>(io::Error::other("unreachable"))
    });
    kube::Client::new(unreachable, "ns")
}

fn a_router() -> Router {
    router_with(settings(), &[])
}

/// A router, and the audit lines of its operations.
fn audited_router() -> (Router, AuditLines) {
    let (mut state, audit) = (state_of(settings(), &[], unreachable_api()), AuditLines::default());
    state.ports.operations = scripted_operations(&state.ports.accounts, AuditLog::to(audit.clone()));
    (router(state), audit)
}

/// A response with its whole body.
struct TestResponse {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl TestResponse {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// Returns the message after checking the shape of the error.
    fn message(&self, path: &str) -> String {
        let body = self.json();
        let keys: Vec<&str> =
            body.as_object().map(|all| all.keys().map(String::as_str).collect()).unwrap_or_default();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, ["error", "message", "path", "status", "timestamp"], "{}", self.text);
        assert_eq!(body["status"], json!(self.status));
        assert_eq!(body["path"], json!(path));
        assert!(body["timestamp"].is_i64());
        body["message"].as_str().unwrap_or_default().to_owned()
    }
}

async fn send(router: Router, request: Request<Body>) -> TestResponse {
    let response = router.oneshot(request).await.expect("the router never fails");
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    TestResponse {
        status: parts.status.as_u16(),
        headers: parts.headers,
        text: String::from_utf8(bytes.to_vec()).expect("UTF-8"),
    }
}

async fn call(method: &str, path: &str, kind: Option<&str>, body: impl Into<Body>) -> TestResponse {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(kind) = kind {
        request = request.header(header::CONTENT_TYPE, kind);
    }
    send(a_router(), request.body(body.into()).expect("a request")).await
}
