//! Waiting for a row.

use std::time::{Duration, Instant};

use crate::tables::Tables;

/// Interval between two reads of a row that is waited for.
const POLL: Duration = Duration::from_millis(1);
/// Time limit for a row.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Waits until the row with this id has this version. Returns how long that took from `begun` on.
pub(crate) async fn until_version(
    tables: &mut Tables,
    id: &str,
    version: &str,
    begun: Instant,
) -> Result<Duration, String> {
    loop {
        let stored = tables.version(id).await?;
        if stored.as_deref() == Some(version) {
            return Ok(begun.elapsed());
        }
        if begun.elapsed() > MAX_WAIT {
            return Err(format!("the row {id} is {stored:?} and not {version}"));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Waits until a query returns this number.
pub(crate) async fn until_number(
    tables: &mut Tables,
    sql: &str,
    wanted: i64,
    max_wait: Duration,
) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let number = tables.number(sql).await?;
        if number == wanted {
            return Ok(());
        }
        if begun.elapsed() > max_wait {
            return Err(format!("{sql}: {number}, and not {wanted}"));
        }
        tokio::time::sleep(50 * POLL).await;
    }
}
