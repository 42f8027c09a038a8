//! Executes commands for the agent's accounts: starts and stops what runs for them, and queues the reports.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use futures::future::OptionFuture;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::account_runtimes::{AccountRuntimes, EndedWork, LostAccount, ReaderTrackers, WorkEnd};
use crate::account_table::{AccountTable, AssignmentOutcome, Attempt, Effect, MAX_ACCOUNTS};
use crate::activation::{ActivatedAccount, Activator, Definition, DefinitionOrigin};
use crate::caching::HubConnection;
use crate::metrics::AgentMetrics;
use crate::requests::RequestService;
use crate::static_accounts::StaticAccountFile;
use crate::watched_files::ReadFile;
use crate::wire_failure::{after_send, before_send};
use kubesvc_core::wire::MAX_ACCOUNTS_IN_BATCH;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::common::{AccountRef, Failure};
use kubesvc_core::wire::ops::account_result::Outcome;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::agent_frame::Frame;
use kubesvc_core::wire::ops::{
    AccountResult, AccountResults, AddAccounts, CachingAssignment, DeleteAccounts, HeldAccount, Lost,
};

/// Limit, in bytes, on waiting reports; beyond it, reports are queued without the list of namespaces.
const MAX_WAITING_BYTES: usize = 32 * 1024 * 1024;

/// State of the accounts that other parts of the agent share.
#[derive(Debug)]
pub struct SharedParts {
    pub table: Arc<Mutex<AccountTable>>,
    pub activators: Activators,
    /// Notified when other objects may have to be streamed.
    pub caching_changed: Arc<Notify>,
    /// The connection of the session, if its hub takes cached objects.
    pub connection: watch::Sender<Option<HubConnection>>,
    /// The connection of the session, if its hub makes requests to clusters.
    pub requests_connection: watch::Sender<Option<HubConnection>>,
    pub requests: Arc<RequestService>,
    /// Whether other accounts are accepted too.
    pub dynamic_accounts: bool,
    pub metrics: AgentMetrics,
    /// Files that have changed. They wait here while the hub is not connected.
    pub changed_files: mpsc::Receiver<Vec<ReadFile>>,
    /// Accounts that cannot be held any longer. They wait here while the hub is not connected.
    pub lost_accounts: mpsc::Receiver<LostAccount>,
    /// Notified when a cluster has come to refuse the credential of an account, or accepts it again.
    pub credential_judged: Arc<Notify>,
    /// What reads the objects of accounts.
    pub readers: ReaderTrackers,
}

/// Builds the activator for each account.
#[derive(Clone, Debug)]
pub struct Activators {
    /// For all accounts.
    pub all: Activator,
    /// The accounts of the agent's own file.
    pub own: StaticAccountFile,
}

impl Activators {
    pub fn origin(&self, name: &str, credential: Option<&Credential>) -> DefinitionOrigin {
        if self.own.current().gives(name, credential) {
            DefinitionOrigin::OwnFile
        } else {
            DefinitionOrigin::Hub
        }
    }

    /// The activator for an account, with the policy that applies to it.
    pub fn activator(&self, name: &str, origin: DefinitionOrigin) -> Activator {
        let policy = match origin {
            DefinitionOrigin::OwnFile => self.own.policy(name, &self.all.policy),
            DefinitionOrigin::Hub => self.all.policy.clone(),
        };
        Activator { policy, ..self.all.clone() }
    }
}

/// The table of accounts, what runs for them, and the reports that wait to be sent.
#[derive(Debug)]
pub struct CommandExecutor {
    parts: SharedParts,
    runtimes: AccountRuntimes<Result<ActivatedAccount, Failure>>,
    answers: ReportQueue,
    /// Attempts that were running at the last check, so that quick ones are not reported as slow.
    seen: HashSet<Attempt>,
    /// Whether the hub of the stream hears of refused credentials. Another one is told that the account is lost.
    hears_refusals: bool,
}

impl CommandExecutor {
    pub fn new(parts: SharedParts) -> Self {
        Self {
            parts,
            runtimes: AccountRuntimes::new(),
            answers: ReportQueue::default(),
            seen: HashSet::new(),
            hears_refusals: false,
        }
    }

    /// What starts accounts, those of the agent's own file included.
    pub fn activators(&self) -> &Activators {
        &self.parts.activators
    }

