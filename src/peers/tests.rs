//! Which replicas are listed, and what a replica does that runs alone.

use super::calls::RemoteHolders;
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
    Sighting { pod: pod.map(str::to_owned), host: host.to_owned(), port: 7002, calls_port: None, ready }
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
    assert!(!alone.takes_calls() && alone.digest(&[]).is_none());
}

/// A replica that serves, and where.
async fn serving(id: &str, tls: PeerTls) -> (Arc<Peers>, SocketAddr, tokio_util::sync::DropGuard) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let identity = PeerIdentity { replica_id: id.into(), address, host: String::new() };
    let peers = Arc::new(Peers::of_test_with(identity, Arc::default(), &[], tls));
    let answer = async |axum::Extension(CallingReplica(by)): axum::Extension<CallingReplica>| {
        axum::Json(serde_json::json!({"replicaId": by, "answeredForMs": 86_400_000}))
    };
    let router = axum::Router::new().route("/internal/v1/reach", axum::routing::get(answer));
    let (stop, served) = (CancellationToken::new(), Arc::clone(&peers));
    let stopped = stop.clone();
    tokio::spawn(async move {
        served.serve(listener, router, kubesvc_runtime::listen::port::HttpMetrics::default(), stopped).await;
    });
    (peers, address, stop.drop_guard())
}

fn tls(id: &str) -> PeerTls {
    PeerTls::of_test(&id.into(), false)
}

/// A replica `me` with this TLS, and the one other replica that it knows.
fn calling(other: Option<&str>, at: SocketAddr, tls: PeerTls) -> (Peers, Replica) {
    let peers = Peers::of_test_with(identity("127.0.0.1:1"), Arc::default(), &[("other", at)], tls);
    let mut to = peers.others().remove(0);
    to.named = other.is_some();
    to.id = other.unwrap_or("127.0.0.1:7002").into();
    (peers, to)
}

async fn asked(peers: &Peers, to: &Replica) -> Result<ReachAnswer, CallError> {
    peers.ask::<ReachAnswer>(to, "/internal/v1/reach").await
}

#[tokio::test]
async fn both_ends_prove_who_they_are_and_a_stranger_gets_nothing() {
    let (served, at, _stop) = serving("other", tls("other")).await;
    let (peers, to) = calling(Some("other"), at, tls("me"));
    assert_eq!(
        asked(&peers, &to).await.expect("an answer").replica_id,
        "me",
        "the caller is known by its certificate"
    );
    assert!(peers.transport.as_ref().is_some_and(|link| link.verified.has(&to)));
    // An address of which no object says whose it is.
    let (peers, to) = calling(None, at, tls("me"));
    assert!(asked(&peers, &to).await.is_ok());
    for (id, tls) in [
        (Some("another"), tls("me")),
        // An address stands for any replica, and is nobody's id.
        (Some("0.0.0.0"), tls("me")),
        (Some("127.0.0.1"), tls("me")),
        (Some("other"), PeerTls::of_test(&"me".into(), true)),
        (None, PeerTls::of_test(&"me".into(), true)),
    ] {
        let (peers, to) = calling(id, at, tls);
        let refused =
            asked(&peers, &to).await.expect_err("it is not the one that is meant, or not of the replicas");
        assert!(matches!(refused, CallError::Unreachable { .. }), "{refused}");
        assert!(peers.transport.as_ref().is_some_and(|link| !link.verified.has(&to)));
    }
    // Nothing of a call is sent to one that does not take the caller's certificate: no write is in doubt.
    let (peers, to) = calling(Some("other"), at, PeerTls::with_forged_certificate(&"me".into()));
    let path = "/internal/v1/accounts/uid/proxy/";
    let call = http::Request::post(peers.url(&to, path)).body(CallBody::default()).expect("a call");
    let link = peers.transport.as_ref().expect("it calls");
    let sent = link.connections.send(&to, call).await;
    assert!(matches!(sent, Err(CallError::Unreachable { may_be_executed: false, .. })), "{sent:?}");
    let refused = served.transport.as_ref().map(|link| link.refused.get());
    assert!(refused.is_some_and(|count| count > 0), "{refused:?}");
}

#[tokio::test]
async fn connections_end_with_the_authority_that_they_were_made_under() {
    let (served, at, _stop) = serving("other", tls("other")).await;
    let (peers, to) = calling(Some("other"), at, tls("me"));
    asked(&peers, &to).await.expect("an answer");
    let link = served.transport.as_ref().expect("it serves");
    link.tls.replace_authority();
    let refused = tokio::time::timeout(std::time::Duration::from_secs(10), async {
        while asked(&peers, &to).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    refused.await.expect("the old authority counts no longer");
}

#[tokio::test]
async fn a_connection_that_was_closed_is_opened_again() {
    let (_, at, stop) = serving("other", tls("other")).await;
    let (peers, to) = calling(Some("other"), at, tls("me"));
    asked(&peers, &to).await.expect("an answer");
    drop(stop);
    let listener = async {
        loop {
            if let Ok(listener) = tokio::net::TcpListener::bind(at).await {
                return listener;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let listener = listener.await;
    let identity = PeerIdentity { replica_id: "other".into(), address: at, host: String::new() };
    let next = Peers::of_test_with(identity, Arc::default(), &[], tls("other"));
    let answer = async || axum::Json(serde_json::json!({"replicaId": "next", "answeredForMs": 1}));
    let router = axum::Router::new().route("/internal/v1/reach", axum::routing::get(answer));
    tokio::spawn(async move {
        next.serve(
            listener,
            router,
            kubesvc_runtime::listen::port::HttpMetrics::default(),
            CancellationToken::new(),
        )
        .await;
    });
    assert_eq!(asked(&peers, &to).await.expect("an answer").replica_id, "next");
}

#[tokio::test]
async fn calls_that_wait_for_a_connection_fail_with_it_and_not_one_after_the_other() {
    // It takes connections, and says nothing.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (peers, to) = calling(Some("other"), listener.local_addr().expect("an address"), tls("me"));
    let link = peers.transport.as_ref().expect("it calls");
    let began = Instant::now();
    let calls = (0..20).map(|_| {
        let call = http::Request::get(peers.url(&to, "/internal/v1/reach")).body(CallBody::default());
        link.connections.send(&to, call.expect("a call"))
    });
    for sent in futures::future::join_all(calls).await {
        assert!(matches!(sent, Err(CallError::Unreachable { may_be_executed: false, .. })));
    }
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}
