//! Agents connected to a replica that does not lead: their reports reach the leader. `make test` has one life of accounts,
//! and the death of a follower while it writes an answer; the tests of the outbox, of the hub and of remote sessions hold
//! the rest.

use std::os::unix::process::ExitStatusExt as _;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kubesvc_core::{KubesvcAccount, State, ZoneId};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::stories::on_one_server;
use crate::world::{Agent, Database, MAX_WAIT, Operator, Prepare, World};
use kubesvc_testkit::{must, wait::eventually};

on_one_server! {
    account_lifecycle_works_with_an_agent_at_a_follower,
}

/// Validity of a Lease, in seconds.
const LEASE: u64 = 6;

fn prepare(database: Database) -> Prepare {
    World::prepare()
        .database(database)
        .setting("kubesvc.leaderElection.leaseDurationSeconds", LEASE)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", LEASE * 2 / 3)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 5)
}

/// Two replicas, of which the first leads, and an agent of zone `east` at the second.
async fn with_agent_at_follower(database: Database) -> (World, Operator, Agent) {
    let world = prepare(database).start().await;
    let follower = world.replica("operator-1").await;
    assert_eq!(world.until_one_leads(&[world.operator(), &follower]).await, 0, "the first one was first");
    let agent = world.agent("agent-1").zone("east").hub_port(follower.hub_port()).start().await;
    (world, follower, agent)
}

async fn granted(world: &World, name: &str, zone: &str) -> KubesvcAccount {
    world
        .until_account(name, &format!("is ACTIVE in {zone}"), |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.granted_zone() == Some(&ZoneId::from(zone))
        })
        .await
}

async fn account_lifecycle_works_with_an_agent_at_a_follower(database: Database) {
    let (world, _follower, east) = with_agent_at_follower(database).await;
    let _west = world.agent("agent-2").zone("west").start().await;
    let cluster = world.cluster("spinnaker").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let account = granted(&world, "prod", "east").await;
    assert!(account.status_or_default().cluster_uid.is_some(), "what the agent found is told");
    eventually("the row with its namespaces", MAX_WAIT, async || {
        let row = world.until_row("prod", "ACTIVE").await;
        row.namespaces.map(drop).ok_or_else(|| "there are none".to_owned())
    })
    .await;
    world.patch("prod", json!({"spec": {"zoneId": "west"}})).await;
    granted(&world, "prod", "west").await;
    world.patch("prod", json!({"spec": {"zoneId": "east", "kinds": ["deployment"]}})).await;
    granted(&world, "prod", "east").await;
    world.patch("prod", json!({"spec": {"state": "INACTIVE"}})).await;
    world.until("prod", State::Inactive).await;
    world.account("anywhere").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("anywhere", State::Active).await;
    world.account("broken").zone("east").kubeconfig("not: a kubeconfig").create().await;
    world.until("broken", State::Failed).await;
    let file = east.kubeconfigs().join("own.yaml");
    must(std::fs::write(&file, cluster.kubeconfig()).map_err(|error| error.to_string()));
    world.account("of-a-file").spec("kubeconfig", json!({"file": file.display().to_string()})).create().await;
    granted(&world, "of-a-file", "east").await;
    for name in ["prod", "anywhere", "broken", "of-a-file"] {
        world.delete(name).await;
        world.until_gone(name).await;
    }
}

