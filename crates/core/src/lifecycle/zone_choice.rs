//! Which zone an account is given to, and for how long it stays with one without agents.
//!
//! The zone that the spec names; else, where zones may offer, the one it was in before; else the only one with agents; else
//! agents of all zones are asked, and the first zone with an agent that can reach the account has it. A zone whose agents then fail for a
//! reason of place is left for the next one that offers, until this *round* has tried all of them.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::cluster_identity::short;
use super::facts::Facts;
use super::observation::{Fact, Offer, Presence, SessionFact, Tick};
use crate::State;
use crate::failure::{Failure, FailureClass};
use crate::ids::ZoneId;
use crate::status::MAX_TRIED_ZONES;

/// Interval, in ticks, between looks for another zone for an account whose zone is gone; agents that connect wake it
/// too.
const RECHECK_TICKS: Tick = 60;

/// What is known of the zone that the account is to be given to.
pub(super) enum ZoneChoice {
    /// It is this one.
    Zone(ZoneId),
    /// The agents of this many zones are to be asked, or are asked; at the tick the asking is over.
    Asked { zones: usize, until: Tick },
    /// Agents that matter may not have come back yet to a leader that has just begun, or wait to be registered; until
    /// this tick.
    NotYet(Tick),
    /// No agent is connected that could take it.
    NoAgent(Failure),
    /// Several offer, and only one can be meant.
    Ambiguous(Failure),
    /// None is left that offers to take it: the round was without success.
    Over(Failure),
    /// It may be given to none as it is.
    Refused(Failure),
}

/// Chooses.
pub(super) fn choose(facts: &Facts<'_>) -> ZoneChoice {
    match zone_of(facts) {
        ZoneChoice::Zone(zone) => match spans(facts, &zone) {
            Some(failure) => ZoneChoice::Refused(failure),
            None => ZoneChoice::Zone(zone),
        },
        other => other,
    }
}

