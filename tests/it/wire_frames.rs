//! Invalid input to the hub, which other agents and accounts do not notice. The answer to each kind is in the hub's own tests.

use kubesvc_core::wire::common::{AccountRef, failure::Class};
use kubesvc_core::wire::ops::{self, account_result::Outcome, agent_frame::Frame};
use kubesvc_core::{SessionId, State};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{Agent, World};
use kubesvc_testkit::must;
use kubesvc_testkit::simulated_agent::SimulatedAgent;
use kubesvc_testkit::simulated_agent::frames::{self, Introduction, Policy};

/// A world with an agent that holds the account `prod`. Whatever the hub is sent, in the end the same session must
/// exist, and nothing may have been written to the account.
struct HealthyWorld {
    world: World,
    agent: Agent,
    session: SessionId,
    writes: usize,
}

impl HealthyWorld {
    async fn start() -> Self {
        let world = World::start().await;
        let cluster = world.cluster("spinnaker").await;
        let agent = world.agent("agent-1").zone("east").start().await;
        world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until("prod", State::Active).await;
        let session = session_id(&world, &agent).await;
        let writes = world.writes_to("prod").len();
        Self { world, agent, session, writes }
    }

    async fn check_untouched(&self) {
        let world = &self.world;
        assert!(world.operator().is_running());
        assert_eq!(world.get("/health/readiness").await.status, 200);
        assert_eq!(session_id(world, &self.agent).await, self.session, "the agent's session was lost");
        let agents = world.get("/armory/agents/agent-1").await;
        assert_eq!(agents.json["accounts"], json!(["prod"]), "{agents}");
        assert_eq!(world.shown("prod").await.as_deref(), Some("ACTIVE"));
        assert_eq!(world.writes_to("prod").len(), self.writes, "{:#?}", world.writes_to("prod"));
        assert!(!world.operator().log_text().contains("panicked"));
    }
}

async fn session_id(world: &World, agent: &Agent) -> SessionId {
    let status = world.agent_object(agent).await.and_then(|object| object.status).expect("it is connected");
    status.session.map(|session| session.id).unwrap_or_default()
}

/// Sends bytes to the hub, and reads until it closes the connection.
async fn exchange(world: &World, bytes: &[u8]) -> String {
    let hub = ("127.0.0.1", world.operator().hub_port());
    let mut stream = TcpStream::connect(hub).await.expect("the hub listens");
    stream.write_all(bytes).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer, and the end");
    answer
}

/// Reports of every kind about an account that the agent was never given, and a list over its bound.
fn lies(account: &AccountRef) -> Vec<Frame> {
    let failure = frames::failure(Class::Auth, "a lie");
    let results = [1, 2, u64::MAX].into_iter().map(|epoch| ops::AccountResult {
        account: Some(AccountRef { epoch, ..account.clone() }),
        outcome: Some(Outcome::Failure(failure.clone())),
        ..ops::AccountResult::default()
    });
    vec![
        Frame::AccountResults(ops::AccountResults { results: results.collect() }),
        Frame::Lost(ops::Lost { account: Some(account.clone()), failure: Some(failure) }),
        Frame::Working(ops::Working { account: Some(account.clone()) }),
        Frame::ProbeResult(ops::ProbeResult { account: Some(account.clone()), ok: true, failure: None }),
        Frame::ProbeResult(ops::ProbeResult::default()),
        Frame::StaticAccounts(own_accounts("prod", 1)),
        Frame::StaticAccounts(own_accounts("flood", 2000)),
    ]
}

/// A complete list of an agent's own accounts.
fn own_accounts(name: &str, count: usize) -> ops::StaticAccounts {
    let account = Some(AccountRef { name: name.to_owned(), ..AccountRef::default() });
    let credential = Some(ops::account_spec::Credential::File("/kubeconfigs/one".to_owned()));
    let own = ops::AccountSpec { account, credential, ..ops::AccountSpec::default() };
    ops::StaticAccounts { accounts: vec![own; count], complete: true }
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_that_is_sent_another_protocol_and_lies_leaves_agents_and_accounts_untouched() {
    let healthy = HealthyWorld::start().await;
    let world = &healthy.world;
    let answer = exchange(world, b"GET / HTTP/1.1\r\nhost: hub\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 505 ") && answer.contains("gRPC"), "{answer}");
    // The beginning of a ClientHello.
    assert_eq!(exchange(world, &[0x16, 3, 1, 0, 0xc8, 1, 0, 0, 0xc4, 3, 3]).await, "");
    assert!(world.operator().log_text().contains("TLS is not configured"), "nobody learns why");

    let uid = world.object("prod").await.expect("it is ACTIVE").uid().to_owned();
    let account = AccountRef { uid, name: "prod".to_owned(), epoch: 1, generation: 1 };
    let hub = format!("127.0.0.1:{}", world.operator().hub_port());
    let claims = Introduction { accounts_held: vec![account.clone()], ..Introduction::new("liar", "west") };
    let liar = SimulatedAgent::connect(&hub, claims, Policy::default()).await;
    let liar = must(liar.map_err(|error| error.to_string()));
    lies(&account).into_iter().for_each(|lie| liar.send(lie));
    // By the time that another account has come and gone, the hub has processed everything it was sent.
    let source = json!({"secretRef": {"name": "prod"}});
    world.account("next").zone("east").spec("kubeconfig", source).create().await;
    world.until("next", State::Active).await;
    world.delete("next").await;
    world.until_gone("next").await;
    assert_eq!(liar.added(), []);
    healthy.check_untouched().await;
}
