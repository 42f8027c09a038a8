//! An agent's own file that lists an account of the same name: what the declared object says of it.

use super::facts::Facts;
use super::observation::{Fact, Tick};
use crate::account::conditions::LISTED_BY_AGENT;
use crate::account::status::ListingAgent;
use crate::account::{State, conditions};

/// The agent that the status is to name: as observed, else as it was.
pub(super) fn agent(facts: &Facts<'_>) -> Option<ListingAgent> {
    match facts.observation.listed_by {
        _ if facts.observation.account.is_static() => None,
        Fact::Known(agent) => agent.cloned(),
        Fact::Unknown => facts.status.listed_by.clone(),
    }
}

/// Reason and message of the condition: which agent lists the name, and which of the two accounts counts. Absent: none
/// lists it.
pub(super) fn told(facts: &Facts<'_>) -> Option<(&'static str, String)> {
    let ListingAgent { agent_id, zone_id } = agent(facts)?;
    let agent_wins = facts.observation.policy.agent_wins;
    let (reason, which) = match facts.observation.rival.is_some_and(|rival| rival.is_static) {
        true => ("AgentWins", "the agent's account counts, and not this one"),
        false if agent_wins => {
            ("DeclaredWins", "the declared account counts until the agent's has an object")
        }
        false => ("DeclaredWins", "the declared account counts, and the agent's is not taken"),
    };
    let message = format!(
        "agent {agent_id} of zone {zone_id} lists an account of this name in its own file; {which} \
         (kubesvc.dynamicAccounts.agentWins: {agent_wins})"
    );
    Some((reason, message))
}

/// Whether the status says something else of it than is so. Where a retry is due at a tick it is said with that one: each
/// write begins the wait for it anew.
pub(super) fn is_to_be_told(facts: &Facts<'_>, wake: Option<Tick>) -> bool {
    let status = &facts.status;
    let waits_for_retry = matches!(status.state(), State::Failed | State::DeleteFailed) && wake.is_some();
    if status.conditions.is_empty() || waits_for_retry {
        return false;
    }
    let said = conditions::find(&status.conditions, LISTED_BY_AGENT)
        .map(|condition| (condition.reason.as_str(), condition.message.as_str()));
    let told = told(facts);
    said != told.as_ref().map(|(reason, message)| (*reason, message.as_str()))
        || status.listed_by != agent(facts)
}

/// The agent in whose file an account stands, to go on in a sentence.
pub(super) fn of_whose_file(facts: &Facts<'_>) -> String {
    let agent_wins = facts.observation.policy.agent_wins;
    let whose = match agent(facts) {
        Some(agent) => format!("agent {} of zone {}", agent.agent_id, agent.zone_id),
        None => "an agent".to_owned(),
    };
    format!(", which is of the own file of {whose} (kubesvc.dynamicAccounts.agentWins: {agent_wins})")
}
