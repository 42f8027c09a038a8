//! Explains why an account is in its state, what it waits for, and what a person can do: the text of `kubectl kubesvc
//! why`.
//!
//! | file | explains |
//! |---|---|
//! | `facts.rs` | what is known, read once: the account, its zone, the agents |
//! | `rules.rs` | which rule of the lifecycle waits for what |
//! | `failed.rs` | the same for each reason of FAILED |
//! | `agents.rs` | what connected and missing agents mean for it |

mod agents;
mod facts;
mod failed;
mod rules;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use serde::Serialize;

use super::conditions::LISTED_BY_AGENT;
use super::lifecycle::displayed_state;
use super::state::{DesiredState, State};
use super::{KubesvcAccount, KubesvcAgent, gitops_owner};
use facts::Facts;

/// Everything a person needs to know to proceed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the account in Spinnaker.
    pub account_name: String,
    /// The desired state; `deleted` if deletion was requested.
    pub desired: String,
    /// The current state, as shown to every reader.
    pub state: State,
    /// Whether the account is as desired, and the operator has seen the latest spec.
    pub ready: bool,
    /// The reason of its condition Ready; `None` until an operator has seen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time since which it is in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The zone that it is pinned to, or else is or was in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Which rule waits for what, in a sentence or two.
    pub waits_for: String,
    /// Why the last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Number of consecutive failed attempts.
    pub failed_count: i32,
    /// Time of the next automatic retry; `None`: none is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<Timestamp>,
    /// The tool that manages the object, where its spec must be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<String>,
    /// The agents of its zone, or of all zones if it has none; `None` if they may not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<ExplainedAgent>>,
    /// What to do, the most likely first; empty: nothing.
    pub advice: Vec<Advice>,
}

/// An agent, as far as it concerns the account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedAgent {
    /// Namespace of its object, which is its operator's.
    pub namespace: String,
    /// id of the agent.
    pub agent_id: String,
    /// Zone of the agent.
    pub zone: String,
    /// Whether it is connected.
    pub connected: bool,
    /// Whether it is approved to receive accounts.
    pub approved: bool,
    /// Whether it held the account when the account last changed.
    pub holds: bool,
    /// Why the account is withheld from it, according to its object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What to do or to look at.
    pub text: String,
    /// A command to copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The result of a rule: what is waited for, and what to do about it.
#[derive(Debug, Default)]
struct Finding {
    waits_for: String,
    advice: Vec<Advice>,
}

impl Finding {
    fn waits(text: impl Into<String>) -> Self {
        Self { waits_for: text.into(), advice: Vec::new() }
    }

    /// Adds advice without a command.
    fn advise(mut self, text: impl Into<String>) -> Self {
        self.advice.push(Advice { text: text.into(), command: None });
        self
    }

    /// Adds advice with a command.
    fn command(mut self, text: impl Into<String>, command: impl Into<String>) -> Self {
        self.advice.push(Advice { text: text.into(), command: Some(command.into()) });
        self
    }
}

/// Explains an account. `fleet` is all agents that could be read, of any zone; `None` if they may not be read.
pub fn explain(account: &KubesvcAccount, fleet: Option<&[KubesvcAgent]>, now: Timestamp) -> Explanation {
    let facts = Facts::new(account, fleet, now);
    let mut verdict = rules::judge(&facts);
    if let Some(listed) = facts.condition(LISTED_BY_AGENT) {
        let then = "To end this, take the account out of the agent's file, or delete this object.";
        verdict = verdict.advise(format!("A second account of this name: {}. {then}", listed.message));
    }
    let status = &facts.status;
    let desired = match account.desired() {
        _ if account.is_being_deleted() => "deleted",
        DesiredState::Active => "ACTIVE",
        DesiredState::Inactive => "INACTIVE",
    };
    Explanation {
        name: facts.name.to_owned(),
        namespace: facts.namespace.to_owned(),
        account_name: account.account_name().to_owned(),
        desired: desired.to_owned(),
        state: displayed_state(account),
        ready: facts.is_true("Ready") && !facts.is_changed() && !account.is_being_deleted(),
        reason: facts.reason().map(str::to_owned),
        since: status.last_transition_time.as_ref().map(|time| time.0),
        zone: facts.zone().map(str::to_owned),
        waits_for: verdict.waits_for,
        last_error: status.error_message.clone(),
        failed_count: status.failed_count,
        next_try: status.next_retry_time.as_ref().map(|time| time.0),
        kept_by: gitops_owner::gitops_owner(account),
        agents: agents::views(&facts),
        advice: verdict.advice,
    }
}
