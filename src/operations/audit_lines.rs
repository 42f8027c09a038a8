//! Audit lines about operations: calls that are refused, and writes, each with the id that the cluster's audit log has. The
//! one of the operation itself follows when it ends.

use tokio::time::Instant;

use super::job::Job;
use super::{OperationCaller, OperationRefusal, Operations, failures};
use crate::access::audit::{AuditEvent, AuditLine, resource_of, verb_of};
use crate::connected_agents::{AccountRequest, RequestError};
use kubesvc_core::requests::target::RequestPath;

/// The line of a call that is refused, with who calls.
pub(super) fn refusal_by(caller: &OperationCaller) -> AuditLine<'_> {
    AuditLine {
        principal: Some(&caller.principal),
        claimed: caller.claimed.as_deref().unwrap_or_default(),
        ..AuditLine::new(AuditEvent::Refusal, "")
    }
}

/// A write of an operation, as its line names it.
pub(super) struct AskedWrite {
    request_id: String,
    verb: &'static str,
    resource: String,
    namespace: String,
    name: String,
    started: Instant,
}

impl AskedWrite {
    pub(super) fn of(request: &AccountRequest) -> Self {
        // A path that cannot be read is refused by the one who sends it.
        let path = RequestPath::read(request.target.as_bytes()).unwrap_or_default();
        Self {
            request_id: request.request_id.clone(),
            verb: verb_of(&request.method, &path),
            resource: resource_of(&path),
            namespace: path.namespace.unwrap_or_default(),
            name: path.name.unwrap_or_default(),
            started: Instant::now(),
        }
    }
}

impl Operations {
    /// Counts a call that its door refuses before it is one about an operation, and writes its line: who calls, to do
    /// what, and why not. The refusal must not repeat the body.
    pub fn refused_call(&self, caller: &OperationCaller, verb: &'static str, refusal: &OperationRefusal) {
        self.refused(&AuditLine { verb, ..refusal_by(caller) }, refusal);
    }

    /// Counts a call that is refused, and completes its line.
    pub(super) fn refused(&self, line: &AuditLine<'_>, refusal: &OperationRefusal) {
        self.metrics.refused(refusal.reason());
        let (code, reason) = (Some(refusal.status().as_u16()), refusal.to_string());
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
            claimed: job.claimed.as_deref().unwrap_or_default(),
            account: &job.operation.account().name,
            uid: &job.account_uid,
            agent: &agent,
            verb: write.verb,
            resource: &write.resource,
            namespace: &write.namespace,
            name: &write.name,
            code: Some(code),
            bytes,
            duration: Some(write.started.elapsed()),
            reason: &reason,
            ..AuditLine::new(AuditEvent::Write, &write.request_id)
        });
    }
}
