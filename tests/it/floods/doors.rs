//! Floods of the API of accounts (6443) and of operations (7002), beside honest callers of the same account.
//!
//! | flood | of |
//! |---|---|
//! | heads | requests with large heads and forged tokens, from several addresses |
//! | messages | answers of an agent whose failures have huge messages |
//! | idle | connections that send nothing, from one address |
//! | unread | answers that their caller does not read |
//! | manifests | operations with 3.5 MB of YAML, of a caller with rights and of one without |
//! | silent | bodies that send no byte, at both ports |
//! | unknown | requests without a token |

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kubesvc_core::State;
use kubesvc_core::wire::common::{Failure, failure::Class};
use kubesvc_core::wire::ops::{Abort, Begin, RequestUp, request_down, request_up};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::callers::{Callers, dial};
use super::measurements::{FloodMeasurement, Measurements, PROBER};
use crate::gateway::place::{ACCOUNT, EVERYTHING, Place, path_of};
use crate::gateway::refusals::{client_config, connector};
use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::simulated_agent::SimulatedAgent;
use kubesvc_testkit::simulated_agent::frames::{Introduction, Policy};
use kubesvc_testkit::wait::eventually;
use kubesvc_testkit::{must, ports};

/// Connections and requests on each of a flood of requests.
const CONNECTIONS: usize = 16;
const STREAMS: usize = 100;
/// Size of a head, in bytes, and number of heads.
const HEAD: usize = 60_000;
const HEADS: usize = 12_800;
/// Size of a manifest, in bytes.
const MANIFEST: usize = 3_500_000;
/// Account of the agent whose messages are huge, and its zone.
const BABBLER: &str = "babbler";
/// Size of the growth of the log that a flood may cause, in bytes: a line a second for each address and reason.
const LOG: u64 = 512 * 1024;

type TlsTo = TlsStream<TcpStream>;

/// The HTTPS port of the API of accounts.
#[derive(Clone)]
pub(super) struct Door {
    port: u16,
    tls: TlsConnector,
    /// The same for HTTP/2.
    http2: TlsConnector,
    namespace: String,
}

/// A caller who may use the account.
#[derive(Clone)]
pub(super) struct HonestCaller {
    door: Door,
    token: String,
}

impl Door {
    async fn dial(&self, from: Ipv4Addr) -> Result<TlsTo, String> {
        self.dial_by(&self.tls, from).await
    }

    async fn dial_by(&self, tls: &TlsConnector, from: Ipv4Addr) -> Result<TlsTo, String> {
        let stream = dial(from, self.port).await.map_err(|e| e.to_string())?;
        let name = ServerName::try_from("localhost").expect("a name");
        tls.connect(name, stream).await.map_err(|e| e.to_string())
    }

    fn request(
        &self,
        method: Method,
        account: &str,
        path: &str,
        token: Option<&str>,
    ) -> http::request::Builder {
        let path = format!("https://localhost{}{path}", path_of(&self.namespace, account));
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        match token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    /// Makes requests, as long as there are more, over this many connections of HTTP/2, each of an address of its own.
    async fn requests<F>(&self, network: u8, connections: usize, window: Option<u32>, request: F)
    where
        F: Fn() -> Option<Request<Full<Bytes>>> + Clone + Send + Sync + 'static,
    {
        let mut flood = JoinSet::<()>::new();
        for number in 0..connections {
            let (door, request) = (self.clone(), request.clone());
            let from = Callers::of(self.port, network).address(number, 1);
            flood.spawn(async move {
                loop {
                    let Ok(stream) = door.dial_by(&door.http2, from).await else { continue };
                    let mut http = http2::Builder::new(TokioExecutor::new());
                    http.initial_stream_window_size(window);
                    let Ok((sender, connection)) = http.handshake(TokioIo::new(stream)).await else {
                        continue;
                    };
                    let connection = tokio::spawn(connection);
                    let stream = |mut sender: http2::SendRequest<Full<Bytes>>| {
                        let request = request.clone();
                        async move {
                            while sender.ready().await.is_ok() {
                                let Some(request) = request() else { return std::future::pending().await };
                                let Ok(answer) = sender.send_request(request).await else { break };
                                let _ = answer.into_body().collect().await;
                            }
                        }
                    };
                    join_all((0..STREAMS).map(|_| stream(sender.clone()))).await;
                    connection.abort();
                }
            });
        }
        flood.join_all().await;
    }
}

/// Sends a request over a connection of its own.
async fn send<S>(stream: S, mut request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    tokio::spawn(connection);
    // HTTP/2 names the server in it.
    if let Some(path) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = path.into();
    }
    let answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
    let status = answer.status();
    let body = answer.into_body().collect().await.map_err(|e| e.to_string())?;
    Ok((status, body.to_bytes()))
}

