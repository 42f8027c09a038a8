//! Accounts of an agent's own file.

use kubesvc_core::{KubesvcAccount, ORIGIN_LABEL, State};
use serde_json::{Value, json};

use crate::stories::on_one_database;
use crate::world::row::Row;
use crate::world::{Agent, Cluster, Database, MAX_WAIT, World, condition};
use kubesvc_testkit::{must, wait::eventually};

on_one_database! {
    static_account_is_registered_and_listed,
    rest_does_not_change_static_accounts,
    changed_agent_file_takes_effect_without_restart,
    repeatedly_saved_agent_file_starts_each_account_once,
    invalid_agent_file_is_reported_and_the_last_valid_one_stays,
    unlisted_static_account_is_removed_at_once,
    static_accounts_of_a_removed_agent_are_deleted_with_their_rows,
    declared_account_wins_over_a_static_one,
    numeric_roles_and_roles_with_spaces_are_kept,
}

/// Writes a kubeconfig into the agent's own folder, and returns the entry in the agent's file for an account
/// that uses it.
fn entry(agent: &Agent, cluster: &Cluster, name: &str) -> Value {
    let file = agent.kubeconfigs().join(format!("{name}.yaml"));
    must(std::fs::write(&file, cluster.kubeconfig()).map_err(|e| e.to_string()));
    json!({"name": name, "kubeconfigFile": file.display().to_string()})
}

/// Starts an agent whose file lists these accounts.
async fn agent_with(world: &World, cluster: &Cluster, names: &[&str]) -> Agent {
    let agent = world.agent("agent-1").launch();
    let entries: Vec<_> = names.iter().map(|name| entry(&agent, cluster, name)).collect();
    agent.set("kubernetes.accounts", json!(entries));
    agent.launch();
    world.until_connected(&agent, true).await;
    agent
}

/// Waits until the object of an account is gone; it is removed after the row.
async fn until_object_gone(world: &World, name: &str) {
    eventually(&format!("no object of {name}"), MAX_WAIT, async || {
        match world.try_account_named(name).await? {
            None => Ok(()),
            Some(account) => Err(format!("{:?}", account.metadata)),
        }
    })
    .await;
}

