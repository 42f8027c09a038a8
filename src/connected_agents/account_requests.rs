//! The port by which the operator asks an account's API server: "this request, to this account", by an agent that holds
//! the account, at whichever replica that agent is.
//!
//! A write is sent to the cluster at most once. Its answer is exact as long as the agent's process lives; otherwise the
//! error says that the outcome is [unknown](RequestErrorKind::Unknown).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use http::{HeaderMap, Method, StatusCode};
use parking_lot::Mutex;
use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use kubesvc_core::requests::target::Class as RequestClass;

use super::request_error::{RequestError, RequestErrorKind};
use kubesvc_core::operations::ApplySettings;
use kubesvc_core::requests::target::RequestPath;
use kubesvc_core::{AgentId, BootId, ReplicaId};

/// Time until the head of an answer, unless the caller says another.
pub const DEFAULT_HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Time until the head of the answer to a watch, a followed log or an upgrade, whose server may send none before there is
/// something to say: as good as for ever. Such a request ends with its caller, its agent or its token.
pub const LONG_HEAD_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);

/// A stream of bytes. An error is never the end: what came before it is not the whole.
pub type ByteStream<E> = BoxStream<'static, Result<Bytes, E>>;

/// What the caller of an upgraded request sends.
pub type UpgradedBytes = ByteStream<std::io::Error>;

/// Called with an agent just before a request is opened there. It may be called again, with another agent, if the first
/// one has certainly not sent it. It must not wait.
pub type AskedObserver = Arc<dyn Fn(&AskedAgent) + Send + Sync>;

/// A request to the API server of an account, from the one who makes it to the agent that sends it.
pub struct AccountRequest {
    /// ULID; the cluster's audit log has it as Audit-ID. A caller that repeats a request makes another.
    pub request_id: String,
    pub method: Method,
    /// Path and query, as the API server is to read it.
    pub target: String,
    /// What the target names.
    pub path: RequestPath,
    /// Headers; the agent drops those of the connection, of credentials and of identity.
    pub headers: HeaderMap,
    /// The whole body, of at most 8 MiB; empty for an upgrade.
    pub body: Bytes,
    /// Whether the connection is to be upgraded, to the protocol in the header `Upgrade`.
    pub upgrade: bool,
    /// What the caller of an upgraded request sends after 101, as it comes; taken when that is answered. An error cancels
    /// the request.
    pub upgraded: Mutex<Option<UpgradedBytes>>,
    /// What it does. A write is sent at most once, and its answer is given when it is whole.
    pub class: RequestClass,
    /// Whether the agent may send it again as its settings `kubernetes.retries` say.
    pub repeatable: bool,
    /// When its caller waits no more for the head of the answer, of a write for all of it.
    pub deadline: Instant,
    /// Who asks, for the replica that has the agent.
    pub caller: RequestCaller,
    /// Told which agent is asked; with its id, its process and the id of the request, the answer of a write can be
    /// recalled.
    pub on_asked: Option<AskedObserver>,
    /// Whether the agent keeps how a write ended until [`forget_here`](super::ReplicaRequests::forget_here), because that
    /// is on its way to another replica.
    pub keep_answer: bool,
}

impl fmt::Debug for AccountRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountRequest")
            .field("request_id", &self.request_id)
            .field("method", &self.method)
            .field("class", &self.class)
            .finish_non_exhaustive()
    }
}

/// Whether a request that may have been executed is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repetition {
    /// Another agent may be asked.
    Any,
    /// Its answer is recalled.
    Recalled,
    /// It is asked for once.
    Once,
}

impl AccountRequest {
    /// Creates a request without body and headers, with a new id and the default time limit.
    ///
    /// # Errors
    /// The target could be read in more than one way, or is too long.
    pub fn new(method: Method, target: impl Into<String>) -> Result<Self, RequestError> {
        let target = target.into();
        let path = RequestPath::read(target.as_bytes())
            .map_err(|error| RequestError::new(RequestErrorKind::Invalid, error.to_string()))?;
        let class = path.class(method.as_str());
        let request = Self {
            request_id: ulid::Ulid::generate().to_string(),
            method,
            target,
            path,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            upgrade: false,
            upgraded: Mutex::default(),
            class,
            repeatable: false,
            deadline: Instant::now(),
            caller: RequestCaller::default(),
            on_asked: None,
            keep_answer: false,
        };
        Ok(request.within(DEFAULT_HEAD_TIMEOUT))
    }

    /// The same request with an upgrade of its connection, if its caller asks for one. A write upgrades none: it is sent
    /// without.
    #[must_use]
    pub fn upgrading(self, is_asked: bool) -> Self {
        if !is_asked || self.class == RequestClass::Write {
            return self;
        }
        let class = self.path.class_of_upgrade(self.method.as_str());
        Self { upgrade: true, class, ..self }.within(LONG_HEAD_TIMEOUT)
    }

