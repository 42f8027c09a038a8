//! The `KubesvcAgent` object: one for each agent and zone that has connected, written by the replica that has its
//! stream.
#![expect(clippy::duplicated_attributes, reason = "each printer column has a name, a type and a path")]

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ManagedFieldsEntry, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::identity::CredentialMatch;
use super::ids::{AgentId, AgentKey, BootId, ReplicaId, SessionId, ZoneId};
use super::lifecycle::SessionEnding;
use super::report_outbox::OutboxEntry;
use super::{APPROVED_AUTOMATICALLY, APPROVED_BY_ANNOTATION, FIELD_MANAGER, KubesvcAccount, object_names};

/// An agent that has connected. Written by the operator; users may change `approved`.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kubesvc.io",
    version = "v1alpha1",
    kind = "KubesvcAgent",
    plural = "kubesvcagents",
    shortname = "ksg",
    category = "spinnaker",
    namespaced,
    status = "KubesvcAgentStatus",
    derive = "PartialEq",
    doc = "An agent that has connected, and the process and replica of its current session. Written by the operator; users may change spec.approved.",
    printcolumn(name = "Zone", type_ = "string", json_path = ".spec.zoneId"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Held", type_ = "integer", json_path = ".status.held"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failed"),
    printcolumn(name = "Connected", type_ = "boolean", json_path = ".status.connected"),
    printcolumn(name = "Since", type_ = "date", json_path = ".status.connectedSince"),
    printcolumn(name = "Approved", type_ = "boolean", json_path = ".spec.approved"),
    printcolumn(name = "Agent", type_ = "string", json_path = ".spec.agentId", priority = "1")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.agentId == oldSelf.agentId").message("spec.agentId cannot be changed"),
    validation = Rule::new("self.zoneId == oldSelf.zoneId").message("spec.zoneId cannot be changed")
)]
pub struct KubesvcAgentSpec {
    /// Id of the agent: its AGENT_ID, otherwise its pod name, otherwise host name and process id.
    #[schemars(with = "String", length(min = 1, max = 191))]
    pub agent_id: AgentId,
    /// Zone whose accounts the agent may hold.
    #[schemars(with = "String", length(min = 1, max = 255))]
    pub zone_id: ZoneId,
    /// Whether the agent receives accounts. An agent that is not approved may connect, but receives none.
    #[serde(default)]
    pub approved: bool,
}

impl KubesvcAgentSpec {
    /// The agent among all agents.
    pub fn key(&self) -> AgentKey {
        AgentKey::new(&self.agent_id, &self.zone_id)
    }
}

/// State of the agent, written by the replica that it is connected to.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct KubesvcAgentStatus {
    /// Current session of the agent, or its last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<AgentSession>,
    /// Whether that session is connected.
    pub connected: bool,
    /// Whether the agent was ever approved. Answers and claims of an agent that was never approved count for no account. The operator still waits for an agent whose approval was withdrawn.
    pub approved_once: bool,
    /// Whether a KubesvcIdentity admits the agent. Absent unless the operator's `kubesvc.grpc.auth.mode` is `bound`; then it counts in place of `spec.approved`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identified: Option<bool>,
    /// Whether that KubesvcIdentity lets the agent offer to take accounts that name no zone. Absent as above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offers: Option<bool>,
    /// Name of the KubesvcIdentity that the agent's credential has; absent if it has none, or in mode `open`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The match of a KubesvcIdentity that the agent's credential would have. It is made of what the credential says, and is no secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialMatch>,
    /// Start of the current connection; absent while there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected_since: Option<Time>,
    /// Version of the agent program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Protocol version that the agent and the operator use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<i32>,
    /// Number of accounts that the agent held at the last write; absent while it is not connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<i32>,
    /// Number of accounts that the agent could not activate at the last write; absent while it is not connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
    /// Digests of the names of the accounts in the agent's own file, sorted: 16 hex digits each. Absent until the agent has listed them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1000), inner(length(min = 16, max = 16)))]
    pub static_accounts: Option<Vec<String>>,
    /// Digests of the names of those accounts, each together with its kubeconfig source (file or service account), context and insecure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1000), inner(length(min = 16, max = 16)))]
    pub static_sources: Option<Vec<String>>,
    /// UID of kube-system in the cluster that the agent runs in, as reported by the agent; absent if the agent may not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub cluster_uid: Option<String>,
    /// Answers that accounts wait for, from the current session to the leader; empty if the leader is the session's own replica.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub outbox: Vec<OutboxEntry>,
    /// StaticAccounts is False while accounts of the agent's own file are rejected. SameCluster is False while accounts are withheld from the agent because they are bound to another cluster than the one that it is in or reaches. The messages say which accounts, and why. UniqueId is False while another process connects under the agent's id in its zone. Identified says whether a KubesvcIdentity admits the agent, and which; absent in mode open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// One stream of one agent process at one replica.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentSession {
    /// ULID of the stream.
    #[schemars(with = "String")]
    pub id: SessionId,
    /// ULID of the agent's process.
    #[schemars(with = "String")]
    pub boot_id: BootId,
    /// Number of the connection among those of that process; a higher number takes over.
    pub connect_seq: i64,
    /// Replica that the agent is connected to.
    #[schemars(with = "String")]
    pub replica: ReplicaId,
    /// How the stream ended: Goodbye, Cut, Requested, Revoked, or ReplicaLost if the replica was stopping. Absent while it is connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<SessionEnd>,
    /// Time when the stream ended. For 30 s after an end of Requested, only the process with this bootId may connect with the agent's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// Process of that replica, as recorded in its Lease; sessions of an earlier process have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// Whether the process streams objects of clusters; absent if the replica does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams_objects: Option<bool>,
}

