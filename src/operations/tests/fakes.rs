//! A cluster, a database and rights that tests script.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use http::header::WARNING;
use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::Mutex;
use prost::bytes::Bytes;
use serde_json::{Value, json};

use crate::access::{Access, AccessError, Caller, Principal, RequestedAccess, Via};
use crate::connected_agents::{
    AccountRequest, AccountRequests, AccountResponse, AnsweringAgent, AskedAgent, RequestError,
};
use crate::operations::OperationSettings;
use crate::operations::records::{self, Beginning};
use kubesvc_core::operations::ApplySettings;
use kubesvc_store::{
    HandSettlement, OpenOperation, OperationChange, OperationOutcome, OperationRecord, OperationStore,
    Overdue, StoreError, Term,
};

/// What a cluster was asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) body: Value,
    pub(crate) request_id: String,
    pub(crate) repeatable: bool,
    pub(crate) upgrade: bool,
}

/// How it answers.
pub(crate) type Answered = Result<(u16, Value), RequestError>;
type Answer = dyn Fn(usize, Asked) -> BoxFuture<'static, Answered> + Send + Sync;

/// A cluster that answers by a function of how often it was asked, and what.
pub(crate) struct ScriptedCluster {
    asked: Mutex<Vec<Asked>>,
    answer: Box<Answer>,
    pub(crate) recalled: Mutex<Option<Result<u16, RequestError>>>,
    pub(crate) has_agent: AtomicBool,
}

impl ScriptedCluster {
    pub(crate) fn new(answer: impl Fn(usize, &Asked) -> Answered + Send + Sync + 'static) -> Arc<Self> {
        Self::waiting(move |number, asked| {
            let answered = answer(number, &asked);
            async move { answered }.boxed()
        })
    }

    pub(crate) fn waiting(
        answer: impl Fn(usize, Asked) -> BoxFuture<'static, Answered> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            asked: Mutex::default(),
            answer: Box::new(answer),
            recalled: Mutex::default(),
            has_agent: AtomicBool::new(true),
        })
    }

    /// What it was asked, but for lists of kinds.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().iter().filter(|asked| !is_about_kinds(asked)).cloned().collect()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.line).collect()
    }

    pub(crate) fn agent() -> AskedAgent {
        let process = AnsweringAgent { agent_id: "agent".into(), boot_id: "boot".into() };
        AskedAgent { process, replica_id: "r-0".into() }
    }
}

fn is_about_kinds(asked: &Asked) -> bool {
    matches!(asked.line.as_str(), "GET /api/v1" | "GET /apis/apps/v1" | "GET /version")
}

/// The kinds of the cluster.
fn kinds(line: &str) -> Value {
    let (group_version, kinds) = if line.ends_with("apps/v1") {
        ("apps/v1", vec![("deployments", "Deployment")])
    } else {
        ("v1", vec![("configmaps", "ConfigMap"), ("pods", "Pod")])
    };
    let resources =
        kinds.into_iter().map(|(name, kind)| json!({"name": name, "kind": kind, "namespaced": true}));
    json!({"groupVersion": group_version, "resources": resources.collect::<Vec<_>>()})
}

#[async_trait]
impl AccountRequests for ScriptedCluster {
    async fn send(&self, _: &str, request: AccountRequest) -> Result<AccountResponse, RequestError> {
        let asked = Asked {
            line: format!("{} {}", request.method, request.target),
            body: serde_json::from_slice(&request.body).unwrap_or_default(),
            request_id: request.request_id,
            repeatable: request.repeatable,
            upgrade: request.upgrade,
        };
        let number = {
            let mut all = self.asked.lock();
            all.push(asked.clone());
            all.iter().filter(|asked| !is_about_kinds(asked)).count()
        };
        let answered = if is_about_kinds(&asked) && self.has_agent.load(Ordering::Relaxed) {
            Ok((200, kinds(&asked.line)))
        } else {
            if let Some(on_asked) = request.on_asked {
                on_asked(&Self::agent());
            }
            (self.answer)(number, asked).await
        };
        answered.map(|(status, body)| response(status, &body))
    }

    async fn recall(
        &self,
        _: &str,
        _: &str,
        _: Option<AnsweringAgent>,
    ) -> Result<AccountResponse, RequestError> {
        let recalled = self.recalled.lock().clone();
        let lost = || Err(RequestError::unknown("it is gone"));
        recalled.unwrap_or_else(lost).map(|status| response(status, &json!({})))
    }

