//! Who an object is, what is sent apart from its body, and what is left out.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kubesvc_core::wire::events::OwnerReference;

use super::*;

fn omitting(namespace: &str) -> ObjectFilter {
    ObjectFilter::new(Arc::new(BTreeSet::from([namespace.to_owned()])), false)
}

fn named(metadata: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"web","namespace":"shop","uid":"u","resourceVersion":"7",{metadata}}}}}"#
    )
}

fn with_keys(keys: &[&str]) -> ObjectRules {
    ObjectRules { meta_keys: keys.iter().map(|key| (*key).to_owned()).collect(), ..pods() }
}

#[test]
fn event_has_identity_scope_and_operation() {
    let event = scrubbed_event(pods(), named(r#""generation":1"#));
    assert_eq!((event.scope_id, event.op(), event.held_ms), (7, Operation::Upsert, 0));
    assert_eq!([event.namespace, event.name, event.uid, event.rv], ["shop", "web", "u", "7"]);
}

#[test]
fn delete_has_identity_alone() {
    let object = named(r#""labels":{"app":"x"},"ownerReferences":[{"kind":"A","name":"b"}]"#);
    let scrubbed = Scrubber::new(with_keys(&[""])).scrub(
        &RawObject::read(object.as_bytes()),
        7,
        Operation::Delete,
        &mut raw_encoder(),
    );
    let expected = ObjectIdentity {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "u".to_owned(),
        resource_version: "7".to_owned(),
    };
    assert_eq!(event(scrubbed).event, delete_event(7, expected));
}

#[test]
fn labels_and_annotations_are_sent_by_prefix_and_annotations_win() {
    let labels = r#""labels":{"app.kubernetes.io/name":"web","other":"1","moniker.spinnaker.io/x":"label"}"#;
    let annotations =
        r#""annotations":{"moniker.spinnaker.io/x":"annot\u0061tion","moniker.spinnaker.io/y":"2"}"#;
    let rules = with_keys(&["moniker.spinnaker.io/", "app.kubernetes.io/name"]);
    let expected: HashMap<String, String> = [
        ("app.kubernetes.io/name", "web"),
        ("moniker.spinnaker.io/x", "annotation"),
        ("moniker.spinnaker.io/y", "2"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    for metadata in [format!("{labels},{annotations}"), format!("{annotations},{labels}")] {
        assert_eq!(scrubbed_event(rules.clone(), named(&metadata)).meta, expected);
    }
}

#[test]
fn last_applied_is_not_sent_apart_either() {
    let object =
        named(&format!(r#""annotations":{{"{LAST_APPLIED_ANNOTATION}":"x","kubectl.kubernetes.io/a":"b"}}"#));
    let meta = scrubbed_event(with_keys(&["", "kubectl"]), object).meta;
    assert_eq!(meta.into_keys().collect::<Vec<_>>(), ["kubectl.kubernetes.io/a"]);
}

#[test]
fn owners_have_group_and_scope() {
    let object = named(
        r#""ownerReferences":[
            {"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-1","uid":"u1","controller":true,"blockOwnerDeletion":true},
            {"apiVersion":"v1","kind":"Node","name":"n","uid":"u2"}]"#,
    );
    let cluster_scoped_kinds = Arc::new([(String::new(), "Node".to_owned())].into_iter().collect());
    let owners = scrubbed_event(ObjectRules { cluster_scoped_kinds, ..pods() }, object).owners;
    let owner = |group: &str, kind: &str, name: &str, uid: &str| OwnerReference {
        group: group.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    };
    let controller = OwnerReference { controller: true, ..owner("apps", "ReplicaSet", "web-1", "u1") };
    let node = OwnerReference { cluster_scoped: true, ..owner("", "Node", "n", "u2") };
    assert_eq!(owners, [controller, node]);
}

#[test]
fn omitted_namespace_ignored_and_unmanaged_objects_are_left_out() {
    let omit = ObjectRules { filter: omitting("shop"), ..pods() };
    assert_eq!(outcome(&scrub(omit, named(r#""a":1"#))), "excluded: OmittedNamespace web");
    let ignored = |value: &str| {
        outcome(&scrub(pods(), named(&format!(r#""annotations":{{"{IGNORE_ANNOTATION}":{value}}}"#))))
    };
    // Old versions of Clouddriver write an annotation's value as JSON.
    for value in [r#""true""#, r#""\"true\"""#, r#""\u0074rue""#] {
        assert_eq!(ignored(value), "excluded: Ignored web", "{value}");
    }
    assert!(ignored(r#""false""#).starts_with('{'));
    let managed = ObjectRules { filter: ObjectFilter::new(Arc::default(), true), ..pods() };
    let annotated = |value: &str| {
        outcome(&scrub(
            managed.clone(),
            named(&format!(r#""annotations":{{"moniker.spinnaker.io\/application":"{value}"}}"#)),
        ))
    };
    assert!(annotated("shop").starts_with('{'));
    assert_eq!(annotated(""), "excluded: NotSpinnakerManaged web");
    assert_eq!(annotated(r#"\"\""#), "excluded: NotSpinnakerManaged web");
    assert_eq!(outcome(&scrub(managed.clone(), named(r#""a":1"#))), "excluded: NotSpinnakerManaged web");
}

#[test]
fn end_of_an_object_is_told_unless_its_namespace_is_left_out() {
    let ended = |rules: ObjectRules| {
        let object = named(&format!(r#""annotations":{{"{IGNORE_ANNOTATION}":"true"}}"#));
        let object = RawObject::read(object.as_bytes());
        Scrubber::new(rules).scrub(&object, 7, Operation::Delete, &mut raw_encoder())
    };
    let managed = ObjectRules { filter: ObjectFilter::new(Arc::default(), true), ..pods() };
    assert_eq!(event(ended(managed)).event.op(), Operation::Delete);
    let omit = ObjectRules { filter: omitting("shop"), ..pods() };
    assert!(matches!(ended(omit), Scrubbed::Excluded(Exclusion::OmittedNamespace, _)));
    assert!(!Exclusion::OmittedNamespace.may_have_row() && Exclusion::Ignored.may_have_row());
}

#[test]
fn object_of_another_namespace_is_refused() {
    let rules = ObjectRules { namespace: "other".to_owned(), ..pods() };
    assert_eq!(
        outcome(&scrub(rules, named(r#""a":1"#))),
        "unidentified: an object of kind Pod with the name \"web\" in namespace \"shop\" cannot be identified; it is \
         left out: it is in namespace \"shop\", and \"other\" was asked for"
    );
}

#[test]
fn cluster_wide_object_has_no_namespace_and_may_have_no_uid() {
    let event = scrubbed_event(pods(), r#"{"metadata":{"name":"n","resourceVersion":"1"}}"#);
    assert_eq!([event.namespace, event.name, event.uid, event.rv], ["", "n", "", "1"]);
}

#[test]
fn last_one_of_repeated_members_counts() {
    let object = r#"{"metadata":{"name":"a","name":"b","resourceVersion":"1","ownerReferences":[{"kind":"A","name":"a"}],"ownerReferences":[]},"metadata":{"resourceVersion":"2"}}"#;
    let event = scrubbed_event(pods(), object);
    assert_eq!((event.name.as_str(), event.rv.as_str(), event.owners.len()), ("b", "2", 0));
}
