//! What the rows of cached objects and scopes may hold on every database, so that a row accepted by one is accepted by
//! all. Pure; `writing` leaves out what does not fit and reports it.

use super::{AccountBatch, ScopeChange, ScopeKey};
use crate::column_limits::unfit;

/// Maximum number of characters of a key in a report.
const MAX_KEY_CHARS: usize = 600;

/// Names a row in a report, and says why it was refused. The reason must not contain contents of the row.
pub(super) fn report(table: &str, key: &str, what: &str, why: &str) -> String {
    let key: String = key.chars().take(MAX_KEY_CHARS).collect();
    format!("{table} row {key:?} {what}: {why}")
}

type Limited<'r> = (&'static str, Option<&'r str>, usize);

/// Why a change of a scope fits no database; `None` if it fits.
pub(super) fn unfit_change(batch: &AccountBatch, change: &ScopeChange) -> Option<String> {
    let version = |version| ("resourceversion", Some(version), 64);
    let key = |key| ("sync_key", Some(key), 26);
    let none = ("problem", None, 0);
    let more: [Limited<'_>; 3] = match change {
        ScopeChange::Added(row) => [
            ("kind", Some(&row.cached_kind), 320),
            ("shape", Some(&row.shape), 64),
            ("filter", Some(&row.filter), 64),
        ],
        ScopeChange::SyncStarted { sync_key, .. } => [key(sync_key.as_str()), none, none],
        ScopeChange::Checkpoint { resource_version, .. } => [version(resource_version.as_str()), none, none],
        ScopeChange::Synced { sync_key, resource_version, .. } => {
            [key(sync_key.as_str()), version(resource_version.as_str()), none]
        }
        ScopeChange::Removed(_) | ScopeChange::Problem { .. } => [none; 3],
    };
    let scope = change.scope();
    let ns_group_kind = scope.to_string();
    let texts = [
        ("account", Some(batch.account.as_str()), 255),
        ("account_uid", Some(&batch.claim.uid), 36),
        ("namespace", Some(&scope.namespace), 63),
        ("ns_group_kind", Some(&ns_group_kind), 384),
    ];
    texts.into_iter().chain(more).find_map(|(column, text, most)| unfit(column, text?, most)).or_else(|| {
        let is_same = ns_group_kind.parse::<ScopeKey>().is_ok_and(|parsed| parsed == *scope);
        (!is_same).then(|| "its namespace, group or kind is no name".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BatchClaim;
    use kubesvc_core::CachingEpoch;

    fn batch() -> AccountBatch {
        AccountBatch {
            claim: BatchClaim { uid: "uid".into(), epoch: CachingEpoch(1), committed: 0, last: 1 },
            account: "prod".into(),
            agent_id: "agent".into(),
            upserts: Vec::new(),
            deletes: Vec::new(),
            scopes: Vec::new(),
        }
    }

    fn scope(namespace: &str, kind: &str) -> ScopeKey {
        ScopeKey { namespace: namespace.into(), group: "apps".into(), kind: kind.into() }
    }

    #[test]
    fn scope_whose_key_reads_as_another_is_unfit() {
        let unfit = |key| unfit_change(&batch(), &ScopeChange::Removed(key));
        assert_eq!(unfit(scope("default", "Deployment")), None);
        assert_eq!(unfit(scope("", "Deployment")), None);
        for key in [scope("a:b", "Deployment"), scope("", "v1.Deployment"), scope("", "")] {
            assert!(unfit(key.clone()).is_some(), "{key:?}");
        }
        assert!(unfit(scope(&"n".repeat(64), "Deployment")).is_some_and(|why| why.contains("namespace")));
    }

    #[test]
    fn longest_legal_scope_fits() {
        let key = ScopeKey { namespace: "n".repeat(63), group: "g".repeat(253), kind: "K".repeat(63) };
        assert_eq!(unfit_change(&batch(), &ScopeChange::Removed(key)), None);
    }

    #[test]
    fn report_names_a_row_and_bounds_its_key() {
        assert_eq!(
            report("kubesvc_cache", "a\nb", "left out", "column id holds a NUL"),
            r#"kubesvc_cache row "a\nb" left out: column id holds a NUL"#
        );
        assert!(report("t", &"k".repeat(10_000), "left out", "why").len() < 700);
    }
}