    async fn apply_settings(&self, _: &str) -> Option<ApplySettings> {
        self.has_agent.load(Ordering::Relaxed).then(ApplySettings::default)
    }
}

fn response(status: u16, body: &Value) -> AccountResponse {
    let body = Bytes::from(body.to_string());
    AccountResponse {
        status: StatusCode::from_u16(status).expect("a status"),
        headers: HeaderMap::from_iter([(WARNING, HeaderValue::from_static("299 - \"it is old\""))]),
        body: stream::once(async { Ok(body) }).boxed(),
        agent: ScriptedCluster::agent(),
    }
}

/// Rights: the bearer token is the caller's name; `nobody` is not known, and what is denied is denied to all.
#[derive(Default)]
pub(crate) struct ScriptedAccess {
    pub(crate) denied: Mutex<Vec<&'static str>>,
    pub(crate) is_away: AtomicBool,
    pub(crate) asked: Mutex<Vec<RequestedAccess>>,
}

#[async_trait]
impl Access for ScriptedAccess {
    async fn authenticate(&self, caller: Caller<'_>) -> Result<Principal, AccessError> {
        let token = caller.headers.get("authorization").and_then(|value| value.to_str().ok());
        match token.and_then(|token| token.strip_prefix("Bearer ")) {
            Some("nobody") | None => Err(AccessError::Unauthenticated("who are you?".to_owned())),
            Some(name) => Ok(principal(name)),
        }
    }

    async fn authorize(&self, _: &Principal, access: &RequestedAccess) -> Result<(), AccessError> {
        self.asked.lock().push(access.clone());
        if self.is_away.load(Ordering::Relaxed) {
            return Err(AccessError::Unavailable("the API server does not answer".to_owned()));
        }
        if self.denied.lock().contains(&access.verb) {
            return Err(AccessError::Denied(format!("you may not {}", access.verb)));
        }
        Ok(())
    }
}

pub(crate) fn principal(name: &str) -> Principal {
    Principal {
        name: name.to_owned(),
        groups: Vec::new(),
        uid: String::new(),
        extra: BTreeMap::new(),
        via: Via::Token,
    }
}

/// What is written to an audit log.
#[derive(Clone, Default)]
pub(crate) struct AuditLines(Arc<Mutex<Vec<u8>>>);

impl AuditLines {
    /// The lines so far.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().clone()).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// Verb, account and status of each refusal.
    pub(crate) fn refusals(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.retain(|line| line["message"] == "refusal");
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let parts = |line: &Value| [text(&line["verb"]), text(&line["account"]), line["code"].to_string()];
        lines.iter().map(|line| parts(line).join(" ")).collect()
    }
}

impl std::io::Write for AuditLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Rows in memory.
#[derive(Default)]
pub(crate) struct MemoryRows {
    pub(crate) open: Mutex<BTreeMap<String, OpenOperation>>,
    pub(crate) history: Mutex<BTreeMap<String, OperationRecord>>,
    pub(crate) is_away: AtomicBool,
    pub(crate) writes: AtomicU64,
    /// Time that the next write takes.
    pub(crate) next_takes: Mutex<Duration>,
}

impl MemoryRows {
    fn check(&self) -> Result<(), StoreError> {
        if self.is_away.load(Ordering::Relaxed) { Err(StoreError::unavailable("it is away")) } else { Ok(()) }
    }

    /// Takes the time of a write, at whose end the database must be there too.
    async fn pass_time(&self) -> Result<(), StoreError> {
        self.check()?;
        let takes = std::mem::take(&mut *self.next_takes.lock());
        tokio::time::sleep(takes).await;
        self.check()
    }

    fn finish(&self, record: &OperationRecord) {
        self.open.lock().remove(&record.operation_id);
        self.history.lock().entry(record.operation_id.clone()).or_insert_with(|| record.clone());
    }
}

#[async_trait]
impl OperationStore for MemoryRows {
    async fn write_operations(
        &self,
        changes: &[OperationChange],
    ) -> Result<Vec<OperationRecord>, StoreError> {
        self.pass_time().await?;
        self.writes.fetch_add(1, Ordering::Relaxed);
        let mut left_out = Vec::new();
        for change in changes {
            let id = change.id();
            let ended = self.history.lock().get(id).cloned();
            match change {
                OperationChange::Begun(begun) => {
                    let there = ended.or_else(|| self.open.lock().get(id).map(|open| open.record.clone()));
                    if there.is_none() {
                        self.open.lock().insert(id.to_owned(), (**begun).clone());
                    }
                    left_out.extend(there);
                }
                OperationChange::Open(open) => {
                    self.open.lock().insert(id.to_owned(), (**open).clone());
                }
                OperationChange::Sent(sent) => match self.open.lock().get_mut(id) {
                    Some(open) => open.clone_from(sent),
                    None => left_out.push(ended.expect("it has a row")),
                },
                OperationChange::End(record) => self.finish(record),
            }
        }
        Ok(left_out)
    }

