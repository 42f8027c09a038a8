//! What connected and missing agents mean for an account.

use super::rules::OPERATOR;
use super::{AccountFacts, ExplainedAgent, WaitExplanation, can_take, is_connected, shell};
use crate::KubesvcAgent;
use crate::agent_resource::IDENTIFIED;
use crate::ids::ZoneId;
use crate::lifecycle::{runs_in_another_cluster, short};

/// Minimum Jaro-Winkler similarity at which one zone is considered a misspelling of another.
const MIN_SIMILARITY: f64 = 0.8;

/// Prints the last lines of each agent's log. `kubectl logs` takes one namespace.
const AGENT_LOGS: &str = "kubectl get pods -A -l app.kubernetes.io/name=kubesvc-agent --no-headers \
    -o custom-columns=N:.metadata.namespace,P:.metadata.name | xargs -r -n 2 kubectl logs --tail=20 -n";

/// The agents of the account's zone, or of all zones if it has none.
pub(super) fn views(facts: &AccountFacts<'_>) -> Option<Vec<ExplainedAgent>> {
    let known_agents = facts.known_agents?;
    let zone = facts.zone();
    let mut views: Vec<_> = known_agents
        .iter()
        .filter(|agent| zone.is_none_or(|zone| agent.spec.zone_id == *zone))
        .map(|agent| view(facts, agent))
        .collect();
    views.sort_by(|a, b| (&a.zone, &a.agent_id).cmp(&(&b.zone, &b.agent_id)));
    Some(views)
}

fn view(facts: &AccountFacts<'_>, agent: &KubesvcAgent) -> ExplainedAgent {
    let granted = facts.status.granted_zone() == Some(&agent.spec.zone_id);
    ExplainedAgent {
        namespace: agent.metadata.namespace.clone().unwrap_or_default(),
        agent_id: agent.spec.agent_id.to_string(),
        zone: agent.spec.zone_id.clone(),
        connected: is_connected(agent),
        approved: agent.is_approved(),
        holds: granted && facts.status.agents.contains(&agent.spec.agent_id),
        problem: problem(facts, agent),
    }
}

/// Why the account is withheld from a connected agent: the agent runs in another cluster, or lists another account of
/// this name.
fn problem(facts: &AccountFacts<'_>, agent: &KubesvcAgent) -> Option<String> {
    let status = agent.status.as_ref().filter(|_| is_connected(agent))?;
    let own = status.cluster_uid.as_deref().unwrap_or_default();
    if runs_in_another_cluster(facts.account, own) {
        let bound = facts.status.cluster_uid.as_deref().unwrap_or_default();
        let (own, bound) = (short(own), short(bound));
        return Some(format!("it runs in cluster {own}, and the account is bound to cluster {bound}"));
    }
    let name = format!("account {:?}", facts.account.account_name());
    let told = status.conditions.iter().filter(|one| one.status == "False");
    told.map(|one| one.message.as_str()).find(|message| message.contains(&name)).map(str::to_owned)
}

/// No agent is connected that could take the account.
pub(super) fn nobody(facts: &AccountFacts<'_>) -> WaitExplanation {
    match facts.zone() {
        Some(zone) => nobody_in(facts, zone),
        None => nobody_anywhere(facts),
    }
}

fn nobody_anywhere(facts: &AccountFacts<'_>) -> WaitExplanation {
    let verdict = WaitExplanation::waits(
        "The account names no zone, and no agent that may take it is connected. It is tried as soon as one is; \
         that uses up no retry.",
    );
    let unapproved: Vec<_> =
        facts.known_agents.unwrap_or_default().iter().filter(|agent| waits(agent)).collect();
    if !unapproved.is_empty() {
        return approve(facts, verdict, &unapproved);
    }
    let mut known = facts.known_agents.unwrap_or_default().iter();
    match known.find(|agent| is_kept_out(agent)) {
        Some(agent) => kept_out(facts, verdict, agent),
        None => start_one(verdict, None),
    }
}

fn nobody_in(facts: &AccountFacts<'_>, zone: &ZoneId) -> WaitExplanation {
    let verdict = WaitExplanation::waits(format!(
        "An agent of zone {zone} that may take the account has to connect. It is tried as soon as one does; that \
         uses up no retry."
    ));
    if facts.known_agents.is_none() {
        return start_one(verdict, Some(zone))
            .advise("See which agents are there; you may not read them in this namespace.");
    }
    if facts.agents_of(zone).any(can_take) {
        return WaitExplanation::waits(format!(
            "An agent of zone {zone} is connected by now: the account is tried at once."
        ))
        .command("If it stays so, see whether the operator runs.", OPERATOR);
    }
    let unapproved: Vec<_> = facts.agents_of(zone).filter(|agent| waits(agent)).collect();
    if !unapproved.is_empty() {
        return approve(facts, verdict, &unapproved);
    }
    if let Some(agent) = facts.agents_of(zone).find(|agent| is_kept_out(agent)) {
        return kept_out(facts, verdict, agent);
    }
    other_zones(facts, start_one(verdict, Some(zone)), zone)
}

/// Whether no KubesvcIdentity admits the agent, which dials in vain.
fn is_kept_out(agent: &KubesvcAgent) -> bool {
    agent.status.as_ref().is_some_and(|status| status.identified == Some(false))
}

