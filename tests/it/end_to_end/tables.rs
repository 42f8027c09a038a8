//! The tables: who reads them, what else is in them, and what happens when the database fails.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kubesvc_core::{ORIGIN_LABEL, State, ZoneId, owned_secret};
use serde_json::json;

use crate::stories::on_each_database;
use crate::world::{Database, ForeignTableRow, MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

on_each_database! {
    rows_edited_by_hand_are_repaired_and_foreign_rows_are_kept,
    account_whose_name_has_a_foreign_row_reports_it,
    rows_without_objects_are_adopted_on_request,
    rows_of_the_vendor_tables_are_adopted,
    unreadable_foreign_row_is_reported_and_kept,
    dropped_table_is_recreated_at_start,
    names_differing_only_in_case_are_two_accounts,
    restarted_operator_leaves_correct_rows_unchanged,
}

async fn rows_edited_by_hand_are_repaired_and_foreign_rows_are_kept(database: Database) {
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

async fn account_whose_name_has_a_foreign_row_reports_it(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    world
        .execute("INSERT INTO kubesvc_accounts (name, status, zone_id) VALUES ('prod', 'ACTIVE', 'old')")
        .await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let failed = world.until_reason("prod", State::Failed, "RowExists").await;
    let why = failed.status_or_default().error_message.clone().unwrap_or_default();
    assert!(
        why.contains("kubesvc_accounts") && why.contains("delete the row") && why.contains("adoptRows"),
        "{why}"
    );
    assert_eq!(failed.status_or_default().granted_zone(), None, "{failed:#?}");
    let row = world.row("prod").await.expect("it is not ours");
    assert_eq!((row.uid, row.zone_id.as_deref()), (None, Some("old")));

    world.execute("DELETE FROM kubesvc_accounts WHERE name = 'prod'").await;
    world.operator().kill_and_start().await;
    world.until("prod", State::Active).await;
    let row = world.until_row("prod", "ACTIVE").await;
    assert!(row.uid.is_some(), "{row:?}");
}

/// A world whose operator adopts rows and has not been started.
async fn adopting(database: Database) -> World {
    let setting = World::prepare()
        .database(database)
        .setting("kubesvc.dynamicAccounts.adoptRows", true)
        .setting("kubesvc.database.takeOver", true);
    setting.without_operator().start().await
}

/// An ACTIVE account of zone east whose kubeconfig is in the table.
fn with_kubeconfig<'t>(name: &'t str, definition: &'t str) -> ForeignTableRow<'t> {
    ForeignTableRow { name, status: "ACTIVE", zone: "east", definition }
}

async fn rows_without_objects_are_adopted_on_request(database: Database) {
    let world = adopting(database).await;
    world.operator().start().await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    // Some versions of Clouddriver store it in this form.
    let encoded = BASE64_STANDARD.encode(cluster.kubeconfig());
    let definition = json!({"name": "plain", "kubeconfigContents": encoded}).to_string();
    let reference = json!({
        "name": "Old Prod", "type": "kubernetes", "kubeconfigFile": "encryptedFile:k8s!n:old!k:kubeconfig",
        "permissions": {"READ": ["dev"]},
    });
    let old = ForeignTableRow {
        name: "Old Prod",
        status: "INACTIVE",
        zone: "east",
        definition: &reference.to_string(),
    };
    world.write_foreign_rows("kubesvc_accounts", &[with_kubeconfig("plain", &definition), old]).await;
    world.operator().kill_and_start().await;

    let row = world.until_own_row("Old Prod", "INACTIVE").await;
    let account = world.account_named("Old Prod").await.expect("it was made");
    assert_eq!(account.label(ORIGIN_LABEL), Some("migrated"));
    assert_eq!(account.spec.zone_id.as_ref().map(ZoneId::as_str), Some("east"));
    assert_eq!((row.origin.as_str(), row.uid), ("migrated", account.metadata.uid));
    assert!(row.props.is_some_and(|props| props.contains("dev")));

    let row = world.until_own_row("plain", "ACTIVE").await;
    let text = row.definition.unwrap_or_default();
    assert!(!text.contains("clusters") && !text.contains("kubeconfigContents"), "{text}");
    let secret = world.api::<Secret>().get("plain-kubeconfig").await.expect("it has the kubeconfig");
    assert!(owned_secret::is_ours(&secret.metadata, (world.namespace(), "plain")), "{:?}", secret.metadata);
    assert_eq!(secret.metadata.owner_references, None);

    // It is an account like any other: a deletion is permanent.
    world.delete("plain").await;
    world.until_gone("plain").await;
    world.operator().kill_and_start().await;
    world.until_adopted(0).await;
    assert!(world.object("plain").await.is_none());
    assert_eq!(world.rows().await.len(), 1);
}

async fn rows_of_the_vendor_tables_are_adopted(database: Database) {
    let world = adopting(database).await;
    let cluster = world.cluster("spinnaker").await;
    let definition = json!({"kubeconfigContents": cluster.kubeconfig(), "kinds": ["pod"]}).to_string();
    let own = ForeignTableRow { name: "of-an-agents-file", definition: "", ..with_kubeconfig("", "") };
    world.make_vendor_table().await;
    world
        .write_foreign_rows(
            "kubesvc_accounts",
            &[with_kubeconfig("one", &definition), with_kubeconfig("two", &definition), own],
        )
        .await;
    // An account that is already declared keeps its spec, and the row with its name is removed.
    world.account("two").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.operator().start().await;
    let _agent = world.agent("agent-1").start().await;
    world.until_row("one", "ACTIVE").await;
    world.until_row("two", "ACTIVE").await;
    let one = world.object("one").await.expect("it was made");
    assert_eq!(
        (one.label(ORIGIN_LABEL), one.spec.kinds.as_slice()),
        (Some("migrated"), &["pod".to_owned()][..])
    );
    let two = world.object("two").await.expect("it was declared");
    assert_eq!((two.label(ORIGIN_LABEL), two.spec.kinds.len()), (None, 0));

    // Rows that became accounts have left the vendor's table; the other one is unchanged.
    world.operator().kill_and_start().await;
    world.until_adopted(1).await;
    eventually("one row in the vendor's table", MAX_WAIT, async || {
        let met = "UPDATE kubesvc_accounts_vendor SET last_updated = 7 WHERE name IN ('one', 'two')";
        let left = world.try_execute(met).await?;
        if left == 0 { Ok(()) } else { Err(format!("{left} were there still")) }
    })
    .await;
    let left = world.execute("DELETE FROM kubesvc_accounts_vendor WHERE definition = ''").await;
    assert_eq!(left, 1);
    assert_eq!(world.rows().await.len(), 2);
}

async fn unreadable_foreign_row_is_reported_and_kept(database: Database) {
    let world = adopting(database).await;
    world.operator().start().await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let token = format!("{{token: {:?}}}", cluster.token());
    let exec = cluster.kubeconfig().replace(&token, "{exec: {command: /bin/s3cret}}");
    let exec = json!({"kubeconfigContents": exec}).to_string();
    let good = json!({"kubeconfigContents": cluster.kubeconfig()}).to_string();
    let bad = [("broken", "{\"s3cret\": "), ("exec", exec.as_str()), ("bare", "{}"), ("a\tb", good.as_str())];
    let rows: Vec<_> = bad.iter().map(|(name, definition)| with_kubeconfig(name, definition)).collect();
    // Not while the operator is running, or each process would log it once.
    world.operator().kill();
    world.write_foreign_rows("kubesvc_accounts", &rows).await;
    world.write_foreign_rows("kubesvc_accounts", &[with_kubeconfig("good", &good)]).await;
    world.operator().start().await;
    world.until_own_row("good", "ACTIVE").await;
    world.until_adopted(4).await;
    let log = world.operator().log_text();
    assert!(!log.contains("s3cret"), "{log}");
    let told: Vec<_> = log.lines().filter(|line| line.contains("cannot become an account")).collect();
    for (name, why) in
        [("broken", "no JSON"), ("exec", "exec"), ("bare", "no credential"), ("a\\tb", "name must be")]
    {
        let of_it = told.iter().filter(|line| line.contains(name) && line.contains(why)).count();
        assert_eq!(of_it, 1, "{name}: {told:#?}");
    }
    for (name, definition) in bad {
        let row = world.row(name).await.expect("it is not ours");
        assert_eq!((row.uid.as_deref(), row.definition.as_deref()), (None, Some(definition)));
        assert!(world.account_named(name).await.is_none(), "{name}");
    }

    // Declaring such an account takes over its row.
    world.account("broken").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until_own_row("broken", "ACTIVE").await;
    assert!(world.writes_to("broken").len() <= 3, "it was never FAILED: {:?}", world.writes_to("broken"));
}

async fn dropped_table_is_recreated_at_start(database: Database) {
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

async fn names_differing_only_in_case_are_two_accounts(database: Database) {
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

async fn restarted_operator_leaves_correct_rows_unchanged(database: Database) {
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
