//! What is cached of an account: `GET …/accounts/OBJECT/cache`, as the call of REST shows it.

use http::{Method, Response, StatusCode};

use super::paths::AccountPath;
use super::proxying::narrows;
use super::status::Refusal;
use super::{Body, Call, Gateway};
use crate::access::audit::AuditLine;
use crate::access::{AccessResource, Principal, RequestedAccess};
use crate::account_caches::{AccountCache, CacheQuery, CacheViewError};
use crate::informers::AccountKey;

/// What audit lines call it.
const RESOURCE: &str = "accounts.proxy.kubesvc.io/cache";

impl Gateway {
    /// Shows what is cached of an account, and one object if the query names it.
    pub(super) async fn show_cache(
        &self,
        call: &Call,
        principal: &Principal,
        path: &AccountPath,
        query: Option<&str>,
    ) -> Result<Response<Body>, Refusal> {
        match self.cache_of(call, principal, path, query).await {
            Ok(cache) => Ok(super::json(StatusCode::OK, &cache)),
            Err(refusal) => {
                // That there is no such kind is the answer.
                if refusal.code != StatusCode::NOT_FOUND {
                    let AccountPath { namespace, object } = path;
                    let line = AuditLine {
                        verb: "get",
                        resource: RESOURCE,
                        namespace,
                        name: object,
                        ..call.refusal_by(principal)
                    };
                    self.refused(&line, &refusal);
                }
                Err(refusal)
            }
        }
    }

    async fn cache_of(
        &self,
        call: &Call,
        principal: &Principal,
        path: &AccountPath,
        query: Option<&str>,
    ) -> Result<AccountCache, Refusal> {
        if call.method != Method::GET {
            return Err(Refusal::method_not_allowed());
        }
        let AccountPath { namespace, object } = path.clone();
        let wanted = RequestedAccess {
            verb: "get",
            resource: AccessResource::Cache,
            namespace: namespace.clone(),
            object: object.clone(),
        };
        self.authorize(call, principal, vec![wanted]).await?;
        let _short = self.ports.callers.short(&principal.name)?;
        let query = CacheQuery::read(query)?;
        let account = self.ports.accounts.get(&AccountKey { namespace, name: object });
        let account = account.ok_or_else(|| Refusal::unavailable("there is no such account"))?;
        narrows(call, account.account_name())?;
        // Rows have the account's name: they are those of the object that holds it.
        let holder = self.ports.accounts.by_account_name(account.account_name()).into_iter().next();
        if holder.is_some_and(|holder| holder.uid() != account.uid()) {
            return Err(Refusal::unavailable("another object has this account name"));
        }
        Ok(self.ports.caches.view(&account, &query).await?)
    }
}

impl From<CacheViewError> for Refusal {
    fn from(error: CacheViewError) -> Self {
        Self::new(error.status(), error.to_string())
    }
}