impl HonestCaller {
    /// A read, and a write with a body, which changes nothing.
    pub(super) async fn call(&self) -> Result<(), String> {
        let (door, token) = (&self.door, Some(self.token.as_str()));
        let maps = "/api/v1/namespaces/default/configmaps";
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "honest-"},
            "data": {"large": "x".repeat(100_000)},
        });
        let read = door.request(Method::GET, ACCOUNT, maps, token).body(Full::default());
        let write = door
            .request(Method::POST, ACCOUNT, &format!("{maps}?dryRun=All"), token)
            .header("content-type", "application/json")
            .body(Full::from(map.to_string()));
        for request in [read, write] {
            let request = request.map_err(|e| e.to_string())?;
            let (status, body) = send(door.dial(PROBER).await?, request).await?;
            if !status.is_success() {
                return Err(format!("{status}: {}", String::from_utf8_lossy(&body)));
            }
        }
        Ok(())
    }
}

/// Runs all floods, one after the other, each for this long, and returns what was measured during each.
pub(super) async fn floods(held: Duration) -> Vec<FloodMeasurement> {
    must(kubesvc_runtime::process::raise_open_files().map_err(|e| e.to_string()));
    let health = ports::free();
    let prepare = World::prepare().with_shipped_settings().setting("server.health.port", health);
    let place = Place::of(prepare.setting("kubesvc.agents.approval", "auto"), false, "info").await;
    let [honest, other] = [
        place.person("ann", EVERYTHING, Some("kubesvc")).await,
        place.person("mallory", EVERYTHING, Some("kubesvc")).await,
    ];
    let stranger = place.person("eve", "[]", Some("kubesvc")).await;
    let _babbler = babbling_agent(&place).await;
    let mut http2 = client_config(&place.authority, None);
    http2.alpn_protocols = vec![b"h2".to_vec()];
    let door = Door {
        port: place.port,
        tls: connector(&place.authority, None),
        http2: TlsConnector::from(Arc::new(http2)),
        namespace: place.world.namespace().to_owned(),
    };
    let honest = HonestCaller { door: door.clone(), token: honest };
    eventually("an honest call", MAX_WAIT, async || honest.call().await).await;
    let measurements = Measurements::new(&place.world, &place.agent, ACCOUNT, Some(health)).await;
    let measurements = measurements.calling(honest.clone()).after_rest(held).await;
    let rest = place.world.operator().rest_port();
    let mut measured = Vec::new();
    let mut flood = async |name: &'static str, flood: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        let log = log_bytes(&place);
        // The end is that of the flood itself, not a wait for a condition.
        let flooded = async { _ = tokio::time::timeout(held, flood).await };
        measured.push(measurements.during(name, flooded).await);
        println!("{}", measured.last().expect("it was measured"));
        let grown = log_bytes(&place) - log;
        assert!(grown < LOG, "{name}: the log grew by {grown} bytes");
        eventually("an honest call after the flood", MAX_WAIT, async || honest.call().await).await;
        eventually("memory that is given back", MAX_WAIT, async || measurements.is_settled()).await;
    };

    flood("heads, forged tokens", Box::pin(heads(door.clone(), CONNECTIONS))).await;
    flood("heads, of one address", Box::pin(heads(door.clone(), 1))).await;
    flood("messages of an agent", Box::pin(messages(door.clone(), other.clone()))).await;
    flood("idle, of one address", Box::pin(idle(door.clone()))).await;
    flood("unread answers", Box::pin(unread(door.clone(), other.clone()))).await;
    flood("manifests, without rights", Box::pin(manifests(rest, stranger))).await;
    flood("manifests, with rights", Box::pin(manifests(rest, other.clone()))).await;
    flood("silent bodies", Box::pin(silent_bodies(door.clone(), rest, other))).await;
    flood("unknown callers", Box::pin(unknown_callers(door))).await;
    measured
}

