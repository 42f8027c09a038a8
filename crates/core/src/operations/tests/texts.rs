//! The text form and JSON, and which operations are refused.

use proptest::prelude::*;
use prost_reflect::{DynamicMessage, Value};
use serde_json::json;

use super::operation_from_json;
use crate::operations::parsing::descriptor;
use crate::operations::{Operation, OperationVerb, manifest, operation_from_text, result_from_text};
use crate::wire::operations as wire;
use crate::wire::operations::operation::Verb;

const SCALE: &str = "op_id: \"01G4V5TH5QSWSR2SZE2VH1SDME\" account { name: \"a\" } scale { target { group: \"apps\" \
                     version: \"v1\" kind: \"Deployment\" namespace: \"n\" name: \"web\" } replicas: 3 }";

fn why(text: &str) -> String {
    match operation_from_text(text) {
        Ok(operation) => unreachable!("{operation:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn each_verb_has_the_name_of_its_message_and_the_names_of_those_that_read_are_known() {
    let verbs = descriptor("Operation").oneofs().find(|oneof| oneof.name() == "verb").expect("it is there");
    for field in verbs.fields() {
        let message = field.kind().as_message().expect("a message").clone();
        let mut operation = DynamicMessage::new(descriptor("Operation"));
        operation.set_field(&field, Value::Message(DynamicMessage::new(message.clone())));
        let operation: wire::Operation = operation.transcode_to().expect("the same message");
        let verb = OperationVerb::of(&operation.verb.expect("it is set"));
        assert_eq!((verb.name, verb.reads), (message.name(), OperationVerb::only_reads(message.name())));
    }
}

fn assert_scale(operation: &Operation) {
    assert_eq!(operation.id(), "01G4V5TH5QSWSR2SZE2VH1SDME");
    assert_eq!(operation.account().name, "a");
    assert_eq!((operation.kind().name, operation.kind().reads), ("Scale", false));
    let Verb::Scale(scale) = operation.verb() else { unreachable!("{operation:?}") };
    assert_eq!(scale.replicas, 3);
    assert_eq!(scale.target.as_ref().map(|target| target.name.as_str()), Some("web"));
}

#[test]
fn documented_text_and_its_json_are_the_same_operation() {
    assert_scale(&operation_from_text(SCALE).expect("it parses"));
    let multiline = SCALE.replace(" { ", " {\n  ").replace(" } ", "\n}\n") + " # a comment";
    assert_scale(&operation_from_text(&multiline).expect("it parses"));
    let target =
        json!({"group": "apps", "version": "v1", "kind": "Deployment", "namespace": "n", "name": "web"});
    for (id, back) in [("opId", "revisionsBack"), ("op_id", "revisions_back")] {
        let mut json = json!({"account": {"name": "a"}, "scale": {"target": target, "replicas": 3}});
        json[id] = json!("01G4V5TH5QSWSR2SZE2VH1SDME");
        assert_scale(&operation_from_json(&json).expect("it parses"));
        let mut undo = json!({"target": target});
        undo[back] = json!(1);
        let undo = json!({"account": {"name": "a"}, "undoRollout": undo});
        assert_eq!(operation_from_json(&undo).expect("it parses").kind().name, "UndoRollout");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let get = "get { target { version: \"v1\" kind: \"Pod\" namespace: \"n\" name: \"p\" } }";
    for (text, part) in [
        (String::new(), "account.name is missing"),
        ("account { name: \"a\" }".to_owned(), "there is no verb"),
        (format!("account {{ name: \"a\" }} {get} discovery {{}}"), "verb"),
        (format!("account {{ name: \"a\" }} fetch {{}} {get}"), "'fetch' not found"),
        (format!("account {{ nme: \"a\" }} {get}"), "'nme' not found"),
        (format!("account {{ name: \"a\" }} deadline_ms: 0 {get}"), "deadline_ms is \"0\""),
        (format!("account {{ name: \"a\" }} deadline_ms: -5 {get}"), "deadline_ms is \"-5\""),
        (format!("account {{ name: \"a\" }} deadline_ms: 600001 {get}"), "give 1 to 600000"),
        (format!("op_id: \"x\" account {{ name: \"a\" }} {get}"), "give a ULID"),
        ("account { name: \"a\" } get { }".to_owned(), "get.target is missing"),
        ("account { name: \"a\" } get { target { kind: \"Pod\" } }".to_owned(), "target.name is missing"),
        ("account { name: \"a\" } get { target { kind: \"Pod\" name: \"a/b\" } }".to_owned(), "target.name is \"a/b\""),
        ("account { name: \"a\" } get { target { kind: \"Pod\" name: \"..\" } }".to_owned(), "target.name is"),
        ("account { name: \"a\" } scale { target { kind: \"D\" name: \"d\" } replicas: -1 }".to_owned(), "scale.replicas"),
        ("account { name: \"a\" } delete { target { kind: \"Pod\" } }".to_owned(), "target.name or label_selector"),
        ("account { name: \"a\" } logs { target { kind: \"Job\" name: \"j\" } }".to_owned(), "only Pods"),
        ("account { name: \"a\" } undo_rollout { target { kind: \"D\" name: \"d\" } }".to_owned(), "to_revision or"),
        ("account { name: \"a\" } patch { target { kind: \"D\" name: \"d\" } type: JSN body { data: \"[]\" } }".to_owned(), "JSN"),
        ("account { name: \"a\" } patch { target { kind: \"D\" name: \"d\" } type: JSON body { data: \"{}\" } }".to_owned(), "RFC 6902"),
        ("account { name: \"a\" } deploy { }".to_owned(), "the manifest is empty"),
        (format!("account {{ name: \"a\" }} {get} {get}"), "'get' is already set"),
        (format!("account {{ name: \"a\" }} account {{ name: \"b\" }} {get}"), "account"),
        (format!("account {{ name: \"a\" }} deadline_ms: 99999999999999999999 {get}"), "99999999999999999999"),
        (format!("account {{ name: 7 }} {get}"), "string"),
        ("account { name: \"a\" } deploy { manifest { data: \"{}\" } mode: 17 }".to_owned(), "deploy.mode is \"17\""),
        ("account { name: \"a\" } deploy { manifest { data: \"{}\" } mode: FORCE }".to_owned(), "FORCE"),
        ("account { name: \"a\" } delete { target { kind: \"D\" name: \"d\" } propagation: 9 }".to_owned(), "delete.propagation"),
        ("account { name: \"a\" } delete { target { kind: \"D\" name: \"d\" } grace_s: -1 }".to_owned(), "delete.grace_s"),
        ("account { name: \"a\" } delete { target { kind: \"D\" name: \"d\" } label_selector: \"a=b\" }".to_owned(), "give one of them"),
        ("account { name: \"a\" } list { target { kind: \"D\" } limit: 501 }".to_owned(), "list.limit"),
        ("account { name: \"a\" } list { target { name: \"d\" } }".to_owned(), "target.kind is missing"),
        ("account { name: \"a\" } logs { target { kind: \"Pod\" name: \"p\" } tail: -1 }".to_owned(), "logs.tail"),
        ("account { name: \"a\" } logs { target { kind: \"Pod\" name: \"p\" } since_s: 0 }".to_owned(), "logs.since_s"),
        ("account { name: \"a\" } logs { target { kind: \"Pod\" name: \"p\" } limit_bytes: 10485761 }".to_owned(), "logs.limit_bytes"),
        ("account { name: \"a\" } undo_rollout { target { kind: \"D\" name: \"d\" } to_revision: 1 revisions_back: 1 }".to_owned(), "to"),
        ("account { name: \"a\" } undo_rollout { target { kind: \"D\" name: \"d\" } to_revision: 0 }".to_owned(), "give 1 or more"),
        ("account { name: \"a\" } patch { target { kind: \"D\" name: \"d\" } body { data: \"[]\" } }".to_owned(), "a part of an object"),
        ("account { name: \"a\" } get { target { kind: \"Pod\" name: \"a%2fb\" } }".to_owned(), "target.name is"),
        ("account { name: \"a\" } get { target { kind: \"Pod\" name: \"a\\nb\" } }".to_owned(), "target.name is"),
        (format!("account {{ name: \"a\" }} get {{ target {{ kind: \"Pod\" name: \"{}\" }} }}", "x".repeat(254)), "too long"),
    ] {
        let said = why(&text);
        assert!(said.contains(part), "{text}\n{said}");
    }
}

#[test]
fn manifests_that_are_not_one_object_are_refused_without_their_text() {
    let deploy = |data: &str| format!("account {{ name: \"a\" }} deploy {{ manifest {{ data: {data:?} }} }}");
    for (data, part) in [
        ("[]", "one object for each operation"),
        ("a: &x canary\nb: *x\n", "an anchor or an alias"),
        ("a:\n\tb: canary\n", "at line 2"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: canary}\n---\napiVersion: v1\n",
            "2 objects: one operation deploys one",
        ),
        ("kind: Pod\nmetadata: {name: canary}\n", "no apiVersion"),
        ("apiVersion: v1\nmetadata: {name: canary}\n", "no kind"),
        ("apiVersion: v1\nkind: Pod\n", "no metadata"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {}\n", "no metadata.name"),
        ("apiVersion: v1\nkind: List\nitems: []\nmetadata: {}\n", "is a list"),
        ("{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"canary\"", "cannot be read"),
        ("canary", "not an object"),
        ("", "is empty"),
        ("---\n", "is empty"),
        ("- canary\n- b\n", "one object for each operation"),
        ("{a: canary", "cannot be read"),
        ("a: canary\na: canary\n", "at line 2: the key \"a\" is there a second time"),
        ("apiVersion: v1\nkind: Pod\nmetadata: canary\n", "no metadata"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: canary/x}\n",
            "metadata.name is not a valid Kubernetes name",
        ),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: [canary]}\n", "no metadata.name"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: canary, namespace: 7}\n",
            "metadata.namespace is not a valid Kubernetes name",
        ),
        (
            "apiVersion: a/b/canary\nkind: Pod\nmetadata: {name: canary}\n",
            "apiVersion is not a valid Kubernetes name",
        ),
    ] {
        let said = why(&deploy(data));
        assert!(said.contains(part), "{data}\n{said}");
        assert!(!said.contains("canary"), "{said}");
    }
    let large = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}}}", "x".repeat(4 << 20));
    let error = operation_from_text(&deploy(&large)).expect_err("it is too large");
    assert!(error.is_too_large() && error.to_string().contains("larger than 4 MiB"), "{error}");
    assert!(!operation_from_text(&deploy("[]")).expect_err("it is a list").is_too_large());
}

