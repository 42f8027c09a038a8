//! What the agent does with a command: pure, without tokio, a clock or a network.
//!
//! [`AccountTable`] knows which accounts are held and which are being started. It answers every command and
//! every finished attempt with [`Effect`]s, which the caller executes in order. The rules:
//!
//! * One name has one uid. An `Add` with another uid stops the first account before it starts the second.
//! * An `Add` with the same definition as the held account takes over the new epoch and generation, and is
//!   answered at once.
//! * An `Add` that is older than the held account is answered with the held account.
//! * Any other `Add` starts an attempt; the held account stays in service until the attempt succeeds.
//! * A `Drop` stops what is held or starting at its epoch or an older one, and is answered when that has ended.
//!   An unknown account counts as dropped. A `Drop` older than the held account is late: it stops nothing and is
//!   answered with the held account.
//! * A caching assignment says under which epoch the objects of a held account are streamed. It remains in
//!   force until a later one, or until the account is dropped; a new definition or a lost stream does not
//!   affect it.
//! * An account whose cluster turns out to be another one while its objects are streamed is no longer held, and the hub
//!   is told. A definition that took over meanwhile is not affected.
//! * An account whose cluster refuses its credential stays held, and each answer says so until the credential is accepted.
//!   Under a new epoch the same definition is then started anew. A hub that does not hear of that is told that the
//!   account is lost.
//! * A lost stream cancels what is starting and does not touch what is held.
//! * A changed file restarts the accounts held with it, at the same epoch. Such a restart survives a lost
//!   stream. If it fails, the account stays as it is, and the hub is not told.
//!
//! Duplicate or late frames are therefore harmless.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use jiff::Timestamp;

use crate::activation::{ActivatedAccount, Definition, KnownCluster};
use crate::watched_files::ReadFile;
use kubesvc_core::wire::common::{AccountRef, Failure, Fence, failure::Class};
use kubesvc_core::wire::ops::{AccountResult, CachingRules, Lost, account_result::Outcome};

mod listing;
#[cfg(test)]
mod tests;

pub use listing::{HeldDefinition, ListedState, StateCounts};

/// Maximum number of accounts of one agent; a `Hello` may name as many.
pub const MAX_ACCOUNTS: usize = 100_000;

/// An attempt to start an account. Its number is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt(u64);

impl Attempt {
    /// Stands for what runs for an account and no attempt has started: readers of its objects, and requests. Attempts are
    /// numbered from 1.
    pub(super) const NONE: Self = Self(0);

    /// An attempt of a test that has no table.
    #[cfg(test)]
    pub(super) const fn of_test(number: u64) -> Self {
        Self(number)
    }
}

/// An action for the caller; actions are executed in the order given.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Start an account; the caller reports the end to [`AccountTable::finished`].
    Start {
        /// Identifies the attempt in that report.
        attempt: Attempt,
        /// The account, for logs.
        account: AccountRef,
        /// The definition to start it with.
        definition: Arc<Definition>,
    },
    /// Cancel an attempt; its end need not be reported.
    Cancel {
        /// Uid of the account.
        uid: String,
        /// The attempt.
        attempt: Attempt,
    },
    /// Stop everything that runs for an account that is no longer held; its end need not be reported.
    Stop {
        /// The account, under the epoch at which it was held or starting.
        account: AccountRef,
        /// An attempt to start it anew, which goes on.
        keep: Option<Attempt>,
    },
    /// Send a report to the hub, once everything that was stopped for its account has ended.
    Answer(Box<AccountResult>),
    /// Tell the hub that an account is no longer held, and why.
    Lost(Box<Lost>),
    /// Log that a changed file could not be used, so that the held account stays as it is.
    Kept {
        /// The account.
        account: AccountRef,
        /// Reason of the failure.
        failure: Failure,
    },
}

/// Result of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssignmentOutcome {
    /// The assignment was applied.
    Taken,
    /// The assignment is older than the current one, or a repetition.
    Late,
    /// The account is not held.
    Unknown,
}

/// The accounts of this agent.
#[derive(Clone, Debug, Default)]
pub struct AccountTable {
    by_uid: HashMap<String, Account>,
    uid_of_name: HashMap<String, String>,
    /// Failures of accounts that are neither held nor starting, by name.
    failed: HashMap<String, Failure>,
    held_count: usize,
    attempts: u64,
}

