//! Requests to accounts, from the port of the hub to a scripted agent.

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::connected_agents::{
    AccountRequest, AccountRequests, AccountResponse, AnsweringAgent, ConnectedAgents as _, RequestError,
    RequestErrorKind as Kind, Retry,
};
use crate::hub::tests::support::{self, *};
use crate::hub::{HubSettings, SessionSettings};
use crate::peers::{PeerIdentity, Peers};
use crate::request_routing::RequestRouter;
use kubesvc_core::failure::FailureClass;
use kubesvc_core::lifecycle::AgentReport;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::common::{AccountRef, Failure};
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::wire::ops::{
    self, Abort, Begin, Credit, Data, End, Head, Open, RequestDown, RequestUp, request_down, request_up,
};
use kubesvc_core::{GrantEpoch, GrantPhase, KubesvcAccount, State};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;

const TARGET: &str = "/api/v1/namespaces/a/configmaps";

/// An ACTIVE account, held under epoch 1.
fn active(name: &str) -> KubesvcAccount {
    with(account(name), |status| status.state = Some(State::Active))
}

/// A scripted agent: its session, and its stream of requests.
struct RequestAgent {
    session: TestAgent,
    begin: Begin,
    frames: mpsc::Sender<RequestUp>,
    answers: Streaming<RequestDown>,
}

async fn dial(hub: &TestHub, begin: Begin) -> (mpsc::Sender<RequestUp>, Streaming<RequestDown>) {
    let mut client = OperationsClient::new(hub.channel().await);
    let (frames, outgoing) = mpsc::channel(64);
    let answers =
        client.requests(ReceiverStream::new(outgoing)).await.expect("the stream opens").into_inner();
    let first = RequestUp { id: 0, frame: Some(request_up::Frame::Begin(begin)) };
    frames.send(first).await.expect("the stream is open");
    (frames, answers)
}

impl RequestAgent {
    /// Connects an agent that holds account `one`.
    async fn connect(hub: &TestHub, agent_id: &str) -> Self {
        let capabilities = vec!["requests/1".to_owned()];
        let mut agent = Self::greet(hub, ops::Hello { capabilities, ..hello(agent_id) }).await;
        let reference = agent.session.added().await[0].account.clone().expect("it is named");
        agent.session.answer(held(&reference)).await;
        let id: kubesvc_core::AgentId = agent_id.into();
        eventually("the agent holds the account", || {
            let session = hub.hub.sessions.registry.of_id(&id).pop()?;
            session.holds("uid-one").then_some(())
        })
        .await;
        agent
    }

    /// Connects an agent, and opens its stream of requests.
    async fn greet(hub: &TestHub, hello: ops::Hello) -> Self {
        let agent_id = hello.agent_id.clone();
        let mut session = hub.greet(hello).await;
        let accepted = session.accepted().await;
        assert_eq!(accepted.capabilities, ["requests/1"]);
        let begin = Begin {
            session_id: accepted.session_id,
            agent_id,
            boot_id: BOOT_A.into(),
            replica_id: "r-0".into(),
            apply: None,
        };
        let mut agent = Self::begin(hub, session, begin).await;
        assert_eq!(agent.next().await, (0, request_down::Frame::Ready(ops::Ready {})));
        agent
    }

    async fn begin(hub: &TestHub, session: TestAgent, begin: Begin) -> Self {
        let (frames, answers) = dial(hub, begin.clone()).await;
        Self { session, begin, frames, answers }
    }

    /// Closes the stream and opens it again.
    async fn reopen(self, hub: &TestHub) -> Self {
        drop((self.frames, self.answers));
        let mut agent = Self::begin(hub, self.session, self.begin).await;
        assert_eq!(agent.next().await, (0, request_down::Frame::Ready(ops::Ready {})));
        agent
    }

    /// The next frame but pings and lists.
    async fn next(&mut self) -> (u64, request_down::Frame) {
        use request_down::Frame as Down;
        loop {
            let frame = tokio::time::timeout(Duration::from_secs(20), self.answers.message());
            let frame = frame.await.expect("a frame in time").expect("the stream is well").expect("no end");
            match frame.frame.expect("a known frame") {
                Down::Ping(_) | Down::Running(_) => {}
                known => return (frame.id, known),
            }
        }
    }

    /// The next request, with its body.
    async fn opened(&mut self) -> (u64, Open, Vec<u8>) {
        let (id, frame) = self.next().await;
        let request_down::Frame::Open(open) = frame else { panic!("expected Open, got {frame:?}") };
        let mut body = Vec::new();
        loop {
            match self.next().await {
                (of, request_down::Frame::Data(data)) if of == id => body.extend_from_slice(&data.bytes),
                (of, request_down::Frame::End(_)) if of == id => return (id, open, body),
                other => panic!("expected the body, got {other:?}"),
            }
        }
    }

    async fn say(&self, id: u64, frame: request_up::Frame) {
        self.frames.send(RequestUp { id, frame: Some(frame) }).await.expect("the stream is open");
    }

