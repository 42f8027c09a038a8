//! Executes commands for the agent's accounts: runs the attempts to start them, and queues the reports.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinSet};

use crate::agent::activation::{ActivatedAccount, Activator, DefinitionOrigin};
use crate::agent::answers::Answers;
use crate::agent::definition::Definition;
use crate::agent::failure::{after_send, before_send};
use crate::agent::metrics::AgentMetrics;
use crate::agent::reactions::{AccountTable, AssignmentOutcome, Attempt, Effect};
use crate::agent::static_accounts::StaticAccountFile;
use crate::agent::watched_files::ReadFile;
use crate::wire::common::failure::Class;
use crate::wire::common::{AccountRef, Failure};
use crate::wire::ops::account_result::Outcome;
use crate::wire::ops::account_spec::Credential;
use crate::wire::ops::{
    AccountResult, AccountResults, AddAccounts, CachingAssignment, DeleteAccounts, HeldAccount,
};

type Outcomes = (Attempt, Result<ActivatedAccount, Failure>);

/// State of the accounts that other parts of the agent share.
#[derive(Debug)]
pub struct SharedParts {
    /// The accounts.
    pub table: Arc<Mutex<AccountTable>>,
    /// Starts accounts.
    pub activator: Activator,
    /// The accounts of the agent's own file.
    pub own: StaticAccountFile,
    /// Whether other accounts are accepted too.
    pub dynamic_accounts: bool,
    /// The agent's metrics.
    pub metrics: AgentMetrics,
    /// Files that have changed. They wait here while the hub is not connected.
    pub changed_files: mpsc::Receiver<Vec<ReadFile>>,
}

/// The table of accounts, the running attempts, and the reports that wait to be sent.
#[derive(Debug)]
pub struct Accounts {
    parts: SharedParts,
    running: JoinSet<Outcomes>,
    of_task: HashMap<Id, RunningAttempt>,
    handles: HashMap<Attempt, AbortHandle>,
    answers: Answers,
    /// Attempts that were running at the last check, so that quick ones are not reported as slow.
    seen: HashSet<Attempt>,
}

#[derive(Debug)]
struct RunningAttempt {
    attempt: Attempt,
    uid: String,
}

impl Accounts {
    /// Creates an empty set of accounts.
    pub fn new(parts: SharedParts) -> Self {
        Self {
            parts,
            running: JoinSet::new(),
            of_task: HashMap::new(),
            handles: HashMap::new(),
            answers: Answers::default(),
            seen: HashSet::new(),
        }
    }

    /// Identity of the cluster that the agent runs in, if it may read it.
    pub async fn own_cluster(&self) -> Option<String> {
        self.parts.activator.own_cluster().await
    }

