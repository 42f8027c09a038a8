//! Why a request to an account has no answer: one type from the agent's failure to the caller's status, at every replica
//! that the request comes by.

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::account_requests::AnsweringAgent;
use kubesvc_core::{AgentId, ZoneId};

/// Why there is no answer, or no whole one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct RequestError {
    /// Decides the status, and says whether the request may have been executed.
    pub kind: RequestErrorKind,
    /// What happened and, where the caller can do something, what to do.
    pub message: String,
    /// What may follow.
    pub retry: Retry,
}

/// What a request failed of. Certainly nothing was executed, but for [`Unknown`](Self::Unknown) and the kinds after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RequestErrorKind {
    /// No account has this uid (404 for operations, else 503).
    NoAccount,
    /// The account takes no requests in its state (409 for operations, else 503).
    NotUsable,
    /// The agents of the account are too old for requests (409 for operations, else 503).
    AgentTooOld,
    /// No agent that could be asked is connected (503).
    NoAgent,
    /// The replica that has the agents cannot be reached (503).
    ReplicaAway,
    /// Too many requests are in flight (429).
    TooMany,
    /// The request itself cannot be sent (400).
    Invalid,
    /// The request is too large (413).
    TooLarge,
    /// The agent's owner forbids it (403).
    Forbidden,
    /// It failed before it was sent (503).
    NotSent,
    /// The outcome of a write is not known, and will not be (504).
    Unknown,
    /// A read was lost (503).
    NoAnswer,
    /// A read has no answer in time (504).
    Timeout,
    /// The answer ended before it was whole (503). Only in a body.
    Cut,
}

/// What may follow a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Retry {
    /// Another agent may be asked, if not [`MAX_ASKED_AGENTS`](super::MAX_ASKED_AGENTS) were.
    Elsewhere,
    /// The same; after the last one, the caller may try again in a second (`Retry-After: 1`).
    Later,
    /// The answer of the write can be recalled from these processes, wherever they connect.
    Recall(Suspects),
    /// Nothing.
    Never,
}

/// The processes that may have been given a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Suspects {
    /// The processes.
    pub processes: Vec<AnsweringAgent>,
    /// Whether the write was certainly given to the only one.
    pub is_certain: bool,
}

impl Suspects {
    /// The process that was given the write.
    pub fn certain(agent: AnsweringAgent) -> Self {
        Self { processes: vec![agent], is_certain: true }
    }
}

impl RequestError {
    /// An error after which nothing follows.
    pub fn new(kind: RequestErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry: Retry::Never }
    }

    /// The same error, after which something may follow.
    #[must_use]
    pub fn then(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// No account has the uid.
    pub fn no_account() -> Self {
        Self::new(RequestErrorKind::NoAccount, "there is no such account")
    }

    /// No agent that holds an account is connected; `is_expected`: one was here until just now.
    pub fn no_agent(account: &str, zone: &ZoneId, is_expected: bool) -> Self {
        let (more, retry) =
            if is_expected { ("; one is expected back", Retry::Later) } else { ("", Retry::Elsewhere) };
        let message = format!("no agent of zone {zone} that holds account {account} is connected{more}");
        Self::new(RequestErrorKind::NoAgent, message).then(retry)
    }

    /// An agent is too old for requests.
    pub fn too_old(agent: &AgentId, version: &str) -> Self {
        let message = format!("agent {agent} (version {version}) takes no requests; upgrade it");
        Self::new(RequestErrorKind::AgentTooOld, message).then(Retry::Elsewhere)
    }

    /// The outcome of a write is unknown.
    pub fn unknown(why: &str) -> Self {
        Self::new(RequestErrorKind::Unknown, format!("the outcome is unknown: {why}"))
    }

    /// The answer of a write may be recalled from these processes, which cannot be asked here and now.
    pub fn recallable(suspects: Suspects) -> Self {
        Self::unknown("the connection to the agent was lost").then(Retry::Recall(suspects))
    }

    /// The answer of a write was not recalled in time.
    pub fn not_recalled() -> Self {
        let message = "the agent's process was not found, or has no answer yet; ask again";
        Self::new(RequestErrorKind::Timeout, message)
    }

    /// The answer ended before it was whole.
    pub fn cut(why: &str) -> Self {
        Self::new(RequestErrorKind::Cut, format!("the answer was cut: {why}"))
    }

    /// Whether it is certain that the cluster executed nothing.
    pub fn is_before_send(&self) -> bool {
        use RequestErrorKind as Kind;
        !matches!(self.kind, Kind::Unknown | Kind::NoAnswer | Kind::Timeout | Kind::Cut)
    }

    /// Whether an agent, or the replica that has it, is expected back.
    pub fn awaits_agent(&self) -> bool {
        matches!(self.kind, RequestErrorKind::NoAgent | RequestErrorKind::ReplicaAway)
            && self.retry == Retry::Later
    }

    /// Whether another agent may be asked.
    pub fn goes_elsewhere(&self) -> bool {
        matches!(self.retry, Retry::Elsewhere | Retry::Later)
    }

    /// Whether the answer of the write may be recalled.
    pub fn is_recallable(&self) -> bool {
        matches!(self.retry, Retry::Recall(_))
    }

    /// Status that a caller of HTTP is given.
    pub fn status(&self) -> StatusCode {
        use RequestErrorKind as Kind;
        match self.kind {
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Kind::Unknown | Kind::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Kind::NoAccount
            | Kind::NotUsable
            | Kind::AgentTooOld
            | Kind::NoAgent
            | Kind::ReplicaAway
            | Kind::NotSent
            | Kind::NoAnswer
            | Kind::Cut => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}
