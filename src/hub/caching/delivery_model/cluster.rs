//! The cluster, and the reader of a scope.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use kubesvc_agent::caching::{AccountDelivery, QueueMemory, ReaderCommand, ReaderId};
use kubesvc_core::wire::events::{Event, Synced};

use super::{delete, upsert};

/// Names of the objects.
pub(super) const NAMES: [&str; 2] = ["a", "b"];

/// The objects of one scope, and every change.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    pub(super) objects: BTreeMap<&'static str, u64>,
    /// Version, name, and whether the object is there after it.
    pub(super) log: Vec<(u64, &'static str, bool)>,
    pub(super) version: u64,
    /// A watch that begins before it is refused.
    pub(super) compacted: u64,
}

impl Cluster {
    pub(super) fn change(&mut self, name: &'static str, is_there: bool) {
        self.version += 1;
        if is_there {
            self.objects.insert(name, self.version);
        } else {
            self.objects.remove(name);
        }
        self.log.push((self.version, name, is_there));
    }

    fn next_after(&self, version: u64) -> Option<(u64, &'static str, bool)> {
        self.log.iter().find(|(at, ..)| *at > version).copied()
    }

    /// Version of the newest change of an object.
    pub(super) fn newest(&self, name: &str) -> Option<u64> {
        self.log.iter().rev().find(|(_, of, _)| *of == name).map(|(at, ..)| *at)
    }
}

#[derive(Clone, Debug)]
enum Reading {
    Watch(u64),
    MustList,
    AwaitsBasis(String),
    Listing { key: String, version: u64, events: VecDeque<Event> },
}

/// A reader of the scope. A former one may go on for a while.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) id: ReaderId,
    reading: Reading,
}

impl Reader {
    pub(super) fn of(command: &ReaderCommand) -> Option<Self> {
        match command {
            ReaderCommand::Watch { reader, resource_version, .. } => {
                let version = resource_version.parse().expect("a version");
                Some(Self { id: *reader, reading: Reading::Watch(version) })
            }
            ReaderCommand::List { reader, .. } => Some(Self { id: *reader, reading: Reading::MustList }),
            _ => None,
        }
    }

    /// Whether it can do something.
    pub(super) fn is_ready(&self, cluster: &Cluster) -> bool {
        match &self.reading {
            Reading::Watch(at) => cluster.next_after(*at).is_some(),
            Reading::MustList | Reading::Listing { .. } => true,
            Reading::AwaitsBasis(_) => false,
        }
    }

    /// Reads one change, or one object of a list. `keys` counts lists.
    pub(super) fn step(
        &mut self,
        cluster: &Cluster,
        keys: &mut u64,
        delivery: &mut AccountDelivery,
        memory: &mut QueueMemory,
        now: Instant,
    ) {
        match &mut self.reading {
            Reading::Watch(at) if *at < cluster.compacted => self.reading = Reading::MustList,
            Reading::Watch(at) => {
                if let Some((version, name, is_there)) = cluster.next_after(*at) {
                    let event = if is_there { upsert(name, version) } else { delete(name, version) };
                    delivery.event(self.id, event, now, memory).expect("there is room");
                    *at = version;
                }
            }
            Reading::MustList => {
                *keys += 1;
                let key = format!("key-{keys}");
                delivery.sync_start(self.id, key.clone(), memory);
                self.reading = Reading::AwaitsBasis(key);
            }
            Reading::AwaitsBasis(_) => {}
            Reading::Listing { key, version, events } => match events.pop_front() {
                Some(event) => delivery.event(self.id, event, now, memory).expect("there is room"),
                None => {
                    let (sync_key, rv) = (key.clone(), version.to_string());
                    delivery.synced(self.id, Synced { sync_key, rv, ..Synced::default() }, memory);
                    self.reading = Reading::Watch(*version);
                }
            },
        }
    }

    /// Takes the basis of its list, and lists.
    pub(super) fn list(&mut self, sync_key: &str, rows: &BTreeMap<String, u64>, cluster: &Cluster) {
        if !matches!(&self.reading, Reading::AwaitsBasis(key) if key == sync_key) {
            return;
        }
        let version = cluster.version;
        let changed = cluster.objects.iter().filter(|(name, at)| rows.get(**name) != Some(at));
        let mut events: VecDeque<Event> = changed.map(|(name, at)| upsert(name, *at)).collect();
        let there: BTreeSet<&str> = cluster.objects.keys().copied().collect();
        let gone = rows.keys().filter(|name| !there.contains(name.as_str()));
        events.extend(gone.map(|name| delete(name, version)));
        self.reading = Reading::Listing { key: sync_key.to_owned(), version, events };
    }

    /// The version that a bookmark would say.
    pub(super) fn bookmark(&self, cluster: &Cluster) -> Option<u64> {
        match self.reading {
            Reading::Watch(at) if cluster.next_after(at).is_none() && at >= cluster.compacted => {
                (cluster.version > at).then_some(cluster.version)
            }
            _ => None,
        }
    }

    /// Goes on after a bookmark.
    pub(super) fn skip_to(&mut self, version: u64) {
        self.reading = Reading::Watch(version);
    }
}
