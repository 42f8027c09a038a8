//! Callers who may no longer go on, and callers who ask for too much at once: at both doors, and by REST.

use futures::future::join_all;
use serde_json::json;

use super::cut_answers::doors;
use super::gate::Hold;
use super::rounds::Round;
use super::scene::{ACCOUNT, Scene};
use crate::operations::EVERYTHING;
use crate::world::MAX_WAIT;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// Requests of one caller at once.
const MOST: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_at_either_door_when_its_caller_may_no_longer() {
    let scene = Scene::start().await;
    scene.ready(Round::AGENT_AT).await;
    scene.until_aggregated().await;
    let maps =
        format!("{}/api/v1/namespaces/{}/configmaps?watch=true", scene.path(), scene.world.namespace());
    let doors = doors(&scene, &scene.aggregated_token().await);
    let bob = scene.world.caller("bob", EVERYTHING).await;
    let mut of_bob = doors[0].clone();
    of_bob.token.clone_from(&bob.token);
    let maps = &maps;
    let mut watches = join_all(doors.iter().chain([&of_bob]).map(|door| async move {
        let watch = must(door.get(maps).await);
        assert_eq!(watch.status, 200, "{} {}", door.name, door.is_http2);
        watch
    }))
    .await;
    // The token of one is revoked, the others' right is.
    must(scene.world.kubectl(&["delete", "serviceaccount", "bob"]).await.ok());
    must(scene.world.kubectl(&["delete", "rolebinding", "alice"]).await.ok());
    let ends = join_all(watches.iter_mut().map(|watch| tokio::time::timeout(MAX_WAIT, watch.end()))).await;
    for (number, ended) in ends.into_iter().enumerate() {
        let ended = ended.unwrap_or_else(|_| must(Err(format!("watch {number} goes on"))));
        assert!(ended.is_err(), "watch {number} ended as if it were whole");
    }
    eventually("no requests at the agent", MAX_WAIT, async || {
        let listed = scene.agent.try_get("/operations").await?;
        let watches = listed.json["operations"].as_array().cloned().unwrap_or_default();
        let is_ours =
            |one: &&serde_json::Value| one["path"].as_str().is_some_and(|path| path.ends_with("configmaps"));
        if watches.iter().any(|one| is_ours(&one)) { Err(listed.to_string()) } else { Ok(()) }
    })
    .await;
    let log = scene.replica(0).log_text() + &scene.replica(1).log_text();
    assert!(log.contains("stream-end") && log.contains("cannot get"), "the audit lines say why");
    assert!(!log.contains(&bob.token), "no token is logged");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_too_much_at_once_is_told_so_and_the_next_good_request_works() {
    let scene = Scene::start().await;
    scene.ready(Round::AGENT_AT).await;
    scene.until_aggregated().await;
    let namespace = scene.world.namespace();
    let path = |name: &str| format!("{}/api/v1/namespaces/{namespace}/configmaps/{name}", scene.path());
    // All at the replica that has the agent.
    let mut direct = doors(&scene, &scene.aggregated_token().await).remove(1);
    direct.port = scene.gateway(Round::AGENT_AT);
    let aggregated = doors(&scene, &scene.aggregated_token().await).remove(3);
    // Of one connection the direct door takes 100 requests.
    let sessions = [must(direct.session().await), must(direct.session().await), must(direct.session().await)];
    let (session, through) = (&sessions[0], must(aggregated.session().await));

    scene.gate.set(Hold::Reads);
    let paths: Vec<_> = (0..MOST).map(|number| path(&format!("cell-many-{number}"))).collect();
    let all = join_all(paths.iter().enumerate().map(|(number, path)| sessions[number % 3].get(path)));
    let refusing = async {
        until_held(&scene).await;
        for (door, session) in [("direct", session), ("aggregated", &through)] {
            let (status, body) = must(session.get(&path("cell-more")).await);
            assert_eq!(status, 429, "{door}: {body}");
            assert!(body.contains("\"Status\"") && body.contains("200"), "{door}: {body}");
        }
        scene.gate.set(Hold::Nothing);
    };
    let (answers, ()) = tokio::join!(all, refusing);
    for answer in answers {
        assert_eq!(must(answer).0, 404, "they were held, and are answered");
    }
    for session in [session, &through] {
        assert_eq!(must(session.get(&path("cell-next")).await).0, 404);
    }

    // The same by REST.
    let get = |name: &str| {
        let target = format!(
            "target {{ version: \"v1\" kind: \"ConfigMap\" namespace: \"{namespace}\" name: \"{name}\" }}"
        );
        json!({"operation": format!("account {{ name: \"{ACCOUNT}\" }} get {{ {target} }}")})
    };
    let replica = scene.replica(Round::AGENT_AT);
    scene.gate.set(Hold::Reads);
    let operations: Vec<_> = (0..MOST).map(|number| get(&format!("cell-rest-{number}"))).collect();
    let all =
        join_all(operations.iter().map(|operation| scene.alice.try_run(replica, "?wait=25s", operation)));
    let refusing = async {
        until_held(&scene).await;
        let answer = scene.alice.run(replica, "?wait=5s", &get("cell-rest-more")).await;
        assert_eq!(answer.status, 429, "{answer}");
        assert!(answer.text.contains("200"), "{answer}");
        scene.gate.set(Hold::Nothing);
    };
    let (answers, ()) = tokio::join!(all, refusing);
    for answer in answers {
        let answer = must(answer);
        assert_eq!(answer.json["status"], 404, "{answer}");
    }
    let answer = scene.alice.run(replica, "?wait=5s", &get("cell-rest-next")).await;
    assert_eq!(answer.json["status"], 404, "{answer}");
}

async fn until_held(scene: &Scene) {
    eventually("requests at the gate", MAX_WAIT, async || {
        let held = scene.gate.held().len();
        if held >= MOST { Ok(()) } else { Err(format!("{held} of {MOST}")) }
    })
    .await;
}