    async fn answer(&self, id: u64, status: u32, body: &'static [u8]) {
        self.say(id, request_up::Frame::Head(Head { status, headers: Vec::new() })).await;
        self.say(id, request_up::Frame::Data(Data { bytes: Bytes::from_static(body) })).await;
        self.say(id, request_up::Frame::End(End {})).await;
    }

    async fn abort(&self, id: u64, class: Class, before_send: bool) {
        let failure =
            Failure { class: class.into(), before_send, message: "so it is".into(), ..Failure::default() };
        self.say(id, request_up::Frame::Abort(Abort { failure: Some(failure) })).await;
    }
}

/// The same account under a later epoch, in this state.
fn later(account: KubesvcAccount, epoch: i64, state: State) -> KubesvcAccount {
    with(account, |status| {
        status.state = Some(state);
        status.epoch = GrantEpoch(epoch);
        status.cluster_uid = Some("cluster".into());
    })
}

/// Sends a read, and has the agent answer it. Returns the epoch under which it was asked.
async fn is_served(hub: &TestHub, agent: &mut RequestAgent, what: &str) -> u64 {
    let sent = send(hub, read());
    let (id, open, _) = agent.opened().await;
    agent.answer(id, 200, b"served").await;
    let response = sent.await.expect("no panic").expect(what);
    assert_eq!(body_of(response).await.expect(what), b"served", "{what}");
    open.account.expect("it is named").epoch
}

/// The port that callers use, at a replica that runs alone.
fn port(hub: &TestHub) -> Arc<dyn AccountRequests> {
    let address = "127.0.0.1:1".parse().expect("an address");
    let identity = PeerIdentity { replica_id: "r-0".into(), address, host: String::new() };
    Arc::new(RequestRouter::new(hub.hub.requests(), Arc::new(Peers::alone(identity))))
}

type Sent = JoinHandle<Result<AccountResponse, RequestError>>;

fn send(hub: &TestHub, request: AccountRequest) -> Sent {
    let port = port(hub);
    tokio::spawn(async move { port.send("uid-one", request).await })
}

fn read() -> AccountRequest {
    AccountRequest::new(Method::GET, TARGET).expect("a path")
}

fn write() -> AccountRequest {
    let body = Bytes::from_static(b"{}");
    AccountRequest { body, ..AccountRequest::new(Method::POST, TARGET).expect("a path") }
}

async fn body_of(response: AccountResponse) -> Result<Vec<u8>, RequestError> {
    response
        .body
        .try_fold(Vec::new(), async |mut all, part| {
            all.extend_from_slice(&part);
            Ok(all)
        })
        .await
}

async fn failed(sent: Sent) -> RequestError {
    sent.await.expect("no panic").expect_err("no answer")
}

async fn hub() -> TestHub {
    let hub = TestHub::start().await;
    hub.accounts.show(active("one"));
    hub.accounts.sync();
    hub
}

#[tokio::test]
async fn a_request_reaches_the_agent_and_its_answer_the_caller() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let sent = send(&hub, write());
    let (id, open, body) = agent.opened().await;
    assert_eq!((open.method.as_str(), open.target.as_slice(), open.write), ("POST", TARGET.as_bytes(), true));
    assert_eq!(
        open.account.as_ref().map(|account| (account.uid.as_str(), account.epoch)),
        Some(("uid-one", 1))
    );
    assert_eq!(body, b"{}");
    agent.answer(id, 201, b"made").await;
    let response = sent.await.expect("no panic").expect("an answer");
    assert_eq!((response.status.as_u16(), response.agent.process.agent_id.as_str()), (201, "a"));
    assert_eq!(response.agent.replica_id, "r-0");
    assert_eq!(body_of(response).await.expect("a body"), b"made");
    match agent.next().await {
        (0, request_down::Frame::Forget(forget)) => assert_eq!(forget.request_ids, [open.request_id]),
        other => panic!("expected Forget, got {other:?}"),
    }
}

#[tokio::test]
async fn a_watch_that_is_dropped_is_cancelled_and_one_that_is_cut_never_ends_as_if_it_were_whole() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    for is_dropped in [true, false] {
        let target = format!("{TARGET}?watch=true");
        let sent = send(&hub, AccountRequest::new(Method::GET, target).expect("a path"));
        let (id, ..) = agent.opened().await;
        agent.say(id, request_up::Frame::Head(Head { status: 200, headers: Vec::new() })).await;
        agent.say(id, request_up::Frame::Data(Data { bytes: Bytes::from_static(b"{}\n") })).await;
        let mut response = sent.await.expect("no panic").expect("a head");
        assert_eq!(response.body.next().await.expect("a line").expect("a good one"), b"{}\n"[..]);
        if is_dropped {
            drop(response);
            assert_eq!(agent.next().await, (id, request_down::Frame::Cancel(ops::Cancel {})));
        } else {
            agent = agent.reopen(&hub).await;
            assert!(matches!(response.body.next().await, Some(Err(RequestError { kind: Kind::Cut, .. }))));
            assert!(response.body.next().await.is_none());
        }
    }
}

