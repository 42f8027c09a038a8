//! Several replicas on one namespace and one database: exactly one leads, whatever happens to it.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams};
use kubesvc_core::{KubesvcAccount, State};
use serde_json::json;

use crate::world::{Database, MAX_WAIT, Operator, Prepare, World, one_leads};
use kubesvc_testkit::{audit::AuditedWrite, must, wait::eventually};

/// Validity of a Lease, in seconds.
const LEASE: u64 = 6;
/// Name of the leader's Lease.
const LEADER: &str = "kubesvc-operator";

fn prepare(database: Database, lease: u64) -> Prepare {
    World::prepare()
        .database(database)
        .setting("kubesvc.leaderElection.leaseDurationSeconds", lease)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", lease * 2 / 3)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
}

/// Two replicas; the first one leads.
async fn two(prepare: Prepare) -> (World, Operator) {
    let world = prepare.start().await;
    let other = world.unstarted_replica("operator-1");
    other.start().await;
    assert_eq!(world.until_one_leads(&[world.operator(), &other]).await, 0, "the first one was first");
    (world, other)
}

/// Takes an account through everything a leader does for it: finalizer, row, state.
async fn leader_works(world: &World, name: &str) {
    world.account(name).zone("east").inactive().kubeconfig("apiVersion: v1\nkind: Config\n").create().await;
    world.until(name, State::Inactive).await;
    world.until_row(name, "INACTIVE").await;
}

fn holder(lease: Option<&Lease>) -> String {
    lease.and_then(|lease| lease.spec.clone()?.holder_identity).unwrap_or_default()
}

/// Waits until a replica reports that it leads.
async fn until_leading(replica: &Operator) {
    eventually("it leads", MAX_WAIT, async || match replica.metric("kubesvc_leader").await? {
        1 => Ok(()),
        other => Err(format!("{other}")),
    })
    .await;
}

