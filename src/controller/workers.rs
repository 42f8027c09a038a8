//! The workers: many accounts beside one another.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::MAX_CONCURRENT_ACCOUNTS;
use super::leader::Controller;
use crate::account::lifecycle::Tick;
use crate::objects::AccountKey;

/// How long what is under way may take once the operator stops: long enough for an action, and short enough that the
/// last rows are written and the Lease is released in time.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay, in ticks, before an account is reconciled again whose reconciliation panicked.
const PANIC_RETRY_TICKS: Tick = 30;

/// Works until stopped, then waits for the actions under way, for at most 5 s; what is not done by then is a look that was
/// not finished. When the lead is over, nothing is waited for.
pub(super) async fn run(controller: Arc<Controller>, stop: CancellationToken, over: CancellationToken) {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_ACCOUNTS));
    let (workers, too_late) = (TaskTracker::new(), over.child_token());
    loop {
        let Some(Ok(permit)) = stop.run_until_cancelled(Arc::clone(&permits).acquire_owned()).await else {
            break;
        };
        let Some(mut keys) = stop.run_until_cancelled(controller.schedule.wakes.take(1)).await else { break };
        let Some(key) = keys.pop().filter(|key| controller.schedule.begin(key)) else { continue };
        let look = ReconcileGuard { controller: Arc::clone(&controller), key };
        let stop = stop.clone();
        workers.spawn(too_late.clone().run_until_cancelled_owned(async move {
            look.controller.reconcile(&look.key, &stop).await;
            drop(look);
            drop(permit);
        }));
    }
    workers.close();
    if tokio::time::timeout(FINISH_TIMEOUT, workers.wait()).await.is_err() {
        warn!(
            accounts = workers.len(),
            "not all looks at accounts have ended in time; whoever leads next looks again"
        );
        too_late.cancel();
        workers.wait().await;
    }
}

/// A look under way. However it ends, the account can be looked at again.
struct ReconcileGuard {
    controller: Arc<Controller>,
    key: AccountKey,
}

impl Drop for ReconcileGuard {
    fn drop(&mut self) {
        let schedule = &self.controller.schedule;
        if std::thread::panicking() {
            schedule.look_again(&self.key, Some(self.controller.context.ticks.now() + PANIC_RETRY_TICKS));
        }
        schedule.end(&self.key);
    }
}
