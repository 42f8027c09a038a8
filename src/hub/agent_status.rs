//! The KubesvcAgent objects: the only writer of their status, and their removal.
//!
//! | module | owns |
//! |---|---|
//! | [`registration`] | the port to the objects, and the functions that make their status |
//! | [`summaries`] | number of accounts held and failed, and problems of the agent's own accounts |
//! | [`report_outbox_writer`] | reports for a leader in another replica |
//! | [`disconnects`] | ends of sessions |
//! | [`garbage_collection`] | agents that are forgotten, and removal of their objects |
//!
//! [`AgentStatusWriter`] itself records the approvals that people set on agents connected here, each before the agent
//! is sent anything, so that a revoke waits for the agent even if this process dies. The session is approved when the
//! watch shows the new status.

pub(super) mod disconnects;
pub(super) mod garbage_collection;
pub(super) mod identity_conditions;
pub(super) mod registration;
pub(super) mod report_outbox_writer;
pub(super) mod summaries;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tracing::warn;

use crate::hub::agent_admission::queue::AdmissionClass;
use crate::hub::context::HubContext;
use crate::hub::sessions::Sessions;
use crate::hub::sessions::registry::AwaySession;
use crate::hub::zone_probes::ZoneProbes;
use disconnects::PendingDisconnects;
use garbage_collection::DepartedAgents;
use kubesvc_core::lifecycle::SessionEnding;
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_runtime::work_queue::WorkQueue;
use registration::{AgentObjects, KnownAgent};
use report_outbox_writer::DirtyOutboxes;
use summaries::DirtySummaries;

/// Maximum number of concurrent registrations of one kind.
const MAX_CONCURRENT_REGISTRATIONS: usize = 16;
/// Time limit for one answer: several times what the objects of 10,000 agents need.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of attempts at a request that is not answered.
const MAX_ATTEMPTS: usize = 3;
/// Delay after an approval that was not written.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Permits for registrations, by kind: agents that need accounts do not wait for those that hold theirs, and returning
/// agents do not wait for newcomers.
pub(super) struct RegistrationPermits {
    in_need: Semaphore,
    others: Semaphore,
    newcomers: Semaphore,
}

impl Default for RegistrationPermits {
    fn default() -> Self {
        let permits = || Semaphore::new(MAX_CONCURRENT_REGISTRATIONS);
        Self { in_need: permits(), others: permits(), newcomers: permits() }
    }
}

impl RegistrationPermits {
    /// Returns the permits for agents of one kind.
    pub(super) fn of(&self, class: AdmissionClass, needs_accounts: bool) -> &Semaphore {
        match (class, needs_accounts) {
            (AdmissionClass::Returning, true) => &self.in_need,
            (AdmissionClass::Returning, false) => &self.others,
            _ => &self.newcomers,
        }
    }

    /// Whether an agent is being registered that needs no accounts. Less urgent writes wait then.
    fn are_in_use(&self) -> bool {
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
pub(super) struct AgentStatusWriter {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    zone_probes: Arc<ZoneProbes>,
    pub(super) agents: Arc<dyn AgentObjects>,
    pub(super) registrations: RegistrationPermits,
    /// Names of objects whose approval is to be recorded.
    pub(super) approvals: Arc<WorkQueue<String>>,
    wakes: AgentStatusWakes,
    /// Disconnects not yet written.
    pub(super) pending_disconnects: PendingDisconnects,
    /// Forgotten agents that had accounts in their own file.
    pub(super) departed_agents: DepartedAgents,
}

impl AgentStatusWriter {
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
            registrations: RegistrationPermits::default(),
            approvals: Arc::default(),
            wakes,
            pending_disconnects: PendingDisconnects::default(),
            departed_agents: DepartedAgents::default(),
        }
    }

    /// Treats agents that their objects call connected, but are not connected here, as away from now on. A failure to read
    /// the objects is logged. Takes at most 15 s.
    pub(super) async fn remember_agents(&self) {
        match ask_with_retries(|| self.agents.known()).await {
            Some(Ok(known)) => self.remember(known),
            Some(Err(problem)) => warn!(error = %problem, "cannot read which agents were connected"),
            None => warn!("the API server did not answer which agents were connected"),
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

/// Repeats a request until it is answered; `None` without an answer in 15 s. An abandoned request closes its
/// connection, so the next one uses another.
async fn ask_with_retries<T, E, F>(question: impl Fn() -> F) -> Option<Result<T, E>>
where
    F: Future<Output = Result<T, E>>,
{
    for _ in 0..MAX_ATTEMPTS {
        if let Ok(answer) = tokio::time::timeout(ANSWER_TIMEOUT, question()).await {
            return Some(answer);
        }
    }
    None
}

/// Starts the task that records approvals.
pub(super) fn start(background: &BackgroundTasks, status: &Arc<AgentStatusWriter>) {
    let task = TaskSpec::new("approvals of agents", "Records approvals in KubesvcAgents");
    // A write may wait for the rate limit. Its requests have time limits.
    let task = task.woken_by(&status.approvals).without_deadline().retry_delays(RETRY_DELAY, RETRY_DELAY);
    let task = task.log_failure(|error| {
        warn_unless_away!(error, "cannot record the approval of an agent; retrying");
    });
    let recorder = Arc::clone(status);
    background.start(task, move |names| record_approvals(Arc::clone(&recorder), names));
}

/// Records approvals of agents that are connected here.
async fn record_approvals(status: Arc<AgentStatusWriter>, names: Vec<String>) -> AttemptOutcome<String> {
    for agent in names.iter().filter_map(|name| status.context.agent_index.get(name)) {
        let Some(session) = status.sessions.registry.of_agent(&agent.spec.key()) else { continue };
        if let Err(error) = status.agents.write_approved(session.reference()).await {
            return AttemptOutcome::failed(error.to_string());
        }
    }
    AttemptOutcome::Done
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Asks one that is silent for the first so many times.
    async fn asked(silent: usize) -> (Option<Result<&'static str, ()>>, usize) {
        let asked = AtomicUsize::new(0);
        let question = || {
            let hangs = asked.fetch_add(1, Ordering::Relaxed) < silent;
            async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Ok("heard")
            }
        };
        let answer = ask_with_retries(question).await;
        (answer, asked.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_is_repeated() {
        assert_eq!(asked(0).await, (Some(Ok("heard")), 1));
        assert_eq!(asked(2).await, (Some(Ok("heard")), 3));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_an_answer_end_after_the_last_attempt() {
        let begun = tokio::time::Instant::now();
        assert_eq!(asked(usize::MAX).await, (None, MAX_ATTEMPTS));
        assert_eq!(begun.elapsed(), Duration::from_secs(15));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_answer_is_an_answer() {
        let answer = ask_with_retries(|| std::future::ready(Err::<(), _>("no right"))).await;
        assert_eq!(answer, Some(Err("no right")));
    }
}
