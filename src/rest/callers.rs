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
use axum::http::{HeaderMap, StatusCode};
use parking_lot::Mutex;

use super::RestState;
use super::call_lines::LeftCall;
use super::caller_rules::{ACCOUNTS, AssertedUser, CallerRules, RestAuthMode, USER};
use super::error::RestError;
use crate::access::{AccessError, AccessResource, Principal, RequestedAccess, Via};
use kubesvc_core::KubesvcAccount;
use kubesvc_runtime::listen::connection_limits::ClientAddress;

/// An account that a call is to write, for its audit line.
#[derive(Clone, Debug, Default)]
pub(super) struct WrittenObject {
    pub(super) namespace: String,
    pub(super) uid: String,
    /// Whether it was written, as far as the call got.
    pub(super) is_done: bool,
    /// The verb with which the account here followed a write of Clouddriver's.
    pub(super) followed: Option<&'static str>,
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
    /// The call, if its caller has left while it goes on: its lines are written at its end.
    left: Mutex<Option<LeftCall>>,
}

impl Drop for CallOfCaller {
    fn drop(&mut self) {
        let Some(left) = self.left.get_mut().take() else { return };
        let caller = RestCaller(Arc::new(Self {
            rules: self.rules.take(),
            principal: self.principal.take(),
            address: self.address,
            asserted: std::mem::take(&mut self.asserted),
            reviewed: AtomicBool::new(true),
            refused: std::mem::take(&mut self.refused),
            written: std::mem::take(&mut self.written),
            left: Mutex::default(),
        }));
        left.ended(&caller);
    }
}

