//! A replica that slept for longer than its Lease: meanwhile the account went to another zone. What it is asked then is
//! not sent into the former one, although the agent there still has the account, and the replica's watches are late.

use futures::future::join_all;
use kubesvc_core::State;

use crate::operations::EVERYTHING;
use crate::operations_faults::creates_map as creates;
use crate::world::{Database, MAX_WAIT, World};
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// Validity of a Lease, in seconds.
const LEASE: u64 = 6;
/// Number of operations that wait in the sockets of the replica that sleeps.
const WAITING: usize = 12;
const ACCOUNT: &str = "prod";

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_slept_sends_nothing_into_a_zone_that_lost_the_account() {
    let world = World::prepare()
        .own_control_plane()
        .database(Database::Postgres)
        .setting("server.address", "*")
        .setting("kubesvc.cache.operationWaitMs", 15_000)
        .setting("kubesvc.leaderElection.leaseDurationSeconds", LEASE)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", LEASE * 2 / 3)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 2)
        .start()
        .await;
    let plane = world.control_plane();
    let second = must(plane.second().await);
    let sleeper = world.differing_replica("operator-1", &[], |kubeconfig| second.instead(kubeconfig, plane));
    sleeper.start().await;
    world.publish("operator-0", world.operator(), true).await;
    world.publish("operator-1", &sleeper, true).await;
    assert_eq!(world.until_one_leads(&[world.operator(), &sleeper]).await, 0, "the first one was first");
    let west = world.agent("agent-2").zone("west").start().await;
    let east = world.agent("agent-1").zone("east").hub_port(sleeper.hub_port()).start().await;
    let cluster = world.cluster("spinnaker").await;
    world.let_write("spinnaker").await;
    world.account(ACCOUNT).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until(ACCOUNT, State::Active).await;
    let alice = world.caller("alice", EVERYTHING).await;
    let namespace = world.namespace();
    eventually("an operation at the replica that will sleep", MAX_WAIT, async || {
        let answer = alice.try_run(&sleeper, "?wait=10s", &creates(namespace, "cell-awake")).await?;
        if matches!(answer.json["status"].as_u64(), Some(201 | 409)) {
            Ok(())
        } else {
            Err(answer.to_string())
        }
    })
    .await;

    sleeper.pause();
    second.hold_watches_of_accounts();
    world.patch(ACCOUNT, serde_json::json!({"spec": {"zoneId": "west"}})).await;
    let moved = |account: &kubesvc_core::KubesvcAccount| super::is_active_in(account, "west");
    eventually("the account in the other zone", 2 * MAX_WAIT, async || {
        let account = world.try_object(ACCOUNT).await?.ok_or("it is gone")?;
        if moved(&account) { Ok(()) } else { Err(format!("{:?}", account.status_or_default().state())) }
    })
    .await;
    assert!(east.exited().is_none());
    // They wait in its sockets, and are the first that it sees.
    let names: Vec<_> = (0..WAITING).map(|number| format!("cell-slept-{number}")).collect();
    let asked = names.iter().map(|name| {
        let operation = creates(namespace, name);
        let (alice, sleeper) = (&alice, &sleeper);
        async move { (name, alice.try_run(sleeper, "?wait=20s", &operation).await) }
    });
    let waking = async {
        tokio::task::yield_now().await;
        sleeper.resume();
    };
    let (answers, ()) = tokio::join!(join_all(asked), waking);
    second.let_watches_go();
    let user = format!("system:serviceaccount:{namespace}:spinnaker");
    let writes = world.control_plane().writes();
    for (name, answer) in answers {
        let answer = must(answer);
        let sent = writes.iter().filter(|write| write.user == user && write.name == *name).count();
        let is_done = answer.json["status"] == 201;
        assert_eq!(sent, usize::from(is_done), "{name}: {answer}");
        if let Some(id) = answer.json["operationId"].as_str().filter(|_| is_done) {
            let record = alice.get(world.operator(), &format!("/armory/agent/operations/{id}")).await;
            assert_eq!(record.json["opSentToAgent"]["agentId"], "agent-2", "{name}: {record}");
        }
    }
    eventually("an operation at the replica that slept", MAX_WAIT, async || {
        let answer = alice.try_run(&sleeper, "?wait=10s", &creates(namespace, "cell-later")).await?;
        if matches!(answer.json["status"].as_u64(), Some(201 | 409)) {
            Ok(())
        } else {
            Err(answer.to_string())
        }
    })
    .await;
    assert!(west.exited().is_none());
}
