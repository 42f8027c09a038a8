//! What the leader and REST see of the agents.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use tracing::warn;

use crate::account::lifecycle::{AgentProcess, Fact, Offer, Presence, SessionFact};
use crate::account::{names, zones};
use crate::fleet::{AgentView, Fleet, FleetError};
use crate::hub::Hub;
use crate::hub::sessions::session::Session;
use crate::hub::tables::namespaces::NoRoom;
use crate::hub::zone_probes::offers::OfferChange;
use crate::hub::zone_probes::probe::ProbeRound;

/// Maximum number of zones shown to an account that takes any zone.
const MAX_ZONES_SHOWN: usize = 64;
/// Maximum number of sessions of a zone with the same answer shown to an account that is probed.
const MAX_EQUAL_ANSWERS_SHOWN: usize = 16;
/// Maximum number of sessions shown to an account that is probed, beside those of its last zone.
const MAX_PROBED_SESSIONS_SHOWN: usize = 256;

#[async_trait]
impl Fleet for Hub {
    /// All sessions of the zones that the account has to do with (its grant's, its pinned one, its last one), those
    /// away included. Of the other zones, where it takes any: while it asks, the sessions that [`asked`](Self::asked)
    /// gives; else one connected and approved session of each, the first 64 by name. That is all a choice of zone
    /// needs, and it keeps a decision cheap with many zones.
    fn sessions(&self, uid: &str) -> Vec<SessionFact> {
        let now = self.ticks.now();
        let account = self.accounts.by_uid(uid);
        let zones = account.as_deref().map(zones::zones_of).unwrap_or_default();
        let epoch = account.as_deref().map(|account| account.status_or_default().epoch).unwrap_or_default();
        let round = account.as_deref().and_then(ProbeRound::of);
        let mut facts = Vec::new();
        for zone_id in &zones {
            self.registry.in_zone(zone_id, |zone| {
                // What an agent says that was never approved counts for no account, and nobody waits for it.
                let in_force = zone.connected.values();
                let in_force = in_force.filter(|one| !one.is_superseded() && one.was_approved());
                facts.extend(in_force.map(|session| SessionFact {
                    offer: round.and_then(|round| self.offer(uid, round, session)),
                    lists: account.as_deref().map_or(Fact::Unknown, |one| session.lists(one)),
                    ..session.fact(uid, epoch, now)
                }));
                facts.extend(zone.away.iter().map(|(agent_id, away)| SessionFact {
                    agent_id: agent_id.clone(),
                    zone: zone_id.clone(),
                    approved: away.approved,
                    presence: Presence::Away(away.since),
                    process: AgentProcess {
                        boot_id: away.session.as_ref().map(|one| one.boot_id.clone()).unwrap_or_default(),
                        ending: away.ending,
                        ..AgentProcess::default()
                    },
                    report: None,
                    silent_for: None,
                    offer: None,
                    lists: match (&account, &away.session) {
                        (Some(account), Some(session)) => session.lists(account),
                        _ => Fact::Unknown,
                    },
                    cluster_uid: match &away.session {
                        Some(session) => session.cluster_uid.clone(),
                        None => self.cluster_told(agent_id, zone_id),
                    },
                }));
            });
        }
        if let Some(account) = account.as_deref().filter(|account| account.is_static()) {
            facts.extend(zones.iter().flat_map(|zone| self.departed_with(account, zone)));
        }
        if let Some(round) = round {
            facts.extend(self.asked(uid, round, &zones));
        } else if account.is_none_or(|account| zones::takes_any_zone(&account)) {
            let others = self.registry.representatives(MAX_ZONES_SHOWN).into_iter();
            let others = others.filter(|session| !zones.contains(&session.zone));
            facts.extend(others.map(|session| session.stranger(None)));
        }
        facts
    }

    fn agents(&self) -> Vec<AgentView> {
        let mut agents: Vec<_> = self.registry.connected().iter().map(|session| self.show(session)).collect();
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

    fn credential_mismatch(&self, uid: &str) -> bool {
        let Some(account) = self.accounts.by_uid(uid) else { return false };
        let epoch = account.status_or_default().epoch;
        let sessions = self.registry.concerned_with(uid);
        sessions.iter().any(|session| session.ledger.lock().has_credential_mismatch(uid, epoch))
    }

    fn is_all_here(&self) -> bool {
        true
    }

    async fn read(&self, _: &str) -> Result<(), FleetError> {
        Ok(())
    }

    fn catch_up(&self, zone: &str) {
        let sessions =
            self.registry.in_zone(zone, |zone| zone.connected.values().cloned().collect::<Vec<_>>());
        for session in sessions.unwrap_or_default() {
            let name = names::agent_object_name(&session.agent_id, &session.zone);
            if let Some(agent) = self.agent_index.get(&name) {
                self.yields_to_owner(&session, &agent);
            }
        }
    }

    fn disconnect(&self, agent_id: &str) -> bool {
        let session = self.registry.reserve_id(agent_id, self.moment());
        if let Some(session) = &session {
            session.close_on_request();
        }
        session.is_some()
    }
}

impl Hub {
    /// Connected and approved sessions of all zones but these, for an account that asks: those that offer it a place
    /// first, then those that have not answered, then those that cannot reach it. Of each zone at most 16 of a kind,
    /// and at most 256 in all; so whether a zone offers, and whether any is still to answer, is seen however many agents
    /// there are.
    fn asked(&self, uid: &str, round: ProbeRound, except: &[String]) -> Vec<SessionFact> {
        let (mut offering, mut silent, mut unable) = (Vec::new(), Vec::new(), Vec::new());
        self.registry.in_zones(|zones| {
            let offers = self.offers.lock();
            for (zone_id, zone) in zones.iter().filter(|(zone_id, _)| !except.contains(*zone_id)) {
                let answers = offers.in_zone(uid, round, zone_id);
                let (mut yes, mut no) = (0, 0);
                for (serial, offer) in answers.into_iter().flatten() {
                    let Some(session) = zone.connected.get(serial).filter(|one| one.is_approved()) else {
                        continue;
                    };
                    let (count, kind) = match offer {
                        Offer::Yes => (&mut yes, &mut offering),
                        Offer::No(_) => (&mut no, &mut unable),
                    };
                    *count += 1;
                    if *count <= MAX_EQUAL_ANSWERS_SHOWN {
                        kind.push(session.stranger(Some((round.generation, offer.clone()))));
                    }
                }
                let has_answered = |serial: &u64| answers.is_some_and(|all| all.contains_key(serial));
                if answers.map_or(0, BTreeMap::len) < zone.connected.len() {
                    let owing = zone.connected.iter().filter(|(serial, _)| !has_answered(serial));
                    let owing = owing.map(|(_, session)| session).filter(|session| session.is_approved());
                    silent.extend(owing.take(MAX_EQUAL_ANSWERS_SHOWN).map(|session| session.stranger(None)));
                }
            }
        });
        offering.into_iter().chain(silent).chain(unable).take(MAX_PROBED_SESSIONS_SHOWN).collect()
    }