/// Type of the condition that says whether a KubesvcIdentity admits the agent.
pub const IDENTIFIED: &str = "Identified";

/// Time for which the id of an agent that was disconnected on request is reserved for its process. Another process
/// that learned the id must not take the agent's place, and its kubeconfigs, before the agent is back.
pub const ID_RESERVATION: Duration = Duration::from_secs(30);

impl AgentSession {
    /// Time for which the id is still reserved for the process of this session, because its end was requested; at
    /// most [`ID_RESERVATION`]. An end that lies further than that in the future says nothing: the clock went back.
    pub fn kept_for(&self, now: Timestamp) -> Option<Duration> {
        let ended_at = self.ended_at.as_ref().filter(|_| self.ended == Some(SessionEnd::Requested))?;
        let since = now.duration_since(ended_at.0);
        let is_near = since.unsigned_abs() < ID_RESERVATION;
        let since = Duration::try_from(since).unwrap_or_default();
        is_near.then(|| ID_RESERVATION.saturating_sub(since))
    }
}

impl KubesvcAgent {
    /// Whether the agent is given accounts: a KubesvcIdentity admits it, or `spec.approved` where identities do not count.
    pub fn is_approved(&self) -> bool {
        self.status.as_ref().and_then(|status| status.identified).unwrap_or(self.spec.approved)
    }

    /// Whether the agent is or was approved, and so may hold accounts.
    pub fn was_approved(&self) -> bool {
        self.is_approved() || self.status.as_ref().is_some_and(|status| status.approved_once)
    }

    /// Whether the agent may offer to take accounts that name no zone, as far as identities say.
    pub fn may_offer(&self) -> bool {
        self.is_approved() && self.status.as_ref().and_then(|status| status.offers).unwrap_or(true)
    }

    /// Whether its last session ended because its identity was taken from it. Such an agent is not waited for.
    pub fn is_revoked(&self) -> bool {
        let session = self.status.as_ref().and_then(|status| status.session.as_ref());
        session.is_some_and(|session| session.ended == Some(SessionEnd::Revoked))
    }

    /// Who approved the agent: [`APPROVED_AUTOMATICALLY`], the user that the annotation names, or else the field manager
    /// that set `spec.approved`. `None` if it is not approved, or nothing tells.
    pub fn approved_by(&self) -> Option<&str> {
        if let Some(status) = self.status.as_ref().filter(|status| status.identified == Some(true)) {
            return status.identity.as_deref();
        }
        if !self.is_approved() {
            return None;
        }
        let said = self.metadata.annotations.as_ref().and_then(|all| all.get(APPROVED_BY_ANNOTATION));
        let annotation = format!("f:{APPROVED_BY_ANNOTATION}");
        let approved = self.managers_of(&["f:spec", "f:approved"]);
        let says = self.managers_of(&["f:metadata", "f:annotations", &annotation]);
        // Where another manager has approved the agent since, the operator's annotation is of an earlier approval.
        if let Some(said) = said
            && (said != APPROVED_AUTOMATICALLY
                || approved.is_empty()
                || approved.iter().any(|manager| says.contains(manager)))
        {
            return Some(said);
        }
        let by = approved.first().copied()?;
        Some(if by == FIELD_MANAGER { APPROVED_AUTOMATICALLY } else { by })
    }

    /// The field managers that own a field, given by its path as in `managedFields`.
    fn managers_of(&self, path: &[&str]) -> Vec<&str> {
        let owns = |entry: &&ManagedFieldsEntry| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            path.iter().try_fold(fields?, |fields, part| fields.get(*part)).map(drop)
        };
        let entries = self.metadata.managed_fields.iter().flatten();
        entries.filter(|entry| owns(entry).is_some()).filter_map(|entry| entry.manager.as_deref()).collect()
    }
}

