//! Audit lines about operations: calls that are refused, and writes, each with the id that the cluster's audit log has. The
//! one of the operation itself follows when it ends, or when it is settled for a replica that is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::job::Job;
use super::records::Recalled;
use super::submission::of_record;
use super::{OperationCaller, OperationRefusal, Operations, failures};
use crate::access::audit::{AuditEvent, AuditLine, AuditedRequest};
use crate::access::{Principal, Via};
use crate::connected_agents::{AccountRequest, RequestError};
use kubesvc_core::operations::OperationVerb;
use kubesvc_runtime::listen::connection_limits::ClientAddress;
use kubesvc_store::{OpenOperation, OperationRecord, OperationState};

/// The line of a call that is refused, with who calls.
pub(super) fn refusal_by(caller: &OperationCaller) -> AuditLine<'_> {
    AuditLine {
        principal: Some(&caller.principal),
        user: caller.user.as_deref().unwrap_or_default(),
        claimed: caller.claimed.as_deref().unwrap_or_default(),
        ..AuditLine::new(AuditEvent::Refusal, "")
    }
}

/// A write of an operation, as its line names it.
pub(super) struct AskedWrite {
    request_id: String,
    audited: AuditedRequest,
    started: Instant,
}

impl AskedWrite {
    pub(super) fn of(request: &AccountRequest) -> Self {
        let (request_id, audited) =
            (request.request_id.clone(), AuditedRequest::of(&request.method, &request.path));
        Self { request_id, audited, started: Instant::now() }
    }
}

/// How what a replica left open was settled, as its line says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settlement {
    event: AuditEvent,
    /// Status of the answer that decided.
    answered: Option<u16>,
    how: &'static str,
}

impl Settlement {
    pub(super) fn of(open: &OpenOperation, recalled: &Recalled) -> Self {
        // An upgraded connection has no answer to be asked for.
        let is_stream = open.record.operation_type == "Connect" && open.last_write.is_none();
        let (answered, how) = match recalled {
            Recalled::Answered { status, .. } => (Some(*status), "its answer was recalled"),
            Recalled::Lost if open.state == OperationState::Received => (None, "nothing was sent"),
            Recalled::Lost if is_stream => (None, "the connection is gone"),
            Recalled::Lost => (None, "no answer decides it"),
        };
        Self { event: if is_stream { AuditEvent::StreamEnd } else { AuditEvent::Write }, answered, how }
    }
}

impl Operations {
    /// Writes the line of a write or a stream that was settled for its replica. What only reads has none.
    pub(super) fn settled(&self, record: &OperationRecord, settlement: Settlement) {
        if OperationVerb::only_reads(&record.operation_type) {
            return;
        }
        let Settlement { event, answered, how } = settlement;
        let principal = record.principal.clone().map(|name| Principal {
            name,
            groups: Vec::new(),
            uid: String::new(),
            extra: BTreeMap::new(),
            via: Via::Record,
        });
        let ended = of_record(record);
        let code = answered.or_else(|| (event == AuditEvent::Write).then_some(ended.status));
        let replica = record.received.as_ref().map_or("", |stage| &stage.id);
        let reason = format!("{}, settled for replica {replica}: {how}", record.outcome.as_str());
        let request_id = record.request_id.as_deref().unwrap_or_default();
        // A request through the API of accounts is its own operation.
        let is_operation = request_id != record.operation_id;
        self.audit.write(&AuditLine {
            operation_id: if is_operation { &record.operation_id } else { "" },
            principal: principal.as_ref(),
            account: &record.account,
            uid: record.account_uid.as_deref().unwrap_or_default(),
            agent: record.sent.as_ref().map_or("", |sent| &sent.id),
            verb: &record.operation_type,
            code,
            duration: Some(Duration::from_millis(u64::try_from(ended.duration_ms).unwrap_or_default())),
            reason: &reason,
            ..AuditLine::new(event, request_id)
        });
    }

    /// Counts a call that its door refuses before it is one about an operation, and writes its line: who calls, to do
    /// what, and why not. The refusal must not repeat the body.
    pub fn refused_call(&self, caller: &OperationCaller, verb: &'static str, refusal: &OperationRefusal) {
        self.refused(&AuditLine { verb, ..refusal_by(caller) }, refusal);
    }

    /// The same for a call of which it is not known who made it.
    pub fn refused_stranger(&self, address: Option<ClientAddress>, refusal: &OperationRefusal) {
        self.metrics.refused(refusal.reason());
        let (code, reason) = (Some(refusal.status().as_u16()), refusal.audited());
        let line = AuditLine::new(AuditEvent::Refusal, "");
        self.audit.refuse_stranger(address, &AuditLine { code, reason: &reason, ..line });
    }

    /// Counts a call that is refused, and completes its line.
    pub(super) fn refused(&self, line: &AuditLine<'_>, refusal: &OperationRefusal) {
        self.metrics.refused(refusal.reason());
        let (code, reason) = (Some(refusal.status().as_u16()), refusal.audited());
        self.audit.write(&AuditLine { code, reason: &reason, ..*line });
    }

    /// Writes the line of a write that has an answer, with its status and bytes, or none.
    pub(super) fn write_ended(
        &self,
        job: &Job,
        write: &AskedWrite,
        answered: Result<(u16, u64), &RequestError>,
    ) {
        let agent = job.writing_agent();
        let (code, bytes, reason) = match answered {
            Ok((status, bytes)) => (status, Some(bytes), String::new()),
            Err(error) => (failures::status(error, !error.is_before_send()), None, error.to_string()),
        };
        self.audit.write(&AuditLine {
            operation_id: &job.id,
            principal: Some(&job.principal),
            user: job.user.as_deref().unwrap_or_default(),
            claimed: job.claimed.as_deref().unwrap_or_default(),
            account: &job.operation.account().name,
            uid: &job.account_uid,
            agent: &agent,
            code: Some(code),
            bytes,
            duration: Some(write.started.elapsed()),
            reason: &reason,
            ..write.audited.line(AuditEvent::Write, &write.request_id)
        });
    }
}
