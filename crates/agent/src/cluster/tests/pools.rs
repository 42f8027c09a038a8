//! How many connections there are, what they carry, and when they end.

use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::BodyExt as _;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::super::pool::UseBudget;
use super::exchanges::{HTTP1, HTTP2, chunk, client, client_in, until, watch, watches};
use super::test_server::ServerOptions;
use super::*;
use kubesvc_core::cache::issues::{CacheIssue, why_unread};

const AT_ONCE: Limits = Limits { wait: Duration::from_millis(50), ..QUICK };

fn with(pool_limits: fn(Use) -> PoolLimits) -> ClusterContext {
    ClusterContext { pool_limits, ..ClusterContext::default() }
}

async fn open(client: &ClusterClient, count: usize) -> Vec<ResponseBody> {
    let mut open = Vec::new();
    for _ in 0..count {
        open.push(client.send(Use::Watches, watch()).await.expect("a response").into_body());
    }
    open
}

fn is_busy(result: &Result<ClusterResponse, ClusterError>) -> bool {
    matches!(result, Err(error @ ClusterError::Busy { .. }) if error.is_before_send())
}

#[tokio::test]
async fn a_connection_carries_its_streams_and_a_pool_its_connections_and_no_more() {
    for (options, connections) in [(HTTP2, 2), (HTTP1, 4)] {
        let authority = Authority::new();
        let (server, _) = watches(&authority, options).await;
        let pool_limits: fn(Use) -> PoolLimits = match options.http2_streams {
            Some(_) => |purpose| PoolLimits { connections: 2, streams: 2, ..PoolLimits::of(purpose) },
            None => |purpose| PoolLimits { connections: 4, streams: 2, ..PoolLimits::of(purpose) },
        };
        let client = client_in(&with(pool_limits), &server, &authority);
        let mut responses = open(&client, 4).await;
        assert_eq!(server.accepted(), connections);
        let fifth = tokio::time::timeout(Duration::from_millis(50), client.send(Use::Watches, watch()));
        assert!(fifth.await.is_err(), "all are in use");
        assert_eq!(server.accepted(), connections);
        responses.pop();
        client.send(Use::Watches, watch()).await.expect("there is room");
    }
}

#[tokio::test]
async fn a_waiting_request_goes_on_when_there_is_room() {
    let authority = Authority::new();
    let (server, senders) = watches(&authority, HTTP1).await;
    let context = with(|purpose| PoolLimits { connections: 1, ..PoolLimits::of(purpose) });
    let client = client_in(&context, &server, &authority);
    let mut first = open(&client, 1).await;
    let waiting = tokio::spawn(async move { client.send(Use::Watches, watch()).await.map(|_| ()) });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    senders.lock().clear();
    assert!(chunk(&mut first[0]).await.is_none(), "the first response is complete");
    waiting.await.expect("no panic").expect("a response");
    assert_eq!(server.accepted(), 1, "over the same connection");
}

#[tokio::test]
async fn the_servers_own_limit_on_streams_is_kept() {
    let authority = Authority::new();
    let (server, _) = watches(&authority, ServerOptions { http2_streams: Some(1) }).await;
    let client = client(&server, &authority);
    let responses = open(&client, 3).await;
    assert_eq!((server.accepted(), responses.len()), (3, 3));
}

#[tokio::test]
async fn slots_are_as_many_as_connections_and_needed_where_each_carries_one_request() {
    let authority = Authority::new();
    let context = with(|purpose| PoolLimits { connections: 2, ..PoolLimits::of(purpose) });
    for (options, is_http1) in [(HTTP1, true), (HTTP2, false)] {
        let (server, _) = watches(&authority, options).await;
        let client = client_in(&context, &server, &authority);
        assert!(!client.speaks_http1(Use::Watches), "nothing is known before the first connection");
        let _open = open(&client, 1).await;
        assert_eq!(client.speaks_http1(Use::Watches), is_http1);
        let mut slots = Vec::new();
        for _ in 0..2 {
            slots.push(client.slot(Use::Watches).expect("it is free"));
        }
        let error = client.slot(Use::Watches).expect_err("all are taken");
        assert!(matches!(error, ClusterError::TooManyWatches(2)), "{error:?}");
        client.slot(Use::Requests).expect("another use has its own");
        slots.pop();
        client.slot(Use::Watches).expect("it is free again");
    }
}

