//! Operator and agent of different versions. A proxy between the real programs removes from the frames what an earlier
//! version does not know: the capabilities that one side offers or the other accepts, and with them the stream of objects.
//! `make skew` builds the programs of an earlier version and runs them in place of one side, which is then upgraded.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use kubesvc_core::wire::ops::{AgentFrame, HubFrame, RequestDown, RequestUp, agent_frame, hub_frame};
use kubesvc_core::{KubesvcAccount, State};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;
use kubesvc_runtime::grpc::ops::operations_server::{Operations, OperationsServer};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};

use crate::gateway::place::{install, kubectl, path_of};
use crate::operations::EVERYTHING;
use crate::world::{Agent, Database, MAX_WAIT, Prepare, World};
use k8s_openapi::api::core::v1::Secret;
use kubesvc_testkit::kubeconfig::{self, Proof};
use kubesvc_testkit::{must, ports, wait::eventually};

/// Which side is of the earlier version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Earlier {
    Agent,
    Operator,
}

/// Passes frames on between an agent and the hub of `port`.
#[derive(Clone)]
struct SkewedHub {
    earlier: Earlier,
    hub: Channel,
}

#[async_trait]
impl Operations for SkewedHub {
    type GetOpsStream = BoxStream<'static, Result<HubFrame, Status>>;

    async fn get_ops(
        &self,
        request: Request<Streaming<AgentFrame>>,
    ) -> Result<Response<Self::GetOpsStream>, Status> {
        let (near, far) = (self.clone(), self.clone());
        let frames = request
            .into_inner()
            .filter_map(move |frame| std::future::ready(frame.ok().map(|frame| near.of_agent(frame))));
        let answers = OperationsClient::new(self.hub.clone()).get_ops(frames).await?.into_inner();
        Ok(Response::new(answers.map(move |frame| frame.map(|frame| far.of_hub(frame))).boxed()))
    }

    type RequestsStream = BoxStream<'static, Result<RequestDown, Status>>;

    async fn requests(
        &self,
        _: Request<Streaming<RequestUp>>,
    ) -> Result<Response<Self::RequestsStream>, Status> {
        Err(Status::unimplemented("an earlier version has no such stream"))
    }
}

impl SkewedHub {
    fn of_agent(&self, mut frame: AgentFrame) -> AgentFrame {
        if let Some(agent_frame::Frame::Hello(hello)) = &mut frame.frame
            && self.earlier == Earlier::Agent
        {
            hello.capabilities.clear();
            hello.accounts_held.iter_mut().for_each(|held| held.caching_epoch = 0);
        }
        frame
    }

    fn of_hub(&self, mut frame: HubFrame) -> HubFrame {
        match &mut frame.frame {
            Some(hub_frame::Frame::Accepted(accepted)) if self.earlier == Earlier::Operator => {
                accepted.capabilities.clear();
            }
            // Neither an earlier operator sends rules, nor does an earlier agent know them.
            Some(hub_frame::Frame::CachingAssignment(assignment)) => assignment.rules = None,
            _ => {}
        }
        frame
    }
}

fn prepare() -> Prepare {
    World::prepare().setting("kubesvc.cache.cacheKinds", json!(["deployment"]))
}

/// Serves the hub's port as the earlier side knows it.
fn skewed(world: &World, earlier: Earlier) -> (u16, AbortOnDropHandle<()>) {
    let hub = format!("http://127.0.0.1:{}", world.operator().hub_port());
    let hub = Channel::from_shared(hub).expect("a URL").connect_lazy();
    let port = ports::free();
    let server = Server::builder().add_service(OperationsServer::new(SkewedHub { earlier, hub }));
    let serving = server.serve(([127, 0, 0, 1], port).into());
    (port, AbortOnDropHandle::new(tokio::spawn(async move { drop(serving.await) })))
}

/// An account lives through a proxy that removes what the earlier side does not know.
async fn account_lives_through_a_proxy(earlier: Earlier) {
    let world = prepare().start().await;
    let (port, _server) = skewed(&world, earlier);
    let agent = world.agent("agent-1").zone("east").hub_port(port).start().await;
    account_lives(&world, &agent).await;
}

/// Kills the agent, starts it, and waits until it has connected.
async fn restart(world: &World, agent: &Agent) {
    let connections = || agent.log_text().matches("connected to the hub session=").count();
    let before = connections();
    agent.kill();
    agent.launch();
    eventually("the agent's connection after its restart", MAX_WAIT, async || {
        let now = connections();
        if now > before { Ok(()) } else { Err(format!("{now} connections")) }
    })
    .await;
    world.until_connected(agent, true).await;
}

