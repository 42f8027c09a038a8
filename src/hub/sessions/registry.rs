//! Indexes: the sessions of this replica, one per agent, by zone, with those that ended recently; and accounts by zone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::hub::sessions::ledger::HubUptime;
use crate::hub::sessions::session::Session;
use crate::hub::zone_probes::probe::ProbeRound;
use crate::informers::AccountKey;
use kubesvc_core::agent_resource::ID_RESERVATION;
use kubesvc_core::lifecycle::{SessionEnding, Tick};
use kubesvc_core::{AgentId, AgentKey, BootId, DesiredState, KubesvcAccount, SessionId, ZoneId};

/// An ended session, or an agent of an earlier process of the operator.
#[derive(Clone)]
pub(crate) struct AwaySession {
    pub(crate) approved: bool,
    pub(crate) since: Tick,
    pub(crate) ending: SessionEnding,
    pub(crate) session_id: SessionId,
    /// The ended session; absent for an agent of an earlier process of the operator.
    pub(crate) session: Option<Arc<Session>>,
}

/// The sessions of one zone.
#[derive(Default)]
pub(crate) struct ZoneSessions {
    pub(crate) connected: HashMap<u64, Arc<Session>>,
    pub(crate) away: BTreeMap<AgentId, AwaySession>,
}

#[derive(Default)]
struct RegistryState {
    /// The session in force of each agent; it may still be registering. Agents of one id are side by side.
    claims: BTreeMap<AgentKey, Arc<Session>>,
    /// Agents that were disconnected on request.
    reserved: HashMap<AgentKey, ReservedId>,
    zones: BTreeMap<ZoneId, ZoneSessions>,
}

/// The process that alone may use the id of an agent, until a moment.
struct ReservedId {
    boot_id: BootId,
    until: HubUptime,
}

/// Why an agent cannot be claimed.
pub(crate) enum ClaimError {
    /// Another process is connected under the id. Carries the time after which it counts as lost if silent.
    Other(Duration),
    /// A later connection of the same process exists.
    Later,
    /// The agent was disconnected on request. Carries the time for which the id is reserved for its process.
    Kept(Duration),
}

/// All sessions of this replica.
#[derive(Default)]
pub(crate) struct Registry {
    inner: RwLock<RegistryState>,
    /// Sessions that have a uid in their ledger.
    concerned: Mutex<HashMap<String, HashSet<u64>>>,
    /// Connected sessions, by serial.
    by_serial: RwLock<HashMap<u64, Arc<Session>>>,
}

impl Registry {
    /// Claims the id in its zone for a session. Closes and returns the session that held it, or returns the last session of
    /// the same process.
    pub(crate) fn claim(
        &self,
        session: &Arc<Session>,
        silence_limit: Duration,
        now: HubUptime,
    ) -> Result<Option<Arc<Session>>, ClaimError> {
        let mut inner = self.inner.write();
        if let Some(left) = inner.reserved_from(session, now) {
            return Err(ClaimError::Kept(left));
        }
        let key = session.agent.key();
        let former = match inner.claims.get(&key) {
            None => inner.last_of(session),
            Some(current) if !current.is_of_process(session) => {
                return Err(ClaimError::Other(silence_limit.saturating_sub(current.silent_for())));
            }
            Some(current) if current.agent.connect_seq >= session.agent.connect_seq => {
                return Err(ClaimError::Later);
            }
            Some(current) => Some(Arc::clone(current)),
        };
        if let Some(former) = &former {
            former.close("the agent has connected anew");
        }
        inner.claims.insert(key, Arc::clone(session));
        Ok(former)
    }

