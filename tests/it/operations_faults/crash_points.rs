//! The operator dies just before and just after each write of an operation's record, and is started again: what was
//! promised to callers holds, and what is recorded is what was done.

use kubesvc_core::State;
use kubesvc_runtime::crash_points::POINTS;
use serde_json::{Value, json};

use super::{creates_map, deploys_map, until_written};
use crate::gateway::place::{self, Place, kubectl};
use crate::operations::EVERYTHING;
use crate::operations::callers::Caller;
use crate::world::{Agent, Call, Database, MAX_WAIT, World};
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// Time for an operation, in milliseconds: what is left open is settled five seconds later.
const OPERATION_MS: u64 = 2_000;

/// The tables of records: of open operations, and of those that ended.
const OPEN: &str = "kubesvc_ops";
const HISTORY: &str = "kubesvc_ops_history";

/// What is done, and where the operator dies.
#[derive(Clone, Copy, Debug)]
struct Trial {
    point: &'static str,
    /// How the operation is asked for.
    query: &'static str,
    /// Whether it may run twice: it applies, where others create.
    twice: bool,
    /// What may come of it: whether the object is made, and the outcome in its record; `None`: it has none.
    ends: &'static [(bool, Option<&'static str>)],
}

const NOTHING: &[(bool, Option<&str>)] = &[(false, None)];
const FAILED: &[(bool, Option<&str>)] = &[(false, Some("failed"))];
/// The agent never has the whole request.
const UNKNOWN: &[(bool, Option<&str>)] = &[(false, Some("unknown"))];
const COMPLETED: &[(bool, Option<&str>)] = &[(true, Some("completed"))];

const fn once(
    point: &'static str,
    query: &'static str,
    ends: &'static [(bool, Option<&'static str>)],
) -> Trial {
    Trial { point, query, twice: false, ends }
}

/// Each write of a record, of calls that wait and of those that do not, with an id of the caller's own and without. What may
/// run twice has its write recorded from the beginning.
const OPERATIONS: &[Trial] = &[
    once("operation-insert:before", "", NOTHING),
    once("operation-insert:before", "?wait=10s&clientRequestId=a", NOTHING),
    once("operation-insert:after", "", FAILED),
    once("operation-insert:after", "?clientRequestId=a", FAILED),
    once("operation-insert:after", "?wait=10s&clientRequestId=a", FAILED),
    once("operation-write:before", "", FAILED),
    once("operation-write:before", "?wait=10s&clientRequestId=a", FAILED),
    once("operation-write:after", "", UNKNOWN),
    once("operation-write:after", "?wait=10s&clientRequestId=a", UNKNOWN),
    once("request-open:before", "?wait=10s&clientRequestId=a", UNKNOWN),
    once("request-open:after", "?wait=10s&clientRequestId=a", UNKNOWN),
    // The agent has the answer to the write.
    once("operation-end:before", "?wait=10s&clientRequestId=a", COMPLETED),
    once("operation-end:after", "?wait=10s&clientRequestId=a", COMPLETED),
    Trial { twice: true, ..once("operation-insert:before", "", NOTHING) },
    Trial { twice: true, ..once("operation-insert:after", "?wait=10s&clientRequestId=a", FAILED) },
    Trial { twice: true, ..once("request-open:before", "?wait=10s&clientRequestId=a", FAILED) },
    Trial { twice: true, ..once("operation-end:before", "?wait=10s&clientRequestId=a", COMPLETED) },
    Trial { twice: true, ..once("operation-end:after", "", COMPLETED) },
];

struct Scene {
    world: World,
    _agent: Agent,
    alice: Caller,
}

