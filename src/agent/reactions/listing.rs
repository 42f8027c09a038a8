//! The accounts in a form for people.

use jiff::Timestamp;

use super::AccountTable;
use crate::agent::static_accounts::StaticAccountList;
use crate::wire::common::Failure;

/// State of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedState {
    /// It is held.
    Held,
    /// It is being started for the first time.
    Starting,
    /// It could not be started.
    Failed,
}

/// Number of accounts in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Held, including those that are being restarted.
    pub held: usize,
    /// Being started for the first time.
    pub starting: usize,
    /// Could not be started.
    pub failed: usize,
}

/// An account, as shown to people.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedAccount {
    /// Name of the account.
    pub name: String,
    /// State of the account.
    pub state: ListedState,
    /// Time since which it is held.
    pub since: Option<Timestamp>,
    /// Reason why it could not be started.
    pub failure: Option<Failure>,
    /// Whether it comes from the agent's own file.
    pub is_own: bool,
}

impl AccountTable {
    /// Number of accounts in each state.
    pub fn counts(&self) -> Counts {
        let (held, failed) = (self.held_count, self.failed.len());
        Counts { held, starting: self.by_uid.len() - held, failed }
    }

    /// The first accounts by name, at most `most`. `own` lists the accounts of the agent's own file.
    pub fn listing(&self, most: usize, own: &StaticAccountList) -> Vec<ListedAccount> {
        let mut names: Vec<&str> =
            self.uid_of_name.keys().chain(self.failed.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names.truncate(most);
        names.into_iter().map(|name| self.listed(name, own)).collect()
    }

    fn listed(&self, name: &str, own: &StaticAccountList) -> ListedAccount {
        let name = name.to_owned();
        let known = self.uid_of_name.get(&name).and_then(|uid| self.by_uid.get(uid));
        let Some(known) = known else {
            let (failure, is_own) = (self.failed.get(&name).cloned(), own.find(&name).is_some());
            return ListedAccount { name, state: ListedState::Failed, since: None, failure, is_own };
        };
        let held = known.held.as_ref().map(|held| &held.definition);
        let definition = held.or(known.starting.as_ref().map(|starting| &starting.definition));
        let is_own = definition.is_some_and(|it| own.gives(&name, it.spec().credential.as_ref()));
        let since = known.held.as_ref().map(|held| held.since);
        let state = if since.is_some() { ListedState::Held } else { ListedState::Starting };
        ListedAccount { name, state, since, failure: None, is_own }
    }
}