    /// Reserves an id for its processes before they are disconnected on request: in one zone, or in each. Returns their
    /// sessions.
    pub(crate) fn reserve_id(
        &self,
        agent_id: &AgentId,
        zone: Option<&ZoneId>,
        now: HubUptime,
    ) -> Vec<Arc<Session>> {
        let mut inner = self.inner.write();
        inner.reserved.retain(|_, kept| kept.until > now);
        let is_meant = |session: &&Arc<Session>| zone.is_none_or(|zone| session.agent.zone == *zone);
        let sessions: Vec<_> = inner.of_id(agent_id).filter(is_meant).cloned().collect();
        for session in &sessions {
            let kept = ReservedId { boot_id: session.agent.boot_id.clone(), until: now + ID_RESERVATION };
            inner.reserved.insert(session.agent.key(), kept);
        }
        sessions
    }

    /// Whether the agent's id is reserved for this process.
    pub(crate) fn is_reserved(&self, agent: &AgentKey, boot_id: &BootId) -> bool {
        self.inner.read().reserved.get(agent).is_some_and(|kept| kept.boot_id == *boot_id)
    }

    /// Connects a registered session, unless another session has claimed its agent meanwhile. Returns whether it
    /// is the first approved session of its zone.
    pub(crate) fn connect(&self, session: &Arc<Session>) -> Option<bool> {
        let mut inner = self.inner.write();
        if !inner.is_claimed_by(session) {
            return None;
        }
        let zone = inner.zones.entry(session.agent.zone.clone()).or_default();
        let first = session.is_approved() && zone.representative().is_none();
        zone.away.remove(&session.agent.id);
        zone.connected.insert(session.serial, Arc::clone(session));
        self.by_serial.write().insert(session.serial, Arc::clone(session));
        Some(first)
    }

    pub(crate) fn is_connected(&self, session: &Session) -> bool {
        self.by_serial.read().contains_key(&session.serial)
    }

    /// Removes an ended session. Returns whether it was the one in force.
    pub(crate) fn leave(&self, session: &Arc<Session>, now: Tick, ending: SessionEnding) -> bool {
        let mut inner = self.inner.write();
        let in_force = inner.is_claimed_by(session);
        if in_force {
            inner.claims.remove(&session.agent.key());
        }
        self.by_serial.write().remove(&session.serial);
        if let Some(zone) = inner.zones.get_mut(&session.agent.zone)
            && zone.connected.remove(&session.serial).is_some()
            // An agent that was never given an account is not waited for, nor one that lost its identity.
            && session.was_approved()
            && !session.is_revoked()
            && !zone.connected.values().any(|other| other.agent.id == session.agent.id)
        {
            let away = AwaySession {
                approved: session.is_approved(),
                since: now,
                ending,
                session_id: session.id.clone(),
                session: Some(Arc::clone(session)),
            };
            zone.away.insert(session.agent.id.clone(), away);
        }
        in_force
    }

    /// Restarts the grace of all absent agents: a new leader does not know what happened before.
    pub(crate) fn begin_grace(&self, now: Tick) {
        for zone in self.inner.write().zones.values_mut() {
            zone.away.values_mut().for_each(|away| away.since = now);
        }
    }

    /// Adds an agent of an earlier process of the operator as absent, unless it is connected.
    pub(crate) fn remember(&self, agent_id: &AgentId, zone: &ZoneId, away: AwaySession) {
        let mut inner = self.inner.write();
        let zone = inner.zones.entry(zone.clone()).or_default();
        if !zone.connected.values().any(|session| session.agent.id == *agent_id) {
            zone.away.entry(agent_id.to_owned()).or_insert(away);
        }
    }

    /// Forgets agents that have been away since `before` or longer. Returns agent id, zone and session of each.
    pub(crate) fn forget(&self, before: Tick) -> Vec<(AgentId, ZoneId, AwaySession)> {
        let mut inner = self.inner.write();
        let mut forgotten = Vec::new();
        inner.zones.retain(|zone_id, zone| {
            zone.away.retain(|agent_id, away| {
                let keep = away.since > before;
                if !keep {
                    forgotten.push((agent_id.clone(), zone_id.clone(), away.clone()));
                }
                keep
            });
            !zone.connected.is_empty() || !zone.away.is_empty()
        });
        forgotten
    }

