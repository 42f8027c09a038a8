//! The port by which requests are made to the agents of this replica alone. The hub implements it;
//! [`request_routing`](crate::request_routing) goes on at other replicas where it cannot.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, Method};
use prost::bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::account_requests::{
    AccountRequest, AccountResponse, AnsweringAgent, AskedAgent, AskedObserver, ByteStream, RequestBytes,
    RequestCaller, RequestClass,
};
use super::request_error::{RequestError, RequestErrorKind};
use kubesvc_core::requests::MAX_REQUEST_BODY_BYTES;
use kubesvc_core::requests::target::RequestPath;
use kubesvc_core::wire::ops::ApplySettings;
use kubesvc_core::{AgentId, GrantEpoch, ZoneId};

/// Number of agents that a request is opened at, whichever replicas they are at.
pub const MAX_ASKED_AGENTS: usize = 2;

/// Time until the head of the answer to a watch, a followed log or an upgrade, whose server may send none before there is
/// something to say: as good as for ever. Such a request ends with its caller, its agent or its token.
pub const LONG_HEAD_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Whether a request has no time limit but [`LONG_HEAD_TIMEOUT`].
pub fn is_long(method: &Method, target: &str, upgrade: bool) -> bool {
    upgrade || RequestPath::read(target.as_bytes()).is_ok_and(|path| path.is_long(method.as_str()))
}

/// A request whose body is read, so that it can be made to more than one agent.
#[derive(Clone)]
pub struct PreparedRequest {
    /// ULID.
    pub request_id: String,
    /// Method.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// Headers.
    pub headers: HeaderMap,
    /// The whole body; empty for an upgrade.
    pub body: Bytes,
    /// Whether the connection is to be upgraded.
    pub upgrade: bool,
    /// What it does.
    pub class: RequestClass,
    /// Whether the agent may send it again as its settings say.
    pub repeatable: bool,
    /// When its caller waits no more for the head of the answer, of a write for all of it.
    pub deadline: Instant,
    /// Who asks.
    pub caller: RequestCaller,
    /// Told which agent is asked.
    pub on_asked: Option<AskedObserver>,
    /// Whether the agent keeps how a write ended until [`forget_here`](ReplicaRequests::forget_here), because that is on
    /// its way to another replica.
    pub keep_answer: bool,
}

impl fmt::Debug for PreparedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedRequest").field("request_id", &self.request_id).finish_non_exhaustive()
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

/// What the caller of an upgraded request sends.
pub type UpgradedBytes = ByteStream<std::io::Error>;

impl PreparedRequest {
    /// Prepares a request. What the caller of an upgraded one sends comes apart.
    ///
    /// # Errors
    /// The body is too large.
    pub fn new(request: AccountRequest) -> Result<(Self, Option<UpgradedBytes>), RequestError> {
        let is_long = is_long(&request.method, &request.target, request.upgrade);
        let head_within = if is_long { LONG_HEAD_TIMEOUT } else { request.head_within };
        let deadline = Instant::now() + head_within;
        let (body, upgraded) = match request.body {
            RequestBytes::Whole(bytes) if bytes.len() > MAX_REQUEST_BODY_BYTES => {
                let message = format!("the body has more than {MAX_REQUEST_BODY_BYTES} bytes");
                return Err(RequestError::new(RequestErrorKind::TooLarge, message));
            }
            RequestBytes::Whole(bytes) => (bytes, None),
            RequestBytes::Upgraded(bytes) => (Bytes::new(), Some(bytes)),
        };
        let prepared = Self {
            request_id: request.request_id,
            method: request.method,
            target: request.target,
            headers: request.headers,
            body,
            upgrade: request.upgrade,
            class: request.class,
            repeatable: request.repeatable,
            deadline,
            caller: request.caller,
            on_asked: request.on_asked,
            keep_answer: false,
        };
        Ok((prepared, upgraded))
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

/// What an account's grant says of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountGrant {
    /// Name of the account.
    pub name: String,
    /// Zone that has the grant.
    pub zone: ZoneId,
    /// Epoch of the grant.
    pub epoch: GrantEpoch,
    /// Agents that hold the account, as far as its status names them.
    pub holders: Vec<AgentId>,
}

/// Makes requests to the agents of this replica.
#[async_trait]
pub trait ReplicaRequests: Send + Sync {
    /// The grant of an account that takes requests.
    ///
    /// # Errors
    /// There is no such account, or it takes no requests in its state.
    fn grant(&self, account_uid: &str) -> Result<AccountGrant, RequestError>;

