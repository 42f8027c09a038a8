//! The lists of namespaces that agents saw: too long for an object, so the row alone has them.

use std::time::Duration;

use backon::{BackoffBuilder as _, ConstantBuilder};
use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::leader::Controller;
use crate::telemetry::errors::chain;

/// How many lists are written beside one another; the database commits many at once faster than one by one.
const BESIDE: usize = 8;
/// How often a list is tried again while the row is not there yet, or the database is not.
const TRIES_AGAIN: usize = 4;
/// How long to wait between tries.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes the list of each account that became ACTIVE. What is missed by a crash is written at the next activation.
pub(super) async fn keep(controller: &Controller, stop: &CancellationToken) {
    while let Some(uids) = stop.run_until_cancelled(controller.namespaces.take(BESIDE)).await {
        let writes = join_all(uids.iter().map(|uid| write(controller, uid)));
        if stop.run_until_cancelled(writes).await.is_none() {
            return;
        }
    }
}

async fn write(controller: &Controller, uid: &str) {
    let Some(namespaces) = controller.context.fleet.namespaces(uid) else { return };
    let mut pauses = ConstantBuilder::default().with_delay(PAUSE).with_max_times(TRIES_AGAIN).build();
    loop {
        match controller.context.store.put_namespaces(uid, &namespaces).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => debug!(uid, error = %chain(&error), "namespaces were not written"),
        }
        let Some(pause) = pauses.next() else { return };
        tokio::time::sleep(pause).await;
    }
}
