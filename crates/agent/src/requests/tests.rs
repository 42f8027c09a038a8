//! Requests of a hub in the process, by way of a real agent's side, to API servers that follow a script.
#![expect(clippy::panic, reason = "this is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use http::Response;
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Bytes, Frame as BodyFrame};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::answers::LastPart;
use super::{RequestService, RequestServiceMetrics};
use crate::account_table::{AccountTable, Effect};
use crate::activation::{ActivatedAccount, Activator, Definition};
use crate::cluster::tests::test_server::{Authority, ServerOptions, TestServer, kubeconfig, whole};
use crate::command_executor::Activators;
use crate::settings::RequestSettings;
use crate::static_accounts::StaticAccountFile;
use kubesvc_core::requests::access::AllowedClasses;
use kubesvc_core::requests::credit::{CreditBudget, INITIAL_CREDIT, MAX_CREDIT_OF_AGENT};
use kubesvc_core::requests::streams::{Event, Frame};
use kubesvc_core::requests::wire::{AgentEnd, HubEnd, Opening};
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::common::{AccountRef, Failure};
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::{
    AccountSpec, ApplySettings, ClusterIdentity, Head, Header, Open, Recall, RetrySettings,
};
use kubesvc_runtime::request_channel::{Exchange, NewRequest, RequestChannel};

/// Longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(10);
const BOOT_ID: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
const UID: &str = "uid-1";

/// An agent that holds one account, and the stream to it.
struct World {
    service: Arc<RequestService>,
    table: Arc<Mutex<AccountTable>>,
    hub: Arc<RequestChannel<HubEnd>>,
    server: TestServer,
    released: Arc<Notify>,
    _carrying: AbortOnDropHandle<()>,
}

/// Carries frames both ways, as the two drivers do.
async fn carry(
    hub: Arc<RequestChannel<HubEnd>>,
    agent: Arc<RequestChannel<AgentEnd>>,
    service: Arc<RequestService>,
) {
    loop {
        while let Some((id, frame)) = hub.next_frame() {
            let frame = match frame {
                Frame::Head(first) => {
                    let credit = match &first {
                        Opening::Open(open) => open.credit,
                        Opening::Recall(_) => INITIAL_CREDIT,
                    };
                    match agent.receive_opening(id, first, credit) {
                        NewRequest::Opened(exchange, Opening::Open(open)) => service.open(exchange, *open),
                        NewRequest::Opened(exchange, Opening::Recall(recall)) => {
                            service.recall(exchange, &recall, BOOT_ID);
                        }
                        NewRequest::Nothing => {}
                    }
                    continue;
                }
                Frame::Data(bytes) => Frame::Data(bytes),
                Frame::End => Frame::End,
                Frame::Stop(()) => Frame::Stop(()),
                Frame::Credit(bytes) => Frame::Credit(bytes),
            };
            agent.receive(id, frame);
        }
        while let Some((id, frame)) = agent.next_frame() {
            hub.receive(id, frame);
        }
        tokio::select! {
            () = hub.outgoing() => {}
            () = agent.outgoing() => {}
        }
    }
}

fn reference(epoch: u64) -> AccountRef {
    AccountRef { uid: UID.to_owned(), name: "prod".to_owned(), epoch, generation: 1 }
}

/// Reads and writes without a time limit, not tried again.
fn settings() -> RequestSettings {
    RequestSettings {
        allow: AllowedClasses::default(),
        apply: ApplySettings::default(),
        keeps_answers: true,
        timeout: Duration::ZERO,
    }
}

impl World {
    async fn start(namespaces: &[&str]) -> Self {
        Self::with(namespaces, settings()).await
    }

