//! What the port does with whoever speaks something else, and the services beside Operations.

use std::time::Duration;

use futures::future::join_all;
use http::uri::PathAndQuery;
use prost::bytes::{Buf as _, BufMut as _};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_stream::StreamExt as _;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::connected_agents::ConnectedAgents as _;
use crate::hub::metrics::ReasonLabel;
use crate::hub::tests::support::*;
use crate::hub::{HubError, HubSettings, ListenerSettings};
use kubesvc_core::wire::events;
use kubesvc_runtime::grpc::events::caching_client::CachingClient;
use kubesvc_runtime::listen::connection_limits::AddressLimits;

/// The HTTP/2 preface with a SETTINGS frame without settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Sends bytes, and reads until the hub closes the connection, which it may do before it has all of them.
async fn exchange(hub: &TestHub, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(hub.address).await.expect("the hub listens");
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let begin = &bytes[..bytes.len().min(40)];
    let closed = tokio::time::timeout(Duration::from_secs(20), read).await;
    assert!(closed.is_ok(), "it is not closed after {begin:?}");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn http1_gets_505_and_a_sentence() {
    let settings = HubSettings {
        listener: ListenerSettings { rest_port: Some(7002), ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::with(settings).await;
    for request in [
        "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST /armory/accounts HTTP/1.0\r\n\r\n",
        "POST /ops.Operations/GetOps HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\n\r\n",
        "PRI * HTTP/3.0\r\n\r\nSM\r\n\r\n",
    ] {
        let answer = exchange(&hub, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 505 "), "{answer}");
        assert!(answer.contains("gRPC over HTTP/2") && answer.contains("7002"), "{answer}");
    }
}

#[tokio::test]
async fn tls_and_anything_else_is_closed() {
    let hub = TestHub::start().await;
    for bytes in [&b"\x16\x03\x01\x02\x00\x01"[..], &[0; 6], &[0xff; 64], b"SSH-2.0-OpenSSH_9.6\r\n"] {
        assert_eq!(exchange(&hub, bytes).await, "");
    }
}

#[tokio::test]
async fn connections_that_break_http2_are_closed_and_an_agent_keeps_its_session() {
    let hub = TestHub::start().await;
    let mut agent = hub.agent("a").await;
    let noise: Vec<u8> = (0..65_536).map(|_| rand::random()).collect();
    let frame = |length: u32, kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let head = [&length.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        [PREFACE, &head, payload].concat()
    };
    let broken = [
        [&PREFACE[..24], &noise].concat(),
        // A frame over the limit.
        frame(0x00ff_ffff, 0, 0, 1, &[0; 100]),
        // Data on a stream that is not open.
        frame(4, 0, 0, 1, &[0; 4]),
        // Headers that are no HPACK, and on an even stream.
        frame(8, 1, 4, 1, &[0xff; 8]),
        frame(1, 1, 4, 2, &[0x82]),
        // Settings and a ping of a wrong length.
        frame(5, 4, 0, 0, &[0; 5]),
        frame(3, 6, 0, 0, &[0; 3]),
        // A window that overflows, and a push promise.
        frame(4, 8, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
        frame(4, 5, 4, 1, &[0; 4]),
    ];
    join_all(broken.iter().map(|bytes| exchange(&hub, bytes))).await;
    join_all((0..500).map(|_| TcpStream::connect(hub.address))).await;
    hub.accounts.show(account("one"));
    assert_eq!(agent.added().await.len(), 1);
}

/// Passes bytes through unchanged.
#[derive(Clone, Copy)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining()).to_vec()))
    }
}

/// Sends a message, and reads until the stream ends: the messages, and the status unless it ends well.
async fn call(hub: &TestHub, path: &'static str, message: Vec<u8>) -> (Vec<Vec<u8>>, Option<Status>) {
    let mut grpc = Grpc::new(hub.channel().await);
    grpc.ready().await.expect("the hub listens");
    // The stream stays open.
    let messages = tokio_stream::iter([message]).chain(tokio_stream::pending());
    let called = grpc.streaming(Request::new(messages), PathAndQuery::from_static(path), RawCodec).await;
    let mut answers = match called {
        Ok(answers) => answers.into_inner(),
        Err(status) => return (Vec::new(), Some(status)),
    };
    let mut read = Vec::new();
    let ended = async {
        loop {
            match answers.message().await {
                Ok(Some(message)) => read.push(message),
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("the stream ends");
    (read, status)
}

#[tokio::test]
async fn unknown_calls_are_unimplemented() {
    let hub = TestHub::start().await;
    for path in ["/ops.Operations/Nothing", "/no.Such/Service", "/", "/events.Caching/Nothing"] {
        let (_, status) = call(&hub, path, Vec::new()).await;
        assert_eq!(status.expect("it does not end well").code(), Code::Unimplemented, "{path}");
    }
}

#[tokio::test]
async fn a_first_message_that_is_no_protobuf_is_refused() {
    let hub = TestHub::start().await;
    for message in [vec![0xff; 100], vec![0x0a, 0xff, 0xff, 0xff, 0x7f], b"GET / HTTP/1.1".to_vec()] {
        let (answers, status) = call(&hub, "/ops.Operations/GetOps", message).await;
        assert!(answers.is_empty(), "{answers:?}");
        assert_eq!(status.expect("it does not end well").code(), Code::Internal);
    }
    assert!(hub.hub.agents().is_empty());
}

#[tokio::test]
async fn a_connection_that_does_not_begin_is_closed() {
    let settings = HubSettings {
        listener: ListenerSettings { preface_wait: Duration::from_millis(100), ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::with(settings).await;
    assert_eq!(exchange(&hub, b"").await, "");
    assert_eq!(exchange(&hub, b"PRI * HTTP/2.0\r\n").await, "");
}

#[tokio::test]
async fn connections_over_the_limit_are_closed_until_one_ends() {
    let settings = HubSettings {
        listener: ListenerSettings { connection_cap: 1, ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::with(settings).await;
    let first = hub.agent("a").await;
    assert_eq!(exchange(&hub, b"").await, "");
    drop(first);
    let uri = format!("http://{}", hub.address);
    let looking = async {
        loop {
            let endpoint = tonic::transport::Endpoint::from_shared(uri.clone()).expect("a URI");
            if let Ok(channel) = endpoint.connect().await {
                let mut client = HealthClient::new(channel);
                let request = HealthCheckRequest { service: String::new() };
                if client.check(request).await.is_ok() {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), looking).await.expect("the place is free again");
}

fn closed_for(hub: &TestHub, reason: &'static str) -> u64 {
    hub.hub.context.metrics.connections_refused.get_or_create(&ReasonLabel { reason }).get()
}

#[tokio::test]
async fn connections_of_one_address_over_its_limit_are_closed_unless_it_is_exempt() {
    for (exempt, closed) in [(Vec::new(), 1), (vec!["127.0.0.0/8".parse().expect("a network")], 0)] {
        let limits = AddressLimits { per_address: 2, exempt };
        let hub = TestHub::with(HubSettings {
            listener: ListenerSettings { limits, ..Default::default() },
            ..HubSettings::default()
        })
        .await;
        let _agents = [hub.agent("a").await, hub.agent("b").await];
        if closed == 1 {
            assert_eq!(exchange(&hub, b"").await, "");
        } else {
            hub.agent("c").await;
        }
        assert_eq!(closed_for(&hub, "address"), closed);
    }
}

#[tokio::test]
async fn connections_without_a_stream_are_bounded_and_keep_no_agent_out() {
    let hub = TestHub::with(HubSettings {
        listener: ListenerSettings { without_stream_cap: 2, ..Default::default() },
        ..HubSettings::default()
    })
    .await;
    let _agent = hub.agent("a").await;
    let mut silent = Vec::new();
    for _ in 0..2 {
        silent.push(TcpStream::connect(hub.address).await.expect("the hub listens"));
    }
    eventually("both are there", || (hub.hub.context.metrics.connections.get() == 3).then_some(())).await;
    // Each that comes takes the place of the one that has been silent for the longest.
    let mut third = TcpStream::connect(hub.address).await.expect("the hub listens");
    third.write_all(PREFACE).await.expect("it is taken");
    assert_eq!(silent[0].read(&mut [0; 9]).await.expect("it is closed"), 0);
    hub.agent("b").await;
    assert_eq!(silent[1].read(&mut [0; 9]).await.expect("it is closed"), 0);
    assert_eq!(closed_for(&hub, "displaced"), 2);
    assert_eq!(hub.hub.agents().len(), 2);
}

#[tokio::test]
async fn a_connection_without_a_stream_is_closed_and_one_with_an_agent_stays() {
    let wait = Duration::from_millis(200);
    let settings = HubSettings {
        listener: ListenerSettings { request_wait: wait, idle_wait: wait, ..Default::default() },
        ..HubSettings::default()
    };
    let hub = TestHub::with(settings).await;
    let _agent = hub.agent("a").await;
    exchange(&hub, PREFACE).await;
    assert_eq!(closed_for(&hub, "no_request"), 1);
    let mut health = HealthClient::new(hub.channel().await);
    health.check(HealthCheckRequest { service: String::new() }).await.expect("it is served");
    eventually("it is closed", || (closed_for(&hub, "idle") == 1).then_some(())).await;
    assert_eq!(hub.hub.agents().len(), 1);
}

#[tokio::test]
async fn a_port_that_is_taken_is_one_clear_line() {
    let hub = TestHub::start().await;
    let settings = HubSettings {
        listener: ListenerSettings {
            address: "127.0.0.1".into(),
            port: hub.address.port(),
            ..Default::default()
        },
        ..HubSettings::default()
    };
    let problem =
        crate::hub::agent_admission::listener::bind(&settings.listener).await.expect_err("it is taken");
    assert!(matches!(problem, HubError::Bind { .. }));
    let line = problem.to_string();
    let port = format!("127.0.0.1:{}", hub.address.port());
    assert!(line.contains(&port) && line.contains("kubesvc.grpc.server.port"), "{line}");
}

#[tokio::test]
async fn health_is_served_for_each_service_and_the_whole() {
    let hub = TestHub::start().await;
    let mut client = HealthClient::new(hub.channel().await);
    for service in ["", "ops.Operations", "events.Caching"] {
        let answer = client.check(HealthCheckRequest { service: service.into() }).await;
        assert_eq!(answer.expect("it is known").into_inner().status, 1, "{service}");
    }
}

#[tokio::test]
async fn caching_is_not_built_yet_and_says_so() {
    let hub = TestHub::start().await;
    let mut client = CachingClient::new(hub.channel().await);
    let stream = tokio_stream::iter([events::CacheUp::default()]);
    let status = client.stream(stream).await.expect_err("it is refused");
    assert_eq!(status.code(), Code::Unimplemented);
}

#[tokio::test]
async fn reflection_lists_the_services() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let hub = TestHub::start().await;
    let mut client = ServerReflectionClient::new(hub.channel().await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answer = client.server_reflection_info(tokio_stream::iter([request])).await.expect("it is served");
    let answer = answer.into_inner().message().await.expect("it answers").expect("it answers");
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("expected a list, got {answer:?}");
    };
    let mut names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(
        names,
        ["events.Caching", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "ops.Operations"]
    );
}