impl Scene {
    async fn start(database: Database, more: &[(&str, Value)]) -> Self {
        let mut prepare = World::prepare()
            .database(database)
            .setting("kubesvc.cache.operationWaitMs", OPERATION_MS)
            .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 60);
        for (path, value) in more {
            prepare = prepare.setting(path, value.clone());
        }
        let world = prepare.start().await;
        // The operator dies again and again, and each time soon after the agent is back.
        let agent = world.agent("agent-1").setting("kubernetes.reconnectTimeoutMs", json!(100));
        let agent = agent.setting("clouddriver.backoff.baseDelay", json!(100_000_000));
        let agent = agent.setting("clouddriver.backoff.multiplier", json!(1)).start().await;
        let cluster = world.cluster("spinnaker").await;
        world.let_write("spinnaker").await;
        world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until("prod", State::Active).await;
        let alice = world.caller("alice", EVERYTHING).await;
        let scene = Self { world, _agent: agent, alice };
        scene.until_usable("warm").await;
        scene
    }

    async fn until_usable(&self, name: &str) {
        let create = creates_map(self.world.namespace(), name);
        eventually("an operation", MAX_WAIT, async || {
            let answer = self.alice.try_run(self.world.operator(), "?wait=5s", &create).await?;
            if matches!(answer.json["status"].as_u64(), Some(201 | 409)) {
                Ok(())
            } else {
                Err(answer.to_string())
            }
        })
        .await;
    }

    /// Starts the operator so that it dies there.
    async fn arm(&self, point: &str) {
        self.world.operator().launch_with(&[("KUBESVC_CRASH_AT", point)]);
        self.world.operator().ready().await;
        // The agent is back.
        eventually("the agent's stream of requests", MAX_WAIT, async || {
            let streams = self.world.operator().metric("kubesvc_account_requests_streams").await?;
            if streams == 1 { Ok(()) } else { Err(format!("{streams} streams")) }
        })
        .await;
    }

    async fn until_dead(&self, point: &str) {
        eventually(&format!("the end of the operator at {point}"), MAX_WAIT, async || {
            if self.world.operator().is_running() { Err("it runs".to_owned()) } else { Ok(()) }
        })
        .await;
    }

    async fn records(&self) -> Result<Vec<Value>, String> {
        let answer = self.alice.try_get(self.world.operator(), "/armory/agent/operations?items=100").await?;
        answer.json.as_array().cloned().ok_or_else(|| answer.to_string())
    }

    async fn rows(&self, table: &str) -> Result<i64, String> {
        rows(&self.world, table).await
    }

    async fn until_rows(&self, table: &str, wanted: i64) {
        eventually(&format!("{wanted} rows of {table}"), MAX_WAIT, async || {
            let rows = self.rows(table).await?;
            if rows == wanted { Ok(()) } else { Err(format!("{rows} rows")) }
        })
        .await;
    }
}

/// Number of rows of a table.
async fn rows(world: &World, table: &str) -> Result<i64, String> {
    let statement = match table {
        OPEN => "SELECT count(*) FROM kubesvc_ops",
        _ => "SELECT count(*) FROM kubesvc_ops_history",
    };
    let mut connection = world.open_database().await.map_err(|e| e.to_string())?;
    connection.number(statement).await.map_err(|e| e.to_string())
}

#[test]
fn every_crash_point_of_operations_is_tried() {
    let of_rows = ["operation-rows", "operation-hand", "operation-settle", "operation-purge"];
    let is_ours = |point: &&&str| point.starts_with("operation-") || point.starts_with("request-open:");
    for point in POINTS.iter().filter(is_ours) {
        let is_here = OPERATIONS.iter().any(|trial| trial.point.starts_with(point));
        assert!(is_here || of_rows.iter().any(|name| point.starts_with(name)), "{point}");
    }
}

