//! What the leader and REST see of the agents.

use std::collections::HashSet;
use std::sync::Arc;

use super::Hub;
use super::places;
use super::session::Session;
use crate::account::lifecycle::{Fact, Presence, SessionFact};
use crate::fleet::{AgentView, Fleet};

/// How many zones an account that takes any zone is shown.
const ZONES_SHOWN: usize = 64;

impl Fleet for Hub {
    /// All sessions of the zones that the account has to do with (its grant's, its pinned one, its last one), those
    /// away included. Where it takes any zone: one connected and approved session, without a word, of each other zone,
    /// the first 64 by name; that is all a choice of zone needs, and it keeps a decision cheap with many zones.
    fn sessions(&self, uid: &str) -> Vec<SessionFact> {
        let now = self.ticks.now();
        let account = self.accounts.by_uid(uid);
        let zones = account.as_deref().map(places::zones_of).unwrap_or_default();
        let epoch = account.as_deref().map(|account| account.status_or_default().epoch).unwrap_or_default();
        let mut facts = Vec::new();
        for zone_id in &zones {
            self.registry.in_zone(zone_id, |zone| {
                facts.extend(zone.standing.values().map(|session| session.fact(uid, epoch, now)));
                facts.extend(zone.away.iter().map(|(agent_id, away)| SessionFact {
                    agent_id: agent_id.clone(),
                    zone: zone_id.clone(),
                    approved: away.approved,
                    presence: Presence::Away(away.since),
                    word: None,
                    silent_for: None,
                    offer: None,
                    lists: Fact::Unknown,
                }));
            });
        }
        if account.is_none_or(|account| places::takes_any_zone(&account)) {
            let others = self.registry.representatives(ZONES_SHOWN).into_iter();
            let others = others.filter(|session| !zones.contains(&session.zone));
            facts.extend(others.map(|session| SessionFact {
                word: None,
                silent_for: None,
                ..session.fact("", epoch, now)
            }));
        }
        facts
    }

    fn agents(&self) -> Vec<AgentView> {
        let mut agents: Vec<_> = self.registry.standing().iter().map(|session| self.show(session)).collect();
        agents.sort_by(|one, other| one.agent_id.cmp(&other.agent_id));
        agents
    }

    fn holders(&self, uid: &str) -> Vec<AgentView> {
        let sessions = self.registry.concerned_with(uid);
        let holders = sessions.iter().filter(|session| session.holds(uid));
        let mut agents: Vec<_> = holders.map(|session| self.show(session)).collect();
        agents.sort_by(|one, other| one.agent_id.cmp(&other.agent_id));
        agents
    }

    fn namespaces(&self, uid: &str) -> Option<Vec<String>> {
        self.namespaces.lock().get(uid).map(|names| names.to_vec())
    }

    fn disconnect(&self, agent_id: &str) -> bool {
        let session = self.registry.of_agent(agent_id);
        if let Some(session) = &session {
            session.close("its stream was closed on request");
        }
        session.is_some()
    }
}

impl Hub {
    fn show(&self, session: &Session) -> AgentView {
        AgentView {
            agent_id: session.agent_id.clone(),
            zone_id: session.zone.clone(),
            version: session.version.clone(),
            replica_id: self.settings.replica_id.clone(),
            connected_since: session.connected_since,
            last_seen: session.last_seen(),
            approved: session.is_approved(),
            accounts: session.held_names(),
        }
    }

    /// An agent stands: it looks at what its zone has, and the leader at what that may change.
    pub(super) fn agent_came(&self, session: &Arc<Session>, first_of_zone: bool) {
        let uids: HashSet<_> = {
            let places = self.places.lock();
            let mut uids: HashSet<_> = places.of_zone(&session.zone).into_iter().collect();
            if first_of_zone {
                self.leader.wake_all(places.anywhere());
            }
            uids.extend(session.uids());
            uids
        };
        self.leader.wake_all(uids.iter().cloned());
        session.wakes.wake_all(uids);
    }

    /// An agent is away: the leader looks at what it had, at what its zone has and, where the zone has no other agent,
    /// at what takes any zone.
    pub(super) fn agent_went(&self, session: &Session, uids: Vec<String>) {
        let zone_is_empty = self.registry.in_zone(&session.zone, |zone| zone.representative().is_none());
        let places = self.places.lock();
        self.leader.wake_all(uids.into_iter().chain(places.of_zone(&session.zone)));
        if zone_is_empty.unwrap_or(true) {
            self.leader.wake_all(places.anywhere());
        }
    }

    pub(super) fn tell_namespaces(&self, uid: &str, namespaces: Vec<String>) {
        self.namespaces.lock().insert(uid.to_owned(), namespaces.into());
    }

    pub(super) fn drop_namespaces<'a>(&self, uids: impl IntoIterator<Item = &'a String>) {
        let mut namespaces = self.namespaces.lock();
        for uid in uids {
            namespaces.remove(uid);
        }
    }
}