    /// The cluster that an agent was in when it last registered, by its object.
    fn cluster_told(&self, agent_id: &str, zone: &str) -> String {
        let agent = self.agent_index.get(&names::agent_object_name(agent_id, zone));
        agent.and_then(|agent| agent.status.as_ref()?.cluster_uid.clone()).unwrap_or_default()
    }

    fn offer(&self, uid: &str, round: ProbeRound, session: &Session) -> Option<(i64, Offer)> {
        let offer = self.offers.lock().of(uid, round, &session.zone, session.serial)?;
        Some((round.generation, offer))
    }

    /// A session has said something about an account, or has nothing to do with it any more: those who tell of it look
    /// again.
    pub(super) fn report_changed(&self, session: &Session, uid: &str) {
        self.dirty_summaries.wake(session.serial);
        self.dirty_outboxes.wake(session.serial);
        self.dirty_assignments.wake((session.serial, uid.to_owned()));
        self.dirty_fences.wake(uid.to_owned());
    }

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
        self.dirty_summaries.wake(session.serial);
        if !session.was_approved() {
            return;
        }
        let uids: HashSet<_> = {
            let places = self.zone_index.lock();
            let mut uids: HashSet<_> = places.of_zone(&session.zone).into_iter().collect();
            if first_of_zone {
                self.leader.wake_all(places.without_zone());
            }
            uids.extend(session.uids());
            session.wakes.wake_all(places.probing());
            uids
        };
        uids.iter().for_each(|uid| self.report_changed(session, uid));
        self.leader.wake_all(uids.iter().cloned());
        session.wakes.wake_all(uids);
    }

    /// An agent is away: the leader looks at what it had, at what its zone has and, where the zone has no other agent,
    /// at what takes any zone.
    pub(super) fn agent_went(&self, session: &Session, uids: Vec<String>) {
        let asked = session.zone_probes.lock().uids();
        asked.iter().for_each(|uid| self.withdraw(session, uid));
        self.dirty_summaries.wake(session.serial);
        if !session.was_approved() {
            return;
        }
        uids.iter().for_each(|uid| self.dirty_assignments.wake((session.serial, uid.clone())));
        let zone_is_empty = self.registry.in_zone(&session.zone, |zone| zone.representative().is_none());
        let places = self.zone_index.lock();
        self.leader.wake_all(uids.into_iter().chain(places.of_zone(&session.zone)));
        if zone_is_empty.unwrap_or(true) {
            self.leader.wake_all(places.without_zone());
        }
    }

    /// Whatever a session has answered about an account that asks counts no more.
    pub(super) fn withdraw(&self, session: &Session, uid: &str) {
        let changed = self.offers.lock().leave(uid, &session.zone, session.serial);
        self.offers_changed(session, uid, changed);
    }

    /// A session has answered whether it could reach an account, or its answer counts no more: this replica's leader looks
    /// again, and so do those who write down for another's what the zone offers.
    pub(super) fn offers_changed(&self, session: &Session, uid: &str, changed: OfferChange) {
        if changed.matters {
            self.leader.wake(uid.to_owned());
        }
        self.dirty_outboxes.wake(session.serial);
        changed.speaker.into_iter().for_each(|serial| self.dirty_outboxes.wake(serial));
    }

    /// An agent has told which namespaces it saw for an account.
    pub(super) fn tell_namespaces(&self, uid: &str, namespaces: Vec<String>) {
        let is_static = self.accounts.by_uid(uid).is_some_and(|account| account.is_static());
        let put = self.namespaces.lock().put(uid, namespaces, is_static);
        match put {
            Ok(true) => self.dirty_namespaces.wake(uid.to_owned()),
            Ok(false) => {}
            Err(NoRoom) => {
                self.metrics.ignore("namespaces_room");
                if self.may_log("namespaces_room", None) {
                    warn!(
                        uid,
                        "no room for the namespaces of an account of an agent's own file; they are not shown"
                    );
                }
            }
        }
    }

    pub(super) fn drop_namespaces<'a>(&self, uids: impl IntoIterator<Item = &'a String>) {
        let mut namespaces = self.namespaces.lock();
        for uid in uids {
            namespaces.remove(uid);
        }
    }
}