#[test]
fn a_key_that_is_there_twice_is_refused_with_its_line_in_json_and_yaml() {
    for (data, line) in [
        ("{\"a\": 1,\n\"a\": 2}", 2),
        ("{\"b\": [{\n\"a\": 1,\n\"a\": {}}]}", 3),
        ("a: 1\nb: 2\na: 3\n", 3),
        ("b:\n  - c: {d: 1}\n    a: 1\n    a: 1\n", 4),
        ("b: {a: 1,\n  a: 1}\n", 2),
        ("{\"a\": 1,\n'a': 1}", 2),
    ] {
        let error = manifest::parse(data).expect_err(data);
        let said = error.to_string();
        assert!(
            said.contains(&format!("at line {line}: the key \"a\" is there a second time")),
            "{data}\n{said}"
        );
    }
    assert!(manifest::parse("1: a\n\"1\": b\n").is_err(), "one name, however it is written");
    assert!(manifest::parse("a: {c: 1}\nb: {c: 1}\n").is_ok(), "two mappings");
    let long = format!("{0}: 1\n{0}: 2\n", "k".repeat(500));
    let said = manifest::parse(&long).expect_err("twice").to_string();
    assert!(said.len() < 200 && said.contains(&"k".repeat(64)), "{said}");
}

#[test]
fn documents_that_are_empty_are_dropped() {
    let object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n";
    for data in [
        format!("---\n{object}"),
        format!("{object}---\n"),
        format!("---\n---\n{object}"),
        format!("# who wrote it\n---\n{object}---\n# the end\n"),
        format!("{object}...\n"),
        format!(
            "---\n{}\n---\n",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
        ),
    ] {
        let read = manifest::parse(&data).unwrap_or_else(|error| unreachable!("{data}\n{error}"));
        assert_eq!(read["metadata"]["name"], "c", "{data}");
    }
    for two in [
        format!("{object}---\n{object}"),
        "{\"a\": 1}\n{\"a\": 2}".to_owned(),
        "{\"a\": 1}\n---\na: 1\n".to_owned(),
    ] {
        let said = manifest::parse(&two).expect_err(&two).to_string();
        assert_eq!(said, "2 objects: one operation deploys one", "{two}");
    }
    let keys: String = (0..=200_000).fold("{".to_owned(), |text, key| text + &format!("\"{key}\":0,"));
    let many = format!("{}}}", keys.trim_end_matches(','));
    assert!(manifest::parse(&many).expect_err("too many").to_string().contains("200000 keys"));
}

