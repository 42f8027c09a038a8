//! What is known of the accounts, by account name. Bounded by the number of accounts.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::informers::{AccountIndex, AccountKey};
use kubesvc_clouddriver::definition::file_on_clouddriver;
use kubesvc_clouddriver::migration::AccountFact;
use kubesvc_core::KubesvcAccount;
use kubesvc_runtime::work_queue::WorkQueue;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FactIndex {
    pub(super) by_name: BTreeMap<String, AccountFact>,
    names: HashMap<AccountKey, String>,
    /// Accounts whose kubeconfig is a file of Clouddriver and that wait to be activated.
    without_secret: HashSet<AccountKey>,
    /// Those of them whose Secrets exist.
    with_secret: HashSet<AccountKey>,
    /// Number of changes so far.
    pub(super) changes: u64,
    /// Number of accounts that disappeared so far.
    pub(super) removals: u64,
}

impl FactIndex {
    /// Takes in the accounts that changed.
    pub(super) fn take(&mut self, accounts: &AccountIndex, changed: &WorkQueue<AccountKey>) {
        for key in changed.try_take(usize::MAX) {
            let account = accounts.get(&key);
            let name = account.as_ref().map(|account| account.account_name().to_owned());
            let before = match &name {
                Some(name) => self.names.insert(key.clone(), name.clone()),
                None => self.names.remove(&key),
            };
            if account.is_none() {
                self.without_secret.remove(&key);
                self.with_secret.remove(&key);
            }
            let renamed = before.filter(|before| Some(before) != name.as_ref());
            for name in renamed.into_iter().chain(name) {
                self.look(accounts, &name);
            }
        }
    }

    fn look(&mut self, accounts: &AccountIndex, name: &str) {
        let precedence = accounts.precedence();
        let named = accounts.by_account_name(name);
        match named.iter().min_by(|one, other| precedence.order(one, other)) {
            Some(account) => self.put(account),
            None => {
                if self.by_name.remove(name).is_some() {
                    self.removals += 1;
                    self.changes += 1;
                }
            }
        }
    }

    /// Takes in an account that the index may not show yet.
    pub(super) fn put(&mut self, account: &KubesvcAccount) {
        let key = AccountKey::of(account);
        let fact = AccountFact::of(account, self.with_secret.contains(&key));
        if fact.needs_file {
            self.without_secret.insert(key);
        } else {
            self.without_secret.remove(&key);
        }
        let name = account.account_name();
        if self.by_name.get(name) != Some(&fact) {
            self.by_name.insert(name.to_owned(), fact);
            self.changes += 1;
        }
    }

    /// Accounts that are being deleted and wait for a migration that does not run, at most this many.
    pub(super) fn held_by_others(&self, runs: impl Fn(&str) -> bool, most: usize) -> Vec<String> {
        let is_left = |fact: &AccountFact| {
            fact.is_being_deleted && fact.is_held && !fact.migration.as_deref().is_some_and(&runs)
        };
        let left = self.by_name.iter().filter(|(_, fact)| is_left(fact));
        left.map(|(name, _)| name.clone()).take(most).collect()
    }

    /// Accounts whose Secrets are to be looked for, at most this many, others each time.
    pub(super) fn waiting_for_secrets(&self, most: usize) -> Vec<AccountKey> {
        let mut keys: Vec<AccountKey> = self.without_secret.iter().cloned().collect();
        if keys.len() > most {
            let at = fastrand::usize(..keys.len());
            keys.rotate_left(at);
            keys.truncate(most);
        }
        keys
    }

    /// Notes that the Secret of an account exists.
    pub(super) fn has_secret(&mut self, accounts: &AccountIndex, key: &AccountKey) {
        self.without_secret.remove(key);
        if let Some(account) = accounts.get(key).filter(|account| file_on_clouddriver(account).is_some()) {
            self.with_secret.insert(key.clone());
            self.put(&account);
        }
    }
}
