//! Settings: what is found in them, and their way over the wire.

use super::{account, checked_account, exposed, operator_all, operator_named, operator_omitting, texts};
use crate::cache::classes::KindClasses;
use crate::cache::findings::{Finding, Setting};
use crate::cache::rules::{
    AccountRules, ChosenKinds, DEFAULT_AUDIT_MS, Namespaces, OperatorRuleFields, OperatorRules, audit_ms,
    to_wire,
};
use crate::spec::{CustomResourceTreatment, KubesvcAccountSpec, Scope, SpinnakerKind};
use crate::wire::ops;

/// What an agent is sent of a spec's settings.
fn sent(spec: &KubesvcAccountSpec) -> ops::AccountSpec {
    let definitions = spec.custom_resource_definitions.iter().map(|exposed| ops::CustomResourceDefinition {
        kind: exposed.kind.clone(),
        cluster_scoped: exposed.scope == Some(Scope::Cluster),
    });
    ops::AccountSpec {
        namespaces: spec.namespaces.clone(),
        omit_namespaces: spec.omit_namespaces.clone(),
        kinds: spec.kinds.clone(),
        omit_kinds: spec.omit_kinds.clone(),
        only_namespaced_resources: spec.only_namespaced_resources.unwrap_or_default(),
        custom_resource_definitions: definitions.collect(),
        ..ops::AccountSpec::default()
    }
}

#[test]
fn rules_are_the_same_on_both_sides_of_the_wire() {
    let spec = KubesvcAccountSpec {
        kinds: texts(&["pod", "Rollout.argoproj.io"]),
        namespaces: texts(&["b", "a", "b"]),
        only_namespaced_resources: Some(true),
        custom_resource_definitions: vec![exposed("Rollout.argoproj.io", Some(Scope::Cluster))],
        only_spinnaker_managed: Some(true),
        max_resumable_resource_age_ms: Some(60_000),
        ..KubesvcAccountSpec::default()
    };
    let (account, findings) = AccountRules::from_spec(&spec, false);
    assert_eq!(findings, []);
    for operator in [
        OperatorRules::default(),
        operator_all(),
        operator_named(&["Pod", "deploy"], &["Job"]),
        operator_named(&[], &[]),
        operator_omitting(&["Event"]),
    ] {
        let wire = to_wire(&operator, &account, &KindClasses::default(), 0);
        assert_eq!(OperatorRules::from_wire(&wire).0, operator);
        assert_eq!(AccountRules::from_wire(&sent(&spec), &wire).0, account);
    }
}

#[test]
fn an_account_that_resumes_nothing_is_not_sent_the_default() {
    let account = account(|spec| spec.max_resumable_resource_age_ms = Some(0));
    let wire = to_wire(&OperatorRules::default(), &account, &KindClasses::default(), 0);
    assert_eq!(wire.max_resumable_age_ms, 1);
    assert_eq!(
        (audit_ms(&wire), audit_ms(&ops::CachingRules { audit_ms: 5, ..wire })),
        (DEFAULT_AUDIT_MS, 5)
    );
}

#[test]
fn cache_kinds_come_before_cache_defaults_and_an_empty_list_is_set() {
    let (kinds, defaults) = (texts(&["Pod"]), texts(&["Job"]));
    let read = |cache_kinds, cache_defaults| {
        OperatorRules::read(&OperatorRuleFields {
            cache_kinds,
            cache_defaults,
            ..OperatorRuleFields::default()
        })
        .0
    };
    let both = read(Some(kinds.as_slice()), Some(defaults.as_slice()));
    assert!(both.allows("", "Pod") && !both.allows("batch", "Job"));
    assert!(read(None, Some(defaults.as_slice())).allows("batch", "Job"));
    assert_eq!(read(None, None).chosen(), &ChosenKinds::Default);
    assert!(
        !read(Some(&[]), Some(defaults.as_slice())).allows("batch", "Job"),
        "an empty list caches nothing"
    );
}

#[test]
fn contradictions_of_the_operator_are_found() {
    let (kinds, omitted) = (texts(&["Pod", "deploy", "Job.batch"]), texts(&["deployment", "Job.other.io"]));
    let settings = OperatorRuleFields {
        cache_kinds: Some(&kinds),
        cache_omit_kinds: &omitted,
        ..OperatorRuleFields::default()
    };
    let (rules, findings) = OperatorRules::read(&settings);
    let messages: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            "kubesvc.cache.cacheKinds names \"deploy\", and kubesvc.cache.cacheOmitKinds omits it: it is not cached; \
          remove one of the two"
        ]
    );
    assert!(!rules.allows("apps", "Deployment") && rules.allows("batch", "Job"));
    let (rules, findings) = OperatorRules::read(&OperatorRuleFields { cache_all: true, ..settings });
    assert_eq!(rules.chosen(), &ChosenKinds::All);
    assert!(
        matches!(findings.as_slice(), [Finding::NoEffect { setting: Setting::CacheKinds, .. }]),
        "{findings:?}"
    );
}

