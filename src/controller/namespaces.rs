//! The lists of namespaces that agents saw: too long for an object, so the row alone has them.

use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::leader::Controller;
use crate::telemetry::errors::chain;

/// How often a list is tried again while the row is not there yet, or the database is not.
const TRIES: u32 = 5;
/// How long to wait between tries.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// Writes the list of each account that became ACTIVE, one after the other. What is missed by a crash is written at
/// the next activation.
pub(super) async fn keep(controller: &Controller, stop: &CancellationToken) {
    while let Some(uids) = stop.run_until_cancelled(controller.namespaces.take(1)).await {
        for uid in uids {
            if stop.run_until_cancelled(write(controller, &uid)).await.is_none() {
                return;
            }
        }
    }
}

async fn write(controller: &Controller, uid: &str) {
    let Some(namespaces) = controller.context.fleet.namespaces(uid) else { return };
    for _ in 0..TRIES {
        match controller.context.store.put_namespaces(uid, &namespaces).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => debug!(uid, error = %chain(&error), "namespaces were not written"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