/// Why the account cannot be given to a zone: it asks for the cluster that the agents are in, they are in different ones,
/// and it is bound to none. Of an account of agents' own files the first that answers stands.
pub(super) fn spans(facts: &Facts<'_>, zone: &ZoneId) -> Option<Failure> {
    const MAX_NAMES_SHOWN: usize = 4;
    let account = facts.observation.account;
    let is_bound = facts.status.cluster_uid.as_deref().is_some_and(|bound| !bound.is_empty());
    let asks = account.spec.agent_source().service_account == Some(true) && !account.is_static();
    let clusters = if asks && !is_bound { facts.clusters_of(zone) } else { BTreeMap::new() };
    if clusters.len() < 2 {
        return None;
    }
    let named = clusters.iter().take(MAX_NAMES_SHOWN);
    let named: Vec<_> = named.map(|(cluster, agent)| format!("{} (agent {agent})", short(cluster))).collect();
    let more = match clusters.len().saturating_sub(MAX_NAMES_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!(
        "the agents of zone {zone} run in different clusters: {}{more}; give the agents of each cluster a zoneId of \
         their own, and name it in spec.zoneId",
        named.join(", ")
    );
    Some(Failure::new(FailureClass::ZoneSpansClusters, message))
}

fn zone_of(facts: &Facts<'_>) -> ZoneChoice {
    if let Some(pinned) = facts.observation.account.spec.zone_id.as_ref() {
        let connected = facts.connected(pinned).next().is_some();
        return if connected {
            ZoneChoice::Zone(pinned.to_owned())
        } else {
            ZoneChoice::NoAgent(no_agent_in(pinned))
        };
    }
    if !facts.observation.policy.offers {
        return ZoneChoice::Refused(zone_required());
    }
    let connected = facts.connected_zones();
    if connected.is_empty() {
        let message = "no agent connected; start one, or see why none can connect";
        return ZoneChoice::NoAgent(Failure::new(FailureClass::NoAgent, message));
    }
    let tried = facts.tried_zones();
    let is_new = |zone: &&ZoneId| !tried.iter().any(|one| one == *zone);
    if let Some(before) =
        facts.status.zone_id.as_ref().filter(|zone| connected.contains(zone) && is_new(zone))
    {
        return ZoneChoice::Zone(before.to_owned());
    }
    let untried: BTreeSet<&ZoneId> = connected.iter().copied().filter(is_new).collect();
    if untried.is_empty() || tried.len() >= MAX_TRIED_ZONES {
        return ZoneChoice::Over(none_left(facts, tried));
    }
    let grace = facts.all_seen_at();
    if let Some(until) = grace.filter(|_| others_matter(facts, tried)) {
        return ZoneChoice::NotYet(until);
    }
    match connected.first() {
        // Where others were asked before the leader changed, they will be again.
        Some(_) if grace.is_some() && facts.state() == State::ToMigrate => among_offers(facts, &untried),
        Some(only) if connected.len() == 1 => ZoneChoice::Zone((*only).to_owned()),
        _ => among_offers(facts, &untried),
    }
}

/// Whether an agent that is not connected could decide where the account goes: one of the zone it was in before, or any
/// where every one must be heard.
fn others_matter(facts: &Facts<'_>, tried: &[ZoneId]) -> bool {
    let before = facts.status.zone_id.as_ref().is_some_and(|zone| !tried.contains(zone));
    before || hears_everyone(facts) || facts.failure_class() == Some(FailureClass::ZoneAmbiguous)
}

/// A path or a service account may mean another cluster at each agent: everyone is heard before one is chosen.
fn hears_everyone(facts: &Facts<'_>) -> bool {
    let source = facts.observation.account.spec.agent_source();
    source.file.is_some() || source.service_account == Some(true)
}

/// Whether another zone than this one may offer, has agents and was not tried in this round.
pub(super) fn another_zone_is_left(facts: &Facts<'_>, zone: &ZoneId) -> bool {
    let tried = facts.tried_zones();
    facts.observation.policy.offers
        && tried.len() < MAX_TRIED_ZONES
        && facts.connected_zones().into_iter().any(|one| one != zone && !tried.iter().any(|old| old == one))
}

/// The zones with agents, as a FAILED `ZoneAmbiguous` remembers them: the first by name.
pub(super) fn zones_to_remember(facts: &Facts<'_>) -> Vec<ZoneId> {
    facts.connected_zones().into_iter().take(MAX_TRIED_ZONES).cloned().collect()
}

fn zone_required() -> Failure {
    let message = "the account names no zone, and no agent may offer to take it (kubesvc.agents.offers); set \
                   spec.zoneId to the zone whose agents are to hold it";
    Failure::new(FailureClass::ZoneRequired, message)
}

/// What is said where no agent of the zone is connected.
pub(super) fn no_agent_in(zone: &ZoneId) -> Failure {
    Failure::new(FailureClass::NoAgent, format!("no agent connected for zone {zone}"))
}

/// The zone that offers to take the account as it is now and whose agent has been connected for longest; where everyone
/// must be heard, exactly one zone must offer. Names decide nothing: an agent gives itself the name of its zone.
fn among_offers(facts: &Facts<'_>, zones: &BTreeSet<&ZoneId>) -> ZoneChoice {
    let observation = facts.observation;
    if facts.state() != State::ToMigrate {
        return ZoneChoice::Asked { zones: zones.len(), until: observation.now };
    }
    let until = observation.in_state_since.saturating_add(observation.policy.operation_wait);
    let asked: Vec<_> = observation.sessions.iter().filter(|session| is_asked(session, zones)).collect();
    let says_yes = |session: &&&SessionFact| matches!(answer(facts, session), Some(Offer::Yes));
    let willing: BTreeSet<&ZoneId> = asked.iter().filter(says_yes).map(|session| &session.zone).collect();
    if hears_everyone(facts) {
        let heard = asked.iter().all(|session| answer(facts, session).is_some());
        if !heard && until > observation.now {
            return ZoneChoice::Asked { zones: zones.len(), until };
        }
        if willing.len() > 1 {
            return ZoneChoice::Ambiguous(ambiguous(&willing));
        }
    }
    let offers = asked.iter().filter(says_yes);
    let first = offers.min_by_key(|session| (session.process.since, lot(facts, &session.zone)));
    match first {
        Some(session) => ZoneChoice::Zone(session.zone.clone()),
        None if until > observation.now => ZoneChoice::Asked { zones: zones.len(), until },
        None => ZoneChoice::Over(nobody_offers(facts, &asked)),
    }
}

/// Orders the zones whose agents came in the same second, for each account in another way.
fn lot(facts: &Facts<'_>, zone: &ZoneId) -> [u8; 32] {
    let uid = Sha256::digest(facts.observation.account.uid());
    Sha256::new().chain_update(uid).chain_update(zone.as_str()).finalize().into()
}

fn is_asked(session: &SessionFact, zones: &BTreeSet<&ZoneId>) -> bool {
    session.approved && session.presence == Presence::Connected && zones.contains(&session.zone)
}

/// What a session answered for the spec as it is now.
fn answer<'s>(facts: &Facts<'_>, session: &'s SessionFact) -> Option<&'s Offer> {
    let (generation, offer) = session.offer.as_ref()?;
    (*generation == facts.observation.account.generation()).then_some(offer)
}

fn ambiguous(willing: &BTreeSet<&ZoneId>) -> Failure {
    let names = willing.iter().map(|zone| zone.as_str()).collect::<Vec<_>>().join(", ");
    let message =
        format!("agents of several zones can take the account ({names}); set spec.zoneId to one of them");
    Failure::new(FailureClass::ZoneAmbiguous, message)
}

/// Everyone said no, or nothing: the most telling no is the reason.
fn nobody_offers(facts: &Facts<'_>, asked: &[&SessionFact]) -> Failure {
    let refusals = asked.iter().filter_map(|session| match answer(facts, session) {
        Some(Offer::No(failure)) => Some((relevance(failure.class), session, failure)),
        _ => None,
    });
    let by_name = |session: &SessionFact| std::cmp::Reverse((session.zone.clone(), session.agent_id.clone()));
    let most = refusals.max_by_key(|(relevance, session, _)| (*relevance, by_name(session)));
    let count = match asked.len() {
        1 => "the only agent asked does not offer".to_owned(),
        count => format!("none of the {count} agents asked offers"),
    };
    let Some((_, session, failure)) = most else {
        let message = format!("{count} to take the account: no answer in time; see the log of the agent");
        return Failure::new(FailureClass::Unreachable, message);
    };
    // Only a reason of place is one that asking again can mend.
    let class = if failure.class.depends_on_zone() { failure.class } else { FailureClass::Unreachable };
    let (agent, zone, why) = (&session.agent_id, &session.zone, &failure.message);
    Failure::new(class, format!("{count} to take the account; agent {agent} of zone {zone}: {why}"))
}

/// How much a no says: that a file is not there is the usual answer of an agent that has nothing to do with it.
fn relevance(class: FailureClass) -> u8 {
    match class {
        FailureClass::CredentialMissing => 0,
        FailureClass::Timeout => 1,
        FailureClass::Unreachable => 2,
        FailureClass::Tls => 3,
        _ => 4,
    }
}

/// Every zone with agents was tried.
fn none_left(facts: &Facts<'_>, tried: &[ZoneId]) -> Failure {
    let names = tried.iter().map(ZoneId::as_str).take(10).collect::<Vec<_>>().join(", ");
    let last = facts.status.error_message.as_deref().unwrap_or("the agents failed to take the account");
    Failure::new(FailureClass::Unreachable, format!("no zone is left to try after {names}: {last}"))
}

/// Whether the credential that is known is the one that offers were asked for, or the grant was opened with.
pub(super) fn credential_is_the_one_tried(facts: &Facts<'_>) -> bool {
    matches!(&facts.observation.credential, Fact::Known(Ok(known)) if known.is(facts.status.credential_version.as_deref()))
}

/// Whether an account stays.
#[derive(Clone, Copy)]
pub(super) enum ZoneRetention {
    /// It stays, and is looked at again at the tick at the latest.
    Until(Option<Tick>),
    /// It goes.
    Over,
}

impl ZoneRetention {
    /// Whether a static account stays: it goes as soon as agents of its zone are connected and none of them has it in its
    /// file, unless one that had is away; then, and where the whole zone is gone, when that has been so for the time of the
    /// cleanup. A leader that has just begun has not heard all agents yet.
    pub(super) fn of_static(facts: &Facts<'_>) -> Self {
        let (observation, account) = (facts.observation, facts.observation.account);
        let zone = account.spec.zone_id.as_ref().or(facts.status.zone_id.as_ref());
        let Some(zone) = zone.filter(|_| account.is_static()) else { return Self::Until(None) };
        if let Some(since) = facts.gone_since(zone) {
            return over_at(facts, since.saturating_add(observation.policy.account_cleanup));
        }
        let connected = facts.sessions_of(zone).filter(|session| session.presence == Presence::Connected);
        let mut heard = connected.map(|session| &session.lists).peekable();
        if heard.peek().is_none() || !heard.all(|lists| *lists == Fact::Known(false)) {
            return Self::Until(None);
        }
        match facts.left_listing_it(zone) {
            Some(since) => over_at(facts, since.saturating_add(observation.policy.account_cleanup)),
            None => facts.all_seen_at().map_or(Self::Over, |until| Self::Until(Some(until))),
        }
    }

    /// Whether an account stays with a zone that was found for it, where that has no agents any more and another has.
    pub(super) fn of_found_zone(facts: &Facts<'_>, zone: &ZoneId) -> Self {
        let waits = matches!(facts.state(), State::Orphaned | State::Failed);
        if !waits || facts.observation.account.spec.zone_id.is_some() {
            return Self::Until(None);
        }
        // One whose approval was withdrawn can take nothing.
        let Some(since) = facts.gone_since(zone).or_else(|| unapproved_since(facts, zone)) else {
            return Self::Until(None);
        };
        let at = since.saturating_add(facts.observation.policy.account_cleanup);
        match over_at(facts, at) {
            Self::Over if !another_zone_is_left(facts, zone) => {
                Self::Until(Some(facts.observation.now + RECHECK_TICKS))
            }
            stay => stay,
        }
    }
}

fn unapproved_since(facts: &Facts<'_>, zone: &ZoneId) -> Option<Tick> {
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
