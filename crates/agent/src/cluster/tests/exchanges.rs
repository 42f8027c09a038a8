//! Methods, bodies, upgrades and cancellation, over HTTP/1.1 and HTTP/2.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{StreamExt as _, stream};
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::test_server::{ServerOptions, TestBody, TestResponse, acceptor, whole};
use super::*;
use kubesvc_runtime::telemetry::errors::chain;

pub(super) const HTTP2: ServerOptions = ServerOptions { http2_streams: Some(100) };
pub(super) const HTTP1: ServerOptions = ServerOptions { http2_streams: None };

/// Chunks of a body, sent by a test.
pub(super) type Chunks = mpsc::Sender<io::Result<Bytes>>;

pub(super) fn channel() -> (Chunks, ReceiverStream<io::Result<Bytes>>) {
    let (chunks, stream) = mpsc::channel(16);
    (chunks, ReceiverStream::new(stream))
}

fn streamed(stream: ReceiverStream<io::Result<Bytes>>) -> TestBody {
    StreamBody::new(stream.map(|chunk| chunk.map(Frame::data))).boxed_unsync()
}

/// A server whose responses last until the test ends them, and their senders in the order of the requests.
pub(super) async fn watches(
    authority: &Authority,
    options: ServerOptions,
) -> (TestServer, Arc<Mutex<Vec<Chunks>>>) {
    let senders: Arc<Mutex<Vec<Chunks>>> = Arc::default();
    let kept = senders.clone();
    let server = TestServer::scripted(authority, options, move |_| {
        let (chunks, stream) = channel();
        kept.lock().push(chunks);
        async move { Ok(Response::new(streamed(stream))) }
    });
    (server.await, senders)
}

pub(super) fn client(server: &TestServer, authority: &Authority) -> ClusterClient {
    client_in(&ClusterContext::default(), server, authority)
}

pub(super) fn client_in(
    context: &ClusterContext,
    server: &TestServer,
    authority: &Authority,
) -> ClusterClient {
    ClusterClient::new(cluster(&server.url(), Some(authority)), context).expect("a client")
}

pub(super) fn watch() -> ClusterRequest {
    ClusterRequest::new(Method::GET, "/api/v1/pods?watch=1")
}

/// The next chunk with content. The end of an HTTP/2 stream may come with an empty one.
pub(super) async fn chunk(body: &mut ResponseBody) -> Option<Bytes> {
    loop {
        let data = body.frame().await?.expect("a frame").into_data().expect("data");
        if !data.is_empty() {
            return Some(data);
        }
    }
}

/// Waits until a condition holds.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| unreachable!("{what}"));
}

#[tokio::test]
async fn bodies_are_streamed_both_ways_and_the_connection_is_used_again() {
    for (options, version) in [(HTTP1, Version::HTTP_11), (HTTP2, Version::HTTP_2)] {
        let authority = Authority::new();
        let server = TestServer::scripted(&authority, options, async |request: Request<Incoming>| {
            Ok(Response::new(request.into_body().map_err(io::Error::other).boxed_unsync()))
        })
        .await;
        let client = client(&server, &authority);
        for _ in 0..3 {
            let (chunks, body) = channel();
            let request = ClusterRequest::new(Method::POST, "/echo").body(RequestBody::stream(body));
            let response = client.send(Use::Watches, request).await.expect("a response");
            assert_eq!((response.status(), response.version()), (StatusCode::OK, version));
            let mut body = response.into_body();
            for said in ["one", "two"] {
                chunks.try_send(Ok(said.into())).expect("the request goes on");
                assert_eq!(chunk(&mut body).await.as_deref(), Some(said.as_bytes()));
            }
            drop(chunks);
            assert_eq!(chunk(&mut body).await, None);
        }
        assert_eq!(server.accepted(), 1, "{version:?}");
    }
}

type Seen = (Method, Uri, HeaderMap, Bytes);

/// A server that keeps what it is asked, and answers with a conflict.
async fn recording(authority: &Authority, options: ServerOptions) -> (TestServer, Arc<Mutex<Vec<Seen>>>) {
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let kept = seen.clone();
    let server = TestServer::scripted(authority, options, move |request: Request<Incoming>| {
        let kept = kept.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            kept.lock().push((head.method, head.uri, head.headers, body));
            let response = Response::builder().status(409).header("x-said", "so").body(whole("conflict"));
            response.map_err(io::Error::other)
        }
    });
    (server.await, seen)
}

