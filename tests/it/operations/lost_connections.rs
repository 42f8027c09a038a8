//! Connections that are lost and processes that die while a write runs: it is executed at most once, counted in the API
//! server's audit log; its answer is the API server's own as long as the agent's process lives, and a definite "unknown"
//! otherwise.

use std::time::Duration;

use kubesvc_core::State;
use kubesvc_testkit::wait::eventually;
use serde_json::{Value, json};

use super::callers::Caller;
use super::{EVERYTHING, deploy, on_prod};
use crate::faults::proxy::{Proxy, ProxyMode};
use crate::world::{Agent, Answer, Database, MAX_WAIT, Operator, World};

/// Delay of each piece between agent and API server: longer than it takes to cut a connection meanwhile.
const SLOW: Duration = Duration::from_secs(1);

/// Two replicas, and an agent whose connections to the hub and to its API server can be cut.
struct Lines {
    world: World,
    second: Operator,
    agent: Agent,
    hub: Proxy,
    api: Proxy,
    alice: Caller,
}

fn port_of(url: &str) -> u16 {
    url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a URL with a port")
}

impl Lines {
    async fn prepare() -> Self {
        let world = World::prepare()
            .database(Database::Postgres)
            .setting("server.address", "*")
            .setting("kubesvc.cache.operationWaitMs", 20_000)
            .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 30)
            .start()
            .await;
        let second = world.replica("operator-1").await;
        world.publish("operator-0", world.operator(), true).await;
        world.publish("operator-1", &second, true).await;
        let hub = Proxy::to(world.operator().hub_port()).await;
        let api = Proxy::to(port_of(&world.control_plane().server_url())).await;
        let agent = world.agent("agent-1").hub_port(hub.port()).start().await;
        let cluster = world.cluster("spinnaker").await;
        world.let_write("spinnaker").await;
        let server = format!("https://127.0.0.1:{}", api.port());
        world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig_at(&server)).create().await;
        world.until("prod", State::Active).await;
        let alice = world.caller("alice", EVERYTHING).await;
        let lines = Self { world, second, agent, hub, api, alice };
        // Both replicas have what they need, and the kinds are read.
        for (at, replica) in [lines.world.operator(), &lines.second].into_iter().enumerate() {
            let warm = deploy(&lines.config_map(&format!("warm-{at}")), "mode: CREATE");
            eventually("an operation at each replica", MAX_WAIT, async || {
                let answer = lines.alice.try_run(replica, "?wait=20s", &warm).await?;
                let status = answer.json["status"].as_u64();
                if matches!(status, Some(201 | 409)) { Ok(()) } else { Err(answer.to_string()) }
            })
            .await;
        }
        lines
    }

    fn config_map(&self, name: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": self.world.namespace()}, "data": {"key": "1"},
        })
    }

    /// Runs an operation at a replica, and does this once its write is on its way to the API server.
    async fn run(&self, replica: &Operator, body: &Value, meanwhile: impl AsyncFnOnce()) -> Answer {
        let faults = async {
            self.until_sent().await;
            meanwhile().await;
        };
        tokio::join!(self.alice.run(replica, "?wait=30s", body), faults).0
    }

    /// Waits until a write is on its way to the API server.
    async fn until_sent(&self) {
        eventually("a write that was sent", MAX_WAIT, async || {
            let listed = self.agent.try_get("/operations").await?;
            let operations = listed.json["operations"].as_array().cloned().unwrap_or_default();
            let is_sent = |one: &Value| one["class"] == "write" && one["state"] == "sent";
            if operations.iter().any(is_sent) { Ok(()) } else { Err(listed.to_string()) }
        })
        .await;
    }

    /// Number of writes of this verb to a ConfigMap that the API server received from the agent.
    fn received(&self, verb: &str, name: &str) -> usize {
        let namespace = self.world.namespace();
        let writes = self.world.control_plane().writes();
        let is_it = |write: &&kubesvc_testkit::audit::AuditedWrite| {
            (write.verb.as_str(), write.resource.as_str()) == (verb, "configmaps")
                && (write.namespace.as_str(), write.name.as_str()) == (namespace, name)
        };
        writes.iter().filter(is_it).count()
    }

    fn cut_hub(&self) {
        self.hub.cut();
        self.hub.set(ProxyMode::Open);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_connection_is_cut_has_its_own_answer_wherever_the_agent_comes_back() {
    let lines = Lines::prepare().await;
    let (first, second) = (lines.world.operator(), &lines.second);
    // Where it is asked, and where the agent is after the cut; it begins at the first.
    let mut is_at_first = true;
    for (round, (asked, next)) in
        [(first, first), (second, first), (first, second), (first, second), (second, first)]
            .into_iter()
            .enumerate()
    {
        let name = format!("cut-{round}");
        lines.api.set(ProxyMode::Slow(SLOW));
        let create = deploy(&lines.config_map(&name), "mode: CREATE");
        let cut = async || {
            lines.hub.lead_to(next.hub_port());
            lines.cut_hub();
        };
        let answer = lines.run(asked, &create, cut).await;
        assert_eq!(answer.json["status"], 201, "round {round}, at first: {is_at_first}: {answer}");
        lines.api.set(ProxyMode::Open);
        assert_eq!(lines.received("create", &name), 1, "round {round}");
        is_at_first = std::ptr::eq(next, first);
        lines.world.until_connected(&lines.agent, true).await;
        lines.world.until("prod", State::Active).await;
    }
    // Other kinds of writes.
    let namespace = lines.world.namespace();
    let target = format!(
        "target {{ version: \"v1\" kind: \"ConfigMap\" namespace: \"{namespace}\" name: \"cut-0\" }}"
    );
    let patch = format!("patch {{ {target} type: MERGE body {{ data: '{{\"data\":{{\"key\":\"2\"}}}}' }} }}");
    for (verb, text) in [("patch", patch), ("delete", format!("delete {{ {target} }}"))] {
        lines.api.set(ProxyMode::Slow(SLOW));
        let answer = lines.run(first, &on_prod(&text), async || lines.cut_hub()).await;
        assert_eq!(answer.json["status"], 200, "{verb}: {answer}");
        lines.api.set(ProxyMode::Open);
        assert_eq!(lines.received(verb, "cut-0"), 1, "{verb}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_outlives_the_replica_between_and_is_unknown_once_its_agent_died() {
    let lines = Lines::prepare().await;
    let (first, second) = (lines.world.operator(), &lines.second);
    // The replica that has the agent dies; the one that was asked finds the answer at itself.
    lines.api.set(ProxyMode::Slow(SLOW));
    let create = deploy(&lines.config_map("between"), "mode: CREATE");
    let kill = async || {
        lines.hub.lead_to(second.hub_port());
        first.kill();
    };
    let answer = lines.run(second, &create, kill).await;
    assert_eq!(answer.json["status"], 201, "{answer}");
    assert_eq!(lines.received("create", "between"), 1);
    // The agent dies: nobody knows.
    lines.world.until_connected(&lines.agent, true).await;
    let create = deploy(&lines.config_map("died"), "mode: CREATE");
    let restart = async || {
        lines.agent.kill();
        lines.agent.launch();
    };
    let answer = lines.run(second, &create, restart).await;
    assert_eq!((answer.status, &answer.json["status"]), (200, &json!(504)), "{answer}");
    assert_eq!(answer.json["failure"]["beforeSend"], false, "{answer}");
    lines.api.set(ProxyMode::Open);
    assert!(lines.received("create", "died") <= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_an_account_that_is_taken_from_its_zone_are_settled_in_time() {
    let lines = Lines::prepare().await;
    lines.api.set(ProxyMode::Slow(SLOW));
    let create = deploy(&lines.config_map("taken"), "mode: CREATE");
    let taken = async || drop(lines.world.patch("prod", json!({"spec": {"state": "INACTIVE"}})).await);
    let running = lines.run(lines.world.operator(), &create, taken);
    let answer = tokio::time::timeout(Duration::from_secs(20), running).await.expect("in time");
    let status = answer.json["status"].as_u64();
    assert!(matches!(status, Some(201 | 504)), "{answer}");
    let sent = lines.received("create", "taken");
    assert_eq!(sent, 1, "{answer}");
    lines.api.set(ProxyMode::Open);
    lines.world.until("prod", State::Inactive).await;
    let refused =
        lines.alice.run(lines.world.operator(), "?wait=10s", &deploy(&lines.config_map("later"), "")).await;
    assert!(matches!(refused.status, 409 | 503) || refused.json["status"] == 503, "{refused}");
    assert_eq!(lines.received("create", "later"), 0, "nothing is sent into a zone whose grant is taken");
}
