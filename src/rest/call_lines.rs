//! The audit lines of a call: of a failed login, of a refusal, and of what it wrote, with an answer or without one.

use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use tokio::time::Instant;

use super::RestState;
use super::access_rules::AccessRule;
use super::call_guard::CallOrigin;
use super::caller_rules::RestAuthMode;
use super::callers::RestCaller;
use super::error::RestError;
use crate::access::AccessResource;
use crate::access::audit::{AuditEvent, AuditLine};

/// A call that has begun.
#[derive(Clone)]
pub(super) struct BegunCall {
    pub(super) audit_id: String,
    pub(super) started: Instant,
    pub(super) state: RestState,
}

/// A call that is not answered yet. If its caller leaves, what goes on of it writes its lines.
pub(super) struct LeftCall {
    pub(super) call: BegunCall,
    pub(super) rule: AccessRule,
    pub(super) method: Method,
    /// The agent that it is about.
    pub(super) agent: String,
}

impl LeftCall {
    /// Writes the lines of the call, which has ended without an answer.
    pub(super) fn ended(&self, caller: &RestCaller) {
        const WHY: &str = "the caller left before the answer; the outcome is in the objects";
        self.call.ended(self.rule, &self.method, caller, &self.agent, (None, WHY.to_owned()));
    }
}

/// Sees to it that a call has its audit lines, even if its future is dropped because the caller hangs up.
pub(super) struct EndGuard {
    /// `None`: it was answered.
    call: Option<LeftCall>,
    caller: RestCaller,
}

impl EndGuard {
    pub(super) fn new(call: LeftCall, caller: RestCaller) -> Self {
        Self { call: Some(call), caller }
    }

    /// Writes the lines of the call, which has this answer.
    pub(super) fn answered(mut self, response: &Response) {
        let Some(LeftCall { call, rule, method, agent }) = self.call.take() else { return };
        let why = response.extensions().get::<RestError>().map(|error| error.message.clone());
        let answer = (Some(response.status()), why.unwrap_or_default());
        call.ended(rule, &method, &self.caller, &agent, answer);
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if let Some(left) = self.call.take() {
            self.caller.left(left);
        }
    }
}

impl BegunCall {
    /// Writes that it is not known who calls. Calls about operations have lines of their own.
    pub(super) fn login_failed(&self, rule: AccessRule, parts: &Parts, error: &RestError) {
        let rules = &self.state.callers;
        if rules.mode == RestAuthMode::Off || rule == AccessRule::Operations {
            return;
        }
        let line = AuditLine {
            audit_id: &self.audit_id,
            code: Some(error.status.as_u16()),
            reason: &error.message,
            ..AuditLine::new(AuditEvent::LoginFailure, "")
        };
        rules.audit.refuse_stranger(CallOrigin::of(parts).address, &line);
    }

    /// Writes the lines of a call that was refused because of its caller, or that writes.
    fn ended(
        &self,
        rule: AccessRule,
        method: &Method,
        caller: &RestCaller,
        agent: &str,
        (status, why): (Option<StatusCode>, String),
    ) {
        let (refused, verb) = (caller.refused(), rule.verb(method));
        let writes = rule.resource().is_some() && !matches!(verb, "get" | "list");
        if (refused.is_none() && !writes) || rule == AccessRule::Operations {
            return;
        }
        let code = status.map(|status| status.as_u16());
        let resource = rule.resource().map(AccessResource::name).unwrap_or_default();
        let address = caller.address_in_lines();
        let asserted = caller.asserted();
        let (user, claimed) =
            if asserted.counts { (asserted.name.as_str(), "") } else { ("", asserted.name.as_str()) };
        let line = AuditLine {
            audit_id: &self.audit_id,
            principal: caller.principal(),
            address: &address,
            user,
            claimed,
            verb,
            resource: &resource,
            agent,
            code,
            duration: Some(self.started.elapsed()),
            ..AuditLine::new(AuditEvent::Write, "")
        };
        let audit = &self.state.callers.audit;
        if let Some(refused) = &refused {
            audit.write(&AuditLine {
                event: AuditEvent::Refusal,
                verb: refused.verb,
                resource: &refused.resource.name(),
                namespace: &refused.namespace,
                name: &refused.object,
                reason: &why,
                ..line
            });
        }
        let mut written = caller.written();
        let reason = if refused.is_some() {
            written.retain(|_, object| object.is_done || object.followed.is_some());
            "it was written before the call was refused"
        } else if status == Some(StatusCode::BAD_REQUEST) {
            // What is wrong with a body may repeat it.
            ""
        } else {
            why.as_str()
        };
        if written.is_empty() && refused.is_none() {
            audit.write(&AuditLine { reason, ..line });
        }
        for (account, object) in &written {
            let (namespace, uid) = (object.namespace.as_str(), object.uid.as_str());
            let line = AuditLine { account, namespace, uid, reason, ..line };
            audit.write(&line);
            if let Some(verb) = object.followed {
                let resource = AccessResource::Accounts.name();
                let reason = "it followed the write of Clouddriver's account";
                audit.write(&AuditLine { verb, resource: &resource, reason, ..line });
            }
        }
    }
}
