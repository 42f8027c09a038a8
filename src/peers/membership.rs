//! Which replicas there are: read from Endpoints and EndpointSlices, merged into one entry for each replica, and held
//! in memory as last seen.

use kubesvc_core::ReplicaId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, ObjectReference};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::{Mutex, RwLock};
use serde::{Serialize, Serializer};
use tracing::info;
use utoipa::ToSchema;

/// Name of the port of calls between replicas in objects that name it, such as those for several replicas on one machine.
const CALLS_PORT_NAME: &str = "replicas";

/// A replica of the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ClouddriverInstance)]
pub struct Replica {
    /// Base URL of the replica's REST API.
    pub base_url: String,
    // If no object names a pod, its address and port.
    /// Name of the replica's pod.
    #[schema(value_type = String)]
    pub id: ReplicaId,
    /// Time when the information about the replica last changed.
    #[schema(value_type = String)]
    #[serde(serialize_with = "to_millis")]
    pub last_updated: Timestamp,
    /// Whether the replica is among the ready addresses of its Service.
    pub ready: bool,
    /// Whether the id is the name of its pod.
    #[serde(skip)]
    pub(super) named: bool,
    /// Host and port at which it takes calls of other replicas.
    #[serde(skip)]
    pub(super) calls_at: String,
}

/// Serializes a time with three digits of its second.
fn to_millis<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.3}"))
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
    /// Port of calls between replicas, unless an object names another.
    calls_port: u16,
    sightings: Mutex<SightingsByObject>,
    replicas: RwLock<Arc<[Replica]>>,
}

impl Membership {
    /// Creates an empty membership, whose replicas take calls at this port. With `names`, they are reached by the DNS names of
    /// their pods.
    pub(super) fn new(names: Option<PodNames>, calls_port: u16) -> Self {
        Self { names, calls_port, ..Self::default() }
    }

    /// The replicas, by id.
    pub(super) fn replicas(&self) -> Arc<[Replica]> {
        Arc::clone(&self.replicas.read())
    }

    /// Records the addresses in an object; none if it is gone or belongs to another Service.
    pub(super) fn record(&self, source: EndpointSource, object: String, sightings: Vec<Sighting>) {
        self.change(|all| {
            if sightings.is_empty() {
                all.remove(&(source, object));
            } else {
                all.insert((source, object), sightings);
            }
        });
    }

    /// Records all objects of a kind, and forgets all others of that kind.
    pub(super) fn listed(&self, source: EndpointSource, objects: HashMap<String, Vec<Sighting>>) {
        self.change(|all| {
            all.retain(|(of, _), _| *of != source);
            let those = objects.into_iter().filter(|(_, sightings)| !sightings.is_empty());
            all.extend(those.map(|(object, sightings)| ((source, object), sightings)));
        });
    }

    fn change(&self, change: impl FnOnce(&mut SightingsByObject)) {
        let mut all = self.sightings.lock();
        change(&mut all);
        let members = merge(all.values().flatten());
        // Still under the lock of the sightings, so that changes are published in order.
        let before = self.replicas();
        let after: Arc<[Replica]> =
            members.into_iter().map(|(id, at)| self.replica(id, &at, &before)).collect();
        if after != before {
            log_changes(&before, &after);
            *self.replicas.write() = after;
        }
    }

    fn replica(&self, id: String, at: &Sighting, before: &[Replica]) -> Replica {
        let reached = reached_at(&at.host, self.names.as_ref());
        let new = Replica {
            id: id.into(),
            base_url: base_url(&reached, at.port),
            ready: at.ready,
            last_updated: Timestamp::now(),
            named: at.pod.is_some(),
            calls_at: authority(&reached, at.calls_port.unwrap_or(self.calls_port)),
        };
        let same = |one: &&Replica| Replica { last_updated: new.last_updated, ..(*one).clone() } == new;
        before.iter().find(same).cloned().unwrap_or(new)
    }
}

fn log_changes(before: &[Replica], after: &[Replica]) {
    for replica in after {
        match before.iter().find(|one| one.id == replica.id) {
            Some(known) if known == replica => {}
            Some(_) => info!(
                replica = replica.id.as_str(),
                url = replica.base_url,
                ready = replica.ready,
                "a replica changed"
            ),
            None => info!(
                replica = replica.id.as_str(),
                url = replica.base_url,
                ready = replica.ready,
                "discovered a replica"
            ),
        }
    }
    for gone in before.iter().filter(|one| after.iter().all(|other| other.id != one.id)) {
        info!(replica = gone.id.as_str(), url = gone.base_url, "a replica is gone");
    }
}

