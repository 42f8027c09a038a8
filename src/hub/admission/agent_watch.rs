//! What the objects of agents show: approvals that people give and take, and which stream of an agent is in force.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Admission;
use crate::account::KubesvcAgent;

/// Maximum number of changed objects taken in at once.
const MAX_CHANGES_PER_PASS: usize = 1000;

/// Takes in what changes until stopped.
pub(in crate::hub) async fn run(admission: Arc<Admission>, stop: CancellationToken) {
    let agents = &admission.context.agent_index;
    let changed = agents.follow();
    while let Some(names) = stop.run_until_cancelled(changed.take(MAX_CHANGES_PER_PASS)).await {
        for agent in names.iter().filter_map(|name| agents.get(name)) {
            heed(&admission, &agent);
        }
    }
}

fn heed(admission: &Admission, agent: &KubesvcAgent) {
    let Admission { context, sessions, agent_status, .. } = admission;
    let (spec, status) = (&agent.spec, agent.status.as_ref());
    let in_force = status.and_then(|status| status.session.as_ref());
    let is_elsewhere = in_force.is_some_and(|session| session.replica != context.settings.replica_id);
    if is_elsewhere && status.is_some_and(|status| status.connected) {
        admission.forget(&spec.agent_id);
    }
    agent_status.queue_missed_disconnect(agent);
    let session =
        sessions.registry.of_agent(&spec.agent_id).filter(|session| session.agent.zone == spec.zone_id);
    let Some(session) = session else { return };
    if sessions.yields_to_owner(&session, agent) {
        return;
    }
    if spec.approved && status.is_some_and(|status| !status.approved_once) {
        // It counts once it is written down.
        if let Some(name) = &agent.metadata.name {
            agent_status.approvals.wake(name.clone());
        }
        return;
    }
    // One that is still registering is told as well; it looks at its accounts when it stands.
    if session.approve(spec.approved) && sessions.registry.is_connected(&session) {
        info!(agentId = session.agent.id, approved = spec.approved, "approval of the agent changed");
        sessions.stood(&session, true);
    }
}