#[tokio::test]
async fn the_answer_of_a_write_is_recalled_after_its_stream_was_lost() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let sent = send(&hub, write());
    let (_, open, _) = agent.opened().await;
    let mut agent = agent.reopen(&hub).await;
    for is_cut_again in [true, false] {
        let (id, frame) = agent.next().await;
        let request_down::Frame::Recall(recall) = frame else { panic!("expected Recall, got {frame:?}") };
        assert_eq!((recall.request_id.as_str(), recall.boot_id.as_str()), (open.request_id.as_str(), BOOT_A));
        if is_cut_again {
            agent = agent.reopen(&hub).await;
        } else {
            agent.answer(id, 200, b"done").await;
        }
    }
    let response = sent.await.expect("no panic").expect("an answer");
    assert_eq!(body_of(response).await.expect("a body"), b"done");
}

#[tokio::test]
async fn an_agent_that_is_sent_data_without_end_is_told_meanwhile_which_answers_it_may_forget() {
    use request_down::Frame as Down;
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let part = Bytes::from(vec![b'x'; 32 * 1024]);
    let endless = parking_lot::Mutex::new(Some(stream::repeat_with(move || Ok(part.clone())).boxed()));
    let exec = AccountRequest::new(Method::POST, "/api/v1/namespaces/a/pods/p/exec").expect("a path");
    let upgrading = send(&hub, AccountRequest { upgraded: endless, ..exec.upgrading(true) });
    let (id, Down::Open(_)) = agent.next().await else { panic!("expected Open") };
    agent.say(id, request_up::Frame::Head(Head { status: 101, headers: Vec::new() })).await;
    agent.say(id, request_up::Frame::Credit(Credit { bytes: 1 << 30 })).await;
    let _upgraded = upgrading.await.expect("no panic").expect("a head");
    let reading = async {
        let (mut frames, mut writing, mut written) = (0, None, Vec::new());
        loop {
            // Slower than the data comes, so that some is always queued at the hub.
            tokio::time::sleep(Duration::from_millis(5)).await;
            match agent.next().await {
                (_, Down::Data(_)) => frames += 1,
                (_, Down::Open(open)) => written.push(open.request_id),
                (of, Down::End(_)) => agent.answer(of, 200, b"done").await,
                (0, Down::Forget(forget)) => return (written, forget.request_ids),
                other => panic!("expected a frame of the requests, got {other:?}"),
            }
            if frames >= 100 && writing.is_none() {
                writing = Some(send(&hub, write()));
            }
        }
    };
    let (written, told) =
        tokio::time::timeout(Duration::from_secs(10), reading).await.expect("Forget comes in time");
    assert_eq!(told, written);
}

#[tokio::test]
async fn a_process_is_known_to_be_gone_where_a_later_one_of_its_agent_is_connected() {
    let hub = hub().await;
    let _agent = RequestAgent::connect(&hub, "a").await;
    let process = |boot_id: &str| AnsweringAgent { agent_id: "a".into(), boot_id: boot_id.into() };
    let (former, now, later) = (process("01ARZ3NDEKTSV4RRFFQ69G5FA0"), process(BOOT_A), process(BOOT_B));
    let says = [&former, &now, &later].map(|process| hub.hub.requests().has_process(process));
    assert_eq!(says, [true, true, false]);
    let recalled = port(&hub).recall("uid-one", "id", Some(former)).now_or_never();
    assert!(matches!(recalled, Some(Err(RequestError { kind: Kind::Unknown, .. }))), "{recalled:?}");
}

#[tokio::test]
async fn an_answer_is_recalled_from_the_agents_of_the_zone_if_it_is_not_known_which_one_was_asked() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let recalling = {
        let port = port(&hub);
        tokio::spawn(async move { port.recall("uid-one", "id", None).await })
    };
    let (id, frame) = agent.next().await;
    assert!(matches!(frame, request_down::Frame::Recall(_)), "{frame:?}");
    agent.answer(id, 200, b"done").await;
    let response = recalling.await.expect("no panic").expect("an answer");
    assert_eq!(body_of(response).await.expect("a body"), b"done");
}

#[tokio::test]
async fn a_write_that_the_agent_never_had_goes_to_another_agent_and_no_other_does() {
    let hub = hub().await;
    let mut one = RequestAgent::connect(&hub, "a").await;
    let mut other = RequestAgent::connect(&hub, "b").await;
    // The first by order, as both run nothing; found by who is asked.
    for (class, before_send) in
        [(Class::Overloaded, true), (Class::NotFound, true), (Class::Unreachable, false)]
    {
        let sent = send(&hub, write());
        let (first, second) = tokio::select! {
            biased;
            opened = one.opened() => {
                one.abort(opened.0, class, before_send).await;
                (&mut one, &mut other)
            }
            opened = other.opened() => {
                other.abort(opened.0, class, before_send).await;
                (&mut other, &mut one)
            }
        };
        if before_send {
            let (id, ..) = second.opened().await;
            second.answer(id, 200, b"ok").await;
            assert!(sent.await.expect("no panic").is_ok());
            assert!(matches!(second.next().await, (0, request_down::Frame::Forget(_))));
        } else {
            assert!(matches!(failed(sent).await, RequestError { kind: Kind::Unknown, .. }));
        }
        assert!(matches!(first.next().await, (0, request_down::Frame::Forget(_))));
        assert!(second.next().now_or_never().is_none(), "nothing else is sent to it");
    }
}

