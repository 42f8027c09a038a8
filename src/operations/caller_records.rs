//! Records of operations for callers, and the results that people give.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures::{StreamExt as _, stream};

use super::audit_lines::refusal_by;
use super::runner::now_ms;
use super::submission::of_record;
use super::{EndedOperation, OperationCaller, OperationRefusal, Operations, checks, records};
use crate::access::AccessError;
use crate::access::audit::{AuditEvent, AuditLine};
use kubesvc_core::operations::{OutcomeClass, OutcomeFailure, SettledByHand};
use kubesvc_runtime::crash_points;
use kubesvc_store::{HandSettlement, OperationRecord};

/// Time limit for rows that wait to be written before rows are read.
pub(super) const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of concurrent questions about rights for one list.
const MAX_CONCURRENT_CHECKS: usize = 16;

impl Operations {
    /// One record, of an operation that runs too.
    ///
    /// # Errors
    /// There is none, or the caller may not read its account.
    pub async fn record(
        &self,
        id: &str,
        caller: &OperationCaller,
    ) -> Result<OperationRecord, OperationRefusal> {
        let line = AuditLine { operation_id: id, verb: "get", ..refusal_by(caller) };
        let record = self.find_record(id).await.inspect_err(|refusal| {
            // That there is none is the answer.
            if !matches!(refusal, OperationRefusal::NoOperation(_)) {
                self.refused(&line, refusal);
            }
        })?;
        let may = self.authorize_record(caller, "get", &record).await;
        may.inspect_err(|refusal| self.refused(&of_account(line, &record), refusal))?;
        Ok(record)
    }

    /// A page of records, the newest first, of one account or of all. Records of accounts that the caller may not read
    /// are left out.
    ///
    /// # Errors
    /// The database cannot be read, or nobody can be asked for the caller's rights.
    pub async fn records(
        &self,
        account: Option<&str>,
        page: (u64, u32),
        caller: &OperationCaller,
    ) -> Result<Vec<OperationRecord>, OperationRefusal> {
        let records = self.readable_records(account, page, caller).await;
        records.inspect_err(|refusal| {
            let account = account.unwrap_or_default();
            self.refused(&AuditLine { account, verb: "list", ..refusal_by(caller) }, refusal);
        })
    }

    async fn readable_records(
        &self,
        account: Option<&str>,
        (offset, limit): (u64, u32),
        caller: &OperationCaller,
    ) -> Result<Vec<OperationRecord>, OperationRefusal> {
        self.rows.flush(FLUSH_TIMEOUT).await;
        if let Some(name) = account {
            self.authorize_named(caller, "get", (name, None)).await?;
        }
        let records = self.store.operations(account, offset, limit).await;
        let mut records = records.map_err(OperationRefusal::Database)?;
        let about: BTreeSet<AboutAccount> = records.iter().map(AboutAccount::of).collect();
        let checked = about.iter().map(|about| async move {
            match self.authorize_named(caller, "get", about.named()).await {
                Ok(()) => Ok((about, true)),
                Err(OperationRefusal::Access(error @ (AccessError::Unavailable(_) | AccessError::Busy))) => {
                    Err(error)
                }
                Err(_) => Ok((about, false)),
            }
        });
        let mut checked = stream::iter(checked.collect::<Vec<_>>()).buffer_unordered(MAX_CONCURRENT_CHECKS);
        let mut may = HashMap::new();
        while let Some(answer) = checked.next().await {
            let (about, is_allowed) = answer?;
            may.insert(about, is_allowed);
        }
        records.retain(|record| may.get(&AboutAccount::of(record)).copied().unwrap_or_default());
        Ok(records)
    }

    /// Gives an operation that is open, or whose outcome is unknown, the result of a person.
    ///
    /// # Errors
    /// There is no such operation, it has a result, or the caller may not do that.
    pub async fn settle_by_hand(
        &self,
        result: &SettledByHand,
        caller: &OperationCaller,
    ) -> Result<(), OperationRefusal> {
        let id = result.operation_id.as_str();
        let line = AuditLine { operation_id: id, verb: "settle", ..refusal_by(caller) };
        let record = self.find_record(id).await.inspect_err(|refusal| self.refused(&line, refusal))?;
        let settled = self.settle(result, caller, &record).await;
        settled.inspect_err(|refusal| self.refused(&of_account(line, &record), refusal))
    }