/// What a review says.
pub(super) enum ReviewAnswer {
    Allowed,
    Denied(AccessError),
    Unknown(AccessError),
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
            left: Mutex::default(),
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
        let mut all = self.0.written.lock();
        let written = all.entry(account.to_owned()).or_default();
        (written.namespace, written.uid) = (namespace.to_owned(), uid.to_owned());
    }

    /// Notes that an account was written.
    pub(super) fn wrote(&self, account: &str) {
        self.0.written.lock().entry(account.to_owned()).or_default().is_done = true;
    }

    /// Notes that an account here has followed a write of Clouddriver's.
    pub(super) fn followed(&self, account: &str, verb: &'static str) {
        self.0.written.lock().entry(account.to_owned()).or_default().followed = Some(verb);
    }

    /// Leaves the lines of a call to what goes on of it: its caller has left.
    pub(super) fn left(&self, call: LeftCall) {
        *self.0.left.lock() = Some(call);
    }

    /// The rules and the principal, if its rights are looked at.
    pub(super) fn checked(&self) -> Option<(&CallerRules, &Principal)> {
        let rules = self.0.rules.as_deref().filter(|rules| rules.mode != RestAuthMode::Off)?;
        Some((rules, self.0.principal.as_ref()?))
    }

    pub(super) async fn review(&self, access: &RequestedAccess) -> ReviewAnswer {
        self.needs_no_right();
        let Some((rules, principal)) = self.checked() else { return ReviewAnswer::Allowed };
        match rules.access.authorize(principal, access).await {
            Ok(()) => ReviewAnswer::Allowed,
            Err(error @ (AccessError::Denied(_) | AccessError::Unauthenticated(_))) => {
                ReviewAnswer::Denied(error)
            }
            Err(error @ (AccessError::Unavailable(_) | AccessError::Busy)) => ReviewAnswer::Unknown(error),
        }
    }

    /// Removes from the headers of a call that is passed on what was meant for kubesvc, and what the caller may not say.
    pub(super) fn leave_behind(&self, headers: &mut HeaderMap) {
        let is_ours = self.principal().is_some_and(|principal| principal.via == Via::Token);
        if self.mode() == RestAuthMode::Enforce || (self.mode() == RestAuthMode::Log && is_ours) {
            headers.remove(AUTHORIZATION);
        }
        let is_said = headers.contains_key(USER) || headers.contains_key(ACCOUNTS);
        if !is_said || self.mode() == RestAuthMode::Off || self.0.asserted.counts {
            return;
        }
        if self.mode() == RestAuthMode::Enforce {
            headers.remove(USER);
            headers.remove(ACCOUNTS);
        } else {
            let why =
                "the caller may not say for whom it acts, so its X-SPINNAKER headers would not be passed on";
            self.would_be_refused("user", why);
        }
    }

    /// Counts and logs what `enforce` would refuse.
    pub(super) fn would_be_refused(&self, reason: &'static str, why: &str) {
        if let Some(rules) = &self.0.rules {
            rules.would_refuse(reason, self.0.address, why);
        }
    }

    /// Refuses the call, or admits it after all.
    pub(super) fn refuse(
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
            ReviewAnswer::Allowed => Ok(()),
            ReviewAnswer::Denied(error) => self.refuse(access, "denied", &error),
            ReviewAnswer::Unknown(error) => self.refuse(access, "access_unavailable", &error),
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
            return Ok(self.refuse(&wanted, "not_among_accounts", &not_named()).is_ok());
        }
        let denied = match self.review(&wanted).await {
            ReviewAnswer::Allowed => return Ok(true),
            ReviewAnswer::Denied(error) => error,
            ReviewAnswer::Unknown(error) => {
                return self.refuse(&wanted, "access_unavailable", &error).map(|()| true);
            }
        };
        let read = on_account(account, "get", AccessResource::Accounts);
        if wanted != read {
            match self.review(&read).await {
                ReviewAnswer::Allowed => return self.refuse(&wanted, "denied", &denied).map(|()| true),
                ReviewAnswer::Unknown(error) => {
                    return self.refuse(&read, "access_unavailable", &error).map(|()| true);
                }
                ReviewAnswer::Denied(_) => {}
            }
        }
        Ok(self.refuse(&wanted, "hidden", &denied).is_ok())
    }

    /// Whether the caller may see an account, or do this with it, without being refused otherwise.
    ///
    /// # Errors
    /// 503.
    pub(super) async fn could(
        &self,
        account: &KubesvcAccount,
        verb: &'static str,
    ) -> Result<bool, RestError> {
        let wanted = on_account(account, verb, AccessResource::Accounts);
        let denied = if self.is_named(account) {
            match self.review(&wanted).await {
                ReviewAnswer::Allowed => return Ok(true),
                ReviewAnswer::Denied(error) => error,
                ReviewAnswer::Unknown(error) => {
                    return self.refuse(&wanted, "access_unavailable", &error).map(|()| true);
                }
            }
        } else {
            not_named()
        };
        if self.mode() == RestAuthMode::Enforce {
            return Ok(false);
        }
        self.would_be_refused("denied", &denied.to_string());
        Ok(true)
    }

    /// Refuses to make accounts that the caller may not use by its header.
    ///
    /// # Errors
    /// 403.
    pub(super) fn may_name(&self, names: &[&str], access: &RequestedAccess) -> Result<(), RestError> {
        let Some(named) = &self.0.asserted.accounts else { return Ok(()) };
        if names.iter().all(|name| named.iter().any(|one| one == name)) {
            return Ok(());
        }
        self.refuse(access, "not_among_accounts", &not_named())
    }

    /// Whether the accounts that the caller may use by its header include this one.
    pub(super) fn is_named(&self, account: &KubesvcAccount) -> bool {
        let named = self.0.asserted.accounts.as_ref();
        named.is_none_or(|named| named.iter().any(|name| name == account.account_name()))
    }
}

fn not_named() -> AccessError {
    AccessError::Denied("the account is not in the list of the header X-SPINNAKER-ACCOUNTS".to_owned())
}

pub(super) fn namespace_of(account: &KubesvcAccount) -> &str {
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
