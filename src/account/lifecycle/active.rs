//! The way to ACTIVE, and staying there.

use super::caching_agent;
use super::context::{LifecycleContext, earlier};
use super::observation::{Fact, Tick};
use super::retry::waits_for_agents;
use super::write::{StatusDraft, retry_after_failure};
use super::zone_choice::{
    ZoneChoice, another_zone_is_left, choose, credential_is_the_one_tried, no_agent_in, spans,
    zones_to_remember,
};
use super::zone_reports::{ZoneOutcome, ZoneReports};
use super::zone_retention::{ZoneRetention, of_found_zone};
use super::{Action, Decision};
use crate::account::conditions::AWAITING_AGENTS;
use crate::account::failure::{Failure, FailureClass};
use crate::account::state::{GrantPhase, State};

/// When a FAILED account may be tried again.
pub(super) enum Due {
    /// Now.
    Now,
    /// At this tick, unless something changes before.
    At(Tick),
    /// Only when something changes.
    OnChange,
}

/// When this FAILED or DELETE_FAILED account may be tried again.
pub(super) fn due(context: &LifecycleContext<'_>) -> Due {
    let observation = context.observation;
    let judged_otherwise = observation.credential_changed && context.status.phase() != GrantPhase::Revoking;
    let class = context.failure_class().unwrap_or(FailureClass::Internal);
    let rival_is_gone = class == FailureClass::DuplicateName && observation.rival.is_none();
    let forbidden = |failure: &Failure| failure.class == FailureClass::SourceForbidden;
    let may_use_its_source = class == FailureClass::SourceForbidden
        && !matches!(&observation.credential, Fact::Known(Err(failure)) if forbidden(failure));
    if context.starts_anew() || judged_otherwise || rival_is_gone || may_use_its_source {
        return Due::Now;
    }
    match retry_after_failure(context, class, context.status.failed_count).after {
        None => Due::OnChange,
        Some(after) => {
            let at = observation.in_state_since.saturating_add(after);
            if at <= observation.now { Due::Now } else { Due::At(at) }
        }
    }
}

/// No zone has the grant, and the account is to be ACTIVE: find a zone and open the grant.
pub(super) fn open(context: &LifecycleContext<'_>) -> Decision {
    let choice = choose(context);
    if let Some(wait) = not_yet(context, &choice) {
        return wait;
    }
    match &context.observation.credential {
        Fact::Unknown => return await_credential(context),
        Fact::Known(Err(failure)) => {
            return StatusDraft::failed(context, failure).without_credential().into();
        }
        Fact::Known(Ok(_)) => {}
    }
    match choice {
        ZoneChoice::Zone(zone) => StatusDraft::open(context, &zone).into(),
        ZoneChoice::Asked { zones, until } => ask(context, zones, until),
        ZoneChoice::NotYet(until) => await_agents(context, until),
        ZoneChoice::NoAgent(failure) => match context.all_seen_at() {
            Some(until) => await_agents(context, until),
            None if !context.observation.sessions_are_read => Action::ReadSessions.into(),
            None => StatusDraft::failed(context, &failure).round_over().into(),
        },
        ZoneChoice::Ambiguous(failure) => {
            StatusDraft::failed(context, &failure).with_credential().asked(zones_to_remember(context)).into()
        }
        ZoneChoice::Over(failure) | ZoneChoice::Refused(failure) => {
            StatusDraft::failed(context, &failure).with_credential().round_over().into()
        }
    }
}

/// Waits for agents that may be about to come, and says so once of an account that has no story yet: nobody could tell it
/// from one that no operator has seen. What other accounts say stays, so that a restart writes none of them.
fn await_agents(context: &LifecycleContext<'_>, until: Tick) -> Decision {
    let is_said = context.status.reason() == Some(AWAITING_AGENTS)
        && !context.generation_is_new()
        && context.retry_asked().is_none();
    if is_said || context.state() != State::Inactive {
        return Decision::wait_until(until);
    }
    let message = "the operator has just begun to lead, or agents wait to be registered; waiting for those that may take it";
    StatusDraft::to(context, State::Inactive)
        .for_reason(AWAITING_AGENTS)
        .with_message(message.to_owned())
        .into()
}

/// Says that offers are awaited, and waits for them.
fn ask(context: &LifecycleContext<'_>, zones: usize, until: Tick) -> Decision {
    let said = context.state() == State::ToMigrate
        && !context.generation_is_new()
        && context.retry_asked().is_none()
        && credential_is_the_one_tried(context);
    if said {
        return Decision::wait_until(until);
    }
    let message = format!("asked the agents of {zones} zones; waiting for an offer");
    StatusDraft::to(context, State::ToMigrate).with_credential().with_message(message).into()
}

