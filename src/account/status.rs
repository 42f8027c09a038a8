//! The status of a `KubesvcAccount`. Only the leader writes it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::failure::FailureClass;
use super::ids::{BootId, CachingEpoch, GrantEpoch};
use super::state::{GrantPhase, State};

/// Maximum length of `errorMessage`, in bytes.
pub const MAX_ERROR_MESSAGE_BYTES: usize = 1024;
/// Maximum number of agents named in `agents`; `agentCount` counts all.
pub const MAX_AGENTS_SHOWN: usize = 16;
/// Maximum number of zones tried in one round of looking for a zone.
pub const MAX_TRIED_ZONES: usize = 64;
/// Maximum epoch: the largest integer that every JSON reader represents exactly. Only a status edited by hand comes
/// near it; there the epoch stops growing.
pub const MAX_EPOCH: i64 = (1 << 53) - 1;

/// Where the account is, why, and what happens next.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct KubesvcAccountStatus {
    /// Where the account is: INACTIVE, TO_MIGRATE, ACTIVATING, ACTIVE, DEACTIVATING, DELETING, DELETE_FAILED, FAILED or ORPHANED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// The generation of the spec that this status speaks of; -1 until an operator has seen the account.
    pub observed_generation: i64,
    /// Counts each opening, re-opening and revoking of the grant. What an agent says counts only for the epoch it was told.
    #[serde(skip_serializing_if = "GrantEpoch::is_none")]
    #[schemars(with = "i64", range(min = 0, max = MAX_EPOCH))]
    pub epoch: GrantEpoch,
    /// Which zone may hold the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// The agent that streams the account's objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caching: Option<CachingAssignment>,
    /// The zone that holds the account, or held it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone_id: Option<String>,
    /// Agents that held the account at the last change, the first 16 by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub agents: Vec<String>,
    /// How many agents held the account at the last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_count: Option<i32>,
    /// URL of the cluster's API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_host: Option<String>,
    /// Version of the cluster's API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_version: Option<String>,
    /// SHA-256 of the API server's certificate: upper-case pairs joined by colons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_fingerprint: Option<String>,
    /// The uid of the cluster's kube-system namespace. The account is bound to this cluster until it is made INACTIVE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_uid: Option<String>,
    /// SHA-256 over the public keys with which the cluster's API server signs tokens of service accounts (`/openid/v1/jwks`). They tell which cluster it is where the uid of kube-system may not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_keys_digest: Option<String>,
    /// SHA-256 of the public key of the certificate authority in the kubeconfig that verified the API server. It tells which cluster it is where the uid of kube-system may not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority_key_digest: Option<String>,
    /// The cluster for people: host and port of its API server, and the first 8 characters of the uid of kube-system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// How many namespaces the agent saw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces_count: Option<i32>,
    /// How many tries failed in a row.
    #[serde(skip_serializing_if = "is_zero_i32")]
    #[schemars(range(min = 0))]
    pub failed_count: i32,
    /// Why the last try failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// Under FAILED `DuplicateName`: the object that has the account name, or had it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_holder: Option<NameHolder>,
    /// An agent whose own file lists an account of this name beside this object; the condition `ListedByAgent` says which of the two counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed_by: Option<ListingAgent>,
    /// When the next try is due. For people; no timer reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry_time: Option<Time>,
    /// When the state last changed. For people; no timer reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// The last value of the annotation `kubesvc.io/retry` that was acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_handled: Option<String>,
    /// The last value of the annotation `kubesvc.io/elect-caching` that was acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub election_handled: Option<String>,
    /// Zones that were tried in this round of looking for one, at most 64; under FAILED `ZoneAmbiguous` the zones that were asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tried_zones: Vec<String>,
    /// The Secret's uid and resourceVersion that the grant was opened with, or offers were asked for, joined by a slash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential_version: Option<String>,
    /// Ready, Reconciling and Stalled as kstatus reads them, AgentConnected, Caching, ClusterIdentity once a cluster was reached: Unknown where nothing tells whether it is the one that the account is bound to; and ListedByAgent while an agent's own file lists an account of this name too: its reason tells which of the two counts, DeclaredWins or AgentWins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// An object that has an account name.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NameHolder {
    /// Its namespace.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
}

