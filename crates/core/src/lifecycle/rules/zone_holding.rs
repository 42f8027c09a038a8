//! A zone has the grant, and the account is to be ACTIVE: see that it is.

use super::Verdict;
use crate::State;
use crate::failure::FailureClass;
use crate::lifecycle::Action;
use crate::lifecycle::facts::Facts;
use crate::lifecycle::observation::Fact;
use crate::lifecycle::retry_schedule::{Due, due, waits_for_agents};
use crate::lifecycle::status_change::StatusChange;
use crate::lifecycle::zone_choice::{ZoneRetention, another_zone_is_left, no_agent_in, spans};

/// Leaves the zone for the one that the spec names, once that has an agent.
pub(super) fn move_to_pinned_zone(facts: &Facts<'_>) -> Option<Verdict> {
    let wanted = facts.zone_awaited()?;
    facts.connected(wanted).next()?;
    let why = format!("leaves zone {} for zone {wanted}", facts.zone());
    Some(StatusChange::to(State::Activating).forgiven().revoking().with_message(why).into())
}

/// Leaves a zone that was found for the account and has had no agent for too long.
pub(super) fn leave_deserted_zone(facts: &Facts<'_>) -> Option<Verdict> {
    let zone = facts.zone();
    let ZoneRetention::Over = ZoneRetention::of_found_zone(facts, zone) else { return None };
    let why = format!("zone {zone} has had no agent for too long; another one is looked for");
    Some(StatusChange::to(State::Activating).tried(zone).revoking().with_message(why).into())
}

/// Takes an account that is bound to no cluster from a zone whose agents turn out to be in different ones.
pub(super) fn leave_zone_of_several_clusters(facts: &Facts<'_>) -> Option<Verdict> {
    if !matches!(facts.state(), State::Activating | State::Failed) {
        return None;
    }
    Some(StatusChange::failed(&spans(facts, facts.zone())?).revoking().into())
}

/// Heals FAILED when an agent holds the account after all, unless its credential is refused, by the operator or by the
/// cluster. Of several agents only the one that streams its objects may know what the cluster says.
pub(super) fn heal(facts: &Facts<'_>) -> Option<Verdict> {
    let identity = facts.reports().held?;
    if is_changed(facts) || facts.reports().refused.is_some() {
        return None;
    }
    match &facts.observation.credential {
        Fact::Unknown => Some(Action::ResolveCredential.into()),
        Fact::Known(Ok(_)) => Some(StatusChange::held(identity).into()),
        Fact::Known(Err(_)) => None,
    }
}

/// Opens the grant anew in FAILED when that is due, or says that nobody is there to take the account.
pub(super) fn try_again(facts: &Facts<'_>) -> Option<Verdict> {
    let is_due = matches!(due(facts), Due::Now) || facts.failure_class().is_some_and(waits_for_agents);
    if !is_due {
        return None;
    }
    if facts.reports().connected > 0 {
        return Some(reopen(facts));
    }
    let failure = no_agent_in(facts.zone());
    if facts.fails_already_with(&failure) {
        return Some(Verdict::NOTHING);
    }
    Some(once_deserted(facts, || StatusChange::failed(&failure)))
}

/// Has agents drop the account in FAILED that were late and reached another cluster. One whose credential is refused
/// stays with that.
pub(super) fn drop_in_another_cluster(facts: &Facts<'_>) -> Option<Verdict> {
    let failure = facts
        .reports()
        .all_failed
        .as_ref()
        .filter(|failure| failure.class == FailureClass::ClusterMismatch)?;
    let is_said = facts.failure_class() == Some(failure.class);
    let is_refused = matches!(facts.observation.credential, Fact::Known(Err(_)));
    (!is_said && !is_refused).then(|| StatusChange::failed(failure).revoking().into())
}

/// Says in FAILED that a change of the spec was seen that is no reason to try again.
pub(super) fn acknowledge_in_failed(facts: &Facts<'_>) -> Option<Verdict> {
    facts.generation_is_new().then(|| StatusChange::acknowledged().into())
}

/// Stays FAILED until the next try is due.
pub(super) fn await_retry(facts: &Facts<'_>) -> Option<Verdict> {
    Some(match due(facts) {
        Due::At(tick) => Verdict::wait_until(tick),
        Due::Now | Due::OnChange => Verdict::NOTHING,
    })
}

/// Opens the grant anew for another definition or credential; the old one serves until the new one stands. An orphan is
/// given it when an agent connects.
pub(super) fn reopen_changed(facts: &Facts<'_>) -> Option<Verdict> {
    let later = facts.state() == State::Orphaned && facts.reports().connected == 0;
    (is_changed(facts) && !later).then(|| reopen(facts))
}

