//! Opens the database at startup, and waits while it is unreachable.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::rest::StartupState;
use crate::store::projection::Projection;
use crate::store::{self, Store, StoreError, VendorTables};
use crate::telemetry::errors::chain;

/// Maximum delay between two attempts, before jitter, which at most doubles it.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Opens the database of this URL, and waits while it is unreachable. Returns `None` if stopped before.
///
/// # Errors
/// One line that says what is wrong with URL, login or schema and what to do; waiting does not help there.
pub(super) async fn open(
    url: &str,
    vendor: VendorTables,
    starting: &StartupState,
    stop: &CancellationToken,
) -> Result<Option<Arc<dyn Store>>, String> {
    let mut waits = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(MAX_RETRY_DELAY)
        .without_max_times()
        .with_jitter()
        .build();
    let mut waited = false;
    loop {
        match stop.run_until_cancelled(store::open(url, vendor)).await {
            None => return Ok(None),
            Some(Ok(store)) => {
                if waited {
                    info!("the database is available");
                }
                return Ok(Some(store));
            }
            Some(Err(error @ StoreError::Unavailable(_))) => {
                waited = true;
                let why = error.in_full();
                if starting.waits_for("database", &why) {
                    warn!(error = why, "the database is unavailable; waiting for it");
                }
            }
            Some(Err(error)) => return Err(chain(&error)),
        }
        let wait = tokio::time::sleep(waits.next().unwrap_or(MAX_RETRY_DELAY));
        if stop.run_until_cancelled(wait).await.is_none() {
            return Ok(None);
        }
    }
}

/// Reads the rows. If the database has become unavailable since it was opened, [`Projection::run`] reads them later.
///
/// # Errors
/// One line that says what is wrong with the tables and what to do.
pub(super) async fn load(projection: &Projection) -> Result<(), String> {
    match projection.load().await {
        Ok(()) | Err(StoreError::Unavailable(_)) => Ok(()),
        Err(error) => Err(chain(&error)),
    }
}
