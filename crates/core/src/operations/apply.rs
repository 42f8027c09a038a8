//! Client-side apply, as `kubectl apply` does it: GET, then POST, or PATCH with the changes of the three-way merge.
//! Both write the same annotation under the same field manager, so that each continues from the other.
//!
//! The patch names the resourceVersion of the merge, so that of two concurrent applies the second one removes the
//! fields that only the first one had; after a conflict the object is read and merged again. The last attempt names no
//! resourceVersion, as kubectl never does: where a controller writes the status of an object faster than it can be
//! read, every other attempt would conflict.

use std::time::Duration;

use serde_json::{Value, json};

use super::CLIENT_SIDE_MANAGER;
use super::deployed::{Deployed, MAX_CONFLICTS, STRICT, create, refused_as_too_large};
use super::manifest::{LAST_APPLIED, annotation, with_last_applied};
use super::merge::{three_way_patch, without_nulls};
use super::outcome::{ApiAnswer, Outcome, OutcomeBody};
use super::program::{ApiRequest, Method, Program, Step, go_on};

#[derive(Debug)]
pub(super) struct Apply {
    deployed: Deployed,
    state: ApplyStage,
    conflicts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApplyStage {
    Begin,
    Reading,
    Creating,
    Patching,
}

impl Apply {
    pub(super) fn new(deployed: Deployed) -> Self {
        Self { deployed, state: ApplyStage::Begin, conflicts: 0 }
    }

    fn read(&mut self) -> Step {
        self.state = ApplyStage::Reading;
        Step::Request(ApiRequest::get(self.deployed.path.clone()))
    }

    /// Reads again after a conflict, or ends.
    fn again(&mut self, answer: &ApiAnswer) -> Step {
        if self.conflicts == MAX_CONFLICTS {
            return Step::Done(Outcome::refused(answer));
        }
        self.conflicts += 1;
        self.read()
    }

    fn write(&mut self, live: Option<Value>) -> Step {
        let wanted = with_last_applied(Value::clone(&self.deployed.object));
        let Some(live) = live else {
            self.state = ApplyStage::Creating;
            // The annotation keeps nulls, as inputs of the merge; the object has no null fields, custom kinds included.
            let object = without_nulls(&wanted);
            return Step::Request(create(&self.deployed, CLIENT_SIDE_MANAGER, object));
        };
        let resource = &self.deployed.resource;
        let last = annotation(&live, LAST_APPLIED).and_then(|last| serde_json::from_str(last).ok());
        let last = last.unwrap_or_default();
        let patch = three_way_patch(&resource.group, &resource.kind, &last, &wanted, &live);
        let Some(mut patch) = patch else {
            return Step::Done(Outcome::done(200, OutcomeBody::Json(live)));
        };
        if self.conflicts < MAX_CONFLICTS && patch.body["metadata"].get("resourceVersion").is_none() {
            let seen = live["metadata"]["resourceVersion"].clone();
            match patch.body["metadata"].as_object_mut() {
                Some(metadata) => drop(metadata.insert("resourceVersion".to_owned(), seen)),
                None => patch.body["metadata"] = json!({ "resourceVersion": seen }),
            }
        }
        self.state = ApplyStage::Patching;
        Step::Request(ApiRequest::write(
            Method::Patch,
            &self.deployed.path,
            &[("fieldManager", CLIENT_SIDE_MANAGER), STRICT],
            self.deployed.dry_run,
            patch.content_type,
            &patch.body,
        ))
    }
}

impl Program for Apply {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        let Some(answer) = answer else {
            return refused_as_too_large(&self.deployed).map_or_else(|| self.read(), Step::Done);
        };
        match (self.state, answer.status) {
            (ApplyStage::Begin, _) => self.read(),
            (ApplyStage::Reading, 404) => self.write(None),
            (ApplyStage::Reading, _) => {
                let live = go_on!(answer.object());
                self.write(Some(live))
            }
            (ApplyStage::Creating | ApplyStage::Patching, 409) => self.again(answer),
            // The object was deleted since it was read.
            (ApplyStage::Patching, 404) if self.conflicts < MAX_CONFLICTS => self.again(answer),
            (ApplyStage::Creating | ApplyStage::Patching, _) => Step::Done(Outcome::of(answer)),
        }
    }
}
