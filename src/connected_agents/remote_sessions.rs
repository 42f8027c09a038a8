//! Sessions at other replicas, as their KubesvcAgents show them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::LeaderClock;
use crate::informers::{AccountIndex, AgentIndex};
use crate::leases::Replicas;
use kubesvc_core::lifecycle::{AgentProcess, Fact, Presence, SessionEnding, SessionFact, Tick};
use kubesvc_core::report_outbox::OutboxEntry;
use kubesvc_core::{BootId, KubesvcAccount, KubesvcAgent, ReplicaId, SessionId, ZoneId};
use kubesvc_runtime::work_queue::WorkQueue;

/// Maximum number of changed objects applied in one pass.
const MAX_CHANGES_PER_PASS: usize = 1000;
/// Maximum number of other zones shown to an account that takes any zone.
const MAX_ZONES_SHOWN: usize = 64;

/// An agent whose session is, or was last, at another replica.
struct RemoteAgentEntry {
    agent: Arc<KubesvcAgent>,
    presence: Presence,
    /// Start of its session, as far as this replica knows.
    since: Tick,
    /// How the session ended, if it has.
    ending: SessionEnding,
}

#[derive(Default)]
struct RemoteAgents {
    by_name: HashMap<String, RemoteAgentEntry>,
    by_zone: BTreeMap<ZoneId, BTreeSet<String>>,
    /// Names of the agents whose outbox has an entry for the uid.
    by_uid: BTreeMap<String, BTreeSet<String>>,
}