/// Why a FAILED account without a grant is not tried now.
fn not_yet(context: &LifecycleContext<'_>, choice: &ZoneChoice) -> Option<Decision> {
    if context.state() != State::Failed {
        return None;
    }
    let said = match (context.failure_class(), choice) {
        (Some(FailureClass::NoAgent), ZoneChoice::NoAgent(failure)) => context.fails_already_with(failure),
        (Some(_), ZoneChoice::Refused(failure)) if context.fails_already_with(failure) => true,
        (Some(FailureClass::ZoneAmbiguous), _) => {
            !context.starts_anew()
                && !context.observation.credential_changed
                && context.observation.account.spec.zone_id.is_none()
                && context.status.tried_zones == zones_to_remember(context)
        }
        _ => false,
    };
    if said {
        // An agent that may come back counts for where the zone's agents are until it does not.
        let spans = context.failure_class() == Some(FailureClass::ZoneSpansClusters);
        let gone = context.next_gone().filter(|_| spans);
        return Some(gone.map_or_else(Decision::nothing, Decision::wait_until));
    }
    if context.failure_class().is_some_and(waits_for_agents) {
        return None;
    }
    let may_be_given =
        matches!(context.failure_class(), Some(FailureClass::ZoneRequired | FailureClass::ZoneSpansClusters))
            && !matches!(choice, ZoneChoice::Refused(_));
    if may_be_given {
        return None;
    }
    // It was the credential that failed, and it has healed; where agents were asked, the same one is due when it is due.
    let asked = credential_is_the_one_tried(context)
        && context
            .failure_class()
            .is_some_and(|class| class.is_of_place() || class == FailureClass::ClusterMismatch);
    if matches!(context.observation.credential, Fact::Known(Ok(_))) && !asked {
        return None;
    }
    match due(context) {
        Due::Now => None,
        Due::At(tick) => Some(Decision::wait_until(tick)),
        Due::OnChange => Some(Decision::nothing()),
    }
}

/// A zone has the grant, and the account is to be ACTIVE: see that it is.
pub(super) fn keep(context: &LifecycleContext<'_>) -> Decision {
    let zone = context.status.granted_zone().unwrap_or_default();
    if let Some(wanted) = context.zone_awaited()
        && context.connected(wanted).next().is_some()
    {
        let why = format!("leaves zone {zone} for zone {wanted}");
        return StatusDraft::to(context, State::Activating).forgiven().revoking().with_message(why).into();
    }
    let again = match of_found_zone(context, zone) {
        ZoneRetention::Until(again) => again,
        ZoneRetention::Over => {
            let why = format!("zone {zone} has had no agent for too long; another one is looked for");
            return StatusDraft::to(context, State::Activating)
                .tried(zone)
                .revoking()
                .with_message(why)
                .into();
        }
    };
    let mut decision = stay(context, zone);
    if decision.action.is_none() {
        decision.wake = earlier(decision.wake, again);
    }
    decision
}

/// The account stays in its zone.
fn stay(context: &LifecycleContext<'_>, zone: &str) -> Decision {
    let reports = ZoneReports::of(context, zone);
    if matches!(context.state(), State::Activating | State::Failed)
        && let Some(failure) = spans(context, zone)
    {
        return StatusDraft::failed(context, &failure).revoking().into();
    }
    if context.state() == State::Failed {
        return retry(context, zone, &reports);
    }
    let recovers_later = context.state() == State::Orphaned && reports.connected == 0;
    if !recovers_later && (context.definition_is_new() || context.credential_is_new()) {
        return reopen(context, zone);
    }
    if let Fact::Known(Err(failure)) = &context.observation.credential {
        return StatusDraft::failed(context, failure).into();
    }
    let decision = caching_agent::maintain_election(context, zone, judge_reports(context, zone, &reports));
    if decision.action.is_none() && context.credential_is_restated() {
        return StatusDraft::acknowledged(context).with_credential().into();
    }
    decision
}

/// What the agents of the zone say.
fn judge_reports(context: &LifecycleContext<'_>, zone: &str, reports: &ZoneReports<'_>) -> Decision {
    let unseen = context.generation_is_new() || context.retry_asked().is_some();
    match reports.held {
        Some(_) if context.state() == State::Active && !unseen => return Decision::nothing(),
        Some(identity) => return StatusDraft::held(context, identity).into(),
        None if unseen => return StatusDraft::acknowledged(context).into(),
        None => {}
    }
    if reports.connected == 0 {
        return deserted(context, zone);
    }
    let may_return = match context.state() {
        State::Active | State::Orphaned => context.zone_may_return_until(zone),
        _ => None,
    };
    match (&reports.verdict, may_return) {
        (ZoneOutcome::Open(wake), _) => Decision { action: None, wake: *wake },
        (ZoneOutcome::AllFailed(_), Some(until)) => Decision::wait_until(until),
        (ZoneOutcome::AllFailed(failure), None) => fail(context, zone, reports, failure),
    }
}

