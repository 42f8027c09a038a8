//! Undo of a rollout, and the history of its revisions: GET, LIST of revisions, and for undo PATCH at the version that
//! was read.

use std::time::Duration;

use serde_json::Value;

use super::changes::has_revisions;
use super::deployed::MAX_CONFLICTS;
use super::outcome::{ApiAnswer, Outcome, OutcomeBody, OutcomeClass};
use super::program::{ApiRequest, Method, NotStarted, Program, ProgramContext, Step, go_on};
use super::revisions::{Revision, WantedRevision, choose, history, list_path, revisions, rollback};
use super::{InvalidOperation, MANAGER};
use crate::wire::operations as wire;
use crate::wire::operations::Target;
use crate::wire::operations::undo_rollout::To;

/// Reads a workload and its revisions.
#[derive(Debug)]
struct RevisionReader {
    kind: String,
    path: String,
    workload: Option<Value>,
}

/// State of the reader, or its result.
enum Reading {
    Next(ApiRequest),
    Read(Value, Vec<Revision>),
}

impl RevisionReader {
    fn new(target: Option<&Target>, context: &ProgramContext<'_>) -> Result<Self, NotStarted> {
        let (resource, path) = context.object(target)?;
        has_revisions(&resource)?;
        Ok(Self { kind: resource.kind, path, workload: None })
    }

    fn begin(&mut self) -> ApiRequest {
        self.workload = None;
        ApiRequest::get(self.path.clone())
    }

    fn take(&mut self, answer: &ApiAnswer) -> Result<Reading, Outcome> {
        let body = answer.object()?;
        let Some(workload) = self.workload.take() else {
            let path = list_path(&self.kind, &body).ok_or_else(|| {
                let message = "the object has no selector, so its revisions cannot be found";
                Outcome::failed(422, OutcomeClass::Invalid, message)
            })?;
            self.workload = Some(body);
            return Ok(Reading::Next(ApiRequest::get(path)));
        };
        let revisions = revisions(&self.kind, &workload, &body);
        Ok(Reading::Read(workload, revisions))
    }
}

#[derive(Debug)]
pub(super) struct History {
    reader: RevisionReader,
}

impl History {
    pub(super) fn new(
        verb: &wire::RevisionHistory,
        context: &ProgramContext<'_>,
    ) -> Result<Self, NotStarted> {
        Ok(Self { reader: RevisionReader::new(verb.target.as_ref(), context)? })
    }
}

impl Program for History {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        let Some(answer) = answer else { return Step::Request(self.reader.begin()) };
        match go_on!(self.reader.take(answer)) {
            Reading::Next(request) => Step::Request(request),
            Reading::Read(_, revisions) => {
                Step::Done(Outcome::done(200, OutcomeBody::Json(history(&revisions))))
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Undo {
    reader: RevisionReader,
    wanted: WantedRevision,
    dry_run: bool,
    patching: bool,
    conflicts: u32,
}

impl Undo {
    pub(super) fn new(verb: &wire::UndoRollout, context: &ProgramContext<'_>) -> Result<Self, NotStarted> {
        let wanted = match verb.to {
            Some(To::ToRevision(number)) => WantedRevision::Number(number),
            Some(To::RevisionsBack(back)) => WantedRevision::Back(back),
            None => {
                let needed = "undo_rollout needs to_revision or revisions_back";
                return Err(InvalidOperation::Fields(needed).into());
            }
        };
        let reader = RevisionReader::new(verb.target.as_ref(), context)?;
        Ok(Self { reader, wanted, dry_run: context.dry_run, patching: false, conflicts: 0 })
    }

    fn begin(&mut self) -> Step {
        self.patching = false;
        Step::Request(self.reader.begin())
    }

    fn patch(&mut self, workload: Value, revisions: &[Revision]) -> Step {
        let revision = go_on!(choose(revisions, &self.wanted));
        // A retry after a conflict must choose the same revision: "one back" may be another one by then. The conflict
        // may be with this patch itself, sent twice by an agent without an answer, and then the revision has a new
        // number.
        self.wanted = WantedRevision::Chosen { uid: revision.uid().clone(), number: revision.number };
        let Some((content_type, patch)) = go_on!(rollback(&self.reader.kind, &workload, revision)) else {
            return Step::Done(Outcome::done(200, OutcomeBody::Json(workload)));
        };
        self.patching = true;
        let parameters = [("fieldManager", MANAGER)];
        Step::Request(ApiRequest::write(
            Method::Patch,
            &self.reader.path,
            &parameters,
            self.dry_run,
            content_type,
            &patch,
        ))
    }
}

impl Program for Undo {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        let Some(answer) = answer else { return self.begin() };
        if self.patching {
            if answer.status == 409 && self.conflicts < MAX_CONFLICTS {
                self.conflicts += 1;
                return self.begin();
            }
            return Step::Done(Outcome::of(answer));
        }
        match go_on!(self.reader.take(answer)) {
            Reading::Next(request) => Step::Request(request),
            Reading::Read(workload, revisions) => self.patch(workload, &revisions),
        }
    }
}
