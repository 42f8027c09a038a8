//! The lists of namespaces of accounts whose kind Namespace is cached: they follow the cached objects and the spec.
//!
//! What an agent reported at activation is a picture of that moment. The list is read from the table, so that it is
//! whole however much of it this replica has seen, and is written like a reported one.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::{RETRY_DELAYS, TableWriters, with_timeout};
use crate::hub::sessions::session::Session;
use kubesvc_core::cache::rules::{AccountRules, OperatorRules};
use kubesvc_core::{KubesvcAccount, State};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_store::{BasisRow, CacheStore, ScopeState, StoreError};

/// Minimum interval between two lists of one account.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of names in a list, as in what agents report.
const MAX_NAMES: usize = 10_000;
/// Number of rows read at a time.
const PAGE_ROWS: u32 = 1_000;

/// The namespaces of an account, according to the cached objects.
#[derive(Debug, PartialEq, Eq)]
enum CachedList {
    /// All of them, sorted.
    Complete(Vec<String>),
    /// Not all of them are read yet.
    Incomplete,
    /// They are not cached.
    NotCached,
}

/// Starts the task that reads the lists of accounts whose cached Namespaces changed.
pub(crate) fn start(background: &BackgroundTasks, tables: &Arc<TableWriters>) {
    let Some(cache) = tables.rows.cache.clone() else { return };
    let [first, longest] = RETRY_DELAYS;
    let what = "Reads the namespaces of accounts from their cached objects";
    let task = TaskSpec::new("cached namespaces", what).woken_by(&tables.wakes.namespaces.cached);
    let task = task.min_interval(MIN_INTERVAL).without_deadline().retry_delays(first, longest);
    let tables = Arc::clone(tables);
    background.start(task, move |uids: Vec<String>| {
        let (tables, cache) = (Arc::clone(&tables), Arc::clone(&cache));
        async move {
            match uids.first() {
                Some(uid) => refresh(&tables, &*cache, uid).await,
                None => AttemptOutcome::Unchanged,
            }
        }
    });
}

async fn refresh(tables: &TableWriters, cache: &dyn CacheStore, uid: &str) -> AttemptOutcome<String> {
    let Some(account) = tables.context.accounts.by_uid(uid) else { return AttemptOutcome::Unchanged };
    let lists = &tables.wakes.namespaces;
    if !lists.begin_read(uid, account.generation()) {
        return AttemptOutcome::Unchanged;
    }
    match with_timeout(read(cache, &account)).await {
        Ok(CachedList::Complete(names)) => tables.follow_cached_namespaces(uid, names),
        Ok(CachedList::Incomplete) => {}
        Ok(CachedList::NotCached) => lists.unfollow(uid),
        Err(error) => {
            lists.unread(uid);
            return AttemptOutcome::failed(error.in_full());
        }
    }
    AttemptOutcome::Done
}

async fn read(cache: &dyn CacheStore, account: &KubesvcAccount) -> Result<CachedList, StoreError> {
    let name = account.account_name();
    let scopes = cache.scopes(name).await?;
    let scope = scopes.into_iter().find(|scope| {
        scope.key.group.is_empty()
            && scope.key.kind == "Namespace"
            && scope.state != ScopeState::Removed
            && scope.account_uid == account.uid()
    });
    let Some(scope) = scope else { return Ok(CachedList::NotCached) };
    if scope.state != ScopeState::Synced || scope.objects.is_none() {
        return Ok(CachedList::Incomplete);
    }
    let (mut names, mut last): (Vec<String>, Option<BasisRow>) = (Vec::new(), None);
    while names.len() < MAX_NAMES {
        let page =
            cache.basis(name, &scope.cached_kind, &scope.key.namespace, last.as_ref(), PAGE_ROWS).await?;
        let is_last = page.len() < usize::try_from(PAGE_ROWS).unwrap_or(usize::MAX);
        last = page.last().cloned();
        names.extend(page.into_iter().map(|row| row.name));
        if is_last {
            break;
        }
    }
    Ok(CachedList::Complete(covered(names, account)))
}

/// The namespaces of a cluster that an account covers, sorted.
fn covered(mut names: Vec<String>, account: &KubesvcAccount) -> Vec<String> {
    let set = |names: &[String]| names.iter().cloned().collect::<HashSet<_>>();
    let (only, omitted) = (set(&account.spec.namespaces), set(&account.spec.omit_namespaces));
    names.retain(|name| (only.is_empty() || only.contains(name)) && !omitted.contains(name));
    names.sort_unstable();
    names.truncate(MAX_NAMES);
    names
}

impl TableWriters {
    /// Whether a list that this session reports is older than the one that is written: its agent streams the account's
    /// Namespaces, and is only back.
    pub(crate) fn is_behind_cached_namespaces(&self, session: &Session, uid: &str) -> bool {
        let Some(rules) = &self.context.caching_rules else { return false };
        let Some(account) = self.context.accounts.by_uid(uid) else { return false };
        let status = account.status_or_default();
        let streams = status.state() == State::Active
            && status.caching.as_ref().is_some_and(|caching| {
                caching.agent_id.as_ref() == Some(&session.agent.id)
                    && caching.boot_id.as_ref() == Some(&session.agent.boot_id)
            });
        if !streams || !session.agent.streams_objects {
            return false;
        }
        let (operator, _) = OperatorRules::from_wire(&rules.rules(&account));
        let (own, _) = AccountRules::from_spec(&account.spec, false);
        operator.place("", "Namespace").is_some() && own.allows("", "Namespace")
    }

    /// Whether the agent that streams the account's objects is at another replica: that one writes the list.
    pub(super) fn is_listed_elsewhere(&self, uid: &str) -> bool {
        let Some(account) = self.context.accounts.by_uid(uid) else { return false };
        let status = account.status_or_default();
        let caching = status.caching.as_ref().filter(|_| status.state() == State::Active);
        let Some((agent, boot_id)) = caching.and_then(|one| one.agent_id.as_ref().zip(one.boot_id.as_ref()))
        else {
            return false;
        };
        self.sessions.registry.of_process(agent, boot_id.as_str()).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::KubesvcAccountSpec;

    #[test]
    fn list_has_the_namespaces_that_the_account_covers() {
        let names = || ["two", "one", "three"].map(str::to_owned).to_vec();
        let listed = |only: &[&str], omitted: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let spec = KubesvcAccountSpec {
                namespaces: list(only),
                omit_namespaces: list(omitted),
                ..KubesvcAccountSpec::default()
            };
            covered(names(), &KubesvcAccount::new("a", spec))
        };
        assert_eq!(listed(&[], &[]), ["one", "three", "two"]);
        assert_eq!(listed(&["two", "gone"], &[]), ["two"]);
        assert_eq!(listed(&[], &["two"]), ["one", "three"]);
    }
}
