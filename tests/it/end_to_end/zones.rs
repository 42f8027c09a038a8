//! Agents come, go and are replaced; accounts find their zone and change it.

use kube::api::{Patch, PatchParams};
use kubesvc_core::{GrantPhase, KubesvcAccount, KubesvcAgent, State, ZoneId, object_names};
use serde_json::json;

use crate::stories::{on_one_database, only_in_test_all};
use crate::world::{Database, MAX_WAIT, World};
use kubesvc_testkit::simulated_agent::SimulatedAgent;
use kubesvc_testkit::simulated_agent::frames::{Introduction, OnAdd, Policy, identity};
use kubesvc_testkit::{must, wait::eventually};

on_one_database! {
    account_moves_when_its_zone_changes,
    unapproved_agent_gets_no_accounts,
    agent_that_reaches_another_cluster_drops_the_account,
}

// Decided by the lifecycle and the hub, whose own tests hold it.
only_in_test_all! {
    account_without_zone_finds_the_zone_that_has_its_file,
    account_that_fits_two_zones_is_given_to_neither,
    accounts_of_a_zone_without_agents_move_to_another,
    account_stays_in_its_zone_until_the_new_one_has_an_agent,
    waiting_accounts_activate_when_an_agent_connects,
    overlapping_replacement_agent_orphans_no_account,
    agent_absent_within_grace_loses_no_account,
    accounts_are_orphaned_until_the_last_agent_returns,
    fleet_summary_shows_all_agents_and_accounts,
}

async fn account_without_zone_finds_the_zone_that_has_its_file(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let east = world.agent("agent-e").zone("east").start().await;
    let west = world.agent("agent-w").zone("west").start().await;
    let file = west.kubeconfigs().join("prod.yaml");
    must(std::fs::write(&file, cluster.kubeconfig()).map_err(|e| e.to_string()));
    let source = json!({"file": file.display().to_string()});
    world.account("prod").spec("kubeconfig", source).create().await;
    let account = world.until("prod", State::Active).await;
    assert_eq!(account.status_or_default().granted_zone(), Some(&"west".into()));
    let row = world.until_row("prod", "ACTIVE").await;
    assert_eq!(row.zone_id.as_deref(), Some("west"), "{row:?}");
    world.until_assigned(&[("prod", west.id())]).await;
    assert_eq!(world.ask_agent(&east).await.expect("it runs")["accountsHeld"], 0);
}

async fn account_that_fits_two_zones_is_given_to_neither(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agents = [
        world.agent("agent-e").zone("east").start().await,
        world.agent("agent-w").zone("west").start().await,
    ];
    // One path, in folders of both agents.
    let shared = world.folder().file("shared");
    must(std::fs::create_dir_all(&shared).map_err(|e| e.to_string()));
    let file = shared.join("prod.yaml");
    must(std::fs::write(&file, cluster.kubeconfig()).map_err(|e| e.to_string()));
    for agent in &agents {
        agent.kill();
        world.until_connected(agent, false).await;
        agent.set("kubernetes.kubeconfigFolders", json!([shared.display().to_string()]));
        agent.launch();
        world.until_connected(agent, true).await;
    }
    world.account("prod").spec("kubeconfig", json!({"file": file.display().to_string()})).create().await;
    world.until_reason("prod", State::Failed, "ZoneAmbiguous").await;
    let row = world.until_row("prod", "FAILED").await;
    let why = row.error_message.unwrap_or_default();
    assert!(["east", "west", "zoneId"].iter().all(|word| why.contains(word)), "{why}");
    for agent in &agents {
        assert_eq!(world.ask_agent(agent).await.expect("it runs")["accountsHeld"], 0);
    }
    world.patch("prod", json!({"spec": {"zoneId": "west"}})).await;
    world.until_row("prod", "ACTIVE").await;
}

async fn accounts_of_a_zone_without_agents_move_to_another(database: Database) {
    let world = World::prepare()
        .database(database)
        .setting("kubesvc.cache.accountCleanupFrequencySeconds", 2)
        .start()
        .await;
    let cluster = world.cluster("spinnaker").await;
    let east = world.agent("agent-e").zone("east").start().await;
    world.account("free").kubeconfig(&cluster.kubeconfig()).create().await;
    world.account("pinned").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    for name in ["free", "pinned"] {
        world.until(name, State::Active).await;
    }
    let west = world.agent("agent-w").zone("west").start().await;
    east.kill();
    let moved = world
        .until_account("free", "is ACTIVE in the west", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.granted_zone() == Some(&"west".into())
        })
        .await;
    assert_eq!(moved.spec.zone_id, None, "nothing is written into a spec");
    world.until("pinned", State::Orphaned).await;
    world.until_row("pinned", "ORPHANED").await;
    world.until_assigned(&[("free", west.id())]).await;

    // The former agent comes back and drops what no longer belongs to its zone.
    east.launch();
    world.until("pinned", State::Active).await;
    world.until_assigned(&[("free", west.id()), ("pinned", east.id())]).await;
    eventually("one account held by agent-e", MAX_WAIT, async || {
        let own = world.ask_agent(&east).await?;
        if own["accountsHeld"] == 1 { Ok(()) } else { Err(own.to_string()) }
    })
    .await;
}