    async fn operation(&self, id: &str) -> Result<Option<OperationRecord>, StoreError> {
        self.check()?;
        let open = self.open.lock().get(id).map(|open| open.record.clone());
        Ok(open.or_else(|| self.history.lock().get(id).cloned()))
    }

    async fn operations(
        &self,
        account: Option<&str>,
        offset: u64,
        limit: u32,
    ) -> Result<Vec<OperationRecord>, StoreError> {
        self.check()?;
        let open = self.open.lock().values().map(|open| open.record.clone()).collect::<Vec<_>>();
        let mut all: Vec<_> = open.into_iter().chain(self.history.lock().values().cloned()).collect();
        all.retain(|record| account.is_none_or(|account| account == record.account));
        all.sort_by_key(|record| std::cmp::Reverse(record.start_time_ms));
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok(all.into_iter().skip(offset).take(limit as usize).collect())
    }

    async fn overdue_operations(&self, overdue: &Overdue, _: u32) -> Result<Vec<OpenOperation>, StoreError> {
        self.check()?;
        let is_overdue = |open: &OpenOperation| {
            let received = open.record.received.as_ref().map(|stage| stage.id.clone()).unwrap_or_default();
            match overdue {
                Overdue::Left { deadline_before_ms, .. } if open.deadline_ms < *deadline_before_ms => true,
                Overdue::Left { live_replicas, .. } => {
                    !live_replicas.is_empty() && live_replicas.iter().all(|live| live.as_str() != received)
                }
                Overdue::OfFormerProcess { replica_id, began_before_ms } => {
                    replica_id.as_str() == received && open.record.start_time_ms < *began_before_ms
                }
            }
        };
        Ok(self.open.lock().values().filter(|open| is_overdue(open)).cloned().collect())
    }

    async fn end_open_operations(
        &self,
        _: Option<Term>,
        ends: &[OperationRecord],
    ) -> Result<Vec<String>, StoreError> {
        self.check()?;
        let mut ended = Vec::new();
        for end in ends {
            if self.open.lock().contains_key(&end.operation_id) {
                self.finish(end);
                ended.push(end.operation_id.clone());
            }
        }
        Ok(ended)
    }

    async fn settle_operation(&self, record: &OperationRecord) -> Result<HandSettlement, StoreError> {
        self.check()?;
        let id = &record.operation_id;
        let was_open = self.open.lock().remove(id).is_some();
        let mut history = self.history.lock();
        let outcome = history.get(id).map(|there| there.outcome);
        if was_open || outcome == Some(OperationOutcome::Unknown) {
            history.insert(id.clone(), record.clone());
            return Ok(HandSettlement::Settled);
        }
        Ok(if outcome.is_some() { HandSettlement::AlreadySettled } else { HandSettlement::NotFound })
    }

    async fn purge_operations(&self, _: Option<Term>, _: i64, _: u32) -> Result<u64, StoreError> {
        self.check().map(|()| 0)
    }

    async fn trim_operations(&self, _: Option<Term>, _: u64, _: u32) -> Result<u64, StoreError> {
        self.check().map(|()| 0)
    }
}

/// The record of an operation of alice, received by replica `r-0` at this time.
pub(crate) fn received(id: &str, verb: &'static str, account: &str, now_ms: i64) -> OperationRecord {
    records::received(&Beginning {
        id,
        verb,
        account,
        account_uid: "u",
        principal: "alice",
        replica_id: &"r-0".into(),
        dry_run: false,
        now_ms,
        request_id: None,
    })
}

/// Settings of a replica.
pub(crate) fn settings() -> OperationSettings {
    OperationSettings {
        replica_id: "r-0".into(),
        write_time: Duration::from_secs(30),
        read_time: Duration::from_secs(10),
        max_retries: 3,
        kept_for: Duration::from_secs(3600),
        purge: "0 0 0 * * 0".parse().expect("a schedule"),
        max_rows: 100,
        max_result_label: 255,
        hides_accounts: false,
    }
}
