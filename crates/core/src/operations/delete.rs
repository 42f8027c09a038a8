//! Delete of one object, or of the objects that match a selector. Each delete is bound to the uid that was read first,
//! so that a new object of the same name survives, even if the operation runs again.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::operation::MAX_RESULT_BYTES;
use super::outcome::{ApiAnswer, Outcome, OutcomeBody, OutcomeClass};
use super::program::{ApiRequest, NotStarted, Program, ProgramContext, Step, go_on, with_query};
use super::replace::POLL_INTERVAL;
use super::{InvalidOperation, Resource};
use crate::wire::operations as wire;
use crate::wire::operations::delete::Propagation;

/// Default time to wait until the objects are gone.
const WAIT: Duration = Duration::from_secs(30);

/// Time for which a delete waits until its objects are gone: the caller's grace, or 30 s.
pub fn delete_wait(verb: &wire::Delete) -> Duration {
    let grace = verb.grace_s.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    grace.filter(|grace| !grace.is_zero()).unwrap_or(WAIT)
}

/// Maximum number of objects that one operation deletes.
const MAX_OBJECTS: usize = 10_000;

#[derive(Debug)]
pub(super) struct Delete {
    resource: Resource,
    /// Path of the first read.
    read: String,
    /// Whether the first read is a list.
    lists: bool,
    options: Value,
    wait: Duration,
    ignore_not_found: bool,
    dry_run: bool,
    /// Objects that a dry run would delete: one object, or one list of all pages.
    would_delete: Option<Value>,
    /// Size of the answers in [`Self::would_delete`], in bytes.
    read_bytes: usize,
    /// Number of objects omitted from the list, because a result has no room for them.
    left_out: usize,
    state: DeleteStage,
    /// Objects to delete, then those to wait for.
    objects: VecDeque<FoundObject>,
    gone: VecDeque<FoundObject>,
    /// The API server's conflict, until it is known whether the object still exists.
    conflict: Option<Outcome>,
    /// Continue token of the next page.
    next_page: String,
    deleted_at: Option<Duration>,
}

#[derive(Clone, Debug)]
struct FoundObject {
    path: String,
    uid: Value,
    name: Value,
    namespace: Value,
}

