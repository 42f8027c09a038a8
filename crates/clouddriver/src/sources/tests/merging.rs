//! Which of several sources has a name, and when none has it.

use proptest::prelude::*;

use super::*;
use crate::definition::case_twins;

fn entry(source: &str, name: &str) -> SourceItem {
    read_row(&self::source(source), name, "{}", "1".to_owned())
}

fn broken(source: &str, name: &str) -> SourceItem {
    read_row(&self::source(source), name, "{", "1".to_owned())
}

fn complete(source: &str, items: Vec<SourceItem>) -> Arc<SourceSnapshot> {
    Arc::new(SourceSnapshot::of(&self::source(source), items, Completeness::Complete))
}

fn partial(source: &str, items: Vec<SourceItem>) -> Arc<SourceSnapshot> {
    let why = Completeness::Partial("it cannot be reached".to_owned());
    Arc::new(SourceSnapshot::of(&self::source(source), items, why))
}

/// The outcome in one word, with the source.
fn outcome(merged: &MergedSources, name: &str) -> String {
    match merged.lookup(name) {
        NameLookup::Found(entry) => format!("found in {}", entry.source),
        NameLookup::Broken { source, entry } => format!("broken in {source}: {}", entry.reason),
        NameLookup::Absent => "absent".to_owned(),
        NameLookup::Unknown { source, .. } => format!("unknown because of {source}"),
    }
}

#[test]
fn sql_row_wins_over_yaml() {
    let sql = complete("sql", vec![entry("sql", "a"), entry("sql", "b")]);
    let yaml = complete("yaml", vec![entry("yaml", "b"), entry("yaml", "c"), entry("yaml", "c")]);
    let merged = MergedSources::of(vec![sql, yaml]);
    assert_eq!(
        ["a", "b", "c", "d"].map(|name| outcome(&merged, name)),
        ["found in sql", "found in sql", "found in yaml", "absent"]
    );
    let shadowed: Vec<_> =
        merged.shadowed().iter().map(|one| format!("{} of {} by {}", one.name, one.source, one.by)).collect();
    assert_eq!(shadowed, ["b of yaml by sql", "c of yaml by yaml"]);
    let winners: Vec<_> = merged.accounts().map(|entry| format!("{}@{}", entry.name, entry.source)).collect();
    assert_eq!(winners, ["a@sql", "b@sql", "c@yaml"]);
}

#[test]
fn unreadable_source_is_unknown_never_absent() {
    let yaml = || complete("yaml", vec![entry("yaml", "y")]);
    let sql = || partial("sql", vec![entry("sql", "s")]);
    let first = MergedSources::of(vec![sql(), yaml()]);
    assert_eq!(
        ["s", "y", "z"].map(|name| outcome(&first, name)),
        ["found in sql", "unknown because of sql", "unknown because of sql"]
    );
    // An earlier source that has the name rules the later one out.
    let last = MergedSources::of(vec![yaml(), sql()]);
    assert_eq!(
        ["y", "s", "z"].map(|name| outcome(&last, name)),
        ["found in yaml", "found in sql", "unknown because of sql"]
    );
}

#[test]
fn broken_row_hides_no_other_account_and_stands_for_its_own() {
    let sql = complete("sql", vec![broken("sql", "a"), entry("sql", "b"), broken("sql", "")]);
    let yaml = complete("yaml", vec![entry("yaml", "a"), entry("yaml", "c")]);
    let merged = MergedSources::of(vec![sql, yaml]);
    assert_eq!(
        ["a", "b", "c", "d"].map(|name| outcome(&merged, name)),
        ["broken in sql: its body is not JSON", "found in sql", "found in yaml", "absent"]
    );
    // A bad entry whose name is unknown may be any account.
    let nameless = complete("yaml", accounts("  - {name: a}\n  - {name: '${GONE}'}\n").bad_and_good());
    let merged = MergedSources::of(vec![nameless, complete("sql", vec![entry("sql", "b")])]);
    assert_eq!(
        ["a", "b", "c"].map(|name| outcome(&merged, name)),
        ["found in files", "unknown because of yaml", "unknown because of yaml"]
    );
}

impl SourceSnapshot {
    fn bad_and_good(&self) -> Vec<SourceItem> {
        let good = self.entries.iter().cloned().map(SourceItem::Entry);
        good.chain(self.bad.iter().cloned().map(SourceItem::Bad)).collect()
    }
}

#[test]
fn names_that_differ_only_in_case_are_reported() {
    let items = ["prod", "Prod", "PROD", "x", "É", "é"].map(|name| entry("sql", name));
    let merged = MergedSources::of(vec![complete("sql", items.into())]);
    let twins = case_twins(merged.names());
    assert_eq!(twins.keys().copied().collect::<Vec<_>>(), ["PROD", "Prod", "prod", "É", "é"]);
    assert_eq!(twins["Prod"], ["PROD", "prod"]);
    assert_eq!(outcome(&merged, "Prod"), "found in sql");
}

#[test]
fn debug_of_an_entry_contains_no_credential() {
    let body = json!({"kubeconfigContents": "hunter2", "password": "hunter2"}).to_string();
    let item = read_row(&source("sql"), "a", &body, "1".to_owned());
    assert!(!format!("{item:?}").contains("hunter2"));
}

proptest! {
    /// Whatever the sources are: a name is absent only if all were read completely and none has it, and it is found
    /// only where no earlier source may have it.
    #[test]
    fn lookups_claim_nothing_that_was_not_read(
        sources in proptest::collection::vec((any::<bool>(), proptest::collection::vec((0u8..4, any::<bool>()), 0..4)), 0..4)
    ) {
        let snapshots: Vec<_> = sources.iter().enumerate().map(|(at, (is_complete, rows))| {
            let name = at.to_string();
            let items = rows.iter().map(|(row, good)| {
                if *good { entry(&name, &row.to_string()) } else { broken(&name, &row.to_string()) }
            });
            if *is_complete { complete(&name, items.collect()) } else { partial(&name, items.collect()) }
        }).collect();
        let merged = MergedSources::of(snapshots);
        for row in 0u8..4 {
            let first = sources.iter().position(|(_, rows)| rows.iter().any(|(one, _)| *one == row));
            let before = first.unwrap_or(sources.len());
            let is_sure = sources[..before].iter().all(|(is_complete, _)| *is_complete);
            match merged.lookup(&row.to_string()) {
                NameLookup::Found(entry) => prop_assert!(is_sure && first == entry.source.parse().ok()),
                NameLookup::Broken { source, .. } => prop_assert!(is_sure && first == source.parse().ok()),
                NameLookup::Absent => prop_assert!(is_sure && first.is_none()),
                NameLookup::Unknown { .. } => prop_assert!(!is_sure),
            }
        }
    }
}
