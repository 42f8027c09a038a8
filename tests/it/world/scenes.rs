//! Worlds that several tests start from.

use super::{Agent, Cluster, World};

impl World {
    /// A world with a cluster and an agent of zone east.
    pub(crate) async fn with_agent() -> (Self, Cluster, Agent) {
        let world = Self::start().await;
        let cluster = world.cluster("spinnaker").await;
        let agent = world.agent("agent-1").start().await;
        (world, cluster, agent)
    }

    /// A world without automatic retries, so that each state that waits for intervention lasts. The agents are those
    /// of the zones east, south and mute: tests kill the second and pause the third.
    pub(crate) async fn at_rest() -> (Self, Cluster, [Agent; 3]) {
        let slow = Self::prepare()
            .setting("kubesvc.dynamicAccounts.retryFrequencySeconds", 600)
            .setting("kubesvc.dynamicAccounts.retryMaxDelaySeconds", 600)
            // A paused agent stays connected for as long as the test takes.
            .setting("kubesvc.heartbeat.enabled", false)
            .setting("kubesvc.grpc.server.security.keepAliveHeartbeatSeconds", 0);
        let world = slow.start().await;
        let cluster = world.cluster("spinnaker").await;
        let east = world.agent("agent-1").zone("east").start().await;
        let south = world.agent("agent-2").zone("south").start().await;
        let mute = world.agent("agent-3").zone("mute").start().await;
        (world, cluster, [east, south, mute])
    }

    /// Like [`World::with_agent`], with [`Prepare::in_no_hurry`].
    pub(crate) async fn in_no_hurry() -> (Self, Cluster, Agent) {
        let world = Self::prepare().in_no_hurry().start().await;
        let cluster = world.cluster("spinnaker").await;
        let agent = world.agent("agent-1").zone("east").start().await;
        (world, cluster, agent)
    }
}