/// How the stream ended. It determines the time within which an agent that reconnects keeps its accounts.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionEnd {
    /// The agent said goodbye: its process has ended.
    Goodbye,
    /// The connection was cut, and the replica was alive.
    Cut,
    /// Requested by `POST /armory/agent/{id}/disconnect`.
    Requested,
    /// The replica was stopping, or was lost.
    ReplicaLost,
    /// The agent's identity was revoked or suspended, has expired, or is gone. The operator does not wait for the agent.
    Revoked,
    /// A value of a later version of the operator that this version does not know.
    #[default]
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl KubesvcAgentStatus {
    /// Whether the agent's own file has this account, by its name and with its source; `None` until the agent has
    /// sent its list. For the status of an earlier operator, which has only the names, only the name is compared.
    pub fn lists(&self, account: &KubesvcAccount) -> Option<bool> {
        if let Some(sources) = &self.static_sources {
            return Some(
                sources.contains(&object_names::source_digest(account.account_name(), &account.spec)),
            );
        }
        let listed = self.static_accounts.as_ref()?;
        Some(listed.contains(&object_names::digest(account.account_name())))
    }
}

impl From<SessionEnding> for SessionEnd {
    fn from(ending: SessionEnding) -> Self {
        match ending {
            SessionEnding::Goodbye => Self::Goodbye,
            SessionEnding::Cut => Self::Cut,
            SessionEnding::ReplicaLost => Self::ReplicaLost,
        }
    }
}

impl From<SessionEnd> for SessionEnding {
    fn from(end: SessionEnd) -> Self {
        match end {
            SessionEnd::Goodbye => Self::Goodbye,
            SessionEnd::Cut | SessionEnd::Requested | SessionEnd::Revoked => Self::Cut,
            SessionEnd::ReplicaLost | SessionEnd::Unknown => Self::ReplicaLost,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_approval_is_of_whoever_set_the_field_last_and_the_annotation_of_an_earlier_one_does_not_count() {
        let agent = |approved: bool, by: Option<&str>, managers: &[(&str, serde_json::Value)]| {
            let managed: Vec<_> = managers
                .iter()
                .map(|(manager, fields)| json!({"manager": manager, "operation": "Update", "fieldsV1": fields}))
                .collect();
            let annotations = by.map(|by| json!({APPROVED_BY_ANNOTATION: by}));
            let agent = json!({
                "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAgent",
                "metadata": {"name": "a", "annotations": annotations, "managedFields": managed},
                "spec": {"agentId": "a", "zoneId": "z", "approved": approved},
            });
            let agent: KubesvcAgent = serde_json::from_value(agent).expect("an agent");
            agent.approved_by().map(str::to_owned)
        };
        let approved = || json!({"f:spec": {"f:approved": {}}});
        let annotated = || json!({"f:metadata": {"f:annotations": {"f:kubesvc.io/approved-by": {}}}});
        let both = || json!({"f:spec": {"f:approved": {}}, "f:metadata": {"f:annotations": {"f:kubesvc.io/approved-by": {}}}});
        for (is_approved, by, managers, expected) in [
            (true, Some("auto"), vec![(FIELD_MANAGER, both())], Some("auto")),
            (true, Some("ann"), vec![("kubesvc-plugin", both())], Some("ann")),
            (
                true,
                Some("ann"),
                vec![("kubesvc-plugin", annotated()), (FIELD_MANAGER, approved())],
                Some("ann"),
            ),
            // Restored from a backup, and by an operator that wrote no annotation.
            (true, Some("auto"), vec![("kubectl", both())], Some("auto")),
            (true, None, vec![(FIELD_MANAGER, approved())], Some("auto")),
            (
                true,
                Some("auto"),
                vec![(FIELD_MANAGER, annotated()), ("kubectl-patch", approved())],
                Some("kubectl-patch"),
            ),
            (true, None, vec![("kubectl-patch", approved())], Some("kubectl-patch")),
            (true, Some("ann"), vec![], Some("ann")),
            (true, None, vec![], None),
            (false, Some("auto"), vec![(FIELD_MANAGER, both())], None),
        ] {
            assert_eq!(agent(is_approved, by, &managers).as_deref(), expected, "{by:?} {managers:?}");
        }
    }

    #[test]
    fn an_id_is_kept_for_thirty_seconds_after_an_end_that_was_requested_and_no_other() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let ended = |end| AgentSession {
            ended: Some(end),
            ended_at: Some(Time(at(1000))),
            ..AgentSession::default()
        };
        let requested = ended(SessionEnd::Requested);
        let kept = |now| requested.kept_for(at(now)).map(|left| left.as_secs());
        assert_eq!([kept(1000), kept(1010), kept(1029), kept(1030)], [Some(30), Some(20), Some(1), None]);
        assert_eq!(kept(980), Some(30), "a clock that is behind does not keep it for longer");
        assert_eq!(kept(10), None, "an end far ahead would keep it until then");
        for other in [SessionEnd::Goodbye, SessionEnd::Cut, SessionEnd::ReplicaLost, SessionEnd::Unknown] {
            assert_eq!(ended(other).kept_for(at(1000)), None);
        }
        assert_eq!(AgentSession { ended_at: None, ..requested.clone() }.kept_for(at(1000)), None);
    }
}
