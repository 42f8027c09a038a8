//! Digests that are stored and compared by later releases. If one of these tests fails, every agent lists everything
//! anew after an upgrade.

use super::{account, texts};
use crate::cache::classes::KindClasses;
use crate::cache::fingerprints::shape;
use crate::cache::moniker::META_KEYS;
use crate::cache::object_filter::ObjectFilter;
use crate::cache::object_row::RowNaming;
use crate::cache::rules::AccountRules;
use crate::cache::selection::SelectedScope;
use crate::wire::{common, events};

fn scope(group: &str, kind: &str, namespace: &str) -> SelectedScope {
    let scope = common::Scope {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: String::new(),
        namespace: namespace.to_owned(),
    };
    SelectedScope { scope, namespaced: true }
}

#[test]
fn shapes_are_stable_across_releases() {
    let keys = META_KEYS.map(str::to_owned).to_vec();
    let deployments = scope("apps", "Deployment", "").scope;
    assert_eq!(shape(&deployments, 1, &keys, "1"), "3cd21cd81f6d5c0e");
    let rollouts = scope("argoproj.io", "Rollout", "").scope;
    let mapping = "1;rollout.argoproj.io=serverGroups";
    assert_eq!(shape(&rollouts, 1, &keys, mapping), "e99b7900bddfa14e");
}

#[test]
fn a_shape_changes_with_what_a_row_is_made_of() {
    let keys = META_KEYS.map(str::to_owned).to_vec();
    let deployments = scope("apps", "Deployment", "").scope;
    let first = shape(&deployments, 1, &keys, "1");
    let other_version = common::Scope { version: "v2".to_owned(), ..deployments.clone() };
    for (what, other) in [
        ("API version", shape(&other_version, 1, &keys, "1")),
        ("splice rules", shape(&deployments, 2, &keys, "1")),
        ("meta keys", shape(&deployments, 1, &keys[1..], "1")),
        ("mapping", shape(&deployments, 1, &keys, "2")),
        ("own class", shape(&deployments, 1, &keys, "1;deployment=configs")),
    ] {
        assert_ne!(other, first, "{what}");
    }
    let reversed: Vec<String> = keys.iter().rev().cloned().collect();
    assert_eq!(shape(&deployments, 1, &reversed, "1"), first, "the order of keys is none");
    assert_eq!(shape(&deployments, 1, &keys, "1;foo.example.com=configs"), first, "another kind's class");
    let in_namespace = common::Scope { namespace: "a".to_owned(), ..deployments };
    assert_eq!(shape(&in_namespace, 1, &keys, "1"), first);
}

#[test]
fn filters_are_stable_across_releases() {
    let everything = ObjectFilter::of(&AccountRules::default(), &scope("", "Pod", "")).digest();
    assert_eq!(everything, "ac34754227e3ef66");
    let some = account(|spec| {
        spec.omit_namespaces = texts(&["b", "a"]);
        spec.only_spinnaker_managed = Some(true);
    });
    assert_eq!(ObjectFilter::of(&some, &scope("", "Pod", "")).digest(), "6fd51fa5361b4b25");
}

/// What rows are made of. If this fails on purpose, `MAPPING_VERSION` in `classes.rs` needs another value: stored rows
/// are made anew only if it has.
#[test]
fn rows_of_one_mapping_version_are_made_in_one_way() {
    let classes = KindClasses::default();
    assert_eq!(classes.mapping(), "1");
    let rows =
        [("apps", "Deployment", "web-main-v001"), ("", "Pod", "web-0"), ("a.example.com", "Foo", "x:y")].map(
            |(group, kind, name)| {
                let naming =
                    RowNaming::new("prod", &scope(group, kind, "").scope, &classes).expect("a good scope");
                let owner = events::OwnerReference {
                    group: "apps".to_owned(),
                    kind: "ReplicaSet".to_owned(),
                    name: "web".to_owned(),
                    ..events::OwnerReference::default()
                };
                let event = events::Event {
                    namespace: "default".to_owned(),
                    name: name.to_owned(),
                    rv: "1".to_owned(),
                    hash: vec![0; 32],
                    owners: vec![owner],
                    ..events::Event::default()
                };
                let row = naming.object_row(&event).expect("a good event");
                let application = row.application.unwrap_or_default();
                format!("{} {} {application} {}", row.id, row.kind, row.relations.digest)
            },
        );
    assert_eq!(
        rows,
        [
            "kubernetes.v2:infrastructure:deployment:prod:default:web-main-v001 deployment web afed36acbfb0cdb0312a72e0829b229d",
            "kubernetes.v2:infrastructure:pod:prod:default:web-0 pod web f3912b7e3a15c664fbb4dcfe6e7fc03a",
            "kubernetes.v2:infrastructure:Foo.a.example.com:prod:default:x;y Foo.a.example.com  68f393d7bc0489f31272c8faac921225",
        ]
    );
}
