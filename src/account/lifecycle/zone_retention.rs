//! Zones without agents: for how long an account stays with one.

use super::context::LifecycleContext;
use super::observation::{Fact, Presence, Tick};
use super::zone_choice::another_zone_is_left;
use crate::account::state::State;

/// Interval, in ticks, between looks for another zone for an account whose zone is gone; agents that connect wake it
/// too.
const RECHECK_TICKS: Tick = 60;

/// Whether an account stays.
pub(super) enum ZoneRetention {
    /// It stays, and is looked at again at the tick at the latest.
    Until(Option<Tick>),
    /// It goes.
    Over,
}

/// Whether a static account stays: it goes as soon as agents of its zone are connected and none of them has it in its
/// file, unless one that had is away; then, and where the whole zone is gone, when that has been so for the time of the
/// cleanup. A leader that has just begun has not heard all agents yet.
pub(super) fn of_static(context: &LifecycleContext<'_>) -> ZoneRetention {
    let (observation, account) = (context.observation, context.observation.account);
    let zone = account.spec.zone_id.as_deref().or(context.status.zone_id.as_deref());
    let Some(zone) = zone.filter(|_| account.is_static()) else { return ZoneRetention::Until(None) };
    if let Some(since) = context.gone_since(zone) {
        return over_at(context, since.saturating_add(observation.policy.account_cleanup));
    }
    let connected = context.sessions_of(zone).filter(|session| session.presence == Presence::Connected);
    let mut heard = connected.map(|session| &session.lists).peekable();
    if heard.peek().is_none() || !heard.all(|lists| *lists == Fact::Known(false)) {
        return ZoneRetention::Until(None);
    }
    match context.left_listing_it(zone) {
        Some(since) => over_at(context, since.saturating_add(observation.policy.account_cleanup)),
        None => context.all_seen_at().map_or(ZoneRetention::Over, |until| ZoneRetention::Until(Some(until))),
    }
}

/// Whether an account stays with a zone that was found for it, where that has no agents any more and another has.
pub(super) fn of_found_zone(context: &LifecycleContext<'_>, zone: &str) -> ZoneRetention {
    let waits = matches!(context.state(), State::Orphaned | State::Failed);
    if !waits || context.observation.account.spec.zone_id.is_some() {
        return ZoneRetention::Until(None);
    }
    // One whose approval was withdrawn can take nothing.
    let Some(since) = context.gone_since(zone).or_else(|| unapproved_since(context, zone)) else {
        return ZoneRetention::Until(None);
    };
    let at = since.saturating_add(context.observation.policy.account_cleanup);
    match over_at(context, at) {
        ZoneRetention::Over if !another_zone_is_left(context, zone) => {
            ZoneRetention::Until(Some(context.observation.now + RECHECK_TICKS))
        }
        stay => stay,
    }
}

fn unapproved_since(context: &LifecycleContext<'_>, zone: &str) -> Option<Tick> {
    let anyone = context.sessions_of(zone).any(|session| session.presence == Presence::Connected);
    let observation = context.observation;
    (!anyone).then_some(observation.in_state_since.max(observation.leading_since))
}

fn over_at(context: &LifecycleContext<'_>, at: Tick) -> ZoneRetention {
    if at > context.observation.now {
        return ZoneRetention::Until(Some(at));
    }
    // Its agents may be among those that wait to be registered.
    context.backlog_until().map_or(ZoneRetention::Over, |until| ZoneRetention::Until(Some(until)))
}
