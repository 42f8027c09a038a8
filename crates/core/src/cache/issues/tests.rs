use proptest::prelude::*;

use super::*;
use crate::spec::CustomResourceTreatment;

fn issues(of: &[(&str, &str, &str)]) -> BTreeSet<CacheIssue> {
    of.iter().map(|(group, kind, why)| CacheIssue::new(group, kind, why)).collect()
}

fn spec(kinds: &[&str], omit_kinds: &[&str]) -> KubesvcAccountSpec {
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    KubesvcAccountSpec { kinds: list(kinds), omit_kinds: list(omit_kinds), ..KubesvcAccountSpec::default() }
}

#[test]
fn summary_names_kinds_with_their_groups_in_order_and_counts_the_rest() {
    assert_eq!(summary(&BTreeSet::new()), None);
    let two =
        issues(&[("", "Secret", "no right"), ("argoproj.io", "Rollout", "the cluster does not serve it")]);
    assert_eq!(
        summary(&two).as_deref(),
        Some("Rollout.argoproj.io: the cluster does not serve it; Secret: no right")
    );
    let kinds: Vec<_> = (0..20).map(|nth| format!("Kind{nth:02}")).collect();
    let why = "the credential may not list and watch it";
    let many = issues(&kinds.iter().map(|kind| ("apps", kind.as_str(), why)).collect::<Vec<_>>());
    let text = summary(&many).expect("some are left out");
    assert!(
        text.starts_with("Kind00.apps: the credential may not list and watch it; Kind01.apps: "),
        "{text}"
    );
    assert!(text.ends_with("; and 16 more"), "{text}");
}

#[test]
fn failures_of_a_class_read_the_same_whatever_the_server_said() {
    for class in [Class::Forbidden, Class::Timeout, Class::Unreachable, Class::Auth, Class::NotFound] {
        assert_eq!(why_unread(class, "after 3 s"), why_unread(class, "after 4 s"), "{class:?}");
    }
    assert_eq!(why_unread(Class::Discovery, "it is odd"), "it is odd");
    let reachable = [Class::Forbidden, Class::Auth, Class::NotFound, Class::Internal];
    assert!(!reachable.into_iter().any(is_out_of_reach));
}

#[test]
fn text_of_an_agent_becomes_one_short_line() {
    let issue = CacheIssue::new("", "Pod\u{7}", &format!("it\nsaid\t\u{1b}[31m {}", "x".repeat(1000)));
    assert_eq!(issue.kind, "Pod");
    assert!(issue.why.starts_with("it said [31m xxx") && issue.why.len() <= MAX_REASON_BYTES, "{issue:?}");
}

#[test]
fn condition_tells_of_contradicting_settings_and_of_what_the_agent_leaves_out() {
    assert_eq!(condition_message(&KubesvcAccountSpec::default(), None), None);
    let plain = spec(&["Pod"], &[]);
    assert_eq!(condition_message(&plain, None), None, "what a setting leaves out on purpose is no news");
    assert_eq!(condition_message(&plain, Some("Pod: no right")).as_deref(), Some("Pod: no right"));
    let both = spec(&["Pod"], &["Secret"]);
    assert_eq!(
        condition_message(&both, Some("Pod: no right")).as_deref(),
        Some("kinds and omitKinds exclude each other: remove one of them; Pod: no right")
    );
    let many: Vec<_> = (0..9).map(|nth| format!("no kind {nth}")).collect();
    let many = spec(&many.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let text = condition_message(&many, None).expect("they are wrong");
    assert!(text.ends_with("and 6 more about its settings") && text.lines().count() == 1, "{text}");
}

#[test]
fn condition_tells_of_custom_resources_that_count_as_nothing() {
    let custom = |kinds: &[&str]| {
        let treatment = |kind: &&str| CustomResourceTreatment {
            kubernetes_kind: (*kind).to_owned(),
            ..CustomResourceTreatment::default()
        };
        KubesvcAccountSpec {
            custom_resources: kinds.iter().map(treatment).collect(),
            ..KubesvcAccountSpec::default()
        }
    };
    assert_eq!(condition_message(&custom(&["Rollout.argoproj.io", "deployment"]), None), None);
    assert_eq!(
        condition_message(&custom(&["Rollout", "a b", "Rollout.argoproj.io"]), Some("Pod: no right"))
            .as_deref(),
        Some(
            "customResources: \"Rollout\" has no API group: write Kind.group; customResources: \"a b\" is no kind: \
             write Kind or Kind.group, such as Deployment or Rollout.argoproj.io; Pod: no right"
        )
    );
}

proptest! {
    #[test]
    fn summary_is_bounded_and_depends_on_the_set_alone(
        kinds in prop::collection::vec(("[A-Z][a-zA-Zäß]{0,90}", ".{0,300}"), 1..40),
    ) {
        let set: BTreeSet<_> = kinds.iter().map(|(kind, why)| CacheIssue::new("g.io", kind, why)).collect();
        let again: BTreeSet<_> = kinds.iter().rev().map(|(kind, why)| CacheIssue::new("g.io", kind, why)).collect();
        let text = summary(&set).expect("there is at least one");
        prop_assert!(text.len() <= MAX_SUMMARY_BYTES, "{} bytes", text.len());
        prop_assert_eq!(text.lines().count(), 1);
        prop_assert_eq!(summary(&again), Some(text.clone()));
        let first = set.first().expect("it is not empty");
        prop_assert!(text.starts_with(&first.kind) || text.ends_with('…') || text.contains("…; and "));
    }
}
