//! Unread kinds of an account, and left-out objects of its scopes, as reported by its agent since Begin. Pure.
//!
//! The agent repeats known problems after each Resume, and reports others as it finds them. Until it has read a scope,
//! or reported why not, the stored problem of the scope may be outdated; meanwhile nothing is concluded.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use kubesvc_core::CachingEpoch;
use kubesvc_core::cache::issues::{CacheIssue, is_out_of_reach, summary, why_unread};
use kubesvc_core::lifecycle::CachingReport;
use kubesvc_core::wire::common::Failure;
use kubesvc_store::{ScopeKey, ScopeState, StoredScope};

use crate::hub::caching::scopes::DeclaredScopes;

/// Maximum number of unwatched kinds for which a reason is kept.
const MAX_UNWATCHED_KINDS: usize = 1_000;
/// Kinds that may have rows without being read, by group and kind.
const SYNTHETIC_KINDS: [(&str, &str); 2] =
    [("", "Namespace"), ("apiextensions.k8s.io", "CustomResourceDefinition")];

/// Placeholder for the kinds of an account whose cluster was never reached.
const ALL_KINDS: &str = "all kinds";

/// Report of an account while its agent has not reached the cluster.
pub(super) fn report_of_unread(epoch: CachingEpoch, failure: &Failure) -> CachingReport {
    let issue = CacheIssue::new("", ALL_KINDS, &why_unread(failure.class(), &failure.message));
    let (left_out, is_unreadable) = (summary(&BTreeSet::from([issue])), is_out_of_reach(failure.class()));
    CachingReport { epoch, left_out, is_unreadable }
}

#[derive(Clone, Debug)]
struct Problem {
    issue: CacheIssue,
    is_out_of_reach: bool,
    /// Stored text about left-out objects of a scope that is read.
    left_out: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct AccountProblems {
    of_scopes: BTreeMap<ScopeKey, Problem>,
    of_unwatched_kinds: BTreeMap<ScopeKey, CacheIssue>,
    /// Scopes with a stored problem that the agent has not confirmed.
    unconfirmed: HashSet<ScopeKey>,
}

impl AccountProblems {
    /// The stored, unconfirmed problems when the agent begins.
    pub(super) fn stored(account_uid: &str, stored: &[StoredScope], declared: &DeclaredScopes) -> Self {
        let declared = declared.keys();
        let with_problem = stored.iter().filter(|scope| {
            scope.problem.is_some() && scope.state != ScopeState::Removed && scope.account_uid == account_uid
        });
        let unconfirmed = with_problem.map(|scope| &scope.key).filter(|key| declared.contains(key));
        Self { unconfirmed: unconfirmed.cloned().collect(), ..Self::default() }
    }

    /// Records why a scope is not read; without a failure, that it is read.
    pub(super) fn scope(&mut self, key: &ScopeKey, failure: Option<&Failure>) {
        self.unconfirmed.remove(key);
        let Some(failure) = failure else {
            self.of_scopes.remove(key);
            return;
        };
        let issue = CacheIssue::new(&key.group, &key.kind, &why_unread(failure.class(), &failure.message));
        let problem = Problem { issue, is_out_of_reach: is_out_of_reach(failure.class()), left_out: None };
        self.of_scopes.insert(key.clone(), problem);
    }

    /// Records the stored text about left-out objects of a scope that is read.
    pub(super) fn objects(&mut self, key: &ScopeKey, left_out: String) {
        self.unconfirmed.remove(key);
        let issue = CacheIssue::new(&key.group, &key.kind, &left_out);
        let problem = Problem { issue, is_out_of_reach: false, left_out: Some(left_out) };
        self.of_scopes.insert(key.clone(), problem);
    }

    /// Returns the stored text about left-out objects of a scope.
    pub(super) fn left_out_of(&self, key: &ScopeKey) -> Option<&String> {
        self.of_scopes.get(key)?.left_out.as_ref()
    }

    /// Records why a kind is not watched; without a failure, that it is no longer requested.
    pub(super) fn unwatched_kind(&mut self, key: &ScopeKey, failure: Option<&Failure>) {
        match failure {
            None => drop(self.of_unwatched_kinds.remove(key)),
            Some(failure) => {
                let has_room = self.of_unwatched_kinds.len() < MAX_UNWATCHED_KINDS;
                if has_room || self.of_unwatched_kinds.contains_key(key) {
                    let issue = CacheIssue::new(&key.group, &key.kind, &failure.message);
                    self.of_unwatched_kinds.insert(key.clone(), issue);
                }
            }
        }
    }

    /// Records that a scope was read. Returns whether the stored problem says otherwise.
    pub(super) fn was_read(&mut self, key: &ScopeKey) -> bool {
        self.unconfirmed.remove(key)
    }

    /// Forgets a scope that is no longer watched.
    pub(super) fn removed(&mut self, key: &ScopeKey) {
        self.unconfirmed.remove(key);
        self.of_scopes.remove(key);
    }

    /// Report of the account; `None` while part of it is unconfirmed.
    pub(super) fn report(&self, epoch: CachingEpoch, declared: &DeclaredScopes) -> Option<CachingReport> {
        if !self.unconfirmed.is_empty() {
            return None;
        }
        let of_scopes = self.of_scopes.values().map(|problem| &problem.issue);
        let issues: BTreeSet<_> = of_scopes.chain(self.of_unwatched_kinds.values()).cloned().collect();
        let is_unreadable = self.is_unreadable(declared);
        Some(CachingReport { epoch, left_out: summary(&issues), is_unreadable })
    }

