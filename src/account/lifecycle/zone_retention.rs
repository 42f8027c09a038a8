//! Zones without agents: for how long an account stays with one.

use super::facts::Facts;
use super::observation::{Fact, Presence, Tick};
use super::zone_choice::another_zone_is_left;
use crate::account::state::State;

/// Interval, in ticks, between looks for another zone for an account whose zone is gone; agents that connect wake it
/// too.
const RECHECK_TICKS: Tick = 60;

/// Whether an account stays.
#[derive(Clone, Copy)]
pub(super) enum ZoneRetention {
    /// It stays, and is looked at again at the tick at the latest.
    Until(Option<Tick>),
    /// It goes.
    Over,
}

/// Whether a static account stays: it goes as soon as agents of its zone are connected and none of them has it in its
/// file, unless one that had is away; then, and where the whole zone is gone, when that has been so for the time of the
/// cleanup. A leader that has just begun has not heard all agents yet.
pub(super) fn of_static(facts: &Facts<'_>) -> ZoneRetention {
    let (observation, account) = (facts.observation, facts.observation.account);
    let zone = account.spec.zone_id.as_deref().or(facts.status.zone_id.as_deref());
    let Some(zone) = zone.filter(|_| account.is_static()) else { return ZoneRetention::Until(None) };
    if let Some(since) = facts.gone_since(zone) {
        return over_at(facts, since.saturating_add(observation.policy.account_cleanup));
    }
    let connected = facts.sessions_of(zone).filter(|session| session.presence == Presence::Connected);
    let mut heard = connected.map(|session| &session.lists).peekable();
    if heard.peek().is_none() || !heard.all(|lists| *lists == Fact::Known(false)) {
        return ZoneRetention::Until(None);
    }
    match facts.left_listing_it(zone) {
        Some(since) => over_at(facts, since.saturating_add(observation.policy.account_cleanup)),
        None => facts.all_seen_at().map_or(ZoneRetention::Over, |until| ZoneRetention::Until(Some(until))),
    }
}

/// Whether an account stays with a zone that was found for it, where that has no agents any more and another has.
pub(super) fn of_found_zone(facts: &Facts<'_>, zone: &str) -> ZoneRetention {
    let waits = matches!(facts.state(), State::Orphaned | State::Failed);
    if !waits || facts.observation.account.spec.zone_id.is_some() {
        return ZoneRetention::Until(None);
    }
    // One whose approval was withdrawn can take nothing.
    let Some(since) = facts.gone_since(zone).or_else(|| unapproved_since(facts, zone)) else {
        return ZoneRetention::Until(None);
    };
    let at = since.saturating_add(facts.observation.policy.account_cleanup);
    match over_at(facts, at) {
        ZoneRetention::Over if !another_zone_is_left(facts, zone) => {
            ZoneRetention::Until(Some(facts.observation.now + RECHECK_TICKS))
        }
        stay => stay,
    }
}

fn unapproved_since(facts: &Facts<'_>, zone: &str) -> Option<Tick> {
    let anyone = facts.sessions_of(zone).any(|session| session.presence == Presence::Connected);
    let observation = facts.observation;
    (!anyone).then_some(observation.in_state_since.max(observation.leading_since))
}

fn over_at(facts: &Facts<'_>, at: Tick) -> ZoneRetention {
    if at > facts.observation.now {
        return ZoneRetention::Until(Some(at));
    }
    // Its agents may be among those that wait to be registered.
    facts.backlog_until().map_or(ZoneRetention::Over, |until| ZoneRetention::Until(Some(until)))
}
