//! Operations on accounts by REST: from a caller with a token, through a real operator and a real agent, to a real API
//! server, and into the tables of each database.
//!
//! | file | what |
//! |---|---|
//! | `callers.rs` | callers with tokens and rights, and their calls |
//! | `verbs.rs` | every verb once, and what is recorded of it |
//! | `refusals.rs` | who may not, and what cannot be |
//! | `held_definitions.rs` | requests while a new definition of the account fails |
//! | `lost_connections.rs` | connections that are cut and processes that die while a write runs |
//! | `pages.rs` | the commands of docs/operations.md |
//! | `replicas.rs` | two replicas: any of them answers, and settles what a dead one left open |

pub(crate) mod callers;
mod held_definitions;
mod lost_connections;
mod pages;
mod refusals;
mod replicas;
mod verbs;

use kubesvc_core::State;
use serde_json::{Value, json};

use crate::stories::on_one_database;
use crate::world::{Agent, Call, Cluster, Database, MAX_WAIT, Prepare, World};
use callers::Caller;
use kubesvc_testkit::{must, wait::eventually};

on_one_database! {
    operations_are_done_and_recorded,
}

pub(crate) const EVERYTHING: &[&str] = &["get", "create", "update", "patch", "delete"];

/// A world with account `prod`, whose agent may write into the world's namespace, and a caller who may do everything.
struct Scene {
    world: World,
    cluster: Cluster,
    _agent: Agent,
    alice: Caller,
}

impl Scene {
    async fn on(database: Database) -> Self {
        Self::prepared(World::prepare().database(database)).await
    }

    async fn prepared(prepare: Prepare) -> Self {
        let world = prepare.setting("kubesvc.cache.operationWaitMs", 20_000).start().await;
        let agent = world.agent("agent-1").start().await;
        let cluster = world.cluster("spinnaker").await;
        world.let_write("spinnaker").await;
        world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until("prod", State::Active).await;
        let alice = world.caller("alice", EVERYTHING).await;
        Self { world, cluster, _agent: agent, alice }
    }

    /// A target in the world's namespace, in protobuf's text format.
    fn target(&self, group: &str, kind: &str, name: &str) -> String {
        let namespace = self.world.namespace();
        format!(
            "target {{ group: \"{group}\" version: \"v1\" kind: \"{kind}\" namespace: \"{namespace}\" name: \"{name}\" }}"
        )
    }

    fn config_map(&self, name: &str, value: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": self.world.namespace()}, "data": {"key": value},
        })
    }

    /// Waits until the record of an operation has this outcome.
    async fn until_outcome(&self, id: &str, outcome: &str) -> Value {
        let path = format!("/armory/agent/operations/{id}");
        eventually(&format!("operation {id} that is {outcome}"), MAX_WAIT, async || {
            let answer = self.alice.try_get(self.world.operator(), &path).await?;
            if answer.json["finalOutcome"] == outcome { Ok(answer.json) } else { Err(answer.to_string()) }
        })
        .await
    }

    /// Waits until the history has this many rows.
    async fn until_history(&self, rows: i64) {
        let statement = "SELECT count(*) FROM kubesvc_ops_history";
        eventually(&format!("{rows} rows of history"), MAX_WAIT, async || {
            let mut connection = self.world.open_database().await.map_err(|e| e.to_string())?;
            let count = connection.number(statement).await.map_err(|e| e.to_string())?;
            if count == rows { Ok(()) } else { Err(format!("{count} rows")) }
        })
        .await;
    }
}

/// An operation on `prod`, in protobuf's text format.
fn on_prod(verb: &str) -> Value {
    json!({"operation": format!("account {{ name: \"prod\" }} {verb}")})
}

/// A deploy of an object, in protobuf's text format.
fn deploy(object: &Value, more: &str) -> Value {
    // JSON's escapes are those of the text format.
    let data = Value::String(object.to_string());
    on_prod(&format!("deploy {{ manifest {{ data: {data} }} {more} }}"))
}

