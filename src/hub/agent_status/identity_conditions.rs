//! The conditions of KubesvcIdentities: whether an object can be used, and whether a credential was seen that matches another
//! object too.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;
use parking_lot::Mutex;

use crate::informers::IdentityIndex;
use kubesvc_core::identity::{KubesvcIdentity, KubesvcIdentityStatus};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::kube_access::{KubeAccess, KubeObjects, WriteOptions, unless_stale};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_runtime::work_queue::WorkQueue;

/// Time limit for one answer of the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before a status that could not be written is written again.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of objects that are remembered as ambiguous.
const MAX_AMBIGUOUS: usize = 10_000;

/// Writes the status of KubesvcIdentities.
#[async_trait]
pub trait IdentityObjects: Send + Sync {
    /// Writes the status of an object, unless it has changed. Its change is seen, and decided about, later.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses.
    async fn write_status(&self, object: &KubesvcIdentity) -> Result<(), String>;
}

/// KubesvcIdentities at the API server.
pub struct KubeIdentityObjects(KubeObjects<KubesvcIdentity>);

impl KubeIdentityObjects {
    /// Objects in `namespace`.
    pub fn new(kube: &KubeAccess, namespace: &str) -> Self {
        Self(kube.clone().within(REQUEST_TIMEOUT).namespaced(namespace))
    }
}

#[async_trait]
impl IdentityObjects for KubeIdentityObjects {
    async fn write_status(&self, object: &KubesvcIdentity) -> Result<(), String> {
        // Whoever is started next writes it, if this process ends here.
        let options = WriteOptions::default();
        let written = unless_stale(self.0.replace_status(&object.name_any(), object, options).await);
        written.map(drop).map_err(|error| chain(&error))
    }
}

/// What the conditions are made of.
#[derive(Default)]
pub(crate) struct IdentityConditions {
    /// Names of objects whose conditions may be another.
    pub(crate) changed: Arc<WorkQueue<String>>,
    /// Objects that matched a credential together with others, with their generation then.
    ambiguous: Mutex<HashMap<String, Option<i64>>>,
}

impl IdentityConditions {
    /// An object was added, changed or deleted.
    pub(crate) fn changed(&self, name: &str) {
        self.changed.wake(name.to_owned());
    }

    /// A credential matched all of these.
    pub(crate) fn saw_ambiguous(&self, names: &[String]) {
        let mut ambiguous = self.ambiguous.lock();
        for name in names {
            if ambiguous.len() < MAX_AMBIGUOUS && !ambiguous.contains_key(name) {
                ambiguous.insert(name.clone(), None);
                self.changed.wake(name.clone());
            }
        }
    }

    /// The status of an object; `None` if it is as it should be.
    fn status(
        &self,
        object: &KubesvcIdentity,
        problem: Option<&str>,
        now: Timestamp,
    ) -> Option<KubesvcIdentityStatus> {
        let generation = object.metadata.generation;
        let is_ambiguous = {
            let mut ambiguous = self.ambiguous.lock();
            let seen = ambiguous
                .get_mut(&object.name_any())
                .map(|at| *at.get_or_insert(generation.unwrap_or_default()));
            // Whoever changed the object since may have mended it; if not, the next credential says so.
            let counts = seen == Some(generation.unwrap_or_default());
            if !counts {
                ambiguous.remove(&object.name_any());
            }
            counts
        };
        let before = object.status.clone().unwrap_or_default();
        let ready = match problem {
            Some(problem) => ("False", "Invalid", problem),
            None if object.spec.suspended => ("False", "Suspended", "its agents are not let in"),
            None => ("True", "Valid", "it identifies agents"),
        };
        let known = before.conditions.iter().find(|one| one.type_ == "Ambiguous");
        let was_ambiguous =
            known.is_some_and(|one| one.status == "True" && one.observed_generation == generation);
        let ambiguous = if is_ambiguous || was_ambiguous {
            (
                "True",
                "SeveralMatch",
                "an agent showed a credential that matches another KubesvcIdentity too, and was refused",
            )
        } else {
            ("False", "NoneSeen", "no credential was seen that matches another KubesvcIdentity too")
        };
        let conditions = [("Ready", ready), ("Ambiguous", ambiguous)]
            .map(|(type_, said)| condition(&before.conditions, type_, said, generation, now));
        let status = KubesvcIdentityStatus { observed_generation: generation, conditions: conditions.into() };
        (object.status.as_ref() != Some(&status)).then_some(status)
    }
}