async fn operations_are_settled_after_a_crash(database: Database) {
    let scene = Scene::start(database, &[]).await;
    let world = &scene.world;
    for (number, trial) in OPERATIONS.iter().enumerate() {
        let name = format!("made-{number}");
        let mode = if trial.twice { "APPLY" } else { "CREATE" };
        let create = deploys_map(world.namespace(), &name, mode);
        scene.until_rows(OPEN, 0).await;
        let known = scene.records().await.map_or(0, |records| records.len());
        scene.arm(trial.point).await;
        let query = trial.query.replace("=a", &format!("=a-{number}"));
        let _ = scene.alice.try_run(world.operator(), &query, &create).await;
        scene.until_dead(trial.point).await;
        world.operator().start().await;
        scene.until_rows(OPEN, 0).await;
        let records = must(scene.records().await);
        let more = &records[..records.len() - known];
        let made = more.iter().find(|record| record["operationType"] == "Deploy");
        let outcome = made.and_then(|record| record["finalOutcome"].as_str());
        let end = (world.config_map_value(&name).await.is_some(), outcome);
        assert!(trial.ends.contains(&end), "{trial:?}: {end:?}, {made:?}");
        if trial.query.contains("clientRequestId") && outcome.is_some() {
            let query = if query.contains("wait=") { query } else { format!("{query}&wait=5s") };
            let again = scene.alice.run(world.operator(), &query, &create).await;
            assert_eq!(again.status, 200, "{trial:?}: {again}");
            let before_send = match outcome {
                Some("completed") => Value::Null,
                outcome => json!(outcome == Some("failed")),
            };
            assert_eq!(again.json["failure"]["beforeSend"], before_send, "{trial:?}: {again}");
            let namespace = world.namespace();
            let writes = world.control_plane().writes();
            let made = writes.iter().filter(|write| write.namespace == namespace && write.name == name);
            assert_eq!(made.count(), usize::from(end.0), "{trial:?}: the same id is not done again");
        }
    }
    scene.until_usable("after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_whose_replica_died_at_a_write_of_their_record_are_settled_with_sqlite() {
    operations_are_settled_after_a_crash(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn operations_whose_replica_died_at_a_write_of_their_record_are_settled_with_mariadb() {
    operations_are_settled_after_a_crash(Database::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_the_record_of_a_write_to_the_accounts_api_loses_that_record_alone() {
    let place = Place::start(false).await;
    let config = place.direct(&place.person("alice", place::EVERYTHING, Some("kubesvc")).await);
    let operator = place.world.operator();
    let usable = async || {
        eventually("the account's API", MAX_WAIT, async || {
            kubectl(&config, &["get", "--raw", "/version"], "").await.ok()
        })
        .await;
    };
    let until_settled = async || {
        eventually("no open row", MAX_WAIT, async || match rows(&place.world, OPEN).await? {
            0 => Ok(()),
            rows => Err(format!("{rows} rows")),
        })
        .await;
    };
    for (number, (point, more)) in
        [("operation-rows:before", 0), ("operation-rows:after", 1)].iter().enumerate()
    {
        until_settled().await;
        let before = must(rows(&place.world, HISTORY).await);
        operator.launch_with(&[("KUBESVC_CRASH_AT", point)]);
        operator.ready().await;
        usable().await;
        let name = format!("{}-{number}", place.world.namespace());
        // Its caller may be answered before.
        let _ = kubectl(&config, &["create", "configmap", &name], "").await;
        eventually(&format!("the end of the operator at {point}"), MAX_WAIT, async || {
            if operator.is_running() { Err("it runs".to_owned()) } else { Ok(()) }
        })
        .await;
        operator.start().await;
        usable().await;
        must(kubectl(&config, &["get", "configmap", &name], "").await.ok());
        until_settled().await;
        assert_eq!(rows(&place.world, HISTORY).await, Ok(before + more), "{point}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_an_operation_is_settled_settles_it_once() {
    let scene = Scene::start(Database::Postgres, &[]).await;
    let world = &scene.world;
    for (number, point) in ["operation-settle:before", "operation-settle:after"].into_iter().enumerate() {
        // Left open by a crash.
        scene.until_rows(OPEN, 0).await;
        scene.arm("operation-insert:after").await;
        let create = creates_map(world.namespace(), &format!("left-{number}"));
        let _ = scene.alice.try_run(world.operator(), "", &create).await;
        scene.until_dead("operation-insert:after").await;
        scene.until_rows(OPEN, 1).await;
        let before = scene.rows(HISTORY).await.unwrap_or_default();
        world.operator().launch_with(&[("KUBESVC_CRASH_AT", point)]);
        scene.until_dead(point).await;
        let is_settled = i64::from(point.ends_with("after"));
        assert_eq!(scene.rows(OPEN).await, Ok(1 - is_settled), "{point}");
        assert_eq!(scene.rows(HISTORY).await, Ok(before + is_settled), "{point}");
        world.operator().start().await;
        scene.until_rows(OPEN, 0).await;
        scene.until_rows(HISTORY, before + 1).await;
        let records = must(scene.records().await);
        let settled = records.iter().find(|record| record["operationType"] == "Deploy").expect("a record");
        assert_eq!(settled["finalOutcome"], "failed", "{point}: {settled}");
        assert_eq!(world.config_map_value(&format!("left-{number}")).await, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_a_person_settles_an_operation_leaves_it_settled_or_not() {
    let scene = Scene::start(Database::MariaDb, &[]).await;
    let world = &scene.world;
    for point in ["operation-hand:before", "operation-hand:after"] {
        scene.until_rows(OPEN, 0).await;
        world.execute("UPDATE kubesvc_ops_history SET final_outcome = 'unknown'").await;
        let newest = must(scene.records().await)[0].clone();
        assert_eq!(newest["finalOutcome"], "unknown", "{newest}");
        let id = newest["operationId"].as_str().expect("an id").to_owned();
        scene.arm(point).await;
        let settle = || {
            let result = json!({"result": format!("op_id: \"{id}\" status: 200")});
            let call = Call::new("POST", "/armory/agent/operationresults").json(&result);
            call.header("authorization", &format!("Bearer {}", scene.alice.token))
        };
        assert!(world.operator().call(settle()).await.is_err(), "{point}");
        scene.until_dead(point).await;
        world.operator().start().await;
        let path = format!("/armory/agent/operations/{id}");
        let found = scene.alice.get(world.operator(), &path).await.json["finalOutcome"].clone();
        let (outcome, again) = if point.ends_with("after") { ("completed", 409) } else { ("unknown", 200) };
        assert_eq!(found, outcome, "{point}");
        let answer = must(world.operator().call(settle()).await);
        assert_eq!(answer.status, again, "{point}: {answer}");
        let found = scene.alice.get(world.operator(), &path).await.json["finalOutcome"].clone();
        assert_eq!(found, "completed", "{point}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_the_history_is_purged_loses_only_what_is_too_much() {
    const KEPT: i64 = 10;
    let scene = Scene::start(Database::Sqlite, &[("kubesvc.operations.history.maxRows", json!(KEPT))]).await;
    let world = &scene.world;
    for point in ["operation-purge:before", "operation-purge:after"] {
        for number in 0..5 {
            scene.until_usable(&format!("{}-{number}", point.replace(':', "-"))).await;
        }
        must(until_written(world.operator()).await);
        for number in scene.rows(HISTORY).await.unwrap_or_default()..KEPT + 5 {
            scene.until_usable(&format!("more-{number}")).await;
        }
        must(until_written(world.operator()).await);
        let total = eventually("rows that are too many", MAX_WAIT, async || {
            scene.until_rows(OPEN, 0).await;
            let rows = scene.rows(HISTORY).await?;
            if rows > KEPT { Ok(rows) } else { Err(format!("{rows} rows")) }
        })
        .await;
        let newest = must(scene.records().await)[0]["operationId"].clone();
        // The leader trims the history when it begins.
        world.operator().launch_with(&[("KUBESVC_CRASH_AT", point)]);
        scene.until_dead(point).await;
        let left = if point.ends_with("after") { KEPT } else { total };
        assert_eq!(scene.rows(HISTORY).await, Ok(left), "{point}");
        world.operator().start().await;
        scene.until_rows(HISTORY, KEPT).await;
        let records = must(scene.records().await);
        assert_eq!(records[0]["operationId"], newest, "{point}: the newest stay");
    }
}
