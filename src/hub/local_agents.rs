//! What the leader and REST see of the agents.

use async_trait::async_trait;

use crate::connected_agents::{AgentView, ConnectedAgents, ConnectedAgentsError};
use crate::hub::Hub;
use crate::hub::sessions::session::Session;
use crate::hub::zone_probes::probe::ProbeRound;
use kubesvc_core::lifecycle::{AgentProcess, Fact, Presence, SessionFact};
use kubesvc_core::{AgentId, KubesvcAccount, ZoneId, object_names};

/// Maximum number of zones shown for an account that takes any zone.
const MAX_ZONES_SHOWN: usize = 64;

#[async_trait]
impl ConnectedAgents for Hub {
    /// Returns all sessions, including absent ones, of the zones of the account: granted, pinned and last. If it
    /// takes any zone, adds sessions of other zones: while it is probed those of
    /// [`asked`](super::zone_probes::ZoneProbes::asked), else one connected and approved session of each of the first
    /// 64 zones by name. That suffices to choose a zone, and keeps a decision cheap with many zones.
    fn sessions(&self, uid: &str) -> Vec<SessionFact> {
        let now = self.context.ticks.now();
        let account = self.context.accounts.by_uid(uid);
        let zones = account.as_deref().map(KubesvcAccount::zones).unwrap_or_default();
        let epoch = account.as_deref().map(|account| account.status_or_default().epoch).unwrap_or_default();
        let round = account.as_deref().and_then(ProbeRound::of);
        let mut facts = Vec::new();
        for zone_id in &zones {
            self.sessions.registry.in_zone(zone_id, |zone| {
                // Reports and silence of an agent that was never approved do not count.
                let in_force = zone.connected.values();
                let in_force = in_force.filter(|one| !one.is_superseded() && one.was_approved());
                facts.extend(in_force.map(|session| SessionFact {
                    offer: round.and_then(|round| self.zone_probes.offer(uid, round, session)),
                    lists: account.as_deref().map_or(Fact::Unknown, |one| session.lists(one)),
                    ..session.fact(uid, epoch, now)
                }));
                facts.extend(zone.away.iter().map(|(agent_id, away)| SessionFact {
                    agent_id: agent_id.clone(),
                    zone: zone_id.clone(),
                    approved: away.approved,
                    presence: Presence::Away(away.since),
                    process: AgentProcess {
                        boot_id:
                            away.session.as_ref().map(|one| one.agent.boot_id.clone()).unwrap_or_default(),
                        ending: away.ending,
                        ..AgentProcess::default()
                    },
                    report: None,
                    silent_for: None,
                    unanswered: None,
                    offer: None,
                    lists: match (&account, &away.session) {
                        (Some(account), Some(session)) => session.lists(account),
                        _ => Fact::Unknown,
                    },
                    cluster_uid: match &away.session {
                        Some(session) => session.agent.cluster_uid.clone(),
                        None => self.last_known_cluster(agent_id, zone_id),
                    },
                    caching: None,
                }));
            });
        }
        if let Some(account) = account.as_deref().filter(|account| account.is_static()) {
            facts.extend(zones.iter().flat_map(|zone| self.agent_status.departed_with(account, zone)));
        }
        if let Some(round) = round {
            facts.extend(self.zone_probes.asked(uid, round, &zones));
        } else if account.is_none_or(|account| account.takes_any_zone()) {
            let others = self.sessions.registry.representatives(MAX_ZONES_SHOWN).into_iter();
            let others = others.filter(|session| !zones.contains(&session.agent.zone));
            facts.extend(others.map(|session| session.unlisted_fact(None)));
        }
        facts
    }

    fn agents(&self) -> Vec<AgentView> {
        let mut agents: Vec<_> =
            self.sessions.registry.connected().iter().map(|session| self.agent_view(session)).collect();
        agents.sort_by(|one, other| (&one.agent_id, &one.zone_id).cmp(&(&other.agent_id, &other.zone_id)));
        agents
    }

    fn holders(&self, uid: &str) -> Vec<AgentView> {
        let sessions = self.sessions.registry.concerned_with(uid);
        let holders = sessions.iter().filter(|session| session.holds(uid));
        let mut agents: Vec<_> = holders.map(|session| self.agent_view(session)).collect();
        agents.sort_by(|one, other| (&one.agent_id, &one.zone_id).cmp(&(&other.agent_id, &other.zone_id)));
        agents
    }

    fn namespaces(&self, uid: &str) -> Option<Vec<String>> {
        self.tables.namespaces(uid)
    }

    fn credential_mismatch(&self, uid: &str) -> bool {
        let Some(account) = self.context.accounts.by_uid(uid) else { return false };
        let epoch = account.status_or_default().epoch;
        let sessions = self.sessions.registry.concerned_with(uid);
        sessions.iter().any(|session| session.ledger.lock().has_credential_mismatch(uid, epoch))
    }

    fn is_all_here(&self) -> bool {
        true
    }

    async fn read(&self, _: &ZoneId) -> Result<(), ConnectedAgentsError> {
        Ok(())
    }

    fn catch_up(&self, zone: &ZoneId) {
        let sessions =
            self.sessions.registry.in_zone(zone, |zone| zone.connected.values().cloned().collect::<Vec<_>>());
        for session in sessions.unwrap_or_default() {
            let name = object_names::agent_object_name(&session.agent.id, &session.agent.zone);
            if let Some(agent) = self.context.agent_index.get(&name) {
                self.sessions.yields_to_owner(&session, &agent);
            }
        }
    }

    fn disconnect(&self, agent_id: &AgentId, zone: Option<&ZoneId>) -> bool {
        let sessions = self.sessions.registry.reserve_id(agent_id, zone, self.context.moment());
        sessions.iter().for_each(|session| session.close_on_request());
        !sessions.is_empty()
    }
}

impl Hub {
    /// Returns the cluster of an agent at its last registration, from its KubesvcAgent.
    fn last_known_cluster(&self, agent_id: &AgentId, zone: &ZoneId) -> String {
        let agent = self.context.agent_index.get(&object_names::agent_object_name(agent_id, zone));
        agent.and_then(|agent| agent.status.as_ref()?.cluster_uid.clone()).unwrap_or_default()
    }

    fn agent_view(&self, session: &Session) -> AgentView {
        AgentView {
            agent_id: session.agent.id.clone(),
            zone_id: session.agent.zone.clone(),
            version: session.agent.version.clone(),
            replica_id: self.context.settings.replica_id.clone(),
            connected_since: session.connected_since(),
            last_seen: session.last_seen(),
            approved: session.is_approved(),
            accounts: session.held_names(),
        }
    }
}
