//! A call for an operation: its checks in order, its id, its start, and the wait for its end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt as _;
use http::Method;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use ulid::Ulid;

use super::audit_lines::refusal_by;
use super::checks::{self, OperationIdentity};
use super::failures::RunFailure;
use super::job::{Job, OperationProgress, SharedJob};
use super::known_operations::{KnownOperation, Phase, Phases};
use super::records::{self, Beginning};
use super::runner::now_ms;
use super::{EndedOperation, OperationRefusal, Operations};
use crate::access::audit::AuditLine;
use crate::access::{AccessError, AccessResource, Caller, Principal, RequestedAccess, Via};
use crate::connected_agents::{AccountRequest, RequestErrorKind as Kind};
use kubesvc_core::KubesvcAccount;
use kubesvc_core::operations::{
    ApplyMode, ApplySettings, Operation, OutcomeBody, OutcomeClass, OutcomeFailure, UnreadOperation,
};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::listen::bodies::NoRoom;
use kubesvc_runtime::listen::connection_limits::ClientAddress;
use kubesvc_runtime::shutdown::spawn_named;
use kubesvc_store::{OperationChange, OperationOutcome, OperationRecord};

/// Interval at which the row of an operation of another replica is read by those who wait for it.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which it is looked whether a person has settled an operation that runs here.
const SETTLED_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit for finding out why no agent can be asked.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why nothing is begun while the replica stops.
const STOPS: &str = "this replica stops; try again";
/// Why nothing is begun while large documents use up their memory.
const NO_ROOM_FOR_DOCUMENT: &str =
    "this replica has no memory left for large manifests, in total or for you; try again";

/// Who calls.
#[derive(Clone, Debug)]
pub struct OperationCaller {
    /// The caller.
    pub principal: Principal,
    /// The user for whom the caller acts, if it may say so.
    pub user: Option<String>,
    /// The user that another caller names.
    pub claimed: Option<String>,
    /// The accounts that the caller says it may use; `None`: it says nothing.
    pub accounts: Option<Vec<String>>,
}

/// A call for an operation.
pub struct OperationCall {
    /// What is asked.
    pub operation: UnreadOperation,
    /// Who asks.
    pub caller: OperationCaller,
    /// Whether nothing is to be changed.
    pub dry_run: bool,
    /// An id of the caller's own, of any form.
    pub client_request_id: Option<String>,
    /// How long the caller waits for the end.
    pub wait: Option<Duration>,
    /// What is held until the operation has ended, such as the memory that it takes.
    pub held: Box<dyn Any + Send + Sync>,
}

/// A call whose operation was read.
struct ReadCall {
    operation: Operation,
    caller: OperationCaller,
    dry_run: bool,
    held: Box<dyn Any + Send + Sync>,
}

/// What became of a call.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// Id of the operation.
    pub id: String,
    /// How it ended, if the caller waited for that and it has.
    pub ended: Option<Arc<EndedOperation>>,
}

/// An operation as its call found it.
enum FoundOperation {
    /// It runs here, or did.
    Here(Phases),
    /// Another replica runs it, or it ended long ago.
    Stored(Box<OperationRecord>),
}

impl Operations {
    /// Finds out who calls.
    ///
    /// # Errors
    /// The caller is not known, or cannot be looked up.
    pub async fn authenticate(
        &self,
        caller: Caller<'_>,
        address: Option<ClientAddress>,
    ) -> Result<Principal, OperationRefusal> {
        let known = self.access.authenticate(caller).await.map_err(OperationRefusal::from);
        known.inspect_err(|refusal| self.refused_stranger(address, refusal))
    }

    /// Checks an operation and starts it, unless it was started before under its id. Waits for its end if the caller
    /// does.
    ///
    /// # Errors
    /// An [`OperationRefusal`]: the operation was not begun.
    pub async fn submit(&self, call: OperationCall) -> Result<Submitted, OperationRefusal> {
        let (caller, account, verb, id) = about(&call);
        let submitted = self.try_submit(call).await;
        submitted.inspect_err(|refusal| {
            let line = AuditLine { operation_id: &id, account: &account, verb, ..refusal_by(&caller) };
            self.refused(&line, refusal);
        })
    }

