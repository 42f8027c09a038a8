//! What the agent does with a command: pure, without tokio, a clock or a network.
//!
//! [`AccountTable`] knows which accounts are held and which are being started, and answers every command and every finished
//! attempt with [`Effect`]s, to be carried out in their order. The rules:
//!
//! * One name has one uid. An `Add` of another uid stops the first before it starts the second.
//! * An `Add` of what is held with this very definition takes over its epoch and generation, and is answered at once.
//! * An `Add` that is older than what is held is answered with what is held.
//! * Any other `Add` starts; what is held serves until the new one stands.
//! * A `Drop` stops what is held or starting at its epoch or an older one. What is unknown counts as dropped. A `Drop`
//!   older than what is held is a late one: it stops nothing, and is answered with what is held.
//! * An assignment of caching says under which epoch the objects of a held account are streamed. It stands until a later
//!   one, or until the account is dropped; a new definition and a lost stream do not touch it.
//! * A lost stream cancels what is starting and touches nothing that is held.
//! * A changed file starts what is held with it anew, at the same epoch. That goes on over a lost stream; if it fails,
//!   what is held stays, and the hub is not told.
//!
//! So a frame that comes twice, or late, does no harm.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::agent::activation::ActivatedAccount;
use crate::agent::definition::Definition;
use crate::agent::watched_files::ReadFile;
use crate::wire::common::{AccountRef, Failure, failure::Class};
use crate::wire::ops::{AccountResult, HeldAccount, account_result::Outcome};

mod caching;
mod listing;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use caching::AssignmentOutcome;
pub use listing::{Counts, ListedAccount, ListedState};

/// How many accounts one agent takes; as many as a `Hello` may name.
pub const MAX_ACCOUNTS: usize = 100_000;

/// One attempt to start an account. Its number is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt(u64);

/// Something to do, in the order in which it is given.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Start an account; the end is reported to [`AccountTable::finished`].
    Start {
        /// The number to report the end under.
        attempt: Attempt,
        /// Which account, for logs.
        account: AccountRef,
        /// What to start it with.
        definition: Arc<Definition>,
    },
    /// End an attempt; its end need not be reported.
    Cancel {
        /// The attempt.
        attempt: Attempt,
    },
    /// Send an answer.
    Answer(Box<AccountResult>),
    /// Say that a changed file could not be used, so that what is held stays as it is.
    Kept {
        /// Which account.
        account: AccountRef,
        /// Why.
        failure: Failure,
    },
}

/// The accounts of this agent.
#[derive(Clone, Debug, Default)]
pub struct AccountTable {
    by_uid: HashMap<String, Account>,
    uid_of_name: HashMap<String, String>,
    /// Why accounts that are neither held nor starting are not, by name.
    failed: HashMap<String, Failure>,
    held_count: usize,
    attempts: u64,
}

/// One account: held, starting, or held while another definition of it starts.
#[derive(Clone, Debug, Default)]
struct Account {
    held: Option<HeldState>,
    starting: Option<StartingAccount>,
    /// The epoch under which its objects are streamed.
    cached: Option<u64>,
}

#[derive(Clone, Debug)]
struct HeldState {
    account: AccountRef,
    definition: Arc<Definition>,
    reached: ActivatedAccount,
    since: Timestamp,
}

#[derive(Clone, Debug)]
struct StartingAccount {
    attempt: Attempt,
    account: AccountRef,
    definition: Arc<Definition>,
    /// The hub did not ask for it: a file has changed.
    by_itself: bool,
}

impl HeldState {
    fn answer(&self) -> Effect {
        answer(self.account.clone(), Some(Outcome::Identity(self.reached.identity.clone())), false)
    }
}

impl Account {
    fn is_empty(&self) -> bool {
        self.held.is_none() && self.starting.is_none()
    }

    fn name(&self) -> Option<&str> {
        let held = self.held.as_ref().map(|held| &held.account);
        let starting = self.starting.as_ref().map(|starting| &starting.account);
        held.or(starting).map(|account| account.name.as_str())
    }

    fn cancel(&mut self, effects: &mut Vec<Effect>) {
        if let Some(StartingAccount { attempt, .. }) = self.starting.take() {
            effects.push(Effect::Cancel { attempt });
        }
    }
}

impl AccountTable {
    /// Takes one account of an `AddAccounts`.
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

