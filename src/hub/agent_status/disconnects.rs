//! Disconnects not yet written to their KubesvcAgent. Until one is written, other replicas treat the agent as connected
//! here: they reject a second process with its id, and a revoke waits for its answer. So it is tried until it is written;
//! a replica that dies before is known by its Lease to have none.

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

/// Objects written at once, and failures in one go after which no further write is begun.
const MAX_CONCURRENT_WRITES: usize = 16;
/// First delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay after failed writes.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// A session that has ended.
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

/// Those whose objects could not be written yet: of each agent the last, since an object names only one session.
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

    /// Puts it back, unless a later session of the agent has ended since.
    fn put_back(&self, disconnect: Disconnect) {
        self.of_agents
            .lock()
            .entry((disconnect.agent_id.clone(), disconnect.zone.clone()))
            .or_insert(disconnect);
    }
}

impl AgentStatus {
    /// A session of this process that an agent's object calls connected, and that is not here: its stream ended while it
    /// was being registered, or an answer was lost.
    pub(in crate::hub) fn missed_disconnect(&self, agent: &KubesvcAgent) -> Option<Disconnect> {
        let (context, registry) = (&self.context, &self.sessions.registry);
        let (spec, status) = (&agent.spec, agent.status.as_ref().filter(|status| status.connected)?);
        let session = status.session.as_ref()?;
        let is_ours = session.replica == context.settings.replica_id
            && session.incarnation.as_deref() == Some(context.replicas.incarnation());
        // Where the agent has a stream, that one writes the object, or looks here when it has ended.
        let is_left = is_ours && registry.of_agent(&spec.agent_id).is_none();
        let requested = registry.is_reserved(&spec.agent_id, &session.boot_id);
        is_left.then(|| Disconnect {
            agent_id: spec.agent_id.clone(),
            zone: spec.zone_id.clone(),
            session_id: session.id.clone(),
            end: if requested { SessionEnd::Requested } else { SessionEnd::Cut },
        })
    }

    /// Queues a disconnect that the object does not say, if there is one.
    pub(in crate::hub) fn queue_missed_disconnect(&self, agent: &KubesvcAgent) {
        if let Some(left) = self.missed_disconnect(agent) {
            self.pending_disconnects.put(left);
        }
    }
}

/// Has the object say that the session has ended, now or as soon as it can be written.
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

/// Tells what could not be told, until stopped.
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

/// Writes all of them, a bounded number at once: one write that hangs holds up none of the others. False: some could not be
/// written, and are kept.
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
