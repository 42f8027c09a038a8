//! Settlement of operations that no process runs any more, by the leader for all replicas, and the purge of the
//! history. What the former process of a replica left open, the replica settles itself, since to all others it is
//! alive.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Operations;
use super::audit_lines::Settlement;
use super::records::{Recalled, settled_for_another};
use super::runner::now_ms;
use crate::connected_agents::{AnsweringAgent, RequestError, RequestErrorKind as Kind};
use kubesvc_core::lifecycle::Fact;
use kubesvc_core::{AgentId, BootId, ReplicaId};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskRegistry, TaskSpec};
use kubesvc_runtime::crash_points;
use kubesvc_store::account_projection::Projection;
use kubesvc_store::{OpenOperation, Overdue, StoreError};

/// Time after its deadline at which an operation is settled for its replica.
const OVERDUE_AFTER: Duration = Duration::from_secs(5);
/// Interval between two looks for such operations.
const SETTLE_INTERVAL: Duration = Duration::from_secs(2);
/// Time between the start of a replica and the settling of what its former process left open: agents that it had come back,
/// here or elsewhere, and can be asked for answers.
const RETURN_TIME: Duration = Duration::from_secs(15);
/// Maximum number of operations that are settled at once.
const MAX_SETTLED: usize = 128;
/// Maximum number of overdue operations that are read to choose those from.
const MAX_READ: u32 = 2_048;
/// Maximum number of concurrent recalls.
const MAX_CONCURRENT_RECALLS: usize = 16;
/// Time limit for one recall; one that was not answered is tried again until [`MAX_RECALL_AGE`].
const RECALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after its deadline at which an operation whose agent is away becomes unknown.
const MAX_RECALL_AGE: Duration = Duration::from_secs(60);
/// Interval between looks whether the history has too many rows.
const TRIM_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum number of rows purged in one transaction.
const PURGE_CHUNK: u32 = 1_000;
/// Pause between two of these.
const PURGE_PAUSE: Duration = Duration::from_millis(100);

/// What the leader does for the operations of all replicas.
pub struct OperationUpkeep {
    /// The operations of this replica.
    pub operations: Arc<Operations>,
    /// Has the term.
    pub projection: Arc<Projection>,
    /// The tasks that run.
    pub tasks: TaskRegistry,
}

impl OperationUpkeep {
    /// Works until `stop`. A caller that loses the lead drops the call.
    pub async fn run(&self, stop: &CancellationToken) {
        let settle = TaskSpec::new("open operations", "Settles operations of replicas that are gone");
        let settle = settle.every(SETTLE_INTERVAL).at_start();
        let settle = settle.log_failure(|error| warn!(error, "cannot settle open operations; retrying"));
        let settling = self.tasks.drive(settle, stop, |_: Vec<()>| async {
            outcome(self.operations.settle_overdue(Some(&self.projection)).await)
        });
        let trim = TaskSpec::new("history of operations", "Deletes the oldest rows beyond the maximum");
        let trim = trim.every(TRIM_INTERVAL).at_start().without_deadline();
        let trim = trim.log_failure(|error| warn!(error, "cannot trim the history of operations; retrying"));
        let trimming = self.tasks.drive(trim, stop, |_: Vec<()>| async {
            outcome(self.purge(PurgeLimit::Beyond(self.operations.settings.max_rows)).await)
        });
        tokio::join!(settling, trimming, stop.run_until_cancelled(self.purge_in_time()));
    }

    /// Purges the history whenever it is time.
    async fn purge_in_time(&self) {
        loop {
            let now = Timestamp::now();
            let Some(next) = self.operations.settings.purge.next_after(now) else { return };
            sleep(Duration::try_from(next.duration_since(now)).unwrap_or_default()).await;
            let kept = i64::try_from(self.operations.settings.kept_for.as_millis()).unwrap_or(i64::MAX);
            let older_than = next.as_millisecond().saturating_sub(kept);
            match self.purge(PurgeLimit::OlderThan(older_than)).await {
                Ok(0) => {}
                Ok(rows) => info!(rows, "purged the history of operations"),
                Err(error) => warn!(error = error.in_full(), "cannot purge the history of operations"),
            }
        }
    }