/// What the hub has ordered for the objects of an account: to be streamed under an epoch, by these rules. A hub that
/// takes no objects names no rules.
#[derive(Clone, Debug, PartialEq)]
struct CachingOrder {
    epoch: u64,
    rules: Option<Arc<CachingRules>>,
}

/// An account whose objects are streamed.
#[derive(Clone, Debug)]
pub struct CachedAccount {
    pub account: AccountRef,
    pub definition: Arc<Definition>,
    pub cluster: Arc<KnownCluster>,
    /// Files from which its credential was read.
    pub files: Vec<ReadFile>,
    /// The epoch under which its objects are streamed.
    pub epoch: u64,
    pub rules: Arc<CachingRules>,
}

/// One account: held, starting, or held while another definition of it starts.
#[derive(Clone, Debug, Default)]
struct Account {
    held: Option<HeldState>,
    starting: Option<StartingAccount>,
    /// Under what its objects are streamed.
    cached: Option<CachingOrder>,
}

#[derive(Clone, Debug)]
struct HeldState {
    account: AccountRef,
    definition: Arc<Definition>,
    reached: ActivatedAccount,
    since: Timestamp,
    /// What the cluster said of the credential last; `None` if it has never refused it.
    verdict: Option<CredentialVerdict>,
}

/// Whether a cluster accepts the credential of a held account that it has refused before.
#[derive(Clone, Debug)]
struct CredentialVerdict {
    /// Why it is refused; `None` if it is accepted again.
    refused: Option<Failure>,
    /// Whether the hub of the present stream knows.
    is_told: bool,
}

#[derive(Clone, Debug)]
struct StartingAccount {
    attempt: Attempt,
    account: AccountRef,
    definition: Arc<Definition>,
    /// Whether a changed file, rather than the hub, caused the attempt.
    by_itself: bool,
}

impl HeldState {
    fn result(&self) -> AccountResult {
        AccountResult {
            account: Some(self.account.clone()),
            outcome: Some(Outcome::Identity(self.reached.identity.clone())),
            refused: self.refused().cloned(),
            ..AccountResult::default()
        }
    }

    fn answer(&self) -> Effect {
        Effect::Answer(Box::new(self.result()))
    }

    /// The answer without the namespaces, which may be others by now.
    fn verdict_answer(&self) -> Effect {
        let mut result = self.result();
        if let Some(Outcome::Identity(identity)) = &mut result.outcome {
            identity.namespaces = Vec::new();
        }
        Effect::Answer(Box::new(result))
    }

    fn refused(&self) -> Option<&Failure> {
        self.verdict.as_ref()?.refused.as_ref()
    }
}

impl Account {
    fn is_empty(&self) -> bool {
        self.held.is_none() && self.starting.is_none()
    }

    fn account(&self) -> Option<&AccountRef> {
        let held = self.held.as_ref().map(|held| &held.account);
        held.or_else(|| self.starting.as_ref().map(|starting| &starting.account))
    }

    fn name(&self) -> Option<&str> {
        self.account().map(|account| account.name.as_str())
    }

    fn cancel(&mut self, effects: &mut Vec<Effect>) {
        if let Some(StartingAccount { attempt, account, .. }) = self.starting.take() {
            effects.push(Effect::Cancel { uid: account.uid, attempt });
        }
    }
}