    async fn try_submit(&self, call: OperationCall) -> Result<Submitted, OperationRefusal> {
        if call.client_request_id.is_some() && !call.operation.id().is_empty() {
            return Err(OperationRefusal::TwoIds);
        }
        if self.is_draining.load(Ordering::Relaxed) {
            return Err(OperationRefusal::Unavailable(STOPS));
        }
        let account = self.account_of(&call)?;
        for verb in checks::required_verbs(call.operation.kind()) {
            self.authorize(&call.caller.principal, verb, Some(&account)).await?;
        }
        let is_callers_id = !call.operation.id().is_empty() || call.client_request_id.is_some();
        let id = match (&call.client_request_id, call.operation.id()) {
            (Some(text), _) => checks::derived_id(account.uid(), &call.caller.principal.name, text),
            (None, "") => Ulid::generate().to_string(),
            (None, id) => id.to_owned(),
        };
        let OperationCall { operation, caller, dry_run, wait, held, .. } = call;
        let (bytes, uid) = (operation.document_bytes(), account.uid().to_owned());
        // A repeated call follows the first one, whose document is the one that is kept.
        let held: Box<dyn Any + Send + Sync> = if self.known.get(&id).is_some() {
            held
        } else {
            // All who need no login have one name.
            let is_anybody = caller.principal.via == Via::Nobody;
            let holder = if is_anybody { account.uid() } else { &caller.principal.name };
            let memory = self.documents.hold(holder, bytes).await;
            Box::new((held, memory.map_err(|NoRoom| OperationRefusal::Unavailable(NO_ROOM_FOR_DOCUMENT))?))
        };
        let reading = self.documents.run(&caller.principal.name, bytes, move || {
            let operation = operation.read()?;
            let identity = OperationIdentity::of(&operation, &uid, dry_run);
            Ok((operation, identity))
        });
        let (operation, identity) = reading.await.map_err(OperationRefusal::Document)?;
        let found = match self.known.get(&id) {
            Some(known) => {
                drop((operation, held));
                self.follow_known(&id, &identity, &known).await?
            }
            None => {
                let call = ReadCall { operation, caller, dry_run, held };
                match self.begin(call, id.clone(), identity.clone(), &account, is_callers_id).await {
                    // What was begun has its answer, however much has changed since.
                    Err(refusal) if is_callers_id => self.stored(&id, &identity).await?.ok_or(refusal)?,
                    begun => begun?,
                }
            }
        };
        let until = wait.map(|wait| Instant::now() + wait);
        let ended = self.follow(&id, &identity, found, until).await?;
        Ok(Submitted { id, ended })
    }

    /// The account of a call.
    fn account_of(&self, call: &OperationCall) -> Result<Arc<KubesvcAccount>, OperationRefusal> {
        let reference = call.operation.account();
        let name = &reference.name;
        if !checks::is_among(call.caller.accounts.as_deref(), name) {
            return Err(OperationRefusal::NotAmongAccounts(name.clone()));
        }
        let account = self.accounts.by_account_name(name).into_iter().next();
        let Some(account) = account else {
            return Err(if self.accounts.is_synced() {
                OperationRefusal::NoAccount(name.clone())
            } else {
                OperationRefusal::Unavailable("the accounts are still being read from Kubernetes; try again")
            });
        };
        if !reference.uid.is_empty() && reference.uid != account.uid() {
            let message =
                format!("account {name:?} has another uid than the operation says: it was made anew");
            return Err(OperationRefusal::NotUsable(message));
        }
        Ok(account)
    }

