//! Messages between replicas: JSON under `/internal/v1/`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fleet::AgentView;

/// Maximum number of accounts in one question.
pub const MAX_UIDS_PER_QUESTION: usize = 1000;

/// `GET /internal/v1/agents`: the agents of the replica that answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentsOfReplica {
    /// Id of the replica that answers.
    pub replica_id: String,
    /// Its connected agents.
    pub agents: Vec<AgentView>,
}

/// `POST /internal/v1/holders`: asks which agents of the replica hold these accounts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldersQuestion {
    /// Uids of the accounts, at most [`MAX_UIDS_PER_QUESTION`].
    pub uids: Vec<String>,
}

/// Answer to a [`HoldersQuestion`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holders {
    /// Id of the replica that answers.
    pub replica_id: String,
    /// Ids of agents, by the uid of the account that they hold. Accounts without a holder are left out.
    pub agents: BTreeMap<String, Vec<String>>,
}

/// `GET /internal/v1/reach`: how long the API server has answered the replica.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReachAnswer {
    /// Id of the replica that answers.
    pub replica_id: String,
    /// How long the API server has answered it without a gap, in milliseconds; 0 if it does not answer now.
    pub answered_for_ms: u64,
}

/// `POST /internal/v1/agents/{id}/disconnect`, relayed. The receiving replica never relays it again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DisconnectCall {
    /// Always true.
    pub cluster_driven: bool,
    /// Id of the replica that relays the call.
    pub origin: String,
    /// Send time, in epoch milliseconds.
    pub timestamp: i64,
}
