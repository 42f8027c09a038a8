//! Approvals that people set on agents connected here. Each is recorded in the agent's status before the agent is
//! sent anything, so that a revoke waits for the agent even if this process dies. The session is approved when the
//! watch shows the new status.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::AgentStatus;

/// Maximum number of approvals taken from the wake set at once.
const MAX_APPROVALS_PER_BATCH: usize = 100;
/// Delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Records approvals until stopped.
pub(in crate::hub) async fn run(status: Arc<AgentStatus>, stop: CancellationToken) {
    while let Some(names) = stop.run_until_cancelled(status.approvals.take(MAX_APPROVALS_PER_BATCH)).await {
        for name in names {
            let Some(written) = stop.run_until_cancelled(write(&status, &name)).await else { return };
            let Err(problem) = written else { continue };
            warn!(
                agent = name,
                error = problem,
                "cannot write down that the agent was approved; tried again"
            );
            status.approvals.wake(name);
            if stop.run_until_cancelled(tokio::time::sleep(RETRY_DELAY)).await.is_none() {
                return;
            }
        }
    }
}

/// Records the approval of an agent that is connected here.
async fn write(status: &AgentStatus, name: &str) -> Result<(), String> {
    let Some(agent) = status.context.agent_index.get(name) else { return Ok(()) };
    let session = status.sessions.registry.of_agent(&agent.spec.agent_id);
    let Some(session) = session.filter(|session| session.agent.zone == agent.spec.zone_id) else {
        return Ok(());
    };
    let written = status.agents.write_approved(session.reference());
    written.await.map_err(|problem| problem.to_string())
}