impl AccountTable {
    /// Processes one account of an `AddAccounts`.
    pub fn add(&mut self, account: AccountRef, definition: Definition) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.failed.remove(&account.name);
        self.stop_namesakes(&account, &mut effects);
        if self.is_full_for(&account.uid) {
            effects.push(refuse_over_limit(account));
            return effects;
        }
        self.attempts += 1;
        let attempt = Attempt(self.attempts);
        self.uid_of_name.insert(account.name.clone(), account.uid.clone());
        let known = self.by_uid.entry(account.uid.clone()).or_default();
        known.add(attempt, account, definition, &mut effects);
        effects
    }

    /// Processes one account of a `DeleteAccounts`.
    pub fn drop_account(&mut self, account: AccountRef) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.failed.remove(&account.name);
        let Some(known) = self.by_uid.get_mut(&account.uid) else {
            return vec![answer(account, None, true)];
        };
        let name = known.name().unwrap_or_default().to_owned();
        let held = known.held.take_if(|held| held.account.epoch <= account.epoch);
        if let Some(newer) = &known.held {
            let answer = newer.answer();
            if known.starting.as_ref().is_some_and(|starting| starting.account.epoch <= account.epoch) {
                known.cancel(&mut effects);
            }
            effects.push(answer);
            return effects;
        }
        let starting = known.starting.take_if(|starting| starting.account.epoch <= account.epoch);
        if held.is_some() {
            known.cached = None;
            self.held_count -= 1;
        }
        let stopped = held.map(|held| held.account).or(starting.map(|starting| starting.account));
        if let Some(account) = stopped {
            let keep = known.starting.as_ref().map(|starting| starting.attempt);
            effects.push(Effect::Stop { account, keep });
        }
        if known.starting.is_none() {
            self.by_uid.remove(&account.uid);
            self.uid_of_name.remove(&name);
        }
        effects.push(answer(account, None, true));
        effects
    }

    /// Processes the end of an attempt. Attempts that are no longer wanted are ignored.
    pub fn finished(
        &mut self,
        uid: &str,
        attempt: Attempt,
        result: Result<ActivatedAccount, Failure>,
    ) -> Vec<Effect> {
        let Entry::Occupied(mut entry) = self.by_uid.entry(uid.to_owned()) else { return Vec::new() };
        let known = entry.get_mut();
        let Some(StartingAccount { account, definition, by_itself, .. }) =
            known.starting.take_if(|starting| starting.attempt == attempt)
        else {
            return Vec::new();
        };
        match result {
            Ok(reached) => {
                let since = known.held.as_ref().map_or(reached.at, |held| held.since);
                let held = HeldState { account, definition, reached, since, verdict: None };
                let effects = vec![held.answer()];
                if known.held.replace(held).is_none() {
                    self.held_count += 1;
                }
                effects
            }
            Err(failure) if by_itself => vec![Effect::Kept { account, failure }],
            Err(failure) => {
                let refused = known.held.as_mut().filter(|held| {
                    let is_same = *held.definition == *definition && held.refused().is_some();
                    is_same && failure.class() == Class::Auth
                });
                if let Some(held) = refused {
                    held.account = account;
                    held.verdict = Some(CredentialVerdict { refused: Some(failure), is_told: true });
                    return vec![held.verdict_answer()];
                }
                if known.is_empty() {
                    entry.remove();
                    self.uid_of_name.remove(&account.name);
                    if self.failed.len() < MAX_ACCOUNTS {
                        self.failed.insert(account.name.clone(), failure.clone());
                    }
                }
                vec![answer(account, Some(Outcome::Failure(failure)), false)]
            }
        }
    }

    /// Processes an assignment. `on` starts streaming, or continues it under a greater epoch or by other rules.
    /// Otherwise, streaming under this epoch or an older one stops. An assignment ends when its account is dropped.
    pub fn cache(&mut self, fence: &Fence, on: bool, rules: Option<CachingRules>) -> AssignmentOutcome {
        let Some(known) = self.by_uid.get_mut(&fence.account_uid).filter(|known| known.held.is_some()) else {
            return AssignmentOutcome::Unknown;
        };
        let epoch = fence.caching_epoch;
        let order = on.then(|| CachingOrder { epoch, rules: rules.map(Arc::new) });
        let is_late = match (&known.cached, &order) {
            (Some(before), Some(order)) => before.epoch > epoch || before == order,
            (Some(before), None) => before.epoch > epoch,
            (None, order) => order.is_none(),
        };
        if is_late {
            return AssignmentOutcome::Late;
        }
        known.cached = order;
        AssignmentOutcome::Taken
    }

    /// Ends the streaming of an account under an epoch or an older one, because the hub takes nothing more of it.
    pub fn revoke_caching(&mut self, fence: &Fence) {
        if let Some(known) = self.by_uid.get_mut(&fence.account_uid) {
            known.cached.take_if(|order| order.epoch <= fence.caching_epoch);
        }
    }

    /// Processes that a held account cannot be held any longer; `definition` is the one with which it failed.
    pub fn lost(&mut self, uid: &str, definition: &Arc<Definition>, failure: Failure) -> Vec<Effect> {
        let Entry::Occupied(mut entry) = self.by_uid.entry(uid.to_owned()) else { return Vec::new() };
        let known = entry.get_mut();
        let held = known.held.take_if(|held| Arc::ptr_eq(&held.definition, definition));
        let Some(HeldState { account, .. }) = held else { return Vec::new() };
        known.cached = None;
        self.held_count -= 1;
        let keep = known.starting.as_ref().map(|starting| starting.attempt);
        if let Some(starting) = &mut known.starting {
            // The hub waits for an answer of it from now on.
            starting.by_itself = false;
        } else {
            entry.remove();
            self.uid_of_name.remove(&account.name);
            if self.failed.len() < MAX_ACCOUNTS {
                self.failed.insert(account.name.clone(), failure.clone());
            }
        }
        let stop = Effect::Stop { account: account.clone(), keep };
        let lost = Lost { account: Some(account), failure: Some(failure) };
        vec![stop, Effect::Lost(Box::new(lost))]
    }

    /// Processes what a cluster says of the credential of a held account: why it is refused, or that it is accepted;
    /// `definition` is the one with which it was asked. Returns whether that is news.
    pub fn judge_credential(
        &mut self,
        uid: &str,
        definition: &Arc<Definition>,
        refused: Option<Failure>,
    ) -> bool {
        let held = self.by_uid.get_mut(uid).and_then(|known| known.held.as_mut());
        let Some(held) = held.filter(|held| Arc::ptr_eq(&held.definition, definition)) else { return false };
        let is_news = held.refused().is_some() != refused.is_some();
        if is_news {
            held.verdict = Some(CredentialVerdict { refused, is_told: false });
        }
        is_news
    }

    /// What the hub of this stream is still to be told of credentials. One that does not hear of refusals is told that the
    /// accounts are lost.
    pub fn untold_verdicts(&mut self, hears_refusals: bool) -> Vec<Effect> {
        let (mut effects, mut lost) = (Vec::new(), Vec::new());
        for (uid, known) in &mut self.by_uid {
            let Some(held) = &mut known.held else { continue };
            let Some(verdict) = held.verdict.as_mut().filter(|verdict| !verdict.is_told) else { continue };
            verdict.is_told = true;
            match &verdict.refused {
                Some(failure) if !hears_refusals => {
                    lost.push((uid.clone(), Arc::clone(&held.definition), failure.clone()));
                }
                _ => effects.push(held.verdict_answer()),
            }
        }
        for (uid, definition, failure) in lost {
            effects.extend(self.lost(&uid, &definition, failure));
        }
        effects
    }

    /// The accounts whose objects are streamed.
    pub fn cached(&self) -> Vec<CachedAccount> {
        let cached = |known: &Account| {
            let (held, order) = (known.held.as_ref()?, known.cached.as_ref()?);
            Some(CachedAccount {
                account: held.account.clone(),
                definition: Arc::clone(&held.definition),
                cluster: Arc::new(KnownCluster::from(&held.reached.identity)),
                files: held.reached.files.clone(),
                epoch: order.epoch,
                rules: Arc::clone(order.rules.as_ref()?),
            })
        };
        self.by_uid.values().filter_map(cached).collect()
    }

    /// Processes a lost stream: what is starting must not be answered on another stream.
    pub fn stream_lost(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.failed.clear();
        for known in self.by_uid.values_mut() {
            if known.starting.as_ref().is_some_and(|starting| !starting.by_itself) {
                known.cancel(&mut effects);
            }
            if let Some(verdict) = known.held.as_mut().and_then(|held| held.verdict.as_mut()) {
                verdict.is_told = false;
            }
        }
        self.by_uid.retain(|_, known| !known.is_empty());
        let by_uid = &self.by_uid;
        self.uid_of_name.retain(|_, uid| by_uid.contains_key(uid));
        effects
    }

    /// Processes changed files: restarts the accounts that were started with other content of one of them.
    pub fn files_changed(&mut self, changed: &[ReadFile]) -> Vec<Effect> {
        let mut effects = Vec::new();
        let differs =
            |file: &ReadFile| changed.iter().any(|now| now.path == file.path && now.digest != file.digest);
        for known in self.by_uid.values_mut() {
            let Some(held) = &known.held else { continue };
            let is_renewed = known.starting.as_ref().is_none_or(|starting| starting.by_itself);
            if !is_renewed || !held.reached.files.iter().any(differs) {
                continue;
            }
            self.attempts += 1;
            let attempt = Attempt(self.attempts);
            let (account, definition) = (held.account.clone(), held.definition.clone());
            known.start(StartingAccount { attempt, account, definition, by_itself: true }, &mut effects);
        }
        effects
    }

    /// Stops any other account with this name, and this uid under another name.
    fn stop_namesakes(&mut self, account: &AccountRef, effects: &mut Vec<Effect>) {
        let namesake = self.uid_of_name.get(&account.name).filter(|uid| **uid != account.uid).cloned();
        let renamed = self.by_uid.get(&account.uid).and_then(Account::name) != Some(&account.name);
        for uid in namesake.into_iter().chain(renamed.then(|| account.uid.clone())) {
            let Some(known) = self.by_uid.remove(&uid) else { continue };
            let Some(account) = known.account().cloned() else { continue };
            self.uid_of_name.remove(&account.name);
            self.held_count -= usize::from(known.held.is_some());
            effects.push(Effect::Stop { account, keep: None });
        }
    }

    fn is_full_for(&self, uid: &str) -> bool {
        self.by_uid.len() >= MAX_ACCOUNTS && !self.by_uid.contains_key(uid)
    }
}

