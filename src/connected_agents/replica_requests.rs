//! The port by which requests are made to the agents of this replica alone. The hub implements it;
//! [`request_routing`](crate::request_routing) goes on at other replicas where it cannot.

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;

use super::account_requests::{AccountRequest, AccountResponse, AnsweringAgent};
use super::request_error::RequestError;
use kubesvc_core::wire::ops::ApplySettings;
use kubesvc_core::{AgentId, GrantEpoch, ZoneId};

/// Number of agents that a request is opened at, whichever replicas they are at.
pub const MAX_ASKED_AGENTS: usize = 2;

/// What an account's grant says of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountGrant {
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
    fn can_ask(&self, account_uid: &str, asked: &[AgentId]) -> Result<(), RequestError>;

    /// The processes of a zone's agents that take requests here.
    fn processes_of_zone(&self, zone: &ZoneId) -> Vec<AnsweringAgent>;

    /// Whether this replica can say what became of a write that a process of an agent was given: the process takes
    /// requests here, or a later one of the same agent is connected here, so that the process is gone.
    fn has_process(&self, agent: &AnsweringAgent) -> bool;

    /// Makes a request to an agent of this replica, and to another one if certainly nothing was executed. Adds the agents
    /// that were asked to `asked`. Dropping the future cancels a read.
    ///
    /// # Errors
    /// Why there is no answer, and what may follow.
    async fn send_here(
        &self,
        account_uid: &str,
        request: &AccountRequest,
        asked: &mut Vec<AgentId>,
    ) -> Result<AccountResponse, RequestError>;

    /// Asks a process of an agent for the answer of a write. Waits for a write that runs.
    ///
    /// # Errors
    /// Why there is no answer. [Recallable](super::Retry::Recall): the process is not connected here, or its stream was
    /// lost again. [`Timeout`](super::RequestErrorKind::Timeout): the write still ran when the time was over.
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
