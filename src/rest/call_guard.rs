//! Each call before and after its handler: its rate, who makes it, the rights that do not depend on its body, and its audit
//! lines.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use moka::sync::Cache;
use tokio::time::Instant;
use ulid::Ulid;

use super::RestState;
use super::access_rules::AccessRule;
use super::caller_rules::{AssertedUser, RestAuthMode};
use super::callers::RestCaller;
use super::error::RestError;
use super::unknown_callers::UnknownCaller;
use crate::access::audit::{AuditEvent, AuditLine};
use crate::access::{AccessResource, Caller, Principal, RequestedAccess, Via};
use kubesvc_runtime::limits::KeyedRate;
use kubesvc_runtime::listen::connection_limits::ClientAddress;
use kubesvc_runtime::listen::http::{ClientCertificates, ExemptCaller};

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Calls of one caller per second, and at once.
const CALLS_PER_SECOND: NonZeroU32 = NonZeroU32::new(200).expect("it is not 0");
const CALL_BURST: NonZeroU32 = NonZeroU32::new(400).expect("it is not 0");
/// Failed logins of one address per second.
const FAILED_LOGINS_PER_SECOND: NonZeroU32 = NonZeroU32::new(10).expect("it is not 0");
/// Maximum number of callers whose rates are counted apart.
const MAX_COUNTED_CALLERS: usize = 16_384;
/// Time for which an address with too many failed logins may only use tokens that were good before.
const LOGIN_PAUSE: Duration = Duration::from_secs(1);

/// Rates of callers.
#[derive(Debug)]
pub(super) struct CallRates {
    users: KeyedRate<String>,
    addresses: KeyedRate<ClientAddress>,
    failed_logins: KeyedRate<ClientAddress>,
    paused: Cache<ClientAddress, ()>,
}

impl Default for CallRates {
    fn default() -> Self {
        Self {
            users: KeyedRate::new(CALLS_PER_SECOND, CALL_BURST, MAX_COUNTED_CALLERS),
            addresses: KeyedRate::new(CALLS_PER_SECOND, CALL_BURST, MAX_COUNTED_CALLERS),
            failed_logins: KeyedRate::new(
                FAILED_LOGINS_PER_SECOND,
                FAILED_LOGINS_PER_SECOND,
                MAX_COUNTED_CALLERS,
            ),
            paused: Cache::builder()
                .max_capacity(u64::try_from(MAX_COUNTED_CALLERS).unwrap_or(u64::MAX))
                .time_to_live(LOGIN_PAUSE)
                .build(),
        }
    }
}

/// A call that has begun.
#[derive(Clone)]
struct BegunCall {
    audit_id: String,
    started: Instant,
    state: RestState,
}

/// Middleware that gives each call an id, which its answer and its audit lines have.
pub(super) async fn begin(State(state): State<RestState>, mut request: Request, next: Next) -> Response {
    let audit_id = Ulid::generate().to_string();
    let call = BegunCall { audit_id: audit_id.clone(), started: Instant::now(), state };
    request.extensions_mut().insert(call);
    let mut response = next.run(request).await;
    if let Ok(id) = HeaderValue::from_str(&audit_id) {
        response.headers_mut().insert(AUDIT_ID, id);
    }
    response
}

/// What is known of a caller from its connection.
#[derive(Clone, Copy)]
pub(super) struct CallOrigin {
    /// `None`: it is not known, and has no rate.
    counted: Option<ClientAddress>,
    pub(super) address: Option<ClientAddress>,
}

impl CallOrigin {
    pub(super) fn of(parts: &Parts) -> Self {
        let address = parts.extensions.get::<ClientAddress>().copied();
        let is_exempt = parts.extensions.get::<ExemptCaller>().is_some();
        Self { counted: address.filter(|_| !is_exempt), address }
    }
}

/// The certificate that the caller shows.
pub(super) fn shown_certificates(parts: &Parts) -> Vec<Vec<u8>> {
    let shown = parts.extensions.get::<ClientCertificates>();
    shown.iter().flat_map(|ClientCertificates(shown)| shown.first()).map(|own| own.to_vec()).collect()
}

