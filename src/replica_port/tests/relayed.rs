//! Requests to accounts that one replica relays to another: the router at one end, the port for replicas at the other, over real
//! connections with TLS, with scripted agents.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use prost::bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ScriptedRights, ports};
use crate::connected_agents::{
    AccountGrant, AccountRequest, AccountRequests, AccountResponse, AnsweringAgent, AskedAgent, CallerRight,
    ReplicaRequests, RequestCaller, RequestError, RequestErrorKind as Kind, Retry, Suspects,
};
use crate::informers::AgentIndex;
use crate::peers::{PeerIdentity, Peers};
use crate::replica_port::router;
use crate::request_routing::RequestRouter;
use async_trait::async_trait;
use kubesvc_core::wire::ops;
use kubesvc_core::{AgentId, GrantEpoch, KubesvcAgent, ZoneId};
use kubesvc_runtime::background_tasks::TaskRegistry;
use serde_json::json;
use std::sync::Arc;

/// What a scripted agent does with its next request.
enum Act {
    /// Answers with these parts; an error cuts the answer.
    Answer(u16, Vec<Result<Bytes, RequestError>>),
    /// Answers with what the test sends.
    Follow(mpsc::Receiver<Bytes>),
    /// Says so.
    Fail(RequestError),
    /// Was asked, and says nothing more.
    Hang,
    /// Sends back what the caller of the upgraded request sends.
    Echo,
}

/// A request as an agent had it.
#[derive(Clone, Debug)]
struct Had {
    method: Method,
    target: String,
    headers: HeaderMap,
    body: Bytes,
    caller: RequestCaller,
    keep_answer: bool,
}

/// The scripted agents of a replica.
struct Agents {
    name: &'static str,
    has_agent: AtomicBool,
    /// Whether an agent is expected back where there is none.
    is_expected: AtomicBool,
    /// The epoch of the grant that the replica knows.
    epoch: Mutex<GrantEpoch>,
    acts: Mutex<VecDeque<Act>>,
    had: Mutex<Vec<Had>>,
    recalls: Mutex<VecDeque<Result<(u16, Bytes), RequestError>>>,
    forgotten: Mutex<Vec<String>>,
    streams: watch::Sender<u64>,
}

impl Agents {
    fn new(name: &'static str, has_agent: bool) -> Arc<Self> {
        Arc::new(Self {
            name,
            has_agent: AtomicBool::new(has_agent),
            is_expected: AtomicBool::new(false),
            epoch: Mutex::new(GrantEpoch(5)),
            acts: Mutex::default(),
            had: Mutex::default(),
            recalls: Mutex::default(),
            forgotten: Mutex::default(),
            streams: watch::Sender::new(0),
        })
    }

    fn act(&self, act: Act) {
        self.acts.lock().push_back(act);
    }

    fn agent(&self) -> AskedAgent {
        let agent_id = format!("agent-{}", self.name).as_str().into();
        let process = AnsweringAgent { agent_id, boot_id: "boot".into() };
        AskedAgent { process, replica_id: self.name.into() }
    }

    fn no_agent(&self) -> RequestError {
        let is_expected = self.is_expected.load(Ordering::Relaxed);
        RequestError::no_agent("one", &"z".into(), is_expected)
    }
}

#[async_trait]
impl ReplicaRequests for Agents {
    fn grant(&self, _: &str) -> Result<AccountGrant, RequestError> {
        let (name, zone) = ("one".to_owned(), "z".into());
        Ok(AccountGrant { name, zone, epoch: *self.epoch.lock(), holders: Vec::new() })
    }

    fn can_ask(&self, _: &str, _: &[AgentId]) -> Result<(), RequestError> {
        if self.has_agent.load(Ordering::Relaxed) { Ok(()) } else { Err(self.no_agent()) }
    }

    fn processes_of_zone(&self, _: &ZoneId) -> Vec<AnsweringAgent> {
        Vec::new()
    }