#[test]
fn errors_repeat_no_manifest() {
    for text in [
        "account { name: \"a\" } deploy { manifest { data: \"canary\" 7 } }",
        "account { name: \"a\" } deploy { manifest { data: \"canary",
        "account { name: \"a\" } deploy { manifest: \"canary\" }",
        "account { name: \"a\" } deploy { manifest { data: canary } }",
        "account { name: \"a\" } deploy { manifest { data: \"can\" \"canary\\q\" } }",
        "account { name: \"a\" } deploy { mode: \"canary\" }",
        "account { name: \"a\" } deploy { manifest { data: \"x\" } } \"canary\"",
    ] {
        let said = why(text);
        assert!(!said.contains("canary"), "{text}\n{said}");
    }
    for manifest in
        [json!("canary"), json!({"data": {"canary": 1}}), json!({"data": ["canary"]}), json!(["canary"])]
    {
        let operation = json!({"account": {"name": "a"}, "deploy": {"manifest": manifest}});
        let said = operation_from_json(&operation).expect_err("no operation").to_string();
        assert!(!said.contains("canary"), "{operation}\n{said}");
    }
}

#[test]
fn text_that_is_cut_anywhere_is_no_operation_or_a_shorter_one() {
    for end in 0..SCALE.len() {
        if let Ok(operation) = operation_from_text(&SCALE[..end]) {
            unreachable!("{:?} of {:?}", operation, &SCALE[..end]);
        }
    }
}

