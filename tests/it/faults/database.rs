//! The database is locked, full, or edited by hand.

use std::process::Command;
use std::time::Duration;

use kubesvc_core::{GrantPhase, State};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use super::settled::settled;
use super::{hold, until_database};
use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

/// A connection to the operator's database that may write.
async fn manual_connection(world: &World) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(world.folder().file("kubesvc.db"));
    options.busy_timeout(Duration::from_secs(30)).connect().await.expect("the operator has made it")
}

async fn execute(database: &mut SqliteConnection, statement: &'static str) {
    must(sqlx::query(statement).execute(database).await.map(drop).map_err(|e| format!("{statement}: {e}")));
}

/// Waits until an account in deletion has given up its grant, so that only its row is left.
async fn until_it_waits_for_its_row(world: &World, name: &str) {
    world
        .until_account(name, "waits for its row", |account| {
            let status = account.status_or_default();
            status.state() == State::Deleting && status.phase() == GrantPhase::None && account.has_finalizer()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_database_is_reported_and_delays_only_rows_and_finalizers() {
    let (world, cluster, agent) = World::with_agent().await;
    world.account("deleted").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("deleted", State::Active).await;
    world.until_row("deleted", "ACTIVE").await;

    let mut manual_connection = manual_connection(&world).await;
    execute(&mut manual_connection, "BEGIN EXCLUSIVE").await;
    let names: Vec<_> = (0..6).map(|number| format!("new-{number}")).collect();
    for name in &names {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    let why = until_database(&world, true).await;
    assert!(why.contains("kubesvc.db") || why.contains("lock") || why.contains("busy"), "{why}");
    for name in &names {
        world.until(name, State::Active).await;
    }
    world.delete("deleted").await;
    until_it_waits_for_its_row(&world, "deleted").await;
    assert_eq!(world.rows().await.len(), 1, "nobody writes but who has the lock");
    // The rest of the fault: some more attempts of the operator, which must not give up.
    hold(Duration::from_secs(3)).await;
    until_it_waits_for_its_row(&world, "deleted").await;

    execute(&mut manual_connection, "ROLLBACK").await;
    until_database(&world, false).await;
    world.until_gone("deleted").await;
    let wanted: Vec<_> = names.iter().map(|name| (name.as_str(), State::Active)).collect();
    settled(&world, &[&agent], &wanted).await;
}

/// Limits the size of files that the operator writes.
pub(super) fn limit_files(world: &World, bytes: &str) {
    let pid = world.operator().id().to_string();
    let status = Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={bytes}:")]).status();
    assert!(status.expect("util-linux is there").success());
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn full_disk_is_reported_and_delays_only_rows_and_finalizers() {
    // The log must stay smaller than the database, for which the limit is meant.
    let world = World::prepare().bearing_file_limits().setting("logging.level", "error").start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    for name in ["kept", "deleted"] {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until(name, State::Active).await;
        world.until_row(name, "ACTIVE").await;
    }
    let size =
        must(std::fs::metadata(world.folder().file("kubesvc.db-wal")).map_err(|e| e.to_string())).len();
    limit_files(&world, &size.to_string());

    world.account("new").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("new", State::Active).await;
    let why = until_database(&world, true).await;
    assert!(why.contains("kubesvc.db") || why.contains("disk"), "{why}");
    world.delete("deleted").await;
    until_it_waits_for_its_row(&world, "deleted").await;
    assert!(world.row("deleted").await.is_some() && world.row("new").await.is_none());
    assert_eq!(world.shown("new").await.as_deref(), Some("ACTIVE"), "REST asks the objects");

    limit_files(&world, "unlimited");
    until_database(&world, false).await;
    world.until_gone("deleted").await;
    settled(&world, &[&agent], &[("kept", State::Active), ("new", State::Active)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_changed_by_hand_are_repaired_at_start() {
    let (world, cluster, agent) = World::with_agent().await;
    let names = ["edited", "emptied", "removed", "renamed"];
    for name in names {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    for name in names {
        world.until(name, State::Active).await;
        world.until_row(name, "ACTIVE").await;
    }
    let mut manual_connection = manual_connection(&world).await;
    for statement in [
        "UPDATE kubesvc_accounts SET status = 'FAILED', zone_id = 'nowhere', failed_count = 7 WHERE name = 'edited'",
        "UPDATE kubesvc_accounts SET definition = NULL, kube_host = NULL WHERE name = 'emptied'",
        "DELETE FROM kubesvc_accounts WHERE name = 'removed'",
        "UPDATE kubesvc_accounts SET name = 'something-else' WHERE name = 'renamed'",
    ] {
        execute(&mut manual_connection, statement).await;
    }
    // A row of kubesvc's by its uid, but without an object; and one that another program created, without a
    // uid.
    for (name, uid) in [("ghost", "'00000000-0000-4000-8000-000000000000'"), ("foreign", "NULL")] {
        let copy = format!(
            "INSERT INTO kubesvc_accounts SELECT * FROM kubesvc_accounts WHERE name = 'edited' LIMIT 0; \
             CREATE TEMP TABLE copy AS SELECT * FROM kubesvc_accounts WHERE name = 'edited'; \
             UPDATE copy SET name = '{name}', uid = {uid}; \
             INSERT INTO kubesvc_accounts SELECT * FROM copy; DROP TABLE copy;"
        );
        must(
            sqlx::raw_sql(sqlx::AssertSqlSafe(copy))
                .execute(&mut manual_connection)
                .await
                .map_err(|e| e.to_string()),
        );
    }
    world.operator().kill_and_start().await;
    eventually("the row of nobody gone and the foreign one left alone", MAX_WAIT, async || {
        let rows: Vec<_> = world.try_rows().await?.into_iter().map(|row| row.name).collect();
        if rows == ["edited", "emptied", "foreign", "removed", "renamed"] {
            Ok(())
        } else {
            Err(format!("{rows:?}"))
        }
    })
    .await;
    execute(&mut manual_connection, "DELETE FROM kubesvc_accounts WHERE name = 'foreign'").await;
    settled(&world, &[&agent], &names.map(|name| (name, State::Active))).await;
    for name in names {
        let row = world.until_row(name, "ACTIVE").await;
        assert_eq!((row.zone_id.as_deref(), row.failed_count), (Some("east"), 0), "{row:?}");
        assert!(row.definition.is_some() && row.kube_host.is_some(), "{row:?}");
    }
    must(manual_connection.close().await.map_err(|error| error.to_string()));
}