/// Middleware of each route: judges the caller by the rule, and writes the audit lines.
pub(super) async fn admit(rule: AccessRule, request: Request, next: Next) -> Response {
    let Some(call) = request.extensions().get::<BegunCall>().cloned() else {
        // It is the router's own middleware.
        return RestError::new(StatusCode::INTERNAL_SERVER_ERROR, "the call was not begun").into_response();
    };
    let (mut parts, body) = request.into_parts();
    let method = parts.method.clone();
    let caller = match call.state.caller(rule, &parts).await {
        Ok(caller) => caller,
        Err(error) => {
            call.login_failed(rule, &parts, &error);
            return error.into_response();
        }
    };
    let (agent, path) = (agent_of(rule, &parts), parts.uri.path().to_owned());
    let admitted = call.state.review_call(rule, &method, &caller).await;
    let response = match admitted {
        Err(error) => error.into_response(),
        Ok(()) => {
            parts.extensions.insert(caller.clone());
            let response = next.run(Request::from_parts(parts, body)).await;
            if response.status().is_success() && rule.is_reviewed_by_handler() && !caller.was_reviewed() {
                // Nothing is given out that nobody has looked at.
                tracing::error!(path, "a call was answered without a look at its caller's rights");
                RestError::new(StatusCode::INTERNAL_SERVER_ERROR, "the caller's rights were not reviewed")
                    .into_response()
            } else {
                response
            }
        }
    };
    call.ended(rule, &method, &caller, &agent, &response);
    response
}

impl AccessRule {
    fn is_reviewed_by_handler(self) -> bool {
        matches!(self, Self::Accounts(_) | Self::Cache)
    }

    fn resource(self) -> Option<AccessResource> {
        match self {
            Self::Accounts(_) => Some(AccessResource::Accounts),
            Self::Cache => Some(AccessResource::Cache),
            Self::Agents(_) => Some(AccessResource::Agents),
            Self::Clouddriver | Self::UnknownPath => Some(AccessResource::AccountClouddriver),
            Self::Path(path) => Some(AccessResource::Path(path)),
            Self::Open | Self::Nothing | Self::Operations => None,
        }
    }
}

/// The agent that a call is about.
fn agent_of(rule: AccessRule, parts: &Parts) -> String {
    let mut segments = parts.uri.path().split('/').skip_while(|segment| *segment != "agent").skip(1);
    let id = segments.next().filter(|_| rule == AccessRule::Agents("update")).unwrap_or_default();
    percent_encoding::percent_decode_str(id).decode_utf8_lossy().into_owned()
}

impl RestState {
    /// Who makes a call.
    async fn caller(&self, rule: AccessRule, parts: &Parts) -> Result<RestCaller, RestError> {
        let (origin, rules) = (CallOrigin::of(parts), &self.callers);
        let unknown =
            || RestCaller::new(rules.clone(), None, origin.address, AssertedUser::of(&parts.headers, false));
        if rules.mode == RestAuthMode::Off || rule == AccessRule::Operations {
            if rule != AccessRule::Operations {
                self.count_address(origin)?;
            }
            return Ok(unknown());
        }
        let certificates = shown_certificates(parts);
        let caller = Caller { headers: &parts.headers, certificates: &certificates };
        let logged_in = self.log_in(origin, caller, rules.access.authenticate(caller)).await;
        let principal = match logged_in {
            Ok(principal) => principal,
            Err(error)
                if rules.mode == RestAuthMode::Log && error.status != StatusCode::TOO_MANY_REQUESTS =>
            {
                let is_unknown = error.status == StatusCode::UNAUTHORIZED;
                let reason = if is_unknown { "unauthenticated" } else { "access_unavailable" };
                rules.would_refuse(reason, origin.address, &error.message);
                return Ok(unknown());
            }
            Err(error) => return Err(error),
        };
        UnknownCaller::of(parts).known();
        let asserted = rules.asserted(&principal, &parts.headers).await?;
        Ok(RestCaller::new(rules.clone(), Some(principal), origin.address, asserted))
    }

    /// Counts a call of a caller that nobody knows.
    fn count_address(&self, origin: CallOrigin) -> Result<(), RestError> {
        match origin.counted {
            Some(address) if !self.rates.addresses.take(&address) => Err(self.too_fast("your address")),
            _ => Ok(()),
        }
    }