    pub fn add(&mut self, command: AddAccounts) {
        for spec in command.accounts {
            match Definition::split(spec) {
                (Some(account), definition) if is_named(&account) => self.add_one(account, definition),
                _ => {
                    tracing::warn!(batch = %command.batch_id, "ignored an account without a name or uid from the hub");
                }
            }
        }
    }

    fn add_one(&mut self, account: AccountRef, definition: Definition) {
        self.parts.activators.own.taken(&account.name);
        let effects = match self.objection(&account.name, definition.spec().credential.as_ref()) {
            Some(failure) => {
                let outcome = Some(Outcome::Failure(failure));
                vec![Effect::Answer(Box::new(AccountResult {
                    account: Some(account),
                    outcome,
                    ..AccountResult::default()
                }))]
            }
            None => self.parts.table.lock().add(account, definition),
        };
        self.carry_out(effects);
    }

    /// Reason why this agent does not accept an account at all, if there is one.
    pub fn objection(&self, name: &str, credential: Option<&Credential>) -> Option<Failure> {
        let is_accepted = self.parts.dynamic_accounts
            || self.activators().origin(name, credential) == DefinitionOrigin::OwnFile;
        (!is_accepted).then(|| {
            before_send(
                Class::Forbidden,
                "the agent takes only the accounts of its own file (dynamicAccounts.enabled is false in it)",
            )
        })
    }

    /// Publishes the connection on which objects are streamed, and that for requests, or that there is none.
    pub fn connected(&self, connection: Option<HubConnection>, requests: Option<HubConnection>) {
        // Nobody looks at them once the agent is stopping.
        let _ = self.parts.connection.send(connection);
        let _ = self.parts.requests_connection.send(requests);
    }

    /// Tells the hub of a new stream which credentials are refused, and which are accepted again.
    pub fn tell_refusals_to(&mut self, hears_refusals: bool) {
        self.hears_refusals = hears_refusals;
        self.tell_refusals();
    }

    fn tell_refusals(&mut self) {
        let effects = self.parts.table.lock().untold_verdicts(self.hears_refusals);
        if !effects.is_empty() {
            self.carry_out(effects);
        }
    }

    pub fn metrics(&self) -> &AgentMetrics {
        &self.parts.metrics
    }

    pub fn delete(&mut self, command: DeleteAccounts) {
        for account in command.accounts {
            tracing::info!(account = %account.name, uid = %account.uid, epoch = account.epoch, "dropping the account");
            let effects = self.parts.table.lock().drop_account(account);
            self.carry_out(effects);
        }
    }

    /// Processes an assignment to stream, or to stop streaming, the objects of an account.
    pub fn cache(&mut self, assignment: &CachingAssignment) {
        let (Some(fence), Some(account)) = (&assignment.fence, &assignment.account) else {
            tracing::warn!("ignored a caching assignment without an account from the hub");
            return;
        };
        let outcome = self.parts.table.lock().cache(fence, assignment.on, assignment.rules.clone());
        self.parts.caching_changed.notify_one();
        let (epoch, on) = (fence.caching_epoch, assignment.on);
        match outcome {
            AssignmentOutcome::Taken => {
                tracing::info!(account = %account.name, epoch, on, "received a caching assignment");
            }
            AssignmentOutcome::Late => {
                tracing::debug!(account = %account.name, epoch, on, "ignored an outdated caching assignment");
            }
            // The account was dropped meanwhile; the hub learns that from the report.
            AssignmentOutcome::Unknown => {
                tracing::debug!(account = %account.name, epoch, on, "ignored a caching assignment for an account that is not held");
            }
        }
    }

    /// Waits until work of an account ends or files have changed, and processes that. Also processes all other
    /// work that has ended by then.
    pub async fn progress(&mut self) {
        let mut ended = tokio::select! {
            ended = self.runtimes.ended() => ended,
            Some(changed) = self.parts.changed_files.recv() => {
                let effects = self.parts.table.lock().files_changed(&changed);
                return self.carry_out(effects);
            }
            Some(LostAccount { uid, definition, failure }) = self.parts.lost_accounts.recv() => {
                let effects = self.parts.table.lock().lost(&uid, &definition, failure);
                return self.carry_out(effects);
            }
            () = self.parts.credential_judged.notified() => return self.tell_refusals(),
        };
        loop {
            self.ended(ended);
            match self.runtimes.try_ended() {
                Some(next) => ended = next,
                None => return,
            }
        }
    }