async fn operations_are_done_and_recorded(database: Database) {
    let scene = Scene::on(database).await;
    let (world, alice) = (&scene.world, &scene.alice);
    let text = deploy(&scene.config_map("one", "1"), "");
    let answer = alice.run(world.operator(), "?wait=20s", &text).await;
    assert_eq!((answer.status, &answer.json["status"]), (200, &json!(201)), "{answer}");
    assert_eq!(answer.json["body"]["data"]["key"], "1", "{answer}");
    let id = answer.json["operationId"].as_str().expect("an id").to_owned();
    assert_eq!(answer.headers["x-operation-id"], id.as_str());
    assert_eq!(world.config_map_value("one").await.as_deref(), Some("1"));

    let record = scene.until_outcome(&id, "completed").await;
    assert_eq!(record["operationType"], "Deploy", "{record}");
    assert_eq!(record["account"], "prod", "{record}");
    let expected = format!("system:serviceaccount:{}:alice", world.namespace());
    assert_eq!(record["principal"], expected, "{record}");
    assert_eq!(record["opSentToAgent"]["agentId"], "agent-1", "{record}");
    assert_eq!(record["resultReceivedFromAgent"]["result"]["status"], 201, "{record}");
    assert_eq!(record["opReceivedByClouddriver"]["clouddriverId"], "operator-0", "{record}");

    let data = scene.config_map("two", "2").to_string();
    let json = json!({"operation": {"account": {"name": "prod"}, "deploy": {"manifest": {"data": data}}}});
    let answer = alice.run(world.operator(), "?wait=20s", &json).await;
    assert_eq!(answer.json["status"], 201, "{answer}");

    let answer = alice.run(world.operator(), "", &deploy(&scene.config_map("three", "3"), "")).await;
    assert_eq!((answer.status, answer.text.as_str()), (200, ""), "{answer}");
    let third = answer.headers["x-operation-id"].to_str().expect("an id").to_owned();
    scene.until_outcome(&third, "completed").await;
    assert_eq!(world.config_map_value("three").await.as_deref(), Some("3"));

    let again = deploy(&scene.config_map("four", "4"), "mode: CREATE");
    let first = alice.run(world.operator(), "?wait=20s&clientRequestId=four", &again).await;
    let second = alice.run(world.operator(), "?wait=20s&clientRequestId=four", &again).await;
    assert_eq!(first.json["status"], 201, "{first}");
    assert_eq!(first.json["operationId"], second.json["operationId"], "{second}");
    assert_eq!(second.json["status"], 201, "once: {second}");

    let dry =
        alice.run(world.operator(), "?wait=20s&dryRun=All", &deploy(&scene.config_map("dry", "5"), "")).await;
    assert_eq!(dry.json["body"]["data"]["key"], "5", "{dry}");
    assert_eq!(world.config_map_value("dry").await, None);

    scene.until_history(5).await;
    let listed = alice.get(world.operator(), "/armory/agent/operations?account=prod&items=2").await;
    let listed = listed.json.as_array().expect("a list").clone();
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0]["dryRun"], json!(true), "the newest first: {listed:?}");
    let log = world.operator().log_text();
    assert!(log.contains(&id) && log.contains("agent-1"), "an audit line for each write");
    let metrics = world.get("/metrics").await.text;
    assert!(
        metrics.contains(
            "kubesvc_operations_seconds_count{verb=\"Deploy\",outcome=\"completed\",result=\"OK\"} 5"
        ),
        "{metrics}"
    );
    assert!(metrics.contains("kubesvc_security_open{door=\"operations\"} 0"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_authentication_everybody_may_and_the_operator_says_so() {
    let scene = Scene::prepared(World::prepare().setting("kubesvc.operations.auth", "none")).await;
    let world = &scene.world;
    let call = |body: &Value| {
        let call = Call::new("POST", "/armory/agent/operations?wait=20s").json(body);
        world.operator().call(call.header("x-spinnaker-user", "bob"))
    };
    let answer = must(call(&deploy(&scene.config_map("c", "1"), "")).await);
    assert_eq!(answer.json["status"], 201, "{answer}");
    let answer = must(call(&json!({"operation": "account { name: \"unknown\" } discovery {}"})).await);
    assert_eq!(answer.status, 404, "{answer}");
    let metrics = world.get("/metrics").await.text;
    assert!(metrics.contains("kubesvc_security_open{door=\"operations\"} 1"), "{metrics}");
    assert!(metrics.contains("kubesvc_operations_refused_total{reason=\"not_found\"} 1"), "{metrics}");
    let log = world.operator().log_text();
    assert_eq!(log.matches("kubesvc.operations.auth: required").count(), 1, "one line at its start: {log}");
    for event in ["write", "refusal"] {
        let message = format!("\"message\":\"{event}\"");
        let caller = r#""principal":"system:anonymous","groups":["system:unauthenticated"],"via":"none","claimed":"bob""#;
        let is_it = |line: &str| line.contains(&message) && line.contains(caller);
        assert!(log.lines().any(is_it), "{event}: {log}");
    }
}