impl Account {
    fn add(
        &mut self,
        attempt: Attempt,
        account: AccountRef,
        definition: Definition,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(held) = &mut self.held {
            if account.epoch < held.account.epoch {
                effects.push(held.answer());
                return;
            }
            // The content of a file may have changed, so a new epoch reads it again, and asks anew whether a credential
            // that was refused is accepted.
            let same = *held.definition == definition;
            let starts_anew = definition.may_change_unseen() || held.refused().is_some();
            if same && (account.epoch == held.account.epoch || !starts_anew) {
                if self.starting.as_ref().is_none_or(|starting| starting.account.epoch <= account.epoch) {
                    held.account = newer(&held.account, account);
                    effects.push(held.answer());
                    let now = held.account.clone();
                    match &mut self.starting {
                        Some(starting) if starting.by_itself => starting.account = now,
                        _ => self.cancel(effects),
                    }
                } else {
                    effects.push(held.answer());
                }
                return;
            }
        }
        if let Some(starting) = &mut self.starting {
            if account.epoch < starting.account.epoch {
                if let Some(held) = &self.held {
                    effects.push(held.answer());
                }
                return;
            }
            if *starting.definition == definition {
                starting.account = newer(&starting.account, account);
                starting.by_itself = false;
                return;
            }
        }
        let definition = Arc::new(definition);
        self.start(StartingAccount { attempt, account, definition, by_itself: false }, effects);
    }

