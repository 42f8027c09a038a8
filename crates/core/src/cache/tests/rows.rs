//! What a row says of an object: moniker, relations, columns.

use crate::cache::classes::KindClasses;
use crate::cache::findings::Setting;
use crate::cache::moniker::Moniker;
use crate::cache::object_row::{NamedObject, RowError, RowNaming};
use crate::cache::relations::{MAX_OWNERS, Relation};
use crate::spec::{CustomResourceTreatment, SpinnakerKind};
use crate::wire::{common, events};

fn moniker(kind: &str, name: &str, meta: &[(&'static str, &'static str)]) -> Moniker {
    Moniker::derive(kind, name, |key| meta.iter().find(|(known, _)| *known == key).map(|(_, value)| *value))
}

#[test]
fn annotations_name_all_parts() {
    let meta = [
        ("moniker.spinnaker.io/application", "app"),
        ("moniker.spinnaker.io/cluster", "deployment web"),
        ("moniker.spinnaker.io/stack", "prod"),
        ("moniker.spinnaker.io/detail", "\"blue\""),
        ("moniker.spinnaker.io/sequence", "7"),
        ("app.kubernetes.io/name", "label"),
    ];
    let expected = Moniker {
        application: Some("app".to_owned()),
        cluster: Some("deployment web".to_owned()),
        stack: Some("prod".to_owned()),
        detail: Some("blue".to_owned()),
        sequence: Some(7),
    };
    assert_eq!(moniker("deployment", "web-main-v001", &meta), expected);
}

#[test]
fn the_label_comes_next_and_then_the_name() {
    let by_label = moniker("deployment", "web-main-v012", &[("app.kubernetes.io/name", "label")]);
    assert_eq!(
        (by_label.application.as_deref(), by_label.cluster.as_deref(), by_label.sequence),
        (Some("label"), Some("web-main"), Some(12))
    );
    for (name, application, cluster, sequence) in [
        ("web", Some("web"), Some("web"), None),
        ("web-main-blue-1", Some("web"), Some("web-main-blue-1"), None),
        ("web-v123", Some("web"), Some("web"), Some(123)),
        ("web-v12", Some("web"), Some("web-v12"), None),
        ("web-v1234", Some("web"), Some("web-v1234"), None),
        ("kube-root-ca.crt", Some("kube"), Some("kube-root-ca.crt"), None),
        ("-web", None, None, None),
        ("-v001", None, None, None),
        ("system:node", None, None, None),
        ("", None, None, None),
    ] {
        let parsed = moniker("configMap", name, &[]);
        assert_eq!(
            (parsed.application.as_deref(), parsed.cluster.as_deref(), parsed.sequence),
            (application, cluster, sequence),
            "{name:?}"
        );
        assert_eq!((parsed.stack, parsed.detail), (None, None), "the name does not tell these");
    }
}

#[test]
fn a_replica_sets_revision_is_its_sequence() {
    let meta = [("deployment.kubernetes.io/revision", "4")];
    assert_eq!(moniker("replicaSet", "web-5d8f", &meta).sequence, Some(4));
    assert_eq!(moniker("deployment", "web-v002", &meta).sequence, Some(2));
}

#[test]
fn unusable_values_count_as_absent() {
    for value in ["", "a\nb", "\"", "\"broken\\\"", &"x".repeat(256)] {
        let value: &'static str = value.to_owned().leak();
        let parsed = moniker("pod", "web-1", &[("moniker.spinnaker.io/application", value)]);
        let expected = if value == "\"" { "\"" } else { "web" };
        assert_eq!(parsed.application.as_deref(), Some(expected), "{value:?}");
    }
    assert_eq!(moniker("pod", "web", &[("moniker.spinnaker.io/sequence", "many")]).sequence, None);
}

fn scope(group: &str, kind: &str, namespace: &str) -> common::Scope {
    common::Scope {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: String::new(),
        namespace: namespace.to_owned(),
    }
}

fn owner(group: &str, kind: &str, name: &str, cluster_scoped: bool) -> events::OwnerReference {
    events::OwnerReference {
        group: group.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        cluster_scoped,
        ..events::OwnerReference::default()
    }
}

fn event(namespace: &str, name: &str) -> events::Event {
    events::Event {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: "u-1".to_owned(),
        rv: "12".to_owned(),
        hash: vec![0xab; 32],
        ..events::Event::default()
    }
}

fn row(scope: &common::Scope, event: &events::Event) -> NamedObject {
    let naming = RowNaming::new("prod", scope, &KindClasses::default()).expect("a good scope");
    naming.object_row(event).expect("a good event")
}

fn ends(relations: &[Relation]) -> Vec<(&str, &str, &str)> {
    let ends = relations
        .iter()
        .map(|relation| (relation.to_id.as_str(), relation.from_type.as_str(), relation.to_type.as_str()));
    ends.collect()
}

