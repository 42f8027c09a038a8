//! The operations of an account: `GET …/accounts/OBJECT/operations?page&items`, and one of them: `…/operations/ID`.

use std::sync::Arc;

use http::{Method, Response, StatusCode};

use super::checks;
use super::paths::AccountPath;
use super::proxying::narrows;
use super::status::Refusal;
use super::{Body, Call, Gateway};
use crate::access::audit::AuditLine;
use crate::access::{Principal, ShortRequest};
use crate::connected_agents::RequestClass;
use crate::informers::AccountKey;
use crate::operations::OperationRecordView;
use kubesvc_core::KubesvcAccount;
use kubesvc_store::{OperationRecord, StoreError};

/// What audit lines call the operations of an account.
const RESOURCE: &str = "accounts.proxy.kubesvc.io/operations";
/// Number of records in a page, unless the caller says another.
const DEFAULT_ITEMS: u32 = 100;
/// Maximum number of records in a page.
const MAX_ITEMS: u32 = 1000;

impl Gateway {
    /// Lists operations and writes of an account, the newest first.
    pub(super) async fn list_operations(
        &self,
        call: &Call,
        principal: &Principal,
        path: &AccountPath,
        query: Option<&str>,
    ) -> Result<Response<Body>, Refusal> {
        let listed = self.operations_page(call, principal, path, query).await;
        listed.inspect_err(|refusal| self.unread(call, principal, path, "", refusal))
    }

    /// One operation or write of an account.
    pub(super) async fn get_operation(
        &self,
        call: &Call,
        principal: &Principal,
        path: &AccountPath,
        id: &str,
    ) -> Result<Response<Body>, Refusal> {
        let read = self.one_operation(call, principal, path, id).await;
        read.inspect_err(|refusal| {
            // That there is none is the answer.
            if refusal.code != StatusCode::NOT_FOUND {
                self.unread(call, principal, path, id, refusal);
            }
        })
    }

    async fn operations_page(
        &self,
        call: &Call,
        principal: &Principal,
        path: &AccountPath,
        query: Option<&str>,
    ) -> Result<Response<Body>, Refusal> {
        if call.method != Method::GET {
            return Err(Refusal::method_not_allowed());
        }
        let (page, items) = page(query.unwrap_or_default())?;
        let (account, _short) = self.readable(call, principal, path).await?;
        let offset = u64::from(page - 1) * u64::from(items);
        self.ports.history.flush().await;
        let records = self.ports.store.operations(Some(account.account_name()), offset, items).await;
        let records = records.map_err(|error| database_away(&error))?;
        // Those of a former account are older than all of its own, so that a short page is still the last one.
        let own = records.into_iter().filter(|record| is_of(record, &account));
        let records: Vec<OperationRecordView> = own.map(Into::into).collect();
        Ok(super::json(StatusCode::OK, &records))
    }

    async fn one_operation(
        &self,
        call: &Call,
        principal: &Principal,
        path: &AccountPath,
        id: &str,
    ) -> Result<Response<Body>, Refusal> {
        if call.method != Method::GET {
            return Err(Refusal::method_not_allowed());
        }
        let (account, _short) = self.readable(call, principal, path).await?;
        self.ports.history.flush().await;
        let record = self.ports.store.operation(id).await.map_err(|error| database_away(&error))?;
        let record = record.filter(|record| is_of(record, &account)).map(OperationRecordView::from);
        let record = record.ok_or_else(|| {
            Refusal::not_found(format!("account {} has no operation {id}", account.account_name()))
        })?;
        Ok(super::json(StatusCode::OK, &record))
    }

    /// An account whose operations the caller may read, and the call's place among the running ones.
    async fn readable(
        &self,
        call: &Call,
        principal: &Principal,
        path: &AccountPath,
    ) -> Result<(Arc<KubesvcAccount>, ShortRequest), Refusal> {
        self.authorize(call, principal, checks::wanted(&Method::GET, RequestClass::Read, path)?).await?;
        let short = self.ports.callers.short(&principal.name)?;
        let account = self.account_at(path);
        let account = account.ok_or_else(|| Refusal::unavailable("there is no such account"))?;
        narrows(call, account.account_name())?;
        Ok((account, short))
    }

    /// Writes that the operations of an account, or the one with an id, are not shown.
    fn unread(&self, call: &Call, principal: &Principal, path: &AccountPath, id: &str, refusal: &Refusal) {
        let account = self.account_at(path);
        let account = account.as_deref();
        let line = AuditLine {
            operation_id: id,
            account: account.map(KubesvcAccount::account_name).unwrap_or_default(),
            uid: account.map(KubesvcAccount::uid).unwrap_or_default(),
            verb: if id.is_empty() { "list" } else { "get" },
            resource: RESOURCE,
            namespace: &path.namespace,
            name: &path.object,
            ..call.refusal_by(principal)
        };
        self.refused(&line, refusal);
    }

    fn account_at(&self, path: &AccountPath) -> Option<Arc<KubesvcAccount>> {
        let key = AccountKey { namespace: path.namespace.clone(), name: path.object.clone() };
        self.ports.accounts.get(&key)
    }
}

/// Whether a record is one of this account, and of no other that had its name before.
fn is_of(record: &OperationRecord, account: &KubesvcAccount) -> bool {
    let is_same = record.account_uid.as_deref().is_none_or(|uid| uid == account.uid());
    is_same && record.account == account.account_name()
}

fn database_away(error: &StoreError) -> Refusal {
    tracing::warn!(error = error.in_full(), "the operations of an account cannot be read");
    Refusal::unavailable("the database with the operations does not answer; try again")
}

fn page(query: &str) -> Result<(u32, u32), Refusal> {
    let (mut page, mut items) = (1, DEFAULT_ITEMS);
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let number = |max: u32| {
            let number = value.parse().ok().filter(|number| (1..=max).contains(number));
            number.ok_or_else(|| {
                Refusal::bad_request(format!("{key} is {value:?}; give a number from 1 to {max}"))
            })
        };
        match key.as_ref() {
            "page" => page = number(u32::MAX)?,
            "items" => items = number(MAX_ITEMS)?,
            _ => {}
        }
    }
    Ok((page, items))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_bounds() {
        assert_eq!(page("").expect("defaults"), (1, 100));
        assert_eq!(page("page=3&items=10&other=x").expect("a page"), (3, 10));
        for bad in ["page=0", "items=0", "items=1001", "page=x", "page=-1", "page="] {
            assert_eq!(page(bad).expect_err(bad).code, StatusCode::BAD_REQUEST);
        }
    }
}
