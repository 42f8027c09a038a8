//! `/credentials`: Clouddriver's account management, passed on; and with `kubesvc.clouddriver.passThrough: all`, every
//! path that is not REST's own.
//!
//! | module | owns |
//! |---|---|
//! | `writes` | writes of accounts: the intent before the call, what follows from its answer |
//! | `presence` | whether Clouddriver has an account before it is deleted |
//! | `followed` | what becomes of the account here |
//! | `settlement` | intents whose write has no known end, at the leader |
//!
//! Clouddriver decides first, and its answer is always the caller's. Nothing of a body or of a credential is logged.

mod followed;
mod presence;
mod settlement;
mod writes;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::debug;

use super::RestState;
use super::body::{MediaTypes, check_media};
use super::callers::RestCaller;
use super::dto::AccountDefinition;
use super::error::{ErrorBody, RestError, no_route};
use super::memory_limit::MemoryPermit;
use crate::clouddriver::{ClouddriverAccounts, ClouddriverProxy, NotAnswered};
use kubesvc_clouddriver::interception::{AccountsWrite, CredentialsCall, UnfitAccounts};

pub use settlement::IntentSettlement;

/// Maximum number of calls that are passed on at once.
const MAX_PASSED_ON: usize = 2000;
/// Mark at the start of a text in UTF-8, which Clouddriver skips.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// How Clouddriver's account management is served.
pub struct AccountManagementPorts {
    /// Passes calls on.
    pub proxy: ClouddriverProxy,
    /// Lists Clouddriver's accounts.
    pub accounts: Arc<dyn ClouddriverAccounts>,
    /// Whether every path that is not REST's own is passed on.
    pub passes_all: bool,
    /// Whether calls are passed on whose answers have resolved secrets.
    pub passes_secrets: bool,
    /// Whether accounts here follow what is written there.
    pub follows: bool,
    /// Interval of Clouddriver's polls.
    pub poll: Duration,
}

/// Clouddriver's account management, and what is under way there.
pub struct AccountManagement {
    ports: AccountManagementPorts,
    places: Arc<Semaphore>,
    /// Writes of this process whose intents it will end: name and start.
    under_way: Mutex<HashSet<(String, i64)>>,
    /// Start of the last write, in epoch milliseconds. No two have the same.
    last_start: AtomicI64,
    metrics: AccountManagementMetrics,
}

#[derive(Default)]
struct AccountManagementMetrics {
    results: Family<[(&'static str, &'static str); 1], Counter>,
    intents: Gauge,
    oldest: Gauge,
}

impl AccountManagement {
    /// Serves it with these ports.
    pub fn new(ports: AccountManagementPorts) -> Self {
        Self {
            ports,
            places: Arc::new(Semaphore::new(MAX_PASSED_ON)),
            under_way: Mutex::default(),
            last_start: AtomicI64::new(0),
            metrics: AccountManagementMetrics::default(),
        }
    }

    /// Registers the metrics under `kubesvc_clouddriver_…`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_clouddriver");
        let AccountManagementMetrics { results, intents, oldest } = &self.metrics;
        let help = "Accounts written through /credentials, by what became of the account here";
        registry.register("followed_writes", help, results.clone());
        let help = "Writes through /credentials whose end is not known, on the leader";
        registry.register("intents", help, intents.clone());
        let help = "Age of the oldest of them, in seconds";
        registry.register("oldest_intent_seconds", help, oldest.clone());
    }

    /// The start of a write, in epoch milliseconds.
    fn next_start(&self) -> i64 {
        let now = Timestamp::now().as_millisecond();
        let next = |last: i64| Some(now.max(last + 1));
        match self.last_start.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(last) | Err(last) => now.max(last + 1),
        }
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, RestError> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            RestError::unavailable(format!(
                "this replica passes {MAX_PASSED_ON} calls on to Clouddriver already; try again"
            ))
        })
    }

    /// Passes a call on. The answer holds the place until its end.
    async fn send(
        &self,
        call: &Parts,
        body: Bytes,
        place: OwnedSemaphorePermit,
    ) -> Result<Response, NotAnswered> {
        let answer = self.ports.proxy.pass_on(call, body).await?;
        Ok(answer.map(|body| {
            axum::body::Body::new(body.map_frame(move |frame| {
                let _held = &place;
                frame
            }))
        }))
    }
}

impl From<NotAnswered> for RestError {
    fn from(error: NotAnswered) -> Self {
        const SETTING: &str = "kubesvc.clouddriver.baseUrl";
        debug!(?error, "a call has no answer of Clouddriver's");
        match error {
            NotAnswered::Loop => Self::new(
                StatusCode::LOOP_DETECTED,
                format!("{SETTING} leads back to kubesvc: it must be an address of Clouddriver itself"),
            ),
            NotAnswered::NotSent(why) => Self::new(
                StatusCode::BAD_GATEWAY,
                format!("the call was not sent: Clouddriver cannot be reached ({SETTING}): {why}"),
            ),
            NotAnswered::Unknown(why) => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                format!("outcome unknown: Clouddriver was sent the call, and has not answered: {why}"),
            ),
        }
    }
}

