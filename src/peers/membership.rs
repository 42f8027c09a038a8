//! The replicas as last seen, held in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tracing::info;

use super::members::{self, PeerMember, PodNames, Sighting};

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Name of its pod; if no object names a pod, its address and port.
    pub id: String,
    /// Base URL of its REST API: scheme, host and port.
    pub base_url: String,
    /// Whether any object lists it as ready.
    pub ready: bool,
    /// Time of the last change of this entry.
    pub last_updated: Timestamp,
    /// Whether the id is the name of its pod.
    pub(super) named: bool,
}

/// The kind of object that an address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum EndpointSource {
    Endpoints,
    EndpointSlices,
}

/// The addresses in each object, by kind and name of the object.
type SightingsByObject = BTreeMap<(EndpointSource, String), Vec<Sighting>>;

/// All replicas, including this one.
#[derive(Debug, Default)]
pub(super) struct Membership {
    names: Option<PodNames>,
    sightings: Mutex<SightingsByObject>,
    replicas: RwLock<Arc<[Replica]>>,
}

impl Membership {
    /// Creates an empty membership. With `names`, replicas are reached by the DNS names of their pods.
    pub(super) fn new(names: Option<PodNames>) -> Self {
        Self { names, ..Self::default() }
    }

    /// The replicas, by id.
    pub(super) fn replicas(&self) -> Arc<[Replica]> {
        Arc::clone(&self.replicas.read())
    }

    /// Records the addresses in an object; none if it is gone or belongs to another Service.
    pub(super) fn tells(&self, source: EndpointSource, object: String, sightings: Vec<Sighting>) {
        self.change(|told| {
            if sightings.is_empty() {
                told.remove(&(source, object));
            } else {
                told.insert((source, object), sightings);
            }
        });
    }

    /// Records all objects of a kind, and forgets all others of that kind.
    pub(super) fn listed(&self, source: EndpointSource, objects: HashMap<String, Vec<Sighting>>) {
        self.change(|told| {
            told.retain(|(of, _), _| *of != source);
            let those = objects.into_iter().filter(|(_, sightings)| !sightings.is_empty());
            told.extend(those.map(|(object, sightings)| ((source, object), sightings)));
        });
    }

    fn change(&self, change: impl FnOnce(&mut SightingsByObject)) {
        let mut told = self.sightings.lock();
        change(&mut told);
        let members = members::merge(told.values().flatten());
        // Still under the lock of the sightings, so that changes are published in order.
        let before = self.replicas();
        let after: Arc<[Replica]> = members.into_iter().map(|one| self.replica(one, &before)).collect();
        if after != before {
            say(&before, &after);
            *self.replicas.write() = after;
        }
    }

    fn replica(&self, member: PeerMember, before: &[Replica]) -> Replica {
        let base_url = members::base_url(&member.host, member.port, self.names.as_ref());
        let PeerMember { id, named, ready, .. } = member;
        let new = Replica { id, base_url, ready, named, last_updated: Timestamp::now() };
        let same = |one: &&Replica| Replica { last_updated: new.last_updated, ..(*one).clone() } == new;
        before.iter().find(same).cloned().unwrap_or(new)
    }
}

fn say(before: &[Replica], after: &[Replica]) {
    for replica in after {
        match before.iter().find(|one| one.id == replica.id) {
            Some(known) if known == replica => {}
            Some(_) => info!(
                replica = replica.id,
                url = replica.base_url,
                ready = replica.ready,
                "a replica changed"
            ),
            None => info!(
                replica = replica.id,
                url = replica.base_url,
                ready = replica.ready,
                "discovered a replica"
            ),
        }
    }
    for gone in before.iter().filter(|one| after.iter().all(|other| other.id != one.id)) {
        info!(replica = gone.id, url = gone.base_url, "a replica is gone");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pod: &str, ready: bool) -> Vec<Sighting> {
        vec![Sighting { pod: Some(pod.into()), host: "10.0.0.1".into(), port: 7002, ready }]
    }

    fn ids(membership: &Membership) -> Vec<(String, bool)> {
        membership.replicas().iter().map(|one| (one.id.clone(), one.ready)).collect()
    }

    #[test]
    fn a_list_replaces_sightings_of_its_kind_only() {
        let membership = Membership::default();
        membership.tells(EndpointSource::Endpoints, "s".into(), seen("a", true));
        membership.tells(EndpointSource::EndpointSlices, "s-1".into(), seen("b", false));
        assert_eq!(ids(&membership), [("a".into(), true), ("b".into(), false)]);
        membership
            .listed(EndpointSource::EndpointSlices, HashMap::from([("s-2".to_owned(), seen("c", true))]));
        assert_eq!(ids(&membership), [("a".into(), true), ("c".into(), true)]);
        membership.tells(EndpointSource::Endpoints, "s".into(), Vec::new());
        assert_eq!(ids(&membership), [("c".into(), true)]);
        membership.listed(EndpointSource::EndpointSlices, HashMap::new());
        assert_eq!(ids(&membership), []);
    }

    #[test]
    fn a_replica_that_did_not_change_keeps_its_time() {
        let membership = Membership::default();
        membership.tells(EndpointSource::Endpoints, "s".into(), seen("a", true));
        let first = membership.replicas();
        membership.tells(EndpointSource::EndpointSlices, "s-1".into(), seen("a", true));
        assert!(Arc::ptr_eq(&first, &membership.replicas()), "nothing changed");
        membership.tells(EndpointSource::EndpointSlices, "t-1".into(), seen("b", true));
        assert_eq!(membership.replicas()[0], first[0]);
    }
}
