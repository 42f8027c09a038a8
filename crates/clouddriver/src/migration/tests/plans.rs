//! What a dry run shows.

use super::*;
use crate::sources::Shadowed;

fn planned(
    selection: &MigrationSelection,
    sources: &[(&str, &[Arc<SourceEntry>], Completeness)],
    existing: &[&str],
    declined: &DeclinedNames,
) -> Plan {
    let snapshots = sources.iter().map(|(name, entries, completeness)| source(name, entries, completeness));
    let sources = MergedSources::of(snapshots.collect());
    let assess = |entry: &Arc<SourceEntry>| assessed(selection, entry);
    plan(selection, &sources, assess, |name| existing.contains(&name), declined, 7)
}

fn said(planned: &PlannedAccount) -> &AssessedEntry {
    &planned.entry.as_ref().expect("an entry").1
}

fn outcomes(plan: &Plan) -> Vec<(&str, &'static str)> {
    plan.accounts.iter().map(|(name, planned)| (name.as_str(), planned.outcome.as_str())).collect()
}

#[test]
fn each_account_has_its_outcome() {
    let selection = selection(&json!({
        "patterns": ["a-.*"], "names": ["gone", "b"], "zoneRules": [{"pattern": "a-new", "zoneId": "east"}],
    }));
    let refused = entry("a-own", "sql", &json!({"serviceAccount": true, "cacheThreads": 2}));
    let sql = [
        good("a-new", "sql"),
        good("a-there", "sql"),
        good("a-declined", "sql"),
        refused,
        good("other", "sql"),
    ];
    let yaml = [good("a-new", "yaml"), good("b", "yaml"), good("other", "yaml")];
    let mut declined = DeclinedNames::default();
    let open = planned(&selection, &[("sql", &sql, Completeness::Complete)], &[], &declined);
    let hash = open.accounts["a-declined"].hash().expect("an entry").to_owned();
    declined.add("a-declined", &hash).expect("there is room");
    let sources: [(&str, &[Arc<SourceEntry>], Completeness); 2] =
        [("sql", &sql, Completeness::Complete), ("yaml", &yaml, Completeness::Complete)];
    let plan = planned(&selection, &sources, &["a-there"], &declined);
    assert_eq!(
        outcomes(&plan),
        [
            ("a-declined", "declined"),
            ("a-new", "create"),
            ("a-own", "refused"),
            ("a-there", "exists"),
            ("b", "create"),
            ("gone", "missing"),
        ]
    );
    let new = &plan.accounts["a-new"];
    assert_eq!(
        (new.zone().map(ToString::to_string).as_deref(), said(new).credential),
        (Some("east"), Some("reference"))
    );
    let own = &plan.accounts["a-own"];
    assert!(matches!(&own.outcome, PlanOutcome::Refused { reason: "NotPortable", .. }), "{own:?}");
    assert_eq!(said(own).report.without_effect.named, ["cacheThreads"]);
    let (name, source, by) = ("a-new".to_owned(), "yaml".into(), "sql".into());
    let shadowed = Shadowed { name, source, by };
    assert_eq!(plan.shadowed, [shadowed], "those that are not selected are not shown");
    assert_eq!(plan.complete_read(), Some(7));
}

#[test]
fn a_declined_account_is_migrated_again_if_its_entry_changes_or_it_is_listed() {
    let before = [good("a", "sql")];
    let after = [entry("a", "sql", &json!({"kubeconfigFile": "encryptedFile:k8s!n:y!k:k"}))];
    let by_pattern = selection(&json!({"patterns": ["a"]}));
    let by_name = selection(&json!({"names": ["a"]}));
    let mut declined = DeclinedNames::default();
    let plan = planned(&by_pattern, &[("sql", &before, Completeness::Complete)], &[], &declined);
    declined.add("a", plan.accounts["a"].hash().expect("an entry")).expect("there is room");
    for (selection, entries, outcome) in
        [(&by_pattern, &before, "declined"), (&by_pattern, &after, "create"), (&by_name, &before, "create")]
    {
        let plan = planned(selection, &[("sql", entries, Completeness::Complete)], &[], &declined);
        assert_eq!(outcomes(&plan), [("a", outcome)]);
    }
}

#[test]
fn what_an_unread_source_may_override_is_undecided() {
    let selection = selection(&json!({"patterns": ["a.*"], "names": ["gone"]}));
    let (first, second) =
        ([good("a1", "first")], [good("a1", "second"), good("a2", "second"), good("a3", "second")]);
    let with = |completeness| {
        let sources: [(&str, &[Arc<SourceEntry>], Completeness); 2] =
            [("first", &first, completeness), ("second", &second, Completeness::Complete)];
        planned(&selection, &sources, &["a3"], &DeclinedNames::default())
    };
    let without = with(unread());
    assert_eq!(
        outcomes(&without),
        [("a1", "create"), ("a2", "undecided"), ("a3", "exists"), ("gone", "undecided")],
        "an earlier source that has the name decides it"
    );
    assert_eq!((without.unread_source(), without.complete_read()), (Some("first"), None));
    assert_eq!((without.is_in_sources("a1"), without.is_in_sources("x")), (Some(true), None));
    let partial = with(partial());
    assert_eq!(outcomes(&partial)[1], ("a2", "undecided"), "what it leaves out may have the name");
    assert_eq!(partial.unread_source(), Some("first"));
    assert_eq!(partial.is_in_sources("x"), None, "a source that leaves entries out says nothing of others");
    assert_eq!(with(Completeness::Complete).is_in_sources("x"), Some(false));
}

#[test]
fn an_account_is_that_of_the_source_that_clouddriver_uses() {
    let selection = selection(&json!({"patterns": ["a.*"], "sources": ["yaml", "typo"]}));
    let (sql, yaml) = ([good("a1", "sql")], [good("a1", "yaml"), good("a2", "yaml")]);
    let sources: [(&str, &[Arc<SourceEntry>], Completeness); 2] =
        [("sql", &sql, Completeness::Complete), ("yaml", &yaml, Completeness::Complete)];
    let plan = planned(&selection, &sources, &[], &DeclinedNames::default());
    assert_eq!(outcomes(&plan), [("a2", "create")]);
    assert!(
        plan.warnings
            .iter()
            .any(|warning| warning.contains("\"a1\" is that of source \"sql\", and not of \"yaml\"")),
        "{:?}",
        plan.warnings
    );
    assert!(plan.warnings.iter().any(|warning| warning.contains("\"typo\"")), "{:?}", plan.warnings);
}

#[test]
fn bad_entries_hide_no_others() {
    let selection = selection(&json!({"patterns": [".*"]}));
    let entries = [
        good("", "sql"),
        good("Prod", "sql"),
        good("prod", "sql"),
        entry("kinds", "sql", &json!({"kinds": ["a"], "omitKinds": ["b"], "kubeconfigFile": "/x"})),
        good(&"x".repeat(256), "sql"),
        entry("file", "sql", &json!({"kubeconfigFile": "/x"})),
    ];
    let plan =
        planned(&selection, &[("sql", &entries, Completeness::Complete)], &[], &DeclinedNames::default());
    let refused = plan.accounts.values().filter(|planned| planned.outcome.as_str() == "refused").count();
    assert_eq!((plan.accounts.len(), refused), (6, 3));
    assert!(plan.accounts["Prod"].warnings[0].contains("differs only in case from \"prod\""));
    assert_eq!(said(&plan.accounts["file"]).credential, Some("file on Clouddriver"));
}
