//! Operator and agent of different versions. A proxy between the real programs removes from the frames what an earlier
//! version does not know: the capabilities that one side offers or the other accepts, and with them the stream of objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use kubesvc_core::State;
use kubesvc_core::wire::ops::{AgentFrame, HubFrame, RequestDown, RequestUp, agent_frame, hub_frame};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;
use kubesvc_runtime::grpc::ops::operations_server::{Operations, OperationsServer};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};

use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::{ports, wait::eventually};

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
    hellos: Arc<AtomicUsize>,
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
        if let Some(agent_frame::Frame::Hello(hello)) = &mut frame.frame {
            self.hellos.fetch_add(1, Ordering::Relaxed);
            if self.earlier == Earlier::Agent {
                hello.capabilities.clear();
                hello.accounts_held.iter_mut().for_each(|held| held.caching_epoch = 0);
            }
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

/// A whole life of an account through a proxy that removes what the earlier side does not know.
async fn account_lives(earlier: Earlier) {
    let world = World::prepare().setting("kubesvc.cache.cacheKinds", json!(["deployment"])).start().await;
    let hub = format!("http://127.0.0.1:{}", world.operator().hub_port());
    let hub = Channel::from_shared(hub).expect("a URL").connect_lazy();
    let hellos = Arc::<AtomicUsize>::default();
    let skewed = SkewedHub { earlier, hub, hellos: Arc::clone(&hellos) };
    let port = ports::free();
    let server = Server::builder().add_service(OperationsServer::new(skewed));
    let address = ([127, 0, 0, 1], port).into();
    let _server = AbortOnDropHandle::new(tokio::spawn(server.serve(address)));

    let agent = world.agent("agent-1").zone("east").hub_port(port).start().await;
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
    let before = hellos.load(Ordering::Relaxed);
    agent.kill();
    agent.launch();
    eventually("the agent's hello after its restart", MAX_WAIT, async || {
        let now = hellos.load(Ordering::Relaxed);
        if now > before { Ok(()) } else { Err(format!("{now} hellos")) }
    })
    .await;
    world.until_connected(&agent, true).await;
    world.operator().kill_and_start().await;
    world.until_connected(&agent, true).await;
    world.until("prod", State::Active).await;
    world.delete("prod").await;
    world.until_gone("prod").await;
    for log in [agent.log_text(), world.operator().log_text()] {
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn account_lives_on_an_agent_of_an_earlier_version() {
    account_lives(Earlier::Agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn account_lives_under_an_operator_of_an_earlier_version() {
    account_lives(Earlier::Operator).await;
}