#[tokio::test]
async fn any_method_arrives_with_its_headers_and_body_and_any_status_comes_back() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let (server, seen) = recording(&authority, options).await;
        let client = client(&server, &authority);
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let json = HeaderValue::from_static("application/merge-patch+json");
            let request = ClusterRequest::new(method.clone(), "/api/v1/pods/a%2Fb?dryRun=All")
                .header(CONTENT_TYPE, json.clone())
                .body(RequestBody::whole("{}"));
            let response = client.send(Use::Watches, request).await.expect("a response");
            assert_eq!(response.status(), StatusCode::CONFLICT);
            assert_eq!(response.headers()["x-said"], "so");
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            assert_eq!(body, "conflict");
            let (asked, uri, headers, body) = seen.lock().pop().expect("it was asked");
            assert_eq!((asked, body), (method, Bytes::from("{}")));
            assert_eq!(uri.path_and_query().expect("a path"), "/api/v1/pods/a%2Fb?dryRun=All");
            assert_eq!((&headers[CONTENT_TYPE], &headers[CONTENT_LENGTH]), (&json, &HeaderValue::from(2)));
        }
        assert_eq!(server.accepted(), 1);
    }
}

#[tokio::test]
async fn recipient_credential_and_encoding_are_the_clients_alone() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let (server, seen) = recording(&authority, options).await;
        let mut request = ClusterRequest::new(Method::GET, "/version");
        for (name, value) in [
            (HOST, "elsewhere.example"),
            (AUTHORIZATION, "Bearer another"),
            (COOKIE, "a=b"),
            (ACCEPT_ENCODING, "gzip"),
            (CONTENT_LENGTH, "7"),
            (TRANSFER_ENCODING, "gzip"),
            (UPGRADE, "h2c"),
        ] {
            request = request.header(name, HeaderValue::from_static(value));
        }
        client(&server, &authority).send(Use::Watches, request).await.expect("a response");
        let (_, uri, headers, body) = seen.lock().pop().expect("it was asked");
        let authorization: Vec<_> = headers.get_all(AUTHORIZATION).iter().collect();
        assert_eq!(authorization, [format!("Bearer {TOKEN}").as_str()]);
        assert_eq!(headers[ACCEPT_ENCODING], "identity");
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = host.or(uri.authority().map(http::uri::Authority::as_str));
        assert_eq!(host, Some(server.address.to_string().as_str()));
        assert!(
            [COOKIE, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE]
                .iter()
                .all(|name| !headers.contains_key(name))
        );
        assert!(body.is_empty());
    }
}

#[tokio::test]
async fn only_requests_of_the_agent_itself_name_it() {
    let authority = Authority::new();
    let (server, seen) = recording(&authority, HTTP1).await;
    let client = client(&server, &authority);
    for (purpose, named) in [(Use::Watches, true), (Use::Requests, false)] {
        let request = ClusterRequest::new(Method::GET, "/version");
        client.send(purpose, request).await.expect("a response");
        let (_, _, headers, _) = seen.lock().pop().expect("it was asked");
        assert_eq!(headers.contains_key(http::header::USER_AGENT), named, "{purpose:?}");
    }
}

#[tokio::test]
async fn what_is_no_path_is_not_sent() {
    let authority = Authority::new();
    let (server, _) = recording(&authority, HTTP1).await;
    for path in ["/a b", "/a\r\nx: y", "@elsewhere.example/"] {
        let request = ClusterRequest::new(Method::GET, path);
        let error = client(&server, &authority).send(Use::Requests, request).await.expect_err(path);
        assert!(matches!(error, ClusterError::Request { .. } | ClusterError::Path { .. }), "{error:?}");
        assert!(error.is_before_send());
    }
    assert_eq!(server.accepted(), 0);
}

/// Upgrades a connection to an echo, as an API server does for exec; without `Upgrade`, it refuses.
async fn upgrading(mut request: Request<Incoming>) -> TestResponse {
    let Some(protocol) = request.headers().get(UPGRADE).cloned() else {
        return Ok(Response::builder().status(400).body(whole("no upgrade")).expect("a response"));
    };
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut io = TokioIo::new(upgraded.await.expect("an upgrade"));
        let mut buffer = [0; 64];
        while let Ok(read @ 1..) = io.read(&mut buffer).await {
            if io.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    });
    let response = Response::builder().status(101).header("connection", "Upgrade").header(UPGRADE, protocol);
    Ok(response.body(whole("")).expect("a response"))
}

