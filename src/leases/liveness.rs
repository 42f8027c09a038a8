//! Which replicas are alive, judged by changes of their Leases. Pure: time counts only while this process
//! runs and its watch shows Leases, so neither a suspension nor an API server outage makes other replicas
//! dead.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use kubesvc_core::lifecycle::{Fact, Tick};

/// Time, in ticks, for which a backlog still counts after it was last seen. The last registrations may not be
/// visible yet.
const MAX_UNSEEN_TICKS: Tick = 3;
/// Minimum gap, in ticks, that ends a backlog. After a shorter gap the same backlog continues.
const MIN_GAP_TICKS: Tick = 60;

/// A replica's Lease as the watch shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShownLease {
    /// The resourceVersion.
    pub(super) version: String,
    /// Whether the Lease has a holder; false if it was released.
    pub(super) is_held: bool,
    /// Number of registrations of agents that wait at that replica.
    pub(super) backlog: u32,
    /// Incarnation of the process that holds the Lease; empty if the Lease does not name it.
    pub(super) incarnation: String,
}

struct LeaseEntry {
    shown: ShownLease,
    /// Time of the last change.
    since: Duration,
    was_alive: bool,
}

/// The Leases of all replicas, by name.
pub(super) struct LeaseLiveness {
    /// Counted time.
    now: Duration,
    /// Time since the watch last showed something.
    quiet: Duration,
    /// Time without a change after which a Lease has expired.
    duration: Duration,
    /// Maximum silence of the watch during which time counts. Beyond it, the state of other replicas is
    /// unknown.
    longest_quiet: Duration,
    is_synced: bool,
    entries: HashMap<String, LeaseEntry>,
}

impl LeaseLiveness {
    /// `duration` is the validity of a Lease; the watch shows this replica's own Lease at least once in
    /// `renewal`.
    pub(super) fn new(duration: Duration, renewal: Duration) -> Self {
        Self {
            now: Duration::ZERO,
            quiet: Duration::ZERO,
            duration,
            longest_quiet: renewal * 7 / 5,
            is_synced: false,
            entries: HashMap::new(),
        }
    }

    /// Adds time in which this process ran. Returns true if another replica now counts as dead.
    pub(super) fn tick(&mut self, passed: Duration) -> bool {
        self.quiet += passed;
        if self.quiet <= self.longest_quiet {
            self.now += passed;
        }
        let (now, duration) = (self.now, self.duration);
        let mut changed = false;
        for entry in self.entries.values_mut() {
            let is_alive = entry.is_alive(now, duration);
            changed |= entry.was_alive && !is_alive;
            entry.was_alive = is_alive;
        }
        changed
    }

    /// Records a Lease shown by the watch. Returns true if its replica appeared, went away, restarted, or has
    /// no backlog any more.
    pub(super) fn show(&mut self, name: &str, shown: ShownLease) -> bool {
        self.quiet = Duration::ZERO;
        let before = self.entries.get(name);
        if before.is_some_and(|entry| entry.shown == shown) {
            return false;
        }
        let was_alive = before.is_some_and(|entry| entry.is_alive(self.now, self.duration));
        let had_backlog = before.is_some_and(|entry| entry.shown.backlog > 0);
        let is_alive = shown.is_held;
        let is_anew = before.is_some_and(|entry| entry.shown.incarnation != shown.incarnation);
        let changed = was_alive != is_alive || is_anew || (had_backlog && shown.backlog == 0);
        self.entries.insert(name.to_owned(), LeaseEntry { shown, since: self.now, was_alive: is_alive });
        changed
    }

    /// Records a deleted Lease. Returns true if its replica counted as alive.
    pub(super) fn delete(&mut self, name: &str) -> bool {
        self.quiet = Duration::ZERO;
        self.entries.remove(name).is_some_and(|entry| entry.was_alive)
    }

    /// Records the names of a complete list and forgets all other Leases. Changes may have been missed while
    /// the watch showed nothing, so the expiry of each live Lease starts again.
    pub(super) fn listed(&mut self, present: &HashSet<String>) {
        self.quiet = Duration::ZERO;
        self.is_synced = true;
        self.entries.retain(|name, _| present.contains(name));
        let (now, duration) = (self.now, self.duration);
        for entry in self.entries.values_mut().filter(|entry| entry.is_alive(now, duration)) {
            entry.since = now;
        }
    }

    /// Whether the replica with this Lease is alive; unknown until the first list is complete.
    pub(super) fn is_alive(&self, name: &str) -> Fact<bool> {
        if !self.is_synced {
            return Fact::Unknown;
        }
        Fact::Known(self.entries.get(name).is_some_and(|entry| entry.is_alive(self.now, self.duration)))
    }

