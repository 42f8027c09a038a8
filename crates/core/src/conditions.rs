//! Conditions in kstatus' terms, so that `kubectl wait`, Argo CD and Flux understand an account.
//!
//! Ready says whether the account is as desired; Reconciling, that something is in progress or will be retried
//! automatically; Stalled, that a person must act. Reconciling and Stalled are never both True.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::{DesiredState, State};

/// Type of the condition that says whether the cluster that was reached is the one the account is bound to. Present
/// beside those of [`tell`] once a cluster was reached.
pub(crate) const CLUSTER_IDENTITY: &str = "ClusterIdentity";
/// Type of the condition about an agent whose own file lists an account of this name, and which of the two counts.
pub(crate) const LISTED_BY_AGENT: &str = "ListedByAgent";

/// Type of the condition of a migrated account whose kubeconfig is a file that only Clouddriver has.
pub(crate) const CREDENTIAL_AVAILABLE: &str = "CredentialAvailable";

/// Type of the condition that says which agent streams the account's objects, and what is left out.
pub const CACHING: &str = "Caching";
/// Reason of [`CACHING`] while something that settings ask for is not in the tables.
pub const LEFT_OUT: &str = "LeftOut";

/// Reason while an account shall be ACTIVE and the leader does not know yet which agents are connected.
pub const AWAITING_AGENTS: &str = "AwaitingAgents";
/// Reason while an account stays in its zone until the zone that it is pinned to has an agent.
pub const ZONE_AWAITED: &str = "ZoneAwaited";

/// What the conditions shall say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionSummary {
    /// Whether the account is as desired.
    pub ready: bool,
    /// Whether something is in progress.
    pub reconciling: bool,
    /// Whether a person must act.
    pub stalled: bool,
    /// The reason, in CamelCase.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

impl ConditionSummary {
    /// The summary of a state without a failure.
    pub fn of_state(state: State, desired: DesiredState) -> Self {
        let ready = match state {
            State::Active => desired == DesiredState::Active,
            State::Inactive => desired == DesiredState::Inactive,
            _ => false,
        };
        Self {
            ready,
            reconciling: !ready,
            stalled: false,
            reason: state_reason(state).to_owned(),
            message: state_message(state).to_owned(),
        }
    }

    /// The summary of a failure.
    pub fn failed(reason: &str, message: String, stalled: bool) -> Self {
        Self { ready: false, reconciling: !stalled, stalled, reason: reason.to_owned(), message }
    }

    /// Returns this summary as not ready and still reconciling, for this reason.
    #[must_use]
    pub fn still_reconciling(mut self, reason: &str, message: String) -> Self {
        self.ready = false;
        self.reconciling = true;
        reason.clone_into(&mut self.reason);
        self.message = message;
        self
    }
}

/// The reason for a state, in CamelCase.
pub(crate) fn state_reason(state: State) -> &'static str {
    match state {
        State::Inactive => "Inactive",
        State::ToMigrate => "ToMigrate",
        State::Activating => "Activating",
        State::Active => "Active",
        State::ToDeactivate => "ToDeactivate",
        State::Deactivating => "Deactivating",
        State::Deleting => "Deleting",
        State::DeleteFailed => "DeleteFailed",
        State::Failed => "Failed",
        State::Orphaned => "Orphaned",
    }
}

fn state_message(state: State) -> &'static str {
    match state {
        State::Inactive => "no agent holds the account",
        State::ToMigrate => "a zone or the credential is awaited",
        State::Activating => "handed to the agents of its zone; none has answered yet",
        State::Active => "an agent holds the account",
        State::ToDeactivate => "to be deactivated",
        State::Deactivating => "the agents were told to drop the account",
        State::Deleting => "the agents were told to drop the account; then it is deleted",
        State::DeleteFailed => "an agent failed to drop the account; it is tried again",
        State::Failed => "the last try failed",
        State::Orphaned => {
            "the last agent that held the account is gone; it recovers when one of its zone connects"
        }
    }
}

/// The five standard conditions; `caching` is the agent that streams the account's objects, and what is left out of
/// them. A condition's time changes only with its status.
pub fn standard_conditions(
    before: &[Condition],
    story: &ConditionSummary,
    agent_connected: bool,
    caching: Option<(&str, Option<&str>)>,
    generation: i64,
    now: &Time,
) -> Vec<Condition> {
    let (agent_reason, agent_message) = if agent_connected {
        ("Connected", "an agent of the zone is connected")
    } else {
        ("NotConnected", "no agent of the zone is connected, or no zone has the account")
    };
    let one = |type_: &str, holds: bool, reason: &str, message: &str| {
        one(before, type_, if holds { "True" } else { "False" }, reason, message, generation, now)
    };
    vec![
        one("Ready", story.ready, &story.reason, &story.message),
        one("Reconciling", story.reconciling, &story.reason, &story.message),
        one("Stalled", story.stalled, &story.reason, &story.message),
        one("AgentConnected", agent_connected, agent_reason, agent_message),
        caching_condition(before, caching, generation, now),
    ]
}

/// The condition about the agent that streams the account's objects, and what is left out of them.
pub(crate) fn caching_condition(
    before: &[Condition],
    caching: Option<(&str, Option<&str>)>,
    generation: i64,
    now: &Time,
) -> Condition {
    let (status, reason, message) = match caching {
        Some((_, Some(left_out))) => ("True", LEFT_OUT, left_out.to_owned()),
        Some((agent, None)) => ("True", "Assigned", format!("agent {agent} caches the account")),
        None => ("False", "NotAssigned", "no agent caches the account".to_owned()),
    };
    one(before, CACHING, status, reason, &message, generation, now)
}

/// What the condition about the streaming agent says is left out; `None`: nothing.
pub fn left_out(conditions: &[Condition]) -> Option<&str> {
    let caching = find(conditions, CACHING).filter(|condition| condition.reason == LEFT_OUT);
    caching.map(|condition| condition.message.as_str())
}

/// Returns the condition of a type.
pub fn find<'c>(conditions: &'c [Condition], type_: &str) -> Option<&'c Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Builds a condition. Its time changes only with its status.
pub fn one(
    before: &[Condition],
    type_: &str,
    status: &str,
    reason: &str,
    message: &str,
    generation: i64,
    now: &Time,
) -> Condition {
    let old = before.iter().find(|condition| condition.type_ == type_ && condition.status == status);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: Some(generation),
        last_transition_time: old.map_or_else(|| now.clone(), |old| old.last_transition_time.clone()),
    }
}
