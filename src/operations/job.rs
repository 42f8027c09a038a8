//! One operation that runs: what it is, and how far it is.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderMap;
use http::header::WARNING;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::checks::{ContentDigest, required_verbs};
use super::in_flight::CountedOperation;
use super::records;
use crate::access::{AccessResource, Principal, Via};
use crate::connected_agents::{AskedAgent, RequestCaller};
use crate::request_routing::request_caller;
use kubesvc_core::operations::Operation;
use kubesvc_store::{OpenOperation, OperationRecord, OperationState};

/// An operation that runs.
pub(super) struct Job {
    pub(super) id: String,
    pub(super) operation: Operation,
    pub(super) account_uid: String,
    pub(super) principal: Principal,
    /// Who a caller says that it acts for.
    pub(super) user: Option<String>,
    pub(super) claimed: Option<String>,
    pub(super) dry_run: bool,
    /// What the ids of its requests end with.
    pub(super) digest: ContentDigest,
    /// Whether it may be done twice.
    pub(super) may_run_again: bool,
    /// When it must have ended.
    pub(super) deadline: Instant,
    /// The same in epoch milliseconds.
    pub(super) deadline_ms: i64,
    pub(super) started: Instant,
    /// The time of day when it first ran, in RFC 3339: what it writes is the same in each run.
    pub(super) time_of_day: OnceLock<String>,
    pub(super) progress: Mutex<OperationProgress>,
    pub(super) _counted: CountedOperation,
    /// What is held as long as it runs.
    pub(super) _held: Box<dyn Any + Send + Sync>,
}

/// How far an operation is.
#[derive(Clone, Debug)]
pub(super) struct OperationProgress {
    pub(super) record: OperationRecord,
    /// Whether a write was sent, in this run or one before, that may have been executed.
    pub(super) is_begun: bool,
    /// Whether such a write was sent before the one that is being sent.
    sent_before: bool,
    /// Whether its row says, or is about to say, that a write is sent.
    is_sent: bool,
    /// Whether a write was sent and is not answered.
    pub(super) write_in_flight: bool,
    /// Whether the id in `last_write` is that of the first write, which has yet to be sent.
    is_reserved: bool,
    /// The last write whose answer decides.
    last_write: Option<String>,
    agent_boot_id: Option<String>,
    /// The last answer, and when it came.
    pub(super) answered: Option<(AskedAgent, i64)>,
    /// What the API server warned of: at most [`MAX_WARNINGS`], each once.
    pub(super) warnings: Vec<String>,
}

/// Maximum age of an operation whose first write is sent without a further commit. It is far below the time after which
/// the leader calls a replica dead: what was settled as never sent must not be sent.
const MAX_AGE_OF_RESERVED: Duration = Duration::from_secs(1);

/// Maximum number of warnings of one operation.
const MAX_WARNINGS: usize = 32;
/// Maximum length of a warning, in characters.
const MAX_WARNING: usize = 256;

impl OperationProgress {
    /// Nothing was sent yet. `reserved`: the id of the first write, if its answer decides.
    pub(super) fn new(record: OperationRecord, reserved: Option<String>) -> Self {
        Self {
            record,
            is_begun: false,
            sent_before: false,
            is_sent: false,
            write_in_flight: false,
            is_reserved: reserved.is_some(),
            last_write: reserved,
            agent_boot_id: None,
            answered: None,
            warnings: Vec::new(),
        }
    }
}

impl Job {
    /// Time that is left.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Who asks, for a replica that has the agent. Nobody's rights were reviewed if `operations.auth` is `none`.
    pub(super) fn request_caller(&self) -> RequestCaller {
        let is_known = self.principal.via != Via::Nobody;
        let verbs = required_verbs(self.operation.kind()).iter().filter(|_| is_known);
        request_caller(&self.principal, verbs.map(|verb| (*verb, AccessResource::Proxy)))
    }

    /// Its open row now.
    pub(super) fn open_row(&self) -> OpenOperation {
        let progress = self.progress.lock();
        self.row_of(&progress)
    }

    fn row_of(&self, progress: &OperationProgress) -> OpenOperation {
        let open = records::open(progress.record.clone(), self.deadline_ms, self.may_run_again);
        let state = if progress.is_sent { OperationState::Sent } else { OperationState::Received };
        OpenOperation {
            state,
            last_write: progress.last_write.clone(),
            agent_boot_id: progress.agent_boot_id.clone(),
            ..open
        }
    }

