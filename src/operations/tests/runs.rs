//! What is sent of an operation, how its end is told, and when it runs again.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_operation_that_is_waited_for_has_its_result_and_its_record() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    let submitted = replica.submit(call(&scale())).await.expect("it is begun");
    let ended = submitted.ended.expect("it ended");
    assert_eq!((ended.status, &ended.failure), (200, &None));
    assert!(matches!(&ended.body, OutcomeBody::Json(body) if body["spec"]["replicas"] == 3));
    assert_eq!(ended.warnings, ["it is old"], "each once");
    let asked = replica.cluster.asked();
    assert_eq!(asked[0].line, "PATCH /apis/apps/v1/namespaces/n/deployments/web/scale?fieldManager=kubesvc");
    assert!(asked[0].repeatable);
    let record = replica.history(&submitted.id).await;
    assert_eq!((record.operation_type.as_str(), record.outcome), ("Scale", OperationOutcome::Completed));
    assert_eq!(record.warnings, ended.warnings);
    let told = submission::of_record(&record);
    assert_eq!(told.warnings, ended.warnings, "also to a call that comes again when only the record is left");
    assert_eq!(record.principal.as_deref(), Some("alice"));
    assert_eq!(record.request_id.as_ref(), Some(&asked[0].request_id));
    assert_eq!(record.sent.map(|sent| sent.id).as_deref(), Some("agent"));
    assert_eq!(record.answered.map(|answer| answer.status), Some(200));
    assert_eq!(record.account_uid.as_deref(), Some("uid-a"));
    assert!(replica.rows.open.lock().is_empty());
    assert_eq!(replica.rows.writes.load(Ordering::Relaxed), 2, "its row and its end");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_cluster_is_the_result_in_its_own_words() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| {
        Ok((403, json!({"kind": "Status", "message": "you may not scale"})))
    }));
    let ended = replica.run(&scale()).await;
    let failure = ended.failure.as_ref().expect("it failed");
    assert_eq!((ended.status, failure.class), (403, OutcomeClass::Forbidden));
    assert_eq!(failure.message, "you may not scale");
    assert!(!ended.before_send);
}