    /// Checks a right on an account; without one, on all. An account that the caller may not even get may be one that does not
    /// exist.
    pub(super) async fn authorize(
        &self,
        principal: &Principal,
        verb: &'static str,
        account: Option<&KubesvcAccount>,
    ) -> Result<(), OperationRefusal> {
        let metadata = account.map(|account| &account.metadata);
        let part = |part: Option<&String>| part.cloned().unwrap_or_default();
        let access = RequestedAccess {
            verb,
            resource: AccessResource::Proxy,
            namespace: part(metadata.and_then(|metadata| metadata.namespace.as_ref())),
            object: part(metadata.and_then(|metadata| metadata.name.as_ref())),
        };
        let reviewed = self.access.authorize(principal, &access).await;
        if let (Err(AccessError::Denied(_)), Some(account)) = (&reviewed, account)
            && self.settings.hides_accounts
        {
            let read = RequestedAccess { verb: "get", resource: AccessResource::Accounts, ..access };
            if let Err(AccessError::Denied(_)) = self.access.authorize(principal, &read).await {
                return Err(OperationRefusal::NoAccount(account.account_name().to_owned()));
            }
        }
        Ok(reviewed?)
    }

    /// Follows an operation that runs here, or did. It must be the same.
    async fn follow_known(
        &self,
        id: &str,
        identity: &OperationIdentity,
        known: &KnownOperation,
    ) -> Result<FoundOperation, OperationRefusal> {
        if known.identity != *identity {
            return Err(OperationRefusal::AnotherOperation(id.to_owned()));
        }
        if known.has_unknown_end() {
            self.read_end(id).await;
        }
        Ok(FoundOperation::Here(known.subscribe()))
    }

    /// Reads the operation that has an id, which must be the same.
    async fn stored(
        &self,
        id: &str,
        identity: &OperationIdentity,
    ) -> Result<Option<FoundOperation>, OperationRefusal> {
        let Some(record) = self.store.operation(id).await.map_err(OperationRefusal::Database)? else {
            return Ok(None);
        };
        same_record(id, identity, &record)?;
        Ok(Some(FoundOperation::Stored(Box::new(record))))
    }

    /// Reads how an operation ended whose end is not known here: a person may have settled it at another replica.
    async fn read_end(&self, id: &str) {
        // Without the database, what is known here is the answer.
        if let Ok(Some(record)) = self.store.operation(id).await
            && !matches!(record.outcome, OperationOutcome::Unknown | OperationOutcome::Pending)
        {
            self.known.end(id, of_record(&record), self.clock());
        }
    }

    /// Starts an operation. From where it is known, a task of its own does it, so that a caller that hangs up changes
    /// nothing.
    async fn begin(
        &self,
        call: ReadCall,
        id: String,
        identity: OperationIdentity,
        account: &KubesvcAccount,
        is_callers_id: bool,
    ) -> Result<FoundOperation, OperationRefusal> {
        self.check_usable(account).await?;
        let Some(operations) = self.this.upgrade() else { return Err(OperationRefusal::Unavailable(STOPS)) };
        // Counted as running before it is asked whether the replica stops: what is begun after all is waited for.
        let running = self.tasks.token();
        if self.is_draining.load(Ordering::Relaxed) {
            return Err(OperationRefusal::Unavailable(STOPS));
        }
        let counted = self.in_flight.add(account.uid(), &call.caller.principal)?;
        let started = Instant::now();
        let digest = identity.digest();
        let record = records::received(&Beginning {
            id: &id,
            verb: call.operation.kind().name,
            account: account.account_name(),
            account_uid: account.uid(),
            principal: &call.caller.principal.name,
            replica_id: &self.settings.replica_id,
            dry_run: call.dry_run,
            now_ms: now_ms(),
            // Of another call with the id the digest is compared, also if nothing was written.
            request_id: is_callers_id.then(|| digest.request_id()),
        });
        let limit = checks::time_limit(&call.operation, self.settings.write_time, self.settings.read_time);
        let may_run_again = may_run_again(&call.operation);
        // The row of what may run once says that a write is sent before that is.
        let reserved = may_run_again && checks::first_write_decides(&call.operation);
        let reserved = reserved.then(|| digest.request_id());
        let deadline_ms =
            record.start_time_ms.saturating_add(i64::try_from(limit.as_millis()).unwrap_or(i64::MAX));
        let job = Arc::new(Job {
            id: id.clone(),
            account_uid: account.uid().to_owned(),
            principal: call.caller.principal,
            user: call.caller.user,
            claimed: call.caller.claimed,
            dry_run: call.dry_run,
            digest,
            operation: call.operation,
            may_run_again,
            deadline: started + limit,
            deadline_ms,
            started,
            time_of_day: OnceLock::new(),
            progress: Mutex::new(OperationProgress::new(record, reserved)),
            _counted: counted,
            _held: call.held,
        });
        let phases = match self.known.begin(&id, identity.clone()) {
            Ok(phases) => phases,
            // Of two calls at the same time the other one was faster.
            Err(known) => return self.follow_known(&id, &identity, &known).await,
        };
        let doing = async move {
            operations.perform(job, is_callers_id).await;
            drop(running);
        };
        drop(spawn_named("operation", doing).detach());
        Ok(FoundOperation::Here(phases))
    }