impl NameHolder {
    /// The name holder for an account's object.
    pub fn of(account: &super::KubesvcAccount) -> Self {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        Self { namespace: part(&account.metadata.namespace), name: part(&account.metadata.name) }
    }
}

impl std::fmt::Display for NameHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An agent whose own file lists an account.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase", default)]
pub struct ListingAgent {
    /// The agent's zone.
    #[schemars(length(max = 255))]
    pub zone_id: String,
    /// The agent.
    #[schemars(length(max = 191))]
    pub agent_id: String,
}

/// The right of a zone to hold the account.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Grant {
    /// None, Open or Revoking.
    pub phase: GrantPhase,
    /// The zone that has it; it changes only through None.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The generation of the spec that agents are sent under this grant.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// A digest of the parts of the spec that agents are sent; only a change of it, or of the credential, activates anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
}

/// Which process of which agent streams the account's objects, and under which epoch of caching. Without an agent nobody
/// does, and what was streamed under an earlier epoch is refused.
// No default for the whole of it: the schema would have one with an epoch that its own minimum refuses.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CachingAssignment {
    /// The agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 191))]
    pub agent_id: Option<String>,
    /// The agent's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 26))]
    pub boot_id: Option<BootId>,
    /// Grows with each change; the database takes nothing that was streamed under a lesser one.
    #[schemars(with = "i64", range(min = 1, max = MAX_EPOCH))]
    pub epoch: CachingEpoch,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn is_zero_i32(number: &i32) -> bool {
    *number == 0
}

impl KubesvcAccountStatus {
    /// The state; INACTIVE if absent.
    pub fn state(&self) -> State {
        self.state.unwrap_or_default()
    }

    /// The grant's phase; None if there is no grant.
    pub fn phase(&self) -> GrantPhase {
        self.grant.as_ref().map(|grant| grant.phase).unwrap_or_default()
    }

    /// The failure class of a FAILED or DELETE_FAILED account, read back from its conditions.
    pub fn failure_class(&self) -> Option<FailureClass> {
        if !matches!(self.state(), State::Failed | State::DeleteFailed) {
            return None;
        }
        FailureClass::from_reason(self.reason()?)
    }

    /// The reason of the condition Ready; `None` until an operator has seen the account.
    pub fn reason(&self) -> Option<&str> {
        let ready = self.conditions.iter().find(|condition| condition.type_ == "Ready")?;
        Some(&ready.reason)
    }

    /// Whether an account that shall be ACTIVE is taken from its zone only to be granted to another one, or to the
    /// same one again: a round of looking for a zone is in progress, or its agents reached the wrong cluster or
    /// different ones.
    pub fn leaves_to_come_back(&self) -> bool {
        let class = self.failure_class();
        !self.tried_zones.is_empty()
            || matches!(class, Some(FailureClass::ClusterMismatch | FailureClass::ZoneSpansClusters))
    }

    /// The agent that streams the account's objects.
    pub fn caching_agent(&self) -> Option<&str> {
        self.caching.as_ref()?.agent_id.as_deref()
    }

    /// The zone of a grant that is Open or Revoking.
    pub fn granted_zone(&self) -> Option<&str> {
        let grant = self.grant.as_ref()?;
        (grant.phase != GrantPhase::None).then_some(grant.zone.as_deref()).flatten()
    }
}

impl super::KubesvcAccount {
    /// The status, or its default if absent.
    pub fn status_or_default(&self) -> std::borrow::Cow<'_, KubesvcAccountStatus> {
        match &self.status {
            Some(status) => std::borrow::Cow::Borrowed(status),
            None => std::borrow::Cow::Owned(KubesvcAccountStatus::default()),
        }
    }
}