#[test]
fn a_server_groups_row_has_application_cluster_and_owners() {
    let mut event = event("default", "web-5d8f");
    event.meta =
        [("moniker.spinnaker.io/application", "app"), ("moniker.spinnaker.io/cluster", "deployment web")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    event.owners = vec![
        owner("apps", "Deployment", "web", false),
        owner("", "Node", "n1", true),
        owner("apps", "Deployment", "web", false),
    ];
    let row = row(&scope("apps", "ReplicaSet", ""), &event);
    assert_eq!(row.id, "kubernetes.v2:infrastructure:replicaSet:prod:default:web-5d8f");
    assert_eq!((row.kind.as_str(), row.application.as_deref()), ("replicaSet", Some("app")));
    assert_eq!((row.api_version.as_str(), row.uid.as_deref()), ("apps/v1", Some("u-1")));
    assert_eq!((row.resource_version.as_str(), row.body_hash.as_str()), ("12", "ab".repeat(32).as_str()));
    assert_eq!(
        ends(&row.relations.relations),
        [
            ("kubernetes.v2:infrastructure:Node:prod::n1", "replicaSet", "Node"),
            ("kubernetes.v2:infrastructure:deployment:prod:default:web", "replicaSet", "deployment"),
            ("kubernetes.v2:logical:applications:app", "replicaSet", "applications"),
            ("kubernetes.v2:logical:clusters:prod:app:deployment web", "replicaSet", "clusters"),
        ]
    );
}

#[test]
fn only_spinnakers_classes_have_an_application_and_only_server_groups_a_cluster() {
    let types = |group: &str, kind: &str| {
        let row = row(&scope(group, kind, ""), &event("default", "web"));
        assert_eq!(row.application.as_deref(), Some("web"), "the column is filled for every kind");
        row.relations.relations.into_iter().map(|relation| relation.to_type).collect::<Vec<_>>()
    };
    assert_eq!(types("", "Service"), ["applications"]);
    assert_eq!(types("networking.k8s.io", "NetworkPolicy"), ["applications"]);
    assert_eq!(types("apps", "Deployment"), ["applications", "clusters"]);
    for (group, kind) in [("", "Pod"), ("", "ConfigMap"), ("argoproj.io", "Rollout")] {
        assert!(types(group, kind).is_empty(), "{kind}");
    }
    let rollouts = [CustomResourceTreatment {
        kubernetes_kind: "Rollout.argoproj.io".to_owned(),
        spinnaker_kind: Some(SpinnakerKind::ServerGroupManagers),
        ..CustomResourceTreatment::default()
    }];
    let (classes, _) = KindClasses::read(&[(Setting::CustomResources, &rollouts)]);
    let naming =
        RowNaming::new("prod", &scope("argoproj.io", "Rollout", ""), &classes).expect("a good scope");
    let row = naming.object_row(&event("default", "web")).expect("a good event");
    assert_eq!((row.kind.as_str(), row.relations.relations.len()), ("Rollout.argoproj.io", 2));
}

#[test]
fn the_digest_of_relations_changes_with_them_alone() {
    let deployments = scope("apps", "Deployment", "");
    let plain = row(&deployments, &event("default", "web")).relations.digest;
    let mut updated = event("default", "web");
    (updated.rv, updated.hash) = ("13".to_owned(), vec![1; 32]);
    assert_eq!(row(&deployments, &updated).relations.digest, plain);
    updated.owners = vec![owner("apps.example.com", "App", "web", false)];
    let owned = row(&deployments, &updated).relations.digest;
    assert_ne!(owned, plain);
    updated.meta.insert("app.kubernetes.io/name".to_owned(), "other".to_owned());
    assert_ne!(row(&deployments, &updated).relations.digest, owned);
}

#[test]
fn owners_that_cannot_be_and_too_many_are_counted() {
    let mut many = event("default", "web");
    many.owners = (0..MAX_OWNERS + 5).map(|i| owner("", "ConfigMap", &format!("c{i}"), false)).collect();
    many.owners.push(owner("", "ConfigMap", "", false));
    many.owners.push(owner("", "ConfigMap", "a\0b", false));
    let relations = row(&scope("", "Pod", ""), &many).relations;
    assert_eq!((relations.relations.len(), relations.owners_left_out), (MAX_OWNERS, 7));
}

#[test]
fn a_synthetic_object_has_no_uid() {
    let mut synthetic = event("", "default");
    synthetic.uid.clear();
    let row = row(&scope("", "Namespace", ""), &synthetic);
    assert_eq!((row.uid, row.api_version.as_str()), (None, "v1"));
    assert_eq!(row.id, "kubernetes.v2:infrastructure:namespace:prod::default");
}

#[test]
fn events_that_make_no_row_are_refused_with_the_object_and_the_part() {
    let naming =
        RowNaming::new("prod", &scope("", "Pod", "default"), &KindClasses::default()).expect("a good scope");
    let refused = |change: fn(&mut events::Event)| {
        let mut event = event("default", "web");
        change(&mut event);
        naming.object_row(&event).expect_err("a bad event").to_string()
    };
    assert_eq!(
        refused(|event| event.name.clear()),
        "pod \"\": its name has 0 characters, and 1 to 253 are allowed"
    );
    assert_eq!(refused(|event| event.uid = "a\0".to_owned()), "pod \"web\": its uid has control characters");
    assert_eq!(refused(|event| event.hash.clear()), "pod \"web\": its hash has 0 bytes in place of 32");
    assert_eq!(
        refused(|event| event.namespace = "other".to_owned()),
        "pod \"web\" is in the namespace \"other\", and its scope default:.Pod is another one"
    );
    assert!(refused(|event| event.name = "é".repeat(254)).contains("its name has 254 characters"));
    assert!(refused(|event| event.rv.clear()).contains("its resourceVersion has 0 characters"));
    let accented = naming.id("default", &"é".repeat(253));
    assert!(accented.is_ok(), "characters count, not bytes");
    let scope = RowNaming::new("prod", &scope("", "", ""), &KindClasses::default());
    assert!(matches!(scope, Err(RowError::Length { part: "kind", .. })));
}