fn log_bytes(place: &Place) -> u64 {
    place.world.operator().log_text().len().try_into().expect("it is short")
}

async fn heads(door: Door, connections: usize) {
    let (forged, filler) = (Arc::new(AtomicUsize::new(0)), "x".repeat(HEAD));
    let of = door.clone();
    let request = move || {
        let number = forged.fetch_add(1, Ordering::Relaxed);
        if number >= HEADS {
            return None;
        }
        let request = of.request(Method::GET, ACCOUNT, "/version", Some(&format!("forged-{number}")));
        Some(request.header("x-filler", &filler).body(Full::default()).expect("a request"))
    };
    door.requests(10, connections, None, request).await;
}

async fn messages(door: Door, token: String) {
    let of = door.clone();
    let request =
        move || of.request(Method::GET, BABBLER, "/version", Some(&token)).body(Full::default()).ok();
    door.requests(11, 1, None, request).await;
}

async fn idle(door: Door) {
    let _open = Callers::of(door.port, 12).connect(1_022, 1_022, b"").await;
    std::future::pending::<()>().await;
}

async fn unread(door: Door, token: String) {
    let of = door.clone();
    let request =
        move || of.request(Method::GET, ACCOUNT, "/openapi/v2", Some(&token)).body(Full::default()).ok();
    door.requests(13, 2, Some(0), request).await;
}

/// Operations of one caller, eight at a time: a map of many keys, and a Deployment with many variables.
async fn manifests(rest: u16, token: String) {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: large, namespace: default}\ndata:\n";
    let map = lines(map, |key| format!("  k{key:06}: 'some value'\n"));
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: large, namespace: default}\nspec:\n  \
        selector: {matchLabels: {app: large}}\n  template:\n    metadata: {labels: {app: large}}\n    spec:\n      \
        containers:\n      - name: large\n        image: none\n        env:\n";
    let value = "x".repeat(120);
    let deployment =
        lines(deployment, |key| format!("        - {{name: VARIABLE_{key:06}, value: '{value}'}}\n"));
    let bodies = [map, deployment].map(|manifest| {
        let deploy = json!({"manifest": {"data": manifest}});
        Bytes::from(json!({"operation": {"account": {"name": ACCOUNT}, "deploy": deploy}}).to_string())
    });
    let mut flood = JoinSet::<()>::new();
    for number in 0..8 {
        let (body, token) = (bodies[number % 2].clone(), token.clone());
        flood.spawn(async move {
            loop {
                let request = Request::post("/armory/agent/operations?wait=20s")
                    .header("host", "localhost")
                    .header("authorization", format!("Bearer {token}"))
                    .header("content-type", "application/json")
                    .body(Full::from(body.clone()))
                    .expect("a request");
                if let Ok(stream) = dial(Ipv4Addr::new(127, 14, 0, 1), rest).await {
                    let _ = send(stream, request).await;
                }
            }
        });
    }
    flood.join_all().await;
}

