//! The way to ACTIVE from no grant: find a zone, and open the grant for it.

use super::Verdict;
use crate::State;
use crate::conditions::AWAITING_AGENTS;
use crate::failure::FailureClass;
use crate::lifecycle::Action;
use crate::lifecycle::facts::Facts;
use crate::lifecycle::observation::{Fact, Tick};
use crate::lifecycle::retry_schedule::{Due, due, waits_for_agents};
use crate::lifecycle::status_change::StatusChange;
use crate::lifecycle::zone_choice::{ZoneChoice, credential_is_the_one_tried, zones_to_remember};

/// Ticks of a new leader before an account says that agents are awaited: most agents come within this time, and cost no write.
const AWAITING_AGENTS_DELAY_TICKS: Tick = 5;

/// Stays FAILED while what there is to choose from is what it failed for.
pub(super) fn await_another_choice(facts: &Facts<'_>) -> Option<Verdict> {
    if facts.state() != State::Failed {
        return None;
    }
    let class = facts.failure_class()?;
    let said = match (class, facts.choice()) {
        (FailureClass::NoAgent, ZoneChoice::NoAgent(failure)) => facts.fails_already_with(failure),
        (_, ZoneChoice::Refused(failure)) if facts.fails_already_with(failure) => true,
        (FailureClass::ZoneAmbiguous, _) => {
            !facts.starts_anew()
                && !facts.observation.credential_changed
                && facts.observation.account.spec.zone_id.is_none()
                && facts.status.tried_zones == zones_to_remember(facts)
        }
        _ => false,
    };
    // An agent that may come back counts for where the zone's agents are until it does not.
    let spans = class == FailureClass::ZoneSpansClusters;
    said.then(|| Verdict::Wait(facts.next_gone().filter(|_| spans)))
}

/// Stays FAILED until the next try is due, unless what it failed for has passed.
pub(super) fn await_retry(facts: &Facts<'_>) -> Option<Verdict> {
    if facts.state() != State::Failed || has_passed(facts) {
        return None;
    }
    match due(facts) {
        Due::Now => None,
        Due::At(tick) => Some(Verdict::wait_until(tick)),
        Due::OnChange => Some(Verdict::NOTHING),
    }
}

/// Whether what a FAILED account failed for is no more, so that it is tried before it is due.
fn has_passed(facts: &Facts<'_>) -> bool {
    let class = facts.failure_class();
    let may_be_given = matches!(class, Some(FailureClass::ZoneRequired | FailureClass::ZoneSpansClusters))
        && !matches!(facts.choice(), ZoneChoice::Refused(_));
    // It was the credential that failed, and it has healed; where agents were asked, the same one is due when it is due.
    let asked = credential_is_the_one_tried(facts)
        && class.is_some_and(|class| class.depends_on_zone() || class == FailureClass::ClusterMismatch);
    let has_healed = matches!(facts.observation.credential, Fact::Known(Ok(_))) && !asked;
    class.is_some_and(waits_for_agents) || may_be_given || has_healed
}

/// Reads the credential before a zone is given the grant; says so once, where that takes long.
pub(super) fn await_credential(facts: &Facts<'_>) -> Option<Verdict> {
    if facts.observation.credential != Fact::Unknown {
        return None;
    }
    let must_be_written = facts.observation.credential_slow && facts.state() == State::Inactive;
    Some(match must_be_written {
        true => StatusChange::to(State::ToMigrate).into(),
        false => Action::ResolveCredential.into(),
    })
}

/// Fails for a credential that cannot be had, or is refused.
pub(super) fn refuse_credential(facts: &Facts<'_>) -> Option<Verdict> {
    match &facts.observation.credential {
        Fact::Known(Err(failure)) => Some(StatusChange::failed(failure).without_credential().into()),
        Fact::Known(Ok(_)) | Fact::Unknown => None,
    }
}

/// Gives the grant to the zone that was found.
pub(super) fn open_grant(facts: &Facts<'_>) -> Option<Verdict> {
    match facts.choice() {
        ZoneChoice::Zone(zone) => Some(StatusChange::open(zone).into()),
        _ => None,
    }
}

/// Says that offers are awaited, and waits for them.
pub(super) fn ask_for_offers(facts: &Facts<'_>) -> Option<Verdict> {
    let ZoneChoice::Asked { zones, until } = facts.choice() else { return None };
    let said = facts.state() == State::ToMigrate
        && !facts.generation_is_new()
        && facts.retry_asked().is_none()
        && credential_is_the_one_tried(facts);
    if said {
        return Some(Verdict::wait_until(*until));
    }
    let message = format!("asked the agents of {zones} zones; waiting for an offer");
    Some(StatusChange::to(State::ToMigrate).with_credential().with_message(message).into())
}

/// Waits for agents that may be about to come. An account that has no story yet says so once, or it would look like one that
/// no operator has seen; after [`AWAITING_AGENTS_DELAY_TICKS`] of leadership, in which most agents come. What other accounts say stays, so
/// that a restart writes none of them.
pub(super) fn await_agents(facts: &Facts<'_>) -> Option<Verdict> {
    let until = agents_awaited_until(facts)?;
    let is_said = facts.status.reason() == Some(AWAITING_AGENTS)
        && !facts.generation_is_new()
        && facts.retry_asked().is_none();
    if is_said || facts.state() != State::Inactive {
        return Some(Verdict::wait_until(until));
    }
    let said_at = facts.observation.leading_since.saturating_add(AWAITING_AGENTS_DELAY_TICKS);
    if facts.observation.now < said_at {
        return Some(Verdict::wait_until(until.min(said_at)));
    }
    let message = "the operator has just begun to lead, or agents wait to be registered; waiting for those that may take it";
    let change = StatusChange::to(State::Inactive).for_reason(AWAITING_AGENTS);
    Some(change.with_message(message.to_owned()).into())
}

fn agents_awaited_until(facts: &Facts<'_>) -> Option<Tick> {
    match facts.choice() {
        ZoneChoice::NotYet(until) => Some(*until),
        ZoneChoice::NoAgent(_) => facts.all_seen_at(),
        _ => None,
    }
}

/// Fails when no agent is there that could take it. That is read from the API server first.
pub(super) fn fail_without_agent(facts: &Facts<'_>) -> Option<Verdict> {
    let ZoneChoice::NoAgent(failure) = facts.choice() else { return None };
    Some(match facts.observation.sessions_are_read {
        true => StatusChange::failed(failure).round_over().into(),
        false => Action::ReadSessions.into(),
    })
}

/// Fails when several zones offer and only one can be meant; remembers which were asked.
pub(super) fn fail_for_ambiguity(facts: &Facts<'_>) -> Option<Verdict> {
    let ZoneChoice::Ambiguous(failure) = facts.choice() else { return None };
    let change = StatusChange::failed(failure).with_credential();
    Some(change.asked(zones_to_remember(facts)).into())
}

/// Fails when no zone is left that may have it.
pub(super) fn fail_without_zone(facts: &Facts<'_>) -> Option<Verdict> {
    match facts.choice() {
        ZoneChoice::Over(failure) | ZoneChoice::Refused(failure) => {
            Some(StatusChange::failed(failure).with_credential().round_over().into())
        }
        _ => None,
    }
}