    fn start(&mut self, starting: StartingAccount, effects: &mut Vec<Effect>) {
        self.cancel(effects);
        let StartingAccount { attempt, account, definition, .. } = &starting;
        let (attempt, account, definition) = (*attempt, account.clone(), definition.clone());
        effects.push(Effect::Start { attempt, account, definition });
        self.starting = Some(starting);
    }
}

/// The later of two references to the same account. Within an epoch, the generation only grows.
fn newer(known: &AccountRef, said: AccountRef) -> AccountRef {
    let generation =
        if said.epoch == known.epoch { said.generation.max(known.generation) } else { said.generation };
    AccountRef { generation, ..said }
}

fn answer(account: AccountRef, outcome: Option<Outcome>, dropped: bool) -> Effect {
    let account = Some(account);
    Effect::Answer(Box::new(AccountResult { account, outcome, dropped, ..AccountResult::default() }))
}

fn refuse_over_limit(account: AccountRef) -> Effect {
    let failure = Failure {
        class: Class::TooLarge.into(),
        retryable: true,
        message: format!(
            "the agent holds {MAX_ACCOUNTS} accounts, which is its limit; add an agent in another zone"
        ),
        http_status: 0,
        before_send: true,
    };
    answer(account, Some(Outcome::Failure(failure)), false)
}
