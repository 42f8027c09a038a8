//! Who may not, and what cannot be.

use serde_json::{Value, json};

use super::callers::Caller;
use super::{Scene, deploy, on_prod};
use crate::world::{Call, Database};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_refused_before_anything_is_done() {
    let scene = Scene::on(Database::Sqlite).await;
    let (world, alice) = (&scene.world, &scene.alice);
    let reader = world.caller("reader", &["get"]).await;
    let (cluster, operator) = (world.cluster("other").await, world.operator());
    world.account("off").zone("east").kubeconfig(&cluster.kubeconfig()).inactive().create().await;
    let secret = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "canary", "namespace": world.namespace()}, "data": {"key": "canary-in-a-manifest"},
    });
    let canary = deploy(&secret, "");
    let wait = "?wait=10s";

    let stranger = Caller { token: "nobody-at-all".to_owned() };
    let answer = stranger.run(operator, wait, &canary).await;
    assert_eq!(answer.status, 401, "{answer}");
    let for_another = Caller { token: world.token_of("alice", "another").await };
    let answer = for_another.run(operator, wait, &canary).await;
    assert_eq!(answer.status, 401, "{answer}");
    let without = world.rest("POST", "/armory/agent/operations", &canary).await;
    assert_eq!(without.status, 401, "{without}");

    let answer = reader.run(operator, wait, &canary).await;
    assert_eq!(answer.status, 403, "{answer}");
    let read = reader
        .run(operator, wait, &on_prod(&format!("get {{ {} }}", scene.target("", "ConfigMap", "none"))))
        .await;
    assert_eq!((read.status, &read.json["status"]), (200, &json!(404)), "{read}");
    let narrowed =
        Call::new("POST", "/armory/agent/operations").json(&canary).header("x-spinnaker-accounts", "a, b");
    let answer = alice.call(operator, narrowed).await;
    assert_eq!(answer.status, 403, "{answer}");

    let on = |account: &str| -> Value {
        json!({"operation": format!("account {{ name: \"{account}\" }} discovery {{}}")})
    };
    assert_eq!(alice.run(operator, wait, &on("unknown")).await.status, 404);
    let answer = alice.run(operator, wait, &on("off")).await;
    assert_eq!(answer.status, 409, "{answer}");
    assert_eq!(alice.run(operator, wait, &json!({"operation": "scale {"})).await.status, 400);
    assert_eq!(alice.run(operator, "?wait=1h", &canary).await.status, 400);
    let untyped = Call::new("POST", "/armory/agent/operations").bytes(canary.to_string());
    assert_eq!(alice.call(operator, untyped).await.status, 415);
    let large = json!({"operation": "x".repeat(9 << 20)});
    // It is refused by its length; a client that goes on writing may find the connection closed.
    match alice.try_run(operator, wait, &large).await {
        Ok(answer) => assert_eq!(answer.status, 413),
        Err(why) => assert!(why.contains("writing a body"), "{why}"),
    }

    let first = alice.run(operator, "?wait=10s&clientRequestId=x", &on("prod")).await;
    assert_eq!(first.json["status"], 200, "{first}");
    let answer = alice.run(operator, "?wait=10s&clientRequestId=x", &canary).await;
    assert_eq!(answer.status, 409, "{answer}");

    assert_eq!(world.config_map_value("canary").await, None);
    let log = operator.log_text();
    assert!(!log.contains("canary-in-a-manifest") && !log.contains(&alice.token), "{log}");
    assert!(log.contains("refusal") && log.contains("reader"), "an audit line for a refusal");
    for code in [400, 413, 415] {
        let is_it = |line: &str| line.contains("\"refusal\"") && line.contains(&format!("\"code\":{code}"));
        assert!(log.lines().any(|line| is_it(line) && line.contains(":alice\"")), "{code}: {log}");
    }
    scene.until_history(2).await;
}
