//! The same id is the same operation, at this replica, at another one, and later.

use super::*;

fn repeated(verb: &str, id: &str) -> OperationCall {
    OperationCall { client_request_id: Some(id.to_owned()), ..call(verb) }
}

fn unawaited(verb: &str, id: &str) -> OperationCall {
    OperationCall { wait: None, ..repeated(verb, id) }
}

/// A patch that may be made only once.
fn json_patch(name: &str) -> String {
    let target = WEB.replace("\"web\"", &format!("{name:?}"));
    format!("patch {{ {target} type: JSON body {{ data: \"[]\" }} }}")
}

#[tokio::test(start_paused = true)]
async fn the_same_id_is_the_same_operation_with_its_answer() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    let first = replica.submit(repeated(&scale(), "x")).await.expect("it is begun");
    let second = replica.submit(repeated(&scale(), "x")).await.expect("it is known");
    assert_eq!(first.id, second.id);
    assert_eq!(first.ended, second.ended);
    assert_eq!(replica.cluster.lines().len(), 1);
    let other = format!("restart_rollout {{ {WEB} }}");
    let refused = replica.submit(repeated(&other, "x")).await.expect_err("another verb");
    assert_eq!(refused.status().as_u16(), 409, "{refused}");
    let other = scale().replace("\"web\"", "\"api\"");
    assert!(replica.submit(repeated(&other, "x")).await.is_err(), "another object");
    assert_eq!(replica.submit(repeated(&scale(), "y")).await.expect("it is begun").ended, first.ended);
    assert_eq!(replica.cluster.lines().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn another_replica_knows_an_operation_by_its_row() {
    let here = Replica::new(ScriptedCluster::new(|_, _| done()));
    let first = here.submit(repeated(&scale(), "x")).await.expect("it is begun");
    here.history(&first.id).await;
    let rows = Arc::clone(&here.rows);
    let there = Replica::over(ScriptedCluster::new(|_, _| done()), rows, "r-1");
    let second = there.submit(repeated(&scale(), "x")).await.expect("it is known");
    assert_eq!(second.ended.expect("it ended").status, 200);
    assert!(there.cluster.lines().is_empty());
    let other = format!("restart_rollout {{ {WEB} }}");
    assert_eq!(there.submit(repeated(&other, "x")).await.expect_err("another verb").status(), 409);
    let other = scale().replace("\"web\"", "\"api\"");
    let refused = there.submit(repeated(&other, "x")).await.expect_err("another object");
    assert_eq!(refused.status(), 409);
    assert!(!refused.to_string().contains("Scale"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn an_id_belongs_to_its_target_also_if_nothing_was_written() {
    let here = Replica::new(ScriptedCluster::new(|_, _| Ok((404, json!({"reason": "NotFound"})))));
    let get = format!("get {{ {WEB} }}");
    let first = here.submit(repeated(&get, "x")).await.expect("it is begun");
    here.history(&first.id).await;
    let there = Replica::over(ScriptedCluster::new(|_, _| done()), Arc::clone(&here.rows), "r-1");
    assert!(there.submit(repeated(&get, "x")).await.is_ok(), "it is known");
    let other = get.replace("\"web\"", "\"api\"");
    assert_eq!(there.submit(repeated(&other, "x")).await.expect_err("another object").status(), 409);
}

#[tokio::test(start_paused = true)]
async fn an_id_belongs_to_the_account_that_had_the_name_and_a_row_without_a_uid_to_any() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    let id = checks::derived_id("uid-a", "alice", "x");
    for (uid, expected) in
        [(Some("uid-earlier"), Err(409)), (Some("uid-a"), Ok(Some(200))), (None, Ok(Some(200)))]
    {
        let record = OperationRecord {
            account_uid: uid.map(str::to_owned),
            outcome: OperationOutcome::Completed,
            ..fakes::received(&id, "Scale", "a", 0)
        };
        replica.rows.history.lock().insert(id.clone(), record);
        let submitted = replica.submit(repeated(&scale(), "x")).await;
        let status = submitted.map(|submitted| submitted.ended.map(|ended| ended.status));
        assert_eq!(status.map_err(|refused| refused.status().as_u16()), expected, "{uid:?}");
    }
    assert!(replica.cluster.lines().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_id_that_was_used_before_its_account_was_made_anew_gives_no_answer_of_the_former_one() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    let with_id = || call(&format!("op_id: \"01G4V5TH5QSWSR2SZE2VH1SDME\" {}", scale()));
    let former = replica.submit(repeated(&scale(), "x")).await.expect("it is begun");
    replica.submit(with_id()).await.expect("it is begun");
    let mut anew = account("a", "ACTIVE", "Open");
    anew.metadata.uid = Some("uid-anew".to_owned());
    anew.metadata.resource_version = Some("2".to_owned());
    replica.operations.accounts.show(anew);
    let refused = replica.submit(with_id()).await.expect_err("another account");
    assert_eq!(refused.status(), 409);
    let anew = replica.submit(repeated(&scale(), "x")).await.expect("ids of callers are those of an account");
    assert_ne!(anew.id, former.id);
}

#[tokio::test(start_paused = true)]
async fn of_two_replicas_with_the_same_id_at_the_same_time_one_writes() {
    let patch = json_patch("web");
    let here = Replica::new(ScriptedCluster::waiting(|_, _| {
        async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            done()
        }
        .boxed()
    }));
    let there = Replica::over(ScriptedCluster::new(|_, _| done()), Arc::clone(&here.rows), "r-1");
    let (one, other) = tokio::join!(here.submit(repeated(&patch, "x")), there.submit(repeated(&patch, "x")));
    let ends = [one, other].map(|submitted| submitted.expect("it is known").ended.expect("it ended").status);
    assert_eq!(ends, [200, 200], "both have the answer");
    assert_eq!(here.cluster.lines().len() + there.cluster.lines().len(), 1);
    let id = checks::derived_id("uid-a", "alice", "x");
    assert_eq!(here.history(&id).await.outcome, OperationOutcome::Completed);
}

#[tokio::test(start_paused = true)]
async fn what_a_person_settles_at_another_replica_is_the_answer_to_a_repeated_call() {
    let here = Replica::new(ScriptedCluster::new(|_, _| Err(RequestError::unknown("it is gone"))));
    let there = Replica::over(ScriptedCluster::new(|_, _| done()), Arc::clone(&here.rows), "r-1");
    let patch = json_patch("web");
    let first = here.submit(repeated(&patch, "x")).await.expect("it is begun");
    assert_eq!(first.ended.expect("it ended").status, 504);
    assert_eq!(here.history(&first.id).await.outcome, OperationOutcome::Unknown);
    let result = result_from_text(&format!("op_id: \"{}\" status: 200", first.id)).expect("a result");
    there.operations.settle_by_hand(&result, &caller()).await.expect("it is unknown");
    here.rows.is_away.store(true, Ordering::Relaxed);
    let again = here.submit(repeated(&patch, "x")).await.expect("it is known");
    assert_eq!(again.ended.expect("it ended").status, 504, "that is what is known without the database");
    here.rows.is_away.store(false, Ordering::Relaxed);
    let again = here.submit(repeated(&patch, "x")).await.expect("it is known");
    let ended = again.ended.expect("it ended");
    assert_eq!((ended.status, &ended.failure), (200, &None));
    assert_eq!(here.cluster.lines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_person_settles_is_known_where_another_replica_was_waited_for_in_vain() {
    let rows = Arc::<MemoryRows>::default();
    let [here, there] = ["r-0", "r-1"].map(|id| {
        let cluster = ScriptedCluster::waiting(|_, _| std::future::pending::<Answered>().boxed());
        Replica::over(cluster, Arc::clone(&rows), id)
    });
    let patch = json_patch("web");
    let (one, other) = tokio::join!(here.submit(repeated(&patch, "x")), there.submit(repeated(&patch, "x")));
    let ends = [one, other].map(|submitted| submitted.expect("it is begun").ended.expect("it ended").status);
    assert_eq!(ends, [504, 504], "the cluster does not answer");
    let id = checks::derived_id("uid-a", "alice", "x");
    assert_eq!(here.history(&id).await.outcome, OperationOutcome::Unknown);
    let result = result_from_text(&format!("op_id: \"{id}\" status: 200")).expect("a result");
    there.operations.settle_by_hand(&result, &caller()).await.expect("it is unknown");
    for replica in [&here, &there] {
        let again = replica.submit(repeated(&patch, "x")).await.expect("it is known");
        assert_eq!(again.ended.expect("it ended").status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_operations_with_the_same_id_at_two_replicas_at_the_same_time_one_is_refused() {
    let here = Replica::new(ScriptedCluster::new(|_, _| done()));
    let there = Replica::over(ScriptedCluster::new(|_, _| done()), Arc::clone(&here.rows), "r-1");
    let (one, other) = tokio::join!(
        here.submit(repeated(&json_patch("web"), "x")),
        there.submit(repeated(&json_patch("api"), "x"))
    );
    assert_eq!(one.expect("it is begun").ended.expect("it ended").status, 200);
    let refused = other.expect_err("its id is taken");
    assert_eq!(refused.status(), 409);
    assert!(!refused.to_string().contains("Scale"), "{refused}");
    assert_eq!(there.cluster.lines(), Vec::<String>::new());
    assert_eq!(there.operations.known.running(), 0);
    assert_eq!(there.audit.refusals(), ["Patch a 409"]);
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_waits_for_its_turn_has_its_id_already() {
    let rows = Arc::<MemoryRows>::default();
    let [here, there] = ["r-0", "r-1"].map(|id| {
        let cluster = ScriptedCluster::waiting(|_, _| std::future::pending::<Answered>().boxed());
        Replica::over(cluster, Arc::clone(&rows), id)
    });
    let short = |call: OperationCall| OperationCall { wait: Some(Duration::ZERO), ..call };
    there.submit(short(call(&scale()))).await.expect("it is begun");
    there.submit(short(repeated(&json_patch("web"), "x"))).await.expect("it waits for its turn");
    here.submit(short(repeated(&json_patch("web"), "x"))).await.expect("it is known");
    let refused = here.submit(short(repeated(&json_patch("api"), "x"))).await.expect_err("another object");
    assert_eq!(refused.status(), 409);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let open = rows.open.lock().get(&checks::derived_id("uid-a", "alice", "x")).cloned().expect("it waits");
    assert_eq!(open.record.received.map(|stage| stage.id).as_deref(), Some("r-1"));
    assert_eq!(open.state, OperationState::Received);
    assert_eq!(here.cluster.lines(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn without_the_database_an_id_of_the_callers_own_is_not_taken() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    replica.rows.is_away.store(true, Ordering::Relaxed);
    let refused = replica.submit(repeated(&scale(), "x")).await.expect_err("it cannot be looked up");
    assert_eq!(refused.status().as_u16(), 503);
    let no_wait = OperationCall { wait: None, ..call(&scale()) };
    assert_eq!(replica.submit(no_wait).await.expect_err("its row is needed").status().as_u16(), 503);
    assert!(replica.cluster.lines().is_empty());
    let refused = replica.submit(call(&scale())).await.expect_err("its row is needed");
    assert_eq!(refused.status().as_u16(), 503);
    assert!(replica.cluster.lines().is_empty());
    let get = call(&format!("get {{ {WEB} }}"));
    assert_eq!(replica.submit(get).await.expect_err("its row is needed").status().as_u16(), 503);
    assert!(replica.cluster.lines().is_empty());
    assert_eq!(replica.operations.known.running(), 0);
    let refusals = ["Scale a 503", "Scale a 503", "Scale a 503", "Get a 503"];
    assert_eq!(replica.audit.refusals(), refusals);
}

#[tokio::test(start_paused = true)]
async fn an_id_of_the_operation_itself_is_taken_too() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    let id = "01J00000000000000000000000";
    let text = format!("op_id: \"{id}\" {}", scale());
    assert_eq!(replica.submit(call(&text)).await.expect("it is begun").id, id);
    assert_eq!(replica.submit(call(&text)).await.expect("it is known").id, id);
    assert_eq!(replica.cluster.lines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_with_the_id_of_one_that_is_being_recorded_is_answered_once_that_is() {
    for wait in [None, Some(MINUTE)] {
        let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
        *replica.rows.next_takes.lock() = Duration::from_secs(3);
        let first = OperationCall { wait, ..repeated(&json_patch("web"), "x") };
        let second = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let call = unawaited(&json_patch("web"), "x");
            let id = replica.submit(call).await.expect("it is known").id;
            let row = replica.rows.operation(&id).await.expect("the database is there");
            assert!(row.is_some(), "the first one waits: {wait:?}");
        };
        let (begun, ()) = tokio::join!(replica.submit(first), second);
        begun.expect("it is begun");
        replica.history(&checks::derived_id("uid-a", "alice", "x")).await;
        assert_eq!(replica.cluster.lines().len(), 1, "{:?}", replica.cluster.lines());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_with_the_id_of_one_that_has_ended_is_answered_once_its_end_is_recorded() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    replica.submit(repeated(&scale(), "x")).await.expect("it is begun").ended.expect("it ended");
    let id = replica.submit(unawaited(&scale(), "x")).await.expect("it is known").id;
    assert!(replica.rows.history.lock().contains_key(&id));
    assert_eq!(replica.rows.writes.load(Ordering::Relaxed), 2, "of the first call");
}

#[tokio::test(start_paused = true)]
async fn calls_with_the_id_of_one_that_cannot_be_recorded_are_refused_as_it_is() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    *replica.rows.next_takes.lock() = Duration::from_secs(3);
    let after = async |seconds: u64, call: OperationCall| {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        replica.submit(call).await
    };
    let outage = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        replica.rows.is_away.store(true, Ordering::Relaxed);
    };
    let (first, unawaited, awaited, ()) = tokio::join!(
        after(0, unawaited(&scale(), "x")),
        after(1, unawaited(&scale(), "x")),
        after(1, repeated(&scale(), "x")),
        outage
    );
    for refused in [first, unawaited, awaited] {
        assert_eq!(refused.expect_err("it has no row").status(), 503);
    }
    assert!(replica.cluster.lines().is_empty());
    assert_eq!(replica.operations.known.running(), 0);
}