#[tokio::test]
async fn an_agent_that_has_not_said_yet_whether_it_holds_the_account_is_expected() {
    let hub = hub().await;
    let capabilities = vec!["requests/1".to_owned()];
    let mut agent = RequestAgent::greet(&hub, ops::Hello { capabilities, ..hello("a") }).await;
    let error = failed(send(&hub, write())).await;
    assert!(matches!(error, RequestError { kind: Kind::NoAgent, retry: Retry::Later, .. }), "{error:?}");
    let reference = agent.session.added().await[0].account.clone().expect("it is named");
    agent.session.answer(support::failed(&reference)).await;
    let id: kubesvc_core::AgentId = "a".into();
    eventually("the agent has answered", || {
        let session = hub.hub.sessions.registry.of_id(&id).pop()?;
        session.ledger.lock().entry("uid-one")?.report.as_ref().map(drop)
    })
    .await;
    let error = failed(send(&hub, write())).await;
    assert!(matches!(error, RequestError { kind: Kind::NoAgent, retry: Retry::Elsewhere, .. }), "{error:?}");
}

#[tokio::test]
async fn an_agent_that_stops_is_not_asked_and_is_expected_back() {
    let hub = hub().await;
    let mut stopping = RequestAgent::connect(&hub, "a").await;
    stopping.session.say(ops::agent_frame::Frame::Draining(ops::Draining {})).await;
    let id: kubesvc_core::AgentId = "a".into();
    eventually("it is known to stop", || {
        let session = hub.hub.sessions.registry.of_id(&id).pop()?;
        session.is_draining().then_some(())
    })
    .await;
    let error = failed(send(&hub, write())).await;
    assert!(matches!(error, RequestError { kind: Kind::NoAgent, retry: Retry::Later, .. }), "{error:?}");
    let mut other = RequestAgent::connect(&hub, "b").await;
    let sent = send(&hub, write());
    let (id, ..) = other.opened().await;
    other.answer(id, 200, b"ok").await;
    assert!(sent.await.expect("no panic").is_ok());
    assert!(stopping.next().now_or_never().is_none(), "nothing is sent to it");
}

#[tokio::test]
async fn a_write_that_an_agent_refused_since_it_stops_finds_it_expected_back() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let sent = send(&hub, write());
    let (request, ..) = agent.opened().await;
    agent.session.say(ops::agent_frame::Frame::Draining(ops::Draining {})).await;
    let id: kubesvc_core::AgentId = "a".into();
    eventually("it is known to stop", || {
        let session = hub.hub.sessions.registry.of_id(&id).pop()?;
        session.is_draining().then_some(())
    })
    .await;
    agent.abort(request, Class::Overloaded, true).await;
    let error = failed(sent).await;
    assert!(matches!(error, RequestError { kind: Kind::NoAgent, retry: Retry::Later, .. }), "{error:?}");
}

#[tokio::test]
async fn the_answer_of_a_write_is_taken_that_goodbye_has_overtaken() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let sent = send(&hub, write());
    let (id, ..) = agent.opened().await;
    agent.session.say(ops::agent_frame::Frame::Draining(ops::Draining {})).await;
    agent.session.say(ops::agent_frame::Frame::Goodbye(ops::Goodbye {})).await;
    // Long enough for the hub to have handled Goodbye.
    tokio::time::sleep(Duration::from_millis(300)).await;
    agent.answer(id, 201, b"made").await;
    let response = sent.await.expect("no panic").expect("an answer");
    assert_eq!(body_of(response).await.expect("a body"), b"made");
    let next = agent.session.next().await;
    assert!(matches!(next, Ok(None)), "the session ends: {next:?}");
}

#[tokio::test]
async fn a_read_goes_to_another_agent_once() {
    let hub = hub().await;
    let mut one = RequestAgent::connect(&hub, "a").await;
    let sent = send(&hub, read());
    let (id, ..) = one.opened().await;
    one.abort(id, Class::Unreachable, false).await;
    let error = failed(sent).await;
    assert!(matches!(&error, RequestError { kind: Kind::NoAnswer, .. }), "{error:?}");
    assert!(!error.is_before_send());
    let sent = send(&hub, read());
    let (id, ..) = one.opened().await;
    one.abort(id, Class::Forbidden, true).await;
    assert!(matches!(failed(sent).await, RequestError { kind: Kind::Forbidden, .. }));
}

