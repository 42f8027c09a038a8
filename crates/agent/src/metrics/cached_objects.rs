//! Metrics of cached objects: what is read of clusters, and what is sent to the hub. No label holds the name of an
//! account or an object.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Label, PlainCounter};
use crate::caching::SentEvents;
use crate::scrub::OmissionReason;
use crate::watch::{ListReason, OmittedItem, WatchEnd};
use crate::watch_registry::WatchCounts;

/// Maximum number of kinds, and of groups, that have a value of their own.
const MAX_NAMES: usize = 100;
/// Value of all others.
const OTHER: &str = "other";

/// What is counted when metrics are asked for.
#[derive(Clone, Debug, Default)]
pub struct CachedObjectCounts {
    pub watches: WatchCounts,
    /// Bytes that were read and are not known to be committed.
    pub pending_bytes: usize,
    /// Open connections to clusters.
    pub cluster_connections: usize,
}

/// Counters of cached objects. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct CachedObjectMetrics {
    events: Family<Label<String>, Counter>,
    bytes: Family<Label<String>, Counter>,
    kinds: BoundedNames,
    groups: BoundedNames,
    lists: Family<Label<&'static str>, Counter>,
    watch_ends: Family<Label<&'static str>, Counter>,
    omitted: Family<Label<&'static str>, Counter>,
    unknown_frames: Family<Label<&'static str>, Counter>,
    problems: Family<Label<&'static str>, Gauge>,
    resources: PlainCounter,
    watches: Gauge,
    pending_bytes: Gauge,
    cluster_connections: Gauge,
}

/// The first names that came, so that a cluster with many kinds does not make as many series.
#[derive(Clone, Debug, Default)]
struct BoundedNames(Arc<Mutex<HashSet<String>>>);

impl BoundedNames {
    fn value(&self, name: &str) -> String {
        let mut names = self.0.lock();
        if names.contains(name) {
            return name.to_owned();
        }
        if names.len() >= MAX_NAMES {
            return OTHER.to_owned();
        }
        names.insert(name.to_owned());
        name.to_owned()
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl CachedObjectMetrics {
    pub fn sent(&self, sent: &SentEvents) {
        for (kind, group, count) in sent.iter() {
            self.events.get_or_create(&[("event_kind", self.kinds.value(kind))]).inc_by(count.events);
            self.bytes.get_or_create(&[("event_group", self.groups.value(group))]).inc_by(count.bytes);
        }
    }

    pub fn list_begins(&self, reason: ListReason) {
        self.lists.get_or_create(&[("why", reason.as_str())]).inc();
    }

    pub fn watch_ended(&self, why: WatchEnd) {
        self.watch_ends.get_or_create(&[("why", why.as_str())]).inc();
    }

    /// Counts an object that is sent without its body, or not at all.
    pub fn omitted(&self, what: &OmittedItem) {
        let why = match what {
            OmittedItem::Body(body) => match body.why {
                OmissionReason::TooLarge { .. } => "too_large",
                OmissionReason::Unparsable(_) => "unparsable",
            },
            OmittedItem::Object(_) => "unidentified",
        };
        self.omitted.get_or_create(&[("why", why)]).inc();
    }

    /// Counts a frame of the hub that the agent does not know.
    pub fn unknown_frame(&self, stream: &'static str) {
        self.unknown_frames.get_or_create(&[("stream", stream)]).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        // From 0, so that the first end of a watch is an increase.
        for why in WatchEnd::ALL {
            drop(self.watch_ends.get_or_create(&[("why", why.as_str())]));
        }
        registry.register("events_sent", "Events of cached objects sent to the hub", self.events.clone());
        registry.register("events_bytes_sent", "Size of those events as they were sent", self.bytes.clone());
        registry.register(
            "resource_agent_total",
            "Kinds that are read, one for each account, and for each of its namespaces if it has some",
            self.resources.clone(),
        );
        registry.register("watches", "Watches that are open", self.watches.clone());
        registry.register("lists", "Lists that began, by reason", self.lists.clone());
        registry.register("watch_ends", "Watches that ended, by reason", self.watch_ends.clone());
        registry.register(
            "omitted_objects",
            "Objects that were sent without a body, or could not be identified, by reason",
            self.omitted.clone(),
        );
        registry.register(
            "unknown_frames",
            "Frames of the hub that this version of the agent does not know, by stream",
            self.unknown_frames.clone(),
        );
        registry.register("cache_problems", "Watches with a problem, by its class", self.problems.clone());
        registry.register(
            "cache_pending_bytes",
            "Bytes read of clusters that are not known to be committed",
            self.pending_bytes.clone(),
        );
        registry.register(
            "cluster_connections",
            "Open connections to clusters",
            self.cluster_connections.clone(),
        );
    }

    pub(super) fn take_in(&self, counts: &CachedObjectCounts) {
        let CachedObjectCounts { watches, pending_bytes, cluster_connections } = counts;
        self.resources.0.set(gauge(watches.scopes));
        self.watches.set(gauge(watches.watching));
        self.pending_bytes.set(gauge(*pending_bytes));
        self.cluster_connections.set(gauge(*cluster_connections));
        // A class without a problem has no series.
        self.problems.clear();
        for (class, count) in &watches.problems {
            self.problems.get_or_create(&[("why", *class)]).set(gauge(*count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_beyond_the_bound_are_counted_together() {
        let names = BoundedNames::default();
        let values: HashSet<_> = (0..3 * MAX_NAMES).map(|kind| names.value(&format!("Kind{kind}"))).collect();
        assert_eq!((values.len(), values.contains(OTHER)), (MAX_NAMES + 1, true));
        assert_eq!(names.value("Kind0"), "Kind0");
    }
}