    async fn with(namespaces: &[&str], settings: RequestSettings) -> Self {
        let (authority, released) = (Authority::new(), Arc::new(Notify::new()));
        let release = Arc::clone(&released);
        let server = TestServer::scripted(&authority, ServerOptions::default(), move |request| {
            let (path, release) = (request.uri().path().to_owned(), Arc::clone(&release));
            async move {
                if path.ends_with("/slow") {
                    release.notified().await;
                }
                if path.ends_with("/cut") {
                    return Err(std::io::Error::other("cut"));
                }
                if path == "/api/v1/namespaces/kube-system" {
                    // The agent's own question, which this account may not ask.
                    return Ok(Response::builder().status(403).body(whole("{}")).expect("a response"));
                }
                let body = match path.as_str() {
                    "/api/v1/namespaces/a/large" => whole(vec![b'x'; 3 << 20]),
                    "/api/v1/namespaces/a/endless" => endless(),
                    path if path.contains("lines") => lines(release),
                    _ => whole(format!("{} {path}", request.method())),
                };
                let media = match path.rsplit('/').next() {
                    Some("lines") => "application/json",
                    Some("protobuf-lines") => "application/vnd.kubernetes.protobuf;stream=watch",
                    _ => "text/plain",
                };
                Ok(Response::builder()
                    .header("content-type", media)
                    .header("x-served", "1")
                    .header("connection", "close, x-hop")
                    .header("x-hop", "1")
                    .body(body)
                    .expect("a response"))
            }
        })
        .await;
        let config = kubeconfig(&server.url(), Some(&authority.pem()), "a-token-of-some-length");
        let spec = AccountSpec {
            account: Some(reference(3)),
            credential: Some(Credential::Kubeconfig(config)),
            namespaces: namespaces.iter().map(ToString::to_string).collect(),
            ..AccountSpec::default()
        };
        let table = Arc::new(Mutex::new(AccountTable::default()));
        hold(&table, spec);
        let activators = Activators { all: Activator::new(Vec::new(), 4), own: StaticAccountFile::default() };
        let service =
            RequestService::new(Arc::clone(&table), activators, settings, RequestServiceMetrics::default());
        let (hub, carrying) = connect(&service);
        Self { service, table, hub, server, released, _carrying: carrying }
    }

    /// The stream is lost, and a new one opened.
    fn reconnect(&mut self) {
        let (hub, carrying) = connect(&self.service);
        (self.hub, self._carrying) = (hub, carrying);
    }

    fn open(&self, request_id: &str, method: &str, target: &str) -> Exchange<HubEnd> {
        self.open_with(|open| {
            open.request_id = request_id.to_owned();
            open.method = method.to_owned();
            open.target = target.as_bytes().to_vec();
        })
    }

    fn open_with(&self, change: impl FnOnce(&mut Open)) -> Exchange<HubEnd> {
        let opened = self.hub.open(|credit| {
            let mut open =
                Open { account: Some(reference(3)), credit, head_within_ms: 10_000, ..Open::default() };
            change(&mut open);
            Opening::Open(Box::new(open))
        });
        opened.expect("room")
    }

    fn recall(&self, request_id: &str, boot_id: &str) -> Exchange<HubEnd> {
        let recall = Recall { request_id: request_id.to_owned(), boot_id: boot_id.to_owned() };
        let exchange = self.hub.open(|_| Opening::Recall(recall)).expect("room");
        exchange.end();
        exchange
    }

