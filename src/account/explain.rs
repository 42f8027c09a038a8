//! Why an account is where it is, what it waits for, and what a person can do: the text behind `kubectl kubesvc why`.
//!
//! | file | what it says |
//! |---|---|
//! | `facts.rs` | what is known, read once: the account, its zone, the agents |
//! | `rules.rs` | which rule of the lifecycle waits for what |
//! | `failed.rs` | the same for each reason of FAILED |
//! | `agents.rs` | what the agents that are there, or not, mean for it |

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

/// All that a person needs to know to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The name of the object.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The name Spinnaker knows it by.
    pub account_name: String,
    /// What it should be; `deleted` where its deletion was asked for.
    pub desired: String,
    /// Where it is, as every reader is shown it.
    pub state: State,
    /// Whether it is as desired, and the operator has seen all that is desired.
    pub ready: bool,
    /// The reason in its condition Ready; absent until an operator has seen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The zone that it is pinned to, or is or was in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Which rule waits for what, in a sentence or two.
    pub waits_for: String,
    /// Why the last try failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// How many tries failed in a row.
    pub failed_count: i32,
    /// When it is tried again by itself; absent: not by a timer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<Timestamp>,
    /// The tool that keeps the object, which is where its spec is to be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<String>,
    /// The agents of its zone; of all zones where it has none. Absent: they may not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<ExplainedAgent>>,
    /// What to do, the likeliest first. Empty: nothing.
    pub advice: Vec<Advice>,
}

/// An agent, as far as it concerns the account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedAgent {
    /// The namespace of its object, which is its operator's.
    pub namespace: String,
    /// Its id.
    pub agent_id: String,
    /// Its zone.
    pub zone: String,
    /// Whether its stream stands.
    pub connected: bool,
    /// Whether it is given accounts.
    pub approved: bool,
    /// Whether it held the account at the account's last change.
    pub holds: bool,
    /// Why the account is kept from it, as its object tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What it does, or what to look at.
    pub text: String,
    /// A command to copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// What a rule says: what is waited for, and what to do about it.
#[derive(Debug, Default)]
struct Finding {
    waits_for: String,
    advice: Vec<Advice>,
}

impl Finding {
    fn waits(text: impl Into<String>) -> Self {
        Self { waits_for: text.into(), advice: Vec::new() }
    }

    /// Something to do that is no command.
    fn advise(mut self, text: impl Into<String>) -> Self {
        self.advice.push(Advice { text: text.into(), command: None });
        self
    }

    /// Something to do, with its command.
    fn command(mut self, text: impl Into<String>, command: impl Into<String>) -> Self {
        self.advice.push(Advice { text: text.into(), command: Some(command.into()) });
        self
    }
}

/// Explains an account. `fleet` is all agents that could be read, of any zone; absent where they may not be read.
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
