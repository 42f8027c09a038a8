//! Who the replicas are, according to Endpoints and EndpointSlices. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, ObjectReference};
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// Address of a replica, as one object states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sighting {
    /// Name of the pod behind the address, if the object names it.
    pub(super) pod: Option<String>,
    /// IP address or host name.
    pub(super) host: String,
    /// REST port.
    pub(super) port: u16,
    /// Whether the address is ready.
    pub(super) ready: bool,
}

/// A replica, merged from all sightings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerMember {
    /// Name of its pod, otherwise its address and port.
    pub(super) id: String,
    /// Whether the id is the name of its pod.
    pub(super) named: bool,
    /// IP address or host name.
    pub(super) host: String,
    /// REST port.
    pub(super) port: u16,
    /// Whether any object lists it as ready.
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
        let ports = subset.ports.iter().flatten();
        let mut ports =
            ports.filter(|port| is_rest(port.name.as_deref(), port.protocol.as_deref(), port_name));
        let Some(port) = ports.find_map(|port| u16::try_from(port.port).ok()) else { continue };
        let mut take = |addresses: &Option<Vec<EndpointAddress>>, ready| {
            seen.extend(addresses.iter().flatten().map(|address| Sighting {
                pod: pod(address.target_ref.as_ref()),
                host: address.ip.clone(),
                port,
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
    let ports = slice.ports.iter().flatten();
    let mut ports = ports.filter(|port| is_rest(port.name.as_deref(), port.protocol.as_deref(), port_name));
    let Some(port) = ports.find_map(|port| port.port.and_then(|port| u16::try_from(port).ok())) else {
        return Vec::new();
    };
    let each = slice.endpoints.iter().filter_map(|endpoint| {
        // All addresses of one endpoint belong to the same pod.
        let host = endpoint.addresses.first()?.clone();
        // An absent condition means ready.
        let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
        Some(Sighting { pod: pod(endpoint.target_ref.as_ref()), host, port, ready })
    });
    each.collect()
}

fn is_rest(name: Option<&str>, protocol: Option<&str>, wanted: &str) -> bool {
    name.unwrap_or_default() == wanted && protocol.is_none_or(|protocol| protocol == "TCP")
}

fn pod(target: Option<&ObjectReference>) -> Option<String> {
    target?.name.clone().filter(|name| !name.is_empty())
}

/// Merges sightings into one member for each pod, and one for each address and port without a named pod;
/// sorted by id. A member is ready if any object says so. Of a pod's addresses, IPv4 is preferred to IPv6 and
/// IPv6 to host names, then the lowest one.
pub(super) fn merge<'a>(sightings: impl IntoIterator<Item = &'a Sighting>) -> Vec<PeerMember> {
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
        members.insert((*pod).to_owned(), member((*pod).to_owned(), true, best, ready));
    }
    for sighting in nameless {
        let same = |one: &&Sighting| one.host == sighting.host && one.port == sighting.port;
        let pods: BTreeSet<_> =
            named.iter().filter(|(_, of_pod)| of_pod.iter().any(same)).map(|(pod, _)| *pod).collect();
        let id = match pods.first() {
            Some(pod) => (*pod).to_owned(),
            None => authority(&sighting.host, sighting.port),
        };
        let known = members.entry(id.clone()).or_insert_with(|| member(id, false, sighting, false));
        known.ready |= sighting.ready;
    }
    members.into_values().collect()
}

fn member(id: String, named: bool, at: &Sighting, ready: bool) -> PeerMember {
    PeerMember { id, named, host: at.host.clone(), port: at.port, ready }
}

fn family(host: &str) -> u8 {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 0,
        Ok(IpAddr::V6(_)) => 1,
        Err(_) => 2,
    }
}

/// `host:port`, with an IPv6 address in brackets.
fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Base URL of a replica's REST API: by address, or by the DNS name of the pod with this address.
pub(super) fn base_url(host: &str, port: u16, names: Option<&PodNames>) -> String {
    let authority = match (names, host.parse::<IpAddr>()) {
        (Some(PodNames { namespace, domain }), Ok(_)) => {
            let dashed = host.replace(['.', ':'], "-");
            format!("{dashed}.{namespace}.pod.{}:{port}", domain.trim_matches('.'))
        }
        _ => authority(host, port),
    };
    format!("http://{authority}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn endpoints(value: serde_json::Value) -> Endpoints {
        serde_json::from_value(value).expect("Endpoints")
    }

    fn slice(value: serde_json::Value) -> EndpointSlice {
        serde_json::from_value(value).expect("an EndpointSlice")
    }

    fn seen(pod: Option<&str>, host: &str, port: u16, ready: bool) -> Sighting {
        Sighting { pod: pod.map(str::to_owned), host: host.to_owned(), port, ready }
    }

    fn ids(members: &[PeerMember]) -> Vec<(&str, String, bool)> {
        let shown = |one: &PeerMember| authority(&one.host, one.port);
        members.iter().map(|one| (one.id.as_str(), shown(one), one.ready)).collect()
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
        let named: Vec<_> = merge(all()).iter().map(|one| one.named).collect();
        assert_eq!(named, [false, false, false, true, true]);
        assert_eq!(merge([]), []);
    }

    #[test]
    fn a_replica_is_reached_by_address_or_by_the_name_of_its_pod() {
        let names = PodNames { namespace: "spinnaker".into(), domain: "cluster.local".into() };
        assert_eq!(base_url("10.0.15.246", 7002, None), "http://10.0.15.246:7002");
        assert_eq!(base_url("fd00::1", 7002, None), "http://[fd00::1]:7002");
        assert_eq!(
            base_url("10.0.15.246", 7002, Some(&names)),
            "http://10-0-15-246.spinnaker.pod.cluster.local:7002"
        );
        assert_eq!(
            base_url("fd00::1", 7002, Some(&names)),
            "http://fd00--1.spinnaker.pod.cluster.local:7002"
        );
        assert_eq!(base_url("other.example", 80, Some(&names)), "http://other.example:80");
    }
}
