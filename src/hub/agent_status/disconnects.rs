//! Disconnects not yet written to their KubesvcAgent. Until one is written, other replicas treat the agent as
//! connected here: they reject a second process with its id, and a revoke waits for its answer. Each is retried until
//! it is written. If this replica dies first, its Lease shows that it has no agents.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::AgentStatus;
use super::registration::SessionRef;
use crate::account::agent_resource::SessionEnd;
use crate::account::{KubesvcAgent, SessionId};
use crate::hub::sessions::session::Session;
use crate::telemetry::outages::warn_unless_away;

/// Maximum number of concurrent writes, and of failures in one pass after which no further write starts.
const MAX_CONCURRENT_WRITES: usize = 16;
/// First delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay after failed writes.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The end of a session.
#[derive(Clone, Debug)]
pub(in crate::hub) struct Disconnect {
    pub(in crate::hub) agent_id: String,
    pub(in crate::hub) zone: String,
    pub(in crate::hub) session_id: SessionId,
    pub(in crate::hub) end: SessionEnd,
}

impl Disconnect {
    pub(in crate::hub) fn new(session: &Session, end: SessionEnd) -> Self {
        Self {
            agent_id: session.agent.id.clone(),
            zone: session.agent.zone.clone(),
            session_id: session.id.clone(),
            end,
        }
    }

    fn session(&self) -> SessionRef<'_> {
        SessionRef { agent_id: &self.agent_id, zone: &self.zone, id: &self.session_id }
    }
}

/// The last disconnect of each agent that is not written yet; an object names one session only.
#[derive(Default)]
pub(in crate::hub) struct PendingDisconnects {
    of_agents: Mutex<HashMap<(String, String), Disconnect>>,
    more: Notify,
}

impl PendingDisconnects {
    /// Queues the disconnect for the next status write.
    pub(in crate::hub) fn put(&self, disconnect: Disconnect) {
        self.of_agents.lock().insert((disconnect.agent_id.clone(), disconnect.zone.clone()), disconnect);
        self.more.notify_one();
    }

    fn take(&self) -> Vec<Disconnect> {
        std::mem::take(&mut *self.of_agents.lock()).into_values().collect()
    }

    /// Puts a disconnect back, unless a later session of the agent has ended since.
    fn put_back(&self, disconnect: Disconnect) {
        self.of_agents
            .lock()
            .entry((disconnect.agent_id.clone(), disconnect.zone.clone()))
            .or_insert(disconnect);
    }
}

impl AgentStatus {
    /// Returns the disconnect of a session of this process that the object calls connected although it is not
    /// connected here: the stream ended during registration, or the answer to a write was lost.
    pub(in crate::hub) fn missed_disconnect(&self, agent: &KubesvcAgent) -> Option<Disconnect> {
        let (context, registry) = (&self.context, &self.sessions.registry);
        let (spec, status) = (&agent.spec, agent.status.as_ref().filter(|status| status.connected)?);
        let session = status.session.as_ref()?;
        let is_ours = session.replica == context.settings.replica_id
            && session.incarnation.as_deref() == Some(context.replicas.incarnation());
        // A connected session writes the object itself, or checks for this at its end.
        let is_left = is_ours && registry.of_agent(&spec.agent_id).is_none();
        let requested = registry.is_reserved(&spec.agent_id, &session.boot_id);
        is_left.then(|| Disconnect {
            agent_id: spec.agent_id.clone(),
            zone: spec.zone_id.clone(),
            session_id: session.id.clone(),
            end: if requested { SessionEnd::Requested } else { SessionEnd::Cut },
        })
    }

    /// Queues the missed disconnect of an object, if there is one.
    pub(in crate::hub) fn queue_missed_disconnect(&self, agent: &KubesvcAgent) {
        if let Some(left) = self.missed_disconnect(agent) {
            self.pending_disconnects.put(left);
        }
    }
}

/// Writes a disconnect, and queues it for a retry on failure.
pub(in crate::hub) async fn record(status: &AgentStatus, disconnect: Disconnect) {
    if let Err(problem) = try_record(status, &disconnect).await {
        warn_unless_away!(
            agentId = disconnect.agent_id,
            error = problem,
            "cannot mark the agent as disconnected; tried again"
        );
        status.pending_disconnects.put(disconnect);
    }
}

async fn try_record(status: &AgentStatus, disconnect: &Disconnect) -> Result<(), String> {
    let told = status.agents.write_disconnected(disconnect.session(), disconnect.end);
    told.await.map_err(|problem| problem.to_string())
}

/// Writes queued disconnects until stopped.
pub(in crate::hub) async fn run(status: Arc<AgentStatus>, stop: CancellationToken) {
    let mut again = RETRY_DELAY;
    loop {
        let more = async {
            status.pending_disconnects.more.notified().await;
            tokio::time::sleep(again).await;
        };
        if stop.run_until_cancelled(more).await.is_none() {
            return;
        }
        match stop.run_until_cancelled(record_all(&status)).await {
            None => return,
            Some(true) => again = RETRY_DELAY,
            Some(false) => {
                again = (again * 2).min(MAX_RETRY_DELAY);
                status.pending_disconnects.more.notify_one();
            }
        }
    }
}

/// Writes all queued disconnects, a bounded number at once, so that a write that hangs does not block the others.
/// Returns false if some failed; those are queued again.
async fn record_all(status: &AgentStatus) -> bool {
    let mut waiting = status.pending_disconnects.take().into_iter();
    let mut under_way = FuturesUnordered::new();
    let mut failures = 0;
    loop {
        while under_way.len() < MAX_CONCURRENT_WRITES
            && failures < MAX_CONCURRENT_WRITES
            && let Some(disconnect) = waiting.next()
        {
            under_way.push(async move {
                let told = try_record(status, &disconnect).await;
                (disconnect, told)
            });
        }
        let Some((disconnect, told)) = under_way.next().await else { break };
        if told.is_err() {
            failures += 1;
            status.pending_disconnects.put_back(disconnect);
        }
    }
    waiting.for_each(|disconnect| status.pending_disconnects.put_back(disconnect));
    failures == 0
}