#[tokio::test]
async fn a_connection_is_upgraded_and_counts_until_it_is_dropped() {
    let authority = Authority::new();
    let server = TestServer::scripted(&authority, HTTP2, upgrading).await;
    let limits = |purpose| PoolLimits { connections: 1, ..PoolLimits::of(purpose) };
    let context = ClusterContext { pool_limits: limits, ..ClusterContext::default() };
    let client = client_in(&context, &server, &authority);
    let exec = || ClusterRequest::new(Method::POST, "/exec").upgrade(HeaderValue::from_static("websocket"));
    let response = client.send(Use::Requests, exec()).await.expect("a response");
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()[UPGRADE], "websocket");
    let mut connection = response.upgrade().await.expect("an upgrade");
    for said in ["one", "two"] {
        connection.write_all(said.as_bytes()).await.expect("it is sent");
        let mut echo = [0; 3];
        connection.read_exact(&mut echo).await.expect("an echo");
        assert_eq!(echo, said.as_bytes());
    }
    let second = tokio::spawn(async move { client.send(Use::Requests, exec()).await.map(|_| ()) });
    tokio::task::yield_now().await;
    assert!(!second.is_finished() && server.accepted() == 1, "the pool has room for one connection");
    drop(connection);
    second.await.expect("no panic").expect("a response");
}

#[tokio::test]
async fn an_upgrade_over_a_kept_connection_that_is_not_taken_makes_room_for_the_next() {
    let authority = Authority::new();
    let server = TestServer::scripted(&authority, HTTP2, upgrading).await;
    let limits = |purpose| PoolLimits { connections: 1, ..PoolLimits::of(purpose) };
    let context = ClusterContext { pool_limits: limits, ..ClusterContext::default() };
    let client = client_in(&context, &server, &authority);
    for upgrades in 1..4 {
        client.get(Use::Requests, "/exec", "*/*").await.expect_err("no upgrade, and a kept connection");
        let exec = ClusterRequest::new(Method::GET, "/exec").upgrade(HeaderValue::from_static("websocket"));
        let response = client.send(Use::Requests, exec).await.expect("a response");
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(server.accepted(), upgrades, "each closes its connection");
        drop(response);
    }
    until("the last one closes", || server.open() == 0).await;
}

#[tokio::test]
async fn an_upgrade_that_does_not_come_is_an_error() {
    let authority = Authority::new();
    let server = TestServer::scripted(&authority, HTTP2, upgrading).await;
    let client = client(&server, &authority);
    let response = client.send(Use::Requests, ClusterRequest::new(Method::GET, "/exec")).await;
    let error = response.expect("a response").upgrade().await.expect_err("no upgrade");
    assert!(matches!(error, ClusterError::NotUpgraded { .. }), "{error:?}");
    let exec = ClusterRequest::new(Method::GET, "/exec").upgrade(HeaderValue::from_static("websocket"));
    let error = client.send(Use::Watches, exec).await.expect_err("watches may use HTTP/2");
    assert!(matches!(error, ClusterError::UpgradeOverHttp2 { .. }) && error.is_before_send(), "{error:?}");
}

#[tokio::test]
async fn a_dropped_response_is_cancelled_and_its_neighbours_go_on() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let (server, senders) = watches(&authority, options).await;
        let client = client(&server, &authority);
        let mut responses = Vec::new();
        for _ in 0..2 {
            responses.push(client.send(Use::Watches, watch()).await.expect("a response").into_body());
        }
        drop(responses.remove(0));
        let senders = senders.lock().clone();
        senders[0].closed().await;
        senders[1].try_send(Ok("still there".into())).expect("the second goes on");
        assert_eq!(chunk(&mut responses[0]).await.as_deref(), Some("still there".as_bytes()));
    }
}

