//! The rights of those for whom a request is relayed, which this replica reviews itself, and its audit lines: the replica that
//! relays the request has written its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::http::StatusCode;
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;

use super::{CallRefusal, ReplicaPorts};
use crate::access::audit::{AuditEvent, AuditLine, AuditLog, AuditedRequest};
use crate::access::{AccessResource, Principal, RequestedAccess};
use crate::connected_agents::{AccountRequest, AccountResponse, RequestCaller, RequestClass, RequestError};
use crate::request_routing::received::{AnswerParts, HeadObserver};
use crate::request_routing::relayed_principal;

/// The verbs of rights on accounts.
const VERBS: [&str; 5] = ["get", "create", "update", "patch", "delete"];

/// Reviews the rights on an account that the request of this caller needs, as the replica that relays it says. Answers are kept
/// for seconds.
pub(super) async fn review(
    ports: &ReplicaPorts,
    account_uid: &str,
    caller: &RequestCaller,
) -> Result<(), CallRefusal> {
    if caller.rights.is_empty() {
        return Ok(());
    }
    let account = ports.accounts.by_uid(account_uid);
    let account =
        account.ok_or_else(|| CallRefusal::new(StatusCode::MISDIRECTED_REQUEST, "no such account"))?;
    let principal = relayed_principal(caller);
    let part = |part: Option<&String>| part.cloned().unwrap_or_default();
    for right in &caller.rights {
        let resources = [AccessResource::Proxy, AccessResource::Connect];
        let access = RequestedAccess {
            verb: VERBS.into_iter().find(|verb| *verb == right.verb).ok_or_else(unknown_right)?,
            resource: resources
                .into_iter()
                .find(|resource| resource.subresource() == right.subresource)
                .ok_or_else(unknown_right)?,
            namespace: part(account.metadata.namespace.as_ref()),
            object: part(account.metadata.name.as_ref()),
        };
        let reviewed = ports.access.authorize(&principal, &access).await;
        reviewed.map_err(|error| CallRefusal::new(error.status(), error.to_string()))?;
    }
    Ok(())
}

fn unknown_right() -> CallRefusal {
    CallRefusal::bad_request("the call names a right that this replica does not know")
}

/// Why a write has no status.
const LEFT: &str =
    "the replica that relayed it left before there was an answer: whether it was done is unknown";

/// Audit lines of one relayed request.
pub(super) struct RelayedRecord(Arc<RecordedRequest>);

struct RecordedRequest {
    audit: AuditLog,
    request_id: String,
    principal: Principal,
    account: String,
    uid: String,
    audited: AuditedRequest,
    is_write: bool,
    is_long: bool,
    started: Instant,
    /// Whether there was an answer, or a failure.
    has_ended: AtomicBool,
    /// The agent that answered, and its status, of a stream that has begun.
    begun: Mutex<Option<(String, u16)>>,
}

/// The end of a stream of bytes, or of a write whose answer the other replica did not wait for, which is written when this is
/// dropped.
pub(super) struct RelayedStream(Arc<RecordedRequest>);

impl RelayedRecord {
    pub(super) fn new(ports: &ReplicaPorts, account_uid: &str, request: &AccountRequest) -> Self {
        let account = ports.accounts.by_uid(account_uid);
        Self(Arc::new(RecordedRequest {
            audit: ports.audit.clone(),
            request_id: request.request_id.clone(),
            principal: relayed_principal(&request.caller),
            account: account.map(|account| account.account_name().to_owned()).unwrap_or_default(),
            uid: account_uid.to_owned(),
            audited: AuditedRequest::of(&request.method, &request.path),
            is_write: request.class != RequestClass::Read,
            is_long: request.is_long(),
            started: Instant::now(),
            has_ended: AtomicBool::new(false),
            begun: Mutex::default(),
        }))
    }

    /// Writes that the request was refused.
    pub(super) fn refused(&self, refusal: &CallRefusal) {
        let code = Some(refusal.status.as_u16());
        self.0.write(AuditLine { code, reason: &refusal.message, ..self.0.line(AuditEvent::Refusal) });
    }

    /// What is told of the head of the answer, and what is kept until its end.
    pub(super) fn observer(self) -> (HeadObserver, RelayedStream) {
        let record = Arc::clone(&self.0);
        (Box::new(move |end| record.answered(end)), RelayedStream(self.0))
    }
}

impl RecordedRequest {
    fn line(&self, event: AuditEvent) -> AuditLine<'_> {
        AuditLine {
            principal: Some(&self.principal),
            account: &self.account,
            uid: &self.uid,
            duration: Some(self.started.elapsed()),
            ..self.audited.line(event, &self.request_id)
        }
    }

    fn write(&self, line: AuditLine<'_>) {
        self.audit.write(&line);
    }

    fn answered(&self, end: Result<&AccountResponse, &RequestError>) {
        self.has_ended.store(true, Ordering::Relaxed);
        let (agent, status, reason) = match end {
            Ok(response) => (response.agent.process.agent_id.as_str(), response.status, ""),
            Err(error) => ("", error.status(), error.message.as_str()),
        };
        let code = Some(status.as_u16());
        if self.is_long && end.is_ok() && status.as_u16() < 300 {
            *self.begun.lock() = Some((agent.to_owned(), status.as_u16()));
            self.write(AuditLine { agent, code, ..self.line(AuditEvent::StreamBegin) });
        } else if self.is_write {
            self.write(AuditLine { agent, code, reason, ..self.line(AuditEvent::Write) });
        }
    }
}

impl RelayedStream {
    /// The parts of an answer, whose end is written, however it comes.
    pub(super) fn until_end_of(self, parts: AnswerParts) -> AnswerParts {
        stream::unfold((parts, self), |(mut parts, held)| async move {
            let part = parts.next().await?;
            Some((part, (parts, held)))
        })
        .boxed()
    }
}

impl Drop for RelayedStream {
    fn drop(&mut self) {
        let begun = self.0.begun.lock().take();
        if let Some((agent, code)) = begun {
            let line = self.0.line(AuditEvent::StreamEnd);
            self.0.write(AuditLine { agent: &agent, code: Some(code), ..line });
        } else if self.0.is_write && !self.0.has_ended.load(Ordering::Relaxed) {
            self.0.write(AuditLine { reason: LEFT, ..self.0.line(AuditEvent::Write) });
        }
    }
}
