//! How many events were sent, and in how many bytes, by kind.

use std::collections::BTreeMap;

use kubesvc_core::wire::common::Scope;

/// A number of events, and their size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCount {
    /// Events.
    pub events: u64,
    /// Their size as they were sent, in bytes.
    pub bytes: u64,
}

/// The events that were sent, by kind and group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentEvents(BTreeMap<(String, String), EventCount>);

impl SentEvents {
    /// Adds events of a scope.
    pub(super) fn add(&mut self, scope: &Scope, count: EventCount) {
        let sent = self.0.entry((scope.kind.clone(), scope.group.clone())).or_default();
        sent.events += count.events;
        sent.bytes += count.bytes;
    }

    /// Kind, group and number.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, EventCount)> {
        self.0.iter().map(|((kind, group), count)| (kind.as_str(), group.as_str(), *count))
    }

    /// Whether nothing was sent.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
