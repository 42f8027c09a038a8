//! The accounts of the agent's own file, and what its object says is wrong with its accounts.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Session;
use crate::account::KubesvcAccount;
use crate::account::lifecycle::Fact;
use crate::hub::static_accounts::Listing;
use crate::hub::static_accounts::sync::{ListProblem, ReportedList};

/// Maximum number of accounts whose being kept from an agent is told.
const MAX_KEPT_ACCOUNTS: usize = 100;

/// What is said about the accounts of one agent.
#[derive(Default)]
pub(in crate::hub) struct OwnAccounts {
    /// The accounts of the agent's own file.
    pub(in crate::hub) list: Mutex<ReportedList>,
    /// An account that may be one of its own has changed or is gone.
    pub(in crate::hub) changed: Notify,
    /// Accounts that are kept from the agent because they are bound to another cluster, and why; the first 100.
    kept_from: Mutex<BTreeMap<String, String>>,
}

impl Session {
    /// The last complete list; absent until there is one.
    pub(in crate::hub) fn listing(&self) -> Option<Arc<Listing>> {
        self.own.list.lock().listing.clone()
    }

    /// Whether the agent's own file has an account, by its name and with its source, as far as it has said.
    pub(in crate::hub) fn lists(&self, account: &KubesvcAccount) -> Fact<bool> {
        match &self.own.list.lock().listing {
            None => Fact::Unknown,
            Some(listing) => Fact::Known(listing.has(account)),
        }
    }

    /// What is wrong with the agent's own accounts.
    pub(in crate::hub) fn list_problem(&self) -> Option<ListProblem> {
        self.own.list.lock().problem.clone()
    }

    /// An account is kept from the agent because of the cluster that it is in or has reached, and why; absent: no longer.
    /// Answers whether that is new.
    pub(in crate::hub) fn keep_from(&self, uid: &str, why: Option<String>) -> bool {
        let mut kept = self.own.kept_from.lock();
        match why {
            None => kept.remove(uid).is_some(),
            Some(why) if kept.get(uid) == Some(&why) => false,
            Some(_) if kept.len() >= MAX_KEPT_ACCOUNTS && !kept.contains_key(uid) => false,
            Some(why) => {
                kept.insert(uid.to_owned(), why);
                true
            }
        }
    }

    /// Why an account is kept from the agent, if it is.
    pub(in crate::hub) fn is_kept_from(&self, uid: &str) -> Option<String> {
        self.own.kept_from.lock().get(uid).cloned()
    }

    /// Of the accounts that are kept from the agent, how many there are and why the first is.
    pub(in crate::hub) fn all_kept_from(&self) -> Option<(usize, String)> {
        let kept = self.own.kept_from.lock();
        kept.values().next().map(|first| (kept.len(), first.clone()))
    }
}