    /// Notes that a write is about to be sent. Returns its id, and the row that must be committed before; `None`: the one
    /// that is there has the id.
    pub(super) fn begin_write(&self, is_decisive: bool) -> (String, Option<OpenOperation>) {
        let mut progress = self.progress.lock();
        let is_young = self.started.elapsed() < MAX_AGE_OF_RESERVED;
        let is_reserved = std::mem::take(&mut progress.is_reserved) && is_decisive && is_young;
        let reserved = progress.last_write.take().filter(|_| is_reserved);
        let request_id = reserved.unwrap_or_else(|| self.digest.request_id());
        progress.record.request_id = Some(request_id.clone());
        progress.last_write = is_decisive.then(|| request_id.clone());
        progress.agent_boot_id = None;
        progress.sent_before = progress.is_begun;
        progress.is_sent = true;
        (request_id, (!is_reserved).then(|| self.row_of(&progress)))
    }

    /// Notes that an agent is asked.
    pub(super) fn asked(&self, agent: &AskedAgent, is_write: bool, now_ms: i64) {
        let mut progress = self.progress.lock();
        records::asked(&mut progress.record, agent, now_ms);
        if is_write {
            progress.agent_boot_id = Some(agent.process.boot_id.to_string());
            progress.write_in_flight = true;
            progress.is_begun = true;
        }
    }

    /// Id of the agent that was given the last write; empty: none was.
    pub(super) fn writing_agent(&self) -> String {
        let progress = self.progress.lock();
        let sent = progress.record.sent.as_ref().filter(|_| progress.agent_boot_id.is_some());
        sent.map(|sent| sent.id.clone()).unwrap_or_default()
    }

    /// Notes what the API server warns of in the headers of an answer.
    pub(super) fn warned(&self, headers: &HeaderMap) {
        let warnings = &mut self.progress.lock().warnings;
        for warning in headers.get_all(WARNING).iter().filter_map(|value| warning_text(value.to_str().ok()?))
        {
            if warnings.len() < MAX_WARNINGS && !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }

    /// Notes the answer to a request.
    pub(super) fn answered(&self, agent: &AskedAgent, is_write: bool, now_ms: i64) {
        let mut progress = self.progress.lock();
        progress.answered = Some((agent.clone(), now_ms));
        if is_write {
            progress.write_in_flight = false;
            progress.is_begun = true;
        }
    }

    /// Notes that a request has no answer. A write that certainly was not executed counts as not sent. Returns whether
    /// the operation is begun.
    pub(super) fn failed(&self, is_write: bool, before_send: bool) -> bool {
        let mut progress = self.progress.lock();
        progress.write_in_flight = false;
        if is_write {
            progress.is_begun = progress.sent_before || !before_send;
        }
        progress.is_begun
    }
}

/// A job, shared by the one who runs it and those who are told what it does.
pub(super) type SharedJob = Arc<Job>;

/// The text of a header `Warning`, such as `299 - "apps/v1beta1 is deprecated"`.
fn warning_text(header: &str) -> Option<String> {
    let quoted = header.strip_prefix("299 ")?.split_once(" \"")?.1;
    let (mut text, mut letters) = (String::new(), quoted.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '"' => break,
            '\\' => text.extend(letters.next()),
            letter => text.push(letter),
        }
    }
    let text: String = text.chars().filter(|letter| !letter.is_control()).take(MAX_WARNING).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_the_text_in_its_header() {
        let text = warning_text;
        assert_eq!(text(r#"299 - "it is \"old\" \\ gone""#).as_deref(), Some(r#"it is "old" \ gone"#));
        assert_eq!(text(r#"299 - "old" "Sun, 29 Nov 2026 00:00:00 GMT""#).as_deref(), Some("old"));
        assert_eq!(text(r#"299 - """#), None);
        assert_eq!(text("299 -"), None);
        assert_eq!(text(r#"110 cache "stale""#), None, "it is no API server's");
        let long = format!("299 - \"{}\"", "x".repeat(9_000));
        assert_eq!(text(&long).map(|text| text.len()), Some(MAX_WARNING));
    }
}
