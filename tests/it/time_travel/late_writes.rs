//! A leader is paused (SIGSTOP) in the middle of its work until another one leads: with writes of objects in
//! flight, or just before it writes rows. Then it continues.

use std::collections::BTreeMap;

use kube::api::ListParams;
use kubesvc_core::{KubesvcAccount, State};
use serde_json::json;
use url::Url;

use crate::faults::proxy::{Proxy, ProxyMode};
use crate::stories::on_one_server;
use crate::world::{Database, MAX_WAIT, Operator, Prepare, World};
use kubesvc_testkit::{must, wait::eventually};

on_one_server! {
    late_object_writes_of_a_paused_leader_are_refused,
    late_row_writes_of_a_paused_leader_are_refused_counted_and_logged,
}

/// Number of accounts that are processed at once.
const ACCOUNTS: usize = 20;
/// Minimum number of object writes in flight.
const ON_THEIR_WAY: usize = 12;

fn prepare(database: Database) -> Prepare {
    // Long enough for a busy machine to start all the work before the missing answers are noticed.
    World::prepare()
        .database(database)
        .setting("kubesvc.leaderElection.leaseDurationSeconds", 20)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", 16)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
        .without_operator()
}

async fn until_leading(replica: &Operator) {
    eventually(&format!("{} leads", replica.replica_id()), MAX_WAIT, async || {
        match replica.metric("kubesvc_leader").await? {
            1 => Ok(()),
            other => Err(format!("{other}")),
        }
    })
    .await;
}

/// Creates an account that needs no agent.
async fn create(world: &World, name: &str) {
    world.account(name).zone("east").inactive().kubeconfig("apiVersion: v1\nkind: Config\n").create().await;
}

/// The objects by name.
async fn objects(world: &World) -> BTreeMap<String, KubesvcAccount> {
    let listed = eventually("all accounts", MAX_WAIT, async || {
        world.api::<KubesvcAccount>().list(&ListParams::default()).await.map_err(|e| e.to_string())
    })
    .await;
    listed.items.into_iter().map(|account| (account.account_name().to_owned(), account)).collect()
}

/// Makes a change that needs a write of each object and each row, but no agent.
async fn change(world: &World, environment: &str) {
    for name in objects(world).await.keys() {
        world.patch(name, json!({"spec": {"environment": environment}})).await;
    }
}

/// Waits until the statuses match the current specs, and the rows match the statuses.
async fn until_handled(world: &World) {
    eventually("every account handled", MAX_WAIT, async || {
        let (objects, written) = (objects(world).await, world.rows().await);
        for (name, account) in &objects {
            let status = account.status_or_default();
            if status.state() != State::Inactive || status.observed_generation != account.generation() {
                return Err(format!("{name} is {status:?}"));
            }
            let row = written.iter().find(|row| row.name == *name);
            if row.is_none_or(|row| row.observed_generation != account.generation()) {
                return Err(format!("the row of {name} is {row:?}"));
            }
        }
        Ok(())
    })
    .await;
}

fn versions(objects: &BTreeMap<String, KubesvcAccount>) -> BTreeMap<&str, Option<&str>> {
    objects.iter().map(|(name, one)| (name.as_str(), one.metadata.resource_version.as_deref())).collect()
}

async fn late_object_writes_of_a_paused_leader_are_refused(database: Database) {
    let world = prepare(database).start().await;
    let server = world.control_plane().server_url();
    let port = must(Url::parse(&server).map_err(|e| e.to_string())).port().expect("it has a port");
    let line = Proxy::to(port).await;
    let through = format!("https://127.0.0.1:{}", line.port());
    let sleeper = world.differing_replica("sleeper", &[], |text| text.replace(&server, &through));
    sleeper.start().await;
    until_leading(&sleeper).await;
    let next = world.operator();
    next.start().await;
    for number in 0..ACCOUNTS {
        create(&world, &format!("late-{number:02}")).await;
    }
    until_handled(&world).await;

    line.set(ProxyMode::Mute);
    change(&world, "first").await;
    eventually("writes on their way", MAX_WAIT, async || match line.keeping() {
        ON_THEIR_WAY.. => Ok(()),
        few => Err(format!("{few} connections with a request")),
    })
    .await;
    sleeper.pause();
    until_leading(next).await;
    until_handled(&world).await;
    let (before, rows) = (objects(&world).await, format!("{:?}", world.rows().await));
    let refused = || {
        let writes = world.operator_writes("kubesvcaccounts").into_iter();
        writes.filter(|write| write.code == 409).count()
    };
    assert_eq!(refused(), 0, "nothing was late so far");

    // The writes arrive.
    line.set(ProxyMode::Open);
    // Only those on established connections; the others had just begun to connect.
    eventually("the late writes are refused", MAX_WAIT, async || match refused() {
        0 => Err("none is".to_owned()),
        _ => Ok(()),
    })
    .await;
    sleeper.resume();
    assert_eq!(world.until_one_leads(&[&sleeper, next]).await, 1);
    assert!(sleeper.log_text().contains("this replica follows"));
    assert_eq!(versions(&before), versions(&objects(&world).await), "nothing of what came late was taken");
    assert_eq!(rows, format!("{:?}", world.rows().await));
    change(&world, "second").await;
    until_handled(&world).await;
}

async fn late_row_writes_of_a_paused_leader_are_refused_counted_and_logged(database: Database) {
    let world = prepare(database).start().await;
    let sleeper = world.unstarted_replica("sleeper");
    sleeper.launch_with(&[("KUBESVC_STOP_AT", "row-update:before")]);
    sleeper.ready().await;
    until_leading(&sleeper).await;
    let next = world.operator();
    next.start().await;
    create(&world, "late").await;
    eventually("it is stopped just before it writes a row", MAX_WAIT, async || {
        if sleeper.is_paused() { Ok(()) } else { Err("it runs".to_owned()) }
    })
    .await;
    until_leading(next).await;
    change(&world, "first").await;
    until_handled(&world).await;
    let (before, rows) = (objects(&world).await, format!("{:?}", world.rows().await));

    sleeper.resume();
    eventually("a late write that is counted", MAX_WAIT, async || {
        match sleeper.metric("kubesvc_store_late_writes_total").await? {
            0 => Err("none".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    let log = sleeper.log_text();
    assert!(log.contains("a late write was refused: another replica leads"), "{log}");
    assert_eq!(world.until_one_leads(&[&sleeper, next]).await, 1);
    assert_eq!(versions(&before), versions(&objects(&world).await), "nothing of what came late was taken");
    assert_eq!(rows, format!("{:?}", world.rows().await));
    change(&world, "second").await;
    until_handled(&world).await;
}