/// Every agent of the zone failed. Agents of a zone that was found for the account may be in the wrong place: then the
/// next one has its turn, and it is a failure only after the last. Where they reached the wrong cluster they drop it.
fn fail(
    context: &LifecycleContext<'_>,
    zone: &str,
    reports: &ZoneReports<'_>,
    failure: &Failure,
) -> Decision {
    let found = context.observation.account.spec.zone_id.is_none();
    let first_try = context.state() == State::Activating;
    if found && first_try && reports.all_failed_by_place && another_zone_is_left(context, zone) {
        let why =
            format!("no agent of zone {zone} can take it, another one is looked for: {}", failure.message);
        return StatusDraft::to(context, State::Activating)
            .tried(zone)
            .because(failure)
            .revoking()
            .with_message(why)
            .into();
    }
    let draft = StatusDraft::failed(context, failure).round_over();
    if failure.class == FailureClass::ClusterMismatch { draft.revoking().into() } else { draft.into() }
}

/// FAILED under an open grant: an agent that holds it after all heals it, unless the credential is refused; else it is
/// tried again when it is due.
fn retry(context: &LifecycleContext<'_>, zone: &str, reports: &ZoneReports<'_>) -> Decision {
    let waits = context.failure_class().is_some_and(waits_for_agents);
    let changed = context.definition_is_new() || context.credential_is_new();
    if let Some(identity) = reports.held.filter(|_| !changed) {
        match &context.observation.credential {
            Fact::Unknown => return Action::ResolveCredential.into(),
            Fact::Known(Ok(_)) => return StatusDraft::held(context, identity).into(),
            Fact::Known(Err(_)) => {}
        }
    }
    match due(context) {
        Due::Now => try_again(context, zone, reports),
        _ if waits => try_again(context, zone, reports),
        later => wait(context, reports, &later),
    }
}

/// FAILED, and not due. Agents that were late and reached the wrong cluster are not waited with: they have to drop it.
fn wait(context: &LifecycleContext<'_>, reports: &ZoneReports<'_>, due: &Due) -> Decision {
    let refused = matches!(context.observation.credential, Fact::Known(Err(_)));
    match &reports.verdict {
        ZoneOutcome::AllFailed(failure)
            if failure.class == FailureClass::ClusterMismatch
                && context.failure_class() != Some(failure.class)
                && !refused =>
        {
            return StatusDraft::failed(context, failure).revoking().into();
        }
        _ => {}
    }
    match due {
        _ if context.generation_is_new() => StatusDraft::acknowledged(context).into(),
        Due::At(tick) => Decision::wait_until(*tick),
        Due::Now | Due::OnChange => Decision::nothing(),
    }
}

/// Opens the grant anew, or says that nobody is there to take the account.
fn try_again(context: &LifecycleContext<'_>, zone: &str, reports: &ZoneReports<'_>) -> Decision {
    if reports.connected > 0 {
        return reopen(context, zone);
    }
    let failure = no_agent_in(zone);
    if context.fails_already_with(&failure) {
        return Decision::nothing();
    }
    match context.zone_may_return_until(zone).or(context.all_seen_at()) {
        Some(until) => Decision::wait_until(until),
        None if !context.observation.sessions_are_read => Action::ReadSessions.into(),
        None => StatusDraft::failed(context, &failure).into(),
    }
}

/// Every agent of the zone is away: wait for the grace, and for those that wait to be registered; then see who is really
/// there, since a watch that was lost may not be back yet, and say so.
fn deserted(context: &LifecycleContext<'_>, zone: &str) -> Decision {
    if context.state() == State::Orphaned {
        return Decision::nothing();
    }
    if let Some(until) = context.zone_may_return_until(zone).or(context.all_seen_at()) {
        return Decision::wait_until(until);
    }
    if !context.observation.sessions_are_read {
        return Action::ReadSessions.into();
    }
    match context.state() {
        State::Active => StatusDraft::to(context, State::Orphaned).into(),
        _ => StatusDraft::failed(context, &no_agent_in(zone)).into(),
    }
}

/// Opens the grant anew in the same zone, under a new epoch; the old definition serves until the new one stands.
fn reopen(context: &LifecycleContext<'_>, zone: &str) -> Decision {
    match &context.observation.credential {
        Fact::Unknown => Action::ResolveCredential.into(),
        Fact::Known(Err(failure)) => StatusDraft::failed(context, failure).into(),
        Fact::Known(Ok(_)) => StatusDraft::open(context, zone).into(),
    }
}

fn await_credential(context: &LifecycleContext<'_>) -> Decision {
    if context.observation.credential_slow && context.state() == State::Inactive {
        StatusDraft::to(context, State::ToMigrate).into()
    } else {
        Action::ResolveCredential.into()
    }
}
