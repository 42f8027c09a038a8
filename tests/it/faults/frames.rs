//! Reports of agents that are late, repeated, or about accounts they were never sent.

use kubesvc_core::State;
use kubesvc_core::wire::common::{AccountRef, failure::Class};
use kubesvc_core::wire::ops::{
    AccountResult, AccountResults, Lost, account_result::Outcome, agent_frame::Frame,
};
use serde_json::json;

use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::simulated_agent::SimulatedAgent;
use kubesvc_testkit::simulated_agent::frames::{Introduction, OnAdd, OnDelete, Policy, failure, identity};
use kubesvc_testkit::{must, wait::eventually};

/// A world with a simulated agent that reports nothing about `prod` by itself, and an account of that name.
async fn start() -> (World, SimulatedAgent) {
    let world = World::prepare().setting("kubesvc.cache.operationWaitMs", 60_000).start().await;
    let hub = format!("127.0.0.1:{}", world.operator().hub_port());
    let agent = SimulatedAgent::connect(&hub, Introduction::new("agent-1", "east"), Policy::default()).await;
    let agent = must(agent.map_err(|error| error.to_string()));
    let mute = Policy { add: OnAdd::Silent, delete: OnDelete::Silent, ..Policy::default() };
    agent.set_policy_for("prod", mute);
    let kubeconfig = world.cluster("spinnaker").await.kubeconfig();
    world.account("prod").zone("east").kubeconfig(&kubeconfig).create().await;
    (world, agent)
}

/// Waits until the agent was sent an account under an epoch, and returns its reference.
async fn sent(agent: &SimulatedAgent, epoch: u64) -> AccountRef {
    eventually(&format!("AddAccounts of epoch {epoch}"), MAX_WAIT, async || {
        let added = agent.added();
        added.iter().find(|one| one.name == "prod" && one.epoch == epoch).cloned().ok_or(format!("{added:?}"))
    })
    .await
}

async fn asked_to_drop(agent: &SimulatedAgent) -> AccountRef {
    eventually("DeleteAccounts", MAX_WAIT, async || {
        let deleted = agent.deleted();
        deleted.iter().find(|one| one.name == "prod").cloned().ok_or(format!("{deleted:?}"))
    })
    .await
}

fn say(agent: &SimulatedAgent, account: &AccountRef, outcome: Option<Outcome>) {
    let dropped = outcome.is_none();
    let result = AccountResult { account: Some(account.clone()), outcome, dropped, refused: None };
    agent.send(Frame::AccountResults(AccountResults { results: vec![result] }));
}

fn held() -> Option<Outcome> {
    Some(Outcome::Identity(identity("simulated")))
}

fn failed() -> Option<Outcome> {
    Some(Outcome::Failure(failure(Class::Unreachable, "said too late")))
}

