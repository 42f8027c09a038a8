//! The status of a `KubesvcAccount`, with its states under their documented names. Only the leader writes it.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::failure::FailureClass;
use super::ids::{AgentId, AgentKey, BootId, CachingEpoch, GrantEpoch, MAX_EPOCH, ZoneId};
use super::installation::Installation;

/// Maximum number of agents named in `agents`; `agentCount` counts all.
pub const MAX_AGENTS_SHOWN: usize = 16;
/// Maximum number of zones tried in one round of looking for a zone.
pub(crate) const MAX_TRIED_ZONES: usize = 64;

/// Observed state of the account, the reason for it, and what happens next.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct KubesvcAccountStatus {
    /// State of the account: INACTIVE, TO_MIGRATE, ACTIVATING, ACTIVE, DEACTIVATING, DELETING, DELETE_FAILED, FAILED or ORPHANED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Generation of the spec that this status describes; -1 until an operator has seen the account.
    pub observed_generation: i64,
    /// Epoch of the grant: it grows each time the grant is opened, reopened or revoked. An agent's answer counts only for the epoch that the agent was sent.
    #[serde(skip_serializing_if = "GrantEpoch::is_none")]
    #[schemars(with = "i64", range(min = 0, max = MAX_EPOCH))]
    pub epoch: GrantEpoch,
    /// The right of a zone to hold the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// Agent that streams the account's objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caching: Option<CachingAssignment>,
    /// Zone that holds the account, or held it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub zone_id: Option<ZoneId>,
    /// Agents that held the account at the last change, the first 16 by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 16))]
    pub agents: Vec<AgentId>,
    /// Number of agents that held the account at the last change.
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
    /// UID of the cluster's kube-system namespace. The account is bound to this cluster until it is made INACTIVE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_uid: Option<String>,
    /// SHA-256 of the public keys that verify the service account tokens of the cluster's API server (`/openid/v1/jwks`). Identifies the cluster if the agent may not read the UID of kube-system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_keys_digest: Option<String>,
    /// SHA-256 of the public key of the certificate authority in the kubeconfig that verified the API server. Identifies the cluster if the agent may not read the UID of kube-system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority_key_digest: Option<String>,
    /// Human-readable name of the cluster: host and port of its API server, and the first 8 characters of the UID of kube-system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Number of namespaces that the agent saw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces_count: Option<i32>,
    /// Number of consecutive failed attempts.
    #[serde(skip_serializing_if = "is_zero_i32")]
    #[schemars(range(min = 0))]
    pub failed_count: i32,
    /// Error of the last failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// If the account is FAILED with reason `DuplicateName`: the object that has the account name, or had it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_holder: Option<NameHolder>,
    /// Agent whose own file also lists an account of this name; the condition `ListedByAgent` says which of the two is in effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed_by: Option<ListingAgent>,
    /// Time of the next attempt. Informational; no timer reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry_time: Option<Time>,
    /// Time of the last state change. Informational; no timer reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Last value of the annotation `kubesvc.io/retry` that the operator acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_handled: Option<String>,
    /// Last value of the annotation `kubesvc.io/elect-caching` that the operator acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub election_handled: Option<String>,
    /// Zones tried in the current search for a zone, at most 64. If the account is FAILED with reason `ZoneAmbiguous`, the zones that were asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 64))]
    pub tried_zones: Vec<ZoneId>,
    /// Installation that serves the account, by the namespace of its operator; others that watch the account leave it alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<Installation>,
    /// Version of the credential for which the grant was opened or offers were requested. Of a Secret, its UID and resourceVersion, joined by a slash; of a file on the operator, a keyed digest of its content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential_version: Option<String>,
    /// Ready, Reconciling and Stalled as defined by kstatus; AgentConnected; Caching; ClusterIdentity after a cluster was reached (Unknown if nothing shows whether it is the cluster that the account is bound to); CredentialExpiring while the credential expires within 7 days or 1 day, or has expired; ListedByAgent while an agent's own file also lists an account of this name (the reason, DeclaredWins or AgentWins, says which of the two is in effect).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The object that has an account name.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NameHolder {
    /// Namespace of the object.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the object.
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

impl fmt::Display for NameHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An agent whose own file lists an account.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase", default)]
pub struct ListingAgent {
    /// Zone of the agent.
    #[schemars(with = "String", length(max = 255))]
    pub zone_id: ZoneId,
    /// Id of the agent.
    #[schemars(with = "String", length(max = 191))]
    pub agent_id: AgentId,
}

/// The right of a zone to hold the account.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Grant {
    /// Phase of the grant: None, Open or Revoking.
    pub phase: GrantPhase,
    /// Zone that has the grant; it changes only through phase None.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub zone: Option<ZoneId>,
    /// Generation of the spec that agents receive under this grant.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// Digest of the parts of the spec that agents receive. The account is activated again only if this digest or the credential changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
}