#[test]
fn condition_says_in_full_how_many_watches_http1_allows_and_what_to_do() {
    let failure = Failure::from(ClusterError::TooManyWatches(PoolLimits::of(Use::Watches).connections));
    let expected = "the cluster's front speaks HTTP/1.1 only, which allows 64 watches: enable HTTP/2, or cache \
                    fewer kinds or namespaces";
    assert_eq!(failure.message, expected);
    let shown = CacheIssue::new("apps", "Deployment", &why_unread(failure.class(), &failure.message));
    assert_eq!(shown.why, expected);
}

#[tokio::test]
async fn the_uses_have_connections_of_their_own() {
    let authority = Authority::new();
    let (server, _) = watches(&authority, HTTP2).await;
    let client = client(&server, &authority);
    let mut responses = Vec::new();
    for purpose in Use::ALL {
        responses.push(client.send(purpose, watch()).await.expect("a response"));
    }
    assert_eq!(server.accepted(), 3);
    let versions: Vec<_> = responses.iter().map(ClusterResponse::version).collect();
    assert_eq!(versions, [http::Version::HTTP_11, http::Version::HTTP_2, http::Version::HTTP_11]);
}

#[tokio::test]
async fn idle_connections_close_after_their_time_and_used_ones_do_not() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let (server, senders) = watches(&authority, options).await;
        let context = with(|purpose| PoolLimits {
            idle_timeout: Duration::from_millis(20),
            idle_connections: 2,
            ..PoolLimits::of(purpose)
        });
        let client = client_in(&context, &server, &authority);
        let mut used = open(&client, 1).await.remove(0);
        for _ in 0..2 {
            let mut other = open(&client, 1).await.remove(0);
            let sender = senders.lock().pop();
            drop(sender);
            assert!(chunk(&mut other).await.is_none());
            drop(other);
            // HTTP/2 shares the connection of the response that goes on.
            until("the idle connection closes", || server.open() == 1).await;
        }
        let sender = senders.lock().pop().expect("that of the first");
        sender.try_send(Ok("still there".into())).expect("it goes on");
        assert!(used.frame().await.is_some());
        drop(used);
        until("the last one closes", || server.open() == 0).await;
        open(&client, 1).await;
    }
}

#[tokio::test]
async fn no_more_idle_connections_are_kept_than_allowed() {
    let authority = Authority::new();
    let (server, senders) = watches(&authority, HTTP1).await;
    let context = with(|purpose| PoolLimits { idle_connections: 1, ..PoolLimits::of(purpose) });
    let client = client_in(&context, &server, &authority);
    let mut responses = open(&client, 3).await;
    senders.lock().clear();
    for response in &mut responses {
        assert!(chunk(response).await.is_none());
    }
    until("two of three close", || server.open() == 1).await;
}

#[tokio::test]
async fn connections_end_with_their_client_except_those_whose_responses_are_read() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let (server, senders) = watches(&authority, options).await;
        let client = client(&server, &authority);
        let mut response = open(&client, 1).await.remove(0);
        drop(client);
        senders.lock()[0].try_send(Ok("still there".into())).expect("it goes on");
        assert!(response.frame().await.is_some());
        drop(response);
        until("the connection closes", || server.open() == 0).await;
    }
}

/// Forwards connections until it is told to stall: then they stay open, and nothing passes.
async fn stalling_proxy(to: SocketAddr) -> (SocketAddr, Arc<Notify>, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, stall) = (listener.local_addr().expect("an address"), Arc::new(Notify::new()));
    let stalls = stall.clone();
    let running = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut here, _)) = listener.accept().await {
            let stall = stalls.clone();
            connections.spawn(async move {
                let mut there = TcpStream::connect(to).await.expect("the server listens");
                tokio::select! {
                    _ = copy_bidirectional(&mut here, &mut there) => {}
                    () = stall.notified() => std::future::pending().await,
                }
            });
        }
    });
    (address, stall, AbortOnDropHandle::new(running))
}

#[tokio::test]
async fn a_dead_connection_is_noticed_by_its_responses_and_replaced() {
    let authority = Authority::new();
    let (server, senders) = watches(&authority, HTTP2).await;
    let (address, stall, _proxy) = stalling_proxy(server.address).await;
    let context = with(|purpose| PoolLimits {
        ping_interval: Duration::from_millis(50),
        // Not so short that a busy machine misses it.
        ping_timeout: Duration::from_secs(3),
        ..PoolLimits::of(purpose)
    });
    let cluster = cluster(&format!("https://{address}"), Some(&authority));
    let client = ClusterClient::new(cluster, &context).expect("a client");
    let mut responses = open(&client, 2).await;
    stall.notify_waiters();
    for response in &mut responses {
        let frame = tokio::time::timeout(Duration::from_secs(60), response.frame()).await;
        let error = frame.expect("it is noticed").expect("not the end").expect_err("an error");
        assert!(matches!(error, ClusterError::Broken { .. }), "{error:?}");
    }
    // A loaded machine may find the next connection slow too, and try again.
    let mut attempts = 0;
    while let Err(error) = client.send(Use::Watches, watch()).await {
        attempts += 1;
        assert!(attempts < 10, "{error:?}");
    }
    assert!(senders.lock().len() > 2);
}

