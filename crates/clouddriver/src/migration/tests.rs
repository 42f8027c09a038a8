//! Selections, plans, and single decisions.

mod decisions;
mod plans;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use kubesvc_core::spinnaker::ClusterSource;
use kubesvc_core::{KubesvcAccount, KubesvcMigrationSpec};

use super::*;
use crate::definition::{ConversionSettings, convert};
use crate::sources::{Completeness, MergedSources, SourceEntry, SourceItem, SourceSnapshot};

fn spec(value: &Value) -> KubesvcMigrationSpec {
    serde_json::from_value(value.clone()).expect("a spec")
}

fn selection(value: &Value) -> MigrationSelection {
    MigrationSelection::compile(&spec(value)).expect("it compiles")
}

const SETTINGS: ConversionSettings<'static> =
    ConversionSettings { namespace: "spinnaker", file_roots: &[], hash_key: b"key" };

fn entry(name: &str, source: &str, definition: &Value) -> Arc<SourceEntry> {
    let definition = definition.as_object().cloned().expect("an object");
    Arc::new(SourceEntry { name: name.to_owned(), definition, source: source.into(), version: String::new() })
}

/// A source with these entries.
fn source(name: &str, entries: &[Arc<SourceEntry>], completeness: &Completeness) -> Arc<SourceSnapshot> {
    let items = entries.iter().map(|entry| SourceItem::Entry(Arc::clone(entry)));
    Arc::new(SourceSnapshot::of(&Arc::from(name), items, completeness.clone()))
}

fn partial() -> Completeness {
    Completeness::Partial("some cannot be read".to_owned())
}

fn unread() -> Completeness {
    Completeness::Unread("it is away".to_owned())
}

/// The account of a planned entry.
fn object(selection: &MigrationSelection, plan: &Plan, name: &str) -> KubesvcAccount {
    let (entry, _) = plan.accounts[name].entry.as_ref().expect("an entry");
    let account = convert(entry, &selection.choice(name), SETTINGS).account;
    account.unwrap_or_else(|refusal| unreachable!("{refusal}")).object
}

/// What a selection assesses of an entry.
fn assessed(selection: &MigrationSelection, entry: &SourceEntry) -> Arc<AssessedEntry> {
    Arc::new(AssessedEntry::of(entry, &selection.choice(&entry.name), SETTINGS, |_| Ok(())))
}

fn good(name: &str, source: &str) -> Arc<SourceEntry> {
    entry(name, source, &json!({"kubeconfigFile": "encryptedFile:k8s!n:x!k:k"}))
}

#[test]
fn patterns_match_whole_names_case_sensitively() {
    for (pattern, matched, unmatched) in [
        ("prod", &["prod"][..], &["prod-1", "my-prod", "PROD", ""][..]),
        ("^account1.*", &["account1", "account12"], &["my-account1"]),
        ("^.*account2.*$", &["account2", "my-account2x"], &["account1"]),
        ("a|ab", &["a", "ab"], &["abc", "b"]),
        ("(?i)prod", &["PROD", "prod"], &["prods"]),
        ("(?x) a b # comment", &["ab"], &["a b", "ab "]),
        ("a\\", &[], &[]),
        ("é+", &["é", "éé"], &["e"]),
        ("(a+)+$", &["aaa"], &["aab"]),
        (".*", &["", "🦀", "a/b"], &[]),
    ] {
        match MigrationSelection::compile(&spec(&json!({"patterns": [pattern]}))) {
            Ok(selection) => {
                assert!(matched.iter().all(|name| selection.selects(name, "s")), "{pattern}");
                assert!(!unmatched.iter().any(|name| selection.selects(name, "s")), "{pattern}");
            }
            Err(_) => assert!(matched.is_empty(), "{pattern}"),
        }
    }
}