    async fn until_asked(&self, path: &str) {
        let asked = async {
            while !self.server.paths().iter().any(|asked| asked == path) {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, asked).await.expect("the request comes in time");
    }

    fn asked(&self, path: &str) -> usize {
        self.server.paths().iter().filter(|asked| *asked == path).count()
    }
}

/// A body that goes on until it is not read any more.
fn endless() -> UnsyncBoxBody<Bytes, std::io::Error> {
    let parts = futures::stream::repeat_with(|| Ok(BodyFrame::data(Bytes::from(vec![b'x'; 8192]))));
    UnsyncBoxBody::new(StreamBody::new(parts.then(|part| async {
        tokio::task::yield_now().await;
        part
    })))
}

/// A line and a half; the rest of it, and the beginning of another, when that is released.
fn lines(release: Arc<Notify>) -> UnsyncBoxBody<Bytes, std::io::Error> {
    let first = futures::stream::iter(["one\ntw"]);
    let later = futures::stream::once(async move {
        release.notified().await;
        "o\nth"
    });
    let parts = first.chain(later).map(|part| Ok(BodyFrame::data(Bytes::from_static(part.as_bytes()))));
    UnsyncBoxBody::new(StreamBody::new(parts.chain(futures::stream::pending())))
}

fn hold(table: &Mutex<AccountTable>, spec: AccountSpec) {
    let (account, definition) = Definition::split(spec);
    let effects = table.lock().add(account.expect("an account"), definition);
    let Some(Effect::Start { attempt, account, .. }) = effects.into_iter().next() else { panic!("no start") };
    let identity = ClusterIdentity::default();
    let reached = ActivatedAccount { identity, files: Vec::new(), at: Timestamp::now() };
    table.lock().finished(&account.uid, attempt, Ok(reached));
}

fn connect(service: &Arc<RequestService>) -> (Arc<RequestChannel<HubEnd>>, AbortOnDropHandle<()>) {
    let budget = || CreditBudget::new(MAX_CREDIT_OF_AGENT, None);
    let (hub, agent) = (RequestChannel::new(budget()), RequestChannel::new(budget()));
    /// Ends the requests of a stream with it.
    struct Lost(Arc<RequestChannel<AgentEnd>>);
    impl Drop for Lost {
        fn drop(&mut self) {
            self.0.lost();
        }
    }
    let (carried, service) = (Arc::clone(&hub), Arc::clone(service));
    let carrying = async move {
        let lost = Lost(agent);
        carry(carried, Arc::clone(&lost.0), service).await;
    };
    (hub, AbortOnDropHandle::new(tokio::spawn(carrying)))
}

async fn event(exchange: &Exchange<HubEnd>) -> Event<Head, Failure> {
    timeout(PATIENCE, exchange.event()).await.expect("an event in time")
}

/// Reads an answer to its end.
async fn answer(exchange: &Exchange<HubEnd>) -> Result<(Head, Vec<u8>), Failure> {
    let (mut head, mut body) = (Head::default(), Vec::new());
    loop {
        match event(exchange).await {
            Event::Head(first) => head = first,
            Event::Data(bytes) => body.extend_from_slice(&bytes),
            Event::End => return Ok((head, body)),
            Event::Stopped(failure) => return Err(failure),
            Event::Broken(why) => panic!("{why}"),
        }
    }
}

async fn refusal(exchange: &Exchange<HubEnd>) -> (Class, bool, String) {
    let failure = answer(exchange).await.expect_err("a refusal");
    (failure.class(), failure.before_send, failure.message)
}

fn id(number: u8) -> String {
    format!("01ARZ3NDEKTSV4RRFFQ69G5F{number:02}")
}

#[tokio::test]
async fn a_read_is_answered_with_the_servers_own_answer() {
    let world = World::start(&[]).await;
    let exchange = world.open_with(|open| {
        open.request_id = id(1);
        open.method = "GET".into();
        open.target = b"/api/v1/namespaces/a/pods?limit=5".to_vec();
        open.headers = vec![
            Header { name: "Accept".into(), value: b"application/json".to_vec() },
            Header { name: "Authorization".into(), value: b"Bearer of-the-caller".to_vec() },
            Header { name: "Accept-Encoding".into(), value: b"gzip".to_vec() },
        ];
    });
    exchange.end();
    let (head, body) = answer(&exchange).await.expect("an answer");
    assert_eq!((head.status, body.as_slice()), (200, &b"GET /api/v1/namespaces/a/pods"[..]));
    let names: Vec<_> = head.headers.iter().map(|header| header.name.as_str()).collect();
    assert!(names.contains(&"x-served") && !names.contains(&"x-hop"), "{names:?}");
    let asked = world.server.asked.lock();
    let last = asked.last().expect("a request");
    assert_eq!(last.path, "/api/v1/namespaces/a/pods?limit=5");
    assert_eq!(last.authorization, "Bearer a-token-of-some-length");
    assert_eq!((last.accept.as_str(), last.encodings.as_str()), ("application/json", "gzip"));
}

#[tokio::test]
async fn the_id_in_the_clusters_audit_log_is_the_requests_own_whatever_its_caller_sends() {
    let world = World::start(&[]).await;
    let exchange = world.open_with(|open| {
        open.request_id = id(19);
        open.method = "GET".into();
        open.target = b"/api/v1/namespaces/a/pods".to_vec();
        open.headers = vec![Header { name: "Audit-Id".into(), value: b"of-the-caller".to_vec() }];
    });
    exchange.end();
    answer(&exchange).await.expect("an answer");
    let asked = world.server.asked.lock();
    assert_eq!(asked.last().expect("a request").audit_ids, [id(19)]);
}

#[tokio::test]
async fn a_request_that_may_not_be_made_is_refused_before_anything_is_sent() {
    let world = World::start(&["a"]).await;
    for (method, target, class) in [
        ("GET", "/api/v1/namespaces/b/pods", Class::Forbidden),
        ("GET", "/api/v1/namespaces/a/pods/p/exec", Class::Forbidden),
        ("POST", "/api/v1/namespaces/a/serviceaccounts/s/token", Class::Forbidden),
        ("GET", "/api/v1/../secrets", Class::BadReference),
        ("GET", "//evil/api", Class::BadReference),
        ("CONNECT", "/api", Class::BadReference),
        ("G E T", "/api", Class::BadReference),
    ] {
        let exchange = world.open(&id(2), method, target);
        exchange.end();
        let (said, before_send, message) = refusal(&exchange).await;
        assert_eq!((said, before_send), (class, true), "{method} {target}: {message}");
        assert!(class != Class::Forbidden || message.starts_with("policy: "), "{message}");
    }
    let other = world.open_with(|open| {
        open.account = Some(AccountRef { uid: "other".into(), ..reference(3) });
    });
    assert_eq!(refusal(&other).await.0, Class::NotFound);
    let earlier = world.open_with(|open| open.account = Some(reference(2)));
    assert_eq!(refusal(&earlier).await.0, Class::Conflict);
    assert!(world.server.paths().is_empty());
}

#[tokio::test]
async fn a_write_is_sent_once_and_its_answer_is_kept_until_it_is_forgotten() {
    let mut world = World::start(&[]).await;
    let path = "/api/v1/namespaces/a/configmaps/slow";
    let first = world.open(&id(3), "PATCH", path);
    assert!(first.send(Bytes::from_static(b"{}")).await);
    first.end();
    world.until_asked(path).await;
    // The stream is lost while the write runs.
    world.reconnect();
    let recalled = world.recall(&id(3), BOOT_ID);
    let again = world.open(&id(3), "PATCH", path);
    again.end();
    world.released.notify_one();
    for exchange in [&recalled, &again] {
        let (head, body) = answer(exchange).await.expect("its answer");
        assert_eq!((head.status, body), (200, format!("PATCH {path}").into_bytes()));
    }
    assert_eq!(world.asked(path), 1);
    world.service.writes.forget(&[id(3)]);
    assert_eq!(refusal(&world.recall(&id(3), BOOT_ID)).await.0, Class::OutcomeUnknown);
    let again = world.open(&id(3), "PATCH", path);
    assert_eq!(refusal(&again).await.0, Class::OutcomeUnknown);
    assert_eq!(world.asked(path), 1, "a known id is never sent again");
}

#[tokio::test]
async fn a_write_that_was_never_complete_or_never_came_is_recalled_as_not_sent() {
    let mut world = World::start(&[]).await;
    let unfinished = world.open(&id(4), "POST", "/api/v1/namespaces/a/configmaps");
    assert!(unfinished.send(Bytes::from_static(b"{")).await);
    while world.service.list().is_empty() {
        tokio::task::yield_now().await;
    }
    world.reconnect();
    let (class, before_send, _) = refusal(&world.recall(&id(4), BOOT_ID)).await;
    assert_eq!((class, before_send), (Class::NotFound, true));
    let (class, before_send, _) = refusal(&world.recall(&id(5), BOOT_ID)).await;
    assert_eq!((class, before_send), (Class::NotFound, true));
    let (class, before_send, _) = refusal(&world.recall(&id(4), "01ARZ3NDEKTSV4RRFFQ69G5FZZ")).await;
    assert_eq!((class, before_send), (Class::OutcomeUnknown, false));
    assert_eq!(world.asked("/api/v1/namespaces/a/configmaps"), 0);
}

#[tokio::test]
async fn a_write_whose_connection_breaks_after_it_was_sent_is_unknown() {
    let world = World::start(&[]).await;
    let exchange = world.open(&id(6), "DELETE", "/api/v1/namespaces/a/pods/cut");
    exchange.end();
    let (class, before_send, _) = refusal(&exchange).await;
    assert_eq!((class, before_send), (Class::OutcomeUnknown, false));
    assert_eq!(world.asked("/api/v1/namespaces/a/pods/cut"), 1);
}

#[tokio::test]
async fn a_write_that_was_sent_is_unknown_also_if_a_further_try_does_not_reach_the_cluster() {
    let retries = RetrySettings {
        enabled: true,
        max_retries: 1,
        backoff_ms: 300,
        retry_any_error: true,
        ..RetrySettings::default()
    };
    let apply = ApplySettings { retries: Some(retries), ..ApplySettings::default() };
    let world = World::with(&[], RequestSettings { apply, ..settings() }).await;
    let path = "/api/v1/namespaces/a/pods/cut";
    let exchange = world.open_with(|open| {
        open.request_id = id(20);
        open.method = "DELETE".into();
        open.target = path.as_bytes().to_vec();
        open.repeatable = true;
    });
    exchange.end();
    world.until_asked(path).await;
    drop(world.server);
    let (class, before_send, message) = refusal(&exchange).await;
    assert_eq!((class, before_send), (Class::OutcomeUnknown, false), "{message}");
}

#[tokio::test]
async fn by_the_documented_words_a_request_is_tried_again_after_a_timeout_alone() {
    let retries = RetrySettings {
        enabled: true,
        max_retries: 1,
        backoff_ms: 10,
        retryable_errors: vec!["timeout".to_owned(), "deadline exceeded".to_owned()],
        ..RetrySettings::default()
    };
    let apply = ApplySettings { retries: Some(retries), ..ApplySettings::default() };
    let settings = RequestSettings { apply, timeout: Duration::from_secs(1), ..settings() };
    let world = World::with(&[], settings).await;
    for (number, path, tries) in
        [(30, "/api/v1/namespaces/a/pods/slow", 2), (31, "/api/v1/namespaces/a/pods/cut", 1)]
    {
        let exchange = world.open_with(|open| {
            open.request_id = id(number);
            open.method = "GET".into();
            open.target = path.as_bytes().to_vec();
            open.repeatable = true;
        });
        exchange.end();
        let (_, before_send, message) = refusal(&exchange).await;
        assert!(!before_send, "{message}");
        assert_eq!(world.asked(path), tries, "{path}: {message}");
    }
}

#[tokio::test]
async fn the_large_answer_of_a_write_has_its_status_and_no_body() {
    let world = World::start(&[]).await;
    let exchange = world.open(&id(7), "POST", "/api/v1/namespaces/a/large");
    exchange.end();
    assert!(matches!(event(&exchange).await, Event::Head(Head { status: 200, .. })));
    assert!(matches!(event(&exchange).await, Event::Stopped(failure) if failure.class() == Class::TooLarge));
}

#[tokio::test]
async fn a_stream_that_is_cancelled_or_not_read_holds_up_nothing() {
    let world = World::start(&[]).await;
    let endless = world.open(&id(8), "GET", "/api/v1/namespaces/a/endless");
    endless.end();
    assert!(matches!(event(&endless).await, Event::Head(_)));
    // Not read any further; others are served.
    let other = world.open(&id(9), "GET", "/api/v1/namespaces/a/pods");
    other.end();
    assert!(answer(&other).await.is_ok());
    assert_eq!(world.service.list().len(), 1);
    drop(endless);
    let ended = async {
        while !world.service.list().is_empty() || world.server.open() > 2 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, ended).await.expect("the request to the server ends too");
}

#[tokio::test]
async fn a_request_for_an_upgrade_that_has_none_ends_with_its_caller_before_and_after_the_head() {
    let world = World::start(&[]).await;
    let open = |number: u8, target: &str| {
        world.open_with(|open| {
            open.request_id = id(number);
            open.method = "GET".into();
            open.target = target.as_bytes().to_vec();
            open.headers = vec![Header { name: "Upgrade".into(), value: b"websocket".to_vec() }];
            open.upgrade = true;
        })
    };
    let answered = open(32, "/api/v1/namespaces/a/lines?watch=1");
    assert!(matches!(event(&answered).await, Event::Head(Head { status: 200, .. })));
    assert!(matches!(event(&answered).await, Event::Data(bytes) if bytes == b"one\ntw"[..]));
    let path = "/api/v1/watch/namespaces/a/pods/slow";
    let unanswered = open(33, path);
    world.until_asked(path).await;
    assert_eq!(world.service.list().len(), 2);
    drop((answered, unanswered));
    let ended = async {
        while !world.service.list().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(1), ended).await.expect("nothing runs without its caller");
}

#[tokio::test]
async fn an_upgrade_that_may_open_a_console_is_refused_as_one_that_connects() {
    let world = World::start(&[]).await;
    for (number, protocol, class) in [(60, "websocket", Class::Forbidden), (61, "h2c", Class::BadReference)] {
        let exchange = world.open_with(|open| {
            open.request_id = id(number);
            open.method = "GET".into();
            open.target =
                b"/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/v/vnc".to_vec();
            open.headers = vec![Header { name: "Upgrade".into(), value: protocol.into() }];
            open.upgrade = true;
        });
        let refused = answer(&exchange).await.expect_err("nothing is opened");
        assert_eq!(refused.class(), class, "{protocol}: {}", refused.message);
    }
}

#[tokio::test]
async fn a_write_upgrades_no_connection() {
    let world = World::start(&[]).await;
    let exchange = world.open_with(|open| {
        open.request_id = id(62);
        open.method = "DELETE".into();
        open.target = b"/api/v1/namespaces/a/pods/p".to_vec();
        open.headers = vec![Header { name: "Upgrade".into(), value: b"websocket".to_vec() }];
        open.upgrade = true;
    });
    let refused = answer(&exchange).await.expect_err("it would pass for one that connects");
    assert_eq!(refused.class(), Class::BadReference, "{}", refused.message);
}

#[tokio::test]
async fn a_drop_ends_reads_at_once_and_waits_for_a_write_that_was_sent() {
    let world = World::start(&[]).await;
    let read = world.open(&id(10), "GET", "/api/v1/namespaces/a/endless");
    read.end();
    assert!(matches!(event(&read).await, Event::Head(_)));
    let path = "/api/v1/namespaces/a/pods/slow";
    let write = world.open(&id(11), "DELETE", path);
    write.end();
    world.until_asked(path).await;
    world.table.lock().drop_account(reference(4));
    let ended = world.service.stop(UID).expect("something runs");
    let ended = AbortOnDropHandle::new(tokio::spawn(ended));
    assert!(answer(&read).await.is_err(), "it never ends as if it were whole");
    assert!(!ended.is_finished());
    let late = world.open(&id(12), "GET", "/api/v1/namespaces/a/pods");
    assert_eq!(refusal(&late).await.0, Class::NotFound);
    world.released.notify_one();
    timeout(PATIENCE, ended).await.expect("in time").expect("no panic");
    assert_eq!(answer(&write).await.expect("its answer").0.status, 200);
}

#[tokio::test]
async fn no_request_begins_beside_a_drop_that_does_not_find_it() {
    const ROUNDS: u64 = 1000;
    let (world, runtime) = (World::start(&[]).await, Handle::current());
    let config = kubeconfig(&world.server.url(), None, "a-token-of-some-length");
    world.table.lock().drop_account(reference(3));
    for round in 0..ROUNDS {
        let epoch = 4 + 2 * round;
        let spec = AccountSpec {
            account: Some(reference(epoch)),
            credential: Some(Credential::Kubeconfig(config.clone())),
            ..AccountSpec::default()
        };
        hold(&world.table, spec);
        let agent = RequestChannel::<AgentEnd>::new(CreditBudget::new(MAX_CREDIT_OF_AGENT, None));
        let open = Open {
            account: Some(reference(epoch)),
            request_id: id(34),
            method: "GET".into(),
            target: b"/api/v1/namespaces/a/pods".to_vec(),
            ..Open::default()
        };
        let opening = agent.receive_opening(1, Opening::Open(Box::new(open)), INITIAL_CREDIT);
        let NewRequest::Opened(exchange, Opening::Open(open)) = opening else { panic!("its id is new") };
        let (is_ready, begins) = (AtomicBool::new(false), AtomicBool::new(false));
        let wait_for = |flag: &AtomicBool| {
            while !flag.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        };
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                let _entered = runtime.enter();
                is_ready.store(true, Ordering::Release);
                wait_for(&begins);
                world.service.open(exchange, *open);
            });
            wait_for(&is_ready);
            begins.store(true, Ordering::Release);
            // A little later in each round, so that it comes between any two steps of the other thread.
            (0..round % 200).for_each(|_| std::hint::spin_loop());
            world.table.lock().drop_account(reference(epoch + 1));
            world.service.stop(UID)
        });
        assert!(found.is_some() || world.service.list().is_empty(), "round {round}");
        // The body of the request never ends, so it runs until its stream is lost.
        agent.lost();
        if let Some(ended) = found {
            timeout(PATIENCE, ended).await.expect("it ends");
        }
    }
}

