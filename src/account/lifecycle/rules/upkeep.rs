//! What is kept up of an account that needs nothing else now.

use super::Verdict;
use crate::account::caching_election::ElectionOutcome;
use crate::account::lifecycle::caching_agent::election;
use crate::account::lifecycle::facts::Facts;
use crate::account::lifecycle::listed;
use crate::account::lifecycle::observation::Tick;
use crate::account::lifecycle::status_change::StatusChange;
use crate::account::lifecycle::zone_retention::{ZoneRetention, of_found_zone, of_static};
use crate::account::state::State;

/// Replaces the agent that streams the objects of an ACTIVE account, when it can no longer or somebody asks for it.
pub(super) fn replace_caching_agent(facts: &Facts<'_>, _: Option<Tick>) -> Option<Verdict> {
    if facts.state() != State::Active {
        return None;
    }
    match election(facts) {
        ElectionOutcome::Stays => None,
        ElectionOutcome::StaysUntil(tick) => Some(Verdict::wait_until(tick)),
        ElectionOutcome::Goes(..) => Some(StatusChange::acknowledged().electing().into()),
    }
}

/// Writes down the version of a credential whose content has not changed, so that replicas send it.
pub(super) fn restate_credential(facts: &Facts<'_>, _: Option<Tick>) -> Option<Verdict> {
    facts.credential_is_restated().then(|| StatusChange::acknowledged().with_credential().into())
}

/// Looks again when the zone that was found for the account has been without agents for too long.
pub(super) fn recheck_deserted_zone(facts: &Facts<'_>, _: Option<Tick>) -> Option<Verdict> {
    wait_for(of_found_zone(facts, facts.zone()))
}

/// Says which agent lists the account's name in its own file, too.
pub(super) fn say_who_lists_it(facts: &Facts<'_>, wake: Option<Tick>) -> Option<Verdict> {
    listed::is_to_be_told(facts, wake).then(|| StatusChange::listing().into())
}

/// Looks again when an account of an agent's own file may be no longer listed by any.
pub(super) fn recheck_unlisted(facts: &Facts<'_>, _: Option<Tick>) -> Option<Verdict> {
    wait_for(of_static(facts))
}

fn wait_for(retention: ZoneRetention) -> Option<Verdict> {
    match retention {
        ZoneRetention::Until(tick) => tick.map(Verdict::wait_until),
        ZoneRetention::Over => None,
    }
}