impl FoundObject {
    /// Whether an answer to a read contains this object, rather than another one of its name.
    fn is_in(&self, answer: &ApiAnswer) -> Result<bool, Outcome> {
        if answer.status == 404 {
            return Ok(false);
        }
        Ok(answer.object()?["metadata"]["uid"] == self.uid)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeleteStage {
    Begin,
    Reading,
    Deleting,
    /// Checks, after a conflict or a missing answer, whether the object still exists.
    Checking,
    Waiting,
}

impl Delete {
    pub(super) fn new(verb: &wire::Delete, context: &ProgramContext<'_>) -> Result<Self, NotStarted> {
        let target = verb.target.as_ref().ok_or(InvalidOperation::Missing("delete.target"))?;
        let lists = !verb.label_selector.is_empty();
        let (resource, read) = if lists {
            let resource = context.resource_of(target)?;
            let collection = resource.collection(&target.namespace);
            let read =
                with_query(&collection, &[("labelSelector", &verb.label_selector), ("limit", "500")], false);
            (resource, read)
        } else {
            context.object(Some(target))?
        };
        let mut options = json!({"propagationPolicy": match verb.propagation() {
            Propagation::Unspecified | Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
        }});
        if let Some(grace) = verb.grace_s {
            options["gracePeriodSeconds"] = grace.into();
        }
        Ok(Self {
            resource,
            read,
            lists,
            options,
            wait: delete_wait(verb),
            ignore_not_found: verb.ignore_not_found,
            dry_run: context.dry_run,
            would_delete: None,
            read_bytes: 0,
            left_out: 0,
            state: DeleteStage::Begin,
            objects: VecDeque::new(),
            gone: VecDeque::new(),
            conflict: None,
            next_page: String::new(),
            deleted_at: None,
        })
    }

    fn found(&self, object: &Value) -> FoundObject {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let path = self.resource.path(&text(&metadata["namespace"]), &text(&metadata["name"]));
        FoundObject {
            path,
            uid: metadata["uid"].clone(),
            name: metadata["name"].clone(),
            namespace: metadata["namespace"].clone(),
        }
    }

    /// Takes the objects of an answer of `bytes` bytes.
    fn take(&mut self, body: Value, bytes: usize) {
        if self.lists {
            let found: Vec<FoundObject> =
                body["items"].as_array().into_iter().flatten().map(|o| self.found(o)).collect();
            self.objects.extend(found);
            body["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut self.next_page);
        } else {
            let found = self.found(&body);
            self.objects.push_back(found);
        }
        if self.dry_run {
            self.show(body, bytes);
        }
    }

    /// Adds the object or a page to the result of a dry run.
    fn show(&mut self, mut body: Value, bytes: usize) {
        self.read_bytes += bytes;
        let Some(shown) = &mut self.would_delete else {
            self.would_delete = Some(body);
            return;
        };
        let items = match body.get_mut("items") {
            Some(Value::Array(items)) => std::mem::take(items),
            _ => Vec::new(),
        };
        match shown.get_mut("items") {
            Some(Value::Array(all)) if self.read_bytes <= MAX_RESULT_BYTES => all.extend(items),
            _ => self.left_out += items.len(),
        }
    }

    /// The outcome, with the result of a dry run.
    fn end(&mut self) -> Step {
        let Some(mut shown) = self.would_delete.take() else {
            return Step::Done(Outcome::done(200, OutcomeBody::Empty));
        };
        if self.lists
            && let Some(metadata) = shown.get_mut("metadata").and_then(Value::as_object_mut)
        {
            // Metadata of the first page only.
            metadata.remove("continue");
            metadata.remove("remainingItemCount");
            if self.left_out > 0 {
                metadata.insert("remainingItemCount".to_owned(), self.left_out.into());
            }
        }
        Step::Done(Outcome::done(200, OutcomeBody::Json(shown)))
    }

    fn delete_next(&mut self, elapsed: Duration) -> Step {
        self.state = DeleteStage::Deleting;
        let Some(object) = self.objects.front() else {
            self.deleted_at = Some(elapsed);
            return self.look_next();
        };
        let mut options = self.options.clone();
        options["preconditions"] = json!({ "uid": object.uid });
        Step::Request(ApiRequest::delete(&object.path, options, self.dry_run))
    }

    /// Checks whether the next object to delete still exists.
    fn check_next(&mut self, elapsed: Duration) -> Step {
        let Some(object) = self.objects.front() else { return self.delete_next(elapsed) };
        self.state = DeleteStage::Checking;
        Step::Request(ApiRequest::get(object.path.clone()))
    }

    /// Polls whether the next object is gone.
    fn look_next(&mut self) -> Step {
        self.state = DeleteStage::Waiting;
        if !self.dry_run
            && let Some(object) = self.gone.front()
        {
            return Step::Request(ApiRequest::get(object.path.clone()));
        }
        self.end()
    }

    /// Outcome while some objects are not gone yet.
    fn accepted(&self) -> Outcome {
        let left: Vec<Value> = self
            .gone
            .iter()
            .map(|object| json!({"namespace": object.namespace, "name": object.name, "uid": object.uid}))
            .collect();
        Outcome::done(202, OutcomeBody::Json(json!({ "stillThere": left })))
    }
}

impl Program for Delete {
    fn next(&mut self, elapsed: Duration, answer: Option<&ApiAnswer>) -> Step {
        let Some(answer) = answer else {
            match self.state {
                DeleteStage::Begin | DeleteStage::Reading => self.state = DeleteStage::Reading,
                DeleteStage::Deleting | DeleteStage::Checking => return self.check_next(elapsed),
                DeleteStage::Waiting => return self.look_next(),
            }
            return Step::Request(ApiRequest::get(self.read.clone()));
        };
        match (self.state, answer.status) {
            (DeleteStage::Begin | DeleteStage::Reading, 404) if self.ignore_not_found && !self.lists => {
                Step::Done(Outcome::done(200, OutcomeBody::Empty))
            }
            (DeleteStage::Begin | DeleteStage::Reading, _) => {
                let body = go_on!(answer.object());
                self.take(body, answer.body.len());
                if self.objects.len() > MAX_OBJECTS {
                    let message = format!("the selector matches more than {MAX_OBJECTS} objects: narrow it");
                    return Step::Done(Outcome::failed(413, OutcomeClass::TooLarge, message));
                }
                if self.next_page.is_empty() {
                    return self.delete_next(elapsed);
                }
                let next = format!("{}&continue={}", self.read, encoded(&self.next_page));
                Step::Request(ApiRequest::get(next))
            }
            (DeleteStage::Deleting, 409) => {
                // Another object has the name now, or an admission webhook denies the delete.
                self.conflict = Some(Outcome::refused(answer));
                self.check_next(elapsed)
            }
            (DeleteStage::Deleting, status) => {
                if status != 404 {
                    go_on!(answer.object());
                    self.gone.extend(self.objects.front().cloned());
                }
                self.objects.pop_front();
                self.delete_next(elapsed)
            }
            (DeleteStage::Checking, _) => {
                let Some(object) = self.objects.front() else { return self.delete_next(elapsed) };
                let is_there = go_on!(object.is_in(answer));
                match self.conflict.take() {
                    Some(refused) if is_there => Step::Done(refused),
                    None if is_there => self.delete_next(elapsed),
                    _ => {
                        self.objects.pop_front();
                        self.delete_next(elapsed)
                    }
                }
            }
            (DeleteStage::Waiting, _) => {
                let Some(object) = self.gone.front() else { return self.look_next() };
                let is_there = go_on!(object.is_in(answer));
                if !is_there {
                    self.gone.pop_front();
                    return self.look_next();
                }
                if elapsed.saturating_sub(self.deleted_at.unwrap_or_default()) >= self.wait {
                    return Step::Done(self.accepted());
                }
                Step::Wait(POLL_INTERVAL)
            }
        }
    }

    fn out_of_time(&self) -> Option<Outcome> {
        (self.state == DeleteStage::Waiting).then(|| self.accepted())
    }

    fn goes_on(&self) -> bool {
        // A new program would mistake new objects of the same names for those to delete.
        !matches!(self.state, DeleteStage::Begin | DeleteStage::Reading)
    }
}

fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}