#[tokio::test]
async fn a_write_that_is_cut_by_a_drop_is_unknown() {
    let world = World::start(&[]).await;
    let path = "/api/v1/namespaces/a/pods/slow";
    let write = world.open(&id(13), "DELETE", path);
    write.end();
    world.until_asked(path).await;
    drop(world.service.stop(UID).expect("something runs"));
    let (class, before_send, _) = refusal(&write).await;
    assert_eq!((class, before_send), (Class::OutcomeUnknown, false));
}

#[tokio::test]
async fn a_body_beyond_its_bound_is_refused_and_the_next_request_is_good() {
    let world = World::start(&[]).await;
    let large = world.open(&id(14), "POST", "/api/v1/namespaces/a/configmaps");
    let sending = async {
        for _ in 0..9 {
            if !large.send(Bytes::from(vec![b' '; 1 << 20])).await {
                return;
            }
        }
    };
    timeout(PATIENCE, sending).await.expect("in time");
    let (class, before_send, _) = refusal(&large).await;
    assert_eq!((class, before_send), (Class::TooLarge, true));
    let next = world.open(&id(15), "GET", "/version");
    next.end();
    assert!(answer(&next).await.is_ok());
}

#[tokio::test]
async fn an_agent_that_drains_ends_watches_at_the_end_of_a_line_and_waits_for_writes() {
    let world = World::start(&[]).await;
    let watch = world.open(&id(16), "GET", "/api/v1/namespaces/a/lines?watch=1");
    watch.end();
    assert!(matches!(event(&watch).await, Event::Head(_)));
    assert!(matches!(event(&watch).await, Event::Data(bytes) if bytes == b"one\ntw"[..]));
    let path = "/api/v1/namespaces/a/pods/slow";
    let write = world.open(&id(17), "DELETE", path);
    write.end();
    world.until_asked(path).await;
    let service = Arc::clone(&world.service);
    let drained = AbortOnDropHandle::new(tokio::spawn(async move { service.drain().await }));
    world.service.draining.cancelled().await;
    let late = world.open(&id(18), "GET", "/api/v1/namespaces/a/pods");
    assert!(refusal(&late).await.1, "nothing new is begun");
    world.released.notify_one();
    world.released.notify_one();
    assert!(matches!(event(&watch).await, Event::Data(bytes) if bytes == b"o\n"[..]));
    assert!(matches!(event(&watch).await, Event::End), "it ends as a whole");
    assert_eq!(answer(&write).await.expect("its answer").0.status, 200);
    timeout(PATIENCE, drained).await.expect("in time").expect("no panic");
}

