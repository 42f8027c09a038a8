//! Which scopes are read at present, and how far: for people and metrics. It decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

use crate::caching::{ReaderId, SharedStream};
use crate::watch::WatchState;
use kubesvc_core::wire::common::{Failure, Scope};

/// The readers of all scopes. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct WatchRegistry(Arc<Mutex<BTreeMap<ScopeOfAccount, Watch>>>);

/// A scope of an account, in the order in which they are shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ScopeOfAccount {
    account: Arc<str>,
    kind: String,
    group: String,
    namespace: String,
    /// Two accounts of one name may be read for a moment.
    uid: Arc<str>,
}

#[derive(Clone, Debug)]
struct Watch {
    reader: ReaderId,
    state: WatchState,
    since: Timestamp,
    problem: Option<Failure>,
}

/// The entry of a reader, until it is dropped.
#[derive(Debug)]
pub struct RegisteredWatch {
    registry: WatchRegistry,
    scope: ScopeOfAccount,
    reader: ReaderId,
}

/// A watch as people see it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedWatch {
    account: String,
    kind: String,
    group: String,
    namespace: String,
    /// `WATCHING`, `LISTING` or `WAITING`.
    state: &'static str,
    /// Version up to which the scope is read; not while it is listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    /// Since when it is in this state.
    since: String,
    /// Why it is not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// Numbers of watches for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchCounts {
    pub scopes: usize,
    pub watching: usize,
    /// Scopes with a problem, by its class.
    pub problems: BTreeMap<&'static str, usize>,
}

impl WatchRegistry {
    /// Registers the reader of a scope, in place of a former one.
    pub(crate) fn register(
        &self,
        (account, uid): (&Arc<str>, &Arc<str>),
        scope: &Scope,
        reader: ReaderId,
    ) -> RegisteredWatch {
        let scope = ScopeOfAccount {
            account: Arc::clone(account),
            kind: scope.kind.clone(),
            group: scope.group.clone(),
            namespace: scope.namespace.clone(),
            uid: Arc::clone(uid),
        };
        let watch = Watch { reader, state: WatchState::Waiting, since: Timestamp::now(), problem: None };
        self.0.lock().insert(scope.clone(), watch);
        RegisteredWatch { registry: self.clone(), scope, reader }
    }

    /// The number of scopes, and the first `most` of them by account, kind, group and namespace.
    pub(crate) fn listing(&self, most: usize, stream: &SharedStream) -> (usize, Vec<ListedWatch>) {
        let watches = self.0.lock();
        let total = watches.len();
        let first: Vec<_> =
            watches.iter().take(most).map(|(scope, watch)| (scope.clone(), watch.clone())).collect();
        drop(watches);
        let listed = first.into_iter().map(|(scope, watch)| {
            let ScopeOfAccount { account, kind, group, namespace, uid } = scope;
            let Watch { reader, state, since, problem } = watch;
            ListedWatch {
                account: account.to_string(),
                kind,
                group,
                namespace,
                state: state.as_str(),
                resource_version: stream.last_read(&uid, reader),
                since: since.to_string(),
                problem: problem.map(|failure| failure.message),
            }
        });
        (total, listed.collect())
    }

    pub(crate) fn counts(&self) -> WatchCounts {
        let watches = self.0.lock();
        let mut counts = WatchCounts { scopes: watches.len(), ..WatchCounts::default() };
        for watch in watches.values() {
            counts.watching += usize::from(watch.state == WatchState::Watching);
            if let Some(problem) = &watch.problem {
                *counts.problems.entry(problem.class().as_str_name()).or_default() += 1;
            }
        }
        counts
    }
}

impl RegisteredWatch {
    fn change(&self, change: impl FnOnce(&mut Watch)) {
        if let Some(watch) =
            self.registry.0.lock().get_mut(&self.scope).filter(|watch| watch.reader == self.reader)
        {
            change(watch);
        }
    }

    /// Records what the reader does.
    pub(crate) fn state(&self, state: WatchState) {
        self.change(|watch| {
            if watch.state != state {
                (watch.state, watch.since) = (state, Timestamp::now());
            }
        });
    }

    /// Records why the scope is not read, or that it is.
    pub(crate) fn problem(&self, problem: Option<&Failure>) {
        self.change(|watch| watch.problem = problem.cloned());
    }
}

impl Drop for RegisteredWatch {
    fn drop(&mut self) {
        let mut watches = self.registry.0.lock();
        if watches.get(&self.scope).is_some_and(|watch| watch.reader == self.reader) {
            watches.remove(&self.scope);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caching::QueueMemory;
    use kubesvc_core::wire::common::failure::Class;

    fn scope(kind: &str) -> Scope {
        Scope { kind: kind.to_owned(), ..Scope::default() }
    }

    fn register(registry: &WatchRegistry, account: &str, kind: &str, reader: u64) -> RegisteredWatch {
        let account: Arc<str> = account.into();
        registry.register((&account, &account), &scope(kind), ReaderId::of_test(reader))
    }

    #[test]
    fn watches_are_listed_in_order_and_bounded() {
        let (registry, stream) = (WatchRegistry::default(), SharedStream::new(QueueMemory::default()));
        let _watches: Vec<_> = [("b", "Pod"), ("a", "Pod"), ("a", "Job")]
            .into_iter()
            .zip(1..)
            .map(|((account, kind), reader)| register(&registry, account, kind, reader))
            .collect();
        let (total, listed) = registry.listing(2, &stream);
        let listed: Vec<_> =
            listed.iter().map(|watch| format!("{} {} {}", watch.account, watch.kind, watch.state)).collect();
        assert_eq!((total, listed), (3, vec!["a Job WAITING".to_owned(), "a Pod WAITING".to_owned()]));
    }

    #[test]
    fn reader_that_was_replaced_changes_nothing() {
        let registry = WatchRegistry::default();
        let former = register(&registry, "a", "Pod", 1);
        let reader = register(&registry, "a", "Pod", 2);
        reader.state(WatchState::Watching);
        former.state(WatchState::Listing);
        drop(former);
        let failure = Failure { class: Class::Forbidden.into(), ..Failure::default() };
        reader.problem(Some(&failure));
        let problems = BTreeMap::from([("FORBIDDEN", 1)]);
        assert_eq!(registry.counts(), WatchCounts { scopes: 1, watching: 1, problems });
        drop(reader);
        assert_eq!(registry.counts(), WatchCounts::default());
    }
}
