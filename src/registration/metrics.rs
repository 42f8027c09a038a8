//! Metrics of registering accounts in Clouddriver.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::book::Book;
use kubesvc_clouddriver::registration::RowState;

/// Metrics of registering accounts in Clouddriver. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct RegistrationMetrics {
    calls: Family<[(&'static str, &'static str); 2], Counter>,
    rows: Family<[(&'static str, &'static str); 1], Gauge>,
}

impl RegistrationMetrics {
    /// Registers the metrics under `kubesvc_clouddriver_…`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_clouddriver");
        registry.register("calls", "Calls to Clouddriver's account management", self.calls.clone());
        registry.register(
            "registered_accounts",
            "Accounts registered in Clouddriver, on the leader",
            self.rows.clone(),
        );
    }

    pub(super) fn called(&self, call: &'static str, succeeded: bool) {
        let outcome = if succeeded { "success" } else { "failure" };
        self.calls.get_or_create(&[("call", call), ("outcome", outcome)]).inc();
    }

    pub(super) fn rows(&self, book: &Book) {
        for state in [RowState::Adding, RowState::Added, RowState::Removing] {
            let count = book.rows().filter(|(_, row)| row.state == state).count();
            self.rows.get_or_create(&[("state", state.name())]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
