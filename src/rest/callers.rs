//! Who makes a call, and what it may: [`RestCaller`], which each handler is given.
//!
//! While `kubesvc.rest.auth.mode` is `off`, everybody may do everything. With `log`, calls are judged as with `enforce`, and
//! admitted; what would have been refused is counted and logged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde::Deserialize;
use tracing::warn;

use super::RestState;
use super::error::RestError;
use crate::access::audit::AuditLog;
use crate::access::{Access, AccessError, AccessResource, Principal, RequestedAccess};
use kubesvc_core::KubesvcAccount;
use kubesvc_runtime::listen::connection_limits::{ClientAddress, LogRateLimit};

/// Header with the accounts that a caller says it may use.
pub(super) const ACCOUNTS: HeaderName = HeaderName::from_static("x-spinnaker-accounts");
/// Header with the user for whom a caller says that it acts.
pub(super) const USER: HeaderName = HeaderName::from_static("x-spinnaker-user");
/// Maximum length of that user's name, in characters.
const MAX_USER_CHARS: usize = 255;
/// Maximum number of concurrent reviews for one call.
const MAX_CONCURRENT_REVIEWS: usize = 16;
/// Maximum number of accounts of which the right of one call is reviewed for each by itself.
const MAX_REVIEWED_ACCOUNTS: usize = 256;

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

/// An account that a call is to write, for its audit line.
#[derive(Clone, Debug, Default)]
pub(super) struct WrittenObject {
    pub(super) namespace: String,
    pub(super) uid: String,
}

/// The caller of one call. Clones are the same one.
#[derive(Clone)]
pub(super) struct RestCaller(Arc<CallOfCaller>);

struct CallOfCaller {
    /// `None`: kubesvc itself acts.
    rules: Option<Arc<CallerRules>>,
    /// `None`: nobody was asked, or it is not known and admitted nevertheless.
    principal: Option<Principal>,
    address: Option<ClientAddress>,
    asserted: AssertedUser,
    reviewed: AtomicBool,
    refused: Mutex<Option<RequestedAccess>>,
    /// By account name.
    written: Mutex<BTreeMap<String, WrittenObject>>,
}

/// The user for whom a caller says that it acts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AssertedUser {
    /// Its name; empty: the caller names none.
    pub(super) name: String,
    /// Whether the caller may say so.
    pub(super) counts: bool,
    /// The only accounts that the caller may use for it; `None`: all of its own.
    accounts: Option<Vec<String>>,
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

