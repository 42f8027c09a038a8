//! The connected agents: one session per stream, and the registry of sessions.
//!
//! | module | owns |
//! |---|---|
//! | [`session`] | one stream: its agent, its loop, its frames |
//! | [`ledger`], [`duties`] | commands sent and reports received, by account, and the next command; pure |
//! | [`wire_conversion`] | conversion between wire messages and lifecycle types |
//! | [`registry`] | sessions by agent, zone and account; accounts by zone |
//! | [`events`] | session events and their subscribers |
//! | [`mass_delete_guard`] | confirmation before many accounts are dropped at once |
//!
//! [`Sessions`] publishes the events of the sessions, and routes account changes to them.

pub(super) mod duties;
pub(super) mod events;
pub(super) mod ledger;
pub(super) mod mass_delete_guard;
pub(super) mod registry;
pub(super) mod session;
pub(super) mod wire_conversion;

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::hub::context::HubContext;
use crate::hub::zone_probes::ZoneProbes;
use crate::hub::zone_probes::probe::ProbeRound;
use crate::informers::{AccountKey, version_of};
use events::{SessionEvent, SessionEvents};
use kubesvc_core::{AgentId, KubesvcAgent};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use mass_delete_guard::MassDeleteGuard;
use registry::{Registry, ZoneIndex};
use session::Session;
use session::identified::Identified as StreamIdentity;

/// Maximum number of changes routed in one pass.
const MAX_CHANGES_PER_PASS: usize = 1000;

/// The session that a further stream names, and the identity that it has itself.
pub(super) struct StreamClaim<'c> {
    pub(super) agent_id: &'c str,
    pub(super) boot_id: &'c str,
    pub(super) session_id: &'c str,
    /// Empty: any.
    pub(super) replica_id: &'c str,
    /// Its own rights and credential; `None`: identities do not count.
    pub(super) identity: Option<&'c StreamIdentity>,
}

/// The sessions of this replica. Publishes their events.
pub(super) struct Sessions {
    pub(super) context: Arc<HubContext>,
    pub(super) registry: Registry,
    pub(super) zone_index: Mutex<ZoneIndex>,
    /// Number of connected sessions.
    pub(super) connected: watch::Sender<usize>,
    events: SessionEvents,
    mass_delete_guard: MassDeleteGuard,
}

impl Sessions {
    pub(super) fn new(context: Arc<HubContext>, events: SessionEvents) -> Self {
        Self {
            context,
            registry: Registry::default(),
            zone_index: Mutex::default(),
            connected: watch::Sender::new(0),
            events,
            mass_delete_guard: MassDeleteGuard::default(),
        }
    }

    pub(super) fn publish(&self, session: &Session, event: SessionEvent<'_>) {
        self.events.publish(session.serial, event);
    }

    /// Returns the connected session that a further stream of its agent names.
    pub(super) fn of_stream(&self, claim: &StreamClaim<'_>) -> Option<Arc<Session>> {
        let own = &self.context.settings.replica_id;
        let agent_id = AgentId::from(claim.agent_id);
        self.registry.of_process(&agent_id, claim.boot_id).filter(|session| {
            session.id == *claim.session_id
                && (claim.replica_id.is_empty() || *own == *claim.replica_id)
                && session
                    .identity
                    .is_same_agent(claim.identity.map(|shown| (&shown.rights, &shown.credential)))
                && self.registry.is_connected(session)
        })
    }