#[tokio::test]
async fn an_agent_that_drains_waits_until_the_answers_of_its_writes_were_taken() {
    let mut world = World::start(&[]).await;
    let budget = || CreditBudget::new(MAX_CREDIT_OF_AGENT, None);
    world.hub = RequestChannel::new(budget());
    // Frames are carried only while this is polled.
    let carrying = carry(Arc::clone(&world.hub), RequestChannel::new(budget()), Arc::clone(&world.service));
    let mut carrying = std::pin::pin!(carrying);
    let path = "/api/v1/namespaces/a/pods/slow";
    let write = world.open(&id(35), "DELETE", path);
    write.end();
    tokio::select! {
        () = &mut carrying => unreachable!("it never ends"),
        () = world.until_asked(path) => {}
    }
    let service = Arc::clone(&world.service);
    let drained = AbortOnDropHandle::new(tokio::spawn(async move { service.drain().await }));
    world.service.draining.cancelled().await;
    world.released.notify_one();
    let ended = async {
        while !world.service.list().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, ended).await.expect("the cluster answers in time");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!drained.is_finished(), "nothing of the answer was taken");
    let answered = tokio::select! {
        () = &mut carrying => unreachable!("it never ends"),
        answered = answer(&write) => answered,
    };
    assert_eq!(answered.expect("its answer").0.status, 200);
    timeout(PATIENCE / 2, drained).await.expect("in time").expect("no panic");
}

