//! What callers of all calls are judged by: the mode, the port that is asked, and who may say for whom it calls.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde::Deserialize;
use tracing::warn;

use crate::access::audit::AuditLog;
use crate::access::{Access, AccessError, AccessResource, Principal, RequestedAccess};
use kubesvc_runtime::listen::connection_limits::{ClientAddress, LogRateLimit};

/// Header with the accounts that a caller says it may use.
pub(super) const ACCOUNTS: HeaderName = HeaderName::from_static("x-spinnaker-accounts");
/// Header with the user for whom a caller says that it acts.
pub(super) const USER: HeaderName = HeaderName::from_static("x-spinnaker-user");
/// Maximum length of that user's name, in characters.
const MAX_USER_CHARS: usize = 255;
/// Whether callers must be known and have rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RestAuthMode {
    /// Everybody may do everything.
    #[default]
    Off,
    /// Calls are judged, and admitted.
    Log,
    /// Calls are judged.
    Enforce,
}

/// Counters of `kubesvc_rest_…`.
#[derive(Clone, Debug, Default)]
pub struct RestAccessMetrics {
    refused: Family<[(&'static str, &'static str); 1], Counter>,
    would_refuse: Family<[(&'static str, &'static str); 1], Counter>,
}

impl RestAccessMetrics {
    /// Adds the counters to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_rest");
        let help = "Calls of REST that were refused because of their caller, by reason";
        registry.register("refused", help, self.refused.clone());
        let help = "Calls that kubesvc.rest.auth.mode: enforce would refuse, by reason";
        registry.register("would_refuse", help, self.would_refuse.clone());
    }

    pub(super) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&[("reason", reason)]).inc();
    }
}

/// What callers of all calls are judged by.
pub(super) struct CallerRules {
    pub(super) mode: RestAuthMode,
    pub(super) access: Arc<dyn Access>,
    pub(super) audit: AuditLog,
    pub(super) metrics: RestAccessMetrics,
    /// Namespace in which accounts are made, and in which rights are given that are about no single one.
    pub(super) accounts_namespace: String,
    pub(super) log_limit: LogRateLimit,
}

/// The user for whom a caller says that it acts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AssertedUser {
    /// Its name; empty: the caller names none.
    pub(super) name: String,
    /// Whether the caller may say so.
    pub(super) counts: bool,
    /// The only accounts that the caller may use for it; `None`: all of its own.
    pub(super) accounts: Option<Vec<String>>,
}

impl AssertedUser {
    /// What the headers say, of a caller whose word counts or not.
    pub(super) fn of(headers: &HeaderMap, counts: bool) -> Self {
        let name = headers.get(USER).map(|user| String::from_utf8_lossy(user.as_bytes()));
        let name = name.map(|user| user.chars().take(MAX_USER_CHARS).collect()).unwrap_or_default();
        Self { name, counts, accounts: named_accounts(headers).filter(|_| counts) }
    }
}

/// The accounts that a caller says it may use; `None`: it says nothing. A name that no account can have is passed over.
pub(super) fn named_accounts(headers: &HeaderMap) -> Option<Vec<String>> {
    let mut values = headers.get_all(ACCOUNTS).iter().peekable();
    values.peek()?;
    let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let names = names.filter_map(|name| std::str::from_utf8(name.trim_ascii()).ok());
    Some(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

impl CallerRules {
    /// Counts and logs a call that `enforce` would refuse.
    pub(super) fn would_refuse(&self, reason: &'static str, address: Option<ClientAddress>, why: &str) {
        self.metrics.would_refuse.get_or_create(&[("reason", reason)]).inc();
        if address.is_none_or(|address| self.log_limit.may_log(reason, address)) {
            let caller = address.map(|address| address.to_string());
            warn!(reason, caller, "kubesvc.rest.auth.mode: enforce would refuse a call: {why}");
        }
    }

    /// What a caller says of the user for whom it acts.
    ///
    /// # Errors
    /// It cannot be asked whether its word counts.
    pub(super) async fn asserted(
        &self,
        principal: &Principal,
        headers: &HeaderMap,
    ) -> Result<AssertedUser, AccessError> {
        if !headers.contains_key(USER) && !headers.contains_key(ACCOUNTS) {
            return Ok(AssertedUser::default());
        }
        let asked = RequestedAccess {
            verb: "assert",
            resource: AccessResource::AccountUsers,
            namespace: self.accounts_namespace.clone(),
            object: String::new(),
        };
        match self.access.authorize(principal, &asked).await {
            Ok(()) => Ok(AssertedUser::of(headers, true)),
            Err(AccessError::Denied(_)) => Ok(AssertedUser::of(headers, false)),
            Err(error) if self.mode == RestAuthMode::Enforce => Err(error),
            Err(_) => Ok(AssertedUser::of(headers, false)),
        }
    }
}