/// A whole life of an account: states, a new credential, restarts of both sides, and its end.
async fn account_lives(world: &World, agent: &Agent) {
    let cluster = world.cluster("spinnaker").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let active = world.until("prod", State::Active).await;
    world.patch("prod", json!({"spec": {"state": "INACTIVE"}})).await;
    world.until("prod", State::Inactive).await;
    world.patch("prod", json!({"spec": {"state": "ACTIVE"}})).await;
    world.until("prod", State::Active).await;

    // A new credential, and a restart of either side.
    let version = active.status_or_default().credential_version.clone();
    let other = world.cluster("deployer").await.kubeconfig();
    world.secret("prod", other.as_bytes(), true).await;
    world
        .until_account("prod", "uses the new credential", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.credential_version != version
        })
        .await;
    restart(world, agent).await;
    world.operator().kill_and_start().await;
    world.until_connected(agent, true).await;
    world.until("prod", State::Active).await;
    world.delete("prod").await;
    world.until_gone("prod").await;
    for log in [agent.log_text(), world.operator().log_text()] {
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn account_lives_on_an_agent_of_an_earlier_version() {
    account_lives_through_a_proxy(Earlier::Agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn account_lives_under_an_operator_of_an_earlier_version() {
    account_lives_through_a_proxy(Earlier::Operator).await;
}

/// A program of the earlier version, from the folder that `make skew` names.
fn earlier(name: &str) -> PathBuf {
    let folder = std::env::var("KUBESVC_EARLIER_PROGRAMS");
    let folder = folder.expect("KUBESVC_EARLIER_PROGRAMS, a folder of built programs: make skew");
    Path::new(&folder).join(name)
}

/// Creates an account that stays while one side changes its version.
async fn create_lasting(world: &World) -> KubesvcAccount {
    let kubeconfig = world.cluster("lasting").await.kubeconfig();
    world.account("lasting").zone("east").kubeconfig(&kubeconfig).create().await;
    world.until("lasting", State::Active).await
}

/// Waits until the objects of the account have been listed.
async fn until_cached(world: &World) {
    eventually("scopes that are in sync", MAX_WAIT, async || {
        let read = async { world.open_database().await?.scopes().await };
        let scopes = read.await.map_err(|error| error.to_string())?;
        let is_synced = |scope: &(String, String, String, _)| scope.0 == "lasting" && scope.2 == "SYNCED";
        if scopes.iter().any(is_synced) { Ok(()) } else { Err(format!("{scopes:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds an earlier version: make skew"]
async fn agent_of_the_earlier_version_is_upgraded_and_rolled_back_under_its_account() {
    let world = prepare().start().await;
    let agent = world.agent("agent-1").program(earlier("kubesvc-agent")).start().await;
    account_lives(&world, &agent).await;
    let created = create_lasting(&world).await;
    agent.set_program(env!("CARGO_BIN_EXE_kubesvc-agent").into());
    restart(&world, &agent).await;
    until_cached(&world).await;
    agent.set_program(earlier("kubesvc-agent"));
    restart(&world, &agent).await;
    let last = world.until("lasting", State::Active).await;
    assert_eq!(last.metadata.uid, created.metadata.uid);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds an earlier version: make skew"]
async fn operator_of_the_earlier_version_is_upgraded_under_its_account() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        let world = prepare().database(database).without_operator().start().await;
        world.operator().set_program(earlier("kubesvc-operator"));
        world.operator().start().await;
        let agent = world.agent("agent-1").start().await;
        account_lives(&world, &agent).await;
        let created = create_lasting(&world).await;
        world.operator().set_program(env!("CARGO_BIN_EXE_kubesvc-operator").into());
        world.operator().kill_and_start().await;
        world.until_connected(&agent, true).await;
        until_cached(&world).await;
        let last = world.until("lasting", State::Active).await;
        assert_eq!(last.metadata.uid, created.metadata.uid);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_of_an_agent_of_an_earlier_version_is_refused_and_names_it() {
    let gateway = ports::free();
    let world = World::prepare()
        .own_control_plane()
        .setting("kubesvc.gateway.enabled", true)
        .setting("kubesvc.gateway.server.port", gateway)
        .without_operator()
        .start()
        .await;
    install(&world, gateway, false).await;
    world.operator().start().await;
    let (port, _server) = skewed(&world, Earlier::Agent);
    let _agent = world.agent("agent-1").zone("east").hub_port(port).start().await;
    let cluster = world.cluster("spinnaker").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    let alice = world.caller("alice", EVERYTHING).await;
    for verb in ["discovery {}".to_owned(), creates_map(world.namespace(), "none")] {
        let operation = json!({"operation": format!("account {{ name: \"prod\" }} {verb}")});
        let answer = alice.run(world.operator(), "?wait=5s", &operation).await;
        assert_eq!(answer.status, 409, "{answer}");
        assert!(
            answer.to_string().contains("agent-1") && answer.to_string().contains("upgrade it"),
            "{answer}"
        );
    }
    let authority = eventually("a certificate of the gateway", MAX_WAIT, async || {
        let secret = world.api::<Secret>().get("kubesvc-gateway").await.map_err(|e| e.to_string())?;
        let data = secret.data.unwrap_or_default().remove("ca.crt").ok_or("no authority")?;
        Ok::<_, String>(String::from_utf8_lossy(&data.0).into_owned())
    })
    .await;
    let server = format!("https://localhost:{gateway}{}", path_of(world.namespace(), "prod"));
    let text = kubeconfig::yaml(&server, &authority, Proof::Token(&alice.token));
    let file = must(world.folder().write("gateway.kubeconfig", &text));
    for arguments in [&["get", "--raw", "/version"], &["delete", "--raw", "/api/v1/namespaces/none"]] {
        let output = kubectl(&file, arguments, "").await;
        let said = &output.stderr;
        assert!(output.code != Some(0) && said.contains("ServiceUnavailable"), "{said}");
        assert!(said.contains("agent agent-1") && said.contains("upgrade it"), "{said}");
    }
}

/// Text of an operation that creates a ConfigMap.
fn creates_map(namespace: &str, name: &str) -> String {
    let metadata = json!({"name": name, "namespace": namespace});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}).to_string();
    format!("deploy {{ manifest {{ data: {} }} mode: CREATE }}", json!(map))
}
