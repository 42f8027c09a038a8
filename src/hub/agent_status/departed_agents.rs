//! Forgotten agents that had accounts in their own file. While such an agent may come back, an account that no other
//! agent lists is not deleted. Kept for the cleanup time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::AgentStatus;
use super::disconnects::Disconnect;
use crate::account::KubesvcAccount;
use crate::account::lifecycle::{AgentProcess, Fact, Presence, SessionFact, Tick};
use crate::hub::sessions::registry::AwaySession;
use crate::hub::static_accounts::Listing;

/// Interval between scans for agents to forget.
const FORGET_INTERVAL: Duration = Duration::from_secs(5);

/// A forgotten agent.
struct DepartedAgent {
    since: Tick,
    approved: bool,
    listing: Arc<Listing>,
}

/// By zone and agent id; only agents that had listed accounts.
#[derive(Default)]
pub(in crate::hub) struct DepartedAgents(Mutex<HashMap<(String, String), DepartedAgent>>);

impl DepartedAgents {
    /// Adds an agent that is being forgotten.
    pub(in crate::hub) fn put(&self, agent_id: &str, zone: &str, away: &AwaySession) {
        let listing = away.session.as_ref().and_then(|session| session.listing());
        if let Some(listing) = listing.filter(|listing| listing.len() > 0) {
            let gone = DepartedAgent { since: away.since, approved: away.approved, listing };
            self.0.lock().insert((zone.to_owned(), agent_id.to_owned()), gone);
        }
    }

    /// Removes agents that left at or before `before`, and those that are back.
    pub(in crate::hub) fn sweep(&self, before: Option<Tick>, is_back: impl Fn(&str, &str) -> bool) {
        self.0.lock().retain(|(zone, agent_id), gone| {
            before.is_none_or(|before| gone.since > before) && !is_back(agent_id, zone)
        });
    }
}

impl AgentStatus {
    /// Returns the forgotten agents of a zone that list the account: those of this process, and those recorded in
    /// KubesvcAgents.
    pub(in crate::hub) fn departed_with(&self, account: &KubesvcAccount, zone: &str) -> Vec<SessionFact> {
        let departed = self.departed_agents.0.lock();
        let is_known = |agent_id: &str| self.sessions.registry.knows(agent_id, zone);
        let mut facts = Vec::new();
        for ((of, agent_id), gone) in departed.iter() {
            if of == zone && gone.listing.has(account) && !is_known(agent_id) {
                facts.push(fact(agent_id, zone, gone.approved, gone.since));
            }
        }
        for agent in self.context.agent_index.all() {
            let (spec, status) = (&agent.spec, agent.status.as_ref());
            let lists = || status.and_then(|status| status.lists(account)) == Some(true);
            let is_ours = || {
                let session = status.and_then(|status| status.session.as_ref());
                session.is_some_and(|session| session.replica == self.context.settings.replica_id)
            };
            let is_told = || departed.contains_key(&(zone.to_owned(), spec.agent_id.clone()));
            if spec.zone_id == zone && is_ours() && lists() && !is_known(&spec.agent_id) && !is_told() {
                // Listed by an agent of an earlier process; the time it left is unknown.
                facts.push(fact(&spec.agent_id, zone, spec.approved, 0));
            }
        }
        facts
    }
}

/// Forgets agents that have been away for long and records their disconnects, until stopped.
pub(in crate::hub) async fn forget(status: Arc<AgentStatus>, stop: CancellationToken) {
    let AgentStatus { context, sessions, .. } = &*status;
    let mut sweep = tokio::time::interval(FORGET_INTERVAL);
    while stop.run_until_cancelled(sweep.tick()).await.is_some() {
        if context.replicas.backlog_since(context.ticks.now()).is_some() {
            // An absent agent may be waiting to be registered.
            continue;
        }
        let Some(before) = context.ticks.now().checked_sub(context.settings.forget_after) else { continue };
        let over = context.ticks.now().checked_sub(context.settings.account_cleanup);
        status.departed_agents.sweep(over, |agent_id, zone| sessions.registry.knows(agent_id, zone));
        for (agent_id, zone, away) in sessions.registry.forget(before) {
            status.departed_agents.put(&agent_id, &zone, &away);
            // Written by the disconnects task: this loop does not wait for the API server.
            status.pending_disconnects.put(Disconnect {
                agent_id,
                zone,
                session_id: away.session_id,
                end: away.ending.into(),
            });
        }
    }
}

fn fact(agent_id: &str, zone: &str, approved: bool, since: Tick) -> SessionFact {
    SessionFact {
        agent_id: agent_id.to_owned(),
        zone: zone.to_owned(),
        approved,
        presence: Presence::Away(since),
        process: AgentProcess::default(),
        report: None,
        silent_for: None,
        offer: None,
        lists: Fact::Known(true),
        cluster_uid: String::new(),
    }
}