    /// Discards what belongs to a lost stream. Accounts that are held stay held.
    pub fn stream_lost(&mut self) {
        let effects = self.parts.table.lock().stream_lost();
        self.carry_out(effects);
        self.answers.clear();
        self.runtimes.discard_reports();
        self.seen.clear();
    }

    /// The next frame of reports: as many as fit into `max_bytes`, at least one; `None` if there are none.
    pub fn next_answers(&mut self, max_bytes: usize) -> Option<Frame> {
        self.answers.take(max_bytes)
    }

    /// Number of reports that wait to be sent.
    pub fn waiting_answers(&self) -> usize {
        self.answers.len()
    }

    /// Number of reports that wait until what was stopped for their accounts has ended.
    pub fn delayed_answers(&self) -> usize {
        self.runtimes.delayed_reports()
    }

    /// Accounts that were already starting at the previous call, so that they count as slow.
    pub fn slow(&mut self) -> Vec<AccountRef> {
        let mut now = HashSet::new();
        let mut slow = Vec::new();
        for (attempt, account) in self.parts.table.lock().owed() {
            if self.seen.contains(&attempt) {
                slow.push(account.clone());
            }
            now.insert(attempt);
        }
        self.seen = now;
        slow
    }

    /// The accounts that are held, for a hello. One for which something that was stopped still runs counts as held, so that
    /// its zone waits for its end although the answer to the drop went with its stream: under the epoch before, since no
    /// report about its own epoch stands any more.
    pub fn held(&mut self) -> Vec<HeldAccount> {
        while let Some(ended) = self.runtimes.try_ended() {
            self.ended(ended);
        }
        let table = self.parts.table.lock();
        let stopping = self.runtimes.stopping().filter(|account| table.held_epoch(&account.uid).is_none());
        let stopping = stopping.map(|account| {
            let account = AccountRef { epoch: account.epoch.saturating_sub(1), ..account.clone() };
            HeldAccount { account: Some(account), ..HeldAccount::default() }
        });
        table.held().chain(stopping).take(MAX_ACCOUNTS).collect()
    }

    pub fn held_count(&self) -> usize {
        self.parts.table.lock().held_count()
    }

    /// Whether anything runs for an account: it is being started, or what was stopped for it has not ended yet.
    pub fn is_busy(&self) -> bool {
        self.runtimes.running_count() > 0
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        self.parts.caching_changed.notify_one();
        for effect in effects {
            match effect {
                Effect::Start { attempt, account, definition } => {
                    tracing::info!(account = %account.name, uid = %account.uid, epoch = account.epoch, "starting the account");
                    let origin =
                        self.activators().origin(&account.name, definition.spec().credential.as_ref());
                    let activator = self.activators().activator(&account.name, origin);
                    let span = tracing::info_span!("activation", account = %account.name, uid = %account.uid);
                    // An activation only reads, so it ends at once when it is stopped.
                    let work = |stop: CancellationToken| async move {
                        stop.run_until_cancelled(activator.start(&definition, origin)).await
                    };
                    self.runtimes.start(account.uid, attempt, |stop| work(stop).instrument(span));
                }
                Effect::Cancel { uid, attempt } => self.runtimes.cancel(&uid, attempt),
                Effect::Stop { account, keep } => {
                    let uid = &account.uid;
                    let (readers, requests) = (self.parts.readers.ended(uid), self.parts.requests.stop(uid));
                    let others = (readers.is_some() || requests.is_some()).then_some(async move {
                        tokio::join!(OptionFuture::from(readers), OptionFuture::from(requests));
                    });
                    self.runtimes.stop(account, keep, others);
                }
                Effect::Lost(lost) => {
                    let failure = lost.failure.clone().unwrap_or_default();
                    let account = lost.account.clone().unwrap_or_default();
                    tracing::warn!(
                        account = %account.name,
                        uid = %account.uid,
                        epoch = account.epoch,
                        class = %failure.class().as_str_name(),
                        "the account is lost: {}",
                        failure.message
                    );
                    self.parts.metrics.failed(&failure);
                    self.answers.push(QueuedReport::Lost(*lost));
                }
                Effect::Kept { account, failure } => {
                    self.parts.metrics.kept.inc();
                    tracing::warn!(
                        account = %account.name,
                        class = %failure.class().as_str_name(),
                        "the account's changed file is unusable, keeping the previous content: {}",
                        failure.message
                    );
                }
                Effect::Answer(answer) => {
                    if let Some(answer) = self.runtimes.ready_report(*answer) {
                        self.answer(answer);
                    }
                }
            }
        }
    }