#[tokio::test(start_paused = true)]
async fn unknown_runs_again_as_often_as_the_settings_say() {
    let unknown = || Err(RequestError::unknown("the agent is gone"));
    let replica =
        Replica::new(ScriptedCluster::new(move |number, _| if number < 3 { unknown() } else { done() }));
    assert_eq!(replica.run(&scale()).await.status, 200);
    assert_eq!(replica.cluster.lines().len(), 3);
    let ids: std::collections::BTreeSet<_> =
        replica.cluster.asked().into_iter().map(|asked| asked.request_id).collect();
    assert_eq!(ids.len(), 3, "each request has an id of its own");

    let replica = Replica::new(ScriptedCluster::new(move |_, _| unknown()));
    let submitted = replica.submit(call(&scale())).await.expect("it is begun");
    assert_eq!(submitted.ended.expect("it ended").status, 504);
    assert_eq!(replica.cluster.lines().len(), 4, "three more");
    assert_eq!(replica.history(&submitted.id).await.outcome, OperationOutcome::Unknown);

    let replica = Replica::new(ScriptedCluster::new(move |_, _| unknown()));
    let patch = format!("patch {{ {WEB} type: JSON body {{ data: \"[]\" }} }}");
    assert_eq!(replica.run(&patch).await.status, 504);
    assert_eq!(replica.cluster.lines().len(), 1, "what may not be done twice is not");
    assert!(!replica.cluster.asked()[0].repeatable);
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_runs_again_deletes_only_what_it_read_first() {
    let replica = Replica::new(ScriptedCluster::new(|number, asked: &Asked| {
        if asked.line.starts_with("DELETE") {
            return Err(RequestError::unknown("the agent is gone"));
        }
        // Its controller has made it anew by the second look.
        let uid = if number == 1 { "1" } else { "2" };
        Ok((200, json!({"metadata": {"uid": uid, "name": "web", "namespace": "n"}})))
    }));
    let ended = replica.run(&format!("delete {{ {WEB} }}")).await;
    assert_eq!((ended.status, &ended.failure), (200, &None), "{:?}", replica.cluster.lines());
    assert_eq!(deletes(&replica), 1, "{:?}", replica.cluster.lines());
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_runs_again_starts_no_second_rollout() {
    let replica = Replica::new(ScriptedCluster::new(|number, _| {
        // Each run reads the object first.
        if number != 2 {
            return done();
        }
        // The annotation has whole seconds: the second run is in a later one.
        let second = || jiff::Timestamp::now().as_second();
        let asked_in = second();
        while second() == asked_in {
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(RequestError::unknown("the agent is gone"))
    }));
    assert_eq!(replica.run(&format!("restart_rollout {{ {WEB} }}")).await.status, 200);
    let patches = replica.cluster.asked().into_iter().filter(|asked| asked.line.starts_with("PATCH"));
    let bodies: Vec<_> = patches.map(|asked| asked.body).collect();
    let [first, again] = bodies.as_slice() else { unreachable!("{bodies:?}") };
    let annotations = &first["spec"]["template"]["metadata"]["annotations"];
    assert!(annotations["kubectl.kubernetes.io/restartedAt"].is_string(), "{first}");
    assert_eq!(first, again);
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_finds_nothing_the_second_time_has_deleted() {
    let replica = Replica::new(ScriptedCluster::new(|number, asked: &Asked| {
        match (number, asked.line.split(' ').next()) {
            (1, _) => Ok((200, json!({"metadata": {"uid": "u", "name": "web"}}))),
            (2, Some("DELETE")) => Err(RequestError::unknown("the agent is gone")),
            _ => Ok((404, json!({"message": "there is none"}))),
        }
    }));
    let ended = replica.run(&format!("delete {{ {WEB} }}")).await;
    assert_eq!((ended.status, &ended.failure), (200, &None), "{:?}", replica.cluster.lines());
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_finds_nothing_before_it_was_sent_has_not_deleted() {
    let replica = Replica::new(ScriptedCluster::new(|number, _| {
        if number > 1 {
            return Ok((404, json!({"message": "there is none"})));
        }
        Err(RequestError::no_agent("a", &"z".into(), true))
    }));
    let submitted = replica.submit(call(&format!("delete {{ {WEB} }}"))).await.expect("it is begun");
    assert_eq!(submitted.ended.expect("it ended").status, 404);
    assert_eq!(replica.cluster.lines().len(), 2, "it ran again");
    assert_eq!(replica.history(&submitted.id).await.outcome, OperationOutcome::Failed);
}

/// A Deployment, or its ReplicaSets with these revisions.
fn deployment_or(revisions: [u32; 2], asked: &Asked) -> Value {
    let template = |number: u32| json!({"spec": {"priority": number}});
    if !asked.line.contains("replicasets") {
        let metadata = json!({"name": "web", "namespace": "n", "uid": "u", "resourceVersion": "1"});
        let selector = json!({"matchLabels": {"app": "web"}});
        return json!({"metadata": metadata, "spec": {"selector": selector, "template": template(0)}});
    }
    let replica_set = |number: u32| {
        let revision = json!({"deployment.kubernetes.io/revision": number.to_string()});
        let owners = json!([{"controller": true, "uid": "u"}]);
        let metadata = json!({"annotations": revision, "ownerReferences": owners});
        json!({"metadata": metadata, "spec": {"template": template(number)}})
    };
    json!({"items": revisions.map(replica_set).to_vec()})
}

#[tokio::test(start_paused = true)]
async fn an_undo_whose_revision_is_gone_the_second_time_may_have_been_done() {
    let replica = Replica::new(ScriptedCluster::new(|number, asked: &Asked| {
        if asked.line.starts_with("PATCH") {
            return Err(RequestError::unknown("the agent is gone"));
        }
        // Its controller has made revision 3 the newest one.
        Ok((200, deployment_or(if number < 3 { [3, 4] } else { [4, 5] }, asked)))
    }));
    let undo = |revision: u32| call(&format!("undo_rollout {{ {WEB} to_revision: {revision} }}"));
    let submitted = replica.submit(undo(3)).await.expect("it is begun");
    let ended = submitted.ended.expect("it ended");
    let failure = ended.failure.as_ref().expect("nobody knows");
    assert_eq!((ended.status, failure.class), (504, OutcomeClass::OutcomeUnknown));
    assert!(failure.message.contains("there is no revision 3"), "{}", failure.message);
    assert_eq!(replica.cluster.lines().len(), 5, "{:?}", replica.cluster.lines());
    assert_eq!(replica.history(&submitted.id).await.outcome, OperationOutcome::Unknown);
    let missing = replica.submit(undo(7)).await.expect("it is begun").ended.expect("it ended");
    assert_eq!(missing.status, 404, "nothing was sent");
}

#[tokio::test(start_paused = true)]
async fn without_an_agent_nothing_is_done_and_that_is_said() {
    let replica =
        Replica::new(ScriptedCluster::new(|_, _| Err(RequestError::no_agent("a", &"z".into(), false))));
    let submitted = replica.submit(call(&scale())).await.expect("it is begun");
    let ended = submitted.ended.expect("it ended");
    assert_eq!((ended.status, ended.before_send), (503, true));
    assert_eq!(replica.history(&submitted.id).await.outcome, OperationOutcome::Failed);
}

#[tokio::test(start_paused = true)]
async fn an_operation_in_which_the_operator_fails_has_an_end_that_says_whether_a_write_was_sent() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| {
        assert!(std::hint::black_box(false), "a fault in the operator");
        done()
    }));
    for (verb, status, class, outcome) in [
        (format!("get {{ {WEB} }}"), 500, OutcomeClass::Internal, OperationOutcome::Failed),
        (scale(), 504, OutcomeClass::OutcomeUnknown, OperationOutcome::Unknown),
    ] {
        let submitted = replica.submit(call(&verb)).await.expect("it is begun");
        let ended = submitted.ended.expect("it ended");
        assert_eq!(ended.status, status, "{verb}");
        assert_eq!(ended.failure.as_ref().map(|failure| failure.class), Some(class), "{verb}");
        assert_eq!(replica.history(&submitted.id).await.outcome, outcome, "{verb}");
    }
    assert_eq!(replica.operations.known.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_shorter_gets_the_id_and_the_operation_goes_on() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let replica = Replica::new(ScriptedCluster::waiting(move |_, _| {
        let gate = Arc::clone(&opened);
        async move {
            gate.acquire().await.expect("it is never closed").forget();
            done()
        }
        .boxed()
    }));
    let short = OperationCall { wait: Some(Duration::from_secs(2)), ..call(&scale()) };
    let submitted = replica.submit(short).await.expect("it is begun");
    assert!(submitted.ended.is_none());
    let record = replica.operations.record(&submitted.id, &caller()).await.expect("a pending one too");
    assert_eq!(record.outcome, OperationOutcome::Pending);
    gate.add_permits(1);
    assert_eq!(replica.history(&submitted.id).await.outcome, OperationOutcome::Completed);
}

#[tokio::test(start_paused = true)]
async fn operations_on_one_object_take_turns_and_the_time_of_one_that_waits_passes() {
    let replica = Replica::new(ScriptedCluster::waiting(|_, _| std::future::pending::<Answered>().boxed()));
    let first = OperationCall { wait: Some(Duration::ZERO), ..call(&scale()) };
    replica.submit(first).await.expect("it is begun");
    let second = format!("deadline_ms: 3000 scale {{ {WEB} replicas: 4 }}");
    let submitted = replica.submit(call(&second)).await.expect("it is begun");
    let ended = submitted.ended.expect("it ended");
    assert_eq!((ended.status, ended.before_send), (504, true));
    assert_eq!(replica.history(&submitted.id).await.outcome, OperationOutcome::Timeout);
    assert_eq!(replica.cluster.lines().len(), 1);
    assert_eq!(replica.run("discovery {}").await.status, 504);
    assert_eq!(replica.cluster.lines().len(), 2, "what only reads waits for nobody");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_says_so_in_every_write_and_in_its_record() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| done()));
    let submitted = replica.submit(OperationCall { dry_run: true, ..call(&scale()) }).await.expect("begun");
    assert!(replica.cluster.lines()[0].contains("dryRun=All"), "{:?}", replica.cluster.lines());
    assert!(replica.history(&submitted.id).await.dry_run);
}

#[tokio::test(start_paused = true)]
async fn the_audit_line_of_an_operation_without_an_answer_names_the_agent_that_was_asked() {
    let replica = Replica::new(ScriptedCluster::new(|_, _| Err(RequestError::unknown("it is gone"))));
    assert_eq!(replica.run(&scale()).await.status, 504);
    let lines = replica.audit.lines();
    let line = lines.iter().find(|line| line["verb"] == "Scale").expect("a line");
    assert_eq!((&line["agent"], &line["reason"]), (&json!("agent"), &json!("unknown")));
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_longer_than_a_result_is_cut_and_another_answer_is_refused() {
    // With its two quotation marks, the answer has one byte more than a result.
    let long = || Ok((200, json!("x".repeat(MAX_RESULT_BYTES - 1))));
    let replica = Replica::new(ScriptedCluster::new(move |_, _| long()));
    let pod = "target { version: \"v1\" kind: \"Pod\" namespace: \"n\" name: \"web-0\" }";
    let ended = replica.run(&format!("logs {{ {pod} limit_bytes: {MAX_RESULT_BYTES} }}")).await;
    let asked = format!("GET /api/v1/namespaces/n/pods/web-0/log?limitBytes={}", MAX_RESULT_BYTES + 1);
    assert_eq!(replica.cluster.lines(), [asked]);
    assert_eq!((ended.status, &ended.failure), (200, &None));
    let OutcomeBody::Text { text, cut } = &ended.body else { unreachable!("a log is a text") };
    assert_eq!((text.len(), *cut), (MAX_RESULT_BYTES, true));
    let ended = replica.run(&format!("get {{ {pod} }}")).await;
    let class = ended.failure.as_ref().map(|failure| failure.class);
    assert_eq!((ended.status, class), (413, Some(OutcomeClass::TooLarge)));
}

#[tokio::test(start_paused = true)]
async fn each_write_of_an_operation_has_an_audit_line_with_its_own_id() {
    let replica = Replica::new(ScriptedCluster::new(|_, asked| of_two_objects(asked)));
    let id = replica.submit(call(&delete_two())).await.expect("it is begun").id;
    let (asked, lines) = (replica.cluster.asked(), replica.audit.lines());
    let deletes = asked.iter().filter(|asked| asked.line.starts_with("DELETE")).zip(["a", "b"]);
    let expected: Vec<_> = deletes
        .map(|(asked, name)| json!([id, asked.request_id, "delete", "deployments.apps", name, "agent", 200]))
        .collect();
    let fields = ["operationId", "requestId", "verb", "resource", "name", "agent", "code"];
    let written: Vec<Value> =
        lines.iter().map(|line| fields.iter().map(|field| line[*field].clone()).collect()).collect();
    assert_eq!(written[..2], expected);
    assert!(lines[..2].iter().all(|line| line["bytes"].as_u64() > Some(0)), "{lines:?}");
    assert_eq!((lines.len(), &lines[2]["verb"]), (3, &json!("Delete")), "and one for the operation");
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_has_an_audit_line_that_says_so_each_time_it_is_sent() {
    let unknown = || Err(RequestError::unknown("the agent is gone"));
    let replica =
        Replica::new(ScriptedCluster::new(move |number, _| if number < 3 { unknown() } else { done() }));
    assert_eq!(replica.run(&scale()).await.status, 200);
    let lines = replica.audit.lines();
    let writes: Vec<_> = lines.iter().filter(|line| line["verb"] == "patch").collect();
    assert_eq!(writes.iter().map(|line| &line["code"]).collect::<Vec<_>>(), [504, 504, 200]);
    assert!(writes.iter().all(|line| line["resource"] == "deployments.apps/scale"), "{writes:?}");
    let ids: Vec<_> = writes.iter().map(|line| line["requestId"].as_str().unwrap_or_default()).collect();
    assert_eq!(ids, replica.cluster.asked().iter().map(|asked| asked.request_id.clone()).collect::<Vec<_>>());
    assert_eq!(writes[0]["reason"], "the outcome is unknown: the agent is gone");
}

#[tokio::test(start_paused = true)]
async fn an_operation_waits_until_its_deadline_for_an_agent_that_is_expected() {
    let away = || RequestError::no_agent("a", &"z".into(), true);
    let back_after =
        |tries| ScriptedCluster::new(move |number, _| if number > tries { done() } else { Err(away()) });
    let ended = Replica::new(back_after(25)).run(&scale()).await;
    assert_eq!((ended.status, &ended.failure), (200, &None));
    let began = Instant::now();
    let ended = Replica::new(back_after(usize::MAX)).run(&scale()).await;
    assert_eq!((ended.status, ended.before_send), (503, true), "{ended:?}");
    assert!(began.elapsed() >= Duration::from_secs(28), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_api_server_gave_up_is_unknown_or_made_again() {
    let late = || {
        ScriptedCluster::new(
            |number, _| if number > 1 { done() } else { Ok((504, json!({"message": "late"}))) },
        )
    };
    let replica = Replica::new(late());
    assert_eq!(replica.run(&scale()).await.status, 200, "it may be done twice");
    let replica = Replica::new(late());
    let ended = replica.run(&format!("patch {{ {WEB} type: JSON body {{ data: \"[]\" }} }}")).await;
    let class = ended.failure.as_ref().map(|failure| failure.class);
    assert_eq!((ended.status, class), (504, Some(OutcomeClass::OutcomeUnknown)), "{ended:?}");
    assert!(!ended.before_send && replica.cluster.lines().len() == 1);
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_was_begun_before_the_api_server_had_no_time_is_unknown() {
    let busy = || Ok((429, json!({"message": "slow down"})));
    // The first write may have been made; the second one says that the first was.
    let late =
        move |number, _: &Asked| if number > 1 { busy() } else { Ok((504, json!({"message": "late"}))) };
    let made = move |number, _: &Asked| if number > 1 { busy() } else { done() };
    let recorded = format!("patch {{ {WEB} type: JSON record: true body {{ data: \"[]\" }} }}");
    for (cluster, verb) in [(ScriptedCluster::new(late), scale()), (ScriptedCluster::new(made), recorded)] {
        let ended = Replica::new(cluster).run(&verb).await;
        let class = ended.failure.as_ref().map(|failure| failure.class);
        assert_eq!((ended.status, class), (504, Some(OutcomeClass::OutcomeUnknown)), "{verb}: {ended:?}");
        assert!(!ended.before_send);
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_busy_is_waited_for_with_new_requests() {
    let busy = ScriptedCluster::new(|number, _| if number > 3 { done() } else { Ok((429, json!({}))) });
    let replica = Replica::new(busy);
    assert_eq!(
        replica.run(&format!("patch {{ {WEB} type: JSON body {{ data: \"[]\" }} }}")).await.status,
        200
    );
    let mut ids: Vec<_> = replica.cluster.asked().into_iter().map(|asked| asked.request_id).collect();
    ids.dedup();
    assert_eq!(ids.len(), 4, "each is a new request");
    let replica = Replica::new(ScriptedCluster::new(|_, _| Ok((429, json!({"message": "slow down"})))));
    let ended = replica.run(&scale()).await;
    let failure = ended.failure.as_ref().map(|failure| (failure.class, failure.message.as_str()));
    assert_eq!((ended.status, failure), (429, Some((OutcomeClass::Overloaded, "slow down"))));
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_longer_than_asked_for_is_cut_and_another_long_answer_was_sent() {
    let long = || Replica::new(ScriptedCluster::new(|_, _| Ok((200, json!("x".repeat((10 << 20) + 100))))));
    let pod = "target { version: \"v1\" kind: \"Pod\" namespace: \"n\" name: \"p\" }";
    let ended = long().run(&format!("logs {{ {pod} limit_bytes: 10485760 }}")).await;
    assert_eq!((ended.status, &ended.failure), (200, &None));
    assert!(matches!(&ended.body, OutcomeBody::Text { text, cut: true } if text.len() == 10 << 20));
    let ended = long().run(&format!("get {{ {pod} }}")).await;
    let class = ended.failure.as_ref().map(|failure| failure.class);
    assert_eq!((ended.status, class, ended.before_send), (413, Some(OutcomeClass::TooLarge), false));
    let lost = || Err(RequestError::cut("half of it"));
    let ended = Replica::new(ScriptedCluster::new(move |_, _| lost())).run(&format!("get {{ {pod} }}")).await;
    assert_eq!((ended.status, ended.before_send), (503, false), "{ended:?}");
}
