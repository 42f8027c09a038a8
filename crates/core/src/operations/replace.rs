//! Deploys without a merge: create, replace, and recreate.

use std::time::Duration;

use serde_json::{Value, json};

use super::deployed::{Deployed, MAX_CONFLICTS, STRICT, create, refused_as_too_large};
use super::manifest::with_last_applied;
use super::outcome::{ApiAnswer, Outcome, OutcomeBody, OutcomeClass};
use super::program::{ApiRequest, JSON, Method, Program, Step, go_on};
use super::{CLIENT_SIDE_MANAGER, MANAGER};

/// Creates an object that must not exist.
#[derive(Debug)]
pub(super) struct Create {
    deployed: Deployed,
}

impl Create {
    pub(super) fn new(deployed: Deployed) -> Self {
        Self { deployed }
    }
}

impl Program for Create {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        match answer {
            None => Step::Request(create(&self.deployed, MANAGER, Value::clone(&self.deployed.object))),
            Some(answer) => Step::Done(Outcome::of(answer)),
        }
    }
}

/// Replaces an object as a whole, at the version that was read, or creates it.
#[derive(Debug)]
pub(super) struct Replace {
    deployed: Deployed,
    state: ReplaceState,
    conflicts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplaceState {
    Reading,
    Writing,
}

impl Replace {
    pub(super) fn new(deployed: Deployed) -> Self {
        Self { deployed, state: ReplaceState::Reading, conflicts: 0 }
    }

    fn read(&mut self) -> Step {
        self.state = ReplaceState::Reading;
        Step::Request(ApiRequest::get(self.deployed.path.clone()))
    }
}

impl Program for Replace {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        let Some(answer) = answer else { return self.read() };
        let deployed = &self.deployed;
        match (self.state, answer.status) {
            (ReplaceState::Reading, 404) => {
                self.state = ReplaceState::Writing;
                Step::Request(create(deployed, MANAGER, Value::clone(&deployed.object)))
            }
            (ReplaceState::Reading, _) => {
                let live = go_on!(answer.object());
                let mut object = Value::clone(&deployed.object);
                object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
                let parameters = [("fieldManager", MANAGER), STRICT];
                let put = ApiRequest::write(
                    Method::Put,
                    &deployed.path,
                    &parameters,
                    deployed.dry_run,
                    JSON,
                    &object,
                );
                self.state = ReplaceState::Writing;
                Step::Request(put)
            }
            (ReplaceState::Writing, 404 | 409) if self.conflicts < MAX_CONFLICTS => {
                self.conflicts += 1;
                self.read()
            }
            (ReplaceState::Writing, _) => Step::Done(Outcome::of(answer)),
        }
    }
}

/// Interval between checks whether an object is gone.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Deletes an object, waits until it is gone, and creates it. The operation's deadline bounds the wait.
#[derive(Debug)]
pub(super) struct Recreate {
    deployed: Deployed,
    /// uid of the deleted object.
    uid: Value,
    /// The API server's conflict, until it is known whether the object still exists.
    conflict: Option<Outcome>,
    state: RecreateState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecreateState {
    Begin,
    Reading,
    Deleting,
    Waiting,
    Creating,
}

impl Recreate {
    pub(super) fn new(deployed: Deployed) -> Self {
        Self { deployed, uid: Value::Null, conflict: None, state: RecreateState::Begin }
    }

    fn read(&mut self, state: RecreateState) -> Step {
        self.state = state;
        Step::Request(ApiRequest::get(self.deployed.path.clone()))
    }

    fn create(&mut self) -> Step {
        self.state = RecreateState::Creating;
        let (deployed, is_secret) = (&self.deployed, self.is_secret());
        // With the annotation of an apply, so that a later apply can continue from it.
        let object = Value::clone(&deployed.object);
        Step::Request(if is_secret {
            create(deployed, MANAGER, object)
        } else {
            create(deployed, CLIENT_SIDE_MANAGER, with_last_applied(object))
        })
    }

    fn is_secret(&self) -> bool {
        let resource = &self.deployed.resource;
        resource.group.is_empty() && resource.kind == "Secret"
    }

    fn delete(&mut self, live: &Value) -> Step {
        self.uid = live["metadata"]["uid"].clone();
        self.state = RecreateState::Deleting;
        let options = json!({
            "propagationPolicy": "Background", "preconditions": {"uid": self.uid},
        });
        let deployed = &self.deployed;
        Step::Request(ApiRequest::delete(&deployed.path, options, deployed.dry_run))
    }
}

impl Program for Recreate {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        let Some(answer) = answer else {
            if self.state != RecreateState::Begin {
                return self.read(RecreateState::Waiting);
            }
            let refused = (!self.is_secret()).then(|| refused_as_too_large(&self.deployed)).flatten();
            return refused.map_or_else(|| self.read(RecreateState::Reading), Step::Done);
        };
        match (self.state, answer.status) {
            (RecreateState::Begin, _) => self.read(RecreateState::Reading),
            (RecreateState::Reading | RecreateState::Waiting, 404) => self.create(),
            (RecreateState::Reading, _) => {
                let live = go_on!(answer.object());
                self.delete(&live)
            }
            (RecreateState::Deleting, 409) => {
                // Another object has the name now, or an admission webhook denies the delete.
                self.conflict = Some(Outcome::refused(answer));
                self.read(RecreateState::Waiting)
            }
            (RecreateState::Deleting, status) => {
                if status != 404 {
                    go_on!(answer.object());
                }
                if self.deployed.dry_run {
                    // The object still exists, so a dry run cannot create it.
                    let body = OutcomeBody::Json(Value::clone(&self.deployed.object));
                    return Step::Done(Outcome::done(200, body));
                }
                self.read(RecreateState::Waiting)
            }
            (RecreateState::Waiting, _) => {
                let live = go_on!(answer.object());
                if live["metadata"]["uid"] != self.uid {
                    let message = "another object of this name was created in the meantime";
                    return Step::Done(Outcome::failed(409, OutcomeClass::Conflict, message));
                }
                self.conflict.take().map_or(Step::Wait(POLL_INTERVAL), Step::Done)
            }
            (RecreateState::Creating, _) => Step::Done(Outcome::of(answer)),
        }
    }
}