/// The bound of the contract: a ping after 30 s, 15 s for its answer.
#[test]
fn a_dead_connection_of_watches_is_noticed_within_45_s() {
    let limits = PoolLimits::of(Use::Watches);
    assert!(limits.ping_interval + limits.ping_timeout <= Duration::from_secs(45));
    assert_eq!((limits.streams, limits.connections), (80, 64));
}

#[tokio::test]
async fn the_process_has_no_more_connections_of_a_use_than_its_budget() {
    let authority = Authority::new();
    let (server, _) = watches(&authority, HTTP2).await;
    let budget = ConnectionBudget::new(|_| UseBudget { connections: 1, handshakes: 1 });
    let context = ClusterContext { budget, ..ClusterContext::default() };
    let first = client_in(&context, &server, &authority);
    let response = open(&first, 1).await;
    let impatient = client_in(&ClusterContext { limits: AT_ONCE, ..context.clone() }, &server, &authority);
    assert!(is_busy(&impatient.send(Use::Watches, watch()).await));
    let other_use = ClusterContext { limits: QUICK, ..context.clone() };
    let other_use = client_in(&other_use, &server, &authority).send(Use::Requests, watch()).await;
    other_use.expect("a budget of its own");
    assert_eq!(server.accepted(), 2);
    let second = client_in(&context, &server, &authority);
    let waiting = tokio::spawn(async move { second.send(Use::Watches, watch()).await.map(|_| ()) });
    drop((response, first));
    waiting.await.expect("no panic").expect("a response");
}

#[tokio::test]
async fn a_pool_dials_no_more_connections_at_once_than_allowed() {
    let authority = Authority::new();
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let limits = Limits { connect: Duration::from_secs(60), wait: Duration::from_secs(60), ..QUICK };
    let pool_limits: fn(Use) -> PoolLimits = |purpose| PoolLimits { dials: 2, ..PoolLimits::of(purpose) };
    let context = ClusterContext { limits, pool_limits, ..ClusterContext::default() };
    let url = format!("https://{}", silent.local_addr().expect("an address"));
    let client = ClusterClient::new(cluster(&url, Some(&authority)), &context).expect("a client");
    let mut requests = JoinSet::new();
    for _ in 0..3 {
        let client = client.clone();
        requests.spawn(async move { client.send(Use::Requests, watch()).await.map(|_| ()) });
    }
    let mut dials = Vec::new();
    for _ in 0..2 {
        dials.push(silent.accept().await.expect("it is dialled"));
    }
    let third = tokio::time::timeout(Duration::from_millis(50), silent.accept()).await;
    assert!(third.is_err(), "two dials are allowed");
    drop(dials);
    assert!(requests.join_next().await.expect("a request").expect("no panic").is_err());
    silent.accept().await.expect("there is room for the third");
}

#[tokio::test]
async fn the_process_makes_no_more_handshakes_at_once_than_its_budget() {
    let authority = Authority::new();
    let (server, _) = watches(&authority, HTTP2).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let budget = ConnectionBudget::new(|_| UseBudget { connections: 10, handshakes: 1 });
    let limits = Limits { connect: Duration::from_secs(60), wait: Duration::from_secs(60), ..QUICK };
    let context = ClusterContext { budget, limits, ..ClusterContext::default() };
    let url = format!("https://{}", silent.local_addr().expect("an address"));
    let first = ClusterClient::new(cluster(&url, Some(&authority)), &context).expect("a client");
    let first = tokio::spawn(async move { first.send(Use::Watches, watch()).await.map(|_| ()) });
    let _accepted = silent.accept().await.expect("it is dialled");
    let impatient = client_in(&ClusterContext { limits: AT_ONCE, ..context.clone() }, &server, &authority);
    assert!(is_busy(&impatient.send(Use::Watches, watch()).await));
    assert_eq!(server.accepted(), 0);
    first.abort();
    client_in(&context, &server, &authority).send(Use::Watches, watch()).await.expect("a response");
}
