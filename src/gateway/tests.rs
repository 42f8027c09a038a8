//! Requests to an account with rights, a cluster and a history that the tests script.

use std::convert::Infallible;
use std::time::Duration;

use async_trait::async_trait;
use futures::{FutureExt as _, StreamExt as _, stream};
use http::header::AUTHORIZATION;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::answers::{AnswerBody, AuditedStream};
use super::checks::wanted;
use super::paths::AccountPath;
use super::proxying::on_asked;
use super::records::{Recorder, SharedRecorder};
use super::*;
use crate::access::callers::MAX_SHORT_OF_CALLER;
use crate::access::{AccessError, Caller, Principal, RequestedAccess};
use crate::connected_agents::{AccountRequest, RequestClass, RequestError, RequestErrorKind};
use crate::operations::tests::account;
use crate::operations::tests::fakes::{
    Answered, AuditLines, MemoryRows, ScriptedCluster, principal, received,
};
use kubesvc_runtime::listen::connection_limits::AddressLimits;
use kubesvc_runtime::listen::port::HttpMetrics;
use kubesvc_runtime::tls::identity::{ServingCertificate, certified_key};
use kubesvc_store::{OpenOperation, OperationOutcome, OperationRecord};
use kubesvc_testkit::kubeconfig::Authority;

const PODS: &str = "/api/v1/namespaces/n/pods";
const REQUEST_ID: &str = "01J00000000000000000000000";

/// Group whose members may do nothing.
const SUSPENDED: &str = "suspended";