/// A manifest that begins with this text and has as many lines as fit.
fn lines(text: &str, line: impl Fn(usize) -> String) -> String {
    let mut text = text.to_owned();
    let mut key = 0;
    while text.len() < MANIFEST {
        text.push_str(&line(key));
        key += 1;
    }
    text
}

/// Bodies that are announced and do not come: 32 at each port.
async fn silent_bodies(door: Door, rest: u16, token: String) {
    let head = |method, path: &str| {
        format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: 2000000\r\n\r\n"
        )
    };
    let at_the_door = format!("{}/api/v1/namespaces/default/configmaps", path_of(&door.namespace, ACCOUNT));
    let (at_the_door, at_rest) = (head("POST", &at_the_door), head("PATCH", "/armory/accounts"));
    let mut flood = JoinSet::<()>::new();
    for _ in 0..32 {
        let (door, head, from) = (door.clone(), at_the_door.clone(), Ipv4Addr::new(127, 15, 0, 1));
        flood.spawn(async move {
            loop {
                if let Ok(stream) = door.dial(from).await {
                    wait_for_its_end(stream, &head).await;
                }
            }
        });
        let head = at_rest.clone();
        flood.spawn(async move {
            loop {
                if let Ok(stream) = dial(from, rest).await {
                    wait_for_its_end(stream, &head).await;
                }
            }
        });
    }
    flood.join_all().await;
}

async fn wait_for_its_end<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, head: &str) {
    if stream.write_all(head.as_bytes()).await.is_ok() {
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}

async fn unknown_callers(door: Door) {
    let of = door.clone();
    let request = move || of.request(Method::GET, ACCOUNT, "/version", None).body(Full::default()).ok();
    door.requests(16, 4, None, request).await;
}

/// An agent with an account of its own, whose every request fails with a message of 600 KB.
async fn babbling_agent(place: &Place) -> (SimulatedAgent, JoinSet<()>) {
    let world = &place.world;
    let hub = world.operator().hub_port();
    let introduction =
        Introduction { capabilities: vec!["requests/1".to_owned()], ..Introduction::new(BABBLER, BABBLER) };
    let (agent_id, boot_id) = (introduction.agent_id.clone(), introduction.boot_id.clone());
    let agent = SimulatedAgent::connect(&format!("127.0.0.1:{hub}"), introduction, Policy::default()).await;
    let agent = must(agent.map_err(|e| e.to_string()));
    world.account(BABBLER).zone(BABBLER).kubeconfig(&place.target.admin_kubeconfig()).create().await;
    world.until(BABBLER, State::Active).await;

    let channel = Callers::of(hub, 17).channel(Ipv4Addr::new(127, 17, 0, 1)).await.expect("it connects");
    let (frames, outgoing) = tokio::sync::mpsc::channel(64);
    let begin = Begin {
        session_id: agent.accepted().session_id.clone(),
        agent_id,
        boot_id,
        replica_id: world.operator().replica_id().to_owned(),
        apply: None,
    };
    let begin = RequestUp { id: 0, frame: Some(request_up::Frame::Begin(begin)) };
    must(frames.send(begin).await.map_err(|e| e.to_string()));
    let mut client = OperationsClient::new(channel);
    let answers = client.requests(tokio_stream::wrappers::ReceiverStream::new(outgoing)).await;
    let mut answers = must(answers.map_err(|e| e.to_string())).into_inner();
    let failure =
        Failure { class: Class::Internal.into(), message: "forbidden ".repeat(60_000), ..Failure::default() };
    let mut running = JoinSet::new();
    running.spawn(async move {
        while let Ok(Some(frame)) = answers.message().await {
            let Some(request_down::Frame::Open(_)) = frame.frame else { continue };
            let abort = request_up::Frame::Abort(Abort { failure: Some(failure.clone()) });
            if frames.send(RequestUp { id: frame.id, frame: Some(abort) }).await.is_err() {
                break;
            }
        }
    });
    (agent, running)
}