    fn has_process(&self, agent: &AnsweringAgent) -> bool {
        !self.recalls.lock().is_empty() && agent.boot_id == "boot"
    }

    async fn send_here(
        &self,
        _: &str,
        request: &AccountRequest,
        asked: &mut Vec<AgentId>,
    ) -> Result<AccountResponse, RequestError> {
        self.can_ask("uid", asked)?;
        let act = self.acts.lock().pop_front().expect("the test says what to do");
        request.asked(&self.agent());
        asked.push(self.agent().process.agent_id);
        self.had.lock().push(Had {
            method: request.method.clone(),
            target: request.target.clone(),
            headers: request.headers.clone(),
            body: request.body.clone(),
            caller: request.caller.clone(),
            keep_answer: request.keep_answer,
        });
        let mut headers = HeaderMap::new();
        headers.insert("x-of", HeaderValue::from_static("the cluster"));
        let (status, body) = match act {
            Act::Answer(status, parts) => (status, stream::iter(parts).boxed()),
            Act::Follow(parts) => (200, tokio_stream::wrappers::ReceiverStream::new(parts).map(Ok).boxed()),
            Act::Fail(error) => return Err(error),
            Act::Hang => std::future::pending().await,
            Act::Echo => {
                let sent = request.upgraded.lock().take().expect("the caller's bytes come");
                (101, sent.map_err(|error| RequestError::cut(&error.to_string())).boxed())
            }
        };
        let status = StatusCode::from_u16(status).expect("a status");
        Ok(AccountResponse { status, headers, body, agent: self.agent() })
    }

    async fn recall_here(
        &self,
        _: &str,
        agent: &AnsweringAgent,
        _: Instant,
        _: bool,
    ) -> Result<AccountResponse, RequestError> {
        let not_here = || Err(RequestError::recallable(Suspects::certain(agent.clone())));
        let next = self.recalls.lock().pop_front();
        let (status, body) = next.unwrap_or_else(not_here)?;
        Ok(AccountResponse {
            status: StatusCode::from_u16(status).expect("a status"),
            headers: HeaderMap::new(),
            body: stream::iter([Ok(body)]).boxed(),
            agent: self.agent(),
        })
    }

    fn forget_here(&self, _: &AnsweringAgent, request_id: &str) -> bool {
        self.forgotten.lock().push(request_id.to_owned());
        true
    }

    fn apply_settings_here(&self, _: &str) -> Option<ops::ApplySettings> {
        let enabled = "always".to_owned();
        let of_all = ops::ServerSideApply { enabled, ..ops::ServerSideApply::default() };
        let has_agent = self.has_agent.load(Ordering::Relaxed);
        has_agent.then(|| ops::ApplySettings { server_side: Some(of_all), ..ops::ApplySettings::default() })
    }

    fn streams(&self) -> watch::Receiver<u64> {
        self.streams.subscribe()
    }
}

/// A replica that others reach through a way that can be cut.
struct Other {
    agents: Arc<Agents>,
    rights: Arc<ScriptedRights>,
    way: SocketAddr,
    cut: watch::Sender<u64>,
    /// Holds back all bytes of the connections that are open, at both ends, as after a loss of power.
    is_silent: watch::Sender<bool>,
    _stop: tokio_util::sync::DropGuard,
}

/// Starts a replica with its port for replicas, and a way to it.
async fn other(name: &'static str, has_agent: bool) -> Other {
    let agents = Agents::new(name, has_agent);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let identity = PeerIdentity { replica_id: name.into(), address, host: String::new() };
    let peers = Peers::of_test(identity, Arc::default(), &[]);
    let rights = Arc::<ScriptedRights>::default();
    let router = router(ports(name, Arc::<Agents>::clone(&agents), &rights));
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        peers.serve(listener, router, kubesvc_runtime::listen::port::HttpMetrics::default(), stopped).await;
    });
    let (way, cut, is_silent) = way_to(address, &stop).await;
    Other { agents, rights, way, cut, is_silent, _stop: stop.drop_guard() }
}