    /// Checks whether an agent of this replica can be asked, apart from those that were.
    ///
    /// # Errors
    /// Why none can.
    fn can_ask(&self, account_uid: &str, asked: &[AgentId]) -> Result<(), RequestError>;

    /// The processes of a zone's agents that take requests here.
    fn processes_of_zone(&self, zone: &ZoneId) -> Vec<AnsweringAgent>;

    /// Whether this replica can say what became of a write that a process of an agent was given: the process takes
    /// requests here, or a later one of the same agent is connected here, so that the process is gone.
    fn has_process(&self, agent: &AnsweringAgent) -> bool;

    /// Makes a request to an agent of this replica, and to another one if certainly nothing was executed. What the
    /// caller of an upgraded request sends is taken when the request was accepted. Adds the agents that were asked to
    /// `asked`. Dropping the future cancels a read.
    ///
    /// # Errors
    /// Why there is no answer, and what may follow.
    async fn send_here(
        &self,
        account_uid: &str,
        request: &PreparedRequest,
        upgraded: &mut Option<UpgradedBytes>,
        asked: &mut Vec<AgentId>,
    ) -> Result<AccountResponse, RequestError>;

    /// Asks a process of an agent for the answer of a write. Waits for a write that runs.
    ///
    /// # Errors
    /// Why there is no answer. [Recallable](super::Retry::Recall): the process is not connected here, or its stream was lost again.
    /// [`Timeout`](RequestErrorKind::Timeout): the write still ran when the time was over.
    async fn recall_here(
        &self,
        request_id: &str,
        agent: &AnsweringAgent,
        deadline: Instant,
        keep_answer: bool,
    ) -> Result<AccountResponse, RequestError>;

    /// Lets an agent forget how a write ended, which the caller knows. Returns whether the process is connected here.
    fn forget_here(&self, agent: &AnsweringAgent, request_id: &str) -> bool;

    /// What the owner of the agent that would be asked says of applying; `None`: no agent of this replica can be asked.
    fn apply_settings_here(&self, account_uid: &str) -> Option<ApplySettings>;

    /// Changes when an agent's stream of requests begins or ends here.
    fn streams(&self) -> watch::Receiver<u64>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_that_may_have_nothing_to_say_has_no_limit_for_its_head() {
        const DEFAULT: Duration = Duration::from_secs(60);
        for (target, upgrade, is_long) in [
            ("/api/v1/namespaces/n/pods/p/log?follow=true", false, true),
            ("/api/v1/namespaces/n/pods/p/log", false, false),
            ("/api/v1/pods?watch=true", false, true),
            ("/api/v1/pods", false, false),
            ("/api/v1/namespaces/n/pods/p/exec", true, true),
        ] {
            let class = RequestClass::Read;
            let request = AccountRequest { upgrade, ..AccountRequest::new(Method::GET, target, class) };
            let (prepared, _) = PreparedRequest::new(request).expect("it has no body");
            let left = prepared.deadline.saturating_duration_since(Instant::now());
            assert_eq!(left > DEFAULT, is_long, "{target}: {left:?}");
            assert!(
                u32::try_from(left.as_millis()).is_ok(),
                "an agent is told it in 32 bits of milliseconds"
            );
        }
    }
}
