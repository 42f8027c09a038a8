//! Rows of open operations, who settles them, and what people settle by hand.

use super::*;
use kubesvc_runtime::background_tasks::{BackgroundTasks, TaskRegistry};

fn never() -> Arc<ScriptedCluster> {
    ScriptedCluster::waiting(|_, _| std::future::pending::<Answered>().boxed())
}

fn no_wait(verb: &str) -> OperationCall {
    OperationCall { wait: None, ..call(verb) }
}

/// A deploy, which reads before it writes, and may run twice.
fn deploy() -> String {
    deploy_by("APPLY")
}

/// A deploy, which reads before it writes, and may run only once.
fn deploy_once() -> String {
    deploy_by("RECREATE")
}

fn deploy_by(mode: &str) -> String {
    let data = "{\\\"apiVersion\\\": \\\"v1\\\", \\\"kind\\\": \\\"ConfigMap\\\", \\\"metadata\\\": {\\\"name\\\": \\\"c\\\", \\\"namespace\\\": \\\"n\\\"}}";
    format!("deploy {{ manifest {{ data: \"{data}\" }} mode: {mode} }}")
}

/// Waits until nothing runs at a replica.
async fn until_idle(replica: &Replica) {
    while replica.operations.known.running() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the open row of an operation is as wanted.
async fn until_open(replica: &Replica, id: &str, holds: impl Fn(&OpenOperation) -> bool) -> OpenOperation {
    loop {
        if let Some(open) = replica.rows.open.lock().get(id).filter(|open| holds(open)).cloned() {
            return open;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A replica that is writing the end of an operation whose caller has its answer, and the operation's id.
async fn writing_an_end() -> (Replica, String) {
    let rows = Arc::<MemoryRows>::default();
    let slow = Arc::clone(&rows);
    let cluster = ScriptedCluster::new(move |_, _| {
        *slow.next_takes.lock() = 2 * END_TIMEOUT;
        done()
    });
    let replica = Replica::over(cluster, rows, "r-0");
    let id = replica.submit(call(&scale())).await.expect("it is begun").id;
    assert!(replica.rows.history.lock().is_empty(), "its end is being written");
    (replica, id)
}

#[tokio::test(start_paused = true)]
async fn an_operation_nobody_waits_for_is_committed_before_its_call_is_answered() {
    let replica = Replica::new(never());
    let id = replica.submit(no_wait(&scale())).await.expect("it is begun").id;
    assert!(replica.rows.open.lock().contains_key(&id));
    let open = until_open(&replica, &id, |open| open.agent_boot_id.is_some()).await;
    assert_eq!(open.state, OperationState::Sent);
    assert_eq!(open.last_write, replica.cluster.asked().pop().map(|asked| asked.request_id));
    assert_eq!(open.agent_boot_id.as_deref(), Some("boot"));
}

#[tokio::test(start_paused = true)]
async fn an_operation_whose_caller_hangs_up_before_its_row_is_committed_is_done() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    *replica.rows.next_takes.lock() = Duration::from_secs(3);
    let hung_up = timeout(Duration::from_secs(1), replica.submit(repeated(&scale(), None))).await;
    assert!(hung_up.is_err(), "its row is being committed");
    let record =
        timeout(MINUTE, replica.history(&checks::derived_id("uid-a", "alice", "x"))).await.expect("it ends");
    assert_eq!(record.outcome, OperationOutcome::Completed);
    until_idle(&replica).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_of_an_operation_with_a_row_is_recorded_before_it_is_sent() {
    let rows = Arc::<MemoryRows>::default();
    let seen = Arc::clone(&rows);
    let cluster = ScriptedCluster::new(move |_, asked| {
        let recorded =
            seen.open.lock().values().any(|open| open.last_write.as_ref() == Some(&asked.request_id));
        Ok((if recorded { 200 } else { 500 }, json!({})))
    });
    let replica = Replica::over(cluster, rows, "r-0");
    let id = replica.submit(no_wait(&scale())).await.expect("it is begun").id;
    assert_eq!(replica.history(&id).await.outcome, OperationOutcome::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_says_that_a_write_is_sent_is_replaced_by_none_that_says_less() {
    let rows = Arc::<MemoryRows>::default();
    let seen = Arc::clone(&rows);
    let cluster = ScriptedCluster::waiting(move |_, asked: Asked| {
        let (seen, is_read, id) = (Arc::clone(&seen), asked.line.starts_with("GET"), Some(asked.request_id));
        async move {
            if is_read {
                tokio::time::sleep(Duration::from_millis(100)).await;
                return Ok((404, json!({"message": "there is none"})));
            }
            let is_recorded = seen.open.lock().values().any(|open| open.last_write == id);
            Ok((if is_recorded { 201 } else { 500 }, json!({})))
        }
        .boxed()
    });
    let replica = Replica::over(cluster, rows, "r-0");
    let id = replica.submit(no_wait(&deploy_once())).await.expect("it is begun").id;
    // The row of another operation holds up what is recorded next.
    *replica.rows.next_takes.lock() = Duration::from_secs(3);
    replica.submit(no_wait(&scale())).await.expect("it is begun");
    assert_eq!(replica.history(&id).await.outcome, OperationOutcome::Completed);
}

/// A call with an id of its caller's own, which is always the same.
fn repeated(verb: &str, wait: Option<Duration>) -> OperationCall {
    OperationCall { client_request_id: Some("x".to_owned()), wait, ..call(verb) }
}

#[tokio::test(start_paused = true)]
async fn the_row_of_an_operation_says_how_far_it_is_whether_or_not_it_is_waited_for() {
    for (verb, state, process) in
        [(deploy(), OperationState::Received, None), (scale(), OperationState::Sent, Some("boot"))]
    {
        let replica = Replica::new(never());
        let id = replica.submit(repeated(&verb, Some(Duration::ZERO))).await.expect("it is begun").id;
        assert!(replica.rows.open.lock().contains_key(&id), "{verb}");
        while replica.cluster.asked().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let as_expected =
            |open: &OpenOperation| (open.state, open.agent_boot_id.as_deref()) == (state, process);
        let open = timeout(MINUTE, until_open(&replica, &id, as_expected)).await.expect(&verb);
        assert_eq!(replica.submit(repeated(&verb, None)).await.expect("it is known").id, id);
        assert_eq!(replica.rows.open.lock().get(&id), Some(&open), "{verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_has_its_row_before_its_first_request_too() {
    let rows = Arc::<MemoryRows>::default();
    let seen = Arc::clone(&rows);
    let cluster = ScriptedCluster::new(move |_, _| {
        let states: Vec<_> =
            seen.open.lock().values().map(|open| (open.state, open.last_write.clone())).collect();
        assert_eq!(states, [(OperationState::Received, None)]);
        done()
    });
    let replica = Replica::over(cluster, rows, "r-0");
    let id = replica.submit(call(&format!("get {{ {WEB} }}"))).await.expect("it is begun").id;
    let outcome = replica.rows.history.lock().get(&id).map(|record| record.outcome);
    assert_eq!(outcome, Some(OperationOutcome::Completed));
}

#[tokio::test(start_paused = true)]
async fn an_operation_is_committed_as_often_as_its_outcome_needs() {
    let delete_one = format!("delete {{ {WEB} }}");
    let json_patch = format!("patch {{ {WEB} type: JSON body {{ data: \"[]\" }} }}");
    for (verb, commits) in [
        (scale(), 2),
        (deploy(), 2),
        (format!("restart_rollout {{ {WEB} }}"), 2),
        (format!("get {{ {WEB} }}"), 2),
        (json_patch, 3),
        (deploy_once(), 3),
        (deploy_by("CREATE"), 3),
        (delete_one, 2),
        (delete_two(), 4),
    ] {
        let replica = Replica::new(ScriptedCluster::new(|_, asked| match asked.line.as_str() {
            line if line.contains("labelSelector") || line.contains("/deployments/a") => {
                of_two_objects(asked)
            }
            line if line.contains("/deployments/b") => of_two_objects(asked),
            line if line.starts_with("GET") && line.contains("configmaps") => Ok((404, json!({}))),
            line if line.starts_with("POST") => Ok((201, json!({}))),
            _ => done(),
        }));
        let submitted = timeout(MINUTE, replica.submit(call(&verb))).await.expect(&verb).expect(&verb);
        assert!(submitted.ended.expect("it ended").status < 500, "{verb}: {:?}", replica.cluster.lines());
        assert_eq!(replica.rows.writes.load(Ordering::Relaxed), commits, "{verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_run_twice_has_the_id_of_its_first_write_in_its_row_and_each_later_one_is_recorded() {
    let rows = Arc::<MemoryRows>::default();
    let seen = Arc::clone(&rows);
    let cluster = ScriptedCluster::new(move |number, asked| {
        let open = seen.open.lock().values().next().cloned().expect("its row is there");
        assert_eq!(open.last_write.as_ref(), Some(&asked.request_id), "number {number}");
        let state = if number == 1 { OperationState::Received } else { OperationState::Sent };
        assert_eq!(open.state, state, "number {number}");
        if number < 3 { Err(RequestError::unknown("it is gone")) } else { done() }
    });
    let replica = Replica::over(cluster, rows, "r-0");
    assert_eq!(replica.run(&scale()).await.status, 200);
    let ids: std::collections::HashSet<_> =
        replica.cluster.asked().into_iter().map(|asked| asked.request_id).collect();
    assert_eq!(ids.len(), 3, "each has its own");
}

#[tokio::test(start_paused = true)]
async fn what_may_run_twice_and_was_never_seen_to_write_is_settled_by_what_the_agents_have() {
    for (recalled, outcome) in [
        (Ok(200), OperationOutcome::Completed),
        (Ok(409), OperationOutcome::Failed),
        (Ok(504), OperationOutcome::Unknown),
        (Err(RequestError::unknown("no agent has it")), OperationOutcome::Failed),
    ] {
        let has_answer = recalled.is_ok();
        let dead = Replica::new(never());
        let id = dead.submit(no_wait(&deploy())).await.expect("it is begun").id;
        let open = dead.rows.open.lock().get(&id).cloned().expect("its row is committed");
        assert_eq!(open.state, OperationState::Received);
        let leader = Replica::over(never(), Arc::clone(&dead.rows), "r-1");
        *leader.cluster.recalled.lock() = Some(recalled);
        leader.operations.look_at_open_rows().await.expect("the database is there");
        let record = leader.history(&id).await;
        assert_eq!(record.outcome, outcome);
        assert_eq!(record.answered.is_some(), has_answer);
        if has_answer {
            assert_eq!(record.request_id, open.last_write);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_operation_is_recorded_before_its_caller_is_answered() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    let id = replica.submit(call(&scale())).await.expect("it is begun").id;
    let outcome = replica.rows.history.lock().get(&id).map(|record| record.outcome);
    assert_eq!(outcome, Some(OperationOutcome::Completed));
    assert!(replica.rows.open.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_end_that_cannot_be_recorded_is_kept_and_its_caller_is_answered() {
    for (is_away, takes) in [(true, Duration::ZERO), (false, MINUTE)] {
        let rows = Arc::<MemoryRows>::default();
        let away = Arc::clone(&rows);
        let cluster = ScriptedCluster::new(move |_, _| {
            away.is_away.store(is_away, Ordering::Relaxed);
            *away.next_takes.lock() = takes;
            done()
        });
        let replica = Replica::over(cluster, rows, "r-0");
        let submitted = timeout(MINUTE / 2, replica.submit(call(&scale()))).await.expect("it is answered");
        let submitted = submitted.expect("it is begun");
        assert_eq!(submitted.ended.expect("it ended").status, 200);
        assert!(replica.rows.open.lock().contains_key(&submitted.id));
        assert!(replica.operations.rows.is_unended(&submitted.id), "nobody else ends it here");
        replica.rows.is_away.store(false, Ordering::Relaxed);
        assert_eq!(replica.history(&submitted.id).await.outcome, OperationOutcome::Completed);
        assert!(replica.rows.open.lock().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_is_not_sent_while_it_is_being_recorded() {
    let replica = Replica::new(ScriptedCluster::waiting(|_, asked: Asked| {
        async move {
            if !asked.line.starts_with("GET") {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok((404, json!({"message": "there is none"})))
        }
        .boxed()
    }));
    let id = replica.submit(repeated(&deploy_once(), Some(Duration::ZERO))).await.expect("it is begun").id;
    *replica.rows.next_takes.lock() = Duration::from_secs(3);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(replica.cluster.lines().len(), 1, "its write is being recorded");
    assert_eq!(replica.submit(repeated(&deploy_once(), None)).await.expect("it is known").id, id);
    let state = replica.rows.open.lock().get(&id).map(|open| open.state);
    assert_eq!(state, Some(OperationState::Received));
    until_open(&replica, &id, |open| open.state == OperationState::Sent).await;
    while replica.cluster.lines().len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_database_a_write_that_must_be_recorded_is_not_sent() {
    let rows = Arc::<MemoryRows>::default();
    let away = Arc::clone(&rows);
    let cluster = ScriptedCluster::new(move |_, asked: &Asked| {
        away.is_away.store(asked.line.starts_with("GET"), Ordering::Relaxed);
        Ok((404, json!({"message": "there is none"})))
    });
    let replica = Replica::over(cluster, rows, "r-0");
    let id = replica.submit(no_wait(&deploy_once())).await.expect("it is begun").id;
    until_idle(&replica).await;
    assert_eq!(replica.cluster.lines().len(), 1, "{:?}", replica.cluster.lines());
    replica.rows.is_away.store(false, Ordering::Relaxed);
    assert_eq!(replica.history(&id).await.outcome, OperationOutcome::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_given_up_does_not_count_as_waiting() {
    let replica = Replica::new(never());
    replica.rows.is_away.store(true, Ordering::Relaxed);
    assert!(replica.submit(no_wait(&scale())).await.is_err(), "its row is needed");
    assert_eq!(replica.operations.rows.len(), 0);
    assert_eq!(replica.operations.metrics.rows_waiting.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_person_ends_what_is_open_and_those_who_wait_get_that() {
    let replica = Replica::new(never());
    let waiting = OperationCall { client_request_id: Some("x".to_owned()), ..call(&scale()) };
    let id = checks::derived_id("uid-a", "alice", "x");
    let result = result_from_text(&format!("op_id: \"{id}\" status: 409 message: \"somebody did\""))
        .expect("a result");
    let settle = async {
        while replica.cluster.lines().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        replica.operations.settle_by_hand(&result, &caller()).await
    };
    let (submitted, settled) = tokio::join!(replica.submit(waiting), settle);
    settled.expect("it was open");
    let ended = submitted.expect("it was begun").ended.expect("it ended");
    assert_eq!(ended.status, 409);
    assert_eq!(ended.failure.as_ref().map(|failure| failure.message.as_str()), Some("somebody did"));
    assert_eq!(replica.history(&id).await.outcome, OperationOutcome::Failed);
    let again = replica.operations.settle_by_hand(&result, &caller()).await.expect_err("it has a result");
    assert_eq!(again.status().as_u16(), 409);
    let unknown = result_from_text("op_id: \"01J00000000000000000000000\" status: 200").expect("a result");
    assert_eq!(replica.operations.settle_by_hand(&unknown, &caller()).await.expect_err("none").status(), 404);
    replica.access.denied.lock().push("update");
    assert_eq!(
        replica.operations.settle_by_hand(&result, &caller()).await.expect_err("denied").status(),
        403
    );
    assert_eq!(replica.audit.refusals(), ["settle a 409", "settle - 404", "settle a 403"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_replica_left_open_is_settled_by_its_last_write() {
    for (recalled, outcome, code, how) in [
        (Ok(200), OperationOutcome::Completed, 200, "its answer was recalled"),
        (Ok(422), OperationOutcome::Failed, 422, "its answer was recalled"),
        (Err(RequestError::unknown("gone")), OperationOutcome::Unknown, 504, "no answer decides it"),
    ] {
        let dead = Replica::new(never());
        let id = dead.submit(no_wait(&scale())).await.expect("it is begun").id;
        until_open(&dead, &id, |open| open.agent_boot_id.is_some()).await;
        let leader = Replica::over(never(), Arc::clone(&dead.rows), "r-1");
        *leader.cluster.recalled.lock() = Some(recalled);
        leader.operations.look_at_open_rows().await.expect("the database is there");
        let record = leader.history(&id).await;
        assert_eq!(record.outcome, outcome);
        assert!(leader.rows.open.lock().is_empty());
        leader.operations.look_at_open_rows().await.expect("the database is there");
        let lines = leader.audit.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        let reason = format!("{}, settled for replica r-0: {how}", outcome.as_str());
        for (field, value) in [
            ("message", json!("write")),
            ("target", json!("audit")),
            ("operationId", json!(id)),
            ("requestId", json!(record.request_id)),
            ("principal", json!("alice")),
            ("via", json!("record")),
            ("account", json!("a")),
            ("uid", json!("uid-a")),
            ("agent", json!("agent")),
            ("verb", json!("Scale")),
            ("code", json!(code)),
            ("reason", json!(reason)),
        ] {
            assert_eq!(lines[0][field], value, "{field}: {}", lines[0]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_replica_left_open_waits_for_an_agent_that_is_away_and_for_a_busy_one() {
    for passing in [
        RequestError::no_agent("a", &"z".into(), false),
        RequestError::new(Kind::Timeout, "ask again"),
        RequestError::new(Kind::TooMany, "requests"),
    ] {
        let dead = Replica::new(never());
        let id = dead.submit(no_wait(&scale())).await.expect("it is begun").id;
        until_open(&dead, &id, |open| open.agent_boot_id.is_some()).await;
        let leader = Replica::over(never(), Arc::clone(&dead.rows), "r-1");
        *leader.cluster.recalled.lock() = Some(Err(passing.clone()));
        leader.operations.look_at_open_rows().await.expect("the database is there");
        assert!(leader.rows.open.lock().contains_key(&id), "{passing}");
        *leader.cluster.recalled.lock() = Some(Ok(200));
        leader.operations.look_at_open_rows().await.expect("the database is there");
        assert_eq!(leader.history(&id).await.outcome, OperationOutcome::Completed, "{passing}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_write_and_each_connection_that_is_settled_has_its_line_and_a_read_has_none() {
    let leader = Replica::over(never(), Arc::default(), "r-1");
    let left_open = |id: &str, verb, change: fn(&mut OpenOperation)| {
        let mut open = records::open(fakes::received(id, verb, "a", now_ms()), i64::MAX, true);
        change(&mut open);
        leader.rows.open.lock().insert(id.to_owned(), open);
    };
    left_open("1-received", "Deploy", |_| {});
    left_open("2-read", "Get", |_| {});
    // A connection through the API of accounts is its own operation.
    left_open("3-exec", "Connect", |open| {
        open.state = OperationState::Sent;
        open.record.request_id = Some("3-exec".to_owned());
    });
    leader.operations.look_at_open_rows().await.expect("the database is there");
    assert!(leader.rows.open.lock().is_empty());
    let mut lines = leader.audit.lines();
    lines.sort_by_key(|line| line["reason"].to_string());
    let [received, connection] = lines.as_slice() else { unreachable!("{lines:?}") };
    assert_eq!((&received["message"], &received["verb"]), (&json!("write"), &json!("Deploy")));
    assert_eq!((&received["operationId"], &received["code"]), (&json!("1-received"), &json!(500)));
    assert_eq!(received["reason"], "failed, settled for replica r-0: nothing was sent");
    assert_eq!((&connection["message"], &connection["verb"]), (&json!("stream-end"), &json!("Connect")));
    assert_eq!((&connection["requestId"], connection.get("operationId")), (&json!("3-exec"), None));
    assert_eq!(connection["reason"], "unknown, settled for replica r-0: the connection is gone");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_does_not_say_which_agent_was_asked_is_settled_by_what_the_agents_have() {
    let dead = Replica::new(never());
    let id = dead.submit(no_wait(&scale())).await.expect("it is begun").id;
    let open = until_open(&dead, &id, |open| open.agent_boot_id.is_some()).await;
    let record = OperationRecord { sent: None, processed: None, ..open.record.clone() };
    dead.rows.open.lock().insert(id.clone(), OpenOperation { agent_boot_id: None, record, ..open });
    let leader = Replica::over(never(), Arc::clone(&dead.rows), "r-1");
    *leader.cluster.recalled.lock() = Some(Ok(422));
    leader.operations.look_at_open_rows().await.expect("the database is there");
    let record = leader.history(&id).await;
    assert_eq!(record.outcome, OperationOutcome::Failed);
    assert_eq!(record.answered.map(|answer| answer.status), Some(422));
    assert_eq!(record.sent.map(|sent| sent.id).as_deref(), Some("agent"));
    assert_eq!(leader.audit.lines()[0]["agent"], "agent");
    let again = leader.submit(call(&format!("op_id: \"{id}\" {}", scale()))).await.expect("it is known");
    let ended = again.ended.expect("it ended");
    assert_eq!((ended.status, ended.before_send), (422, false));
}

#[tokio::test(start_paused = true)]
async fn what_begins_elsewhere_is_settled_unless_its_end_waits_here() {
    let rows = Arc::<MemoryRows>::default();
    let [one, leader] = ["r-0", "r-1"].map(|id| Replica::over(never(), Arc::clone(&rows), id));
    let began = records::received(&records::Beginning {
        id: "01J00000000000000000000000",
        verb: "Patch",
        account: "a",
        account_uid: "uid-a",
        principal: "alice",
        replica_id: &"r-0".into(),
        dry_run: false,
        now_ms: 0,
        request_id: None,
    });
    let (id, open) = (began.operation_id.clone(), records::open(began.clone(), 1, false));
    let last_write = Some(id.clone());
    one.operations.begun(OpenOperation { state: OperationState::Sent, last_write, ..open });
    until_open(&one, &id, |_| true).await;
    *one.cluster.recalled.lock() = Some(Ok(500));
    one.operations.look_at_open_rows().await.expect("the database is there");
    assert!(rows.open.lock().contains_key(&id), "it is to be ended here");
    *leader.cluster.recalled.lock() = Some(Ok(201));
    leader.operations.look_at_open_rows().await.expect("the database is there");
    assert_eq!(leader.history(&id).await.outcome, OperationOutcome::Completed);
}

#[tokio::test(start_paused = true)]
async fn an_operation_whose_agent_may_come_back_stays_open() {
    let dead = Replica::new(never());
    let id = dead.submit(no_wait(&scale())).await.expect("it is begun").id;
    until_open(&dead, &id, |open| open.agent_boot_id.is_some()).await;
    let leader = Replica::over(never(), Arc::clone(&dead.rows), "r-1");
    let away = RequestError::new(Kind::Timeout, "it is away");
    *leader.cluster.recalled.lock() = Some(Err(away));
    leader.operations.look_at_open_rows().await.expect("the database is there");
    assert!(leader.rows.open.lock().contains_key(&id));
    let own = dead.operations.look_at_open_rows().await;
    assert!(own.is_ok() && dead.rows.open.lock().contains_key(&id), "its replica runs it");
}

#[tokio::test(start_paused = true)]
async fn records_of_accounts_that_may_not_be_read_are_left_out() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    let id = replica.submit(call(&scale())).await.expect("it is begun").id;
    let records = |caller: OperationCaller| {
        let operations = Arc::clone(&replica.operations);
        async move { operations.records(None, (0, 10), &caller).await.expect("they are read") }
    };
    assert_eq!(records(caller()).await.len(), 1, "what was just done too");
    let narrowed = OperationCaller { accounts: Some(vec!["b".to_owned()]), ..caller() };
    assert!(records(narrowed.clone()).await.is_empty());
    assert_eq!(replica.operations.record(&id, &narrowed).await.expect_err("narrowed").status(), 403);
    let mut anew = account("a", "ACTIVE", "Open");
    (anew.metadata.uid, anew.metadata.resource_version) = (Some("uid-anew".to_owned()), Some("2".to_owned()));
    replica.operations.accounts.show(anew);
    replica.access.asked.lock().clear();
    records(caller()).await;
    let asked: Vec<_> = replica.access.asked.lock().iter().map(|access| access.object.clone()).collect();
    assert_eq!(
        asked,
        [""],
        "of an account that had the name before, all may be read by those who may read all"
    );
    replica.access.denied.lock().push("get");
    assert!(records(caller()).await.is_empty());
    let of_one = replica.operations.records(Some("a"), (0, 10), &caller()).await;
    assert_eq!(of_one.expect_err("denied").status().as_u16(), 403);
    assert_eq!(replica.operations.record("x", &caller()).await.expect_err("none").status(), 404);
    assert_eq!(replica.audit.refusals(), ["get a 403", "list a 403"], "an unknown id is refused to nobody");
    replica.rows.is_away.store(true, Ordering::Relaxed);
    assert_eq!(replica.operations.record("x", &caller()).await.expect_err("away").status(), 503);
    assert!(replica.operations.records(None, (0, 10), &caller()).await.is_err());
    assert_eq!(replica.audit.refusals()[2..], ["get - 503", "list - 503"]);
}

#[tokio::test(start_paused = true)]
async fn an_operation_whose_end_is_being_written_is_listed() {
    let (replica, id) = writing_an_end().await;
    let records = replica.operations.records(None, (0, 10), &caller()).await.expect("they are read");
    assert_eq!(records.into_iter().map(|record| record.operation_id).collect::<Vec<_>>(), [id]);
}

#[tokio::test(start_paused = true)]
async fn an_operation_whose_end_is_being_written_has_a_result() {
    let (replica, id) = writing_an_end().await;
    let result = result_from_text(&format!("op_id: \"{id}\" status: 200")).expect("a result");
    let refused = replica.operations.settle_by_hand(&result, &caller()).await.expect_err("it has one");
    assert_eq!(refused.status(), 409, "{refused}");
}

#[tokio::test(start_paused = true)]
async fn without_the_database_an_operation_with_several_writes_sends_no_more() {
    let rows = Arc::<MemoryRows>::default();
    let away = Arc::clone(&rows);
    let cluster = ScriptedCluster::new(move |_, asked| {
        away.is_away.fetch_or(asked.line.starts_with("DELETE"), Ordering::Relaxed);
        of_two_objects(asked)
    });
    let replica = Replica::over(cluster, rows, "r-0");
    let submitted = replica.submit(call(&delete_two())).await.expect("it is begun");
    let ended = submitted.ended.expect("it ended");
    let class = ended.failure.as_ref().map(|failure| failure.class);
    assert_eq!((ended.status, class), (504, Some(OutcomeClass::OutcomeUnknown)), "{ended:?}");
    assert_eq!(deletes(&replica), 1, "{:?}", replica.cluster.lines());
    replica.rows.is_away.store(false, Ordering::Relaxed);
    assert_eq!(replica.history(&submitted.id).await.outcome, OperationOutcome::Unknown);
}

#[tokio::test(start_paused = true)]
async fn what_a_person_settled_elsewhere_is_not_open_again_and_its_replica_writes_no_more() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let here = Replica::new(ScriptedCluster::waiting(move |_, asked: Asked| {
        let gate = Arc::clone(&opened);
        async move {
            if asked.line.starts_with("DELETE") {
                gate.acquire().await.expect("it is never closed").forget();
            }
            of_two_objects(&asked)
        }
        .boxed()
    }));
    let id = here.submit(no_wait(&delete_two())).await.expect("it is begun").id;
    while deletes(&here) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let there = Replica::over(never(), Arc::clone(&here.rows), "r-1");
    let result = result_from_text(&format!("op_id: \"{id}\" status: 409")).expect("a result");
    there.operations.settle_by_hand(&result, &caller()).await.expect("it is open");
    gate.add_permits(2);
    until_idle(&here).await;
    here.operations.flush().await;
    assert_eq!(deletes(&here), 1, "it has ended");
    assert!(here.rows.open.lock().is_empty());
    let record = here.history(&id).await;
    assert_eq!(record.outcome, OperationOutcome::Failed);
    assert_eq!(record.answered.map(|answer| answer.status), Some(409), "a later word is ignored");
}

#[tokio::test(start_paused = true)]
async fn what_was_settled_as_never_sent_is_not_sent_when_its_replica_wakes() {
    // What may run twice is not recorded again before its first write, but for a replica that may have slept.
    for (verb, slept) in [(deploy_once(), Duration::ZERO), (deploy(), Duration::from_secs(1))] {
        sleeper_sends_nothing(&verb, slept).await;
    }
}

async fn sleeper_sends_nothing(verb: &str, slept: Duration) {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let sleeper = Replica::new(ScriptedCluster::waiting(move |_, _| {
        let gate = Arc::clone(&opened);
        async move {
            gate.acquire().await.expect("it is never closed").forget();
            Ok((404, json!({"message": "there is none"})))
        }
        .boxed()
    }));
    let id = sleeper.submit(no_wait(verb)).await.expect("it is begun").id;
    let leader = Replica::over(never(), Arc::clone(&sleeper.rows), "r-1");
    leader.operations.look_at_open_rows().await.expect("the database is there");
    assert_eq!(leader.history(&id).await.outcome, OperationOutcome::Failed);
    tokio::time::sleep(slept).await;
    gate.add_permits(2);
    until_idle(&sleeper).await;
    sleeper.operations.flush().await;
    let lines = sleeper.cluster.lines();
    assert!(matches!(lines.as_slice(), [read] if read.starts_with("GET")), "nothing was done: {lines:?}");
    let known = sleeper.operations.known.get(&id).expect("it is known");
    let ended = known.subscribe().ended().await.expect("it ended");
    assert_eq!(*ended, submission::of_record(&leader.history(&id).await), "it ends as it is recorded");
    assert_eq!(ended.status, 500);
    assert!(sleeper.rows.open.lock().is_empty());
    assert_eq!(sleeper.audit.lines(), Vec::<Value>::new(), "the one who settled it has written its line");
}

#[tokio::test(start_paused = true)]
async fn what_the_former_process_of_a_replica_left_open_is_settled_once_it_runs_again() {
    let rows = Arc::<MemoryRows>::default();
    let left_open = |id: &str, verb, replica_id: &str, start_time_ms, change: fn(&mut OpenOperation)| {
        let mut record = fakes::received(id, verb, "a", start_time_ms);
        if let Some(received) = &mut record.received {
            replica_id.clone_into(&mut received.id);
        }
        let mut open = records::open(record, i64::MAX, false);
        change(&mut open);
        rows.open.lock().insert(id.to_owned(), open);
    };
    let sent: fn(&mut OpenOperation) = |open| open.state = OperationState::Sent;
    left_open("1-exec", "Connect", "r-0", 0, sent);
    left_open("2-scale", "Scale", "r-0", 0, |_| {});
    left_open("3-patch", "Patch", "r-0", 0, |open| {
        open.state = OperationState::Sent;
        open.last_write = Some("3-patch".to_owned());
    });
    left_open("4-of-another-replica", "Connect", "r-1", 0, sent);
    left_open("5-of-this-process", "Connect", "r-0", now_ms() + 60_000, sent);
    let again = Replica::over(never(), Arc::clone(&rows), "r-0");
    let away = RequestError::new(Kind::Timeout, "it is away");
    *again.cluster.recalled.lock() = Some(Err(away));
    let background = BackgroundTasks::new(TaskTracker::new(), again.stop.clone(), TaskRegistry::default());
    again.operations.settle_former_process(&background);
    assert_eq!(again.history("1-exec").await.outcome, OperationOutcome::Unknown);
    assert_eq!(again.history("2-scale").await.outcome, OperationOutcome::Failed);
    assert!(rows.open.lock().contains_key("3-patch"), "its agent may come back");
    *again.cluster.recalled.lock() = Some(Ok(201));
    assert_eq!(again.history("3-patch").await.outcome, OperationOutcome::Completed);
    let open: Vec<_> = rows.open.lock().keys().cloned().collect();
    assert_eq!(open, ["4-of-another-replica", "5-of-this-process"]);
    while again.audit.lines().len() < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let line = |line: &Value| format!("{} {}", line["message"], line["reason"]).replace('"', "");
    let mut lines: Vec<_> = again.audit.lines().iter().map(line).collect();
    lines.sort();
    let expected = [
        "stream-end unknown, settled for replica r-0: the connection is gone",
        "write completed, settled for replica r-0: its answer was recalled",
        "write failed, settled for replica r-0: nothing was sent",
    ];
    assert_eq!(lines, expected);
}
