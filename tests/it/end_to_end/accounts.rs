//! Accounts are applied, changed, deactivated and deleted, by people and by scripts.

use kubesvc_core::{GrantPhase, RETRY_ANNOTATION, State};
use serde_json::json;

use crate::stories::on_one_database;
use crate::world::{Database, World, condition};
use kubesvc_testkit::must;

on_one_database! {
    applied_account_becomes_active_in_the_table,
    account_is_added_activated_and_deleted_by_rest,
    inactive_account_keeps_its_row_and_has_no_agent,
    reused_name_is_a_new_account,
    changed_definition_is_resent_and_changed_permissions_are_not,
    older_of_two_objects_with_one_name_wins_until_deleted,
    every_account_name_of_spinnaker_works,
    failed_account_stalls_and_is_retried_on_request,
}

async fn applied_account_becomes_active_in_the_table(database: Database) {
    let world = World::prepare().database(database).with_long_timeouts().start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.kubectl_wait("prod", "condition=Ready").await;

    let row = world.until_row("prod", "ACTIVE").await;
    let account = world.object("prod").await.expect("it was made");
    let status = account.status_or_default();
    assert_eq!(row.uid, account.metadata.uid);
    assert_eq!((row.zone_id.as_deref(), row.failed_count), (Some("east"), 0), "{row:#?}");
    assert_eq!(
        (&row.kube_host, &row.kube_version, &row.cert_fingerprint, &row.cluster_uid),
        (&status.kube_host, &status.kube_version, &status.cert_fingerprint, &status.cluster_uid)
    );
    let definition = row.definition.as_deref().unwrap_or_default();
    assert!(definition.contains("\"prod\"") && !definition.contains(cluster.token()), "{definition}");
    world.until_assigned(&[("prod", agent.id())]).await;
    assert_eq!(world.writes_to("prod").len(), 3, "finalizer, ACTIVATING, ACTIVE");
}

async fn account_is_added_activated_and_deleted_by_rest(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let body = json!([{"name": "prod", "kubeconfigContents": cluster.kubeconfig(), "zoneId": "east"}]);
    let answer = world.rest("POST", "/armory/accounts/dynamic", &body).await;
    assert_eq!((answer.status, &answer.json), (202, &json!([])), "{answer}");
    world.until_row("prod", "INACTIVE").await;
    let again = world.rest("POST", "/armory/accounts/dynamic", &body).await;
    assert_eq!((again.status, &again.json[0]["state"]), (409, &json!("INACTIVE")), "{again}");

    let activate = json!([{"name": "prod", "state": "ACTIVE"}]);
    assert_eq!(world.rest("PATCH", "/armory/accounts", &activate).await.status, 202);
    world.until_shown("prod", "ACTIVE").await;
    let row = world.until_row("prod", "ACTIVE").await;
    assert!(row.is_dynamic && row.origin == "rest", "{row:?}");

    assert_eq!(world.rest("DELETE", "/armory/accounts", &json!(["prod"])).await.status, 202);
    world.until_gone("prod").await;
    assert_eq!(world.shown("prod").await, None);
    world.until_assigned(&[]).await;
}

async fn inactive_account_keeps_its_row_and_has_no_agent(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    world.patch("prod", json!({"spec": {"state": "INACTIVE"}})).await;
    let account = world.until("prod", State::Inactive).await;
    let ready = condition(&account, "Ready").expect("it is told");
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("True", "Inactive"));
    assert_eq!(account.status_or_default().phase(), GrantPhase::None);
    let row = world.until_row("prod", "INACTIVE").await;
    assert_eq!(row.kube_host, None, "it is bound to no cluster any more");
    world.until_assigned(&[]).await;
    assert_eq!(world.ask_agent(&agent).await.expect("it runs")["accountsHeld"], 0);

    world.patch("prod", json!({"spec": {"state": "ACTIVE"}})).await;
    world.until_row("prod", "ACTIVE").await;
    world.until_assigned(&[("prod", agent.id())]).await;
}

async fn reused_name_is_a_new_account(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let mut uids = Vec::new();
    for _ in 0..3 {
        world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until("prod", State::Active).await;
        uids.push(world.until_row("prod", "ACTIVE").await.uid);
        must(world.kubectl(&["delete", "ksa", "prod", "--timeout=45s"]).await.ok());
    }
    world.until_gone("prod").await;
    uids.dedup();
    assert_eq!(uids.len(), 3, "{uids:?}");
}

