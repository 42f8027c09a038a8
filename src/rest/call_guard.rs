//! Each call before and after its handler: its rate, who makes it, and the rights that do not depend on its body.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use moka::sync::Cache;
use tokio::time::Instant;
use ulid::Ulid;

use super::RestState;
use super::access_rules::AccessRule;
use super::call_lines::{BegunCall, EndGuard, LeftCall};
use super::caller_rules::{AssertedUser, RestAuthMode};
use super::callers::RestCaller;
use super::error::RestError;
use super::unknown_callers::UnknownCaller;
use crate::access::{AccessResource, Caller, Principal, RequestedAccess, ShortRequest, Via};
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
    let state = call.state.clone();
    let left = LeftCall { call, rule, method: method.clone(), agent };
    let ending = EndGuard::new(left, caller.clone());
    let admitted = async {
        let counted = state.count_running(rule, &caller)?;
        state.review_call(rule, &method, &caller).await?;
        Ok::<_, RestError>(counted)
    };
    let response = match admitted.await {
        Err(error) => error.into_response(),
        Ok(_counted) => {
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
    ending.answered(&response);
    response
}

impl AccessRule {
    fn is_reviewed_by_handler(self) -> bool {
        matches!(self, Self::Accounts(_) | Self::Cache)
    }

    pub(super) fn resource(self) -> Option<AccessResource> {
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
        let authenticating = rules.access.authenticate(caller);
        let logged_in = if rules.mode == RestAuthMode::Enforce {
            self.log_in(origin, caller, authenticating).await
        } else {
            // Nothing is refused that `off` admits.
            self.count_address(origin)?;
            let known = authenticating.await.map_err(RestError::from);
            if let Ok(principal) = &known
                && origin.counted.is_some()
                && !self.rates.users.take(&principal.name)
            {
                rules.would_refuse("rate", origin.address, "a caller's calls come too fast");
            }
            known
        };
        let principal = match logged_in {
            Ok(principal) => principal,
            Err(error) if rules.mode == RestAuthMode::Log => {
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

    /// Counts a call that runs, among all of its caller.
    fn count_running(
        &self,
        rule: AccessRule,
        caller: &RestCaller,
    ) -> Result<Option<ShortRequest>, RestError> {
        // Operations are counted where they run.
        let Some(principal) = caller.principal().filter(|_| rule != AccessRule::Operations) else {
            return Ok(None);
        };
        match self.caller_counts.short(&principal.name) {
            Ok(counted) => Ok(Some(counted)),
            Err(error) if self.callers.mode == RestAuthMode::Log => {
                caller.would_be_refused("busy", &error.to_string());
                Ok(None)
            }
            Err(error) => {
                self.callers.metrics.refused("busy");
                Err(RestError::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()))
            }
        }
    }

    /// Finds out who calls, and counts the call and a login that fails: one with a token, of a caller whom no certificate
    /// identifies. Such a caller never pays for the logins of others at its address.
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
        let counts = caller.headers.contains_key(AUTHORIZATION)
            && !self.callers.access.is_certified(caller.certificates);
        let is_paused = origin.counted.is_some_and(|address| self.rates.paused.contains_key(&address));
        if counts && is_paused && !self.callers.access.was_known(caller) {
            return Err(too_many());
        }
        let principal = match authenticated.await {
            Ok(principal) => principal,
            Err(error) => {
                let error: RestError = error.into();
                if counts
                    && error.status == StatusCode::UNAUTHORIZED
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
