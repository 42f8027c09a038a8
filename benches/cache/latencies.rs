//! Quantiles of latencies, and waiting for a row.

use std::time::{Duration, Instant};

use crate::tables::Tables;

/// Interval between two reads of a row that is waited for.
const POLL: Duration = Duration::from_millis(1);
/// Time limit for a row.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Latencies of one side, in milliseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies(Vec<f64>);

impl Latencies {
    pub(crate) fn add(&mut self, took: Duration) {
        self.0.push(took.as_secs_f64() * 1000.0);
    }

    /// The latency that this share of them does not exceed; 0 if there are none.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index of a short list"
        )]
        let at = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
    }
}

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
