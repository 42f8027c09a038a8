//! What was written, for `/metrics`.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Projection;

/// Counts of what was written, for `/metrics`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Transactions that were committed.
    pub commits: Counter,
    /// Rows that were inserted, updated or deleted.
    pub rows: Counter,
    /// Rows that the database refused.
    pub refused: Counter,
    /// Accounts whose row waits to be written.
    pub pending: Gauge,
    /// Writes that came too late: another replica leads by now.
    pub late: Counter,
}

impl Projection {
    /// Puts the counters into a registry.
    pub fn register(&self, registry: &mut Registry) {
        let Counters { commits, rows, refused, pending, late } = &self.counters;
        registry.register("kubesvc_store_commits", "Transactions committed", commits.clone());
        registry.register("kubesvc_store_rows_written", "Account rows written or deleted", rows.clone());
        registry.register("kubesvc_store_rows_refused", "Account rows the database refused", refused.clone());
        registry.register(
            "kubesvc_store_late_writes",
            "Writes refused because another replica leads",
            late.clone(),
        );
        registry.register("kubesvc_store_pending", "Account rows that wait to be written", pending.clone());
    }
}