async fn account_moves_when_its_zone_changes(database: Database) {
    let world = World::prepare().database(database).with_long_timeouts().start().await;
    let cluster = world.cluster("spinnaker").await;
    let _east = world.agent("agent-e").zone("east").start().await;
    let west = world.agent("agent-w").zone("west").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    world.until_next_second("prod").await;
    let before = world.writes_to("prod").len();
    world.patch("prod", json!({"spec": {"zoneId": "west"}})).await;
    world
        .until_account("prod", "is ACTIVE in the west", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.granted_zone() == Some(&"west".into())
        })
        .await;
    world.until_assigned(&[("prod", west.id())]).await;
    let row = world.until_row("prod", "ACTIVE").await;
    assert_eq!(row.zone_id.as_deref(), Some("west"));
    assert_eq!(
        world.writes_to("prod").len() - before,
        4,
        "Revoking, None, Open, ACTIVE: {:#?}",
        world.writes_to("prod")
    );
}

async fn account_stays_in_its_zone_until_the_new_one_has_an_agent(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _east = world.agent("agent-e").zone("east").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    world.patch("prod", json!({"spec": {"zoneId": "west"}})).await;
    let waiting = world.until_reason("prod", State::Active, "ZoneAwaited").await;
    assert_eq!(waiting.status_or_default().granted_zone(), Some(&"east".into()));
    let _west = world.agent("agent-w").zone("west").start().await;
    world
        .until_account("prod", "is ACTIVE in the west", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.granted_zone() == Some(&"west".into())
        })
        .await;
    world.until_row("prod", "ACTIVE").await;
}

async fn waiting_accounts_activate_when_an_agent_connects(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    world.account("pinned").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.account("free").kubeconfig(&cluster.kubeconfig()).create().await;
    for name in ["pinned", "free"] {
        let failed = world.until_reason(name, State::Failed, "NoAgent").await;
        assert_eq!(failed.status_or_default().failed_count, 0, "waiting uses no try up");
        world.until_row(name, "FAILED").await;
    }
    let _agent = world.agent("agent-1").zone("east").start().await;
    for name in ["pinned", "free"] {
        world.until_row(name, "ACTIVE").await;
    }
}

/// With other agents, accounts became ORPHANED although a new pod had taken them, because the old pod was
/// forgotten only afterwards.
async fn overlapping_replacement_agent_orphans_no_account(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let old = world.agent("agent-old").start().await;
    let names = ["one", "three", "two"];
    for name in names {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until(name, State::Active).await;
    }
    let new = world.agent("agent-new").start().await;
    let both: Vec<_> = names.iter().flat_map(|name| [(*name, "agent-new"), (*name, "agent-old")]).collect();
    world.until_assigned(&both).await;
    let writes = names.map(|name| world.writes_to(name).len());
    old.kill();
    let left: Vec<_> = names.iter().map(|name| (*name, new.id())).collect();
    world.until_assigned(&left).await;
    world.until_connected(&old, false).await;
    for name in names {
        let account = world.object(name).await.expect("it is there");
        assert_eq!(account.status_or_default().state(), State::Active, "{name}");
    }
    assert_eq!(names.map(|name| world.writes_to(name).len()), writes, "none was called an orphan meanwhile");
}

/// With other agents, a single late heartbeat lost accounts for good.
async fn agent_absent_within_grace_loses_no_account(database: Database) {
    let world = World::prepare().database(database).with_long_timeouts().start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    world.until_next_second("prod").await;
    let writes = world.writes_to("prod").len();
    // A restart within the grace: the stream is cut and a new process connects.
    agent.kill();
    world.until_connected(&agent, false).await;
    agent.launch();
    world.until_connected(&agent, true).await;
    world.until_assigned(&[("prod", agent.id())]).await;
    let boot = world
        .agent_object(&agent)
        .await
        .and_then(|agent| agent.status?.session)
        .map(|session| session.boot_id);
    let caching = |account: &KubesvcAccount| account.status_or_default().caching.clone();
    let cached = |account: &KubesvcAccount| caching(account).and_then(|caching| caching.boot_id) == boot;
    world.until_account("prod", "is cached by the new process", cached).await;
    assert_eq!(
        world.writes_to("prod").len(),
        writes + 1,
        "an agent that restarts within the grace costs the write that says which process caches"
    );
    assert_eq!(world.state("prod").await, Some(State::Active));
}

