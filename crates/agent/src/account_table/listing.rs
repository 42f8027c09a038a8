//! What the rest of the agent reads of the table: for a hello, for the session, for metrics and for people.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::{AccountTable, Attempt};
use crate::activation::{Definition, KnownCluster};
use crate::static_accounts::StaticAccountList;
use crate::watched_files::ReadFile;
use kubesvc_core::wire::common::{AccountRef, Failure};
use kubesvc_core::wire::ops::HeldAccount;

/// State of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedState {
    Held,
    /// It is being started for the first time.
    Starting,
    Failed,
}

/// Number of accounts in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Held, including those that are being restarted.
    pub held: usize,
    /// Being started for the first time.
    pub starting: usize,
    pub failed: usize,
}

/// An account, as shown to people.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedAccount {
    pub name: String,
    pub state: ListedState,
    pub since: Option<Timestamp>,
    /// Reason why it could not be started, or why the cluster refuses the credential with which it is held.
    pub failure: Option<Failure>,
    /// Whether it comes from the agent's own file.
    pub is_own: bool,
}

/// An account that is held, for requests to its cluster.
#[derive(Clone, Debug)]
pub struct HeldDefinition {
    pub account: AccountRef,
    pub definition: Arc<Definition>,
    pub cluster: Arc<KnownCluster>,
}

impl AccountTable {
    /// The account with this uid, if it is held.
    pub fn held_definition(&self, uid: &str) -> Option<HeldDefinition> {
        let held = self.by_uid.get(uid)?.held.as_ref()?;
        Some(HeldDefinition {
            account: held.account.clone(),
            definition: Arc::clone(&held.definition),
            cluster: Arc::new(KnownCluster::from(&held.reached.identity)),
        })
    }

    /// The epoch under which the account with this uid is held, if it is.
    pub fn held_epoch(&self, uid: &str) -> Option<u64> {
        Some(self.by_uid.get(uid)?.held.as_ref()?.account.epoch)
    }

    /// Whether the account is held with a credential that its cluster refuses.
    pub fn is_refused(&self, uid: &str) -> bool {
        self.by_uid
            .get(uid)
            .and_then(|known| known.held.as_ref())
            .is_some_and(|held| held.refused().is_some())
    }

    /// The accounts that are held, in the form of a `Hello`.
    pub fn held(&self) -> impl Iterator<Item = HeldAccount> + '_ {
        let held = self
            .by_uid
            .values()
            .filter_map(|known| Some((known.held.as_ref()?, known.cached.as_ref().map(|order| order.epoch))));
        held.map(|(held, cached)| HeldAccount {
            account: Some(held.account.clone()),
            caching_epoch: cached.unwrap_or_default(),
            cluster_uid: held.reached.identity.kube_system_uid.clone(),
        })
    }

    /// The files with which the held accounts were started.
    pub fn files(&self) -> HashSet<ReadFile> {
        let held = self.by_uid.values().filter_map(|known| known.held.as_ref());
        held.flat_map(|held| held.reached.files.iter().cloned()).collect()
    }

    /// The attempts that the hub asked for.
    pub fn owed(&self) -> impl Iterator<Item = (Attempt, &AccountRef)> {
        let starting = self.by_uid.values().filter_map(|known| known.starting.as_ref());
        let owed = starting.filter(|starting| !starting.by_itself);
        owed.map(|starting| (starting.attempt, &starting.account))
    }

    /// All running attempts.
    pub fn starting(&self) -> impl Iterator<Item = (Attempt, &AccountRef)> {
        let starting = self.by_uid.values().filter_map(|known| known.starting.as_ref());
        starting.map(|starting| (starting.attempt, &starting.account))
    }

    /// Number of accounts that are held.
    pub fn held_count(&self) -> usize {
        self.held_count
    }

    /// Number of accounts whose objects this agent streams.
    pub fn cached_count(&self) -> usize {
        self.by_uid.values().filter(|known| known.cached.is_some()).count()
    }

    /// Number of accounts in each state.
    pub fn counts(&self) -> StateCounts {
        let (held, failed) = (self.held_count, self.failed.len());
        StateCounts { held, starting: self.by_uid.len() - held, failed }
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
        let failure = known.held.as_ref().and_then(|held| held.refused().cloned());
        ListedAccount { name, state, since, failure, is_own }
    }
}
