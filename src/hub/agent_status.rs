//! The KubesvcAgent objects: the only writer of their status, and their removal.
//!
//! | module | owns |
//! |---|---|
//! | [`registration`] | the port to the objects, and the functions that make their status |
//! | [`approvals`] | approvals of connected agents, recorded before they take effect |
//! | [`summaries`] | number of accounts held and failed, and problems of the agent's own accounts |
//! | [`outbox_writer`] | reports for a leader in another replica |
//! | [`disconnects`] | ends of sessions |
//! | [`departed_agents`], [`collection`] | agents that are forgotten, and removal of their objects |

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

/// Maximum number of concurrent registrations of one kind.
const MAX_CONCURRENT_REGISTRATIONS: usize = 16;

/// Permits for registrations, by kind: agents that need accounts do not wait for those that hold theirs, and returning
/// agents do not wait for newcomers.
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
    /// Returns the permits for agents of one kind.
    pub(super) fn of(&self, class: AdmissionClass, needs_accounts: bool) -> &Semaphore {
        match (class, needs_accounts) {
            (AdmissionClass::Returning, true) => &self.in_need,
            (AdmissionClass::Returning, false) => &self.others,
            _ => &self.newcomers,
        }
    }

    /// Whether an agent is being registered that needs no accounts. Less urgent writes wait then.
    fn are_taken(&self) -> bool {
        self.others.available_permits() < MAX_CONCURRENT_REGISTRATIONS
    }
}

/// Dirty sets of the status, filled by session events.
#[derive(Default)]
pub(super) struct AgentStatusWakes {
    pub(super) summaries: Arc<DirtySummaries>,
    pub(super) outboxes: Arc<DirtyOutboxes>,
}

/// Writes the KubesvcAgents of this replica's agents.
pub(super) struct AgentStatus {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    zone_probes: Arc<ZoneProbes>,
    pub(super) agents: Arc<dyn AgentObjects>,
    pub(super) registrations: RegistrationTurns,
    /// Names of objects whose approval is to be recorded.
    pub(super) approvals: WakeSet<String>,
    wakes: AgentStatusWakes,
    /// Disconnects not yet written.
    pub(super) pending_disconnects: PendingDisconnects,
    /// Forgotten agents that had accounts in their own file.
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

    /// Treats agents that their objects call connected, but are not connected here, as away from now on. A failure to read
    /// the objects is logged. Takes at most 15 s.
    pub(super) async fn remember_agents(&self) {
        match retry::ask_with_retries(|| self.agents.known()).await {
            Some(Ok(known)) => self.remember(known),
            Some(Err(problem)) => warn!(error = %problem, "cannot read which agents were connected"),
            None => warn!("the API server does not say which agents were connected"),
        }
    }

    /// Treats agents of an earlier process of this replica, and those already away, as away from now on.
    fn remember(&self, known: Vec<KnownAgent>) {
        let since = self.context.ticks.now();
        self.sessions.registry.begin_grace(since);
        for KnownAgent { agent_id, zone, session_id, replica, approved, approved_once, connected, .. } in
            known
        {
            if connected && approved_once && replica == self.context.settings.replica_id {
                // Nobody observed the end of its stream.
                let ending = SessionEnding::ReplicaLost;
                let away = AwaySession { approved, since, ending, session_id, session: None };
                self.sessions.registry.remember(&agent_id, &zone, away);
            }
        }
    }
}
