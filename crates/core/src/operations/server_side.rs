//! Server-side apply: PATCH with the whole manifest, under kubesvc's own manager.
//!
//! Fields applied client-side are moved to that manager first, so that those that the manifest lacks are removed, as
//! with `kubectl apply --server-side`. A dry run moves nothing, and ignores conflicts with the managers that would be
//! moved.

use std::collections::BTreeMap;
use std::iter::once;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::MANAGER;
use super::deployed::{Deployed, MAX_CONFLICTS, STRICT};
use super::manifest::{LAST_APPLIED, annotation, with_last_applied_as_is};
use super::outcome::{ApiAnswer, Outcome, OutcomeClass};
use super::program::{ApiRequest, Method, Program, Step, go_on};

/// Beginning of the API server's message of a conflict.
const CONFLICT_WITH: &str = "conflict with ";

#[derive(Debug)]
pub(super) struct ServerSideApply {
    deployed: Deployed,
    force: bool,
    clears_managed_fields: bool,
    state: ServerSideApplyStage,
    conflicts: u32,
    /// Messages of conflicts with the managers that a dry run does not move.
    not_moved: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerSideApplyStage {
    Begin,
    Reading,
    Moving {
        with_last: bool,
    },
    /// A dry run applies without force first, to find all conflicts.
    Trying {
        with_last: bool,
    },
    Applying,
}

impl ServerSideApply {
    pub(super) fn new(mut deployed: Deployed, force: bool, clears_managed_fields: bool) -> Self {
        // The API server refuses an apply with `managedFields`.
        if deployed.object["metadata"].get("managedFields").is_some()
            && let Some(metadata) = Arc::make_mut(&mut deployed.object)["metadata"].as_object_mut()
        {
            metadata.remove("managedFields");
        }
        if is_secret(&deployed) {
            encode_string_data(Arc::make_mut(&mut deployed.object));
        }
        let (state, not_moved) = (ServerSideApplyStage::Begin, Vec::new());
        Self { deployed, force, clears_managed_fields, state, conflicts: 0, not_moved }
    }

    fn read(&mut self) -> Step {
        self.state = ServerSideApplyStage::Reading;
        Step::Request(ApiRequest::get(self.deployed.path.clone()))
    }

