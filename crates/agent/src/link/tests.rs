//! The agent against a hub in the process.
#![expect(clippy::panic, reason = "this is how a test fails")]

use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::Agent;
use crate::cluster::tests::test_server::{Authority, Reply, TestServer, json, kubeconfig};
use crate::http_server::Server;
use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::account_result::Outcome;
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::agent_frame::Frame;
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::wire::ops::{
    AccountResult, AccountSpec, AddAccounts, DeleteAccounts, Drain, Heartbeat, Refused, hub_frame,
};

mod backoff;
mod fake_hub;
mod probes;
mod static_accounts;
mod tls;
mod tokens;

use fake_hub::{FakeHub, Stream};

struct RunningAgent {
    health: std::net::SocketAddr,
    metrics: Option<std::net::SocketAddr>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), AgentError>>,
}

async fn agent(hub: &FakeHub) -> RunningAgent {
    agent_with(AgentOptions::of_test(hub.address.to_string())).await
}

async fn agent_with(options: AgentOptions) -> RunningAgent {
    let agent = Agent::bind(options).await.expect("an agent");
    let (health, metrics) = (agent.health.address(), agent.metrics.as_ref().map(Server::address));
    let stop = CancellationToken::new();
    let task = tokio::spawn(agent.run(stop.clone()));
    RunningAgent { health, metrics, stop, task }
}

impl RunningAgent {
    async fn end(self) {
        self.stop.cancel();
        let ended =
            timeout(Duration::from_secs(5), self.task).await.expect("an end in time").expect("no panic");
        ended.expect("no part of it has ended by itself");
    }

    async fn readiness(&self) -> (u16, String) {
        let answer = get(self.health, "/health/readiness").await;
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        (status, answer)
    }

    /// Polls a path until the response satisfies `is_so`, and returns it.
    async fn until(&self, path: &str, is_so: impl Fn(&str) -> bool) -> String {
        until(self.health, path, is_so).await
    }

    /// Polls the metrics until they satisfy `is_so`, and returns them.
    async fn until_counted(&self, is_so: impl Fn(&str) -> bool) -> String {
        until(self.metrics.expect("an agent that serves metrics"), "/prometheus_metrics", is_so).await
    }
}

