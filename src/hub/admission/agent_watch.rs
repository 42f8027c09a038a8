//! Changes of KubesvcAgents: approvals set by people, and sessions registered at other replicas.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Admission;
use crate::account::KubesvcAgent;

/// Maximum number of changed objects handled in one pass.
const MAX_CHANGES_PER_PASS: usize = 1000;

/// Handles changes until stopped.
pub(in crate::hub) async fn run(admission: Arc<Admission>, stop: CancellationToken) {
    let agents = &admission.context.agent_index;
    let changed = agents.follow();
    while let Some(names) = stop.run_until_cancelled(changed.take(MAX_CHANGES_PER_PASS)).await {
        for agent in names.iter().filter_map(|name| agents.get(name)) {
            handle(&admission, &agent);
        }
    }
}

fn handle(admission: &Admission, agent: &KubesvcAgent) {
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
        // The approval takes effect once the status records it.
        if let Some(name) = &agent.metadata.name {
            agent_status.approvals.wake(name.clone());
        }
        return;
    }
    // A session that is still registering is updated too; it checks its accounts once it is connected.
    if session.approve(spec.approved) && sessions.registry.is_connected(&session) {
        info!(agentId = session.agent.id, approved = spec.approved, "approval of the agent changed");
        sessions.stood(&session, true);
    }
}