/// Address of a replica, as one object states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sighting {
    /// Name of the pod behind the address, if the object names it.
    pub(super) pod: Option<String>,
    /// IP address or host name.
    pub(super) host: String,
    /// REST port.
    pub(super) port: u16,
    /// Port of calls between replicas, if the object names it.
    pub(super) calls_port: Option<u16>,
    pub(super) ready: bool,
}

/// Where DNS names of pods are found.
#[derive(Clone, Debug)]
pub(super) struct PodNames {
    /// Namespace of the pods.
    pub(super) namespace: String,
    /// Domain of the cluster, such as `cluster.local`.
    pub(super) domain: String,
}

/// The addresses in Endpoints that have a port of this name. An empty name means an unnamed port.
pub(super) fn of_endpoints(endpoints: &Endpoints, port_name: &str) -> Vec<Sighting> {
    let mut seen = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        let port_of = |wanted: &str| {
            let mut ports = subset.ports.iter().flatten();
            let port = ports.find(|port| is_port(port.name.as_deref(), port.protocol.as_deref(), wanted))?;
            u16::try_from(port.port).ok()
        };
        let Some(port) = port_of(port_name) else { continue };
        let calls_port = port_of(CALLS_PORT_NAME);
        let mut take = |addresses: &Option<Vec<EndpointAddress>>, ready| {
            seen.extend(addresses.iter().flatten().map(|address| Sighting {
                pod: pod(address.target_ref.as_ref()),
                host: address.ip.clone(),
                port,
                calls_port,
                ready,
            }));
        };
        take(&subset.addresses, true);
        take(&subset.not_ready_addresses, false);
    }
    seen
}

/// The addresses in an EndpointSlice that has a port of this name. An empty name means an unnamed port.
pub(super) fn of_slice(slice: &EndpointSlice, port_name: &str) -> Vec<Sighting> {
    let port_of = |wanted: &str| {
        let mut ports = slice.ports.iter().flatten();
        let port = ports.find(|port| is_port(port.name.as_deref(), port.protocol.as_deref(), wanted))?;
        port.port.and_then(|port| u16::try_from(port).ok())
    };
    let Some(port) = port_of(port_name) else { return Vec::new() };
    let calls_port = port_of(CALLS_PORT_NAME);
    let each = slice.endpoints.iter().filter_map(|endpoint| {
        // All addresses of one endpoint belong to the same pod.
        let host = endpoint.addresses.first()?.clone();
        // An absent condition means ready.
        let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
        Some(Sighting { pod: pod(endpoint.target_ref.as_ref()), host, port, calls_port, ready })
    });
    each.collect()
}

fn is_port(name: Option<&str>, protocol: Option<&str>, wanted: &str) -> bool {
    name.unwrap_or_default() == wanted && protocol.is_none_or(|protocol| protocol == "TCP")
}

fn pod(target: Option<&ObjectReference>) -> Option<String> {
    target?.name.clone().filter(|name| !name.is_empty())
}

/// Merges sightings into one for each pod, by its name, and one for each address and port without a named pod. One is ready if any object says so. Of a pod's addresses, IPv4 is preferred to IPv6 and
/// IPv6 to host names, then the lowest one.
fn merge<'a>(sightings: impl IntoIterator<Item = &'a Sighting>) -> BTreeMap<String, Sighting> {
    let (mut named, mut nameless) = (BTreeMap::<&str, Vec<&Sighting>>::new(), Vec::new());
    for sighting in sightings {
        match &sighting.pod {
            Some(pod) => named.entry(pod).or_default().push(sighting),
            None => nameless.push(sighting),
        }
    }
    let mut members = BTreeMap::new();
    for (pod, of_pod) in &named {
        let Some(best) = of_pod.iter().min_by_key(|one| (family(&one.host), &one.host, one.port)) else {
            continue;
        };
        let ready = of_pod.iter().any(|one| one.ready);
        let calls_port = of_pod.iter().filter_map(|one| one.calls_port).min();
        members.insert((*pod).to_owned(), Sighting { ready, calls_port, ..(*best).clone() });
    }
    for sighting in nameless {
        let same = |one: &&Sighting| one.host == sighting.host && one.port == sighting.port;
        let pods: BTreeSet<_> =
            named.iter().filter(|(_, of_pod)| of_pod.iter().any(same)).map(|(pod, _)| *pod).collect();
        let id = match pods.first() {
            Some(pod) => (*pod).to_owned(),
            None => authority(&sighting.host, sighting.port),
        };
        let known = members.entry(id).or_insert_with(|| sighting.clone());
        known.ready |= sighting.ready;
        known.calls_port = known.calls_port.or(sighting.calls_port);
    }
    members
}

fn family(host: &str) -> u8 {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 0,
        Ok(IpAddr::V6(_)) => 1,
        Err(_) => 2,
    }
}

