//! Verbs with one PATCH: patch, scale, pause, resume and restart of rollouts.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::outcome::{ApiAnswer, Outcome, OutcomeBody, OutcomeClass};
use super::program::{ApiRequest, Method, NotStarted, Program, ProgramContext, Step, go_on};
use super::{InvalidOperation, MANAGER, Resource};
use crate::wire::operations as wire;
use crate::wire::operations::Target;
use crate::wire::operations::patch::Type;

/// Media type of a merge patch.
pub(super) const MERGE_PATCH: &str = "application/merge-patch+json";
/// Media type of a JSON patch.
pub(super) const JSON_PATCH: &str = "application/json-patch+json";
/// Media type of a strategic merge patch.
pub(super) const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
/// Annotation with the cause of a revision.
pub(super) const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";
/// Annotation that restarts a rollout, as kubectl writes it.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// A program of consecutive requests, up to the first failure.
#[derive(Debug)]
pub(super) struct Change {
    requests: VecDeque<ApiRequest>,
    /// Effect of a further patch that a dry run shows but does not send.
    not_sent: Option<Value>,
    /// Whether the first answer is the current object, which must not be paused.
    is_refused_if_paused: bool,
}

impl Change {
    fn of(path: &str, content_type: &'static str, patch: &Value, dry_run: bool) -> Self {
        let parameters = [("fieldManager", MANAGER)];
        let request = ApiRequest::write(Method::Patch, path, &parameters, dry_run, content_type, patch);
        Self { requests: VecDeque::from([request]), not_sent: None, is_refused_if_paused: false }
    }

    pub(super) fn patch(
        verb: &wire::Patch,
        body: &Value,
        context: &ProgramContext<'_>,
    ) -> Result<Self, NotStarted> {
        let (resource, path) = context.object(verb.target.as_ref())?;
        let is_json_patch = verb.r#type() == Type::Json;
        let mut body = body.clone();
        let cause = format!("kubesvc patch {}, operation {}", resource.plural, context.operation_id);
        let recorded = verb.record.then(|| nested(&["metadata", "annotations", CHANGE_CAUSE], cause.into()));
        let content_type = match verb.r#type() {
            Type::Unspecified | Type::Strategic => STRATEGIC_PATCH,
            Type::Merge => MERGE_PATCH,
            Type::Json => JSON_PATCH,
        };
        let Some(recorded) = recorded else {
            return Ok(Self::of(&path, content_type, &body, context.dry_run));
        };
        if is_json_patch {
            // A JSON patch adds only to existing annotations, so the cause follows in a patch of its own.
            let mut both = Self::of(&path, content_type, &body, context.dry_run);
            if context.dry_run {
                // A dry run would apply it to the unchanged object, so its answer would not show the first patch.
                both.not_sent = Some(recorded);
            } else {
                both.requests.extend(Self::of(&path, MERGE_PATCH, &recorded, false).requests);
            }
            return Ok(both);
        }
        add(&mut body, &recorded);
        Ok(Self::of(&path, content_type, &body, context.dry_run))
    }

    pub(super) fn scale(verb: &wire::Scale, context: &ProgramContext<'_>) -> Result<Self, NotStarted> {
        let (_, path) = context.object(verb.target.as_ref())?;
        let patch = json!({"spec": {"replicas": verb.replicas}});
        Ok(Self::of(&format!("{path}/scale"), MERGE_PATCH, &patch, context.dry_run))
    }

    pub(super) fn pause(
        target: Option<&Target>,
        paused: bool,
        context: &ProgramContext<'_>,
    ) -> Result<Self, NotStarted> {
        let (resource, path) = context.object(target)?;
        let pausable = [("apps", "Deployment"), ("argoproj.io", "Rollout")];
        if !pausable.contains(&(resource.group.as_str(), resource.kind.as_str())) {
            return Err(InvalidOperation::Fields(
                "only a Deployment of the group apps or a Rollout of argoproj.io can be paused or resumed",
            )
            .into());
        }
        Ok(Self::of(&path, MERGE_PATCH, &json!({"spec": {"paused": paused}}), context.dry_run))
    }

    pub(super) fn restart(
        verb: &wire::RestartRollout,
        context: &ProgramContext<'_>,
    ) -> Result<Self, NotStarted> {
        let (resource, path) = context.object(verb.target.as_ref())?;
        has_revisions(&resource)?;
        let annotations = ["spec", "template", "metadata", "annotations", RESTARTED_AT];
        let patch = nested(&annotations, context.time_of_day.into());
        let mut change = Self::of(&path, MERGE_PATCH, &patch, context.dry_run);
        // A restart of a paused Deployment rolls nothing out; kubectl refuses it too. No other kind can be paused.
        if resource.kind == "Deployment" {
            change.requests.push_front(ApiRequest::get(path));
            change.is_refused_if_paused = true;
        }
        Ok(change)
    }
}

/// Refuses kinds whose pods are not rolled out in revisions.
pub(super) fn has_revisions(resource: &Resource) -> Result<(), InvalidOperation> {
    let known = resource.group == "apps"
        && ["Deployment", "DaemonSet", "StatefulSet"].contains(&resource.kind.as_str());
    let refused = "only a Deployment, DaemonSet or StatefulSet of the group apps has rollouts and revisions";
    if known { Ok(()) } else { Err(InvalidOperation::Fields(refused)) }
}

/// Wraps a value into a patch: `["spec", "replicas"]` and `3` become `{"spec": {"replicas": 3}}`.
fn nested(path: &[&str], value: Value) -> Value {
    path.iter().rev().fold(value, |value, key| Value::Object(Map::from_iter([((*key).to_owned(), value)])))
}

/// Adds the fields of one patch to another.
fn add(patch: &mut Value, more: &Value) {
    let (Some(patch), Some(more)) = (patch.as_object_mut(), more.as_object()) else { return };
    for (key, value) in more {
        match patch.get_mut(key) {
            Some(held) if held.is_object() && value.is_object() => add(held, value),
            _ => drop(patch.insert(key.clone(), value.clone())),
        }
    }
}

impl Program for Change {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        if let Some(answer) = answer {
            let last = self.requests.is_empty();
            if last {
                let mut outcome = Outcome::of(answer);
                if let (OutcomeBody::Json(object), Some(patch)) = (&mut outcome.body, &self.not_sent) {
                    add(object, patch);
                }
                return Step::Done(outcome);
            }
            let object = go_on!(answer.object());
            if std::mem::take(&mut self.is_refused_if_paused) && object["spec"]["paused"] == true {
                let message = "the Deployment is paused: resume its rollout first";
                return Step::Done(Outcome::failed(409, OutcomeClass::Conflict, message));
            }
        }
        match self.requests.pop_front() {
            Some(request) => Step::Request(request),
            None => Step::Done(Outcome::done(200, OutcomeBody::Empty)),
        }
    }
}
