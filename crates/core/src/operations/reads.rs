//! Read-only verbs: get, list, logs, discovery.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::InvalidOperation;
use super::kinds::split_api_version;
use super::operation::{MAX_LIST, MAX_RESULT_BYTES};
use super::outcome::{ApiAnswer, Outcome, OutcomeBody, OutcomeClass};
use super::program::{ApiRequest, NotStarted, Program, ProgramContext, Step, go_on, with_query};
use crate::wire::operations as wire;

/// Default limit of a log, in bytes.
const LOG_BYTES: usize = 1 << 20;
/// Maximum number of groups and versions that a discovery reads.
const MAX_GROUP_VERSIONS: usize = 1_000;

/// One GET, whose body is the result.
#[derive(Debug)]
pub(super) struct Read {
    request: ApiRequest,
}

impl Read {
    pub(super) fn get(verb: &wire::Get, context: &ProgramContext<'_>) -> Result<Self, NotStarted> {
        let (_, path) = context.object(verb.target.as_ref())?;
        Ok(Self { request: ApiRequest::get(path) })
    }

    pub(super) fn list(verb: &wire::List, context: &ProgramContext<'_>) -> Result<Self, NotStarted> {
        let target = verb.target.as_ref().ok_or(InvalidOperation::Missing("list.target"))?;
        let resource = context.resource_of(target)?;
        let limit = if verb.limit == 0 { MAX_LIST } else { verb.limit }.to_string();
        let name = match target.name.as_str() {
            "" => String::new(),
            name => format!("metadata.name={name}"),
        };
        let parameters = [
            ("labelSelector", verb.label_selector.as_str()),
            ("fieldSelector", &name),
            ("limit", &limit),
            ("continue", &verb.r#continue),
        ];
        let path = with_query(&resource.collection(&target.namespace), &parameters, false);
        Ok(Self { request: ApiRequest::get(path) })
    }
}

impl Program for Read {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        match answer {
            None => Step::Request(self.request.clone()),
            Some(answer) => Step::Done(Outcome::of(answer)),
        }
    }
}

/// The log of a container.
#[derive(Debug)]
pub(super) struct Logs {
    request: ApiRequest,
    limit: usize,
}

impl Logs {
    pub(super) fn new(verb: &wire::Logs, context: &ProgramContext<'_>) -> Result<Self, NotStarted> {
        let (_, path) = context.object(verb.target.as_ref())?;
        let limit = usize::try_from(verb.limit_bytes).ok().filter(|limit| *limit > 0).unwrap_or(LOG_BYTES);
        let limit = limit.min(MAX_RESULT_BYTES);
        let number = |number: Option<i64>| number.map(|number| number.to_string()).unwrap_or_default();
        let parameters = [
            ("container", verb.container.as_str()),
            ("tailLines", &number(verb.tail)),
            ("sinceSeconds", &number(verb.since_s)),
            ("previous", if verb.previous { "true" } else { "" }),
            // One more byte, to detect truncation.
            ("limitBytes", &(limit + 1).to_string()),
        ];
        let mut request = ApiRequest::get(with_query(&format!("{path}/log"), &parameters, false));
        request.accept = "text/plain, application/json";
        Ok(Self { request, limit })
    }
}

impl Program for Logs {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        let Some(answer) = answer else { return Step::Request(self.request.clone()) };
        if !answer.is_success() {
            return Step::Done(Outcome::refused(answer));
        }
        let cut = answer.body.len() > self.limit;
        let text = String::from_utf8_lossy(&answer.body[..answer.body.len().min(self.limit)]).into_owned();
        Step::Done(Outcome::done(answer.status, OutcomeBody::Text { text, cut }))
    }
}

/// The kinds that a cluster serves.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    state: DiscoveryState,
    /// Paths of unread lists.
    lists: VecDeque<String>,
    kinds: Vec<Value>,
    /// Groups and versions whose list could not be read.
    failed: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DiscoveryState {
    #[default]
    Begin,
    Core,
    Groups,
    Lists,
}

impl Discovery {
    fn next_list(&mut self) -> Step {
        self.state = DiscoveryState::Lists;
        match self.lists.front() {
            Some(path) => Step::Request(ApiRequest::get(path.clone())),
            None => {
                let mut body = json!({ "kinds": std::mem::take(&mut self.kinds) });
                if !self.failed.is_empty() {
                    body["failed"] = std::mem::take(&mut self.failed).into();
                }
                Step::Done(Outcome::done(200, OutcomeBody::Json(body)))
            }
        }
    }

    fn take_list(&mut self, answer: &ApiAnswer) -> Result<(), Outcome> {
        let path = self.lists.pop_front().unwrap_or_default();
        // An unavailable aggregated API hides its own kinds and no others.
        if !answer.is_success() {
            if answer.status == 401 || answer.status == 403 {
                return Err(Outcome::refused(answer));
            }
            self.failed.push(path);
            return Ok(());
        }
        let list = answer.json()?;
        let Some(group_version) = list["groupVersion"].as_str() else {
            self.failed.push(path);
            return Ok(());
        };
        let (group, version) = split_api_version(group_version);
        for entry in list["resources"].as_array().into_iter().flatten() {
            if entry["name"].as_str().is_none_or(|name| name.contains('/')) {
                continue;
            }
            self.kinds.push(json!({
                "group": group, "version": version, "kind": entry["kind"], "plural": entry["name"],
                "namespaced": entry["namespaced"], "verbs": entry["verbs"],
            }));
        }
        Ok(())
    }
}

impl Program for Discovery {
    fn next(&mut self, _: Duration, answer: Option<&ApiAnswer>) -> Step {
        let Some(answer) = answer else {
            self.state = DiscoveryState::Core;
            return Step::Request(ApiRequest::get("/api".to_owned()));
        };
        match self.state {
            DiscoveryState::Begin | DiscoveryState::Core => {
                let body = go_on!(answer.object());
                let versions = body["versions"].as_array().into_iter().flatten().filter_map(Value::as_str);
                self.lists.extend(versions.map(|version| format!("/api/{version}")));
                self.state = DiscoveryState::Groups;
                Step::Request(ApiRequest::get("/apis".to_owned()))
            }
            DiscoveryState::Groups => {
                let body = go_on!(answer.object());
                let groups = body["groups"].as_array().into_iter().flatten();
                let versions = groups.flat_map(|group| group["versions"].as_array().into_iter().flatten());
                let paths = versions.filter_map(|version| version["groupVersion"].as_str());
                self.lists.extend(paths.map(|path| format!("/apis/{path}")));
                if self.lists.len() > MAX_GROUP_VERSIONS {
                    let message =
                        format!("the cluster serves more than {MAX_GROUP_VERSIONS} groups and versions");
                    return Step::Done(Outcome::failed(413, OutcomeClass::TooLarge, message));
                }
                self.next_list()
            }
            DiscoveryState::Lists => {
                go_on!(self.take_list(answer));
                self.next_list()
            }
        }
    }
}
