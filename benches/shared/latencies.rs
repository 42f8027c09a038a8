//! Quantiles of latencies.

use std::time::Duration;

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
