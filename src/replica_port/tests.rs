//! The port for replicas, over real connections.

mod relayed;

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::ReplicaPorts;
use crate::access::audit::AuditLog;
use crate::access::{Access, AccessError, Caller, Principal, RequestedAccess, Via};
use crate::connected_agents::{
    AccountGrant, AccountRequest, AccountResponse, AgentView, AnsweringAgent, ConnectedAgents,
    ConnectedAgentsError, ReplicaRequests, RequestError, Suspects,
};
use crate::informers::AccountIndex;
use kubesvc_core::lifecycle::SessionFact;
use kubesvc_core::wire::ops;
use kubesvc_core::{AgentId, KubesvcAccount, KubesvcAccountSpec, ZoneId};

/// Rights by verb, and the audit lines.
#[derive(Default)]
struct ScriptedRights {
    allowed: Mutex<HashSet<String>>,
    lines: Arc<Mutex<Vec<u8>>>,
}

impl ScriptedRights {
    fn audited(&self) -> Vec<Value> {
        let lines = self.lines.lock();
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("JSON")).collect()
    }
}

#[async_trait]
impl Access for ScriptedRights {
    async fn authenticate(&self, _: Caller<'_>) -> Result<Principal, AccessError> {
        Err(AccessError::Unauthenticated("nobody is".to_owned()))
    }

    async fn authorize(&self, principal: &Principal, access: &RequestedAccess) -> Result<(), AccessError> {
        assert_eq!((principal.via, principal.groups.as_slice()), (Via::Relayed, &["team".to_owned()][..]));
        assert_eq!((access.namespace.as_str(), access.object.as_str()), ("ns", "one"));
        if self.allowed.lock().contains(access.verb) {
            return Ok(());
        }
        Err(AccessError::Denied(format!("alice may not {}", access.verb)))
    }
}

struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct NoAgents;

#[async_trait]
impl ConnectedAgents for NoAgents {
    fn namespaces(&self, _: &str) -> Option<Vec<String>> {
        None
    }

    fn is_all_here(&self) -> bool {
        true
    }

    async fn read(&self, _: &ZoneId) -> Result<(), ConnectedAgentsError> {
        Ok(())
    }

    fn sessions(&self, _: &str) -> Vec<SessionFact> {
        Vec::new()
    }

    fn agents(&self) -> Vec<AgentView> {
        Vec::new()
    }

    fn holders(&self, _: &str) -> Vec<AgentView> {
        Vec::new()
    }

    fn disconnect(&self, _: &AgentId, _: Option<&ZoneId>) -> bool {
        false
    }
}

/// A port with these requests, and one account, `uid`.
fn ports(name: &str, requests: Arc<dyn ReplicaRequests>, rights: &Arc<ScriptedRights>) -> ReplicaPorts {
    let accounts = AccountIndex::default();
    let mut account = KubesvcAccount::new("one", KubesvcAccountSpec::default());
    account.metadata.namespace = Some("ns".to_owned());
    account.metadata.uid = Some("uid".to_owned());
    account.metadata.resource_version = Some("1".to_owned());
    accounts.show(account);
    ReplicaPorts {
        replica_id: name.into(),
        connected_agents: Arc::new(NoAgents),
        requests,
        accounts: Arc::new(accounts),
        access: Arc::<ScriptedRights>::clone(rights),
        audit: AuditLog::to(Lines(Arc::clone(&rights.lines))),
        answered_for: Arc::new(|| Duration::from_secs(7)),
    }
}

struct NoRequests;

#[async_trait]
impl ReplicaRequests for NoRequests {
    fn grant(&self, _: &str) -> Result<AccountGrant, RequestError> {
        Err(RequestError::no_account())
    }

    fn can_ask(&self, _: &str, _: &[AgentId]) -> Result<(), RequestError> {
        Err(RequestError::no_account())
    }

    fn processes_of_zone(&self, _: &ZoneId) -> Vec<AnsweringAgent> {
        Vec::new()
    }

    fn has_process(&self, _: &AnsweringAgent) -> bool {
        false
    }

    async fn send_here(
        &self,
        _: &str,
        _: &AccountRequest,
        _: &mut Vec<AgentId>,
    ) -> Result<AccountResponse, RequestError> {
        Err(RequestError::no_account())
    }

    async fn recall_here(
        &self,
        _: &str,
        agent: &AnsweringAgent,
        _: Instant,
        _: bool,
    ) -> Result<AccountResponse, RequestError> {
        Err(RequestError::recallable(Suspects::certain(agent.clone())))
    }

    fn forget_here(&self, _: &AnsweringAgent, _: &str) -> bool {
        false
    }

    fn apply_settings_here(&self, _: &str) -> Option<ops::ApplySettings> {
        None
    }

    fn streams(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }
}

/// Status and body of the answer to a call.
async fn answered(method: &str, path: &str, body: impl Into<Body>) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).body(body.into()).expect("a call");
    let router = super::router(ports("replica", Arc::new(NoRequests), &Arc::default()));
    let answer = router.oneshot(request).await.unwrap_or_else(|never| match never {});
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.expect("whole").to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn calls_are_answered_by_this_replica_alone_and_say_what_is_wrong_with_them() {
    let reach = answered("GET", "/internal/v1/reach", Body::empty()).await;
    assert_eq!(reach, (200, json!({"replicaId": "replica", "answeredForMs": 7000})));
    let agents = answered("GET", "/internal/v1/agents", Body::empty()).await;
    assert_eq!(agents, (200, json!({"replicaId": "replica", "agents": []})));
    let uids: Vec<_> = (0..1000).map(|number| format!("{number:036}")).collect();
    let holders = |uids: &[String]| json!({ "uids": uids }).to_string();
    let asked = answered("POST", "/internal/v1/holders", holders(&uids)).await;
    assert_eq!(asked, (200, json!({"replicaId": "replica", "agents": {}})));
    let too_many: Vec<_> = uids.iter().cloned().chain(["one".to_owned()]).collect();
    for (method, path, body, status) in [
        ("POST", "/internal/v1/holders", holders(&too_many), 400),
        ("POST", "/internal/v1/holders", "{".to_owned(), 400),
        ("POST", "/internal/v1/holders", "x".repeat(1 << 20), 413),
        ("POST", "/internal/v1/agents/a%2F1/disconnect?zoneId=z", String::new(), 404),
        ("POST", "/internal/v1/accounts/uid/proxy/api/v1/pods", String::new(), 400),
        ("GET", "/internal/v1/requests/id?agent=a&boot=b&within=1", String::new(), 421),
        ("GET", "/internal/v1/requests/id", String::new(), 400),
        ("GET", "/internal/v1/none", String::new(), 404),
    ] {
        let (answered, said) = answered(method, path, body).await;
        assert_eq!(answered, status, "{method} {path}: {said}");
    }
}
