//! Metrics of migrations.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use kubesvc_core::KubesvcMigrationStatus;

/// Labels of the gauge: the migration, and which of its accounts.
type MigrationLabel = [(&'static str, String); 2];

/// Metrics of migrations. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct MigrationMetrics {
    accounts: Family<MigrationLabel, Gauge>,
    shown: Arc<Mutex<BTreeSet<String>>>,
}

impl MigrationMetrics {
    /// Registers the metrics under `kubesvc_migration_…`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_migration");
        registry.register("accounts", "Accounts of a migration, on the leader", self.accounts.clone());
    }

    /// Shows the counts of a migration.
    pub(super) fn show(&self, migration: &str, status: Option<&KubesvcMigrationStatus>) {
        let Some(status) = status else { return };
        self.shown.lock().insert(migration.to_owned());
        for (of, count) in counts(status) {
            self.accounts.get_or_create(&label(migration, of)).set(i64::from(count));
        }
    }

    /// Forgets the migrations that are not among these.
    pub(super) fn keep<'n>(&self, migrations: impl Iterator<Item = &'n str>) {
        let kept: BTreeSet<&str> = migrations.collect();
        self.shown.lock().retain(|migration| {
            let is_kept = kept.contains(migration.as_str());
            if !is_kept {
                for (of, _) in counts(&KubesvcMigrationStatus::default()) {
                    self.accounts.remove(&label(migration, of));
                }
            }
            is_kept
        });
    }
}

fn counts(status: &KubesvcMigrationStatus) -> [(&'static str, i32); 4] {
    [("total", status.total), ("done", status.done), ("active", status.active), ("failed", status.failed)]
}

fn label(migration: &str, of: &'static str) -> MigrationLabel {
    [("migration", migration.to_owned()), ("of", of.to_owned())]
}
