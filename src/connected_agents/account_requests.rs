//! The port by which the operator asks an account's API server: "this request, to this account", by an agent that holds
//! the account, at whichever replica that agent is.
//!
//! A write is sent to the cluster at most once. Its answer is exact as long as the agent's process lives; otherwise the
//! error says that the outcome is [unknown](super::RequestErrorKind::Unknown).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use http::{HeaderMap, Method, StatusCode};
use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use kubesvc_core::requests::target::Class as RequestClass;

use super::request_error::RequestError;
use kubesvc_core::operations::ApplySettings;
use kubesvc_core::{AgentId, BootId, ReplicaId};

/// Time until the head of an answer, unless the caller says another.
pub const DEFAULT_HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// A stream of bytes. An error is never the end: what came before it is not the whole.
pub type ByteStream<E> = BoxStream<'static, Result<Bytes, E>>;

/// The body of a request.
pub enum RequestBytes {
    /// All of it; empty: none. At most 8 MiB.
    Whole(Bytes),
    /// Of an upgrade: what the caller sends after 101, as it comes. An error cancels the request.
    Upgraded(ByteStream<std::io::Error>),
}

/// Called with an agent just before a request is opened there. It may be called again, with another agent, if the first
/// one has certainly not sent it. It must not wait.
pub type AskedObserver = Arc<dyn Fn(&AskedAgent) + Send + Sync>;

/// A request to the API server of an account.
pub struct AccountRequest {
    /// ULID; the cluster's audit log has it as Audit-ID. A caller that repeats a request makes another.
    pub request_id: String,
    /// Method.
    pub method: Method,
    /// Path and query, as the API server is to read it.
    pub target: String,
    /// Headers; the agent drops those of the connection, of credentials and of identity.
    pub headers: HeaderMap,
    /// Body.
    pub body: RequestBytes,
    /// Whether the connection is to be upgraded, to the protocol in the header `Upgrade`.
    pub upgrade: bool,
    /// What it does, from [`RequestPath::class`](kubesvc_core::requests::target::RequestPath::class). A write is sent at
    /// most once, and its answer is given when it is whole.
    pub class: RequestClass,
    /// Whether the agent may send it again as its settings `kubernetes.retries` say.
    pub repeatable: bool,
    /// Time limit for the head of the answer, of a write for the whole answer.
    pub head_within: Duration,
    /// Who asks, for the replica that has the agent.
    pub caller: RequestCaller,
    /// Told which agent is asked; with its id, its process and the id of the request, the answer of a write can be
    /// recalled.
    pub on_asked: Option<AskedObserver>,
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

impl AccountRequest {
    /// Creates a request without body and headers, with a new id and the default time limit.
    pub fn new(method: Method, target: impl Into<String>, class: RequestClass) -> Self {
        Self {
            request_id: ulid::Ulid::generate().to_string(),
            method,
            target: target.into(),
            headers: HeaderMap::new(),
            body: RequestBytes::Whole(Bytes::new()),
            upgrade: false,
            class,
            repeatable: false,
            head_within: DEFAULT_HEAD_TIMEOUT,
            caller: RequestCaller::default(),
            on_asked: None,
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
    /// Headers.
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
    /// [`NotSent`](super::RequestErrorKind::NotSent): the process never sent it. [`Unknown`](super::RequestErrorKind::Unknown): the process is gone or has
    /// forgotten it. [`Timeout`](super::RequestErrorKind::Timeout): nothing was found out in time; it may be asked again.
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
