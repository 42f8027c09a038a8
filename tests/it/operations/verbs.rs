//! Every verb once, and what is recorded of it.

use serde_json::{Value, json};

use super::{Scene, deploy, on_prod};
use crate::world::Database;

fn deployment(namespace: &str, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_is_done_and_recorded_under_its_name() {
    let scene = Scene::on(Database::Sqlite).await;
    let (world, alice) = (&scene.world, &scene.alice);
    let web = scene.target("apps", "Deployment", "web");
    let namespace = world.namespace();
    let kind = format!(
        "target {{ group: \"apps\" version: \"v1\" kind: \"Deployment\" namespace: \"{namespace}\" }}"
    );
    let pod = scene.target("", "Pod", "none");
    let cases: Vec<(&str, Value, u16, &str)> = vec![
        ("Deploy", deploy(&deployment(namespace, "a:1"), ""), 201, "/spec/replicas"),
        ("Scale", on_prod(&format!("scale {{ {web} replicas: 3 }}")), 200, "/spec/replicas"),
        (
            "Patch",
            on_prod(&format!(
                "patch {{ {web} type: MERGE body {{ data: \"{{metadata: {{labels: {{a: b}}}}}}\" }} }}"
            )),
            200,
            "/metadata/labels/a",
        ),
        ("PauseRollout", on_prod(&format!("pause_rollout {{ {web} }}")), 200, "/spec/paused"),
        ("ResumeRollout", on_prod(&format!("resume_rollout {{ {web} }}")), 200, "/spec"),
        (
            "RestartRollout",
            on_prod(&format!("restart_rollout {{ {web} }}")),
            200,
            "/spec/template/metadata/annotations",
        ),
        ("RevisionHistory", on_prod(&format!("revision_history {{ {web} }}")), 200, ""),
        ("UndoRollout", on_prod(&format!("undo_rollout {{ {web} to_revision: 99 }}")), 404, ""),
        ("Get", on_prod(&format!("get {{ {web} }}")), 200, "/metadata/name"),
        ("List", on_prod(&format!("list {{ {kind} limit: 10 }}")), 200, "/items/0/metadata/name"),
        ("Logs", on_prod(&format!("logs {{ {pod} }}")), 404, ""),
        ("Discovery", on_prod("discovery {}"), 200, ""),
        ("Delete", on_prod(&format!("delete {{ {web} propagation: BACKGROUND }}")), 200, ""),
    ];
    for (verb, operation, status, part) in cases {
        let answer = alice.run(world.operator(), "?wait=30s", &operation).await;
        assert_eq!(answer.status, 200, "{verb}: {answer}");
        assert_eq!(answer.json["status"], status, "{verb}: {answer}");
        if status < 400 {
            assert!(answer.json["failure"].is_null(), "{verb}: {answer}");
            let body = &answer.json["body"];
            assert!(part.is_empty() || body.pointer(part).is_some(), "{verb}: {answer}");
        } else {
            assert_eq!(answer.json["failure"]["class"], "NOT_FOUND", "{verb}: {answer}");
        }
        let id = answer.json["operationId"].as_str().expect("an id");
        let outcome = if status < 400 { "completed" } else { "failed" };
        let record = scene.until_outcome(id, outcome).await;
        assert_eq!(record["operationType"], verb, "{record}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_settles_only_what_is_open_or_unknown() {
    let scene = Scene::on(Database::Sqlite).await;
    let (world, alice) = (&scene.world, &scene.alice);
    let answer = alice.run(world.operator(), "?wait=20s", &deploy(&scene.config_map("c", "1"), "")).await;
    let id = answer.json["operationId"].as_str().expect("an id").to_owned();
    scene.until_outcome(&id, "completed").await;
    let settle = |id: &str| {
        let result = json!({"result": format!("op_id: \"{id}\" status: 200")});
        crate::world::Call::new("POST", "/armory/agent/operationresults").json(&result)
    };
    let done = alice.call(world.operator(), settle(&id)).await;
    assert_eq!(done.status, 409, "{done}");
    let unknown = alice.call(world.operator(), settle("01J00000000000000000000000")).await;
    assert_eq!(unknown.status, 404, "{unknown}");

    // A row that says that nobody knows.
    world
        .execute(&format!(
            "UPDATE kubesvc_ops_history SET final_outcome = 'unknown' WHERE operation_id = '{id}'"
        ))
        .await;
    let done = alice.call(world.operator(), settle(&id)).await;
    assert_eq!((done.status, done.text.as_str()), (200, ""), "{done}");
    scene.until_outcome(&id, "completed").await;
}