    /// Deletes rows in chunks. Returns how many.
    async fn purge(&self, what: PurgeLimit) -> Result<u64, StoreError> {
        let (store, mut all) = (&self.operations.store, 0);
        loop {
            let chunk = self.projection.under_term(|term| async move {
                let purging = async {
                    match what {
                        PurgeLimit::OlderThan(time_ms) => {
                            store.purge_operations(term, time_ms, PURGE_CHUNK).await
                        }
                        PurgeLimit::Beyond(rows) => store.trim_operations(term, rows, PURGE_CHUNK).await,
                    }
                };
                crash_points::around(Some("operation-purge"), purging).await
            });
            let rows = chunk.await?;
            self.operations.metrics.purged.inc_by(rows);
            all += rows;
            if rows < u64::from(PURGE_CHUNK) {
                return Ok(all);
            }
            sleep(PURGE_PAUSE).await;
        }
    }
}

/// Which rows of the history go.
#[derive(Clone, Copy, Debug)]
enum PurgeLimit {
    /// Those that began before this time, in epoch milliseconds.
    OlderThan(i64),
    /// The oldest beyond this number.
    Beyond(u64),
}

fn outcome<T>(done: Result<T, StoreError>) -> AttemptOutcome {
    match done {
        Ok(_) => AttemptOutcome::Done,
        Err(error) => AttemptOutcome::failed(error.in_full()),
    }
}

impl Operations {
    /// Starts a task that settles what the former process of this replica left open, until nothing of it is.
    pub fn settle_former_process(self: &Arc<Self>, background: &BackgroundTasks) {
        let accounts = Arc::clone(&self.accounts);
        let returned = async move {
            accounts.synced().await;
            sleep(RETURN_TIME).await;
        };
        let what = "Settles what this replica left open when it was started again";
        let task = TaskSpec::new("operations of the former process", what).once_after(returned);
        let task = task.log_failure(|error| warn!(error, "cannot settle what was left open; retrying"));
        let operations = Arc::clone(self);
        background.start(task, move |_: Vec<()>| {
            let operations = Arc::clone(&operations);
            async move {
                let former = Overdue::OfFormerProcess {
                    replica_id: operations.settings.replica_id.clone(),
                    began_before_ms: operations.began_ms,
                };
                match operations.settle_each(&former, None).await {
                    Ok(0) => AttemptOutcome::Done,
                    Ok(_) => AttemptOutcome::Again(Vec::new(), SETTLE_INTERVAL),
                    Err(error) => AttemptOutcome::failed(error.in_full()),
                }
            }
        });
    }

    /// Settles operations that are late, or whose replica is dead. Returns how many are left.
    pub(super) async fn settle_overdue(&self, leader: Option<&Projection>) -> Result<usize, StoreError> {
        let left = Overdue::Left {
            deadline_before_ms: before(now_ms(), OVERDUE_AFTER),
            live_replicas: self.live_replicas(),
        };
        self.settle_each(&left, leader).await
    }

    /// Settles some of these operations. The first one who ends an operation decides, so that another replica may do
    /// this too. Returns how many are left.
    async fn settle_each(&self, overdue: &Overdue, leader: Option<&Projection>) -> Result<usize, StoreError> {
        let _alone = self.settling.lock().await;
        let now_ms = now_ms();
        let mut open = self.store.overdue_operations(overdue, MAX_READ).await?;
        open.retain(|open| {
            // It is ended here, later than it should be.
            let id = &open.record.operation_id;
            !self.known.get(id).is_some_and(|known| known.is_running()) && !self.rows.is_unended(id)
        });
        let found = open.len();
        let settled = in_turn(open).into_iter().map(|open| async move {
            let recalled = self.recalled(&open, now_ms).await?;
            let settlement = Settlement::of(&open, &recalled);
            Some((settled_for_another(&open, &recalled, now_ms), settlement))
        });
        let settled: Vec<_> = stream::iter(settled.collect::<Vec<_>>())
            .buffer_unordered(MAX_CONCURRENT_RECALLS)
            .filter_map(std::future::ready)
            .collect()
            .await;
        if settled.is_empty() {
            return Ok(found);
        }
        let (records, settlements): (Vec<_>, Vec<_>) = settled.into_iter().unzip();
        let ends = records.as_slice();
        let end = |term| async move {
            let ending = self.store.end_open_operations(term, ends);
            crash_points::around(Some("operation-settle"), ending).await
        };
        let ended = match leader {
            Some(projection) => projection.under_term(end).await?,
            None => end(None).await?,
        };
        self.metrics.settled.inc_by(u64::try_from(ended.len()).unwrap_or(u64::MAX));
        // The others were ended by somebody else meanwhile, who has written their lines.
        for (record, settlement) in records.iter().zip(settlements) {
            let id = &record.operation_id;
            if ended.contains(id) {
                info!(operationId = id, "settled an operation that its replica left open");
                self.settled(record, settlement);
            }
        }
        Ok(found.saturating_sub(ended.len()))
    }