    /// Processes an `AddAccounts`.
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
        self.parts.own.taken(&account.name);
        let effects = match self.objection(&account.name, definition.spec().credential.as_ref()) {
            Some(failure) => {
                let outcome = Some(Outcome::Failure(failure));
                vec![Effect::Answer(Box::new(AccountResult {
                    account: Some(account),
                    outcome,
                    dropped: false,
                }))]
            }
            None => self.parts.table.lock().add(account, definition),
        };
        self.carry_out(effects);
    }

    /// Origin of an account's definition.
    pub fn word(&self, name: &str, credential: Option<&Credential>) -> DefinitionOrigin {
        if self.parts.own.current().gives(name, credential) {
            DefinitionOrigin::OwnFile
        } else {
            DefinitionOrigin::Hub
        }
    }

    /// Reason why this agent does not accept an account at all, if there is one.
    pub fn objection(&self, name: &str, credential: Option<&Credential>) -> Option<Failure> {
        let is_taken =
            self.parts.dynamic_accounts || self.word(name, credential) == DefinitionOrigin::OwnFile;
        (!is_taken).then(|| {
            before_send(
                Class::Forbidden,
                "the agent takes only the accounts of its own file (dynamicAccounts.enabled is false in it)",
            )
        })
    }

    /// The accounts of the agent's own file.
    pub fn own(&self) -> &StaticAccountFile {
        &self.parts.own
    }

    /// The activator for an account, with the policy that applies to it.
    pub fn activator(&self, name: &str, word: DefinitionOrigin) -> Activator {
        let all = &self.parts.activator;
        let policy = match word {
            DefinitionOrigin::OwnFile => self.parts.own.policy(name, &all.policy),
            DefinitionOrigin::Hub => all.policy.clone(),
        };
        Activator { policy, ..all.clone() }
    }

    /// The agent's metrics.
    pub fn metrics(&self) -> &AgentMetrics {
        &self.parts.metrics
    }

    /// Processes a `DeleteAccounts`.
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
        let outcome = self.parts.table.lock().cache(fence, assignment.on);
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

    /// Waits until an attempt ends or files have changed, and processes that. Also processes all other
    /// attempts that have ended by then.
    pub async fn progress(&mut self) {
        let mut ended = tokio::select! {
            Some(ended) = self.running.join_next_with_id() => ended,
            Some(changed) = self.parts.changed_files.recv() => {
                let effects = self.parts.table.lock().files_changed(&changed);
                return self.carry_out(effects);
            }
            else => return std::future::pending().await,
        };
        loop {
            match ended {
                Ok((task, (attempt, result))) => self.ended(task, attempt, result),
                Err(error) => self.broke(&error),
            }
            match self.running.try_join_next_with_id() {
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
        self.seen.clear();
    }

    /// The next frame of reports: as many as fit into `max_bytes`, at least one; `None` if there are none.
    pub fn next_answers(&mut self, max_bytes: usize) -> Option<AccountResults> {
        let results = self.answers.take(max_bytes);
        (!results.is_empty()).then_some(AccountResults { results })
    }

    /// Number of reports that wait to be sent.
    pub fn waiting_answers(&self) -> usize {
        self.answers.len()
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

    /// The accounts that are held, for a hello.
    pub fn held(&self) -> Vec<HeldAccount> {
        self.parts.table.lock().held().collect()
    }

    /// Number of accounts that are held.
    pub fn held_count(&self) -> usize {
        self.parts.table.lock().held_count()
    }

    /// Number of accounts that are being started.
    pub fn starting_count(&self) -> usize {
        self.handles.len()
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Start { attempt, account, definition } => {
                    tracing::info!(account = %account.name, uid = %account.uid, epoch = account.epoch, "starting the account");
                    let word = self.word(&account.name, definition.spec().credential.as_ref());
                    let activator = self.activator(&account.name, word);
                    let handle = self
                        .running
                        .spawn(async move { (attempt, activator.start(&definition, word).await) });
                    self.of_task.insert(handle.id(), RunningAttempt { attempt, uid: account.uid });
                    self.handles.insert(attempt, handle);
                }
                Effect::Cancel { attempt } => {
                    if let Some(handle) = self.handles.remove(&attempt) {
                        handle.abort();
                    }
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
                    log(&answer);
                    if let Some(Outcome::Failure(failure)) = &answer.outcome {
                        self.parts.metrics.failed(failure);
                    }
                    self.answers.push(*answer);
                }
            }
        }
    }

    fn ended(&mut self, task: Id, attempt: Attempt, result: Result<ActivatedAccount, Failure>) {
        self.handles.remove(&attempt);
        let Some(RunningAttempt { uid, .. }) = self.of_task.remove(&task) else { return };
        let effects = self.parts.table.lock().finished(&uid, attempt, result);
        self.carry_out(effects);
    }

    /// Handles an attempt that was cancelled or panicked.
    fn broke(&mut self, error: &tokio::task::JoinError) {
        if error.is_cancelled() {
            self.of_task.remove(&error.id());
            return;
        }
        let Some(RunningAttempt { attempt, .. }) = self.of_task.get(&error.id()) else { return };
        let failure = after_send(
            Class::Internal,
            "the agent failed while it activated the account; see the agent's log",
        );
        self.ended(error.id(), *attempt, Err(failure));
    }
}

fn is_named(account: &AccountRef) -> bool {
    !account.uid.is_empty() && !account.name.is_empty()
}

fn log(answer: &AccountResult) {
    let Some(account) = &answer.account else { return };
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
