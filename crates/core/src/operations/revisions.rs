//! Revisions of a rollout: ReplicaSets of a Deployment, ControllerRevisions of a DaemonSet or StatefulSet.

use serde_json::{Map, Value, json};

use super::changes::{CHANGE_CAUSE, JSON_PATCH, STRATEGIC_PATCH};
use super::manifest::{LAST_APPLIED, annotation};
use super::outcome::{Outcome, OutcomeClass};
use super::program::with_query;

/// Annotation with the number of a Deployment's revision.
const REVISION: &str = "deployment.kubernetes.io/revision";
/// Label that the controller adds to the pods of a revision.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Annotations of a ReplicaSet that are not part of its revision: the Deployment keeps its own.
const KEPT_ANNOTATIONS: [&str; 6] = [
    LAST_APPLIED,
    REVISION,
    "deployment.kubernetes.io/revision-history",
    "deployment.kubernetes.io/desired-replicas",
    "deployment.kubernetes.io/max-replicas",
    "deprecated.deployment.rollback.to",
];

#[derive(Clone, Debug)]
pub(super) struct Revision {
    pub(super) number: i64,
    object: Value,
}

impl Revision {
    /// Identity of the revision, which survives renumbering.
    pub(super) fn uid(&self) -> &Value {
        &self.object["metadata"]["uid"]
    }
}

/// Path that lists the revisions of a workload; `None` if it has no selector.
pub(super) fn list_path(kind: &str, workload: &Value) -> Option<String> {
    let namespace = workload["metadata"]["namespace"].as_str()?;
    let selector = selector_text(&workload["spec"]["selector"])?;
    let plural = if kind == "Deployment" { "replicasets" } else { "controllerrevisions" };
    let path = format!("/apis/apps/v1/namespaces/{namespace}/{plural}");
    Some(with_query(&path, &[("labelSelector", &selector)], false))
}

/// A label selector as a query parameter.
fn selector_text(selector: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut parts = Vec::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        parts.push(format!("{key}={}", value.as_str()?));
    }
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = text(&expression["key"])?;
        let values: Option<Vec<_>> =
            expression["values"].as_array().into_iter().flatten().map(text).collect();
        let values = values?.join(",");
        parts.push(match expression["operator"].as_str()? {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key,
            "DoesNotExist" => format!("!{key}"),
            _ => return None,
        });
    }
    (!parts.is_empty()).then(|| parts.join(","))
}

/// Revisions of a workload in a list, oldest first.
pub(super) fn revisions(kind: &str, workload: &Value, list: &Value) -> Vec<Revision> {
    let owned = |object: &&Value| {
        let owners = object["metadata"]["ownerReferences"].as_array();
        let uid = &workload["metadata"]["uid"];
        owners.into_iter().flatten().any(|owner| owner["controller"] == true && owner["uid"] == *uid)
    };
    let revision = |object: &Value| {
        let number = if kind == "Deployment" {
            annotation(object, REVISION)?.parse().ok()?
        } else {
            object["revision"].as_i64()?
        };
        Some(Revision { number, object: object.clone() })
    };
    let mut revisions: Vec<_> =
        list["items"].as_array().into_iter().flatten().filter(owned).filter_map(revision).collect();
    revisions.sort_by_key(|revision| revision.number);
    revisions
}

/// The history as an operation returns it, newest revision first.
pub(super) fn history(revisions: &[Revision]) -> Value {
    let newest = revisions.last().map(|revision| revision.number);
    let entry = |revision: &Revision| {
        let metadata = &revision.object["metadata"];
        let mut entry = json!({
            "revision": revision.number, "name": metadata["name"],
            "created": metadata["creationTimestamp"], "current": newest == Some(revision.number),
        });
        if let Some(cause) = annotation(&revision.object, CHANGE_CAUSE) {
            entry["changeCause"] = cause.into();
        }
        entry
    };
    json!({"revisions": revisions.iter().rev().map(entry).collect::<Vec<_>>()})
}

/// Selector of a revision.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WantedRevision {
    Number(i64),
    /// Number of steps back: 1 is the one before the current.
    Back(i32),
    /// The revision that was chosen before, with its number at that time.
    Chosen {
        uid: Value,
        number: i64,
    },
}

pub(super) fn choose<'r>(
    revisions: &'r [Revision],
    wanted: &WantedRevision,
) -> Result<&'r Revision, Outcome> {
    let found = match wanted {
        WantedRevision::Number(number) => revisions.iter().find(|revision| revision.number == *number),
        WantedRevision::Back(back) => {
            let back = usize::try_from(*back).unwrap_or(usize::MAX);
            revisions.len().checked_sub(1).and_then(|last| last.checked_sub(back)).map(|at| &revisions[at])
        }
        WantedRevision::Chosen { uid, .. } => revisions.iter().find(|revision| revision.uid() == uid),
    };
    found.ok_or_else(|| {
        let known: Vec<_> = revisions.iter().map(|revision| revision.number.to_string()).collect();
        let message = match wanted {
            WantedRevision::Number(number) | WantedRevision::Chosen { number, .. } => {
                format!("there is no revision {number}; there are: {}", known.join(", "))
            }
            WantedRevision::Back(back) => {
                format!("there is no revision {back} before the current one; there are: {}", known.join(", "))
            }
        };
        Outcome::failed(404, OutcomeClass::NotFound, message)
    })
}

/// Patch that restores a revision of a workload, with its media type; `None` if it is current already.
pub(super) fn rollback(
    kind: &str,
    workload: &Value,
    revision: &Revision,
) -> Result<Option<(&'static str, Value)>, Outcome> {
    let version = &workload["metadata"]["resourceVersion"];
    if kind != "Deployment" {
        let mut patch = revision.object["data"].clone();
        let Some(data) = patch.as_object_mut() else {
            let message = format!("revision {} holds no template", revision.number);
            return Err(Outcome::failed(502, OutcomeClass::Internal, message));
        };
        let mut template = revision.object["data"]["spec"]["template"].clone();
        if let Some(template) = template.as_object_mut() {
            template.remove("$patch");
        }
        if template == workload["spec"]["template"] {
            return Ok(None);
        }
        data.insert("metadata".to_owned(), json!({ "resourceVersion": version }));
        return Ok(Some((STRATEGIC_PATCH, patch)));
    }
    if workload["spec"]["paused"] == true {
        let message = "the Deployment is paused: resume its rollout first";
        return Err(Outcome::failed(409, OutcomeClass::Conflict, message));
    }
    let mut template = revision.object["spec"]["template"].clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove(TEMPLATE_HASH);
    }
    if template == workload["spec"]["template"] {
        return Ok(None);
    }
    let mut annotations = Map::new();
    let of = |object: &Value| object["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    let kept = |key: &String| KEPT_ANNOTATIONS.contains(&key.as_str());
    annotations.extend(of(workload).into_iter().filter(|(key, _)| kept(key)));
    annotations.extend(of(&revision.object).into_iter().filter(|(key, _)| !kept(key)));
    Ok(Some((
        JSON_PATCH,
        json!([
            {"op": "replace", "path": "/spec/template", "value": template},
            {"op": "add", "path": "/metadata/annotations", "value": annotations},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
        ]),
    )))
}
