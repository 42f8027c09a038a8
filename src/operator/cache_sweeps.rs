//! The leader's sweeps: objects of scopes that no account watches any more, and old Kubernetes events. They begin and
//! end with the lead, and each transaction is under its term. [`plan`] decides what is swept next.

mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::informers::AccountIndex;
use kubesvc_core::{KubesvcAccount, State};
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskRegistry, TaskSpec};
use kubesvc_runtime::crash_points;
use kubesvc_store::account_projection::Projection;
use kubesvc_store::{CacheStore, StoreError, Swept};
use plan::{SweepPlan, SweepStep};

/// Interval between two passes.
const INTERVAL: Duration = Duration::from_secs(10);
/// Delay before the pass after one that left something.
const CUT_OFF_DELAY: Duration = Duration::from_millis(100);
/// Maximum number of inactive accounts asked about in one query.
const MAX_ACCOUNTS_ASKED: usize = 256;
/// Maximum number of scopes read in one pass.
const MAX_SCOPES: u32 = 256;
/// Maximum pause after a transaction. Usually it lasts as long as the transaction took, which leaves the database half
/// of its time.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// What sweeps work with.
pub(super) struct CacheSweeps {
    pub(super) store: Arc<dyn CacheStore>,
    /// Has the term.
    pub(super) projection: Arc<Projection>,
    pub(super) accounts: Arc<AccountIndex>,
    /// Number of rows deleted.
    pub(super) swept_rows: Counter,
    pub(super) tasks: TaskRegistry,
    /// How long Kubernetes events are kept after they were last written.
    pub(super) event_lifetime: Duration,
}

impl CacheSweeps {
    /// Sweeps until `stop`. A caller that loses the lead drops the call: the transaction in progress is rolled back.
    pub(super) async fn run(&self, stop: &CancellationToken) {
        // Before, every account would seem to be gone.
        if stop.run_until_cancelled(self.accounts.synced()).await.is_none() {
            return;
        }
        let plan = Mutex::new(SweepPlan::default());
        let task =
            TaskSpec::new("sweep of cached objects", "Deletes objects that no account watches any more");
        // Each statement has a time limit.
        let task = task.every(INTERVAL).at_start().without_deadline();
        let task = task.log_failure(|error| warn!(error, "cannot sweep cached objects; retrying"));
        let pass = |_: Vec<()>| async { self.pass(&mut *plan.lock().await).await };
        self.tasks.drive(task, stop, pass).await;
    }

    async fn pass(&self, plan: &mut SweepPlan) -> AttemptOutcome {
        match self.try_pass(plan).await {
            Ok(()) if plan.is_cut_off() => AttemptOutcome::Again(Vec::new(), CUT_OFF_DELAY),
            Ok(()) => AttemptOutcome::Done,
            Err(error) => AttemptOutcome::failed(error.in_full()),
        }
    }

    async fn try_pass(&self, plan: &mut SweepPlan) -> Result<(), StoreError> {
        self.mark_inactive(plan).await?;
        if plan.is_time_for_events() {
            plan.add(self.store.accounts_with_events().await?.into_iter().map(SweepStep::Events));
        }
        let removed = self.store.removed_scopes(MAX_SCOPES).await?;
        plan.add(removed.into_iter().map(SweepStep::Scope));
        while let Some(step) = plan.next() {
            let begun = Instant::now();
            let swept = self.sweep(&step, plan.limit.rows()).await;
            let took = begun.elapsed();
            let swept = self.unless_refused(swept, || format!("{step:?}"));
            if let Some(swept) = swept.inspect_err(|_| plan.limit.halve())? {
                plan.limit.record(took, usize::try_from(swept.rows).unwrap_or(usize::MAX));
                if !swept.finished {
                    plan.again(step);
                }
            }
            pause_after(took).await;
        }
        Ok(())
    }

    /// Marks the scopes of inactive accounts as removed. Most of these accounts have had theirs marked long ago: which
    /// have not is one query for many, so that only they count against the bound of a pass.
    async fn mark_inactive(&self, plan: &mut SweepPlan) -> Result<(), StoreError> {
        let accounts = self.accounts.all();
        let inactive = accounts.iter().filter(|account| is_nobodys(account));
        let inactive = plan.begin(inactive.map(|account| account.uid().to_owned()).collect());
        for uids in inactive.chunks(MAX_ACCOUNTS_ASKED) {
            let to_remove = self.store.accounts_to_remove(uids).await?;
            for uid in uids.iter().filter(|uid| to_remove.contains(uid)) {
                if !plan.marks(uid) {
                    return Ok(());
                }
                let begun = Instant::now();
                let marking = self.projection.under_term(|term| self.store.remove_scopes(term, uid));
                let scopes = crash_points::around(Some("cache-sweep"), marking).await;
                let scopes = self.unless_refused(scopes, || format!("account {uid}"))?.unwrap_or_default();
                debug!(uid, scopes, "an inactive account watches nothing any more");
                pause_after(begun.elapsed()).await;
            }
        }
        Ok(())
    }

    /// Runs one transaction.
    async fn sweep(&self, step: &SweepStep, limit: usize) -> Result<Swept, StoreError> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let swept = match step {
            SweepStep::Scope(scope) => {
                let sweep = |term| self.store.sweep_scope(term, scope, limit);
                crash_points::around(Some("cache-sweep"), self.projection.under_term(sweep)).await?
            }
            SweepStep::Events(account) => {
                let before = oldest_ms(Timestamp::now(), self.event_lifetime);
                let sweep = |term| self.store.sweep_events(term, account, before, limit);
                let sweeping = self.projection.under_term(sweep);
                let rows = crash_points::around(Some("cache-sweep"), sweeping).await?;
                Swept { rows, finished: rows < u64::from(limit) }
            }
        };
        self.swept_rows.inc_by(swept.rows);
        Ok(swept)
    }

    /// Leaves out what the database refuses, so that it does not block the rest.
    fn unless_refused<T>(
        &self,
        answer: Result<T, StoreError>,
        what: impl FnOnce() -> String,
    ) -> Result<Option<T>, StoreError> {
        match answer {
            Err(error @ StoreError::Refused { .. }) => {
                warn!(error = error.in_full(), what = what(), "the database refuses a sweep; retrying later");
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }
}

/// Leaves the database to others after a transaction that took so long.
async fn pause_after(took: Duration) {
    tokio::time::sleep(took.min(MAX_PAUSE)).await;
}

/// Whether an account is inactive, and no agent is elected to stream it although one was.
fn is_nobodys(account: &KubesvcAccount) -> bool {
    let status = account.status_or_default();
    status.state.unwrap_or_default() == State::Inactive
        && status.caching.as_ref().is_some_and(|caching| caching.agent_id.is_none())
}

/// Time before which events are swept, in epoch milliseconds.
fn oldest_ms(now: Timestamp, lifetime: Duration) -> i64 {
    now.as_millisecond().saturating_sub(i64::try_from(lifetime.as_millis()).unwrap_or(i64::MAX))
}