async fn accounts_are_orphaned_until_the_last_agent_returns(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    agent.kill();
    let orphaned = world.until("prod", State::Orphaned).await;
    assert_eq!(orphaned.status_or_default().phase(), GrantPhase::Open);
    world.until_row("prod", "ORPHANED").await;
    agent.launch();
    let epoch = orphaned.status_or_default().epoch;
    assert_eq!(
        world.until("prod", State::Active).await.status_or_default().epoch,
        epoch,
        "under the same epoch"
    );
    world.until_row("prod", "ACTIVE").await;
}

async fn unapproved_agent_gets_no_accounts(database: Database) {
    let world =
        World::prepare().database(database).setting("kubesvc.agents.approval", "manual").start().await;
    let cluster = world.cluster("spinnaker").await;
    // One that is not told to connect anew waits for longer than this test does.
    let agent = world.agent("agent-1").setting("kubernetes.reconnectTimeoutMs", json!(600_000)).start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until_reason("prod", State::Failed, "NoAgent").await;
    let name = object_names::agent_object_name(&agent.id().into(), &ZoneId::from(agent.zone()));
    let approve = Patch::Merge(json!({"spec": {"approved": true}}));
    must(
        world
            .api::<KubesvcAgent>()
            .patch(&name, &PatchParams::default(), &approve)
            .await
            .map_err(|e| e.to_string()),
    );
    world.until_row("prod", "ACTIVE").await;
    let log = agent.log_text();
    assert!(!log.contains("retrying in"), "it has reconnected at once: {log}");
}

/// One address that resolves to two clusters: the agent that ends up at the wrong one must not deploy there.
async fn agent_that_reaches_another_cluster_drops_the_account(database: Database) {
    let world = World::prepare().database(database).with_long_timeouts().start().await;
    let cluster = world.cluster("spinnaker").await;
    let right = world.agent("agent-right").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let bound = world.until("prod", State::Active).await;
    world.until_next_second("prod").await;
    let writes = world.writes_to("prod").len();
    let elsewhere = Policy { add: OnAdd::Hold(identity("elsewhere")), ..Policy::default() };
    let hub = format!("127.0.0.1:{}", world.operator().hub_port());
    let astray = SimulatedAgent::connect(&hub, Introduction::new("agent-astray", "east"), elsewhere).await;
    let astray = must(astray.map_err(|error| error.to_string()));
    eventually("the order to let go", MAX_WAIT, async || {
        let (added, deleted, held) = (astray.added(), astray.deleted(), astray.held());
        let let_go = deleted.iter().any(|one| one.name == "prod") && held.is_empty();
        if let_go { Ok(()) } else { Err(format!("added {added:?}, deleted {deleted:?}, held {held:?}")) }
    })
    .await;
    world.until_assigned(&[("prod", right.id())]).await;
    eventually("one account failed at agent-astray", MAX_WAIT, async || {
        let agents = world.api::<KubesvcAgent>();
        let object =
            agents.get(&object_names::agent_object_name(&"agent-astray".into(), &"east".into())).await;
        let status = object.map_err(|e| e.to_string())?.status.unwrap_or_default();
        if (status.held, status.failed) == (Some(0), Some(1)) { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    let row = world.until_row("prod", "ACTIVE").await;
    assert_eq!(row.cluster_uid, bound.status_or_default().cluster_uid, "{row:?}");
    let namespaces = row.namespaces.as_deref().unwrap_or_default();
    assert!(namespaces.contains(world.namespace()), "those of the right cluster: {namespaces}");
    // Once the address leads to the right cluster again, the agent is given the account again automatically.
    let mut here = identity("spinnaker");
    here.kube_system_uid = row.cluster_uid.clone().unwrap_or_default();
    astray.set_policy(Policy { add: OnAdd::Hold(here), ..Policy::default() });
    world.until_assigned(&[("prod", "agent-astray"), ("prod", right.id())]).await;
    assert_eq!(world.writes_to("prod").len(), writes, "the account was ACTIVE all the time");
}

async fn fleet_summary_shows_all_agents_and_accounts(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    for name in ["one", "two"] {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    let nobody = cluster.kubeconfig().replace(cluster.server(), "https://127.0.0.1:1");
    world.account("three").zone("east").kubeconfig(&nobody).create().await;
    eventually("2 accounts held and 1 failed", MAX_WAIT, async || {
        let object = world.try_agent_object(&agent).await?.ok_or("there is none")?;
        let status = object.status.unwrap_or_default();
        if (status.held, status.failed) == (Some(2), Some(1)) { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    let table = must(world.kubectl(&["get", "ksg"]).await.ok());
    let heads = table.lines().next().unwrap_or_default().to_owned();
    assert!(
        ["ZONE", "VERSION", "HELD", "FAILED", "SINCE"].iter().all(|head| heads.contains(head)),
        "{table}"
    );
    assert!(table.contains("agent-1") && table.contains("east"), "{table}");
}