#[tokio::test]
async fn a_followed_log_and_a_watch_that_is_no_lines_never_end_as_if_they_were_whole() {
    let world = World::start(&[]).await;
    let mut streams = Vec::new();
    for (number, target) in [
        (21, "/api/v1/namespaces/a/pods/lines/log?follow=true"),
        (22, "/api/v1/namespaces/a/protobuf-lines?watch=1"),
    ] {
        let stream = world.open(&id(number), "GET", target);
        stream.end();
        assert!(matches!(event(&stream).await, Event::Head(_)));
        assert!(matches!(event(&stream).await, Event::Data(bytes) if bytes == b"one\ntw"[..]));
        streams.push(stream);
    }
    timeout(PATIENCE / 2, world.service.drain()).await.expect("they are not waited for");
    let released = Arc::clone(&world.released);
    let _releasing = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            released.notify_one();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }));
    for stream in &streams {
        assert!(
            matches!(event(stream).await, Event::Data(bytes) if bytes == b"o\nth"[..]),
            "all is passed on"
        );
        assert!(stream.event().now_or_never().is_none(), "it goes on until its stream is cut");
    }
    world.hub.lost();
    for stream in &streams {
        assert!(matches!(event(stream).await, Event::Broken(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn an_upgraded_connection_ends_when_neither_side_said_anything_for_its_time() {
    let (silence, began) = (Duration::from_secs(4 * 3600), tokio::time::Instant::now());
    let last = LastPart::now();
    let used = async {
        for _ in 0..5 {
            tokio::time::sleep(silence - Duration::from_secs(1)).await;
            last.happened();
        }
    };
    let waited = last.is_older_than(silence);
    tokio::join!(used, waited);
    assert_eq!(began.elapsed(), silence * 6 - Duration::from_secs(5));
}