impl RestState {
    /// Whether every path that is not REST's own is passed on.
    pub(super) fn passes_all(&self) -> bool {
        self.credentials.as_ref().is_some_and(|credentials| credentials.ports.passes_all)
    }
}

/// The fallback for paths that are not REST's own.
pub(super) async fn unknown_route(state: State<RestState>, request: Request) -> Result<Response, RestError> {
    if state.passes_all() { pass_on(state, request).await } else { Err(no_route().await) }
}

/// Passes a call on to Clouddriver.
pub(super) async fn pass_on(State(state): State<RestState>, request: Request) -> Result<Response, RestError> {
    let Some(credentials) = state.credentials.clone() else {
        return Err(RestError::new(
            StatusCode::NOT_IMPLEMENTED,
            "set kubesvc.clouddriver.baseUrl, the URL of Clouddriver, to which these calls are passed on",
        ));
    };
    let (mut parts, body) = request.into_parts();
    let known = parts.extensions.get::<RestCaller>().cloned().unwrap_or_else(RestCaller::kubesvc);
    known.leave_behind(&mut parts.headers);
    let call = CredentialsCall::of(parts.method.as_str(), parts.uri.path());
    match call {
        CredentialsCall::Secrets if !credentials.ports.passes_secrets => {
            return Err(RestError::new(
                StatusCode::FORBIDDEN,
                "the answer would have resolved secrets: kubesvc.clouddriver.passSecrets: true passes such calls on",
            ));
        }
        CredentialsCall::Elsewhere if !credentials.ports.passes_all => return Err(no_route().await),
        _ => {}
    }
    if call.has_accounts() {
        check_media(&parts.headers, MediaTypes::Unsaid)?;
    }
    let caller = parts.extensions.get().copied();
    let (body, memory) = super::body::unparsed(&state, &parts.headers, body, caller).await?;
    let (accounts, held) = if call.has_accounts() {
        // What the two may read in different ways is refused: Clouddriver would write other accounts than are known here.
        let text = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&body);
        super::body::parse(&state, caller, text, memory).await?
    } else {
        (Value::Null, MemoryPermit::default().with(memory))
    };
    // What this connection is known by stays here.
    parts.extensions.clear();
    let place = credentials.place()?;
    match AccountsWrite::of(&call, accounts)? {
        Some(write) => {
            let written = |state: RestState| async move {
                state.pass_write_on(&credentials, &known, write, (parts, body), place).await
            };
            state.to_the_end(held, written).await
        }
        None => Ok(credentials.send(&parts, body, place).await?),
    }
}

impl From<UnfitAccounts> for RestError {
    fn from(error: UnfitAccounts) -> Self {
        let status = match error {
            UnfitAccounts::TooMany(_) => StatusCode::PAYLOAD_TOO_LARGE,
            UnfitAccounts::Name(_) => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.to_string())
    }
}

macro_rules! documented {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub(super) async fn $name(state: State<RestState>, request: Request) -> Result<Response, RestError> {
            pass_on(state, request).await
        }
    };
}

documented! {
    /// List Clouddriver's accounts, as Clouddriver answers.
    #[utoipa::path(get, path = "/credentials", operation_id = "listCredentials", tag = "clouddriver",
        responses((status = 200, description = "Clouddriver's answer, as all other codes but these"),
            (status = 501, description = "kubesvc.clouddriver.baseUrl is not set", body = ErrorBody),
            (status = 502, description = "The call was not sent", body = ErrorBody),
            (status = 504, description = "The outcome is unknown", body = ErrorBody)))]
    list
}
documented! {
    /// Add an account to Clouddriver, and then here.
    #[utoipa::path(post, path = "/credentials", operation_id = "addCredentials", tag = "clouddriver",
        request_body(content = AccountDefinition, description = "Clouddriver's definition, with type: kubernetes"),
        responses((status = 200, description = "Clouddriver's answer; X-Kubesvc-Result says what became of the account here"),
            (status = 409, description = "kubesvc registered the account, or another write of it is under way", body = ErrorBody),
            (status = 501, description = "kubesvc.clouddriver.baseUrl is not set", body = ErrorBody)))]
    add
}
documented! {
    /// Add or replace an account in Clouddriver; an account here follows.
    #[utoipa::path(put, path = "/credentials", operation_id = "putCredentials", tag = "clouddriver",
        request_body(content = AccountDefinition, description = "Clouddriver's definition, with type: kubernetes"),
        responses((status = 200, description = "Clouddriver's answer; X-Kubesvc-Result says what became of the account here"),
            (status = 409, description = "kubesvc registered the account, or another write of it is under way", body = ErrorBody),
            (status = 501, description = "kubesvc.clouddriver.baseUrl is not set", body = ErrorBody)))]
    put
}
documented! {
    /// Remove an account from Clouddriver, and then here.
    #[utoipa::path(delete, path = "/credentials/{accountName}", operation_id = "deleteCredentials", tag = "clouddriver",
        params(("accountName" = String, Path, description = "Name of the account, percent-encoded")),
        responses((status = 200, description = "Clouddriver's answer; X-Kubesvc-Result says what became of the account here"),
            (status = 409, description = "kubesvc registered the account, or another write of it is under way", body = ErrorBody),
            (status = 501, description = "kubesvc.clouddriver.baseUrl is not set", body = ErrorBody)))]
    delete
}