/// Only agents at the follower can take accounts without a zone: one account that either of two zones can
/// take, and one that only the zone with its file can take.
async fn find_a_zone_at_a_follower(database: Database) {
    let (world, follower, east) = with_agent_at_follower(database).await;
    let west = world.agent("agent-2").zone("west").hub_port(follower.hub_port()).start().await;
    let cluster = world.cluster("spinnaker").await;
    world.account("anywhere").kubeconfig(&cluster.kubeconfig()).create().await;
    let found = world.until("anywhere", State::Active).await;
    let found = found.status_or_default().granted_zone().map(ToString::to_string);
    assert!([east.zone(), west.zone()].contains(&found.as_deref().unwrap_or_default()), "{found:?}");
    let _here = world.agent("agent-3").zone("north").start().await;
    let file = west.kubeconfigs().join("own.yaml");
    must(std::fs::write(&file, cluster.kubeconfig()).map_err(|error| error.to_string()));
    world.account("of-a-file").spec("kubeconfig", json!({"file": file.display().to_string()})).create().await;
    granted(&world, "of-a-file", "west").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn account_without_zone_finds_one_at_a_follower_on_postgresql() {
    find_a_zone_at_a_follower(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn account_without_zone_finds_one_at_a_follower_on_mariadb() {
    find_a_zone_at_a_follower(Database::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn account_with_an_agent_at_a_follower_stays_active_when_the_leader_dies() {
    let (world, follower, _agent) = with_agent_at_follower(Database::Postgres).await;
    let cluster = world.cluster("spinnaker").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    granted(&world, "prod", "east").await;
    let writes = world.writes_to("prod").len();
    world.operator().kill();
    eventually("the follower leads", MAX_WAIT, async || match follower.metric("kubesvc_leader").await? {
        1 => Ok(()),
        other => Err(format!("{other}")),
    })
    .await;
    world.account("next").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    granted(&world, "next", "east").await;
    assert_eq!(world.state("prod").await, Some(State::Active));
    assert_eq!(world.writes_to("prod").len(), writes, "nothing was written of it");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn account_is_orphaned_when_its_agents_replica_dies_and_recovers() {
    let (world, follower, _agent) = with_agent_at_follower(Database::Postgres).await;
    let cluster = world.cluster("spinnaker").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    granted(&world, "prod", "east").await;
    follower.kill();
    world.until("prod", State::Orphaned).await;
    follower.start().await;
    granted(&world, "prod", "east").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn follower_killed_while_writing_an_answer_loses_nothing() {
    let world = prepare(Database::Postgres).start().await;
    let follower = world.unstarted_replica("operator-1");
    let cluster = world.cluster("spinnaker").await;
    let dies_at = async |point: &str| {
        let ended = eventually(&format!("the passage of {point}"), MAX_WAIT, async || {
            follower.exited().ok_or("nobody has passed it".to_owned())
        })
        .await;
        assert_eq!(ended.signal(), Some(Signal::SIGABRT as i32), "{point}: it ended with {ended}");
    };
    follower.launch_with(&[("KUBESVC_CRASH_AT", "agent-report:before")]);
    follower.ready().await;
    let _agent = world.agent("agent-1").zone("east").hub_port(follower.hub_port()).start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    dies_at("agent-report:before").await;
    follower.launch_with(&[("KUBESVC_CRASH_AT", "agent-report:after")]);
    dies_at("agent-report:after").await;
    follower.start().await;
    granted(&world, "prod", "east").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn process_with_the_id_of_an_agent_at_another_replica_is_refused() {
    let (world, _follower, first) = with_agent_at_follower(Database::Postgres).await;
    let second = world.agent("agent-1").zone("east").in_separate_folder().launch();
    eventually("it is refused", MAX_WAIT, async || {
        let log = second.log_text();
        if log.contains("another process is connected") { Ok(()) } else { Err(log) }
    })
    .await;
    let object = world.agent_object(&first).await.expect("it is connected");
    let session = object.status.unwrap_or_default().session.unwrap_or_default();
    assert_eq!(session.replica, "operator-1", "the first one stays");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn static_account_is_added_and_removed_at_a_follower() {
    let (world, _follower, agent) = with_agent_at_follower(Database::Postgres).await;
    let cluster = world.cluster("spinnaker").await;
    let file = agent.kubeconfigs().join("own.yaml");
    must(std::fs::write(&file, cluster.kubeconfig()).map_err(|error| error.to_string()));
    let own = json!({"name": "own", "kubeconfigFile": file.display().to_string()});
    agent.set("kubernetes.accounts", json!([own]));
    granted(&world, "own", "east").await;
    agent.set("kubernetes.accounts", json!([]));
    world.until_gone("own").await;
}

/// The resourceVersion of a Secret.
async fn version_of(world: &World, secret: &str) -> String {
    let secret = must(world.api::<Secret>().get(secret).await.map_err(|error| error.to_string()));
    secret.metadata.resource_version.unwrap_or_default()
}

/// Waits until the account is ACTIVE with this version of the Secret.
async fn until_active_with(world: &World, name: &str, version: &str) -> KubesvcAccount {
    world
        .until_account(name, &format!("is ACTIVE with version {version}"), |account| {
            let status = account.status_or_default();
            let used = status.credential_version.as_deref().unwrap_or_default();
            status.state() == State::Active && used.ends_with(&format!("/{version}"))
        })
        .await
}

/// Waits until the agent itself reports that it holds `count` accounts.
async fn until_held(world: &World, agent: &Agent, count: u64) {
    eventually("the agent holds what it is given", MAX_WAIT, async || {
        let own = world.ask_agent(agent).await?;
        if own["accountsHeld"] == count { Ok(()) } else { Err(own.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn unlabelled_secret_reaches_agents_of_a_restarted_follower() {
    let (world, follower, agent) = with_agent_at_follower(Database::Postgres).await;
    let cluster = world.cluster("spinnaker").await;
    for (name, watched) in [("watched", true), ("unwatched", false)] {
        let account = world.account(name).zone("east").kubeconfig(&cluster.kubeconfig());
        if watched { account } else { account.unwatched() }.create().await;
        granted(&world, name, "east").await;
        let label = Patch::Merge(json!({"metadata": {"labels": {"team": "blue"}}}));
        let labelled = world.api::<Secret>().patch(name, &PatchParams::default(), &label).await;
        must(labelled.map(drop).map_err(|error| error.to_string()));
    }
    agent.kill();
    follower.kill_and_start().await;
    agent.launch();
    until_held(&world, &agent, 2).await;
    for name in ["watched", "unwatched"] {
        let version = version_of(&world, name).await;
        let account = until_active_with(&world, name, &version).await;
        assert_eq!(account.status_or_default().epoch.0, 1, "{name}: nothing was activated anew");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn unwatched_secret_is_reread_when_an_agent_of_a_follower_reconnects() {
    let (world, _follower, agent) = with_agent_at_follower(Database::Postgres).await;
    let (old, new) = (world.cluster("old").await, world.cluster("new").await);
    world.account("prod").zone("east").kubeconfig(&old.kubeconfig()).unwatched().create().await;
    granted(&world, "prod", "east").await;
    world.forget_copies("prod").await;
    world.secret("prod", new.kubeconfig().as_bytes(), false).await;
    let version = version_of(&world, "prod").await;
    agent.kill();
    agent.launch();
    let account = until_active_with(&world, "prod", &version).await;
    until_held(&world, &agent, 1).await;
    assert_eq!(account.status_or_default().epoch.0, 2);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn replicas_with_copies_of_a_kubeconfig_file_agree() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("prod");
    let world = prepare(Database::Postgres)
        .setting("kubesvc.secrets.folders", json!([folder.path().display().to_string()]))
        .start()
        .await;
    let cluster = world.cluster("spinnaker").await;
    must(std::fs::write(&path, cluster.kubeconfig()).map_err(|error| error.to_string()));
    world.until_one_leads(&[world.operator()]).await;
    let reference = format!("encryptedFile:file!p:{}", path.display());
    let account = world.account("prod").zone("east").spec("kubeconfig", json!({"reference": reference}));
    account.create().await;
    let first = world.agent("agent-1").zone("east").start().await;
    granted(&world, "prod", "east").await;
    // The copy of another replica: the same file, written at another time.
    let copy = must(std::fs::File::options().write(true).open(&path).map_err(|error| error.to_string()));
    must(copy.set_modified(std::time::UNIX_EPOCH).map_err(|error| error.to_string()));
    let follower = world.replica("operator-1").await;
    let second = world.agent("agent-2").zone("east").hub_port(follower.hub_port()).start().await;
    until_held(&world, &second, 1).await;
    until_held(&world, &first, 1).await;
    let account = world.object("prod").await.expect("it is there");
    assert_eq!(account.status_or_default().epoch.0, 1, "nothing was activated anew");
}