#[tokio::test]
async fn a_request_without_a_response_is_cancelled_by_dropping_it() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let running = Arc::new(AtomicUsize::new(0));
        let counted = running.clone();
        let server = TestServer::scripted(&authority, options, move |_| {
            let running = Running::new(&counted);
            async move {
                let _running = running;
                pending::<TestResponse>().await
            }
        })
        .await;
        let client = client(&server, &authority);
        let request = tokio::spawn(async move { client.send(Use::Watches, watch()).await.map(|_| ()) });
        until("the request arrives", || running.load(Ordering::SeqCst) == 1).await;
        request.abort();
        until("the server stops working on it", || running.load(Ordering::SeqCst) == 0).await;
    }
}

/// Counts as long as it lives.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_request_whose_connection_breaks_is_not_sent_again() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let server = TestServer::scripted(&authority, options, async |request: Request<Incoming>| {
            match request.uri().path() {
                "/good" => Ok(Response::new(whole("good"))),
                _ => Err(io::Error::other("broken")),
            }
        })
        .await;
        let client = client(&server, &authority);
        client.get(Use::Watches, "/good", "*/*").await.expect("a response, and a kept connection");
        let request = ClusterRequest::new(Method::POST, "/breaks").body(RequestBody::whole("{}"));
        let error = client.send(Use::Watches, request).await.expect_err("no response");
        assert!(matches!(error, ClusterError::Broken { .. }) && !error.is_before_send(), "{error:?}");
        assert_eq!(error.class(), Class::Unreachable, "{error:?}");
        assert_eq!(server.paths(), ["/good", "/breaks"]);
    }
}

#[tokio::test]
async fn a_body_that_fails_aborts_its_request() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let (server, _) = recording(&authority, options).await;
        let (chunks, body) = channel();
        let request = ClusterRequest::new(Method::POST, "/api").body(RequestBody::stream(body));
        chunks.try_send(Ok("a part".into())).expect("room");
        chunks.try_send(Err(io::Error::other("the caller is gone"))).expect("room");
        let error = client(&server, &authority).send(Use::Watches, request).await.expect_err("no response");
        assert!(matches!(error, ClusterError::Broken { .. }), "{error:?}");
    }
}

/// Size of a chunk of an endless body.
const CHUNK_BYTES: usize = 16 * 1024;
/// Size at which a body ends that is buffered whole, against expectation.
const ENDLESS_BYTES: usize = 512 * 1024 * 1024;

/// Chunks, almost without end, of which it is counted how many bytes were taken.
fn endless(taken: &Arc<AtomicUsize>) -> impl futures::Stream<Item = io::Result<Bytes>> + use<> {
    let (taken, chunk) = (taken.clone(), Bytes::from(vec![b'x'; CHUNK_BYTES]));
    let chunks = stream::repeat_with(move || {
        taken.fetch_add(CHUNK_BYTES, Ordering::SeqCst);
        Ok(chunk.clone())
    });
    chunks.take(ENDLESS_BYTES / CHUNK_BYTES)
}

/// Over HTTP/1.1, the kernel's buffers of a connection are the larger part.
const MAX_UNREAD: [(ServerOptions, usize); 2] = [(HTTP1, 40 * 1024 * 1024), (HTTP2, 1024 * 1024)];

#[tokio::test]
async fn a_response_that_is_not_read_is_not_buffered_and_delays_no_other() {
    for (options, max_unread) in MAX_UNREAD {
        let authority = Authority::new();
        let sent: [Arc<AtomicUsize>; 2] = Default::default();
        let counted = sent.clone();
        let server = TestServer::scripted(&authority, options, move |request| {
            let body = endless(&counted[usize::from(request.uri().path() == "/read")]);
            async move {
                Ok(Response::new(StreamBody::new(body.map(|chunk| chunk.map(Frame::data))).boxed_unsync()))
            }
        })
        .await;
        let client = client(&server, &authority);
        let get = async |path| client.send(Use::Watches, ClusterRequest::new(Method::GET, path)).await;
        let mut unread = get("/unread").await.expect("a response").into_body();
        chunk(&mut unread).await.expect("a first chunk");
        let mut body = get("/read").await.expect("a response").into_body();
        let mut read = 0;
        while read < 2 * max_unread {
            read += chunk(&mut body).await.expect("a chunk").len();
        }
        let [unread, sent] = sent.map(|sent| sent.load(Ordering::SeqCst));
        assert!(unread < max_unread, "{unread} bytes that nobody reads, {options:?}");
        assert!(sent < read + max_unread, "{sent} bytes sent where {read} were read, {options:?}");
    }
}