    /// Waits until no session is connected.
    pub(super) async fn emptied(&self) {
        // The sender lives as long as self, so this ends only when there is none.
        let _ = self.connected.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Has the ledger of a session follow what its identity allows, of all accounts in it.
    pub(super) fn judge_all(&self, session: &Session) {
        for account in session.uids().iter().filter_map(|uid| self.context.accounts.by_uid(uid)) {
            session.judge(&account);
        }
    }

    /// Handles that a session is connected, or its approval changed: wakes the accounts of its zone in the session and at
    /// the leader.
    pub(super) fn stood(&self, session: &Session, first_of_zone: bool) {
        let (mut accounts, mut unplaced) = (HashSet::new(), Vec::new());
        if session.was_approved() {
            let zones = self.zone_index.lock();
            accounts.extend(zones.of_zone(&session.agent.zone));
            if first_of_zone {
                unplaced = zones.without_zone();
            }
            session.wakes.wake_all(zones.probing());
        }
        accounts.extend(if session.was_approved() { session.uids() } else { Vec::new() });
        self.publish(session, SessionEvent::Stood { accounts: &accounts, unplaced: &unplaced });
        session.wakes.wake_all(accounts);
    }

    /// Handles the end of a session: wakes, at the leader, the accounts of the session and of its zone, and those without
    /// a zone if the zone has no other session.
    pub(super) fn ended(&self, session: &Session, uids: &[String]) {
        if !session.was_approved() {
            return self.publish(session, SessionEvent::Ended { accounts: &[], affected: &[] });
        }
        let zone_is_empty =
            self.registry.in_zone(&session.agent.zone, |zone| zone.representative().is_none());
        let affected = {
            let zones = self.zone_index.lock();
            let mut affected = zones.of_zone(&session.agent.zone);
            if zone_is_empty.unwrap_or(true) {
                affected.extend(zones.without_zone());
            }
            affected
        };
        self.publish(session, SessionEvent::Ended { accounts: uids, affected: &affected });
    }

    /// Publishes that a session's stream of requests was opened or has ended. Subscribers read which of the two from the
    /// session, so the order of two calls does not matter.
    pub(super) fn reachable_changed(&self, session: &Session) {
        self.publish(session, SessionEvent::ReachableChanged(&session.uids()));
    }

    /// Handles a different list of the agent's own accounts: wakes the static accounts of its zone.
    pub(super) fn listed(&self, session: &Session) {
        let uids = self.zone_index.lock().of_zone(&session.agent.zone);
        let is_static =
            |uid: &String| self.context.accounts.by_uid(uid).is_some_and(|account| account.is_static());
        let uids: Vec<_> = uids.into_iter().filter(is_static).collect();
        session.wakes.wake_all(uids.iter().cloned());
        self.publish(session, SessionEvent::Listed(&uids));
    }

    /// Handles a changed or deleted account: wakes it in the sessions that have it in their ledger.
    fn account_changed(&self, uid: &str) {
        let concerned = self.registry.concerned_with(uid);
        for session in &concerned {
            session.wakes.wake(uid.to_owned());
            session.own.changed.notify_one();
        }
        let serials: Vec<_> = concerned.iter().map(|session| session.serial).collect();
        self.events.publish_account_changed(uid, &serials);
    }

    /// Handles that these accounts left the session's ledger.
    pub(super) fn release<'a>(&self, session: &Session, uids: impl IntoIterator<Item = &'a String>) {
        for uid in self.registry.release(session.serial, uids) {
            self.events.publish_orphaned(uid);
        }
    }

    /// Closes a session if the agent's object names a later one. Returns whether it did.
    pub(super) fn yields_to_owner(&self, session: &Session, agent: &KubesvcAgent) -> bool {
        let in_force = agent.status.as_ref().and_then(|status| status.session.as_ref());
        if !session.is_superseded_by(in_force.map(|one| one.id.as_str()), version_of(agent)) {
            return false;
        }
        if in_force.is_some_and(|one| one.replica != self.context.settings.replica_id) {
            session.supersede();
        }
        session.close("another stream of the agent is in force");
        true
    }
}

/// Starts the task that wakes, for each changed account, the sessions of the zone that has the grant and the sessions
/// that have the account in their ledger.
pub(super) fn start(background: &BackgroundTasks, sessions: &Arc<Sessions>, zone_probes: &Arc<ZoneProbes>) {
    let (accounts, changed) = (Arc::clone(&sessions.context.accounts), sessions.context.accounts.follow());
    let task = TaskSpec::new("routing changes", "Wakes the sessions that a changed account concerns");
    let task = task.woken_by(&changed).batch(MAX_CHANGES_PER_PASS);
    let task = task.once_after(async move { accounts.synced().await });
    let (sessions, zone_probes) = (Arc::clone(sessions), Arc::clone(zone_probes));
    background.start(task, move |keys: Vec<AccountKey>| {
        if keys.is_empty() {
            // The index is synced: accounts without an object may be dropped only from now on.
            for session in sessions.registry.connected() {
                session.wakes.wake_all(session.uids());
            }
        }
        keys.iter().for_each(|key| route(&sessions, &zone_probes, key));
        std::future::ready(AttemptOutcome::Done)
    });
}

/// Wakes the sessions that a changed account concerns.
fn route(sessions: &Sessions, zone_probes: &ZoneProbes, key: &AccountKey) {
    let account = sessions.context.accounts.get(key);
    let uids = sessions.zone_index.lock().put(key, account.as_deref());
    let round = account.as_deref().and_then(|account| Some((account.uid(), ProbeRound::of(account)?)));
    for uid in uids {
        sessions.account_changed(&uid);
        if round.is_none_or(|(probed, _)| probed != uid) {
            for session in zone_probes.close(&uid) {
                session.wakes.wake(uid.clone());
            }
        }
    }
    let Some(account) = &account else { return };
    if let Some((uid, round)) = round {
        let probing = zone_probes.announce(uid, round);
        probing.iter().for_each(|session| session.wakes.wake(uid.to_owned()));
    }
    if let Some(zone) = account.spec.zone_id.as_ref().filter(|_| account.is_static()) {
        sessions.registry.in_zone(zone, |zone| {
            zone.connected.values().for_each(|session| session.own.changed.notify_one());
        });
    }
    if let Some(zone) = account.status_or_default().granted_zone() {
        sessions.registry.in_zone(zone, |zone| {
            for session in zone.connected.values() {
                session.wakes.wake(account.uid().to_owned());
            }
        });
    }
}
