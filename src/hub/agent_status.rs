//! The KubesvcAgent objects: all that is written into them, and their end.
//!
//! | module | owns |
//! |---|---|
//! | [`registration`] | the port to the objects, and what their status says |
//! | [`approvals`] | approvals that people give to connected agents, written down before they count |
//! | [`summaries`] | how many accounts an agent holds, and what is wrong with its own |
//! | [`outbox_writer`] | what accounts wait to hear, for the replica that leads |
//! | [`disconnects`] | sessions that have ended |
//! | [`departed_agents`], [`collection`] | agents that are long gone, and their objects |

pub(super) mod approvals;
pub(super) mod collection;
pub(super) mod departed_agents;
pub(super) mod disconnects;
pub(super) mod outbox_writer;
pub(super) mod registration;
pub(super) mod summaries;

use std::sync::Arc;

use tokio::sync::Semaphore;
use tracing::warn;

use crate::account::lifecycle::SessionEnding;
use crate::hub::admission::queue::AdmissionClass;
use crate::hub::context::HubContext;
use crate::hub::retry;
use crate::hub::sessions::Sessions;
use crate::hub::sessions::registry::AwaySession;
use crate::hub::zone_probes::ZoneProbes;
use crate::wake_set::WakeSet;
use departed_agents::DepartedAgents;
use disconnects::PendingDisconnects;
use outbox_writer::DirtyOutboxes;
use registration::{AgentObjects, KnownAgent};
use summaries::DirtySummaries;

/// Maximum number of registrations of one kind written at once.
const MAX_CONCURRENT_REGISTRATIONS: usize = 16;

/// Turns to write a registration. Those that are to be given accounts do not stand behind those that have what they need,
/// and nobody behind those that were never here.
pub(super) struct RegistrationTurns {
    in_need: Semaphore,
    others: Semaphore,
    newcomers: Semaphore,
}

impl Default for RegistrationTurns {
    fn default() -> Self {
        let turns = || Semaphore::new(MAX_CONCURRENT_REGISTRATIONS);
        Self { in_need: turns(), others: turns(), newcomers: turns() }
    }
}

impl RegistrationTurns {
    /// The turns of agents of one kind.
    pub(super) fn of(&self, class: AdmissionClass, needs_accounts: bool) -> &Semaphore {
        match (class, needs_accounts) {
            (AdmissionClass::Returning, true) => &self.in_need,
            (AdmissionClass::Returning, false) => &self.others,
            _ => &self.newcomers,
        }
    }

    /// Whether an agent is being registered that has the accounts it needs: what is less urgent waits.
    fn are_taken(&self) -> bool {
        self.others.available_permits() < MAX_CONCURRENT_REGISTRATIONS
    }
}

/// What sessions have changed and their agents' objects do not say yet.
#[derive(Default)]
pub(super) struct AgentStatusWakes {
    pub(super) summaries: Arc<DirtySummaries>,
    pub(super) outboxes: Arc<DirtyOutboxes>,
}

/// The KubesvcAgent objects, as this replica writes them.
pub(super) struct AgentStatus {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    zone_probes: Arc<ZoneProbes>,
    pub(super) agents: Arc<dyn AgentObjects>,
    pub(super) registrations: RegistrationTurns,
    /// Names of objects whose approval is to be written down.
    pub(super) approvals: WakeSet<String>,
    wakes: AgentStatusWakes,
    /// Disconnects not yet written.
    pub(super) pending_disconnects: PendingDisconnects,
    /// Agents that are forgotten and had accounts of their own.
    pub(super) departed_agents: DepartedAgents,
}

impl AgentStatus {
    pub(super) fn new(
        context: Arc<HubContext>,
        sessions: Arc<Sessions>,
        zone_probes: Arc<ZoneProbes>,
        agents: Arc<dyn AgentObjects>,
        wakes: AgentStatusWakes,
    ) -> Self {
        Self {
            context,
            sessions,
            zone_probes,
            agents,
            registrations: RegistrationTurns::default(),
            approvals: WakeSet::default(),
            wakes,
            pending_disconnects: PendingDisconnects::default(),
            departed_agents: DepartedAgents::default(),
        }
    }

    /// Agents that are connected by their objects, and not here, count as away from now on: they may come back within
    /// the grace. What cannot be read, also for want of an answer, is logged. It takes 15 s at most.
    pub(super) async fn remember_agents(&self) {
        match retry::ask_with_retries(|| self.agents.known()).await {
            Some(Ok(known)) => self.remember(known),
            Some(Err(problem)) => warn!(error = %problem, "cannot read which agents were connected"),
            None => warn!("the API server does not say which agents were connected"),
        }
    }

    /// Agents that an earlier process of this replica had, and those that left it, count as away from now on.
    fn remember(&self, known: Vec<KnownAgent>) {
        let since = self.context.ticks.now();
        self.sessions.registry.begin_grace(since);
        for KnownAgent { agent_id, zone, session_id, replica, approved, approved_once, connected, .. } in
            known
        {
            if connected && approved_once && replica == self.context.settings.replica_id {
                // Its stream was not seen to end.
                let ending = SessionEnding::ReplicaLost;
                let away = AwaySession { approved, since, ending, session_id, session: None };
                self.sessions.registry.remember(&agent_id, &zone, away);
            }
        }
    }
}