/// With other agents, no such account could be registered on PostgreSQL.
async fn static_account_is_registered_and_listed(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = agent_with(&world, &cluster, &["static"]).await;
    world.account("declared").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let row = world.until_row("static", "ACTIVE").await;
    assert!(!row.is_dynamic && row.origin == "agent", "{row:?}");
    assert_eq!(row.zone_id.as_deref(), Some("east"), "{row:?}");
    world.until_row("declared", "ACTIVE").await;
    let account = world.account_named("static").await.expect("an object was made for it");
    assert_eq!(account.label(ORIGIN_LABEL), Some("agent"));
    let list = world.get("/armory/accounts").await;
    let sources: Vec<_> = list.json["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| (&one["name"], &one["source"]))
        .collect();
    assert_eq!(
        sources,
        [(&json!("declared"), &json!("clouddriver")), (&json!("static"), &json!("static-agent-config"))],
        "{list}"
    );
    world.until_assigned(&[("declared", agent.id()), ("static", agent.id())]).await;
    // Restarting everything changes nothing.
    agent.kill();
    world.operator().kill_and_start().await;
    agent.launch();
    world.until_assigned(&[("declared", agent.id()), ("static", agent.id())]).await;
    world.until_row("static", "ACTIVE").await;
    assert_eq!(world.account_named("static").await.expect("it is there").metadata.uid, account.metadata.uid);
}

async fn rest_does_not_change_static_accounts(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = agent_with(&world, &cluster, &["static"]).await;
    world.until_row("static", "ACTIVE").await;
    for (method, path, body, code) in [
        ("PATCH", "/armory/accounts", json!([{"name": "static", "state": "INACTIVE"}]), 400),
        ("DELETE", "/armory/accounts", json!(["static"]), 400),
        ("POST", "/armory/accounts/dynamic", json!({"name": "static", "serviceAccount": true}), 409),
    ] {
        let answer = world.rest(method, path, &body).await;
        assert_eq!(answer.status, code, "{method} {path}: {answer}");
    }
    let gone = world.call(crate::world::Call::new("DELETE", "/armory/accounts/static")).await;
    assert_eq!(gone.status, 400, "{gone}");
    assert_eq!(world.shown("static").await.as_deref(), Some("ACTIVE"));
}

async fn changed_agent_file_takes_effect_without_restart(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = agent_with(&world, &cluster, &["one"]).await;
    world.until_row("one", "ACTIVE").await;
    agent.set("kubernetes.accounts", json!([entry(&agent, &cluster, "one"), entry(&agent, &cluster, "two")]));
    world.until_row("two", "ACTIVE").await;
    let mut changed = entry(&agent, &cluster, "one");
    changed["kinds"] = json!(["deployment"]);
    agent.set("kubernetes.accounts", json!([changed, entry(&agent, &cluster, "two")]));
    eventually("the changed kinds of account one", MAX_WAIT, async || {
        let account = world.try_account_named("one").await?.ok_or("there is none")?;
        let status = account.status_or_default();
        if account.spec.kinds == ["deployment"] && status.state() == State::Active {
            Ok(())
        } else {
            Err(format!("{account:?}"))
        }
    })
    .await;
}

/// With other agents, each account was watched twice after two consecutive reloads.
async fn repeatedly_saved_agent_file_starts_each_account_once(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = agent_with(&world, &cluster, &["one"]).await;
    world.until_row("one", "ACTIVE").await;
    let first = world.account_named("one").await.expect("it is there").metadata.uid;
    let lists = [json!([entry(&agent, &cluster, "two")]), json!([]), json!([entry(&agent, &cluster, "one")])];
    let last = json!([entry(&agent, &cluster, "one"), entry(&agent, &cluster, "two")]);
    for list in lists.into_iter().chain([last.clone(), last]) {
        agent.set("kubernetes.accounts", list);
    }
    world.until_row("two", "ACTIVE").await;
    world.until_row("one", "ACTIVE").await;
    world.until_assigned(&[("one", agent.id()), ("two", agent.id())]).await;
    eventually("two accounts held", MAX_WAIT, async || {
        let own = world.ask_agent(&agent).await?;
        if own["accountsHeld"] == 2 && own["accountsStarting"] == 0 { Ok(()) } else { Err(own.to_string()) }
    })
    .await;
    let objects = world.kubectl(&["get", "ksa", "-o", "name"]).await.ok().expect("they can be listed");
    assert_eq!(objects.lines().count(), 2, "{first:?}: {objects}");
}

async fn invalid_agent_file_is_reported_and_the_last_valid_one_stays(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = agent_with(&world, &cluster, &["one"]).await;
    world.until_row("one", "ACTIVE").await;
    let good = agent.settings_text();
    agent.write_settings("kubernetes: {accounts: [{name: one, kubeconfigFil: /x}]}\n");
    eventually("a log line about the bad file", MAX_WAIT, async || {
        let log = agent.log_text();
        if log.contains("kubeconfigFil") { Ok(()) } else { Err("nothing is said of it".to_owned()) }
    })
    .await;
    assert_eq!(world.shown("one").await.as_deref(), Some("ACTIVE"));
    agent.write_settings(&good.replace("[\n", "[ \n"));
    agent.set("kubernetes.accounts", json!([entry(&agent, &cluster, "one"), entry(&agent, &cluster, "two")]));
    world.until_row("two", "ACTIVE").await;
    world.until_row("one", "ACTIVE").await;
}

async fn unlisted_static_account_is_removed_at_once(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = agent_with(&world, &cluster, &["one", "two"]).await;
    world.until_row("one", "ACTIVE").await;
    world.until_row("two", "ACTIVE").await;
    agent.set("kubernetes.accounts", json!([entry(&agent, &cluster, "one")]));
    world.until_row_gone("two").await;
    until_object_gone(&world, "two").await;
    world.until_row("one", "ACTIVE").await;
    world.until_assigned(&[("one", agent.id())]).await;
}

/// With other agents, the tables only grew: rows of accounts and agents long gone were never removed.
async fn static_accounts_of_a_removed_agent_are_deleted_with_their_rows(database: Database) {
    let world = World::prepare()
        .database(database)
        .setting("kubesvc.cache.accountCleanupFrequencySeconds", 4)
        .start()
        .await;
    let cluster = world.cluster("spinnaker").await;
    let agent = agent_with(&world, &cluster, &["static"]).await;
    world.account("declared").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until_row("static", "ACTIVE").await;
    world.until_row("declared", "ACTIVE").await;
    agent.kill();
    world.until_row_gone("static").await;
    until_object_gone(&world, "static").await;
    // No timer removes any other account.
    world.until_row("declared", "ORPHANED").await;
}

async fn declared_account_wins_over_a_static_one(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    world.account("prod").inactive().kubeconfig(&cluster.kubeconfig()).create().await;
    world.until_row("prod", "INACTIVE").await;
    let agent = agent_with(&world, &cluster, &["prod", "other"]).await;
    world.until_row("other", "ACTIVE").await;
    eventually("an agent that was told of the conflict", MAX_WAIT, async || {
        let log = agent.log_text();
        if log.contains("CONFLICT") && log.contains("prod") {
            Ok(())
        } else {
            Err("nothing is said of it".to_owned())
        }
    })
    .await;
    let row = world.row("prod").await.expect("its row");
    assert_eq!((row.status.as_str(), row.is_dynamic), ("INACTIVE", true), "{row:?}");
    let listed = |account: &KubesvcAccount| condition(account, "ListedByAgent");
    let declared =
        world.until_account("prod", "says that an agent lists it", |one| listed(one).is_some()).await;
    let told = listed(&declared).expect("it is there");
    assert_eq!(told.reason, "DeclaredWins");
    assert!(told.message.contains("agent-1") && told.message.contains("east"), "{}", told.message);
    agent.set("kubernetes.accounts", json!([entry(&agent, &cluster, "other")]));
    world.until_account("prod", "says it no more", |one| listed(one).is_none()).await;
}

/// Waits until the row of `prod` belongs to an account of this origin in this state. Two objects claim the
/// name.
async fn until_row_of(world: &World, origin: &str, state: &str) -> Row {
    eventually("the row of prod", MAX_WAIT, async || match world.row("prod").await {
        Some(row) if row.origin == origin && row.status == state => Ok(row),
        other => Err(format!("{other:?}")),
    })
    .await
}

/// The agent goes away and comes back while its account has the name: nothing changes hands.
#[tokio::test(flavor = "multi_thread")]
async fn declared_account_yields_to_the_static_one_until_the_agent_unlists_it() {
    let world = World::prepare().setting("kubesvc.dynamicAccounts.agentWins", true).start().await;
    let cluster = world.cluster("spinnaker").await;
    let other = world.agent("agent-0").start().await;
    world.account("prod").zone(other.zone()).kubeconfig(&cluster.kubeconfig()).create().await;
    let declared = world.until("prod", State::Active).await;
    let agent = agent_with(&world, &cluster, &["prod"]).await;
    world.until_reason("prod", State::Failed, "DuplicateName").await;
    let names_the_agent =
        |one: &KubesvcAccount| condition(one, "ListedByAgent").is_some_and(|told| told.reason == "AgentWins");
    let beaten = world.until_account("prod", "says which agent has its name", names_the_agent).await;
    let why = beaten.status_or_default().error_message.clone().unwrap_or_default();
    assert!(why.contains("agent-1") && why.contains("kubesvc.dynamicAccounts.agentWins: true"), "{why}");
    let row = until_row_of(&world, "agent", "ACTIVE").await;
    assert!(!row.is_dynamic && row.uid != declared.metadata.uid, "{row:?}");

    agent.kill();
    until_row_of(&world, "agent", "ORPHANED").await;
    agent.launch();
    assert_eq!(until_row_of(&world, "agent", "ACTIVE").await.uid, row.uid);
    let still = world.until_reason("prod", State::Failed, "DuplicateName").await;
    assert_eq!(still.status_or_default().epoch, beaten.status_or_default().epoch);

    agent.set("kubernetes.accounts", json!([]));
    world.until("prod", State::Active).await;
    assert_eq!(until_row_of(&world, "declared", "ACTIVE").await.uid, declared.metadata.uid);
    world
        .until_account("prod", "names no agent any more", |one| {
            condition(one, "ListedByAgent").is_none() && one.status_or_default().name_holder.is_none()
        })
        .await;
}

/// With other agents, an account lost its permissions because a role was a number or contained a space: then
/// either everybody or nobody could see the account.
async fn numeric_roles_and_roles_with_spaces_are_kept(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = agent_with(&world, &cluster, &[]).await;
    let mut list = entry(&agent, &cluster, "list");
    list["permissions"] = json!([{"READ": [7, "on call"]}, {"WRITE": ["ops"]}]);
    let mut map = entry(&agent, &cluster, "map");
    map["permissions"] = json!({"READ": ["007"], "WRITE": [12.5, true]});
    agent.set("kubernetes.accounts", json!([list, map]));
    for (name, roles) in
        [("list", ["\"7\"", "\"on call\"", "\"ops\""]), ("map", ["\"007\"", "\"12.5\"", "\"true\""])]
    {
        let props = world.until_row(name, "ACTIVE").await.props.unwrap_or_default();
        assert!(roles.iter().all(|role| props.contains(role)), "{name}: {props}");
    }
    let account = world.account_named("list").await.expect("it is there");
    assert!(condition(&account, "Ready").is_some_and(|ready| ready.status == "True"));
}

/// With other agents, an account was lost in the second in which its agent crashed.
#[tokio::test(flavor = "multi_thread")]
async fn static_account_stays_when_its_agent_is_killed_but_the_zone_is_connected() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let lists = agent_with(&world, &cluster, &["static"]).await;
    let other = world.agent("agent-2").start().await;
    world.account("declared").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until_row("static", "ACTIVE").await;
    world.until_row("declared", "ACTIVE").await;
    let before = world.account_named("static").await.expect("an object was made for it");

    lists.kill();
    world.until_connected(&lists, false).await;
    world.until_row("static", "ORPHANED").await;
    world.until_assigned(&[("declared", other.id())]).await;
    let after = world.account_named("static").await.expect("it stays");
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert!(after.metadata.deletion_timestamp.is_none());

    lists.launch();
    world.until_row("static", "ACTIVE").await;
    let back = world.account_named("static").await.expect("it stays");
    assert_eq!(back.metadata.uid, before.metadata.uid);
}