/// A proxy whose connections are all cut when the first watch changes, and pass nothing on while the second is set.
async fn way_to(
    address: SocketAddr,
    stop: &CancellationToken,
) -> (SocketAddr, watch::Sender<u64>, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let way = listener.local_addr().expect("an address");
    let (cut, cuts) = watch::channel(0);
    let (is_silent, silence) = watch::channel(false);
    let stop = stop.clone();
    tokio::spawn(stop.run_until_cancelled_owned(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (mut cuts, mut silence) = (cuts.clone(), silence.clone());
            cuts.borrow_and_update();
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(address).await else { return };
                let is_held = tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => false,
                    _ = cuts.changed() => false,
                    held = async { silence.wait_for(|is_silent| *is_silent).await.is_ok() } => held,
                };
                if is_held {
                    std::future::pending::<()>().await;
                }
            });
        }
    }));
    (way, cut, is_silent)
}

/// The router of a replica without an agent, beside these.
fn router_of(others: &[(&'static str, &Other)]) -> (RequestRouter, Arc<Agents>) {
    let index = Arc::new(AgentIndex::default());
    for (replica, _) in others {
        let object: KubesvcAgent = serde_json::from_value(json!({
            "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAgent",
            "metadata": {"name": format!("o-{replica}"), "resourceVersion": "1"},
            "spec": {"agentId": format!("agent-{replica}"), "zoneId": "z", "approved": true},
            "status": {"connected": true, "connectedSince": "2026-01-01T00:00:00Z",
                "session": {"id": "s", "bootId": "boot", "connectSeq": 1, "replica": replica}},
        }))
        .expect("well-formed");
        index.seen(object);
    }
    let ways: Vec<_> = others.iter().map(|(name, other)| (*name, other.way)).collect();
    let identity = PeerIdentity {
        replica_id: "here".into(),
        address: "127.0.0.1:1".parse().expect("an address"),
        host: String::new(),
    };
    let here = Agents::new("here", false);
    let peers = Arc::new(Peers::of_test(identity, index, &ways));
    (RequestRouter::new(Arc::<Agents>::clone(&here) as Arc<dyn ReplicaRequests>, peers), here)
}

fn get(target: &str) -> AccountRequest {
    AccountRequest::new(Method::GET, target).expect("a path")
}

fn post() -> AccountRequest {
    let body = Bytes::from_static(b"{}");
    AccountRequest { body, ..AccountRequest::new(Method::POST, "/api/v1/namespaces").expect("a path") }
}

async fn body_of(response: AccountResponse) -> Result<Vec<u8>, RequestError> {
    response.body.try_fold(Vec::new(), async |all, part| Ok([all, part.to_vec()].concat())).await
}

async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), waiting).await.is_ok(), "{what}");
}

#[tokio::test]
async fn a_request_is_answered_by_the_replica_that_has_the_agent() {
    let (none, has) = (other("none", false).await, other("has", true).await);
    let (router, _) = router_of(&[("none", &none), ("has", &has)]);
    let parts = vec![Ok(Bytes::from(vec![b'a'; 700_000])), Ok(Bytes::from_static(b"end"))];
    has.agents.act(Act::Answer(200, parts));
    let mut request = get("/api/v1/pods?labelSelector=a%3Db");
    request.caller.name = "Jürgen %".to_owned();
    // More than the head of a call between replicas may have.
    request.headers.insert("x-long", HeaderValue::from_str(&"x".repeat(40_000)).expect("a value"));
    let response = router.send("uid", request).await.expect("an answer");
    assert_eq!((response.status.as_u16(), response.headers["x-of"].as_bytes()), (200, &b"the cluster"[..]));
    assert_eq!(response.agent, has.agents.agent());
    assert_eq!(body_of(response).await.expect("whole").len(), 700_003);
    let had = has.agents.had.lock()[0].clone();
    assert_eq!((had.method, had.target.as_str()), (Method::GET, "/api/v1/pods?labelSelector=a%3Db"));
    assert_eq!((had.caller.name.as_str(), had.headers["x-long"].len()), ("Jürgen %", 40_000));
    assert!(none.agents.had.lock().is_empty());
    let settings = router.apply_settings("uid").await.expect("an agent's");
    assert_eq!(settings.server_side, kubesvc_core::operations::Preference::Always);
}

