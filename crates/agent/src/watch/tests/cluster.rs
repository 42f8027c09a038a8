//! A cluster with one kind, its history, and what it has forgotten of it.

use std::collections::BTreeMap;

use super::*;

/// A change of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) change: WatchEventType,
    pub(super) object: ObjectIdentity,
    pub(super) version: u64,
}

/// A cluster with one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    pub(super) version: u64,
    pub(super) uids: u32,
    pub(super) objects: BTreeMap<String, ObjectIdentity>,
    pub(super) history: Vec<Entry>,
    /// No history up to here.
    pub(super) compacted: u64,
    /// The objects at each version.
    pub(super) states: BTreeMap<u64, BTreeMap<String, ObjectIdentity>>,
    /// Snapshots of lists in pages, by their version.
    pub(super) snapshots: BTreeMap<u64, Vec<ObjectIdentity>>,
}

impl Cluster {
    pub(super) fn put(&mut self, index: u8, is_new: bool) {
        self.version += 1;
        let name = format!("object-{index}");
        let known = self.objects.get(&name).filter(|_| !is_new).map(|object| object.uid.clone());
        let change = if known.is_some() { WatchEventType::Modified } else { WatchEventType::Added };
        self.uids += 1;
        let uid = known.unwrap_or_else(|| format!("uid-{}", self.uids));
        let resource_version = self.version.to_string();
        let object =
            ObjectIdentity { namespace: "shop".to_owned(), name: name.clone(), uid, resource_version };
        self.objects.insert(name, object.clone());
        self.history.push(Entry { change, object, version: self.version });
        self.states.insert(self.version, self.objects.clone());
    }

    pub(super) fn delete(&mut self, index: u8) {
        let Some(mut object) = self.objects.remove(&format!("object-{index}")) else { return };
        self.version += 1;
        object.resource_version = self.version.to_string();
        self.history.push(Entry { change: WatchEventType::Deleted, object, version: self.version });
        self.states.insert(self.version, self.objects.clone());
    }

    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
        self.history.clear();
        self.snapshots.clear();
    }
}
