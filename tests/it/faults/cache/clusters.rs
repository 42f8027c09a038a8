//! The cluster's API server restarts and forgets old versions; CRDs and the account come and go.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::api::ListParams;
use serde_json::json;

use super::kinds::WrittenKind;
use super::load::{ACCOUNT, RowsMay, STILL, create_account, filled, prepare, settled, under_load};
use super::row_oracle::rows_are_objects;
use super::writer::{ClusterWriter, define_gadgets, forget_gadgets};
use crate::faults::hold;
use crate::faults::proxy::{Proxy, ProxyMode};
use crate::world::{Agent, Database, MAX_KIND_DELAY, MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

/// The rows follow, within the usual time.
const FOLLOW: (RowsMay, Duration) = (RowsMay::OnlyFollow, MAX_WAIT);
/// Time limit for an API server to stop when asked.
const END: Duration = Duration::from_secs(5);

/// The newest version of the cluster.
async fn version(world: &World) -> u64 {
    let client = world.control_plane().client().await;
    let listed =
        WrittenKind::ConfigMap.api(client, world.namespace()).list(&ListParams::default().limit(1)).await;
    let version = must(listed.map_err(|error| error.to_string())).metadata.resource_version;
    version.and_then(|version| version.parse().ok()).expect("versions of the test's server are numbers")
}

/// Restarts the API server after etcd has forgotten all versions but the newest: no watch goes on where it was.
async fn forget_versions(world: &World) {
    let plane = world.control_plane();
    must(plane.compact(version(world).await).await);
    plane.stop_apiserver();
    hold(Duration::from_secs(1)).await;
    must(plane.start_apiserver().await);
}

async fn with_own_control_plane(database: Database) -> (World, ClusterWriter, Agent) {
    let world = prepare().database(database).own_control_plane().start().await;
    let writer = filled(&world, 11, 0).await;
    let agent = world.agent("agent-1").start().await;
    create_account(&world, None).await;
    settled(&world).await;
    (world, writer, agent)
}

/// Versions are compacted under watches that run, and under watches of an agent that sleeps.
async fn versions_are_forgotten(database: Database, rounds: usize) {
    let (world, writer, agent) = with_own_control_plane(database).await;
    under_load(&world, writer, FOLLOW, async {
        for _ in 0..rounds {
            must(world.control_plane().compact(version(&world).await).await);
            hold(Duration::from_millis(500)).await;
            // At its end, it asks for its connections to be closed.
            world.control_plane().end_apiserver(END).await;
            hold(Duration::from_millis(300)).await;
            must(world.control_plane().start_apiserver().await);
            hold(Duration::from_millis(500)).await;
            agent.pause();
            hold(Duration::from_millis(500)).await;
            forget_versions(&world).await;
            agent.resume();
            hold(Duration::from_secs(1)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_catch_up_after_the_api_server_restarts_and_etcd_is_compacted() {
    versions_are_forgotten(Database::Sqlite, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn objects_catch_up_after_many_compactions_on_any_database() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        versions_are_forgotten(database, 5).await;
    }
}

/// A front sends each connection to another API server, of which one lags behind now and then.
async fn front_balances(database: Database) {
    let world = prepare().database(database).own_control_plane().start().await;
    let plane = world.control_plane();
    let second = must(plane.second().await);
    let port =
        |url: &str| url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a URL with a port");
    let ports: [u16; 2] = [port(&plane.server_url()), port(&second.instead(&plane.server_url(), plane))];
    let line = Proxy::to(ports[0]).await;
    let writer = filled(&world, 15, STILL).await;
    let _agent = world.agent("agent-1").start().await;
    create_account(&world, Some(&format!("https://127.0.0.1:{}", line.port()))).await;
    under_load(&world, writer, FOLLOW, async {
        for round in 0..16_usize {
            line.lead_to(ports[(round + 1) % 2]);
            if round % 4 == 0 {
                second.hold_watches();
            }
            line.set(ProxyMode::Cut);
            hold(Duration::from_millis(100)).await;
            line.set(ProxyMode::Open);
            hold(Duration::from_millis(1_500)).await;
            second.let_watches_go();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn front_that_balances_over_a_lagging_api_server_loses_nothing_on_any_database() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        front_balances(database).await;
    }
}

/// The settings of the account change again and again, and with them what is watched of its cluster.
async fn settings_change(database: Database, rounds: usize) {
    let world = prepare().database(database).start().await;
    let writer = filled(&world, 16, 0).await;
    let _agent = world.agent("agent-1").start().await;
    create_account(&world, None).await;
    let mut random = fastrand::Rng::with_seed(16);
    let here = [world.namespace()];
    let all = json!({"kinds": null, "omitKinds": null, "namespaces": null, "omitNamespaces": null});
    // Rows of a kind that was left out for a while go within a minute, or are taken over.
    let limit = MAX_WAIT + Duration::from_secs(30);
    under_load(&world, writer, (RowsMay::GoBack, limit), async {
        for _ in 0..rounds {
            let mut spec = all.clone();
            match random.u8(0..5) {
                0 => spec["kinds"] = json!(["ConfigMap", "Secret"]),
                1 => spec["omitKinds"] = json!(["secret"]),
                2 => spec["namespaces"] = json!(here),
                3 => spec["omitNamespaces"] = json!(here),
                _ => {}
            }
            world.patch(ACCOUNT, json!({"spec": spec})).await;
            hold(Duration::from_millis(random.u64(50..1_500))).await;
        }
        world.patch(ACCOUNT, json!({"spec": all})).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn account_whose_settings_change_has_rows_of_what_they_say() {
    settings_change(Database::Postgres, 8).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn account_whose_settings_change_many_times_has_rows_of_what_they_say() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        settings_change(database, 60).await;
    }
}

/// The account is deleted and made anew under its name, again and again, while the rows of the former are swept.
async fn account_is_made_anew(database: Database, rounds: usize) {
    let world = prepare().database(database).start().await;
    let writer = filled(&world, 12, STILL).await;
    let _agent = world.agent("agent-1").start().await;
    create_account(&world, None).await;
    let kubeconfig = world.cluster("other").await.kubeconfig();
    under_load(&world, writer, (RowsMay::GoBack, MAX_WAIT), async {
        for round in 0..rounds {
            hold(Duration::from_millis(700 * u64::try_from(round + 1).unwrap_or(1))).await;
            world.delete(ACCOUNT).await;
            world.until_gone(ACCOUNT).await;
            world.account(ACCOUNT).zone("east").kubeconfig(&kubeconfig).create().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn account_made_anew_has_its_own_rows_alone() {
    account_is_made_anew(Database::Sqlite, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn account_made_anew_many_times_has_its_own_rows_alone_on_any_database() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        account_is_made_anew(database, 8).await;
    }
}

/// Waits for the first row of an object of the CRD as it is now.
async fn until_first_gadget(world: &World) {
    let (client, kind) = (world.control_plane().client().await, WrittenKind::Gadget);
    let (gadgets, cached) = (kind.api(client, world.namespace()), kind.cached(world.namespace()));
    eventually("the first row of a new CRD", MAX_KIND_DELAY, async || {
        let read = async { world.open_database().await?.cached_rows().await };
        let rows = read.await.map_err(|error| error.to_string())?;
        let listed = gadgets.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let uids: BTreeSet<_> = listed.items.into_iter().filter_map(|object| object.metadata.uid).collect();
        let is_current = |uid: &String| uids.contains(uid);
        let mut rows = rows.into_iter().filter(|row| row.kind == cached);
        if rows.any(|row| row.uid.as_ref().is_some_and(is_current)) {
            Ok(())
        } else {
            Err(format!("there are {} objects", uids.len()))
        }
    })
    .await;
}

/// A CRD is deleted with its objects and made anew, for a shorter and a longer time.
async fn crd_comes_and_goes(database: Database) {
    let world = prepare().database(database).start().await;
    define_gadgets(&world).await;
    let _agent = world.agent("agent-1").start().await;
    create_account(&world, None).await;
    let kinds = [WrittenKind::Gadget, WrittenKind::Secret];
    for round in 0..3 {
        let mut writer = ClusterWriter::new(&world, 20 + round).await.of_kinds(&kinds);
        if round == 0 {
            writer.fill(0).await;
        }
        under_load(&world, writer, (RowsMay::GoBack, MAX_KIND_DELAY), async {
            hold(Duration::from_secs(2)).await;
            forget_gadgets(&world).await;
            // Now and then for less time than between two looks.
            hold(Duration::from_secs(round * 20)).await;
            define_gadgets(&world).await;
            until_first_gadget(&world).await;
        })
        .await;
    }
    forget_gadgets(&world).await;
    must(rows_are_objects(&world, ACCOUNT, &kinds, MAX_KIND_DELAY).await);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "three minutes each: make faults"]
async fn objects_of_a_crd_that_comes_and_goes_follow_it_on_any_database() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        crd_comes_and_goes(database).await;
    }
}