    /// Takes one account of a `DeleteAccounts`.
    pub fn drop_account(&mut self, account: AccountRef) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.failed.remove(&account.name);
        let Some(known) = self.by_uid.get_mut(&account.uid) else {
            return vec![answer(account, None, true)];
        };
        let name = known.name().unwrap_or_default().to_owned();
        if known.starting.as_ref().is_some_and(|starting| starting.account.epoch <= account.epoch) {
            known.cancel(&mut effects);
        }
        if known.held.as_ref().is_some_and(|held| held.account.epoch <= account.epoch) {
            known.held = None;
            known.cached = None;
            self.held_count -= 1;
        }
        if let Some(held) = &known.held {
            effects.push(held.answer());
            return effects;
        }
        if known.starting.is_none() {
            self.by_uid.remove(&account.uid);
            self.uid_of_name.remove(&name);
        }
        effects.push(answer(account, None, true));
        effects
    }

    /// Takes the end of an attempt. That of one which is no longer wanted is ignored.
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
                let held = HeldState { account, definition, reached, since };
                let effects = vec![held.answer()];
                if known.held.replace(held).is_none() {
                    self.held_count += 1;
                }
                effects
            }
            Err(failure) if by_itself => vec![Effect::Kept { account, failure }],
            Err(failure) => {
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

    /// Takes the loss of the stream: nothing that is starting may be answered on another one.
    pub fn stream_lost(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.failed.clear();
        for known in self.by_uid.values_mut() {
            if known.starting.as_ref().is_some_and(|starting| !starting.by_itself) {
                known.cancel(&mut effects);
            }
        }
        self.by_uid.retain(|_, known| !known.is_empty());
        let by_uid = &self.by_uid;
        self.uid_of_name.retain(|_, uid| by_uid.contains_key(uid));
        effects
    }

    /// What is held, as a `Hello` says it.
    pub fn held(&self) -> impl Iterator<Item = HeldAccount> + '_ {
        let held = self.by_uid.values().filter_map(|known| Some((known.held.as_ref()?, known.cached)));
        held.map(|(held, cached)| HeldAccount {
            account: Some(held.account.clone()),
            caching_epoch: cached.unwrap_or_default(),
        })
    }

    /// Takes a change of files: starts anew what was started with another content of one of them.
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

    /// The files with which accounts that are held were started.
    pub fn files(&self) -> HashSet<ReadFile> {
        let held = self.by_uid.values().filter_map(|known| known.held.as_ref());
        held.flat_map(|held| held.reached.files.iter().cloned()).collect()
    }

    /// What is starting because the hub asked for it.
    pub fn owed(&self) -> impl Iterator<Item = (Attempt, &AccountRef)> {
        let starting = self.by_uid.values().filter_map(|known| known.starting.as_ref());
        let owed = starting.filter(|starting| !starting.by_itself);
        owed.map(|starting| (starting.attempt, &starting.account))
    }

    /// What is starting, with the number of its attempt.
    pub fn starting(&self) -> impl Iterator<Item = (Attempt, &AccountRef)> {
        let starting = self.by_uid.values().filter_map(|known| known.starting.as_ref());
        starting.map(|starting| (starting.attempt, &starting.account))
    }

    /// How many accounts are held.
    pub fn held_count(&self) -> usize {
        self.held_count
    }

    /// Stops whatever else has this name, and this uid under another name.
    fn stop_namesakes(&mut self, account: &AccountRef, effects: &mut Vec<Effect>) {
        let namesake = self.uid_of_name.get(&account.name).filter(|uid| **uid != account.uid).cloned();
        let renamed = self.by_uid.get(&account.uid).and_then(Account::name) != Some(&account.name);
        for uid in namesake.into_iter().chain(renamed.then(|| account.uid.clone())) {
            let Some(mut known) = self.by_uid.remove(&uid) else { continue };
            if let Some(name) = known.name() {
                self.uid_of_name.remove(name);
            }
            self.held_count -= usize::from(known.held.is_some());
            known.cancel(effects);
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
            // A file may hold something else than it did, so a new epoch reads it again.
            let same = *held.definition == definition;
            if same && (account.epoch == held.account.epoch || !definition.may_change_unseen()) {
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

/// The later of two words on the same account. Within one epoch the generation only grows.
fn newer(known: &AccountRef, said: AccountRef) -> AccountRef {
    let generation =
        if said.epoch == known.epoch { said.generation.max(known.generation) } else { said.generation };
    AccountRef { generation, ..said }
}

fn answer(account: AccountRef, outcome: Option<Outcome>, dropped: bool) -> Effect {
    Effect::Answer(Box::new(AccountResult { account: Some(account), outcome, dropped }))
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
