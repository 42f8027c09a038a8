//! A server-side apply: PATCH with the whole manifest, under a manager of kubesvc's own.
//!
//! What was applied client-side is moved to that manager first, so that fields which the manifest no longer has go, as
//! they would with `kubectl apply --server-side`.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::MANAGER;
use super::deployed::{Deployed, MAX_CONFLICTS, STRICT};
use super::manifest::{LAST_APPLIED, annotation, with_last_applied_as_is};
use super::outcome::{ApiAnswer, Outcome};
use super::program::{ApiRequest, Method, Program, Step, go_on};

/// The program.
#[derive(Debug)]
pub(super) struct ServerSideApply {
    deployed: Deployed,
    force: bool,
    clears_managed_fields: bool,
    state: State,
    conflicts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Begin,
    Reading,
    Moving { with_last: bool },
    Applying,
}

impl ServerSideApply {
    pub(super) fn new(mut deployed: Deployed, force: bool, clears_managed_fields: bool) -> Self {
        if let Some(metadata) = deployed.object["metadata"].as_object_mut() {
            // The API server refuses an apply that has them.
            metadata.remove("managedFields");
        }
        if is_secret(&deployed) {
            encode_string_data(&mut deployed.object);
        }
        Self { deployed, force, clears_managed_fields, state: State::Begin, conflicts: 0 }
    }

    fn read(&mut self) -> Step {
        self.state = State::Reading;
        Step::Request(ApiRequest::get(self.deployed.path.clone()))
    }

    fn apply(&mut self, with_last: bool) -> Step {
        self.state = State::Applying;
        let object = if with_last {
            with_last_applied_as_is(self.deployed.object.clone())
        } else {
            self.deployed.object.clone()
        };
        let force = if self.force { "true" } else { "false" };
        let parameters = [("fieldManager", MANAGER), ("force", force), STRICT];
        let deployed = &self.deployed;
        // JSON is YAML.
        let media_type = "application/apply-patch+yaml";
        Step::Request(ApiRequest::write(
            Method::Patch,
            &deployed.path,
            &parameters,
            deployed.dry_run,
            media_type,
            &object,
        ))
    }

    /// Goes on from the object that is there.
    fn go_on_from(&mut self, live: &Value) -> Step {
        // Kept in step, so that a client-side apply can go on from here; never on a Secret, which it would repeat.
        let with_last = annotation(live, LAST_APPLIED).is_some() && !is_secret(&self.deployed);
        let fields = live["metadata"]["managedFields"].as_array();
        let moved = if self.clears_managed_fields {
            fields.filter(|fields| !is_sole(fields)).map(|_| vec![json!({})])
        } else {
            fields.and_then(|fields| moved_managers(fields))
        };
        let Some(moved) = moved else { return self.apply(with_last) };
        if self.clears_managed_fields || self.deployed.dry_run {
            // What nobody manages any more conflicts with nobody that matters. And a dry run moves no managers, so that
            // the former ones would stand in its way.
            self.force = true;
        }
        if self.deployed.dry_run {
            return self.apply(with_last);
        }
        self.state = State::Moving { with_last };
        let patch = json!([
            {"op": "replace", "path": "/metadata/managedFields", "value": moved},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
        ]);
        Step::Request(ApiRequest::write(
            Method::Patch,
            &self.deployed.path,
            &[("fieldManager", MANAGER)],
            false,
            "application/json-patch+json",
            &patch,
        ))
    }
}

impl Program for ServerSideApply {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        let Some(answer) = answer else { return self.read() };
        match (self.state, answer.status) {
            (State::Begin, _) => self.read(),
            (State::Reading, 404) => self.apply(false),
            (State::Reading, _) => {
                let live = go_on!(answer.object());
                self.go_on_from(&live)
            }
            (State::Moving { .. }, 404 | 409) if self.conflicts < MAX_CONFLICTS => {
                self.conflicts += 1;
                self.read()
            }
            (State::Moving { with_last }, _) => {
                go_on!(answer.object());
                self.apply(with_last)
            }
            (State::Applying, _) => Step::Done(Outcome::of(answer)),
        }
    }
}

fn is_secret(deployed: &Deployed) -> bool {
    deployed.resource.group.is_empty() && deployed.resource.kind == "Secret"
}

/// Makes `data` of `stringData`, which is write-only: under server-side apply, a key that the manifest no longer has
/// would stay otherwise.
fn encode_string_data(secret: &mut Value) {
    use base64::Engine as _;
    let Some(secret) = secret.as_object_mut() else { return };
    let Some(Value::Object(texts)) = secret.get("stringData") else { return };
    // A value that is no text is left to the API server, which says what is wrong.
    if !texts.values().all(Value::is_string) {
        return;
    }
    let encoded: Map<String, Value> = texts
        .iter()
        .filter_map(|(key, text)| {
            let text = base64::engine::general_purpose::STANDARD.encode(text.as_str()?);
            Some((key.clone(), text.into()))
        })
        .collect();
    secret.remove("stringData");
    let data = secret.entry("data").or_insert_with(|| Map::new().into());
    match data {
        Value::Object(data) => data.extend(encoded),
        data => *data = encoded.into(),
    }
}

/// Whether an entry of `managedFields` is of the object itself under this operation.
fn is_entry(entry: &Value, operation: &str) -> bool {
    entry["operation"] == operation && entry["subresource"].as_str().unwrap_or_default().is_empty()
}

/// Whether nobody but kubesvc manages fields of the object itself.
fn is_sole(fields: &[Value]) -> bool {
    let of_object = |entry: &&Value| entry["subresource"].as_str().unwrap_or_default().is_empty();
    fields.iter().filter(of_object).all(|entry| is_entry(entry, "Apply") && entry["manager"] == MANAGER)
}

/// `managedFields` with what was applied client-side moved to kubesvc's manager; `None` if nothing was. The managers
/// that did are those that wrote the annotation.
fn moved_managers(fields: &[Value]) -> Option<Vec<Value>> {
    let annotation = format!("f:{LAST_APPLIED}");
    let client_side = |entry: &Value| {
        is_entry(entry, "Update")
            && !entry["fieldsV1"]["f:metadata"]["f:annotations"][annotation.as_str()].is_null()
    };
    let ours = |entry: &Value| is_entry(entry, "Apply") && entry["manager"] == MANAGER;
    let mut moved =
        fields.iter().find(|entry| ours(entry)).or_else(|| fields.iter().find(|e| client_side(e)))?.clone();
    if !fields.iter().any(client_side) {
        return None;
    }
    moved["manager"] = MANAGER.into();
    moved["operation"] = "Apply".into();
    let version = moved["apiVersion"].clone();
    // Fields of another version cannot be joined; they stay with nobody, as kubectl leaves them.
    for entry in fields.iter().filter(|entry| client_side(entry) && entry["apiVersion"] == version) {
        unite(&mut moved["fieldsV1"], &entry["fieldsV1"]);
    }
    let others = fields.iter().filter(|entry| !client_side(entry) && !ours(entry)).cloned();
    Some(others.chain([moved]).collect())
}

/// Unites two sets of fields, which are trees of their names.
fn unite(set: &mut Value, other: &Value) {
    let Value::Object(other) = other else { return };
    if !set.is_object() {
        *set = Map::new().into();
    }
    let Value::Object(set) = set else { return };
    for (name, below) in other {
        unite(set.entry(name.clone()).or_insert_with(|| Map::new().into()), below);
    }
}