/// Fails for a credential that cannot be had, or is refused.
pub(super) fn refuse_credential(facts: &Facts<'_>) -> Option<Verdict> {
    match &facts.observation.credential {
        Fact::Known(Err(failure)) => Some(StatusChange::failed(failure).into()),
        Fact::Known(Ok(_)) | Fact::Unknown => None,
    }
}

/// Fails when the cluster refuses the credential with which an agent holds the account. The agent holds it on, and asks
/// the cluster again and again.
pub(super) fn fail_unauthorized(facts: &Facts<'_>) -> Option<Verdict> {
    facts.reports().refused.map(|failure| StatusChange::failed(failure).into())
}

/// Is ACTIVE as soon as an agent holds the account, and stays so while one does.
pub(super) fn become_active(facts: &Facts<'_>) -> Option<Verdict> {
    let identity = facts.reports().held?;
    let is_said = facts.state() == State::Active && !is_unseen(facts);
    Some(if is_said { Verdict::NOTHING } else { StatusChange::held(identity).into() })
}

/// Says that a change of the spec, or a retry that was asked for, was seen.
pub(super) fn acknowledge(facts: &Facts<'_>) -> Option<Verdict> {
    is_unseen(facts).then(|| StatusChange::acknowledged().into())
}

/// Orphans an account when every agent of the zone is gone; one that was never ACTIVE fails.
pub(super) fn orphan(facts: &Facts<'_>) -> Option<Verdict> {
    if facts.reports().connected > 0 {
        return None;
    }
    Some(match facts.state() {
        State::Orphaned => Verdict::NOTHING,
        State::Active => once_deserted(facts, || StatusChange::to(State::Orphaned)),
        _ => once_deserted(facts, || StatusChange::failed(&no_agent_in(facts.zone()))),
    })
}

/// Waits while an agent is still to answer.
pub(super) fn await_answers(facts: &Facts<'_>) -> Option<Verdict> {
    let reports = facts.reports();
    reports.all_failed.is_none().then_some(Verdict::Wait(reports.wake))
}

/// Waits, though all that are connected failed, for agents that may come back to an account that was ACTIVE.
pub(super) fn await_return(facts: &Facts<'_>) -> Option<Verdict> {
    if !matches!(facts.state(), State::Active | State::Orphaned) {
        return None;
    }
    facts.zone_may_return_until(facts.zone()).map(Verdict::wait_until)
}

/// Leaves a zone that was found for the account and whose agents all failed for a reason of place: it is a failure only
/// after the last zone.
pub(super) fn try_next_zone(facts: &Facts<'_>) -> Option<Verdict> {
    let (failure, zone) = (facts.reports().all_failed.as_ref()?, facts.zone());
    let found = facts.observation.account.spec.zone_id.is_none();
    let first_try = facts.state() == State::Activating;
    if !(found && first_try && facts.reports().all_failed_by_zone && another_zone_is_left(facts, zone)) {
        return None;
    }
    let why = format!("no agent of zone {zone} can take it, another one is looked for: {}", failure.message);
    let change = StatusChange::to(State::Activating).tried(zone).because(failure);
    Some(change.revoking().with_message(why).into())
}

/// Fails when every agent failed. Where they reached another cluster they drop the account.
pub(super) fn fail(facts: &Facts<'_>) -> Option<Verdict> {
    let failure = facts.reports().all_failed.as_ref()?;
    let change = StatusChange::failed(failure).round_over();
    let is_elsewhere = failure.class == FailureClass::ClusterMismatch;
    Some(if is_elsewhere { change.revoking().into() } else { change.into() })
}

/// Whether agents are to be sent something else than the grant was opened with.
fn is_changed(facts: &Facts<'_>) -> bool {
    facts.definition_is_new() || facts.credential_is_new()
}

fn is_unseen(facts: &Facts<'_>) -> bool {
    facts.generation_is_new() || facts.retry_asked().is_some()
}

/// Opens the grant anew in the same zone, under a new epoch.
fn reopen(facts: &Facts<'_>) -> Verdict {
    match &facts.observation.credential {
        Fact::Unknown => Action::ResolveCredential.into(),
        Fact::Known(Err(failure)) => StatusChange::failed(failure).into(),
        Fact::Known(Ok(_)) => StatusChange::open(facts.zone()).into(),
    }
}

/// Every agent of the zone is away: wait for the grace, and for those that wait to be registered; then see who is really
/// there, since a watch that was lost may not be back yet, and only then say so.
fn once_deserted(facts: &Facts<'_>, change: impl FnOnce() -> StatusChange) -> Verdict {
    match facts.zone_may_return_until(facts.zone()).or(facts.all_seen_at()) {
        Some(until) => Verdict::wait_until(until),
        None if facts.observation.sessions_are_read => change().into(),
        None => Action::ReadSessions.into(),
    }
}
