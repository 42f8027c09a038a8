//! A database on its own server has no room for another row.

use kubesvc_core::State;

use super::settled::settled;
use super::until_database;
use crate::stories::on_one_server;
use crate::world::{Database, World};
use kubesvc_testkit::databases;
use kubesvc_testkit::must;

on_one_server! {
    full_server_is_reported_and_rows_catch_up_when_it_has_room,
}

const TABLE: &str = "kubesvc_accounts";
/// More rows than fit onto the pages that the table has: one of 16 KiB, and a row is about 600 bytes.
const ACCOUNTS: usize = 64;

async fn full_server_is_reported_and_rows_catch_up_when_it_has_room(database: Database) {
    let server = must(databases::own_small(database.server()).await);
    let url = server.fresh_database().await;
    let database = url.rsplit('/').next().expect("it has a name");
    let world = World::prepare().database_url(&url).start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    let filled = must(server.fill(database, TABLE).await);

    // Statuses are still written, and the missing database is reported.
    let names: Vec<_> = (0..ACCOUNTS).map(|number| format!("new-{number:02}")).collect();
    for name in &names {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    for name in &names {
        world.until(name, State::Active).await;
    }
    let why = until_database(&world, true).await;
    assert!(why.contains("full: make room"), "{why}");
    let rows = world.rows().await.len();
    assert!(rows < names.len(), "{rows} rows fit");
    let last = names.last().expect("there are some");
    assert_eq!(world.shown(last).await.as_deref(), Some("ACTIVE"), "REST asks the objects");
    world.delete(last).await;

    must(server.make_room(database, filled).await);
    until_database(&world, false).await;
    world.until_gone(last).await;
    let wanted: Vec<_> = names.iter().take(ACCOUNTS - 1).map(|name| (name.as_str(), State::Active)).collect();
    settled(&world, &[&agent], &wanted).await;
}