    /// Does an operation: commits its row and runs it. A panic is an end too: without one, its id would be that of an
    /// operation that runs for ever.
    async fn perform(self: Arc<Self>, job: SharedJob, is_callers_id: bool) {
        let doing = Box::pin(async {
            if self.insert_row(&job, is_callers_id).await {
                Arc::clone(&self).run(Arc::clone(&job)).await;
            }
        });
        let Err(panic) = AssertUnwindSafe(doing).catch_unwind().await else { return };
        let is_begun = job.progress.lock().is_begun;
        let (outcome, before_send) = RunFailure::panicked(is_begun).into_outcome(is_begun);
        self.ended(&job, outcome, before_send).await;
        resume_unwind(panic);
    }

    /// Commits the row of an operation. Returns whether it is begun: without its row it is not, and those who wait for it
    /// are told why.
    async fn insert_row(&self, job: &Job, is_callers_id: bool) -> bool {
        let row = Box::new(job.open_row());
        let row = if is_callers_id { OperationChange::Begun(row) } else { OperationChange::Open(row) };
        let inserted = crash_points::around(Some("operation-insert"), self.rows.commit(row)).await;
        let is_begun = matches!(inserted, Ok(None));
        match inserted {
            Ok(None) => self.known.recorded(&job.id),
            Ok(Some(other)) => self.known.not_begun(&job.id, Phase::Taken(Box::new(other))),
            Err(error) => self.known.not_begun(&job.id, Phase::Refused(error)),
        }
        is_begun
    }

    /// Refuses an account that takes no requests, and one whose agents take none.
    async fn check_usable(&self, account: &KubesvcAccount) -> Result<(), OperationRefusal> {
        let name = account.account_name();
        checks::usable(account).map_err(|state| {
            OperationRefusal::NotUsable(format!("account {name:?} is {state}: it takes no operations"))
        })?;
        if self.requests.apply_settings(account.uid()).await.is_some() {
            return Ok(());
        }
        let probe = AccountRequest::new(Method::GET, "/version").expect("a path that is read in one way");
        let probe = probe.within(PROBE_TIMEOUT);
        match timeout(PROBE_TIMEOUT, self.requests.send(account.uid(), probe)).await {
            Ok(Err(error)) if matches!(error.kind, Kind::AgentTooOld | Kind::NotUsable) => {
                Err(OperationRefusal::NotUsable(error.message))
            }
            _ => Ok(()),
        }
    }

    /// Waits until an operation has its row, or for its end until a time. The error: it was not begun, or its id turns out
    /// to be that of another one.
    async fn follow(
        &self,
        id: &str,
        identity: &OperationIdentity,
        found: FoundOperation,
        until: Option<Instant>,
    ) -> Result<Option<Arc<EndedOperation>>, OperationRefusal> {
        let record = match found {
            FoundOperation::Stored(record) => record,
            FoundOperation::Here(mut phases) => match phases.decided().await {
                Some(Phase::Taken(record)) => {
                    same_record(id, identity, &record)?;
                    record
                }
                Some(Phase::Refused(error)) => return Err(OperationRefusal::Database(error)),
                Some(_) => {
                    let Some(until) = until else { return Ok(None) };
                    return Ok(self.wait(id, phases, until).await);
                }
                None => return Err(OperationRefusal::Unavailable(STOPS)),
            },
        };
        let Some(until) = until else { return Ok(None) };
        Ok(self.wait_for_row(id, *record, until).await)
    }

