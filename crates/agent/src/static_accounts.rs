//! The accounts of the agent's own file: what the hub is told about them, and what the owner vouches for.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prost::Message;
use tokio::sync::watch;

use kubesvc_core::agent_policy::{AccountPolicy, AgentPolicy};
use kubesvc_core::wire::MAX_ACCOUNTS_IN_BATCH;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::{AccountSpec, StaticAccounts};

/// One state of the file. Each name occurs once.
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

    /// The account with this name.
    pub fn find(&self, name: &str) -> Option<&AccountSpec> {
        self.accounts.get(*self.by_name.get(name)?)
    }

    /// Whether the file gives the account of this name exactly this credential. If so, the restrictions on
    /// accounts from the hub do not apply to it.
    pub fn gives(&self, name: &str, credential: Option<&Credential>) -> bool {
        credential.is_some() && self.find(name).is_some_and(|own| own.credential.as_ref() == credential)
    }

    /// The list as frames, at least one. The last frame marks the list as complete.
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

/// The agent's own accounts as they are now, and whether the file is valid. Clones share the state.
#[derive(Clone, Debug)]
pub struct StaticAccountFile {
    list: watch::Sender<Arc<StaticAccountList>>,
    /// What the file allows the agent to do for each account, by name.
    policies: Arc<Mutex<HashMap<String, AccountPolicy>>>,
    /// Accounts that the hub refused, and why.
    refused: Arc<Mutex<BTreeMap<String, Failure>>>,
    /// Reason why the current files are not in force.
    problem: Arc<Mutex<Option<String>>>,
    /// Changed files that were refused.
    pub reload_failures: Counter,
    /// 1 while the current files are valid, otherwise 0.
    pub valid: Gauge,
    pub count: Gauge,
    /// Refusals of accounts by the hub.
    pub refusals: Counter,
}

impl Default for StaticAccountFile {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl StaticAccountFile {
    /// Creates the state of a valid file. Each account has its name in `account.name`.
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

    /// Applies a changed, valid file. Returns whether the accounts differ; only then are subscribers woken.
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

    /// Sets what the file allows the agent to do for each account, by name. Running attempts keep the former
    /// policy.
    pub fn set_policies(&self, policies: HashMap<String, AccountPolicy>) {
        *self.policies.lock() = policies;
    }

    /// The policy for an account of the file, derived from the policy for all accounts.
    pub(super) fn policy(&self, name: &str, all: &AgentPolicy) -> AgentPolicy {
        let policies = self.policies.lock();
        all.of_own_account(policies.get(name).unwrap_or(&AccountPolicy::default()))
    }

    /// Records a changed, invalid file; the former state stays in force.
    pub fn reload_failed(&self, problem: String) {
        self.reload_failures.inc();
        self.valid.set(0);
        *self.problem.lock() = Some(problem);
    }

    /// Reason why the current files are not in force; `None` if they are.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    pub fn current(&self) -> Arc<StaticAccountList> {
        self.list.borrow().clone()
    }

    /// Subscribes to the list in force and all later ones.
    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<StaticAccountList>> {
        self.list.subscribe()
    }

    /// Records that the hub refused an account. An account that is no longer in the file is not remembered.
    pub(super) fn refuse(&self, name: String, failure: Failure) {
        self.refusals.inc();
        if self.current().find(&name).is_some() {
            self.refused.lock().insert(name, failure);
        }
    }

    /// Forgets all refusals, because the hub is about to receive the whole list again.
    pub(super) fn forget_refusals(&self) {
        self.refused.lock().clear();
    }

    /// Forgets the refusal of an account that the hub has accepted after all.
    pub(super) fn taken(&self, name: &str) {
        self.refused.lock().remove(name);
    }

    pub fn refused(&self) -> BTreeMap<String, Failure> {
        self.refused.lock().clone()
    }
}
