//! The workers: many accounts beside one another.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::CONCURRENCY;
use super::leader::Controller;

/// Works until stopped, then waits for what is under way. When the lead is over, nothing is waited for.
pub(super) async fn run(controller: Arc<Controller>, stop: CancellationToken, over: CancellationToken) {
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    let workers = TaskTracker::new();
    loop {
        let Some(Ok(permit)) = stop.run_until_cancelled(Arc::clone(&permits).acquire_owned()).await else {
            break;
        };
        let Some(mut keys) = stop.run_until_cancelled(controller.schedule.wakes.take(1)).await else { break };
        let Some(key) = keys.pop().filter(|key| controller.schedule.begin(key)) else { continue };
        let controller = Arc::clone(&controller);
        workers.spawn(over.clone().run_until_cancelled_owned(async move {
            controller.reconcile(&key).await;
            controller.schedule.end(&key);
            drop(permit);
        }));
    }
    workers.close();
    workers.wait().await;
}