#[tokio::test]
async fn a_caller_learns_that_an_agent_of_another_replica_is_expected_back() {
    let (none, drains) = (other("none", false).await, other("drains", false).await);
    let (router, _) = router_of(&[("drains", &drains), ("none", &none)]);
    for is_expected in [false, true] {
        drains.agents.is_expected.store(is_expected, Ordering::Relaxed);
        let error = router.send("uid", post()).await.expect_err("there is no agent");
        assert_eq!(error, RequestError::no_agent("one", &"z".into(), is_expected));
    }
}

#[tokio::test]
async fn it_is_said_who_was_asked_for_a_read_in_vain() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    has.agents.act(Act::Fail(RequestError::new(Kind::NotSent, "full").then(Retry::Elsewhere)));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let mut request = get("/api/v1/pods");
    request.on_asked = Some(Arc::new(move |agent: &AskedAgent| seen.lock().push(agent.clone())));
    router.send("uid", request).await.expect_err("it is full");
    assert_eq!(*asked.lock(), [has.agents.agent()]);
}

#[tokio::test]
async fn an_answer_that_is_cut_on_the_way_never_ends_as_if_it_were_whole() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    for is_way_cut in [true, false] {
        let (lines, followed) = mpsc::channel(4);
        if is_way_cut {
            has.agents.act(Act::Follow(followed));
        } else {
            let parts = vec![Ok(Bytes::from_static(b"1\n")), Err(RequestError::cut("so"))];
            has.agents.act(Act::Answer(200, parts));
        }
        let _ = lines.send(Bytes::from_static(b"1\n")).await;
        let mut response = router.send("uid", get("/api/v1/pods?watch=1")).await.expect("a head");
        assert_eq!(response.body.next().await.expect("a part").expect("a good one"), b"1\n"[..]);
        if is_way_cut {
            has.cut.send_modify(|count| *count += 1);
        }
        assert!(matches!(response.body.next().await, Some(Err(RequestError { kind: Kind::Cut, .. }))));
        assert!(response.body.next().await.is_none());
        if is_way_cut {
            eventually("the watch is cancelled at the other replica", || lines.is_closed()).await;
        }
    }
}

#[tokio::test]
async fn a_relayed_write_whose_answer_is_too_large_has_its_status_and_is_not_recalled() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    has.agents.act(Act::Answer(201, vec![Err(RequestError::cut("the answer is too large"))]));
    let response = router.send("uid", post()).await.expect("the head");
    assert_eq!(response.status.as_u16(), 201);
    let cut = body_of(response).await.expect_err("the body is not kept");
    assert!(cut.kind == Kind::Cut && cut.message.contains("too large"), "{cut}");
    assert_eq!(has.agents.had.lock().len(), 1);
}

#[tokio::test]
async fn an_agent_that_may_be_at_a_replica_that_is_away_is_awaited_whatever_others_say() {
    let (away, old) = (other("away", true).await, other("old", true).await);
    old.agents.act(Act::Fail(RequestError::too_old(&"agent-9".into(), "0.1")));
    // At the address of another replica than the objects say.
    let (router, _) = router_of(&[("another", &away), ("old", &old)]);
    let error = router.send("uid", post()).await.expect_err("nobody can be asked");
    assert!(error.awaits_agent(), "{error:?}");
}

