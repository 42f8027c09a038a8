//! The accounts of a list that a caller may see.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};

use super::caller_rules::RestAuthMode;
use super::callers::{RestCaller, ReviewAnswer, namespace_of, on_account};
use super::error::RestError;
use crate::access::{AccessError, AccessResource, RequestedAccess};
use kubesvc_core::KubesvcAccount;

/// Maximum number of concurrent reviews for one call.
const MAX_CONCURRENT_REVIEWS: usize = 16;
/// Maximum number of accounts of which the right of one call is reviewed for each by itself.
const MAX_REVIEWED_ACCOUNTS: usize = 256;

/// Why a list is refused as a whole: what was asked, the answer, and the reason in metrics.
type RefusedList = (RequestedAccess, AccessError, &'static str);

impl RestCaller {
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
        let Some(all) = all else { return Ok(visible) };
        if visible.len() < count {
            self.would_be_refused("hidden", "a list has accounts that the caller may not get");
        }
        Ok(all)
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
            ReviewAnswer::Allowed => Ok(true),
            ReviewAnswer::Denied(_) => Ok(false),
            ReviewAnswer::Unknown(error) => Err((access, error, "access_unavailable")),
        }
    }
}