/// Times of the last renewal and of the acquisition of the leader's Lease.
async fn times(world: &World) -> (Timestamp, Timestamp) {
    let spec = world.lease(LEADER).await.and_then(|lease| lease.spec).expect("somebody leads");
    (spec.renew_time.expect("it was renewed").0, spec.acquire_time.expect("it was taken").0)
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_one_of_three_replicas_leads_and_all_report_it() {
    let (world, second) = two(prepare(Database::Postgres, LEASE)).await;
    let third = world.unstarted_replica("operator-2");
    third.start().await;
    let all = [world.operator(), &second, &third];
    assert_eq!(world.until_one_leads(&all).await, 0, "who leads goes on");
    leader_works(&world, "one").await;
    for replica in &all {
        assert_eq!(must(replica.get("/health/readiness").await).status, 200, "a follower is ready");
        let name = format!("kubesvc-replica-{}", replica.replica_id());
        let lease = world.lease(&name).await;
        assert_eq!(holder(lease.as_ref()), replica.replica_id());
        let annotations = lease.and_then(|lease| lease.metadata.annotations).unwrap_or_default();
        assert_eq!(annotations.get("kubesvc.io/registration-backlog").map(String::as_str), Some("0"));
    }
    // One write each for finalizer and state: the other replicas wrote nothing.
    let writes = world.writes_to("one");
    assert_eq!(writes.len(), 2, "{writes:#?}");
    assert!(must(second.metric("kubesvc_leader_terms_total").await) == 0);

    // A follower that stops affects nothing else.
    let terms = must(world.operator().metric("kubesvc_leader_terms_total").await);
    second.kill_and_start().await;
    assert!(third.terminate().await.success());
    assert_eq!(world.until_one_leads(&[world.operator(), &second]).await, 0);
    assert_eq!(must(world.operator().metric("kubesvc_leader_terms_total").await), terms);
    let released = world.lease("kubesvc-replica-operator-2").await;
    assert_eq!(holder(released.as_ref()), "", "its own Lease is released");
    assert_eq!(world.writes_to("one").len(), 2);
    leader_works(&world, "two").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminated_leader_hands_over_at_once() {
    // The test would time out if it had to wait for such a Lease to expire.
    let (world, other) = two(prepare(Database::MariaDb, 600)).await;
    leader_works(&world, "one").await;
    assert!(world.operator().terminate().await.success());
    until_leading(&other).await;
    leader_works(&world, "two").await;
    // The one that comes back follows; everything else is as before.
    world.operator().start().await;
    assert_eq!(world.until_one_leads(&[world.operator(), &other]).await, 1);
    assert_eq!(world.rows().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_leader_is_replaced_after_its_lease_and_no_account_is_lost() {
    let (world, other) =
        two(prepare(Database::Postgres, LEASE).setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 20))
            .await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").zone("east").start().await;
    world.account("held").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let epoch = world.until("held", State::Active).await.status_or_default().epoch;
    world.until_row("held", "ACTIVE").await;
    world.until_assigned(&[("held", agent.id())]).await;

    let (renewed, _) = times(&world).await;
    world.operator().kill();
    agent.set("clouddriver.grpc", json!(format!("127.0.0.1:{}", other.hub_port())));
    agent.launch();
    until_leading(&other).await;
    // Measured by the Lease itself, so that only a machine that stalled for two more Lease durations can fail
    // here.
    let (_, taken) = times(&world).await;
    let after = taken.duration_since(renewed).as_secs_f64();
    assert!(after >= LEASE as f64, "{after} s after a renewal: nobody may take it that early");
    assert!(after < 3.0 * LEASE as f64, "{after} s after a renewal it was still nobody's");
    leader_works(&world, "next").await;
    eventually("the agent at the other replica", MAX_WAIT, async || {
        let agents = other.get("/armory/agents").await?;
        let held = &agents.json[0]["accounts"];
        if *held == json!(["held"]) { Ok(()) } else { Err(agents.to_string()) }
    })
    .await;
    assert_eq!(world.state("held").await, Some(State::Active));
    let account = world.object("held").await.expect("it is there");
    assert_eq!(account.status_or_default().epoch, epoch, "it was not given anew");
    // The rows of the dead replica are removed; those of the live one stay.
    eventually("one row, of the living replica", MAX_WAIT, async || {
        let rows = world.try_assigned_replicas().await?;
        if rows == ["operator-1"] { Ok(()) } else { Err(format!("{rows:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_paused_longer_than_its_lease_becomes_a_follower() {
    let (world, other) = two(prepare(Database::Postgres, LEASE)).await;
    leader_works(&world, "one").await;
    world.operator().pause();
    until_leading(&other).await;
    leader_works(&world, "two").await;
    world.patch("one", json!({"spec": {"environment": "changed"}})).await;
    let handled = |one: &KubesvcAccount| one.status_or_default().observed_generation == one.generation();
    world.until_account("one", "is handled", handled).await;

    let resumed = Timestamp::now();
    world.operator().resume();
    assert_eq!(world.until_one_leads(&[world.operator(), &other]).await, 1);
    assert!(world.operator().log_text().contains("this replica no longer leads"));
    leader_works(&world, "three").await;
    // A line of the audit log follows its write by a moment.
    let is_since = |write: &AuditedWrite| write.received.parse::<Timestamp>().is_ok_and(|at| at >= resumed);
    let since = eventually("the writes to the third account", MAX_WAIT, async || {
        let mut since = world.operator_writes("kubesvcaccounts");
        since.retain(is_since);
        if since.len() >= 2 { Ok(since) } else { Err(format!("{since:#?}")) }
    })
    .await;
    assert!(since.iter().all(|write| write.name == "three"), "{since:#?}");
    assert_eq!(since.len(), 2, "{since:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn late_row_writes_of_a_deposed_leader_are_refused_counted_and_logged() {
    for database in [Database::Postgres, Database::MariaDb] {
        let (world, other) = two(prepare(database, LEASE)).await;
        leader_works(&world, "one").await;
        // What another replica does when it takes over while this one is suspended.
        world
            .execute("UPDATE kubesvc_locks SET token = token + 1, owner = 'somebody' WHERE name = 'leader'")
            .await;
        world.execute("UPDATE kubesvc_accounts SET status = 'SOMETHING' WHERE name = 'one'").await;
        world.account("late").zone("east").inactive().kubeconfig("apiVersion: v1\n").create().await;
        eventually("a late write that is counted", MAX_WAIT, async || {
            match world.operator().metric("kubesvc_store_late_writes_total").await? {
                0 => Err("none".to_owned()),
                _ => Ok(()),
            }
        })
        .await;
        assert!(world.operator().log_text().contains("a late write was refused"));
        // It gives up leadership; the next leader has its own term and writes what was rejected.
        world.until_one_leads(&[world.operator(), &other]).await;
        world.until_row("late", "INACTIVE").await;
        world.until_row("one", "INACTIVE").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_or_edited_lease_leaves_one_leader() {
    let (world, other) = two(prepare(Database::Postgres, LEASE)).await;
    let leases = world.api::<Lease>();
    let both = [world.operator(), &other];
    must(leases.delete(LEADER, &DeleteParams::default()).await.map_err(|e| e.to_string()));
    eventually("a Lease again", MAX_WAIT, async || {
        let lease = world.try_lease(LEADER).await?;
        if holder(lease.as_ref()).starts_with("operator-") { Ok(()) } else { Err(format!("{lease:?}")) }
    })
    .await;
    world.until_one_leads(&both).await;
    leader_works(&world, "deleted").await;

    let edit = Patch::Merge(json!({"spec": {"holderIdentity": "nobody-who-lives"}}));
    must(leases.patch(LEADER, &PatchParams::default(), &edit).await.map_err(|e| e.to_string()));
    eventually("nobody leads", MAX_WAIT, async || match one_leads(&both).await {
        Err(why) if why == "[] lead" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    world.until_one_leads(&both).await;
    leader_works(&world, "edited").await;

    // A replica's Lease that was deleted is created again.
    must(
        leases
            .delete("kubesvc-replica-operator-1", &DeleteParams::default())
            .await
            .map_err(|e| e.to_string()),
    );
    eventually("the replica's Lease again", MAX_WAIT, async || {
        let lease = world.try_lease("kubesvc-replica-operator-1").await?;
        if holder(lease.as_ref()) == "operator-1" { Ok(()) } else { Err(format!("{lease:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_without_api_server_have_no_leader() {
    let (world, other) = two(prepare(Database::Postgres, LEASE).own_control_plane()).await;
    let both = [world.operator(), &other];
    leader_works(&world, "one").await;
    let writes = world.operator_writes("kubesvcaccounts").len();
    world.control_plane().stop_apiserver();
    eventually("nobody leads", MAX_WAIT, async || {
        let leads = [both[0].metric("kubesvc_leader").await?, both[1].metric("kubesvc_leader").await?];
        if leads == [0, 0] { Ok(()) } else { Err(format!("{leads:?}")) }
    })
    .await;
    assert!(both.iter().all(|replica| replica.is_running()), "they wait for the API server");
    must(world.control_plane().start_apiserver().await);
    world.until_one_leads(&both).await;
    leader_works(&world, "two").await;
    let since: Vec<_> = world.operator_writes("kubesvcaccounts").into_iter().skip(writes).collect();
    assert!(since.iter().all(|write| write.name == "two"), "{since:#?}");
}

/// Waits until an operator that runs, and is not ready, says that this other one holds the Lease.
async fn until_it_waits_for(operator: &Operator, other: &str) {
    eventually("it says why it waits", MAX_WAIT, async || {
        let answer = operator.get("/health/readiness").await?;
        let says_why = answer.text.contains(&format!("operator {other} holds the Lease"));
        if answer.status == 503 && says_why { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    assert_eq!(must(operator.get("/health/liveness").await).status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn second_operator_on_sqlite_waits_for_the_end_of_the_first() {
    // The test would time out if it had to wait for such a Lease to expire.
    let world = prepare(Database::Sqlite, 600).start().await;
    leader_works(&world, "one").await;
    let url = format!("sqlite://{}", world.folder().file("second.db").display());
    let second =
        world.differing_replica("operator-1", &[("kubesvc.database.url", json!(url))], str::to_owned);
    second.launch_with(&[]);
    until_it_waits_for(&second, "operator-0").await;
    assert!(world.operator().terminate().await.success());
    second.ready().await;
    let inactive = world.account("two").zone("east").inactive();
    inactive.kubeconfig("apiVersion: v1\nkind: Config\n").create().await;
    world.until("two", State::Inactive).await;
    world.operator().launch_with(&[]);
    until_it_waits_for(world.operator(), "operator-1").await;
    // One that waits ends as well, and takes nothing.
    assert!(world.operator().terminate().await.success());
    assert_eq!(second.metric("kubesvc_leader").await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_on_sqlite_ends_when_another_one_has_taken_its_lease() {
    let world = prepare(Database::Sqlite, LEASE).start().await;
    leader_works(&world, "one").await;
    let taken = json!({"spec": {"holderIdentity": "another"}});
    let leases = world.api::<Lease>();
    leases.patch(LEADER, &PatchParams::default(), &Patch::Merge(&taken)).await.expect("it is patched");
    let ended = must(world.operator().ended(MAX_WAIT).await);
    assert_eq!(ended.code(), Some(1));
    assert!(world.operator().log_text().contains("operator another holds the Lease"));
    // Nobody renews it.
    world.operator().start().await;
    leader_works(&world, "two").await;
}