    /// Incarnation of the process that holds a Lease, if the Lease names it.
    pub(super) fn incarnation(&self, name: &str) -> Option<&str> {
        let shown = &self.entries.get(name)?.shown;
        (!shown.incarnation.is_empty()).then_some(shown.incarnation.as_str())
    }

    /// Sorted names of the Leases of live replicas.
    pub(super) fn alive(&self) -> Vec<String> {
        let alive = self.entries.iter().filter(|(_, entry)| entry.is_alive(self.now, self.duration));
        let mut names: Vec<_> = alive.map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Total number of waiting registrations at live replicas, except at the one with this Lease.
    pub(super) fn backlog(&self, except: &str) -> u64 {
        let alive = self.entries.iter().filter(|(_, entry)| entry.is_alive(self.now, self.duration));
        let others = alive.filter(|(name, _)| *name != except);
        others.map(|(_, entry)| u64::from(entry.shown.backlog)).sum()
    }

    /// Name and resourceVersion of the Leases that have not changed for `time`.
    pub(super) fn unchanged_for(&self, time: Duration) -> Vec<(String, String)> {
        let old = self.entries.iter().filter(|(_, entry)| self.now.saturating_sub(entry.since) >= time);
        old.map(|(name, entry)| (name.clone(), entry.shown.version.clone())).collect()
    }
}

impl LeaseEntry {
    fn is_alive(&self, now: Duration, duration: Duration) -> bool {
        self.shown.is_held && now.saturating_sub(self.since) < duration
    }
}

/// Leases of replicas as complete lists show them. An operator without other replicas keeps no watch of them.
#[derive(Debug, Default)]
pub(super) struct LeftLeases {
    /// By name: the resourceVersion, and the time at which it was seen first.
    since: HashMap<String, (String, Duration)>,
}

impl LeftLeases {
    /// Records a complete list of names and resourceVersions, read at `now`. Returns those that have not changed for
    /// `age`: a replica that lives has renewed its Lease meanwhile.
    pub(super) fn unchanged_for(
        &mut self,
        age: Duration,
        listed: Vec<(String, String)>,
        now: Duration,
    ) -> Vec<(String, String)> {
        let mut before = std::mem::take(&mut self.since);
        for (name, version) in listed {
            let known = before.remove(&name).filter(|(then, _)| *then == version);
            let since = known.map_or(now, |(_, since)| since);
            self.since.insert(name, (version, since));
        }
        let old = self.since.iter().filter(|(_, (_, since))| now.saturating_sub(*since) >= age);
        let mut old: Vec<_> = old.map(|(name, (version, _))| (name.clone(), version.clone())).collect();
        old.sort();
        old
    }
}

/// Start of the current registration backlog.
#[derive(Debug, Default)]
pub(super) struct BacklogAge {
    since: Option<Tick>,
    last: Tick,
}

impl BacklogAge {
    /// Records whether registrations are waiting now. Returns the tick at which the backlog began, or `None`
    /// if there is no backlog.
    pub(super) fn record(&mut self, waits: bool, now: Tick) -> Option<Tick> {
        let quiet = now.saturating_sub(self.last);
        if waits {
            if self.since.is_none() || quiet > MIN_GAP_TICKS {
                self.since = Some(now);
            }
            self.last = now;
            return self.since;
        }
        self.since.filter(|_| quiet <= MAX_UNSEEN_TICKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn shown(version: u32, backlog: u32) -> ShownLease {
        ShownLease { version: version.to_string(), is_held: true, backlog, incarnation: "one".to_owned() }
    }

    /// A table with one replica `b`, shown at the beginning.
    fn liveness() -> LeaseLiveness {
        let mut liveness = LeaseLiveness::new(SECOND * 15, SECOND * 5);
        liveness.show("b", shown(1, 0));
        liveness.listed(&HashSet::from(["b".to_owned()]));
        liveness
    }

    /// Passes seconds in which this replica's own Lease is shown as usual. Returns whether there was a
    /// change.
    fn pass(liveness: &mut LeaseLiveness, seconds: u32) -> bool {
        let mut changed = false;
        for second in 0..seconds {
            changed |= liveness.tick(SECOND);
            liveness.show("a", shown(100 + second, 0));
        }
        changed
    }

    #[test]
    fn nothing_is_known_before_the_first_list_is_complete() {
        let mut liveness = LeaseLiveness::new(SECOND * 15, SECOND * 5);
        liveness.show("b", shown(1, 0));
        assert_eq!(liveness.is_alive("b"), Fact::Unknown);
        liveness.listed(&HashSet::from(["b".to_owned()]));
        assert_eq!(liveness.is_alive("b"), Fact::Known(true));
        assert_eq!(liveness.is_alive("c"), Fact::Known(false));
    }

    #[test]
    fn a_replica_whose_lease_does_not_change_is_dead_and_comes_back_when_it_does() {
        let mut liveness = liveness();
        assert!(!pass(&mut liveness, 14) || liveness.is_alive("b") == Fact::Known(true));
        assert_eq!(liveness.is_alive("b"), Fact::Known(true));
        assert!(pass(&mut liveness, 1), "that is news");
        assert_eq!(liveness.is_alive("b"), Fact::Known(false));
        assert!(liveness.show("b", shown(2, 0)), "so is that it is back");
        assert_eq!(liveness.is_alive("b"), Fact::Known(true));
        assert!(!liveness.show("b", shown(3, 0)), "a renewal is none");
    }

    #[test]
    fn a_new_holder_of_a_lease_is_a_change() {
        let mut liveness = liveness();
        assert_eq!(liveness.incarnation("b"), Some("one"));
        assert!(liveness.show("b", ShownLease { incarnation: "two".to_owned(), ..shown(2, 0) }));
        assert_eq!((liveness.incarnation("b"), liveness.incarnation("c")), (Some("two"), None));
        assert_eq!(liveness.is_alive("b"), Fact::Known(true));
    }

    #[test]
    fn a_released_or_deleted_lease_is_of_a_replica_that_is_gone() {
        let mut liveness = liveness();
        assert!(liveness.show("b", ShownLease { is_held: false, ..shown(2, 0) }));
        assert_eq!(liveness.is_alive("b"), Fact::Known(false));
        liveness.show("b", shown(3, 0));
        assert!(liveness.delete("b"));
        assert_eq!(liveness.is_alive("b"), Fact::Known(false));
    }

    #[test]
    fn no_replica_is_declared_dead_while_the_watch_shows_nothing() {
        let mut liveness = liveness();
        for _ in 0..600 {
            assert!(!liveness.tick(SECOND));
        }
        assert_eq!(liveness.is_alive("b"), Fact::Known(true));
        liveness.listed(&HashSet::from(["b".to_owned()]));
        pass(&mut liveness, 14);
        assert_eq!(liveness.is_alive("b"), Fact::Known(true), "it has had no time to renew");
        pass(&mut liveness, 1);
        assert_eq!(liveness.is_alive("b"), Fact::Known(false));
    }

    #[test]
    fn the_end_of_a_backlog_is_a_change() {
        let mut liveness = liveness();
        assert!(!liveness.show("b", shown(2, 7)));
        assert_eq!((liveness.backlog("a"), liveness.backlog("b")), (7, 0));
        assert!(!liveness.show("b", shown(3, 3)));
        assert!(liveness.show("b", shown(4, 0)));
        liveness.show("b", shown(5, 9));
        pass(&mut liveness, 15);
        assert_eq!(liveness.backlog("a"), 0, "the dead have none");
    }

    #[test]
    fn leases_that_have_not_changed_for_long_are_named() {
        let mut liveness = liveness();
        pass(&mut liveness, 599);
        assert!(liveness.unchanged_for(SECOND * 600).is_empty());
        pass(&mut liveness, 1);
        assert_eq!(liveness.unchanged_for(SECOND * 600), [("b".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn a_lease_that_every_list_shows_unchanged_for_ten_minutes_was_left_by_a_replica_that_is_gone() {
        let mut left = LeftLeases::default();
        let mut at = |second: u32, leases: &[(&str, &str)]| {
            let listed = leases.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned()));
            let old = left.unchanged_for(SECOND * 600, listed.collect(), SECOND * second);
            old.into_iter().map(|(name, version)| format!("{name}@{version}")).collect::<Vec<_>>()
        };
        let nothing: [&str; 0] = [];
        assert_eq!(at(10, &[("left", "1"), ("renewed", "2"), ("again", "3")]), nothing);
        assert_eq!(at(609, &[("left", "1"), ("renewed", "4")]), nothing);
        assert_eq!(at(610, &[("left", "1"), ("renewed", "5"), ("again", "3")]), ["left@1"]);
        assert_eq!(at(1210, &[("renewed", "5"), ("again", "3")]), ["again@3", "renewed@5"]);
    }

    #[test]
    fn a_queue_is_counted_from_its_beginning_and_is_over_some_ticks_after_it_was_seen_last() {
        let mut queue = BacklogAge::default();
        assert_eq!(queue.record(false, 5), None);
        assert_eq!(queue.record(true, 6), Some(6));
        assert_eq!(queue.record(true, 40), Some(6));
        assert_eq!(queue.record(false, 43), Some(6));
        assert_eq!(queue.record(false, 44), None);
    }

    #[test]
    fn short_gap_continues_a_backlog_and_a_longer_one_ends_it() {
        let mut queue = BacklogAge::default();
        queue.record(true, 10);
        assert_eq!(queue.record(true, 70), Some(10));
        assert_eq!(queue.record(true, 131), Some(131));
    }
}
