//! Operations on the cluster of an account, as programs of requests.
//!
//! A verb (deploy, scale, undo …) is a [`Program`]: it takes the API server's last answer and returns the next request,
//! until there is an outcome. A program does no I/O and reads no clock, so it runs the same over an agent's connection,
//! in a test against an API server, and against a test's own answers. Callers write operations in protobuf's text
//! format or JSON (`parsing`); they are checked (`operation`) before anything is sent.
//!
//! | module | owns |
//! |---|---|
//! | `parsing`, `operation` | the text form and JSON; the checks of a well-formed operation |
//! | `program`, `outcome` | the interface of programs: requests and steps; answers and outcomes |
//! | `kinds` | the resource of a kind, by the cluster's own lists |
//! | `manifest` | one object from JSON or YAML, and last-applied |
//! | `merge`, `list_keys` | the three-way patch of `kubectl apply`, and the merge strategies of native kinds' lists |
//! | `deploy`, `deployed`, `apply`, `server_side`, `replace` | deploys, by mode |
//! | `delete`, `changes`, `rollouts`, `revisions`, `reads` | the other verbs |
//!
//! To add a verb: a message in `proto/operations.proto`, its checks in `operation`, a program, and its arm in
//! [`program_for`].

mod apply;
mod changes;
mod delete;
mod deploy;
mod deployed;
mod kinds;
mod list_keys;
mod manifest;
mod merge;
mod operation;
mod outcome;
mod parsing;
mod program;
mod reads;
mod replace;
mod revisions;
mod rollouts;
mod server_side;
#[cfg(test)]
mod tests;

pub use delete::delete_wait;
pub use deploy::{ApplyMode, ApplySettings, KindApplySettings, Preference};
pub use kinds::{KindLookup, Kinds, Resource};
pub use list_keys::merge_rule;
pub use manifest::{MAX_MANIFEST_BYTES, ManifestError};
pub use operation::{
    InvalidOperation, MAX_DEADLINE, MAX_RESULT_BYTES, ObjectKey, Operation, OperationVerb, SettledByHand,
    UnreadOperation,
};
pub use outcome::{ApiAnswer, Outcome, OutcomeBody, OutcomeClass, OutcomeFailure};
pub use parsing::{ParseError, operation_from_text, result_from_text};
pub use program::{ApiRequest, Method, NotStarted, Program, ProgramContext, Step};

use std::sync::Arc;

use crate::wire::operations::operation::Verb;

/// Field manager of the writes of operations, except of client-side applies.
pub(crate) const MANAGER: &str = "kubesvc";
/// Field manager of `kubectl apply`, shared by client-side applies so that each continues from the other.
pub(crate) const CLIENT_SIDE_MANAGER: &str = "kubectl-client-side-apply";

/// Creates the program of an operation.
///
/// # Errors
///
/// [`NotStarted::Read`] names a path to read from the cluster first, for the resource of a kind: pass the answer to
/// [`Kinds::learn`] and call again. [`NotStarted::Invalid`] is the outcome.
pub fn program_for(
    operation: &Operation,
    context: &ProgramContext<'_>,
) -> Result<Box<dyn Program>, NotStarted> {
    let nothing = Arc::default();
    let document = operation.document().unwrap_or(&nothing);
    Ok(match operation.verb() {
        Verb::Deploy(verb) => deploy::program(verb, document, context)?,
        Verb::Delete(verb) => Box::new(delete::Delete::new(verb, context)?),
        Verb::Patch(verb) => Box::new(changes::Change::patch(verb, document, context)?),
        Verb::Scale(verb) => Box::new(changes::Change::scale(verb, context)?),
        Verb::PauseRollout(verb) => Box::new(changes::Change::pause(verb.target.as_ref(), true, context)?),
        Verb::ResumeRollout(verb) => Box::new(changes::Change::pause(verb.target.as_ref(), false, context)?),
        Verb::RestartRollout(verb) => Box::new(changes::Change::restart(verb, context)?),
        Verb::UndoRollout(verb) => Box::new(rollouts::Undo::new(verb, context)?),
        Verb::RevisionHistory(verb) => Box::new(rollouts::History::new(verb, context)?),
        Verb::Get(verb) => Box::new(reads::Read::get(verb, context)?),
        Verb::List(verb) => Box::new(reads::Read::list(verb, context)?),
        Verb::Logs(verb) => Box::new(reads::Logs::new(verb, context)?),
        Verb::Discovery(_) => Box::new(reads::Discovery::default()),
    })
}
