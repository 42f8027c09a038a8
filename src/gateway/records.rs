//! Audit lines and history of what was done through the API of accounts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use jiff::Timestamp;
use parking_lot::Mutex;

use super::status::Refusal;
use super::{Call, Gateway, GatewayPorts, delete_options};
use crate::access::Principal;
use crate::access::audit::{AuditEvent, AuditLine, AuditedRequest};
use crate::connected_agents::{
    AccountRequest, AskedAgent, DEFAULT_HEAD_TIMEOUT, RequestClass, RequestError, RequestErrorKind as Kind,
};
use kubesvc_core::{KubesvcAccount, ReplicaId};
use kubesvc_store::{
    AnswerRecord, OpenOperation, OperationOutcome, OperationRecord, OperationState, StageRecord,
};

/// Header with the user for whom a caller says that it acts.
const USER: &str = "x-spinnaker-user";

impl Gateway {
    /// Completes the line of a call that is refused before anything is recorded of it.
    pub(super) fn refused(&self, line: &AuditLine<'_>, refusal: &Refusal) {
        let code = Some(refusal.code.as_u16());
        self.ports.audit.write(&AuditLine { code, reason: &refusal.message, ..*line });
    }

    /// The same for a call of which it is not known who made it.
    pub(super) fn refused_stranger(&self, call: &Call, refusal: &Refusal) {
        let code = Some(refusal.code.as_u16());
        let line = AuditLine::new(AuditEvent::Refusal, &call.request_id);
        let line = AuditLine { code, reason: &refusal.message, ..line };
        self.ports.audit.refuse_stranger(call.address, &line);
    }
}

impl Call {
    /// The line of a call that is refused, with who calls.
    pub(super) fn refusal_by<'c>(&'c self, principal: &'c Principal) -> AuditLine<'c> {
        let claimed = self.header(USER);
        AuditLine {
            principal: Some(principal),
            claimed,
            ..AuditLine::new(AuditEvent::Refusal, &self.request_id)
        }
    }
}

/// Writes what becomes of one request.
pub(super) struct Recorder {
    ports: GatewayPorts,
    replica_id: ReplicaId,
    request_id: String,
    principal: Principal,
    claimed: String,
    account: String,
    uid: String,
    audited: AuditedRequest,
    /// Kind of the record in the history; `None`: it changes nothing.
    operation_type: Option<&'static str>,
    is_upgrade: bool,
    /// Whether it may be a dry run: what connects is none, whatever it says.
    is_write: bool,
    is_dry_run: AtomicBool,
    started: Instant,
    start_time: Timestamp,
    /// Whether it has a row among the open operations.
    is_open: AtomicBool,
    /// The agent that was given it last.
    asked_agent: Mutex<Option<AskedAgent>>,
    has_ended: AtomicBool,
}

/// How a request ended.
pub(super) struct Ending<'e> {
    pub(super) code: StatusCode,
    /// The agent that answered; `None`: nobody did.
    pub(super) agent: Option<&'e AskedAgent>,
    pub(super) outcome: OperationOutcome,
    pub(super) bytes: u64,
    pub(super) reason: &'e str,
}