#[tokio::test]
async fn a_watch_ends_at_both_replicas_when_one_loses_its_power() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    let (lines, followed) = mpsc::channel(4);
    has.agents.act(Act::Follow(followed));
    lines.send(Bytes::from_static(b"1\n")).await.expect("it is followed");
    let mut response = router.send("uid", get("/api/v1/pods?watch=1")).await.expect("a head");
    assert_eq!(response.body.next().await.expect("a part").expect("a good one"), b"1\n"[..]);
    has.is_silent.send_replace(true);
    let next = tokio::time::timeout(Duration::from_secs(20), response.body.next()).await;
    assert!(
        matches!(next, Ok(Some(Err(RequestError { kind: Kind::Cut, .. })))),
        "no connection was closed: {next:?}"
    );
    eventually("the watch is cancelled at the other replica", || lines.is_closed()).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_the_request_at_the_other_replica() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    let (lines, followed) = mpsc::channel(4);
    has.agents.act(Act::Follow(followed));
    let response = router.send("uid", get("/api/v1/pods?watch=1")).await.expect("a head");
    drop(response);
    eventually("it ends there", || lines.is_closed()).await;
}

#[tokio::test]
async fn a_relayed_write_whose_other_replica_leaves_has_an_audit_line() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    has.agents.act(Act::Hang);
    let sending = tokio::spawn(async move { router.send("uid", post()).await.map(drop) });
    eventually("the agent has it", || has.agents.had.lock().len() == 1).await;
    sending.abort();
    eventually("its line", || !has.rights.audited().is_empty()).await;
    let lines = has.rights.audited();
    assert_eq!((lines.len(), lines[0]["message"].as_str(), lines[0].get("code")), (1, Some("write"), None));
    assert!(lines[0]["reason"].as_str().is_some_and(|why| why.contains("unknown")), "{lines:?}");
}

/// Starts what a router runs in the background, until the guard is dropped.
fn start_background(router: &RequestRouter) -> tokio_util::sync::DropGuard {
    let stop = CancellationToken::new();
    let background = kubesvc_runtime::background_tasks::BackgroundTasks::new(
        tokio_util::task::TaskTracker::new(),
        stop.clone(),
        TaskRegistry::default(),
    );
    router.start(&background);
    stop.drop_guard()
}

#[tokio::test]
async fn the_agent_forgets_the_answer_of_a_relayed_write_once_its_caller_has_it() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    let _background = start_background(&router);
    has.agents.act(Act::Answer(201, vec![Ok(Bytes::from_static(b"made"))]));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let mut request = post();
    request.on_asked = Some(Arc::new(move |agent: &AskedAgent| seen.lock().push(agent.clone())));
    let id = request.request_id.clone();
    let response = router.send("uid", request).await.expect("an answer");
    assert_eq!(body_of(response).await.expect("whole"), b"made");
    assert!(has.agents.had.lock()[0].keep_answer && has.agents.had.lock()[0].body == b"{}"[..]);
    assert!(asked.lock().contains(&has.agents.agent()));
    eventually("it is forgotten", || has.agents.forgotten.lock().contains(&id)).await;
}

#[tokio::test]
async fn the_agent_forgets_a_relayed_write_that_failed_but_not_one_that_runs() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    let _background = start_background(&router);
    let unknown = || RequestError::unknown("so");
    let not_sent = || RequestError::new(Kind::NotSent, "the cluster is dead").then(Retry::Elsewhere);
    let lost = || RequestError::recallable(Suspects::certain(has.agents.agent().process));
    for (error, recalled, is_forgotten) in [
        (lost(), Some(RequestError::not_recalled()), false),
        (unknown(), None, true),
        (not_sent(), None, true),
        (lost(), Some(unknown()), true),
        (lost(), Some(not_sent()), true),
    ] {
        let what = format!("{error:?}, {recalled:?}");
        has.agents.act(Act::Fail(error));
        has.agents.recalls.lock().extend(recalled.map(Err));
        let request = post();
        let id = request.request_id.clone();
        assert!(router.send("uid", request).await.is_err(), "{what}");
        if is_forgotten {
            eventually(&what, || has.agents.forgotten.lock().contains(&id)).await;
        }
    }
    // They are told in turn: the one that runs came first.
    assert_eq!(has.agents.forgotten.lock().len(), 4);
}

