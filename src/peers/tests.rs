//! Which replicas are listed, and what a replica does that runs alone.

use super::members::Sighting;
use super::membership::EndpointSource;
use super::*;

fn identity(address: &str) -> PeerIdentity {
    PeerIdentity {
        replica_id: "me".to_owned(),
        address: address.parse().expect("an address"),
        host: "my-host".to_owned(),
    }
}

fn sighting(pod: Option<&str>, host: &str, ready: bool) -> Sighting {
    Sighting { pod: pod.map(str::to_owned), host: host.to_owned(), port: 7002, ready }
}

fn cluster(address: &str, sightings: Vec<Sighting>) -> Peers {
    let cluster = Peers::alone(identity(address));
    cluster.membership.tells(EndpointSource::EndpointSlices, "s".into(), sightings);
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
fn where_the_objects_know_this_replica_they_say_where_and_how_it_is() {
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
    assert_eq!(alone.disconnect("a").await, Err(RelayError::NotConnected));
    assert_eq!(alone.look_at(&HeaderMap::new(), None).await.err(), Some(SignatureError::Alone));
}
