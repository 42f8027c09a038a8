//! Metrics of the streams of cached objects.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::account_receiver::DeliveryState;

/// Label with the source of a change: list or watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OfLabel {
    of: &'static str,
}

/// Label with the state of accounts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StateLabel {
    state: &'static str,
}

/// States of accounts, with their label values.
pub(crate) const STATES: [(DeliveryState, &str); 3] = [
    (DeliveryState::Waiting, "waiting"),
    (DeliveryState::Listing, "listing"),
    (DeliveryState::Synced, "synced"),
];

/// Metrics of this replica; atomic.
#[derive(Clone, Debug)]
pub(crate) struct CacheMetrics {
    pub(crate) rows_written: Counter,
    pub(crate) rows_deleted: Counter,
    pub(crate) transactions: Counter,
    pub(crate) rewinds: Counter,
    pub(crate) refused_rows: Counter,
    /// Counted by the leader's sweeps.
    pub(crate) swept_rows: Counter,
    pub(crate) transaction_seconds: Histogram,
    lag_seconds: Family<OfLabel, Histogram, fn() -> Histogram>,
    pub(crate) pending_bytes: Gauge,
    pub(crate) lent_bytes: Gauge,
    /// Maximum number of bytes that may be lent.
    pub(crate) pool_bytes: Gauge,
    pub(crate) streams_waiting: Gauge,
    accounts: Family<StateLabel, Gauge>,
}

impl Default for CacheMetrics {
    fn default() -> Self {
        // From 10 ms to about 11 minutes.
        let lag: fn() -> Histogram = || Histogram::new(exponential_buckets(0.01, 2.0, 17));
        Self {
            rows_written: Counter::default(),
            rows_deleted: Counter::default(),
            transactions: Counter::default(),
            rewinds: Counter::default(),
            refused_rows: Counter::default(),
            swept_rows: Counter::default(),
            // From 1 ms to about 33 s.
            transaction_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            lag_seconds: Family::new_with_constructor(lag),
            pending_bytes: Gauge::default(),
            lent_bytes: Gauge::default(),
            pool_bytes: Gauge::default(),
            streams_waiting: Gauge::default(),
            accounts: Family::default(),
        }
    }
}

impl CacheMetrics {
    /// Adds the metrics to a registry, with the prefix `kubesvc_cache`.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_cache");
        registry.register("rows_written", "Rows of objects written", self.rows_written.clone());
        registry.register("rows_deleted", "Rows of objects deleted", self.rows_deleted.clone());
        registry.register("transactions", "Transactions with objects committed", self.transactions.clone());
        registry.register("rewinds", "Batches that did not follow the last one", self.rewinds.clone());
        registry.register(
            "refused_rows",
            "Rows written without their body, or left out, because they cannot be stored",
            self.refused_rows.clone(),
        );
        registry.register(
            "swept_rows",
            "Rows removed with their scope or their age",
            self.swept_rows.clone(),
        );
        let help = "Time that transactions with objects took";
        let histogram = self.transaction_seconds.clone();
        registry.register_with_unit("transaction", help, Unit::Seconds, histogram);
        let help = "Time from the agent's read of a change until its commit";
        registry.register_with_unit("lag", help, Unit::Seconds, self.lag_seconds.clone());
        let help = "Bytes of agents that are not committed yet";
        registry.register_with_unit("pending", help, Unit::Bytes, self.pending_bytes.clone());
        let help = "Bytes lent to agents from kubesvc.cache.pendingBytes";
        registry.register_with_unit("lent", help, Unit::Bytes, self.lent_bytes.clone());
        let help = "Bytes that may be lent: kubesvc.cache.pendingBytes";
        registry.register_with_unit("pool", help, Unit::Bytes, self.pool_bytes.clone());
        registry.register("streams_waiting", "Agents that wait for a loan", self.streams_waiting.clone());
        // Both exist before the first change, for the alerting rules that name them.
        ["list", "watch"].into_iter().for_each(|of| drop(self.lag_seconds.get_or_create(&OfLabel { of })));
        STATES.into_iter().for_each(|(_, state)| drop(self.accounts.get_or_create(&StateLabel { state })));
        registry.register("accounts", "Accounts whose objects agents stream", self.accounts.clone());
    }

    /// Adds to the number of accounts in a state.
    pub(crate) fn add_accounts(&self, state: &'static str, more: i64) {
        self.accounts.get_or_create(&StateLabel { state }).inc_by(more);
    }

    /// Records the lag of a change.
    pub(crate) fn observe_lag(&self, is_listed: bool, seconds: f64) {
        let of = if is_listed { "list" } else { "watch" };
        self.lag_seconds.get_or_create(&OfLabel { of }).observe(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_runtime::telemetry::metrics::Metrics;

    #[test]
    fn metrics_have_their_documented_names() {
        let (mut metrics, cache) = (Metrics::new(), CacheMetrics::default());
        cache.register(&mut metrics.registry);
        cache.observe_lag(true, 0.5);
        cache.observe_lag(false, 0.5);
        let text = metrics.encode();
        for name in ["rows_written", "rows_deleted", "transactions", "rewinds", "refused_rows", "swept_rows"]
        {
            assert!(text.contains(&format!("kubesvc_cache_{name}_total 0")), "{name} in {text}");
        }
        for name in
            ["pending_bytes", "lent_bytes", "pool_bytes", "streams_waiting", "transaction_seconds_count"]
        {
            assert!(text.contains(&format!("kubesvc_cache_{name} 0")), "{name} in {text}");
        }
        for (_, state) in STATES {
            assert!(text.contains(&format!("kubesvc_cache_accounts{{state=\"{state}\"}} 0")), "{text}");
        }
        for of in ["list", "watch"] {
            assert!(text.contains(&format!("kubesvc_cache_lag_seconds_count{{of=\"{of}\"}} 1")), "{text}");
        }
    }
}
