//! Grants that are taken while requests run: nothing is sent into a zone that has lost the account, and what runs there is
//! answered or cut in time.

mod moves;
mod sleepers;
mod times;

use kubesvc_core::{KubesvcAccount, State, ZoneId};
use serde_json::json;

use super::client::Door;
use super::gate::Gate;
use super::scene::ACCOUNT;
use crate::gateway::place::{install, path_of};
use crate::operations::EVERYTHING;
use crate::operations::callers::Caller;
use crate::world::{Agent, MAX_WAIT, World};
use k8s_openapi::api::core::v1::Secret;
use kubesvc_testkit::kubeconfig::{self, Proof};
use kubesvc_testkit::ports;
use kubesvc_testkit::wait::eventually;

/// Two zones with an agent each, and one cluster behind a gate that both reach.
struct Zones {
    world: World,
    east: Agent,
    west: Agent,
    gate: Gate,
    alice: Caller,
    door: Door,
    kubeconfig: String,
}

impl Zones {
    async fn start() -> Self {
        let port = ports::free();
        let world = World::prepare()
            .own_control_plane()
            .setting("kubesvc.cache.operationWaitMs", 15_000)
            .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 30)
            .setting("kubesvc.gateway.enabled", true)
            .setting("kubesvc.gateway.server.address", "*")
            .setting("kubesvc.gateway.server.port", port)
            .without_operator()
            .start()
            .await;
        install(&world, port, false).await;
        world.operator().start().await;
        let gate = Gate::to(world.control_plane()).await;
        let east = world.agent("agent-1").zone("east").start().await;
        let west = world.agent("agent-2").zone("west").start().await;
        let cluster = world.cluster("spinnaker").await;
        world.let_write("spinnaker").await;
        let kubeconfig = kubeconfig::yaml(&gate.url(), gate.authority(), Proof::Token(cluster.token()));
        let alice = world.caller("alice", EVERYTHING).await;
        let authority = eventually("a certificate of the gateway", MAX_WAIT, async || {
            let secret = world.api::<Secret>().get("kubesvc-gateway").await.map_err(|e| e.to_string())?;
            let data = secret.data.unwrap_or_default().remove("ca.crt").ok_or("no authority")?;
            Ok::<_, String>(String::from_utf8_lossy(&data.0).into_owned())
        })
        .await;
        let token = alice.token.clone();
        let door = Door { name: "direct", port, authority, token, is_http2: false };
        let zones = Self { world, east, west, gate, alice, door, kubeconfig };
        zones.create("east").await;
        zones
    }

    /// Creates the account, and waits until it is ACTIVE.
    async fn create(&self, zone: &str) {
        self.world.account(ACCOUNT).zone(zone).kubeconfig(&self.kubeconfig).create().await;
        self.until_active_in(zone).await;
    }

    /// Asks for another zone without waiting.
    async fn ask_for(&self, zone: &str) {
        self.world.patch(ACCOUNT, json!({"spec": {"zoneId": zone}})).await;
    }

    async fn until_active_in(&self, zone: &str) {
        self.world
            .until_account(ACCOUNT, &format!("is ACTIVE in {zone}"), |account| is_active_in(account, zone))
            .await;
        let get = json!({"operation": format!("account {{ name: \"{ACCOUNT}\" }} get {{ {} }}", self.target("none"))});
        eventually("an answer", MAX_WAIT, async || {
            let answer = self.alice.try_run(self.world.operator(), "?wait=5s", &get).await?;
            if answer.json["status"] == 404 { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    }

    fn target(&self, name: &str) -> String {
        let namespace = self.world.namespace();
        format!(
            "target {{ version: \"v1\" kind: \"ConfigMap\" namespace: \"{namespace}\" name: \"{name}\" }}"
        )
    }

    /// A path below the account's API.
    fn path(&self, rest: &str) -> String {
        format!(
            "{}/api/v1/namespaces/{}/{rest}",
            path_of(self.world.namespace(), ACCOUNT),
            self.world.namespace()
        )
    }

    /// Number of writes about an object that the API server received from agents.
    fn received(&self, name: &str) -> usize {
        let user = format!("system:serviceaccount:{}:spinnaker", self.world.namespace());
        let writes = self.world.control_plane().writes();
        writes.iter().filter(|write| write.user == user && write.name == name).count()
    }
}

fn is_active_in(account: &KubesvcAccount, zone: &str) -> bool {
    let status = account.status_or_default();
    status.state() == State::Active && status.granted_zone() == Some(&ZoneId::from(zone))
}