    fn too_fast(&self, whose: &str) -> RestError {
        self.callers.metrics.refused("rate");
        RestError::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!(
                "calls of {whose} come faster than {CALLS_PER_SECOND} a second; wait, or have your address listed in \
                 server.limits.exempt"
            ),
        )
    }

    /// Finds out who calls, and counts the call and a login that fails.
    pub(super) async fn log_in<E: Into<RestError>>(
        &self,
        origin: CallOrigin,
        caller: Caller<'_>,
        authenticated: impl Future<Output = Result<Principal, E>>,
    ) -> Result<Principal, RestError> {
        let too_many = || {
            self.callers.metrics.refused("logins");
            RestError::new(
                StatusCode::TOO_MANY_REQUESTS,
                format!(
                    "more than {FAILED_LOGINS_PER_SECOND} logins a second failed from your address; wait"
                ),
            )
        };
        let is_paused = origin.counted.is_some_and(|address| self.rates.paused.contains_key(&address));
        if is_paused && !self.callers.access.was_known(caller) {
            return Err(too_many());
        }
        let principal = match authenticated.await {
            Ok(principal) => principal,
            Err(error) => {
                let error: RestError = error.into();
                if error.status == StatusCode::UNAUTHORIZED
                    && let Some(address) = origin.counted
                    && !self.rates.failed_logins.take(&address)
                {
                    self.rates.paused.insert(address, ());
                    return Err(too_many());
                }
                self.count_address(origin)?;
                if self.callers.mode == RestAuthMode::Enforce {
                    let is_unknown = error.status == StatusCode::UNAUTHORIZED;
                    let reason = if is_unknown { "unauthenticated" } else { "access_unavailable" };
                    self.callers.metrics.refused(reason);
                }
                return Err(error);
            }
        };
        if principal.via == Via::Nobody {
            // All who need no login have one name.
            self.count_address(origin)?;
        } else if origin.counted.is_some() && !self.rates.users.take(&principal.name) {
            return Err(self.too_fast(&format!("user {:?}", principal.name)));
        }
        Ok(principal)
    }

    /// Reviews the rights that do not depend on the body of a call.
    async fn review_call(
        &self,
        rule: AccessRule,
        method: &Method,
        caller: &RestCaller,
    ) -> Result<(), RestError> {
        let namespace = match rule {
            AccessRule::Agents(_) => self.settings.operator_namespace.clone(),
            AccessRule::Clouddriver => self.settings.accounts_namespace.clone(),
            AccessRule::UnknownPath if self.passes_all() => self.settings.accounts_namespace.clone(),
            AccessRule::Path(_) => String::new(),
            _ => return Ok(()),
        };
        let Some(resource) = rule.resource() else { return Ok(()) };
        let access = RequestedAccess { verb: rule.verb(method), resource, namespace, object: String::new() };
        caller.require(&access).await
    }
}

impl BegunCall {
    /// Writes that it is not known who calls. Calls about operations have lines of their own.
    fn login_failed(&self, rule: AccessRule, parts: &Parts, error: &RestError) {
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
        response: &Response,
    ) {
        let (refused, verb) = (caller.refused(), rule.verb(method));
        let writes = rule.resource().is_some() && !matches!(verb, "get" | "list");
        if (refused.is_none() && !writes) || rule == AccessRule::Operations {
            return;
        }
        let code = Some(response.status().as_u16());
        let why = response.extensions().get::<RestError>().map(|error| error.message.clone());
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
        if let Some(refused) = refused {
            audit.write(&AuditLine {
                event: AuditEvent::Refusal,
                verb: refused.verb,
                resource: &refused.resource.name(),
                namespace: &refused.namespace,
                name: &refused.object,
                reason: why.as_deref().unwrap_or_default(),
                ..line
            });
            return;
        }
        // What is wrong with a body may repeat it.
        let reason = why.filter(|_| response.status() != StatusCode::BAD_REQUEST).unwrap_or_default();
        let written = caller.written();
        if written.is_empty() {
            audit.write(&AuditLine { reason: &reason, ..line });
        }
        for (account, object) in &written {
            let (namespace, uid) = (object.namespace.as_str(), object.uid.as_str());
            audit.write(&AuditLine { account, namespace, uid, reason: &reason, ..line });
        }
    }
}