#[tokio::test]
async fn reason_of_an_agent_reaches_callers_printable_and_short() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    for (is_write, before_send) in [(false, false), (false, true), (true, false)] {
        let sent = send(&hub, if is_write { write() } else { read() });
        let (id, ..) = agent.opened().await;
        let message = format!("\u{1b}[31mforbidden\r\n{}", "forbidden".repeat(60_000));
        let class = Class::Internal.into();
        let failure = Failure { class, before_send, message, ..Failure::default() };
        agent.say(id, request_up::Frame::Abort(Abort { failure: Some(failure) })).await;
        let said = failed(sent).await.to_string();
        assert!(said.contains("[31mforbidden forbidden"), "{said}");
        assert!(said.len() < 1200 && !said.contains(char::is_control), "{} bytes: {said}", said.len());
    }
}

#[tokio::test]
async fn a_write_without_an_answer_in_time_is_unknown_and_a_read_has_none() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let head_within = Duration::from_millis(200);
    let sent = send(&hub, write().within(head_within));
    let (_, open, _) = agent.opened().await;
    assert!((1..=200).contains(&open.head_within_ms));
    assert!(matches!(failed(sent).await, RequestError { kind: Kind::Unknown, .. }));
    assert!(matches!(agent.next().await.1, request_down::Frame::Cancel(_)));
    let sent = send(&hub, read().within(head_within));
    agent.opened().await;
    assert!(matches!(failed(sent).await, RequestError { kind: Kind::Timeout, .. }));
}

#[tokio::test]
async fn frames_beyond_the_credit_or_out_of_order_abort_their_request_alone() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let bad = send(&hub, read());
    let (bad_id, open, _) = agent.opened().await;
    let good = send(&hub, AccountRequest::new(Method::GET, "/version").expect("a path"));
    let (good_id, ..) = agent.opened().await;
    agent.say(bad_id, request_up::Frame::Head(Head { status: 200, headers: Vec::new() })).await;
    let response = bad.await.expect("no panic").expect("a head");
    let part = Bytes::from(vec![b'x'; 32 * 1024]);
    for _ in 0..=(open.credit / (32 * 1024)) {
        agent.say(bad_id, request_up::Frame::Data(Data { bytes: part.clone() })).await;
    }
    assert_eq!(agent.next().await, (bad_id, request_down::Frame::Cancel(ops::Cancel {})));
    assert!(matches!(body_of(response).await, Err(RequestError { kind: Kind::Cut, .. })));
    // Nobody knows these.
    agent.say(77, request_up::Frame::Credit(Credit { bytes: 5 })).await;
    agent.say(bad_id, request_up::Frame::End(End {})).await;
    agent.answer(good_id, 200, b"good").await;
    let response = good.await.expect("no panic").expect("an answer");
    assert_eq!(body_of(response).await.expect("a body"), b"good");
}

