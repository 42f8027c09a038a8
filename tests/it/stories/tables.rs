//! The tables: who reads them, what else is in them, and what happens when the database is troubled.

use kubesvc::account::State;
use serde_json::json;

use super::on_each_database;
use crate::harness::must;
use crate::world::{Database, World};

on_each_database! {
    rows_edited_by_hand_are_put_right_and_rows_of_others_are_left_alone,
    an_account_whose_name_is_taken_in_the_table_says_so,
    a_table_that_was_dropped_while_nobody_looked_is_made_anew,
    names_that_differ_in_case_alone_are_two_accounts,
    an_operator_that_comes_back_finds_its_rows_as_they_should_be,
}

async fn rows_edited_by_hand_are_put_right_and_rows_of_others_are_left_alone(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    for name in ["changed", "removed"] {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until_row(name, "ACTIVE").await;
    }
    world.execute("INSERT INTO kubesvc_accounts (name, status) VALUES ('vendor', 'ORPHANED')").await;
    world
        .execute("UPDATE kubesvc_accounts SET status = 'FAILED', failed_count = 9 WHERE name = 'changed'")
        .await;
    world.execute("DELETE FROM kubesvc_accounts WHERE name = 'removed'").await;
    world.operator().kill_and_start().await;
    let row = world.until_row("changed", "ACTIVE").await;
    assert_eq!(row.failed_count, 0, "{row:?}");
    world.until_row("removed", "ACTIVE").await;
    let vendor = world.row("vendor").await.expect("it is not ours");
    assert_eq!((vendor.uid, vendor.status.as_str()), (None, "ORPHANED"));
    world.patch("changed", json!({"spec": {"state": "INACTIVE"}})).await;
    world.until_row("changed", "INACTIVE").await;
}

async fn an_account_whose_name_is_taken_in_the_table_says_so(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    world
        .execute("INSERT INTO kubesvc_accounts (name, status, zone_id) VALUES ('prod', 'ACTIVE', 'old')")
        .await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let failed = world.until_reason("prod", State::Failed, "RowExists").await;
    let why = failed.status_or_default().error_message.clone().unwrap_or_default();
    assert!(why.contains("kubesvc_accounts") && why.contains("delete the row"), "{why}");
    assert_eq!(failed.status_or_default().granted_zone(), None, "{failed:#?}");
    let row = world.row("prod").await.expect("it is not ours");
    assert_eq!((row.uid, row.zone_id.as_deref()), (None, Some("old")));

    world.execute("DELETE FROM kubesvc_accounts WHERE name = 'prod'").await;
    world.operator().kill_and_start().await;
    world.until("prod", State::Active).await;
    let row = world.until_row("prod", "ACTIVE").await;
    assert!(row.uid.is_some(), "{row:?}");
}

async fn a_table_that_was_dropped_while_nobody_looked_is_made_anew(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until_row("prod", "ACTIVE").await;
    assert!(world.operator().terminate().await.success());
    for table in ["kubesvc_accounts", "kubesvc_assignments", "kubesvc_schema_migrations"] {
        world.execute(&format!("DROP TABLE {table}")).await;
    }
    world.operator().start().await;
    world.until_row("prod", "ACTIVE").await;
    world.until_assigned(&[("prod", agent.id())]).await;
}

async fn names_that_differ_in_case_alone_are_two_accounts(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    for (object, name) in [("one", "Prod"), ("two", "PROD"), ("three", "prod")] {
        world
            .account(object)
            .zone("east")
            .spec("accountName", name)
            .kubeconfig(&cluster.kubeconfig())
            .create()
            .await;
    }
    for name in ["Prod", "PROD", "prod"] {
        world.until_row(name, "ACTIVE").await;
    }
    world.delete("two").await;
    world.until_row_gone("PROD").await;
    assert_eq!(world.rows().await.len(), 2);
}

async fn an_operator_that_comes_back_finds_its_rows_as_they_should_be(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    for name in ["kept", "stopped", "deleted"] {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until_row(name, "ACTIVE").await;
    }
    world.operator().kill();
    world.patch("stopped", json!({"spec": {"state": "INACTIVE"}})).await;
    must(world.kubectl(&["delete", "ksa", "deleted", "--wait=false"]).await.ok());
    world.operator().start().await;
    world.until_row("stopped", "INACTIVE").await;
    world.until_gone("deleted").await;
    world.until_row("kept", "ACTIVE").await;
    assert_eq!(world.rows().await.len(), 2);
}
