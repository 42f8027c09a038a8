//! The workers, which reconcile many accounts concurrently.

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

/// Time limit for work in progress when the operator stops: long enough for one action, and short enough to write the
/// last rows and release the Lease in time.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay, in ticks, before an account whose reconciliation panicked is reconciled again.
const PANIC_RETRY_TICKS: Tick = 30;

/// Reconciles until stopped, then waits for actions in progress for at most [`FINISH_TIMEOUT`]; the next leader
/// repeats what is not done by then. When leadership is lost (`over`), waits for nothing.
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
            "some accounts were not reconciled in time; the next leader reconciles them"
        );
        too_late.cancel();
        workers.wait().await;
    }
}

/// A reconciliation in progress. When dropped, even by a panic, the account can be reconciled again.
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
