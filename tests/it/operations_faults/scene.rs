//! Two replicas with both doors, an agent, and a line of the test's own wherever two of them talk: each can be held and cut.

use kubesvc_core::State;
use serde_json::{Value, json};

use super::client::Door;
use super::gate::Gate;
use crate::faults::proxy::{Proxy, ProxyMode};
use crate::gateway::place::{install, path_of};
use crate::operations::EVERYTHING;
use crate::operations::callers::Caller;
use crate::world::{Agent, MAX_WAIT, Operator, World};
use k8s_openapi::api::core::v1::Secret;
use kubesvc_testkit::databases::{self, Kind};
use kubesvc_testkit::kubeconfig::{self, Proof};
use kubesvc_testkit::wait::eventually;
use kubesvc_testkit::{must, ports};

/// The account.
pub(super) const ACCOUNT: &str = "prod";
/// Time for an operation, in milliseconds.
pub(super) const OPERATION_MS: u64 = 12_000;
/// Validity of a Lease, in seconds.
const LEASE: u64 = 6;

/// The place where a matrix of faults is tried.
pub(super) struct Scene {
    pub(super) world: World,
    second: Operator,
    pub(super) agent: Agent,
    /// From the agent to the hub.
    pub(super) hub: Proxy,
    /// From the second replica to the first.
    pub(super) peer: Proxy,
    /// From both replicas to the database.
    pub(super) database: Proxy,
    /// From the operator's API server to the gateway of a replica.
    aggregation: Proxy,
    /// From the agent to the API server.
    pub(super) gate: Gate,
    pub(super) account_uid: String,
    pub(super) alice: Caller,
    /// Ports of the gateways.
    gateways: [u16; 2],
    /// Authority of their certificate, as PEM.
    pub(super) authority: String,
}