    /// Reads one zone.
    pub(crate) fn in_zone<T>(&self, zone: &ZoneId, read: impl FnOnce(&ZoneSessions) -> T) -> Option<T> {
        self.inner.read().zones.get(zone).map(read)
    }

    /// Returns one approved session of each of the first `max` zones by name that may take accounts without a zone.
    pub(crate) fn representatives(&self, max: usize) -> Vec<Arc<Session>> {
        let may_offer = |session: &&Arc<Session>| session.is_approved() && session.may_offer();
        let inner = self.inner.read();
        let zones = inner.zones.values();
        zones.filter_map(|zone| zone.connected.values().find(may_offer).cloned()).take(max).collect()
    }

    /// Returns the sessions in force of all agents; some may still be registering.
    pub(crate) fn in_force(&self) -> Vec<Arc<Session>> {
        self.inner.read().claims.values().cloned().collect()
    }

    /// Returns the session in force of an agent.
    pub(crate) fn of_agent(&self, agent: &AgentKey) -> Option<Arc<Session>> {
        self.inner.read().claims.get(agent).cloned()
    }

    /// Returns the sessions in force of the agents of an id, by zone.
    pub(crate) fn of_id(&self, agent_id: &AgentId) -> Vec<Arc<Session>> {
        self.inner.read().of_id(agent_id).cloned().collect()
    }

    /// Returns the session in force of a process of an agent. Ids of processes are unique.
    pub(crate) fn of_process(&self, agent_id: &AgentId, boot_id: &str) -> Option<Arc<Session>> {
        self.inner.read().of_id(agent_id).find(|session| session.agent.boot_id == *boot_id).cloned()
    }

    /// Reads all zones, ordered by name.
    pub(crate) fn in_zones<T>(&self, read: impl FnOnce(&BTreeMap<ZoneId, ZoneSessions>) -> T) -> T {
        read(&self.inner.read().zones)
    }

    /// Returns a connected session.
    pub(crate) fn by_serial(&self, serial: u64) -> Option<Arc<Session>> {
        self.by_serial.read().get(&serial).cloned()
    }

    /// Whether an agent is connected or registering in a zone, or away and not forgotten.
    pub(crate) fn knows(&self, agent_id: &AgentId, zone: &ZoneId) -> bool {
        let inner = self.inner.read();
        inner.claims.contains_key(&AgentKey::new(agent_id, zone))
            || inner.zones.get(zone).is_some_and(|zone| zone.away.contains_key(agent_id))
    }

    pub(crate) fn connected(&self) -> Vec<Arc<Session>> {
        self.by_serial.read().values().cloned().collect()
    }

    /// Records that a session has these accounts in its ledger.
    pub(crate) fn concern<'a>(&self, serial: u64, uids: impl IntoIterator<Item = &'a String>) {
        let mut concerned = self.concerned.lock();
        for uid in uids {
            concerned.entry(uid.clone()).or_default().insert(serial);
        }
    }

    /// Records that these accounts left the session's ledger. Returns those that no session has any more.
    pub(crate) fn release<'a>(
        &self,
        serial: u64,
        uids: impl IntoIterator<Item = &'a String>,
    ) -> Vec<&'a String> {
        let mut concerned = self.concerned.lock();
        let mut orphaned = Vec::new();
        for uid in uids {
            if let Some(serials) = concerned.get_mut(uid) {
                serials.remove(&serial);
                if serials.is_empty() {
                    concerned.remove(uid);
                    orphaned.push(uid);
                }
            }
        }
        orphaned
    }

    /// Returns the connected sessions that have an account in their ledger.
    pub(crate) fn concerned_with(&self, uid: &str) -> Vec<Arc<Session>> {
        let serials: Vec<_> =
            self.concerned.lock().get(uid).map(|all| all.iter().copied().collect()).unwrap_or_default();
        let sessions = self.by_serial.read();
        serials.iter().filter_map(|serial| sessions.get(serial).cloned()).collect()
    }
}

