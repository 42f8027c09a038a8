//! Every kind of source, with what people and generators write into them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

mod files;
mod hostile;
mod merging;
mod stored;

fn source(name: &str) -> Arc<str> {
    Arc::from(name)
}

/// A file that `source` has, under this name.
fn file(name: &str, text: &str) -> NamedText {
    NamedText { name: name.to_owned(), text: text.to_owned() }
}

fn vars(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// What `files` contain, without profiles and variables.
fn read(files: &[NamedText]) -> SourceSnapshot {
    read_files(&source("files"), files, &[], &BTreeMap::new()).expect("readable")
}

/// What `clouddriver.yml` with these accounts contains.
fn accounts(yaml: &str) -> SourceSnapshot {
    read(&[file("clouddriver.yml", &format!("kubernetes:\n  accounts:\n{yaml}"))])
}

fn names(snapshot: &SourceSnapshot) -> Vec<&str> {
    snapshot.entries.iter().map(|entry| entry.name.as_str()).collect()
}

fn reasons(snapshot: &SourceSnapshot) -> Vec<String> {
    snapshot.bad.iter().map(ToString::to_string).collect()
}

fn definition<'s>(snapshot: &'s SourceSnapshot, name: &str) -> &'s serde_json::Map<String, Value> {
    let entry = snapshot.entries.iter().find(|entry| entry.name == name);
    &entry.expect("it is an account of the source").definition
}

fn object(value: Value) -> serde_json::Map<String, Value> {
    let Value::Object(fields) = value else { unreachable!("{value} is no object") };
    fields
}

/// A kubeconfig as kubesvc registers it in Clouddriver.
fn registered_kubeconfig() -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "kubesvc/6b0c7d0e-0000-4000-8000-000000000001/6b0c7d0e-0000-4000-8000-000000000002",
        "contexts": [],
    })
    .to_string()
}
