//! The cluster, and the reader of a scope.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use kubesvc_agent::{AccountSender, QueueMemory, ReaderCommand, ReaderId};
use kubesvc_core::wire::events::{Event, Synced};

use super::settings::{Settings, lets_through};
use super::{Rule, Rules, delete, upsert};

/// Names of the objects.
pub(super) const NAMES: [&str; 2] = ["a", "b"];

/// The objects of one scope, and their history.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    pub(super) objects: BTreeMap<&'static str, u64>,
    /// Version, name, and whether the object exists after the change.
    pub(super) log: Vec<(u64, &'static str, bool)>,
    pub(super) version: u64,
    /// Watches that begin before this version are refused.
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

/// A reader of the scope, under the settings at its start. A former one may continue for a while.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) id: ReaderId,
    settings: Settings,
    /// The list also sends objects that are equal in the basis.
    sends_all: bool,
    reading: Reading,
}

impl Reader {
    pub(super) fn of(command: &ReaderCommand, settings: Settings, left_out: Rules) -> Option<Self> {
        let (id, sends_all, reading) = match command {
            ReaderCommand::Watch { reader, resource_version, .. } => {
                (*reader, false, Reading::Watch(resource_version.parse().expect("a version")))
            }
            ReaderCommand::List { reader, all_bodies, .. } => (*reader, *all_bodies, Reading::MustList),
            _ => return None,
        };
        let sends_all = sends_all && left_out != Some(Rule::OtherShapesAreSentWhole);
        Some(Self { id, settings, sends_all, reading })
    }

    /// Whether the reader can take a step.
    pub(super) fn is_ready(&self, cluster: &Cluster) -> bool {
        match &self.reading {
            Reading::Watch(at) => cluster.next_after(*at).is_some(),
            Reading::MustList | Reading::Listing { .. } => true,
            Reading::AwaitsBasis(_) => false,
        }
    }

    /// Reads and returns one change, or one object of a list. `keys` counts lists.
    pub(super) fn step(
        &mut self,
        cluster: &Cluster,
        keys: &mut u64,
        delivery: &mut AccountSender,
        memory: &mut QueueMemory,
        now: Instant,
    ) -> Option<Event> {
        match &mut self.reading {
            Reading::Watch(at) if *at < cluster.compacted => self.reading = Reading::MustList,
            Reading::Watch(at) => {
                let (version, name, is_there) = cluster.next_after(*at)?;
                *at = version;
                if !lets_through(self.settings.filter, name) {
                    delivery.bookmark(self.id, version.to_string());
                    return None;
                }
                let event =
                    if is_there { upsert(name, version, self.settings.shape) } else { delete(name, version) };
                delivery.event(self.id, event.clone(), now, memory).expect("there is room");
                return Some(event);
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
                    self.sends_all = false;
                }
            },
        }
        None
    }

    /// Takes the basis of the list, and lists.
    pub(super) fn list(&mut self, sync_key: &str, rows: &BTreeMap<String, u64>, cluster: &Cluster) {
        if !matches!(&self.reading, Reading::AwaitsBasis(key) if key == sync_key) {
            return;
        }
        let Settings { shape, filter, .. } = self.settings;
        let version = cluster.version;
        let listed = cluster.objects.iter().filter(|(name, _)| lets_through(filter, name));
        let changed = listed.filter(|(name, at)| self.sends_all || rows.get(**name) != Some(at));
        let mut events: VecDeque<Event> = changed.map(|(name, at)| upsert(name, *at, shape)).collect();
        for name in rows.keys() {
            match cluster.objects.get(name.as_str()) {
                Some(_) if lets_through(filter, name) => {}
                // The object may be read again, at this version, under another filter.
                Some(at) => events.push_back(delete(name, *at)),
                None => events.push_back(delete(name, version)),
            }
        }
        self.reading = Reading::Listing { key: sync_key.to_owned(), version, events };
    }

    /// Whether a watch has a change to read.
    pub(super) fn is_refusable(&self, cluster: &Cluster) -> bool {
        matches!(self.reading, Reading::Watch(at) if at >= cluster.compacted && cluster.next_after(at).is_some())
    }

    /// Refuses the next change for lack of room: the watch is closed, and reopened after the last queued version.
    pub(super) fn refuse(&mut self, cluster: &Cluster, delivery: &AccountSender, left_out: Rules) {
        let Reading::Watch(at) = &mut self.reading else { return };
        let queued: Option<u64> =
            delivery.last_read(self.id).map(|version| version.parse().expect("a version"));
        let refused = cluster.next_after(*at).map(|(version, ..)| version);
        *at = match left_out {
            Some(Rule::RefusedChangesAreReadAgain) => refused.unwrap_or(*at),
            _ => queued.unwrap_or(*at),
        };
    }

    /// Continues a watch after a later version.
    pub(super) fn go_on_after(&mut self, version: u64) {
        if let Reading::Watch(at) = &mut self.reading {
            *at = version.max(*at);
        }
    }

    /// Version of the next bookmark.
    pub(super) fn bookmark(&self, cluster: &Cluster) -> Option<u64> {
        match self.reading {
            Reading::Watch(at) if cluster.next_after(at).is_none() && at >= cluster.compacted => {
                (cluster.version > at).then_some(cluster.version)
            }
            _ => None,
        }
    }

    /// Continues after a bookmark.
    pub(super) fn skip_to(&mut self, version: u64) {
        self.reading = Reading::Watch(version);
    }
}
