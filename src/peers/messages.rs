//! What replicas tell one another, as JSON under `/internal/v1/`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fleet::AgentView;

/// Maximum number of accounts in one question.
pub const MAX_UIDS_PER_QUESTION: usize = 1000;

/// `GET /internal/v1/agents`: the agents of the replica that answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentsOfReplica {
    /// Who answers.
    pub replica_id: String,
    /// Its connected agents.
    pub agents: Vec<AgentView>,
}

/// `POST /internal/v1/holders`: which agents of the replica hold these accounts?
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldersQuestion {
    /// The uids of the accounts, at most [`MAX_UIDS_PER_QUESTION`].
    pub uids: Vec<String>,
}

/// The answer to [`HoldersQuestion`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holders {
    /// Who answers.
    pub replica_id: String,
    /// Ids of agents by the uid of the account that they hold; accounts that none holds are left out.
    pub agents: BTreeMap<String, Vec<String>>,
}

/// `GET /internal/v1/reach`: whether the API server answers the replica that answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReachAnswer {
    /// Who answers.
    pub replica_id: String,
    /// For how long it has done so without a gap, in milliseconds; 0: it does not.
    pub answered_for_ms: u64,
}

/// `POST /internal/v1/agents/{id}/disconnect`, relayed: the replica that gets it relays it to nobody.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DisconnectCall {
    /// Always true.
    pub cluster_driven: bool,
    /// The replica that relays.
    pub origin: String,
    /// When, in epoch milliseconds.
    pub timestamp: i64,
}