async fn changed_definition_is_resent_and_changed_permissions_are_not(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let epoch = world.until("prod", State::Active).await.status_or_default().epoch;

    world
        .patch("prod", json!({"spec": {"permissions": {"READ": ["007", "on call"], "WRITE": ["1e3"]}}}))
        .await;
    let seen = world
        .until_account("prod", "has seen its permissions", |account| {
            account.status_or_default().observed_generation == account.generation()
        })
        .await;
    assert_eq!(seen.status_or_default().epoch, epoch, "permissions are nothing that agents are sent");
    let props = world.until_row("prod", "ACTIVE").await.props.unwrap_or_default();
    assert!(["007", "on call", "1e3"].iter().all(|role| props.contains(&format!("{role:?}"))), "{props}");

    world.patch("prod", json!({"spec": {"kinds": ["deployment"]}})).await;
    let anew = world
        .until_account("prod", "is ACTIVE under a new epoch", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.epoch > epoch
        })
        .await;
    assert_eq!(anew.status_or_default().epoch, epoch.next());
}

async fn older_of_two_objects_with_one_name_wins_until_deleted(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let account = |object: &'static str| {
        world.account(object).zone("east").spec("accountName", "Prod!").kubeconfig(&cluster.kubeconfig())
    };
    account("first").create().await;
    world.until("first", State::Active).await;
    world.until_next_second("first").await;
    account("second").create().await;
    let younger = world.until_reason("second", State::Failed, "DuplicateName").await;
    let why = younger.status_or_default().error_message.clone().unwrap_or_default();
    assert!(why.contains("Prod!") && why.contains("first"), "{why}");
    assert_eq!(
        world.until_row("Prod!", "ACTIVE").await.uid,
        world.object("first").await.expect("it is there").metadata.uid
    );

    world.delete("first").await;
    world.until("second", State::Active).await;
    assert_eq!(world.until_row("Prod!", "ACTIVE").await.uid, younger.metadata.uid);
}

async fn every_account_name_of_spinnaker_works(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    let long = "n".repeat(255);
    let mut names = vec![
        "Prod",
        "prod",
        "it's \"prod\"",
        "prod 🚀",
        "ünïcode",
        "a;DROP TABLE kubesvc_accounts",
        "100%_",
        &long,
    ];
    let body: Vec<_> = names
        .iter()
        .map(|name| json!({"name": name, "kubeconfigContents": cluster.kubeconfig(), "zoneId": "east", "state": "ACTIVE"}))
        .collect();
    let answer = world.rest("POST", "/armory/accounts/dynamic", &json!(body)).await;
    assert_eq!(answer.status, 202, "{answer}");
    for name in &names {
        world.until_row(name, "ACTIVE").await;
    }
    names.sort_unstable();
    assert_eq!(world.rows().await.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), names);
    let assigned: Vec<_> = names.iter().map(|name| (*name, agent.id())).collect();
    world.until_assigned(&assigned).await;
    assert_eq!(world.rest("DELETE", "/armory/accounts", &json!(names)).await.status, 202);
    for name in names {
        world.until_row_gone(name).await;
    }
}

async fn failed_account_stalls_and_is_retried_on_request(database: Database) {
    let world = World::prepare()
        .database(database)
        .setting("kubesvc.dynamicAccounts.maxRetries", 1)
        .setting("kubesvc.dynamicAccounts.retryMaxDelaySeconds", 300)
        .start()
        .await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let nobody = cluster.kubeconfig().replace(cluster.server(), "https://127.0.0.1:1");
    world.account("prod").zone("east").kubeconfig(&nobody).unwatched().create().await;
    let stalled = world
        .until_account("prod", "is stalled", |account| {
            condition(account, "Stalled").is_some_and(|stalled| stalled.status == "True")
        })
        .await;
    let status = stalled.status_or_default();
    assert_eq!((status.state(), status.failed_count), (State::Failed, 2), "the first try and one more");
    let row = world.until_row("prod", "FAILED").await;
    assert_eq!(row.failed_count, 2, "{row:?}");
    assert!(row.error_message.as_deref().is_some_and(|why| why.contains("127.0.0.1:1")), "{row:?}");

    world.secret("prod", cluster.kubeconfig().as_bytes(), false).await;
    world.annotate("prod", RETRY_ANNOTATION, "now").await;
    let active = world.until("prod", State::Active).await;
    assert_eq!(active.status_or_default().failed_count, 0);
    let row = world.until_row("prod", "ACTIVE").await;
    assert_eq!((row.failed_count, row.error_message), (0, None));
}
