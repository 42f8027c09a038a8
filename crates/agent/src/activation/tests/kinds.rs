//! Selection of kinds.

use crate::activation::discovery::chosen_kinds;
use kubesvc_core::cache::selection::ServedKind;
use kubesvc_core::wire::ops::AccountSpec;

fn served(group: &str, kind: &str, namespaced: bool, verbs: &str) -> ServedKind {
    ServedKind {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: format!("{}s", kind.to_lowercase()),
        namespaced,
        listable: verbs.contains("list"),
        watchable: verbs.contains("watch"),
    }
}

fn all() -> Vec<ServedKind> {
    vec![
        served("", "Pod", true, "list watch"),
        served("", "Service", true, "list watch"),
        served("", "Namespace", false, "list watch"),
        served("", "ConfigMap", true, "list watch"),
        served("serving.knative.dev", "Service", true, "list watch"),
        served("batch", "Job", true, "list"),
        served("argoproj.io", "Rollout", true, "list watch"),
    ]
}

/// `kind.group: reason` of each selected kind that is served.
fn of(spec: &AccountSpec) -> Vec<String> {
    let kinds = chosen_kinds(&all(), spec);
    let told = kinds.into_iter().filter(|kind| kind.reason != "the cluster does not serve it").map(|kind| {
        let scope = kind.scope.unwrap_or_default();
        format!("{}.{}: {}", scope.kind, scope.group, kind.reason)
    });
    told.collect()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn the_default_kinds_are_those_of_kubernetes() {
    let chosen = of(&AccountSpec::default());
    assert_eq!(chosen, ["Service.: ", "Pod.: ", "Job.batch: it cannot be watched", "Namespace.: "]);
}

#[test]
fn named_kinds_replace_the_default_ones() {
    let kinds = names(&["pod", "SERVICE", "configMap", "rollout", "Service.serving.knative.dev", "Pod"]);
    let chosen = of(&AccountSpec { kinds, ..AccountSpec::default() });
    let expected =
        ["Pod.: ", "Service.: ", "ConfigMap.: ", "Rollout.argoproj.io: ", "Service.serving.knative.dev: "];
    assert_eq!(chosen, expected);
}

#[test]
fn a_named_kind_that_is_not_served_is_reported() {
    let kinds = names(&["Widget.example.com"]);
    let chosen = chosen_kinds(&all(), &AccountSpec { kinds, ..AccountSpec::default() });
    assert_eq!(chosen[0].reason, "the cluster does not serve it");
    assert_eq!(chosen[0].scope.as_ref().map(|scope| scope.group.as_str()), Some("example.com"));
}

#[test]
fn omitted_and_cluster_wide_kinds_are_left_out_with_a_reason() {
    let spec = AccountSpec {
        omit_kinds: names(&["pod", "Job.other.group"]),
        only_namespaced_resources: true,
        ..AccountSpec::default()
    };
    assert_eq!(
        of(&spec),
        [
            "Service.: ",
            "Pod.: omitKinds names it",
            "Job.batch: it cannot be watched",
            "Namespace.: it is cluster-wide, and onlyNamespacedResources is set"
        ]
    );
}

/// With other agents, one of two API groups hid the other if both had a kind of the same name.
#[test]
fn kinds_of_one_name_in_two_groups_are_two_kinds() {
    let kinds = names(&["Service", "Service.serving.knative.dev"]);
    let expected = ["Service.: ", "Service.serving.knative.dev: "];
    assert_eq!(of(&AccountSpec { kinds: kinds.clone(), ..AccountSpec::default() }), expected);
    let reversed = kinds.into_iter().rev().collect();
    let reversed = of(&AccountSpec { kinds: reversed, ..AccountSpec::default() });
    assert_eq!(reversed, ["Service.serving.knative.dev: ", "Service.: "]);
    let omit_kinds = names(&["Service.serving.knative.dev"]);
    let others = of(&AccountSpec { omit_kinds, ..AccountSpec::default() });
    assert!(others.contains(&"Service.: ".to_owned()), "the other one stays: {others:?}");
}
