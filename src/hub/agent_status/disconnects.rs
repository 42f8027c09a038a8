//! Disconnects not yet written to their KubesvcAgent. Until one is written, other replicas treat the agent as
//! connected here: they reject a second process with its id, and a revoke waits for its answer. Each is retried until
//! it is written. If this replica dies first, its Lease shows that it has no agents.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::AgentStatusWriter;
use super::registration::{RegistrationError, SessionRef};
use crate::hub::sessions::session::Session;
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_core::{AgentKey, KubesvcAgent, SessionId};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_runtime::work_queue::WorkQueue;

/// Maximum number of concurrent writes, so that one that hangs does not block the others.
const MAX_CONCURRENT_WRITES: usize = 16;
/// Delay before a queued disconnect is written. Most are queued after a failed write.
const QUEUE_DELAY: Duration = Duration::from_secs(1);
/// First and maximum delay after a failed write, before jitter.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// The end of a session.
#[derive(Clone, Debug)]
pub(crate) struct Disconnect {
    pub(crate) agent: AgentKey,
    pub(crate) session_id: SessionId,
    pub(crate) end: SessionEnd,
}

impl Disconnect {
    pub(crate) fn new(session: &Session, end: SessionEnd) -> Self {
        Self { agent: session.agent.key(), session_id: session.id.clone(), end }
    }

    fn session(&self) -> SessionRef<'_> {
        SessionRef { agent_id: &self.agent.id, zone: &self.agent.zone, id: &self.session_id }
    }
}

/// The last disconnect of each agent that is not written yet; an object names one session only.
#[derive(Default)]
pub(crate) struct PendingDisconnects {
    of_agents: Mutex<HashMap<AgentKey, Disconnect>>,
    wakes: Arc<WorkQueue<AgentKey>>,
}

impl PendingDisconnects {
    /// Queues the disconnect for the next status write.
    pub(crate) fn put(&self, disconnect: Disconnect) {
        let key = disconnect.agent.clone();
        self.of_agents.lock().insert(key.clone(), disconnect);
        self.wakes.wake(key);
    }

    fn get(&self, key: &AgentKey) -> Option<Disconnect> {
        self.of_agents.lock().get(key).cloned()
    }

    /// Removes a disconnect that was written, unless a later session of the agent has ended since.
    fn written(&self, key: &AgentKey, session_id: &SessionId) {
        let mut pending = self.of_agents.lock();
        if pending.get(key).is_some_and(|disconnect| disconnect.session_id == *session_id) {
            pending.remove(key);
        }
    }
}

impl AgentStatusWriter {
    /// Returns the disconnect of a session of this process that the object calls connected although it is not
    /// connected here: the stream ended during registration, or the answer to a write was lost.
    pub(crate) fn missed_disconnect(&self, agent: &KubesvcAgent) -> Option<Disconnect> {
        let (context, registry) = (&self.context, &self.sessions.registry);
        let (spec, status) = (&agent.spec, agent.status.as_ref().filter(|status| status.connected)?);
        let session = status.session.as_ref()?;
        let is_ours = session.replica == context.settings.replica_id
            && session.incarnation.as_deref() == Some(context.replicas.incarnation());
        // A connected session writes the object itself, or checks for this at its end.
        let is_left = is_ours && registry.of_agent(&spec.key()).is_none();
        let requested = registry.is_reserved(&spec.key(), &session.boot_id);
        is_left.then(|| Disconnect {
            agent: spec.key(),
            session_id: session.id.clone(),
            end: if requested { SessionEnd::Requested } else { SessionEnd::Cut },
        })
    }

    /// Queues the missed disconnect of an object, if there is one.
    pub(crate) fn queue_missed_disconnect(&self, agent: &KubesvcAgent) {
        if let Some(left) = self.missed_disconnect(agent) {
            self.pending_disconnects.put(left);
        }
    }
}

/// Writes a disconnect, and queues it for a retry on failure.
pub(crate) async fn record(status: &AgentStatusWriter, disconnect: Disconnect) {
    if let Err(error) = try_record(status, &disconnect).await {
        warn_unless_away!(
            agentId = disconnect.agent.id.as_str(),
            %error,
            "cannot write that the agent is disconnected; retrying"
        );
        status.pending_disconnects.put(disconnect);
    }
}

async fn try_record(status: &AgentStatusWriter, disconnect: &Disconnect) -> Result<(), RegistrationError> {
    status.agents.write_disconnected(disconnect.session(), disconnect.end).await
}

/// Starts the task that writes queued disconnects.
pub(crate) fn start(background: &BackgroundTasks, status: &Arc<AgentStatusWriter>) {
    let [first, longest] = RETRY_DELAYS;
    let task = TaskSpec::new("disconnects", "Writes the ends of sessions into KubesvcAgents");
    let task = task.woken_by(&status.pending_disconnects.wakes).gather(QUEUE_DELAY);
    // A write may wait for the rate limit. Its requests have time limits.
    let task = task.concurrency(MAX_CONCURRENT_WRITES).without_deadline().retry_delays(first, longest);
    let task = task.log_failure(|error| {
        warn_unless_away!(error, "cannot write that an agent is disconnected; retrying");
    });
    let status = Arc::clone(status);
    background.start(task, move |keys| record_queued(Arc::clone(&status), keys));
}

async fn record_queued(status: Arc<AgentStatusWriter>, keys: Vec<AgentKey>) -> AttemptOutcome<AgentKey> {
    for key in &keys {
        let Some(disconnect) = status.pending_disconnects.get(key) else { continue };
        if let Err(error) = try_record(&status, &disconnect).await {
            return AttemptOutcome::failed(error.to_string());
        }
        status.pending_disconnects.written(key, &disconnect.session_id);
    }
    AttemptOutcome::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disconnect(session: &str) -> Disconnect {
        let agent = AgentKey::new(&"a".into(), &"z".into());
        Disconnect { agent, session_id: session.into(), end: SessionEnd::Cut }
    }

    #[test]
    fn a_disconnect_that_was_written_leaves_the_one_of_a_later_session_queued() {
        let (pending, key) = (PendingDisconnects::default(), disconnect("first").agent);
        pending.put(disconnect("first"));
        pending.put(disconnect("second"));
        assert_eq!(pending.wakes.try_take(9), std::slice::from_ref(&key));
        pending.written(&key, &"first".into());
        assert_eq!(pending.get(&key).map(|one| one.session_id), Some("second".into()));
        pending.written(&key, &"second".into());
        assert!(pending.get(&key).is_none());
    }
}
