//! How many accounts one action has, and how many are in flight at a time.

use std::collections::BTreeMap;

use kubesvc_core::ZoneId;

use super::observation::{MigrationObservation, Standing};
use super::progress::MigrationProgress;

/// Maximum number of accounts of one action. Settings and observations are looked at again between two actions.
pub(super) const MAX_BATCH: usize = 256;

/// The first accounts, as many as an action may have.
pub(super) fn batch<'n>(names: impl Iterator<Item = &'n str>) -> Vec<String> {
    names.take(MAX_BATCH).map(str::to_owned).collect()
}

/// How many more accounts may be created or activated now.
pub(super) struct Capacity {
    left: usize,
    per_zone: usize,
    zones: BTreeMap<Option<ZoneId>, usize>,
}

impl Capacity {
    /// The capacity beside the accounts that are on their way to ACTIVE, and those that `also` counts. An account that
    /// failed and is tried again by the operator does not count.
    pub(super) fn beside<'n>(
        observation: &MigrationObservation<'n>,
        progress: &MigrationProgress,
        also: impl Iterator<Item = &'n str>,
    ) -> Self {
        let (left, per_zone) = (observation.rules.max_in_flight, observation.rules.max_per_zone);
        let mut capacity = Self { left, per_zone: per_zone.unwrap_or(usize::MAX), zones: BTreeMap::new() };
        for (name, fact) in observation.own() {
            if fact.standing() == Standing::InFlight && !progress.failed.contains(name) {
                capacity.count(fact.zone.as_ref());
            }
        }
        for name in also {
            capacity.count(observation.accounts.get(name).and_then(|fact| fact.zone.as_ref()));
        }
        capacity
    }

    fn count(&mut self, zone: Option<&ZoneId>) {
        self.left = self.left.saturating_sub(1);
        *self.zones.entry(zone.cloned()).or_default() += 1;
    }

    /// Takes a place for an account of a zone, if there is one.
    pub(super) fn take(&mut self, zone: Option<&ZoneId>) -> bool {
        let in_zone = self.zones.get(&zone.cloned()).copied().unwrap_or_default();
        let is_free = self.left > 0 && in_zone < self.per_zone;
        if is_free {
            self.count(zone);
        }
        is_free
    }
}
