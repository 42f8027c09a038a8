//! The right to a kind is withdrawn while it is listed, and while it is watched, and is granted again.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::ListParams;
use kubesvc_core::conditions;

use super::kinds::WrittenKind;
use super::load::{ACCOUNT, RowsMay, STILL, api_server_port, create_account, filled, prepare, under_load};
use crate::faults::proxy::{Proxy, ProxyMode};
use crate::world::{Database, MAX_KIND_DELAY, MAX_LEFT_OUT_DELAY, MAX_WAIT, World, condition};
use kubesvc_testkit::{must, wait::eventually};

/// The rows follow once the right is granted again.
const FOLLOW: (RowsMay, Duration) = (RowsMay::OnlyFollow, MAX_KIND_DELAY);
/// Delay in each direction between the agent and the API server, so that a list takes seconds.
const LIST_DELAY: Duration = Duration::from_secs(1);
/// User of the account's cluster, as [`create_account`] creates it.
const USER: &str = "spinnaker";
/// What the user may read while it may not read ConfigMaps.
const WITHOUT_CONFIG_MAPS: [&str; 5] =
    ["namespaces", "deployments", "replicasets", "secrets", "customresourcedefinitions"];
/// What the condition `Caching` says then.
const NO_RIGHT: &str = "ConfigMap: the credential may not list and watch it";

/// Uid and version by name, of the ConfigMaps that are left alone.
type StillObjects = BTreeMap<String, (String, String)>;

async fn still_rows(world: &World) -> Result<StillObjects, String> {
    let read = async { world.open_database().await?.cached_rows().await };
    let rows = read.await.map_err(|error| error.to_string())?.into_iter();
    let still = rows.filter(|row| row.namespace == world.namespace() && row.name.starts_with("still-"));
    Ok(still.map(|row| (row.name, (row.uid.unwrap_or_default(), row.resource_version))).collect())
}

async fn still_objects(world: &World) -> Result<StillObjects, String> {
    let api = WrittenKind::ConfigMap.api(world.control_plane().client().await, world.namespace());
    let listed = api.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
    let named = listed.items.into_iter().map(|object| {
        let version = (object.uid().unwrap_or_default(), object.resource_version().unwrap_or_default());
        (object.name_any(), version)
    });
    Ok(named.filter(|(name, _)| name.starts_with("still-")).collect())
}

/// State of the scope of ConfigMaps, and why they cannot be read.
async fn scope(world: &World) -> Result<(String, Option<String>), String> {
    const SELECT: &str = "SELECT ns_group_kind, problem, state, epoch, last_updated FROM kubesvc_resourceversion \
                          ORDER BY 1";
    let read = async { world.open_database().await?.five(SELECT).await };
    let scopes = read.await.map_err(|error| error.to_string())?;
    let scope = scopes.into_iter().find(|scope| scope.0 == ":.ConfigMap");
    scope.map(|(_, problem, state, ..)| (state, problem)).ok_or_else(|| "there is no scope".to_owned())
}

/// Withdraws the right to ConfigMaps.
async fn withdraw(world: &World) {
    world.may_read(USER, &WITHOUT_CONFIG_MAPS).await;
    let user = format!("system:serviceaccount:{}:{USER}", world.namespace());
    eventually("the change of rights", MAX_WAIT, async || {
        let answer = world.kubectl(&["auth", "can-i", "list", "configmaps", "--as", user.as_str()]).await;
        if answer.stdout.trim() == "no" { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
}

/// Grants the right to all kinds, and waits until the ConfigMaps are cached whole. Returns them.
async fn grant(world: &World) -> StillObjects {
    world.may_read(USER, &["*"]).await;
    eventually("ConfigMaps that are read again", MAX_KIND_DELAY, async || {
        let (rows, objects) = (still_rows(world).await?, still_objects(world).await?);
        match scope(world).await? {
            (state, None) if state == "SYNCED" && rows == objects => Ok(rows),
            (state, problem) => {
                Err(format!("{state}, {problem:?}, {} of {} rows", rows.len(), objects.len()))
            }
        }
    })
    .await
}

/// Waits until a list has written some of its rows and not all. Returns them.
async fn until_partly_listed(world: &World) -> StillObjects {
    eventually("a list that runs", MAX_WAIT, async || {
        let rows = still_rows(world).await?;
        if (1..STILL).contains(&rows.len()) { Ok(rows) } else { Err(format!("{} rows", rows.len())) }
    })
    .await
}

/// Waits until the condition of the account names the kind and the missing right.
async fn until_told(world: &World) {
    eventually("a condition that names the missing right", MAX_LEFT_OUT_DELAY, async || {
        let account = world.try_object(ACCOUNT).await?.ok_or("it is gone")?;
        let caching = condition(&account, conditions::CACHING);
        let told = caching.as_ref().filter(|one| one.reason == conditions::LEFT_OUT);
        if told.is_some_and(|one| one.message.contains(NO_RIGHT)) {
            Ok(())
        } else {
            Err(format!("{caching:?}"))
        }
    })
    .await;
}

/// Checks that these rows are still there and as they were, and that no row is of anything but an object as it is.
async fn rows_stay(world: &World, before: &StillObjects) {
    let (rows, objects) = (must(still_rows(world).await), must(still_objects(world).await));
    let lost: Vec<_> = before.iter().filter(|(name, version)| rows.get(*name) != Some(*version)).collect();
    assert!(lost.is_empty(), "rows that went or changed: {lost:?}");
    let wrong: Vec<_> = rows.iter().filter(|(name, version)| objects.get(*name) != Some(*version)).collect();
    assert!(wrong.is_empty(), "rows of no object: {wrong:?}");
}

async fn right_is_withdrawn(database: Database) {
    // On a control plane of its own, no ConfigMaps of other tests are listed before these.
    let prepare = prepare().database(database).own_control_plane();
    // Over the slow line, an activation takes seconds, too.
    let world = prepare.with_long_timeouts().start().await;
    let writer = filled(&world, 13, STILL).await;
    let line = Proxy::to(api_server_port(world.control_plane())).await;
    let _agent = world.agent("agent-1").start().await;
    under_load(&world, writer, FOLLOW, async {
        // While they are listed.
        line.set(ProxyMode::Slow(LIST_DELAY));
        create_account(&world, Some(&format!("https://127.0.0.1:{}", line.port()))).await;
        let listed = until_partly_listed(&world).await;
        withdraw(&world).await;
        until_told(&world).await;
        let (state, _) = must(scope(&world).await);
        assert_eq!(state, "LISTING", "the list has ended before the right was withdrawn");
        rows_stay(&world, &listed).await;
        line.set(ProxyMode::Open);
        let all = grant(&world).await;

        // While they are watched. A watch that is open outlives the right.
        withdraw(&world).await;
        line.cut();
        let problem = eventually("a watch that is refused", MAX_WAIT, async || {
            let (state, problem) = scope(&world).await?;
            problem.ok_or(state)
        })
        .await;
        assert!(problem.contains("403"), "{problem}");
        rows_stay(&world, &all).await;
        grant(&world).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "three minutes each: make faults"]
async fn right_that_is_withdrawn_in_mid_list_keeps_rows_until_it_is_granted_on_any_database() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        right_is_withdrawn(database).await;
    }
}
