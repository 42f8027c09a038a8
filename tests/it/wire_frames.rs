//! Invalid input to the hub: each kind has a defined answer, and other agents and accounts do not notice.

mod raw;
mod streams;

use kubesvc_core::{SessionId, State};
use serde_json::json;

use crate::world::{Agent, World};

/// A world with an agent that holds the account `prod`. A test may do anything to the hub; at the end the
/// same session must still exist, and nothing may have been written to the account.
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

#[tokio::test(flavor = "multi_thread")]
async fn connections_with_another_protocol_are_closed_with_a_reason() {
    let healthy = HealthyWorld::start().await;
    let port = healthy.world.operator().hub_port();
    tokio::join!(
        raw::http1_is_answered_with_505(port),
        raw::tls_is_closed(port),
        raw::garbage_is_closed(port),
        raw::silence_is_closed(port),
        raw::garbage_after_the_preface_is_closed(port),
        raw::many_connections_come_and_go(port),
    );
    healthy.check_untouched().await;
    let log = healthy.world.operator().log_text();
    assert!(log.contains("TLS is not configured"), "the log does not say that somebody tried TLS");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_break_the_protocol_are_refused_with_a_reason() {
    let healthy = HealthyWorld::start().await;
    let port = healthy.world.operator().hub_port();
    tokio::join!(
        streams::unknown_calls_are_unimplemented(port),
        streams::garbage_is_refused(port),
        streams::first_frames_that_are_no_hello_are_refused(port),
        streams::bad_hellos_are_refused(port),
        streams::a_frame_over_the_limit_is_refused(port),
        streams::a_stream_without_a_hello_is_ended(port),
        streams::an_agent_id_that_is_taken_is_refused(port),
    );
    healthy.check_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_about_accounts_never_given_are_ignored() {
    let healthy = HealthyWorld::start().await;
    let account = healthy.world.object("prod").await.expect("it is ACTIVE");
    streams::false_reports_are_ignored(healthy.world.operator().hub_port(), account.uid()).await;
    // By the time that another account has come and gone, the hub has processed everything it was sent.
    healthy
        .world
        .account("next")
        .zone("east")
        .spec("kubeconfig", json!({"secretRef": {"name": "prod"}}))
        .create()
        .await;
    healthy.world.until("next", State::Active).await;
    healthy.world.delete("next").await;
    healthy.world.until_gone("next").await;
    healthy.check_untouched().await;
    let services = streams::services(healthy.world.operator().hub_port()).await;
    for service in ["events.Caching", "grpc.health.v1.Health", "ops.Operations"] {
        assert!(services.contains(&service.to_owned()), "{services:?}");
    }
    assert!(services.iter().any(|one| one.starts_with("grpc.reflection.")), "{services:?}");
}