    fn apply(&mut self, with_last: bool) -> Step {
        self.state = ServerSideApplyStage::Applying;
        let mut object = Value::clone(&self.deployed.object);
        if with_last {
            object = with_last_applied_as_is(object);
        }
        let force = if self.force { "true" } else { "false" };
        let parameters = [("fieldManager", MANAGER), ("force", force), STRICT];
        let deployed = &self.deployed;
        // JSON is a subset of YAML.
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

    /// Continues from the live object.
    fn go_on_from(&mut self, live: &Value) -> Step {
        // Kept up to date, so that a client-side apply can continue from here; never on a Secret, which it would
        // repeat.
        let with_last = annotation(live, LAST_APPLIED).is_some() && !is_secret(&self.deployed);
        let fields = live["metadata"]["managedFields"].as_array();
        let moved = if self.clears_managed_fields {
            fields.filter(|fields| !is_sole(fields)).map(|_| vec![json!({})])
        } else {
            fields.and_then(|fields| moved_managers(fields))
        };
        let Some(moved) = moved else { return self.apply(with_last) };
        if self.clears_managed_fields {
            // Fields without a manager cause no conflict that matters.
            self.force = true;
        }
        if self.deployed.dry_run {
            let step = self.apply(with_last);
            if !self.force {
                let client_side = fields.into_iter().flatten().filter(|entry| is_client_side(entry));
                self.not_moved = client_side.map(conflict_with).collect();
                self.state = ServerSideApplyStage::Trying { with_last };
            }
            return step;
        }
        self.state = ServerSideApplyStage::Moving { with_last };
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

    /// Continues after the conflicts of a dry run, ignoring those with managers that a real run would move.
    fn go_on_after(&mut self, refusal: &ApiAnswer, with_last: bool) -> Step {
        let status: Value = serde_json::from_slice(&refusal.body).unwrap_or_default();
        let causes = status["details"]["causes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let left: Vec<_> = causes.iter().filter(|cause| !self.is_with_not_moved(cause)).collect();
        if left.len() == causes.len() {
            return Step::Done(Outcome::of(refusal));
        }
        if left.is_empty() {
            self.force = true;
            return self.apply(with_last);
        }
        Step::Done(Outcome::failed(refusal.status, OutcomeClass::Conflict, conflicts_message(&left)))
    }

    fn is_with_not_moved(&self, cause: &Value) -> bool {
        let message = text(&cause["message"]);
        // Entries of old API servers have a time.
        let is_with = |not_moved: &String| {
            let rest = message.strip_prefix(not_moved.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" at "))
        };
        cause["reason"] == "FieldManagerConflict" && self.not_moved.iter().any(is_with)
    }
}

impl Program for ServerSideApply {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        let Some(answer) = answer else { return self.read() };
        match (self.state, answer.status) {
            (ServerSideApplyStage::Begin, _) => self.read(),
            (ServerSideApplyStage::Reading, 404) => self.apply(false),
            (ServerSideApplyStage::Reading, _) => {
                let live = go_on!(answer.object());
                self.go_on_from(&live)
            }
            (ServerSideApplyStage::Moving { .. }, 404 | 409) if self.conflicts < MAX_CONFLICTS => {
                self.conflicts += 1;
                self.read()
            }
            (ServerSideApplyStage::Moving { with_last }, _) => {
                go_on!(answer.object());
                self.apply(with_last)
            }
            (ServerSideApplyStage::Trying { with_last }, 409) => self.go_on_after(answer, with_last),
            (ServerSideApplyStage::Trying { .. } | ServerSideApplyStage::Applying, _) => {
                Step::Done(Outcome::of(answer))
            }
        }
    }
}

fn is_secret(deployed: &Deployed) -> bool {
    deployed.resource.group.is_empty() && deployed.resource.kind == "Secret"
}

/// Converts `stringData`, which is write-only, to `data`: under server-side apply, a key that the manifest dropped
/// would stay otherwise.
fn encode_string_data(secret: &mut Value) {
    use base64::Engine as _;
    let Some(secret) = secret.as_object_mut() else { return };
    let Some(Value::Object(texts)) = secret.get("stringData") else { return };
    // The API server reports a value that is not text.
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

/// Whether an entry of `managedFields` belongs to the object itself, rather than a subresource, and to this operation.
fn is_entry(entry: &Value, operation: &str) -> bool {
    entry["operation"] == operation && entry["subresource"].as_str().unwrap_or_default().is_empty()
}

/// Whether kubesvc is the only manager of fields of the object itself.
fn is_sole(fields: &[Value]) -> bool {
    let of_object = |entry: &&Value| entry["subresource"].as_str().unwrap_or_default().is_empty();
    fields.iter().filter(of_object).all(|entry| is_entry(entry, "Apply") && entry["manager"] == MANAGER)
}

/// Whether an entry of `managedFields` belongs to a manager that applied client-side, because it wrote the annotation.
fn is_client_side(entry: &Value) -> bool {
    let annotation = format!("f:{LAST_APPLIED}");
    is_entry(entry, "Update")
        && !entry["fieldsV1"]["f:metadata"]["f:annotations"][annotation.as_str()].is_null()
}

/// The API server's message of a conflict with the manager of an entry that [`is_client_side`].
fn conflict_with(entry: &Value) -> String {
    // A manager's name is printable, which JSON quotes as Go does.
    format!("{CONFLICT_WITH}{} using {}", entry["manager"], text(&entry["apiVersion"]))
}

/// The API server's message for these conflicts.
fn conflicts_message(causes: &[&Value]) -> String {
    if let [cause] = causes {
        let (message, field) = (text(&cause["message"]), text(&cause["field"]));
        return format!("Apply failed with 1 conflict: {message}: {field}");
    }
    let mut fields_by_manager = BTreeMap::<&str, Vec<&str>>::new();
    for cause in causes {
        let message = text(&cause["message"]);
        let manager = message.strip_prefix(CONFLICT_WITH).unwrap_or(message);
        fields_by_manager.entry(manager).or_default().push(text(&cause["field"]));
    }
    let lines = fields_by_manager.into_iter().flat_map(|(manager, fields)| {
        let fields = fields.into_iter().map(|field| format!("- {field}"));
        once(format!("conflicts with {manager}:")).chain(fields)
    });
    let lines: Vec<_> = lines.collect();
    format!("Apply failed with {} conflicts: {}", causes.len(), lines.join("\n"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// `managedFields` with client-side fields moved to kubesvc's manager; `None` if there are none.
fn moved_managers(fields: &[Value]) -> Option<Vec<Value>> {
    let ours = |entry: &Value| is_entry(entry, "Apply") && entry["manager"] == MANAGER;
    let mut moved = fields
        .iter()
        .find(|entry| ours(entry))
        .or_else(|| fields.iter().find(|e| is_client_side(e)))?
        .clone();
    if !fields.iter().any(is_client_side) {
        return None;
    }
    moved["manager"] = MANAGER.into();
    moved["operation"] = "Apply".into();
    let version = moved["apiVersion"].clone();
    // Fields of another version cannot be merged; they are left without a manager, as kubectl leaves them.
    for entry in fields.iter().filter(|entry| is_client_side(entry) && entry["apiVersion"] == version) {
        unite(&mut moved["fieldsV1"], &entry["fieldsV1"]);
    }
    let others = fields.iter().filter(|entry| !is_client_side(entry) && !ours(entry)).cloned();
    Some(others.chain([moved]).collect())
}

/// Merges two sets of fields, which are trees of field names.
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