#[tokio::test]
async fn an_account_that_is_not_usable_or_has_no_agent_is_refused_with_the_reason() {
    let hub = hub().await;
    let port = port(&hub);
    assert!(matches!(port.send("nobody", read()).await, Err(RequestError { kind: Kind::NoAccount, .. })));
    assert!(matches!(port.send("uid-one", read()).await, Err(RequestError { kind: Kind::NoAgent, .. })));
    // An agent that is too old for requests.
    let mut old = hub.agent("old").await;
    let reference = old.added().await[0].account.clone().expect("it is named");
    old.answer(held(&reference)).await;
    let too_old = async {
        loop {
            match port.send("uid-one", read()).await {
                Err(error) if error.kind == Kind::AgentTooOld => return error.message,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let too_old = tokio::time::timeout(Duration::from_secs(20), too_old).await.expect("in time");
    assert!(too_old.starts_with("agent old (version "), "{too_old}");
    let inactive = with(account("one"), |status| {
        (status.state, status.epoch) = (Some(State::Inactive), GrantEpoch(2));
    });
    hub.accounts.show(inactive);
    assert!(matches!(port.send("uid-one", read()).await, Err(RequestError { kind: Kind::NotUsable, .. })));
}

#[tokio::test]
async fn a_stream_of_another_session_or_replica_is_refused() {
    let hub = hub().await;
    let agent = RequestAgent::connect(&hub, "a").await;
    let good = agent.begin.clone();
    for begin in [
        Begin { session_id: "another".into(), ..good.clone() },
        Begin { boot_id: "another".into(), ..good.clone() },
        Begin { replica_id: "r-1".into(), ..good.clone() },
        Begin { agent_id: "b".into(), ..good },
    ] {
        let (_frames, mut answers) = dial(&hub, begin).await;
        let first = answers.message().await.expect("it is well").expect("an answer");
        let Some(request_down::Frame::Refused(refused)) = first.frame else { panic!("expected Refused") };
        assert_eq!(refused.reason(), Reason::WrongReplica);
    }
}

#[tokio::test]
async fn an_agent_is_reachable_in_the_tables_while_its_stream_is_open() {
    let hub = hub().await;
    let agent = RequestAgent::connect(&hub, "a").await;
    let is = |wanted: bool| {
        let rows = hub.rows.rows.lock();
        let row = rows.get(&("one".into(), "a".into()));
        row.is_some_and(|row| row.reachable == wanted).then_some(())
    };
    eventually("it is reachable", || is(true)).await;
    let RequestAgent { session: _session, frames, answers, .. } = agent;
    drop((frames, answers));
    eventually("it is not reachable", || is(false)).await;
}

#[tokio::test]
async fn requests_of_an_account_that_is_taken_from_its_zone_end() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let watching = send(&hub, AccountRequest::new(Method::GET, format!("{TARGET}?watch=1")).expect("a path"));
    let (id, ..) = agent.opened().await;
    agent.say(id, request_up::Frame::Head(Head { status: 200, headers: Vec::new() })).await;
    let mut watch = watching.await.expect("no panic").expect("a head");
    let reading = send(&hub, read());
    agent.opened().await;
    let writing = send(&hub, write());
    agent.opened().await;
    let began = std::time::Instant::now();
    hub.accounts.show(with(account("one"), |status| {
        (status.state, status.epoch) = (Some(State::Inactive), GrantEpoch(2));
    }));
    assert!(matches!(watch.body.next().await, Some(Err(RequestError { kind: Kind::Cut, .. }))));
    assert!(matches!(failed(reading).await, RequestError { kind: Kind::NoAnswer, .. }));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(matches!(failed(writing).await, RequestError { kind: Kind::Unknown, .. }));
    assert!(began.elapsed() >= Duration::from_secs(5), "a write is awaited");
}

#[tokio::test]
async fn a_watch_ends_at_the_end_of_a_line_when_the_replica_stops() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let watching = send(&hub, AccountRequest::new(Method::GET, format!("{TARGET}?watch=1")).expect("a path"));
    let (id, ..) = agent.opened().await;
    agent.say(id, request_up::Frame::Head(head_in("application/json"))).await;
    agent.say(id, request_up::Frame::Data(Data { bytes: Bytes::from_static(b"one\n") })).await;
    let mut watch = watching.await.expect("no panic").expect("a head");
    assert_eq!(watch.body.next().await.expect("a line").expect("a good one"), b"one\n"[..]);
    hub.hub.context.stopping.cancel();
    assert!(watch.body.next().await.is_none(), "it ends as a whole");
}

/// The head of a good answer with this type of content.
fn head_in(media: &str) -> Head {
    let headers = vec![ops::Header { name: "content-type".to_owned(), value: media.as_bytes().to_vec() }];
    Head { status: 200, headers }
}

#[tokio::test]
async fn a_followed_log_and_a_watch_that_is_no_lines_are_cut_when_the_replica_has_stopped() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let mut streams = Vec::new();
    for (target, media) in [
        ("/api/v1/namespaces/a/pods/p/log?follow=true", "text/plain"),
        ("/api/v1/pods?watch=1", "application/vnd.kubernetes.protobuf;stream=watch"),
    ] {
        let asking = send(&hub, AccountRequest::new(Method::GET, target).expect("a path"));
        let (id, ..) = agent.opened().await;
        agent.say(id, request_up::Frame::Head(head_in(media))).await;
        agent.say(id, request_up::Frame::Data(Data { bytes: Bytes::from_static(b"one\n") })).await;
        let mut answer = asking.await.expect("no panic").expect("a head");
        assert_eq!(answer.body.next().await.expect("a part").expect("a good one"), b"one\n"[..]);
        streams.push((id, answer));
    }
    hub.hub.context.stopping.cancel();
    for (id, answer) in &mut streams {
        agent.say(*id, request_up::Frame::Data(Data { bytes: Bytes::from_static(b"two\nth") })).await;
        assert_eq!(answer.body.next().await.expect("a part").expect("a good one"), b"two\nth"[..]);
    }
    drop(agent);
    for (_, mut answer) in streams {
        assert!(matches!(answer.body.next().await, Some(Err(RequestError { kind: Kind::Cut, .. }))));
    }
}

#[tokio::test]
async fn a_replica_that_stops_sends_an_agent_away_once_its_writes_are_answered() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let writing = send(&hub, write());
    let (id, ..) = agent.opened().await;
    hub.stop.cancel();
    let early = tokio::time::timeout(Duration::from_millis(500), agent.session.next()).await;
    assert!(early.is_err(), "{early:?}");
    agent.answer(id, 201, b"made").await;
    let response = writing.await.expect("no panic").expect("an answer");
    assert_eq!(body_of(response).await.expect("a body"), b"made");
    let next = agent.session.next().await;
    assert!(matches!(next, Ok(Some(ops::hub_frame::Frame::Drain(_)))), "{next:?}");
}