async fn until(address: std::net::SocketAddr, path: &str, is_so: impl Fn(&str) -> bool) -> String {
    let asked = async {
        loop {
            let answer = get(address, path).await;
            if is_so(&answer) {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), asked).await.expect("such an answer in time")
}

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

/// An account at a server that answers only requests for its version.
async fn account(
    uid: &str,
    reply: impl Fn(&str) -> Reply + Send + Sync + 'static,
) -> (TestServer, AccountSpec) {
    let authority = Authority::new();
    let server = TestServer::start(&authority, reply).await;
    let config = kubeconfig(&server.url(), Some(&authority.pem()), "a-token-of-some-length");
    let spec = AccountSpec {
        account: Some(reference(uid, 1)),
        credential: Some(Credential::Kubeconfig(config)),
        ..AccountSpec::default()
    };
    (server, spec)
}

fn good(path: &str) -> Reply {
    match path {
        "/version" => json(200, r#"{"gitVersion":"v1.33.1"}"#),
        "/api" | "/apis" => json(200, r#"{"kind":"APIGroupDiscoveryList"}"#),
        _ => json(403, "{}"),
    }
}

fn reference(uid: &str, epoch: u64) -> AccountRef {
    AccountRef { uid: uid.to_owned(), name: format!("name-of-{uid}"), epoch, generation: 1 }
}

fn add(specs: &[&AccountSpec]) -> hub_frame::Frame {
    let accounts = specs.iter().map(|spec| (*spec).clone()).collect();
    hub_frame::Frame::AddAccounts(AddAccounts { batch_id: "batch".to_owned(), accounts })
}

async fn result(stream: &mut Stream) -> AccountResult {
    match stream.next_word().await {
        Some(Frame::AccountResults(mut results)) => results.results.remove(0),
        other => panic!("{other:?} where a result was awaited"),
    }
}

#[tokio::test]
async fn an_agent_lists_its_background_tasks_and_counts_their_runs() {
    let hub = FakeHub::start().await;
    let mut options = AgentOptions::of_test(hub.address.to_string());
    options.file_pace = Duration::from_millis(1);
    options.settings.metrics_port = Some(0);
    let agent = agent_with(options).await;
    let has_run = |answer: &str| answer.contains(r#""lastRun":"#);
    let listed = agent.until("/health/tasks", has_run).await;
    for expected in
        [r#""name":"watch of the accounts' files""#, r#""name":"health checks""#, r#""failures":0"#]
    {
        assert!(listed.contains(expected), "{listed}");
    }
    let counted = r#"kubesvc_background_task_duration_seconds_count{task="watch of the accounts' files"}"#;
    agent.until_counted(|metrics| metrics.contains(counted)).await;
    agent.end().await;
}

#[tokio::test]
async fn agent_sends_hello_and_goodbye() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let (mut stream, hello) = hub.stream().await;
    assert_eq!((hello.agent_id.as_str(), hello.zone_id.as_str()), ("agent-1", "zone-1"));
    assert_eq!((hello.version.as_str(), hello.connect_seq), ("1.2.3", 1));
    assert_eq!(hello.boot_id.len(), 26);
    assert_eq!(hello.kube.map(|place| place.pod), Some("pod-1".to_owned()));
    let (status, answer) = agent.readiness().await;
    assert_eq!(status, 503);
    assert!(answer.contains("not connected to the hub"), "{answer}");

    stream.send(accepted(100)).await;
    assert_eq!(stream.own_accounts().await, []);
    while !matches!(stream.next().await, Some(Frame::Heartbeat(_))) {}
    assert_eq!(agent.readiness().await.0, 200);
    agent.stop.cancel();
    assert!(matches!(stream.next_word().await, Some(Frame::Draining(_))));
    assert!(matches!(stream.next_word().await, Some(Frame::Goodbye(_))));
    assert!(stream.next().await.is_none());
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn hub_is_told_that_the_agent_stops_while_its_requests_still_run() {
    let mut hub = FakeHub::start().await;
    let agent = Agent::bind(AgentOptions::of_test(hub.address.to_string())).await.expect("an agent");
    let signals = StopSignals { draining: CancellationToken::new(), leave: CancellationToken::new() };
    let link = tokio::spawn(agent.link.run(signals.clone()));
    let (mut stream, _) = hub.settled(100).await;
    signals.draining.cancel();
    assert!(matches!(stream.next_word().await, Some(Frame::Draining(_))));
    assert!(matches!(stream.next().await, Some(Frame::Heartbeat(_))), "the stream goes on");
    drop(stream);
    let (mut stream, _) = hub.accepted(60_000).await;
    assert!(matches!(stream.next_but_own_accounts().await, Some(Frame::Draining(_))), "so is a later one");
    signals.leave.cancel();
    assert!(matches!(stream.next_but_own_accounts().await, Some(Frame::Goodbye(_))), "once");
    assert!(stream.next().await.is_none());
    drop(stream);
    timeout(Duration::from_secs(5), link).await.expect("an end in time").expect("no panic");
}

fn accepted(heartbeat_ms: u32) -> hub_frame::Frame {
    let accepted = kubesvc_core::wire::ops::Accepted { protocol: 1, heartbeat_ms, ..Default::default() };
    hub_frame::Frame::Accepted(accepted)
}

#[tokio::test]
async fn accounts_are_added_and_dropped() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let (server, good) = account("u", good).await;
    let (_refusing, bad) = account("v", |_| json(401, "{}")).await;
    let (mut stream, _) = hub.settled(60_000).await;

    stream.send(add(&[&good])).await;
    let held = result(&mut stream).await;
    assert_eq!(held.account, Some(reference("u", 1)));
    let Some(Outcome::Identity(identity)) = held.outcome else { panic!("{held:?}") };
    assert_eq!((identity.host, identity.version.as_str()), (server.url(), "v1.33.1"));

    stream.send(add(&[&bad])).await;
    let Some(Outcome::Failure(failure)) = result(&mut stream).await.outcome else { panic!("no failure") };
    assert_eq!(failure.class(), Class::Auth);

    let asked = server.paths().len();
    stream.send(add(&[&good])).await;
    assert!(matches!(result(&mut stream).await.outcome, Some(Outcome::Identity(_))));
    assert_eq!(server.paths().len(), asked, "what is held is answered from memory");

    let drop_it = DeleteAccounts { batch_id: String::new(), accounts: vec![reference("u", 2)] };
    stream.send(hub_frame::Frame::DeleteAccounts(drop_it)).await;
    let dropped = result(&mut stream).await;
    assert!(dropped.dropped && dropped.account == Some(reference("u", 2)), "{dropped:?}");
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn accounts_that_are_held_cost_no_connections_and_no_tasks_and_each_start_one_handshake() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let mut accounts = Vec::new();
    for number in 0..10 {
        accounts.push(account(&format!("u{number}"), good).await);
    }
    let (mut stream, _) = hub.settled(60_000).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for round in 1..=3 {
        for (_, spec) in &mut accounts {
            spec.account.as_mut().expect("an account").epoch = round;
            // Another definition, so that the account is started anew.
            spec.omit_namespaces = vec![format!("omitted-{round}")];
        }
        stream.send(add(&accounts.iter().map(|(_, spec)| spec).collect::<Vec<_>>())).await;
        let mut held = 0;
        while held < accounts.len() {
            match stream.next_word().await {
                Some(Frame::AccountResults(results)) => held += results.results.len(),
                other => panic!("{other:?} where results were awaited"),
            }
        }
        agent.until("/health", |answer| answer.contains(r#""accountsHeld":10"#)).await;
        let idle = async {
            while accounts.iter().any(|(server, _)| server.open() > 0) || tasks() > before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let open = || accounts.iter().map(|(server, _)| server.open()).sum::<usize>();
        if timeout(Duration::from_secs(30), idle).await.is_err() {
            panic!("{} connections, {} tasks where {before} were before", open(), tasks());
        }
        for (server, _) in &accounts {
            assert_eq!(u64::try_from(server.accepted()), Ok(round), "one handshake for each start");
        }
    }
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn a_drop_of_an_account_that_is_starting_ends_its_connection_and_is_answered() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let hangs = |_: &str| Reply { after: Duration::from_secs(600), ..json(200, "{}") };
    let (server, slow) = account("u", hangs).await;
    let (mut stream, _) = hub.settled(60_000).await;
    stream.send(add(&[&slow])).await;
    let until = async |what: &str, holds: &dyn Fn() -> bool| {
        let holding = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(30), holding).await.unwrap_or_else(|_| panic!("{what}"));
    };
    until("the cluster is asked", &|| !server.paths().is_empty()).await;
    let drop_it = DeleteAccounts { batch_id: String::new(), accounts: vec![reference("u", 2)] };
    stream.send(hub_frame::Frame::DeleteAccounts(drop_it)).await;
    let dropped = result(&mut stream).await;
    assert!(dropped.dropped && dropped.account == Some(reference("u", 2)), "{dropped:?}");
    until("the connection ends", &|| server.open() == 0).await;
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn after_a_lost_stream_it_names_what_it_holds() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let (_server, good) = account("u", good).await;
    let (_hanging, slow) =
        account("v", |_| Reply { after: Duration::from_secs(60), ..json(200, "{}") }).await;
    let (mut stream, first) = hub.settled(60_000).await;
    assert!(first.accounts_held.is_empty());
    stream.send(add(&[&good, &slow])).await;
    assert_eq!(result(&mut stream).await.account, Some(reference("u", 1)));
    drop(stream);

    let (mut stream, second) = hub.settled(60_000).await;
    assert_eq!((second.connect_seq, second.boot_id), (2, first.boot_id));
    let held: Vec<_> = second.accounts_held.into_iter().filter_map(|held| held.account).collect();
    assert_eq!(held, [reference("u", 1)]);
    // The attempt that was running is cancelled: its late end must not answer a new command.
    let newer = AccountSpec { account: Some(reference("v", 2)), credential: None, ..slow };
    stream.send(add(&[&newer])).await;
    assert_eq!(result(&mut stream).await.account, Some(reference("v", 2)));
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn a_refusal_is_obeyed_and_tried_again() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let (mut stream, _) = hub.stream().await;
    let refused = Refused {
        reason: Reason::DuplicateAgentId.into(),
        message: "another process is connected".to_owned(),
        retry_after_ms: 400,
        permanent: false,
    };
    let since = Instant::now();
    stream.send(hub_frame::Frame::Refused(refused)).await;
    drop(stream);
    let (mut stream, hello) = hub.stream().await;
    assert!(since.elapsed() >= Duration::from_millis(400));
    assert_eq!(hello.connect_seq, 2);

    let (_, answer) = agent.readiness().await;
    assert!(answer.contains("DUPLICATE_AGENT_ID: another process is connected"), "{answer}");
    let refused = Refused { reason: Reason::ZoneForbidden.into(), permanent: true, ..Refused::default() };
    stream.send(hub_frame::Frame::Refused(refused)).await;
    drop(stream);
    let (stream, hello) = hub.stream().await;
    assert_eq!(hello.connect_seq, 3, "even a permanent refusal is tried again");
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn a_drained_agent_finishes_and_dials_anew() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let (_server, slow) =
        account("u", |path| Reply { after: Duration::from_millis(100), ..good(path) }).await;
    let (mut stream, _) = hub.settled(60_000).await;
    let since = Instant::now();
    stream.send(add(&[&slow])).await;
    stream
        .send(hub_frame::Frame::Drain(Drain { reconnect_after_ms: 2500, jitter_ms: 1, ..Drain::default() }))
        .await;
    assert_eq!(result(&mut stream).await.account, Some(reference("u", 1)));
    assert!(stream.next_word().await.is_none(), "the agent ends its side");
    assert!(since.elapsed() < Duration::from_millis(2500), "as soon as nothing is under way");
    drop(stream);
    let (stream, hello) = hub.stream().await;
    assert!(since.elapsed() >= Duration::from_millis(2500));
    assert_eq!((hello.connect_seq, hello.accounts_held.len()), (2, 1));
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn a_stream_to_a_silent_hub_is_closed() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let (mut silent, _) = hub.settled(100).await;
    let (next, hello) = hub.stream().await;
    assert_eq!(hello.connect_seq, 2);
    while silent.next().await.is_some() {}
    drop(next);
    agent.end().await;
}

#[tokio::test]
async fn heartbeats_of_the_hub_keep_the_stream() {
    let mut hub = FakeHub::start().await;
    let agent = agent(&hub).await;
    let (mut stream, _) = hub.settled(300).await;
    for nonce in 1..=5 {
        stream.send(hub_frame::Frame::Heartbeat(Heartbeat { nonce, ..Heartbeat::default() })).await;
        assert!(matches!(stream.next().await, Some(Frame::Heartbeat(_))));
    }
    drop(stream);
    agent.end().await;
}

#[tokio::test]
async fn occupied_health_port_and_wrong_hub_address_fail_at_start() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut options = AgentOptions::of_test("hub.example:9091".to_owned());
    options.settings.server.port = taken.local_addr().expect("an address").port();
    options.settings.hub.insecure = false;
    let error = Agent::bind(options.clone()).await.expect_err("a taken port");
    assert!(matches!(error, AgentError::HealthPort { .. }) && !error.to_string().contains('\n'), "{error}");
    options.settings.server.port = 0;
    for hub in ["", "hub.example", "hub.example:", "https://hub.example:9091", "hub:9091/path", "u@hub:9091"]
    {
        options.settings.hub.grpc = hub.to_owned();
        let error = Agent::bind(options.clone()).await.expect_err("a wrong hub");
        assert!(matches!(error, AgentError::HubAddress { .. }), "{hub}: {error}");
    }
}

#[tokio::test]
async fn silent_hub_is_left_after_the_configured_time() {
    let mut hub = FakeHub::start().await;
    let mut options = AgentOptions::of_test(hub.address.to_string());
    options.settings.hub.idle_timeout = Duration::from_millis(300);
    let agent = agent_with(options).await;
    let since = Instant::now();
    let (stream, _) = hub.settled(60_000).await;
    let (next, hello) = hub.stream().await;
    assert_eq!(hello.connect_seq, 2);
    assert!(since.elapsed() >= Duration::from_millis(300));
    let problem = "the hub said nothing for 0.3 s (clouddriver.keepAliveOperationSeconds)";
    assert!(agent.readiness().await.1.contains(problem));
    drop((stream, next));
    agent.end().await;
}

#[tokio::test]
async fn a_lost_hub_is_dialled_again_after_the_wait_for_that() {
    let mut hub = FakeHub::start().await;
    let mut options = AgentOptions::of_test(hub.address.to_string());
    options.settings.reconnect = Duration::from_millis(600);
    options.settings.hub.backoff.jitter = 0.0;
    let agent = agent_with(options).await;
    let (stream, _) = hub.settled(60_000).await;
    let since = Instant::now();
    drop(stream);
    hub.stream().await;
    assert!(since.elapsed() >= Duration::from_millis(600));
    agent.end().await;
}

#[tokio::test]
async fn occupied_metrics_port_fails_at_start() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut options = AgentOptions::of_test("hub.example:9091".to_owned());
    options.settings.metrics_port = Some(taken.local_addr().expect("an address").port());
    let error = Agent::bind(options).await.expect_err("a taken port");
    assert!(matches!(error, AgentError::MetricsPort { .. }), "{error}");
    assert!(error.to_string().contains("prometheus.port"), "{error}");
}

#[tokio::test]
async fn a_host_of_every_address_is_taken() {
    let mut options = AgentOptions::of_test("hub.example:9091".to_owned());
    options.settings.server.host = "*".to_owned();
    assert!(Agent::bind(options).await.expect("an agent").health.address().ip().is_unspecified());
}