/// Waits until another account is ACTIVE: frames are processed in order, so earlier ones have been processed
/// by then.
async fn until_heard(world: &World, name: &str) {
    let kubeconfig = world.cluster(&format!("user-{name}")).await.kubeconfig();
    world.account(name).zone("east").kubeconfig(&kubeconfig).create().await;
    world.until(name, State::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_for_an_older_epoch_activates_nothing() {
    let (world, agent) = start().await;
    let first = sent(&agent, 1).await;
    world.patch("prod", json!({"spec": {"kinds": ["deployment"]}})).await;
    let second = sent(&agent, 2).await;
    say(&agent, &first, held());
    say(&agent, &first, failed());
    until_heard(&world, "after").await;
    let account = world.object("prod").await.expect("it is there");
    let status = account.status_or_default();
    assert_eq!((status.state(), status.epoch.0, status.failed_count), (State::Activating, 2, 0));

    say(&agent, &second, held());
    let active = world.until("prod", State::Active).await;
    assert_eq!(active.status_or_default().epoch.0, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_reports_are_written_once_and_failure_after_held_is_ignored() {
    let (world, agent) = start().await;
    let account = sent(&agent, 1).await;
    say(&agent, &account, held());
    world.until("prod", State::Active).await;
    let writes = world.writes_to("prod").len();
    say(&agent, &account, held());
    say(&agent, &account, failed());
    say(&agent, &account, failed());
    until_heard(&world, "after").await;
    assert_eq!(world.state("prod").await, Some(State::Active));
    assert_eq!(world.writes_to("prod").len(), writes, "{:#?}", world.writes_to("prod"));
    let agents = world.get("/armory/agents").await;
    assert_eq!(agents.json[0]["accounts"], json!(["after", "prod"]), "{agents}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_account_is_not_restored_by_a_late_report() {
    let (world, agent) = start().await;
    let account = sent(&agent, 1).await;
    say(&agent, &account, held());
    world.until("prod", State::Active).await;
    world.patch("prod", json!({"spec": {"state": "INACTIVE"}})).await;
    let dropped = asked_to_drop(&agent).await;
    // For the epoch before the revoke: not an answer to it.
    say(&agent, &account, None);
    until_heard(&world, "between").await;
    assert_eq!(world.state("prod").await, Some(State::Deactivating));

    say(&agent, &dropped, None);
    say(&agent, &dropped, None);
    world.until("prod", State::Inactive).await;
    let writes = world.writes_to("prod").len();
    for epoch in [account.epoch, dropped.epoch, dropped.epoch + 7] {
        say(&agent, &AccountRef { epoch, ..account.clone() }, held());
        say(&agent, &AccountRef { epoch, ..account.clone() }, failed());
    }
    until_heard(&world, "after").await;
    assert_eq!(world.state("prod").await, Some(State::Inactive));
    world.until_row("prod", "INACTIVE").await;
    assert_eq!(world.writes_to("prod").len(), writes, "{:#?}", world.writes_to("prod"));

    // It goes through a whole activation again when that is requested.
    world.patch("prod", json!({"spec": {"state": "ACTIVE"}})).await;
    let again = sent(&agent, dropped.epoch + 1).await;
    say(&agent, &again, held());
    world.until("prod", State::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_about_unsent_accounts_are_ignored_and_counted() {
    let (world, agent) = start().await;
    let account = sent(&agent, 1).await;
    let stranger = AccountRef { uid: "00000000-0000-4000-8000-000000000000".to_owned(), ..account.clone() };
    let future = AccountRef { epoch: 9, ..account.clone() };
    for one in [&stranger, &future] {
        say(&agent, one, held());
        say(&agent, one, failed());
        say(&agent, one, None);
        agent.send(Frame::Lost(Lost { account: Some(one.clone()), failure: None }));
    }
    until_heard(&world, "after").await;
    assert_eq!(world.state("prod").await, Some(State::Activating), "nobody has said anything about it yet");
    let metrics = world.get("/metrics").await.text;
    for reason in ["never_sent", "future_epoch"] {
        assert!(metrics.contains(reason), "{reason} is not counted:\n{metrics}");
    }
    say(&agent, &account, held());
    world.until("prod", State::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn account_lost_by_its_only_agent_is_resent_and_reported() {
    let (world, agent) = start().await;
    let account = sent(&agent, 1).await;
    say(&agent, &account, held());
    world.until("prod", State::Active).await;
    let lost = failure(Class::Internal, "out of memory");
    agent.send(Frame::Lost(Lost { account: Some(account.clone()), failure: Some(lost) }));
    eventually("the account asked for again", MAX_WAIT, async || {
        let count = agent.added().iter().filter(|one| one.uid == account.uid).count();
        if count > 1 { Ok(()) } else { Err(format!("asked {count} times")) }
    })
    .await;
    // No agent holds it, and one was asked: it becomes ACTIVE, because that agent may come back.
    say(&agent, &account, held());
    until_heard(&world, "after").await;
    let active = world.until("prod", State::Active).await;
    assert_eq!(active.status_or_default().failed_count, 0);
    let agents = world.get("/armory/agents").await;
    assert_eq!(agents.json[0]["accounts"], json!(["after", "prod"]), "{agents}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_claims_an_ungranted_account_is_sent_a_drop() {
    let (world, agent) = start().await;
    let account = sent(&agent, 1).await;
    say(&agent, &account, held());
    world.until("prod", State::Active).await;
    drop(agent);

    // The same process again reports a held account that is gone, and an epoch later than the current one.
    let ghost = AccountRef {
        uid: "00000000-0000-4000-8000-000000000000".to_owned(),
        name: "ghost".to_owned(),
        ..account.clone()
    };
    let ahead = AccountRef { epoch: 5, ..account.clone() };
    let mut hello = Introduction::new("agent-1", "east");
    hello.accounts_held = vec![ghost.clone(), ahead.clone()];
    let hub = format!("127.0.0.1:{}", world.operator().hub_port());
    let agent = eventually("an agent id that is free again", MAX_WAIT, async || {
        SimulatedAgent::connect(&hub, hello.clone(), Policy::default()).await.map_err(|e| e.to_string())
    })
    .await;
    eventually("the order to drop the ghost", MAX_WAIT, async || {
        let deleted = agent.deleted();
        if deleted.iter().any(|one| one.uid == ghost.uid) { Ok(()) } else { Err(format!("{deleted:?}")) }
    })
    .await;
    assert!(!agent.deleted().iter().any(|one| one.uid == account.uid), "what is ACTIVE is not dropped");
    until_heard(&world, "after").await;
    let active = world.until("prod", State::Active).await;
    let agents = world.get("/armory/agents").await;
    assert_eq!(agents.json[0]["accounts"], json!(["after", "prod"]), "{agents}: {:#?}", active.status);
    let rows: Vec<_> = world.rows().await.into_iter().map(|row| row.name).collect();
    assert_eq!(rows, ["after", "prod"]);
}