impl Recorder {
    /// Begins with what the head of a request says.
    pub(super) fn new(
        ports: &GatewayPorts,
        replica_id: &ReplicaId,
        call: &Call,
        principal: Principal,
        request: &AccountRequest,
        query: &str,
    ) -> Self {
        let media = call.header(CONTENT_TYPE.as_str());
        let is_write = request.class == RequestClass::Write;
        Self {
            ports: ports.clone(),
            replica_id: replica_id.clone(),
            request_id: call.request_id.clone(),
            principal,
            claimed: call.header(USER).to_owned(),
            account: String::new(),
            uid: String::new(),
            audited: AuditedRequest::of(&request.method, &request.path),
            operation_type: operation_type(request, media),
            is_upgrade: request.upgrade,
            is_write,
            is_dry_run: AtomicBool::new(is_write && query.split('&').any(|pair| pair == "dryRun=All")),
            started: Instant::now(),
            start_time: Timestamp::now(),
            is_open: AtomicBool::new(false),
            asked_agent: Mutex::default(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Sets the account.
    pub(super) fn of_account(&mut self, account: &KubesvcAccount) {
        account.account_name().clone_into(&mut self.account);
        account.uid().clone_into(&mut self.uid);
    }

    /// Reads the body of a delete. Where it has options, the cluster's API server ignores those of the query.
    pub(super) fn of_delete_options(&self, body: &[u8]) {
        if let Some(is_dry_run) = delete_options::is_dry_run(body) {
            self.is_dry_run.store(is_dry_run && self.is_write, Ordering::Relaxed);
        }
    }

    /// Whether it is recorded in the history: a write, or an upgraded connection.
    pub(super) fn is_change(&self) -> bool {
        self.operation_type.is_some()
    }

    fn line(&self, event: AuditEvent) -> AuditLine<'_> {
        AuditLine {
            principal: Some(&self.principal),
            claimed: &self.claimed,
            account: &self.account,
            uid: &self.uid,
            ..self.audited.line(event, &self.request_id)
        }
    }

    /// Writes that the call was refused: before it was sent, or by the agent that was given it.
    pub(super) fn refused(&self, refusal: &Refusal) {
        let (code, duration) = (Some(refusal.code.as_u16()), Some(self.started.elapsed()));
        let asked = self.asked_agent();
        let (line, agent) = (self.line(AuditEvent::Refusal), agent_id(asked.as_ref()));
        self.ports.audit.write(&AuditLine { code, duration, agent, reason: &refusal.message, ..line });
    }

    /// Writes that a stream has begun.
    pub(super) fn stream_began(&self, code: StatusCode, agent: &AskedAgent) {
        let (code, agent) = (Some(code.as_u16()), agent.process.agent_id.as_str());
        self.ports.audit.write(&AuditLine { code, agent, ..self.line(AuditEvent::StreamBegin) });
    }

    /// Writes that an agent is given a write or an upgrade: should this replica die, another one settles it.
    pub(super) fn asked(&self, agent: &AskedAgent) {
        let Some(operation_type) = self.operation_type else { return };
        self.is_open.store(true, Ordering::Relaxed);
        *self.asked_agent.lock() = Some(agent.clone());
        let record = self.begun(operation_type, Some(agent));
        let within = i64::try_from(DEFAULT_HEAD_TIMEOUT.as_millis()).unwrap_or(i64::MAX);
        self.ports.history.begun(OpenOperation {
            state: OperationState::Sent,
            // An upgraded connection lasts as long as the process of its replica, for which it is settled then.
            deadline_ms: if self.is_upgrade { i64::MAX } else { record.start_time_ms.saturating_add(within) },
            is_idempotent: false,
            last_write: (!self.is_upgrade).then(|| self.request_id.clone()),
            agent_boot_id: Some(agent.process.boot_id.to_string()),
            record,
        });
    }

    /// Writes the end of a write or a stream, once.
    pub(super) fn ended(&self, event: AuditEvent, ending: &Ending<'_>) {
        if self.has_ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let asked = self.asked_agent();
        self.ports.audit.write(&AuditLine {
            code: Some(ending.code.as_u16()),
            bytes: Some(ending.bytes),
            duration: Some(self.started.elapsed()),
            reason: ending.reason,
            agent: agent_id(ending.agent.or(asked.as_ref())),
            ..self.line(event)
        });
        if let Some(operation_type) = self.operation_type {
            self.ports.history.ended(self.record(operation_type, ending));
        }
    }

    /// Writes that a write or an upgrade has no answer.
    pub(super) fn failed(&self, error: &RequestError, refusal: &Refusal) {
        if matches!(error.kind, Kind::Forbidden | Kind::TooMany | Kind::Invalid | Kind::TooLarge) {
            self.refused(refusal);
            // Nothing is left open that an agent refused.
            if let Some(operation_type) = self.operation_type.filter(|_| self.is_left_open()) {
                let (code, outcome) = (refusal.code, OperationOutcome::Failed);
                let ending = Ending { code, agent: None, outcome, bytes: 0, reason: "" };
                self.ports.history.ended(self.record(operation_type, &ending));
            }
            return;
        }
        if self.operation_type.is_none() {
            return;
        }
        let may_be_done = !error.is_before_send();
        let outcome = if may_be_done { OperationOutcome::Unknown } else { OperationOutcome::Failed };
        let (code, reason) = (refusal.code, refusal.message.as_str());
        self.ended(AuditEvent::Write, &Ending { code, agent: None, outcome, bytes: 0, reason });
    }

    /// Whether it has a row among the open operations, which is to be ended by the one who asks this.
    fn is_left_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed) && !self.has_ended.swap(true, Ordering::Relaxed)
    }

    /// The agent that was given it last.
    fn asked_agent(&self) -> Option<AskedAgent> {
        self.asked_agent.lock().clone()
    }