fn condition(
    before: &[Condition],
    type_: &str,
    (status, reason, message): (&str, &str, &str),
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let same = before.iter().find(|one| one.type_ == type_ && one.status == status);
    let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: same.map_or(Time(whole), |one| one.last_transition_time.clone()),
        observed_generation: generation,
    }
}

/// Starts the task that writes the conditions.
pub(crate) fn start(
    background: &BackgroundTasks,
    conditions: &Arc<IdentityConditions>,
    index: Arc<IdentityIndex>,
    objects: Arc<dyn IdentityObjects>,
) {
    let task = TaskSpec::new("conditions of identities", "Writes the conditions of KubesvcIdentities");
    let task = task.woken_by(&conditions.changed).without_deadline().retry_delays(RETRY_DELAY, RETRY_DELAY);
    let task = task.log_failure(|error| {
        warn_unless_away!(error, "cannot write the status of a KubesvcIdentity; retrying");
    });
    let conditions = Arc::clone(conditions);
    background.start(task, move |names: Vec<String>| {
        let (conditions, index, objects) =
            (Arc::clone(&conditions), Arc::clone(&index), Arc::clone(&objects));
        async move {
            for name in names {
                let Some((object, problem)) = index.get(&name) else {
                    conditions.ambiguous.lock().remove(&name);
                    continue;
                };
                let Some(status) = conditions.status(&object, problem.as_deref(), Timestamp::now()) else {
                    continue;
                };
                let object = KubesvcIdentity { status: Some(status), ..(*object).clone() };
                if let Err(error) = objects.write_status(&object).await {
                    return AttemptOutcome::failed(error);
                }
            }
            AttemptOutcome::Done
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(generation: i64) -> KubesvcIdentity {
        let text = serde_json::json!({
            "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcIdentity",
            "metadata": {"name": "a", "generation": generation},
            "spec": {"match": {"uri": "a"}, "allow": {"zones": ["z"]}},
        });
        serde_json::from_value(text).expect("an identity")
    }

    fn shown(status: &KubesvcIdentityStatus) -> Vec<(String, String, String)> {
        let of = |one: &Condition| (one.type_.clone(), one.status.clone(), one.reason.clone());
        status.conditions.iter().map(of).collect()
    }

    #[test]
    fn an_object_is_ready_unless_it_cannot_be_used_and_ambiguous_until_it_is_changed() {
        let conditions = IdentityConditions::default();
        let at = |second| Timestamp::from_second(second).expect("a time");
        let mut object = object(1);
        let status = conditions.status(&object, None, at(5)).expect("a new one");
        assert_eq!(shown(&status)[0], ("Ready".into(), "True".into(), "Valid".into()));
        object.status = Some(status);
        assert_eq!(conditions.status(&object, None, at(9)), None, "no write without a change");

        conditions.saw_ambiguous(&["a".into(), "b".into()]);
        assert_eq!(conditions.changed.try_take(9).len(), 2);
        let status = conditions.status(&object, None, at(9)).expect("a change");
        assert_eq!(shown(&status)[1].1, "True");
        assert_eq!(status.conditions[0].last_transition_time.0, at(5), "that one has not changed");
        object.status = Some(status);
        let another = IdentityConditions::default();
        assert_eq!(another.status(&object, None, at(9)), None, "another replica keeps it");

        object.metadata.generation = Some(2);
        let status = conditions.status(&object, Some("broken"), at(20)).expect("a change");
        assert_eq!(shown(&status)[0], ("Ready".into(), "False".into(), "Invalid".into()));
        assert_eq!(
            (status.conditions[0].message.as_str(), shown(&status)[1].1.as_str()),
            ("broken", "False")
        );
        assert_eq!(status.observed_generation, Some(2));
    }
}
