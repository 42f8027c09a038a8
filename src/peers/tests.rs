//! Which replicas are listed, and what a replica does that runs alone.

use http::HeaderMap;

use super::membership::{EndpointSource, Sighting};
use super::*;

fn identity(address: &str) -> PeerIdentity {
    PeerIdentity {
        replica_id: "me".into(),
        address: address.parse().expect("an address"),
        host: "my-host".to_owned(),
    }
}

fn sighting(pod: Option<&str>, host: &str, ready: bool) -> Sighting {
    Sighting { pod: pod.map(str::to_owned), host: host.to_owned(), port: 7002, ready }
}

fn cluster(address: &str, sightings: Vec<Sighting>) -> Peers {
    let cluster = Peers::alone(identity(address));
    cluster.membership.record(EndpointSource::EndpointSlices, "s".into(), sightings);
    cluster
}

fn shown(replicas: &[Replica]) -> Vec<(&str, &str, bool)> {
    replicas.iter().map(|one| (one.id.as_str(), one.base_url.as_str(), one.ready)).collect()
}

#[test]
fn this_replica_is_always_listed() {
    let alone = cluster("0.0.0.0:7002", vec![]);
    assert_eq!(shown(&alone.replicas(true)), [("me", "http://my-host:7002", true)]);
    assert_eq!(shown(&alone.replicas(false)), [("me", "http://my-host:7002", false)]);
    let fixed = cluster("10.0.0.1:7002", vec![sighting(Some("other"), "10.0.0.2", false)]);
    let expected = [("me", "http://10.0.0.1:7002", true), ("other", "http://10.0.0.2:7002", false)];
    assert_eq!(shown(&fixed.replicas(true)), expected);
    assert_eq!(fixed.others().len(), 1);
}

#[test]
fn own_address_and_readiness_come_from_endpoints() {
    let known = cluster("0.0.0.0:7002", vec![sighting(Some("me"), "10.0.0.1", false)]);
    assert_eq!(shown(&known.replicas(true)), [("me", "http://10.0.0.1:7002", false)]);
    assert_eq!(known.others(), []);
    // Without pod names, only the address identifies this replica.
    let nameless = || vec![sighting(None, "10.0.0.1", true), sighting(None, "10.0.0.2", true)];
    let fixed = cluster("10.0.0.1:7002", nameless());
    let ids: Vec<_> = fixed.replicas(true).into_iter().map(|one| one.id).collect();
    assert_eq!(ids, ["10.0.0.2:7002", "me"]);
    let others: Vec<_> = fixed.others().into_iter().map(|one| one.id).collect();
    assert_eq!(others, ["10.0.0.2:7002"]);
}

#[tokio::test]
async fn a_single_replica_makes_and_takes_no_calls() {
    let alone = cluster("0.0.0.0:7002", vec![sighting(Some("other"), "127.0.0.1", true)]);
    assert_eq!(alone.agents().await, []);
    assert_eq!(alone.holders(&["uid".to_owned()]).await, RemoteHolders::default());
    assert_eq!(alone.disconnect(&"a".into(), None, false).await, Err(RelayError::NotConnected));
    assert_eq!(alone.disconnect(&"a".into(), None, true).await, Ok(()));
    assert_eq!(alone.check_headers(&HeaderMap::new(), None).await.err(), Some(SignatureError::Alone));
}