fn kept_out(facts: &AccountFacts<'_>, mut verdict: WaitExplanation, agent: &KubesvcAgent) -> WaitExplanation {
    let conditions = agent.status.iter().flat_map(|status| &status.conditions);
    let why = conditions.filter(|one| one.type_ == IDENTIFIED).map(|one| one.message.as_str()).next();
    verdict.waits_for = format!(
        "Agent {} of zone {} is not let in: {}.",
        agent.spec.agent_id,
        agent.spec.zone_id,
        why.unwrap_or("no KubesvcIdentity admits it")
    );
    let name = agent.metadata.name.as_deref().unwrap_or(agent.spec.agent_id.as_str());
    let namespace = agent.metadata.namespace.as_deref().unwrap_or(facts.namespace);
    verdict.command(
        "See what it shows; if you know this agent, create an identity for it.",
        format!("kubectl kubesvc identity why {} -n {}", shell(name), shell(namespace)),
    )
}

/// Whether the agent is connected but not approved.
fn waits(agent: &KubesvcAgent) -> bool {
    is_connected(agent) && !agent.is_approved()
}

fn approve(
    facts: &AccountFacts<'_>,
    mut verdict: WaitExplanation,
    unapproved: &[&KubesvcAgent],
) -> WaitExplanation {
    let first = unapproved[0];
    let more = match unapproved.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    verdict.waits_for = format!(
        "Agent {} of zone {} is connected{more}, and not approved: it is given no accounts until it is.",
        first.spec.agent_id, first.spec.zone_id
    );
    let name = first.metadata.name.as_deref().unwrap_or(first.spec.agent_id.as_str());
    let namespace = first.metadata.namespace.as_deref().unwrap_or(facts.namespace);
    verdict.command(
        "If you know this agent, approve it.",
        format!("kubectl kubesvc agents approve {} -n {}", shell(name), shell(namespace)),
    )
}

fn start_one(verdict: WaitExplanation, zone: Option<&ZoneId>) -> WaitExplanation {
    let of = zone.map(|zone| format!(" with zoneId {zone}")).unwrap_or_default();
    verdict.command(format!("Start an agent{of}, or see in its log why it cannot connect."), AGENT_LOGS)
}

/// Suggests zones that may have been meant.
fn other_zones(facts: &AccountFacts<'_>, verdict: WaitExplanation, zone: &ZoneId) -> WaitExplanation {
    let there = facts.zones();
    let similarity = |other: &ZoneId| strsim::jaro_winkler(zone.as_str(), other.as_str());
    let alike = |other: &&&ZoneId| similarity(other) >= MIN_SIMILARITY;
    let near = there.iter().filter(alike).max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    match (near, there.as_slice()) {
        (Some(near), _) => change(facts, verdict, &format!("Or did you mean zone {near}?"), near),
        (None, []) => verdict,
        (None, [only]) => {
            change(facts, verdict, &format!("Or use zone {only}, the only one with agents."), only)
        }
        (None, all) => verdict.advise(format!("Or use another zone; these have agents: {}.", listed(all))),
    }
}

/// The account names no zone, and has to.
pub(super) fn name_a_zone(facts: &AccountFacts<'_>, waits_for: &str) -> WaitExplanation {
    let mut verdict = WaitExplanation::waits(waits_for);
    for zone in facts.zones().into_iter().take(5) {
        verdict = change(facts, verdict, &format!("Pin it to zone {zone}."), zone);
    }
    if verdict.advice.is_empty() {
        verdict = verdict.advise("Set spec.zoneId.");
    }
    verdict
}

/// Advises to change the zone: with a command, unless a GitOps tool would revert the change.
fn change(facts: &AccountFacts<'_>, verdict: WaitExplanation, text: &str, zone: &ZoneId) -> WaitExplanation {
    match facts.account.gitops_owner() {
        Some(owner) => verdict.advise(format!("{text} Set spec.zoneId: {zone} in {owner}.")),
        None => verdict.command(text, facts.pin(zone)),
    }
}

/// The agents were told to drop the account.
pub(super) fn revoke(facts: &AccountFacts<'_>, then: &str) -> WaitExplanation {
    let zone = facts.status.granted_zone().unwrap_or_default();
    let connected: Vec<_> = facts.agents_of(zone).filter(|agent| is_connected(agent)).collect();
    let names: Vec<_> = connected.iter().map(|agent| agent.spec.agent_id.as_str()).collect();
    let who = match (facts.known_agents.is_some(), names.as_slice()) {
        (true, []) => {
            " None of them is connected: each counts when it has been away for the grace (30 s).".to_owned()
        }
        (false, _) => String::new(),
        (true, names) => format!(" Connected: {}.", listed(names)),
    };
    WaitExplanation::waits(format!(
        "Each connected agent of zone {zone} has to say that it let go of the account; then it {then}.{who}"
    ))
    .command("If one does not answer, see its log.", AGENT_LOGS)
}

/// The first names, and how many more there are.
pub(super) fn listed(names: &[impl AsRef<str>]) -> String {
    const MAX_NAMES_SHOWN: usize = 8;
    let shown = names.iter().take(MAX_NAMES_SHOWN).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