#[tokio::test]
async fn the_agent_forgets_a_relayed_write_whose_way_was_cut_once_its_failure_is_recalled() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    let _background = start_background(&router);
    has.agents.act(Act::Hang);
    let request = post();
    let id = request.request_id.clone();
    let (had, cut) = (Arc::clone(&has.agents), has.cut.clone());
    let asked = Arc::new(AtomicBool::new(false));
    let is_asked = Arc::clone(&asked);
    let request = AccountRequest {
        on_asked: Some(Arc::new(move |_: &AskedAgent| is_asked.store(true, Ordering::Relaxed))),
        ..request
    };
    let sending = async {
        let sent = router.send("uid", request).await;
        assert!(matches!(sent, Err(RequestError { kind: Kind::Unknown, .. })), "{sent:?}");
    };
    let cutting = async {
        eventually("it is known here who was asked", || asked.load(Ordering::Relaxed)).await;
        assert!(had.forgotten.lock().is_empty());
        had.recalls.lock().push_back(Err(RequestError::unknown("so")));
        cut.send_modify(|count| *count += 1);
    };
    tokio::join!(sending, cutting);
    eventually("it is forgotten", || has.agents.forgotten.lock().contains(&id)).await;
}

#[tokio::test]
async fn a_write_whose_way_was_cut_is_recalled_wherever_its_agent_is_by_then() {
    for is_elsewhere in [false, true] {
        let (has, next) = (other("has", true).await, other("next", false).await);
        let (router, _) = router_of(&[("has", &has), ("next", &next)]);
        has.agents.act(Act::Hang);
        let (had, cut) = (Arc::clone(&has.agents), has.cut.clone());
        let sending = tokio::spawn(async move { router.send("uid", post()).await });
        eventually("the agent has it", || !had.had.lock().is_empty()).await;
        let recalled = if is_elsewhere { &next.agents } else { &has.agents };
        recalled.recalls.lock().push_back(Ok((200, Bytes::from_static(b"done"))));
        has.agents.has_agent.store(false, Ordering::Relaxed);
        cut.send_modify(|count| *count += 1);
        let response = sending.await.expect("no panic").expect("an answer");
        assert_eq!(body_of(response).await.expect("whole"), b"done");
    }
}

#[tokio::test]
async fn a_write_without_an_answer_is_unknown_and_one_that_was_never_sent_goes_to_another_agent() {
    let (has, next) = (other("has", true).await, other("next", true).await);
    let (router, _) = router_of(&[("has", &has), ("next", &next)]);
    // The replicas are asked in no order that a test may rely on.
    for agents in [&has.agents, &next.agents] {
        agents.act(Act::Fail(RequestError::unknown("so")));
    }
    assert!(matches!(router.send("uid", post()).await, Err(RequestError { kind: Kind::Unknown, .. })));
    assert_eq!(has.agents.had.lock().len() + next.agents.had.lock().len(), 1, "sent once");
    for agents in [&has.agents, &next.agents] {
        agents.acts.lock().clear();
        agents.act(Act::Fail(RequestError::new(Kind::NotSent, "full").then(Retry::Elsewhere)));
    }
    let error = router.send("uid", post()).await.expect_err("none sends it");
    assert!(error.is_before_send() && error.to_string() == "full", "{error}");
    assert_eq!(has.agents.had.lock().len() + next.agents.had.lock().len(), 3, "each was asked once");
}