impl Scene {
    /// Starts everything.
    pub(super) async fn start() -> Self {
        let server = databases::shared(Kind::PostgreSql).await;
        let database = Proxy::to(server.port()).await;
        let url = server.fresh_database().await;
        let url = url.replace(&format!(":{}/", server.port()), &format!(":{}/", database.port()));
        let gateways = [ports::free(), ports::free()];
        let world = World::prepare()
            .aggregating()
            .database_url(&url)
            .setting("server.address", "*")
            .setting("kubesvc.cache.operationWaitMs", OPERATION_MS)
            .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 60)
            .setting("kubesvc.leaderElection.leaseDurationSeconds", LEASE)
            .setting("kubesvc.leaderElection.renewDeadlineSeconds", LEASE * 2 / 3)
            .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
            .setting("kubesvc.gateway.enabled", true)
            .setting("kubesvc.gateway.server.address", "*")
            .setting("kubesvc.gateway.server.port", gateways[0])
            .operator_env("KUBESVC_GATEWAY_RECHECK_SECONDS", "2")
            .without_operator()
            .start()
            .await;
        let aggregation = Proxy::at("0.0.0.0", gateways[0]).await;
        install(&world, aggregation.port(), true).await;
        world.operator().start().await;
        let port = [("kubesvc.gateway.server.port", json!(gateways[1]))];
        let second = world.differing_replica("operator-1", &port, str::to_owned);
        second.start().await;
        let peer = Proxy::at("0.0.0.0", world.operator().calls_port()).await;
        world.publish_at("operator-0", world.operator(), peer.port(), true).await;
        world.publish("operator-1", &second, true).await;
        let hub = Proxy::to(world.operator().hub_port()).await;
        let gate = Gate::to(world.control_plane()).await;
        // It is cut off again and again, and must be back before an operation's deadline.
        let agent = world.agent("agent-1").hub_port(hub.port());
        let agent = agent.setting("clouddriver.backoff.multiplier", json!(1)).start().await;
        let cluster = world.cluster("spinnaker").await;
        world.let_write("spinnaker").await;
        let through = kubeconfig::yaml(&gate.url(), gate.authority(), Proof::Token(cluster.token()));
        world.account(ACCOUNT).zone("east").kubeconfig(&through).create().await;
        let account_uid = world.until(ACCOUNT, State::Active).await.uid().to_owned();
        let alice = world.caller("alice", EVERYTHING).await;
        let authority = eventually("a certificate of the gateway", MAX_WAIT, async || {
            let secret = world.api::<Secret>().get("kubesvc-gateway").await.map_err(|e| e.to_string())?;
            let data = secret.data.unwrap_or_default().remove("ca.crt").ok_or("no authority")?;
            Ok::<_, String>(String::from_utf8_lossy(&data.0).into_owned())
        })
        .await;
        Self {
            world,
            second,
            agent,
            hub,
            peer,
            database,
            aggregation,
            gate,
            account_uid,
            alice,
            gateways,
            authority,
        }
    }

    /// A replica: 0 or 1.
    pub(super) fn replica(&self, at: usize) -> &Operator {
        if at == 0 { self.world.operator() } else { &self.second }
    }

    /// The port of the gateway of a replica.
    pub(super) fn gateway(&self, at: usize) -> u16 {
        self.gateways[at]
    }

    /// The path of the account's API.
    pub(super) fn path(&self) -> String {
        path_of(self.world.namespace(), ACCOUNT)
    }

    /// A kubeconfig for the gateway of a replica.
    pub(super) fn kubeconfig(&self, at: usize) -> std::path::PathBuf {
        let server = format!("https://localhost:{}{}", self.gateways[at], self.path());
        let text = kubeconfig::yaml(&server, &self.authority, Proof::Token(&self.alice.token));
        must(self.world.folder().write(&format!("gateway-{at}.kubeconfig"), &text))
    }

    /// The gateway of a replica.
    pub(super) fn door(&self, at: usize) -> Door {
        let (authority, token) = (self.authority.clone(), self.alice.token.clone());
        Door { name: "direct", port: self.gateways[at], authority, token, is_http2: false }
    }

    /// The operator's API server, which passes calls on to the gateway of the first replica, or of another one since
    /// [`Scene::aggregate_at`].
    pub(super) fn aggregated_door(&self, token: &str) -> Door {
        let plane = self.world.control_plane();
        let url = plane.server_url();
        let port = url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a URL with a port");
        let (authority, token) = (plane.ca_pem(), token.to_owned());
        Door { name: "aggregated", port, authority, token, is_http2: false }
    }

    /// A token of the caller's for the operator's API server.
    pub(super) async fn aggregated_token(&self) -> String {
        let create = ["create", "token", "alice"];
        must(self.world.kubectl(&create).await.ok()).trim().to_owned()
    }

    /// Waits until the operator's API server passes calls on.
    pub(super) async fn until_aggregated(&self) {
        eventually("an available APIService", MAX_WAIT, async || {
            let get = ["get", "--raw", "/apis/proxy.kubesvc.io/v1alpha1"];
            self.world.kubectl(&get).await.ok()
        })
        .await;
    }

    /// Makes the operator's API server pass calls on to the gateway of this replica.
    pub(super) async fn aggregate_at(&self, at: usize) {
        self.aggregation.lead_to(self.gateways[at]);
        // Connections that are open lead elsewhere.
        self.aggregation.cut();
        self.until_aggregated().await;
    }

    /// Cuts the agent's streams; it dials again.
    pub(super) fn cut_streams(&self) {
        self.hub.cut();
        self.hub.set(ProxyMode::Open);
    }

    /// Starts what does not run, brings the agent to a replica, and waits until each replica answers by both doors.
    pub(super) async fn ready(&self, agent_at: usize) {
        for at in [0, 1] {
            if !self.replica(at).is_running() {
                self.replica(at).start().await;
            }
        }
        self.hub.lead_to(self.replica(agent_at).hub_port());
        if !self.is_agent_at(agent_at).await.unwrap_or_default() {
            self.cut_streams();
        }
        let what = format!("the agent at replica {agent_at}");
        eventually(&what, MAX_WAIT, async || match self.is_agent_at(agent_at).await? {
            true => Ok(()),
            false => Err("it is elsewhere".to_owned()),
        })
        .await;
        self.world.until(ACCOUNT, State::Active).await;
        let map = format!(
            "target {{ version: \"v1\" kind: \"ConfigMap\" namespace: \"{0}\" name: \"none\" }}",
            self.world.namespace()
        );
        let web = map.replace("\"v1\" kind: \"ConfigMap\"", "\"v1\" group: \"apps\" kind: \"Deployment\"");
        for at in [0, 1] {
            for target in [&map, &web] {
                let get =
                    json!({"operation": format!("account {{ name: \"{ACCOUNT}\" }} get {{ {target} }}")});
                eventually(&format!("an answer at replica {at}"), MAX_WAIT, async || {
                    let answer = self.alice.try_run(self.replica(at), "?wait=5s", &get).await?;
                    if answer.json["status"] == 404 { Ok(()) } else { Err(answer.to_string()) }
                })
                .await;
            }
        }
    }

    async fn is_agent_at(&self, at: usize) -> Result<bool, String> {
        let object = self.world.try_agent_object(&self.agent).await?.ok_or("it has no object")?;
        let status = object.status.ok_or("it has no status")?;
        let replica = status.session.map(|session| session.replica.to_string());
        Ok(status.connected && replica.as_deref() == Some(self.replica(at).replica_id()))
    }

    /// The writes that the agent runs now.
    pub(super) async fn agents_writes(&self) -> Result<Vec<Value>, String> {
        let listed = self.agent.try_get("/operations").await?;
        let running = listed.json["operations"].as_array().cloned().ok_or_else(|| listed.to_string())?;
        Ok(running.into_iter().filter(|one| one["class"] == "write").collect())
    }

    /// Number of requests to accounts that run at a replica.
    pub(super) async fn running_at(&self, at: usize) -> Result<u64, String> {
        self.replica(at).metric("kubesvc_account_requests_running").await
    }
}