#[test]
fn two_verbs_in_json_and_unknown_fields_are_refused() {
    let two = json!({"account": {"name": "a"}, "discovery": {}, "scale": {"replicas": 1}});
    assert!(operation_from_json(&two).expect_err("two").to_string().contains("verb"));
    let unknown = json!({"account": {"name": "a"}, "discovery": {}, "wait": 1});
    assert!(operation_from_json(&unknown).expect_err("unknown").to_string().contains("wait"));
    for no_object in [json!(null), json!([]), json!("x"), json!(1)] {
        assert!(operation_from_json(&no_object).is_err(), "{no_object}");
    }
}

#[test]
fn results_of_people_have_an_id_and_a_status() {
    let settled = result_from_text("op_id: \"01G4V5TH5QSWSR2SZE2VH1SDME\" status: 200").expect("it parses");
    assert_eq!((settled.operation_id.as_str(), settled.status), ("01G4V5TH5QSWSR2SZE2VH1SDME", 200));
    for bad in [
        "status: 200",
        "op_id: \"01G4V5TH5QSWSR2SZE2VH1SDME\"",
        "op_id: \"01G4V5TH5QSWSR2SZE2VH1SDME\" status: 99999",
    ] {
        assert!(result_from_text(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn any_text_is_an_operation_or_an_error(text in "[ -~\n]{0,200}") {
        let _ = operation_from_text(&text);
        let _ = result_from_text(&text);
    }
}
