//! The hub's own tasks: changes of objects to the sessions they concern, what the agents' objects say, and forgetting who is long gone.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::account::KubesvcAgent;
use crate::account::lifecycle::SessionEnding;
use crate::hub::Hub;
use crate::hub::agent_status::disconnects::{self, Disconnect};
use crate::hub::agent_status::registration::KnownAgent;
use crate::hub::sessions::registry::AwaySession;
use crate::hub::sessions::session::Session;
use crate::hub::zone_probes::probe::ProbeRound;
use crate::objects::{AccountKey, version_of};

/// Maximum number of changes routed in one pass.
const MAX_CHANGES_PER_PASS: usize = 1000;
/// Interval between scans for agents to be forgotten.
const FORGET_INTERVAL: Duration = Duration::from_secs(5);

/// Wakes, for each object that changes, the sessions it concerns: those of the zone that has the grant, and those that
/// have had to do with it.
pub(in crate::hub) async fn route_changes(hub: Arc<Hub>, stop: CancellationToken) {
    let changed = hub.accounts.follow();
    let mut synced = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = hub.accounts.synced(), if !synced => {
                synced = true;
                // Only now may something be dropped that no object asks for.
                for session in hub.registry.connected() {
                    session.wakes.wake_all(session.uids());
                }
            }
            keys = changed.take(MAX_CHANGES_PER_PASS) => keys.iter().for_each(|key| route(&hub, key)),
        }
    }
}

fn route(hub: &Hub, key: &AccountKey) {
    let account = hub.accounts.get(key);
    let uids = hub.zone_index.lock().put(key, account.as_deref());
    let round = account.as_deref().and_then(|account| Some((account.uid(), ProbeRound::of(account)?)));
    for uid in uids {
        for session in hub.registry.concerned_with(&uid) {
            session.wakes.wake(uid.clone());
            session.own_changed.notify_one();
            hub.dirty_outboxes.wake(session.serial);
            hub.dirty_assignments.wake((session.serial, uid.clone()));
        }
        hub.dirty_fences.wake(uid.clone());
        if round.is_none_or(|(asking, _)| asking != uid) {
            let asked = hub.offers.lock().close(&uid);
            for session in asked.into_iter().filter_map(|serial| hub.registry.by_serial(serial)) {
                session.wakes.wake(uid.clone());
            }
        }
    }
    let Some(account) = &account else { return };
    if let Some((uid, round)) = round {
        let is_new = hub.offers.lock().announce(uid, round);
        let told = if is_new { hub.registry.connected() } else { Vec::new() };
        told.iter().for_each(|session| session.wakes.wake(uid.to_owned()));
    }
    if let Some(zone) = account.spec.zone_id.as_deref().filter(|_| account.is_static()) {
        hub.registry.in_zone(zone, |zone| {
            zone.connected.values().for_each(|session| session.own_changed.notify_one());
        });
    }
    if let Some(zone) = account.status_or_default().granted_zone() {
        hub.registry.in_zone(zone, |zone| {
            for session in zone.connected.values() {
                session.wakes.wake(account.uid().to_owned());
            }
        });
    }
}

/// Takes in what the agents' objects say: what a person has set, and which stream is in force.
pub(in crate::hub) async fn follow_agents(hub: Arc<Hub>, stop: CancellationToken) {
    let changed = hub.agent_index.follow();
    while let Some(names) = stop.run_until_cancelled(changed.take(MAX_CHANGES_PER_PASS)).await {
        for agent in names.iter().filter_map(|name| hub.agent_index.get(name)) {
            heed(&hub, &agent);
        }
    }
}

fn heed(hub: &Hub, agent: &KubesvcAgent) {
    let (spec, status) = (&agent.spec, agent.status.as_ref());
    let in_force = status.and_then(|status| status.session.as_ref());
    let is_elsewhere = in_force.is_some_and(|session| session.replica != hub.settings.replica_id);
    if is_elsewhere
        && status.is_some_and(|status| status.connected)
        && hub.admission_queues.lock().forget(&spec.agent_id)
    {
        hub.publish_backlog();
    }
    if let Some(left) = disconnects::missed_disconnect(hub, agent) {
        hub.pending_disconnects.put(left);
    }
    let session = hub.registry.of_agent(&spec.agent_id).filter(|session| session.zone == spec.zone_id);
    let Some(session) = session else { return };
    if hub.yields_to_owner(&session, agent) {
        return;
    }
    if spec.approved && status.is_some_and(|status| !status.approved_once) {
        // It counts once it is written down.
        if let Some(name) = &agent.metadata.name {
            hub.approvals.wake(name.clone());
        }
        return;
    }
    // One that is still registering is told as well; it looks at its accounts when it stands.
    if session.approve(spec.approved) && hub.registry.is_connected(&session) {
        info!(agentId = session.agent_id, approved = spec.approved, "approval of the agent changed");
        hub.agent_came(&session, true);
    }
}

impl Hub {
    /// Closes a session if the agent's object names another one that came after it. Whether it does.
    pub(in crate::hub) fn yields_to_owner(&self, session: &Session, agent: &KubesvcAgent) -> bool {
        let in_force = agent.status.as_ref().and_then(|status| status.session.as_ref());
        if !session.is_superseded_by(in_force.map(|one| one.id.as_str()), version_of(agent)) {
            return false;
        }
        if in_force.is_some_and(|one| one.replica != self.settings.replica_id) {
            session.supersede();
        }
        session.close("another stream of the agent is in force");
        true
    }
}

/// Forgets agents that have been away for long, and says so in their objects.
pub(in crate::hub) async fn forget(hub: Arc<Hub>, stop: CancellationToken) {
    let mut sweep = tokio::time::interval(FORGET_INTERVAL);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = sweep.tick() => {}
        }
        if hub.admission_queues.lock().sweep(hub.moment()) {
            hub.publish_backlog();
        }
        if hub.replicas.backlog_since(hub.ticks.now()).is_some() {
            // Whoever is away may be waiting to be registered.
            continue;
        }
        let Some(before) = hub.ticks.now().checked_sub(hub.settings.forget_after) else { continue };
        let over = hub.ticks.now().checked_sub(hub.settings.account_cleanup);
        hub.departed_agents.sweep(over, |agent_id, zone| hub.registry.knows(agent_id, zone));
        for (agent_id, zone, away) in hub.registry.forget(before) {
            hub.departed_agents.put(&agent_id, &zone, &away);
            // Told by whoever tells of all that have left: this one goes on, however long the API server takes.
            hub.pending_disconnects.put(Disconnect {
                agent_id,
                zone,
                session_id: away.session_id,
                end: away.ending.into(),
            });
        }
    }
}

/// Agents that an earlier process of this replica had, and those that left it, count as away from now on.
pub(in crate::hub) fn remember(hub: &Hub, known: Vec<KnownAgent>) {
    let since = hub.ticks.now();
    hub.registry.begin_grace(since);
    for KnownAgent { agent_id, zone, session_id, replica, approved, approved_once, connected, .. } in known {
        if connected && approved_once && replica == hub.settings.replica_id {
            // Its stream was not seen to end.
            let ending = SessionEnding::ReplicaLost;
            let away = AwaySession { approved, since, ending, session_id, session: None };
            hub.registry.remember(&agent_id, &zone, away);
        }
    }
}