#[test]
fn a_pattern_that_does_not_compile_is_named_with_its_field() {
    for (value, field, reason) in [
        (json!({"patterns": ["a", "("]}), "spec.patterns[1]: \"(\"", "unclosed group"),
        (json!({"patterns": ["(?=x)"]}), "spec.patterns[0]", "look-around"),
        (json!({"patterns": ["(?!x).*"]}), "spec.patterns[0]", "look-around"),
        (json!({"patterns": [r"(a)\1"]}), "spec.patterns[0]", "backreferences are not supported"),
        (json!({"patterns": ["a)|(b"]}), "spec.patterns[0]", "unopened group"),
        (json!({"patterns": [""]}), "spec.patterns[0]", "it is empty"),
        (json!({"patterns": ["(((x{100}){100}){100})"]}), "spec.patterns[0]", "exceeds size limit"),
        (json!({"names": ["a"], "excludePatterns": ["*"]}), "spec.excludePatterns[0]", "repetition"),
        (
            json!({"names": ["a"], "zoneRules": [{"pattern": "[", "zoneId": "z"}]}),
            "spec.zoneRules[0].pattern",
            "unclosed",
        ),
        (
            json!({"names": ["a"], "zoneRules": [{"pattern": "a", "zoneId": "z", "kubeconfigFile": "encrypted:noop!x"}]}),
            "spec.zoneRules[0].kubeconfigFile must be a secret reference",
            "parameter 1",
        ),
    ] {
        let error =
            MigrationSelection::compile(&spec(&value)).err().expect("it does not compile").to_string();
        assert!(error.contains(field) && error.contains(reason), "{error}: {field}, {reason}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn matching_takes_linear_time() {
    let selection = selection(&json!({"patterns": ["(a+)+$", "(a|a)*b", "(.*)*x"]}));
    let name = format!("{}!", "a".repeat(254));
    let began = Instant::now();
    for _ in 0..10 {
        assert!(!selection.selects(&name, "s"));
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn an_exclusion_goes_before_pattern_and_name() {
    let selection =
        selection(&json!({"names": ["b", "c"], "patterns": ["a.*"], "excludePatterns": ["a2", "c"]}));
    let selected: Vec<&str> =
        ["a1", "a2", "b", "c", "d"].into_iter().filter(|name| selection.selects(name, "s")).collect();
    assert_eq!(selected, ["a1", "b"]);
}

#[test]
fn the_first_rule_of_a_name_says_its_zone_and_source() {
    let selection = selection(&json!({"names": ["a"], "zoneRules": [
        {"pattern": "a-east", "zoneId": "east", "serviceAccount": true},
        {"pattern": "a-.*", "zoneId": "west", "kubeconfigFile": "/opt/x"},
        {"pattern": "b", "zoneId": "north", "kubeconfigFile": "encryptedFile:k8s!n:a!k:b", "serviceAccount": false},
        {"pattern": "c", "zoneId": "south"},
    ]}));
    let zone = |name: &str| selection.choice(name).zone.map(|zone| zone.to_string());
    let zones = ["a-east", "a-west", "b", "c", "d", "xa-east"].map(zone);
    let expected = ["east", "west", "north", "south"].map(|zone| Some(zone.to_owned()));
    assert_eq!(zones[..4], expected);
    assert_eq!(zones[4..], [None, None]);
    assert!(matches!(selection.choice("a-east").source, Some(ClusterSource::ServiceAccount)));
    assert!(matches!(selection.choice("a-west").source, Some(ClusterSource::File(path)) if path == "/opt/x"));
    assert!(matches!(selection.choice("b").source, Some(ClusterSource::Reference(_))));
    assert!(selection.choice("c").source.is_none());
}

#[test]
fn a_pattern_that_matches_only_parts_of_names_is_warned_of_with_both_counts() {
    let selection = selection(&json!({
        "patterns": ["prod", "dev-.*", "nowhere"], "excludePatterns": ["old"], "zoneRules": [{"pattern": "1$", "zoneId": "z"}],
    }));
    let warnings = selection.partial_matches(&["prod-1", "my-prod", "dev-1", "old-x"]);
    let told: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(
        told[0].starts_with("spec.patterns[0]: \"prod\" matches parts of 2 names and 0 of 4 whole names"),
        "{told:?}"
    );
    assert!(
        told[1].starts_with("spec.excludePatterns[0]") && told[2].starts_with("spec.zoneRules[0].pattern"),
        "{told:?}"
    );
}

#[test]
fn declined_names_are_kept_as_text_and_bounded() {
    let mut declined = DeclinedNames::default();
    assert_eq!(declined.add("a", &"0".repeat(64)), Ok(()));
    assert!(
        declined.has("a", &"0".repeat(64))
            && !declined.has("a", &"1".repeat(64))
            && !declined.has("b", &"0".repeat(64))
    );
    assert_eq!(DeclinedNames::parse(&declined.to_string()), declined);
    assert_eq!(DeclinedNames::parse("x\n\na b\nzz 00\n"), DeclinedNames::default());
    for number in 1..MAX_DECLINED {
        declined.add(&number.to_string(), &"0".repeat(64)).expect("there is room");
    }
    assert!(declined.is_full());
    assert_eq!(declined.add("more", &"0".repeat(64)), Err(DeclinedFull));
    assert_eq!(declined.add("a", &"1".repeat(64)), Ok(()), "one that is there may change");
    let text = declined.to_string();
    assert!(text.len() < 400_000, "{} bytes do not fit into a ConfigMap beside others", text.len());
    assert_eq!(DeclinedNames::parse(&text), declined);
}

#[test]
fn the_scanner_never_pauses_and_goes_on_after_a_minute() {
    let rules = scanner_rules(572);
    assert_eq!((rules.wave_size, rules.soak, rules.wave_timeout), (Share::Count(572), 0, Some(60)));
    assert!(rules.activate && !rules.max_failed.is_exceeded_by(100, 100));
}
