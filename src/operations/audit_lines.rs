//! Audit lines about operations, but for the end of one.

use super::{OperationCaller, OperationRefusal, Operations};
use crate::access::audit::{AuditEvent, AuditLine};

/// The line of a call that is refused, with who calls.
pub(super) fn refusal_by(caller: &OperationCaller) -> AuditLine<'_> {
    AuditLine {
        principal: Some(&caller.principal),
        claimed: caller.claimed.as_deref().unwrap_or_default(),
        ..AuditLine::new(AuditEvent::Refusal, "")
    }
}

impl Operations {
    /// Counts a call that is refused, and completes its line.
    pub(super) fn refused(&self, line: &AuditLine<'_>, refusal: &OperationRefusal) {
        self.metrics.refused(refusal.reason());
        let (code, reason) = (Some(refusal.status().as_u16()), refusal.to_string());
        self.audit.write(&AuditLine { code, reason: &reason, ..*line });
    }
}