/// Knows each token by its user's name, one of them until it expires.
#[derive(Default)]
struct ExpiringTokens {
    expires: Option<(&'static str, Instant)>,
    /// The user who is suspended from then on.
    suspended: Option<(&'static str, Instant)>,
    /// When nobody can be asked: from the first time until the second.
    away: Option<(Instant, Instant)>,
}

#[async_trait]
impl Access for ExpiringTokens {
    async fn authenticate(&self, caller: Caller<'_>) -> Result<Principal, AccessError> {
        let name = caller.headers[AUTHORIZATION].to_str().expect("a text");
        if self.away.is_some_and(|(from, until)| Instant::now() >= from && Instant::now() < until) {
            return Err(AccessError::Unavailable("nobody can be asked".to_owned()));
        }
        match self.expires {
            Some((expired, at)) if expired == name && Instant::now() >= at => {
                Err(AccessError::Unauthenticated("the token has expired".to_owned()))
            }
            _ => {
                let is_suspended =
                    self.suspended.is_some_and(|(user, at)| user == name && Instant::now() >= at);
                let groups = is_suspended.then(|| SUSPENDED.to_owned()).into_iter().collect();
                Ok(Principal { groups, ..principal(name) })
            }
        }
    }

    async fn authorize(&self, principal: &Principal, _: &RequestedAccess) -> Result<(), AccessError> {
        if principal.groups.iter().any(|group| group == SUSPENDED) {
            return Err(AccessError::Denied("the user is suspended".to_owned()));
        }
        Ok(())
    }
}

/// What was recorded.
#[derive(Default)]
struct History {
    begun: Mutex<Vec<OpenOperation>>,
    ended: Mutex<Vec<OperationRecord>>,
}

#[async_trait]
impl OperationHistory for History {
    fn begun(&self, open: OpenOperation) {
        self.begun.lock().push(open);
    }

    fn ended(&self, record: OperationRecord) {
        self.ended.lock().push(record);
    }

    async fn flush(&self) {}
}

struct Scene {
    gateway: Arc<Gateway>,
    accounts: Arc<AccountIndex>,
    history: Arc<History>,
    rows: Arc<MemoryRows>,
    callers: Arc<CallerCounts>,
    audit: AuditLines,
}

impl Scene {
    fn new(access: ExpiringTokens, requests: Arc<ScriptedCluster>) -> Self {
        let (history, callers) = (Arc::<History>::default(), Arc::<CallerCounts>::default());
        let (accounts, rows) = (Arc::<AccountIndex>::default(), Arc::<MemoryRows>::default());
        let audit = AuditLines::default();
        let ports = GatewayPorts {
            access: Arc::new(access),
            requests,
            accounts: Arc::clone(&accounts),
            caches: Arc::new(crate::rest::tests::no_caches()),
            history: Arc::<History>::clone(&history),
            store: Arc::<MemoryRows>::clone(&rows),
            audit: AuditLog::to(audit.clone()),
            callers: Arc::clone(&callers),
        };
        let gateway = Gateway::new("r-0".into(), ports, CancellationToken::new());
        Self { gateway, accounts, history, rows, callers, audit }
    }

    fn recorder(&self, call: &Call, target: &str) -> SharedRecorder {
        let about = &AccountRequest::new(call.method.clone(), target).expect("a path");
        let (ports, replica_id) = (&self.gateway.ports, &self.gateway.replica_id);
        Arc::new(Recorder::new(ports, replica_id, call, principal("alice"), about, ""))
    }

    /// A watch of a user, with one line so far.
    async fn watch(&self, name: &str) -> AnswerBody {
        let mut call = call(Method::GET);
        call.headers.insert(AUTHORIZATION, HeaderValue::from_str(name).expect("a name"));
        let account = AccountPath { namespace: "ns".to_owned(), object: "prod".to_owned() };
        let wanted = wanted(&call.method, RequestClass::Read, &account);
        let wanted = wanted.unwrap_or_else(|refusal| unreachable!("{}", refusal.message));
        let recheck = self.gateway.authorize(&call, &principal(name), wanted).await;
        let recheck = recheck.unwrap_or_else(|refusal| unreachable!("{}", refusal.message));
        let recorder = self.recorder(&call, &format!("{PODS}?watch=1"));
        let (metrics, agent) = (GatewayMetrics::default(), ScriptedCluster::agent());
        let open = AuditedStream::begin(recorder, metrics, recheck, StatusCode::OK, agent);
        let line = stream::iter([Ok(Bytes::from_static(b"{1}\n"))]);
        AnswerBody::stream(line.chain(stream::pending()).boxed(), open, None)
    }

    /// A write, and what records it.
    fn write(&self) -> (AccountRequest, SharedRecorder) {
        let recorder = self.recorder(&call(Method::POST), PODS);
        let request = AccountRequest::new(Method::POST, PODS).expect("a path");
        (AccountRequest { on_asked: on_asked(&recorder), ..request }, recorder)
    }

    /// Sends a request of alice to account `prod` in HTTP/1.1, and reads its answer to the end.
    async fn sent(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> StatusCode {
        let gateway = Arc::clone(&self.gateway);
        let service = service_fn(move |request: Request<Incoming>| {
            let gateway = Arc::clone(&gateway);
            async move {
                let (headers, method) = (request.headers().clone(), request.method().clone());
                let call = Call { request_id: REQUEST_ID.to_owned(), headers, method, address: None };
                let account = AccountPath { namespace: "ns".to_owned(), object: "prod".to_owned() };
                let path = request.uri().path().to_owned();
                let answered = gateway.proxy(request, &call, principal("alice"), &account, path).await;
                Ok::<_, Infallible>(answered.unwrap_or_else(Refusal::response))
            }
        });
        let (near, far) = tokio::io::duplex(64 * 1024);
        let serving =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(near), service);
        let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(far)).await.expect("a connection");
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let request = Request::builder().method(method).uri(path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).expect("a request");
        let response = sender.send_request(request).await.expect("an answer");
        let code = response.status();
        response.into_body().collect().await.expect("a whole answer");
        code
    }

    /// How many short requests a user may make beside those that run.
    fn room(&self, user: &str) -> usize {
        std::iter::from_fn(|| self.callers.short(user).ok()).collect::<Vec<_>>().len()
    }

    fn outcomes(&self) -> Vec<OperationOutcome> {
        self.history.ended.lock().iter().map(|record| record.outcome).collect()
    }
}

fn call(method: Method) -> Call {
    Call { request_id: REQUEST_ID.to_owned(), headers: HeaderMap::new(), method, address: None }
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_token_expires_is_cut_at_the_next_check_and_others_go_on() {
    let began = Instant::now();
    let expires = Some(("alice", began + Duration::from_secs(150)));
    let tokens = ExpiringTokens { expires, ..ExpiringTokens::default() };
    let scene = Scene::new(tokens, ScriptedCluster::new(|_, _| unreachable!()));
    let (mut alice, mut bob) = (scene.watch("alice").await, scene.watch("bob").await);
    for watch in [&mut alice, &mut bob] {
        let frame = watch.frame().await.expect("a line").expect("it is not cut");
        assert_eq!(frame.into_data().ok().as_deref(), Some(&b"{1}\n"[..]));
    }
    let cut = alice.frame().await.expect("it does not end as if it were whole");
    assert!(cut.is_err(), "it is cut");
    assert_eq!(began.elapsed().as_secs(), 180, "at the first check after the token has expired");
    assert!(alice.frame().await.is_none());
    let other = timeout(Duration::from_secs(3600), bob.frame()).await;
    assert!(other.is_err(), "the other watch ended");
    drop(alice);
    let audited = scene.audit.lines();
    let ends = audited.iter().filter(|line| line["message"] == "stream-end");
    assert_eq!(ends.map(|line| &line["reason"]).collect::<Vec<_>>(), ["the token has expired"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_callers_groups_changed_is_cut_by_what_these_may() {
    let began = Instant::now();
    let suspended = Some(("alice", began + Duration::from_secs(150)));
    let tokens = ExpiringTokens { suspended, ..ExpiringTokens::default() };
    let scene = Scene::new(tokens, ScriptedCluster::new(|_, _| unreachable!()));
    let mut watch = scene.watch("alice").await;
    assert!(watch.frame().await.expect("a line").is_ok(), "it is not cut");
    let cut = timeout(Duration::from_secs(3600), watch.frame()).await.expect("it goes on");
    assert!(cut.expect("it does not end as if it were whole").is_err(), "it is cut");
    assert_eq!(began.elapsed().as_secs(), 180, "at the first check after the user was suspended");
    drop(watch);
    let audited = scene.audit.lines();
    let ends = audited.iter().filter(|line| line["message"] == "stream-end");
    assert_eq!(ends.map(|line| &line["reason"]).collect::<Vec<_>>(), ["the user is suspended"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_outlasts_two_checks_that_nobody_answers_and_is_cut_at_the_third() {
    for (minutes, cut_at) in [(2, None), (3, Some(240))] {
        let began = Instant::now();
        let from = began + Duration::from_secs(90);
        let away = Some((from, from + Duration::from_secs(60) * minutes));
        let tokens = ExpiringTokens { away, ..ExpiringTokens::default() };
        let scene = Scene::new(tokens, ScriptedCluster::new(|_, _| unreachable!()));
        let mut watch = scene.watch("alice").await;
        assert!(watch.frame().await.expect("a line").is_ok(), "it is not cut");
        let next = timeout(Duration::from_secs(3600), watch.frame()).await;
        let cut = next.ok().map(|frame| frame.expect("it does not end as if it were whole").is_err());
        assert_eq!(cut, cut_at.map(|_| true), "{minutes} minutes");
        if let Some(seconds) = cut_at {
            assert_eq!(began.elapsed().as_secs(), seconds, "at the third check in a row");
        }
    }
}

/// A cluster that gives an answer of this status for each permit.
fn gated(status: u16) -> (Arc<ScriptedCluster>, Arc<Semaphore>) {
    let answers = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&answers);
    let cluster = ScriptedCluster::waiting(move |_, _| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.expect("it is never closed").forget();
            Ok((status, json!({})))
        }
        .boxed()
    });
    (cluster, answers)
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_caller_left_is_counted_and_has_an_open_row_until_it_ends() {
    let (cluster, answers) = gated(201);
    let scene = Scene::new(ExpiringTokens::default(), cluster);
    let (request, recorder) = scene.write();
    let short = Some(scene.callers.short("alice").expect("room"));
    let writing = scene.gateway.write("uid".to_owned(), request, short, &recorder);
    let left = timeout(Duration::from_secs(1), writing).await;
    assert!(left.is_err(), "the caller leaves before it ends");
    assert_eq!(scene.room("alice"), MAX_SHORT_OF_CALLER - 1);
    let open = scene.history.begun.lock().pop().expect("an open row");
    assert_eq!(open.agent_boot_id.as_deref(), Some("boot"));
    assert_eq!(open.last_write.as_deref(), Some(REQUEST_ID));
    assert_eq!(open.record.outcome, OperationOutcome::Pending);
    assert!(scene.outcomes().is_empty());
    answers.add_permits(1);
    while scene.room("alice") < MAX_SHORT_OF_CALLER {
        tokio::task::yield_now().await;
    }
    drop(recorder);
    assert_eq!(scene.outcomes(), [OperationOutcome::Completed], "it ends once");
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_open_that_an_agent_refuses_or_that_ends_without_an_answer() {
    let refuse =
        |_, _: &_| -> Answered { Err(RequestError::new(RequestErrorKind::Forbidden, "policy: writes")) };
    let scene = Scene::new(ExpiringTokens::default(), ScriptedCluster::new(refuse));
    let (request, recorder) = scene.write();
    let (answered, _) = scene.gateway.write("uid".to_owned(), request, (), &recorder).await;
    assert!(answered.is_err());
    drop(recorder);
    assert_eq!(scene.outcomes(), [OperationOutcome::Failed]);
    let (_, recorder) = scene.write();
    recorder.asked(&ScriptedCluster::agent());
    drop(recorder);
    assert_eq!(scene.outcomes(), [OperationOutcome::Failed, OperationOutcome::Unknown]);
    assert_eq!(scene.history.begun.lock().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_is_recorded_with_the_agent_that_was_given_it() {
    let unknown = |_, _: &_| -> Answered { Err(RequestError::unknown("the agent's process died")) };
    let scene = Scene::new(ExpiringTokens::default(), ScriptedCluster::new(unknown));
    let (request, recorder) = scene.write();
    let (answered, _) = scene.gateway.write("uid".to_owned(), request, (), &recorder).await;
    assert!(answered.is_err());
    let (_, left) = scene.write();
    left.asked(&ScriptedCluster::agent());
    drop(left);
    let ended = scene.history.ended.lock().clone();
    assert_eq!(ended.len(), 2);
    for record in ended {
        assert_eq!(record.outcome, OperationOutcome::Unknown);
        assert_eq!(record.sent.map(|sent| sent.id).as_deref(), Some("agent"));
        assert_eq!(record.processed.map(|processed| processed.id).as_deref(), Some("r-0"));
        assert_eq!(record.answered, None);
    }
    let agents: Vec<_> = scene.audit.lines().iter().map(|line| line["agent"].clone()).collect();
    assert_eq!(agents, ["agent", "agent"]);
}

#[tokio::test(start_paused = true)]
async fn operations_that_are_not_shown_have_an_audit_line_and_an_unknown_id_has_none() {
    let scene = Scene::new(ExpiringTokens::default(), ScriptedCluster::new(|_, _| unreachable!()));
    scene.accounts.show(account("prod", "ACTIVE", "Open"));
    let alice = principal("alice");
    let at = |object: &str| AccountPath { namespace: "ns".to_owned(), object: object.to_owned() };
    let code = |answered: Result<Response<Body>, Refusal>| match answered {
        Ok(response) => response.status().as_u16(),
        Err(refusal) => refusal.code.as_u16(),
    };
    let listed = async |method: Method, object: &str, query: &str| {
        code(scene.gateway.list_operations(&call(method), &alice, &at(object), Some(query)).await)
    };
    let read =
        async || code(scene.gateway.get_operation(&call(Method::GET), &alice, &at("prod"), REQUEST_ID).await);
    assert_eq!(listed(Method::GET, "prod", "").await, 200);
    assert_eq!(read().await, 404);
    assert!(scene.audit.lines().is_empty(), "nothing was refused");
    assert_eq!(listed(Method::POST, "prod", "").await, 405);
    assert_eq!(listed(Method::GET, "prod", "page=0").await, 400);
    assert_eq!(listed(Method::GET, "gone", "").await, 503);
    let running: Vec<_> = std::iter::from_fn(|| scene.callers.short("alice").ok()).collect();
    assert_eq!(read().await, 429);
    drop(running);
    let refusals = scene.audit.refusals();
    assert_eq!(refusals, ["list prod 405", "list prod 400", "list - 503", "get prod 429"]);
    let lines = scene.audit.lines();
    assert!(lines.iter().all(|line| line["principal"] == "alice"));
    assert_eq!(lines[3]["operationId"], REQUEST_ID);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_refused_by_its_head_has_an_audit_line() {
    let scene = Scene::new(ExpiringTokens::default(), ScriptedCluster::new(|_, _| unreachable!()));
    let mut call = call(Method::GET);
    call.headers.insert("x-spinnaker-user", HeaderValue::from_static("bob"));
    let request = |uri: &str| Request::builder().uri(uri).body(()).expect("a request");
    let has_route = |uri: &str| scene.gateway.route_of(&request(uri), &call).is_ok();
    assert!(has_route("/apis") && scene.audit.lines().is_empty());
    assert!(!has_route("/metrics") && !has_route("https://localhost/apis"));
    let head = scene.gateway.read_head(&request("/"), "/api//v1".to_owned(), &call, &principal("alice"));
    assert!(head.is_err());
    let lines = scene.audit.lines();
    let codes: Vec<_> = lines.iter().map(|line| &line["code"]).collect();
    assert_eq!(codes, [404, 400, 400]);
    let callers: Vec<_> = lines.iter().map(|line| line["principal"].as_str()).collect();
    assert_eq!(callers, [None, None, Some("alice")]);
    assert!(lines[0].get("claimed").is_none(), "nobody who is not known says for whom it acts");
    assert_eq!(lines[2]["claimed"], "bob");
}

#[tokio::test(start_paused = true)]
async fn an_account_made_anew_shows_no_operations_of_the_one_that_had_its_name() {
    let scene = Scene::new(ExpiringTokens::default(), ScriptedCluster::new(|_, _| unreachable!()));
    scene.accounts.show(account("prod", "ACTIVE", "Open"));
    for (id, start_time_ms, uid) in [("own", 2, "uid-prod"), ("former", 1, "uid-former")] {
        let account_uid = Some(uid.to_owned());
        let record = OperationRecord { account_uid, ..received(id, "Deploy", "prod", start_time_ms) };
        scene.rows.history.lock().insert(id.to_owned(), record);
    }
    let (call, alice) = (call(Method::GET), principal("alice"));
    let path = AccountPath { namespace: "ns".to_owned(), object: "prod".to_owned() };
    let listed = scene.gateway.list_operations(&call, &alice, &path, None).await.expect("a list");
    let body = listed.into_body().collect().await.expect("a body").to_bytes();
    let records: Vec<Value> = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(records.iter().map(|record| &record["operationId"]).collect::<Vec<_>>(), ["own"]);
    let code = async |id: &str| {
        let read = scene.gateway.get_operation(&call, &alice, &path, id).await;
        read.map_or_else(|refusal| refusal.code, |response| response.status())
    };
    assert_eq!((code("own").await, code("former").await), (StatusCode::OK, StatusCode::NOT_FOUND));
}

/// What a client of HTTP/2 without TLS sends with each request.
const ASKS_FOR_HTTP2: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "h2c")];
/// What kubectl sends to run a command.
const ASKS_FOR_SPDY: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];

#[tokio::test]
async fn a_write_that_asks_for_an_upgrade_is_a_write_with_its_body() {
    let cluster = ScriptedCluster::new(|_, _| Ok((200, json!({}))));
    let scene = Scene::new(ExpiringTokens::default(), Arc::clone(&cluster));
    scene.accounts.show(account("prod", "ACTIVE", "Open"));
    let (pod, options) = (format!("{PODS}/p"), json!({"dryRun": ["All"]}));
    let code = scene.sent(Method::DELETE, &pod, &ASKS_FOR_HTTP2, &options.to_string()).await;
    assert_eq!(code, StatusCode::OK);
    let asked = cluster.asked().pop().expect("a request");
    assert_eq!((asked.line, asked.body, asked.upgrade), (format!("DELETE {pod}"), options, false));
    let record = scene.history.ended.lock().pop().expect("a record");
    assert_eq!((record.operation_type.as_str(), record.dry_run), ("Delete", true));
    let open = scene.history.begun.lock().pop().expect("an open row");
    assert!(open.last_write.is_some(), "its answer can be recalled");
    let exec = format!("{PODS}/p/exec");
    scene.sent(Method::POST, &exec, &ASKS_FOR_HTTP2, "").await;
    assert!(
        cluster.asked().pop().is_some_and(|asked| !asked.upgrade),
        "HTTP/2 is not what it is upgraded to"
    );
    scene.sent(Method::POST, &exec, &ASKS_FOR_SPDY, "").await;
    assert!(cluster.asked().pop().is_some_and(|asked| asked.upgrade), "what can be upgraded is");
}

#[tokio::test]
async fn only_what_a_write_asks_for_is_recorded_as_a_dry_run() {
    let cluster = ScriptedCluster::new(|_, _| Ok((200, json!({}))));
    let scene = Scene::new(ExpiringTokens::default(), Arc::clone(&cluster));
    scene.accounts.show(account("prod", "ACTIVE", "Open"));
    let (pod, proxy) = (format!("{PODS}/p"), "/api/v1/namespaces/n/services/s/proxy/x".to_owned());
    let blanks = format!("{{\"propagationPolicy\":\"Background\"{}}}", " ".repeat(20_000));
    for (target, body, dry_run) in [
        (&pod, r#"{"dryRun":["All"]}"#, true),
        (&pod, "", true),
        (&pod, blanks.as_str(), false),
        (&pod, "propagationPolicy: Background", false),
        (&pod, r#"{"dryRun":["All"],"dryRun":[]}"#, false),
        (&proxy, r#"{"dryRun":["All"]}"#, false),
        (&proxy, "", false),
    ] {
        let code = scene.sent(Method::DELETE, &format!("{target}?dryRun=All"), &[], body).await;
        assert_eq!(code, StatusCode::OK);
        let record = scene.history.ended.lock().pop().expect("a record");
        assert_eq!(record.dry_run, dry_run, "{target} {:?}", body.get(..40));
    }
}

#[tokio::test]
async fn an_answer_with_a_status_that_no_request_has_does_not_reach_the_caller() {
    for status in [101, 103] {
        let cluster = ScriptedCluster::new(move |_, _| Ok((status, json!({}))));
        let scene = Scene::new(ExpiringTokens::default(), cluster);
        scene.accounts.show(account("prod", "ACTIVE", "Open"));
        assert_eq!(scene.sent(Method::GET, PODS, &[], "").await, StatusCode::BAD_GATEWAY, "{status}");
    }
}

#[tokio::test]
async fn a_request_for_an_upgrade_is_one_of_its_callers_short_ones_until_it_is_upgraded() {
    let (cluster, answers) = gated(200);
    let scene = Scene::new(ExpiringTokens::default(), Arc::clone(&cluster));
    scene.accounts.show(account("prod", "ACTIVE", "Open"));
    let counted = async {
        while cluster.asked().is_empty() {
            tokio::task::yield_now().await;
        }
        let room = scene.room("alice");
        answers.add_permits(1);
        room
    };
    let sent = timeout(Duration::from_secs(10), scene.sent(Method::GET, PODS, &ASKS_FOR_SPDY, ""));
    let (code, room) = tokio::join!(sent, counted);
    assert_eq!((code.ok(), room), (Some(StatusCode::OK), MAX_SHORT_OF_CALLER - 1));
}

#[tokio::test]
async fn a_head_of_what_is_behind_a_proxy_is_a_read_of_which_nothing_is_recorded() {
    let scene = Scene::new(ExpiringTokens::default(), ScriptedCluster::new(|_, _| Ok((200, json!({})))));
    scene.accounts.show(account("prod", "ACTIVE", "Open"));
    for target in ["/api/v1/namespaces/n/services/s/proxy/", "/api/v1/nodes/n/proxy/healthz"] {
        assert_eq!(scene.sent(Method::HEAD, target, &[], "").await, StatusCode::OK);
    }
    assert!(scene.history.begun.lock().is_empty() && scene.outcomes().is_empty());
    assert!(scene.audit.lines().is_empty(), "nothing was written");
}

/// What the listener answers to these bytes in HTTP/1.1, to the end of the connection.
async fn answer_of_listener(gateway: &Arc<Gateway>, sent: &[u8]) -> String {
    let authority = Authority::new("gateway").expect("an authority");
    let identity = authority.server(&["localhost"]).expect("a certificate");
    let certificate = Arc::<ServingCertificate>::default();
    let key = certified_key(identity.certificate.as_bytes(), identity.key.as_bytes(), None);
    certificate.set(key.expect("they fit"));
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = socket.local_addr().expect("an address");
    let listener =
        GatewayListener::new(socket, 8, AddressLimits::default(), certificate, HttpMetrics::default());
    let listener = listener.expect("TLS");
    let serving = listener.serve(Arc::clone(gateway), CancellationToken::new());
    let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("a certificate");
    roots.add(root).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.expect("a connection");
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("TLS");
    stream.write_all(sent).await.expect("it is sent");
    let mut answer = String::new();
    let read = timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await;
    read.expect("the connection ends").expect("text");
    answer
}

#[tokio::test]
async fn a_head_may_have_160_kib_and_a_larger_one_is_refused_in_words() {
    let scene = Scene::new(ExpiringTokens::default(), ScriptedCluster::new(|_, _| unreachable!()));
    let head = |bytes: usize, end: &str| {
        let begin = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-long: ";
        format!("{begin}{}{end}", "x".repeat(bytes - begin.len() - end.len()))
    };
    let answer = answer_of_listener(&scene.gateway, head(150 * 1024, "\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = answer_of_listener(&scene.gateway, head(MAX_HEAD_BYTES, "").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let status: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(431)));
}

#[tokio::test]
async fn what_is_cached_is_shown_to_those_who_may_and_a_refusal_has_an_audit_line() {
    let scene = Scene::new(ExpiringTokens::default(), ScriptedCluster::new(|_, _| unreachable!()));
    scene.accounts.show(account("prod", "ACTIVE", "Open"));
    let at = |object: &str| AccountPath { namespace: "ns".to_owned(), object: object.to_owned() };
    let shown = async |who: &Principal, method: Method, object: &str, query: &str| {
        let answered = scene.gateway.show_cache(&call(method), who, &at(object), Some(query)).await;
        let response = answered.unwrap_or_else(Refusal::response);
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice::<Value>(&body).expect("JSON"))
    };
    let alice = principal("alice");
    let (status, cache) = shown(&alice, Method::GET, "prod", "").await;
    assert_eq!((status, &cache["account"], &cache["agentId"]), (200, &json!("prod"), &json!("agent-1")));
    let (status, refused) = shown(&alice, Method::GET, "prod", "kind=bananas").await;
    assert_eq!((status, &refused["kind"]), (404, &json!("Status")), "{refused}");
    assert!(scene.audit.lines().is_empty(), "nothing was refused");
    let suspended = Principal { groups: vec![SUSPENDED.to_owned()], ..principal("bob") };
    for (who, method, object, query, code) in [
        (&alice, Method::POST, "prod", "", 405),
        (&alice, Method::GET, "prod", "name=web", 400),
        (&alice, Method::GET, "gone", "", 503),
        (&suspended, Method::GET, "prod", "", 403),
    ] {
        assert_eq!(shown(who, method, object, query).await.0, code, "{object} {query}");
    }
    let codes: Vec<_> = scene.audit.lines().iter().map(|line| line["code"].clone()).collect();
    assert_eq!(codes, [405, 400, 503, 403]);
    let mut twin = account("prod", "ACTIVE", "Open");
    twin.spec.account_name = twin.metadata.name.replace("twin".to_owned());
    twin.metadata.uid = Some("uid-twin".to_owned());
    scene.accounts.show(twin);
    let mut codes = vec![];
    for object in ["prod", "twin"] {
        let (status, body) = shown(&alice, Method::GET, object, "").await;
        assert!(status == 200 || body["message"] == "another object has this account name", "{body}");
        codes.push(status);
    }
    codes.sort_unstable();
    assert_eq!(codes, [200, 503], "the rows are those of the one that holds the name");
}