    /// Waits for the end of an operation that runs here.
    async fn wait(&self, id: &str, mut phases: Phases, until: Instant) -> Option<Arc<EndedOperation>> {
        loop {
            let look_at = until.min(Instant::now() + SETTLED_INTERVAL);
            match timeout_at(look_at, phases.ended()).await {
                Ok(ended) => return ended,
                Err(_) if look_at == until => return None,
                // A person may have settled it at another replica.
                Err(_) => self.read_end(id).await,
            }
        }
    }

    /// Waits for the end of an operation that runs at another replica.
    async fn wait_for_row(
        &self,
        id: &str,
        mut record: OperationRecord,
        until: Instant,
    ) -> Option<Arc<EndedOperation>> {
        while record.outcome == OperationOutcome::Pending && Instant::now() + FOLLOW_INTERVAL < until {
            sleep(FOLLOW_INTERVAL).await;
            if let Ok(Some(now)) = self.store.operation(id).await {
                record = now;
            }
        }
        (record.outcome != OperationOutcome::Pending).then(|| Arc::new(of_record(&record)))
    }
}

/// What is said of a call that is refused: who, which account, which verb, which id.
fn about(call: &OperationCall) -> (OperationCaller, String, &'static str, String) {
    let operation = &call.operation;
    let (account, verb) = (operation.account().name.clone(), operation.kind().name);
    (call.caller.clone(), account, verb, operation.id().to_owned())
}

fn may_run_again(operation: &Operation) -> bool {
    // Which deploys run once does not depend on the settings of the agent.
    operation.may_run_again(ApplyMode::of(operation, &ApplySettings::default()))
}

/// Checks that an operation is the one that is recorded under its id. A row without a uid has any account of its name.
fn same_record(
    id: &str,
    identity: &OperationIdentity,
    record: &OperationRecord,
) -> Result<(), OperationRefusal> {
    let is_same = record.account == identity.account
        && record.operation_type == identity.verb
        && record.dry_run == identity.dry_run
        && record.account_uid.as_deref().is_none_or(|uid| uid == identity.account_uid)
        && record.request_id.as_deref().is_none_or(|id| identity.digest().is_of(id));
    if is_same { Ok(()) } else { Err(OperationRefusal::AnotherOperation(id.to_owned())) }
}

/// The end of an operation as its row has it.
pub(super) fn of_record(record: &OperationRecord) -> EndedOperation {
    let answered = record.answered.as_ref().and_then(|answer| u16::try_from(answer.status).ok());
    let failed = |class, message: &str| Some(OutcomeFailure { class, message: message.to_owned() });
    let (status, failure) = match record.outcome {
        OperationOutcome::Completed => (answered.unwrap_or(200), None),
        OperationOutcome::Timeout => {
            (504, failed(OutcomeClass::Timeout, "it took too long, and nothing was done"))
        }
        OperationOutcome::Unknown | OperationOutcome::Pending => {
            (504, failed(OutcomeClass::OutcomeUnknown, "it may or may not have been done"))
        }
        OperationOutcome::Failed => {
            let status = answered.unwrap_or(500);
            (status, failed(OutcomeClass::of_status(status), "it failed; its message is not stored"))
        }
    };
    let end = record.end_time_ms.unwrap_or(record.start_time_ms);
    EndedOperation {
        status,
        duration_ms: end.saturating_sub(record.start_time_ms),
        body: OutcomeBody::Empty,
        failure,
        before_send: match record.outcome {
            OperationOutcome::Timeout => true,
            OperationOutcome::Failed => record.sent.is_none(),
            _ => false,
        },
        warnings: record.warnings.clone(),
    }
}