impl ZoneSessions {
    /// Returns an approved connected session.
    pub(super) fn representative(&self) -> Option<&Arc<Session>> {
        self.connected.values().find(|session| session.is_approved())
    }
}

impl RegistryState {
    fn of_id(&self, agent_id: &AgentId) -> impl Iterator<Item = &Arc<Session>> {
        let first = AgentKey { id: agent_id.clone(), zone: ZoneId::default() };
        let from_first = self.claims.range(first..).map(|(_, session)| session);
        from_first.take_while(move |session| session.agent.id == *agent_id)
    }

    /// Returns the time for which the session's id is reserved for another process.
    fn reserved_from(&self, session: &Session, now: HubUptime) -> Option<Duration> {
        let kept =
            self.reserved.get(&session.agent.key()).filter(|kept| kept.boot_id != session.agent.boot_id)?;
        Some(kept.until.saturating_sub(now)).filter(|left| !left.is_zero())
    }

    fn is_claimed_by(&self, session: &Session) -> bool {
        self.claims.get(&session.agent.key()).is_some_and(|current| current.serial == session.serial)
    }

    /// Returns the last session of the same process, if it has ended and is not forgotten.
    fn last_of(&self, session: &Session) -> Option<Arc<Session>> {
        let away = self.zones.get(&session.agent.zone)?.away.get(&session.agent.id)?;
        away.session.clone().filter(|last| last.is_of_process(session))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct IndexedAccount {
    uid: String,
    /// Zones of the grant, of the spec and of the last grant, without duplicates.
    zones: Vec<ZoneId>,
}

/// Accounts by zone: an agent that connects or leaves costs no walk over all accounts.
#[derive(Debug, Default)]
pub(crate) struct ZoneIndex {
    by_key: HashMap<AccountKey, IndexedAccount>,
    by_zone: HashMap<ZoneId, HashSet<String>>,
    anywhere: HashSet<String>,
    probing: HashSet<String>,
}

impl ZoneIndex {
    /// Updates or removes the account of a key. Returns its uids before and after.
    pub(crate) fn put(&mut self, key: &AccountKey, account: Option<&KubesvcAccount>) -> Vec<String> {
        let mut uids = Vec::with_capacity(2);
        if let Some(old) = self.by_key.remove(key) {
            self.leave(&old);
            uids.push(old.uid);
        }
        let Some(account) = account else { return uids };
        let indexed = IndexedAccount { uid: account.uid().to_owned(), zones: account.zones() };
        if account.takes_any_zone() && account.desired() == DesiredState::Active {
            self.anywhere.insert(indexed.uid.clone());
        }
        if ProbeRound::of(account).is_some() {
            self.probing.insert(indexed.uid.clone());
        }
        for zone in &indexed.zones {
            self.by_zone.entry(zone.clone()).or_default().insert(indexed.uid.clone());
        }
        if !uids.contains(&indexed.uid) {
            uids.push(indexed.uid.clone());
        }
        self.by_key.insert(key.clone(), indexed);
        uids
    }

    /// Returns the accounts that are granted to the zone, pinned to it, or were granted to it last.
    pub(crate) fn of_zone(&self, zone: &ZoneId) -> Vec<String> {
        self.by_zone.get(zone).map(|uids| uids.iter().cloned().collect()).unwrap_or_default()
    }

    /// Returns the accounts that wait for any zone.
    pub(super) fn without_zone(&self) -> Vec<String> {
        self.anywhere.iter().cloned().collect()
    }

    /// Returns the accounts that every agent is probed for.
    pub(crate) fn probing(&self) -> Vec<String> {
        self.probing.iter().cloned().collect()
    }

    fn leave(&mut self, indexed: &IndexedAccount) {
        self.anywhere.remove(&indexed.uid);
        self.probing.remove(&indexed.uid);
        for zone in &indexed.zones {
            if let Some(uids) = self.by_zone.get_mut(zone) {
                uids.remove(&indexed.uid);
                if uids.is_empty() {
                    self.by_zone.remove(zone);
                }
            }
        }
    }
}