    /// Whether no declared scope can be read from the agent's location.
    fn is_unreadable(&self, declared: &DeclaredScopes) -> bool {
        let reaches = |key: &&ScopeKey| !self.of_scopes.get(*key).is_some_and(|one| one.is_out_of_reach);
        let is_read = |key: &&ScopeKey| !SYNTHETIC_KINDS.contains(&(key.group.as_str(), key.kind.as_str()));
        let declared = declared.keys();
        let read: Vec<_> = declared.iter().copied().filter(is_read).collect();
        let looked_at = if read.is_empty() { declared.into_iter().collect() } else { read };
        !looked_at.is_empty() && !looked_at.iter().any(reaches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::wire::common::Scope;
    use kubesvc_core::wire::common::failure::Class;
    use kubesvc_core::wire::events::ScopeDeclaration;

    fn key(kind: &str) -> ScopeKey {
        ScopeKey { namespace: String::new(), group: String::new(), kind: kind.into() }
    }

    fn declared(kinds: &[&str]) -> DeclaredScopes {
        let mut scopes = DeclaredScopes::default();
        for (id, kind) in (1..).zip(kinds) {
            let scope = Some(Scope { kind: (*kind).into(), ..Scope::default() });
            let declaration =
                ScopeDeclaration { scope_id: id, scope, shape: "s".into(), filter: String::new() };
            scopes.declare(declaration).expect("it is new");
        }
        scopes
    }

    fn failure(class: Class) -> Failure {
        Failure { class: class.into(), message: "it said no".into(), ..Failure::default() }
    }

    fn stored(kind: &str, problem: Option<&str>) -> StoredScope {
        StoredScope {
            key: key(kind),
            cached_kind: kind.to_lowercase(),
            account_uid: "u".into(),
            resource_version: Some("1".into()),
            state: ScopeState::Synced,
            shape: Some("s".into()),
            filter: Some(String::new()),
            objects: Some(0),
            problem: problem.map(str::to_owned),
            last_updated_ms: 0,
        }
    }

    const EPOCH: CachingEpoch = CachingEpoch(3);

    #[test]
    fn stored_problem_is_neither_shown_nor_taken_back_until_the_agent_speaks_of_the_scope() {
        let scopes = declared(&["Pod", "Secret"]);
        let stored = [stored("Pod", None), stored("Secret", Some("no right")), stored("Gone", Some("no"))];
        let begun = || AccountProblems::stored("u", &stored, &scopes);
        assert_eq!(begun().report(EPOCH, &scopes), None);
        let mut read = begun();
        assert!(!read.was_read(&key("Pod")), "its row says nothing else");
        assert!(read.was_read(&key("Secret")), "its row is to be corrected");
        assert_eq!(read.report(EPOCH, &scopes).expect("all is known").left_out, None);
        let mut refused = begun();
        refused.scope(&key("Secret"), Some(&failure(Class::Forbidden)));
        let left_out = refused.report(EPOCH, &scopes).expect("all is known").left_out;
        assert_eq!(left_out.as_deref(), Some("Secret: the credential may not list and watch it"));
        let mut removed = begun();
        removed.removed(&key("Secret"));
        assert!(removed.report(EPOCH, &scopes).is_some());
        assert!(AccountProblems::stored("another", &stored, &scopes).report(EPOCH, &scopes).is_some());
    }

    #[test]
    fn cluster_is_unreadable_when_no_scope_that_is_read_can_be_reached() {
        let scopes = declared(&["Pod", "Secret", "Namespace"]);
        let mut problems = AccountProblems::default();
        let is_unreadable =
            |problems: &AccountProblems| problems.report(EPOCH, &scopes).map(|one| one.is_unreadable);
        problems.scope(&key("Pod"), Some(&failure(Class::Unreachable)));
        assert_eq!(is_unreadable(&problems), Some(false));
        problems.scope(&key("Secret"), Some(&failure(Class::Forbidden)));
        assert_eq!(is_unreadable(&problems), Some(false), "another agent has no right either");
        problems.scope(&key("Secret"), Some(&failure(Class::Timeout)));
        assert_eq!(is_unreadable(&problems), Some(true), "Namespace may have rows without being read");
        problems.scope(&key("Pod"), None);
        assert_eq!(is_unreadable(&problems), Some(false));
        assert!(!AccountProblems::default().report(EPOCH, &declared(&[])).expect("known").is_unreadable);
    }

    #[test]
    fn reasons_of_kinds_that_are_not_watched_are_bounded() {
        let mut problems = AccountProblems::default();
        for nth in 0..2 * MAX_UNWATCHED_KINDS {
            problems.unwatched_kind(&key(&format!("Kind{nth:05}")), Some(&failure(Class::NotFound)));
        }
        assert_eq!(problems.of_unwatched_kinds.len(), MAX_UNWATCHED_KINDS);
        let left_out = problems.report(EPOCH, &declared(&[])).expect("known").left_out.expect("a lot");
        assert!(left_out.starts_with("Kind00000: it said no; Kind00001: it said no; "), "{left_out}");
        assert!(left_out.ends_with(" more"), "{left_out}");
        problems.unwatched_kind(&key("Kind00000"), None);
        assert_eq!(problems.of_unwatched_kinds.len(), MAX_UNWATCHED_KINDS - 1);
    }
}