#[tokio::test]
async fn the_body_of_a_request_is_not_buffered_whole() {
    const READ_BYTES: usize = 4 * 1024 * 1024;
    for (options, max_unread) in MAX_UNREAD {
        let authority = Authority::new();
        let server = TestServer::scripted(&authority, options, async |mut request: Request<Incoming>| {
            let mut read = 0;
            while read < READ_BYTES {
                let frame = request.body_mut().frame().await.expect("a frame").map_err(io::Error::other)?;
                read += frame.into_data().map_or(0, |data| data.len());
            }
            Ok(Response::new(whole("enough")))
        })
        .await;
        let taken = Arc::default();
        let request = ClusterRequest::new(Method::POST, "/").body(RequestBody::stream(endless(&taken)));
        client(&server, &authority).send(Use::Watches, request).await.expect("a response");
        let taken = taken.load(Ordering::SeqCst);
        let max = READ_BYTES + 4 * max_unread;
        assert!((READ_BYTES..max).contains(&taken), "{taken} bytes taken, {options:?}");
    }
}

#[tokio::test]
async fn a_dropped_response_ends_the_body_of_its_request() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let (server, _senders) = watches(&authority, options).await;
        let client = client(&server, &authority);
        let running = Arc::default();
        let guard = Running::new(&running);
        let body = stream::once(async move {
            let _guard = guard;
            pending().await
        });
        let request = ClusterRequest::new(Method::POST, "/attach").body(RequestBody::stream(body));
        let response = client.send(Use::Watches, request).await.expect("a response");
        assert_eq!(running.load(Ordering::SeqCst), 1);
        drop(response);
        until("the body ends", || running.load(Ordering::SeqCst) == 0).await;
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_in_a_body_is_an_error_that_says_so() {
    for (options, cuts_connection) in [(HTTP1, true), (HTTP1, false), (HTTP2, true), (HTTP2, false)] {
        let authority = Authority::new();
        let (server, senders) = watches(&authority, options).await;
        let (url, client) = (server.url(), client(&server, &authority));
        let response = client.send(Use::Watches, watch()).await.expect("a response");
        let mut body = response.into_body();
        let sender = senders.lock().remove(0);
        sender.try_send(Ok("a part".into())).expect("it is read");
        assert_eq!(chunk(&mut body).await.as_deref(), Some("a part".as_bytes()));
        if cuts_connection {
            drop(server);
        } else {
            sender.try_send(Err(io::Error::other("no more"))).expect("it is read");
        }
        let error = body.frame().await.expect("no end").expect_err("an error");
        assert!(matches!(error, ClusterError::Broken { .. }) && !error.is_before_send(), "{error:?}");
        let failure = Failure::from(error);
        let expected = ["the server closed the connection", "the connection broke: "]
            .map(|meaning| format!("GET /api/v1/pods of {url}: {meaning}"));
        assert!(expected.iter().any(|start| failure.message.starts_with(start)), "{}", failure.message);
        assert!(failure.retryable, "{failure:?}");
    }
}

#[tokio::test]
async fn the_head_of_a_response_is_bounded() {
    for options in [HTTP1, HTTP2] {
        let authority = Authority::new();
        let server = TestServer::scripted(&authority, options, async |request: Request<Incoming>| {
            let mut response = Response::builder();
            for name in request.uri().path()[1..].split('/') {
                response = response.header(name, "x".repeat(50 * 1024));
            }
            response.body(whole("{}")).map_err(io::Error::other)
        })
        .await;
        let client = client(&server, &authority);
        client.get(Use::Watches, "/a/b", "*/*").await.expect("a head of 100 KiB");
        let error = client.get(Use::Watches, "/a/b/c", "*/*").await.expect_err("a head of 150 KiB");
        assert!(matches!(error, ClusterError::Broken { .. }), "{error:?}");
    }
}

