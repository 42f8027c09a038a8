//! The accounts of the agent's own file: what the hub is told of, and what is the owner's word.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prost::Message;
use tokio::sync::watch;

use crate::account::policy::{AccountPolicy, AgentPolicy};
use crate::wire::MAX_ACCOUNTS_IN_BATCH;
use crate::wire::common::Failure;
use crate::wire::ops::account_spec::Credential;
use crate::wire::ops::{AccountSpec, StaticAccounts};

/// One state of the file. Names are there once.
#[derive(Debug, Default)]
pub struct StaticAccountList {
    accounts: Vec<AccountSpec>,
    by_name: HashMap<String, usize>,
}

impl StaticAccountList {
    fn new(accounts: Vec<AccountSpec>) -> Self {
        let names = accounts.iter().map(|spec| spec.account.as_ref().map(|account| account.name.clone()));
        let by_name = names.enumerate().filter_map(|(at, name)| Some((name?, at))).collect();
        Self { accounts, by_name }
    }

    /// The account of this name.
    pub fn find(&self, name: &str) -> Option<&AccountSpec> {
        self.accounts.get(*self.by_name.get(name)?)
    }

    /// Whether the file gives the account of this name this very credential. Then no rule for strangers holds for it.
    pub fn gives(&self, name: &str, credential: Option<&Credential>) -> bool {
        credential.is_some() && self.find(name).is_some_and(|own| own.credential.as_ref() == credential)
    }

    /// The list as frames, at least one; the last one says that it is complete.
    pub fn frames(&self, max_bytes: usize) -> Vec<StaticAccounts> {
        let (mut frames, mut frame, mut bytes) = (Vec::new(), StaticAccounts::default(), 0);
        for spec in &self.accounts {
            let size = spec.encoded_len() + 8;
            let full = frame.accounts.len() == MAX_ACCOUNTS_IN_BATCH || bytes + size > max_bytes;
            if full && !frame.accounts.is_empty() {
                frames.push(std::mem::take(&mut frame));
                bytes = 0;
            }
            bytes += size;
            frame.accounts.push(spec.clone());
        }
        frame.complete = true;
        frames.push(frame);
        frames
    }
}

/// The agent's own accounts as they are now, and whether the file is good; clones share it.
#[derive(Clone, Debug)]
pub struct StaticAccountFile {
    list: watch::Sender<Arc<StaticAccountList>>,
    /// What the file lets the agent do for each account, by name.
    policies: Arc<Mutex<HashMap<String, AccountPolicy>>>,
    /// Accounts that the hub did not take, and why.
    refused: Arc<Mutex<BTreeMap<String, Failure>>>,
    /// Why the files as they are now are not in force.
    problem: Arc<Mutex<Option<String>>>,
    /// Changed files that were refused.
    pub reload_failures: Counter,
    /// 1 while the files are good as they are, else 0.
    pub valid: Gauge,
    /// How many accounts there are.
    pub count: Gauge,
    /// Answers of the hub that it does not take an account.
    pub refusals: Counter,
}

impl Default for StaticAccountFile {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl StaticAccountFile {
    /// The accounts of a good file. Each names itself in `account.name`.
    pub fn new(accounts: Vec<AccountSpec>) -> Self {
        let own = Self {
            list: watch::Sender::new(Arc::default()),
            policies: Arc::default(),
            refused: Arc::default(),
            problem: Arc::default(),
            reload_failures: Counter::default(),
            valid: Gauge::default(),
            count: Gauge::default(),
            refusals: Counter::default(),
        };
        own.replace(accounts);
        own
    }

    /// The file is another and good. Says whether the accounts are others; only then whoever waits for a change is woken.
    pub fn replace(&self, accounts: Vec<AccountSpec>) -> bool {
        *self.problem.lock() = None;
        self.valid.set(1);
        self.count.set(i64::try_from(accounts.len()).unwrap_or(i64::MAX));
        self.list.send_if_modified(|list| {
            let changed = list.accounts != accounts;
            if changed {
                *list = Arc::new(StaticAccountList::new(accounts));
            }
            changed
        })
    }

    /// Sets what the file lets the agent do for each account, by name. An attempt that is under way goes on under the
    /// former one.
    pub fn set_policies(&self, policies: HashMap<String, AccountPolicy>) {
        *self.policies.lock() = policies;
    }

    /// The policy for an account of the file, made of that for all accounts.
    pub(super) fn policy(&self, name: &str, all: &AgentPolicy) -> AgentPolicy {
        let policies = self.policies.lock();
        all.of_own_account(policies.get(name).unwrap_or(&AccountPolicy::default()))
    }

    /// The file is another and bad; what was in force stays.
    pub fn reload_failed(&self, problem: String) {
        self.reload_failures.inc();
        self.valid.set(0);
        *self.problem.lock() = Some(problem);
    }

    /// Why the files as they are now are not in force; `None` if they are.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// The list in force.
    pub fn current(&self) -> Arc<StaticAccountList> {
        self.list.borrow().clone()
    }

    /// The list in force and every later one.
    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<StaticAccountList>> {
        self.list.subscribe()
    }

    /// The hub does not take an account. One that is no longer in the file is not remembered.
    pub(super) fn refuse(&self, name: String, failure: Failure) {
        self.refusals.inc();
        if self.current().find(&name).is_some() {
            self.refused.lock().insert(name, failure);
        }
    }

    /// The hub is about to be told everything again, so what it said before is void.
    pub(super) fn forget_refusals(&self) {
        self.refused.lock().clear();
    }

    /// The hub took this account after all.
    pub(super) fn taken(&self, name: &str) {
        self.refused.lock().remove(name);
    }

    /// The accounts that the hub did not take, and why.
    pub fn refused(&self) -> BTreeMap<String, Failure> {
        self.refused.lock().clone()
    }
}