/// Why a list is refused as a whole: what was asked, the answer, and the reason in metrics.
type RefusedList = (RequestedAccess, AccessError, &'static str);

/// What a review says.
enum Verdict {
    Allowed,
    Denied(AccessError),
    Unknown(AccessError),
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

impl RestCaller {
    pub(super) fn new(
        rules: Arc<CallerRules>,
        principal: Option<Principal>,
        address: Option<ClientAddress>,
        asserted: AssertedUser,
    ) -> Self {
        Self::with(Some(rules), principal, address, asserted)
    }

    /// Kubesvc itself, which follows what Clouddriver has decided.
    pub(super) fn kubesvc() -> Self {
        Self::with(None, None, None, AssertedUser::default())
    }

    fn with(
        rules: Option<Arc<CallerRules>>,
        principal: Option<Principal>,
        address: Option<ClientAddress>,
        asserted: AssertedUser,
    ) -> Self {
        Self(Arc::new(CallOfCaller {
            rules,
            principal,
            address,
            asserted,
            reviewed: AtomicBool::new(false),
            refused: Mutex::default(),
            written: Mutex::default(),
        }))
    }

    pub(super) fn principal(&self) -> Option<&Principal> {
        self.0.principal.as_ref()
    }

    /// Its address, for lines about a caller that is not known.
    pub(super) fn address_in_lines(&self) -> String {
        let address = self.0.address.filter(|_| self.0.principal.is_none());
        address.map(|address| address.to_string()).unwrap_or_default()
    }

    pub(super) fn asserted(&self) -> &AssertedUser {
        &self.0.asserted
    }

    /// The mode in which its calls are judged.
    pub(super) fn mode(&self) -> RestAuthMode {
        self.0.rules.as_ref().map_or(RestAuthMode::Off, |rules| rules.mode)
    }

    /// Whether it has only what rights give it.
    pub(super) fn has_rights(&self) -> bool {
        self.checked().is_some()
    }

    /// Whether its rights were looked at, as far as they are.
    pub(super) fn was_reviewed(&self) -> bool {
        self.checked().is_none() || self.0.reviewed.load(Ordering::Relaxed)
    }

    /// Notes that there is nothing whose rights could be reviewed.
    pub(super) fn needs_no_right(&self) {
        self.0.reviewed.store(true, Ordering::Relaxed);
    }

    /// What the call was refused for, because of its caller.
    pub(super) fn refused(&self) -> Option<RequestedAccess> {
        self.0.refused.lock().clone()
    }

    /// The accounts that the call is to write, by name.
    pub(super) fn written(&self) -> BTreeMap<String, WrittenObject> {
        self.0.written.lock().clone()
    }

    /// Notes an account that the call is to write.
    pub(super) fn writes(&self, account: &str, namespace: &str, uid: &str) {
        let written = WrittenObject { namespace: namespace.to_owned(), uid: uid.to_owned() };
        self.0.written.lock().insert(account.to_owned(), written);
    }

    /// The rules and the principal, if its rights are looked at.
    fn checked(&self) -> Option<(&CallerRules, &Principal)> {
        let rules = self.0.rules.as_deref().filter(|rules| rules.mode != RestAuthMode::Off)?;
        Some((rules, self.0.principal.as_ref()?))
    }

    async fn review(&self, access: &RequestedAccess) -> Verdict {
        self.needs_no_right();
        let Some((rules, principal)) = self.checked() else { return Verdict::Allowed };
        match rules.access.authorize(principal, access).await {
            Ok(()) => Verdict::Allowed,
            Err(error @ (AccessError::Denied(_) | AccessError::Unauthenticated(_))) => Verdict::Denied(error),
            Err(error @ (AccessError::Unavailable(_) | AccessError::Busy)) => Verdict::Unknown(error),
        }
    }

    /// Removes from the headers of a call that is passed on what was meant for kubesvc, and what the caller may not say.
    pub(super) fn leave_behind(&self, headers: &mut HeaderMap) {
        if self.mode() != RestAuthMode::Off {
            headers.remove(AUTHORIZATION);
        }
        let is_said = headers.contains_key(USER) || headers.contains_key(ACCOUNTS);
        if !is_said || self.mode() == RestAuthMode::Off || self.0.asserted.counts {
            return;
        }
        if self.mode() == RestAuthMode::Enforce {
            headers.remove(USER);
            headers.remove(ACCOUNTS);
        } else if let Some(rules) = &self.0.rules {
            let why =
                "the caller may not say for whom it acts, so its X-SPINNAKER headers would not be passed on";
            rules.would_refuse("user", self.0.address, why);
        }
    }

    /// Refuses the call, or admits it after all.
    fn refuse(
        &self,
        access: &RequestedAccess,
        reason: &'static str,
        error: &AccessError,
    ) -> Result<(), RestError> {
        let Some(rules) = &self.0.rules else { return Ok(()) };
        if rules.mode == RestAuthMode::Log {
            rules.would_refuse(reason, self.0.address, &error.to_string());
            return Ok(());
        }
        rules.metrics.refused(reason);
        *self.0.refused.lock() = Some(access.clone());
        Err(error.clone().into())
    }

    /// Refuses the call unless the caller has a right.
    ///
    /// # Errors
    /// 403 with the verb and the resource, or 503.
    pub(super) async fn require(&self, access: &RequestedAccess) -> Result<(), RestError> {
        match self.review(access).await {
            Verdict::Allowed => Ok(()),
            Verdict::Denied(error) => self.refuse(access, "denied", &error),
            Verdict::Unknown(error) => self.refuse(access, "access_unavailable", &error),
        }
    }

    /// Whether the caller may know that an account exists.
    ///
    /// # Errors
    /// 403 if it may, and not do this with it; 503.
    pub(super) async fn sees(
        &self,
        account: &KubesvcAccount,
        verb: &'static str,
        resource: AccessResource,
    ) -> Result<bool, RestError> {
        self.needs_no_right();
        let wanted = on_account(account, verb, resource);
        if !self.is_named(account) {
            let why = "the account is not in the list of the header X-SPINNAKER-ACCOUNTS";
            return Ok(self
                .refuse(&wanted, "not_among_accounts", &AccessError::Denied(why.to_owned()))
                .is_ok());
        }
        let denied = match self.review(&wanted).await {
            Verdict::Allowed => return Ok(true),
            Verdict::Denied(error) => error,
            Verdict::Unknown(error) => {
                return self.refuse(&wanted, "access_unavailable", &error).map(|()| true);
            }
        };
        let read = on_account(account, "get", AccessResource::Accounts);
        if wanted != read {
            match self.review(&read).await {
                Verdict::Allowed => return self.refuse(&wanted, "denied", &denied).map(|()| true),
                Verdict::Unknown(error) => {
                    return self.refuse(&read, "access_unavailable", &error).map(|()| true);
                }
                Verdict::Denied(_) => {}
            }
        }
        Ok(self.refuse(&wanted, "hidden", &denied).is_ok())
    }

    /// Whether the accounts that the caller may use by its header include this one.
    fn is_named(&self, account: &KubesvcAccount) -> bool {
        let named = self.0.asserted.accounts.as_ref();
        named.is_none_or(|named| named.iter().any(|name| name == account.account_name()))
    }

    /// The accounts of a list that the caller may see, in their order: all of a namespace in which it may list them, of other
    /// namespaces those that it may get.
    ///
    /// # Errors
    /// 403 if there are too many to ask about each; 503.
    pub(super) async fn visible(
        &self,
        accounts: Vec<Arc<KubesvcAccount>>,
    ) -> Result<Vec<Arc<KubesvcAccount>>, RestError> {
        self.needs_no_right();
        if self.checked().is_none() {
            return Ok(accounts);
        }
        let count = accounts.len();
        let all = (self.mode() == RestAuthMode::Log).then(|| accounts.clone());
        let named: Vec<_> = accounts.into_iter().filter(|account| self.is_named(account)).collect();
        let visible = match self.permitted(named).await {
            Err((access, error, reason)) => {
                self.refuse(&access, reason, &error)?;
                return Ok(all.unwrap_or_default());
            }
            Ok(visible) => visible,
        };
        match (all, &self.0.rules) {
            (Some(all), Some(rules)) => {
                if visible.len() < count {
                    let why = "a list has accounts that the caller may not get";
                    rules.would_refuse("hidden", self.0.address, why);
                }
                Ok(all)
            }
            _ => Ok(visible),
        }
    }

    async fn permitted(
        &self,
        accounts: Vec<Arc<KubesvcAccount>>,
    ) -> Result<Vec<Arc<KubesvcAccount>>, RefusedList> {
        let mut namespaces: BTreeMap<String, bool> = BTreeMap::new();
        for account in &accounts {
            namespaces.entry(namespace_of(account).to_owned()).or_default();
        }
        let namespaces: Vec<String> = namespaces.into_keys().collect();
        let lists = namespaces.iter().map(|namespace| RequestedAccess {
            verb: "list",
            resource: AccessResource::Accounts,
            namespace: namespace.clone(),
            object: String::new(),
        });
        let listed = self.are_allowed(lists.map(Some).collect()).await?;
        let listed: BTreeMap<&str, bool> = namespaces.iter().map(String::as_str).zip(listed).collect();
        let is_listed = |account: &KubesvcAccount| listed.get(namespace_of(account)) == Some(&true);
        let each = accounts.iter().filter(|account| !is_listed(account));
        if let Some(beyond) = each.clone().nth(MAX_REVIEWED_ACCOUNTS) {
            let mut access = on_account(beyond, "list", AccessResource::Accounts);
            access.object.clear();
            let why = format!(
                "user {:?} cannot {access}, which has too many accounts to be asked about one by one; give it a role with \
                 that verb",
                self.principal().map(|principal| principal.name.as_str()).unwrap_or_default()
            );
            return Err((access, AccessError::Denied(why), "denied"));
        }
        let gets = accounts.iter().map(|account| {
            (!is_listed(account)).then(|| on_account(account, "get", AccessResource::Accounts))
        });
        let allowed = self.are_allowed(gets.collect()).await?;
        Ok(accounts.into_iter().zip(allowed).filter(|(_, allowed)| *allowed).map(|(one, _)| one).collect())
    }

    /// Whether each of these is allowed, a few at a time. `None` is.
    async fn are_allowed(&self, all: Vec<Option<RequestedAccess>>) -> Result<Vec<bool>, RefusedList> {
        let each = all.into_iter().map(|access| self.is_allowed(access).boxed());
        stream::iter(each.collect::<Vec<_>>()).buffered(MAX_CONCURRENT_REVIEWS).try_collect().await
    }

    async fn is_allowed(&self, access: Option<RequestedAccess>) -> Result<bool, RefusedList> {
        let Some(access) = access else { return Ok(true) };
        match self.review(&access).await {
            Verdict::Allowed => Ok(true),
            Verdict::Denied(_) => Ok(false),
            Verdict::Unknown(error) => Err((access, error, "access_unavailable")),
        }
    }
}

fn namespace_of(account: &KubesvcAccount) -> &str {
    account.metadata.namespace.as_deref().unwrap_or_default()
}

/// A right on an account's object.
pub(super) fn on_account(
    account: &KubesvcAccount,
    verb: &'static str,
    resource: AccessResource,
) -> RequestedAccess {
    RequestedAccess {
        verb,
        resource,
        namespace: namespace_of(account).to_owned(),
        object: account.metadata.name.clone().unwrap_or_default(),
    }
}

impl From<AccessError> for RestError {
    fn from(error: AccessError) -> Self {
        Self::new(error.status(), error.to_string())
    }
}

impl FromRequestParts<RestState> for RestCaller {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, _: &RestState) -> Result<Self, RestError> {
        let caller = parts.extensions.get().cloned();
        caller.ok_or_else(|| {
            RestError::new(StatusCode::INTERNAL_SERVER_ERROR, "the call has no access rule; this is a bug")
        })
    }
}