/// A server may echo the credential; what it sends, like what it is sent, may hold other secrets.
#[tokio::test]
async fn neither_credential_nor_content_is_in_debug_output() {
    let authority = Authority::new();
    let server = TestServer::scripted(&authority, HTTP1, async |request: Request<Incoming>| {
        let status = if request.uri().path() == "/refused" { 403 } else { 200 };
        let response = Response::builder().status(status).header("x-echo", TOKEN);
        response.body(whole(super::status(TOKEN))).map_err(io::Error::other)
    })
    .await;
    let (cluster, context) = (cluster(&server.url(), Some(&authority)), ClusterContext::default());
    let client = ClusterClient::new(cluster.clone(), &context).expect("a client");
    let request = || {
        let request = ClusterRequest::new(Method::POST, "/api").body(RequestBody::whole(TOKEN));
        request.header(CONTENT_TYPE, HeaderValue::from_static(TOKEN))
    };
    let response = client.send(Use::Requests, request()).await.expect("a response");
    let document = client.get(Use::Requests, "/api", "*/*").await.expect("a response");
    let error = client.get(Use::Requests, "/refused", "*/*").await.expect_err("403");
    let shown = format!(
        "{cluster:?} {context:?} {client:?} {:?} {response:?} {document:?} {error:?} {error}",
        request()
    );
    let shown = format!("{shown} {:?}", response.into_body());
    for part in TOKEN.as_bytes().windows(8) {
        let part = std::str::from_utf8(part).expect("ASCII");
        assert!(!shown.contains(part), "{part} in {shown}");
    }
    assert!(document.body.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes()), "it was there");
}

/// What a user runs in a container is in the query of an exec, with the passwords on its command line.
#[tokio::test]
async fn no_query_is_in_an_error_or_in_debug_output() {
    const EXEC: &str = "/api/v1/namespaces/a/pods/p/exec?command=login&command=hunter2";
    let authority = Authority::new();
    let server = TestServer::scripted(&authority, HTTP1, async |request: Request<Incoming>| {
        match request.uri().path() {
            "/refused" => Ok(Response::builder().status(403).body(whole("{}")).expect("a response")),
            _ => Err(io::Error::other("no answer")),
        }
    })
    .await;
    let (client, upgrade) = (client(&server, &authority), HeaderValue::from_static("SPDY/3.1"));
    let exec = || ClusterRequest::new(Method::POST, EXEC).upgrade(upgrade.clone());
    let errors = [
        client.send(Use::Requests, exec()).await.expect_err("no answer"),
        client.send(Use::Watches, exec()).await.expect_err("no upgrade over HTTP/2"),
        client.get(Use::Requests, "/refused?of=hunter2", "*/*").await.expect_err("403"),
        client.get(Use::Requests, "/broken?of=hunter2", "*/*").await.expect_err("no answer"),
    ];
    let said = "POST /api/v1/namespaces/a/pods/p/exec of https://127.0.0.1:";
    assert!(chain(&errors[0]).starts_with(said), "{}", chain(&errors[0]));
    assert_eq!(server.paths()[0], EXEC, "it is sent all the same");
    for error in errors {
        let (shown, failure) = (format!("{error:?} {} {:?}", chain(&error), exec()), Failure::from(error));
        for text in [&shown, &failure.message] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}

/// A server that can tell the agent's credential to others must not have it shown.
#[tokio::test]
async fn what_a_server_says_when_it_ends_an_http2_connection_is_not_shown() {
    let authority = Authority::new();
    let (acceptor, _) = acceptor(&authority, HTTP2);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut stream = acceptor.accept(stream).await.expect("a handshake");
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let length = u8::try_from(8 + TOKEN.len()).expect("a short token");
        // GOAWAY: last stream 0, ENHANCE_YOUR_CALM, and free text.
        let goaway = [0, 0, length, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11];
        let said = [&settings[..], &goaway, TOKEN.as_bytes()].concat();
        stream.write_all(&said).await.expect("it is sent");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    let cluster = cluster(&url, Some(&authority));
    let client = ClusterClient::new(cluster, &ClusterContext::default()).expect("a client");
    let error = client.get(Use::Watches, "/version", "*/*").await.expect_err("no response");
    let (shown, debug, failure) = (chain(&error), format!("{error:?}"), Failure::from(error));
    for text in [&shown, &failure.message] {
        assert!(text.starts_with("GET /version of https://127.0.0.1:"), "{text}");
    }
    for text in [&shown, &debug, &failure.message] {
        assert!(!text.contains(&TOKEN[..8]), "{text}");
    }
}