    /// The same request with another time limit from now on, unless it is [long](Self::is_long).
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        let limit = if self.is_long() { LONG_HEAD_TIMEOUT } else { limit };
        Self { deadline: Instant::now() + limit, ..self }
    }

    /// Whether it has no time limit but [`LONG_HEAD_TIMEOUT`]: a watch, a followed log or an upgrade.
    pub fn is_long(&self) -> bool {
        self.upgrade || self.path.is_long(self.method.as_str())
    }

    /// Whether it is asked for again when it may have been executed.
    pub fn repetition(&self) -> Repetition {
        let is_get = matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS);
        match self.class {
            _ if self.upgrade => Repetition::Once,
            RequestClass::Read => Repetition::Any,
            RequestClass::Write => Repetition::Recalled,
            RequestClass::Connect if is_get => Repetition::Once,
            RequestClass::Connect => Repetition::Recalled,
        }
    }

    /// Tells the observer that an agent is about to be asked.
    pub fn asked(&self, agent: &AskedAgent) {
        if let Some(observer) = &self.on_asked {
            observer(agent);
        }
    }
}

/// Who asks, and the rights on the account that the replica has reviewed. Another replica that has the agent reviews them
/// again. Without rights, the operator asks for itself, or `operations.auth` is `none`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestCaller {
    /// User name.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Id of the user, which may be empty.
    pub uid: String,
    /// What else the authenticator says.
    pub extra: BTreeMap<String, Vec<String>>,
    /// Rights on the account.
    pub rights: Vec<CallerRight>,
}

/// A right on an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallerRight {
    /// Verb of RBAC.
    pub verb: String,
    /// Subresource of `accounts`.
    pub subresource: String,
}

/// An agent process that a request is made to, wherever it is connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AnsweringAgent {
    /// Id of the agent.
    pub agent_id: AgentId,
    /// The process: with the id of a request, its answer can be asked for again.
    pub boot_id: BootId,
}

/// An agent process that is asked or answers, and the replica that it is connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AskedAgent {
    /// The process.
    #[serde(flatten)]
    pub process: AnsweringAgent,
    /// The replica whose agent it is.
    pub replica_id: ReplicaId,
}

/// An answer of an account's API server.
pub struct AccountResponse {
    /// Status, whatever it is.
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The body as it arrives; of a write whole. Dropping it cancels the request. After 101: what the cluster sends.
    pub body: ByteStream<RequestError>,
    /// Who answered.
    pub agent: AskedAgent,
}

impl fmt::Debug for AccountResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountResponse")
            .field("status", &self.status)
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}

/// Sends requests to accounts.
#[async_trait]
pub trait AccountRequests: Send + Sync {
    /// Sends a request to the API server of the account with this uid, and waits for the head of its answer; of a write,
    /// for all of it. Dropping the future cancels a read; a write that was sent goes on.
    ///
    /// # Errors
    /// A [`RequestError`], which says whether the cluster may have executed it.
    async fn send(&self, account_uid: &str, request: AccountRequest)
    -> Result<AccountResponse, RequestError>;

    /// Asks the process of an agent that was given a write for its answer, at whichever replica the agent is. Waits for
    /// an agent that is away, and for a write that still runs: at most [`DEFAULT_HEAD_TIMEOUT`]. Where it is not known
    /// which agent was given it, all that are connected and of the account's zone are asked.
    ///
    /// # Errors
    /// [`NotSent`](RequestErrorKind::NotSent): the process never sent it. [`Unknown`](RequestErrorKind::Unknown): the
    /// process is gone or has forgotten it. [`Timeout`](RequestErrorKind::Timeout): nothing was found out in time; it may
    /// be asked again.
    async fn recall(
        &self,
        account_uid: &str,
        request_id: &str,
        agent: Option<AnsweringAgent>,
    ) -> Result<AccountResponse, RequestError>;

    /// What the owner of the agent that would be asked says of applying (`kubernetes.serverSideApply`). `None`: no agent
    /// can be asked now.
    async fn apply_settings(&self, account_uid: &str) -> Option<ApplySettings>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_that_may_have_nothing_to_say_has_no_limit_for_its_head() {
        for (target, upgrade, is_long) in [
            ("/api/v1/namespaces/n/pods/p/log?follow=true", false, true),
            ("/api/v1/namespaces/n/pods/p/log", false, false),
            ("/api/v1/pods?watch=true", false, true),
            ("/api/v1/pods", false, false),
            ("/api/v1/namespaces/n/pods/p/exec", true, true),
        ] {
            let request = || AccountRequest::new(Method::GET, target).expect("a path").upgrading(upgrade);
            for request in [request(), request().within(Duration::from_secs(1))] {
                let left = request.deadline.saturating_duration_since(Instant::now());
                assert_eq!(left > DEFAULT_HEAD_TIMEOUT, is_long, "{target}: {left:?}");
                assert!(
                    u32::try_from(left.as_millis()).is_ok(),
                    "an agent is told it in 32 bits of milliseconds"
                );
            }
        }
    }

    #[test]
    fn a_target_that_could_be_read_in_two_ways_is_refused() {
        for target in ["/api/../x", "//x", "api", "/api/v1/pods#x"] {
            let refused = AccountRequest::new(Method::GET, target).expect_err(target);
            assert_eq!(refused.kind, RequestErrorKind::Invalid, "{target}");
        }
    }
}