    fn answer(&mut self, answer: AccountResult) {
        log(&answer);
        let failure = match &answer.outcome {
            Some(Outcome::Failure(failure)) => Some(failure),
            _ => answer.refused.as_ref(),
        };
        if let Some(failure) = failure {
            self.parts.metrics.failed(failure);
        }
        self.answers.push(QueuedReport::Result(answer));
    }

    fn ended(&mut self, ended: EndedWork<Result<ActivatedAccount, Failure>>) {
        let EndedWork { uid, attempt, end, reports } = ended;
        reports.into_iter().for_each(|report| self.answer(report));
        let result = match end {
            WorkEnd::Done(result) => result,
            WorkEnd::Stopped => return,
            WorkEnd::Panicked => Err(after_send(
                Class::Internal,
                "the agent failed while it activated the account; see the agent's log",
            )),
        };
        let effects = self.parts.table.lock().finished(&uid, attempt, result);
        self.carry_out(effects);
    }
}

fn is_named(account: &AccountRef) -> bool {
    !account.uid.is_empty() && !account.name.is_empty()
}

fn log(answer: &AccountResult) {
    let Some(account) = &answer.account else { return };
    if let Some(failure) = &answer.refused {
        return tracing::warn!(
            account = %account.name,
            uid = %account.uid,
            epoch = account.epoch,
            "the cluster refuses the credential of the account, which is held on: {}",
            failure.message
        );
    }
    match &answer.outcome {
        Some(Outcome::Identity(identity)) => tracing::info!(
            account = %account.name,
            uid = %account.uid,
            epoch = account.epoch,
            host = %identity.host,
            version = %identity.version,
            namespaces = identity.namespaces_count,
            "the account is held"
        ),
        Some(Outcome::Failure(failure)) => tracing::warn!(
            account = %account.name,
            uid = %account.uid,
            epoch = account.epoch,
            class = %failure.class().as_str_name(),
            "the account failed: {}",
            failure.message
        ),
        None => {
            tracing::info!(account = %account.name, uid = %account.uid, epoch = account.epoch, "the account is dropped");
        }
    }
}

/// A report to the hub.
#[derive(Debug)]
enum QueuedReport {
    Result(AccountResult),
    Lost(Lost),
}

impl QueuedReport {
    /// Size of the report within a frame, in bytes.
    fn size(&self) -> usize {
        let bytes = match self {
            Self::Result(result) => result.encoded_len(),
            Self::Lost(lost) => lost.encoded_len(),
        };
        bytes + 8
    }

    /// Removes the list of namespaces; their count stays.
    fn without_namespaces(&mut self) {
        if let Self::Result(AccountResult { outcome: Some(Outcome::Identity(identity)), .. }) = self {
            identity.namespaces = Vec::new();
        }
    }
}

/// Queue of reports in the order in which they are sent. Beyond a size limit, reports are queued without namespaces;
/// the link session bounds their number.
#[derive(Debug, Default)]
struct ReportQueue {
    /// Each report with its size in bytes.
    waiting: VecDeque<(QueuedReport, usize)>,
    bytes: usize,
}

impl ReportQueue {
    fn push(&mut self, mut report: QueuedReport) {
        let mut bytes = report.size();
        if self.bytes + bytes > MAX_WAITING_BYTES {
            report.without_namespaces();
            bytes = report.size();
        }
        self.bytes += bytes;
        self.waiting.push_back((report, bytes));
    }

    /// Removes the next reports: as many as fit into `max_bytes` and into one frame, at least one. A report
    /// that is too large by itself is sent without its namespaces.
    fn take(&mut self, max_bytes: usize) -> Option<Frame> {
        let (mut results, mut bytes) = (Vec::new(), 0);
        while let Some((next, size)) = self.waiting.front() {
            bytes += size;
            let is_full = results.len() == MAX_ACCOUNTS_IN_BATCH || bytes > max_bytes;
            if !results.is_empty() && (is_full || matches!(next, QueuedReport::Lost(_))) {
                break;
            }
            let Some((mut report, size)) = self.waiting.pop_front() else { break };
            self.bytes -= size;
            if size > max_bytes {
                report.without_namespaces();
            }
            match report {
                QueuedReport::Result(result) => results.push(result),
                QueuedReport::Lost(lost) => return Some(Frame::Lost(lost)),
            }
        }
        (!results.is_empty()).then_some(Frame::AccountResults(AccountResults { results }))
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests;
