//! Removes what dead replicas left behind: their rows in `kubesvc_assignments`, and their Leases.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Controller;
use crate::leases::Replicas;
use kubesvc_core::ReplicaId;
use kubesvc_core::lifecycle::Fact;
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskSpec};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_store::{Assignment, AssignmentChanges, StoreError};

/// Maximum interval between scans for dead replicas.
const SCAN_INTERVAL: Duration = Duration::from_secs(60);
/// Delay after a change of replicas, since several often come or go together.
const SETTLE_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of rows in one transaction.
const MAX_ROWS_PER_TRANSACTION: usize = 2048;

/// Cleans up at the start, whenever replicas come or go, and once a minute.
pub(super) async fn run(controller: &Controller, stop: &CancellationToken) {
    let context = &controller.context;
    let task = TaskSpec::new("replicas that are gone", "Removes their assignments and Leases");
    // Twice within the age at which a Lease is removed, which tests shorten.
    let interval = SCAN_INTERVAL.min(Replicas::dead_lease_age() / 2);
    let task = task.every(interval).at_start().on_change(context.replicas.changes());
    let task = task.gather(SETTLE_DELAY).without_deadline().logs_itself();
    context.tasks.drive(task, stop, |_: Vec<()>| clear_up(controller)).await;
}

async fn clear_up(controller: &Controller) -> AttemptOutcome {
    let context = &controller.context;
    let removed = remove_rows(controller).await;
    context.replicas.remove_long_gone(&context.leases).await;
    let Err(error) = removed else { return AttemptOutcome::Done };
    warn!(error = %chain(&error), "cannot remove the rows of dead replicas; retrying in a minute");
    AttemptOutcome::Refused(chain(&error))
}

async fn remove_rows(controller: &Controller) -> Result<(), StoreError> {
    let context = &controller.context;
    for replica in context.store.assigned_replicas().await? {
        if context.replicas.is_alive(&replica) != Fact::Known(false) {
            continue;
        }
        let rows = context.store.assignments(&replica).await?;
        info!(replica = replica.as_str(), rows = rows.len(), "removing the rows of a dead replica");
        // Mark the rows unreachable before deleting them, so that readers of the table see it first.
        let reached = rows.iter().filter(|row| row.reachable);
        let marked: Vec<_> = reached.map(|row| Assignment { reachable: false, ..row.clone() }).collect();
        for piece in marked.chunks(MAX_ROWS_PER_TRANSACTION) {
            let changes = AssignmentChanges { puts: piece.to_vec(), ..AssignmentChanges::default() };
            if !write(controller, &replica, changes).await? {
                break;
            }
        }
        if !marked.is_empty() {
            tokio::time::sleep(SETTLE_DELAY).await;
        }
        for piece in rows.chunks(MAX_ROWS_PER_TRANSACTION) {
            let deletes = piece.iter().map(|row| (row.account_name.clone(), row.agent_id.clone())).collect();
            let changes = AssignmentChanges { deletes, ..AssignmentChanges::default() };
            if !write(controller, &replica, changes).await? {
                break;
            }
        }
    }
    Ok(())
}

/// Writes changes to the rows of a dead replica. Returns `false` if the replica is alive after all: while the
/// database was slow, another process may have started under its id.
async fn write(
    controller: &Controller,
    replica: &ReplicaId,
    changes: AssignmentChanges,
) -> Result<bool, StoreError> {
    let context = &controller.context;
    if context.replicas.is_alive(replica) != Fact::Known(false) {
        return Ok(false);
    }
    context.projection.write_assignments(replica, changes).await?;
    Ok(true)
}