#[tokio::test]
async fn what_both_sides_of_an_upgraded_request_send_is_relayed() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    has.agents.act(Act::Echo);
    let (sent, bytes) = mpsc::channel(4);
    let bytes = tokio_stream::wrappers::ReceiverStream::new(bytes).map(Ok).boxed();
    let target = "/api/v1/namespaces/a/pods/b/exec";
    let request = AccountRequest {
        upgraded: Mutex::new(Some(bytes)),
        ..AccountRequest::new(Method::POST, target).expect("a path").upgrading(true)
    };
    let mut response = router.send("uid", request).await.expect("an answer");
    assert_eq!(response.status, StatusCode::SWITCHING_PROTOCOLS);
    for part in [&b"one"[..], b"two"] {
        sent.send(Bytes::from_static(part)).await.expect("it is read");
        assert_eq!(response.body.next().await.expect("a part").expect("a good one"), part);
    }
    drop(sent);
    assert!(response.body.next().await.is_none(), "it ends when the caller ends");
}

#[tokio::test]
async fn a_recall_finds_the_process_or_says_that_it_may_be_asked_again() {
    let has = other("has", true).await;
    let (router, here) = router_of(&[("has", &has)]);
    // Also if it is not known which agent of the zone was asked.
    for agent in [Some(has.agents.agent().process), None] {
        has.agents.recalls.lock().push_back(Ok((200, Bytes::from_static(b"kept"))));
        let response = router.recall("uid", "id", agent).await.expect("an answer");
        assert_eq!(body_of(response).await.expect("whole"), b"kept");
    }
    has.agents.recalls.lock().push_back(Err(RequestError::new(Kind::NotSent, "it never had it")));
    assert!(matches!(router.recall("uid", "id", None).await, Err(RequestError { kind: Kind::Unknown, .. })));
    let (alone, _) = router_of(&[]);
    assert!(matches!(alone.recall("uid", "id", None).await, Err(RequestError { kind: Kind::NoAgent, .. })));
    // The process comes back, here, while it is looked for.
    let router = Arc::new(router);
    let asking = Arc::clone(&router);
    let process = AnsweringAgent { agent_id: "agent-x".into(), boot_id: "boot".into() };
    let recalling = tokio::spawn(async move { asking.recall("uid", "id", Some(process)).await });
    here.recalls.lock().push_back(Err(RequestError::unknown("gone")));
    here.streams.send_modify(|count| *count += 1);
    assert!(matches!(recalling.await.expect("no panic"), Err(RequestError { kind: Kind::Unknown, .. })));
}

#[tokio::test]
async fn the_replica_that_has_the_agent_reviews_the_rights_of_the_caller_and_writes_lines_of_its_own() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    let by = |verb: &str| {
        let right = CallerRight { verb: verb.to_owned(), subresource: "proxy".to_owned() };
        let groups = vec!["team".to_owned()];
        AccountRequest {
            caller: RequestCaller {
                name: "alice".into(),
                groups,
                rights: vec![right],
                ..RequestCaller::default()
            },
            ..post()
        }
    };
    has.rights.allowed.lock().insert("create".to_owned());
    has.agents.act(Act::Answer(201, Vec::new()));
    router.send("uid", by("create")).await.expect("it is allowed");
    let refused = router.send("uid", by("delete")).await.expect_err("it is not allowed");
    assert!(matches!(refused, RequestError { kind: Kind::Forbidden, .. }), "{refused}");
    let refused = router.send("uid", by("fly")).await.expect_err("there is no such right");
    assert!(refused.is_before_send(), "{refused}");
    assert_eq!(has.agents.had.lock().len(), 1);
    let lines = has.rights.audited();
    let shown: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                line["message"].as_str(),
                line["via"].as_str(),
                line["principal"].as_str(),
                line["code"].as_u64(),
            )
        })
        .collect();
    let line = |message, code| (Some(message), Some("relayed"), Some("alice"), Some(code));
    assert_eq!(shown, [line("write", 201), line("refusal", 403), line("refusal", 400)]);
}

