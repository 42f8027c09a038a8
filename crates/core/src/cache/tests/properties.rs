//! Invariants over random clusters, settings and names.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::cache::keys::{MAX_ID_CHARS, ScopeKey, object_id};
use crate::cache::rules::MAX_SCOPES;
use crate::cache::rules::{AccountRules, OperatorRuleFields, OperatorRules, to_wire};
use crate::cache::selection::{ServedKind, select, selects_nothing};
use crate::cache::synthetic::synthetic_objects;
use crate::spec::KubesvcAccountSpec;

fn kind() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "Pod",
        "Service",
        "Event",
        "Ingress",
        "Deployment",
        "Namespace",
        "Rollout",
        "Foo",
    ])
    .prop_map(str::to_owned)
}

fn group() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "",
        "apps",
        "extensions",
        "networking.k8s.io",
        "events.k8s.io",
        "a.example.com",
    ])
    .prop_map(str::to_owned)
}

fn name() -> impl Strategy<Value = String> {
    let qualified = (kind(), group()).prop_map(|(kind, group)| format!("{kind}.{group}"));
    prop_oneof![
        kind().prop_map(|kind| kind.to_uppercase()),
        qualified,
        Just("deploy".to_owned()),
        Just("!".to_owned())
    ]
}

fn names() -> impl Strategy<Value = Vec<String>> {
    prop_oneof![2 => Just(Vec::new()), 3 => prop::collection::vec(name(), 0..6)]
}

prop_compose! {
    fn served()(kind in kind(), group in group(), namespaced in any::<bool>(), listable in prop::bool::weighted(0.9),
                watchable in prop::bool::weighted(0.9)) -> ServedKind {
        let plural = format!("{}s", kind.to_lowercase());
        ServedKind { group, version: "v1".to_owned(), kind, plural, namespaced, listable, watchable }
    }
}

prop_compose! {
    fn operator()(all in prop::bool::weighted(0.3), kinds in prop::option::of(names()),
                  defaults in prop::option::of(names()), omitted in names()) -> OperatorRules {
        OperatorRules::read(&OperatorRuleFields {
            cache_all: all,
            cache_kinds: kinds.as_deref(),
            cache_defaults: defaults.as_deref(),
            cache_omit_kinds: &omitted,
        }).0
    }
}

prop_compose! {
    fn account()(kinds in names(), omit_kinds in names(), namespaces in prop::collection::vec("[a-d]", 0..4),
                 only in prop::option::of(any::<bool>())) -> AccountRules {
        let spec = KubesvcAccountSpec {
            kinds,
            omit_kinds,
            namespaces,
            only_namespaced_resources: only,
            ..KubesvcAccountSpec::default()
        };
        AccountRules::from_spec(&spec, false).0
    }
}

proptest! {
    #[test]
    fn what_is_selected_is_allowed_by_both_lists_and_readable(
        served in prop::collection::vec(served(), 0..20), operator in operator(), account in account()
    ) {
        let selection = select(&served, &operator, &account);
        let synthetic = synthetic_objects(&served, &operator, &account);
        prop_assert!(selection.scopes.len() + synthetic.len() <= MAX_SCOPES);
        if selects_nothing(&operator, &account) {
            prop_assert!(selection.scopes.is_empty() && selection.left_out.is_empty() && synthetic.is_empty());
        }
        let mut rows = BTreeSet::new();
        for selected in &selection.scopes {
            let scope = &selected.scope;
            prop_assert!(operator.allows(&scope.group, &scope.kind), "{scope:?}");
            prop_assert!(account.allows(&scope.group, &scope.kind), "{scope:?}");
            prop_assert!(account.namespaces.includes(&scope.namespace) || !selected.namespaced);
            prop_assert!(selected.namespaced || !account.only_namespaced_resources);
            let is_it = |known: &&ServedKind| known.group == scope.group && known.kind == scope.kind;
            prop_assert!(served.iter().filter(is_it).any(|kind| kind.listable && kind.watchable));
            // No two scopes have rows of one kind in one namespace.
            let kind = crate::cache::native::kind_name(&scope.group, &scope.kind);
            prop_assert!(rows.insert((kind, scope.namespace.clone())), "{scope:?} twice");
            prop_assert!(
                !selection.left_out.iter().any(
                    |left_out| left_out.kind == crate::cache::native::qualified(&scope.group, &scope.kind)
                ),
                "selected and left out: {scope:?}"
            );
        }
    }

    #[test]
    fn what_both_lists_allow_is_selected_or_left_out_with_a_reason(
        served in prop::collection::vec(served(), 0..20), operator in operator(), account in account()
    ) {
        let selection = select(&served, &operator, &account);
        for kind in served.iter().filter(|kind| !crate::cache::native::is_native(&kind.group, &kind.kind)) {
            if operator.allows(&kind.group, &kind.kind) && account.allows(&kind.group, &kind.kind) {
                let qualified = crate::cache::native::qualified(&kind.group, &kind.kind);
                prop_assert!(
                    selection.scopes.iter().any(|selected| {
                        selected.scope.kind == kind.kind && selected.scope.group == kind.group
                    }) || selection.left_out.iter().any(|left_out| left_out.kind == qualified),
                    "{qualified} is nowhere"
                );
            }
        }
    }

    #[test]
    fn rules_survive_the_wire(operator in operator(), account in account()) {
        let wire = to_wire(&operator, &account, &crate::cache::classes::KindClasses::default(), 0);
        prop_assert_eq!(OperatorRules::from_wire(&wire).0, operator);
    }

    #[test]
    fn ids_are_bounded_and_each_objects_own(
        one in object(), other in object()
    ) {
        let id = |(kind, account, namespace, name): &Object| object_id(kind, account, namespace, name);
        prop_assert!(id(&one).chars().count() <= MAX_ID_CHARS);
        prop_assert_eq!(one == other, id(&one) == id(&other));
    }

    #[test]
    fn scope_keys_round_trip(
        namespace in "([a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?)?",
        group in "([a-z]{1,8}(\\.[a-z0-9]{1,8}){0,3})?",
        kind in "[A-Z][A-Za-z0-9]{0,30}"
    ) {
        let key = ScopeKey { namespace, group, kind };
        prop_assert_eq!(key.to_string().parse::<ScopeKey>(), Ok(key));
    }

    #[test]
    fn no_text_makes_the_parser_of_scope_keys_fail(text in ".{0,80}") {
        if let Ok(key) = text.parse::<ScopeKey>() {
            prop_assert_eq!(key.to_string(), text);
        }
    }
}

type Object = (String, String, String, String);

/// Objects whose names are near to each other: short ones of few letters with the characters that matter, and long ones
/// that differ at their ends.
fn object() -> impl Strategy<Value = Object> {
    let text = || {
        prop_oneof![
            3 => "[a:;~é]{0,3}",
            1 => "[ab]{1,2}".prop_map(|end| format!("{}{end}", "x".repeat(251))),
        ]
    };
    (kind(), text(), "[a-b]{0,2}", text())
}