    async fn settle(
        &self,
        result: &SettledByHand,
        caller: &OperationCaller,
        record: &OperationRecord,
    ) -> Result<(), OperationRefusal> {
        let id = result.operation_id.as_str();
        self.authorize_record(caller, "update", record).await?;
        let (replica_id, record) = (&self.settings.replica_id, record.clone());
        let record = records::settled_by_hand(record, result.status, replica_id, now_ms());
        let settled =
            crash_points::around(Some("operation-hand"), self.store.settle_operation(&record)).await;
        match settled.map_err(OperationRefusal::Database)? {
            HandSettlement::Settled => {}
            HandSettlement::NotFound => return Err(OperationRefusal::NoOperation(id.to_owned())),
            HandSettlement::AlreadySettled => return Err(OperationRefusal::AlreadySettled(id.to_owned())),
        }
        let ended = EndedOperation {
            status: result.status,
            failure: (result.status >= 400).then(|| OutcomeFailure {
                class: OutcomeClass::of_status(result.status),
                message: result.message.clone(),
            }),
            ..of_record(&record)
        };
        self.known.end(id, ended, self.clock());
        self.audit.write(&AuditLine {
            operation_id: id,
            principal: Some(&caller.principal),
            user: caller.user.as_deref().unwrap_or_default(),
            claimed: caller.claimed.as_deref().unwrap_or_default(),
            account: &record.account,
            uid: record.account_uid.as_deref().unwrap_or_default(),
            verb: "settle",
            code: Some(result.status),
            reason: record.outcome.as_str(),
            ..AuditLine::new(AuditEvent::Write, record.request_id.as_deref().unwrap_or_default())
        });
        Ok(())
    }

    /// Looks now at what other replicas left open.
    ///
    /// # Errors
    /// The database cannot be used.
    pub async fn look_at_open_rows(&self) -> Result<(), OperationRefusal> {
        self.settle_overdue(None).await.map(drop).map_err(OperationRefusal::Database)
    }

    async fn find_record(&self, id: &str) -> Result<OperationRecord, OperationRefusal> {
        self.rows.flush(FLUSH_TIMEOUT).await;
        let stored = self.store.operation(id).await.map_err(OperationRefusal::Database)?;
        stored.ok_or_else(|| OperationRefusal::NoOperation(id.to_owned()))
    }

    async fn authorize_record(
        &self,
        caller: &OperationCaller,
        verb: &'static str,
        record: &OperationRecord,
    ) -> Result<(), OperationRefusal> {
        let about = AboutAccount::of(record);
        // Who asked for it may read how it ended, also when the account is gone.
        let is_own = record.principal.as_deref() == Some(caller.principal.name.as_str());
        if is_own && verb == "get" && self.is_gone(&about) {
            return Ok(());
        }
        let authorized = self.authorize_named(caller, verb, about.named()).await;
        authorized.map_err(|refusal| match refusal {
            // The id is all that the caller knows.
            OperationRefusal::NoAccount(_) => OperationRefusal::NoOperation(record.operation_id.clone()),
            refusal => refusal,
        })
    }

    /// Whether the account of a record is gone, whatever has its name by now.
    fn is_gone(&self, about: &AboutAccount) -> bool {
        let objects = self.accounts.by_account_name(&about.name);
        about.uid.as_deref().is_some_and(|uid| objects.iter().all(|object| object.uid() != uid))
    }

    /// Checks a right on the account with a name, and this uid if one is known: another object may have the name by now. For one
    /// that is gone the right on all accounts is needed.
    async fn authorize_named(
        &self,
        caller: &OperationCaller,
        verb: &'static str,
        (account, uid): (&str, Option<&str>),
    ) -> Result<(), OperationRefusal> {
        let mut objects = self.accounts.by_account_name(account).into_iter();
        let object = objects.find(|object| uid.is_none_or(|uid| object.uid() == uid));
        let authorized = match self.authorize(&caller.principal, verb, object.as_deref()).await {
            Err(OperationRefusal::Access(AccessError::Denied(_)))
                if object.is_none() && self.settings.hides_accounts =>
            {
                Err(OperationRefusal::NoAccount(account.to_owned()))
            }
            authorized => authorized,
        };
        authorized?;
        // Only who may read it learns that the list leaves it out.
        if !checks::is_among(caller.accounts.as_deref(), account) {
            return Err(OperationRefusal::NotAmongAccounts(account.to_owned()));
        }
        Ok(())
    }
}

/// The account that a record is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct AboutAccount {
    name: String,
    uid: Option<String>,
}

impl AboutAccount {
    fn of(record: &OperationRecord) -> Self {
        let uid = record.account_uid.clone().filter(|uid| !uid.is_empty());
        Self { name: record.account.clone(), uid }
    }

    fn named(&self) -> (&str, Option<&str>) {
        (&self.name, self.uid.as_deref())
    }
}

/// The line with the account of a record.
fn of_account<'a>(line: AuditLine<'a>, record: &'a OperationRecord) -> AuditLine<'a> {
    AuditLine { account: &record.account, uid: record.account_uid.as_deref().unwrap_or_default(), ..line }
}