#[test]
fn contradictions_of_an_account_are_found() {
    let (rules, findings) = checked_account(|spec| {
        spec.kinds = texts(&["Pod", "Job"]);
        spec.omit_kinds = texts(&["Job"]);
        spec.namespaces = texts(&["a", "b"]);
        spec.omit_namespaces = texts(&["b"]);
        spec.custom_resource_definitions = vec![exposed("Rollout.argoproj.io", None)];
    });
    let messages: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            "kinds and omitKinds exclude each other: remove one of them",
            "namespaces and omitNamespaces exclude each other: remove one of them",
            "customResourceDefinitions has no effect: without onlyNamespacedResources the cluster's own definitions \
             are cached",
        ]
    );
    assert!(rules.allows("", "Pod") && !rules.allows("batch", "Job"), "both lists take effect");
    assert_eq!(rules.namespaces, Namespaces::Only(texts(&["a"])));
    let (_, findings) = checked_account(|spec| spec.only_namespaced_resources = Some(true));
    assert_eq!(
        findings[0].to_string(),
        "onlyNamespacedResources needs namespaces: list the namespaces to watch"
    );
}

#[test]
fn a_list_without_a_valid_name_chooses_nothing_rather_than_everything() {
    let (rules, findings) = checked_account(|spec| {
        spec.namespaces = texts(&["Not-One", "../etc"]);
        spec.kinds = texts(&["pods/log"]);
    });
    assert_eq!(rules.namespaces, Namespaces::Only(Vec::new()));
    assert!(!rules.allows("", "Pod"));
    assert_eq!(findings.len(), 3);
    assert!(findings.iter().all(Finding::is_error));
}

#[test]
fn definitions_need_a_kind_and_a_group() {
    let (rules, findings) = checked_account(|spec| {
        spec.only_namespaced_resources = Some(true);
        spec.namespaces = texts(&["a"]);
        spec.custom_resource_definitions = ["Rollout", "Rollout.argoproj.io", "rollout.ARGOPROJ.io", "a b.c"]
            .map(|kind| exposed(kind, None))
            .to_vec();
    });
    assert_eq!(rules.custom_resource_definitions.len(), 1);
    assert_eq!(
        findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "customResourceDefinitions: \"Rollout\" has no API group: write Kind.group",
            "customResourceDefinitions: \"a b.c\" is no kind: write Kind or Kind.group, such as Deployment or \
             Rollout.argoproj.io"
        ]
    );
}

#[test]
fn an_accounts_own_word_on_managed_objects_overrides_the_operators() {
    for (own, default, expected) in
        [(None, true, true), (None, false, false), (Some(false), true, false), (Some(true), false, true)]
    {
        let spec = KubesvcAccountSpec { only_spinnaker_managed: own, ..KubesvcAccountSpec::default() };
        assert_eq!(AccountRules::from_spec(&spec, default).0.only_spinnaker_managed, expected);
    }
}

fn treated(kind: &str, class: Option<SpinnakerKind>) -> CustomResourceTreatment {
    CustomResourceTreatment {
        kubernetes_kind: kind.to_owned(),
        spinnaker_kind: class,
        ..CustomResourceTreatment::default()
    }
}

#[test]
fn custom_resources_override_one_another_and_clouddrivers_table() {
    use SpinnakerKind::{Configs, Instances, LoadBalancers, ServerGroupManagers, ServerGroups, Unclassified};
    let of_operator = [
        treated("Rollout.argoproj.io", Some(ServerGroups)),
        treated("Foo.example.com", Some(Configs)),
        treated("Pod", Some(Instances)),
    ];
    let of_account = [
        treated("rollout.argoproj.io", Some(ServerGroupManagers)),
        treated("Foo.example.com", None),
        treated("Widget", Some(Configs)),
    ];
    let (classes, findings) = KindClasses::read(&[
        (Setting::RuntimeCustomResources, &of_operator),
        (Setting::CustomResources, &of_account),
    ]);
    assert_eq!(findings[0].to_string(), "customResources: \"Widget\" has no API group: write Kind.group");
    for (kind, class) in [
        ("Rollout.argoproj.io", ServerGroupManagers),
        ("Foo.example.com", Unclassified),
        ("replicaSet", ServerGroups),
        ("ingress", LoadBalancers),
        ("Lease.coordination.k8s.io", Unclassified),
    ] {
        assert_eq!(classes.class_of(kind), class, "{kind}");
    }
    assert_eq!(classes.mapping(), "1;rollout.argoproj.io=serverGroupManagers");
}