    /// The replicas that settle their own operations; empty: that is not known.
    fn live_replicas(&self) -> Vec<ReplicaId> {
        let own = &self.settings.replica_id;
        // Before the Leases were listed nobody is called dead.
        if self.replicas.is_alive(&ReplicaId::from("")) == Fact::Unknown {
            return Vec::new();
        }
        let mut live = self.replicas.others();
        live.push(own.clone());
        live
    }

    /// What the cluster answered the last write of an operation. `None`: its agent may still come back.
    async fn recalled(&self, open: &OpenOperation, now_ms: i64) -> Option<Recalled> {
        let (Some(request_id), Some(uid)) = (&open.last_write, &open.record.account_uid) else {
            return Some(Recalled::Lost);
        };
        // Its replica may have died before it wrote which agent it asked.
        let process = open.record.sent.as_ref().zip(open.agent_boot_id.as_ref());
        let process = process.map(|(agent, boot_id)| AnsweringAgent {
            agent_id: AgentId::from(agent.id.as_str()),
            boot_id: BootId::from(boot_id.as_str()),
        });
        let recalling = self.requests.recall(uid, request_id, process);
        match timeout(RECALL_TIMEOUT, recalling).await {
            Ok(Ok(response)) => {
                Some(Recalled::Answered { status: response.status.as_u16(), agent: response.agent })
            }
            Ok(Err(error)) if is_final(&error) => Some(Recalled::Lost),
            _ if open.deadline_ms < before(now_ms, MAX_RECALL_AGE) => Some(Recalled::Lost),
            _ => None,
        }
    }
}

/// The operations that are settled next: of each account in turn, its oldest first. Those of an account whose agent is
/// away keep no other account's waiting.
fn in_turn(open: Vec<OpenOperation>) -> Vec<OpenOperation> {
    let mut turns = HashMap::<String, usize>::new();
    let turn = |one: OpenOperation| {
        let turn = turns.entry(one.record.account.clone()).or_default();
        *turn += 1;
        (*turn, one)
    };
    let mut open: Vec<_> = open.into_iter().map(turn).collect();
    open.sort_by_key(|(turn, _)| *turn);
    open.into_iter().take(MAX_SETTLED).map(|(_, one)| one).collect()
}

/// Whether a recall that failed is not to be repeated.
fn is_final(error: &RequestError) -> bool {
    !matches!(error.kind, Kind::NoAnswer | Kind::Timeout | Kind::NoAgent | Kind::ReplicaAway | Kind::TooMany)
}

fn before(now_ms: i64, time: Duration) -> i64 {
    now_ms.saturating_sub(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::records::open;
    use crate::operations::tests::fakes::received;

    #[test]
    fn operations_of_a_flooded_account_are_settled_in_turn_with_those_of_others() {
        let of = |account: &str, number: usize| {
            open(received(&format!("{account}-{number}"), "Scale", account, 0), 1, true)
        };
        let flood = (0..500).map(|number| of("flood", number));
        let settled = in_turn(flood.chain([of("a", 0), of("b", 0), of("b", 1)]).collect());
        let ids: Vec<_> = settled.iter().map(|one| one.record.operation_id.as_str()).collect();
        assert_eq!(ids[..6], ["flood-0", "a-0", "b-0", "flood-1", "b-1", "flood-2"]);
        assert_eq!(ids.len(), MAX_SETTLED);
    }
}