/// Presence, whether it is approved and may offer, session, and lists of own accounts.
type AgentStanding<'a> = (Presence, [bool; 2], Option<&'a SessionId>, [Option<&'a Vec<String>>; 2]);

/// Effect of a change of one agent.
#[derive(Debug, Default, PartialEq, Eq)]
struct AgentChange {
    /// Zone in which an agent was added, removed or changed for all accounts.
    zone: Option<ZoneId>,
    /// Uids of the accounts whose outbox entries changed.
    uids: HashSet<String>,
}

/// The agents of the other replicas.
pub struct RemoteSessions {
    replica_id: ReplicaId,
    agents: Arc<AgentIndex>,
    accounts: Arc<AccountIndex>,
    replicas: Arc<Replicas>,
    ticks: Arc<LeaderClock>,
    changed: Arc<WorkQueue<String>>,
    /// Accounts affected by changes that [`RemoteSessions::catch_up`] applied, not yet published to the
    /// leader.
    unpublished: WorkQueue<String>,
    members: Mutex<RemoteAgents>,
}

impl RemoteSessions {
    /// Tracks all agents except those of the replica `replica_id`.
    pub fn new(
        replica_id: &ReplicaId,
        agents: Arc<AgentIndex>,
        accounts: Arc<AccountIndex>,
        replicas: Arc<Replicas>,
        ticks: Arc<LeaderClock>,
    ) -> Self {
        let changed = agents.follow();
        let members = Mutex::default();
        let unpublished = WorkQueue::default();
        Self {
            replica_id: replica_id.to_owned(),
            agents,
            accounts,
            replicas,
            ticks,
            changed,
            unpublished,
            members,
        }
    }

    /// Follows the objects and the replicas until stopped, and wakes the leader for the affected accounts.
    pub async fn follow(&self, leader: &WorkQueue<String>, stop: &CancellationToken) {
        let mut replicas = self.replicas.changes();
        loop {
            let names = tokio::select! {
                () = stop.cancelled() => return,
                names = self.changed.take(MAX_CHANGES_PER_PASS) => names,
                uids = self.unpublished.take(MAX_CHANGES_PER_PASS) => {
                    leader.wake_all(uids);
                    continue;
                }
                // The sender lives as long as self.
                _ = replicas.changed() => self.members.lock().by_name.keys().cloned().collect(),
            };
            self.take_in(names, leader);
        }
    }

    /// Applies all pending changes. The caller is about to look at one account; [`RemoteSessions::follow`]
    /// wakes the leader for the other affected accounts.
    pub(super) fn catch_up(&self, zones: &BTreeSet<ZoneId>) {
        let mut names = self.changed.try_take(usize::MAX);
        let of_zones = self.agents.all().into_iter().filter(|agent| zones.contains(&agent.spec.zone_id));
        {
            // `follow` may have taken a name without having applied the agent yet.
            let members = self.members.lock();
            let is_known = |name: &str, agent: &Arc<KubesvcAgent>| {
                members.by_name.get(name).is_some_and(|member| Arc::ptr_eq(&member.agent, agent))
            };
            let named = of_zones.filter_map(|agent| Some((agent.metadata.name.clone()?, agent)));
            names.extend(named.filter(|(name, agent)| !is_known(name, agent)).map(|(name, _)| name));
        }
        self.take_in(names, &self.unpublished);
    }

    fn take_in(&self, names: Vec<String>, leader: &WorkQueue<String>) {
        let mut zones = HashSet::new();
        {
            let mut members = self.members.lock();
            for name in names {
                // The reports of an agent that was never approved do not count, and nothing waits for it.
                let agent = self.agents.get(&name);
                let agent =
                    agent.filter(|agent| !self.is_here(agent) && agent.was_approved() && !agent.is_revoked());
                let connected = agent.as_deref().is_some_and(|agent| self.is_connected(agent));
                let ending = agent.as_deref().map(|agent| self.ending(agent)).unwrap_or_default();
                let change = members.put(&name, agent, (connected, ending), self.ticks.now());
                leader.wake_all(change.uids);
                zones.extend(change.zone);
            }
        }
        if !zones.is_empty() {
            let accounts = self.accounts.all();
            let concerned = accounts.iter().filter(|account| {
                account.takes_any_zone() || account.zones().iter().any(|zone| zones.contains(zone))
            });
            leader.wake_all(concerned.map(|account| account.uid().to_owned()));
        }
    }

    fn is_here(&self, agent: &KubesvcAgent) -> bool {
        session_replica(agent).is_none_or(|replica| replica == &self.replica_id)
    }

    fn is_connected(&self, agent: &KubesvcAgent) -> bool {
        let connected = agent.status.as_ref().is_some_and(|status| status.connected);
        let session = agent.status.as_ref().and_then(|status| status.session.as_ref());
        connected
            && session.is_some_and(|session| {
                let serves = self.replicas.serves(&session.replica, session.incarnation.as_deref());
                serves != Fact::Known(false)
            })
    }

    /// How the agent's session ended. A session that its object still shows as connected lost its replica;
    /// one that was cut may have lost its replica since then.
    fn ending(&self, agent: &KubesvcAgent) -> SessionEnding {
        let session = agent.status.as_ref().and_then(|status| status.session.as_ref());
        let said: Option<SessionEnding> = session.and_then(|session| session.ended).map(SessionEnding::from);
        let is_lost =
            || session.is_none_or(|session| self.replicas.is_alive(&session.replica) == Fact::Known(false));
        match said {
            Some(SessionEnding::Cut) if is_lost() => SessionEnding::ReplicaLost,
            said => said.unwrap_or_default(),
        }
    }

    /// Sessions relevant to the account: all of its zones. If it probes for a zone, also those whose outbox
    /// names it. If it takes any zone, also one approved, connected session of each other zone, of at most 64
    /// zones by name.
    pub(super) fn sessions(&self, account: &KubesvcAccount) -> Vec<SessionFact> {
        let of_account = account.zones();
        let asks = account.needs_zone_probe();
        let members = self.members.lock();
        let mut names: BTreeSet<&String> =
            of_account.iter().filter_map(|zone| members.by_zone.get(zone)).flatten().collect();
        if asks {
            names.extend(members.by_uid.get(account.uid()).into_iter().flatten());
        }
        if account.takes_any_zone() {
            let others = members.by_zone.iter().filter(|(zone, _)| !of_account.contains(zone));
            let representatives = others.filter_map(|(_, names)| {
                names
                    .iter()
                    .find(|name| members.by_name.get(*name).is_some_and(RemoteAgentEntry::may_be_given))
            });
            names.extend(representatives.take(MAX_ZONES_SHOWN));
        }
        names.into_iter().filter_map(|name| Some(members.by_name.get(name)?.fact(account))).collect()
    }

    /// Whether the replica of a connected agent reports that the credential is not the granted one.
    pub(super) fn mismatched(&self, account: &KubesvcAccount) -> bool {
        let epoch = account.status_or_default().epoch;
        let members = self.members.lock();
        let names = members.by_uid.get(account.uid()).into_iter().flatten();
        names.filter_map(|name| members.by_name.get(name)).any(|member| {
            member.presence == Presence::Connected
                && member
                    .outbox()
                    .iter()
                    .any(|one| one.uid == account.uid() && one.is_credential_mismatch() == Some(epoch))
        })
    }
}

fn session_replica(agent: &KubesvcAgent) -> Option<&ReplicaId> {
    Some(&agent.status.as_ref()?.session.as_ref()?.replica)
}

impl RemoteAgents {
    /// Records an agent as its object shows it; `None` if it does not belong to another replica.
    fn put(
        &mut self,
        name: &str,
        agent: Option<Arc<KubesvcAgent>>,
        (connected, ending): (bool, SessionEnding),
        now: Tick,
    ) -> AgentChange {
        let before = self.remove(name);
        let Some(agent) = agent else {
            return AgentChange {
                zone: before.map(|member| member.agent.spec.zone_id.clone()),
                ..AgentChange::default()
            };
        };
        let presence = match &before {
            _ if connected => Presence::Connected,
            Some(RemoteAgentEntry { presence: Presence::Away(since), .. }) => Presence::Away(*since),
            // It left before this replica first saw it: away since the beginning.
            None if !is_marked_connected(&agent) => Presence::Away(0),
            _ => Presence::Away(now),
        };
        let since = match &before {
            Some(before) if session_of(&before.agent) == session_of(&agent) => before.since,
            _ => now,
        };
        let after = RemoteAgentEntry { agent, presence, since, ending };
        let change = after.change_from(before.as_ref());
        let zone = after.agent.spec.zone_id.clone();
        self.by_zone.entry(zone).or_default().insert(name.to_owned());
        for entry in after.outbox() {
            self.by_uid.entry(entry.uid.clone()).or_default().insert(name.to_owned());
        }
        self.by_name.insert(name.to_owned(), after);
        change
    }

    fn remove(&mut self, name: &str) -> Option<RemoteAgentEntry> {
        let member = self.by_name.remove(name)?;
        leave(&mut self.by_zone, &member.agent.spec.zone_id, name);
        for entry in member.outbox() {
            leave(&mut self.by_uid, &entry.uid, name);
        }
        Some(member)
    }
}

fn leave<K: Ord>(members: &mut BTreeMap<K, BTreeSet<String>>, key: &K, name: &str) {
    let Some(names) = members.get_mut(key) else { return };
    names.remove(name);
    if names.is_empty() {
        members.remove(key);
    }
}

fn is_marked_connected(agent: &KubesvcAgent) -> bool {
    agent.status.as_ref().is_some_and(|status| status.connected)
}

impl RemoteAgentEntry {
    fn outbox(&self) -> &[OutboxEntry] {
        self.agent.status.as_ref().map(|status| status.outbox.as_slice()).unwrap_or_default()
    }

    fn may_be_given(&self) -> bool {
        self.agent.may_offer() && self.presence == Presence::Connected
    }

    /// The properties that matter to every account of the zone.
    fn standing(&self) -> AgentStanding<'_> {
        (
            self.presence,
            [self.agent.is_approved(), self.agent.may_offer()],
            session_of(&self.agent),
            lists(&self.agent),
        )
    }

    fn change_from(&self, before: Option<&Self>) -> AgentChange {
        let moved = before.is_none_or(|before| before.standing() != self.standing());
        let zone = moved.then(|| self.agent.spec.zone_id.clone());
        let old = before.map(Self::outbox).unwrap_or_default();
        let new = self.outbox();
        let differing = new.iter().filter(|entry| !old.contains(entry));
        let lost = old.iter().filter(|entry| !new.iter().any(|one| one.uid == entry.uid));
        AgentChange { zone, uids: differing.chain(lost).map(|entry| entry.uid.clone()).collect() }
    }

    /// The fact about an account that the leader sees.
    fn fact(&self, account: &KubesvcAccount) -> SessionFact {
        let connected = self.presence == Presence::Connected;
        let status = self.agent.status.as_ref();
        let entry = self.outbox().iter().find(|entry| entry.uid == account.uid()).filter(|_| connected);
        SessionFact {
            agent_id: self.agent.spec.agent_id.clone(),
            zone: self.agent.spec.zone_id.clone(),
            approved: self.agent.is_approved(),
            presence: self.presence,
            process: AgentProcess {
                boot_id: boot_of(&self.agent).cloned().unwrap_or_default(),
                since: self.since,
                ending: self.ending,
                remote: true,
                load: 0,
                streams_objects: status.and_then(|status| status.session.as_ref()?.streams_objects),
            },
            report: entry.and_then(OutboxEntry::report),
            // Its own replica measures the silence and reports a failure.
            silent_for: None,
            unanswered: None,
            offer: entry.and_then(|entry| entry.offer(account)),
            lists: status.and_then(|status| status.lists(account)).map_or(Fact::Unknown, Fact::Known),
            cluster_uid: status.and_then(|status| status.cluster_uid.clone()).unwrap_or_default(),
            caching: entry.and_then(OutboxEntry::caching_report),
        }
    }
}

fn session_of(agent: &KubesvcAgent) -> Option<&SessionId> {
    Some(&agent.status.as_ref()?.session.as_ref()?.id)
}

fn boot_of(agent: &KubesvcAgent) -> Option<&BootId> {
    Some(&agent.status.as_ref()?.session.as_ref()?.boot_id)
}

/// The accounts of its own file that the agent reports; `None` until it has listed them.
fn lists(agent: &KubesvcAgent) -> [Option<&Vec<String>>; 2] {
    let status = agent.status.as_ref();
    [
        status.and_then(|status| status.static_accounts.as_ref()),
        status.and_then(|status| status.static_sources.as_ref()),
    ]
}

#[cfg(test)]
mod tests;