/// The agent process that streams the account's objects, and the epoch of caching. Without an agent, no objects are
/// streamed. Objects streamed under an earlier epoch are rejected.
// No default for the whole of it: the schema would have one with an epoch that its own minimum refuses.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CachingAssignment {
    /// Id of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 191))]
    pub agent_id: Option<AgentId>,
    /// Id of the agent's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 26))]
    pub boot_id: Option<BootId>,
    /// Grows with each change; the database rejects objects that were streamed under a lower epoch.
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

    /// Whether the cluster refuses the credential with which agents hold the account: they hold it on, and ask the cluster
    /// again and again.
    pub fn is_refused_while_held(&self) -> bool {
        self.failure_class() == Some(FailureClass::Auth)
            && self.phase() == GrantPhase::Open
            && !self.agents.is_empty()
    }

    /// The reason of the condition Ready; `None` until an operator has seen the account.
    pub fn reason(&self) -> Option<&str> {
        let ready = self.conditions.iter().find(|condition| condition.type_ == "Ready")?;
        Some(&ready.reason)
    }

    /// Whether an account that shall be ACTIVE is taken from its zone only to be granted to another one, or to the
    /// same one again: a round of looking for a zone is in progress, or its agents reached the wrong cluster or
    /// different ones.
    pub(crate) fn leaves_to_come_back(&self) -> bool {
        let class = self.failure_class();
        !self.tried_zones.is_empty()
            || matches!(class, Some(FailureClass::ClusterMismatch | FailureClass::ZoneSpansClusters))
    }

    /// The agent that streams the account's objects.
    pub fn caching_agent(&self) -> Option<&AgentId> {
        self.caching.as_ref()?.agent_id.as_ref()
    }

    /// The agent that streams the account's objects, with its zone.
    pub fn caching_agent_key(&self) -> Option<AgentKey> {
        Some(AgentKey::new(self.caching_agent()?, self.last_granted_zone()?))
    }

    /// The agents that held the account at the last change, with their zone.
    pub fn agent_keys(&self) -> impl Iterator<Item = AgentKey> {
        let zone = self.last_granted_zone().into_iter();
        zone.flat_map(|zone| self.agents.iter().map(move |agent| AgentKey::new(agent, zone)))
    }

    /// The zone that has the grant, or had it last.
    fn last_granted_zone(&self) -> Option<&ZoneId> {
        self.granted_zone().or(self.zone_id.as_ref())
    }

    /// The zone of a grant that is Open or Revoking.
    pub fn granted_zone(&self) -> Option<&ZoneId> {
        let grant = self.grant.as_ref()?;
        (grant.phase != GrantPhase::None).then_some(grant.zone.as_ref()).flatten()
    }
}

/// Desired state of the account: ACTIVE (the default) or INACTIVE. An inactive account is kept, and no agent holds it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Wish, description = "Desired state of an account."))]
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DesiredState {
    /// Agents of the zone hold the account.
    #[default]
    Active,
    /// The account is kept, and no agent holds it.
    Inactive,
}

/// State of the account: one of the ten documented states. TO_DEACTIVATE is only displayed, never written.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = ShownState, description = "State of an account."))]
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// The account is kept, and no agent holds it. An absent status means this state.
    #[default]
    Inactive,
    /// To be activated; waits for a zone or a credential.
    ToMigrate,
    /// Sent to the agents of its zone; none has reported yet that it holds the account.
    Activating,
    /// At least one agent holds the account.
    Active,
    /// To be deactivated; not started yet. Only displayed.
    ToDeactivate,
    /// The agents were told to drop the account, and not all have answered.
    Deactivating,
    /// Being deleted; the agents were told to drop the account.
    Deleting,
    /// Being deleted; an agent failed to drop the account. The operator retries.
    DeleteFailed,
    /// The last attempt failed; the message says why, and the conditions say whether the operator retries.
    Failed,
    /// The account was active, and the last agent that held it is gone.
    Orphaned,
}

impl State {
    /// All ten states, in lifecycle order.
    pub const ALL: [Self; 10] = [
        Self::Inactive,
        Self::ToMigrate,
        Self::Activating,
        Self::Active,
        Self::ToDeactivate,
        Self::Deactivating,
        Self::Deleting,
        Self::DeleteFailed,
        Self::Failed,
        Self::Orphaned,
    ];

    /// The documented name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inactive => "INACTIVE",
            Self::ToMigrate => "TO_MIGRATE",
            Self::Activating => "ACTIVATING",
            Self::Active => "ACTIVE",
            Self::ToDeactivate => "TO_DEACTIVATE",
            Self::Deactivating => "DEACTIVATING",
            Self::Deleting => "DELETING",
            Self::DeleteFailed => "DELETE_FAILED",
            Self::Failed => "FAILED",
            Self::Orphaned => "ORPHANED",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Phase of the right of a zone to hold an account.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GrantPhase {
    /// No zone may hold the account.
    #[default]
    None,
    /// The agents of the zone may hold the account.
    Open,
    /// The agents of the zone must drop the account; nothing else happens until they have.
    Revoking,
}