/// A kind of bad frames: what it is, the frames, and whether the request has no whole answer then.
type BadFrames = (&'static str, Vec<(u64, Option<request_up::Frame>)>, bool);

/// What an agent says of a request that it was given.
fn bad_frames(id: u64) -> Vec<BadFrames> {
    use request_up::Frame as Up;
    let head = |status, headers| Some(Up::Head(Head { status, headers }));
    let header =
        |name: &str, value: &[u8]| vec![ops::Header { name: name.to_owned(), value: value.to_vec() }];
    let data = || Some(Up::Data(Data { bytes: Bytes::from_static(b"x") }));
    let end = || Some(Up::End(End {}));
    let failed = |class| {
        Some(Up::Abort(Abort {
            failure: Some(Failure { class, message: "odd".into(), ..Failure::default() }),
        }))
    };
    let begin = Begin { session_id: "another".into(), ..Begin::default() };
    let running = ops::Running { ids: vec![id, 1 << 40, u64::MAX] };
    vec![
        ("data before a head", vec![(id, data())], true),
        ("an end before a head", vec![(id, end())], true),
        ("a head twice", vec![(id, head(200, vec![])), (id, head(200, vec![]))], true),
        ("a status of zero", vec![(id, head(0, vec![])), (id, end())], true),
        ("a status that is none", vec![(id, head(99_999, vec![])), (id, end())], true),
        (
            "a header with a line feed",
            vec![(id, head(200, header("x-a", b"b\r\nx-b: c"))), (id, end())],
            true,
        ),
        ("a header that has no name", vec![(id, head(200, header("", b"b"))), (id, end())], true),
        ("a header with a name that is none", vec![(id, head(200, header("x a", b"b"))), (id, end())], true),
        (
            "a head of more headers than a map takes",
            vec![(id, head(200, vec![header("a", b"").remove(0); 40_000])), (id, end())],
            true,
        ),
        ("a head of 65 KiB", vec![(id, head(200, header("a", &[b'x'; 65 * 1024]))), (id, end())], true),
        ("a failure of an unknown class", vec![(id, failed(4711))], true),
        ("an abort without a failure", vec![(id, Some(Up::Abort(Abort { failure: None })))], true),
        ("no frame at all", vec![(id, None)], false),
        ("a beginning in the middle", vec![(0, Some(Up::Begin(begin)))], false),
        ("a head of the stream itself", vec![(0, head(200, vec![])), (0, data()), (0, end())], false),
        ("an answer that nobody asked for", vec![(1 << 40, head(200, vec![])), (1 << 40, end())], false),
        ("data that nobody asked for", vec![(u64::MAX, data())], false),
        ("a failure of what nobody asked for", vec![(1 << 41, failed(1))], false),
        ("credit beyond all bounds", vec![(id, Some(Up::Credit(Credit { bytes: u32::MAX }))); 3], true),
        ("credit for what nobody asked for", vec![(1 << 42, Some(Up::Credit(Credit { bytes: 1 })))], false),
        ("ids that nobody knows", vec![(0, Some(Up::Running(running)))], false),
    ]
}

#[tokio::test]
async fn each_kind_of_bad_frame_ends_its_own_request_at_most() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    for kind in 0..bad_frames(0).len() {
        let sent = send(&hub, read());
        let (id, ..) = agent.opened().await;
        let (what, frames, ends) = bad_frames(id).swap_remove(kind);
        for (id, frame) in frames {
            agent.frames.send(RequestUp { id, frame }).await.expect("the stream is open");
        }
        if ends {
            let response = sent.await.expect(what);
            let is_whole = match response {
                Ok(response) => body_of(response).await.is_ok(),
                Err(_) => false,
            };
            assert!(!is_whole, "{what}");
        } else {
            agent.answer(id, 200, b"good").await;
            let response = sent.await.expect("no panic").expect(what);
            assert_eq!(body_of(response).await.expect(what), b"good");
        }
        let next = send(&hub, read());
        let (id, ..) = loop {
            match agent.next().await {
                (_, request_down::Frame::Cancel(_) | request_down::Frame::Credit(_)) => {}
                (id, request_down::Frame::Open(_)) => {
                    assert_eq!(agent.next().await, (id, request_down::Frame::End(End {})), "{what}");
                    break (id, ());
                }
                other => panic!("{what}: {other:?}"),
            }
        };
        agent.answer(id, 200, b"good").await;
        let response = next.await.expect("no panic").expect(what);
        assert_eq!(body_of(response).await.expect(what), b"good", "{what}");
    }
}