/// `host:port`, with an IPv6 address in brackets.
pub(super) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Host by which a replica is reached: its address, or the DNS name of the pod with this address.
fn reached_at(host: &str, names: Option<&PodNames>) -> String {
    match (names, host.parse::<IpAddr>()) {
        (Some(PodNames { namespace, domain }), Ok(_)) => {
            let dashed = host.replace(['.', ':'], "-");
            format!("{dashed}.{namespace}.pod.{}", domain.trim_matches('.'))
        }
        _ => host.to_owned(),
    }
}

/// Base URL of a replica's REST API.
pub(super) fn base_url(host: &str, port: u16) -> String {
    format!("http://{}", authority(host, port))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sightings(pod: &str, ready: bool) -> Vec<Sighting> {
        vec![Sighting { pod: Some(pod.into()), host: "10.0.0.1".into(), port: 7002, calls_port: None, ready }]
    }

    fn listed(membership: &Membership) -> Vec<(ReplicaId, bool)> {
        membership.replicas().iter().map(|one| (one.id.clone(), one.ready)).collect()
    }

    #[test]
    fn a_list_replaces_sightings_of_its_kind_only() {
        let membership = Membership::default();
        membership.record(EndpointSource::Endpoints, "s".into(), sightings("a", true));
        membership.record(EndpointSource::EndpointSlices, "s-1".into(), sightings("b", false));
        assert_eq!(listed(&membership), [("a".into(), true), ("b".into(), false)]);
        membership.listed(
            EndpointSource::EndpointSlices,
            HashMap::from([("s-2".to_owned(), sightings("c", true))]),
        );
        assert_eq!(listed(&membership), [("a".into(), true), ("c".into(), true)]);
        membership.record(EndpointSource::Endpoints, "s".into(), Vec::new());
        assert_eq!(listed(&membership), [("c".into(), true)]);
        membership.listed(EndpointSource::EndpointSlices, HashMap::new());
        assert_eq!(listed(&membership), []);
    }

    #[test]
    fn a_replica_that_did_not_change_keeps_its_time() {
        let membership = Membership::default();
        membership.record(EndpointSource::Endpoints, "s".into(), sightings("a", true));
        let first = membership.replicas();
        membership.record(EndpointSource::EndpointSlices, "s-1".into(), sightings("a", true));
        assert!(Arc::ptr_eq(&first, &membership.replicas()), "nothing changed");
        membership.record(EndpointSource::EndpointSlices, "t-1".into(), sightings("b", true));
        assert_eq!(membership.replicas()[0], first[0]);
    }

    fn endpoints(value: serde_json::Value) -> Endpoints {
        serde_json::from_value(value).expect("Endpoints")
    }

    fn slice(value: serde_json::Value) -> EndpointSlice {
        serde_json::from_value(value).expect("an EndpointSlice")
    }

    fn seen(pod: Option<&str>, host: &str, port: u16, ready: bool) -> Sighting {
        Sighting { pod: pod.map(str::to_owned), host: host.to_owned(), port, calls_port: None, ready }
    }

    fn ids(members: &BTreeMap<String, Sighting>) -> Vec<(&str, String, bool)> {
        let shown = |one: &Sighting| authority(&one.host, one.port);
        members.iter().map(|(id, one)| (id.as_str(), shown(one), one.ready)).collect()
    }

    #[test]
    fn endpoints_name_ready_addresses_and_others_of_the_subsets_with_the_port() {
        let target = |name: &str| json!({"kind": "Pod", "name": name});
        let endpoints = endpoints(json!({"metadata": {"name": "spin-clouddriver"}, "subsets": [
            {"addresses": [{"ip": "10.0.0.1", "targetRef": target("a")}, {"ip": "10.0.0.9"}],
             "notReadyAddresses": [{"ip": "10.0.0.2", "targetRef": target("b")}],
             "ports": [{"name": "grpc", "port": 9091}, {"name": "http", "port": 7002, "protocol": "TCP"}]},
            {"addresses": [{"ip": "10.0.0.3", "targetRef": target("c")}], "ports": [{"name": "grpc", "port": 1}]},
            {"addresses": [{"ip": "10.0.0.4", "targetRef": target("d")}], "ports": [{"port": 80}]},
            {"addresses": [{"ip": "10.0.0.5"}], "ports": [{"name": "http", "port": 53, "protocol": "UDP"}]},
            {"addresses": [{"ip": "10.0.0.6"}]},
        ]}));
        let expected = [
            seen(Some("a"), "10.0.0.1", 7002, true),
            seen(None, "10.0.0.9", 7002, true),
            seen(Some("b"), "10.0.0.2", 7002, false),
        ];
        assert_eq!(of_endpoints(&endpoints, "http"), expected);
        assert_eq!(of_endpoints(&endpoints, ""), [seen(Some("d"), "10.0.0.4", 80, true)]);
        assert_eq!(of_endpoints(&endpoints, "other"), []);
        assert_eq!(of_endpoints(&Endpoints::default(), "http"), []);
    }

    #[test]
    fn a_slice_names_endpoints_and_one_that_says_nothing_of_readiness_is_ready() {
        let slice =
            slice(json!({"addressType": "IPv4", "metadata": {}, "ports": [{"name": "http", "port": 7002}],
            "endpoints": [
                {"addresses": ["10.0.0.1", "10.0.0.8"], "targetRef": {"kind": "Pod", "name": "a"}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "terminating": true}},
                {"addresses": []},
            ]}));
        let expected = [seen(Some("a"), "10.0.0.1", 7002, true), seen(None, "10.0.0.2", 7002, false)];
        assert_eq!(of_slice(&slice, "http"), expected);
        assert_eq!(of_slice(&slice, "grpc"), []);
    }

    #[test]
    fn objects_are_merged_by_pod_else_by_address_and_port() {
        let sightings = [
            seen(Some("b"), "10.0.0.2", 7002, false),
            seen(Some("a"), "fd00::1", 7002, false),
            seen(Some("a"), "10.0.0.1", 7002, false),
            seen(Some("a"), "10.0.0.1", 7002, true),
            // Without a pod name: the first belongs to pod b, the second to no pod, the fourth has another
            // port.
            seen(None, "10.0.0.2", 7002, true),
            seen(None, "10.0.0.3", 7002, true),
            seen(None, "10.0.0.3", 7002, false),
            seen(None, "10.0.0.2", 8000, false),
            seen(None, "fd00::9", 7002, true),
        ];
        let all = || sightings.iter();
        let expected = [
            ("10.0.0.2:8000", "10.0.0.2:8000".to_owned(), false),
            ("10.0.0.3:7002", "10.0.0.3:7002".to_owned(), true),
            ("[fd00::9]:7002", "[fd00::9]:7002".to_owned(), true),
            ("a", "10.0.0.1:7002".to_owned(), true),
            ("b", "10.0.0.2:7002".to_owned(), true),
        ];
        assert_eq!(ids(&merge(all())), expected);
        assert_eq!(merge(all().rev()), merge(all()), "the order does not matter");
        assert_eq!(merge(all().chain(all())), merge(all()), "what is told twice is told once");
        let named: Vec<_> = merge(all()).values().map(|one| one.pod.is_some()).collect();
        assert_eq!(named, [false, false, false, true, true]);
        assert!(merge([]).is_empty());
    }

    #[test]
    fn a_replica_is_reached_by_address_or_by_the_name_of_its_pod() {
        let names = PodNames { namespace: "spinnaker".into(), domain: "cluster.local".into() };
        assert_eq!(base_url(&reached_at("10.0.15.246", None), 7002), "http://10.0.15.246:7002");
        assert_eq!(base_url(&reached_at("fd00::1", None), 7002), "http://[fd00::1]:7002");
        let by_name = |host: &str| reached_at(host, Some(&names));
        assert_eq!(by_name("10.0.15.246"), "10-0-15-246.spinnaker.pod.cluster.local");
        assert_eq!(by_name("fd00::1"), "fd00--1.spinnaker.pod.cluster.local");
        assert_eq!(base_url(&by_name("other.example"), 80), "http://other.example:80");
    }

    #[test]
    fn calls_go_to_the_port_of_the_settings_unless_an_object_names_another() {
        let membership = Membership::new(None, 7004);
        let calls_at = || membership.replicas().iter().map(|one| one.calls_at.clone()).collect::<Vec<_>>();
        let ports = |named: bool| {
            let calls = json!({"name": "replicas", "port": 7104});
            let all = [json!({"name": "http", "port": 7002}), calls];
            json!(all[..1 + usize::from(named)])
        };
        let of_both = |named| {
            let slice = slice(json!({"addressType": "IPv6", "metadata": {}, "ports": ports(named),
                "endpoints": [{"addresses": ["fd00::1"], "targetRef": {"kind": "Pod", "name": "a"}}]}));
            let endpoints = endpoints(json!({"metadata": {}, "subsets": [
                {"addresses": [{"ip": "10.0.0.2"}], "ports": ports(named)}]}));
            membership.record(EndpointSource::EndpointSlices, "s".into(), of_slice(&slice, "http"));
            membership.record(EndpointSource::Endpoints, "s".into(), of_endpoints(&endpoints, "http"));
        };
        of_both(false);
        assert_eq!(calls_at(), ["10.0.0.2:7004", "[fd00::1]:7004"]);
        of_both(true);
        assert_eq!(calls_at(), ["10.0.0.2:7104", "[fd00::1]:7104"]);
    }
}
