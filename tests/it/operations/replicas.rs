//! Two replicas: any of them answers, and settles what a dead one left open.

use serde_json::json;

use super::{Scene, deploy};
use crate::world::{Database, MAX_WAIT, Prepare, World};
use kubesvc_testkit::wait::eventually;

/// Validity of a Lease, in seconds.
const LEASE: u64 = 6;

fn prepare(database: Database) -> Prepare {
    World::prepare()
        .database(database)
        .setting("server.address", "*")
        .setting("kubesvc.leaderElection.leaseDurationSeconds", LEASE)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", LEASE * 2 / 3)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 20)
}

#[tokio::test(flavor = "multi_thread")]
async fn any_replica_runs_an_operation_and_every_one_has_its_record() {
    let scene = Scene::prepared(prepare(Database::Postgres)).await;
    let (world, alice) = (&scene.world, &scene.alice);
    let second = world.replica("operator-1").await;
    world.publish("operator-0", world.operator(), true).await;
    world.publish("operator-1", &second, true).await;
    let map = scene.config_map("here", "1");
    // The agent is at the first replica.
    let answer = eventually("an operation at the replica without the agent", MAX_WAIT, async || {
        let answer = alice.try_run(&second, "?wait=20s", &deploy(&map, "")).await?;
        let is_done = answer.json["status"].as_u64().is_some_and(|status| status < 300);
        if is_done { Ok(answer) } else { Err(answer.to_string()) }
    })
    .await;
    let id = answer.json["operationId"].as_str().expect("an id").to_owned();
    let record = scene.until_outcome(&id, "completed").await;
    assert_eq!(record["opReceivedByClouddriver"]["clouddriverId"], "operator-1", "{record}");
    assert_eq!(record["opProcessedByClouddriver"]["clouddriverId"], "operator-0", "{record}");
    assert_eq!(record["resultReceivedFromAgent"]["clouddriverId"], "operator-0", "{record}");
    assert_eq!(record["opSentToAgent"]["agentId"], "agent-1", "{record}");
    // The same id at the other replica is the same operation.
    let once = deploy(&scene.config_map("once", "1"), "mode: CREATE");
    let first = alice.run(&second, "?wait=20s&clientRequestId=once", &once).await;
    let again = alice.run(world.operator(), "?wait=20s&clientRequestId=once", &once).await;
    assert_eq!((&first.json["status"], &again.json["status"]), (&json!(201), &json!(201)), "{first} {again}");
    assert_eq!(first.json["operationId"], again.json["operationId"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_replica_left_open_is_settled_by_another() {
    let scene = Scene::prepared(prepare(Database::MariaDb)).await;
    let (world, alice) = (&scene.world, &scene.alice);
    let second = world.unstarted_replica("operator-1");
    // It dies once the row is committed, before the call is answered; or before that.
    let deaths = [
        ("operation-insert:before", "", 0),
        ("operation-insert:after", "?wait=10s", 1),
        ("operation-insert:after", "?clientRequestId=claimed", 2),
    ];
    for (point, query, settled) in deaths {
        second.launch_with(&[("KUBESVC_CRASH_AT", point)]);
        second.ready().await;
        let lost = alice.try_run(&second, query, &deploy(&scene.config_map("left", "1"), "")).await;
        assert!(lost.is_err(), "{point}: {lost:?}");
        eventually("the end of the replica", MAX_WAIT, async || {
            if second.is_running() { Err("it runs".to_owned()) } else { Ok(()) }
        })
        .await;
        eventually(&format!("{settled} settled operations after {point}"), MAX_WAIT, async || {
            let listed = alice.try_get(world.operator(), "/armory/agent/operations").await?;
            let records = listed.json.as_array().ok_or("no list")?;
            let is_settled = |record: &serde_json::Value| {
                record["finalOutcome"] == "failed"
                    && record["opReceivedByClouddriver"]["clouddriverId"] == "operator-1"
                    && record["opSentToAgent"].is_null()
            };
            if records.len() == settled && records.iter().all(is_settled) {
                Ok(())
            } else {
                Err(listed.to_string())
            }
        })
        .await;
    }
    assert_eq!(world.config_map_value("left").await, None, "nothing was done");
    // The caller that comes again with its id learns what became of it.
    let again = "?wait=10s&clientRequestId=claimed";
    let answer = alice.run(world.operator(), again, &deploy(&scene.config_map("left", "1"), "")).await;
    assert_eq!((answer.status, &answer.json["failure"]["beforeSend"]), (200, &json!(true)), "{answer}");
    // And so does the reader of the audit log.
    eventually("an audit line for each operation that was settled", MAX_WAIT, async || {
        let log = world.operator().log_text();
        let settled = log.matches("failed, settled for replica operator-1: nothing was sent").count();
        if settled == 2 { Ok(()) } else { Err(format!("{settled} lines")) }
    })
    .await;
}