    fn begun(&self, operation_type: &str, agent: Option<&AskedAgent>) -> OperationRecord {
        let start = self.start_time.as_millisecond();
        let at = |id: &str| StageRecord { id: id.to_owned(), time_ms: start };
        OperationRecord {
            operation_id: self.request_id.clone(),
            operation_type: operation_type.to_owned(),
            account: self.account.clone(),
            account_uid: Some(self.uid.clone()).filter(|uid| !uid.is_empty()),
            start_time_ms: start,
            end_time_ms: None,
            outcome: OperationOutcome::Pending,
            received: Some(at(self.replica_id.as_str())),
            processed: agent.map(|agent| at(agent.replica_id.as_str())),
            sent: agent.map(|agent| at(agent.process.agent_id.as_str())),
            answered: None,
            delivered: None,
            principal: Some(self.principal.name.clone()),
            request_id: Some(self.request_id.clone()),
            dry_run: self.is_dry_run.load(Ordering::Relaxed),
            // They reach the caller with the answer.
            warnings: Vec::new(),
        }
    }

    fn record(&self, operation_type: &str, ending: &Ending<'_>) -> OperationRecord {
        let asked = self.asked_agent();
        let begun = self.begun(operation_type, ending.agent.or(asked.as_ref()));
        let (start, end) = (begun.start_time_ms, Timestamp::now().as_millisecond());
        OperationRecord {
            end_time_ms: Some(end),
            outcome: ending.outcome,
            answered: ending.agent.map(|agent| AnswerRecord {
                agent_id: agent.process.agent_id.to_string(),
                replica_id: agent.replica_id.to_string(),
                time_ms: end,
                status: i32::from(ending.code.as_u16()),
                duration_ms: end - start,
            }),
            delivered: Some(StageRecord { id: self.replica_id.to_string(), time_ms: end }),
            ..begun
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.is_open.load(Ordering::Relaxed) {
            let (code, outcome) = (StatusCode::GATEWAY_TIMEOUT, OperationOutcome::Unknown);
            let reason = "the caller left before it was answered";
            self.ended(AuditEvent::Write, &Ending { code, agent: None, outcome, bytes: 0, reason });
        }
    }
}

fn agent_id(agent: Option<&AskedAgent>) -> &str {
    agent.map(|agent| agent.process.agent_id.as_str()).unwrap_or_default()
}

/// Shared by what ends a request.
pub(super) type SharedRecorder = Arc<Recorder>;

fn operation_type(request: &AccountRequest, media: &str) -> Option<&'static str> {
    let (method, is_upgrade) = (&request.method, request.upgrade);
    match request.class {
        RequestClass::Connect => {
            let is_read = matches!(*method, Method::GET | Method::HEAD);
            return (is_upgrade || !is_read).then_some("Connect");
        }
        RequestClass::Read => return is_upgrade.then_some("Connect"),
        RequestClass::Write => {}
    }
    Some(match *method {
        Method::DELETE => "Delete",
        Method::PATCH | Method::PUT if request.path.subresource.as_deref() == Some("scale") => "Scale",
        Method::PATCH if media.starts_with("application/apply-patch") => "Deploy",
        Method::PATCH => "Patch",
        _ => "Deploy",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_record_follows_what_is_done() {
        let kind = |method: Method, target: &str, media: &str, is_upgrade| {
            let request = AccountRequest::new(method, target).expect("a path").upgrading(is_upgrade);
            operation_type(&request, media)
        };
        const WEB: &str = "/apis/apps/v1/namespaces/ns/deployments/web";
        assert_eq!(kind(Method::GET, WEB, "", false), None);
        assert_eq!(kind(Method::PUT, WEB, "", false), Some("Deploy"));
        assert_eq!(kind(Method::PATCH, WEB, "application/merge-patch+json", false), Some("Patch"));
        assert_eq!(kind(Method::PATCH, WEB, "application/apply-patch+yaml", false), Some("Deploy"));
        assert_eq!(kind(Method::PATCH, &format!("{WEB}/scale"), "", false), Some("Scale"));
        assert_eq!(kind(Method::DELETE, WEB, "", false), Some("Delete"));
        let exec = "/api/v1/namespaces/ns/pods/web/exec?command=sh";
        assert_eq!(kind(Method::POST, exec, "", true), Some("Connect"));
        assert_eq!(kind(Method::GET, exec, "", true), Some("Connect"));
        let proxy = "/api/v1/namespaces/ns/services/web/proxy/";
        assert_eq!(kind(Method::POST, proxy, "", false), Some("Connect"));
        assert_eq!(kind(Method::GET, proxy, "", false), None);
        assert_eq!(kind(Method::HEAD, proxy, "", false), None);
        let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        assert_eq!(kind(Method::POST, review, "", false), None);
    }
}