#[tokio::test]
async fn each_right_that_a_relayed_request_needs_is_reviewed() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    let right = |verb: &str, subresource: &str| CallerRight {
        verb: verb.to_owned(),
        subresource: subresource.to_owned(),
    };
    let exec = || {
        let rights = vec![right("get", "proxy"), right("create", "connect")];
        let groups = vec!["team".to_owned()];
        let caller = RequestCaller { name: "alice".into(), groups, rights, ..RequestCaller::default() };
        AccountRequest { caller, ..get("/api/v1/namespaces/n/pods/p/exec") }
    };
    has.rights.allowed.lock().insert("get".to_owned());
    let refused = router.send("uid", exec()).await.expect_err("it may only read");
    assert!(matches!(refused, RequestError { kind: Kind::Forbidden, .. }), "{refused}");
    assert!(has.agents.had.lock().is_empty());
    has.rights.allowed.lock().insert("create".to_owned());
    has.agents.act(Act::Answer(200, Vec::new()));
    router.send("uid", exec()).await.expect("it has both rights");
}

#[tokio::test]
async fn a_replica_that_knows_only_an_earlier_grant_takes_no_relayed_request() {
    let has = other("has", true).await;
    let (router, here) = router_of(&[("has", &has)]);
    for (known, is_taken) in [(4, false), (5, true), (6, true)] {
        assert_eq!(*here.epoch.lock(), GrantEpoch(5));
        *has.agents.epoch.lock() = GrantEpoch(known);
        has.agents.act(Act::Answer(201, Vec::new()));
        let sent = router.send("uid", post()).await;
        assert_eq!(sent.is_ok(), is_taken, "{known}: {sent:?}");
        assert_eq!(has.agents.had.lock().drain(..).count(), usize::from(is_taken), "{known}");
        has.agents.acts.lock().clear();
    }
}

#[tokio::test]
async fn one_answer_that_is_not_read_holds_up_no_other() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    let parts = || (0..8).map(|_| Ok(Bytes::from(vec![b'a'; 100_000]))).collect();
    let mut unread = Vec::new();
    for _ in 0..8 {
        has.agents.act(Act::Answer(200, parts()));
        unread.push(router.send("uid", get("/api/v1/pods")).await.expect("a head"));
    }
    has.agents.act(Act::Answer(200, vec![Ok(Bytes::from_static(b"read"))]));
    let response = router.send("uid", get("/api/v1/pods")).await.expect("a head");
    assert_eq!(body_of(response).await.expect("whole"), b"read");
    for response in unread {
        assert_eq!(body_of(response).await.expect("whole").len(), 800_000);
    }
}

#[tokio::test]
async fn heads_of_requests_without_a_body_and_with_every_status_are_relayed() {
    let has = other("has", true).await;
    let (router, _) = router_of(&[("has", &has)]);
    for (method, status) in
        [(Method::HEAD, 200), (Method::GET, 204), (Method::GET, 304), (Method::OPTIONS, 503)]
    {
        has.agents.act(Act::Answer(status, Vec::new()));
        let request = AccountRequest::new(method.clone(), "/api/v1/pods").expect("a path");
        let response = router.send("uid", request).await.expect("an answer");
        assert_eq!(response.status.as_u16(), status);
        assert!(body_of(response).await.expect("whole").is_empty());
        assert_eq!(has.agents.had.lock().last().expect("it was asked").method, method);
    }
}

#[tokio::test]
async fn a_replica_that_cannot_be_reached_is_away_and_one_that_is_another_one_gets_nothing() {
    let has = other("has", true).await;
    // At the address of another replica than the objects say.
    let (router, _) = router_of(&[("another", &has)]);
    let away = router.send("uid", post()).await.expect_err("its certificate is another's");
    assert!(away.kind == Kind::ReplicaAway && away.awaits_agent() && away.is_before_send(), "{away}");
    assert!(has.agents.had.lock().is_empty());
    // Nobody else gets as far as a request.
    let mut stream = TcpStream::connect(has.way).await.expect("a connection");
    let text = "GET /internal/v1/agents HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, text.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
}