#[tokio::test]
async fn an_earlier_definition_serves_requests_until_the_new_one_works() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    let classes =
        [Class::Unreachable, Class::Tls, Class::Timeout, Class::Auth, Class::Forbidden, Class::BadKubeconfig];
    let mut epoch = 1;
    for class in classes {
        epoch += 1;
        hub.accounts.show(later(active("one"), epoch, State::Activating));
        let added = agent.session.added().await[0].account.clone().expect("it is named");
        assert_eq!(is_served(&hub, &mut agent, "while the new one starts").await, added.epoch);
        let mut refused = support::failed(&added);
        if let Some(ops::account_result::Outcome::Failure(failure)) = &mut refused.outcome {
            failure.class = class.into();
        }
        agent.session.answer(refused).await;
        eventually("the leader knows of the failure", || {
            let report = hub.hub.sessions("uid-one").pop()?.report?;
            matches!(report, (GrantEpoch(of), AgentReport::Failed(_)) if of == epoch).then_some(())
        })
        .await;
        is_served(&hub, &mut agent, "before the leader has acted").await;
        hub.accounts.show(later(active("one"), epoch, State::Failed));
        is_served(&hub, &mut agent, "while it is FAILED").await;
    }
    // The credential cannot be read, or is refused, before it is sent.
    epoch += 1;
    let missing = kubesvc_core::failure::Failure::new(FailureClass::CredentialMissing, "no Secret one");
    hub.credentials.answers.lock().insert("one".into(), Err(missing));
    hub.accounts.show(later(active("one"), epoch, State::Activating));
    eventually("the session's failure", || {
        let report = hub.hub.sessions("uid-one").pop()?.report?;
        matches!(report, (GrantEpoch(of), AgentReport::Failed(_)) if of == epoch).then_some(())
    })
    .await;
    is_served(&hub, &mut agent, "without a credential").await;
    hub.credentials.answers.lock().clear();

    epoch += 1;
    hub.accounts.show(later(active("one"), epoch, State::Activating));
    let added = agent.session.added().await[0].account.clone().expect("it is named");
    agent.session.answer(held(&added)).await;
    eventually("the hub knows", || {
        let report = hub.hub.sessions("uid-one").pop()?.report?;
        matches!(report, (GrantEpoch(of), AgentReport::Held(_)) if of == epoch).then_some(())
    })
    .await;
    hub.accounts.show(later(active("one"), epoch, State::Active));
    assert_eq!(is_served(&hub, &mut agent, "under the new one").await, added.epoch);

    // Taken from the zone: nothing is sent any more, whatever is held.
    hub.accounts.show(with(later(active("one"), epoch + 1, State::Activating), |status| {
        status.grant.as_mut().expect("granted").phase = GrantPhase::Revoking;
    }));
    let error = failed(send(&hub, read())).await;
    assert!(matches!(error, RequestError { kind: Kind::NotUsable, .. }), "{error:?}");
}

/// With the new definition in use elsewhere, an agent at which it failed could allow what the new one does not.
#[tokio::test]
async fn an_earlier_definition_is_not_used_beside_the_new_one_nor_after_a_loss() {
    let hub = hub().await;
    let mut agent = RequestAgent::connect(&hub, "a").await;
    hub.accounts.show(later(active("one"), 2, State::Activating));
    let added = agent.session.added().await[0].account.clone().expect("it is named");
    agent.session.answer(support::failed(&added)).await;
    is_served(&hub, &mut agent, "while no agent has the new one").await;
    hub.accounts.show(later(active("one"), 2, State::Active));
    let refused = failed(send(&hub, read())).await;
    assert!(matches!(refused, RequestError { kind: Kind::NoAgent, .. }), "{refused:?}");
    hub.accounts.show(later(active("one"), 2, State::Failed));
    is_served(&hub, &mut agent, "none has it any more").await;
    let of_first = AccountRef { epoch: 1, ..added };
    agent
        .session
        .say(ops::agent_frame::Frame::Lost(ops::Lost { account: Some(of_first), failure: None }))
        .await;
    eventually("the loss", || {
        let session = hub.hub.sessions.registry.of_id(&"a".into()).pop()?;
        (!session.holds("uid-one")).then_some(())
    })
    .await;
    let refused = failed(send(&hub, read())).await;
    assert!(matches!(refused, RequestError { kind: Kind::NoAgent, .. }), "{refused:?}");
}

/// An operator that starts anew knows of the earlier definition from the hello alone. Among several replicas the account may
/// have been taken from the zone while the agent was away, and the watch may not show it yet.
#[tokio::test]
async fn an_agent_that_comes_back_with_an_earlier_definition_is_asked_if_its_zone_still_has_the_account() {
    for clustered in [false, true] {
        let sessions = SessionSettings { clustered, ..Default::default() };
        let hub = TestHub::with(HubSettings { sessions, ..HubSettings::default() }).await;
        let seen = later(active("one"), 2, State::Failed);
        hub.accounts.show(seen.clone());
        hub.accounts.sync();
        let account = AccountRef { uid: "uid-one".into(), name: "one".into(), epoch: 1, generation: 1 };
        let claim = |cluster: &str| ops::HeldAccount {
            account: Some(account.clone()),
            cluster_uid: cluster.into(),
            ..Default::default()
        };
        for (connect_seq, cluster, is_right) in [(1, "another", false), (2, "cluster", true)] {
            let hello = ops::Hello {
                accounts_held: vec![claim(cluster)],
                capabilities: vec!["requests/1".to_owned()],
                connect_seq,
                ..hello("a")
            };
            let mut agent = RequestAgent::greet(&hub, hello).await;
            if is_right && clustered {
                // The API server, where the account has gone to another zone.
                let moved = with(seen.clone(), |status| status.epoch = GrantEpoch(4));
                hub.made.there.lock().insert("one".into(), moved);
                let refused = failed(send(&hub, read())).await;
                assert!(matches!(refused, RequestError { kind: Kind::NoAgent, .. }), "{refused:?}");
                hub.made.there.lock().insert("one".into(), seen.clone());
            }
            if is_right {
                assert_eq!(is_served(&hub, &mut agent, "from its hello").await, 2);
            } else {
                let refused = failed(send(&hub, read())).await;
                assert!(matches!(refused, RequestError { kind: Kind::NoAgent, .. }), "{refused:?}");
            }
        }
    }
}
